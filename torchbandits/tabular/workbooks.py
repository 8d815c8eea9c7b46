"""Excel workbooks: their sheets are read, and tables written."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from torchbandits.errors import DataError, require
from torchbandits.locks import advice
from torchbandits.tabular.spreadsheets import check_distinct, typed

if TYPE_CHECKING:
    import openpyxl
    import pandas as pd
    import pyarrow as pa
else:
    from torchbandits.tabular.extras import openpyxl
    from torchbandits.tabular.extras import pandas as pd

WORKBOOK = (".xlsx", ".xlsm")
Row = tuple[int, Sequence[Any]]
# Whole numbers from here on may lose digits in a workbook.
_ROUNDED = 10**15
# A formula without a value. Where the value is the empty text, the cell has the type "str".
_UNCOMPUTED = re.compile(
    rb'<c (?![^>]*\bt="str")[^>]*?\br="([A-Z]+[0-9]+)"[^>]*>\s*<f(?:\s[^>]*)?(?:/>|>[^<]*</f>)\s*(?:<v\s*/>|<v>\s*</v>)?\s*</c>'
)


def read_workbook(path: Path, ids: str | None) -> tuple[pa.Table, NDArray[np.int64]]:
    """Read the only sheet with content, whose first row that is not blank names the columns. Blank rows are skipped.

    The types of the columns are inferred as if the sheet had been saved as a CSV file. Of a formula, the value that the
    spreadsheet program computed last is read.

    Args:
        path: The workbook.
        ids: The column to read as texts; by default one called id, in any case.

    Returns:
        The table, and the number of each row in the sheet, from 1.

    Raises:
        DataError: If the file is no workbook, not exactly one of its sheets has content, or a name is missing or used twice.
    """
    sheets = {name: rows for name, rows in _sheets(path).items() if rows}
    require(bool(sheets), f"{path} is empty: its first row must name the columns.", DataError)
    message = (
        f"{path} has more than one sheet with content ({', '.join(sheets)}): save the sheet with the table as "
        "a file of its own."
    )
    require(len(sheets) == 1, message, DataError)
    (first, header), *rows = next(iter(sheets.values()))
    width = max(len(cells) for cells in (header, *(cells for _, cells in rows)))
    unnamed = [str(place + 1) for place in range(width) if place >= len(header) or header[place] is None]
    nameless = (
        f"{path}, row {first}: column {', '.join(unnamed[:5])} has no name, and the first row with content must name them all"
    )
    require(not unnamed, f"{nameless}: delete titles above the table.", DataError)
    names = [str(name) for name in header]
    check_distinct(path, names, DataError)
    texts = [name for name in names if name == ids or (ids is None and name.strip().casefold() == "id")]
    lines = [[*map(_text, cells), *[""] * (width - len(cells))] for cells in (names, *(cells for _, cells in rows))]
    return typed(lines, texts, "."), np.array([number for number, _ in rows], np.int64)


def check_computed(path: Path) -> None:
    """Refuse a workbook with a formula that has no value, as where another program than one for spreadsheets has written it:
    the cell would count as empty.

    Raises:
        DataError: Names the cell.
    """
    with ZipFile(path) as parts:
        for name in parts.namelist():
            found = _UNCOMPUTED.search(parts.read(name)) if name.startswith("xl/worksheets/sheet") else None
            cell = "" if found is None else found[1].decode()
            message = (
                f"{path}, cell {cell}: the formula has no value. Open the workbook in a spreadsheet program and save it there"
            )
            require(not cell, f"{message}, or write the value.", DataError)


def write_workbook(path: Path, frame: pd.DataFrame) -> None:
    """Write a table as the only sheet of a workbook, without its index. Texts, such as ids with leading zeros, stay texts, and
    whole numbers of more than 15 digits become texts, since they would be rounded.

    Raises:
        DataError: If a text has a character that workbooks lack.
    """
    book = openpyxl.Workbook()
    sheet = book.active
    try:
        for number, cells in enumerate([list(frame.columns), *frame.itertuples(index=False, name=None)], start=1):
            for place, value in enumerate(map(_cell, cells), start=1):
                cell = sheet.cell(number, place, value)
                if isinstance(value, str) and value:
                    # A text is no formula, and the program must not make it a number when the cell is edited.
                    cell.data_type, cell.number_format = "s", "@"
    except ValueError as error:
        raise DataError(f"{path} can't be written as a workbook: {error}. Write a CSV file.") from error
    book.save(path)


def _cell(value: Any) -> Any:
    """A value as a workbook holds it: None, a number, a truth value, a time or a text."""
    if value is None or value == "" or (not isinstance(value, str) and pd.isna(value)):
        return None
    if isinstance(value, pd.Timestamp):
        return value.to_pydatetime() if value.tzinfo is None else str(value)
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int) and abs(value) >= _ROUNDED:
        return str(value)
    return value if isinstance(value, (bool, int, float, datetime.date, datetime.datetime)) else str(value)


def _sheets(path: Path) -> dict[str, list[Row]]:
    """The rows of each sheet that are not blank, with their numbers, without empty cells at their ends."""
    sheets: dict[str, list[Row]] = {}
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        for sheet in book.worksheets:
            # The size that a file states may be wrong.
            sheet.reset_dimensions()
            numbered = enumerate(map(_filled, sheet.iter_rows(values_only=True)), start=1)
            sheets[sheet.title] = [(number, cells) for number, cells in numbered if cells]
        book.close()
    except PermissionError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}.{advice(error)}") from error
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise DataError(f"{path} can't be read as a workbook ({error}): save the sheet as 'CSV UTF-8'.") from error
    return sheets


def _filled(cells: Sequence[Any]) -> Sequence[Any]:
    cells = [None if isinstance(cell, str) and not cell.strip() else cell for cell in cells]
    last = max((place for place, cell in enumerate(cells, start=1) if cell is not None), default=0)
    return cells[:last]


def _text(cell: Any) -> str:
    """The text of a cell as in a CSV file."""
    if cell is None or isinstance(cell, bool):
        return "" if cell is None else str(cell).lower()
    if isinstance(cell, datetime.datetime) and cell.time() == datetime.time():
        return str(cell.date())
    # A number that was rounded is no id: its last digits are those of another row.
    whole = isinstance(cell, float) and cell.is_integer() and abs(cell) < _ROUNDED
    return str(int(cell)) if whole else str(cell)
