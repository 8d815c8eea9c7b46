"""All operations that need every arm at once: the largest score, the best arm, the leaders, entries by index.

Vectors hold entries of the local arms only, while indices count through all arms. If all arms are local (`Whole`), the index of
an arm is its position in the vectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from torchbandits.arms.ties import best_arm


class Reductions(ABC):
    """Reductions of vectors over the arms, `... x A`. An index of −1 stands for no arm."""

    @abstractmethod
    def amax(self, values: Tensor) -> Tensor:
        """The largest value over all arms, `...`."""

    @abstractmethod
    def amin(self, values: Tensor) -> Tensor:
        """The smallest value over all arms, `...`."""

    @abstractmethod
    def any(self, marked: Tensor) -> Tensor:
        """Whether any arm is marked, `...`."""

    @abstractmethod
    def best(self, score: Tensor, highest: Tensor | None = None) -> Tensor:
        """Lowest index among the scores within 16 eps of the best, `...`; `highest` as in `best_arm`."""

    @abstractmethod
    def top(self, score: Tensor, k: int) -> Tensor:
        """Indices of the k largest scores, `... x k`; of all arms if there are fewer than k."""

    @abstractmethod
    def at(self, index: Tensor, *vectors: Tensor) -> list[Tensor]:
        """Entries of each vector (all of one dtype) at arms, `... x p` each; arbitrary where the index is −1."""

    @abstractmethod
    def put_(self, vector: Tensor, index: Tensor, values: Tensor | float | bool) -> Tensor:
        """Write entries (`... x p`) at arms into the vector and return it. Indices must be ≥ 0."""

    def without(self, score: Tensor, index: Tensor) -> Tensor:
        """The scores with −∞ at the given arms."""
        place = self.places(index)
        slot = torch.where(place >= 0, place, score.shape[-1])
        return torch.nn.functional.pad(score, (0, 1)).scatter(-1, slot, -torch.inf)[..., :-1].contiguous()

    @abstractmethod
    def places(self, index: Tensor) -> Tensor:
        """Positions of arms in the local vectors, `... x p`; −1 for arms that are not local."""

    @abstractmethod
    def agreed(self, values: Tensor) -> Tensor:
        """The values of the first process, in every process."""

    @property
    @abstractmethod
    def offset(self) -> int:
        """Index of the first local arm."""

    @abstractmethod
    def total(self, held: int) -> int:
        """Total number of arms, given the number of local arms."""


class Whole(Reductions):
    """Reductions where all arms are local."""

    def amax(self, values: Tensor) -> Tensor:
        """The maximum, in one pass."""
        return values.amax(dim=-1)

    def amin(self, values: Tensor) -> Tensor:
        """The minimum, in one pass."""
        return values.amin(dim=-1)

    def any(self, marked: Tensor) -> Tensor:
        """Whether any entry is marked, in one pass."""
        return marked.any(dim=-1)

    def best(self, score: Tensor, highest: Tensor | None = None) -> Tensor:
        """Lowest index among the best scores, in two passes, or in one if the highest is known."""
        return best_arm(score, highest)

    def top(self, score: Tensor, k: int) -> Tensor:
        """The k largest scores, in one pass."""
        return score.topk(min(k, score.shape[-1]), dim=-1).indices

    def at(self, index: Tensor, *vectors: Tensor) -> list[Tensor]:
        """Entries gathered from the vectors."""
        slot = index.clamp_min(0)
        found = []
        for vector in vectors:
            found.append(vector.gather(-1, slot))
        return found

    def put_(self, vector: Tensor, index: Tensor, values: Tensor | float | bool) -> Tensor:
        """Scatter the values into the vector."""
        return vector.scatter_(-1, index, values)

    def places(self, index: Tensor) -> Tensor:
        """The index itself."""
        return index

    def agreed(self, values: Tensor) -> Tensor:
        """The values unchanged."""
        return values

    @property
    def offset(self) -> int:
        """Index of the first arm, 0."""
        return 0

    def total(self, held: int) -> int:
        """The number of local arms."""
        return held


WHOLE = Whole()
