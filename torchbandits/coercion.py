"""What a user hands in, as a tensor: whatever else it is, one clear error."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import gpytorch
import torch
from torch import Tensor

from torchbandits.errors import ArgumentError, ShapeError, nearest, require

DTYPES = (torch.float32, torch.float64)
ENDLESS = 2**62  # more than anybody waits for
LARGEST = 1e150  # what its square, and the sum of many of those, leaves room for


def as_tensor(name: str, value: Any, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """A dense tensor of real or complex numbers, integers or booleans; Python's numbers have 64 bits, as they do in Python.

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
        if dtype is None and tensor.is_floating_point() and not hasattr(value, "dtype"):
            # torch would round them to its default dtype, so that numbers would depend on a global setting.
            tensor = torch.as_tensor(value, dtype=torch.float64, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError, NotImplementedError, IndexError, AttributeError) as error:
        said = str(value) if isinstance(value, (str, int, float)) else type(value).__name__
        raise ShapeError(f"{name} must be a tensor or numbers, got {said[:60]!r}: {str(error).splitlines()[0]}") from error
    plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
    require(plain, f"{name} must be a dense tensor, got one of layout {tensor.layout}: call .to_dense().", ShapeError)
    here = tensor.device.type != "meta"
    require(here, f"{name} are on the device meta, which holds no numbers: use cpu or cuda.", ShapeError)
    return tensor


def own_copy(tensor: Tensor) -> Tensor:
    """A detached copy, which later writes to the original, by torch or through shared memory, do not reach. Dimensions that
    were expanded stay so: rows that share their numbers are copied once."""
    base = tensor.detach()
    for dim, stride in enumerate(tensor.stride()):
        base = base.narrow(dim, 0, 1) if stride == 0 and tensor.shape[dim] > 1 else base
    return base.clone().expand(tensor.shape)


def is_finite(value: Any) -> bool:
    """Whether this is one finite real number: not a boolean, a text, or several."""
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 and value.device.type != "meta" and not value.is_complex() else None
    if isinstance(value, Integral):
        return not isinstance(value, bool) and abs(int(value)) <= sys.float_info.max
    return isinstance(value, Real) and abs(float(value)) < math.inf


def is_whole(value: Any, least: int = 1) -> bool:
    """Whether this is a whole number of at least so much, and of at most 2⁶²."""
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= ENDLESS


# The checks below raise ArgumentError (ShapeError for a dtype): it names the argument, what is wanted and what came.


def non_negative(name: str, value: Any) -> Any:
    """The value, if it is one number from 0 to 1e150."""
    good = is_finite(value) and 0 <= value <= LARGEST
    require(good, f"{name} must be a finite number ≥ 0, and at most {LARGEST:g}, got {value}.")
    return value


def positive(name: str, value: Any) -> Any:
    """The value, if it is one number above 0, up to 1e150."""
    good = is_finite(value) and 0 < value <= LARGEST
    require(good, f"{name} must be a finite number > 0, and at most {LARGEST:g}, got {value}.")
    return value


def at_least(name: str, value: Any, least: float = 1) -> Any:
    """The value, if it is one finite number of at least so much."""
    require(is_finite(value) and value >= least, f"{name} must be a finite number of at least {least}, got {value}.")
    return value


def check_whole(name: str, value: Any, least: int = 1, otherwise: str = "") -> None:
    """Refuse what is no whole number of at least so much; `otherwise` says what else None would do."""
    require(
        is_whole(value, least) or (bool(otherwise) and value is None),
        f"{name} must be a whole number ≥ {least}{f', or None {otherwise}' if otherwise else ''}, got {value!r}.",
    )


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False."""
    require(isinstance(value, bool), f"{name} must be True or False, got {value!r}.")


def check_text(name: str, value: Any) -> None:
    """Refuse what is no text."""
    require(isinstance(value, str), f"{name} must be a text, got {type(value).__name__}.")


def check_choice(name: str, value: Any, known: Iterable[str]) -> None:
    """Refuse what is none of these words, with the nearest one."""
    known = tuple(known)
    if not (isinstance(value, str) and value in known):
        raise ArgumentError(f"{name} must be one of {', '.join(known)}, got {value!r}.{nearest(str(value), known)}")


def check_function(name: str, value: Any) -> None:
    """Refuse what can't be called."""
    require(callable(value), f"{name} must be a function, got {type(value).__name__}.")


def check_generator(name: str, value: Any) -> None:
    """Refuse what is no generator on the CPU."""
    good = isinstance(value, torch.Generator) and value.device.type == "cpu"
    got = f"one on {value.device}" if isinstance(value, torch.Generator) else type(value).__name__
    require(good, f"{name} must be a torch.Generator on the CPU, such as torch.Generator().manual_seed(0), got {got}.")


def check_kernel(name: str, value: Any) -> None:
    """Refuse what is no GPyTorch kernel."""
    kernel = isinstance(value, gpytorch.kernels.Kernel)
    require(kernel, f"{name} must be a gpytorch.kernels.Kernel, such as RBFKernel(), got {type(value).__name__}.")


def check_dtype(name: str, value: Any) -> torch.dtype:
    """The value, if it is float32 or float64."""
    good = isinstance(value, torch.dtype) and value in DTYPES
    require(good, f"{name} must be float64 (accurate) or float32 (fast), got {value}.", ShapeError)
    checked: torch.dtype = value
    return checked


def as_device(name: str, value: Any) -> torch.device:
    """A device, from one or its name, as its tensors name it: `"cuda"` is the current CUDA device, such as `cuda:0`."""
    try:
        device = torch.device(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ArgumentError(f"{name} must be a device such as 'cpu' or 'cuda:0', got {value!r}.") from error
    here = device.type != "cuda" or torch.cuda.is_available()
    require(here, f"{name} must be one that is here, and torch finds no CUDA device, got {value!r}: use 'cpu'.")
    if device.type == "cpu":
        return device
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, ImportError, RuntimeError) as error:  # by kind of device: no backend, no module, no such index
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ArgumentError(f"{name} must be a device that is here, such as 'cpu', got {value!r}: {said}") from error


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether tensors on these devices may meet: `torch.device("cuda")` and its tensors' `cuda:0` are one device."""
    return one == other or (one.type == other.type and as_device("device", one) == as_device("device", other))


def as_path(name: str, value: Any) -> Path:
    """A path, from one or its text."""
    try:
        return Path(value)
    except TypeError as error:
        raise ArgumentError(f"{name} must be a path or its text, got {type(value).__name__}.") from error
