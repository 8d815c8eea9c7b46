"""Batches of exactly so many picks, and constraints within them, against a dense greedy loop."""

from __future__ import annotations

import itertools
import pickle
import warnings
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from contract import CASES, Case
from problems import BOUNDED, COMMON, DELTA, NOISE_STD, Problem, generator, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits import constraints, errors
from torchbandits.constraints import AtMost, Constraint, Distinct, Groups, Same
from torchbandits.testing.play import differences, everything

PROBLEM = Problem(seed=9, a=40, duplicates=3)
FIRST = oracles.first_copies(PROBLEM.arms)
ENTRIES = np.arange(40) == FIRST
PLATE = torch.arange(40) % 4
SUPPLIER = torch.tensor([f"s{j % 7}" == "s3" for j in range(40)]).long() + (torch.arange(40) % 3)


def greedy(pulled: list[int], rewards: list[float], count: int, fits: Any) -> list[int]:
    """The dense greedy loop: upper bounds with the exact variance given the earlier picks, over the arms that fit. Equal arms
    have equal bounds, so that the first one that fits is picked."""
    kernel, lam, arms = oracles.rbf(0.4), NOISE_STD**2, PROBLEM.arms
    K, picks = kernel(arms, arms), []
    mean = oracles.exact_posterior(K[np.ix_(pulled, pulled)], K[pulled], K.diagonal(), np.array(rewards), lam).mean
    width = oracles.width_srinivas(len(pulled) + 1, 40, DELTA)
    for _ in range(count):
        seen = pulled + picks
        variance = oracles.exact_posterior(K[np.ix_(seen, seen)], K[seen], K.diagonal(), np.zeros(len(seen)), lam).variance
        allowed = np.array([fits(picks, arm) for arm in range(40)])
        picks.append(oracles.argmax(mean + width * np.sqrt(np.maximum(variance, 0)), allowed))
    return picks


def once(picks: list[int], arm: int) -> bool:
    return FIRST[arm] not in FIRST[picks]


def of_one_plate(picks: list[int], arm: int) -> bool:
    if picks:
        return once(picks, arm) and bool(PLATE[arm] == PLATE[picks[0]])
    return int((ENTRIES & (PLATE[arm] == PLATE).numpy()).sum()) >= 8


def few_of_a_supplier(picks: list[int], arm: int) -> bool:
    return sum(int(SUPPLIER[pick] == SUPPLIER[arm]) for pick in picks) < 2


def in_groups(size: int, labels: torch.Tensor, distinct: bool) -> Any:
    def fits(picks: list[int], arm: int) -> bool:
        used = [int(labels[pick]) for pick in picks]
        begun = [label for label in used if used.count(label) < size]
        if distinct and not once(picks, arm):
            return False
        if begun:
            return int(labels[arm]) == begun[0]
        there = int((ENTRIES & (labels == labels[arm]).numpy()).sum())
        return int(labels[arm]) not in used and there >= (size if distinct else 1)

    return fits


FEW = torch.tensor([7 if arm < 3 else arm % 5 for arm in range(40)])  # label 7 has three arms, too few for a group of four


CASES_WITHIN: dict[str, tuple[int, list[Constraint], Any]] = {
    "distinct": (12, [Distinct()], once),
    "same": (8, [Distinct(), Same(PLATE)], of_one_plate),
    "at most": (6, [AtMost(SUPPLIER, 2)], few_of_a_supplier),
    "groups": (12, [Distinct(), Groups(FEW, 4)], in_groups(4, FEW, distinct=True)),
    "groups that repeat": (6, [Groups(FEW, 3)], in_groups(3, FEW, distinct=False)),
    "both": (6, [AtMost(SUPPLIER, 2), Distinct()], lambda picks, arm: once(picks, arm) and few_of_a_supplier(picks, arm)),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", CASES_WITHIN)
def test_picks_are_those_of_a_dense_greedy_loop(name):
    count, within, fits = CASES_WITHIN[name]
    bandit, pulled, rewards = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor), [], []
    bandit.tell(torch.tensor([5, 11]), torch.tensor([PROBLEM.reward(0, 5), PROBLEM.reward(1, 11)], dtype=torch.float64))
    pulled, rewards = [5, 11], [PROBLEM.reward(0, 5), PROBLEM.reward(1, 11)]
    for _ in range(3):
        expected = greedy(pulled, rewards, count, fits)
        selection = bandit.ask(exactly=count, within=within)
        assert selection.index.tolist() == expected
        assert torch.equal(selection.index, bandit.ask().index), "the batch is open"
        y = [PROBLEM.reward(len(pulled) + place, arm) for place, arm in enumerate(expected)]
        bandit.tell(selection, torch.tensor(y, dtype=torch.float64))
        pulled, rewards = pulled + expected, rewards + y


