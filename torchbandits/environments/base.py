"""Interface of an environment: a finite set of arms with expected rewards, and so with a known regret."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchbandits.errors import ShapeError, require
from torchbandits.sources import ArmSource
from torchbandits.sources.base import check_index

Task = Callable[[], Any]  # one evaluation: a picklable function that may run on any machine and returns the reward as a number


class Environment(ABC):
    """Arms with noisy rewards. Rewards are maximised; regret is never negative.

    Attributes:
        name: Shown in tables and figures.
        arms: `A x d`, or `batch_shape x A x d` where the rows of a batch face different arms; or a source of them.
        noise_std: Standard deviation (or sub-Gaussian constant) of the noise, reward units.
        costs: `A` or `batch_shape x A`, cost of a pull of each arm, > 0; None if unknown.
        neighbors: `A x k` integers, arms adjacent to each arm (−1 where padded), for policies that mutate; None if undefined.
        one_by_one: Whether `sample` evaluates pick by pick, so that a failed evaluation should not discard the others of its
            batch.
    """

    name: str
    arms: Tensor | ArmSource
    noise_std: float
    costs: Tensor | None = None
    neighbors: Tensor | None = None
    one_by_one: bool = False

    @property
    @abstractmethod
    def means(self) -> Tensor:
        """Expected reward of every arm, `A` or `batch_shape x A`, reward units; NaN where unknown.

        A property, or an attribute of the class: Python makes no object of a class whose `__init__` alone sets it."""

    @abstractmethod
    def sample(self, index: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Pull arms.

        Args:
            index: `batch_shape x q`, indices into the arms; −1 for a place that is not pulled.
            generators: One CPU generator per batch row (rows in row-major order); row r draws from `generators[r]` only.

        Returns:
            `batch_shape x q` rewards; NaN where the index is −1.
        """

    def tasks(self, index: Tensor, generators: Sequence[torch.Generator]) -> list[Task]:
        """Evaluations of the picks as callables for workers, for `run(executor=)`.

        All random numbers are drawn here, in the order of the picks, so a reward depends neither on the worker that evaluates
        it nor on the time. By default a task contains this environment and a seed for `sample`. An environment with known
        rewards looks them up here, and a task of an environment that calls a function contains only the function and the point.

        Args:
            index: `batch_shape x q`, as for `sample`.
            generators: As for `sample`.

        Returns:
            One picklable callable without arguments for each place that is pulled, in row-major order.
        """
        # Not reshape(-1, …), which can't tell the number of rows where there are no picks.
        flat = index.reshape(index.shape[:-1].numel(), index.shape[-1])
        found: list[Task] = []
        for row, place in (flat >= 0).nonzero().tolist():
            seed = int(torch.randint(2**62, (), generator=generators[row]))
            found.append(partial(_sampled, self, int(flat[row, place]), row, tuple(index.shape[:-1]), seed))
        return found

    @property
    def optimum(self) -> Tensor:
        """Largest expected reward, `()` or `batch_shape`."""
        means, wanted = self.means, "must be a tensor with the expected reward of each arm, NaN where unknown"
        require(isinstance(means, Tensor), f"means of an environment {wanted}, got {type(means).__name__}.", ShapeError)
        return means.max(dim=-1).values

    def expected(self, index: Tensor) -> Tensor:
        """Expected reward of the indexed arms, shaped like `index`; NaN where the index is −1."""
        check_index(index)
        means = self.means.expand(*index.shape[:-1], -1)
        values = means.gather(-1, index.clamp_min(0))
        return torch.where(index >= 0, values, torch.nan)

    def regret(self, index: Tensor) -> Tensor:
        """Optimum minus expected reward of the indexed arms, shaped like `index`, never negative, NaN where −1."""
        return self.optimum.unsqueeze(-1) - self.expected(index)


def known(rewards: Tensor, index: Tensor) -> list[Task]:
    """Tasks that return rewards which the environment has already looked up."""
    return [partial(float, reward) for reward in rewards[index >= 0].tolist()]


def _sampled(environment: Environment, arm: int, row: int, batch_shape: tuple[int, ...], seed: int) -> float:
    """One pull of one batch row, drawn from a separate generator."""
    index = torch.full(batch_shape, -1, dtype=torch.int64, device=environment.arms.device).reshape(-1)
    index[row] = arm
    generators = [torch.Generator().manual_seed(seed) for _ in range(len(index))]
    reward = environment.sample(index.reshape(*batch_shape, 1), generators)
    return float(reward.reshape(-1)[row])
