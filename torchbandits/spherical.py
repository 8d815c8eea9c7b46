"""The spherical linear kernel: a linear kernel of points that are projected onto a sphere, for many features."""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from torch import Tensor

from torchbandits.checks import as_tensor
from torchbandits.errors import ShapeError, require


class SphericalLinearKernel(gpytorch.kernels.Kernel):
    r"""Linear kernel on the sphere onto which the features are projected, plus a constant.

    .. math:: k(x, x') = c + (1 - c) \, P(z)^T P(z'), \quad P(z) = \frac{(2z, |z|^2 - 1)}{|z|^2 + 1}, \quad
              z = \frac{x - m}{\sqrt{f} \, r}

    m is the centre of the box of the features, and r half its diagonal. P is the inverse stereographic projection, so
    k(x, x) = 1: unlike for the linear kernel, the variance does not grow towards the corners of the box. The kernel has d + 2
    features. It has no lengthscale, which is hard to estimate for hundreds of features, such as those of language model
    embeddings.

    `fraction`, f, and `constant`, c, are between 0 and 1, initially both 1/2, and are fitted with the kernel's other
    parameters; `gpytorch.kernels.ScaleKernel` adds a variance. Features are not rescaled, so features with a larger range have
    more influence.

    Args:
        bounds: Lower and upper bounds of the features, `2 x d`. Arms outside the bounds are allowed.
        kwargs: Arguments of a GPyTorch kernel, such as `batch_shape`. With `active_dims` the bounds are those of the active
            features.

    Raises:
        ShapeError: If the bounds are not `2 x d`, or the upper and lower bounds of all features are equal.

    This is the kernel of GPyTorch's pull request 2742, which is not in any release yet, with all lengthscales equal. Cost: O(n
    m d). Source: arXiv 2512.00170, eq. 2.
    """

    has_lengthscale = False
    middle: Tensor
    radius: Tensor

    def __init__(self, bounds: Tensor, **kwargs: Any) -> None:
        given = as_tensor("bounds", bounds)
        shaped = given.dim() == 2 and len(given) == 2 and given.shape[-1] > 0
        require(shaped, f"bounds must be 2 x d, lower and upper ones of each feature, got {tuple(given.shape)}.", ShapeError)
        low, high = given.detach().double()
        good = bool((low <= high).all()) and bool((low < high).any())
        require(good, "bounds must be lower ones and then upper ones, with a width for some feature.", ShapeError)
        super().__init__(**kwargs)
        self.register_buffer("middle", (low + high) / 2)
        self.register_buffer("radius", ((high - low) / 2).norm())
        for name in ("raw_constant", "raw_fraction"):
            # The sigmoid of 0 is 1/2.
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(*self.batch_shape, 1)))
            self.register_constraint(name, gpytorch.constraints.Interval(0.0, 1.0))

    @property
    def constant(self) -> Tensor:
        """c, `batch_shape x 1`."""
        value: Tensor = self.raw_constant_constraint.transform(self.raw_constant)
        return value

    @constant.setter
    def constant(self, value: Tensor | float) -> None:
        self._set("raw_constant", value)

    @property
    def fraction(self) -> Tensor:
        """f, `batch_shape x 1`: 1 over the squared norm of z at the corners of the box."""
        value: Tensor = self.raw_fraction_constraint.transform(self.raw_fraction)
        return value

    @fraction.setter
    def fraction(self, value: Tensor | float) -> None:
        self._set("raw_fraction", value)

    def _set(self, name: str, value: Tensor | float) -> None:
        given = torch.as_tensor(value).to(getattr(self, name))
        self.initialize(**{name: getattr(self, f"{name}_constraint").inverse_transform(given)})

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """`... x n x m`, or with `diag` the n values of pairs of points."""
        left, right = self._projected(x1), self._projected(x2)
        if diag:
            return self.constant + (1 - self.constant) * (left * right).sum(dim=-1)
        c = self.constant.unsqueeze(-1)
        return c + (1 - c) * (left @ right.mT)

    def _projected(self, points: Tensor) -> Tensor:
        z = (points - self.middle.to(points)) / (self.fraction.unsqueeze(-1).sqrt() * self.radius.to(points))
        squared = z.square().sum(dim=-1, keepdim=True)
        return torch.cat([2 * z, squared - 1], dim=-1) / (squared + 1)
