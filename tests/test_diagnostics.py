"""Diagnostics: numbers against dense oracles, warnings for a wrong kernel or noise, and none for a right one."""

from __future__ import annotations

import copy
import inspect
import math
import sys
import textwrap
import warnings

import numpy as np
import oracles_diagnostics as oracle
import pytest
import torch
from contract import CASES, PROBLEM, Case, every_policy
from problems import COMMON, NOISE_STD, OFF_SCALE, Problem, generator, kernel_pair, rbf
from scipy import stats
from tolerances import VARIANCE, VARIANCE_NEAR_DUPLICATES, Tolerance, assert_close

import torchbandits as tb
from torchbandits.diagnostics import chance
from torchbandits.errors import (
    ArgumentError,
    ArmIndexError,
    DiagnosticWarning,
    NonFiniteError,
    ShapeError,
    StateError,
    UnsupportedError,
)
from torchbandits.testing.play import everything

diagnostics = tb.diagnostics
LAM, EXACT = NOISE_STD**2, VARIANCE[torch.float64]


def told(policy, problem: Problem, pulls: int = 40, seed: int = 0) -> tb.Bandit:
    """A bandit that was told the rewards of random pulls with repeated arms."""
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(seed))
    index = torch.as_tensor(np.random.default_rng(seed).integers(problem.a // 2, size=pulls))
    # In two parts, so that the second draws a dictionary by leverages given the first.
    for part in (slice(0, pulls // 2), slice(pulls // 2, pulls)):
        bandit.tell(index[part], problem.rewards(part.start, index[part]))
    return bandit


def summed(bandit: tb.Bandit, problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arms in order of first pull, pulls and average of each."""
    statistics = bandit.posterior.statistics
    arms = bandit.loop.state.rows.arm_of_row.numpy()
    return arms, statistics.weights.numpy(), (statistics.sums / statistics.weights).numpy()


def quietly(diagnostic, *arguments, **options):
    """Run a diagnostic without warnings, for tests in which the match of function and kernel is irrelevant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosticWarning)
        return diagnostic(*arguments, **options)


# ------------------------------------------------------------------ leave one out


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kernel_name", ["rbf", "matern12", "scaled"])
def test_leave_one_out_is_a_refit_without_the_arm(kernel_name, seed):
    kernel, kernel_np = kernel_pair(kernel_name)
    problem = Problem(seed)
    bandit = told(tb.gp_ucb(kernel, prior_mean=0.3, **COMMON), problem, seed=seed)
    left = quietly(diagnostics.leave_one_out, bandit)
    arms, n, average = summed(bandit, problem)
    K = kernel_np(problem.arms[arms], problem.arms[arms])
    mu, variance = oracle.left_out(K, n, average, LAM, mean=0.3)
    assert_close(left.mean, mu, EXACT, what="means")
    assert_close(left.std.square() - LAM / torch.as_tensor(n), variance, Tolerance(1e-8, 1e-11), what="variances")
    assert_close(left.residuals, (average - mu) / np.sqrt(variance + LAM / n), Tolerance(1e-7, 1e-9), what="residuals")
    assert_close(
        left.effective_size, oracle.left_out_effective_size(K + LAM * np.diag(1 / n)), Tolerance(1e-7, 0.0), what="size"
    )


@pytest.mark.parametrize("noise_std", [1e-3, 0.1])
def test_leave_one_out_with_near_duplicates_and_little_noise(noise_std):
    problem = Problem(5, near_duplicates=10, duplicates=5, noise_std=noise_std)
    kernel, kernel_np = kernel_pair("matern32")
    bandit = told(tb.gp_ucb(kernel, noise_std=noise_std), problem, pulls=60)
    left = quietly(diagnostics.leave_one_out, bandit)
    arms, n, average = summed(bandit, problem)
    mu, variance = oracle.left_out(kernel_np(problem.arms[arms], problem.arms[arms]), n, average, noise_std**2)
    assert_close(left.mean, mu, VARIANCE_NEAR_DUPLICATES[torch.float64], scale=1e3, what="means")
    variance_here = left.std.square() - noise_std**2 / torch.as_tensor(n)
    assert_close(variance_here, variance, VARIANCE_NEAR_DUPLICATES[torch.float64], what="variances")


def test_leave_one_out_of_an_arm_that_no_other_tells_about():
    """For such an arm 1 − h cancels, and the result is the prior up to eps·n·k/λ."""
    arms = torch.arange(6, dtype=torch.float64).unsqueeze(-1) * 1e3
    bandit = tb.Bandit(tb.gp_ucb(rbf(), noise_std=1e-4), arms)
    index = torch.arange(6).repeat(50)
    bandit.tell(index, 0.5 * torch.ones(300, dtype=torch.float64))
    left = quietly(diagnostics.leave_one_out, bandit)
    assert_close(left.mean, np.zeros(6), Tolerance(0.0, 1e-5))
    assert_close(left.std, np.ones(6), Tolerance(1e-5, 0.0))


@pytest.mark.parametrize("seed", range(3))
def test_leave_one_out_estimates_the_prior_mean_without_the_arm_too(seed):
    problem = Problem(seed)
    kernel, kernel_np = kernel_pair("rbf")
    bandit = told(tb.gp_ucb(kernel, prior_mean="estimate", **COMMON), problem, seed=seed)
    left = quietly(diagnostics.leave_one_out, bandit)
    arms, n, average = summed(bandit, problem)
    K = kernel_np(problem.arms[arms], problem.arms[arms])
    for i in range(len(n)):
        others = np.arange(len(n)) != i
        mean = (n * average)[others].sum() / n[others].sum()
        assert_close(left.mean[i], oracle.left_out(K, n, average, LAM, mean=mean)[0][i], Tolerance(1e-7, 1e-9))


@pytest.mark.parametrize("seed", range(3))
def test_leave_one_out_of_a_sparse_posterior_keeps_the_dictionary(seed):
    problem = Problem(seed)
    kernel, kernel_np = kernel_pair("matern52", 0.7)
    bandit = told(tb.bkb(kernel, oversampling=1.0, **COMMON), problem, seed=seed)
    left = quietly(diagnostics.leave_one_out, bandit)
    arms, n, average = summed(bandit, problem)
    dictionary = np.flatnonzero(bandit.posterior.dictionary.numpy())
    assert 0 < len(dictionary) < len(n)
    K = kernel_np(problem.arms[arms], problem.arms[arms])
    mu, variance = oracle.left_out(K, n, average, LAM, dictionary)
    assert_close(left.mean, mu, Tolerance(1e-7, 1e-9), what="means")
    assert_close(left.std.square() - LAM / torch.as_tensor(n), variance, Tolerance(1e-7, 1e-10), what="variances")
    Q = oracle.nystrom(K, dictionary) @ oracle.nystrom(K, dictionary).T
    M = Q + np.diag(np.diag(K - Q)) + LAM * np.diag(1 / n)
    assert_close(left.effective_size, oracle.left_out_effective_size(M), Tolerance(1e-6, 0.0), what="size")
    misfit = diagnostics.effective_dimension(bandit).misfit
    own = np.diag(M - Q)
    assert_close(misfit, ((own * np.linalg.solve(M, average)) ** 2 / own).sum(), Tolerance(1e-6, 0.0), what="misfit")


def test_leave_one_out_of_finite_features():
    problem = Problem(2)
    bandit = told(tb.rff_ucb(rbf(), num_features=30, **COMMON), problem)
    left = quietly(diagnostics.leave_one_out, bandit)
    arms, n, average = summed(bandit, problem)
    Z = bandit.posterior.finite(problem.tensor[arms]).mT.numpy()
    for i in range(len(n)):
        others = np.arange(len(n)) != i
        mu, variance = oracle.linear(Z[others], n[others], average[others], LAM, Z[i])
        assert_close(left.mean[i], mu, Tolerance(1e-7, 1e-9))
        assert_close(left.std[i].square() - LAM / n[i], variance, Tolerance(1e-7, 1e-10))


def test_a_single_arm_is_left_to_the_prior():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), prior_mean="estimate", **COMMON), Problem(1).tensor)
    bandit.tell(torch.tensor([3, 3]), torch.tensor([0.2, 0.4], dtype=torch.float64))
    left = quietly(diagnostics.leave_one_out, bandit)
    assert_close(left.mean, [0.0], Tolerance(0.0, 1e-12))
    assert_close(left.std, [math.sqrt(1 + LAM / 2)], EXACT)


# ------------------------------------------------------------------ held-out rewards


@pytest.mark.parametrize("by_index", [True, False])
def test_calibration_against_the_dense_posterior(by_index):
    problem = Problem(4)
    kernel, kernel_np = kernel_pair("matern52")
    bandit = told(tb.gp_ucb(kernel, **COMMON), problem)
    held = torch.as_tensor(np.random.default_rng(9).integers(problem.a, size=30))
    y = problem.rewards(500, held)
    found = quietly(diagnostics.calibration, bandit, held if by_index else problem.tensor[held], y)
    arms, n, average = summed(bandit, problem)
    x, h = problem.arms[arms], problem.arms[held]
    mean, C = oracle.posterior(kernel_np(x, x), n, average, LAM, kernel_np(h, x), kernel_np(h, h))
    z = (y.numpy() - mean) / np.sqrt(np.diag(C) + LAM)
    assert_close(found.residuals, z, Tolerance(1e-7, 1e-9))
    assert_close(found.effective_size, oracle.effective_size(C + LAM * np.eye(30)), Tolerance(1e-7, 0.0))
    assert_close(found.mean_square, (z**2).mean(), Tolerance(1e-7, 0.0))
    assert_close(found.log_density, stats.norm.logpdf(y, mean, np.sqrt(np.diag(C) + LAM)).mean(), Tolerance(1e-7, 0.0))
    expected = [(np.abs(z) <= stats.norm.ppf((1 + p) / 2)).mean() for p in found.levels]
    assert_close(found.coverage, expected, Tolerance(0.0, 1e-12))
    direct = quietly(diagnostics.calibration, bandit.posterior, problem.tensor[held], y, noise_std=NOISE_STD)
    assert torch.equal(direct.residuals, found.residuals)


def test_the_effective_size_is_the_same_in_parts(monkeypatch):
    problem = Problem(4)
    bandit = told(tb.gp_ucb(rbf(), **COMMON), problem)
    whole = quietly(diagnostics.leave_one_out, bandit).effective_size
    monkeypatch.setattr(chance, "_CHUNK", 100)
    assert_close(quietly(diagnostics.leave_one_out, bandit).effective_size, whole, Tolerance(1e-12, 0.0))


@pytest.mark.parametrize("c", [0.1, 0.7, 1.6, 2.6])
@pytest.mark.parametrize("rho", [-0.99, -0.4, 0.1, 0.6, 0.95])
def test_indicators_of_intervals_correlate_at_most_by_the_square(c, rho):
    """This inequality makes n²/Σρ² a lower bound of the effective number of coins."""
    assert oracle.indicator_correlation(c, rho) + 1e-7 >= 0
    assert oracle.indicator_correlation(c, rho) <= rho**2 + 1e-7


@pytest.mark.parametrize("alarm", [1e-4, 1e-2])
def test_the_band_is_the_binomial_one(alarm):
    sizes = [1, 2, 7, 40, 300]
    lower, upper = chance.binomial_band(torch.tensor(sizes, dtype=torch.float64) + 0.5, (0.1, 0.5, 0.99), alarm)
    for i, size in enumerate(sizes):
        for j, p in enumerate((0.1, 0.5, 0.99)):
            assert_close([lower[i, j], upper[i, j]], oracle.binomial_band(size, p, alarm), Tolerance(0.0, 1e-12))


def test_chi_square_quantiles():
    degrees = torch.tensor([0.0, 1.0, 30.0, 1e5], dtype=torch.float64)
    found = chance.chi_square(degrees, 1e-3)
    assert found[0].isnan()
    assert_close(found[1:], stats.chi2.isf(1e-3, degrees[1:].numpy()), Tolerance(1e-9, 0.0))


# ------------------------------------------------------------------ right models: as many alarms as designed


def replicates(policy, rows: int, lengthscale: float, noise_std: float, pulls: int, seed: int = 1):
    """A batch whose rows are functions drawn from the prior, played by the policy; and 60 held-out rewards of each."""
    g = generator(seed)
    arms = torch.rand(60, 2, generator=g, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(torch.as_tensor(kernel_pair("rbf", lengthscale)[1](arms.numpy(), arms.numpy())))
    root = vectors * values.clamp_min(0).sqrt()
    f = torch.randn(rows, 60, generator=g, dtype=torch.float64) @ root.mT
    bandit = tb.Bandit(policy, arms, generator=[generator(i) for i in range(rows)])

    def rewards(index):
        noise = torch.randn(index.shape, generator=g, dtype=torch.float64)
        return f.gather(-1, index.clamp_min(0)) + noise_std * noise

    while int(bandit.pulls.min()) < pulls:
        selection = bandit.ask()
        bandit.tell(selection, rewards(selection.index))
    held = torch.randint(60, (rows, 60), generator=g)
    return bandit, held, rewards(held)


# A right model alarms in at most one row of a thousand by design. Of 1,000 rows more than 6 do with probability 0.0001.
MOST_ALARMS = 6


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("make", "options", "rows", "lengthscale", "noise_std", "pulls"),
    [
        (tb.gp_ucb, {}, 1000, 0.3, 0.3, 40),
        (tb.gp_ucb, {"initial": tb.starts.uniform(20)}, 1000, 0.5, 0.1, 20),
        (tb.bkb, {"oversampling": 1.0}, 300, 0.3, 0.1, 25),  # the dictionary is poor, which must not be blamed on the kernel
    ],
    ids=["adaptive", "uniform", "sparse"],
)
def test_right_models_raise_few_alarms(make, options, rows, lengthscale, noise_std, pulls):
    policy = make(rbf(lengthscale), noise_std=noise_std, **options)
    bandit, held, rewards = replicates(policy, rows, lengthscale, noise_std, pulls)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosticWarning)
        outside = diagnostics.calibration(bandit, held, rewards)
        left = diagnostics.leave_one_out(bandit)
        noise = diagnostics.noise(bandit)
        dimension = diagnostics.effective_dimension(bandit)
        width = diagnostics.widths(bandit)
    for record in (outside, left):
        alarms = ((record.coverage < record.lower) | (record.coverage > record.upper)).any(dim=-1)
        assert int(alarms.sum()) <= MOST_ALARMS
        # Over all rows, the mean square is 1 and the coverage equals the levels, within four standard errors.
        worth = float(1 / (1 / record.effective_size).mean()) * rows
        assert abs(float(record.mean_square.mean()) - 1) < 4 * math.sqrt(2 / worth)
        for level, coverage in zip(record.levels, record.coverage.mean(dim=0).tolist(), strict=True):
            assert abs(coverage - level) < 4 * math.sqrt(level * (1 - level) / worth)
    assert int(((noise.lower > noise_std) | (noise.upper < noise_std)).sum()) <= MOST_ALARMS
    assert int((noise.degrees > 0).sum()) > 0.9 * rows
    assert int((dimension.misfit > dimension.misfit_limit).sum()) <= MOST_ALARMS
    assert int((width.excess > width.excess_limit).sum()) <= MOST_ALARMS


