"""What a user hands in, as a tensor: whatever else it is, one clear error."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import gpytorch
import numpy as np
import torch
from torch import Tensor

from torchbandits.errors import ArgumentError, KeywordError, ShapeError, nearest, require

DTYPES = (torch.float32, torch.float64)
ENDLESS = 2**62  # more than anybody waits for
LARGEST = 1e150  # what its square, and the sum of many of those, leaves room for


_P = ParamSpec("_P")
_R = TypeVar("_R")
_GENERATOR = "draws come from a generator that you give: generator=torch.Generator().manual_seed(seed) of Bandit or run."
_BATCH = "the policy's batch rule says how many arms are picked: ask(limit=…) takes fewer, ask(more=…) adds as many to them."
_LARGEST_IS_BEST = "rewards are maximised everywhere: tell their negatives to minimise."
# Keywords of other libraries, and what this one has in their place.
_ELSEWHERE = {
    **dict.fromkeys(("seed", "random_seed", "random_state", "rng"), _GENERATOR),
    **dict.fromkeys(("batch_size", "q", "n", "num_picks", "n_points"), _BATCH),
    **dict.fromkeys(("maximize", "minimize", "maximise", "minimise", "direction"), _LARGEST_IS_BEST),
    "beta": "give the number that multiplies the posterior standard deviation: width=widths.Constant(math.sqrt(beta)).",
}


def explains_keywords(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a public function: a keyword that it does not take raises `KeywordError`, which names what to use instead."""
    known = list(inspect.signature(function).parameters)
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for word in kwargs:
            if word not in known:
                instead = _ELSEWHERE.get(word) or f"it takes {', '.join(known)}.{nearest(word, known)}".replace("self, ", "")
                raise KeywordError(f"{name} takes no argument {word!r}: {instead}")
        return function(*args, **kwargs)

    return called


def as_tensor(name: str, value: Any, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """A dense tensor of real or complex numbers, integers or booleans; Python's numbers have 64 bits, as they do in Python.

    Args:
        name: For the message.
        value: A tensor, a NumPy array or what NumPy can read, a table or column of numbers (pandas, Polars), or numbers in
            lists; Python's floating-point numbers are float64, whatever torch's default.
        dtype: As for `torch.as_tensor`.
        device: Likewise.

    Raises:
        ShapeError: If it is nothing like a tensor, or a sparse, quantised or nested one, or a table with columns that hold no
            numbers, which the message names.
    """
    try:
        array = value if isinstance(value, Tensor) else _as_array(name, value)
        tensor = torch.as_tensor(array, dtype=dtype, device=device)
    except ShapeError:
        raise
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
        value = np.stack(list(value))
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
    """Whether this is a Python number, or a list of such, of lists of such and so on, by its first."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, (bool, int, float, complex))


def _numbers(name: str, array: np.ndarray) -> np.ndarray:
    good = array.dtype.kind in "iufbc"
    require(good, f"{name} must be numbers, got an array of {array.dtype}: convert it with .astype(float).", ShapeError)
    return array


def as_features(name: str, value: Any) -> Tensor:
    """Features of points, as `as_tensor`; whole numbers become float64. Raises `ShapeError` likewise."""
    tensor = as_tensor(name, value)
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return tensor.double() if whole else tensor


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
