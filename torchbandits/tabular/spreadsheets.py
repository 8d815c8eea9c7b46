"""CSV files of spreadsheets: commas, semicolons or tabs; decimal points or commas; with or without a byte order mark."""

from __future__ import annotations

import codecs
import csv as plain_csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torchbandits.checks import check_regular
from torchbandits.display import count
from torchbandits.errors import ArgumentError, DataError, TorchBanditsError, require
from torchbandits.locks import advice

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import compute as pc
    from pyarrow import csv
else:
    from torchbandits.tabular.extras import compute as pc
    from torchbandits.tabular.extras import csv
    from torchbandits.tabular.extras import pandas as pd
    from torchbandits.tabular.extras import pyarrow as pa

EMPTY = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL")
"""Cells that count as empty."""
BEYOND = re.compile(r"^(<=?|>=?|≤|≥)\s*(\S.*)")
"""A result beyond a limit of detection, such as <0.5: the sign and the limit."""
_HEAD = 1 << 16
_CHUNK = 1 << 20
_WIDE = "utf-16"
_OPEN = 'has a quotation mark (") that is not closed: close it, or delete it.'
_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_POINTED_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
_SEPARATOR = re.compile(r"\s*sep=([,;\t|])\s*?(\r|\n|$)", re.IGNORECASE)
Row = tuple[int, list[str]]
"""The number of the line on which a row begins, from 1, and its cells."""


class Dialect(NamedTuple):
    """Delimiter, decimal mark and header of a CSV file, and the number of lines before the header."""

    delimiter: str
    decimal: str
    header: tuple[str, ...]
    skipped: int


class Form(NamedTuple):
    """The form of a CSV file: its delimiter, its decimal mark, and whether it begins with a byte order mark."""

    delimiter: str = ","
    decimal: str = "."
    mark: bool = False

    def written(self, frame: pd.DataFrame) -> bytes:
        """A table as a CSV file, without its index."""
        text: str = frame.to_csv(index=False, sep=self.delimiter, decimal=self.decimal)
        return text.encode("utf-8-sig" if self.mark else "utf-8")


class Texts(NamedTuple):
    """A CSV file with every cell as text, the number of the line on which each row begins, and its decimal mark."""

    frame: pd.DataFrame
    lines: list[int]
    decimal: str


def dialect(path: Path) -> Dialect:
    """Detect the dialect of a CSV file from its beginning.

    The delimiter is given by a first line such as `sep=;`, as in Excel; otherwise it is the one of tab, semicolon and comma
    with which most rows are as wide as the header. The decimal mark is a comma if the comma is not the delimiter and some cells
    are numbers with a comma, but no cells are numbers with a point. Blank lines before the header are skipped.

    Raises:
        DataError: If the file cannot be read, is empty, or is not UTF-8, or if a comma may separate decimals or thousands.
    """
    return _detected(path, _text(path, _HEAD))


def _detected(path: Path, text: str, commas: bool = False) -> Dialect:
    require(bool(text.strip()), f"{path} is empty: its first line must name the columns.", DataError)
    said = _SEPARATOR.match(text)
    # Among equal shares the first delimiter, since a comma is often a decimal mark.
    delimiters = "\t;," if said is None else said[1]
    try:
        parsed = {delimiter: list(_rows(io.StringIO(text, newline=""), delimiter)) for delimiter in delimiters}
    except plain_csv.Error as error:
        raise DataError(f"{path} can't be read: {error}.") from error
    delimiter = max(delimiters, key=lambda one: _fitting(parsed[one]))
    rows = parsed[delimiter]
    require(bool(rows), f"{path} is empty: its first line must name the columns.", DataError)
    line, header = rows[0]
    _check_title(path, line, {one: found for one, found in parsed.items() if len(header) == 1})
    # A spreadsheet program may write cells beside the table that were used once.
    width = max((place for place, name in enumerate(header, start=1) if name.strip()), default=0)
    width = max(width, *(_filled(cells[: len(header)]) for _, cells in rows))
    unnamed = [str(place + 1) for place, name in enumerate(header[:width]) if not name.strip()]
    nameless = f"{path}, line {line}: column {', '.join(unnamed[:5])} has no name, and the first line must name all columns"
    require(not unnamed, f"{nameless}: delete titles above the table.", DataError)
    header = header[:width]
    check_distinct(path, header, DataError)
    return Dialect(delimiter, _decimal(path, delimiter, rows[1:], commas), tuple(header), line - 1)


