"""Pareto dominance on long lists of arms: a loop over the members of the front, none over the arms."""

from __future__ import annotations

import torch
from torch import Tensor


def non_dominated(values: Tensor) -> Tensor:
    """The rows of a table, `A x k`, that no other row dominates, as `A` booleans; larger is better.

    A row dominates another if it is at least as large everywhere and larger somewhere, so that equal rows are all kept. Rows
    with a −∞ are never kept, unless all rows have one. Cost O(A k) per member of the front, of the rows that are left then.
    """
    A = values.shape[0]
    kept = torch.zeros(A, dtype=torch.bool, device=values.device)
    finite = (values > -torch.inf).all(dim=-1)
    place = finite.nonzero().squeeze(-1) if bool(finite.any()) else torch.arange(A, device=values.device)
    rows = values[place]
    # Positions in the order of each outcome: their sum is largest at a row that none of those left dominates.
    total = _ranks(rows).sum(dim=-1)
    while place.numel():
        best = total.argmax()
        pivot = rows[best]
        same = (rows == pivot).all(dim=-1)
        kept[place[same]] = True
        left = (rows > pivot).any(dim=-1)
        place, rows, total = place[left], rows[left], total[left]
    return kept


def _ranks(rows: Tensor) -> Tensor:
    """Positions of the values of each column in its order, equal for equal values, `A x k`."""
    columns = [torch.unique(column, return_inverse=True)[1] for column in rows.unbind(dim=-1)]
    return torch.stack(columns, dim=-1)


def covered(values: Tensor, by: Tensor) -> Tensor:
    """The rows of a table, `A x k`, that some row of `by`, `f x k`, reaches or exceeds everywhere, as `A` booleans.

    Cost O(A k) per row of `by`, of the rows that are not covered yet.
    """
    found = torch.zeros(values.shape[0], dtype=torch.bool, device=values.device)
    place, rows = torch.arange(values.shape[0], device=values.device), values
    for row in by:
        hit = (rows <= row).all(dim=-1)
        found[place[hit]] = True
        place, rows = place[~hit], rows[~hit]
    return found


def hypervolume(values: Tensor, reference: Tensor) -> float:
    """The volume that points `n x k` dominate above a reference point `k`, larger being better; rows with NaN are left out."""
    from botorch.utils.multi_objective.hypervolume import Hypervolume  # noqa: PLC0415 - BoTorch takes a second to load

    known = values[~values.isnan().any(dim=-1)].double()
    known = known[(known > reference).all(dim=-1)]
    if not len(known):
        return 0.0
    return float(Hypervolume(reference.double()).compute(known[non_dominated(known)]))
