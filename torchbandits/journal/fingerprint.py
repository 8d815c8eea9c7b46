"""Descriptions of a run in words and digests, so that it is resumed with the same policy, arms and costs only."""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchbandits.arms import Shard
from torchbandits.arms.scanning import scan
from torchbandits.errors import UnsupportedError, require
from torchbandits.sources import ArmSet, InMemory

FORM = "2"  # form of descriptions; the first form had no entry whose name holds a "__", and no entry for the form
_PLAIN = (bool, int, float, str, torch.dtype, torch.Size)
_VALUES = (complex, bytes, range, slice, Decimal, Fraction, PurePath, torch.device, np.generic)
_LIBRARIES = frozenset({"torchbandits", "torch", "gpytorch", "botorch", "linear_operator", "numpy", "scipy"})
_PROBES = 64  # arms at which environments are compared
_SPEED = ".memory_budget"  # sizes of caches in bytes, which change no pick
# How names end whose default has changed, with their values in earlier versions and in this one.
_CHANGED_DEFAULTS = {
    ".priors.noise": ("builtins.tuple", "None"),
    ".priors.noise.0": ("-4.0", None),
    ".priors.noise.1": ("1.0", None),
    ".score.exponent": ("1.0", "0.5"),
    ".score.baseline": ("0.0", "None"),
    ".aim.exponent": ("1.0", "0.5"),
}
_CONTENT = "arms.content"
# The arms of a source in descriptions that have no entry for its content yet.
_STORED = re.compile(r"\w+\((\d+ x \d+, [\w.]+), [\w:]+\)( -?[0-9a-f]+)")


def digest(tensor: Tensor) -> str:
    """dtype, shape and the first 16 hexadecimal digits of the SHA-256 of a tensor. Cost: a pass over it."""
    held = tensor.detach().cpu()
    held = held.to_dense() if held.layout != torch.strided else held.resolve_conj().resolve_neg()
    strange = held.is_floating_point() and held.dtype.itemsize < 4 and held.dtype != torch.float16  # to NumPy
    held = (held.float() if strange else held).contiguous()
    return f"{str(tensor.dtype)[6:]} {tuple(held.shape)} {_sha(held.numpy().data if held.numel() else b'')}"


def describe_policy(policy: Any) -> dict[str, str]:
    """The description of a policy, and its form, for `difference`."""
    return {"__form__": FORM} | describe(policy)


def describe_run(policy: Any, domain: ArmSet, costs: Any, known: Any = None) -> dict[str, str]:
    """The description of a policy, its arms (or box), their costs and known outcomes. Cost: a pass over the arms.

    Arms that all batch rows share are described twice: by the way they are stored, and by a hash of their values.

    Raises:
        UnsupportedError: For arms that are divided among ranks.
    """
    require(
        not isinstance(domain, Shard),
        "a journal or a store belongs to one process, and these arms are distributed over several: leave "
        "journal= or store= out, and save bandit.state_dict() instead.",
        UnsupportedError,
    )
    given = {"costs": costs, "known": known}
    digests = {name: digest(torch.as_tensor(x, dtype=torch.float64)) for name, x in given.items() if x is not None}
    return describe_policy(policy) | _arms(domain) | digests


def _arms(domain: ArmSet) -> dict[str, str]:
    if isinstance(domain, Tensor) and domain.dim() != 2:
        return {"arms": digest(domain)}
    source = InMemory(domain, distinct=True) if isinstance(domain, Tensor) else domain
    content = f"{scan(source).fingerprint:x}"
    own = digest(domain) if isinstance(domain, Tensor) else f"{domain!r} {content}"
    return {"arms": own, _CONTENT: f"{source.num_arms} x {source.dim}, {source.dtype} {content}"}


