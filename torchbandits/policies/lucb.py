"""LUCB: exact posterior, the critical arm at the boundary between the k best arms and the others."""

from __future__ import annotations

import gpytorch

from torchbandits.batching import FixedSize
from torchbandits.checks import explains_keywords, regularization_of
from torchbandits.policies.composed import Composed
from torchbandits.scores import TopBoundary
from torchbandits.starts import Start
from torchbandits.widths import Srinivas, Width


@explains_keywords
def lucb(
    kernel: gpytorch.kernels.Kernel,
    *,
    k: int = 1,
    noise_std: float = 0.01,
    delta: float = 1e-4,
    batch_size: int = 2,
    max_pulls: int | None = None,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
    refit_every: int | None = None,
) -> Composed:
    r"""LUCB on Gaussian-process bounds: pull the critical arms that keep the k best from being known.

    With J the k arms of the highest posterior mean and c the middle between the lowest mean in J and the highest outside,

    .. math:: x_{t+1} = \arg\max_x w_t \sigma_t(x) - |\mu_t(x) - c|

    is the member of J with the lowest lower bound or the outsider with the highest upper bound, whichever crosses c farther.
    It does not seek large rewards on the way. `Bandit.top_k(k)` has the arms, `stopping.TopKKnown(k, epsilon)` ends it.

    Args:
        kernel: Prior covariance of the rewards.
        k: Number of arms to identify; 1 for the best arm.
        noise_std: Standard deviation of the noise, reward units.
        delta: Failure probability of the bounds.
        batch_size: Picks of one `ask`, each with the variances given those before it. LUCB pulls both critical arms, 2.
        max_pulls: Cap on the picks of one arm in a batch.
        width: Multiplies the standard deviation; `Srinivas(delta)` by default.
        regularization: λ; noise_std² by default.
        prior_mean: A number, or `"estimate"`.
        initial: First picks; the argmax of the prior by default.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, on a GPU half of its free memory.
        refit_every: Fit the kernel whenever the pulls told pass a multiple of this (`Bandit.fit_kernel_`). Never by default:
            the theory assumes a known kernel.

    Guarantee: none for regret. The bounds hold for all arms and steps with probability 1 − δ if the rewards are drawn from the
    prior, so that `TopKKnown` stops at k arms that are the best up to ε; how many pulls that takes is not proved for correlated
    arms. Cost: O(A u) per step, u distinct arms. Source: Kalyanakrishnan et al. 2012 (LUCB1), for independent arms.
    """
    return Composed(
        kernel,
        noise_std,
        Srinivas(delta) if width is None else width,
        regularization_of(noise_std, regularization),
        score=TopBoundary(k),
        batch_rule=FixedSize(size=batch_size, max_pulls=max_pulls),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
        refit_every=refit_every,
    )
