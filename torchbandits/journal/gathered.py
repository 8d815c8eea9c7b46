"""Recorded calls that are learned together, by one update."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from torchbandits.checks import check_noise_var, check_picks, check_rewards
from torchbandits.journal.format import held, unpack
from torchbandits.journal.records import Record
from torchbandits.loop import Loop
from torchbandits.reporting import certificate
from torchbandits.selections import answer
from torchbandits.types import Picks, Pulls, Selection


class GatheredCalls:
    """Recorded asks, tells and forgets, for a policy that learns several tells together (`Policy.learns_together`).

    Nothing is checked, and nothing has changed, before `learn`.

    Args:
        loop: The loop for which they are repeated.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        opened, self._rows = loop.open, loop.batch_shape.numel()
        # Open arms of each batch row, oldest first: lists, since there are few, and they change at every call.
        self._open: list[list[int]] = [[] for _ in range(self._rows)]
        self._told: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._drawn: Sequence[Tensor] = ()
        if opened is not None:
            self._add_open(torch.where(opened.mask, opened.index, -1))

    def add(self, record: Record, drawn: Sequence[Tensor] = ()) -> None:
        """Add the record of an ask, a tell or a forget. `drawn` are the states of the generators after an ask that drew."""
        device = self._loop.device
        index = held(record["index"]).to(device)
        if record["kind"] == "ask":
            self._add_open(index)
            self._drawn = drawn or self._drawn
            return
        self._remove_open(index)
        if record["kind"] == "tell":
            noise_var = unpack(record.get("noise_var"))
            variance = None if noise_var is None else noise_var.to(device)
            self._told.append((index, held(record["rewards"]).to(device), variance))

    def _add_open(self, index: Picks) -> None:
        """Add picks `batch_shape x q`, −1 where masked."""
        for opened, arms in zip(self._open, index.reshape(self._rows, -1).tolist(), strict=True):
            opened += [arm for arm in arms if arm >= 0]

    def _remove_open(self, index: Picks) -> None:
        """Remove picks `batch_shape x q`; among picks of the same arm the oldest is removed first."""
        first = self._loop.state.rows.first
        own = None if first is None else first.expand(*self._loop.batch_shape, -1).reshape(self._rows, -1)
        for row, arms in enumerate(index.reshape(self._rows, -1).tolist()):
            for arm in arms:
                entry = (lambda one: one) if own is None else partial(_entry, own[row])
                if (found := answer(self._open[row], arm, entry)) is not None:
                    self._open[row].remove(found)

    def learn(self) -> None:
        """Learn all gathered calls, or leave the loop as it was.

        Raises:
            ArmIndexError, ShapeError, NonFiniteError: For a call that the loop refuses.
            NumericalError: If the posterior broke down.
        """
        self._loop.all_or_nothing(self._learn)

    def _learn(self) -> None:
        loop = self._loop
        state, policy = loop.state, loop.policy
        if self._told:
            index = torch.cat([i for i, _, _ in self._told], dim=-1)
            index, mask = check_picks(index, loop.batch_shape, loop.total, loop.device, padded=True)
            given = torch.cat([y for _, y, _ in self._told], dim=-1)
            given = check_rewards(given, index, mask, loop.device, "forget")
            kept = mask & ~given.isnan()
            y = torch.where(kept, given, 0.0)
            pulls = Pulls(kept.to(torch.float64), y, y * y, index=index, mask=kept)
            if any(own is not None for _, _, own in self._told):
                noise = loop.noise_variance()
                parts = [torch.full_like(y, noise) if own is None else own.expand(y.shape) for _, y, own in self._told]
                own = check_noise_var(torch.cat(parts, dim=-1), index.shape, kept, loop.device)
                pulls = pulls.weighted(noise, own)
            loop.state = policy.update_together(state, pulls, [i.shape[-1] for i, _, _ in self._told])
            certificate(policy, loop.state)
        for generator, drawn in zip(state.generators, self._drawn, strict=False):
            generator.set_state(drawn)
        loop.set_open_(self._opened())

    def _opened(self) -> Selection | None:
        loop, wide = self._loop, max(map(len, self._open))
        if not wide:
            return None
        padded = [arms + [-1] * (wide - len(arms)) for arms in self._open]
        index = torch.tensor(padded, device=loop.device).reshape(*loop.batch_shape, wide)
        index, mask = check_picks(index, loop.batch_shape, loop.total, loop.device, padded=True)
        return Selection(loop.points(index), index, mask)


def _entry(first: Tensor, arm: int) -> int:
    return int(first[arm])
