"""Test functions as bandits, to be maximised: those of BoTorch, whose box becomes the unit cube, and the two of the CUB paper,
in the coordinates of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from torchbandits.checks import check_choice, check_flag, check_whole, is_finite, is_whole
from torchbandits.environments.functions import GRID_LIMIT, Function, grid
from torchbandits.environments.noise import check_noise
from torchbandits.errors import ArgumentError, require
from torchbandits.linalg import sobol_points

if TYPE_CHECKING:
    from botorch.test_functions.base import BaseTestProblem

DESIGNS = ("auto", "grid", "sobol")

# Name of the class in BoTorch by the name of the function.
FIXED_DIM = {
    "beale": "Beale",
    "branin": "Branin",
    "bukin": "Bukin",
    "cosine8": "Cosine8",
    "drop_wave": "DropWave",
    "egg_holder": "EggHolder",
    "holder_table": "HolderTable",
    "six_hump_camel": "SixHumpCamel",
    "three_hump_camel": "ThreeHumpCamel",
}
ANY_DIM = {
    "ackley": "Ackley",
    "dixon_price": "DixonPrice",
    "griewank": "Griewank",
    "hartmann": "Hartmann",
    "levy": "Levy",
    "michalewicz": "Michalewicz",
    "rastrigin": "Rastrigin",
    "rosenbrock": "Rosenbrock",
    "styblinski_tang": "StyblinskiTang",
}


def synthetic(
    name: str,
    *,
    dim: int | None = None,
    num_arms: int = 900,
    design: str = "auto",
    scaled: bool = True,
    noise_std: float = 0.1,
    noise: str = "uniform",
    seed: int = 0,
) -> Function:
    """A standard test function on arms of the unit cube, negated if it is one to be minimised (all but `"cosine8"` are).

    Args:
        name: One of `FIXED_DIM` or `ANY_DIM`, such as `"branin"`.
        dim: Number of features, for functions defined in any dimension; each has its own default.
        num_arms: Number of arms, or for a grid the largest number that it must not exceed.
        design: `"grid"` (ends included), `"sobol"` (scrambled with `seed`), or `"auto"`: a grid up to two features.
        scaled: Whether values are mapped to [−1, 1] over the arms.
        noise_std: L of noise uniform on [−L, L], or the standard deviation of Gaussian noise, scaled reward units.
        noise: `"uniform"` or `"gaussian"`.
        seed: Seed of the Sobol points.

    Source: the functions of `botorch.test_functions`; scaling and noise as Janz et al. 2020, figure 2.
    """
    problem = _problem(name, dim)
    check_noise(noise_std, noise)
    check_choice("design", design, DESIGNS)
    check_flag("scaled", scaled)
    check_whole("seed", seed, 0)
    require(is_whole(num_arms) and num_arms <= GRID_LIMIT, f"num_arms must be from 1 to {GRID_LIMIT}, got {num_arms}.")
    lower, upper = torch.as_tensor(problem.bounds).to(torch.float64).unbind()
    features = len(lower)
    if design == "grid" or (design == "auto" and features <= 2):
        # Slightly above the root, so that 900 ** (1 / 2) counts as 30.
        arms = grid(features, int(num_arms ** (1 / features) + 1e-9))
    else:
        arms = sobol_points(num_arms, features, seed)

    raw = _OnUnitCube(problem, lower, upper)
    low, high = raw(arms).aminmax()
    # A function that is constant on its arms has no scale.
    function = _Symmetric(raw, low, high) if scaled and high > low else raw
    return Function(function, arms, noise_std, name=name, noise=noise)


def global_optimization(name: str = "branin", *, num_arms: int = 900, noise_std: float = 0.1) -> Function:
    """A two-dimensional test function as in π-GP-UCB's figure 2: values scaled to [−1, 1] on a square grid of the unit square,
    noise uniform on [−0.1, 0.1], and a norm bound of 1.

    Args:
        name: Name of a two-dimensional function of `synthetic`, such as `"branin"`.
        num_arms: Largest number of arms; the grid is square.
        noise_std: L of noise uniform on [−L, L], scaled reward units.

    Raises:
        ArgumentError: If the function is unknown or an option out of its range.

    Source: Janz et al. 2020, figure 2, which assumes a norm of 1; this is not the norm of these functions.
    """
    check_choice("name", name, [*FIXED_DIM, *ANY_DIM])
    dim = 2 if name in ANY_DIM else None
    function = synthetic(name, dim=dim, num_arms=num_arms, design="grid", noise_std=noise_std)
    require(function.arms.shape[-1] == 2, f"{name} has {function.arms.shape[-1]} features, not 2: see synthetic.")
    function.norm_bound = 1.0
    return function


# The functions are classes and not closures, so that an environment can be pickled, as a pool of processes does.


@dataclass(frozen=True, eq=False)
class _OnUnitCube:
    """A test problem of BoTorch on the unit cube, negated if it is one to be minimised."""

    problem: BaseTestProblem
    lower: Tensor
    upper: Tensor

    def __call__(self, points: Tensor) -> Tensor:
        sign = -1.0 if self.problem.is_minimization_problem else 1.0
        return sign * self.problem.evaluate_true(self.lower + points * (self.upper - self.lower))


@dataclass(frozen=True, eq=False)
class _Symmetric:
    """A function whose values from `low` to `high` are mapped to [−1, 1]."""

    raw: Callable[[Tensor], Tensor]
    low: Tensor
    high: Tensor

    def __call__(self, points: Tensor) -> Tensor:
        return 2 * (self.raw(points) - self.low) / (self.high - self.low) - 1


def _problem(name: str, dim: int | None) -> BaseTestProblem:
    from botorch.test_functions import synthetic as problems  # noqa: PLC0415 - BoTorch takes a second to load

    check_choice("name", name, [*FIXED_DIM, *ANY_DIM])
    if name in FIXED_DIM:
        require(dim is None, f"the number of features of {name} is fixed: leave out dim, got {dim}.")
        problem: BaseTestProblem = getattr(problems, FIXED_DIM[name])()
    else:
        check_whole("dim", dim, otherwise="for the function's own")
        most = SobolEngine.MAXDIM
        require(dim is None or dim <= most, f"dim must be at most {most}, got {dim}.")
        try:
            problem = getattr(problems, ANY_DIM[name])(**({} if dim is None else {"dim": dim}))
        except ValueError as error:
            raise ArgumentError(f"{name} does not come with dim={dim}: {error}.") from error
    problem = problem.to(torch.float64)
    for buffer, values in problem.named_buffers():
        if buffer not in ("bounds", "optimizers"):  # which are float64; BoTorch rounds the others to torch's default dtype
            values.copy_(values.float())
    return problem


# ---------------------------------------------------------------------------------- the CUB paper

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
    return Function(_waves, low + (high - low) * grid(1, num_arms), noise_std, name="sin-cos", noise=noise)


def _waves(x: Tensor) -> Tensor:
    return (x.sin() + x.cos() + 0.1 * x).squeeze(-1)


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
    arms = ROSENBROCK_SIDE * (2 * grid(2, points_per_dim) - 1)
    raw = _Banana(float(a), float(b))
    function = _Symmetric(raw, *torch.aminmax(raw(arms))) if scaled else raw
    return Function(function, arms, noise_std, name="rosenbrock", noise=noise)


@dataclass(frozen=True)
class _Banana:
    a: float
    b: float

    def __call__(self, points: Tensor) -> Tensor:
        x, y = points.unbind(dim=-1)
        return -((self.a - x) ** 2) - self.b * (y - x**2) ** 2
