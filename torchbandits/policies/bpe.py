"""BPE: a few long batches of pure exploration, with elimination of arms between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import gpytorch
import torch
from torch import Tensor

from torchbandits.arms import Lookahead
from torchbandits.arms.greedy import largest_variances
from torchbandits.batching import Meter
from torchbandits.checks import check_whole, explains_keywords, is_whole, regularization_of
from torchbandits.gradients import without_gradients
from torchbandits.policies.base import LATER
from torchbandits.policies.composed import Composed
from torchbandits.policies.elimination import Batches, EliminationState, begin, filled, learn, remaining_picks
from torchbandits.policies.phased import Phased, preference
from torchbandits.types import Arms, Evidence, Generators, Pulls, Selection
from torchbandits.widths import FixedDesign, Width

# Picks of the largest variance are spread over all arms. If all arms are leaders, a pick costs one pass over their covariance.
_LEADERS = 1024


def batch_lengths(horizon: int, delay: int = 0) -> tuple[int, ...]:
    """The batch lengths N_1 + u, N_2 + u, … with N_i = ⌈√(T N_{i−1})⌉, N_0 = 1 and the delay u. The last length is shortened so
    that they add up to the horizon T."""
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
        max_batch_size: Maximum number of picks of one selection.
        delay: Number of picks added to each batch, and of rewards that may be missing when it ends; None for none.
    """

    max_batch_size: int | None = None
    delay: int | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        Phased.__post_init__(self)
        check_whole("max_batch_size", self.max_batch_size, otherwise="for the whole batch")
        check_whole("delay", self.delay, otherwise="to wait for every reward")

    @property
    def most_picks(self) -> int | None:
        """The maximum number of picks of one `select`: `max_batch_size`."""
        return self.max_batch_size

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the batches, which add up to the horizon."""
        return batch_lengths(self.horizon, self.delay or 0)

    @without_gradients
    def init(self, arms: Arms, generators: Generators, batch_shape: torch.Size) -> EliminationState:
        """Make a fresh state, in which all arms are alive. Cost O(A (d + log A))."""
        return begin(self, arms, generators, batch_shape, Batches(self.lengths, self.delay or 0))

    @without_gradients
    def select(
        self,
        state: EliminationState,
        *,
        limit: Tensor | None = None,
        available: Tensor | None = None,
        exactly: int | None = None,
    ) -> tuple[Selection, Evidence]:
        """Select the remaining picks of the batch. Cost O(K²) per pick for K survivors up to a thousand; beyond that at least
        O(A) per pick."""
        return remaining_picks(self, state, _largest_variance, limit, available, exactly)

    @without_gradients
    def update(self, state: EliminationState, pulls: Pulls) -> EliminationState:
        """Learn the pulls. Pulls of survivors count towards the batch, and the last of them ends it. Cost O(A u) per distinct
        arm, and a sweep over the arms where a batch ends."""
        return learn(self, state, pulls)

    @without_gradients
    def bounds(self, state: EliminationState) -> tuple[Tensor, Tensor]:
        """The bounds of the last finished batch. Bounds read at every pull within a batch would need a wider union bound."""
        return state.survivors.upper, state.survivors.lower


def _largest_variance(state: EliminationState, candidates: Tensor, room: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Picks of the largest variance given the batch's pulls and pending picks, `batch_shape x q` (−1 where padded), and an
    empty tuple of generator states, because nothing is drawn."""
    inner, pending, counts = state.inner, state.pending_index, state.pending_counts
    counts = torch.where(state.survivors.alive.gather(-1, pending.clamp_min(0)) & (pending >= 0), counts, 0.0)
    many, wanted, first = int(candidates.sum(dim=-1).max()), room, pending[..., :0]
    if many > _LEADERS and not inner.rows.sharded:
        first, room = largest_variances(inner.table, preference(inner), candidates, (pending, counts), room)
        if not bool(room.any()):
            return first, ()
        pending, counts = torch.cat([pending, first], dim=-1), torch.cat([counts, (first >= 0).to(counts.dtype)], dim=-1)
    leaders, width = min(_LEADERS, max(1, many)), torch.ones_like(inner.told)
    # A width of 1 and a nearly constant mean make the score the standard deviation.
    lookahead = Lookahead(inner.table, preference(inner), width, candidates, (pending, counts), None, leaders=leaders)
    index = torch.cat([first, lookahead.pick(Meter(lookahead, math.inf), room)], dim=-1)
    # If the variance of every candidate is zero, all of them tie, and the first one is picked.
    return filled(index, candidates.byte().argmax(dim=-1), wanted), ()


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

    where N_0 = 1 and the last batch ends at T. Mean and standard deviation are computed only from the pulls of the current
    batch. Its picks do not depend on its rewards, so `ask` returns all remaining picks of the batch, and the width w need not
    account for adaptivity.

    Every told pull of a surviving arm counts towards the batch, whether it was asked for or not. Pulls of other arms and
    history (`observe`) enter only the posterior of all pulls, which is `Bandit.posterior`. A forgotten pick is replaced by the
    arm with the largest variance at that time. If no survivor is on offer, the arm on offer with the highest upper bound is
    picked; after T pulls, the survivor with the highest posterior mean. The certificate is that of the last finished batch.

    Rewards may be late: meanwhile `ask(more=)` continues the exploration, and rewards told after a batch has ended count
    towards the next batch. With `delay` u, each batch has u more picks, and it ends once all of them have been made and all but
    u of their rewards are known. If a pick is made at every step and its reward arrives at most u steps later, the batch then
    knows at least the rewards of its first N_i picks. Pending picks stay pending when a batch ends; `forget` them to get a
    whole batch from the next `ask`.

    Args:
        kernel: Kernel of the RKHS that holds the expected reward.
        horizon: T, the number of pulls to come.
        noise_std: Sub-Gaussian constant R of the noise, reward units.
        norm_bound: Ψ, bound on the RKHS norm; one number, or one per batch row.
        delta: Failure probability of the bounds.
        width: w, the multiplier of the posterior standard deviation; by default `FixedDesign`, Ψ + (R/√λ) √(2 log(A B/δ)) for
            B batches.
        regularization: λ; noise_std² by default.
        max_batch_size: Maximum number of picks per `ask`; a longer batch is asked for in parts.
        delay: u, the number of steps within which a reward arrives with high probability; None to wait for every reward. For
            delays with mean m and sub-Gaussian constant s, use m + s √(2 log(3T/2δ)).
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.

    Guarantee: regret O*(√(T γ_T)) with probability 1 − δ, and the best arm is never discarded, for a fixed f of RKHS norm ≤ Ψ
    under the default width and a prior mean of 0; pulls that were not asked for must not have been chosen by the rewards of
    their batch. The width is the paper's, whose proof uses a single one-sided bound per arm and batch: the upper bound of the
    best arm and the lower bounds of the others. With `delay`, if the delays do not depend on the rewards, the best arm is never
    discarded however late the rewards are, and the regret is Õ(√(T γ_T) + u) if a pick is made at every step and its reward
    arrives within u steps. Cost: O(A u) per distinct arm, and O(A²) per pick up to 1,024 arms.
    Source: Li & Scarlett 2022, "Gaussian process bandit optimization with few batches", Alg. 1, Thm 1; `delay` is BPE-Delay of
    Vakili et al. 2023, by its introduction and its authors' code.
    """
    lam = regularization_of(noise_std, regularization)
    # The constructor of the policy below raises the error for values that are not whole numbers.
    known = is_whole(horizon) and (delay is None or is_whole(delay))
    batches = len(batch_lengths(horizon, delay or 0)) if known else 1
    confidence = FixedDesign(noise_std, norm_bound, delta, lam, statements=batches) if width is None else width
    engine = Composed(kernel, noise_std, confidence, lam, prior_mean=prior_mean, memory_budget=memory_budget)
    return BatchedPureExploration(engine, horizon, max_batch_size, delay)
