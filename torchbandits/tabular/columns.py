"""Columns of a table of candidates: a survey of their cells, and the decision on the features of each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from torchbandits.display import count
from torchbandits.errors import ArgumentError, nearest, require
from torchbandits.sources.smiles import all_smiles, chem, no_smiles
from torchbandits.tabular.mixtures import BULK, parts_of_a_whole
from torchbandits.tabular.substances import coordinates_of
from torchbandits.tabular.tables import Table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import compute as pc
else:
    from torchbandits.tabular.extras import compute as pc
    from torchbandits.tabular.extras import pandas as pd
    from torchbandits.tabular.extras import pyarrow as pa

MOLECULE, SUBSTANCE = "molecule", "substance"
KINDS = ("number", "log", "count", "boolean", "date", "category", "ordered", SUBSTANCE, MOLECULE, "ignore")
"""Kinds of columns."""
FINGERPRINT_BITS = 2048
"""Bits of the fingerprint of a molecule."""
EMPTY = "(empty)"
"""The category of empty cells."""
NUMBERS = ("number", "log", "count", "date", "ordered")
FEW_CATEGORIES = 50
"""Largest number of different texts of a column that is taken as categories without the user's decision."""
# Ratio of the 95 % to the 5 % quantile from which on the logarithm of a column is used.
WIDE = 100.0
SAMPLE = 100_000
"""Number of evenly spaced rows from which quantiles, means and deviations are computed."""
MOST_CATEGORIES = 1_000
"""Largest number of values of a column of categories."""
LARGEST = 1e100
"""Bound of the numbers of a column, whose squares and their sums must be finite."""
SLIPS = 0.1
"""Largest share of the cells of a column of numbers or dates that may be other texts by mistake."""
ROUNDING = 64 * float(np.finfo(np.float64).eps)
"""Spread of the numbers of a column, as a fraction of their size, up to which they differ by rounding errors."""
_DAY = 86_400e6  # microseconds
FEW_REAGENTS = 100
"""Largest number of different SMILES that are categories beside other features. As substances so few had more simple regret."""
_CORRECT = "correct it, leave the cell empty, or make the column a 'category' or 'ignore' it"
# Largest number of texts, or of columns, that a message names.
_NAMED = 5
_SIMILAR = "SMILES: similar ones are close to each other"
_LIKE_A_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\b")
_DATE = re.compile(r"\d{1,2}([-./])\d{1,2}\1\d{4}|\d{4}([-./])\d{1,2}\2\d{1,2}")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)?")
_WORDS = re.compile(r"[^\W\d_]{4,}([ -][^\W\d_]+)*")
_ROLES = {"id": "names the rows", "known": "a value in every row: not measured"}
# A date as it is read from a file.
_LIKE_A_WRITTEN_DATE = r"\d{4}-\d\d-\d\d(?!\d)"
# A number with a unit, a sign such as <, or separators of thousands.
_LIKE_A_NUMBER = re.compile(r"[<>~]?\s*[+-]?\d[\d.,' ]*\s*[^\W\d]{0,3}[%°]?[^\W\d]?")


# ---------------------------------------------------------------------- the content of a column


