"""Ridge regression on rows of very different weight, in coordinates where rounding errors of heavy rows do not hide light
rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.types import PerPoint, Rect, Square

# The rounding error of heavy rows in V = ZᵀNZ + λI hides light rows: the relative error is eps times the ratio of their
# weights, which is at most 1e-10 below this ratio.
MOST_UNEVEN = 65_536.0


def uneven(weights: PerPoint) -> bool:
    """Whether the weights of any batch row, `batch_shape x u`, differ so much that V must be graded. Weights ≤ 0 are
    ignored."""
    if weights.shape[-1] < 2 or not weights.numel():
        return False
    low, high = weights.aminmax()
    # Test all batch rows together first: this is the usual case and takes few operations.
    if bool((low > 0) & (high <= MOST_UNEVEN * low)):
        return False
    least = torch.where(weights > 0, weights, torch.inf).amin(dim=-1)
    return bool((weights.amax(dim=-1) > MOST_UNEVEN * least).any())


@dataclass(frozen=True)
class Graded:
    r"""Rows z of features, the heaviest √n|z| first, in an orthonormal basis where row i is zero beyond coordinate i.

    In this basis V = ZᵀNZ + λI is graded: entry (j, k) is a sum over rows from max(j, k) on, so its size is bounded by the
    weight of the lighter coordinate. The rounding errors of a Cholesky factorisation and of triangular solves scale with the
    diagonal of V, so the contribution of light rows is preserved whatever the ratio of the weights.

    Attributes:
        basis: `batch_shape x m x m`, orthogonal Q with z = Q times the coordinates.
        order: `batch_shape x u`, rows in decreasing order of weight.
        rows: `batch_shape x u x m`, the coordinates of the rows in that order.

    Source: Cox & Higham 1998, for weighted least squares with sorted rows; van der Sluis 1969, for the scaling.
    """

    basis: Square
    order: Tensor
    rows: Rect

    @staticmethod
    def of(features: Rect, weights: PerPoint) -> Graded:
        """Graded coordinates of features `batch_shape x u x m` with weights `batch_shape x u`. Cost O(u m² + m³)."""
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
