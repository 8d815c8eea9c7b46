"""What a tell reports, and where it finds that the posterior broke down."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.errors import NumericalError
from torchbandits.policies import Policy, State
from torchbandits.types import Report


@torch.no_grad()
def report_of(policy: Policy, state: State, told: Tensor, unasked: Tensor) -> Report:
    """The state after a tell.

    Args:
        policy: Whose width and bounds.
        state: After the update.
        told: `batch_shape`, pulls just told.
        unasked: `batch_shape`, those of them that were never asked for.

    Raises:
        NumericalError: If a bound is not finite.
    """
    bounds = policy.bounds(state)
    certificate = torch.full_like(state.log_det, torch.nan) if bounds is None else bounds[0] - bounds[1]
    broken = ~torch.isfinite(certificate)
    if bounds is not None and bool(broken.any()):
        raise NumericalError(
            f"the posterior is not finite in batch rows {broken.reshape(-1).nonzero().reshape(-1).tolist()}; the pulls "
            "were not learned. Check the size of the rewards and the kernel's hyper-parameters, or use a larger λ."
        )
    return Report(
        pulls=state.told,
        batch_size=told,
        distinct_arms=state.statistics.num_rows,
        dictionary_size=state.process.dictionary_size if state.tabulated else torch.zeros_like(state.statistics.num_rows),
        width=policy.width(state),
        information_gain=0.5 * state.log_det if state.tabulated else torch.full_like(told, torch.nan),
        certificate=certificate,
        unasked=unasked,
    )
