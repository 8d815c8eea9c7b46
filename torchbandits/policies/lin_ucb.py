"""LinUCB as OFUL: ridge regression on the arms' own features."""

from __future__ import annotations

from torch import Tensor

from torchbandits.checks import explains_keywords
from torchbandits.embeddings import Identity, linear_kernel
from torchbandits.policies.composed import Composed
from torchbandits.starts import Start
from torchbandits.widths import SelfNormalized, Width


@explains_keywords
def lin_ucb(
    *,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    regularization: float = 1.0,
    width: Width | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
) -> Composed:
    r"""LinUCB (OFUL): the arm with the highest upper bound for rewards θᵀx, by ridge regression on the features themselves.

    .. math:: x_{t+1} = \arg\max_x x^T \hat\theta_t + w_t \sqrt{\lambda x^T V_t^{-1} x}, \quad
              V_t = \sum_s x_s x_s^T + \lambda I

    There is no intercept: append a constant feature to have one. The upper bound of an arm of zeros is always `prior_mean`.

    Args:
        noise_std: Sub-Gaussian constant R of the noise, reward units.
        norm_bound: S, bound on |θ|; one number, or one per batch row.
        delta: Failure probability of the bounds.
        regularization: λ; 1 by default.
        width: Multiplier of the posterior standard deviation; `SelfNormalized` by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the longest arm.
        memory_budget: Bytes for features of the arms; without effect, since none are stored.

    Guarantee: regret O(d √T log T) with probability 1 − δ if rewards are θᵀx in [−1, 1], |θ| ≤ S, and λ ≥ max(1, |x|²).
    Cost: O(A d + d²) per step. Source: Abbasi-Yadkori et al. 2011, Thm 2 (the width) and 3 (the regret).
    """
    return Composed(
        linear_kernel(),
        noise_std,
        SelfNormalized(noise_std, norm_bound, delta, regularization) if width is None else width,
        regularization,
        features=Identity(),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
    )
