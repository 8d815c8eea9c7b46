"""CSV files of spreadsheets: commas, semicolons or tabs; decimal points or commas; with or without a byte order mark."""

from __future__ import annotations

import csv as plain_csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torchbandits.checks import check_regular
from torchbandits.errors import DataError, require

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import csv
else:
    from torchbandits.tabular.extras import csv
    from torchbandits.tabular.extras import pandas as pd
    from torchbandits.tabular.extras import pyarrow as pa

EMPTY = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL")
"""Cells that count as empty."""
_HEAD = 1 << 16


class Dialect(NamedTuple):
    """Delimiter, decimal mark and header of a CSV file."""

    delimiter: str
    decimal: str
    header: tuple[str, ...]


def dialect(path: Path) -> Dialect:
    """Detect the dialect of a CSV file from its beginning.

    The delimiter is the one of comma, semicolon and tab that the first line holds most often. Decimals have commas where the
    delimiter is a semicolon or a tab and a comma between two digits occurs.

    Raises:
        DataError: If the file cannot be read, is empty, or is not UTF-8.
    """
    check_regular(path)
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}.") from error
    try:
        text = head.decode("utf-8-sig", errors="strict" if len(head) < _HEAD else "ignore")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start}): save the sheet as 'CSV UTF-8'.") from error
    require(bool(text.strip()), f"{path} is empty: its first line must name the columns.", DataError)
    first = text.splitlines()[0]
    delimiter = max(",;\t", key=first.count)
    decimal = "," if delimiter != "," and re.search(r"\d,\d", text) else "."
    header = next(plain_csv.reader(io.StringIO(text), delimiter=delimiter))
    unnamed = [str(place + 1) for place, name in enumerate(header) if not name.strip()]
    require(not unnamed, f"{path}, line 1: column {', '.join(unnamed[:5])} has no name.", DataError)
    twice = sorted({name for name in header if header.count(name) > 1})
    require(not twice, f"{path} has more than one column {', '.join(map(repr, twice))}: rename all but one.", DataError)
    return Dialect(delimiter, decimal, tuple(header))


def read_csv(path: Path, texts: Sequence[str] = ()) -> pa.Table:
    """Read a CSV file, inferring the type of each column: whole numbers, numbers, booleans, dates, or else texts.

    Args:
        path: The file.
        texts: Columns to read as texts whatever their cells are.

    Raises:
        DataError: If the file cannot be read; names the row.
    """
    found = dialect(path)
    try:
        return csv.read_csv(
            path,
            parse_options=csv.ParseOptions(delimiter=found.delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types={name: pa.string() for name in texts},
                strings_can_be_null=True,
                null_values=list(EMPTY),
                decimal_point=found.decimal,
            ),
        )
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}{_uneven(path, found)} can't be read: {error}") from error


def _uneven(path: Path, found: Dialect) -> str:
    """Name the first line that has more or fewer cells than the header, if there is one."""
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = plain_csv.reader(file, delimiter=found.delimiter)
        wrong = (reader.line_num for cells in reader if cells and len(cells) != len(found.header))
        line = next(wrong, None)
    return "" if line is None else f", line {line},"


def read_texts(path: Path) -> tuple[pd.DataFrame, Dialect]:
    """Read a CSV file with every cell as text, and its dialect.

    Raises:
        DataError: If the file cannot be read; names the line.
    """
    found = dialect(path)
    try:
        frame = pd.read_csv(
            path, sep=found.delimiter, dtype=str, keep_default_na=False, encoding="utf-8-sig", skip_blank_lines=False
        )
    except (OSError, ValueError) as error:
        raise DataError(f"{path} can't be read: {str(error).strip()}") from error
    return frame, found
