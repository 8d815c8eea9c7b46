"""The maximiser over a box: results against dense grids and known maxima, inside the box, and independent of other rows."""

from __future__ import annotations

import math
import warnings
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from botorch.test_functions import Branin, Hartmann
from problems import NOISE_STD, generator, kernel_pair, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits import errors
from torchbandits.optimize import optimize_continuous

BOX = torch.tensor([[-0.5, 0.2], [1.0, 1.2]], dtype=torch.float64)


def surface(
    seed: int, dim: int, kernel: gpytorch.kernels.Kernel, acquisition: str = "ucb", pulls: int = 25
) -> tuple[Any, Tensor]:
    """The score of a posterior given random rewards, with many maxima, and the pulled points."""
    g = generator(seed)
    points = torch.rand(pulls, dim, generator=g, dtype=torch.float64)
    policy = tb.gp_ucb(kernel, noise_std=NOISE_STD, acquisition=acquisition, width=tb.widths.Constant(2.0))
    bandit = tb.Bandit(policy, points)
    bandit.tell(torch.arange(pulls), torch.randn(pulls, generator=g, dtype=torch.float64))
    return (lambda x: policy.scores_at(bandit.loop.state, x)), points


def unit(dim: int) -> Tensor:
    return torch.stack([torch.zeros(dim), torch.ones(dim)]).double()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("acquisition", ["ucb", "ei", "pi"])
@pytest.mark.parametrize("kernel", ["rbf", "matern52", "matern12"])
@pytest.mark.parametrize("dim", [1, 2])
def test_the_maximum_is_that_of_a_dense_grid(dim: int, kernel: str, acquisition: str):
    side = {1: 20_001, 2: 201}[dim]
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, side, dtype=torch.float64)] * dim).reshape(-1, dim)
    for seed in range(3):
        score, points = surface(seed, dim, kernel_pair(kernel, 0.1)[0], acquisition)
        x, value = optimize_continuous(score, unit(dim), points=points, generator=generator(seed))
        with torch.no_grad():
            dense = torch.cat([score(part) for part in grid.split(5000)])
            assert float(score(x.unsqueeze(0))) == pytest.approx(float(value), abs=1e-9)
        assert float(value) >= float(dense.max()) - 1e-9
        assert float((grid[dense.argmax()] - x).abs().max()) <= 2 / (side - 1) or float(value) > float(dense.max()) + 1e-9


@pytest.mark.parametrize(("function", "best", "tolerance"), [(Branin, 0.397887, 1e-5), (Hartmann, -3.32237, 1e-4)])
def test_known_maxima(function: Any, best: float, tolerance: float):
    f = function(negate=True).double()
    x, value = optimize_continuous(f, f.bounds.double(), generator=generator(0))
    assert float(value) == pytest.approx(-best, abs=tolerance)
    assert float(f(x)) == float(value)


def test_never_worse_than_the_sweep_and_exactly_in_the_box():
    """Scores that mislead gradient ascent: a comb, a cliff, an edge that rounding could cross, a slope out of the box."""
    low, high = torch.tensor([[0.1, 1 / 3], [0.7, 1e8 / 3]], dtype=torch.float64)
    box = torch.stack([low, high])
    scores = {
        "comb": lambda x: torch.sin(500 * x).sum(dim=-1),
        "cliff": lambda x: torch.sigmoid(1e4 * (x[..., 0] - 0.3)) - x[..., 0],
        "out": lambda x: x.sum(dim=-1),
        "in": lambda x: -x.sum(dim=-1),
        "flat": lambda x: 0 * x.sum(dim=-1) + 3.0,
    }
    for name, score in scores.items():
        given = low + torch.rand(50, 2, generator=generator(1), dtype=torch.float64) * (high - low)
        x, value = optimize_continuous(score, box, points=given, generator=generator(0), num_raw=64)
        assert bool(((x >= low) & (x <= high)).all()), name
        assert float(value) >= float(score(given).max()), name
        if name == "out":
            assert torch.equal(x, high)
        if name == "in":
            assert torch.equal(x, low)
        if name == "flat":
            assert torch.equal(x, given[0]), "the first of equals"
    x, _ = optimize_continuous(scores["flat"], box)
    assert torch.equal(x, torch.lerp(low, high, 0.5)), "the centre where no point is given"


