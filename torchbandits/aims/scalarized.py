"""Several objectives combined to one number, by random weights for each pick or by the expected growth of the front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.aims.base import Aim, Limit, Outlook, certain, if_feasible, in_model_units, log_probability
from torchbandits.aims.dominance import non_dominated
from torchbandits.aims.improvement import HypervolumeGrowth
from torchbandits.arms import ArmTable
from torchbandits.scores import Score

KINDS = ("chebyshev", "linear", "hypervolume", "improvement")
# Factor of the weighted sum that is added to the smallest weighted objective, as in ParEGO.
_AUGMENTED = 0.05
# Distance of the reference point from the worst values of the front, as a fraction of the range of the front.
_BEYOND = 0.1
# Growth of the hypervolume, as a fraction of the product of the units, up to which it may be rounding of narrow cells.
_ROUNDED = 1e-10


@dataclass(frozen=True)
class Scalarized(Aim):
    r"""Pick the best arm by one number that combines all objectives.

    For random weights, with u_j the upper bound (or the draw) of objective j in its unit, above the reference
    point, and weights v ≥ 0:

    .. math:: \min_j v_j u_j + 0.05 \sum_j v_j u_j, \qquad \sum_j v_j u_j, \qquad \min_j \max(u_j, 0) / v_j

    for `"chebyshev"` and `"linear"` with v uniform on the simplex, and for `"hypervolume"` with v uniform on the positive part
    of the sphere, whose average over v is the dominated hypervolume up to a constant and a power.

    `"improvement"` draws no weights: the pick has the largest expected growth of the hypervolume that the front dominates above
    the reference point.

    Under limits, only arms that may keep them are picked; where there is none, the arm with the smallest sum of violations. The
    improvement is multiplied by the probability that the limits hold; where no arm keeps them with the probability `certainty`,
    the probability that they hold counts alone.

    Attributes:
        signs: Per outcome, 1.0 to maximise, −1.0 to minimise, and 0.0 for one that has limits only.
        kind: One of these four names.
        reference: The point, in reward units, that every objective should beat; it has an entry per outcome. None for the worst
            value of each on the front of the posterior means at the arms that were told, less a tenth of its range there, which
            is the unit of each objective; for the improvement, less a tenth of its range at all of these arms. For a known
            objective the worst value of all arms, less a tenth of its range, which is its unit.
        limits: Limits on any of the outcomes.
        certainty: Probability of all limits at which an arm may be on the front.
        optimism: Factor of the width in the bounds that decide whether an arm may keep a limit.
        exponent: Exponent of the cost by which the improvement is divided, or the gain of an arm over the best value of the
            posterior means under the same weights; None where costs do not count.
    """

    signs: tuple[float, ...]
    kind: str = "chebyshev"
    reference: tuple[float, ...] | None = None
    limits: tuple[Limit, ...] = ()
    certainty: float = 0.95
    optimism: float = 1.0
    exponent: float | None = None

    @property
    def draws(self) -> bool:
        """Whether a score draws random numbers: weights do, the improvement does not."""
        return self.kind != "improvement"

    def scores(self, outlook: Outlook, score: Score | None) -> Tensor:
        """Scores of the arms, `batch_shape x A`; draws a number per objective and batch row, if weights are drawn."""
        if self.kind == "improvement":
            return self._improvement(outlook)
        weights, kept = self._weights(outlook), self._kept(outlook)
        low, unit = self._scale(outlook, kept)
        total = self._total([outlook.hopes(j, sign) for j, sign in self.objectives], weights, low, unit)
        if self.exponent is not None:
            means = self._total(self._means(outlook), weights, low, unit)
            if kept is not None:
                # Where no arm keeps the limits with the probability `certainty`, gains are measured over the worst arm.
                means = torch.where(kept, means, means.amin(dim=-1, keepdim=True))
            total = outlook.per_cost(total - means.amax(dim=-1, keepdim=True), self.exponent)
        if not self.limits:
            return outlook.open(total)
        return if_feasible(outlook, total, self.limits, self.optimism, self.exponent)

    def bounds(self, outlook: Outlook, score: Score | None, value: Tensor) -> Tensor | None:
        """For the improvement: its growth is a convex function of each outcome, so that its expectation falls with the standard
        deviations, and it falls as the front grows. None for random weights, which are drawn anew for each pick."""
        if self.kind != "improvement":
            return None
        kept = self._kept(outlook)
        if kept is not None:
            value = value - outlook.log_chance(self.limits)
        if kept is None or bool(kept.any()):
            price = 0.0 if self.exponent is None or outlook.costs is None else self.exponent * outlook.costs.log()
            # A growth below this share of the units is made of rounding.
            floor = self._scale(outlook, kept)[1].log().sum() + math.log(_ROUNDED)
            value = torch.maximum(value + price, floor) - price
        if kept is None:
            return value
        return value + outlook.log_chance_bound(self.limits)

    def anchors(self, outlook: Outlook) -> Tensor:
        """The worst arm of each objective, and the arm that most probably keeps the limits."""
        found = [(sign * outlook.mean[j]).argmin() for j, sign in self.objectives]
        if self.limits:
            found.append(outlook.log_chance_told(self.limits).argmax())
        return torch.stack(found)

    def contenders(self, outlook: Outlook) -> Tensor:
        """The front of the posterior means at the told arms, of those that keep the limits if any do."""
        mean = torch.stack(self._means(outlook), dim=-1)
        kept = self._kept(outlook)
        contending = outlook.seen if kept is None else outlook.seen & kept
        contending = torch.where(contending.any(dim=-1, keepdim=True), contending, outlook.seen)
        found, (A, m) = torch.zeros_like(contending).reshape(-1, mean.shape[-2]), mean.shape[-2:]
        for row, values, some in zip(found, mean.reshape(-1, A, m), contending.reshape(-1, A), strict=True):
            place = some.nonzero().squeeze(-1)
            if len(place):
                row[place[non_dominated(values[place])]] = True
        return found.reshape(contending.shape)

    def _improvement(self, outlook: Outlook) -> Tensor:
        """Logarithm of the expected growth of the hypervolume above the front of the posterior means at the arms that were told
        or are pending, `batch_shape x A`; under limits times the probability that the arm keeps them."""
        kept = self._kept(outlook)
        low, _ = self._scale(outlook, kept)
        # Outcomes first in memory.
        mean = torch.stack(self._means(outlook), dim=-2).mT
        std = torch.stack([outlook.std[..., j, :] for j, _ in self.objectives], dim=-2).mT
        shape, (A, m) = outlook.told.shape, mean.shape[-2:]
        # A pending pick counts with its mean, so that the picks of a batch do not seek the same part of the front.
        members = outlook.seen | outlook.pending
        members = members if kept is None else members & kept
        rows = list(zip(mean.reshape(-1, A, m), std.reshape(-1, A, m), strict=True))
        growths = []
        for (mu, _), base, own in zip(rows, low.reshape(-1, m), members.reshape(-1, A), strict=True):
            front = mu[own]
            growths.append(HypervolumeGrowth(front[non_dominated(front)] if len(front) else front, base))
        found = [growth.bounds(*row) for growth, row in zip(growths, rows, strict=True)]
        gain, rough = (torch.stack(parts) for parts in zip(*found, strict=True))
        if kept is not None:
            # Where no arm keeps the limits, growth does not count.
            rough &= kept.any(dim=-1, keepdim=True).reshape(-1, 1)
        while True:
            total = self._with_chance(outlook, kept, gain.reshape(*shape, A))
            due = rough
            if outlook.only_best:
                # An upper bound that is below the best score says enough.
                score = total.reshape(-1, A)
                due = rough & (score >= score.masked_fill(rough, -torch.inf).amax(dim=-1, keepdim=True)) & (score > -torch.inf)
            if not bool(due.any()):
                return total
            for own, some, growth, (mu, sigma) in zip(gain, due, growths, rows, strict=True):
                place = some.nonzero().squeeze(-1)
                if len(place):
                    own[place] = growth.in_logarithms(mu[place], sigma[place])
            rough = rough & ~due

    def _with_chance(self, outlook: Outlook, kept: Tensor | None, gain: Tensor) -> Tensor:
        """Scores of the arms from the logarithms of their growth, `batch_shape x A` each."""
        if kept is not None:
            chance = outlook.log_chance(self.limits)
            gain = torch.where(kept.any(dim=-1, keepdim=True), gain + chance, chance)
        if self.exponent is not None and outlook.costs is not None:
            gain = gain - self.exponent * outlook.costs.log()
        return outlook.unsettled(gain)

    def _total(self, values: Sequence[Tensor], weights: Tensor, low: Tensor, unit: Tensor) -> Tensor:
        """The number that combines values of the m objectives, `batch_shape x A` each, larger being better, by weights
        `batch_shape x m`, given the result of `_scale`."""
        parts = [(value - low[..., [j]]) / unit[..., [j]] for j, value in enumerate(values)]
        weighted = [weights[..., [j]] * part for j, part in enumerate(parts)]
        total = torch.stack(weighted).sum(dim=0)
        if self.kind == "chebyshev":
            total = _AUGMENTED * total + torch.stack(weighted).amin(dim=0)
        if self.kind == "hypervolume":
            total = torch.stack([part.clamp_min(0) / weights[..., [j]] for j, part in enumerate(parts)]).amin(dim=0)
        return total

    def _scale(self, outlook: Outlook, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        """The point from which objectives are measured, and the unit of each, `batch_shape x m`: of the front of the posterior
        means at the arms that were told (of those that keep the limits, the result of `_kept`, if any do)."""
        objectives, signed = self.objectives, torch.stack(self._means(outlook), dim=-1)
        reach = torch.stack([outlook.reach[..., j] for j, _ in objectives], dim=-1)
        shape, A, m = outlook.told.shape, signed.shape[-2], len(objectives)
        seen, flat_reach = outlook.seen.reshape(-1, A), reach.reshape(-1, m)
        good = seen if kept is None else seen & kept.reshape(-1, A)
        lows, units = [], []
        for values, told, held, most in zip(signed.reshape(-1, A, m), seen, good, flat_reach, strict=True):
            points = next((values[mask] for mask in (held, told) if bool(mask.any())), values)
            front = points[non_dominated(points)]
            low, high = front.amin(dim=0), front.amax(dim=0)
            # An objective in which the members of the front differ by rounding at most is measured by what else is known.
            for others in (points, values):
                low = torch.where(high - low > 1e-6 * most, low, others.amin(dim=0))
            unit = torch.where(high - low > 1e-6 * most, high - low, most)
            # If the members of the front hardly differ in an objective, their range is too small a distance for the reference
            # point.
            wide = unit if self.draws else torch.maximum(unit, points.amax(dim=0) - points.amin(dim=0))
            lows.append(low - _BEYOND * wide)
            units.append(unit)
        low, unit = (torch.stack(rows).reshape(*shape, m) for rows in (lows, units))
        if outlook.num_known:
            # What an arm may add is not limited by the known values of the arms that were told.
            given = torch.tensor([outlook.is_known(j) for j, _ in objectives], device=low.device)
            unit = torch.where(given, reach, unit)
            low = torch.where(given, signed.amin(dim=-2) - _BEYOND * reach, low)
        if self.reference is not None:
            references = [sign * in_model_units(outlook.table, j, self.reference[j]) for j, sign in objectives]
            low = torch.stack(references, dim=-1).to(low)
        return low, unit

    @property
    def objectives(self) -> list[tuple[int, float]]:
        """Indices and signs of the outcomes that are objectives."""
        return [(j, sign) for j, sign in enumerate(self.signs) if sign]

    def _means(self, outlook: Outlook) -> list[Tensor]:
        """The posterior mean of each objective, larger being better, `batch_shape x A` each."""
        return [sign * outlook.mean[..., j, :] for j, sign in self.objectives]

    def kept(self, mean: Tensor, std: Tensor, table: ArmTable) -> Tensor | None:
        """The arms that keep the limits with the probability `certainty`, `batch_shape x A` booleans; None without limits."""
        return certain(log_probability(mean, std, self.limits, table), self.certainty) if self.limits else None

    def _kept(self, outlook: Outlook) -> Tensor | None:
        """`kept` by the rewards told."""
        return self.kept(outlook.mean, outlook.known, outlook.table)

    def _weights(self, outlook: Outlook) -> Tensor:
        """Weights of the objectives, `batch_shape x k`, drawn from the generator of each batch row."""
        shape, k = outlook.told.shape, len(self.objectives)
        rest = torch.full((k,), 0.5, dtype=torch.float64)
        rows = [rest if g is None else torch.rand(k, generator=g, dtype=torch.float64) for g in outlook.generators]
        drawn = torch.stack(rows).clamp(1e-12, 1 - 1e-12).reshape(*shape, k)
        if self.kind == "hypervolume":
            # Absolute normal numbers, normalised, are uniform on the positive part of the sphere.
            normal = torch.special.ndtri((1 + drawn) / 2)
            weights = normal / normal.norm(dim=-1, keepdim=True)
        else:
            # Exponential numbers, normalised, are uniform on the simplex.
            exponential = -drawn.log()
            weights = exponential / exponential.sum(dim=-1, keepdim=True)
        return weights.clamp_min(1e-12).to(outlook.mean.device)
