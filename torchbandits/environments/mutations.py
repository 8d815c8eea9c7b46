"""Arms that are one change away from each other, by a whole number that stands for each arm."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Codes = NDArray[np.int64]


def table_of_neighbors(codes: Codes, mutants: Iterable[Codes]) -> Tensor:
    """The arms among an arm's mutants.

    Args:
        codes: `A` distinct whole numbers, one an arm.
        mutants: Arrays of `A` whole numbers: what each arm may become. Those that are no arm, or the arm itself, are left out.

    Returns:
        `A x k` int32 indices in the order of `mutants`, padded with −1 behind; k is the largest number of neighbours.

    Cost: O(A log A) an array of mutants.
    """
    order = codes.argsort(kind="stable")
    ordered = codes[order]
    found = []
    for mutant in mutants:
        place = np.searchsorted(ordered, mutant).clip(max=len(codes) - 1)
        known = (ordered[place] == mutant) & (mutant != codes)
        found.append(np.where(known, order[place], -1).astype(np.int32))
    table = np.stack(found, axis=-1)
    front = np.argsort(table < 0, axis=-1, kind="stable")
    table = np.take_along_axis(table, front, axis=-1)
    return torch.from_numpy(np.ascontiguousarray(table[:, : max(1, int((table >= 0).sum(axis=-1).max()))]))


def mixed_radix(digits: NDArray[np.integer], levels: tuple[int, ...]) -> Codes:
    """The number whose digits (most significant first) are a row of `A x d` digits, `levels` of them at each place."""
    weights = np.append(np.cumprod(levels[:0:-1], dtype=np.int64)[::-1], 1)
    return np.asarray(digits.astype(np.int64) @ weights)


def one_digit_changes(digits: NDArray[np.integer], levels: tuple[int, ...], steps: tuple[bool, ...]) -> Iterable[Codes]:
    """Codes with one digit changed: by one where `steps` says that its levels are ordered, to any other where not."""
    codes = mixed_radix(digits, levels)
    for place, (count, ordered) in enumerate(zip(levels, steps, strict=True)):
        weight = int(np.prod(levels[place + 1 :], dtype=np.int64))
        own = digits[:, place].astype(np.int64)
        for new in (own - 1, own + 1) if ordered else [np.full_like(own, level) for level in range(count)]:
            inside = (new >= 0) & (new < count)
            yield np.where(inside, codes + (new - own) * weight, codes)
