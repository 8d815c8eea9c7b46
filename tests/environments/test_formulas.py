"""The functions of CUB's figures: their values, peaks, grids and errors."""

import math

import pytest
import torch

from torchbandits.environments import rosenbrock, sin_cos
from torchbandits.errors import ArgumentError


def test_sin_cos_is_its_formula_on_its_interval():
    environment = sin_cos(num_arms=25)
    x = [-2 + 0.5 * i for i in range(25)]
    torch.testing.assert_close(environment.arms, torch.tensor(x, dtype=torch.float64).unsqueeze(-1))
    values = [math.sin(v) + math.cos(v) + 0.1 * v for v in x]
    torch.testing.assert_close(environment.means, torch.tensor(values, dtype=torch.float64))
    assert environment.noise == "gaussian"
    assert environment.noise_std == 1.0


def test_sin_cos_has_its_peak_on_the_second_wave():
    """f' = √2 cos(x + π/4) + 0.1 = 0 at x = 2π + π/4 + arcsin(0.1/√2), where f = √2 cos(arcsin …) + 0.1 x."""
    environment = sin_cos()
    assert environment.arms.shape == (2000, 1)
    shift = math.asin(0.1 / math.sqrt(2))
    peak = 2 * math.pi + math.pi / 4 + shift
    assert float(environment.arms[environment.means.argmax()]) == pytest.approx(peak, abs=12 / 1999)
    assert float(environment.optimum) == pytest.approx(math.sqrt(2) * math.cos(shift) + 0.1 * peak, abs=1e-5)
    first = environment.means[environment.arms[:, 0] < 4]
    assert float(first.max()) == pytest.approx(float(environment.optimum) - 0.2 * math.pi, abs=1e-4)


def test_rosenbrock_is_its_formula_with_its_peak_at_one_one():
    environment = rosenbrock(points_per_dim=5, scaled=False)
    for point, value in zip(environment.arms.tolist(), environment.means.tolist(), strict=True):
        x, y = point
        assert value == pytest.approx(-((1 - x) ** 2) - 10 * (y - x * x) ** 2)
    assert environment.arms.aminmax() == (-2, 2)
    assert environment.optimum == 0
    assert environment.arms[environment.means.argmax()].tolist() == [1, 1]
    assert rosenbrock(a=0.5, b=1.0, points_per_dim=17, scaled=False).means.argmax() == 10 * 17 + 9  # (½, ¼)


def test_rosenbrock_is_scaled_over_its_arms():
    environment = rosenbrock()
    raw = rosenbrock(scaled=False)
    assert environment.arms.shape == (81**2, 2)
    assert environment.means.aminmax() == (-1, 1)
    assert raw.means.min() == -369
    torch.testing.assert_close(environment.means, 2 * (raw.means + 369) / 369 - 1)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (sin_cos, {"num_arms": 1}, "num_arms must be from 2 to 100000, got 1"),
        (sin_cos, {"num_arms": 100_001}, "num_arms"),
        (sin_cos, {"noise_std": -1.0}, "noise_std"),
        (sin_cos, {"noise": "gausian"}, "Did you mean 'gaussian'"),
        (rosenbrock, {"points_per_dim": 1}, "points_per_dim must be a whole number ≥ 2"),
        (rosenbrock, {"points_per_dim": 400}, "more than 100000"),
        (rosenbrock, {"b": -1.0}, "b finite and ≥ 0"),
        (rosenbrock, {"a": math.nan}, "a must be finite"),
        (rosenbrock, {"noise_std": math.inf}, "noise_std"),
    ],
)
def test_bad_options(make, options, message):
    with pytest.raises(ArgumentError, match=message):
        make(**options)