class Survey:
    """Contents of one column, collected batch by batch.

    Attributes:
        missing: Number of empty cells.
        infinite: The place of the first infinite cell in words, or "".
        low, high: Smallest and largest number.
        sample: Numbers of evenly spaced non-empty cells, or of all non-empty cells if there are at most `SAMPLE`.
        categories: Different values as texts, sorted or in the order of the column's type.
        too_many: Whether there are more than `MOST_CATEGORIES` of them.
        first_text, text_at: A text, preferably one that is not a number, and its place in words.
        mostly_numbers: Whether most texts of the first batch are numbers.
        mostly_dates: Whether most of them are dates such as 2026-08-31, but not all.
        slips: Whether the others are so few that they may be slips.
    """

    def __init__(self, column: str, kind: pa.DataType, table: Table) -> None:
        self.column, self._table = column, table
        self.dictionary = pa.types.is_dictionary(kind)
        self.ordered = bool(self.dictionary and kind.ordered)
        inner = kind.value_type if self.dictionary else kind
        self.type = str(inner)
        self.boolean = pa.types.is_boolean(inner)
        self.date = pa.types.is_date(inner) or pa.types.is_timestamp(inner)
        self.whole = pa.types.is_integer(inner)
        plain = self.whole or pa.types.is_floating(inner) or pa.types.is_decimal(inner) or pa.types.is_duration(inner)
        self.numeric = not self.dictionary and (self.boolean or self.date or plain)
        self.text = is_text(inner)
        self.count, self.missing, self.infinite = table.count, 0, ""
        self.low, self.high = math.inf, -math.inf
        self.too_many, self.first_text, self._text_row = False, "", 0
        self.mostly_numbers = self.mostly_dates = self.slips = False
        self._own_order: tuple[str, ...] = ()
        self._seen: dict[str, None] = {}
        self._filled = 0
        self._first: list[NDArray[np.float64]] = []
        self._parts: list[NDArray[np.float64]] = []
        self._step = max(1, math.ceil(table.count / SAMPLE))

    def add(self, values: pa.Array, first: int) -> None:
        """Add the cells of a batch, whose first row has this number."""
        if self.numeric:
            self._add_numbers(as_numbers(values), first)
        else:
            self.missing += values.null_count
        if (self.numeric or self.text or self.dictionary) and not self.too_many:
            self._add_categories(values, first)

    def _add_numbers(self, numbers: NDArray[np.float64], first: int) -> None:
        some = numbers[~np.isnan(numbers)]
        self.missing += len(numbers) - len(some)
        wild = np.isinf(numbers)
        if wild.any() and not self.infinite:
            self.infinite = self._table.where(first + int(wild.argmax()))
        if len(some):
            self.low, self.high = min(self.low, float(some.min())), max(self.high, float(some.max()))
        # A view would keep the whole batch in memory.
        self._parts.append(some[-self._filled % self._step :: self._step].copy())
        self._filled += len(some)
        # Of a small table the parts are all numbers.
        self._first = [*self._first, some] if self._filled <= SAMPLE and self._step > 1 else []

    def _add_categories(self, values: pa.Array, first: int) -> None:
        if self.ordered and not self._own_order:
            self._own_order = tuple(str(value) for value in values.dictionary.to_pylist())
        if self.text and first == 0:
            self._look_for_numbers(as_texts(values))
        # As many as count, one that is null and one that is NaN: to write all numbers as texts would take longest of all.
        some = pc.unique(values)[: MOST_CATEGORIES + 3]
        different = [text for text in as_texts(some).to_pylist() if text is not None]
        self._seen |= dict.fromkeys(different[: MOST_CATEGORIES + 1])
        self.too_many = len(self._seen) > MOST_CATEGORIES

    def _look_for_numbers(self, texts: pa.Array) -> None:
        series = texts.to_pandas()
        some = series[series.notna()]
        odd = some[pd.to_numeric(some, errors="coerce").isna()]
        self.mostly_numbers = 2 * len(odd) < len(some)
        undated = some[~some.str.match(_LIKE_A_WRITTEN_DATE)]
        self.mostly_dates = 0 < 2 * len(undated) < len(some)
        odd = undated if self.mostly_dates else odd
        self.slips = 2 * len(odd) < len(some) and (len(odd) == 1 or 0 < len(odd) <= SLIPS * len(some))
        for row, text in (odd if len(odd) else some).head(1).items():
            self.first_text, self._text_row = str(text)[:40], int(row)

    @property
    def text_at(self) -> str:
        """The place of `first_text` in words."""
        return self._table.where(self._text_row)

    def where(self, texts: Sequence[str]) -> str:
        """Some texts, each with the place of the first cell that holds it. Cost: a pass over the column."""
        named = list(texts[:_NAMED])
        places: dict[str, int] = {}
        first = 0
        for batch in self._table.batches([self.column]):
            cells = as_texts(batch.column(0))
            for text in named:
                row = pc.index(cells, text).as_py()
                if row >= 0:
                    places.setdefault(text, first + row)
            first += batch.num_rows
        said = [f"{text[:40]!r} in {self._table.where(places[text])}" for text in named]
        return ", ".join(said) + (f" and {len(texts) - _NAMED:,} more" if len(texts) > _NAMED else "")

    @property
    def empty_at(self) -> str:
        """The place of the first empty cell in words. Cost: a pass over the column."""
        first = 0
        for batch in self._table.batches([self.column]):
            cells = as_texts(batch.column(0))
            if cells.null_count:
                return self._table.where(first + pc.index(cells.is_null(), True).as_py())
            first += batch.num_rows
        return ""

    @property
    def sample(self) -> NDArray[np.float64]:
        """Numbers of evenly spaced cells."""
        return np.concatenate([np.empty(0), *(self._first or self._parts)])

    @property
    def categories(self) -> tuple[str, ...]:
        """Different values, as texts."""
        if self._own_order:
            return tuple(value for value in self._own_order if value in self._seen)
        if self.numeric and not self.date:
            return tuple(sorted(self._seen, key=lambda text: (text == "true") if self.boolean else float(text)))
        return tuple(sorted(self._seen))

    @property
    def may_name_rows(self) -> bool:
        """Whether all cells may be different texts, as far as they were collected."""
        return self.text and not self.missing and (self.too_many or len(self._seen) == self.count)

    @property
    def constant(self) -> bool:
        """Whether all cells are equal, empty ones included."""
        if self.missing == self.count:
            return True
        return not self.missing and (self.low == self.high if self.numeric else len(self._seen) == 1)

    @property
    def rounding(self) -> bool:
        """Whether all cells are equal up to rounding errors, such as sums of fractions that add up to one."""
        if self.missing or not self.numeric or self.whole or self.date:
            return False
        return self.low < self.high <= self.low + ROUNDING * max(abs(self.low), abs(self.high))


