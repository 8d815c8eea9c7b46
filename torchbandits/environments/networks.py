"""Hyper-parameters of two-layer networks that others have trained: the FC-Net benchmark as arms."""

from __future__ import annotations

import numpy as np
import torch

from torchbandits.checks import check_choice, check_dtype
from torchbandits.environments.archives import FCNET, read_archive
from torchbandits.environments.mutations import mixed_radix, one_digit_changes, table_of_neighbors
from torchbandits.environments.recorded import Recorded

TASKS = ("naval_propulsion", "parkinsons_telemonitoring", "protein_structure", "slice_localization")
_WORDS = ("activation_fn_1", "activation_fn_2", "lr_schedule")  # hyper-parameters whose levels have no order


def fcnet(task: str = "protein_structure", *, dtype: torch.dtype = torch.float64) -> Recorded:
    """FC-Net: 62,208 configurations of a network with two layers, each trained four times; a pull draws one of these runs.

    Arms are the 9 hyper-parameters, each its place on the grid over [0, 1]. The reward is −log of the validation mean squared
    error: its errors have a heavy right tail. `neighbors` differ in one hyper-parameter, by one place or to the other word.

    Args:
        task: One of `TASKS`.
        dtype: Of arms and rewards.

    Raises:
        DataError: If the archive is not here.
        ArgumentError: If the task is unknown.

    Source: Klein & Hutter 2019.
    """
    check_choice("task", task, TASKS)
    check_dtype("dtype", dtype)
    arrays = read_archive(FCNET)
    index = arrays["index"].astype(np.int64)
    levels = tuple(int(level) + 1 for level in index.max(axis=0))
    ordered = tuple(str(name) not in _WORDS for name in arrays["names"])
    return Recorded(
        torch.from_numpy(index / (np.array(levels) - 1.0)).to(dtype),
        torch.from_numpy(-np.log(arrays[f"valid_mse_{task}"].astype(np.float64))).to(dtype),
        name=f"fcnet {task}",
        neighbors=table_of_neighbors(mixed_radix(index, levels), one_digit_changes(index, levels, ordered)),
    )
