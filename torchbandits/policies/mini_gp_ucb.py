"""mini-GP-UCB: exact posterior, few distinct arms, each evaluated many times before the next is chosen."""

from __future__ import annotations

import gpytorch
from torch import Tensor

from torchbandits.batching import Repeat
from torchbandits.checks import explains_keywords, regularization_of
from torchbandits.policies.composed import Composed
from torchbandits.scores import named_score
from torchbandits.starts import Start
from torchbandits.widths import MartingaleMixture, Width


@explains_keywords
def mini_gp_ucb(
    kernel: gpytorch.kernels.Kernel,
    *,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    ratio_threshold: float = 1.1,
    max_batch_size: int = 10_000,
    max_pulls: int | None = None,
    acquisition: str = "ucb",
    margin: float | None = None,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
    refit_every: int | None = None,
) -> Composed:
    r"""mini-GP-UCB: repeat an arm until its variance may have shrunk by a factor of C², then choose again.

    .. math:: x_h = \arg\max_x \mu_{h-1}(x) + w_{h-1}\,\sigma_{h-1}(x), \quad
              n_h = \max(1, \lfloor (C^2 - 1)/lev_{h-1}(x_h) \rfloor) \text{ pulls of } x_h

    Args:
        kernel: Kernel of the RKHS that holds the expected reward.
        noise_std: Sub-Gaussian constant of the noise, reward units.
        norm_bound: Bound on the RKHS norm; one number, or one per batch row.
        delta: Failure probability of the bounds.
        ratio_threshold: C² ≥ 1; 1.1 in the paper's experiments. A larger value means fewer switches.
        max_batch_size: Cap on consecutive pulls of an arm.
        max_pulls: A second cap with the same effect, for consistency with other batch rules.
        acquisition: `"ucb"`; `"ei"` (mini-GP-EI) or `"pi"`.
        margin: Level that an improvement must exceed, reward units; 0 for EI and `noise_std` for PI by default.
        width: Multiplier of the posterior standard deviation; `MartingaleMixture` by default.
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the argmax of the prior.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.
        refit_every: Refit the kernel (`Bandit.fit_kernel_`) each time the number of pulls passes a multiple of this number. By
            default the kernel is never refitted, because the theory assumes a known kernel.

    Guarantee: the regret of GP-UCB up to C for a width that is valid at every step, as the default is; at most
    log det(V/λ)/log((C² + 1)/2) + 1 switches, and therefore u = O(γ_T) distinct arms, unless a cap or `limit` ends repeats
    early (both for UCB; there is no proof for PI). Cost: O(A u) per switch, independent of the number of pulls.
    Source: Calandriello et al. 2022, Alg. 1, Thm 1.
    """
    lam = regularization_of(noise_std, regularization)
    return Composed(
        kernel,
        noise_std,
        MartingaleMixture(noise_std, norm_bound, delta, lam) if width is None else width,
        lam,
        score=named_score(acquisition, margin, noise_std),
        batch_rule=Repeat(ratio_threshold=ratio_threshold, max_batch_size=max_batch_size, max_pulls=max_pulls),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
        refit_every=refit_every,
    )
