"""A table of candidates from the possible values of each parameter: all their combinations, or some of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchbandits.campaigns.conditions import fulfilled
from torchbandits.checks import check_whole, explains_keywords
from torchbandits.errors import ArgumentError, ConfigError, require
from torchbandits.tabular.tables import InMemory

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import compute as pc
else:
    from torchbandits.tabular.extras import compute as pc
    from torchbandits.tabular.extras import pandas as pd
    from torchbandits.tabular.extras import pyarrow as pa

ID = "id"
_BLOCK = 1 << 17
"""Number of combinations that are compared with a condition at a time."""
_LISTED = 1 << 24
"""Largest number of rows without `count`."""
_COMPARED = 1 << 26
"""Largest number of combinations that are compared with a condition; of more, as many are drawn."""
_VALUES = 1 << 20
"""Largest number of values of a range."""
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER}):(x?)({_NUMBER})")
_TRUTHS = {"true": True, "false": False}


@explains_keywords
def combinations(
    parameters: Mapping[str, Iterable[Any]], *, where: Any = None, count: int | None = None, seed: int = 0
) -> pd.DataFrame:
    """Make a table of candidates: one row for each combination of the values of some parameters.

    Args:
        parameters: The possible values of each parameter, such as `{"solvent": ["water", "DMF"], "temperature": [20, 40, 60]}`.
        where: A condition on the combinations, as for `Campaign.ask`: `"temperature < 60 or solvent != 'water'"`, or
            `"a + b + c == 100"` for parts in percent. Computed numbers are compared up to rounding, so that parts of 0.1, 0.2 …
            may add up to 1.
        count: Number of rows, drawn at random with equal probabilities; None for all combinations.
        seed: Seed of the draws.

    Returns:
        A column `id` and a column for each parameter; the last parameter varies fastest. The id of a combination is its number
        among all of them, from 1, whatever the condition and the count, so that `Campaign.extend` can add another draw.

    Raises:
        ArgumentError: If there is no parameter, a parameter has no value or one twice, no combination fulfils the condition, or
            there are too many of them (more than 16.8 million, without a `count`).

    Cost: O(rows) without a condition; otherwise every combination is compared with it, up to 67 million of them. Of more, as
    many are drawn at random.
    """
    cells = _checked(parameters)
    check_whole("seed", seed, least=0)
    check_whole("count", count, otherwise="for all combinations")
    total = math.prod(map(len, cells.values()))
    require(total < 2**63, "parameters: there are more combinations than 64 bits can number: give fewer values.")
    rng = np.random.default_rng(seed)
    rows = _drawn(total, count, rng) if where is None else _fulfilling(cells, total, where, count, rng)
    return _table(cells, rows).to_pandas()


def _checked(parameters: Any) -> dict[str, pa.Array]:
    """The values of each parameter as an Arrow array."""
    named = isinstance(parameters, Mapping) and all(isinstance(name, str) and name for name in parameters)
    require(named and len(parameters) > 0, "parameters must be a dictionary of names to lists of values.")
    require(ID not in parameters, f"parameters: {ID!r} is the name of the column of ids: choose another one.")
    return {name: _values(name, given) for name, given in parameters.items()}


def _values(name: str, given: Any) -> pa.Array:
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping) and getattr(given, "ndim", 1) == 1
    require(several, f"parameters: {name!r} must have a list of values, got {given!r:.60}.")
    values = np.asarray(given) if hasattr(given, "__array__") and not isinstance(given, pd.Series | pd.Index) else list(given)
    try:
        cells = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ArgumentError(f"parameters: the values of {name!r} must be all numbers, or all texts: {error}.") from error
    require(len(cells) > 0, f"parameters: {name!r} has no value.")
    found = pc.value_counts(cells)
    most = found[int(np.argmax(found.field("counts").to_numpy()))].as_py()
    require(most["counts"] == 1, f"parameters: {name!r} has the value {most['values']!r} more than once.")
    return cells


def _table(cells: Mapping[str, pa.Array], rows: NDArray[np.int64]) -> pa.Table:
    """The combinations with these numbers, from 0."""
    places = np.unravel_index(rows, tuple(map(len, cells.values())))
    columns = {name: values.take(pa.array(place)) for (name, values), place in zip(cells.items(), places, strict=True)}
    return pa.table({ID: rows + 1, **columns})


def _drawn(total: int, count: int | None, rng: np.random.Generator) -> NDArray[np.int64]:
    """Numbers of combinations in increasing order: all, or some drawn ones."""
    if count is None or count >= total:
        _check_few(total)
        return np.arange(total)
    return np.sort(rng.choice(total, count, replace=False, shuffle=False))


def _check_few(rows: int) -> None:
    message = f"parameters: {rows:,} combinations are too many for a table: give a count= (-n), a condition, or fewer values."
    require(rows <= _LISTED, message)


def _fulfilling(
    cells: Mapping[str, pa.Array], total: int, where: Any, count: int | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Numbers of combinations that fulfil a condition, as `_drawn`."""

    def held(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows[fulfilled("where", InMemory(_table(cells, rows)), where)]

    if total <= _COMPARED:
        found = np.concatenate([held(np.arange(first, min(first + _BLOCK, total))) for first in range(0, total, _BLOCK)])
        require(len(found) > 0, f"where: no combination fulfils {where!r}.")
        return found[_drawn(len(found), count, rng)]
    if count is None:
        raise ArgumentError(f"parameters: {total:,} combinations are too many to compare all with where=: give a count= (-n).")
    found = np.zeros(0, np.int64)
    for _ in range(0, _COMPARED, _BLOCK):
        found = np.union1d(found, held(rng.integers(total, size=_BLOCK)))
        if len(found) >= count:
            return found[_drawn(len(found), count, rng)]
    raise ArgumentError(
        f"where: of {_COMPARED:,} combinations drawn at random {len(found):,} fulfil the condition, and {count:,} rows are "
        "asked for: ask for fewer, or leave out values that never fulfil it."
    )


def parameter(text: str) -> tuple[str, list[Any]]:
    """Parse `NAME=VALUES`: values with commas between them, or a range of numbers, `20..120:10` or `0.001..1:x10`.

    Raises:
        ConfigError: If the text is neither.
    """
    name, equals, values = (part.strip() for part in text.partition("="))
    message = f"a parameter is NAME=VALUES, such as solvent=water,DMF or temperature=20..120:10, got {text!r}."
    require(bool(name and equals and values), message, ConfigError)
    if ".." in values:
        found = _RANGE.fullmatch(values)
        message = (
            f"a range is LOW..HIGH:STEP, such as {name}=20..120:10, or {name}=0.001..1:x10 for a factor of 10, got {values!r}."
        )
        require(found is not None, message, ConfigError)
        assert found is not None
        return name, _numbers(_range(name, *found.groups()))
    parts = [part.strip() for part in values.split(",")]
    require(all(parts), f"{name}: a value is empty in {values!r}.", ConfigError)
    if all(re.fullmatch(_NUMBER, part) for part in parts):
        return name, _numbers([Decimal(part) for part in parts])
    if all(part.casefold() in _TRUTHS for part in parts):
        return name, [_TRUTHS[part.casefold()] for part in parts]
    return name, parts


def _range(name: str, *given: str) -> list[Decimal]:
    """The numbers of a range, both ends included."""
    low, high, step = (Decimal(text) for text in (given[0], given[1], given[3]))
    factor = given[2] == "x"
    good = low <= high and (low > 0 and step > 1 if factor else step > 0)
    wanted = "LOW above 0 and a factor above 1" if factor else "a STEP above 0"
    require(good, f"{name}: a range needs LOW ≤ HIGH and {wanted}.", ConfigError)
    number = int((high / low).ln() / step.ln() + Decimal("1e-9")) if factor else int((high - low) / step)
    require(number < _VALUES, f"{name}: the range has {number + 1:,} values: take a larger step.", ConfigError)
    return [low * step**i if factor else low + i * step for i in range(number + 1)]


def _numbers(values: list[Decimal]) -> list[Any]:
    whole = all(value == value.to_integral_value() for value in values)
    return [int(value) if whole else float(value) for value in values]
