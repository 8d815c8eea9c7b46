"""Print the public interface, one line per name with its arguments: `python scripts/public_api.py > tests/public_api.txt`.

A test compares the package with the committed list, so that every change of the interface is deliberate.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

MODULES = (
    "torchbandits",
    "torchbandits.widths",
    "torchbandits.starts",
    "torchbandits.outcomes",
    "torchbandits.ingredients",
    "torchbandits.sources",
    "torchbandits.environments",
    "torchbandits.diagnostics",
    "torchbandits.callbacks",
    "torchbandits.constraints",
    "torchbandits.forgetting",
    "torchbandits.stopping",
    "torchbandits.errors",
    "torchbandits.botorch",
    "torchbandits.experiments",
    "torchbandits.plugins",
    "torchbandits.testing",
)
"""Modules whose names are public. Other modules, and methods of ingredients called by the engine, may change without notice."""


def public_names(module: types.ModuleType) -> list[str]:
    """The names in `__all__`, or else the classes that the module defines; submodules are listed separately."""
    defined = [name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__]
    names = getattr(module, "__all__", [name for name in defined if not name.startswith("_")])
    return sorted((name for name in names if not inspect.ismodule(getattr(module, name))), key=str.lower)


def lines() -> Iterator[str]:
    """The interface, in the order of `MODULES`."""
    for path in MODULES:
        module = importlib.import_module(path)
        for name in public_names(module):
            yield from described(f"{path}.{name}", getattr(module, name))


def described(name: str, value: Any) -> Iterator[str]:
    """A name with its arguments and, for a class, its members with their arguments."""
    if inspect.isclass(value):
        plain = issubclass(value, BaseException | enum.Enum)
        yield name if plain else name + arguments(value)
        for member in () if plain else members(value):
            found = inspect.getattr_static(value, member)
            called = found.__func__ if isinstance(found, classmethod | staticmethod) else found
            yield f"{name}.{member}" + (arguments(called, method=True) if inspect.isfunction(called) else "")
    else:
        yield name + (arguments(value) if inspect.isfunction(value) else "")


def members(cls: type) -> list[str]:
    """Public methods and properties that this package defines, including inherited ones. Ingredients have none; contract suites
    have those that a user implements."""
    if cls in vars(importlib.import_module("torchbandits.ingredients")).values():
        return []
    own = [c for c in cls.__mro__ if c.__module__.split(".")[0] == "torchbandits"]
    named = {name: value for c in reversed(own) for name, value in vars(c).items() if not name.startswith("_")}
    kinds = types.FunctionType | property | classmethod | staticmethod
    return sorted(name for name, value in named.items() if isinstance(value, kinds) and not name.startswith("test_"))


def arguments(called: Any, *, method: bool = False) -> str:
    """Names and order of the arguments; `=` marks optional ones."""
    shown, keyword_only = [], False
    for parameter in list(inspect.signature(called).parameters.values())[method:]:
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            shown.append("*")
        keyword_only |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        optional = parameter.default is not parameter.empty
        shown.append(f"{star}{parameter.name}{'=' if optional else ''}")
    return f"({', '.join(shown)})"


if __name__ == "__main__":
    print("\n".join(lines()))
