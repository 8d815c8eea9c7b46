"""First picks, before a policy's own rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.errors import require


class Start(ABC):
    """The first `size` picks of a run."""

    size: int

    @abstractmethod
    def draw(self, num_arms: int, count: Sequence[int], generators: Sequence[torch.Generator], offered: Tensor) -> Tensor:
        """Picks, `rows x max(count)` indices (−1 where padded): `count[r]` of them in row r, with its generator."""


@dataclass(frozen=True)
class Uniform(Start):
    """`size` arms drawn uniformly, with replacement, as the papers draw their first pick."""

    size: int

    def __post_init__(self) -> None:
        require(self.size >= 1, f"a start needs at least 1 pick, got {self.size}.")

    def draw(self, num_arms: int, count: Sequence[int], generators: Sequence[torch.Generator], offered: Tensor) -> Tensor:
        """Uniform over the arms on offer (`rows x A`, or empty for all of them)."""
        return draw_uniform(num_arms, count, generators, offered)


def uniform(size: int) -> Uniform:
    """`size` arms drawn uniformly, with replacement."""
    return Uniform(size)


def draw_uniform(num_arms: int, count: Sequence[int], generators: Sequence[torch.Generator], offered: Tensor | None) -> Tensor:
    """Uniform draws with replacement, `rows x max(count)`, −1 where padded; row r uses `generators[r]` only."""
    index = torch.full((len(count), max(count, default=0)), -1)
    for row, (n, generator) in enumerate(zip(count, generators, strict=True)):
        if offered is None or not offered.numel():
            index[row, :n] = torch.randint(num_arms, (n,), generator=generator)
        elif n:
            arms = offered[row].nonzero().squeeze(-1).cpu()
            if arms.numel():
                index[row, :n] = arms[torch.randint(arms.numel(), (n,), generator=generator)]
    return index
