"""The contract of posteriors: exact, with a dictionary, and on finite features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpytorch
import pytest
import torch
from problems import KERNELS, generator, kernel_pair, rbf
from torch import Tensor

from torchbandits.arms import matches
from torchbandits.embeddings import Identity, RandomFourier
from torchbandits.posteriors import Domain, GaussianProcess, PartitionedProcess
from torchbandits.posteriors.cells import SIZE
from torchbandits.testing import PosteriorContract
from torchbandits.testing.play import Problem

LAMBDA = 0.01


def exact(kernel: gpytorch.kernels.Kernel, **options: Any) -> Callable[[tuple[int, ...]], GaussianProcess]:
    return lambda shape: GaussianProcess(kernel, LAMBDA, dim=2, batch_shape=shape, **options)


def on_features(kernel: gpytorch.kernels.Kernel, features: Any) -> Callable[[tuple[int, ...]], GaussianProcess]:
    arms = torch.zeros(1, 2, dtype=torch.float64)

    def made(shape: tuple[int, ...]) -> GaussianProcess:
        generators = [generator(1) for _ in range(torch.Size(shape).numel())]  # the same features in each row
        finite = features.build(kernel, arms, generators, torch.Size(shape))
        return GaussianProcess(kernel, LAMBDA, dim=2, batch_shape=shape, finite=finite)

    return made


def linear() -> gpytorch.kernels.Kernel:
    return kernel_pair("linear")[0]


POSTERIORS = {
    **{name: exact(kernel_pair(name)[0]) for name in KERNELS},
    "prior mean": exact(rbf(), prior_mean=0.7),
    "estimated prior mean": exact(rbf(), prior_mean="estimate"),
    "dictionary of all points": exact(rbf(), sparse=True),
    "dictionary of a few points": exact(rbf(), sparse=True),
    "random Fourier features": on_features(rbf(), RandomFourier(200)),
    "linear features": on_features(linear(), Identity()),
}


@pytest.mark.sweep(6)
class TestEveryPosterior(PosteriorContract):
    @pytest.fixture(autouse=True, params=POSTERIORS)
    def of_kind(self, request: pytest.FixtureRequest):
        self.kind = request.param

    def posterior(self, batch_shape: tuple[int, ...] = ()) -> GaussianProcess:
        return POSTERIORS[self.kind](batch_shape)

    def learn(self, posterior: Any, points: Tensor, *pulls: Tensor) -> None:
        super().learn(posterior, points, *pulls)
        if posterior.sparse:
            few = posterior.statistics.points[..., 0] < 0.5  # chosen by position, not by the order of pulls
            posterior.set_dictionary_(few if self.kind.endswith("few points") else torch.ones_like(few))


class TestPartitioned(PosteriorContract):
    """Four cells, which split into fourteen while pulls are learned, and not later, because a split may raise a variance."""

    arms = torch.cat([Problem(seed=2, num_arms=10).arms, Problem(seed=3, num_arms=20).arms])

    def posterior(self, batch_shape: tuple[int, ...] = ()) -> PartitionedProcess:
        corners = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        domain = Domain(rbf(), self.arms, None, torch.Size(batch_shape), nu=1.5, horizon=4, bounds=corners)
        return PartitionedProcess(domain, LAMBDA, 1 << 24)

    def learn(self, posterior: Any, points: Tensor, counts: Tensor, *sums: Tensor) -> None:
        known = matches(posterior.statistics.points, points)
        appended = posterior.statistics.append_(points, known < 0)
        posterior.statistics.add_(torch.where(known < 0, appended, known), counts, *sums)
        arms = self.arms.expand(*points.shape[:-2], -1, -1)
        posterior.condition_(matches(arms, points), counts, sums[0])

    def test_cells_split(self):
        before, after = (int((p.cells.layout[SIZE] > 0).sum()) for p in (self.posterior(), self._learned()))
        assert (before, after) == (4, 14)
