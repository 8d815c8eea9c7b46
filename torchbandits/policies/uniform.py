"""Uniform sampling, the baseline of regret comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.arms import Box
from torchbandits.checks import check_whole, explains_keywords
from torchbandits.policies.heuristic import Heuristic, add_up, fresh_state
from torchbandits.policies.state import SumsState
from torchbandits.posteriors import Statistics
from torchbandits.sources import ArmSet
from torchbandits.starts import draw_uniform
from torchbandits.types import Pulls


@dataclass(frozen=True, repr=False)
class Uniform(Heuristic[SumsState]):
    """A policy that draws arms uniformly with replacement, `batch_size` at a time."""

    batch_size: int = 1

    def __post_init__(self) -> None:
        check_whole("batch_size", self.batch_size)

    @property
    def streams(self) -> bool:
        """Whether arms may be read piece by piece: True, because features are never read."""
        return True

    def init(self, arms: ArmSet, generators: Sequence[torch.Generator], batch_shape: torch.Size) -> SumsState:
        """Make a fresh state, of statistics only."""
        return fresh_state(arms, generators, batch_shape)

    def init_box(self, box: Tensor, generators: Sequence[torch.Generator], batch_shape: torch.Size) -> SumsState:
        """Make a fresh state of statistics and a box to draw from; arm 0 is its centre."""
        rows = Box.centre(box, batch_shape)
        return SumsState(rows, Statistics(box.shape[-1], batch_shape, box.device), generators, Box(rows, None, box))

    def draw(
        self, state: SumsState, sizes: Sequence[int], offered: Tensor | None, generators: Sequence[torch.Generator]
    ) -> Tensor:
        """Draw one number per pick. Cost O(q)."""
        return draw_uniform(state.rows.num_arms, sizes, generators, offered)

    def update(self, state: SumsState, pulls: Pulls) -> SumsState:
        """Add up the rewards."""
        add_up(state, pulls)
        return state


@explains_keywords
def uniform(*, batch_size: int = 1) -> Uniform:
    """Pull arms uniformly at random, with replacement; in a box, this is random search.

    Args:
        batch_size: Number of picks per `ask`.

    Guarantee: none; regret grows linearly. Cost: O(1) per pick.
    """
    return Uniform(batch_size)
