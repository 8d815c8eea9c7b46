"""Configuration files of experiments: `load_config` reads a file, `build_environment` and `build_policy` make the objects that
it names."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PydanticSchemaGenerationError,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from torchbandits.checks import as_path
from torchbandits.environments import Environment, from_table
from torchbandits.environments import registry as environments
from torchbandits.errors import ConfigError, DataError, TorchBanditsError, nearest, require
from torchbandits.experiments.kernels import KernelConfig, KernelOverride, build_kernel, merged
from torchbandits.experiments.names import find_environment, find_factory, imported
from torchbandits.experiments.sections import Section, kind_expected, parse_section, with_name
from torchbandits.files import LONGEST_NAME, folder_name_fault, read_yaml
from torchbandits.policies import Policy
from torchbandits.policies import registry as policies
from torchbandits.policies.composed import Composed
from torchbandits.starts import uniform
from torchbandits.widths import Constant, Scaled

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
        return with_name(values)


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
        values = with_name(values)
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
        said = own or f"expected {' or '.join(dict.fromkeys(kind_expected(one) for one in written))}"
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
