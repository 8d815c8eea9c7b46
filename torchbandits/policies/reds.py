"""REDS: batches of random exploration, with elimination of arms between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import gpytorch
import torch
from torch import Tensor

from torchbandits.checks import check_whole, explains_keywords, is_whole, positive, regularization_of
from torchbandits.gradients import without_gradients
from torchbandits.policies.base import LATER
from torchbandits.policies.composed import Composed
from torchbandits.policies.elimination import Batches, EliminationState, begin, learn, remaining_picks
from torchbandits.policies.phased import Phased
from torchbandits.starts import draw_uniform
from torchbandits.streams import copies_of
from torchbandits.types import Arms, Evidence, Generators, Pulls, Selection
from torchbandits.widths import FixedDesign, Width


def doubling_lengths(horizon: int, first: int | None) -> tuple[int, ...]:
    """The batch lengths N, 2N, 4N, …, with the last one shortened so that they add up to the horizon T; ⌈√T⌉ is the first one
    if none is given."""
    lengths: list[int] = []
    first, left = math.isqrt(horizon - 1) + 1 if first is None else first, horizon
    while left:
        lengths.append(min(first << len(lengths), left))
        left -= lengths[-1]
    return tuple(lengths)


@dataclass(frozen=True, repr=False)
class RandomExploration(Phased[EliminationState]):
    """A policy that draws survivors uniformly and eliminates arms between batches; see `reds`.

    Args:
        max_batch_size: Maximum number of picks of one selection.
        first_batch: Length of the first batch; each later batch is twice as long as the one before.
        anew: Whether the policy restarts from scratch after the horizon; None for no.
    """

    max_batch_size: int | None = None
    first_batch: int | None = None
    anew: bool | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        Phased.__post_init__(self)
        check_whole("max_batch_size", self.max_batch_size, otherwise="for the whole batch")
        check_whole("first_batch", self.first_batch, otherwise="for ⌈√T⌉")

    @property
    def most_picks(self) -> int | None:
        """The maximum number of picks of one `select`: `max_batch_size`."""
        return self.max_batch_size

    @property
    def one_function(self) -> bool:
        """Whether f is the same function at all times: False under a drift."""
        return not self.anew

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the batches, which add up to the horizon."""
        return doubling_lengths(self.horizon, self.first_batch)

    @without_gradients
    def init(self, arms: Arms, generators: Generators, batch_shape: torch.Size) -> EliminationState:
        """Make a fresh state, in which all arms are alive. Cost O(A (d + log A))."""
        return begin(self, arms, generators, batch_shape, Batches(self.lengths, anew=bool(self.anew)))

    @without_gradients
    def select(
        self,
        state: EliminationState,
        *,
        limit: Tensor | None = None,
        available: Tensor | None = None,
        exactly: int | None = None,
    ) -> tuple[Selection, Evidence]:
        """Draw the remaining picks of the batch. Cost O(A + q)."""
        return remaining_picks(self, state, _drawn, limit, available, exactly)

    @without_gradients
    def update(self, state: EliminationState, pulls: Pulls) -> EliminationState:
        """Learn the pulls. Pulls of survivors count towards the batch, and the last of them ends it. Cost O(A u) per distinct
        arm, and a sweep over the arms where a batch ends."""
        return learn(self, state, pulls)

    @without_gradients
    def bounds(self, state: EliminationState) -> tuple[Tensor, Tensor]:
        """The bounds of the last finished batch. Bounds read at every pull within a batch would need a wider union bound."""
        return state.survivors.upper, state.survivors.lower


