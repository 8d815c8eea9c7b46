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
    r"""LUCB on Gaussian-process bounds: pull the critical arms, whose bounds leave the set of the k best arms undecided.

    With J the k arms of the highest posterior mean and c the midpoint of the lowest mean in J and the highest mean outside J,

    .. math:: x_{t+1} = \arg\max_x w_t \sigma_t(x) - |\mu_t(x) - c|

    is the member of J with the lowest lower bound or the arm outside J with the highest upper bound, whichever crosses c
    farther. The policy does not seek large rewards on the way. `Bandit.top_k(k)` returns the arms, and the stopping rule
    `stopping.TopKKnown(k, epsilon)` ends the run once they are known.

    Args:
        kernel: Prior covariance of the rewards.
        k: Number of arms to identify; 1 for the best arm.
        noise_std: Standard deviation of the noise, reward units.
        delta: Failure probability of the bounds.
        batch_size: Number of picks per `ask`, each with variances conditioned on the picks before it; by default 2, as many as
            LUCB pulls per round. The second pick need not be LUCB's other critical arm, because the first pick may leave a
            third arm more ambiguous.
        max_pulls: Cap on the picks of one arm in a batch.
        width: Multiplier of the posterior standard deviation; `Srinivas(delta)` by default.
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the argmax of the prior.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.
        refit_every: Refit the kernel (`Bandit.fit_kernel_`) each time the number of pulls passes a multiple of this number. By
            default the kernel is never refitted, because the theory assumes a known kernel.

    Guarantee: none for regret. The bounds hold for all arms and steps with probability 1 − δ if the rewards are drawn from the
    prior, so `TopKKnown` stops at k arms that are the best up to ε. The number of pulls needed is not bounded for correlated
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
