"""What a Gaussian regression needs to know of a kernel: features z(x), and the part of k(x, x) they miss."""

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
        """Features, `batch_shape x m x n` for points `batch_shape x n x d` (features first: one column a point)."""

    @abstractmethod
    def diagonal(self, points: Points) -> Tensor:
        """k(x, x), `batch_shape x n`."""

    @abstractmethod
    def residual_covariance(self, left: Points, right: Points, z_left: Tensor, z_right: Tensor) -> Tensor:
        """k(x, x') − z(x)ᵀz(x'), `batch_shape x n x n'`, given the features of both sides."""


class FiniteEmbedding(Embedding, nn.Module, ABC):
    """Features that are the kernel, whatever was pulled: k(x, x') = z(x)ᵀz(x'). What they hold is saved and moved."""

    @property
    @abstractmethod
    def num_features(self) -> int:
        """m, of the batch row that uses most."""

    @property
    def num_used(self) -> Tensor | None:
        """How many features each batch row uses, `batch_shape`; None where all use all."""
        return None

    def holds_at(self, points: Points) -> bool:
        """Whether the features stand for the kernel at all of these points."""
        return True

    def spread(self, own: Tensor) -> Tensor:
        """Coordinates `batch_shape x m x q` of the features that each row uses, padded at the end, in the places of those
        features."""
        return own

    def residual_covariance(self, left: Points, right: Points, z_left: Tensor, z_right: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(z_left.mT @ z_right)


class FeatureMap(ABC):
    """How to build the features of a kernel. Frozen: it belongs to a policy."""

    @abstractmethod
    def build(
        self, kernel: gpytorch.kernels.Kernel, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size
    ) -> FiniteEmbedding:
        """The embedding for a kernel on arms; draws from one generator a batch row.

        Raises:
            UnsupportedError: For a kernel that has no such features.
            ArgumentError: Where the features would be too many.
        """
