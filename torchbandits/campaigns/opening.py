"""The opening of a campaign: the settings of a new one are decided, those of one that is resumed are compared."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchbandits.campaigns.conditions import boolean_column
from torchbandits.campaigns.history import history, known_values
from torchbandits.campaigns.paths import CampaignPaths
from torchbandits.campaigns.results import ALIKE
from torchbandits.campaigns.settings import SEVERAL_KEYS, Settings, read_settings, told_columns
from torchbandits.display import listed
from torchbandits.errors import DataError, StateError, issue, nearest, require
from torchbandits.tabular.columns import decide
from torchbandits.tabular.decisions import Decisions
from torchbandits.tabular.ids import Ids, id_column, open_table
from torchbandits.tabular.survey import survey
from torchbandits.tabular.tables import InMemory, Table

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from torchbandits.tabular.extras import pyarrow as pa

MANY = 1_000_000
"""Number of rows from which on features have single precision by default."""
MEASURED = "measured"
"""Kind of the column of an outcome that is measured, although every row has a value."""
_NEARLY_ALL = 0.9
"""Share of rows with a value from which on an outcome looks known, beside one that has values in less than half of the rows."""
_LONG, _ROUNDED = 8, 1e-4
"""Number of rows from which on the last one may hold sums, and the share by which these may be rounded."""


@dataclass(frozen=True)
class Beginning:
    """A table of candidates with the settings of its campaign.

    Attributes:
        table: The candidates.
        settings: The settings of the campaign.
        new: Whether the settings are yet to be written.
        changed: Whether they are those of a resumed campaign with another condition on its candidates.
    """

    table: Table
    settings: Settings
    new: bool
    changed: bool = False


def begin(given: Any, wanted: dict[str, Any], candidates: str | None, paths: CampaignPaths | None) -> Beginning:
    """Decide the settings of a new campaign, or compare those of its file with what is given now.

    Args:
        given: The candidates, as for `as_table`; None for the file that the campaign began with.
        wanted: The result of `given_settings`.
        candidates: The fixed condition, which may be another one than before; an empty text for none, None for that of before.
        paths: The files of the campaign; None where there is no journal.

    Raises:
        ArgumentError: If the table cannot be used with these options: names row and column.
        StateError: If the campaign began with another table or other settings, or its settings are missing.
        DataError: If a file cannot be read.
    """
    if paths is not None:
        paths.check_complete()
        if paths.settings.exists():
            return _resumed(given, wanted, candidates, paths)
    return Beginning(*_begun(given, wanted, candidates or None), new=True)


def _begun(given: Any, wanted: dict[str, Any], candidates: str | None) -> tuple[Table, Settings]:
    """The table and the settings of a new campaign."""
    require(given is not None, "table: there is no campaign to continue, so that a table of candidates is needed.")
    outcomes = told_columns(wanted)
    message = 'objective: name the column of the measured outcome, such as objective="yield".'
    if "objectives" in wanted:
        message = "objectives: name the columns of the measured outcomes, such as objectives=['yield', 'cost']."
    require(bool(outcomes), message)
    table = open_table(given, wanted["id"])
    names = table.schema.names
    ids = Ids(table, id_column(names, wanted["id"], table.index))
    digest = ids.check()
    cost, overruled = wanted["cost"], wanted["overruled"] or {}
    require(cost is None or cost in names, f"cost: {table.name} has no column {cost!r}.{nearest(str(cost), names)}")
    for name in outcomes:
        _check_spelling(table, name, [ids.column, cost, *outcomes], overruled, "objectives" in wanted)
    marks = candidates if boolean_column(table, candidates) else None
    measured = [name for name in outcomes if overruled.get(name) == MEASURED]
    told = [("objective" if name in (wanted.get("objectives") or outcomes[:1]) else "limit", name) for name in outcomes]
    roles = _roles([("id", ids.column), *told, ("cost", cost), ("candidates", marks)])
    known = _known(table, outcomes, measured)
    roles |= dict.fromkeys(known, "known")
    not_features = {column: role for column, role in roles.items() if column in names}
    kinds = {name: kind for name, kind in overruled.items() if name not in measured}
    decisions = decide(table, not_features, kinds, molecules=True)
    issue(_perhaps_totals(table, ids, decisions))
    settings = Settings(
        table=None if table.path is None else str(table.path),
        rows=table.count,
        digest=digest,
        objective=wanted.get("objective") or "",
        minimize=bool(wanted.get("minimize")),
        id=ids.column,
        cost=cost,
        dtype=wanted["dtype"] or ("float64" if table.count < MANY else "float32"),
        overruled=overruled,
        candidates=candidates,
        columns=decisions.columns,
        noise_std=wanted["noise_std"],
        known=known,
        **{key: wanted.get(key) or {} for key in SEVERAL_KEYS},
    )
    limited = sorted({*known} & settings.limited)
    message = f"no row of {table.name} keeps the limits on column {', '.join(map(repr, limited))}: widen them."
    require(bool(keeping(settings, table).any()), message)
    return table, settings


def _perhaps_totals(table: Table, ids: Ids, decisions: Decisions) -> list[str]:
    """A sentence if the last row is like a row of totals: it leaves most features empty that all other rows fill, or has the
    sums of the rows above."""
    features, last = [decision for decision in decisions if decision.features], np.array([table.count - 1])
    alone = [decision.column for decision in features if decision.missing == 1]
    if len(alone) >= 2 and 2 * len(alone) > len(features):
        empty = all(cell.null_count for cell in table.take(last, alone).columns)
        has = f"is the only one without {listed(alone[:5])}" if empty else ""
    else:
        sums = _sums([name for name in table.schema.names if name != ids.column], table)
        has = f"has the sums of the rows above in {listed(sums[:5])}" if sums else ""
    if not has:
        return []
    (name,) = ids.of(last)
    return [
        f"{Path(table.name).name}: {name!r}, the last row, {has}. If it is no candidate, such as a row of totals, delete it, "
        "and begin again in another folder (or with another journal)."
    ]


def _sums(names: Sequence[str], table: Table) -> list[str]:
    """The columns of a spreadsheet that hold the sum of the rows above in the last row, up to rounding; none if another column
    has a number there, or only one column has."""
    found = []
    if not isinstance(table, InMemory) or table.count < _LONG:
        return []
    for name in names:
        kind = table.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            continue
        cells = table.arrow.column(name).to_numpy().astype(np.float64)
        above, total = cells[:-1][~np.isnan(cells[:-1])], cells[-1]
        if np.isnan(total):
            continue
        whole = above.sum()
        # A single number above is a repetition.
        if np.count_nonzero(above) < 2 or not abs(total - whole) <= _ROUNDED * abs(whole):
            return []
        found.append(name)
    return found if len(found) > 1 else []


def keeping(settings: Settings, table: Table) -> NDArray[np.bool_]:
    """Whether each row keeps the limits on known outcomes, `A`."""
    low, high, found = settings.at_least, settings.at_most, np.ones(table.count, bool)
    for name, own in known_values(table, sorted(settings.limited & {*settings.known})).items():
        found &= (own >= low.get(name, -np.inf)) & (own <= high.get(name, np.inf))
    return found


def _known(table: Table, outcomes: Sequence[str], measured: Sequence[str]) -> tuple[str, ...]:
    """The outcomes that have a value in every row, and so are not measured, unless the user says that they are.

    Raises:
        ArgumentError: If all outcomes have a value in every row.

    Warns (`DiagnosticWarning`): If an outcome has a value in nearly every row, unlike another one.
    """
    filled = {name: len(history(table, name)[1]) for name in outcomes}
    full = tuple(name for name, count in filled.items() if count == table.count)
    columns = "column " + ", ".join(map(repr, outcomes))
    message = f"every row of {table.name} has a value in {columns}: there is nothing left to find out. Leave "
    require(len(full) < len(outcomes), message + "the column out of the table, or name another objective.")
    sparse = min(filled.values()) < table.count / 2
    issue(
        f"column {name!r} has a value in {count:,} of the {table.count:,} rows, which count as measurements. If the column is "
        f"known beforehand, as a price is, fill in its empty cells or leave these rows out: the values then count as given. If "
        f"not, say columns={{{name!r}: {MEASURED!r}}} (--column {name}={MEASURED})."
        for name, count in filled.items()
        if sparse and _NEARLY_ALL * table.count <= count < table.count and name not in measured
    )
    return tuple(name for name in full if name not in measured)


def _check_spelling(table: Table, objective: str, known: list[str | None], overruled: Mapping[str, Any], several: bool) -> None:
    """Refuse an objective that is not a column, if a column with empty cells has a similar name and no given kind.

    Warns (`DiagnosticWarning`): If it is one of several outcomes, and a column of numbers without empty cells has almost its
        name: that column would be known.
    """
    names = table.schema.names
    if objective in names:
        return
    folded = {name.strip().casefold(): name for name in names if name not in known and name not in overruled}
    text = objective.strip().casefold()
    near = [folded[own] for own in difflib.get_close_matches(text, list(folded), cutoff=0.7)]
    found = survey(table, near) if near else {}
    meant = next((name for name in near if found[name].missing), None)
    require(
        meant is None,
        f"objective: {table.name} has no column {objective!r}, and its column {meant!r} has empty cells: is it that one? If "
        f"not, say what {meant!r} is, such as columns={{{meant!r}: 'ignore'}} (--column {meant}=ignore).",
    )
    close = difflib.get_close_matches(text, list(folded), cutoff=ALIKE) if several else []
    given = [name for name in map(folded.__getitem__, close) if found[name].numeric and not found[name].constant]
    issue(
        f"{table.name} has no column {objective!r}, so that it is to be measured. Did you mean {name!r}, which has a value in "
        f"every row, and would be known?"
        for name in given[:1]
    )


def _resumed(given: Any, wanted: dict[str, Any], candidates: str | None, paths: CampaignPaths) -> Beginning:
    """The table and the settings of a campaign that goes on."""
    path = paths.settings
    settings = read_settings(path)
    settings.check_same({name: value for name, value in wanted.items() if value is not None}, path)
    message = f"{path} is of a table that was in no file: pass it again, table=."
    require(given is not None or settings.table is not None, message, StateError)
    message = f"{settings.table}, the table that the campaign of {path} began with, is not there: pass its new path, table=."
    require(given is not None or Path(settings.table or "").exists(), message, DataError)
    table = open_table(settings.table if given is None else given, settings.id)
    names = table.schema.names
    needed = [d.column for d in settings.columns if d.features or d.kind in ("id", "cost", "known")]
    gone = [column for column in needed if column not in names]
    ids = Ids(table, settings.id)
    lacks = ""
    if gone:
        lacks = f"it lacks column {', '.join(map(repr, gone))}"
    elif table.count != settings.rows:
        lacks = f"it has {table.count:,} rows, the campaign {settings.rows:,}"
    elif ids.check() != settings.digest:
        lacks = "its ids, or their order, are different"
    added = paths.added.exists()
    kept = f" (rows that were added are in {paths.added.name}, and belong to no other table)" if added else ""
    more = not gone and table.count > settings.rows
    extended = ""
    if more:
        extended = (
            " New rows are added by extend() (torchbandits campaign extend) or, with new categories or molecules, by renew() "
            "(torchbandits campaign renew)."
        )
    require(
        not lacks,
        f"{table.path or table.name} is not the table that the campaign of {path} began with: {lacks}. Put that table "
        f"back{kept}, or begin another campaign with another journal.{extended}",
        StateError,
    )
    asked = settings.candidates if candidates is None else candidates or None
    return Beginning(table, replace(settings, candidates=asked), new=False, changed=asked != settings.candidates)


def _roles(columns: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Map columns to roles.

    Raises:
        ArgumentError: If a column has two.
    """
    roles: dict[str, str] = {}
    for role, column in columns:
        if column is not None:
            taken = roles.get(column)
            condition = f' A limit on it is a condition: candidates="`{column}` <= …" (--candidates).'
            said = condition if {role, taken} == {"cost", "limit"} else ""
            require(taken is None, f"{role}: column {column!r} is the {taken} already.{said}")
            roles[column] = role
    return roles
