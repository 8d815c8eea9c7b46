"""The oracles compared with each other, with arithmetic of 60 digits, and with numbers computed by hand."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import oracles
import pytest
import torch
from scipy.spatial.distance import cdist
from tolerances import VARIANCE, VARIANCE_NEAR_DUPLICATES, Tolerance, assert_close

F64 = VARIANCE[torch.float64]
KERNELS = {
    "rbf": oracles.rbf(0.4, 1.7),
    "matern12": oracles.matern(0.5, 0.5),
    "matern32": oracles.matern(1.5, 0.5, 0.3),
    "matern52": oracles.matern(2.5, 0.5),
}


def problem(seed: int, a: int = 40, d: int = 2, t: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arms, the arm of each pull (with repeats), the reward of each pull."""
    rng = np.random.default_rng(seed)
    arms = rng.uniform(size=(a, d))
    pulled = rng.integers(0, a // 2, size=t)
    return arms, pulled, np.sin(4 * arms[pulled].sum(1)) + 0.1 * rng.normal(size=t)


def statistics(pulled: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    u = np.unique(pulled)
    return u, np.array([(pulled == i).sum() for i in u], float), np.array([y[pulled == i].sum() for i in u])


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_equal_their_definitions(name):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 3)), rng.normal(size=(4, 3))
    r = cdist(x, y) / (0.4 if name == "rbf" else 0.5)
    expected = {
        "rbf": 1.7 * np.exp(-(r**2) / 2),
        "matern12": np.exp(-r),
        "matern32": 0.3 * (1 + math.sqrt(3) * r) * np.exp(-math.sqrt(3) * r),
        "matern52": (1 + math.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-math.sqrt(5) * r),
    }[name]
    np.testing.assert_allclose(KERNELS[name](x, y), expected, rtol=1e-13)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("lam", [1.0, 1e-2, 1e-4])
def test_exact_from_sums_equals_exact_over_every_pull(name, lam):
    kernel = KERNELS[name]
    arms, pulled, y = problem(1)
    u, n, s = statistics(pulled, y)
    K_aa, k = kernel(arms, arms), oracles.diagonal(kernel, arms)
    every = oracles.exact_posterior(K_aa[np.ix_(pulled, pulled)], K_aa[pulled], k, y, lam, K_aa)
    sums = oracles.exact_posterior_from_sums(K_aa[np.ix_(u, u)], K_aa[u], k, n, s, lam, K_aa)
    assert_close(sums.variance, every.variance, F64, what="variance")
    assert_close(sums.mean, every.mean, Tolerance(1e-8, 1e-10), what="mean")
    assert_close(sums.covariance, every.covariance, Tolerance(1e-8, 1e-12), what="covariance")
    assert_close(np.diag(every.covariance), every.variance, F64)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("lam", [1.0, 1e-2, 1e-4])
def test_nystrom_on_everything_is_exact(name, lam):
    kernel = KERNELS[name]
    arms, pulled, y = problem(2)
    u, n, s = statistics(pulled, y)
    K_aa, k = kernel(arms, arms), oracles.diagonal(kernel, arms)
    K_uu, K_ua = K_aa[np.ix_(u, u)], K_aa[u]
    exact = oracles.exact_posterior_from_sums(K_uu, K_ua, k, n, s, lam, K_aa)
    nystrom = oracles.nystrom_posterior(K_uu, K_uu, K_ua, k, n, s, lam, K_aa=K_aa)
    every = np.arange(len(arms))
    assert_close(nystrom.variance, exact.variance, Tolerance(1e-7, 1e-11))
    assert_close(nystrom.mean, exact.mean, Tolerance(1e-7, 1e-8))
    assert_close(lam * nystrom.covariance(every, every), exact.covariance, Tolerance(1e-7, 1e-11))


