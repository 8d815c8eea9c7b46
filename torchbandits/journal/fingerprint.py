"""What a run is of, in words and digests: whoever resumes it must bring the same policy, arms and costs."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, str, torch.dtype, torch.Size)


def digest(tensor: Tensor) -> str:
    """dtype, shape and the first 16 hexadecimal digits of the SHA-256 of a tensor. Cost: a pass over it."""
    held = tensor.detach().cpu().contiguous()
    data = hashlib.sha256(held.numpy().data if held.numel() else b"").hexdigest()
    return f"{str(held.dtype)[6:]} {tuple(held.shape)} {data[:16]}"


def describe(value: Any, name: str = "policy") -> dict[str, str]:
    """A policy and all it is made of, `name.of.part` to value: equal for policies that choose alike.

    Data classes, kernels and other modules (structure, numbers, tensors), functions (by name) and plain values are described;
    of any other object its class and its attributes.
    """
    if value is None or isinstance(value, _PLAIN):
        return {name: repr(value)}
    if isinstance(value, Tensor):
        return {name: digest(value)}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, nn.Module):
        return {name: kind} | _described(_module(value), name)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: kind} | _described({f.name: getattr(value, f.name) for f in fields(value)}, name)
    if isinstance(value, Mapping):
        return {name: kind} | _described({str(k): v for k, v in value.items()}, name)
    if isinstance(value, (list, tuple)):
        return {name: kind} | _described({str(k): v for k, v in enumerate(value)}, name)
    if isinstance(value, (set, frozenset)):
        return {name: repr(sorted(map(str, value)))}
    if isinstance(value, functools.partial):
        return {name: kind} | _described({"func": value.func, "args": value.args, "keywords": value.keywords}, name)
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return {name: f"{value.__module__}.{value.__qualname__}"}
    return {name: kind} | _described(
        {k: v for k, v in vars(value).items() if not k.startswith("_")} if hasattr(value, "__dict__") else {}, name
    )


def _described(parts: Mapping[str, Any], name: str) -> dict[str, str]:
    return {key: text for part, value in parts.items() for key, text in describe(value, f"{name}.{part}").items()}


def _module(module: nn.Module) -> dict[str, Any]:
    """Tensors and plain attributes of a module and its parts: ν of a Matérn kernel is one of the latter."""
    parts: dict[str, Any] = dict(module.state_dict())
    for path, part in module.named_modules():
        own = {k: v for k, v in vars(part).items() if isinstance(v, _PLAIN) and not k.startswith("_") and k != "training"}
        parts |= {f"{path}.{k}".lstrip("."): v for k, v in own.items()} | {f"{path}.class".lstrip("."): type(part)}
    return parts


def difference(written: Mapping[str, str], given: Mapping[str, str]) -> str:
    """The first three entries that differ, in words; empty where none does."""
    keys = [key for key in dict.fromkeys([*written, *given]) if written.get(key) != given.get(key)]
    return "; ".join(f"{key} was {written.get(key, 'absent')}, is {given.get(key, 'absent')}" for key in keys[:3])
