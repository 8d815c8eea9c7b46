"""Rewards of one batch row as averages: what the evidence is made of, without the outliers that would spoil a fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.errors import NumericalError, require
from torchbandits.posteriors.statistics import Statistics
from torchbandits.types import PerPoint, Points

FEWEST = 5  # points that a fit, and the search for outliers, take at the least
_FENCE = 1.5  # spans of the middle nine tenths beyond which an average is an outlier
_POSSIBLE = 3.0  # prior standard deviations that are no outlier
_DEGREES = 10  # of freedom from which repeated pulls tell the noise by themselves
_WILD = 36.0  # median variances of a point's rewards, beyond which they count as so many


@dataclass(frozen=True)
class Averages:
    """Rewards of one batch row, summed by distinct point.

    Attributes:
        points: `u x d`.
        weights: `u`, pulls n > 0 of each; they need not be whole.
        residuals: `u`, average reward less the prior mean, reward units.
        scatter: `u`, Σ(y − ȳ)² ≥ 0 of each point, reward units squared.
    """

    points: Tensor
    weights: Tensor
    residuals: Tensor
    scatter: Tensor

    @staticmethod
    def of(points: Points, weights: PerPoint, sums: PerPoint, squares: PerPoint, prior_mean: float | Tensor) -> Averages:
        """From counts n, sums s and sums of squares q: averages s/n, scatter q − s²/n."""
        means = sums / weights
        scatter, rounding = squares - sums * means, 64 * torch.finfo(squares.dtype).eps * squares
        return Averages(points, weights, means - prior_mean, torch.where(scatter > rounding, scatter, 0.0))

    @staticmethod
    def told(statistics: Statistics, place: tuple[int, ...], prior_mean: float | str, prior_std: float) -> tuple[Averages, int]:
        """What the batch row at `place` was told, without outliers, and the number of points that those are.

        Args:
            statistics: Of all batch rows.
            place: Index of the row.
            prior_mean: A number, or `"estimate"` for the average of the rewards of the points that are left.
            prior_std: Of a reward's average, reward units.
        """
        size = int(statistics.num_rows[place])
        points, totals = statistics.points[place][:size], statistics.totals[place][:size]
        pulled = totals[:, 0] > 0
        n, s, q = totals[pulled].unbind(dim=-1)
        kept = plausible(s / n, prior_std)
        points, n, s, q = points[pulled][kept], n[kept], s[kept], q[kept]
        mean = s.sum() / n.sum().clamp_min(1e-300) if isinstance(prior_mean, str) else prior_mean
        return Averages.of(points, n, s, q, mean), int((~kept).sum())

    def within(self, noise_variance: Tensor) -> Tensor:
        """Log density of the rewards given their averages, without the part of the averages: what no kernel changes."""
        n = self.weights
        log_noise = torch.log(2 * math.pi * noise_variance)
        return -0.5 * ((n - 1).sum() * log_noise + n.log().sum() + self.scatter.sum() / noise_variance)


def plausible(means: PerPoint, prior_std: float) -> Tensor:
    """Which averages lie within reach of the middle nine tenths (less, at least one on either side). What the prior itself
    holds possible is within reach: a peak that few points lie on is no outlier."""
    u = len(means)
    if u < FEWEST:
        return torch.ones_like(means, dtype=torch.bool)
    aside = max(1, u // 20)
    middle = means.sort().values[aside : u - aside]
    reach = torch.clamp(_FENCE * (middle[-1] - middle[0]), min=_POSSIBLE * prior_std)
    return (means >= middle[0] - reach) & (means <= middle[-1] + reach)


def pooled_noise(averages: Averages) -> float | None:
    """Variance of repeated pulls around their averages; None where they are too few."""
    degrees = averages.weights - 1
    repeated = degrees > 0
    if not bool(repeated.any()) or float(degrees[repeated].sum()) < _DEGREES:
        return None
    each = averages.scatter[repeated] / degrees[repeated]
    each = each.clamp_max(_WILD * each.median()) if bool(each.median() > 0) else each
    pooled = float((each * degrees[repeated]).sum() / degrees[repeated].sum())
    require(
        math.isfinite(pooled) and pooled > 0,
        "repeated pulls show no noise at all: observe(…, squares=…) the sums of squared rewards, or leave noise=False and pass "
        "regularization.",
        NumericalError,
    )
    return pooled


def nearest_distance(points: Points) -> float:
    """Median distance of a point (`u x d`, of the first 1,000) to the nearest other one; 0 for a single point. Cost O(u² d)."""
    some = points[:1000]
    if len(some) < 2:
        return 0.0
    distance = torch.cdist(some, some).fill_diagonal_(torch.inf)
    return float(distance.amin(dim=-1).median())
