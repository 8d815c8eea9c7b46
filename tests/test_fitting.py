"""Kernel fits: they recover the truth, never lower the evidence, are robust to outliers, and update the whole state."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from oracles_evidence import dense_log_evidence, graph_collapsed_evidence
from problems import BOUNDED, COMMON, NOISE_STD, OFF_SCALE, Problem, generator, rbf

import torchbandits as tb
from torchbandits import errors
from torchbandits.fitting import climb, degeneracy, fit_kernel_
from torchbandits.kernels import kernel_matrix
from torchbandits.posteriors import GaussianProcess
from torchbandits.posteriors.averages import Averages
from torchbandits.testing.play import differences

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")

NOISE = NOISE_STD**2


def drawn(seed: int, lengthscale: Any, u: int = 200, d: int = 2, scale: float = 1.0, pulls: int = 1) -> tuple[np.ndarray, ...]:
    """Points and rewards of a draw of f from the prior, `u x d` and `u x pulls`."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(u, d))
    K = oracles.rbf(np.asarray(lengthscale), scale)(x, x)
    f = np.linalg.cholesky(K + 1e-9 * np.eye(u)) @ rng.normal(size=u)
    return x, f[:, None] + NOISE_STD * rng.normal(size=(u, pulls))


def posterior_of(kernel: gpytorch.kernels.Kernel, x: np.ndarray, y: np.ndarray, **options: Any) -> GaussianProcess:
    posterior = GaussianProcess(kernel, options.pop("regularization", NOISE), dim=x.shape[-1], **options)
    points, rewards = torch.as_tensor(x), torch.as_tensor(y)
    rows = posterior.append_(points, torch.ones(len(x), dtype=torch.bool))
    ones = torch.ones(len(x), dtype=torch.float64)
    posterior.add_(rows, y.shape[1] * ones, rewards.sum(-1), rewards.square().sum(-1))
    return posterior


def ard(lengthscales: list[float], outputscale: float = 1.0) -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=len(lengthscales))).double()
    kernel.base_kernel.lengthscale = torch.tensor(lengthscales, dtype=torch.float64)
    kernel.outputscale = torch.tensor(outputscale, dtype=torch.float64)
    return kernel


def lengthscale_of(posterior: GaussianProcess) -> torch.Tensor:
    kernel = posterior.kernel
    return getattr(kernel, "base_kernel", kernel).lengthscale.flatten()


# ------------------------------------------------------------------------- getting home


@pytest.mark.sweep(4)
@pytest.mark.parametrize("misfit", [False, True])
@pytest.mark.parametrize("wrong", [0.1, 0.2, 1.0, 5.0, 10.0])
@pytest.mark.parametrize("seed", range(3))
def test_from_a_wrong_lengthscale_the_fit_gets_home(seed: int, wrong: float, misfit: bool):
    x, y = drawn(seed, 0.3)
    posterior = posterior_of(rbf(0.3 * wrong), x, y)
    report = fit_kernel_(posterior, misfit=misfit)
    assert 0.3 / 1.2 < float(lengthscale_of(posterior)) < 0.3 * 1.2
    assert bool(report.accepted)
    assert float(report.after) > float(report.before)
    K, found = oracles.rbf(float(lengthscale_of(posterior)))(x, x), float(report.misfit)
    expected = dense_log_evidence(K, y[:, 0], NOISE + found) - 0.5 * math.log1p(found / NOISE)
    assert float(report.after) == pytest.approx(expected, rel=1e-7)
    assert found < (0.2 * NOISE if misfit else 1e-300)
    assert int(report.left_out) == float(report.jitter) == 0


@pytest.mark.sweep(1)
@pytest.mark.parametrize("wrong", [0.1, 10.0])
def test_a_lengthscale_a_feature_and_the_scale(wrong: float):
    x, y = drawn(0, [0.2, 0.6, 2.0], u=300, d=3, scale=4.0)
    found = []
    for start in (ard([0.2, 0.6, 2.0], 4.0), ard([0.5 * wrong] * 3)):
        posterior = posterior_of(start, x, y)
        fit_kernel_(posterior, max_iterations=200)
        found.append(torch.cat([lengthscale_of(posterior), posterior.kernel.outputscale.reshape(1)]))
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0)
    assert bool(((found[0][:2] / torch.tensor([0.2, 0.6])).log().abs() < math.log(1.3)).all())


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("base", [gpytorch.kernels.RBFKernel, gpytorch.kernels.MaternKernel])
def test_a_fit_by_the_bound_is_that_of_automatic_differentiation(base: Any, noise: bool, monkeypatch: pytest.MonkeyPatch):
    x, y = drawn(1, [0.3, 0.8, 2.0], u=90, d=3, scale=2.0)
    found, calls = [], list[int]()

    def by_graph(kernel: Any, averages: Averages, noise: torch.Tensor, dictionary: Any, misfit: Any) -> tuple[Any, float]:
        calls.append(len(dictionary))
        x, spread = averages.points, noise / averages.weights + misfit
        K_mu, diagonal = kernel_matrix(kernel, x[dictionary], x), kernel(x, diag=True)
        return averages.within(noise) + graph_collapsed_evidence(K_mu, diagonal, spread, averages.residuals, dictionary), 0.0

    for graph in (False, True):
        if graph:
            monkeypatch.setattr(climb, "collapsed_evidence", by_graph)
        posterior = posterior_of(gpytorch.kernels.ScaleKernel(base(ard_num_dims=3)).double(), x, y)
        report = fit_kernel_(posterior, noise=noise, max_exact=50, dictionary_size=40)
        assert float(report.jitter) == 0
        fitted = torch.cat([lengthscale_of(posterior), posterior.kernel.outputscale.reshape(1)])
        found.append((fitted, report.after, torch.tensor(report.noise_variance)))
    assert calls
    assert set(calls) == {40}
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=0)


