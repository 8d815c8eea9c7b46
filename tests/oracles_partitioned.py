"""Naive π-GP-UCB: cells are Python objects, and every cell is fitted to its list of pulls at every step, in dense float64.

It shares no code with the package. Thresholds are compared as integers, so that nothing depends on rounding: for an integer 2ν,
ρ^(−1/b) < n + 1 for a side of 1/M means M^(d + 2ν) < (n + 1)^(d + 1).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import oracles
from oracles import EPS, Array, KernelFunction

EDGE = 1e-9  # tolerance, as a fraction of a cell's side


@dataclass(frozen=True)
class Cell:
    """The closed cube of side 1/M at integer coordinates, in the unit cube."""

    M: int
    corner: tuple[int, ...]

    def holds(self, units: Array) -> Array:
        """Whether each of the points `n x d` lies in the cell."""
        y, corner = units * self.M, np.array(self.corner)
        return ((y >= corner - EDGE) & (y <= corner + 1 + EDGE)).all(1)

    def children(self) -> list[Cell]:
        steps = itertools.product((0, 1), repeat=len(self.corner))
        return [Cell(2 * self.M, tuple(2 * g + s for g, s in zip(self.corner, step, strict=True))) for step in steps]


def first_side(horizon: int, d: int, nu: float) -> int:
    """Cells per side of the first grid: the smallest M with M^(d(d+2)+2ν) ≥ T^(d+1)."""
    M = 1
    while M ** int(d * (d + 2) + 2 * nu) < horizon ** (d + 1):
        M += 1
    return M


@dataclass
class Partitioned:
    """A naive run, which learns pulls and returns bounds."""

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
        self.units = self.unit(self.arms)
        self.K_aa = self.kernel(self.arms, self.arms)
        M = first_side(self.horizon, self.d, self.nu)
        every = (Cell(M, corner) for corner in itertools.product(range(M), repeat=self.d))
        self.cells = [cell for cell in every if self.arms_of(cell).size]
        self.made = len(self.cells)

    def unit(self, x: Array) -> Array:
        extent = self.upper - self.lower
        return np.where(extent > 0, (x - self.lower) / np.where(extent > 0, extent, 1), 0.0)

    def arms_of(self, cell: Cell) -> Array:
        return np.nonzero(cell.holds(self.units) & (self.copies == np.arange(len(self.arms))))[0]

    def pulls_of(self, cell: Cell) -> tuple[Array, Array]:
        """Arm and reward of every pull in the cell."""
        if not self.pulls:
            return np.zeros(0, dtype=int), np.zeros(0)
        arm, y = np.array([i for i, _ in self.pulls]), np.array([y for _, y in self.pulls])
        inside = cell.holds(self.units[arm])
        return arm[inside], y[inside]

    def due(self, cell: Cell) -> bool:
        return cell.M ** int(self.d + 2 * self.nu) < (len(self.pulls_of(cell)[0]) + 1) ** (self.d + 1)

    def tell(self, arm: int, reward: float) -> None:
        self.pulls.append((int(self.copies[arm]), reward))
        while any(self.due(cell) for cell in self.cells):
            split = [child for cell in self.cells if self.due(cell) for child in cell.children()]
            split = [child for child in split if self.arms_of(child).size]
            self.cells = [c for c in self.cells if not self.due(c)] + split
            self.made += len(split)

    def log_det(self, cell: Cell) -> float:
        rows = self.pulls_of(cell)[0]
        return float(np.linalg.slogdet(np.eye(len(rows)) + self.K_aa[np.ix_(rows, rows)] / self.lam)[1])

    def width(self, cell: Cell) -> float:
        """The width of section 3 of the paper. Steps are t = 1, 2, …, and step t is decided by the t − 1 pulls before it with
        δ/Ñ_t, Ñ_t = 4(t+1)^{bd}. For a valid union bound, Ñ_t is at least the number of cells ever made."""
        b, t = (self.d + 1) / (self.d + 2 * self.nu), len(self.pulls) + 1
        cells = max(4 * (t + 1) ** (b * self.d), self.made)
        gain = 0.5 * self.log_det(cell) + 1 + math.log(cells / self.delta)
        return self.norm_bound + self.noise_std / math.sqrt(self.lam) * math.sqrt(2 * gain)

    def posterior(self, cell: Cell, K: Array, k: Array, pending: tuple[int, ...] = ()) -> tuple[Array, Array]:
        """Mean given the rewards told, and variance given also the pending pulls, at points with covariance `K` (`arms x n`)
        with the arms and prior variance `k` (`n`)."""
        told, y = self.pulls_of(cell)
        ahead = np.array(pending, dtype=int)
        extra = np.concatenate([told, ahead[cell.holds(self.units[ahead])]])
        zeros = np.zeros(len(extra))
        mean = oracles.exact_posterior(self.K_aa[np.ix_(told, told)], K[told], k, y, self.lam).mean
        return mean, oracles.exact_posterior(self.K_aa[np.ix_(extra, extra)], K[extra], k, zeros, self.lam).variance

    def bounds(self, pending: tuple[int, ...] = ()) -> tuple[Array, Array]:
        """Largest upper and largest lower bound of every arm over the cells that hold it; −∞ for copies."""
        upper, lower = np.full(len(self.arms), -np.inf), np.full(len(self.arms), -np.inf)
        for cell in self.cells:
            own = self.arms_of(cell)
            mean, variance = self.posterior(cell, self.K_aa[:, own], np.diag(self.K_aa)[own], pending)
            spread = self.width(cell) * np.sqrt(np.maximum(variance, 0))
            upper[own] = np.maximum(upper[own], mean + spread)
            lower[own] = np.maximum(lower[own], mean - spread)
        return upper, lower

    def choose(self, allowed: Array | None = None, pending: tuple[int, ...] = (), bounds: Array | None = None) -> int:
        """Lowest index within 16 eps of the best upper bound; `bounds` if they are already known."""
        score = self.bounds(pending)[0] if bounds is None else bounds
        if allowed is not None:  # a copy on offer puts its first copy on offer
            offered = np.zeros(len(score), dtype=bool)
            offered[self.copies[allowed]] = True
            score = np.where(offered, score, -np.inf)
        return int(np.nonzero(score >= score.max() - 16 * EPS * abs(score.max()))[0][0])

    def marginals(self, x: Array, pending: tuple[int, ...] = ()) -> tuple[list[float], float]:
        """The smallest variance of the cells that contain a point, and the means of all cells with this variance (on edges,
        cells may tie); the prior if no cell contains it."""
        k = oracles.diagonal(self.kernel, x[None])
        K = self.kernel(self.arms, x[None])
        around = [cell for cell in self.cells if cell.holds(self.unit(x[None]))[0]]
        found = [(float(m[0]), float(v[0])) for m, v in (self.posterior(cell, K, k, pending) for cell in around)]
        smallest = min((v for _, v in found), default=float(k[0]))
        return [m for m, v in found if v <= smallest * (1 + 1e-10)] or [0.0], smallest
