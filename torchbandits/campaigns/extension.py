"""Rows that a user adds to the candidates of a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchbandits.campaigns.candidates import Candidates
from torchbandits.campaigns.history import history, known_values
from torchbandits.campaigns.results import decimal_commas
from torchbandits.campaigns.settings import Settings
from torchbandits.tabular.cells import is_text
from torchbandits.tabular.encoding import costs
from torchbandits.tabular.extended import check_rows, joined, known_rows
from torchbandits.tabular.ids import open_table
from torchbandits.tabular.tables import InMemory, Table

if TYPE_CHECKING:
    from pyarrow import compute as pc
else:
    from torchbandits.tabular.extras import compute as pc


@dataclass(frozen=True)
class Extension:
    """Rows as given, of which some may be candidates already.

    Attributes:
        table: The rows.
        rows: The row of the campaign for each of them; those that are new follow the candidates.
        whole: The candidates, followed by the new rows; None if none is new.
    """

    table: Table
    rows: NDArray[np.int64]
    whole: InMemory | None


def extension(given: Any, pool: Candidates, settings: Settings) -> Extension:
    """Compare rows with the candidates.

    Args:
        given: A table, as for `Campaign.extend`.
        pool: The candidates so far.
        settings: The settings of the campaign.

    Raises:
        ArgumentError, DataError: As `Campaign.extend`.
    """
    new = open_table(given, settings.id)
    check_rows(new, pool.table, pool.ids, settings.columns, settings.outcomes)
    # Errors name the place among the new rows.
    for name in settings.outcomes:
        history(new, name)
    if settings.cost is not None:
        costs(new, settings.cost)
    known_values(new, settings.known)
    both = joined(pool.table, _pointed(new, settings.outcomes), settings.outcomes)
    for name in settings.outcomes:
        history(both, name)  # refuses texts
    known, own = known_rows(new, both, pool.ids, settings.outcomes)
    added = np.delete(np.arange(new.count), known)
    rows = np.empty(new.count, np.int64)
    rows[known], rows[added] = own, pool.count + np.arange(len(added))
    if not len(added):
        return Extension(new, rows, None)
    kept = both.arrow.take(np.r_[: pool.count, pool.count + added])
    return Extension(new, rows, InMemory(kept, both.path, index=both.index))


def _pointed(table: Table, outcomes: Sequence[str]) -> Table:
    """The same rows, with points in the outcomes that are texts, as with limits of detection, if decimals have commas: texts
    are read in the form of the file with which the campaign began."""
    if not isinstance(table, InMemory) or not decimal_commas(table):
        return table
    own = table.arrow
    for place, field in enumerate(own.schema):
        if field.name in outcomes and is_text(field.type):
            own = own.set_column(place, field.name, pc.replace_substring(own.column(place), ",", "."))
    return InMemory(own, table.path, index=table.index)
