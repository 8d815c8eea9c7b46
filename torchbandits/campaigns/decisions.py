"""How each column becomes features: decided once from the table, shown, saved, and never decided again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchbandits.campaigns.survey import MOST_CATEGORIES, Survey, survey
from torchbandits.campaigns.tables import Table
from torchbandits.errors import ArgumentError, nearest, require

if TYPE_CHECKING:
    import pandas as pd
    from sklearn import preprocessing
else:
    from torchbandits.campaigns.extras import pandas as pd
    from torchbandits.campaigns.extras import sklearn_preprocessing as preprocessing

KINDS = ("number", "log", "count", "boolean", "date", "category", "ordered", "ignore")
"""What a column may be taken for."""
NUMBERS = ("number", "log", "count", "date", "ordered")
FEW_CATEGORIES = 50
"""Different texts that are taken for categories without being told so."""
WIDE = 100.0  # a column whose 95 % quantile is so many times the 5 % quantile is taken logarithmically


@dataclass(frozen=True)
class Decision:
    """What becomes of a column.

    Attributes:
        column: Its name.
        kind: One of `KINDS`, or a role: `id`, `objective`, `cost`, `candidates`.
        why: In words.
        missing: Empty cells.
        categories: Of a category or an ordered column, in order.
        fill: What stands for an empty cell of a number, in the units of the column, after the logarithm if there is one.
        center, scale: Subtracted from a number, and what it is divided by then; after the logarithm, too.
    """

    column: str
    kind: str
    why: str
    missing: int = 0
    categories: tuple[str, ...] = ()
    fill: float = 0.0
    center: float = 0.0
    scale: float = 1.0

    @property
    def features(self) -> int:
        """Features that it becomes: one and one for "is empty" of a number, one a category."""
        if self.kind == "category":
            return len(self.categories) + bool(self.missing)
        return 1 + bool(self.missing) if self.kind in (*NUMBERS, "boolean") else 0

    def as_json(self) -> dict[str, Any]:
        """What `Decision(**…)` takes."""
        return asdict(self) | {"categories": list(self.categories)}


@dataclass(frozen=True)
class Decisions:
    """What becomes of the columns of a table, in their order; printed, it is a table of its own."""

    columns: tuple[Decision, ...]

    def __iter__(self) -> Iterator[Decision]:
        """One column after the other."""
        return iter(self.columns)

    def __getitem__(self, column: str) -> Decision:
        """That of a column."""
        return next(decision for decision in self.columns if decision.column == column)

    @property
    def features(self) -> int:
        """Features in all."""
        return sum(decision.features for decision in self.columns)

    def to_pandas(self) -> pd.DataFrame:
        """As a table, one line a column."""
        lines = [(d.column, d.kind, d.features, d.missing, d.why) for d in self.columns]
        return pd.DataFrame(lines, columns=["column", "taken as", "features", "empty", "why"]).set_index("column")

    def __repr__(self) -> str:
        """The table as text."""
        return str(self.to_pandas().reset_index().to_string(index=False, justify="left"))


def decide(table: Table, roles: Mapping[str, str], overruled: Mapping[str, Any]) -> Decisions:
    """Decide what becomes of each column.

    Numbers stay numbers, unless they are positive and spread over decades (`log`; of whole numbers from 0 on `count`, the
    logarithm of one more). Texts are categories while at most 50 different ones stand in more than one row each on average.
    A column whose cells are all equal is ignored. Empty cells of numbers count as the median, with a feature "is empty"; empty
    cells of categories are a category of their own.

    Args:
        table: The candidates.
        roles: Columns that are no features, with what they are.
        overruled: Column to one of `KINDS`, or to the list of its categories in order.

    Raises:
        ArgumentError: If a column holds texts, infinities or what is no number, or can't be what it is told to be: one sentence
            for each, all at once.

    Cost: one pass over the table, and 100,000 of its rows in memory.
    """
    names = table.schema.names
    for column, kind in overruled.items():
        require(column in names, f"columns: {table.name} has no column {column!r}.{nearest(str(column), names)}")
        require(column not in roles, f"columns: {column!r} is the {roles.get(column)} and can't be a feature as well.")
        known = kind in KINDS if isinstance(kind, str) else isinstance(kind, Sequence) and len(kind) > 1
        message = (
            f"columns: {column!r} must be one of {', '.join(KINDS)}, or the list of its categories in order, got {kind!r}."
        )
        require(known, message + (nearest(kind, KINDS) if isinstance(kind, str) else ""))
    wanted = [name for name in names if name not in roles and overruled.get(name) != "ignore"]
    found = survey(table, wanted)
    decided, wrong = [], []
    for name in names:
        if name in roles:
            decided.append(Decision(name, roles[name], "as told" if roles[name] != "id" else "names the rows"))
        elif overruled.get(name) == "ignore":
            decided.append(Decision(name, "ignore", "as told"))
        else:
            try:
                decided.append(_decided(found[name], overruled.get(name)))
            except ArgumentError as error:
                wrong.append(str(error))
    require(not wrong, " ".join(wrong))
    some = any(d.features for d in decided)
    require(some, f"{table.name} has no column that tells its rows apart: nothing can be learned from one row about another.")
    return Decisions(tuple(decided))


def _decided(s: Survey, told: Any) -> Decision:
    require(not s.infinite, f"column {s.column!r} is infinite in {s.infinite}: leave the cell empty or ignore the column.")
    if told is None and s.constant:
        return Decision(s.column, "ignore", "all cells are empty" if s.missing == s.count else "all cells are equal")
    kind, why = (told, "as told") if told is not None else _guess(s)
    if not isinstance(kind, str):
        return _ordered(s, tuple(str(c) for c in kind), why)
    if kind == "category":
        _check_categories(s)
        return Decision(s.column, kind, why, s.missing, s.categories)
    if kind == "ordered":
        _check_categories(s)
        if s.ordered or s.numeric:
            return _ordered(s, s.categories, why)
        raise ArgumentError(
            f"columns: say in which order the texts of {s.column!r} stand, lowest first, such as {list(s.categories)[:4]}."
        )
    require(s.numeric, no_number(s))
    if kind == "boolean":
        two = s.low in (0.0, 1.0) and s.high in (0.0, 1.0)
        require(two, f"columns: {s.column!r} can't be boolean, it goes from {s.low:g} to {s.high:g}: use 'number'.")
        return Decision(s.column, kind, why, s.missing, fill=0.5)
    least = {"log": s.low > 0, "count": s.low >= 0}.get(kind, True)
    instead = "count" if kind == "log" and s.low >= 0 else "number"
    require(least, f"columns: {s.column!r} can't be {kind!r}, its least value is {s.low:g}: use {instead!r}.")
    require(kind != "date" or s.date, f"columns: {s.column!r} holds no dates, but {s.type}: use 'number'.")
    return _scaled(Decision(s.column, kind, why, s.missing), transformed(kind, s.sample))


def transformed(kind: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers of a column after the logarithm that its kind takes."""
    if kind == "log":
        return np.log10(values)
    return np.log1p(values) if kind == "count" else values


