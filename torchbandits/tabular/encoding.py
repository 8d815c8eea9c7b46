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
from torchbandits.tabular.columns import (
    EMPTY,
    MOLECULE,
    SUBSTANCE,
    Decision,
    Decisions,
    as_numbers,
    as_texts,
    no_number,
    survey,
    transformed,
)
from torchbandits.tabular.kept import keep
from torchbandits.tabular.tables import Table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from sklearn import compose, impute, pipeline, preprocessing
else:
    from torchbandits.tabular.extras import pandas as pd
    from torchbandits.tabular.extras import sklearn_compose as compose
    from torchbandits.tabular.extras import sklearn_impute as impute
    from torchbandits.tabular.extras import sklearn_pipeline as pipeline
    from torchbandits.tabular.extras import sklearn_preprocessing as preprocessing

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
        self._parts = compose.ColumnTransformer(
            [part for place, decision in enumerate(self.decisions) for part in _parts(place, decision)], sparse_threshold=0.0
        )
        self._ready = False

    def __call__(self, batch: pa.RecordBatch | pa.Table) -> NDArray[np.float64]:
        """Features of some rows, `n x d`."""
        try:
            frame = pd.DataFrame({d.column: _cells(d, batch.column(d.column)) for d in self.decisions}, columns=self.columns)
            if not self._ready:
                # `fit` only checks the types of the columns, since every parameter is given. It transforms what it is given,
                # so that all rows would cost twice as much.
                self._parts.fit(frame.head(1))
                self._ready = True
            return np.asarray(self._parts.transform(frame), np.float64)
        except ValueError as error:
            raise StateError(f"the table has changed since the types of its columns were chosen: {error}.") from error


def _parts(place: int, decision: Decision) -> list[tuple[str, Any, list[str]]]:
    """Transformers of a column with all parameters given, for `ColumnTransformer`."""
    name, column = f"{place}", [decision.column]
    if decision.kind == "category":
        known = [*decision.categories, *([EMPTY] if decision.missing else [])]
        return [(name, preprocessing.OneHotEncoder(categories=[known], sparse_output=False), column)]
    steps: list[Any] = []
    order = [[*decision.categories, EMPTY]]
    if decision.kind in ("ordered", SUBSTANCE):
        steps.append(preprocessing.OrdinalEncoder(categories=order, dtype=np.float64))
    if decision.kind == SUBSTANCE:
        steps.append(preprocessing.FunctionTransformer(partial(_placed, coordinates=decision.coordinates)))
    elif decision.kind == "ordered":
        steps.append(_filled(len(order[0]) - 1.0, decision.fill))
    else:
        steps.append(preprocessing.FunctionTransformer(partial(_as_kind, kind=decision.kind, unit=decision.unit)))
        steps.append(_filled(np.nan, decision.fill))
    if decision.kind != SUBSTANCE:
        steps.append(preprocessing.FunctionTransformer(partial(_standard, center=decision.center, scale=decision.scale)))
    parts = [(name, pipeline.make_pipeline(*steps), column)]
    if decision.missing:
        empty = EMPTY if decision.kind in ("ordered", SUBSTANCE) else np.nan
        parts.append((f"{name} empty", impute.MissingIndicator(missing_values=empty, features="all"), column))
    return parts


def _filled(empty: float, fill: float) -> Any:
    """A transformer that replaces empty cells, also where all cells of the first rows are empty."""
    return impute.SimpleImputer(missing_values=empty, strategy="constant", fill_value=fill, keep_empty_features=True)


def _as_kind(values: Any, kind: str, unit: float) -> NDArray[np.float64]:
    return transformed(kind, np.asarray(values, np.float64), unit)


def _placed(values: Any, coordinates: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """The coordinates of substances from their places; those of an empty cell are 0, the mean."""
    rows = np.array([*coordinates, [0.0] * len(coordinates[0])])
    return rows[np.asarray(values).astype(np.int64).ravel()]


def _standard(values: Any, center: float, scale: float) -> NDArray[np.float64]:
    return (np.asarray(values, np.float64) - center) / scale


def _cells(decision: Decision, values: Any) -> Any:
    """Cells of a column in the form that its transformer takes."""
    values = values.combine_chunks() if hasattr(values, "combine_chunks") else values
    if decision.kind in ("category", "ordered", SUBSTANCE):
        return as_texts(values).fill_null(EMPTY).to_numpy(zero_copy_only=False)
    return as_numbers(values)


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
    return npy(path, dtype=dtype, device=device)


def encode_in_memory(table: Table, encoder: Encoder, dtype: torch.dtype) -> Tensor:
    """Encode all rows as a tensor `A x d`. Cost: a pass over the table."""
    features = np.empty((table.count, encoder.features), _numpy_kind(dtype))
    _fill(features, table, encoder)
    return torch.from_numpy(features)


def _numpy_kind(dtype: torch.dtype) -> Any:
    return np.float64 if dtype == torch.float64 else np.float32


def _fill(features: NDArray[Any], table: Table, encoder: Encoder) -> None:
    first = 0
    for batch in table.batches(encoder.columns):
        features[first : first + batch.num_rows] = encoder(batch)
        first += batch.num_rows


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
        elif d.kind == SUBSTANCE:
            # One name for all coordinates, so that their shares are added up.
            names += [d.column] * len(d.coordinates[0]) + ([f"{d.column} is empty"] if d.missing else [])
        elif d.features:
            names += [d.column, *([f"{d.column} is empty"] if d.missing else [])]
    return names