@pytest.mark.sweep(4)
@pytest.mark.filterwarnings("ignore:exactly=:torchbandits.errors.DiagnosticWarning")
@pytest.mark.parametrize("case", [case for case in CASES if not case.mode], ids=lambda case: case.name)
def test_every_policy_keeps_constraints(case: Case):
    bandit = case.bandit(3)
    if bandit.loop.open is not None:
        bandit.forget(bandit.ask())
    labels = torch.arange(40) % 3
    selection = bandit.ask(exactly=9, within=[Distinct(), AtMost(labels, 4)])
    index = selection.index
    assert index.shape == (9,)
    assert len(set(index.tolist())) == 9
    assert int(torch.bincount(labels[index]).max()) <= 4
    bandit.forget(selection)
    groups = bandit.ask(exactly=6, within=[Distinct(), Groups(labels, 3)])
    assert sorted(torch.bincount(labels[groups.index], minlength=3).tolist()) == [0, 3, 3]
    bandit.forget(groups)
    again = bandit.ask(exactly=5, within=Same(labels))
    assert len(set(labels[again.index].tolist())) == 1


@pytest.mark.parametrize("name", ["gp_ucb", "auto", "thompson_sampling"])
def test_a_policy_selects_again_only_where_a_pick_is_not_allowed_or_drawn(name: str, monkeypatch: pytest.MonkeyPatch):
    arms, kernel = torch.rand(60, 3, generator=generator(1), dtype=torch.float64), rbf(0.4)
    policies = {"gp_ucb": lambda: tb.gp_ucb(kernel), "auto": tb.auto, "thompson_sampling": lambda: tb.thompson_sampling(kernel)}
    bandit = tb.Bandit(policies[name](), arms, generator=generator(2))
    bandit.tell(torch.arange(8), arms[:8].sum(dim=-1))
    selected, select = [], bandit.loop.select

    def counting(*given: Any) -> Any:
        found = select(*given)
        selected.append(found[0].index.shape[-1])
        return found

    monkeypatch.setattr(bandit.loop, "select", counting)
    picks = bandit.ask(exactly=12, within=Distinct()).index.tolist()
    assert len(set(picks)) == 12
    if name == "thompson_sampling":
        assert selected == [12] + 12 * [1]  # what was drawn together is dropped
    else:
        assert selected[0] == 12
        assert sum(selected) < 3 * 12


@pytest.mark.parametrize("name", ["gp_ucb", "thompson_sampling", "uniform"])
def test_exactly_without_constraints_is_the_policy_s_own_extension(name):
    one, other = Case(name, "").bandit(), Case(name, "").bandit()
    assert torch.equal(one.ask(exactly=7).index, other.ask(more=7).index)


def test_rows_are_singles():
    within = [Distinct(), Same(PLATE)]
    together = tb.Bandit(tb.thompson_sampling(rbf(), **BOUNDED), PROBLEM.tensor, generator=[generator(1), generator(2)])
    alone = [tb.Bandit(tb.thompson_sampling(rbf(), **BOUNDED), PROBLEM.tensor, generator=generator(seed)) for seed in (1, 2)]
    for pull in range(0, 15, 5):
        selection = together.ask(exactly=5, within=within)
        rewards = torch.stack([PROBLEM.rewards(pull, index) for index in selection.index])
        together.tell(selection, rewards)
        for row, bandit in enumerate(alone):
            mine = bandit.ask(exactly=5, within=within)
            assert torch.equal(mine.index, selection.index[row])
            bandit.tell(mine, rewards[row])


