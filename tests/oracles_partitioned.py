"""π-GP-UCB, naively: cells are Python objects, every cell is fitted to its list of pulls at every step, in dense float64.

Shares no code with the package. Thresholds are compared in whole numbers, so that nothing depends on rounding: with 2ν whole,
ρ^(−1/b) < n + 1 for a side of 1/M says M^(d + 2ν) < (n + 1)^(d + 1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import oracles
from oracles import EPS, Array, KernelFunction

EDGE = 1e-9  # of a cell's side


@dataclass(frozen=True)
class Cell:
    """The closed cube of side 1/M at integer coordinates, in the unit cube."""

    M: int
    corner: tuple[int, ...]

    def holds(self, unit: Array) -> bool:
        return all(g - EDGE <= u * self.M <= g + 1 + EDGE for u, g in zip(unit, self.corner, strict=True))

    def children(self) -> list[Cell]:
        steps = itertools.product((0, 1), repeat=len(self.corner))
        return [Cell(2 * self.M, tuple(2 * g + s for g, s in zip(self.corner, step, strict=True))) for step in steps]


def first_side(horizon: int, d: int, nu: float) -> int:
    """Cells a side of the first grid: the smallest M with M^(d(d+2)+2ν) ≥ T^(d+1)."""
    M = 1
    while M ** int(d * (d + 2) + 2 * nu) < horizon ** (d + 1):
        M += 1
    return M


@dataclass
class Partitioned:
    """A run: tell it pulls, ask it for bounds."""

    arms: Array
    kernel: KernelFunction
    nu: float
    horizon: int
    noise_std: float
    norm_bound: float
    delta: float
    lam: float = 1.0
    lower: Array | None = None
    upper: Array | None = None
    pulls: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert float(2 * self.nu).is_integer()
        self.d = self.arms.shape[1]
        self.copies = oracles.first_copies(self.arms)
        self.lower = self.arms.min(0) if self.lower is None else np.asarray(self.lower, dtype=float)
        self.upper = self.arms.max(0) if self.upper is None else np.asarray(self.upper, dtype=float)
        M = first_side(self.horizon, self.d, self.nu)
        every = (Cell(M, corner) for corner in itertools.product(range(M), repeat=self.d))
        self.cells = [cell for cell in every if self.arms_of(cell)]

    def unit(self, x: Array) -> Array:
        extent = self.upper - self.lower
        return np.array([(v - low) / e if e > 0 else 0.0 for v, low, e in zip(x, self.lower, extent, strict=True)])

    def arms_of(self, cell: Cell) -> list[int]:
        return [i for i in range(len(self.arms)) if self.copies[i] == i and cell.holds(self.unit(self.arms[i]))]

    def pulls_of(self, cell: Cell) -> list[tuple[int, float]]:
        return [(i, y) for i, y in self.pulls if cell.holds(self.unit(self.arms[i]))]

    def due(self, cell: Cell) -> bool:
        return cell.M ** int(self.d + 2 * self.nu) < (len(self.pulls_of(cell)) + 1) ** (self.d + 1)

    def tell(self, arm: int, reward: float) -> None:
        self.pulls.append((int(self.copies[arm]), reward))
        while any(self.due(cell) for cell in self.cells):
            split = [child for cell in self.cells if self.due(cell) for child in cell.children()]
            self.cells = [c for c in self.cells if not self.due(c)] + [c for c in split if self.arms_of(c)]

    def log_det(self, cell: Cell) -> float:
        rows = [i for i, _ in self.pulls_of(cell)]
        K = self.kernel(self.arms[rows], self.arms[rows])
        return float(np.linalg.slogdet(np.eye(len(rows)) + K / self.lam)[1]) if rows else 0.0

    def width(self, cell: Cell) -> float:
        b, t = (self.d + 1) / (self.d + 2 * self.nu), len(self.pulls)
        log_cells = math.log(4 * (t + 1) ** (b * self.d) / self.delta)
        gain = 0.5 * self.log_det(cell) + 1 + log_cells
        return self.norm_bound + self.noise_std / math.sqrt(self.lam) * math.sqrt(2 * gain)

    def posterior(self, cell: Cell, points: Array, pending: tuple[int, ...] = ()) -> tuple[Array, Array]:
        """Mean given the rewards told, and variance given the pending pulls too."""
        told, k = self.pulls_of(cell), oracles.diagonal(self.kernel, points)
        rows, y = [i for i, _ in told], np.array([r for _, r in told])
        extra = rows + [i for i in pending if cell.holds(self.unit(self.arms[i]))]

        def fitted(data: list[int], values: Array) -> oracles.Posterior:
            x = self.arms[data]
            return oracles.exact_posterior(self.kernel(x, x), self.kernel(x, points), k, values, self.lam)

        return fitted(rows, y).mean, fitted(extra, np.zeros(len(extra))).variance

    def bounds(self, pending: tuple[int, ...] = ()) -> tuple[Array, Array]:
        """Largest upper and largest lower bound of every arm over the cells that hold it; −∞ for copies."""
        upper, lower = np.full(len(self.arms), -np.inf), np.full(len(self.arms), -np.inf)
        for cell in self.cells:
            own = self.arms_of(cell)
            mean, variance = self.posterior(cell, self.arms[own], pending)
            spread = self.width(cell) * np.sqrt(np.maximum(variance, 0))
            upper[own] = np.maximum(upper[own], mean + spread)
            lower[own] = np.maximum(lower[own], mean - spread)
        return upper, lower

    def choose(self, allowed: Array | None = None, pending: tuple[int, ...] = ()) -> int:
        """Lowest index within 16 eps of the best upper bound."""
        score = self.bounds(pending)[0]
        if allowed is not None:  # a copy that is on offer offers its first
            offered = np.zeros(len(score), dtype=bool)
            offered[self.copies[allowed]] = True
            score = np.where(offered, score, -np.inf)
        return int(np.nonzero(score >= score.max() - 16 * EPS * abs(score.max()))[0][0])

    def marginals(self, x: Array, pending: tuple[int, ...] = ()) -> tuple[float, float]:
        """Mean and variance at a point, in the cell of the smallest variance; the prior where no cell is left."""
        best = (0.0, float(oracles.diagonal(self.kernel, x[None])[0]))
        for cell in self.cells:
            if cell.holds(self.unit(x)):
                mean, variance = self.posterior(cell, x[None], pending)
                if variance[0] < best[1]:
                    best = (float(mean[0]), float(variance[0]))
        return best
