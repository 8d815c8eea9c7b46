"""CUB against its dense oracle, pick for pick; and guarantee 7: a dictionary that stops growing for any fixed threshold."""

from __future__ import annotations

import math

import numpy as np
import oracles
import oracles_compressed as oracle
import pytest
import torch
from problems import DELTA, NOISE_STD, Problem, generator, kernel_pair, rbf
from tolerances import VARIANCE, Tolerance, assert_close

import torchbandits as tb

LAM = NOISE_STD**2
MARGINS = {"ucb": None, "ei": 0.05, "pi": 0.05}
TIE = 1e-9  # picks whose scores agree up to this relative difference are equally good


def compressed(kernel, acquisition: str, leverage: float, lam: float = LAM):
    return tb.compressed_gp(
        kernel,
        noise_std=NOISE_STD,
        acquisition=acquisition,
        entropy_threshold=oracle.threshold_of(leverage, lam),
        margin=MARGINS[acquisition],
        delta=DELTA,
        regularization=lam,
    )


def pair(problem: Problem, kernel_name: str, acquisition: str, leverage: float, lam: float = LAM, seed: int = 0):
    """The bandit and its oracle."""
    kernel, kernel_np = kernel_pair(kernel_name)
    bandit = tb.Bandit(compressed(kernel, acquisition, leverage, lam), problem.tensor, generator=generator(seed))
    naive = oracle.Compressed(
        problem.arms,
        kernel_np,
        lam,
        oracle.threshold_of(leverage, lam),
        acquisition,
        MARGINS[acquisition] or 0.0,
        DELTA,
    )
    return bandit, naive


def assert_same(bandit: tb.Bandit, naive: oracle.Compressed, problem: Problem) -> None:
    """Assert that both keep the same pulls and have the same posterior."""
    np.testing.assert_array_equal(bandit.counts.numpy()[naive.copies], naive.counts()[naive.copies])
    assert int(bandit.pulls) == naive.told
    ours, theirs = bandit.posterior(problem.tensor), naive.posterior()
    assert_close(ours.variance, theirs.variance, VARIANCE[torch.float64], float(naive.k_diag.max()))
    assert_close(ours.mean, theirs.mean, Tolerance(1e-8, 1e-9))


@pytest.mark.sweep
@pytest.mark.parametrize("leverage", [0.3, 3.0, 40.0])
@pytest.mark.parametrize("kernel_name", ["rbf", "matern32", "scaled"])
@pytest.mark.parametrize("acquisition", ["ucb", "ei", "pi"])
def test_whole_runs_equal_the_naive_loop(acquisition, kernel_name, leverage):
    """Eighty pulls, duplicates among the arms. The oracle learns the bandit's picks, so that a tie can't split the runs."""
    problem = Problem(seed=17, duplicates=10)
    bandit, naive = pair(problem, kernel_name, acquisition, leverage, seed=3)
    twin, distinct = generator(3), np.unique(naive.copies)
    start = [distinct[int(torch.randint(len(distinct), (1,), generator=twin))] for _ in range(2**problem.d)]
    differing = 0
    for t in range(80):
        pick = int(bandit.ask().index)
        if t < len(start):
            assert pick == start[t], "the first 2^d are drawn uniformly"
        else:
            scores, own = naive.scores(), naive.pick()
            assert naive.copies[pick] == pick, "a copy is picked by its first index"
            assert scores[own] - scores[pick] <= TIE * max(abs(scores[own]), 1e-3)
            differing += own != pick
        reward = problem.reward(t, pick)
        bandit.tell(bandit.ask(), torch.tensor([reward], dtype=torch.float64))
        naive.tell(pick, reward)
    assert differing == 0
    assert_same(bandit, naive, problem)
    assert 0 < len(naive.kept) < 80, "nothing was tested: all kept, or none"


