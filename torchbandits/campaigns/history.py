"""Outcomes that the table of candidates holds: results to be told at the beginning, and values that are known for all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchbandits.campaigns.records import Evaluations
from torchbandits.campaigns.results import YES_OR_NO, decimal_commas, values_of
from torchbandits.errors import ArgumentError, require
from torchbandits.tabular.cells import as_texts
from torchbandits.tabular.encoding import numbers
from torchbandits.tabular.spreadsheets import BEYOND
from torchbandits.tabular.survey import check_size, survey
from torchbandits.tabular.tables import Table
from torchbandits.tabular.texts import no_number

if TYPE_CHECKING:
    import pandas as pd
else:
    from torchbandits.tabular.extras import pandas as pd


def history(
    table: Table, objective: str, remedy: str = "correct it, or leave the cell empty where nothing was measured"
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int8]]:
    """Rows of the table with a value of the objective, these values, and the sign of each, as for `values_of`.

    Args:
        remedy: What to do about a cell that is no finite number or limit of detection, for the message.

    Raises:
        ArgumentError: If a cell of the column is neither empty nor a finite number or limit of detection.
    """
    none = np.empty(0, np.int64), np.empty(0, np.float64), np.empty(0, np.int8)
    if objective not in table.schema.names:
        return none
    found = survey(table, [objective])[objective]
    require(not found.infinite, f"{table.name}, column {objective!r}, is infinite in {found.infinite}: {remedy}.")
    if found.missing == table.count:
        return none
    signs = np.zeros(table.count, np.int8)
    if found.text and not found.too_many and {text.casefold() for text in found.categories} <= YES_OR_NO.keys():
        values = _texts(table, objective).str.casefold().map(YES_OR_NO).to_numpy(np.float64)
    elif found.text and (cells := _texts(table, objective)).str.strip().str.match(BEYOND).any():
        # Limits make the column texts, so that its own commas do not tell the form of a copy.
        decimal, empty = "," if decimal_commas(table, guessed=True) else ".", cells.isna().to_numpy()
        values, signs = values_of(table.name, cells, empty, table.where, objective, decimal, remedy=remedy)
    else:
        require(found.numeric, no_number(found, remedy))
        check_size(found)
        values = numbers(table, objective)
    rows = np.flatnonzero(~np.isnan(values))
    return rows, values[rows], signs[rows]


def history_of(table: Table, outcomes: Sequence[str], rows: NDArray[np.int64]) -> Evaluations:
    """The results of a table, one evaluation per row with a value of some outcome.

    Args:
        table: The table.
        outcomes: The columns of the results.
        rows: The row of the campaign for each row of the table.

    Raises:
        ArgumentError: As `history`.
    """
    found = [history(table, name) for name in outcomes]
    filled = np.unique(np.concatenate([places for places, _, _ in found]))
    values = np.full((len(filled), len(found)), np.nan)
    signs = np.zeros(values.shape, np.int8)
    for j, (places, numbers_of_outcome, sides) in enumerate(found):
        at = np.searchsorted(filled, places)
        values[at, j], signs[at, j] = numbers_of_outcome, sides
    return Evaluations(rows[filled], values, signs)


def _texts(table: Table, column: str) -> pd.Series:
    return pd.concat([as_texts(batch.column(0)).to_pandas() for batch in table.batches([column])], ignore_index=True)


def known_values(table: Table, names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """The values of known outcomes, `A` each.

    Raises:
        ArgumentError: If a cell is empty, or no finite number: names the row.
    """
    values = {}
    for name in names:
        rows, values[name], signs = history(table, name, "correct it, since every row needs a value")
        if signs.any():
            place = table.where(int(rows[np.flatnonzero(signs)[0]]))
            raise ArgumentError(
                f"{table.name}, {place}, column {name!r}, is a limit of detection: a column with a value in every row is "
                f"known, and needs numbers. If it is measured, begin a campaign with columns={{{name!r}: 'measured'}} "
                f"(--column {name}=measured)."
            )
        # numpy.setdiff1d takes seconds for a million rows.
        empty = np.flatnonzero(np.bincount(rows, minlength=table.count) == 0)
        if len(empty):
            raise ArgumentError(
                f"{table.name}, {table.where(int(empty[0]))}, column {name!r}, is empty: every row needs a value, since the "
                "campaign began with one in every row, so that it is not measured. If it is, begin another campaign with "
                f"columns={{{name!r}: 'measured'}} (--column {name}=measured), and tell it the results of this one."
            )
    return values
