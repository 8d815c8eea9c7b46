"""Rows that are added to a table, and keep the columns and the categories of its beginning."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchbandits.errors import ArgumentError, issue, nearest, require
from torchbandits.tabular.cells import as_texts, is_text
from torchbandits.tabular.decisions import SUBSTANCE, Decision
from torchbandits.tabular.ids import Ids
from torchbandits.tabular.survey import Survey, check_size, survey
from torchbandits.tabular.tables import InMemory, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import compute as pc
else:
    from torchbandits.tabular.extras import compute as pc
    from torchbandits.tabular.extras import pyarrow as pa

RENEW = (
    "go on with one table of all rows by renew() (torchbandits campaign renew all.csv --to campaign2), which takes over all "
    "results"
)
"""The way to add rows that cannot be added."""


def joined(table: Table, new: Table, outcomes: Collection[str]) -> InMemory:
    """A table followed by further rows, in memory. Columns that one of them lacks are empty there. Columns of outcomes that are
    texts in one of them, as with limits of detection, are texts in both.

    Raises:
        ArgumentError: If a column does not have the type that it has in the table.
    """
    whole, rows = _plain(table), _plain(new)
    try:
        for place, name in enumerate(rows.schema.names):
            if name in whole.schema.names:
                at = whole.schema.get_field_index(name)
                if name in outcomes and is_text(rows.schema.field(name).type):
                    whole = whole.set_column(at, name, as_texts(whole.column(at).combine_chunks()))
                rows = rows.set_column(place, name, _as_before(rows.column(place), whole.schema.field(name).type))
        both = pa.concat_tables([whole, rows], promote_options="permissive")
    except pa.ArrowException as error:
        message = f"{new.name} does not have the types of {table.name}: {error}. Write its cells as they are there."
        raise ArgumentError(message) from error
    both = both.combine_chunks().replace_schema_metadata(table.schema.metadata)
    return InMemory(both, table.path, index=table.index)


def _as_before(cells: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """Cells of a column that had this type before: as texts if it had texts, and as whole numbers if it had these. Dates may
    come with or without a time of midnight, and true and false as 1 and 0, depending on the kind of file."""
    if is_text(kind):
        return as_texts(cells.combine_chunks())
    dates = pa.types.is_temporal(kind) and pa.types.is_temporal(cells.type)
    if dates and pa.types.is_date(cells.type) != pa.types.is_date(kind):
        found = cells.cast(kind)
        # A time of day is not dropped.
        return cells if pc.all(pc.equal(found.cast(cells.type), cells)).as_py() is False else found
    if pa.types.is_boolean(cells.type) and pa.types.is_integer(kind):
        return cells.cast(kind)
    if pa.types.is_boolean(kind) and pa.types.is_integer(cells.type):
        return cells.cast(kind) if pc.all(pc.is_in(cells, pa.array([0, 1, None], cells.type))).as_py() else cells
    # pandas stores whole numbers as floats where a cell is empty, or was. An id has to remain the number 40, and not 40.0.
    floats = pa.types.is_integer(kind) and pa.types.is_floating(cells.type)
    whole = floats and pc.all(pc.and_(pc.is_finite(cells), pc.equal(pc.floor(cells), cells))).as_py()
    return cells.cast(kind) if whole else cells


def _plain(table: Table) -> pa.Table:
    """All rows, with categories as the values that they name."""
    schema = pa.schema([(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in table.schema])
    return pa.Table.from_batches(table.batches(table.schema.names), table.schema).cast(schema)


def check_rows(new: Table, table: Table, ids: Ids, decisions: Sequence[Decision], outcomes: Collection[str]) -> None:
    """Refuse rows that cannot be added to a table.

    Args:
        new: The rows. Columns of outcomes may be missing.
        table: The candidates so far.
        ids: Their ids.
        decisions: The decision on each column.
        outcomes: The columns of results.

    Raises:
        ArgumentError: If columns are missing or unknown, an id is empty or repeated, or a cell has no place in the encoding of
            the beginning: names row and column.

    Warns (`DiagnosticWarning`): If a column that is no feature, because all its cells were equal, has other cells now.
    """
    names, own = table.schema.names, new.schema.names
    missing = [name for name in names if name not in own and name not in outcomes]
    lacks = f"{new.name} has no column {', '.join(map(repr, missing))}, and new rows need those of the candidates"
    ids_too = f" Rename the column that holds the ids to {ids.column!r}." if ids.column in missing else ""
    require(not missing, f"{lacks}.{nearest(missing[0], own) if missing else ''}{ids_too}")
    unknown = [name for name in own if name not in names and name not in outcomes]
    require(not unknown, f"{new.name} has a column {''.join(unknown[:1])!r}, which the candidates lack: leave it out.")
    if ids.column is not None:
        Ids(new, ids.column).check()
    columns = survey(new, [decision.column for decision in decisions if decision.column in own])
    for decision in decisions:
        if decision.features:
            _check_cells(columns[decision.column], new, decision)
        elif decision.why == "all cells are equal":
            (same,) = as_texts(table.take(np.zeros(1, np.int64)).column(decision.column).combine_chunks()).to_pylist()
            if columns[decision.column].categories not in ((), (same,)):
                cells = f"other cells than {same!r} in column {decision.column!r}, which is no feature because all were equal"
                issue([f"{new.name} has {cells}: the model sees no difference. To learn from the column, {RENEW}."])


def known_rows(new: Table, both: InMemory, ids: Ids, outcomes: Collection[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of the new rows that the table has already, with the same id and the same cells, and their rows in the table.

    Args:
        new: The new rows.
        both: The table followed by them.
        ids: The ids of the table.
        outcomes: The columns of results, which may differ.

    Raises:
        ArgumentError: If a row with a known id has another cell: names row and column.
    """
    texts = [] if ids.column is None else ids.texts(text for text in _texts(new, ids.column))
    found = ids.find(texts)
    places = np.array([place for place, text in enumerate(texts) if text in found], np.int64)
    rows = np.array([found[texts[place]] for place in places], np.int64)
    here, there = both.take(both.count - new.count + places), both.take(rows)
    for name in both.schema.names:
        if name not in outcomes and name != ids.column and not here.column(name).equals(there.column(name)):
            ours, theirs = here.column(name).to_pandas(), there.column(name).to_pandas()
            different = (ours != theirs) & ~(ours.isna() & theirs.isna())
            if different.any():
                first = int(np.argmax(different))
                place = int(places[first])
                raise ArgumentError(
                    f"{new.name}, {new.where(place)}: {texts[place]!r} is an id of the campaign already, and its {name!r} is "
                    f"{theirs[first]!s:.60} there, {ours[first]!s:.60} here: leave the row out, or give it another id."
                )
    return places, rows


