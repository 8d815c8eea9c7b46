"""The in-batch loop on a few leaders of every batch row, on the host: compiled where numba is installed, else in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchbandits.threads import shared
from torchbandits.transfers import to_host

# Smallest number of batch rows of a thread: the loop takes some ten microseconds for each pick of a row.
_ROWS_A_THREAD = 4
# No room for changes of the covariance.
_NO_DROPS = np.empty((0, 0, 0))


@dataclass(frozen=True)
class Ended:
    """Picks among the leaders, on the host.

    Attributes:
        picks: `rows x q`, positions among the leaders, −1 where padded.
        leverage: `rows x k`, of the leaders after the picks.
        n: `rows`, numbers of picks.
        spent: `rows`, of the budget.
        why: `rows`, reasons for the end (see `ties`).
        leaders: `rows x k`, the leaders.
    """

    picks: Tensor
    leverage: Tensor
    n: Tensor
    spent: Tensor
    why: Tensor
    leaders: Tensor


def pick_rows(
    *,
    leaders: Tensor,
    mean: Tensor,
    leverage: Tensor,
    covariance: Tensor,
    scale: Tensor,
    gain: Tensor,
    room: Tensor,
    outside: Tensor,
    first: Tensor,
    dynamic: bool,
    spent: Tensor,
    budget: Tensor,
    remaining: Tensor,
    most: int,
    drops: Tensor | None = None,
    used: Tensor | None = None,
) -> Ended:
    """Run the loop of `compiled.pick_leaders` on every batch row, or with `drops` that of `compiled.pick_among_many`.

    The loop always runs on the host. For arms on a device, its inputs (32 KB per batch row for 64 leaders) are copied in one
    transfer, which takes less time than the kernel launches of a single pick on the device.

    Args:
        leaders: `rows x k`, arm indices of the leaders.
        mean, scale, gain: `rows x k`, of the leaders.
        leverage: `rows x k`; overwritten if it is on the host.
        covariance: `rows x k x k`; overwritten if it is on the host.
        room: `rows x k`, integers, numbers of further picks allowed; overwritten if it is on the host.
        outside: `rows`, best score of the other arms.
        first: `rows`, position of the first pick; −1 where there is none.
        dynamic: Whether a pick spends log(1 + leverage) in place of its gain.
        spent, budget: `rows`, on the host.
        remaining: `rows`, integers, numbers of picks to make, on the host.
        most: Largest number of picks of a row.
        drops: `rows x n x k`, changes of the covariance by up to n picks, and `used`, `rows`, how many there are: both are
            overwritten, and the covariance is not.
        used: See `drops`.

    Cost: O(k²) per pick.
    """
    from torchbandits.arms.compiled import pick_of_rows  # noqa: PLC0415 - numba takes half a second to load

    *numbers, leaders = to_host(mean, leverage, covariance, scale, gain, room, outside, first, leaders)
    rows, total = mean.shape[0], spent.clone()
    picks, n, why = torch.full((rows, most), -1), torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.int64)
    given = [x.contiguous().numpy() for x in (*numbers, total, budget, remaining, picks, n, why)]
    if drops is None or used is None:
        given += [_NO_DROPS, n.numpy()]
        pick_of_rows(dynamic, *given)
    else:
        given += [drops.numpy(), used.numpy()]
        shared(lambda part: pick_of_rows(dynamic, *(x[part] for x in given)), rows, _ROWS_A_THREAD)
    return Ended(picks[:, : max(1, int(n.max()))], torch.from_numpy(given[1]), n, total, why, leaders)


def pack(index: Tensor) -> Tensor:
    """Move the masked places (−1) of each row to its end, keeping the order."""
    if bool((index >= 0).all()):
        return index
    order = (index < 0).byte().argsort(dim=-1, stable=True)
    packed = index.gather(-1, order)
    used = int((packed >= 0).sum(dim=-1).max()) if packed.numel() else 0
    return packed[..., :used]


def warm_up() -> None:
    """Compile the numba functions, if numba is installed, so that compilation is not part of the first timed run."""
    from torchbandits.linalg.compiled import compile_all  # noqa: PLC0415 - numba takes half a second to load

    compile_all()
    one, whole = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.int64)
    for drops in (None, one.unsqueeze(0)):
        pick_rows(
            leaders=whole.unsqueeze(0),
            mean=one,
            leverage=one.clone(),
            covariance=one.unsqueeze(0),
            scale=one,
            gain=one,
            room=whole.unsqueeze(0).clone(),
            outside=-one[0],
            first=-whole,
            dynamic=False,
            spent=one[0],
            budget=one[0],
            remaining=whole,
            most=1,
            drops=drops,
            used=None if drops is None else 0 * whole,
        )
