"""A tree of cells whose leaves cover the domain, with upper bounds over whole cells that are split where bounds are loose."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchbandits.arms.cells import Division
from torchbandits.arms.growing import GrowingTable
from torchbandits.buffered import Buffered

# Indices within this relative distance are tied, since symmetric twins differ by rounding only. The earliest cell wins.
_TIE = 1e-9
# Sides within this relative distance are considered equally long, and the first of them is cut.
_EQUAL_SIDES = 1e-9


class CellTree(Buffered):
    r"""Leaves that cover the domain, each with a representative and an index that bounds the function over the whole leaf.

    .. math:: I(c) = \min(u(x_c), u(x_p) + V_p) + V_c, \quad V_c = F \max_{x \in c} d_k(x_c, x), \quad
              d_k(x, x')^2 = k(x, x) + k(x', x') - 2 k(x, x')

    with x_c the representative of leaf c, p its parent, and u the upper confidence bound. A function f of RKHS norm F varies by
    at most V_c in c, so wherever u bounds f at the representatives, I(c) bounds f in c. Only leaves are kept, together with the
    values of their parents that the index needs.

    Args:
        table: Posterior at the representatives.
        division: The domain that is divided.
        norm_bound: F, a number or `batch_shape` of them.
        kappa2: Largest k(x, x) in the domain, of the same shape.
        num_children: N, odd.
        max_depth: Depth at which leaves are no longer split; None for no limit.

    Buffers, all `batch_shape x L`, in the same order: `variation` V_c (−∞ where padded), `parent_variation` V_p (∞ at the
    root), `place` and `parent_place` of the representatives in the table, `depth`; `lower`, `upper` `batch_shape x L x d`.
    """

    variation: Tensor
    parent_variation: Tensor
    place: Tensor
    parent_place: Tensor
    depth: Tensor
    lower: Tensor
    upper: Tensor
    norm_bound: Tensor
    _grows = ("variation", "parent_variation", "place", "parent_place", "depth", "lower", "upper")
    kappa2: Tensor

    def __init__(
        self,
        table: GrowingTable,
        division: Division,
        norm_bound: Tensor,
        kappa2: Tensor,
        num_children: int,
        max_depth: int | None,
    ) -> None:
        super().__init__()
        self.table, self.division, self.num_children, self.max_depth = table, division, num_children, max_depth
        root = division.root()
        place = table.look_at_(root.arm)
        F = norm_bound.to(root.radius).expand(place.shape[:-1]).unsqueeze(-1)
        self.register_buffer("norm_bound", F, persistent=False)
        self.register_buffer("kappa2", kappa2, persistent=False)
        self.register_buffer("variation", F * root.radius)
        self.register_buffer("parent_variation", torch.full_like(root.radius, torch.inf))
        self.register_buffer("place", place)
        self.register_buffer("parent_place", place)
        self.register_buffer("depth", torch.zeros_like(place))
        self.register_buffer("lower", root.lower.clone())
        self.register_buffer("upper", root.upper.clone())

    # ------------------------------------------------------------------ reading

    @property
    def num_leaves(self) -> Tensor:
        """Number of leaves of each batch row, `batch_shape`."""
        return (self.variation > -torch.inf).sum(dim=-1)

    @property
    def arm(self) -> Tensor:
        """Representative of every leaf, `batch_shape x L`, −1 where padded."""
        return torch.where(self.variation > -torch.inf, self.table.arm.gather(-1, self.place), -1)

    def upper_bound(self, width: Tensor) -> Tensor:
        """Upper bound of f at every place of the table, `batch_shape x R`, for widths `batch_shape`."""
        std = (self.table.posterior.regularization * self.table.leverage).sqrt()
        return torch.addcmul(self.table.mean(), std, width.unsqueeze(-1))

    def index(self, upper: Tensor) -> Tensor:
        """The index of every leaf, `batch_shape x L` (−∞ where padded), from upper bounds at the places."""
        above = upper.gather(-1, self.parent_place) + self.parent_variation
        return torch.minimum(upper.gather(-1, self.place), above) + self.variation

    def leaders(self, values: Tensor, width: Tensor) -> Tensor:
        """Whether values (`batch_shape x n`) are tied with the best, booleans of the same shape."""
        best = values.amax(dim=-1, keepdim=True)
        scale = best.abs() + (width * self.kappa2.sqrt()).unsqueeze(-1)
        return values >= best - _TIE * scale

    def best_leaf(self, values: Tensor, width: Tensor) -> Tensor:
        """The leaf of the largest value, `batch_shape x L` to `batch_shape x 1`; of tied ones, the one evaluated first."""
        last = torch.iinfo(torch.int64).max
        return torch.where(self.leaders(values, width), self.place, last).argmin(dim=-1, keepdim=True)

    def due(self, leaf: Tensor, width: Tensor) -> Tensor:
        """Whether leaves (`batch_shape x 1`) must be split before they are evaluated: w σ(x) ≤ V, and a split is possible."""
        variation, depth = self.variation.gather(-1, leaf), self.depth.gather(-1, leaf)
        leverage = self.table.leverage.gather(-1, self.place.gather(-1, leaf))
        spread = width.unsqueeze(-1) * (self.table.posterior.regularization * leverage).sqrt()
        due = (spread <= variation) & (variation > 0)
        if self.max_depth is not None:
            due &= depth < self.max_depth
        if not bool(due.any()):
            return due
        lower, upper = self._corners(leaf)
        third = lower + (upper - lower).amax(dim=-1, keepdim=True) / self.num_children
        # A side between two neighbouring floats cannot be cut further.
        return due & (third > lower).any(dim=-1)

    # ------------------------------------------------------------------ writing

    @torch.no_grad()
    def refine_(self, width: Tensor) -> CellTree:
        """Split the best leaf while it is due. Afterwards the best leaf is to be evaluated.

        Args:
            width: `batch_shape`.

        Cost: O(L + m²) per split, plus the cost of the division.
        """
        while True:
            leaf = self.best_leaf(self.index(self.upper_bound(width)), width)
            due = self.due(leaf, width)
            if not bool(due.any()):
                return self
            self._split_(leaf, due)

    def _corners(self, leaf: Tensor) -> tuple[Tensor, Tensor]:
        slot = leaf.unsqueeze(-1).expand(*leaf.shape, self.lower.shape[-1])
        return self.lower.gather(-2, slot), self.upper.gather(-2, slot)

    def _split_(self, leaf: Tensor, due: Tensor) -> None:
        """Split leaves (`batch_shape x 1`) along their longest sides, in rows where they are due."""
        N, (lower, upper) = self.num_children, self._corners(leaf)
        sides = upper - lower
        dim = (sides >= (1 - _EQUAL_SIDES) * sides.amax(dim=-1, keepdim=True)).byte().argmax(dim=-1)
        along = dim.unsqueeze(-1)
        start, end = lower.gather(-1, along).squeeze(-1), upper.gather(-1, along).squeeze(-1)
        cut = start + (end - start) * (torch.arange(N + 1, dtype=start.dtype, device=leaf.device) / N)
        # The last cut must be the end itself, so that children cover their parent in spite of rounding.
        cut = torch.cat([cut[..., :-1], end], dim=-1)
        shape = (*leaf.shape[:-1], N, lower.shape[-1])
        along = along.expand(*shape[:-1], 1)
        lower = lower.expand(shape).scatter(-1, along, cut[..., :-1].unsqueeze(-1))
        upper = upper.expand(shape).scatter(-1, along, cut[..., 1:].unsqueeze(-1))
        arm = self.table.arm.gather(-1, self.place.gather(-1, leaf))
        cells = self.division.divide_(torch.where(due, leaf, -1), arm, dim, cut, lower, upper)
        real = cells.arm >= 0
        rank = real.long().cumsum(dim=-1) - 1
        # The first child takes the slot of its parent, all others are appended.
        slot = torch.where(rank == 0, leaf, self.num_leaves.unsqueeze(-1) + rank - 1)
        size = max(int(torch.where(real, slot, -1).max()) + 1, self.place.shape[-1])
        slot = torch.where(real, slot, size)
        old = {name: getattr(self, name).gather(-1, leaf).expand(slot.shape) for name in ("variation", "place", "depth")}
        self._write_("parent_variation", slot, old["variation"], size, torch.inf)
        self._write_("parent_place", slot, old["place"], size)
        self._write_("depth", slot, old["depth"] + 1, size)
        self._write_("place", slot, self.table.look_at_(cells.arm), size)
        self._write_("variation", slot, self.norm_bound * cells.radius, size, -torch.inf)
        self._write_("lower", slot, lower, size)
        self._write_("upper", slot, upper, size)
        self.division.settle_(cells, slot)

    def _write_(self, name: str, slot: Tensor, value: Tensor, size: int, fill: float = 0.0) -> None:
        """Replace a buffer by a copy of `size` leaves with values at slots; values at slot `size` are discarded."""
        buffer: Tensor = getattr(self, name)
        if buffer.dim() > slot.dim():
            grown = nn.functional.pad(buffer, (0, 0, 0, size + 1 - buffer.shape[-2]))
            self._buffers[name] = grown.scatter_(-2, slot.unsqueeze(-1).expand(value.shape), value)[..., :-1, :]
        else:
            grown = nn.functional.pad(buffer, (0, size + 1 - buffer.shape[-1]), value=fill)
            self._buffers[name] = grown.scatter_(-1, slot, value)[..., :-1]
