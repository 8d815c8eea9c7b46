"""Encoding of rows as features. Every parameter comes from the decisions, so that a row always has the same features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits.errors import ArgumentError, DataError, StateError, require
from torchbandits.sources import NpyFile, npy
from torchbandits.sources.files import write_npy
from torchbandits.tabular.cells import as_numbers, as_texts
from torchbandits.tabular.decisions import EMPTY, MOLECULE, SUBSTANCE, Decision, Decisions, transformed
from torchbandits.tabular.kept import keep
from torchbandits.tabular.survey import survey
from torchbandits.tabular.tables import Table
from torchbandits.tabular.texts import no_number

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    from torchbandits.tabular.extras import compute as pc
    from torchbandits.tabular.extras import pyarrow as pa

IN_MEMORY = 1 << 28
"""Largest size in bytes of features that are held in memory; larger ones are written to a memory-mapped file."""


class Encoder:
    """Encoder of rows as features.

    Args:
        decisions: The kind of each column, and the numbers that its encoding needs.
    """

    def __init__(self, decisions: Decisions) -> None:
        self.decisions = [decision for decision in decisions if decision.features]
        self.columns, self.features = [decision.column for decision in self.decisions], decisions.features
        self._parts = [_part(decision) for decision in self.decisions]

    def __call__(self, batch: pa.RecordBatch | pa.Table) -> NDArray[np.float64]:
        """Features of some rows, `n x d`."""
        features, first = np.empty((batch.num_rows, self.features)), 0
        try:
            for decision, part in zip(self.decisions, self._parts, strict=True):
                cells = batch.column(decision.column)
                own = part(cells.combine_chunks() if hasattr(cells, "combine_chunks") else cells)
                features[:, first : first + decision.features] = own
                first += decision.features
        except ValueError as error:
            raise StateError(f"the table has changed since the types of its columns were chosen: {error}.") from error
        return features


def _part(decision: Decision) -> Callable[[pa.Array], NDArray[np.float64]]:
    """The encoder of one column: `n` cells as features `n x k`."""
    if decision.kind == "category":
        return partial(_hot, decision)
    if decision.kind in ("ordered", SUBSTANCE):
        return partial(_placed, decision)
    return partial(_number, decision)


def _places(decision: Decision, cells: pa.Array, empty: bool) -> NDArray[np.int64]:
    """The place of each cell among the categories, `n`. Empty cells come last if they may be there.

    Raises:
        ValueError: If a cell has another category.
    """
    texts = as_texts(cells).fill_null(EMPTY)
    known = pa.array([*decision.categories, *([EMPTY] if empty else [])], pa.string())
    # scikit-learn's encoders give the same, and take a second to load.
    found = pc.index_in(texts, value_set=known)
    if found.null_count:
        other = sorted(set(texts.filter(found.is_null()).to_pylist()))
        raise ValueError(f"column {decision.column!r} has unknown categories {other[:5]}")
    places: NDArray[np.int64] = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return places


def _hot(decision: Decision, cells: pa.Array) -> NDArray[np.float64]:
    """One feature for each category, and one for empty cells if there are any."""
    places = _places(decision, cells, bool(decision.missing))
    features = np.zeros((len(places), decision.features))
    features[np.arange(len(places)), places] = 1.0
    return features


def _placed(decision: Decision, cells: pa.Array) -> NDArray[np.float64]:
    """The places of ordered categories as numbers, or the coordinates of substances."""
    places = _places(decision, cells, True)
    empty = places == len(decision.categories)
    if decision.kind == SUBSTANCE:
        # Those of an empty cell are 0, the mean.
        own = np.array([*decision.coordinates, [0.0] * len(decision.coordinates[0])])[places]
    else:
        own = _standard(places.astype(np.float64), empty, decision)
    return np.column_stack([own, empty]) if decision.missing else own


def _number(decision: Decision, cells: pa.Array) -> NDArray[np.float64]:
    values = transformed(decision.kind, as_numbers(cells), decision.unit)
    empty = np.isnan(values)
    standard = _standard(values, empty, decision)
    return np.column_stack([standard, empty]) if decision.missing else standard


def _standard(values: NDArray[np.float64], empty: NDArray[np.bool_], decision: Decision) -> NDArray[np.float64]:
    """Numbers in standard deviations from their mean, `n x 1`, with a fixed number for empty cells."""
    return ((np.where(empty, decision.fill, values) - decision.center) / decision.scale).reshape(-1, 1)


def encode(
    table: Table, encoder: Encoder, dtype: torch.dtype, place: Callable[[], Path], device: torch.device
) -> Tensor | NpyFile:
    """Encode all rows: a tensor `A x d` on the device, or for many rows a memory-mapped file at `place()`, swept there.

    An existing file that was made from the same cells is used unchanged.

    Raises:
        DataError: If the file cannot be written.

    Cost: a pass over the table, or two where it is written to a file.
    """
    shape = (table.count, encoder.features)
    if shape[0] * shape[1] * dtype.itemsize <= IN_MEMORY:
        return encode_in_memory(table, encoder, dtype).to(device)
    kind = _numpy_kind(dtype)
    path = place()

    def write() -> None:
        try:
            write_npy(path, kind, shape, (encoder(batch) for batch in table.batches(encoder.columns)))
        except OSError as error:
            raise DataError(f"the features of {table.name} can't be written to {path}: {error}.") from error

    keep(path, table, encoder.decisions, write, str(dtype))
    try:
        return npy(path, dtype=dtype, device=device)
    except DataError as error:
        raise DataError(f"{path} is damaged: delete it, and it is made again from {table.name}.") from error


def encode_in_memory(table: Table, encoder: Encoder, dtype: torch.dtype) -> Tensor:
    """Encode all rows as a tensor `A x d`. Cost: a pass over the table."""
    features, first = np.empty((table.count, encoder.features), _numpy_kind(dtype)), 0
    for batch in table.batches(encoder.columns):
        features[first : first + batch.num_rows] = encoder(batch)
        first += batch.num_rows
    return torch.from_numpy(features)


def _numpy_kind(dtype: torch.dtype) -> Any:
    return np.float64 if dtype == torch.float64 else np.float32


def numbers(table: Table, column: str) -> NDArray[np.float64]:
    """Numbers of one column, `A`, NaN where empty."""
    return np.concatenate([as_numbers(batch.column(0)) for batch in table.batches([column])])


def costs(table: Table, column: str) -> Tensor:
    """Cost of an evaluation of each row, `A`, float64.

    Raises:
        ArgumentError: If a cell is empty, no number, or not above 0: names the row; for dates.
    """
    found = survey(table, [column])[column]
    require(not found.date, f"{table.name}, column {column!r} holds dates: a cost must be a number above 0.")
    require(found.numeric, no_number(found, "every row needs a cost, so correct it"))
    values = numbers(table, column)
    bad = np.flatnonzero(~((values > 0) & np.isfinite(values)))
    if len(bad):
        row = int(bad[0])
        raise ArgumentError(
            f"{table.name}, {table.where(row)}, column {column!r}: a cost must be a number above 0, got {values[row]:g} "
            f"({len(bad):,} such rows)."
        )
    return torch.from_numpy(values)


def feature_names(decisions: Sequence[Decision]) -> list[str]:
    """Names of the features, in order; those of one substance have the same name."""
    names: list[str] = []
    for d in decisions:
        if d.kind == "category":
            names += [f"{d.column} = {category}" for category in (*d.categories, *([EMPTY] if d.missing else []))]
        elif d.kind == MOLECULE:
            names += [f"{d.column} bit {place}" for place in range(d.features)]
        elif d.features:
            # One name for all coordinates of a substance, so that their shares are added up.
            empty = bool(d.missing)
            names += [d.column] * (d.features - empty) + [f"{d.column} is empty"] * empty
    return names
