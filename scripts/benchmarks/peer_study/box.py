"""The bounding box of a table, for peers that search a box: numbers between their extremes, and categories by their levels.

A suggestion is evaluated at the nearest candidate that has not been evaluated (Euclidean, standardised features). The peer is
told the parameters of this candidate, not the suggested parameters.
"""

from __future__ import annotations

import numpy as np

from peer_study.history import History
from peer_study.tables import Table


class Box:
    """Parameters `number3`, … (a float per column) and `category0`, … (a level per block of columns)."""

    def __init__(self, table: Table) -> None:
        self.points, self.blocks = table.points, table.blocks
        in_a_block = {column for block in table.blocks for column in block}
        self.numbers = [column for column in range(table.points.shape[1]) if column not in in_a_block]
        self.low, self.high = table.points.min(axis=0), table.points.max(axis=0)

    def parameters(self, index: int) -> dict[str, float | int]:
        """The parameters of a candidate."""
        row = self.points[index]
        found: dict[str, float | int] = {f"number{column}": float(row[column]) for column in self.numbers}
        for number, block in enumerate(self.blocks):
            found[f"category{number}"] = int(row[list(block)].argmax())
        return found

    def nearest(self, parameters: dict[str, float | int], history: History, taken: list[int]) -> int:
        """The nearest candidate that is neither evaluated nor `taken`."""
        wanted = np.empty(self.points.shape[1])
        for column in self.numbers:
            wanted[column] = parameters[f"number{column}"]
        for number, block in enumerate(self.blocks):
            columns = list(block)
            wanted[columns] = self.low[columns]
            level = columns[int(parameters[f"category{number}"])]
            wanted[level] = self.high[level]
        distance = ((self.points - wanted) ** 2).sum(axis=1)
        distance[~history.free] = np.inf
        distance[taken] = np.inf
        return int(distance.argmin())
