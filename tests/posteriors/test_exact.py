"""Factors of an exact posterior by one Cholesky factorisation of the covariance of average rewards."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch
from problems import generator, kernel_pair
from torch import Tensor

import torchbandits as tb
from torchbandits.posteriors import GaussianProcess
from torchbandits.posteriors.exact import ExactFactors
from torchbandits.posteriors.factors import Factors


def points(u: int, seed: int = 0) -> Tensor:
    return torch.rand(u, 2, generator=generator(seed), dtype=torch.float64)


def told(kernel: str, x: Tensor, n: Tensor, regularization: float, **options: object) -> tuple[GaussianProcess, Tensor]:
    """A posterior of points `batch_shape x u x d` pulled n times each (no point where n is −1), and the sums of rewards."""
    process = GaussianProcess(kernel_pair(kernel)[0], regularization, dim=2, batch_shape=n.shape[:-1], **options)
    rows = process.append_(x, n >= 0)
    s = n.clamp_min(0) * torch.sin(5 * x[..., 0])
    process.add_(rows, n.clamp_min(0), s, s.square() / n.clamp_min(1))
    return process, s


def swept(process: GaussianProcess, at: Tensor) -> tuple[Tensor, Tensor]:
    """Leverages and regression outputs of points `n x d`, of which k(x, x) is 1, by the factors of a sweep."""
    factors = process.sweep_factors()
    columns = process.kernel(process.statistics.points, at).to_dense()
    left = 1 / process.regularization - (factors.N.mT @ columns).square().sum(dim=-2)
    return left, factors.a.mT @ columns


@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
@pytest.mark.parametrize("prior_mean", [0.0, 0.7, "estimate"])
def test_it_is_the_exact_posterior_to_rounding_also_beside_near_duplicates(kernel, prior_mean):
    """Half of the points are 1e-5 from the other half: a root of their kernel matrix would lose eight digits of the means."""
    lam, x, at = 0.01, points(150), points(40, seed=1)
    x[75:] = x[:75] + 1e-5 * points(75, seed=2)
    n = torch.arange(150.0, dtype=torch.float64) % 3 + 1
    process, s = told(kernel, x, n, lam, prior_mean=prior_mean)
    leverage, channels = swept(process, at)
    function = kernel_pair(kernel)[1]
    A = function(x.numpy(), x.numpy()) + np.diag(lam / n.numpy())
    k = function(x.numpy(), at.numpy())
    solved = np.linalg.solve(A, k)
    np.testing.assert_allclose(lam * leverage.numpy(), 1 - (k * solved).sum(axis=0), atol=1e-12)
    mean = process.reward_mean(channels)
    mu = float((s.sum() / n.sum()) if prior_mean == "estimate" else prior_mean)
    np.testing.assert_allclose(mean.numpy(), mu + solved.T @ ((s / n).numpy() - mu), atol=1e-11)
    expected = oracles.log_det(function(x.numpy(), x.numpy()), n.numpy(), lam)
    np.testing.assert_allclose(float(process.log_det), expected, rtol=1e-10)
    assert isinstance(process.known_factors, ExactFactors)


def test_points_without_pulls_and_padding_are_left_out():
    x = torch.stack([points(12), points(12, seed=3)])
    n = torch.ones(2, 12, dtype=torch.float64)
    n[0, 4], n[1, 9:] = 0, -1
    process, _ = told("matern52", x, n, 0.1)
    at = points(20, seed=1)
    both = swept(process, at)
    for row, live in enumerate(n > 0):
        alone, _ = told("matern52", x[row, live], n[row, live], 0.1)
        for found, expected in zip(both, swept(alone, at), strict=True):
            torch.testing.assert_close(found[row], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(process.log_det[row], alone.log_det, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", ["rbf"])
def test_a_row_that_fails_takes_the_other_way_alone(kernel):
    """Pivots of 1e-14 are rounding errors of the kernel. The other row has the factors that it has by itself."""
    x = torch.stack([points(30), 5 * points(30, seed=3)])
    x[0, 15:] = x[0, :15] + 1e-9
    n = torch.ones(2, 30, dtype=torch.float64)
    process, _ = told(kernel, x, n, 1e-15)
    K = process.kernel(x, x).to_dense()
    good = ExactFactors.of(K, n, process.targets(), 1e-15).good
    assert good is not None
    assert good.tolist() == [False, True]
    N = process.sweep_factors().N
    assert torch.isfinite(N).all()
    alone, _ = told(kernel, x[1], n[1], 1e-15)
    torch.testing.assert_close(N[1], alone.sweep_factors().N, rtol=1e-12, atol=0)
    assert not isinstance(process.known_factors, ExactFactors)


def test_further_pulls_and_points_drop_them():
    process, _ = told("matern52", points(10), torch.ones(10, dtype=torch.float64), 0.1)
    process.sweep_factors()
    assert isinstance(process.known_factors, ExactFactors)
    one = torch.ones(1, dtype=torch.float64)
    process.add_(torch.tensor([3]), one, one, one)
    assert process.known_factors is None
    process.sweep_factors()
    row = process.append_(points(1, seed=4), torch.ones(1, dtype=torch.bool))
    assert process.known_factors is None
    process.add_(row, one, one, one)
    at = points(20, seed=1)
    process.sweep_factors()
    leverage = process.leverage(at)
    assert isinstance(process.known_factors, Factors)
    torch.testing.assert_close(swept(process, at)[0], leverage, rtol=1e-9, atol=1e-9)


def test_a_fit_of_the_kernel_needs_no_other_factors(monkeypatch: pytest.MonkeyPatch):
    """The factors that take updates need six times as long."""
    bandit = tb.Bandit(tb.auto(), points(200))

    def of(*_: object) -> Factors:
        raise AssertionError("a tell that fits the kernel computed the factors of the posterior")

    monkeypatch.setattr(Factors, "of", of)
    bandit.tell(torch.arange(60), torch.sin(5 * points(60)[:, 0]))
    monkeypatch.undo()
    posterior, mean = bandit.posterior, bandit.loop.state.table.mean()
    torch.testing.assert_close(mean, posterior.marginals(points(200), None).mean, rtol=1e-7, atol=1e-7)
