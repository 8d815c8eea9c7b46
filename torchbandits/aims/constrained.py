"""One objective under limits on unknown outcomes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.aims.base import Aim, Limit, Outlook, certain, if_feasible, log_probability
from torchbandits.arms import ArmTable
from torchbandits.scores import LogEI, Score

# Number of recommended arms among which an arm is pulled again to estimate the noise.
_CONTENDERS = 3


@dataclass(frozen=True)
class Constrained(Aim):
    r"""Maximise one outcome among the arms that keep the limits on others.

    With upper bounds or draws, the pick has the largest bound (draw) of the objective among the arms whose bounds (draws) keep
    every limit; where there is no such arm, the smallest sum of violations, each in prior standard deviations. With the
    improvement as score, the pick maximises log EI(x) + Σ log P(limit j holds at x), where the improvement is measured over the
    highest mean of the arms that are feasible with the probability `certainty`; where there is no such arm, it maximises the
    probability of feasibility alone. With the improvement, an arm is not picked again while another one is on offer.

    With costs, the pick has the largest gain over that mean (over the lowest mean, where no arm is feasible with this
    probability) divided by a power of the cost. For the improvement, the logarithm of this power is subtracted.

    Attributes:
        objective: Index and sign of the outcome that is maximised (−1 to minimise it); its value is not used.
        limits: Limits on other outcomes, or on the objective itself.
        certainty: Probability of all limits at which an arm counts as feasible, for the improvement and for recommendations.
        optimism: Factor of the width in the bounds that decide whether an arm may keep a limit.
        exponent: Exponent of the cost; None where costs do not count.
    """

    objective: Limit
    limits: tuple[Limit, ...]
    certainty: float
    optimism: float = 1.0
    exponent: float | None = None

    def scores(self, outlook: Outlook, score: Score | None) -> Tensor:
        """Scores of the arms, `batch_shape x A`."""
        if isinstance(score, LogEI):
            gain = self._improvement(outlook, score)
            if self.exponent is not None and outlook.costs is not None:
                gain = gain - self.exponent * outlook.costs.log()
            return outlook.unsettled(gain)
        value = outlook.hopes(self.objective.outcome, self.objective.sign)
        if self.exponent is not None:
            mean = self.objective.sign * outlook.mean[..., self.objective.outcome, :]
            best, none = self._incumbent(outlook, mean)
            level = torch.where(none, mean.amin(dim=-1), best)
            value = outlook.per_cost(value - level.unsqueeze(-1), self.exponent)
        return if_feasible(outlook, value, self.limits, self.optimism, self.exponent)

    def bounds(self, outlook: Outlook, score: Score | None, value: Tensor) -> Tensor | None:
        """The scores, with the largest probability of feasibility: improvements and upper bounds fall with the standard
        deviations, and arms that can't keep the limits never can again. None where no arm may keep them by its bounds."""
        if isinstance(score, LogEI):
            now = outlook.log_chance(self.limits)
            return value - now + outlook.log_chance_bound(self.limits)
        feasible = outlook.violation(self.limits, self.optimism) == 0
        return value.masked_fill(~feasible, -torch.inf) if bool(outlook.open(feasible.double()).amax() > 0) else None

    def anchors(self, outlook: Outlook) -> Tensor:
        """The arm of the incumbent, and the arm of the lowest mean."""
        mean = self.objective.sign * outlook.mean[self.objective.outcome]
        sure = certain(outlook.log_chance_told(self.limits), self.certainty)
        return torch.stack([mean.masked_fill(~sure, -torch.inf).argmax(), mean.argmin()])

    def contenders(self, outlook: Outlook) -> Tensor:
        """The told arms that are recommended first, three at most."""
        value = self.recommended(outlook.mean, outlook.known, outlook.width, outlook.table)
        top = value.masked_fill(~outlook.seen, -torch.inf).topk(min(_CONTENDERS, value.shape[-1]), dim=-1)
        return torch.zeros_like(outlook.seen).scatter(-1, top.indices, top.values > -torch.inf)

    def _incumbent(self, outlook: Outlook, mean: Tensor) -> tuple[Tensor, Tensor]:
        """The highest of the means among the arms that are feasible with the probability `certainty`, and whether there is no
        such arm, `batch_shape` each."""
        # Feasibility of the incumbent is judged by the rewards told, without pending picks.
        sure = certain(outlook.log_chance_told(self.limits), self.certainty)
        best = mean.masked_fill(~sure, -torch.inf).amax(dim=-1)
        return best, best == -torch.inf

    def _improvement(self, outlook: Outlook, score: LogEI) -> Tensor:
        j, sign = self.objective.outcome, self.objective.sign
        chance = outlook.log_chance(self.limits)
        mean = sign * outlook.mean[..., j, :]
        best, none = self._incumbent(outlook, mean)
        gain = score(mean, outlook.std[..., j, :], outlook.width[..., j], best.masked_fill(none, 0.0))
        return torch.where(none.unsqueeze(-1), chance, gain + chance)

    def recommended(self, mean: Tensor, std: Tensor, width: Tensor, table: ArmTable) -> Tensor:
        """The objective's mean at feasible arms, above all others; these are ordered by the probability of feasibility."""
        value = self.objective.sign * mean[..., self.objective.outcome, :]
        chance = log_probability(mean, std, self.limits, table)
        sure = certain(chance, self.certainty)
        # Positions instead of values, so that both orders fit in one number.
        position = torch.where(sure, value, -torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
        other = chance.argsort(dim=-1, stable=True).argsort(dim=-1)
        return torch.where(sure, position + mean.shape[-1], other).to(mean.dtype)