def survey(table: Table, columns: Sequence[str]) -> dict[str, Survey]:
    """Survey some columns of a table. Cost: one pass over it."""
    found = {name: Survey(name, table.schema.field(name).type, table) for name in columns}
    first = 0
    for batch in table.batches(columns):
        for name in columns:
            found[name].add(batch.column(name), first)
        first += batch.num_rows
    return found


def as_numbers(values: pa.Array) -> NDArray[np.float64]:
    """Convert cells to numbers, NaN where empty: booleans to 0 and 1, dates and durations to days."""
    kind = values.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        micro = pc.cast(pc.cast(values, pa.timestamp("us", tz=getattr(kind, "tz", None)), safe=False), pa.int64())
        return _floats(micro) / _DAY
    if pa.types.is_duration(kind):
        return _floats(pc.cast(pc.cast(values, pa.duration("us"), safe=False), pa.int64())) / _DAY
    return _floats(values)


def _floats(values: pa.Array) -> NDArray[np.float64]:
    numbers: Any = pc.cast(values, pa.float64(), safe=False)
    return np.asarray(numbers.to_numpy(zero_copy_only=False), np.float64)


def is_text(kind: pa.DataType) -> bool:
    """Whether cells of this type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def as_texts(values: pa.Array) -> pa.Array:
    """Convert cells to texts, null where empty."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), None, values)
    return pc.cast(values, pa.string())


# ---------------------------------------------------------------------- the features of a column


@dataclass(frozen=True)
class Decision:
    """The kind of a column, and the numbers that its encoding needs.

    Attributes:
        column: The name of the column.
        kind: One of `KINDS`, or a role: `id`, `objective`, `limit`, `known`, `cost`, `candidates`.
        why: The reason in words.
        missing: Number of empty cells.
        categories: Values of a category, an ordered column or substances, in order.
        fill: Number that replaces an empty cell, after the logarithm if there is one.
        center, scale: A number x becomes (x − center) / scale, after the logarithm if there is one.
        coordinates: The features of each substance.
        unit: For a logarithm of numbers that may be 0, the number u in log(1 + x / u); otherwise 0.
    """

    column: str
    kind: str
    why: str
    missing: int = 0
    categories: tuple[str, ...] = ()
    fill: float = 0.0
    center: float = 0.0
    scale: float = 1.0
    coordinates: tuple[tuple[float, ...], ...] = ()
    unit: float = 0.0

    @property
    def features(self) -> int:
        """Number of features: one per category, one per bit of a molecule's fingerprint, the coordinates of a substance, or one
        per number; for the last two, one more for "is empty" where cells are empty."""
        if self.kind == "category":
            return len(self.categories) + bool(self.missing)
        if self.kind == MOLECULE:
            return FINGERPRINT_BITS
        if self.kind == SUBSTANCE:
            return len(self.coordinates[0]) + bool(self.missing)
        return 1 + bool(self.missing) if self.kind in (*NUMBERS, "boolean") else 0


@dataclass(frozen=True)
class Decisions:
    """Decisions on all columns of a table, in their order; printed as a table."""

    columns: tuple[Decision, ...]

    def __iter__(self) -> Iterator[Decision]:
        """Iterate over the decisions."""
        return iter(self.columns)

    def __getitem__(self, column: str) -> Decision:
        """The decision on a column."""
        return next(decision for decision in self.columns if decision.column == column)

    @property
    def features(self) -> int:
        """Total number of features."""
        return sum(decision.features for decision in self.columns)

    @property
    def molecules(self) -> str | None:
        """The column of molecules, which then is the only one with features."""
        return next((decision.column for decision in self.columns if decision.kind == MOLECULE), None)

    def to_pandas(self) -> pd.DataFrame:
        """The decisions as a table, one row per column."""
        lines = [(d.column, d.kind, d.features, d.missing, d.why) for d in self.columns]
        return pd.DataFrame(lines, columns=["column", "taken as", "features", "empty", "why"]).set_index("column")

    def __repr__(self) -> str:
        """The table of `to_pandas` as text."""
        return str(self.to_pandas().reset_index().to_string(index=False, justify="left"))


