"""Writing later to tensors that were passed in or returned has no effect on the state or the picks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from contract import CASES, PROBLEM, Case
from problems import generator, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits import errors, sources
from torchbandits.botorch import BanditModel, PolicyAcquisition
from torchbandits.testing.play import differences, everything

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")

ARMS = PROBLEM.tensor
WRONG = {torch.int64: 999, torch.uint8: 99, torch.bool: False}
POINTS = ARMS[:7] * 0.5 + 0.2


def by_torch(tensor: Tensor) -> None:
    """Fill a tensor with values that are invalid as number, index or mask."""
    with torch.no_grad():
        tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor.fill_(WRONG[tensor.dtype])


def by_numpy(tensor: Tensor) -> None:
    """Fill a tensor in the same way through memory shared with NumPy, which torch does not notice."""
    array = tensor.detach().numpy()
    array[...] = float("nan") if tensor.is_floating_point() else WRONG[tensor.dtype]


either_way = pytest.mark.parametrize("write", [by_torch, by_numpy])
Write = Callable[[Tensor], None]
KINDS = ["gp_ucb", "batch_bkb", "pi_gp_ucb", "ada_bkb", "bpe", "soful", "epsilon_greedy", "regularized_evolution"]
some_policies = pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if c.name in KINDS and not c.mode else pytest.mark.exhaustive) for c in CASES],
    ids=lambda case: f"{case.name} {case.mode}".strip(),
)


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors in nested dictionaries, lists and records."""
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    parts = vars(value).values() if hasattr(value, "__dataclass_fields__") else parts
    return [tensor for part in parts for tensor in tensors_of(part)]


@pytest.mark.sweep
@either_way
@some_policies
def test_callers_may_write_to_all_that_they_handed_in_or_were_handed(case: Case, write: Write):
    """All inputs and outputs of every call are overwritten; the bandit continues like an undisturbed one."""
    mine = ARMS.clone()
    bandit, twin = (tb.Bandit(case.policy(), arms, generator=generator(5)) for arms in (mine, ARMS))
    write(mine)
    for round_ in range(4):
        selection, expected = bandit.ask(limit=3), twin.ask(limit=3)
        assert torch.equal(selection.index, expected.index)
        assert torch.equal(selection.points, expected.points)
        kept = copy.deepcopy(selection)
        for tensor in tensors_of(selection):
            write(tensor)
        assert differences(vars(bandit.ask()), vars(kept)) == []
        rewards = PROBLEM.rewards(round_, kept.index)
        given = rewards.clone()
        handed = [bandit.tell(kept, given), bandit.counts, bandit.pulls, bandit.width, bandit.best(2), bandit.best_arm()]
        twin.tell(expected, rewards)
        if bandit.loop.state.tabulated:
            handed.append(bandit.dictionary)
            handed.append(bandit.posterior(POINTS))
        saved = bandit.state_dict()
        for tensor in [given, *tensors_of(vars(kept)), *tensors_of(handed), *tensors_of(saved)]:
            write(tensor)
    index, counts, sums = torch.tensor([3, 4]), torch.ones(2).double(), torch.tensor([0.5, 0.1]).double()
    twin.observe(index.clone(), counts.clone(), sums.clone())
    bandit.observe(index, counts, sums)
    for tensor in (index, counts, sums):
        write(tensor)
    saved, mine = copy.deepcopy(bandit.state_dict()), ARMS.clone()
    third = tb.Bandit(case.policy(), mine).load_state_dict(saved)
    for tensor in [mine, *tensors_of(saved)]:
        write(tensor)
    for other in (bandit, third):
        assert differences(everything(other), everything(twin)) == []
    expected = twin.ask(more=3)
    for other in (bandit, third):
        assert torch.equal(other.ask(more=3).index, expected.index)


@either_way
def test_picks_that_the_caller_changed_are_told_as_what_they_are_now(write: Write):
    """Changed picks are checked, and are not learned at the arms that were originally asked for."""
    bandit = tb.Bandit(tb.gp_ucb(rbf(), noise_std=0.1), ARMS)
    selection = bandit.ask(more=2)
    write(selection.index)
    with pytest.raises(errors.ArmIndexError, match="999"):
        bandit.tell(selection, torch.ones(2))
    selection.index[:] = torch.tensor([5, 6])
    with pytest.warns(errors.DiagnosticWarning, match="2 of the 2 picks of this selection are not open"):
        report = bandit.tell(selection, torch.ones(2))
    assert float(report.unasked) == 2
    assert bandit.counts.nonzero().squeeze(-1).tolist() == [5, 6]


@either_way
def test_costs_new_arms_boxes_and_observed_points_are_copied(write: Write):
    costs = 1.0 + torch.arange(len(ARMS), dtype=torch.float64)
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    policies = [tb.per_cost(tb.gp_ucb(rbf(), noise_std=0.1)), tb.gp_ucb(rbf(), noise_std=0.1, width=tb.widths.Constant(2.0))]
    pairs = []
    for mine in (True, False):
        own = [t.clone() for t in (costs, ARMS.flip(0), costs.flip(0), box, POINTS)]
        bandit = tb.Bandit(policies[0], ARMS, costs=own[0])
        bandit.set_arms_(own[1], costs=own[2])
        boxed = tb.Bandit(policies[1], bounds=own[3])
        for b in (bandit, boxed):
            b.observe(own[4], torch.ones(7), torch.linspace(0, 1, 7))
        for tensor in own if mine else ():
            write(tensor)
        pairs.append([b.ask(more=3) for b in (bandit, boxed)] + [bandit.posterior(ARMS), boxed.posterior(ARMS)])
    for one, other in zip(*pairs, strict=True):
        assert differences(vars(one), vars(other)) == []