# ------------------------------------------------------------------ wrong models: each warning, and silence beside it


def played(kernel, noise_std: float, seed: int, *, truth: float = 0.3, pulls: int = 80, true_noise: float = 0.1, **options):
    """GP-UCB on random pulls of a function of lengthscale `truth`, and 100 held-out rewards."""
    rng = np.random.default_rng(seed)
    arms = rng.uniform(size=(150, 2))
    K = kernel_pair("rbf", truth)[1](arms, arms)
    values, vectors = np.linalg.eigh(K)
    f = vectors @ (np.sqrt(values.clip(0)) * rng.normal(size=150))
    index = rng.integers(60, size=pulls)
    held = rng.integers(150, size=100)
    bandit = tb.Bandit(tb.gp_ucb(kernel, noise_std=noise_std, **options), torch.as_tensor(arms))
    bandit.tell(torch.as_tensor(index), torch.as_tensor(f[index] + true_noise * rng.normal(size=pulls)))
    return bandit, torch.as_tensor(held), torch.as_tensor(f[held] + true_noise * rng.normal(size=100))


@pytest.mark.parametrize("seed", range(5))
def test_silent_on_a_right_model(seed):
    """Warnings are errors here. With six tests of level 1/1000 and five seeds, a false alarm has probability 1/30; these seeds
    give none."""
    bandit, held, rewards = played(rbf(0.3), 0.1, seed)
    report = diagnostics.diagnose(bandit, held_out=(held, rewards))
    assert report.warnings == []
    assert "No warnings" in str(report)
    assert not report.skipped


