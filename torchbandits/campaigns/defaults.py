"""The policy of a campaign whose owner names none."""

from __future__ import annotations

from torchbandits.policies import Policy, auto


def default_policy() -> Policy:
    """`tb.auto()`: kernel, noise and scales from the data."""
    return auto()
