"""Copies of several small tensors between a device and the host in one transfer, since each copy to the host is a wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def to_host(*tensors: Tensor) -> Sequence[Tensor]:
    """The tensors on the host: copies if they are on a device, else the tensors themselves. Cost: one synchronisation."""
    return tensors if tensors[0].device.type == "cpu" else _together(tensors, Tensor.cpu)


def to_device(device: torch.device, *tensors: Tensor) -> Sequence[Tensor]:
    """Tensors of the host on a device: asynchronous copies, or the tensors themselves if they are on that device."""
    if device.type == tensors[0].device.type:
        return tensors
    return _together(tensors, lambda packed: packed.pin_memory().to(device, non_blocking=True))


def _together(tensors: Sequence[Tensor], move: Callable[[Tensor], Tensor]) -> Sequence[Tensor]:
    """The tensors, moved in one piece."""
    if len(tensors) == 1:
        return (move(tensors[0]),)
    first = tensors[0].dtype
    if all(x.dtype is first for x in tensors):
        flat = [x.reshape(-1) for x in tensors]
        parts = move(torch.cat(flat)).split([x.shape[0] for x in flat])
        return [part if x.dim() == 1 else part.view(x.shape) for part, x in zip(parts, tensors, strict=True)]
    # Those with the largest elements come first, so that every tensor is aligned in the packed bytes.
    sizes = [x.dtype.itemsize for x in tensors]
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    flat = [_bytes(tensors[place]) for place in order]
    found = list(tensors)
    for place, part in zip(order, move(torch.cat(flat)).split([x.shape[0] for x in flat]), strict=True):
        found[place] = part.view(tensors[place].dtype).view(tensors[place].shape)
    return found


def _bytes(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    # A single number is contiguous whatever its stride, but can't be viewed as bytes then.
    return (flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)).view(torch.uint8)
