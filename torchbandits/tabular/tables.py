"""Tables of candidates from any library or file, read in batches or by the numbers of rows."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchbandits.checks import check_regular
from torchbandits.errors import ArgumentError, DataError, require
from torchbandits.tabular.spreadsheets import BEYOND, check_distinct, line_of, read_csv
from torchbandits.tabular.workbooks import WORKBOOK, read_workbook

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import ipc, parquet
else:
    from torchbandits.tabular.extras import ipc, parquet
    from torchbandits.tabular.extras import pandas as pd
    from torchbandits.tabular.extras import pyarrow as pa

BATCH = 1 << 16
"""Largest number of rows of a batch."""
ARROW = (".arrow", ".feather", ".ipc")
PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt")
SOURCE = b"torchbandits.source"
"""Key of the metadata of a copy of a table: the name of the file that it was copied from."""


class Table(ABC):
    """Rows of candidates.

    Attributes:
        path: The file that the table is read from, if any.
        lines: Whether messages count lines of a CSV file, instead of rows from 0.
        index: The column that holds the index of a pandas table, unless the index only counts the rows.
    """

    path: Path | None = None
    lines = False
    index: str | None = None

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of rows."""

    @abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of all rows in order, at most `BATCH` rows at a time."""

    @abstractmethod
    def take(self, rows: NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
        """Some columns of some rows, in the order given; None for all columns."""

    @property
    def name(self) -> str:
        """Name of the table in messages: that of the file from which it was copied, if it is a copy."""
        name = "the table" if self.path is None else str(self.path)
        return (self.schema.metadata or {}).get(SOURCE, b"").decode() or name

    def where(self, row: int) -> str:
        """Name of a row in messages."""
        return f"line {line_of(self.path, row)}" if self.lines and self.path is not None else f"row {row}"


class InMemory(Table):
    """An Arrow table in memory, or mapped into it.

    Args:
        table: The rows.
        path: The file that they were read from.
        lines: Whether messages count its lines.
        index: As for `Table`.
        places: Takes the number of a row and returns its name in messages, where that is another one than in `Table`.
    """

    def __init__(
        self,
        table: pa.Table,
        path: Path | None = None,
        *,
        lines: bool = False,
        index: str | None = None,
        places: Callable[[int], str] | None = None,
    ) -> None:
        self._table, self.path, self.lines, self.index, self._places = table, path, lines, index, places

    def where(self, row: int) -> str:
        """Name of a row in messages."""
        return super().where(row) if self._places is None else self._places(row)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._table.schema

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self._table.num_rows)

    @property
    def arrow(self) -> pa.Table:
        """The whole table."""
        return self._table

    def first(self, count: int) -> InMemory:
        """The first rows alone."""
        return InMemory(self._table.slice(0, count), self.path, index=self.index)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield views of the columns."""
        yield from self._table.select(list(columns)).to_batches(max_chunksize=BATCH)

    def take(self, rows: NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
        """Copy the rows."""
        return (self._table if columns is None else self._table.select(list(columns))).take(pa.array(rows))


def copied(table: Table, rows: NDArray[np.int64], columns: Sequence[str]) -> InMemory:
    """A copy of some rows and columns of a table. Messages name the table, and each row by its place there."""
    own = table.take(rows, columns).replace_schema_metadata({SOURCE: table.name.encode()})
    return InMemory(own, places=partial(_where_copied, table, rows))


def _where_copied(table: Table, rows: NDArray[np.int64], row: int) -> str:
    return table.where(int(rows[row]))


def _in_sheet(numbers: NDArray[np.int64], row: int) -> str:
    return f"row {numbers[row]}"


class ParquetRows(Table):
    """A Parquet file, of which at most one row group is in memory. It stays open, so that it may be moved or replaced, but not
    written to."""

    def __init__(self, path: Path) -> None:
        check_regular(path)
        self.path, self._stamp = path, _stamp(path)
        try:
            # A buffered reader would keep all bytes that it has read.
            self._file = parquet.ParquetFile(path, pre_buffer=False)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} can't be read as Parquet: {error}.") from error
        # `schema_arrow` makes a schema at every call, which takes long with thousands of columns.
        self._schema = self._file.schema_arrow
        metadata = self._file.metadata
        self._ends = list(accumulate(metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)))

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._schema

    @property
    def count(self) -> int:
        """Number of rows."""
        return self._ends[-1] if self._ends else 0

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Decode the columns batch by batch."""
        self._check()
        try:
            yield from self._file.iter_batches(batch_size=BATCH, columns=list(columns))
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.path} can't be read: {error}.") from error

    def take(self, rows: NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
        """Decode each row group that holds one of the rows."""
        self._check()
        group = np.searchsorted(self._ends, rows, side="right")
        order = np.argsort(group, kind="stable")
        names = None if columns is None else list(columns)
        parts = [self.schema.empty_table() if names is None else self.schema.empty_table().select(names)]
        try:
            for g in np.unique(group).tolist():
                begin = self._ends[g - 1] if g else 0
                parts.append(self._file.read_row_group(g, columns=names).take(pa.array(rows[group == g] - begin)))
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.path} can't be read: {error}.") from error
        return pa.concat_tables(parts).take(pa.array(np.argsort(order, kind="stable")))

    def _check(self) -> None:
        """Refuse to read other rows than those that were opened, or bytes that mean something else now."""
        assert self.path is not None
        try:
            (file, *now), (opened, *then) = _stamp(self.path), self._stamp
        except OSError:
            return  # moved away
        message = f"{self.path} was written to since it was opened, so that its rows may be others: open the campaign again."
        require(file != opened or now == then, message, DataError)


def _stamp(path: Path) -> tuple[int, int, int]:
    """Number, size and modification time of a file."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def as_table(name: str, value: Any, texts: Sequence[str] = (), ids: str | None = None) -> Table:
    """Open a table from a path, or from an object of pandas, Polars or Arrow.

    Args:
        name: The argument, for messages.
        value: A path of a CSV, Excel (.xlsx), Parquet or Arrow file; a table of pandas, Polars, Arrow, or of anything else that
            exports Arrow streams; a dictionary of columns; or a `Table`, which is returned.
        texts: Columns of a CSV file to read as texts, such as ids, which must keep leading zeros.
        ids: The column of the ids, if it is known. The index of a pandas table becomes a column only where there is none.

    Raises:
        DataError: If a file cannot be read.
        ArgumentError: If `value` is no table, has no rows, or has two columns of one name.
    """
    found = _opened(name, value, texts, ids)
    check_distinct(found.name, found.schema.names)
    require(found.count > 0, f"{found.name} has no rows.")
    return found


