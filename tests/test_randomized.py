"""Policies whose picks are drawn (a random width, the most probable arms, drawn rewards of pending picks), compared with dense
loops with the same draws."""

from __future__ import annotations

import math

import numpy as np
import oracles
import pytest
import torch
from problems import COMMON, DELTA, NOISE_STD, Problem, generator, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits import errors
from torchbandits.testing.play import differences, everything

PROBLEM = Problem(seed=13, a=40, duplicates=3)
ENTRIES = np.equal(oracles.first_copies(PROBLEM.arms), np.arange(40))
K = oracles.rbf(0.4)(PROBLEM.arms, PROBLEM.arms)
LAM = NOISE_STD**2


def dense(pulled: list[int], rewards: list[float]) -> tuple[np.ndarray, np.ndarray]:
    found = oracles.exact_posterior(K[np.ix_(pulled, pulled)], K[pulled], K.diagonal(), np.array(rewards), LAM, K)
    return found.mean, found.covariance


def std_of(covariance: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(covariance.diagonal(), 0))


def tell(bandit: tb.Bandit, index: Tensor, pulled: list[int], rewards: list[float]) -> None:
    y = [PROBLEM.reward(len(pulled) + place, int(arm)) for place, arm in enumerate(index)]
    bandit.tell(index, torch.tensor(y, dtype=torch.float64))
    pulled += index.tolist()
    rewards += y


# ------------------------------------------------------------------ a random width


def test_the_width_has_the_distribution_of_the_paper():
    width, draw = tb.widths.ShiftedExponential(), generator(0)
    progress = tb.Progress(*(torch.zeros(()) for _ in range(2)), 40, 2, *(torch.zeros(()) for _ in range(6)))
    zeta = np.array([float(width.draw(progress, [draw])) ** 2 for _ in range(20_000)])
    shift = 2 * math.log(20)
    assert zeta.min() >= shift - 1e-9
    assert zeta.mean() == pytest.approx(shift + 2, abs=0.06)
    assert np.median(zeta) == pytest.approx(shift + 2 * math.log(2), abs=0.06)
    assert float(width(progress)) ** 2 == pytest.approx(shift + 2)


def test_the_expected_maximum_is_bounded_by_the_expected_upper_bound():
    """The lemma on which the regret bound is based, at a posterior: E max f ≤ E max μ + √ζ σ."""
    mean, covariance = dense([3, 9, 21], [PROBLEM.reward(t, arm) for t, arm in enumerate([3, 9, 21])])
    rng, own = np.random.default_rng(0), np.flatnonzero(ENTRIES)
    f = rng.multivariate_normal(mean[own], covariance[np.ix_(own, own)], size=20_000, method="eigh").max(axis=1)
    zeta = 2 * math.log(len(own) / 2) + rng.exponential(2.0, size=20_000)
    upper = (mean[own] + np.sqrt(zeta)[:, None] * std_of(covariance)[own]).max(axis=1)
    assert f.mean() <= upper.mean()


def test_irgp_ucb_picks_by_a_drawn_width():
    bandit = tb.Bandit(tb.irgp_ucb(rbf(), noise_std=NOISE_STD), PROBLEM.tensor, generator=generator(6))
    pulled, rewards, draw = [], [], generator(6)
    for step in range(25):
        uniform = float(torch.rand((), generator=draw, dtype=torch.float64))
        width = math.sqrt(2 * math.log(20) - 2 * math.log1p(-uniform))
        selection = bandit.ask()
        if step:
            mean, covariance = dense(pulled, rewards)
            assert int(selection.index) == oracles.argmax(mean + width * std_of(covariance), ENTRIES)
        certificate = bandit.width.clone()
        tell(bandit, selection.index, pulled, rewards)
        assert float(certificate) == pytest.approx(math.sqrt(2 * math.log(20) + 2))


