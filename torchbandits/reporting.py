"""Reports on the state of a bandit after each update."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from torchbandits.errors import NumericalError
from torchbandits.gradients import without_gradients
from torchbandits.policies import Policy, State
from torchbandits.transfers import to_device
from torchbandits.types import Pulls, Report


def certificate(policy: Policy, state: State) -> Tensor:
    """The largest upper minus the largest lower bound over the arms, `batch_shape`, on the host; NaN for policies without a
    posterior.

    Raises:
        NumericalError: If the posterior is not finite.
    """
    bounds = policy.bounds(state)
    if bounds is None:
        return torch.full_like(state.sum_on_host("log_det"), torch.nan)
    # Copied to the host first, because each operation on a device has a fixed cost.
    gap = (bounds[0] - bounds[1]).cpu()
    if gap.dim() == 0 and math.isfinite(gap.item()):
        return gap
    finite = torch.isfinite(gap)
    if not bool(finite.all()):
        broken = (~finite).reshape(-1)
        raise NumericalError(
            f"the posterior is not finite in batch rows {broken.nonzero().reshape(-1).tolist()}; nothing was "
            "learned. Check the size of the rewards and the kernel's hyper-parameters, or use a larger λ."
        )
    return gap


@without_gradients
def report_of(policy: Policy, state: State, pulls: Pulls, unasked: Tensor) -> Report:
    """Report of a state after an update with these pulls, of which `unasked` (`batch_shape`) were never asked for. It holds
    copies on the device of the arms, made by a single transfer.

    Raises:
        NumericalError: If the posterior is not finite.
    """
    gap, heard = certificate(policy, state), pulls.host or pulls
    told = (heard.counts if heard.numbers is None else heard.numbers).sum(dim=-1)
    device, distinct, sums = pulls.counts.device, state.statistics.num_rows, cast(Any, state._buffers)
    size = state.process.dictionary_size if state.tabulated else torch.zeros_like(distinct)
    gained = 0.5 * sums["log_det"] if state.tabulated else torch.full_like(gap, torch.nan)
    if device.type == "cpu":
        width = policy.width(state).clone()
        return Report(sums["told"].clone(), told, distinct.clone(), size.clone(), width, gained, gap, unasked)
    numbers = (sums["told"], told, distinct, size, policy.width_on_host(state), gained, gap, unasked)
    return Report(*to_device(device, *(own.cpu() for own in numbers)))
