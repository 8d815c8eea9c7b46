"""REDS on a drifting function: its width against many orders of one design, and its periods against a dense oracle."""

from __future__ import annotations

import math

import numpy as np
import oracles
import oracles_phased
import pytest
import torch
from problems import BOUNDED, COMMON, Problem, generator, kernel_pair, rbf

import torchbandits as tb
from torchbandits import errors
from torchbandits.widths import Constant


def alive(bandit: tb.Bandit) -> list[int]:
    return bandit.loop.state.survivors.alive.nonzero().squeeze(-1).tolist()


def drifting(turns: float, steps: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Functions of norm 1 that turn from one into another, `steps x A`, their kernel, and the largest change of any arm."""
    x, rng = np.linspace(0, 1, 30)[:, None], np.random.default_rng(4)
    K = oracles.rbf(0.3)(x, x)
    a = rng.normal(size=(2, 30))
    a /= np.sqrt(np.einsum("ij,jk,ik->i", a, K, a))[:, None]
    angle = np.linspace(0, 2 * math.pi * turns, steps)[:, None]
    weights = np.cos(angle) * a[0] + np.sin(angle) * a[1]
    weights /= np.sqrt(np.einsum("ij,jk,ik->i", weights, K, weights))[:, None]
    f = weights @ K
    return f, K, float(np.ptp(f, axis=0).max())


@pytest.mark.parametrize("turns", [0.2, 1.0])
def test_the_width_holds_for_the_average_of_a_drifting_function_and_no_smaller_one_does(turns: float):
    """Of 400 random orders of one design, the average of f leaves the bounds of any arm in at most a fraction δ."""
    f, K, change = drifting(turns, steps=60)
    lam, noise, delta = 0.01, 0.02, 0.1
    policy = tb.reds(rbf(0.3), horizon=60, noise_std=noise, regularization=lam, norm_bound=1.0, delta=delta, drift=change)
    bandit = tb.Bandit(policy, torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1))
    batches = len(policy.lengths)
    used = oracles_phased.fixed_design_width(math.hypot(noise, change), 1.0, delta, lam, 30 * batches)
    assert float(bandit.width) == pytest.approx(used, rel=1e-12)
    rng, average = np.random.default_rng(1), f.mean(axis=0)
    design = rng.integers(30, size=60)
    worst = []
    for _ in range(400):
        order = rng.permutation(60)
        rewards = f[np.arange(60), design[order]] + noise * rng.normal(size=60)
        mean, std = oracles_phased.posterior(K, design[order].tolist(), rewards.tolist(), lam)
        worst.append((np.abs(average - mean) / std).max())
    still = oracles_phased.fixed_design_width(noise, 1.0, delta, lam, 30 * batches)
    assert np.mean(np.array(worst) > used) <= delta
    assert np.max(worst) > 0.15 * used
    if turns == 1.0:
        assert np.mean(np.array(worst) > still) > delta, "the width of a function that stays is too small"


def test_in_the_order_of_time_the_same_design_lies_outside():
    """The reason for random draws: three arms, sixty pulls each, while their expected rewards rise and fall. No noise."""
    steps, lam, delta = 180, 0.01, 0.1
    K, time = np.eye(3) + 1e-6, np.linspace(0, 2 * math.pi, steps)
    f = 0.5 * np.stack([np.sin(time), np.cos(time), np.sin(time + 1)], axis=-1)
    width = oracles_phased.fixed_design_width(float(np.ptp(f, axis=0).max()), 1.0, delta, lam, 3)
    design, rng, outside = np.repeat(np.arange(3), 60), np.random.default_rng(2), []
    for order in (np.arange(steps), *(rng.permutation(steps) for _ in range(300))):
        mean, std = oracles_phased.posterior(K, design[order].tolist(), f[np.arange(steps), design[order]].tolist(), lam)
        outside.append((np.abs(f.mean(axis=0) - mean) > width * std).any())
    assert outside[0]
    assert np.mean(outside[1:]) <= delta


@pytest.mark.parametrize("seed", [0, 1])
def test_each_period_is_that_of_the_oracle(seed: int):
    """Draws, survivors and certificates. After the horizon all arms are back, and the next tell drops the observations."""
    problem, T, width, lam = Problem(seed=seed, a=50), 30, 0.8, 0.01
    policy = tb.reds(rbf(), horizon=T, first_batch=5, width=Constant(width), regularization=lam, drift=0.5, **COMMON)
    bandit, draws = tb.Bandit(policy, problem.tensor, generator=generator(3)), generator(3)
    K = oracles.rbf(0.4)(problem.arms, problem.arms)
    sizes = []
    for _ in range(3):
        oracle, told = oracles_phased.BPE(K, width, lam, list(range(50))), []
        assert alive(bandit) == oracle.alive
        for length in policy.lengths:
            selection = bandit.ask()
            expected = torch.tensor(oracle.alive)[torch.randint(len(oracle.alive), (length,), generator=draws)]
            assert selection.index.tolist() == expected.tolist()
            rewards = problem.rewards(int(bandit.pulls), selection.index)
            report = bandit.tell(selection, rewards)
            oracle.upper, oracle.lower = math.inf, -math.inf
            oracle.finish(selection.index.tolist(), rewards.tolist())
            told += list(zip(selection.index.tolist(), rewards.tolist(), strict=True))
            mean, std = oracles_phased.posterior(K, [arm for arm, _ in told], [y for _, y in told], lam)
            marginals = bandit.posterior(problem.tensor)
            np.testing.assert_allclose(marginals.mean, mean, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(marginals.variance, std**2, rtol=1e-6, atol=1e-9)
            if length != policy.lengths[-1]:
                assert alive(bandit) == oracle.alive
                assert float(report.certificate) == pytest.approx(oracle.upper - oracle.lower, rel=1e-6, abs=1e-9)
        sizes.append(len(oracle.alive))
        assert int(bandit.best_arm()) == max({arm for arm, _ in told}, key=lambda arm: mean[arm])
    assert int(bandit.pulls) == 3 * T
    assert max(sizes) < 50


def test_rows_begin_anew_when_their_own_period_ends():
    problem, options = Problem(seed=2, a=40), COMMON | {"horizon": 14, "first_batch": 4, "width": Constant(0.7), "drift": 0.5}
    singles = [tb.Bandit(tb.reds(rbf(), **options), problem.tensor, generator=generator(seed)) for seed in (1, 2)]
    rows = tb.Bandit(tb.reds(rbf(), **options), problem.tensor, generator=[generator(1), generator(2)])
    limits = torch.tensor([2, 3])
    for _ in range(12):
        selection = rows.ask(limit=limits)
        rewards = torch.full(selection.index.shape, torch.nan, dtype=torch.float64)
        for row, single in enumerate(singles):
            own = single.ask(limit=int(limits[row]))
            assert selection.index[row][selection.mask[row]].tolist() == own.index.tolist()
            rewards[row][selection.mask[row]] = problem.rewards(int(single.pulls), own.index)
            single.tell(own, problem.rewards(int(single.pulls), own.index))
        rows.tell(selection, rewards)
        for row, single in enumerate(singles):
            assert torch.equal(rows.loop.state.survivors.alive[row], single.loop.state.survivors.alive)
            ours, theirs = rows.posterior(problem.tensor), single.posterior(problem.tensor)
            torch.testing.assert_close(ours.mean[row], theirs.mean, rtol=1e-8, atol=1e-10)
    assert [int(single.pulls) // 14 for single in singles] == [1, 2]


def test_history_is_kept_until_a_period_has_ended():
    problem = Problem(seed=2, a=40)
    policy = tb.reds(rbf(), horizon=6, first_batch=3, width=Constant(0.7), drift=0.5, **COMMON)
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(1))
    ones = torch.ones(2, dtype=torch.float64)
    bandit.observe(torch.tensor([1, 2]), ones, ones)
    for _ in range(2):
        bandit.tell(bandit.ask(), problem.rewards(0, bandit.ask().index))
    assert float(bandit.counts.sum()) == 8
    bandit.observe(torch.tensor([1]), ones[:1], ones[:1])
    assert float(bandit.counts.sum()) == 9
    bandit.tell(bandit.ask(), problem.rewards(6, bandit.ask().index))
    assert float(bandit.counts.sum()) == 3
    assert int(bandit.pulls) == 12


@pytest.mark.usefixtures("annotations_not_enforced")
def test_a_drift_is_a_positive_number():
    for wrong in (0.0, -1.0, math.nan, math.inf, "some", True):
        with pytest.raises(errors.ArgumentError, match="drift"):
            tb.reds(kernel_pair("rbf")[0], horizon=10, drift=wrong, **BOUNDED)
