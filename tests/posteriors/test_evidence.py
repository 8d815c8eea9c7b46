"""The evidence from sums equals GPyTorch's and the oracle's on single pulls; its gradients and bounds; singular kernels."""

from __future__ import annotations

import dataclasses
import gc
import math
import weakref
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from oracles import tanimoto
from oracles_evidence import dense_collapsed_evidence, dense_log_evidence, graph_collapsed_evidence, summed, written_out
from problems import KERNELS, kernel_pair

from torchbandits.errors import NumericalError
from torchbandits.kernels import kernel_matrix
from torchbandits.linalg import cholesky
from torchbandits.posteriors import evidence
from torchbandits.posteriors.averages import Averages, plausible, pooled_noise
from torchbandits.posteriors.evidence import Workspace, collapsed_evidence, greedy_dictionary, log_evidence
from torchbandits.random_effects import with_effect
from torchbandits.tanimoto import TanimotoKernel

NOISE = 0.01


def ard() -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5, ard_num_dims=2)).double()
    kernel.outputscale = torch.tensor(0.7, dtype=torch.float64)
    kernel.base_kernel.lengthscale = torch.tensor([0.3, 0.8], dtype=torch.float64)
    return kernel


def rough() -> gpytorch.kernels.Kernel:
    return with_effect(ard(), torch.tensor(0.4, dtype=torch.float64))


MAKERS = {name: (lambda name=name: kernel_pair(name)[0]) for name in KERNELS} | {
    "ard": ard,
    "effects": rough,
    "sum": lambda: (gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()) + gpytorch.kernels.LinearKernel()).double(),
}


class Data:
    """Points pulled 1 to 6 times, as sums and as single pulls."""

    def __init__(self, seed: int, u: int = 25, noise: float = NOISE, twins: float | None = None) -> None:
        rng = np.random.default_rng(seed)
        points = rng.uniform(size=(u, 2))
        if twins is not None:
            points[u // 2 :] = points[: u - u // 2] + twins
        self.counts = rng.integers(1, 7, size=u)
        f = np.sin(4 * points[:, 0]) + points[:, 1] ** 2
        self.x, self.y = written_out(points, self.counts, rng, f, math.sqrt(noise))
        sums, squares = summed(self.y, self.counts)
        self.columns = [torch.as_tensor(a).double() for a in (points, self.counts, sums, squares)]
        self.first = np.concatenate([[0], np.cumsum(self.counts)[:-1]])  # the first pull of each point

    def averages(self, prior_mean: float = 0.0) -> Averages:
        return Averages.of(*self.columns, prior_mean)

    def gram(self, kernel: gpytorch.kernels.Kernel) -> np.ndarray:
        """The kernel matrix, evaluated pair by pair."""
        x = torch.as_tensor(self.x)
        with torch.no_grad():
            lines = [kernel(x, row.expand_as(x), diag=True) for row in x]
        return torch.stack(lines).numpy()


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood, kernel):
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def gpytorch_evidence(kernel: gpytorch.kernels.Kernel, x: torch.Tensor, y: torch.Tensor, noise: float) -> torch.Tensor:
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.Positive()).double()
    likelihood.noise = torch.tensor(noise, dtype=torch.float64)
    model = Model(x, y, likelihood, kernel)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    exact = (gpytorch.settings.fast_computations(False, False, False), gpytorch.settings.cholesky_max_tries(1))
    with exact[0], exact[1]:
        return mll(model(x), y) * len(y)


# GPyTorch adds jitter to the linear kernel, and its distances between repeated points lose half of the digits of Matérn-1/2,
# which has a kink there. These two kernels are compared with the oracle below.
@pytest.mark.parametrize("name", sorted(MAKERS.keys() - {"linear", "sum", "matern12"}))
@pytest.mark.parametrize("seed", range(3))
def test_value_and_gradient_are_gpytorchs_on_the_pulls_written_out(name: str, seed: int):
    """GPyTorch's evidence of single pulls agrees with repeated pulls, ARD and scales; so does the collapsed evidence with every
    point in the dictionary."""
    data, kernel = Data(seed), MAKERS[name]()
    expected = gpytorch_evidence(kernel, torch.as_tensor(data.x), torch.as_tensor(data.y), NOISE)
    parameters = [parameter for parameter in kernel.parameters() if parameter.requires_grad]
    slopes = torch.autograd.grad(expected, parameters)
    everything = torch.arange(len(data.counts))
    collapsed, jitter = collapsed_evidence(kernel, data.averages(), NOISE, everything)
    assert jitter == 0
    for value in (log_evidence(kernel, data.averages(), NOISE), collapsed):
        torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-8)
        own = torch.autograd.grad(value, parameters, retain_graph=True)
        torch.testing.assert_close(own, slopes, rtol=1e-6, atol=1e-6)


