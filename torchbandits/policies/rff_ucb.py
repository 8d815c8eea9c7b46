"""RFF-UCB: GP-UCB on random Fourier features, the baseline that shows variance starvation."""

from __future__ import annotations

import gpytorch
from torch import Tensor

from torchbandits.checks import explains_keywords, regularization_of
from torchbandits.embeddings import RandomFourier
from torchbandits.policies.composed import Composed
from torchbandits.starts import Start
from torchbandits.widths import IGP, Width


@explains_keywords
def rff_ucb(
    kernel: gpytorch.kernels.Kernel,
    *,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    num_features: int = 1024,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
) -> Composed:
    """The arm with the highest upper bound under Bayesian linear regression on random Fourier features.

    Args:
        kernel: RBF, Matérn or Tanimoto kernel, scaled or not.
        noise_std: Sub-Gaussian constant of the noise, reward units.
        norm_bound: Bound on the RKHS norm; one number, or one per batch row.
        delta: Failure probability of the bounds.
        num_features: m, an even number of features, which are drawn once per batch row.
        width: Multiplier of the posterior standard deviation; `IGP` by default.
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the argmax of the prior.
        memory_budget: Bytes for the features of the arms; by default 2 GiB, or half of the free memory on a GPU.

    Raises:
        UnsupportedError: For a kernel whose spectrum is not known.
        ArgumentError: If the features of the arms exceed the memory budget. The message names the largest number that fits.

    Guarantee: none; variances starve once the pulls outnumber the features. Cost: O(A m + m²) per step.
    Source: Rahimi & Recht 2007 for the features; Tripp et al. 2023 for those of the Tanimoto kernel.
    """
    lam = regularization_of(noise_std, regularization)
    return Composed(
        kernel,
        noise_std,
        IGP(noise_std, norm_bound, delta, lam) if width is None else width,
        lam,
        features=RandomFourier(num_features),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
    )