@pytest.mark.parametrize("name", KERNELS)
def test_nystrom_equals_the_formula_without_a_root(name):
    """The reference is the subset of regressors in the K_S basis plus the residual, without a square root."""
    kernel, lam = KERNELS[name], 0.05
    arms, pulled, y = problem(3)
    u, n, s = statistics(pulled, y)
    S = u[::3]
    K_aa, k = kernel(arms, arms), oracles.diagonal(kernel, arms)
    K_ss, K_su, K_sa = K_aa[np.ix_(S, S)], K_aa[np.ix_(S, u)], K_aa[S]
    nystrom = oracles.nystrom_posterior(K_ss, K_su, K_sa, k, n, s, lam)
    A = K_su @ (n[:, None] * K_su.T) + lam * K_ss
    assert_close(nystrom.mean, K_sa.T @ np.linalg.solve(A, K_su @ s), Tolerance(1e-7, 1e-9))
    residual = k - (K_sa * np.linalg.solve(K_ss, K_sa)).sum(0)
    sor = lam * (K_sa * np.linalg.solve(A, K_sa)).sum(0)
    assert_close(nystrom.variance, residual + sor, Tolerance(1e-7, 1e-10))
    assert_close(oracles.sor_variance(K_ss, K_su, K_sa, n, lam), sor, Tolerance(1e-7, 1e-10))


def test_hallucination_moves_the_leverage_as_pulls_would():
    kernel, lam = KERNELS["rbf"], 0.05
    arms, pulled, y = problem(4)
    u, n, s = statistics(pulled, y)
    S, p = u[::2], np.arange(len(u)) % 3 * 1.0
    K_aa, k = kernel(arms, arms), oracles.diagonal(kernel, arms)
    args = (K_aa[np.ix_(S, S)], K_aa[np.ix_(S, u)], K_aa[S], k)
    pending = oracles.nystrom_posterior(*args, n, s, lam, pending=p)
    told = oracles.nystrom_posterior(*args, n + p, s, lam)
    plain = oracles.nystrom_posterior(*args, n, s, lam)
    np.testing.assert_array_equal(pending.leverage, told.leverage)
    np.testing.assert_array_equal(pending.mean, plain.mean)
    assert (pending.leverage <= plain.leverage + 1e-12).all()


def gaussian_kernel_mp(x, lengthscale):
    x, n = x.tolist(), len(x)
    K = mpmath.matrix(n, n)
    for i in range(n):
        for j in range(n):
            squares = sum(
                ((mpmath.mpf(float(a)) - mpmath.mpf(float(b))) / lengthscale) ** 2 for a, b in zip(x[i], x[j], strict=True)
            )
            K[i, j] = mpmath.exp(-squares / 2)
    return K


@pytest.mark.parametrize(("lam", "twin", "tolerance", "names"), [
    (1e-6, None, F64, ["exact"]),  # features lose a few 1e-12 here, whatever the root: Cholesky is the reference
    (1e-4, None, F64, ["exact", "nystrom"]),
    (1e-4, 1e-7, VARIANCE_NEAR_DUPLICATES[torch.float64], ["exact", "nystrom"]),
])  # fmt: skip
def test_oracles_hold_in_an_ill_conditioned_case(lam, twin, tolerance, names):
    """float64 compared with sixty digits, on points so close that K_S is singular to working precision."""
    rng = np.random.default_rng(5)
    x = rng.uniform(size=(14, 1))
    if twin is not None:
        x[7:12] = x[:5] + twin
    u, n = np.arange(10), rng.integers(1, 50, size=10).astype(float)
    s = n * rng.normal(size=10)
    kernel = oracles.rbf(0.5)
    assert np.linalg.cond(kernel(x[u], x[u])) > 1e10
    mpmath.mp.dps = 60
    K = gaussian_kernel_mp(x, mpmath.mpf("0.5"))
    M = mpmath.matrix(10, 10)
    for i in range(10):
        for j in range(10):
            M[i, j] = K[i, j] + (mpmath.mpf(lam) / mpmath.mpf(float(n[i])) if i == j else 0)
    variance, mean = [], []
    for a in range(14):
        column = mpmath.matrix([K[i, a] for i in range(10)])
        solved = mpmath.lu_solve(M, column)
        variance.append(float(K[a, a] - sum(column[i] * solved[i] for i in range(10))))
        mean.append(float(sum(solved[i] * mpmath.mpf(float(s[i])) / mpmath.mpf(float(n[i])) for i in range(10))))
    K_aa, k = kernel(x, x), np.ones(14)
    exact = oracles.exact_posterior_from_sums(K_aa[np.ix_(u, u)], K_aa[u], k, n, s, lam)
    nystrom = oracles.nystrom_posterior(K_aa[np.ix_(u, u)], K_aa[np.ix_(u, u)], K_aa[u], k, n, s, lam)
    for name in names:
        got = {"exact": exact, "nystrom": nystrom}[name]
        assert_close(got.variance, variance, tolerance, what=f"{name} variance")
        assert_close(got.mean, mean, Tolerance(1e-5, 1e-6), what=f"{name} mean")


