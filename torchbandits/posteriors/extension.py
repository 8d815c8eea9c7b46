"""The columns that observations append to a posterior in kernel columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.types import PerPoint, Rect, Square


@dataclass(frozen=True)
class Extension:
    """Observations made since the base was factorised: further columns of the root N.

    Attributes:
        points: `batch_shape x p x d`, of further kernel columns; none where the dictionary is held.
        on_base: `batch_shape x m x r`, the columns of N in the base's kernel columns.
        on_points: `batch_shape x p x r`, alike in their own.
        coefficients: `batch_shape x p x c`, of the mean.
        residual: What rounding has put on W at the points that were added, largest of all, in units of the standard deviation
            of an observation there. Small noise and points that are almost known make it large, and each column that is
            appended to inexact ones larger: around 1, W is noise.
    """

    points: Tensor
    on_base: Tensor
    on_points: Tensor
    coefficients: Tensor
    residual: float = 0.0

    def detached(self) -> Extension:
        """The same numbers without their history of gradients."""
        points, on_base, on_points = self.points.detach(), self.on_base.detach(), self.on_points.detach()
        return Extension(points, on_base, on_points, self.coefficients.detach(), self.residual)


@torch.no_grad()
def rounding(new: Rect, expected: Rect, covariance: Square, noise: PerPoint) -> float:
    """The largest difference of the new columns of W at the points that they are of, `... x p x p`, from what they are by the
    covariance of those points, in standard deviations of an observation there; see `Extension`. Cost O(p²)."""
    scale = (covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0) + noise).sqrt()
    difference = (new - expected).abs() / scale.unsqueeze(-1)
    return float(difference.nan_to_num(nan=torch.inf).max()) if new.numel() else 0.0
