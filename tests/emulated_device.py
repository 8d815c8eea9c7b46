"""Emulated CUDA device for tests without a GPU: tensors report the device `cuda:0` and keep their numbers on the CPU.

    with emulated_device():
        x = torch.rand(3).to("cuda")  # x.device is cuda:0
        x + torch.ones(3)             # raises DeviceError, as CUDA does

A `DeviceTensor` wraps a CPU tensor. To PyTorch's C++ code it is on the device `meta`, which every build has; to Python it
is on `cuda:0`. `_Names` (a function mode) translates the names of devices on their way to C++ and replaces functions that never
reach the dispatcher, such as `numpy()`. `_Kernels` (a dispatch mode) intercepts every operation before a kernel runs, raises an
error for operations that CUDA does not allow, runs the others on the CPU tensors and wraps the results. No kernel of `meta`
runs. While a `CUDAGraph` is captured, operations are recorded instead and waiting is an error; its replay runs them again on
the same memory, as one launch.

Errors are raised for tensors of both devices in one operation (CPU tensors without dimensions combined with CUDA tensors, and
CPU indices of CUDA tensors, are allowed, as in PyTorch), for results and values on the wrong device, for `numpy()` of a CUDA
tensor, and for a CPU generator of numbers drawn on CUDA. Rounding, races between streams, memory, and other effects of a real
device are not emulated.

    with emulated_device() as asked:
        step()
    asked.launches, asked.waits           # operations sent to the device, and times the host waited for it

A launch is an operation that is neither a view nor an allocation: a real device starts one kernel for it, or several. The host
waits when it reads a number, when a size depends on the numbers, and for copies, except non-blocking copies from pinned memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda:0")
_CARRIER = torch.device("meta")
_INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}
# In addition to pointwise operations, these accept a CPU tensor without dimensions as a number.
_NUMBERS = {"fill", "fill_", "masked_fill", "masked_fill_", "index_fill", "index_fill_"}
# In addition to views, these operations run no kernel.
_FREE = {
    "empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "detach", "alias", "lift_fresh", "lift",
    "_unsafe_view", "_reshape_alias", "set_", "resize_",
}  # fmt: skip
# Operations for which the host waits, because a number is read, or a size or an error code depends on the numbers.
_WAITS = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim",
    "unique_consecutive", "bincount", "repeat_interleave", "_linalg_check_errors", "_linalg_eigh", "_linalg_svd",
    "linalg_lstsq", "multinomial",
}  # fmt: skip
_MAKE = (torch.tensor, torch.as_tensor, torch.asarray)
_running: list[_Kernels] = []


class DeviceError(RuntimeError):
    """An operation that CUDA does not allow."""


class DeviceTensor(Tensor):
    """A tensor on the emulated device; `host` contains its numbers."""

    host: Tensor
    __slots__ = ["host"]
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: Tensor) -> DeviceTensor:
        return Tensor._make_wrapper_subclass(
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype, device=_CARRIER
        )

    def __init__(self, host: Tensor) -> None:
        self.host = host

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _running:
            raise RuntimeError("a tensor of the emulated device is used after the emulation ended.")
        return _running[-1].run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"{self.host!r:.200} on {DEVICE}"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else super().__format__(spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, (self.host.detach(), self.dtype, str(DEVICE), False)


def on_host(value: Any) -> Any:
    """The same value with every tensor of the device replaced by its CPU tensor."""
    return _mapped(lambda x: x.host if isinstance(x, DeviceTensor) else x, value)


def _carrier(device: Any) -> Any:
    """The device passed to C++: `meta` for any name of the emulated device."""
    named = isinstance(device, str | torch.device) and torch.device(device).type == "cuda"
    return _CARRIER if named or type(device) is int else device


def _mapped(change: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply a function to the tensors in lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        changed = [_mapped(change, x) for x in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    return {k: _mapped(change, x) for k, x in value.items()} if isinstance(value, dict) else value


def _tensors(*values: Any) -> tuple[list[DeviceTensor], list[Tensor]]:
    """Tensors on the device, and on the CPU."""
    there: list[DeviceTensor] = []
    here: list[Tensor] = []
    _mapped(lambda x: (there if isinstance(x, DeviceTensor) else here).append(x), values)
    return there, here


class _Names(TorchFunctionMode):
    """A function mode that translates names of devices and replaces functions that read a tensor's memory without an
    operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        wanted = _carrier(kwargs.pop("device", None))
        if func is Tensor.cuda:
            return args[0].to(_CARRIER)
        if func is Tensor.to:
            args = tuple(map(_carrier, args))
        if func in _MAKE and not isinstance(args[0], DeviceTensor):
            made = func(_numbers(args[0]), *args[1:], **kwargs)  # PyTorch makes the tensor on the host, then copies it
            return made if wanted is None else made.to(wanted)
        if kwargs.pop("pin_memory", False):
            func, args = torch.Tensor.pin_memory, (func(*args, **kwargs),)
        if type(kwargs.get("generator")) is DeviceGenerator:
            if wanted is not _CARRIER:
                raise DeviceError("Expected a 'cpu' device type for generator but found 'cuda'")
            _running[-1].asked.launches += 1
            return DeviceTensor(func(*args, **kwargs))
        if wanted is not None:
            kwargs["device"] = wanted
        if func is Tensor.pin_memory:
            if isinstance(args[0], DeviceTensor):
                raise DeviceError("only dense CPU tensors can be pinned")
            if any(step == 0 and size > 1 for step, size in zip(args[0].stride(), args[0].shape, strict=True)):
                raise DeviceError("more than one element of the written-to tensor refers to a single memory location")
            pinned = args[0].clone()
            # Views of the tensor share the storage, and are pinned too.
            pinned.untyped_storage()._emulated_pin = True
            return pinned
        if func is Tensor.is_pinned:
            return _is_pinned(args[0])
        stand_in = _STAND_INS.get(func)
        return func(*args, **kwargs) if stand_in is None or not _tensors(args)[0] else stand_in(*args, **kwargs)


