"""A random forest of 100 trees (scikit-learn's defaults), by upper bound or expected improvement over the spread of its trees.

The first 10 rows are random. The forest is refitted at every ask. A batch consists of the rows with the highest scores that
have not been evaluated. The method recommends the evaluated row with the highest mean over the trees.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import norm
from sklearn.ensemble import RandomForestRegressor

from peer_study.game import Budget
from peer_study.history import History
from peer_study.tables import Table

FIRST = 10
WIDTH = 2.0


class Forest:
    def __init__(self, table: Table, budget: Budget, seed: int, score: str) -> None:
        self.points, self.score = table.points.astype(np.float32), score
        self.history, self.generator = History(len(table.values), budget.repeats), np.random.default_rng(seed)

    def fit(self) -> RandomForestRegressor:
        forest = RandomForestRegressor(n_estimators=100, n_jobs=1, random_state=int(self.generator.integers(2**31)))
        return forest.fit(self.points[self.history.index], self.history.rewards)

    def ask(self, count: int) -> np.ndarray:
        if len(self.history) < FIRST:
            return self.history.draw(self.generator, count)
        trees = np.stack([tree.predict(self.points) for tree in self.fit().estimators_])
        mean, deviation = trees.mean(axis=0), trees.std(axis=0)
        if self.score == "ucb":
            return self.history.top(mean + WIDTH * deviation, count)
        deviation = deviation.clip(1e-9)
        gain = mean - mean[self.history.index].max()
        return self.history.top(gain * norm.cdf(gain / deviation) + deviation * norm.pdf(gain / deviation), count)

    def tell(self, index: np.ndarray, rewards: np.ndarray) -> None:
        self.history.add(index, rewards)

    def recommend(self) -> int:
        mean = self.fit().predict(self.points[self.history.index])
        return int(self.history.index[mean.argmax()])