def test_arms_on_offer_and_float32():
    available = torch.arange(40) % 2 == 0
    bandit = tb.Bandit(tb.gp_ucb(rbf().float(), **COMMON), PROBLEM.tensor.float())
    selection = bandit.ask(exactly=4, within=[Distinct(), Same(PLATE)], available=available)
    assert bool(available[selection.index].all())
    assert len(set(PLATE[selection.index].tolist())) == 1


def test_groups_are_full_and_the_last_one_goes_on():
    problem, labels = Problem(seed=2, a=40), torch.arange(40) % 6
    rows = tb.Bandit(tb.thompson_sampling(rbf(), **BOUNDED), problem.tensor, generator=[generator(1), generator(2)])
    within = [Distinct(), Groups(labels, 4)]
    selection = rows.ask(exactly=10, within=within)
    for index in selection.index:
        assert sorted(torch.bincount(labels[index], minlength=6).tolist()) == [0, 0, 0, 2, 4, 4]
    longer = rows.ask(more=2, within=within)
    for index in longer.index:
        assert sorted(torch.bincount(labels[index], minlength=6).tolist()) == [0, 0, 0, 4, 4, 4]
    with pytest.raises(errors.ArgumentError, match="no batch was found that meets the constraints") as stuck:
        rows.ask(more=13, within=within)
    # A process of a pool sends its error to the caller.
    sent = pickle.loads(pickle.dumps(stuck.value))
    assert type(sent) is type(stuck.value)
    assert str(sent) == str(stuck.value)
    alone = tb.Bandit(tb.thompson_sampling(rbf(), **BOUNDED), problem.tensor, generator=generator(2))
    assert torch.equal(alone.ask(exactly=10, within=within).index, selection.index[1])


def brute(count: int, plates: list[Tensor], limits: list[tuple[Tensor, int]]) -> set[int]:
    """The plates on which this many distinct arms satisfy all limits, by trying all sets of arms."""
    found = set()
    for plate, arms in enumerate(plates):
        for chosen in itertools.combinations(arms.tolist(), count):
            if all(int(torch.bincount(labels[list(chosen)]).max()) <= most for labels, most in limits):
                found.add(plate)
                break
    return found


@pytest.mark.sweep(3)
@pytest.mark.parametrize("seed", range(6))
def test_a_value_that_leaves_too_few_arms_gives_way_to_another(seed: int) -> None:
    generators = torch.Generator().manual_seed(seed)
    arms = torch.rand(16, 2, dtype=torch.float64, generator=generators)
    temperature = torch.arange(16) % 4
    supplier = torch.randint(3, (16,), generator=generators)
    within = [Distinct(), Same(temperature), AtMost(supplier, 1)]
    possible = brute(3, [(temperature == plate).nonzero().squeeze(-1) for plate in range(4)], [(supplier, 1)])
    policies = (tb.gp_ucb(rbf(), **COMMON), tb.thompson_sampling(rbf(), **COMMON))
    for policy in policies:
        alone = [tb.Bandit(policy, arms, generator=generator(row)) for row in range(3)]
        together = tb.Bandit(policy, arms, generator=[generator(row) for row in range(3)])
        if not possible:
            with pytest.raises(errors.ArgumentError, match="no batch was found that meets the constraints"):
                together.ask(exactly=3, within=within)
            assert together.loop.open is None
            continue
        picks = together.ask(exactly=3, within=within).index
        for row, bandit in enumerate(alone):
            assert torch.equal(bandit.ask(exactly=3, within=within).index, picks[row])
            assert len(set(supplier[picks[row]].tolist())) == 3
            assert set(temperature[picks[row]].tolist()) <= possible


