"""Modules whose buffers and plain attributes are set at once."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Buffered(nn.Module):
    """Base of modules that replace their buffers at every step.

    `nn.Module` asks of every value that is set whether it is a parameter, a module or a buffer, which takes as long as an
    operation on a small tensor, a dozen times per step. Here tensors for buffers and plain values for plain attributes, which
    are nearly all of them, are set without asking.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        if type(value) is Tensor and name in own["_buffers"]:
            own["_buffers"][name] = value
        elif name in own and not isinstance(value, Tensor | nn.Module):
            own[name] = value
        else:
            super().__setattr__(name, value)
