"""Total tells per second of all workers of one store, by their number. The total must not decrease as workers are added.

    python scripts/benchmarks/workers.py --arms 2000 --tells 240 --workers 1 2 4 8

Evaluations take no time here, so only the cost of the store and of learning is measured.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import gpytorch
import torch

import torchbandits as tb

POLICIES = ("gp_ucb", "gp_bucb", "bkb", "batch_bkb")


def work(path: str, policy: str, arms: int, tells: int, before: int, ready: Barrier) -> None:
    """Ask and tell until all workers together have told a given number of rewards."""
    torch.set_num_threads(1)
    points = torch.rand(arms, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = gpytorch.kernels.RBFKernel()
    kernel.lengthscale = 0.3
    bound = {} if policy == "gp_ucb" else {"norm_bound": 1.0}
    worker = tb.Worker(getattr(tb, policy)(kernel, noise_std=0.1, **bound), points, store=path)
    # The first pass is a warm-up.
    for total in (before, before + tells):
        ready.wait()
        while (lease := worker.ask(limit=total)) is not None or worker.told < total:
            if lease is None:
                time.sleep(0.001)
                continue
            x = lease.points[0]
            worker.tell(lease, float(torch.sin(7 * x).sum()))
        ready.wait()


def tells_per_second(policy: str, arms: int, tells: int, before: int, workers: int) -> float:
    """Start a number of workers on a new store, and time them once all are ready."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ready = context.Barrier(workers + 1)
        given = (str(Path(folder) / "run.db"), policy, arms, tells, before, ready)
        processes = [context.Process(target=work, args=given) for _ in range(workers)]
        for process in processes:
            process.start()
        for _ in range(3):
            ready.wait()
        began = time.perf_counter()
        ready.wait()
        took = time.perf_counter() - began
        for process in processes:
            process.join()
    return tells / took


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", choices=POLICIES, default="gp_ucb")
    parser.add_argument("--arms", type=int, default=2_000)
    parser.add_argument("--tells", type=int, default=240)
    parser.add_argument("--before", type=int, default=60, help="rewards that are told before the clock starts")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    for count in options.workers:
        rate = tells_per_second(options.policy, options.arms, options.tells, options.before, count)
        print(f"{options.policy}, {options.arms} arms, {count} workers: {rate:.1f} tells a second", flush=True)
