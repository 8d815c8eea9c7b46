"""Fourier features: the kernel's error is within the tolerance for quadrature, and within 1/√F for random features; batch rows
are independent."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from problems import NOISE_STD, Problem, generator, kernel_pair, rbf

import torchbandits as tb
from torchbandits.embeddings import Fourier, QuadratureFourier, RandomFourier


def ard(lengthscales: list[float]) -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=len(lengthscales)).double()
    kernel.lengthscale = torch.tensor(lengthscales, dtype=torch.float64)
    return kernel


def error(features: Fourier, kernel: gpytorch.kernels.Kernel, arms: torch.Tensor) -> float:
    z = features(arms)
    return float((z.mT @ z - kernel(arms).to_dense().detach()).abs().max())


@pytest.mark.parametrize("kernel", [rbf(0.2), rbf(0.5), ard([0.2, 0.7]), kernel_pair("scaled", 0.3)[0]])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_quadrature_is_the_kernel_within_its_tolerance(kernel, tolerance):
    arms = torch.as_tensor(Problem(seed=1, a=200).arms)
    features = QuadratureFourier(tolerance=tolerance).build(kernel, arms, [], torch.Size())
    k = float(kernel(arms[:1]).to_dense().detach())
    assert error(features, kernel, arms) <= tolerance * k
    torch.testing.assert_close(features(arms).square().sum(dim=-2), features.diagonal(arms))


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52", "scaled"])
def test_random_features_approach_the_kernel(name):
    """The average over many features: 40,000 of them are within 5/√F of the kernel, everywhere."""
    kernel, arms = kernel_pair(name, 0.4)[0], torch.as_tensor(Problem(seed=1, a=60).arms)
    features = RandomFourier(40_000).build(kernel, arms, [generator(3)], torch.Size())
    k = float(kernel(arms[:1]).to_dense().detach())
    assert error(features, kernel, arms) <= k * 5 / np.sqrt(20_000)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("embedding", ["qff", "rff"])
def test_the_posterior_is_that_of_the_features_kernel(embedding):
    """The dense oracle conditions the kernel zᵀz on the pulls."""
    problem = Problem(seed=3, a=50)
    policy = tb.thompson_sampling(rbf(), embedding=embedding, noise_std=NOISE_STD, num_features=200)
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(2))
    picks = [i for batch in problem.play(bandit, 60) for i in batch]
    finite = bandit.posterior.finite
    assert finite is not None
    points = torch.cat([problem.tensor, torch.rand(20, 2, generator=generator(5), dtype=torch.float64) * 1.4 - 0.2])
    Z = finite(points).numpy()
    K = Z.T @ Z
    u = np.array(sorted(set(picks)))
    n = np.array([picks.count(i) for i in u])
    s = np.array([sum(problem.reward(t, i) for t, i in enumerate(picks) if i == arm) for arm in u])
    M = K[np.ix_(u, u)] + np.diag(NOISE_STD**2 / n)
    mean = K[:, u] @ np.linalg.solve(M, s / n)
    variance = np.diag(K) - (K[u] * np.linalg.solve(M, K[u])).sum(0)
    got = bandit.posterior(points)
    np.testing.assert_allclose(got.mean.numpy(), mean, rtol=0, atol=1e-9)
    np.testing.assert_allclose(got.variance.numpy(), variance, rtol=1e-7, atol=1e-11)
    table = bandit.loop.state.table
    assert table is not None
    np.testing.assert_allclose(NOISE_STD**2 * table.leverage.numpy(), variance[:50], rtol=1e-7, atol=1e-11)
    np.testing.assert_allclose(table.mean().numpy(), mean[:50], rtol=0, atol=1e-9)


@pytest.mark.exhaustive
def test_a_finite_table_does_not_drift():
    """After thousands of updates a table is still accurate, because it is swept again in time."""
    problem = Problem(seed=6, a=20)
    policy = tb.rff_ucb(rbf(), noise_std=NOISE_STD, num_features=30)
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(2))
    rng = np.random.default_rng(0)
    for _ in range(1100):
        index = torch.tensor([int(rng.integers(20))])
        bandit.tell(index, problem.rewards(0, index))
    table, marginals = bandit.loop.state.table, None
    assert table is not None
    bandit.posterior.invalidate_()
    marginals = bandit.posterior(problem.tensor)
    np.testing.assert_allclose(NOISE_STD**2 * table.leverage.numpy(), marginals.variance.numpy(), rtol=1e-7)
    np.testing.assert_allclose(table.mean().numpy(), marginals.mean.numpy(), atol=1e-9)
