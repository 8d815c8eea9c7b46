"""Counts that differ by fifteen orders of magnitude: arms with small counts stay accurate."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from problems import BOUNDED, NOISE_STD, generator, rbf, whole
from tolerances import VARIANCE, assert_close

import torchbandits as tb
from torchbandits.linalg import Graded, uneven
from torchbandits.policies.state import TableState

F64, LENGTHSCALE, LAM = VARIANCE[torch.float64], 0.3, NOISE_STD**2
RNG = np.random.default_rng(0)
ARMS, MEANS = RNG.uniform(size=(24, 2)), RNG.uniform(-1, 1, size=24)
EVERYTHING = 1e15
RATIOS = [1.0, 1e3, 1e6, 1e9, 1e12, 1e15]
MAKERS: dict[str, Any] = {
    "gp_ucb": lambda: tb.gp_ucb(rbf(LENGTHSCALE), noise_std=NOISE_STD),
    "batch_bkb all": lambda: tb.batch_bkb(rbf(LENGTHSCALE), oversampling=EVERYTHING, **BOUNDED),
    "batch_bkb": lambda: tb.batch_bkb(rbf(LENGTHSCALE), oversampling=1.0, **BOUNDED),
    "ada_bkb": lambda: tb.ada_bkb(rbf(LENGTHSCALE), norm_bound=1.0, noise_std=NOISE_STD),
}


def kernel(x: np.ndarray, y: np.ndarray) -> mpmath.matrix:
    scale = 2 * mpmath.mpf(LENGTHSCALE) ** 2
    rows = [[mpmath.exp(-sum((mpmath.mpf(a) - b) ** 2 for a, b in zip(p, q, strict=True)) / scale) for q in y] for p in x]
    return mpmath.matrix(rows)


def dense(S: np.ndarray, u: np.ndarray, n: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of DTC on S, which is the exact posterior if S = u, in 60 digits."""
    with mpmath.workdps(60):
        K_su, K_sa, K_ss = kernel(ARMS[S], ARMS[u]), kernel(ARMS[S], at), kernel(ARMS[S], ARMS[S])
        weighted = K_su * mpmath.diag([mpmath.mpf(float(c)) for c in n])
        inverse = (weighted * K_su.T + mpmath.mpf(LAM) * K_ss) ** -1
        a = inverse * (weighted * mpmath.matrix([mpmath.mpf(float(y)) for y in MEANS[u]]))
        middle = K_ss**-1 - mpmath.mpf(LAM) * inverse
        mean, columns = K_sa.T * a, [K_sa[:, j] for j in range(len(at))]
        return np.array([float(v) for v in mean]), np.array([float(1 - (c.T * middle * c)[0]) for c in columns])


def observed(name: str, n: np.ndarray, u: np.ndarray) -> tb.Bandit:
    bandit = tb.Bandit(MAKERS[name](), torch.as_tensor(ARMS), generator=generator(1))
    bandit.observe(torch.as_tensor(u), torch.as_tensor(n), torch.as_tensor(n * MEANS[u]))
    return bandit


def counts_of(ratio: float, size: int) -> np.ndarray:
    """Small and large counts, neither first nor last, and some in between."""
    n = np.ones(size)
    n[2::5], n[3::7] = ratio, np.sqrt(ratio)
    return n


def check(bandit: tb.Bandit, u: np.ndarray, n: np.ndarray, name: str) -> None:
    S = bandit.dictionary.numpy()
    S = S[S >= 0]
    assert len(S) < len(u) if name == "batch_bkb" else len(S) == len(u)
    mean, variance = dense(S, u, n, ARMS)
    model, at = bandit.model().marginals(torch.as_tensor(ARMS)), bandit.posterior(torch.as_tensor(ARMS))
    found = {"model": (model.mean, model.variance), "posterior": (at.mean, at.variance)}
    if isinstance(bandit.loop.state, TableState):
        found["table"] = bandit.loop.state.table.mean(), LAM * bandit.loop.state.table.leverage
    for what, (own_mean, own_variance) in found.items():
        assert_close(own_mean, mean, F64, what=f"mean of the {what}")
        assert_close(own_variance, variance, F64, what=f"variance of the {what}")


@pytest.mark.sweep(3)
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("name", MAKERS)
def test_every_view_has_the_digits_of_a_dense_solve(name, ratio):
    u = np.arange(20 if name == "batch_bkb" else 12)
    n = counts_of(ratio, len(u))
    check(observed(name, n, u), u, n, name)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["gp_ucb", "batch_bkb all"])
@pytest.mark.parametrize("heavy_first", [False, True])
def test_what_is_told_after_the_factors_were_looked_at(name, heavy_first):
    """A pull of a new or an old arm may make the counts uneven, or be added to a posterior that is already graded."""
    u, n = np.arange(8), np.ones(8)
    bandit = observed(name, counts_of(1e12, 8) if heavy_first else n, u)
    n = counts_of(1e12, 8) if heavy_first else n
    bandit.posterior(torch.as_tensor(ARMS))
    for arm, count in ((3, 1.0), (9, 1.0), (10, 1e12), (11, 1.0), (3, 1.0)):
        one = torch.tensor([arm]), torch.tensor([count], dtype=torch.float64)
        bandit.observe(*one, one[1] * MEANS[arm])
        bandit.posterior(torch.as_tensor(ARMS))
        u, n = (u, n) if arm in u else (np.append(u, arm), np.append(n, 0.0))
        n[u == arm] += count
    # The two pulls of arm 3 add up to its average.
    check(bandit, u, n, name)


