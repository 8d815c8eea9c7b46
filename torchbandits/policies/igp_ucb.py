"""IGP-UCB: exact posterior, one arm per step, and the width of Chowdhury & Gopalan for functions of bounded RKHS norm."""

from __future__ import annotations

import gpytorch
from torch import Tensor

from torchbandits.checks import explains_keywords
from torchbandits.policies.composed import Composed
from torchbandits.starts import Start
from torchbandits.widths import IGP, Width


@explains_keywords
def igp_ucb(
    kernel: gpytorch.kernels.Kernel,
    *,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    width: Width | None = None,
    regularization: float = 1.0,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
    refit_every: int | None = None,
) -> Composed:
    r"""IGP-UCB: GP-UCB for a fixed function of bounded RKHS norm.

    .. math:: x_{t+1} = \arg\max_x \mu_t(x) + (B + R\sqrt{2(\gamma_t + 1 + \log(1/\delta))/\lambda})\,\sigma_t(x)

    Args:
        kernel: Kernel of the RKHS that holds the expected reward.
        noise_std: Sub-Gaussian constant R of the noise, reward units.
        norm_bound: B, bound on the RKHS norm; one number, or one per batch row.
        delta: Failure probability of the bounds.
        width: Multiplier of the posterior standard deviation; `IGP` by default.
        regularization: λ; 1 by default, as in the paper.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the argmax of the prior.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.
        refit_every: Refit the kernel (`Bandit.fit_kernel_`) each time the number of pulls passes a multiple of this number. By
            default the kernel is never refitted, because the theory assumes a known kernel.

    Guarantee: regret O(√T (B√γ_T + γ_T)) with probability 1 − δ. Cost: O(A u) per step, u distinct arms.
    Source: Chowdhury & Gopalan 2017, Alg. 1, Thm 3.
    """
    return Composed(
        kernel,
        noise_std,
        IGP(noise_std, norm_bound, delta, regularization) if width is None else width,
        regularization,
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
        refit_every=refit_every,
    )
