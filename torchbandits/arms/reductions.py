"""Every question that needs all arms at once, in one place: the largest score, the best arm, the leaders, numbers by index.

Vectors hold the arms that are here; an index is one among all arms. Where all arms are here (`Whole`) the two are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from torchbandits.arms.ties import best_arm


class Reductions(ABC):
    """What is asked of vectors over the arms, `... x A`; an index is −1 for no arm."""

    @abstractmethod
    def amax(self, values: Tensor) -> Tensor:
        """The largest over all arms, `...`."""

    @abstractmethod
    def amin(self, values: Tensor) -> Tensor:
        """The smallest over all arms, `...`."""

    @abstractmethod
    def any(self, marked: Tensor) -> Tensor:
        """Whether an arm is marked, `...`."""

    @abstractmethod
    def best(self, score: Tensor) -> Tensor:
        """Lowest index among the scores within 16 eps of the best, `...`; see `best_arm`."""

    @abstractmethod
    def top(self, score: Tensor, k: int) -> Tensor:
        """Indices of the k largest scores, `... x k`; of all arms where they are fewer."""

    @abstractmethod
    def at(self, index: Tensor, *vectors: Tensor) -> list[Tensor]:
        """Entries of each vector (alike in dtype) at arms, `... x p` each; any number where the index is −1."""

    @abstractmethod
    def put_(self, vector: Tensor, index: Tensor, values: Tensor | float | bool) -> Tensor:
        """Write entries (`... x p`) at arms into the vector; the index is ≥ 0. Returns it."""

    def without(self, score: Tensor, index: Tensor) -> Tensor:
        """The scores with −∞ at arms."""
        place = self.places(index)
        slot = torch.where(place >= 0, place, score.shape[-1])
        return torch.nn.functional.pad(score, (0, 1)).scatter(-1, slot, -torch.inf)[..., :-1].contiguous()

    @abstractmethod
    def places(self, index: Tensor) -> Tensor:
        """Where arms are in the vectors here, `... x p`; −1 for arms that are not here."""

    @abstractmethod
    def agreed(self, values: Tensor) -> Tensor:
        """The same numbers for everybody."""

    @property
    @abstractmethod
    def offset(self) -> int:
        """Index of the first arm that is here."""

    @abstractmethod
    def total(self, held: int) -> int:
        """How many arms there are, given how many are here."""


class Whole(Reductions):
    """All arms are here."""

    def amax(self, values: Tensor) -> Tensor:
        """One pass."""
        return values.amax(dim=-1)

    def amin(self, values: Tensor) -> Tensor:
        """One pass."""
        return values.amin(dim=-1)

    def any(self, marked: Tensor) -> Tensor:
        """One pass."""
        return marked.any(dim=-1)

    def best(self, score: Tensor) -> Tensor:
        """Two passes."""
        return best_arm(score)

    def top(self, score: Tensor, k: int) -> Tensor:
        """One pass."""
        return score.topk(min(k, score.shape[-1]), dim=-1).indices

    def at(self, index: Tensor, *vectors: Tensor) -> list[Tensor]:
        """Gathered."""
        slot = index.clamp_min(0)
        found = []
        for vector in vectors:
            found.append(vector.gather(-1, slot))
        return found

    def put_(self, vector: Tensor, index: Tensor, values: Tensor | float | bool) -> Tensor:
        """Scattered."""
        return vector.scatter_(-1, index, values)

    def places(self, index: Tensor) -> Tensor:
        """The index."""
        return index

    def agreed(self, values: Tensor) -> Tensor:
        """As they are."""
        return values

    @property
    def offset(self) -> int:
        """0."""
        return 0

    def total(self, held: int) -> int:
        """Those that are here."""
        return held


WHOLE = Whole()
