"""Average rewards of one batch row as input of the evidence, without the outliers that would spoil a fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchbandits.errors import NumericalError, require
from torchbandits.kernels import kernel_matrix
from torchbandits.posteriors.statistics import Statistics
from torchbandits.tanimoto import TanimotoKernel
from torchbandits.types import PerPoint, Points, Square

# Smallest number of points for a fit, and for the search for outliers.
FEWEST = 5
# An average further from the middle nine tenths of the averages than this multiple of their range is an outlier.
_FENCE = 1.5
# Few averages show no tail: of six random rewards of real tables one was beyond that fence in 15 to 42 % of samples. For fewer
# than so many averages it is this wide.
_FEW, _WIDE_FENCE = 20, 10.0
# Averages within this many prior standard deviations are never outliers.
_POSSIBLE = 3.0
# Degrees of freedom from which the noise is estimated from repeated pulls alone.
_DEGREES = 10
# The reward variance of a point is clipped at this multiple of the median variance.
_WILD = 36.0


@dataclass(frozen=True)
class Averages:
    """Rewards of one batch row, summarised per distinct point.

    Attributes:
        points: `u x d`.
        weights: `u`, number of pulls n > 0 of each point; need not be integers.
        residuals: `u`, average reward minus the prior mean, reward units.
        scatter: `u`, Σ(y − ȳ)² ≥ 0 of each point, squared reward units.
    """

    points: Tensor
    weights: Tensor
    residuals: Tensor
    scatter: Tensor

    @staticmethod
    def of(points: Points, weights: PerPoint, sums: PerPoint, squares: PerPoint, prior_mean: float | Tensor) -> Averages:
        """Averages s/n and scatter q − s²/n from counts n, sums s and sums of squares q."""
        means = sums / weights
        scatter, rounding = squares - sums * means, 64 * torch.finfo(squares.dtype).eps * squares
        return Averages(points, weights, means - prior_mean, torch.where(scatter > rounding, scatter, 0.0))

    @staticmethod
    def told(statistics: Statistics, place: tuple[int, ...], prior_mean: float | str, prior_std: float) -> tuple[Averages, int]:
        """Observed averages of the batch row at `place` without outliers, and the number of points left out.

        Args:
            statistics: Statistics of all batch rows.
            place: Index of the batch row.
            prior_mean: A number, or `"estimate"` for the average reward of the points that are not outliers.
            prior_std: Prior standard deviation of an average reward, reward units.
        """
        points = statistics.points_of(place)
        totals = statistics.totals[place][: len(points)]
        pulled = totals[:, 0] > 0
        n, s, q = totals[pulled].unbind(dim=-1)
        kept = plausible(s / n, prior_std)
        points, n, s, q = points[pulled][kept], n[kept], s[kept], q[kept]
        mean = s.sum() / n.sum().clamp_min(1e-300) if isinstance(prior_mean, str) else prior_mean
        return Averages.of(points, n, s, q, mean), int((~kept).sum())

    def thinned(self, most: int) -> Averages:
        """Subset of at most `most` points, evenly spaced in the order of their averages. Cost O(u log u)."""
        u = len(self.weights)
        if u <= most:
            return self
        order = self.residuals.argsort(stable=True)
        kept = order[torch.linspace(0, u - 1, most, dtype=torch.float64, device=order.device).round().long()]
        return Averages(self.points[kept], self.weights[kept], self.residuals[kept], self.scatter[kept])

    @cached_property
    def similarities(self) -> Square:
        """Tanimoto similarities of the points, `u x u`. They have no parameters. Cost O(u² d) once."""
        with torch.no_grad():
            return kernel_matrix(TanimotoKernel(), self.points, self.points)

    def within(self, noise_variance: Tensor) -> Tensor:
        """Log density of the rewards given their averages: the part of the evidence that does not depend on the kernel."""
        n = self.weights
        log_noise = torch.log(2 * math.pi * noise_variance)
        return -0.5 * ((n - 1).sum() * log_noise + n.log().sum() + self.scatter.sum() / noise_variance)

    def slope_within(self, noise_variance: Tensor) -> Tensor:
        """Derivative of `within` with respect to the noise variance."""
        return -0.5 * ((self.weights - 1).sum() - self.scatter.sum() / noise_variance) / noise_variance


def plausible(means: PerPoint, prior_std: float) -> Tensor:
    """Whether each average lies close enough to the middle nine tenths of the averages, `u` booleans.

    The middle excludes at least one average on either side. Averages that are likely under the prior are never outliers, so
    that a peak observed at few points is kept. Outliers that are more than a twentieth, all on one side, are therefore kept,
    and of fewer than twenty averages only what is wildly different is one.
    Fences from quartiles or from the middle eight tenths, and a gap of 1.5 spans below the rest, find up to a tenth of them,
    but also take genuine peaks and plateaus for outliers: each made fits to some rewards without outliers worse.
    """
    u = len(means)
    if u < FEWEST:
        return torch.ones_like(means, dtype=torch.bool)
    aside = max(1, u // 20)
    middle = means.sort().values[aside : u - aside]
    fence = _WIDE_FENCE if u < _FEW else _FENCE
    reach = torch.clamp(fence * (middle[-1] - middle[0]), min=_POSSIBLE * prior_std)
    return (means >= middle[0] - reach) & (means <= middle[-1] + reach)


def pooled_noise(averages: Averages) -> float | None:
    """Variance of repeated pulls around their averages; None if there are too few."""
    pooled = pooled_variance(averages.weights - 1, averages.scatter)
    require(
        pooled is None or (math.isfinite(pooled) and pooled > 0),
        "repeated pulls show no noise at all: observe(…, squares=…) the sums of squared rewards, or leave noise=False and pass "
        "regularization.",
        NumericalError,
    )
    return pooled


def pooled_variance(degrees: PerPoint, scatter: PerPoint) -> float | None:
    """Variance of repeated pulls; None if there are too few.

    Args:
        degrees: `u`, number of pulls of each point beyond the first.
        scatter: `u`, sum of squared deviations of rewards from the average of their point.
    """
    repeated = degrees > 0
    if not bool(repeated.any()) or float(degrees[repeated].sum()) < _DEGREES:
        return None
    each = scatter[repeated] / degrees[repeated]
    # A few points with wild rewards must not determine the noise of all others.
    each = each.clamp_max(_WILD * each.median()) if bool(each.median() > 0) else each
    return float((each * degrees[repeated]).sum() / degrees[repeated].sum())


def nearest_distance(points: Points) -> float:
    """Median distance from a point (`u x d`, the first 1,000) to its nearest neighbour; 0 for a single point. Cost O(u² d)."""
    some = points[:1000]
    if len(some) < 2:
        return 0.0
    distance = torch.cdist(some, some).fill_diagonal_(torch.inf)
    return float(distance.amin(dim=-1).median())
