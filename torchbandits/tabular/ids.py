"""Ids of the rows, which are looked up in the table and not held in memory."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchbandits.errors import nearest, require
from torchbandits.tabular.cells import as_texts
from torchbandits.tabular.spreadsheets import EMPTY, dialect
from torchbandits.tabular.tables import TEXT, Table, as_table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import compute as pc
else:
    from torchbandits.tabular.extras import compute as pc
    from torchbandits.tabular.extras import pandas as pd
    from torchbandits.tabular.extras import pyarrow as pa

ROW = "row"
"""Name of the ids of a table without an id column: numbers of rows, from 1."""
_WIDEST = 20  # characters of an id up to which leading zeros are looked for


def id_column(names: Sequence[str], told: str | None, index: str | None = None) -> str | None:
    """The column of the ids: the given one, else the index of a pandas table, else one called id (in any case)."""
    if told is not None:
        known = told in names
        require(known, f"id: the table has no column {told!r}; it has {', '.join(names[:30])}.{nearest(told, names)}")
        return told
    return index or next((name for name in names if name.strip().casefold() == "id"), None)


def open_table(given: Any, id: str | None) -> Table:
    """Open the candidates. Ids of a CSV file are read as texts, so that the id 007 keeps its zeros. Whether there is such a
    column is not checked."""
    if isinstance(given, (str, os.PathLike)) and Path(given).suffix.lower() in TEXT:
        column = id or id_column(dialect(Path(given)).header, None)
        return as_table("table", given, [] if column is None else [column])
    return as_table("table", given, ids=id)


class Ids:
    """The ids of a table.

    Args:
        table: The candidates.
        column: The column of the ids; None where the number of a row is its id.
    """

    def __init__(self, table: Table, column: str | None) -> None:
        self._table, self.column = table, column
        clash = column is None and ROW in table.schema.names
        require(not clash, f"{table.name} has no column of ids: name it, such as id={ROW!r}, or add a column called 'id'.")
        self.name = ROW if column is None else column

    @property
    def columns(self) -> list[str]:
        """The names of the columns of the table, that of the ids included."""
        return list(self._table.schema.names)

    def check(self) -> str:
        """Refuse empty and repeated ids, and return a digest of them all.

        Raises:
            ArgumentError: If an id is empty or is in two rows; the message names the rows. Cost: a pass over the column, during
                which 8 bytes per row are held.
        """
        whole = hashlib.sha256()
        if self.column is None:
            return f"{self._table.count} rows"
        hashes = np.empty(self._table.count, np.uint64)
        for first, texts in self._batches():
            if texts.null_count:
                row = first + int(np.argmax(texts.is_null().to_numpy(zero_copy_only=False)))
                wrong = f"{self._table.name}, {self._table.where(row)}: the id (column {self.column!r}) is empty."
                words = f" {', '.join(EMPTY[1:4])} and the like count as empty." if self._table.path is not None else ""
                require(False, f"{wrong} Every candidate needs a unique id.{words}")
            hashed = pd.util.hash_array(texts.to_numpy(zero_copy_only=False), categorize=False)
            whole.update(hashed.tobytes())
            hashes[first : first + len(hashed)] = hashed
        hashes.sort()
        same = hashes[1:][hashes[1:] == hashes[:-1]]
        if len(same):
            self._name_twice(set(same.tolist()))
        return whole.hexdigest()[:16]

    def _name_twice(self, hashed: set[int]) -> None:
        rows: dict[str, list[int]] = {}
        for first, texts in self._batches():
            cells = texts.to_numpy(zero_copy_only=False)
            mine = np.isin(pd.util.hash_array(cells, categorize=False), np.fromiter(hashed, np.uint64))
            for place in np.flatnonzero(mine).tolist():
                rows.setdefault(cells[place], []).append(first + place)
        # Different ids with the same hash are not a repetition.
        twice = {text: found for text, found in rows.items() if len(found) > 1}
        said = "; ".join(
            f"{text!r} in {' and '.join(map(self._table.where, found[:3]))}" for text, found in list(twice.items())[:3]
        )
        others = f" (and {len(twice) - 3:,} more)" if len(twice) > 3 else ""
        require(
            not twice,
            f"{self._table.name} has ids more than once in column {self.column!r}: {said}{others}. Every candidate needs a "
            "unique id; leave repeated rows out, or name another column.",
        )

    def texts(self, given: Iterable[Any]) -> list[str]:
        """Ids from elsewhere as texts in the form that `find` and `of` use. If the ids of the table are numbers or times, texts
        of equal value are the same id, such as 4.0 and "4.00"; other ids are unchanged."""
        kind = pa.int64() if self.column is None else self._table.schema.field(self.column).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        return [_canonical(_text(value), kind) for value in given]

    def find(self, wanted: Iterable[str]) -> dict[str, int]:
        """Map each of these ids to its row; unknown ids are left out. An unknown id with spaces around it stands for the id
        without them. Cost: a pass over the column, and another one if there are unknown ids with spaces."""
        wanted = set(wanted)
        found = self._find(wanted)
        spaced = {text: text.strip() for text in wanted if text not in found and text != text.strip()}
        own = self._find(set(spaced.values())) if spaced else {}
        return found | {text: own[bare] for text, bare in spaced.items() if bare in own}

    def _find(self, missing: set[str]) -> dict[str, int]:
        """Map each of these ids to its row, exactly as they are written."""
        if self.column is None:
            rows = {text: int(text) - 1 for text in missing if text.isascii() and text.isdigit()}
            return {text: row for text, row in rows.items() if 0 <= row < self._table.count}
        missing, found = set(missing), dict[str, int]()
        for first, texts in self._batches():
            if not missing:
                break
            here = pc.is_in(texts, value_set=pa.array(sorted(missing), pa.string())).to_numpy(zero_copy_only=False)
            for place in np.flatnonzero(here).tolist():
                found[texts[place].as_py()] = first + place
            missing -= found.keys()
        return found

    def padded(self, text: str) -> str | None:
        """The id that is this text after leading zeros, which spreadsheet programs drop; None if there is none. Cost: a pass
        over the column."""
        if self.column is None or not (text.isascii() and text.isdigit()):
            return None
        return min(self.find(text.zfill(width) for width in range(len(text) + 1, _WIDEST + 1)), key=len, default=None)

    def alike(self, text: str) -> str | None:
        """The first id that differs from this text only in upper and lower case, spaces, leading zeros of the text, or a `.0`
        at the end; None if there is none. Cost: a pass over the column."""
        wanted = _plain(text)
        for _, texts in [] if self.column is None else self._batches():
            own = next((cell for cell in texts.to_pylist() if cell is not None and _plain(cell) == wanted), None)
            if own is not None:
                return str(own)
        return None

    def of(self, rows: NDArray[np.int64]) -> list[str]:
        """Ids of rows, as texts."""
        if self.column is None:
            return [str(row + 1) for row in rows.tolist()]
        texts: list[str] = as_texts(self._table.take(rows, [self.column]).column(0).combine_chunks()).to_pylist()
        return texts

    def _batches(self) -> Iterator[tuple[int, Any]]:
        """Yield the first row and the ids of each batch, as texts."""
        first = 0
        for batch in self._table.batches([self.name]):
            yield first, as_texts(batch.column(0))
            first += batch.num_rows


def _canonical(text: str, kind: pa.DataType) -> str:
    """The text of an id as `as_texts` writes it for a column of this type, if it can be read so."""
    if pa.types.is_integer(kind):
        return re.sub(r"^([+-]?\d+)\.0*$", r"\1", text.strip())
    read = float if pa.types.is_floating(kind) else pd.Timestamp if pa.types.is_temporal(kind) else None
    if read is None:
        return text
    try:
        (found,) = as_texts(pc.cast(pa.array([read(text)]), kind, safe=False)).to_pylist()
    except (ValueError, pa.ArrowException):
        return text
    return text if found is None else str(found)


def _plain(text: str) -> str:
    """An id without what is easily changed by hand, by a spreadsheet program or by pandas, which writes 7 as 7.0 beside an
    empty cell."""
    bare = re.sub(r"^(\d+)\.0+$", r"\1", "".join(text.split()).casefold())
    return bare.lstrip("0") or "0" if bare.isdigit() else bare


def _text(value: Any) -> str:
    """Convert an id to text. A whole number keeps its digits, also where a table made it 3.0."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)
