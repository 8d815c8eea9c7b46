"""Any GPyTorch kernel will do, one of your own too: molecules by their fingerprints, compared by Tanimoto similarity.

    python docs/examples/any_kernel.py

The fingerprints are made up (families of molecules that share most of their bits), and so is the property that is sought, the
likeness to the nearest of a few molecules: what counts here is that BBKB takes each kernel as it is.
"""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from torch import Tensor

import torchbandits as tb

NUM_MOLECULES, NUM_BITS, NUM_FAMILIES = 800, 64, 100
PULLS, SEEDS, NOISE_STD = 120, 3, 0.1


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


def fingerprints(generator: torch.Generator) -> Tensor:
    """Families: every molecule keeps each bit of its family's first one with probability 0.9; few bits are set."""
    first = torch.rand(NUM_FAMILIES, NUM_BITS, generator=generator) < 0.2
    family = torch.randint(NUM_FAMILIES, (NUM_MOLECULES,), generator=generator)
    flipped = torch.rand(NUM_MOLECULES, NUM_BITS, generator=generator) < 0.1 * (0.3 + 0.7 * first[family])
    return (first[family] ^ flipped).double()


def kernels() -> dict[str, gpytorch.kernels.Kernel]:
    """The same bits, seen differently."""
    matern = gpytorch.kernels.MaternKernel(nu=2.5).double()
    matern.lengthscale = NUM_BITS**0.5 / 2
    linear = gpytorch.kernels.LinearKernel().double()
    linear.variance = 1 / NUM_BITS
    polynomial = gpytorch.kernels.PolynomialKernel(power=2).double()
    polynomial.offset = 1.0
    scaled = gpytorch.kernels.ScaleKernel(polynomial).double()
    scaled.outputscale = 1 / NUM_BITS
    tanimoto = TanimotoKernel().double()
    half = gpytorch.kernels.ScaleKernel(TanimotoKernel()) + gpytorch.kernels.ScaleKernel(linear)
    return {
        "Matérn-5/2": matern,
        "linear": linear,
        "polynomial": scaled,
        "Tanimoto": tanimoto,
        "Tanimoto + linear": half.double(),
    }


def main() -> None:
    """Run BBKB with each kernel, and uniform picks, and print a table."""
    draw = torch.Generator().manual_seed(0)
    arms = fingerprints(draw)
    liked = arms[torch.randint(NUM_MOLECULES, (8,), generator=draw)]
    likeness = TanimotoKernel()(arms, liked).to_dense() * torch.linspace(1, 0.6, 8, dtype=torch.float64)
    value = likeness.amax(dim=-1)
    environment = tb.environments.Table(arms, (value - value.min()) / (value.max() - value.min()), NOISE_STD)

    options = {"noise_std": NOISE_STD, "width": tb.widths.Constant(0.5), "prior_mean": "estimate"}
    policies: dict[str, Any] = {name: tb.batch_bkb(kernel, **options) for name, kernel in kernels().items()}
    policies["(uniform)"] = tb.uniform(batch_size=20)
    print(f"{NUM_MOLECULES} molecules of {NUM_BITS} bits, {PULLS} evaluations, averages over {SEEDS} seeds")
    print(f"{'kernel':<20} {'regret each':>12} {'best found':>11} {'batches':>8} {'distinct':>9}")
    for name, policy in policies.items():
        seeds = [torch.Generator().manual_seed(seed) for seed in range(SEEDS)]
        history = tb.run(policy, environment, PULLS, generator=seeds)
        regret = history.pulls["regret"]
        batches, last = history.batches, history.batches["t"] == PULLS
        best = 1 - batches["simple_regret"][last].mean()
        distinct = batches["distinct_arms"][last].mean()
        print(f"{name:<20} {regret.mean():>12.3f} {best:>11.3f} {len(batches['t']) / SEEDS:>8.0f} {distinct:>9.0f}")


if __name__ == "__main__":
    main()
