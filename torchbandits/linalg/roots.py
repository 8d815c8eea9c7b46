"""Square roots of kernel matrices that may be singular, for each batch row separately."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.types import Rect, Square


def solve_lower(factor: Square, right: Rect) -> Tensor:
    """Solve `factor @ X = right` for a lower-triangular factor, `batch_shape x m x n`. Cost O(m² n)."""
    return torch.linalg.solve_triangular(factor, right, upper=False)


def cholesky(matrix: Square, out: Square | None = None) -> tuple[Tensor, Tensor | None]:
    """Cholesky factor of each batch row without jitter, and whether the factorisation succeeded; None if all succeeded.

    Args:
        matrix: `batch_shape x m x m`, symmetric; only the lower triangle is read.
        out: Memory for the factors, best by columns.

    Returns:
        `batch_shape x m x m` lower-triangular factors (the identity where the factorisation failed, NaN where the input
        contains NaN) and `batch_shape` booleans, or None if all are true. A failing batch row does not affect the others.
        Cost O(m³).
    """
    into = None if out is None else (out, torch.empty(matrix.shape[:-2], dtype=torch.int32, device=matrix.device))
    factor, info = torch.linalg.cholesky_ex(matrix, out=into)
    # A NaN anywhere in the lower triangle propagates to a pivot.
    good = (info == 0) & (factor.diagonal(dim1=-2, dim2=-1).sum(dim=-1).abs() < torch.inf)
    if bool(good.all()):
        return factor, None
    finite = torch.isfinite(matrix.tril()).all(dim=-1).all(dim=-1)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    factor = torch.where(good[..., None, None], factor, eye)
    return torch.where(finite[..., None, None], factor, torch.nan), good


@dataclass(frozen=True)
class InverseRoot:
    """R with R Rᵀ = K⁺ for a symmetric positive semi-definite K, one choice of root per batch row.

    Rows where the Cholesky factor L is accurate use R = L⁻ᵀ through triangular solves; the others use truncated eigenvectors,
    R = U Λ^{−1/2}. Both give the same Gaussian posterior.

    Attributes:
        factor: `batch_shape x m x m`, L, or the identity in rows that use `pseudo`.
        pseudo: `batch_shape x m x m`, R in rows that use eigenvectors and zero elsewhere; None if no row does.
        fallback: `batch_shape`, whether a row uses `pseudo`.
    """

    factor: Tensor
    pseudo: Tensor | None
    fallback: Tensor

    def embed(self, columns: Rect) -> Tensor:
        """Rᵀ `columns`: kernel columns `batch_shape x m x n` to features `batch_shape x m x n`. Cost O(m² n)."""
        features = solve_lower(self.factor, columns)
        if self.pseudo is None:
            return features
        return torch.where(self.fallback[..., None, None], self.pseudo.mT @ columns, features)

    def own(self) -> Tensor:
        """Rᵀ K, the features of the points of K themselves, `batch_shape x m x m`, accurate to rounding. `embed(K)` is less
        accurate because it divides by the smallest pivots. Cost O(m²)."""
        if self.pseudo is None:
            return self.factor.mT
        # The columns of U Λ^{−1/2} have squared length 1/Λ; divided by it they are U Λ^{1/2}, and its transpose is Rᵀ K.
        length = self.pseudo.square().sum(dim=-2)
        features = (self.pseudo / torch.where(length > 0, length, 1.0).unsqueeze(-2)).mT
        return torch.where(self.fallback[..., None, None], features, self.factor.mT)

    def lift(self, features: Rect) -> Tensor:
        """R `features`, the adjoint of `embed`, `batch_shape x m x n`. Cost O(m² n)."""
        lifted = torch.linalg.solve_triangular(self.factor.mT, features, upper=True)
        if self.pseudo is None:
            return lifted
        return torch.where(self.fallback[..., None, None], self.pseudo @ features, lifted)


def inverse_root(matrix: Square, floor: float | Tensor = 0.0, cut: Tensor | None = None) -> InverseRoot:
    r"""Square root of the pseudo-inverse of each batch row, without jitter.

    A Cholesky factor is kept when each squared pivot exceeds `max(floor, 64, m) · eps · max diag`. Below this threshold a pivot
    is rounding error, and the row uses the eigenvectors with larger eigenvalues instead (Calandriello et al. 2019, eq. 5 with
    the pseudo-inverse).

    Args:
        matrix: `batch_shape x m x m` symmetric positive semi-definite. Padded places are 0 but on the diagonal, where they hold
            the largest of the other values.
        floor: Squared pivots at or below this absolute value count as zero (units of the matrix).
        cut: `batch_shape`. Where eigenvectors are used, those with eigenvalues up to `cut · eps · max diag` are left out.
            `max(64, m)` by default.

    Returns:
        The root. Rows with NaN give NaN features and do not affect the others. Cost O(m³).
    """
    m = matrix.shape[-1]
    factor, good = cholesky(matrix)
    scale = matrix.diagonal(dim1=-2, dim2=-1).amax(dim=-1) if m else matrix.new_zeros(matrix.shape[:-2])
    threshold = max(64, m) * torch.finfo(matrix.dtype).eps * scale
    # A number is not made a tensor first, because the host would wait for its copy to the device.
    threshold = torch.maximum(threshold, floor.to(scale)) if isinstance(floor, Tensor) else threshold.clamp_min(floor)
    good = torch.ones_like(scale, dtype=torch.bool) if good is None and not m else good
    if m:
        apart = factor.diagonal(dim1=-2, dim2=-1).square().amin(dim=-1) > threshold
        good = apart if good is None else good & apart
    assert good is not None
    if bool(good.all()):
        return InverseRoot(factor, None, ~good)
    fallback = ~good & ~factor.isnan().any(dim=-1).any(dim=-1)
    if not bool(fallback.any()):
        return InverseRoot(factor, None, fallback)
    eye = torch.eye(m, dtype=matrix.dtype, device=matrix.device)
    lower = torch.where(fallback[..., None, None], matrix, eye).tril()
    values, vectors = torch.linalg.eigh(lower + lower.tril(-1).mT)
    if cut is not None:
        threshold = torch.maximum(cut * torch.finfo(matrix.dtype).eps * scale, torch.as_tensor(floor).to(scale))
    kept = values > threshold[..., None]
    pseudo = vectors * torch.where(kept, values, torch.inf).rsqrt()[..., None, :]
    pseudo = torch.where(fallback[..., None, None], pseudo, 0.0)
    return InverseRoot(torch.where(fallback[..., None, None], eye, factor), pseudo, fallback)


def covariance_root(matrix: Square) -> Tensor:
    """R with R Rᵀ = K for a symmetric positive semi-definite K, `batch_shape x m x m`: the Cholesky factor where every pivot is
    above rounding, elsewhere the symmetric square root, which is unique too. Cost O(m³)."""
    factor, good = cholesky(matrix)
    eps = torch.finfo(matrix.dtype).eps
    scale = matrix.diagonal(dim1=-2, dim2=-1).amax(dim=-1)
    apart = factor.diagonal(dim1=-2, dim2=-1).square().amin(dim=-1) > max(64, matrix.shape[-1]) * eps * scale
    good = apart if good is None else good & apart
    if bool(good.all()):
        return factor
    values, vectors = torch.linalg.eigh(matrix)
    symmetric = (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT
    return torch.where(good[..., None, None], factor, symmetric)


def append_row(factor: Square, column: Tensor, diagonal: Tensor, floor: float | Tensor = 0.0) -> tuple[Tensor, Tensor]:
    r"""Cholesky factor of a kernel matrix extended by one point.

    .. math:: l = L^{-1} k, \quad r = k(x,x) - \|l\|^2, \quad L' = [[L, 0], [l^T, \sqrt r]]

    Where the residual r is at most `max(floor, 64 eps k(x,x))` the point adds no direction: its row and column become
    those of the identity, and its feature must be read as zero.

    Args:
        factor: `batch_shape x m x m` lower triangular.
        column: `batch_shape x m`, kernel values between the new point and the old ones.
        diagonal: `batch_shape`, k(x, x) of the new point.
        floor: Absolute residual below which the point is skipped.

    Returns:
        `batch_shape x (m+1) x (m+1)` factor and `batch_shape` booleans, True where the point was appended. O(m²).
    """
    m = factor.shape[-1]
    row = solve_lower(factor, column.unsqueeze(-1)).squeeze(-1)
    residual = diagonal - row.square().sum(dim=-1)
    threshold = (64 * torch.finfo(factor.dtype).eps * diagonal).clamp_min(
        torch.as_tensor(floor, dtype=diagonal.dtype, device=diagonal.device)
    )
    kept = residual > threshold
    grown = factor.new_zeros(*factor.shape[:-2], m + 1, m + 1)
    grown[..., :m, :m] = factor
    grown[..., m, :m] = torch.where(kept[..., None], row, 0.0)
    grown[..., m, m] = torch.where(kept, residual, 1.0).sqrt()
    return grown, kept
