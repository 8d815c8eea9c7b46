"""Sums of the observations with one row per distinct point, so that nothing grows with the number of pulls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchbandits.buffered import Buffered
from torchbandits.checks import as_tensor
from torchbandits.display import kind
from torchbandits.errors import NonFiniteError, ShapeError, require
from torchbandits.transfers import to_device
from torchbandits.types import ArrayLike, PickMask, Picks, Points


def aggregate(index: Picks, mask: PickMask, *values: Tensor) -> tuple[Tensor, ...]:
    """Distinct indices of each row in order of first appearance, their counts, and sums of `values` over each.

    Args:
        index: `batch_shape x q`.
        mask: `batch_shape x q`, False in places to be ignored.
        values: `batch_shape x q` each.

    Returns:
        `distinct` (`batch_shape x p`, −1 where padded), `counts` and one sum per value, all `batch_shape x p`, p the
        largest number of distinct indices in a row. Cost O(q log q).
    """
    q = index.shape[-1]
    if q == 1:
        kept = mask.to(torch.float64)
        drop = ~mask
        found = [index.masked_fill(drop, -1), kept]
        for value in values:
            found.append(value.double().masked_fill(drop, 0.0))
        return tuple(found)
    far = torch.iinfo(torch.int64).max
    ordered, order = index.masked_fill(~mask, far).sort(dim=-1, stable=True)
    new = torch.ones_like(mask)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    group = new.long().cumsum(dim=-1) - 1
    # Groups are ranked by the position of their first appearance; padding comes last.
    position = torch.where(ordered < far, order, far)
    starts = torch.full_like(index, far).scatter_reduce(-1, group, position, "amin")
    rank = starts.argsort(dim=-1, stable=True).argsort(dim=-1)
    slot = torch.empty_like(index).scatter(-1, order, rank.gather(-1, group))
    distinct = torch.full_like(index, -1).scatter(-1, slot, index.masked_fill(~mask, -1))
    ones = mask.to(torch.float64)
    sums = [torch.zeros_like(ones).scatter_add(-1, slot, torch.where(mask, v.double(), 0.0)) for v in values]
    counts = torch.zeros_like(ones).scatter_add(-1, slot, ones)
    p = int((distinct >= 0).sum(dim=-1).max()) if distinct.numel() else 0
    return distinct[..., :p], counts[..., :p], *(s[..., :p] for s in sums)


class Statistics(Buffered):
    """Distinct points with their weights n, sums of rewards s and sums of squared rewards q, in order of first pull.

    Args:
        dim: Number of features of a point.
        batch_shape: Leading dimensions; batch rows hold different numbers of points (`num_rows`).
        device: Device of the buffers, which are float64.

    Buffers: `points` `batch_shape x u x d`, `totals` `batch_shape x u x 3` (weight, sum, sum of squares), `num_rows`
    `batch_shape`, on the host wherever the others are. Places beyond `num_rows` hold zeros. Buffers are replaced, never written
    in place, so a reference to one is a snapshot.
    """

    points: Tensor
    totals: Tensor
    num_rows: Tensor
    _grows = ("points", "totals")

    def __init__(self, dim: int, batch_shape: torch.Size, device: torch.device | None = None) -> None:
        super().__init__()
        for name, width in (("points", dim), ("totals", 3)):
            self.register_buffer(name, torch.zeros(*batch_shape, 0, width, dtype=torch.float64, device=device))
        self.register_buffer("num_rows", torch.zeros(batch_shape, dtype=torch.int64))
        # `num_rows` and the mask on the host; the same mask there and on the device.
        self._known_mask: tuple[Tensor, Tensor] | None = None
        self._device_mask: tuple[Tensor, Tensor] | None = None
        self._known_weights: tuple[Tensor, Tensor] | None = None
        # The totals, and their weights on the host, which may lack the last places.
        self._host_weights: tuple[Tensor, Tensor] | None = None

    @property
    def weights(self) -> Tensor:
        """n, `batch_shape x u`, a view of the totals."""
        totals, known = self._buffers["totals"], self._known_weights
        if known is None or known[0] is not totals:
            self.__dict__["_known_weights"] = known = (totals, totals[..., 0])
        return known[1]

    @property
    def weights_on_host(self) -> Tensor:
        """`weights` on the host: copied from a device once, then updated on the host by pulls whose rows are known there."""
        totals, known = self._buffers["totals"], self._host_weights
        if totals.device.type == "cpu":
            return self.weights
        if known is None or known[0] is not totals:
            self._host_weights = known = (totals, self.weights.cpu())
        return nn.functional.pad(known[1], (0, self.size - known[1].shape[-1]))

    @property
    def sums(self) -> Tensor:
        """s, `batch_shape x u`, reward units."""
        sums: Tensor = self._buffers["totals"][..., 1]
        return sums

    @property
    def squares(self) -> Tensor:
        """q, `batch_shape x u`, reward units squared."""
        return self.totals[..., 2]

    @property
    def size(self) -> int:
        """Number of places per batch row, the largest `num_rows`."""
        size: int = self._buffers["totals"].shape[-2]
        return size

    @property
    def mask(self) -> Tensor:
        """`batch_shape x u`, True in places that hold a point. Cached until `num_rows` is replaced."""
        here, device, known = self.mask_on_host, self._buffers["totals"].device, self._device_mask
        if device.type == "cpu":
            return here
        if known is None or known[0] is not here:
            self._device_mask = known = (here, to_device(device, here)[0])
        return known[1]

    @property
    def mask_on_host(self) -> Tensor:
        """`mask` on the host."""
        num_rows, size, known = self._buffers["num_rows"], self.size, self._known_mask
        if known is None or known[0] is not num_rows or known[1].shape[-1] != size:
            self._known_mask = known = (num_rows, torch.arange(size) < num_rows.unsqueeze(-1))
        return known[1]

    @property
    def pulled(self) -> Tensor:
        """`batch_shape x u`, True in places of points with pulls: not padded, and not forgotten."""
        return self.mask & (self.weights > 0)

    @property
    def ends(self) -> Tensor:
        """`num_rows` on the device of the points, `batch_shape x 1`."""
        return to_device(self.totals.device, self.num_rows.unsqueeze(-1))[0]

    def at(self, rows: Picks) -> Tensor:
        """The points of rows (`batch_shape x p`, row 0 where −1), `batch_shape x p x d`."""
        return self.points.gather(-2, rows.clamp_min(0).unsqueeze(-1).expand(*rows.shape, self.points.shape[-1]))

    def points_of(self, place: tuple[int, ...]) -> Tensor:
        """The points of the batch row at `place`, `u x d`, without padding."""
        return self.points[place][: int(self.num_rows[place])]

    def pulled_of(self, place: tuple[int, ...]) -> Tensor:
        """The points with pulls of the batch row at `place`, `u x d`: neither padding nor forgotten."""
        return self.points[place][self.pulled[place]]

    @property
    def pulls(self) -> Tensor:
        """Total weight of each batch row, `batch_shape`."""
        return self.weights.sum(dim=-1)

    def given(self, points: ArrayLike) -> Tensor:
        """Points that a user gives, which may be an array, as a tensor."""
        return points if isinstance(points, Tensor) else as_tensor("points", points, device=self.points.device)

    def checked(self, points: Any) -> Tensor:
        """Finite floating-point points with the features of these statistics, `batch_shape x n x d`, as float64."""
        dim = self.points.shape[-1]
        if not isinstance(points, Tensor) or not points.is_floating_point() or points.dim() < 2 or points.shape[-1] != dim:
            raise ShapeError(f"points must be floating point, batch_shape x n x {dim}, got {kind(points)}.")
        require(
            bool(torch.isfinite(as_tensor("points", points)).all()), "points have a NaN or infinite feature.", NonFiniteError
        )
        return points.double()

    def append_(self, points: Points, new: PickMask) -> Tensor:
        """Append the marked points of each batch row; return their rows (`batch_shape x p`, −1 where not marked), on the device
        of the marks, which may be the host. Cost O(u d) for a copy of the buffers."""
        totals, known = self._buffers["totals"], self._host_weights
        rows = self._appended(points, new)
        if known is not None and known[0] is totals:
            self._host_weights = (self.totals, known[1])
        return rows

    def _appended(self, points: Points, new: PickMask) -> Tensor:
        p, here = new.shape[-1], new.device
        # Batch rows of equal length all append at the end; a single one has no padding.
        if bool(new.all()) and (not self.num_rows.dim() or bool((self.num_rows == self.size).all())):
            rows = torch.arange(self.size, self.size + p, device=new.device).expand(new.shape)
            self.num_rows = self.num_rows + p
            self.totals = nn.functional.pad(self.totals, (0, 0, 0, p))
            self.points = torch.cat([self.points, points.double().expand(*new.shape, self.points.shape[-1])], dim=-2)
            return rows
        if not self.num_rows.dim():
            # With the marks on the host, nothing waits for a device.
            count, device = int(new.sum()), self.totals.device
            rows = torch.where(new, self.size + new.long().cumsum(dim=-1) - 1, -1)
            places = new.nonzero().squeeze(-1)
            fresh = points.double().index_select(-2, places if here == device else to_device(device, places)[0])
            self.num_rows = self.num_rows + count
            self.totals = nn.functional.pad(self.totals, (0, 0, 0, count))
            self.points = torch.cat([self.points, fresh], dim=-2)
            return rows
        new = new.cpu()
        rows = torch.where(new, self.num_rows.unsqueeze(-1) + new.long().cumsum(dim=-1) - 1, -1)
        self.num_rows = self.num_rows + new.sum(dim=-1)
        grown = int(self.num_rows.max()) - self.size
        if grown > 0:
            self.totals = nn.functional.pad(self.totals, (0, 0, 0, grown))
        # Points that are not marked are written to a spare row that is removed at the end.
        slot = to_device(self.totals.device, torch.where(rows >= 0, rows, self.size))[0]
        slot = slot.unsqueeze(-1).expand(*rows.shape, points.shape[-1])
        spare = nn.functional.pad(self.points, (0, 0, 0, max(grown, 0) + 1))
        self.points = spare.scatter(-2, slot, points.double().expand(slot.shape))[..., :-1, :]
        return rows.to(here)

    def add_(self, rows: Picks, weights: Tensor, sums: Tensor, squares: Tensor, *, whole: bool = False) -> Statistics:
        """Add weights, sums and sums of squares to rows (`batch_shape x p` each; row −1 is ignored, and there is none if
        `whole`), all of them on the host or on the device. Cost O(u)."""
        totals, slot = self._buffers["totals"], rows
        if whole and rows.dim() == 1 and rows.shape[0] == 1 and totals.device.type == "cpu":
            # One pull of one run, without the overhead of tensor operations.
            totals = totals.clone()
            row = totals.numpy()[int(rows)]
            row[0], row[1], row[2] = row[0] + float(weights), row[1] + float(sums), row[2] + float(squares)
            self._buffers["totals"] = totals
            return self
        added = torch.stack([weights, sums, squares], dim=-1).double()
        if not whole:
            slot, added = rows.clamp_min(0), added.masked_fill_((rows < 0).unsqueeze(-1), 0.0)
        if slot.device != totals.device:
            known = self.weights_on_host.scatter_add(-1, slot, added[..., 0])
            slot, added = to_device(totals.device, slot, added)
            self._buffers["totals"] = totals.scatter_add(-2, slot.unsqueeze(-1).expand(*slot.shape, 3), added)
            self._host_weights = (self.totals, known)
            return self
        self._buffers["totals"] = totals.scatter_add(-2, slot.unsqueeze(-1).expand(*slot.shape, 3), added)
        return self

    def retell_(self, totals: Tensor, over: Tensor) -> Statistics:
        """Replace weights, sums and sums of squares, `batch_shape x u x 3`, in marked batch rows (`batch_shape` booleans)."""
        self.totals = torch.where(over[..., None, None], totals, self.totals)
        return self

    def shrunk(self, share: Tensor, on_host: Tensor) -> Statistics:
        """The same points, with totals multiplied by `share` (`batch_shape x u`), which is given on the host, too."""
        other = copy.copy(self)
        other.__dict__["_buffers"] = dict(self._buffers, totals=share.unsqueeze(-1) * self.totals)
        other._known_weights, other._host_weights = None, (other.totals, on_host * self.weights_on_host)
        return other

    def clear_(self, over: Tensor) -> Statistics:
        """Remove all data of the marked batch rows (`batch_shape` booleans). Cost O(u d)."""
        self.num_rows = torch.where(over.cpu(), 0, self.num_rows)
        size, marked = int(self.num_rows.max()), over[..., None, None]
        self.totals = self.totals[..., :size, :].masked_fill(marked, 0.0)
        self.points = self.points[..., :size, :].masked_fill(marked, 0.0)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Statistics:
        super()._apply(fn, recurse)
        self.num_rows, self._known_mask, self._host_weights = self.num_rows.cpu(), None, None
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        # Loading overwrites buffers in place, so the values cached from them are invalid.
        self._known_mask = self._host_weights = None
