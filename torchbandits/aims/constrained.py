"""One objective under limits on outcomes that are not known beforehand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.aims.base import Aim, Limit, Outlook, certain, if_feasible, log_probability
from torchbandits.arms import ArmTable
from torchbandits.scores import LogEI, Score


@dataclass(frozen=True)
class Constrained(Aim):
    r"""Maximise one outcome among the arms that keep the limits on others.

    With upper bounds or draws, the pick has the largest bound (draw) of the objective among the arms whose bounds (draws)
    keep every limit; where there is none, the smallest sum of violations, each in prior standard deviations. With the
    improvement as score, it maximises log EI(x) + Σ log P(limit j holds at x), the improvement being over the highest mean of
    the arms that are feasible with the probability `certainty`; where there is none, the probability of feasibility alone. By
    the improvement an arm is not picked again while another one is on offer.

    Per cost, the pick has the largest gain over that mean (over the lowest mean, where no arm is feasible so surely) divided by
    a power of the cost. For the improvement its logarithm is subtracted.

    Attributes:
        objective: Place and sign of the outcome that is maximised (−1 to minimise it); its value is not read.
        limits: On other outcomes, or on the objective itself.
        certainty: Probability of all limits at which an arm counts as feasible, for the improvement and for recommendations.
        optimism: Part of the width with which bounds say that an arm may keep a limit.
        exponent: Of the cost; None where costs do not count.
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

    def _incumbent(self, outlook: Outlook, mean: Tensor) -> tuple[Tensor, Tensor]:
        """The highest of some means among arms that are surely feasible, and whether there is none, `batch_shape` each."""
        # Feasibility of the incumbent is judged by what was told, and not by picks whose rewards are pending.
        sure = certain(log_probability(outlook.mean, outlook.known, self.limits, outlook.table), self.certainty)
        best = mean.masked_fill(~sure, -torch.inf).amax(dim=-1)
        return best, best == -torch.inf

    def _improvement(self, outlook: Outlook, score: LogEI) -> Tensor:
        j, sign = self.objective.outcome, self.objective.sign
        chance = log_probability(outlook.mean, outlook.std, self.limits, outlook.table)
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
