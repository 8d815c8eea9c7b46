"""Length-scale balancing against a naive run of Algorithm 1 in NumPy, pull for pull, and on the problem that motivates it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from problems import BOUNDED, DELTA, NOISE_STD, NORM_BOUND, OFF_SCALE, Problem, generator, kernel_pair, rbf

import torchbandits as tb
from torchbandits import errors

D = 2


@dataclass
class Naive:
    """Candidates, each with a list of its own pulls; every posterior is computed from scratch."""

    kind: str
    arms: np.ndarray
    horizon: int
    noise_std: float
    norm_bound: float
    delta: float
    theta: float = 0.4
    alive: list[int] = field(default_factory=lambda: [0])
    known: int = 1
    pulled: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    own: dict[int, list[int]] = field(default_factory=lambda: {0: []})
    spread: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    rejected: list[int] = field(default_factory=list)

    def kernel(self, i: int) -> oracles.KernelFunction:
        length = self.theta * math.exp(-i / D)
        return oracles.rbf(length) if self.kind == "rbf" else oracles.matern(1.5, length)

    def posterior(self, i: int) -> tuple[np.ndarray, np.ndarray, float]:
        K, t = self.kernel(i)(self.arms, self.arms), self.pulled
        lam = self.noise_std**2
        found = oracles.exact_posterior(K[np.ix_(t, t)], K[t], K.diagonal(), np.array(self.rewards), lam)
        gain = 0.5 * np.linalg.slogdet(np.eye(len(t)) + K[np.ix_(t, t)] / lam)[1] if t else 0.0
        bound = math.exp(i / 2) * self.norm_bound
        return found.mean, np.sqrt(np.maximum(found.variance, 0)), bound + math.sqrt(2 * (gain + 1 + math.log(2 / self.delta)))

    def turn(self) -> int:
        def regret(i: int) -> float:
            n = len(self.own[i]) + 1
            nu, power = 1.5, D * (D + 1)
            if self.kind == "rbf":
                gain = math.log(n) ** (D + 1)
            else:
                gain = n ** (power / (2 * nu + power)) * math.log(n) ** (2 * nu / (2 * nu + D))
            return math.exp(i) * math.sqrt(n) * (self.norm_bound * math.sqrt(gain) + gain)

        return min(self.alive, key=lambda i: (regret(i), i))

    def choose(self, allowed: np.ndarray) -> int:
        mean, std, width = self.posterior(self.turn())
        return oracles.argmax(mean + width * std, allowed)

    def tell(self, arm: int, reward: float) -> None:
        i = self.turn()
        _, std, width = self.posterior(i)
        self.spread[i] += width * std[arm]
        self.own[i].append(len(self.pulled))
        self.pulled.append(arm)
        self.rewards.append(reward)
        t = len(self.pulled)
        if all(self.own[j] for j in self.alive):
            xi = 2 * self.noise_std**2 * math.log(self.known * math.pi**2 * t**2 / (6 * (self.delta / 2)))
            average = {j: np.mean([self.rewards[s] for s in self.own[j]]) for j in self.alive}
            root = {j: math.sqrt(xi / len(self.own[j])) for j in self.alive}
            best = max(average[j] - root[j] for j in self.alive)
            good = [j for j in self.alive if average[j] + root[j] + 2 * self.spread[j] / len(self.own[j]) >= best]
            self.rejected += [j for j in self.alive if j not in good]
            self.alive = good
        most = max(math.exp(5 / D), math.sqrt(t))
        if math.exp(-self.known / D) >= (1 - 1e-9) / most and self.known < self.candidates:
            self.alive.append(self.known)
            self.own[self.known], self.spread[self.known] = [], 0.0
            self.known += 1

    @property
    def candidates(self) -> int:
        return min(1 + max(5, math.floor(D * math.log(math.sqrt(self.horizon)))), self.horizon)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", ["rbf", "matern32"])
@pytest.mark.parametrize(("seed", "delta", "bound"), [(0, DELTA, NORM_BOUND), (1, 0.5, 0.05), (2, 0.9, 0.001)])
def test_picks_are_those_of_a_naive_run(kind: str, seed: int, delta: float, bound: float):
    problem, T = Problem(seed=seed, a=40, duplicates=3), 60
    allowed = oracles.first_copies(problem.arms) == np.arange(40)
    naive = Naive(kind, problem.arms, T, NOISE_STD, bound, delta)
    kernel = kernel_pair(kind)[0]
    policy = tb.lb_gp_ucb(kernel, horizon=T, noise_std=NOISE_STD, norm_bound=bound, delta=delta)
    bandit = tb.Bandit(policy, problem.tensor)
    for t in range(T):
        selection = bandit.ask()
        arm = naive.choose(allowed)
        assert int(selection.index[0]) == arm, f"pull {t}"
        reward = problem.reward(t, arm)
        naive.tell(arm, reward)
        bandit.tell(selection, torch.tensor([reward], dtype=torch.float64))
        balance = bandit.loop.state.balance
        assert balance.alive.nonzero().squeeze(-1).tolist() == sorted(naive.alive)
        assert int(balance.known) == naive.known
    assert balance.counts[: naive.known].tolist() == [len(naive.own[i]) for i in range(naive.known)]
    np.testing.assert_allclose(balance.spread[: naive.known], [naive.spread[i] for i in range(naive.known)], rtol=1e-6)
    shown, std, _ = naive.posterior(min(naive.alive))
    found = bandit.posterior(problem.tensor)
    np.testing.assert_allclose(found.mean, shown, atol=1e-6)
    np.testing.assert_allclose(found.variance.sqrt(), std, atol=1e-5)


def hidden(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """A plateau, and a narrow peak that a long lengthscale explains away."""
    x = torch.linspace(0, 1, n, dtype=torch.float64).unsqueeze(-1)
    return x, 0.4 * x.squeeze(-1) + 1.5 * torch.exp(-(((x.squeeze(-1) - 0.22) / 0.08) ** 2))


@pytest.mark.exhaustive
def test_a_lengthscale_that_is_too_long_is_rejected_and_the_peak_found():
    x, f = hidden()
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 2.0
    options = {"noise_std": 0.05, "norm_bound": 0.3, "delta": 0.1}
    found, rejected = [], []
    for policy in (tb.lb_gp_ucb(kernel, horizon=250, **options), tb.igp_ucb(kernel, **options)):
        bandit, noise = tb.Bandit(policy, x), generator(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("torchbandits.policies.scale.issue", lambda _: None)
            for _ in range(250):
                selection = bandit.ask()
                noisy = f[selection.index] + 0.05 * torch.randn(1, generator=noise, dtype=torch.float64)
                bandit.tell(selection, noisy)
        pulls = bandit.counts
        found.append(float(f[int(pulls.argmax())]))
        rejected.append(getattr(bandit.loop.state, "balance", None))
    assert found[0] > 1.4, "most pulls are at the peak"
    assert found[1] < 0.5, "the long lengthscale alone never looks there"
    assert not bool(rejected[0].alive[0])


@pytest.mark.exhaustive
@OFF_SCALE
def test_rows_are_singles_with_norm_bounds_and_rejections_of_their_own():
    problems = [Problem(seed=seed, a=40) for seed in (1, 2, 3)]
    norms, options = torch.tensor([0.01, 1.0, 0.05], dtype=torch.float64), {"horizon": 40, "noise_std": NOISE_STD, "delta": 0.5}
    arms = torch.stack([p.tensor for p in problems])
    rows = tb.Bandit(tb.lb_gp_ucb(norm_bound=norms, **options), arms, generator=[generator(s) for s in range(3)])
    singles = [tb.Bandit(tb.lb_gp_ucb(norm_bound=float(n), **options), p.tensor) for n, p in zip(norms, problems, strict=True)]
    for t in range(30):
        selection = rows.ask()
        rewards = torch.tensor([[p.reward(t, int(a))] for p, a in zip(problems, selection.index[:, 0], strict=True)])
        rows.tell(selection, rewards.double())
        for row, single in enumerate(singles):
            own = single.ask()
            assert torch.equal(own.index, selection.index[row])
            single.tell(own, rewards[row].double())
            assert torch.equal(single.loop.state.balance.alive, rows.loop.state.balance.alive[:, row])
    for row, single in enumerate(singles):
        torch.testing.assert_close(rows.posterior(arms).mean[row], single.posterior(problems[row].tensor).mean)
        torch.testing.assert_close(rows.width[row], single.width)


def test_history_is_learned_by_all_candidates_and_credited_to_none():
    problem = Problem(seed=5, a=40)
    bandit = tb.Bandit(tb.lb_gp_ucb(rbf(), horizon=50, **BOUNDED), problem.tensor)
    other = tb.Bandit(tb.lb_gp_ucb(rbf(), horizon=50, **BOUNDED), problem.tensor)
    index, ones = torch.tensor([3, 9, 20]), torch.ones(3, dtype=torch.float64)
    rewards = problem.rewards(0, index)
    bandit.observe(index, ones, rewards)
    other.observe(problem.tensor[index], ones, rewards)
    for one in (bandit, other):
        assert float(one.loop.state.balance.counts.sum()) == 0
        assert float(one.pulls) == 3
    torch.testing.assert_close(bandit.loop.state.inner.arm_mean(), other.loop.state.inner.arm_mean())
    assert torch.equal(bandit.ask().index, other.ask().index)


def test_several_picks_are_those_of_pulls_one_by_one_with_unknown_rewards():
    problem = Problem(seed=7, a=40)
    policy = tb.lb_gp_ucb(rbf(), horizon=50, **BOUNDED)
    bandit, other = tb.Bandit(policy, problem.tensor), tb.Bandit(policy, problem.tensor)
    for one in (bandit, other):
        for t in range(9):
            selection = one.ask()
            one.tell(selection, problem.rewards(t, selection.index))
    together = bandit.ask(more=5).index.tolist()
    for _ in range(5):
        other.ask(more=1)
    assert other.ask().index.tolist() == together


def test_bad_options_are_refused():
    for kernel in (gpytorch.kernels.LinearKernel().double(), gpytorch.kernels.PeriodicKernel().double()):
        with pytest.raises(errors.UnsupportedError, match="RBF and Matérn"):
            tb.lb_gp_ucb(kernel, horizon=10)
        scaled = gpytorch.kernels.ScaleKernel(kernel)
        with pytest.raises(errors.UnsupportedError, match=type(kernel).__name__):
            tb.lb_gp_ucb(scaled, horizon=10)
        with pytest.raises(errors.UnsupportedError, match=type(kernel).__name__):
            tb.Bandit(tb.thompson_sampling(scaled, embedding="rff"), Problem(seed=0, a=9).tensor)
    for options in ({"growth": 0.0}, {"horizon": 0}, {"norm_bound": -1.0}, {"delta": 2.0}):
        with pytest.raises(errors.ArgumentError, match=next(iter(options))):
            tb.lb_gp_ucb(**({"horizon": 10} | options))


def test_auto_names_it_for_those_who_want_a_guarantee():
    problem = Problem(seed=1, a=40)
    bandit = tb.Bandit(tb.auto(), problem.tensor)
    bandit.tell(bandit.ask(), torch.ones(1))
    assert "lb_gp_ucb" in str(bandit.explain())