def describe(value: Any, name: str = "policy", within: tuple[int, ...] = ()) -> dict[str, str]:
    """Describe a policy and its parts, `name.of.part` to value: equal, in every process, for policies that select equally.

    Data classes, kernels and other modules, lists, dictionaries, arrays and plain values are described by their content. A
    function is described by its name, its code, its defaults and the values that it closes over; functions of torch and related
    packages are described without their code, which may change between versions. Any other object is described by its class and
    its attributes. Classes are described by name, and attributes that begin with an underscore, such as caches, are left out;
    so is the content of global variables and files that a function reads.

    Args:
        value: The policy, or a part of it.
        name: Its name.
        within: The objects that contain it, to detect cycles.
    """
    if value is None or isinstance(value, _PLAIN):
        return {name: repr(value)}
    if isinstance(value, Tensor):
        return {name: digest(value)}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if id(value) in within:
        return {name: kind}
    within = (*within, id(value))
    if isinstance(value, nn.Module):
        return {name: kind} | _described(_module(value), name, within)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: kind} | _described(_fields(value), name, within)
    if isinstance(value, Mapping):
        return {name: kind} | _described({str(k): v for k, v in value.items()}, name, within)
    if isinstance(value, (list, tuple)):
        return {name: kind} | _described({str(k): v for k, v in enumerate(value)}, name, within)
    if isinstance(value, (set, frozenset)):
        return {name: repr(sorted(map(str, value)))}
    if isinstance(value, functools.partial):
        parts = {"func": value.func, "args": value.args, "keywords": value.keywords}
        return {name: kind} | _described(parts, name, within)
    if isinstance(value, type):
        return {name: f"{value.__module__}.{value.__qualname__}"}
    if callable(value) and hasattr(value, "__qualname__"):
        return {name: f"{value.__module__}.{value.__qualname__}"} | _described(_function(value), name, within)
    return {name: kind} | _described(_attributes(value), name, within)


def _described(parts: Mapping[str, Any], name: str, within: tuple[int, ...]) -> dict[str, str]:
    return {key: text for part, value in parts.items() for key, text in describe(value, f"{name}.{part}", within).items()}


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a data class, without those that were added to it later and are None."""
    parts = {f.name: (getattr(value, f.name), f.metadata.get("described") == "if given") for f in fields(value)}
    return {name: part for name, (part, later) in parts.items() if not (later and part is None)}


def _module(module: nn.Module) -> dict[str, Any]:
    """Tensors and attributes of a module and its parts: ν of a Matérn kernel is one of the latter."""
    parts: dict[str, Any] = dict(module.state_dict())
    for path, part in module.named_modules():
        attributes = {k: v for k, v in vars(part).items() if not k.startswith("_") and k != "training"}
        plain = {f"{path}.{k}".lstrip("."): v for k, v in attributes.items() if isinstance(v, _PLAIN)}
        parts |= plain | {f"{path}.class".lstrip("."): type(part)}
        if not isinstance(part, torch.distributions.Distribution):  # priors cache computed values there
            rest = {k: v for k, v in attributes.items() if v is not None and not isinstance(v, _PLAIN)}
            parts |= {f"{path}.__dict__.{k}".lstrip("."): v for k, v in rest.items()}
    return parts


def _function(function: Any) -> dict[str, Any]:
    """The parts that distinguish functions of the same name: a method's object, the code, defaults and closed-over values."""
    parts: dict[str, Any] = {}
    owner, code = getattr(function, "__self__", None), getattr(function, "__code__", None)
    if owner is not None and not isinstance(owner, (ModuleType, type)):
        parts["__self__"] = owner
    if not isinstance(code, CodeType):
        return parts
    if str(function.__module__).partition(".")[0] not in _LIBRARIES:
        parts["__code__"] = f"{_interpreter()} {_sha(repr(_code(code)).encode())}"
    for name in ("__defaults__", "__kwdefaults__"):
        if (given := getattr(function, name, None)) is not None:
            parts[name] = given
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            parts[f"__closure__.{name}"] = cell.cell_contents
        except ValueError:
            continue  # nothing has been assigned yet
    return parts


def _interpreter() -> str:
    """The version of the bytecode: other versions of Python compile the same source differently."""
    return f"{sys.implementation.cache_tag}-{sys.flags.optimize}"


def _code(code: CodeType) -> tuple[Any, ...]:
    """The code of a function, without its place in the source."""
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return code.co_code, code.co_exceptiontable, names, counts, _constants(code.co_consts)


def _constants(constants: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in constants:
        if isinstance(value, CodeType):
            found.append(_code(value))
        elif isinstance(value, tuple):
            found.append(_constants(value))
        else:
            found.append(sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value))
    return found