def _filled(cells: Sequence[str]) -> int:
    """Number of cells up to the last one that is not empty."""
    return max((place for place, cell in enumerate(cells, start=1) if cell.strip()), default=0)


def _check_title(path: Path, line: int, parsed: dict[str, list[Row]]) -> None:
    """Refuse a header of a single name above what looks like the header of a table with several columns.

    Args:
        path, line: The file, and the line of the header.
        parsed: The rows by delimiter.
    """
    for delimiter, rows in parsed.items():
        advice = f"delete titles above the table, or put texts with {delimiter!r} in quotes"
        widths = {len(cells) for _, cells in rows[1:]}
        named = len(rows) > 2 and not any(not cell.strip() or cell.strip()[0] in "+-.,0123456789" for cell in rows[1][1])
        message = f"{path}, line {line}, names one column, and line {rows[1][0] if named else 0} has {len(rows[-1][1])} cells"
        require(not named or widths == {1} or len(widths) > 1, f"{message}: {advice}.", DataError)


def _fitting(rows: list[Row]) -> float:
    """Share of the rows that are as wide as the header, apart from empty cells at their end; -1 for a single column."""
    width = len(rows[0][1]) if rows else 0
    fitting = sum(len(cells) == width or (len(cells) > width and not any(cells[width:])) for _, cells in rows)
    return fitting / len(rows) if width > 1 else -1.0


def _decimal(path: Path, delimiter: str, rows: list[Row], expected: bool) -> str:
    """The decimal mark of the cells. `expected` is whether it should be a comma.

    Raises:
        DataError: If all numbers with commas may be thousands: semicolons are used where the comma is taken, tabs anywhere. If
            some numbers have commas, or should have them, and all numbers with points may be thousands.
    """
    if delimiter == ",":
        return "."
    stripped = [(line, BEYOND.sub(r"\2", cell.strip())) for line, cells in rows for cell in cells]
    commas = [(line, cell) for line, cell in stripped if _COMMA.fullmatch(cell)]
    points = [(line, cell) for line, cell in stripped if _POINT.fullmatch(cell)]
    if (commas or expected) and points and all(_POINTED_THOUSANDS.fullmatch(cell) for _, cell in points):
        line, cell = points[0]
        why = "Line {} has the number {!r}".format(*commas[0]) if commas else "The candidates have decimal commas"
        mark = "point" if commas else "comma"
        raise DataError(
            f"{path}, line {line}: is {cell!r} {cell.replace('.', '')} or {cell.replace('.', ',')}? {why}. Save the "
            f"sheet without separators of thousands, or write all decimals with a {mark}."
        )
    # A plate with commas may be filled in with points.
    if not commas or (points and not expected):
        return "."
    thousands = delimiter == "\t" and all(_THOUSANDS.fullmatch(cell) for _, cell in commas)
    line, cell = commas[0]
    message = f"{path}, line {line}: is {cell!r} {cell.replace(',', '')} or {cell.replace(',', '.')}? Save the sheet without "
    require(not thousands, message + "separators of thousands, or write decimals with a point.", DataError)
    return ","


def _text(path: Path, most: int = -1) -> str:
    """The text of a file, or of the lines that its first bytes touch.

    Raises:
        DataError: If the file cannot be read, or is not UTF-8.
    """
    check_regular(path)
    content = b""
    try:
        if (encoding := _encoding(path)) == _WIDE:
            with open(path, encoding=encoding, newline="") as text:
                return text.read(most) + text.readline()
        with open(path, "rb") as file:
            content = file.read(most) + file.readline()
        return content.decode(encoding)
    except UnicodeError as error:
        line = content.count(b"\n", 0, getattr(error, "start", 0)) + 1
        raise DataError(f"{path}, line {line}, is not UTF-8: save the sheet as 'CSV UTF-8'.") from error
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}.{advice(error)}") from error


