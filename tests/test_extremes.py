"""Numbers at the limits of float64 against 120 digits: within the stated tolerance, or a clear error."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpytorch
import mpmath
import pytest
import torch
from problems import OFF_SCALE, generator

import torchbandits as tb
from torchbandits import errors

ARMS = torch.rand(8, 2, dtype=torch.float64, generator=generator(0))
NEAR = torch.cat([ARMS[:4], ARMS[:4] + 1e-9 * torch.randn(4, 2, dtype=torch.float64, generator=generator(1))])
POLICIES: dict[str, Callable[[Any, float], Any]] = {
    "gp_ucb": lambda kernel, noise: tb.gp_ucb(kernel, noise_std=noise),
    "batch_bkb": lambda kernel, noise: tb.batch_bkb(kernel, noise_std=noise),
}


def exactly(bandit: tb.Bandit, lengthscale: float, points: torch.Tensor) -> list[tuple[float, float]]:
    """Mean and variance of the posterior, from the sums told, by dense solves with 120 digits."""
    statistics = bandit.loop.state.statistics

    def numbers(rows: torch.Tensor) -> list[list[Any]]:
        return [[mpmath.mpf(v) for v in row] for row in rows.double().tolist()]

    def k(a: list[Any], b: list[Any]) -> Any:
        return mpmath.exp(-sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) / (2 * mpmath.mpf(lengthscale) ** 2))

    with mpmath.workdps(120):
        X, n = numbers(statistics.points), statistics.weights.tolist()
        y = mpmath.matrix([mpmath.mpf(s) / mpmath.mpf(w) for s, w in zip(statistics.sums.tolist(), n, strict=True)])
        K = mpmath.matrix(len(X), len(X))
        for i in range(len(X)):
            for j in range(len(X)):
                K[i, j] = k(X[i], X[j]) + (mpmath.mpf(bandit.posterior.regularization) / mpmath.mpf(n[i]) if i == j else 0)
        alpha, found = mpmath.lu_solve(K, y), []
        for q in numbers(points):
            kq = mpmath.matrix([k(x, q) for x in X])
            v = mpmath.lu_solve(K, kq)
            found.append((float(mpmath.fdot(kq, alpha)), float(1 - mpmath.fdot(kq, v))))
    return found


def told(policy: str, arms: torch.Tensor, lengthscale: float, noise: float, scale: float, repeats: int) -> tb.Bandit:
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    bandit, index, g = tb.Bandit(POLICIES[policy](kernel, noise), arms), torch.arange(6), generator(2)
    y = scale * torch.sin(7 * ARMS[:, 0] + ARMS[:, 1])
    for _ in range(3):
        bandit.tell(index, y[:6] + 0.01 * scale * torch.randn(6, dtype=torch.float64, generator=g))
    if repeats:
        wobble = 0.01 * scale * torch.randn(repeats, dtype=torch.float64, generator=g)
        bandit.tell(torch.zeros(repeats, dtype=torch.int64), y[0] + wobble)
    return bandit


# arms, lengthscale, noise_std, size of the rewards, further pulls of arm 0; tolerance of mean / size and of variance / k(x, x)
EXTREMES: dict[str, tuple[torch.Tensor, float, float, float, int, float, float]] = {
    "plain": (ARMS, 0.3, 0.1, 1.0, 0, 1e-13, 1e-13),
    "near-duplicates": (NEAR, 0.3, 0.1, 1.0, 0, 1e-13, 1e-13),
    "near-duplicates and little noise": (NEAR, 0.3, 1e-6, 1.0, 0, 1e-5, 1e-13),
    "a lengthscale of 1e8": (ARMS, 1e8, 0.1, 1.0, 0, 1e-13, 1e-13),
    "a lengthscale of 1e-8": (ARMS, 1e-8, 0.1, 1.0, 0, 1e-13, 1e-13),
    "a lengthscale of 1e8 and little noise": (ARMS, 1e8, 1e-6, 1.0, 0, 1e-3, 1e-13),
    "rewards of 1e12": (ARMS, 0.3, 0.1, 1e12, 0, 1e-13, 1e-13),
    "rewards of 1e-12": (ARMS, 0.3, 0.1, 1e-12, 0, 1e-13, 1e-13),
    "100,000 pulls of an arm": (ARMS, 0.3, 0.1, 1.0, 100_000, 1e-12, 1e-13),
    "float32": (ARMS.float(), 0.3, 0.1, 1.0, 0, 1e-6, 1e-6),
    "float32 near-duplicates": (NEAR.float(), 0.3, 0.1, 1.0, 0, 1e-6, 1e-6),
}


REFUSED = ("a lengthscale of 1e8 and little noise", "batch_bkb")


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("name", "policy"), [(n, p) for n in EXTREMES for p in POLICIES if (n, p) != REFUSED])
def test_posteriors_agree_with_120_digits(policy: str, name: str):
    arms, lengthscale, noise, scale, repeats, mean_tolerance, variance_tolerance = EXTREMES[name]
    bandit = told(policy, arms, lengthscale, noise, scale, repeats)
    with torch.no_grad():
        found = bandit.posterior(arms)
    length = float(bandit.posterior.kernel.lengthscale.detach())
    for (mean, variance), m, v in zip(exactly(bandit, length, arms), found.mean.tolist(), found.variance.tolist(), strict=True):
        assert abs(mean - m) <= mean_tolerance * scale
        assert abs(variance - v) <= variance_tolerance


def test_a_dictionary_that_can_not_hold_the_mean_is_refused():
    """A point outside the dictionary whose rewards differ from those of equal points inside: the error would be 3e-5, and 1e-5
    is promised."""
    arms, lengthscale, noise, scale, repeats, _, _ = EXTREMES[REFUSED[0]]
    with pytest.raises(errors.NumericalError, match="noise_std"):
        told(REFUSED[1], arms, lengthscale, noise, scale, repeats)


@pytest.mark.parametrize("pulls", [10.0, 1e4, 1e6])
def test_a_smooth_kernel_that_float64_takes_for_nearly_singular(pulls: float):
    """120 points, pulled repeatedly, whose kernel matrix has eigenvalues of the size of rounding errors. At other points too,
    the posterior is that of (K + λ/n) α = y to nine digits; without the directions below 1e-10 λ it would be to seven down to
    five digits."""
    points = torch.rand(420, 2, dtype=torch.float64, generator=generator(4))
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 0.3
    bandit, index = tb.Bandit(tb.gp_ucb(kernel, noise_std=0.1), points), torch.arange(120)
    n = torch.full((120,), pulls, dtype=torch.float64)
    wobble = torch.randn(120, dtype=torch.float64, generator=generator(5)) / pulls**0.5
    y = torch.sin(5 * points[:120, 0]) + 0.1 * wobble
    bandit.observe(index, n, n * y, n * (y.square() + 0.01))
    distance = (points.unsqueeze(-2) - points[:120]).square().sum(dim=-1)
    K_au, lam = torch.exp(-distance / (2 * float(kernel.lengthscale.detach()) ** 2)), bandit.posterior.regularization
    factor = torch.linalg.cholesky(K_au[:120] + lam / pulls * torch.eye(120, dtype=torch.float64))
    mean = K_au @ torch.cholesky_solve(y.unsqueeze(-1), factor).squeeze(-1)
    variance = 1 - torch.linalg.solve_triangular(factor, K_au.mT, upper=False).square().sum(dim=0)
    with torch.no_grad():
        found = bandit.posterior(points)
    torch.testing.assert_close(found.mean, mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.variance, variance, rtol=0, atol=1e-11)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("arms", [ARMS, NEAR], ids=["apart", "near"])
@pytest.mark.parametrize("repeats", [0, 100_000])
def test_noise_of_a_picounit_is_an_error(policy: str, arms: torch.Tensor, repeats: int):
    """λ = 1e-24 beside k(x, x) = 1: float64 can't resolve the pulls of one arm, and an error reports it."""
    with pytest.raises(errors.NumericalError):
        told(policy, arms, 0.3, 1e-12, 1.0, repeats)


