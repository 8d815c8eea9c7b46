"""Pending pulls, whose rewards are unknown: they shrink variances and do not change means."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchbandits.posteriors.factors import AtPoints, Factors
from torchbandits.posteriors.regression import Conditioning
from torchbandits.types import PerPoint, Points


@dataclass(frozen=True)
class Pending:
    """Factors conditioned on pending pulls, computed once for any number of points.

    Attributes:
        factors: Factors of the posterior before the pulls.
        own: The points of the pulls.
        conditioning: Conditioning on the covariances of the points.
        frozen: Whether the residual k(x,x) − |z|² stays unchanged, a boolean or `batch_shape`. Otherwise every pending point
            gets its own kernel column.
    """

    factors: Factors
    own: AtPoints
    conditioning: Conditioning
    frozen: bool | Tensor

    @staticmethod
    def on(factors: Factors, points: Points, counts: PerPoint, frozen: bool | Tensor) -> Pending:
        """Condition on pulls of p points, `batch_shape x p x d` and `batch_shape x p`. Cost O(p m (m + d) + p² m + p³)."""
        pulled = factors.at(points)
        return Pending(factors, pulled, Conditioning.on(factors.covariance(pulled, pulled, frozen=frozen), counts), frozen)

    def directions(self, there: AtPoints) -> Tensor:
        """G at n points, `batch_shape x p x n`; leverages fall by its squared columns. Cost O(p n (m + p))."""
        return self.conditioning.directions(self.factors.covariance(self.own, there, frozen=self.frozen))
