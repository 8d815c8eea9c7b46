"""Copies of several small tensors between a device and the host in one transfer, since each copy to the host is a wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Bytes from which a copy to the host is made in page-locked memory.
_LOCKED = 1 << 18


def to_host(*tensors: Tensor) -> Sequence[Tensor]:
    """The tensors on the host: copies if they are on a device, else the tensors themselves. Cost: one synchronisation."""
    return tensors if tensors[0].device.type == "cpu" else _together(tensors, _here)


def to_device(device: torch.device, *tensors: Tensor) -> Sequence[Tensor]:
    """Tensors of the host on a device: asynchronous copies, or the tensors themselves if they are on that device."""
    if device.type == tensors[0].device.type:
        return tensors
    return _together(tensors, lambda packed: _locked(packed).to(device, non_blocking=True))


def _locked(here: Tensor) -> Tensor:
    """A copy in page-locked memory, also of a tensor of `_here`, which its owner may write to before it was sent."""
    large = here.numel() * here.element_size() >= _LOCKED
    return here.clone().pin_memory() if large and here.is_pinned() else here.contiguous().pin_memory()


def _here(there: Tensor) -> Tensor:
    """A copy on the host. Page-locked memory is written ten times faster, and takes a few microseconds to find."""
    if there.numel() * there.element_size() < _LOCKED:
        return there.cpu()
    return torch.empty(there.shape, dtype=there.dtype, pin_memory=True).copy_(there)


def _together(tensors: Sequence[Tensor], move: Callable[[Tensor], Tensor]) -> Sequence[Tensor]:
    """The tensors, moved in one piece: side by side if they have one type, otherwise as bytes."""
    if len(tensors) == 1:
        return (move(tensors[0]),)
    alike = len({x.dtype for x in tensors}) == 1
    if not any(map(Tensor.dim, tensors)) and (alike or tensors[0].device.type == "cpu"):
        return _numbers(tensors, move)
    return _side_by_side(tensors, move, alike)


def _side_by_side(tensors: Sequence[Tensor], move: Callable[[Tensor], Tensor], alike: bool) -> Sequence[Tensor]:
    """`_together` for tensors of any shape; `alike` is whether they have one type."""
    # Those with the largest elements come first, so that every tensor is aligned in the packed bytes.
    sizes = [x.dtype.itemsize for x in tensors]
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    flat = [tensors[place].reshape(-1) if alike else _bytes(tensors[place]) for place in order]
    found = list(tensors)
    for place, part in zip(order, move(torch.cat(flat)).split_with_sizes([x.shape[0] for x in flat]), strict=True):
        like, own = tensors[place], part if alike else part.view(tensors[place].dtype)
        found[place] = own if like.dim() == 1 else own.view(like.shape)
    return found


def _numbers(tensors: Sequence[Tensor], move: Callable[[Tensor], Tensor]) -> Sequence[Tensor]:
    """`_together` for tensors without dimensions, one row per type."""
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for x in tensors:
        kinds.setdefault(x.dtype, []).append(x)
    rows = [torch.stack(some) for some in kinds.values()]
    rows = [move(rows[0])] if len(rows) == 1 else list(_side_by_side(rows, move, alike=False))
    parts = {kind: iter(row.unbind()) for kind, row in zip(kinds, rows, strict=True)}
    return [next(parts[x.dtype]) for x in tensors]


def _bytes(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    # A single number is contiguous whatever its stride, but can't be viewed as bytes then.
    return (flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)).view(torch.uint8)
