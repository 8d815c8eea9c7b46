"""GP-BUCB: exact posterior, batches while the product of the variance ratios stays below C."""

from __future__ import annotations

import gpytorch
from torch import Tensor

from torchbandits.batching import named_rule
from torchbandits.checks import explains_keywords, regularization_of
from torchbandits.policies.composed import Composed
from torchbandits.starts import Start
from torchbandits.widths import IGP, Scaled, Width


@explains_keywords
def gp_bucb(
    kernel: gpytorch.kernels.Kernel,
    *,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    ratio_threshold: float = 2.0,
    batch_rule: str = "product",
    max_batch_size: int | None = None,
    max_pulls: int | None = None,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
    refit_every: int | None = None,
) -> Composed:
    r"""GP-BUCB: hallucinate the mean as the reward of each pick, until variances may have shrunk by a factor of C.

    .. math:: x_s = \arg\max_x \mu_{fb}(x) + C\,w_{fb}\,\sigma_{s-1}(x), \quad \prod_s (1 + lev_{s-1}(x_s)) \le C

    Args:
        kernel: Prior covariance of the rewards.
        noise_std: Sub-Gaussian constant of the noise, reward units.
        norm_bound: Bound on the RKHS norm; one number, or one per batch row.
        delta: Failure probability of the bounds.
        ratio_threshold: C ≥ 1, the variance ratio at which a batch ends; it multiplies the width.
        batch_rule: `"product"` (the paper), `"global"` (the improved GP-BUCB of the BBKB paper), or another rule's name.
        max_batch_size: Cap on the picks of a batch.
        max_pulls: Cap on the picks of one arm in a batch.
        width: Multiplier of the posterior standard deviation; C times `IGP` by default.
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the argmax of the prior.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.
        refit_every: Refit the kernel (`Bandit.fit_kernel_`) each time the number of pulls passes a multiple of this number. By
            default the kernel is never refitted, because the theory assumes a known kernel.

    Guarantee: regret within a factor C of the sequential algorithm's bound. Cost: O(A u) per distinct arm of a batch.
    Source: Desautels et al. 2014, Thm 2, and their GP-AUCB for batches that grow by themselves (GP-BUCB is given the batches);
    Calandriello et al. 2020 for the width, and Lemma 1 for the global rule. The constant C' of Desautels et al. bounds the
    information gained by a batch: C = exp(2C'). Their width is exp(C') = √C times that of the sequential algorithm.
    """
    lam = regularization_of(noise_std, regularization)
    rule = named_rule(batch_rule, ratio_threshold, max_batch_size, max_pulls)
    return Composed(
        kernel,
        noise_std,
        Scaled(IGP(noise_std, norm_bound, delta, lam), ratio_threshold) if width is None else width,
        lam,
        batch_rule=rule,
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
        refit_every=refit_every,
    )