def test_points_that_are_padding_are_no_points():
    score, points = surface(2, 2, rbf(0.1))
    padded = torch.cat([points, torch.full((30, 2), math.nan, dtype=torch.float64)])
    one, other = (optimize_continuous(score, unit(2), points=p, generator=generator(0)) for p in (points, padded))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_near_equal_maxima_are_all_looked_at():
    """Sixteen bumps, one of which is slightly higher: most of the highest points of the sweep are around other bumps."""
    centres = torch.cartesian_prod(*[torch.linspace(0.1, 0.9, 4, dtype=torch.float64)] * 2)
    for best in range(16):
        height = 1 + 1e-4 * torch.eye(16, dtype=torch.float64)[best]

        def score(points: Tensor, h: Tensor = height) -> Tensor:
            return (h * torch.exp(-200 * (points.unsqueeze(-2) - centres).square().sum(dim=-1))).amax(dim=-1)

        x, value = optimize_continuous(score, unit(2), num_restarts=16)
        assert float(value) == pytest.approx(1.0001, abs=1e-9)
        torch.testing.assert_close(x, centres[best], rtol=0, atol=1e-5)


def test_a_feature_with_equal_bounds_is_held():
    box = torch.tensor([[0.0, 0.3, 0.0], [1.0, 0.3, 1.0]], dtype=torch.float64)
    peak = torch.tensor([0.2, 0.9, 0.7], dtype=torch.float64)
    x, _ = optimize_continuous(lambda p: -(p - peak).square().sum(dim=-1), box)
    torch.testing.assert_close(x, torch.tensor([0.2, 0.3, 0.7], dtype=torch.float64), rtol=0, atol=1e-6)
    assert float(x[1]) == 0.3


def test_given_points_outside_are_clamped_and_looked_at():
    """A given point finds a spike that the sweep would miss."""
    spike = torch.tensor([0.123456, 1.0], dtype=torch.float64)

    def score(points: Tensor) -> Tensor:
        return torch.exp(-1e9 * (points - spike).square().sum(dim=-1))

    _, missed = optimize_continuous(score, BOX)
    x, value = optimize_continuous(score, BOX, points=spike.reshape(1, 2))
    assert float(missed) < 0.5
    assert float(value) == 1.0
    assert torch.equal(x, spike)
    x, _ = optimize_continuous(lambda p: p[..., 0], BOX, points=torch.full((1, 2), 99.0, dtype=torch.float64))
    assert float(x[0]) == 1.0


def test_the_scale_of_score_and_box_does_not_matter():
    score, _ = surface(4, 2, rbf(0.15))
    x, _ = optimize_continuous(score, unit(2), generator=generator(0))
    for factor, shift, size in ((1e-6, 0.0, 1.0), (1e6, 1e3, 1.0), (1.0, 0.0, 1e6), (1e3, -5.0, 1e-6)):
        other, _ = optimize_continuous(
            lambda p, f=factor, s=shift, z=size: f * score(p / z) + s, size * unit(2), generator=generator(0)
        )
        assert float((other / size - x).abs().max()) < 1e-4


@pytest.mark.sweep(1)
@pytest.mark.parametrize("acquisition", ["ucb", "ei"])
def test_a_row_is_the_same_whatever_the_others_hold(acquisition: str):
    """Rows have separate boxes, posteriors and generators. The result of a row is bit-identical with other rows of the same
    shapes, and equal up to rounding to a run of that row alone."""
    shapes = torch.Size([3])
    kernel = gpytorch.kernels.MaternKernel(2.5, batch_shape=shapes).double()
    kernel.lengthscale = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64).reshape(3, 1, 1)
    points = torch.rand(20, 2, generator=generator(3), dtype=torch.float64)
    boxes = torch.stack([unit(2), unit(2) / 2, unit(2) + 0.3])
    policy = tb.gp_ucb(kernel, noise_std=NOISE_STD, acquisition=acquisition, width=tb.widths.Constant(2.0))
    rewards = torch.randn(2, 3, 20, generator=generator(5), dtype=torch.float64)
    rewards[1, 0] = rewards[0, 0]  # the other rows are different problems, with different numbers of steps
    found = []
    for values in rewards:
        bandit = tb.Bandit(policy, points, generator=[generator(s) for s in range(3)])
        bandit.tell(torch.arange(20).expand(3, -1), values)
        generators = [generator(10), generator(int(values.sum().abs() * 1e6)), generator(12)]
        found.append(optimize_continuous(lambda p, b=bandit: policy.scores_at(b.loop.state, p), boxes, generator=generators))
    (x, value), (x_2, value_2) = found
    assert x.shape == (3, 2)
    assert value.shape == (3,)
    assert torch.equal(x[0], x_2[0])
    assert torch.equal(value[0], value_2[0])
    assert not torch.equal(x[1], x_2[1])
    for row, ell in enumerate((0.1, 0.2, 0.4)):
        own = tb.gp_ucb(
            kernel_pair("matern52", ell)[0], noise_std=NOISE_STD, acquisition=acquisition, width=tb.widths.Constant(2.0)
        )
        single = tb.Bandit(own, points)
        single.tell(torch.arange(20), rewards[1, row])
        seeds = [10, int(rewards[1].sum().abs() * 1e6), 12]
        alone, best = optimize_continuous(
            lambda p, b=single, o=own: o.scores_at(b.loop.state, p), boxes[row], generator=generator(seeds[row])
        )
        torch.testing.assert_close(x_2[row], alone, rtol=0, atol=1e-5)
        torch.testing.assert_close(value_2[row], best, rtol=0, atol=1e-9)


