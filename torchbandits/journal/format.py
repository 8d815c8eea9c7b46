"""Tensors, generators and states exactly, as JSON, as bytes and in a checkpoint file. Reading them runs no code."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import math
import os
import pickle
import secrets
import stat
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from torchbandits.errors import DataError, require
from torchbandits.journal.lines import sync_folder
from torchbandits.locks import BINARY

_FEW = 256  # largest number of values that are written as JSON numbers
_PLAIN = (torch.int64, torch.float64)
# Bytes that are inflated in any case, and bytes that are inflated per compressed byte: a small file cannot fill the memory.
_ALWAYS, _RATIO = 1 << 30, 64
_DTYPES = {str(dtype)[6:]: dtype for dtype in (torch.float64, torch.float32, torch.int64, torch.int32, torch.bool, torch.uint8)}
CHECKPOINT_FORMAT = 1
_HEAD = 1 << 12  # largest size of the first line of a checkpoint, bytes
Stamp = tuple[int, int, int, int]


# ---------------------------------------------------------------------- tensors as JSON


def pack(tensor: Tensor | None) -> Any:
    """Represent a tensor in JSON: as nested lists while it is small, else as dtype, shape and compressed bytes."""
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
    """The tensor that `pack` packed.

    Raises:
        DataError: If the value was not written by `pack`.
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
    """The tensor that `pack` packed, which must not be None."""
    tensor = unpack(value)
    if tensor is None:
        raise DataError("expected a packed tensor, got nothing.")
    return tensor


def inflated(data: bytes, size: int) -> bytes:
    """Decompress `data` to `size` bytes; never more than `size` bytes are inflated.

    Raises:
        DataError: If `data` holds more or fewer bytes, or `size` is implausible: more than 1 GiB and more than 64 times the
            size of `data`.
    """
    most = max(_ALWAYS, _RATIO * len(data))
    require(
        0 <= size <= most,
        f"{len(data):,} compressed bytes claim to hold {size:,} bytes, and at most {most:,} are read",
        DataError,
    )
    raw = zlib.decompressobj().decompress(data, size + 1)
    require(len(raw) == size, f"{'more' if len(raw) > size else len(raw)} bytes instead of {size}", DataError)
    return raw


class GeneratorStates:
    """States of generators, recorded after each step in a few bytes, as differences from the record before."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self._generators = tuple(generators)
        self.known = [bytes(g.get_state().numpy()) for g in self._generators]

    def since(self) -> list[str] | None:
        """The changes since the last call, for `follow`; None if nothing changed."""
        now = [bytes(g.get_state().numpy()) for g in self._generators]
        if now == self.known:
            return None
        changes = [base64.b64encode(zlib.compress(_differ(a, b), 1)).decode() for a, b in zip(self.known, now, strict=True)]
        self.known = now
        return changes

    def follow(self, changes: Any) -> None:
        """Apply changes that `since` returned.

        Raises:
            DataError: If they are not changes of these generators.
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


# ---------------------------------------------------------------------- states as bytes


def to_bytes(content: dict[str, Any]) -> bytes:
    """A dictionary of tensors and plain values as bytes: a line with format, length and SHA-256, followed by the output of
    `torch.save`."""
    return b"".join(_encoded(content))


