"""What a configuration file may say. An unknown key is an error that names the file, the place and the nearest key."""

from __future__ import annotations

import hashlib
import json
import os
import re
import typing
from abc import ABC
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
    model_validator,
)

from torchbandits.checks import as_path
from torchbandits.errors import ConfigError, nearest, require
from torchbandits.experiments.printable import shortened
from torchbandits.files import LONGEST_NAME, folder_name_fault, read_yaml

BASELINE = "uniform"
"""The policy whose regret is the unit of the regret ratio, by its name in the registry."""
_FAULTS = 5  # named in one message


def _check_smoothness(nu: float) -> float:
    if nu not in (0.5, 1.5, 2.5):
        raise ValueError("nu must be 0.5, 1.5 or 2.5")
    return nu


def _check_folder_name(name: str) -> str:
    if fault := folder_name_fault(name):
        raise ValueError(fault)
    return name


Count = Annotated[int, Field(gt=0, le=10**9)]
"""Numbers of pulls, repetitions and sizes: what is larger is a mistake, and would fill the memory first."""
Repetitions = Annotated[int, Field(gt=0, le=10**6)]
Observed = Annotated[int, Field(ge=0, le=10**7)]
Seed = Annotated[int, Field(ge=0, le=2**62)]
Threads = Annotated[int, Field(gt=0, le=1024)]
FolderName = Annotated[str, AfterValidator(_check_folder_name)]
Smoothness = Annotated[float, AfterValidator(_check_smoothness)]
Lengthscale = PositiveFloat | Annotated[list[PositiveFloat], Field(min_length=1)]


class Section(BaseModel, ABC):
    """A part of a configuration: unknown keys and infinities are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def __init__(self, /, **values: Any) -> None:
        """Make a section in Python.

        Raises:
            ConfigError: If the values do not say what they must; the first faults are named.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(f"{type(self).__name__}: {_all_faults(type(self), error)}") from error

    # Pydantic's mark of a constructor that does no more than its own: sections within sections are validated without it, so
    # that their faults are named with the whole path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


Part = TypeVar("Part", bound=Section)


class EnvironmentConfig(Section):
    """An environment of `torchbandits.environments.registry` and its keyword arguments."""

    name: str
    options: dict[str, Any] = {}


class KernelConfig(Section):
    """A GPyTorch kernel: `rbf`, exp(−‖x − x'‖² / 2ℓ²), or `matern` of smoothness `nu`.

    `lengthscale` is in units of the (scaled) features, one number or one per feature; `outputscale`, reward units
    squared, is 1 where it is left out.
    """

    name: Literal["rbf", "matern"] = "rbf"
    lengthscale: Lengthscale = 1.0
    nu: Smoothness | None = None
    outputscale: PositiveFloat | None = None

    @model_validator(mode="after")
    def _check_nu(self) -> KernelConfig:
        if (self.name == "matern") != (self.nu is not None):
            raise ValueError("a matern kernel needs nu, and a rbf kernel has none")
        return self


class KernelOverride(Section):
    """What a policy's kernel has different from the experiment's."""

    name: Literal["rbf", "matern"] | None = None
    lengthscale: Lengthscale | None = None
    nu: Smoothness | None = None
    outputscale: PositiveFloat | None = None


class PolicyConfig(Section):
    """A policy of `torchbandits.policies.registry`, its keyword arguments and its name in tables and figures.

    Strings stand for what is known later: `horizon` and `1/horizon`, and `environment` for the environment's attribute of
    the option's name (`norm_bound`, `noise_std`, `neighbors`). `width` is a constant, or `{scaled: c}` for c times the
    policy's own.
    """

    name: str
    label: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)] = ""
    kernel: KernelOverride = KernelOverride()
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _label_from_name(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("name"), str):
            return {"label": values["name"], **values}
        return values

    @property
    def slug(self) -> str:
        """The label as a folder name."""
        return re.sub(r"[^a-z0-9_]+", "-", self.label.lower()).strip("-") or "policy"


class QuickConfig(Section):
    """What the reduced form of an experiment has different: fewer pulls, repetitions and policies, a smaller environment.

    `policies` are the labels that are kept, all by default; `environment` changes options of the environment.
    """

    horizon: Count | None = None
    repetitions: Repetitions | None = None
    policies: Annotated[list[str], Field(min_length=1)] | None = None
    environment: dict[str, Any] = {}
    history: Observed | None = None


