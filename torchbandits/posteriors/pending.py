"""Pending pulls, whose rewards are unknown: they shrink variances and do not change means."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.posteriors.factors import Factors
from torchbandits.posteriors.regression import Conditioning
from torchbandits.types import PerPoint, Points, Rect


@dataclass(frozen=True)
class Pending:
    """Factors conditioned on pending pulls, computed once for any number of points.

    Attributes:
        factors: Factors of the posterior before the pulls.
        points: `batch_shape x p x d`, float64.
        features: `batch_shape x m x p`, z of the points.
        conditioning: Conditioning on the covariances of the points.
        regularization: λ.
        frozen: Whether the residual k(x,x) − |z|² stays unchanged, a boolean or `batch_shape`. Otherwise every pending point
            gets its own kernel column.
    """

    factors: Factors
    points: Points
    features: Rect
    conditioning: Conditioning
    regularization: float
    frozen: bool | Tensor

    @staticmethod
    def on(factors: Factors, points: Points, counts: PerPoint, regularization: float, frozen: bool | Tensor) -> Pending:
        """Condition on pulls of p points, `batch_shape x p x d` and `batch_shape x p`. Cost O(p m (m + d) + p² m + p³)."""
        z_p = factors.embedding(points)
        C_pp = _covariance(factors, (points, z_p), (points, z_p), regularization, frozen)
        return Pending(factors, points, z_p, Conditioning.on(C_pp, counts), regularization, frozen)

    def directions(self, points: Points, features: Rect) -> Tensor:
        """G at points with features, `batch_shape x p x n`; leverages fall by its squared columns. Cost O(p n (m + p))."""
        own, others = (self.points, self.features), (points, features)
        return self.conditioning.directions(_covariance(self.factors, own, others, self.regularization, self.frozen))


def _covariance(
    factors: Factors, left: tuple[Points, Rect], right: tuple[Points, Rect], regularization: float, frozen: bool | Tensor
) -> Tensor:
    """The part of the leverage-scale covariance of points that a pull changes, `batch_shape x n x n'`."""
    C = factors.regression.covariance(left[1], right[1])
    if frozen is True:
        return C
    residual = factors.embedding.residual_covariance(left[0], right[0], left[1], right[1])
    return where_frozen(frozen, C, C + residual / regularization)


def where_frozen(frozen: bool | Tensor, c: Tensor, exact: Tensor) -> Tensor:
    """Covariances `batch_shape x n x n'`: `c` in batch rows whose dictionary is frozen (all, or `batch_shape`), else
    `exact`."""
    if isinstance(frozen, Tensor):
        return torch.where(frozen[..., None, None], c, exact)
    return c if frozen else exact
