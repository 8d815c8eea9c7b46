"""Parts of configuration files: unknown keys are errors that name the file, the place and the nearest key."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from torchbandits.errors import ConfigError, nearest
from torchbandits.experiments.printable import shortened

_MOST_FAULTS = 5  # largest number of faults named in one message
MEANT = dict.fromkeys(("seeds", "num_seeds", "runs", "replicates"), "repetitions") | dict.fromkeys(
    ("num_rounds", "rounds", "evaluations", "iterations", "steps"), "horizon"
)
"""The keys that are meant by other words for them, which are spelled like other keys or like none."""
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
            kinds = " or ".join(dict.fromkeys(kind_expected(fault) for _, fault in faults))
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


def kind_expected(fault: Any) -> str:
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
    expected, hint = kind_expected(fault), ""
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


def with_name(values: Any) -> Any:
    """The values of a section, of which a name may stand alone: `uniform` for `{name: uniform}`."""
    return {"name": values} if isinstance(values, str) else values
