"""LSE: exact posterior, the arm whose position above or below a level is most uncertain."""

from __future__ import annotations

import gpytorch

from torchbandits.batching import FixedSize
from torchbandits.checks import explains_keywords, regularization_of
from torchbandits.policies.composed import Composed
from torchbandits.scores import Straddle
from torchbandits.starts import Start
from torchbandits.widths import Srinivas, Width


@explains_keywords
def lse(
    kernel: gpytorch.kernels.Kernel,
    *,
    level: float,
    noise_std: float = 0.01,
    delta: float = 1e-4,
    batch_size: int = 1,
    max_pulls: int | None = None,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
    refit_every: int | None = None,
) -> Composed:
    r"""Level-set estimation: pull the arm that is most ambiguous, to learn which arms are above a level and which below.

    .. math:: x_{t+1} = \arg\max_x w_t \sigma_t(x) - |\mu_t(x) - h|

    The policy does not seek large rewards. `Bandit.level_set(level)` returns the sets, and the stopping rule
    `stopping.LevelSetKnown(level, epsilon)` ends the run once they are known.

    Args:
        kernel: Prior covariance of the rewards.
        level: h, reward units.
        noise_std: Standard deviation of the noise, reward units.
        delta: Failure probability of the bounds.
        batch_size: Number of picks per `ask`, each with variances conditioned on the picks before it.
        max_pulls: Cap on the picks of one arm in a batch.
        width: Multiplier of the posterior standard deviation; `Srinivas(delta)` by default.
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the argmax of the prior.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.
        refit_every: Refit the kernel (`Bandit.fit_kernel_`) each time the number of pulls passes a multiple of this number. By
            default the kernel is never refitted, because the theory assumes a known kernel.

    Guarantee: none for regret, which it does not minimise. The bounds hold for all arms and steps with probability 1 − δ if the
    rewards are drawn from the prior, so that `LevelSetKnown` stops at a classification that is correct up to ε. The paper
    intersects the confidence intervals of all steps and bounds the number of pulls needed. Here only the intervals of the
    current step are used; the score is otherwise the paper's ambiguity, and the bound on the number of pulls is not proved.
    Cost: O(A u) per step, u distinct arms.
    Source: Gotovos et al. 2013, Alg. 1; Bryan et al. 2005 for the score.
    """
    return Composed(
        kernel,
        noise_std,
        Srinivas(delta) if width is None else width,
        regularization_of(noise_std, regularization),
        score=Straddle(level),
        batch_rule=FixedSize(size=batch_size, max_pulls=max_pulls),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
        refit_every=refit_every,
    )
