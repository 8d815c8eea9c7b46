"""BayBE's Campaign with its defaults, on a search space made of the candidates.

A table of more than 5,000 candidates is reduced to 5,000 random candidates (by seed), because BayBE keeps the whole table in a
data frame and scores all of it with Monte Carlo at every recommendation. The regret is over the whole table. Categories are
one-hot parameters. The search space is made without `SearchSpace.from_dataframe`, whose check of the values takes more than
fifteen minutes for eight columns of 5,000 different numbers. The method recommends the evaluated row with the highest
posterior mean of BayBE's surrogate.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from baybe import Campaign
from baybe.parameters import CategoricalParameter, NumericalDiscreteParameter
from baybe.searchspace import SearchSpace, SubspaceDiscrete
from baybe.targets import NumericalTarget
from baybe.utils.dataframe import normalize_input_dtypes
from baybe.utils.random import set_random_seed

from peer_study.box import Box
from peer_study.game import Budget
from peer_study.history import History
from peer_study.tables import Table

MOST = 5000


class BaybeCampaign:
    def __init__(self, table: Table, budget: Budget, seed: int) -> None:
        set_random_seed(seed)
        n = len(table.values)
        box = Box(table)
        self.rows = np.sort(np.random.default_rng(seed).choice(n, size=min(n, MOST), replace=False))
        self.frame = pd.DataFrame([box.parameters(row) for row in self.rows])
        for column in self.frame.columns:
            if column.startswith("category"):
                self.frame[column] = "level" + self.frame[column].astype(str)
        parameters = [
            CategoricalParameter(name, sorted(column.unique()))
            if name.startswith("category")
            else NumericalDiscreteParameter(name, sorted(column.unique()))
            for name, column in self.frame.items()
        ]
        space = SearchSpace(SubspaceDiscrete(parameters, normalize_input_dtypes(self.frame, parameters)))
        self.campaign = Campaign(space, NumericalTarget("reward").to_objective())
        self.lookup = {tuple(values): row for values, row in zip(self.frame.itertuples(index=False), self.rows, strict=True)}
        self.history = History(n, budget.repeats)
        self.asked = pd.DataFrame()

    def ask(self, count: int) -> np.ndarray:
        self.asked = self.campaign.recommend(batch_size=count)
        return np.array([self.lookup[tuple(v)] for v in self.asked[self.frame.columns].itertuples(index=False)])

    def tell(self, index: np.ndarray, rewards: np.ndarray) -> None:
        self.campaign.add_measurements(self.asked.assign(reward=rewards))
        self.history.add(index, rewards)

    def recommend(self) -> int:
        rows = np.unique(self.history.index)
        places = np.searchsorted(self.rows, rows)
        mean = self.campaign.posterior_stats(self.frame.iloc[places])["reward_mean"]
        return int(rows[mean.to_numpy().argmax()])
