"""V = ZᵀNZ + λI, stored as a square root of its inverse so that a pull is one rank-one update."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchbandits.errors import NumericalError, require
from torchbandits.linalg.roots import cholesky, solve_lower
from torchbandits.transfers import to_device
from torchbandits.types import Rect, Square

# A rank-one update costs three passes over J, a refactorisation 2m³/3 operations at the rate of matrix products. Measured on
# two cores in float64 (scripts/benchmarks/linalg.py), one refactorisation costs as much as 1.4 updates at m = 64, 3.3 at 128, 6
# at 256, 18 at 512 and 8 at 1024, where J no longer fits the cache. Hence k updates are made one by one while k ≤ m / 64.
_UPDATES_PER_REFACTOR = 64
# Matrices up to this size are factorised on the host, which has to wait for the device in any case to see whether the
# factorisation succeeded.
_SMALL = 64


class Precision:
    r"""The ridge matrix V and a root J of its inverse, V⁻¹ = J Jᵀ.

    A pull of features z with weight n is Potter's square-root update, which is vectorised and never subtracts from V:

    .. math:: p = \sqrt n J^T z, \quad J \leftarrow J - \beta (J p) p^T, \quad
              \beta = (1 - 1/\sqrt{1 + |p|^2}) / |p|^2

    Args:
        matrix: `batch_shape x m x m`, V. Padded coordinates hold λ on the diagonal.
        basis: `batch_shape x m x m`, orthogonal Q if the matrix is QᵀVQ (see `Graded`). A graded matrix takes no updates.
    """

    def __init__(self, matrix: Square, basis: Square | None = None) -> None:
        self.matrix, self.basis, self.root = matrix, basis, matrix
        self.log_det = matrix.new_zeros(matrix.shape[:-2])
        self.refactor_()

    @staticmethod
    def of(matrix: Square, factor: Square, root: Square, log_det: Tensor) -> Precision:
        """V with its Cholesky factor, J and log det V, when these are already known."""
        precision = Precision.__new__(Precision)
        precision.matrix, precision.basis, precision.root, precision._factor = matrix, None, root, factor
        precision.log_det = log_det
        return precision

    def refactor_(self) -> Precision:
        """Recompute the root from the matrix. Cost O(m³)."""
        device = self.matrix.device
        small = device.type != "cpu" and self.basis is None and self.matrix.shape[-1] <= _SMALL
        factor, good = cholesky(self.matrix.cpu() if small else self.matrix)
        if good is not None:
            broken = ~good & ~factor.isnan().any(dim=-1).any(dim=-1)
            require(
                not bool(broken.any()),
                "the ridge matrix ZᵀNZ + λI is not positive definite in float64: use a larger "
                "regularization, or rewards and features of a smaller range.",
                NumericalError,
            )
        eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
        root = solve_lower(factor, eye.expand_as(factor)).mT
        log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        if small:
            factor, root, log_det = to_device(device, factor, root, log_det)
        self._factor: Tensor | None = factor
        self.root = root if self.basis is None else self.basis @ root
        self.log_det = log_det
        return self

    def update_(self, features: Rect, weights: Tensor) -> Precision:
        """Add k weighted pulls by rank-one updates, or by a refactorisation where that is faster.

        Args:
            features: `batch_shape x k x m`, one row per distinct point.
            weights: `batch_shape x k`, non-negative; 0 changes nothing.

        Cost: O(k m²), or O(k m² + m³) when k exceeds the measured crossover.
        """
        scaled = features * weights.clamp_min(0).sqrt().unsqueeze(-1)
        self.matrix = self.matrix + scaled.mT @ scaled
        if scaled.shape[-2] * _UPDATES_PER_REFACTOR > self.matrix.shape[-1]:
            return self.refactor_()
        for z in scaled.unbind(dim=-2):
            # A row times a matrix, because batched products with a column are ten times slower.
            p = (z.unsqueeze(-2) @ self.root).squeeze(-2)
            s = p.square().sum(dim=-1, keepdim=True)
            # (1 − 1/√(1+s))/s without cancellation: 1 / (√(1+s) (1 + √(1+s))).
            root = (1 + s).sqrt()
            beta = 1 / (root * (1 + root))
            self._factor = None
            q = (p.unsqueeze(-2) @ self.root.mT).squeeze(-2)
            self.root = self.root - q.unsqueeze(-1) * (beta * p).unsqueeze(-2)
            self.log_det = self.log_det + torch.log1p(s.squeeze(-1))
        return self

    @property
    def size(self) -> int:
        """Number of features, m."""
        return self.matrix.shape[-1]

    @property
    def current_factor(self) -> Tensor:
        """Cholesky factor of V, or of QᵀVQ. It is recomputed after rank-one updates."""
        if self._factor is None:
            self._factor = cholesky(self.matrix)[0]
        return self._factor

    def drop_factor_(self) -> None:
        """Discard the cached Cholesky factor after the matrix was changed from outside."""
        self._factor = None

    def whiten(self, features: Rect) -> Tensor:
        """Jᵀ z for features `batch_shape x m x n`; its squared column norms are zᵀV⁻¹z. Cost O(m² n)."""
        return self.root.mT @ features

    def solve(self, right: Rect) -> Tensor:
        """V⁻¹ `right`, `batch_shape x m x c`. Cost O(m² c)."""
        return ((right.mT @ self.root) @ self.root.mT).mT


def shrinkage_root(
    factor: Square, pulled: Rect, regularization: float, padding: Tensor | None = None, *, graded: bool = False
) -> Tensor:
    r"""Q with Q Qᵀ = I/λ − V⁻¹ for V = BᵀB + λI: the part of the prior that the data explain.

    .. math:: I/\lambda - V^{-1} = L^{-T} (L^T L / \lambda - I) L^{-1}, \quad V = L L^T

    so a second Cholesky factorisation gives Q. Where it breaks down (in directions that the data hardly touch) the batch row
    uses the singular vectors of B, whose small singular values are accurate where those of BᵀB are not.

    Args:
        factor: `batch_shape x m x m`, the Cholesky factor L of V.
        pulled: `batch_shape x u x m`, B = √N Z: features of the pulled points, scaled by the square root of the weight.
        regularization: λ > 0.
        padding: `batch_shape x m` booleans, coordinates that are zero in every feature. Their part of Q is arbitrary.
        graded: Whether V is graded (see `Graded`). The weight of the heavy rows would then spoil the singular vectors of B,
            while a diagonal raised by the size of rounding errors is as accurate as V itself.

    Returns:
        `batch_shape x m x m`. Cost O(u m² + m³).
    """
    u, m = pulled.shape[-2:]
    eye = torch.eye(m, dtype=pulled.dtype, device=pulled.device)
    # V holds λ at padded coordinates, where I/λ − V⁻¹ would be singular.
    if padding is not None:
        lift = (2**0.5 - 1) * regularization**0.5
        factor = factor + torch.diag_embed(lift * padding.to(factor.dtype))
    inner = factor.mT @ factor / regularization - eye
    if graded:
        inner = inner + torch.diag_embed(64 * torch.finfo(inner.dtype).eps * (1 + inner.diagonal(dim1=-2, dim2=-1)))
    inner, good = cholesky(inner)
    root = torch.linalg.solve_triangular(factor.mT, inner, upper=True)
    if good is None:
        return root
    finite = torch.isfinite(pulled).all(dim=-1).all(dim=-1)
    failed = (~good & finite)[..., None, None]
    if not bool(failed.any()):
        return root
    _, values, right = torch.linalg.svd(torch.where(failed, pulled, 0.0), full_matrices=False)
    shrunk = right.mT * (values / (regularization * (regularization + values.square())).sqrt()).unsqueeze(-2)
    shrunk = nn.functional.pad(shrunk, (0, max(0, m - u)))
    return torch.where(failed, shrunk, root)
