"""Conditions on rows: a column of booleans, a comparison such as `temp < 80 and dry`, or values of columns."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchbandits.errors import ArgumentError, nearest, require
from torchbandits.tabular.columns import as_texts, is_text, no_number, survey
from torchbandits.tabular.encoding import numbers
from torchbandits.tabular.tables import Table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
else:
    from torchbandits.tabular.extras import pandas as pd
    from torchbandits.tabular.extras import pyarrow as pa

_QUOTED = re.compile(r"`([^`]+)`")
_ALLOWED = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Invert, ast.USub, ast.UAdd, ast.BinOp),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr, ast.Compare, ast.Eq, ast.NotEq, ast.Lt),
    *(ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple),
)


def boolean_column(table: Table, name: Any) -> bool:
    """Whether this is the name of a column of booleans."""
    return isinstance(name, str) and name in table.schema.names and pa.types.is_boolean(table.schema.field(name).type)


def on_offer(name: str, table: Table, condition: Any) -> Tensor:
    """Mask of the rows that fulfil a condition, `A` booleans; rows with an empty cell in a column that the condition names do
    not fulfil it.

    Args:
        name: The argument, for messages.
        table: The candidates.
        condition: The name of a column of booleans; a comparison as `pandas.DataFrame.query` takes it, of columns, numbers
            and texts (names with spaces in backticks), which calls nothing; a dictionary of columns to their values; or one
            boolean per row, such as a series of pandas.

    Raises:
        ArgumentError: If the condition is none of these, or no row fulfils it.

    Cost: a pass over the columns that the condition names.
    """
    if isinstance(condition, Mapping):
        parts = [_equal(name, table, str(column), value) for column, value in condition.items()]
        require(bool(parts), f"{name}: the dictionary is empty: give a column and its value, or leave {name}= out.")
    elif boolean_column(table, condition):
        parts = [_column(table, condition)]
    elif hasattr(condition, "__array__"):
        parts = [_given(name, table, condition)]
    else:
        known = "a column, a comparison, a dictionary or a series of booleans"
        require(isinstance(condition, str), f"{name} must be {known}, got {condition!r}.")
        parts = [_compared(name, table, condition)]
    held = torch.from_numpy(np.logical_and.reduce(parts))
    said = repr(condition) if isinstance(condition, str | Mapping) else "the condition"
    require(bool(held.any()), f"{name}: no row of {table.name} fulfils {said}.")
    return held


def labels_of(name: str, table: Table, column: str) -> Tensor:
    """The cells of a column as whole numbers, equal where the cells are, `A`; empty cells are equal to each other.

    Args:
        name: The argument, for messages.
        table: The candidates.
        column: A name of one of its columns.

    Raises:
        ArgumentError: If there is no such column.

    Cost: a pass over the column.
    """
    _check_columns(name, table, [column])
    cells = pd.concat([batch.column(0).to_pandas() for batch in table.batches([column])], ignore_index=True)
    return torch.from_numpy(pd.factorize(cells, use_na_sentinel=False)[0].astype(np.int64))


def values_of(name: str, table: Table, column: str) -> Tensor:
    """The numbers of a column, `A`, float64.

    Args:
        name: The argument, for messages.
        table: The candidates.
        column: A name of one of its columns.

    Raises:
        ArgumentError: If there is no such column, or a cell is empty or no number: names the row.

    Cost: two passes over the column.
    """
    _check_columns(name, table, [column])
    found = survey(table, [column])[column]
    require(found.numeric, f"{name}: {no_number(found)}")
    values = numbers(table, column)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise ArgumentError(
            f"{name}: {table.name}, {table.where(int(bad[0]))}, column {column!r}: a number is missing ({len(bad):,} such "
            "rows): fill it in; a number above the limit excludes a row."
        )
    return torch.from_numpy(values)


def _given(name: str, table: Table, condition: Any) -> Any:
    """Booleans that were given, one per row."""
    cells = np.asarray(condition)
    good = cells.dtype == bool and cells.shape == (table.count,)
    message = f"{name} must have one boolean per row of {table.name} ({table.count:,}), got {cells.dtype} of {cells.shape}."
    require(good, message)
    order = getattr(condition, "index", None)
    if isinstance(order, pd.Index) and order.dtype.kind == "i":
        # The index of a series holds the numbers of the rows, which are in another order if the table was sorted.
        numbered, rows = order.to_numpy(), np.arange(table.count)
        moved = np.array_equal(np.sort(numbered), rows) and not np.array_equal(numbered, rows)
        require(not moved, f"{name}: the series has the rows in another order than {table.name}: pass its sort_index().")
    return cells


def _column(table: Table, column: str) -> Any:
    cells = [batch.column(0).fill_null(False).to_numpy(zero_copy_only=False) for batch in table.batches([column])]
    return np.concatenate(cells).astype(bool)


def _equal(name: str, table: Table, column: str, value: Any) -> Any:
    _check_columns(name, table, [column])
    wanted = str(value).lower() if isinstance(value, (bool, np.bool_)) else str(value)
    number = pd.to_numeric(pd.Series([wanted]), errors="coerce").iloc[0]
    if isinstance(value, str) and is_text(table.schema.field(column).type):
        number = np.nan  # 007 is not 7
    cells = []
    for batch in table.batches([column]):
        texts = as_texts(batch.column(0)).to_pandas()
        same = texts == wanted
        cells.append((same if np.isnan(number) else same | (pd.to_numeric(texts, errors="coerce") == number)).to_numpy(bool))
    return np.concatenate(cells)


def _compared(name: str, table: Table, text: str) -> Any:
    columns = _columns(name, table, text)
    cells = []
    try:
        for batch in table.batches(columns):
            # Booleans with empty cells and dates would be Python objects, which can't be negated or compared with texts.
            frame = batch.to_pandas(types_mapper={pa.bool_(): pd.BooleanDtype()}.get, date_as_object=False)
            full = frame.notna().all(axis=1)
            held = frame[full].eval(text, engine="python")
            boolean = isinstance(held, pd.Series) and held.dtype in (bool, "boolean")
            require(boolean, f"{name}: {text!r} is not a comparison: it must be true or false for each row.")
            cells.append((held.astype(bool).reindex(full.index, fill_value=False) & full).to_numpy(bool))
    except (TypeError, ValueError, SyntaxError, NotImplementedError, pd.errors.UndefinedVariableError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{name}: {text!r} can't be compared: {error}.") from error
    return np.concatenate(cells)


def _columns(name: str, table: Table, text: str) -> list[str]:
    """Columns that a comparison names. Anything but a comparison is refused, since evaluating it would run its code."""
    quoted = _QUOTED.findall(text)
    try:
        tree = ast.parse(_QUOTED.sub("True", text).strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise ArgumentError(
            f"{name}: {text!r} is neither a column of booleans nor a comparison, such as \"temp < 80 and solvent != 'DMF'\" "
            "(names with spaces in backticks)."
        ) from error
    odd = next((node for node in ast.walk(tree) if not isinstance(node, _ALLOWED)), None)
    require(odd is None, f"{name}: {text!r} may only compare columns, numbers and texts, and contains {type(odd).__name__}.")
    columns = list(dict.fromkeys([*quoted, *(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))]))
    require(bool(columns), f"{name}: {text!r} does not name a column.")
    unknown = next((column for column in columns if column not in table.schema.names), None)
    quotes = f" A text is written in quotes: '{unknown}'."
    message = f"{name}: {table.name} has no column {unknown!r}.{nearest(str(unknown), table.schema.names)}{quotes}"
    require(unknown is None, message)
    return columns


def _check_columns(name: str, table: Table, columns: list[str]) -> None:
    names = table.schema.names
    for column in columns:
        require(column in names, f"{name}: {table.name} has no column {column!r}.{nearest(column, names)}")
