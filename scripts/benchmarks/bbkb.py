"""BBKB on real data, and the cost of a step as the number of pulls grows. For large tables see arms.py.

    python scripts/benchmarks/bbkb.py abalone cadata growth [--figure growth.png]

`abalone` (σ = 17.5, T = 10,000) and `cadata` (σ = 12.5, T = 2,000) print seconds of ask and tell after a warm-up run, per
seed and rule. `growth` runs until T = 100,000 and prints the seconds per pull against t, after the last new arm.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import gpytorch
import numpy as np
import torch
from fixed_kernels import rbf
from matplotlib.figure import Figure

import torchbandits as tb
from torchbandits.arms.compiled import pick_leaders
from torchbandits.policies import Policy


def real(name: str, bandwidth: float, horizon: int, seeds: int) -> None:
    environment = getattr(tb.environments, name)()
    uniform = horizon * float(environment.optimum - environment.means.mean())
    print(f"\n{name}: σ = {bandwidth}, T = {horizon}, {torch.get_num_threads()} threads, numba {compiled()}")
    print(
        "| rule | seed | seconds | batches | longest | distinct arms | dictionary | ratio |\n|---|---|---|---|---|---|---|---|"
    )
    for rule in ("global", "global_then_local"):
        policy = tb.batch_bkb(
            rbf(bandwidth), noise_std=0.01, norm_bound=1.0, delta=1 / horizon, batch_rule=rule, initial=tb.starts.uniform(1)
        )
        tb.run(policy, environment, horizon, generator=torch.Generator().manual_seed(1000))
        for seed in range(seeds):
            history = tb.run(policy, environment, horizon, generator=torch.Generator().manual_seed(seed))
            b = history.batches
            ratio = history.pulls["regret"].sum() / uniform
            print(
                f"| {rule} | {seed} | {b['seconds'].sum():.3f} | {len(b['size'])} | {b['size'].max()} "
                f"| {b['distinct_arms'][-1]} | {b['dictionary_size'][-1]} | {ratio:.3f} |"
            )


def growth(figure: Path | None, horizon: int = 100_000) -> None:
    environment = tb.environments.rkhs(dim=2, points_per_dim=30, generator=torch.Generator().manual_seed(0))
    kernel = gpytorch.kernels.MaternKernel(nu=1.5).double()
    kernel.lengthscale = 0.2
    shared = {"noise_std": 1.0, "width": tb.widths.Constant(1.0), "regularization": 1.0}
    policies: dict[str, Policy] = {
        "gp_ucb": tb.gp_ucb(kernel, **shared),
        "batch_bkb, ten picks at most": tb.batch_bkb(kernel, max_batch_size=10, **shared),
    }
    edges = np.geomspace(1000, horizon, 9).astype(int)
    curves = {}
    for name, policy in policies.items():
        history = tb.run(policy, environment, horizon, generator=torch.Generator().manual_seed(1))
        seconds, distinct, t = (history.batches[column] for column in ("seconds", "distinct_arms", "t"))
        print(f"\n{name}: median milliseconds of an ask and tell, 900 arms\n| t | ms | distinct arms |\n|---|---|---|")
        curves[name] = []
        for low, high in itertools.pairwise(edges):
            part = (t > low) & (t <= high)
            curves[name].append(1e3 * float(np.median(seconds[part])))
            print(f"| {low} … {high} | {curves[name][-1]:.3f} | {distinct[part][-1]} |")
    if figure is not None:
        draw_growth(curves, edges, figure)
        print(f"figure: {figure}")


def draw_growth(curves: dict[str, list[float]], edges: np.ndarray, figure: Path) -> None:
    plot = Figure(figsize=(6, 4), layout="constrained")
    axes = plot.add_subplot()
    for name, middle in curves.items():
        axes.loglog(np.sqrt(edges[:-1] * edges[1:]), middle, marker="o", label=name)
    axes.set(xlabel="pulls t", ylabel="median time of an ask and tell [ms]", xlim=(edges[0], edges[-1]), ylim=(0.1, 100))
    axes.set_title("A step does not slow down as pulls pile up", fontsize="medium")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    plot.savefig(figure, dpi=150)


def compiled() -> str:
    return "yes" if hasattr(pick_leaders, "py_func") else "no"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=["abalone", "cadata", "growth"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    if "abalone" in arguments.what:
        real("abalone", 17.5, 10_000, arguments.seeds)
    if "cadata" in arguments.what:
        real("cadata", 12.5, 2_000, arguments.seeds)
    if "growth" in arguments.what:
        growth(arguments.figure)


if __name__ == "__main__":
    main()