def _scaled(decision: Decision, values: NDArray[np.float64]) -> Decision:
    """With median, mean and standard deviation of (transformed) values."""
    some = values[~np.isnan(values)]
    scaler = preprocessing.StandardScaler().fit(some[:, None])
    center, scale = float(scaler.mean_[0]), float(scaler.scale_[0])
    return Decision(**{**asdict(decision), "fill": float(np.median(some)), "center": center, "scale": scale})


def _ordered(s: Survey, order: tuple[str, ...], why: str) -> Decision:
    require(len(set(order)) == len(order), f"columns: {s.column!r} names a category twice.")
    _check_categories(s)
    unknown = [c for c in s.categories if c not in order]
    require(not unknown, f"columns: {s.column!r} also holds {', '.join(map(repr, unknown[:5]))}: say where in the order.")
    held = {c: float(place) for place, c in enumerate(order)}
    places = np.array([held[c] for c in s.categories])
    return _scaled(Decision(s.column, "ordered", why, s.missing, order), places)


def _check_categories(s: Survey) -> None:
    few = not s.too_many
    require(few, f"column {s.column!r} holds more than {MOST_CATEGORIES:,} different values: too many for categories.")


def _guess(s: Survey) -> tuple[Any, str]:
    """A kind and a reason, or an error that says what to do."""
    if s.boolean:
        return "boolean", "true or false"
    if s.date:
        return "date", "dates, as days"
    if s.numeric:
        low, high = np.nanquantile(s.sample, [0.05, 0.95])
        if s.low > 0 and high >= WIDE * low and not s.whole:
            return "log", f"positive, from {s.low:.3g} to {s.high:.3g}: its logarithm"
        if s.low >= 0 and s.whole and high + 1 >= WIDE * (low + 1):
            return "count", f"whole numbers, from {s.low:g} to {s.high:g}: the logarithm of one more"
        return "number", f"numbers from {s.low:.4g} to {s.high:.4g}"
    if s.ordered:
        return "ordered", "categories of a column with an order"
    require(s.text, f"column {s.column!r} holds {s.type}, which is no number: split it into columns, or 'ignore' it.")
    most_rare = not s.too_many and len(s.categories) <= FEW_CATEGORIES and 2 * len(s.categories) <= s.count - s.missing
    require(most_rare or s.dictionary, _no_category(s))
    return "category", f"{len(s.categories)} different texts"


def _no_category(s: Survey) -> str:
    if s.mostly_numbers:
        return no_number(s)
    many = f"more than {MOST_CATEGORIES:,}" if s.too_many else f"{len(s.categories):,}"
    return (
        f"column {s.column!r} holds text ({many} different ones, such as {s.first_text!r}), which a model can't read: leave it "
        f"out (columns={{{s.column!r}: 'ignore'}}), compute numbers from it, or, if these are categories, say so "
        f"(columns={{{s.column!r}: 'category'}})."
    )


def no_number(s: Survey) -> str:
    """What to say of a column that should be numbers, and is not."""
    return (
        f"column {s.column!r} holds {s.first_text!r} in {s.text_at}, which is no number: correct it, leave the cell empty, or "
        "take the column for a category or ignore it."
        if s.text
        else f"column {s.column!r} holds {s.type}, which is no number."
    )
