"""Failures in the middle of a call."""

from __future__ import annotations

import traceback
from typing import Any

import torch


class Interrupted(Exception):
    """Raised by `Interruption`."""


class Interruption(torch.overrides.TorchFunctionMode):
    """Counts calls of torch, and fails the first from a given number on that is not part of undoing the call.

    Args:
        at: The number of the call; infinity to count only.
    """

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at, self.calls = at, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, and raise `Interrupted` once."""
        self.calls += 1
        # Leaving `torch.no_grad()` can't fail, and if it did gradients would be off from then on.
        due = self.calls >= self.at and func is not torch._C._set_grad_enabled
        if due and not any(frame.name == "restore" for frame in traceback.extract_stack(limit=12)):
            self.at = torch.inf
            raise Interrupted
        return func(*args, **(kwargs or {}))
