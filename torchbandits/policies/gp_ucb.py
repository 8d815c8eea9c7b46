"""GP-UCB: exact posterior, one arm per step, Srinivas' width. With EI or PI it is the dense baseline of CUB's comparison."""

from __future__ import annotations

import gpytorch

from torchbandits.checks import explains_keywords, regularization_of
from torchbandits.policies.composed import Composed
from torchbandits.scores import named_score
from torchbandits.starts import Start
from torchbandits.widths import Srinivas, Width


@explains_keywords
def gp_ucb(
    kernel: gpytorch.kernels.Kernel,
    *,
    noise_std: float = 0.01,
    delta: float = 1e-4,
    acquisition: str = "ucb",
    margin: float | None = None,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
    refit_every: int | None = None,
) -> Composed:
    r"""GP-UCB: the arm with the highest upper confidence bound under the exact posterior.

    .. math:: x_{t+1} = \arg\max_x \mu_t(x) + \sqrt{\beta_{t+1}}\,\sigma_t(x)

    Args:
        kernel: Prior covariance of the rewards.
        noise_std: Standard deviation of the noise, reward units.
        delta: Failure probability of the bounds.
        acquisition: `"ucb"`; or `"ei"`, `"pi"`, the improvement over the highest posterior mean (without a proof).
        margin: Level that an improvement must exceed, reward units; 0 for EI and `noise_std` for PI by default.
        width: Multiplier of the posterior standard deviation; `Srinivas(delta)` by default.
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the argmax of the prior.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.
        refit_every: Refit the kernel (`Bandit.fit_kernel_`) each time the number of pulls passes a multiple of this number. By
            default the kernel is never refitted, because the theory assumes a known kernel.

    Guarantee: regret O(√(T γ_T log(A T))) with probability 1 − δ when the rewards are drawn from the prior and λ is the
    variance of the noise. Cost: O(A u) per step, u distinct arms.
    Source: Srinivas et al. 2010, Alg. 1, Thm 1.
    """
    return Composed(
        kernel,
        noise_std,
        Srinivas(delta) if width is None else width,
        regularization_of(noise_std, regularization),
        score=named_score(acquisition, margin, noise_std),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
        refit_every=refit_every,
    )
