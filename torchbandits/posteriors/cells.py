"""Pool of cells of varying size: arms, means, standard deviations and covariance of every cell, in a few flat tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchbandits.errors import ArgumentError, StateError, require
from torchbandits.posteriors.grouping import lines_of, sum_before, sum_by

# Rows of `numbers`, for an entry: posterior mean, standard deviation, pulls, sum of rewards.
MEAN, DEVIATION, WEIGHT, TOTAL = range(4)
# Rows of `members`, for an entry: its arm and its cell.
ARM, CELL = range(2)
# Rows of `facts`, for a cell. It splits when pulls + 1 exceed the limit.
PULLS, LOG_DET, LIMIT = range(3)
# Rows of `layout`, for a cell: first entry, number of entries, first place of its block, level, and d coordinates.
START, SIZE, OFFSET, LEVEL, COORDS = range(5)
# The entries of a batch row are allocated in runs of this length, so that a maximum can be found in two short passes.
RUN = 64
_NO_MEMBER, _NOTHING = (-1, 0), (-torch.inf, 0.0, 0.0, 0.0)


@dataclass
class Taken:
    """Some cells gathered into one padded batch: `k` cells, of which the largest has `P` entries. Padding has mean −∞.

    Attributes:
        cells: `k`, indices of the cells in their flat tensors.
        start: `k`, first entry of each cell.
        numbers: `4 x k x P`, the values of the entries.
        facts: `3 x k`, the values of the cells.
        block: `k x P x P`, leverage-scale covariances; zero where padded.
        entries: Positions that `numbers` was gathered from; `places`: those of `block`. None for a single cell, which is a
            view.
    """

    cells: Tensor
    start: Tensor
    numbers: Tensor
    facts: Tensor
    block: Tensor
    entries: Tensor | None = None
    places: Tensor | None = None


class Cells(nn.Module):
    """A pool of cells. An entry is an arm in a cell, and a cell of p entries owns p² places for their joint covariance.

    Entries and cells are stored by batch row, so that an operation on every entry is one pass over `B x E`; blocks are stored
    one after the other. Entry 0 of a batch row and place 0 of the blocks are spare: padding is read from and written to them.
    Children reuse the storage of the cell that split as far as they fit. Writes are in place; while there is a snapshot, the
    values that they overwrite are recorded.

    Args:
        num_rows: B, number of batch rows.
        num_arms: A, number of arms of each batch row.
        dim: d, number of features.
        memory_budget: Bytes that the blocks may occupy.
        device: Device of the buffers.

    Buffers: `numbers` `4 x B x E`, `members` `2 x B x E`, `facts` `3 x B x C`, `layout` `(4 + d) x B x C`, `blocks`, `places`
    `B x A x H` (entries of each arm, −1 where padded), `used` `2 x B` (number of entries and cells), `filled` (places in use);
    and `made` `B` (number of cells ever made), which is not saved because it follows from the cells.
    """

    numbers: Tensor
    members: Tensor
    facts: Tensor
    layout: Tensor
    blocks: Tensor
    places: Tensor
    used: Tensor
    filled: Tensor
    made: Tensor

    def __init__(self, num_rows: int, num_arms: int, dim: int, memory_budget: int, device: torch.device | None = None) -> None:
        super().__init__()
        self.memory_budget = memory_budget
        whole, real = torch.zeros((), dtype=torch.int64, device=device), torch.zeros((), dtype=torch.float64, device=device)
        self.register_buffer("numbers", real.new_tensor(_NOTHING)[:, None, None].repeat(1, num_rows, 1))
        self.register_buffer("members", whole.new_tensor(_NO_MEMBER)[:, None, None].repeat(1, num_rows, 1))
        self.register_buffer("facts", real.repeat(3, num_rows, 1))
        self.register_buffer("layout", whole.repeat(4 + dim, num_rows, 1))
        self.register_buffer("blocks", real.repeat(1))
        self.register_buffer("places", whole.repeat(num_rows, num_arms, 1) - 1)
        self.register_buffer("used", whole.new_tensor([1, 0]).unsqueeze(-1).repeat(1, num_rows))
        self.register_buffer("filled", whole + 1)
        self.register_buffer("made", whole.repeat(num_rows), persistent=False)
        self._journal: list[tuple[Tensor, Tensor | slice, Tensor]] | None = None

    # ------------------------------------------------------------------ reading

    def log_det(self) -> Tensor:
        """log det(I + K/λ) of every cell, `B x C` (0 where padded)."""
        return self.facts[LOG_DET, :, : int(self.used[1].max())]

    def flat(self, name: str) -> Tensor:
        """A buffer as a matrix with one line per quantity; batch rows and positions are merged into the second dimension."""
        buffer: Tensor = getattr(self, name)
        return buffer.view(buffer.shape[0], -1)

    def flat_entries(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the entries of `k` cells, `k x P` (the spare entry where padded), and their mask, False where padded."""
        start, size = self.flat("layout")[: SIZE + 1, cells]
        place = torch.arange(int(size.max()), device=size.device)
        inside = place < size.unsqueeze(-1)
        row = cells // self.layout.shape[-1] * self.members.shape[-1]
        return row.unsqueeze(-1) + torch.where(inside, start.unsqueeze(-1) + place, 0), inside

    def holding(self, arm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All entries of the given arms (`B x q`, −1 where padded), in order of batch row and column of `arm`.

        Returns batch row, column and entry number, one of each per entry.
        """
        H = self.places.shape[-1]
        held = self.places.gather(1, arm.clamp_min(0).unsqueeze(-1).expand(*arm.shape, H))
        row, pull, nth = ((held >= 0) & (arm >= 0).unsqueeze(-1)).nonzero(as_tuple=True)
        return row, pull, held[row, pull, nth]

    # ------------------------------------------------------------------ writing

    def take(self, cells: Tensor) -> Taken:
        """Gather cells (`k`, distinct) to be changed and written back by `put_`. A single cell is a view, changed in place."""
        layout, facts = self.flat("layout"), self.flat("facts")
        if cells.shape[0] == 1:
            c = int(cells)
            start, p, offset = layout[: OFFSET + 1, c].tolist()
            first = c // self.layout.shape[-1] * self.members.shape[-1] + start
            numbers = self._noted(self.flat("numbers"), slice(first, first + p))
            block = self._noted(self.blocks.view(1, -1), slice(offset, offset + p * p))
            c_only = slice(c, c + 1)
            return Taken(cells, layout[START, c_only], numbers.unsqueeze(1), self._noted(facts, c_only), block.view(1, p, p))
        entries, inside = self.flat_entries(cells)
        places = self._flat_places(cells, inside)
        numbers, block = self.flat("numbers")[:, entries], self.blocks[places]
        return Taken(cells, layout[START, cells], numbers, facts[:, cells], block, entries, places)

    def put_(self, taken: Taken) -> None:
        """Write back cells that `take` gathered and that were changed since."""
        if taken.entries is not None and taken.places is not None:
            self._write(self.flat("facts"), taken.cells, taken.facts)
            self._write(self.flat("numbers"), taken.entries, taken.numbers)
            self._write(self.blocks.view(1, -1), taken.places, taken.block)

    def write_fit_(self, cells: Tensor, numbers: Tensor, log_det: Tensor, block: Tensor) -> None:
        """Set means and deviations (`2 x k x P`), log determinants (`k`) and covariances (`k x P x P`) of cells."""
        entries, inside = self.flat_entries(cells)
        keep, facts = self.flat("numbers")[:, entries], self.flat("facts")[:, cells]
        keep[:WEIGHT] = torch.where(inside, numbers, keep[:WEIGHT])
        facts[LOG_DET] = log_det
        self._write(self.flat("numbers"), entries, keep)
        self._write(self.flat("facts"), cells, facts)
        both = inside.unsqueeze(-1) & inside.unsqueeze(-2)
        self._write(self.blocks.view(1, -1), self._flat_places(cells, inside), torch.where(both, block, 0.0))

    def drop_(self, cells: Tensor) -> None:
        """Remove cells (`k`) and release their storage."""
        entries, inside = self.flat_entries(cells)
        entries = entries[inside]
        E, (A, H) = self.members.shape[-1], self.places.shape[1:]
        pair = entries // E * A + self.flat("members")[ARM, entries]
        nth = (self.places.view(-1, H)[pair] == (entries % E).unsqueeze(-1)).byte().argmax(dim=-1)
        self._write(self.places.view(1, -1), pair * H + nth, torch.full_like(nth, -1))
        self._write(self.flat("numbers"), entries, self.numbers.new_tensor(_NOTHING).unsqueeze(-1).expand(-1, *entries.shape))
        self._write(self.flat("members"), entries, self.members.new_tensor(_NO_MEMBER).unsqueeze(-1).expand(-1, *entries.shape))
        self._write(self.flat("facts"), cells, torch.zeros_like(self.flat("facts")[:, cells]))
        self._write(self.flat("layout"), cells, torch.zeros_like(self.flat("layout")[:, cells]))

    def add_(
        self, row: Tensor, root: Tensor, room: Tensor, facts: Tensor, shape: Tensor, group: Tensor, arm: Tensor, numbers: Tensor
    ) -> Tensor:
        """Add k cells, in the storage of a dropped cell if they fit. Their blocks must be written afterwards.

        Args:
            row: `k`, batch row of each cell, non-decreasing; `root`, the dropped cell whose storage it may reuse, of the same
                shape.
            room: `4 x roots`, index, first entry, number of entries and first block place of each dropped cell (0 entries if
                none was dropped).
            facts: `3 x k`.
            shape: `(1 + d) x k`, level and coordinates.
            group: `n`, cell of each entry, non-decreasing; `arm`: `n`; `numbers`: `4 x n`.

        Returns:
            Indices of the cells, `k`, valid until the pool grows.

        Raises:
            ArgumentError: If the blocks do not fit the memory budget.
        """
        size = torch.bincount(group, minlength=row.shape[0])
        squares, (B, roots) = size * size, (self.used.shape[-1], room.shape[-1])
        cell_there, start_there, size_there, offset_there = room[:, root]
        fits, lies = ((sum_by(v, root, roots) <= most)[root] for v, most in ((size, room[2]), (squares, room[2].square())))
        # The first child of a cell inherits the index of its parent.
        inherits = size_there > 0
        inherits[1:] &= root[1:] != root[:-1]
        more, extra, new = torch.where(fits, 0, size), torch.where(lies, 0, squares), (~inherits).long()
        start = torch.where(fits, start_there + sum_before(size, root), self.used[0, row] + sum_before(more, row))
        cell = torch.where(inherits, cell_there, self.used[1, row] + sum_before(new, row))
        offset = torch.where(lies, offset_there + sum_before(squares, root), self.filled + extra.cumsum(0) - extra)
        self._reserve(self.used + torch.stack([sum_by(more, row, B), sum_by(new, row, B)]), self.filled + extra.sum())
        at = row * self.layout.shape[-1] + cell
        self._write(self.flat("layout"), at, torch.cat([torch.stack([start, size, offset]), shape]))
        self._write(self.flat("facts"), at, facts)
        entry = start[group] + torch.arange(group.shape[0], device=group.device) - (size.cumsum(0) - size)[group]
        where = row[group] * self.members.shape[-1] + entry
        self._write(self.flat("numbers"), where, numbers)
        self._write(self.flat("members"), where, torch.stack([arm, cell[group]]))
        self._note_places(row[group] * self.places.shape[1] + arm, entry)
        self.made = self._count_made()
        return at

    def repeat_(self, times: int) -> Cells:
        """Expand one batch row to `times` batch rows, each with its own blocks."""
        blocks = int(self.filled) - 1
        self._check_budget(1 + blocks * times)
        for name in ("numbers", "members", "facts", "layout", "places", "used"):
            buffer = getattr(self, name)
            setattr(self, name, torch.cat([buffer] * times, dim=0 if name == "places" else 1))
        shift = blocks * torch.arange(times, device=self.blocks.device).unsqueeze(-1)
        self.layout[OFFSET] += torch.where(self.layout[SIZE] > 0, shift, 0)
        self.blocks = torch.cat([self.blocks[:1], self.blocks[1 : 1 + blocks].repeat(times)])
        self.filled, self.made = 1 + times * (self.filled - 1), self.made.repeat(times)
        return self

    # ------------------------------------------------------------------ snapshots, growth, saved states and devices

    def snapshot(self) -> Callable[[], None]:
        """Function that restores the current cells, valid while it is the latest snapshot. Only values that are overwritten
        from now on are recorded."""
        kept, earlier = dict(self._buffers), self._journal
        journal: list[tuple[Tensor, Tensor | slice, Tensor]] = []
        self._journal = journal

        def restore() -> None:
            require(self._journal is journal, "only the latest snapshot of the cells can be restored.", StateError)
            for flat, where, old in reversed(journal):
                flat[:, where] = old
            self._buffers.update(kept)
            self._journal = earlier

        return restore

    def _count_made(self) -> Tensor:
        """Number of cells made so far, `B`: current cells and their ancestors, which have split. Cost O(C log C) per level."""
        B, (row, cell) = self.layout.shape[1], (self.layout[SIZE] > 0).nonzero(as_tuple=True)
        level, key = self.layout[LEVEL, row, cell], torch.cat([row.unsqueeze(0), self.layout[COORDS:, row, cell]]).mT
        made, split = torch.bincount(row, minlength=B), key[:0]
        for finest in range(int(level.max()), 0, -1):
            # All cells ever made at this level. Their parents are counted in the next round.
            split = torch.cat([key[level == finest], split])
            split = torch.cat([split[:, :1], split[:, 1:] >> 1], dim=-1).unique(dim=0)
            made += torch.bincount(split[:, 0], minlength=B)
        return made

    def _note_places(self, pair: Tensor, entry: Tensor) -> None:
        """Record additional entries (`n`) of arms (`n`, row · A + arm)."""
        H = self.places.shape[-1]
        pairs, inverse = torch.unique(pair, return_inverse=True)
        lines = lines_of(inverse, pairs.shape[0])
        fresh = torch.where(lines >= 0, entry[lines], -1)
        every = torch.cat([self.places.view(-1, H)[pairs], fresh], dim=-1).sort(dim=-1, descending=True).values
        most = int((every >= 0).sum(dim=-1).max())
        if most > H:
            self.places, H = nn.functional.pad(self.places, (0, most - H), value=-1), most
        every = nn.functional.pad(every, (0, max(0, H - every.shape[-1])), value=-1)[:, :H]
        self._write(self.places.view(1, -1), pairs.unsqueeze(-1) * H + torch.arange(H, device=pair.device), every)

    def _reserve(self, used: Tensor, filled: Tensor) -> None:
        """Allocate room for this many entries and cells per batch row (`2 x B`) and this many block places."""
        (entries, cells), (E, S) = used.amax(dim=-1).tolist(), (self.members.shape[-1], self.blocks.shape[0])
        if entries > E:
            more = -(-max(entries, E + E // 2) // RUN) * RUN - E
            for name, dead in (("numbers", _NOTHING), ("members", _NO_MEMBER)):
                buffer: Tensor = getattr(self, name)
                spare = buffer.new_tensor(dead)[:, None, None].expand(*buffer.shape[:2], more)
                setattr(self, name, torch.cat([buffer, spare], dim=-1))
        # Allocate as many cells as entries, since no batch row has more cells than entries.
        if cells > (C := self.layout.shape[-1]):
            more = self.members.shape[-1] - C
            self.facts, self.layout = nn.functional.pad(self.facts, (0, more)), nn.functional.pad(self.layout, (0, more))
        if int(filled) > S:
            self._check_budget(int(filled))
            self.blocks = nn.functional.pad(self.blocks, (0, max(int(filled), min(S + S // 2, self.memory_budget // 8)) - S))
        self.used, self.filled = used, filled

    def _check_budget(self, numbers: int) -> None:
        if 8 * numbers > self.memory_budget:
            raise ArgumentError(
                f"the covariances of the cells need {8 * numbers} bytes, more than memory_budget={self.memory_budget}: set "
                f"memory_budget to at least {8 * numbers}, or use fewer arms, or a longer horizon (smaller cells)."
            )

    def _flat_places(self, cells: Tensor, inside: Tensor) -> Tensor:
        place = torch.arange(inside.shape[-1], device=inside.device)
        size, offset = self.flat("layout")[SIZE : OFFSET + 1, cells].unsqueeze(-1)
        lines = torch.where(inside, offset + place * size, 0).unsqueeze(-1)
        return torch.where(inside.unsqueeze(-2) & (lines > 0), lines + place, 0)

    def _noted(self, flat: Tensor, where: Tensor | slice) -> Tensor:
        """The values at the given positions, recorded in the journal before they are changed."""
        there = flat[:, where]
        if self._journal is not None:
            self._journal.append((flat, where, there.clone()))
        return there

    def _write(self, flat: Tensor, where: Tensor, values: Tensor) -> None:
        if self._journal is not None:
            self._journal.append((flat, where, flat[:, where]))
        flat[:, where] = values

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in self._buffers:
            # Buffers grow with the data, so take over the sizes of the state.
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name], device=self.blocks.device))
        self._journal = None
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.made = self._count_made()

    def _apply(self, fn: Any, recurse: bool = True) -> Cells:
        self._journal = None
        super()._apply(fn, recurse)
        return self
