"""Neural architectures that others have trained: NAS-Bench-101 and NAS-Bench-201 as arms."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchbandits.checks import check_choice, check_dtype, check_flag
from torchbandits.environments.archives import NAS_BENCH_101, NAS_BENCH_101_FULL, NAS_BENCH_201, read_archive
from torchbandits.environments.mutations import mixed_radix, one_digit_changes, table_of_neighbors
from torchbandits.environments.noise import check_noise
from torchbandits.environments.recorded import Recorded
from torchbandits.environments.tables import Table

SUBSETS = ("6v-conv-pool", "full")
NAS_201_DATASETS = ("cifar10", "cifar100", "imagenet16")
_VERTICES, _EDGES = 7, 21  # of the largest cells; edge x -> y is bit x + y (y − 1) / 2
_IMAGES = 3 * 9984  # test images of three runs
_OPERATIONS = 5  # of NAS-Bench-201


def nas_bench_101(
    subset: str = "6v-conv-pool", *, noise_std: float = 0.01, dtype: torch.dtype = torch.float64, neighbors: bool = True
) -> Table:
    """NAS-Bench-101: cells of convolutional networks and their test accuracy on CIFAR-10, a fraction.

    Args:
        subset: `"6v-conv-pool"`, the 12,416 cells with exactly 4 inner nodes, each a 3x3 convolution or a 3x3 max-pooling, as
            in the BBKB paper: 15 entries of the adjacency and 4 operation bits. `"full"`, all 423,624 cells: 21 entries (the
            output always the seventh node) and three bits for each of 5 operations, none for a node that is not there.
            Both halves are divided by their largest row norm.
        noise_std: Standard deviation of the simulated noise, as a fraction of the images.
        dtype: Of arms and rewards.
        neighbors: Whether to tabulate the cells that are one edge or one operation away, `neighbors`.

    Raises:
        DataError: If the archive is not here.
        ArgumentError: If the subset is unknown, or the noise negative.

    Source: Ying et al. 2019; encoding of Calandriello et al. 2020, section 5.2. The reward is the mean of three runs, whose
    single accuracies are not recorded: the noise is simulated.
    """
    check_choice("subset", subset, SUBSETS)
    check_noise(noise_std, "gaussian")
    check_dtype("dtype", dtype)
    check_flag("neighbors", neighbors)
    if subset == "full":
        edges, ops, accuracy = _full_cells()
        one_hot = (ops[..., None] == np.arange(3)).reshape(len(ops), -1)
        levels = (*(2,) * _EDGES, *(4,) * ops.shape[1])
    else:
        arrays = read_archive(NAS_BENCH_101)
        edges, one_hot = arrays["X"][:, :15], arrays["X"][:, 15:]
        ops, accuracy, levels = one_hot, arrays["test_accuracy_mean3"], (2,) * 19
    digits = np.concatenate([edges, ops], axis=1).astype(np.int64)
    near = None
    if neighbors:
        near = table_of_neighbors(mixed_radix(digits, levels), one_digit_changes(digits, levels, (False,) * len(levels)))
    arms = torch.from_numpy(np.concatenate([_unit(edges), _unit(one_hot)], axis=1)).to(dtype)
    rewards = torch.from_numpy(accuracy).to(dtype)
    return Table(arms, rewards, noise_std, name=f"nas-bench-101 {subset}", neighbors=near)


def nas_bench_201(dataset: str = "cifar10", *, dtype: torch.dtype = torch.float64) -> Recorded:
    """NAS-Bench-201: 15,625 cells, each trained two or three times; a pull draws one of these validation accuracies.

    Arms are six operations, one of five, as 30 bits divided by √6: two arms with h different operations are √(h/3) apart.
    `costs` are the seconds of one training on CIFAR-10 (of the other data sets none are recorded), `neighbors` the 24
    cells with one other operation. Rewards are fractions.

    Args:
        dataset: `"cifar10"`, `"cifar100"` or `"imagenet16"`.
        dtype: Of arms and rewards.

    Raises:
        DataError: If the archive is not here.
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
