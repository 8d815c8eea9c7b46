"""An environment from a table whose candidates were all measured; its rows are the arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits.checks import check_dtype, check_flag, check_text, explains_keywords
from torchbandits.environments.base import Environment
from torchbandits.environments.noise import check_noise
from torchbandits.environments.tables import Recorded
from torchbandits.environments.tables import Table as TableEnvironment
from torchbandits.errors import ArgumentError, nearest, require
from torchbandits.tabular.columns import decide
from torchbandits.tabular.encoding import Encoder, costs, encode_in_memory, numbers
from torchbandits.tabular.ids import id_column, open_table
from torchbandits.tabular.survey import survey
from torchbandits.tabular.tables import Table
from torchbandits.tabular.texts import no_number


@explains_keywords
def from_table(
    table: Any,
    objective: str | Sequence[str],
    *,
    noise_std: float = 0.0,
    minimize: bool = False,
    standardize: bool = False,
    columns: Mapping[str, Any] | None = None,
    id: str | None = None,
    cost: str | None = None,
    dtype: torch.dtype = torch.float64,
) -> Environment:
    """An environment whose arms are the rows of a table and whose rewards are one of its columns.

    The other columns are encoded as features by the rules of `Campaign`: numbers, logarithms of numbers over decades, booleans,
    dates and categories, each number standardised.

    Args:
        table: A table of pandas, Polars or Arrow, or the path of a CSV, Excel, Parquet or Arrow file, every row of which was
            measured.
        objective: The column of the rewards, which are the expected rewards of the arms. Several columns hold repeated
            measurements of the same row (empty where a row has fewer): a pull draws one of them.
        noise_std: Standard deviation of Gaussian noise that is added to the rewards of a single column, reward units.
        minimize: Whether to minimise the objective; the rewards are then the negated values.
        standardize: Whether the values are shifted and scaled to mean 0 and standard deviation 1. `noise_std` is then in units
            of this deviation.
        columns: Kinds of columns that replace those chosen by the rules, as for `Campaign`; `"ignore"` leaves a column out.
        id: The column of the ids, which is not a feature; by default a column called id.
        cost: The column of the cost of an evaluation, > 0.
        dtype: Precision of the features.

    Returns:
        A `Table` environment, or a `Recorded` one if there are several columns of measurements.

    Raises:
        ArgumentError: If a column is missing or can't be used, or a row was not measured: names row and column.
        DataError: If the file can't be read, or a package of `torchbandits[experiments]` is missing.

    Cost: two passes over the table. Its features are held in memory.
    """
    check_noise(noise_std, "gaussian")
    for name, flag in (("minimize", minimize), ("standardize", standardize)):
        check_flag(name, flag)
    for name, text in (("id", id), ("cost", cost)):
        check_text(name, text, optional=True)
    check_dtype("dtype", dtype)
    require(columns is None or isinstance(columns, Mapping), f"columns must be a dictionary, got {type(columns).__name__}.")
    measured = _objectives(objective)
    require(
        len(measured) == 1 or noise_std == 0,
        "noise_std: several columns of measurements carry their own noise. Leave noise_std out, or give one objective.",
    )
    opened = open_table(table, id)
    _check_columns(opened, {"objective": measured, "cost": [] if cost is None else [cost]})
    own_id = id_column(opened.schema.names, id, opened.index)
    free = own_id is None or own_id not in (*measured, cost)
    require(free, f"id: {own_id!r} holds the ids, and can't be the objective or the cost as well.")
    roles = dict.fromkeys(measured, "objective") | ({} if cost is None else {cost: "cost"})
    roles |= {} if own_id is None else {own_id: "id"}
    encoder = Encoder(decide(opened, roles, columns or {}))
    arms = encode_in_memory(opened, encoder, dtype)
    rewards = torch.from_numpy(_values(opened, measured)) * (-1.0 if minimize else 1.0)
    if standardize:
        rewards = _standardized(rewards, opened, measured)
    name = "table" if opened.path is None else opened.path.stem
    priced = None if cost is None else costs(opened, cost)
    if len(measured) > 1:
        return Recorded(arms, rewards.to(dtype), name=name, costs=priced)
    return TableEnvironment(arms, rewards[:, 0].to(dtype), noise_std, name=name, costs=priced)


def _objectives(objective: Any) -> list[str]:
    """The columns of the rewards, at least one, all different."""
    names = [objective] if isinstance(objective, str) else objective
    good = isinstance(names, Sequence) and len(names) > 0 and all(isinstance(name, str) and name for name in names)
    require(good, f"objective must be the name of a column, or a list of names, got {objective!r}.")
    require(len(set(names)) == len(names), f"objective names a column twice: {', '.join(names)}.")
    return list(names)


def _check_columns(table: Table, wanted: Mapping[str, Sequence[str]]) -> None:
    names = table.schema.names
    for argument, columns in wanted.items():
        for column in columns:
            has = f"{table.name} has no column {column!r}; it has {', '.join(names[:30])}."
            require(column in names, f"{argument}: {has}{nearest(column, names)}")


def _values(table: Table, measured: Sequence[str]) -> NDArray[np.float64]:
    """Measured values, rows x columns, NaN where empty.

    Raises:
        ArgumentError: If a cell is no number, or a row has no value at all.
    """
    found = survey(table, measured)
    for column in measured:
        require(found[column].numeric, no_number(found[column], "correct it, or leave the cell empty"))
        wild = f"{table.name}, column {column!r}, is infinite in {found[column].infinite}: correct it, or leave the row out."
        require(not found[column].infinite, wild)
    values = np.stack([numbers(table, column) for column in measured], axis=-1)
    empty = np.flatnonzero(np.isnan(values).all(axis=-1))
    if len(empty):
        others = f" ({len(empty):,} such rows)" if len(empty) > 1 else ""
        raise ArgumentError(
            f"{table.name}, {table.where(int(empty[0]))}, has no value in column {', '.join(map(repr, measured))}{others}: an "
            "environment answers for every row. Leave such rows out of the table; to find out their values, use Campaign."
        )
    return values


def _standardized(values: Tensor, table: Table, measured: Sequence[str]) -> Tensor:
    known = values[~values.isnan()]
    deviation = known.std(correction=0)
    same = f"standardize: all values of {table.name} in column {', '.join(map(repr, measured))} are equal."
    require(float(deviation) > 0, same)
    return (values - known.mean()) / deviation
