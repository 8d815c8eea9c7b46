"""The methods: each updates its posterior with t pulls, scores every arm, and picks.

All methods have the same data, kernel and noise, and nothing is fitted. The exact methods store every pull; SGPR uses the
dictionary as its inducing points. BBKB picks a batch per update, all other methods pick one arm.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import gpytorch
import numpy as np
import torch
from botorch.models import SingleTaskGP
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from torch import Tensor

from scaling.config import BenchmarkConfig, Point
from torchbandits.arms import ArmRows, ArmTable, Lookahead
from torchbandits.arms.rows import Summed
from torchbandits.batching import Global
from torchbandits.posteriors import GaussianProcess
from torchbandits.transfers import to_host

_WIDTH = 2.0  # width of the upper bound, in posterior standard deviations
_CHUNK = 2048  # arms that scikit-learn scores at a time, since its A x t blocks would not fit otherwise
# Chunks of arms of which the fastest one is used. GPyTorch evaluates the covariance among the points that it predicts
# (gpytorch#2736), so that on a CPU small chunks are fastest.
_CHUNKS = (256, 1_024, 4_096, 16_384)


@dataclass(frozen=True)
class Problem:
    """Arms in the unit cube, t pulls of some of them in turn, and rewards."""

    arms: Tensor
    pulled: Tensor
    rewards: Tensor
    lengthscale: float
    noise_std: float

    @staticmethod
    def draw(config: BenchmarkConfig, point: Point) -> Problem:
        """Draw the problem, the same for every method. O(A d + t)."""
        device = config.device
        g = torch.Generator(device).manual_seed(config.seed)
        arms = torch.rand(point.arms, config.dim, generator=g, dtype=torch.float64, device=device)
        own = torch.arange(point.distinct, device=device) * (point.arms // point.distinct)
        pulled = own[torch.arange(point.pulls, device=device) % point.distinct]
        noise = config.noise_std * torch.randn(point.pulls, generator=g, dtype=torch.float64, device=device)
        rewards = torch.sin(3 * arms[pulled].sum(dim=-1)) + noise
        return Problem(arms, pulled, rewards, config.lengthscale, config.noise_std)

    def kernel(self) -> gpytorch.kernels.RBFKernel:
        """Fixed, float64, on the arms' device."""
        kernel = gpytorch.kernels.RBFKernel().to(self.arms)
        kernel.lengthscale = self.arms.new_tensor(self.lengthscale)  # a number would be rounded to float32
        return kernel.requires_grad_(False)


class Contender(ABC):
    """A method to be timed. Its construction on a problem is not timed."""

    @abstractmethod
    def update(self) -> None:
        """Update the posterior with all pulls, and with it the mean and variance of every arm."""

    @abstractmethod
    def pick(self) -> int:
        """Choose arms after `update`, and return their number."""


class SparseTable(Contender):
    """BBKB: a new dictionary and a sweep; then a batch by the global rule, C̃ = 2."""

    def __init__(self, problem: Problem, point: Point, config: BenchmarkConfig) -> None:
        arms, u = problem.arms, point.distinct
        self._posterior = GaussianProcess(
            problem.kernel(), problem.noise_std**2, dim=arms.shape[-1], sparse=True, device=arms.device
        )
        rows = ArmRows(arms, torch.Size())
        self._table = ArmTable(rows, self._posterior, int(config.memory_budget * 2**30))
        counts = torch.bincount(torch.arange(point.pulls) % u, minlength=u).to(arms)
        place = (torch.arange(point.pulls) % u).to(arms.device)
        sums, squares = (torch.zeros_like(counts).index_add_(0, place, v) for v in (problem.rewards, problem.rewards**2))
        pulled = problem.pulled[:u]
        rows.tell_(self._posterior, Summed.of(arms.device, *to_host(pulled, counts, sums, squares)))
        self._dictionary = torch.arange(u, device=arms.device) < point.dictionary
        self._posterior.set_dictionary_(self._dictionary)
        self.kept = self._table.columns.fill(self._posterior.dictionary_rows()[0])

    def update(self) -> None:
        """A new dictionary, its factors, and a sweep of all arms."""
        self._posterior.set_dictionary_(self._dictionary)
        self._table.sweep_()

    def pick(self) -> int:
        """A batch by the global rule."""
        width = torch.full((), _WIDTH, dtype=torch.float64, device=self._table.leverage.device)
        nothing = (
            torch.zeros(0, dtype=torch.int64, device=width.device),
            torch.zeros(0, dtype=torch.float64, device=width.device),
        )
        lookahead = Lookahead(self._table, self._table.mean(), width, None, nothing, None, frozen=True)
        most = torch.tensor(10_000)
        return int((lookahead.pick(Global(ratio_threshold=2.0).meter(lookahead), most) >= 0).sum())


