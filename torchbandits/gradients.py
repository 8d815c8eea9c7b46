"""Decorators that switch off gradients or inference mode, and cost little where nothing is to be switched."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def without_gradients(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Run a function under `torch.no_grad`, unless gradients are disabled already. A step of a bandit enters eight such
    functions, and each switch takes as long as an operation on a small tensor."""

    # PyTorch's decorator instead of a `with` block, because an interrupt between the end of the block and its exit would leave
    # gradients disabled.
    switched = torch.no_grad()(function)

    @wraps(function)
    def quiet(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        return switched(*args, **kwargs) if torch.is_grad_enabled() else function(*args, **kwargs)

    return quiet


def outside_inference_mode(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Run a function outside of `torch.inference_mode`, also where it is called within. Tensors that are made in this mode can
    neither be changed in place later nor take part in a fit, which needs gradients."""
    outside = torch.inference_mode(False)(function)

    @wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        return outside(*args, **kwargs) if torch.is_inference_mode_enabled() else function(*args, **kwargs)

    return called
