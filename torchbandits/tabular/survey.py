"""Surveys of columns: what their cells are, found in one pass over a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchbandits.errors import require
from torchbandits.tabular.cells import as_numbers, as_texts, is_text
from torchbandits.tabular.tables import Table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import compute as pc
else:
    from torchbandits.tabular.extras import compute as pc
    from torchbandits.tabular.extras import pandas as pd
    from torchbandits.tabular.extras import pyarrow as pa

SAMPLE = 100_000
"""Number of evenly spaced rows from which quantiles, means and deviations are computed."""
MOST_CATEGORIES = 1_000
"""Largest number of values of a column of categories."""
LARGEST = 1e100
"""Bound of the numbers of a column, whose squares and their sums must be finite."""
SLIPS = 0.1
"""Largest share of the cells of a column of numbers or dates that may be other texts by mistake."""
ROUNDING = 64 * float(np.finfo(np.float64).eps)
"""Spread of the numbers of a column, as a fraction of their size, up to which they differ by rounding errors."""
# Largest number of texts that a message names.
_NAMED = 5
# A date as it is read from a file.
_LIKE_A_WRITTEN_DATE = r"\d{4}-\d\d-\d\d(?!\d)"


class Survey:
    """Contents of one column, collected batch by batch.

    Attributes:
        missing: Number of empty cells.
        infinite: The place of the first infinite cell in words, or "".
        low, high: Smallest and largest number.
        sample: Numbers of evenly spaced non-empty cells, or of all non-empty cells if there are at most `SAMPLE`.
        categories: Different values as texts, sorted or in the order of the column's type.
        too_many: Whether there are more than `MOST_CATEGORIES` of them.
        first_text, text_at: A text, preferably one that is not a number, and its place in words.
        mostly_numbers: Whether most texts of the first batch are numbers.
        mostly_dates: Whether most of them are dates such as 2026-08-31, but not all.
        slips: Whether the others are so few that they may be slips.
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
        self.text = is_text(inner)
        self.count, self.missing, self.infinite = table.count, 0, ""
        self.low, self.high = math.inf, -math.inf
        self.too_many, self.first_text, self._text_row = False, "", 0
        self.mostly_numbers = self.mostly_dates = self.slips = False
        self._own_order: tuple[str, ...] = ()
        self._seen: dict[str, None] = {}
        self._filled = 0
        self._first: list[NDArray[np.float64]] = []
        self._parts: list[NDArray[np.float64]] = []
        self._step = max(1, math.ceil(table.count / SAMPLE))

    def add(self, values: pa.Array, first: int) -> None:
        """Add the cells of a batch, whose first row has this number."""
        if self.numeric:
            self._add_numbers(as_numbers(values), first)
        else:
            self.missing += values.null_count
        if (self.numeric or self.text or self.dictionary) and not self.too_many:
            self._add_categories(values, first)

    def _add_numbers(self, numbers: NDArray[np.float64], first: int) -> None:
        some = numbers[~np.isnan(numbers)]
        self.missing += len(numbers) - len(some)
        wild = np.isinf(numbers)
        if wild.any() and not self.infinite:
            self.infinite = self._table.where(first + int(wild.argmax()))
        if len(some):
            self.low, self.high = min(self.low, float(some.min())), max(self.high, float(some.max()))
        # A view would keep the whole batch in memory.
        self._parts.append(some[-self._filled % self._step :: self._step].copy())
        self._filled += len(some)
        # Of a small table the parts are all numbers.
        self._first = [*self._first, some] if self._filled <= SAMPLE and self._step > 1 else []

    def _add_categories(self, values: pa.Array, first: int) -> None:
        if self.ordered and not self._own_order:
            self._own_order = tuple(str(value) for value in values.dictionary.to_pylist())
        if self.text and first == 0:
            self._look_for_numbers(as_texts(values))
        # As many as count, one that is null and one that is NaN: to write all numbers as texts would take longest of all.
        some = pc.unique(values)[: MOST_CATEGORIES + 3]
        different = [text for text in as_texts(some).to_pylist() if text is not None]
        self._seen |= dict.fromkeys(different[: MOST_CATEGORIES + 1])
        self.too_many = len(self._seen) > MOST_CATEGORIES

    def _look_for_numbers(self, texts: pa.Array) -> None:
        series = texts.to_pandas()
        some = series[series.notna()]
        odd = some[pd.to_numeric(some, errors="coerce").isna()]
        self.mostly_numbers = 2 * len(odd) < len(some)
        undated = some[~some.str.match(_LIKE_A_WRITTEN_DATE)]
        self.mostly_dates = 0 < 2 * len(undated) < len(some)
        odd = undated if self.mostly_dates else odd
        self.slips = 2 * len(odd) < len(some) and (len(odd) == 1 or 0 < len(odd) <= SLIPS * len(some))
        for row, text in (odd if len(odd) else some).head(1).items():
            self.first_text, self._text_row = str(text)[:40], int(row)

    @property
    def headed(self) -> bool:
        """Whether a text in the first row is above numbers, as a unit below the name of the column is."""
        return self.text and self.mostly_numbers and bool(self.first_text) and self._text_row == 0

    @property
    def text_at(self) -> str:
        """The place of `first_text` in words."""
        return self._table.where(self._text_row)

    def where(self, texts: Sequence[str]) -> str:
        """Some texts, each with the place of the first cell that holds it. Cost: a pass over the column."""
        named = list(texts[:_NAMED])
        places: dict[str, int] = {}
        first = 0
        for batch in self._table.batches([self.column]):
            cells = as_texts(batch.column(0))
            for text in named:
                row = pc.index(cells, text).as_py()
                if row >= 0:
                    places.setdefault(text, first + row)
            first += batch.num_rows
        said = [f"{text[:40]!r} in {self._table.where(places[text])}" for text in named]
        return ", ".join(said) + (f" and {len(texts) - _NAMED:,} more" if len(texts) > _NAMED else "")

    @property
    def empty_at(self) -> str:
        """The place of the first empty cell in words. Cost: a pass over the column."""
        first = 0
        for batch in self._table.batches([self.column]):
            cells = as_texts(batch.column(0))
            if cells.null_count:
                return self._table.where(first + pc.index(cells.is_null(), True).as_py())
            first += batch.num_rows
        return ""

    @property
    def sample(self) -> NDArray[np.float64]:
        """Numbers of evenly spaced cells."""
        return np.concatenate([np.empty(0), *(self._first or self._parts)])

    @property
    def categories(self) -> tuple[str, ...]:
        """Different values, as texts."""
        if self._own_order:
            return tuple(value for value in self._own_order if value in self._seen)
        if self.numeric and not self.date:
            return tuple(sorted(self._seen, key=lambda text: (text == "true") if self.boolean else float(text)))
        return tuple(sorted(self._seen))

    @property
    def may_name_rows(self) -> bool:
        """Whether all cells may be different texts, as far as they were collected."""
        return self.text and not self.missing and (self.too_many or len(self._seen) == self.count)

    @property
    def constant(self) -> bool:
        """Whether all cells are equal, empty ones included."""
        if self.missing == self.count:
            return True
        return not self.missing and (self.low == self.high if self.numeric else len(self._seen) == 1)

    @property
    def rounding(self) -> bool:
        """Whether all cells are equal up to rounding errors, such as sums of fractions that add up to one."""
        if self.missing or not self.numeric or self.whole or self.date:
            return False
        return self.low < self.high <= self.low + ROUNDING * max(abs(self.low), abs(self.high))


def survey(table: Table, columns: Sequence[str]) -> dict[str, Survey]:
    """Survey some columns of a table. Cost: one pass over it."""
    found = {name: Survey(name, table.schema.field(name).type, table) for name in columns}
    first = 0
    for batch in table.batches(columns):
        for name in columns:
            found[name].add(batch.column(name), first)
        first += batch.num_rows
    return found


def check_size(s: Survey) -> None:
    """Refuse numbers whose squares overflow."""
    most = max(-s.low, s.high)
    require(most < LARGEST, f"column {s.column!r} holds {most:g}, and numbers below {LARGEST:g} are needed: change its unit.")
