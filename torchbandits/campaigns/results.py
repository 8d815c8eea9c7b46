"""Results of evaluations: read from tables and files, compared with the candidates and with earlier ones."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchbandits.checks.bandits import block_number
from torchbandits.display import count
from torchbandits.errors import ArgumentError, DataError, closest, nearest, require
from torchbandits.tabular.ids import Ids
from torchbandits.tabular.spreadsheets import BEYOND, EMPTY, Form, dialect, read_texts
from torchbandits.tabular.tables import TEXT, InMemory, ParquetRows, Table, as_table
from torchbandits.tabular.workbooks import WORKBOOK, check_computed

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
else:
    from torchbandits.tabular.extras import pandas as pd
    from torchbandits.tabular.extras import pyarrow as pa

MOST_NAMED = 5
FORM = b"torchbandits.form"
"""Key of the metadata of a copy of a CSV file: the form of that file, as JSON."""
ALIKE = 0.8
"""Similarity from which on a name is taken for another one that was misspelled; 1 for equal names."""
YES_OR_NO = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
"""Words that are results if a column has no others."""

_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
# A number with something around it.
_DRESSED = re.compile(r"[€$£]?\s*[+-]?[.,]?\d")
# A date as workbooks hold it, and what to do.
_DATE = re.compile(r"\d{4}-\d\d-\d\d\b")
_DATES = " Spreadsheet programs make dates of numbers such as 1.5: format the cells as numbers, and type them."
# A whole number of many digits as spreadsheet programs write it.
_ROUNDED = re.compile(r"\d([.,]\d+)?[eE]\+\d\d")
# What programs add to dates, and whole numbers as they write them.
_MIDNIGHT = re.compile(r"[ T]00:00(:00(\.0+)?)?$")
_WHOLE = re.compile(r"^(-?)0*(\d+)(?:\.0+)?$")


@dataclass(frozen=True)
class Results:
    """Results as they were given.

    Attributes:
        name: Their name in messages.
        frame: All columns, as given.
        ids: One per row, as texts.
        values: `n x k`, the results of each column of `objectives`, NaN where the cell is empty. Of a result beyond a limit of
            detection, such as <0.5, it is the limit.
        signs: `n x k`, −1 for a result below its limit, 1 for one above it, and else 0.
        places: The name of each row in messages, such as `line 3`.
        file: Whether they were read from a file.
        noise_var: `n x k`, variance of the noise of each value, NaN where the cell is empty or there is no such column.
        decimal: The decimal mark of numbers that are texts.
        block: `n`, the number of the block of each row; None without a column of blocks.
        labels: The label of each block by its number.
    """

    name: str
    frame: pd.DataFrame
    ids: list[str]
    values: NDArray[np.float64]
    signs: NDArray[np.int8]
    places: list[str]
    file: bool
    noise_var: NDArray[np.float64]
    decimal: str = "."
    block: NDArray[np.int64] | None = None
    labels: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.ids)


def read_results(
    measured: Any,
    ids: Ids,
    objectives: Sequence[str],
    noise_var: Mapping[str, str],
    block: str | None = None,
    *,
    commas: bool = False,
) -> Results:
    """Read results from a file or a table.

    Args:
        measured: A path, or a table of pandas, Polars or Arrow, with the columns below; pandas may have the ids for its index,
            but not the numbers of the rows, unless the index has their name.
        ids: The ids of the candidates.
        objectives: The columns of the results: a number, a limit of detection such as <0.5, or empty where nothing was
            measured. If there are several, missing columns were not measured; at least one must exist.
        noise_var: By objective, the column of the noise variances: a number above 0, or empty for the usual noise.
        block: The column of the blocks: a text, a number or a date in each row.
        commas: Whether the candidates have decimal commas.

    Raises:
        DataError: If a file cannot be read.
        ArgumentError: If a column is missing, an id or a block is empty, a value is no finite number, or a variance not above
            0: names row and column.
    """
    path = Path(measured) if isinstance(measured, (str, os.PathLike)) else None
    name, id_name = "measured" if path is None else str(path), ids.name
    frame, places, decimal = _opened(measured, path, ids, commas)
    frame.columns = names = [str(column) for column in frame.columns]
    told = [column for column in objectives if column in names] or [objectives[0]]
    _check_columns(name, names, ids, objectives, told)
    # An id may be a word that means an empty cell elsewhere, such as NA.
    empty = _empty(frame).assign(**{id_name: frame[id_name].isna() | (frame[id_name].astype(str).str.strip() == "")})
    blank = empty.all(axis=1).to_numpy() if len(frame) else np.zeros(0, bool)
    places = [places[i] for i in np.flatnonzero(~blank).tolist()]
    frame, empty = frame[~blank].reset_index(drop=True), empty[~blank].reset_index(drop=True)
    require(len(frame) > 0, f"{name} has no rows: nothing was told.")
    nameless = [places[i] for i in np.flatnonzero(empty[id_name].to_numpy()).tolist()]
    require(
        not nameless,
        f"{name}, {_few(nameless)}: the id (column {id_name!r}) is empty: fill it in, or delete a line that is "
        "no result, such as a total. Nothing was told.",
    )
    values = np.full((len(frame), len(objectives)), np.nan)
    signs = np.zeros(values.shape, np.int8)
    for column in told:
        j, cells = objectives.index(column), (frame[column], empty[column].to_numpy())
        values[:, j], signs[:, j] = values_of(name, *cells, places.__getitem__, column, decimal)
    noise = np.full(values.shape, np.nan)
    for objective, column in noise_var.items():
        noise[:, objectives.index(objective)] = _noise_variances(name, frame, places, column, decimal)
    blocks, labels = (None, {}) if block is None else _blocks(name, frame, places, block)
    return Results(
        name, frame, ids.texts(frame[id_name]), values, signs, places, path is not None, noise, decimal, blocks, labels
    )


def decimal_commas(table: Table, *, guessed: bool = False) -> bool:
    """Whether candidates were read from a text file with decimal commas.

    Args:
        table: The candidates.
        guessed: What to return for the copy of a file without decimals in its columns of numbers, which could be any file with
            semicolons.
    """
    saved = (table.schema.metadata or {}).get(FORM)
    if saved is not None:
        # The form of candidates without decimals is a guess.
        decimals = any(pa.types.is_floating(kind) for kind in table.schema.types)
        return Form(*json.loads(saved)).decimal == "," and (decimals or guessed)
    try:
        return table.path is not None and table.path.suffix.lower() in TEXT and dialect(table.path).decimal == ","
    except DataError:
        # The file was moved or changed since it was read.
        return False


def _opened(measured: Any, path: Path | None, ids: Ids, commas: bool) -> tuple[pd.DataFrame, list[str], str]:
    """The rows of results, the name of each in messages, and the decimal mark. `path` is that of a file."""
    if path is not None and path.suffix.lower() in TEXT:
        frame, lines, decimal = read_texts(path, commas=commas)
        return frame, [f"line {line}" for line in lines], decimal
    # Rows are numbered from 1, and an index without a name commonly counts from 0: it would be another row.
    if ids.column is None and isinstance(measured, pd.DataFrame) and measured.index.names == [None]:
        measured = measured.reset_index(drop=True)
    table = as_table("measured", measured, ids=ids.name)
    if path is not None and path.suffix.lower() in WORKBOOK:
        check_computed(path)
    frame = _frame(table)
    return frame, [table.where(place) for place in range(len(frame))], "."


def _check_columns(name: str, names: Sequence[str], ids: Ids, objectives: Sequence[str], told: Sequence[str]) -> None:
    """Refuse results without a column of ids, or without one of the columns `told`."""
    for column, what in [(ids.name, "the ids"), *((column, "what was measured") for column in told)]:
        # A column of the candidates is not a misspelled one.
        other = closest(column, (own for own in names if own not in (ids.name, *ids.columns, *objectives)))
        mend = f"the column must be called {column!r}" if other is None else f"rename {other!r} to {column!r}"
        if other is None and column == ids.name:
            mend += (
                ", the number of the row among the candidates, from 1 (an index of pandas is not)" if ids.column is None else ""
            )
            mend += ". Past results get theirs by a merge with the candidates, on the columns that both have"
        message = f"{name} has no column {column!r} for {what}; it has {', '.join(names[:30])}: {mend}. Nothing was told."
        require(column in names, message)


def _empty_in(name: str, frame: pd.DataFrame, column: str, what: str) -> NDArray[np.bool_]:
    """The mask of the empty cells of a column for `what`, which must exist."""
    names = list(frame.columns)
    lacks = f"{name} has no column {column!r} for {what}; it has {', '.join(names[:30])}."
    require(column in names, f"{lacks}{nearest(column, names)} Nothing was told.")
    empty: NDArray[np.bool_] = _empty(frame[[column]])[column].to_numpy()
    return empty


def _noise_variances(name: str, frame: pd.DataFrame, places: Sequence[str], column: str, decimal: str) -> NDArray[np.float64]:
    """A column of results with the variance of the noise of each value, NaN where the cell is empty."""
    empty = _empty_in(name, frame, column, "the variance of the noise")
    own, _ = values_of(name, frame[column], empty, places.__getitem__, column, decimal, limits=False)
    odd = [f"{places[i]}: {own[i]:g}" for i in np.flatnonzero(own <= 0).tolist()]
    said = "a variance must be above 0, or empty for the usual noise. Nothing was told."
    require(not odd, f"{name}, column {column!r}, {_few(odd)}: {said}")
    return own


def _blocks(name: str, frame: pd.DataFrame, places: Sequence[str], column: str) -> tuple[NDArray[np.int64], dict[int, str]]:
    """The number of the block of each row, and the label of each number, which it follows from: the text of its cell, in which
    a program may write a whole number as 3.0 or without its leading zeros, and a date with the time 00:00."""
    empty = [places[i] for i in np.flatnonzero(_empty_in(name, frame, column, "the block of each result")).tolist()]
    said = "the block is empty. Fill in where or when it was measured. Nothing was told."
    require(not empty, f"{name}, column {column!r}, {_few(empty)}: {said}")
    texts = _texts(frame[[column]]).str.replace(_MIDNIGHT, "", regex=True).str.replace(_WHOLE, r"\1\2", regex=True)
    numbers = {text: block_number(text) for text in texts.unique()}
    return np.array([numbers[text] for text in texts], np.int64), {number: text for text, number in numbers.items()}


def _frame(table: Table) -> pd.DataFrame:
    if isinstance(table, ParquetRows):
        return table.take(np.arange(table.count)).to_pandas()
    assert isinstance(table, InMemory)
    return table.arrow.to_pandas()


def _empty(frame: pd.DataFrame) -> pd.DataFrame:
    """Mask of the empty cells."""
    words = _texts(frame).isin(EMPTY).to_numpy().reshape(frame.shape)
    return frame.isna() | words


def _texts(frame: pd.DataFrame) -> pd.Series:
    """All cells as texts, row by row: one column of many thousands is faster than thousands of columns."""
    cells = frame.astype(str).to_numpy(object).ravel()
    return pd.Series(cells, dtype=object).str.strip()


def values_of(
    name: str,
    cells: pd.Series,
    empty: NDArray[np.bool_],
    where: Callable[[int], str],
    objective: str,
    decimal: str,
    *,
    limits: bool = True,
    remedy: str = "correct it, or leave the cell empty where the evaluation failed",
) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """The numbers of a column, NaN where a cell is empty, and the sign of each: a result below a limit of detection, such as
    <0.5, is this limit with the sign −1, one above it has the sign 1, and all others 0.

    Args:
        name: The name of the table in messages.
        cells: The cells.
        empty: Which of them are empty.
        where: Returns the name of a row in messages.
        objective: The column.
        decimal: The decimal mark.
        limits: Whether there may be limits of detection.
        remedy: What to do about a cell that is neither, for the message.

    Raises:
        ArgumentError: If a cell is neither empty nor a finite number or limit.
    """
    texts = cells.astype(str).str.strip().where(~empty, other="nan")
    words = texts.str.casefold().map(YES_OR_NO | {"nan": np.nan})
    boolean, signs = bool((words.notna() | empty).all()), np.zeros(len(texts), np.int8)
    if limits and not boolean:
        texts, signs = _split(texts)
    numbers = words.to_numpy(np.float64) if boolean else _numbers(texts, decimal)
    odd = [i for i in np.flatnonzero(~np.isfinite(numbers)).tolist() if not empty[i]]
    if odd:
        said = "; ".join(f"{where(i)}: {str(cells.iloc[i])[:40]!r}" for i in odd[:MOST_NAMED])
        no_numbers = [texts.iloc[i] for i in odd if math.isnan(numbers[i])]
        hint = _how_to_write(name, [texts.iloc[i] for i in odd], no_numbers)
        signed = limits and any(str(cells.iloc[i]).strip()[0] in "<>≤≥" for i in odd)
        hint += " Write a result beyond a limit of detection as <0.5 or >100." if signed else ""
        raise ArgumentError(
            f"{name}, column {objective!r}, contains a value that is not a finite number in {said}{_more(len(odd))}. "
            f"{remedy[0].upper()}{remedy[1:]}.{hint} Nothing was told."
        )
    return numbers, signs


def _how_to_write(name: str, odd: Sequence[str], no_numbers: Sequence[str]) -> str:
    """Sentences on how numbers are written, by the texts in a table that are no finite numbers, and those among them that are
    no numbers at all."""
    # Commas are decimal marks in files with semicolons or tabs only.
    book = Path(name).suffix.lower() in WORKBOOK
    point = " Make texts with decimal commas numbers." if book else " Write decimals with a point."
    hint = point if any(map(_COMMA.fullmatch, odd)) else ""
    hint += _DATES if any(map(_DATE.match, odd)) else ""
    dressed = any(_DRESSED.match(text) and not _COMMA.fullmatch(text) and not _DATE.match(text) for text in no_numbers)
    return hint + (" Write numbers without units, percent signs and separators of thousands." if dressed else "")


def _split(texts: pd.Series) -> tuple[pd.Series, NDArray[np.int8]]:
    """Texts without the sign of a limit of detection, and the signs."""
    limited = texts.str.match(BEYOND)
    if not limited.any():
        return texts, np.zeros(len(texts), np.int8)
    signs = np.where(limited, np.where(texts.str[0].isin(["<", "≤"]), -1, 1), 0).astype(np.int8)
    return texts.str.replace(BEYOND, r"\2", regex=True), signs


def _numbers(texts: pd.Series, decimal: str) -> NDArray[np.float64]:
    """Numbers of texts, NaN for other texts. A minus sign may be the typographic one."""
    plain = texts.str.replace("\N{MINUS SIGN}", "-", regex=False)
    pointed = plain.str.replace(",", ".", regex=False) if decimal == "," else plain
    return np.asarray(pd.to_numeric(pointed, errors="coerce").to_numpy(np.float64))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + _more(len(names))


def _more(count: int) -> str:
    return f" and {count - MOST_NAMED:,} more" if count > MOST_NAMED else ""


_NO_CANDIDATES = (
    " Past experiments that are no candidates are added with all columns by extend(), which tells their results too, and taken "
    "out of selection by exclude() (torchbandits campaign extend, exclude)."
)


def check_known(results: Results, found: dict[str, int], ids: Ids, known_as: str) -> None:
    """Raise `ArgumentError` for ids that are not among the candidates, naming them with their rows."""
    unknown = [i for i, text in enumerate(results.ids) if text not in found]
    if not unknown:
        return
    first = results.ids[unknown[0]]
    if (padded := ids.padded(first)) is not None:
        form = "0" * len(padded)
        mend = f"Put the zeros back: in Excel, give the column of the ids the number format {form}, and save the file as CSV."
        if not results.file:
            mend += " Or pandas.read_csv did: tell the path of the file instead of the table."
        raise ArgumentError(
            f"{results.name} has an id {first!r}, and {known_as} has {padded!r}: a spreadsheet program dropped leading zeros. "
            f"{mend} Nothing was told."
        )
    rounded = next((i for i in unknown if _ROUNDED.fullmatch(results.ids[i].strip())), None)
    if rounded is not None:
        where = f"{results.name}, {results.places[rounded]}"
        raise ArgumentError(
            f"{where}: a spreadsheet program rounded the id, a number of many digits, to {results.ids[rounded]!r}. Format the "
            "column of the ids as text before the ids are put in. Nothing was told."
        )
    alike = ids.alike(first)
    if alike is None and len(unknown) == len(results):
        raise ArgumentError(
            f"none of the {len(results):,} ids of {results.name} (such as {first!r}) is an id of {known_as}: these "
            f"are results of another campaign, or another column holds the ids. Nothing was told.{_NO_CANDIDATES}"
        )
    said = ", ".join(f"{results.ids[i]!r} ({results.places[i]})" for i in unknown[:MOST_NAMED])
    meant = f" Delete lines that are no results, such as a total.{_NO_CANDIDATES}"
    if alike is not None:
        meant = f" Does {first!r} mean {alike!r}? Write the id as the candidates do."
    raise ArgumentError(
        f"{results.name} has ids that are not among the candidates: {said}{_more(len(unknown))}. Nothing was told.{meant}"
    )


def differing(results: Results, truth: pd.DataFrame, columns: Mapping[str, float]) -> list[str]:
    """Contradictions between results and columns of the candidates that they repeat, one text per row with any.

    Numbers agree within 1 % or the tolerance of their column, since spreadsheets round; an empty cell agrees with everything.

    Args:
        results: Results with known ids.
        truth: Rows of the candidates in the order of the results.
        columns: Columns to compare, with the tolerance of each; those that the results lack are left out.
    """
    names = [name for name in columns if name in results.frame.columns and not results.frame[name].equals(truth[name])]
    if not names:
        return []
    given, own, shape = results.frame[names], truth[names], (len(results), len(names))
    left, right = _texts(given).str.casefold(), _texts(own).str.casefold()
    a, b = _numbers(left, results.decimal), _numbers(right, ".")
    tolerance = np.tile([columns[name] for name in names], len(results))
    close = np.abs(a - b) <= np.maximum(0.01 * np.maximum(np.abs(a), np.abs(b)), tolerance)
    same = np.where(np.isfinite(a) & np.isfinite(b), close, (left == right).to_numpy()).reshape(shape)
    same |= _empty(given).to_numpy() | own.isna().to_numpy()
    found: dict[int, str] = {}
    for j, i in np.argwhere(~same.T).tolist():
        cell, known = given.iloc[i, j], own.iloc[i, j]
        found.setdefault(i, f"{results.places[i]} has {names[j]!r} {cell!s:.40}, {results.ids[i]!r} has {known!s:.40}")
    return list(found.values())


def check_same_rows(results: Results, truth: pd.DataFrame, columns: Mapping[str, float]) -> list[str]:
    """Refuse results whose other columns contradict the candidates: those of another campaign, or sorted apart from their ids.

    Args:
        results, truth, columns: As for `differing`.

    Returns:
        A sentence for each of the first rows that differ.

    Raises:
        ArgumentError: If most rows differ.
    """
    found = differing(results, truth, columns)
    if 2 * len(found) > len(results):
        raise ArgumentError(
            f"{len(found):,} of the {len(results):,} rows of {results.name} do not have the columns of the candidates of their "
            f"ids: {found[0]}. These are results of another campaign, or the ids were sorted apart from the rest. Nothing was "
            "told. If the ids are right, leave the other columns out."
        )
    return [f"{text}: the candidate's value counts." for text in found[:MOST_NAMED]]


def differing_known(results: Results, truth: pd.DataFrame, known: Sequence[str]) -> list[str]:
    """A sentence for each column of results with other values than the candidates have of a known outcome.

    Args:
        results, truth: As for `differing`.
        known: The known outcomes.
    """
    return [
        f"{name!r} has a value in every row of the candidates, so that it is not learned from results, and "
        f"{count(len(other), 'result')} differ: {other[0]}. If it is measured, begin the campaign with "
        f"columns={{{name!r}: 'measured'}} (--column {name}=measured)."
        for name in known
        if (other := differing(results, truth, {name: 0.0}))
    ]


def misnamed(results: Results, outcomes: Sequence[str], expected: Collection[str]) -> list[str]:
    """Refuse a column whose name is almost that of an outcome without a column, and name one that contains it, such as
    `toxicity (mg)`: the outcome would count as not measured.

    Args:
        results: The results.
        outcomes: The outcomes of the campaign.
        expected: Other columns that belong there.

    Raises:
        ArgumentError: If a column has almost the name of an outcome.
    """
    names, notes = list(results.frame.columns), []
    others = {name.strip().casefold(): name for name in names if name not in expected and name not in outcomes}
    for outcome in (name for name in outcomes if name not in names):
        text = outcome.strip().casefold()
        longer = [name for name in others if text in name and text != name]
        alike = difflib.get_close_matches(text, [name for name in others if name not in longer], n=1, cutoff=ALIKE)
        lacks = f"{results.name} has no column {outcome!r}"
        if alike:
            meant = others[alike[0]]
            raise ArgumentError(f"{lacks}, and a column {meant!r}: rename it, or leave it out. Nothing was told.")
        if longer:
            notes.append(
                f"{lacks}, so that it counts as not measured: if {others[longer[0]]!r} holds it, tell these values in a "
                f"column {outcome!r}."
            )
    return notes
