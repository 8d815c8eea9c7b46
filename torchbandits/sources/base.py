"""Interface of arms for sweeps: their number, and access to consecutive pieces of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchbandits.checks import check_whole
from torchbandits.errors import ArgumentError, DataError, ShapeError
from torchbandits.types import Arms, Picks


class ArmSource(ABC):
    """Arms that are read in pieces, so that their number is limited by time and not by memory.

    Attributes:
        distinct: A promise that no two arms are equal. It saves the search for duplicates, 8 bytes per arm. If it is broken,
            equal arms are pulled as different ones, with separate counts and rows, and a dictionary may contain both.
    """

    distinct: bool = False

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """`A x d`. An in-memory tensor may have leading batch dimensions."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """float64 (accurate) or float32 (fast), the dtype of sweeps."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device on which arms are swept."""

    @abstractmethod
    def chunk(self, part: slice) -> Tensor:
        """Consecutive arms, `n x d`, on the device. `part` has a start, a stop and no step."""

    @abstractmethod
    def points(self, index: Picks) -> Tensor:
        """Arms by index, `... x d` for an index `...` within 0 … A − 1, on the device."""

    def chunks(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """All arms from `start` to `stop` in order, `step` at a time. A piece is valid until the next one is requested."""
        for part in parts(start, self.num_arms if stop is None else stop, step):
            yield part, self.chunk(part)

    @property
    def num_arms(self) -> int:
        """Number of arms A."""
        return self.shape[-2]

    @property
    def dim(self) -> int:
        """Number of features d."""
        return self.shape[-1]

    def __deepcopy__(self, memo: dict[int, Any]) -> ArmSource:
        """Return self, because arms never change."""
        return self

    def __repr__(self) -> str:
        """Kind and sizes of the source."""
        return f"{type(self).__name__}({self.num_arms} x {self.dim}, {self.dtype}, {self.device})"


ArmSet = Arms | ArmSource
"""Arms as a tensor or as a source."""


def parts(start: int, stop: int, step: int) -> Iterator[slice]:
    """Slices of `step` arms, the last one shorter."""
    check_span(start, stop, step)
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))


def recut(pieces: Iterable[Tensor], start: int, stop: int, step: int) -> Iterator[tuple[slice, Tensor]]:
    """Cut consecutive pieces of any sizes, the first of which begins at `start`, into pieces of `step` arms up to `stop`.

    A piece is read before the next one is requested, and may be a view of memory that is then written again.

    Raises:
        DataError: If the pieces end before `stop`.
    """
    cuts, filled = parts(start, stop, step), 0
    buffer: Tensor | None = None
    part = next(cuts, None)
    for piece in pieces:
        rest = piece
        while part is not None and len(rest):
            size = part.stop - part.start
            if not filled and len(rest) >= size:
                whole, rest = rest[:size], rest[size:]
            else:
                # Copied before the next piece is requested, which may be written to the same memory.
                buffer = rest.new_empty(size, *rest.shape[1:]) if buffer is None else buffer
                more = rest[: size - filled]
                buffer[filled : filled + len(more)] = more
                filled, rest = filled + len(more), rest[len(more) :]
                if filled < size:
                    break
                whole, buffer, filled = buffer, None, 0
            yield part, whole
            part = next(cuts, None)
        if part is None:
            return
    if part is not None:
        ends = f"the source ends after {part.start + filled} arms, and {stop} were announced"
        raise DataError(f"{ends}: give their true number, and begin anew at every pass.")


def check_span(start: Any, stop: Any, step: Any) -> None:
    """Raise ArgumentError unless start and stop are integers ≥ 0, and the step is an integer ≥ 1."""
    for name, value, least in (("step", step, 1), ("start", start, 0), ("stop", stop, 0)):
        check_whole(name, value, least)


def check_part(part: Any) -> None:
    """Raise ArgumentError unless the part is a slice with a start, a stop and no step."""
    if not (isinstance(part, slice) and part.step is None and isinstance(part.start, int) and isinstance(part.stop, int)):
        raise ArgumentError(f"part must be a slice such as slice(0, 100), got {part!r}.")


def check_index(index: Any) -> None:
    """Raise ShapeError unless the index is a tensor of integers. Their range is not checked."""
    if not isinstance(index, Tensor) or index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        got = str(index.dtype) if isinstance(index, Tensor) else type(index).__name__
        raise ShapeError(f"index must be a tensor of integers, got {got}.")