def test_the_generator_alone_decides():
    score, points = surface(1, 3, rbf(0.2))
    state = torch.random.get_rng_state()
    one, two = (optimize_continuous(score, unit(3), points=points, generator=generator(4)) for _ in range(2))
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator is left alone"
    assert all(
        torch.equal(a, b) for a, b in zip(optimize_continuous(score, unit(3)), optimize_continuous(score, unit(3)), strict=True)
    )


def test_float32_bounds_and_warnings_of_the_score():
    x, value = optimize_continuous(lambda p: -(p - 0.3).square().sum(dim=-1), BOX.float())
    assert x.dtype == value.dtype == torch.float64
    assert float((x - 0.3).abs().max()) < 1e-6

    def loud(points: Tensor) -> Tensor:
        if points.requires_grad:
            warnings.warn("look", UserWarning, stacklevel=1)
        return points.sum(dim=-1)

    with pytest.warns(UserWarning, match="look"):
        optimize_continuous(loud, BOX, max_iterations=2)


@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize(
    ("error", "bounds"),
    [
        (errors.ShapeError, torch.zeros(3, 2)), (errors.ShapeError, torch.zeros(2)), (errors.ShapeError, "box"),
        (errors.ShapeError, torch.zeros(2, 0)), (errors.NonFiniteError, torch.tensor([[0.0], [math.inf]])),
        (errors.ArgumentError, torch.tensor([[1.0], [0.0]])), (errors.ShapeError, torch.ones(2, 2, dtype=torch.bool)),
        (errors.NonFiniteError, torch.tensor([[-1e308], [1e308]], dtype=torch.float64)),
    ],
)  # fmt: skip
def test_bad_bounds(error: type[Exception], bounds: Any):
    with pytest.raises(error, match="bound"):
        optimize_continuous(lambda p: p.sum(dim=-1), bounds)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_other_bad_input():
    def score(points: Tensor) -> Tensor:
        return points.sum(dim=-1)

    for options in ({"num_raw": 0}, {"num_restarts": 1.5}, {"max_iterations": True}):
        with pytest.raises(errors.ArgumentError, match="whole number"):
            optimize_continuous(score, BOX, **options)
    with pytest.raises(errors.ArgumentError, match="generators"):
        optimize_continuous(score, BOX.expand(3, 2, 2), generator=[generator(0)])
    with pytest.raises(errors.ShapeError, match="points"):
        optimize_continuous(score, BOX, points=torch.zeros(4, 3))
    with pytest.raises(errors.NonFiniteError, match="points"):
        optimize_continuous(score, BOX, points=torch.full((4, 2), math.inf))
    with pytest.raises(errors.ShapeError, match="score"):
        optimize_continuous(lambda p: p, BOX)
    with pytest.raises(errors.NumericalError, match="NaN"):
        optimize_continuous(lambda p: p.sum(dim=-1) * math.nan, BOX)
    with pytest.raises(errors.NumericalError, match="gradient"):
        optimize_continuous(lambda p: (p - p.detach()).square().sum(dim=-1).sqrt() + p.detach().sum(dim=-1), BOX)
    assert np.isfinite(float(optimize_continuous(score, BOX)[1]))