def test_each_kernel_has_its_dictionary_chosen_once(monkeypatch: pytest.MonkeyPatch):
    kernels, greedy = list[tuple[float, ...]](), climb.greedy_dictionary

    def counted(kernel: Any, *options: Any) -> torch.Tensor:
        kernels.append(tuple(kernel.base_kernel.lengthscale.flatten().tolist()))
        return greedy(kernel, *options)

    monkeypatch.setattr(climb, "greedy_dictionary", counted)
    x, y = drawn(1, [0.3, 0.8], u=60)
    fit_kernel_(posterior_of(ard([0.5, 0.5]), x, y), max_exact=50, dictionary_size=20)
    # The current kernel, that with its lengthscales times four factors, and the best one found.
    assert len(kernels) == len(set(kernels)) == 6


@pytest.mark.parametrize("wrong", [0.01, 100.0])
@pytest.mark.parametrize(("reward", "feature"), [(1e4, 1e5), (1e4, 1.0), (1e-4, 1e5), (1e2, 1e-3)])
def test_a_fit_is_the_same_in_any_units(reward: float, feature: float, wrong: float):
    x, y = drawn(0, [0.2, 0.6], u=80)
    found = []
    for a, b in ((1.0, 1.0), (reward, feature)):
        posterior = posterior_of(ard([0.5 * b] * 2, wrong * a**2), b * x, a * y, regularization=a**2 * NOISE)
        report = fit_kernel_(posterior)
        fitted = torch.cat([lengthscale_of(posterior) / b, posterior.kernel.outputscale.reshape(1) / a**2])
        found.append((fitted, report.after + 80 * math.log(a)))
    # An ascent ends after thirty iterations.
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0.06, atol=0)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=0.1)


def in_interval(a: float, b: float) -> gpytorch.kernels.Kernel:
    own, scale = (gpytorch.constraints.Interval(0.01 * unit, 1000 * unit) for unit in (b, a**2))
    base = gpytorch.kernels.RBFKernel(ard_num_dims=2, lengthscale_constraint=own)
    return gpytorch.kernels.ScaleKernel(base, outputscale_constraint=scale).double()


def by_logarithms(a: float, b: float) -> gpytorch.kernels.Kernel:
    base = gpytorch.kernels.RBFKernel(ard_num_dims=2, lengthscale_constraint=positive_by_exp())
    return gpytorch.kernels.ScaleKernel(base, outputscale_constraint=positive_by_exp()).double()


def positive_by_exp() -> gpytorch.constraints.Positive:
    return gpytorch.constraints.Positive(transform=torch.exp, inv_transform=torch.log)


def product(a: float, b: float) -> gpytorch.kernels.Kernel:
    one, other = (gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(active_dims=[j])) for j in range(2))
    return (one * other).double()


@pytest.mark.parametrize(("reward", "feature"), [(1e4, 1.0), (1.0, 1e5), (1e4, 1e5)])
@pytest.mark.parametrize("make", [in_interval, by_logarithms, product])
def test_units_suit_constraints_and_products(make: Any, reward: float, feature: float):
    x, y = drawn(0, [0.2, 0.6], u=80)
    found = []
    for a, b in ((1.0, 1.0), (reward, feature)):
        kernel = make(a, b)
        for part, _ in degeneracy.lengthscales(kernel):
            part.lengthscale = 0.5 * b
        # Of a product, the first scale has the units of the rewards, and the second has none.
        first = kernel.kernels[0] if hasattr(kernel, "kernels") else kernel
        first.outputscale = 20 * a**2
        posterior = posterior_of(kernel, b * x, a * y, regularization=a**2 * NOISE)
        report = fit_kernel_(posterior)
        lengthscales = torch.cat([part.lengthscale.flatten() / b for part, _ in degeneracy.lengthscales(posterior.kernel)])
        found.append((lengthscales.detach(), report.after + 80 * math.log(a)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0.06, atol=0)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=0.1)


