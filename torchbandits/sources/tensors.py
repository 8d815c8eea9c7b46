"""Arms in memory: a tensor used directly, and one in pinned host memory that a GPU reads in overlapped chunks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torchbandits.checks import as_device, as_tensor, check_dtype, check_flag
from torchbandits.errors import ShapeError, require
from torchbandits.sources.ahead import sent_ahead
from torchbandits.sources.base import ArmSource, check_index, check_part, parts
from torchbandits.types import Arms, Picks

NARROW = (torch.float16, torch.bfloat16, torch.int8, torch.uint8)
"""Dtypes of embeddings that are converted as they are read."""


class InMemory(ArmSource):
    """A tensor that is shared, not copied.

    Args:
        arms: `A x d` or `batch_shape x A x d`; shared, so it must not change.
        distinct: A promise that no two arms are equal, see `ArmSource`.
    """

    def __init__(self, arms: Arms, distinct: bool = False) -> None:
        if not isinstance(arms, Tensor) or arms.dim() < 2:
            got = tuple(arms.shape) if isinstance(arms, Tensor) else type(arms).__name__
            raise ShapeError(f"arms must be a tensor A x d or batch_shape x A x d, got {got}.")
        check_flag("distinct", distinct)
        self.arms, self.distinct = arms, distinct

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor."""
        return self.arms.shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the tensor."""
        return self.arms.dtype

    @property
    def device(self) -> torch.device:
        """Device of the tensor."""
        return self.arms.device

    def chunk(self, part: slice) -> Tensor:
        """A view of consecutive arms, `batch_shape x n x d`."""
        check_part(part)
        return self.arms[..., part, :]

    def points(self, index: Picks) -> Tensor:
        """Arms by index; each batch row is indexed separately if the tensor has batch dimensions."""
        check_index(index)
        if self.arms.dim() == 2:
            return self.arms[index] if index.dim() != 1 else self.arms.index_select(0, index)
        arms = self.arms.expand(*index.shape[:-1], -1, -1)
        return arms.gather(-2, index.unsqueeze(-1).expand(*index.shape, arms.shape[-1]))


class Pinned(ArmSource):
    """A tensor in host memory, swept on another device: the next chunk is copied while one is processed.

    Args:
        arms: `A x d` on the CPU; copied into pinned memory for a CUDA device, unless already there. Must not change.
        device: Device on which the arms are swept.
        distinct: A promise that no two arms are equal, see `ArmSource`.
    """

    def __init__(self, arms: Arms, device: torch.device | str, distinct: bool = False) -> None:
        _check(arms)
        require(
            arms.device.type == "cpu",
            f"arms to be pinned must be in host memory, got arms on {arms.device}: pass them to the Bandit directly.",
        )
        device = as_device(device)
        check_flag("distinct", distinct)
        self._device, self.distinct = device, distinct
        self._arms = arms.contiguous().pin_memory() if device.type == "cuda" else arms

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor."""
        return self._arms.shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the tensor."""
        return self._arms.dtype

    @property
    def device(self) -> torch.device:
        """Device on which the arms are swept."""
        return self._device

    def chunk(self, part: slice) -> Tensor:
        """A copy of consecutive arms on the device."""
        check_part(part)
        return self._arms[part].to(self._device)

    def points(self, index: Picks) -> Tensor:
        """A copy of arms by index on the device, gathered on the host."""
        check_index(index)
        return self._arms[index.to(self._arms.device)].to(self._device)

    def chunks(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """All arms in order; see `sent_ahead`."""
        cuts = parts(start, self.num_arms if stop is None else stop, step)
        return sent_ahead(((part, self._arms[part]) for part in cuts), self._device)


class Narrow(ArmSource):
    """A tensor of 8 or 16 bits a number, swept in float32 or float64: converted a chunk at a time, never as a whole.

    Args:
        arms: `A x d` of a dtype of `NARROW`; shared, so it must not change.
        dtype: Dtype of sweeps.
        distinct: A promise that no two arms are equal, see `ArmSource`.
    """

    def __init__(self, arms: Tensor, dtype: torch.dtype, distinct: bool) -> None:
        check_flag("distinct", distinct)
        self._arms, self._dtype, self.distinct = arms, check_dtype("dtype", dtype), distinct

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor."""
        return self._arms.shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of sweeps."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Device of the tensor."""
        return self._arms.device

    def chunk(self, part: slice) -> Tensor:
        """A converted copy of consecutive arms."""
        check_part(part)
        return self._arms[part].to(self._dtype)

    def points(self, index: Picks) -> Tensor:
        """A converted copy of arms by index."""
        check_index(index)
        return self._arms[index].to(self._dtype)


def tensor(arms: Tensor, *, dtype: torch.dtype | None = None, distinct: bool = False) -> InMemory | Narrow:
    """Arms in memory, `A x d`. Unlike a plain tensor they are shared with the bandit and not copied, so they must not change.

    Args:
        arms: float64 or float32; or embeddings of 8 or 16 bits a number (float16, bfloat16, int8, uint8), which are converted a
            chunk at a time in every sweep. Integers count as they are: divide lengthscales by the unit of a quantisation.
        dtype: Dtype of sweeps of such embeddings, float32 by default; otherwise that of the arms.
        distinct: A promise that no two of them are equal.

    Raises:
        ShapeError: If the arms are not as above.
    """
    narrow = isinstance(arms, Tensor) and arms.dtype in NARROW
    if not narrow:
        _check(arms)
        require(
            dtype in (None, arms.dtype),
            f"dtype must be that of the arms, {arms.dtype}, got {dtype}: convert the arms.",
            ShapeError,
        )
        return InMemory(arms, distinct)
    _check_shape(arms)
    as_tensor("arms", arms)
    return Narrow(arms, torch.float32 if dtype is None else dtype, distinct)


def pinned(arms: Tensor, device: torch.device | str, *, distinct: bool = False) -> Pinned:
    """Arms in host memory, swept in overlapped chunks on a GPU without room for them.

    Args:
        arms: `A x d`, float32 or float64, on the CPU.
        device: Device of means, leverages and posterior, on which chunks are swept.
        distinct: A promise that no two arms are equal, see `ArmSource`.

    Raises:
        ShapeError: If the arms are not as above.
    """
    return Pinned(arms, device, distinct)


def _check(arms: Tensor) -> None:
    _check_shape(arms)
    # Rejects sparse tensors and values that are not numbers.
    as_tensor("arms", arms)
    check_dtype("arms", arms.dtype)


def _check_shape(arms: Tensor) -> None:
    shaped = isinstance(arms, Tensor) and arms.dim() == 2 and arms.numel() > 0
    got = tuple(arms.shape) if isinstance(arms, Tensor) else type(arms).__name__
    require(shaped, f"arms must be a tensor A x d with at least one arm and one feature, got {got}.", ShapeError)
