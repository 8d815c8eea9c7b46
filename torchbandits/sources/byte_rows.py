"""Rows of bytes in files: the bits of fingerprints in a `.npy` file, or with ids and SMILES in a Parquet file."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchbandits.errors import DataError, ShapeError, require
from torchbandits.extras import Later
from torchbandits.packing import Packing
from torchbandits.sources.columnar import opened
from torchbandits.sources.files import Stamp

pyarrow, pc, pq = (Later(name, "Parquet files") for name in ("pyarrow", "pyarrow.compute", "pyarrow.parquet"))

# Key of the description of the fingerprints in a Parquet file.
_KEY = b"torchbandits.fingerprints"
# Names of the columns of a Parquet file.
BITS, ID, SMILES = "fingerprint", "id", "smiles"


class ByteRows(ABC):
    """Rows of bytes of one length."""

    count: int
    width: int

    @abstractmethod
    def read(self, part: slice) -> np.ndarray:
        """Consecutive rows, `n x width` uint8."""

    @abstractmethod
    def take(self, index: np.ndarray) -> np.ndarray:
        """Rows by index, `p x width` uint8."""


class MappedRows(ByteRows):
    """Rows of a `.npy` file of uint8, mapped into memory."""

    def __init__(self, path: Path) -> None:
        self._stamp = Stamp(path)
        self._map = self._open()
        self.count, self.width = self._map.shape

    def _open(self) -> np.ndarray:
        path = self._stamp.path
        try:
            whole: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(
                f"can't map fingerprints from {path}: {error}. Write them with numpy.save(path, packed)."
            ) from error
        good = isinstance(whole, np.ndarray) and whole.ndim == 2 and whole.size > 0 and whole.dtype == np.uint8
        got = f"{whole.dtype} {whole.shape}" if isinstance(whole, np.ndarray) else "several arrays"
        require(good, f"{path} must hold uint8, one row of bytes for each molecule, got {got}.", ShapeError)
        return whole

    def read(self, part: slice) -> np.ndarray:
        """A copy of consecutive rows. Raises `DataError` if the file has changed."""
        self._stamp.check()
        return np.array(self._map[part], order="C")

    def take(self, index: np.ndarray) -> np.ndarray:
        """A copy of rows. Raises `DataError` if the file has changed."""
        self._stamp.check()
        return np.array(self._map[index], order="C")

    def __getstate__(self) -> dict[str, Any]:
        """State without the memory map, since another process opens the file itself."""
        return {**self.__dict__, "_map": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the file again; raise `DataError` if it has changed."""
        self.__dict__.update(state)
        self._stamp.check()
        self._map = self._open()


