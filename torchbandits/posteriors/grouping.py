"""Sums and positions within groups of a flat tensor."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# Largest number of entries of a padded batch of square matrices.
_CHUNK = 1 << 23


def lines_of(group: Tensor, groups: int) -> Tensor:
    """Line numbers of each group, in order: `groups x most` from `n` group numbers, −1 where padded. Cost O(n log n)."""
    order = torch.argsort(group, stable=True)
    count = torch.bincount(group, minlength=groups)
    rank = torch.arange(group.shape[0], device=group.device) - (count.cumsum(0) - count)[group[order]]
    lines = order.new_full((groups, int(count.max()) if groups else 0), -1)
    lines[group[order], rank] = order
    return lines


def sum_by(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """Sums of `n` values over each group, `groups`."""
    return values.new_zeros(groups).index_add_(0, group, values)


def sum_before(values: Tensor, group: Tensor) -> Tensor:
    """Sum of the earlier values of the same group, `n`; group numbers must be non-decreasing."""
    earlier, count = values.cumsum(0) - values, torch.bincount(group)
    return earlier - earlier[(count.cumsum(0) - count)[group]]


def chunks(size: Tensor) -> Iterator[Tensor | slice]:
    """Parts of `k` square matrices with a bounded number of entries after padding; matrices of similar size go together."""
    k = size.shape[0]
    if k == 0:
        return
    if k == 1 or k * int(size.max()) ** 2 <= _CHUNK:
        yield slice(None)
        return
    order, start = size.argsort(descending=True, stable=True), 0
    while start < k:
        step = max(1, _CHUNK // max(1, int(size[order[start]])) ** 2)
        yield order[start : start + step]
        start += step
