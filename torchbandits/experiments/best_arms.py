"""The best arms as the rewards have it, without a posterior."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class BestArm(NamedTuple):
    """An arm, its pulls, the mean of its rewards and that mean's standard error (NaN where unknown), reward units."""

    arm: int
    pulls: int
    mean: float
    error: float


def best_arms(arms: NDArray[Any], rewards: NDArray[Any], count: int) -> list[BestArm]:
    """The arms with the highest mean reward less its standard error σ/√n, best first.

    σ is the standard deviation of all rewards about the means of their arms; it is unknown, and means alone count, until an
    arm was pulled twice.

    Args:
        arms: One a pull, integers.
        rewards: Alike, reward units.
        count: Most arms.

    Cost: O(n log n).
    """
    index, where, pulls = np.unique(arms, return_inverse=True, return_counts=True)
    mean = np.bincount(where, rewards) / pulls
    degrees = len(rewards) - len(index)
    std = float(np.sqrt(np.square(rewards - mean[where]).sum() / degrees)) if degrees else float("nan")
    error = std / np.sqrt(pulls)
    order = np.argsort(-(mean - error if degrees else mean), kind="stable")[:count]
    return [BestArm(int(index[i]), int(pulls[i]), float(mean[i]), float(error[i])) for i in order]
