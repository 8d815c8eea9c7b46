"""What a campaign is of, before there is a bandit: a new one is decided and written down, an old one is read and compared."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchbandits.campaigns.conditions import boolean_column
from torchbandits.campaigns.decisions import decide, no_number
from torchbandits.campaigns.encoding import numbers
from torchbandits.campaigns.ids import Ids, id_column
from torchbandits.campaigns.settings import Settings, read_settings
from torchbandits.campaigns.spreadsheets import dialect
from torchbandits.campaigns.survey import survey
from torchbandits.campaigns.tables import TEXT, Table, as_table
from torchbandits.errors import ArgumentError, StateError, nearest, require

MANY = 1_000_000
"""Rows from which on features have single precision by default."""


@dataclass(frozen=True)
class Beginning:
    """A table, its ids, and what was decided.

    Attributes:
        table: The candidates.
        ids: Theirs.
        settings: What the campaign is of.
        new: Whether they are yet to be written.
    """

    table: Table
    ids: Ids
    settings: Settings
    new: bool


def begin(given: Any, wanted: dict[str, Any], candidates: str | None, path: Path | None) -> Beginning:
    """Decide what a campaign is of, or go on with what the file at `path` says.

    Args:
        given: The candidates, as for `as_table`; None for the file that the campaign began with.
        wanted: Fields of `Settings` as the user gave them; None where nothing was given.
        candidates: The fixed condition, which may be another one than before.
        path: Of the settings.

    Raises:
        ArgumentError: If the table can't be used as it is told: names row and column.
        StateError: If the campaign that goes on began otherwise.
        DataError: If a file can't be read.
    """
    if path is not None and path.exists():
        return _resumed(read_settings(path), given, wanted, candidates, path)
    require(given is not None, "table: there is no campaign to go on with, so that a table of candidates is needed.")
    require(bool(wanted["objective"]), 'objective: name the column of what is measured, such as objective="yield".')
    table = open_table(given, wanted["id"])
    names = table.schema.names
    ids = Ids(table, id_column(names, wanted["id"], table.index))
    digest = ids.check()
    for role in ("cost",):
        column = wanted[role]
        require(
            column is None or column in names, f"{role}: {table.name} has no column {column!r}.{nearest(str(column), names)}"
        )
    _check_spelling(table, wanted["objective"], [ids.column, wanted["cost"]], wanted["overruled"] or {})
    marks = candidates if boolean_column(table, candidates) else None
    roles = _roles({"id": ids.column, "objective": wanted["objective"], "cost": wanted["cost"], "candidates": marks})
    decisions = decide(table, {column: role for column, role in roles.items() if column in names}, wanted["overruled"] or {})
    settings = Settings(
        table=None if table.path is None else str(table.path),
        rows=table.count,
        digest=digest,
        objective=wanted["objective"],
        minimize=bool(wanted["minimize"]),
        id=ids.column,
        cost=wanted["cost"],
        dtype=wanted["dtype"] or ("float64" if table.count < MANY else "float32"),
        overruled=wanted["overruled"] or {},
        candidates=candidates,
        columns=decisions.columns,
    )
    _, values = history(table, settings.objective)
    full = f"every row of {table.name} has a value in column {settings.objective!r}: there is nothing left to find out. Leave "
    require(len(values) < table.count, full + "the column out of the table, or name another objective.")
    return Beginning(table, ids, settings, True)


def _check_spelling(table: Table, objective: str, known: list[str | None], overruled: Mapping[str, Any]) -> None:
    """Refuse an objective that is no column, where a column with empty cells has nearly its name and nobody says what it is."""
    names = table.schema.names
    if objective in names:
        return
    folded = {name.strip().casefold(): name for name in names if name not in known and name not in overruled}
    near = [folded[text] for text in difflib.get_close_matches(objective.strip().casefold(), list(folded), cutoff=0.7)]
    found = survey(table, near) if near else {}
    meant = next((name for name in near if found[name].missing), None)
    require(
        meant is None,
        f"objective: {table.name} has no column {objective!r}, and its column {meant!r} has empty cells: is it that one? If "
        f"not, say what {meant!r} is, such as columns={{{meant!r}: 'ignore'}} (--column {meant}=ignore).",
    )


def _resumed(settings: Settings, given: Any, wanted: dict[str, Any], candidates: str | None, path: Path) -> Beginning:
    settings.check_same({name: value for name, value in wanted.items() if value is not None}, path)
    message = f"{path} is of a table that was in no file: pass it again, table=."
    require(given is not None or settings.table is not None, message, StateError)
    table = open_table(settings.table if given is None else given, settings.id)
    names = table.schema.names
    needed = [d.column for d in settings.columns if d.features or d.kind in ("id", "cost")]
    gone = [column for column in needed if column not in names]
    ids = Ids(table, settings.id)
    same = not gone and table.count == settings.rows and ids.check() == settings.digest
    lacks = (
        f"it lacks column {', '.join(map(repr, gone))}"
        if gone
        else f"it has {table.count:,} rows, the campaign {settings.rows:,}"
    )
    lacks = lacks if gone or table.count != settings.rows else "its ids, or their order, are others"
    require(
        same,
        f"{table.name} is not the table that the campaign of {path} began with: {lacks}. Put that table back, or begin another "
        "campaign with another journal.",
        StateError,
    )
    return Beginning(table, ids, settings if candidates is None else replace(settings, candidates=candidates), False)


def open_table(given: Any, id: str | None) -> Table:
    """The candidates; ids of a CSV file are texts, so that 007 stays 007."""
    if isinstance(given, (str, os.PathLike)) and Path(given).suffix.lower() in TEXT:
        column = id_column(dialect(Path(given)).header, id)
        return as_table("table", given, [] if column is None else [column])
    return as_table("table", given, ids=id)


def history(table: Table, objective: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows of the table that have a value of the objective, and their values.

    Raises:
        ArgumentError: If the column holds what is no finite number.
    """
    none = np.empty(0, np.int64), np.empty(0, np.float64)
    if objective not in table.schema.names:
        return none
    found = survey(table, [objective])[objective]
    require(not found.infinite, f"{table.name}, column {objective!r}, is infinite in {found.infinite}: leave the cell empty.")
    if found.missing == table.count:
        return none
    require(found.numeric, no_number(found))
    values = numbers(table, objective)
    rows = np.flatnonzero(~np.isnan(values))
    return rows, values[rows]


