"""Outcomes that are known for all arms: beside those that are told, and in the units of models that rank rewards."""

from __future__ import annotations

import torch
from torch import Tensor


def beside(told: Tensor, known: Tensor | None) -> Tensor:
    """Values of the outcomes that are told, `... x k x n`, and of known ones, `... x j x n`, as `... x (k + j) x n`."""
    if known is None or not known.shape[-2]:
        return told
    return torch.cat([told, known.expand(*told.shape[:-2], *known.shape[-2:])], dim=-2)


def normal_scores(values: Tensor) -> Tensor:
    """Normal scores of the ranks of values, `... x A`: of a long tail of prices, few are far away. Equal values share a rank.

    Cost: O(A log A).
    """
    rows = []
    for row in values.reshape(-1, values.shape[-1]):
        _, place, counts = row.unique(return_inverse=True, return_counts=True)
        rows.append(_score(counts.cumsum(0) - counts, counts, len(row))[place])
    return torch.stack(rows).reshape(values.shape)


def normal_score_among(values: Tensor, value: float) -> Tensor:
    """The normal score of one more value, `...`: that of equal values, and between those of smaller and of larger ones."""
    return _score((values < value).sum(dim=-1), (values == value).sum(dim=-1), values.shape[-1])


def _score(below: Tensor, equal: Tensor, count: int) -> Tensor:
    share = (below + equal.double() / 2) / count
    return torch.special.ndtri(share.clamp(0.25 / count, 1 - 0.25 / count))
