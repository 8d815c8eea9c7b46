"""All diagnostics that apply to a bandit, as one report in plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.diagnostics.assumptions import Noise, Widths, noise, widths
from torchbandits.diagnostics.calibration import Calibration, calibration, leave_one_out
from torchbandits.diagnostics.inputs import told_state
from torchbandits.diagnostics.leverages import DictionaryQuality, EffectiveDimension, dictionary_quality, effective_dimension
from torchbandits.errors import UnsupportedError, require

CHEAP = 512
"""Largest number of distinct points for which `diagnose` compares the dictionary with the exact posterior."""

Part = Calibration | EffectiveDimension | DictionaryQuality | Widths | Noise


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Findings of all diagnostics.

    Attributes:
        parts: Records by title, in order.
        skipped: Reason why a diagnostic does not apply, by title.
    """

    parts: dict[str, Part]
    skipped: dict[str, str]

    @property
    def warnings(self) -> list[str]:
        """All warnings, in order."""
        return [warning for part in self.parts.values() for warning in part.warnings]

    def __str__(self) -> str:
        """The report, plain text of at most 100 columns."""
        found = self.warnings
        verdict = "No warnings." if not found else f"{len(found)} of the findings below are warnings."
        lines = [verdict]
        for title, part in self.parts.items():
            lines += ["", title, "-" * len(title), *_wrapped(str(part))]
            if isinstance(part, Widths):
                lines += ["", *(f"  {line}" for line in part.table().splitlines())]
        for title, reason in self.skipped.items():
            lines += ["", title, "-" * len(title), *_wrapped(f"Not done: {reason}")]
        return "\n".join(lines)


def diagnose(bandit: Bandit, *, held_out: tuple[Tensor, Tensor] | None = None) -> Diagnosis:
    """Run all diagnostics that apply to the bandit.

    Args:
        bandit: Must have been told rewards.
        held_out: Arms (or points) and their rewards, as `calibration` takes them. The dictionary is compared with the exact
            posterior only up to 512 distinct points: call `dictionary_quality` beyond.

    Raises:
        StateError: If nothing was told.
        UnsupportedError: For several outcomes whose models have different noise or λ.

    Warns (`DiagnosticWarning`): The warnings of each diagnostic, which `warnings` of the report lists. Cost: O(u² m).
    """
    state = told_state(bandit)
    good = held_out is None or (isinstance(held_out, Sequence) and len(held_out) == 2)
    require(good, f"held_out must be a pair (index_or_points, rewards), got {type(held_out).__name__}.")
    applicable: dict[str, Callable[[], Part]] = {
        "Noise": partial(noise, bandit),
        "Effective dimension": partial(effective_dimension, bandit),
        "Widths": partial(widths, bandit),
        "Leave one arm out": partial(leave_one_out, bandit),
    }
    if int(state.statistics.num_rows.max()) <= CHEAP:
        applicable["Dictionary"] = partial(dictionary_quality, bandit)
    if held_out is not None:
        applicable["Held-out rewards"] = partial(calibration, bandit, *held_out)
    parts: dict[str, Part] = {}
    skipped: dict[str, str] = {}
    for title, run in applicable.items():
        try:
            parts[title] = run()
        except UnsupportedError as reason:
            skipped[title] = str(reason)
    return Diagnosis(parts, skipped)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, width=100, break_long_words=False)
