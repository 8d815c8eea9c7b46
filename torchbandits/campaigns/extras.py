"""Packages of the extra `experiments`, imported when they are first used: `torchbandits` itself does without them."""

from __future__ import annotations

import importlib
from typing import Any

from torchbandits.errors import DataError


class Later:
    """A module that is imported when something of it is first asked for.

    Args:
        name: Of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """Something of the module."""
        try:
            return getattr(importlib.import_module(self._name), attribute)
        except ModuleNotFoundError as error:
            package = (error.name or self._name).partition(".")[0]
            if package == "torchbandits":
                raise
            raise DataError(f'campaigns need {package}: pip install "torchbandits[experiments]".') from error


compute = Later("pyarrow.compute")
csv = Later("pyarrow.csv")
ipc = Later("pyarrow.ipc")
pandas = Later("pandas")
parquet = Later("pyarrow.parquet")
pyarrow = Later("pyarrow")
sklearn_compose = Later("sklearn.compose")
sklearn_impute = Later("sklearn.impute")
sklearn_pipeline = Later("sklearn.pipeline")
sklearn_preprocessing = Later("sklearn.preprocessing")
files = Later("torchbandits.files")
page = Later("torchbandits.campaigns.page")
