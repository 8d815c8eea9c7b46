"""Nyström features of a dictionary S: z(x) = K_S^{+/2} k_S(x)."""

from __future__ import annotations

from functools import cached_property

import gpytorch
import torch
from torch import Tensor

from torchbandits.embeddings.base import Embedding
from torchbandits.embeddings.fourier import Spectrum
from torchbandits.linalg import InverseRoot, append_row, inverse_root
from torchbandits.types import Points, Rect


def evaluate_kernel(kernel: gpytorch.kernels.Kernel, left: Points, right: Points) -> Tensor:
    """k(x, x') as a dense tensor, `batch_shape x n x n'`. Differentiable. Cost O(n n' d)."""
    batch_shape = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2], kernel.batch_shape)
    if left.shape[-2] == 0 or right.shape[-2] == 0:
        return left.new_zeros(*batch_shape, left.shape[-2], right.shape[-2])
    x, y = left.expand(*batch_shape, -1, -1), right.expand(*batch_shape, -1, -1)
    # Of the same points on both sides GPyTorch makes a root where it can, by a Cholesky with jitter: it never sees them.
    if x.shape == y.shape and torch.equal(x, y):
        n = x.shape[-2]
        if n == 1:
            value: Tensor = kernel(x, diag=True)
            return value.unsqueeze(-1)
        return torch.cat([kernel(part, y).to_dense() for part in (x[..., : n // 2, :], x[..., n // 2 :, :])], dim=-2)
    dense: Tensor = kernel(x, y).to_dense()
    return dense


def kernel_matrix(kernel: gpytorch.kernels.Kernel, left: Points, right: Points) -> Tensor:
    """`evaluate_kernel`, with near-coincident pairs of points evaluated by their differences.

    GPyTorch computes distances through a matrix product, so a kernel with a kink at 0 (Matérn-1/2) is off by √eps between
    points that nearly coincide. Cost O(n n' d).
    """
    K, near = evaluate_kernel(kernel, left, right), None
    for x, y in zip(left.detach().unbind(dim=-1), right.detach().unbind(dim=-1), strict=True):
        close = (x.unsqueeze(-1) - y.unsqueeze(-2)).abs() <= _NEAR * (1 + x.abs().unsqueeze(-1))
        near = close if near is None else near & close
        if not bool(near.any()):
            return K
    if near is None:
        return K
    i, j = near.reshape(-1, *near.shape[-2:]).any(dim=0).nonzero(as_tuple=True)
    batch_shape = K.shape[:-2]
    pairs = kernel(left[..., i, :].expand(*batch_shape, -1, -1), right[..., j, :].expand(*batch_shape, -1, -1), diag=True)
    place = (i * K.shape[-1] + j).expand(*batch_shape, -1)
    return K.flatten(-2).scatter(-1, place, pairs.to(K.dtype)).unflatten(-1, K.shape[-2:])


def kernel_diagonal(kernel: gpytorch.kernels.Kernel, points: Points) -> Tensor:
    """k(x, x), `batch_shape x n`. Differentiable. Cost O(n d)."""
    batch_shape = torch.broadcast_shapes(points.shape[:-2], kernel.batch_shape)
    diagonal: Tensor = kernel(points.expand(*batch_shape, -1, -1), diag=True)
    return diagonal


_NEAR = 1e-6  # points whose features differ by less than this (relative) are compared by differences


class Nystrom(Embedding):
    """Features of a dictionary; with every distinct point in it, the exact kernel on those points.

    Args:
        kernel: Any GPyTorch kernel; held, not copied.
        dictionary: `batch_shape x m x d`.
        mask: `batch_shape x m`, False in padded places (rows of a batch may have dictionaries of different sizes).
        floor: Residuals k(x,x) − |z|² of a dictionary point below this count as zero (units of the kernel).
        gram: `batch_shape x m x m` kernel matrix of the dictionary where it is already known.
        cut: Eigenvalues of a singular one that count as zero, see `inverse_root`.
    """

    def __init__(
        self,
        kernel: gpytorch.kernels.Kernel,
        dictionary: Points,
        mask: Tensor | None = None,
        *,
        floor: float = 0.0,
        gram: Rect | None = None,
        cut: Tensor | None = None,
    ) -> None:
        self.kernel, self.dictionary, self.mask, self.floor = kernel, dictionary, mask, floor
        K_mm = kernel_matrix(kernel, dictionary, dictionary).detach() if gram is None else gram
        self.root: InverseRoot = inverse_root(self._identity_where_padded(K_mm).double(), floor, cut)

    @staticmethod
    def of(kernel: gpytorch.kernels.Kernel, dictionary: Points, mask: Tensor, floor: float, root: InverseRoot) -> Nystrom:
        """The features of a dictionary whose root is known."""
        embedding = Nystrom.__new__(Nystrom)
        embedding.kernel, embedding.dictionary, embedding.mask, embedding.floor = kernel, dictionary, mask, floor
        embedding.root = root
        return embedding

    def _identity_where_padded(self, K_mm: Rect) -> Tensor:
        if self.mask is None:
            return K_mm
        eye = torch.eye(K_mm.shape[-1], dtype=K_mm.dtype, device=K_mm.device)
        return torch.where(self.mask.unsqueeze(-1) & self.mask.unsqueeze(-2), K_mm, eye)

    def columns(self, points: Points) -> Tensor:
        """k_S(x) with zeros in padded places, `batch_shape x m x n`, float64."""
        K_mn = kernel_matrix(self.kernel, self.dictionary, points).double()
        return K_mn if self.mask is None else torch.where(self.mask.unsqueeze(-1), K_mn, 0.0)

    def __call__(self, points: Points) -> Tensor:
        """Features, `batch_shape x m x n`, float64. Cost O(n m (m + d))."""
        return self.root.embed(self.columns(points))

    def diagonal(self, points: Points) -> Tensor:
        """k(x, x), `batch_shape x n`."""
        if self._variance is None:
            return kernel_diagonal(self.kernel, points).double()
        shape = torch.broadcast_shapes(points.shape[:-2], self.kernel.batch_shape)
        return self._variance.expand(*shape, points.shape[-2])

    @cached_property
    def _variance(self) -> Tensor | None:
        """k(x, x) of a stationary kernel, `batch_shape x 1`; None of any other."""
        spectrum = Spectrum.of(self.kernel)
        return None if spectrum is None else spectrum.outputscale.unsqueeze(-1)

    def residual_covariance(self, left: Points, right: Points, z_left: Tensor, z_right: Tensor) -> Tensor:
        """k(x, x') − z(x)ᵀz(x'), `batch_shape x n x n'`."""
        return kernel_matrix(self.kernel, left, right).double() - z_left.mT @ z_right

    def append(self, point: Tensor) -> tuple[Nystrom, Tensor]:
        """The embedding with one more dictionary point a row, in O(m²), and where it was kept.

        A point whose residual is at most max(floor, 64 eps k(x,x)) is skipped: it gets a coordinate that is always
        zero. Rows that fell back to the pseudo-inverse refactorise.

        Args:
            point: `batch_shape x d`.
        """
        x = point.unsqueeze(-2)
        m, batch = self.dictionary.shape[-2], self.dictionary.shape[:-2]
        old = self.mask if self.mask is not None else point.new_ones(*batch, m, dtype=torch.bool)
        dictionary = torch.cat([self.dictionary, x], dim=-2)
        if self.root.pseudo is not None:
            kept = torch.ones_like(old[..., :1])
            return Nystrom(self.kernel, dictionary, torch.cat([old, kept], -1), floor=self.floor), kept.squeeze(-1)
        column = self.columns(x).squeeze(-1).detach()
        factor, kept = append_row(self.root.factor, column, self.diagonal(x).squeeze(-1).detach(), self.floor)
        mask = torch.cat([old.expand(*kept.shape, -1), kept.unsqueeze(-1)], dim=-1)
        root = InverseRoot(factor, None, torch.zeros_like(kept))
        return Nystrom.of(self.kernel, dictionary, mask, self.floor, root), kept
