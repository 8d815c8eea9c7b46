"""Results beyond a limit of detection, such as <0.5 or >100: each is taken as the limit, and its sign is kept.

A sign is −1 for a result below its limit, 1 for one above it, and 0 for a measured value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchbandits.campaigns.candidates import SHOWN, few
from torchbandits.campaigns.notes import of_outcome, take_back
from torchbandits.campaigns.records import Evaluations, Records
from torchbandits.campaigns.results import Results
from torchbandits.display import and_more, count, listed
from torchbandits.errors import ArgumentError

if TYPE_CHECKING:
    import pandas as pd
else:
    from torchbandits.tabular.extras import pandas as pd

Signs = NDArray[np.int8]
_SIDE, _SIGN = {-1: "below", 1: "above"}, {-1: "<", 1: ">"}
_END = {-1: "largest", 1: "least"}
_OTHER_RANGE = {-1: "a lower limit", 1: "a higher limit (of a diluted sample, for example)"}
_NAMED = 3
"""Largest number of different limits that a sentence names."""


def with_signs(values: NDArray[np.float64], signs: Signs) -> pd.Series:
    """Results of one outcome as a column: numbers, and texts such as <0.5 beyond a limit."""
    if not signs.any():
        return pd.Series(values)
    pairs = zip(values.tolist(), signs.tolist(), strict=True)
    return pd.Series([_SIGN[sign] + _text(value) if sign else value for value, sign in pairs], dtype=object)


def _text(value: float) -> str:
    """A short text that is read as the same number."""
    short = f"{value:.10g}"
    return short if float(short) == value else repr(value)


def check_consistent(results: Results) -> None:
    """Refuse limits of one id between which no value lies, such as <0.5 and >100.

    Raises:
        ArgumentError: Names both.
    """
    for j in range(results.values.shape[1]):
        places: dict[tuple[str, int], int] = {}
        for place in np.flatnonzero(results.signs[:, j]).tolist():
            id, sign = results.ids[place], int(results.signs[place, j])
            own, other = places.setdefault((id, sign), place), places.get((id, -sign))
            limit = float(results.values[place, j])
            # The narrowest limit of each sign is kept.
            if sign * limit > sign * results.values[own, j]:
                places[id, sign] = place
            if other is not None and sign * limit >= sign * results.values[other, j]:
                one, two = (
                    f"{_SIGN[results.signs[at, j]]}{results.values[at, j]:.6g} ({results.places[at]})" for at in (other, place)
                )
                message = (
                    f"{results.name}: {id!r} is {one} and {two}, which cannot both be. Correct one of them. Nothing was told."
                )
                raise ArgumentError(message)


def taken(told: Evaluations) -> list[str]:
    """A sentence on what results beyond a limit are taken as; none if there are none."""
    number = int((told.signs != 0).sum())
    if not number:
        return []
    are = "is a limit of detection and is" if number == 1 else "are limits of detection and are"
    return [f"{count(number, 'result')} {are} taken as {_in_words(told.values[told.signs != 0])}."]


def left_open(
    records: Records, told: Evaluations, ids: Sequence[str], at_least: Mapping[str, float], at_most: Mapping[str, float]
) -> tuple[NDArray[np.bool_], list[str]]:
    """The mask of the results, `n x k`, whose limit tells nothing, with a sentence for each outcome that has some.

    A result below a limit tells nothing if all other results are below that limit, too: taken as the limit, it would be the
    largest of all. So does one that may keep a limit of its outcome or not, and would be taken for one that keeps it. Results
    above a limit likewise.

    Args:
        records: The results that were told before.
        told: Further results.
        ids: The id of each.
        at_least, at_most: The limits of outcomes by name.
    """
    values, signs = told.values, told.signs
    found, said = np.zeros(values.shape, bool), []
    every, each = np.concatenate([records.values, values]), np.concatenate([records.signs, signs])
    for j, name in enumerate(records.names):
        for sign, aims in ((-1, at_least), (1, at_most)):
            least = _least(every[:, j], each[:, j], sign)
            own = (signs[:, j] == sign) & (sign * values[:, j] < max(least, sign * aims.get(name, -sign * np.inf)))
            if not own.any():
                continue
            found[:, j] |= own
            place = int(np.flatnonzero(own)[0])
            limit, number = float(values[place, j]), int(own.sum())
            why = f"no other result is known to be {_SIDE[-sign]} {limit:.6g}"
            if sign * limit >= least:
                why = f"it may keep the limit of {aims[name]:.6g} or not"
            said.append(
                f"{count(number, 'result')} left out: {of_outcome(name)}{ids[place]!r} is {_SIGN[sign]}{limit:.6g}"
                f"{and_more(number, 'row')}, which tells nothing, since {why}. Measure it with {_OTHER_RANGE[sign]} or give "
                "it up (forget, torchbandits campaign forget)."
            )
    return found, said


def _least(values: NDArray[np.float64], signs: Signs, sign: int) -> float:
    """The least of all results of one outcome that are not beyond a limit with this sign, times the sign; −∞ if there are
    none. A limit tells nothing if it is less, times the sign."""
    others = sign * values[~np.isnan(values) & (signs != sign)]
    return float(others.min()) if len(others) else -np.inf


def replaced(records: Records, told: Evaluations, ids: Sequence[str]) -> tuple[NDArray[np.bool_], list[str]]:
    """The mask of the results, `n x k`, that may replace a limit of their row, with a sentence for each outcome that has some:
    they lie beyond a limit that was told before.

    Args:
        records: The results that were told before.
        told: Further results.
        ids: The id of each.
    """
    rows, values, signs = told.rows, told.values, told.signs
    found, said = np.zeros(values.shape, bool), []
    for j, name in enumerate(records.names if records.signs.any() else ()):
        limits = {
            row: (value, sign)
            for row, value, sign in zip(records.rows, records.values[:, j].tolist(), records.signs[:, j].tolist(), strict=True)
            if sign
        }
        for place in np.flatnonzero((signs[:, j] == 0) & np.isin(rows, list(limits))).tolist():
            limit, sign = limits[int(rows[place])]
            found[place, j] = sign * (values[place, j] - limit) > 0
        places = np.flatnonzero(found[:, j])
        if len(places):
            place = int(places[0])
            limit, sign = limits[int(rows[place])]
            said.append(
                f"{of_outcome(name)}{ids[place]!r} was told as {_SIGN[sign]}{limit:.10g} before, and is "
                f"{values[place, j]:.10g} now{and_more(len(places), 'row')}: both count. If the new value replaces "
                f"the limit, take the limit back: {take_back((name,), limit, ids[place])}."
            )
    return found, said


def indistinct(
    records: Records, outcomes: Sequence[str], good: Mapping[str, int], ids_of: Callable[[NDArray[np.int64]], list[str]]
) -> list[str]:
    """A sentence for each objective if several rows are only known to be beyond a limit on the good side.

    Args:
        records: All results.
        outcomes: The outcomes of the records.
        good: By objective the sign of its good side.
        ids_of: Returns the ids of rows.
    """
    said = []
    for name, sign in good.items():
        j = outcomes.index(name)
        values, signs, rows = records.values[:, j], records.signs[:, j], np.array(records.rows, np.int64)
        # The others are `overtaken`.
        beyond = (signs == sign) & (sign * values >= _least(values, signs, sign))
        only = np.setdiff1d(rows[beyond], rows[~beyond & ~np.isnan(values)])
        if len(only) < 2:
            continue
        limits = _in_words(values[beyond & np.isin(rows, only)])
        said.append(
            f"Of {len(only):,} rows it is only known that {name!r} is {_SIDE[sign]} {limits} "
            f"({few(map(repr, ids_of(only[: SHOWN + 1])))}), and the model cannot tell which of them is best: measure them "
            f"with {_OTHER_RANGE[sign]} and correct their results (Campaign.correct, torchbandits campaign correct)."
        )
    return said


def overtaken(records: Records, outcomes: Sequence[str], ids_of: Callable[[NDArray[np.int64]], list[str]]) -> list[str]:
    """A sentence for each outcome if the limits of some rows tell nothing any more, since all other results are beyond them,
    too, as after a change of the method.

    Args:
        records, outcomes, ids_of: As for `indistinct`.
    """
    said = []
    for j, name in enumerate(outcomes if records.signs.any() else ()):
        values, signs, rows = records.values[:, j], records.signs[:, j], np.array(records.rows, np.int64)
        for sign in (-1, 1):
            nothing = (signs == sign) & (sign * values < _least(values, signs, sign))
            only = np.setdiff1d(rows[nothing], rows[~nothing & ~np.isnan(values)])
            if not len(only):
                continue
            are, count_as = ("1 row", "it counts") if len(only) == 1 else (f"{len(only):,} rows", "they count")
            limits, named = _in_words(values[nothing & np.isin(rows, only)]), few(map(repr, ids_of(only[: SHOWN + 1])))
            said.append(
                f"Of {are} it is only known that {name!r} is {_SIDE[sign]} {limits} ({named}), and so is every other result: "
                f"taken as the limit, {count_as} as the {_END[sign]} of all. Measure with {_OTHER_RANGE[sign]} and correct "
                "the results, or take them back (Campaign.correct, torchbandits campaign correct)."
            )
    return said


def _in_words(limits: NDArray[np.float64]) -> str:
    """The different limits in a list; of many the first ones."""
    different = [f"{limit:.6g}" for limit in np.unique(limits).tolist()]
    more = [f"{len(different) - _NAMED:,} others"] if len(different) > _NAMED else []
    return listed([*different[:_NAMED], *more])
