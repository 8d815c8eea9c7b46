"""The file of a journal: records as lines, each durable before its call returns and covered by a checksum. Reading them runs no
code."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import stat
import time
import zlib
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

from torchbandits.errors import DataError, StateError, require
from torchbandits.locks import BINARY, WINDOWS, lock, remove, unlock

HEADER = '{"kind":"header",'
# A string of JSON, or the beginning of one that was cut short.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?$)')


class InUse(StateError):
    """A journal that another process, or another bandit of this process, has open."""


class Mark(NamedTuple):
    """The end of a line: bytes up to it, lines up to it, and the checksum of all of them."""

    length: int = 0
    records: int = 0
    crc: int = 0


class Lines:
    r"""Lines `crc json\n`, one per record; `crc` is the CRC-32 of the JSON, started from that of the line before.

    The file is locked while it is open (by `flock`, on Windows by `locking`): a second opening is refused, in this process too.
    The lock is released when the process ends in any way: forked processes close the file, so that workers which outlive the
    process hold no lock. On NFS the lock holds between machines where the server locks for its clients (Linux since 2.6.12, not
    with `nolock`); if the file system does not support locks, opening fails.

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
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | BINARY, 0o666)
        except (OSError, ValueError) as error:
            raise DataError(f"the journal {self.path} can't be opened for writing: {error}. Choose another path.") from error
        try:
            lock(self._fd)
        except BlockingIOError as error:
            self.close()
            raise InUse(
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
        if WINDOWS:  # an open file keeps its name
            return True
        try:
            there = os.stat(self._name)
        except OSError:
            return False
        return there.st_ino == own.st_ino and there.st_dev == own.st_dev

    def _check_in_place(self) -> None:
        opened = os.fstat(self._fd)
        if not self._leads_to(opened):
            raise DataError(
                f"the journal {self.path} was deleted, moved or replaced while it was open. Nothing was learned, "
                "because the record would not be in a file of this name. Move the file back and repeat the call; or "
                "save bandit.state_dict(), which contains everything told so far, and load it into a new Bandit on "
                "another path."
            )
        if beyond := opened.st_size - self.end.length:
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
                    unlock(fd)
            os.close(fd)

    def __del__(self) -> None:
        """A bandit that is no longer referenced releases its journal."""
        if hasattr(self, "_fd"):
            self.close()

    def replace(self, other: Path) -> None:
        """Let another file take the place of this one, which nobody has opened meanwhile.

        Raises:
            OSError: If that fails. This file is then where it was.
        """
        if WINDOWS:  # which refuses to replace an open file: this one, and then one that another process has opened
            self.close()
        os.replace(other, self.path.resolve())

    def discard(self) -> None:
        """Close, and remove the file where it was created here and nothing was written."""
        empty = self._fd >= 0 and self.created and not os.fstat(self._fd).st_size and self._in_place()
        # Removed while it is locked: once it is closed it may be another process's, which only Windows refuses to remove.
        if WINDOWS:
            self.close()
        if empty:
            remove(self.path)
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
    """Make created and renamed files of a folder durable. On Windows the file system alone does that."""
    if WINDOWS:
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
