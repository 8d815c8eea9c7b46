"""The widths of 2011 and 2024: computed by hand, ordered by size, and computed from the data as in their proofs. Coverage is
tested by guarantee 4."""

from __future__ import annotations

import math
from dataclasses import replace

import gpytorch
import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from problems import Problem, generator, kernel_pair

import torchbandits as tb
from torchbandits import errors
from torchbandits.botorch import BanditModel, PolicyAcquisition
from torchbandits.types import Progress


def progress(log_det: float) -> Progress:
    one = torch.ones((), dtype=torch.float64)
    return Progress(one, one, 10, 2, log_det * one, one, one, one, one, 0 * one)


def test_by_hand():
    # 2 + 0.1/0.5 √(3 + 2 log 10) = 2 + 0.2 · 2.757748
    assert float(tb.widths.SelfNormalized(0.1, 2.0, 0.1, 0.25)(progress(3.0))) == pytest.approx(2.551549, rel=1e-6)
    # √(4 + 0.01/0.25 (3 + 2 log 10)) = √4.304207
    assert float(tb.widths.MartingaleMixture(0.1, 2.0, 0.1, 0.25)(progress(3.0))) == pytest.approx(2.074658, rel=1e-6)
    # 0.25 · 1000^(2/(3 + 4)) = 0.25 · 7.196857
    assert tb.widths.matern_regularization(1.5, 2, 1000, noise_std=0.5) == pytest.approx(1.799214, rel=1e-6)
    with pytest.raises(errors.ArgumentError):
        tb.widths.matern_regularization(0.0, 2, 1000)


def test_a_growing_width_by_hand():
    one = torch.ones(4, dtype=torch.float64)
    pulls, points = torch.tensor([0.0, 40.0, 100.0, 1000.0]).double(), torch.tensor([0, 40, 20, 10])
    rows = Progress(pulls + 1, pulls, 10, 2, *[one] * 6, points=points)
    # Up to four repeats per point nothing grows; then 99 repeats: √(2.5² + 2 log(99 / 4)) = √12.667650
    assert tb.widths.Growing(2.5)(rows).tolist() == pytest.approx([2.5, 2.5, 2.5, 3.559164], rel=1e-6)
    # √(1 + 2 log 4) = √3.772589, √(1 + 2 log 99) = √10.190240
    assert tb.widths.Growing(1.0, after=1.0)(rows).tolist() == pytest.approx([1, 1, 1.942316, 3.192216], rel=1e-6)
    assert tb.widths.Growing(2.5)(replace(rows, points=None)).tolist() == [2.5] * 4
    for bad in ({"value": -1.0}, {"value": 1.0, "after": 0.0}, {"value": 1.0, "after": math.nan}):
        with pytest.raises(errors.ArgumentError, match=list(bad)[-1]):
            tb.widths.Growing(**bad)


def test_a_growing_width_counts_the_points_of_each_batch_row_and_of_a_model():
    torch.manual_seed(0)
    arms, kernel = torch.rand(30, 2).double(), gpytorch.kernels.RBFKernel().double()
    policy = tb.gp_ucb(kernel, noise_std=0.1, width=tb.widths.Growing(2.0, after=1.0))
    bandit = tb.Bandit(policy, arms.expand(2, -1, -1), generator=[generator(row) for row in range(2)])
    index = torch.stack([torch.zeros(12), torch.arange(12)]).long()
    bandit.observe(index, torch.ones(2, 12).double(), torch.rand(2, 12).double())
    # One point with eleven repeats, and twelve points without.
    width = bandit.width.tolist()
    assert width == pytest.approx([math.sqrt(4 + 2 * math.log(11)), 2.0])
    model = bandit.model()
    assert policy.confidence(model.progress(policy.confidence.reads)).tolist() == pytest.approx(width)
    one = BanditModel(arms[index[0]], torch.rand(12, 1).double(), kernel=kernel, noise_std=0.1)
    assert float(policy.confidence(one.progress(policy.confidence.reads))) == pytest.approx(width[0])
    assert one.progress().points is None
    upper = PolicyAcquisition(SingleTaskGP(arms[:12], torch.rand(12, 1).double()), policy)
    with torch.no_grad():
        posterior = upper.model.posterior(arms[20:21])
        assert float(upper(arms[20:21])) == pytest.approx(float(posterior.mean + 2 * posterior.variance.sqrt()))


