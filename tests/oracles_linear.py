"""Linear bandits in dense NumPy loops: OFUL with a d x d matrix, frequent directions as in the paper, and SOFUL with both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


def self_normalized(log_det: float, noise_std: float, bound: float, delta: float, lam: float) -> float:
    """Abbasi-Yadkori et al. 2011, Thm 2: β = R √(2 log(√(det V / λ^d) / δ)) + √λ S for √leverage, so β/√λ for √variance."""
    beta = noise_std * np.sqrt(2 * (0.5 * log_det - np.log(delta))) + np.sqrt(lam) * bound
    return beta / np.sqrt(lam)


def sketched(log_det: float, loss: float, d: int, noise_std: float, bound: float, delta: float, lam: float) -> float:
    """`self_normalized` for V̂ = SᵀS + λI: det V ≤ det(V̂)(1 + ρ/λ)^d, and norms in V̂⁻¹ ≤ √(1 + ρ/λ) times those in V⁻¹."""
    factor = (lam + loss) / lam
    noise = noise_std * np.sqrt(factor) * np.sqrt(log_det + d * np.log(factor) + 2 * np.log(1 / delta))
    bias = max(lam, loss - lam) / np.sqrt(lam) * bound
    return (noise + bias) / np.sqrt(lam)


@dataclass
class FrequentDirections:
    """Frequent directions, with rows added one at a time to a buffer of 2m rows."""

    size: int
    dim: int
    rows: list[np.ndarray] = field(default_factory=list)
    loss: float = 0.0

    def add(self, row: np.ndarray) -> None:
        self.rows.append(row)
        if len(self.rows) < 2 * self.size:
            return
        _, values, directions = np.linalg.svd(np.array(self.rows))
        squares = np.zeros(max(self.dim, 2 * self.size))
        squares[: len(values)] = values**2
        cut = squares[self.size]
        self.loss += cut
        self.rows = []
        for i in range(self.size):
            direction = directions[i] if i < self.dim else np.zeros(self.dim)
            self.rows.append(np.sqrt(max(squares[i] - cut, 0.0)) * direction)

    def second_moment(self) -> np.ndarray:
        S = np.zeros((self.dim, self.dim))
        for row in self.rows:
            S += np.outer(row, row)
        return S


@dataclass
class LinearBandit:
    """OFUL on the rows of `arms`; with `sketch_size`, V is that of the sketch and the mean keeps the full moment."""

    arms: np.ndarray
    lam: float
    width: Callable[[float, float], float]  # a function of log det(V/λ) and the loss of the sketch
    sketch_size: int | None = None
    prior_mean: float = 0.0
    counts: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.counts, d = np.zeros(len(self.arms)), self.arms.shape[1]
        self.gram, self.moment = np.zeros((d, d)), np.zeros(d)
        self.sketch = None if self.sketch_size is None else FrequentDirections(self.sketch_size, d)

    @property
    def V(self) -> np.ndarray:
        second = self.gram if self.sketch is None else self.sketch.second_moment()
        return second + self.lam * np.eye(len(second))

    @property
    def log_det(self) -> float:
        return float(np.linalg.slogdet(self.V / self.lam)[1])

    @property
    def current_width(self) -> float:
        return self.width(self.log_det, 0.0 if self.sketch is None else self.sketch.loss)

    def marginals(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        theta, whitened = np.linalg.solve(self.V, self.moment), np.linalg.solve(self.V, points.T).T
        return points @ theta + self.prior_mean, self.lam * (points * whitened).sum(axis=1)

    def scores(self) -> np.ndarray:
        mean, variance = self.marginals(self.arms)
        return mean + self.current_width * np.sqrt(variance)

    def tell(self, arms: list[int], rewards: list[float]) -> None:
        """Process one tell: several pulls of an arm are one row, and arms are in order of appearance."""
        for arm in dict.fromkeys(arms):
            own = [y for a, y in zip(arms, rewards, strict=True) if a == arm]
            self.observe(self.arms[arm], len(own), sum(own))
            self.counts[arm] += len(own)

    def observe(self, x: np.ndarray, count: float, total: float) -> None:
        self.gram += count * np.outer(x, x)
        self.moment += (total - count * self.prior_mean) * x
        if self.sketch is not None:
            self.sketch.add(np.sqrt(count) * x)
