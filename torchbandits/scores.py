"""What an arm is worth: scores of the posterior marginals. Every score falls as the standard deviation falls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor


class Score(ABC):
    """A number to maximise, computed from the marginals."""

    @abstractmethod
    def __call__(self, mean: Tensor, std: Tensor, width: Tensor) -> Tensor:
        """Scores of arms, shaped like `mean` (`batch_shape x n`); `width` is `batch_shape`."""


@dataclass(frozen=True)
class UCB(Score):
    r"""Upper confidence bound u(x) = μ(x) + w σ(x), reward units."""

    def __call__(self, mean: Tensor, std: Tensor, width: Tensor) -> Tensor:
        """Mean plus width times standard deviation."""
        return mean + width.unsqueeze(-1) * std
