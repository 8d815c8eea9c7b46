"""The contract of ask and tell, on every policy of the registry in each of its modes."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from contract import (
    ARMS,
    CASES,
    NO_POINTS,
    NO_POSTERIOR,
    OPTIONS,
    PROBLEM,
    Case,
    every_policy,
    everything,
    proceed,
    proceed_rows,
    rewards_of,
)
from problems import Problem, generator, rbf
from test_laws import differences

import torchbandits as tb
from torchbandits import errors
from torchbandits.policies import CATALOGUE, registry
from torchbandits.types import as_dict


def test_every_policy_of_the_registry_is_under_this_contract():
    assert set(OPTIONS) == set(registry) == {entry.name for entry in CATALOGUE}
    assert len(registry) == len(CATALOGUE)
    assert set(registry) >= NO_POSTERIOR | NO_POINTS
    for name, factory in registry.items():
        assert getattr(tb, name) is factory, f"{name} is not public"


# ------------------------------------------------------------------------- asking


@every_policy
def test_ask_returns_what_is_open_and_more_extends_it(case: Case):
    bandit = case.bandit(pulls=8)
    counts, first = bandit.counts.clone(), bandit.ask(limit=2)
    state = everything(bandit)
    assert 1 <= len(first) <= 2
    for again in (bandit.ask(), bandit.ask(limit=1), bandit.ask(limit=7)):
        assert torch.equal(again.index, first.index)
        assert torch.equal(again.points, first.points)
    assert differences(state, everything(bandit)) == []
    longer = bandit.ask(more=2)
    assert len(longer) == len(first) + 2
    assert longer.index[: len(first)].tolist() == first.index.tolist()
    assert longer.mask.all()
    assert torch.equal(longer.points, PROBLEM.tensor[longer.index])
    assert torch.equal(bandit.ask().index, longer.index)
    assert torch.equal(bandit.counts, counts), "what is pending is not told"


@every_policy
def test_limits(case: Case):
    bandit = case.bandit(pulls=6)
    before = everything(bandit)
    nothing = bandit.ask(limit=0)
    assert len(nothing) == 0
    assert nothing.points.shape == (0, 2)
    report = bandit.tell(nothing, torch.zeros(0, dtype=torch.float64))
    assert int(report.batch_size) == int(report.unasked) == 0
    assert int(report.pulls) == 6
    assert differences(before, everything(bandit)) == []
    for limit in (1, torch.tensor(2), 3):
        selection = bandit.ask(limit=limit)
        assert 1 <= len(selection) <= int(limit)
        bandit.tell(selection, rewards_of(selection))


@every_policy
def test_only_arms_on_offer_are_picked(case: Case):
    """From the first pick on, in batches, in what `more` adds; with one arm left; and with none, which is an error."""
    bandit = case.bandit()
    draw = generator(0)
    for round_ in range(10):
        offered = torch.rand(ARMS, generator=draw) < 0.15
        offered[round_] = True
        picks = bandit.ask(limit=3, available=offered)
        assert offered[picks.index].all()
        others = ~offered
        extended = bandit.ask(more=2, available=others)
        assert others[extended.index[len(picks) :]].all()
        bandit.tell(extended, rewards_of(extended))
    alone = torch.zeros(ARMS, dtype=torch.bool)
    before = everything(bandit)
    with pytest.raises(errors.ArgumentError, match="available"):
        bandit.ask(available=alone)
    assert differences(before, everything(bandit)) == []
    alone[17] = True
    assert set(bandit.ask(available=alone).index.tolist()) == {17}
    assert set(bandit.ask(more=3, available=alone).index.tolist()) == {17}


@every_policy
def test_exact_duplicates_share_one_entry(case: Case):
    """The lowest copy is picked, also where only another one is on offer."""
    arms, copy_on_offer = PROBLEM.tensor.clone(), torch.arange(ARMS) == 35
    arms[30:] = arms[:10]
    bandit = tb.Bandit(case.policy(), arms, generator=generator(6))
    assert max(proceed(bandit, 9)) < 30
    assert proceed(bandit, 2, available=copy_on_offer) == [5, 5]
    bandit.tell(torch.tensor([38]), torch.zeros(1, dtype=torch.float64))
    assert torch.equal(bandit.counts[30:], bandit.counts[:10])
    assert bandit.counts[35] >= 1


# ------------------------------------------------------------------------- telling


@every_policy
def test_rewards_may_come_in_parts_and_in_any_order(case: Case):
    bandit = case.bandit(pulls=6)
    bandit.ask(limit=2)
    opened = bandit.ask(more=3)
    rewards, counts = rewards_of(opened), bandit.counts.clone()
    left = list(range(len(opened)))
    for part in ([2], [0, 4], [1, 3]) if len(opened) == 5 else ([2], [0], [1, 3]):
        left = [place for place in left if place not in part]
        report = bandit.tell(opened[part], rewards[part])
        assert int(report.batch_size) == len(part)
        assert int(report.unasked) == 0
        if left:
            assert sorted(bandit.ask().index.tolist()) == sorted(opened.index[left].tolist())
    assert int(report.pulls) == int(bandit.pulls) == 6 + len(opened)
    learned = bandit.counts - counts
    assert (learned <= torch.bincount(opened.index, minlength=ARMS)).all()
    if case.name != "compressed_gp":  # which may drop a pull
        assert int(learned.sum()) == len(opened)


@every_policy
def test_what_will_never_be_told_is_forgotten(case: Case):
    bandit = case.bandit(pulls=6)
    bandit.ask(limit=2)
    opened = bandit.ask(more=3)
    marginals = bandit.posterior(PROBLEM.tensor) if case.keeps_posterior else None
    bandit.forget(opened[1:2])
    kept = [place for place in range(len(opened)) if place != 1]
    assert sorted(bandit.ask().index.tolist()) == sorted(opened.index[kept].tolist())
    pending = everything(bandit)
    stranger = next(arm for arm in range(ARMS) if arm not in opened.index)
    for wrong in (torch.tensor([stranger]), opened, torch.tensor([int(opened.index[0]), stranger])):
        with pytest.raises(errors.StateError, match="pending"):
            bandit.forget(wrong)
        assert differences(pending, everything(bandit)) == []
    bandit.forget(bandit.ask().index)
    with pytest.raises(errors.StateError):
        bandit.forget(opened[:1])
    assert int(bandit.pulls) == 6
    if marginals is not None:
        undone, untouched = (b.posterior(PROBLEM.tensor) for b in (bandit, case.bandit(pulls=6)))
        torch.testing.assert_close(undone.mean, untouched.mean, rtol=0, atol=1e-12)
        torch.testing.assert_close(undone.variance, untouched.variance, rtol=0, atol=1e-12)
        assert (marginals.variance <= undone.variance + 1e-12).all()
    proceed(bandit, 4)
    assert int(bandit.pulls) == 10


@every_policy
def test_pulls_that_were_never_asked_for_are_welcome(case: Case):
    bandit = case.bandit(pulls=6)
    opened = bandit.ask(limit=2)
    mixed = torch.cat([opened.index[:1], torch.tensor([0, 0, 39])])
    unasked = [arm for arm in mixed[1:].tolist() if arm not in opened.index[1:]]
    report = bandit.tell(mixed, PROBLEM.rewards(50, mixed))
    assert int(report.unasked) == len(unasked)
    assert int(report.batch_size) == 4
    assert int(report.pulls) == 10
    assert bandit.counts[0] > 0
    proceed(bandit, 5)
    plain = case.bandit()
    assert int(plain.tell(torch.tensor([5, 6]), PROBLEM.rewards(0, torch.tensor([5, 6]))).unasked) == 2, "before any ask"
    assert int(plain.best_arm()) in (5, 6)


@pytest.mark.sweep
@every_policy
@pytest.mark.parametrize("pulls", [0, 6])
def test_history_is_learned_by_index_and_by_points(case: Case, pulls: int):
    bandit = case.bandit(pulls=pulls)
    opened = bandit.ask(limit=2)
    index, counts = torch.tensor([3, 8, 30]), torch.tensor([2.0, 1.0, 4.5], dtype=torch.float64)
    report = bandit.observe(index, counts, counts * PROBLEM.rewards(0, index))
    assert float(report.pulls) == pulls + 7.5
    assert float(report.unasked) == 7.5
    assert (bandit.counts[index] > 0).all()
    assert torch.equal(bandit.ask().index, opened.index), "history settles nothing that is open"
    outside = torch.tensor([[0.31, 0.52], [0.9, 0.1]], dtype=torch.float64)
    before = everything(bandit)
    if case.name in NO_POINTS:
        with pytest.raises(errors.UnsupportedError, match="index"):
            bandit.observe(outside, counts[:2], counts[:2])
        assert differences(before, everything(bandit)) == []
    else:
        report = bandit.observe(outside, counts[:2], counts[:2] * 0.1)
        assert float(report.pulls) == pulls + 10.5
        assert int(report.distinct_arms) >= 5
    bandit.tell(opened, rewards_of(opened))
    proceed(bandit, 5)
    best = bandit.best(4)
    assert (best.mean.diff() <= 0).all()


# ------------------------------------------------------------------------- what was learned


@pytest.mark.sweep
@every_policy
@pytest.mark.parametrize("rows", [0, 3])
def test_what_is_said_of_the_state_has_the_documented_shapes(case: Case, rows: int):
    shape = (rows,) if rows else ()
    generators = [generator(r) for r in range(rows)] or generator(0)
    bandit = tb.Bandit(case.policy(), PROBLEM.tensor, generator=generators)
    assert bandit.batch_shape == shape
    for recommend in (bandit.best_arm, bandit.best):
        with pytest.raises(errors.StateError, match="nothing was told yet"):
            recommend()
    for _ in range(7):
        selection = bandit.ask(limit=2)
        assert selection.index.dtype == torch.int64
        assert selection.points.shape == (*selection.index.shape, 2)
        report = bandit.tell(selection, torch.zeros_like(selection.index, dtype=torch.float64).cos())
        for name, value in as_dict(report).items():
            assert value.shape == shape, name
            never = name in ("width", "information_gain", "certificate") and not case.keeps_posterior
            assert (value.isnan() if never else value.isfinite()).all(), name
    assert (report.pulls == bandit.pulls).all()
    assert (report.distinct_arms == (bandit.counts > 0).sum(dim=-1)).all()
    assert torch.equal(report.width.nan_to_num(-1), bandit.width.nan_to_num(-1))
    assert bandit.counts.shape == (*shape, ARMS)
    distinct = int(report.distinct_arms.min())
    for k in (1, distinct, ARMS + 3):
        best, known = bandit.best(k), min(k, distinct)
        assert best.points.shape == (*shape, k, 2)
        assert best.index.shape == best.mean.shape == best.variance.shape == (*shape, k)
        found = best.index[..., :known]
        assert (bandit.counts.gather(-1, found) > 0).all(), "only arms that were pulled are recommended"
        assert torch.equal(best.points[..., :known, :], PROBLEM.tensor[found])
        assert best.mean[..., :known].isfinite().all()
        assert (best.variance[..., :known] >= 0).all() if case.keeps_posterior else best.variance.isnan().all()
    assert (best.index[..., int(report.distinct_arms.max()) :] == -1).all()
    assert torch.equal(bandit.best_arm(), bandit.best().index.squeeze(-1))
    if case.keeps_posterior:
        marginals = bandit.posterior(PROBLEM.tensor.expand(*shape, -1, -1))
        assert marginals.mean.shape == marginals.variance.shape == (*shape, ARMS)
        assert marginals.mean.isfinite().all()
        assert (marginals.variance >= 0).all()
        assert bandit.dictionary.shape[:-1] == shape
    else:
        for attribute in ("posterior", "dictionary"):
            with pytest.raises(errors.UnsupportedError, match="gp_ucb"):
                getattr(bandit, attribute)


# ------------------------------------------------------------------------- batch rows are singles


@pytest.mark.sweep
@every_policy
@pytest.mark.parametrize("own", ["generators", "arms", "kernels"])
def test_a_batch_picks_what_singles_pick(case: Case, own: str):
    """NaN told in masked places, and rows of other sizes, change nothing."""
    problems = [PROBLEM, *(Problem(seed=70 + r, a=ARMS) if own == "arms" else PROBLEM for r in range(2))]
    lengthscales = [0.2, 0.4, 0.8] if own == "kernels" else [0.4] * 3
    kernel = rbf()
    if own == "kernels":
        kernel = gpytorch.kernels.RBFKernel(batch_shape=torch.Size([3])).double()
        kernel.lengthscale = torch.tensor(lengthscales, dtype=torch.float64).reshape(3, 1, 1)
    arms = torch.stack([p.tensor for p in problems]) if own == "arms" else PROBLEM.tensor
    limits = torch.tensor([1, 3, 2])
    batch = tb.Bandit(case.policy(kernel), arms, generator=[generator(20 + r) for r in range(3)])
    together = proceed_rows(batch, problems, limits, rounds=6)
    for row, problem in enumerate(problems):
        single = tb.Bandit(case.policy(rbf(lengthscales[row])), problem.tensor, generator=generator(20 + row))
        told = 0
        for _ in range(6):
            selection = single.ask(limit=int(limits[row]))
            assert selection.index.tolist() == together[row][told : told + len(selection)]
            single.tell(selection, problem.rewards(told, selection.index))
            told += len(selection)
        assert told == len(together[row])
        assert torch.equal(batch.counts[row], single.counts)
        assert int(batch.best_arm()[row]) == int(single.best_arm())


def test_the_modes_are_different_policies():
    assert len({repr(case.policy()) for case in CASES}) == len(CASES)
