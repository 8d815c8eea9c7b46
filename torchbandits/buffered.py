"""Modules that set and read buffers and plain attributes without the searches and checks of `nn.Module`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Buffered(nn.Module):
    """Base of modules that replace their buffers at every step.

    `nn.Module` checks of every value that is set whether it is a parameter, a module or a buffer, and finds a buffer only after
    Python's own search has failed. Either takes as long as an operation on a small tensor; a step sets a dozen values and reads
    sixty buffers. This class sets tensors for buffers and plain values for plain attributes, which are nearly all values,
    without these checks, and reads buffers directly.
    """

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a buffer, as `nn.Module` does, that is read without its search."""
        super().register_buffer(name, tensor, persistent)
        if not hasattr(type(self), name):
            setattr(type(self), name, _Buffer(name))

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        if type(value) is Tensor and name in own["_buffers"]:
            own["_buffers"][name] = value
        elif name in own and not isinstance(value, Tensor | nn.Module):
            own[name] = value
        else:
            super().__setattr__(name, value)


class _Buffer:
    """Attribute of a class that reads a buffer of its instances. An attribute of an instance comes first."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, module: Buffered | None, kind: type) -> Any:
        if module is None:
            return self
        try:
            return module.__dict__["_buffers"][self._name]
        except KeyError:
            raise AttributeError(f"{kind.__name__!r} object has no attribute {self._name!r}") from None
