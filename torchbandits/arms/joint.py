"""Joint draws of the posterior at some of the arms, from their exact covariance."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.arms.table import ArmTable
from torchbandits.linalg import covariance_root
from torchbandits.streams import normals
from torchbandits.types import Picks


class JointDraws:
    """The posterior of f at k arms of each batch row, given the rewards told: a Gaussian with the covariance of the model.

    Args:
        table: The posterior on the arms, of one rank.
        index: `batch_shape x k`, arms; no padding.

    Attributes:
        index: As given.
        mean: `batch_shape x k`, in the units of the model.
        covariance: `batch_shape x k x k`.

    Cost: O(k² (m + d)).
    """

    def __init__(self, table: ArmTable, index: Picks) -> None:
        features = table.features(index)
        C = table.covariance(features, features, frozen=False).double()
        # The diagonal is that of the table, so that marginals agree with it.
        unexplained = torch.diag_embed(table.leverage_at(index).double() - C.diagonal(dim1=-2, dim2=-1))
        self.index, self.mean = index, table.mean_at(index).double()
        self.covariance = table.posterior.regularization * ((C + C.mT) / 2 + unexplained)
        self._roots: dict[tuple[int, int], Tensor] = {}

    def draw(self, row: int, count: int, generator: torch.Generator, size: int | None = None) -> Tensor:
        """Draws of f at the first `size` arms (all by default) of one batch row (counted in row-major order), `count x size`,
        from a CPU generator. Cost O(count size²), and O(size³) before the first draw."""
        k = self.mean.shape[-1]
        size = k if size is None else size
        if (row, size) not in self._roots:
            self._roots[row, size] = covariance_root(self.covariance.reshape(-1, k, k)[row, :size, :size])
        drawn = normals(count, size, generator, self.mean.device)
        return self.mean.reshape(-1, k)[row, :size] + drawn @ self._roots[row, size].mT