def _is_pinned(x: Tensor) -> bool:
    return not isinstance(x, DeviceTensor) and getattr(x.untyped_storage(), "_emulated_pin", False)


def _numbers(data: Any) -> Any:
    """Copy lists of numbers, and replace tensors without dimensions on the device by numbers."""
    if isinstance(data, DeviceTensor) and data.dim() == 0:
        return data.item()
    return type(data)(map(_numbers, data)) if type(data) in (list, tuple) else data


def _no_numpy(x: Tensor, *args: Any, **kwargs: Any) -> Any:
    raise TypeError(
        f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )


def _deepcopy(x: Tensor, memo: dict[int, Any]) -> Tensor:
    if id(x) not in memo:
        copied = x.detach().clone().requires_grad_(x.requires_grad)
        if isinstance(x, torch.nn.Parameter):
            copied._is_param = True
        memo[id(x)] = copied
    return memo[id(x)]


def _set_data(x: Tensor, value: Tensor) -> None:
    if not (isinstance(x, DeviceTensor) and isinstance(value, DeviceTensor)):
        raise RuntimeError("incompatible tensor type")
    Tensor.data.__set__(x, value)
    x.host = value.host.detach()


def _new_tensor(x: Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    made = torch.tensor(data, dtype=x.dtype if dtype is None else dtype).to(_CARRIER if device is None else device)
    return made.requires_grad_(requires_grad)


def _key(key: Any) -> Any:
    """An index in which lists and arrays are tensors on the device, as in PyTorch."""
    if isinstance(key, tuple):
        return tuple(map(_key, key))
    return torch.as_tensor(np.asarray(key)).to(_CARRIER) if isinstance(key, list | np.ndarray) else key


def _getitem(x: Tensor, key: Any) -> Tensor:
    return Tensor.__getitem__(x, _key(key) if isinstance(x, DeviceTensor) else key)


def _setitem(x: Tensor, key: Any, value: Any) -> None:
    number = isinstance(x, DeviceTensor) and not isinstance(value, Tensor)
    Tensor.__setitem__(
        x, _key(key) if isinstance(x, DeviceTensor) else key, torch.tensor(value, dtype=x.dtype) if number else value
    )


_STAND_INS: dict[Any, Callable[..., Any]] = {
    Tensor.numpy: _no_numpy,
    Tensor.__array__: _no_numpy,
    Tensor.tolist: lambda x: x.cpu().tolist(),
    Tensor.data_ptr: lambda x: x.host.data_ptr(),
    Tensor.untyped_storage: lambda x: x.host.untyped_storage(),
    Tensor.record_stream: lambda x, stream: None,
    Tensor.__deepcopy__: _deepcopy,
    Tensor.data.__set__: _set_data,
    Tensor.new_tensor: _new_tensor,
    Tensor.__getitem__: _getitem,
    Tensor.__setitem__: _setitem,
}


@dataclass
class Asked:
    """Counts of the operations sent to the device, and of the times that the host waited for it."""

    launches: int = 0
    waits: int = 0


class _Kernels(TorchDispatchMode):
    """A dispatch mode that checks every operation and runs it on the CPU tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = Asked()
        self.graph: _Graph | None = None  # that is being captured
        self.streams = 0  # that are entered

    def _count(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], there: list[DeviceTensor], away: bool) -> None:
        if func.is_view or name in _FREE:
            return
        source = args[1 if name == "copy_" else 0] if name in ("_to_copy", "copy_") else None
        if source is not None and (not away or not isinstance(source, DeviceTensor)):
            unwaited = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
            blocking = not (unwaited and _is_pinned(source))
            self.asked.waits += bool(there or away) and (not away or blocking)
            return
        masks = name in _INDEXING and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        self.asked.waits += name in _WAITS or masks
        self.asked.launches += away and name != "_local_scalar_dense"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one operation of the dispatcher."""
        name = func._schema.name.split("::")[-1]
        there, here = _tensors(args, kwargs)
        device = kwargs.get("device")
        away = bool(there) if device is None else device.type in ("cuda", "meta")
        if name == "copy_":
            away = isinstance(args[0], DeviceTensor)
        if there or away:
            before = Asked(self.asked.launches, self.asked.waits)
            self._count(func, name, args, kwargs, there, away)
            if self.graph is not None:
                if self.asked.waits > before.waits:
                    raise DeviceError(f"operation not permitted when stream is capturing ({func})")
                self.asked.launches = before.launches
                # Numbers on the host are read now, not at the replay.
                args, kwargs = _mapped(lambda x: x if isinstance(x, DeviceTensor) or x.dim() else x.clone(), (args, kwargs))
        if not away:
            # A copy to the host, or an operation on the host.
            return func(*on_host(args), **on_host(kwargs)) if there else func(*args, **kwargs)
        if any(isinstance(x, _Generator) for x in (*args, *kwargs.values())):
            raise DeviceError("Expected a 'cuda' device type for generator but found 'cpu'")
        own_args, own_kwargs = on_host(args), on_host(kwargs)
        if device is not None:
            own_kwargs["device"] = torch.device("cpu")
        if name == "copy_" and there and len(there) == 2 and _same_memory(own_args[0], own_args[1]):
            return args[0]  # PyTorch skips a copy of a tensor to itself by comparing storages, which wrappers do not share
        if name == "_to_copy":
            return DeviceTensor(self._called(func, name, own_args, own_kwargs))
        if there and here and name != "copy_":
            _check_mixed(func, name, args, here)
        out = self._called(func, name, own_args, own_kwargs)
        given = {id(x.host): x for x in there}  # an operation in place returns its own argument
        return _mapped(lambda x: given[id(x)] if id(x) in given else DeviceTensor(x), out)

    def _called(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation on the CPU tensors, or record it. Views and allocations are made at once in any case."""
        if self.graph is None or func.is_view or name in _FREE:
            return func(*args, **kwargs)
        return self.graph.record(func, args, kwargs)


class _Graph:
    """`torch.cuda.CUDAGraph` during the emulation."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, dict[str, Any], Any]] = []
        self.finished = False

    def capture_begin(self, *_: Any, **__: Any) -> None:
        if not _running[-1].streams:
            raise DeviceError("CUDA graphs must be captured on a non-default stream.")
        _running[-1].graph = self

    def capture_end(self) -> None:
        _running[-1].graph, self.finished = None, True

    def record(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operation that does not run: what it would write stays as it was, and what it returns has no numbers yet."""
        _, given = _tensors(args, kwargs)
        before = [x.clone() for x in given]
        out = func(*args, **kwargs)
        for x, numbers in zip(given, before, strict=True):
            if not torch.equal(x, numbers):
                x.copy_(numbers)
        for x in self._fresh(out, args, kwargs):
            x.fill_(torch.nan if x.is_floating_point() else 0)
        self.calls.append((func, args, kwargs, out))
        return out

    @staticmethod
    def _fresh(out: Any, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
        """The results that are not arguments themselves."""
        given = [x.data_ptr() for x in _tensors(args, kwargs)[1]]
        return [x for x in _tensors(out)[1] if x.data_ptr() not in given]

    def replay(self) -> None:
        if not self.finished:
            raise DeviceError("Called CUDAGraph::replay without a preceding successful capture.")
        _running[-1].asked.launches += 1
        for func, args, kwargs, out in self.calls:
            for x, numbers in zip(*(self._fresh(y, args, kwargs) for y in (out, func(*args, **kwargs))), strict=True):
                x.copy_(numbers)


def _same_memory(first: Tensor, second: Tensor) -> bool:
    return first.data_ptr() == second.data_ptr() and first.shape == second.shape and first.stride()[1:] == second.stride()[1:]


def _check_mixed(func: Any, name: str, args: Any, here: list[Tensor]) -> None:
    """Raise DeviceError unless the CPU tensors are numbers of a pointwise operation, or an index."""
    written = [i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    on_cpu = any(i < len(args) and isinstance(args[i], Tensor) and not isinstance(args[i], DeviceTensor) for i in written)
    if name in _INDEXING:
        values = args[2] if len(args) > 2 else None
        fine = isinstance(args[0], DeviceTensor) and (values is None or isinstance(values, DeviceTensor) or values.dim() == 0)
    else:
        pointwise = torch.Tag.pointwise in func.tags or name in _NUMBERS
        fine = name == "lift_fresh" or (pointwise and all(x.dim() == 0 for x in here) and not on_cpu)
    if not fine:
        raise DeviceError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({func})"
        )


_Generator = torch.Generator


class _Generators(type(_Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, generator: Any) -> bool:
        return isinstance(generator, _Generator)


class DeviceGenerator(_Generator, metaclass=_Generators):
    """`torch.Generator` during the emulation: on the device, or as it is."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _Generator(device) if torch.device(device).type == "cpu" else super().__new__(cls)

    device = property(lambda self: DEVICE)


class _Stream:
    """A stream or an event that completes everything immediately."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...


@contextmanager
def _on_stream(stream: Any) -> Iterator[None]:
    _running[-1].streams += 1
    try:
        yield
    finally:
        _running[-1].streams -= 1


@contextmanager
def emulated_device() -> Iterator[Asked]:
    """Context in which `cuda:0` exists. Its value counts launches and waits; see the module."""
    here = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda device=None: None,
        "mem_get_info": lambda device=None: (4 << 30, 80 << 30),
        "empty_cache": lambda: None,
        "current_stream": lambda device=None: _Stream(),
        "stream": _on_stream,
        "Stream": _Stream,
        "Event": _Stream,
        "CUDAGraph": _Graph,
    }
    with ExitStack() as stack:
        for name, value in here.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(torch, "Generator", DeviceGenerator))
        stack.enter_context(mock.patch("torchbandits.arms.columns.FUSED", False))  # Triton compiles for real devices only
        lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device=…) makes the tensor on the host, then copies it
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifted)
        kernels = stack.enter_context(_Kernels())
        stack.enter_context(_Names())
        _running.append(kernels)
        stack.callback(_running.pop)
        yield kernels.asked


Lane = Callable[[], AbstractContextManager[object]]


@contextmanager
def real_device() -> Iterator[None]:
    """A context in which there is the CUDA device of this machine; without one, the test is skipped."""
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU that PyTorch can use")
    yield
