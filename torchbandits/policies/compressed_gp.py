"""CUB and its variants: an exact posterior that learns informative actions only."""

from __future__ import annotations

import math

import gpytorch

from torchbandits.checks import check_regularization, explains_keywords, is_finite, regularization_of
from torchbandits.errors import require
from torchbandits.memory import EntropyThreshold
from torchbandits.policies.composed import Composed
from torchbandits.scores import named_score
from torchbandits.starts import Start, Uniform
from torchbandits.widths import Srinivas, Width

# Leverage of the default threshold: pulls that would shrink the variance by less than about a tenth are dropped.
_LEAST_LEVERAGE = 0.1


@explains_keywords
def compressed_gp(
    kernel: gpytorch.kernels.Kernel,
    *,
    noise_std: float = 0.01,
    acquisition: str = "ucb",
    entropy_threshold: float | None = None,
    margin: float | None = None,
    delta: float = 1e-4,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
    refit_every: int | None = None,
) -> Composed:
    r"""Compressed GP-UCB (CUB), EI or PI: learn a pull only if the entropy of its reward is above a threshold.

    .. math:: \text{keep } (x_t, y_t) \iff \tfrac12 \log(2\pi e (\lambda + \sigma_D^2(x_t))) > \epsilon

    A dropped pull takes neither memory nor later computing time, so the size of the posterior is bounded. Variances below the
    threshold no longer shrink, so that EI without a margin can repeat its incumbent forever; a positive margin or a lower
    threshold avoids this.

    Args:
        kernel: Prior covariance of the rewards.
        noise_std: Standard deviation of the noise, reward units.
        acquisition: `"ucb"`, `"ei"` (expected improvement) or `"pi"` (probability of improvement), both over the highest
            posterior mean of the arms.
        entropy_threshold: ε, nats. By default pulls are kept whose leverage (variance / λ) exceeds 0.1.
        margin: Level that an improvement must exceed, reward units; 0 for EI and `noise_std` for PI by default.
        delta: Failure probability of the bounds.
        width: Multiplier of the posterior standard deviation; `Srinivas(delta)` by default.
        regularization: λ, which is also the noise variance of the entropy test; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default 2^d arms drawn uniformly.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.
        refit_every: Refit the kernel (`Bandit.fit_kernel_`) each time the number of pulls passes a multiple of this number. By
            default the kernel is never refitted, because the theory assumes a known kernel.

    Raises:
        ArgumentError: If the threshold keeps every pull (ε ≤ ½ log(2πeλ)). The message names this limit.

    Guarantee: none at the defaults. The theorem, for UCB and EI, adds a term of order √ε T to the regret of GP-UCB. This term
    is linear in T and undefined for ε < 0; the default ε is below 0 for λ < 0.0532. With a threshold above ½ log(2πe(λ + κ²)),
    where κ² is the largest prior variance, no pull is kept, and the regret is linear. The dictionary stops growing for every ε.
    Cost: O(A u) for a pull that is kept, O(A) for one that is dropped. Source: Bedi et al. 2020, Alg. 1, Thm 1–2.
    """
    lam = regularization_of(noise_std, regularization)
    check_regularization(lam)
    least = 0.5 * math.log(2 * math.pi * math.e * lam)
    threshold = least + 0.5 * math.log1p(_LEAST_LEVERAGE) if entropy_threshold is None else entropy_threshold
    require(
        is_finite(threshold) and threshold > least,
        f"entropy_threshold={threshold} keeps every pull: with λ = {lam:g} it must be above ½ log(2πeλ) = {least:.6g}.",
    )
    return Composed(
        kernel,
        noise_std,
        Srinivas(delta) if width is None else width,
        lam,
        memory=EntropyThreshold(threshold),
        score=named_score(acquisition, margin, noise_std),
        prior_mean=prior_mean,
        initial=Uniform() if initial is None else initial,
        memory_budget=memory_budget,
        refit_every=refit_every,
    )
