"""Kernels of single batch rows, and a kernel with a batch shape made of them.

GPyTorch's own `expand_batch` and indexing leave the parts of sums and products as they were, and expand `active_dims` too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import gpytorch
import torch
from torch import Tensor, nn

from torchbandits.upstream import own_batch_shape


def expand_kernel(kernel: gpytorch.kernels.Kernel, batch_shape: torch.Size) -> gpytorch.kernels.Kernel:
    """A copy whose every parameter has the leading dimensions `batch_shape`, with which the kernel's must broadcast."""
    expanded = copy.deepcopy(kernel)
    for part, parameter in _own_parameters(expanded):
        rest = parameter.shape[len(own_batch_shape(part)) :]
        parameter.data = parameter.data.expand(torch.Size([*batch_shape, *rest])).contiguous()
    return _with_batch_shape(expanded, batch_shape)


def kernel_row(kernel: gpytorch.kernels.Kernel, batch_shape: torch.Size, place: tuple[int, ...]) -> gpytorch.kernels.Kernel:
    """A copy of the kernel of one batch row, without batch shape."""
    row = expand_kernel(kernel, batch_shape)
    for _, parameter in _own_parameters(row):
        parameter.data = parameter.data[place].clone()
    return _with_batch_shape(row, torch.Size([]))


def stack_kernels(rows: Sequence[gpytorch.kernels.Kernel], batch_shape: torch.Size) -> gpytorch.kernels.Kernel:
    """The kernel whose batch rows, in row-major order, are the given kernels: the inverse of `kernel_row`."""
    stacked = expand_kernel(rows[0], batch_shape)
    own = [dict(row.named_parameters()) for row in rows]
    for name, parameter in stacked.named_parameters():
        parameter.data = torch.stack([parameters[name].data for parameters in own]).reshape(parameter.shape)
    return stacked


def shaped_like(kernel: gpytorch.kernels.Kernel, saved: dict[str, Tensor], prefix: str) -> gpytorch.kernels.Kernel:
    """A copy whose parameters have the shapes of those saved under the prefix, ready to load them."""
    shaped = copy.deepcopy(kernel)
    for name, part in shaped.named_modules():
        if not isinstance(part, gpytorch.kernels.Kernel):
            continue
        for own, parameter in part.named_parameters(recurse=False):
            value = saved.get(prefix + f"{name}.{own}".lstrip("."))
            if value is None or value.shape == parameter.shape:
                continue
            rest = parameter.shape[len(own_batch_shape(part)) :]
            if value.shape[value.dim() - len(rest) :] == rest:  # otherwise it is another kernel's, and loading says so
                parameter.data = parameter.data.new_zeros(value.shape)
                part.batch_shape = value.shape[: value.dim() - len(rest)]
    return shaped


def _own_parameters(kernel: gpytorch.kernels.Kernel) -> Iterable[tuple[gpytorch.kernels.Kernel, nn.Parameter | Tensor]]:
    """Every parameter with the part of the kernel that holds it, once."""
    parts = [module for module in kernel.modules() if isinstance(module, gpytorch.kernels.Kernel)]
    return [(part, parameter) for part in parts for parameter in part.parameters(recurse=False)]


def _with_batch_shape(kernel: gpytorch.kernels.Kernel, batch_shape: torch.Size) -> gpytorch.kernels.Kernel:
    for part in kernel.modules():
        if isinstance(part, gpytorch.kernels.Kernel):
            part.batch_shape = batch_shape
    return kernel
