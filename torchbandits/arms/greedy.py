"""Picks of the largest posterior variance, each given the ones before: a pivoted Cholesky factorisation of the covariance."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.arms.sweeping import FullSweep
from torchbandits.arms.table import ArmTable
from torchbandits.arms.ties import best_arm
from torchbandits.types import Picks

# Maximum number of picks in one call, and maximum number of values that the factor may hold.
_MOST, _SIZE = 256, 1 << 25


def largest_variances(
    table: ArmTable, preference: Tensor, offered: Tensor, pending: tuple[Tensor, Tensor], room: Tensor
) -> tuple[Picks, Tensor]:
    """The picks of a lookahead by the standard deviation alone, without its leaders: where most arms are equally uncertain, new
    leaders would be needed after every pick or two, while one pass over the arms is enough for a pick.

    Args:
        table: The arms; not modified. Its posterior is exact.
        preference: `batch_shape x A`, added to the standard deviations.
        offered: `batch_shape x A` booleans, at least one arm in each row with room.
        pending: `batch_shape x p` pending arms (−1 where padded), with their counts.
        room: `batch_shape`, numbers of picks to make, on the host.

    Returns:
        Picks `batch_shape x q`, −1 where padded, and the room that is left, which is nothing up to 256 picks.

    Cost: O(A (u + n)) for the n-th pick given u distinct points, and no waiting for a device.
    """
    shape, A = table.leverage.shape[:-1], table.leverage.shape[-1]
    q = min(int(room.max()), _MOST, max(1, _SIZE // table.leverage.numel()))
    start = FullSweep(table, None, pending)
    leverage, used = start.leverage, start.directions.shape[-2]
    factor = leverage.new_empty(*shape, used + q, A)
    factor[..., :used, :] = start.directions
    scale, barred, picks = table.posterior.regularization**0.5, ~offered, []
    made = torch.arange(q) < room.unsqueeze(-1)
    live = None if bool(made.all()) else made.to(leverage.device)
    for place in range(q):
        score = (preference + scale * leverage.sqrt()).masked_fill(barred, -torch.inf)
        slot = best_arm(score).unsqueeze(-1)
        rows = factor[..., : used + place, :]
        before = rows.gather(-1, slot.unsqueeze(-2).expand(*rows.shape[:-1], 1)).mT
        column = (table.columns_between(slot)[1] - before @ rows).squeeze(-2)
        drop = column * (1 + column.gather(-1, slot).clamp_min(0)).rsqrt()
        if live is not None:
            drop = drop * live[..., place : place + 1]
            slot = slot.masked_fill(~live[..., place : place + 1], -1)
        factor[..., used + place, :] = drop
        leverage = torch.addcmul(leverage, drop, drop, value=-1).clamp_min_(0)
        picks.append(slot)
    index = torch.cat(picks, dim=-1) if picks else torch.empty(*shape, 0, dtype=torch.int64, device=leverage.device)
    return index, (room - q).clamp_min(0)
