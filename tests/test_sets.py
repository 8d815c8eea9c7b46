"""The k best arms and level sets, with their policies and stopping rules, compared with dense oracles."""

from __future__ import annotations

from typing import Any

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from problems import BOUNDED, COMMON, DELTA, NOISE_STD, Problem, generator, rbf
from scipy import stats
from torch import Tensor

import torchbandits as tb
from torchbandits import errors, stopping

PROBLEM = Problem(seed=7, a=40, duplicates=3)
FIRST = oracles.first_copies(PROBLEM.arms)
ENTRIES = np.arange(40) == FIRST


def dense(arms: np.ndarray, pulled: list[int], rewards: list[float], pending: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Mean given the rewards, and covariance given the rewards and the pending picks, on the arms."""
    kernel, lam = oracles.rbf(0.4), NOISE_STD**2
    K = kernel(arms, arms)
    told = oracles.exact_posterior(K[np.ix_(pulled, pulled)], K[pulled], K.diagonal(), np.array(rewards), lam, K)
    more = pulled + pending
    seen = oracles.exact_posterior(K[np.ix_(more, more)], K[more], K.diagonal(), np.zeros(len(more)), lam, K)
    return told.mean, seen.covariance


def played(policy: Any, pulls: int = 12) -> tb.Bandit:
    bandit = tb.Bandit(policy, PROBLEM.tensor, generator=generator(5))
    PROBLEM.play(bandit, pulls)
    return bandit


def of_run(bandit: tb.Bandit) -> tuple[np.ndarray, np.ndarray]:
    statistics, kernel, arms = bandit.loop.state.statistics, oracles.rbf(0.4), PROBLEM.arms
    x, n, s = (t.numpy() for t in (statistics.points, statistics.weights, statistics.sums))
    K = kernel(arms, arms)
    found = oracles.exact_posterior_from_sums(kernel(x, x), kernel(x, arms), K.diagonal(), n, s, NOISE_STD**2, K)
    return found.mean, found.covariance


# ------------------------------------------------------------------ what was learned


@pytest.mark.parametrize("k", [1, 4])
def test_the_top_k_and_their_probabilities_are_the_dense_ones(k):
    bandit = played(tb.gp_ucb(rbf(), **COMMON))
    mean, covariance = of_run(bandit)
    own = np.flatnonzero(ENTRIES)
    order = own[np.argsort(-mean[own], kind="stable")][:k]
    f = np.random.default_rng(0).multivariate_normal(mean[own], covariance[np.ix_(own, own)], size=40_000, method="eigh")
    best = own[np.argsort(-f, axis=1)[:, :k]]
    found = bandit.top_k(k, draws=20_000)
    assert found.index.tolist() == order.tolist()
    np.testing.assert_allclose(found.mean.numpy(), mean[order], rtol=1e-6)
    np.testing.assert_allclose(found.variance.numpy(), covariance.diagonal()[order], rtol=1e-5, atol=1e-10)
    np.testing.assert_allclose(found.probability.numpy(), [(best == arm).any(axis=1).mean() for arm in order], atol=0.02)
    assert torch.equal(found.points, PROBLEM.tensor[found.index])
    assert torch.equal(bandit.top_k(k).probability, bandit.top_k(k).probability)


def test_level_sets_are_the_dense_ones():
    bandit = played(tb.gp_ucb(rbf(), **COMMON))
    mean, covariance = of_run(bandit)
    std, width = np.sqrt(np.maximum(covariance.diagonal(), 0)), float(bandit.width)
    level = float(np.median(mean))
    found = bandit.level_set(level)
    assert found.above.numpy().tolist() == (mean - width * std >= level).tolist()
    assert found.below.numpy().tolist() == (mean + width * std < level).tolist()
    assert bool((found.above | found.below | found.undecided).all())
    assert not bool((found.above & found.undecided).any())
    np.testing.assert_allclose(found.probability.numpy(), stats.norm.sf((level - mean) / std), atol=1e-5)
    narrow = bandit.level_set(level, width=tb.widths.Constant(0.1))
    assert int(narrow.undecided.sum()) < int(found.undecided.sum())


def test_rows_and_the_units_of_auto():
    together = tb.Bandit(tb.thompson_sampling(rbf(), **BOUNDED), PROBLEM.tensor, generator=[generator(1), generator(2)])
    alone = [tb.Bandit(tb.thompson_sampling(rbf(), **BOUNDED), PROBLEM.tensor, generator=generator(seed)) for seed in (1, 2)]
    for pull in range(6):
        selection = together.ask()
        rewards = torch.stack([PROBLEM.rewards(pull, index) for index in selection.index])
        together.tell(selection, rewards)
        for row, bandit in enumerate(alone):
            bandit.tell(bandit.ask(), rewards[row])
    for row, bandit in enumerate(alone):
        mine, own = bandit.top_k(3), together.top_k(3)
        assert torch.equal(mine.index, own.index[row])
        torch.testing.assert_close(mine.probability, own.probability[row], atol=2e-3, rtol=0)
        assert torch.equal(bandit.level_set(0.1).above, together.level_set(0.1).above[row])
    rewards = 100 + 50 * torch.tensor(PROBLEM.f)
    auto = tb.Bandit(tb.auto(), PROBLEM.tensor)
    auto.observe(torch.arange(0, 40, 2), torch.ones(20), rewards[::2])
    assert float(auto.top_k(1).mean) > 100
    probability = auto.level_set(float(rewards[::2].median())).probability[::2]
    assert 0.3 < float((probability > 0.5).double().mean()) < 0.7


# ------------------------------------------------------------------ the policies


def lse_score(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    return spread - np.abs(mean - 0.1)


def lucb_score(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """The larger of the distances by which the lowest lower bound inside the three best arms, and the highest upper bound
    outside, cross the midpoint."""
    order = [int(arm) for arm in np.argsort(-mean, kind="stable") if ENTRIES[arm]]
    inside, outside = order[:3], order[3:]
    middle = (mean[inside[-1]] + mean[outside[0]]) / 2
    weak = min(inside, key=lambda arm: mean[arm] - spread[arm])
    strong = max(outside, key=lambda arm: mean[arm] + spread[arm])
    score = np.full(len(mean), -np.inf)
    score[weak], score[strong] = middle - (mean[weak] - spread[weak]), mean[strong] + spread[strong] - middle
    return score


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("name", ["lse", "lucb"])
def test_picks_are_those_of_a_dense_loop(name, batch_size):
    options, score = ({"level": 0.1}, lse_score) if name == "lse" else ({"k": 3}, lucb_score)
    policy = getattr(tb, name)(rbf(), batch_size=batch_size, **options, **COMMON)
    bandit, pulled, rewards = tb.Bandit(policy, PROBLEM.tensor), [], []
    for _ in range(18 // batch_size):
        width = oracles.width_srinivas(len(pulled) + 1, 40, DELTA)
        picks: list[int] = []
        for _ in range(batch_size):
            if pulled:
                mean, covariance = dense(PROBLEM.arms, pulled, rewards, picks)
            else:
                mean, covariance = np.zeros(40), dense(PROBLEM.arms, [], [], picks)[1] if picks else np.eye(40)
            std = np.sqrt(np.maximum(covariance.diagonal(), 0))
            picks.append(oracles.argmax(score(mean, width * std), ENTRIES))
        selection = bandit.ask()
        if pulled:
            assert selection.index.tolist() == picks, len(pulled)
        picks = selection.index.tolist()
        y = [PROBLEM.reward(len(pulled) + place, arm) for place, arm in enumerate(picks)]
        bandit.tell(selection, torch.tensor(y, dtype=torch.float64))
        pulled, rewards = pulled + picks, rewards + y


def draws(rows: int, arms: int, seed: int) -> tuple[Tensor, Tensor, gpytorch.kernels.Kernel]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(arms, 2))
    root = np.linalg.cholesky(oracles.matern(2.5, 0.4)(x, x) + 1e-9 * np.eye(arms))
    kernel = gpytorch.kernels.MaternKernel(nu=2.5).double()
    kernel.lengthscale = 0.4
    return torch.tensor(x), torch.tensor(rng.normal(size=(rows, arms)) @ root.T), kernel


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", ["top", "level"])
def test_the_promise_of_the_rules_holds_over_draws_from_the_prior(what):
    rows, noise, delta, epsilon = 120, 0.2, 0.1, 1.0
    arms, f, kernel = draws(rows, 30, 3)
    if what == "top":
        policy, rule = tb.lucb(kernel, k=3, noise_std=noise, delta=delta), stopping.TopKKnown(3, epsilon)
    else:
        policy, rule = tb.lse(kernel, level=0.2, noise_std=noise, delta=delta), stopping.LevelSetKnown(0.2, epsilon)
    bandit, draw = tb.Bandit(policy, arms, generator=[generator(row) for row in range(rows)]), generator(8)
    failed, stopped = 0, torch.zeros(rows, dtype=torch.bool)
    for _ in range(60):
        selection = bandit.ask()
        y = f.gather(-1, selection.index)
        bandit.tell(selection, y + noise * torch.randn(y.shape, generator=draw, dtype=torch.float64))
        now = bandit.should_stop(rule).stop & ~stopped
        if what == "top":
            inside = bandit.top_k(3, draws=1).index
            rest = f.scatter(-1, inside, -torch.inf).amax(dim=-1)
            wrong = rest - f.gather(-1, inside).amin(dim=-1) > epsilon
        else:
            above = bandit.loop.state.arm_mean() >= 0.2
            wrong = ((above & (f < 0.2 - epsilon)) | (~above & (f > 0.2 + epsilon))).any(dim=-1)
        failed += int((wrong & now).sum())
        stopped |= now
    assert float(stopped.double().mean()) > 0.8
    assert failed <= stats.binom.ppf(1 - 1e-4, int(stopped.sum()), delta)


@pytest.mark.exhaustive
def test_they_find_the_sets_sooner_than_other_policies():
    """Fractions of rows with the correct three best arms, and of arms on the correct side of a level, after 36 rewards, over 60
    draws."""
    rows, noise = 60, 0.3
    arms, f, kernel = draws(rows, 50, 4)
    given = {"noise_std": noise, "width": tb.widths.Constant(2.0)}
    policies = {
        "lucb": tb.lucb(kernel, k=3, **given),
        "lse": tb.lse(kernel, level=1.0, batch_size=2, **given),
        "gp_ucb": tb.gp_ucb(kernel, **given),
        "uniform": tb.uniform(batch_size=2),
    }
    right: dict[str, tuple[float, float]] = {}
    truth = f.topk(3, dim=-1).indices.sort(dim=-1).values
    for name, policy in policies.items():
        bandit, draw = tb.Bandit(policy, arms, generator=[generator(row) for row in range(rows)]), generator(9)
        judge = tb.Bandit(tb.gp_ucb(kernel, **given), arms, generator=[generator(row) for row in range(rows)])
        while float(judge.pulls[0]) < 36:
            selection = bandit.ask()
            y = f.gather(-1, selection.index)
            y = y + noise * torch.randn(y.shape, generator=draw, dtype=torch.float64)
            for one in (bandit, judge):
                one.tell(selection.index, y)
        top = judge.top_k(3, draws=1).index.sort(dim=-1).values
        sides = (judge.loop.state.arm_mean() >= 1.0) == (f >= 1.0)
        right[name] = (float((top == truth).all(dim=-1).double().mean()), float(sides.double().mean()))
    assert right["lucb"][0] > right["uniform"][0] + 0.1
    assert right["lse"][1] > max(right["uniform"][1], right["gp_ucb"][1])


# ------------------------------------------------------------------ refused


def test_what_has_no_sets_says_so():
    for policy in (tb.uniform(), tb.pi_gp_ucb(rbf(), nu=1.5, horizon=50, **BOUNDED)):
        bandit = tb.Bandit(policy, PROBLEM.tensor)
        with pytest.raises(errors.UnsupportedError, match="gp_ucb"):
            bandit.top_k(2)
        with pytest.raises(errors.UnsupportedError, match="gp_ucb"):
            bandit.level_set(0.0)
    bandit = tb.Bandit(tb.bpe(rbf(), horizon=50, **BOUNDED), PROBLEM.tensor)
    with pytest.raises(errors.UnsupportedError, match="width="):
        bandit.level_set(0.0)
    with pytest.raises(errors.UnsupportedError, match="pass arms"):
        tb.Bandit(tb.lucb(rbf(), width=tb.widths.Constant(2.0)), bounds=torch.tensor([[0.0], [1.0]], dtype=torch.float64))


@pytest.mark.parametrize("k", [0, 37, 40])
def test_too_many_and_too_few(k):
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor)
    with pytest.raises(errors.ArgumentError, match="k must be"):
        bandit.top_k(k)
    with pytest.raises(errors.ArgumentError):
        bandit.should_stop(stopping.TopKKnown(k, 0.1))


def test_the_boundary_needs_arms_outside():
    bandit = tb.Bandit(tb.lucb(rbf(), k=3, **COMMON), PROBLEM.tensor[:3])
    with pytest.raises(errors.ArgumentError, match="there is no boundary: choose a smaller k"):
        bandit.ask()


# ------------------------------------------------------------------ copies, and arms without variance


def narrow() -> gpytorch.kernels.Kernel:
    return rbf(0.05)


def test_top_k_of_a_batch_row_does_not_depend_on_copies_in_another():
    points = torch.rand(60, 1, generator=generator(0), dtype=torch.float64)
    arms, told = torch.stack([points[:3].repeat(20, 1), points]), torch.tensor([0, 1, 2])
    rewards = torch.tensor([0.3, 0.1, -0.2], dtype=torch.float64)
    both = tb.Bandit(tb.gp_ucb(narrow(), noise_std=0.1), arms, generator=[generator(0), generator(1)])
    alone = tb.Bandit(tb.gp_ucb(narrow(), noise_std=0.1), points, generator=generator(1))
    both.tell(told.expand(2, 3), rewards.expand(2, 3))
    alone.tell(told, rewards)
    assert torch.equal(both.top_k(2).probability[1], alone.top_k(2).probability)
    assert float(both.top_k(2).probability[0].sum()) <= 2


def test_an_arm_without_variance_is_a_rival_and_no_member_is():
    arms = torch.cat([torch.zeros(1, 2, dtype=torch.float64), torch.rand(5, 2, generator=generator(0), dtype=torch.float64)])
    bandit = tb.Bandit(tb.lin_ucb(noise_std=0.1), arms, generator=generator(0))
    bandit.tell(torch.arange(6), 10 * arms.sum(dim=-1))
    assert float(bandit.top_k(2).probability.sum()) > 1.9
    assert float(bandit.top_k(5).probability.sum()) == pytest.approx(5, abs=0.1)


def test_an_arm_that_is_known_to_be_at_the_level_has_it():
    arms = torch.cat([torch.zeros(1, 2, dtype=torch.float64), torch.rand(5, 2, generator=generator(0), dtype=torch.float64)])
    bandit = tb.Bandit(tb.gp_ucb(gpytorch.kernels.LinearKernel().double(), **COMMON), arms, generator=generator(0))
    bandit.tell(torch.arange(6), arms.sum(dim=-1))
    for level, above in ((-0.1, True), (0.0, True), (0.1, False)):
        found = bandit.level_set(level)
        assert bool(found.above[0]) is above
        assert float(found.probability[0]) == float(above)
