"""The benefit of fitting the kernel on Cadata: a grid of fixed bandwidths, and fits from starts wrong by a factor of five.

    export TORCHBANDITS_DATA=FOLDER OMP_NUM_THREADS=1
    python scripts/benchmarks/fit_cadata.py [--grid 7.5 10 25] [--starts 5 125] [--every 50 500]

All runs use BBKB with noise 0.01, F = 1, δ = 1/T, T = 2,000, ten uniform first picks, and an estimated prior mean (with which
fits compare averages). The grid is that of the BBKB paper's sweep. Prints a Markdown table: regret as a fraction of that of
uniform sampling, and its worst seed; the same for the second half of the run; the bandwidth at the end; CPU seconds.
"""

from __future__ import annotations

import argparse
import time

import torch
from fixed_kernels import rbf

import torchbandits as tb


def play(environment: tb.environments.Table, bandwidth: float, every: int | None, horizon: int, seed: int) -> list[float]:
    """Run BBKB. Returns the regret ratio, that of the second half, the last bandwidth, distinct arms and CPU seconds."""
    bandits: list[tb.Bandit] = []
    policy = tb.batch_bkb(
        rbf(bandwidth).requires_grad_(True),
        noise_std=0.01,
        norm_bound=1.0,
        delta=1 / horizon,
        initial=tb.starts.uniform(10),
        prior_mean="estimate",
        refit_every=every,
    )
    began = time.process_time()
    history = tb.run(
        policy,
        environment,
        horizon,
        generator=torch.Generator().manual_seed(seed),
        callbacks=[lambda bandit, *_: bandits.append(bandit) if not bandits else None],
    )
    seconds = time.process_time() - began
    regret, mean = torch.tensor(history.pulls["regret"]), float(environment.optimum - environment.means.mean())
    last = float(bandits[0].posterior.kernel.lengthscale)
    distinct = float(history.batches["distinct_arms"][-1])
    late = float(regret[horizon // 2 :].mean()) / mean
    return [float(regret.mean()) / mean, late, last, distinct, seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", type=float, nargs="*", default=[5, 7.5, 10, 12.5, 15, 17.5])
    parser.add_argument("--starts", type=float, nargs="*", default=[3.5, 87.5])
    parser.add_argument("--every", type=int, nargs="*", default=[10])
    parser.add_argument("--horizon", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    environment = tb.environments.cadata()
    print("| bandwidth | refit_every | ratio | worst seed | second half | last bandwidths | distinct arms | CPU seconds |")
    print("|---|---|---|---|---|---|---|---|")
    rows = [(b, None) for b in options.grid] + [(b, every) for b in options.starts for every in options.every]
    for bandwidth, every in rows:
        runs = torch.tensor([play(environment, bandwidth, every, options.horizon, s) for s in range(options.seeds)])
        ratio, late, _, distinct, seconds = runs.mean(dim=0).tolist()
        last = f"{float(runs[:, 2].min()):.3g} to {float(runs[:, 2].max()):.3g}" if every else "–"
        print(
            f"| {bandwidth:g} | {every or 'never'} | {ratio:.4f} | {float(runs[:, 0].max()):.4f} | {late:.4f} | {last} | "
            f"{distinct:.0f} | {seconds:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