@pytest.mark.parametrize("wrong", [0.1, 1.0, 10.0])
def test_what_no_smooth_function_explains_leaves_the_lengthscale_alone(wrong: float):
    """A smooth function plus an independent offset of each point, three times the noise."""
    x, y = drawn(7, 0.5, u=150, pulls=2)
    y = y + 3 * NOISE_STD * np.random.default_rng(0).normal(size=(150, 1))
    found = []
    for misfit in (True, False):
        posterior = posterior_of(rbf(0.5 * wrong), x, y)
        report = fit_kernel_(posterior, misfit=misfit)
        found.append(float(lengthscale_of(posterior)))
        assert float(report.misfit) == pytest.approx(9 * NOISE * misfit, rel=0.4)
    assert 0.5 / 1.6 < found[0] < 0.5 * 1.6
    assert found[1] < 0.5 * found[0]


@pytest.mark.exhaustive
def test_the_bound_of_many_points_finds_what_the_evidence_finds():
    x, y = drawn(1, 0.3, u=400)
    found = []
    for options in ({}, {"max_exact": 100, "dictionary_size": 150}):
        for wrong in (0.2, 5.0):
            posterior = posterior_of(rbf(0.3 * wrong), x, y)
            fit_kernel_(posterior, **options)
            found.append(float(lengthscale_of(posterior)))
    assert found == pytest.approx([found[0]] * 4, rel=0.02)


def test_a_fit_never_does_worse_and_ends():
    """A second fit finds no improvement and keeps the same kernel object."""
    x, y = drawn(2, 0.3, u=80)
    for options in ({}, {"max_exact": 10, "dictionary_size": 20}):
        posterior = posterior_of(rbf(0.25), x, y)
        for number in range(4):
            kernel = posterior.kernel
            report = fit_kernel_(posterior, **options)
            assert float(report.after) >= float(report.before)
            assert (posterior.kernel is kernel) == (not bool(report.accepted))
            last = report.accepted if number else torch.tensor(False)
        assert not bool(last)


def test_priors_constraints_and_parameters_that_are_held():
    x, y = drawn(3, 0.3, u=60)

    def fitted(change: Any) -> tuple[GaussianProcess, tb.FitReport]:
        kernel = ard([1.0, 1.0], 0.4)
        change(kernel)
        posterior = posterior_of(kernel, x, y)
        return posterior, fit_kernel_(posterior, misfit=False)

    def held(kernel: Any) -> None:
        kernel.raw_outputscale.requires_grad_(False)

    def interval(kernel: Any) -> None:
        kernel.base_kernel.register_constraint("raw_lengthscale", gpytorch.constraints.Interval(0.8, 4.0))
        kernel.base_kernel.lengthscale = 1.0

    def prior(kernel: Any) -> None:
        belief = gpytorch.priors.NormalPrior(1.5, 0.001)
        kernel.base_kernel.register_prior("lengthscale_prior", belief, "lengthscale")

    free = fitted(lambda kernel: None)[0]
    assert float(fitted(held)[0].kernel.outputscale) == pytest.approx(0.4)
    assert float(free.kernel.outputscale) > 0.6
    assert bool((lengthscale_of(free) < 0.6).all())
    bounded = lengthscale_of(fitted(interval)[0])
    assert bool(((bounded >= 0.8) & (bounded < 0.9)).all())
    believed, report = fitted(prior)
    torch.testing.assert_close(lengthscale_of(believed), torch.full((2,), 1.5).double(), rtol=0.01, atol=0)
    own = believed.kernel.base_kernel
    log_prior = own.lengthscale_prior.log_prob(own.lengthscale).sum()
    K = oracles.rbf(lengthscale_of(believed).numpy(), float(believed.kernel.outputscale))(x, x)
    expected = dense_log_evidence(K, y[:, 0], NOISE) + float(log_prior)
    assert float(report.after) == pytest.approx(expected, abs=1e-5)  # the terms of the sum are in the hundreds


def test_few_points_and_kernels_without_parameters():
    x, y = drawn(3, 0.3, u=4)
    posterior = posterior_of(rbf(0.25), x, y)
    report = fit_kernel_(posterior)
    assert not bool(report.accepted), "four points say nothing of a kernel"
    assert report.reasons == ("4 distinct points are too few, a fit takes 5",)
    with pytest.raises(errors.ArgumentError, match="requires a gradient"):
        fit_kernel_(posterior_of(rbf(0.25).requires_grad_(False), x, y))
    for wrong in (
        {"max_exact": 0},
        {"dictionary_size": 1.5},
        {"restarts": (0.0,)},
        {"max_iterations": -1},
        {"noise_share": 0.0},
    ):
        with pytest.raises(errors.ArgumentError, match=next(iter(wrong))):
            fit_kernel_(posterior, **wrong)


# ------------------------------------------------------------------------- degenerate fits


