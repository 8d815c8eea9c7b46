"""What a user may hand in: every check raises one clear error before anything is learned."""

from torchbandits.validation.calls import (
    check_available,
    check_column,
    check_count,
    check_device,
    check_fit,
    check_history,
    check_limit,
    check_more,
    check_picks,
    check_places,
    check_rewards,
    check_told,
)
from torchbandits.validation.domain import (
    check_arms,
    check_costs,
    check_domain,
    check_generators,
    check_maximum,
    check_new_arms,
    check_source,
    check_state,
)

__all__ = [
    "check_arms",
    "check_available",
    "check_column",
    "check_costs",
    "check_count",
    "check_device",
    "check_domain",
    "check_fit",
    "check_generators",
    "check_history",
    "check_limit",
    "check_maximum",
    "check_more",
    "check_new_arms",
    "check_picks",
    "check_places",
    "check_rewards",
    "check_source",
    "check_state",
    "check_told",
]
