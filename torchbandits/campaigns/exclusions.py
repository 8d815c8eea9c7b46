"""The rows of a campaign that are not selected any more: a file beside its journal."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits.checks import read_bytes
from torchbandits.errors import DataError, require
from torchbandits.files import write_atomically

EXCLUDED = ".excluded.npy"
"""End of the name of the file."""
_LARGEST = 1 << 33


def read_excluded(path: Path, count: int) -> NDArray[np.int64]:
    """The excluded rows among `count` rows, in increasing order; none if there is no file.

    Raises:
        DataError: If the file cannot be read, or holds something else.
    """
    if not path.exists():
        return np.zeros(0, np.int64)
    wrong = f"{path} does not hold the excluded rows of a campaign: restore it from a copy."
    try:
        rows = np.load(io.BytesIO(read_bytes(path, _LARGEST)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(wrong) from error
    good = isinstance(rows, np.ndarray) and rows.dtype == np.int64 and rows.ndim == 1
    require(good and bool((np.diff(rows, prepend=-1) > 0).all()) and bool((rows < count).all()), wrong, DataError)
    return rows


def write_excluded(path: Path, rows: NDArray[np.int64]) -> None:
    """Write the excluded rows.

    Raises:
        DataError: If the file cannot be written. An earlier file is then unchanged.
    """
    write_atomically(path, lambda temporary: np.save(temporary, rows))


def without(offer: Tensor | None, excluded: NDArray[np.int64], count: int) -> Tensor | None:
    """The mask of the rows on offer, `count` booleans, without excluded ones; None for all rows.

    Raises:
        ArgumentError: If no row is left.
    """
    if not len(excluded):
        return offer
    left = torch.ones(count, dtype=torch.bool) if offer is None else offer.clone()
    left[torch.from_numpy(excluded)] = False
    others = "" if offer is None else " that the condition of the campaign (candidates) allows"
    message = f"all rows{others} are excluded then, and no row is left to select: exclude fewer, or include() some."
    require(bool(left.any()), message)
    return left
