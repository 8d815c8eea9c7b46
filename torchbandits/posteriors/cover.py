"""Cover of a box by closed cubes: which cells contain a point, and when a cell splits."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchbandits.errors import ArgumentError
from torchbandits.types import Points

# A grid of 2⁴⁰ cells per side is not split further, because a side is then below the rounding error of a coordinate.
_FINEST = 40
# Coordinates are rounded to this fraction of the box, or to the rounding error of the arms if that is larger.
_GRAIN = 2.0**-30


class Cover(nn.Module):
    r"""Closed cubes over a box, mapped to the unit cube: unit = (x − lower)/(upper − lower), 0 where the box has no extent.

    The first cover is a grid of ⌈T^{q/d}⌉ cells per side, q = d(d+1)/(d(d+2)+2ν). A cell of side ρ with n pulls splits into
    2^d closed children as soon as

    .. math:: \rho^{-1/b} < n + 1, \quad b = (d+1)/(d+2\nu).

    A cell is given by its level (the number of times it was halved) and d integer coordinates g. It contains the points whose
    unit coordinates, times the cells per side at its level, lie in [g, g + 1]; a point on an edge belongs to every cell there.

    Whether a point lies on an edge is decided in integer arithmetic. Unit coordinates are first rounded to a grid that contains
    the edges of all cells, so that a point within the tolerance of an edge lies on it at every level, and each point of a cell
    that splits belongs to one of the children. The tolerance, half the spacing of that grid, is

    .. math:: \max\big(2^{-31}, 8\,\text{eps}\,\max(|\text{lower}|, |\text{upper}|)/(\text{upper} - \text{lower})\big)

    up to a factor of 2, and at most 2⁻¹¹ of a side of the first grid. The second term bounds the error of a unit coordinate
    whose point and corners are each a few rounding errors away from their nominal values (such as i/13 of the way); the first
    leaves room for coordinates that were themselves computed.

    Args:
        lower: `rows x d`, corner of the box in the units of the arms (one row in all, or one per batch row).
        upper: `rows x d`, the opposite corner.
        nu: Smoothness ν > 0 of the kernel.
        horizon: T, number of pulls to come.
        eps: Relative rounding error of the arms: `torch.finfo(arms.dtype).eps`.

    Source: Janz, Burt & González 2020, section 4.
    """

    lower: Tensor
    extent: Tensor
    grain: Tensor

    def __init__(self, lower: Tensor, upper: Tensor, nu: float, horizon: int, eps: float = 2.0**-52) -> None:
        super().__init__()
        d = lower.shape[-1]
        self.register_buffer("lower", lower.double(), persistent=False)
        self.register_buffer("extent", (upper.double() - lower.double()), persistent=False)
        self.cells_a_side = max(1, math.ceil(horizon ** ((d + 1) / (d * (d + 2) + 2 * nu)) - 1e-9))
        # The exponent 1/b of the splitting rule.
        self.growth = (d + 2 * nu) / (d + 1)
        # Level of the finest cells.
        self.depth = max(0, _FINEST + 1 - self.cells_a_side.bit_length())
        self.register_buffer("grain", self._grain(eps), persistent=False)

    @property
    def dim(self) -> int:
        """Number of features d."""
        return self.lower.shape[-1]

    def extra_repr(self) -> str:
        """The map to the unit cube, the first grid and the splitting rule."""
        lower, upper = self.lower, self.lower + self.extent
        box = f"lower={lower.squeeze(0).tolist()}, upper={upper.squeeze(0).tolist()}"
        rule = f"{self.cells_a_side} cells a side at first, a cell splits when side^(-{self.growth:.4g}) < pulls + 1"
        return f"unit = (x - lower)/(upper - lower), {box}; {rule}"

    def scaled(self, points: Points, row: Tensor) -> Tensor:
        """Integer coordinates of `n x d` points in the given batch rows (`n`), int64, in sides of the finest cells: 0 to
        `cells_a_side << depth`.

        Raises:
            ArgumentError: If a point lies outside the box; the message names bounds that would contain all points.
        """
        x = points.detach().double()
        several = self.lower.shape[0] > 1
        lower, extent, grain = (v[row] if several else v for v in (self.lower, self.extent, self.grain))
        # Points beyond the edge by at most the rounding error of single precision are moved onto the edge.
        single = 8 * torch.finfo(torch.float32).eps * torch.maximum(lower.abs(), (lower + extent).abs())
        slack = 1e-9 * extent + torch.where(extent > 0, torch.minimum(single, extent / 1000), single)
        outside = (x < lower - slack) | (x > lower + extent + slack)
        if bool(outside.any()):
            corners = torch.cat([x, self.lower, self.lower + self.extent])
            raise ArgumentError(
                f"{int(outside.any(dim=-1).sum())} points lie outside the box that is covered; bounds that hold them all: "
                f"[{corners.amin(0).tolist()}, {corners.amax(0).tolist()}]."
            )
        unit = torch.where(extent > 0, (x - lower) / torch.where(extent > 0, extent, 1.0), 0.0).clamp(0, 1)
        return (unit * (self.cells_a_side << self.depth) / grain).round().mul_(grain).long()

    def limit(self, level: Tensor) -> Tensor:
        """Limit ρ^(−1/b) of each level: a cell splits when its number of pulls plus one exceeds the limit. Infinite at the
        finest level."""
        side = self.cells_a_side * torch.exp2(level.double())
        # If ρ^(−1/b) is an integer, rounding must not decide.
        return torch.where(side < 2.0**_FINEST, side**self.growth * (1 + 1e-12), torch.inf)

    def touching(self, scaled: Tensor, level: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The cells of a level that contain each point.

        Args:
            scaled: `n x d`, result of `scaled`.
            level: `n`, integers.
            low: `n x d`, smallest coordinates of cells to consider; `high`, the largest. These cells must contain the point.

        Returns:
            Point indices and cell coordinates, `m` and `m x d`, one line per pair. Cost O(m d).
        """
        bits = (self.depth - level).unsqueeze(-1)
        above = scaled >> bits
        # A point on an edge shared by two cells also belongs to the lower cell.
        shared = ((above << bits) == scaled) & (above > low) & (above <= high)
        point, coords = torch.arange(scaled.shape[0], device=scaled.device), torch.maximum(torch.minimum(above, high), low)
        for j in range(self.dim):
            edge = shared[point, j].nonzero().squeeze(-1)
            if edge.numel():
                below = coords[edge]
                below[:, j] -= 1
                point, coords = torch.cat([point, point[edge]]), torch.cat([coords, below])
        return point, coords

    def first(self, scaled: Tensor) -> tuple[Tensor, Tensor]:
        """The cells of the first grid that contain each of `n x d` points, as pairs like those of `touching`."""
        zero = torch.zeros(scaled.shape[0], dtype=torch.int64, device=scaled.device)
        low = zero.unsqueeze(-1).expand(scaled.shape)
        return self.touching(scaled, zero, low, low + self.cells_a_side - 1)

    def refine(
        self, root: Tensor, level: Tensor, coords: Tensor, scaled: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Split cells until none of them is due, and drop children without points.

        Args:
            root: `n`, the cell from which each point's cell descends; `level` and `coords` (`n x d`) describe that cell.
            scaled: `n x d`, result of `scaled`, in any order.
            weight: `n`, number of pulls of each point.

        Returns:
            `source` (`m`, the point of each line), `group` (`m`, its cell) and the cells, `k x (2 + d)` integers (root, level,
            coordinates) in lexicographic order; lines are in order of cell, then of point. Cost O(m d log m) per level.
        """
        source = torch.arange(root.shape[0], device=root.device)
        key = torch.cat([root.unsqueeze(-1), level.unsqueeze(-1), coords], dim=-1)
        while True:
            cells, group = torch.unique(key, dim=0, return_inverse=True)
            pulls = weight.new_zeros(cells.shape[0]).index_add_(0, group, weight[source])
            due = (self.limit(cells[:, 1]) < pulls + 1)[group]
            if not bool(due.any()):
                order = torch.argsort(group * root.shape[0] + source)
                return source[order], group[order], cells
            split, low = key[due], 2 * key[due][:, 2:]
            point, finer = self.touching(scaled[source[due]], split[:, 1] + 1, low, low + 1)
            children = torch.cat([split[point, :1], split[point, 1:2] + 1, finer], dim=-1)
            source, key = torch.cat([source[~due], source[due][point]]), torch.cat([key[~due], children])

    def _grain(self, eps: float) -> Tensor:
        """The spacing that coordinates are rounded to, `rows x d` powers of two, in sides of the finest cells."""
        corner = torch.maximum(self.lower.abs(), (self.lower + self.extent).abs())
        error = 16 * eps * torch.where(self.extent > 0, corner / torch.where(self.extent > 0, self.extent, 1.0), 1.0)
        grain = error.clamp_min(_GRAIN) * (self.cells_a_side << self.depth)
        # At most a thousandth of a side, so that the cells of the first grid remain separate.
        most = max(0, self.depth - 10)
        # frexp is exact, so that all devices agree.
        exponent = torch.frexp(grain).exponent.clamp(0, most)
        return torch.exp2(exponent.double())
