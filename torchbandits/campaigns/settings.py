"""What a campaign is of, in a file beside its journal: written once, before anything is told, and read at every return."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchbandits.campaigns.decisions import Decision, Decisions
from torchbandits.checks import read_bytes
from torchbandits.errors import DataError, StateError, require

FORMAT = 1
_LARGEST = 1 << 26
_OF = {  # what a campaign can't change on the way, in words
    "objective": "the objective",
    "minimize": "whether it is minimised",
    "id": "the column of the ids",
    "cost": "the column of the costs",
    "dtype": "dtype",
    "overruled": "columns",
}


@dataclass(frozen=True)
class Settings:
    """What a campaign is of.

    Attributes:
        table: The file of the candidates, if they are in one.
        rows, digest: How many there are, and of their ids.
        objective, minimize, id, cost, dtype: As given or found.
        overruled: What the user said of columns.
        candidates: The fixed condition, which may change on the way.
        columns: What was decided of them.
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

    def text(self) -> str:
        """As JSON."""
        own = asdict(self) | {"columns": [decision.as_json() for decision in self.columns]}
        return json.dumps({"format": FORMAT} | own, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @property
    def decisions(self) -> Decisions:
        """What was decided of the columns."""
        return Decisions(self.columns)

    def check_same(self, given: dict[str, Any], path: Path) -> None:
        """Refuse to go on with other settings than it began with.

        Args:
            given: Some of the fields, as given now.
            path: Of the file, for messages.

        Raises:
            StateError: Says which differ.
        """
        own = asdict(self)
        other = [f"{_OF[key]} was {own[key]!r}, is {value!r}" for key, value in given.items() if own[key] != value]
        way_out = "Go on with what it began with, or begin another campaign with another journal."
        require(not other, f"the campaign of {path} began otherwise: {'; '.join(other)}. {way_out}", StateError)


def read_settings(path: Path) -> Settings:
    """What `Settings.text` wrote.

    Raises:
        DataError: If it can't be read, or is something else.
    """
    try:
        saved = json.loads(read_bytes(path, _LARGEST).decode("utf-8"))
        form = saved.pop("format")
        require(form == FORMAT, f"{path} has format {form!r}, this version reads {FORMAT}: use a later version.", DataError)
        columns = tuple(Decision(**{**one, "categories": tuple(one["categories"])}) for one in saved.pop("columns"))
        return Settings(**saved, columns=columns)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} does not hold the settings of a campaign: {error!r}. Restore it from a copy.") from error