def costs(table: Table, column: str) -> torch.Tensor:
    """What each row costs, `A`, float64.

    Raises:
        ArgumentError: If one is empty, no number, or not above 0: names the row.
    """
    found = survey(table, [column])[column]
    require(found.numeric, no_number(found))
    values = numbers(table, column)
    bad = np.flatnonzero(~((values > 0) & np.isfinite(values)))
    if len(bad):
        row = int(bad[0])
        raise ArgumentError(
            f"{table.name}, {table.where(row)}, column {column!r}: a cost must be a number above 0, got {values[row]:g} "
            f"({len(bad):,} such rows)."
        )
    return torch.from_numpy(values)


def _roles(columns: dict[str, str | None]) -> dict[str, str]:
    """Column to role; a column has one."""
    roles: dict[str, str] = {}
    for role, column in columns.items():
        if column is not None:
            taken = roles.get(column)
            require(taken is None, f"{role}: column {column!r} is the {taken} already.")
            roles[column] = role
    return roles


def check_pair(journal: Path, settings: Path) -> None:
    """Refuse a journal without the settings of its campaign.

    Raises:
        StateError: If there is one.
    """
    lonely = journal.exists() and journal.stat().st_size > 0 and not settings.exists()
    require(
        not lonely,
        f"{journal} exists, and {settings}, which says of which campaign it is, does not: restore that from a copy, or choose "
        "another journal.",
        StateError,
    )
