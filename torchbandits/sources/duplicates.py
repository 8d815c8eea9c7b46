"""Exact duplicates among the arms, which share one entry: the lowest index."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchbandits.types import Arms, Points, Stored

# The golden ratio in 64 bits, as a signed integer.
_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)
# An odd multiplier that makes the fingerprint depend on the order of arms.
_MIX = 0x2545F4914F6CDD1D
# Number of arms compared at once.
_STEP = 1 << 16


def first_occurrence(arms: Stored, hashes: Tensor | None = None) -> Tensor | None:
    """The lowest index of an arm equal to each arm, `batch_shape x A`; None if all arms differ. Arms are points `batch_shape x
    A x d`, or packed words.

    `hashes` are the `codes` of the arms, if already computed. Arms are sorted by their 64-bit hashes, and arms of equal hash
    are compared in full, so the result is exact. Cost O(A (d + log A)).
    """
    hashes = codes(arms) if hashes is None else hashes
    ordered, order = hashes.sort(dim=-1, stable=True)
    if not bool((ordered[..., 1:] == ordered[..., :-1]).any()):
        return None
    rows = [_first_in_row(a, o, c) for a, o, c in zip(_rows(arms, 2), _rows(ordered, 1), _rows(order, 1), strict=True)]
    first = torch.stack(rows).reshape(arms.shape[:-1])
    every_arm = torch.arange(arms.shape[-2], device=arms.device)
    return None if bool((first == every_arm).all()) else first


def lowest_equal(arm: Tensor, group: Tensor, num_arms: int, at: Callable[[Tensor], Stored]) -> Tensor:
    """The lowest index of an arm equal to each arm, `num_arms`, if only some arms can have duplicates.

    Args:
        arm: `n`, indices of the arms that can have duplicates.
        group: `n`, equal for equal arms, such as the number of their hash. Within a group arms are compared in full.
        num_arms: A.
        at: Function from `p` indices to these arms, `p x d`.
    """
    first = torch.arange(num_arms, device=arm.device)
    head = torch.full((int(group.max()) + 1,), num_arms, device=arm.device).scatter_reduce_(0, group, arm, "amin")[group]
    # Arms that share a hash without being equal, which almost never happens.
    left = []
    for mine, theirs in zip(arm.split(_STEP), head.split(_STEP), strict=True):
        same = (at(mine) == at(theirs)).all(dim=-1)
        first[mine[same]] = theirs[same]
        left.append(mine[~same])
    if len(odd := torch.cat(left).sort().values):
        others = at(odd)
        others = others + 0.0 if others.is_floating_point() else others
        _, inverse = torch.unique(others, dim=0, return_inverse=True)
        first[odd] = torch.full_like(odd, num_arms).scatter_reduce_(0, inverse, odd, "amin")[inverse]
    return first


def stand_ins(first: Tensor, available: Tensor, values: Sequence[Tensor] = ()) -> Tensor:
    """For each arm, the one among its exact duplicates that is available, `batch_shape x A`; A if none is. Of several it is the
    one of the smallest value, and of equal values the lowest index. Cost O(A) per tensor of values.

    Args:
        first: `A` or `batch_shape x A`, the lowest index of an arm equal to each arm.
        available: `batch_shape x A` booleans.
        values: Tensors of `A` numbers; each decides among arms that are equal by those before.
    """
    first, size = first.expand(available.shape), available.shape[-1]
    for value in values:
        own = torch.where(available, value, torch.inf)
        available = available & (
            own == torch.full_like(own, torch.inf).scatter_reduce(-1, first, own, "amin").gather(-1, first)
        )
    index = torch.where(available, torch.arange(size, device=available.device), size)
    return torch.full_like(index, size).scatter_reduce(-1, first, index, "amin").gather(-1, first)


def codes(points: Stored) -> Tensor:
    """A 64-bit integer hash of each point, `batch_shape x n`, or of each row of packed words. Equal points have equal hashes,
    including −0.0 and 0.0."""
    # Adding 0.0 turns −0.0 into 0.0.
    bits = points if points.dtype == torch.int64 else (points.double() + 0.0).view(torch.int64)
    code = torch.zeros(points.shape[:-1], dtype=torch.int64, device=points.device)
    for column in bits.unbind(dim=-1):
        code = (code ^ column) * _MULTIPLIER
        code = code ^ (code >> 29)
    return code


def fingerprint(hashes: Tensor, offset: int = 0) -> Tensor:
    """A 64-bit hash of arms in order, given their `codes`; `offset` is the index of the first arm. The fingerprint of all arms
    is the sum of those of consecutive pieces. Batch rows that hold the same arms have the fingerprint of one such row."""
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
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    repeated = ~new
    repeated[:-1] |= ~new[1:]
    if not bool(repeated.any()):
        return torch.arange(len(arms), device=arms.device)
    return lowest_equal(order[repeated], new.long().cumsum(0)[repeated], len(arms), lambda index: arms[index])
