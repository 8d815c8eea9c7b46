"""Settings of a campaign as a user gives them, which are checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from torchbandits.checks import check_dtype, check_named, check_text, is_finite, positive
from torchbandits.errors import require


def given_settings(
    aims: dict[str, Any],
    id: str | None,
    cost: str | None,
    dtype: torch.dtype | None,
    noise_std: float | dict[str, float] | None,
    columns: Any,
) -> dict[str, Any]:
    """Fields of `Settings` as the user gave them, None where nothing was given.

    Args:
        aims: The fields of the objective or the objectives, which have been checked.
        id, cost, dtype, columns: As for `Campaign`.
        noise_std: A number, or for several outcomes one per name, which have been checked.
    """
    check_text("id", id, optional=True)
    check_text("cost", cost, optional=True)
    precision = None if dtype is None else str(check_dtype("dtype", dtype)).removeprefix("torch.")
    return {**aims, "id": id, "cost": cost, "dtype": precision, "noise_std": noise_std, "overruled": overruled_by(columns)}


def overruled_by(columns: Any) -> dict[str, Any] | None:
    """The kinds of columns as given by `columns=`: a name of a kind, or a list of categories in order."""
    if columns is None:
        return None
    require(isinstance(columns, Mapping), f"columns must be a dictionary, got {type(columns).__name__}.")
    for name, kind in columns.items():
        known = isinstance(kind, Iterable)
        require(known, f"columns: {name!r} must be a kind or the list of its categories in order, got {kind!r:.60}.")
    return {str(name): kind if isinstance(kind, str) else list(kind) for name, kind in columns.items()}


def aims_of(
    objectives: Sequence[str] | None,
    minimize: Sequence[str] | None,
    at_least: Mapping[str, float] | None,
    at_most: Mapping[str, float] | None,
) -> dict[str, Any]:
    """Objectives and limits as fields of `Settings`; None where nothing was given, for a resumed campaign."""
    if objectives is None:
        alone = minimize is None and at_least is None and at_most is None
        require(alone, "objectives: name the columns that should be large or small, such as objectives=['yield', 'cost'].")
        return {"objectives": None, "at_least": None, "at_most": None}
    names = _names("objectives", objectives)
    require(bool(names), "objectives: name at least one column, such as objectives=['yield', 'cost'].")
    small = () if minimize is None else _names("minimize", minimize)
    check_named("minimize", small, names, "objectives")
    limits = {}
    for what, given in (("at_least", at_least), ("at_most", at_most)):
        require(given is None or isinstance(given, Mapping), f"{what} must be numbers by column, got {given!r:.60}.")
        limits[what] = {} if given is None else {str(name): value for name, value in given.items()}
        for name, value in limits[what].items():
            require(is_finite(value), f"{what}[{name!r}] must be a finite number, got {value!r}.")
        limits[what] = {name: float(value) for name, value in limits[what].items()}
    for name in limits["at_least"].keys() & limits["at_most"].keys():
        low, high = limits["at_least"][name], limits["at_most"][name]
        require(
            low < high, f"at_least and at_most leave nothing of {name!r}: it can't be at least {low:g} and at most {high:g}."
        )
    some = len(names) > 1 or bool(limits["at_least"] or limits["at_most"])
    require(some, f"{names[0]!r} alone, without limits, is the objective of a tb.Campaign: take that, or add another outcome.")
    return {"objectives": {name: "minimize" if name in small else "maximize" for name in names}, **limits}


def _names(what: str, given: Any) -> tuple[str, ...]:
    """Names of columns, each once."""
    listed = isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(name, str) for name in given)
    require(listed, f"{what} must be a list of columns, such as ['yield', 'cost'], got {given!r:.60}.")
    twice = [name for name in given if given.count(name) > 1]
    require(not twice, f"{what} names {twice[:1]} twice.")
    return tuple(given)


def by_outcome(what: str, given: Any, names: Sequence[str]) -> dict[str, float]:
    """A positive number for each outcome, in their order."""
    require(isinstance(given, Mapping), f"{what} must be numbers by outcome, got {given!r:.60}.")
    check_named(what, given, names or tuple(given))
    return {name: float(positive(f"{what}[{name!r}]", given[name])) for name in names or given if name in given}