def test_groups_that_can_t_be_filled_give_way_to_others(tmp_path: Path) -> None:
    solvent = torch.arange(12) % 3
    # Solvents 0 and 1 have one supplier each, so that only solvent 2 has three arms of different suppliers.
    supplier = torch.tensor([0, 1, 0, 0, 1, 1, 0, 1, 2, 0, 1, 3])
    arms = torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    within = [Distinct(), Groups(solvent, 3), AtMost(supplier, 1)]

    def made() -> tb.Bandit:
        journal = tb.Journal(tmp_path / "run", durable=False)
        return tb.Bandit(tb.thompson_sampling(rbf(), **COMMON), arms, generator=generator(1), journal=journal)

    bandit = made()
    bandit.tell(torch.tensor([0, 2]), torch.tensor([9.0, -9.0]))
    picks = bandit.ask(exactly=3, within=within).index
    assert solvent[picks].tolist() == [2, 2, 2]
    bandit.journal.close()
    again = made()
    assert torch.equal(again.ask().index, picks)
    assert [g.get_state().tolist() for g in again.generators] == [g.get_state().tolist() for g in bandit.generators]
    with pytest.raises(errors.ArgumentError, match="no batch was found that meets the constraints"):
        again.ask(more=3, within=within)
    assert torch.equal(again.ask().index, picks), "what is open stays"


def cheapest(prices: list[float], count: int, distinct: bool) -> float:
    return sum(sorted(prices)[:count]) if distinct else count * min(prices)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("distinct", [True, False])
def test_a_sum_is_kept_and_a_batch_that_is_possible_is_filled(seed: int, distinct: bool) -> None:
    rng = np.random.default_rng(seed)
    arms = torch.from_numpy(rng.random((15, 2)))
    values = rng.choice([0.1, 0.3, 2.0, 7.0, 40.0], 15) * rng.integers(1, 4, 15) if seed % 2 else rng.lognormal(1.0, 1.5, 15)
    values = values - (1.0 if seed == 7 else 0.0)  # refunds
    count, offered = int(rng.integers(2, 7)), torch.from_numpy(rng.random(15) < 0.8)
    least = cheapest(values[offered.numpy()].tolist(), count, distinct)
    once = [Distinct()] if distinct else []
    for policy in (tb.gp_ucb(rbf(), **COMMON), tb.thompson_sampling(rbf(), **COMMON)):
        for slack in (0.0, 0.3, 5.0):
            at_most = least + slack * abs(least)
            bandit = tb.Bandit(policy, arms, generator=[generator(seed), generator(seed + 1)])
            picks = bandit.ask(
                exactly=count, within=[*once, constraints.Total(torch.from_numpy(values), at_most)], available=offered
            ).index
            for row in picks.tolist():
                assert len(row) == count
                assert sum(values[row]) <= at_most + 1e-8 * abs(at_most)
                assert len(set(row)) == count or not distinct
                assert bool(offered[row].all())
        few = constraints.Total(torch.from_numpy(values), least - 0.01 * abs(least) - 1e-6)
        bandit = tb.Bandit(policy, arms)
        with pytest.raises(errors.ArgumentError, match="Total allows a sum of at most"):
            bandit.ask(exactly=count, within=[*once, few], available=offered)
        assert bandit.loop.open is None