@OFF_SCALE
@pytest.mark.parametrize("seed", range(5))
def test_a_lengthscale_too_long_is_told(seed):
    bandit, held, rewards = played(rbf(3.0), 0.1, seed)
    with pytest.warns(DiagnosticWarning, match=r"intervals hold .* held-out .* too narrow.*lengthscale is likely too long"):
        found = diagnostics.calibration(bandit, held, rewards)
    assert len(found.warnings) == 1
    with pytest.warns(DiagnosticWarning, match=r"arms left out .* too narrow"):
        diagnostics.leave_one_out(bandit)
    with pytest.warns(DiagnosticWarning, match="bounds do not hold: the average reward of arm"):
        diagnostics.widths(bandit)
    with pytest.warns(DiagnosticWarning, match=r"look much the same.*kernel is too wide"):
        diagnostics.effective_dimension(bandit)
    assert not diagnostics.noise(bandit).warnings  # the noise diagnostic needs no kernel


@pytest.mark.parametrize("seed", range(5))
def test_a_prior_too_large_is_told(seed):
    kernel = kernel_pair("scaled", 0.05)[0]
    kernel.outputscale = 25.0
    bandit, held, rewards = played(kernel, 0.1, seed, truth=0.5)
    with pytest.warns(DiagnosticWarning, match=r"held-out .* too wide.*lengthscale is likely too short"):
        diagnostics.calibration(bandit, held, rewards)
    with pytest.warns(DiagnosticWarning, match=r"arms left out .* too wide"):
        diagnostics.leave_one_out(bandit)


