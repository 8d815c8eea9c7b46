"""Meaning of names in configuration files: entries of a registry, files of arms, and functions of the user."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torchbandits.environments import from_table
from torchbandits.errors import ConfigError, nearest, require
from torchbandits.tabular.tables import ARROW, PARQUET, TEXT

FILES = {"csv": TEXT, "parquet": PARQUET, "arrow": ARROW}
"""Suffixes of the files that a prefix in a name announces, such as `csv:candidates.csv`."""


def find_factory(name: str, registry: Mapping[str, Callable[..., Any]], where: str, others: str = "") -> Callable[..., Any]:
    """The function of a name, an entry of the registry. `others` are further valid names, for the error message.

    Raises:
        ConfigError: If there is none.
    """
    known = ", ".join(registry) + others
    require(name in registry, f"{where}: unknown name {name!r}; known: {known}.{nearest(name, registry)}", ConfigError)
    return registry[name]


def find_environment(
    name: str, registry: Mapping[str, Callable[..., Any]], where: str
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function that makes an environment, and its first arguments: the path, if the name is that of a file.

    Raises:
        ConfigError: If there is no such function or file.
    """
    path = table_path(name)
    if path is None:
        if ":" in name:
            return imported(name, where), ()
        return find_factory(name, registry, where, ", csv:FILE, parquet:FILE, arrow:FILE, MODULE:FUNCTION"), ()
    prefix = name.partition(":")[0]
    fitting = next((f" Write {other}:{path}." for other, some in FILES.items() if path.suffix.lower() in some), "")
    message = f"{where}: {prefix}: is for files that end in {', '.join(FILES[prefix])}, got {str(path)!r}.{fitting}"
    require(path.suffix.lower() in FILES[prefix], message, ConfigError)
    missing = f"{where}: there is no file {str(path)!r}. Relative paths begin at the working directory, {Path.cwd()}."
    require(os.path.isfile(path), missing, ConfigError)
    return from_table, (path,)


def table_path(name: str) -> Path | None:
    """The path in a name such as `csv:candidates.csv`, else None."""
    prefix, colon, path = name.partition(":")
    return Path(path) if colon and prefix in FILES else None


def table_digest(name: str) -> str | None:
    """Digest of the file that an environment is read from, None if it is not read from a file, or the file does not exist."""
    path = table_path(name)
    if path is None or not os.path.isfile(path):
        return None
    facts = path.stat()
    return _digest(path.absolute(), facts.st_mtime_ns, facts.st_size)


@cache
def _digest(path: Path, modified: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def imported(name: str, where: str) -> Callable[..., Any]:
    """Import `module:function`. Modules are also looked for in the working directory, after all others.

    Raises:
        ConfigError: If there is no such module, or it has no such function. An error within the module is raised as it is.
    """
    module_name, _, attribute = name.partition(":")
    good = all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")])
    prefixes = " or ".join(f"{prefix}:" for prefix in FILES)
    require(good, f"{where}: expected module:function, or {prefixes} and the path of a file, got {name!r}.", ConfigError)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"{where}: there is no module {error.name!r}. Install it, or start in the folder that holds it: modules are looked "
            f"for in {here} as well. A file is written {prefixes} and its path."
        ) from error
    found: Any = module
    for part in attribute.split("."):
        known = [one for one, value in vars(found).items() if callable(value) and not one.startswith("_")]
        message = f"{where}: {module_name} ({getattr(module, '__file__', None)}) has no function {attribute!r}."
        require(hasattr(found, part), f"{message}{nearest(part, known)}", ConfigError)
        found = getattr(found, part)
    require(callable(found), f"{where}: {name} is not a function, but {type(found).__name__}.", ConfigError)
    made: Callable[..., Any] = found
    return made
