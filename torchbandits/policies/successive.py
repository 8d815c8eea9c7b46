"""Successive picks by an aim, each hallucinated before the next, with the scores of few arms brought up to date."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchbandits.aims import Aim, Outlook
from torchbandits.arms import ArmTable, FullSweep, best_arm
from torchbandits.posteriors import Conditioning
from torchbandits.scores import Score
from torchbandits.types import Picks

# Number of arms from which only those with the largest bounds are brought up to date, and their number at first.
_MANY, _LEADERS = 1 << 14, 1 << 10
# The leaders become this many times more until one of them is best, up to this share of the arms.
_MORE, _SHARE = 4, 1 / 12
# Number of picks in a row for which leaders fail, after which they are not tried again in this selection.
_TRIED = 2
# A bound counts as larger than a score up to this difference, absolute and relative: bounds and scores are rounded.
_MARGIN = 1e-6


class Successive:
    """The best arm by the score of an aim, again and again, given the picks so far.

    The scores of an aim that has `bounds` can only fall below them while picks are made. Arms of the largest bounds are then
    brought up to date until the best of them exceeds the bounds of all others: the pick is the one that all scores would give.
    For other aims, and where too many arms compete, all scores are computed.

    Args:
        aim, score: Of the policy.
        table: The arms; not modified.
        pending: `batch_shape x p` pending arms (−1 where padded), with their counts.
    """

    def __init__(self, aim: Aim, score: Score | None, table: ArmTable, pending: tuple[Picks, Tensor]) -> None:
        self._aim, self._score, self._table = aim, score, table
        self._index, self._counts = pending
        self._sweep = FullSweep(table, None, pending)
        self._swept = self._index.shape[-1]
        # The bounds; or, until the next pick needs bounds, what they are made of.
        self._bounds: Tensor | None = None
        self._last: tuple[Outlook, Tensor] | None = None
        self._failed = 0
        # Bounds are of one batch row of picks, which is what a campaign has.
        self._lazy = table.leverage.dim() == 2 and table.leverage.shape[-1] >= _MANY

    def best(self, outlook: Outlook) -> tuple[Tensor, Tensor]:
        """The best arm and its score, `...` each; the standard deviations in `outlook` are not read."""
        if self._last is not None and self._lazy and self._failed < _TRIED:
            self._bounds = self._aim.bounds(self._last[0], self._score, self._last[1])
        self._last = None
        if self._bounds is None:
            return self._among_all(outlook)
        found = self._among_leaders(outlook, self._bounds)
        # Where most arms are alike, leaders fail again and again, and are not tried after the second time.
        self._failed = 0 if found is not None else self._failed + 1
        return self._among_all(outlook) if found is None else found

    def hallucinate(self, index: Picks, counts: Tensor) -> None:
        """Add picks, `batch_shape x 1` each (−1 for none). Cost O(1), and O(A m) for each pick where all scores are needed."""
        self._index, self._counts = torch.cat([self._index, index], dim=-1), torch.cat([self._counts, counts], dim=-1)

    def _among_all(self, outlook: Outlook) -> tuple[Tensor, Tensor]:
        for place in range(self._swept, self._index.shape[-1]):
            self._sweep.hallucinate(self._index[..., place : place + 1], self._counts[..., place : place + 1])
        self._swept = self._index.shape[-1]
        now = outlook.with_std(self._std(self._sweep.leverage))
        value = self._aim.scores(now, self._score)
        self._bounds, self._last = None, (now, value)
        return best_arm(value), value.amax(dim=-1)

    def _among_leaders(self, outlook: Outlook, bounds: Tensor) -> tuple[Tensor, Tensor] | None:
        """The best arm and its score, if few arms show which it is."""
        conditioning, picked = self._conditioning()
        always = torch.cat([(outlook.seen | outlook.pending).nonzero().squeeze(-1), self._aim.anchors(outlook)])
        count, A = _LEADERS, bounds.shape[-1]
        while count <= _SHARE * A:
            open_ = outlook.open(bounds)
            index = torch.cat([always, open_.topk(count).indices]).unique()
            slot = index.expand(*self._table.leverage.shape[:-1], -1)
            across = self._table.covariance(picked, self._table.features(slot), frozen=False)
            leverage = self._table.leverage.gather(-1, slot) - conditioning.directions(across).square().sum(dim=-2)
            offered = None if outlook.offered is None else outlook.offered[index]
            some = outlook.of(index, offered, outlook.seen[index], outlook.pending[index])
            some = some.with_std(self._std(leverage.clamp_min(0)))
            value = self._aim.scores(some, self._score)
            fresh = self._aim.bounds(some, self._score, value)
            if fresh is None:
                return None
            bounds[index] = torch.minimum(bounds[index], fresh)
            best, outside = value.amax(), open_.scatter(-1, index, -torch.inf).amax()
            if bool(outside < best - _MARGIN * (1 + best.abs())):
                return index[best_arm(value)], best
            count *= _MORE
        return None

    def _conditioning(self) -> tuple[Conditioning, tuple[Any, ...]]:
        """The conditioning on pending arms and picks, and their features."""
        picked = self._table.features(self._index.clamp_min(0))
        counts = torch.where(self._index >= 0, self._counts, 0.0)
        return Conditioning.on(self._table.covariance(picked, picked, frozen=False), counts), picked

    def _std(self, leverage: Tensor) -> Tensor:
        return (self._table.posterior.regularization * leverage.double()).sqrt()
