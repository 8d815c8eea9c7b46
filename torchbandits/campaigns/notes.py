"""Sentences on results that are told, such as probable mistakes in them and how to mend these."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchbandits.campaigns.candidates import Candidates
from torchbandits.campaigns.records import Evaluations, Records
from torchbandits.campaigns.rows_as_arms import RowsAsArms
from torchbandits.display import and_more, count

_ENOUGH = 8
"""Number of values from which on another one may be called far from them."""
_CONSTANT = 4
"""Number of equal results from which a wrong column is suspected: two yields of 0 are common."""


@dataclass(frozen=True)
class Told:
    """Outcome of one call of `Campaign.tell`, which prints as a few sentences.

    Attributes:
        measured, failed: Numbers of values learned and of failed evaluations.
        known: Number of rows that were told before and did not count again.
        unasked: Number of values learned that had not been asked for.
        notes: Further sentences.
    """

    measured: int
    failed: int
    known: int = 0
    unasked: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The outcome in words."""
        said = [f"{count(self.measured, 'measurement')} and {count(self.failed, 'failed evaluation')} told."]
        if self.unasked:
            counts = "counts" if self.unasked == 1 else "count"
            said.append(f"{count(self.unasked, 'measurement')} had not been asked for, and {counts} all the same.")
        if self.known:
            new, them = ("it is a new measurement", "it") if self.known == 1 else ("they are new measurements", "them")
            # The other rows of the file would count twice.
            alone = " alone, without the other rows," if self.measured or self.failed else ""
            said.append(
                f"{count(self.known, 'row')} had been told before (same id, same value) and did not count again. If {new}, "
                f"tell {them}{alone} with again=True (--again)."
            )
        return " ".join([*said, *self.notes])


def copied(told: Evaluations, new: NDArray[np.bool_], opened: Sequence[int]) -> list[str]:
    """A sentence if results that count have the row and the values of another one in the same file, which may be a copy.

    Args:
        told: The results of the file.
        new: Whether each evaluation counts, `n`.
        opened: The rows that wait for results, which are not copies.
    """
    cells = (tuple(None if math.isnan(value) else value for value in own) for own in told.values.tolist())
    keys = list(zip(told.rows.tolist(), cells, strict=True))
    held, counted = Counter(keys), Counter(key for key, counts in zip(keys, new.tolist(), strict=True) if counts)
    waiting = Counter(opened)
    number = sum(max(0, times - max(waiting[key[0]], times == held[key])) for key, times in counted.items())
    if not number:
        return []
    has, counts = ("has", "counts as a repeated evaluation") if number == 1 else ("have", "count as repeated evaluations")
    what = "value" if told.values.shape[1] == 1 else "values"
    return [f"{count(number, 'result')} {has} the id and the {what} of another one in the file, and {counts}."]


def repeated(new: NDArray[np.bool_]) -> list[str]:
    """A sentence if results of a table, which count in any case, would not count in a file: they were told before.

    Args:
        new: Whether each of those with a value would count in a file, `n x k`.
    """
    number = int((~np.any(new, axis=1)).sum())
    if not number:
        return []
    counts, they = ("counts", "it is no new measurement") if number == 1 else ("count", "they are no new measurements")
    return [
        f"{count(number, 'row')} had been told before (same id, same value) and {counts} again. If {they}, take back "
        "what was told twice (Campaign.correct), and tell tables with again=False."
    ]


def changed(records: Records, told: Evaluations, new: NDArray[np.bool_], ids: Sequence[str]) -> list[str]:
    """A sentence for each outcome of which rows have other values than those that were told before, as in a file in which a
    value was corrected.

    Args:
        records: The results that were told before.
        told: The results that are given now.
        new: Those that count, and that no open row waits for, `n x k`.
        ids: The id of each.
    """
    found = []
    for j, name in enumerate(records.names):
        before, own = records.by_row(j), told.values[:, j]
        pairs = list(zip(told.rows.tolist(), own.tolist(), strict=True))
        given, other = set(pairs), []
        for place in np.flatnonzero(new[:, j] & ~np.isnan(own)).tolist():
            row, value = pairs[place]
            earlier = before.get(row, [value])
            if value not in earlier and (row, earlier[-1]) not in given:
                other.append((ids[place], earlier[-1], value))
        if other:
            id, was, now = other[0]
            found.append(
                f"{of_outcome(name)}{id!r} was told as {was:.10g} before, and is {now:.10g} now{and_more(len(other), 'row')}: "
                f"both count. If the earlier value is wrong, take it back: {take_back((name,), was, id)}."
            )
    return found


def of_outcome(name: str) -> str:
    """An outcome before the id of a row, `'yield' of `; empty for a single objective, whose name is empty."""
    return name and f"{name!r} of "


