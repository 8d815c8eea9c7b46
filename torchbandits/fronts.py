"""Pareto fronts of several outcomes under the posterior: the front of the means, and the sets that the bounds certify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.aims import beside, classified, hypervolume, non_dominated
from torchbandits.arms.joint import JointDraws
from torchbandits.display import Readable, Shown, classes, count, fits, labels, misfit, table
from torchbandits.gradients import without_gradients
from torchbandits.loop import Loop
from torchbandits.policies.joint import Joint, all_outcomes, known_at
from torchbandits.policies.picking import marginals
from torchbandits.policies.state import TableState
from torchbandits.sets import table_of

# Number of arms, besides the members of a front, that are drawn jointly for its probabilities.
_RIVALS = 500
# Means of an outcome that lie within this fraction of its largest deviation are equal up to rounding.
_EQUAL = 1e-9
# Number of values in a block of comparisons.
_BLOCK = 1 << 23


@dataclass(frozen=True, repr=False)
class Front(Readable):
    """The arms whose posterior means are not dominated by those of another arm, in order of index. Exact duplicates count once.
    Under limits (`outcomes.pareto(at_most=)`), only arms that keep all limits with probability `certainty` are considered.

    Attributes:
        index: `batch_shape x f`, −1 where padded, in batch rows with a smaller front.
        points: `batch_shape x f x d`.
        mean, variance: `batch_shape x f x k`, posterior of every outcome, reward units; NaN where padded. Outcomes that are
            known for all arms come last, with a variance of 0.
        probability: `batch_shape x f`, probability under the model that no arm dominates it; 0 where padded.
        hypervolume: `batch_shape`, volume that is dominated by the means and bounded by the reference point, in the product of
            the outcomes' units; NaN without a reference point.
        outcomes: Names of the outcomes, in the order of the last dimension of `mean`.
    """

    index: Tensor
    points: Tensor
    mean: Tensor
    variance: Tensor
    probability: Tensor
    hypervolume: Tensor
    outcomes: tuple[str, ...] = ()

    def _shown(self) -> Shown:
        parts = (self.index, self.probability)
        if not all(isinstance(part, Tensor) for part in (*parts, self.mean)) or not fits(self.index >= 0, parts, self.points):
            return misfit(self)
        each = self.mean.unbind(dim=-1)
        means = {f"mean {name}": part for name, part in zip(labels(self.outcomes, len(each)), each, strict=True)}
        columns = {"arm": self.index, **means, "on the front": self.probability}
        return table(f"Front of {count(int((self.index >= 0).sum()), 'arm')}", self.index >= 0, columns, self.points)


@dataclass(frozen=True, repr=False)
class ParetoSet(Readable):
    """The arms that the bounds certify as Pareto optimal up to ε, the arms that they certify as not needed, and the others:
    `batch_shape x A` booleans each.

    Attributes:
        inside: If the bounds hold, no arm that is not `outside` is better than one of these arms by more than ε in every
            outcome, and no arm at all is better by more than 2 ε in every outcome.
        outside: If the bounds hold, then for each of these arms some arm that is not `outside` is at most ε worse in every
            outcome.
        undecided: The arms in neither set; there are none once the Pareto set is certified.
    """

    inside: Tensor
    outside: Tensor
    undecided: Tensor

    def _shown(self) -> Shown:
        return classes("Arms by a front", {"inside": self.inside, "outside": self.outside, "undecided": self.undecided})


@without_gradients
def front(
    loop: Loop, signs: Sequence[float], *, pulled: bool, reference: Sequence[float] | None, draws: int, seed: int
) -> Front:
    """See `OutcomeBandit.front`."""
    state = table_of(loop, "front()")
    assert isinstance(loop.policy, Joint)
    told, deviation = (part.double() for part in marginals(state))
    *shape, k, A = told.shape
    mean, std = all_outcomes(state, told, deviation)
    objectives = [j for j, sign in enumerate(signs) if sign]
    sign = mean.new_tensor([signs[j] for j in objectives]).unsqueeze(-1)
    own = (sign * mean[..., objectives, :], std[..., objectives, :])
    signed, spread = (part.reshape(-1, len(objectives), A).mT for part in own)
    signed = _equal_if_constant(signed, spread)
    possible = _possible(loop, state, mean, std)
    counted = possible & (loop.counts > 0).any(dim=-2) if pulled else possible
    index = _members(signed, counted.reshape(-1, A))
    rivals = _rivals(signed, spread, index, possible.reshape(-1, A))
    # Places without a member repeat the first one, since arm 0 may be none of the arms that count.
    members = torch.where(index >= 0, index, index[:, :1])
    drawn = torch.cat([members, rivals], dim=-1).clamp_min(0)
    joint = JointDraws(state.table, drawn.reshape(*shape, 1, -1).expand(*shape, k, -1))
    given = known_at(state, drawn.reshape(*shape, -1))
    rows = None if given is None else given.reshape(len(drawn), -1, drawn.shape[-1])
    probability = _membership(joint, index, dict(zip(objectives, sign, strict=True)), rows, draws, seed)
    index = index.reshape(*shape, -1)
    at = index.clamp_min(0).unsqueeze(-2).expand(*shape, k, -1)
    lam = state.posterior.regularization
    shown = state.in_reward_units(told.gather(-1, at), lam * state.table.leverage_at(at).double())
    gone, values = (index < 0).unsqueeze(-1), known_at(state, index.clamp_min(0))
    means = beside(shown.mean, values).mT.masked_fill(gone, torch.nan)
    volume = _hypervolume(means, signs, reference)
    points = loop.points(at)[..., 0, :, :]
    variance = beside(shown.variance, None if values is None else torch.zeros_like(values)).mT.masked_fill(gone, torch.nan)
    return Front(index, points, means, variance, probability.reshape(index.shape), volume, loop.policy.all_names)


def _possible(loop: Loop, state: TableState, mean: Tensor, std: Tensor) -> Tensor:
    """The arms that may belong to the front, `batch_shape x A` booleans: under limits those that keep them, the first of equal
    arms, and those that compete at present (`ArmRows.competing`)."""
    assert isinstance(loop.policy, Joint)
    *shape, _, A = mean.shape
    possible = torch.ones(*shape, A, dtype=torch.bool, device=mean.device)
    if (kept := loop.policy.aim.kept(mean, std, state.table)) is not None:
        possible = possible & kept
    for own in (state.rows.offered(None), state.rows.competing):
        if own is not None:
            possible = possible & own.expand(state.rows.row_of_arm.shape)[..., 0, :]
    return possible


def _equal_if_constant(signed: Tensor, spread: Tensor) -> Tensor:
    """Means with exactly equal values of each outcome in which all arms are equal up to rounding, such as one whose rewards are
    constant: otherwise rounding would decide which arms are on the front. Means and deviations are `rows x A x m`."""
    apart = signed.amax(dim=-2, keepdim=True) - signed.amin(dim=-2, keepdim=True)
    return torch.where(apart <= _EQUAL * spread.amax(dim=-2, keepdim=True), signed[:, :1], signed)


def _members(signed: Tensor, counted: Tensor) -> Tensor:
    """The arms on the front of the means of each row, `rows x f`, −1 where padded; f is at least 1."""
    rows = []
    for values, own in zip(signed, counted, strict=True):
        place = own.nonzero().squeeze(-1)
        rows.append(place[non_dominated(values[place])] if place.numel() else place)
    wide = max(1, *(len(row) for row in rows))
    return torch.stack([torch.nn.functional.pad(row, (0, wide - len(row)), value=-1) for row in rows])


def _rivals(signed: Tensor, spread: Tensor, index: Tensor, counted: Tensor) -> Tensor:
    """The arms that most likely belong to the front besides its members, `rows x r`. They are ranked by the distance by which
    one standard deviation lifts them above every member, in the outcome in which this distance is largest."""
    A = signed.shape[-2]
    hopes = []
    for values, std, members, own in zip(signed, spread, index, counted, strict=True):
        front = values[members[members >= 0]]
        if not len(front):
            hopes.append(torch.full((A,), -torch.inf, dtype=values.dtype, device=values.device))
            continue
        unit = (values[own].amax(dim=0) - values[own].amin(dim=0)).clamp_min(1e-300)
        hope = torch.full((A,), torch.inf, dtype=values.dtype, device=values.device)
        for member in front:
            hope = torch.minimum(hope, ((values + std - member) / unit).amax(dim=-1))
        hope = hope.masked_fill(~own, -torch.inf).index_fill(0, members[members >= 0], -torch.inf)
        hopes.append(hope)
    top = torch.stack(hopes).topk(min(_RIVALS, A), dim=-1)
    some = top.values > -torch.inf
    # Padding repeats the first member, which is drawn anyway.
    return torch.where(some, top.indices, index[:, :1])[:, : int(some.sum(dim=-1).max())]


def _membership(
    joint: JointDraws, index: Tensor, signs: dict[int, Tensor], known: Tensor | None, draws: int, seed: int
) -> Tensor:
    """For each member, the fraction of joint draws in which no arm dominates it in the outcomes of `signs`, `rows x f`. `known`
    has the values of known outcomes at the arms drawn, `rows x j x r`."""
    rows, f = index.shape
    k = joint.index.shape[-2]
    hits = torch.zeros(rows, f, dtype=torch.float64, device=index.device)
    wide = joint.index.shape[-1]
    same = joint.index.reshape(rows, k, wide)[:, 0]
    for row in range(rows):
        generator = torch.Generator().manual_seed(seed)
        # An arm does not dominate its copies, and padding repeats an arm.
        own = same[row].unsqueeze(-2) == same[row, :f].unsqueeze(-1)
        for part in torch.arange(draws).split(max(1, _BLOCK // (f * wide))):
            values = [
                joint.draw(row * k + j, len(part), generator)
                if known is None or j < k
                else known[row, j - k].expand(len(part), -1)
                for j in signs
            ]
            drawn = torch.stack([sign * own for sign, own in zip(signs.values(), values, strict=True)], dim=-1)
            better = (drawn.unsqueeze(-3) >= drawn[:, :f].unsqueeze(-2)).all(dim=-1) & ~own
            hits[row] += (~better.any(dim=-1)).sum(dim=0)
    return torch.where(index >= 0, hits / draws, 0.0)


def _hypervolume(means: Tensor, signs: Sequence[float], reference: Sequence[float] | None) -> Tensor:
    """The hypervolume of `batch_shape x f x k` means, `batch_shape`; NaN rows are left out."""
    shape = means.shape[:-2]
    if reference is None:
        return torch.full(shape, torch.nan, dtype=torch.float64)
    objectives = [j for j, sign in enumerate(signs) if sign]
    sign = means.new_tensor(signs)[objectives]
    flat = (sign * means[..., objectives]).reshape(-1, means.shape[-2], len(objectives)).cpu()
    point = (sign * means.new_tensor(reference)[objectives]).cpu()
    return torch.tensor([hypervolume(row, point) for row in flat], dtype=torch.float64).reshape(shape)


@without_gradients
def pareto_set(loop: Loop, signs: Sequence[float], epsilon: Sequence[float]) -> ParetoSet:
    """See `OutcomeBandit.pareto_set`."""
    state = table_of(loop, "pareto_set()")
    mean, std = (part.double() for part in marginals(state))
    spread = loop.policy.width(state).unsqueeze(-1) * std
    lower, upper = mean - spread, mean + spread
    if (units := state.posterior.units) is not None:
        lower, upper = units.to_rewards(lower), units.to_rewards(upper)
    objectives = [j for j, sign in enumerate(signs) if sign]
    small = mean.new_tensor(signs)[objectives].unsqueeze(-1) < 0
    lower, upper = (beside(own, state.rows.known)[..., objectives, :] for own in (lower, upper))
    corners = (torch.where(small, -upper, lower).mT, torch.where(small, -lower, upper).mT)
    entries = state.rows.offered(None)
    own = None if entries is None else entries.expand(mean.shape)[..., 0, :]
    inside, outside = classified(*corners, mean.new_tensor(epsilon)[objectives], own)
    return ParetoSet(inside, outside, ~inside & ~outside)
