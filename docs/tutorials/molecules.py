"""Choosing among 100,000 molecules: bit vectors, a Tanimoto kernel of your own, and batches of 25 from a table of all arms.

    python docs/tutorials/molecules.py [--figure docs/molecules.png] [--molecules 100000] [--batches 12] [--seed 0]

The fingerprints are made up (families of molecules that share most of their bits), and so is the property that is sought: a
weighted sum of similarities to 500 of the molecules, observed with noise. What is shown holds elsewhere: any GPyTorch kernel
will do, every arm is scored in every batch, and a new molecule costs one kernel column over the arms, not a pass over all data.

* `model.tabulate_(arms)` keeps mean and variance of every arm; models conditioned from it keep the table.
* `optimize_arms(acquisition, arms, q)` picks a batch (GP-BUCB: what is pending shrinks the variance) and returns the indices.

For comparison, BoTorch's `SingleTaskGP` picks one molecule at the beginning and one at the end, on the same data with the same
kernel. It scores 256 molecules at a time, since GPyTorch evaluates the covariance among those of one call. Prints a
table; draws the best molecule found and the CPU seconds a pick: of ours the 25th part of a batch, its observations learned
included.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpytorch
import torch
from botorch.models import SingleTaskGP
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

import torchbandits as tb
from torchbandits.botorch import BanditModel, PolicyAcquisition, optimize_arms

NUM_BITS, NOISE_STD, WIDTH, INITIAL, CHUNK = 128, 0.1, 2.0, 50, 256
BLUE, ORANGE = "#0072B2", "#D55E00"  # Okabe and Ito's


class TanimotoKernel(gpytorch.kernels.Kernel):
    r"""Bits shared over bits set: for fingerprints of 0 and 1, stored as floats.

    .. math:: k(x, y) = x^T y / (|x|^2 + |y|^2 - x^T y), \quad k(0, 0) = 1

    Source: Ralaivola et al. 2005, "Graph kernels for chemical informatics", as MinMax on bits.
    """

    has_lengthscale = False

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """`... x n x m`, or with `diag` the n values of pairs of rows."""
        if diag:
            shared = (x1 * x2).sum(dim=-1)
            either = x1.square().sum(dim=-1) + x2.square().sum(dim=-1) - shared
        else:
            shared = x1 @ x2.mT
            either = x1.square().sum(dim=-1).unsqueeze(-1) + x2.square().sum(dim=-1).unsqueeze(-2) - shared
        return torch.where(either > 0, shared / either.clamp_min(1e-300), 1.0)


def kernel() -> gpytorch.kernels.Kernel:
    """Tanimoto similarity, times the variance of the property."""
    scaled = gpytorch.kernels.ScaleKernel(TanimotoKernel()).double()
    scaled.outputscale = 0.1
    return scaled.requires_grad_(False)


class Molecules:
    """Fingerprints `A x NUM_BITS`, and a property of each: 0 on average, 1 at the best."""

    def __init__(self, number: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        families = max(1, number // 50)
        first = torch.rand(families, NUM_BITS, generator=self.generator) < 0.2
        family = torch.randint(families, (number,), generator=self.generator)
        flipped = torch.rand(number, NUM_BITS, generator=self.generator) < 0.1 * (0.3 + 0.7 * first[family])
        self.arms = (first[family] ^ flipped).double()
        centers = self.arms[torch.randint(number, (500,), generator=self.generator)]
        weights = torch.randn(500, generator=self.generator, dtype=torch.float64)
        value = tb.environments.KernelExpansion(TanimotoKernel(), centers, weights)(self.arms)
        self.value = (value - value.mean()) / (value.max() - value.mean())

    def observe(self, index: Tensor) -> Tensor:
        """`q -> q x 1`, with noise."""
        noise = torch.randn(len(index), generator=self.generator, dtype=torch.float64)
        return (self.value[index] + NOISE_STD * noise).unsqueeze(-1)


@dataclass
class Trace:
    """After every batch: evaluations, the best molecule among them (without noise), CPU seconds a pick."""

    evaluations: list[int] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def search(molecules: Molecules, batches: int, q: int) -> tuple[Trace, Tensor, Tensor]:
    """The loop, its trace, and all that it observed: indices and rewards."""
    arms, trace = molecules.arms, Trace()
    picked = torch.randint(len(arms), (INITIAL,), generator=molecules.generator)
    Y = molecules.observe(picked)
    # This is all: a model, tabulated on the arms; then score, pick, observe, condition.
    model = BanditModel(arms[picked], Y, kernel=kernel(), noise_std=NOISE_STD, prior_mean=float(Y.mean())).tabulate_(arms)
    policy = tb.gp_bucb(model.covar_module, noise_std=NOISE_STD, width=tb.widths.Constant(WIDTH))
    for _ in range(batches):
        begun = time.process_time()
        points, _, index = optimize_arms(PolicyAcquisition(model, policy), arms, q, unique=False)
        trace.seconds.append((time.process_time() - begun) / q)
        y = molecules.observe(index)
        begun = time.process_time()
        model = model.condition_on_observations(points, y)
        trace.seconds[-1] += (time.process_time() - begun) / q
        picked, Y = torch.cat([picked, index]), torch.cat([Y, y])
        trace.evaluations.append(len(picked))
        trace.best.append(float(molecules.value[picked].max()))
    return trace, picked, Y


def stock_pick(molecules: Molecules, picked: Tensor, Y: Tensor) -> float:
    """CPU seconds in which BoTorch's own model is made of these data and picks one molecule of all."""
    mean, likelihood = gpytorch.means.ConstantMean(), gpytorch.likelihoods.GaussianLikelihood()
    mean.constant.data, likelihood = Y.mean(), likelihood.double()
    likelihood.noise = NOISE_STD**2
    begun = time.process_time()
    parts = {"covar_module": kernel(), "mean_module": mean, "likelihood": likelihood, "outcome_transform": None}
    model = SingleTaskGP(molecules.arms[picked], Y, **parts).requires_grad_(False)
    with torch.no_grad():
        posteriors = [model.posterior(chunk) for chunk in molecules.arms.split(CHUNK)]
        torch.cat([p.mean + WIDTH * p.variance.sqrt() for p in posteriors]).argmax()
    return time.process_time() - begun


