"""Batched pure exploration on random Matérn functions of known norm: regret as a fraction of uniform, batches, CPU seconds.

    python scripts/benchmarks/bpe.py                         # d = 1 and 2, four paired draws as batch rows, T = 10,000
    python scripts/benchmarks/bpe.py --dim 1 --scale 1 0.25  # BPE with the theorem's width, and with a quarter of it

The problem is that of scripts/benchmarks/matern.py. A batch is what one ask returns. Nothing is proved for a width scaled down.
"""

from __future__ import annotations

import argparse
import time

import gpytorch
import torch
from matern import environment_of, interval, policy_for

import torchbandits as tb


def bpe(norm_bound: torch.Tensor, horizon: int, scale: float, kernel: gpytorch.kernels.Kernel) -> tb.policies.Policy:
    options = {"horizon": horizon, "noise_std": 1.0, "norm_bound": norm_bound, "delta": 0.1, "regularization": 1.0}
    theory = tb.bpe(kernel, **options)
    if scale == 1:
        return theory
    return tb.bpe(kernel, **options, width=tb.widths.Scaled(theory.engine.confidence, scale))


def policies(norms: torch.Tensor, horizon: int, scales: list[float]) -> dict[str, tb.policies.Policy]:
    igp, pi = (policy_for(name, norms, horizon) for name in ("igp_ucb", "pi_gp_ucb"))
    batched = {f"bpe, width x {scale:g}": bpe(norms, horizon, scale, igp.kernel) for scale in scales}
    return batched | {"igp_ucb": igp, "pi_gp_ucb": pi, "uniform": tb.uniform()}


def measure(d: int, draws: int, horizon: int, scales: list[float], only: list[str] | None) -> None:
    functions = [tb.environments.rkhs(dim=d, generator=torch.Generator().manual_seed(seed)) for seed in range(draws)]
    norms = torch.tensor([x.norm_bound for x in functions], dtype=torch.float64)
    uniform = [horizon * float((x.optimum - x.means).mean()) for x in functions]
    for name, policy in policies(norms if draws > 1 else float(norms), horizon, scales).items():
        if only and name.partition(",")[0] not in only:
            continue
        generators = [torch.Generator().manual_seed(seed) for seed in range(draws)]
        began = time.process_time()
        history = tb.run(policy, environment_of(functions), horizon, generator=generators if draws > 1 else generators[0])
        seconds = (time.process_time() - began) / draws
        fractions = [float(history.cumulative_regret(row)[-1]) / u for row, u in enumerate(uniform)]
        batches = max(history.summary(row)["batches"] for row in range(draws))
        print(f"| {d} | {name} | {interval(fractions)} | {batches:,.0f} | {seconds:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, nargs="+", default=[1, 2], choices=[1, 2, 3])
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--horizon", type=int, default=10_000)
    parser.add_argument("--scale", type=float, nargs="+", default=[1.0], help="of BPE's width")
    parser.add_argument("--policy", nargs="+", choices=["bpe", "igp_ucb", "pi_gp_ucb", "uniform"])
    options = parser.parse_args()
    print("| d | policy | fraction of uniform | batches | CPU seconds a draw |")
    print("|---|---|---|---|---|")
    for d in options.dim:
        measure(d, options.draws, options.horizon, options.scale, options.policy)


if __name__ == "__main__":
    main()
