"""Checkpoints: a state in a file, whole or not there, and read back without running anything."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import pickle
import secrets
import stat
import zipfile
import zlib
from pathlib import Path
from typing import Any, cast

import torch

from torchbandits.errors import DataError, require
from torchbandits.journal.lines import sync_folder
from torchbandits.journal.packing import inflated

FORMAT = 1
_HEAD = 1 << 12
Stamp = tuple[int, int, int, int]


def to_bytes(content: dict[str, Any]) -> bytes:
    """A dictionary of tensors and plain values as bytes: a line that says format, length and SHA-256, and what torch saves."""
    return b"".join(_encoded(content))


def _encoded(content: dict[str, Any]) -> tuple[bytes, memoryview]:
    """The parts of `to_bytes`: a state may be large, and is not copied to join them."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getbuffer()
    head = {"torchbandits": "checkpoint", "format": FORMAT, "length": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return json.dumps(head).encode() + b"\n", data


def from_bytes(whole: bytes, name: str) -> dict[str, Any]:
    """What `to_bytes` made, on the CPU. Nothing in it is executed: only tensors and plain values are read.

    Raises:
        DataError: If it is cut, changed, of a later format, or holds anything but tensors and plain values.
    """
    line, _, data = whole.partition(b"\n")
    return _decoded(line, data, name)


def _decoded(line: bytes, data: bytes, name: str) -> dict[str, Any]:
    """What `_encoded` made, see `from_bytes`."""
    head = _head(line, name)
    right = len(data) == head.get("length") and hashlib.sha256(data).hexdigest() == head.get("sha256")
    require(right, f"{name} is damaged: its digest does not fit.", DataError)
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
        raise DataError(f"{name} holds more than tensors and plain values, or is none: {str(error).splitlines()[0]}") from error
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
    require(head.get("format") == FORMAT, f"{name} has format {head.get('format')!r}, this version reads {FORMAT}.", DataError)
    return cast(dict[str, Any], head)


def _check_stored(data: bytes) -> None:
    """Refuse compressed entries, which torch would inflate to any size: what torch saves is stored as it is."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
    stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
    if not stored or sum(entry.file_size for entry in entries) > len(data):
        raise zipfile.BadZipFile("its entries are larger than the file")


def stamp(path: Path) -> Stamp | None:
    """What tells a file from another one that was put in its place; None where there is none."""
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
        path: Its place.
        content: A state.
        own: The stamp of the checkpoint that may be overwritten. Any other file in its place is moved aside.

    Returns:
        The stamp of what was written, and where the other file was moved to.

    Raises:
        DataError: If it can't be written; an earlier one is still there then.
    """
    temporary, aside = path.with_name(f"{path.name}.tmp"), None
    try:
        # One that a kill has left is removed. Nothing is written through a link that somebody has put there.
        temporary.unlink(missing_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
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
        with contextlib.suppress(OSError):  # the disk may be full or read-only: the error that says so is on its way
            temporary.unlink(missing_ok=True)
        raise DataError(f"the checkpoint {path} can't be written: {error}.") from error
    return written, aside


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """What `write_checkpoint` wrote; None where there is none.

    Raises:
        DataError: If it can't be read, see `from_bytes`.
    """
    try:
        # A device or a pipe may never end.
        require(stat.S_ISREG(os.stat(path).st_mode), f"the checkpoint {path} is no regular file.", DataError)
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
    """A state for a line of JSON."""
    return base64.b64encode(zlib.compress(to_bytes(state), 1)).decode()


def state_of_text(text: str) -> dict[str, Any]:
    """What `state_as_text` was given.

    Raises:
        DataError: If it is anything else, or inflates to more than its first line says.
    """
    name = "the state that was loaded"
    try:
        data = base64.b64decode(text, validate=True)
        line, _, _ = zlib.decompressobj().decompress(data, _HEAD).partition(b"\n")
        return from_bytes(inflated(data, len(line) + 1 + _head(line, name)["length"]), name)
    except (TypeError, ValueError, zlib.error) as error:
        raise DataError(f"{name} can't be read: {error}.") from error