@pytest.mark.parametrize("seed", range(6))
def test_a_sum_beside_other_constraints(seed: int) -> None:
    """By the cheapest sets of arms that satisfy the others: a plate of one value is filled wherever that is possible, so is one
    of few of a supplier, and others where the limit leaves some freedom."""
    rng = np.random.default_rng(seed)
    arms, values = torch.from_numpy(rng.random((16, 2))), rng.lognormal(1.0, 1.0, 16)
    plate, supplier = torch.arange(16) % 3, torch.from_numpy(rng.integers(4, size=16))
    sets = [list(chosen) for chosen in itertools.combinations(range(16), 3)]
    rules: dict[str, tuple[list[Constraint], Any]] = {
        "same": ([Same(plate)], lambda chosen: len(set(plate[chosen].tolist())) == 1),
        "at most": ([AtMost(supplier, 1)], lambda chosen: len(set(supplier[chosen].tolist())) == 3),
        "both": (
            [Same(plate), AtMost(supplier, 2)],
            lambda chosen: len(set(plate[chosen].tolist())) == 1 and len(set(supplier[chosen].tolist())) > 1,
        ),
        "groups": ([Groups(plate, 2)], lambda chosen: len(set(plate[chosen].tolist())) == 2),
    }
    for name, (within, fits) in rules.items():
        least = min(sum(values[chosen]) for chosen in sets if fits(chosen))
        bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), arms)
        most = (3.0 if name == "groups" else 1.0) * float(least)
        total = constraints.Total(torch.from_numpy(values), most)
        picks = bandit.ask(exactly=3, within=[total, Distinct(), *within]).index.tolist()
        assert sum(values[picks]) <= most * (1 + 1e-8)
        assert len(set(picks)) == 3
        assert fits(picks)
        assert bandit.ask().index.tolist() == picks
        few = constraints.Total(torch.from_numpy(values), 0.99 * float(least))
        with pytest.raises(errors.ArgumentError, match=r"Total allows a sum of at most|smallest values were tried, too"):
            tb.Bandit(tb.gp_ucb(rbf(), **COMMON), arms).ask(exactly=3, within=[few, Distinct(), *within])


def test_a_batch_that_the_cheapest_arms_complete_is_repeated_by_the_journal(tmp_path: Path) -> None:
    """The policy's first pick leaves the cheapest arms of the other suppliers too dear; at each context of a contextual bandit
    likewise."""
    price, supplier = torch.tensor([1.0, 1, 1, 2, 4, 9, 5, 9]), torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    arms = torch.rand(8, 2, dtype=torch.float64, generator=generator(0))
    within = [Distinct(), constraints.Total(price, 10.0), AtMost(supplier, 1)]
    for seed in range(6):

        def made(seed: int = seed) -> tb.Bandit:
            journal = tb.Journal(tmp_path / f"run{seed}", durable=False)
            return tb.Bandit(tb.thompson_sampling(rbf(), **COMMON), arms, generator=generator(seed), journal=journal)

        bandit = made()
        picks = bandit.ask(exactly=3, within=within).index
        assert supplier[picks].sort().values.tolist() == [0, 1, 2]
        assert float(price[picks].sum()) == 10.0
        assert bandit.journal is not None
        bandit.journal.close()
        assert torch.equal(made().ask().index, picks)
        contexts = torch.tensor([[0.1], [0.3]], dtype=torch.float64)
        contextual = tb.ContextualBandit(tb.thompson_sampling(rbf(), **COMMON), arms, contexts, generator=generator(seed))
        chosen = contextual.ask(context=[0.3], exactly=3, within=within).index
        assert float(price[chosen].sum()) == 10.0


def test_a_sum_counts_open_picks_and_names_how_many_can_be_had() -> None:
    arms = torch.linspace(0, 1, 12, dtype=torch.float64).unsqueeze(-1)
    values = torch.tensor([100.0, 200, 300] * 4)
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), arms)
    limit = [Distinct(), constraints.Total(values, 1_000.0)]
    with pytest.raises(errors.ArgumentError, match=r"at most 1,000, and 8 picks have at least 1,200: at most 7 can be had"):
        bandit.ask(exactly=8, within=limit)
    first = bandit.ask(exactly=3, within=limit).index
    spent = float(values[first].sum())
    with pytest.raises(errors.ArgumentError, match=rf"picks more beside the open ones, whose sum is {spent:g}, have at least"):
        bandit.ask(more=9, within=limit)
    bandit.forget(bandit.ask())
    bandit.ask(exactly=2, within=limit)
    assert float(values[bandit.ask(more=3, within=limit).index].sum()) <= 1_000
    with pytest.raises(errors.ArgumentError, match="not even one pick"):
        tb.Bandit(tb.gp_ucb(rbf(), **COMMON), arms).ask(exactly=2, within=constraints.Total(values, 50.0))
    # Ten times 0.1 are at most 1, whatever their rounding.
    tenths = constraints.Total(torch.full((12,), 0.1, dtype=torch.float64), 1.0)
    assert len(tb.Bandit(tb.gp_ucb(rbf(), **COMMON), arms).ask(exactly=10, within=[Distinct(), tenths])) == 10