def _encoded(content: dict[str, Any]) -> tuple[bytes, memoryview]:
    """The parts of `to_bytes`, which are not joined, since a large state would be copied."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getbuffer()
    head = {
        "torchbandits": "checkpoint",
        "format": CHECKPOINT_FORMAT,
        "length": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return json.dumps(head).encode() + b"\n", data


def from_bytes(whole: bytes, name: str) -> dict[str, Any]:
    """The dictionary that `to_bytes` encoded, on the CPU. Only tensors and plain values are read, and no code is run.

    Raises:
        DataError: If the bytes are cut, changed or of a later format, or hold anything but tensors and plain values.
    """
    line, _, data = whole.partition(b"\n")
    return _decoded(line, data, name)


def _decoded(line: bytes, data: bytes, name: str) -> dict[str, Any]:
    """The dictionary that `_encoded` encoded; see `from_bytes`."""
    head = _head(line, name)
    right = len(data) == head.get("length") and hashlib.sha256(data).hexdigest() == head.get("sha256")
    require(right, f"{name} is damaged: its digest does not match. Restore it from a copy.", DataError)
    try:
        _check_stored(data)
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
        EOFError,
        OSError,
    ) as error:
        raise DataError(f"{name} does not hold tensors and plain values only: {str(error).splitlines()[0]}") from error
    require(isinstance(content, dict), f"{name} holds a {type(content).__name__}, not a state.", DataError)
    return content


def _head(line: bytes, name: str) -> dict[str, Any]:
    """The first line of a checkpoint."""
    try:
        head = json.loads(line)
        known = isinstance(head, dict) and head.get("torchbandits") == "checkpoint" and type(head.get("length")) is int
    except (ValueError, RecursionError):
        known = False
    require(known, f"{name} is not a checkpoint of torchbandits.", DataError)
    require(
        head.get("format") == CHECKPOINT_FORMAT,
        f"{name} has format {head.get('format')!r}, this version reads {CHECKPOINT_FORMAT}.",
        DataError,
    )
    return cast(dict[str, Any], head)


def _check_stored(data: bytes) -> None:
    """Refuse compressed entries, which torch would inflate to any size: `torch.save` stores entries without compression."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
    stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
    if not stored or sum(entry.file_size for entry in entries) > len(data):
        raise zipfile.BadZipFile("its entries are larger than the file")


def stamp(path: Path) -> Stamp | None:
    """Device, inode, time and size of a file, which distinguish it from another file at the same path; None if there is no
    file."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"the checkpoint {path} can't be read: {error}.") from error
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def write_checkpoint(path: Path, content: dict[str, Any], own: Stamp | None) -> tuple[Stamp | None, Path | None]:
    """Write a checkpoint beside its place, make it durable, and move it there.

    Args:
        path: Path of the checkpoint.
        content: A state.
        own: The stamp of the checkpoint that may be overwritten. Any other file at `path` is moved aside.

    Returns:
        The stamp of the written file, and the new path of the file that was moved aside.

    Raises:
        DataError: If the checkpoint cannot be written; an earlier one is still there then.
    """
    temporary, aside = path.with_name(f"{path.name}.tmp"), None
    try:
        # Remove the file of a killed process, if there is one. Nothing is written through a symbolic link.
        temporary.unlink(missing_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | BINARY, 0o666)
        with open(fd, "wb") as file:
            file.writelines(_encoded(content))
            file.flush()
            os.fsync(file.fileno())
        written = stamp(temporary)
        if stamp(path) not in (None, own):
            aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.aside")
            os.rename(path, aside)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # The disk may be full or read-only, which the error that is being raised reports.
            temporary.unlink(missing_ok=True)
        raise DataError(f"the checkpoint {path} can't be written: {error}.") from error
    return written, aside


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """The state that `write_checkpoint` wrote; None if there is no file.

    Raises:
        DataError: If it can't be read, see `from_bytes`.
    """
    try:
        # A device or a pipe may never end.
        require(
            stat.S_ISREG(os.stat(path).st_mode),
            f"the checkpoint {path} is not a regular file: choose another path for the journal.",
            DataError,
        )
        with open(path, "rb") as file:
            line = file.readline(_HEAD)
            require(line.endswith(b"\n"), f"{path} is not a checkpoint of torchbandits.", DataError)
            data = file.read()
    except FileNotFoundError:
        return None
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"the checkpoint {path} can't be read: {error}.") from error
    return _decoded(line.rstrip(b"\n"), data, str(path))


def state_as_text(state: dict[str, Any]) -> str:
    """A state as text, for a line of JSON."""
    return base64.b64encode(zlib.compress(to_bytes(state), 1)).decode()


def state_of_text(text: str) -> dict[str, Any]:
    """The state that `state_as_text` encoded.

    Raises:
        DataError: If the text was not written by `state_as_text`, or inflates to more bytes than its first line states.
    """
    name = "the state that was loaded"
    try:
        data = base64.b64decode(text, validate=True)
        line, _, _ = zlib.decompressobj().decompress(data, _HEAD).partition(b"\n")
        return from_bytes(inflated(data, len(line) + 1 + _head(line, name)["length"]), name)
    except (TypeError, ValueError, zlib.error) as error:
        raise DataError(f"{name} can't be read: {error}.") from error
