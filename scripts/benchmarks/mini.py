"""mini-GP-UCB compared with BBKB and GP-UCB on Abalone and Cadata: regret, switches, seconds.

    python scripts/benchmarks/mini.py [abalone cadata] [--seeds 4]

The settings are those of the BBKB paper's experiments (noise 0.01, F = 1, δ = 1/T, first pick uniform), with bandwidths 17.5
(Abalone, T = 10,000) and 12.5 (Cadata, T = 2,000). The methods are interleaved seed by seed. A switch is a pull of a different
arm than the previous pull.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import gpytorch
import numpy as np
import torch
from fixed_kernels import rbf

import torchbandits as tb
from torchbandits.policies import Policy

HORIZONS = {"abalone": (17.5, 10_000), "cadata": (12.5, 2_000)}


def ways(kernel: gpytorch.kernels.Kernel, horizon: int) -> dict[str, Callable[[], Policy]]:
    known = {"noise_std": 0.01, "delta": 1 / horizon, "initial": tb.starts.uniform(1)}
    bounded = known | {"norm_bound": 1.0}
    mixture = tb.widths.MartingaleMixture(0.01, 1.0, 1 / horizon, 1e-4)
    return {
        "gp_ucb": lambda: tb.gp_ucb(kernel, **known),
        "gp_ucb, same width as mini": lambda: tb.gp_ucb(kernel, width=mixture, **known),
        "batch_bkb": lambda: tb.batch_bkb(kernel, **bounded),
        "mini_gp_ucb, C² = 1.1": lambda: tb.mini_gp_ucb(kernel, **bounded),
        "mini_gp_ucb, C² = 2": lambda: tb.mini_gp_ucb(kernel, ratio_threshold=2.0, **bounded),
        "mini_gp_ucb, C² = 10": lambda: tb.mini_gp_ucb(kernel, ratio_threshold=10.0, **bounded),
        "mini_gp_ucb, EI, C² = 2": lambda: tb.mini_gp_ucb(kernel, ratio_threshold=2.0, acquisition="ei", **bounded),
    }


def compare(name: str, seeds: int) -> None:
    bandwidth, horizon = HORIZONS[name]
    environment = getattr(tb.environments, name)()
    uniform = horizon * float(environment.optimum - environment.means.mean())
    rows: dict[str, list[tuple[float, ...]]] = {}
    # The first round is a warm-up.
    for seed in range(-1, seeds):
        for way, policy in ways(rbf(bandwidth), horizon).items():
            length = horizon if seed >= 0 else 50
            history = tb.run(policy(), environment, length, generator=torch.Generator().manual_seed(seed + 1))
            arms, batches = history.pulls["arm"], history.batches
            switches = 1 + int((np.diff(arms) != 0).sum())
            numbers = (history.pulls["regret"].sum() / uniform, switches, len(batches["size"]), len(np.unique(arms)))
            if seed >= 0:
                rows.setdefault(way, []).append((*numbers, batches["seconds"].sum()))
    print(f"\n{name}: A = {len(environment.arms)}, σ = {bandwidth}, T = {horizon}, {seeds} seeds, mean ± standard error")
    print("| way | regret / uniform's | switches | asks | distinct arms | seconds |\n|---|---|---|---|---|---|")
    for way, lines in rows.items():
        table = np.array(lines)
        mean, error = table.mean(axis=0), table.std(axis=0, ddof=1) / np.sqrt(len(table))
        cells = [
            f"{m:.3f} ± {e:.3f}" if i in (0, 4) else f"{m:.0f} ± {e:.0f}"
            for i, (m, e) in enumerate(zip(mean, error, strict=True))
        ]
        print(f"| {way} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=list(HORIZONS), default=list(HORIZONS))
    parser.add_argument("--seeds", type=int, default=4)
    arguments = parser.parse_args()
    for name in arguments.what:
        compare(name, arguments.seeds)


if __name__ == "__main__":
    main()
