"""Arms in Parquet and Arrow files, read in row groups."""

from __future__ import annotations

import bisect
import os
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from torchbandits.checks import as_device, as_path, check_dtype, check_flag
from torchbandits.errors import ArgumentError, DataError, ShapeError, nearest, require
from torchbandits.extras import Later
from torchbandits.sources.ahead import sent_ahead
from torchbandits.sources.base import ArmSource, check_index, check_part, check_span, recut
from torchbandits.sources.files import NpyFile, Stamp, save_npy
from torchbandits.types import Picks

pyarrow, ipc, pq = (Later(name, "these files") for name in ("pyarrow", "pyarrow.ipc", "pyarrow.parquet"))

# Number of decoded row groups that are cached for random access.
_GROUPS_KEPT = 4
# Name under which pandas writes the row labels of a table that was filtered or sorted.
_INDEX_OF_PANDAS = re.compile(r"__index_level_\d+__")
# First and last arms of a file that are compared with its cache.
_COMPARED = 64
# Arms that are compared at once where all of them are.
_TOGETHER = 1 << 16

_T = TypeVar("_T")


class RowGroups(ABC):
    """The row groups of a file, of which a few are cached for random access. A copy in another process opens the file itself.

    Attributes:
        stamp: Detects a change of the file.
        schema: Names and types of the columns.
        ends: Number of rows up to the end of each group.
    """

    def __init__(self, path: Path) -> None:
        self.stamp, self._kept = Stamp(path), OrderedDict[int, Any]()
        self._open()

    def _open(self) -> None:
        path = self.stamp.path
        try:
            self._file, self.schema, sizes = self._opened(path)
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"can't read arms from {path}: {error}") from error
        self.ends = list(accumulate(sizes))

    @abstractmethod
    def _opened(self, path: Path) -> tuple[Any, Any, list[int]]:
        """The open file, its schema, and the number of rows of each group."""

    @abstractmethod
    def read(self, group: int, columns: Sequence[str]) -> Any:
        """Some columns of one group, as a table."""

    def start(self, group: int) -> int:
        """The first row of a group."""
        return self.ends[group - 1] if group else 0

    def with_row(self, row: int) -> int:
        """The group that holds a row."""
        return bisect.bisect_right(self.ends, row)

    def cached(self, group: int, decode: Callable[[int], _T]) -> _T:
        """The result of `decode` for a group, which is kept until results for a few others were asked for."""
        kept = self._kept.pop(group, None)
        self._kept[group] = found = decode(group) if kept is None else kept
        while len(self._kept) > _GROUPS_KEPT:
            self._kept.popitem(last=False)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """State without the open file."""
        return {**self.__dict__, "_file": None, "_kept": OrderedDict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the file again; raise `DataError` if it has changed."""
        self.__dict__.update(state)
        self.stamp.check()
        self._open()


class _Parquet(RowGroups):
    """Row groups of a Parquet file."""

    def _opened(self, path: Path) -> tuple[Any, Any, list[int]]:
        file = pq.ParquetFile(path)
        return file, file.schema_arrow, [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]

    def read(self, group: int, columns: Sequence[str]) -> Any:
        """Some columns of one row group."""
        return self._file.read_row_group(group, columns=list(columns))


class _Arrow(RowGroups):
    """Record batches of an Arrow (Feather) file, mapped into memory."""

    def _opened(self, path: Path) -> tuple[Any, Any, list[int]]:
        file = ipc.open_file(pyarrow.memory_map(str(path)))
        return file, file.schema, [file.get_batch(g).num_rows for g in range(file.num_record_batches)]

    def read(self, group: int, columns: Sequence[str]) -> Any:
        """Some columns of one record batch."""
        return pyarrow.Table.from_batches([self._file.get_batch(group)]).select(list(columns))


class ColumnFile(ArmSource):
    """A Parquet or Arrow file whose columns are features, or with one column of lists of a fixed size.

    Random access reads whole row groups, a few of which are cached.

    Args:
        path: Path of the file.
        columns: Names of the columns; by default all but the unnamed row labels of pandas.
        dtype: Dtype that the arms are converted to.
        device: Device on which they are swept.
        distinct: A promise that no two arms are equal, see `ArmSource`.
    """

    def __init__(
        self,
        path: str | Path,
        columns: Sequence[str] | None,
        dtype: torch.dtype,
        device: torch.device | str,
        distinct: bool,
    ) -> None:
        path = as_path("path", path)
        check_dtype("dtype", dtype)
        device = as_device(device)
        check_flag("distinct", distinct)
        named = columns is None or (isinstance(columns, Sequence) and not isinstance(columns, str) and len(columns) > 0)
        require(named, f"columns must be a list of names, or None for all, got {columns!r}.")
        pyarrow.need()
        self._groups, self._dtype, self._device, self.distinct = opened(path), dtype, device, distinct
        known = self._groups.schema.names
        for name in columns or ():
            require(name in known, f"{path} has no column {name!r}; it has {', '.join(known)}.{nearest(name, known)}")
        # A row number would count as a feature.
        self._columns = list(columns or [name for name in known if not _INDEX_OF_PANDAS.fullmatch(name)])
        require(len(set(self._columns)) == len(self._columns), f"columns names one twice: {', '.join(self._columns)}.")
        self._dim = self._width(path)
        ends = self._groups.ends
        require(bool(ends) and ends[-1] > 0 and self._dim > 0, f"{path} holds no arms.", ShapeError)

    def _width(self, path: Path) -> int:
        kinds = [self._groups.schema.field(name).type for name in self._columns]
        if len(kinds) == 1 and pyarrow.types.is_fixed_size_list(kinds[0]):
            width, kinds = int(kinds[0].list_size), [kinds[0].value_type]
        else:
            width = len(kinds)
        for name, kind in zip(self._columns, kinds, strict=True) if len(kinds) == len(self._columns) else ():
            require(
                pyarrow.types.is_floating(kind) or pyarrow.types.is_integer(kind),
                f"column {name!r} of {path} holds {kind}, not numbers: cast it, or name the columns of features, columns=[…].",
                ShapeError,
            )
        return width

    @property
    def shape(self) -> torch.Size:
        """`A x d`."""
        return torch.Size([self._groups.ends[-1], self._dim])

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of sweeps."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Device on which the arms are swept."""
        return self._device

    def chunk(self, part: slice) -> Tensor:
        """A copy of consecutive arms, read from the row groups that contain them."""
        check_part(part)
        return next(self.chunks(part.stop - part.start, part.start, part.stop))[1]

    def chunks(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """All arms in order, where each row group is decoded once; see `sent_ahead`."""
        stop = self.num_arms if stop is None else stop
        check_span(start, stop, step)
        first = self._groups.with_row(start)

        def groups() -> Iterator[Tensor]:
            for group in range(first, len(self._groups.ends)):
                arms = self._decoded(group)
                yield arms[start - self._groups.start(group) :] if group == first else arms

        yield from sent_ahead(recut(groups(), start, stop, step), self._device)

    def points(self, index: Picks) -> Tensor:
        """A copy of arms by index. Cost: decoding each row group that is not cached."""
        check_index(index)
        flat = index.reshape(-1).cpu()
        out = torch.empty(len(flat), self._dim, dtype=self._dtype)
        group = torch.bucketize(flat, torch.tensor(self._groups.ends), right=True)
        for g in group.unique().tolist():
            mine = group == g
            out[mine] = self._groups.cached(g, self._decoded)[flat[mine] - self._groups.start(g)]
        return out.reshape(*index.shape, self._dim).to(self._device)

    def _decoded(self, group: int) -> Tensor:
        """One row group, `n x d`; missing values are NaN."""
        self._groups.stamp.check()
        path = self._groups.stamp.path
        kind = np.float64 if self._dtype == torch.float64 else np.float32
        try:
            table = self._groups.read(group, self._columns)
            if len(self._columns) == 1 and pyarrow.types.is_fixed_size_list(table.schema.field(0).type):
                column = table.column(0).combine_chunks()
                values = column.flatten().to_numpy(zero_copy_only=False)
                require(not column.null_count, f"{path} has empty lists among its arms: leave them out.", DataError)
                array = values.astype(kind).reshape(table.num_rows, self._dim)
            else:
                columns = [table.column(j).to_numpy() for j in range(len(self._columns))]
                array = np.stack([c.astype(kind, copy=False) for c in columns], axis=-1)
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"can't read arms from {path}: {error}") from error
        return torch.from_numpy(np.ascontiguousarray(array))


def parquet(
    path: str | Path,
    columns: Sequence[str] | None = None,
    *,
    cache: str | Path | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    distinct: bool = False,
) -> ColumnFile | NpyFile:
    """Arms in a Parquet or Arrow file (`.arrow`, `.feather`, `.ipc`), with one column per feature, or one of lists of a fixed
    size.

    Row groups are decoded in every sweep, and again for the leaders of each batch. With `cache`, the arms are written once to a
    `.npy` file, which is mapped into memory from then on, an order of magnitude faster. An existing cache is used unchanged, if
    its first and last arms are those of the file; all arms are compared if the file was modified after the cache.

    Args:
        path: Path of the file.
        columns: Names of the features, in order; by default all columns but the unnamed row labels of pandas.
        cache: `.npy` file to write, or to reuse.
        dtype: Dtype that the numbers are converted to.
        device: Device of means, leverages and posterior; chunks are copied there.
        distinct: A promise that no two arms are equal, see `ArmSource`.

    Raises:
        DataError: If a file cannot be read or written, or pyarrow is missing; during a run, if the file has changed.
        ArgumentError: If a column does not exist, or the cache holds other arms.
        ShapeError: If a column contains no numbers, or there are no arms.
    """
    kept = None if cache is None else as_path("cache", cache)
    source = ColumnFile(path, columns, dtype, device, distinct)
    if kept is None:
        return source
    if not kept.exists():
        return save_npy(source, kept)
    held = NpyFile(kept, dtype, source.device, distinct)
    if held.shape != source.shape:
        raise ArgumentError(
            f"{cache} holds arms {tuple(held.shape)}, {path} {tuple(source.shape)}: it is the cache of another file; delete "
            "it, or name another."
        )
    later = os.stat(path).st_mtime_ns > os.stat(kept).st_mtime_ns
    if not _alike(held, source, everything=later):
        raise ArgumentError(
            f"{cache} holds other arms than {path}: it is the cache of another file, of an earlier version of it, or of other "
            "columns; delete it, or name another."
        )
    return held


def _alike(held: NpyFile, source: ColumnFile, *, everything: bool) -> bool:
    """Whether a cache holds the arms of a file: all of them, or only the first and last ones."""
    if everything:
        pairs = zip(held.chunks(_TOGETHER), source.chunks(_TOGETHER), strict=True)
        return all(torch.equal(cached, arms) for (_, cached), (_, arms) in pairs)
    ends = (slice(0, min(_COMPARED, held.num_arms)), slice(max(0, held.num_arms - _COMPARED), held.num_arms))
    return all(torch.equal(held.chunk(part), source.chunk(part)) for part in ends)


def opened(path: Path) -> RowGroups:
    """The row groups of a Parquet or Arrow file. Raises `DataError` if it cannot be read."""
    return _Arrow(path) if path.suffix in (".arrow", ".feather", ".ipc") else _Parquet(path)
