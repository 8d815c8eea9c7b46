"""All results of a campaign that were told so far."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchbandits.campaigns.corrections import blocks_of, signs_of, versions_of
from torchbandits.journal import Journal

Call = tuple[Sequence[int], NDArray[np.float64]]
"""The rows of the results of one call, and the results."""

# A row, an outcome and its value; a row and twice None if the evaluation failed.
Cell = tuple[int, int | None, float | None]


@dataclass
class Records:
    """All results of a campaign with k outcomes.

    Attributes:
        names: The outcomes; the name of a single objective is empty.
        rows: One row of the table per result, in the order told.
        told: Results in the same order, `k` numbers each, NaN where not measured.
        beyond: For each of them `k` signs: −1 if it is below the value, which is a limit of detection, 1 if above, else 0.
        numbers: The number of the call of each of them, from 1.
        blocks: The number of the block of each of them; None for no block.
        calls: The cells of each call, and those before each correction, with the number of times that each was told.
        times: Number of times that each cell was told by all calls; a cell that a correction left as it was counts once.
    """

    names: tuple[str, ...]
    rows: list[int] = field(default_factory=list)
    told: list[NDArray[np.float64]] = field(default_factory=list)
    beyond: list[NDArray[np.int8]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    blocks: list[int | None] = field(default_factory=list)
    calls: list[Counter[Cell]] = field(default_factory=list)
    times: Counter[Cell] = field(default_factory=Counter)

    @classmethod
    def of(cls, journal: Journal | None, names: Sequence[str], sign: float) -> Records:
        """The records of a journal, whose rewards have this sign; empty ones without. Cost: a pass over it."""
        records = cls(tuple(names))
        for line in () if journal is None else journal.records():
            if line["kind"] == "tell":
                now, *earlier = ((rows.tolist(), sign * told) for rows, told in versions_of(line, len(names)))
                records.add(*now, earlier, blocks_of(line, len(names)), signs_of(line, len(names)))
        return records

    @property
    def values(self) -> NDArray[np.float64]:
        """Results `n x k` in the order told."""
        return np.array(self.told).reshape(-1, len(self.names))

    @property
    def signs(self) -> NDArray[np.int8]:
        """The signs of the results, `n x k`, as in `beyond`."""
        return np.array(self.beyond, np.int8).reshape(-1, len(self.names))

    def add(
        self,
        rows: Sequence[int],
        values: NDArray[np.float64],
        earlier: Sequence[Call] = (),
        blocks: Sequence[int] | None = None,
        signs: NDArray[np.int8] | None = None,
    ) -> None:
        """Add the results of one call, `n x k`, and what they were before each correction: a file with these is known too.
        `blocks` has the number of the block of each; None for no blocks. `signs` are those of `beyond`, `n x k`; None if all
        are 0."""
        versions = [_cells(*call) for call in ((rows, values), *earlier)]
        self.times += functools.reduce(operator.or_, versions)
        self.calls += versions
        self.rows += rows
        self.told += list(values)
        self.beyond += list(np.zeros(values.shape, np.int8) if signs is None else signs)
        self.numbers += [1 + max(self.numbers, default=0)] * len(rows)
        self.blocks += [None] * len(rows) if blocks is None else blocks

    def new(self, rows: Sequence[int], values: NDArray[np.float64], opened: Sequence[int] = ()) -> NDArray[np.bool_]:
        """Mask of the values that were not told before, `n x k`, by these rules for each outcome.

        If a value is given k times and was told j times, the last k − j are new. If all its rows are `opened`, each at least as
        often as it is given, the results answer an ask and are new; but results that one call told before are no answer to
        another ask. A failed evaluation is new if it is so for any outcome.
        """
        if len(opened) and self._told_in_one_call(_cells(rows, values)):
            opened = ()
        found, measured = np.zeros(values.shape, bool), ~np.isnan(values)
        for j in range(len(self.names)):
            places = np.flatnonzero(measured[:, j] | ~measured.any(axis=1)).tolist()
            answers = Counter(rows[place] for place in places) <= Counter(opened)
            here = Counter[Cell]()
            for place in places:
                cell = (rows[place], j, float(values[place, j])) if measured[place, j] else (rows[place], None, None)
                here[cell] += 1
                found[place, j] = answers or here[cell] > self.times[cell]
        return found

    def _told_in_one_call(self, cells: Counter[Cell]) -> bool:
        """Whether one call had exactly these cells, leaving aside outcomes of which none is given. For several outcomes also
        whether these cells hold all values of one call, so that they are its file with further cells filled."""
        given = {None, *(outcome for _, outcome, _ in cells)}
        for call in self.calls:
            if cells.keys().isdisjoint(call):
                continue
            # Failures alone leave no outcome aside.
            if cells == (call if len(given) == 1 else Counter({cell: n for cell, n in call.items() if cell[1] in given})):
                return True
            values = Counter({cell: n for cell, n in call.items() if cell[1] is not None})
            if self.names[0] and values and values <= cells:
                return True
        return False

    def by_row(self, j: int) -> dict[int, list[float]]:
        """The values of outcome j by row, for the rows with at least one."""
        found: dict[int, list[float]] = {}
        for row, value in zip(self.rows, self.values[:, j].tolist(), strict=True):
            if not math.isnan(value):
                found.setdefault(row, []).append(value)
        return found

    def measured(self, j: int) -> list[float]:
        """All values of outcome j, in the order told."""
        return [value for value in self.values[:, j].tolist() if not math.isnan(value)]

    def measured_rows(self) -> list[int]:
        """The rows with any measured outcome, in the order told."""
        return list(dict.fromkeys(itertools.compress(self.rows, np.any(~np.isnan(self.values), axis=1))))

    def failed_rows(self) -> list[int]:
        """The row of each failed evaluation, in which no outcome was measured."""
        return list(itertools.compress(self.rows, np.all(np.isnan(self.values), axis=1)))


def _cells(rows: Sequence[int], values: NDArray[np.float64]) -> Counter[Cell]:
    """Number of times that each value was measured for each row and outcome, and each row failed."""
    measured = ~np.isnan(values)
    cells = [(rows[place], int(j), float(values[place, j])) for place, j in zip(*np.nonzero(measured), strict=True)]
    return Counter[Cell]([*cells, *((rows[place], None, None) for place in np.flatnonzero(~measured.any(axis=1)).tolist())])