@pytest.mark.parametrize("noise", [1e-8, 1e-9, 1e-12, 1e-13, 1e-16, 1e-60])
@pytest.mark.parametrize("together", [True, False])
def test_rewards_that_scatter_far_more_than_the_noise_are_an_error_on_every_processor(noise: float, together: bool):
    """Without the check, the sign of rounding errors decided whether an error was raised, or means were wrong by millions."""
    kernel, index = gpytorch.kernels.RBFKernel().double(), torch.arange(6)
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    bandit, y = tb.Bandit(tb.gp_ucb(kernel, noise_std=noise), ARMS), torch.sin(7 * ARMS[:6, 0] + ARMS[:6, 1])
    bandit.tell(index, y)
    before, again = bandit.state_dict(), index if together else index[:1]
    with pytest.raises(errors.NumericalError, match="noise_std of the rewards"):
        bandit.tell(again, y[again] + 0.1)
    assert float(bandit.pulls) == 6
    assert torch.equal(bandit.loop.state.arm_leverage(), before["state"]["table.leverage"])


@pytest.mark.parametrize("noise", [1e-6, 1e-8, 1e-9])
def test_equal_rewards_may_be_told_again_with_hardly_any_noise(noise: float):
    """A simulation without noise: means and variances stay what they are."""
    kernel, index = gpytorch.kernels.RBFKernel().double(), torch.arange(6)
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    bandit, y = tb.Bandit(tb.gp_ucb(kernel, noise_std=noise), ARMS), torch.sin(7 * ARMS[:6, 0] + ARMS[:6, 1])
    for _ in range(3):
        for arm in index.split(1):
            bandit.tell(arm, y[arm])
    right = torch.tensor(exactly(bandit, 0.3, ARMS), dtype=torch.float64)
    table, lam = bandit.loop.state.table, bandit.posterior.regularization
    torch.testing.assert_close(table.mean(), right[:, 0], rtol=0, atol=1e-9)
    torch.testing.assert_close(lam * table.leverage, right[:, 1], rtol=0, atol=1e-9)


