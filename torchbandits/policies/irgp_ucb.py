"""IRGP-UCB: exact posterior, one arm per step, a random width that does not grow."""

from __future__ import annotations

import gpytorch

from torchbandits.checks import explains_keywords, regularization_of
from torchbandits.policies.composed import Composed
from torchbandits.starts import Start
from torchbandits.widths import ShiftedExponential, Width


@explains_keywords
def irgp_ucb(
    kernel: gpytorch.kernels.Kernel,
    *,
    noise_std: float = 0.01,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
    refit_every: int | None = None,
) -> Composed:
    r"""IRGP-UCB: the highest upper confidence bound under a width that is drawn for every ask.

    .. math:: x_{t+1} = \arg\max_x \mu_t(x) + \sqrt{\zeta_{t+1}}\,\sigma_t(x), \quad
              \zeta \sim 2 \log(A/2) + \mathrm{Exp}(\text{mean } 2)

    Args:
        kernel: Prior covariance of the rewards.
        noise_std: Standard deviation of the noise, reward units.
        width: Multiplier of the posterior standard deviation; `ShiftedExponential()` by default. All picks of one `ask` share
            one draw.
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the argmax of the prior.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.
        refit_every: Refit the kernel (`Bandit.fit_kernel_`) each time the number of pulls passes a multiple of this number. By
            default the kernel is never refitted, because the theory assumes a known kernel.

    Guarantee: expected regret O(√(T γ_T log A)) when the rewards are drawn from the prior, with a width that does not grow with
    T. The certificate in a report is not a valid bound, because its width is the root mean square of the draws. Cost: O(A u)
    per step, u distinct arms. Source: Takeno et al. 2023 (arXiv 2302.01511), 2024 (arXiv 2409.00979).
    """
    return Composed(
        kernel,
        noise_std,
        ShiftedExponential() if width is None else width,
        regularization_of(noise_std, regularization),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
        refit_every=refit_every,
    )
