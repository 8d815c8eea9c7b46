"""Who evaluates the picks of a run: the environment here, or workers through an executor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.environments.base import Environment
from torchbandits.parallel import Evaluations
from torchbandits.selections import marked
from torchbandits.types import Selection


@dataclass(frozen=True)
class Answers:
    """What came: `selection` with `rewards` `batch_shape x q` for those that may be told, `failed` for those that were given
    up (None for none), and the error that ends the run, where there is one."""

    selection: Selection
    rewards: Tensor
    failed: Selection | None = None
    error: BaseException | None = None


class Evaluator(ABC):
    """Takes picks on, and returns their rewards."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Picks that were taken on, places of masked ones included, and are not settled."""

    @abstractmethod
    def submit(self, selection: Selection) -> None:
        """Take picks on."""

    @abstractmethod
    def settle(self) -> Answers:
        """Wait for what is to be told next."""

    def cancel(self) -> None:
        """Want no more of what was taken on."""
        return


class Here(Evaluator):
    """The environment's own samples, a batch at a time."""

    def __init__(self, environment: Environment, noise: Sequence[torch.Generator]) -> None:
        self._environment, self._noise = environment, noise
        self._selection: Selection | None = None

    @property
    def waiting(self) -> int:
        """Places of the batch."""
        return 0 if self._selection is None else len(self._selection)

    def submit(self, selection: Selection) -> None:
        """Take a batch on."""
        self._selection = selection

    def settle(self) -> Answers:
        """Sample the batch; what the environment raises ends the run."""
        assert self._selection is not None
        selection, self._selection = self._selection, None
        try:
            return Answers(selection, self._environment.sample(selection.index, self._noise))
        except Exception as error:
            nothing = torch.full_like(selection.index, torch.nan, dtype=torch.float64)
            return Answers(marked(selection, torch.zeros_like(selection.mask)), nothing, None, error)


class Elsewhere(Evaluator):
    """One task a pick, settled by an executor.

    Args:
        environment: Gives the tasks.
        noise: A generator a batch row.
        evaluations: Of the executor.
        whole: Whether batches are told whole; else what has come is told, for one batch row.
    """

    def __init__(
        self, environment: Environment, noise: Sequence[torch.Generator], evaluations: Evaluations, *, whole: bool
    ) -> None:
        self._environment, self._noise, self._evaluations, self._whole = environment, noise, evaluations, whole
        self._opened: Selection | None = None  # a batch that is told whole
        self._picks: dict[int, Selection] = {}  # picks that are told as they come, by number
        self._first = 0  # number of the first evaluation of the batch

    @property
    def waiting(self) -> int:
        """Picks that are not settled."""
        return len(self._evaluations)

    def submit(self, selection: Selection) -> None:
        """Hand the picks to the executor."""
        numbers = self._evaluations.submit(self._environment.tasks(selection.index, self._noise))
        self._opened, self._first = selection, numbers.start
        if not self._whole:
            places = selection.mask.reshape(-1).nonzero().reshape(-1).tolist()
            self._picks |= {n: selection[place : place + 1] for n, place in zip(numbers, places, strict=True)}

    def settle(self) -> Answers:
        """Wait for the batch or, unless batches are told whole, for one pick at least."""
        outcomes = self._evaluations.settle(everything=self._whole)
        selection = self._batch() if self._whole else self._part([outcome.number for outcome in outcomes])
        device = selection.index.device
        places = torch.arange(len(outcomes), device=device)
        if self._whole:
            places = torch.tensor([outcome.number - self._first for outcome in outcomes], dtype=torch.int64, device=device)
        values = torch.tensor([outcome.reward for outcome in outcomes], dtype=torch.float64, device=device)
        lost = torch.tensor([outcome.error is not None for outcome in outcomes], dtype=torch.bool, device=device)
        where = selection.mask.reshape(-1).nonzero().reshape(-1)[places]  # tasks go row by row, through the places that count
        rewards = torch.full_like(selection.index, torch.nan, dtype=torch.float64)
        came, failed = torch.zeros_like(selection.mask), torch.zeros_like(selection.mask)
        rewards.view(-1)[where], came.view(-1)[where], failed.view(-1)[where] = values, ~lost, lost
        error = self._evaluations.broken
        if error is None and not self._evaluations.patient:
            error = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        if error is None and bool((came == selection.mask).all()):
            return Answers(selection, rewards)
        given_up = marked(selection, failed) if bool(failed.any()) else None
        return Answers(marked(selection, came), rewards, given_up, error)

    def cancel(self) -> None:
        """Cancel what has not started, and want no more of what runs."""
        self._evaluations.cancel()

    def _batch(self) -> Selection:
        assert self._opened is not None
        return self._opened

    def _part(self, numbers: Sequence[int]) -> Selection:
        """These picks as one selection."""
        assert self._opened is not None
        if not numbers:
            return self._opened[:0]
        picks = [self._picks.pop(number) for number in numbers]
        points = torch.cat([pick.points for pick in picks], dim=-2)
        index, mask = (torch.cat([getattr(pick, name) for pick in picks], dim=-1) for name in ("index", "mask"))
        return Selection(points, index, mask)
