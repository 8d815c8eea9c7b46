"""Rewards with individual noise variances: the posterior is that of a dense Gaussian process with these variances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from problems import BOUNDED, COMMON, NOISE_STD, Problem, generator, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits import errors
from torchbandits.journal import resuming
from torchbandits.testing.play import differences, everything

PROBLEM = Problem(seed=11, a=50, duplicates=4)
ARMS = [3, 8, 3, 20, 31, 8, 44, 3, 12, 20]
VARIANCES = np.array([1.0, 0.25, 9.0, 4.0, 0.01, 1.0, 100.0, 1.0, 0.5, 2.0]) * NOISE_STD**2
REWARDS = np.array([PROBLEM.reward(pull, arm) for pull, arm in enumerate(ARMS)])


def dense(arms: np.ndarray, pulled: list[int], rewards: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance on the arms under independent Gaussian noise of these variances, one row per reward."""
    kernel = oracles.rbf(0.4)
    K_ta, noisy = kernel(arms[pulled], arms), kernel(arms[pulled], arms[pulled]) + np.diag(variances)
    mean = K_ta.T @ np.linalg.solve(noisy, rewards)
    return mean, 1.0 - np.einsum("ta,ta->a", K_ta, np.linalg.solve(noisy, K_ta))


def told(policy: Any, arms: Tensor = PROBLEM.tensor, sizes: tuple[int, ...] = (1, 4, 5), **options: Any) -> tb.Bandit:
    """A bandit that was told all rewards, in tells of these sizes."""
    bandit, start = tb.Bandit(policy, arms, generator=generator(0), **options), 0
    for size in sizes:
        part = slice(start, start + size)
        bandit.tell(torch.tensor(ARMS[part]), torch.tensor(REWARDS[part]), noise_var=torch.tensor(VARIANCES[part]))
        start += size
    return bandit


def assert_dense(bandit: tb.Bandit, rtol: float = 1e-7, atol: float = 1e-9) -> None:
    mean, variance = dense(PROBLEM.arms, ARMS, REWARDS, VARIANCES)
    state = bandit.loop.state
    lam = state.posterior.regularization
    for found, expected in ((state.arm_mean(), mean), (lam * state.arm_leverage(), variance)):
        np.testing.assert_allclose(found.double().numpy(), expected, rtol=rtol, atol=atol)
    marginals = bandit.posterior(PROBLEM.tensor)
    np.testing.assert_allclose(marginals.mean.numpy(), mean, rtol=rtol, atol=atol)
    np.testing.assert_allclose(marginals.variance.numpy(), variance, rtol=rtol, atol=atol)


@pytest.mark.parametrize("sizes", [(1,) * 10, (1, 4, 5), (10,)], ids=len)
@pytest.mark.parametrize(
    "policy",
    [
        lambda: tb.gp_ucb(rbf(), **COMMON),
        lambda: tb.gp_bucb(rbf(), **BOUNDED),
        lambda: tb.batch_bkb(rbf(), oversampling=1e9, **BOUNDED),
        lambda: tb.thompson_sampling(rbf(), **BOUNDED),
    ],
    ids=["gp_ucb", "gp_bucb", "batch_bkb", "thompson_sampling"],
)
def test_the_posterior_is_that_of_a_dense_process_with_these_variances(policy, sizes):
    bandit = told(policy(), sizes=sizes)
    assert_dense(bandit, atol=1e-7)
    assert float(bandit.pulls) == 10, "rewards are counted, whatever their weight"


def test_the_information_gain_is_the_dense_one():
    bandit = told(tb.gp_ucb(rbf(), **COMMON))
    points = PROBLEM.arms[ARMS]
    gram = oracles.rbf(0.4)(points, points) / np.sqrt(VARIANCES[:, None] * VARIANCES)
    expected = np.linalg.slogdet(np.eye(10) + gram)[1]
    assert float(bandit.loop.state.log_det) == pytest.approx(expected, rel=1e-9)