class ColumnsError(ArgumentError):
    """Columns that can't be used, each of them named with what to do."""


class _TextError(ArgumentError):
    """A column of texts that are neither categories nor SMILES. Its message is a fact; `_remedy` tells what to do."""


def decide(table: Table, roles: Mapping[str, str], overruled: Mapping[str, Any], *, molecules: bool = False) -> Decisions:
    """Decide how each column is encoded.

    Numbers stay numbers, unless they are positive and spread over decades (`log`; if some of them are 0, log(1 + x / u) for
    the smallest positive number u; of whole numbers from 0 on `count`, the logarithm of one more). Fractions that add up to a
    whole stay numbers, except those of additives. Texts are categories if there are at most 50 different ones, and each is in
    more than one row on average. A column of equal cells is ignored.
    Empty cells of numbers are replaced by the median, with a feature "is empty"; empty cells of categories form a separate
    category. Texts that RDKit reads as SMILES, beside other features, are categories if at most 100 differ, each in more than
    one row on average, and otherwise substances, points whose distances come from the similarity of their fingerprints, if at
    most 1,000 differ. A column of SMILES that is the only feature holds molecules, which are compared by their whole
    fingerprints: if a column is declared to hold molecules, all other columns are ignored.

    Args:
        table: The candidates.
        roles: Role of each column that is not a feature.
        overruled: Kind of a column by its name, one of `KINDS`, or the list of its categories in order.
        molecules: Whether a column may hold molecules or substances.

    Raises:
        ArgumentError: If a column holds texts, infinities or other cells that are not numbers, or contradicts `overruled`; one
            message names all such columns.

    Cost: one pass over the table, and 100,000 of its rows in memory.
    """
    _check_overruled(table, roles, overruled, molecules)
    names = table.schema.names
    alone = _only_molecules(overruled)
    wanted = [
        name for name in names if name not in roles and overruled.get(name) != "ignore" and (alone is None or name in overruled)
    ]
    found = survey(table, wanted)
    decided: list[Decision] = []
    wrong: list[str] = []
    refused: list[str] = []
    texts: dict[str, str] = {}
    for name in names:
        if name in roles:
            decided.append(Decision(name, roles[name], _ROLES.get(roles[name], "as told")))
        elif overruled.get(name) == "ignore":
            decided.append(Decision(name, "ignore", "as told"))
        elif name not in wanted:
            decided.append(Decision(name, "ignore", f"beside the molecules of {alone!r}"))
        else:
            try:
                decided.append(_decided(found[name], overruled.get(name), molecules))
            except _TextError as error:
                texts[name] = str(error)
                refused.append(name)
            except ArgumentError as error:
                wrong.append(str(error))
                refused.append(name)
    if texts:
        wrong.append(f"{'; '.join(texts.values())}. {_remedy([found[name] for name in texts], molecules)}")
    if alone is None:
        decided = _with_reagents(decided, found, refused)
    if "id" not in roles.values():
        wrong += [_may_be_ids(name) for name in refused if found[name].may_name_rows][:1]
    require(not wrong, " ".join(wrong), ColumnsError)
    decided = _with_bulk_parts(decided, found, overruled)
    some = any(d.features for d in decided)
    require(some, f"{table.name} has no column that tells its rows apart: nothing can be learned from one row about another.")
    return Decisions(tuple(decided))


def _check_overruled(table: Table, roles: Mapping[str, str], overruled: Mapping[str, Any], molecules: bool) -> None:
    """Refuse kinds of columns that do not exist or have a role, and unknown kinds."""
    names = table.schema.names
    kinds = [own for own in KINDS if molecules or own not in (MOLECULE, SUBSTANCE)]
    for column, kind in overruled.items():
        require(column in names, f"columns: {table.name} has no column {column!r}.{nearest(str(column), names)}")
        # Costs and conditions are no features in any case.
        free = column not in roles or (kind == "ignore" and roles[column] in ("cost", "candidates"))
        require(free, f"columns: {column!r} is the {roles.get(column)} and can't be a feature as well.")
        known = kind in kinds if isinstance(kind, str) else isinstance(kind, Sequence) and len(kind) > 1
        message = (
            f"columns: {column!r} must be one of {', '.join(kinds)}, or the list of its categories in order, got {kind!r}."
        )
        require(known, message + (nearest(kind, kinds) if isinstance(kind, str) else ""))


