"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from torchbandits.errors import DataError


def prepare_folder(folder: Path) -> None:
    """Create a folder and make sure that files can be written in it.

    Raises:
        DataError: If they can't.
    """
    probe = folder / f".probe.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise DataError(f"The output folder {folder} can't be written: {error}. Choose another with --output.") from error


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, and move it there once it is whole.

    Raises:
        DataError: If it can't be written; what was at `path` is still there then.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"{path} can't be written: {error}.") from error
    finally:
        if temporary.exists():
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