@pytest.mark.parametrize("seed", range(3))
def test_a_kernel_too_narrow_is_told(seed):
    bandit, _, _ = played(rbf(0.01), 0.1, seed)
    with pytest.warns(DiagnosticWarning, match="every arm is its own dimension"):
        found = diagnostics.effective_dimension(bandit)
    assert float(found.from_others) < 0.1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("believed", "word"), [(0.03, "too small"), (0.4, "too large")])
def test_wrong_noise_is_told(believed, word, seed):
    bandit, _, _ = played(rbf(0.3), believed, seed, pulls=160)
    with pytest.warns(DiagnosticWarning, match=f"repeated pulls show noise .* {word}"):
        found = diagnostics.noise(bandit)
    assert float(found.lower) < 0.1 < float(found.upper)
    diagnostics.noise(bandit, noise_std=0.1)  # must not warn


def test_few_features_are_told():
    problem = Problem(3)
    bandit = told(tb.rff_ucb(rbf(0.2), num_features=10, **COMMON), problem)
    with pytest.warns(DiagnosticWarning, match=r"outside \[1/3, 3\]: the features are too few .* raise num_features"):
        diagnostics.dictionary_quality(bandit)


def test_a_poor_dictionary_is_told():
    """A dictionary by leverage sampling passes; one of a single point is reported."""
    problem = Problem(3)
    bandit = told(tb.bkb(rbf(0.3), **COMMON), problem)
    assert not diagnostics.dictionary_quality(bandit).warnings
    posterior = bandit.posterior
    posterior.set_dictionary_(torch.arange(posterior.statistics.size) == 0)
    bandit.loop.state.table.sweep_()
    with pytest.warns(DiagnosticWarning, match="1 dictionary points are too few .* raise oversampling"):
        diagnostics.dictionary_quality(bandit)


@OFF_SCALE
def test_lambda_by_choice_is_a_note():
    """The λ = 1 of igp_ucb, which widens posteriors deliberately, gives a note and no warning."""
    problem = Problem(1)
    bandit = tb.Bandit(tb.igp_ucb(rbf(0.05), noise_std=0.1), problem.tensor)
    index = torch.arange(40).repeat(2)
    bandit.tell(index, 0.1 * problem.rewards(0, index))
    found = diagnostics.leave_one_out(bandit)
    assert any("λ is well above" in note for note in found.notes)
    assert bool((found.coverage > found.upper).any())
    assert not found.warnings


# ------------------------------------------------------------------ the other numbers