class ColumnRows(ByteRows):
    """Rows of a Parquet or Arrow file with a column of bytes, and ids and SMILES if it has these columns."""

    def __init__(self, path: Path) -> None:
        pyarrow.need()
        self._groups = opened(path)
        schema = self._groups.schema
        require(BITS in schema.names, f"{path} has no column {BITS!r}; it has {', '.join(schema.names)}.")
        self.count = self._groups.ends[-1] if self._groups.ends else 0
        require(self.count > 0, f"{path} holds no fingerprints.", ShapeError)
        kind = schema.field(BITS).type
        fixed = pyarrow.types.is_fixed_size_binary(kind)
        good = fixed or pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)
        require(good, f"column {BITS!r} of {path} must hold bytes, got {kind}.", ShapeError)
        self.width = kind.byte_width if fixed else len(self._first(path))
        require(self.width > 0, f"the fingerprints of {path} have no bytes.", ShapeError)
        self.description = described(schema)
        self.names = [name for name in (ID, SMILES) if name in schema.names]

    def _first(self, path: Path) -> bytes:
        """The fingerprint of row 0; row groups before it may be empty."""
        try:
            first = self._groups.read(self._groups.with_row(0), [BITS]).column(0)[0].as_py()
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"can't read fingerprints from {path}: {error}") from error
        require(first is not None, f"{path} lacks the fingerprint of row 0.", DataError)
        return bytes(first)

    def _decoded(self, group: int) -> np.ndarray:
        self._groups.stamp.check()
        path, start, end = self._groups.stamp.path, self._groups.start(group), self._groups.ends[group]
        try:
            column = self._groups.read(group, [BITS]).column(0).combine_chunks()
            lengths = np.unique(pc.binary_length(column).to_numpy(zero_copy_only=False))
            same = not column.null_count and lengths.tolist() == [self.width]
            lacks = f", {column.null_count} lack one" if column.null_count else ""
            shown = ", ".join(f"{length:g}" for length in lengths if length == length)
            message = f"fingerprints must have {self.width} bytes, rows {start} to {end - 1} of {path} have {shown}{lacks}."
            require(same, message, ShapeError)
            joined = b"".join(column.to_pylist())
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"can't read fingerprints from {path}: {error}") from error
        return np.frombuffer(joined, np.uint8).reshape(-1, self.width)

    def read(self, part: slice) -> np.ndarray:
        """A copy of consecutive rows, from the row groups that hold them."""
        found, at = [], part.start
        while at < part.stop:
            group = self._groups.with_row(at)
            start = self._groups.start(group)
            found.append(self._groups.cached(group, self._decoded)[at - start : part.stop - start])
            at = min(part.stop, self._groups.ends[group])
        return np.concatenate(found) if found else np.empty((0, self.width), np.uint8)

    def take(self, index: np.ndarray) -> np.ndarray:
        """A copy of rows. Cost: decoding each row group that is not cached."""
        out = np.empty((len(index), self.width), np.uint8)
        group = np.searchsorted(self._groups.ends, index, side="right")
        for g in np.unique(group).tolist():
            mine = group == g
            out[mine] = self._groups.cached(g, self._decoded)[index[mine] - self._groups.start(g)]
        return out

    def texts(self, name: str, index: Sequence[int]) -> list[Any]:
        """Entries of a column by row."""
        self._groups.stamp.check()
        columns, found = dict[int, Any](), []
        for row in index:
            g = self._groups.with_row(row)
            columns[g] = self._groups.read(g, [name]).column(0) if g not in columns else columns[g]
            found.append(columns[g][row - self._groups.start(g)].as_py())
        return found

    def repeated(self, name: str) -> Any:
        """A value that stands in several rows of a column; None if all differ."""
        kind = self._groups.schema.field(name).type
        # Categories of pandas.
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        message = f"column {name!r} of {self._groups.stamp.path} must hold one text or number a row, got {kind}."
        require(not pyarrow.types.is_nested(kind), message, ShapeError)
        columns = [self._groups.read(g, [name]).column(0).cast(kind) for g in range(len(self._groups.ends))]
        column = pyarrow.chunked_array([chunk for column in columns for chunk in column.chunks], kind)
        if pc.count_distinct(column, mode="all").as_py() == len(column):
            return None
        counted = pc.value_counts(column)
        return counted.filter(pc.greater(counted.field("counts"), 1)).field("values")[0].as_py()


def schema(packing: Packing, left_out: Sequence[tuple[int, str]], names: Sequence[str]) -> Any:
    """The columns of a Parquet file of fingerprints, with their description. Ids and SMILES are texts."""
    fields = [(BITS, pyarrow.binary(packing.num_bytes)), *((name, pyarrow.string()) for name in names)]
    told = {"num_bits": packing.dim, "counts": packing.counts, "left_out": list(left_out)}
    return pyarrow.schema(fields, metadata={_KEY: json.dumps(told).encode()})


def described(columns: Any) -> dict[str, Any]:
    """The description in the schema of a file, empty if there is none."""
    told = (columns.metadata or {}).get(_KEY)
    return {} if told is None else dict(json.loads(told))


def table(rows: np.ndarray, texts: dict[str, Any], columns: Any) -> Any:
    """A row group of such a file."""
    width = rows.shape[-1]
    buffer = pyarrow.py_buffer(np.ascontiguousarray(rows).tobytes())
    arrays = [pyarrow.Array.from_buffers(pyarrow.binary(width), len(rows), [None, buffer])]
    arrays += [pyarrow.array([None if t is None else str(t) for t in column], pyarrow.string()) for column in texts.values()]
    return pyarrow.Table.from_arrays(arrays, schema=columns)
