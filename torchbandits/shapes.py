"""Shapes of tensors that are broadcast."""

from __future__ import annotations

import numpy as np
import torch


def broadcast_shapes(*shapes: torch.Size | tuple[int, ...]) -> torch.Size:
    """`torch.broadcast_shapes`, whose first call loads SymPy, which takes a third of a second.

    Raises:
        RuntimeError: If the shapes cannot be broadcast.
    """
    first, *others = shapes
    if all(other == first for other in others):
        return torch.Size(first)
    try:
        return torch.Size(np.broadcast_shapes(*shapes))
    except ValueError as error:
        raise RuntimeError(str(error)) from None
