"""The public originals of the data sets, through scikit-learn, brought into the columns of `datasets`."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from torchbandits.errors import DataError

Columns = dict[str, NDArray[np.float64]]


@contextmanager
def _no_retry_warnings() -> Iterator[None]:
    """scikit-learn warns before each retry; the error that follows says all there is to say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield


def fetch_abalone(cache: Path) -> Columns:
    """Abalone from OpenML (data set 183), sexes coded M = 1, F = 2, I = 3."""
    try:
        with _no_retry_warnings():
            frame = (
                sklearn_datasets().fetch_openml("abalone", version=1, as_frame=True, data_home=str(cache), n_retries=1).frame
            )
        sexes = frame.iloc[:, 0].astype(str).map({"M": 1.0, "F": 2.0, "I": 3.0}).to_numpy(np.float64)
        numbers = frame.iloc[:, 1:].astype(np.float64).to_numpy()
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"OpenML: {error}") from error
    if numbers.shape[1] != 8:
        raise DataError(f"OpenML: expected 9 columns, got {numbers.shape[1] + 1}")
    names = ("Length", "Diameter", "Height", "WholeWeight", "ShuckedWeight", "VisceraWeight", "ShellWeight", "Rings")
    return {"Sex": sexes, **dict(zip(names, numbers.T, strict=True))}


def fetch_cadata(cache: Path) -> Columns:
    """California housing; the totals per district are recovered from scikit-learn's averages per household."""
    try:
        with _no_retry_warnings():
            bunch = sklearn_datasets().fetch_california_housing(data_home=str(cache), n_retries=1)
    except (OSError, ValueError) as error:
        raise DataError(f"California housing: {error}") from error
    by_name = dict(zip(bunch.feature_names, np.asarray(bunch.data, np.float64).T, strict=True))
    households = np.round(by_name["Population"] / by_name["AveOccup"])
    return {
        "median_house_value": np.round(np.asarray(bunch.target, np.float64) * 100_000),
        "median_income": by_name["MedInc"],
        "median_age": by_name["HouseAge"],
        "total_rooms": np.round(by_name["AveRooms"] * households),
        "total_bedrooms": np.round(by_name["AveBedrms"] * households),
        "population": by_name["Population"],
        "households": households,
        "latitude": by_name["Latitude"],
        "longitude": by_name["Longitude"],
    }


FETCHERS: dict[str, Callable[[Path], Columns]] = {"abalone": fetch_abalone, "cadata": fetch_cadata}


def sklearn_datasets() -> ModuleType:
    """`sklearn.datasets`.

    Raises:
        DataError: If scikit-learn is not installed.
    """
    # By name and on demand: an extra that takes as long to import as all the rest, for one call in a lifetime.
    try:
        return importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise DataError('scikit-learn is not installed: pip install "torchbandits[experiments]"') from error
