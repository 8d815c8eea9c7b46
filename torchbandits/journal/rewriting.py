"""Replacing a journal that no bandit has open by an edited one. The earlier one is kept."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchbandits.errors import DataError
from torchbandits.journal.journal import Journal
from torchbandits.journal.lines import Lines, parsed, sync_folder

Record = dict[str, Any]


def rewrite(path: Path, edit: Callable[[list[Record]], list[Record]]) -> Path:
    """Replace a journal by an edited one, which is complete and on the disk before it takes the place of the earlier one.

    The checkpoint is removed, because its state is that of the earlier journal. A kill at any instruction leaves one of both.
    If the path is a symbolic link, the file to which it leads is replaced, and the earlier one is kept beside that file.

    Args:
        path: The journal, which is not open.
        edit: A function from the records, oldest first and without the header, to those of the new journal. An error that it
            raises leaves everything as it was.

    Returns:
        The path of the earlier journal: `JOURNAL.before-1`, or the next number that is free.

    Raises:
        StateError: If the journal is in use.
        DataError: If it is damaged, or if a file cannot be written. The journal is then as before.
    """
    lines, file = Lines(path, durable=True), path.resolve()
    temporary = file.with_name(f".{file.name}.{os.getpid()}.edited")
    try:
        header, *records = [parsed(text, path, before) for before, text in lines.read()]
        edited = edit(records)
        temporary.unlink(missing_ok=True)
        new = Lines(temporary, durable=False)
        try:
            # Another id, so that no checkpoint of the earlier journal can be taken for one of the new journal.
            for record in (header | {"id": secrets.token_hex(8)}, *edited):
                new.append(record)
            new.sync()
        finally:
            new.close()
        shutil.copymode(file, temporary)
        kept = _beside(file)
        try:
            Journal(path).checkpoint_path.unlink(missing_ok=True)
            lines.replace(temporary)
        except OSError:
            kept.unlink(missing_ok=True)
            raise
        try:
            sync_folder(file.parent)
        except OSError:
            os.replace(kept, file)
            raise
    except OSError as error:
        raise DataError(f"the journal {path} can't be replaced: {error}.") from error
    finally:
        temporary.unlink(missing_ok=True)
        lines.close()
    return kept


def restore(kept: Path, path: Path) -> None:
    """Undo `rewrite`, which returned the path `kept`.

    Raises:
        StateError: If another process has opened the new journal, which then stays.
        DataError: If a file cannot be moved.
    """
    lines, file = Lines(path, durable=True), path.resolve()
    try:
        Journal(path).checkpoint_path.unlink(missing_ok=True)
        lines.replace(kept)
        sync_folder(file.parent)
    except OSError as error:
        raise DataError(f"the journal {path} can't be restored: {error}. Move {kept} there.") from error
    finally:
        lines.close()


def _beside(path: Path) -> Path:
    """Give a journal a second name, or copy it where the file system has no links, and return the path."""
    number = 1
    while os.path.lexists(kept := path.with_name(f"{path.name}.before-{number}")):
        number += 1
    try:
        os.link(path, kept)
    except OSError:
        shutil.copy2(path, kept)
    return kept
