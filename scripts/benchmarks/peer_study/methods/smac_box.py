"""SMAC's HyperparameterOptimizationFacade (a random forest) with its defaults, in the box around the table.

Each suggestion is evaluated at the nearest candidate that has not been evaluated, and SMAC is told the cost of that candidate.
The suggested configuration stays open, because it was not evaluated. Trials are declared deterministic, so each configuration
is evaluated once. A batch consists of consecutive asks. The method recommends the best observed row.
"""

from __future__ import annotations

import logging
import tempfile

import numpy as np
from ConfigSpace import CategoricalHyperparameter, Configuration, ConfigurationSpace, UniformFloatHyperparameter
from smac import HyperparameterOptimizationFacade, Scenario
from smac.runhistory import TrialInfo, TrialValue

from peer_study.box import Box
from peer_study.game import Budget
from peer_study.history import History
from peer_study.tables import Table

EDGE = 1e-6  # ConfigSpace rounds its limits, and would reject a candidate on a limit


class SmacBox:
    def __init__(self, table: Table, budget: Budget, seed: int) -> None:
        self.box, self.history = Box(table), History(len(table.values), budget.repeats)
        self.space = ConfigurationSpace(seed=seed)
        self.space.add(
            *[
                UniformFloatHyperparameter(f"number{c}", float(self.box.low[c]) - EDGE, float(self.box.high[c]) + EDGE)
                for c in self.box.numbers
            ],
            *[CategoricalHyperparameter(f"category{k}", list(range(len(b)))) for k, b in enumerate(table.blocks)],
        )
        self.folder = tempfile.TemporaryDirectory()
        scenario = Scenario(self.space, n_trials=budget.pulls, deterministic=True, seed=seed, output_directory=self.folder.name)
        self.smac = HyperparameterOptimizationFacade(scenario, self.never, logging_level=logging.ERROR, overwrite=True)
        self.seed_of_trials: int | None = None

    @staticmethod
    def never(config: Configuration, seed: int = 0) -> float:
        raise RuntimeError("SMAC is driven by ask and tell.")

    def ask(self, count: int) -> np.ndarray:
        chosen: list[int] = []
        for _ in range(count):
            info = self.smac.ask()
            self.seed_of_trials = info.seed
            chosen.append(self.box.nearest(dict(info.config), self.history, chosen))
        return np.array(chosen)

    def tell(self, index: np.ndarray, rewards: np.ndarray) -> None:
        for row, reward in zip(index, rewards, strict=True):
            config = Configuration(self.space, values=self.box.parameters(row))
            self.smac.tell(TrialInfo(config, seed=self.seed_of_trials), TrialValue(cost=-float(reward)), save=False)
        self.history.add(index, rewards)

    def recommend(self) -> int:
        return self.history.best_observed()
