"""What a Gaussian regression needs to know of a kernel: features z(x), and the part of k(x, x) they miss."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from torchbandits.types import Points


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
