"""Loops over small matrices and kept kernel columns, compiled where numba is installed.

One step of a sparse posterior on a few thousand arms takes forty operations on matrices of a few dozen rows, whose cost as
tensor operations is mostly overhead, and one product, a third of which is spent on copies. Here they are two compiled calls.
Every function of this file has a general form in PyTorch (`posteriors.factors`, `arms.columns`), which is used without numba,
on devices, for several batch rows, and whenever a pivot is not clearly above rounding. Tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray as Array

try:
    from numba import njit

    COMPILED = True
except ImportError:
    # numba is an optional dependency; the operations of PyTorch compute the same.
    COMPILED = False

    def njit(**_: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # type: ignore[no-redef]
        """Return the function unchanged."""
        return lambda function: function


# Allows a product and a sum to be fused; the order of sums stays as written.
_NUMBERS = {"contract", "nsz"}
# For sums that are vectorised: the order of summation depends on the machine, but is fixed on each machine.
_SUMS = {"contract", "nsz", "reassoc"}
# For numbers that are known to be finite.
_FINITE = _SUMS | {"nnan", "ninf"}
_EPS = float(np.finfo(np.float64).eps)
# Arms per chunk, so that the eight lines of a tile stay in the first-level cache.
_COLUMNS = 384


@njit(cache=True, fastmath=_NUMBERS, error_model="numpy")
def sweep_kept(
    N: Array,
    a: Array,
    lower: bool,
    block: Array,
    slots: Array,
    prior: Array,
    leverage: Array,
    channels: Array,
) -> None:  # pragma: no cover - compiled
    """Compute means and leverages of every arm from kept kernel columns, in one pass that stores no product.

    channels = aᵀK and leverage = prior − Σ_i (NᵀK)_i², where K are the lines `slots` of `block`. Products are computed in tiles
    of four rows by four columns, so that each number that is read is used four times and each sum is stored once per four
    products; the rows of aᵀ fill up tiles of Nᵀ. Nothing is copied out of the block.

    Args:
        N: `m x m`, triangular; the other triangle holds zeros.
        a: `m x c`.
        lower: Whether Nᵀ is lower triangular; otherwise it is upper triangular.
        block: `s x A`, one line per slot.
        slots: `m`, lines of the block.
        prior: `A`, k(x, x) / λ.
        leverage: `A`, overwritten; clamped to at least 0.
        channels: `c x A`, overwritten.

    Cost: (m² / 2 + c m) A products.
    """
    m, A, c = slots.shape[0], block.shape[1], channels.shape[0]
    # Zeros complete the last tile.
    rows = (m + c + 3) // 4 * 4
    W = np.zeros((m, rows))
    W[:, :m] = N
    W[:, m : m + c] = a
    # The lines are no power of two apart, because addresses with equal low bits would wait for each other.
    sums = np.empty((4, _COLUMNS + 16))
    s0, s1, s2, s3 = sums[0], sums[1], sums[2], sums[3]
    for start in range(0, A, _COLUMNS):
        n = min(_COLUMNS, A - start)
        stop = start + n
        for j in range(n):
            leverage[start + j] = prior[start + j]
        for r in range(0, rows, 4):
            for j in range(n):
                s0[j], s1[j], s2[j], s3[j] = 0.0, 0.0, 0.0, 0.0
            # Whether the tile is part of the triangle.
            inside = r + 4 <= m
            k, end = r if inside and not lower else 0, r + 4 if inside and lower else m
            while k + 4 <= end:
                k0, k1 = block[slots[k], start:stop], block[slots[k + 1], start:stop]
                k2, k3 = block[slots[k + 2], start:stop], block[slots[k + 3], start:stop]
                w00, w01, w02, w03 = W[k, r], W[k + 1, r], W[k + 2, r], W[k + 3, r]
                w10, w11, w12, w13 = W[k, r + 1], W[k + 1, r + 1], W[k + 2, r + 1], W[k + 3, r + 1]
                w20, w21, w22, w23 = W[k, r + 2], W[k + 1, r + 2], W[k + 2, r + 2], W[k + 3, r + 2]
                w30, w31, w32, w33 = W[k, r + 3], W[k + 1, r + 3], W[k + 2, r + 3], W[k + 3, r + 3]
                for j in range(n):
                    x0, x1, x2, x3 = k0[j], k1[j], k2[j], k3[j]
                    s0[j] += w00 * x0 + w01 * x1 + w02 * x2 + w03 * x3
                    s1[j] += w10 * x0 + w11 * x1 + w12 * x2 + w13 * x3
                    s2[j] += w20 * x0 + w21 * x1 + w22 * x2 + w23 * x3
                    s3[j] += w30 * x0 + w31 * x1 + w32 * x2 + w33 * x3
                k += 4
            while k < end:
                k0 = block[slots[k], start:stop]
                w00, w10, w20, w30 = W[k, r], W[k, r + 1], W[k, r + 2], W[k, r + 3]
                for j in range(n):
                    x0 = k0[j]
                    s0[j] += w00 * x0
                    s1[j] += w10 * x0
                    s2[j] += w20 * x0
                    s3[j] += w30 * x0
                k += 1
            if inside:
                for j in range(n):
                    leverage[start + j] -= s0[j] * s0[j] + s1[j] * s1[j] + s2[j] * s2[j] + s3[j] * s3[j]
                continue
            for i in range(r, min(r + 4, m + c)):
                line = sums[i - r]
                if i >= m:
                    channels[i - m, start:stop] = line[:n]
                    continue
                for j in range(n):
                    leverage[start + j] -= line[j] * line[j]
        for j in range(start, stop):
            if leverage[j] < 0.0:
                leverage[j] = 0.0


@njit(cache=True, fastmath=_FINITE, error_model="numpy")
def _largest(x: Array) -> float:  # pragma: no cover - compiled
    largest = x[0]
    for i in range(1, x.shape[0]):
        if x[i] > largest:
            largest = x[i]
    return largest


@njit(cache=True, fastmath=_FINITE, error_model="numpy")
def _largest_lower(mean: Array, upper: Array) -> float:  # pragma: no cover - compiled
    largest = 2.0 * mean[0] - upper[0]
    for i in range(1, mean.shape[0]):
        lower = 2.0 * mean[i] - upper[i]
        if lower > largest:
            largest = lower
    return largest


@njit(cache=True, fastmath=_SUMS, error_model="numpy")
def _sum(x: Array, y: Array) -> float:  # pragma: no cover - compiled
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i] + y[i]
    return total


@njit(cache=True, fastmath=_NUMBERS, error_model="numpy")
def upper_bounds(
    mean: Array, leverage: Array, regularization: float, width: float, tie: float, upper: Array, largest: Array
) -> int:  # pragma: no cover - compiled
    """Compute the upper confidence bound mean + width √(λ leverage) of every arm, and find the best arm.

    Args:
        mean, leverage: `A`.
        regularization: λ.
        width: Confidence width.
        tie: Relative distance from the largest bound within which the first arm is the best.
        upper: `A`, overwritten by the bounds.
        largest: 2, overwritten by the largest upper and the largest lower bound.

    Returns:
        The best arm; −1 if a bound, or their sum, is not finite. The largest bounds are then meaningless.

    Cost: O(A).
    """
    A = mean.shape[0]
    for j in range(A):
        upper[j] = mean[j] + width * math.sqrt(regularization * leverage[j])
    if not math.isfinite(_sum(mean, upper)):
        return -1
    largest[0], largest[1] = _largest(upper), _largest_lower(mean, upper)
    least = largest[0] - tie * abs(largest[0])
    for j in range(A):
        if upper[j] >= least:
            return j
    return -1


@njit(cache=True)
def read_kept(block: Array, slots: Array, arms: Array) -> Array:  # pragma: no cover - compiled
    """Read kept kernel columns at some arms: `block[slots][:, max(arms, 0)]`, `m x p`."""
    out = np.empty((slots.shape[0], arms.shape[0]))
    for i in range(slots.shape[0]):
        line = block[slots[i]]
        for j in range(arms.shape[0]):
            out[i, j] = line[max(arms[j], 0)]
    return out


@njit(cache=True, fastmath=_SUMS, error_model="numpy")
def _dot(x: Array, y: Array) -> float:  # pragma: no cover - compiled
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i] * y[i]
    return total


@njit(cache=True, fastmath=_NUMBERS, error_model="numpy")
def _upper_factor(U: Array, least: float) -> bool:  # pragma: no cover - compiled
    """Overwrite the upper triangle of A with U where A = UᵀU; return False if a squared pivot is not above `least`."""
    m = U.shape[0]
    for j in range(m):
        if not U[j, j] > least:
            return False
        pivot = math.sqrt(U[j, j])
        U[j, j] = pivot
        for k in range(j + 1, m):
            U[j, k] /= pivot
        for k in range(j + 1, m):
            scale = U[j, k]
            for i in range(k, m):
                U[k, i] -= scale * U[j, i]
    return True


@njit(cache=True, fastmath=_NUMBERS, error_model="numpy")
def _solve_upper(U: Array, B: Array, triangular: bool) -> None:  # pragma: no cover - compiled
    """Overwrite B with U⁻¹ B. An upper triangular B stays upper triangular, and its zeros are skipped."""
    m, n = B.shape
    for i in range(m - 1, -1, -1):
        for k in range(i + 1, m):
            scale = U[i, k]
            for j in range(k if triangular else 0, n):
                B[i, j] -= scale * B[k, j]
        pivot = U[i, i]
        for j in range(i if triangular else 0, n):
            B[i, j] /= pivot


@njit(cache=True, fastmath=_NUMBERS, error_model="numpy")
def _solve_lower(U: Array, B: Array) -> None:  # pragma: no cover - compiled
    """Overwrite B with U⁻ᵀ B."""
    m, n = B.shape
    for i in range(m):
        for k in range(i):
            scale = U[k, i]
            for j in range(n):
                B[i, j] -= scale * B[k, j]
        pivot = U[i, i]
        for j in range(n):
            B[i, j] /= pivot


@njit(cache=True, fastmath=_NUMBERS, error_model="numpy")
def factorise(
    K: Array, own: Array, weights: Array, targets: Array, regularization: float, floor: float, uneven: float
) -> tuple[bool, float, Array, Array, Array, Array, Array, Array, Array, Array, Array]:
    """Compute all factors of a small sparse posterior, without the overhead of forty small tensor operations.

    With K_S = UᵀU, Z = U⁻ᵀK, V = Z diag(n) Zᵀ + λI = WᵀW:  w = V⁻¹Zs, J = W⁻¹ (so that V⁻¹ = J Jᵀ), a = U⁻¹w, and
    N = U⁻¹W⁻¹C with C Cᵀ = W Wᵀ/λ − I, so that N Nᵀ = U⁻¹(I/λ − V⁻¹)U⁻ᵀ (see `linalg.shrinkage_root`). C is chosen upper
    triangular, hence so is N, which saves the orthogonal factorisation of the general form.

    Args:
        K: `m x u`, kernel between the dictionary and the points.
        own: `m`, positions of the dictionary among the points.
        weights: `u`, n.
        targets: `u x c`, s.
        regularization: λ.
        floor: Squared pivots of K_S up to this value count as rounding, as do those up to max(64, m) eps times its largest
            entry.
        uneven: Ratio of the weights above which V would have to be graded (see `Graded`).

    Returns:
        Whether all pivots were good and the weights even (if not, the other values are meaningless), log det V, U, Z, V, W, J,
        the moment Zs, w, N and a.

    Cost: u m² + m³ products.
    """
    m, u = K.shape
    c = targets.shape[1]
    U, Z, V = np.zeros((m, m)), K.copy(), np.zeros((m, m))
    J, C, moment = np.zeros((m, m)), np.zeros((m, m)), np.zeros((m, c))
    low, high = np.inf, 0.0
    for j in range(u):
        if weights[j] > 0.0:
            low, high = min(low, weights[j]), max(high, weights[j])
    if high > uneven * low:
        return False, 0.0, U, Z, V, J, J, moment, moment, C, moment
    largest = 0.0
    for i in range(m):
        largest = max(largest, K[i, own[i]])
    least = max(floor, max(64, m) * _EPS * largest)
    for i in range(m):
        for j in range(i, m):
            U[i, j] = K[i, own[j]]
    if not _upper_factor(U, least):
        return False, 0.0, U, Z, V, J, J, moment, moment, C, moment
    _solve_lower(U, Z)
    scaled = np.empty(u)
    for i in range(m):
        for j in range(u):
            scaled[j] = Z[i, j] * weights[j]
        for j in range(i, m):
            V[i, j] = _dot(scaled, Z[j])
            V[j, i] = V[i, j]
        V[i, i] += regularization
        for q in range(c):
            total = 0.0
            for j in range(u):
                total += Z[i, j] * targets[j, q]
            moment[i, q] = total
    W, w = V.copy(), moment.copy()
    if not _upper_factor(W, 0.0):
        return False, 0.0, U, Z, V, J, J, moment, moment, C, moment
    _solve_lower(W, w)
    _solve_upper(W, w, False)
    # Compute C column by column from the last, because C is upper triangular with C Cᵀ = W Wᵀ/λ − I.
    for j in range(m - 1, -1, -1):
        pivot = _dot(W[j, j:], W[j, j:]) / regularization - 1.0 - _dot(C[j, j + 1 :], C[j, j + 1 :])
        if not pivot > 0.0:
            return False, 0.0, U, Z, V, J, J, moment, moment, C, moment
        pivot = math.sqrt(pivot)
        C[j, j] = pivot
        for i in range(j):
            C[i, j] = (_dot(W[i, j:], W[j, j:]) / regularization - _dot(C[i, j + 1 :], C[j, j + 1 :])) / pivot
    _solve_upper(W, C, True)
    _solve_upper(U, C, True)
    a = w.copy()
    _solve_upper(U, a, False)
    log_det = 0.0
    for i in range(m):
        log_det += 2.0 * math.log(W[i, i])
    for i in range(m):
        J[i, i] = 1.0
        for j in range(i):
            W[i, j] = 0.0
    _solve_upper(W, J, True)
    return True, log_det, U, Z, V, W, J, moment, w, C, a


def compile_all() -> None:
    """Compile every function of this file for the arrays that it is given, or read it from numba's cache."""
    if not COMPILED:
        return
    one, line, first = np.ones((1, 1)), np.ones(1), np.zeros(1, dtype=np.int64)
    # The targets may be a column of a larger array, for which numba compiles a second version.
    factorise(np.ones((1, 2)), first, np.ones(2), np.ones((2, 2))[:, :1], 1.0, 0.0, np.inf)
    _, _, *_, N, a = factorise(one, first, line, one, 1.0, 0.0, np.inf)
    sweep_kept(N, a, True, one, first, line, np.empty(1), np.empty((1, 1)))
    upper_bounds(line, line, 1.0, 1.0, 0.0, np.empty(1), np.empty(2))
    read_kept(one, first, first)
