"""BPE: a few long batches of pure exploration, with elimination of arms between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor, nn

from torchbandits.arms import Lookahead, best_arm
from torchbandits.batching import Meter
from torchbandits.checks import check_whole, explains_keywords, is_whole, regularization_of
from torchbandits.gradients import without_gradients
from torchbandits.policies.composed import Composed
from torchbandits.policies.phased import Phased, PhasedState, offers, preference, restart_
from torchbandits.policies.picking import room_for
from torchbandits.types import Arms, Evidence, Generators, Pulls, Selection
from torchbandits.widths import FixedDesign, Width

# Picks by variance spread over all arms. If all arms are leaders, a pick costs one pass over their covariance.
_LEADERS = 1024


def batch_lengths(horizon: int) -> tuple[int, ...]:
    """The batch lengths N_1, N_2, … with N_i = ⌈√(T N_{i−1})⌉ and N_0 = 1, the last one cut so that they add up to the horizon
    T."""
    lengths, last, left = [], 1, horizon
    while left:
        last = math.isqrt(horizon * last - 1) + 1
        lengths.append(min(last, left))
        left -= lengths[-1]
    return tuple(lengths)


class Survivors(nn.Module):
    """The arms that elimination has left, and the bounds that it has established.

    Args:
        alive: `batch_shape x A` booleans, arms that no batch has discarded.
        upper: `batch_shape`, upper bound on every arm, reward units.
        lower: `batch_shape`, lower bound on the best arm, reward units.

    Buffers, replaced and never written in place: these, and `batch` `batch_shape`, the number of finished batches.
    """

    alive: Tensor
    upper: Tensor
    lower: Tensor
    batch: Tensor

    def __init__(self, alive: Tensor, upper: Tensor, lower: Tensor) -> None:
        super().__init__()
        for name, value in (("alive", alive), ("upper", upper), ("lower", lower)):
            self.register_buffer(name, value)
        self.register_buffer("batch", torch.zeros_like(upper, dtype=torch.int64))

    def eliminate_(self, mean: Tensor, spread: Tensor, over: Tensor) -> None:
        """Discard the arms whose upper bound is below the best lower bound, in the batch rows whose batch is finished.

        Args:
            mean: `batch_shape x A`, posterior mean given the batch, reward units.
            spread: `batch_shape x A`, width times standard deviation.
            over: `batch_shape` booleans, rows whose batch is finished.
        """
        upper = (mean + spread).masked_fill(~self.alive, -torch.inf)
        lower = (mean - spread).masked_fill(~self.alive, -torch.inf)
        best = lower.amax(dim=-1)
        self.alive = self.alive & ((upper >= best.unsqueeze(-1)) | ~over.unsqueeze(-1))
        self.upper = torch.where(over, torch.minimum(self.upper, upper.amax(dim=-1)), self.upper)
        self.lower = torch.where(over, torch.maximum(self.lower, best), self.lower)
        self.batch = self.batch + over


class EliminationState(PhasedState):
    """The state of `bpe`: that of a policy in phases, and the surviving arms.

    Args:
        phased: Its table, inner state and generators are taken over.
        survivors: The surviving arms, and the bounds that discarded the others.
    """

    def __init__(self, phased: PhasedState, survivors: Survivors) -> None:
        super().__init__(phased.table, phased.generators, phased.inner, counts_batches=phased.counts_batches)
        self.survivors = survivors


@dataclass(frozen=True, repr=False)
class BatchedPureExploration(Phased[EliminationState]):
    """A policy that picks the largest variance among survivors and eliminates arms between batches; see `bpe`.

    Args:
        max_batch_size: Most picks of one selection.
    """

    max_batch_size: int | None = None

    def __post_init__(self) -> None:
        Phased.__post_init__(self)
        check_whole("max_batch_size", self.max_batch_size, otherwise="for the whole batch")

    @property
    def most_picks(self) -> int | None:
        """The most picks of one `select`: `max_batch_size`."""
        return self.max_batch_size

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the batches, which add up to the horizon."""
        return batch_lengths(self.horizon)

    @without_gradients
    def init(self, arms: Arms, generators: Generators, batch_shape: torch.Size) -> EliminationState:
        """Make a fresh state, in which all arms are alive. Cost O(A (d + log A))."""
        outer = self.begin(arms, generators, batch_shape)
        mean, spread = self.marginals(outer.inner)
        alive = torch.ones_like(mean, dtype=torch.bool)
        return EliminationState(outer, Survivors(alive, (mean + spread).amax(dim=-1), (mean - spread).amax(dim=-1)))

    @without_gradients
    def select(
        self,
        state: EliminationState,
        *,
        limit: Tensor | None = None,
        available: Tensor | None = None,
        exactly: int | None = None,
    ) -> tuple[Selection, Evidence]:
        """Select the remaining picks of the batch. Cost O(K²) per pick for K survivors up to a thousand, O(A) per pick and more
        beyond."""
        rows, inner, survivors = state.rows, state.inner, state.survivors
        offered = offers(rows, available)
        candidates = survivors.alive & offered
        lengths = self._length(survivors)
        resting = lengths.isinf() | ~candidates.any(dim=-1)
        left = torch.where(resting, 1, (lengths - inner.told).nan_to_num(posinf=0).clamp_min(0).ceil())
        most = left if self.max_batch_size is None else left.clamp_max(self.max_batch_size)
        room, resting = room_for(state, most if exactly is None else exactly, limit), resting.cpu()
        index, drawn = self._explore(state, candidates, torch.where(resting, 0, room))
        if bool(resting.any()):
            index = self._exploit(state, candidates, offered, torch.where(resting, room, 0), index)
        leverage = inner.arm_leverage().gather(-1, index.clamp_min(0))
        evidence = Evidence((self.engine.regularization * leverage).sqrt(), leverage, self.width(state), drawn)
        return Selection(rows.points(index), index, index >= 0), evidence

    @without_gradients
    def update(self, state: EliminationState, pulls: Pulls) -> EliminationState:
        """Learn the pulls. Pulls of survivors count towards the batch, and the last of them ends it. Cost O(A u) per distinct
        arm, and a sweep over the arms where a batch ends."""
        self.learn(state, pulls)
        if pulls.history or pulls.index is None:
            return state
        assert pulls.mask is not None
        inner, survivors = state.inner, state.survivors
        index, lengths = state.rows.entry(pulls.index), self._length(survivors)
        counted = pulls.mask & survivors.alive.gather(-1, index.clamp_min(0)) & lengths.isfinite().unsqueeze(-1)
        if bool(counted.any()):
            self.learn_inner(state, pulls, index, counted)
            over = inner.told >= lengths
            if bool(over.any()):
                survivors.eliminate_(*self.marginals(inner), over)
                restart_(inner, over)
        return state

    @without_gradients
    def bounds(self, state: EliminationState) -> tuple[Tensor, Tensor]:
        """The bounds of the last finished batch. Bounds read at every pull within a batch would need a wider union bound."""
        survivors = state.survivors
        return survivors.upper, survivors.lower

    def _length(self, survivors: Survivors) -> Tensor:
        """Length of the current batch of each row, `batch_shape`; infinite after the last."""
        lengths = torch.tensor([*self.lengths, torch.inf], dtype=torch.float64, device=survivors.batch.device)
        return lengths[survivors.batch]

    def _explore(self, state: EliminationState, candidates: Tensor, room: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Picks of the largest variance given the batch's pulls and pending picks, `batch_shape x q` (−1 where padded), and
        the states of the generators after the draws: none, nothing is drawn."""
        inner, pending, counts = state.inner, state.pending_index, state.pending_counts
        counts = torch.where(state.survivors.alive.gather(-1, pending.clamp_min(0)) & (pending >= 0), counts, 0.0)
        leaders = min(_LEADERS, max(1, int(candidates.sum(dim=-1).max())))
        width = torch.ones_like(inner.told)
        # A width of 1 and a nearly constant mean make the score the standard deviation.
        lookahead = Lookahead(inner.table, preference(inner), width, candidates, (pending, counts), None, leaders=leaders)
        index = lookahead.pick(Meter(lookahead, math.inf, scale=0.0), room)
        # Where no candidate has any variance left, all are equal: the first one is picked.
        return _filled(index, candidates.byte().argmax(dim=-1), room), ()

    def _exploit(self, state: EliminationState, candidates: Tensor, offered: Tensor, room: Tensor, index: Tensor) -> Tensor:
        """Complete the picks `index` in rows without a batch to fill: after the horizon by the survivor of the highest
        posterior mean; where no survivor is on offer, by the arm of the highest upper bound."""
        mean, spread = self.marginals(state)
        upper = (mean + spread).masked_fill(~offered, -torch.inf)
        score = torch.where(candidates.any(dim=-1, keepdim=True), mean.masked_fill(~candidates, -torch.inf), upper)
        own = _filled(index[..., :0], best_arm(score), room)
        widen, q = torch.nn.functional.pad, max(own.shape[-1], index.shape[-1])
        own, index = (widen(x, (0, q - x.shape[-1]), value=-1) for x in (own, index))
        return torch.where((room > 0).unsqueeze(-1).to(own.device), own, index)


def _filled(index: Tensor, arm: Tensor, room: Tensor) -> Tensor:
    """The picks, followed by `arm` (`batch_shape`) until each row has `room` of them."""
    q = int(room.max()) if room.numel() else 0
    within = (torch.arange(q) < room.unsqueeze(-1)).to(index.device)
    index = torch.nn.functional.pad(index, (0, max(0, q - index.shape[-1])), value=-1)[..., :q]
    return torch.where((index < 0) & within, arm.unsqueeze(-1), index)


@explains_keywords
def bpe(
    kernel: gpytorch.kernels.Kernel,
    *,
    horizon: int,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    width: Width | None = None,
    regularization: float | None = None,
    max_batch_size: int | None = None,
    prior_mean: float | str = 0.0,
    memory_budget: int = 2 << 30,
) -> BatchedPureExploration:
    r"""BPE: batched pure exploration in at most ⌈log₂ log₂ T⌉ + 1 batches, with elimination of arms between them.

    .. math:: N_i = \lceil\sqrt{T N_{i-1}}\,\rceil, \quad x = \arg\max_{\text{alive}} \sigma_i(x), \quad
              \text{discard } x \text{ if } \mu_i(x) + w \sigma_i(x) < \max_{\text{alive}} (\mu_i - w \sigma_i)

    with N_0 = 1 and the last batch cut at T. Mean and deviation are those of the batch's own pulls: its picks need no reward,
    so `ask` returns all remaining picks of the batch, and the width w need not account for adaptivity.

    Every told pull of a surviving arm counts towards the batch, whether it was asked for or not. Pulls of other arms and
    history (`observe`) only enter the posterior of all pulls, which the bandit shows. A forgotten pick is replaced by the arm
    of the largest variance at that time. Where no survivor is on offer, the arm on offer of the highest upper bound is
    picked; after T pulls, the survivor of the highest posterior mean. The certificate is that of the last finished batch.

    Args:
        kernel: Kernel of the RKHS that holds the expected reward.
        horizon: T, the number of pulls to come.
        noise_std: Sub-Gaussian constant R of the noise, reward units.
        norm_bound: Ψ, bound on the RKHS norm; one number, or one per batch row.
        delta: Failure probability of the bounds.
        width: w, multiplies the standard deviation; by default `FixedDesign`, Ψ + (R/√λ) √(2 log(A B/δ)) for B batches.
        regularization: λ; noise_std² by default.
        max_batch_size: Most picks of one `ask`; a longer batch is asked for in parts.
        prior_mean: A number, or `"estimate"`.
        memory_budget: Bytes for cached kernel columns.

    Guarantee: regret O*(√(T γ_T)) with probability 1 − δ, and the best arm is never discarded, for a fixed f of RKHS norm ≤ Ψ
    under the default width and a prior mean of 0; pulls that were not asked for must not have been chosen by the rewards of
    their batch. The width is the paper's, whose proof uses a single one-sided bound per arm and batch: the upper one of the
    best arm and the lower ones of the others. Cost: O(A u) per distinct arm, and O(A²) per pick up to 1,024 arms.
    Source: Li & Scarlett 2022, "Gaussian process bandit optimization with few batches", Alg. 1, Thm 1.
    """
    lam = regularization_of(noise_std, regularization)
    # Values that are not whole are refused by the policy below.
    batches = len(batch_lengths(horizon)) if is_whole(horizon) else 1
    confidence = FixedDesign(noise_std, norm_bound, delta, lam, statements=batches) if width is None else width
    engine = Composed(kernel, noise_std, confidence, lam, prior_mean=prior_mean, memory_budget=memory_budget)
    return BatchedPureExploration(engine, horizon, max_batch_size)
