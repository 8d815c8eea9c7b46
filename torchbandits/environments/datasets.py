"""Real data sets as tables of arms: read from your folder, or fetched once and kept in a cache.

A file is looked for in the folder that the environment variable `TORCHBANDITS_DATA` names, then in the cache
(`TORCHBANDITS_CACHE`, else `$XDG_CACHE_HOME/torchbandits`, else `~/.cache/torchbandits`), and is finally fetched through
scikit-learn. Every use verifies the SHA-256 of a file: the original is compared with the digest in this module, a fetched file
with the digest that was stored beside it.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchbandits.checks import check_choice, check_dtype, read_bytes
from torchbandits.environments.noise import check_noise
from torchbandits.environments.tables import Table
from torchbandits.errors import DataError, require

Columns = dict[str, NDArray[np.float64]]
SCALINGS = ("standardize", "standardize/sqrt_d", "min-max", "unit-rows", "none")

DATA_VARIABLE = "TORCHBANDITS_DATA"
CACHE_VARIABLE = "TORCHBANDITS_CACHE"
LARGEST = 1 << 28
"""Largest size of a data file, bytes."""


@dataclass(frozen=True)
class DataSet:
    """A data set on disk: a comma-separated file with one header line.

    Attributes:
        name: Name in `load` and on the command line.
        summary: A description in one line.
        columns: The header. Features keep this order.
        reward: Name of the column of rewards.
        rows: Number of lines below the header.
        reward_mean: Mean of the reward column, to verify a fetched copy.
        sha256: Digest of the original file, to verify the one in `TORCHBANDITS_DATA`.
        codes: Numbers that encode the words of a column, by column.
        source: Origin.
        licence: Licence stated by its publisher.
        fetch: The call that fetches it.
    """

    name: str
    summary: str
    columns: tuple[str, ...]
    reward: str
    rows: int
    reward_mean: float
    sha256: str
    source: str
    licence: str
    fetch: str
    codes: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()

    @property
    def filename(self) -> str:
        """File name in `TORCHBANDITS_DATA` and in the cache."""
        return f"{self.name}.csv"

    @property
    def features(self) -> tuple[str, ...]:
        """All columns but the reward."""
        return tuple(column for column in self.columns if column != self.reward)


ABALONE = DataSet(
    name="abalone",
    summary="4177 abalone, 8 measures each; the reward is the number of rings (the age).",
    columns=(
        *("Sex", "Length", "Diameter", "Height", "WholeWeight", "ShuckedWeight", "VisceraWeight", "ShellWeight"),
        "Rings",
    ),
    reward="Rings",
    rows=4177,
    reward_mean=9.933684,
    sha256="ea12ff375818e2ad6f3b390e3193fc746a2d5de08f81c6c98c46a41b62a5508e",
    source="UCI Machine Learning Repository, Abalone (Nash et al. 1994), https://doi.org/10.24432/C55C7W",
    licence="CC BY 4.0",
    fetch='sklearn.datasets.fetch_openml("abalone", version=1)',
    codes=(("Sex", (("M", 1), ("F", 2), ("I", 3))),),
)
CADATA = DataSet(
    name="cadata",
    summary="20640 districts of the 1990 Californian census, 8 features each; the reward is the median house value.",
    columns=(
        *("median_house_value", "median_income", "median_age", "total_rooms", "total_bedrooms", "population"),
        *("households", "latitude", "longitude"),
    ),
    reward="median_house_value",
    rows=20640,
    reward_mean=206855.816909,
    sha256="d61b827b48a88a5f5bec688d2a2430a573611007367f3ec925e449079b7aa89e",
    source="StatLib, houses (Pace and Barry 1997), https://lib.stat.cmu.edu/datasets/",
    licence="none stated; public census data",
    fetch="sklearn.datasets.fetch_california_housing()",
)
DATASETS: dict[str, DataSet] = {data.name: data for data in (ABALONE, CADATA)}


def abalone(*, scaling: str = "standardize", noise_std: float = 0.01, dtype: torch.dtype = torch.float64) -> Table:
    """Abalone: 4177 arms with 8 features, rewards (rings) scaled to [0, 1]. Sex is coded M = 1, F = 2, I = 3.

    Args:
        scaling: `"standardize"` gives every feature mean 0 and population variance 1, `"standardize/sqrt_d"` divides
            that by √8, `"min-max"` maps every feature onto [0, 1], `"unit-rows"` divides the measures of each arm by their
            Euclidean norm, `"none"` leaves the measures in their units.
        noise_std: Standard deviation of the simulated noise, in scaled reward units.
        dtype: Dtype of arms and rewards. Source: UCI Machine Learning Repository, Abalone (Nash et al. 1994). Licence: CC BY
            4.0.
    """
    return load(DATASETS["abalone"], scaling=scaling, noise_std=noise_std, dtype=dtype)


def cadata(*, scaling: str = "standardize", noise_std: float = 0.01, dtype: torch.dtype = torch.float64) -> Table:
    """Cadata (California housing): 20640 arms with 8 features, rewards (median house values) scaled to [0, 1].

    Args:
        scaling: `"standardize"` gives every feature mean 0 and population variance 1, `"standardize/sqrt_d"` divides
            that by √8, `"min-max"` maps every feature onto [0, 1], `"unit-rows"` divides the features of each arm by their
            Euclidean norm, `"none"` leaves the features in their units.
        noise_std: Standard deviation of the simulated noise, in scaled reward units.
        dtype: Dtype of arms and rewards.

    Source: StatLib, houses (Pace and Barry 1997). Licence: none stated; public census data.
    """
    return load(DATASETS["cadata"], scaling=scaling, noise_std=noise_std, dtype=dtype)


def load(data: DataSet, *, scaling: str, noise_std: float, dtype: torch.dtype) -> Table:
    """A data set as a table; options as of `abalone`.

    Raises:
        DataError: If it is damaged, or can be neither found nor fetched.
        ArgumentError: If an option is out of its range.
    """
    check_choice("scaling", scaling, SCALINGS)
    check_noise(noise_std, "gaussian")
    check_dtype("dtype", dtype)
    columns = read(data)
    arms = np.stack([columns[feature] for feature in data.features], axis=-1)
    arms = scaled_features(arms, scaling)
    values = columns[data.reward]
    rewards = (values - values.min()) / (values.max() - values.min())
    return Table(torch.from_numpy(arms).to(dtype), torch.from_numpy(rewards).to(dtype), noise_std, name=data.name)


def scaled_features(arms: NDArray[np.float64], scaling: str) -> NDArray[np.float64]:
    """The features (`A x d`) under one of `SCALINGS`."""
    if scaling == "min-max":
        low, high = arms.min(axis=0), arms.max(axis=0)
        return np.asarray((arms - low) / (high - low))
    if scaling == "unit-rows":
        return np.asarray(arms / np.linalg.norm(arms, axis=1, keepdims=True))
    if scaling == "none":
        return arms
    standardized = (arms - arms.mean(axis=0)) / arms.std(axis=0)
    return np.asarray(standardized / math.sqrt(arms.shape[1]) if scaling == "standardize/sqrt_d" else standardized)


def data_folders() -> list[Path]:
    """Folders in which data are looked for, in order: the one that `TORCHBANDITS_DATA` names, and the cache."""
    given = os.environ.get(DATA_VARIABLE)
    return [*([Path(given)] if given else []), cache_folder()]


def cache_folder() -> Path:
    """Folder of fetched data sets."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "torchbandits"