@pytest.mark.sweep(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("leverage", [0.3, 3.0])
def test_a_batch_is_learned_one_pull_after_the_other(leverage, seed):
    """Several pulls in one tell, arms repeated among them: each is tested against those before it."""
    problem = Problem(seed=seed, duplicates=10)
    bandit, naive = pair(problem, "rbf", "ucb", leverage)
    rng, t = np.random.default_rng(seed), 0
    for size in (7, 1, 12, 30, 12, 18):
        index = torch.as_tensor(rng.integers(0, 25, size=size))
        rewards = problem.rewards(t, index)
        bandit.tell(index, rewards)
        for arm, reward in zip(index.tolist(), rewards.tolist(), strict=True):
            naive.tell(arm, reward)
        t += size
        assert_same(bandit, naive, problem)
        scores, pick = naive.scores(), int(bandit.policy.select(bandit.loop.state)[0].index)
        assert pick == naive.pick() or scores[pick] >= scores.max() * (1 - TIE)
    assert 25 < len(naive.kept) < 80 or leverage == 3.0


@pytest.mark.sweep(3)
@pytest.mark.parametrize("outside", [False, True], ids=["arms", "points"])
@pytest.mark.parametrize("leverage", [0.031, 0.7, 11.3])
def test_history_is_learned_as_that_many_pulls(leverage, outside):
    """Of n pulls of one arm, the first ⌈1/τ − 1/lev⌉ are kept, with their share of the rewards; at arms, and at points."""
    problem = Problem(seed=23)
    bandit, naive = pair(problem, "rbf", "ucb", leverage)
    index = torch.tensor([4, 11, 60, 11, 4, 33])
    counts = torch.tensor([9.0, 1.0, 50.0, 40.0, 3.0, 2.0], dtype=torch.float64)
    sums = torch.tensor([4.0, -0.3, 20.0, -11.0, 2.0, 1.7], dtype=torch.float64)
    bandit.observe(problem.tensor[index] if outside else index, counts, sums)
    tau = oracle.least_leverage(oracle.threshold_of(leverage, LAM), LAM)
    assert math.isclose(tau, leverage, rel_tol=1e-9)
    for arm, n, total in zip(index.tolist(), counts.tolist(), sums.tolist(), strict=True):
        lev = naive.posterior().variance[arm] / LAM
        expected = min(n, max(1, math.ceil(1 / tau - 1 / lev))) if lev > tau else 0
        assert naive.observe(arm, int(n), total) == expected
    ours, theirs = bandit.posterior(problem.tensor), naive.posterior()
    assert_close(ours.variance, theirs.variance, VARIANCE[torch.float64])
    assert_close(ours.mean, theirs.mean, Tolerance(1e-8, 1e-9))
    assert 0 < len(naive.kept) < int(counts.sum()) == int(bandit.pulls)
    if not outside:
        assert_same(bandit, naive, problem)
        s = bandit.loop.state.statistics
        np.testing.assert_allclose(s.sums.numpy(), naive.sums()[bandit.loop.state.rows.arm_of_row.numpy()], rtol=1e-12)


@pytest.mark.parametrize("acquisition", ["ucb", "ei", "pi"])
def test_the_dense_gp_that_cub_is_compared_with_is_the_oracle_without_a_threshold(acquisition):
    problem = Problem(seed=31, duplicates=10)
    kernel, kernel_np = kernel_pair("matern52")
    margin = MARGINS[acquisition]
    policy = tb.gp_ucb(kernel, noise_std=NOISE_STD, delta=DELTA, acquisition=acquisition, margin=margin)
    bandit = tb.Bandit(policy, problem.tensor)
    naive = oracle.Compressed(problem.arms, kernel_np, LAM, -math.inf, acquisition, margin or 0.0, DELTA)
    for t in range(60):
        pick = int(bandit.ask().index)
        assert pick == naive.pick()
        reward = problem.reward(t, pick)
        bandit.tell(bandit.ask(), torch.tensor([reward], dtype=torch.float64))
        naive.tell(pick, reward)
    assert len(naive.kept) == 60
    assert_same(bandit, naive, problem)


@pytest.mark.parametrize("acquisition", ["ei", "pi"])
def test_bkb_improves_on_its_own_posterior(acquisition):
    """The variants of BKB that CUB is compared with: the best arm under the Nyström posterior of the bandit's dictionary."""
    problem = Problem(seed=37)
    kernel, kernel_np = kernel_pair("rbf")
    policy = tb.bkb(kernel, oversampling=1.0, regularization=0.3, acquisition=acquisition, margin=MARGINS[acquisition])
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(5))
    K_aa, improvement = kernel_np(problem.arms, problem.arms), oracle.IMPROVEMENTS[acquisition]
    s, sparse = np.zeros(problem.a), 0
    for t in range(50):
        pick = int(bandit.ask().index)
        if t:
            n = bandit.counts.numpy()
            u, S = np.nonzero(n)[0], bandit.dictionary.numpy()
            sparse += len(S) < len(u)
            state = oracles.nystrom_posterior(
                K_aa[np.ix_(S, S)], K_aa[np.ix_(S, u)], K_aa[S], np.ones(problem.a), n[u], s[u], 0.3
            )
            scores = improvement(state.mean, np.sqrt(state.variance), state.mean.max() + MARGINS[acquisition])
            assert scores.max() - scores[pick] <= 1e-7 * max(1, abs(scores.max()))
        reward = problem.reward(t, pick)
        s[pick] += reward
        bandit.tell(bandit.ask(), torch.tensor([reward], dtype=torch.float64))
    assert sparse > 25


