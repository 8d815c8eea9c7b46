"""Slow, dense, float64 oracles of the policies that work in phases: Li & Scarlett 2022, Alg. 1; Valko et al. 2013, Alg. 2.

Every posterior is computed from scratch from the list of its pulls, with one row per pull, only in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray


def posterior(K: Array, pulls: Sequence[int], rewards: Sequence[float], lam: float) -> tuple[Array, Array]:
    """Mean and standard deviation of every arm given pulls of arms. If there are fewer rewards, the last pulls are pending."""
    if not len(pulls):
        return np.zeros(len(K)), np.sqrt(np.diag(K))
    half = _half(K, pulls, lam)[0]
    std = np.sqrt(np.maximum(np.diag(K) - (half**2).sum(axis=0), 0))
    if not len(rewards):
        return np.zeros(len(K)), std
    told = list(pulls[: len(rewards)])
    half, L, arms, root = _half(K, told, lam)
    sums = np.array([sum(y for x, y in zip(told, rewards, strict=True) if x == arm) for arm in arms])
    return half.T @ np.linalg.solve(L, sums / root), std


def _half(K: Array, pulls: Sequence[int], lam: float) -> tuple[Array, Array, list[int], Array]:
    """L⁻¹ √n K_ua with L Lᵀ = √n K_uu √n + λ, for the u distinct arms pulled n times each."""
    arms = sorted(set(pulls))
    root = np.sqrt([list(pulls).count(x) for x in arms])
    L = np.linalg.cholesky(root[:, None] * K[np.ix_(arms, arms)] * root + lam * np.eye(len(arms)))
    return np.linalg.solve(L, root[:, None] * K[arms]), L, arms, root


def near_best(values: Array) -> list[int]:
    """Indices of the values that equal the best up to rounding errors, in reward units, for prior deviations of order 1."""
    return np.flatnonzero(values >= values.max() - 1e-8 * max(abs(values.max()), 1)).tolist()


def fixed_design_width(noise_std: float, norm_bound: float, delta: float, lam: float, events: float) -> float:
    """Ψ + (R/√λ) √(2 log(events/δ)): Vakili et al. 2021, Thm 1 with a union bound."""
    return norm_bound + noise_std / math.sqrt(lam) * math.sqrt(2 * math.log(events / delta))


# ---------------------------------------------------------------------------------------- batched pure exploration


def lengths(horizon: int) -> list[int]:
    """N_i = ⌈√(T N_{i−1})⌉ in floating point, for horizons so small that T N is exact."""
    out, last = [], 1
    while sum(out) < horizon:
        last = math.ceil(math.sqrt(horizon * last))
        out.append(min(last, horizon - sum(out)))
    return out


@dataclass
class BPE:
    """A naive run of BPE: the surviving arms and the bounds on the best value, batch after batch."""

    K: Array
    width: float
    lam: float
    alive: list[int]
    upper: float = math.inf
    lower: float = -math.inf

    def __post_init__(self) -> None:
        self._bound([], [])

    def largest(self, picks: Sequence[int]) -> list[int]:
        """The survivors with the largest variance after these picks of the batch: a single arm, except for ties."""
        std = posterior(self.K, picks, [], self.lam)[1]
        return [self.alive[j] for j in near_best(std[self.alive])]

    def finish(self, picks: Sequence[int], rewards: Sequence[float]) -> None:
        """Discard the arms that can't be the best according to the rewards of this batch."""
        upper, best = self._bound(picks, rewards)
        self.alive = [x for x in self.alive if upper[x] >= best]

    def _bound(self, picks: Sequence[int], rewards: Sequence[float]) -> tuple[Array, float]:
        mean, std = posterior(self.K, picks, rewards, self.lam)
        best = max(mean[x] - self.width * std[x] for x in self.alive)
        self.upper = min(self.upper, max(mean[x] + self.width * std[x] for x in self.alive))
        self.lower = max(self.lower, best)
        return mean + self.width * std, best


# ---------------------------------------------------------------------------------------- SupKernelUCB


@dataclass
class SupKernelUCB:
    """Naive SupKernelUCB with index sets Ψ^(1) … Ψ^(S) as lists of arms and rewards; `pending[s]` affects variances only."""

    K: Array
    horizon: int
    width: float
    lam: float
    arms: list[list[int]] = field(init=False)
    rewards: list[list[float]] = field(init=False)
    pending: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        levels = max(1, math.ceil(math.log2(self.horizon) / 2))
        self.arms, self.rewards, self.pending = ([[] for _ in range(levels)] for _ in range(3))

    def choose(self, offered: Sequence[int]) -> tuple[list[int], int | None]:
        """The best arms, a single arm except for ties, and the level that the pick joins, or None."""
        candidates = np.asarray(offered)
        for s in range(len(self.arms)):
            mean, std = posterior(self.K, self.arms[s] + self.pending[s], self.rewards[s], self.lam)
            w, u = self.width * std[candidates], mean[candidates] + self.width * std[candidates]
            if (w <= 1 / math.sqrt(self.horizon)).all():
                return candidates[near_best(u)].tolist(), None
            if (w <= 2.0 ** -(s + 1)).all():
                candidates = candidates[u >= u.max() - 2.0 ** (1 - (s + 1))]
            else:
                return candidates[near_best(w)].tolist(), s
        raise AssertionError("2^(−S) ≤ 1/√T: one of the first two cases holds at level S")

    def tell(self, arm: int, level: int | None, reward: float) -> None:
        if level is not None:
            self.arms[level].append(arm)
            self.rewards[level].append(reward)
