"""Decorator for functions without gradients, of little cost where gradients are disabled already."""

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

    @wraps(function)
    def quiet(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    return quiet
