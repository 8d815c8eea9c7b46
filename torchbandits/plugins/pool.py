"""A fixed list of settings as the arms of a bandit, the common part of the plug-ins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits import outcomes
from torchbandits.bandit import Bandit
from torchbandits.campaigns import Campaign, OutcomeCampaign
from torchbandits.checks import is_whole
from torchbandits.errors import ArgumentError, require
from torchbandits.policies import Policy, auto
from torchbandits.sources.smiles import all_smiles
from torchbandits.types import Selection

if TYPE_CHECKING:
    import pandas as pd
else:
    from torchbandits.tabular.extras import pandas as pd

_OBJECTIVE = "told to torchbandits"
# The feature of settings that are all equal.
_ONLY = "the only setting"
# Number of texts that are parsed to find out whether they are SMILES.
_SOME = 1_000
# The value of a parameter that a setting lacks.
_ABSENT = object()


class Pool:
    """Settings, one per arm, and the bandit that chooses among them.

    Settings are encoded as features by the rules of `Campaign`: numbers, logarithms of numbers over decades, booleans, and
    categories. Values of any other kind, and columns of mixed kinds, are categories by their text. Texts are categories too, at
    most 1,000 different ones per parameter, unless they are SMILES and the only parameter.

    Args:
        candidates: Dictionaries of one setting each, or a pandas table with one setting per row. A setting may lack parameters
            that others have; in a table, its cell is then empty. An empty cell among floats has the value NaN, and among
            other values None, as in `class_weight`: pandas does not keep None in a column of texts.
        policy: As for `Bandit`; `auto()` if None.
        seed: Seed of the generator; 0 if None.

    Attributes:
        names: Names of the parameters.
        bandit: Its arms are the candidates in their order.
    """

    def __init__(self, candidates: Any, policy: Policy | None, seed: int | None) -> None:
        require(seed is None or is_whole(seed, 0), f"the seed must be a whole number ≥ 0, got {seed!r}.")
        table = candidates if isinstance(candidates, pd.DataFrame) else _table(candidates)
        require(len(table) > 0 and len(table.columns) > 0, "candidates must hold at least one setting of one parameter.")
        self.names: tuple[str, ...] = tuple(map(str, table.columns))
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        require(not twice, f"candidates must name each parameter once, and {', '.join(map(repr, twice))} is given twice.")
        self._columns = [_cells(table[name]) for name in table.columns]
        self._settings = None if isinstance(candidates, pd.DataFrame) else list(candidates)
        # The prefix keeps parameters such as "id" and "row" apart from the ids of a campaign's rows.
        own = {name: f"parameter {name}" for name in self.names}
        columns = zip(self.names, table.columns, strict=True)
        plain = pd.DataFrame({own[name]: _plain(table[column].reset_index(drop=True)) for name, column in columns})
        texts = [name for name in plain.columns if _is_text(plain[name]) and plain[name].nunique(dropna=False) > 1]
        smiles = len(plain.columns) == len(texts) == 1 and all_smiles(plain[texts[0]].dropna().unique()[:_SOME].tolist())
        generator = torch.Generator().manual_seed(0 if seed is None else int(seed))  # NumPy's integers are no seeds for torch
        chosen = auto() if policy is None else policy
        kinds = {} if smiles else dict.fromkeys(texts, "category")
        if all(plain[name].nunique(dropna=False) < 2 for name in plain.columns):
            # Columns of equal cells are ignored, and the arm of the only setting needs a feature.
            plain, kinds = plain.assign(**{_ONLY: 0.0}), {_ONLY: "number"}
        self.bandit: Bandit = Campaign(plain, _OBJECTIVE, policy=chosen, columns=kinds, generator=generator).bandit
        self._encoded, self._kinds = plain, kinds
        self._rows: dict[tuple[Any, ...], int] | None = None
        # For some parameters, a number for each value, and the number of the value of each candidate.
        self._codes: dict[str, tuple[dict[Any, int], Tensor]] = {}

    def with_objectives(self, small: Sequence[bool]) -> None:
        """Look for trade-offs between several objectives, each with the policy as its model, in place of one objective.

        Args:
            small: Whether each objective is minimised. Its values are told as they are.

        Raises:
            UnsupportedError: For a policy that is no model of one of several outcomes.
        """
        names = [f"{_OBJECTIVE}, objective {number}" for number in range(len(small))]
        few = [name for name, own in zip(names, small, strict=True) if own]
        policy = outcomes.pareto(dict.fromkeys(names, self.bandit.policy), minimize=few)
        (generator,) = self.bandit.generators
        options: dict[str, Any] = {"minimize": few, "policy": policy, "columns": self._kinds, "generator": generator}
        self.bandit = OutcomeCampaign(self._encoded, names, **options).bandit

    def tell(self, picked: Selection | Tensor, values: Sequence[float]) -> None:
        """Tell the values of a pick, NaN for a failed evaluation."""
        told = torch.tensor(values, dtype=torch.float64)
        self.bandit.tell(picked, told.unsqueeze(0) if len(values) > 1 else told, failures="forget")

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self._columns[0])

    def setting(self, row: int) -> dict[str, Any]:
        """The setting of a candidate, with numbers of plain Python types."""
        if self._settings is not None:
            return {name: _value(value) for name, value in self._settings[row].items()}
        return {name: _value(column[row]) for name, column in zip(self.names, self._columns, strict=True)}

    def row_of(self, setting: Mapping[str, Any]) -> int | None:
        """The first candidate with exactly these parameters and values, or else the only one that has them among others; None
        if there is none. Names that no candidate has do not count. Cost: the first call O(A)."""
        if self._rows is None:
            self._rows = {self._key(self.setting(row)): row for row in range(len(self) - 1, -1, -1)}
        key = self._key(setting)
        if key in self._rows or all(value is _ABSENT for value in key):
            return self._rows.get(key)
        having = self.having(setting).nonzero().flatten()
        return int(having[0]) if len(having) == 1 else None

    def having(self, values: Mapping[str, Any]) -> Tensor:
        """Mask of the candidates with these values of some parameters. Cost O(A), the first time for each name in Python."""
        found = torch.ones(len(self), dtype=torch.bool)
        for name in self._known(values):
            if name not in self._codes:
                known: dict[Any, int] = {}
                own = (self._compared(self.setting(row), name) for row in range(len(self)))
                self._codes[name] = known, torch.tensor([known.setdefault(value, len(known)) for value in own])
            known, codes = self._codes[name]
            found &= codes == known.get(self._compared(values, name), -1)
        return found

    def agrees(self, row: int, values: Mapping[str, Any]) -> bool:
        """Whether a candidate has these values of some parameters."""
        own = self.setting(row)
        return all(self._compared(own, name) == self._compared(values, name) for name in self._known(values))

    def same(self, row: int) -> Tensor:
        """Mask of the candidates with the setting of one, that one included. Cost O(A)."""
        twins = self._twins(row)
        key = self._key(self.setting(row))
        for twin in twins.nonzero().flatten().tolist():
            twins[twin] = self._key(self.setting(twin)) == key
        return twins

    def _twins(self, row: int) -> Tensor:
        """Mask of the candidates with the features of one."""
        first = self.bandit.loop.state.rows.first
        return torch.arange(len(self)) == row if first is None else (first == first[row]).cpu()

    def _known(self, values: Mapping[str, Any]) -> list[str]:
        return [name for name in self.names if name in values]

    def _key(self, setting: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(self._compared(setting, name) for name in self.names)

    def _compared(self, setting: Mapping[str, Any], name: str) -> Any:
        """The value of a parameter, so that it can be compared: an empty cell of a table may mean None or a lack."""
        value = _comparable(setting.get(name, _ABSENT))
        return _ABSENT if value is None and self._settings is None else value

    def ask(self, count: int, offered: Tensor) -> Selection:
        """Select up to `count` further candidates of those on offer, none of them twice, with all open picks as pending."""
        opened = self.bandit.loop.open
        before = 0 if opened is None else int(opened.mask.reshape(-1, opened.mask.shape[-1])[0].sum())
        left, rows = offered.clone(), list[int]()
        while len(rows) < count and bool(left.any()):
            selection = self.bandit.ask(more=1, available=left)
            picked = selection.index[selection.mask]
            if len(picked) == before + len(rows):
                break
            rows.append(int(picked[-1]))
            left &= ~self.same(rows[-1])
        return self._selection(rows)

    def wait_for(self, row: int) -> Selection:
        """Count a candidate as pending, once more if it is pending already, whatever the policy would choose."""
        self.bandit.plan(torch.tensor([row]))
        return self._selection([row])

    def _selection(self, rows: Sequence[int]) -> Selection:
        """The picks of these candidates."""
        index, loop = torch.tensor(rows, dtype=torch.int64), self.bandit.loop
        points = loop.points(index.expand(*loop.batch_shape, len(index)))
        # Several objectives share the picks.
        points = points[0] if loop.batch_shape else points
        return Selection(points, index, index >= 0)


def _table(candidates: Any) -> Any:
    """A table of dictionaries."""
    given = isinstance(candidates, Sequence) and not isinstance(candidates, (str, bytes))
    given = given or (hasattr(candidates, "__iter__") and hasattr(candidates, "__len__"))
    if not given or not all(isinstance(setting, Mapping) for setting in candidates):
        raise ArgumentError(
            "candidates must be a list of dictionaries, such as [{'depth': 3, 'rate': 0.1}, …], a ParameterGrid, or a pandas "
            f"table with one setting per row; got {type(candidates).__name__}."
        )
    return pd.DataFrame(list(candidates))


def _cells(column: Any) -> NDArray[Any]:
    """The values of a column; None for an empty cell, but NaN among floats."""
    # The nullable types of pandas, whose NumPy values would be floats beside an empty cell.
    nullable = isinstance(column.dtype, pd.api.extensions.ExtensionDtype) and column.dtype.kind in "iub"
    values: NDArray[Any] = (column.astype(object) if nullable else column).to_numpy()
    if pd.api.types.is_numeric_dtype(column) and not nullable:
        return values
    cells = np.empty(len(values), object)
    cells[:] = [None if _is_empty(value) else value for value in values]
    return cells


def _plain(column: Any) -> Any:
    """A column that `Campaign` can encode: values that are not all texts, numbers or flags become their texts."""
    if column.dtype != object:
        kept = _is_text(column) or pd.api.types.is_numeric_dtype(column) or column.dtype.kind in "mM"
        if kept or (isinstance(column.dtype, pd.CategoricalDtype) and column.dtype.ordered):
            return column
        column = column.astype(object)
    kinds = {_kind(value) for value in column if not _is_empty(value)}
    plain = kinds in ({"text"}, {"number"}, {"flag"})
    return column.map(lambda value: None if _is_empty(value) else value if plain else str(value))


def _is_text(column: Any) -> bool:
    """Whether a plain column holds texts."""
    return isinstance(column.dtype, pd.StringDtype) or (
        column.dtype == object and any(isinstance(value, str) for value in column)
    )


def _is_empty(value: Any) -> bool:
    return (
        value is None
        or value is pd.NA
        or value is pd.NaT
        or (isinstance(value, (float, np.floating)) and bool(np.isnan(value)))
    )


def _kind(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "flag"
    if isinstance(value, (int, float, np.number)):
        return "number"
    return "text" if isinstance(value, str) else "object"


def _value(value: Any) -> Any:
    """A NumPy scalar as a plain Python number."""
    return value.item() if isinstance(value, np.generic) else value


def _comparable(value: Any) -> Any:
    """A value of a setting that can be compared and hashed: NaN is no value, and lists are tuples, as after a file of JSON."""
    value = _value(value)
    if isinstance(value, float) and np.isnan(value):
        return _ABSENT
    if value is None or value is _ABSENT or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_comparable, value))
    return type(value), repr(value)
