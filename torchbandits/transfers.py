"""Copies of several small tensors between a device and the host in one transfer, since each copy to the host is a wait."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_host(*tensors: Tensor) -> Sequence[Tensor]:
    """The tensors on the host: copies if they are on a device, else the tensors themselves. Cost: one synchronisation."""
    if tensors[0].device.type == "cpu":
        return tensors
    return _unpacked(_packed(tensors).cpu(), tensors)


def to_device(device: torch.device, *tensors: Tensor) -> Sequence[Tensor]:
    """Tensors of the host on a device: asynchronous copies, or the tensors themselves if they are on that device."""
    if device.type == tensors[0].device.type:
        return tensors
    return _unpacked(_packed(tensors).pin_memory().to(device, non_blocking=True), tensors)


def _by_size(tensors: Sequence[Tensor]) -> list[int]:
    """The indices of the tensors, those with the largest elements first, so that every tensor is aligned in the packed
    bytes."""
    return sorted(range(len(tensors)), key=lambda place: -tensors[place].element_size())


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of all tensors."""
    return torch.cat([_flat(tensors[place]).view(torch.uint8) for place in _by_size(tensors)])


def _flat(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    # A single number is contiguous whatever its stride, but can't be viewed as bytes then.
    return flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)


def _unpacked(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    found, start = list(like), 0
    for place in _by_size(like):
        one = like[place]
        end = start + one.numel() * one.element_size()
        found[place] = packed[start:end].view(one.dtype).reshape(one.shape)
        start = end
    return found
