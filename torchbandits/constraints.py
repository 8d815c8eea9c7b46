"""Constraints within one batch: `bandit.ask(exactly=96, within=[constraints.Distinct(), constraints.Same(temperature)])`.

The policy selects each pick among the arms that the constraints allow, with all earlier picks as pending. If the value that
`Same` or `Groups` has chosen leaves too few arms for the other constraints, the batch is selected again without that value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchbandits.checks import as_tensor, check_instance, check_whole
from torchbandits.errors import ShapeError, require

__all__ = ["AtMost", "Constraint", "Distinct", "Groups", "Same"]


class Constraint(ABC):
    """A constraint on the picks of one batch. Subclasses implement `allowed`."""

    @abstractmethod
    def allowed(self, picks: Tensor, offered: Tensor, room: int) -> Tensor:
        """The arms that may be picked next, `batch_shape x A` booleans.

        Args:
            picks: `batch_shape x j`, the arms picked so far. Exact duplicates are picked by their lowest index.
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


def counts_of(picks: Tensor, size: int) -> Tensor:
    """Number of occurrences of each of 0 … size − 1 among the picks, `batch_shape x size`."""
    kept = (picks >= 0).long()
    zeros = torch.zeros(*picks.shape[:-1], size, dtype=torch.int64, device=picks.device)
    return zeros.scatter_add(-1, picks.clamp_min(0), kept)


@dataclass(frozen=True)
class Distinct(Constraint):
    """At most one pull of each arm."""

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


def check_within(within: Any, labels_of: Callable[[str], Tensor] | None = None) -> tuple[Constraint, ...]:
    """One constraint or several, as a tuple.

    Args:
        within: As given.
        labels_of: Function from the name of a column to the labels of all arms; None if there is no table.
    """
    given = tuple(within) if isinstance(within, Sequence) and not isinstance(within, str) else (within,)
    found = []
    for constraint in given:
        check_instance(
            "within", constraint, Constraint, "one of torchbandits.constraints, such as constraints.Distinct(), or a list"
        )
        name = getattr(constraint, "labels", None)
        if isinstance(constraint, _Labelled) and isinstance(name, str):
            message = f"within names the column {name!r}, and arms have none: pass one value per arm, or make a Campaign."
            require(labels_of is not None, message)
            assert labels_of is not None
            constraint = replace(constraint, labels=labels_of(name))
        found.append(constraint)
    return tuple(found)
