"""Hyper-parameters of a BoTorch model as GPyTorch modules, float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import gpytorch
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from torch import Tensor

from torchbandits.checks import check_kernel_on, own_copy
from torchbandits.errors import require
from torchbandits.kernels import kernel_diagonal
from torchbandits.types import Points


def kernel_of(
    kernel: gpytorch.kernels.Kernel | None, covar_module: gpytorch.kernels.Kernel | None, points: Points
) -> gpytorch.kernels.Kernel:
    """A copy of the kernel given by either name; BoTorch's default for these points if neither is given."""
    require(
        kernel is None or covar_module is None, "kernel and covar_module are two names of the same argument: give one of them."
    )
    given, name = (covar_module, "covar_module") if kernel is None else (kernel, "kernel")
    given = default_kernel(points.shape[-1]) if given is None else given
    require(
        isinstance(given, gpytorch.kernels.Kernel),
        f"{name} must be a gpytorch.kernels.Kernel, such as gpytorch.kernels.RBFKernel(), got {type(given).__name__}.",
    )
    own = copy.deepcopy(given).to(device=points.device, dtype=torch.float64)
    if points.shape[-2]:
        check_kernel_on(points[..., :1, :].double(), own, points.shape[:-2], kernel_diagonal)
    return own


def default_kernel(num_features: int) -> gpytorch.kernels.RBFKernel:
    """BoTorch's default: an RBF kernel under a prior scaled to the number of features, at the prior's mode.

    BoTorch's own `get_covar_module_with_dim_scaled_prior` rounds its constants to torch's default dtype; these are float64.

    Source: Hvarfner, Hellsten & Nardi 2024, "Vanilla Bayesian optimization performs great in high dimensions".
    """
    least, loc, scale = 2.5e-2, math.sqrt(2) + math.log(num_features) / 2, math.sqrt(3)
    prior = gpytorch.priors.LogNormalPrior(*(torch.tensor(v, dtype=torch.float64) for v in (loc, scale)))
    bound = gpytorch.constraints.GreaterThan(least, transform=None)
    kernel = gpytorch.kernels.RBFKernel(
        ard_num_dims=num_features, lengthscale_prior=prior, lengthscale_constraint=bound
    ).double()
    bound.lower_bound.fill_(least)  # GPyTorch rounded it
    kernel.lengthscale = prior.mode.expand(1, num_features)
    return kernel


def check_transform(name: str, transform: object, kind: type) -> None:
    """Raise `ArgumentError` unless `transform` is None or a BoTorch transform of this kind."""
    good = transform is None or isinstance(transform, kind)
    require(good, f"{name} must be a BoTorch {kind.__name__} or None, got {type(transform).__name__}.")


def makes_several(transform_inputs: Callable[[Tensor], Tensor], points: Tensor) -> bool:
    """Whether an input transform makes several points of one of these, `... x n x d`, as perturbations do."""
    one = points[..., :1, :] if points.shape[-2] else points.new_zeros(*points.shape[:-2], 1, points.shape[-1])
    return transform_inputs(one).shape[:-1] != one.shape[:-1]


def mean_of(prior_mean: float | str) -> gpytorch.means.Mean:
    """A constant mean that is not fitted; 0 where the posterior estimates it."""
    constant = torch.tensor(0.0 if prior_mean == "estimate" else float(prior_mean), dtype=torch.float64)
    mean: gpytorch.means.Mean = gpytorch.means.ConstantMean().double()
    return mean.initialize(constant=constant).requires_grad_(False)  # a number would be rounded to float32


def likelihood_of(noise_std: float, Yvar: Tensor | None, fitted: bool) -> GaussianLikelihood | FixedNoiseGaussianLikelihood:
    """Gaussian noise with one variance, under BoTorch's prior where it is fitted, or with a known variance per observation."""
    if Yvar is not None:
        with as_given():
            return FixedNoiseGaussianLikelihood(noise=own_copy(Yvar.squeeze(-1)).double())
    prior = gpytorch.priors.LogNormalPrior(-4.0, 1.0) if fitted else None
    likelihood = GaussianLikelihood(noise_prior=prior, noise_constraint=gpytorch.constraints.Positive()).double()
    likelihood.noise = torch.tensor(noise_std**2, dtype=torch.float64)
    return likelihood


def as_given() -> gpytorch.settings.min_fixed_noise:
    """A context in which GPyTorch keeps known noise variances below 1e-6, as outcomes in small units have them."""
    return gpytorch.settings.min_fixed_noise(double_value=0.0)
