"""Arms that are packed into words and read by sweeps as they are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from torchbandits.packing import Packing
from torchbandits.sources.base import ArmSource, check_index, check_part, parts
from torchbandits.types import Picks


class PackedArms(ArmSource):
    """Arms of bits or small counts in packed words, which are compared and, under a Tanimoto kernel, swept without unpacking.

    `chunk` and `points` unpack them for other uses: a few picks, or another kernel.
    """

    @property
    @abstractmethod
    def packing(self) -> Packing:
        """Layout of the packed arms."""

    @abstractmethod
    def words(self, part: slice) -> Tensor:
        """Consecutive arms, `n x w` int64, on the device."""

    @abstractmethod
    def words_at(self, index: Picks) -> Tensor:
        """Arms by index, `... x w` int64, on the device."""

    def chunk(self, part: slice) -> Tensor:
        """Consecutive arms, unpacked."""
        check_part(part)
        return self.packing.unpack(self.words(part), self.dtype)

    def points(self, index: Picks) -> Tensor:
        """Arms by index, unpacked."""
        check_index(index)
        return self.packing.unpack(self.words_at(index), self.dtype)

    def chunks(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """All arms in order, unpacked."""
        return ((part, self.packing.unpack(words, self.dtype)) for part, words in self.packed(step, start, stop))

    def packed(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """All arms from `start` to `stop` in order as words, `step` at a time."""
        for part in parts(start, self.num_arms if stop is None else stop, step):
            yield part, self.words(part)


def stored(source: ArmSource, step: int) -> Iterator[tuple[slice, Tensor]]:
    """All arms in order as they are compared, `step` at a time: packed arms as words, others as points."""
    return source.packed(step) if isinstance(source, PackedArms) else source.chunks(step)


def stored_at(source: ArmSource, index: Tensor) -> Tensor:
    """Arms by index as they are compared, likewise."""
    return source.words_at(index) if isinstance(source, PackedArms) else source.points(index)


def as_stored(source: ArmSource, points: Tensor) -> tuple[Tensor, Tensor | None]:
    """Points `n x d` as they are compared with arms, and which of them can equal one, `n` booleans; None if all can."""
    if not isinstance(source, PackedArms):
        return points.double(), None
    held = source.packing.holds(points)
    return source.packing.pack(torch.where(held.unsqueeze(-1), points, 0.0)), held
