"""A smooth function plus a random effect of each point: what features do not explain, and what is the same at every pull."""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from linear_operator import to_dense
from torch import Tensor, nn

from torchbandits.upstream import own_batch_shape


class RandomEffectKernel(gpytorch.kernels.ScaleKernel):
    r"""A scaled kernel, and a variance that a point shares with itself alone.

    .. math:: s\,k(x, y) + \tau^2\,[x = y]

    Real candidates differ by more than their features tell. The deviation of one from a smooth function of its features is
    random, but unlike noise it is the same at every pull. Without it, a kernel has to explain such deviations by a function
    that varies over the distance between neighbours. Points are equal if all their features are.

    A fit of the kernel's parameters does not change τ², which can't be told from noise without repeated pulls.

    Args:
        base_kernel: k.
        batch_shape: Leading dimensions of the kernel's own parameters.

    Attributes:
        effect: τ², `batch_shape`, squared reward units.

    Source: the random effect of a mixed model, Henderson 1975; micro-scale variation in kriging, Cressie 1993, section 3.2.
    """

    effect: Tensor

    def __init__(self, base_kernel: gpytorch.kernels.Kernel, batch_shape: torch.Size = torch.Size([])) -> None:  # noqa: B008
        super().__init__(base_kernel, batch_shape=batch_shape)
        self.register_parameter("effect", nn.Parameter(torch.zeros_like(self.raw_outputscale), requires_grad=False))

    def forward(self, x1: Tensor, x2: Tensor, last_dim_is_batch: bool = False, diag: bool = False, **params: Any) -> Tensor:
        """The kernel matrix, `... x n x m`, or with `diag` the n values of corresponding points."""
        smooth: Tensor = to_dense(super().forward(x1, x2, last_dim_is_batch=last_dim_is_batch, diag=diag, **params))
        if diag:
            return smooth + self.effect.unsqueeze(-1) * (x1 == x2).all(dim=-1)
        return smooth + self.effect[..., None, None] * coincident(x1, x2)


def coincident(x1: Tensor, x2: Tensor, among: Tensor | None = None) -> Tensor:
    """Whether all features of points are equal, `... x n x m` booleans for `... x n x d` and `... x m x d`; with `among` such a
    mask, only where it is True."""
    same = torch.ones((), dtype=torch.bool, device=x1.device) if among is None else among
    for left, right in zip(x1.unbind(dim=-1), x2.unbind(dim=-1), strict=True):
        same = same & (left.unsqueeze(-1) == right.unsqueeze(-2))
    return same


def with_effect(kernel: gpytorch.kernels.ScaleKernel, effect: Tensor) -> RandomEffectKernel:
    """The kernel with a random effect of variance `effect`, `batch_shape`."""
    whole = RandomEffectKernel(kernel.base_kernel, own_batch_shape(kernel))
    whole.raw_outputscale = kernel.raw_outputscale
    whole.effect = nn.Parameter(effect.detach().to(kernel.raw_outputscale), requires_grad=False)
    return whole


def smooth_part(kernel: gpytorch.kernels.Kernel) -> gpytorch.kernels.Kernel:
    """The kernel without random effects."""
    if not isinstance(kernel, RandomEffectKernel):
        return kernel
    smooth = gpytorch.kernels.ScaleKernel(kernel.base_kernel, batch_shape=own_batch_shape(kernel))
    smooth.raw_outputscale = kernel.raw_outputscale
    return smooth
