"""One step of every policy: 20,640 arms, of which 1,000 were pulled before; the median over the following asks and tells.

    python scripts/benchmarks/policies.py [--steps 20] [--only bkb gp_ucb]

The arms are standard normal in 8 dimensions (2 for quadrature features, which do not support 8). Each policy is told 1,000
random arms at once, then asked and told, one pick at a time (batch policies: one batch, at most 100 picks). RBF kernel of
lengthscale 12.5, as for Cadata; Matérn-3/2 of lengthscale 4 for pi_gp_ucb.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from fixed_kernels import matern, rbf

import torchbandits as tb

ARMS, PULLS, NOISE = 20_640, 1_000, 0.01


def policies() -> dict[str, tuple[Callable[[], object], int]]:
    """Label, factory and number of features of each policy."""
    one = tb.widths.Constant(1.0)
    common = {"noise_std": NOISE}
    draw = common | {"width": one}
    return {
        "gp_ucb": (lambda: tb.gp_ucb(rbf(12.5), **common), 8),
        "igp_ucb": (lambda: tb.igp_ucb(rbf(12.5), **common), 8),
        "gp_bucb": (lambda: tb.gp_bucb(rbf(12.5), **common), 8),
        "bkb": (lambda: tb.bkb(rbf(12.5), **common), 8),
        "batch_bkb, global": (lambda: tb.batch_bkb(rbf(12.5), **common), 8),
        "compressed_gp, ucb": (lambda: tb.compressed_gp(rbf(12.5), **common), 8),
        "compressed_gp, ei": (lambda: tb.compressed_gp(rbf(12.5), acquisition="ei", **common), 8),
        "pi_gp_ucb": (lambda: tb.pi_gp_ucb(matern(1.5, 4.0), nu=1.5, horizon=10_000, **common), 8),
        "thompson_sampling, exact": (lambda: tb.thompson_sampling(rbf(12.5), **draw), 8),
        "thompson_sampling, nystrom": (lambda: tb.thompson_sampling(rbf(12.5), embedding="nystrom", **draw), 8),
        "thompson_sampling, rff": (lambda: tb.thompson_sampling(rbf(12.5), embedding="rff", **draw), 8),
        "thompson_sampling, qff (d = 2)": (lambda: tb.thompson_sampling(rbf(12.5), embedding="qff", **draw), 2),
        "rff_ucb": (lambda: tb.rff_ucb(rbf(12.5), **common), 8),
        "epsilon_greedy": (lambda: tb.epsilon_greedy(), 8),
        "regularized_evolution": (lambda: tb.regularized_evolution(), 8),
        "uniform": (lambda: tb.uniform(), 8),
    }


def measure(make: Callable[[], object], d: int, steps: int) -> tuple[list[float], float, int]:
    """Measure a policy. Returns seconds of each ask and tell, picks per step and dictionary size."""
    g = torch.Generator().manual_seed(0)
    arms = torch.randn(ARMS, d, generator=g, dtype=torch.float64)
    f = torch.tanh(arms.sum(dim=-1) / d) + 0.2 * torch.sin(arms[:, 0])
    bandit = tb.Bandit(make(), arms, generator=torch.Generator().manual_seed(1))
    index = torch.randperm(ARMS, generator=g)[:PULLS]
    rewards = f[index] + NOISE * torch.randn(PULLS, generator=g, dtype=torch.float64)
    bandit.observe(index, torch.ones(PULLS), rewards)
    seconds, picks = [], 0
    report = None
    for step in range(steps + 3):
        began = time.perf_counter()
        selection = bandit.ask(limit=100)
        asked = time.perf_counter() - began
        rewards = f[selection.index] + NOISE * torch.randn(len(selection), generator=g, dtype=torch.float64)
        began = time.perf_counter()
        report = bandit.tell(selection, rewards)
        # The first steps fill caches and are not measured.
        if step >= 3:
            seconds.append(asked + time.perf_counter() - began)
            picks += len(selection)
    assert report is not None
    return seconds, picks / steps, int(report.dictionary_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", nargs="*", help="parts of the labels")
    options = parser.parse_args()
    chosen = {k: v for k, v in policies().items() if not options.only or any(part in k for part in options.only)}
    print(f"A = {ARMS}, t = {PULLS}, {torch.get_num_threads()} threads, float64, median of {options.steps} steps:\n")
    print("| policy | ms a step | picks a step | dictionary |")
    print("|---|---|---|---|")
    for label, (make, d) in chosen.items():
        seconds, picks, size = measure(make, d, options.steps)
        print(f"| {label} | {1e3 * statistics.median(seconds):.2f} | {picks:.1f} | {size or '–'} |", flush=True)


if __name__ == "__main__":
    main()
