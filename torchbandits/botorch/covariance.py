"""Lazy covariance with a precomputed diagonal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from linear_operator.operators import DenseLinearOperator, LinearOperator
from torch import Tensor


class LazyCovariance(LinearOperator):
    """Covariance matrix `batch_shape x n x n` that is evaluated when more than its diagonal is needed.

    Args:
        variance: `batch_shape x n`.
        evaluate: Returns the dense matrix; called at most once.
    """

    def __init__(self, variance: Tensor, *, evaluate: Callable[[], Tensor]) -> None:
        super().__init__(variance, evaluate=evaluate)
        self._variance, self._evaluate = variance, evaluate
        self._dense: DenseLinearOperator | None = None

    def dense(self) -> DenseLinearOperator:
        """The whole matrix. Cost of the first call: that of `evaluate`, and n² numbers."""
        if self._dense is None:
            self._dense = DenseLinearOperator(self._evaluate())
        return self._dense

    def to_dense(self) -> Tensor:
        """The whole matrix as a tensor."""
        return self.dense().to_dense()

    def _diagonal(self) -> Tensor:
        return self._variance

    def _size(self) -> torch.Size:
        return torch.Size([*self._variance.shape, self._variance.shape[-1]])

    def _transpose_nonbatch(self) -> LazyCovariance:
        return self

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.dense()._matmul(rhs)

    def matmul(self, other: Any) -> Any:
        """The product with the dense matrix; gradients flow to the tensors that it is computed from."""
        return self.dense().matmul(other)

    def root_decomposition(self, method: str | None = None) -> Any:
        """As for the dense matrix."""
        return self.dense().root_decomposition(method=method)

    def cholesky(self, upper: bool = False) -> Any:
        """As for the dense matrix."""
        return self.dense().cholesky(upper=upper)

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:
        """As for the dense matrix."""
        return self.dense().zero_mean_mvn_samples(num_samples)

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> Any:
        return self.dense()._getitem(row_index, col_index, *batch_indices)

    def _get_indices(self, row_index: Any, col_index: Any, *batch_indices: Any) -> Tensor:
        return self.dense()._get_indices(row_index, col_index, *batch_indices)

    def _expand_batch(self, batch_shape: torch.Size) -> LazyCovariance:
        n = self._variance.shape[-1]
        return LazyCovariance(
            self._variance.expand(*batch_shape, n), evaluate=lambda: self.to_dense().expand(*batch_shape, n, n)
        )

    def _unsqueeze_batch(self, dim: int) -> LazyCovariance:
        return LazyCovariance(self._variance.unsqueeze(dim), evaluate=lambda: self.to_dense().unsqueeze(dim))
