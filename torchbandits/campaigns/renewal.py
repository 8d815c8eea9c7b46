"""A campaign that goes on with another table: what it takes over from the campaign before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchbandits.campaigns.candidates import Candidates, few
from torchbandits.campaigns.corrections import EARLIER, Line
from torchbandits.campaigns.given import overruled_by
from torchbandits.campaigns.paths import CampaignPaths
from torchbandits.campaigns.results import Results, differing
from torchbandits.campaigns.settings import Settings
from torchbandits.errors import DataError, UnsupportedError, issue, require
from torchbandits.journal import held, pack
from torchbandits.journal.lines import sync_folder

_KEPT = ("tell", "fit")
"""Kinds of records that are taken over. Whatever was asked for and is still open is opened anew."""
_LEFT = ("ask", "fill", "forget", "seeds", "set_arms")
"""Kinds of records that teach nothing."""


def options_of(settings: Settings, columns: Any) -> dict[str, Any]:
    """The arguments of a campaign with these settings, except for its table, policy, journal and random numbers.

    Args:
        settings: The settings.
        columns: Kinds of further columns, or other ones than before; None for none.
    """
    if settings.objectives:
        aims: dict[str, Any] = {"objectives": list(settings.objectives), "minimize": settings.small}
        aims |= {"at_least": settings.at_least, "at_most": settings.at_most}
    else:
        aims = {"objective": settings.objective, "minimize": settings.minimize}
    same = {name: getattr(settings, name) for name in ("id", "noise_std", "candidates", "cost")}
    kinds = settings.overruled | (overruled_by(columns) or {})
    return aims | same | {"columns": kinds, "dtype": getattr(torch, settings.dtype)}


def check_same_outcomes(now: Settings, before: Settings) -> None:
    """Refuse other measured outcomes than before: a column with a value in every row is known, and not measured."""
    other = [name for name in before.outcomes + before.known if (name in now.known) != (name in before.known)]
    names = ", ".join(map(repr, other))
    said = "are known now, since every row has a value" if set(other) <= {*now.known} else "have no value in some rows now"
    require(
        now.outcomes == before.outcomes,
        f"{names} {said}, and the results so far are those of other outcomes. Known values are needed in every row; leave the "
        "cells of rows that were not measured empty, or declare the column as 'measured'.",
    )


# ---------------------------------------------------------------------- rows


def rows_in(new: Candidates, old: Candidates, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of other candidates for each row, by its id, or by its number where numbers are the ids; −1 where there is
    none."""
    if old.ids.column is None:
        return np.where(rows < new.count, rows, -1)
    texts = new.ids.texts(old.ids.of(rows))
    found = new.ids.find(texts)
    return np.array([found.get(text, -1) for text in texts], np.int64)


def check_rows(
    new: Candidates, old: Candidates, rows: NDArray[np.int64], places: NDArray[np.int64], tolerances: Mapping[str, float]
) -> None:
    """Refuse candidates whose ids name other rows than before.

    Args:
        new, old: The candidates now and before.
        rows: Rows with results, and open ones.
        places: The row of each among the new candidates.
        tolerances: Columns to compare, each with the tolerance of its numbers; those that are missing now are left out.

    Raises:
        ArgumentError: If most rows have other cells, or any, where the numbers of the rows are the ids.

    Warns (`DiagnosticWarning`): For the first rows with other cells.
    """
    names, nothing = [f"{text!r}" for text in old.ids.of(rows)], np.empty((len(rows), 0))
    before = Results(
        name="the campaign so far",
        frame=old.table.take(rows).to_pandas(),
        ids=old.ids.of(rows),
        values=nothing,
        signs=np.empty((len(rows), 0), np.int8),
        places=[f"so far {name}" for name in names],
        file=False,
        noise_var=nothing,
    )
    compared = {name: own for name, own in tolerances.items() if name in new.table.schema.names}
    found = differing(before, new.table.take(places).to_pandas(), compared)
    numbered = old.ids.column is None
    mend = (
        "New rows come after the rows so far, whose numbers are their ids" if numbered else "If it is right, rename the column"
    )
    require(
        not found or not (numbered or 2 * len(found) > len(rows)),
        f"{new.table.name} has other cells beside {len(found):,} of the {len(rows):,} ids with results or pending: "
        f"{few(found[:1])}. {mend}.",
    )
    issue(f"{text} in {new.table.name}: the results count for the new cells." for text in found[:5])


# ---------------------------------------------------------------------- the journal


def told_in(lines: Iterable[Line]) -> list[Line]:
    """The records of a journal from which a campaign has learned.

    Raises:
        UnsupportedError: If something else than results of rows was learned.
    """
    kept = []
    for line in lines:
        kind = line["kind"]
        require(
            kind in (*_KEPT, *_LEFT),
            f"the bandit of this campaign has learned something else than results of its rows ({kind!r}), which can't be taken "
            "over: begin another campaign with all rows, and tell() it the results() of this one.",
            UnsupportedError,
        )
        kept += [line] if kind in _KEPT else []
    return kept


def rows_of(lines: Sequence[Line]) -> NDArray[np.int64]:
    """The rows that have results, in increasing order."""
    told = [held(line["index"]).reshape(-1).numpy() for line in lines if line["kind"] == "tell"]
    rows = np.unique(np.concatenate([np.empty(0, np.int64), *told]))
    return rows[rows >= 0]


def earlier_rows_of(lines: Sequence[Line]) -> NDArray[np.int64]:
    """The rows that have results or had some before a correction, in increasing order."""
    return rows_of([*lines, *({"kind": "tell", **version} for line in lines for version in line.get(EARLIER, ()))])


def moved(line: Line, places: NDArray[np.int64]) -> Line:
    """A record for other candidates.

    Args:
        line: The record.
        places: The new number of each row, followed by −1, which stands for no row.
    """
    if "index" not in line:
        return line
    # Reports are those of the model before.
    kept = {name: value for name, value in line.items() if name not in ("report", "best")}
    kept["index"] = pack(torch.from_numpy(places)[held(line["index"])])
    return kept | ({EARLIER: [moved(version, places) for version in line[EARLIER]]} if EARLIER in line else {})


# ---------------------------------------------------------------------- files


@contextmanager
def beginning(paths: CampaignPaths) -> Iterator[Path]:
    """A folder for the files of a campaign, which take their places at the end, the journal last; nothing is left after an
    error. What a kill leaves is not a campaign, and the same call may be repeated.

    Raises:
        DataError: If a file cannot be written.
    """
    folder = paths.renewal
    made = CampaignPaths(folder / paths.journal.name)
    with _refused(paths):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    try:
        yield made.journal
    except BaseException:
        shutil.rmtree(folder)
        raise
    with _refused(paths):
        for own, place in zip(made.before_journal, paths.before_journal, strict=True):
            if own.exists():
                os.replace(own, place)
            else:
                place.unlink(missing_ok=True)
        os.replace(made.journal, paths.journal)
        sync_folder(paths.journal.parent)
        shutil.rmtree(folder)


@contextmanager
def _refused(paths: CampaignPaths) -> Iterator[None]:
    """Raise `DataError` where the operating system refuses to write."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{paths.journal} can't be begun: {error}.") from error
