"""How many rows of memory the directions of an exact posterior take at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torchbandits.errors import UnsupportedError

SPARE = 64
"""Smallest number of spare rows."""
LONGEST = 4
"""Directions are recomputed at the latest when there are this many times as many as arms pulled, plus the spare ones."""
# Largest size of the spare rows that a sweep reserves on the host.
_SPARE_BYTES = 256 << 20
# Rows of more than this size are large: brief saved states leave them out, and from a third of the budget on, memory for all of
# it is reserved at once.
_LARGE_BYTES = 256 << 20
# A sweep on the host overwrites rows of more than this size: new memory takes a tenth of the time of a run.
_OVERWRITTEN_BYTES = 4 << 20


@dataclass(frozen=True)
class Reserve:
    """Numbers of rows to reserve. On the host rows take memory when they are first written, and growing later copies them all.

    Attributes:
        row_bytes: Bytes of a row.
        budget: Bytes that the rows may take, ∞ for no limit.
        most: Number of rows within them.
        holds: Number of rows that the memory of the host is meant to hold; ∞ on a device, and for rows with a `budget`.
        over: Number of rows beyond which a sweep to at most `holds` rows is due.
        extra: Largest number of spare rows that a sweep reserves.
    """

    row_bytes: int
    budget: int | float = math.inf
    most: int | float = math.inf
    holds: int | float = math.inf
    over: int | float = math.inf
    extra: int = 0

    @staticmethod
    def of(row_bytes: int, memory_budget: int, *, limited: bool, host: bool) -> Reserve:
        """The reserve of rows that must stay below the budget, if they are `limited`, on the host or a device."""
        size = max(1, row_bytes)
        held, extra = memory_budget // size, _SPARE_BYTES // size if host else 0
        if limited:
            return Reserve(row_bytes, budget=memory_budget, most=held, extra=extra)
        # A sweep comes after the tell that exceeds the budget by `SPARE` rows.
        over = max(held + SPARE, _LARGE_BYTES // size)
        return Reserve(row_bytes, holds=held, over=over, extra=extra) if host else Reserve(row_bytes)

    @property
    def limited(self) -> bool:
        """Whether the rows must stay below a budget."""
        return self.most < math.inf

    def on_device(self) -> Reserve:
        """The same on a device, where rows that are reserved take memory."""
        return replace(self, holds=math.inf, over=math.inf, extra=0)

    def large(self, rows: int) -> bool:
        """Whether this many rows are large."""
        return rows * self.row_bytes > _LARGE_BYTES

    def overwritten(self, rows: int) -> bool:
        """Whether a sweep overwrites this many rows, so that there are no second ones."""
        return self.holds < math.inf and rows * self.row_bytes > _OVERWRITTEN_BYTES

    def check(self, rows: int) -> None:
        """Raise `UnsupportedError` if this many rows exceed the budget."""
        if (taken := rows * self.row_bytes) > self.budget:
            raise UnsupportedError(
                f"an exact posterior keeps {rows} numbers per arm here, {taken / 2**30:.3g} GiB in all, over the budget of "
                f"{self.budget / 2**30:.3g} GiB; nothing was learned. Use batch_bkb or bkb, which keep a few numbers per arm, "
                f"or pass memory_budget={taken} or more."
            )

    def grown(self, rows: int, reserved: int) -> int:
        """Number of rows to reserve for `rows` where `reserved` are not enough."""
        return self._whole(rows, max(rows, 2 * reserved, SPARE))

    def spare(self, rows: int) -> int:
        """Number of spare rows beside those of a sweep."""
        return max(SPARE, min(LONGEST * rows + SPARE, self.extra))

    def swept(self, rows: int) -> int:
        """Number of rows to reserve for a sweep of `rows`."""
        return self._whole(rows, rows + self.spare(rows))

    def _whole(self, needed: int, size: int) -> int:
        """Number of rows to reserve, where `needed` ≤ `size` would do: those of the whole budget, if `size` large rows take a
        third of it, because later copies would need more memory than they save; otherwise, and for more rows than it holds,
        `size`."""
        if self.limited:
            return int(min(size, self.most))
        if 3 * size <= self.holds or not self.large(size):
            return size
        whole = int(self.holds) + 2 * SPARE
        return whole if needed <= whole else size
