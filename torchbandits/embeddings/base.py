"""Interface of embeddings: features z(x) of a kernel, and the part of k(x, x) that they miss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import gpytorch
import torch
from torch import Tensor, nn

from torchbandits.types import Arms, Points


class Embedding(ABC):
    """A map from points to features z with residual r(x) = k(x, x) − |z(x)|² ≥ 0."""

    @abstractmethod
    def __call__(self, points: Points) -> Tensor:
        """Features, `batch_shape x m x n` for points `batch_shape x n x d`: one column per point."""

    def diagonal(self, points: Points) -> Tensor:
        """k(x, x), `batch_shape x n`: |z(x)|², for features without a residual."""
        return self(points).square().sum(dim=-2)

    @abstractmethod
    def residual_covariance(self, left: Points, right: Points, z_left: Tensor, z_right: Tensor) -> Tensor:
        """k(x, x') − z(x)ᵀz(x'), `batch_shape x n x n'`, given the features of both sides."""


class FiniteEmbedding(Embedding, nn.Module, ABC):
    """Fixed features that replace the kernel, whatever was pulled: k(x, x') = z(x)ᵀz(x').

    Features of your own are a subclass with the number m of features, `num_features`, and `__call__`, which gives the features
    of points `batch_shape x n x d` as `batch_shape x m x n`, float64, one column per point. Register their tensors as buffers,
    which are part of the saved state and follow `.to()`. A `FeatureMap` builds them.
    """

    @property
    @abstractmethod
    def num_features(self) -> int:
        """Number of features m, the largest over the batch rows."""

    @property
    def num_used(self) -> Tensor | None:
        """Number of features that each batch row uses, `batch_shape`; None if every row uses all of them."""
        return None

    def holds_at(self, points: Points) -> bool:
        """Whether the features represent the kernel at all of these points."""
        return True

    def spread(self, own: Tensor) -> Tensor:
        """Move coordinates of the features that each row uses, `batch_shape x m x q`, padded at the end, to the places of these
        features."""
        return own

    def residual_covariance(self, left: Points, right: Points, z_left: Tensor, z_right: Tensor) -> Tensor:
        """Zeros, `batch_shape x n x n'`, because no residual is left."""
        return torch.zeros_like(z_left.mT @ z_right)


class FeatureMap(ABC):
    """Recipe for the features of a kernel: its method `build(kernel, arms, generators, batch_shape)` returns them. Immutable,
    because it is part of a policy."""

    @abstractmethod
    def build(
        self, kernel: gpytorch.kernels.Kernel, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size
    ) -> FiniteEmbedding:
        """Build the embedding for a kernel on arms, with random numbers from one generator per batch row.

        Args:
            kernel: The kernel of the policy.
            arms: `A x d` or `batch_shape x A x d`.
            generators: CPU generators, one per batch row.
            batch_shape: Leading dimensions.

        Raises:
            UnsupportedError: If the kernel has no such features.
            ArgumentError: If there would be too many features.
        """