def _encoding(path: Path) -> str:
    """UTF-16 if a file begins with its byte order mark, as one that `>` of Windows PowerShell writes; otherwise UTF-8."""
    with open(path, "rb") as file:
        return _WIDE if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def _rows(lines: Iterable[str], delimiter: str, *, strict: bool = False) -> Iterator[Row]:
    """Yield the header and the rows. Blank lines and a first line `sep=;` are skipped."""
    reader = plain_csv.reader(lines, delimiter=delimiter, strict=strict)
    line, first = 1, True
    for cells in reader:
        if cells and not (first and _SEPARATOR.match(delimiter.join(cells))):
            yield line, cells
        line, first = reader.line_num + 1, first and not cells


def read_csv(path: Path, texts: Sequence[str] = ()) -> pa.Table:
    """Read a CSV file, inferring the type of each column: whole numbers, numbers, booleans, dates, or else texts. Empty rows at
    the end are left out.

    Args:
        path: The file.
        texts: Columns to read as texts, independent of their cells.

    Raises:
        DataError: If the file cannot be read, or an empty row is followed by others; the message names the row.
    """
    found = dialect(path)
    try:
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(skip_rows=found.skipped, encoding=_encoding(path).removesuffix("-sig")),
            parse_options=csv.ParseOptions(delimiter=found.delimiter, newlines_in_values=True),
            convert_options=_conversion(texts, found.decimal),
        )
    except (OSError, pa.ArrowException):
        table = _read_evened(path, texts)
    if any(pa.types.is_binary(kind) for kind in table.schema.types):
        _text(path)
    if table.num_columns > len(found.header):
        table = _read_evened(path, texts)
    _check_closed(path, found)
    return _without_empty(path, table)


def _read_evened(path: Path, texts: Sequence[str]) -> pa.Table:
    """Read a file with empty cells beyond its header.

    Raises:
        DataError: If the file cannot be read, is not UTF-8, or a row is shorter than the header or has other cells beyond it;
            names the line.
    """
    evened, found = read_texts(path), dialect(path)
    with open(path, encoding=_encoding(path), newline="") as file:
        short = ((line, len(cells)) for line, cells in _rows(file, found.delimiter) if len(cells) < len(found.header))
        line, cells = next(short, (0, 0))
    message = f"{path}, line {line}, has {count(cells, 'cell')}, the header {len(found.header)}: fill in the row, or delete it."
    require(not line, message, DataError)
    try:
        return typed([evened.frame.columns, *evened.frame.itertuples(index=False)], texts, evened.decimal)
    except pa.ArrowException as error:
        raise DataError(f"{path} can't be read: {error}") from error


def _check_closed(path: Path, found: Dialect) -> None:
    """Refuse a file that ends within quotation marks: the rows after the opening one would be a single cell."""
    with open(path, "rb") as file:
        marks = sum(chunk.count(b'"') for chunk in iter(lambda: file.read(_CHUNK), b""))
    if marks % 2 == 0:
        return
    with open(path, encoding=_encoding(path), errors="replace", newline="") as file:
        line = 0
        try:
            for line, cells in _rows(file, found.delimiter, strict=True):
                line += sum(cell.count("\n") for cell in cells)
        except plain_csv.Error as error:
            # Other marks, as in 5" tube, are read as they are.
            require(not _unclosed(error), f"{path}, line {line + 1}, {_OPEN}", DataError)


def _unclosed(error: plain_csv.Error) -> bool:
    """Whether an error means that a cell does not end."""
    return "unexpected end" in str(error) or "field limit" in str(error)


def form_of(path: Path, table: pa.Table) -> Form:
    """The form of a CSV file that the program which wrote another one opens: with semicolons where that one has them or decimal
    commas, and otherwise with commas.

    Args:
        path: The other file.
        table: Its content.

    Raises:
        DataError: If the file cannot be read.
    """
    found = dialect(path)
    with open(path, "rb") as file:
        mark = file.read(3) == codecs.BOM_UTF8 or _encoding(path) == _WIDE
    if found.decimal == "." and found.delimiter != ";":
        return Form(mark=mark)
    # Semicolons are in use where the comma is the decimal mark: without any decimal number it is the likely one.
    pointed = found.decimal == "." and any(pa.types.is_floating(kind) for kind in table.schema.types)
    return Form(";", "." if pointed else ",", mark)