def few(seed: int, told: int, d: int, noise_part: float, signal: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """80 arms, their mean rewards with a spread of 4, and the noise of `told` pulls and of later ones."""
    g = generator(seed)
    arms = torch.rand(80, d, generator=g, dtype=torch.float64)
    K = torch.exp(-0.5 * (torch.cdist(arms, arms) / (0.4 * math.sqrt(d))) ** 2) + 1e-8 * torch.eye(80, dtype=torch.float64)
    f = torch.linalg.cholesky(K) @ torch.randn(80, generator=g, dtype=torch.float64)
    noise = noise_part * 4.0 * torch.randn(told + 32, generator=g, dtype=torch.float64)
    return arms, 4.0 * (f - f.mean()) / f.std() * signal, noise


def distinct_picks(bandit: tb.Bandit, f: torch.Tensor, noise: torch.Tensor) -> int:
    """Distinct arms among 32 picks, eight a day."""
    picks = []
    for day in noise.reshape(4, 8):
        selection = bandit.ask(more=8)
        picks += selection.index.tolist()
        bandit.tell(selection, f[selection.index] + day)
    return len(set(picks))


@pytest.mark.sweep(3)
@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")
@pytest.mark.parametrize(
    ("told", "d", "noise_part", "signal", "fits_noise", "believed"),
    [
        (8, 1, 1.0, False, True, 0.5),
        (8, 1, 1.0, True, True, 0.5),
        (8, 1, 1.0, False, False, 0.5),
        (8, 2, 1.0, False, True, 0.5),
        (8, 8, 0.1, True, False, 8.0),
        (8, 8, 1.0, False, True, 0.5),
        (20, 2, 1.0, False, False, 8.0),
        (40, 4, 1.0, False, False, 8.0),
    ],
)
def test_after_a_fit_to_few_rewards_the_bandit_explores(
    told: int, d: int, noise_part: float, signal: bool, fits_noise: bool, believed: float
):
    """Fits by the evidence alone left one to three arms of 80 in such runs."""
    for seed in range(3):
        arms, f, noise = few(seed, told, d, noise_part, signal)
        policy = tb.gp_ucb(
            ard([0.5 * math.sqrt(d)] * d), noise_std=believed, width=tb.widths.Constant(2.0), prior_mean="estimate"
        )
        bandit = tb.Bandit(policy, arms)
        index = torch.randperm(80, generator=generator(seed))[:told]
        bandit.tell(index, f[index] + noise[:told])
        report = bandit.fit_kernel_(noise=fits_noise)
        assert bool(report.regularized) <= bool(report.accepted)
        assert float(report.after) >= float(report.before)
        assert credibility_of(bandit, report) >= (1 if believed < 4 else 0.5)
        assert distinct_picks(bandit, f, noise[told:]) >= 5


def credibility_of(bandit: tb.Bandit, report: tb.FitReport) -> float:
    statistics = bandit.posterior.statistics
    averages, _ = Averages.told(statistics, (), "estimate", 1e9)
    return degeneracy.credibility(bandit.posterior.kernel, averages, report.noise_variance)


def test_a_degenerate_fit_is_warned_of_once_with_its_reason():
    x, y = np.random.default_rng(5).uniform(size=(8, 2)), np.random.default_rng(6).normal(size=(8, 1))
    posterior = posterior_of(ard([0.5, 0.5]), x, y, regularization=25.0)
    with pytest.warns(
        errors.DiagnosticWarning, match=r"degenerate: noise alone explains .* smaller noise_std.* noise=True"
    ) as caught:
        report = fit_kernel_(posterior)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert report.reasons[0].startswith("noise alone explains the 8 average rewards")
    assert bool(report.accepted) == bool(report.regularized)


def test_a_degenerate_fit_on_schedule_is_said_to_be_made_again():
    x, y = np.random.default_rng(5).uniform(size=(8, 2)), np.random.default_rng(6).normal(size=8)
    bandit = tb.Bandit(tb.gp_ucb(ard([0.5, 0.5]), noise_std=5.0, refit_every=8), torch.from_numpy(x))
    with pytest.warns(errors.DiagnosticWarning, match="degenerate") as caught:
        bandit.tell(torch.arange(8), y)
    said = [str(one.message) for one in caught if "degenerate" in str(one.message)]
    assert len(said) == 1
    assert (
        "until it is fitted again by itself, at the next multiple of 8 rewards. What to do if this comes again: the no"
        in said[0]
    )
    assert said[0].endswith("give a smaller noise_std.")
    assert "refit_every" not in said[0]


def test_rewards_that_are_all_equal_leave_the_kernel():
    x = np.random.default_rng(5).uniform(size=(8, 2))
    posterior = posterior_of(ard([0.5, 0.5]), x, np.full((8, 1), 3.0), prior_mean="estimate")
    kernel = posterior.kernel
    report = fit_kernel_(posterior, noise=True)
    assert not bool(report.accepted)
    assert report.reasons == ("the average rewards are all equal, and say nothing of a kernel",)
    assert posterior.kernel is kernel
    assert report.noise_variance == NOISE


@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")
def test_much_pure_noise_does_not_collapse_the_kernel():
    """The evidence rightly finds no signal, but the bandit must keep exploring."""
    regularized = []
    for seed in range(4):
        x, y = np.random.default_rng(seed).uniform(size=(100, 2)), np.random.default_rng(9 + seed).normal(size=(100, 1))
        posterior = posterior_of(ard([0.5, 0.5]), x, y)
        report = fit_kernel_(posterior, noise=True)
        averages, _ = Averages.told(posterior.statistics, (), 0.0, 1e9)
        assert degeneracy.credibility(posterior.kernel, averages, report.noise_variance) >= 1
        assert report.noise_variance == pytest.approx(1.0, rel=0.5)
        regularized.append(bool(report.regularized))
    assert any(regularized)


def test_what_makes_a_kernel_degenerate():
    x, y = np.random.default_rng(5).uniform(size=(30, 2)), np.random.default_rng(6).normal(size=(30, 1))
    averages, _ = Averages.told(posterior_of(rbf(), x, y).statistics, (), 0.0, 1.0)

    def reason(kernel: gpytorch.kernels.Kernel, noise_variance: float = 0.01) -> str:
        return degeneracy.degeneracy(kernel, dict(kernel.named_parameters()), averages, noise_variance)

    assert reason(ard([0.3, 0.3])) == ""
    assert reason(ard([0.3, 1e4])) == "", "a feature that does not matter is no defect"
    assert "noise alone" in reason(ard([0.3, 0.3], 1e-5))
    assert "noise alone" in reason(ard([1e4, 1e4])), "constant over the points"
    assert "10 times the extent" in reason(ard([50.0, 50.0], 1e4))
    assert "too short" in reason(ard([0.01, 0.01]))
    assert reason(gpytorch.kernels.ScaleKernel(gpytorch.kernels.LinearKernel()).double()) == ""
    held = ard([0.01, 0.01])
    held.base_kernel.raw_lengthscale.requires_grad_(False)
    assert degeneracy.degeneracy(held, {"raw_outputscale"}, averages, 0.01) == "", "lengthscales that are held are the user's"
    variance = degeneracy.signal_variance(ard([0.3, 0.3]), averages.points).item()
    K = oracles.rbf(0.3)(x, x)
    assert variance == pytest.approx(np.trace(K - K.mean(axis=0)) / 29)


# ------------------------------------------------------------------------- outliers


@pytest.mark.sweep(2)
@pytest.mark.parametrize("wild", [1e6, -1e6, 1e150, 30.0])
@pytest.mark.parametrize("prior_mean", [0.0, "estimate"])
def test_one_wild_reward_among_many(wild: float, prior_mean: float | str):
    found = []
    for reward in (None, wild):
        x, y = drawn(4, 0.3)
        y = y if reward is None else np.where(np.arange(200)[:, None] == 77, reward, y)
        posterior = posterior_of(rbf(0.6), x, y, prior_mean=prior_mean)
        report = fit_kernel_(posterior)
        found.append(float(lengthscale_of(posterior)))
    assert int(report.left_out) == 1
    assert found[0] / 1.5 < found[1] < found[0] * 1.5
    assert float(posterior.statistics.sums[77]) == wild, "only the fit leaves it out"


def test_a_peak_among_few_rewards_is_no_outlier():
    """Costs of a campaign, whose kernel is a guess before the first fit: the largest one was left out."""
    x = np.random.default_rng(3).uniform(size=(6, 2))
    y = np.array([[2.83], [2.18], [2.76], [2.21], [2.31], [4.75]])
    posterior = posterior_of(ard([0.5, 0.5], 0.04), x, y, regularization=4e-4, prior_mean="estimate")
    assert int(fit_kernel_(posterior).left_out) == 0
    assert float(posterior.kernel.outputscale) > 0.5
    wild = posterior_of(ard([0.5, 0.5], 0.04), x, np.where(y > 4, 4750.0, y), regularization=4e-4, prior_mean="estimate")
    assert int(fit_kernel_(wild).left_out) == 1


# ------------------------------------------------------------------------- noise


def test_noise_by_repeated_pulls_and_by_the_evidence():
    for pulls, width in ((3, 1.15), (1, 1.3)):
        x, y = drawn(5, 0.3, pulls=pulls)
        posterior = posterior_of(rbf(0.4), x, y, regularization=4.0)
        report = fit_kernel_(posterior, noise=True, noise_share=0.5)  # λ is twice the noise variance
        assert NOISE / width < report.noise_variance < NOISE * width
        assert posterior.regularization == report.regularization == pytest.approx(2 * report.noise_variance)
        assert 0.3 / 1.2 < float(lengthscale_of(posterior)) < 0.3 * 1.2


def test_no_noise_is_refused_or_found_small():
    x, y = drawn(6, 0.3, u=50)
    twice = np.concatenate([y, y], axis=1)
    posterior = posterior_of(rbf(0.4), x, twice)
    with pytest.raises(errors.NumericalError, match="squares"):
        fit_kernel_(posterior, noise=True)
    assert posterior.regularization == NOISE
    assert float(lengthscale_of(posterior)) == pytest.approx(0.4)


# ------------------------------------------------------------------------- batch rows


def batch_posterior(kernel: gpytorch.kernels.Kernel, sizes: list[int]) -> tuple[GaussianProcess, list[tuple[np.ndarray, ...]]]:
    rows = [drawn(10 + r, ell, u=size, pulls=2) for r, (size, ell) in enumerate(zip(sizes, (0.2, 0.3, 0.5), strict=True))]
    most, mask = max(sizes), torch.arange(max(sizes)) < torch.tensor(sizes).unsqueeze(-1)
    x = torch.stack([torch.as_tensor(np.pad(x, ((0, most - len(x)), (0, 0)))) for x, _ in rows])
    y = torch.stack([torch.as_tensor(np.pad(y, ((0, most - len(y)), (0, 0)))) for _, y in rows])
    posterior = GaussianProcess(kernel, NOISE, dim=2, batch_shape=(3,), prior_mean="estimate")
    where = posterior.append_(x, mask)
    posterior.add_(where, 2.0 * mask, y.sum(-1), y.square().sum(-1))
    return posterior, rows


COMPOSITE = {
    "rbf": lambda: rbf(1.0),
    "scaled ard": lambda: ard([1.0, 1.0]),
    "sum": lambda: (
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(active_dims=(0, 1))) + gpytorch.kernels.MaternKernel(1.5)
    ).double(),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", COMPOSITE)
def test_a_batch_row_is_fitted_as_a_single_one_is(name: str):
    posterior, rows = batch_posterior(COMPOSITE[name](), [60, 25, 40])
    report = fit_kernel_(posterior, rows=torch.tensor([True, True, False]))
    assert report.accepted.tolist() == [True, True, False]
    assert posterior.kernel.batch_shape == (3,)
    together = dict(posterior.kernel.named_parameters())
    for row, (x, y) in enumerate(rows):
        single = posterior_of(COMPOSITE[name](), x, y, prior_mean="estimate")
        own = fit_kernel_(single) if row < 2 else None
        for key, value in single.kernel.named_parameters():
            torch.testing.assert_close(together[key][row], value, rtol=1e-6, atol=1e-8)
        if own is not None:
            assert float(report.after[row]) == pytest.approx(float(own.after), rel=1e-9)
        probe = torch.rand(7, 2, generator=generator(0), dtype=torch.float64)
        marginals, expected = posterior(probe.expand(3, 7, 2)), single(probe)
        torch.testing.assert_close(marginals.mean[row], expected.mean, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(marginals.variance[row], expected.variance, rtol=1e-5, atol=1e-7)
    with pytest.raises(errors.UnsupportedError, match="one bandit per row"):
        fit_kernel_(posterior, noise=True)


# ------------------------------------------------------------------------- in a bandit

PROBLEM, LARGE = Problem(seed=3, a=40), Problem(seed=3, a=1100)
MAKERS = {
    "gp_ucb": lambda k, **o: tb.gp_ucb(k, **COMMON, **o),
    "igp_ucb": lambda k, **o: tb.igp_ucb(k, **BOUNDED, **o),
    "gp_bucb": lambda k, **o: tb.gp_bucb(k, **BOUNDED, **o),
    "bkb": lambda k, **o: tb.bkb(k, **BOUNDED, **o),
    "batch_bkb": lambda k, **o: tb.batch_bkb(k, **BOUNDED, **o),
    "compressed_gp": lambda k, **o: tb.compressed_gp(k, **COMMON, **o),
    "thompson_sampling": lambda k, **o: tb.thompson_sampling(k, **BOUNDED, **o),
    "thompson_nystrom": lambda k, **o: tb.thompson_sampling(k, embedding="nystrom", **BOUNDED, **o),
}


def played(policy: Any, problem: Problem, pulls: int = 40, rows: int = 0) -> tb.Bandit:
    bandit = tb.Bandit(policy, problem.tensor, generator=[generator(r) for r in range(rows)] or generator(7))
    while bool((bandit.pulls < pulls).any()):
        selection = bandit.ask(limit=4)
        told = int(bandit.pulls.max())
        noise = torch.as_tensor(problem.noise[told : told + len(selection)])
        bandit.tell(selection, torch.as_tensor(problem.f)[selection.index.clamp_min(0)] + noise)
    return bandit


@pytest.mark.sweep(2)
@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("problem", [PROBLEM, LARGE], ids=["few", "many"])
@pytest.mark.parametrize("name", MAKERS)
def test_everything_is_relearned_with_the_fitted_kernel(name: str, problem: Problem, rows: int):
    """The table, its diagonal, log det and later steps are those of a state made with the fitted kernel."""
    bandit = played(MAKERS[name](ard([0.1, 0.1])), problem, rows=rows)
    bandit.ask(more=2)
    report = bandit.fit_kernel_()
    assert bool(report.accepted.all())
    state, posterior = bandit.loop.state, copy.deepcopy(bandit.posterior)
    marginals = posterior.set_pending_(posterior.pending_points[..., :0, :], posterior.pending[..., :0])(
        problem.tensor.expand(*bandit.batch_shape, -1, -1)
    )
    for _ in range(3):  # directly after the fit, and after further updates of the table
        torch.testing.assert_close(state.arm_mean(), marginals.mean, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(posterior.regularization * state.arm_leverage(), marginals.variance, rtol=1e-5, atol=1e-9)
        diagonal = posterior.kernel(problem.tensor.expand(*bandit.batch_shape, -1, -1), diag=True)
        torch.testing.assert_close(state.table.prior_diagonal.expand_as(diagonal), diagonal)
        torch.testing.assert_close(state.table.kappa2.expand_as(state.told), diagonal.amax(dim=-1))
        if _ == 0:
            for log_det, factor in ((state.log_det, 1), (state.batched_log_det, 1), (state.batched_log_det_3, 3)):
                torch.testing.assert_close(log_det, factor * posterior.log_det, rtol=1e-8, atol=1e-10)
        selection = bandit.ask(limit=2)
        bandit.tell(selection, torch.as_tensor(problem.f)[selection.index.clamp_min(0)])
        posterior = copy.deepcopy(bandit.posterior)
        marginals = posterior(problem.tensor.expand(*bandit.batch_shape, -1, -1))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", MAKERS)
def test_saved_after_a_fit_it_goes_on_alike(name: str):
    """A state saved after a fit loads into a fresh bandit without a kernel batch shape, and an unfitted state into a fitted
    bandit."""
    for rows in (0, 2):
        policy = MAKERS[name](rbf(0.1))
        bandit, fresh = played(policy, PROBLEM, rows=rows), played(policy, PROBLEM, pulls=2, rows=rows)
        unfitted = bandit.state_dict()
        bandit.fit_kernel_()
        fresh.load_state_dict(bandit.state_dict())
        assert differences(bandit.state_dict(), fresh.state_dict()) == []
        for _ in range(4):
            picks = [b.ask(limit=3) for b in (bandit, fresh)]
            assert torch.equal(picks[0].index, picks[1].index)
            for b in (bandit, fresh):
                b.tell(picks[0], torch.as_tensor(PROBLEM.f)[picks[0].index.clamp_min(0)])
        twin = played(policy, PROBLEM, pulls=2, rows=rows)
        for b in (bandit, twin):
            b.load_state_dict(unfitted)
            assert differences(unfitted, b.state_dict()) == []
        assert torch.equal(bandit.ask(limit=3).index, twin.ask(limit=3).index)


@OFF_SCALE
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_in_a_bandit(dtype: torch.dtype):
    """λ keeps its ratio to the noise variance; marginals, bounds and the saved state follow."""
    policy = tb.gp_ucb(rbf(0.4), noise_std=0.5, regularization=0.5)
    bandits = [tb.Bandit(policy, PROBLEM.tensor.to(dtype), generator=generator(0)) for _ in range(2)]
    bandit, fresh = bandits
    index = torch.arange(20).repeat(4)
    bandit.tell(index, PROBLEM.rewards(0, index))
    report = bandit.fit_kernel_(noise=True)
    assert report.noise_variance == pytest.approx(NOISE, rel=0.4)
    assert bandit.posterior.regularization == report.regularization == pytest.approx(2 * report.noise_variance)
    fresh.load_state_dict(bandit.state_dict())
    assert fresh.posterior.regularization == report.regularization
    std = bandit.posterior(PROBLEM.tensor).variance.sqrt()
    upper = bandit.posterior(PROBLEM.tensor).mean + bandit.width * std
    assert float(policy.bounds(bandit.loop.state)[0]) == pytest.approx(float(upper.max()), rel=1e-4)
    again = bandit.fit_kernel_(noise=True)
    assert again.noise_variance == pytest.approx(report.noise_variance, rel=1e-6)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (tb.uniform(), "gp_ucb"),
        (tb.epsilon_greedy(), "gp_ucb"),
        (tb.pi_gp_ucb(rbf(), nu=1.5, horizon=100), "gp_ucb"),
        (tb.rff_ucb(rbf(), num_features=40), "nystrom"),
        (tb.thompson_sampling(rbf(), embedding="qff"), "nystrom"),
    ],
)
def test_policies_without_a_kernel_to_fit(policy: Any, message: str):
    bandit = played(policy, PROBLEM, pulls=8)
    before = bandit.state_dict()
    with pytest.raises(errors.UnsupportedError, match=message):
        bandit.fit_kernel_()
    assert differences(before, bandit.state_dict()) == []


def test_noise_of_a_compressed_posterior_is_refused():
    bandit = played(MAKERS["compressed_gp"](rbf()), PROBLEM)
    with pytest.raises(errors.UnsupportedError, match="noise_std"):
        bandit.fit_kernel_(noise=True)


class Failure(Exception):
    pass


class FailAt(torch.overrides.TorchFunctionMode):
    def __init__(self, at: float) -> None:
        super().__init__()
        self.at, self.calls = at, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise Failure
        return func(*args, **(kwargs or {}))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["gp_ucb", "batch_bkb", "thompson_sampling"])
