"""A file of lines that only grows: each is durable before the call returns, and each vouches for all before it."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torchbandits.errors import DataError, StateError, UnsupportedError, require

try:
    import fcntl
except ImportError:  # Windows has none: everything but journals works without it
    fcntl = None  # type: ignore[assignment]

HEADER = '{"kind":"header",'


class Mark(NamedTuple):
    """The end of a line: bytes up to it, lines up to it, and the checksum of all of them."""

    length: int = 0
    records: int = 0
    crc: int = 0


class Lines:
    r"""Lines `crc json\n`, one a record; `crc` is the CRC-32 of the JSON, started from that of the line before.

    The file is locked (`flock`) while it is open: a second opening is refused, in this process too. The lock goes with the
    process, however that ends. On NFS it holds between machines where the server locks for its clients (Linux since 2.6.12,
    not with `nolock`); where the file system can't lock, opening fails.

    Args:
        path: Created where it does not exist.
        durable: Whether to wait for the disk (`fsync`) after each line. Without, a killed process still loses nothing, but a
            machine that loses power may lose the last lines.

    Raises:
        StateError: If another opening holds the lock.
        DataError: If the file can't be opened for writing, or its file system can't lock.
    """

    def __init__(self, path: Path, durable: bool) -> None:
        message = "journals lock their file with flock, which this system lacks: leave journal= out."
        require(fcntl is not None, message, UnsupportedError)
        self.path, self.durable, self.end = path, durable, Mark()
        self._process, self._broken = os.getpid(), ""
        self.created = not path.exists()
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise DataError(f"the journal {path} can't be opened for writing: {error}.") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise StateError(
                f"the journal {path} is in use, by another process or another bandit of this one: two would overwrite each "
                "other. End the other (bandit.journal.close()), choose another path, or share picks among workers by tb.Worker."
            ) from error
        except OSError as error:
            self.close()
            raise DataError(f"the journal {path} can't be locked: {error}. Choose a local disk.") from error

    def read(self, start: Mark | None = None) -> Iterator[tuple[Mark, bytes]]:
        """The lines after a mark, see `read_lines`; `end` follows, and what is left unread after it is torn."""
        for before, after, text in read_lines(self.path, start or Mark()):
            self.end = after if after.length > self.end.length else self.end
            yield before, text

    def torn(self) -> bytes:
        """What stands after the last whole line that was read."""
        with open(self.path, "rb") as file:
            file.seek(self.end.length)
            return file.read()

    def append(self, record: dict[str, Any]) -> None:
        """Write a record; it is on the disk when this returns.

        Raises:
            DataError: If it can't be written; the file is as before then.
            StateError: If the file was closed or left behind, or this is a fork of the process that opened it.
        """
        self.check_writable()
        text = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
        crc = zlib.crc32(text, self.end.crc)
        line, before, written = b"%08x %s\n" % (crc, text), self.end, False
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(self._fd, left) :]
            if self.durable:
                self._sync()
            written = True
            self.end = Mark(before.length + len(line), before.records + 1, crc)
        except OSError as error:
            raise DataError(f"the journal {self.path} can't be written: {error}. Nothing was learned; make room.") from error
        finally:
            if not written:
                self._cut(before)

    def _sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError:
            self._broken = "the disk did not confirm a record"  # the kernel may have dropped it: only reading again tells
            raise

    def rewind_(self, mark: Mark) -> None:
        """Take back what was written since a mark."""
        if self.end.length > mark.length:
            self._cut(mark)

    def _cut(self, mark: Mark) -> None:
        try:
            os.ftruncate(self._fd, mark.length)
            if self.durable:
                os.fsync(self._fd)
            self.end = mark
        except OSError:
            self._broken = self._broken or "a record could not be taken back"  # reported by the next call; one is being raised

    def check_writable(self) -> None:
        """Raises `StateError` where a record could not be written."""
        require(self._fd >= 0, f"the journal {self.path} was closed: make a new Bandit on it to go on.", StateError)
        require(
            self._process == os.getpid(),
            f"the journal {self.path} belongs to process {self._process}, and this is a fork of it: ask and tell there.",
            StateError,
        )
        require(not self._broken, f"the journal {self.path}: {self._broken}. Make a new Bandit on it to go on.", StateError)

    def close(self) -> None:
        """Give the file and its lock back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """A bandit that nobody holds any more gives its journal back."""
        if hasattr(self, "_fd"):
            self.close()

    def discard(self) -> None:
        """Close, and remove the file where it was created here and nothing was written."""
        empty = self._fd >= 0 and self.created and not os.fstat(self._fd).st_size
        self.close()
        if empty:
            self.path.unlink(missing_ok=True)


def read_lines(path: Path, start: Mark) -> Iterator[tuple[Mark, Mark, bytes]]:
    """The JSON of each whole line after a mark, with the marks before and after it; a torn last one is left out.

    Raises:
        DataError: At a line that is not what was written, or if the file can't be read.
    """
    at = start
    try:
        with open(path, "rb") as file:
            file.seek(at.length)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # torn: killed while it was written
                crc = zlib.crc32(line[9:-1], at.crc)
                if line[:9] != b"%08x " % crc:
                    raise DataError(
                        f"{path} is corrupt at line {at.records + 1} (byte {at.length}): its checksum does not fit. Restore "
                        f"the file from a copy, or, to go on without what follows, cut it: truncate -s {at.length} '{path}'."
                    )
                before, at = at, Mark(at.length + len(line), at.records + 1, crc)
                yield before, at, line[9:-1]
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path} can't be read: {error}.") from error


def parsed(text: bytes, path: Path, at: Mark) -> dict[str, Any]:
    """The record of a line.

    Raises:
        DataError: If it holds none.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {at.records + 1} (byte {at.length}), holds no record: {error}.") from error
    good = isinstance(record, dict) and isinstance(record.get("kind"), str)
    require(good, f"{path}, line {at.records + 1} (byte {at.length}), holds no record.", DataError)
    return record


def begun_header(text: bytes) -> bool:
    """Whether these bytes are the beginning of a header: of a file that was never more than begun."""
    whole = b"00000000 " + HEADER.encode()
    digits = all(chr(b) in "0123456789abcdef" for b in text[:8])
    return digits and text[8:].startswith(whole[8 : max(8, min(len(whole), len(text)))])


def now() -> float:
    """Seconds since 1970, which a record says for its readers; nothing that is learned or picked depends on it."""
    return round(time.time(), 6)


def sync_folder(folder: Path) -> None:
    """Make what was created or renamed in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
