"""torchbandits: `tb.auto()` with its defaults, and `tb.batch_bkb` in the practical form of the documentation.

Both may pull an arm again, and recommend `Bandit.best_arm()`. `batch_bkb` has a Matérn-5/2 kernel with one length-scale per
feature, width 2 and an estimated mean. It is given the true standard deviation of the noise, unlike `auto` and the peers.
"""

from __future__ import annotations

import gpytorch
import numpy as np

# These two are imported when they are first needed. As for all methods, imports are left out of the time.
import scipy.optimize  # noqa: F401
import torch
import torch.fx.experimental.symbolic_shapes

import torchbandits as tb
from peer_study.game import Budget
from peer_study.tables import Table
from torchbandits.arms.leaders import warm_up

# So is loading compiled code, which a process does once.
warm_up()


class Ours:
    """A bandit on the standardised features."""

    def __init__(self, table: Table, seed: int, policy: tb.policies.Policy) -> None:
        self.bandit = tb.Bandit(policy, torch.tensor(table.points), generator=torch.Generator().manual_seed(seed))

    def ask(self, count: int) -> np.ndarray:
        """Ask until there are `count` picks, because one ask may return fewer, as the first asks do."""
        index = self.bandit.ask(more=count).index
        while len(index) < count:
            index = self.bandit.ask(more=count - len(index)).index
        return index.numpy()

    def tell(self, index: np.ndarray, rewards: np.ndarray) -> None:
        self.bandit.tell(torch.as_tensor(index), torch.as_tensor(rewards))

    def recommend(self) -> int:
        return int(self.bandit.best_arm())


class Auto(Ours):
    def __init__(self, table: Table, budget: Budget, seed: int) -> None:
        super().__init__(table, seed, tb.auto())


class BatchBkb(Ours):
    def __init__(self, table: Table, budget: Budget, seed: int) -> None:
        matern = gpytorch.kernels.MaternKernel(2.5, ard_num_dims=table.points.shape[1])
        matern.lengthscale = float(np.sqrt(table.points.shape[1]))
        policy = tb.batch_bkb(
            gpytorch.kernels.ScaleKernel(matern),
            noise_std=table.noise_std,
            width=tb.widths.Constant(2.0),
            refit_every=10,
            prior_mean="estimate",
        )
        super().__init__(table, seed, policy)
