"""Batches with elimination between them: the common part of `bpe` and `reds`, which differ in how a batch is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchbandits.arms import best_arm
from torchbandits.policies.phased import Phased, PhasedState, offers, restart_
from torchbandits.policies.picking import room_for, with_first
from torchbandits.types import Arms, Evidence, Generators, Pulls, Selection

Explore = Callable[["EliminationState", Tensor, Tensor], tuple[Tensor, tuple[Tensor, ...]]]
"""Picks among candidates (`batch_shape x A`), as many as there is room (`batch_shape`), and the states of the generators after
the draws."""


@dataclass(frozen=True)
class Batches:
    """Lengths of the batches, and the pulls at which they end.

    Attributes:
        lengths: Picks of each batch; they add up to the horizon.
        late: Maximum number of picks of a batch whose rewards may be missing when it ends.
        anew: Whether all arms are restored and all rewards forgotten after the last batch.
    """

    lengths: Sequence[int]
    late: int = 0
    anew: bool = False

    def picks(self, batch: Tensor) -> Tensor:
        """Number of picks of the batches with the given numbers; infinite after the last batch."""
        return torch.tensor([*self.lengths, torch.inf], dtype=torch.float64, device=batch.device)[batch]

    def rewards(self, batch: Tensor) -> Tensor:
        """Number of rewards that end the batches with the given numbers. A batch not longer than `late` waits for all of its
        rewards."""
        picks = self.picks(batch)
        return torch.where(picks > self.late, picks - self.late, picks)


class Survivors(nn.Module):
    """The arms that have not been eliminated, and the bounds established so far.

    Args:
        alive: `batch_shape x A` booleans, arms that no batch has discarded.
        upper: `batch_shape`, upper bound on every arm, reward units.
        lower: `batch_shape`, lower bound on the best arm, reward units.
        batches: The batches of the policy.

    Buffers, which are replaced and never written in place: `alive`, `upper` and `lower`; `batch` `batch_shape`, the number of
    finished batches; if rewards may be late, `since` `batch_shape`, the number of pulls told since the last batch ended minus
    the picks that were pending then; and if the policy restarts after the last batch, `stale` `batch_shape`, whether the
    rewards of all pulls precede the latest restart.
    """

    alive: Tensor
    upper: Tensor
    lower: Tensor
    batch: Tensor
    since: Tensor
    stale: Tensor

    def __init__(self, alive: Tensor, upper: Tensor, lower: Tensor, batches: Batches) -> None:
        super().__init__()
        self.batches = batches
        for name, value in (("alive", alive), ("upper", upper), ("lower", lower)):
            self.register_buffer(name, value)
        self.register_buffer("batch", torch.zeros_like(upper, dtype=torch.int64))
        if batches.late:
            self.register_buffer("since", torch.zeros_like(upper, dtype=torch.float64))
        if batches.anew:
            self.register_buffer("stale", torch.zeros_like(upper, dtype=torch.bool))

    def eliminate_(self, mean: Tensor, spread: Tensor, over: Tensor) -> None:
        """Discard the arms whose upper bound is below the best lower bound, in the batch rows whose batch is finished.

        Args:
            mean: `batch_shape x A`, posterior mean given the batch, reward units.
            spread: `batch_shape x A`, width times standard deviation.
            over: `batch_shape` booleans, rows whose batch is finished.
        """
        upper = (mean + spread).masked_fill(~self.alive, -torch.inf)
        lower = (mean - spread).masked_fill(~self.alive, -torch.inf)
        top, best = upper.amax(dim=-1), lower.amax(dim=-1)
        self.alive = self.alive & ((upper >= best.unsqueeze(-1)) | ~over.unsqueeze(-1))
        # Under a drift each batch bounds another function, so that its bounds replace those of earlier batches.
        drifts = self.batches.anew
        self.upper = torch.where(over, top if drifts else torch.minimum(self.upper, top), self.upper)
        self.lower = torch.where(over, best if drifts else torch.maximum(self.lower, best), self.lower)
        self.batch = self.batch + over

    def begin_anew_(self, mean: Tensor, spread: Tensor, over: Tensor) -> None:
        """Restore all arms in the batch rows `over`, with the bounds of the prior. The arguments are those of `eliminate_`."""
        self.alive = self.alive | over.unsqueeze(-1)
        self.upper = torch.where(over, (mean + spread).amax(dim=-1), self.upper)
        self.lower = torch.where(over, (mean - spread).amax(dim=-1), self.lower)
        self.batch = self.batch.masked_fill(over, 0)
        self.stale = self.stale | over


class EliminationState(PhasedState):
    """The state of `bpe` and `reds`: the state of a policy in phases, and the surviving arms.

    Args:
        phased: State whose table, inner state and generators are used.
        survivors: The surviving arms, and the bounds that discarded the others.
    """

    def __init__(self, phased: PhasedState, survivors: Survivors) -> None:
        super().__init__(phased, phased.inner)
        self.survivors = survivors


def begin(
    policy: Phased[EliminationState], arms: Arms, generators: Generators, batch_shape: torch.Size, batches: Batches
) -> EliminationState:
    """Make a fresh state, in which all arms are alive. Cost O(A (d + log A))."""
    outer = policy.begin(arms, generators, batch_shape)
    mean, spread = policy.marginals(outer.inner)
    alive = torch.ones_like(mean, dtype=torch.bool)
    return EliminationState(outer, Survivors(alive, (mean + spread).amax(dim=-1), (mean - spread).amax(dim=-1), batches))


def remaining_picks(
    policy: Phased[EliminationState],
    state: EliminationState,
    explore: Explore,
    limit: Tensor | None,
    available: Tensor | None,
    exactly: int | None,
) -> tuple[Selection, Evidence]:
    """The remaining picks of the batch, which `explore` chooses; the other arguments are those of `Policy.select`."""
    rows, inner, survivors, most = state.rows, state.inner, state.survivors, policy.most_picks
    batches = survivors.batches
    offered = offers(rows, available)
    candidates = survivors.alive & offered
    wanted = batches.rewards(survivors.batch)
    resting = wanted.isinf() | ~candidates.any(dim=-1)
    left = wanted - inner.told
    if batches.late:
        left = torch.maximum(left, batches.picks(survivors.batch) - survivors.since)
    left = torch.where(resting, 1, left.nan_to_num(posinf=0).clamp_min(0).ceil())
    largest = left if most is None else left.clamp_max(most)
    room, resting = room_for(state, largest if exactly is None else exactly, limit), resting.cpu()
    index, drawn = explore(state, candidates, torch.where(resting, 0, room))
    if bool(resting.any()):
        index = _exploit(policy, state, candidates, offered, torch.where(resting, room, 0), index)
    leverage = inner.leverage_at(index)
    evidence = Evidence((policy.engine.regularization * leverage).sqrt(), leverage, policy.width(state), drawn)
    return Selection(rows.points(index), index, index >= 0), evidence


def learn(policy: Phased[EliminationState], state: EliminationState, pulls: Pulls) -> EliminationState:
    """Learn the pulls. Pulls of survivors count towards the batch, and the last of them ends it. If rewards may be late, the
    batch ends once all its picks have been made and all but `late` of their rewards are known."""
    one_by_one = not (pulls.history or pulls.index is None)
    inner, survivors, batches = state.inner, state.survivors, state.survivors.batches
    if batches.anew and one_by_one:
        assert pulls.mask is not None
        stale = survivors.stale & pulls.mask.any(dim=-1)
        if bool(stale.any()):
            restart_(state, stale, told=False)
            survivors.stale = survivors.stale & ~stale
    policy.learn(state, pulls)
    if not one_by_one:
        return state
    assert pulls.index is not None
    assert pulls.mask is not None
    index, wanted = state.rows.entry(pulls.index), batches.rewards(survivors.batch)
    counted = pulls.mask & survivors.alive.gather(-1, index.clamp_min(0)) & wanted.isfinite().unsqueeze(-1)
    if bool(counted.any()):
        policy.learn_inner(state, pulls, index, counted)
    elif not batches.late:
        return state
    over = inner.told >= wanted
    if batches.late:
        survivors.since = survivors.since + pulls.mask.sum(dim=-1)
        unsettled = torch.zeros_like(survivors.since)
        if state.unsettled is not None:
            unsettled = unsettled + state.unsettled.mask.sum(dim=-1)
        # Rewards of other batch rows end no batch here.
        over = over & (survivors.since + unsettled >= batches.picks(survivors.batch)) & pulls.mask.any(dim=-1)
        survivors.since = torch.where(over, -unsettled, survivors.since)
    if bool(over.any()):
        survivors.eliminate_(*policy.marginals(inner), over)
        restart_(inner, over)
        ended = over & (survivors.batch == len(batches.lengths))
        if batches.anew and bool(ended.any()):
            survivors.begin_anew_(*policy.marginals(inner), ended)
    return state


def filled(index: Tensor, arm: Tensor, room: Tensor) -> Tensor:
    """The picks, followed by `arm` (`batch_shape`) until each row has `room` of them."""
    q = int(room.max()) if room.numel() else 0
    within = (torch.arange(q) < room.unsqueeze(-1)).to(index.device)
    index = torch.nn.functional.pad(index, (0, max(0, q - index.shape[-1])), value=-1)[..., :q]
    return torch.where((index < 0) & within, arm.unsqueeze(-1), index)


def _exploit(
    policy: Phased[EliminationState],
    state: EliminationState,
    candidates: Tensor,
    offered: Tensor,
    room: Tensor,
    index: Tensor,
) -> Tensor:
    """Complete the picks `index` in rows without a batch to fill: after the horizon with the survivor of the highest posterior
    mean; if no survivor is on offer, with the arm of the highest upper bound."""
    mean, spread = policy.marginals(state)
    upper = (mean + spread).masked_fill(~offered, -torch.inf)
    score = torch.where(candidates.any(dim=-1, keepdim=True), mean.masked_fill(~candidates, -torch.inf), upper)
    return with_first(filled(index[..., :0], best_arm(score), room), room > 0, index)
