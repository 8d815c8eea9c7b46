"""Leverages of many points at once, without a matrix of all of them: BLESS."""

from __future__ import annotations

import math

import gpytorch
import torch
from torch import Tensor

from torchbandits.checks import at_least, is_finite
from torchbandits.errors import NonFiniteError, ShapeError, require
from torchbandits.kernels import evaluate_kernel, kernel_diagonal, kernel_matrix
from torchbandits.linalg import Precision, inverse_root
from torchbandits.types import PerPoint, Picks, Points

_EXACT = 300  # up to so many points the dictionary is all of them: nothing is drawn
_CHUNK = 1 << 20  # numbers of a block of features, 8 MB
_KEPT = 1 << 25  # features of so many numbers, 256 MB, are kept from the first pass over them to the second
_RESIDUAL_TOLERANCE = 1e-10  # as in a sparse posterior: residuals below this part of λ count as zero


@torch.no_grad()
def bless(
    kernel: gpytorch.kernels.Kernel,
    points: Points,
    weights: PerPoint,
    regularization: float,
    generator: torch.Generator,
    *,
    oversampling: float = 4.0,
    ratio: float = 4.0,
    exact_size: int = _EXACT,
) -> Tensor:
    r"""Approximate posterior leverage of every point pulled, in time linear in their number.

    .. math:: lev_i \approx (k(x_i, x_i) - k_i^T (K + \lambda N^{-1})^{-1} k_i) / \lambda, \quad N = \mathrm{diag}(n)

    The estimate is that of BKB and BBKB, `r(x)/λ + z(x)ᵀV⁻¹z(x)` with V over all points and z the features of the
    dictionary of `bless_dictionary`. At the default q̄ it was within 1 % of the exact one at the median point, and at the
    worst within 20 % for RBF and linear kernels, between 0.76 and 3.0 times it for Matérn ones (40 seeds of each problem in
    the tests, 2,000 points).

    Args:
        kernel: Any GPyTorch kernel in float64 without batch shape.
        points: `n x d`, finite; duplicates are welcome.
        weights: `n`, pulls of each, ≥ 0; not all need be whole. Points of weight 0 get the leverage of an arm not pulled.
        regularization: λ > 0, units of the kernel; it is not multiplied by n.
        generator: CPU generator, advanced by n numbers a level; not touched where nothing is drawn.
        oversampling: Expected dictionary points per effective dimension, ≥ 1.
        ratio: By how much λ falls from level to level, > 1; 2 takes twice the time, at the same accuracy where measured.
        exact_size: Up to so many points the dictionary is all of them, and the leverages are exact.

    Returns:
        `n` leverages, float64, dimensionless.

    Raises:
        ShapeError, NonFiniteError, ArgumentError: On bad input, before anything is drawn.
        NumericalError: If the factorisation broke down.

    Cost: O(n m² log(κ² Σn / λ)) time at the most and O(n + m²) memory, m ≈ q̄ d_eff the size of the dictionary.
    Source: Rudi et al. 2018, Alg. 2 (BLESS-R), with the estimator of Calandriello et al. 2019, eq. 4.
    """
    x, n = _checked(kernel, points, weights, regularization)
    diagonal = kernel_diagonal(kernel, x).double()
    every = torch.arange(len(n), device=x.device)
    dictionary = every
    if len(n) > exact_size:
        dictionary = bless_dictionary(kernel, x, n, regularization, generator, oversampling=oversampling, ratio=ratio)
    return _leverage(kernel, x, dictionary, every, n, diagonal, regularization)


