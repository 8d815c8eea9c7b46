"""Rewards weighted by age or by plausibility: the posterior is that of a dense process with these weights."""

from __future__ import annotations

import copy
from pathlib import Path

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from problems import BOUNDED, COMMON, NOISE_STD, Problem, generator, rbf

import torchbandits as tb
from torchbandits import errors, stopping
from torchbandits.testing.play import Interrupted, Interruption, differences, everything

PROBLEM = Problem(seed=17, a=40, duplicates=3)
K = oracles.rbf(0.4)(PROBLEM.arms, PROBLEM.arms)
LAM = NOISE_STD**2
MAKERS = {
    "discount": lambda: tb.forgetting.discount(tb.gp_ucb(rbf(), **COMMON), factor=0.9),
    "window": lambda: tb.forgetting.window(tb.gp_ucb(rbf(), **COMMON), pulls=7),
    "restart": lambda: tb.forgetting.restart(tb.gp_ucb(rbf(), **COMMON), every=10),
    "robust": lambda: tb.robust(tb.gp_ucb(rbf(), **COMMON), threshold=1.0),
}


def dense(arms: list[int], rewards: list[float], weights: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance on the arms, with a noise variance λ / weight for each reward."""
    kept = [place for place, weight in enumerate(weights) if weight > 0]
    if not kept:
        return np.zeros(40), np.ones(40)
    index, y = [arms[place] for place in kept], np.array([rewards[place] for place in kept])
    noisy = K[np.ix_(index, index)] + np.diag([LAM / weights[place] for place in kept])
    half = np.linalg.solve(noisy, K[index])
    return half.T @ y, 1.0 - np.einsum("ta,ta->a", K[index], half)


class Weights:
    """Plain lists of the told rewards, and the weights by each rule."""

    def __init__(self, name: str) -> None:
        self.name, self.arms, self.rewards, self.weights = name, [], [], []

    def tell(self, arms: list[int], rewards: list[float]) -> None:
        new = [1.0] * len(arms)
        if self.name == "discount":
            self.weights = [weight * 0.9 ** len(arms) for weight in self.weights]
        elif self.name == "restart" and sum(self.weights) + len(arms) > 10:
            self.weights = [0.0] * len(self.weights)
        elif self.name == "robust":
            mean, variance = dense(self.arms, self.rewards, self.weights)
            away = [abs(y - mean[arm]) / np.sqrt(variance[arm] + LAM) for arm, y in zip(arms, rewards, strict=True)]
            new = [1 / (u + variance[arm] / LAM * (u - 1)) for u, arm in zip(np.maximum(away, 1.0), arms, strict=True)]
        self.arms, self.rewards, self.weights = self.arms + arms, self.rewards + rewards, self.weights + new
        if self.name == "window":
            self.weights = [float(place >= len(self.arms) - 7) for place in range(len(self.arms))]


def play(bandit: tb.Bandit, batches: range, check: Weights | None = None) -> list[list[int]]:
    picks = []
    for batch in batches:
        bandit.ask()
        selection = bandit.ask(more=2)  # three picks
        picks.append(selection.index.tolist())
        y = [PROBLEM.reward(3 * batch + place, arm) for place, arm in enumerate(picks[-1])]
        bandit.tell(selection, torch.tensor(y, dtype=torch.float64))
        if check is not None:
            check.tell(picks[-1], y)
            mean, variance = dense(check.arms, check.rewards, check.weights)
            np.testing.assert_allclose(bandit.loop.state.arm_mean().numpy(), mean, rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(LAM * bandit.loop.state.arm_leverage().numpy(), variance, rtol=1e-6, atol=1e-8)
    return picks


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", MAKERS)
def test_the_posterior_is_the_dense_one_with_these_weights(name):
    bandit, weights = tb.Bandit(MAKERS[name](), PROBLEM.tensor), Weights(name)
    play(bandit, range(10), weights)
    assert float(bandit.pulls) == 30, "pulls are counted as before"
    pulled = [arm for arm, weight in zip(weights.arms, weights.weights, strict=True) if weight > 0]
    gram = K[np.ix_(pulled, pulled)] / LAM * np.sqrt(np.outer(*2 * [[w for w in weights.weights if w > 0]]))
    expected = np.linalg.slogdet(np.eye(len(pulled)) + gram)[1]
    assert float(bandit.loop.state.log_det) == pytest.approx(expected, rel=1e-6)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", MAKERS)
def test_rows_are_singles_whatever_the_others_do(name):
    def policy() -> tb.policies.Policy:
        base = tb.thompson_sampling(rbf(), **BOUNDED)
        wrap = {"discount": {"factor": 0.9}, "window": {"pulls": 4}, "restart": {"every": 5}, "robust": {"threshold": 1.0}}
        return (tb.robust if name == "robust" else getattr(tb.forgetting, name))(base, **wrap[name])

    together = tb.Bandit(policy(), PROBLEM.tensor, generator=[generator(1), generator(2)])
    alone = [tb.Bandit(policy(), PROBLEM.tensor, generator=generator(seed)) for seed in (1, 2)]
    for pull in range(10):
        limits = [1, 0 if pull % 3 == 2 else 1]
        selection = together.ask(limit=torch.tensor(limits))
        rewards = torch.stack([PROBLEM.rewards(pull, index.clamp_min(0)) for index in selection.index])
        together.tell(selection, rewards)
        for row, bandit in enumerate(alone):
            if limits[row]:
                mine = bandit.ask()
                assert mine.index.tolist() == selection.index[row].tolist(), (pull, row)
                bandit.tell(mine, rewards[row])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", MAKERS)
def test_a_saved_run_and_a_journal_go_on_the_same(name, tmp_path: Path):
    expected = play(tb.Bandit(MAKERS[name](), PROBLEM.tensor), range(9))
    kept = tb.Bandit(MAKERS[name](), PROBLEM.tensor, journal=tb.Journal(tmp_path / "run", durable=False))
    first = play(kept, range(5))
    saved = kept.state_dict()
    kept.journal.close()
    loaded = tb.Bandit(MAKERS[name](), PROBLEM.tensor).load_state_dict(saved)
    resumed = tb.Bandit(MAKERS[name](), PROBLEM.tensor, journal=tmp_path / "run")
    assert differences(everything(resumed), everything(loaded)) == []
    assert first + play(loaded, range(5, 9)) == expected
    assert first + play(resumed, range(5, 9)) == expected


@pytest.mark.parametrize(("noise_var", "held"), [(0.01, [9, 10, 1]), (0.0025, [8, 4, 8])])
def test_a_restart_counts_weights(noise_var: float, held: list[int]):
    bandit = tb.Bandit(tb.forgetting.restart(tb.gp_ucb(rbf(), noise_std=0.1), every=10), PROBLEM.tensor)
    sums = []
    for _ in range(11):
        bandit.tell(torch.tensor([5]), torch.ones(1), noise_var=noise_var)
        sums.append(float(bandit.counts[5]))
    first = 8 if noise_var == 0.01 else 1
    assert sums[first : first + 3] == pytest.approx(held)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", MAKERS)
def test_other_arms_keep_what_was_learned(name):
    bandit, weights = tb.Bandit(MAKERS[name](), PROBLEM.tensor), Weights(name)
    play(bandit, range(4), weights)
    bandit.set_arms_(PROBLEM.tensor.clone())
    play(bandit, range(4, 6), weights)


def test_a_failed_tell_forgets_nothing():
    bandit = tb.Bandit(MAKERS["window"](), PROBLEM.tensor)
    play(bandit, range(4))
    before = everything(bandit)
    with pytest.raises(errors.TorchBanditsError):
        bandit.tell(torch.tensor([1, 2]), torch.tensor([1.0, torch.inf]))
    with pytest.raises(errors.UnsupportedError, match="tell"):
        bandit.observe(torch.tensor([1]), torch.ones(1), torch.ones(1))
    assert differences(everything(bandit), before) == []


# ------------------------------------------------------------------ purpose: drift and outliers


@pytest.mark.exhaustive
def test_they_follow_a_function_that_drifts():
    """The peak moves at half time; regret of the second half, mean over 12 draws of the noise."""
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 0.3
    arms, noise = torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1), 0.2
    early, late = (torch.exp(-20 * (arms.squeeze(-1) - peak) ** 2) for peak in (0.25, 0.75))
    base = tb.gp_ucb(kernel, noise_std=noise, width=tb.widths.Constant(2.0))
    policies = {
        "all": base,
        "discount": tb.forgetting.discount(base, factor=0.93),
        "window": tb.forgetting.window(base, pulls=20),
        "restart": tb.forgetting.restart(base, every=20),
    }
    regret = {}
    for name, policy in policies.items():
        bandit, draw, total = tb.Bandit(policy, arms, generator=[generator(row) for row in range(12)]), generator(0), 0.0
        for pull in range(120):
            f = early if pull < 60 else late
            selection = bandit.ask()
            y = f[selection.index]
            total += float((1 - y).mean()) * (pull >= 60)
            bandit.tell(selection, y + noise * torch.randn(y.shape, generator=draw, dtype=torch.float64))
        regret[name] = total
    assert max(regret[name] for name in ("discount", "window", "restart")) < 0.7 * regret["all"], regret


def test_five_percent_of_wild_values_spoil_little():
    """The error of the mean with 5 % of the rewards 30 noise deviations away, and the error without any."""
    rng, errors_of = np.random.default_rng(3), {}
    for wild in (False, True):
        for name in ("plain", "robust"):
            policy = tb.gp_ucb(rbf(), **COMMON)
            bandit = tb.Bandit(tb.robust(policy, threshold=2.0) if name == "robust" else policy, PROBLEM.tensor)
            rng = np.random.default_rng(3)
            for _ in range(50):
                index = rng.integers(40, size=8)
                y = PROBLEM.f[index] + NOISE_STD * rng.normal(size=8)
                y = y + (30 * NOISE_STD * rng.choice([-1, 1], size=8) * (rng.uniform(size=8) < 0.05) if wild else 0)
                bandit.tell(torch.tensor(index), torch.tensor(y))
            gap = bandit.loop.state.arm_mean().numpy() - PROBLEM.f
            errors_of[wild, name] = float(np.sqrt((gap**2).mean()))
    assert errors_of[True, "robust"] < 0.5 * errors_of[True, "plain"]
    assert errors_of[False, "robust"] < 1.5 * errors_of[False, "plain"]


@pytest.mark.parametrize("noise_std", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("outlier", [-1e6, 10.0, 1000.0])
def test_one_outlier_moves_the_mean_by_no_more_than_the_threshold(outlier: float, noise_std: float):
    """Also at an arm of which nothing is known, where Huber's weight let 1000 move the mean by 231 at noise 0.1."""
    bandit = tb.Bandit(tb.robust(tb.gp_ucb(rbf(), noise_std=noise_std), threshold=3.0), PROBLEM.tensor)
    for _ in range(2):
        before = bandit.posterior(PROBLEM.tensor)
        bandit.tell(torch.tensor([10]), torch.tensor([outlier], dtype=torch.float64))
        moved = (bandit.posterior(PROBLEM.tensor).mean - before.mean)[10].abs()
        variance = before.variance[10]
        # As far as a reward that is three predictive deviations away.
        expected = 3 * variance / (variance + noise_std**2).sqrt()
        assert float(moved) == pytest.approx(float(expected), rel=1e-6)
        assert float(moved) <= 3 * float(variance.sqrt())


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    "make",
    [
        lambda: tb.forgetting.discount(tb.uniform(), factor=0.9),
        lambda: tb.forgetting.window(tb.batch_bkb(rbf(), **BOUNDED), pulls=3),
        lambda: tb.forgetting.restart(tb.auto(), every=3),
        lambda: tb.robust(tb.bpe(rbf(), horizon=30, **BOUNDED)),
        lambda: tb.robust(MAKERS["window"]()),
        lambda: tb.Bandit(MAKERS["discount"](), PROBLEM.tensor).should_stop(stopping.EpsilonOptimal(0.1)),
    ],
)
def test_what_can_t_be_reweighted_says_so(make):
    with pytest.raises(errors.TorchBanditsError):
        make()


