"""Configuration files of experiments: the keys they may hold, and the kernels, environments and policies that they name.

An unknown key is an error that names the file, the place and the nearest key. `load_config` reads a file, `build_environment`
and `build_policy` make the objects.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import os
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import gpytorch.kernels
import torch
import yaml
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PydanticSchemaGenerationError,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from torch import Tensor

from torchbandits.checks import as_path
from torchbandits.environments import Environment, from_table
from torchbandits.environments import registry as environments
from torchbandits.errors import ConfigError, DataError, TorchBanditsError, nearest, require
from torchbandits.experiments.printable import shortened
from torchbandits.files import LONGEST_NAME, folder_name_fault, read_yaml
from torchbandits.policies import Policy
from torchbandits.policies import registry as policies
from torchbandits.policies.composed import Composed
from torchbandits.sources import ArmSource
from torchbandits.starts import uniform
from torchbandits.tabular.tables import ARROW, PARQUET, TEXT
from torchbandits.widths import Constant, Scaled

# ------------------------------------------------------------------ sections and their faults in words

_MOST_FAULTS = 5  # largest number of faults named in one message
MEANT = dict.fromkeys(("seeds", "num_seeds", "runs", "replicates"), "repetitions") | dict.fromkeys(
    ("num_rounds", "rounds", "evaluations", "iterations", "steps"), "horizon"
)
"""The keys that are meant by other words for them, which are spelled like other keys or like none."""


class Section(BaseModel):
    """Base class of the parts of a configuration: unknown keys and infinities are errors."""

    # Options of functions may be infinite. Without "constants" they would be written as null.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants")

    def __init__(self, /, **values: Any) -> None:
        """Create a section in Python.

        Raises:
            ConfigError: If a value is missing, unknown or not valid; the message names the first faults.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(f"{type(self).__name__}: {all_faults(type(self), error)}") from error

    # Tells Pydantic that this constructor adds nothing to its own: nested sections are then validated without calling it, so
    # that errors name the whole path of a fault.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


Part = TypeVar("Part", bound=Section)


def parse_section(section: type[Part], values: dict[str, Any], source: str) -> Part:
    """Create a section of the given class from a mapping, as `parse_config` does."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {all_faults(section, error)}") from error


def all_faults(section: type[BaseModel], error: ValidationError) -> str:
    """The first faults in words and the number of further ones. They end with a full stop or a question mark."""
    more = error.error_count() - _MOST_FAULTS
    said = "; ".join([*islice(_faults(section, error), _MOST_FAULTS), *([f"and {more} more"] if more > 0 else [])])
    return said if said.endswith(("?", ".")) else f"{said}."


def _faults(section: type[BaseModel], error: ValidationError) -> Iterator[str]:
    groups: dict[tuple[int | str, ...], list[tuple[tuple[int | str, ...], Any]]] = {}
    for fault in error.errors(include_url=False):
        place, union = _place(section, fault)
        groups.setdefault(place if union is None else union, []).append((place, fault))
    for faults in groups.values():
        # Of a value that may be of several kinds, the faults are those of its own kind. If it is of none, all are expected.
        own = [(place, fault) for place, fault in faults if not _of_another_kind(fault) or len(place) > len(faults[0][0])]
        if len(faults) > 1 and not own:
            kinds = " or ".join(dict.fromkeys(_expected(fault) for _, fault in faults))
            yield f"{_path(faults[0][0])}: expected {kinds}, got {_given(faults[0][1])}"
            continue
        for place, fault in own or faults:
            yield _said(section, place, fault)


def _place(section: type[BaseModel], fault: Any) -> tuple[tuple[int | str, ...], tuple[int | str, ...] | None]:
    """The place of a fault, without Pydantic's names of the kinds that a value may have; and, if there are such, the place of
    this value."""
    place: list[int | str] = []
    union, fields = None, section.model_fields
    for part in fault["loc"]:
        if isinstance(part, int) or part in fields or fault["type"] in ("extra_forbidden", "missing"):
            place.append(part)
        elif union is None:
            union = tuple(place)
        if part in fields:
            fields = next((one.model_fields for one in _sections(fields[part].annotation)), {})
    return tuple(place), union


def _path(place: Sequence[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{shortened(part)}" for part in place).lstrip(".")


def _of_another_kind(fault: Any) -> bool:
    """Whether a value is of another kind than expected, such as a text for a number."""
    return str(fault["type"]).endswith(("_type", "_parsing"))


def _given(fault: Any) -> str:
    return "no value" if fault["input"] is None else shortened(repr(fault["input"]))


_KINDS = {
    "string": "a text",
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "dict": "keys and values",
    "model": "keys and values",
    "list": "a list",
}
_BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", "≥"),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "≤"),
}


def _expected(fault: Any) -> str:
    """What was expected in place of a value; in Pydantic's words where no others are known."""
    kind, context = str(fault["type"]), fault.get("ctx", {})
    if kind in _BOUNDS:
        key, sign = _BOUNDS[kind]
        return f"a number {sign} {context[key]:,.10g}"
    if kind == "literal_error":
        return str(context["expected"])
    if kind.endswith("too_short"):
        return "at least one character" if kind.startswith("string") else "at least one entry"
    return _KINDS.get(kind.partition("_")[0], f"something else ({fault['msg']})")


