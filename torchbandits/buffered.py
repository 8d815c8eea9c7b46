"""Buffers: modules that set them without the checks of `nn.Module`, and those that grow with the data."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn


class Buffered(nn.Module):
    """Base of modules that replace their buffers at every step.

    `nn.Module` checks of every value that is set whether it is a parameter, a module or a buffer. This takes as long as an
    operation on a small tensor, and happens a dozen times per step. This class sets tensors for buffers and plain values for
    plain attributes, which are nearly all values, without these checks.

    Reading a buffer as an attribute takes as long, since `nn.Module` is asked only after Python's own search has failed. What
    is read several times per step is therefore read from `_buffers`.
    """

    _buffers: dict[str, Any]
    _grows: ClassVar[tuple[str, ...]] = ()
    """Buffers that grow with the data: they take the sizes of a saved state that is loaded."""

    def __setattr__(self, name: str, value: Any) -> None:
        attributes = self.__dict__
        if type(value) is Tensor and name in attributes["_buffers"]:
            attributes["_buffers"][name] = value
        elif name in attributes and not isinstance(value, Tensor | nn.Module):
            attributes[name] = value
        else:
            super().__setattr__(name, value)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in self._grows:
            if (own := self._buffers[name]) is not None and prefix + name in state_dict:
                setattr(self, name, state_dict[prefix + name].to(own.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