def draw(trace: Trace, chance: Tensor, stock: dict[int, float], path: Path) -> None:
    """The best molecule found, beside random choice, and the seconds of a pick."""
    figure = Figure(figsize=(9.2, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.plot(trace.evaluations, trace.best, color=ORANGE, marker="o", markersize=3, label="GP-BUCB, Tanimoto")
    left.plot(trace.evaluations, chance.numpy(), color="0.5", linestyle="--", label="chosen at random (average)")
    left.axhline(1.0, color="0.7", linewidth=0.8)
    left.set(xlabel="evaluations", ylabel="best molecule found (1: the best of all)", ylim=(None, 1.03))
    left.legend(frameon=False, loc="lower right")
    right.plot(trace.evaluations, trace.seconds, color=ORANGE, marker="o", markersize=3, label="BanditModel, batches")
    right.plot(list(stock), list(stock.values()), "s", color=BLUE, label="SingleTaskGP, one pick")
    right.set(xlabel="evaluations", ylabel="CPU seconds a pick", yscale="log")
    right.legend(frameon=False, loc="center right")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.9", linewidth=0.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> Trace:
    """Search, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, default=Path("docs/molecules.png"))
    parser.add_argument("--molecules", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    molecules = Molecules(options.molecules, options.seed)
    trace, picked, Y = search(molecules, options.batches, options.batch_size)
    stock = {n: stock_pick(molecules, picked[:n], Y[:n]) for n in (INITIAL, len(picked))}
    # The best of n chosen at random, on average: from the order statistics of the values.
    ordered, A = molecules.value.sort().values, options.molecules
    steps = torch.arange(A + 1, dtype=torch.float64) / A
    chance = torch.stack([(ordered * (steps[1:] ** n - steps[:-1] ** n)).sum() for n in trace.evaluations])
    print(f"{A} molecules of {NUM_BITS} bits, batches of {options.batch_size}")
    print(f"{'evaluations':>11} {'best found':>11} {'at random':>10} {'CPU s a pick':>15}")
    for row in zip(trace.evaluations, trace.best, chance.tolist(), trace.seconds, strict=True):
        print("{:>11} {:>11.3f} {:>10.3f} {:>15.4f}".format(*row))
    print("SingleTaskGP, one pick: " + ", ".join(f"{s:.2f} CPU s after {n} evaluations" for n, s in stock.items()))
    draw(trace, chance, stock, options.figure)
    return trace


if __name__ == "__main__":
    main()