def _said(section: type[BaseModel], place: tuple[int | str, ...], fault: Any) -> str:
    """A fault in words, with its place and what to write."""
    path, kind, given = _path(place), fault["type"], fault["input"]
    key = next((part for part in reversed(place) if isinstance(part, str)), "")
    if kind == "extra_forbidden":
        known = _known_keys(section, place[:-1])
        meant = MEANT.get(str(place[-1]))
        hint = f" Did you mean {meant!r}?" if meant in known else nearest(str(place[-1]), known)
        hint = hint or f" Known keys: {', '.join(known)}"
        return f"{path}: unknown key.{hint}"
    if kind == "missing":
        return f"{path}: missing"
    if kind == "value_error":
        return f"{path or 'the whole'}: {fault['ctx']['error']}"
    expected, hint = _expected(fault), ""
    if kind == "model_type" and "name" in _known_keys(section, place):
        expected = f"a name, or {expected}" if place else expected
    if kind == "list_type" and isinstance(given, str):
        hint = f": write {key}: [{shortened(given.strip('[]'))}]"
    elif kind == "list_type" and isinstance(given, dict):
        hint = ": begin each entry with -"
    elif kind == "dict_type":
        hint = f": write {key}: {{option: value}}, or leave {key} out"
    elif kind == "too_short":
        hint = ": give one" if _is_required(section, place) else f": give one, or leave {key} out"
    return f"{path or 'the whole'}: expected {expected}, got {_given(fault)}{hint}"


def _is_required(section: type[BaseModel], place: tuple[int | str, ...]) -> bool:
    """Whether the key at a place has no default."""
    for part in place[:-1]:
        if isinstance(part, str):
            section = next(_sections(section.model_fields[part].annotation))
    return section.model_fields[str(place[-1])].is_required()


