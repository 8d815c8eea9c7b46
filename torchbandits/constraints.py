"""Constraints within one batch: `bandit.ask(exactly=96, within=[constraints.Distinct(), constraints.Same(temperature)])`.

The policy selects each pick among the arms that the constraints allow, with all earlier picks as pending. If the value that
`Same` or `Groups` has chosen leaves too few arms for the other constraints, the batch is selected again without that value.

Arms with equal features are one arm to a policy, but may have different labels and values. The pick is the first of them that
is on offer and allowed; with `Total` the one of the smallest value. If this choice leaves too few arms for an `AtMost`, the
batch is selected again, and of equal arms the one is picked whose label the fewest arms have.

This search is not exhaustive: the error that no batch was found that meets the constraints does not prove that there is none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from torchbandits.arms import stand_ins
from torchbandits.checks import as_tensor, check_instance, check_whole, is_finite
from torchbandits.errors import ArgumentError, NonFiniteError, ShapeError, require

__all__ = ["AtMost", "Constraint", "Distinct", "Groups", "Same", "Total"]


class Constraint(ABC):
    """A constraint on the picks of one batch. Subclasses implement `allowed`."""

    @abstractmethod
    def allowed(self, picks: Tensor, offered: Tensor, room: int) -> Tensor:
        """The arms that may be picked next, `batch_shape x A` booleans.

        Args:
            picks: `batch_shape x j`, the arms picked so far, of exact duplicates the one that was picked.
            offered: `batch_shape x A`, arms on offer.
            room: Picks that are still to be made of distinct arms; 1 if an arm may be picked again.
        """

    def instead(self, picks: Tensor, offered: Tensor) -> Tensor:
        """The arms to exclude when no arm was allowed after these picks and the batch is selected again: the arms whose choice
        made the batch impossible to complete. By default there are none, and an error is raised.

        Args:
            picks: `batch_shape x j`, the picks of the batch so far, without picks that were open before.
            offered: `batch_shape x A`, as in `allowed`.

        Returns:
            `batch_shape x A` booleans.
        """
        return torch.zeros_like(offered)

    def for_batch(self, count: int) -> Constraint:
        """The constraint for a batch of `count` picks of each row, picks that were open before included. By default the
        constraint itself; one that depends on the number of picks returns a copy that knows it."""
        return self


def counts_of(picks: Tensor, size: int) -> Tensor:
    """Number of occurrences of each of 0 … size − 1 among the picks, `batch_shape x size`."""
    kept = (picks >= 0).long()
    zeros = torch.zeros(*picks.shape[:-1], size, dtype=torch.int64, device=picks.device)
    return zeros.scatter_add(-1, picks.clamp_min(0), kept)


@dataclass(frozen=True)
class Distinct(Constraint):
    """At most one pull of each arm. Arms with equal features count as one arm."""

    def allowed(self, picks: Tensor, offered: Tensor, room: int) -> Tensor:
        """The arms that were not picked yet."""
        return counts_of(picks, offered.shape[-1]) == 0


@dataclass(frozen=True, eq=False)
class _Labelled(Constraint):
    labels: Tensor | str

    def __post_init__(self) -> None:
        if isinstance(self.labels, str):
            require(bool(self.labels), "labels must be one value per arm, or the name of a column, got an empty text.")
            return
        labels = as_tensor("labels", self.labels)
        require(
            labels.dim() == 1 and labels.numel() > 0,
            f"labels must be one value per arm, got {tuple(labels.shape)}.",
            ShapeError,
        )
        require(not bool(labels.isnan().any()), "labels must not be NaN: give every arm a label.")
        # Ranks of the distinct values, so that values of any type can be counted.
        object.__setattr__(self, "labels", labels.unique(return_inverse=True)[1])

    def _ranks(self, offered: Tensor) -> Tensor:
        """The labels as integers from 0, `A`. Raises `ShapeError` unless there is one label per arm."""
        size = offered.shape[-1]
        assert isinstance(self.labels, Tensor)
        require(len(self.labels) == size, f"labels must be one value per arm, {size}, got {len(self.labels)}.", ShapeError)
        return self.labels.to(offered.device)

    def _used(self, picks: Tensor, ranks: Tensor) -> Tensor:
        """Number of picks of each label, `batch_shape x labels`."""
        return counts_of(torch.where(picks >= 0, ranks[picks.clamp_min(0)], -1), int(ranks.max()) + 1)


@dataclass(frozen=True, eq=False)
class Same(_Labelled):
    """All picks of a batch have the same value of a column, such as the temperature of a plate.

    The first pick determines the value. If picks must be distinct, only values of enough arms on offer are considered.

    Args:
        labels: `A` values, one for each arm, compared for equality; for a `Campaign`, the name of a column of its table.
    """

    def allowed(self, picks: Tensor, offered: Tensor, room: int) -> Tensor:
        """The arms with the label of the picks; before the first pick, the arms whose label enough arms have."""
        ranks = self._ranks(offered)
        used = self._used(picks, ranks) > 0
        one = torch.zeros(used.shape, dtype=torch.int64, device=used.device)
        there = one.scatter_add(-1, ranks.expand(offered.shape), offered.long()) >= room
        fits = torch.where(used.any(dim=-1, keepdim=True), used, there)
        return fits.gather(-1, ranks.expand(offered.shape))

    def instead(self, picks: Tensor, offered: Tensor) -> Tensor:
        """The arms with the label of the picks."""
        ranks = self._ranks(offered)
        return (self._used(picks, ranks) > 0).gather(-1, ranks.expand(offered.shape))


@dataclass(frozen=True, eq=False)
class AtMost(_Labelled):
    """At most `count` picks of a batch have the same value of a column, such as the supplier of a compound.

    Args:
        labels: `A` values, one for each arm, compared for equality; for a `Campaign`, the name of a column of its table.
        count: Largest number of picks with one value.
    """

    count: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("count", self.count)

    def allowed(self, picks: Tensor, offered: Tensor, room: int) -> Tensor:
        """The arms whose label has fewer picks than allowed."""
        ranks = self._ranks(offered)
        return (self._used(picks, ranks) < self.count).gather(-1, ranks.expand(offered.shape))


@dataclass(frozen=True, eq=False)
class Groups(_Labelled):
    """Picks come in groups of `size` with the same value of a column, such as four reactions in each solvent.

    A group is filled before the next one begins, and each group has a value that no earlier pick has. If the number of picks is
    not a multiple of the size, the last group is smaller, and `ask(more=)` continues it.

    Args:
        labels: `A` values, one for each arm, compared for equality; for a `Campaign`, the name of a column of its table.
        size: Picks of each group.
    """

    size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("size", self.size)

    def allowed(self, picks: Tensor, offered: Tensor, room: int) -> Tensor:
        """The arms with the label of the incomplete group; if there is none, the arms with a new label that enough arms
        have."""
        ranks = self._ranks(offered)
        used = self._used(picks, ranks)
        begun = (used > 0) & (used < self.size)
        there = torch.zeros_like(used).scatter_add(-1, ranks.expand(offered.shape), offered.long())
        fits = torch.where(begun.any(dim=-1, keepdim=True), begun, (used == 0) & (there >= min(self.size, room)))
        return fits.gather(-1, ranks.expand(offered.shape))

    def instead(self, picks: Tensor, offered: Tensor) -> Tensor:
        """The arms with the label of the last pick."""
        ranks = self._ranks(offered)
        return (self._used(picks[..., -1:], ranks) > 0).gather(-1, ranks.expand(offered.shape))


@dataclass(frozen=True, eq=False)
class Total(Constraint):
    """The sum of a column over the picks of a batch stays within a limit, such as the price of a plate.

    Enough is kept for the remaining picks: an arm is allowed only if its value, the values of the picks so far and the smallest
    values that the remaining picks can have are within the limit together. Arms that `Distinct`, `Same` or `AtMost` exclude are
    not counted on. A batch may still come to an end early; it is then selected again without the arms of the largest values,
    and at last as many of its picks are kept as the arms of the smallest values can complete. Alone, and with `Distinct`, one
    `Same` and one `AtMost`, a batch is therefore filled wherever this is possible (if no two arms are equal); with other
    constraints it may be refused although there is one.

    Picks are made one after another, whatever the sum still has to buy: under a tight limit the first picks may take nearly all
    of it, and the last ones are among the arms of the smallest values. Scores per cost (`per_cost`, `cost=` of a `Campaign`)
    spread it.

    Args:
        values: `A` values, one for each arm, in any unit, finite; for a `Campaign`, the name of a column of numbers.
        at_most: Largest sum, in the unit of the values. A sum may exceed it by rounding, a part in 10⁹.
    """

    values: Tensor | str
    at_most: float
    _count: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        require(is_finite(self.at_most), f"at_most must be a finite number, got {self.at_most!r}.", NonFiniteError)
        object.__setattr__(self, "at_most", float(self.at_most))
        if isinstance(self.values, str):
            require(bool(self.values), "values must be one number per arm, or the name of a column, got an empty text.")
            return
        values = as_tensor("values", self.values, torch.float64)
        require(
            values.dim() == 1 and values.numel() > 0,
            f"values must be one number per arm, got {tuple(values.shape)}.",
            ShapeError,
        )
        message = "values must be finite: give every arm a number; one above at_most excludes an arm."
        require(bool(values.isfinite().all()), message, NonFiniteError)
        object.__setattr__(self, "values", values)

    def for_batch(self, count: int) -> Total:
        """A copy that keeps enough for the remaining ones of `count` picks."""
        sized = replace(self)
        object.__setattr__(sized, "_count", count)
        return sized

    def allowed(self, picks: Tensor, offered: Tensor, room: int) -> Tensor:
        """The arms with which the remaining picks can stay within the limit. Cost: O(A)."""
        values, room_left = self._of(offered), self._limit() - self._spent(picks)
        left = self._left(picks, offered, room)
        remaining = room if self._count is None else max(self._count - picks.shape[-1], 1)
        if room == 1:
            reserve = (remaining - 1) * left.amin(dim=-1, keepdim=True)
            return values + reserve <= room_left
        if remaining > left.shape[-1]:
            return torch.zeros_like(offered)
        # An arm takes the place of the last of the smallest values, unless it is among them.
        smallest = left.topk(remaining, dim=-1, largest=False).values
        return smallest[..., :-1].sum(dim=-1, keepdim=True) + torch.maximum(values, smallest[..., -1:]) <= room_left

    def instead(self, picks: Tensor, offered: Tensor) -> Tensor:
        """The arms whose values are in the upper half of the range from the smallest value on offer to the largest one of the
        picks, or above it."""
        values = self._of(offered)
        if not picks.shape[-1]:
            return torch.zeros_like(offered)
        largest = torch.where(picks >= 0, values[picks.clamp_min(0)], -torch.inf).amax(dim=-1, keepdim=True)
        least = torch.where(offered, values, torch.inf).amin(dim=-1, keepdim=True)
        return offered & (values > (least + largest) / 2)

    def _of(self, offered: Tensor) -> Tensor:
        """The values, `A`, on the device of `offered`. Raises `ShapeError` unless there is one per arm."""
        size = offered.shape[-1]
        assert isinstance(self.values, Tensor)
        require(len(self.values) == size, f"values must be one number per arm, {size}, got {len(self.values)}.", ShapeError)
        return self.values.to(offered.device)

    def _left(self, picks: Tensor, offered: Tensor, room: int) -> Tensor:
        """The values of the arms on offer, infinite for others; with room for several, without those that were picked."""
        left = offered & (counts_of(picks, offered.shape[-1]) == 0) if room > 1 else offered
        return torch.where(left, self._of(offered), torch.inf)

    def _spent(self, picks: Tensor) -> Tensor:
        """The sum of the values of the picks, `batch_shape x 1`."""
        assert isinstance(self.values, Tensor)
        values = self.values.to(picks.device)
        return torch.where(picks >= 0, values[picks.clamp_min(0)], 0.0).sum(dim=-1, keepdim=True)

    def _limit(self) -> float:
        return self.at_most + 1e-9 * abs(self.at_most)


def check_possible(
    total: Total, picks: Tensor, offered: Tensor, count: int, *, once: bool, first: Tensor | None = None
) -> None:
    """Refuse a number of further picks whose smallest values exceed the limit: names the number that does not.

    Args:
        total: The limit.
        picks: `batch_shape x j`, the open picks.
        offered: `batch_shape x A`, arms on offer.
        count: Number of further picks of each row.
        once: Whether no arm may be picked again.
        first: As for `allowed_by`.
    """
    if once and first is not None:
        offered = offered & ~_equal_to(first, picks, offered)
    left = total._left(picks, _cheapest(total, offered, first), 2 if once else 1)
    if once:
        smallest = left.topk(min(count, left.shape[-1]), dim=-1, largest=False).values
    else:
        smallest = left.amin(dim=-1, keepdim=True).expand(*left.shape[:-1], count)
    # Rows with too few arms are refused elsewhere.
    sums = smallest.masked_fill(smallest.isinf(), 0.0).cumsum(dim=-1) + total._spent(picks)
    fits = sums <= total._limit()
    if bool(fits[..., -1].all()):
        return
    most = int((fits * torch.arange(1, fits.shape[-1] + 1, device=fits.device)).amax(dim=-1).min())
    least = float(sums[..., -1].max())
    beside, more = "", ""
    if bool((picks >= 0).any()):
        beside, more = f" beside the open ones, whose sum is {float(total._spent(picks).max()):,.10g},", " more"
    allowed = f"Total allows a sum of at most {total.at_most:,.10g}"
    raise ArgumentError(
        f"{allowed}, and {count:,} picks{more}{beside} have at least {least:,.10g}: at most {most:,} can be had, so ask for "
        "fewer, or raise the limit."
        if most
        else f"{allowed}, and not even one pick{beside} keeps to it: raise the limit."
    )


def _equal_to(first: Tensor, picks: Tensor, like: Tensor) -> Tensor:
    """The arms that are equal to one of the picks, `batch_shape x A` booleans of the shape of `like`. `first` is the lowest
    index of an arm equal to each arm, `A` or `batch_shape x A`."""
    own = first.expand(like.shape)
    entries = torch.where(picks >= 0, own.gather(-1, picks.clamp_min(0)), -1)
    return (counts_of(entries, like.shape[-1]) > 0).gather(-1, own)


def allowed_by(
    constraints: Sequence[Constraint],
    picks: Tensor,
    offered: Tensor,
    left: Tensor,
    room: int,
    first: Tensor | None = None,
) -> Tensor:
    """Those arms of `left`, `batch_shape x A`, that all constraints allow.

    Args:
        constraints: The constraints.
        picks, offered, room: As for `Constraint.allowed`.
        left: Arms that may be allowed.
        first: The lowest index of an arm equal to each arm, `A` or `batch_shape x A`; None if all arms differ.
    """
    later = left
    for constraint in sorted(constraints, key=lambda one: isinstance(one, Total)):
        if isinstance(constraint, Total):
            left = left & _affordable(constraint, constraints, picks, later, room, first)
            continue
        fits = constraint.allowed(picks, offered, room)
        if isinstance(constraint, Distinct) and first is not None:
            fits = ~_equal_to(first, picks, offered)
        left = left & fits
        # A sum counts on the arms that later picks may have. Other constraints, such as `Groups`, may allow an arm later.
        if isinstance(constraint, Distinct | Same | AtMost):
            later = later & fits
    return left


def values_of_sums(constraints: Sequence[Constraint], offered: Tensor) -> list[Tensor]:
    """The numbers of which the sum is limited, `A` for each limit."""
    return [total._of(offered) for total in constraints if isinstance(total, Total)]


def frequencies(constraints: Sequence[Constraint], offered: Tensor) -> list[Tensor]:
    """The number of arms on offer that have the label of each arm, `batch_shape x A` for each `AtMost`."""
    found = []
    for most in constraints:
        if isinstance(most, AtMost):
            own = most._ranks(offered).expand(offered.shape)
            zeros = torch.zeros(*offered.shape[:-1], int(own.max()) + 1, dtype=torch.float64, device=offered.device)
            found.append(zeros.scatter_add(-1, own, offered.double()).gather(-1, own))
    return found


def _cheapest(total: Total, offered: Tensor, first: Tensor | None) -> Tensor:
    """Those of the arms on offer, `batch_shape x A`, that count for the smallest sums: of equal arms the one of the smallest
    value."""
    if first is None:
        return offered
    return offered & (stand_ins(first, offered, [total._of(offered)]) == torch.arange(offered.shape[-1], device=offered.device))


def _affordable(
    total: Total, constraints: Sequence[Constraint], picks: Tensor, offered: Tensor, room: int, first: Tensor | None
) -> Tensor:
    """The arms that a limit on a sum allows, `batch_shape x A`. Before the first pick, each value of a `Same` has its own
    smallest values."""
    same = next((constraint for constraint in constraints if isinstance(constraint, Same)), None)
    if same is None or bool((picks >= 0).any(dim=-1).all()):
        return total.allowed(picks, _cheapest(total, offered, first), room)
    ranks = same._ranks(offered)
    found = torch.zeros_like(offered)
    for label in ranks[offered.reshape(-1, len(ranks)).any(dim=0)].unique():
        own = offered & (ranks == label)
        found |= own & total.allowed(picks, _cheapest(total, own, first), room)
    return found


def given_up(
    constraints: Sequence[Constraint],
    opened: Tensor,
    picks: Tensor,
    offered: Tensor,
    left: Tensor,
    first: Tensor | None = None,
) -> Tensor:
    """The arms to exclude, `batch_shape x A`, where no arm of `left` was allowed after these picks, beside the open ones: where
    only a sum was too large, those of large values, and otherwise those that the other constraints name. `first` is as for
    `allowed_by`."""
    totals = [constraint for constraint in constraints if isinstance(constraint, Total)]
    others = [constraint for constraint in constraints if not isinstance(constraint, Total)]
    named = torch.zeros_like(offered)
    for constraint in others:
        named |= constraint.instead(picks, offered)
    if not totals:
        return named
    dear = torch.zeros_like(offered)
    for total in totals:
        dear |= total.instead(picks, left)
    whole = torch.cat([opened, picks], dim=-1)
    others_allow = allowed_by(others, whole, offered, left, 1, first).any(dim=-1, keepdim=True)
    return torch.where(others_allow & (dear & left).any(dim=-1, keepdim=True), dear, named)


def check_within(within: Any, cells_of: Callable[[str, bool], Tensor] | None = None) -> tuple[Constraint, ...]:
    """One constraint or several, as a tuple.

    Args:
        within: As given.
        cells_of: Function from the name of a column, and whether its cells are numbers, to the numbers or labels of all arms;
            None if there is no table.
    """
    given = tuple(within) if isinstance(within, Sequence) and not isinstance(within, str) else (within,)
    found = []
    for constraint in given:
        check_instance(
            "within",
            constraint,
            Constraint,
            "one of torchbandits.constraints, such as constraints.Distinct(), your own subclass of Constraint, or a list",
        )
        name = constraint.values if isinstance(constraint, Total) else getattr(constraint, "labels", None)
        if isinstance(constraint, _Labelled | Total) and isinstance(name, str):
            message = f"within names the column {name!r}, and arms have none: pass one value per arm, or make a Campaign."
            require(cells_of is not None, message)
            assert cells_of is not None
            if isinstance(constraint, Total):
                constraint = replace(constraint, values=cells_of(name, True))
            else:
                constraint = replace(constraint, labels=cells_of(name, False))
        found.append(constraint)
    return tuple(found)
