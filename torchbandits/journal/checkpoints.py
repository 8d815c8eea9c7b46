"""Checkpoints: a state in a file, whole or not there, and read back without running anything."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

from torchbandits.errors import DataError, require
from torchbandits.journal.lines import sync_folder

FORMAT = 1


def to_bytes(content: dict[str, Any]) -> bytes:
    """A dictionary of tensors and plain values as bytes: a line that says format, length and SHA-256, and what torch saves."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    head = {"torchbandits": "checkpoint", "format": FORMAT, "length": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return json.dumps(head).encode() + b"\n" + data


def from_bytes(whole: bytes, name: str) -> dict[str, Any]:
    """What `to_bytes` made, on the CPU. Nothing in it is executed: only tensors and plain values are read.

    Raises:
        DataError: If it is cut, changed, of a later format, or holds anything but tensors and plain values.
    """
    line, _, data = whole.partition(b"\n")
    try:
        head = json.loads(line)
        known = isinstance(head, dict) and head.get("torchbandits") == "checkpoint"
    except (ValueError, RecursionError):
        known = False
    require(known, f"{name} is not a checkpoint of torchbandits.", DataError)
    require(head.get("format") == FORMAT, f"{name} has format {head.get('format')}, this version reads {FORMAT}.", DataError)
    right = len(data) == head.get("length") and hashlib.sha256(data).hexdigest() == head.get("sha256")
    require(right, f"{name} is damaged: its digest does not fit.", DataError)
    try:
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


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint beside its place, make it durable, and move it there.

    Raises:
        DataError: If it can't be written; an earlier one is still there then.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(to_bytes(content))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # the disk may be full or read-only: the error that says so is on its way
            temporary.unlink(missing_ok=True)
        raise DataError(f"the checkpoint {path} can't be written: {error}.") from error


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """What `write_checkpoint` wrote; None where there is none.

    Raises:
        DataError: If it can't be read, see `from_bytes`.
    """
    try:
        whole = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"the checkpoint {path} can't be read: {error}.") from error
    return from_bytes(whole, str(path))


def state_as_text(state: dict[str, Any]) -> str:
    """A state for a line of JSON."""
    return base64.b64encode(zlib.compress(to_bytes(state), 1)).decode()


def state_of_text(text: str) -> dict[str, Any]:
    """What `state_as_text` was given."""
    try:
        return from_bytes(zlib.decompress(base64.b64decode(text)), "the state that was loaded")
    except (TypeError, ValueError, zlib.error) as error:
        raise DataError(f"the state that was loaded can't be read: {error}.") from error
