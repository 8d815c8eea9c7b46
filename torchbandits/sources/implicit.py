"""Arms that are computed on access: a product grid, and chunks from a user function."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from torchbandits.checks import as_device, as_tensor, check_dtype, check_flag, check_whole, is_whole
from torchbandits.display import kind
from torchbandits.errors import DataError, NonFiniteError, ShapeError, require
from torchbandits.sources.base import ArmSource, check_index, check_part, recut
from torchbandits.types import Picks

# Number of points cached after a lookup in a stream without random access.
_POINTS_KEPT = 1 << 16


class Grid(ArmSource):
    """All combinations of the values of each feature, never stored; the last feature varies fastest.

    Arms are always `distinct`, because the values of an axis must be.

    Args:
        axes: One tensor of distinct values per feature.
    """

    distinct = True

    def __init__(self, axes: Sequence[Tensor]) -> None:
        listed = isinstance(axes, Iterable) and not isinstance(axes, str) and not (isinstance(axes, Tensor) and axes.dim() == 0)
        require(listed, f"axes must be a list of tensors, one per feature, got {type(axes).__name__}.", ShapeError)
        axes = tuple(axes)
        require(len(axes) > 0, "a grid needs at least one axis: grid([torch.linspace(0, 1, 100)] * 3).", ShapeError)
        for j, axis in enumerate(axes):
            shaped = isinstance(axis, Tensor) and axis.dim() == 1 and axis.numel() > 0
            got = tuple(axis.shape) if isinstance(axis, Tensor) else type(axis).__name__
            require(shaped, f"axis {j} must be a tensor of at least one value, got {got}.", ShapeError)
            # Rejects sparse tensors and values that are not numbers.
            as_tensor(f"axis {j}", axis)
            check_dtype(f"axis {j}", axis.dtype)
            same = axis.dtype == axes[0].dtype and axis.device == axes[0].device
            require(same, f"axis {j} is {axis.dtype} on {axis.device}, axis 0 {axes[0].dtype} on {axes[0].device}.", ShapeError)
            require(bool(torch.isfinite(axis).all()), f"axis {j} has a NaN or infinite value.", NonFiniteError)
            require(len((axis + 0.0).unique()) == len(axis), f"axis {j} repeats a value, so that arms would be equal: drop it.")
        size = math.prod(len(axis) for axis in axes)
        require(size < 2**63, f"{size} arms are more than can be counted in 64 bits: take coarser axes.")
        self._axes = axes
        sizes = [len(axis) for axis in axes]
        self._strides = [math.prod(sizes[j + 1 :]) for j in range(len(sizes))]

    @property
    def shape(self) -> torch.Size:
        """Product of the sizes of the axes, and their number."""
        return torch.Size([math.prod(len(axis) for axis in self._axes), len(self._axes)])

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the axes."""
        return self._axes[0].dtype

    @property
    def device(self) -> torch.device:
        """Device of the axes."""
        return self._axes[0].device

    def chunk(self, part: slice) -> Tensor:
        """Consecutive arms, computed on access. Cost O(n d)."""
        check_part(part)
        return self.points(torch.arange(part.start, part.stop, device=self.device))

    def points(self, index: Picks) -> Tensor:
        """Arms by index, from the digits of the index in mixed radix. Cost O(d) per arm."""
        check_index(index)
        digits = [
            axis[index.div(stride, rounding_mode="floor") % len(axis)]
            for axis, stride in zip(self._axes, self._strides, strict=True)
        ]
        return torch.stack(digits, dim=-1)


