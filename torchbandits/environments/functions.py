"""Functions evaluated on a finite set of arms: any callable, and draws from an RKHS."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel, MaternKernel
from torch import Tensor

from torchbandits.checks import (
    as_tensor,
    check_function,
    check_generator,
    check_kernel,
    check_norm_bound,
    check_text,
    check_whole,
    positive,
)
from torchbandits.environments.base import Environment, Task, known
from torchbandits.environments.noise import check_noise, noisy_rewards
from torchbandits.environments.tables import check_arms, check_rewards
from torchbandits.errors import ShapeError, require
from torchbandits.sources import ArmSource
from torchbandits.types import ArrayLike

_READ = 1 << 16  # arms of a source that are evaluated together

GRID_LIMIT = 100_000
"""Largest number of points of a grid."""


class Function(Environment):
    """A callable on a finite set of arms. It is evaluated on first use, once.

    Args:
        function: Takes `... x A x d` points, returns `... x A` expected rewards, reward units.
        arms: `A x d` or `batch_shape x A x d` floating-point features, or a source, where it is evaluated piece by piece.
        noise_std: Standard deviation of Gaussian noise, or L of noise uniform on [−L, L]; reward units, 0 for none.
        name: Shown in tables and figures.
        noise: `"gaussian"` or `"uniform"`.
        norm_bound: RKHS norm of the function if known.

    Raises:
        ShapeError: If there are no arms, or (on first use) the values are not one per arm.
        NonFiniteError: If an arm or (on first use) a value is NaN or infinite.
        ArgumentError: If `noise_std` is negative or the kind of noise unknown.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        arms: ArrayLike | ArmSource,
        noise_std: float,
        *,
        name: str = "function",
        noise: str = "gaussian",
        norm_bound: float | None = None,
    ) -> None:
        check_function("function", function)
        check_noise(noise_std, noise)
        arms = check_arms(arms)
        check_text("name", name)
        check_norm_bound(norm_bound, optional=True)
        self.function = function
        self.arms = arms
        self.noise_std = float(noise_std)
        self.name = name
        self.noise = noise
        self.norm_bound = norm_bound
        self._values: Tensor | None = None

    @property
    def means(self) -> Tensor:
        """Value of the function at every arm, `A` or `batch_shape x A`, reward units."""
        if self._values is None:
            values = self._evaluated(self.arms)
            check_rewards(values, self.arms)
            self._values = values
        return self._values

    def _evaluated(self, arms: Tensor | ArmSource) -> Tensor:
        if isinstance(arms, Tensor):
            value = self.function(arms)
            known = isinstance(value, Tensor)
            require(known, f"the function must return a tensor, one value per arm, got {type(value).__name__}.", ShapeError)
            return value
        values = torch.empty(arms.num_arms, dtype=arms.dtype, device=arms.device)
        for part, piece in arms.chunks(_READ):
            value = self.function(piece)
            if not isinstance(value, Tensor) or value.shape != values[part].shape:
                raise ShapeError(f"the function must return one value per arm, {len(piece)}, got {value!r:.60}.")
            values[part] = value
        return values

    def sample(self, index: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Pull arms: `batch_shape x q` rewards for such an index, NaN where −1; row r draws from `generators[r]`."""
        return noisy_rewards(self, index, generators, self.noise)

    def tasks(self, index: Tensor, generators: Sequence[torch.Generator]) -> list[Task]:
        """The rewards that `sample` draws, one task per pull, in row-major order."""
        return known(self.sample(index, generators), index)

    def __repr__(self) -> str:
        """Name and sizes."""
        sizes = f"arms={tuple(self.arms.shape)}, noise_std={self.noise_std}, noise={self.noise!r}"
        return f"Function({self.name!r}, {sizes})"


@dataclass(frozen=True, eq=False)
class KernelExpansion:
    r"""A function of a kernel's RKHS, written on finitely many centres.

    .. math:: f(x) = \sum_j a_j k(\hat x_j, x), \qquad \|f\|^2 = a^\top K a

    Attributes:
        kernel: Any GPyTorch kernel without batch dimensions.
        centers: `m x d`, the points x̂.
        coefficients: `m`, the weights a, reward units over units of k.
    """

    kernel: Kernel
    centers: Tensor
    coefficients: Tensor

    def __post_init__(self) -> None:
        check_kernel(self.kernel)
        centers, coefficients = (as_tensor(name, getattr(self, name)) for name in ("centers", "coefficients"))
        require(centers.dim() == 2, f"centers must be m x d, got {tuple(centers.shape)}.", ShapeError)
        m = len(centers)
        require(coefficients.shape == (m,), f"coefficients must be {m} numbers, got {tuple(coefficients.shape)}.", ShapeError)

    def __call__(self, points: Tensor) -> Tensor:
        """Values at `... x n x d` points, `... x n`, reward units."""
        require(isinstance(points, Tensor), f"points must be a tensor ... x n x d, got {type(points).__name__}.", ShapeError)
        with torch.no_grad():
            return self.kernel(points, self.centers).to_dense() @ self.coefficients

    @property
    def norm(self) -> float:
        """Exact RKHS norm of the function."""
        with torch.no_grad():
            K_mm = self.kernel(self.centers).to_dense()
            return math.sqrt(float(self.coefficients @ K_mm @ self.coefficients))


def grid(dim: int, points_per_dim: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The regular grid on [0, 1]^dim, ends included, `points_per_dim ** dim x dim`; the last feature varies fastest."""
    check_whole("dim", dim)
    check_whole("points_per_dim", points_per_dim)
    require(dim <= 64, f"dim must be at most 64, got {dim}: a grid has points_per_dim ** dim points.")
    size = points_per_dim**dim
    require(size <= GRID_LIMIT, f"{points_per_dim}^{dim} = {size} grid points are more than {GRID_LIMIT}: take fewer.")
    axis = torch.linspace(0, 1, points_per_dim, dtype=dtype)
    return torch.cartesian_prod(*[axis] * dim).reshape(size, dim)


def rkhs(
    kernel: Kernel | None = None,
    *,
    nu: float = 1.5,
    lengthscale: float = 0.2,
    dim: int = 2,
    points_per_dim: int = 30,
    num_centers: int | None = None,
    noise_std: float = 1.0,
    noise: str = "uniform",
    generator: torch.Generator,
) -> Function:
    r"""A random function of known RKHS norm on a grid over [0, 1]^dim.

    .. math:: f = \sum_{j \le m} a_j k(\hat x_j, \cdot), \quad a_j \sim U[-1, 1], \quad \hat x_j \sim U[0, 1]^d

    Args:
        kernel: Any GPyTorch kernel in float64; without one, Matérn of smoothness `nu` and `lengthscale`.
        nu: Smoothness of the Matérn kernel, 0.5, 1.5 or 2.5.
        lengthscale: Length-scale of the Matérn kernel, in units of the cube's side.
        dim: Number of features d.
        points_per_dim: Points of the grid along each axis.
        num_centers: m, by default 30 times `dim`.
        noise_std: L of noise uniform on [−L, L], or the standard deviation of Gaussian noise; reward units.
        noise: `"uniform"`, as in the source, or `"gaussian"`.
        generator: CPU generator that draws the function; it does not draw the noise of later pulls.

    Returns:
        A `Function` on `points_per_dim ** dim` arms whose `norm_bound` is the exact norm :math:`\sqrt{a^\top K a}`.

    Source: Janz et al. 2020, section 5.1 and table 1.
    """
    if kernel is None:
        require(nu in (0.5, 1.5, 2.5), f"nu must be 0.5, 1.5 or 2.5, got {nu}.")
        positive("lengthscale", lengthscale)
        kernel = MaternKernel(nu=nu).to(torch.float64)
        # A tensor, because GPyTorch rounds a Python number to float32.
        kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    check_kernel(kernel)
    check_noise(noise_std, noise)
    check_generator(generator)
    arms = grid(dim, points_per_dim)
    num_centers = 30 * dim if num_centers is None else num_centers
    check_whole("num_centers", num_centers)
    require(num_centers <= GRID_LIMIT, f"num_centers must be at most {GRID_LIMIT}, got {num_centers}.")
    coefficients = 2 * torch.rand(num_centers, generator=generator, dtype=torch.float64) - 1
    centers = torch.rand(num_centers, dim, generator=generator, dtype=torch.float64)
    expansion = KernelExpansion(kernel, centers, coefficients)
    return Function(expansion, arms, noise_std, name=f"rkhs-{dim}d", noise=noise, norm_bound=expansion.norm)