def test_information_and_dimension_over_every_pull():
    kernel, lam = KERNELS["matern32"], 0.1
    arms, pulled, y = problem(6)
    u, n, _ = statistics(pulled, y)
    K_aa = kernel(arms, arms)
    K_tt = K_aa[np.ix_(pulled, pulled)]
    K_uu = K_aa[np.ix_(u, u)]
    assert math.isclose(oracles.log_det(K_uu, n, lam), np.linalg.slogdet(np.eye(len(y)) + K_tt / lam)[1], rel_tol=1e-10)
    d_eff = np.trace(K_tt @ np.linalg.inv(K_tt + lam * np.eye(len(y))))
    assert math.isclose(oracles.effective_dimension(K_uu, n, lam), d_eff, rel_tol=1e-10)
    # the chain rule behind every accumulated width: log det = Σ log(1 + lev_{s−1}(x_s))
    k = oracles.diagonal(kernel, arms)
    chain = 0.0
    for j, i in enumerate(pulled):
        past = pulled[:j]
        state = oracles.exact_posterior(K_aa[np.ix_(past, past)], K_aa[past], k, y[:j], lam)
        chain += math.log1p(state.variance[i] / lam)
    assert math.isclose(chain, oracles.log_det(K_uu, n, lam), rel_tol=1e-10)


@pytest.mark.parametrize(("value", "by_hand"), [
    # β = 2 log(100·25·π²/(6·0.1)) = 2 log(41123.35…) = 2·10.624331… = 21.248662
    (oracles.width_srinivas(5, 100, 0.1), 4.609627),
    # 1 + 0.5/√0.25 · √(2(1.5 + 1 + log 10)) = 1 + √9.605170 = 4.099221
    (oracles.width_igp(3.0, 1.0, 0.5, 0.25, 0.1), 4.099221),
    # (0.5·2 + 0.1 √(2(3 + log 10)))/0.5 = 2 + 0.2·3.256558 = 2.651312
    (oracles.width_kernel_ucb(3.0, 2.0, 0.1, 0.25, 0.1), 2.651312),
    # (0.5·2 + 0.1 √(log 20 · 4 + log 10))/0.5 = 2 + 0.2 √(11.982929 + 2.302585) = 2.755923
    (oracles.width_bkb_practical(20, 4.0, 2.0, 0.1, 0.25, 0.1), 2.755923),
    # α = 3; noise² = 6(1 + log(1 + 1·20/0.25))·4 + 2 log 10 = 24·5.394449 + 4.605170 = 134.071951;
    # (0.1·11.578945 + (1 + √2)·0.5·2)/0.5 = 2.315789 + 4.828427 = 7.144216
    (oracles.width_bkb_theory(20, 4.0, 1.0, 2.0, 0.1, 0.25, 0.1, 0.5), 7.144216),
    # 1.5·(0.2 √(6 + log 10) + (1 + √2)·0.5·2)/0.5 = 3·(0.2·2.881420 + 2.414214) = 8.971494
    (oracles.width_bbkb_theory(6.0, 1.5, 2.0, 0.1, 0.25, 0.1), 8.971494),
    # (0.5·2 + 0.1 √(1.5·6 + log 10))/0.5 = 2 + 0.2·3.361932 = 2.672386
    (oracles.width_bbkb_practical(6.0, 1.5, 2.0, 0.1, 0.25, 0.1), 2.672386),
    # 2 log(2π²·9/0.3) + 4 log(9·2·√(log 80)) = 2·6.383804 + 4·(2.890372 + 0.738756) = 27.284118
    (oracles.width_srinivas_compact(3, 2, 0.1, 1.0, 1.0, 1.0), 5.223420),
])  # fmt: skip
def test_widths_by_hand(value, by_hand):
    assert math.isclose(value, by_hand, rel_tol=2e-6)


def reward_table(arms: np.ndarray, horizon: int, seed: int, noise_std: float):
    f = np.sin(5 * arms[:, 0]) * np.cos(3 * arms[:, -1])
    noise = noise_std * np.random.default_rng(seed).normal(size=horizon)
    return lambda t, arm: f[arm] + noise[t]


