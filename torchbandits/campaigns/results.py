"""What was measured, as it comes back from the laboratory: ids and values, with where each stands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchbandits.campaigns.ids import as_id
from torchbandits.campaigns.spreadsheets import EMPTY, read_texts
from torchbandits.campaigns.tables import TEXT, InMemory, ParquetRows, as_table
from torchbandits.errors import ArgumentError, nearest, require

if TYPE_CHECKING:
    import pandas as pd
else:
    from torchbandits.campaigns.extras import pandas as pd

MOST_NAMED = 5


@dataclass(frozen=True)
class Results:
    """Results as they were handed in.

    Attributes:
        name: What messages call them.
        frame: All columns, as they came.
        ids: One a row, as texts.
        values: The objective, NaN where the evaluation failed.
        rows: What messages call each row.
        file: Whether they came as a file.
    """

    name: str
    frame: pd.DataFrame
    ids: list[str]
    values: NDArray[np.float64]
    rows: list[str]
    file: bool

    def __len__(self) -> int:
        """Rows."""
        return len(self.ids)

    def some(self, kept: NDArray[np.bool_]) -> Results:
        """The rows that are marked."""
        places = np.flatnonzero(kept).tolist()
        ids, rows = [self.ids[i] for i in places], [self.rows[i] for i in places]
        return Results(self.name, self.frame[kept].reset_index(drop=True), ids, self.values[kept], rows, self.file)


def read_results(measured: Any, id_name: str, objective: str) -> Results:
    """Results from a file or a table.

    Args:
        measured: A path, or a table of pandas, Polars or Arrow, with the columns below; pandas may have the ids for its index.
        id_name: The column of the ids.
        objective: The column of what was measured: a number, or empty where the evaluation failed.

    Raises:
        DataError: If a file can't be read.
        ArgumentError: If a column is missing, an id is empty, or a value is no finite number: names row and column.
    """
    path = Path(measured) if isinstance(measured, (str, os.PathLike)) else None
    name, decimal = "measured" if path is None else str(path), "."
    if path is not None and path.suffix.lower() in TEXT:
        frame, found = read_texts(path)
        decimal, line = found.decimal, 2
    else:
        frame, line = _frame(measured, id_name), 0
    names = [str(column) for column in frame.columns]
    frame.columns = names
    for column, what in ((id_name, "the ids"), (objective, "what was measured")):
        message = f"{name} has no column {column!r} for {what}; it has {', '.join(names[:30])}.{nearest(column, names)}"
        require(column in names, message)
    empty = _empty(frame)
    blank = empty.all(axis=1).to_numpy() if len(frame) else np.zeros(0, bool)
    places = np.flatnonzero(~blank)
    rows = [f"{'line' if line else 'row'} {place + line}" for place in places.tolist()]
    frame, empty = frame[~blank].reset_index(drop=True), empty[~blank].reset_index(drop=True)
    require(len(frame) > 0, f"{name} has no rows: nothing was told.")
    nameless = [rows[i] for i in np.flatnonzero(empty[id_name].to_numpy()).tolist()]
    require(not nameless, f"{name}, {_few(nameless)}: the id (column {id_name!r}) is empty. Nothing was told.")
    values = _values(name, frame[objective], empty[objective].to_numpy(), rows, objective, decimal)
    return Results(name, frame, [as_id(value) for value in frame[id_name]], values, rows, path is not None)


def _frame(measured: Any, id_name: str) -> pd.DataFrame:
    table = as_table("measured", measured, ids=id_name)
    if isinstance(table, ParquetRows):
        return table.take(np.arange(table.count)).to_pandas()
    assert isinstance(table, InMemory)
    return table.arrow.to_pandas()


def _empty(frame: pd.DataFrame) -> pd.DataFrame:
    """Which cells are empty."""
    return frame.apply(lambda column: column.isna() | column.astype(str).str.strip().isin(EMPTY))


def _values(
    name: str, cells: pd.Series, empty: NDArray[np.bool_], rows: Sequence[str], objective: str, decimal: str
) -> NDArray[np.float64]:
    texts = cells.astype(str).str.strip()
    if decimal == ",":
        texts = texts.str.replace(",", ".", regex=False)
    numbers = pd.to_numeric(texts.where(~empty, other="nan"), errors="coerce").to_numpy(np.float64)
    if cells.dtype == bool:
        numbers = cells.to_numpy(np.float64)
    odd = [i for i in np.flatnonzero(~np.isfinite(numbers)).tolist() if not empty[i]]
    said = "; ".join(f"{rows[i]}: {str(cells.iloc[i])[:40]!r}" for i in odd[:MOST_NAMED])
    if odd:
        raise ArgumentError(
            f"{name}, column {objective!r}, holds what is no finite number in {said}{_more(len(odd))}. Correct it, or leave "
            "the cell empty where the evaluation failed. Nothing was told."
        )
    return numbers


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + _more(len(names))


def _more(count: int) -> str:
    return f" and {count - MOST_NAMED:,} more" if count > MOST_NAMED else ""


def check_known(results: Results, found: dict[str, int], known_as: str) -> None:
    """Refuse ids that are not among the candidates.

    Raises:
        ArgumentError: Names them with their rows.
    """
    unknown = [i for i, text in enumerate(results.ids) if text not in found]
    if len(unknown) == len(results):
        raise ArgumentError(
            f"none of the {len(results):,} ids of {results.name} (such as {results.ids[0]!r}) is an id of {known_as}: these "
            "are results of another campaign, or another column holds the ids. Nothing was told."
        )
    said = ", ".join(f"{results.ids[i]!r} ({results.rows[i]})" for i in unknown[:MOST_NAMED])
    message = f"{results.name} has ids that are not among the candidates: {said}{_more(len(unknown))}. Nothing was told."
    require(not unknown, message)


def differing(results: Results, truth: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Where results repeat columns of the candidates and do not agree with them, one text a row that differs.

    Numbers agree within 1 %, since spreadsheets round; what is empty agrees with everything.

    Args:
        results: Of known ids.
        truth: The candidates' rows, in the order of the results.
        columns: Which to compare; those that results lack are left out.
    """
    found: dict[int, str] = {}
    for column in [name for name in columns if name in results.frame.columns]:
        given, own = results.frame[column], truth[column]
        empty = _empty(given.to_frame())[column].to_numpy() | own.isna().to_numpy()
        left = given.astype(str).str.strip().str.casefold()
        right = own.astype(str).str.strip().str.casefold()
        a = pd.to_numeric(left, errors="coerce").to_numpy(np.float64)
        b = pd.to_numeric(right, errors="coerce").to_numpy(np.float64)
        numeric = np.isfinite(a) & np.isfinite(b)
        close = np.abs(a - b) <= 0.01 * np.maximum(np.abs(a), np.abs(b))
        same = empty | np.where(numeric, close, (left == right).to_numpy())
        for i in np.flatnonzero(~same).tolist():
            text = f"{results.rows[i]} has {column!r} {given.iloc[i]!s:.40}, {results.ids[i]!r} has {own.iloc[i]!s:.40}"
            found.setdefault(i, text)
    return list(found.values())


def check_same_rows(results: Results, truth: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Refuse results whose other columns are those of other candidates: of another campaign, or sorted apart from their ids.

    Returns:
        Sentences on single rows that differ.

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
