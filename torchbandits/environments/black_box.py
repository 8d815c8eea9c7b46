"""Arms whose reward is the value of a function: an experiment, a simulation, a training run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits.checks import check_flag, check_function, check_text, is_finite
from torchbandits.environments.base import Environment, Task
from torchbandits.environments.noise import check_generators, check_index
from torchbandits.environments.tables import check_arms, check_costs
from torchbandits.errors import require
from torchbandits.sources import ArmSource, InMemory
from torchbandits.types import ArrayLike


class BlackBox(Environment):
    """Arms whose reward is the return value of a function, one call per pull. The optimum is unknown, so regret is NaN.

    Args:
        function: Takes one arm, `d` features in the arms' dtype (and the keyword `seed`, see `seeded`), and returns a number.
            For processes it must be importable by name, so define it at the top level of a module; Dask accepts lambdas too.
        arms: `A x d` or `batch_shape x A x d` floating-point features, or a source of them.
        noise_std: Standard deviation of the noise in the function's values, reward units; NaN if unknown. No noise is added.
        name: Shown in tables and figures.
        seeded: Whether the function takes `seed=`, an integer from 0 to 2⁶² − 1. Seeds are drawn in the order of the picks, one
            per pull, so the reward of a random function depends neither on the worker nor on the time of its evaluation.
        costs: `A` or `batch_shape x A`, cost of a pull of each arm (seconds, money), > 0; None if unknown.

    Raises:
        ShapeError: If there are no arms or features.
        NonFiniteError: If an arm is NaN or infinite.
        ArgumentError: If `function` is not callable or `noise_std` negative.
    """

    one_by_one = True

    def __init__(
        self,
        function: Callable[..., float],
        arms: ArrayLike | ArmSource,
        noise_std: float = math.nan,
        *,
        name: str = "black box",
        seeded: bool = False,
        costs: ArrayLike | None = None,
    ) -> None:
        check_function("function", function)
        unknown = isinstance(noise_std, float) and math.isnan(noise_std)
        good = unknown or (is_finite(noise_std) and noise_std >= 0)
        require(good, f"noise_std must be finite and ≥ 0, or NaN, got {noise_std}.")
        check_text("name", name)
        check_flag("seeded", seeded)
        arms = check_arms(arms)
        self.function = function
        self.arms = arms
        self.noise_std = float(noise_std)
        self.name = name
        self.seeded = seeded
        self.costs = None if costs is None else check_costs(costs, arms)

    @property
    def means(self) -> Tensor:
        """NaN for every arm, `A` or `batch_shape x A`, since expected rewards are unknown."""
        return torch.full((), torch.nan, dtype=self.arms.dtype, device=self.arms.device).expand(self.arms.shape[:-1])

    def sample(self, index: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Call the function once per pick, in this process and in order: `batch_shape x q` rewards, NaN where −1."""
        check_index(self, index)
        rewards = torch.full(index.shape, torch.nan, dtype=torch.float64, device=index.device)
        values = [float(task()) for task in self.tasks(index, generators)]
        rewards[index >= 0] = torch.tensor(values, dtype=torch.float64, device=index.device)
        return rewards

    def tasks(self, index: Tensor, generators: Sequence[torch.Generator]) -> list[Task]:
        """One call of the function per pull, in row-major order; each task contains the function and one point."""
        check_index(self, index)
        check_generators(generators)
        mask = index >= 0
        counts = mask.reshape(index.shape[:-1].numel(), index.shape[-1]).sum(dim=-1).tolist()
        pairs = zip(counts, generators, strict=True)
        seeds = torch.cat([torch.randint(2**62, (count,), generator=generator) for count, generator in pairs]).tolist()
        arms = self.arms if isinstance(self.arms, ArmSource) else InMemory(self.arms)
        # Arrays, because each tensor sent to another process takes shared memory and a file descriptor.
        points = arms.points(index.clamp_min(0))[mask].cpu().numpy()
        ask = partial(_call, self.function, self.seeded)
        return [partial(ask, point.copy(), seed) for point, seed in zip(points, seeds, strict=True)]

    def __repr__(self) -> str:
        """Name and sizes."""
        return f"BlackBox({self.name!r}, arms={tuple(self.arms.shape)}, seeded={self.seeded})"


def _call(function: Callable[..., float], seeded: bool, point: NDArray[Any], seed: int) -> Any:
    """Value of the function at one point."""
    features = torch.from_numpy(np.array(point))
    return function(features, seed=seed) if seeded else function(features)