def _attributes(value: Any) -> dict[str, Any]:
    """The content of any other object; a Python module is described by its name alone."""
    if isinstance(value, ModuleType):
        return {"__value__": value.__name__}
    if isinstance(value, Enum):
        return {"__value__": value.name}
    if isinstance(value, np.ndarray):
        plain = value.dtype.kind in "biufc"
        whole = f"{value.dtype.str} {value.shape} {_sha(np.ascontiguousarray(value).data)}" if plain and value.size else None
        return {"__value__": whole or [str(value.dtype), list(value.shape), value.tolist()]}
    if isinstance(value, _VALUES):
        return {"__value__": repr(value)}
    slots = [name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    slotted = {f"__slots__.{k}": getattr(value, k) for k in slots if not k.startswith("_") and hasattr(value, k)}
    return slotted | {k: v for k, v in getattr(value, "__dict__", {}).items() if not k.startswith("_")}


def _names(slots: str | Iterable[str]) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _sha(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def describe_environment(environment: Any) -> dict[str, str]:
    """An environment: its class, its name, its noise, and its expected rewards and costs at up to 64 arms spread over them all.

    Its function is described (see `describe`) only where expected rewards are unknown. Numbers are compared to nine digits,
    since rounding differs between machines.
    """
    means = environment.means
    parts: dict[str, Any] = {"means": means, "costs": environment.costs, "records": getattr(environment, "records", None)}
    digests = {name: _sampled(value.detach(), name == "records") for name, value in parts.items() if value is not None}
    kind = f"{type(environment).__module__}.{type(environment).__qualname__}"
    plain = {name: getattr(environment, name, None) for name in ("name", "noise", "seeded")}
    unknown = not bool(torch.isfinite(means).all()) and getattr(environment, "function", None) is not None
    function = _evaluation(environment.function, "environment.function") if unknown else {}
    noise = {"noise_std": f"{float(environment.noise_std):.9g}"}
    return {"environment": kind} | _described(plain | noise | digests, "environment", ()) | function


def _evaluation(function: Any, name: str) -> dict[str, str]:
    """A function that evaluates arms: its name, its code, and the plain values that it was given. Objects that it holds
    (counters, caches, connections) change while it runs, and so do not identify the function."""
    if isinstance(function, functools.partial):
        given = {f"args.{k}": v for k, v in enumerate(function.args)} | {
            f"keywords.{k}": v for k, v in function.keywords.items()
        }
        return _evaluation(function.func, f"{name}.func") | _described(_plain(given), name, ())
    if not hasattr(function, "__qualname__"):  # an object that can be called
        function = type(function).__call__
    own = _function(function)
    for part, given in (("__defaults__", own.pop("__defaults__", ())), ("__kwdefaults__", own.pop("__kwdefaults__", {}))):
        own |= {f"{part}.{k}": v for k, v in (given.items() if isinstance(given, Mapping) else enumerate(given))}
    own = _plain(own)
    return {name: f"{function.__module__}.{function.__qualname__}"} | _described(own, name, ())


def _plain(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {part: value for part, value in parts.items() if value is None or isinstance(value, _PLAIN)}


def _sampled(values: Tensor, rows: bool) -> str:
    """Shape of numbers `... x A` (`A x r` where they are rows of arms), and a digest of those at up to 64 arms."""
    last = values if rows else values.movedim(-1, 0)
    place = torch.linspace(0, len(last) - 1, min(len(last), _PROBES), dtype=torch.float64).round().long()
    digits = [f"{number:.9g}" for number in last[place.to(last.device)].reshape(-1).tolist()]
    return f"{tuple(values.shape)} {_sha(' '.join(digits).encode())}"


def difference(written: Mapping[str, str], given: Mapping[str, str]) -> str:
    """The first three entries that differ, in words; empty where none does.

    The comparison leaves out: entries that the first form did not have, if the written description has this form; the code of
    functions, if another version of Python compiled it; the environment, unless both descriptions have one; budgets of memory,
    which change no pick; options that did not exist when the description was written, if they are None now; defaults that have
    changed since; and the way in which equal arms are stored.
    """
    first = "__form__" not in written
    played = all(any(_of_environment(key) for key in side) for side in (written, given))

    def compared(key: str) -> bool:
        if (
            key in ("__form__", _CONTENT)
            or key.endswith(_SPEED)
            or (first and "__" in key)
            or (_of_environment(key) and not played)
        ):
            return False
        old, new = written.get(key), given.get(key)
        if key == "arms" and (content := _content(written)) is not None and content == _content(given):
            return False
        if old is None and new == "None":  # an option that did not exist when this was written, left out now
            return False
        if any(key.endswith(name) and (old, new) == values for name, values in _CHANGED_DEFAULTS.items()):
            return False
        elsewhere = key.endswith("__code__") and old is not None and new is not None and old.split()[0] != new.split()[0]
        return old != new and not elsewhere

    keys = [key for key in dict.fromkeys([*written, *given]) if compared(key)]
    return "; ".join(f"{key} was {written.get(key, 'absent')}, is {given.get(key, 'absent')}" for key in keys[:3])


def _content(described: Mapping[str, str]) -> str | None:
    """Number, dtype and hash of the arms in the description of a run; None where only a digest is known."""
    stored = _STORED.fullmatch(described.get("arms", ""))
    return described.get(_CONTENT) or (None if stored is None else "".join(stored.groups()))


def _of_environment(key: str) -> bool:
    return key.partition(".")[0] == "environment"
