"""All results of a campaign that were told so far."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from torchbandits.campaigns.corrections import BEYOND, EARLIER, Line
from torchbandits.journal import Journal, held

# A row, an outcome and its value; a row and twice None if the evaluation failed.
Cell = tuple[int, int | None, float | None]


@dataclass(frozen=True)
class Evaluations:
    """Results of k outcomes in rows of the table, in units of the user.

    Attributes:
        rows: `n`, the row of each evaluation.
        values: `n x k`, NaN where nothing was measured.
        signs: `n x k`, −1 for a result below its value, which is a limit of detection, 1 for one above it, and else 0.
        noise_var: `n x k`, variance of the noise of each value; None for the usual noise.
        block: `n`, the number of the block of each evaluation; None without blocks.
    """

    rows: NDArray[np.int64]
    values: NDArray[np.float64]
    signs: NDArray[np.int8]
    noise_var: NDArray[np.float64] | None = None
    block: NDArray[np.int64] | None = None

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Which evaluations have failed, so that no outcome was measured, `n`."""
        return np.all(np.isnan(self.values), axis=1)

    def masked(self, kept: NDArray[np.bool_]) -> Evaluations:
        """The same evaluations with the results of a mask, `n x k`; others are taken for not measured."""
        return replace(self, values=np.where(kept, self.values, np.nan), signs=np.where(kept, self.signs, 0))

    def __getitem__(self, some: NDArray[np.bool_]) -> Evaluations:
        """Some of the evaluations, by a mask, `n`."""
        noise_var = None if self.noise_var is None else self.noise_var[some]
        block = None if self.block is None else self.block[some]
        return Evaluations(self.rows[some], self.values[some], self.signs[some], noise_var, block)


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
                now, *earlier = (_told(version, len(names), sign) for version in (line, *line.get(EARLIER, ())))
                records.add(now, earlier)
        return records

    @property
    def values(self) -> NDArray[np.float64]:
        """Results `n x k` in the order told."""
        return np.array(self.told).reshape(-1, len(self.names))

    @property
    def signs(self) -> NDArray[np.int8]:
        """The signs of the results, `n x k`, as in `beyond`."""
        return np.array(self.beyond, np.int8).reshape(-1, len(self.names))

    def add(self, told: Evaluations, earlier: Sequence[Evaluations] = ()) -> None:
        """Add the results of one call, and what they were before each correction: a file with these is known too."""
        versions = [_cells(call) for call in (told, *earlier)]
        self.times += functools.reduce(operator.or_, versions)
        self.calls += versions
        self.rows += told.rows.tolist()
        self.told += list(told.values)
        self.beyond += list(told.signs)
        self.numbers += [1 + max(self.numbers, default=0)] * len(told.rows)
        self.blocks += [None] * len(told.rows) if told.block is None else told.block.tolist()

    def new(self, told: Evaluations, opened: Sequence[int] = ()) -> NDArray[np.bool_]:
        """Mask of the values that were not told before, `n x k`, by these rules for each outcome.

        If a value is given k times and was told j times, the last k − j are new. If all its rows are `opened`, the results
        answer an ask and are new; but results that one call told before are no answer to another ask. A row may be given more
        often than it is open, as where everything is measured in duplicate, unless the results contain those of an earlier
        call, as a file that grows does. A failed evaluation is new if it is so for any outcome.
        """
        cells = _cells(told)
        if len(opened) and self._told_in_one_call(cells):
            opened = ()
        grown = len(opened) > 0 and any(call and call <= cells for call in self.calls)
        rows, values = told.rows.tolist(), told.values
        found, measured = np.zeros(values.shape, bool), ~np.isnan(values)
        for j in range(len(self.names)):
            places = np.flatnonzero(measured[:, j] | ~measured.any(axis=1)).tolist()
            given = Counter(rows[place] for place in places)
            answers = given.keys() <= {*opened} and (not grown or given <= Counter(opened))
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


def _told(line: Line, k: int, sign: float) -> Evaluations:
    """The results of k outcomes in a record of a tell, or in one of its versions before corrections, whose rewards are values
    times `sign`."""
    index, rewards = (held(line[name]).reshape(k, -1).mT for name in ("index", "rewards"))
    kept = index[:, 0] >= 0
    rows, values = index[kept, 0].numpy(), sign * rewards[kept].double().numpy()
    block = held(line["block"]).reshape(k, -1)[0][kept].numpy() if "block" in line else None
    signs = held(line[BEYOND]).reshape(k, -1).mT[kept].numpy().astype(np.int8) if BEYOND in line else None
    return Evaluations(rows, values, np.zeros(values.shape, np.int8) if signs is None else signs, block=block)


def _cells(told: Evaluations) -> Counter[Cell]:
    """Number of times that each value was measured for each row and outcome, and each row failed."""
    rows, values = told.rows.tolist(), told.values
    measured = ~np.isnan(values)
    cells = [(rows[place], int(j), float(values[place, j])) for place, j in zip(*np.nonzero(measured), strict=True)]
    return Counter[Cell]([*cells, *((rows[place], None, None) for place in np.flatnonzero(~measured.any(axis=1)).tolist())])
