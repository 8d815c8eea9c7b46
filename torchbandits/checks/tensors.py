"""Tensors of numbers, from tensors, NumPy arrays, tables and lists; their dtypes and devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbandits.errors import ArgumentError, ShapeError, require

DTYPES = (torch.float32, torch.float64)


def as_tensor(name: str, value: Any, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """A dense tensor of real or complex numbers, integers or booleans; Python's numbers have 64 bits, as they do in Python.

    Args:
        name: For the message.
        value: A tensor, a NumPy array or what NumPy can read, a table or column of numbers (pandas, Polars), or numbers in
            lists; Python's floating-point numbers are float64, whatever torch's default.
        dtype: As for `torch.as_tensor`.
        device: As for `torch.as_tensor`.

    Raises:
        ShapeError: If the value cannot be read as a tensor, is a sparse, quantised or nested tensor, is a table with columns
            without numbers, which the message names, has masked entries, or is complex where a dtype is given.
    """
    try:
        array = value if isinstance(value, Tensor) else _as_array(name, value)
        # torch would drop the imaginary parts.
        dropped = dtype is not None and (array.is_complex() if isinstance(array, Tensor) else np.iscomplexobj(array))
        if dropped:
            raise ShapeError(f"{name} must be real numbers, got complex ones.")
        tensor = torch.as_tensor(array, dtype=dtype, device=device)
    except ShapeError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError, NotImplementedError, IndexError, AttributeError) as error:
        odd = next(map(repr, _others(value)), "") if isinstance(value, (list, tuple)) else ""
        message = f"{name} must be numbers, and holds {odd[:60]}: convert it with float(), or put NaN in its place."
        require(not odd, message, ShapeError)
        said = str(value) if isinstance(value, (str, int, float)) else type(value).__name__
        raise ShapeError(f"{name} must be a tensor or numbers, got {said[:60]!r}: {str(error).splitlines()[0]}") from error
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise ShapeError(f"{name} must be a dense tensor, got one of layout {tensor.layout}: call .to_dense().")
    if tensor.is_meta:
        raise ShapeError(f"{name} are on the device meta, which holds no numbers: use cpu or cuda.")
    return tensor


def own_copy(tensor: Tensor) -> Tensor:
    """A detached copy, which later writes to the original, by torch or through shared memory, do not reach. Expanded dimensions
    stay expanded: rows that share their numbers are copied once."""
    base = tensor.detach()
    for dim, stride in enumerate(tensor.stride()):
        base = base.narrow(dim, 0, 1) if stride == 0 and tensor.shape[dim] > 1 else base
    return base.clone().expand(tensor.shape)


def _as_array(name: str, value: Any) -> Any:
    """Tables and arrays as NumPy arrays that torch can read; anything else as it is."""
    if callable(getattr(value, "to_numpy", None)):
        columns = getattr(value, "columns", None)
        if columns is None:
            value = _numbers(name, value.to_numpy())
        else:
            # A mixed table as a whole would be an array of objects: column by column each keeps its numbers.
            parts = {str(column): np.asarray(value[column].to_numpy()) for column in columns}
            odd = [column for column, part in parts.items() if part.dtype.kind not in "iufb"]
            message = (
                f"{name} must be numbers, and these columns of the table hold others: {', '.join(odd)[:200]}. Encode them as "
                "numbers, drop them, or fill in what is missing."
            )
            require(not odd, message, ShapeError)
            value = np.stack(list(parts.values()), axis=-1)
    elif isinstance(value, Sequence) and len(value) and isinstance(value[0], np.ndarray):
        # NumPy's own function would drop the masks.
        masked = any(isinstance(part, np.ma.MaskedArray) for part in value)
        value = (np.ma if masked else np).stack(list(value))
    elif not isinstance(value, np.ndarray) and (hasattr(value, "__array__") or _is_plain(value)):
        # torch would round Python's numbers to its default dtype, so that they would depend on a global setting.
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        value = _numbers(name, value)
        # torch reads neither foreign byte orders nor negative strides, and warns of arrays that are read-only.
        if not (value.flags.writeable and value.dtype.isnative and all(stride >= 0 for stride in value.strides)):
            value = value.astype(value.dtype.newbyteorder("="), order="C", copy=True)
    return value


def _is_plain(value: Any) -> bool:
    """Whether this is a Python number, or a nested list of Python numbers, judged by the first entry."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, (bool, int, float, complex))


def _others(value: Any) -> Iterator[Any]:
    """The entries of nested lists that are neither numbers nor arrays of numbers."""
    for entry in value:
        if isinstance(entry, (list, tuple)):
            yield from _others(entry)
        elif not (isinstance(entry, (bool, int, float, complex)) or hasattr(entry, "__array__")):
            yield entry


def _numbers(name: str, array: np.ndarray) -> np.ndarray:
    masked = isinstance(array, np.ma.MaskedArray) and bool(np.ma.is_masked(array))
    # torch would read what is behind the mask.
    message = (
        f"{name} must be numbers, and some entries of this array are masked: fill them, such as rewards of evaluations that "
        "failed with .filled(numpy.nan)."
    )
    require(not masked, message, ShapeError)
    good = array.dtype.kind in "iufbc"
    require(good, f"{name} must be numbers, got an array of {array.dtype}: convert it with .astype(float).", ShapeError)
    return array


def as_features(name: str, value: Any) -> Tensor:
    """Features of points, as `as_tensor`; whole numbers become float64. Raises `ShapeError` likewise."""
    tensor = as_tensor(name, value)
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return tensor.double() if whole else tensor


def check_dtype(name: str, value: Any) -> torch.dtype:
    """The value, if it is float32 or float64."""
    good = isinstance(value, torch.dtype) and value in DTYPES
    require(good, f"{name} must be float64 (accurate) or float32 (fast), got {value}.", ShapeError)
    checked: torch.dtype = value
    return checked


def as_device(value: Any) -> torch.device:
    """A device, from one or its name, as its tensors name it: `"cuda"` is the current CUDA device, such as `cuda:0`."""
    try:
        device = torch.device(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ArgumentError(f"device must be a device such as 'cpu' or 'cuda:0', got {value!r}.") from error
    here = device.type != "cuda" or torch.cuda.is_available()
    require(here, f"device must be one that is here, and torch finds no CUDA device, got {value!r}: use 'cpu'.")
    if device.type == "cpu":
        return device
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, ImportError, RuntimeError) as error:  # by kind of device: no backend, no module, no such index
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ArgumentError(f"device must be a device that is here, such as 'cpu', got {value!r}: {said}") from error


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether tensors on these devices may meet: `torch.device("cuda")` and its tensors' `cuda:0` are one device."""
    return one == other or (one.type == other.type and as_device(one) == as_device(other))
