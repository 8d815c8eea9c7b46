"""Uniform sampling: the baseline that every regret is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.arms import ArmRows
from torchbandits.errors import require
from torchbandits.policies.base import Policy, State
from torchbandits.posteriors import Statistics
from torchbandits.starts import draw_uniform
from torchbandits.types import Arms, Evidence, Pulls, Selection


@dataclass(frozen=True)
class Uniform(Policy):
    """Arms drawn uniformly with replacement, `batch_size` at a time."""

    batch_size: int = 1

    def __post_init__(self) -> None:
        require(self.batch_size >= 1, f"batch_size must be at least 1, got {self.batch_size}.")

    def init(self, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size) -> State:
        """Statistics only."""
        return State(ArmRows(arms, batch_shape), Statistics(arms.shape[-1], batch_shape, arms.device), None, generators)

    def select(
        self, state: State, *, limit: Tensor | None = None, available: Tensor | None = None, exactly: int | None = None
    ) -> tuple[Selection, Evidence]:
        """Draw from copies of the generators. Cost O(q)."""
        shape, device = state.rows.batch_shape, state.log_det.device
        offered = state.rows.offered(available)
        if offered is not None:
            require(
                bool(offered.any(dim=-1).all()),
                "no arm is on offer in at least one batch row: `available` must have a True in each.",
            )
            offered = offered.expand(*shape, -1).reshape(-1, state.rows.num_arms)
        size = torch.full(shape, self.batch_size if exactly is None else exactly)
        size = size if limit is None else torch.minimum(size, limit.cpu().to(size))
        copies = state.twins()
        index = draw_uniform(state.rows.num_arms, size.reshape(-1).tolist(), copies, offered)
        index = index.to(device).reshape(*shape, -1)
        nothing = torch.full(index.shape, torch.nan, dtype=torch.float64, device=device)
        states = tuple(c.get_state() for c in copies)
        evidence = Evidence(nothing, nothing, torch.full(shape, torch.nan, dtype=torch.float64, device=device), states)
        return Selection(state.rows.points(index), index, index >= 0), evidence

    def update(self, state: State, pulls: Pulls) -> State:
        """Add up the rewards."""
        if pulls.points is not None:
            state.rows.tell_outside_(state.statistics, pulls.points, pulls.counts, pulls.sums, pulls.squares)
        else:
            assert pulls.index is not None
            assert pulls.mask is not None
            summed = state.rows.distinct(pulls.index, pulls.mask, pulls.counts, pulls.sums, pulls.squares)
            state.rows.tell_(state.statistics, *summed)
        return state

    def width(self, state: State) -> Tensor:
        """NaN: there are no bounds."""
        return torch.full_like(state.log_det, torch.nan)

    def bounds(self, state: State) -> None:
        """None: there are no bounds."""
        return


def uniform(*, batch_size: int = 1) -> Uniform:
    """Pull arms uniformly at random, with replacement.

    Args:
        batch_size: Picks of one `ask`.

    Guarantee: none; regret grows linearly. Cost: O(1) a pick.
    """
    return Uniform(batch_size)