def typed(rows: Iterable[Iterable[str]], texts: Sequence[str], decimal: str) -> pa.Table:
    """A header and rows of texts as a table, in which each column has the type that it would have in a CSV file."""
    written = io.StringIO(newline="")
    plain_csv.writer(written, quoting=plain_csv.QUOTE_ALL).writerows(rows)
    return csv.read_csv(
        io.BytesIO(written.getvalue().encode()),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=_conversion(texts, decimal),
    )


def check_distinct(name: object, columns: Sequence[str], error: type[TorchBanditsError] = ArgumentError) -> None:
    """Refuse two columns of one name in a table of this name."""
    twice = sorted(column for column, times in Counter(columns).items() if times > 1)
    require(not twice, f"{name} has more than one column {', '.join(map(repr, twice))}: rename all but one.", error)


def _conversion(texts: Sequence[str], decimal: str) -> csv.ConvertOptions:
    """The conversion of cells to values: those of `texts` stay texts, other columns have the type that fits all their cells."""
    return csv.ConvertOptions(
        column_types={name: pa.string() for name in texts},
        strings_can_be_null=True,
        null_values=list(EMPTY),
        decimal_point=decimal,
    )


def _without_empty(path: Path, table: pa.Table) -> pa.Table:
    filled = np.zeros(table.num_rows, bool)
    for column in table.columns:
        filled |= column.is_valid().to_numpy()
        if filled.all():
            return table
    last = int(np.flatnonzero(filled).max(initial=-1)) + 1
    gap = np.flatnonzero(~filled[:last])
    lines = ", ".join(str(line_of(path, int(row))) for row in gap[:3])
    require(
        not len(gap), f"{path}, line {lines}: all cells are empty ({count(len(gap), 'such row')}). Delete the row.", DataError
    )
    return table.slice(0, last)


def padded_column(path: Path, table: pa.Table) -> tuple[str, str] | None:
    """The first column of whole numbers in which a cell has leading zeros, which are lost, and such a cell; None if there is
    none. Cost: a pass over the file, if there are columns of whole numbers.

    Args:
        path: The CSV file.
        table: Its content.
    """
    whole = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    texts = read_csv(path, whole) if whole else table
    for name in whole:
        for cell in texts.column(name).filter(pc.match_substring_regex(texts.column(name), r"^\s*0\d")).slice(0, 1).to_pylist():
            return name, str(cell).strip()
    return None


def line_of(path: Path, row: int) -> int:
    """Number of the line on which a row of a CSV file begins, from 1. Cost: a pass over the file."""
    found = dialect(path)
    with open(path, encoding=_encoding(path), errors="replace", newline="") as file:
        return next(islice((line for line, _ in _rows(file, found.delimiter)), row + 1, None))


def read_texts(path: Path, *, commas: bool = False) -> Texts:
    """Read a CSV file with every cell as text. A row that is shorter than the header ends in empty cells.

    Args:
        path: The file.
        commas: Whether the candidates to which the file belongs have decimal commas.

    Raises:
        DataError: If the file cannot be read, a row has cells beyond the header, or a mark may separate decimals or thousands;
            names the line.
    """
    text = _text(path)
    found = _detected(path, text, commas)
    width, cells, lines = len(found.header), list[list[str]](), list[int]()
    line = 0
    try:
        for line, row in islice(_rows(io.StringIO(text, newline=""), found.delimiter, strict=True), 1, None):
            few = not any(cell.strip() for cell in row[width:])
            message = (
                f"{path}, line {line}, has {len(row)} cells, the header {width}: put texts with {found.delimiter!r} in quotes"
            )
            decimals = ", and write decimals with a point" if found.delimiter == "," else ""
            require(few, f"{message}{decimals}.", DataError)
            cells.append((row + [""] * width)[:width])
            lines.append(line)
    except plain_csv.Error as error:
        after = line + 1 + sum(cell.count("\n") for cell in (cells[-1] if cells else ()))
        what = _OPEN if _unclosed(error) else f"can't be read: {error}."
        raise DataError(f"{path}, line {after}, {what}") from error
    return Texts(pd.DataFrame(cells, columns=list(found.header), dtype=str), lines, found.decimal)
