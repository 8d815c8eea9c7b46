"""Batches under constraints: the search for picks that meet them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchbandits.constraints import (
    Constraint,
    Distinct,
    Total,
    allowed_by,
    check_possible,
    frequencies,
    given_up,
    values_of_sums,
)
from torchbandits.journal import NoArmLeft, Recorder
from torchbandits.types import Picks, Selection


def _same(values: Tensor) -> Tensor:
    return values


def fill_within(
    recorder: Recorder,
    count: int,
    constraints: Sequence[Constraint],
    free: Tensor,
    first: Tensor | None,
    *,
    outward: Callable[[Picks], Picks] = _same,
    inward: Callable[[Tensor], Tensor] = _same,
    repeated: Callable[[Tensor], Tensor] = _same,
) -> Selection:
    """Open exactly `count` additional picks per row, under constraints on all open picks.

    Args:
        recorder: Makes the picks.
        count: Number of additional picks of each row.
        constraints: The constraints, on the arms to which `outward` maps.
        free: `batch_shape x A` booleans, arms on offer.
        first: The lowest index of an arm equal to each arm, `A` or `batch_shape x A`; None if all arms differ.
        outward: Function from the picks of the loop to arm indices, −1 for picks that the constraints ignore.
        inward: Function from booleans of arms to the arms of the loop, False for arms that may not be picked.
        repeated: Function from numbers of arms to numbers of the arms of the loop.

    Returns:
        A copy of the new picks.

    Raises:
        ArgumentError: If no batch was found that meets the constraints. Nothing has changed then.
    """
    loop = recorder.loop
    once = any(isinstance(constraint, Distinct) for constraint in constraints)
    before = torch.zeros(*loop.batch_shape, 0, dtype=torch.int64, device=loop.device)
    if loop.open is not None:
        before = outward(loop.open.index.masked_fill(~loop.open.mask, -1))
    whole = count + before.shape[-1]
    constraints = tuple(constraint.for_batch(whole) for constraint in constraints)
    for constraint in constraints:
        if isinstance(constraint, Total):
            check_possible(constraint, before, free, count, once=once, first=first)

    left_out = torch.zeros_like(free)

    def allowed(picks: Picks, left_out: Tensor) -> Tensor:
        room = whole - picks.shape[-1] if once else 1
        return allowed_by(constraints, picks, free, free & ~left_out, room, first)

    def pickable(picks: Tensor) -> Tensor:
        return inward(allowed(outward(picks), left_out))

    # Which of equal arms is picked: the cheapest one, and in the last attempt the one whose label the fewest arms have.
    values, rarest = values_of_sums(constraints, free), [] if first is None else frequencies(constraints, free)
    dead_end: NoArmLeft | None = None
    while True:
        try:
            return recorder.fill(count, pickable, [repeated(value) for value in values])
        except NoArmLeft as error:
            dead_end = dead_end or error
            further = given_up(constraints, before, outward(error.picks), free, free & ~left_out, first)
            further &= error.stuck.unsqueeze(-1)
            # Each attempt excludes more arms in every stuck row, so that the number of attempts is finite.
            if bool((further & ~left_out).any(dim=-1)[error.stuck].all()):
                left_out |= further
            elif rarest:
                values, rarest, left_out = values + rarest, [], torch.zeros_like(free)
            else:
                break
    found = _completed(constraints, before, outward(dead_end.picks), whole, free, allowed)
    if found is None:
        limited = any(isinstance(constraint, Total) for constraint in constraints)
        raise NoArmLeft(dead_end.picks, dead_end.stuck, count, limited)
    index = torch.stack([_place(inward, row, free) for row in found.unbind(-1)], dim=-1)
    return recorder.plan(index, index >= 0)


def _completed(
    constraints: Sequence[Constraint],
    before: Picks,
    begun: Picks,
    whole: int,
    free: Tensor,
    allowed: Callable[[Picks, Tensor], Tensor],
) -> Picks | None:
    """Picks `batch_shape x count` that meet the constraints with the open ones: as many of those that were begun as can be
    completed by the arms of the smallest values, or half as many, and so on; None if no such batch was found, or no constraint
    limits a sum.

    Args:
        constraints: The constraints.
        before: The open picks.
        begun: Picks that follow them, and that could not be completed.
        whole: Number of picks of each row, open ones included.
        free: `batch_shape x A` booleans, arms on offer.
        allowed: Function from picks, and a mask of arms to leave out, to the mask of the arms that may follow.
    """
    limits = [constraint.at_most for constraint in constraints if isinstance(constraint, Total)]
    if not limits:
        return None
    # Of several sums each counts in units of its limit.
    value = torch.zeros(free.shape[-1], dtype=torch.float64, device=free.device)
    for limit, own in zip(limits, values_of_sums(constraints, free), strict=True):
        value = value + own / (limit if limit > 0 else 1.0)
    kept = begun.shape[-1]
    while True:
        start = torch.cat([before, begun[..., :kept]], dim=-1)
        found = _with_cheapest(constraints, start, whole, value, free, allowed)
        if found is not None:
            return found[..., before.shape[-1] :]
        if not kept:
            return None
        kept //= 2


def _with_cheapest(
    constraints: Sequence[Constraint],
    start: Picks,
    whole: int,
    value: Tensor,
    free: Tensor,
    allowed: Callable[[Picks, Tensor], Tensor],
) -> Picks | None:
    """Picks, each row filled up by allowed arms of the smallest values, `A`; None if that ends before all rows are full, with
    whichever value of a `Same` or `Groups`. The other arguments are those of `_completed`."""
    left_out = torch.zeros_like(free)
    while True:
        picks, stuck = start, torch.zeros(free.shape[:-1], dtype=torch.bool, device=free.device)
        while picks.shape[-1] < whole and not bool(stuck.any()):
            left = allowed(picks, left_out)
            stuck = ~left.any(dim=-1)
            cheapest = torch.where(left, value, torch.inf).argmin(dim=-1, keepdim=True)
            picks = torch.cat([picks, cheapest], dim=-1)
        if not bool(stuck.any()):
            return picks
        # Another value than that of the cheapest arm. The last pick was not allowed.
        made = picks[..., start.shape[-1] : -1]
        further = torch.zeros_like(free)
        for constraint in constraints:
            if not isinstance(constraint, Total):
                further |= constraint.instead(made, free)
        further &= stuck.unsqueeze(-1) & ~left_out
        if not made.shape[-1] or not bool(further.any(dim=-1)[stuck].all()):
            return None
        left_out |= further


def _place(inward: Callable[[Tensor], Tensor], arm: Tensor, free: Tensor) -> Tensor:
    """The arm of the loop that stands for an arm of each row, `batch_shape`."""
    return inward(torch.zeros_like(free).scatter_(-1, arm.unsqueeze(-1), True)).byte().argmax(dim=-1)
