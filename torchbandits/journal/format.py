"""The form of a run on disk: records as lines, each durable before its call returns and covered by a checksum, and tensors,
generators and states exactly, as JSON, as bytes and in a checkpoint file. Reading them runs no code."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import math
import os
import pickle
import re
import secrets
import shlex
import stat
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, cast
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from torchbandits.errors import DataError, StateError, UnsupportedError, require

try:
    import fcntl
except ImportError:  # Windows has no such module: everything but journals works without it
    fcntl = None  # type: ignore[assignment]

HEADER = '{"kind":"header",'
# A string of JSON, or the beginning of one that was cut short.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?$)')


class Mark(NamedTuple):
    """The end of a line: bytes up to it, lines up to it, and the checksum of all of them."""

    length: int = 0
    records: int = 0
    crc: int = 0


class Lines:
    r"""Lines `crc json\n`, one per record; `crc` is the CRC-32 of the JSON, started from that of the line before.

    The file is locked (`flock`) while it is open: a second opening is refused, in this process too. The lock is released when
    the process ends in any way: forked processes close the file, so that workers which outlive the process hold no lock. On NFS
    the lock holds between machines where the server locks for its clients (Linux since 2.6.12, not with `nolock`); if the file
    system does not support locks, opening fails.

    Args:
        path: Absolute path; the file is created if it does not exist.
        durable: Whether to wait for the disk (`fsync`) after each line. Otherwise a killed process still loses nothing, but the
            last lines may be lost if the machine loses power.

    Raises:
        StateError: If another opening holds the lock.
        DataError: If the file cannot be opened for writing or is not a regular file, or if its file system does not support
            locks.
    """

    def __init__(self, path: Path, durable: bool) -> None:
        message = (
            "a journal locks its file by flock, which this operating system does not have: leave journal= out, "
            "and save bandit.state_dict()."
        )
        require(fcntl is not None, message, UnsupportedError)
        self.path, self.durable, self.end = path, durable, Mark()
        # `os.stat` of a path as text takes half the time.
        self._name = str(path)
        self._process = os.getpid()
        # Whether the file may hold, after `end`, a part of a record, or a record whose call failed.
        self._unsettled = False
        # The reason for which nothing more is written until the file is opened again.
        self._lost = ""
        self._fd = -1
        _OPEN.add(self)
        self._open()
        # Between opening and locking, the process that created the file may have discarded it: the lock is then on a file
        # without a name.
        while not self._in_place():
            self.close()
            self._open()

    def _open(self) -> None:
        self.created = not os.path.exists(self.path)
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except (OSError, ValueError) as error:
            raise DataError(f"the journal {self.path} can't be opened for writing: {error}. Choose another path.") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise StateError(
                f"the journal {self.path} is in use by another process, or by another bandit of this process. Two "
                "writers would overwrite each other: close the other one (bandit.journal.close(), or campaign.close()), choose "
                "another path, or share picks among workers by tb.Worker."
            ) from error
        except OSError as error:
            self.close()
            raise DataError(f"the journal {self.path} can't be locked: {error}. Choose a path on a local disk.") from error
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.close()
            raise DataError(f"{self.path} is not a regular file, which a journal must be: choose another path.")

    # ------------------------------------------------------------------ reading

    def read(self, start: Mark | None = None) -> Iterator[tuple[Mark, bytes]]:
        """The lines after a mark, see `read_lines`, including a last line that lacks only its newline; `end` is updated."""
        for before, after, text in read_lines(self.path, start or Mark(), unended=True):
            self.end = after if after.length > self.end.length else self.end
            yield before, text

    def beyond(self) -> int:
        """Number of torn bytes after the last whole line that was read; −1 if that line lacks its newline."""
        return os.fstat(self._fd).st_size - self.end.length

    def settle(self) -> None:
        """Make the file end with the last whole line that was read: cut torn bytes, or write the missing newline.

        Raises:
            DataError: If that fails.
        """
        try:
            if (beyond := self.beyond()) > 0:
                os.ftruncate(self._fd, self.end.length)
            elif beyond < 0:
                os.write(self._fd, b"\n")
            if beyond and self.durable:
                os.fsync(self._fd)
        except OSError as error:
            raise DataError(f"the journal {self.path} can't be written: {error}. Nothing was learned.") from error

    # ------------------------------------------------------------------ writing

    def append(self, record: dict[str, Any]) -> None:
        """Write a record; it is on the disk when this returns.

        Raises:
            DataError: If the record cannot be written, or if the file was deleted, replaced or changed by another program. The
                file is then as before, unless the message says that the record could not be removed.
            StateError: If the file was closed, or an earlier failure ended writing, or this is a fork of the process that
                opened it.
        """
        self._check_writable()
        self._check_in_place()
        text = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
        crc, before = zlib.crc32(text, self.end.crc), self.end
        line, failure = b"%08x %s\n" % (crc, text), None
        # An interrupt may happen at any instruction: only the last statement of each branch marks the file as consistent.
        self._unsettled = True
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(self._fd, left) :]
            if self.durable:
                self.sync()
            self.end = Mark(before.length + len(line), before.records + 1, crc)
            self._unsettled = False
        except OSError as error:
            failure = error
        finally:
            if self._unsettled:
                self._cut(before)
        if failure is not None:
            raise DataError(self._what_is_left(failure)) from failure

    def _what_is_left(self, failure: OSError) -> str:
        if not self._unsettled:
            return (
                f"the journal {self.path} can't be written: {failure}. Nothing was learned. Free space on the disk, "
                "and repeat the call."
            )
        self._lost = self._lost or "a record could not be removed"
        return (
            f"the journal {self.path} can't be written: {failure}. The incomplete record could not be removed "
            "either. This bandit has not learned it, but it may be on the disk, and then a new Bandit on the "
            "file learns it. Make one, and compare its pulls before you repeat the call."
        )

    def sync(self) -> None:
        """Wait until everything written is on the disk. After a failure nothing more is written."""
        try:
            os.fsync(self._fd)
        except OSError:
            # The kernel may have dropped the pages and report success next time: only reading the file again shows its content.
            self._lost = "the disk did not confirm a record"
            raise

    def rewind_(self, mark: Mark) -> None:
        """Remove everything written since a mark, and the rest of an interrupted write."""
        if self.end.length > mark.length or self._unsettled:
            self._cut(mark)

    def _cut(self, mark: Mark) -> None:
        self._unsettled = True
        try:
            os.ftruncate(self._fd, mark.length)
            if self.durable:
                os.fsync(self._fd)
        except OSError:
            # The current error reports it, and every later call is refused.
            return
        self.end = mark
        self._unsettled = False

    def _check_writable(self) -> None:
        """Raises `StateError` where a record could not be written."""
        if self._process != os.getpid():
            raise StateError(
                f"the journal {self.path} was opened by process {self._process}, and this process is a fork of it, in "
                "which the file is closed: call ask and tell in that process, or make a new Bandit on another path."
            )
        if self._fd < 0:
            raise StateError(f"the journal {self.path} was closed: make a new Bandit on it to continue.")
        if reason := self._lost or ("a record was interrupted while it was written" if self._unsettled else ""):
            raise StateError(f"the journal {self.path}: {reason}. Make a new Bandit on it to continue.")

    def _in_place(self) -> bool:
        """Whether the path still leads to the file that is open."""
        return self._leads_to(os.fstat(self._fd))

    def _leads_to(self, own: os.stat_result) -> bool:
        try:
            there = os.stat(self._name)
        except OSError:
            return False
        return there.st_ino == own.st_ino and there.st_dev == own.st_dev

    def _check_in_place(self) -> None:
        own = os.fstat(self._fd)
        if not self._leads_to(own):
            raise DataError(
                f"the journal {self.path} was deleted, moved or replaced while it was open. Nothing was learned, "
                "because the record would not be in a file of this name. Move the file back and repeat the call; or "
                "save bandit.state_dict(), which contains everything told so far, and load it into a new Bandit on "
                "another path."
            )
        if beyond := own.st_size - self.end.length:
            raise DataError(
                f"the journal {self.path} is {abs(beyond)} bytes {'longer' if beyond > 0 else 'shorter'} than what "
                "was written: another program changed it. Nothing was learned. Restore the file from a copy, and "
                "make a new Bandit on it."
            )

    # ------------------------------------------------------------------ closing

    @property
    def is_open(self) -> bool:
        """Whether this process holds the file and its lock."""
        return self._fd >= 0 and self._process == os.getpid()

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            # A process forked a moment ago shares the lock until its hook has run, so closing alone may not release it. A fork
            # itself must not release it. Where the file system has no locks, there is nothing to release.
            if os.getpid() == self._process:
                with contextlib.suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def __del__(self) -> None:
        """A bandit that is no longer referenced releases its journal."""
        if hasattr(self, "_fd"):
            self.close()

    def discard(self) -> None:
        """Close, and remove the file where it was created here and nothing was written."""
        # Removed while it is locked: once it is closed it may be another process's.
        if self._fd >= 0 and self.created and not os.fstat(self._fd).st_size and self._in_place():
            self.path.unlink(missing_ok=True)
        self.close()


_OPEN: WeakSet[Lines] = WeakSet()


def _close_in_fork() -> None:
    """Close the journals of the parent in a process that was forked from it.

    A lock taken by `flock` belongs to the open file that both processes share: it is released when the last of them closes it.
    A worker of a process pool that outlives a killed parent would hold the lock for as long as it waits for work. Closing the
    file in the fork leaves the lock of the parent as it is.
    """
    for lines in list(_OPEN):
        lines.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)


def read_lines(path: Path, start: Mark, *, unended: bool = False) -> Iterator[tuple[Mark, Mark, bytes]]:
    """The JSON of each whole line after a mark, with the marks before and after it; a torn last line is left out.

    Args:
        path: The file.
        start: The mark after which to begin.
        unended: Whether to include a last line that lacks only its newline and has a valid checksum.

    Raises:
        DataError: At a line that differs from the written one and is not torn (see `torn`), or if the file cannot be read.
    """
    at = start
    try:
        with open(path, "rb") as file:
            file.seek(at.length)
            for line in file:
                ended = line.endswith(b"\n")
                text = line[9:-1] if ended else line[9:]
                crc = zlib.crc32(text, at.crc)
                whole = text != b"" and line[:9] == b"%08x " % crc
                if not whole and (ended or not torn(line)):
                    raise damage(path, at, _what_is_wrong(line, at))
                if not whole or not (ended or unended):
                    return
                before, at = at, Mark(at.length + 10 + len(text), at.records + 1, crc)
                yield before, at, text
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path} can't be read: {error}.") from error


def torn(line: bytes) -> bool:
    """Whether these bytes at the end of a file can be the rest of an interrupted write.

    Such a rest is a beginning of `crc {"kind":"…` in printable ASCII, without its newline, whose object is still open. Anything
    else is damage: zeros, as some file systems leave after a loss of power; a closed object whose checksum does not fit; any
    bytes after a closed object, such as the changed newline of a whole record.
    """
    digits, text, opening = line[:8], line[9:], b'{"kind":"'
    begun = re.fullmatch(rb"[0-9a-f]*", digits) and line[8:9] in (b"", b" ") and text[: len(opening)] == opening[: len(text)]
    if not begun or re.fullmatch(rb"[ -\x7f]*", text) is None:
        return False
    outside = _STRING.sub(b"", text)
    return all(depth > 0 for depth in accumulate((byte in b"{[") - (byte in b"}]") for byte in outside))


def _what_is_wrong(line: bytes, at: Mark) -> str:
    if (kept := line.rstrip(b"\0")) != line:
        return f"from byte {at.length + len(kept)} on it is filled with zeros, as by a file system after a loss of power"
    return "its checksum does not match"


def damage(path: Path, at: Mark, what: str) -> DataError:
    """The error for a line that differs from the written one: its place, and a remedy."""
    if not at.records:
        way_out = "restore it from a copy, or choose another path if it is not a journal"
    else:
        bytes_given_up = os.path.getsize(path) - at.length
        way_out = (
            f"restore it from a copy; or, to give up this line and all that follow ({bytes_given_up:,} bytes), "
            f"cut the file there: truncate -s {at.length} {shlex.quote(str(path))}"
        )
    return DataError(f"{path} is damaged at line {at.records + 1} (byte {at.length}): {what}. It was not changed: {way_out}.")


def parsed(text: bytes, path: Path, at: Mark) -> dict[str, Any]:
    """The record of a line.

    Raises:
        DataError: If the line does not hold a record.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {at.records + 1} (byte {at.length}), does not hold a record: {error}.") from error
    good = isinstance(record, dict) and isinstance(record.get("kind"), str)
    require(good, f"{path}, line {at.records + 1} (byte {at.length}), does not hold a record.", DataError)
    return record


def begun_header(text: bytes) -> bool:
    """Whether these bytes are the beginning of a header."""
    whole = b"00000000 " + HEADER.encode()
    digits = all(chr(b) in "0123456789abcdef" for b in text[:8])
    return digits and text[8:].startswith(whole[8 : max(8, min(len(whole), len(text)))])


def now() -> float:
    """Seconds since 1970, for the readers of a record; neither posteriors nor picks depend on it."""
    return round(time.time(), 6)


def sync_folder(folder: Path) -> None:
    """Make created and renamed files of a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
