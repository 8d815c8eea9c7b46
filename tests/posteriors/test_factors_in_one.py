"""Factors of several batch rows in few operations are the usual ones; where they may not be accurate there are none."""

from __future__ import annotations

import pytest
import torch
from emulated_device import emulated_device
from problems import generator, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits.kernels import kernel_matrix
from torchbandits.linalg import MOST_UNEVEN
from torchbandits.posteriors import GaussianProcess
from torchbandits.posteriors.factors import Dictionary, Factors, FactorsInOne

LAMBDA = 0.04


def process(lengths: list[int] | None = None, spread: float = 1.0, heavy: float = 1.0) -> GaussianProcess:
    """Two batch rows with 12 and 9 points, and dictionaries of the given lengths."""
    g = generator(0)
    posterior = GaussianProcess(rbf(0.8), LAMBDA, dim=2, batch_shape=(2,), sparse=True)
    points = spread * torch.rand(2, 12, 2, generator=g, dtype=torch.float64)
    told = torch.arange(12) < torch.tensor([[12], [9]])
    rows = posterior.append_(points, told)
    counts = torch.randint(1, 5, (2, 12), generator=g).double()
    counts[0, 0] = heavy
    posterior.add_(rows, torch.where(told, counts, 0.0), torch.where(told, points.sum(dim=-1) * counts, 0.0), counts)
    return posterior.set_dictionary_(torch.arange(12) < torch.tensor(lengths or [7, 4]).unsqueeze(-1))


def in_one(posterior: GaussianProcess) -> FactorsInOne | None:
    rows, mask = posterior.dictionary_rows()
    statistics = posterior.statistics
    K_mu = kernel_matrix(posterior.kernel, statistics.at(rows), statistics.points)
    dictionary = Dictionary(posterior.kernel, LAMBDA, statistics.points, rows, mask)
    return FactorsInOne.of(dictionary, statistics, posterior.targets(), K_mu)


@pytest.mark.parametrize("lengths", [[7, 4], [12, 9], [5, 5]])
def test_factors_in_one_are_the_usual_ones(lengths: list[int]):
    posterior = process(lengths)
    expected, found = posterior.fit(), in_one(posterior)
    assert isinstance(expected, Factors)
    assert found is not None
    own = found.factors()
    for name in ("rows", "mask", "features"):
        torch.testing.assert_close(getattr(own, name), getattr(expected, name), rtol=1e-9, atol=1e-12)
    for name in ("matrix", "root", "log_det", "current_factor"):
        usual = getattr(expected.regression.precision, name)
        torch.testing.assert_close(getattr(own.regression.precision, name), usual, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(own.regression.coefficients, expected.regression.coefficients, rtol=1e-8, atol=1e-10)
    x = torch.rand(2, 20, 2, generator=generator(1), dtype=torch.float64)
    torch.testing.assert_close(own.embedding(x), expected.embedding(x), rtol=1e-8, atol=1e-10)

    def of(N: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        return N @ N.mT, a

    sweep, usual = found.sweep(), expected.sweep(posterior.statistics.weights)
    assert sweep.lower is None
    for left, right in zip(of(sweep.N, sweep.a), of(usual.N, usual.a), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-6 * float(right.abs().max()))


def test_there_are_none_where_the_kernel_matrix_is_singular_or_has_a_nan():
    assert in_one(process(spread=1e-9)) is None
    broken = process()
    broken.statistics.points = broken.statistics.points.clone()
    broken.statistics.points[1, 0] = torch.nan
    assert in_one(broken) is None


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")
@pytest.mark.parametrize("heavy", [1.0, 2 * MOST_UNEVEN])
@pytest.mark.parametrize("spread", [1.0, 1e-5])
def test_batch_rows_on_a_device_have_the_marginals_of_the_host(spread: float, heavy: float):
    g = generator(3)
    arms = spread * torch.rand(50, 2, generator=g, dtype=torch.float64)
    told = torch.tensor([[3, 8, 20, 3, 11, 40], [1, 1, 1, 2, 2, 30]])
    counts = torch.ones(2, 6, dtype=torch.float64)
    counts[0, 1] = heavy
    sums = counts * torch.randn(2, 6, generator=g, dtype=torch.float64)

    def marginals(device: str) -> tuple[Tensor, Tensor]:
        policy = tb.bkb(rbf(0.8), noise_std=0.2)
        bandit = tb.Bandit(policy, arms.to(device), generator=[generator(row) for row in range(2)])
        bandit.observe(told.to(device), counts.to(device), sums.to(device))
        for step in range(3):
            selection = bandit.ask()
            bandit.tell(selection, (0.1 * step + selection.points.sum(dim=-1)).to(device))
        state = bandit.loop.state
        return state.arm_mean().cpu(), state.arm_leverage().cpu()

    with emulated_device():
        there = marginals("cuda")
    for own, expected in zip(there, marginals("cpu"), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-7)
