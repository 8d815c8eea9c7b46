"""Settings of a campaign: decided when it begins, kept in a file beside its journal, and compared when it is resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torchbandits.checks import read_bytes
from torchbandits.errors import DataError, StateError, require
from torchbandits.tabular.decisions import Decision, Decisions

FORMAT, SEVERAL, WITH_KNOWN = 1, 2, 3
"""Formats of the file, of one objective, of several outcomes, and of several outcomes of which some are known."""
SEVERAL_KEYS = ("objectives", "at_least", "at_most")
"""Fields that only campaigns of several outcomes have."""
_LARGEST = 1 << 26
_FIXED = {  # fields that cannot change during a campaign, in words
    "objective": "the objective",
    "objectives": "the objectives",
    "at_least": "the lower limits",
    "at_most": "the upper limits",
    "minimize": "whether it is minimised",
    "id": "the column of the ids",
    "cost": "the column of the costs",
    "dtype": "dtype",
    "noise_std": "the noise of a measurement",
    "overruled": "columns",
}


@dataclass(frozen=True)
class Settings:
    """Settings of a campaign.

    Attributes:
        table: The file of the candidates, if they are in one.
        rows, digest: Number of candidates, and a digest of their ids.
        objective, minimize, id, cost, dtype: As given or found.
        overruled: Kinds of columns as the user gave them.
        candidates: The fixed condition, which may change when the campaign is resumed.
        columns: The decision on each column.
        noise_std: Standard deviation of a measurement, where it is known; for several outcomes, one per name.
        objectives: For a campaign of several outcomes, "maximize" or "minimize" by the name of each objective; `objective` is
            empty then.
        at_least, at_most: Limits by the name of their outcome.
        known: The objectives and limited columns that have a value in every row of the table, so that they are not measured.
    """

    table: str | None
    rows: int
    digest: str
    objective: str
    minimize: bool
    id: str | None
    cost: str | None
    dtype: str
    overruled: dict[str, Any]
    candidates: str | None
    columns: tuple[Decision, ...]
    noise_std: float | dict[str, float] | None = None
    objectives: dict[str, str] = field(default_factory=dict)
    at_least: dict[str, float] = field(default_factory=dict)
    at_most: dict[str, float] = field(default_factory=dict)
    known: tuple[str, ...] = ()

    def text(self) -> str:
        """The settings as JSON."""
        saved = asdict(self)
        # Earlier versions read campaigns without these fields, and do not know the fields.
        unknown = {*(() if self.objectives else SEVERAL_KEYS), *(() if self.known else ("known",))}
        saved = {key: value for key, value in saved.items() if key not in unknown}
        written = {"format": WITH_KNOWN if self.known else SEVERAL if self.objectives else FORMAT} | saved
        # Categories may be numbers of NumPy.
        plain: Any = np.generic.item
        return json.dumps(written, indent=1, ensure_ascii=False, allow_nan=False, default=plain) + "\n"

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The columns of the results: the objective, or the objectives and then the columns with limits, but for known ones."""
        every = told_columns({"objective": self.objective} | {key: getattr(self, key) for key in SEVERAL_KEYS})
        return tuple(name for name in every if name not in self.known)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outcomes in records and in sentences; a single objective has none."""
        return self.outcomes if self.objectives else ("",)

    @property
    def sign(self) -> float:
        """A value times this sign is a reward. Policies of several outcomes minimise themselves."""
        return -1.0 if self.minimize else 1.0

    @property
    def signs(self) -> dict[str, int]:
        """For each objective 1 if larger values are better, and −1 if smaller values are."""
        aims = self.objectives or {self.objective: "minimize" if self.minimize else "maximize"}
        return {name: -1 if aim == "minimize" else 1 for name, aim in aims.items()}

    @property
    def small(self) -> list[str]:
        """The objectives of which smaller values are better."""
        return [name for name, sign in self.signs.items() if sign < 0]

    @property
    def limited(self) -> set[str]:
        """The outcomes that have a limit."""
        return {*self.at_least, *self.at_most}

    @property
    def directions(self) -> dict[str, float]:
        """For each known outcome 1.0 if larger values are better and −1.0 if smaller values are, by its objective or else by
        its limits; 0.0 for limits on both sides."""
        found = {name: float((name in self.at_least) - (name in self.at_most)) for name in self.known}
        return {name: float(self.signs.get(name, found[name])) for name in self.known}

    @property
    def decisions(self) -> Decisions:
        """The decisions on all columns."""
        return Decisions(self.columns)

    @property
    def tolerances(self) -> dict[str, float]:
        """The columns that tell whether rows are those of the candidates, and the tolerance of the numbers of each."""
        compared = [d for d in self.columns if d.features and d.kind != "date"]
        # A hundredth of the spread: a spreadsheet shows 1e-17 among numbers up to 5 as 0.00.
        return {d.column: 0.01 * d.scale if d.kind == "number" else 0.0 for d in compared}

    def check_same(self, given: dict[str, Any], path: Path) -> None:
        """Refuse settings other than those with which the campaign began.

        Args:
            given: Some of the fields, as given now.
            path: The file of the settings, for messages.

        Raises:
            StateError: If a field differs; the message names every field that does.
        """
        began = asdict(self)
        other = [f"{_FIXED[key]} was {began[key]!r}, is {value!r}" for key, value in given.items() if began[key] != value]
        way_out = "Continue with the settings it began with, or begin another campaign with another journal (--folder)."
        require(not other, f"the campaign of {path} began otherwise: {'; '.join(other)}. {way_out}", StateError)


def read_settings(path: Path) -> Settings:
    """Read what `Settings.text` wrote.

    Raises:
        DataError: If the file cannot be read, or holds something else.
    """
    try:
        saved = json.loads(read_bytes(path, _LARGEST).decode("utf-8"))
        form = saved.pop("format")
        last = f"{path} has format {form!r}, this version reads {FORMAT} to {WITH_KNOWN}: use a later version."
        require(form in (FORMAT, SEVERAL, WITH_KNOWN), last, DataError)
        columns = tuple(_decision(one) for one in saved.pop("columns"))
        return Settings(**saved | {"known": tuple(saved.get("known", ()))}, columns=columns)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} does not hold the settings of a campaign: {error!r}. Restore it from a copy.") from error


def _decision(saved: dict[str, Any]) -> Decision:
    # Campaigns of earlier versions have no coordinates.
    rows = tuple(tuple(row) for row in saved.get("coordinates", ()))
    return Decision(**saved | {"categories": tuple(saved["categories"]), "coordinates": rows})


def told_columns(wanted: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of the results by fields of `Settings`."""
    several = {name: None for key in SEVERAL_KEYS for name in wanted.get(key) or ()}
    alone = wanted.get("objective")
    return tuple(several) if several else (alone,) if alone else ()
