"""Conditions on rows: a column of booleans, a comparison such as `temp < 80 and dry`, or values of columns."""

from __future__ import annotations

import ast
import contextlib
import datetime
import io
import keyword
import re
import sys
import tokenize
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits.errors import ArgumentError, nearest, require
from torchbandits.tabular.cells import as_texts, is_text
from torchbandits.tabular.encoding import numbers
from torchbandits.tabular.survey import survey
from torchbandits.tabular.tables import Table
from torchbandits.tabular.texts import no_number

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import compute as pc
else:
    from torchbandits.tabular.extras import compute as pc
    from torchbandits.tabular.extras import pandas as pd
    from torchbandits.tabular.extras import pyarrow as pa

_QUOTED = re.compile(r"""'[^']*'|"[^"]*"|`([^`]+)`""")
"""A text, or a name in backticks."""
_ALLOWED = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Invert, ast.USub, ast.UAdd, ast.BinOp),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr, ast.Compare, ast.Eq, ast.NotEq, ast.Lt),
    *(ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple),
)
_EQUALITIES = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_IN_QUOTES = {"number": "numbers", "boolean": "True and False"}
_ROUNDING = 1e-12
"""Difference of two computed numbers, as a fraction of their terms, that counts as rounding."""
_TRUTHS = {"true": True, "false": False}
_DAY_FIRST = re.compile(r"\s*\d{1,2}[-./]\s*\d{1,2}[-./]\s*\d{2,4}\b")
"""A date whose day and month may be exchanged."""
_OPERATORS = {"and", "or", "not", "in", "is", "True", "False", "None"}
_SINGLE = re.compile(r"(?<![<>=!])=(?!=)")
_EQUAL = " Equality is written ==."
_BARE_DATE = re.compile(r"(?<!['\"\d])\d{4}-\d\d-\d\d(?!\d)")
_DATES = " Dates are written in quotes."
_COMMA = re.compile(r"\d,\d")


def boolean_column(table: Table, name: Any) -> bool:
    """Whether this is the name of a column of booleans."""
    return isinstance(name, str) and name in table.schema.names and pa.types.is_boolean(table.schema.field(name).type)


def on_offer(name: str, table: Table, condition: Any, *, strict: bool = True) -> Tensor:
    """Mask of the rows that fulfil a condition, `A` booleans; rows with an empty cell in a column that the condition names do
    not fulfil it, unless it is None in a dictionary.

    Args:
        name: The argument, for messages.
        table: The candidates.
        condition: The name of a column of booleans; a comparison as `pandas.DataFrame.query` takes it, of columns, numbers
            and texts (names with spaces in backticks), which calls nothing; a dictionary of columns to a value or a list of
            possible values, in which None is an empty cell; or one boolean per row, such as a series of pandas.
        strict: Whether to refuse a comparison of a column of numbers with a text, or of texts with a number, which are never
            equal.

    Raises:
        ArgumentError: If the condition is none of these, or no row fulfils it.

    Cost: a pass over the columns that the condition names.
    """
    held = fulfilled(name, table, condition, strict=strict)
    said = repr(condition) if isinstance(condition, str | Mapping) else "the condition"
    require(bool(held.any()), f"{name}: no row of {table.name} fulfils {said}.")
    return torch.from_numpy(held)


def fulfilled(name: str, table: Table, condition: Any, *, strict: bool = True) -> NDArray[np.bool_]:
    """The mask of `on_offer`, which may be false for all rows."""
    if isinstance(condition, Mapping):
        parts = [_one_of(name, table, str(column), value) for column, value in condition.items()]
        require(bool(parts), f"{name}: the dictionary is empty: give a column and its value, or leave {name}= out.")
    elif boolean_column(table, condition):
        parts = [_column(table, condition)]
    elif hasattr(condition, "__array__"):
        parts = [_given(name, table, condition)]
    else:
        known = "a column, a comparison, a dictionary or a series of booleans"
        require(isinstance(condition, str), f"{name} must be {known}, got {condition!r}.")
        parts = [_compared(name, table, condition, strict=strict)]
    return np.logical_and.reduce(parts)


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
    _check_column(name, table, column)
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
    _check_column(name, table, column)
    found = survey(table, [column])[column]
    require(found.numeric, f"{name}: {no_number(found, 'correct it')}")
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


