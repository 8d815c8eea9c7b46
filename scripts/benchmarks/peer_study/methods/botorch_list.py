"""BoTorch's SingleTaskGP with its defaults, over the list of candidates: LogEI one at a time, qLogNEI in batches.

The first 10 rows are random (one batch, if batches are larger). The model is fitted to standardised rewards at every ask, as
users do, starting from the hyper-parameters of the last fit. Evaluated rows are not picked again, except for the large budget.
LogEI is evaluated exactly at every candidate, with the highest posterior mean of an evaluated row as the incumbent. The method
recommends the evaluated row with the highest posterior mean.

Reductions keep the batches affordable:
- qLogNEI is maximised greedily over the 250 candidates with the highest LogEI and 250 random candidates, with the 100 evaluated
  rows with the highest posterior means as its baseline;
- beyond 500 rewards the hyper-parameters are fitted to 500 of them (the best 250 and 250 random others), but the posterior uses
  all rewards.
"""

from __future__ import annotations

import numpy as np
import torch
from botorch.acquisition import LogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf_discrete
from gpytorch.mlls import ExactMarginalLogLikelihood

from peer_study.game import Budget
from peer_study.history import History
from peer_study.tables import Table

FIRST = 10
CHUNK = 4096
SHORT_LIST = 250
BASELINE = 100
FITTED = 500


class BoTorchList:
    def __init__(self, table: Table, budget: Budget, seed: int) -> None:
        # SingleTaskGP's priors are for features in the unit cube.
        low, high = table.points.min(axis=0), table.points.max(axis=0)
        self.points = torch.tensor((table.points - low) / (high - low))
        self.history, self.generator = History(len(table.values), budget.repeats), np.random.default_rng(seed)
        self.fitted: dict[str, torch.Tensor] | None = None
        torch.manual_seed(seed)

    def rewards(self) -> torch.Tensor:
        rewards = torch.tensor(self.history.rewards)[:, None]
        return (rewards - rewards.mean()) / rewards.std()

    def fit(self) -> SingleTaskGP:
        index, rewards = torch.tensor(self.history.index), self.rewards()
        subset = torch.arange(len(index))
        if len(index) > FITTED:
            order = rewards[:, 0].argsort(descending=True).numpy()
            others = self.generator.choice(order[FITTED // 2 :], size=FITTED // 2, replace=False)
            subset = torch.tensor(np.concatenate([order[: FITTED // 2], others]))
        model = SingleTaskGP(self.points[index[subset]], rewards[subset], outcome_transform=None)
        if self.fitted is not None:
            model.load_state_dict(self.fitted)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        self.fitted = model.state_dict()
        if len(subset) < len(index):
            model.set_train_data(self.points[index], rewards[:, 0], strict=False)
        return model.eval()

    def mean_of_evaluated(self, model: SingleTaskGP) -> np.ndarray:
        with torch.no_grad():
            return model.posterior(self.points[self.history.index]).mean[:, 0].numpy()

    def log_improvement(self, model: SingleTaskGP) -> np.ndarray:
        acquisition = LogExpectedImprovement(model, best_f=float(self.mean_of_evaluated(model).max()))
        with torch.no_grad():
            return torch.cat([acquisition(chunk[:, None]) for chunk in self.points.split(CHUNK)]).numpy()

    def ask(self, count: int) -> np.ndarray:
        if len(self.history) < FIRST:
            return self.history.draw(self.generator, count)
        model = self.fit()
        scores = self.log_improvement(model)
        if count == 1:
            return self.history.top(scores, 1)
        free = int(self.history.free.sum())
        likely = self.history.top(scores, min(SHORT_LIST, free))
        choices = np.union1d(likely, self.history.draw(self.generator, min(SHORT_LIST, free)))
        promising = self.history.index[np.argsort(-self.mean_of_evaluated(model))[:BASELINE]]
        acquisition = qLogNoisyExpectedImprovement(model, X_baseline=self.points[promising], prune_baseline=True)
        rows, _ = optimize_acqf_discrete(acquisition, q=count, choices=self.points[choices], unique=True)
        return choices[(rows[:, None] == self.points[choices]).all(dim=-1).int().argmax(dim=-1).numpy()]

    def tell(self, index: np.ndarray, rewards: np.ndarray) -> None:
        self.history.add(index, rewards)

    def recommend(self) -> int:
        return int(self.history.index[self.mean_of_evaluated(self.fit()).argmax()])
