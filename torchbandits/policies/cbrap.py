"""CBRAP: LinUCB on a random projection of the features."""

from __future__ import annotations

from torch import Tensor

from torchbandits.checks import explains_keywords
from torchbandits.embeddings import GaussianProjection, linear_kernel
from torchbandits.policies.composed import Composed
from torchbandits.starts import Start
from torchbandits.widths import SelfNormalized, Width


@explains_keywords
def cbrap(
    *,
    num_features: int,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    regularization: float = 1.0,
    width: Width | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
) -> Composed:
    r"""CBRAP: LinUCB on z(x) = Rᵀx, a projection of the features drawn once, for linear rewards of very many features.

    .. math:: x_{t+1} = \arg\max_x z(x)^T \hat\theta_t + w_t \sqrt{\lambda z(x)^T V_t^{-1} z(x)}, \quad R_{ij} \sim N(0, 1/m)

    The projection keeps xᵀθ within about |x||θ|/√m. This error does not shrink with the number of pulls, and the width, which
    is that of LinUCB, does not cover it.

    Args:
        num_features: m, features of the projection, which is drawn once per batch row.
        noise_std: Sub-Gaussian constant of the noise, reward units.
        norm_bound: Bound on |Rᵀθ|, which is near |θ|; one number, or one per batch row.
        delta: Failure probability of the bounds.
        regularization: λ; 1 by default.
        width: Multiplier of the posterior standard deviation; `SelfNormalized` by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the arm with the longest projection.
        memory_budget: Bytes for the projected features of the arms; by default 2 GiB, or half of the free memory on a GPU.

    Raises:
        ArgumentError: When the bandit is made, if the projected features exceed the memory budget. The message names the
            largest number that fits.

    Guarantee: the regret of LinUCB in m dimensions, plus a term linear in T times the error of the projection.
    Cost: O(A m + m²) per step, O(A m d) once. Source: Yu et al. 2017.
    """
    return Composed(
        linear_kernel(),
        noise_std,
        SelfNormalized(noise_std, norm_bound, delta, regularization) if width is None else width,
        regularization,
        features=GaussianProjection(num_features),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
    )
