"""Random problems for package and oracles: arms, kernels in GPyTorch and in NumPy, and rewards from a fixed table.

`POLICIES` is the registry of the law tests, which all run on every policy in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from torch import Tensor

import torchbandits as tb

NOISE_STD, NORM_BOUND, DELTA = 0.1, 1.0, 0.1

# For tests whose kernel or noise deliberately does not fit the data; tests/test_scale.py tests these warnings.
OFF_SCALE = pytest.mark.filterwarnings(
    "ignore:.*(the noise, standard deviation|the kernel's variance|the rewards (have mean|differ by)|the dictionary holds one "
    "point|no arm has learned|to the kernel all arms):torchbandits.errors.DiagnosticWarning"
)

# Name -> kernel(lengthscale) in GPyTorch and in NumPy.
KERNELS: dict[str, tuple[Callable[[float], gpytorch.kernels.Kernel], Callable[[float], oracles.KernelFunction]]] = {
    "rbf": (lambda ell: _with_lengthscale(gpytorch.kernels.RBFKernel(), ell), lambda ell: oracles.rbf(ell)),
    "matern12": (
        lambda ell: _with_lengthscale(gpytorch.kernels.MaternKernel(0.5), ell),
        lambda ell: oracles.matern(0.5, ell),
    ),
    "matern32": (
        lambda ell: _with_lengthscale(gpytorch.kernels.MaternKernel(1.5), ell),
        lambda ell: oracles.matern(1.5, ell),
    ),
    "matern52": (
        lambda ell: _with_lengthscale(gpytorch.kernels.MaternKernel(2.5), ell),
        lambda ell: oracles.matern(2.5, ell),
    ),
    "linear": (lambda ell: _linear(1 / ell**2), lambda ell: oracles.linear(1 / ell**2)),  # rank d: K_S is singular
    "scaled": (
        lambda ell: _scaled(_with_lengthscale(gpytorch.kernels.RBFKernel(), ell), 2.5),
        lambda ell: oracles.rbf(ell, 2.5),
    ),
}


def _with_lengthscale(kernel: gpytorch.kernels.Kernel, lengthscale: float) -> gpytorch.kernels.Kernel:
    kernel = kernel.double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)  # a Python float would be rounded to float32
    return kernel


def _scaled(kernel: gpytorch.kernels.Kernel, outputscale: float) -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.ScaleKernel(kernel).double()
    kernel.outputscale = torch.tensor(outputscale, dtype=torch.float64)
    return kernel


def _linear(variance: float) -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.LinearKernel().double()
    kernel.variance = torch.tensor(variance, dtype=torch.float64)
    return kernel


def kernel_pair(name: str, lengthscale: float = 0.4) -> tuple[gpytorch.kernels.Kernel, oracles.KernelFunction]:
    theirs, ours = KERNELS[name]
    return theirs(lengthscale), ours(lengthscale)


def rbf(lengthscale: float = 0.4) -> gpytorch.kernels.Kernel:
    return kernel_pair("rbf", lengthscale)[0]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniforms(seed: int) -> Callable[[int], np.ndarray]:
    """The uniforms that a bandit with `generator(seed)` draws: one per distinct pulled arm, after each tell."""
    g = generator(seed)
    return lambda u: torch.rand(u, generator=g, dtype=torch.float64).numpy()


@dataclass
class Problem:
    """Arms in the unit cube, a smooth function on them, and a table of noise indexed by the number of the pull."""

    seed: int
    a: int = 80
    d: int = 2
    duplicates: int = 0
    near_duplicates: int = 0
    distance: float = 1e-7
    noise_std: float = NOISE_STD
    arms: np.ndarray = field(init=False)
    f: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.arms = rng.uniform(size=(self.a, self.d))
        # Copies come from random arms and are placed at random indices, before and after their originals.
        places = rng.permutation(self.a)
        sources, places = places[: self.a // 2], places[self.a // 2 :]
        for j in range(self.duplicates):
            self.arms[places[j]] = self.arms[sources[j]]
        for j in range(self.duplicates, self.duplicates + self.near_duplicates):
            step = rng.normal(size=self.d)
            self.arms[places[j]] = self.arms[sources[j]] + self.distance * step / np.linalg.norm(step)
        centres, weights = rng.uniform(size=(10, self.d)), rng.uniform(-1, 1, size=10)
        self.f = oracles.rbf(0.3)(self.arms, centres) @ weights
        self.noise = self.noise_std * rng.normal(size=5_000)

    def reward(self, pull: int, arm: int) -> float:
        return float(self.f[arm] + self.noise[pull])

    @property
    def tensor(self) -> Tensor:
        return torch.as_tensor(self.arms)

    def rewards(self, first_pull: int, index: Tensor) -> Tensor:
        return torch.tensor([self.reward(first_pull + j, int(i)) for j, i in enumerate(index)], dtype=torch.float64)

    def play(self, bandit: Any, horizon: int, **ask: Any) -> list[list[int]]:
        """Ask and tell until `horizon` pulls are told; callable values of `ask` are called with the number of the batch."""
        picks: list[list[int]] = []
        told = 0
        while told < horizon:
            options = {k: v(len(picks)) if callable(v) else v for k, v in ask.items()}
            cap = min(horizon - told, options.pop("limit", horizon))
            selection = bandit.ask(limit=cap, **options)
            bandit.tell(selection, self.rewards(told, selection.index))
            picks.append(selection.index.tolist())
            told += len(selection)
            assert len(selection) > 0
        return picks


PolicyMaker = Callable[[gpytorch.kernels.Kernel], Any]
COMMON = {"noise_std": NOISE_STD, "delta": DELTA}
BOUNDED = COMMON | {"norm_bound": NORM_BOUND}
BATCH_RULES = ["global", "local", "global_then_local", "product", "exact_ratio"]
POLICIES: dict[str, PolicyMaker] = {
    "gp_ucb": lambda kernel: tb.gp_ucb(kernel, **COMMON),
    "igp_ucb": lambda kernel: tb.igp_ucb(kernel, **BOUNDED),
    "gp_bucb": lambda kernel: tb.gp_bucb(kernel, ratio_threshold=1.5, **BOUNDED),
    "bkb": lambda kernel: tb.bkb(kernel, oversampling=2.0, **BOUNDED),
    "batch_bkb": lambda kernel: tb.batch_bkb(kernel, oversampling=2.0, ratio_threshold=1.5, **BOUNDED),
    "uniform": lambda kernel: tb.uniform(),
}


def whole(draws: Iterable[Tensor]) -> Tensor:
    """Concatenate draws of the posterior that come in pieces to `batch_shape x q x A`."""
    return torch.cat(list(draws), dim=-2)
