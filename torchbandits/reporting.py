"""Reports on the state of a bandit after each update."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.errors import NumericalError
from torchbandits.gradients import without_gradients
from torchbandits.policies import Policy, State
from torchbandits.types import Pulls, Report


def certificate(policy: Policy, state: State) -> Tensor:
    """The largest upper minus the largest lower bound over the arms, `batch_shape`; NaN for policies without a posterior.

    Raises:
        NumericalError: If the posterior is not finite.
    """
    bounds = policy.bounds(state)
    if bounds is None:
        return torch.full_like(state.log_det, torch.nan)
    gap = bounds[0] - bounds[1]
    # Copied first, since a device counts each operation.
    finite = torch.isfinite(gap.cpu())
    if not bool(finite.all()):
        broken = (~finite).reshape(-1)
        raise NumericalError(
            f"the posterior is not finite in batch rows {broken.nonzero().reshape(-1).tolist()}; nothing was "
            "learned. Check the size of the rewards and the kernel's hyper-parameters, or use a larger λ."
        )
    return gap


@without_gradients
def report_of(policy: Policy, state: State, pulls: Pulls, unasked: Tensor) -> Report:
    """Report of a state after an update with these pulls, of which `unasked` (`batch_shape`) were never asked for. Holds
    copies.

    Raises:
        NumericalError: If the posterior is not finite.
    """
    gap, told = certificate(policy, state), (pulls.counts if pulls.numbers is None else pulls.numbers).sum(dim=-1)
    size = state.process.dictionary_size if state.tabulated else torch.zeros_like(state.statistics.num_rows)
    return Report(
        pulls=state.told.clone(),
        batch_size=told,
        distinct_arms=state.statistics.num_rows.clone(),
        dictionary_size=size.clone(),
        width=policy.width(state).clone(),
        information_gain=0.5 * state.log_det if state.tabulated else torch.full_like(told, torch.nan),
        certificate=gap,
        unasked=unasked,
    )
