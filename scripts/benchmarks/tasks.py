"""Regret with and without past campaigns as tasks, and with and without cheap fidelities, on functions drawn from a prior.

python scripts/benchmarks/tasks.py                       # ten seeds

The problems are two functions on 150 points of the unit square, each a draw of an RBF prior (lengthscale 0.2), with correlation
ρ; the noise has standard deviation 0.1. The regret is that of the arm with the highest posterior mean at the target, in
standard deviations of the prior. `past`: forty random results of the other task are known, and the target is pulled.
`fidelity`: a pull of the target costs 10, a pull of the other fidelity costs 1, and the budget is 150.
"""

from __future__ import annotations

import argparse
import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gpytorch
import numpy as np
import torch
from torch import Tensor

import torchbandits as tb

A, NOISE, WIDTH, BUDGET = 150, 0.1, tb.widths.Constant(2.0), 150.0
COSTS = {0.0: 10.0, 1.0: 1.0}


def tasks_kernel(rho: float | None) -> gpytorch.kernels.Kernel:
    """RBF times the correlations of the tasks; without ρ, those of an unfitted kernel."""
    base, tasks = gpytorch.kernels.RBFKernel(active_dims=[0, 1]), tb.TaskKernel(2, active_dims=[2])
    kernel = (base * tasks).double()
    base.lengthscale = 0.2
    if rho is not None:
        b = torch.tensor([1.0, rho]) * 0.999**0.5
        tasks.initialize(factor=b, raw_variance=tasks.raw_variance_constraint.inverse_transform(1 - b.square()))
    return kernel


def problem(rho: float, seed: int) -> tuple[Tensor, Tensor]:
    """Arms `2A x 3`, with the arms of the target first, and the true values `2A`."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(A, 2, dtype=torch.float64, generator=g)
    K = torch.exp(-0.5 * torch.cdist(x, x).square() / 0.04) + 1e-8 * torch.eye(A, dtype=torch.float64)
    f, other = (torch.linalg.cholesky(K) @ torch.randn(A, 2, dtype=torch.float64, generator=g)).T
    task = torch.arange(2, dtype=torch.float64).repeat_interleave(A).unsqueeze(-1)
    return torch.cat([x.repeat(2, 1), task], dim=-1), torch.cat([f, rho * f + (1 - rho**2) ** 0.5 * other])


def noisy(truth: Tensor, index: Tensor, g: torch.Generator) -> Tensor:
    return truth[index] + NOISE * torch.randn(index.shape, dtype=torch.float64, generator=g)


def regret(bandit: tb.Bandit, arms: Tensor, truth: Tensor) -> float:
    mean = bandit.posterior(arms[:A]).mean.reshape(-1)
    return float(truth[:A].max() - truth[:A][int(mean.argmax())])


def past(method: str, rho: float, seed: int) -> list[float]:
    """Regret after 5, 10 and 20 pulls of the target."""
    arms, truth = problem(rho, seed)
    g = torch.Generator().manual_seed(seed + 1_000)
    known = A + torch.randperm(A, generator=g)[:40]
    rewards = noisy(truth, known, g)
    if method == "one task":  # the results of the other campaign are treated as results of this one
        arms = torch.cat([arms[:, :2], torch.zeros(2 * A, 1, dtype=torch.float64)], dim=-1)
    options = {"refit_every": 5} if method == "fitted" else {}
    kernel = tasks_kernel(None if method == "fitted" else rho)
    bandit = tb.Bandit(tb.gp_ucb(kernel, noise_std=NOISE, width=WIDTH, **options), arms)
    if method != "nothing":
        bandit.tell(known, rewards)
    found, target = [], torch.arange(2 * A) < A
    for pull in range(1, 21):
        index = bandit.ask(available=target).index
        bandit.tell(index, noisy(truth, index, g))
        if pull in (5, 10, 20):
            found.append(regret(bandit, arms, truth))
    return found


def fidelity(method: str, rho: float, seed: int) -> list[float]:
    """Regret after spending 50, 100 and 150."""
    arms, truth = problem(rho, seed)
    g = torch.Generator().manual_seed(seed + 1_000)
    model = tb.gp_ucb(tasks_kernel(rho), noise_std=NOISE, width=WIDTH)
    bandit: tb.Bandit = tb.Bandit(model, arms)
    if method == "fidelity":
        bandit = tb.OutcomeBandit(tb.outcomes.fidelity({"f": model}, arms, column=2, target=0.0, costs=COSTS), arms)
    found, spent, target = [], 0.0, torch.arange(2 * A) < A
    while spent < BUDGET:
        index = (bandit.ask() if method == "fidelity" else bandit.ask(available=target)).index
        values = noisy(truth, index, g)
        bandit.tell(index, values.unsqueeze(-1) if method == "fidelity" else values)
        before, spent = spent, spent + COSTS[float(arms[int(index), 2])]
        found += [regret(bandit, arms, truth) for level in (50, 100, 150) if before < level <= spent]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    for title, play, methods in (
        ("5, 10 and 20 pulls", past, ("nothing", "one task", "fitted", "known")),
        ("costs of 50, 100 and 150", fidelity, ("target alone", "fidelity")),
    ):
        print(f"| after {title} | ρ = 0.95 | ρ = 0.7 | ρ = 0 |\n| --- | --- | --- | --- |")
        for method in methods:
            cells = []
            for rho in (0.95, 0.7, 0.0):
                rows = np.array([play(method, rho, seed) for seed in range(seeds)])
                mean, error = rows.mean(axis=0), rows.std(axis=0, ddof=1) / seeds**0.5
                cells.append(", ".join(f"{m:.2f} ± {e:.2f}" for m, e in zip(mean, error, strict=True)))
            print(f"| {method} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
