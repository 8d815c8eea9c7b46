"""SafeOpt and StageOpt on a list of arms: only arms that are known to be safe are picked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.aims.base import Aim, Limit, Outlook
from torchbandits.arms import ArmTable
from torchbandits.errors import ArmIndexError, require
from torchbandits.scores import Score

# Largest size of a block of covariances between candidates and all arms.
_BLOCK = 1 << 24


@dataclass(frozen=True)
class Safe(Aim):
    r"""Pick among the arms whose lower bounds keep every limit, and those that are known to be safe initially.

    A safe arm is a *maximiser* if its upper bound of the objective is at least the largest lower bound of a safe arm, and an
    *expander* if rewards at its upper bounds would make another arm safe. No Lipschitz constant is needed, since the posterior
    determines the effect of a reward on other arms. SafeOpt picks the most uncertain of both. StageOpt first picks expanders
    only, for `expand` pulls or until there are none, and then the largest upper bound of the objective among safe arms.

    Safety is judged by the rewards that were told. Pending picks only reduce the uncertainty by which arms are ranked, because
    bounds that anticipate future rewards would declare too many arms safe.

    Attributes:
        objective: Index and sign of the outcome that is maximised; its value is not used.
        limits: The limits of safety, on the objective or on other outcomes.
        start: Indices of arms that are known to be safe.
        expand: None for SafeOpt, the pulls of the first stage for StageOpt.
        leaders: Number of candidates, the most uncertain first, that are examined as expanders; further expanders are not
            found, which may delay learning but never affects safety.
    """

    objective: Limit
    limits: tuple[Limit, ...]
    start: tuple[int, ...]
    expand: int | None
    leaders: int

    def scores(self, outlook: Outlook, score: Score | None) -> Tensor:
        """Scores of the arms, `batch_shape x A`, −∞ at arms that are not known to be safe."""
        safe = self.safe(outlook)
        open_ = safe if outlook.offered is None else safe & outlook.offered
        j, sign = self.objective.outcome, self.objective.sign
        best = outlook.floor(j, sign).masked_fill(~safe, -torch.inf).amax(dim=-1, keepdim=True)
        maximisers = open_ & (outlook.ceiling(j, sign) >= best)
        used = sorted({j, *(limit.outcome for limit in self.limits)})
        spread = outlook.width.unsqueeze(-1) * outlook.std / outlook.reach.unsqueeze(-1)
        spread = spread[..., used, :].amax(dim=-2)
        if self.expand is None:
            # A safe arm below the most uncertain maximiser would not be picked, whether or not it is an expander.
            least = spread.masked_fill(~maximisers, -torch.inf).amax(dim=-1, keepdim=True)
            expander = self._expander(outlook, safe, open_ & ~maximisers & (spread > least), spread)
            return spread.masked_fill(~(maximisers | expander), -torch.inf)
        value = outlook.hopes(j, sign).masked_fill(~open_, -torch.inf)
        early = outlook.told < self.expand
        if not bool(early.any()):
            return value
        expander = self._expander(outlook, safe, open_ & early.unsqueeze(-1), spread)
        return torch.where(expander.any(dim=-1, keepdim=True), spread.masked_fill(~expander, -torch.inf), value)

    def safe(self, outlook: Outlook) -> Tensor:
        """The arms that are known to be safe, `batch_shape x A` booleans."""
        floors = torch.stack([limit.sign * limit.value - outlook.floor(limit.outcome, limit.sign) for limit in self.limits])
        return self._started((floors <= 0).all(dim=0), outlook.table)

    def check(self, num_arms: int) -> None:
        """Refuse a start that is not among the arms."""
        worst = max(self.start)
        message = f"start names arm {worst}, and there are {num_arms} arms, 0 … {num_arms - 1}."
        require(worst < num_arms, message, ArmIndexError)

    def _started(self, safe: Tensor, table: ArmTable) -> Tensor:
        """Safe arms, `batch_shape x A`, those of `start` included; the first of several equal arms represents all of them."""
        index = torch.tensor(self.start, device=safe.device).expand(*table.rows.batch_shape, -1)
        entry = table.rows.entry(index)[..., 0, :]
        return safe.scatter(-1, entry, True).scatter(-1, index[..., 0, :], True)

    def recommended(self, mean: Tensor, std: Tensor, width: Tensor, table: ArmTable) -> Tensor:
        """The value by which arms are recommended, `batch_shape x A`: the objective's mean where an arm is known to be safe,
        below all of these minus the largest violation of a lower bound, in standard deviations."""
        lacking = []
        for limit in self.limits:
            j, tiny = limit.outcome, torch.finfo(std.dtype).tiny
            gap = limit.sign * (limit.value - mean[..., j, :])
            lacking.append(gap / std[..., j, :].clamp_min(tiny) + width[..., j, None])
        worst = torch.stack(lacking).amax(dim=0)
        safe = self._started(worst <= 0, table)
        value = self.objective.sign * mean[..., self.objective.outcome, :]
        position = torch.where(safe, value, -torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
        other = (-worst).argsort(dim=-1, stable=True).argsort(dim=-1)
        return torch.where(safe, position + mean.shape[-1], other).to(mean.dtype)

    def _expander(self, outlook: Outlook, safe: Tensor, candidates: Tensor, spread: Tensor) -> Tensor:
        """The most uncertain candidate of each batch row that is an expander, `batch_shape x A` booleans; none where none of
        the leaders is one. Cost O(A m) per candidate that is examined."""
        found = torch.zeros_like(safe)
        ranked = spread.masked_fill(~candidates, -torch.inf)
        index = ranked.topk(min(self.leaders, ranked.shape[-1]), dim=-1).indices
        waiting = candidates.gather(-1, index)
        step = max(1, _BLOCK // max(1, outlook.mean.numel()))
        for start in range(0, index.shape[-1], step):
            part = slice(start, start + step)
            if not bool(waiting[..., part].any()):
                continue
            hit = waiting[..., part] & self._makes_safe(outlook, safe, index[..., part])
            place = hit.byte().argmax(dim=-1, keepdim=True)
            found.scatter_(-1, index[..., part].gather(-1, place), hit.gather(-1, place))
            # Rows that have found one are done: those that come later are less uncertain.
            waiting = waiting & ~found.any(dim=-1, keepdim=True)
        return found

    def _makes_safe(self, outlook: Outlook, safe: Tensor, index: Tensor) -> Tensor:
        """Whether rewards at the upper bounds of arms, `batch_shape x p`, would make another arm safe."""
        table = outlook.table
        lam = table.posterior.regularization
        slot = index.unsqueeze(-2).expand(*outlook.mean.shape[:-1], index.shape[-1])
        column = table.columns_between(slot)[1].double()  # batch_shape x k x p x A
        at = slot.unsqueeze(-1)
        weight = outlook.weight.unsqueeze(-1)
        shift = weight / (1 + weight * column.gather(-1, at)) * column
        after = (table.leverage.unsqueeze(-2) - shift * column).clamp_min(0)
        all_kept: Tensor | None = None
        for limit in self.limits:
            j, sign = limit.outcome, limit.sign
            # The reward at the upper bound exceeds the mean there by w σ; every mean moves with the covariance.
            gain = outlook.width[..., j, None] * outlook.known[..., j, :].gather(-1, index)
            moved = sign * outlook.mean[..., j, None, :] + gain.unsqueeze(-1) * shift[..., j, :, :]
            floor = moved - outlook.width[..., j, None, None] * (lam * after[..., j, :, :]).sqrt()
            kept = floor >= sign * limit.value
            all_kept = kept if all_kept is None else all_kept & kept
        assert all_kept is not None
        return (all_kept & ~safe.unsqueeze(-2)).any(dim=-1)
