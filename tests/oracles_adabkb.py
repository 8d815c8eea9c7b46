"""Recursive Ada-BKB with the exact Gaussian process on every pull, only in NumPy, without code of the package.

If every pulled point is in the dictionary, BKB's posterior is exact, so the picks must agree.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from oracles import KernelFunction, exact_posterior_from_sums

Array = np.ndarray
TIE = 1e-9


@dataclass
class Node:
    """A cell: its box, its representative (a row of `Tree.points`), its depth, V, and its children."""

    lower: Array
    upper: Array
    representative: int
    depth: int
    variation: float
    parent: Node | None
    members: list[int]
    children: list[Node] = field(default_factory=list)

    def leaves(self) -> Iterator[Node]:
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()


def distance(kernel: KernelFunction, x: Array, y: Array) -> float:
    x, y = x[None], y[None]
    return math.sqrt(max(float(kernel(x, x)[0, 0] + kernel(y, y)[0, 0] - 2 * kernel(x, y)[0, 0]), 0.0))


@dataclass
class Tree:
    """The algorithm on a box (`arms` None, representatives are centres) or on arms (`arms` are their features)."""

    kernel: KernelFunction
    lower: Array
    upper: Array
    lam: float
    norm_bound: float
    max_depth: float = math.inf
    num_children: int = 3
    arms: Array | None = None
    points: list[Array] = field(default_factory=list)  # representatives, in the order of their first use
    arm_of_point: list[int] = field(default_factory=list)
    pulled: dict[int, list[float]] = field(default_factory=dict)  # rewards of each representative

    def __post_init__(self) -> None:
        members = [] if self.arms is None else [i for i, x in enumerate(self.arms) if not (self.arms[:i] == x).all(1).any()]
        self.root = self.cell(self.lower, self.upper, 0, None, members, None)

    # ------------------------------------------------------------------ geometry

    def cell(self, lower, upper, depth, parent, members, inherited) -> Node:
        if self.arms is None:
            if inherited is None:
                self.points.append((lower + upper) / 2)
                inherited = len(self.points) - 1
            x = self.points[inherited]
            corners = [np.array(c) for c in itertools.product(*zip(lower, upper, strict=True))]
            reach = max(distance(self.kernel, x, corner) for corner in corners)
            return Node(lower, upper, inherited, depth, self.norm_bound * reach, parent, [])
        squared = {i: float(((self.arms[i] - (lower + upper) / 2) ** 2).sum()) for i in members}
        slack = 1e-12 * float(((upper - lower) ** 2).sum())
        arm = min(i for i in members if squared[i] <= min(squared.values()) + slack)
        if arm not in self.arm_of_point:
            self.arm_of_point.append(arm)
            self.points.append(self.arms[arm])
        reach = max(0.0 if i == arm else distance(self.kernel, self.arms[arm], self.arms[i]) for i in members)
        place = self.arm_of_point.index(arm)
        return Node(lower, upper, place, depth, self.norm_bound * reach, parent, members)

    def split(self, node: Node) -> None:
        sides, N = node.upper - node.lower, self.num_children
        dim = next(j for j, side in enumerate(sides) if side >= (1 - 1e-9) * sides.max())
        cuts = [node.lower[dim] + sides[dim] * (i / N) for i in range(N)] + [node.upper[dim]]
        for i in range(N):
            lower, upper = node.lower.copy(), node.upper.copy()
            lower[dim], upper[dim] = cuts[i], cuts[i + 1]
            above = (lambda x, i=i: i == 0 or x >= cuts[i]), (lambda x, i=i: i == N - 1 or x < cuts[i + 1])
            members = [a for a in node.members if all(test(self.arms[a, dim]) for test in above)]
            if self.arms is not None and not members:
                continue
            middle = node.representative if self.arms is None and i == N // 2 else None
            node.children.append(self.cell(lower, upper, node.depth + 1, node, members, middle))

    # ------------------------------------------------------------------ the posterior and the bounds

    def posterior(self) -> tuple[Array, Array]:
        """Mean and variance at the representatives, from every reward told."""
        X = np.stack(self.points)
        rows = list(self.pulled)
        n = np.array([len(self.pulled[r]) for r in rows], dtype=float)
        s = np.array([sum(self.pulled[r]) for r in rows])
        diagonal = np.array([self.kernel(x[None], x[None])[0, 0] for x in X])
        known = exact_posterior_from_sums(self.kernel(X[rows], X[rows]), self.kernel(X[rows], X), diagonal, n, s, self.lam)
        return known.mean, np.maximum(known.variance, 0.0)

    def width(self, constant: float | None, noise_std: float, delta: float) -> float:
        """A constant, or BKB's practical width."""
        if constant is not None:
            return constant
        t = sum(map(len, self.pulled.values()))
        variance = self.posterior()[1]
        dimension = sum(len(y) * variance[r] / self.lam for r, y in self.pulled.items())
        inside = math.log(max(t, 1)) * dimension + math.log(1 / delta)
        return self.norm_bound + noise_std / math.sqrt(self.lam) * math.sqrt(inside)

    def index(self, node: Node, upper: Array) -> float:
        above = math.inf if node.parent is None else upper[node.parent.representative] + node.parent.variation
        return min(upper[node.representative], above) + node.variation

    def best(self, width: float) -> tuple[Node, float]:
        mean, variance = self.posterior()
        upper = mean + width * np.sqrt(variance)
        leaves = list(self.root.leaves())
        values = [self.index(leaf, upper) for leaf in leaves]
        prior = math.sqrt(self.kernel(self.points[0][None], self.points[0][None])[0, 0])
        band = max(values) - TIE * (abs(max(values)) + width * prior)
        near = [leaf for leaf, value in zip(leaves, values, strict=True) if value >= band]
        best = min(near, key=lambda leaf: leaf.representative)
        return best, width * math.sqrt(variance[best.representative])

    def pick(self, width: float) -> int:
        """Split the best leaf until it is due for evaluation, and return its representative."""
        best, spread = self.best(width)
        while spread <= best.variation and best.variation > 0 and best.depth < self.max_depth:
            self.split(best)
            best, spread = self.best(width)
        return best.representative

    def play(self, pulls: int, reward: Callable[[int, Array], float], constant, noise_std: float, delta: float) -> list[int]:
        """The numbers of the evaluated representatives."""
        picks = []
        for t in range(pulls):
            place = self.pick(self.width(constant, noise_std, delta))
            self.pulled.setdefault(place, []).append(reward(t, self.points[place]))
            picks.append(place)
        return picks
