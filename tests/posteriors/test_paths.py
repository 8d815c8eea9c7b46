"""Sample paths: their moments are those of the dense posterior, each path is one fixed function, and batch rows are
separate."""

from __future__ import annotations

import math
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from problems import generator, kernel_pair, rbf

import torchbandits as tb
from torchbandits import errors
from torchbandits.embeddings import QuadratureFourier, RandomFourier
from torchbandits.posteriors import GaussianProcess, SamplePaths

LAM = 0.05
AT = torch.rand(12, 2, generator=generator(7), dtype=torch.float64)
PULLED = torch.rand(9, 2, generator=generator(8), dtype=torch.float64)
COUNTS = torch.tensor([1.0, 3.0, 1.0, 2.0, 1.0, 1.0, 5.0, 1.0, 1.0], dtype=torch.float64)
SUMS = COUNTS * (torch.sin(5 * PULLED.sum(-1)) + 1)


def process_of(kernel: gpytorch.kernels.Kernel, lam: float = LAM, told: bool = True, **options: Any) -> GaussianProcess:
    features = options.pop("features", None)
    if features is not None:
        options["finite"] = features.build(kernel, torch.cat([AT, PULLED]), [generator(3)], torch.Size())
    process = GaussianProcess(kernel, lam, dim=2, **options)
    if told:
        rows = process.append_(PULLED, torch.ones(9, dtype=torch.bool))
        process.add_(rows, COUNTS, SUMS, SUMS**2 / COUNTS)
        if process.sparse:
            process.set_dictionary_(torch.arange(9) % 2 == 0)
    return process


def values_of(process: GaussianProcess, draws: int, paths: int = 1, **options: Any) -> np.ndarray:
    g = generator(11)
    return torch.cat([SamplePaths.draw(process, paths, [g], **options)(AT) for _ in range(draws)]).numpy()


def assert_moments(values: np.ndarray, mean: np.ndarray, covariance: np.ndarray, most: float) -> None:
    n, variance, centred = len(values), np.diag(covariance), values - mean
    spread = np.sqrt((np.outer(variance, variance) + covariance**2) / n)
    assert np.abs(centred.mean(0) / np.sqrt(variance / n + 1e-18)).max() < 5
    assert np.abs((centred.T @ centred / n - covariance) / (spread + 1e-12)).max() < most


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": ("rbf", {}),
    "exact, scaled": ("scaled", {}),
    "exact, matern": ("matern32", {}),
    "exact, rough": ("matern12", {}),
    "sparse": ("matern52", {"sparse": True}),
    "estimated mean": ("rbf", {"prior_mean": "estimate"}),
    "given mean": ("rbf", {"prior_mean": 0.7, "sparse": True}),
    "qff": ("rbf", {"features": QuadratureFourier(4096)}),
    "rff": ("matern32", {"features": RandomFourier(40)}),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_paths_have_the_mean_and_covariance_of_the_posterior(case: str, told: bool):
    name, options = CASES[case]
    process = process_of(kernel_pair(name)[0], told=told, **options)
    mean, covariance = process(AT).mean.numpy(), process.covariance(AT).numpy()
    # Paths of one call share their frequencies, so only over several calls their covariance is that of the posterior.
    fourier = process.finite is None
    values = values_of(process, 500, num_features=64) if fourier else values_of(process, 1, 4000)
    assert_moments(values, mean, covariance, most=8 if fourier else 5.5)  # a mixture of Gaussians has heavier tails


@pytest.mark.exhaustive
def test_exact_paths_have_the_moments_of_a_dense_posterior():
    """The oracle is a GP in NumPy with noise λ/n on averages."""
    theirs, ours = kernel_pair("matern52", 0.4)
    x, at, n = PULLED.numpy(), AT.numpy(), COUNTS.numpy()
    K = ours(x, x) + LAM * np.diag(1 / n)
    gain = np.linalg.solve(K, ours(x, at)).T
    covariance = ours(at, at) - gain @ ours(x, at)
    values = values_of(process_of(theirs), 800, num_features=64)
    assert_moments(values, gain @ (SUMS / COUNTS).numpy(), covariance, most=8)


@pytest.mark.parametrize("case", CASES)
def test_a_path_is_one_function_whatever_is_asked_and_told_later(case: str):
    name, options = CASES[case]
    process = process_of(kernel_pair(name)[0], **options)
    paths = SamplePaths.draw(process, 3, [generator(1)])
    values = paths(AT)
    assert values.shape == (3, 12)
    assert values.dtype == torch.float64
    order = torch.randperm(12, generator=generator(2))
    torch.testing.assert_close(paths(AT[order]), values[:, order], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([paths(x) for x in AT.split(1)], dim=-1), values, rtol=1e-12, atol=1e-12)
    assert not torch.equal(values[0], values[1])
    process.add_(process.append_(AT[:2], torch.ones(2, dtype=torch.bool)), COUNTS[:2], SUMS[:2], SUMS[:2])
    process.set_pending_(AT[2:4], COUNTS[:2])
    assert torch.equal(paths(AT), values)
    assert paths(AT.float()).dtype == torch.float64