def _with_reagents(decided: Sequence[Decision], found: Mapping[str, Survey], refused: Sequence[str]) -> list[Decision]:
    """The decisions with molecules as reagents where there are other features, for which refused columns count too."""
    molecules = [d.column for d in decided if d.kind == MOLECULE]
    others = [*refused, *(d.column for d in decided if d.features and d.kind != MOLECULE)]
    beside = {column: others + [other for other in molecules if other != column] for column in molecules}
    return [_reagents(found[d.column], beside[d.column]) if beside.get(d.column) else d for d in decided]


def _with_bulk_parts(decided: Sequence[Decision], found: Mapping[str, Survey], overruled: Mapping[str, Any]) -> list[Decision]:
    """The decisions with those parts of a whole as numbers that are more than additives, unless the user decided otherwise."""
    spread = [d.column for d in decided if d.kind in ("log", "count") and d.column not in overruled]
    if not spread:
        return list(decided)
    numeric = [s for s in found.values() if s.numeric and not (s.boolean or s.date or s.missing or s.infinite)]
    parts, whole = parts_of_a_whole({s.column: s.sample for s in numeric if 0 <= s.low < s.high < LARGEST})
    bulk = [name for name in spread if name in parts and np.quantile(found[name].sample, 0.95) >= BULK * whole]
    why = f"a part of {whole:.4g}, to which {len(parts)} columns add up"
    numbers = {name: _scaled(Decision(name, "number", why), found[name].sample) for name in bulk}
    return [numbers.get(d.column, d) for d in decided]


def _only_molecules(overruled: Mapping[str, Any]) -> str | None:
    """The column that is declared to hold molecules, or None.

    Raises:
        ArgumentError: If another column is declared to be a feature as well.
    """
    alone = next((column for column, kind in overruled.items() if kind == MOLECULE), None)
    others = [column for column, kind in overruled.items() if column != alone and kind != "ignore"]
    require(
        alone is None or not others,
        f"columns: the fingerprints of the molecules of {alone!r} leave no room for other features, such as "
        f"{', '.join(map(repr, others[:5]))}: 'ignore' those, or {alone!r}.",
    )
    return alone


def _decided(s: Survey, told: Any, molecules: bool) -> Decision:
    """The decision on a column, of the kind that was told or of one that fits its cells."""
    require(not s.infinite, f"column {s.column!r} is infinite in {s.infinite}: leave the cell empty or ignore the column.")
    if s.missing == s.count:
        return Decision(s.column, "ignore", "all cells are empty")
    if told is None and s.constant:
        close = len(s.categories) > 1
        return Decision(
            s.column, "ignore", "all cells are equal" + " in double precision: subtract a constant from them" * close
        )
    if told is None and s.rounding:
        return Decision(s.column, "ignore", "all cells are equal up to rounding errors")
    kind, why = (told, "as told") if told is not None else _guess(s, molecules)
    if not isinstance(kind, str):
        return _ordered(s, tuple(str(text) for c in kind for text in as_texts(pa.array([c])).to_pylist()), why)
    if kind == "category":
        _check_categories(s)
        return Decision(s.column, kind, why, s.missing, s.categories)
    if kind == "ordered":
        _check_categories(s)
        if s.ordered or s.numeric:
            return _ordered(s, s.categories, why)
        raise ArgumentError(
            f"columns: give the order of the texts of {s.column!r}, lowest first, such as {list(s.categories)[:4]}."
        )
    if kind == SUBSTANCE:
        return _substances(s, why)
    if kind == MOLECULE:
        require(s.text, f"columns: {s.column!r} holds {s.type} and can't be 'molecule': SMILES are texts.")
        if s.missing:
            lacks = f"column {s.column!r} lacks the SMILES in {s.empty_at} ({count(s.missing, 'such row')})"
            raise ArgumentError(f"{lacks}: fill in what is missing, or leave these rows out.")
        return Decision(s.column, kind, why)
    return _of_numbers(s, kind, why)


