"""The observations of a method on a table, and the mean of an arm's rewards."""

from __future__ import annotations

import numpy as np


class History:
    """Rows evaluated, in order, and their rewards.

    Args:
        candidates: Rows of the table.
        repeats: Whether a row that was evaluated stays free for later batches.
    """

    def __init__(self, candidates: int, repeats: bool) -> None:
        self.repeats = repeats
        self.index = np.empty(0, dtype=np.int64)
        self.rewards = np.empty(0)
        self.free = np.ones(candidates, dtype=bool)

    def __len__(self) -> int:
        return len(self.index)

    def add(self, index: np.ndarray, rewards: np.ndarray) -> None:
        self.index, self.rewards = np.concatenate([self.index, index]), np.concatenate([self.rewards, rewards])
        if not self.repeats:
            self.free[index] = False

    def best_observed(self) -> int:
        return int(self.index[self.rewards.argmax()])

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Random rows that are free."""
        return generator.choice(np.flatnonzero(self.free), size=count, replace=False)

    def top(self, scores: np.ndarray, count: int) -> np.ndarray:
        """The free rows with the highest scores, best first."""
        masked = np.where(self.free, scores, -np.inf)
        chosen = np.argpartition(-masked, count - 1)[:count]
        return chosen[np.argsort(-masked[chosen], kind="stable")]