def _check_cells(s: Survey, new: Table, decision: Decision) -> None:
    """Refuse cells that have no place in the encoding of a column."""
    texts = _texts(new, s.column)
    if s.missing and not decision.missing:
        place = f"{new.name}, {new.where(texts.index(None))}, column {s.column!r}"
        raise ArgumentError(f"{place} is empty, and no cell of the column was at the beginning: fill it in.")
    if decision.kind in ("category", "ordered", SUBSTANCE):
        unknown = next((text for text in texts if text is not None and text not in decision.categories), None)
        if unknown is not None:
            more = ", …" if len(decision.categories) > 8 else ""
            known = ", ".join(map(repr, decision.categories[:8])) + more
            raise ArgumentError(
                f"{new.name}, {new.where(texts.index(unknown))}, column {s.column!r}: {unknown!r} is not one of the categories "
                f"of the beginning, {known}. Correct it; or, to add a category, {RENEW}."
            )
        return
    if not s.numeric:
        held = f"{s.first_text!r} in {s.text_at}" if s.text else s.type
        needed = {"boolean": "true or false", "date": "a date"}.get(decision.kind, "a number")
        raise ArgumentError(f"{new.name}, column {s.column!r} holds {held}, which is not {needed} as in the table: correct it.")
    require(not s.infinite, f"{new.name}, column {s.column!r} is infinite in {s.infinite}: correct it.")
    check_size(s)
    positive = s.low >= 0 if decision.unit else s.low > 0
    possible = {"log": positive, "count": s.low >= 0, "boolean": 0 <= s.low <= s.high <= 1}.get(decision.kind, True)
    span = f"column {s.column!r}, which is taken as {decision.kind!r}, has numbers from {s.low:g} to {s.high:g}"
    require(possible or s.missing == new.count, f"{new.name}, {span}: correct it; or {RENEW}.")


def _texts(table: Table, column: str) -> list[str | None]:
    return [text for batch in table.batches([column]) for text in as_texts(batch.column(0)).to_pylist()]
