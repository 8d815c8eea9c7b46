"""Dense float64 oracles for several outcomes: scores, fronts and sets, as loops over arms, without code of the package."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import oracles
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]


@dataclass
class Beliefs:
    """Mean and standard deviation of k outcomes on A arms, `k x A`, given the rewards told, and the standard deviation given
    also the pending picks."""

    mean: Array
    known: Array
    std: Array
    covariance: Array  # k x A x A, given the rewards told

    @staticmethod
    def of(kernels, arms: Array, told: list[list[tuple[int, float, float]]], pending: list[int], noise: list[float]) -> Beliefs:
        """Beliefs given `told[j]`, a list of `(arm, reward, noise variance)` for outcome j; pending picks have noise variance
        `noise[j]`."""
        mean, known, std, covariance = [], [], [], []
        for kernel, rows, own in zip(kernels, told, noise, strict=True):
            K = kernel(arms, arms)
            index = [arm for arm, _, _ in rows]
            v, y = np.array([v for _, _, v in rows]), np.array([y for _, y, _ in rows])
            after, m = conditioned(K, index, v, y)
            mean.append(m)
            known.append(np.sqrt(np.maximum(after.diagonal(), 0)))
            covariance.append(after)
            waiting, _ = conditioned(K, index + pending, np.concatenate([v, np.full(len(pending), own)]), None)
            std.append(np.sqrt(np.maximum(waiting.diagonal(), 0)))
        return Beliefs(np.array(mean), np.array(known), np.array(std), np.array(covariance))


def conditioned(K: Array, index: list[int], variances: Array, y: Array | None) -> tuple[Array, Array]:
    """Covariance and mean on the arms after rewards with these noise variances at these arms."""
    if not index:
        return K.copy(), np.zeros(len(K))
    noisy = K[np.ix_(index, index)] + np.diag(variances)
    gain = np.linalg.solve(noisy, K[index]).T
    return K - gain @ K[index], np.zeros(len(K)) if y is None else gain @ y


def entries(arms: Array) -> Array:
    return np.arange(len(arms)) == oracles.first_copies(arms)


# ------------------------------------------------------------------ constrained


def violation(values: Array, limits: list[tuple[int, float, float]], unit: Array) -> float:
    """Violation of one arm: the sum of max(0, sign · value − sign · y), in units, over limits (outcome, sign, value)."""
    return sum(max(0.0, sign * value - values[j]) / unit[j] for j, sign, value in limits)


def constrained_score(hope, objective: int, limits, unit: Array, open_: Array, keeps=None) -> Array:
    """Score under limits. `hope(arm, outcome, sign)` is the largest plausible value of sign · y; `keeps` returns the value that
    is compared with the limits."""
    keeps = keeps or hope
    A = len(open_)
    lacking = np.zeros(A)
    for arm in range(A):
        lacking[arm] = sum(max(0.0, sign * h - keeps(arm, j, sign)) / unit[j] for j, sign, h in limits)
    feasible = [arm for arm in range(A) if open_[arm] and lacking[arm] == 0]
    score = np.full(A, -np.inf)
    for arm in range(A):
        if open_[arm] and (not feasible or arm in feasible):
            score[arm] = hope(arm, objective, 1.0) if feasible else -lacking[arm]
    return score


def scale(means: Array, seen, reach) -> tuple[Array, Array]:
    """Reference point and units of objectives `m x A`, where larger values are better. They are computed from the front of some
    arms; in objectives where the front has no range, from all of these arms; and where these have no range, from all arms."""
    points = [means[:, a] for a in (seen or range(means.shape[1]))]
    front = [p for p in points if not any((q >= p).all() and (q > p).any() for q in points)]
    low, unit = np.zeros(len(means)), np.zeros(len(means))
    for j in range(len(means)):
        high, low[j] = max(p[j] for p in front), min(p[j] for p in front)
        if high - low[j] <= 1e-6 * reach[j]:
            low[j] = min(p[j] for p in points)
        if high - low[j] <= 1e-6 * reach[j]:
            low[j] = means[j].min()
        unit[j] = high - low[j] if high - low[j] > 1e-6 * reach[j] else reach[j]
    return low - 0.1 * unit, unit


def unsettled(score: Array, settled: set[int]) -> Array:
    """Scores without settled arms, unless no other arm is on offer."""
    left = score.copy()
    left[sorted(settled)] = -np.inf
    return left if (left > -np.inf).any() else score


def log_feasible(mean: Array, std: Array, limits) -> Array:
    total = np.zeros(mean.shape[1])
    for j, sign, h in limits:
        total += stats.norm.logcdf(sign * (mean[j] - h) / std[j])
    return total


def constrained_improvement(beliefs: Beliefs, objective: int, limits, certainty: float, open_: Array) -> Array:
    chance = log_feasible(beliefs.mean, beliefs.std, limits)
    sure = log_feasible(beliefs.mean, beliefs.known, limits) >= np.log(certainty)
    if sure.any():
        best = beliefs.mean[objective][sure].max()
        sigma = beliefs.std[objective]
        z = (beliefs.mean[objective] - best) / sigma
        chance = chance + np.log(sigma * (stats.norm.pdf(z) + z * stats.norm.cdf(z)))
    return np.where(open_, chance, -np.inf)


# ------------------------------------------------------------------ fronts


def dominates(one: Array, other: Array) -> bool:
    return bool((one >= other).all() and (one > other).any())


def non_dominated(values: Array, counted: Array) -> list[int]:
    """The rows of `A x k` that no other row dominates, where larger values are better."""
    own = np.flatnonzero(counted)
    return [int(i) for i in own if not any(dominates(values[j], values[i]) for j in own)]


def membership(mean: Array, covariance: Array, signs: Array, counted: Array, draws: int, seed: int) -> Array:
    """For each arm, the fraction of joint draws in which no counted arm dominates it."""
    rng = np.random.default_rng(seed)
    own = np.flatnonzero(counted)
    f = np.stack(
        [
            sign * rng.multivariate_normal(m[own], C[np.ix_(own, own)], size=draws, method="eigh")
            for sign, m, C in zip(signs, mean, covariance, strict=True)
        ],
        axis=-1,
    )
    hits = np.zeros(len(counted))
    for draw in f:
        ge = (draw[:, None] >= draw[None]).all(-1)
        np.fill_diagonal(ge, False)
        hits[own[~ge.any(axis=0)]] += 1
    return hits / draws


def area(values: Array, reference: Array) -> float:
    """The area that points `n x 2` dominate above a reference point, as a sum of rectangles."""
    total, height = 0.0, reference[1]
    for x, y in sorted(values.tolist(), reverse=True):
        if x > reference[0] and y > height:
            total += (x - reference[0]) * (y - height)
            height = y
    return total


def expected_growth(mean: Array, std: Array, front: Array, reference: Array) -> Array:
    """Expected growth of the hypervolume of a front `f x m` by one point of each arm, `m x A`: the sum, over all boxes of the
    grid that the coordinates of the front define, of the expected part of the box that the point would add."""
    corners = np.vstack([np.maximum(front, reference), reference])
    axes = [np.append(np.unique(column), np.inf) for column in corners.T]
    total = np.zeros(mean.shape[1])
    for box in itertools.product(*(range(len(axis) - 1) for axis in axes)):
        low, high = (np.array([axis[place + up] for axis, place in zip(axes, box, strict=True)]) for up in (0, 1))
        if not any((point >= high).all() for point in front):
            part = np.ones(mean.shape[1])
            for j in range(len(mean)):
                part *= beyond(mean[j], std[j], low[j]) - beyond(mean[j], std[j], high[j])
            total += part
    return total


def beyond(mean: Array, std: Array, level: float) -> Array:
    """E[max(y − level, 0)]."""
    if np.isinf(level):
        return np.zeros_like(mean)
    z = (mean - level) / std
    return std * (stats.norm.pdf(z) + z * stats.norm.cdf(z))


def pareto_sets(lower: Array, upper: Array, epsilon: Array, counted: Array) -> tuple[Array, Array]:
    """The arms inside and outside the Pareto set, by comparing all pairs of arms."""
    own = [int(i) for i in np.flatnonzero(counted)]
    pessimistic = [i for i in own if not any(dominates(lower[j], lower[i]) for j in own)]
    outside = ~counted
    for i in own:
        if i not in pessimistic and any((upper[i] <= lower[p] + epsilon).all() for p in pessimistic):
            outside[i] = True
    kept = [i for i in own if not outside[i]]
    inside = np.zeros(len(counted), dtype=bool)
    for i in kept:
        inside[i] = not any((upper[j] >= lower[i] + epsilon).all() for j in kept if j != i)
    return inside, outside


# ------------------------------------------------------------------ safety


def safe_set(beliefs: Beliefs, width: Array, limits, start: list[int]) -> Array:
    A = beliefs.mean.shape[1]
    safe = np.ones(A, dtype=bool)
    for j, sign, h in limits:
        safe &= sign * beliefs.mean[j] - width[j] * beliefs.known[j] >= sign * h
    safe[start] = True
    return safe


def expands(beliefs: Beliefs, width: Array, limits, noise: list[float], safe: Array, arm: int) -> bool:
    """Whether telling rewards at the upper bounds of an arm would make another arm safe."""
    kept = ~safe
    for j, sign, h in limits:
        C = beliefs.covariance[j]
        column = C[:, arm] / (C[arm, arm] + noise[j])
        mean = sign * beliefs.mean[j] + column * width[j] * beliefs.known[j][arm]
        std = np.sqrt(np.maximum(C.diagonal() - column * C[:, arm], 0))
        kept &= mean - width[j] * std >= sign * h
    return bool(kept.any())
