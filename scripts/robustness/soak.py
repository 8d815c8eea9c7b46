"""A run of very many steps, which checks that memory stays constant and that the factors agree with those of a refit.

python scripts/robustness/soak.py                                # 100,000 steps each of gp_ucb and batch_bkb; minutes
python scripts/robustness/soak.py --steps 2000 --policies gp_ucb
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import gc
import sys
import time
from pathlib import Path

import gpytorch
import psutil
import torch

import torchbandits as tb

# Fraction of the run after which memory must not grow.
SETTLED = 0.1


def kernel() -> gpytorch.kernels.Kernel:
    rbf = gpytorch.kernels.RBFKernel().double()
    rbf.lengthscale = 0.3
    return rbf


POLICIES = {
    "gp_ucb": lambda: tb.gp_ucb(kernel(), noise_std=0.1),
    "batch_bkb": lambda: tb.batch_bkb(kernel(), noise_std=0.1, max_batch_size=4),
}


def resident(process: psutil.Process) -> int:
    """Bytes of resident memory, after free memory retained by glibc, which varies by megabytes, is returned to the system."""
    gc.collect()
    library = ctypes.util.find_library("c")
    if library is not None and hasattr(libc := ctypes.CDLL(library), "malloc_trim"):
        libc.malloc_trim(0)
    return int(process.memory_info().rss)


def soak(name: str, steps: int) -> dict[str, float]:
    """Ask and tell a number of pulls. Returns the growth of resident memory after the first tenth, and the distance from a
    refit."""
    arms = torch.rand(400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise = torch.Generator().manual_seed(1)
    bandit = tb.Bandit(POLICIES[name](), arms)
    process, began, least, most = psutil.Process(), time.process_time(), 0, 0
    told = mark = 0
    while told < steps:
        selection = bandit.ask(limit=min(4, steps - told))
        rewards = torch.sin(5 * selection.points[:, 0]) + 0.1 * torch.randn(
            len(selection), dtype=torch.float64, generator=noise
        )
        bandit.tell(selection, rewards)
        told += len(selection)
        if told >= max(mark, SETTLED * steps):
            rss = resident(process)
            least, most, mark = least or rss, max(most, rss), max(mark, SETTLED * steps) + steps / 8
    seconds = time.process_time() - began
    statistics = bandit.loop.state.statistics
    # A bandit that learns the same sums by one call.
    fresh = tb.Bandit(POLICIES[name](), arms)
    arm = bandit.loop.state.rows.arm_of_row
    fresh.observe(arm, statistics.weights, statistics.sums, statistics.squares)
    # A new dictionary would give a different posterior, so the factors are compared for the current dictionary.
    if name == "batch_bkb":
        fresh = tb.Bandit(POLICIES[name](), arms).load_state_dict(bandit.state_dict())
        fresh.loop.state.process.invalidate_()
    mine, other = bandit.posterior(arms), fresh.posterior(arms)
    table = bandit.loop.state.arm_mean(), bandit.loop.state.arm_leverage() * bandit.loop.state.process.regularization
    apart = [
        (a - b).abs().max() / b.abs().max()
        for a, b in zip((mine.mean, mine.variance, *table), 2 * (other.mean, other.variance), strict=True)
    ]
    return {
        "steps": steps,
        "distinct arms": int(statistics.num_rows),
        "growth of the resident memory after a tenth of them, %": round(100 * (most - least) / least, 3),
        "mean and variance of all arms against a refit, relative to the largest": float(f"{float(max(apart)):.1e}"),
        "processor seconds": round(seconds, 1),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run and print the table. Returns 0 if memory grew by less than 1 % and the factors are within 1e-6."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = {name: soak(name, options.steps) for name in options.policies}
    rows = [
        f"| {what} | " + " | ".join(str(values[what]) for values in found.values()) + " |"
        for what in next(iter(found.values()))
    ]
    text = "\n".join([f"| what | {' | '.join(found)} |", "| --- |" + " --- |" * len(found), *rows, ""])
    print(text)
    if options.output is not None:
        options.output.write_text(text)
    numbers = [list(values.values()) for values in found.values()]
    return 0 if all(growth < 1 and apart < 1e-6 for _, _, growth, apart, _ in numbers) else 1


if __name__ == "__main__":
    sys.exit(main())