@pytest.mark.parametrize("name", ["discount", "window", "restart", "robust"])
def test_two_rules_that_weight_rewards_can_t_be_combined(name: str):
    for outer in (tb.robust, lambda policy: tb.forgetting.window(policy, pulls=3)):
        with pytest.raises(errors.UnsupportedError, match=r"already weights its rewards, by .*: choose robust or one rule of"):
            outer(MAKERS[name]())


@pytest.mark.parametrize("wrong", [0.0, 1.0, float("nan")])
def test_a_factor_is_between_0_and_1(wrong):
    with pytest.raises(errors.ArgumentError, match="factor"):
        tb.forgetting.discount(tb.gp_ucb(rbf(), **COMMON), factor=wrong)


def test_forgotten_arms_are_not_recommended() -> None:
    """Their means are the prior mean again, which may be above the means of arms with rewards."""
    bandit = tb.Bandit(tb.forgetting.window(tb.gp_ucb(rbf(0.01), noise_std=0.1), pulls=2), torch.eye(4, dtype=torch.float64))
    for arm, y in enumerate([-5.0, -3.0, -4.0, -2.0]):
        bandit.tell(torch.tensor([arm]), torch.tensor([y], dtype=torch.float64))
    assert int(bandit.loop.state.best_arm()) == int(bandit.best().index) == 3


