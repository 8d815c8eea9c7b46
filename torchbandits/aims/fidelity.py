"""Arms that are cheap approximations of others: pick the arm by the target, and how to evaluate it by what it would teach."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.aims.base import Aim, Limit, Outlook
from torchbandits.arms import ArmTable
from torchbandits.errors import ShapeError, require
from torchbandits.scores import Score


@dataclass(frozen=True, eq=False)
class Fidelity(Aim):
    r"""BOCA: the arm of the target fidelity with the largest upper bound, at the cheapest fidelity that still teaches.

    Each arm a has a twin a* at the target fidelity (its own twin is itself). The pick is a fidelity of
    :math:`\arg\max \mu(a^*) + w \sigma(a^*)`: the cheapest one that costs less than the target and has

    .. math:: \sigma(a) > \sqrt{k(a, a)}\, \xi(a) \Big(\frac{c(a)}{c(a^*)}\Big)^q, \qquad \xi(a) > \frac{\max \xi}{w}, \qquad
        \xi(a) = \sqrt{1 - \rho(a, a^*)^2}

    with the prior correlation ρ of arm and twin, or else the target itself. Where the target is not on offer and no other
    fidelity teaches enough, any that is on offer counts.

    Attributes:
        objective: The only outcome, and its sign.
        twin: `A`, index of the twin of each arm.
        costs: `A`, of a pull of each arm, > 0.
        exponent: q ≥ 0.

    Source: Kandasamy et al. 2017, Alg. 1, where q = 1/(p + d + 2) for p features of the fidelity and d others. Here k(a, a) is
    that of the arm, which is the target's in the paper.
    """

    objective: Limit
    twin: Tensor
    costs: Tensor
    exponent: float

    def scores(self, outlook: Outlook, score: Score | None) -> Tensor:
        """Scores of the arms, `batch_shape x A`: the upper bound of the twin at the fidelity to evaluate, −∞ at others."""
        twin, costs = self.twin.to(outlook.mean.device), self.costs.to(outlook.mean.device)
        value = outlook.hopes(0, self.objective.sign)[..., twin]
        gap, prior = self._gap(outlook)
        least = prior.sqrt() * gap * (costs / costs[twin]) ** self.exponent
        width = outlook.width[..., :1]
        teaches = (outlook.std[..., 0, :] > least) & (gap * width > gap.amax(dim=-1, keepdim=True)) & (costs < costs[twin])
        offered = torch.ones_like(teaches) if outlook.offered is None else outlook.offered.expand(teaches.shape)
        eligible = (teaches | (twin == torch.arange(len(twin), device=twin.device))) & offered
        groups = twin.expand(eligible.shape)
        some = torch.zeros_like(eligible, dtype=torch.uint8).scatter_reduce(-1, groups, eligible.byte(), "amax")
        eligible = torch.where(some.gather(-1, groups) > 0, eligible, offered)
        priced = torch.where(eligible, costs, torch.inf)
        cheapest = torch.full_like(priced, torch.inf).scatter_reduce(-1, groups, priced, "amin").gather(-1, groups)
        return value.masked_fill(~(eligible & (priced == cheapest)), -torch.inf)

    def _gap(self, outlook: Outlook) -> tuple[Tensor, Tensor]:
        """ξ of each arm and its prior variance, `batch_shape x A` each."""
        table, kernel = outlook.table, outlook.table.posterior.kernel
        every = torch.arange(len(self.twin), device=outlook.mean.device).expand(outlook.mean.shape)
        points = table.rows.points(every)
        twins = table.rows.points(self.twin.to(every.device).expand(every.shape))
        between, own, other = (
            kernel(*pair, diag=True).double() for pair in ((points, twins), (points, points), (twins, twins))
        )
        rho = (between.square() / (own * other)).clamp(0, 1)
        # The twin of a target is itself, whatever rounding says.
        rho = torch.where(every == self.twin.to(every.device), 1.0, rho)
        return (1 - rho).sqrt()[..., 0, :], own[..., 0, :]

    def check(self, num_arms: int) -> None:
        """Refuse other arms than those whose twins are known."""
        message = f"this policy was made for {len(self.twin)} arms, and there are {num_arms}: make it for these arms."
        require(num_arms == len(self.twin), message, ShapeError)

    def recommended(self, mean: Tensor, std: Tensor, width: Tensor, table: ArmTable) -> Tensor:
        """The value by which arms are recommended, `batch_shape x A`: the posterior mean of the twin, all arms of the target
        fidelity above all others."""
        twin = self.twin.to(mean.device)
        value = self.objective.sign * mean[..., 0, :][..., twin]
        position = value.argsort(dim=-1, stable=True).argsort(dim=-1)
        target = twin == torch.arange(len(twin), device=twin.device)
        return torch.where(target, position + len(twin), position).to(mean.dtype)
