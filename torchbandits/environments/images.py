"""Images of hand-written digits: scikit-learn's small ones, which need no download, and MNIST."""

from __future__ import annotations

import gzip
import io
import os
import urllib.request
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchbandits.checks import read_bytes
from torchbandits.environments.datasets import DATA_VARIABLE, cache_folder, check_digest, write_cached
from torchbandits.environments.openml import sklearn_datasets
from torchbandits.errors import DataError

Images = tuple[NDArray[np.float32], NDArray[np.int64]]

PARTS = ("train", "t10k")
SUMMARY = "60,000 images of hand-written digits to train on, 10,000 to validate; for logistic_regression('mnist')."
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
LARGEST = 1 << 26
"""Bytes of a file that are read, also once uncompressed: the largest has 47,040,016."""
_TIMEOUT = 60  # seconds without an answer
# Of the files once uncompressed: copies differ in how they are compressed.
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def digits() -> Images:
    """Scikit-learn's 1,797 digits of 8 x 8 pixels: `1797 x 64` in [0, 1], and `1797` labels. They come with scikit-learn."""
    bunch = sklearn_datasets().load_digits()
    return np.asarray(bunch.data / 16, np.float32), np.asarray(bunch.target, np.int64)


def mnist(part: str) -> Images:
    """MNIST: `n x 784` pixels in [0, 1], and `n` labels.

    The four files are looked for in the folder `mnist` of `TORCHBANDITS_DATA`, then of the cache, and are fetched into the
    cache at last.

    Args:
        part: `"train"` (60,000) or `"t10k"` (10,000).

    Raises:
        DataError: If a file can't be fetched, or is not the one that is meant.
    """
    pixels, labels = (_read(f"{part}-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    flat = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 28 * 28)
    return (flat / np.float32(255)).astype(np.float32), np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)


def find_mnist() -> Path | None:
    """The folder that holds all four files; None where none does. They are not read."""
    here = [folder for folder in _folders() if all(os.path.isfile(folder / f"{name}.gz") for name in SHA256)]
    return here[0] if here else None


def _folders() -> list[Path]:
    given = os.environ.get(DATA_VARIABLE)
    return [folder / "mnist" for folder in (*([Path(given)] if given else []), cache_folder())]


def _read(name: str) -> bytes:
    path = next((p for folder in _folders() if os.path.isfile(p := folder / f"{name}.gz")), None) or _fetch(name)
    return _verified(name, read_bytes(path, LARGEST), path)


def _verified(name: str, packed: bytes, path: Path) -> bytes:
    """What a compressed file holds, if it is what is meant; `path` is for the message."""
    remedy = "Put the original there, or remove it."
    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(LARGEST)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} can't be read: {error}. {remedy}") from error
    check_digest(path, content, SHA256[name], f"Both are of what the file holds uncompressed. {remedy}")
    return content


def _fetch(name: str) -> Path:
    path = cache_folder() / "mnist" / f"{name}.gz"
    try:
        with urllib.request.urlopen(f"{MIRROR}{name}.gz", timeout=_TIMEOUT) as answer:
            packed = answer.read(LARGEST)
    except OSError as error:
        raise DataError(
            f"MNIST is not here and {name}.gz could not be fetched from {MIRROR} ({error}). Either put its four files into the "
            f"folder mnist of a folder and set {DATA_VARIABLE} to that, or go online."
        ) from error
    _verified(name, packed, path)  # what is not MNIST's is not kept
    write_cached(path, packed)
    return path