@pytest.mark.parametrize("seed", range(3))
def test_effective_dimension_is_the_trace(seed):
    problem = Problem(seed)
    kernel, kernel_np = kernel_pair("matern32")
    bandit = told(tb.gp_ucb(kernel, **COMMON), problem, seed=seed)
    found = diagnostics.effective_dimension(bandit)
    arms, n, average = summed(bandit, problem)
    K = kernel_np(problem.arms[arms], problem.arms[arms])
    assert_close(found.dimension, oracle.effective_dimension(K, n, LAM), Tolerance(1e-8, 0.0))
    assert (int(found.distinct_arms), int(found.dictionary_size), int(found.pulls)) == (len(n), len(n), 40)
    share = 1 - oracle.left_out(K, n, average, LAM)[1]
    assert_close(found.from_others, np.sort(share)[(len(n) - 1) // 2], Tolerance(1e-7, 1e-9))


@pytest.mark.parametrize("size", [10, 500])
def test_dictionary_quality_against_the_exact_posterior(size):
    problem = Problem(6)
    sparse = told(tb.bkb(rbf(0.3), oversampling=1.0, **COMMON), problem)
    exact = told(tb.gp_ucb(rbf(0.3), **COMMON), problem)
    found = diagnostics.dictionary_quality(sparse, size=size, generator=generator(3))
    assert found.arms.shape == (min(size, problem.a),)
    x = problem.tensor[found.arms]
    ratio = sparse.posterior(x).variance / exact.posterior(x).variance
    assert_close(found.ratios, ratio.detach(), Tolerance(1e-6, 1e-9))
    assert float(found.lowest) <= float(found.median) <= float(found.highest)
    assert float(found.worst) in (float(found.lowest), float(found.highest))
    assert torch.equal(found.arms, diagnostics.dictionary_quality(sparse, size=size, generator=generator(3)).arms)
    assert float(diagnostics.dictionary_quality(exact).worst) == 1.0


def test_dictionary_quality_refuses_what_would_take_hours(monkeypatch):
    monkeypatch.setattr("torchbandits.diagnostics.leverages.LARGEST", 5)
    bandit = told(tb.bkb(rbf(), **COMMON), Problem(1))
    with pytest.raises(ArgumentError, match="stops at 5"):
        diagnostics.dictionary_quality(bandit)


def test_widths_are_those_of_the_theorems():
    problem = Problem(2)
    bandit = told(tb.batch_bkb(rbf(), norm_bound=2.0, **COMMON), problem)
    found = diagnostics.widths(bandit)
    assert list(found.multipliers) == ["in use", "PracticalBKB", "PracticalBBKB", "BKB", "BBKB"]
    assert torch.equal(found.multipliers["in use"], bandit.width)
    assert_close(found.multipliers["PracticalBBKB"], bandit.width, EXACT)
    own = (NOISE_STD, 2.0, COMMON["delta"], LAM)
    for name, width in (("BKB", tb.widths.BKB(*own)), ("BBKB", tb.widths.BBKB(*own))):
        twin = told(tb.batch_bkb(rbf(), norm_bound=2.0, width=width, **COMMON), problem)
        assert_close(found.multipliers[name], twin.width, Tolerance(1e-9, 0.0), what=name)
    best = bandit.best()
    assert_close(found.reward_units["in use"], bandit.width * best.variance.sqrt().squeeze(-1), EXACT)
    assert any("no guarantee holds" in note for note in found.notes)
    assert len(found.table().splitlines()) == 6


def test_widths_of_a_constant_need_the_constants():
    bandit = told(tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON), Problem(2))
    found = diagnostics.widths(bandit)
    assert list(found.multipliers) == ["in use"]
    assert any("give them" in note for note in found.notes)
    more = diagnostics.widths(bandit, norm_bound=1.0, delta=0.1)
    assert list(more.multipliers) == ["in use", "Srinivas", "IGP", "KernelUCB"]
    scaled = tb.gp_bucb(rbf(), norm_bound=1.5, ratio_threshold=2.0, **COMMON)
    bucb = diagnostics.widths(told(scaled, Problem(2)))
    assert_close(2 * bucb.multipliers["IGP"], bucb.multipliers["in use"], EXACT)


def test_noise_is_the_pooled_variance():
    problem = Problem(2)
    bandit = told(tb.gp_ucb(rbf(), **COMMON), problem, pulls=100)
    index = np.random.default_rng(0).integers(problem.a // 2, size=100)
    y = problem.f[index] + problem.noise[:100]
    groups = [y[index == arm] for arm in np.unique(index)]
    degrees = sum(len(group) - 1 for group in groups)
    total = sum(((group - group.mean()) ** 2).sum() for group in groups)
    found = diagnostics.noise(bandit)
    assert float(found.degrees) == degrees
    assert_close(found.estimate, math.sqrt(total / degrees), Tolerance(1e-9, 0.0))
    assert_close(found.lower, math.sqrt(total / stats.chi2.isf(5e-4, degrees)), Tolerance(1e-9, 0.0))
    assert_close(found.upper, math.sqrt(total / stats.chi2.ppf(5e-4, degrees)), Tolerance(1e-9, 0.0))


@OFF_SCALE
@pytest.mark.parametrize("make", [tb.gp_ucb, tb.batch_bkb])
def test_after_the_noise_was_fitted_repeats_are_compared_with_the_fitted_noise(make):
    problem = Problem(2)
    options = {} if make is tb.gp_ucb else {"norm_bound": 1.0, "delta": 0.1}
    bandit = tb.Bandit(make(rbf(), noise_std=0.5, **options), problem.tensor, generator=generator(0))
    index = torch.arange(30).repeat(4)
    bandit.tell(index, problem.rewards(0, index))
    with pytest.warns(DiagnosticWarning, match="noise_std is 0.5: too large"):
        assert diagnostics.noise(bandit).believed == 0.5
    report = bandit.fit_kernel_(noise=True)
    found = diagnostics.noise(bandit)  # must not warn
    assert found.believed == pytest.approx(math.sqrt(report.noise_variance))
    assert found.believed == pytest.approx(NOISE_STD, rel=0.3)
    with pytest.warns(DiagnosticWarning, match="too large"):
        diagnostics.noise(bandit, noise_std=0.5)


def test_history_without_squares_says_nothing_of_the_noise():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), Problem(1).tensor)
    bandit.observe(torch.arange(20), torch.full((20,), 10.0), torch.linspace(0.1, 3, 20))
    found = diagnostics.noise(bandit)  # must not warn, although the spread is zero
    assert any("without squares" in note for note in found.notes)
    assert found.estimate.isnan()
    assert float(found.without_spread) == 200
    # Further pulls have a spread. The pulls of spread zero must not lower the upper end.
    index = torch.arange(20, 40).repeat(3)
    bandit.tell(index, Problem(1).rewards(0, index))
    mixed = diagnostics.noise(bandit)
    assert float(mixed.degrees) == 40
    assert float(mixed.lower) < NOISE_STD < float(mixed.upper)
    assert any("no spread" in note for note in mixed.notes)


def test_noise_without_repeats_or_policy():
    bandit = tb.Bandit(tb.uniform(), Problem(1).tensor)
    bandit.tell(torch.tensor([1, 2]), torch.tensor([0.1, 0.2]))
    found = diagnostics.noise(bandit)
    assert found.believed is None
    assert "no arm was pulled twice" in str(found)


# ------------------------------------------------------------------ every policy, every batch row


@pytest.mark.sweep(7)
@every_policy
def test_every_policy_is_diagnosed_or_says_why(case: Case):
    bandit = case.bandit(12)
    before, warm = everything(bandit), case.keeps_posterior and getattr(bandit.posterior, "factorised", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosticWarning)
        report = diagnostics.diagnose(bandit)
    expected = set() if case.keeps_posterior else {"Effective dimension", "Widths", "Leave one arm out", "Dictionary"}
    if case.name in ("ada_bkb", "bpe", "lb_gp_ucb", "reds", "sup_kernel_ucb"):  # their widths belong to a tree or to phases
        expected = {"Widths"}
    if case.name == "pi_gp_ucb":
        expected = {"Widths", "Leave one arm out", "Dictionary"}
    assert set(report.skipped) == expected
    assert all("bkb" in reason for reason in report.skipped.values())
    for title in [*report.parts, *report.skipped]:
        assert title in str(report)
    after = everything(bandit)
    assert str(before) == str(after)
    assert (case.keeps_posterior and getattr(bandit.posterior, "factorised", None)) == warm
    if case.name == "compressed_gp" and float(bandit.counts.sum()) < 12:
        assert any("kept" in note for part in report.parts.values() for note in part.notes)


