"""Data and models shared by the tests of the BoTorch interface, with equal hyper-parameters in BoTorch's own model and in ours.

`MODELS` is the registry of the conformance tests. It includes BoTorch's `SingleTaskGP`, because a requirement that this model
fails is not a requirement of BoTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gpytorch
import numpy as np
import oracles
import torch
from botorch.models import SingleTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import FantasizeMixin, Model
from botorch.posteriors import GPyTorchPosterior
from linear_operator import to_linear_operator
from torch import Tensor

from torchbandits.botorch import BanditModel

DIM, NOISE_STD, PRIOR_MEAN = 2, 0.1, 0.3
LENGTHSCALES, OUTPUTSCALE = [0.35, 0.6], 1.7


def make_kernel(dim: int = DIM, dtype: torch.dtype = torch.float64) -> gpytorch.kernels.Kernel:
    """Matérn 5/2 with one lengthscale per feature and an outputscale, all fixed."""
    base = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=dim)
    kernel = gpytorch.kernels.ScaleKernel(base).to(dtype)
    lengthscales = [LENGTHSCALES[j % 2] * (1 + 0.1 * (j // 2)) for j in range(dim)]
    base.lengthscale = torch.tensor(lengthscales, dtype=dtype)
    kernel.outputscale = torch.tensor(OUTPUTSCALE, dtype=dtype)
    return kernel.requires_grad_(False)


def dense_kernel(dim: int = DIM) -> oracles.KernelFunction:
    """The kernel of `make_kernel` in NumPy."""
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
    """Points and noisy rewards; the last rows repeat earlier points, or differ from them by 1e-7."""
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
    """The dictionary of sparse models: fixed points that are not in the data."""
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
    """BoTorch's model with the fixed hyper-parameters of these tests. It has predicted once, because it can't be conditioned
    before."""
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


class Dense(GPyTorchModel, FantasizeMixin):
    r"""The deterministic training conditional, recomputed from all data at every call: the reference for sparse models.
    With `dictionary=None` it is the exact posterior.

    .. math:: \mu(x) = \mu_0 + k_m(x)^T A^{-1} K_{mn} \Sigma^{-1} (y - \mu_0), \quad
              k(x, x') - k_m(x)^T K_{mm}^{-1} k_m(x') + k_m(x)^T A^{-1} k_m(x'), \quad A = K_{mm} + K_{mn} \Sigma^{-1} K_{nm}
    """

    def __init__(
        self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None, *, dictionary: str | Tensor | None = "given", kernel=None
    ) -> None:
        super().__init__()
        self.kernel = make_kernel(X.shape[-1]) if kernel is None else kernel
        self.train_inputs, self.train_targets = (X,), Y.squeeze(-1)
        self.dictionary = inducing(X.shape[-1]) if isinstance(dictionary, str) else dictionary
        self.noise = torch.full_like(self.train_targets, NOISE_STD**2) if Yvar is None else Yvar.squeeze(-1)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        self.likelihood.noise = torch.tensor(NOISE_STD**2).double()
        self.requires_grad_(False)

    _num_outputs = 1

    @property
    def batch_shape(self) -> torch.Size:
        return self.train_targets.shape[:-1]

    def posterior(
        self, X: Tensor, output_indices=None, observation_noise: bool | Tensor = False, posterior_transform=None
    ) -> GPyTorchPosterior:
        batch_shape = torch.broadcast_shapes(X.shape[:-2], self.batch_shape)
        X, Z = X.expand(*batch_shape, *X.shape[-2:]), self.train_inputs[0]
        K_xx, y = self.kernel(X).to_dense(), (self.train_targets - PRIOR_MEAN).unsqueeze(-1)
        if self.dictionary is None:
            G, K_xn = self.kernel(Z).to_dense() + torch.diag_embed(self.noise), self.kernel(X, Z).to_dense()
            mean = PRIOR_MEAN + (K_xn @ torch.linalg.solve(G, y)).squeeze(-1)
            covariance = K_xx - K_xn @ torch.linalg.solve(G.expand(*batch_shape, *G.shape[-2:]), K_xn.mT)
        else:
            K_mm, K_nm, K_xm = (self.kernel(points, self.dictionary).to_dense() for points in (self.dictionary, Z, X))
            scaled = K_nm.mT / self.noise.unsqueeze(-2)
            A = K_mm + scaled @ K_nm
            mean = PRIOR_MEAN + (K_xm @ torch.linalg.solve(A, scaled @ y)).squeeze(-1)
            covariance = K_xx - K_xm @ torch.linalg.solve(K_mm, K_xm.mT) + K_xm @ torch.linalg.solve(A, K_xm.mT)
        if observation_noise is not False:
            noise = NOISE_STD**2 if observation_noise is True else observation_noise.squeeze(-1)
            covariance = covariance + torch.diag_embed(noise * torch.ones_like(mean))
        covariance = to_linear_operator((covariance + covariance.mT) / 2)
        posterior = GPyTorchPosterior(gpytorch.distributions.MultivariateNormal(mean, covariance))
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def forward(self, X: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return self.posterior(X).distribution

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> Dense:
        noise = torch.full_like(Y, NOISE_STD**2) if noise is None else noise.expand_as(Y)
        batch_shape = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2], self.batch_shape)
        pairs = ((self.train_inputs[0], X), (self.train_targets.unsqueeze(-1), Y), (self.noise.unsqueeze(-1), noise))
        joined = (torch.cat([one.expand(*batch_shape, *one.shape[-2:]) for one in pair], dim=-2) for pair in pairs)
        return Dense(*joined, dictionary=self.dictionary, kernel=self.kernel)


def exact(X: Tensor, Y: Tensor, Yvar: Tensor | None = None, *, dictionary: str | Tensor = "all", **options: Any) -> BanditModel:
    """Our exact model of the same data, without a cached posterior."""
    options = {"kernel": make_kernel(X.shape[-1]), "prior_mean": PRIOR_MEAN} | options
    if Yvar is None:
        options = {"noise_std": NOISE_STD} | options
    return BanditModel(X, Y, Yvar, dictionary=dictionary, **options)


def sparse(X: Tensor, Y: Tensor, Yvar: Tensor | None = None, **options: Any) -> BanditModel:
    """Our sparse model, with a dictionary of given points."""
    return exact(X, Y, Yvar, **{"dictionary": inducing(X.shape[-1])} | options)


MODELS: dict[str, Callable[..., Model]] = {"stock": stock, "exact": exact, "sparse": sparse}
REFERENCES: dict[str, Callable[..., Model]] = {"exact": stock, "sparse": Dense}
DENSE: dict[str, Callable[..., Model]] = {"exact": partial(Dense, dictionary=None), "sparse": Dense}
