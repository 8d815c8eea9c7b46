"""Columns that further observations append to a `Conditional` posterior."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.types import PerPoint, Rect, Square


@dataclass(frozen=True)
class Extension:
    """Further columns of the root N, for observations made since the base was factorised.

    Attributes:
        points: `batch_shape x p x d`, the points of further kernel columns; none if the dictionary is kept.
        on_base: `batch_shape x m x r`, weights of the columns of N in the kernel columns of the base.
        on_points: `batch_shape x p x r`, weights of the same columns in the kernel columns of `points`.
        coefficients: `batch_shape x p x c`, weights of the mean in the kernel columns of `points`.
        residual: Largest rounding error of W at the added points, in units of the standard deviation of an observation there.
            Small noise and points that are almost known make it large, and each column appended to inexact ones increases it.
            Around 1, W consists of rounding errors.
    """

    points: Tensor
    on_base: Tensor
    on_points: Tensor
    coefficients: Tensor
    residual: float = 0.0

    def detached(self) -> Extension:
        """The same extension, detached from the autograd graph."""
        points, on_base, on_points = self.points.detach(), self.on_base.detach(), self.on_points.detach()
        return Extension(points, on_base, on_points, self.coefficients.detach(), self.residual)


@torch.no_grad()
def rounding(new: Rect, expected: Rect, covariance: Square, noise: PerPoint) -> float:
    """Largest difference between the new columns of W at their own points, `... x p x p`, and the values implied by the
    covariance of these points, in standard deviations of an observation there; see `Extension`. Cost O(p²)."""
    scale = (covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0) + noise).sqrt()
    difference = (new - expected).abs() / scale.unsqueeze(-1)
    return float(difference.nan_to_num(nan=torch.inf).max()) if new.numel() else 0.0