def _known_keys(section: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """Keys of the section at a place, found through the annotations."""
    for part in place:
        if isinstance(part, str) and part in section.model_fields:
            section = next(iter(_sections(section.model_fields[part].annotation)), section)
    return list(section.model_fields)


def _sections(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _sections(inner)


# ------------------------------------------------------------------ meaning of names

FILES = {"csv": TEXT, "parquet": PARQUET, "arrow": ARROW}
"""Suffixes of the files that a prefix in a name announces, such as `csv:candidates.csv`."""
SHORT = {"rbf": "RBFKernel", "matern": "MaternKernel"}
KERNELS: dict[str, type[gpytorch.kernels.Kernel]] = {
    name: kind
    for name in sorted(gpytorch.kernels.__all__)
    if inspect.isclass(kind := getattr(gpytorch.kernels, name)) and kind is not gpytorch.kernels.Kernel
}
"""GPyTorch's kernels by the name of their class."""


def find_factory(name: str, registry: Mapping[str, Callable[..., Any]], where: str, others: str = "") -> Callable[..., Any]:
    """The function of a name, an entry of the registry. `others` are further valid names, for the error message.

    Raises:
        ConfigError: If there is none.
    """
    known = ", ".join(registry) + others
    require(name in registry, f"{where}: unknown name {name!r}; known: {known}.{nearest(name, registry)}", ConfigError)
    return registry[name]


def find_environment(
    name: str, registry: Mapping[str, Callable[..., Any]], where: str
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function that makes an environment, and its first arguments: the path, if the name is that of a file.

    Raises:
        ConfigError: If there is no such function or file.
    """
    path = table_path(name)
    if path is None:
        if ":" in name:
            return imported(name, where), ()
        return find_factory(name, registry, where, ", csv:FILE, parquet:FILE, arrow:FILE, MODULE:FUNCTION"), ()
    prefix = name.partition(":")[0]
    fitting = next((f" Write {other}:{path}." for other, some in FILES.items() if path.suffix.lower() in some), "")
    message = f"{where}: {prefix}: is for files that end in {', '.join(FILES[prefix])}, got {str(path)!r}.{fitting}"
    require(path.suffix.lower() in FILES[prefix], message, ConfigError)
    missing = f"{where}: there is no file {str(path)!r}. Relative paths begin at the working directory, {Path.cwd()}."
    require(os.path.isfile(path), missing, ConfigError)
    return from_table, (path,)


def table_path(name: str) -> Path | None:
    """The path in a name such as `csv:candidates.csv`, else None."""
    prefix, colon, path = name.partition(":")
    return Path(path) if colon and prefix in FILES else None


def table_digest(name: str) -> str | None:
    """Digest of the file that an environment is read from, None if it is not read from a file, or the file does not exist."""
    path = table_path(name)
    if path is None or not os.path.isfile(path):
        return None
    facts = path.stat()
    return _digest(path.absolute(), facts.st_mtime_ns, facts.st_size)


@cache
def _digest(path: Path, modified: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def imported(name: str, where: str) -> Callable[..., Any]:
    """Import `module:function`. Modules are also looked for in the working directory, after all others.

    Raises:
        ConfigError: If there is no such module, or it has no such function. An error within the module is raised as it is.
    """
    module_name, _, attribute = name.partition(":")
    good = all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")])
    prefixes = " or ".join(f"{prefix}:" for prefix in FILES)
    require(good, f"{where}: expected module:function, or {prefixes} and the path of a file, got {name!r}.", ConfigError)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"{where}: there is no module {error.name!r}. Install it, or start in the folder that holds it: modules are looked "
            f"for in {here} as well. A file is written {prefixes} and its path."
        ) from error
    found: Any = module
    for part in attribute.split("."):
        known = [one for one, value in vars(found).items() if callable(value) and not one.startswith("_")]
        message = f"{where}: {module_name} ({getattr(module, '__file__', None)}) has no function {attribute!r}."
        require(hasattr(found, part), f"{message}{nearest(part, known)}", ConfigError)
        found = getattr(found, part)
    require(callable(found), f"{where}: {name} is not a function, but {type(found).__name__}.", ConfigError)
    made: Callable[..., Any] = found
    return made


def find_kernel(name: str) -> type[gpytorch.kernels.Kernel] | None:
    """The kernel class of a name, such as `rbf` or `PeriodicKernel`; None if a user's function makes the kernel.

    Raises:
        ValueError: If there is none.
    """
    if ":" in name:
        return None
    known = (*SHORT, *KERNELS)
    if name not in known:
        some = "rbf, matern, a kernel of gpytorch.kernels such as PeriodicKernel or RQKernel, or MODULE:FUNCTION"
        raise ValueError(f"unknown kernel {name!r}: expected {some}.{nearest(name, known)}")
    return KERNELS[SHORT.get(name, name)]


# ------------------------------------------------------------------ kernels


def _check_smoothness(nu: float) -> float:
    if nu not in (0.5, 1.5, 2.5):
        raise ValueError("nu must be 0.5, 1.5 or 2.5")
    return nu


Smoothness = Annotated[float, AfterValidator(_check_smoothness)]


def _check_name(name: str) -> str:
    find_kernel(name)
    return name


KernelName = Annotated[str, AfterValidator(_check_name)]
Lengthscale = PositiveFloat | Annotated[list[PositiveFloat], Field(min_length=1)]


def _with_name(values: Any) -> Any:
    """The values of a section, of which a name may stand alone: `uniform` for `{name: uniform}`."""
    return {"name": values} if isinstance(values, str) else values


class KernelConfig(Section):
    """A GPyTorch kernel: `rbf`, exp(−‖x − x'‖² / 2ℓ²), `matern` of smoothness `nu`, a class of `gpytorch.kernels` by its name,
    such as `PeriodicKernel`, or a user's function, `module:function`, that returns a kernel.

    `lengthscale` is in units of the (scaled) features, one number or one per feature, 1 by default; `outputscale`, reward units
    squared, is 1 by default. `options` are further arguments and hyper-parameters of the kernel by GPyTorch's names
    (`period_length`, `power`, `active_dims`), or arguments of the function. A kernel within a kernel is a mapping that contains
    a name, such as `base_kernel: {name: rbf}`, and `kernels` is a list of such mappings.
    """

    name: KernelName = "rbf"
    lengthscale: Lengthscale | None = None
    nu: Smoothness | None = None
    outputscale: PositiveFloat | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _default_lengthscale(cls, values: Any) -> Any:
        """A kernel that has a length-scale has one of 1 unless another is given."""
        values = _with_name(values)
        if not isinstance(values, dict) or not isinstance(name := values.get("name", "rbf"), str):
            return values
        try:
            kind = find_kernel(name)
        except ValueError:
            return values  # reported by the check of the name
        default = 1.0 if kind is not None and kind.has_lengthscale else None
        return values if values.get("lengthscale") is not None else values | {"lengthscale": default}

    @model_validator(mode="after")
    def _check_parts(self) -> KernelConfig:
        kind = find_kernel(self.name)
        if (kind is MaternKernel) != (self.nu is not None):
            raise ValueError(
                "a matern kernel needs nu: 0.5, 1.5 or 2.5"
                if self.nu is None
                else f"nu is for matern, and {self.name} has none"
            )
        if self.lengthscale is not None and (kind is None or not kind.has_lengthscale):
            raise ValueError(f"{self.name} has no lengthscale parameter: leave it out, or set it among the options")
        for name, value in self.options.items():
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, dict):
                    try:
                        KernelConfig.model_validate(part)
                    except ValidationError as error:
                        raise ValueError(f"options.{name}: {all_faults(KernelConfig, error)}") from error
        return self


class KernelOverride(Section):
    """Settings in which a policy's kernel differs from the experiment's. Another name leaves the options behind."""

    name: KernelName | None = None
    lengthscale: Lengthscale | None = None
    nu: Smoothness | None = None
    outputscale: PositiveFloat | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, values: Any) -> Any:
        return _with_name(values)


def merged(base: KernelConfig, override: KernelOverride, where: str) -> KernelConfig:
    """The experiment's kernel with a policy's own settings. Another kernel takes over the length-scale, if it has one, and the
    output scale.

    Raises:
        ConfigError: If the settings do not fit the kernel.
    """
    # An empty value, `lengthscale:`, is that of the experiment, as in the resolved file, which leaves such values out.
    overrides = override.model_dump(exclude_unset=True, exclude_none=True)
    values = base.model_dump() | overrides
    try:
        if values["name"] == base.name:
            values["options"] = base.options | override.options
        else:
            kind = find_kernel(values["name"])
            dropped = {"nu", "options"} if kind is not None and kind.has_lengthscale else {"nu", "options", "lengthscale"}
            values = {name: value for name, value in values.items() if name not in dropped or name in overrides}
        return KernelConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}.kernel: {all_faults(KernelConfig, error)}") from error


def build_kernel(configs: Sequence[KernelConfig], arms: Tensor | ArmSource) -> Kernel:
    """A kernel with fixed hyper-parameters, of the arms' dtype and device. Several configurations, which may differ only in the
    length-scale, become its batch rows.

    Raises:
        ConfigError: If GPyTorch's kernel has no such option, or refuses its value.
    """
    config, like = configs[0], torch.empty(0, dtype=arms.dtype, device=arms.device)
    kernel = _scaled(configs, arms.shape[-1], like, "kernel")
    try:
        kernel(like.new_ones(1, arms.shape[-1])).to_dense()
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:  # GPyTorch keeps some options unseen
        raise ConfigError(f"kernel: {config.name} can't be evaluated with these options: {error}.") from error
    return kernel.requires_grad_(False)


def _scaled(configs: Sequence[KernelConfig], dim: int, like: Tensor, where: str) -> Kernel:
    """The kernel, also one within another kernel."""
    kernel, outputscale = _named(configs, dim, like, where), configs[0].outputscale
    if outputscale is None:
        return kernel
    scaled = ScaleKernel(kernel, batch_shape=kernel.batch_shape).to(like)
    # A tensor, because GPyTorch rounds a Python number to float32.
    scaled.outputscale = like.new_tensor(outputscale)
    return scaled


def _named(configs: Sequence[KernelConfig], dim: int, like: Tensor, where: str) -> Kernel:
    """The kernel without its output scale."""
    config = configs[0]
    kind = find_kernel(config.name)
    if kind is None:
        return _yours(config, like, where)
    active = config.options.get("active_dims")
    dim = len(active) if isinstance(active, list) else dim
    ard = [one.lengthscale for one in configs if isinstance(one.lengthscale, list)]
    for several in ard:
        message = f"{where}.lengthscale: expected one number or {dim}, one per feature, got {len(several)}."
        require(len(several) == dim, message, ConfigError)
    shapes: dict[str, Any] = {"ard_num_dims": dim} if ard else {}
    if len(configs) > 1:
        shapes["batch_shape"] = torch.Size([len(configs)])
    taken = _arguments(kind)
    arguments = {name: _argument(name, value, dim, like, where) for name, value in config.options.items() if name in taken}
    parts = arguments.pop("kernels", [])
    try:
        kernel: Kernel = kind(*parts, **{name: config.nu for name in ["nu"] if config.nu}, **arguments, **shapes).to(like)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{where}: gpytorch.kernels.{kind.__name__} can't be created with these options: {error}.") from error
    if config.lengthscale is not None:
        width = dim if ard else 1
        lengthscales = torch.stack([like.new_tensor(one.lengthscale).reshape(1, -1).expand(1, width) for one in configs])
        kernel.lengthscale = lengthscales.reshape(kernel.lengthscale.shape)
    for name, value in config.options.items():
        if name not in taken:
            _set(kernel, name, value, like, f"{where}.options", taken)
    return kernel


def _arguments(kind: type[Kernel]) -> set[str]:
    """Arguments of a kernel that a file may give. Priors and constraints are left out: nothing is fitted."""
    found: set[str] = set()
    for one in (kind, Kernel):
        found |= set(inspect.signature(one.__init__).parameters)
    left_out = {"self", "kwargs", "params", "batch_shape", "nu"}
    return {name for name in found - left_out if not name.endswith(("_prior", "_constraint"))}


def _argument(name: str, value: Any, dim: int, like: Tensor, where: str) -> Any:
    """A value of a file as GPyTorch takes it: mappings are kernels, and `active_dims` is a tuple."""
    if isinstance(value, dict) and "name" in value:
        return _scaled([KernelConfig.model_validate(value)], dim, like, f"{where}.options.{name}")
    if isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
        parts = [KernelConfig.model_validate(one) for one in value]
        return [_scaled([one], dim, like, f"{where}.options.{name}[{place}]") for place, one in enumerate(parts)]
    return tuple(value) if name == "active_dims" and isinstance(value, list) else value


def _set(kernel: Kernel, name: str, value: Any, like: Tensor, where: str, taken: set[str]) -> None:
    """Set a hyper-parameter.

    Raises:
        ConfigError: If the kernel has none of this name, or it does not take the value.
    """
    raw = [raw for raw, _ in kernel.named_parameters(recurse=False) if raw.startswith("raw_")]
    own = [one.removeprefix("raw_") for one in raw]
    known = sorted({*own, *taken} - {"lengthscale"})
    message = f"{where}.{name}: {type(kernel).__name__} has no such option; known: {', '.join(known)}.{nearest(name, known)}"
    require(name in own and name != "lengthscale", message, ConfigError)
    now = getattr(kernel, name)
    try:
        wanted = like.new_tensor(value).expand(now.shape)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{where}.{name}: expected one number or {now.shape[-1:].numel()}, got {value!r}.") from error
    constraint = kernel.constraint_for_parameter_name(f"raw_{name}")
    good = bool(wanted.isfinite().all()) and (constraint is None or constraint.check(wanted))
    require(good, f"{where}.{name}: GPyTorch's constraint is {constraint}, got {value!r}.", ConfigError)
    setattr(kernel, name, wanted)


def _yours(config: KernelConfig, like: Tensor, where: str) -> Kernel:
    """The kernel that a function of the user's returns."""
    factory = imported(config.name, f"{where}.name")
    try:
        inspect.signature(factory).bind(**config.options)
    except TypeError as error:
        raise ConfigError(f"{where}.options: {config.name}: {error}.") from error
    try:
        kernel = factory(**config.options)
    except TorchBanditsError as error:
        raise ConfigError(f"{where}.options: {error}") from error
    message = f"{where}.name: {config.name} must return a gpytorch.kernels.Kernel, got {type(kernel).__name__}."
    require(isinstance(kernel, Kernel), message, ConfigError)
    made: Kernel = kernel.to(like)
    return made


# ------------------------------------------------------------------ the whole

YOURS = ", or module:function for a policy of your own"
"""What else may be the name of a policy, for error messages."""
IN_A_FILE = {"Width": "expected a number or {scaled: a number > 0}", "Start": "expected a number of uniform first picks"}
"""What a file gives where a policy takes an instance of a class, for error messages."""
BASELINE = "uniform"
"""Name in the registry of the policy whose regret is the denominator of the regret ratio."""

ENVIRONMENT_SEED_OFFSET = 1_000_000_000
"""Added to the seed of a repetition for the draw of its environment, so that environment and run share no random numbers."""


def _check_folder_name(name: str) -> str:
    if fault := folder_name_fault(name):
        raise ValueError(fault)
    return name


def _no_switch(value: Any) -> Any:
    """Refuse `true` and `yes`, which would count as 1."""
    if isinstance(value, bool):
        raise ValueError(f"expected a whole number, got {str(value).lower()}")
    return value


Whole = Annotated[int, BeforeValidator(_no_switch)]
Count = Annotated[Whole, Field(gt=0, le=10**9)]
"""Numbers of pulls, repetitions and sizes. A larger number is taken for a mistake, as it would exhaust the memory first."""
Repetitions = Annotated[Whole, Field(gt=0, le=10**6)]
Observed = Annotated[Whole, Field(ge=0, le=10**7)]
Seed = Annotated[Whole, Field(ge=0, le=2**62)]
Rows = Annotated[Whole, Field(gt=1, le=10**6)]
Workers = Annotated[Whole, Field(gt=0, le=10**6)]
Threads = Annotated[Whole, Field(gt=0, le=1024)]
FolderName = Annotated[str, AfterValidator(_check_folder_name)]


class EnvironmentConfig(Section):
    """An environment and its keyword arguments.

    `name` is one of `torchbandits.environments.registry`; or `csv:FILE`, `parquet:FILE` or `arrow:FILE`, a table whose rows
    were all measured, with the options of `torchbandits.environments.from_table`; or `module:function`, a user's function that
    returns an `Environment`, which is imported when the experiment is run. If the function takes `generator`, a
    `torch.Generator`, a separate environment is drawn for each repetition.
    """

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, values: Any) -> Any:
        return _with_name(values)


class PolicyConfig(Section):
    """A policy, its keyword arguments and its name in tables and figures.

    `name` is one of `torchbandits.policies.registry`, or `module:function`, a user's function that returns a policy. If the
    function has an argument `kernel`, it is given the kernel.

    Strings stand for values that are known later: `horizon` and `1/horizon`, and `environment` for the environment's attribute
    of the option's name (`norm_bound`, `noise_std`, `neighbors`). `width` is a constant, or `{scaled: c}` for c times the
    policy's own. `repetitions` limits this policy to the first repetitions, for policies whose runs take hours.
    """

    name: str
    label: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)] = ""
    kernel: KernelOverride = KernelOverride()
    options: dict[str, Any] = Field(default_factory=dict)
    repetitions: Repetitions | None = None

    @model_validator(mode="before")
    @classmethod
    def _label_from_name(cls, values: Any) -> Any:
        values = _with_name(values)
        if isinstance(values, dict) and isinstance(values.get("name"), str):
            return {"label": values["name"], **values}
        return values

    @property
    def slug(self) -> str:
        """The label as a folder name."""
        return re.sub(r"[^a-z0-9_]+", "-", self.label.lower()).strip("-") or "policy"


class QuickConfig(Section):
    """Settings of the reduced form of an experiment: fewer pulls, repetitions and policies, a smaller environment.

    `policies` are the labels of the policies that are kept, all by default; `environment` changes options of the environment.
    """

    horizon: Count | None = None
    repetitions: Repetitions | None = None
    policies: Annotated[list[str], Field(min_length=1)] | None = None
    environment: dict[str, Any] = Field(default_factory=dict)
    history: Observed | None = None


class ExperimentConfig(Section):
    """One experiment: every policy on one environment, `repetitions` times.

    Repetition r gives every policy a generator seeded with `seed + r`, and draws a random environment from r too, so that
    policies are compared in pairs. `history` uniform pulls, the same for all policies of a repetition, are observed before the
    first ask and are not in the records. With `together`, the repetitions of a policy, and consecutive policies that differ
    only in the length-scale, are batch rows of one run, or of runs of at most `together` rows if it is a number: they make the
    same picks, and each row is charged an equal share of the seconds. With `asynchronous`, that many workers of equal speed are
    simulated: picks are made one by one, each while the picks of the other workers wait for their rewards. `clock` selects
    wall-clock or processor seconds; the latter are more reliable on a shared machine. With `headline`, one sentence and one
    picture of what the policies have found replace the figures; `uniform` must be among the policies.
    """

    name: FolderName = "experiment"
    environment: EnvironmentConfig
    kernel: KernelConfig = KernelConfig()
    policies: Annotated[list[PolicyConfig], Field(min_length=1)]
    horizon: Count
    repetitions: Repetitions = 1
    seed: Seed = 0
    history: Observed = 0
    together: bool | Rows = False
    asynchronous: Workers | None = None
    threads: Threads | None = None
    clock: Literal["wall", "processor"] = "wall"
    headline: bool = False
    output: str = ""
    quick: QuickConfig | None = None

    @model_validator(mode="after")
    def _check_labels(self) -> ExperimentConfig:
        first: dict[str, str] = {}
        for policy in self.policies:
            other = first.get(policy.slug)
            first.setdefault(policy.slug, policy.label)
            if other == policy.label:
                raise ValueError(f"two policies are labelled {other!r}: give each its own label")
            if other is not None:
                raise ValueError(
                    f"the records of {other!r} and {policy.label!r} would have the same folder, {policy.slug!r}: give one of "
                    "them a label with other letters from a to z, or digits"
                )
        if self.asynchronous is not None and self.together:
            raise ValueError("asynchronous workers are simulated for one run at a time: leave out together")
        if self.headline and all(policy.name != BASELINE for policy in self.policies):
            raise ValueError(f"a headline compares with {BASELINE}: put it among the policies")
        labels = [policy.label for policy in self.policies]
        unknown = [label for label in (self.quick.policies if self.quick else None) or [] if label not in labels]
        if unknown:
            raise ValueError(f"quick.policies: no policy is labelled {unknown[0]!r}.{nearest(unknown[0], labels)}")
        return self

    def quickened(self) -> ExperimentConfig:
        """The reduced form that the section `quick` describes.

        Raises:
            ConfigError: If there is no such section.
        """
        require(self.quick is not None, f"{self.name} has no reduced form: add a section `quick`.", ConfigError)
        assert self.quick is not None
        changes = self.quick.model_dump(include={"horizon", "repetitions", "history"}, exclude_none=True)
        values = self.model_dump(exclude_unset=True, exclude={"quick"}) | changes
        if self.quick.policies is not None:
            kept = [policy for policy in self.policies if policy.label in self.quick.policies]
            values["policies"] = [policy.model_dump(exclude_unset=True) for policy in kept]
        values["environment"] = {"name": self.environment.name, "options": self.environment.options | self.quick.environment}
        return parse_config(values, f"the reduced form of {self.name}")

    @property
    def folder(self) -> Path:
        """Folder of the results: `output`, else `results/<name>`."""
        return Path(self.output) if self.output else Path("results") / self.name

    @property
    def fingerprint(self) -> str:
        """Short hash of all settings that affect the records; numbers of repetitions are left out."""
        return self._hash(self.policies)

    def fingerprint_of(self, place: int, *, seeded: bool = False) -> str:
        """Short hash of all settings that affect the record of a seed and the policy at a place of the list of policies.

        Args:
            place: The place of the policy.
            seeded: Whether the first seed is among the settings, as in earlier versions.
        """
        return self._hash([self.policies[place]], () if seeded else ("seed",))

    def _hash(self, policies: Sequence[PolicyConfig], further: Sequence[str] = ()) -> str:
        left_out: dict[str, Any] = dict.fromkeys(("name", "output", "repetitions", "quick", "headline", *further), True)
        chosen = self.model_copy(update={"policies": list(policies)})
        deciding = chosen.model_dump(mode="json", exclude=left_out | {"policies": {"__all__": {"repetitions"}}})
        # Records of versions without these keys are found as well.
        if self.asynchronous is None:
            del deciding["asynchronous"]
        for kernel in (deciding["kernel"], *(policy["kernel"] for policy in deciding["policies"])):
            if not kernel["options"]:
                del kernel["options"]
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16]

    def dump(self) -> str:
        """The resolved configuration as YAML that `load_config` reads back to an equal one."""
        return _dumped(self.model_dump(mode="json", exclude_none=True))


