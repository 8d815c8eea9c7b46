"""Pulls whose rewards are not known: they shrink variances, and leave means as they are."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchbandits.posteriors.factors import Factors
from torchbandits.posteriors.regression import Conditioning
from torchbandits.types import PerPoint, Points, Rect


@dataclass(frozen=True)
class Pending:
    """Factors conditioned on pending pulls, once for any number of points to come.

    Attributes:
        factors: Of the posterior before the pulls.
        points: `batch_shape x p x d`, float64.
        features: `batch_shape x m x p`, z of the points.
        conditioning: On their covariances.
        regularization: λ.
        exact: Whether every pending point gets a column of its own, so that the residual shrinks too.
    """

    factors: Factors
    points: Points
    features: Rect
    conditioning: Conditioning
    regularization: float
    exact: bool

    @staticmethod
    def on(factors: Factors, points: Points, counts: PerPoint, regularization: float, exact: bool) -> Pending:
        """Condition on pulls of p points, `batch_shape x p x d` and `batch_shape x p`. Cost O(p m (m + d) + p² m + p³)."""
        z_p = factors.embedding(points)
        C_pp = _covariance(factors, (points, z_p), (points, z_p), regularization, exact)
        return Pending(factors, points, z_p, Conditioning.on(C_pp, counts), regularization, exact)

    def directions(self, points: Points, features: Rect) -> Tensor:
        """What comes off leverages as squares, `batch_shape x p x n`, at points of known features. Cost O(p n (m + p))."""
        own = (self.points, self.features)
        return self.conditioning.directions(_covariance(self.factors, own, (points, features), self.regularization, self.exact))


def _covariance(
    factors: Factors, left: tuple[Points, Rect], right: tuple[Points, Rect], regularization: float, exact: bool
) -> Tensor:
    """Leverage-scale covariance that a pull moves, `batch_shape x n x n'`, of points with their features."""
    C = factors.regression.covariance(left[1], right[1])
    if not exact:
        return C
    return C + factors.embedding.residual_covariance(left[0], right[0], left[1], right[1]) / regularization
