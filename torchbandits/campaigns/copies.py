"""Rows with equal features and different known values, such as a compound of several suppliers: the best one stands for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits.arms.scanning import scan
from torchbandits.campaigns.candidates import Candidates
from torchbandits.errors import ArgumentError
from torchbandits.sources import ArmSource
from torchbandits.sources.duplicates import first_occurrence

Values = Mapping[str, NDArray[np.float64]]


def first_equal(arms: Tensor | ArmSource) -> NDArray[np.int64] | None:
    """The lowest row with the features of each row; None if all rows differ."""
    first = first_occurrence(arms) if isinstance(arms, Tensor) else scan(arms).first
    return None if first is None else first.cpu().numpy()


@dataclass(frozen=True)
class Equals:
    """Rows of the same features, of which some have better known values than others.

    Attributes:
        first: The lowest row with the features of each row.
        order: All rows, those of the same features one after the other, the best of them that keeps all limits last.
    """

    first: NDArray[np.int64]
    order: NDArray[np.int64]

    def best(self, offered: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """For each row the best row of the same features, of those on offer (a mask of the rows; None for all). −1 where none
        is. Cost: O(A)."""
        order = self.order if offered is None else self.order[offered[self.order]]
        group = self.first[order]
        last = np.append(group[1:] != group[:-1], True)[: len(order)]
        best = np.full(len(self.first), -1)
        best[group[last]] = order[last]
        return best[self.first]

    def places(self) -> NDArray[np.int64]:
        """The place of each row among those of the same features: 0 for the best one, 1 for the second, and so on."""
        place = np.empty(len(self.order), np.int64)
        place[self.order] = np.arange(len(self.order))
        found: NDArray[np.int64] = place[self.best()] - place
        return found


@dataclass(frozen=True)
class Known:
    """What the known outcomes of a campaign say of its rows.

    Attributes:
        kept: Whether each row keeps the limits on known outcomes.
        same: The rows of the same features that have different known values; None if there are none.
    """

    kept: NDArray[np.bool_]
    same: Equals | None

    def offered(self, offer: Tensor | None) -> Tensor:
        """The mask of the rows on offer that keep the limits, of those of the same features the best one.

        Args:
            offer: The mask of the rows on offer, `A` on the host; None for all.
        """
        found = self.kept if offer is None else self.kept & offer.numpy()
        if self.same is not None:
            found = found & (self.same.best(found) == np.arange(len(found)))
        return torch.from_numpy(found)


def equals(
    first: NDArray[np.int64] | None,
    known: Values,
    directions: Mapping[str, float],
    pool: Candidates,
    kept: NDArray[np.bool_],
) -> Equals | None:
    """The rows of the same features by their known values; None if rows of the same features have the same.

    Args:
        first: The lowest row with the features of each row; None if all rows differ.
        known: The values of each known outcome in all rows.
        directions: For each of them 1.0 if larger values are better, −1.0 if smaller values are, and 0.0 if neither is.
        pool: The candidates, for messages.
        kept: Whether each row keeps the limits on known outcomes. A row that does not is never the best one where another of
            the same features does.

    Raises:
        ArgumentError: If of some rows (of those that keep the limits, if any do) none has the best values of all known
            outcomes: names two of them.

    Cost: O(A log A).
    """
    if first is None or not known:
        return None
    rows = np.arange(len(first))
    signed = np.array([(directions[name] or 1.0) * own for name, own in known.items()])
    # The last row of a group keeps the limits if any does, and is the best by the first outcome, by the second among equal
    # ones, and so on; then the first row.
    found = Equals(first, np.lexsort((-rows, *signed[::-1], kept, first)))
    best = found.best()
    if (signed == signed[:, best]).all():
        return None
    either = np.array([[directions[name] == 0] for name in known])
    worse = ((signed > signed[:, best]) | (either & (signed != signed[:, best]))) & (kept | ~kept[best])
    if worse.any():
        place, row = (int(part[0]) for part in np.nonzero(worse))
        name = list(known)[place]
        one, other = pool.ids.of(np.array([best[row], row]))
        raise ArgumentError(
            f"objectives and limits: rows {one!r} and {other!r} of {pool.table.name} differ only in columns that are no "
            f"features, and have {known[name][best[row]]:g} and {known[name][row]:g} in column {name!r}; the model sees one "
            "candidate, and neither row is the better one. Keep one of such rows, or make a column in which they differ a "
            "feature."
        )
    return found
