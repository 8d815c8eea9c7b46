"""Kernels of the benchmarks with a given lengthscale, in float64. Their parameters require no gradient."""

from __future__ import annotations

import gpytorch
import torch
from gpytorch.kernels import Kernel


def rbf(lengthscale: float) -> Kernel:
    """An RBF kernel."""
    return _of_lengthscale(gpytorch.kernels.RBFKernel(), lengthscale)


def matern(nu: float, lengthscale: float) -> Kernel:
    """A Matérn kernel."""
    return _of_lengthscale(gpytorch.kernels.MaternKernel(nu), lengthscale)


def _of_lengthscale(kernel: Kernel, lengthscale: float) -> Kernel:
    kernel = kernel.double()
    # A tensor, because GPyTorch rounds a Python number to float32.
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel.requires_grad_(False)