def test_rows_of_a_batch_keep_what_they_would_alone():
    problem = Problem(seed=29)
    policy = compressed(rbf(), "ei", 0.7)
    together = tb.Bandit(policy, problem.tensor, generator=[generator(s) for s in range(3)])
    alone = [tb.Bandit(policy, problem.tensor, generator=generator(s)) for s in range(3)]
    for t in range(40):
        selection = together.ask(limit=1)
        picks = [int(bandit.ask(limit=1).index) for bandit in alone]
        assert selection.index.squeeze(-1).tolist() == picks
        rewards = [problem.reward(t, pick) for pick in picks]
        together.tell(selection, torch.tensor(rewards, dtype=torch.float64).unsqueeze(-1))
        for bandit, reward in zip(alone, rewards, strict=True):
            bandit.tell(bandit.ask(), torch.tensor([reward], dtype=torch.float64))
    for row, bandit in enumerate(alone):
        assert torch.equal(together.counts[row], bandit.counts)
        assert 0 < bandit.counts.sum() < 40


# ------------------------------------------------------------------------- guarantee 7


def size_of(bandit: tb.Bandit) -> int:
    """The number of entries in all buffers of the state, saved or not."""
    return sum(b.numel() for module in bandit.loop.state.modules() for b in module._buffers.values() if b is not None)


@pytest.mark.sweep(1)
@pytest.mark.usefixtures("annotations_not_enforced")  # the test makes thousands of steps
@pytest.mark.parametrize(
    ("acquisition", "leverage", "horizon"), [("ucb", 10.0, 1000), ("ucb", 0.05, 3000), ("ei", 0.5, 1000), ("pi", 0.1, 1000)]
)
def test_guarantee_7_the_dictionary_stops_growing(acquisition, leverage, horizon):
    """Any fixed ε > ½ log(2πeλ): as many pulls are kept after T as after T/2, and no buffer has grown."""
    arms = torch.linspace(0, 1, 400, dtype=torch.float64).unsqueeze(-1)
    f, noise = torch.sin(7 * arms[:, 0]) + arms[:, 0], torch.randn(horizon, generator=generator(1), dtype=torch.float64)
    bandit = tb.Bandit(compressed(rbf(0.15), acquisition, leverage), arms, generator=generator(2))
    halfway = None
    for t in range(horizon):
        if t == horizon // 2:
            halfway = float(bandit.counts.sum()), size_of(bandit)
        selection = bandit.ask()
        report = bandit.tell(selection, f[selection.index] + NOISE_STD * noise[t])
    kept = float(bandit.counts.sum())
    assert (kept, size_of(bandit)) == halfway
    assert 0 < kept < 500
    assert int(bandit.pulls) == horizon
    # The bound: each pull that is kept gains at least ½ log(1 + τ).
    assert kept * math.log1p(leverage) <= 2 * float(report.information_gain) * (1 + 1e-9)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("leverage", [10.0, 0.3])
def test_guarantee_7_whatever_is_pulled(leverage):
    """Pulls from everywhere, in tells of a hundred: once no arm's leverage is above τ, nothing is ever kept again."""
    problem = Problem(seed=41, a=300)
    bandit, rng = tb.Bandit(compressed(rbf(0.3), "ucb", leverage), problem.tensor), np.random.default_rng(4)
    full, kept = None, []
    for batch in range(40):
        index = torch.as_tensor(rng.integers(0, 300, size=100))
        bandit.tell(index, problem.rewards(100 * batch, index))
        kept.append(int(bandit.counts.sum()))
        done = bool((bandit.posterior(problem.tensor).variance <= leverage * LAM).all())
        if full is None and done:
            full = (batch, kept[-1], size_of(bandit))
    assert full is not None
    assert full[0] < 20
    assert kept[-1] == full[1] < 2000
    assert size_of(bandit) == full[2]


@pytest.mark.parametrize("lam", [1e-3, 0.01, 1.0])
def test_guarantee_7_a_threshold_that_keeps_everything_is_refused(lam):
    """At or below ½ log(2πeλ); the message names it, and a slightly larger one is accepted."""
    least = 0.5 * math.log(2 * math.pi * math.e * lam)
    for threshold in (least, least - 0.1, -math.inf):
        with pytest.raises(tb.errors.ArgumentError, match="keeps every pull") as caught:
            tb.compressed_gp(rbf(), regularization=lam, entropy_threshold=threshold)
        assert f"{least:.6g}" in str(caught.value)
    tb.compressed_gp(rbf(), regularization=lam, entropy_threshold=least + 1e-6)
