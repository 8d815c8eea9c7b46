"""What a campaign was told so far: measurements and failures by row, read from its journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchbandits.journal import Journal, held

Key = tuple[int, float | None]  # a row and its value; None where the evaluation failed


@dataclass(frozen=True)
class Told:
    """What one call of `Campaign.tell` did; printed, it is a sentence or a few.

    Attributes:
        measured, failed: Values learned, and evaluations that gave none.
        known: Rows of a file that were told before, and did not count again.
        unasked: Of those measured, how many had not been asked for.
        notes: What else there is to say.
    """

    measured: int
    failed: int
    known: int = 0
    unasked: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """In words."""
        said = [f"{_count(self.measured, 'measurement')} and {_count(self.failed, 'failed evaluation')} told."]
        if self.unasked:
            counts = "counts" if self.unasked == 1 else "count"
            said.append(f"{_count(self.unasked, 'measurement')} had not been asked for, and {counts} all the same.")
        if self.known:
            said.append(
                f"{_count(self.known, 'row')} had been told before (same id, same value) and did not count again. If they were "
                "measured anew, tell them with again=True (--again)."
            )
        return " ".join([*said, *self.notes])


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@dataclass
class Record:
    """All measurements of a campaign.

    Attributes:
        counts: How often each value of each row was told.
        rows, values: One a measurement or failure, in order; user's units, NaN where the evaluation failed.
        calls: What each call told, whole.
    """

    counts: Counter[Key] = field(default_factory=Counter)
    rows: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    calls: set[frozenset[tuple[Key, int]]] = field(default_factory=set)

    def add(self, rows: Sequence[int], values: NDArray[np.float64]) -> None:
        """Add what was told."""
        here = Counter(_keys(rows, values))
        self.counts += here
        self.calls.add(frozenset(here.items()))
        self.rows += rows
        self.values += values.tolist()

    def new(self, rows: Sequence[int], values: NDArray[np.float64], opened: Sequence[int] = ()) -> NDArray[np.bool_]:
        """Which of these were not told before.

        Of a value that stands k times here and was told j times, the last k − j are new. Where all are of rows that are
        `opened`, each as often as it stands here, they are the answer to an ask, and new, unless one call told the very same.
        """
        answer = Counter(rows) <= Counter(opened)
        if answer and frozenset(Counter(_keys(rows, values)).items()) not in self.calls:
            return np.ones(len(rows), bool)
        here: Counter[Key] = Counter()
        kept = []
        for key in _keys(rows, values):
            here[key] += 1
            kept.append(here[key] > self.counts[key])
        return np.array(kept, bool)

    def measured(self) -> dict[int, list[float]]:
        """The values of each row that has one."""
        found: dict[int, list[float]] = {}
        for row, value in zip(self.rows, self.values, strict=True):
            if value == value:
                found.setdefault(row, []).append(value)
        return found


def _keys(rows: Sequence[int], values: NDArray[np.float64]) -> list[Key]:
    return [(row, value if value == value else None) for row, value in zip(rows, values.tolist(), strict=True)]


def record_of(journal: Journal, sign: float) -> Record:
    """What a journal holds. Cost: a pass over it."""
    record = Record()
    for line in journal.records():
        if line["kind"] == "tell":
            index, rewards = held(line["index"]).reshape(-1), held(line["rewards"]).reshape(-1)
            kept = index >= 0
            record.add(index[kept].tolist(), sign * rewards[kept].double().numpy())
    return record