@pytest.mark.parametrize("log_det", [0.0, 0.3, 5.0, 200.0])
@pytest.mark.parametrize(("norm", "delta", "lam"), [(0.0, 0.5, 0.01), (1.0, 0.1, 1.0), (7.0, 1e-4, 30.0)])
def test_each_is_tighter_than_the_ones_before(log_det: float, norm: float, delta: float, lam: float):
    names = ("MartingaleMixture", "SelfNormalized", "IGP")
    values = [float(getattr(tb.widths, name)(0.1, norm, delta, lam)(progress(log_det))) for name in names]
    assert values[0] <= values[1] * (1 + 1e-12)  # equal for a norm of 0
    assert values[1] < values[2]
    assert values[1] <= float(tb.widths.KernelUCB(0.1, norm, delta, lam)(progress(log_det)))


@pytest.mark.parametrize("seed", range(5))
def test_the_mixture_is_what_its_proof_computes_from_the_data(seed: int):
    """The radius of the ellipsoid {f: Σ (y − f)² ≤ R², |f| ≤ F} around the ridge estimate, with R² the mixture's own
    yᵀ(I + cK/ξ²)⁻¹y + ξ² log det(I + cK/ξ²) + 2ξ² log(1/δ) and c = ξ²/λ: the data cancel."""
    noise, norm, delta, lam = 0.1, 1.3, 0.05, 0.4
    problem, kernel = Problem(seed=seed), kernel_pair("matern32")[1]
    rng = np.random.default_rng(seed)
    x = rng.integers(problem.a, size=30)
    y = problem.f[x] + noise * rng.normal(size=30)
    K, c = kernel(problem.arms[x], problem.arms[x]), noise**2 / lam
    M = np.eye(30) + c * K / noise**2
    log_det = np.linalg.slogdet(M)[1]
    R2 = y @ np.linalg.solve(M, y) + noise**2 * log_det + 2 * noise**2 * math.log(1 / delta)
    fitted = K @ np.linalg.solve(K + lam * np.eye(30), y)
    radius2 = R2 + lam * norm**2 - y @ (y - fitted)  # of |f − μ|² in the norm of V
    width = tb.widths.MartingaleMixture(noise, norm, delta, lam)(progress(float(log_det)))
    assert float(width) == pytest.approx(math.sqrt(radius2 / lam), rel=1e-9)


# ------------------------------------------------------------------------- a width of one's own


class LogTime(tb.widths.Width):
    def __call__(self, progress: Progress) -> torch.Tensor:
        return torch.log(2 + progress.pulls)


class LogTimeAnywhere(LogTime):
    @property
    def reads(self) -> frozenset[str]:
        return frozenset()


class OneNumber(tb.widths.Width):
    def __call__(self, progress: Progress) -> torch.Tensor:
        return 2.0  # type: ignore[return-value]


class TwoRows(tb.widths.Width):
    def __call__(self, progress: Progress) -> torch.Tensor:
        return torch.ones(2, dtype=torch.float64)


def test_a_width_of_one_s_own_in_a_box_says_what_it_reads():
    """A width that counts nothing was refused with the words that it counts the arms."""
    box, (kernel, _) = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64), kernel_pair("rbf", 0.4)
    with pytest.raises(errors.UnsupportedError, match=r"LogTime may count the arms .* a property `reads`"):
        tb.Bandit(tb.gp_ucb(kernel, noise_std=0.1, width=LogTime()), bounds=box)
    with pytest.raises(errors.UnsupportedError, match="Srinivas counts the arms"):
        tb.Bandit(tb.gp_ucb(kernel, noise_std=0.1), bounds=box)
    picks = []
    for domain in ({"bounds": box}, {"arms": torch.rand(9, 2, dtype=torch.float64)}):
        bandit = tb.Bandit(tb.gp_ucb(kernel, noise_std=0.1, width=LogTimeAnywhere()), **domain)
        picks.append(len(bandit.ask()))
        assert float(bandit.width) == pytest.approx(math.log(3))
    assert picks == [1, 1]


@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize(("width", "got"), [(OneNumber(), "got float"), (TwoRows(), r"got \(2,\)")])
def test_a_width_of_another_shape_is_named(width: tb.widths.Width, got: str):
    kernel, _ = kernel_pair("rbf", 0.4)
    bandit = tb.Bandit(tb.gp_ucb(kernel, noise_std=0.1, width=width), torch.rand(9, 2, dtype=torch.float64))
    with pytest.raises(errors.ShapeError, match=rf"{type(width).__name__} must give a tensor .*{got}"):
        bandit.ask()


class NoNumber(tb.widths.Width):
    """A width of a user whose formula fails."""

    def __call__(self, progress):
        return torch.full_like(progress.pulls, torch.nan)


def test_an_error_names_a_width_that_is_no_number():
    arms = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bandit = tb.Bandit(tb.gp_ucb(kernel_pair("rbf")[0], noise_std=0.1, width=NoNumber()), arms)
    with pytest.raises(errors.NumericalError, match="width is NaN"):
        bandit.tell(torch.tensor([3]), torch.tensor([0.5], dtype=torch.float64))
    assert bandit.pulls == 0
