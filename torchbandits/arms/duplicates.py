"""Exact duplicates among the arms, which share one entry: the lowest index."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.types import Arms, Points

# The golden ratio in 64 bits, as a signed integer.
_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)
# An odd multiplier that makes the fingerprint depend on the order of arms.
_MIX = 0x2545F4914F6CDD1D


def first_occurrence(arms: Arms, hashes: Tensor | None = None) -> Tensor | None:
    """The lowest index of an arm equal to each arm, `batch_shape x A`; None if all arms differ.

    `hashes` are the `codes` of the arms, if already computed. Arms are sorted by their 64-bit hashes, and arms of equal hash
    are compared in full, so the result is exact. Cost O(A (d + log A)).
    """
    ordered, order = (codes(arms) if hashes is None else hashes).sort(dim=-1, stable=True)
    same = ordered[..., 1:] == ordered[..., :-1]
    if not bool(same.any()):
        return None
    rows = [_first_in_row(a, c, o) for a, c, o in zip(_rows(arms, 2), _rows(ordered, 1), _rows(order, 1), strict=True)]
    first = torch.stack(rows).reshape(arms.shape[:-1])
    own = torch.arange(arms.shape[-2], device=arms.device)
    return None if bool((first == own).all()) else first


def codes(points: Points) -> Tensor:
    """A 64-bit integer hash of each point, `batch_shape x n`. Equal points have equal hashes, including −0.0 and 0.0."""
    # Adding 0.0 turns −0.0 into 0.0.
    bits = (points.double() + 0.0).view(torch.int64)
    code = torch.zeros(points.shape[:-1], dtype=torch.int64, device=points.device)
    for column in bits.unbind(dim=-1):
        code = (code ^ column) * _MULTIPLIER
        code = code ^ (code >> 29)
    return code


def fingerprint(hashes: Tensor, offset: int = 0) -> Tensor:
    """One 64-bit integer for arms in order, given their `codes`, the first of which has index `offset`. Fingerprints of
    consecutive pieces add up. Batch rows with the same arms have the fingerprint of these arms."""
    place = torch.arange(offset, offset + hashes.shape[-1], device=hashes.device)
    rows = ((hashes ^ (hashes >> 32)) * (2 * place + 1) * _MIX).sum(dim=-1).reshape(-1)
    return rows[0] if bool((rows == rows[0]).all()) else fingerprint(rows)


def matches(arms: Arms, points: Points) -> Tensor:
    """The lowest index of an arm equal to each point, `batch_shape x u` for `batch_shape x A x d` and `batch_shape x u x d`; −1
    if there is none. Cost O((A + u) (d + log(A + u)))."""
    A, u = arms.shape[-2], points.shape[-2]
    first = first_occurrence(torch.cat([arms.double(), points.double()], dim=-2))
    if first is None:
        return torch.full(points.shape[:-1], -1, device=arms.device)
    found = first.narrow(-1, A, u)
    return torch.where(found < A, found, -1)


def _rows(tensor: Tensor, trailing: int) -> Tensor:
    return tensor.reshape(-1, *tensor.shape[tensor.dim() - trailing :])


def _first_in_row(arms: Tensor, ordered: Tensor, order: Tensor) -> Tensor:
    """`first_occurrence` of one batch row, given its sorted hashes."""
    group = torch.zeros_like(ordered)
    group[1:] = (ordered[1:] != ordered[:-1]).cumsum(0)
    head = torch.zeros_like(ordered)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    head = order[starts][group]
    first = torch.empty_like(order).scatter_(0, order, head)
    if bool((arms == arms[first]).all()):
        return first
    # Two different arms share a hash, so whole rows must be compared.
    _, inverse = torch.unique(arms, dim=0, return_inverse=True)
    own = torch.arange(arms.shape[0], device=arms.device)
    lowest = torch.full_like(own, arms.shape[0]).scatter_reduce_(0, inverse, own, "amin")
    return lowest[inverse]
