"""The rows of a campaign that may be selected."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits.campaigns.conditions import on_offer
from torchbandits.campaigns.rows_as_arms import RowsAsArms
from torchbandits.checks import read_bytes
from torchbandits.errors import DataError, require
from torchbandits.files import write_atomically
from torchbandits.tabular.tables import Table

FAILURES = 2
"""Number of failed evaluations after which a row that was never measured is left out while there are others."""
_LARGEST = 1 << 33


class Offer:
    """The rows that fulfil the condition of a campaign, without excluded ones.

    Args:
        condition: The condition (`candidates`); None for all rows.
        strict: As for `on_offer`; False for the condition with which a resumed campaign began, so that it goes on with it.
        path: The file of the excluded rows; None to write none.

    Attributes:
        excluded: The excluded rows, in increasing order.
        mask: The rows on offer, `A` booleans on the host; None for all. It is missing until `begin` or `resume`.
    """

    def __init__(self, condition: str | None, strict: bool, path: Path | None) -> None:
        self.condition, self._strict, self._path = condition, strict, path
        self.excluded: NDArray[np.int64] = np.zeros(0, np.int64)
        self.mask: Tensor | None

    def begin(self, table: Table) -> None:
        """Find the rows of a new campaign.

        Raises:
            ArgumentError: If no row fulfils the condition, or it is none. Nothing is written then.
        """
        self.mask = self.among(table)
        if self._path is not None:
            # That of an earlier campaign whose other files were deleted.
            self._path.unlink(missing_ok=True)

    def resume(self, table: Table) -> None:
        """Find the rows of a campaign, and those that an earlier process excluded."""
        if self._path is not None:
            self.excluded = read_excluded(self._path, table.count)
        self.mask = self.among(table)

    def exclude(self, table: Table, rows: NDArray[np.int64]) -> int:
        """Exclude these rows, in increasing order, and no others. Returns how many more there are than before.

        Raises:
            ArgumentError: If no row would be left. Nothing has changed then.
            DataError: If the file of the excluded rows cannot be written.
        """
        more = len(rows) - len(self.excluded)
        if more:
            mask = self._mask(table, rows)
            if self._path is not None:
                write_atomically(self._path, lambda temporary: np.save(temporary, rows))
            self.excluded, self.mask = rows, mask
        return more

    def among(self, table: Table) -> Tensor | None:
        """The mask of the rows of a table, such as a longer one, that are on offer; None for all."""
        return self._mask(table, self.excluded)

    def _mask(self, table: Table, excluded: NDArray[np.int64]) -> Tensor | None:
        """The mask of the rows that fulfil the condition and are not excluded; None for all.

        Raises:
            ArgumentError: If no row is left.
        """
        held = None if self.condition is None else on_offer("candidates", table, self.condition, strict=self._strict)
        if not len(excluded):
            return held
        left = torch.ones(table.count, dtype=torch.bool) if held is None else held.clone()
        left[torch.from_numpy(excluded)] = False
        others = "" if held is None else " that the condition of the campaign (candidates) allows"
        message = f"all rows{others} are excluded then, and no row is left to select: exclude fewer, or include() some."
        require(bool(left.any()), message)
        return left


def read_excluded(path: Path, count: int) -> NDArray[np.int64]:
    """The excluded rows among `count` rows, in increasing order; none if there is no file.

    Raises:
        DataError: If the file cannot be read, or holds something else.
    """
    if not path.exists():
        return np.zeros(0, np.int64)
    wrong = f"{path} does not hold the excluded rows of a campaign: restore it from a copy."
    try:
        rows = np.load(io.BytesIO(read_bytes(path, _LARGEST)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(wrong) from error
    good = isinstance(rows, np.ndarray) and rows.dtype == np.int64 and rows.ndim == 1
    require(good and bool((np.diff(rows, prepend=-1) > 0).all()) and bool((rows < count).all()), wrong, DataError)
    return rows


# ---------------------------------------------------------------------- rows that teach little, or fail


def unseen(offer: Tensor | None, arms: RowsAsArms, failed: Sequence[int]) -> Tensor:
    """Rows on offer that are neither measured nor open, whose evaluation did not fail, and that equal no such row.

    Args:
        failed: The row of each failed evaluation.
    """
    seen = arms.equal_to(torch.cat([arms.open_entries, arms.entries(failed)]))
    left = (arms.counts == 0) & ~seen
    return left if offer is None else left & offer


def failing(arms: RowsAsArms, failed: Sequence[int]) -> Tensor | None:
    """Rows whose evaluation failed twice and that were never measured, and rows equal to them; None for none.

    Args:
        failed: As for `unseen`.
    """
    times = Counter(arms.entries(failed).tolist())
    entries = [entry for entry, number in times.items() if number >= FAILURES]
    return arms.equal_to(torch.tensor(entries)) & (arms.counts == 0) if entries else None


def unless_too_few(
    offer: Tensor | None, out: Tensor | None, wanted: int, arms: RowsAsArms, closed: Tensor | None
) -> Tensor | None:
    """Rows on offer without some others; the same rows if fewer than wanted would be left.

    Args:
        offer, out: The masks of the rows on offer, None for all, and of the others, None for none.
        wanted: Number of different rows that are wanted.
        arms: The arms that the rows are.
        closed: Entries of rows that are on offer and cannot be selected; None for none.
    """
    if out is None:
        return offer
    left = ~out if offer is None else offer & ~out
    return left if arms.different(left, closed=closed) >= wanted else offer
