"""BKB: a dictionary sampled by ridge leverage scores after every step."""

from __future__ import annotations

import gpytorch
from torch import Tensor

from torchbandits.checks import explains_keywords, regularization_of
from torchbandits.memory import LeverageSampling
from torchbandits.policies.composed import Composed
from torchbandits.scores import named_score
from torchbandits.starts import Start
from torchbandits.widths import PracticalBKB, Width


@explains_keywords
def bkb(
    kernel: gpytorch.kernels.Kernel,
    *,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    oversampling: float = 2.0,
    acquisition: str = "ucb",
    margin: float | None = None,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
    refit_every: int | None = None,
) -> Composed:
    r"""BKB: kernel UCB on a Nyström dictionary of about the effective dimension, redrawn after each pull.

    The default width is that of the paper's experiments, which explores for tens of thousands of pulls. For shorter runs pass
    `width=tb.widths.Constant(2.0)`, as is common in practice.

    .. math:: P(i \in S) = \min(1, n_i\,\bar q\,lev_t(x_i))

    Args:
        kernel: Kernel of the RKHS that holds the expected reward.
        noise_std: Sub-Gaussian constant ξ of the noise, reward units.
        norm_bound: F, bound on the RKHS norm; one number, or one per batch row.
        delta: Failure probability of the bounds.
        oversampling: q̄ ≥ 1; 2 in practice, 6α log(4T/δ)/ε² in theory.
        acquisition: `"ucb"`; or `"ei"`, `"pi"`, the variants that CUB is compared with (without a proof).
        margin: Level that an improvement must exceed, reward units; 0 for EI and `noise_std` for PI by default.
        width: Multiplier of the posterior standard deviation; `PracticalBKB` by default, `widths.BKB` for the theorem.
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the argmax of the prior.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.
        refit_every: Refit the kernel (`Bandit.fit_kernel_`) each time the number of pulls passes a multiple of this number. By
            default the kernel is never refitted, because the theory assumes a known kernel.

    Guarantee: no regret with m = O(d_eff) dictionary points, with probability 1 − 2δ (accurate variances and a valid bound,
    each with probability 1 − δ), under the theory width and oversampling. None at the defaults, which are those of the
    authors' code. Cost: O(A m² + u m²) per step.
    Source: Calandriello et al. 2019, Alg. 1, Thm 1–2, Corollary 3; code: luigicarratino/batch-bkb, commit 3c23928.
    """
    lam = regularization_of(noise_std, regularization)
    return Composed(
        kernel,
        noise_std,
        PracticalBKB(noise_std, norm_bound, delta, lam) if width is None else width,
        lam,
        memory=LeverageSampling(oversampling),
        score=named_score(acquisition, margin, noise_std),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
        refit_every=refit_every,
    )
