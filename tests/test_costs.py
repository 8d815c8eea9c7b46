"""Costs: score per cost against a plain loop, budgets that are never overspent, columns in the history."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pyarrow.parquet
import pytest
import torch
from contract import PROBLEM
from problems import BOUNDED, COMMON, Problem, generator, kernel_pair, rbf
from scipy.stats import norm

import torchbandits as tb
from torchbandits import errors
from torchbandits.scores import LogEI, PerCost

A = 60


def costs_of(seed: int, a: int = A) -> torch.Tensor:
    return torch.as_tensor(np.random.default_rng(seed).uniform(0.2, 5.0, a))


def oracle_picks(
    problem: Problem, costs: np.ndarray, horizon: int, acquisition: str, exponent: float, baseline: float | None
) -> list[int]:
    """Picks of a dense GP whose scores are computed again at every step and divided by the cost."""
    kernel = kernel_pair("matern52")[1]
    K, lam, picks, rewards = kernel(problem.arms, problem.arms), 0.01, [], []
    for t in range(horizon):
        mean, var = np.zeros(A), np.diag(K).copy()
        if picks:
            solved = np.linalg.solve(K[np.ix_(picks, picks)] + lam * np.eye(t), K[picks])
            mean, var = solved.T @ np.array(rewards), var - (K[picks] * solved).sum(0)
        std = np.sqrt(np.maximum(var, 0))
        if acquisition == "ucb":
            u = mean + oracles.width_srinivas(t + 1, A, 0.1) * std - (mean.max() if baseline is None else baseline)
            score = np.where(u >= 0, u / costs**exponent, u * costs**exponent)
        else:
            z = (mean - mean.max()) / std
            score = np.log(std * (norm.pdf(z) + z * norm.cdf(z))) - exponent * np.log(costs)
        pick = oracles.argmax(score, np.ones(A, dtype=bool))
        picks.append(pick)
        rewards.append(problem.reward(t, pick))
    return picks


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    ("acquisition", "exponent", "baseline"),
    [("ucb", 0.5, None), ("ucb", 1.0, None), ("ucb", 1.0, 0.0), ("ucb", 0.5, 3.0), ("ucb", 2.0, -1.0), ("ei", 1.0, None)],
)
@pytest.mark.parametrize("seed", range(3))
def test_picks_are_those_of_a_plain_loop(seed: int, acquisition: str, exponent: float, baseline: float | None):
    """With a baseline of 3 every arm is below the baseline, where expensive arms have lower scores."""
    problem, costs = Problem(seed=seed, a=A), costs_of(seed)
    policy = tb.per_cost(
        tb.gp_ucb(kernel_pair("matern52")[0], acquisition=acquisition, **COMMON), exponent=exponent, baseline=baseline
    )
    bandit = tb.Bandit(policy, problem.tensor, costs=costs)
    picks = [pick for batch in problem.play(bandit, 40) for pick in batch]
    assert picks == oracle_picks(problem, costs.numpy(), 40, acquisition, exponent, baseline)


POLICIES: dict[str, Any] = {
    "bkb": lambda: tb.bkb(rbf(), **BOUNDED),
    "bkb pi": lambda: tb.bkb(rbf(), acquisition="pi", **BOUNDED),
    "batch_bkb": lambda: tb.batch_bkb(rbf(), ratio_threshold=3.0, **BOUNDED),
    "local": lambda: tb.batch_bkb(rbf(), batch_rule="local", **BOUNDED),
    "gp_bucb": lambda: tb.gp_bucb(rbf(), **BOUNDED),
    "mini_gp_ucb": lambda: tb.mini_gp_ucb(rbf(), **BOUNDED),
    "compressed_gp": lambda: tb.compressed_gp(rbf(), **COMMON),
    "thompson_sampling": lambda: tb.thompson_sampling(rbf(), **BOUNDED),
    "rff": lambda: tb.thompson_sampling(rbf(), embedding="rff", num_features=40, **BOUNDED),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", POLICIES)
def test_equal_costs_change_no_pick(name: str):
    """Equal costs of any unit change no pick, also in batches; and an exponent of 0 ignores unequal costs."""
    problem = Problem(seed=4, a=A)

    def picks(policy: Any, costs: torch.Tensor | None) -> list[list[int]]:
        return problem.play(tb.Bandit(policy, problem.tensor, generator=generator(3), costs=costs), 30, limit=7)

    plain = picks(POLICIES[name](), None)
    assert picks(tb.per_cost(POLICIES[name]()), torch.full((A,), 4.0)) == plain
    assert picks(tb.per_cost(POLICIES[name](), exponent=0.0), costs_of(0)) == plain


@pytest.mark.parametrize("width", [1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_unit_of_costs_changes_no_pick(seed: int, width: float):
    """Also in batches in which upper bounds fall below the highest mean; and equal costs are as none."""
    problem = Problem(seed=seed, a=A)

    def picks(costs: torch.Tensor | None) -> list[list[int]]:
        policy = tb.auto(batch_size=10, width=width)
        own = policy if costs is None else tb.per_cost(policy)
        return problem.play(tb.Bandit(own, problem.tensor, generator=generator(3), costs=costs), 40, limit=10)

    euros = costs_of(seed)
    assert picks(100 * euros) == picks(euros / 1024) == picks(euros)
    assert picks(torch.full((A,), 50.0)) == picks(None) != picks(euros)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", POLICIES)
def test_costs_matter_and_rows_have_their_own(name: str):
    problem, costs = Problem(seed=5, a=A), torch.stack([costs_of(7), costs_of(8)])
    policy = tb.per_cost(POLICIES[name]())
    batch = tb.Bandit(policy, problem.tensor, generator=[generator(1), generator(2)], costs=costs)
    singles = [tb.Bandit(policy, problem.tensor, generator=generator(1 + r), costs=costs[r]) for r in range(2)]
    plain = tb.Bandit(POLICIES[name](), problem.tensor, generator=generator(1))
    differs = False
    for step in range(12):
        together = batch.ask(limit=3)
        for row, single in enumerate(singles):
            alone = single.ask(limit=3)
            assert together.index[row][together.mask[row]].tolist() == alone.index.tolist()
            single.tell(alone, problem.rewards(3 * step, alone.index))
        rewards = problem.rewards(3 * step, together.index.clamp_min(0)[0])
        other = problem.rewards(3 * step, together.index.clamp_min(0)[1])
        batch.tell(together, torch.stack([rewards, other]))
        without = plain.ask(limit=3)
        differs |= without.index.tolist() != together.index[0].tolist()
        plain.tell(without, problem.rewards(3 * step, without.index))
    assert differs


@pytest.mark.parametrize("baseline", [None, 0.0])
def test_a_batch_per_cost_is_what_full_recomputation_picks(baseline: float | None):
    """Lazy picks among leaders equal those of a dense loop with hallucinated variances, in batches of fixed size."""
    theirs, ours = kernel_pair("matern32")
    for seed in range(3):
        problem, costs = Problem(seed=seed, a=A, near_duplicates=6), costs_of(seed)
        policy = tb.per_cost(
            tb.gp_bucb(theirs, max_batch_size=9, ratio_threshold=1e300, width=tb.widths.Constant(2.0), **BOUNDED),
            baseline=baseline,
        )
        bandit = tb.Bandit(policy, problem.tensor, costs=costs)
        K, lam = ours(problem.arms, problem.arms), 0.01
        picks: list[int] = []
        rewards: list[float] = []
        for _ in range(4):
            selection = bandit.ask()
            told, batch = len(rewards), []
            known = picks[:told]
            mean = K[known].T @ np.linalg.solve(K[np.ix_(known, known)] + lam * np.eye(told), rewards) if told else np.zeros(A)
            price, level = None, mean.max() if baseline is None else baseline
            power = (costs.numpy() / np.sqrt(costs.numpy().min() * costs.numpy().max())) ** 0.5
            for _ in range(9):
                all_ = known + batch
                var = np.diag(K).copy()
                if all_:
                    var -= (K[all_] * np.linalg.solve(K[np.ix_(all_, all_)] + lam * np.eye(len(all_)), K[all_])).sum(0)
                gain = mean + 2.0 * np.sqrt(np.maximum(var, 0)) - level
                price = np.where(gain >= 0, 1 / power, power) if price is None else price
                batch.append(oracles.argmax(gain * price, np.ones(A, dtype=bool)))
            assert selection.index.tolist() == batch
            y = problem.rewards(told, selection.index)
            bandit.tell(selection, y)
            picks, rewards = picks + batch, rewards + y.tolist()


@pytest.mark.parametrize("policy", [tb.gp_ucb, tb.gp_bucb])
def test_the_baseline_is_the_best_mean_that_can_be_had(policy: Any):
    """Arms that are neither on offer nor pulled do not count: where they promise the most, picks are those without them."""
    arms, costs = torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1), costs_of(0, 30)

    def told(own: torch.Tensor, price: torch.Tensor) -> tb.Bandit:
        given = policy(rbf(), width=tb.widths.Constant(1.0), noise_std=0.1)
        bandit = tb.Bandit(tb.per_cost(given), own, generator=generator(5), costs=price)
        points = torch.tensor([[0.1], [0.5], [0.97]], dtype=torch.float64)
        bandit.observe(points, torch.full((3,), 4), torch.tensor([0.0, 4.0, 16.0], dtype=torch.float64))
        return bandit

    whole = told(arms, costs)
    mean = whole.posterior(arms).mean
    assert float(mean[20:].max()) > float(mean[:20].max()) + 1
    picks = whole.ask(limit=3, available=torch.arange(30) < 20).index.tolist()
    assert picks == told(arms[:20], costs[:20]).ask(limit=3).index.tolist()
    assert picks != told(arms, costs).ask(limit=3).index.tolist()


def test_costs_travel_with_new_arms():
    costs = costs_of(0, PROBLEM.a)
    bandit = tb.Bandit(tb.per_cost(tb.gp_ucb(rbf(), **COMMON)), PROBLEM.tensor, costs=costs)
    selection = bandit.ask()
    bandit.tell(selection, torch.ones(1, dtype=torch.float64))
    with pytest.raises(errors.ArgumentError, match="costs"):
        bandit.set_arms_(PROBLEM.tensor[:9])
    bandit.set_arms_(PROBLEM.tensor[:9], costs=costs[:9])
    assert int(bandit.ask().index) < 9


def test_bad_costs_and_policies():
    policy = tb.per_cost(tb.gp_ucb(rbf(), **COMMON))
    for wrong in (None, costs_of(0, 5), -costs_of(0, PROBLEM.a), costs_of(0, PROBLEM.a) * math.nan):
        with pytest.raises(errors.ArgumentError, match="costs"):
            tb.Bandit(policy, PROBLEM.tensor, costs=wrong)
    twice = PROBLEM.tensor.clone()
    twice[7] = twice[3]
    with pytest.raises(errors.ArgumentError, match="equal arms"):
        tb.Bandit(policy, twice, costs=costs_of(0, PROBLEM.a))
    for scoreless in (tb.uniform(), tb.pi_gp_ucb(rbf(), nu=1.5, horizon=10)):
        with pytest.raises(errors.UnsupportedError, match="bkb"):
            tb.per_cost(scoreless)
    with pytest.raises(errors.ArgumentError, match="already"):
        tb.per_cost(policy)
    with pytest.raises(errors.ArgumentError, match="exponent"):
        tb.per_cost(tb.gp_ucb(rbf()), exponent=-1.0)
    with pytest.raises(errors.ArgumentError, match="baseline"):
        PerCost(LogEI(), baseline=1.0)


# ------------------------------------------------------------------------- runs


def environment(seed: int = 0, costs: torch.Tensor | None = None) -> tb.environments.Table:
    problem = Problem(seed=seed, a=A)
    return tb.environments.Table(
        problem.tensor, torch.as_tensor(problem.f), 0.1, costs=costs_of(seed) if costs is None else costs
    )


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", ["batch_bkb", "gp_bucb", "mini_gp_ucb", "thompson_sampling", "uniform", "pi_gp_ucb"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_budget_is_spent_and_never_exceeded(name: str, rows: int):
    policies = {
        "uniform": lambda: tb.uniform(batch_size=4),
        "pi_gp_ucb": lambda: tb.pi_gp_ucb(rbf(), nu=1.5, horizon=100, **BOUNDED),
    }
    env = environment()
    budget = torch.tensor([30.0, 7.3, 0.9][:rows], dtype=torch.float64)
    generators = [generator(r) for r in range(rows)]
    history = tb.run((policies | POLICIES)[name](), env, 500, generator=generators, budget=budget)
    pulls, batches = history.pulls, history.batches
    cheapest = float(env.costs.min())
    for row in range(rows):
        mine = pulls["row"] == row
        assert np.array_equal(pulls["cost"][mine], env.costs.numpy()[pulls["arm"][mine]])
        spent = pulls["cost"][mine].sum()
        assert float(budget[row]) - cheapest - 1e-9 < spent <= float(budget[row]) + 1e-9 or mine.sum() == 500
        assert spent == pytest.approx(batches["cost"][batches["row"] == row].sum())
        assert history.summary(row)["cost"] == pytest.approx(spent)


@pytest.mark.parametrize(("cost", "budget"), [(0.1, 0.3), (1.1, 3.3), (0.7, 2.1)])
def test_the_rounding_of_a_sum_of_costs_neither_saves_nor_adds_a_pull(cost: float, budget: float):
    env = tb.environments.Table(
        torch.eye(3).double(), torch.ones(3).double(), 0.1, costs=torch.full((3,), cost, dtype=torch.float64)
    )
    assert len(tb.run(tb.uniform(), env, 9, budget=budget)) == 3
    assert len(tb.run(tb.uniform(), env, 9, budget=budget, asynchronous=True, workers=2)) == 3
    assert len(tb.run(tb.uniform(), env, 9, stop=tb.stopping.Budget(cost=budget))) == 3


@pytest.mark.exhaustive
def test_per_cost_gains_more_for_the_same_budget():
    """Cheap and expensive arms have equal rewards; per unit of cost more reward is collected, in the mean of ten problems."""
    gained = {"plain": [], "per cost": []}
    for seed in range(10):
        env = environment(seed)
        own = tb.gp_ucb(rbf(), **COMMON)
        for name, policy in {"plain": own, "per cost": tb.per_cost(own, exponent=1.0, baseline=0.0)}.items():
            history = tb.run(policy, env, 1000, generator=generator(seed), budget=60.0)
            gained[name].append((env.means.numpy() - float(env.means.min()))[history.pulls["arm"]].sum())
    assert np.mean(gained["per cost"]) > 1.5 * np.mean(gained["plain"])


def test_a_budget_needs_costs():
    problem = Problem(seed=0, a=A)
    env = tb.environments.Table(problem.tensor, torch.as_tensor(problem.f), 0.1)
    with pytest.raises(errors.ArgumentError, match="costs"):
        tb.run(tb.uniform(), env, 5, budget=3.0)
    for wrong in (0.0, -1.0, torch.ones(4)):
        with pytest.raises(errors.ArgumentError, match="budget"):
            tb.run(tb.uniform(), environment(), 5, budget=wrong)
    for wrong in (torch.ones(3), torch.zeros(A), torch.full((A,), torch.nan)):
        with pytest.raises(errors.ArgumentError, match="costs"):
            environment(costs=wrong)


def test_cost_columns_survive_parquet_and_older_files_read_as_unknown(tmp_path: Path):
    history = tb.run(tb.uniform(), environment(), 20)
    history.to_parquet(tmp_path)
    assert tb.History.from_parquet(tmp_path) == history
    for name in ("pulls", "batches"):
        table = pyarrow.parquet.read_table(tmp_path / f"{name}.parquet")
        pyarrow.parquet.write_table(table.drop_columns(["cost"]), tmp_path / f"{name}.parquet")
    older = tb.History.from_parquet(tmp_path)
    assert np.isnan(older.pulls["cost"]).all()
    assert np.array_equal(older.pulls["reward"], history.pulls["reward"])
    assert "cost" not in older.summary()
    assert "cost" not in tb.History().summary()


def test_batch_rows_with_costs_of_their_own_may_have_equal_arms():
    arms = torch.cat([Problem(seed=0, a=6).tensor, Problem(seed=0, a=6).tensor[:1]])
    costs = torch.tensor([[1.0, 2, 3, 4, 5, 6, 1], [6.0, 5, 4, 3, 2, 1, 6]])
    made = [generator(0), generator(1)]
    bandit = tb.Bandit(tb.per_cost(tb.gp_ucb(rbf(), **COMMON)), arms, generator=made, costs=costs)
    assert bandit.ask().index.tolist() == [[0], [5]], "equal upper bounds: the cheapest arm of each row"
    with pytest.raises(errors.ArgumentError, match=r"the same cost.* Arm 6 equals arm 0, and costs 22 instead of 1"):
        tb.Bandit(tb.per_cost(tb.gp_ucb(rbf(), **COMMON)), arms, generator=made, costs=costs.cumsum(dim=-1))
