"""Picks with all scores recomputed after each pick, for scores that the compiled loop of the lazy lookahead does not cover."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchbandits.arms.growing import GrowingTable
from torchbandits.arms.table import ArmTable
from torchbandits.arms.ties import best_arm
from torchbandits.posteriors import Conditioning, where_frozen


class FullSweep:
    """Sequential picks, each hallucinated before the next: the means stay the same, and the leverages fall.

    Args:
        table: The arms at the start of the batch; not modified. For a growing table, "arms" are places of its list.
        offered: `batch_shape x A` booleans, or None for all arms.
        pending: `batch_shape x p` pending arms (−1 where padded), with their counts.
        max_pulls: Largest number of picks of one arm in the batch, or None.
        frozen: Whether picks leave the residual of a sparse posterior unchanged; see `Lookahead`.
        normals: Draws standard normal numbers for marked places, `batch_shape x p`. The hallucinated rewards of picks are then
            drawn from the posterior instead of being the posterior means.

    Attributes:
        leverage: `batch_shape x A`, given all picks.
        directions: `batch_shape x r x A`, whose squares were subtracted from the leverages.
        shift: `batch_shape x A`, movement of the means by drawn rewards, divided by √λ.
    """

    def __init__(
        self,
        table: ArmTable | GrowingTable,
        offered: Tensor | None,
        pending: tuple[Tensor, Tensor],
        max_pulls: int | None = None,
        *,
        frozen: bool | Tensor = False,
        normals: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._table, self._max_pulls, self._frozen = table, max_pulls, frozen
        self.leverage, self._normals = table.leverage, normals
        self.shift = torch.zeros_like(table.leverage)
        self.directions = table.leverage.new_zeros(*table.leverage.shape[:-1], 0, table.leverage.shape[-1])
        self._counts = torch.zeros_like(table.leverage)
        self._closed = None if offered is None else ~offered
        index, counts = pending
        if index.shape[-1]:
            self.hallucinate(index, counts)

    def pick(
        self,
        score: Callable[[Tensor], Tensor],
        remaining: Tensor,
        spends: Callable[[Tensor, Tensor], Tensor] | None = None,
        budget: float = math.inf,
    ) -> Tensor:
        """Up to `remaining` (`batch_shape`) arms of the highest score, `batch_shape x q`, −1 where padded.

        Args:
            score: Function from leverages to scores, both `batch_shape x A`.
            remaining: `batch_shape`, on the host.
            spends: The amount that a pick spends, given its leverages at the batch start and with earlier picks pending.
            budget: The pick that exceeds it is the last of the batch.

        Cost: O(A m) per pick.
        """
        picks, room = [], remaining.to(self.leverage.device)
        spent = torch.zeros_like(room, dtype=torch.float64)
        for place in range(int(remaining.max())):
            values = score(self.leverage)
            if self._closed is not None:
                values = values.masked_fill(self._closed, -torch.inf)
            if self._max_pulls is not None:
                values = values.masked_fill(self._counts >= self._max_pulls, -torch.inf)
            live = (place < room) & (values.amax(dim=-1) > -torch.inf) & (spent <= budget)
            if not bool(live.any()):
                break
            arm = torch.where(live, best_arm(values), -1).unsqueeze(-1)
            picks.append(arm)
            if spends is not None:
                slot = arm.clamp_min(0)
                start, now = (leverage.gather(-1, slot).squeeze(-1) for leverage in (self._table.leverage, self.leverage))
                spent = spent + spends(start, now)
            self.hallucinate(arm, torch.ones_like(arm, dtype=torch.float64))
        return torch.cat(picks, dim=-1) if picks else room.new_empty(*room.shape, 0)

    def hallucinate(self, index: Tensor, counts: Tensor) -> None:
        """Reduce the leverages by pulls of p arms, `batch_shape x p` each (index −1 for none). Cost O(A m p)."""
        slot, counts = index.clamp_min(0), torch.where(index >= 0, counts, 0.0)
        C_pa = where_frozen(self._frozen, *self._table.columns_between(slot))
        D = self.directions
        # Covariance given the earlier picks of the batch, C_PA − D_PᵀD, where the rows of D are their directions.
        C_pa = C_pa - D.gather(-1, slot.unsqueeze(-2).expand(*D.shape[:-1], slot.shape[-1])).mT @ D
        C_pp = C_pa.gather(-1, slot.unsqueeze(-2).expand(*C_pa.shape[:-1], slot.shape[-1]))
        G = Conditioning.on(C_pp, counts).directions(C_pa)
        self.leverage = (self.leverage - G.square().sum(dim=-2)).clamp_min(0)
        if self._normals is not None:
            # Rewards y ~ N(μ_P, λ(C_PP + N⁻¹)) have innovations L⁻¹√N(y − μ_P) ~ N(0, λI), and means move by Gᵀ times these.
            self.shift = self.shift + (self._normals(index >= 0).unsqueeze(-2) @ G).squeeze(-2)
        self.directions = torch.cat([D, G], dim=-2)
        self._counts = self._counts.scatter_add(-1, slot, counts)
