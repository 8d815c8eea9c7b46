"""Seconds to open a journal of many pulls without its checkpoint, by policy.

python scripts/benchmarks/opening.py --pulls 10000 --arms 2000 --policies gp_ucb gp_bucb bkb batch_bkb
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import gpytorch
import torch

import torchbandits as tb


def policy(name: str) -> tb.policies.Policy:
    """A policy of the registry on a kernel of length-scale 0.3."""
    kernel = gpytorch.kernels.RBFKernel()
    kernel.lengthscale = 0.3
    return getattr(tb, name)(kernel, noise_std=0.1, **({} if name == "gp_ucb" else {"norm_bound": 1.0}))


def bandit(name: str, arms: int, path: Path) -> tb.Bandit:
    """A bandit on random arms of four features, and its journal."""
    points = torch.rand(arms, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return tb.Bandit(policy(name), points, journal=tb.Journal(path, every=10**9, durable=False))


def measure(name: str, arms: int, pulls: int, folder: Path) -> None:
    """Write a journal, open it again, and say how long both took."""
    path, noise = folder / f"{name}.journal", torch.Generator().manual_seed(1)
    one, began = bandit(name, arms, path), time.perf_counter()
    while int(one.pulls) < pulls:
        picks = one.ask(limit=pulls - int(one.pulls))
        y = torch.sin(7 * picks.points).sum(dim=-1)
        one.tell(picks, y + 0.1 * torch.randn(y.shape, generator=noise, dtype=y.dtype))
    written, distinct = time.perf_counter() - began, int((one.counts > 0).sum())
    expected = one.ask().index
    one.journal.close()
    began, cpu = time.perf_counter(), time.process_time()
    other = bandit(name, arms, path)
    opened, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert torch.equal(other.counts, one.counts)
    assert torch.equal(other.ask().index, expected)
    print(
        f"{name}, {arms} arms, {pulls} pulls of {distinct} arms: {written:.1f} s to run, {opened:.2f} s to open "
        f"({cpu:.2f} s of the processor)",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=["gp_ucb", "gp_bucb", "bkb", "batch_bkb"])
    parser.add_argument("--arms", type=int, default=2_000)
    parser.add_argument("--pulls", type=int, default=10_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        for chosen in options.policies:
            measure(chosen, options.arms, options.pulls, Path(place))