@torch.no_grad()
def bless_dictionary(
    kernel: gpytorch.kernels.Kernel,
    points: Points,
    weights: PerPoint,
    regularization: float,
    generator: torch.Generator,
    *,
    oversampling: float = 4.0,
    ratio: float = 4.0,
) -> Picks:
    r"""Points sampled by their leverage, whose leverages were never all computed: from a large λ down to the given one.

    .. math:: \Lambda_h = \lambda\,ratio^{H-h}, \quad
              \beta_i = \min(1, \bar q\,\tfrac{n_i k_{ii}}{n_i k_{ii} + \Lambda_h}), \quad
              p_i = \min(\beta_i, \bar q\,n_i\,lev_{\Lambda_h}(x_i))

    Point i is a candidate of a level with probability β_i, which bounds what it could need, and stays with p_i. The
    leverages of candidates come from the dictionary of the level before and from the candidates themselves, each standing
    for n_i/β_i pulls. The paper weighs the dictionary's own points instead: at q̄ = 4 and 1,500 points that was off by 1.4 to
    16 times at the worst point, this by 1.0 to 2.3.

    Args:
        kernel, points, weights, regularization, generator, oversampling, ratio: As for `bless`.

    Returns:
        `m` indices of points, increasing; may be empty where λ exceeds Σ n_i k(x_i, x_i).

    Cost: O(Σ_h |U_h| m²), |U_h| ≤ min(n, q̄ Σ n_i k_ii / Λ_h) candidates. One uniform a point and level, in the order of points.
    Source: Rudi et al. 2018, Alg. 2 (BLESS-R).
    """
    x, n = _checked(kernel, points, weights, regularization)
    at_least("oversampling (q̄)", oversampling)
    require(is_finite(ratio) and ratio > 1, f"ratio must be a finite number above 1, got {ratio}.")
    diagonal = kernel_diagonal(kernel, x).double()
    most = n * diagonal
    total = float(most.sum())
    levels = max(1, math.ceil(math.log(max(total / regularization, 1.0)) / math.log(ratio)))
    dictionary = torch.zeros(0, dtype=torch.int64, device=x.device)
    for level in range(levels - 1, -1, -1):
        lam = regularization * ratio**level
        bound = (oversampling * most / (most + lam)).clamp_max(1)
        uniforms = torch.rand(len(n), generator=generator, dtype=torch.float64).to(x.device)
        candidates = (uniforms < bound).nonzero().squeeze(-1)
        mass, bound = (n / bound)[candidates], bound[candidates]
        leverage = _leverage(kernel, x, dictionary, candidates, mass, diagonal[candidates], lam)
        chance = torch.minimum(oversampling * n[candidates] * leverage, bound)
        dictionary = candidates[uniforms[candidates] < chance]
    return dictionary


def _leverage(
    kernel: gpytorch.kernels.Kernel,
    points: Points,
    dictionary: Tensor,
    rows: Tensor,
    mass: Tensor,
    diagonal: Tensor,
    regularization: float,
) -> Tensor:
    """Leverage of some rows of the points, `p`, when just these were pulled `mass` times: r/λ + zᵀV⁻¹z, block by block."""
    m, device = len(dictionary), points.device
    if not m:
        return diagonal / regularization
    x_m = points[dictionary]
    K_mm = kernel_matrix(kernel, x_m, x_m).double()
    root = inverse_root(K_mm, _RESIDUAL_TOLERANCE * regularization)
    place = torch.full((len(points),), -1, device=device).scatter(0, dictionary, torch.arange(m, device=device))

    def features(part: Tensor) -> Tensor:
        """z, `m x c`, from columns that hold k(x, x) itself where a dictionary point meets itself."""
        K_mc, slot = evaluate_kernel(kernel, x_m, points[part]).double(), place[part]
        own = (slot >= 0).nonzero().squeeze(-1)
        return root.embed(K_mc.index_copy(-1, own, K_mm[:, slot[own]]))

    step = max(256, _CHUNK // m)
    parts, kept = rows.split(step), m * len(rows) <= _KEPT
    blocks = [features(part) for part in parts] if kept else []
    V = regularization * torch.eye(m, dtype=torch.float64, device=device)
    for j, (part, pulls) in enumerate(zip(parts, mass.split(step), strict=True)):
        scaled = (blocks[j] if kept else features(part)) * pulls.sqrt()
        V = V + scaled @ scaled.mT
    precision, leverage = Precision(V), []
    for j, (part, prior) in enumerate(zip(parts, diagonal.split(step), strict=True)):
        z = blocks[j] if kept else features(part)
        residual = (prior - z.square().sum(dim=0)).clamp_min(0)
        leverage.append(residual / regularization + precision.whiten(z).square().sum(dim=0))
    return torch.cat(leverage)


def _checked(
    kernel: gpytorch.kernels.Kernel, points: Points, weights: PerPoint, regularization: float
) -> tuple[Tensor, Tensor]:
    """Points and weights in float64."""
    require(not kernel.batch_shape, f"the kernel must have no batch shape, got {tuple(kernel.batch_shape)}.", ShapeError)
    require(
        points.dim() == 2 and weights.shape == points.shape[:1],
        f"expected points n x d and n weights, got {tuple(points.shape)} and {tuple(weights.shape)}.",
        ShapeError,
    )
    x, n = points.double(), weights.double()
    require(bool(torch.isfinite(x).all()), "points have a NaN or infinite feature.", NonFiniteError)
    require(bool((torch.isfinite(n) & (n >= 0)).all()), "weights must be finite and at least 0.", NonFiniteError)
    require(
        is_finite(regularization) and regularization > 0,
        f"regularization (λ) must be finite and > 0, got {regularization}.",
    )
    return x, n