def test_cells_are_calibrated_too():
    case = next(case for case in CASES if case.name == "pi_gp_ucb")
    bandit = case.bandit(12)
    index = torch.arange(10)
    found = diagnostics.calibration(bandit, index, PROBLEM.rewards(50, index))
    x = bandit.arms[index]
    marginals = bandit.posterior(x)
    assert_close(found.mean, marginals.mean, EXACT)
    assert_close(found.std, (marginals.variance + NOISE_STD**2).sqrt(), EXACT)
    share = (marginals.variance / found.std.square()).numpy()
    rho = np.sqrt(np.outer(share, share))
    np.fill_diagonal(rho, 1)
    assert_close(found.effective_size, 100 / (rho**2).sum(), Tolerance(1e-9, 0.0))


def test_pending_picks_do_not_count():
    problem = Problem(1)
    bandit = told(tb.gp_bucb(rbf(), ratio_threshold=8.0, **COMMON), problem)
    held = torch.arange(20)
    before = diagnostics.calibration(bandit, held, problem.rewards(90, held)), diagnostics.leave_one_out(bandit)
    bandit.ask(more=10)
    assert bandit.posterior.pending.shape[-1] > 0
    after = diagnostics.calibration(bandit, held, problem.rewards(90, held)), diagnostics.leave_one_out(bandit)
    for first, second in zip(before, after, strict=True):
        assert_close(first.std, second.std, Tolerance(1e-12, 0.0))


@pytest.mark.parametrize("make", [tb.gp_ucb, tb.bkb, tb.compressed_gp], ids=lambda make: make.__name__)
def test_batch_rows_equal_singles(make):
    problems = [Problem(seed) for seed in (1, 2, 3)]
    arms = torch.stack([problem.tensor for problem in problems])
    batch = tb.Bandit(make(rbf(), **COMMON), arms, generator=[generator(seed) for seed in range(3)])
    singles = [tb.Bandit(make(rbf(), **COMMON), p.tensor, generator=generator(seed)) for seed, p in enumerate(problems)]
    counts = torch.tensor([25, 10, 40])
    index = torch.stack([torch.as_tensor(np.random.default_rng(seed).integers(30, size=40)) for seed in range(3)])
    index = torch.where(torch.arange(40) < counts.unsqueeze(-1), index, -1)
    rewards = torch.stack([p.rewards(0, i.clamp_min(0)) for p, i in zip(problems, index, strict=True)])
    batch.tell(index, rewards)
    held = torch.arange(15)
    held_rewards = torch.stack([p.rewards(200, held) for p in problems])

    def records(bandit, y):
        return [
            diagnostics.noise(bandit),
            diagnostics.effective_dimension(bandit),
            diagnostics.dictionary_quality(bandit, size=20),
            diagnostics.widths(bandit, norm_bound=1.0, delta=0.1),
            diagnostics.leave_one_out(bandit),
            diagnostics.calibration(bandit, held, y),
        ]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosticWarning)
        together = records(batch, held_rewards)
        for row, single in enumerate(singles):
            single.tell(index[row, : counts[row]], rewards[row, : counts[row]])
            for mine, own in zip(together, records(single, held_rewards[row]), strict=True):
                for name, value in vars(own).items():
                    other = getattr(mine, name)
                    pairs = [(value, other)] if isinstance(value, torch.Tensor) else []
                    pairs += [(value[k], other[k]) for k in value] if isinstance(value, dict) else []
                    for left, right in pairs:
                        right = right if name == "arms" else right[row]
                        right = right[..., : left.shape[-1]] if left.dim() else right
                        assert_close(right.nan_to_num(-7.0), left.nan_to_num(-7.0), Tolerance(1e-6, 1e-8), what=name)
        assert all(str(record) for record in together)
        assert str(diagnostics.diagnose(batch))


def test_a_warning_names_the_batch_row():
    problems = [Problem(1, noise_std=0.1), Problem(1, noise_std=1.0)]
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), problems[0].tensor, generator=[generator(0), generator(1)])
    index = torch.arange(20).repeat(4)
    bandit.tell(index.expand(2, -1), torch.stack([p.rewards(0, index) for p in problems]))
    with pytest.warns(DiagnosticWarning, match=r"batch row 1 \(1 of 2 rows\): repeated pulls show"):
        diagnostics.noise(bandit)


@pytest.mark.parametrize("make", [tb.gp_ucb, tb.bkb], ids=lambda make: make.__name__)
def test_points_from_outside_the_arms_count(make):
    """Rewards told as points have the same weight as rewards of arms at the same positions."""
    problem = Problem(2)
    index = torch.arange(30)
    counts, sums, squares = (torch.full((30,), 2.0), 2 * problem.rewards(0, index), torch.full((30,), 9.0))
    options = COMMON | {"width": tb.widths.Constant(2.0)}  # other widths depend on the number of arms
    by_index = tb.Bandit(make(rbf(), **options), problem.tensor, generator=generator(1))
    by_index.observe(index, counts, sums, squares)
    by_points = tb.Bandit(make(rbf(), **options), problem.tensor[40:], generator=generator(1))
    by_points.observe(problem.tensor[:30], counts, sums, squares)
    for diagnostic in (diagnostics.noise, diagnostics.effective_dimension, diagnostics.widths, diagnostics.leave_one_out):
        one, other = quietly(diagnostic, by_index), quietly(diagnostic, by_points)
        for name, value in vars(one).items():
            if isinstance(value, torch.Tensor):
                assert_close(getattr(other, name), value, Tolerance(1e-6, 1e-8), what=name)
    assert by_points.posterior.factorised == by_index.posterior.factorised


