"""Pareto dominance on long lists of arms, with a loop over the members of the front and not over the arms; indicators of
fronts."""

from __future__ import annotations

from itertools import combinations
from math import comb

import torch
from torch import Tensor


def non_dominated(values: Tensor) -> Tensor:
    """The rows of a table, `A x k`, that no other row dominates, as `A` booleans; larger is better.

    A row dominates another if it is at least as large everywhere and larger somewhere, so that equal rows are all kept. Rows
    with a −∞ are never kept, unless all rows have one. Cost: O(A k) per member of the front, where A counts the rows that are
    left then.
    """
    A = values.shape[0]
    kept = torch.zeros(A, dtype=torch.bool, device=values.device)
    finite = (values > -torch.inf).all(dim=-1)
    place = finite.nonzero().squeeze(-1) if bool(finite.any()) else torch.arange(A, device=values.device)
    rows = values[place]
    # Positions in the order of each outcome: no remaining row dominates the row with the largest sum of positions.
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

    Cost: O(A k) per row of `by`, where A counts the rows that are not covered yet.
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


def growing_hypervolume(gains: Tensor) -> Tensor:
    """The hypervolume above 0 of the first t of n points, `n x k`, for t = 1 … n, `n`, larger being better; a point with NaN
    adds nothing. Cost: one hypervolume per point that is not dominated when it comes."""
    front, volumes, zero = gains[:0], [], gains.new_zeros(gains.shape[-1])
    for gain in gains:
        if bool((gain > 0).all()) and not bool((front >= gain).all(dim=-1).any()):
            front = torch.cat([front[(front > gain).any(dim=-1)], gain.unsqueeze(0)])
            volumes.append(hypervolume(front, zero))
        else:
            volumes.append(volumes[-1] if volumes else 0.0)
    return torch.tensor(volumes, dtype=torch.float64)


def growing_r2(gaps: Tensor, most: int = 500) -> Tensor:
    r"""The R2 indicator of the first t of n points for t = 1 … n, `n`, smaller being better.

    .. math:: R2 = \frac1{|V|} \sum_{v \in V} \min_{i \le t} \max_j v_j g_{ij}

    Args:
        gaps: `n x k`, distance of each point from the ideal point; a point with NaN adds nothing.
        most: Largest number of weights; the weights V are evenly spaced over the simplex.

    Returns:
        R2; ∞ before the first point without NaN. Cost O(n k |V|). Source: Brockhoff et al. 2012.
    """
    weights = simplex(gaps.shape[-1], most).to(gaps)
    worst = (weights.unsqueeze(-2) * gaps).amax(dim=-1) if gaps.numel() else gaps.new_zeros(len(weights), len(gaps))
    worst = worst.masked_fill(gaps.isnan().any(dim=-1), torch.inf)
    return worst.cummin(dim=-1).values.mean(dim=0)


def simplex(k: int, most: int) -> Tensor:
    """The points of the simplex whose coordinates are multiples of 1/H, `n x k`, for the largest H with n ≤ `most`."""
    steps = 1
    while k > 1 and comb(steps + k, k - 1) <= most:
        steps += 1
    # A bar between two of the steps separates two coordinates.
    bars = torch.tensor(list(combinations(range(steps + k - 1), k - 1)), dtype=torch.float64)
    ends = torch.nn.functional.pad(bars, (1, 0), value=-1.0), torch.nn.functional.pad(bars, (0, 1), value=steps + k - 1.0)
    return (ends[1] - ends[0] - 1) / steps
