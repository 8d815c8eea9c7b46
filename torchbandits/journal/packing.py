"""Tensors and generators as JSON, exactly: numbers as numbers while they are few, bytes beyond. Reading them runs no code."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbandits.errors import DataError, require

_FEW = 256  # numbers that are written as such
_PLAIN = (torch.int64, torch.float64)
# Bytes that are always inflated, and those that are inflated for each compressed one: a small file can't fill the memory.
_ALWAYS, _RATIO = 1 << 30, 64
_DTYPES = {str(dtype)[6:]: dtype for dtype in (torch.float64, torch.float32, torch.int64, torch.int32, torch.bool, torch.uint8)}


def pack(tensor: Tensor | None) -> Any:
    """A tensor as something JSON holds: nested lists, or dtype, shape and compressed bytes."""
    if tensor is None:
        return None
    held = tensor.detach().cpu().contiguous()
    if held.dtype in _PLAIN and 0 < held.numel() <= _FEW and bool(torch.isfinite(held).all()):
        return held.tolist()
    array = held.numpy()
    raw = np.packbits(array).tobytes() if held.dtype == torch.bool else array.tobytes()
    packed = base64.b64encode(zlib.compress(raw, 1)).decode()
    return {"dtype": str(held.dtype)[6:], "shape": list(held.shape), "bytes": packed}


def unpack(value: Any) -> Tensor | None:
    """What `pack` packed.

    Raises:
        DataError: If it is anything else.
    """
    if value is None:
        return None
    try:
        if not isinstance(value, dict):
            array = np.asarray(value)
            require(array.dtype in (np.int64, np.float64), f"numbers of type {array.dtype}", DataError)
            return torch.from_numpy(array.copy())
        dtype, shape = _DTYPES[value["dtype"]], torch.Size(value["shape"])
        count = math.prod(shape)
        size = -(-count // 8) if dtype == torch.bool else count * dtype.itemsize
        require(min(shape, default=0) >= 0, f"shape {tuple(shape)}", DataError)
        raw = inflated(base64.b64decode(value["bytes"], validate=True), size)
        if dtype == torch.bool:
            bits = np.unpackbits(np.frombuffer(raw, np.uint8), count=count)
            return torch.from_numpy(bits.astype(bool)).reshape(shape)
        return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError, zlib.error) as error:
        raise DataError(f"expected a packed tensor, got {str(value)[:80]!r}: {error}.") from error


def held(value: Any) -> Tensor:
    """What `pack` packed, where there must be something."""
    tensor = unpack(value)
    if tensor is None:
        raise DataError("expected a packed tensor, got nothing.")
    return tensor


def inflated(data: bytes, size: int) -> bytes:
    """Decompress `data`, of which it is known that it holds `size` bytes; no more are inflated.

    Raises:
        DataError: If it holds more or fewer, or `size` is beyond all proportion: more than 1 GiB and 64 times `data`.
    """
    most = max(_ALWAYS, _RATIO * len(data))
    require(
        0 <= size <= most,
        f"{size:,} bytes are said to be in {len(data):,} compressed ones, at most {most:,} are read",
        DataError,
    )
    raw = zlib.decompressobj().decompress(data, size + 1)
    require(len(raw) == size, f"{'more' if len(raw) > size else len(raw)} bytes where {size} are said to be", DataError)
    return raw


class Drawn:
    """Where generators stand, told in a few bytes after each step: what has changed since the last telling."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self._generators = tuple(generators)
        self.known = [bytes(g.get_state().numpy()) for g in self._generators]

    def since(self) -> list[str] | None:
        """What changed since the last call, for `follow`; None where nothing did."""
        now = [bytes(g.get_state().numpy()) for g in self._generators]
        if now == self.known:
            return None
        changes = [base64.b64encode(zlib.compress(_differ(a, b), 1)).decode() for a, b in zip(self.known, now, strict=True)]
        self.known = now
        return changes

    def follow(self, changes: Any) -> None:
        """Take over a change that `since` told.

        Raises:
            DataError: If it is none of these generators'.
        """
        try:
            now = [_differ(a, inflated(base64.b64decode(c), len(a))) for a, c in zip(self.known, changes, strict=True)]
            for generator, state in zip(self._generators, now, strict=True):
                generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        except (TypeError, ValueError, RuntimeError, zlib.error) as error:
            raise DataError(f"expected the states of {len(self.known)} generators: {error}.") from error
        self.known = now


def _differ(one: bytes, other: bytes) -> bytes:
    return (np.frombuffer(one, np.uint8) ^ np.frombuffer(other, np.uint8)).tobytes()