def find(data: DataSet) -> Path | None:
    """The verified local file of a data set, or None if it has yet to be fetched.

    Raises:
        DataError: If there is another file of this name.
    """
    found = _read_verified(data)
    return None if found is None else found[0]


def read(data: DataSet) -> Columns:
    """The verified columns of a data set, which is first fetched and cached if it is not on this machine.

    Raises:
        DataError: If the data set is damaged, or can be neither found nor fetched; the message names both ways to obtain it.
    """
    if (found := _read_verified(data)) is None:
        fetch(data)
        found = _read_verified(data)
    assert found is not None
    path, content = found
    return parse_csv(content, data, str(path))


def _read_verified(data: DataSet) -> tuple[Path, bytes] | None:
    """The file of a data set and its verified content, or None if there is none.

    `fetch` writes a new file of what scikit-learn returns, so its digest differs from that of the original.
    """
    folder = os.environ.get(DATA_VARIABLE)
    if folder and os.path.isfile(path := Path(folder) / data.filename):
        content = read_bytes(path, LARGEST)
        check_digest(path, content, data.sha256, f"Put the original there, or unset {DATA_VARIABLE}.")
        return path, content
    path = cache_folder() / data.filename
    if not os.path.isfile(path):
        return None
    content, noted = read_bytes(path, LARGEST), _digest_file(path)
    expected = read_bytes(noted, LARGEST).decode("ascii", "replace").partition(" ")[0] if os.path.isfile(noted) else data.sha256
    check_digest(path, content, expected, f"Remove it, and fetch it again: torchbandits data fetch {data.name}.")
    return path, content


def check_digest(path: Path, content: bytes, expected: str, remedy: str) -> None:
    """Refuse content whose SHA-256 is not the expected one.

    Args:
        path: The file, for the message.
        content: Its content.
        expected: Its digest in hexadecimal.
        remedy: A sentence that tells the user what to do.

    Raises:
        DataError: If the digests differ.
    """
    digest = hashlib.sha256(content).hexdigest()
    require(digest == expected, f"{path} has sha256 {digest}, expected {expected}. {remedy}", DataError)