def test_a_fit_that_fails_leaves_no_trace(name: str):
    bandit, twin = (played(MAKERS[name](rbf(0.1)), PROBLEM) for _ in range(2))
    before, kernel = copy.deepcopy(bandit.state_dict()), bandit.posterior.kernel
    with FailAt(math.inf) as counting:
        copy.deepcopy(twin).fit_kernel_(noise=True)
    for at in np.linspace(1, counting.calls // 2, 8).astype(int).tolist():
        with pytest.raises(Failure), FailAt(at):
            bandit.fit_kernel_(noise=True)
        assert differences(before, bandit.state_dict()) == []
        assert bandit.posterior.kernel is kernel
    for _ in range(3):
        picks = [b.ask(limit=2).index for b in (bandit, twin)]
        assert torch.equal(*picks)
        for b in (bandit, twin):
            b.tell(b.ask(), PROBLEM.rewards(0, picks[0]))
    assert differences(twin.state_dict(), bandit.state_dict()) == []


# ------------------------------------------------------------------------- refit_every


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["gp_ucb", "igp_ucb", "gp_bucb", "bkb", "batch_bkb", "compressed_gp"])
def test_refitting_every_so_often_is_fitting_by_hand(name: str):
    """Fits happen after the tell in which a row's pulls pass a multiple of `refit_every`."""
    limits = torch.tensor([1, 3])
    bandits = [
        tb.Bandit(MAKERS[name](rbf(0.1), **options), PROBLEM.tensor, generator=[generator(r) for r in range(2)])
        for options in ({"refit_every": 7}, {})
    ]
    for _ in range(12):
        picks = [b.ask(limit=limits) for b in bandits]
        assert torch.equal(picks[0].index, picks[1].index)
        told = bandits[1].pulls
        for b in bandits:
            b.tell(picks[0], torch.as_tensor(PROBLEM.f)[picks[0].index.clamp_min(0)])
        passed = (bandits[1].pulls // 7) > (told // 7)
        if bool(passed.any()):
            bandits[1].policy.refit(bandits[1].loop.state, rows=passed)
    automatic, by_hand = (b.posterior.kernel.lengthscale for b in bandits)
    torch.testing.assert_close(automatic, by_hand)
    assert automatic.shape == (2, 1, 1)
    assert bool((automatic != 0.1).all())


def test_in_a_run_and_what_is_refused():
    environment = tb.environments.Table(PROBLEM.tensor, torch.as_tensor(PROBLEM.f), noise_std=NOISE_STD)
    kernels = []

    def remember(bandit: tb.Bandit, *_: Any) -> None:
        kernels.append(float(bandit.posterior.kernel.lengthscale))

    for _ in range(2):
        tb.run(MAKERS["batch_bkb"](rbf(0.1), refit_every=10), environment, 60, generator=generator(0), callbacks=[remember])
    assert kernels[: len(kernels) // 2] == kernels[len(kernels) // 2 :]
    assert kernels[-1] > 0.2
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(errors.ArgumentError, match="refit_every"):
            tb.gp_ucb(rbf(), refit_every=wrong)


def test_a_kernel_without_a_parameter_to_fit_is_refused_before_the_first_pull():
    with pytest.raises(errors.ArgumentError, match=r"refit_every: the kernel \(RBFKernel\) has no parameter"):
        tb.gp_ucb(rbf().requires_grad_(False), noise_std=0.1, refit_every=50)


@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")  # of fits to few rewards
@pytest.mark.parametrize("name", ["tasks", "periodic", "rq"])
def test_fitted_rows_of_a_kernel_whose_parts_have_several_parameters_are_saved(name: str, tmp_path: Path):
    kernels = gpytorch.kernels
    kernel: kernels.Kernel = {
        "tasks": lambda: kernels.RBFKernel(active_dims=[0]) * tb.TaskKernel(2, active_dims=[1]),
        "periodic": lambda: kernels.ScaleKernel(kernels.PeriodicKernel()),
        "rq": lambda: kernels.ScaleKernel(kernels.RQKernel()),
    }[name]()  # fmt: skip
    policy = tb.gp_ucb(kernel.double(), noise_std=0.1, width=tb.widths.Constant(2.0))
    arms = torch.stack([torch.linspace(0, 1, 20, dtype=torch.float64), torch.arange(20).double() % 2], dim=-1)
    bandit = tb.Bandit(policy, arms, generator=[generator(0), generator(1)], journal=tmp_path / "journal")
    y = torch.stack([torch.sin(5 * arms[:12, 0]), arms[:12, 1] + arms[:12, 0]])
    bandit.observe(torch.arange(12).expand(2, -1), torch.ones(2, 12), y)
    bandit.fit_kernel_(restarts=(1.0,))
    points, expected = arms.expand(2, -1, -1), bandit.posterior(arms.expand(2, -1, -1))
    loaded = tb.Bandit(policy, arms, generator=[generator(2), generator(3)]).load_state_dict(bandit.state_dict())
    bandit.ask()
    assert bandit.journal is not None
    bandit.journal.close()
    resumed = tb.Bandit(policy, arms, generator=[generator(2), generator(3)], journal=tmp_path / "journal")
    for again in (loaded, resumed):
        assert again.posterior.kernel.batch_shape == (2,)
        torch.testing.assert_close(again.posterior(points).mean, expected.mean)
    assert torch.equal(loaded.ask().index, bandit.ask().index)
    assert torch.equal(resumed.ask().index, bandit.ask().index)
    assert resumed.journal is not None
    resumed.journal.close()
