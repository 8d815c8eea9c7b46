"""Outcomes that are known for all arms: picks, fronts and limits are those of dense loops, and the values go with the arms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oracles
import oracles_outcomes as dense
import pytest
import torch
from emulated_device import emulated_device
from problems import OFF_SCALE, Problem, generator
from scipy import stats
from test_outcomes import kernel

import torchbandits as tb
from torchbandits import errors, outcomes
from torchbandits.aims import normal_scores
from torchbandits.policies import successive

pytestmark = OFF_SCALE

PROBLEM = Problem(seed=3, a=40, duplicates=4)
ENTRIES = dense.entries(PROBLEM.arms)
NOISE, WIDTH, SHAPE = 0.1, 2.0, (0.4, 1.0)
# Equal arms have equal prices, and some prices are equal.
PRICE = np.round(5 + 4 * PROBLEM.arms[:, 0] + 3 * np.cos(5 * PROBLEM.arms[:, 1]), 1)
KNOWN = {"price": torch.tensor(PRICE)}


def model(make: Any = tb.gp_ucb, **options: Any) -> dict[str, Any]:
    return {"yield": make(kernel(*SHAPE), noise_std=NOISE, **{"width": tb.widths.Constant(WIDTH)} | options)}


def trade_off(**options: Any) -> Any:
    return outcomes.pareto(model(), known=["price"], minimize=["price"], **options)


def bandit(policy: Any, **options: Any) -> tb.OutcomeBandit:
    return tb.OutcomeBandit(policy, PROBLEM.tensor, **{"known": KNOWN, "generator": generator(4)} | options)


def told(play: tb.OutcomeBandit, index: torch.Tensor, seed: int) -> torch.Tensor:
    values = torch.tensor(PROBLEM.f)[index] + NOISE * torch.randn(index.shape, generator=generator(seed), dtype=torch.float64)
    play.tell(index, values.unsqueeze(-1))
    return values


def beliefs(pulls: list[tuple[int, float]], pending: list[int]) -> dense.Beliefs:
    """Beliefs on the yield and, after it, on the price, which has no deviation."""
    rows = [[(arm, value, NOISE**2) for arm, value in pulls]]
    own = dense.Beliefs.of([oracles.rbf(*SHAPE)], PROBLEM.arms, rows, pending, [NOISE**2])
    none = np.zeros((1, 40))
    return dense.Beliefs(np.vstack([own.mean, PRICE]), np.vstack([own.known, none]), np.vstack([own.std, none]), own.covariance)


def improvement(mean: np.ndarray, std: np.ndarray, seen: list[int], pending: list[int]) -> np.ndarray:
    """Expected growth of the hypervolume, where the price has a deviation too small to matter."""
    means = np.array([[1.0], [-1.0]]) * mean
    reach = [np.sqrt(SHAPE[1]), np.ptp(PRICE)]
    low, unit = dense.scale(means, seen, reach)
    low = low + 0.1 * unit - 0.1 * np.maximum(unit, np.ptp(means[:, seen or range(40)], axis=1))
    low[1] = means[1].min() - 0.1 * np.ptp(PRICE)
    front = means[:, sorted({*seen, *pending})].T
    tiny = np.where(std == 0, 1e-9, std)
    return dense.expected_growth(means, tiny, front, low)


def test_trade_offs_with_a_known_price_are_those_of_the_dense_oracle():
    play, pulls = bandit(trade_off()), []
    for step in range(12):
        picks = play.ask(more=3 if step % 3 == 2 else 1)
        index, pending = picks.index.tolist(), []
        for arm in index:
            own, seen = beliefs(pulls, pending), list(dict.fromkeys(a for a, _ in pulls))
            score = improvement(own.mean, own.std, seen, pending)
            score = np.where(ENTRIES, score, -np.inf)
            score[[*seen, *pending]] = -np.inf
            assert score[arm] >= score.max() - 1e-9 * abs(score.max()), (step, arm)
            pending.append(arm)
        pulls += zip(index, told(play, picks.index, step).tolist(), strict=True)
    assert play.counts.shape == (1, 40)
    assert play.outcomes == ("yield",)


def test_the_cheapest_arm_that_may_keep_a_limit_is_picked():
    for optimism in (0.0, 0.5, 1.0):
        policy = outcomes.constrained(model(), known=["price"], minimize="price", at_least={"yield": 0.5}, optimism=optimism)
        play, pulls = bandit(policy), []
        for step in range(10):
            own, picks = beliefs(pulls, []), play.ask()
            (arm,) = picks.index.tolist()
            may = ENTRIES & (own.mean[0] + optimism * WIDTH * own.std[0] >= 0.5)
            if may.any():
                assert may[arm]
                assert PRICE[arm] == PRICE[may].min()
            else:
                assert arm == np.argmax(np.where(ENTRIES, own.mean[0] + optimism * WIDTH * own.std[0], -np.inf))
            pulls.append((arm, float(told(play, picks.index, step))))
        found = play.best(3)
        sure = dense.log_feasible(own.mean[:1], own.known[:1], [(0, 1.0, 0.5)]) >= np.log(0.95)
        assert found.outcomes == ("yield", "price")
        assert bool((found.variance[:, 1] == 0).all())
        assert torch.equal(found.mean[:, 1], torch.tensor(PRICE)[found.index])
        kept = [arm for arm in {a for a, _ in pulls[:-1]} if sure[arm] and ENTRIES[arm]]
        if len(kept) > 3:
            assert PRICE[found.index[0]] <= min(PRICE[kept]) + 1e-12


@pytest.mark.parametrize("kind", ["bounds", "improvement", "draws", "chebyshev"])
def test_a_known_limit_is_never_violated_and_may_be_met_exactly(kind: str):
    limit = float(np.sort(PRICE)[12])
    assert (limit == PRICE).any()
    own = {"improvement": model(acquisition="ei"), "draws": model(tb.thompson_sampling)}.get(kind, model())
    options: dict[str, Any] = {"known": ["price"], "at_most": {"price": limit}}
    if kind == "chebyshev":
        policy = outcomes.pareto(own, objectives=["yield"], scalarization=kind, **options)
    else:
        policy = outcomes.constrained(own, maximize="yield", **options)
    play, arms = bandit(policy), []
    allowed = np.flatnonzero(ENTRIES & (limit >= PRICE))
    for step in range(len(allowed) + 3 if kind == "improvement" else 15):
        picks = play.ask()
        arms += picks.index.tolist()
        told(play, picks.index, step)
    assert set(arms) <= set(allowed)
    if kind == "improvement":
        assert set(arms) == set(allowed), "an arm whose price is the limit keeps it"
    dear = bandit(policy, known={"price": KNOWN["price"] + limit})
    (least,) = dear.ask().index.tolist()
    assert PRICE[least] == PRICE[ENTRIES].min(), "if no arm keeps the limit, the one that breaks it least is picked"
    if kind != "chebyshev":
        assert all(limit >= PRICE[arm] for arm in play.best(5).index.tolist())


def test_the_front_contains_known_values_and_their_probabilities():
    play, pulls = bandit(trade_off()), []
    for step in range(8):
        picks = play.ask()
        pulls += zip(picks.index.tolist(), told(play, picks.index, step).tolist(), strict=True)
    own, front = beliefs(pulls, []), play.front(reference={"yield": -3.0, "price": 20.0}, draws=4000)
    signed = np.stack([own.mean[0], -PRICE], axis=-1)
    assert front.index.tolist() == dense.non_dominated(signed, ENTRIES)
    assert front.outcomes == ("yield", "price")
    assert "mean price" in str(front)
    assert np.allclose(front.mean.numpy(), own.mean.T[front.index], rtol=1e-8)
    assert np.allclose(front.variance.numpy(), (own.known**2).T[front.index], atol=1e-9)
    area = dense.area(signed[front.index], np.array([-3.0, -20.0]))
    assert float(front.hypervolume) == pytest.approx(area, rel=1e-9)
    covariance = np.stack([own.covariance[0], np.zeros((40, 40))])
    chance = dense.membership(own.mean, covariance, np.array([1.0, -1.0]), ENTRIES, 4000, 1)
    assert np.allclose(front.probability.numpy(), chance[front.index], atol=0.05)
    spread = WIDTH * own.known
    corners = [np.stack([own.mean[0] + s * spread[0], -PRICE], axis=-1) for s in (-1, 1)]
    inside, outside = dense.pareto_sets(*corners, np.array([0.2, 0.3]), ENTRIES)
    sets = play.pareto_set({"yield": 0.2, "price": 0.3})
    assert sets.inside.tolist() == inside.tolist()
    assert sets.outside.tolist() == outside.tolist()
    assert play.explain().outcomes == ("yield",)


def test_a_front_with_a_known_outcome_ends_the_run():
    policy = outcomes.pareto(model(width=tb.widths.Srinivas(0.05)), known=["price"], minimize=["price"])
    play, rule = bandit(policy), tb.stopping.FrontKnown({"yield": 1.5, "price": 0.5})
    pulls = 0
    while not play.should_stop(rule, tb.stopping.Budget(pulls=200)):
        told(play, play.ask().index, pulls)
        pulls += 1
    assert 0 < pulls < 200
    assert not bool(play.pareto_set({"yield": 1.5, "price": 0.5}).undecided.any())


@pytest.mark.parametrize("draws", [False, True])
def test_batch_rows_are_as_single_runs_with_prices_of_their_own(draws: bool):
    other = torch.tensor(PRICE) ** 2
    policy = trade_off(scalarization="hypervolume" if draws else None)
    both = bandit(policy, generator=[generator(1), generator(2)], known={"price": torch.stack([KNOWN["price"], other])})
    alone = [bandit(policy, generator=generator(s), known={"price": p}) for s, p in ((1, KNOWN["price"]), (2, other))]
    for step in range(6):
        picks, singles = both.ask(), [one.ask() for one in alone]
        assert torch.equal(picks.index, torch.stack([one.index for one in singles]))
        values = torch.tensor(PROBLEM.f)[picks.index] + 0.1 * step
        both.tell(picks, values.unsqueeze(-1))
        for row, (one, own) in enumerate(zip(alone, singles, strict=True)):
            one.tell(own, values[row].unsqueeze(-1))
    front, single = both.front(), alone[1].front()
    assert front.index[1, : len(single.index)].tolist() == single.index.tolist()


def test_a_journal_resumes_with_the_same_values_and_refuses_others(tmp_path: Path):
    path, more = tmp_path / "run.journal", torch.cat([PROBLEM.tensor, PROBLEM.tensor[:5] + 2])
    wide = {"price": torch.cat([KNOWN["price"], torch.linspace(1, 2, 5, dtype=torch.float64)])}

    def steps(play: tb.OutcomeBandit, seeds: range) -> list[int]:
        found = []
        for _ in seeds:
            picks = play.ask()
            found += picks.index.tolist()
            play.tell(picks, torch.sin(picks.points.sum(dim=-1, keepdim=True)))
        return found

    whole = bandit(trade_off())
    expected = steps(whole, range(4))
    whole.set_arms_(more, known=wide)
    expected += steps(whole, range(4, 8))
    assert max(expected) >= 40, "new arms are picked"
    found = []
    for part in range(2):
        own = bandit(trade_off(), journal=tb.Journal(path, every=3))
        if part == 0:
            found += steps(own, range(4))
            own.set_arms_(more, known=wide)
            found += steps(own, range(4, 6))
        else:
            found += steps(own, range(6, 8))
        assert own.journal is not None
        own.journal.close()
    assert found == expected
    with pytest.raises(errors.StateError, match="known was"):
        bandit(trade_off(), known={"price": KNOWN["price"] + 1}, journal=path)
    with pytest.raises(errors.ArgumentError, match="known for all arms"):
        whole.set_arms_(more)
    with pytest.raises(errors.ShapeError, match="one number per arm, 40"):
        whole.set_arms_(PROBLEM.tensor, known=wide)
    assert whole.loop.num_arms == 45, "nothing has changed"


def test_workers_share_known_values(tmp_path: Path):
    path = tmp_path / "store.db"
    first = tb.Worker(trade_off(), PROBLEM.tensor, store=path, known=KNOWN, generator=generator(4))
    second = tb.Worker(trade_off(), PROBLEM.tensor, store=path, known=KNOWN)
    alone = bandit(trade_off())
    for step in range(5):
        lease, picks = (first if step % 2 else second).ask(), alone.ask()
        assert int(lease.index) == int(picks.index)
        (second if step % 2 else first).tell(lease, {"yield": float(PROBLEM.f[int(lease.index)])})
        alone.tell(picks, torch.tensor(PROBLEM.f)[picks.index].unsqueeze(-1))
    with pytest.raises(errors.StateError, match="known was"):
        tb.Worker(trade_off(), PROBLEM.tensor, store=path, known={"price": KNOWN["price"] + 1})
    with pytest.raises(errors.ArgumentError, match="several outcomes"):
        tb.Worker(tb.gp_ucb(kernel(*SHAPE), noise_std=NOISE), PROBLEM.tensor, store=tmp_path / "other.db", known=KNOWN)


def test_models_that_rank_rewards_rank_known_values_and_limits_stay_exact():
    price = torch.tensor(PRICE)
    ranks = stats.rankdata(PRICE)
    assert np.allclose(normal_scores(price).numpy(), stats.norm.ppf((ranks - 0.5) / 40))
    many = np.arange(100_000)
    assert np.allclose(normal_scores(torch.tensor(many)).numpy(), stats.norm.ppf((many + 0.5) / len(many)), atol=1e-9)
    limit = float(np.sort(PRICE)[12])
    policy = outcomes.pareto(
        {"yield": tb.auto()}, known=["price"], minimize=["price"], objectives=["yield", "price"], at_most={"price": limit}
    )
    play, same = bandit(policy), bandit(policy, known={"price": price})
    stretched = outcomes.pareto(
        {"yield": tb.auto()}, known=["price"], minimize=["price"], objectives=["yield", "price"], at_most={"price": limit**9}
    )
    other, arms = bandit(stretched, known={"price": price**9}), []
    for step in range(16):
        picks = play.ask()
        assert torch.equal(other.ask().index, picks.index), "only the order of prices counts"
        arms += picks.index.tolist()
        for one in (play, same, other):
            told(one, picks.index, step)
    assert limit >= PRICE[arms].max(), "the first picks, which represent all arms, too"
    allowed = np.flatnonzero(ENTRIES & (limit >= PRICE))
    front = play.front()
    assert set(front.index.tolist()) <= set(allowed.tolist())
    assert torch.equal(front.mean[:, 1], price[front.index])


@pytest.mark.parametrize("limited", [False, True])
def test_leaders_among_many_arms_are_those_of_all_scores(limited: bool, monkeypatch: pytest.MonkeyPatch):
    arms = torch.rand(3_000, 2, generator=generator(1), dtype=torch.float64)
    price = 1 + arms[:, 0] + 0.1 * torch.rand(3_000, generator=generator(2), dtype=torch.float64)
    options = {"objectives": ["yield", "price"], "at_most": {"price": 1.8}} if limited else {}

    def played() -> list[list[int]]:
        play = tb.OutcomeBandit(trade_off(**options), arms, known={"price": price})
        found = []
        for _ in range(3):
            picks = play.ask(more=8)
            found.append(picks.index.tolist())
            play.tell(picks, torch.sin(5 * picks.points.sum(dim=-1, keepdim=True)))
        return found

    expected = played()
    monkeypatch.setattr(successive, "_MANY", 1_000)
    monkeypatch.setattr(successive, "_LEADERS", 64)
    assert played() == expected


def test_picks_on_a_device_are_those_of_the_cpu():
    def played(move: Any) -> tuple[list[int], list[float]]:
        play = tb.OutcomeBandit(trade_off(), move(PROBLEM.tensor), known={"price": move(torch.tensor(PRICE))})
        found: list[int] = []
        for _ in range(6):
            picks = play.ask()
            found += picks.index.cpu().tolist()
            play.tell(picks, move(torch.tensor(PROBLEM.f))[picks.index].unsqueeze(-1))
        return found, play.front().mean.cpu().reshape(-1).tolist()

    expected = played(lambda x: x)
    with emulated_device():
        picks, means = played(lambda x: x.to("cuda"))
    assert picks == expected[0]
    assert means == pytest.approx(expected[1])


@pytest.mark.usefixtures("annotations_not_enforced")
def test_bad_known_values_are_errors():
    unequal = torch.tensor(PRICE)
    unequal[int(np.flatnonzero(~ENTRIES)[0])] += 1
    for known, error, text in (
        (None, errors.ArgumentError, r"known for all arms: give them, known=\{'price': …\}\."),
        ({}, errors.ArgumentError, "known lacks the values of 'price'"),
        (
            {"price": PRICE, "mass": PRICE},
            errors.ArgumentError,
            "known names 'mass', which is not one of the known outcomes of",
        ),
        ({"price": PRICE[:-1]}, errors.ShapeError, "one number per arm, 40"),
        ({"price": 3.0}, errors.ShapeError, "one number per arm"),
        ({"price": np.where(PRICE > 6, np.nan, PRICE)}, errors.NonFiniteError, r"known\['price'\] must be finite"),
        ({"price": unequal}, errors.ArgumentError, "equal arms must have equal values"),
        ([PRICE], errors.ArgumentError, "numbers by outcome"),
    ):
        with pytest.raises(error, match=text):
            bandit(trade_off(), known=known)
    with pytest.raises(errors.ArgumentError, match=r"pareto\(models, known="):
        bandit(outcomes.pareto(model()), known=KNOWN)
    for names, text in (("price", "list of names"), (["yield"], "already"), (["a", "a"], "already"), ([3], "list of names")):
        with pytest.raises(errors.ArgumentError, match=text):
            outcomes.pareto(model(), known=names)
    with pytest.raises(errors.ArgumentError, match="minimize names 'mass'"):
        outcomes.pareto(model(), known=["price"], minimize=["mass"])
    with pytest.raises(errors.UnsupportedError, match="known outcomes are of one fidelity"):
        outcomes.fidelity(trade_off(), torch.ones(1, 2).double(), column=0, target=1.0, costs={1.0: 1.0})