class Chunks(ArmSource):
    """Arms that a function yields in chunks, again for every sweep.

    Args:
        stream: Called once per sweep; yields tensors `n x d`, the same arms in the same order each time.
        shape: `A x d`.
        dtype: Dtype of the arms.
        device: Device on which they are swept; chunks on other devices are moved.
        at: Function from indices `p` to their arms `p x d`; None if arms are looked up in the stream.
        distinct: A promise that no two arms are equal, see `ArmSource`.
    """

    def __init__(
        self,
        stream: Callable[[], Iterable[Tensor]],
        shape: torch.Size,
        dtype: torch.dtype,
        device: torch.device | str,
        at: Callable[[Tensor], Tensor] | None,
        distinct: bool,
    ) -> None:
        good = callable(stream)
        require(good, f"stream must be a function that returns an iterable of tensors, got {type(stream).__name__}.")
        good = isinstance(shape, Sequence) and len(shape) == 2 and all(map(is_whole, shape))
        require(good, f"shape must be A x d, such as torch.Size([1000, 2]), got {shape!r}.", ShapeError)
        require(at is None or callable(at), f"at must be a function of indices, got {type(at).__name__}.")
        check_flag("distinct", distinct)
        self._stream, self._at, self.distinct = stream, at, distinct
        self._shape, self._dtype, self._device = torch.Size(shape), check_dtype("dtype", dtype), as_device(device)
        self._kept: OrderedDict[int, Tensor] = OrderedDict()

    @property
    def shape(self) -> torch.Size:
        """`A x d`, as declared."""
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the arms, as declared."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Device on which the arms are swept."""
        return self._device

    def chunk(self, part: slice) -> Tensor:
        """Consecutive arms, read from the stream from its beginning."""
        check_part(part)
        return next(self.chunks(part.stop - part.start, part.start, part.stop))[1]

    def chunks(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """One pass over the stream. Raises `DataError` if it ends too early or, when read to its end, too late."""
        stop = self.num_arms if stop is None else stop

        def from_start() -> Iterator[Tensor]:
            seen, given = 0, self._stream()
            good = isinstance(given, Iterable)
            require(
                good, f"stream must return an iterable of tensors, got {type(given).__name__}: return a list, or yield them."
            )
            for piece in given:
                arms = self._checked(piece, "the stream of arms")
                seen += len(arms)
                if seen > self.num_arms:
                    raise DataError(f"the stream yields more than the {self.num_arms} arms announced: give their true number.")
                if seen > start:
                    yield arms[max(0, start - (seen - len(arms))) :]

        pieces = from_start()
        yield from recut(pieces, start, stop, step)
        if stop == self.num_arms:
            # Read the stream to its end, so that a stream that is too long is detected.
            for _ in pieces:
                pass

    def points(self, index: Picks) -> Tensor:
        """Arms by index, from `at`. Without `at`, one pass over the stream, up to the last arm that is not cached."""
        check_index(index)
        flat = index.reshape(-1)
        if self._at is not None:
            arms = self._checked(self._at(flat), "at()")
            require(len(arms) == len(flat), f"at() must return {len(flat)} arms, got {len(arms)}.", ShapeError)
            return arms.reshape(*index.shape, self.dim)
        wanted = flat.tolist()
        missing = sorted(set(wanted) - self._kept.keys())
        if missing:
            place = torch.tensor(missing, device=self._device)
            for part, arms in self.chunks(_POINTS_KEPT, 0, missing[-1] + 1):
                mine = place[(place >= part.start) & (place < part.stop)]
                self._kept.update(zip(mine.tolist(), arms[mine - part.start].clone().unbind(), strict=True))
        for number in wanted:
            self._kept.move_to_end(number)
        out = torch.stack([self._kept[number] for number in wanted]) if wanted else self._empty()
        while len(self._kept) > _POINTS_KEPT:
            self._kept.popitem(last=False)
        return out.reshape(*index.shape, self.dim)

    def _empty(self) -> Tensor:
        return torch.empty(0, self.dim, dtype=self._dtype, device=self._device)

    def _checked(self, arms: object, what: str) -> Tensor:
        good = isinstance(arms, Tensor) and arms.dim() == 2 and arms.shape[-1] == self.dim and arms.dtype == self._dtype
        require(good, f"{what} must give {self._dtype} tensors n x {self.dim}, got {kind(arms)}.", ShapeError)
        assert isinstance(arms, Tensor)
        return arms.to(self._device)


def grid(axes: Sequence[Tensor]) -> Grid:
    """The product grid of some axes, which is never stored; the last feature varies fastest.

    Args:
        axes: One tensor of distinct, finite values per feature, all of one dtype (float32 or float64) and device.

    Raises:
        ShapeError: If there are no axes, one is empty or not one-dimensional, or dtypes or devices differ.
        ArgumentError: If an axis repeats a value, or there are 2⁶³ arms or more.
        NonFiniteError: If a value is NaN or infinite.
    """
    return Grid(axes)


def chunks(
    stream: Callable[[], Iterable[Tensor]],
    num_arms: int,
    dim: int,
    *,
    at: Callable[[Tensor], Tensor] | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    distinct: bool = False,
) -> Chunks:
    """Arms that a user function yields, for arms that fit neither memory nor a file.

    Args:
        stream: Called once per sweep; yields tensors `n x dim` of any n, the same arms in the same order each time. They are
            read before the next one is requested, so that one buffer may be filled again and again.
        num_arms: A.
        dim: d.
        at: Function from indices (`p` integers) to their arms, `p x dim`, used for picks and leaders. Without it, arms are
            looked up in a pass over the stream, which costs as much as a sweep in every batch, and the last 65,536 are cached.
        dtype: Dtype of the arms, float64 or float32.
        device: Device of means, leverages and posterior; chunks are moved there.
        distinct: A promise that no two arms are equal, see `ArmSource`.

    Raises:
        ArgumentError: If a size is not positive or a function is not callable.
        ShapeError, DataError: During a sweep, if a chunk has another shape or dtype, or the number of arms is not `num_arms`.
    """
    for name, value in (("num_arms", num_arms), ("dim", dim)):
        check_whole(name, value)
    return Chunks(stream, torch.Size([num_arms, dim]), dtype, device, at, distinct)
