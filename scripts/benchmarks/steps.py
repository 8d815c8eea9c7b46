"""One step of GP-UCB at t distinct arms: torchbandits compared with plain torch and three stock methods of BoTorch.

    python scripts/benchmarks/steps.py [--arms 4177 20640] [--t 1000] [--steps 15]

A step learns one reward and chooses the next arm (fixed hyper-parameters, float64). All methods have the same data and, if they
are exact, score the same arms. Their steps are interleaved, so that the ratios are robust to drifts of the machine's speed.
Abalone's and Cadata's arms are standardised; with TORCHBANDITS_DATA unset, random arms of the same shape are used, and the
table notes it.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf_discrete
from fixed_kernels import rbf
from torch import Tensor

import torchbandits as tb

BETA, NOISE = 4.0, 0.1
# GPyTorch evaluates the covariance among the points that it predicts (gpytorch#2736), so one call on all arms costs A².
CHUNK = 256


class PlainTorch:
    """GP-UCB in plain torch, which appends one Cholesky row and one row of L⁻¹K per step."""

    def __init__(self, arms: Tensor, index: Tensor, y: Tensor, room: int) -> None:
        self.arms, self.kernel, t = arms, rbf(2.0), len(index)
        with torch.no_grad():
            K = self.kernel(arms[index], arms).to_dense()
        L = torch.linalg.cholesky(K[:, index] + NOISE**2 * torch.eye(t, dtype=K.dtype))
        self.rows = K.new_empty(t + room, len(arms))
        self.rows[:t] = torch.linalg.solve_triangular(L, K, upper=False)
        self.z = torch.linalg.solve_triangular(L, y.unsqueeze(-1), upper=False).squeeze(-1)
        self.mean = self.z @ self.rows[:t]
        self.variance = 1 - self.rows[:t].square().sum(0)
        self.t = t

    @torch.no_grad()
    def step(self, arm: int, y: float) -> int:
        column = self.rows[: self.t, arm]
        k = self.kernel(self.arms[arm : arm + 1], self.arms).to_dense().squeeze(0)
        diagonal = math.sqrt(1 + NOISE**2 - float(column @ column))
        row = (k - column @ self.rows[: self.t]) / diagonal
        z = (y - float(self.mean[arm])) / diagonal
        self.rows[self.t] = row
        self.t += 1
        self.mean += z * row
        self.variance -= row.square()
        return int((self.mean + math.sqrt(BETA) * self.variance.clamp_min(0).sqrt()).argmax())


class StockBoTorch:
    """A `SingleTaskGP` rebuilt on the data, scored in t-batches or, with `chunk`, that many arms per call."""

    def __init__(self, arms: Tensor, index: Tensor, y: Tensor, *, chunk: int | None = None) -> None:
        self.arms, self.index, self.y, self.chunk = arms, index, y, chunk

    def step(self, arm: int, y: float) -> int:
        self.index = torch.cat([self.index, torch.tensor([arm])])
        self.y = torch.cat([self.y, torch.tensor([y], dtype=torch.float64)])
        model = SingleTaskGP(
            self.arms[self.index],
            self.y.unsqueeze(-1),
            torch.full((len(self.y), 1), NOISE**2, dtype=torch.float64),
            covar_module=rbf(2.0),
            outcome_transform=None,
        )
        if self.chunk is not None:
            with torch.no_grad():
                posteriors = [model.posterior(chunk) for chunk in self.arms.split(self.chunk)]
                return int(torch.cat([p.mean + math.sqrt(BETA) * p.variance.sqrt() for p in posteriors]).argmax())
        acquisition = UpperConfidenceBound(model, beta=BETA)
        point, _ = optimize_acqf_discrete(acquisition, q=1, choices=self.arms)
        return int((self.arms == point).all(-1).nonzero()[0])


class Ours:
    """`gp_ucb` of this package through ask and tell."""

    def __init__(self, arms: Tensor, index: Tensor, y: Tensor) -> None:
        policy = tb.gp_ucb(rbf(2.0), noise_std=NOISE, width=tb.widths.Constant(math.sqrt(BETA)))
        self.bandit = tb.Bandit(policy, arms)
        self.bandit.observe(index, torch.ones(len(index)), y)

    def step(self, arm: int, y: float) -> int:
        self.bandit.tell(torch.tensor([arm]), torch.tensor([y], dtype=torch.float64))
        picked = self.bandit.ask()
        self.bandit.forget(picked)
        return int(picked.index[0])


def arm_set(num_arms: int) -> tuple[str, Tensor]:
    names = {4177: "abalone", 20640: "cadata"}
    if num_arms in names and os.environ.get("TORCHBANDITS_DATA"):
        return names[num_arms], getattr(tb.environments, names[num_arms])().arms
    generator = torch.Generator().manual_seed(0)
    return "random", torch.randn(num_arms, 8, generator=generator, dtype=torch.float64)


def measure(num_arms: int, t: int, steps: int, follow: bool) -> None:
    name, arms = arm_set(num_arms)
    generator = torch.Generator().manual_seed(1)
    unique = torch.tensor(sorted({tuple(row): i for i, row in reversed(list(enumerate(arms.tolist())))}.values()))
    order = unique[torch.randperm(len(unique), generator=generator)]
    reward = torch.sin(arms[:, 0]) + torch.cos(arms[:, 1])
    y = reward + NOISE * torch.randn(len(arms), generator=generator, dtype=torch.float64)
    seen, new = order[:t], order[t : t + steps + 2]
    ways: dict[str, Callable[[int, float], int]] = {
        "torchbandits gp_ucb": Ours(arms, seen, y[seen]).step,
        "plain torch, one row a step": PlainTorch(arms, seen, y[seen], steps + 2).step,
        "BoTorch optimize_acqf_discrete": StockBoTorch(arms, seen, y[seen]).step,
        "BoTorch flat posterior": StockBoTorch(arms, seen, y[seen], chunk=len(arms)).step,
        f"BoTorch posterior in chunks of {CHUNK}": StockBoTorch(arms, seen, y[seen], chunk=CHUNK).step,
    }
    # With one thread, processor time is unaffected by other work on the machine.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    arm = int(new[0])
    for i, given in enumerate(new.tolist()):
        arm, picks = arm if follow else given, set()
        for way, step in ways.items():
            if way.startswith("BoTorch") and i > 4:
                continue
            began = clock()
            picks.add(step(arm, float(y[arm])))
            # The first two steps are a warm-up.
            if i > 1:
                seconds[way].append(clock() - began)
        assert len(picks) == 1, f"the ways disagree at step {i}: {picks}"
        arm = picks.pop()
    ours = statistics.median(seconds["torchbandits gp_ucb"])
    told = "each told its own pick" if follow else "each told a random new arm"
    how = f"{torch.get_num_threads()} threads, {clock.__name__}; {told}"
    print(f"\n{name}: A = {len(arms)}, d = {arms.shape[1]}, t = {t} distinct arms, {how}")
    print("| way | ms a step (median) | times torchbandits |\n|---|---|---|")
    for way, values in seconds.items():
        print(f"| {way} | {1e3 * statistics.median(values):.2f} | {statistics.median(values) / ours:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", type=int, nargs="+", default=[4177, 20640])
    parser.add_argument("--t", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--threads", type=int, help="PyTorch's default without it; with 1, processor time is measured")
    parser.add_argument("--follow", action="store_true", help="tell each way its own pick, instead of a random new arm")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="botorch")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    for num_arms in arguments.arms:
        measure(num_arms, arguments.t, arguments.steps, arguments.follow)


if __name__ == "__main__":
    main()
