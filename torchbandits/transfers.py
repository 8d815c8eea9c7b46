"""Copies of a few small tensors between a device and the host in one piece: each copy to the host waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MOST_WHOLE = 1 << 53
"""The largest whole number that survives a transfer, which is made in float64."""


def to_host(*tensors: Tensor) -> Sequence[Tensor]:
    """The tensors on the host, with their shapes and dtypes: copies from a device, the tensors themselves where they are there.

    Booleans, float64 and whole numbers up to 2⁵³ are exact. Cost: one synchronisation.
    """
    if tensors[0].device.type == "cpu":
        return tensors
    flat = torch.cat([x.reshape(-1).double() for x in tensors]).cpu()
    parts = flat.split([x.numel() for x in tensors])
    return [part.to(x.dtype).reshape(x.shape) for part, x in zip(parts, tensors, strict=True)]


def to_device(device: torch.device, *tensors: Tensor) -> Sequence[Tensor]:
    """The inverse of `to_host`: copies on the device, which nothing waits for."""
    if device.type == "cpu":
        return tensors
    flat = torch.cat([x.reshape(-1).double() for x in tensors]).pin_memory().to(device, non_blocking=True)
    parts = flat.split([x.numel() for x in tensors])
    return [part.to(x.dtype).reshape(x.shape) for part, x in zip(parts, tensors, strict=True)]