def _one_of(name: str, table: Table, column: str, value: Any) -> Any:
    """Mask of the rows whose cell in a column is this value, or one of these."""
    several = isinstance(value, Collection) and not isinstance(value, str | bytes) and getattr(value, "ndim", 1) > 0
    values = list(value) if several else [value]
    require(bool(values), f"{name}: the list of values of column {column!r} is empty.")
    return np.logical_or.reduce([_equal(name, table, column, one) for one in values])


def _equal(name: str, table: Table, column: str, value: Any) -> Any:
    _check_column(name, table, column)
    if value is None:
        empty = (pc.is_null(batch.column(0), nan_is_null=True) for batch in table.batches([column]))
        return np.concatenate([cells.to_numpy(zero_copy_only=False) for cells in empty])
    if _kind(table, column) == "date" and isinstance(value, str | datetime.date | np.datetime64):
        return _on_date(name, table, column, value)
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


def _on_date(name: str, table: Table, column: str, value: Any) -> Any:
    """Mask of the rows whose cell in a column of dates is this date."""
    _check_date(name, column, value)
    try:
        wanted = pd.Timestamp(value)
    except ValueError as error:
        raise ArgumentError(f"{name}: {value!r} is no date, which column {column!r} holds: {error}.") from error
    cells = []
    for batch in table.batches([column]):
        dates = batch.column(0).to_pandas(date_as_object=False)
        zone = dates.dt.tz
        own = wanted if (zone is None) == (wanted.tz is None) else wanted.tz_localize(zone)
        cells.append((dates == own).to_numpy(bool))
    return np.concatenate(cells)