class _Chunked(Contender):
    """A model of GPyTorch with every pull. The arms are scored in chunks of the size that took the least time per arm."""

    @torch.no_grad()
    def __init__(self, problem: Problem, point: Point, config: BenchmarkConfig) -> None:
        self._problem, self._inducing = problem, problem.arms[problem.pulled[: point.dictionary]]
        bounds, seconds = self._bounds(), {}
        for size in _CHUNKS:
            chunk = problem.arms[:size]
            try:
                seconds[size] = min(_seconds(partial(bounds, chunk)) for _ in range(3)) / len(chunk)
            except torch.OutOfMemoryError:
                if not seconds:
                    raise
                break
        self._size = min(seconds, key=seconds.__getitem__)

    @abstractmethod
    def _bounds(self) -> Callable[[Tensor], Tensor]:
        """A new model: a function from arms to their upper bounds."""

    @torch.no_grad()
    def update(self) -> None:
        """A new model, and the best of all arms by their upper bounds."""
        bounds = self._bounds()
        torch.stack([bounds(chunk).amax() for chunk in self._problem.arms.split(self._size)]).argmax()

    def pick(self) -> int:
        """The arm that `update` has found."""
        return 1


class BoTorch(_Chunked):
    """`SingleTaskGP`."""

    def _bounds(self) -> Callable[[Tensor], Tensor]:
        p = self._problem
        Y = p.rewards.unsqueeze(-1)
        noise = torch.full_like(Y, p.noise_std**2)
        model = SingleTaskGP(p.arms[p.pulled], Y, noise, covar_module=p.kernel(), outcome_transform=None)

        def bounds(arms: Tensor) -> Tensor:
            f = model.posterior(arms)
            return f.mean + _WIDTH * f.variance.sqrt()

        return bounds


def _seconds(work: Callable[[], object]) -> float:
    """Seconds of a call, on whichever device."""
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


class _Inducing(gpytorch.models.ExactGP):
    def __init__(self, problem: Problem, inducing: Tensor, likelihood: gpytorch.likelihoods.GaussianLikelihood) -> None:
        super().__init__(problem.arms[problem.pulled], problem.rewards, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.InducingPointKernel(problem.kernel(), inducing.clone(), likelihood)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class SGPR(_Chunked):
    """GPyTorch's `InducingPointKernel`."""

    def _bounds(self) -> Callable[[Tensor], Tensor]:
        p = self._problem
        likelihood = gpytorch.likelihoods.GaussianLikelihood().to(p.arms)
        likelihood.noise = p.arms.new_tensor(p.noise_std**2)
        model = _Inducing(p, self._inducing, likelihood).to(p.arms).eval()

        def bounds(arms: Tensor) -> Tensor:
            f = model(arms)
            return f.mean + _WIDTH * f.variance.clamp_min(0).sqrt()

        return bounds


class ScikitLearn(Contender):
    """`GaussianProcessRegressor` with every pull; the arms are scored chunk by chunk."""

    def __init__(self, problem: Problem, point: Point, config: BenchmarkConfig) -> None:
        self._problem = problem

    def update(self) -> None:
        """A new model, and the best of all arms by their upper bounds."""
        p = self._problem
        arms, pulled = p.arms.cpu().numpy(), p.pulled.cpu().numpy()
        model = GaussianProcessRegressor(RBF(p.lengthscale), alpha=p.noise_std**2, optimizer=None)
        model.fit(arms[pulled], p.rewards.cpu().numpy())
        best = []
        for start in range(0, len(arms), _CHUNK):
            mean, std = model.predict(arms[start : start + _CHUNK], return_std=True)
            best.append(np.max(mean + _WIDTH * std))
        np.argmax(best)

    def pick(self) -> int:
        """The arm that `update` has found."""
        return 1


CONTENDERS: dict[str, Callable[[Problem, Point, BenchmarkConfig], Contender]] = {
    "torchbandits": SparseTable,
    "botorch": BoTorch,
    "sgpr": SGPR,
    "sklearn": ScikitLearn,
}