@pytest.mark.sweep(1)
@torch.no_grad()
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("prior_mean", [0.0, 0.6])
def test_the_oracle_agrees_and_the_bound_is_below(name: str, prior_mean: float):
    for seed in range(3):
        data, kernel = Data(seed + 10, u=40), MAKERS[name]()
        averages, K_tt = data.averages(prior_mean), data.gram(kernel)
        exact = log_evidence(kernel, averages, NOISE).item()
        assert exact == pytest.approx(dense_log_evidence(K_tt, data.y, NOISE, prior_mean), rel=1e-8)
        below = -math.inf
        for size in (2, 5, 15, 40):
            dictionary = greedy_dictionary(kernel, averages, size)
            bound, jitter = (float(v) for v in collapsed_evidence(kernel, averages, NOISE, dictionary))
            assert jitter == 0
            oracle = dense_collapsed_evidence(K_tt, data.first[dictionary[:10].numpy()], data.y - prior_mean, NOISE)
            own = collapsed_evidence(kernel, averages, NOISE, dictionary[:10])[0]
            assert own.item() == pytest.approx(oracle, rel=1e-7)
            assert below - 1e-6 <= bound <= exact + 1e-6, "it rises with the dictionary, up to the exact one"
            below = bound
        assert below == pytest.approx(exact, rel=1e-8), "nothing is missed but rounding"


def test_a_misfit_is_noise_that_more_pulls_do_not_average():
    data, kernel, misfit = Data(6), ard(), 0.3
    averages, everything = data.averages(), torch.arange(len(data.counts))
    K_tt = data.gram(kernel) + misfit * (data.x[:, None, :] == data.x[None, :, :]).all(axis=-1)
    expected = dense_log_evidence(K_tt, data.y, NOISE)
    assert log_evidence(kernel, averages, NOISE, misfit).item() == pytest.approx(expected, rel=1e-8)
    assert collapsed_evidence(kernel, averages, NOISE, everything, misfit)[0].item() == pytest.approx(expected, rel=1e-8)


def test_the_noise_has_its_gradient():
    data, kernel = Data(3), ard()
    log_noise = torch.tensor(math.log(NOISE), dtype=torch.float64, requires_grad=True)
    dictionary = torch.arange(12)
    functions = (
        lambda: log_evidence(kernel, data.averages(), log_noise.exp()),
        lambda: collapsed_evidence(kernel, data.averages(), log_noise.exp(), dictionary)[0],
    )
    for function in functions:
        (slope,) = torch.autograd.grad(function(), log_noise)
        with torch.no_grad():
            values = []
            for step in (1e-4, -2e-4):
                log_noise.add_(step)
                values.append(function().item())
            log_noise.add_(1e-4)
        assert float(slope) == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-5)


@pytest.mark.sweep(5)
@torch.no_grad()
@pytest.mark.parametrize("twins", [0.0, 1e-9, 1e-6])
@pytest.mark.parametrize("noise", [1e-12, 1e-8, 1e-4])
def test_singular_kernels_give_numbers_or_say_that_they_failed(twins: float, noise: float):
    """With duplicates and almost no noise the result is finite and equals the oracle's, or is −∞; it is never NaN."""
    data = Data(4, u=30, noise=noise, twins=twins)
    for name in ("rbf", "matern12", "linear"):
        kernel, averages = MAKERS[name](), data.averages()
        for value in (
            log_evidence(kernel, averages, noise),
            collapsed_evidence(kernel, averages, noise, greedy_dictionary(kernel, averages, 20))[0],
        ):
            assert not bool(value.isnan())
            assert value.item() < math.inf
        if noise == 1e-4:
            exact = log_evidence(kernel, averages, noise)
            assert exact.item() == pytest.approx(dense_log_evidence(data.gram(kernel), data.y, noise), rel=1e-6)


