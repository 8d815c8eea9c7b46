"""The files of a campaign, which are beside its journal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchbandits.errors import StateError, require


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
