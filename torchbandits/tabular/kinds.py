"""The kind of a column: the one that was told, or one that fits its cells, and the numbers that its encoding needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchbandits.display import and_more, count
from torchbandits.errors import ArgumentError, require
from torchbandits.sources.smiles import all_smiles, chem, no_smiles
from torchbandits.tabular.cells import as_texts
from torchbandits.tabular.decisions import EMPTY, MOLECULE, SUBSTANCE, Decision, transformed
from torchbandits.tabular.substances import coordinates_of
from torchbandits.tabular.survey import LARGEST, MOST_CATEGORIES, ROUNDING, Survey, check_size
from torchbandits.tabular.texts import nearly_equal, nearly_smiles, no_number, option, order_lost, refuse_texts

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from torchbandits.tabular.extras import pyarrow as pa

FEW_CATEGORIES = 50
"""Largest number of different texts of a column that is taken as categories without the user's decision."""
# Ratio of the 95 % to the 5 % quantile from which on the logarithm of a column is used.
WIDE = 100.0


def decision_on(s: Survey, told: Any, molecules: bool) -> Decision:
    """The decision on a column.

    Args:
        s: Its cells.
        told: The kind that the user gave it, or its categories in order; None for one that fits its cells.
        molecules: Whether it may hold molecules.

    Raises:
        ArgumentError: If the cells contradict the kind, or none fits them; the message gives a remedy.
    """
    require(not s.infinite, f"column {s.column!r} is infinite in {s.infinite}: leave the cell empty or ignore the column.")
    if s.missing == s.count:
        return Decision(s.column, "ignore", "all cells are empty")
    if isinstance(told, str):
        return _OF_KIND[told](s, "as told")
    if told is not None:
        return _in_order(s, tuple(str(text) for c in told for text in as_texts(pa.array([c])).to_pylist()), "as told")
    if s.constant:
        close = len(s.categories) > 1
        return Decision(
            s.column, "ignore", "all cells are equal" + " in double precision: subtract a constant from them" * close
        )
    if s.rounding:
        return Decision(s.column, "ignore", "all cells are equal up to rounding errors")
    kind, why = _guess(s, molecules)
    return _OF_KIND[kind](s, why)


# ---------------------------------------------------------------------- a kind that fits the cells


def _guess(s: Survey, molecules: bool) -> tuple[str, str]:
    """A kind and the reason for it.

    Raises:
        ArgumentError: If no kind fits; the message gives a remedy.
    """
    if s.boolean:
        return "boolean", "true or false"
    if s.date:
        return "date", "dates, as days"
    if s.numeric:
        return _guess_of_numbers(s)
    if s.ordered:
        return "ordered", "categories of a column with an order"
    some = s.text or s.dictionary
    clock = "times of day: write hours as numbers, such as 10.5 for 10:30, or 'ignore' it."
    other = f"{s.type}, which is not a number: split it into columns, or 'ignore' it."
    require(some, f"column {s.column!r} holds {clock if s.type.startswith(('time32', 'time64')) else other}")
    return _guess_of_texts(s, molecules)


def _guess_of_numbers(s: Survey) -> tuple[str, str]:
    low, high = np.nanquantile(s.sample, [0.05, 0.95])
    if s.low > 0 and not s.whole and _decades(s.sample):
        return "log", f"positive, from {s.low:.3g} to {s.high:.3g}: its logarithm"
    if s.low == 0 and not s.whole and _decades(positive := _positive(s)):
        return "log", f"from 0 to {s.high:.3g}: the logarithm of 1 + x / {positive.min():.3g}"
    if s.low >= 0 and s.whole and high + 1 >= WIDE * (low + 1):
        return "count", f"whole numbers, from {s.low:g} to {s.high:g}: the logarithm of one more"
    return "number", f"numbers from {s.low:.4g} to {s.high:.4g}"


