"""Random Matérn functions of known norm (Janz et al. 2020, table 1) at the size of a test: paired draws as batch rows."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from problems import generator

import torchbandits as tb

DRAWS, HORIZON = 6, 600


def fractions(name: str, d: int) -> torch.Tensor:
    """Regret of each draw as a fraction of uniform's."""
    draws = [tb.environments.rkhs(dim=d, generator=generator(seed)) for seed in range(DRAWS)]
    arms, means = draws[0].arms, torch.stack([draw.means for draw in draws])
    environment = tb.environments.Table(arms.expand(DRAWS, *arms.shape), means, 1.0, noise="uniform")
    kernel = gpytorch.kernels.MaternKernel(1.5).double()
    kernel.lengthscale = torch.tensor(0.2, dtype=torch.float64)
    norms = torch.tensor([draw.norm_bound for draw in draws], dtype=torch.float64)
    options = {"noise_std": 1.0, "norm_bound": norms, "delta": 0.1}
    policy = tb.igp_ucb(kernel, **options) if name == "igp_ucb" else tb.pi_gp_ucb(kernel, nu=1.5, horizon=HORIZON, **options)
    history = tb.run(policy, environment, HORIZON, generator=[generator(seed) for seed in range(DRAWS)])
    regret = torch.tensor([history.cumulative_regret(row)[-1] for row in range(DRAWS)], dtype=torch.float64)
    return regret / (HORIZON * (environment.optimum - environment.means.mean(dim=-1)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("d", "most"), [(1, 0.4), (2, 0.85)])
def test_both_beat_uniform_and_the_partition_does_not_lose(d, most):
    """Short runs: IGP-UCB well below uniform; π-GP-UCB within 5 % of it in one dimension, below it in two."""
    igp, partitioned = fractions("igp_ucb", d).mean(), fractions("pi_gp_ucb", d).mean()
    assert igp <= most
    assert partitioned <= (1.05 if d == 1 else 1.0) * igp