def test_rows_of_a_batch_keep_their_digits_beside_each_other():
    u, kinds = np.arange(12), (1.0, 1e12)
    policy = MAKERS["batch_bkb all"]()
    arms, n = torch.as_tensor(ARMS), np.stack([counts_of(ratio, 12) for ratio in kinds])
    batch = tb.Bandit(policy, arms, generator=[generator(1), generator(2)])
    batch.observe(torch.arange(12).expand(2, -1), torch.as_tensor(n), torch.as_tensor(n * MEANS[u]))
    at = batch.posterior(arms)
    for row in range(2):
        mean, variance = dense(u, u, n[row], ARMS)
        assert_close(at.mean[row], mean, F64, what="mean")
        assert_close(at.variance[row], variance, F64, what="variance")


def test_the_information_gained_is_that_of_the_dense_matrix():
    u = np.arange(12)
    n = counts_of(1e12, 12)
    bandit = observed("gp_ucb", n, u)
    bandit.posterior(torch.as_tensor(ARMS))
    with mpmath.workdps(60):
        K = kernel(ARMS[u], ARMS[u]) * mpmath.diag([mpmath.mpf(float(c)) / mpmath.mpf(LAM) for c in n])
        expected = float(mpmath.log(mpmath.det(mpmath.eye(12) + K)))
    assert float(bandit.loop.state.posterior.log_det) == pytest.approx(expected, rel=1e-12)
    assert float(bandit.loop.state.log_det) == pytest.approx(expected, rel=1e-12)


def test_finite_features_of_heavy_and_light_arms():
    """Fewer features than arms with large counts, one of which is a multiple of an arm with a small count."""
    X, y, n = ARMS[:6], MEANS[:6], np.array([1.0, 1e12, 1.0, 1.0, 1e6, 1.0])
    X = np.concatenate([X, 2 * X[1:2]])
    n, y = np.append(n, 1.0), np.append(y, 0.3)
    bandit = tb.Bandit(tb.lin_ucb(noise_std=NOISE_STD, norm_bound=1.0), torch.as_tensor(X), generator=generator(0))
    bandit.observe(torch.arange(7), torch.as_tensor(n), torch.as_tensor(n * y))
    at, lam = bandit.posterior(torch.as_tensor(X)), mpmath.mpf(bandit.posterior.regularization)
    with mpmath.workdps(60):
        Z = mpmath.matrix(X.tolist())
        N = mpmath.diag([mpmath.mpf(float(c)) for c in n])
        V = Z.T * N * Z + lam * mpmath.eye(2)
        mean = Z * mpmath.lu_solve(V, Z.T * N * mpmath.matrix([mpmath.mpf(float(v)) for v in y]))
        variance = [lam * (Z[i, :] * V**-1 * Z[i, :].T)[0] for i in range(7)]
    assert_close(at.mean, [float(v) for v in mean], F64, what="mean")
    assert_close(at.variance, [float(v) for v in variance], F64, what="variance")


def test_draws_of_light_and_heavy_arms():
    policy = tb.thompson_sampling(rbf(LENGTHSCALE), noise_std=NOISE_STD, width=tb.widths.Constant(1.0))
    drawn = tb.Bandit(policy, torch.as_tensor(ARMS))
    heavy = counts_of(1e12, 12)
    drawn.observe(torch.arange(12), torch.as_tensor(heavy), torch.as_tensor(heavy * MEANS[:12]))
    values = whole(drawn.loop.state.draws.draw([200], torch.ones((), dtype=torch.float64), [generator(4)]))
    mean, variance = dense(np.arange(12), np.arange(12), heavy, ARMS)
    z = (values.numpy() - mean) / np.sqrt(variance)
    assert np.abs(z.mean(axis=0)).max() < 5 / np.sqrt(200)
    assert np.abs(z).max() < 6


def test_ordinary_counts_are_not_graded():
    assert not uneven(torch.tensor([1.0, 6e4, 0.0, 3.0]))
    assert uneven(torch.tensor([[1.0, 1.0], [1.0, 1e6]]))
    assert not uneven(torch.zeros(3))
    assert not uneven(torch.zeros(0))


@pytest.mark.parametrize(("u", "m"), [(3, 6), (6, 3), (5, 5)])
def test_heavy_rows_are_zero_in_the_coordinates_of_light_ones(u, m):
    Z, n = torch.randn(2, u, m, generator=generator(0), dtype=torch.float64), torch.logspace(0, 12, u, dtype=torch.float64)
    graded = Graded.of(Z, n.expand(2, -1))
    assert bool((graded.rows.triu(1) == 0).all())
    ordered = Z.gather(-2, graded.order.unsqueeze(-1).expand(Z.shape))
    torch.testing.assert_close(graded.rows @ graded.basis.mT, ordered)
    torch.testing.assert_close(graded.basis @ graded.basis.mT, torch.eye(m, dtype=torch.float64).expand(2, -1, -1))