def _of_numbers(s: Survey, kind: str, why: str) -> Decision:
    """The decision on a column of numbers, dates or booleans."""
    require(s.numeric, no_number(s))
    check_size(s)
    if kind == "boolean":
        two = s.low in (0.0, 1.0) and s.high in (0.0, 1.0)
        require(two, f"columns: {s.column!r} can't be boolean, since its values go from {s.low:g} to {s.high:g}: use 'number'.")
        return Decision(s.column, kind, why, s.missing, fill=0.5)
    least = {"log": s.low > 0 or (s.low == 0 < s.high and not s.whole), "count": s.low >= 0}.get(kind, True)
    instead = "count" if kind == "log" and s.low >= 0 else "number"
    require(least, f"columns: {s.column!r} can't be {kind!r}, since its least value is {s.low:g}: use {instead!r}.")
    require(kind != "date" or s.date, f"columns: {s.column!r} holds no dates, but {s.type}: use 'number'.")
    unit = float(np.append(_positive(s), s.high).min()) if kind == "log" and s.low == 0 else 0.0
    return _scaled(Decision(s.column, kind, why, s.missing, unit=unit), transformed(kind, s.sample, unit))


def _reagents(s: Survey, beside: Sequence[str]) -> Decision:
    """SMILES beside other features: categories if they are few and each is in more than one row on average, else substances."""
    require(
        not s.too_many,
        f"column {s.column!r} holds more than {MOST_CATEGORIES:,} different molecules, whose fingerprints leave no room "
        f"for other features (here {', '.join(map(repr, beside[:5]))}): to learn from the molecules alone, say "
        f"columns={{{s.column!r}: 'molecule'}} (--column {s.column}=molecule); to learn from the others alone, "
        f"{{{s.column!r}: 'ignore'}}.",
    )
    if len(s.categories) <= FEW_REAGENTS and 2 * len(s.categories) <= s.count - s.missing:
        return Decision(s.column, "category", f"{len(s.categories)} different SMILES", s.missing, s.categories)
    return _substances(s, _SIMILAR)


def _substances(s: Survey, why: str) -> Decision:
    require(s.text or s.dictionary, f"columns: {s.column!r} holds {s.type} and can't be {SUBSTANCE!r}: SMILES are texts.")
    _check_categories(s)
    chem.need()
    wrong = no_smiles(s.categories)
    if wrong:
        raise ArgumentError(_nearly_smiles(s, wrong))
    found = coordinates_of(s.categories)
    rows = tuple(tuple(row) for row in found.tolist())
    require(bool(rows[0]), f"column {s.column!r}: all its molecules have the same fingerprint. Make the column a 'category'.")
    return Decision(s.column, SUBSTANCE, why + _spellings(s.categories, rows), s.missing, s.categories, coordinates=rows)


def _spellings(smiles: Sequence[str], rows: Sequence[tuple[float, ...]]) -> str:
    """The end of a reason if some SMILES are spellings of one molecule, which have the same point."""
    first = dict(zip(reversed(rows), reversed(smiles), strict=True))
    pairs = [(first[row], text) for row, text in zip(rows, smiles, strict=True) if first[row] != text]
    more = f" (and {count(len(pairs) - 1, 'more spelling')})" if len(pairs) > 1 else ""
    return f"; {pairs[0][0]!r} and {pairs[0][1]!r} are one molecule{more}" if pairs else ""


def _positive(s: Survey) -> NDArray[np.float64]:
    """The numbers above 0, up to rounding errors."""
    return s.sample[s.sample > ROUNDING * s.high]


def transformed(kind: str, values: NDArray[np.float64], unit: float = 0.0) -> NDArray[np.float64]:
    """Apply the logarithm of a kind to numbers of a column; `unit` as in `Decision`."""
    if kind == "log":
        return np.log1p(values / unit) if unit else np.log10(values)
    return np.log1p(values) if kind == "count" else values


def _scaled(decision: Decision, values: NDArray[np.float64]) -> Decision:
    """The decision with median, mean and standard deviation of (transformed) values."""
    some = values[~np.isnan(values)]
    center, scale = float(some.mean()), float(some.std())
    # Equal numbers have a deviation of 0, or one that is all rounding error.
    scale = scale if scale > ROUNDING * abs(center) else 1.0
    return replace(decision, fill=float(np.median(some)), center=center, scale=scale)


def check_size(s: Survey) -> None:
    """Refuse numbers whose squares overflow."""
    most = max(-s.low, s.high)
    require(most < LARGEST, f"column {s.column!r} holds {most:g}, and numbers below {LARGEST:g} are needed: change its unit.")


def _ordered(s: Survey, order: tuple[str, ...], why: str) -> Decision:
    require(len(set(order)) == len(order), f"columns: {s.column!r} names a category twice.")
    _check_categories(s)
    _check_empty(s, order)
    unknown = [c for c in s.categories if c not in order]
    require(
        not unknown,
        f"columns: the order of {s.column!r} lacks {', '.join(map(repr, unknown[:5]))}, which the column also "
        "holds: add them to it.",
    )
    held = {c: float(place) for place, c in enumerate(order)}
    places = np.array([held[c] for c in s.categories])
    return _scaled(Decision(s.column, "ordered", why, s.missing, order), places)


