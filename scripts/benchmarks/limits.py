"""Speed of the two inner loops of BBKB against the limits of the machine: the sweep of all arms, and the picks of a batch.

    python scripts/benchmarks/limits.py [--threads 1] [--arms 1000000] [--dictionary 512] [--horizon 10000]

The sweep is over `arms` x 8 with RBF and Matérn 5/2 kernels: once with recomputed kernel columns, and once with kept columns,
for as many arms as fit into 4 GiB. Its rate counts the m² multiplications and additions per arm of a triangular product, and is
compared with the rate of a full matrix product of the same size in the same process. The operations of the kernel (a product of
d + 2 numbers and one exponential per entry) are not counted in this rate; the floor includes them. The second part runs BBKB on
20,640 arms (those of Cadata if TORCHBANDITS_DATA is set), and prints the time of `ask` per pick.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from dataclasses import asdict

import torch
from fixed_kernels import rbf
from scaling.config import BenchmarkConfig, Point
from scaling.machine import Rates, fastest, sweep_floor
from scaling.methods import Problem, SparseTable

import torchbandits as tb
from torchbandits.arms import warm_up

_KEPT_BYTES = 4 << 30


def sweep(arms: int, dictionary: int, kept: bool) -> None:
    """Measure the sweep. Returns one line: seconds, share of the matmul rate, share of the floor."""
    point = Point(arms=arms, dictionary=dictionary, pulls=2 * dictionary)
    axes = {"arms": [arms], "dictionary": [dictionary], "pulls": [point.pulls]}
    options = {"base": asdict(point), "memory_budget": 8 if kept else 0.25, "memory_limit": 16, **axes}
    config = BenchmarkConfig.parse(options)
    table = SparseTable(Problem.draw(config, point), point, config)
    assert table.kept == kept
    rates = Rates.measure(dictionary, "cpu", time.perf_counter, seconds=3.0)
    seconds = fastest(table.update, "cpu", time.perf_counter, 20.0)
    after = Rates.measure(dictionary, "cpu", time.perf_counter, seconds=3.0)
    best = max(rates.operations, after.operations)
    rate = arms * dictionary**2 / seconds
    full = 2 * rate
    floor = sweep_floor(point, config.dim, kept, rates)
    print(
        f"sweep, A = {arms:,}, m = {dictionary}, columns {'kept' if kept else 'recomputed'}: {seconds:.3f} s; "
        f"{rate / 1e9:.1f} Gflop/s of a triangular product ({full / 1e9:.1f} of the full one) where a full product makes "
        f"{best / 1e9:.1f}: {rate / best:.0%} ({full / best:.0%}); floor {floor:.3f} s, {floor / seconds:.0%} of it",
        flush=True,
    )


def picks(horizon: int) -> None:
    """Run BBKB and time `ask` separately. Returns one line per class of batch sizes."""
    if "TORCHBANDITS_DATA" in os.environ:
        environment = tb.environments.cadata()
    else:
        arms = torch.randn(20_640, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        environment = tb.environments.Table(arms, torch.sin(arms.sum(dim=-1)), noise_std=0.01)
    policy = tb.batch_bkb(
        rbf(12.5), noise_std=0.01, norm_bound=1.0, delta=1 / horizon, oversampling=2.0, initial=tb.starts.uniform(1)
    )
    warm_up()
    generator = torch.Generator().manual_seed(0)
    bandit = tb.Bandit(policy, environment.arms, generator=generator)
    sizes, seconds, told = [], [], 0.0
    while sum(sizes) < horizon:
        began = time.perf_counter()
        selection = bandit.ask(limit=horizon - sum(sizes))
        seconds.append(time.perf_counter() - began)
        sizes.append(len(selection))
        rewards = environment.sample(selection.index, [generator])
        began = time.perf_counter()
        bandit.tell(selection, rewards)
        told += time.perf_counter() - began
    own = "Cadata" if "TORCHBANDITS_DATA" in os.environ else "normal arms"
    print(
        f"BBKB on {own}, {environment.arms.shape[-2]:,} arms, T = {horizon}: {len(sizes)} batches; ask "
        f"{1e6 * sum(seconds) / sum(sizes):.1f} µs a pick in all, tell {1e3 * told / len(sizes):.2f} ms a batch"
    )
    for least, most in itertools.pairwise((1, 10, 100, 1_000, horizon + 1)):
        mine = [(n, s) for n, s in zip(sizes, seconds, strict=True) if least <= n < most]
        if mine:
            n, s = (sum(x) for x in zip(*mine, strict=True))
            print(
                f"    {len(mine):5d} batches of {least} to {most - 1}: {1e3 * s / len(mine):.3f} ms a batch, "
                f"{1e6 * s / n:.1f} µs a pick",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--arms", type=int, default=1_000_000)
    parser.add_argument("--dictionary", type=int, default=512)
    parser.add_argument("--horizon", type=int, default=10_000)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{arguments.threads} threads, torch {torch.__version__}")
    sweep(arguments.arms, arguments.dictionary, False)
    sweep(min(arguments.arms, _KEPT_BYTES // (8 * arguments.dictionary)), arguments.dictionary, True)
    picks(arguments.horizon)


if __name__ == "__main__":
    main()