def _drawn(state: EliminationState, candidates: Tensor, room: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Uniform draws with replacement, `batch_shape x q` (−1 where padded), and the states of the generators after them."""
    sizes, twins = room.reshape(-1).tolist(), copies_of(state.generators)
    index = draw_uniform(state.rows.num_arms, sizes, twins, candidates.reshape(-1, state.rows.num_arms))
    index = index.to(candidates.device).reshape(*candidates.shape[:-1], -1)
    return index, tuple(twin.get_state() for twin in twins)


@explains_keywords
def reds(
    kernel: gpytorch.kernels.Kernel,
    *,
    horizon: int,
    first_batch: int | None = None,
    drift: float | None = None,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    width: Width | None = None,
    regularization: float | None = None,
    max_batch_size: int | None = None,
    prior_mean: float | str = 0.0,
    memory_budget: int | None = None,
) -> RandomExploration:
    r"""REDS: random exploration with domain shrinking, batches of uniform draws with elimination of arms between them.

    .. math:: N_i = 2 N_{i-1}, \quad x \sim \text{uniform on alive}, \quad
              \text{discard } x \text{ if } \mu_i(x) + w \sigma_i(x) < \max_{\text{alive}} (\mu_i - w \sigma_i)

    where the last batch ends at T. Mean and standard deviation are computed only from the pulls of the current batch. REDS is
    `bpe` with uniform draws in place of the largest variance: a pick costs O(1) instead of a pass over the arms, and the
    variance decreases at the same rate up to a constant. Told and forgotten pulls, and picks beyond the batch or after T pulls,
    are treated as in `bpe`.

    With `drift`, f may change during the run. A batch then estimates the average of f over its pulls: because the draws do not
    depend on time, the changes of f act as additional noise with sub-Gaussian constant D. After T pulls all arms are restored,
    all rewards are forgotten, and the next T pulls begin. The certificate is about the average over the last batch.

    Args:
        kernel: Kernel of the RKHS that holds the expected reward.
        horizon: T, the number of pulls to come.
        first_batch: N_1; ⌈√T⌉ by default, which is this package's choice.
        drift: D, the largest change of the expected reward of an arm during a batch, reward units; never more than
            2 Ψ √k(x, x). None for a function that does not change.
        noise_std: Sub-Gaussian constant R of the noise, reward units.
        norm_bound: Ψ, bound on the RKHS norm; one number, or one per batch row.
        delta: Failure probability of the bounds; under `drift`, of the bounds of each T pulls.
        width: w, the multiplier of the posterior standard deviation; by default `FixedDesign`, Ψ + (R/√λ) √(2 log(A B/δ)) for
            B batches, with R replaced by √(R² + D²) under `drift`.
        regularization: λ; noise_std² by default.
        max_batch_size: Maximum number of picks per `ask`; a longer batch is asked for in parts.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.

    Guarantee: the best arm is never discarded, with probability 1 − δ for a fixed f of RKHS norm ≤ Ψ under the default
    width and a prior mean of 0, since no pull of a batch is chosen by the batch's rewards. The paper proves regret Õ(√(T
    γ_T)), and without noise Õ(max(T^((3−β)/2), 1)) for eigenvalues that decay as j^(−β), if the first batch is as long as
    its concentration bound requires. That length is not computed here, because only the abstract of the paper was
    available. With `drift`, no arm is discarded whose average over the batch is the best of the survivors, if f does not
    react to the pulls, all survivors are on offer, and no reward is told after the end of its batch. The page on guarantees
    has the proof, which is this package's own; it does not bound the regret. Cost: O(A u) per distinct arm, O(1) per pick
    and O(A) per ask. Source: Salgia, Vakili & Zhao 2024 (arXiv 2310.15351), by its abstract and summaries; random order
    against drift is the idea of Iwazaki & Takeno 2025 (arXiv 2410.16052).
    """
    lam = regularization_of(noise_std, regularization)
    # The constructor of the policy below raises the error for values that are not whole numbers.
    known = is_whole(horizon) and (first_batch is None or is_whole(first_batch))
    batches = len(doubling_lengths(horizon, first_batch)) if known else 1
    scatter = noise_std if drift is None else math.hypot(noise_std, positive("drift", drift))
    confidence = FixedDesign(scatter, norm_bound, delta, lam, statements=batches) if width is None else width
    engine = Composed(kernel, noise_std, confidence, lam, prior_mean=prior_mean, memory_budget=memory_budget)
    return RandomExploration(engine, horizon, max_batch_size, first_batch, None if drift is None else True)
