"""Ridge regression on rows of very different weight: coordinates in which the heavy rows do not drown the light ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.types import PerPoint, Rect, Square

# V = ZᵀNZ + λI loses what light rows say to the rounding of heavy ones: an error of eps times the ratio of their weights. Below
# this ratio that is 1e-10 at most.
MOST_UNEVEN = 1 << 16


def uneven(weights: PerPoint) -> bool:
    """Whether weights of any batch row, `batch_shape x u`, differ so much that V must be graded. Weights ≤ 0 do not count."""
    if weights.shape[-1] < 2 or not weights.numel():
        return False
    low, high = weights.aminmax()
    if bool((low > 0) & (high <= MOST_UNEVEN * low)):  # of all rows together: the usual case, in few operations
        return False
    least = torch.where(weights > 0, weights, torch.inf).amin(dim=-1)
    return bool((weights.amax(dim=-1) > MOST_UNEVEN * least).any())


@dataclass(frozen=True)
class Graded:
    r"""Rows z of features, the heaviest √n|z| first, in an orthonormal basis where row i is zero beyond coordinate i.

    There V = ZᵀNZ + λI is graded: entry (j, k) is a sum over rows from max(j, k) on, and so no larger than the lighter of the
    two coordinates makes it. The rounding of a Cholesky factorisation and of triangular solves follows the diagonal of V, so
    that what light rows say is kept whatever the ratio of the weights.

    Attributes:
        basis: `batch_shape x m x m`, Q, orthogonal: z = Q times the coordinates.
        order: `batch_shape x u`, rows from the heaviest on.
        rows: `batch_shape x u x m`, their coordinates in that order.

    Source: Cox & Higham 1998, for weighted least squares by rows sorted; van der Sluis 1969, for the scaling.
    """

    basis: Square
    order: Tensor
    rows: Rect

    @staticmethod
    def of(features: Rect, weights: PerPoint) -> Graded:
        """Of features `batch_shape x u x m` with weights `batch_shape x u`. Cost O(u m² + m³)."""
        order = (weights.clamp_min(0) * features.square().sum(dim=-1)).argsort(dim=-1, descending=True, stable=True)
        Z = features.gather(-2, order.unsqueeze(-1).expand(features.shape))
        Q, R = torch.linalg.qr(Z.mT, mode="complete")
        return Graded(Q, order, R.mT)

    def moment(self, targets: Rect) -> Tensor:
        """Zᵀ `targets` in the basis, `batch_shape x m x c`, for targets `batch_shape x u x c`."""
        return self.rows.mT @ targets.gather(-2, self.order.unsqueeze(-1).expand(targets.shape))

    def gram(self, weights: PerPoint) -> Tensor:
        """ZᵀNZ in the basis, `batch_shape x m x m`."""
        scaled = self.rows * weights.clamp_min(0).gather(-1, self.order).sqrt().unsqueeze(-1)
        return scaled.mT @ scaled
