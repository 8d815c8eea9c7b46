"""SOFUL: OFUL with a frequent-directions sketch of V."""

from __future__ import annotations

from torch import Tensor

from torchbandits.checks import explains_keywords
from torchbandits.embeddings import Identity, linear_kernel
from torchbandits.memory import FrequentDirections
from torchbandits.policies.composed import Composed
from torchbandits.starts import Start
from torchbandits.widths import SketchedOFUL, Width


@explains_keywords
def soful(
    *,
    sketch_size: int,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    regularization: float = 1.0,
    width: Width | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
) -> Composed:
    r"""SOFUL: LinUCB with a sketch S of m to 2m rows in place of the d x d matrix V, and a width that accounts for its error.

    .. math:: \hat V = S^T S + \lambda I, \quad \hat\theta = \hat V^{-1} \sum_s y_s x_s, \quad
              x_{t+1} = \arg\max_x x^T \hat\theta_t + w_t \sqrt{\lambda x^T \hat V_t^{-1} x}

    While the pulled arms span at most m dimensions, the sketch is exact and the policy is LinUCB. After that, ε = ρ/λ grows
    with the pulls along the omitted directions, and so does the width. Several pulls of an arm in one tell are one row of the
    sketch. `Report.information_gain` is that of the sketch, and may decrease.

    Args:
        sketch_size: m, the minimum number of rows of a full sketch.
        noise_std: Sub-Gaussian constant R of the noise, reward units.
        norm_bound: S, bound on |θ|; one number, or one per batch row.
        delta: Failure probability of the bounds.
        regularization: λ; 1 by default.
        width: Multiplier of the posterior standard deviation; `SketchedOFUL` by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the longest arm.
        memory_budget: Bytes for features of the arms; without effect, since none are stored.

    Guarantee: regret O((1 + ε)^(3/2) d √T) up to logarithms with probability 1 − δ, where rewards are θᵀx, |θ| ≤ S. The bound
    grows with ε, which has no limit. Cost: O(A d + m² d) per step and O(m d) memory for the sketch; the distinct arms are kept
    as in all policies.
    Source: Kuzborskij et al. 2019; Ghashami et al. 2016 for the sketch.
    """
    return Composed(
        linear_kernel(),
        noise_std,
        SketchedOFUL(noise_std, norm_bound, delta, regularization) if width is None else width,
        regularization,
        memory=FrequentDirections(sketch_size),
        features=Identity(),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
    )
