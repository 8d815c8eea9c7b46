"""Reports on the state of a bandit after each update, and the certificate of its recommended arm."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from torchbandits.display import count
from torchbandits.errors import NumericalError, issue, not_finite
from torchbandits.gradients import without_gradients
from torchbandits.policies import Policy, State
from torchbandits.transfers import to_device
from torchbandits.types import Pulls, Report


def certificate(policy: Policy, state: State) -> Tensor:
    """The largest upper minus the largest lower bound over the arms, `batch_shape`, on the host; NaN for policies without a
    posterior.

    Raises:
        NumericalError: If the posterior or the width is not finite.
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
        # A posterior that broke down leaves no finite log-determinant, from which many widths are computed.
        if bool(torch.isfinite(state.sum_on_host("log_det")).all()) and not bool(torch.isfinite(policy.width(state)).all()):
            raise NumericalError("the confidence width is NaN or infinite; nothing was learned. Check its formula.")
        broken = (~finite).reshape(-1)
        raise not_finite(broken.nonzero().reshape(-1).tolist(), str(state.rows.source.dtype))
    return gap


@without_gradients
def report_of(policy: Policy, state: State, pulls: Pulls, unasked: Tensor, selected: bool = False) -> Report:
    """Report of a state after an update with these pulls, of which `unasked` (`batch_shape`) were never asked for. It holds
    copies on the device of the arms, made by a single transfer.

    Args:
        policy, state, pulls, unasked: As above.
        selected: Whether the pulls were told as a `Selection`, so that all of them should have been open.

    Raises:
        NumericalError: If the posterior is not finite.

    Warns (`DiagnosticWarning`): If `selected`, and some pulls were not open.
    """
    gap, on_host = certificate(policy, state), pulls.host or pulls
    told = (on_host.counts if on_host.numbers is None else on_host.numbers).sum(dim=-1)  # in place of a call
    device, distinct, sums = pulls.counts.device, state.statistics.num_rows, cast(Any, state._buffers)
    size = state.process.dictionary_size if state.tabulated else torch.zeros_like(distinct)
    gained = 0.5 * sums["log_det"] if state.tabulated else torch.full_like(gap, torch.nan)
    if device.type == "cpu":
        if selected:
            _warn_of_closed(policy, told, unasked)
        width = policy.width(state).clone()
        return Report(sums["told"].clone(), told, distinct.clone(), size.clone(), width, gained, gap, unasked)
    here = (sums["told"], told.cpu(), distinct, size, policy.width_on_host(state).cpu(), gained.cpu(), gap, unasked.cpu())
    if selected:
        _warn_of_closed(policy, here[1], here[-1])
    return Report(*to_device(device, *here))


def _warn_of_closed(policy: Policy, told: Tensor, unasked: Tensor) -> None:
    """Warn if picks of a selection were not open; their numbers are `batch_shape`, on the host."""
    if policy.outcomes:
        # The outcomes share their picks. An outcome that is measured later may be told alone, as a further reward.
        told, unasked = told.amax(dim=-1), unasked.amin(dim=-1)
    closed, every = round(float(unasked.sum())), round(float(told.sum()))
    if closed:
        issue(
            [
                f"{closed:,} of the {count(every, 'pick')} of this selection {'is' if closed == 1 else 'are'} not open (told "
                "or forgotten before, or never asked for): rewards that were told before count again. If these are further "
                "evaluations, tell arm indices (selection.index) instead, or use observe()."
            ]
        )