@pytest.mark.parametrize("policy", ["window", "restart", "compressed", "drifting"])
def test_a_budget_of_costs_refuses_policies_that_drop_pulls(policy: str) -> None:
    made = {
        "window": lambda: tb.forgetting.window(tb.gp_ucb(rbf(), noise_std=0.1), pulls=3),
        "restart": lambda: tb.forgetting.restart(tb.gp_ucb(rbf(), noise_std=0.1), every=3),
        "compressed": lambda: tb.compressed_gp(rbf(), noise_std=0.1),
        "drifting": lambda: tb.reds(rbf(), horizon=3, drift=0.1),
    }[policy]()
    arms = torch.rand(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bandit = tb.Bandit(made, arms, costs=torch.full((9,), 2.0, dtype=torch.float64))
    with pytest.raises(tb.errors.UnsupportedError, match="leaves out, forgets or weights"):
        bandit.should_stop(tb.stopping.Budget(cost=15.0))


def test_the_first_rewards_are_plausible_where_the_mean_is_estimated() -> None:
    arms = torch.rand(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bandit = tb.Bandit(tb.robust(tb.gp_ucb(rbf(), noise_std=0.1, prior_mean="estimate")), arms)
    bandit.tell(torch.arange(5), 1000 + torch.linspace(-0.5, 0.5, 5, dtype=torch.float64))
    assert bandit.posterior.statistics.weights.sum() == pytest.approx(5)
    before = bandit.posterior.statistics.weights.sum()
    bandit.tell(torch.tensor([0]), torch.tensor([1500.0], dtype=torch.float64))
    assert float(bandit.posterior.statistics.weights.sum() - before) < 0.1


@pytest.mark.parametrize("context", [False, True])
def test_an_explanation_is_of_the_points_that_were_not_forgotten(context: bool) -> None:
    arms = torch.rand(30, 2, dtype=torch.float64, generator=generator(0))
    told, rewards = arms[:9], torch.sin(5 * arms[:9, 0])
    explained, plain = [], tb.gp_ucb(rbf(0.5), noise_std=0.1, width=tb.widths.Constant(2.0))
    for first, policy in ((0, tb.forgetting.window(plain, pulls=4)), (5, plain)):
        if context:
            bandit = tb.ContextualBandit(policy, arms[:, 1:], arms[:9, :1], max_contexts=9)
            for place in range(first, 9):
                bandit.tell([place], rewards[place : place + 1], context=told[place, :1])
            explained.append(bandit.explain(context=told[8, :1]))
        else:
            bandit = tb.Bandit(policy, arms)
            for place in range(first, 9):
                bandit.tell([place], rewards[place : place + 1])
            explained.append(bandit.explain())
    windowed, fresh = explained
    assert windowed.distinct == fresh.distinct == 4
    assert windowed.elsewhere == fresh.elsewhere == (3 if context else 0)
    torch.testing.assert_close(windowed.relevance, fresh.relevance)
    got = [(e.noise_share, e.unexplained, e.predictive_r2, e.rivals, e.upper) for e in explained]
    np.testing.assert_allclose(got[0], got[1], rtol=1e-8)


@pytest.mark.parametrize("name", MAKERS)
def test_a_tell_that_fails_in_the_middle_leaves_no_trace(name: str):
    """Under a discount, the new row of the directions was written over the first one of the snapshot."""
    bandit = tb.Bandit(MAKERS[name](), PROBLEM.tensor, generator=generator(0))
    for arm in range(9):
        bandit.tell(torch.tensor([arm]), torch.tensor([0.1 * arm]))
    told, failed = (torch.tensor([20]), torch.tensor([0.3])), 0
    with Interruption(torch.inf) as counting:
        copy.deepcopy(bandit).tell(*told)
    for at in range(1, counting.calls, 8):
        twin = copy.deepcopy(bandit)
        try:
            with Interruption(at):
                twin.tell(*told)
        except Interrupted:
            failed += 1
            assert not differences(everything(bandit), everything(twin)), f"at torch call {at} of {counting.calls}"
    # The last calls make the report, after which nothing is undone.
    assert failed > 12
