"""Laws 1-5 and 7-9 of the architecture sheet, on the public surface. The numbers come from `tolerances`."""

from __future__ import annotations

import copy
import importlib
import math
from typing import Any

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import (
    BATCH_RULES,
    BOUNDED,
    COMMON,
    DELTA,
    KERNELS,
    NOISE_STD,
    NORM_BOUND,
    OFF_SCALE,
    POLICIES,
    Problem,
    generator,
    kernel_pair,
    rbf,
    uniforms,
)
from tolerances import VARIANCE, VARIANCE_NEAR_DUPLICATES, Tolerance, assert_close

import torchbandits as tb
from torchbandits.testing.play import differences, size_of

F64, TWINS = VARIANCE[torch.float64], VARIANCE_NEAR_DUPLICATES[torch.float64]
MEAN = Tolerance(1e-8, 1e-9)
WITH_POSTERIOR = [name for name in POLICIES if name != "uniform"]
EVERYTHING = 1e15  # an oversampling that puts every pulled arm in the dictionary


def history(problem: Problem, pulls: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random pulls already summed: distinct arms (lowest copies), counts, sums of rewards."""
    rng = np.random.default_rng(problem.seed + 1)
    pulled = oracles.first_copies(problem.arms)[rng.integers(0, most, size=pulls)]
    u = np.array(list(dict.fromkeys(pulled.tolist())))
    n = np.array([(pulled == i).sum() for i in u], dtype=float)
    y = np.array([problem.reward(t, i) for t, i in enumerate(pulled)])
    return u, n, np.array([y[pulled == i].sum() for i in u])


def observed(policy: Any, problem: Problem, pulls: int = 60, most: int = 40, seed: int = 0) -> tuple[tb.Bandit, tuple]:
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(seed))
    u, n, s = history(problem, pulls, most)
    bandit.observe(torch.as_tensor(u), torch.as_tensor(n), torch.as_tensor(s))
    return bandit, (u, n, s)


def oracle_at(
    points: np.ndarray, problem: Problem, kernel: oracles.KernelFunction, stats: tuple, lam: float, S=None, pending=None
):
    """Exact posterior if `S` is None, otherwise Nyström on the arms `S`; at any points."""
    u, n, s = stats
    x_u = problem.arms[u]
    k = oracles.diagonal(kernel, points)
    if S is None:
        return oracles.exact_posterior_from_sums(kernel(x_u, x_u), kernel(x_u, points), k, n, s, lam)
    x_s = problem.arms[S]
    return oracles.nystrom_posterior(
        kernel(x_s, x_s), kernel(x_s, x_u), kernel(x_s, points), k, n, s, lam, pending=pending, K_aa=kernel(points, points)
    )


def dictionary_of(bandit: tb.Bandit) -> np.ndarray:
    S = bandit.dictionary.numpy()
    return S[S >= 0]


def same(a: Any, b: Any) -> bool:
    return not differences(a, b)


# ------------------------------------------------------------------------- law 1: Nyström, exact and oracle agree


@pytest.mark.sweep(9)
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("lam", [1.0, 1e-2, 1e-4])
def test_law_1_everything_in_the_dictionary_is_exact(kernel_name, lam):
    problem = Problem(seed=1)
    kernel, kernel_np = kernel_pair(kernel_name)
    scale = float(oracles.diagonal(kernel_np, problem.arms).max())
    points = np.concatenate([problem.arms, np.random.default_rng(2).uniform(-0.5, 1.5, size=(50, 2))])
    policies = {
        "exact": tb.gp_ucb(kernel, regularization=lam, **COMMON),
        "nystrom": tb.bkb(kernel, regularization=lam, oversampling=EVERYTHING, **BOUNDED),
    }
    for name, policy in policies.items():
        bandit, stats = observed(policy, problem)
        expected = oracle_at(points, problem, kernel_np, stats, lam)
        got = bandit.posterior(torch.as_tensor(points))
        if name == "nystrom":
            assert sorted(dictionary_of(bandit)) == sorted(stats[0])
        assert_close(got.variance, expected.variance, F64, scale, what=f"{name} variance")
        assert_close(got.mean, expected.mean, MEAN, what=f"{name} mean")


@pytest.mark.sweep
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("lam", [1.0, 1e-2])
def test_law_1_a_part_in_the_dictionary_is_the_oracle(kernel_name, lam):
    problem = Problem(seed=3)
    kernel, kernel_np = kernel_pair(kernel_name, 0.2)
    scale = float(oracles.diagonal(kernel_np, problem.arms).max())
    bandit = tb.Bandit(tb.bkb(kernel, regularization=lam, oversampling=1.0, **BOUNDED), problem.tensor, generator=generator(4))
    picks = [i for batch in problem.play(bandit, 60) for i in batch]
    stats = sums_of(problem, picks)
    S = dictionary_of(bandit)
    assert 0 < len(S) <= len(stats[0])
    expected = oracle_at(problem.arms, problem, kernel_np, stats, lam, S=S)
    got = bandit.posterior(problem.tensor)
    assert_close(got.variance, expected.variance, F64, scale)
    assert_close(got.mean, expected.mean, MEAN)


def sums_of(problem: Problem, picks: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    u = np.array(list(dict.fromkeys(picks)))
    y = np.array([problem.reward(t, i) for t, i in enumerate(picks)])
    return u, np.array([float(picks.count(i)) for i in u]), np.array([y[np.array(picks) == i].sum() for i in u])


@pytest.mark.sweep(9)
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("lam", [1.0, 1e-2, 1e-4])
def test_law_1_with_duplicates_and_near_duplicates(kernel_name, lam):
    problem = Problem(seed=5, duplicates=10, near_duplicates=20)
    kernel, kernel_np = kernel_pair(kernel_name)
    scale = float(oracles.diagonal(kernel_np, problem.arms).max())
    policies = {
        "exact": tb.gp_ucb(kernel, regularization=lam, **COMMON),
        "nystrom": tb.bkb(kernel, regularization=lam, oversampling=EVERYTHING, **BOUNDED),
    }
    for name, policy in policies.items():
        bandit, stats = observed(policy, problem, pulls=120, most=80)
        expected = oracle_at(problem.arms, problem, kernel_np, stats, lam)
        got = bandit.posterior(problem.tensor)
        assert_close(got.variance, expected.variance, TWINS, scale, what=f"{name} variance")
        assert_close(got.mean, expected.mean, Tolerance(1e-5, 1e-6), what=f"{name} mean")
        # Exact duplicates are one entry and share its pulls.
        counts = np.zeros(problem.a)
        counts[stats[0]] = stats[1]
        np.testing.assert_array_equal(bandit.counts.numpy(), counts[oracles.first_copies(problem.arms)])
        assert int(bandit.pulls) == 120


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", WITH_POSTERIOR)
@pytest.mark.parametrize("kernel_name", ["rbf", "matern12"])
def test_law_1_after_a_run_of_one_step_updates(name, kernel_name):
    """Columns appended, rank-one updates, resparsifications: the state after a run equals the oracle built at once."""
    problem = Problem(seed=6)
    kernel, kernel_np = kernel_pair(kernel_name)
    bandit = tb.Bandit(POLICIES[name](kernel), problem.tensor, generator=generator(7))
    picks = [i for batch in problem.play(bandit, 80) for i in batch]
    S = None if name in ("gp_ucb", "igp_ucb", "gp_bucb") else dictionary_of(bandit)
    lam = 1.0 if name == "igp_ucb" else NOISE_STD**2
    expected = oracle_at(problem.arms, problem, kernel_np, sums_of(problem, picks), lam, S=S)
    got = bandit.posterior(problem.tensor)
    assert_close(got.variance, expected.variance, F64)
    assert_close(got.mean, expected.mean, MEAN)
    np.testing.assert_array_equal(bandit.counts.numpy(), np.bincount(picks, minlength=problem.a))


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", WITH_POSTERIOR)
def test_law_1_in_single_precision(name):
    """float32 arms, λ = 1e-2·k ≥ 1e-4·k: variances differ from the float64 oracle by at most 1e-4·k and are float32."""
    problem = Problem(seed=8, a=60)
    kernel, kernel_np = kernel_pair("rbf")
    arms = problem.tensor.float()
    problem.arms = arms.double().numpy()  # the arms as float32 rounds them
    bandit = tb.Bandit(POLICIES[name](kernel.float()), arms, generator=generator(9))
    picks: list[int] = []
    while len(picks) < 60:
        selection = bandit.ask(limit=60 - len(picks))
        assert selection.points.dtype == torch.float32
        bandit.tell(selection, problem.rewards(len(picks), selection.index).float())
        picks += selection.index.tolist()
    S = None if name in ("gp_ucb", "igp_ucb", "gp_bucb") else dictionary_of(bandit)
    lam = 1.0 if name == "igp_ucb" else NOISE_STD**2
    expected = oracle_at(problem.arms, problem, kernel_np, sums_of(problem, picks), lam, S=S)
    got = bandit.posterior(arms)
    assert got.variance.dtype == got.mean.dtype == torch.float32
    assert_close(got.variance, expected.variance, VARIANCE[torch.float32])
    assert_close(got.mean, expected.mean, Tolerance(1e-3, 1e-3))


@pytest.mark.parametrize("name", WITH_POSTERIOR)
def test_law_1_the_posterior_differentiates_in_the_points(name):
    problem = Problem(seed=10)
    bandit, _ = observed(POLICIES[name](rbf()), problem)
    points = torch.rand(3, 2, dtype=torch.float64, generator=generator(11), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: (bandit.posterior(x).mean, bandit.posterior(x).variance), (points,), atol=1e-5)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", WITH_POSTERIOR)
def test_law_1_with_history_from_outside_the_arms(name):
    """History at points that are not arms, with weights that are not integers, after which the run continues."""
    problem = Problem(seed=16, a=60)
    kernel, kernel_np = kernel_pair("matern52")
    bandit = tb.Bandit(POLICIES[name](kernel), problem.tensor, generator=generator(17))
    picks = [i for batch in problem.play(bandit, 20) for i in batch]
    rng = np.random.default_rng(18)
    outside, n_out, s_out = rng.uniform(-1, 2, size=(12, 2)), rng.uniform(0.3, 4, size=12), rng.normal(size=12)
    bandit.observe(torch.as_tensor(outside), torch.as_tensor(n_out), torch.as_tensor(s_out))
    later = [i for batch in _play_on(problem, bandit, 20, 20) for i in batch]
    u, n, s = sums_of(problem, picks + later)
    lam = 1.0 if name == "igp_ucb" else NOISE_STD**2
    if name in ("bkb", "batch_bkb"):
        assert (bandit.dictionary == -1).sum() > 0
        return
    x = np.concatenate([problem.arms[u], outside])
    n, s = np.concatenate([n, n_out]), np.concatenate([s, s_out])
    k = np.ones(problem.a)
    expected = oracles.exact_posterior_from_sums(kernel_np(x, x), kernel_np(x, problem.arms), k, n, s, lam)
    got = bandit.posterior(problem.tensor)
    assert_close(got.variance, expected.variance, F64)
    assert_close(got.mean, expected.mean, MEAN)
    std = np.sqrt(expected.variance)
    # `ask` ranks arms by the same numbers that `posterior` returns.
    scores = expected.mean + float(bandit.width) * std
    pick = int(bandit.ask(limit=1).index[0])
    assert scores[pick] >= scores.max() * (1 - 1e-9)


def _play_on(problem: Problem, bandit: tb.Bandit, told: int, pulls: int) -> list[list[int]]:
    """Continue a run whose first `told` pulls are told, with the next rewards of the table."""
    picks: list[list[int]] = []
    until = told + pulls
    while told < until:
        selection = bandit.ask(limit=until - told)
        bandit.tell(selection, problem.rewards(told, selection.index))
        picks.append(selection.index.tolist())
        told += len(selection)
    return picks


@pytest.mark.sweep(5)
@pytest.mark.parametrize("name", WITH_POSTERIOR)
@pytest.mark.parametrize("prior_mean", [0.7, "estimate"])
def test_law_1_rewards_centred_by_a_prior_mean(name, prior_mean):
    """The posterior of centred rewards, moved back: by the given mean, or by the average of all rewards told."""
    problem = Problem(seed=19, a=60)
    problem.f = problem.f + 3.0
    kernel, kernel_np = kernel_pair("rbf")
    options = {"gp_ucb": COMMON}.get(name, BOUNDED) | {"prior_mean": prior_mean}
    bandit = tb.Bandit(getattr(tb, name)(kernel, **options), problem.tensor, generator=generator(20))
    picks = [i for batch in problem.play(bandit, 50) for i in batch]
    u, n, s = sums_of(problem, picks)
    centre = prior_mean if prior_mean == 0.7 else s.sum() / n.sum()
    S = None if name in ("gp_ucb", "igp_ucb", "gp_bucb") else dictionary_of(bandit)
    lam = 1.0 if name == "igp_ucb" else NOISE_STD**2
    expected = oracle_at(problem.arms, problem, kernel_np, (u, n, s - n * centre), lam, S=S)
    got = bandit.posterior(problem.tensor)
    assert_close(got.variance, expected.variance, F64)
    assert_close(got.mean, expected.mean + centre, MEAN)
    scores = expected.mean + centre + float(bandit.width) * np.sqrt(np.maximum(expected.variance, 0))
    assert scores[int(bandit.ask(limit=1).index[0])] >= scores.max() - 1e-8


# ------------------------------------------------------------------------- law 2: k pulls at once are k pulls in turn


@given(seed=st.integers(0, 10_000), lam=st.sampled_from([1.0, 1e-2, 1e-4]), sparse=st.booleans())
def test_law_2_one_update_with_k_pulls_equals_k_updates_in_any_order(seed, lam, sparse):
    problem = Problem(seed=seed, a=30)
    kernel, kernel_np = kernel_pair("matern52")
    rng = np.random.default_rng(seed)
    pulled = rng.integers(0, 15, size=25)
    y = np.array([problem.reward(t, i) for t, i in enumerate(pulled)])
    order = rng.permutation(25)

    def bandit() -> tb.Bandit:
        if sparse:
            policy = tb.bkb(kernel, regularization=lam, oversampling=EVERYTHING, **BOUNDED)
        else:
            policy = tb.gp_ucb(kernel, regularization=lam, **COMMON)
        return tb.Bandit(policy, problem.tensor, generator=generator(0))

    def observe(b: tb.Bandit, rows: np.ndarray) -> None:
        ones = torch.ones(len(rows), dtype=torch.float64)
        b.observe(torch.as_tensor(pulled[rows]), ones, torch.as_tensor(y[rows]))

    at_once, in_turn, in_parts = bandit(), bandit(), bandit()
    observe(at_once, np.arange(25))
    for j in order:
        observe(in_turn, np.array([j]))
    for part in np.split(order, [3, 4, 15]):
        observe(in_parts, part)
    u, n = np.unique(pulled, return_counts=True)
    s = np.array([y[pulled == i].sum() for i in u])
    expected = oracle_at(problem.arms, problem, kernel_np, (u, n.astype(float), s), lam)
    for got in (b.posterior(problem.tensor) for b in (at_once, in_turn, in_parts)):
        assert_close(got.variance, expected.variance, F64)
        assert_close(got.mean, expected.mean, MEAN)


# ------------------------------------------------------------------------- law 3: hallucination


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["gp_bucb", "batch_bkb"])
@pytest.mark.parametrize("kernel_name", ["rbf", "matern32"])
def test_law_3_hallucination_and_its_undo(name, kernel_name):
    problem = Problem(seed=12)
    kernel = kernel_pair(kernel_name)[0]
    bandit = tb.Bandit(POLICIES[name](kernel), problem.tensor, generator=generator(13))
    told = 0
    for _ in range(25):  # until batches hold several picks
        selection = bandit.ask()
        bandit.tell(selection, problem.rewards(told, selection.index))
        told += len(selection)
    points = torch.cat([problem.tensor, torch.rand(20, 2, dtype=torch.float64, generator=generator(14))])
    before, state = bandit.posterior(points), copy.deepcopy(bandit.state_dict())
    picks = bandit.ask(limit=1)
    one = bandit.posterior(points)
    more = bandit.ask(more=4)
    five = bandit.posterior(points)
    assert len(picks) == 1
    assert len(more) == 5
    for after in (one, five):
        assert_close(after.mean, before.mean, Tolerance(0, 1e-12), what="mean under hallucination")
    assert (one.variance <= before.variance + 1e-14).all()
    assert (five.variance <= one.variance + 1e-14).all()
    bandit.forget(more)
    undone = bandit.posterior(points)
    assert torch.equal(undone.mean, before.mean)
    assert torch.equal(undone.variance, before.variance)
    assert differences(statistics_only(bandit.state_dict()), statistics_only(state)) == []
    # Later picks are as if the batch had never been asked for.
    twin = tb.Bandit(POLICIES[name](kernel), problem.tensor, generator=generator(13))
    twin.load_state_dict(state)
    assert problem.play(bandit, 40) == problem.play(twin, 40)


def statistics_only(state: dict[str, Any]) -> dict[str, Any]:
    """The learned and pending parts of a state, without records of the calls made (asks, forgets)."""
    return {k: v for k, v in state["state"].items() if isinstance(v, torch.Tensor) and "pending" not in k}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kernel_name", ["rbf", "matern12"])
def test_law_3_the_hallucinated_variance_is_the_oracle_s(kernel_name):
    problem = Problem(seed=15)
    kernel, kernel_np = kernel_pair(kernel_name)
    for name, sparse in (("gp_bucb", False), ("batch_bkb", True)):
        bandit = tb.Bandit(POLICIES[name](kernel), problem.tensor, generator=generator(16))
        picks = [i for batch in problem.play(bandit, 70) for i in batch]
        batch = bandit.ask(more=12).index.tolist()
        u, n, s = sums_of(problem, picks)
        order = list(u) + [i for i in dict.fromkeys(batch) if i not in set(u.tolist())]
        pending = np.array([float(batch.count(i)) for i in order])
        counts, sums = (
            np.concatenate([n, np.zeros(len(order) - len(u))]),
            np.concatenate([s, np.zeros(len(order) - len(u))]),
        )
        if sparse:
            S = dictionary_of(bandit)
            told = oracle_at(problem.arms, problem, kernel_np, (u, n, s), NOISE_STD**2, S=S)
            expected = told.given_pulls(order, pending)
        else:
            expected = oracle_at(
                problem.arms, problem, kernel_np, (np.array(order), counts + pending, sums), NOISE_STD**2
            ).variance
        assert_close(bandit.posterior(problem.tensor).variance, expected, F64, what=name)


# ------------------------------------------------------------------------- law 4: the lazy argmax is a full sweep

HORIZON = 90


def oracle_run(
    name: str, problem: Problem, kernel: oracles.KernelFunction, horizon: int, seed: int, **options: Any
) -> oracles.Trace:
    arguments = (problem.arms, kernel, problem.reward, horizon)
    if name == "gp_ucb":
        return oracles.gp_ucb(*arguments, noise_std=NOISE_STD, delta=DELTA, **options)
    bounded = {"noise_std": NOISE_STD, "norm_bound": NORM_BOUND, "delta": DELTA} | options
    if name == "igp_ucb":
        return oracles.igp_ucb(*arguments, **bounded)
    if name == "gp_bucb":
        return oracles.gp_bucb(*arguments, **({"ratio_threshold": 1.5} | bounded))
    sampled = {"oversampling": 2.0, "uniforms": uniforms(seed)} | bounded
    if name == "bkb":
        return oracles.bkb(*arguments, **sampled)
    return oracles.batch_bkb(*arguments, **({"ratio_threshold": 1.5} | sampled))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("name", WITH_POSTERIOR)
def test_law_4_whole_runs_equal_the_naive_loop(name, kernel_name):
    problem = Problem(seed=20, a=120)
    kernel, kernel_np = kernel_pair(kernel_name)
    expected = oracle_run(name, problem, kernel_np, HORIZON, seed=21)
    bandit = tb.Bandit(POLICIES[name](kernel), problem.tensor, generator=generator(21))
    assert problem.play(bandit, HORIZON) == expected.picks
    got = bandit.posterior(problem.tensor)
    scale = float(oracles.diagonal(kernel_np, problem.arms).max())
    assert_close(got.variance, expected.variance, F64, scale)
    assert_close(got.mean, expected.mean, MEAN)


def batch_policy(kernel: Any, embedding: str, rule: str, **options: Any) -> Any:
    make = tb.gp_bucb if embedding == "exact" else tb.batch_bkb
    extra = {} if embedding == "exact" else {"oversampling": 2.0}
    return make(kernel, batch_rule=rule, **({"ratio_threshold": 1.5} | BOUNDED | extra | options))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", [30, 31, 32])
@pytest.mark.parametrize("threshold", [1.2, 3.0])
@pytest.mark.parametrize("rule", BATCH_RULES)
@pytest.mark.parametrize("embedding", ["exact", "nystrom"])
def test_law_4_every_batch_rule_equals_the_naive_loop(embedding, rule, threshold, seed):
    problem = Problem(seed=seed, a=100)
    kernel, kernel_np = kernel_pair("rbf", 0.5)
    name = "gp_bucb" if embedding == "exact" else "batch_bkb"
    expected = oracle_run(name, problem, kernel_np, HORIZON, seed, rule=rule, ratio_threshold=threshold)
    policy = batch_policy(kernel, embedding, rule, ratio_threshold=threshold)
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(seed))
    assert problem.play(bandit, HORIZON) == expected.picks
    assert max(map(len, expected.picks)) > 1


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rule", BATCH_RULES)
@pytest.mark.parametrize("embedding", ["exact", "nystrom"])
def test_law_4_under_caps_masks_and_duplicates(embedding, rule):
    """max_pulls=1, max_batch_size, limits, arms on offer, and exact duplicates that share an entry, all at once."""
    problem = Problem(seed=33, a=100, duplicates=20)
    kernel, kernel_np = kernel_pair("matern52", 0.5)
    mask = np.random.default_rng(34).uniform(size=(HORIZON, problem.a)) < 0.4
    copies = oracles.first_copies(problem.arms)
    name = "gp_bucb" if embedding == "exact" else "batch_bkb"
    expected = oracle_run(
        name, problem, kernel_np, HORIZON, 35, rule=rule, ratio_threshold=4.0, max_pulls=1, max_batch_size=6,
        limits=lambda b: 1 + b % 8, available=lambda b: mask[b],
    )  # fmt: skip
    policy = batch_policy(kernel, embedding, rule, ratio_threshold=4.0, max_pulls=1, max_batch_size=6)
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(35))
    got = problem.play(
        bandit, HORIZON, limit=lambda b: 1 + b % 8, available=lambda b: torch.as_tensor(mask[b])
    )  # fmt: skip
    assert [[copies[i] for i in batch] for batch in got] == expected.picks
    for number, batch in enumerate(got):
        assert len(batch) == len({copies[i] for i in batch}) <= min(6, 1 + number % 8)
        on_offer = np.flatnonzero(mask[number])
        lowest = {copies[i]: i for i in reversed(on_offer.tolist())}
        assert all(lowest[copies[i]] == i for i in batch), "only the lowest copy on offer is ever returned"
    assert max(map(len, got)) > 2


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", [40, 41])
@pytest.mark.parametrize(("embedding", "rule"), [
    ("exact", "product"), ("exact", "global"),
    ("nystrom", "global"), ("nystrom", "product"), ("nystrom", "exact_ratio"),
])  # fmt: skip
def test_law_4_with_near_duplicates_every_pick_is_a_best_arm(embedding, rule, seed):
    """Twins at distance 1e-7 have equal scores to rounding: the oracle follows the picks, and none may be worse than its
    own."""
    problem = Problem(seed=seed, a=80, near_duplicates=30, duplicates=5)
    kernel, kernel_np = kernel_pair("matern32", 0.4)
    name = "gp_bucb" if embedding == "exact" else "batch_bkb"
    policy = batch_policy(kernel, embedding, rule, ratio_threshold=2.0)
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(seed))
    picks = problem.play(bandit, HORIZON)
    led = oracle_run(name, problem, kernel_np, HORIZON, seed, rule=rule, ratio_threshold=2.0, follow=picks)
    assert max(led.gap) <= 1e-7, f"a pick scores {max(led.gap):.3g} (relative) below the best arm"
    # Every batch ends where the rule breaks, and not before (the last batch is cut by the horizon).
    ends = np.cumsum([len(b) for b in picks]) - 1
    statistic = np.array(led.statistic)
    inside = np.delete(np.arange(HORIZON), ends)
    assert (statistic[inside] <= 2.0 * (1 + 1e-6)).all()
    assert (statistic[ends[:-1]] > 2.0 * (1 - 1e-6)).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("rule", "horizon"),
    [("global", 1000), ("global_then_local", 1000), pytest.param("product", 450, marks=pytest.mark.exhaustive)],
)
def test_law_4_in_batches_of_hundreds(rule, horizon):
    """Many leaders, many rounds: long batches among more arms than the leaders of the lazy loop."""
    problem = Problem(seed=45, a=300)
    kernel, kernel_np = kernel_pair("rbf", 1.0)
    expected = oracle_run("batch_bkb", problem, kernel_np, horizon, 46, rule=rule, ratio_threshold=6.0)
    policy = batch_policy(kernel, "nystrom", rule, ratio_threshold=6.0)
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(46))
    assert problem.play(bandit, horizon) == expected.picks
    assert max(map(len, expected.picks)) > 100


@pytest.mark.sweep
@pytest.mark.parametrize("name", WITH_POSTERIOR)
@pytest.mark.parametrize("rule", [None, *BATCH_RULES])
def test_law_4_a_batch_without_a_limit_ends(name, rule):
    """From the prior, on one arm, on equal arms, on a zero arm of a linear kernel: every call of `ask()` returns."""
    if (rule is None) == (name in ("gp_bucb", "batch_bkb")):
        return
    for kernel_name, arms in (
        ("rbf", np.random.default_rng(47).uniform(size=(30, 2))),
        ("rbf", np.zeros((1, 2))),
        ("rbf", np.ones((9, 2))),
        ("matern12", np.linspace(0, 1, 5)[:, None]),
        ("linear", np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.5]])),
    ):
        kernel = kernel_pair(kernel_name)[0]
        embedding = {"gp_bucb": "exact", "batch_bkb": "nystrom"}.get(name)
        policy = POLICIES[name](kernel) if rule is None else batch_policy(kernel, embedding, rule)
        bandit = tb.Bandit(policy, torch.as_tensor(arms), generator=generator(48))
        for _ in range(8):
            selection = bandit.ask()
            assert 1 <= len(selection) < 2_000
            report = bandit.tell(selection, torch.linspace(-1, 1, len(selection), dtype=torch.float64))
            assert math.isfinite(float(report.certificate))
        assert not bandit.posterior(torch.as_tensor(arms)).variance.isnan().any()


def test_law_4_more_picks_than_there_is_room_for():
    problem = Problem(seed=49, a=20, duplicates=3)
    policy = batch_policy(rbf(), "nystrom", "global", max_pulls=1)
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(0))
    entries = sorted(set(oracles.first_copies(problem.arms).tolist()))
    assert sorted(bandit.ask(more=100).index.tolist()) == entries
    assert sorted(bandit.ask(more=1).index.tolist()) == entries


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rule", BATCH_RULES)
@pytest.mark.parametrize("embedding", ["exact", "nystrom"])
def test_law_4_the_loop_picks_alike_compiled_or_not(monkeypatch, embedding, rule):
    """The picks without numba are those of the compiled loop."""
    compiled = importlib.import_module("torchbandits.arms.compiled")
    problem = Problem(seed=51, a=150)
    policy = batch_policy(rbf(0.7), embedding, rule, ratio_threshold=3.0, max_pulls=4)
    expected = problem.play(tb.Bandit(policy, problem.tensor, generator=generator(52)), 200)
    monkeypatch.setattr(compiled, "pick_leaders", getattr(compiled.pick_leaders, "py_func", compiled.pick_leaders))
    assert problem.play(tb.Bandit(policy, problem.tensor, generator=generator(52)), 200) == expected
    assert max(map(len, expected)) > 3


@pytest.mark.cuda
@pytest.mark.parametrize("name", POLICIES)
def test_law_5_a_device_picks_what_the_host_picks(name):
    problem = Problem(seed=53, a=150)
    host = tb.Bandit(POLICIES[name](rbf()), problem.tensor, generator=generator(54))
    device = tb.Bandit(POLICIES[name](rbf()), problem.tensor.cuda(), generator=generator(54))
    told = 0
    while told < 100:
        a, b = host.ask(limit=100 - told), device.ask(limit=100 - told)
        assert b.index.is_cuda
        assert a.index.tolist() == b.index.tolist()
        rewards = problem.rewards(told, a.index)
        host.tell(a, rewards)
        device.tell(b, rewards.cuda())
        told += len(a)
    assert differences(host.counts, device.counts.cpu()) == []
    if name != "uniform":
        here, there = host.posterior(problem.tensor), device.posterior(problem.tensor.cuda())
        assert_close(there.variance, here.variance, F64)
        assert_close(there.mean, here.mean, MEAN)


@pytest.mark.filterwarnings("ignore:no arm has learned anything:torchbandits.errors.DiagnosticWarning")  # at 0.05
@given(seed=st.integers(0, 100_000), lengthscale=st.sampled_from([0.05, 0.3, 2.0]), name=st.sampled_from(WITH_POSTERIOR))
def test_law_4_on_random_problems(seed, lengthscale, name):
    """No pick is worse than the best, for short to very long lengthscales and grids with exact symmetries."""
    problem = Problem(seed=seed, a=49)
    if seed % 2:
        side = np.linspace(0, 1, 7)
        problem.arms = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    kernel, kernel_np = kernel_pair("rbf", lengthscale)
    bandit = tb.Bandit(POLICIES[name](kernel), problem.tensor, generator=generator(seed))
    picks = problem.play(bandit, 30)
    led = oracle_run(name, problem, kernel_np, 30, seed, follow=picks)
    assert max(led.gap) <= 1e-9
    assert picks[0][0] == 0


def test_law_4_the_first_pick_is_the_lowest_index_of_the_prior():
    problem = Problem(seed=42, duplicates=10)
    for name in WITH_POSTERIOR:
        bandit = tb.Bandit(POLICIES[name](rbf()), problem.tensor, generator=generator(0))
        assert bandit.ask(limit=1).index.tolist() == [0]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", WITH_POSTERIOR)
def test_the_report_is_what_the_oracle_computes(name):
    """Width, pulls, distinct arms, information gain and the certificate after every tell."""
    problem = Problem(seed=43)
    kernel, kernel_np = kernel_pair("rbf", 0.5)
    bandit = tb.Bandit(POLICIES[name](kernel), problem.tensor, generator=generator(44))
    trace = oracle_run(name, problem, kernel_np, 50, 44)
    told: list[int] = []
    lam = 1.0 if name == "igp_ucb" else NOISE_STD**2
    for number, batch in enumerate(trace.picks):
        selection = bandit.ask(limit=50 - len(told))
        assert selection.index.tolist() == batch
        assert math.isclose(float(bandit.width), trace.widths[number], rel_tol=1e-8)
        report = bandit.tell(selection, problem.rewards(len(told), selection.index))
        told += batch
        u, n, s = sums_of(problem, told)
        assert int(report.pulls) == len(told) == int(bandit.counts.sum())
        assert int(report.batch_size) == len(batch)
        assert int(report.distinct_arms) == len(u)
        exact = name in ("gp_ucb", "igp_ucb", "gp_bucb")
        S = None if exact else dictionary_of(bandit)
        if not exact:
            assert int(report.dictionary_size) == len(S)
            if number + 1 < len(trace.dictionaries):
                assert sorted(S.tolist()) == sorted(trace.dictionaries[number + 1])
        posterior = oracle_at(problem.arms, problem, kernel_np, (u, n, s), lam, S=S)
        if exact:
            gain = 0.5 * oracles.log_det(kernel_np(problem.arms[u], problem.arms[u]), n, lam)
            assert math.isclose(float(report.information_gain), gain, rel_tol=1e-8)
        std = np.sqrt(np.maximum(posterior.variance, 0))
        width = float(report.width)
        certificate = (posterior.mean + width * std).max() - (posterior.mean - width * std).max()
        assert math.isclose(float(report.certificate), certificate, rel_tol=1e-7, abs_tol=1e-8)
    best = bandit.best()
    means = np.where(np.isin(np.arange(problem.a), told), posterior.mean, -np.inf)
    assert int(best.index[..., 0]) == int(means.argmax())
    assert math.isclose(float(best.mean[..., 0]), means.max(), rel_tol=1e-8)


# ------------------------------------------------------------------------- law 5: batch rows are singles


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("shared_arms", [True, False])
def test_law_5_a_batch_is_as_many_singles(name, shared_arms):
    problems = [Problem(seed=50 + (0 if shared_arms else r), a=60) for r in range(3)]
    arms = problems[0].tensor if shared_arms else torch.stack([p.tensor for p in problems])
    kernel = rbf(0.5)
    batch = tb.Bandit(POLICIES[name](kernel), arms, generator=[generator(60 + r) for r in range(3)])
    picks: list[list[int]] = [[], [], []]
    for _ in range(25):
        selection = batch.ask(limit=7)
        rewards = torch.full(selection.index.shape, torch.nan, dtype=torch.float64)  # masked places are ignored
        for r in range(3):
            count = int(selection.mask[r].sum())
            assert (selection.index[r][~selection.mask[r]] == -1).all()
            rewards[r][selection.mask[r]] = problems[r].rewards(len(picks[r]), selection.index[r][selection.mask[r]])
            picks[r] += selection.index[r][selection.mask[r]].tolist()
            assert count == int((selection.index[r] >= 0).sum())
        batch.tell(selection, rewards)
    for r in range(3):
        single = tb.Bandit(POLICIES[name](kernel), problems[r].tensor, generator=generator(60 + r))
        alone: list[int] = []
        for _ in range(25):
            selection = single.ask(limit=7)
            single.tell(selection, problems[r].rewards(len(alone), selection.index))
            alone += selection.index.tolist()
        assert alone == picks[r]
        np.testing.assert_array_equal(batch.counts[r].numpy(), single.counts.numpy())
        if name != "uniform":
            together, apart = (
                batch.posterior(arms if not shared_arms else arms.expand(3, -1, -1)),
                single.posterior(problems[r].tensor),
            )
            assert_close(together.variance[r], apart.variance, F64)
            assert_close(together.mean[r], apart.mean, MEAN)


@pytest.mark.sweep(1)
@pytest.mark.filterwarnings("ignore:batch row 1. :torchbandits.errors.DiagnosticWarning")  # row 1 gets garbage on purpose
@pytest.mark.parametrize("name", WITH_POSTERIOR)
def test_law_5_rows_do_not_leak(name):
    """Row 0 picks the same arms for any arms, rewards and availability of row 1."""
    problem, other = Problem(seed=70, a=50), Problem(seed=71, a=50)

    def row_0(second_arms: np.ndarray, scale: float, mask_second: bool) -> list[list[int]]:
        arms = torch.stack([problem.tensor, torch.as_tensor(second_arms)])
        bandit = tb.Bandit(POLICIES[name](rbf(0.5)), arms, generator=[generator(1), generator(2)])
        available = torch.ones(2, 50, dtype=torch.bool)
        if mask_second:
            available[1, 3:] = False
        picks: list[list[int]] = []
        for _ in range(15):
            selection = bandit.ask(limit=5, available=available)
            rewards = torch.zeros(selection.index.shape, dtype=torch.float64)
            mine = selection.index[0][selection.mask[0]]
            rewards[0][selection.mask[0]] = problem.rewards(sum(map(len, picks)), mine)
            rewards[1] = scale * selection.index[1].double()
            bandit.tell(selection, rewards)
            picks.append(mine.tolist())
        return picks

    reference = row_0(other.arms, 0.1, mask_second=False)
    assert row_0(problem.arms, 0.1, mask_second=False) == reference
    assert row_0(other.arms, 1e12, mask_second=False) == reference
    assert row_0(other.arms, -3.0, mask_second=True) == reference
    assert row_0(np.zeros((50, 2)), 0.0, mask_second=False) == reference
    assert row_0(1e-9 * other.arms, 1.0, mask_second=False) == reference


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", WITH_POSTERIOR)
def test_law_5_a_batch_of_kernels_is_as_many_singles(name):
    """Bandwidths as batch rows: one kernel with a batch shape, generators of the same length."""
    problem, lengthscales = Problem(seed=72, a=50), [0.2, 0.5, 1.0]
    kernel = gpytorch.kernels.RBFKernel(batch_shape=torch.Size([3])).double()
    kernel.lengthscale = torch.tensor(lengthscales, dtype=torch.float64).reshape(3, 1, 1)
    batch = tb.Bandit(POLICIES[name](kernel), problem.tensor, generator=[generator(73 + r) for r in range(3)])
    singles = [
        tb.Bandit(POLICIES[name](rbf(ell)), problem.tensor, generator=generator(73 + r)) for r, ell in enumerate(lengthscales)
    ]
    told = [0, 0, 0]
    for _ in range(20):
        selection = batch.ask(limit=5)
        rewards = torch.zeros(selection.index.shape, dtype=torch.float64)
        for r, single in enumerate(singles):
            alone = single.ask(limit=5)
            mine = selection.index[r][selection.mask[r]]
            assert mine.tolist() == alone.index.tolist()
            y = problem.rewards(told[r], mine)
            rewards[r][selection.mask[r]] = y
            single.tell(alone, y)
            told[r] += len(alone)
        batch.tell(selection, rewards)


def test_law_5_limits_may_differ_by_row():
    problem = Problem(seed=74, a=50)
    policy = batch_policy(rbf(0.5), "nystrom", "global", ratio_threshold=1e6)
    bandit = tb.Bandit(policy, problem.tensor, generator=[generator(r) for r in range(3)])
    bandit.tell(bandit.ask(limit=1), torch.zeros(3, 1, dtype=torch.float64))
    selection = bandit.ask(limit=torch.tensor([0, 2, 4]))
    assert selection.mask.sum(-1).tolist() == [0, 2, 4]
    bandit.tell(selection, torch.zeros(selection.index.shape, dtype=torch.float64))
    assert bandit.pulls.tolist() == [1, 3, 5]


# ------------------------------------------------------------------------- law 7: asking again, extending, resuming


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", POLICIES)
def test_law_7_asking_again_returns_the_open_selection(name):
    problem = Problem(seed=80)
    bandit = tb.Bandit(POLICIES[name](rbf(0.5)), problem.tensor, generator=generator(81))
    problem.play(bandit, 30)
    counts = bandit.counts.clone()
    first = bandit.ask(limit=6)
    state = copy.deepcopy(bandit.state_dict())
    again = bandit.ask(limit=6)
    assert torch.equal(first.index, again.index)
    assert torch.equal(first.points, again.points)
    assert differences(state, bandit.state_dict()) == []
    longer = bandit.ask(more=3)
    assert longer.index[: len(first)].tolist() == first.index.tolist()
    assert len(longer) == len(first) + 3
    assert bandit.ask().index.tolist() == longer.index.tolist()
    assert torch.equal(bandit.counts, counts), "what is pending is not counted as told"


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", POLICIES)
def test_law_7_state_saved_mid_batch_continues_identically(name):
    problem = Problem(seed=82)
    policy = POLICIES[name](rbf(0.5))
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(83))
    problem.play(bandit, 40)
    opened = bandit.ask(limit=5)
    state = copy.deepcopy(bandit.state_dict())
    resumed = tb.Bandit(policy, problem.tensor, generator=generator(999))
    resumed.load_state_dict(state)
    assert differences(state, resumed.state_dict()) == []
    picks = []
    for b in (bandit, resumed):
        selection = b.ask()
        assert selection.index.tolist() == opened.index.tolist()
        b.tell(selection, problem.rewards(40, selection.index))
        picks.append(problem.play(b, 60))
    assert picks[0] == picks[1]
    assert differences(bandit.state_dict(), resumed.state_dict()) == []


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", POLICIES)
def test_law_7_a_deep_copy_is_independent(name):
    problem = Problem(seed=84)
    bandit = tb.Bandit(POLICIES[name](rbf(0.5)), problem.tensor, generator=generator(85))
    problem.play(bandit, 20)
    state = copy.deepcopy(bandit.state_dict())
    twin = copy.deepcopy(bandit)
    ahead = problem.play(twin, 20)
    assert differences(state, bandit.state_dict()) == []
    assert problem.play(bandit, 20) == ahead


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", WITH_POSTERIOR)
def test_law_7_answers_may_come_one_by_one_in_any_order(name):
    """If told in parts, last pick first, the pulls and their sums are those of a single tell."""
    problem = Problem(seed=86)
    bandit = tb.Bandit(POLICIES[name](rbf(0.5)), problem.tensor, generator=generator(87))
    problem.play(bandit, 30)
    opened = bandit.ask(more=5)
    rewards = problem.rewards(30, opened.index)
    for j in reversed(range(len(opened))):
        report = bandit.tell(opened[j : j + 1], rewards[j : j + 1])
        left = sorted(opened.index[:j].tolist())
        if left:
            assert sorted(bandit.ask().index.tolist()) == left
    assert int(report.pulls) == 30 + len(opened)


@pytest.mark.parametrize("name", POLICIES)
def test_law_7_asking_for_nothing_and_telling_nothing_change_nothing(name):
    """A loop that is full asks with `limit=0`, and answers with an empty tell."""
    problem = Problem(seed=97)
    bandit = tb.Bandit(POLICIES[name](rbf(0.5)), problem.tensor, generator=generator(98))
    problem.play(bandit, 10)
    before = copy.deepcopy(bandit.state_dict())
    nothing = bandit.ask(limit=0)
    assert len(nothing) == 0
    assert differences(before, bandit.state_dict()) == []
    report = bandit.tell(nothing, torch.zeros(0, dtype=torch.float64))
    assert int(report.pulls) == 10
    assert int(report.batch_size) == 0


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", POLICIES)
def test_the_global_generator_is_never_used(name):
    problem = Problem(seed=88)
    before = torch.random.get_rng_state()
    bandit = tb.Bandit(POLICIES[name](rbf(0.5)), problem.tensor, generator=generator(89))
    problem.play(bandit, 30)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", POLICIES)
def test_the_policy_s_kernel_is_copied(name):
    """Later changes of the kernel by the caller have no effect."""
    problem = Problem(seed=90)
    kernel = rbf(0.5)
    bandit = tb.Bandit(POLICIES[name](kernel), problem.tensor, generator=generator(91))
    twin = tb.Bandit(POLICIES[name](rbf(0.5)), problem.tensor, generator=generator(91))
    kernel.lengthscale = 0.01
    assert problem.play(bandit, 30) == problem.play(twin, 30)


# ------------------------------------------------------------------------- law 8: trouble is an error, and undone


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", WITH_POSTERIOR)
@pytest.mark.parametrize("outside", [False, True])
def test_law_8_numerical_trouble_is_an_error_and_leaves_no_trace(name, outside):
    """Finite rewards whose sums overflow raise an error (for bad single rewards see test_bad_input)."""
    problem = Problem(seed=94)
    bandit = tb.Bandit(POLICIES[name](rbf(0.5)), problem.tensor, generator=generator(95))
    problem.play(bandit, 30)
    bandit.ask(more=3)
    before, points = copy.deepcopy(bandit.state_dict()), problem.tensor
    marginals = bandit.posterior(points)
    where = torch.full((2, 2), 0.3, dtype=torch.float64) if outside else torch.tensor([7, 7])
    with pytest.raises(tb.errors.NumericalError):
        bandit.observe(where, torch.ones(2, dtype=torch.float64), torch.full((2,), 1.7e308, dtype=torch.float64))
    assert differences(before, bandit.state_dict()) == []
    after = bandit.posterior(points)
    assert_close(after.mean, marginals.mean, Tolerance(1e-12, 1e-12))
    assert_close(after.variance, marginals.variance, Tolerance(1e-12, 1e-13))
    twin = tb.Bandit(POLICIES[name](rbf(0.5)), problem.tensor, generator=generator(95))
    problem.play(twin, 30)
    twin.ask(more=3)
    for b in (bandit, twin):
        selection = b.ask()
        b.tell(selection, problem.rewards(30, selection.index))
    assert problem.play(bandit, 30) == problem.play(twin, 30)


# ------------------------------------------------------------------------- law 9: nothing grows with t


@pytest.mark.sweep(1)
@OFF_SCALE
@pytest.mark.parametrize("name", WITH_POSTERIOR)
def test_law_9_the_state_does_not_grow_with_pulls(name):
    """The state does not grow with the same five arms on offer for ten times as long."""
    problem = Problem(seed=92)
    policy = POLICIES[name](rbf(0.5))
    available = torch.zeros(problem.a, dtype=torch.bool)
    available[[3, 20, 41, 60, 77]] = True
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(93))
    # Sizes after every twenty pulls. A table may hold a bounded number of updates before its next sweep.
    sizes = []
    for _ in range(50):
        problem.play(bandit, 20, available=available)
        sizes.append(size_of(bandit.state_dict()))
    assert max(sizes[25:]) <= max(sizes[:25])
    # Nothing has drifted: the table still agrees with a refit.
    selection = bandit.ask(limit=1, available=available)
    report = bandit.tell(selection, problem.rewards(1000, selection.index))
    u = np.nonzero(bandit.counts.numpy())[0]
    S = None if name in ("gp_ucb", "igp_ucb", "gp_bucb") else dictionary_of(bandit)
    lam = 1.0 if name == "igp_ucb" else NOISE_STD**2
    stats = (u, bandit.counts.numpy()[u], np.zeros(len(u)))
    expected = oracle_at(problem.arms, problem, oracles.rbf(0.5), stats, lam, S=S).variance
    assert_close(bandit.posterior(problem.tensor).variance, expected, F64)
    mean, width = bandit.posterior(problem.tensor).mean.numpy(), float(report.width)
    upper, lower = mean + width * np.sqrt(expected), mean - width * np.sqrt(expected)
    assert math.isclose(float(report.certificate), upper.max() - lower.max(), rel_tol=1e-7, abs_tol=1e-8)
    assert int((bandit.counts > 0).sum()) <= 5
    assert int(bandit.counts.sum()) == 1001
