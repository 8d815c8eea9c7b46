"""The rules of Windows for files, on Linux: `begin`, called before the package is imported, changes `os` for the process.

- There is no `fcntl`; a `msvcrt` locks bytes by `locking`, for one open file at a time, until the file is closed.
- There are no forks, and no flags but those of Windows.
- A file that a process has open, or maps into memory, can't be replaced, renamed or deleted, and folders can't be opened. On
  Windows that holds for files that Python, SQLite, NumPy and Arrow have opened.
- Text files have lines that end with `\\r\\n` unless they are opened with another `newline`.

`python emulated_windows.py …` runs the command line under these rules, and `pytest -p emulated_windows …` tests. Files that any
process of this user has open count.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import glob
import importlib
import io
import os
import shutil
import struct
import sys
import types
from collections.abc import Callable
from typing import Any

_GONE = (
    *("fork", "forkpty", "register_at_fork", "getloadavg", "sched_getaffinity", "sched_setaffinity"),
    *("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_SYNC", "O_NOCTTY"),
)
# Other packages look for `msvcrt` and `fcntl` to find out where they are: they are imported before.
_OTHERS = ("subprocess", "multiprocessing.popen_spawn_posix", "torch", "pandas", "sklearn", "typer")
_LOCK = struct.Struct("hhqqi")


def locking(fd: int, mode: int, number: int) -> None:
    """Lock or release bytes from the position in an open file on, as `msvcrt.locking` does for one open file."""
    kind = fcntl.F_UNLCK if mode == 0 else fcntl.F_WRLCK
    lock = _LOCK.pack(kind, os.SEEK_SET, os.lseek(fd, 0, os.SEEK_CUR), number, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
    except BlockingIOError as error:
        raise PermissionError(errno.EACCES, "Permission denied") from error


def open_anywhere(path: Any) -> bool:
    """Whether a process of this user has a file open, or maps it."""
    try:
        own = os.stat(path)
    except OSError:
        return False
    for link in glob.glob("/proc/[0-9]*/fd/*") + glob.glob("/proc/[0-9]*/map_files/*"):
        try:
            there = os.stat(link)
        except OSError:
            continue
        if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino):
            return True
    return False


def _refuse_open(real: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
    def call(*args: Any, **keywords: Any) -> Any:
        for place in places:
            path = args[place] if place < len(args) else None
            if keywords.get("dir_fd") is None and path is not None and not os.path.isdir(path) and open_anywhere(path):
                raise PermissionError(errno.EACCES, "The process cannot access the file because it is being used", str(path))
        return real(*args, **keywords)

    return call


def _opened(real: Callable[..., int]) -> Callable[..., int]:
    def call(path: Any, flags: int, *args: Any, **keywords: Any) -> int:
        # `shutil.rmtree` opens folders here, and not on Windows.
        if os.path.isdir(path) and sys._getframe(1).f_code.co_filename.find("torchbandits") >= 0:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, flags, *args, **keywords)

    return call


def _with_lines(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(file: Any, mode: str = "r", *args: Any, **keywords: Any) -> Any:
        text = "b" not in mode and set(mode) & set("wax+")
        if text and len(args) < 4 and keywords.get("newline") is None:
            keywords["newline"] = "\r\n"
        return real(file, mode, *args, **keywords)

    return call


def begin() -> None:
    """Change `os` and the modules that the package imports, until the process ends."""
    for name in _OTHERS:
        importlib.import_module(name)
    fake = types.ModuleType("msvcrt")
    fake.locking, fake.LK_UNLCK, fake.LK_LOCK, fake.LK_NBLCK = locking, 0, 1, 2  # type: ignore[attr-defined]
    sys.modules["msvcrt"] = fake
    sys.modules["fcntl"] = None  # type: ignore[assignment]
    for name in _GONE:
        if hasattr(os, name):
            delattr(os, name)
    os.O_BINARY = 0  # type: ignore[attr-defined]
    os.replace = _refuse_open(os.replace, (0, 1))
    os.rename = _refuse_open(os.rename, (0, 1))
    os.unlink = os.remove = _refuse_open(os.unlink, (0,))
    os.open = _opened(os.open)
    # With descriptors of folders, which Windows has not, a file is deleted by its name in a folder.
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    builtins.open = io.open = _with_lines(builtins.open)


def pytest_load_initial_conftests() -> None:
    """Begin, with `pytest -p emulated_windows`, before the package is imported."""
    begin()


if __name__ == "__main__":
    begin()
    if isinstance(sys.stdout, io.TextIOWrapper) and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="cp1252", newline="\r\n")
        sys.stderr.reconfigure(encoding="cp1252", newline="\r\n")
    from torchbandits.__main__ import main

    main()
