"""Ada-BKB on a box compared with BKB and GP-UCB on Sobol points of the box: regret, and seconds per step.

    OMP_NUM_THREADS=1 python scripts/benchmarks/ada_bkb.py                      # 10⁵ points, five seeds
    OMP_NUM_THREADS=1 python scripts/benchmarks/ada_bkb.py --arms 10000 --only branin

Branin (d = 2, T = 300) and Hartmann-6 (T = 700) of BoTorch, negated, on the unit cube, values scaled to [0, 1], Gaussian noise
of 0.01 of that range. The constants are those of the Ada-BKB authors' code for Hartmann-6: RBF of lengthscale 0.5 (here 0.25
for Branin), λ = 10⁻³, δ = 10⁻⁵, q̄ = 3, ξ = 10⁻³ in the width, N = 3. The norms of these functions are not known, so F is
a tuning parameter (1 by default, as in the authors' code). Regrets are relative to the optimum over the box: the average over
picks, and that of the arm recommended at the end.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence

import torch
from botorch.test_functions import Branin, Hartmann
from fixed_kernels import rbf
from torch import Tensor

import torchbandits as tb

NOISE, COMMON = 0.01, {"noise_std": 1e-3, "delta": 1e-5, "regularization": 1e-3}
# Function, T, lengthscale, smallest value (negated).
PROBLEMS: dict[str, tuple[Callable[[], object], int, float, float]] = {
    "branin": (lambda: Branin(negate=True), 300, 0.25, -308.129096),
    "hartmann6": (lambda: Hartmann(dim=6, negate=True), 700, 0.5, 0.0),
}


def policy_for(name: str, norm_bound: float, lengthscale: float, horizon: int):
    kernel, options = rbf(lengthscale), COMMON | {"norm_bound": norm_bound, "oversampling": 3.0}
    if name == "ada_bkb":
        return tb.ada_bkb(kernel, horizon=horizon, **options)
    return tb.bkb(kernel, **options) if name == "bkb" else tb.gp_ucb(kernel, **COMMON)


def play(name: str, problem: str, norm_bound: float, num_arms: int, seed: int) -> tuple[float, float, float, int]:
    """Run a policy. Returns average regret, simple regret, seconds per step and the number of evaluated arms."""
    make, horizon, lengthscale, least = PROBLEMS[problem]
    function = make()
    low, high = function.bounds.double()
    optimum = float(function.optimal_value)

    def values(points: Tensor) -> Tensor:
        return (function(low + points * (high - low)) - least) / (optimum - least)

    dim, generator = len(low), torch.Generator().manual_seed(seed)
    noise = torch.Generator().manual_seed(10_000 + seed)
    if name == "ada_bkb":
        domain = {"bounds": torch.stack([torch.zeros(dim), torch.ones(dim)])}
    else:
        domain = {"arms": torch.quasirandom.SobolEngine(dim, scramble=True, seed=seed).draw(num_arms, dtype=torch.float64)}
    bandit = tb.Bandit(policy_for(name, norm_bound, lengthscale, horizon), generator=generator, **domain)
    regret = seconds = 0.0
    for _ in range(horizon):
        began = time.perf_counter()
        selection = bandit.ask()
        seconds += time.perf_counter() - began
        y = values(selection.points)
        regret += 1 - float(y)
        y = y + NOISE * torch.randn(1, generator=noise, dtype=torch.float64)
        began = time.perf_counter()
        bandit.tell(selection, y)
        seconds += time.perf_counter() - began
    return regret / horizon, 1 - float(values(bandit.best().points)), seconds / horizon, bandit.arms.shape[-2]


def interval(values: Sequence[float], scale: float = 1.0) -> str:
    x = scale * torch.tensor(values, dtype=torch.float64)
    error = float(x.std()) / math.sqrt(len(x)) if len(x) > 1 else math.nan
    return f"{float(x.mean()):.4f} ± {error:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", type=int, default=100_000, help="Sobol points of BKB and GP-UCB")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=list(PROBLEMS))
    parser.add_argument("--policy", action="append", choices=["ada_bkb", "bkb", "gp_ucb"])
    parser.add_argument("--norm-bound", type=float, action="append", help="F of ada_bkb and bkb; 1 by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| problem | policy | F | arms | average regret | simple regret | ms a step |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for problem in [options.only] if options.only else PROBLEMS:
        for name in options.policy or ("ada_bkb", "bkb", "gp_ucb"):
            for norm_bound in (options.norm_bound or [1.0]) if name != "gp_ucb" else [math.nan]:
                runs = [play(name, problem, norm_bound, options.arms, seed) for seed in range(options.seeds)]
                average, simple, seconds, arms = zip(*runs, strict=True)
                F = "–" if math.isnan(norm_bound) else f"{norm_bound:g}"
                figures = f"{interval(average)} | {interval(simple)} | {1e3 * sum(seconds) / len(runs):.1f}"
                print(f"| {problem} | {name} | {F} | {round(sum(arms) / len(runs))} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