def _dumped(values: dict[str, Any]) -> str:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def is_dumped(path: Path) -> bool:
    """Whether a file is as `ExperimentConfig.dump` writes it, without comments or other work of a hand."""
    return path.read_text(encoding="utf-8") == _dumped(read_yaml(path))


def load_config(path: str | os.PathLike[str]) -> ExperimentConfig:
    """Read a configuration file.

    Raises:
        ConfigError: If it can't be read, is not YAML, or is not a valid configuration; the message names the first faults.
    """
    source = as_path("path", path)
    return parse_config({"name": source.stem, **read_yaml(source)}, str(source))


def parse_config(values: dict[str, Any], source: str) -> ExperimentConfig:
    """Create a configuration from a mapping; `source` names it in errors.

    Raises:
        ConfigError: If it is not a valid configuration; the message names the first faults.
    """
    return parse_section(ExperimentConfig, values, source)


def build_environment(config: ExperimentConfig, repetition: int) -> Environment:
    """The environment of a repetition. A random environment is drawn anew for each repetition.

    Raises:
        ConfigError: If the name or an option is unknown or out of its range.
        DataError: If its data can't be found.
    """
    section = config.environment
    factory, arguments = find_environment(section.name, environments, "environment.name")
    reserved = ("generator", "kernel", "dtype", "table") if factory is from_table else ("generator", "kernel", "dtype")
    options = check_options(factory, section.options, "environment.options", reserved)
    if is_random(config):
        seed = config.seed + repetition + ENVIRONMENT_SEED_OFFSET
        options["generator"] = torch.Generator().manual_seed(seed)
    made = _call(factory, arguments, options, "environment.options")
    message = f"environment.name: {section.name} must return an Environment of torchbandits, got {type(made).__name__}."
    require(isinstance(made, Environment), message, ConfigError)
    environment: Environment = made
    shape = tuple(environment.arms.shape)
    message = (
        f"environment.name: the arms of {section.name} must be A x d, got {shape}. For a draw per repetition, let the "
        "function take generator=."
    )
    require(len(shape) == 2, message, ConfigError)
    return environment


