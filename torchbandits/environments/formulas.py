"""The two test functions of the CUB paper, in their own coordinates."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.checks import check_flag, check_whole, is_finite, is_whole
from torchbandits.environments.functions import GRID_LIMIT, Function, grid
from torchbandits.errors import require

SIN_COS_INTERVAL = (-2.0, 10.0)
"""Domain of `sin_cos`: two full waves, the second one higher."""
ROSENBROCK_SIDE = 2.0
"""Half the side of the domain of `rosenbrock`, [−2, 2]²: the peak (1, 1) and the bend of the ridge are inside."""


def sin_cos(*, num_arms: int = 2000, noise_std: float = 1.0, noise: str = "gaussian") -> Function:
    r"""Two waves on a slope, on a fine grid over [−2, 10].

    .. math:: f(x) = \sin x + \cos x + 0.1\,x

    Args:
        num_arms: Points of the grid `num_arms x 1`, ends included; x itself is the feature, unscaled.
        noise_std: Standard deviation of Gaussian noise, or L of noise uniform on [−L, L]; reward units.
        noise: `"gaussian"`, as in the source, or `"uniform"`.

    Returns:
        A `Function` with its peak of 2.124 near x = 7.14, the runner-up of 1.496 near 0.86, and its lowest
        value of −1.53 at −2.

    Raises:
        ArgumentError: If the grid or the noise is out of range.

    Source: Bedi et al. 2020, figure 1, with N(0, 1) noise; the interval is a choice of this package.
    """
    require(is_whole(num_arms, 2) and num_arms <= GRID_LIMIT, f"num_arms must be from 2 to {GRID_LIMIT}, got {num_arms}.")
    low, high = SIN_COS_INTERVAL

    def function(x: Tensor) -> Tensor:
        return (x.sin() + x.cos() + 0.1 * x).squeeze(-1)

    return Function(function, low + (high - low) * grid(1, num_arms), noise_std, name="sin-cos", noise=noise)


def rosenbrock(
    *,
    points_per_dim: int = 81,
    a: float = 1.0,
    b: float = 10.0,
    scaled: bool = True,
    noise_std: float = 0.1,
    noise: str = "gaussian",
) -> Function:
    r"""Rosenbrock's banana function, negated to be maximised, on a fine grid over [−2, 2]².

    .. math:: f(x, y) = -(a - x)^2 - b\,(y - x^2)^2

    Args:
        points_per_dim: Points of the grid along each axis, ends included; arms are `points_per_dim² x 2`, x and y unscaled.
        a: The peak is at (a, a²).
        b: Steepness across the ridge.
        scaled: Whether values are mapped to [−1, 1] over the arms.
        noise_std: Standard deviation of Gaussian noise, or L of noise uniform on [−L, L]; (scaled) reward units.
        noise: `"gaussian"` or `"uniform"`.

    Raises:
        ArgumentError: If the grid or the noise is out of range, or `a` or `b` is not finite or `b` is negative.

    Source: Rosenbrock 1960; with a = 1, b = 10 in Bedi et al. 2020, figure 1, whose domain, scale and noise are not
    stated: those here are a choice of this package.
    """
    check_whole("points_per_dim", points_per_dim, 2)
    check_flag("scaled", scaled)
    require(is_finite(a) and is_finite(b) and b >= 0, f"a must be finite, b finite and ≥ 0, got {a} and {b}.")
    a, b = float(a), float(b)
    arms = ROSENBROCK_SIDE * (2 * grid(2, points_per_dim) - 1)

    def raw(points: Tensor) -> Tensor:
        x, y = points.unbind(dim=-1)
        return -((a - x) ** 2) - b * (y - x**2) ** 2

    low, high = torch.aminmax(raw(arms))

    def symmetric(points: Tensor) -> Tensor:
        return 2 * (raw(points) - low) / (high - low) - 1

    return Function(symmetric if scaled else raw, arms, noise_std, name="rosenbrock", noise=noise)