def wide() -> gpytorch.kernels.Kernel:
    """For more features than are compared by differences."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=40)).double()
    kernel.base_kernel.lengthscale = torch.linspace(0.5, 4.0, 40, dtype=torch.float64)
    return kernel


@pytest.mark.sweep(8)
@pytest.mark.parametrize("points", ["distinct", "repeated", "float32", "near"])
@pytest.mark.parametrize("noise", [1e-6, 1e-2])
@pytest.mark.parametrize("misfit", [0.0, 0.2])
@pytest.mark.parametrize("name", ["ard", "effects", "matern12", "matern32", "rbf", "sum", "wide"])
def test_derivatives_of_the_bound_are_those_of_autograd(name: str, misfit: float, noise: float, points: str):
    kernel, averages = (MAKERS | {"wide": wide})[name](), Data(7, u=60).averages()
    x = torch.as_tensor(np.random.default_rng(7).uniform(size=(60, 40))) if name == "wide" else averages.points
    twins = {"repeated": x[:20], "near": x[:20] + 1e-9}
    x = torch.cat([x[:40], twins[points]]) if points in twins else x.float().double() if points == "float32" else x
    averages = dataclasses.replace(averages, points=x)
    dictionary = greedy_dictionary(kernel, averages, 15)
    if points == "near":
        some = dictionary[dictionary < 20]
        dictionary = torch.cat([some, some + 40])
    variance, own = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (noise, misfit))
    value, jitter = collapsed_evidence(kernel, averages, variance, dictionary, own)
    assert (jitter > 0) == (points == "near" and name not in ("effects", "matern12"))
    K_mu, spread = kernel_matrix(kernel, x[dictionary], x), variance / averages.weights + own
    bound = graph_collapsed_evidence(K_mu, kernel(x, diag=True), spread, averages.residuals, dictionary, jitter)
    expected = averages.within(variance) + bound
    parameters = [parameter for parameter in kernel.parameters() if parameter.requires_grad] + [variance, own]
    slopes, others = (torch.autograd.grad(v, parameters) for v in (value, expected))
    # Where pivots are tiny, rounding errors of the kernel change more digits, of both.
    rtol, least = (1e-5, 1e-4) if jitter else (1e-10 if points == "near" else 1e-12, 1e-8)
    torch.testing.assert_close(value, expected, rtol=rtol, atol=0)
    for slope, other in zip(slopes, others, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(slope, other, rtol=least, atol=least * float(other.abs().max()))


@pytest.mark.parametrize("name", ["rbf", "linear"])
def test_an_evaluation_leaves_no_garbage(name: str, monkeypatch: pytest.MonkeyPatch):
    """The matrices of evaluations that wait for a collection of garbage would fill the memory of a fit."""
    kernel, averages, made = MAKERS[name](), Data(6).averages(), list[weakref.ref[Any]]()

    def noted(*args: Any, **options: Any) -> Any:
        factor, good = cholesky(*args, **options)
        made.append(weakref.ref(factor))
        return factor, good

    monkeypatch.setattr(evidence, "cholesky", noted)
    gc.disable()
    try:
        for function in (log_evidence, lambda *args: collapsed_evidence(*args, torch.arange(9))[0]):
            torch.autograd.grad(function(kernel, averages, NOISE), list(kernel.parameters()))
        assert [factor() for factor in made] == [None] * len(made)
        assert len(made) >= 3
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["rbf", "matern32", "ard"])
def test_evaluations_in_the_memory_of_others_are_the_same(name: str):
    averages, noise = Data(5).averages(), torch.tensor(0.02, dtype=torch.float64)
    memory = Workspace(*torch.full((6, 25, 25), torch.nan, dtype=torch.float64))
    for scale in (0.5, 2.0):
        found = []
        for own in (None, memory):
            kernel = MAKERS[name]()
            base = getattr(kernel, "base_kernel", kernel)
            base.lengthscale = scale * base.lengthscale.detach()
            value = log_evidence(kernel, averages, noise, memory=own)
            found.append((value, *torch.autograd.grad(value, list(kernel.parameters()), allow_unused=True)))
        torch.testing.assert_close(found[1], found[0], rtol=1e-13, atol=1e-13)


def test_similarities_of_fingerprints_are_evaluated_once(monkeypatch: pytest.MonkeyPatch):
    """An evaluation of the evidence took ten times as long as the factorisation. The scale of the kernel is differentiated."""
    data, rng = Data(6), np.random.default_rng(6)
    bits = torch.from_numpy(rng.uniform(size=(25, 64)) < 0.3).double()
    averages = dataclasses.replace(data.averages(), points=bits)
    kernel = gpytorch.kernels.ScaleKernel(TanimotoKernel()).double()
    calls, forward = list[int](), TanimotoKernel.forward

    def counted(self: TanimotoKernel, x: torch.Tensor, y: torch.Tensor, **options: Any) -> torch.Tensor:
        calls.append(len(x))
        return forward(self, x, y, **options)

    monkeypatch.setattr(TanimotoKernel, "forward", counted)
    S = torch.from_numpy(tanimoto(bits.numpy(), bits.numpy()))
    for scale in (0.5, 2.0, 3.0):
        kernel.outputscale = torch.tensor(scale, dtype=torch.float64)
        value = log_evidence(kernel, averages, torch.tensor(NOISE, dtype=torch.float64))
        covariance = kernel.outputscale * S + torch.diag(NOISE / averages.weights)
        normal = torch.distributions.MultivariateNormal(torch.zeros_like(averages.residuals), covariance)
        expected = normal.log_prob(averages.residuals) + averages.within(torch.tensor(NOISE, dtype=torch.float64))
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=0)
        slopes = [torch.autograd.grad(one, kernel.raw_outputscale)[0] for one in (value, expected)]
        torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-8, atol=1e-8)
    # The kernel of equal points is evaluated in two halves.
    assert calls == [12, 13]


def test_weights_need_not_be_whole():
    """n pulls in one sum equal parts of it at the same point; weights of a half stand for noise of twice the variance."""
    kernel, (points, counts, sums, squares) = ard(), Data(5).columns
    half = Averages.of(points, counts / 2, sums / 2, squares / 2, 0.0)
    whole = Averages.of(points, counts, sums, squares, 0.0)
    # log N(ȳ; 0, K + 2σ² N⁻¹) is the density for whole pulls with twice the noise variance.
    ones = torch.ones_like(counts)
    one = [Averages.of(points, n, n * whole.residuals, n * whole.residuals**2, 0.0) for n in (ones, ones / 2)]
    twice, same = log_evidence(kernel, one[0], 2 * NOISE), log_evidence(kernel, one[1], NOISE)
    changed = -0.5 * (-0.5 * len(counts) * math.log(2 * math.pi * NOISE) + float((ones / 2).log().sum()))
    torch.testing.assert_close(same, twice + changed)
    assert bool(log_evidence(kernel, half, NOISE).isfinite())


# ------------------------------------------------------------------------- outliers and noise


def test_what_is_an_outlier():
    means = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert bool(plausible(means, 0.1).all()), "no Gaussian draw is"
    wild = means.index_fill(0, torch.tensor([17]), 1e6).index_fill(0, torch.tensor([50]), -40.0)
    assert (~plausible(wild, 0.1)).nonzero().flatten().tolist() == [17, 50]
    assert bool(plausible(wild, 1e6).all()), "the prior holds it possible"
    peak = 0.01 * means
    peak[:4] = 1.0
    assert bool(plausible(peak, 0.5).all()), "a peak on which few points lie is none"
    assert bool(plausible(torch.tensor([0.0, 1e6]), 0.1).all()), "of two values neither can be ruled out"


def test_noise_of_repeated_pulls():
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 9, size=60)
    rewards = np.repeat(rng.normal(size=60), counts) + 0.3 * rng.normal(size=counts.sum())
    sums, squares = (torch.as_tensor(a) for a in summed(rewards, counts))
    points, n = torch.zeros(60, 1, dtype=torch.float64), torch.as_tensor(counts).double()
    pooled = pooled_noise(Averages.of(points, n, sums, squares, 0.0))
    parts = np.split(rewards, np.cumsum(counts)[:-1])
    expected = sum(((p - p.mean()) ** 2).sum() for p in parts) / (counts - 1).sum()
    assert pooled == pytest.approx(expected, rel=0.1), "a few wild scatters are cut"
    assert pooled_noise(Averages.of(points, n.clamp_max(1), sums, squares, 0.0)) is None
    assert pooled_noise(Averages.of(points[:2], torch.tensor([5.0, 6.0]).double(), sums[:2], squares[:2], 0.0)) is None
    squares[int(n.argmax())] += 1e12  # one reward of a million
    assert pooled_noise(Averages.of(points, n, sums, squares, 0.0)) < 4 * expected
    with pytest.raises(NumericalError, match="squares"):
        pooled_noise(Averages.of(points, n, sums, sums**2 / n, 0.0))
