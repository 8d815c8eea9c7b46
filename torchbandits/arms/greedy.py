"""Picks of the largest posterior variance, each given the ones before: a pivoted Cholesky factorisation of the covariance."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.arms import graphs
from torchbandits.arms.sweeping import FullSweep
from torchbandits.arms.table import ArmTable
from torchbandits.arms.ties import TIE, best_arm
from torchbandits.kernels import Stationary
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
    shape = table.leverage.shape[:-1]
    q = min(int(room.max()), _MOST, max(1, _SIZE // table.leverage.numel()))
    made = torch.arange(q) < room.unsqueeze(-1)
    live = None if bool(made.all()) else made.to(table.leverage.device)
    parts = table.strategy.in_parts()
    if parts is None or (parts[2].shape[-2] + parts[1].shape[-1]) * table.leverage.numel() > _SIZE:
        picks = _one_by_one(table, preference, offered, pending, q, live)
    else:
        picks = _in_few_operations(table, parts, preference, offered, pending, q, live)
    index = torch.cat(picks, dim=-1) if picks else torch.empty(*shape, 0, dtype=torch.int64, device=table.leverage.device)
    return index, (room - q).clamp_min(0)


def _one_by_one(
    table: ArmTable, preference: Tensor, offered: Tensor, pending: tuple[Tensor, Tensor], q: int, live: Tensor | None
) -> list[Picks]:
    """`largest_variances` of any posterior: q picks, in the places of `live`, `batch_shape x q` (all if None)."""
    start = FullSweep(table, None, pending)
    leverage, used = start.leverage, start.directions.shape[-2]
    factor = leverage.new_empty(*leverage.shape[:-1], used + q, leverage.shape[-1])
    factor[..., :used, :] = start.directions
    scale, barred, picks = table.posterior.regularization**0.5, ~offered, []
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
    return picks


def _in_few_operations(
    table: ArmTable,
    parts: tuple[Stationary, Tensor, Tensor],
    preference: Tensor,
    offered: Tensor,
    pending: tuple[Tensor, Tensor],
    q: int,
    live: Tensor | None,
) -> list[Picks]:
    """`_one_by_one` for arms on a device. All that is read of a picked arm is in one block of memory, so that one operation
    gathers it: T and the rows of earlier picks, the square root of the leverage, and the point."""
    (form, arms, T), lam, leverage = parts, table.posterior.regularization, table.leverage
    shape, A, r, d = leverage.shape[:-1], leverage.shape[-1], T.shape[-2], arms.shape[-1]
    if pending[0].shape[-1]:
        start = FullSweep(table, None, pending)
        leverage, T, r = start.leverage, torch.cat([T, start.directions], dim=-2), r + start.directions.shape[-2]
    leverage, block = leverage.clone(), leverage.new_empty(*shape, r + q + 1 + d, A)
    block[..., r + q + 1 :, :] = arms.mT
    if r:
        block[..., :r, :] = T
    flat, root, one = block.reshape(-1, *block.shape[-2:]), block[..., r + q, :], leverage.new_ones(())
    # The same order as with `preference`, which falls with the index; all are positive.
    base = ((preference - 2 * preference[..., -1:]) * lam**-0.5).masked_fill(~offered, -torch.inf)

    def pick(rows: int, live: Tensor | None, out: Tensor | None) -> tuple[Tensor, Tensor]:
        """The next pick, `batch_shape x 1`, given the first rows of the block, and its own row."""
        score = base + torch.sqrt(leverage, out=root)
        # The rule of `best_arm` for positive scores.
        near = score >= score.amax(dim=-1, keepdim=True) * (1 - TIE)
        slot = near.view(torch.uint8).argmax(dim=-1, keepdim=True)
        own = block.gather(-1, slot.unsqueeze(-2).expand(*block.shape[:-1], 1))
        K = form.between_scaled(own[..., r + q + 1 :, :].mT, arms).reshape(-1, 1, A)
        before = own.reshape(-1, *own.shape[-2:])[:, :rows].mT
        column = torch.baddbmm(K, before, flat[:, :rows], beta=1 / lam, alpha=-1).reshape(*shape, A)
        drop = torch.div(column, torch.hypot(own[..., r + q, :], one), out=out)
        if live is not None:
            drop.mul_(live)
            slot = slot.masked_fill(~live, -1)
        leverage.addcmul_(drop, drop, value=-1).clamp_min_(0)
        return slot, drop

    if not (graphs.GRAPHS and block.device.type == "cuda"):
        return [
            pick(r + place, None if live is None else live[..., place : place + 1], block[..., r + place, :])[0]
            for place in range(q)
        ]
    # The rows of later picks are zero, so that every pick may read all rows, and is the same operations on the same memory.
    block[..., r : r + q, :] = 0
    picks, place = torch.full((*shape, q), -1, device=block.device), torch.zeros(1, dtype=torch.int64, device=block.device)

    def step() -> None:
        slot, drop = pick(r + q, None if live is None else live.index_select(-1, place), None)
        block.index_copy_(-2, place + r, drop.unsqueeze(-2))
        picks.index_copy_(-1, place, slot)
        place.add_(1)

    graphs.repeat(step, q, block.device)
    return [picks]