@pytest.mark.usefixtures("annotations_not_enforced")
def test_wrong_sums_are_refused() -> None:
    for values, at_most, error in (
        (torch.tensor([1.0, torch.nan]), 3.0, errors.NonFiniteError),
        (torch.tensor([1.0, torch.inf]), 3.0, errors.NonFiniteError),
        (torch.zeros(2, 2), 3.0, errors.ShapeError),
        (torch.zeros(2), float("nan"), errors.NonFiniteError),
        (torch.zeros(2), "4", errors.NonFiniteError),
        ("", 3.0, errors.ArgumentError),
    ):
        with pytest.raises(error):
            constraints.Total(values, at_most)
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor)
    with pytest.raises(errors.ShapeError, match="one number per arm, 40, got 39"):
        bandit.ask(exactly=3, within=constraints.Total(torch.ones(39), 3.0))
    with pytest.raises(errors.ArgumentError, match="names the column 'price'"):
        bandit.ask(exactly=3, within=constraints.Total("price", 3.0))


class Spread(Constraint):
    """A user's own constraint: arms far from each other."""

    def allowed(self, picks: Tensor, offered: Tensor, room: int) -> Tensor:
        if not picks.shape[-1]:
            return offered
        return offered & (torch.cdist(PROBLEM.tensor, PROBLEM.tensor[picks]) > 0.2).all(dim=-1)


def test_a_constraint_of_one_s_own():
    selection = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor).ask(exactly=5, within=Spread())
    assert float(torch.pdist(selection.points).min()) > 0.2


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["gp_ucb", "thompson_sampling", "batch_bkb"])
@pytest.mark.filterwarnings("ignore:exactly=:torchbandits.errors.DiagnosticWarning")
def test_a_journal_repeats_them(name, tmp_path: Path):
    def made(path: Path | None = None) -> tb.Bandit:
        journal = None if path is None else tb.Journal(path, durable=False)
        return tb.Bandit(Case(name, "").policy(), PROBLEM.tensor, generator=generator(3), journal=journal)

    def play(bandit: tb.Bandit, batches: range) -> list[list[int]]:
        picks = []
        for batch in batches:
            selection = bandit.ask(exactly=4, within=[Distinct(), Same(PLATE)])
            picks.append(selection.index.tolist())
            bandit.tell(selection, PROBLEM.rewards(4 * batch, selection.index))
        return picks

    whole = play(made(), range(6))
    first = made(tmp_path / "run")
    before = play(first, range(3))
    open_now = first.ask(exactly=4, within=[Distinct(), Same(PLATE)]).index
    expected = everything(first)
    first.journal.close()
    again = made(tmp_path / "run")
    assert differences(everything(again), expected) == []
    assert torch.equal(again.ask().index, open_now)
    assert before + play(again, range(3, 6)) == whole


def test_what_can_t_be_filled_changes_nothing():
    bandit = tb.Bandit(tb.thompson_sampling(rbf(), **BOUNDED), PROBLEM.tensor, generator=generator(0))
    before = everything(bandit)
    with pytest.raises(errors.ArgumentError, match="exactly 38 picks"):
        bandit.ask(exactly=38, within=Distinct())
    with pytest.raises(errors.ArgumentError, match="no batch was found that meets the constraints"):
        bandit.ask(exactly=11, within=[Distinct(), Same(PLATE)])
    assert differences(everything(bandit), before) == []
    assert bandit.loop.open is None


def test_a_batch_rule_that_is_set_aside_is_said_once():
    bandit = tb.Bandit(tb.gp_bucb(rbf(), **BOUNDED), PROBLEM.tensor)
    with pytest.warns(errors.DiagnosticWarning, match="Product"):
        selection = bandit.ask(exactly=3)
    bandit.tell(selection, torch.zeros(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(bandit.ask(exactly=3)) == 3


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"exactly": 3, "limit": 2}, errors.ArgumentError),
        ({"exactly": 3, "more": 2}, errors.ArgumentError),
        ({"within": Distinct()}, errors.ArgumentError),
        ({"exactly": 0}, errors.ArgumentError),
        ({"exactly": 3, "within": Same(torch.arange(39))}, errors.ShapeError),
    ],
)
def test_bad_requests_are_refused(options, error):
    with pytest.raises(error):
        tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor).ask(**options)


