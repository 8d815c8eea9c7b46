"""Columns that are the parts of a whole, such as the fractions of a mixture."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

BULK = 0.1
"""Share of the whole from which on a part is no additive: parts whose 95 % quantile is larger stay numbers."""
_ROWS = 2_000
"""Number of rows that are looked at."""
_COLUMNS = 200
"""Largest number of columns that are looked at."""
_EQUAL, _SAME = 0.05, 0.02
"""Largest differences between the weights of the parts, and between their sums, as fractions."""


def parts_of_a_whole(columns: Mapping[str, NDArray[np.float64]]) -> tuple[list[str], float]:
    """The columns that add up to the same number in every row, whatever the others are, and this number; none if there are no
    such columns.

    They are found as the columns of equal weight in the sum of multiples of columns that is 1 in every row.

    Args:
        columns: Numbers ≥ 0 of the same rows, by column.
    """
    rows = min((len(values) for values in columns.values()), default=0)
    if not 2 <= len(columns) <= min(_COLUMNS, rows // 2):
        return [], 0.0
    places = np.linspace(0, rows - 1, min(rows, _ROWS)).astype(int)
    table = np.stack([values[places] for values in columns.values()], axis=1)
    weights = np.linalg.lstsq(table, np.ones(len(table)))[0]
    parts = weights >= (1 - _EQUAL) * weights.max()
    sums = table[:, parts].sum(axis=1)
    whole = float(np.median(sums))
    if parts.sum() < 2 or np.abs(sums - whole).max() > _SAME * whole:
        return [], 0.0
    return [name for name, part in zip(columns, parts.tolist(), strict=True) if part], whole
