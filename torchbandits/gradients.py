"""Functions that record no gradients, at little cost where none are recorded anyway."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def without_gradients(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Run a function under `torch.no_grad`. Within another such function nothing has to be switched: a step of a bandit enters
    eight of them, and each switch takes as long as an operation on a small tensor."""

    @wraps(function)
    def quiet(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    return quiet
