"""Atomic writes of files, folders for results and the lock that holds one, and strict YAML."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import yaml

from torchbandits.checks import read_bytes
from torchbandits.errors import ConfigError, DataError, StateError, require
from torchbandits.locks import WINDOWS, advice, lock

LARGEST_FILE = 1 << 18
"""Largest size of a configuration file in bytes, with its aliases expanded."""
DEEPEST = 50
"""Largest depth of nesting in a configuration file."""
LONGEST_NAME = 200
"""Largest number of bytes of a name that becomes a folder: file systems allow 255, and suffixes are added."""


def folder_name_fault(name: str) -> str:
    """The fault of a name that becomes a folder inside the results folder, on any operating system; empty if it is valid."""
    alone = PurePosixPath(name).name == name == PureWindowsPath(name).name and name not in ("", ".", "..")
    if alone and name.isprintable() and len(name.encode()) <= LONGEST_NAME:
        return ""
    shown = name if len(name) <= 60 else f"{name[:40]}…{name[-19:]}"
    return (
        f"a name is one folder name of at most {LONGEST_NAME} bytes, without separators and control characters, got {shown!r}"
    )


def prepare_folder(folder: Path) -> None:
    """Create a folder and make sure that files can be written in it.

    Raises:
        DataError: If the folder cannot be created or written.
    """
    probe = folder / f".probe.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise DataError(f"The output folder {folder} can't be written: {error}. Choose another with --output.") from error


@contextmanager
def folder_held(folder: Path) -> Iterator[None]:
    """Hold a folder, which no other call can hold meanwhile. The operating system releases it when the process ends.

    Where the operating system or the file system has no locks for folders, nothing is held.

    Raises:
        StateError: If another process, or another call in this one, holds the folder.
    """
    with ExitStack() as held:
        if not WINDOWS:
            with suppress(OSError):
                handle = os.open(folder, os.O_RDONLY)
                held.callback(os.close, handle)
                _lock(handle, folder)
        yield


def _lock(handle: int, folder: Path) -> None:
    try:
        lock(handle)
    except BlockingIOError as error:
        raise StateError(
            f"another process runs an experiment in {folder}, and each would overwrite the records of the other: wait until it "
            "has ended, or choose another folder with --output."
        ) from error


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` write a temporary file beside `path`, and move it to `path` once it is complete.

    Raises:
        DataError: If the file can't be written. An earlier file at `path` is then unchanged.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        write(temporary)
        # Otherwise the file may be empty after a loss of power.
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except OSError as error:
        why = error if path.parent.exists() else f"there is no folder {path.parent}"
        raise DataError(f"{path} can't be written: {why}.{advice(error)}") from error
    finally:
        if temporary.exists():
            temporary.unlink()


def check_folder(path: Path) -> None:
    """Refuse a file whose folder does not exist, before the work whose result it is to hold.

    Raises:
        DataError: If there is no such folder.
    """
    require(path.parent.is_dir(), f"{path} can't be written: there is no folder {path.parent}.", DataError)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, with three differences: `1e-4` is a number (as in YAML 1.2), a repeated key is an error, and
    so is a file that nests too deeply or becomes too large when its aliases are expanded ("billion laughs")."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._sizes: dict[int, int] = {}  # bytes of each node by its id, with all its aliases expanded

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node and record its size. An alias has the size of its anchor, which is complete unless the anchor contains
        the alias."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise yaml.composer.ComposerError(
                None, None, f"nested more than {DEEPEST} levels deep", self.peek_event().start_mark
            )
        alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not alias:
            self._sizes[id(node)] = self._size(node)
        elif id(node) not in self._sizes:
            raise yaml.composer.ComposerError(None, None, "an alias within its own anchor", node.start_mark)
        return node

    def _size(self, node: Any) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1 + len(node.value.encode())  # raises for escapes such as "\ud800", which cannot be written to a file
        children = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        size = 1 + sum(self._sizes[id(child)] for child in children)
        if size > LARGEST_FILE:
            message = f"more than {LARGEST_FILE:,} bytes with its aliases written out"
            raise yaml.composer.ComposerError(None, None, message, node.start_mark)
        return size

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping, and raise an error for a repeated key."""
        seen = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag != "tag:yaml.org,2002:merge":
                key = self.construct_object(key_node, deep=True)
                if isinstance(key, Hashable) and key in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", node.start_mark)
                seen |= {key} if isinstance(key, Hashable) else set()
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(source: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: If the file can't be read, is not YAML, or does not contain a mapping.
    """
    content = read_bytes(source, LARGEST_FILE, ConfigError)
    try:
        values = yaml.load(content.decode("utf-8"), Loader=_Loader)
    except UnicodeError as error:
        raise ConfigError(f"{source}: not UTF-8: {error}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from error
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        # PyYAML does not catch these errors of values that do not fit their tags: a date of month 13, a number of 5,000 digits.
        raise ConfigError(f"{source}: not YAML: a value that can't be read: {error}.") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: expected a mapping of keys to values, got {type(values).__name__}.")
    return values
