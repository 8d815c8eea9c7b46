"""The files of a campaign, which are beside its journal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchbandits.errors import StateError, require
from torchbandits.tabular.kept import origin_of


@dataclass(frozen=True)
class CampaignPaths:
    """Paths of the files of a campaign.

    Attributes:
        journal: The journal.
    """

    journal: Path

    @property
    def settings(self) -> Path:
        """The settings, as JSON."""
        return self._beside(".campaign.json")

    @property
    def excluded(self) -> Path:
        """The numbers of the excluded rows."""
        return self._beside(".excluded.npy")

    @property
    def blocks(self) -> Path:
        """The labels of the blocks of results, by number, as JSON."""
        return self._beside(".blocks.json")

    @property
    def added(self) -> Path:
        """The rows that were added to the table."""
        return self._beside(".added.parquet")

    @property
    def features(self) -> Path:
        """The features of all rows, where they are many."""
        return self._beside(".features.npy")

    @property
    def renewal(self) -> Path:
        """A folder that exists while `Campaign.renew` begins the campaign. A journal is not begun while it exists."""
        return self._beside(".renewal")

    @property
    def before_journal(self) -> list[Path]:
        """The files that a new campaign may have, without its journal."""
        features = (self.features, origin_of(self.features))
        return [*features, self.excluded, self.blocks, self.added, self.settings]

    def _beside(self, suffix: str) -> Path:
        return self.journal.with_name(self.journal.name + suffix)

    def check_complete(self) -> None:
        """Raise `StateError` for a journal without the settings of its campaign."""
        lonely = self.journal.exists() and self.journal.stat().st_size > 0 and not self.settings.exists()
        require(
            not lonely,
            f"{self.journal} exists, but {self.settings} with the settings of its campaign does not: restore that file from a "
            "copy, or choose another journal.",
            StateError,
        )
        interrupted = self.renewal.exists() and not self.journal.exists()
        require(
            not interrupted,
            f"{self.journal} was being begun by renew() (torchbandits campaign renew), which was interrupted: repeat that, or "
            f"delete {self.renewal} and {self.settings}.",
            StateError,
        )

    def check_unused(self) -> None:
        """Raise `StateError` if there is a campaign, or a part of one, unless it is what an interrupted `renew` has left."""
        checkpoint = self._beside(".checkpoint")
        parts = (self.journal, checkpoint, *(() if self.renewal.exists() else (self.settings,)))
        found = [path for path in parts if path.exists()]
        if found:
            advice = "go on with that one, or choose another journal (another folder, --to)."
            raise StateError(f"{found[0]} belongs to a campaign: {advice}")
