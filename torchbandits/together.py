"""Calls of a run whose picks are on record, gathered, and learned by one update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchbandits.checks import check_picks, check_rewards
from torchbandits.learned import Learned
from torchbandits.reporting import certificate
from torchbandits.types import Picks, Pulls, Selection


class Together:
    """Asks, tells and forgets that are repeated, for a policy that learns several tells together (`Policy.learns_together`).

    Nothing is checked, and nothing has changed, before `learn`.

    Args:
        bandit: What they are repeated for.
    """

    def __init__(self, bandit: Learned) -> None:
        self._bandit = bandit
        opened, self._rows = bandit._open, bandit.batch_shape.numel()
        # Open arms of each batch row, oldest first: lists, since what is open is small and changes at every call.
        self._open: list[list[int]] = [[] for _ in range(self._rows)]
        self._told: list[tuple[Tensor, Tensor]] = []
        self._drawn: Sequence[Tensor] = ()
        if opened is not None:
            self.ask(torch.where(opened.mask, opened.index, -1))

    def ask(self, index: Picks, drawn: Sequence[Tensor] = ()) -> None:
        """Picks `batch_shape x q`, −1 where masked, after draws that left the generators in these states."""
        for opened, arms in zip(self._open, index.reshape(self._rows, -1).tolist(), strict=True):
            opened += [arm for arm in arms if arm >= 0]
        self._drawn = drawn or self._drawn

    def tell(self, index: Picks, rewards: Tensor) -> None:
        """Rewards `batch_shape x q` of picks, NaN where an evaluation failed."""
        self.forget(index)
        self._told.append((index, rewards))

    def forget(self, index: Picks) -> None:
        """Picks `batch_shape x q` that are not open any more; the oldest of those at one arm goes first."""
        first = self._bandit._state.rows.first
        for row, arms in enumerate(index.reshape(self._rows, -1).tolist()):
            for arm in arms if first is None else self._entries(first, row, arms):
                if arm in self._open[row]:
                    self._open[row].remove(arm)

    def _entries(self, first: Tensor, row: int, arms: list[int]) -> list[int]:
        own = first.expand(*self._bandit.batch_shape, -1).reshape(self._rows, -1)[row]
        return [int(own[arm]) if arm >= 0 else -1 for arm in arms]

    def learn(self) -> None:
        """Learn all that was gathered, or leave the bandit as it was.

        Raises:
            ArmIndexError, ShapeError, NonFiniteError: For a call that could not be made.
            NumericalError: If the posterior broke down.
        """
        bandit = self._bandit
        state, policy = bandit._state, bandit.policy
        with bandit._whole_or_not(draws=True):
            if self._told:
                index, mask = check_picks(
                    torch.cat([i for i, _ in self._told], dim=-1), bandit.batch_shape, state.rows.total, bandit.device
                )
                given = torch.cat([y for _, y in self._told], dim=-1)
                given = check_rewards(given, index, mask, bandit.device, "forget")
                kept = mask & ~given.isnan()
                y = torch.where(kept, given, 0.0)
                pulls = Pulls(kept.to(torch.float64), y, y * y, index=index, mask=kept)
                bandit._state = policy.update_together(state, pulls, [i.shape[-1] for i, _ in self._told])
                certificate(policy, bandit._state)
            for generator, drawn in zip(state.generators, self._drawn, strict=False):
                generator.set_state(drawn)
            bandit._open, bandit._synced = self._opened(), False

    def _opened(self) -> Selection | None:
        bandit = self._bandit
        wide = max(map(len, self._open))
        if not wide:
            return None
        padded = [arms + [-1] * (wide - len(arms)) for arms in self._open]
        index = torch.tensor(padded, device=bandit.device).reshape(*bandit.batch_shape, wide)
        index, mask = check_picks(index, bandit.batch_shape, bandit._state.rows.total, bandit.device)
        return Selection(bandit._state.rows.points(index), index, mask)