def _decades(values: NDArray[np.float64]) -> bool:
    """Whether positive numbers spread over decades."""
    low, high = np.quantile(values, [0.05, 0.95]) if len(values) else (1.0, 0.0)
    return bool(high >= WIDE * low)


def _guess_of_texts(s: Survey, molecules: bool) -> tuple[str, str]:
    most_rare = not s.too_many and len(s.categories) <= FEW_CATEGORIES and 2 * len(s.categories) <= s.count - s.missing
    if molecules and not (most_rare or s.dictionary) and all_smiles(s.categories):
        return MOLECULE, "SMILES: Morgan fingerprints"
    # With a slip, few different numbers or dates would be categories without an order.
    if (s.text and s.slips) or not (most_rare or s.dictionary):
        refuse_texts(s, molecules)
    if len(s.categories) < 2:
        return "category", "the same text, or empty"
    return "category", f"{len(s.categories)} different texts{order_lost(s.categories)}{nearly_equal(s.categories)}"


# ---------------------------------------------------------------------- numbers


def number(s: Survey, why: str) -> Decision:
    """The decision on a column of numbers."""
    _check_numbers(s)
    return _of_numbers(s, "number", why)


def _log(s: Survey, why: str) -> Decision:
    _check_numbers(s)
    fits = s.low > 0 or (s.low == 0 < s.high and not s.whole)
    _check_least(s, "log", fits, "count" if s.low >= 0 else "number")
    unit = float(np.append(_positive(s), s.high).min()) if s.low == 0 else 0.0
    return _of_numbers(s, "log", why, unit)


def _count(s: Survey, why: str) -> Decision:
    _check_numbers(s)
    _check_least(s, "count", s.low >= 0, "number")
    return _of_numbers(s, "count", why)


def _date(s: Survey, why: str) -> Decision:
    _check_numbers(s)
    require(s.date, f"columns: {s.column!r} holds no dates, but {s.type}: use 'number'.")
    return _of_numbers(s, "date", why)


def _boolean(s: Survey, why: str) -> Decision:
    _check_numbers(s)
    two = s.low in (0.0, 1.0) and s.high in (0.0, 1.0)
    require(two, f"columns: {s.column!r} can't be boolean, since its values go from {s.low:g} to {s.high:g}: use 'number'.")
    return Decision(s.column, "boolean", why, s.missing, fill=0.5)


def _check_numbers(s: Survey) -> None:
    require(s.numeric, no_number(s))
    check_size(s)


def _check_least(s: Survey, kind: str, fits: bool, instead: str) -> None:
    require(fits, f"columns: {s.column!r} can't be {kind!r}, since its least value is {s.low:g}: use {instead!r}.")


def _positive(s: Survey) -> NDArray[np.float64]:
    """The numbers above 0, up to rounding errors."""
    return s.sample[s.sample > ROUNDING * s.high]


def _of_numbers(s: Survey, kind: str, why: str, unit: float = 0.0) -> Decision:
    """The decision on a column whose numbers, which have been checked, are transformed like this kind."""
    return _scaled(Decision(s.column, kind, why, s.missing, unit=unit), transformed(kind, s.sample, unit))


def _scaled(decision: Decision, values: NDArray[np.float64]) -> Decision:
    """The decision with median, mean and standard deviation of (transformed) values."""
    some = values[~np.isnan(values)]
    most = float(np.abs(some).max())
    # Squares of smaller numbers underflow.
    unit = most if 0 < most < 1 / LARGEST else 1.0
    center, scale = float(some.mean()), float((some / unit).std()) * unit
    # Equal numbers have a deviation of 0, or one that is all rounding error.
    scale = scale if scale > ROUNDING * abs(center) else 1.0
    return replace(decision, fill=float(np.median(some)), center=center, scale=scale)


# ---------------------------------------------------------------------- categories


def category(s: Survey, why: str) -> Decision:
    """The decision on a column of categories without an order."""
    _check_categories(s)
    return Decision(s.column, "category", why, s.missing, s.categories)