def test_a_regularization_that_is_not_the_noise_is_scaled_with_it():
    """A reward with the noise of the policy counts as one pull for any λ."""
    lam, own = 0.5, tb.igp_ucb(rbf(), regularization=0.5, **BOUNDED)
    bandit = told(own)
    mean, variance = dense(PROBLEM.arms, ARMS, REWARDS, lam * VARIANCES / NOISE_STD**2)
    np.testing.assert_allclose(bandit.loop.state.arm_mean().numpy(), mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(lam * bandit.loop.state.arm_leverage().numpy(), variance, rtol=1e-8, atol=1e-10)


def test_the_policy_s_own_noise_changes_nothing():
    runs = []
    for noise_var in (None, NOISE_STD**2):
        bandit = tb.Bandit(tb.batch_bkb(rbf(), **BOUNDED), PROBLEM.tensor, generator=generator(1))
        for start in range(0, 60, 6):
            selection = bandit.ask(limit=6)
            bandit.tell(selection, PROBLEM.rewards(start, selection.index), noise_var=noise_var)
        runs.append(bandit)
    assert torch.equal(*(bandit.counts for bandit in runs))
    assert torch.equal(*(bandit.loop.state.arm_mean() for bandit in runs))


def test_summed_history_has_variances_too():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor)
    points, counts = PROBLEM.tensor[[5, 9]] + torch.tensor([[0.0], [0.01]]), torch.tensor([3.0, 2.0])
    sums, own = torch.tensor([0.6, -0.2], dtype=torch.float64), torch.tensor([4.0, 0.5]) * NOISE_STD**2
    report = bandit.observe(points, counts, sums, noise_var=own)
    kernel, x = oracles.rbf(0.4), points.numpy()
    noisy = kernel(x, x) + np.diag((own / counts).numpy())
    mean = kernel(x, PROBLEM.arms).T @ np.linalg.solve(noisy, (sums / counts).numpy())
    np.testing.assert_allclose(bandit.loop.state.arm_mean().numpy(), mean, rtol=1e-7, atol=1e-10)
    assert float(report.pulls) == 5


@pytest.mark.parametrize("kind", ["float32", "source", "rows"])
def test_other_arms(kind):
    arms = PROBLEM.tensor
    if kind == "rows":
        kernel = gpytorch.kernels.RBFKernel(batch_shape=torch.Size([2])).double()
        kernel.lengthscale = 0.4
        bandit = tb.Bandit(tb.gp_ucb(kernel, **COMMON), arms, generator=[generator(0), generator(1)])
        index = torch.tensor([ARMS, ARMS[::-1]])
        rewards = torch.tensor(np.stack([REWARDS, REWARDS[::-1]]))
        # The second row has a masked place, with invalid variances in it.
        own = torch.tensor(np.stack([VARIANCES, VARIANCES[::-1]]))
        own[1, -1], index[1, -1] = torch.nan, -1
        bandit.tell(index, rewards, noise_var=own)
        mean, _ = dense(PROBLEM.arms, ARMS, REWARDS, VARIANCES)
        other, _ = dense(PROBLEM.arms, ARMS[:0:-1], REWARDS[:0:-1], VARIANCES[:0:-1])
        np.testing.assert_allclose(bandit.loop.state.arm_mean().numpy(), np.stack([mean, other]), rtol=1e-7, atol=1e-9)
        assert bandit.pulls.tolist() == [10, 9]
        return
    given = arms.float() if kind == "float32" else tb.sources.chunks(lambda: iter(arms.split(17)), *arms.shape)
    policy = tb.gp_ucb(rbf().float() if kind == "float32" else rbf(), **COMMON)
    bandit = told(policy, given)
    if kind == "source":
        assert_dense(bandit, atol=1e-7)
    else:
        mean, _ = dense(PROBLEM.arms, ARMS, REWARDS, VARIANCES)
        np.testing.assert_allclose(bandit.loop.state.arm_mean().double().numpy(), mean, atol=2e-2)


def test_points_of_a_box():
    policy = tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON)
    bandit = tb.Bandit(policy, bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64))
    bandit.observe(PROBLEM.tensor[ARMS], torch.ones(10), torch.tensor(REWARDS), noise_var=torch.tensor(VARIANCES))
    mean, variance = dense(PROBLEM.arms, ARMS, REWARDS, VARIANCES)
    marginals = bandit.posterior(PROBLEM.tensor)
    np.testing.assert_allclose(marginals.mean.numpy(), mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(marginals.variance.numpy(), variance, rtol=1e-7, atol=1e-9)


def test_a_failed_evaluation_needs_no_variance():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor)
    rewards, own = torch.tensor([0.5, torch.nan]), torch.tensor([0.1, torch.nan])
    bandit.tell(torch.tensor([1, 2]), rewards, failures="forget", noise_var=own)
    assert float(bandit.pulls) == 1


# ------------------------------------------------------------------ saved, repeated, shared


def test_a_saved_state_remembers_that_the_noise_is_relative():
    bandit = told(tb.gp_ucb(rbf(), **COMMON))
    again = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor).load_state_dict(bandit.state_dict())
    assert torch.equal(again.loop.state.arm_mean(), bandit.loop.state.arm_mean())
    for one in (bandit, again):
        with pytest.raises(errors.UnsupportedError, match="noise=False"):
            one.fit_kernel_(noise=True)
    assert bool(again.fit_kernel_(misfit=False).before.isfinite())