@either_way
def test_arms_and_contexts_of_a_contextual_bandit_are_copied(write: Write):
    contexts, costs = torch.tensor([[0.1], [0.7]], dtype=torch.float64), torch.ones(len(ARMS), dtype=torch.float64)
    found = []
    for mine in (True, False):
        own = [t.clone() for t in (ARMS, contexts, costs)]
        bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), noise_std=0.1), own[0], own[1], costs=own[2])
        handed: list[Any] = [*own]
        for context in (contexts[1], torch.tensor([0.4]).double(), contexts[0]):
            here = context.clone()
            selection = bandit.ask(context=here, more=2)
            found.append((mine, selection.index.clone(), selection.points.clone()))
            rewards = torch.sin(selection.points.sum(dim=-1))
            bandit.tell(copy.deepcopy(selection), rewards)
            saved = bandit.state_dict()
            bandit.load_state_dict(saved)
            for tensor in [*tensors_of(handed), here, rewards, *tensors_of(selection), *tensors_of(saved), bandit.contexts]:
                if mine:
                    write(tensor)
    for one, other in zip(found[:3], found[3:], strict=True):
        assert torch.equal(one[1], other[1])
        assert torch.equal(one[2], other[2])


def test_expanded_arms_are_copied_once():
    arms = ARMS.clone()
    bandit = tb.Bandit(tb.gp_ucb(rbf(), noise_std=0.1), arms.expand(3, -1, -1), generator=[generator(s) for s in range(3)])
    assert bandit.arms.untyped_storage().nbytes() == arms.untyped_storage().nbytes()
    assert bandit.arms.untyped_storage().data_ptr() != arms.untyped_storage().data_ptr()


def test_a_source_shares_its_tensor():
    arms = ARMS.clone()
    bandit = tb.Bandit(tb.gp_ucb(rbf(), noise_std=0.1), sources.tensor(arms))
    assert bandit.arms.data_ptr() == arms.data_ptr()


@either_way
@pytest.mark.parametrize("dictionary", ["all", "points"])
def test_data_of_a_model_are_copied(write: Write, dictionary: str):
    X, Y = ARMS[:12], torch.sin(4 * ARMS[:12, :1])
    means = []
    for mine in (True, False):
        own = [t.clone() for t in (X, Y, torch.full_like(Y, 0.01), X[:5], X[5:8], Y[5:8], torch.full((3, 1), 0.02).double())]
        how = own[3] if dictionary == "points" else "all"
        model = BanditModel(own[0], own[1], own[2], kernel=rbf(), dictionary=how)
        if mine:
            for tensor in own[:4]:
                write(tensor)
        if dictionary == "all":
            model = model.condition_on_observations(own[4], own[5], noise=own[6])
            pending = X[8:10].clone()
            model = model.hallucinate(pending)
            for tensor in (*own[4:], pending) if mine else ():
                write(tensor)
        means.append(model.marginals(POINTS))
        means.append(model.condition_on_observations(X[:1], Y[:1]).marginals(POINTS))
    assert differences(vars(means[0]), vars(means[2])) == differences(vars(means[1]), vars(means[3])) == []


@either_way
def test_tabulated_arms_are_known_by_their_numbers(write: Write):
    """Marginals are looked up while the points are the arms, whole or in part, in the caller's or the bandit's tensor; they are
    computed as soon as the points differ."""
    policy, arms = tb.gp_ucb(rbf(), noise_std=0.1), torch.cat([POINTS, ARMS])[7:]  # not at the start of their storage
    bandit = tb.Bandit(policy, arms)
    bandit.observe(torch.arange(6), torch.ones(6), torch.linspace(-1, 1, 6))
    held = BanditModel(ARMS[:9], ARMS[:9, :1], kernel=rbf(), noise_std=0.1).tabulate_(arms)
    for model in (held, bandit.model()):
        for own in (model.arms, *((arms,) if model is held else ())):
            for X, part in ((own, slice(0, 40)), (own[5:9].unsqueeze(-2), slice(5, 9))):
                assert model._table.rows(X) == slice(part.start, min(part.stop, len(arms)))
        assert model._table.rows(arms.flip(0)) is None
    scores = PolicyAcquisition(held, policy)(arms.unsqueeze(-2))
    write(arms)
    assert held._table.rows(arms) is None
    arms[:] = ARMS + 0.01
    fresh = BanditModel(ARMS[:9], ARMS[:9, :1], kernel=rbf(), noise_std=0.1)
    torch.testing.assert_close(held.marginals(arms).mean, fresh.marginals(arms).mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(PolicyAcquisition(held, policy)(ARMS.unsqueeze(-2)), scores, rtol=0, atol=1e-12)
