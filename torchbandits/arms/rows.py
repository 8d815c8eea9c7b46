"""The map between arms and rows of the statistics: the only link between an arm set and the posterior's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchbandits.arms.ranks import Shard
from torchbandits.arms.reductions import WHOLE, Reductions
from torchbandits.arms.scanning import find, scan
from torchbandits.buffered import Buffered
from torchbandits.errors import StateError, UnsupportedError, require
from torchbandits.posteriors import GaussianProcess, Statistics, aggregate
from torchbandits.shapes import broadcast_shapes
from torchbandits.sources import ArmSet, ArmSource, InMemory
from torchbandits.sources.duplicates import codes, fingerprint, first_occurrence, matches
from torchbandits.transfers import to_device
from torchbandits.types import PickMask, Picks, Points, Pulls


@dataclass(frozen=True)
class Summed:
    """Pulls summed over each distinct arm, in order of first pull, all `batch_shape x p`.

    Attributes:
        distinct: Arms, −1 where padded.
        slot: The same, 0 where padded.
        here: `distinct` on the host.
        counts, sums, squares: Numbers of pulls (or weights), sums of rewards and of squared rewards, on the host.
        whole: Whether it is known that no entry is padded, so that nothing needs masking.
    """

    distinct: Tensor
    slot: Tensor
    here: Tensor
    counts: Tensor
    sums: Tensor
    squares: Tensor
    whole: bool = False

    @staticmethod
    def of(device: torch.device, here: Tensor, counts: Tensor, sums: Tensor, squares: Tensor) -> Summed:
        """Sums on the host of distinct arms on this device."""
        distinct, slot = to_device(device, here, here.clamp_min(0))
        return Summed(distinct, slot, here, counts, sums, squares)

    def there(self) -> Sequence[Tensor]:
        """Counts and sums on the device of the arms."""
        return to_device(self.distinct.device, self.counts, self.sums)


class ArmRows(Buffered):
    """The map between arms and rows of the statistics. Exact duplicates share one entry, the lowest index.

    Args:
        arms: `A x d` or `batch_shape x A x d`, or a source of arms; stored by reference and not saved.
        batch_shape: Leading dimensions of the rows.
        growing: Whether arms are added later by `grow_`. They are then `batch_shape x A x d`, and saved.

    Buffers: `row_of_arm` `batch_shape x A`, −1 before the first pull; `arm_of_row` `batch_shape x u`, −1 for points from
    outside the arm set; `costs` `A` or `batch_shape x A`, the cost of a pull of each arm, and `known` and
    `known_scores` `... x j x A`, the values of the j known outcomes of a policy of several, and their normal scores if its
    models rank rewards; each None if not given, and not saved.
    """

    # Set only if the arms are in memory; use `source` in general.
    arms: Tensor
    first: Tensor | None
    costs: Tensor | None
    known: Tensor | None
    known_scores: Tensor | None
    row_of_arm: Tensor
    arm_of_row: Tensor
    _grows = ("arms", "first", "row_of_arm", "arm_of_row")

    def __init__(self, arms: ArmSet, batch_shape: torch.Size, growing: bool = False) -> None:
        super().__init__()
        self.register_buffer("costs", None, persistent=False)
        self.register_buffer("known", None, persistent=False)
        self.register_buffer("known_scores", None, persistent=False)
        # Normal scores of limits on known outcomes, by the place of the outcome, the limit and the device.
        self.levels: dict[tuple[int, float, torch.device], Tensor] = {}
        # Whether rows may be points from outside the arms.
        self.outside = False
        self.growing = growing
        # Mask of the arms that one pick is chosen among, `batch_shape x A`: those at one context, or while a campaign compares
        # its candidates. None for all.
        self.competing: Tensor | None = None
        # Ranges of the first features, those of contexts, over the contexts that count, `batch_shape x c`. None without any.
        self.limits: Tensor | None = None
        self._streamed = None if isinstance(arms, Tensor | InMemory) else arms
        # Whether other ranks hold further arms.
        self.sharded = isinstance(self._streamed, Shard)
        self._held: InMemory | None = None
        # The slots that were read last, the buffer of arms, and their points.
        self._last: tuple[Tensor, Tensor, Tensor] | None = None
        # For arms on a device: the rows of the pulled arms of each batch row, on the host, and the `arm_of_row` they belong to.
        self._found: tuple[Tensor, list[dict[int, int]]] | None = None
        # Hash of the arms in order, independent of how they are stored; None while arms are added.
        self.fingerprint: int | None = None
        self.across: Reductions = arms.across if isinstance(arms, Shard) else WHOLE
        held = arms.arms if isinstance(arms, InMemory) else arms
        if isinstance(held, Shard):
            first, self.fingerprint = held.looked_at()
        elif isinstance(held, ArmSource):
            found = scan(held)
            first, self.fingerprint = found.first, found.fingerprint
        elif growing:
            first = torch.zeros(*batch_shape, 1, dtype=torch.int64, device=arms.device)
        else:
            hashes = codes(held)
            first = None if isinstance(arms, InMemory) and arms.distinct else first_occurrence(held, hashes)
            self.fingerprint = int(fingerprint(hashes))
        self.register_buffer("arms", held if isinstance(held, Tensor) else None, persistent=growing)
        self.register_buffer("first", first, persistent=growing)
        row_of_arm = torch.full((*batch_shape, arms.shape[-2]), -1, device=arms.device)
        self.register_buffer("row_of_arm", row_of_arm, persistent=not self.sharded)
        self.register_buffer("arm_of_row", torch.full((*batch_shape, 0), -1, device=arms.device))

    def moved(self, arms: ArmSet, statistics: Statistics) -> ArmRows:
        """The map for a new arm set: arms that were pulled before, as arms or as points, keep their rows.

        Cost O((A + u) (d + log(A + u))).
        """
        rows = ArmRows(arms, self.batch_shape)
        rows.limits = self.limits
        if not statistics.size:
            return rows
        shape, A = self.batch_shape, rows.num_arms
        arm = rows.find(statistics.points.expand(*shape, -1, -1)).masked_fill(~statistics.mask, -1)
        row, far = torch.arange(arm.shape[-1], device=arm.device).expand(arm.shape), statistics.size
        # History at points may hold several rows of one point. The first of them becomes the arm's row.
        spare = torch.full((*shape, A + 1), far, device=arm.device)
        row_of_arm = spare.scatter_reduce(-1, torch.where(arm >= 0, arm, A), row, "amin")[..., :-1]
        rows.row_of_arm = torch.where(row_of_arm < far, row_of_arm, -1)
        rows.arm_of_row = torch.where((arm >= 0) & (row_of_arm.gather(-1, arm.clamp_min(0)) == row), arm, -1)
        rows.outside = bool(((rows.arm_of_row < 0) & statistics.mask).any())
        return rows

    @property
    def num_arms(self) -> int:
        """Number of local arms A, duplicates included."""
        number: int = self._buffers["row_of_arm"].shape[-1]
        return number

    @property
    def total(self) -> int:
        """Number of arms of all ranks, the range of indices."""
        return self.across.total(self.num_arms)

    def row_of(self, index: Picks) -> Tensor:
        """Row of each arm, `batch_shape x p`, −1 before its first pull."""
        if self.sharded:
            return self.across.at(index, self.row_of_arm + 1)[0] - 1
        row: Tensor = self._buffers["row_of_arm"].gather(-1, index.clamp_min(0))
        return row

    @property
    def source(self) -> ArmSource:
        """The arms as a source that can be read in chunks."""
        if self._streamed is not None:
            return self._streamed
        # The buffer is replaced when arms are added, and by `.to()`.
        held, arms = self._held, self._buffers["arms"]
        if held is None or held.arms is not arms:
            assert arms is not None
            self._held = held = InMemory(arms)
        return held

    @property
    def streamed(self) -> bool:
        """Whether the arms are not held as one tensor in memory."""
        return self._streamed is not None

    def find(self, points: Points) -> Tensor:
        """The lowest index of an arm equal to each point, `batch_shape x u`, −1 if there is none; see `scanning.find`."""
        return find(self.source, points)

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions."""
        return self.row_of_arm.shape[:-1]

    def points(self, index: Picks) -> Tensor:
        """The arms at `index`, `batch_shape x p x d` (arm 0 where the index is −1)."""
        slot, arms = index.clamp_min(0), self._buffers["arms"] if self._streamed is None else None
        return self.source.points(slot) if arms is None or arms.dim() > 2 else arms[slot]

    def at(self, slot: Picks) -> Points:
        """The arms at `slot` ≥ 0, `batch_shape x p x d`. The arms of the last slots are cached."""
        arms = self._buffers["arms"] if self._streamed is None else None
        if arms is None or arms.dim() > 2:
            return self.source.points(slot)
        known = self._last
        if known is None or known[0] is not slot or known[1] is not arms:
            self.__dict__["_last"] = known = (slot, arms, arms[slot])
        return known[2]

    def offered(self, available: Tensor | None) -> Tensor | None:
        """Arms that may be picked: those available that are the first of their duplicates; None for all arms."""
        if self.first is None:
            return available
        own = self.first == torch.arange(self.num_arms, device=self.first.device) + self.across.offset
        if available is None:
            return own
        message = "available= does not support duplicate arms on several ranks: keep one arm of each group of duplicates."
        require(not self.sharded, message, UnsupportedError)
        # An available duplicate makes its entry available.
        shape = broadcast_shapes(available.shape, self.first.shape)
        entries = torch.zeros(shape, dtype=torch.int64, device=own.device)
        entries = entries.scatter_add(-1, self.first.expand(shape), available.expand(shape).long())
        return (entries > 0) & own

    def entry(self, index: Picks) -> Tensor:
        """The lowest index of an arm equal to each indexed arm, on the device of `index`; −1 stays −1."""
        if self._buffers["first"] is None:
            return index
        assert self.first is not None
        if index.device != self.first.device:
            return self.entry(index.to(self.first.device)).to(index.device)
        return torch.where(index >= 0, self.across.at(index, self.first.expand(*index.shape[:-1], -1))[0], -1)

    def row_of_each(self) -> Tensor:
        """Row of every arm, `batch_shape x A`, −1 without pulls; duplicates have the row of their entry."""
        row, arm = self.row_of_arm, self.arm_of_row
        if self.first is None or not arm.shape[-1]:
            return row
        first = self.first.expand_as(row)
        if not self.sharded:
            return self.row_of(first)
        # Ranks hold different numbers of arms, so that nothing is sent: each rank knows the arms of all rows.
        arm, order = arm.sort(dim=-1)
        place = torch.searchsorted(arm, first.contiguous()).clamp_max(arm.shape[-1] - 1)
        return torch.where(arm.gather(-1, place) == first, order.gather(-1, place), -1)

    def counts(self, weights: Tensor) -> Tensor:
        """Weights of rows (`batch_shape x u`) per arm, `batch_shape x A`; duplicates have the weight of their entry."""
        if not weights.shape[-1]:
            return weights.new_zeros(self.row_of_arm.shape)
        row = self.row_of_each()
        return torch.where(row >= 0, weights.gather(-1, row.clamp_min(0)), 0.0)

    def distinct(self, pulls: Pulls) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Pulls of arms summed over each distinct arm, in order of first pull: arms (−1 where padded), counts, sums of rewards
        and of squared rewards, all `batch_shape x p`."""
        assert pulls.index is not None
        assert pulls.mask is not None
        arms, _, n, s, sq = aggregate(self.entry(pulls.index), pulls.mask, pulls.counts, pulls.sums, pulls.squares)
        return arms, n, s, sq

    def summed(self, pulls: Pulls) -> Summed:
        """Pulls of arms summed over each distinct arm, on the host, where the order of summation is fixed."""
        device = self._buffers["row_of_arm"].device
        told = pulls if device.type == "cpu" else pulls.here()
        assert told.index is not None
        assert told.mask is not None
        if device.type == "cpu" and told.index.dim() == 1 and told.index.shape[0] == 1 and bool(told.mask):
            arm = told.index if self._buffers["first"] is None else self.entry(told.index)
            return Summed(arm, arm, arm, told.counts.double(), told.sums.double(), told.squares.double(), whole=True)
        if told is not pulls and self.first is None and told.index.shape[-1] == 1 and bool(told.mask.all()):
            # One pick per row is its own distinct arm, and is on the device already.
            assert pulls.index is not None
            sums = (told.counts.double(), told.sums.double(), told.squares.double())
            return Summed(pulls.index, pulls.index, told.index, *sums, whole=True)
        distinct = self.distinct(told)
        if device.type != "cpu":
            return Summed.of(device, *distinct)
        return Summed(distinct[0], distinct[0].clamp_min(0), *distinct)

    def tell_(self, records: GaussianProcess | Statistics, summed: Summed) -> Tensor:
        """Add pulls of distinct arms to the records, appending rows for arms pulled for the first time. Returns the rows,
        `batch_shape x p`, −1 where padded, on the host."""
        here, distinct = summed.here, summed.distinct
        known = self.row_of(distinct) if here is distinct else self._rows_on_host(here, distinct)
        new = known < 0
        rows = known
        if not summed.whole:
            new, rows = new & (here >= 0), known.masked_fill(here < 0, -1)
        if bool(new if new.numel() == 1 else new.any()):
            new_rows = records.append_(self.at(summed.slot), new)
            rows = torch.where(new, new_rows, rows)
            self._join(here.masked_fill(~new, -1), new_rows, distinct if new.numel() == 1 else None)
        records.add_(rows, summed.counts, summed.sums, summed.squares, whole=summed.whole)
        return rows

    def _rows_on_host(self, here: Tensor, distinct: Picks) -> Tensor:
        """`row_of` of arms whose indices are on the host (`here`), on the host."""
        if self.sharded or here.device == distinct.device:
            return self.row_of(distinct).to(here.device)
        arms = self.arm_of_row
        if self._found is None or self._found[0] is not arms:
            lines = arms.reshape(self.batch_shape.numel(), -1).tolist()
            self._found = (arms, [{arm: row for row, arm in enumerate(line) if arm >= 0} for line in lines])
        told = here.reshape(len(self._found[1]), -1).tolist()
        found = [[rows.get(arm, -1) for arm in line] for line, rows in zip(told, self._found[1], strict=True)]
        return torch.tensor(found, dtype=torch.int64).reshape(here.shape)

    def tell_outside_(self, records: GaussianProcess | Statistics, pulls: Pulls) -> None:
        """Add pulls of points, which need not be arms.

        Equal points are summed. A point that was pulled before is added to its row, and a point equal to an arm counts as that
        arm. Cost O((A + u + p) (d + log(A + u + p))).
        """
        points, statistics = pulls.points, records if isinstance(records, Statistics) else records.statistics
        assert points is not None
        u, p, shape = statistics.size, points.shape[-2], self.batch_shape
        first = first_occurrence(torch.cat([statistics.points, points.double()], dim=-2))
        group = torch.arange(u, u + p, device=points.device).expand(*shape, p) if first is None else first[..., u:]
        told = (pulls.counts, pulls.sums, pulls.squares)
        member, _, n, s, q = aggregate(group, torch.ones_like(group, dtype=torch.bool), *told)
        # Position of the first new point of each group of equal points.
        place = torch.full((*shape, u + p), p, device=points.device)
        place = place.scatter_reduce(-1, group, torch.arange(p, device=points.device).expand(*shape, p), "amin")
        place = torch.where(member >= 0, place.gather(-1, member.clamp_min(0)), 0)
        own = points.gather(-2, place.unsqueeze(-1).expand(*place.shape, points.shape[-1]))
        known = (member >= 0) & (member < statistics.ends)
        new = (member >= 0) & ~known
        new_rows = records.append_(own, new)
        rows = torch.where(known, member, new_rows)
        if bool(new.any()):
            arm = self.find(own).masked_fill(~new, -1)
            self._join(arm, new_rows)
            self.outside = self.outside or bool((new & (arm < 0)).any())
        records.add_(rows, n, s, q)

    def clear_(self, statistics: Statistics, over: Tensor) -> None:
        """Remove the pulls of the marked batch rows (`batch_shape` booleans) from the map and from the statistics."""
        statistics.clear_(over)
        marked = over.unsqueeze(-1)
        self.row_of_arm = self.row_of_arm.masked_fill(marked, -1)
        self.arm_of_row = self.arm_of_row[..., : statistics.size].masked_fill(marked, -1)

    def grow_(self, points: Tensor, new: PickMask) -> Picks:
        """Add the marked points of each row (all distinct), `batch_shape x p x d`, as arms. For growing arm sets only.

        Rows with fewer arms than others are padded with copies of arm 0, which share its entry.

        Returns:
            Their indices, `batch_shape x p`, −1 where not marked. Cost O(A d), a copy of the buffers.
        """
        assert self.first is not None
        every_arm = torch.arange(self.num_arms, device=new.device)
        count = (self.first == every_arm).sum(dim=-1, keepdim=True)
        index = torch.where(new, count + new.long().cumsum(dim=-1) - 1, -1)
        self.put_(points, index)
        return index

    def put_(self, points: Tensor, index: Picks) -> None:
        """Store points, `batch_shape x p x d`, as the arms at `index` (−1 for none; equal indices for equal points), which are
        new or were never pulled. For growing arm sets only. Cost O(A d) for a copy of the buffers."""
        assert self.first is not None
        A = self.num_arms
        size = max(int(index.max()) + 1, A)
        slot = torch.where(index >= 0, index, size)
        arms = torch.cat([self.arms, self.arms[..., :1, :].expand(*index.shape[:-1], size + 1 - A, -1)], dim=-2)
        arms.scatter_(-2, slot.unsqueeze(-1).expand(points.shape), points.to(arms.dtype))
        self.arms = arms[..., :-1, :]
        self.first = nn.functional.pad(self.first, (0, size + 1 - A)).scatter(-1, slot, slot)[..., :-1]
        self.row_of_arm = nn.functional.pad(self.row_of_arm, (0, size - A), value=-1)

    def adopt_(self, index: Picks, statistics: Statistics) -> None:
        """Assign to arms (−1 for none) that were pulled before as points the rows of these points.

        Cost O((u + p) (d + log(u + p))).
        """
        row = matches(statistics.points, self.points(index).double()).masked_fill(index < 0, -1)
        row = row.masked_fill(row >= statistics.ends, -1)
        if bool((row >= 0).any()):
            slot = torch.where(row >= 0, index, self.num_arms)
            self.row_of_arm = nn.functional.pad(self.row_of_arm, (0, 1)).scatter(-1, slot, row)[..., :-1]
            self._extend(index, row)

    def _join(self, index: Tensor, rows: Tensor, there: Tensor | None = None) -> None:
        """Set the rows of arms (−1 for none), both on the host or on the device; `there` is `index` on the device, if it is a
        single arm."""
        if index.device == self.row_of_arm.device:
            spare, place = nn.functional.pad(self.row_of_arm, (0, 1)), self.across.places(index)
            slot = torch.where(place >= 0, place, self.num_arms)
            self.row_of_arm = spare.scatter(-1, slot, rows)[..., :-1]
            self._extend(index, rows)
            return
        if index.dim() == 1:
            kept = index >= 0
            index, rows = index[kept], rows[kept]
        known = self._found
        self._join_from_host(index, rows, there)
        if known is not None:
            pairs = (x.reshape(len(known[1]), -1).tolist() for x in (index, rows))
            for found, own, at in zip(known[1], *pairs, strict=True):
                found.update({arm: row for arm, row in zip(own, at, strict=True) if arm >= 0})
            self._found = (self.arm_of_row, known[1])

    def _join_from_host(self, index: Tensor, rows: Tensor, there: Tensor | None) -> None:
        """`_join` of arms on a device that are known on the host."""
        size, device = self.arm_of_row.shape[-1], self.row_of_arm.device
        if self.sharded:
            self._join(*to_device(device, index, rows))
        elif bool((rows == torch.arange(size, size + rows.shape[-1])).all()):
            # Every batch row has the same number of new arms, which are appended. This is known without waiting for the device.
            if there is None:
                there, own = to_device(device, index, rows)
                self.row_of_arm = self.row_of_arm.scatter(-1, there, own)
            else:
                self.row_of_arm = self.row_of_arm.scatter(-1, there, size)
            self.arm_of_row = torch.cat([self.arm_of_row, there], dim=-1)
        else:
            grown = max(int(rows.max()) + 1, size)
            arms, own, slot, place = to_device(
                device, index, rows, torch.where(index >= 0, index, self.num_arms), torch.where(rows >= 0, rows, grown)
            )
            # Padding is written to a spare place that is removed at the end.
            self.row_of_arm = nn.functional.pad(self.row_of_arm, (0, 1)).scatter(-1, slot, own)[..., :-1]
            longer = nn.functional.pad(self.arm_of_row, (0, grown - size + 1), value=-1)
            self.arm_of_row = longer.scatter(-1, place, arms)[..., :grown]

    def _extend(self, index: Tensor, rows: Tensor) -> None:
        size = max(int(rows.max()) + 1, self.arm_of_row.shape[-1])
        grown = nn.functional.pad(self.arm_of_row, (0, size - self.arm_of_row.shape[-1] + 1), value=-1)
        self.arm_of_row = grown.scatter(-1, torch.where(rows >= 0, rows, size), index)[..., :size]

    def get_extra_state(self) -> dict[str, int | None]:
        """The fingerprint of the arms; None while arms are added (and, in states of early versions, for arms in memory)."""
        return {"fingerprint": self.fingerprint}

    def set_extra_state(self, state: dict[str, int | None]) -> None:
        """Raise `StateError` if the state was saved with different arms."""
        saved = state["fingerprint"]
        if None not in (saved, self.fingerprint) and saved != self.fingerprint:
            raise StateError(
                f"the saved state is of other arms than {self.source!r}: their fingerprints differ. Give the tensor, file, "
                "grid or function that the run was started with, or the arms of its last set_arms_()."
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.outside = bool((self.arm_of_row < 0).any())
        if self.sharded:
            arm, self.row_of_arm = self.arm_of_row, torch.full_like(self.row_of_arm, -1)
            if arm.shape[-1]:
                self._join(arm, torch.arange(arm.shape[-1], device=arm.device).expand(arm.shape))
