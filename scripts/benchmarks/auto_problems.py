"""Problems on which `auto` is measured: functions on points of a cube, and rows of tables. `PROBLEMS` holds them by name."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import torchbandits as tb

ARMS = 4_000
# Features of the arms, and their expected rewards, with a standard deviation of 1.
Problem = tuple[np.ndarray, np.ndarray]


def functions() -> list[Problem]:
    """Seven sums of sixty random cosines on points of a cube."""
    return [_cosines(100 + number, d, 2.0) for number, d in enumerate((4, 4, 5, 6, 3, 2, 8))]


def more_functions() -> list[Problem]:
    """Twenty-four such functions of 2 to 12 features, smooth and rough."""
    found = []
    for number in range(24):
        d, scale = (2, 3, 4, 5, 6, 8, 10, 12)[number % 8], (1.5, 3.0, 5.0)[number // 8]
        found.append(_cosines(500 + number, d, scale, (4 / d) ** 0.5))
    return found


def _cosines(seed: int, d: int, scale: float, factor: float = 1.0) -> Problem:
    rng = np.random.default_rng(seed)
    x = rng.random((ARMS, d))
    f = np.cos(x @ rng.normal(scale=scale, size=(d, 60)) * factor + rng.uniform(0, 2 * np.pi, 60)) @ rng.normal(size=60)
    return x, f / f.std()


def tables() -> list[Problem]:
    """Rows of Abalone, California housing, two networks of FCNet and NAS-Bench-201."""
    folder = Path(os.environ["TORCHBANDITS_DATA"])
    whole = [(t.arms.numpy(), t.means.numpy().ravel()) for t in (tb.environments.abalone(), tb.environments.cadata())]
    with np.load(folder / "fcnet_hpolib.npz", allow_pickle=True) as held:
        for name in ("protein_structure", "parkinsons_telemonitoring"):
            whole.append((held["index"].astype(float), -np.log(held[f"valid_mse_{name}"].mean(axis=1))))
    with np.load(folder / "nasbench201.npz", allow_pickle=True) as held:
        whole.append((np.eye(5)[held["ops"]].reshape(len(held["ops"]), -1), held["test_acc_mean_cifar100"]))
    found = []
    for number, (x, y) in enumerate(whole):
        rows = np.random.default_rng(number).permutation(len(y))[:ARMS]
        found.append((x[rows].astype(float), ((y - y.mean()) / y.std())[rows].astype(float)))
    return found


PROBLEMS = {"functions": functions, "more": more_functions, "tables": tables}