def _opened(name: str, value: Any, texts: Sequence[str], ids: str | None) -> Table:
    if isinstance(value, Table):
        return value
    if isinstance(value, (str, os.PathLike)):
        return _file(Path(value).absolute(), texts, ids)
    if isinstance(value, pa.Table):
        return InMemory(_without_views(value))
    if type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns"):
        return _of_pandas(name, value, ids)
    try:
        # A series of pandas has no columns.
        if isinstance(value, Mapping) or (hasattr(value, "__arrow_c_stream__") and not hasattr(value, "to_frame")):
            return InMemory(_without_views(pa.table(value)))
    except (pa.ArrowException, TypeError, ValueError) as error:
        cells = ". Each column of a dictionary is a list of cells" if isinstance(value, Mapping) else ""
        raise ArgumentError(f"{name} can't be read as an Arrow table: {error}{cells}.") from error
    rows = ": make one of rows by pandas.DataFrame(rows)" if isinstance(value, list | tuple) else ""
    raise ArgumentError(
        f"{name} must be a table of pandas, Polars or Arrow, or the path of a CSV, Excel, Parquet or Arrow file, got "
        f"{type(value).__name__}{rows}."
    )


def _file(path: Path, texts: Sequence[str], ids: str | None) -> Table:
    suffix = path.suffix.lower()
    if suffix in PARQUET:
        return ParquetRows(path)
    check_regular(path)
    if suffix in ARROW:
        try:
            return InMemory(ipc.open_file(pa.memory_map(str(path))).read_all(), path)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} can't be read as an Arrow file: {error}.") from error
    if suffix in WORKBOOK:
        table, numbers = read_workbook(path, ids)
        return InMemory(table, path, places=partial(_in_sheet, numbers))
    known = ", ".join((*TEXT, *WORKBOOK, *PARQUET, *ARROW))
    require(suffix in TEXT, f"{path} is not one of {known}: save the sheet as 'CSV UTF-8', and give that file.", DataError)
    return InMemory(read_csv(path, texts), path, lines=True)


def _without_views(table: pa.Table) -> pa.Table:
    """The same table with texts of type string: Polars exports string views, of which Arrow takes no rows."""
    for place, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_string_view(kind):
            table = table.set_column(place, field.name, table.column(place).cast(pa.string()))
        elif pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type):
            chunks = [
                pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(pa.string()), ordered=kind.ordered)
                for chunk in table.column(place).chunks
            ]
            own = pa.dictionary(kind.index_type, pa.string(), kind.ordered)
            table = table.set_column(place, field.name, pa.chunked_array(chunks, own))
    return table


def _of_pandas(name: str, frame: Any, ids: str | None) -> Table:
    """Convert a pandas table. Its index becomes the column of the ids where there is no other, unless it only counts rows."""
    flat = frame.index.nlevels == frame.columns.nlevels == 1
    require(flat, f"{name} has an index or columns of several levels: reset_index(), and give each column one name.")
    names = [str(column) for column in frame.columns]
    check_distinct(name, names)
    other = ids in names if ids is not None else any(column.strip().casefold() == "id" for column in names)
    counts = isinstance(frame.index, pd.RangeIndex) and frame.index.name is None
    index = None if counts or other else str(frame.index.name or ids or "id")
    if index is not None:
        require(index not in names, f"{name} has a column {index!r} and an index of that name: reset_index(drop=True).")
        frame = frame.rename_axis(index).reset_index()
    try:
        frame = frame.rename(columns=str)
        for column in frame.columns:
            kind = frame[column].dtype
            # Bins, as pandas.cut makes them, and periods have no type in Arrow.
            if isinstance(kind, pd.CategoricalDtype) and isinstance(kind.categories.dtype, pd.IntervalDtype | pd.PeriodDtype):
                frame[column] = frame[column].cat.rename_categories(str)
        return InMemory(pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None), index=index)
    except OverflowError as error:
        message = f"{name} has a whole number of more than 64 bits: make its column floating-point numbers, or texts for ids."
        raise ArgumentError(message) from error
    except (pa.ArrowException, TypeError, ValueError) as error:
        if limited := _with_limits(frame):
            return _of_pandas(name, frame.assign(**limited), ids)
        raise ArgumentError(
            f"{name} has a column of mixed types, which must be numbers or texts throughout: {error}."
        ) from error


def _with_limits(frame: Any) -> dict[str, Any]:
    """The columns of numbers beside texts such as <0.5, as texts, which they are in a file."""
    found = {}
    for name in filter(lambda name: pd.api.types.is_object_dtype(frame[name]), frame.columns):
        cells = frame[name].dropna()
        texts = cells.map(lambda cell: isinstance(cell, str))
        if not texts.all() and any(BEYOND.fullmatch(text.strip()) for text in cells[texts]):
            found[name] = frame[name].map(str, na_action="ignore")
    return found
