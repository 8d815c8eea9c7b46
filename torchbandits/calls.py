"""Calls of an object's methods one after the other, where several threads share the object."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import ReferenceType, ref

import torch

_O = TypeVar("_O")
_P = ParamSpec("_P")
_R = TypeVar("_R")

# Kept apart from the objects, which are copied and saved.
_LOCKS: dict[ReferenceType[Any], threading.RLock] = {}


def one_at_a_time(method: Callable[Concatenate[_O, _P], _R]) -> Callable[Concatenate[_O, _P], _R]:
    """Decorate a method: it waits until no other thread is in a decorated method of the same object, and runs outside of
    `torch.inference_mode`, as `outside_inference_mode`."""
    outside = torch.inference_mode(False)(method)

    @functools.wraps(method)
    def called(self: _O, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        # `setdefault` is one operation of a dictionary. A lock around it, which is not reentrant, could be left locked by an
        # interrupt (Ctrl-C); a reentrant lock that is left so does not hold up its own thread. The lock goes with its object.
        with _LOCKS.setdefault(ref(self, _LOCKS.pop), threading.RLock()):
            # Not the decorator, since a call more counts in a small step.
            return outside(self, *args, **kwargs) if torch.is_inference_mode_enabled() else method(self, *args, **kwargs)

    return called