def _check_categories(s: Survey) -> None:
    few = not s.too_many
    message = f"column {s.column!r} holds more than {MOST_CATEGORIES:,} different values: too many for categories."
    require(
        few, f"{message} Leave it out (columns={{{s.column!r}: 'ignore'}}, {_option(s.column, 'ignore')}), or group the values."
    )
    _check_empty(s, s.categories if s.missing else ())


def _check_empty(s: Survey, categories: Sequence[str]) -> None:
    """Refuse a category with the name of that of empty cells."""
    said = f"column {s.column!r} has a category {EMPTY!r}, which is the name for empty cells"
    require(EMPTY not in categories, f"{said}: leave these cells empty, or write another text.")


def _guess(s: Survey, molecules: bool) -> tuple[Any, str]:
    """A kind and the reason for it.

    Raises:
        ArgumentError: If no kind fits; the message gives a remedy.
    """
    if s.boolean:
        return "boolean", "true or false"
    if s.date:
        return "date", "dates, as days"
    if s.numeric:
        low, high = np.nanquantile(s.sample, [0.05, 0.95])
        if s.low > 0 and not s.whole and _decades(s.sample):
            return "log", f"positive, from {s.low:.3g} to {s.high:.3g}: its logarithm"
        if s.low == 0 and not s.whole and _decades(positive := _positive(s)):
            return "log", f"from 0 to {s.high:.3g}: the logarithm of 1 + x / {positive.min():.3g}"
        if s.low >= 0 and s.whole and high + 1 >= WIDE * (low + 1):
            return "count", f"whole numbers, from {s.low:g} to {s.high:g}: the logarithm of one more"
        return "number", f"numbers from {s.low:.4g} to {s.high:.4g}"
    if s.ordered:
        return "ordered", "categories of a column with an order"
    some = s.text or s.dictionary
    clock = "times of day: write hours as numbers, such as 10.5 for 10:30, or 'ignore' it."
    other = f"{s.type}, which is not a number: split it into columns, or 'ignore' it."
    require(some, f"column {s.column!r} holds {clock if s.type.startswith(('time32', 'time64')) else other}")
    most_rare = not s.too_many and len(s.categories) <= FEW_CATEGORIES and 2 * len(s.categories) <= s.count - s.missing
    if molecules and not (most_rare or s.dictionary) and all_smiles(s.categories):
        return MOLECULE, "SMILES: Morgan fingerprints"
    # With a slip, few different numbers or dates would be categories without an order.
    if (s.text and s.slips) or not (most_rare or s.dictionary):
        _refuse_texts(s, molecules)
    if len(s.categories) < 2:
        return "category", "the same text, or empty"
    return "category", f"{len(s.categories)} different texts{_order_lost(s.categories)}{_nearly_equal(s.categories)}"


def _decades(values: NDArray[np.float64]) -> bool:
    """Whether positive numbers spread over decades."""
    low, high = np.quantile(values, [0.05, 0.95]) if len(values) else (1.0, 0.0)
    return bool(high >= WIDE * low)


def _refuse_texts(s: Survey, molecules: bool) -> NoReturn:
    """Refuse texts that are neither categories nor, where there may be molecules, all SMILES."""
    if s.mostly_dates:
        date = f"column {s.column!r} holds {s.first_text!r} in {s.text_at}, which is not a date in the form 2026-08-31"
        raise ArgumentError(f"{date}: {_CORRECT}.")
    if s.mostly_numbers:
        raise ArgumentError(no_number(s))
    wrong = no_smiles(s.categories) if molecules else s.categories
    if 2 * len(wrong) < len(s.categories):
        raise ArgumentError(_nearly_smiles(s, wrong))
    many = f"more than {MOST_CATEGORIES:,}" if s.too_many else f"{len(s.categories):,}"
    raise _TextError(f"column {s.column!r} holds text ({many} different ones, such as {s.first_text!r})")


def _nearly_smiles(s: Survey, wrong: Sequence[str]) -> str:
    """Error message for a column of SMILES with other texts among them."""
    # More than 1,000 different texts can't be categories.
    kinds = ["ignore"] if s.too_many else ["category", "ignore"]
    ways = " or ".join(f"{kind!r} ({_option(s.column, kind)})" for kind in kinds)
    are, them = ("is not a", "it") if len(wrong) == 1 else ("are not", "them")
    of = f"of its {'first ' * s.too_many}{len(s.categories):,} different texts"
    return (
        f"column {s.column!r}: {s.where(wrong)} {are} valid SMILES ({len(wrong):,} {of}). Correct {them}, leave these rows "
        f"out, or make the column a {ways}."
    )


