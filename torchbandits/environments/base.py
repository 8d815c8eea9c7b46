"""What can be pulled: a finite set of arms whose expected rewards, and so whose regret, are known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from torchbandits.sources import ArmSource


class Environment(ABC):
    """Arms that answer with noisy rewards. Rewards are maximised; regret is never negative.

    Attributes:
        name: Shown in tables and figures.
        arms: `A x d`, or `batch_shape x A x d` where the rows of a batch face different arms; or a source of them.
        noise_std: Standard deviation (or sub-Gaussian constant) of the noise, reward units.
        costs: `A` or `batch_shape x A`, what a pull of each arm costs, > 0; None where nobody says.
        neighbors: `A x k` integers, arms next to each arm (−1 where padded), for policies that mutate; None where nobody says.
    """

    name: str
    arms: Tensor | ArmSource
    noise_std: float
    costs: Tensor | None = None
    neighbors: Tensor | None = None

    @property
    @abstractmethod
    def means(self) -> Tensor:
        """Expected reward of every arm, `A` or `batch_shape x A`, reward units."""

    @abstractmethod
    def sample(self, index: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Pull arms.

        Args:
            index: `batch_shape x q`, indices into the arms; −1 for a place that is not pulled.
            generators: One CPU generator per batch row (rows in row-major order); row r draws from `generators[r]` only.

        Returns:
            `batch_shape x q` rewards; NaN where the index is −1.
        """

    @property
    def optimum(self) -> Tensor:
        """Largest expected reward, `()` or `batch_shape`."""
        return self.means.max(dim=-1).values

    def expected(self, index: Tensor) -> Tensor:
        """Expected reward of the indexed arms, shaped like `index`; NaN where the index is −1."""
        means = self.means.expand(*index.shape[:-1], -1)
        values = means.gather(-1, index.clamp_min(0))
        return torch.where(index >= 0, values, torch.nan)

    def regret(self, index: Tensor) -> Tensor:
        """Optimum minus expected reward of the indexed arms, shaped like `index`, never negative, NaN where −1."""
        return self.optimum.unsqueeze(-1) - self.expected(index)
