"""Packages of the extra `experiments`, imported when they are first used: `import torchbandits` is quick, and works without."""

from __future__ import annotations

import importlib
from typing import Any

from torchbandits.errors import DataError

PACKAGES = ("matplotlib", "pandas", "pyarrow", "pydantic", "rich", "scipy", "typer", "yaml")
"""What the command line needs; anything else that can't be imported is a fault, and shows as one."""


def missing(error: ModuleNotFoundError) -> str:
    """How to install what the command line lacks, or nothing where the fault is another one."""
    package = (error.name or "").partition(".")[0]
    needed = f'the command line needs {package}: pip install "torchbandits[experiments]"'
    return needed if package in PACKAGES else ""


class Later:
    """A module that is imported when an attribute of it is first read.

    Args:
        name: Of the module.
        user: What needs it, for the message where it is not installed.
    """

    def __init__(self, name: str, user: str) -> None:
        self._name, self._user = name, user

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
            raise DataError(f'{self._user} need {package}: pip install "torchbandits[experiments]".') from error

    def __getattr__(self, attribute: str) -> Any:
        """An attribute of the module."""
        return getattr(self.need(), attribute)