def test_masked_places_and_float32_arms():
    problem = Problem(2)
    bandit = told(tb.gp_ucb(rbf(), **COMMON), problem)
    index, y = torch.tensor([4, -1, 9, -1]), torch.tensor([0.1, math.nan, 0.3, math.inf], dtype=torch.float64)
    masked = diagnostics.calibration(bandit, index, y)
    plain = diagnostics.calibration(bandit, index[[0, 2]], y[[0, 2]])
    assert torch.equal(masked.coverage, plain.coverage)
    assert_close(masked.effective_size, plain.effective_size, EXACT)
    assert_close(masked.log_density, plain.log_density, EXACT)
    assert masked.residuals[1].isnan()
    single = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), problem.tensor.float())
    single.tell(torch.arange(40), problem.rewards(0, torch.arange(40)))
    assert diagnostics.diagnose(single, held_out=(problem.tensor.float()[:9], problem.rewards(90, torch.arange(9)))).parts


@OFF_SCALE
def test_a_warning_points_at_its_caller():
    bandit, held, rewards = played(rbf(3.0), 0.1, 0)
    for run in (diagnostics.calibration, lambda *held_out: diagnostics.diagnose(bandit, held_out=held_out[1:])):
        with pytest.warns(DiagnosticWarning) as caught:
            run(bandit, held, rewards)
        assert {w.filename for w in caught} == {__file__}


# ------------------------------------------------------------------ what it refuses


def test_nothing_told_is_refused():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), Problem(1).tensor)
    for run in (diagnostics.diagnose, diagnostics.noise, diagnostics.leave_one_out, diagnostics.widths):
        with pytest.raises(StateError, match="tell rewards"):
            run(bandit)


def test_policies_without_a_posterior_are_refused_by_name():
    bandit = tb.Bandit(tb.epsilon_greedy(), Problem(1).tensor)
    bandit.tell(torch.tensor([1, 2]), torch.tensor([0.1, 0.2]))
    with pytest.raises(UnsupportedError, match="gp_ucb, bkb, batch_bkb"):
        diagnostics.calibration(bandit, torch.tensor([1]), torch.tensor([0.1]), noise_std=0.1)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_bad_input_is_refused():
    bandit = told(tb.gp_ucb(rbf(), **COMMON), Problem(1))
    one, y = torch.tensor([1]), torch.tensor([0.1])
    for index, rewards, options, error in (
        (torch.tensor([99]), y, {}, ArmIndexError),
        (one, torch.tensor([math.nan]), {}, NonFiniteError),
        (one, torch.tensor([0.1, 0.2]), {}, ShapeError),
        (torch.tensor([1, 2, 3]), y, {}, ShapeError),
        (torch.rand(3, 2), y, {}, ShapeError),
        (-one, y, {}, ArgumentError),
        (torch.rand(3, 5), y, {}, ShapeError),
        (torch.full((1, 2), math.inf), y, {}, NonFiniteError),
        (one[:0], y[:0], {}, ArgumentError),
        (one, y, {"levels": (0.5, 1.0)}, ArgumentError),
        (one, y, {"levels": ()}, ArgumentError),
        (one, y, {"noise_std": -1.0}, ArgumentError),
        (one, y, {"noise_std": math.nan}, ArgumentError),
    ):
        with pytest.raises(error):
            diagnostics.calibration(bandit, index, rewards, **options)
    with pytest.raises(ShapeError, match="indices of a bandit"):
        diagnostics.calibration(bandit.posterior, one, y)
    with pytest.raises(ArgumentError, match="bandit or a posterior"):
        diagnostics.calibration(None, one, y)
    with pytest.raises(ArgumentError, match="Bandit"):
        diagnostics.noise(None)
    for options in ({"size": 0}, {"size": 1.5}):
        with pytest.raises(ArgumentError, match="size"):
            diagnostics.dictionary_quality(bandit, **options)
    with pytest.raises(ArgumentError, match="noise_std"):
        diagnostics.noise(bandit, noise_std=-0.1)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_points_may_be_lists_and_arrays_as_indices_may():
    bandit, problem = told(tb.gp_ucb(rbf(), **COMMON), Problem(1)), Problem(1)
    index, y = torch.tensor([1, 30, 7]), torch.tensor([0.1, 0.2, 0.3])
    expected = quietly(diagnostics.calibration, bandit, index, y)
    points = problem.tensor[index]
    for where in (points, points.tolist(), points.numpy(), index.tolist(), index.numpy()):
        found = quietly(diagnostics.calibration, bandit, where, y.tolist())
        torch.testing.assert_close(found.mean, expected.mean)
        torch.testing.assert_close(found.residuals, expected.residuals, rtol=1e-6, atol=1e-6)


def test_several_outcomes_are_diagnosed_as_batch_rows_if_their_noise_is_one():
    problem, index = Problem(1), torch.arange(40).repeat(2) % 20
    rewards = torch.stack([problem.rewards(0, index), problem.rewards(80, index)], dim=-1)

    def outcomes(*models: tb.Policy) -> tb.OutcomeBandit:
        bandit = tb.OutcomeBandit(tb.outcomes.pareto(dict(zip(("a", "b"), models, strict=True))), problem.tensor)
        bandit.tell(index, rewards)
        return bandit

    model = tb.gp_ucb(rbf(), **COMMON)
    report = quietly(diagnostics.diagnose, outcomes(model, model))
    singles = []
    for row in range(2):
        single = tb.Bandit(model, problem.tensor, generator=generator(0))
        single.tell(index, rewards[:, row])
        singles.append(quietly(diagnostics.diagnose, single))
    for title, name in (("Noise", "estimate"), ("Leave one arm out", "residuals"), ("Effective dimension", "misfit")):
        own = torch.stack([getattr(single.parts[title], name) for single in singles])
        torch.testing.assert_close(getattr(report.parts[title], name), own, rtol=1e-6, atol=1e-8)
    assert report.parts["Noise"].believed == NOISE_STD
    loud = tb.gp_ucb(rbf(), **COMMON | {"noise_std": 2 * NOISE_STD})
    for diagnostic in (diagnostics.diagnose, diagnostics.noise, diagnostics.leave_one_out):
        with pytest.raises(UnsupportedError, match="Bandit of each outcome's model"):
            diagnostic(outcomes(model, loud))