def is_random(config: ExperimentConfig) -> bool:
    """Whether the environment is itself drawn at random."""
    factory, _ = find_environment(config.environment.name, environments, "environment.name")
    return "generator" in inspect.signature(factory).parameters


def build_policy(config: ExperimentConfig, places: Sequence[int], environment: Environment) -> Any:
    """The policy at a place of the list of policies, or one policy whose batch rows are several places.

    Args:
        config: The experiment.
        places: One place, or one per batch row; their policies may differ only in the kernel's length-scale.
        environment: Source of the dtype, the device and the values of options given as `environment`.

    Raises:
        ConfigError: If the name or an option is unknown or out of its range.
    """
    place, section = places[0], config.policies[places[0]]
    where = f"policies[{place}]"
    own = ":" in section.name
    message = (
        f"{where}.options.refit_every: an experiment keeps the hyper-parameters of its kernel: leave refit_every out, or use "
        "auto, which fits its own."
    )
    require(own or section.options.get("refit_every") is None, message, ConfigError)
    factory = imported(section.name, f"{where}.name") if own else find_factory(section.name, policies, f"{where}.name", YOURS)
    scale = _width_scale(section.options.get("width"), where)
    hints = typing.get_type_hints(factory)
    given = {
        name: _resolve(name, value, hints.get(name), config, environment, where)
        for name, value in section.options.items()
        if name != "width" or scale is None
    }
    options = check_options(factory, given, f"{where}.options", reserved=("kernel",))
    takes_kernel = "kernel" in inspect.signature(factory).parameters
    message = (
        f"{where}.kernel: {section.name} takes no kernel{' and fits its own' if section.name == 'auto' else ''}: leave it out."
    )
    require(takes_kernel or section.kernel == KernelOverride(), message, ConfigError)
    if takes_kernel:
        kernels = [merged(config.kernel, config.policies[p].kernel, where) for p in places]
        options["kernel"] = build_kernel(kernels[:1] if len(set(places)) == 1 else kernels, environment.arms)
    policy = _call(factory, (), options, f"{where}.options")
    message = f"{where}.name: {section.name} must return a policy of torchbandits, got {type(policy).__name__}."
    require(isinstance(policy, Policy), message, ConfigError)
    if scale is None:
        return policy
    require(isinstance(policy, Composed), f"{where}.options.width: {section.name} has no width to be scaled.", ConfigError)
    return replace(policy, confidence=Scaled(policy.confidence, scale))