def test_labels_are_values():
    for wrong in (torch.tensor([1.0, torch.nan]), torch.zeros(2, 2), torch.zeros(0)):
        with pytest.raises(errors.TorchBanditsError, match="labels"):
            Same(wrong)
    policy = tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON)
    bandit = tb.Bandit(policy, bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64))
    with pytest.raises(errors.UnsupportedError, match="box"):
        bandit.ask(exactly=2, within=Distinct())


@pytest.mark.filterwarnings("ignore:exactly= sets aside the batch rule")
@pytest.mark.parametrize("name", ["gp_bucb", "qpo", "lucb"])
def test_fewer_picks_than_asked_for_exactly_are_refused(name: str) -> None:
    arms = torch.rand(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    options = {} if name == "qpo" else {"max_pulls": 1}
    policies = {"gp_bucb": tb.gp_bucb, "qpo": tb.qpo, "lucb": tb.lucb}
    bandit = tb.Bandit(policies[name](rbf(), noise_std=0.1, **options), arms)
    with pytest.raises(tb.errors.ArgumentError, match="no arm is left after 6 of 10 picks"):
        bandit.ask(exactly=10)
    assert bandit.ask(exactly=6).index.unique().numel() == 6


STARTS = {
    "gp_ucb": lambda: tb.gp_ucb(rbf(), initial=tb.starts.uniform(3), **COMMON),
    "batch_bkb": lambda: tb.batch_bkb(rbf(), initial=tb.starts.spread(3), **COMMON),
    "thompson_sampling": lambda: tb.thompson_sampling(rbf(), initial=tb.starts.uniform(3), **COMMON),
    "kriging_believer": lambda: tb.kriging_believer(rbf(), initial=tb.starts.uniform(3), **COMMON),
    "compressed_gp": lambda: tb.compressed_gp(rbf(), initial=tb.starts.uniform(3), **COMMON),
    "pi_gp_ucb": lambda: tb.pi_gp_ucb(gpytorch.kernels.MaternKernel(nu=1.5), nu=1.5, horizon=60, initial=tb.starts.uniform(3)),
}


@pytest.mark.sweep(3)
@pytest.mark.filterwarnings("ignore:exactly=:torchbandits.errors.DiagnosticWarning")
@pytest.mark.parametrize("name", STARTS)
def test_first_picks_are_followed_by_the_policy_s_own(name: str, tmp_path: Path) -> None:
    def made(path: Path | None = None) -> tb.Bandit:
        journal = None if path is None else tb.Journal(path, durable=False)
        return tb.Bandit(STARTS[name](), PROBLEM.tensor, generator=generator(3), journal=journal)

    alone = made()
    first = alone.ask(more=10).index
    assert len(first) == 3, "the first picks alone"
    expected = alone.ask(more=7).index
    assert torch.equal(expected[:3], first)
    bandit = made(tmp_path / name)
    assert torch.equal(bandit.ask(exactly=10).index, expected)
    bandit.loop.select(exactly=1)  # fills caches, and changes nothing else
    before = everything(bandit)
    bandit.journal.close()
    again = made(tmp_path / name)
    again.loop.select(exactly=1)
    assert differences(everything(again), before) == [], "a resumed run has the same picks open"
    assert torch.equal(again.ask().index, expected)
    again.tell(again.ask(), PROBLEM.rewards(0, expected))
    alone.tell(alone.ask(), PROBLEM.rewards(0, expected))
    assert torch.equal(again.ask(exactly=4).index, alone.ask(exactly=4).index), "and goes on as one that was not"


@pytest.mark.filterwarnings("ignore:exactly=:torchbandits.errors.DiagnosticWarning")
def test_rows_that_are_at_different_places_of_their_first_picks() -> None:
    def made(generators: list[torch.Generator] | torch.Generator) -> tb.Bandit:
        policy = tb.thompson_sampling(rbf(), initial=tb.starts.uniform(4), **COMMON)
        return tb.Bandit(policy, PROBLEM.tensor, generator=generators)

    together = made([generator(1), generator(2)])
    alone = [made(generator(1)), made(generator(2))]
    together.tell(torch.tensor([[3, 5], [-1, -1]]), torch.zeros(2, 2))
    alone[0].tell(torch.tensor([3, 5]), torch.zeros(2))
    selection = together.ask(exactly=6)
    assert bool(selection.mask.all())
    for row, bandit in enumerate(alone):
        assert torch.equal(bandit.ask(exactly=6).index, selection.index[row])


def test_first_picks_in_a_box_are_followed_too(tmp_path: Path) -> None:
    def made() -> tb.Bandit:
        policy = tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), initial=tb.starts.uniform(2), **COMMON)
        box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        return tb.Bandit(policy, bounds=box, generator=generator(3), journal=tb.Journal(tmp_path / "run", durable=False))

    bandit = made()
    points = bandit.ask(exactly=4).points
    assert points.unique(dim=0).shape == (4, 2)
    bandit.journal.close()
    again = made()
    assert torch.equal(again.ask().points, points)
    report = again.tell(again.ask(), points.sum(dim=-1))
    assert int(report.unasked) == 0


