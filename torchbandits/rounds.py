"""What a run may still ask for: its remaining rounds and budget, and the arms on offer."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.checks import as_tensor
from torchbandits.constraints import counts_of
from torchbandits.environments.base import Environment
from torchbandits.errors import require
from torchbandits.policies.joint import Joint
from torchbandits.policies.state import TableState
from torchbandits.selections import marked
from torchbandits.stopping import ROUNDING, Decision
from torchbandits.types import ArrayLike, Selection


class Rounds:
    """The remaining rounds: the number of picks to ask for, and the arms on offer."""

    def __init__(self, bandit: Bandit, rounds: Tensor, budget: RemainingBudget | None, *, once: bool = False) -> None:
        self._bandit, self._budget, self._once = bandit, budget, once
        self._rounds = rounds  # `batch_shape`, total pulls of the bandit at which each row ends
        self._least = int((rounds - bandit.pulls.long()).min())  # lower bound of the remaining pulls of every row
        self._excluded: Tensor | None = None
        self._over = torch.zeros_like(rounds, dtype=torch.bool)  # `batch_shape`, rows that a decision has stopped
        self.stopped: list[str] = []  # the reason of each row, empty where it goes on; an empty list without stopping rules

    def stop(self, decision: Decision) -> None:
        """Ask for no more picks of the batch rows that a decision stops, and keep their reasons. Outcomes share their picks, so
        that they stop together."""
        self.stopped += [""] * (len(decision.reasons) - len(self.stopped))
        ends = decision.stop
        if self._bandit.policy.outcomes:
            ends = ends.all(dim=-1, keepdim=True).expand_as(ends)
        over = ends & ~self._over & (self._rounds > self._bandit.pulls.long())
        if bool(over.any()):
            reasons = zip(self.stopped, decision.reasons, over.reshape(-1).tolist(), strict=True)
            self.stopped[:] = [new if now else old for old, new, now in reasons]
            self._over = self._over | over
            self._least = 0  # recomputed by the next `ask`

    def stop_again(self, reasons: list[str]) -> None:
        """Stop the batch rows that have a reason, as they were stopped before the run was interrupted."""
        self.stopped[:], self._least = reasons, 0
        self._over = torch.tensor([bool(reason) for reason in reasons], device=self._over.device).reshape(self._over.shape)

    def ask(self, waiting: int, workers: int | None) -> Selection | None:
        """The next batch or, for a number of workers, picks for all idle workers; None if there is nothing to pick now.

        Args:
            waiting: Number of open picks.
            workers: Number of workers; None for batches, which are asked for when no pick is open.
        """
        most = self._bandit.policy.most_picks
        limit = available = None
        restricted = self._budget is not None or self._excluded is not None or self._once
        if workers is not None or restricted or most is None or most > self._least:
            available, able = self._available()
            opened = self._bandit.loop.open
            if able is not None and self._once and workers is None and opened is not None:
                # Picks that were open when the run was interrupted are evaluated, also if no further arm is on offer.
                able = able | opened.mask.any(dim=-1)
            limit = (self._rounds - self._bandit.pulls.long()).masked_fill(self._over, 0)
            limit = limit if able is None else torch.where(able, limit, 0)
            self._least = int(limit.min())
            if not bool((limit > waiting).any()):
                return None
        if workers is None:
            selection = Bandit.ask(self._bandit, limit=limit, available=available)
            selection = self._without_repeats(selection) if self._once else selection
        else:
            more = min(workers, self._least) - waiting
            if more < 1:
                return None
            single = self._once or self._budget is not None
            whole = self._one_by_one(more) if single else Bandit.ask(self._bandit, more=more, available=available)
            selection = whole[waiting:]
        self._least -= len(selection)
        return self._budget.pay(selection) if self._budget is not None and workers is None else selection

    def shorten(self) -> None:
        """Forget the picks that a journal left open beyond the rounds, which were more in an earlier call."""
        if (out := self._bandit.loop.open) is not None:
            left = (self._rounds - self._bandit.pulls.long()).unsqueeze(-1)
            _only(self._bandit, out, out.mask & (out.mask.cumsum(dim=-1) <= left))

    def again(self) -> Selection | None:
        """The picks that are already open, to be evaluated again; None if there are none."""
        out = self._bandit.loop.open
        if out is not None and self._budget is not None:
            self._budget.pay(out)
        # As they are open now: of equal picks the first is forgotten, and the order must be the one that a journal restores.
        return self._bandit.loop.open

    def lose(self, failed: Tensor, exclude: bool) -> None:
        """Count failed evaluations of arms (`batch_shape x q`, −1 for none) as rounds; with `exclude`, never offer these arms
        again."""
        self._rounds = self._rounds - (failed >= 0).sum(dim=-1)
        self._least = 0  # counted anew when asked
        if exclude:
            hit = counts_of(failed, self._bandit.arms.shape[-2]) > 0
            self._excluded = hit if self._excluded is None else self._excluded | hit

    def _one_by_one(self, more: int) -> Selection:
        """The open picks with at most `more` further ones, each of an arm that is still on offer and paid for before the next.
        There must be an arm on offer."""
        available, able = self._available()
        while True:
            selection = Bandit.ask(self._bandit, more=1, available=available)
            if self._budget is not None:
                self._budget.spend(selection.index[..., -1:])
            more -= 1
            available, able = self._available()
            if more < 1 or not (able is None or bool(able.all())):
                return selection

    def _without_repeats(self, selection: Selection) -> Selection:
        """The first pick of each arm in a batch, where equal arms count as one; the others are forgotten."""
        entries = self._bandit.loop.state.rows.entry(selection.index)
        equal = (entries.unsqueeze(-1) == entries.unsqueeze(-2)) & selection.mask.unsqueeze(-2)
        return _only(self._bandit, selection, selection.mask & ~equal.tril(diagonal=-1).any(dim=-1))

    def _taken(self) -> Tensor:
        """Mask of the arms that have a result or are open, and of arms equal to them, `batch_shape x A`."""
        loop = self._bandit.loop
        taken, first = loop.counts > 0, loop.state.rows.first
        if loop.open is not None:
            entries = loop.state.rows.entry(loop.open.index).masked_fill(~loop.open.mask, -1)
            opened = counts_of(entries, taken.shape[-1])
            taken = taken | ((opened if first is None else opened.gather(-1, first.expand_as(opened))) > 0)
        # Outcomes share their picks.
        return taken.any(dim=-2, keepdim=True).expand_as(taken) if isinstance(loop.policy, Joint) else taken

    def _available(self) -> tuple[Tensor | None, Tensor | None]:
        """The arms on offer, `batch_shape x A` (all arms in rows without further pulls), and the mask of rows with further
        pulls, `batch_shape`. Both are None if all arms are on offer."""
        offered = None if self._budget is None else self._budget.affordable
        if self._excluded is not None:
            offered = ~self._excluded if offered is None else offered & ~self._excluded
        if self._once:
            offered = ~self._taken() if offered is None else offered & ~self._taken()
        if offered is None:
            return None, None
        loop = self._bandit.loop
        if isinstance(loop.policy, Joint) and isinstance(loop.state, TableState):
            # Rows in which no safe arm is left end.
            permitted = loop.policy.permitted(loop.state)
            offered = offered if permitted is None else offered & permitted
        able = offered.any(dim=-1)
        return offered | ~able.unsqueeze(-1), able


class RemainingBudget:
    """The remaining budget of each batch row."""

    def __init__(self, budget: ArrayLike, environment: Environment, bandit: Bandit) -> None:
        costs, shape = environment.costs, bandit.batch_shape
        require(costs is not None, f"a budget needs costs, and the environment {environment.name!r} has none.")
        assert costs is not None
        left = as_tensor("budget", budget, torch.float64, costs.device)
        good = left.shape in (torch.Size(), shape) and bool((left > 0).all())
        require(good, f"budget must be a number > 0, or {tuple(shape)} of them, got {left.tolist()}.")
        # Sums of costs are rounded: three times 0.1 is within a budget of 0.3.
        left = left * (1 + ROUNDING)
        self._costs, self._left, self._bandit = costs.expand(*shape, -1), left.expand(shape), bandit

    @property
    def affordable(self) -> Tensor:
        """The arms that each row can pay for, `batch_shape x A`."""
        return self._costs <= self._left.unsqueeze(-1)

    def pay(self, selection: Selection) -> Selection:
        """The picks that can be paid for, in order; the others are forgotten."""
        each = torch.where(selection.mask, self._costs.gather(-1, selection.index.clamp_min(0)), 0.0)
        kept = selection.mask & (each.cumsum(dim=-1) <= self._left.unsqueeze(-1))
        selection = _only(self._bandit, selection, kept)
        self.spend(selection.index)
        return selection

    def spend(self, index: Tensor) -> None:
        """Pay for arms, `batch_shape x q`, −1 where masked."""
        each = self._costs.gather(-1, index.clamp_min(0).to(self._costs.device))
        self._left = self._left - torch.where((index >= 0).to(each.device), each, 0.0).sum(dim=-1)


def _only(bandit: Bandit, selection: Selection, kept: Tensor) -> Selection:
    """The marked picks of a selection, which are all that is open; the others are forgotten."""
    if torch.equal(kept, selection.mask):
        return selection
    Bandit.forget(bandit, marked(selection, ~kept))
    # As they are open now: of equal picks the first is forgotten, and the noise must be that of the order which a journal
    # restores.
    return marked(selection, kept) if bandit.loop.open is None else bandit.loop.open
