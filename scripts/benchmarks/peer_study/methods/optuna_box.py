"""Optuna's TPE and Gaussian-process samplers with their defaults, in the box around the table.

Each suggestion is evaluated at the nearest candidate that has not been evaluated. The study gets a finished trial with that
candidate's parameters, and the suggested trial is closed without a value. TPE runs with `constant_liar` in batches, as its
documentation advises. The method recommends the best observed row.
"""

from __future__ import annotations

import warnings

import numpy as np
import optuna

from peer_study.box import Box
from peer_study.game import Budget
from peer_study.history import History
from peer_study.tables import Table

optuna.logging.set_verbosity(optuna.logging.ERROR)


class OptunaBox:
    def __init__(self, table: Table, budget: Budget, seed: int, sampler: str) -> None:
        self.box, self.history = Box(table), History(len(table.values), budget.repeats)
        self.distributions: dict[str, optuna.distributions.BaseDistribution] = {
            f"number{c}": optuna.distributions.FloatDistribution(float(self.box.low[c]), float(self.box.high[c]))
            for c in self.box.numbers
        }
        for number, block in enumerate(table.blocks):
            self.distributions[f"category{number}"] = optuna.distributions.CategoricalDistribution(list(range(len(block))))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.sampler = (
                optuna.samplers.TPESampler(seed=seed, constant_liar=True)
                if sampler == "tpe"
                else optuna.samplers.GPSampler(seed=seed)
            )
        self.study = optuna.create_study(direction="maximize", sampler=self.sampler)
        self.open: list[optuna.trial.Trial] = []

    def ask(self, count: int) -> np.ndarray:
        chosen: list[int] = []
        for _ in range(count):
            trial = self.study.ask(self.distributions)
            self.open.append(trial)
            chosen.append(self.box.nearest(trial.params, self.history, chosen))
        return np.array(chosen)

    def tell(self, index: np.ndarray, rewards: np.ndarray) -> None:
        for trial in self.open:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
        self.open = []
        for row, reward in zip(index, rewards, strict=True):
            finished = optuna.trial.create_trial(
                params=self.box.parameters(row), distributions=self.distributions, value=float(reward)
            )
            self.study.add_trial(finished)
        self.history.add(index, rewards)

    def recommend(self) -> int:
        return self.history.best_observed()
