"""ε-PAL: which arms are Pareto optimal, decided by confidence bounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.aims.base import Aim, Outlook
from torchbandits.aims.dominance import covered, non_dominated
from torchbandits.scores import Score


@dataclass(frozen=True)
class Certifying(Aim):
    """Pick the most uncertain arm among those that may be Pareto optimal.

    Uncertainty is the length of the diagonal of the box of confidence intervals, each in units of ε.

    Attributes:
        signs: 1.0 per objective to maximise, −1.0 to minimise.
        epsilon: Per objective, the difference that does not matter, reward units, > 0.
        exponent: Exponent of the cost by which the uncertainty of an arm is divided; None where costs do not count.
    """

    signs: tuple[float, ...]
    epsilon: tuple[float, ...]
    exponent: float | None = None

    def scores(self, outlook: Outlook, score: Score | None) -> Tensor:
        """Scores of the arms, `batch_shape x A`."""
        lower, upper = self.corners(outlook.mean, outlook.width.unsqueeze(-1) * outlook.known)
        _, outside = classified(lower, upper, lower.new_tensor(self.epsilon), outlook.entries)
        unit = outlook.width / outlook.width.new_tensor(self.epsilon)
        diagonal = (unit.unsqueeze(-1) * outlook.std).square().sum(dim=-2).sqrt()
        diagonal = outlook.per_cost(diagonal, self.exponent)
        scores = outlook.open(diagonal.masked_fill(outside, -torch.inf))
        # If none of the undecided arms is on offer, the other arms are picked by their uncertainty.
        none = (scores == -torch.inf).all(dim=-1, keepdim=True)
        return torch.where(none, outlook.open(diagonal), scores)

    def corners(self, mean: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """The lower and upper corner of each arm's box, `batch_shape x A x k` each, larger being better."""
        signed = (mean.new_tensor(self.signs).unsqueeze(-1) * mean).mT
        return signed - spread.mT, signed + spread.mT


def classified(lower: Tensor, upper: Tensor, epsilon: Tensor, entries: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The arms that the boxes certify as ε-Pareto optimal, and those that they certify as covered by another arm up to ε.

    An arm is outside if its upper corner is at most the lower corner of a pessimistic front member plus ε. An arm is inside if
    it is not outside, and no other arm that is not outside may exceed it by more than ε in every objective.

    Args:
        lower, upper: `batch_shape x A x k`, corners of the boxes of confidence intervals, larger being better.
        epsilon: `k`.
        entries: `... x A` booleans, arms that count; None for all. The others are outside.

    Returns:
        Both as `batch_shape x A` booleans.

    Cost: O(A k) per member of the fronts of lower and of upper corners.
    """
    shape, A = lower.shape[:-2], lower.shape[-2]
    rows = [part.reshape(-1, A, lower.shape[-1]) for part in (lower, upper)]
    counted = [None] * len(rows[0]) if entries is None else list(entries.expand(*shape, A).reshape(-1, A))
    both = [_classified(low, high, epsilon, own) for low, high, own in zip(*rows, counted, strict=True)]
    inside, outside = (torch.stack(parts).reshape(*shape, A) for parts in zip(*both, strict=True))
    return inside, outside


def _classified(lower: Tensor, upper: Tensor, epsilon: Tensor, entries: Tensor | None) -> tuple[Tensor, Tensor]:
    """`classified` for one batch row."""
    if entries is not None:
        lower = lower.masked_fill(~entries.unsqueeze(-1), -torch.inf)
    pessimistic = non_dominated(lower)
    # Members are never outside, so that each arm outside is covered by an arm that is kept.
    outside = covered(upper, lower[pessimistic].unique(dim=0) + epsilon) & ~pessimistic
    if entries is not None:
        outside = outside | ~entries
    kept = (~outside).nonzero().squeeze(-1)
    tops, bottoms = upper[kept], lower[kept] + epsilon
    # An arm may be covered by its own upper corner, so the test is whether two upper corners cover it. Members of the first
    # front and of the front of the remaining arms suffice: any further corner is covered by a member of each front.
    first = non_dominated(tops)
    rest = (~first).nonzero().squeeze(-1)
    leaders = first.clone()
    if rest.numel():
        leaders[rest[non_dominated(tops[rest])]] = True
    inside = torch.zeros_like(outside)
    inside[kept] = ~_covered_by_another(bottoms, leaders.nonzero().squeeze(-1), tops)
    return inside, outside


def _covered_by_another(bottoms: Tensor, leaders: Tensor, tops: Tensor) -> Tensor:
    """The rows of `bottoms`, `n x k`, that the row of `tops` of another place, among those named, reaches everywhere."""
    corners, group, sizes = tops[leaders].unique(dim=0, return_inverse=True, return_counts=True)
    found = torch.zeros(len(bottoms), dtype=torch.bool, device=bottoms.device)
    own = torch.zeros(len(corners), dtype=torch.int64, device=bottoms.device).scatter(0, group, leaders)
    for corner, place, size in zip(corners, own.tolist(), sizes.tolist(), strict=True):
        hit = (bottoms <= corner).all(dim=-1)
        # Of several equal corners each is covered by another one.
        if size == 1:
            hit[place] = False
        found |= hit
    return found
