"""The policy of a campaign whose owner names none."""

from __future__ import annotations

from torchbandits.errors import ArgumentError
from torchbandits.policies import Policy


def default_policy() -> Policy:
    """None yet: it must be given."""
    raise ArgumentError("policy: give one, such as tb.gp_ucb(…).")
