"""Features of the linear kernel xᵀx': the points themselves, or a random projection of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from torchbandits.checks import is_whole
from torchbandits.embeddings.base import FeatureMap, FiniteEmbedding
from torchbandits.errors import require
from torchbandits.types import Arms, Points


class Linear(FiniteEmbedding):
    """Features z(x) = x, or z(x) = Rᵀx.

    Args:
        dim: d, number of features of a point.
        projection: R, `batch_shape x d x m`; None for z(x) = x.
    """

    projection: Tensor | None

    def __init__(self, dim: int, projection: Tensor | None = None) -> None:
        super().__init__()
        self._dim = dim
        self.register_buffer("projection", projection)

    @property
    def num_features(self) -> int:
        """Number of features m; d without a projection."""
        return self._dim if self.projection is None else self.projection.shape[-1]

    def __call__(self, points: Points) -> Tensor:
        """Features, `batch_shape x m x n`, float64. Cost O(n m d), nothing without a projection."""
        x = points.double().mT
        return x if self.projection is None else self.projection.mT @ x


@dataclass(frozen=True)
class Identity(FeatureMap):
    """z(x) = x: linear rewards θᵀx."""

    def build(
        self, kernel: gpytorch.kernels.Kernel, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size
    ) -> Linear:
        """Build the identity. Nothing is drawn."""
        return Linear(arms.shape[-1])


@dataclass(frozen=True)
class GaussianProjection(FeatureMap):
    """z(x) = Rᵀx with entries of R ~ N(0, 1/m), so that z(x)ᵀz(x') is xᵀx' up to an error of about |x||x'|/√m.

    Attributes:
        size: m.
    """

    size: int

    def __post_init__(self) -> None:
        require(is_whole(self.size), f"size or num_features must be a whole number of at least 1, got {self.size!r}.")

    def build(
        self, kernel: gpytorch.kernels.Kernel, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size
    ) -> Linear:
        """Build a projection with R drawn row by row, on the CPU."""
        d, m = arms.shape[-1], self.size
        draws = [torch.randn(d, m, generator=g, dtype=torch.float64) for g in generators]
        return Linear(d, (torch.stack(draws) / math.sqrt(m)).reshape(*batch_shape, d, m).to(arms.device))


def linear_kernel() -> gpytorch.kernels.LinearKernel:
    """The kernel k(x, x') = xᵀx', float64."""
    kernel = gpytorch.kernels.LinearKernel().double()
    kernel.variance = torch.ones((), dtype=torch.float64)
    return kernel
