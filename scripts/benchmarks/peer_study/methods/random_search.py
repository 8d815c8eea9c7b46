"""Random candidates without repeats; recommends the best observed candidate."""

from __future__ import annotations

import numpy as np

from peer_study.game import Budget
from peer_study.history import History
from peer_study.tables import Table


class Random:
    def __init__(self, table: Table, budget: Budget, seed: int) -> None:
        self.history, self.generator = History(len(table.values), budget.repeats), np.random.default_rng(seed)

    def ask(self, count: int) -> np.ndarray:
        return self.history.draw(self.generator, count)

    def tell(self, index: np.ndarray, rewards: np.ndarray) -> None:
        self.history.add(index, rewards)

    def recommend(self) -> int:
        return self.history.best_observed()
