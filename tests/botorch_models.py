"""Data and models that the tests of the BoTorch face share: the same hyper-parameters in BoTorch's own model and in ours.

`MODELS` is the registry that the conformance tests run over. BoTorch's `SingleTaskGP` is one of them: a demand that it fails
is not a demand of BoTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import oracles
import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from torch import Tensor

DIM, NOISE_STD, PRIOR_MEAN = 2, 0.1, 0.3
LENGTHSCALES, OUTPUTSCALE = [0.35, 0.6], 1.7


def make_kernel(dim: int = DIM, dtype: torch.dtype = torch.float64) -> gpytorch.kernels.Kernel:
    """Matérn 5/2 with a lengthscale a feature and an outputscale; nothing in it learns."""
    base = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=dim)
    kernel = gpytorch.kernels.ScaleKernel(base).to(dtype)
    lengthscales = [LENGTHSCALES[j % 2] * (1 + 0.1 * (j // 2)) for j in range(dim)]
    base.lengthscale = torch.tensor(lengthscales, dtype=dtype)
    kernel.outputscale = torch.tensor(OUTPUTSCALE, dtype=dtype)
    return kernel.requires_grad_(False)


def dense_kernel(dim: int = DIM) -> oracles.KernelFunction:
    """The same in numpy."""
    return oracles.matern(2.5, np.array([LENGTHSCALES[j % 2] * (1 + 0.1 * (j // 2)) for j in range(dim)]), OUTPUTSCALE)


def values(X: Tensor) -> Tensor:
    """A smooth function on the unit cube, `... x d -> ... x 1`, positive."""
    return 1.2 + torch.sin(4 * X[..., :1]) * torch.cos(3 * X[..., 1:2]) + 0.3 * X.sum(-1, keepdim=True)


def data(
    seed: int,
    n: int = 20,
    dim: int = DIM,
    batch_shape: tuple[int, ...] = (),
    repeats: int = 5,
    near: int = 2,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Points and noisy rewards; the last rows repeat earlier points, or lie 1e-7 beside them."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(*batch_shape, n, dim, generator=g, dtype=torch.float64)
    if repeats:
        X[..., n - repeats :, :] = X[..., : 2 * repeats : 2, :]
    if near:
        X[..., n - repeats - near : n - repeats, :] = X[..., 1 : 2 * near : 2, :] + 1e-7
    noise = NOISE_STD * torch.randn(*batch_shape, n, 1, generator=g, dtype=torch.float64)
    X = X.to(dtype)
    return X, (values(X.double()) + noise).to(dtype)


def points(seed: int, *shape: int, dim: int = DIM, dtype: torch.dtype = torch.float64) -> Tensor:
    """Uniform points, `shape x dim`."""
    return torch.rand(*shape, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inducing(dim: int = DIM) -> Tensor:
    """The dictionary of sparse models: given points, none of them in the data."""
    return points(900, 9, dim=dim)


def stock(
    X: Tensor,
    Y: Tensor,
    Yvar: Tensor | None = None,
    *,
    noise_std: float = NOISE_STD,
    kernel: gpytorch.kernels.Kernel | None = None,
    **transforms: Any,
) -> SingleTaskGP:
    """BoTorch's model with the fixed hyper-parameters of these tests; it has predicted once, or it could not be conditioned."""
    transforms = {"outcome_transform": None} | transforms
    kernel = make_kernel(X.shape[-1], X.dtype) if kernel is None else kernel
    likelihood = None
    if Yvar is None:
        constraint = gpytorch.constraints.GreaterThan(1e-10)
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=constraint).to(X.dtype)
        likelihood.noise = torch.tensor(noise_std**2, dtype=X.dtype)
    mean = gpytorch.means.ConstantMean()
    mean.constant.data = torch.tensor(PRIOR_MEAN, dtype=X.dtype)
    model = SingleTaskGP(X, Y, Yvar, likelihood=likelihood, covar_module=kernel, mean_module=mean, **transforms)
    model.requires_grad_(False).posterior(X)
    return model


MODELS: dict[str, Callable[..., Model]] = {"stock": stock}
