"""BPE: a few long batches of pure exploration, with elimination of arms between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import gpytorch
import torch
from torch import Tensor

from torchbandits.arms import Lookahead
from torchbandits.batching import Meter
from torchbandits.checks import check_whole, explains_keywords, is_whole, regularization_of
from torchbandits.gradients import without_gradients
from torchbandits.policies.composed import Composed
from torchbandits.policies.elimination import Batches, EliminationState, begin, filled, learn, remaining_picks
from torchbandits.policies.phased import LATER, Phased, preference
from torchbandits.types import Arms, Evidence, Generators, Pulls, Selection
from torchbandits.widths import FixedDesign, Width

# Picks by variance spread over all arms. If all arms are leaders, a pick costs one pass over their covariance.
_LEADERS = 1024


def batch_lengths(horizon: int, delay: int = 0) -> tuple[int, ...]:
    """The batch lengths N_1 + u, N_2 + u, … with N_i = ⌈√(T N_{i−1})⌉, N_0 = 1 and the delay u, the last one cut so that they
    add up to the horizon T."""
    lengths, last, left = [], 1, horizon
    while left:
        last = math.isqrt(horizon * last - 1) + 1
        lengths.append(min(last + delay, left))
        left -= lengths[-1]
    return tuple(lengths)


@dataclass(frozen=True, repr=False)
class BatchedPureExploration(Phased[EliminationState]):
    """A policy that picks the largest variance among survivors and eliminates arms between batches; see `bpe`.

    Args:
        max_batch_size: Most picks of one selection.
        delay: Picks that are added to each batch, and rewards that its end does not wait for; None for none.
    """

    max_batch_size: int | None = None
    delay: int | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        Phased.__post_init__(self)
        check_whole("max_batch_size", self.max_batch_size, otherwise="for the whole batch")
        check_whole("delay", self.delay, otherwise="to wait for every reward")

    @property
    def most_picks(self) -> int | None:
        """The most picks of one `select`: `max_batch_size`."""
        return self.max_batch_size

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the batches, which add up to the horizon."""
        return batch_lengths(self.horizon, self.delay or 0)

    @property
    def batches(self) -> Batches:
        """The lengths, and how many rewards the end of a batch does not wait for."""
        return Batches(self.lengths, self.delay or 0)

    @without_gradients
    def init(self, arms: Arms, generators: Generators, batch_shape: torch.Size) -> EliminationState:
        """Make a fresh state, in which all arms are alive. Cost O(A (d + log A))."""
        return begin(self, arms, generators, batch_shape, self.batches)

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
        asked = {"limit": limit, "available": available, "exactly": exactly}
        return remaining_picks(self, state, self.batches, self.max_batch_size, _largest_variance, asked)

    @without_gradients
    def update(self, state: EliminationState, pulls: Pulls) -> EliminationState:
        """Learn the pulls. Pulls of survivors count towards the batch, and the last of them ends it. Cost O(A u) per distinct
        arm, and a sweep over the arms where a batch ends."""
        return learn(self, state, self.batches, pulls)

    @without_gradients
    def bounds(self, state: EliminationState) -> tuple[Tensor, Tensor]:
        """The bounds of the last finished batch. Bounds read at every pull within a batch would need a wider union bound."""
        survivors = state.survivors
        return survivors.upper, survivors.lower


def _largest_variance(state: EliminationState, candidates: Tensor, room: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
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
    return filled(index, candidates.byte().argmax(dim=-1), room), ()


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
    delay: int | None = None,
    prior_mean: float | str = 0.0,
    memory_budget: int | None = None,
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

    Rewards may be late: `ask(more=)` explores on meanwhile, and what is told after a batch has ended counts towards the next.
    With `delay` u, batches have u more picks each, and a batch ends once all of them have been made and all but u of their
    rewards are known. If a pick is made at every step and a reward comes at most u steps after its pick, it then knows the
    rewards of its first N_i picks at least. The picks that are still open stay so; `forget` them to be asked for a whole batch
    again.

    Args:
        kernel: Kernel of the RKHS that holds the expected reward.
        horizon: T, the number of pulls to come.
        noise_std: Sub-Gaussian constant R of the noise, reward units.
        norm_bound: Ψ, bound on the RKHS norm; one number, or one per batch row.
        delta: Failure probability of the bounds.
        width: w, multiplies the standard deviation; by default `FixedDesign`, Ψ + (R/√λ) √(2 log(A B/δ)) for B batches.
        regularization: λ; noise_std² by default.
        max_batch_size: Most picks of one `ask`; a longer batch is asked for in parts.
        delay: u, steps within which a reward comes with high probability; None to wait for every reward. For delays with mean m
            and sub-Gaussian constant s, m + s √(2 log(3T/2δ)).
        prior_mean: A number, or `"estimate"`.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, on a GPU half of its free memory.

    Guarantee: regret O*(√(T γ_T)) with probability 1 − δ, and the best arm is never discarded, for a fixed f of RKHS norm ≤ Ψ
    under the default width and a prior mean of 0; pulls that were not asked for must not have been chosen by the rewards of
    their batch. The width is the paper's, whose proof uses a single one-sided bound per arm and batch: the upper one of the
    best arm and the lower ones of the others. With `delay`, and if rewards do not decide when they come, the best arm is never
    discarded however late they are, and the regret is Õ(√(T γ_T) + u) if a pick is made at every step and its reward comes
    within u steps. Cost: O(A u) per distinct arm, and O(A²) per pick up to 1,024 arms.
    Source: Li & Scarlett 2022, "Gaussian process bandit optimization with few batches", Alg. 1, Thm 1; `delay` is BPE-Delay of
    Vakili et al. 2023, by its introduction and its authors' code.
    """
    lam = regularization_of(noise_std, regularization)
    # Values that are not whole are refused by the policy below.
    known = is_whole(horizon) and (delay is None or is_whole(delay))
    batches = len(batch_lengths(horizon, delay or 0)) if known else 1
    confidence = FixedDesign(noise_std, norm_bound, delta, lam, statements=batches) if width is None else width
    engine = Composed(kernel, noise_std, confidence, lam, prior_mean=prior_mean, memory_budget=memory_budget)
    return BatchedPureExploration(engine, horizon, max_batch_size, delay)
