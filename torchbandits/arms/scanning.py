"""First pass over streamed arms: whether they are finite, which of them are equal, and a hash of all arms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchbandits.errors import NonFiniteError
from torchbandits.sources import ArmSet, ArmSource, InMemory
from torchbandits.sources.duplicates import codes, fingerprint, first_occurrence, lowest_equal, matches
from torchbandits.sources.packed import as_stored, stored, stored_at
from torchbandits.types import Points

# Largest number of arms read together, and largest size of their features in float64, in bytes.
_STEP, _BYTES = 1 << 16, 256 << 20


@dataclass(frozen=True)
class Scan:
    """Result of a pass over the arms.

    Attributes:
        first: `A`, the lowest index of an arm equal to each arm; None if all arms differ, or are declared distinct.
        fingerprint: A 64-bit hash of the arms in order, independent of how they are stored.
    """

    first: Tensor | None
    fingerprint: int


def scan(source: ArmSource, offset: int = 0) -> Scan:
    """Make one pass over the arms, and a second one if some are equal.

    Hashes (64 bits) are sorted in place, 8 bytes per arm, and arms of equal hash are compared in full, so the result is exact.
    `offset` is the index of the first arm if the source is part of a longer one, for the fingerprint and the error message.
    Cost O(A (d + log A)), or O(A d) if the arms are declared distinct.

    Raises:
        NonFiniteError: If an arm is not finite; the message names the arm.
    """
    kept = None if source.distinct else np.empty(source.num_arms, dtype=np.int64)
    whole = torch.zeros((), dtype=torch.int64, device=source.device)
    for part, arms in stored(source, _step(source)):
        finite = torch.isfinite(arms).all(dim=-1)
        if not bool(finite.all()):
            arm = offset + part.start + int((~finite).nonzero()[0])
            raise NonFiniteError(f"arm {arm} has a NaN or infinite feature: leave it out, or give it finite ones.")
        hashes = codes(arms)
        whole = whole + fingerprint(hashes, offset + part.start)
        if kept is not None:
            kept[part] = hashes.cpu().numpy()
    first = None if kept is None else _first(source, kept)
    return Scan(first, int(whole))


def find(arms: ArmSet, points: Points) -> Tensor:
    """The lowest index of an arm equal to each point, `batch_shape x u` for `batch_shape x u x d`; −1 if there is none.

    Cost O((A + u) (d + log(A + u))), or O(A (d + log u)) for streamed arms.
    """
    if isinstance(arms, Tensor | InMemory):
        held = arms.arms if isinstance(arms, InMemory) else arms
        return matches(held.expand(*points.shape[:-2], -1, -1), points)
    return _found_in(arms, points)


def _found_in(source: ArmSource, points: Points) -> Tensor:
    flat, possible = as_stored(source, points.reshape(-1, points.shape[-1]).to(source.device))
    wanted = codes(flat).sort().values
    index, found = [], []
    for part, arms in stored(source, _step(source)) if len(flat) else ():
        hashes = codes(arms)
        hit = (wanted[torch.searchsorted(wanted, hashes).clamp_max(len(wanted) - 1)] == hashes).nonzero().squeeze(-1)
        if len(hit):
            index.append(hit + part.start)
            found.append(arms[hit].to(flat.dtype))
    if not index:
        return torch.full(points.shape[:-1], -1, device=source.device)
    arm = torch.cat(index)
    first = first_occurrence(torch.cat([*found, flat]))
    place = torch.full((len(flat),), len(arm), device=arm.device) if first is None else first[len(arm) :]
    arm = torch.where(place < len(arm), arm[place.clamp_max(len(arm) - 1)], -1)
    return (arm if possible is None else arm.masked_fill(~possible, -1)).reshape(points.shape[:-1])


def _first(source: ArmSource, hashes: np.ndarray) -> Tensor | None:
    """The lowest equal arm of each arm, given the hashes of all arms, which are sorted in place."""
    hashes.sort()
    repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    if not len(repeated):
        return None
    index, groups = [], []
    for part, arms in stored(source, _step(source)):
        own = codes(arms).cpu().numpy()
        place = np.searchsorted(repeated, own).clip(max=len(repeated) - 1)
        hit = np.flatnonzero(repeated[place] == own)
        index.append(hit + part.start)
        groups.append(place[hit])
    arm, group = (torch.from_numpy(np.concatenate(parts)) for parts in (index, groups))
    first = lowest_equal(arm, group, source.num_arms, lambda index: stored_at(source, index.to(source.device)).cpu())
    return first.to(source.device) if bool((first != torch.arange(source.num_arms)).any()) else None


def _step(source: ArmSource) -> int:
    return max(1, min(_STEP, _BYTES // (8 * source.dim)))
