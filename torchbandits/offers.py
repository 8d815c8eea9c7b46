"""What a run asks for: how many picks, among which arms, and what they may cost."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.checks import as_tensor
from torchbandits.environments.base import Environment
from torchbandits.errors import require
from torchbandits.selections import marked
from torchbandits.types import Selection


class Offers:
    """What a run asks for: how many picks, and among which arms."""

    def __init__(self, bandit: Bandit, rounds: Tensor, purse: Purse | None) -> None:
        self._bandit, self._purse = bandit, purse
        self._rounds = rounds  # `batch_shape`, pulls of the bandit when each row is done
        self._least = int((rounds - bandit.pulls.long()).min())  # pulls that every row has left, at least
        self._excluded: Tensor | None = None

    def ask(self, waiting: int, workers: int | None) -> Selection | None:
        """The next batch or, for a number of workers, as many further picks as they have room for; None for none now.

        Args:
            waiting: Picks that are open.
            workers: None for batches, which are asked for when nothing is open.
        """
        most = self._bandit.policy.most_picks
        limit = available = None
        if workers is not None or self._purse is not None or self._excluded is not None or most is None or most > self._least:
            available, able = self._available()
            limit = self._rounds - self._bandit.pulls.long()
            limit = limit if able is None else torch.where(able, limit, 0)
            self._least = int(limit.min())
            if not bool((limit > waiting).any()):
                return None
        if workers is None:
            selection = self._bandit.ask(limit=limit, available=available)
        else:
            more = min(workers, self._least) - waiting
            if more < 1:
                return None
            selection = self._bandit.ask(more=more, available=available)[waiting:]
        self._least -= len(selection)
        selection = selection if self._purse is None else self._purse.pay(selection)
        return selection if workers is None or bool(selection.mask.any()) else None

    def again(self) -> Selection | None:
        """What is open already, to be evaluated again; None where nothing is."""
        out = self._bandit.loop.open
        return out if out is None or self._purse is None else self._purse.pay(out)

    def lose(self, failed: Tensor, exclude: bool) -> None:
        """Count evaluations that failed, of arms `batch_shape x q` (−1 where none did), as rounds; `exclude` takes them off."""
        self._rounds = self._rounds - (failed >= 0).sum(dim=-1)
        self._least = 0  # counted anew when asked
        if exclude:
            bandit = self._bandit
            if self._excluded is None:
                shape = (*bandit.batch_shape, bandit.arms.shape[-2])
                self._excluded = torch.zeros(shape, dtype=torch.bool, device=bandit.device)
            hits = torch.zeros_like(self._excluded, dtype=torch.int64).scatter_add(
                -1, failed.clamp_min(0), (failed >= 0).long()
            )
            self._excluded = self._excluded | (hits > 0)

    def _available(self) -> tuple[Tensor | None, Tensor | None]:
        """Arms on offer, `batch_shape x A`, all for rows that pull no more; the rows that do, `batch_shape`; None for all."""
        offered = None if self._purse is None else self._purse.affordable
        if self._excluded is not None:
            offered = ~self._excluded if offered is None else offered & ~self._excluded
        if offered is None:
            return None, None
        able = offered.any(dim=-1)
        return offered | ~able.unsqueeze(-1), able


class Purse:
    """What each row has left to spend."""

    def __init__(self, budget: float | Tensor, environment: Environment, bandit: Bandit) -> None:
        costs, shape = environment.costs, bandit.batch_shape
        require(costs is not None, f"a budget needs costs, and the environment {environment.name!r} does not know any.")
        assert costs is not None
        left = as_tensor("budget", budget, torch.float64, costs.device)
        good = left.shape in (torch.Size(), shape) and bool((left > 0).all())
        require(good, f"budget must be a number > 0, or {tuple(shape)} of them, got {budget}.")
        self._costs, self._left, self._bandit = costs.expand(*shape, -1), left.expand(shape), bandit

    @property
    def affordable(self) -> Tensor:
        """Arms that each row can pay for, `batch_shape x A`."""
        return self._costs <= self._left.unsqueeze(-1)

    def pay(self, selection: Selection) -> Selection:
        """The picks that can be paid for, in order; the others are forgotten."""
        each = torch.where(selection.mask, self._costs.gather(-1, selection.index.clamp_min(0)), 0.0)
        kept = selection.mask & (each.cumsum(dim=-1) <= self._left.unsqueeze(-1))
        if not torch.equal(kept, selection.mask):
            self._bandit.forget(marked(selection, ~kept))
            selection = marked(selection, kept)
        self.spend(selection.index)
        return selection

    def spend(self, index: Tensor) -> None:
        """Pay for arms, `batch_shape x q`, −1 where masked."""
        each = self._costs.gather(-1, index.clamp_min(0).to(self._costs.device))
        self._left = self._left - torch.where((index >= 0).to(each.device), each, 0.0).sum(dim=-1)