def take_back(names: Sequence[str], was: float, id: str | None = None) -> str:
    """The call and the command that take a result back.

    Args:
        names: The outcomes of the result; an empty name for a single objective.
        was: The value of each of them, NaN for a failed evaluation.
        id: The id of the row; None for that of any row.
    """
    row, called = ("id", "ID") if id is None else (repr(id), shlex.quote(id))
    value = "math.nan" if math.isnan(was) else f"{was:.10g}"
    if not any(names):
        told = "failed" if math.isnan(was) else value
        return f"correct({row}, None, was={value}), torchbandits campaign correct {called} none --was {told}"
    none, wrong = ("{" + ", ".join(f"{name!r}: {own}" for name in names) + "}" for own in ("None", value))
    told = "none" if math.isnan(was) else value
    left = " ".join(shlex.quote(f"{name}=none") for name in names)
    before = " ".join(f"--was {shlex.quote(f'{name}={told}')}" for name in names)
    return f"correct({row}, {none}, was={wrong}), torchbandits campaign correct {called} {left} {before}"


def far_off(told: Sequence[float], values: NDArray[np.float64], ids: Sequence[str], outcome: str = "") -> list[str]:
    """A sentence if new values are so far from all others that they may be typing errors: beyond the others by more than twice
    the range of these and, if all are positive, also by more than their range of logarithms.

    Args:
        told: The values that were told before.
        values: New values, NaN where the evaluation failed.
        ids: The id of the row of each.
        outcome: The outcome, if there are several.
    """
    new = values[~np.isnan(values)]
    before = len(told) >= _ENOUGH
    others = np.sort(told if before else [*told, *new])
    if len(others) < _ENOUGH + (not before):
        return []
    found = []
    for place in np.flatnonzero(~np.isnan(values)).tolist():
        value = float(values[place])
        # A new value is not one of its own others.
        low, high = float(others[0]), float(others[-1])
        if not before:
            low, high = float(others[int(value == low)]), float(others[-1 - int(value == high)])
        far = _beyond(low, high, value) > 2
        if far and low > 0 and value > 0:
            far = _beyond(math.log(low), math.log(high), math.log(value)) > 1
        if far:
            ends = f"all others are between {low:.6g} and {high:.6g}"
            found.append(f"{of_outcome(outcome)}{ids[place]!r} is {value:.6g}, and {ends}")
    if not found:
        return []
    more = and_more(len(found), "value")
    return [f"{found[0]}{more}: if this is an error, correct it (Campaign.correct, torchbandits campaign correct)."]


def _beyond(low: float, high: float, value: float) -> float:
    """The distance of a value from a range, in lengths of this range; 0 within it, or if it has no length."""
    return max(low - value, value - high, 0.0) / (high - low) if high > low else 0.0


def constant(records: Records, outcomes: Sequence[str]) -> list[str]:
    """A sentence for each outcome whose values are all equal."""
    said = []
    for j, name in enumerate(outcomes):
        values = records.measured(j)
        if len(values) < _CONSTANT or min(values) < max(values):
            continue
        every = f"All {len(values):,} values of {name!r} so far are {values[0]:g}"
        limited = bool(records.signs[:, j].any())
        said.append(
            f"{every}, a limit of detection: nothing can be learned until a value is within the range of the instrument."
            if limited
            else f"{every}: nothing can be learned from a constant. Is it the right column?"
        )
    return said


def succeeded(records: Records, rows: NDArray[np.int64], pool: Candidates) -> list[str]:
    """A sentence if some of these rows, which have a value now, failed before and were never measured: their cells may have
    been empty because they were not measured yet.

    Args:
        records: The results that were told before.
        rows: The rows that have a value now.
        pool: The candidates.
    """
    known, failed = set(records.measured_rows()), set(records.failed_rows())
    now = np.array([row for row in dict.fromkeys(rows.tolist()) if row in failed and row not in known], np.int64)
    if not len(now):
        return []
    return [
        f"Told as failed before, with a value now: {pool.named(now)}. Both count. If nothing had failed, and the "
        f"cell was still empty, take the failure back: {take_back(records.names, math.nan)}."
    ]


def failed_again(records: Records, rows: NDArray[np.int64], pool: Candidates, arms: RowsAsArms, *, learned: bool) -> list[str]:
    """A sentence if some of these rows, whose evaluation has failed, failed before and were never measured.

    Args:
        records: The results so far, those of these rows included.
        rows: The rows.
        pool, arms: The candidates, and the arms that they are.
        learned: Whether failures teach the policy something about other rows.
    """
    times = Counter(records.failed_rows())
    again = np.array([row for row in dict.fromkeys(rows.tolist()) if times[row] > 1], np.int64)
    again = again[arms.counts[again].numpy() == 0]
    if not len(again):
        return []
    said = f"Failed again, and never measured: {pool.named(again)}. From now on they are left out while there are others."
    if not learned:
        said += (
            " A failure teaches nothing about other rows: leave out those that must fail as well by a condition (where=, "
            "--where)."
        )
    return [said]
