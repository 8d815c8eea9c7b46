"""Stopping rules of a campaign: their numbers are in units of the user, and their reasons in the words of a campaign."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from torchbandits.stopping import Decision, ImprovementPerCost, LevelSetKnown, ProbableRegret, Rule


def in_rewards(rules: Sequence[Rule], sign: float) -> list[Rule]:
    """The rules for rewards, which are values times a sign, and so are levels."""
    return [replace(rule, level=sign * rule.level) if isinstance(rule, LevelSetKnown) else rule for rule in rules]


def need_noise(rules: Sequence[Rule]) -> bool:
    """Whether one of the rules needs the noise of a measurement."""
    return any(isinstance(rule, ProbableRegret | ImprovementPerCost) for rule in rules)


def of_measurements(decision: Decision) -> Decision:
    """A decision whose reasons speak of measurements and rows instead of pulls and arms."""
    words = {"pulls": "measurements", "arm": "row", "arms": "rows"}
    told = (re.sub(r"\b(pulls|arms?)\b", lambda found: words[found[0]], reason) for reason in decision.reasons)
    return replace(decision, reasons=tuple(told))


def of_row(decision: Decision, name: str, rules: Sequence[Rule], sign: float) -> Decision:
    """A decision `of_measurements` whose reasons call the row by its id, and have the levels of the user.

    Args:
        decision: The decision on a row.
        name: The id of the row.
        rules: The rules of the user, in units of values.
        sign: A value times this sign is a reward.
    """
    reasons = [reason.replace(f"row {int(decision.arm)} ", f"row {name!r} ") for reason in decision.reasons]
    for level in (rule.level for rule in rules if isinstance(rule, LevelSetKnown)):
        reasons = [reason.replace(f"or below {sign * level:g}", f"or below {level:g}") for reason in reasons]
    return replace(decision, reasons=tuple(reasons))