def _width_scale(width: Any, where: str) -> float | None:
    """The factor c of `width: {scaled: c}`, which multiplies the policy's own width; None for any other width."""
    if not isinstance(width, dict):
        return None
    scale: Any = width.get("scaled")
    number = isinstance(scale, int | float) and not isinstance(scale, bool)
    good = set(width) == {"scaled"} and number and 0 < scale < math.inf
    require(good, f"{where}.options.width: expected a number or {{scaled: a number > 0}}, got {width!r}.", ConfigError)
    return float(scale)


def check_options(
    factory: Callable[..., Any], options: dict[str, Any], where: str, reserved: tuple[str, ...]
) -> dict[str, Any]:
    """Convert options to the types that the factory declares. A configuration can't set `reserved` options.

    Raises:
        ConfigError: If an option is unknown, missing or of another type.
    """
    parameters = {n: p for n, p in inspect.signature(factory).parameters.items() if n not in reserved}
    for name, parameter in parameters.items():
        require(
            name in options or parameter.default is not parameter.empty,
            f"{where}: {factory.__name__} needs the option {name!r}.",
            ConfigError,
        )
    hints = typing.get_type_hints(factory)
    checked = {}
    for name, value in options.items():
        if name not in parameters:
            hint = nearest(name, parameters) or f" Known: {', '.join(parameters) or 'none'}."
            raise ConfigError(f"{where}.{name}: {factory.__name__} has no such option.{hint}")
        checked[name] = _convert(value, hints.get(name, Any), f"{where}.{name}")
    return checked


