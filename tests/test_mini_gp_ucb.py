"""mini-GP-UCB against a plain loop, and the bounds on its switches and its regret."""

from __future__ import annotations

import math

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from problems import NOISE_STD, Problem, generator, kernel_pair

import torchbandits as tb
from torchbandits.batching import Repeat

DELTA, F, LAM = 0.1, 1.0, NOISE_STD**2


def width(log_det: float) -> float:
    return math.sqrt(F**2 + NOISE_STD**2 / LAM * (log_det + 2 * math.log(1 / DELTA)))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("threshold", [1.1, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_picks_are_those_of_a_plain_loop(seed: int, threshold: float):
    theirs, ours = kernel_pair("matern32")
    problem = Problem(seed=seed, near_duplicates=5)
    policy = tb.mini_gp_ucb(theirs, noise_std=NOISE_STD, norm_bound=F, delta=DELTA, ratio_threshold=threshold)
    bandit = tb.Bandit(policy, problem.tensor)
    K = ours(problem.arms, problem.arms)
    n, s, pull = np.zeros(problem.a), np.zeros(problem.a), 0
    while pull < 400:
        known = np.flatnonzero(n)
        noise = np.diag(LAM / n[known])
        solved = np.linalg.solve(K[np.ix_(known, known)] + noise, K[known])
        mean, variance = solved.T @ (s[known] / n[known]), np.diag(K) - (K[known] * solved).sum(0)
        w = width(oracles.log_det(K[np.ix_(known, known)], n[known], LAM))
        assert float(bandit.width) == pytest.approx(w, rel=1e-9)
        arm = oracles.argmax(mean + w * np.sqrt(np.maximum(variance, 0)), np.ones(problem.a, dtype=bool))
        times = max(1, math.floor((threshold - 1) / (variance[arm] / LAM)))
        selection = bandit.ask()
        assert selection.index.tolist() == [arm] * times
        rewards = problem.rewards(pull % 4000, selection.index)
        bandit.tell(selection, rewards)
        n[arm], s[arm], pull = n[arm] + times, s[arm] + float(rewards.sum()), pull + times
    assert pull > 400 or threshold < 2


def switches_and_bound(threshold: float, seed: int) -> tuple[int, float]:
    kernel, problem = kernel_pair("rbf")[0], Problem(seed=seed, a=200)
    environment = tb.environments.Table(problem.tensor, torch.as_tensor(problem.f), NOISE_STD)
    policy = tb.mini_gp_ucb(kernel, noise_std=NOISE_STD, norm_bound=F, delta=DELTA, ratio_threshold=threshold)
    history = tb.run(policy, environment, 3000, generator=generator(seed))
    gains = 2 * history.batches["information_gain"]
    return len(gains), gains[-2] / math.log((threshold + 1) / 2) + 1  # the last batch may be cut by the horizon


@pytest.mark.sweep(1)
@pytest.mark.parametrize("threshold", [1.1, 2.0, 10.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_number_of_switches_is_bounded_by_what_was_learned(seed: int, threshold: float):
    switches, bound = switches_and_bound(threshold, seed)
    assert switches <= bound
    assert switches < 1000


@pytest.mark.exhaustive
def test_a_larger_ratio_switches_less():
    few, more, most = (switches_and_bound(c, 0)[0] for c in (10.0, 2.0, 1.1))
    assert few < more < most


def test_within_a_batch_the_variance_shrinks_by_at_most_the_ratio():
    """The bound of the rule: σ²_fb(x) / σ²_t(x) ≤ C² up to the last pull, at every arm."""
    kernel, problem = kernel_pair("matern52")[0], Problem(seed=2)
    policy = tb.mini_gp_ucb(kernel, noise_std=NOISE_STD, norm_bound=F, delta=DELTA, ratio_threshold=1.5)
    bandit = tb.Bandit(policy, problem.tensor)
    every = torch.arange(problem.a)
    bandit.observe(every, torch.full((problem.a,), 10.0).double(), 10 * problem.rewards(0, every))
    seen = 0
    for step in range(60):
        selection = bandit.ask(limit=50)
        before = bandit.loop.state.arm_leverage().clone()
        y = problem.rewards(step * 50, selection.index)
        bandit.tell(selection[:-1], y[:-1])
        if len(selection) > 1:
            seen += 1
            assert float((before / bandit.loop.state.arm_leverage()).max()) <= 1.5 + 1e-9
        bandit.tell(bandit.ask(), y[-1:])
    assert seen > 10


def test_picks_stay_bounded_where_nothing_is_left_to_learn():
    """A leverage of zero would ask for infinitely many pulls."""
    arms = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    kernel = gpytorch.kernels.LinearKernel().double()
    policy = tb.mini_gp_ucb(kernel, noise_std=1.0, max_batch_size=500, width=tb.widths.Constant(0.0))
    bandit = tb.Bandit(policy, arms)
    bandit.tell(torch.tensor([1] * 3), -torch.ones(3, dtype=torch.float64))
    assert bandit.ask().index.tolist() == [0] * 500


@pytest.mark.exhaustive
def test_one_switch_costs_the_same_whatever_the_number_of_pulls():
    problem = Problem(seed=0, a=30)
    policy = tb.mini_gp_ucb(kernel_pair("rbf")[0], noise_std=NOISE_STD, ratio_threshold=1.1)
    environment = tb.environments.Table(problem.tensor, torch.as_tensor(problem.f), NOISE_STD)
    history = tb.run(policy, environment, 100_000, generator=generator(0))
    assert len(history.batches["size"]) < 1500
    assert history.batches["distinct_arms"][-1] <= 30


def test_a_batch_without_a_cap_is_refused():
    with pytest.raises(tb.errors.ArgumentError, match="max_batch_size"):
        Repeat(max_batch_size=None)