@pytest.mark.sweep(2)
@pytest.mark.parametrize("many", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize("name", ["gp_ucb", "batch_bkb"])
def test_a_journal_repeats_them(name, many, tmp_path: Path, monkeypatch):
    if many:
        monkeypatch.setattr(resuming, "_MANY", 2)
        monkeypatch.setattr(resuming, "_LAST", 1)
    make = {"gp_ucb": lambda: tb.gp_ucb(rbf(), **COMMON), "batch_bkb": lambda: tb.batch_bkb(rbf(), **BOUNDED)}[name]
    bandit = told(make(), sizes=(1, 3, 1, 2, 3), journal=tb.Journal(tmp_path / "run", durable=False))
    bandit.tell(torch.tensor([7]), torch.tensor([0.1]))  # with the noise of the policy
    bandit.observe(torch.tensor([2]), torch.tensor([3.0]), torch.tensor([0.2]), noise_var=0.4)
    bandit.tell(torch.tensor([7]), torch.tensor([0.1]), noise_var=0.3)
    expected, alone = everything(bandit), bandit.loop.state.arm_mean()
    bandit.journal.close()
    again = tb.Bandit(make(), PROBLEM.tensor, generator=generator(0), journal=tmp_path / "run")
    if not many:
        assert differences(everything(again), expected) == []
    torch.testing.assert_close(again.loop.state.arm_mean(), alone, rtol=1e-9, atol=1e-9)
    assert again.pulls.equal(bandit.pulls)
    assert again.counts.allclose(bandit.counts)


@pytest.mark.parametrize("name", ["gp_ucb", "batch_bkb"])
def test_workers_share_them(name, tmp_path: Path):
    def worker() -> tb.Worker:
        policy = tb.gp_ucb(rbf(), **COMMON) if name == "gp_ucb" else tb.batch_bkb(rbf(), **BOUNDED)
        return tb.Worker(policy, PROBLEM.tensor, store=tmp_path / "run.db", generator=generator(3))

    one, alone = worker(), told(tb.gp_ucb(rbf(), **COMMON), sizes=())
    for pull in range(6):
        lease = one.ask()
        reward, own = PROBLEM.reward(pull, int(lease.index)), VARIANCES[pull]
        one.tell(lease, reward, noise_var=own)
        alone.tell(lease.index, torch.tensor([reward], dtype=torch.float64), noise_var=own)
    for bandit in (one.bandit, worker().bandit):
        assert torch.equal(bandit.counts > 0, alone.counts > 0)
        torch.testing.assert_close(bandit.counts, alone.counts)
        assert float(bandit.pulls) == 6
        if name == "gp_ucb":
            torch.testing.assert_close(bandit.loop.state.arm_mean(), alone.loop.state.arm_mean(), rtol=1e-9, atol=1e-9)


def test_contexts():
    context = torch.tensor([0.3], dtype=torch.float64)
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor, context.unsqueeze(0))
    bandit.tell(torch.tensor([1, 2]), torch.tensor([0.4, 0.1]), context=context, noise_var=torch.tensor([4.0, 1.0]) * 0.01)
    joint = np.concatenate([np.full((50, 1), 0.3), PROBLEM.arms], axis=1)
    mean, _ = dense(joint, [1, 2], np.array([0.4, 0.1]), np.array([0.04, 0.01]))
    np.testing.assert_allclose(bandit.posterior(torch.tensor(joint)).mean.numpy(), mean, rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    "policy",
    [
        lambda: tb.auto(),
        lambda: tb.compressed_gp(rbf(), **COMMON),
        lambda: tb.soful(sketch_size=1, **BOUNDED),
        lambda: tb.uniform(),
        lambda: tb.bpe(rbf(), horizon=50, **BOUNDED),
        lambda: tb.pi_gp_ucb(rbf(), nu=1.5, horizon=50, **BOUNDED),
        lambda: tb.ada_bkb(rbf(), **BOUNDED),
    ],
    ids=["auto", "compressed_gp", "soful", "uniform", "bpe", "pi_gp_ucb", "ada_bkb"],
)
def test_policies_that_weight_nothing_say_so(policy):
    bandit = tb.Bandit(policy(), PROBLEM.tensor)
    with pytest.raises(errors.UnsupportedError, match="noise_var="):
        bandit.tell(torch.tensor([1]), torch.tensor([0.5]), noise_var=0.1)
    assert float(bandit.pulls) == 0


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (0.0, errors.NonFiniteError),
        (torch.tensor([0.1, -1.0]), errors.NonFiniteError),
        (torch.tensor([0.1, torch.nan]), errors.NonFiniteError),
        (torch.tensor([0.1, 0.1, 0.1]), errors.ShapeError),
        (torch.tensor([True, True]), errors.ShapeError),
    ],
)
def test_bad_variances_are_refused(wrong, error):
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor)
    with pytest.raises(error, match="noise_var"):
        bandit.tell(torch.tensor([1, 2]), torch.tensor([0.5, 0.4]), noise_var=wrong)
    with pytest.raises(error, match="noise_var"):
        bandit.observe(torch.tensor([1, 2]), torch.ones(2), torch.ones(2), noise_var=wrong)
    assert float(bandit.pulls) == 0
