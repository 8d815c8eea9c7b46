"""Covariances between the points of a posterior and any other points, without copies of the former for each batch of the
latter; and products with triangular matrices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import gpytorch
import torch
from torch import Tensor

from torchbandits.embeddings import FiniteEmbedding
from torchbandits.kernels import kernel_between, kernel_diagonal, kernel_matrix
from torchbandits.posteriors.effects import Effects
from torchbandits.shapes import broadcast_shapes
from torchbandits.types import Points, Rect, Square

# From this size on, several smaller products that skip zeros are faster than one product.
_TRIANGULAR = 256


@dataclass(frozen=True)
class Seen:
    """Points and their kernel, or finite features instead. The points are never copied for each batch of other points.

    Attributes:
        kernel: Stored by reference; None for features.
        points: `batch_shape x m x d`; None for features.
        finite: The features; None for a kernel.
        root: `batch_shape x m x m`, H, where the covariance of features is z(x)ᵀH Hᵀz(x').
    """

    kernel: gpytorch.kernels.Kernel | None
    points: Tensor | None
    finite: FiniteEmbedding | None = None
    root: Tensor | None = None

    def at(self, points: Points) -> Seen:
        """The same kernel with other points."""
        return Seen(self.kernel, points)

    def matrix(self) -> Square:
        """k between the points themselves, `batch_shape x m x m`."""
        assert self.kernel is not None
        assert self.points is not None
        return kernel_matrix(self.kernel, self.points, self.points).double()

    def columns(self, points: Points) -> Rect:
        """k(x, x_j), or features, `... x n x m` for `... x n x d` points. Differentiable in the points. Cost O(n m d)."""
        if self.finite is not None:
            return self.finite(points).mT
        assert self.kernel is not None
        assert self.points is not None
        flat, unfold = folded(points, broadcast_shapes(self.points.shape[:-2], self.kernel.batch_shape))
        return unfold(kernel_between(self.kernel, flat, self.points).double(), 1)

    def diagonal(self, points: Points, columns: Rect) -> Tensor:
        """k(x, x), `... x n`; computed from `columns` for features."""
        if self.root is not None:
            return (columns @ self.root).square().sum(dim=-1)
        assert self.kernel is not None
        return kernel_diagonal(self.kernel, points).double()

    def covariance(self, left: Points, right: Points, columns: Rect, other: Rect) -> Rect:
        """k(x, x'), `... x n x n'`; computed from `columns` and `other` for features."""
        if self.root is not None:
            return (columns @ self.root) @ (other @ self.root).mT
        assert self.kernel is not None
        return kernel_between(self.kernel, left, right).double()


@dataclass(frozen=True)
class SeenWithEffects(Seen):
    """Points of a dictionary, whose columns are those of the smooth part of the function, seen through random effects.

    Attributes:
        kernel: Kernel of the function with its effects, stored by reference.
        effects: The effects.
        dictionary: Whether the points are those of the dictionary; columns then end with the means that the effects add.
            Columns of other points are `Effects.prior`.
    """

    effects: Effects = field(kw_only=True)
    dictionary: bool = True

    def at(self, points: Points) -> SeenWithEffects:
        """The same effects with other points than those of the dictionary."""
        return replace(self, points=points, dictionary=False)

    def columns(self, points: Points) -> Rect:
        """Columns, `... x n x (m + c)` for the dictionary and `... x n x m` for other points."""
        assert self.points is not None
        if not self.dictionary:
            return self.covariance(points, self.points, points, points)
        smooth, effects = Seen(self.effects.kernel, self.points).columns(points), self.effects
        rows, unfold = self._rows(points)
        nothing = smooth.new_zeros(*rows.shape[:-1], effects.offset.shape[-2], rows.shape[-1])
        added = unfold(effects.channels(nothing, rows).mT, 1)
        return joined(unfold(effects.share_at(rows), 0).unsqueeze(-1) * smooth, added)

    def diagonal(self, points: Points, columns: Rect) -> Tensor:
        """The largest variance that other points leave, `... x n`."""
        smooth = kernel_diagonal(self.effects.kernel, points).double()
        return self.effects.regularization * self.effects.leverage(smooth / self.effects.regularization, self._share(points))

    def covariance(self, left: Points, right: Points, columns: Rect, other: Rect) -> Rect:
        """`Effects.prior` of points, `... x n x n'`."""
        smooth = kernel_between(self.effects.kernel, left, right).double()
        return self.effects.prior(smooth, left, right, self._share(left), self._share(right))

    def _share(self, points: Points) -> Tensor:
        rows, unfold = self._rows(points)
        return unfold(self.effects.share_at(rows), 0)

    def _rows(self, points: Points) -> tuple[Tensor, Callable[[Tensor, int], Tensor]]:
        """Rows of points in the statistics, and the function that undoes the folding of points."""
        own, lead = self.effects.statistics.num_rows.shape, points.shape[:-2]
        if len(lead) > len(own):
            points = points.expand(*broadcast_shapes(lead, own), *points.shape[-2:])
        flat, unfold = folded(points, own)
        return self.effects.rows_of(flat), unfold


def folded(points: Points, own: torch.Size) -> tuple[Points, Callable[[Tensor, int], Tensor]]:
    """Merge the leading dimensions of points other than the last ones, `own`, into the dimension that counts the points.

    Returns the points, `own x n x d`, and the function that undoes this for a tensor with a given number of dimensions after
    the one that was merged into. Points without further leading dimensions, or whose last leading dimensions are not `own`, are
    returned unchanged.
    """
    lead, extra = points.shape[:-2], points.dim() - 2 - len(own)
    if extra <= 0 or lead[extra:] != own:
        return points, lambda tensor, after: tensor
    n, k = points.shape[-2], len(own)
    flat = points.permute(*range(extra, extra + k), *range(extra), -2, -1).reshape(*own, -1, points.shape[-1])

    def unfold(tensor: Tensor, after: int) -> Tensor:
        wide = tensor.reshape(*own, *lead[:extra], n, *tensor.shape[tensor.dim() - after :])
        return wide.permute(*range(k, k + extra), *range(k), *range(k + extra, wide.dim()))

    return flat, unfold


def joined(left: Tensor, right: Tensor, dim: int = -1) -> Tensor:
    """Concatenation along one of the last two dimensions, with batch dimensions broadcast."""
    shape = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return torch.cat([left.expand(*shape, *left.shape[-2:]), right.expand(*shape, *right.shape[-2:])], dim=dim)


def upper_times(left: Rect, upper: Tensor) -> Rect:
    """`left @ upper`, `... x n x m`, for an upper-triangular matrix, skipping most of its zeros."""
    m = upper.shape[-1]
    if m < _TRIANGULAR or upper.dim() > 2:
        return left @ upper
    ends = [(m * i) // 8 for i in range(9)]
    return torch.cat([left[..., :b] @ upper[:b, a:b] for a, b in itertools.pairwise(ends)], dim=-1)


def lower_times(upper: Tensor, right: Rect) -> Rect:
    """`upper @ right`, `... x m x n`, for an upper-triangular matrix, skipping most of its zeros."""
    m = upper.shape[-1]
    if m < _TRIANGULAR or upper.dim() > 2:
        return upper @ right
    ends = [(m * i) // 8 for i in range(9)]
    return torch.cat([upper[a:b, a:] @ right[..., a:, :] for a, b in itertools.pairwise(ends)], dim=-2)


def upper_inverse(factor: Square) -> Square:
    """L⁻ᵀ of lower-triangular factors, `... x m x m`, by recursive halving: a third of the operations of a solve. Cost
    O(m³)."""
    m = factor.shape[-1]
    if m <= _TRIANGULAR:
        eye = torch.eye(m, dtype=factor.dtype, device=factor.device).expand_as(factor)
        return torch.linalg.solve_triangular(factor.mT, eye, upper=True)
    h = m // 2
    A, C = upper_inverse(factor[..., :h, :h]), upper_inverse(factor[..., h:, h:])
    out = torch.zeros_like(factor)
    out[..., :h, :h], out[..., h:, h:] = A, C
    # [[L₁, 0], [B, L₂]]⁻ᵀ = [[A, −A Bᵀ C], [0, C]] with A = L₁⁻ᵀ and C = L₂⁻ᵀ.
    out[..., :h, h:] = -A @ (factor[..., h:, :h].mT @ C)
    return out
