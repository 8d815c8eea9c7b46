"""The in-batch loop, compiled where numba is installed. It is a separate module because importing numba takes
half a second."""

from __future__ import annotations

import math

import numpy as np

from torchbandits.arms.ties import BROKEN, EXHAUSTED, FULL, REFRESH, TIE
from torchbandits.linalg.compiled import njit


@njit(cache=True)
def _downdate_compiled(covariance: np.ndarray, column: np.ndarray, shrink: float) -> None:  # pragma: no cover - compiled
    for i in range(column.shape[0]):
        scaled = column[i] * shrink
        for j in range(column.shape[0]):
            covariance[i, j] -= scaled * column[j]


def _downdate_numpy(covariance: np.ndarray, column: np.ndarray, shrink: float) -> None:
    covariance -= np.outer(column * shrink, column)


# Subtract (shrink · column) columnᵀ from the covariance. Both versions form the same products in the same order, so their
# results are equal to the last bit.
downdate = _downdate_compiled if hasattr(_downdate_compiled, "py_func") else _downdate_numpy


@njit(cache=True)
def _best_leader(
    mean: np.ndarray, leverage: np.ndarray, scale: np.ndarray, outside: float, room: np.ndarray
) -> int:  # pragma: no cover - measured through its callers when compiled
    """The first of the best leaders, or −1 if another arm may be better."""
    score = mean + scale * np.sqrt(np.maximum(leverage, 0.0))
    score = np.where(room > 0, score, -np.inf)
    best = score.max()
    band = best - TIE * abs(best)
    if not band > outside or best == -np.inf:
        return -1
    return int(np.argmax(score >= band))


@njit(cache=True)
def pick_leaders(
    mean: np.ndarray,
    leverage: np.ndarray,
    covariance: np.ndarray,
    scale: np.ndarray,
    gain: np.ndarray,
    dynamic: bool,
    spent: float,
    budget: float,
    outside: float,
    remaining: int,
    room: np.ndarray,
    first: int,
    picks: np.ndarray,
) -> tuple[int, float, int]:  # pragma: no cover - measured through its callers when compiled
    """Pick among k leaders until another arm may be better, the batch rule ends the batch, or the batch is full.

    `mean`, `scale`, `leverage`, `gain`, `room` have k entries, `covariance` is k x k; leverage, covariance and room are updated
    in place. A pick spends `gain[j]`, or log(1 + leverage) if `dynamic`. Returns the number of picks written to `picks`, the
    total spent, and the reason for stopping (see `ties`). The scores are mean + scale √leverage.
    """
    n = 0
    while n < remaining:
        j = first if first >= 0 else _best_leader(mean, leverage, scale, outside, room)
        if j < 0:
            return n, spent, REFRESH
        first = -1
        picks[n] = j
        n += 1
        room[j] -= 1
        before = leverage[j]
        spent += math.log1p(max(before, 0.0)) if dynamic else gain[j]
        # A pick of arm j changes leverages by −c²/(1 + c_j) and covariances by −ccᵀ/(1 + c_j), where c is column j.
        column = covariance[j].copy()
        shrink = 1.0 / (1.0 + column[j])
        leverage -= column * column * shrink
        downdate(covariance, column, shrink)
        if before <= 0.0:
            return n, spent, EXHAUSTED
        if spent > budget:
            return n, spent, BROKEN
    return n, spent, FULL


@njit(cache=True)
def pick_among_many(
    mean: np.ndarray,
    leverage: np.ndarray,
    covariance: np.ndarray,
    scale: np.ndarray,
    gain: np.ndarray,
    dynamic: bool,
    spent: float,
    budget: float,
    outside: float,
    remaining: int,
    room: np.ndarray,
    first: int,
    picks: np.ndarray,
    drops: np.ndarray,
    used: int,
) -> tuple[int, float, int]:  # pragma: no cover - measured through its callers when compiled
    """`pick_leaders` for many leaders and few picks: the covariance stays, and `used` rows of `drops`, one for each earlier
    pick, are subtracted from the column of a pick when it is made. O(k n) for the n-th pick, in place of O(k²). Where `drops`
    are full the reason for stopping is REFRESH."""
    n = 0
    while n < remaining:
        if used + n == drops.shape[0]:
            return n, spent, REFRESH
        j = first if first >= 0 else _best_leader(mean, leverage, scale, outside, room)
        if j < 0:
            return n, spent, REFRESH
        first = -1
        picks[n] = j
        room[j] -= 1
        before = leverage[j]
        spent += math.log1p(max(before, 0.0)) if dynamic else gain[j]
        column = covariance[j].copy()
        for row in range(used + n):
            column -= drops[row] * drops[row, j]
        drop = drops[used + n]
        drop[:] = column / math.sqrt(1.0 + column[j])
        leverage -= drop * drop
        n += 1
        if before <= 0.0:
            return n, spent, EXHAUSTED
        if spent > budget:
            return n, spent, BROKEN
    return n, spent, FULL


@njit(cache=True, nogil=True)
def pick_of_rows(
    dynamic: bool,
    mean: np.ndarray,
    leverage: np.ndarray,
    covariance: np.ndarray,
    scale: np.ndarray,
    gain: np.ndarray,
    room: np.ndarray,
    outside: np.ndarray,
    first: np.ndarray,
    spent: np.ndarray,
    budget: np.ndarray,
    remaining: np.ndarray,
    picks: np.ndarray,
    n: np.ndarray,
    why: np.ndarray,
    drops: np.ndarray,
    used: np.ndarray,
) -> None:  # pragma: no cover - measured through its callers when compiled
    """`pick_among_many` for every batch row, or `pick_leaders` if `drops` is empty and `used` is not read. All arguments but
    `dynamic` have a row for each; `spent`, the numbers `n` of picks and the reasons `why` for stopping are overwritten."""
    for row in range(mean.shape[0]):
        own = mean[row], leverage[row], covariance[row], scale[row], gain[row]
        limits = spent[row], budget[row], outside[row], remaining[row]
        if drops.size:
            n[row], spent[row], why[row] = pick_among_many(
                *own, dynamic, *limits, room[row], first[row], picks[row], drops[row], used[row]
            )
            used[row] += n[row]
        else:
            n[row], spent[row], why[row] = pick_leaders(*own, dynamic, *limits, room[row], first[row], picks[row])