class ExperimentConfig(Section):
    """One experiment: every policy on one environment, `repetitions` times.

    Repetition r gives every policy a generator seeded with `seed + r`, and draws a random environment from r too, so
    that policies are compared in pairs. `history` uniform pulls, the same for all policies of a repetition, are observed
    before the first ask and are not in the records. With `together` the repetitions of a policy, and policies in a row that
    differ in the length-scale only, are batch rows of one run: the same picks, and each row's seconds are its share. They are
    those of the wall's `clock`, or of the `processor`, which on a shared machine says more. A `headline` is one sentence and
    one picture of what the policies have found, in place of the figures; `uniform` must be among them.
    """

    name: FolderName = "experiment"
    environment: EnvironmentConfig
    kernel: KernelConfig = KernelConfig()
    policies: Annotated[list[PolicyConfig], Field(min_length=1)]
    horizon: Count
    repetitions: Repetitions = 1
    seed: Seed = 0
    history: Observed = 0
    together: bool = False
    threads: Threads | None = None
    clock: Literal["wall", "processor"] = "wall"
    headline: bool = False
    output: str = ""
    quick: QuickConfig | None = None

    @model_validator(mode="after")
    def _check_labels(self) -> ExperimentConfig:
        slugs = [policy.slug for policy in self.policies]
        twice = sorted({slug for slug in slugs if slugs.count(slug) > 1})
        if twice:
            raise ValueError(f"two policies are labelled {twice[0]!r}: give each its own label")
        if self.headline and all(policy.name != BASELINE for policy in self.policies):
            raise ValueError(f"a headline compares with {BASELINE}: put it among the policies")
        labels = [policy.label for policy in self.policies]
        unknown = [label for label in (self.quick.policies if self.quick else None) or [] if label not in labels]
        if unknown:
            raise ValueError(f"quick.policies: no policy is labelled {unknown[0]!r}.{nearest(unknown[0], labels)}")
        return self

    def quickened(self) -> ExperimentConfig:
        """The reduced form that `quick` describes.

        Raises:
            ConfigError: If it describes none.
        """
        require(self.quick is not None, f"{self.name} has no reduced form: it needs a section quick.", ConfigError)
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
        """Where the results go: `output`, else `results/<name>`."""
        return Path(self.output) if self.output else Path("results") / self.name

    @property
    def fingerprint(self) -> str:
        """Short hash of everything that decides the numbers in the records, but the number of repetitions."""
        deciding = self.model_dump(mode="json", exclude={"name", "output", "repetitions", "quick", "headline"})
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16]

    def dump(self) -> str:
        """The resolved configuration as YAML that `load_config` reads back to an equal one."""
        return yaml.safe_dump(self.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True)


def load_config(path: str | os.PathLike[str]) -> ExperimentConfig:
    """Read a configuration file.

    Raises:
        ConfigError: If it can't be read, is not YAML, or does not say what it must; the first faults are named.
    """
    source = as_path("path", path)
    return parse_config({"name": source.stem, **read_yaml(source)}, str(source))


def parse_config(values: dict[str, Any], source: str) -> ExperimentConfig:
    """Check the values of a configuration; `source` names it in errors.

    Raises:
        ConfigError: If they do not say what they must; the first faults are named.
    """
    return parse_section(ExperimentConfig, values, source)


def parse_section(section: type[Part], values: dict[str, Any], source: str) -> Part:
    """Check the values of any section, as `parse_config` does."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_all_faults(section, error)}") from error


def _all_faults(section: type[BaseModel], error: ValidationError) -> str:
    """The first faults in words, and how many more there are, ended by a stop unless a question ends them."""
    more = error.error_count() - _FAULTS
    said = "; ".join([*islice(_faults(section, error), _FAULTS), *([f"and {more} more"] if more > 0 else [])])
    return said if said.endswith("?") else f"{said}."


def _faults(section: type[BaseModel], error: ValidationError) -> Iterator[str]:
    for fault in error.errors(include_url=False):
        place, kind, given = fault["loc"], fault["type"], fault["input"]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{shortened(part)}" for part in place).lstrip(".")
        if kind == "extra_forbidden":
            known = _known_keys(section, place[:-1])
            hint = nearest(str(place[-1]), known) or f" Known keys: {', '.join(known)}"
            yield f"{path}: unknown key.{hint}"
        elif kind == "missing":
            yield f"{path}: missing"
        elif kind == "value_error":
            yield f"{path or 'the whole'}: {fault['ctx']['error']}"
        else:
            hint = nearest(given, ("rbf", "matern")) if kind == "literal_error" and isinstance(given, str) else ""
            yield f"{path}: {fault['msg']}, got {shortened(repr(given))}.{hint}".rstrip(".")


def _known_keys(section: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """The keys of the section at a place, found through the annotations."""
    for part in place:
        if isinstance(part, str) and part in section.model_fields:
            section = next(iter(_sections(section.model_fields[part].annotation)), section)
    return list(section.model_fields)


def _sections(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _sections(inner)
