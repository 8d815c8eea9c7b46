"""A typed program as a user would write it; a test checks this file by `mypy --strict`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pandas as pd
import torch
from torch import Tensor

import torchbandits as tb
from torchbandits import (
    botorch,
    callbacks,
    constraints,
    diagnostics,
    environments,
    forgetting,
    sources,
    starts,
    stopping,
    widths,
)
from torchbandits.campaigns import Told
from torchbandits.errors import StateError, TorchBanditsError
from torchbandits.policies import Policy


def loop(arms: Tensor) -> tuple[int, float]:
    """Ask and tell, and the recommended arm."""
    kernel = gpytorch.kernels.RBFKernel().double()
    policy: Policy = tb.batch_bkb(kernel, noise_std=0.1, width=widths.Constant(2.0), initial=starts.uniform(4))
    bandit = tb.Bandit(policy, arms, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        selection: tb.Selection = bandit.ask(limit=8)
        report: tb.Report = bandit.tell(selection, selection.points.sum(dim=-1))
        pulls: Tensor = report.pulls
        print(int(pulls), selection.index.tolist())
    best: tb.Recommendation = bandit.best(3)
    decision: stopping.Decision = bandit.should_stop(stopping.Budget(pulls=10))
    print(decision, diagnostics.diagnose(bandit), bandit.explain())
    return int(best.index[0]), float(best.mean[0])


def of_arrays(table: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Arms, rewards and costs as arrays, numbers and lists."""
    bandit = tb.Bandit(tb.auto(), table, costs=[1.0] * len(table))
    bandit.tell(bandit.ask(), 0.5)
    bandit.tell([3, 4], np.array([0.1, 0.3]))
    bandit.observe(np.array([5]), [2.0], [0.4])
    contextual = tb.ContextualBandit(tb.auto(), table, np.array([[0.0]]))
    contextual.tell(contextual.ask(context=[1.0], available=table[:, 0] > 0), 1)
    tb.run(tb.uniform(), environments.Table(table, table.sum(axis=1), 0.1, costs=table[:, 0]), 4)
    return float(bandit.best().mean[0])


def record(environment: environments.Environment, folder: Path) -> tb.History:
    """Whole runs: recorded, parallel, of a source, forgetting."""
    history: tb.History = tb.run(tb.auto(), environment, num_rounds=20, callbacks=[callbacks.LogScalars(log)])
    history.to_parquet(folder)
    with ThreadPoolExecutor(2) as pool:
        tb.run(tb.uniform(), environment, 8, executor=pool, workers=2)
    kernel = gpytorch.kernels.MaternKernel(nu=2.5).double()
    recent: Policy[Any] = forgetting.window(tb.gp_ucb(kernel, noise_std=0.1), pulls=100)
    grid: sources.ArmSource = sources.grid([torch.linspace(0, 1, 11)] * 2)
    picks = tb.Bandit(recent, grid).ask()
    spread = tb.Bandit(tb.auto(), torch.rand(50, 2)).ask(exactly=4, within=[constraints.Distinct()])
    print(picks.index, spread.index)
    return history


def log(name: str, value: float, step: int) -> None:
    """Print one scalar."""
    print(name, value, step)


def lab(table: pd.DataFrame) -> pd.DataFrame:
    """A campaign from a table."""
    campaign = tb.Campaign(table, objective="yield")
    plate: pd.DataFrame = campaign.ask(8)
    told: Told = campaign.tell(plate)
    print(told)
    return campaign.best(3)


def in_botorch(x: Tensor, y: Tensor) -> Tensor:
    """A model and an acquisition function."""
    kernel = gpytorch.kernels.RBFKernel().double()
    model = botorch.BanditModel(x, y, kernel=kernel, noise_std=0.1)
    acquisition = botorch.PolicyAcquisition(model, tb.gp_bucb(kernel, noise_std=0.1))
    points, values, index = botorch.optimize_arms(acquisition, x, q=2)
    print(values, index)
    return points


def careful(bandit: tb.Bandit, selection: tb.Selection) -> bool:
    """Errors have a base class."""
    try:
        bandit.forget(selection)
    except StateError as error:
        print(error)
        return False
    except TorchBanditsError:
        raise
    return True
