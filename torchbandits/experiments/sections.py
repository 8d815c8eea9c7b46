"""Parts of configuration files: their common base class, and their faults in words."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from torchbandits.errors import ConfigError, nearest
from torchbandits.experiments.printable import shortened

_MOST_FAULTS = 5  # largest number of faults named in one message


class Section(BaseModel):
    """Base class of the parts of a configuration: unknown keys and infinities are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

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
    """The first faults in words and the number of further ones. They end with a full stop unless they end with a question
    mark."""
    more = error.error_count() - _MOST_FAULTS
    said = "; ".join([*islice(_faults(section, error), _MOST_FAULTS), *([f"and {more} more"] if more > 0 else [])])
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
            yield f"{path}: {fault['msg']}, got {shortened(repr(given))}"


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
