"""BoTorch's sample paths of a BanditModel: the moments of its posterior, and Thompson sampling with them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.models import ModelListGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths, get_matheron_path_model
from problems import NOISE_STD, generator, kernel_pair, rbf
from test_acquisition import BOX, data, of_dictionary, points

import torchbandits as tb
from torchbandits.botorch import BanditModel
from torchbandits.errors import UnsupportedError

PATHS = 2048


def check_moments(model: BanditModel, x: torch.Tensor, calls: int = 4) -> None:
    """Check that means and covariances of paths, over several draws of the features, are those of the posterior."""
    torch.manual_seed(0)
    with torch.no_grad():
        draws = torch.cat([draw_matheron_paths(model, torch.Size([PATHS]))(x) for _ in range(calls)])
    posterior = model.posterior(x)
    mean, covariance = posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix
    scale = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    assert bool(((draws.mean(dim=0) - mean).abs() <= 5 * scale / math.sqrt(len(draws)) + 0.03 * scale).all())
    centred = (draws - mean) / scale
    correlation = torch.einsum("n...i,n...j->...ij", centred, centred) / len(draws)
    expected = covariance / scale.unsqueeze(-1) / scale.unsqueeze(-2)
    torch.testing.assert_close(correlation, expected, rtol=0, atol=0.12)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dictionary", ["all", "leverage", "bless", "points"])
@pytest.mark.parametrize("kernel", ["rbf", "matern52", "scaled"])
def test_moments_are_those_of_the_posterior(kernel, dictionary):
    options: dict[str, Any] = {"kernel": kernel_pair(kernel)[0], "noise_std": NOISE_STD}
    check_moments(BanditModel(*data(), dictionary=of_dictionary(dictionary), **options), points(6, seed=2))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("prior_mean", [0.7, "estimate"])
def test_moments_with_a_prior_mean(prior_mean):
    X, Y = data()
    check_moments(BanditModel(X, Y + 3, kernel=rbf(0.15), noise_std=NOISE_STD, prior_mean=prior_mean), points(6, seed=2))


@pytest.mark.exhaustive
def test_moments_with_known_variances_and_after_conditioning():
    X, Y = data()
    Yvar = 0.01 + 0.1 * torch.rand(Y.shape, generator=generator(1), dtype=torch.float64)
    model = BanditModel(X, Y, Yvar, kernel=rbf())
    check_moments(model, points(6, seed=2))
    check_moments(model.condition_on_observations(points(2, seed=7), Y[:2]), points(6, seed=2))


def test_moments_under_transforms():
    X, Y = data()
    model = BanditModel(
        10 * X - 3,
        100 * Y + 20,
        kernel=rbf(),
        noise_std=NOISE_STD,
        input_transform=Normalize(2),
        outcome_transform=Standardize(1),
    )
    check_moments(model, 10 * points(6, seed=2) - 3)


@pytest.mark.exhaustive
def test_moments_of_batch_rows():
    check_moments(BanditModel(*data(batch=(2,)), kernel=rbf(), noise_std=NOISE_STD), points(5, seed=2, batch=(2,)))


def test_prior_paths_have_the_moments_of_the_prior():
    model, x = BanditModel(*data(), kernel=rbf(), noise_std=NOISE_STD, prior_mean=0.5), points(5, seed=2)
    torch.manual_seed(0)
    with torch.no_grad():
        draws = torch.cat([draw_kernel_feature_paths(model, torch.Size([PATHS]))(x) for _ in range(4)])
    torch.testing.assert_close(draws.mean(dim=0), torch.full((5,), 0.5, dtype=torch.float64), rtol=0, atol=0.08)
    torch.testing.assert_close(draws.T.cov(), rbf()(x).to_dense().detach(), rtol=0, atol=0.12)


def test_a_path_is_one_function_and_the_global_seed_repeats_it():
    model, x = BanditModel(*data(), kernel=rbf(), noise_std=NOISE_STD), points(5, seed=2).requires_grad_()
    torch.manual_seed(3)
    path = draw_matheron_paths(model, torch.Size([4]))
    assert path(x).shape == (4, 5)
    assert torch.equal(path(x), path(x))
    assert torch.autograd.gradcheck(path, x)
    torch.manual_seed(3)
    assert torch.equal(draw_matheron_paths(model, torch.Size([4]))(x), path(x))


def test_thompson_sampling_of_botorch():
    model = BanditModel(*data(), kernel=rbf(), noise_std=NOISE_STD)
    torch.manual_seed(0)
    acqf = PathwiseThompsonSampling(model)
    best, value = optimize_acqf(acqf, BOX, q=1, num_restarts=4, raw_samples=64)
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 101, dtype=torch.float64)] * 2)
    assert best.shape == (1, 2)
    assert value >= acqf(grid.unsqueeze(-2)).max() - 1e-3
    deterministic = get_matheron_path_model(model)
    assert deterministic.posterior(grid[:7]).mean.shape == (7, 1)
    two = ModelListGP(model, BanditModel(*data(seed=1), kernel=rbf(), noise_std=NOISE_STD))
    assert get_matheron_path_model(two).posterior(grid[:7]).mean.shape == (7, 2)


def test_what_has_no_paths_says_so():
    model = BanditModel(*data(), kernel=rbf(), noise_std=NOISE_STD)
    with pytest.raises(UnsupportedError, match="hallucinated"):
        draw_matheron_paths(model.hallucinate(points(2)), torch.Size([1]))
    bandit = tb.Bandit(tb.rff_ucb(rbf(), num_features=20), points(20))
    bandit.tell(torch.tensor([1, 2]), torch.tensor([0.1, 0.2], dtype=torch.float64))
    with pytest.raises(UnsupportedError, match="thompson_sampling"):
        draw_matheron_paths(bandit.model(), torch.Size([1]))
