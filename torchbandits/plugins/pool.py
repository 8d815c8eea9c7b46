"""A fixed list of settings as the arms of a bandit: what the plug-ins have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.campaigns import Campaign
from torchbandits.checks import is_whole
from torchbandits.errors import ArgumentError, require
from torchbandits.policies import Policy, auto
from torchbandits.types import Selection

if TYPE_CHECKING:
    import pandas as pd
else:
    from torchbandits.tabular.extras import pandas as pd

_OBJECTIVE = "told to torchbandits"


class Pool:
    """Settings, one per arm, and the bandit that chooses among them.

    Settings are encoded as features by the rules of `Campaign`: numbers, logarithms of numbers over decades, booleans, and
    categories. Values of any other kind, and columns of mixed kinds, are categories by their text.

    Args:
        candidates: Dictionaries of one setting each, or a pandas table with one setting per row.
        policy: As for `Bandit`; `auto()` if None.
        seed: Of the generator; 0 if None.

    Attributes:
        names: Names of the parameters.
        bandit: Its arms are the candidates in their order.
    """

    def __init__(self, candidates: Any, policy: Policy | None, seed: int | None) -> None:
        require(seed is None or is_whole(seed, 0), f"the seed must be a whole number ≥ 0, got {seed!r}.")
        table = candidates if isinstance(candidates, pd.DataFrame) else _table(candidates)
        require(len(table) > 0 and len(table.columns) > 0, "candidates must hold at least one setting of one parameter.")
        self.names: tuple[str, ...] = tuple(map(str, table.columns))
        self._columns = [table[name].to_numpy() for name in table.columns]
        self._settings = None if isinstance(candidates, pd.DataFrame) else list(candidates)
        plain = pd.DataFrame({name: _plain(table[column]) for name, column in zip(self.names, table.columns, strict=True)})
        generator = torch.Generator().manual_seed(0 if seed is None else seed)
        chosen = auto() if policy is None else policy
        self.bandit: Bandit = Campaign(plain, _OBJECTIVE, policy=chosen, generator=generator).bandit
        self._rows: dict[tuple[Any, ...], int] | None = None

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self._columns[0])

    def setting(self, row: int) -> dict[str, Any]:
        """The setting of a candidate, with values of plain Python types where they came from a table."""
        if self._settings is not None:
            return dict(self._settings[row])
        return {name: _value(column[row]) for name, column in zip(self.names, self._columns, strict=True)}

    def row_of(self, setting: Mapping[str, Any]) -> int | None:
        """The first candidate with these values of all parameters; None if there is none. The first call costs O(A)."""
        if self._rows is None:
            rows = range(len(self) - 1, -1, -1)
            self._rows = {self._key({name: column[row] for name, column in self._named()}): row for row in rows}
        known = all(name in setting for name in self.names)
        return self._rows.get(self._key(setting)) if known else None

    def _named(self) -> list[tuple[str, Any]]:
        return list(zip(self.names, self._columns, strict=True))

    def _key(self, setting: Mapping[str, Any]) -> tuple[Any, ...]:
        values = (_value(setting[name]) for name in self.names)
        return tuple(value if isinstance(value, (int, float, str, bool)) else repr(value) for value in values)

    def ask(self, count: int, offered: Tensor) -> Selection:
        """Select up to `count` further candidates of those on offer, with all open picks as pending."""
        opened = self.bandit.loop.open
        before = 0 if opened is None else len(opened)
        selection = self.bandit.ask(more=count, available=offered)
        return selection[before:]

    def wait_for(self, row: int) -> Selection:
        """Count a candidate as pending that is evaluated elsewhere."""
        return self.ask(1, torch.arange(len(self)) == row)


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


def _plain(column: Any) -> Any:
    """A column that `Campaign` can encode: objects that are not all texts, or all numbers, become their texts."""
    if column.dtype != object:
        return column
    kinds = {_kind(value) for value in column if value is not None}
    if kinds in ({"text"}, {"number"}, {"flag"}):
        return column
    return column.map(lambda value: None if value is None else str(value))


def _kind(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "flag"
    if isinstance(value, (int, float, np.number)):
        return "number"
    return "text" if isinstance(value, str) else "object"


def _value(value: Any) -> Any:
    """A NumPy scalar as a plain Python number."""
    return value.item() if isinstance(value, np.generic) else value