@pytest.mark.sweep(5)
@pytest.mark.parametrize("case", CASES)
def test_paths_are_differentiable(case: str):
    name, options = CASES[case]
    process = process_of(kernel_pair(name)[0], **options)
    paths = SamplePaths.draw(process, 2, [generator(1)])
    points = AT.clone().requires_grad_()
    assert torch.autograd.gradcheck(paths, (points,), eps=1e-6, atol=1e-5)


def test_the_width_scales_the_deviation_from_the_mean():
    for options in ({}, {"sparse": True}, {"features": RandomFourier(40)}, {"prior_mean": "estimate"}):
        process = process_of(rbf(), **dict(options))
        one, three = (
            SamplePaths.draw(process, 2, [generator(4)], width=torch.tensor(w, dtype=torch.float64))(AT) for w in (1.0, 3.0)
        )
        mean = process(AT).mean
        torch.testing.assert_close(three - mean, 3 * (one - mean), rtol=1e-9, atol=1e-10)


def test_paths_pass_through_data_with_hardly_any_noise():
    process = process_of(rbf(0.3), lam=1e-8)
    values = SamplePaths.draw(process, 5, [generator(4)], num_features=256)(PULLED)
    torch.testing.assert_close(values, (SUMS / COUNTS).expand(5, -1), rtol=0, atol=2e-3)


@pytest.mark.exhaustive
def test_near_duplicates_and_a_kernel_matrix_of_low_rank():
    """Points 1e-9 apart that are pulled many times: the paths are finite and have the posterior's moments."""
    x = torch.cat([PULLED, PULLED[:3] + 1e-9])
    process = GaussianProcess(rbf(0.8), 1e-4, dim=2)
    n = torch.full((12,), 50.0, dtype=torch.float64)
    process.add_(process.append_(x, torch.ones(12, dtype=torch.bool)), n, n * torch.sin(x.sum(-1)), n)
    values = values_of(process, 400, num_features=64)
    assert np.abs(values.mean(0) - process(AT).mean.numpy()).max() < 0.1
    assert np.isfinite(values).all()


@pytest.mark.parametrize("options", [{}, {"sparse": True}])
def test_rows_of_a_batch_draw_as_singles_do(options: dict[str, Any]):
    """Rows of different sizes, kernels and widths."""
    lengthscales, sizes = [0.2, 0.5, 0.9], [3, 9, 0]
    kernel = gpytorch.kernels.MaternKernel(2.5, batch_shape=torch.Size([3])).double()
    kernel.lengthscale = torch.tensor(lengthscales, dtype=torch.float64).reshape(3, 1, 1)
    width = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    batch = GaussianProcess(kernel, LAM, dim=2, batch_shape=(3,), **options)
    new = torch.arange(9) < torch.tensor(sizes).unsqueeze(-1)
    rows = batch.append_(PULLED.expand(3, -1, -1), new)
    batch.add_(rows, *(torch.where(new, c, 0.0) for c in (COUNTS, SUMS, SUMS)))
    if batch.sparse:
        batch.set_dictionary_((torch.arange(9) % 2 == 0).expand(3, -1))
    values = SamplePaths.draw(batch, 2, [generator(s) for s in range(3)], width=width)(AT.expand(3, -1, -1))
    assert values.shape == (3, 2, 12)
    for row, (ell, size) in enumerate(zip(lengthscales, sizes, strict=True)):
        single = GaussianProcess(kernel_pair("matern52", ell)[0], LAM, dim=2, **options)
        if size:
            own = single.append_(PULLED[:size], torch.ones(size, dtype=torch.bool))
            single.add_(own, COUNTS[:size], SUMS[:size], SUMS[:size])
            if single.sparse:
                single.set_dictionary_(torch.arange(size) % 2 == 0)
        alone = SamplePaths.draw(single, 2, [generator(row)], width=width[row])(AT)
        torch.testing.assert_close(values[row], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_what_has_no_paths_is_refused():
    for name in ("linear",):
        with pytest.raises(errors.UnsupportedError, match="RBF and Matérn"):
            SamplePaths.draw(process_of(kernel_pair(name)[0]), 1, [generator(0)])
    bandit = tb.Bandit(tb.soful(sketch_size=2), AT, generator=generator(0))
    with pytest.raises(errors.UnsupportedError, match="sketch"):
        SamplePaths.draw(bandit.posterior, 1, [generator(0)])
    process = process_of(rbf())
    for options in ({"num_paths": 0}, {"num_paths": 1, "num_features": 3}):
        with pytest.raises(errors.ArgumentError):
            SamplePaths.draw(process, generators=[generator(0)], **options)
    paths = SamplePaths.draw(process, 1, [generator(0)])
    with pytest.raises(errors.ShapeError):
        paths(torch.zeros(3, 5, dtype=torch.float64))
    with pytest.raises(errors.NonFiniteError):
        paths(torch.full((3, 2), math.nan, dtype=torch.float64))