@pytest.mark.parametrize("shape", ["half-normal", "exponential", "uniform"])
def test_explored_widths_are_drawn_from_their_distribution(shape: str):
    """The distribution of 4,000 draws, and the reported root mean square, are compared with SciPy."""
    from scipy import stats  # noqa: PLC0415

    law = {"half-normal": stats.halfnorm(), "exponential": stats.expon(), "uniform": stats.uniform(0, 2)}[shape]
    base = tb.widths.Constant(3.0)
    width, one = tb.widths.Explored(base, shape), torch.zeros(4_000, dtype=torch.float64)
    progress = tb.Progress(one, one, 40, 1, *[one] * 6)
    drawn = width.draw(progress, [generator(seed) for seed in range(4_000)]) / 3
    assert stats.kstest(drawn.numpy(), law.cdf).pvalue > 0.01
    assert float(width(progress)[0]) == pytest.approx(3 * math.sqrt(law.var() + law.mean() ** 2))
    assert width.reads == base.reads
    bandit = tb.Bandit(tb.gp_ucb(rbf(), noise_std=NOISE_STD, width=width), PROBLEM.tensor, generator=generator(6))
    draw, pulled, rewards = generator(6), [], []
    for step in range(10):
        own = 3 * float(law.ppf(float(torch.rand((), generator=draw, dtype=torch.float64))))
        selection = bandit.ask()
        if step:
            mean, covariance = dense(pulled, rewards)
            assert int(selection.index) == oracles.argmax(mean + own * std_of(covariance), ENTRIES)
        tell(bandit, selection.index, pulled, rewards)
    with pytest.raises(errors.ArgumentError, match="base must be"):
        tb.widths.Explored(tb.widths.ShiftedExponential())


def test_a_multiple_of_a_random_width_is_drawn_as_well():
    """Scaled(w, 0.5) picks by half of the numbers that w draws, here for a multiple of a multiple."""
    width = tb.widths.Scaled(tb.widths.Scaled(tb.widths.ShiftedExponential(), 0.2), 2.5)
    bandit = tb.Bandit(tb.irgp_ucb(rbf(), noise_std=NOISE_STD, width=width), PROBLEM.tensor, generator=generator(6))
    pulled, rewards, draw, widths = [], [], generator(6), []
    for step in range(10):
        own = 0.5 * math.sqrt(2 * math.log(20) - 2 * math.log1p(-float(torch.rand((), generator=draw, dtype=torch.float64))))
        _, evidence = bandit.policy.select(bandit.loop.state)
        widths.append(float(evidence.width))
        assert widths[-1] == pytest.approx(own)
        selection = bandit.ask()
        if step:
            mean, covariance = dense(pulled, rewards)
            assert int(selection.index) == oracles.argmax(mean + own * std_of(covariance), ENTRIES)
        tell(bandit, selection.index, pulled, rewards)
    assert len(set(widths)) == 10
    assert float(bandit.width) == pytest.approx(0.5 * math.sqrt(2 * math.log(20) + 2))
    with pytest.raises(errors.UnsupportedError, match="random widths"):
        tb.Bandit(tb.irgp_ucb(rbf(), noise_std=0.1, width=width), bounds=torch.tensor([[0.0], [1.0]], dtype=torch.float64))
    with pytest.raises(errors.ArgumentError, match="base must be"):
        tb.widths.Explored(width)


@pytest.mark.parametrize("width", [tb.widths.ShiftedExponential(), tb.widths.Scaled(tb.widths.ShiftedExponential(), 0.5)])
@pytest.mark.parametrize("name", ["bpe", "reds", "sup_kernel_ucb", "ada_bkb"])
def test_policies_that_compare_bounds_of_one_width_refuse_random_widths(name: str, width: tb.widths.Width):
    with pytest.raises(errors.UnsupportedError, match="random widths are drawn for every ask"):
        getattr(tb, name)(rbf(), horizon=20, noise_std=NOISE_STD, width=width)


# ------------------------------------------------------------------ the most probable arms


