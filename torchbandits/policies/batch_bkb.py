"""BBKB: BKB in batches of adaptive length; the dictionary is redrawn once per batch."""

from __future__ import annotations

import gpytorch
from torch import Tensor

from torchbandits.batching import named_rule
from torchbandits.checks import explains_keywords, regularization_of
from torchbandits.memory import LeverageSampling
from torchbandits.policies.composed import Composed
from torchbandits.starts import Start
from torchbandits.widths import PracticalBBKB, Width


@explains_keywords
def batch_bkb(
    kernel: gpytorch.kernels.Kernel,
    *,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    oversampling: float = 2.0,
    ratio_threshold: float = 2.0,
    batch_rule: str = "global",
    max_batch_size: int | None = None,
    max_pulls: int | None = None,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
    refit_every: int | None = None,
) -> Composed:
    r"""BBKB: freeze mean, width and dictionary, and pick by the upper bound until variances may have shrunk by a factor of C̃.

    The default width is that of the paper's experiments, which explores for tens of thousands of pulls. For shorter runs pass
    `width=tb.widths.Constant(2.0)`, as is common in practice.

    .. math:: x_s = \arg\max_x \mu_{fb}(x) + w_{fb}\,\sigma_{s-1}(x) \quad\text{until}\quad 1 + \sum_s lev_{fb}(x_s) > \tilde C

    Args:
        kernel: Kernel of the RKHS that holds the expected reward.
        noise_std: Sub-Gaussian constant ξ of the noise, reward units.
        norm_bound: F, bound on the RKHS norm; one number, or one per batch row.
        delta: Failure probability of the bounds.
        oversampling: q̄ ≥ 1; 2 in practice, 72 C̃ log(4t/δ) in theory.
        ratio_threshold: C̃ ≥ 1; 1 gives one pick per batch.
        batch_rule: `"global"`, `"local"`, `"global_then_local"`, `"product"` or `"exact_ratio"`.
        max_batch_size: Cap on the picks of a batch.
        max_pulls: Cap on the picks of one arm in a batch (1 for screening).
        width: Multiplier of the posterior standard deviation; `PracticalBBKB` by default, `widths.BBKB` for the theorem.
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the argmax of the prior.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.
        refit_every: Refit the kernel (`Bandit.fit_kernel_`) each time the number of pulls passes a multiple of this number. By
            default the kernel is never refitted, because the theory assumes a known kernel.

    Guarantee: 55 C̃³ times the regret bound of GP-UCB (55 C̃² times that of GP-BUCB), with O(d_eff log T) batches, with
    probability 1 − 2δ (accurate variances and a valid bound, each with probability 1 − δ), under the theory width (λ ≥ 1) and
    oversampling. None at the defaults, which are those of the authors' code. Cost: one m x m x A product per batch, O(k²) per
    pick among k leaders.
    Source: Calandriello et al. 2020, Alg. 1, Thm 1–2; code: luigicarratino/batch-bkb, commit 3c23928.
    """
    lam = regularization_of(noise_std, regularization)
    return Composed(
        kernel,
        noise_std,
        PracticalBBKB(noise_std, norm_bound, delta, lam, ratio_threshold=ratio_threshold) if width is None else width,
        lam,
        memory=LeverageSampling(oversampling),
        batch_rule=named_rule(batch_rule, ratio_threshold, max_batch_size, max_pulls),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
        refit_every=refit_every,
    )
