"""Operations on selections: joining, splitting and settling them. Unmasked places come first in every batch row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchbandits.arms import find
from torchbandits.errors import StateError, require
from torchbandits.posteriors import aggregate
from torchbandits.sources import ArmSet, ArmSource, InMemory
from torchbandits.types import PickMask, Picks, Selection


def joined(first: Selection, second: Selection) -> Selection:
    """Concatenate two selections, with masked places last."""
    index = torch.cat([first.index, second.index], dim=-1)
    mask = torch.cat([first.mask, second.mask], dim=-1)
    points = torch.cat([first.points, second.points], dim=-2)
    order = _packing(mask)
    points = points.gather(-2, order.unsqueeze(-1).expand(*order.shape, points.shape[-1]))
    return Selection(points, index.gather(-1, order), mask.gather(-1, order))


def duplicate(selection: Selection) -> Selection:
    """A copy of the picks, for callers that may write to it."""
    return Selection(selection.points.clone(), selection.index.clone(), selection.mask.clone())


def same_picks(given: Any, opened: Selection) -> bool:
    """Whether `given` contains all open picks, in the same places and at the same points."""
    if not isinstance(given, Selection):
        return False
    for one, own in ((given.index, opened.index), (given.mask, opened.mask), (given.points, opened.points)):
        known = isinstance(one, Tensor) and one.dtype == own.dtype and one.device == own.device
        if not known or not torch.equal(one, own):
            return False
    return True


def marked(selection: Selection, kept: Tensor) -> Selection:
    """The marked picks of a selection, in their places; all other places are masked."""
    kept = selection.mask & kept
    return Selection(selection.points, torch.where(kept, selection.index, -1), kept)


def within(opened: Selection, kept: PickMask, points: Callable[[Tensor], Tensor]) -> Selection | None:
    """The marked picks of a selection, packed to the left; None if there are none."""
    kept = opened.mask & kept
    if not bool(kept.any()):
        return None
    order = _packing(kept)
    left = kept.gather(-1, order)
    index = torch.where(left, opened.index.gather(-1, order), -1)
    return Selection(points(index), index, left)


def carried(opened: Selection, arms: ArmSet, batch_shape: torch.Size) -> Selection:
    """An open selection with the indices of its points among other arms. An index whose arm is the same is kept, so that of
    equal arms the same one stays open.

    Raises:
        StateError: If one of its points is not among these arms.
    """
    index = _among(arms, opened, batch_shape)
    gone = int((opened.mask & (index < 0)).sum())
    require(gone == 0, f"{gone} picks are open at arms that are not among the new ones: tell or forget them first.", StateError)
    return Selection(opened.points, index, opened.mask)


def renumbered(selection: Any, arms: ArmSet, batch_shape: torch.Size) -> Any:
    """A selection with the indices that its points have among the arms of now: it may have been made before these arms took the
    place of others. Whatever is not a selection of such points is returned as it is.

    Raises:
        StateError: If one of its points is not among these arms.
    """
    if not isinstance(selection, Selection):
        return selection
    index, points, mask = selection.index, selection.points, selection.mask
    known = all(isinstance(part, Tensor) and part.device == arms.device for part in (index, points, mask))
    known = known and mask.dtype == torch.bool and index.dtype == torch.int64 and points.dtype == arms.dtype
    if not known or not (index.shape == mask.shape == points.shape[:-1] == (*batch_shape, index.shape[-1])):
        return selection
    index = _among(arms, selection, batch_shape)
    gone = int((mask & (index < 0)).sum())
    message = f"{gone} picks of this selection are at arms that were removed since: pass their points to observe()."
    require(gone == 0, message, StateError)
    return Selection(points, index, mask)


def _among(arms: ArmSet, selection: Selection, batch_shape: torch.Size) -> Picks:
    """The indices of the points of a selection among these arms, −1 where there is none and where masked. An index whose arm is
    the same is kept."""
    points = selection.points.expand(*batch_shape, -1, -1)
    slot = selection.index.clamp(0, arms.shape[-2] - 1)
    there = (arms if isinstance(arms, ArmSource) else InMemory(arms)).points(slot)
    same = (slot == selection.index) & (there == points).all(dim=-1)
    if bool((same | ~selection.mask).all()):
        return torch.where(selection.mask, selection.index, -1)
    index = find(arms, points).masked_fill(~selection.mask, -1)
    return torch.where(same, selection.index, index)


def without(
    opened: Selection | None, index: Picks, mask: PickMask, points: Callable[[Tensor], Tensor]
) -> tuple[Selection | None, Tensor]:
    """An open selection without some picks, and the number of these picks that were not open.

    Args:
        opened: The open picks, or None.
        index: `batch_shape x q` arms to take out, with their mask; an arm that is listed twice is taken out twice.
        points: Features of arms by index.

    Returns:
        The remaining picks (None if there are none), and the numbers of picks that were not open, `batch_shape`.
    """
    told = mask.sum(dim=-1).double()
    if opened is None:
        return None, told
    if opened.index.shape == index.shape and bool(((opened.index == index) & (opened.mask == mask)).all()):
        return None, torch.zeros_like(told)
    distinct, counts = aggregate(index, mask)
    removed = torch.zeros_like(opened.mask)
    for arm, count in zip(distinct.unbind(dim=-1), counts.unbind(dim=-1), strict=True):
        same = (opened.index == arm.unsqueeze(-1)) & opened.mask
        removed |= same & (same.long().cumsum(dim=-1) <= count.unsqueeze(-1))
    unasked = told - removed.sum(dim=-1)
    return within(opened, ~removed, points), unasked


def answered(opened: Selection, index: Picks, mask: PickMask, entry: Callable[[Tensor], Tensor]) -> Picks:
    """Picks that were evaluated, `batch_shape x q`, each replaced by the open pick that it answers, if there is one.

    Args:
        opened: The open picks.
        index, mask: The picks that were evaluated.
        entry: Function from indices to the lowest index of an arm equal to each.
    """
    if bool((entry(opened.index) == opened.index).all()):
        return entry(index)
    wide, found = opened.index.shape[-1], torch.where(mask, index, -1)
    both = torch.cat([opened.index.masked_fill(~opened.mask, -1), found], dim=-1)
    rows = []
    for arms, entries in zip(*(part.reshape(-1, part.shape[-1]).tolist() for part in (both, entry(both))), strict=True):
        known, waiting, answers = dict(zip(arms, entries, strict=True)), [arm for arm in arms[:wide] if arm >= 0], []
        for arm in arms[wide:]:
            other = answer(waiting, arm, known.__getitem__)
            answers.append(arm if other is None else other)
            if other is not None:
                waiting.remove(other)
        rows.append(answers)
    return torch.tensor(rows, device=index.device).reshape(index.shape)


def answer(waiting: Sequence[int], arm: int, entry: Callable[[int], int]) -> int | None:
    """The open pick that an evaluation of an arm answers: one of the same arm, or else the first one of an equal arm; None
    where there is none."""
    if arm < 0 or arm in waiting:
        return arm if arm >= 0 else None
    return next((other for other in waiting if entry(other) == entry(arm)), None)


def _packing(mask: Tensor) -> Tensor:
    """Unmasked places of each row, in order, padded to the length of the longest row."""
    return (~mask).byte().argsort(dim=-1, stable=True)[..., : int(mask.sum(dim=-1).max())]