def test_too_few_arms_after_the_first_picks_are_refused() -> None:
    bandit = tb.Bandit(tb.lucb(rbf(), k=2, max_pulls=1, initial=tb.starts.spread(3), **COMMON), PROBLEM.tensor[:6])
    before = everything(bandit)
    with pytest.raises(errors.ArgumentError, match="no arm is left after 6 of 7 picks"):
        bandit.ask(exactly=7)
    assert differences(everything(bandit), before) == []
    assert sorted(bandit.ask(exactly=6).index.tolist()) == list(range(6))


@pytest.mark.exhaustive
def test_of_equal_arms_the_one_on_offer_is_open_through_a_long_journal(tmp_path: Path) -> None:
    arms = torch.rand(6, 2, generator=generator(3), dtype=torch.float64).repeat(3, 1)
    path, price = tmp_path / "run", torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64).repeat_interleave(6)
    within = [Distinct(), constraints.Total(price, 4.0)]

    def begun() -> tb.Bandit:
        journal = tb.Journal(path, every=1_000)
        return tb.Bandit(tb.gp_ucb(rbf(0.4), **COMMON), arms, journal=journal)

    bandit = begun()
    for step in range(270):
        picks = bandit.ask(available=torch.arange(18) >= 12)
        assert 12 <= int(picks.index) < 18
        bandit.tell(picks, arms[picks.index].sum(dim=-1) + 0.1 * (-1) ** step)
    plate = bandit.ask(exactly=4, within=within)
    assert bool(((plate.index >= 6) & (plate.index < 12)).all())
    # Beside an open arm an equal one may be open, and a reward settles its own.
    both = bandit.ask(more=1, available=torch.arange(18) == plate.index[0] + 6)
    assert both.index.tolist() == [*plate.index.tolist(), int(plate.index[0]) + 6]
    bandit.tell(both.index[-1:], torch.zeros(1, dtype=torch.float64))
    bandit.tell(plate.index[1:2] - 6, torch.zeros(1, dtype=torch.float64))
    left = plate.index[[0, 2, 3]].tolist()
    assert bandit.ask().index.tolist() == left
    resumed = tb.Bandit(tb.gp_ucb(rbf(0.4), **COMMON), arms, journal=_copied(path, tmp_path / "copy"))
    assert resumed.ask().index.tolist() == left
    assert float(resumed.tell(plate[:1], torch.zeros(1, dtype=torch.float64)).unasked) == 0
    assert resumed.ask().index.tolist() == left[1:]


def _copied(path: Path, to: Path) -> tb.Journal:
    to.write_bytes(path.read_bytes())
    return tb.Journal(to)