def test_qpo_picks_the_most_probable_arms():
    policy = tb.qpo(rbf(), noise_std=NOISE_STD, batch_size=4, draws=20_000)
    bandit, pulled, rewards = tb.Bandit(policy, PROBLEM.tensor, generator=generator(2)), [], []
    tell(bandit, torch.tensor([4, 17, 30]), pulled, rewards)
    own = np.flatnonzero(ENTRIES)
    for _ in range(3):
        mean, covariance = dense(pulled, rewards)
        f = np.random.default_rng(1).multivariate_normal(mean[own], covariance[np.ix_(own, own)], size=100_000, method="eigh")
        probability = np.zeros(40)
        probability[own] = np.bincount(f.argmax(axis=1), minlength=len(own)) / 100_000
        bandit.loop.sync_()
        selection, evidence = bandit.loop.policy.select(bandit.loop.state)
        picks = bandit.ask().index
        assert torch.equal(selection.index, picks)
        assert len(set(picks.tolist())) == 4
        np.testing.assert_allclose(evidence.score.numpy(), probability[picks], atol=0.02)
        assert probability[picks].sum() > np.sort(probability)[-4:].sum() - 0.03
        more = bandit.ask(more=2).index[4:]
        assert not set(more.tolist()) & set(picks.tolist()), "pending arms are not picked again"
        bandit.forget(bandit.ask())
        tell(bandit, picks, pulled, rewards)


def test_what_no_draw_makes_the_best_follows_by_upper_bound():
    policy = tb.qpo(rbf(), noise_std=NOISE_STD, batch_size=37, draws=5, leaders=3)
    bandit, pulled, rewards = tb.Bandit(policy, PROBLEM.tensor, generator=generator(2)), [], []
    tell(bandit, torch.tensor([4, 17, 30]), pulled, rewards)
    mean, covariance = dense(pulled, rewards)
    upper = np.where(ENTRIES, mean + 3 * std_of(covariance), -np.inf)
    picks = bandit.ask().index.tolist()
    assert sorted(picks) == np.flatnonzero(ENTRIES).tolist()
    order = np.argsort(-upper, kind="stable")
    assert set(picks[:3]) == set(order[:3].tolist())
    assert picks[3:] == order[3:37].tolist()


# ------------------------------------------------------------------ drawn rewards


@pytest.mark.parametrize("acquisition", ["ucb", "ei"])
def test_the_believer_picks_given_drawn_rewards(acquisition):
    """A dense loop that appends the drawn rewards as data, with the normal numbers of the same generator."""
    policy = tb.kriging_believer(rbf(), batch_size=3, acquisition=acquisition, **COMMON)
    bandit, pulled, rewards, draw = tb.Bandit(policy, PROBLEM.tensor, generator=generator(4)), [], [], generator(4)
    tell(bandit, torch.tensor([4, 17, 30]), pulled, rewards)
    for _ in range(5):
        believed, drawn, picks = list(pulled), list(rewards), []
        width = oracles.width_srinivas(len(pulled) + 1, 40, DELTA)
        for _ in range(3):
            mean, covariance = dense(believed, drawn)
            std = std_of(covariance)
            if acquisition == "ucb":
                score = mean + width * std
            else:
                from scipy import stats  # noqa: PLC0415

                z = (mean - mean[ENTRIES].max()) / std
                score = std * (stats.norm.pdf(z) + z * stats.norm.cdf(z))
            arm = oracles.argmax(score, ENTRIES)
            normal = float(torch.randn(1, generator=draw, dtype=torch.float64))
            believed.append(arm)
            drawn.append(mean[arm] + math.sqrt(covariance[arm, arm] + LAM) * normal)
            picks.append(arm)
        selection = bandit.ask()
        assert selection.index.tolist() == picks
        tell(bandit, selection.index, pulled, rewards)


@pytest.mark.exhaustive
def test_drawn_rewards_leave_the_posterior_as_it_is_on_average():
    """Mean and variance of f under drawn rewards of pending picks are those of the posterior: the law of total variance."""
    bandit = tb.Bandit(tb.kriging_believer(rbf(), **COMMON), PROBLEM.tensor, generator=generator(1))
    bandit.tell(torch.tensor([4, 17]), torch.tensor([0.3, -0.2], dtype=torch.float64))
    from torchbandits.arms import FullSweep  # noqa: PLC0415

    state, pending = bandit.loop.state, torch.tensor([8, 21, 33])
    moved, draw = [], generator(0)
    for _ in range(4_000):
        sweep = FullSweep(
            state.table, None, (pending, torch.ones(3, dtype=torch.float64)),
            normals=lambda mask: torch.randn(mask.shape, generator=draw, dtype=torch.float64),
        )  # fmt: skip
        moved.append(NOISE_STD * sweep.shift)
    shift = torch.stack(moved)
    before, after = LAM * state.table.leverage, LAM * sweep.leverage
    assert float(shift.mean(dim=0).abs().max()) < 0.06
    torch.testing.assert_close(shift.var(dim=0), before - after, rtol=0.15, atol=1e-3)


