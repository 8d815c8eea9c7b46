"""Locks on open files, and what else Windows does differently with files. A lock ends with the process that holds it."""

from __future__ import annotations

import errno
import gc
import os
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

_fcntl: Any
_msvcrt: Any
try:
    import fcntl as _fcntl
except ImportError:
    _fcntl = None
    import msvcrt as _msvcrt

WINDOWS = _fcntl is None
"""Whether files follow the rules of Windows: an open file can't be deleted or replaced, and a folder can't be opened."""

BINARY = getattr(os, "O_BINARY", 0)
"""The flag of `os.open` without which Windows changes ends of lines."""

# The byte that is locked, beyond the end of any journal: on Windows nobody else can read a locked byte.
_PLACE = (1 << 31) - 2


def lock(fd: int) -> None:
    """Lock a file, or a folder except on Windows, for one opening of it, until `unlock` or until it is closed.

    Raises:
        BlockingIOError: If another opening of it, in this process or another, holds the lock.
        OSError: If its file system does not support locks.
    """
    if not WINDOWS:
        _fcntl.flock(fd, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        return
    try:
        os.lseek(fd, _PLACE, os.SEEK_SET)
        _msvcrt.locking(fd, _msvcrt.LK_NBLCK, 1)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EDEADLK):
            raise BlockingIOError(error.errno, error.strerror) from error
        raise


def unlock(fd: int) -> None:
    """Release the lock of `lock`.

    Raises:
        OSError: If the file is not locked.
    """
    if not WINDOWS:
        _fcntl.flock(fd, _fcntl.LOCK_UN)
        return
    os.lseek(fd, _PLACE, os.SEEK_SET)
    _msvcrt.locking(fd, _msvcrt.LK_UNLCK, 1)


def remove(path: Path) -> None:
    """Delete a file that may be missing. On Windows one that is still open stays, as by an object that a traceback holds."""
    with suppress(PermissionError) if WINDOWS else nullcontext():
        path.unlink(missing_ok=True)


def let_go() -> None:
    """Close the files that objects out of use have mapped into memory, which Windows refuses to move or delete."""
    if WINDOWS:
        gc.collect()


def advice(error: BaseException) -> str:
    """A sentence for the end of a message, where Windows has refused a file that another program may have open; else empty."""
    return " Close it in the program that has it open, such as Excel." if WINDOWS and isinstance(error, PermissionError) else ""
