"""Cells of a column as numbers, or as texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import compute as pc
else:
    from torchbandits.tabular.extras import compute as pc
    from torchbandits.tabular.extras import pyarrow as pa

_DAY = 86_400e6  # microseconds


def as_numbers(values: pa.Array) -> NDArray[np.float64]:
    """Convert cells to numbers, NaN where empty: booleans to 0 and 1, dates and durations to days."""
    kind = values.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        micro = pc.cast(pc.cast(values, pa.timestamp("us", tz=getattr(kind, "tz", None)), safe=False), pa.int64())
        return _floats(micro) / _DAY
    if pa.types.is_duration(kind):
        return _floats(pc.cast(pc.cast(values, pa.duration("us"), safe=False), pa.int64())) / _DAY
    return _floats(values)


def _floats(values: pa.Array) -> NDArray[np.float64]:
    numbers: Any = pc.cast(values, pa.float64(), safe=False)
    return np.asarray(numbers.to_numpy(zero_copy_only=False), np.float64)


def is_text(kind: pa.DataType) -> bool:
    """Whether cells of this type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def as_texts(values: pa.Array) -> pa.Array:
    """Convert cells to texts, null where empty."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), None, values)
    return pc.cast(values, pa.string())