def _compared(name: str, table: Table, text: str, *, strict: bool) -> Any:
    tree, columns = _parsed(name, table, text)
    kinds = {own: _kind(table, column) for own, column in columns.items()}
    if strict:
        _check_kinds(name, table, tree, columns, kinds)
    # Names of columns need not be names of Python.
    zones = {own: _zone(table, column) for own, column in columns.items()}
    whole = {own for own, column in columns.items() if pa.types.is_integer(table.schema.field(column).type)}
    written = _Rounded(kinds, whole).visit(_Dates(kinds, zones).visit(tree))
    own_text = ast.unparse(ast.fix_missing_locations(written))
    cells = []
    try:
        for batch in table.batches(list(columns.values())):
            # Booleans with empty cells and dates would be Python objects, which can't be negated or compared with texts.
            frame = batch.to_pandas(types_mapper={pa.bool_(): pd.BooleanDtype()}.get, date_as_object=False)
            full = frame.notna().all(axis=1)
            held = _widened(frame[full]).set_axis(list(columns), axis=1).eval(own_text, engine="python")
            boolean = isinstance(held, pd.Series) and held.dtype in (bool, "boolean")
            point = " Write decimals with a point." if _COMMA.search(text) else ""
            require(boolean, f"{name}: {text!r} is not a comparison: it must be true or false for each row.{point}")
            cells.append((held.astype(bool).reindex(full.index, fill_value=False) & full).to_numpy(bool))
    except (TypeError, ValueError, SyntaxError, NotImplementedError, pd.errors.UndefinedVariableError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{name}: {text!r} can't be compared: {error}.") from error
    return np.concatenate(cells)


def _widened(frame: pd.DataFrame) -> pd.DataFrame:
    """The same cells with numbers of 64 bits. Sums, differences and products of narrow or unsigned whole numbers would wrap
    around; those without room there stay as they are. The 0.1 of float32 becomes 0.1, not 0.10000000149."""
    kinds = {name: getattr(kind, "name", "") for name, kind in frame.dtypes.items()}
    most = np.iinfo(np.int64).max
    whole = [name for name, kind in kinds.items() if re.fullmatch(r"u?int\d+", kind)]
    wide = frame.astype({name: np.int64 for name in whole if not len(frame) or frame[name].max() <= most})
    for name in (name for name, kind in kinds.items() if kind == "float32"):
        wide[name] = pc.cast(pc.cast(pa.array(frame[name]), pa.string()), pa.float64()).to_numpy()
    return wide


def _parsed(name: str, table: Table, text: str) -> tuple[ast.Expression, dict[str, str]]:
    """A comparison, with names `column_0`, `column_1` … in place of those of columns, and the column of each. Anything but a
    comparison is refused, since evaluating it would run its code."""
    quoted: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        column = next((group for group in found.groups() if group is not None), None)
        if column is None:
            return found[0]
        own = f"_quoted_{len(quoted)}_"
        quoted[own] = column
        return own

    # Columns may be called lambda, class or yield, which are words of Python.
    words = [column for column in table.schema.names if keyword.iskeyword(column) and column not in _OPERATORS]
    pattern = rf"{_QUOTED.pattern}|\b({'|'.join(words)})\b" if words else _QUOTED
    try:
        tree = ast.parse(_with_words(re.sub(pattern, renamed, text).strip()), mode="eval")
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        equal = _EQUAL if _SINGLE.search(text) else ""
        dates = _DATES if _BARE_DATE.search(text) else ""
        raise ArgumentError(
            f"{name}: {text!r} is neither a column of booleans nor a comparison, such as \"temp < 80 and solvent != 'DMF'\" "
            f"(names with spaces in backticks).{equal}{dates}"
        ) from error
    tree = _Truths(table.schema.names).visit(tree)
    odd = next((node for node in ast.walk(tree) if not isinstance(node, _ALLOWED)), None)
    require(odd is None, f"{name}: {text!r} may only compare columns, numbers and texts, and contains {type(odd).__name__}.")
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    # Python writes some letters of names in another way, such as the micro sign as a Greek letter.
    rewritten = {unicodedata.normalize("NFKC", column): column for column in table.schema.names}
    for node in nodes:
        if node.id not in table.schema.names:
            node.id = rewritten.get(node.id, node.id)
    columns = list(dict.fromkeys(quoted.get(node.id, node.id) for node in nodes))
    require(bool(columns), f"{name}: {text!r} does not name a column.")
    unknown = next((column for column in columns if column not in table.schema.names), None)
    quotes = f" A text is written in quotes: '{unknown}'."
    message = f"{name}: {table.name} has no column {unknown!r}.{nearest(str(unknown), table.schema.names)}{quotes}"
    require(unknown is None, message)
    for node in nodes:
        node.id = f"column_{columns.index(quoted.get(node.id, node.id))}"
    return tree, {f"column_{place}": column for place, column in enumerate(columns)}


def _with_words(text: str) -> str:
    """A comparison with `and` and `or` for & and |, as pandas reads them."""
    words = {"&": (tokenize.NAME, "and"), "|": (tokenize.NAME, "or")}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return tokenize.untokenize(words.get(token, (kind, token)) for kind, token, *_ in tokens).strip()


def _kind(table: Table, column: str) -> str:
    """The kind of value that the cells of a column can be compared with: text, number, boolean or date; "" for others."""
    kind = table.schema.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    found = {
        "text": is_text(kind),
        "boolean": pa.types.is_boolean(kind),
        "date": pa.types.is_date(kind) or pa.types.is_timestamp(kind),
        "number": pa.types.is_integer(kind) or pa.types.is_floating(kind),
    }
    return next((name for name, own in found.items() if own), "")


def _zone(table: Table, column: str) -> datetime.tzinfo | None:
    """The time zone of a column of dates; None for other columns, and for dates without one."""
    kind = table.schema.field(column).type
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    return pa.lib.string_to_tzinfo(kind.tz) if zoned else None


def _sides(node: ast.Compare) -> list[tuple[ast.expr, ast.cmpop, ast.expr]]:
    """The pairs that a chain such as 20 < temp < 80 compares."""
    return list(zip([node.left, *node.comparators], node.ops, node.comparators, strict=False))


def _constants(node: ast.expr) -> list[Any]:
    """The numbers and texts of a constant or a list of constants; empty for anything else."""
    nodes = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    operands = [own.operand if isinstance(own, ast.UnaryOp) else own for own in nodes]
    found = [own.value for own in operands if isinstance(own, ast.Constant)]
    return found if len(found) == len(nodes) else []


def _check_kinds(name: str, table: Table, tree: ast.Expression, columns: dict[str, str], kinds: dict[str, str]) -> None:
    """Refuse to compare numbers with texts, of which none is equal to the other, so that `!=` would hold for every row."""
    for node in ast.walk(tree):
        for one, _, other in _sides(node) if isinstance(node, ast.Compare) else []:
            for side, given in ((one, other), (other, one)):
                values = _constants(given)
                if isinstance(side, ast.Name):
                    _check_values(name, columns[side.id], kinds[side.id], values)
                meant = next((text for text in _constants(side) if isinstance(text, str) and text in table.schema.names), None)
                message = f"{name}: {meant!r} is a column, whose name is written without quotes, or in backticks: `{meant}`."
                require(meant is None or not values, message)


def _check_values(name: str, column: str, kind: str, values: list[Any]) -> None:
    """Refuse values that no cell of a column can be equal to."""
    for value in values:
        if kind in _IN_QUOTES and isinstance(value, str):
            instead = " (True or False)" if kind == "boolean" else ""
            holds = f"column {column!r} holds {_IN_QUOTES[kind]}"
            raise ArgumentError(f"{name}: {holds}, and {value!r} is a text: write it without quotes{instead}.")
        if kind in ("text", "date") and not isinstance(value, str):
            raise ArgumentError(
                f"{name}: column {column!r} holds {kind}s, and {value!r} is none: write it in quotes"
                f"{', such as 2026-08-31' if kind == 'date' else ''}."
            )
        if kind == "date":
            _check_date(name, column, value)


def _check_date(name: str, column: str, value: Any) -> None:
    """Refuse a text such as 01.02.2026, in which day and month may be exchanged."""
    plain = not isinstance(value, str) or _DAY_FIRST.match(value) is None
    require(plain, f"{name}: column {column!r} holds dates, and {value!r} may mean two: write it in the form '2026-08-31'.")


class _Truths(ast.NodeTransformer):
    """Read `true` and `false` as a CSV file has them, unless columns have these names.

    Args:
        names: The columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A constant in place of a truth value."""
        return ast.Constant(_TRUTHS[node.id]) if node.id in _TRUTHS and node.id not in self._names else node


class _Dates(ast.NodeTransformer):
    """Write that a date is equal to a text as that it is neither before nor after it: pandas takes a text for a date there
    only. A text without a time zone has that of the column.

    Args:
        kinds: The kind of the cells of each name.
        zones: The time zone of the dates of each name, or None.
    """

    def __init__(self, kinds: Mapping[str, str], zones: Mapping[str, datetime.tzinfo | None]) -> None:
        self._kinds, self._zones = kinds, zones

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Write the pairs of a comparison anew, if it has such a pair."""
        for left, _, right in _sides(node):
            for own, other in ((left, right), (right, left)):
                if isinstance(own, ast.Name) and self._kinds[own.id] == "date":
                    _localize_(other, self._zones[own.id])
        pairs = [self._pair(*sides) for sides in _sides(node)]
        if all(pair is None for pair in pairs):
            return node
        kept = [
            ast.Compare(left, [op], [right]) if pair is None else pair
            for pair, (left, op, right) in zip(pairs, _sides(node), strict=True)
        ]
        return kept[0] if len(kept) == 1 else ast.BoolOp(ast.And(), kept)

    def _pair(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> ast.expr | None:
        """Whether a date is equal to a text, or to one of several; None for another comparison."""
        if isinstance(right, ast.Name) and isinstance(op, ast.Eq | ast.NotEq) and not isinstance(left, ast.Name):
            left, right = right, left
        texts = _constants(right)
        dated = isinstance(left, ast.Name) and self._kinds[left.id] == "date" and isinstance(op, _EQUALITIES)
        if not dated or not texts or not all(isinstance(text, str) for text in texts):
            return None
        on: list[ast.expr] = [
            ast.BoolOp(ast.And(), [ast.Compare(left, [bound()], [ast.Constant(text)]) for bound in (ast.GtE, ast.LtE)])
            for text in texts
        ]
        met = on[0] if len(on) == 1 else ast.BoolOp(ast.Or(), on)
        return met if isinstance(op, ast.Eq | ast.In) else ast.UnaryOp(ast.Not(), met)


class _Rounded(ast.NodeTransformer):
    """Write that two sides, one of which is computed, are equal as that they differ by rounding at most: in binary fractions
    0.1 + 0.2 is not 0.3. Numbers of equal sides are neither smaller nor larger. Whole numbers are compared as they are.

    Args:
        kinds: The kind of the cells of each name.
        whole: The names of columns of whole numbers.
    """

    def __init__(self, kinds: Mapping[str, str], whole: Collection[str]) -> None:
        self._kinds, self._whole = kinds, whole

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Write the pairs of a comparison anew, if it has such a pair."""
        if not any(self._computed(left, op, right) for left, op, right in _sides(node)):
            return node
        pairs = [self._pair(*sides) if self._computed(*sides) else _compare(*sides) for sides in _sides(node)]
        return pairs[0] if len(pairs) == 1 else ast.BoolOp(ast.And(), pairs)

    def _computed(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> bool:
        """Whether the sides are numbers, and rounding can decide how they compare."""
        parts = [*ast.walk(left), *ast.walk(right)]
        values = [part.value for part in parts if isinstance(part, ast.Constant)]
        names = [part.id for part in parts if isinstance(part, ast.Name)]
        numeric = (
            not isinstance(op, ast.In | ast.NotIn)
            and not any(
                isinstance(part, ast.Compare | ast.BoolOp | ast.BitAnd | ast.BitOr | ast.Not | ast.Invert) for part in parts
            )
            and all(self._kinds[name] == "number" for name in names)
            and all(isinstance(value, int | float) for value in values)
        )
        exact = all(isinstance(value, int) for value in values) and all(name in self._whole for name in names)
        exact = exact and not any(isinstance(part, ast.Div | ast.Pow) for part in parts)
        return numeric and not exact and any(isinstance(part, ast.BinOp) for part in parts)

    def _pair(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> ast.expr:
        """The comparison of two sides up to rounding."""
        difference = ast.BinOp(left, ast.Sub(), right)
        most = ast.BinOp(ast.Constant(_ROUNDING), ast.Mult(), ast.BinOp(_size(left), ast.Add(), _size(right)))
        # Infinite sides are compared as they are.
        near = _all(
            _compare(difference, ast.LtE(), most),
            _compare(ast.UnaryOp(ast.USub(), difference), ast.LtE(), most),
            _compare(most, ast.Lt(), ast.Constant(sys.float_info.max)),
        )
        own = _compare(left, op, right)
        if isinstance(op, ast.Eq | ast.LtE | ast.GtE):
            return ast.BoolOp(ast.Or(), [own, near])
        return _all(own, ast.UnaryOp(ast.Not(), near))


def _size(node: ast.expr) -> ast.expr:
    """An upper bound on the size of the terms of a computed number, to which its rounding error is proportional."""
    if isinstance(node, ast.UnaryOp):
        return _size(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return ast.BinOp(_size(node.left), ast.Add(), _size(node.right))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return ast.BinOp(_size(node.left), ast.Mult(), _size(node.right))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return ast.BinOp(_size(node.left), ast.Div(), _absolute(node.right))
    return _absolute(node)


def _absolute(node: ast.expr) -> ast.expr:
    return ast.Call(ast.Name("abs", ast.Load()), [node], [])


def _compare(left: ast.expr, op: ast.cmpop, right: ast.expr) -> ast.expr:
    return ast.Compare(left, [op], [right])


def _all(*conditions: ast.expr) -> ast.expr:
    return ast.BoolOp(ast.And(), list(conditions))


def _localize_(side: ast.expr, zone: datetime.tzinfo | None) -> None:
    """Write the time zone of a column beside the texts of dates that it is compared with and that name none; for a column
    without one, leave out theirs."""
    for part in ast.walk(side):
        if not isinstance(part, ast.Constant) or not isinstance(part.value, str):
            continue
        # A text that is no date stays, and is refused where it is compared.
        with contextlib.suppress(ValueError):
            date = pd.Timestamp(part.value)
            if (date.tz is None) != (zone is None):
                part.value = str(date.tz_localize(zone, ambiguous=True, nonexistent="shift_forward"))


def _check_column(name: str, table: Table, column: str) -> None:
    names = table.schema.names
    require(column in names, f"{name}: {table.name} has no column {column!r}.{nearest(column, names)}")
