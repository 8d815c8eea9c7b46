"""Meters of the local batch rules: how much the pulls of a batch have shrunk the variance of any arm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchbandits.arms import Lookahead
from torchbandits.kernels import Stationary
from torchbandits.posteriors import Conditioning
from torchbandits.transfers import to_device

# Maximum number of covariances between leaders and all arms that a meter keeps on a device.
_KEPT = 1 << 24


class RatioMeter:
    r"""The meter of local rules: `max_x Σ_s c_s(x)² / lev_fb(x)`, measured only when it may have exceeded the budget.

    A pick of arm j raises the maximum by at most its leverage at the batch start, because c_j(x)² ≤ lev_fb(j) lev_fb(x). The
    sweep over the arms therefore runs a few times per batch instead of once per pick, with the same decisions.
    """

    dynamic, additive = False, False

    def __init__(self, lookahead: Lookahead, ratio_threshold: float, *, exact: bool) -> None:
        self.spent = torch.zeros(lookahead.num_rows, dtype=torch.float64)
        self.budget, self._measured = torch.full_like(self.spent, ratio_threshold - 1), self.spent
        self.exact, self.sums = exact, [lookahead.start.new_zeros(()) for _ in range(2)]

    def gain(self, leverage: Tensor) -> Tensor:
        """Leverage at the batch start, `rows x k`."""
        return leverage

    def broke(self, lookahead: Lookahead, rows: Tensor) -> Tensor:
        """Measure the ratio over all arms."""
        if not bool(rows.any()):
            return rows
        fresh = not self.exact or bool((rows & (self._measured <= self.budget)).any())
        if fresh:
            self._measured = self._ratio(lookahead).cpu()
        broken = rows & (self._measured > self.budget)
        if self.exact and bool(broken.any()):
            # From now on each pick is followed by this, because the sums only grow.
            broken = broken & (self._exact_ratio(lookahead).cpu() - 1 > self.budget)
        self.spent = self._measured if fresh else torch.where(rows, self._measured, self.spent)
        return broken

    def _ratio(self, lookahead: Lookahead) -> Tensor:
        """The ratio, `rows`, after adding the squared columns of the picks since the last call: c² with the dictionary frozen,
        and k̃²."""
        index, counts = lookahead.take_recent()
        if index.shape[-1]:
            index, counts = to_device(lookahead.start.device, index, counts)
            columns = lookahead.table.columns_between(lookahead.rows_first(index))
            squares = [lookahead.flat(column, 2).square() for column in columns]
            added = [(counts.unsqueeze(-2) @ square).squeeze(-2) for square in squares]
            self.sums = [total + more for total, more in zip(self.sums, added, strict=True)]
        return _quotient(torch.maximum(*self.sums), lookahead.start).amax(dim=-1)

    def _exact_ratio(self, lookahead: Lookahead) -> Tensor:
        """The ratio max_x lev_fb(x) / lev_t(x), `rows`, by a sweep over the arms: the larger of the ratio with the frozen
        dictionary and the ratio with k̃. The former alone might never end a batch, because a frozen dictionary never reduces
        the residual."""
        index, counts = (lookahead.rows_first(x) for x in lookahead.distinct())
        ratios = []
        for columns in lookahead.table.columns_between(index):
            slot = index.clamp_min(0).unsqueeze(-2).expand(*columns.shape[:-1], index.shape[-1])
            directions = Conditioning.on(columns.gather(-1, slot), counts).directions(columns)
            left = lookahead.start - lookahead.flat(directions.square().sum(dim=-2), 1)
            ratios.append(_quotient(lookahead.start, left.clamp_min(torch.finfo(torch.float64).tiny)).amax(dim=-1))
        return torch.stack(ratios).amax(dim=0)


class RatioMeterOnDevice(RatioMeter):
    """The same for arms on a device, where each operation takes a launch and each look at the result a wait: the covariances of
    all leaders with all arms are computed once, and a further measurement is two operations and one wait."""

    def __init__(self, lookahead: Lookahead, ratio_threshold: float, *, exact: bool) -> None:
        super().__init__(lookahead, ratio_threshold, exact=exact)
        start = lookahead.start
        self._inverse = start.reciprocal().nan_to_num_(posinf=0.0)
        self._total = start.new_zeros(2 * lookahead.num_rows, 1, start.shape[-1])
        # Of the leaders `rows x k` on the host: columns² / lev_fb, and for the exact ratio the columns, `2 rows x k x A`, and
        # their values at the leaders on the host, `2 rows x k x k`.
        self._leaders = lookahead.leaders_here
        self._ratios = self._columns = self._total[:, :0]
        self._gram = torch.empty(0)

    def _ratio(self, lookahead: Lookahead) -> Tensor:
        index, counts = lookahead.take_recent()
        if index.shape[-1]:
            place = self._places(lookahead, index)
            if place is None:
                arms = to_device(lookahead.start.device, index)[0]
                ratios, weights = self._of(lookahead, self._stacked(lookahead, arms, None)), counts
            else:
                ratios = self._ratios
                weights = counts.new_zeros(self._leaders.shape).scatter_add(-1, place, counts)
            weights = to_device(ratios.device, weights.repeat_interleave(2, dim=0).unsqueeze(-2))[0]
            self._total = torch.baddbmm(self._total, weights, ratios)
        return self._total.reshape(lookahead.num_rows, -1).amax(dim=-1)

    def _exact_ratio(self, lookahead: Lookahead) -> Tensor:
        index, counts = lookahead.index, lookahead.counts
        place = self._places(lookahead, index)
        if place is None:
            return super()._exact_ratio(lookahead)
        place, counts = place.repeat_interleave(2, dim=0), counts.repeat_interleave(2, dim=0)
        lines = self._gram.gather(-2, place.unsqueeze(-1).expand(*place.shape, self._gram.shape[-1]))
        p = place.shape[-1]
        place = place.unsqueeze(-2).expand(*place.shape, p)
        # L⁻¹√N of the picks, in the places of the leaders, is found on the host.
        own = Conditioning.on(lines.gather(-1, place), counts).directions(torch.eye(p, dtype=counts.dtype).expand(place.shape))
        spread = own.new_zeros(*place.shape[:-1], self._leaders.shape[-1]).scatter_add(-1, place, own)
        directions = to_device(lookahead.start.device, spread)[0] @ self._columns
        shrunk = directions.square().sum(dim=-2).reshape(lookahead.num_rows, 2, -1)
        start = lookahead.start.unsqueeze(-2)
        left = (start - shrunk).clamp_min(torch.finfo(torch.float64).tiny)
        return (start / left).reshape(lookahead.num_rows, -1).amax(dim=-1)

    def _places(self, lookahead: Lookahead, index: Tensor) -> Tensor | None:
        """Places of arms (`rows x p`, −1 where padded) among the leaders whose columns are kept, which are replaced by the
        current leaders where one is not among them; None where it is not among those either. On the host."""
        for leaders in (self._leaders, lookahead.leaders_here):
            same = index.unsqueeze(-1) == leaders.unsqueeze(-2)
            if bool((same.any(dim=-1) | (index < 0)).all()) and leaders.shape[-1]:
                if leaders is not self._leaders:
                    self._keep(lookahead)
                return same.byte().argmax(dim=-1)
        return None

    def _keep(self, lookahead: Lookahead) -> None:
        columns = self._stacked(lookahead, lookahead.leaders, lookahead.features_of_leaders)
        self._leaders, self._ratios = lookahead.leaders_here, self._of(lookahead, columns)
        if self.exact:
            at = lookahead.leaders.repeat_interleave(2, dim=0, output_size=len(columns)).unsqueeze(-2)
            self._columns, self._gram = columns, columns.gather(-1, at.expand(*columns.shape[:-1], -1)).cpu()

    def _stacked(self, lookahead: Lookahead, index: Tensor, features: tuple[Any, ...] | None) -> Tensor:
        """Columns of arms `rows x p`, with the dictionary frozen and exact, `2 rows x p x A`."""
        columns = lookahead.table.columns_between(lookahead.rows_first(index), features)
        return torch.stack([lookahead.flat(column, 2) for column in columns], dim=1).flatten(end_dim=1)

    def _of(self, lookahead: Lookahead, columns: Tensor) -> Tensor:
        """Columns² / lev_fb, 0 where there is no variance."""
        shape = lookahead.num_rows, 2, *columns.shape[-2:]
        return columns.reshape(shape).square().mul_(self._inverse[:, None, None]).reshape(columns.shape)


def _quotient(top: Tensor, bottom: Tensor) -> Tensor:
    return torch.where(bottom > 0, top / bottom, 0.0)


def ratio_meter(lookahead: Lookahead, ratio_threshold: float, *, exact: bool) -> RatioMeter:
    """The meter of a growing batch, for arms on the host or on a device."""
    table, start = lookahead.table, lookahead.start
    # Other kernels are evaluated one point at a time.
    many = table.posterior.finite is not None or Stationary.covers(table.posterior.kernel)
    fits = start.numel() * lookahead.most_leaders <= _KEPT
    kept = start.device.type != "cpu" and not table.rows.sharded and many and fits
    return (RatioMeterOnDevice if kept else RatioMeter)(lookahead, ratio_threshold, exact=exact)
