"""What a user hands in, as a tensor: whatever else it is, one clear error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchbandits.errors import ShapeError, require


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
    except (TypeError, ValueError, RuntimeError, OverflowError, NotImplementedError) as error:
        said = str(value) if isinstance(value, (str, int, float)) else type(value).__name__
        raise ShapeError(f"{name} must be a tensor or numbers, got {said[:60]!r}: {str(error).splitlines()[0]}") from error
    plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
    require(plain, f"{name} must be a dense tensor, got one of layout {tensor.layout}: call .to_dense().", ShapeError)
    return tensor
