"""The rows of a campaign as arms of its bandit, for which rows with equal features are one arm."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.errors import UnsupportedError
from torchbandits.policies.state import GaussianState, TableState
from torchbandits.posteriors import GaussianProcess
from torchbandits.types import Marginals

_BLOCK = 2048
"""Number of rows whose posterior is computed at a time, each with a number for every measured row."""


class RowsAsArms:
    """Rows of a table as arms of a bandit.

    The `entry` of a row is the first of the rows with the same features. Rows are numbers on the host.

    Args:
        bandit: The bandit; its arms are the rows of the table in their order.
    """

    def __init__(self, bandit: Bandit) -> None:
        self._bandit = bandit

    @overload
    def there(self, host: Tensor) -> Tensor: ...
    @overload
    def there(self, host: Tensor | None) -> Tensor | None: ...
    def there(self, host: Tensor | None) -> Tensor | None:
        """A tensor of the host on the device of the bandit."""
        return None if host is None else host.to(self._bandit.device)

    def entries(self, rows: Sequence[int]) -> Tensor:
        """The entry of each row."""
        at = torch.tensor(rows, dtype=torch.int64, device=self._bandit.device)
        return self._bandit.loop.state.rows.entry(at).cpu()

    def equal_to(self, entries: Tensor) -> Tensor:
        """The mask of the rows with one of these entries, `A`."""
        first = self._bandit.loop.state.rows.first
        return torch.isin(torch.arange(self._bandit.loop.num_arms) if first is None else first.cpu(), entries)

    def different(self, rows: Tensor | None, *, closed: Tensor | None = None) -> int:
        """The number of different rows to the model among some, `A` booleans on the host or None for all, without those that
        equal a row with one of the entries `closed`. Cost O(A)."""
        first, A = self._bandit.loop.state.rows.first, self._bandit.loop.num_arms
        kept = torch.ones(A, dtype=torch.bool) if rows is None else rows.clone()
        if first is not None:
            kept = torch.zeros_like(kept).index_fill(0, first.cpu()[kept], True)
        if closed is not None:
            kept[closed] = False
        return int(kept.sum())

    @property
    def counts(self) -> Tensor:
        """Evaluations of each row, those of equal rows included, of all outcomes together, `A`."""
        counts = self._bandit.counts.cpu()
        return counts.reshape(-1, counts.shape[-1]).sum(dim=0)

    @property
    def open(self) -> NDArray[np.int64]:
        """The open rows in the order of their selection. They are the same for all outcomes."""
        opened = self._bandit.loop.open
        if opened is None:
            return np.zeros(0, np.int64)
        index, mask = (part.reshape(-1, part.shape[-1])[0] for part in (opened.index, opened.mask))
        return index[mask].cpu().numpy()

    @property
    def open_entries(self) -> Tensor:
        """The entry of each open row, in the order of their selection."""
        return self.entries(self.open.tolist())

    def awaited(self, rows: NDArray[np.int64]) -> list[int]:
        """The open ones of some rows, each as often as it or an equal row is open."""
        waiting, found = Counter(self.open_entries.tolist()), []
        for row, entry in zip(rows.tolist(), self.entries(rows.tolist()).tolist(), strict=True):
            if waiting[entry] > 0:
                waiting[entry] -= 1
                found.append(row)
        return found

    def beyond_open(self, rows: Sequence[int]) -> list[int]:
        """The rows of a list, each as often as it is listed more often than it is open."""
        waiting, found = Counter(self.open.tolist()), []
        for row in rows:
            if waiting[row] > 0:
                waiting[row] -= 1
            else:
                found.append(row)
        return found

    def open_as(self, row: int) -> NDArray[np.bool_]:
        """The mask of the open rows for which a row stands: itself or, if it is not open, those with the same features."""
        opened = self.open
        return opened == row if row in opened else self.open_entries.numpy() == int(self.entries([row]))

    def give_up(self, rows: NDArray[np.int64]) -> None:
        """Forget open rows."""
        if len(rows):
            self._bandit.forget(self.there(torch.from_numpy(rows)))

    def as_told(self, rows: Tensor, told: list[int]) -> NDArray[np.int64]:
        """Replace each row by the equal one that was told first."""
        own = self.entries(told).tolist()
        first = dict(zip(reversed(own), reversed(told), strict=True))
        return np.array([first.get(row, row) for row in rows.tolist()], np.int64)

    def first_offered(self, rows: NDArray[np.int64], offer: Tensor) -> NDArray[np.int64]:
        """The first row on offer with the features of each row, −1 where there is none. Cost: O(A).

        Args:
            rows: The rows.
            offer: The mask of the rows on offer, `A` on the host.
        """
        first, offered = self._bandit.loop.state.rows.first, np.flatnonzero(offer.numpy())
        entries = np.arange(len(offer)) if first is None else first.cpu().numpy()
        found = np.full(len(entries), -1)
        # Of equal rows the one written last is kept.
        found[entries[offered[::-1]]] = offered[::-1]
        return found[entries[rows]]

    def as_told_among(self, rows: Tensor, told: list[int], held: Tensor | None) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Rows, each replaced by the equal one told first among those that fulfil a condition, and the mask of rows for
        which there is one.

        Args:
            rows: The rows.
            told: The rows with results, in the order told.
            held: The mask of the rows that fulfil the condition, `A` on the host; None for all.
        """
        if held is None:
            return self.as_told(rows, told), np.ones(len(rows), bool)
        kept = held.numpy()
        found = self.as_told(rows, [row for row in told if kept[row]])
        return found, kept[found]

    @contextmanager
    def competing(self, rows: Tensor | None) -> Iterator[None]:
        """Let stopping rules and fronts compare these rows only, `A` booleans on the host; None for all rows."""
        loop = self._bandit.loop
        loop.recover_()
        known = loop.state.rows
        known.competing = known.offered(self.there(rows))
        try:
            yield
        finally:
            known.competing = None

    @property
    def has_model(self) -> bool:
        """Whether the policy has a posterior."""
        try:
            return self._bandit.posterior is not None
        except UnsupportedError:
            return False

    @property
    def constant(self) -> Tensor:
        """Whether the policy learns the scale of its rewards, and all of an outcome are equal: their deviations are then not
        known. `batch_shape` booleans on the host."""
        state = self._bandit.loop.state
        units = state.posterior.units if isinstance(state, GaussianState) else None
        if units is None:
            return torch.zeros(self._bandit.loop.batch_shape, dtype=torch.bool)
        assert isinstance(state, GaussianState)
        return units.constant(state.statistics).cpu()

    def marginals(self, rows: NDArray[np.int64]) -> Marginals:
        """Posterior mean and variance of rows, reward units, not conditioned on open ones; NaN before the first result, and
        for a policy without a posterior."""
        unknown = torch.full((len(rows),), torch.nan, dtype=torch.float64)
        if not len(rows) or not bool((self._bandit.pulls > 0).all()) or not self.has_model:
            return Marginals(unknown, unknown)
        state, index = self._bandit.loop.state, self.there(torch.from_numpy(rows))
        if isinstance(state, TableState):
            # The arms have their means and leverages already, without what is pending.
            index = index.expand(*state.rows.batch_shape, -1)
            variance = state.posterior.regularization * state.leverage_at(index)
            return state.in_reward_units(state.mean_at(index), variance)
        posterior = copy.deepcopy(self._bandit.posterior)
        known, blocks = state.rows, index.split(_BLOCK)
        if isinstance(posterior, GaussianProcess):
            points = known.points(blocks[0][:0])
            posterior.set_pending_(points, points.new_zeros(0))
        with torch.no_grad():
            found = [posterior(known.points(block)) for block in blocks]
        return Marginals(torch.cat([part.mean for part in found]), torch.cat([part.variance for part in found]))
