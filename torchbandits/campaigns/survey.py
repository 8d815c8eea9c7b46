"""What there is in the columns of a table, found in one pass over it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchbandits.campaigns.tables import Table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import compute as pc
else:
    from torchbandits.campaigns.extras import compute as pc
    from torchbandits.campaigns.extras import pandas as pd
    from torchbandits.campaigns.extras import pyarrow as pa

SAMPLE = 100_000
"""Rows, spread evenly, from which quantiles, means and deviations are taken."""
MOST_CATEGORIES = 1_000
"""Different values that a column of categories may have."""
_DAY = 86_400e6  # microseconds


class Survey:
    """What is in one column.

    Attributes:
        missing, infinite: Empty cells; the first infinite one in words, or "".
        low, high: Least and largest number.
        sample: Numbers of rows spread evenly, NaN where empty.
        categories: Different values as texts: sorted, or in their own order.
        too_many: Whether there are more than `MOST_CATEGORIES`.
        first_text, text_at: A text (one that is no number, if there is one), and where it stands.
        mostly_numbers: Whether most of the texts that were looked at are numbers.
    """

    def __init__(self, column: str, kind: pa.DataType, table: Table) -> None:
        self.column, self._table = column, table
        self.dictionary = pa.types.is_dictionary(kind)
        self.ordered = bool(self.dictionary and kind.ordered)
        inner = kind.value_type if self.dictionary else kind
        self.type = str(inner)
        self.boolean = pa.types.is_boolean(inner)
        self.date = pa.types.is_date(inner) or pa.types.is_timestamp(inner)
        self.whole = pa.types.is_integer(inner)
        plain = self.whole or pa.types.is_floating(inner) or pa.types.is_decimal(inner) or pa.types.is_duration(inner)
        self.numeric = not self.dictionary and (self.boolean or self.date or plain)
        self.text = pa.types.is_string(inner) or pa.types.is_large_string(inner)
        self.count, self.missing, self.infinite = table.count, 0, ""
        self.low, self.high = math.inf, -math.inf
        self.too_many, self.first_text, self.text_at, self.mostly_numbers = False, "", "", False
        self._own_order: tuple[str, ...] = ()
        self._seen: dict[str, None] = {}
        self._parts: list[NDArray[np.float64]] = []
        self._step = max(1, math.ceil(table.count / SAMPLE))

    def add(self, values: pa.Array, first: int) -> None:
        """Look at the cells of a batch, whose first row has this number."""
        if self.numeric:
            self._add_numbers(as_numbers(values), first)
        else:
            self.missing += values.null_count
        if (self.numeric or self.text or self.dictionary) and not self.too_many:
            self._add_categories(values, first)

    def _add_numbers(self, numbers: NDArray[np.float64], first: int) -> None:
        self.missing += int(np.isnan(numbers).sum())
        wild = np.isinf(numbers)
        if wild.any() and not self.infinite:
            self.infinite = self._table.where(first + int(wild.argmax()))
        if not np.isnan(numbers).all():
            self.low, self.high = min(self.low, float(np.nanmin(numbers))), max(self.high, float(np.nanmax(numbers)))
        # A copy: a view would hold the whole batch.
        self._parts.append(numbers[-first % self._step :: self._step].copy())

    def _add_categories(self, values: pa.Array, first: int) -> None:
        if self.ordered and not self._own_order:
            self._own_order = tuple(str(value) for value in values.dictionary.to_pylist())
        if self.text and first == 0:
            self._look_for_numbers(as_texts(values))
        different = [text for text in as_texts(pc.unique(values)).to_pylist() if text is not None]
        self._seen |= dict.fromkeys(different[: MOST_CATEGORIES + 1])
        self.too_many = len(self._seen) > MOST_CATEGORIES

    def _look_for_numbers(self, texts: pa.Array) -> None:
        series = texts.to_pandas()
        some = series[series.notna()]
        odd = some[pd.to_numeric(some, errors="coerce").isna()]
        self.mostly_numbers = 2 * len(odd) < len(some)
        for row, text in (odd if len(odd) else some).head(1).items():
            self.first_text, self.text_at = str(text)[:40], self._table.where(int(row))

    @property
    def sample(self) -> NDArray[np.float64]:
        """Numbers of rows spread evenly."""
        return np.concatenate(self._parts) if self._parts else np.empty(0)

    @property
    def categories(self) -> tuple[str, ...]:
        """Different values, as texts."""
        if self._own_order:
            return tuple(value for value in self._own_order if value in self._seen)
        if self.numeric and not self.date:
            return tuple(sorted(self._seen, key=lambda text: (text == "true") if self.boolean else float(text)))
        return tuple(sorted(self._seen))

    @property
    def constant(self) -> bool:
        """Whether all cells are equal; with some empty ones they are not."""
        if self.missing == self.count:
            return True
        return not self.missing and (self.low == self.high if self.numeric else len(self._seen) == 1)


def survey(table: Table, columns: Sequence[str]) -> dict[str, Survey]:
    """What is in some columns of a table. Cost: one pass over it."""
    found = {name: Survey(name, table.schema.field(name).type, table) for name in columns}
    first = 0
    for batch in table.batches(columns):
        for name in columns:
            found[name].add(batch.column(name), first)
        first += batch.num_rows
    return found


def as_numbers(values: pa.Array) -> NDArray[np.float64]:
    """Cells as numbers, NaN where empty: booleans as 0 and 1, dates and durations as days."""
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


def as_texts(values: pa.Array) -> pa.Array:
    """Cells as texts, empty where empty."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), None, values)
    return pc.cast(values, pa.string())