# ------------------------------------------------------------------ rows, resuming, other packages


MAKERS = {
    "irgp_ucb": lambda: tb.irgp_ucb(rbf(), noise_std=NOISE_STD),
    "qpo": lambda: tb.qpo(rbf(), noise_std=NOISE_STD, batch_size=2, draws=100),
    "kriging_believer": lambda: tb.kriging_believer(rbf(), batch_size=2, **COMMON),
}


@pytest.mark.parametrize("name", MAKERS)
def test_rows_are_singles_whatever_the_others_do(name):
    together = tb.Bandit(MAKERS[name](), PROBLEM.tensor, generator=[generator(1), generator(2)])
    alone = [tb.Bandit(MAKERS[name](), PROBLEM.tensor, generator=generator(seed)) for seed in (1, 2)]
    for pull in range(0, 12, 2):
        limits = [2, 0 if pull == 4 else 2]
        selection = together.ask(limit=torch.tensor(limits))
        rewards = torch.stack([PROBLEM.rewards(pull, index.clamp_min(0)) for index in selection.index])
        together.tell(selection, rewards)
        for row, bandit in enumerate(alone):
            if limits[row]:
                mine = bandit.ask(limit=2)
                assert mine.index.tolist() == selection.index[row][selection.mask[row]].tolist()
                bandit.tell(mine, rewards[row][: len(mine)])


@pytest.mark.parametrize("name", MAKERS)
def test_a_saved_run_and_a_journal_go_on_the_same(name, tmp_path):
    def play(bandit: tb.Bandit, first: int, last: int) -> list[list[int]]:
        picks = []
        for pull in range(first, last):
            selection = bandit.ask()
            picks.append(selection.index.tolist())
            bandit.tell(selection, PROBLEM.rewards(2 * pull, selection.index))
        return picks

    whole = tb.Bandit(MAKERS[name](), PROBLEM.tensor, generator=generator(3))
    expected = play(whole, 0, 8)
    journal = tb.Journal(tmp_path / "run", durable=False)
    kept = tb.Bandit(MAKERS[name](), PROBLEM.tensor, generator=generator(3), journal=journal)
    first = play(kept, 0, 5)
    saved = kept.state_dict()
    kept.journal.close()
    loaded = tb.Bandit(MAKERS[name](), PROBLEM.tensor).load_state_dict(saved)
    resumed = tb.Bandit(MAKERS[name](), PROBLEM.tensor, generator=generator(3), journal=tmp_path / "run")
    assert differences(everything(resumed), everything(loaded)) == []
    assert first + play(loaded, 5, 8) == expected
    assert first + play(resumed, 5, 8) == expected


@pytest.mark.parametrize("name", MAKERS)
def test_boxes_are_refused(name):
    with pytest.raises(errors.UnsupportedError, match="arms"):
        tb.Bandit(MAKERS[name](), bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64))


def test_copies_of_an_arm_take_no_probability_from_others_in_qpo():
    points = torch.rand(10, 1, generator=generator(0), dtype=torch.float64)

    def share(copies: int) -> tuple[list[int], float]:
        policy = tb.qpo(rbf(0.2), noise_std=0.3, batch_size=6, draws=4000)
        bandit = tb.Bandit(policy, points.repeat(copies, 1), generator=generator(1))
        bandit.tell(torch.arange(5), torch.sin(6 * points[:5, 0]))
        selection, evidence = policy.select(bandit.loop.state)
        return selection.index.tolist(), float(evidence.score.sum())

    (picks, whole), (again, copied) = share(1), share(4)
    assert whole > 0.98
    assert copied > 0.98
    assert again[:2] == picks[:2]