def _convert(value: Any, annotation: Any, where: str) -> Any:
    try:
        adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticSchemaGenerationError:  # only the factory can check such a type
        return value
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        own = next((IN_A_FILE[name] for one in faults if (name := str(one.get("ctx", {}).get("class"))) in IN_A_FILE), None)
        # A class, such as that of tensors, is none of the kinds that a file may hold.
        written = [one for one in faults if one["type"] != "is_instance_of"] or faults
        said = own or f"expected {' or '.join(dict.fromkeys(_expected(one) for one in written))}"
        raise ConfigError(f"{where}: {said}, got {value!r}.") from error


def _resolve(name: str, value: Any, annotation: Any, config: ExperimentConfig, environment: Environment, where: str) -> Any:
    if value in ("horizon", "1/horizon"):
        return config.horizon if value == "horizon" else 1 / config.horizon
    if value == "environment":
        known = getattr(environment, name, None)
        message = f"{where}.options.{name}: the environment {config.environment.name!r} does not know its {name}."
        require(known is not None, message, ConfigError)
        return known
    if isinstance(value, bool):  # also an int
        return value
    if {int, float} & {annotation, *typing.get_args(annotation)}:  # a user's function that takes the number itself
        return value
    if name == "initial" and isinstance(value, int):  # number of uniform first picks
        return _call(uniform, (value,), {}, f"{where}.options.initial")
    if name == "width" and isinstance(value, int | float):
        return _call(Constant, (float(value),), {}, f"{where}.options.width")
    return value


def _call(factory: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], where: str) -> Any:
    try:
        return factory(*arguments, **options)
    except DataError:
        raise
    except TorchBanditsError as error:
        raise ConfigError(f"{where}: {error}") from error


def repetitions_of(config: ExperimentConfig, place: int) -> int:
    """Number of repetitions of the policy at a place of the list of policies."""
    return min(config.repetitions, config.policies[place].repetitions or config.repetitions)
