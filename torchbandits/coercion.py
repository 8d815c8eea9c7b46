"""What a user hands in, as a tensor: whatever else it is, one clear error."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from torchbandits.errors import ShapeError, require

ENDLESS = 2**62  # more than anybody waits for


def as_tensor(name: str, value: Any, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """A dense tensor of real or complex numbers, integers or booleans.

    Args:
        name: For the message.
        value: A tensor, an array, or numbers in lists.
        dtype: As for `torch.as_tensor`.
        device: Likewise.

    Raises:
        ShapeError: If it is nothing like a tensor, or a sparse, quantised or nested one.
    """
    try:
        tensor = torch.as_tensor(value, dtype=dtype, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError, NotImplementedError, IndexError, AttributeError) as error:
        said = str(value) if isinstance(value, (str, int, float)) else type(value).__name__
        raise ShapeError(f"{name} must be a tensor or numbers, got {said[:60]!r}: {str(error).splitlines()[0]}") from error
    plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
    require(plain, f"{name} must be a dense tensor, got one of layout {tensor.layout}: call .to_dense().", ShapeError)
    here = tensor.device.type != "meta"
    require(here, f"{name} are on the device meta, which holds no numbers: use cpu or cuda.", ShapeError)
    return tensor


def is_finite(value: Any) -> bool:
    """Whether this is one finite real number: not a boolean, a text, or several."""
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 and value.device.type != "meta" and not value.is_complex() else None
    return isinstance(value, Real) and not isinstance(value, bool) and abs(float(value)) < math.inf


def is_whole(value: Any, least: int = 1) -> bool:
    """Whether this is a whole number of at least so much, and of at most 2⁶²."""
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= ENDLESS


def non_negative(name: str, value: Any) -> Any:
    """The value, if it is one finite number ≥ 0.

    Raises:
        ArgumentError: If it is anything else.
    """
    require(is_finite(value) and value >= 0, f"{name} must be a finite number ≥ 0, got {value}.")
    return value