def _remedy(columns: Sequence[Survey], molecules: bool) -> str:
    """The remedy for columns of texts that are neither categories nor SMILES."""
    named = [s.column for s in columns[:_NAMED]]
    more = ", …" if len(columns) > _NAMED else ""
    python = ", ".join(f"{name!r}: 'ignore'" for name in named) + more
    command = " ".join(_option(name, "ignore") for name in named) + more
    ways = ["compute numbers from it"]
    ways += [] if all(s.too_many for s in columns) else ["declare it as categories ('category')"]
    ways += ["declare it as SMILES of molecules ('substance', 'molecule')"] if molecules else []
    dates = any(_LIKE_A_DATE.match(s.first_text) for s in columns)
    amounts = any(_like_a_number(s.first_text) for s in columns)
    commas = any("," in s.first_text and _DECIMAL_COMMA.fullmatch(s.first_text.strip()) is not None for s in columns)
    return (
        f"A model can't read {'this' if len(columns) == 1 else 'these'}: leave a column out (columns={{{python}}}, {command}), "
        f"{', '.join(ways[:-1])}{', ' * (len(ways) > 1)}or {ways[-1]}."
        f"{' Dates are written like 2026-08-31 in a file, and have the type of dates in a table of pandas.' * dates}"
        f"{' Numbers are written without units and separators of thousands, and with one decimal mark in the file.' * amounts}"
        f"{' Decimal commas are read where semicolons or tabs separate the cells.' * commas}"
    )


def _order_lost(texts: Sequence[str]) -> str:
    """The end of a reason if categories are amounts, dates or numbers whose order the model would see in another spelling."""
    first = texts[0][:20]
    if _of_one_unit(texts):
        return f": write {first!r} without the unit to use their order"
    if all(_DATE.fullmatch(text.strip()) for text in texts):
        return f": write {first!r} in the form 2026-08-31 to use their order"
    if all(_DECIMAL_COMMA.fullmatch(text.strip()) for text in texts):
        way = "with a decimal point" if any("," in text for text in texts) else "as a number, not as a text,"
        return f": write {first!r} {way} to use their order"
    return ""


def _nearly_equal(texts: Sequence[str]) -> str:
    """The end of a reason if two categories differ only in spaces, or words only in upper and lower case."""
    seen: dict[str, str] = {}
    for text in texts:
        plain = " ".join(text.split())
        # In formulas and SMILES the case has a meaning: Co and CO.
        plain = plain.casefold() if _WORDS.fullmatch(plain) else plain
        if (other := seen.setdefault(plain, text)) != text:
            return f"; {other[:20]!r} and {text[:20]!r} are two: write them alike if they are the same"
    return ""


def _of_one_unit(texts: Sequence[str]) -> bool:
    """Whether texts are numbers with the same unit."""
    units = {re.sub(r"^[+-]?\d[\d.,]*\s*", "", text) for text in texts}
    return len(units) == 1 and "" not in units and all(map(_like_a_number, texts))


def _like_a_number(text: str) -> bool:
    """Whether a text is a number with a unit or the like."""
    return _LIKE_A_NUMBER.fullmatch(text) is not None and not _LIKE_A_DATE.match(text)


def _option(column: str, kind: str) -> str:
    """The option of the command line that declares the kind of a column."""
    plain = re.fullmatch(r"[\w.-]+", column) is not None
    return f"--column {column}={kind}" if plain else f'--column "{column}={kind}"'


def _may_be_ids(column: str) -> str:
    return f"If the texts of {column!r} name the rows, they are the ids: id={column!r} (--id {column})."


def no_number(s: Survey, remedy: str = _CORRECT) -> str:
    """Error message for a column that should hold numbers but does not, with what to do."""
    if s.text and pd.notna(pd.to_numeric(s.first_text, errors="coerce")):
        held = f"column {s.column!r} holds its numbers as texts, such as {s.first_text!r} in {s.text_at}"
        return f"{held}: convert them, as by pandas.to_numeric, which names a text that is no number."
    return (
        f"column {s.column!r} holds {s.first_text!r} in {s.text_at}, which is not a number: {remedy}."
        if s.text
        else f"column {s.column!r} holds {s.type}, which is not a number."
    )
