"""Arms that are cheap approximations of others: the target outcome decides the point, the expected information decides its
fidelity."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchbandits.aims.base import Aim, Outlook
from torchbandits.arms import ArmTable
from torchbandits.errors import ShapeError, require
from torchbandits.scores import Score


@dataclass(frozen=True, eq=False)
class Fidelity(Aim):
    r"""BOCA: the arm of the target fidelity that another aim scores highest, at the cheapest fidelity that is still
    informative.

    Each arm a has a twin a* at the target fidelity (its own twin is itself), and only twins are scored by the aim: by the upper
    bound of one outcome, as in the paper, or by any trade-off or limit of several. The twin of the highest score is evaluated
    at the cheapest fidelity that costs less than the target and has, for at least one outcome,

    .. math:: \sigma(a) > \sqrt{k(a, a)}\, \xi(a) \Big(\frac{c(a)}{c(a^*)}\Big)^q, \qquad \xi(a) > \frac{\max \xi}{w}, \qquad
        \xi(a) = \sqrt{1 - \rho(a, a^*)^2}

    with the prior correlation ρ of arm and twin, or else at the target itself. Where the target is not on offer and no other
    fidelity satisfies the condition, any fidelity on offer counts.

    Attributes:
        aim: The aim at the target fidelity.
        twin: `A`, index of the twin of each arm.
        costs: `A`, cost of a pull of each arm, > 0.
        fidelity_exponent: q ≥ 0.

    Source: Kandasamy et al. 2017, Alg. 1, where q = 1/(p + d + 2) for p features of the fidelity and d others. Here k(a, a) is
    the prior variance of the arm, whereas the paper uses that of the target; the paper has one outcome.
    """

    aim: Aim
    twin: Tensor
    costs: Tensor
    fidelity_exponent: float

    @property
    def draws(self) -> bool:
        """Whether a score draws random numbers: as for the aim at the target."""
        return self.aim.draws

    def scores(self, outlook: Outlook, score: Score | None) -> Tensor:
        """Scores of the arms, `batch_shape x A`: that of the twin at the fidelity to evaluate, −∞ at others."""
        twin, costs = self.twin.to(outlook.mean.device), self.costs.to(outlook.mean.device)
        targets, place = self._targets(twin)
        shape = outlook.mean[..., 0, :].shape
        offered = torch.ones(shape, dtype=torch.bool, device=twin.device) if outlook.offered is None else outlook.offered
        some = None if outlook.offered is None else _any_of_group(offered.expand(shape), place, len(targets))
        # An outcome told at any fidelity of a point is information on the target.
        seen, pending = (_any_of_group(own, place, len(targets)) for own in (outlook.seen, outlook.pending))
        # The best target may be one that is not to be evaluated.
        own = replace(outlook.of(targets, some, seen, pending), only_best=False)
        value = self.aim.scores(own, score)[..., place]
        gap, prior = self._gap(outlook)
        least = prior.sqrt() * gap * (costs / costs[twin]) ** self.fidelity_exponent
        far = gap * outlook.width.unsqueeze(-1) > gap.amax(dim=-1, keepdim=True)
        teaches = ((outlook.std > least) & far).any(dim=-2) & (costs < costs[twin])
        eligible = (teaches | (twin == torch.arange(len(twin), device=twin.device))) & offered
        left = _any_of_group(eligible, place, len(targets))[..., place]
        eligible = torch.where(left, eligible, offered)
        priced = torch.where(eligible, costs, torch.inf)
        cheapest = torch.full_like(priced, torch.inf).scatter_reduce(-1, twin.expand(shape), priced, "amin")
        cheapest = cheapest.gather(-1, twin.expand(shape))
        return value.masked_fill(~(eligible & (priced == cheapest)), -torch.inf)

    def _targets(self, twin: Tensor) -> tuple[Tensor, Tensor]:
        """Indices of the arms of the target fidelity, and among them the place of the twin of each arm, `A`."""
        every = torch.arange(len(twin), device=twin.device)
        targets = (twin == every).nonzero().squeeze(-1)
        place = torch.empty_like(twin).scatter(0, targets, every[: len(targets)])
        return targets, place[twin]

    def _gap(self, outlook: Outlook) -> tuple[Tensor, Tensor]:
        """ξ of each arm and its prior variance for each outcome, `batch_shape x k x A` each."""
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
        return (1 - rho).sqrt(), own

    def check(self, num_arms: int) -> None:
        """Refuse arms other than those whose twins are known."""
        message = f"this policy was made for {len(self.twin)} arms, and there are {num_arms}: make it for these arms."
        require(num_arms == len(self.twin), message, ShapeError)

    def kept(self, mean: Tensor, std: Tensor, table: ArmTable) -> Tensor:
        """The arms that may be on a front, `batch_shape x A` booleans: those of the target fidelity that the aim keeps."""
        twin = self.twin.to(mean.device)
        target = (twin == torch.arange(len(twin), device=twin.device)).expand(mean[..., 0, :].shape)
        kept = self.aim.kept(mean, std, table)
        return target if kept is None else target & kept

    def recommended(self, mean: Tensor, std: Tensor, width: Tensor, table: ArmTable) -> Tensor | None:
        """The value by which arms are recommended, `batch_shape x A`: that of the aim for the twin, all arms of the target
        fidelity above all others."""
        twin = self.twin.to(mean.device)
        targets, place = self._targets(twin)
        value = self.aim.recommended(mean[..., targets], std[..., targets], width, table)
        if value is None:
            return None
        position = value[..., place].argsort(dim=-1, stable=True).argsort(dim=-1)
        target = twin == torch.arange(len(twin), device=twin.device)
        return torch.where(target, position + len(twin), position).to(mean.dtype)


def _any_of_group(mask: Tensor, place: Tensor, count: int) -> Tensor:
    """Whether any arm of each of `count` groups is in a mask `... x A`, `... x count` booleans."""
    found = torch.zeros(*mask.shape[:-1], count, dtype=torch.uint8, device=mask.device)
    return found.scatter_reduce(-1, place.expand(mask.shape), mask.byte(), "amax") > 0
