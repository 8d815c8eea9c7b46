"""BBKB on a million arms in memory, ten million in a memory-mapped file, and all 423,624 cells of NAS-Bench-101.

    python scripts/benchmarks/arms.py million nas --threads 2
    python scripts/benchmarks/arms.py ten_million --folder /big/disk [--rounds 2000] [--budget-gib 2]

Each run has its own process and prints one line: wall and processor seconds, peak memory, batches, distinct arms, dictionary,
regret. `ten_million` writes 10,000,000 x 8 arms as float32 (320 MB) and their rewards to the folder, once,
and sweeps them in double precision. The targets, on two cores: 5 minutes and 4 GB, 30 minutes and 6 GB, 2 minutes.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from fixed_kernels import rbf

import torchbandits as tb
from torchbandits.environments import Environment

ROUNDS = {"million": 10_000, "ten_million": 2_000, "nas": 5_000}
BANDWIDTH = {"million": 25.0, "ten_million": 25.0, "nas": 125.0}
# Arms written at once.
_STEP = 1 << 18


def environment_of(name: str, num_arms: int, folder: Path) -> Environment:
    if name == "nas":
        return tb.environments.nas_bench_101(subset="full", neighbors=False)
    if name == "million":
        arms = torch.randn(num_arms, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return tb.environments.Table(arms, rewards_of(arms), noise_std=0.01)
    path, rewards = folder / f"arms-{num_arms}.npy", folder / f"rewards-{num_arms}.npy"
    if not (path.exists() and rewards.exists()):
        write(path, rewards, num_arms)
    source = tb.sources.npy(path, dtype=torch.float64)
    return tb.environments.Table(source, np.load(rewards, mmap_mode="r"), noise_std=0.01)


def rewards_of(arms: torch.Tensor) -> torch.Tensor:
    return (torch.sin(arms[:, 0]) + torch.cos(arms[:, 1]) + 2) / 4


def write(path: Path, rewards: Path, num_arms: int) -> None:
    generator = torch.Generator().manual_seed(0)
    files = [
        np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(num_arms, 8)),
        np.lib.format.open_memmap(rewards, mode="w+", dtype=np.float64, shape=(num_arms,)),
    ]
    for start in range(0, num_arms, _STEP):
        part = slice(start, min(start + _STEP, num_arms))
        arms = torch.randn(part.stop - start, 8, generator=generator, dtype=torch.float32)
        files[0][part], files[1][part] = arms.numpy(), rewards_of(arms.double()).numpy()
    for file in files:
        file.flush()


def one(name: str, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    horizon = arguments.rounds or ROUNDS[name]
    environment = environment_of(name, arguments.arms or {"ten_million": 10_000_000}.get(name, 1_000_000), arguments.folder)
    policy = tb.batch_bkb(
        rbf(BANDWIDTH[name]), noise_std=0.01, norm_bound=1.0, delta=1 / horizon, memory_budget=int(arguments.budget_gib * 2**30)
    )
    began, processor = time.perf_counter(), time.process_time()
    history = tb.run(policy, environment, horizon, generator=torch.Generator().manual_seed(0))
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    b = history.batches
    A, d = environment.arms.shape[-2:]
    print(
        f"{name}: {A:,} arms x {d}, T = {horizon}, {arguments.threads} threads: {seconds:.1f} s ({processor:.1f} s of "
        f"processors), peak memory {peak:.2f} GiB, {len(b['size'])} batches, "
        f"{b['distinct_arms'][-1]} distinct arms, dictionary {b['dictionary_size'][-1]}, "
        f"mean regret {history.pulls['regret'].mean():.5f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=list(ROUNDS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, help="instead of the run's own")
    parser.add_argument("--arms", type=int, help="instead of the run's own")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--budget-gib", type=float, default=2.0)
    arguments = parser.parse_args()
    if len(arguments.what) == 1:
        one(arguments.what[0], arguments)
        return
    options = sys.argv[1:]
    for name in arguments.what:
        subprocess.run([sys.executable, __file__, name, *(o for o in options if o not in arguments.what)], check=True)


if __name__ == "__main__":
    main()
