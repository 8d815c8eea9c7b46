r"""Reward units and model units: a monotone map that makes rewards look normally distributed, whatever their scale.

A Gaussian process expects rewards around 0 with the tails of a normal distribution. Rewards of a laboratory or a benchmark have
arbitrary units, and often one long tail. The model observes normal scores of their ranks instead, and its predictions are
mapped back.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchbandits.buffered import Buffered
from torchbandits.posteriors.averages import pooled_variance
from torchbandits.posteriors.blocks import cells_of, shifts_by_block, unshifted
from torchbandits.posteriors.statistics import Statistics
from torchbandits.posteriors.two_values import two_values as pair_of
from torchbandits.types import Marginals, PerPoint, Pulls

_MOST_KNOTS = 256
# Averages that differ by at most this many rounding errors of the largest are equal, because the average of a reward that was
# told three times may differ from it in the last digit.
_EQUAL = 64
# An average is far off if its score exceeds the scores of all averages of the last fit by this much. A new best average that
# exceeds them by a few standard deviations does not count: refits at thresholds of 3 and of 20 raised the regret on tables that
# are not among the reported ones.
_FAR = 50.0
# Smallest distance on both sides of a mean over which the slope of the map is taken, in units of the scores.
_SLOPE = 1.5
# Number of repeated pulls from which averages are compared by their noise, and the standard errors by which one is clearly
# better: many, because few repeats tell the noise roughly, and larger values may be noisier.
_FEW_REPEATS, _CLEARLY = 3, 5.0
# Number of pulls of an arm that count in the ranks.
_MOST_COUNTED = 64
# The scores of a single value at three knots. Those of three values have unit variance, and never are these.
_ONE_VALUE = (-1.0, 0.0, 1.0)


class Units(Buffered):
    r"""The ranges of features, and a strictly increasing, piecewise linear map g from rewards to model units, per batch row.

    Each distinct point i has weight r_i, the square root of its number of pulls, of which at most 64 count; r is the total
    weight and r_{<i} the weight of lower averages. At the average reward :math:`\bar y_i`, g is the normal score of its rank

    .. math:: g(\bar y_i) = \frac cs \, \Phi^{-1}\Big(\frac{r_{<i} + r_i/2 + 1/8}{r + 1/4}\Big)

    with s such that the weighted scores have unit variance, and c > 0 the `scale` of the batch row. The score of an arm that is
    pulled repeatedly moves towards the middle, so that other arms become worth exploring. If points were weighted by their
    number of pulls, the scores would describe the noise of such an arm; and if all pulls counted, an arm pulled a thousand
    times would come so close to the middle, where arms without pulls are expected, that all of them would be worth exploring.
    Beyond the extremes g continues along the chord from the quartile. Before `refit_` it is the identity. Rewards that are all
    equal, y, have the score 0, and a slope of 1/|y|, or 1 if they are 0.

    Once repeated pulls tell the standard deviation σ of the noise, scores rise by at most 1/σ per unit of reward before they
    are scaled. So do the normal scores of single rewards with normal noise, whatever the means of the arms are. Ranks of
    averages alone would draw the best arms apart by far more than their noise in the model, however little they differ.

    If the rewards have two values, such as yes and no, their own ranks are taken, not those of averages, and g is linear. (The
    weight r_i is divided between the two values as the rewards of the point are.) Among averages, an arm with 8 successes in 10
    pulls would rank below all arms that succeeded once.

    Args:
        features: `batch_shape x d`, the range of each feature of the arms, > 0.

    Buffers, float64: `features`; `knots`, `scores` `batch_shape x K`, ascending, ∞ where padded; `scale` `batch_shape`; and
    `totals` `batch_shape x u x 3` (sum, sum of squares, sum of squared deviations from the average) of the original rewards, in
    the rows of the statistics; deviations that are not known are NaN, and follow from the squares. Once rewards are told with
    their block, `cells` `batch_shape x c x 6` (`posteriors.blocks.COLUMNS`) holds each reward, and the totals are those of the
    rewards less the shifts of their blocks. `forecasts` `batch_shape x 3` sums over the rewards that were predicted before they
    were told: their number, the squared errors of their scores, and the squares of their scores. `unasked` `batch_shape x 1` is
    the number of pulls told that were never asked for, and empty before the first of them. Buffers are replaced, never written
    in place.

    Source: normal scores after Blom 1958; their use for rewards in optimisation, Salinas et al. 2020.
    """

    features: Tensor
    knots: Tensor
    scores: Tensor
    scale: Tensor
    totals: Tensor
    cells: Tensor
    forecasts: Tensor
    unasked: Tensor
    _grows = ("knots", "scores", "totals", "cells", "unasked")

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        batch_shape, device = features.shape[:-1], features.device
        self.register_buffer("features", features.double().contiguous().clone())
        line = torch.tensor([0.0, 1.0], dtype=torch.float64, device=device).expand(*batch_shape, 2).clone()
        self.register_buffer("knots", line)
        self.register_buffer("scores", line.clone())
        self.register_buffer("scale", torch.ones(batch_shape, dtype=torch.float64, device=device))
        self.register_buffer("totals", torch.zeros(*batch_shape, 0, 3, dtype=torch.float64, device=device))
        self.register_buffer("cells", torch.zeros(*batch_shape, 0, 6, dtype=torch.float64, device=device))
        self.register_buffer("forecasts", torch.zeros(*batch_shape, 3, dtype=torch.float64, device=device))
        self.register_buffer("unasked", torch.zeros(*batch_shape, 0, dtype=torch.float64, device=device))

    # ------------------------------------------------------------------ the map

    def to_model(self, rewards: PerPoint) -> Tensor:
        """g of rewards, `batch_shape x p`, model units."""
        return self.scale.unsqueeze(-1) * _interpolated(rewards, self.knots, self.scores)

    def to_rewards(self, values: Tensor) -> Tensor:
        """Inverse of g, `batch_shape x p`, reward units. It maps quantiles of the model to the same quantiles of the reward."""
        return _interpolated(values / self.scale.unsqueeze(-1), self.scores, self.knots)

    def marginals(self, model: Marginals) -> Marginals:
        """The reward at points with the model's mean and variance, `batch_shape x n`, differentiable: its median, and the
        square of half the distance between its 16 % and 84 % quantiles. For a linear g these are mean and variance.

        If the standard deviation is less than 1.5 units of the scores, the distance is that of the quantiles at ±1.5 units,
        reduced in proportion: over shorter distances the slope of g depends on the noise of two or three averages.
        """
        mean, std = model.mean.double(), model.variance.double().clamp_min(1e-300).sqrt()
        wide = torch.maximum(std, _SLOPE * self.scale.unsqueeze(-1))
        median, above, below = (self.to_rewards(mean + sign * wide) for sign in (0, 1, -1))
        deviation = (above - below) * std / (2 * wide)
        return Marginals(median.to(model.mean.dtype), deviation.square().to(model.mean.dtype))

    def far_off(self, statistics: Statistics) -> Tensor:
        """Whether the highest average lies far beyond the scores of the last fit, `batch_shape`. Without a new fit its arm
        would be pulled forever. If all averages of that fit were equal, so that it knew no scale, any other one is far off."""
        told = statistics.pulled
        score = _interpolated(self.averages(statistics), self.knots, self.scores)
        highest = self.scores.masked_fill(self.scores == torch.inf, -torch.inf).amax(dim=-1, keepdim=True)
        far = (told & (score > highest + _FAR)).any(dim=-1)
        if self.scores.shape[-1] < len(_ONE_VALUE):
            return far
        one = (self.scores[..., : len(_ONE_VALUE)] == self.scores.new_tensor(_ONE_VALUE)).all(dim=-1)
        return far | (one & ~self.constant(statistics))

    def constant(self, statistics: Statistics) -> Tensor:
        """Whether all rewards are equal, up to rounding, so that the scale of the rewards is not known; `batch_shape`."""
        told, average = statistics.pulled, self.averages(statistics)
        if not average.shape[-1]:
            return torch.ones(average.shape[:-1], dtype=torch.bool, device=average.device)
        high = torch.where(told, average, -torch.inf).amax(dim=-1)
        low = torch.where(told, average, torch.inf).amin(dim=-1)
        equal = high - low <= _EQUAL * torch.finfo(average.dtype).eps * torch.maximum(high.abs(), low.abs())
        return equal & (self.scatter(statistics)[1].sum(dim=-1) == 0)

    # ------------------------------------------------------------------ observations

    def add_(self, rows: Tensor, sums: Tensor, squares: Tensor, size: int, deviations: Tensor | None = None) -> None:
        """Add sums of rewards and of their squares, reward units, to rows of the statistics (`batch_shape x p`, −1 is ignored),
        which has `size` rows. `deviations` is the result of `deviations_with`; not known if None."""
        totals = nn.functional.pad(self.totals, (0, 0, 0, size - self.totals.shape[-2]))
        unknown = torch.full_like(sums, torch.nan) if deviations is None else torch.zeros_like(sums)
        added = torch.where((rows >= 0).unsqueeze(-1), torch.stack([sums, squares, unknown], dim=-1).double(), 0.0)
        totals = totals.scatter_add(-2, rows.clamp_min(0).unsqueeze(-1).expand(*rows.shape, 3), added)
        if deviations is not None:
            totals[..., 2] = deviations
        self.totals = totals

    def deviations_with(self, rows: Tensor, counts: Tensor, sums: Tensor, squares: Tensor, statistics: Statistics) -> Tensor:
        """Sum of squared deviations from the average in each row of the statistics, which include the new pulls already.

        They are computed from differences to averages, because squares of rewards far from 0 would cancel. Cost O(u + q).

        Args:
            rows: `batch_shape x q`, the row of each pull; −1 is ignored, and rows may come again.
            counts, sums, squares: `batch_shape x q`, of the pulls that are not in the totals yet.
            statistics: Statistics with the pulls.

        Returns:
            `batch_shape x u`.
        """
        there, row = (rows >= 0) & (counts > 0), rows.clamp_min(0)
        old = nn.functional.pad(self.totals, (0, 0, 0, statistics.size - self.totals.shape[-2]))
        n, s, q = (torch.where(there, x.double(), 0.0) for x in (counts, sums, squares))
        average, none = s / n.clamp_min(1e-300), torch.zeros_like(statistics.weights)
        # Within pulls that were summed, only their squares are known.
        within = q - s * average
        within = torch.where((n > 1) & (within > 64 * torch.finfo(n.dtype).eps * q), within, 0.0)
        new, total = none.scatter_add(-1, row, n), none.scatter_add(-1, row, s)
        middle, before = total / new.clamp_min(1e-300), (statistics.weights - new).clamp_min(0)
        within = within + n * (average - middle.gather(-1, row)).square()
        apart = torch.where((before > 0) & (new > 0), old[..., 0] / before.clamp_min(1e-300) - middle, 0.0)
        between = before * new / (before + new).clamp_min(1e-300) * apart.square()
        return old[..., 2] + none.scatter_add(-1, row, within) + between

    def add_unasked_(self, pulls: Tensor) -> None:
        """Count pulls that were never asked for, `batch_shape`."""
        self.unasked = self.unasked.sum(dim=-1, keepdim=True) + pulls.to(self.unasked).unsqueeze(-1)

    def add_forecasts_(self, mean: Tensor, rewards: Tensor, fresh: Tensor) -> None:
        """Compare rewards that are about to be told with the model's predictions of them, `batch_shape x q` each.

        Args:
            mean: Posterior means, model units.
            rewards: Rewards, reward units. Their scores are at most those of the extremes of the last fit.
            fresh: Which of them are predictions: those at points without earlier rewards.
        """
        highest = self.knots.masked_fill(self.knots == torch.inf, -torch.inf).amax(dim=-1, keepdim=True)
        within = torch.minimum(torch.maximum(rewards.double(), self.knots[..., :1]), highest)
        score = _interpolated(within, self.knots, self.scores)
        error = score - mean.double() / self.scale.unsqueeze(-1)
        parts = torch.stack([torch.ones_like(score), error.square(), score.square()], dim=-1)
        self.forecasts = self.forecasts + torch.where(fresh.unsqueeze(-1), parts, 0.0).sum(dim=-2)

    # ------------------------------------------------------------------ blocks

    @property
    def blocked(self) -> bool:
        """Whether rewards were told with their block."""
        return self.cells.shape[-2] > 0

    def begin_blocks_(self, counts: Tensor) -> None:
        """Record the rewards that were told before any had a block, given their number in each row, `batch_shape x u`."""
        n, (s, q, known) = counts[..., : self.totals.shape[-2]], self.totals.unbind(dim=-1)
        deviations = torch.where(known.isnan(), (q - s.square() / n.clamp_min(1e-300)).clamp_min(0), known)
        rows = torch.arange(n.shape[-1], device=n.device).expand(n.shape)
        self.cells = cells_of(rows, torch.full_like(rows, -1), n, s, deviations)

    def add_to_blocks_(self, rows: Tensor, pulls: Pulls) -> None:
        """Record pulls by their block; `rows` as for `deviations_with`."""
        block = torch.full_like(rows, -1) if pulls.block is None else pulls.block
        within = (pulls.squares - pulls.sums.square() / pulls.counts.clamp_min(1e-300)).clamp_min(0)
        within = torch.where(pulls.counts > 1, within, 0.0)
        self.cells = torch.cat([self.cells, cells_of(rows, block, pulls.counts, pulls.sums, within)], dim=-2)

    def shift_(self, cells: Tensor) -> None:
        """Replace the cells by the same ones with other shifts, and with them the totals."""
        self.cells, self.totals = cells, unshifted(cells, self.totals.shape[-2])

    def shifts(self, place: tuple[int, ...]) -> Tensor:
        """The shift of each block of the batch row at `place`, reward units."""
        return shifts_by_block(self.cells[place])

    # ------------------------------------------------------------------ averages

    def averages(self, statistics: Statistics) -> Tensor:
        """Average reward of each distinct point, `batch_shape x u`, reward units."""
        return self.totals[..., 0] / statistics.weights.clamp_min(1e-300)

    def scatter(self, statistics: Statistics) -> tuple[Tensor, Tensor]:
        """For each distinct point the number of pulls beyond the first, and the sum of squared deviations of its rewards from
        their average, reward units squared; `batch_shape x u` each."""
        n, told = statistics.weights, statistics.pulled
        average, rounding = self.averages(statistics), 64 * torch.finfo(n.dtype).eps
        squares, deviations = self.totals[..., 1], self.totals[..., 2]
        scatter = squares - n * average.square()
        scatter = torch.where(scatter > rounding * squares, scatter, 0.0)
        # The deviations of equal rewards are rounding errors of their average.
        deviations = torch.where(deviations > n * (rounding * average).square(), deviations, 0.0 * deviations)
        scatter = torch.where(deviations.isnan(), scatter, deviations)
        return torch.where(told, n - 1, 0.0), torch.where(told, scatter, 0.0)

    def repeats(self, statistics: Statistics) -> tuple[Tensor, Tensor]:
        """The number of repeated pulls, and the variance of rewards around the averages of their points as a share of the
        variance of the averages, `batch_shape` each."""
        n, told, average = statistics.weights, statistics.pulled, self.averages(statistics)
        degrees, each = self.scatter(statistics)
        distinct, more, scatter = told.sum(dim=-1), degrees.sum(dim=-1), each.sum(dim=-1)
        middle = torch.where(told, average, 0.0).sum(dim=-1) / distinct.clamp_min(1)
        apart = torch.where(told, (average - middle.unsqueeze(-1)).square(), 0.0).sum(dim=-1) / (distinct - 1).clamp_min(1)
        return more, scatter / more.clamp_min(1) / apart.clamp_min(torch.finfo(n.dtype).tiny)

    def recommended(self, statistics: Statistics, mean: Tensor, signs: Tensor | None) -> Tensor:
        """The point to recommend: the one with the highest mean, unless others were clearly measured to be better than it.

        A model that takes differences between points for noise expects too little of a point whose rewards are far above all
        others. Repeated pulls tell how large the noise is: averages that differ by more than `_CLEARLY` standard errors differ
        in truth. Of the points that are better than the first by so much, the one with the highest average is recommended. Not
        with rewards of two values, whose noise depends on the point, and not with blocks, whose shifts are estimates.

        Args:
            statistics: Pulls of the points.
            mean: `batch_shape x u`, posterior means, larger is better; −∞ for points that are not recommended.
            signs: −1 where small rewards are good, that multiplies averages; None if large ones always are.

        Returns:
            Its place, `batch_shape x 1`.
        """
        first = mean.argmax(dim=-1, keepdim=True)
        if self.blocked or not statistics.size:
            return first
        (degrees, scatter), n = self.scatter(statistics), statistics.weights.clamp_min(1e-300)
        average = self.averages(statistics) if signs is None else signs * self.averages(statistics)
        repeats, noise = degrees.sum(dim=-1, keepdim=True), scatter.sum(dim=-1, keepdim=True)
        error = (noise / repeats.clamp_min(1) * (1 / n + 1 / n.gather(-1, first))).sqrt()
        better = (average - average.gather(-1, first) > _CLEARLY * error) & (mean > -torch.inf)
        varied = self.knots.isfinite().sum(dim=-1, keepdim=True) > len(_ONE_VALUE)
        better = better & (repeats >= _FEW_REPEATS) & (noise > 0) & varied
        found = average.masked_fill(~better, -torch.inf).argmax(dim=-1, keepdim=True)
        return torch.where(better.any(dim=-1, keepdim=True), found, first)

    def two_values(self, statistics: Statistics, place: tuple[int, ...]) -> tuple[float, float] | None:
        """The lower and the higher value of the rewards of the batch row at `place`, if they have two; otherwise None."""
        told = statistics.pulled[place]
        data = (statistics.weights, self.averages(statistics), self.scatter(statistics)[1])
        return pair_of(*(t[place][told] for t in data))

    def refit_(self, statistics: Statistics, rows: Tensor, *, two_values: bool = False) -> Tensor:
        """Recompute the map from the averages of the marked batch rows (`batch_shape` booleans). Cost O(u log u) per row.

        Args:
            statistics: Statistics with the pulls.
            rows: `batch_shape` booleans.
            two_values: Whether to rank the rewards themselves where they have two values.

        Returns:
            Which of these rows have rewards of two values; their variance is 1 before the scale. `batch_shape`, on the host.
        """
        average, told = self.averages(statistics), statistics.pulled
        shape, u = average.shape[:-1], average.shape[-1]
        flat, maps, two = rows.reshape(-1).tolist(), [], torch.zeros(shape.numel(), dtype=torch.bool)
        data = (average, statistics.weights, self.scatter(statistics)[1], told)
        for row, (y, n, s, good) in enumerate(zip(*(t.reshape(shape.numel(), u) for t in data), strict=True)):
            if not (flat[row] and bool(good.any())):
                maps.append((self.knots.reshape(two.numel(), -1)[row], self.scores.reshape(two.numel(), -1)[row]))
                continue
            y, n, s = y[good], n[good], s[good]
            pair, weight = pair_of(n, y, s) if two_values else None, n.clamp_max(_MOST_COUNTED).sqrt()
            if pair is not None:
                low, high = pair
                part = weight * (y - low) / (high - low)
                y, weight = y.new_tensor(pair), torch.stack([(weight - part).sum(), part.sum()])
            two[row] = pair is not None
            maps.append(normal_scores(y, weight, _noise_std(n, s) if pair is None else 0.0))
        size = max(len(knots) for knots, _ in maps)

        def padded(values: tuple[Tensor, ...]) -> Tensor:
            wide = [nn.functional.pad(v, (0, size - len(v)), value=torch.inf) for v in values]
            return torch.stack(wide).reshape(*shape, size)

        self.knots, self.scores = (padded(values) for values in zip(*maps, strict=True))
        return two.reshape(shape)

    def set_features_(self, ranges: Tensor) -> None:
        """Set the ranges of features, `batch_shape x d`."""
        self.features = ranges.to(self.features).contiguous()

    def rescale_(self, scale: Tensor) -> None:
        """Set c, `batch_shape`."""
        self.scale = scale.to(self.scale)

    def told(self, statistics: Statistics) -> Tensor:
        """Totals of the statistics in model units, `batch_shape x u x 3` (weight, sum, sum of squares). The scatter of rewards
        around an average is mapped through that average plus and minus their standard deviation."""
        n, average = statistics.weights, self.averages(statistics)
        std = (self.scatter(statistics)[1] / n.clamp_min(1e-300)).sqrt()
        z, above, below = (self.to_model(average + std * sign) for sign in (0, 1, -1))
        # Half the difference between the images of average ± standard deviation is the standard deviation in model units.
        return torch.stack([n, n * z, n * (z.square() + (above - below).square() / 4)], dim=-1)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self.blocked:
            del destination[prefix + "cells"]
        if not self.unasked.shape[-1]:
            del destination[prefix + "unasked"]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        totals = state_dict.get(prefix + "totals")
        if totals is not None and totals.shape[-1] == 2:
            # A state that was saved before deviations were kept.
            state_dict[prefix + "totals"] = nn.functional.pad(totals, (0, 1), value=torch.nan)
        # A state without blocks or pulls that were not asked for, or one that was saved before forecasts were kept.
        state_dict.setdefault(prefix + "cells", self.cells[..., :0, :])
        state_dict.setdefault(prefix + "unasked", self.unasked[..., :0])
        state_dict.setdefault(prefix + "forecasts", torch.zeros_like(self.forecasts))
        super()._load_from_state_dict(state_dict, prefix, *args)


def _noise_std(counts: Tensor, scatter: Tensor) -> float:
    """Standard deviation of rewards around the averages of their points, given the pulls and the scatter of each, `u`; 0 where
    repeated pulls do not tell it."""
    return math.sqrt(pooled_variance(counts - 1, scatter) or 0.0)


def normal_scores(rewards: Tensor, weights: Tensor, noise_std: float = 0.0) -> tuple[Tensor, Tensor]:
    """Distinct rewards in ascending order, and their normal scores of unit variance: at least 2 and at most 256 of each.

    Args:
        rewards: `u` averages, u > 0.
        weights: `u`, weight of each average.
        noise_std: Standard deviation σ of the noise of a reward, 0 where it is not known. Before they are scaled, scores rise
            by at most 1/σ per unit of reward.
    """
    values, group = rewards.unique(return_inverse=True)
    apart = values.diff() > _EQUAL * torch.finfo(values.dtype).eps * values.abs().amax()
    first = nn.functional.pad(apart, (1, 0), value=True)
    values, group = values[first], (first.cumsum(0) - 1)[group]
    count = torch.zeros_like(values).scatter_add(0, group, weights)
    total = count.sum()
    scores = torch.special.ndtri((count.cumsum(0) - 0.5 * count + 0.125) / (total + 0.25))
    # A single value does not determine a scale: its own size stands in, and 1 for a value of 0.
    if len(values) == 1:
        step = torch.where(values.abs() <= torch.finfo(values.dtype).tiny ** 0.25, 1.0, values.abs())
        return torch.cat([values - step, values, values + step]), values.new_tensor(_ONE_VALUE)
    if noise_std > 0:
        rises = torch.minimum(scores.diff(), values.diff() / noise_std)
        # However small they are beside the noise, distinct rewards must keep distinct scores.
        scores = nn.functional.pad((rises / rises.sum()).cumsum(0), (1, 0))
        scores = scores - (scores * count).sum() / total
    spread = ((scores.square() * count).sum() / total - ((scores * count).sum() / total).square()).sqrt()
    if len(values) > _MOST_KNOTS:
        kept = torch.linspace(0, len(values) - 1, _MOST_KNOTS, dtype=torch.float64, device=values.device).round().long()
        values, scores = values[kept], scores[kept]
    return values, scores / spread


def _interpolated(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Piecewise linear interpolation, `batch_shape x p` with knots `batch_shape x K`; beyond the extremes along the chord from
    the quartile."""
    knots, values = (t.expand(*x.shape[:-1], -1) for t in (knots, values))
    last = (knots < torch.inf).sum(dim=-1, keepdim=True) - 1
    inner = (last + 1) // 4
    place = torch.searchsorted(knots.contiguous(), x.detach().contiguous().to(knots.dtype), right=True)
    below, above = place == 0, place > last
    left = torch.where(below, 0, torch.where(above, last - inner.clamp_min(1), place - 1))
    right = torch.where(below, inner.clamp_min(1), torch.where(above, last.expand_as(place), place))
    x0, x1 = knots.gather(-1, left), knots.gather(-1, right)
    y0, y1 = values.gather(-1, left), values.gather(-1, right)
    return torch.where(above, y1, y0) + (y1 - y0) / (x1 - x0) * (x - torch.where(above, x1, x0))