# ------------------------------------------------------------------ figure and example


def test_the_figure_shows_both_panels(tmp_path):
    bandit, held, rewards = played(rbf(0.3), 0.1, 0)
    found = diagnostics.calibration(bandit, held, rewards)
    figure = found.figure()
    figure.savefig(tmp_path / "calibration.png")
    assert (tmp_path / "calibration.png").stat().st_size > 10_000
    left, right = figure.axes
    assert "fraction" in left.get_xlabel()
    assert "no unit" in right.get_xlabel()
    with pytest.raises(ArgumentError, match="batch rows"):
        found.figure((0,))


def test_without_matplotlib_only_the_figure_is_missing(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    bandit, held, rewards = played(rbf(0.3), 0.1, 0)
    found = diagnostics.calibration(bandit, held, rewards)
    with pytest.raises(UnsupportedError, match=r"matplotlib.*torchbandits\[experiments\]"):
        found.figure()


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example = textwrap.dedent("    import" + inspect.getdoc(diagnostics).partition("    import")[2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(example, {})
    assert {w.category for w in caught} == {DiagnosticWarning}
    assert any("too narrow" in str(w.message) for w in caught)
    assert "Held-out rewards" in capsys.readouterr().out
    assert (tmp_path / "calibration.png").exists()


def test_records_are_frozen():
    found = diagnostics.noise(told(tb.gp_ucb(rbf(), **COMMON), Problem(1)))
    with pytest.raises(AttributeError):
        found.estimate = torch.zeros(())
    assert copy.copy(found).estimate is found.estimate


# ------------------------------------------------------------------ weights, units, small noise, boxes


def test_nothing_is_said_of_the_noise_where_rewards_count_with_weights():
    arms = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)
    index = torch.arange(5).repeat(8)
    rewards = torch.sin(arms[index, 0]) + 0.2 * torch.randn(40, generator=generator(0), dtype=torch.float64)
    bandit = tb.Bandit(tb.gp_ucb(rbf(), noise_std=0.1), arms, generator=generator(0))
    bandit.tell(index, rewards, noise_var=torch.full((40,), 0.04))
    record = diagnostics.noise(bandit)
    assert not record.warnings
    assert float(record.degrees) == 0
    assert record.notes == (
        "rewards count with weights (noise_var=, forgetting or robust), so that nothing is said of noise_std",
    )


def scaled_up(bandit: tb.Bandit, pulls: int = 90) -> tuple[torch.Tensor, torch.Tensor]:
    """Tell a bandit of `auto` rewards around 1,000, some arms twice, and return held-out rewards."""
    arms, g = bandit.arms, generator(3)
    order = torch.randperm(len(arms), generator=g)
    f = 1000 + 50 * torch.sin(4 * arms[:, 0]) + 30 * arms[:, 1]
    told = torch.cat([order[:pulls], order[: pulls // 2]])
    bandit.tell(told, f[told] + torch.randn(len(told), generator=g, dtype=torch.float64))
    rest = order[pulls:]
    return rest, f[rest] + torch.randn(len(rest), generator=g, dtype=torch.float64)


def test_predictions_of_auto_are_judged_in_its_units_and_told_in_those_of_the_rewards():
    arms = torch.rand(200, 2, generator=generator(1), dtype=torch.float64)
    bandit = tb.Bandit(tb.auto(), arms, generator=generator(0))
    index, rewards = scaled_up(bandit)
    held, left = diagnostics.calibration(bandit, index, rewards), diagnostics.leave_one_out(bandit)
    for record in (held, left):
        assert not record.warnings
        assert 0.3 < float(record.mean_square) < 2
        assert 900 < float(record.mean.mean()) < 1100
        assert 0.5 < float(record.std.median()) < 20
    assert float((held.mean - rewards).abs().median()) < 3
    widths = diagnostics.widths(bandit)
    deviation = float(bandit.best().variance.sqrt())
    assert float(widths.std) == pytest.approx(deviation, rel=1e-6)
    noise = diagnostics.noise(bandit)
    assert noise.believed is None
    assert 0.7 < float(noise.estimate) < 1.4


@pytest.mark.parametrize("noise_std", [1e-3, 1e-4, 1e-5])
def test_others_explain_an_arm_under_tiny_noise_too(noise_std: float):
    arms = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
    policy = tb.igp_ucb(rbf(0.06), noise_std=noise_std, regularization=noise_std**2)
    bandit = tb.Bandit(policy, arms, generator=generator(0))
    bandit.tell(torch.arange(20), torch.sin(5 * arms[:, 0]))
    record = diagnostics.effective_dimension(bandit)
    assert not record.warnings
    assert float(record.from_others) == pytest.approx(0.928, abs=0.002)


def test_a_box_has_no_width_that_counts_its_arms():
    box = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    bandit = tb.Bandit(tb.igp_ucb(rbf(), noise_std=0.1, delta=0.1), bounds=box, generator=generator(0))
    for _ in range(3):
        selection = bandit.ask()
        bandit.tell(selection, torch.sin(3 * selection.points[:, 0]))
    assert "Srinivas" not in diagnostics.widths(bandit).multipliers
    assert "IGP" in diagnostics.widths(bandit).multipliers