def _digest_file(path: Path) -> Path:
    """File that holds the digest of a file in the cache."""
    return path.with_name(f"{path.name}.sha256")


def fetch(data: DataSet) -> Path:
    """Fetch a data set through scikit-learn, verify it by its size and statistics, and keep it in the cache.

    Raises:
        DataError: If it can't be fetched, is not what was expected, or can't be written.
    """
    try:
        columns = FETCHERS[data.name](cache_folder())
    except DataError as error:
        raise DataError(
            f"The data set {data.name!r} is not here and could not be fetched ({error}). Either put {data.filename} "
            f"into a folder and set {DATA_VARIABLE} to it, or go online and run: torchbandits data fetch {data.name}"
        ) from error
    verify(columns, data, "What was fetched")
    path = cache_folder() / data.filename
    words = {column: {str(number): word for word, number in pairs} for column, pairs in data.codes}
    lines = [",".join(data.columns)]
    for values in zip(*(columns[name] for name in data.columns), strict=True):
        cells = (f"{value:.15g}" for value in values)
        lines.append(",".join(words.get(n, {}).get(cell, cell) for n, cell in zip(data.columns, cells, strict=True)))
    content = "\n".join([*lines, ""]).encode()
    # The digest first, so that an interrupted fetch never leaves data without one.
    write_cached(_digest_file(path), f"{hashlib.sha256(content).hexdigest()}  {path.name}\n".encode())
    write_cached(path, content)
    return path


def write_cached(path: Path, content: bytes) -> None:
    """Write a file of the cache whole or not at all.

    Raises:
        DataError: If it can't be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"{path} can't be written: {error}. Set {CACHE_VARIABLE} to a folder that can.") from error
    finally:
        if os.path.isfile(temporary):
            temporary.unlink()


def parse_csv(content: bytes, data: DataSet, path: str) -> Columns:
    """The columns of a data set in the content of a file; words become their codes.

    Raises:
        DataError: If the header, a cell, the number of rows or the statistics are not as expected.
    """
    header, *lines = content.decode("utf-8", errors="replace").splitlines() or [""]
    if tuple(header.split(",")) != data.columns:
        raise DataError(f"{path} has columns {header!r}, expected {','.join(data.columns)!r}.")
    codes = {column: {word: float(number) for word, number in pairs} for column, pairs in data.codes}
    cells = [line.split(",") for line in lines if line]
    for number, row in enumerate(cells, start=2):
        if len(row) != len(data.columns):
            raise DataError(f"{path}, line {number}: expected {len(data.columns)} cells, got {len(row)}.")
    columns: Columns = {}
    for place, name in enumerate(data.columns):
        words = codes.get(name)
        try:
            columns[name] = np.array([words[row[place]] if words else float(row[place]) for row in cells])
        except (ValueError, KeyError) as error:
            expected = ", ".join(words) if words else "numbers"
            raise DataError(f"{path}, column {name}: expected {expected}: {error}.") from error
    verify(columns, data, path)
    return columns


def verify(columns: Columns, data: DataSet, what: str) -> None:
    """Refuse columns whose number of rows or mean reward differ from the data set's, or that are not finite."""
    rows = len(columns[data.reward])
    require(rows == data.rows, f"{what} has {rows} rows, but {data.name} has {data.rows}.", DataError)
    for name in data.columns:
        require(bool(np.isfinite(columns[name]).all()), f"{what}: column {name} holds NaN or infinity.", DataError)
    mean = float(columns[data.reward].mean())
    close = math.isclose(mean, data.reward_mean, rel_tol=1e-6)
    require(close, f"{what}: the mean of {data.reward} is {mean:.6f}, expected {data.reward_mean:.6f}.", DataError)


# ---------------------------------------------------------------------- the public originals, through scikit-learn


def _call_sklearn(fetcher: str, cache: Path, *arguments: Any, **options: Any) -> Any:
    """Call a fetcher of `sklearn.datasets`, with one retry and without the warning before it, which the error repeats."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.simplefilter("ignore", UserWarning)
        return getattr(sklearn_datasets(), fetcher)(*arguments, data_home=str(cache), n_retries=1, **options)


def fetch_abalone(cache: Path) -> Columns:
    """Abalone from OpenML (data set 183), sexes coded M = 1, F = 2, I = 3."""
    try:
        frame = _call_sklearn("fetch_openml", cache, "abalone", version=1, as_frame=True).frame
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
        bunch = _call_sklearn("fetch_california_housing", cache)
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
    # Imported on demand: an optional package whose import takes as long as that of all others, and which each data set needs
    # once.
    try:
        return importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise DataError('scikit-learn is not installed: pip install "torchbandits[experiments]"') from error
