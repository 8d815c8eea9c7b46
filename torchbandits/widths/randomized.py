"""Confidence widths that are drawn anew for every ask."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchbandits.errors import UnsupportedError, require
from torchbandits.types import Progress
from torchbandits.widths.base import Width


class RandomWidth(Width):
    """A width that is drawn for every ask, from the generator of each batch row. Called as other widths are, it gives the root
    mean square of the draw, which `Bandit.width`, the certificate and level sets use: an indication, and no bound."""

    @abstractmethod
    def draw(self, progress: Progress, generators: Sequence[torch.Generator]) -> Tensor:
        """One width per batch row, shaped like `progress.pulls`.

        Args:
            progress: As for other widths.
            generators: One CPU generator per batch row, each advanced by its own draw.
        """


@dataclass(frozen=True)
class ShiftedExponential(RandomWidth):
    r"""√ζ with ζ = 2 log(A/2) + E, E exponential with mean 2, for a finite arm set: the width does not grow with t.

    With f drawn from the prior, E[max_x f(x) | data] ≤ E[max_x μ_t(x) + √ζ σ_t(x)], which replaces the union bound over all
    steps. Source: Takeno et al. 2023 (arXiv 2302.01511), IRGP-UCB; 2024 (arXiv 2409.00979).
    """

    _reads: ClassVar[frozenset[str]] = frozenset({"num_arms"})

    def _shift(self, progress: Progress) -> float:
        require(progress.num_arms > 0, "the width counts the arms of a finite set.", UnsupportedError)
        return max(2 * math.log(progress.num_arms / 2), 0.0)

    def __call__(self, progress: Progress) -> Tensor:
        """The root mean square of the draws, √(2 log(A/2) + 2)."""
        return torch.full_like(progress.pulls, math.sqrt(self._shift(progress) + 2))

    def draw(self, progress: Progress, generators: Sequence[torch.Generator]) -> Tensor:
        """The square root of a shifted exponential number per batch row."""
        uniforms = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])
        drawn = (self._shift(progress) - 2 * torch.log1p(-uniforms)).sqrt()
        return drawn.reshape(progress.pulls.shape).to(progress.pulls)
