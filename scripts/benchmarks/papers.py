"""`bkb` and `batch_bkb` compared with the NumPy code of their papers on Abalone and Cadata, one thread, processor seconds.

    git clone https://github.com/luigicarratino/batch-bkb
    TORCHBANDITS_DATA=... python scripts/benchmarks/papers.py --theirs batch-bkb [--rows abalone-bkb] [--rounds 3]

Both solve the same problem: standardised features, a Gaussian kernel of bandwidth σ, λ = noise variance = 10⁻⁴, norm bound 1,
δ = 1/T, q̄ = 2, and for BBKB the global rule with threshold 2. They start from the same two random arms (the authors' code
fails on a dictionary of one), receive the same noise for each pull, and run alternately, so that the ratios are robust to
drifts of the machine's speed. Asks and tells are timed (`predict` and `update` of the authors), but not the construction of the
arms, nor a short first run for compilation. The script prints medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
import torch
from fixed_kernels import rbf
from sklearn.gaussian_process.kernels import RBF, PairwiseKernel

import torchbandits as tb

NOISE, RATIO, OVERSAMPLING = 0.01, 2.0, 2.0
# Name: data set, whether in batches, σ, T.
ROWS = {
    "abalone-bbkb": ("abalone", True, 17.5, 10_000),
    "cadata-bbkb": ("cadata", True, 12.5, 600),
    "abalone-bkb": ("abalone", False, 17.5, 500),
}
Play = Callable[[str, bool, float, int, int, np.ndarray, np.ndarray], tuple[float, np.ndarray]]


def ours(_: str, batch: bool, sigma: float, horizon: int, seed: int, arms: np.ndarray, rewards: np.ndarray) -> Any:
    """Run this package. Returns seconds and picks."""
    kernel = rbf(sigma)
    options: dict[str, Any] = {"noise_std": NOISE, "norm_bound": 1.0, "delta": 1 / horizon, "oversampling": OVERSAMPLING}
    policy = tb.batch_bkb(kernel, ratio_threshold=RATIO, **options) if batch else tb.bkb(kernel, **options)
    bandit = tb.Bandit(policy, torch.from_numpy(arms), generator=torch.Generator().manual_seed(seed))
    noise, first = noise_of(horizon, seed), first_of(arms, seed)
    bandit.tell(torch.from_numpy(first), torch.from_numpy(rewards[first] + noise[:2]))
    picks, seconds, told = [first], 0.0, 2
    while told < horizon:
        began = time.process_time()
        selection = bandit.ask(limit=horizon - told)
        seconds += time.process_time() - began
        index = selection.index.numpy()
        y = torch.from_numpy(rewards[index] + noise[told : told + len(index)])
        began = time.process_time()
        bandit.tell(selection, y)
        seconds += time.process_time() - began
        picks.append(index)
        told += len(index)
    return seconds, np.concatenate(picks)


def theirs(path: str, batch: bool, sigma: float, horizon: int, seed: int, arms: np.ndarray, rewards: np.ndarray) -> Any:
    """Run the authors' code in `path`. Returns seconds and picks."""
    if path not in sys.path:
        sys.path.insert(0, path)
    import bkb_lib  # noqa: PLC0415 - a checkout that the user names
    import utils  # noqa: PLC0415

    dot = utils.FastMixinKernel(RBF(length_scale=sigma), PairwiseKernel(gamma=1 / (2 * sigma**2), metric="rbf"))
    options: dict[str, Any] = {"lam": NOISE**2, "noise_variance": NOISE**2, "fnorm": 1.0, "delta": 1 / horizon}
    if batch:
        options["ratio_threshold"] = RATIO
    algorithm = (bkb_lib.Batch_BKB if batch else bkb_lib.BKB)(dot=dot, qbar=OVERSAMPLING, **options)
    noise, first, state = noise_of(horizon, seed), first_of(arms, seed), np.random.RandomState(seed)
    algorithm.initialize(arms, first.tolist(), rewards[first] + noise[:2])
    picks, seconds, told = [first], 0.0, 2
    while told < horizon:
        began = time.process_time()
        index = np.asarray(algorithm.predict()[0])[: horizon - told]
        seconds += time.process_time() - began
        y = rewards[index] + noise[told : told + len(index)]
        began = time.process_time()
        algorithm.update(index, y, state)
        seconds += time.process_time() - began
        picks.append(index)
        told += len(index)
    return seconds, np.concatenate(picks)


def noise_of(horizon: int, seed: int) -> np.ndarray:
    return NOISE * np.random.default_rng([7, seed]).normal(size=horizon)


def first_of(arms: np.ndarray, seed: int) -> np.ndarray:
    return np.random.default_rng([8, seed]).choice(len(arms), 2, replace=False)


def compare(row: str, path: str, rounds: int) -> None:
    name, batch, sigma, horizon = ROWS[row]
    environment = getattr(tb.environments, name)()
    arms, rewards = environment.arms.numpy(), environment.means.numpy()
    ways: dict[str, Play] = {"ours": ours, "theirs": theirs}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    for way in ways.values():
        way(path, batch, sigma, 50, 1000, arms, rewards)
    for seed in range(rounds):
        for way, play in ways.items():
            spent, picks = play(path, batch, sigma, horizon, seed, arms, rewards)
            seconds[way].append(spent)
            regret = rewards.max() - rewards[picks]
            ratios[way].append(float(regret.mean() / (rewards.max() - rewards.mean())))
    a, b = (statistics.median(seconds[way]) for way in ways)
    regrets = " | ".join(f"{statistics.mean(ratios[way]):.3f}" for way in ways)
    what = f"{'BBKB' if batch else 'BKB'}, {name}, σ = {sigma}, T = {horizon:,}"
    print(f"| {what} | {a:.3f} | {b:.3f} | {b / a:.2f} | {regrets} |", flush=True)


def described(checkout: Path, rounds: int) -> str:
    """The code, the machine and the way of measuring, as a line above the table."""
    commit = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    cores = f"{os.cpu_count()} CPU cores ({platform.machine()})"
    return (
        f"The NumPy code of luigicarratino/batch-bkb at commit {commit.stdout.strip()[:7]}, which is not part of this package, "
        f"and `bkb` and `batch_bkb`, in turns on {cores}, one thread each, processor seconds of asks and tells, medians of "
        f"{rounds} runs, torch {torch.__version__}, load average {os.getloadavg()[1]:.1f}. "
        "`python scripts/benchmarks/papers.py --theirs CHECKOUT` prints this.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--theirs", type=Path, required=True, help="a checkout of luigicarratino/batch-bkb")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    head = "| | ours [s] | theirs [s] | theirs / ours | regret / uniform, ours | theirs |\n|---|---|---|---|---|---|"
    with threadpoolctl.threadpool_limits(1):
        print(described(arguments.theirs, arguments.rounds))
        print(head)
        for row in arguments.rows:
            compare(row, str(arguments.theirs.resolve()), arguments.rounds)


if __name__ == "__main__":
    main()
