"""Decisions on the columns of a table: the kind of each, and the numbers that its encoding as features needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd
else:
    from torchbandits.tabular.extras import pandas as pd

MOLECULE, SUBSTANCE = "molecule", "substance"
KINDS = ("number", "log", "count", "boolean", "date", "category", "ordered", SUBSTANCE, MOLECULE, "ignore")
"""Kinds of columns."""
NUMBERS = ("number", "log", "count", "date", "ordered")
FINGERPRINT_BITS = 2048
"""Bits of the fingerprint of a molecule."""
EMPTY = "(empty)"
"""The category of empty cells."""


@dataclass(frozen=True)
class Decision:
    """The kind of a column, and the numbers that its encoding needs.

    Attributes:
        column: The name of the column.
        kind: One of `KINDS`, or a role: `id`, `objective`, `limit`, `known`, `cost`, `candidates`.
        why: The reason in words.
        missing: Number of empty cells.
        categories: Values of a category, an ordered column or substances, in order.
        fill: Number that replaces an empty cell, after the logarithm if there is one.
        center, scale: A number x becomes (x − center) / scale, after the logarithm if there is one.
        coordinates: The features of each substance.
        unit: For a logarithm of numbers that may be 0, the number u in log(1 + x / u); otherwise 0.
    """

    column: str
    kind: str
    why: str
    missing: int = 0
    categories: tuple[str, ...] = ()
    fill: float = 0.0
    center: float = 0.0
    scale: float = 1.0
    coordinates: tuple[tuple[float, ...], ...] = ()
    unit: float = 0.0

    @property
    def features(self) -> int:
        """Number of features: one per category, one per bit of a molecule's fingerprint, the coordinates of a substance, or one
        per number; for the last two, one more for "is empty" where cells are empty."""
        if self.kind == "category":
            return len(self.categories) + bool(self.missing)
        if self.kind == MOLECULE:
            return FINGERPRINT_BITS
        if self.kind == SUBSTANCE:
            return len(self.coordinates[0]) + bool(self.missing)
        return 1 + bool(self.missing) if self.kind in (*NUMBERS, "boolean") else 0


@dataclass(frozen=True)
class Decisions:
    """Decisions on all columns of a table, in their order; printed as a table."""

    columns: tuple[Decision, ...]

    def __iter__(self) -> Iterator[Decision]:
        """Iterate over the decisions."""
        return iter(self.columns)

    def __getitem__(self, column: str) -> Decision:
        """The decision on a column."""
        return next(decision for decision in self.columns if decision.column == column)

    @property
    def features(self) -> int:
        """Total number of features."""
        return sum(decision.features for decision in self.columns)

    @property
    def molecules(self) -> str | None:
        """The column of molecules, which then is the only one with features."""
        return next((decision.column for decision in self.columns if decision.kind == MOLECULE), None)

    def to_pandas(self) -> pd.DataFrame:
        """The decisions as a table, one row per column."""
        lines = [(d.column, d.kind, d.features, d.missing, d.why) for d in self.columns]
        return pd.DataFrame(lines, columns=["column", "taken as", "features", "empty", "why"]).set_index("column")

    def __repr__(self) -> str:
        """The table of `to_pandas` as text."""
        return str(self.to_pandas().reset_index().to_string(index=False, justify="left"))


def transformed(kind: str, values: NDArray[np.float64], unit: float = 0.0) -> NDArray[np.float64]:
    """Apply the logarithm of a kind to numbers of a column; `unit` as in `Decision`."""
    if kind == "log":
        return np.log1p(values / unit) if unit else np.log10(values)
    return np.log1p(values) if kind == "count" else values