def test_rewards_whose_squares_are_too_large(annotations_not_enforced):
    bandit = told("gp_ucb", ARMS, 0.3, 0.1, 1.0, 0)
    for huge in (1e155, -1e300):
        with pytest.raises(errors.NumericalError, match="square"):
            bandit.tell(torch.tensor([1]), torch.tensor([huge], dtype=torch.float64))
        with pytest.raises(errors.NumericalError, match="square"):
            bandit.observe(torch.tensor([1]), torch.ones(1), torch.tensor([huge], dtype=torch.float64))
    assert float(bandit.pulls) == 18


def soak() -> Any:
    spec = importlib.util.spec_from_file_location("soak", Path(__file__).parents[1] / "scripts" / "robustness" / "soak.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.exhaustive
def test_a_short_soak():
    """Checks the factors after 600 steps; the long form of the test also checks memory."""
    for name in ("gp_ucb", "batch_bkb"):
        assert list(soak().soak(name, 600).values())[3] < 1e-6


@pytest.mark.slow
def test_the_long_soak():
    assert soak().main([]) == 0


@pytest.mark.sweep(1)
@pytest.mark.parametrize("policy", ["bkb", "batch_bkb"])
def test_a_dictionary_of_float32_arms_keeps_what_was_pulled(policy: str):
    """A leverage of a pulled arm that float32 rounds to 0 dropped its point: of 36 points one was left."""
    g, kernel = generator(0), gpytorch.kernels.RBFKernel().double()
    arms, kernel.lengthscale = torch.rand(1500, 2, dtype=torch.float64, generator=g), 0.5
    f, g = torch.sin(3 * arms).sum(dim=-1) / 2, generator(2)
    picks = getattr(tb, policy)(kernel, noise_std=0.002, width=tb.widths.Constant(2.0))
    bandit = tb.Bandit(picks, arms.float(), generator=generator(1))
    for _ in range(30):
        selection = bandit.ask(limit=4)
        noise = torch.randn(len(selection), dtype=torch.float64, generator=g)
        bandit.tell(selection, f[selection.index] + 0.002 * noise)
    state, pulled = bandit.loop.state, (bandit.counts > 0).nonzero().squeeze(-1)
    assert float(state.arm_leverage()[pulled].max()) <= 1
    assert float((state.arm_mean() - f)[pulled].abs().max()) < 0.01
    assert float(f.max() - f[bandit.best_arm()]) < 0.01


@pytest.mark.sweep(2)
@pytest.mark.parametrize("matern", [False, True], ids=["rbf", "matern"])
@pytest.mark.parametrize("policy", ["gp_ucb", "gp_bucb", "bkb", "batch_bkb"])
@pytest.mark.parametrize("case", ["far from 0", "one arm far away"])
def test_float32_arms_keep_their_distances(policy: str, case: str, *, matern: bool):
    """In units of the lengthscale, relative to 0 or to a mean that one arm moves, distances would be lost to rounding."""
    g, kernel = generator(0), gpytorch.kernels.MaternKernel(2.5).double() if matern else gpytorch.kernels.RBFKernel().double()
    arms, kernel.lengthscale = torch.rand(1500, 3, dtype=torch.float64, generator=g), 0.3
    f = torch.sin(3 * arms).sum(dim=-1)
    arms = (arms + 1e4 if case == "far from 0" else arms.index_fill(0, torch.tensor([7]), 1e7)).float()
    # Without memory for columns of the kernel, the dictionary's are evaluated anew in each sweep.
    memory = {} if policy in ("gp_ucb", "gp_bucb") else {"memory_budget": 0}
    picks = getattr(tb, policy)(kernel, noise_std=0.1, width=tb.widths.Constant(2.0), **memory)
    bandit = tb.Bandit(picks, arms, generator=generator(1))
    bandit.tell(torch.tensor([7, 8]), f[[7, 8]])
    for _ in range(10):
        selection = bandit.ask(limit=4)
        bandit.tell(selection, f[selection.index])
    state, right = bandit.loop.state, bandit.posterior(arms.double())
    torch.testing.assert_close(state.arm_mean().double(), right.mean, rtol=0, atol=2e-5)
    torch.testing.assert_close(state.arm_leverage().double() * 0.01, right.variance, rtol=0, atol=2e-5)


def test_pulled_float32_arms_have_the_values_of_the_posterior_in_batch_rows_and_where_arms_are_equal():
    g, kernel = generator(0), gpytorch.kernels.RBFKernel().double()
    arms, kernel.lengthscale = torch.rand(2, 300, 2, dtype=torch.float64, generator=g), 0.5
    arms[:, 100:200] = arms[:, :100]
    f = torch.sin(3 * arms).sum(dim=-1) / 2
    policy = tb.bkb(kernel, noise_std=0.01, width=tb.widths.Constant(2.0))
    bandit = tb.Bandit(policy, arms.float(), generator=[generator(1), generator(2)])
    for _ in range(40):
        selection = bandit.ask()
        bandit.tell(selection, f.gather(-1, selection.index))
    pulled = bandit.counts > 0
    assert bool((pulled[:, 100:200] == pulled[:, :100]).all())
    right, state = bandit.posterior(arms.float().double()), bandit.loop.state
    torch.testing.assert_close(state.arm_mean()[pulled], right.mean[pulled], rtol=0, atol=1e-9)
    torch.testing.assert_close(state.arm_leverage()[pulled] * 1e-4, right.variance[pulled], rtol=0, atol=1e-9)


@OFF_SCALE
@pytest.mark.parametrize("noise_std", [1e-4, 1e-5])
def test_float32_arms_beside_tiny_noise_end_in_an_error_that_names_float64(noise_std: float):
    g, kernel = generator(0), gpytorch.kernels.RBFKernel().double()
    arms, kernel.lengthscale = torch.rand(2000, 2, generator=g), 3.0

    def play(arms: torch.Tensor) -> None:
        bandit = tb.Bandit(tb.gp_ucb(kernel, noise_std=noise_std), arms, generator=generator(0))
        for _ in range(120):
            selection = bandit.ask()
            bandit.tell(selection, torch.sin(3 * selection.points.double()).sum(dim=-1))

    # Which of two errors it is depends on the processor.
    said = r"(not finite|can't resolve).*The arms are torch.float32, .*: pass arms.double\(\)"
    with pytest.raises(errors.NumericalError, match=said):
        play(arms)
    play(arms.double())
