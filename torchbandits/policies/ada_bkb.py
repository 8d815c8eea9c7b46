"""Ada-BKB: BKB on a tree of cells, for boxes and for arm sets too large to sweep."""

from __future__ import annotations

import gpytorch
from torch import Tensor

from torchbandits.checks import explains_keywords, regularization_of
from torchbandits.memory import LeverageSampling
from torchbandits.policies.adaptive_ucb import AdaptiveUCB
from torchbandits.widths import PracticalBKB, Width


@explains_keywords
def ada_bkb(
    kernel: gpytorch.kernels.Kernel,
    *,
    horizon: int | None = None,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    oversampling: float = 2.0,
    num_children: int = 3,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    memory_budget: int = 2 << 30,
) -> AdaptiveUCB:
    r"""Ada-BKB: the posterior of BKB at one point per cell of a tree, whose promising cells are split into N children.

    .. math:: I(c) = \min(u(x_c), u(x_p) + V_p) + V_c, \quad u = \mu + w\,\sigma, \quad
              V_c = F \max_{x \in c} \sqrt{k(x_c, x_c) + k(x, x) - 2 k(x_c, x)}

    where p is the parent of c. The leaf with the largest index is split along its longest side while w σ(x_c) ≤ V_c and it is
    not too deep; otherwise its representative x_c is evaluated. `Bandit(policy, bounds=...)` runs on a box, where the
    representatives are the centres of the cells (kernels: RBF and Matérn, scaled or not). `Bandit(policy, arms)` runs on given
    arms with any kernel: the representatives are the arms nearest to the centres, cells without arms are dropped, and V_c is
    the maximum over the arms of c. `Report.certificate` is the largest index minus the largest lower bound at an evaluated arm.
    If the width and F are valid, no point of the domain is better than that arm by more than the certificate.

    Args:
        kernel: Kernel of the RKHS that holds the expected reward.
        horizon: T, the number of pulls to come; the depth of the tree is at most ⌈d log T / (2α log N)⌉ (α = ½ for Matérn-½, 1
            otherwise). None sets no limit; it is allowed only on given arms, where the tree ends at cells of one arm.
        noise_std: Sub-Gaussian constant ξ of the noise, reward units.
        norm_bound: F, bound on the RKHS norm; one number, or one per batch row. It scales V and the default width.
        delta: Failure probability of the bounds.
        oversampling: q̄ ≥ 1; 2 in practice, 6α log(4T/δ)/ε² in theory.
        num_children: N, odd: the middle child keeps its parent's centre.
        width: Multiplier of the posterior standard deviation; `PracticalBKB` by default, `widths.BKB` for the theorem.
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        memory_budget: Bytes for cached kernel columns.

    Guarantee: no regret on a box, at the rate of BKB up to logs, for the kernels above, under the theory width and
    oversampling; the defaults are BKB's in practice. Whenever u is above f at x_c and x_p, and F is at least the norm of f,
    I(c) is above f in all of c. Cost: O((L + u) m²) per step, L leaves, and O(m²) per cut (on arms O(A) more).

    Differences from the paper: V is that of the cell itself instead of one bound for all cells of a depth (never larger, and no
    constants v₁ and ρ to choose); no leaf is pruned, so that the leaves cover the domain and the certificate holds for all of
    it; the root, too, is split before it is evaluated if w σ ≤ V. Additional picks of `ask(more=)` use standard deviations
    conditioned on the pending picks, but the tree does not change until rewards are told, so they may repeat a representative.
    Source: Rando, Carratino, Villa & Rosasco 2022, "Ada-BKB", Alg. 1 (arXiv 2106.08598).
    """
    lam = regularization_of(noise_std, regularization)
    confidence = width or PracticalBKB(noise_std, norm_bound, delta, lam)
    memory = LeverageSampling(oversampling)
    return AdaptiveUCB(kernel, noise_std, confidence, lam, memory, norm_bound, num_children, horizon, prior_mean, memory_budget)
