"""Arms that are known well enough, against the definition."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch

import torchbandits as tb
from torchbandits.policies.state import TableState


@pytest.mark.parametrize("noise_std", [0.02, 0.2, 1.0])
def test_known_arms_are_those_of_the_definition(noise_std: float):
    rng = np.random.default_rng(0)
    arms = torch.from_numpy(rng.random((40, 2)))
    arms[39] = arms[0]
    rows = (2, 40)
    pulled = torch.from_numpy(rng.integers(0, 20, size=(2, 90)))
    rewards = torch.from_numpy(rng.normal(size=(2, 40))).gather(-1, pulled) + noise_std * torch.from_numpy(
        rng.normal(size=(2, 90))
    )
    bandit = tb.Bandit(
        tb.gp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=noise_std, refit_every=10**6),
        arms,
        generator=[torch.Generator().manual_seed(seed) for seed in range(2)],
    )
    bandit.tell(pulled, rewards)
    state = bandit.loop.state
    assert isinstance(state, TableState)
    found = bandit.policy.known_arms(state)
    found = torch.zeros(rows, dtype=torch.bool) if found is None else found
    assert found.shape == rows
    for row in range(2):
        own = {arm: rewards[row][pulled[row] == arm].numpy() for arm in set(pulled[row].tolist())}
        averages = np.array([y.mean() for y in own.values()])
        between = averages.var(ddof=1) - np.mean([noise_std**2 / len(y) for y in own.values()])
        known = {a for a, y in own.items() if len(y) >= 3 and noise_std**2 / len(y) <= 0.04 * between}
        known |= {39} if 0 in known else set()
        assert set(found[row].nonzero().flatten().tolist()) == known
        assert known if noise_std < 1 else not known


def test_of_a_single_arm_nothing_is_known():
    arms = torch.rand(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bandit = tb.Bandit(tb.gp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1, refit_every=10**6), arms)
    bandit.tell(torch.tensor([2, 2, 2, 2]), torch.ones(4, dtype=torch.float64))
    state = bandit.loop.state
    assert isinstance(state, TableState)
    assert bandit.policy.known_arms(state) is None


def test_a_kernel_that_is_given_leaves_out_no_arms():
    arms = torch.rand(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pulled = torch.arange(5).repeat(20)
    for refit_every in (None, 10**6):
        bandit = tb.Bandit(tb.gp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1, refit_every=refit_every), arms)
        bandit.tell(pulled, pulled.double())
        assert (bandit.policy.known_arms(bandit.loop.state) is None) == (refit_every is None)
