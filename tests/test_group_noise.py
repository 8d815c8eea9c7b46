"""Noise variances of groups: a dense heteroscedastic Gaussian process in NumPy has the same evidence and the same maximum."""

from __future__ import annotations

import math

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from problems import Problem, kernel_pair, rbf
from scipy.optimize import minimize
from torch import Tensor

import torchbandits as tb
from torchbandits import errors
from torchbandits.fitting.groups import GroupAverages

TRUE = {"A": 0.1, "B": 0.6, "C": 0.02}  # standard deviations


def rewards_of(seed: int, n: int = 90, repeats: bool = True) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Points, rewards and groups of a draw from the prior."""
    rng = np.random.default_rng(seed)
    distinct = rng.uniform(size=(n // 2 if repeats else n, 2))
    points = distinct[rng.integers(len(distinct), size=n)] if repeats else distinct
    K = oracles.rbf(0.4)(points, points)
    f = np.linalg.cholesky(K + 1e-9 * np.eye(n)) @ rng.normal(size=n)
    if repeats:  # repeated points have the same expected reward
        _, first, own = np.unique(points, axis=0, return_index=True, return_inverse=True)
        f = f[first][own.reshape(-1)]
    groups = [str(name) for name in rng.choice(list(TRUE), n)]
    return points, f + rng.normal(size=n) * [TRUE[name] for name in groups], groups


def dense(K: np.ndarray, y: np.ndarray, variances: np.ndarray) -> float:
    """Log density of the rewards, one row and column for each."""
    S = K + np.diag(variances)
    return float(-0.5 * (y @ np.linalg.solve(S, y) + np.linalg.slogdet(S)[1] + len(y) * math.log(2 * math.pi)))


@pytest.mark.parametrize("repeats", [True, False])
def test_the_evidence_is_that_of_a_dense_process(repeats: bool):
    points, y, groups = rewards_of(0, repeats=repeats)
    K = oracles.rbf(0.4)(points, points)
    names = sorted(TRUE)
    own = torch.tensor([names.index(name) for name in groups])
    data = GroupAverages.of(torch.tensor(points), torch.tensor(y), own, 3)
    assert repeats == (len(data.averages) < len(y))
    covariance = torch.tensor(oracles.rbf(0.4)(data.points.numpy(), data.points.numpy()))
    for variances in ([0.01, 0.36, 0.0004], [1.0, 1.0, 1.0], [3.0, 0.1, 0.02]):
        found = float(data.log_evidence(covariance, torch.tensor(variances, dtype=torch.float64)))
        assert found == pytest.approx(dense(K, y, np.array(variances)[own.numpy()]), rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_fit_is_the_maximum_of_the_dense_evidence(seed: int):
    points, y, groups = rewards_of(seed)
    names = sorted(TRUE)
    own, K = np.array([names.index(name) for name in groups]), oracles.rbf(0.4)(points, points)
    noise = tb.GroupNoise.fit(rbf(), torch.tensor(points), torch.tensor(y) + 5.0, groups, prior_mean=5.0)
    found = np.array([float(noise.variances[name]) for name in names])

    def loss(log: np.ndarray) -> float:
        return -dense(K, y, np.exp(log)[own])

    oracle = min((minimize(loss, np.full(3, start), method="Nelder-Mead") for start in (-6.0, -2.0)), key=lambda r: r.fun)
    assert loss(np.log(found)) <= oracle.fun + 1e-6
    np.testing.assert_allclose(np.log(found), oracle.x, atol=0.02)
    for name, variance in zip(names, found, strict=True):
        assert 0.5 < math.sqrt(variance) / TRUE[name] < 2


def test_told_with_these_variances_the_posterior_is_the_dense_one():
    problem = Problem(seed=1, a=30)
    rng = np.random.default_rng(0)
    index, groups = torch.tensor(rng.integers(30, size=40)), [str(g) for g in rng.choice(["A", "B"], 40)]
    rewards = problem.rewards(0, index) + torch.tensor(rng.normal(size=40) * np.where(np.array(groups) == "B", 0.5, 0.05))
    noise = tb.GroupNoise.fit(rbf(), problem.tensor[index], rewards, groups)
    bandit = tb.Bandit(tb.gp_ucb(rbf(), noise_std=0.1), problem.tensor)
    bandit.tell(index, rewards, noise_var=noise(groups))
    K, own = oracles.rbf(0.4)(problem.arms, problem.arms), noise(groups).numpy()
    S = K[np.ix_(index, index)] + np.diag(own)
    marginals = bandit.posterior(problem.tensor)
    np.testing.assert_allclose(marginals.mean, K[:, index] @ np.linalg.solve(S, rewards.numpy()), atol=1e-7)
    spread = K.diagonal() - np.einsum("ij,ji->i", K[:, index], np.linalg.solve(S, K[index]))
    np.testing.assert_allclose(marginals.variance, spread, atol=1e-7)


def test_rows_are_singles_and_have_variances_of_their_own():
    points, y, groups = rewards_of(3, n=40)
    other = y + np.random.default_rng(9).normal(size=40) * 0.5
    rows = tb.GroupNoise.fit(rbf(), torch.tensor(points), torch.tensor(np.stack([y, other])), groups)
    assert rows(["A", "B"]).shape == (2, 2)
    for row, rewards in enumerate((y, other)):
        single = tb.GroupNoise.fit(rbf(), torch.tensor(points), torch.tensor(rewards), groups)
        torch.testing.assert_close(rows(["A", "B", "C"])[row], single(["A", "B", "C"]))
    kernel = kernel_pair("matern32")[0]
    assert bool((tb.GroupNoise.fit(kernel, torch.tensor(points), torch.tensor(y), groups)(["A"]) > 0).all())


def test_a_prior_counts():
    points, y, groups = rewards_of(4, n=30, repeats=False)
    prior = gpytorch.priors.LogNormalPrior(math.log(0.04), 0.01)
    noise = tb.GroupNoise.fit(rbf(), torch.tensor(points), torch.tensor(y), groups, prior=prior)
    assert all(float(v) == pytest.approx(0.04, rel=0.05) for v in noise.variances.values())


def test_a_bad_call_names_the_remedy():
    noise = tb.GroupNoise({"A": 0.01, "B": 0.25})
    torch.testing.assert_close(noise(["B", "A"]), torch.tensor([0.25, 0.01], dtype=torch.float64))
    with pytest.raises(errors.ArgumentError, match="no group 'C', only 'A', 'B'"):
        noise(["C"])
    with pytest.raises(errors.NonFiniteError, match="that of 'A' is 0"):
        tb.GroupNoise({"A": 0.0})
    with pytest.raises(errors.ArgumentError, match="'B' has a single reward"):
        tb.GroupNoise.fit(rbf(), torch.rand(3, 2), torch.rand(3), ["A", "A", "B"])
    with pytest.raises(errors.ShapeError, match="groups n names"):
        tb.GroupNoise.fit(rbf(), torch.rand(3, 2), torch.rand(3), ["A", "A"])
    with pytest.raises(errors.ArgumentError, match="more than max_points"):
        tb.GroupNoise.fit(rbf(), torch.rand(4, 2), torch.rand(4), ["A"] * 4, max_points=3)


def test_names_are_texts_numbers_or_values_of_an_array_and_never_missing():
    noise = tb.GroupNoise({1: 0.01, 2: 0.25})
    expected = torch.tensor([0.25, 0.01], dtype=torch.float64)
    for groups in ([2, 1], (2, 1), torch.tensor([2, 1]), np.array([2, 1]), ["2", "1"]):
        torch.testing.assert_close(noise(groups), expected)
    assert noise([]).shape == (0,)
    assert tb.GroupNoise({"A": torch.ones(3)})([]).shape == (3, 0)
    for missing in (None, float("nan"), np.datetime64("NaT", "s")):
        with pytest.raises(errors.ArgumentError, match="the name at place 1 is missing"):
            noise([1, missing])
        with pytest.raises(errors.ArgumentError, match="missing, 2 of 4"):
            tb.GroupNoise.fit(rbf(), torch.rand(4, 2), torch.rand(4), ["A", "A", missing, missing])
    with pytest.raises(errors.ArgumentError, match="two groups have the same name"):
        tb.GroupNoise({1: 0.01, "1": 0.25})


def test_nothing_to_fit_to_and_rows_that_are_none_are_refused():
    with pytest.raises(errors.ArgumentError, match="there are none to fit to"):
        tb.GroupNoise.fit(rbf(), torch.rand(0, 2), torch.rand(0), [])
    with pytest.raises(errors.ShapeError, match="points must be n x d"):
        tb.GroupNoise.fit(rbf(), torch.rand(2, 6, 2), torch.rand(6), ["A", "B"] * 3)


@pytest.mark.parametrize(
    "rewards", [torch.zeros(8), 1e8 * torch.tensor([1.0, -1.0] * 4)], ids=["without noise", "of another unit"]
)
def test_a_variance_at_the_end_of_the_range_is_said(rewards: Tensor):
    points = torch.rand(4, 2, generator=torch.Generator().manual_seed(0)).repeat_interleave(2, dim=0)
    with pytest.warns(errors.DiagnosticWarning, match="variance of 'A', 'B' is the smallest or the largest"):
        tb.GroupNoise.fit(rbf(), points, rewards, ["A"] * 4 + ["B"] * 4)
