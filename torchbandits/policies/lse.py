"""LSE: exact posterior, the arm that the bounds leave most undecided against a level."""

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

    It does not seek large rewards. `Bandit.level_set(level)` has the sets, `stopping.LevelSetKnown(level, epsilon)` ends it.

    Args:
        kernel: Prior covariance of the rewards.
        level: h, reward units.
        noise_std: Standard deviation of the noise, reward units.
        delta: Failure probability of the bounds.
        batch_size: Picks of one `ask`, each with the variances given those before it.
        max_pulls: Cap on the picks of one arm in a batch.
        width: Multiplies the standard deviation; `Srinivas(delta)` by default.
        regularization: λ; noise_std² by default.
        prior_mean: A number, or `"estimate"`.
        initial: First picks; the argmax of the prior by default.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, on a GPU half of its free memory.
        refit_every: Fit the kernel whenever the pulls told pass a multiple of this (`Bandit.fit_kernel_`). Never by default:
            the theory assumes a known kernel.

    Guarantee: none for regret, which it does not minimise. The bounds hold for all arms and steps with probability 1 − δ if the
    rewards are drawn from the prior, so that `LevelSetKnown` stops at a classification that is right up to ε. The paper
    intersects the confidence intervals of all steps, and bounds the pulls that this takes; here the intervals are those of now,
    the score is otherwise its ambiguity, and the bound on the pulls is not proved. Cost: O(A u) per step, u distinct arms.
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
