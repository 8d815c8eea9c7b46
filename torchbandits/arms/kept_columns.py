"""Storage of kernel columns within a memory budget: slots are reused for other columns when the budget is exhausted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchbandits.transfers import to_device
from torchbandits.types import Picks


class KeptColumns:
    """Columns `k(x_j, ·)` of some rows of the statistics, `A` numbers each, in separate slots for each batch row.

    Args:
        batch_shape: Leading dimensions.
        num_arms: A.
        dtype: Dtype of the columns.
        device: Device of the columns.
        memory_budget: Bytes that the columns may occupy.
    """

    def __init__(
        self, batch_shape: torch.Size, num_arms: int, dtype: torch.dtype, device: torch.device, memory_budget: int
    ) -> None:
        self.batch_shape, self.num_arms = batch_shape, num_arms
        self.bytes_a_slot = batch_shape.numel() * num_arms * dtype.itemsize
        self.most = memory_budget // self.bytes_a_slot
        self.block = torch.empty(*batch_shape, 0, num_arms, dtype=dtype, device=device)
        # Slot of each row's column, −1 if it is not kept. This bookkeeping is done on the host.
        self._slot_of_row = torch.empty(batch_shape.numel(), 0, dtype=torch.int64)
        self._num_rows = [0] * batch_shape.numel()
        # The last `rows` tensor that was looked up, its slots, and whether all of its columns are kept.
        self._known: tuple[Tensor, Tensor, bool] | None = None
        # Slots of batch rows, the size of the block, and their lines in it.
        self._placed: tuple[Tensor, int, Tensor] | None = None

    def know(self, numbers: Sequence[int]) -> None:
        """Set the number of existing rows of each batch row, and forget columns that were kept for rows that did not exist yet
        (padded places stand for row 0)."""
        existed = [min(now, before) for now, before in zip(numbers, self._num_rows, strict=True)]
        if existed != self._num_rows or 0 in existed:
            row = torch.arange(self._slot_of_row.shape[-1])
            end = torch.tensor(existed).unsqueeze(-1)
            self._slot_of_row, self._known = self._slot_of_row.masked_fill(row >= end, -1), None
        self._num_rows = list(numbers)

    def slots(self, rows: Picks, here: Tensor | None = None) -> Tensor:
        """Slots of rows (`batch_shape x m`), −1 where a column is not kept. The slots of the last tensor are cached.

        Args:
            rows: On the device of the columns.
            here: The same on the host; copied from the device if not given.
        """
        if self._known is not None and self._known[0] is rows:
            return self._known[1]
        here = rows.cpu() if here is None else here
        if not self._slot_of_row.shape[-1]:
            return torch.full_like(rows, -1)
        flat, known = here.reshape(-1, here.shape[-1]), self._slot_of_row.shape[-1]
        slot = self._slot_of_row.gather(-1, flat.clamp_max(known - 1)).masked_fill(flat >= known, -1).reshape(rows.shape)
        if slot.dim() > 1 and rows.device.type != "cpu":
            # The lines are sent together with the slots.
            there, lines = to_device(rows.device, slot, slot + self._first_line(slot.shape))
            self._placed = (there, self.block.shape[-2], lines)
        else:
            there = to_device(rows.device, slot)[0]
        self._known = (rows, there, not bool((slot < 0).any()))
        return self._known[1]

    def found(self, rows: Picks, on_host: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Slots of rows (`batch_shape x m`), None unless all of their columns are kept; `on_host` copies rows to the host."""
        known = self._known
        if known is None or known[0] is not rows:
            slots = self.slots(rows, on_host(rows))
            known = self._known or (rows, slots, not slots.numel())
        return known[1] if known[2] else None

    def missing(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Distinct rows without a column, and free slots for them, `batch_shape x p` on the host, −1 where padded.

        New slots are allocated while the budget lasts. Beyond it, columns of rows that are not in `rows` are evicted and their
        slots reused. Fill the slots by `put`. Cost O(u). Storage grows by half; its columns are then copied, and temporarily
        held twice.

        Args:
            rows: `batch_shape x m`, on the host.
        """
        self._known = None
        rows = rows.reshape(-1, rows.shape[-1]).sort(dim=-1).values
        size = max(int(rows.max()) + 1, self._slot_of_row.shape[-1])
        slot_of_row = torch.nn.functional.pad(self._slot_of_row, (0, size - self._slot_of_row.shape[-1]), value=-1)
        slots = slot_of_row.gather(-1, rows)
        lacking = slots < 0
        lacking[:, 1:] &= rows[:, 1:] != rows[:, :-1]
        numbers, used = lacking.sum(dim=-1), (slot_of_row >= 0).sum(dim=-1)
        full = used + numbers > self.most
        if bool(full.any()):
            slot_of_row = torch.where(
                full.unsqueeze(-1), torch.full_like(slot_of_row, -1).scatter(-1, rows, slots), slot_of_row
            )
            used = (slot_of_row >= 0).sum(dim=-1)
        self._slot_of_row = slot_of_row
        self._grow_(int((used + numbers).max()))
        # One more place for rows without a slot.
        room = self.block.shape[-2]
        spare = torch.ones(len(rows), room + 1, dtype=torch.bool)
        spare.scatter_(-1, torch.where(slot_of_row < 0, room, slot_of_row), False)
        p = int(numbers.max())
        padded = torch.arange(p) >= numbers.unsqueeze(-1)
        found = []
        for values, marked in ((rows, lacking), (torch.arange(room).expand(len(rows), -1), spare[:, :room])):
            places = (~marked).to(torch.uint8).sort(dim=-1, stable=True).indices[:, :p]
            found.append(values.gather(-1, places).masked_fill_(padded, -1).reshape(*self.batch_shape, -1))
        return found[0], found[1]

    def put(self, rows: Tensor, slots: Tensor, columns: Tensor) -> None:
        """Store columns (`batch_shape x p x A`) of rows in the slots returned by `missing`, −1 where padded. With batch rows,
        columns may also be those that are not padding, in order, `n x A`."""
        self._known = None
        p, lines, device = rows.shape[-1], self.batch_shape.numel(), self.block.device
        row, slot = rows.reshape(lines, p), slots.reshape(lines, p)
        line, place = (row >= 0).nonzero(as_tuple=True)
        if self.batch_shape and columns.dim() == 2:
            fresh, source = columns, torch.arange(len(line))
        else:
            fresh, source = columns.expand(*rows.shape, self.num_arms).reshape(-1, self.num_arms), line * p + place
        slot = slot[line, place]
        block, target = self.block.reshape(-1, self.num_arms), line * self.block.shape[-2] + slot
        if len(target) == 1:
            block[int(target)] = fresh[int(source)]
        elif len(target) == len(fresh):
            block.index_copy_(0, to_device(device, target)[0], fresh)
        else:
            target, source = to_device(device, target, source)
            block.index_copy_(0, target, fresh.index_select(0, source))
        # Assigned last, so that an interrupted call leaves no slot without its column.
        self._slot_of_row[line, row[line, place]] = slot

    def at(self, slots: Tensor, part: slice) -> Tensor:
        """Columns in slots (`batch_shape x m`) at a slice of the arms, `batch_shape x m x chunk`."""
        block = self.block.reshape(-1, self.num_arms)[:, part].index_select(0, self._lines(slots).reshape(-1))
        return block.reshape(*slots.shape, block.shape[-1])

    def _lines(self, slots: Tensor) -> Tensor:
        """Lines of the block without batch rows for slots (`batch_shape x m`), computed once for the same slots."""
        size, known = self.block.shape[-2], self._placed
        if slots.dim() == 1:
            return slots
        if known is None or known[0] is not slots or known[1] != size:
            self._placed = known = (slots, size, slots + to_device(slots.device, self._first_line(slots.shape))[0])
        return known[2]

    def _first_line(self, shape: torch.Size) -> Tensor:
        """The first line of each batch row in the block without batch rows, on the host."""
        return torch.arange(shape[:-1].numel()).reshape(*shape[:-1], 1) * self.block.shape[-2]

    def between(self, slots: Tensor, index: Picks) -> Tensor:
        """Columns in slots (`batch_shape x m`) at arms (`batch_shape x p`), `batch_shape x m x p`."""
        if self.block.device.type != "cpu":
            # One operation; places that are padding (−1) are read from the end.
            block = self.block.reshape(-1, self.num_arms)
            return block[self._lines(slots).unsqueeze(-1), index.unsqueeze(-2)]
        start = self._lines(slots) * self.num_arms
        place = start.unsqueeze(-1) + index.clamp_min(0).unsqueeze(-2)
        # index_select on the flat block takes a third of the time of advanced indexing.
        return self.block.reshape(-1).index_select(0, place.reshape(-1)).reshape(place.shape)

    def _grow_(self, size: int) -> None:
        old = self.block.shape[-2]
        if size <= old:
            return
        # From a third of the budget on the rest is taken at once: further copies would need more memory than they save, as the
        # original is still there. Pages of the CPU that are not used yet cost nothing.
        capacity = self.most if 3 * old > self.most else min(self.most, max(size + 32, old + old // 2))
        grown = self.block.new_empty(*self.batch_shape, capacity, self.num_arms)
        grown[..., :old, :] = self.block
        self.block = grown
