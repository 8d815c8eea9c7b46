"""The candidates of a campaign: its table, and the rows that ids and conditions name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits.campaigns.conditions import on_offer
from torchbandits.errors import ArgumentError, StateError, require
from torchbandits.sources import ArmSource
from torchbandits.tabular.ids import Ids
from torchbandits.tabular.tables import Table

if TYPE_CHECKING:
    import pandas as pd
else:
    from torchbandits.tabular.extras import pandas as pd

EXPECTED, DEVIATION, RANK, MEASURED, TIMES = "expected", "deviation", "rank", "measured", "times"
CALL, BLOCK = "call", "block"
KEEPS, OPTIMAL = "keeps limits", "on the front"
"""Columns that are added to rows of the table."""
SHOWN = 8
"""Largest number of ids that are listed."""


def few(texts: Iterable[str]) -> str:
    """A list in words; of a long one, the first texts."""
    first = list(islice(texts, SHOWN + 1))
    return ", ".join(first[:SHOWN]) + (", …" if len(first) > SHOWN else "")


class Candidates:
    """The rows of a table with their ids.

    Args:
        table: The table.
        id: The column of the ids; None where the number of a row is its id.
        outcomes: The columns of the results, which are no cells of a candidate.

    Attributes:
        table, ids: As given, and the ids.
    """

    def __init__(self, table: Table, id: str | None, outcomes: Collection[str]) -> None:
        self.table, self.ids, self._outcomes = table, Ids(table, id), tuple(outcomes)

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.table.count

    @property
    def title(self) -> str:
        """Name of the user's table in titles."""
        return Path(self.table.name).name

    def texts(self, ids: Any) -> list[str]:
        """Ids that a user gives, as texts.

        Raises:
            ArgumentError: If they are no list.
        """
        several = isinstance(ids, Collection) and not isinstance(ids, str | Mapping) and getattr(ids, "ndim", 1) == 1
        require(several, f"ids must be a list of ids, got {type(ids).__name__}.")
        return self.ids.texts(ids.tolist() if isinstance(ids, Tensor) else ids)

    def rows(self, ids: Collection[Any] | None = None, where: Any = None) -> NDArray[np.int64]:
        """The rows with these ids, each once, or all rows; of them, those that fulfil a condition.

        Raises:
            ArgumentError: If an id is unknown, `where` is not a condition, or no row of the table fulfils it.
        """
        rows = np.arange(self.count)
        if ids is not None:
            wanted = list(dict.fromkeys(self.texts(ids)))
            found = self.ids.find(wanted)
            unknown = [text for text in wanted if text not in found]
            are = "is" if len(unknown) == 1 else "are"
            alike = self.ids.alike(unknown[0]) if unknown else None
            meant = "" if alike is None else f" Does {unknown[0]!r} mean {alike!r}?"
            require(not unknown, f"ids: {few(map(repr, unknown))} {are} not in {self.table.name}.{meant}")
            rows = np.array([found[text] for text in wanted], np.int64)
        return rows if where is None else rows[self.fulfil(where).numpy()[rows]]

    def fulfil(self, where: Any) -> Tensor:
        """The mask of the rows that fulfil a condition.

        Raises:
            ArgumentError: If `where` is not a condition, or no row fulfils it.
        """
        return on_offer("where", self.table, where)

    def named(self, rows: NDArray[np.int64]) -> str:
        """The ids of rows as text; of many rows, the first ones."""
        return few(map(repr, self.ids.of(rows[: SHOWN + 1])))

    def cells(self, rows: NDArray[np.int64]) -> pd.DataFrame:
        """Rows with their ids first, without the columns of the results."""
        taken = self.table.take(rows).to_pandas()
        if self.ids.column is None:
            taken.insert(0, self.ids.name, rows + 1)
        else:
            taken.insert(0, self.ids.name, taken.pop(self.ids.name))
        return taken.drop(columns=list(self._outcomes), errors="ignore")

    def own(self, name: str) -> str:
        """Name of an added column, which must not be a name of the table or of an outcome."""
        return name if name not in (*self.table.schema.names, *self._outcomes) else f"campaign {name}"


@contextmanager
def errors_of_table(
    pool: Candidates, arms: Tensor | ArmSource, costs: Tensor | None, cost: str | None, known: Sequence[str]
) -> Iterator[None]:
    """Raise errors that name rows and columns of the table instead of those of a bandit on its rows.

    Args:
        pool: The candidates.
        arms: Their features, `A x d`.
        costs: Their costs, `A`; None for none.
        cost, known: The columns of the costs and of the known outcomes.
    """
    table = pool.table
    try:
        yield
    except ArgumentError:
        if costs is not None and isinstance(arms, Tensor):
            _check_equal_costs(pool, cost, arms, costs)
        raise
    except StateError as error:
        changed = {"arms was": "a cell, or the order of the rows", "costs was": f"column {cost!r}"}
        changed["known was"] = f"column {', '.join(map(repr, known))}"
        what = next((words for name, words in changed.items() if name in str(error)), None)
        if what is None:
            raise
        raise StateError(
            f"{table.path or table.name} has changed since the campaign began ({what}): put it back as it was, "
            "or begin another campaign with another journal."
        ) from error


def _check_equal_costs(pool: Candidates, column: str | None, arms: Tensor, costs: Tensor) -> None:
    """Refuse rows with equal features and different costs: names two of them.

    Args:
        column: The column of the costs.
        arms: Features, `A x d`.
        costs: Costs, `A`.
    """
    _, group = arms.cpu().unique(dim=0, return_inverse=True)
    order, known = torch.argsort(group, stable=True), costs.cpu()
    same = (group[order][1:] == group[order][:-1]) & (known[order][1:] != known[order][:-1])
    places = same.nonzero()[:1, 0]
    if not len(places):
        return
    rows = order[places[0] : places[0] + 2].numpy()
    (one, other), (cost, dearer) = pool.ids.of(rows), known[rows].tolist()
    raise ArgumentError(
        f"cost: rows {one!r} and {other!r} of {pool.table.name} differ only in columns that are no features, and cost "
        f"{cost:g} and {dearer:g} in column {column!r}; the model sees one candidate, which needs one cost. Keep the cheapest "
        "of such rows, give them one cost, or make a column in which they differ a feature. Without a column of costs, "
        "constraints.Total (ask --total) takes the cheapest."
    )
