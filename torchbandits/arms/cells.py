"""Division of a box or a finite arm set into cells, with a representative of each and the kernel's variation within it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor, nn

from torchbandits.arms.rows import ArmRows
from torchbandits.kernels import StationaryColumns
from torchbandits.shapes import broadcast_shapes
from torchbandits.types import Points

# Squared distances that differ by less than this fraction of the squared diagonal are tied, and the lowest arm index wins.
_TIE = 1e-12


@dataclass(frozen=True)
class Cells:
    """Boxes that may become leaves of a tree, `c` per batch row.

    Attributes:
        lower: `batch_shape x c x d`.
        upper: `batch_shape x c x d`.
        arm: `batch_shape x c`, the representative; −1 where padded.
        radius: `batch_shape x c`, largest kernel distance between the representative and a point of the cell.
        members: `batch_shape x n`, arms in the cells (−1 where padded); empty when a box is divided.
        own: `batch_shape x n`, the cell of each member.
    """

    lower: Tensor
    upper: Tensor
    arm: Tensor
    radius: Tensor
    members: Tensor
    own: Tensor


def kernel_distance(kernel: gpytorch.kernels.Kernel, left: Points, right: Points) -> Tensor:
    r"""√(k(x,x) + k(x',x') − 2k(x,x')) of pairs, `batch_shape x n`: f of RKHS norm F varies by at most F times this distance.

    Cost O(n d).
    """
    n = left.shape[-2]
    x, y = torch.cat([left, right, left], dim=-2), torch.cat([left, right, right], dim=-2)
    batch_shape = broadcast_shapes(x.shape[:-2], kernel.batch_shape)
    values: Tensor = kernel(x.expand(*batch_shape, -1, -1), y.expand(*batch_shape, -1, -1), diag=True)
    k = values.double()
    return (k[..., :n] + k[..., n : 2 * n] - 2 * k[..., 2 * n :]).clamp_min(0).sqrt()


class Division(nn.Module, ABC):
    """A domain that can be divided into cells."""

    @abstractmethod
    def root(self) -> Cells:
        """The whole domain as one cell per batch row."""

    @abstractmethod
    def divide_(self, leaf: Tensor, arm: Tensor, dim: Tensor, cut: Tensor, lower: Tensor, upper: Tensor) -> Cells:
        """Cut one cell of each batch row into N children.

        Args:
            leaf: `batch_shape x 1`, the cell; −1 in batch rows where no cell is cut, whose children have no arm.
            arm: `batch_shape x 1`, its representative.
            dim: `batch_shape x 1`, the dimension that is cut.
            cut: `batch_shape x (N + 1)`, positions of the cuts, both ends included.
            lower: `batch_shape x N x d`, corners of the children.
            upper: `batch_shape x N x d`.
        """

    @abstractmethod
    def settle_(self, cells: Cells, leaf: Tensor) -> None:
        """Record the leaf indices (`batch_shape x c`) assigned to the cells."""


class BoxDivision(Division):
    """A box: representatives are centres, new arms of a growing arm set. The middle child keeps the parent's representative.

    The kernel must decrease in every |coordinate difference|, so that the farthest point of a cell is a corner.

    Args:
        box: `2 x d` or `batch_shape x 2 x d`, lower and upper corner.
        rows: A growing arm set whose only arm is the centre.
        kernel: Stored by reference.

    Buffer: `box` `batch_shape x 2 x d`.
    """

    box: Tensor

    def __init__(self, box: Tensor, rows: ArmRows, kernel: gpytorch.kernels.Kernel) -> None:
        super().__init__()
        self._owners = (rows, kernel)
        self.register_buffer("box", box.double().expand(*rows.batch_shape, -1, -1).clone())

    def root(self) -> Cells:
        """The box."""
        arm = torch.zeros(*self.box.shape[:-2], 1, dtype=torch.int64, device=self.box.device)
        return self._cells(self.box[..., :1, :], self.box[..., 1:, :], arm)

    def divide_(self, leaf: Tensor, arm: Tensor, dim: Tensor, cut: Tensor, lower: Tensor, upper: Tensor) -> Cells:
        """N boxes, with N − 1 new arms. Cost O(A d) for a copy of the arms."""
        rows, N = self._owners[0], lower.shape[-2]
        points = rows.points(arm).expand(lower.shape)
        centre = (cut[..., :-1] + cut[..., 1:]) / 2
        points = points.scatter(-1, dim.unsqueeze(-1).expand(*lower.shape[:-1], 1), centre.unsqueeze(-1))
        outer = torch.arange(N, device=arm.device) != N // 2
        index = rows.grow_(points, (leaf >= 0) & outer)
        return self._cells(lower, upper, torch.where(outer, index, torch.where(leaf >= 0, arm, -1)))

    def settle_(self, cells: Cells, leaf: Tensor) -> None:
        """Do nothing: the boxes of the leaves are sufficient."""

    def _cells(self, lower: Tensor, upper: Tensor, arm: Tensor) -> Cells:
        rows, kernel = self._owners
        x = rows.points(arm)
        offset = torch.maximum(upper - x, x - lower)
        # `StationaryColumns` computes the same distances without the overhead of GPyTorch.
        if StationaryColumns.supports(offset, kernel):
            k = StationaryColumns(torch.cat([offset, 0 * offset[:1]]), kernel)(0 * offset[:1]).squeeze(0).double()
            radius = (2 * (k[-1] - k[:-1])).clamp_min(0).sqrt()
        else:
            radius = kernel_distance(kernel, x, x + offset)
        return Cells(lower, upper, arm, radius, arm[..., :0], arm[..., :0])


class ArmDivision(Division):
    """A finite arm set: cells are the boxes that hold arms, and representatives are the arms nearest to their centres.

    The radius is the largest kernel distance over the cell's own arms: exact for any kernel, and 0 for a cell of one arm.

    Args:
        rows: The arms. Of exact duplicates only the lowest index belongs to a cell.
        kernel: Stored by reference.

    Buffer: `leaf_of_arm` `batch_shape x A`, −1 for duplicates.
    """

    leaf_of_arm: Tensor

    def __init__(self, rows: ArmRows, kernel: gpytorch.kernels.Kernel) -> None:
        super().__init__()
        self._owners = (rows, kernel)
        every_arm = torch.arange(rows.num_arms, device=rows.arms.device)
        leaf = torch.zeros_like(every_arm) if rows.first is None else torch.where(rows.first == every_arm, 0, -1)
        self.register_buffer("leaf_of_arm", leaf.expand(rows.row_of_arm.shape).clone())

    def root(self) -> Cells:
        """The bounding box of the arms."""
        arms = self._owners[0].arms.double()
        shape = (*self.leaf_of_arm.shape[:-1], 1, arms.shape[-1])
        lower, upper = arms.amin(dim=-2, keepdim=True).expand(shape), arms.amax(dim=-2, keepdim=True).expand(shape)
        return self._cells(self.leaf_of_arm == 0, None, lower, upper)

    def divide_(self, leaf: Tensor, arm: Tensor, dim: Tensor, cut: Tensor, lower: Tensor, upper: Tensor) -> Cells:
        """At most N boxes. Cost O(A), plus O(n d) for a cell of n arms."""
        return self._cells((self.leaf_of_arm == leaf) & (leaf >= 0), (dim, cut), lower, upper)

    def settle_(self, cells: Cells, leaf: Tensor) -> None:
        """Record the leaf of every arm. Cost O(A) for a copy."""
        A = self.leaf_of_arm.shape[-1]
        slot = torch.where(cells.members >= 0, cells.members, A)
        leaves = nn.functional.pad(leaf, (0, 1)).gather(-1, cells.own)
        self.leaf_of_arm = nn.functional.pad(self.leaf_of_arm, (0, 1)).scatter(-1, slot, leaves)[..., :-1]

    def _cells(self, inside: Tensor, cuts: tuple[Tensor, Tensor] | None, lower: Tensor, upper: Tensor) -> Cells:
        rows, kernel = self._owners
        N, members = lower.shape[-2], padded_indices(inside)
        x = rows.points(members).double()
        own = torch.zeros_like(members)
        if cuts is not None:
            dim, cut = cuts
            along = x.gather(-1, dim.unsqueeze(-1).expand(*members.shape, 1))
            own = (along >= cut[..., 1:-1].unsqueeze(-2)).sum(dim=-1)
        # Padding is assigned to a spare cell, number N, which is removed at the end.
        own = torch.where(members >= 0, own, N)

        def of_own(value: Tensor) -> Tensor:
            spare = nn.functional.pad(value, (0, 0, 0, 1))
            return spare.gather(-2, own.unsqueeze(-1).expand(*own.shape, value.shape[-1]))

        none = torch.full((*lower.shape[:-2], N + 1), torch.inf, dtype=torch.float64, device=lower.device)
        squared = (x - of_own((lower + upper) / 2)).square().sum(dim=-1)
        nearest = none.scatter_reduce(-1, own, squared, "amin").gather(-1, own)
        near = squared <= nearest + _TIE * of_own((upper - lower).square().sum(dim=-1, keepdim=True)).squeeze(-1)
        last = torch.iinfo(torch.int64).max
        arm = torch.full_like(none, last, dtype=torch.int64)
        # The representative is the lowest index among the arms that are nearest to the centre, up to rounding.
        arm = arm.scatter_reduce(-1, own, torch.where(near, members, last), "amin")[..., :-1]
        arm = torch.where(arm < last, arm, -1)
        representative = of_own(rows.points(arm).double())
        reach = kernel_distance(kernel, representative, x)
        # The distance of the representative to itself is exactly 0, whatever the rounding of the kernel.
        reach = torch.where(members == nn.functional.pad(arm, (0, 1)).gather(-1, own), 0.0, reach)
        radius = torch.zeros_like(none).scatter_reduce(-1, own, reach, "amax")[..., :-1]
        return Cells(lower, upper, arm, radius, members, own)


def padded_indices(mask: Tensor) -> Tensor:
    """Indices of the True entries of each row in order, `batch_shape x A` to `batch_shape x n`, −1 where padded."""
    flat = mask.reshape(-1, mask.shape[-1])
    row, index = flat.nonzero(as_tuple=True)
    count = flat.sum(dim=-1)
    n = int(count.max())
    start = count.cumsum(dim=-1) - count
    out = torch.full((flat.shape[0], n), -1, dtype=torch.int64, device=mask.device)
    out[row, torch.arange(row.shape[0], device=mask.device) - start[row]] = index
    return out.reshape(*mask.shape[:-1], n)