def uniforms(seed: int):
    g = torch.Generator().manual_seed(seed)
    return lambda u: torch.rand(u, generator=g, dtype=torch.float64).numpy()


COMMON = {"noise_std": 0.1, "norm_bound": 1.0, "delta": 0.1}


def test_a_run_never_beats_its_own_argmax_and_follows_itself():
    arms = np.random.default_rng(7).uniform(size=(40, 2))
    reward = reward_table(arms, 60, 8, 0.1)
    options = COMMON | {"oversampling": 2.0, "ratio_threshold": 1.5}
    free = oracles.batch_bkb(arms, oracles.rbf(0.4), reward, 60, uniforms=uniforms(9), **options)
    led = oracles.batch_bkb(arms, oracles.rbf(0.4), reward, 60, uniforms=uniforms(9), follow=free.picks, **options)
    assert len(free.flat) == 60
    assert led.picks == free.picks
    assert led.dictionaries == free.dictionaries
    assert max(abs(g) for g in free.gap) == 0
    assert max(map(len, free.picks)) > 2


def test_batches_of_ratio_one_are_single_pulls():
    """With C̃ = 1 and the same width, BBKB makes the picks of BKB, and GP-BUCB those of IGP-UCB, for every rule."""
    arms = np.random.default_rng(10).uniform(size=(30, 2))
    reward = reward_table(arms, 40, 11, 0.1)
    bkb = oracles.bkb(arms, oracles.rbf(0.4), reward, 40, uniforms=uniforms(12), oversampling=2.0, **COMMON)
    for rule in ("global", "local", "global_then_local", "product", "exact_ratio"):
        loop = oracles.Loop(
            arms, oracles.rbf(0.4), reward, 40, 0.01,
            lambda loop: oracles.width_bkb_practical(loop.pulls, loop.effective_dimension(), 1.0, 0.1, 0.01, 0.1),
            embedding="nystrom", rule=rule, ratio_threshold=1.0, oversampling=2.0, uniforms=uniforms(12),
        )  # fmt: skip
        assert loop.run().picks == bkb.picks
    igp = oracles.igp_ucb(arms, oracles.rbf(0.4), reward, 40, lam=0.01, **COMMON)
    bucb = oracles.gp_bucb(arms, oracles.rbf(0.4), reward, 40, ratio_threshold=1.0, **COMMON)
    assert igp.picks == bucb.picks


@pytest.mark.sweep(2)
@pytest.mark.parametrize("rule", ["global", "local", "global_then_local", "exact_ratio"])
def test_every_rule_bounds_the_true_ratio(rule):
    """Before the pick that breaks the rule the ratio is below the threshold; the sum is never below the true ratio."""
    arms = np.random.default_rng(13).uniform(size=(40, 2))
    reward = reward_table(arms, 60, 14, 0.1)
    options = COMMON | {"oversampling": 2.0, "ratio_threshold": 1.7}
    trace = oracles.batch_bkb(arms, oracles.rbf(0.4), reward, 60, uniforms=uniforms(15), rule=rule, **options)
    ends = np.cumsum([len(b) for b in trace.picks]) - 1
    for statistic, ratio in zip(np.array(trace.statistic)[ends], trace.ratio_at_end, strict=True):
        assert ratio <= statistic * (1 + 1e-9)


def test_max_pulls_limits_masks_and_duplicates():
    rng = np.random.default_rng(16)
    arms = rng.uniform(size=(30, 2))
    arms[20:] = arms[:10]
    reward = reward_table(arms, 60, 17, 0.1)
    mask = rng.uniform(size=(100, 30)) < 0.5
    trace = oracles.batch_bkb(
        arms, oracles.rbf(0.4), reward, 60, uniforms=uniforms(18), oversampling=2.0, ratio_threshold=3.0, max_pulls=1,
        max_batch_size=4, limits=lambda b: 1 + b % 5, available=lambda b: mask[b], **COMMON,
    )  # fmt: skip
    for number, batch in enumerate(trace.picks):
        assert len(batch) == len(set(batch)) <= min(4, 1 + number % 5)
        assert all(i < 20 and (mask[number, i] or (i < 10 and mask[number, 20 + i])) for i in batch)
