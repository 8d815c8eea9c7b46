"""The compiled loops of small sparse posteriors, against dense NumPy and against the general form in PyTorch."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch

import torchbandits as tb
from torchbandits.linalg import compiled

pytestmark = pytest.mark.skipif(not compiled.COMPILED, reason="numba is not installed: the general form is used")


@pytest.mark.parametrize(("m", "A", "c"), [(1, 1, 1), (2, 7, 1), (5, 513, 2), (12, 1300, 1), (33, 600, 2)])
@pytest.mark.parametrize("lower", [False, True])
def test_sweep_is_the_dense_product(m: int, A: int, c: int, lower: bool):
    draw = np.random.default_rng(m + A)
    triangle = np.tril(draw.normal(size=(m, m))) if lower else np.triu(draw.normal(size=(m, m)))
    N, a, block = np.ascontiguousarray(triangle.T), draw.normal(size=(m, c)), draw.normal(size=(2 * m, A))
    slots, prior = draw.permutation(2 * m)[:m], m * draw.random(A)
    leverage, channels = np.empty(A), np.empty((c, A))
    compiled.sweep_kept(N, a, lower, block, slots, prior, leverage, channels)
    np.testing.assert_allclose(channels, a.T @ block[slots], atol=1e-12 * m)
    np.testing.assert_allclose(leverage, np.maximum(prior - ((triangle @ block[slots]) ** 2).sum(0), 0), atol=1e-12 * m)


@pytest.mark.parametrize("A", [1, 2, 7, 500, 1303])
def test_bounds_are_those_of_numpy_and_the_first_of_equals_is_the_best(A: int):
    draw = np.random.default_rng(A)
    mean, leverage, upper, largest = draw.normal(size=A), draw.random(A), np.empty(A), np.empty(2)
    expected = mean + 1.7 * np.sqrt(0.3 * leverage)
    best = int(expected.argmax())
    if A > 2:  # an equal of the best before it, but for rounding
        other, best = best, (best - 1) % A
        mean[best], leverage[best] = mean[other], leverage[other] * (1 + 1e-16)
        expected, best = mean + 1.7 * np.sqrt(0.3 * leverage), min(best, other)
    assert compiled.upper_bounds(mean, leverage, 0.3, 1.7, 16 * np.finfo(float).eps, upper, largest) == best
    np.testing.assert_allclose(upper, expected, rtol=1e-15, atol=1e-15)
    assert largest[0] == upper.max()
    assert largest[1] == pytest.approx((mean - 1.7 * np.sqrt(0.3 * leverage)).max(), abs=1e-14)
    for wrong in (np.nan, np.inf, -np.inf):
        mean[A // 2] = wrong
        assert compiled.upper_bounds(mean, leverage, 0.3, 1.7, 0.0, upper, largest) == -1


def test_a_number_that_is_not_finite_stays_so():
    block, leverage = np.ones((1, 3)), np.empty(3)
    block[0, 1] = np.nan
    compiled.sweep_kept(
        np.ones((1, 1)), np.ones((1, 1)), True, block, np.zeros(1, dtype=np.int64), np.ones(3), leverage, np.empty((1, 3))
    )
    assert np.isnan(leverage).tolist() == [False, True, False]


@pytest.mark.parametrize(("m", "u", "c"), [(1, 1, 1), (3, 5, 2), (20, 70, 1)])
def test_factors_are_those_of_dense_algebra(m: int, u: int, c: int):
    draw = np.random.default_rng(u)
    X = draw.normal(size=(u, 3))
    K, own = np.exp(-((X[:, None] - X) ** 2).sum(-1)), np.sort(draw.permutation(u)[:m])
    n, s, lam = draw.integers(1, 9, u).astype(float), draw.normal(size=(u, c)), 0.05
    good, log_det, U, Z, V, W, J, moment, w, N, a = compiled.factorise(K[own], own, n, s, lam, 1e-14, 1e6)
    assert good
    K_S, Ui = K[np.ix_(own, own)], np.linalg.inv(U)
    features = Ui.T @ K[own]
    ridge = (features * n) @ features.T + lam * np.eye(m)
    close = {"rtol": 1e-7, "atol": 1e-9}
    for ours, dense in (
        (U.T @ U, K_S), (Z, features), (V, ridge), (W.T @ W, ridge), (J @ J.T, np.linalg.inv(ridge)), (moment, features @ s),
        (w, np.linalg.solve(ridge, features @ s)), (a, Ui @ np.linalg.solve(ridge, features @ s)),
        (N @ N.T, Ui @ (np.eye(m) / lam - np.linalg.inv(ridge)) @ Ui.T),
    ):  # fmt: skip
        np.testing.assert_allclose(ours, dense, **close)
    assert log_det == pytest.approx(np.linalg.slogdet(ridge)[1], rel=1e-9)
    for triangle in (U, W, J, N):
        assert np.array_equal(triangle, np.triu(triangle))


def test_kept_columns_are_read_at_arms():
    block, slots, arms = np.random.default_rng(0).normal(size=(7, 40)), np.array([5, 0, 3]), np.array([39, -1, 0, 7])
    np.testing.assert_array_equal(compiled.read_kept(block, slots, arms), block[np.ix_(slots, np.maximum(arms, 0))])
    assert compiled.read_kept(block, slots, arms[:0]).shape == (3, 0)


def test_a_pivot_at_rounding_is_refused():
    K = np.ones((2, 2))  # two equal points
    assert not compiled.factorise(K, np.arange(2), np.ones(2), np.ones((2, 1)), 1.0, 0.0, 1e6)[0]


def test_uneven_weights_are_refused():
    K, targets = np.eye(3), np.ones((3, 1))
    assert compiled.factorise(K, np.arange(3), np.array([1.0, 1e5, 1.0]), targets, 1.0, 0.0, 1e6)[0]
    assert not compiled.factorise(K, np.arange(3), np.array([1.0, 1e7, 1.0]), targets, 1.0, 0.0, 1e6)[0]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("policy", ["bkb", "batch_bkb"])
def test_a_run_is_the_same_without(policy: str, monkeypatch: pytest.MonkeyPatch):
    draw = torch.Generator().manual_seed(3)
    arms = torch.rand(300, 3, generator=draw, dtype=torch.float64)
    rewards = torch.sin(5 * arms.sum(dim=-1)) + 0.1 * torch.randn(300, generator=draw, dtype=torch.float64)

    def play() -> tuple[list[int], torch.Tensor, torch.Tensor]:
        kernel = gpytorch.kernels.RBFKernel().double()
        kernel.lengthscale = 0.6
        bandit, picks = tb.Bandit(getattr(tb, policy)(kernel, noise_std=0.1, width=tb.widths.Constant(2.0)), arms), []
        while int(bandit.pulls) < 60:
            selection = bandit.ask(limit=60 - int(bandit.pulls))
            picks += selection.index.tolist()
            bandit.tell(selection, rewards[selection.index])
        marginals = bandit.posterior(arms)
        return picks, marginals.mean, marginals.variance

    used = []
    monkeypatch.setattr(compiled, "sweep_kept", lambda *args, original=compiled.sweep_kept: used.append(original(*args)))
    picks, mean, variance = play()
    assert used, "the compiled pass was not taken"
    monkeypatch.setattr(compiled, "COMPILED", False)
    used.clear()
    plain = play()
    assert not used
    assert picks == plain[0]
    torch.testing.assert_close(mean, plain[1], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(variance, plain[2], rtol=1e-8, atol=1e-9)
