"""Packages of extras, imported at first use, so that `import torchbandits` is fast and works without them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torchbandits.errors import DataError

PACKAGES = ("matplotlib", "pandas", "pyarrow", "pydantic", "rich", "scipy", "typer", "yaml")
"""Packages that the command line needs. A failed import of any other package is raised unchanged."""


def missing(error: ModuleNotFoundError) -> str:
    """Instructions to install a missing package of the command line, or an empty string for any other import error."""
    package = (error.name or "").partition(".")[0]
    needed = f'the command line needs {package}: pip install "torchbandits[experiments]"'
    return needed if package in PACKAGES else ""


def lazily(package: dict[str, Any], modules: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that imports a module when one of its names is first read.

    Args:
        package: The `globals()` of the package.
        modules: Module in the package of each public name.
    """
    own = package["__name__"]

    def read(name: str) -> Any:
        """A public name, imported from its module."""
        if name not in modules:
            raise AttributeError(f"module {own!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{own}.{modules[name]}"), name)

    return read, lambda: sorted({*package, *modules})


class Later:
    """A module that is imported when an attribute of it is first read.

    Args:
        name: Name of the module.
        user: Feature that needs it, for the message if it is not installed.
        extra: The extra of this package that installs it.
    """

    def __init__(self, name: str, user: str, extra: str = "experiments") -> None:
        self._name, self._user, self._extra = name, user, extra

    def need(self) -> Any:
        """Import the module now.

        Raises:
            DataError: If its package is not installed.
        """
        try:
            return importlib.import_module(self._name)
        except ModuleNotFoundError as error:
            package = (error.name or self._name).partition(".")[0]
            if package == "torchbandits":
                raise
            raise DataError(f'{self._user} need {package}: pip install "torchbandits[{self._extra}]".') from error

    def __getattr__(self, attribute: str) -> Any:
        """Import the module and return its attribute."""
        return getattr(self.need(), attribute)
