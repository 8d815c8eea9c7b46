"""Files that a user names: regular files of a bounded size, read without blocking."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from torchbandits.errors import DataError, TorchBanditsError, require


def read_bytes(path: Path, most: int, error: type[TorchBanditsError] = DataError) -> bytes:
    """Read a regular file whole.

    Devices never end and FIFOs wait for a writer, so both are refused before they are opened.

    Args:
        path: Path of the file.
        most: Largest size that is read, in bytes.
        error: Class of the error.

    Raises:
        TorchBanditsError: `error`, if the file can't be read, is not a regular one, or holds more than `most` bytes.
    """
    check_regular(path, error)
    try:
        # Without O_NONBLOCK, a FIFO that took the file's place since the check would block.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            content = file.read(min(os.fstat(file.fileno()).st_size, most) + 1)
    except OSError as problem:
        raise error(f"{path} can't be read: {problem.strerror or problem}.") from problem
    require(len(content) <= most, f"{path} is too large: at most {most:,} bytes are read.", error)
    return content


def check_regular(path: Path, error: type[TorchBanditsError] = DataError) -> None:
    """Refuse anything but a regular file, without opening it.

    Raises:
        TorchBanditsError: `error`, if the file is missing, or a folder, a device, a FIFO or a socket.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as problem:  # a path that holds a zero byte is a ValueError
        raise error(f"{path} can't be read: {getattr(problem, 'strerror', None) or problem}.") from problem
    kind = "a folder" if stat.S_ISDIR(mode) else "a device, a FIFO or a socket"
    require(stat.S_ISREG(mode), f"{path} can't be read: it is {kind}, and a regular file is needed.", error)