def _ordered(s: Survey, why: str) -> Decision:
    _check_categories(s)
    if s.ordered or s.numeric:
        return _in_order(s, s.categories, why)
    raise ArgumentError(
        f"columns: give the order of the texts of {s.column!r}, lowest first, such as {list(s.categories)[:4]}."
    )


def _in_order(s: Survey, order: tuple[str, ...], why: str) -> Decision:
    """The decision on a column of categories, whose order is given."""
    require(len(set(order)) == len(order), f"columns: {s.column!r} names a category twice.")
    _check_categories(s)
    _check_empty(s, order)
    unknown = [c for c in s.categories if c not in order]
    require(
        not unknown,
        f"columns: the order of {s.column!r} lacks {', '.join(map(repr, unknown[:5]))}, which the column also "
        "holds: add them to it.",
    )
    held = {c: float(place) for place, c in enumerate(order)}
    places = np.array([held[c] for c in s.categories])
    return _scaled(Decision(s.column, "ordered", why, s.missing, order), places)


def _check_categories(s: Survey) -> None:
    few = not s.too_many
    message = f"column {s.column!r} holds more than {MOST_CATEGORIES:,} different values: too many for categories."
    require(
        few, f"{message} Leave it out (columns={{{s.column!r}: 'ignore'}}, {option(s.column, 'ignore')}), or group the values."
    )
    _check_empty(s, s.categories if s.missing else ())


def _check_empty(s: Survey, categories: Sequence[str]) -> None:
    """Refuse a category with the name of that of empty cells."""
    said = f"column {s.column!r} has a category {EMPTY!r}, which is the name for empty cells"
    require(EMPTY not in categories, f"{said}: leave these cells empty, or write another text.")


# ---------------------------------------------------------------------- molecules


def _molecule(s: Survey, why: str) -> Decision:
    require(s.text, f"columns: {s.column!r} holds {s.type} and can't be 'molecule': SMILES are texts.")
    if s.missing:
        lacks = f"column {s.column!r} lacks the SMILES in {s.empty_at} ({count(s.missing, 'such row')})"
        raise ArgumentError(f"{lacks}: fill in what is missing, or leave these rows out.")
    return Decision(s.column, MOLECULE, why)


def substance(s: Survey, why: str) -> Decision:
    """The decision on a column of SMILES, whose molecules are points of few coordinates."""
    require(s.text or s.dictionary, f"columns: {s.column!r} holds {s.type} and can't be {SUBSTANCE!r}: SMILES are texts.")
    _check_categories(s)
    chem.need()
    wrong = no_smiles(s.categories)
    if wrong:
        raise ArgumentError(nearly_smiles(s, wrong))
    found = coordinates_of(s.categories)
    rows = tuple(tuple(row) for row in found.tolist())
    require(bool(rows[0]), f"column {s.column!r}: all its molecules have the same fingerprint. Make the column a 'category'.")
    return Decision(s.column, SUBSTANCE, why + _spellings(s.categories, rows), s.missing, s.categories, coordinates=rows)


def _spellings(smiles: Sequence[str], rows: Sequence[tuple[float, ...]]) -> str:
    """The end of a reason if some SMILES are spellings of one molecule, which have the same point."""
    first = dict(zip(reversed(rows), reversed(smiles), strict=True))
    pairs = [(first[row], text) for row, text in zip(rows, smiles, strict=True) if first[row] != text]
    return f"; {pairs[0][0]!r} and {pairs[0][1]!r} are one molecule{and_more(len(pairs), 'spelling')}" if pairs else ""


_OF_KIND: Mapping[str, Callable[[Survey, str], Decision]] = {
    "number": number,
    "log": _log,
    "count": _count,
    "date": _date,
    "boolean": _boolean,
    "category": category,
    "ordered": _ordered,
    SUBSTANCE: substance,
    MOLECULE: _molecule,
}
"""The decision on a column by its kind, from its cells and the reason in words."""
