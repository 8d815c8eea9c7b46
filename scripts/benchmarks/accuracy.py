"""Accuracy of the variances of `bkb` and size of its dictionary, by kernel, oversampling q̄ and dimension: the table of
docs/guarantees.md.

    python scripts/benchmarks/accuracy.py [--seeds 10]

600 arms are drawn uniformly from the unit cube and each is pulled once, in blocks of 50, with λ = 0.1 and lengthscale ½. The
worst ratio is the maximum over the 600 arms of variance / exact variance or its inverse, whichever is larger. The script prints
the maximum and the median of the worst ratio over the seeds, the median number m of dictionary points, and the effective
dimension d_eff. Theorem 1 of BKB bounds the ratio by α = 3 (ε = ½) with q̄ = 72 log(4T/δ) ≈ 726 for T = 600, δ = 0.1; the
dictionary then contains every point.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

import gpytorch
import numpy as np
import torch

import torchbandits as tb

ARMS, BLOCK, LAM, LENGTHSCALE = 600, 50, 0.1, 0.5
KERNELS: dict[str, float | None] = {"RBF": None, "Matérn-5/2": 2.5, "Matérn-3/2": 1.5, "Matérn-1/2": 0.5}
OVERSAMPLING = (2.0, 4.0, 8.0)
DIMENSIONS = (1, 2, 3)


@dataclass(frozen=True)
class Accuracy:
    """Worst ratio of variances, number of dictionary points, effective dimension."""

    ratio: float
    points: int
    d_eff: float


def accuracy(kernel: str, oversampling: float, dim: int, seed: int) -> Accuracy:
    """Measure one dictionary."""
    arms = np.random.default_rng([dim, seed]).uniform(size=(ARMS, dim))
    nu = KERNELS[kernel]
    covariance = (gpytorch.kernels.RBFKernel() if nu is None else gpytorch.kernels.MaternKernel(nu)).double()
    covariance.lengthscale = torch.tensor(LENGTHSCALE, dtype=torch.float64)
    policy = tb.bkb(covariance, noise_std=LAM**0.5, oversampling=oversampling, regularization=LAM)
    points = torch.from_numpy(arms)
    bandit = tb.Bandit(policy, points, generator=torch.Generator().manual_seed(seed))
    for block in torch.arange(ARMS).split(BLOCK):
        bandit.tell(block, torch.zeros(len(block), dtype=torch.float64))
    with torch.no_grad():
        K = covariance(points).to_dense().numpy()
    solved = np.linalg.solve(K + LAM * np.eye(ARMS), K)
    exact = 1 - (K * solved).sum(axis=0)
    ratio = bandit.posterior(points).variance.detach().numpy() / exact
    worst = float(max(ratio.max(), (1 / ratio).max()))
    return Accuracy(worst, int((bandit.dictionary >= 0).sum()), float(np.trace(solved)))


def row(kernel: str, dim: int, seeds: int) -> str:
    """One line of the table."""
    cells, d_eff = [], 0.0
    for oversampling in OVERSAMPLING:
        found = [accuracy(kernel, oversampling, dim, seed) for seed in range(seeds)]
        ratios, d_eff = [one.ratio for one in found], statistics.median(one.d_eff for one in found)
        points = statistics.median(one.points for one in found)
        cells.append(f"{max(ratios):.2f} ({statistics.median(ratios):.2f}), {points:.0f}")
    return f"| {kernel} | {dim} | {d_eff:.0f} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| kernel | d | d_eff | {' | '.join(f'q̄ = {q:g}' for q in OVERSAMPLING)} |\n|{' --- |' * (3 + len(OVERSAMPLING))}")
    for kernel in KERNELS:
        for dim in DIMENSIONS:
            print(row(kernel, dim, arguments.seeds), flush=True)


if __name__ == "__main__":
    main()
