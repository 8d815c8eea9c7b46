"""What a posterior keeps: every distinct point, or a dictionary sampled by ridge leverage scores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.errors import require


class Memory(ABC):
    """How the dictionary is chosen among the distinct points pulled."""

    sparse: bool

    @abstractmethod
    def choose(self, leverage: Tensor, weights: Tensor, mask: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """The new dictionary, `batch_shape x u` booleans.

        Args:
            leverage: `batch_shape x u`, leverage of the distinct points before the pulls just told.
            weights: `batch_shape x u`, pulls of each, those just told included.
            mask: `batch_shape x u`, False where padded.
            generators: One CPU generator a batch row.
        """


@dataclass(frozen=True)
class KeepAll(Memory):
    """Every distinct point: the exact posterior."""

    sparse = False

    def choose(self, leverage: Tensor, weights: Tensor, mask: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """All of them; draws nothing."""
        return mask


@dataclass(frozen=True)
class LeverageSampling(Memory):
    r"""Point i enters with probability min(1, n_i q̄ lev_i), redrawn from scratch; never empty.

    The expected size is at most q̄ times the effective dimension. Source: Calandriello et al. 2019, Alg. 1, with one draw
    a distinct point as in the authors' code.
    """

    oversampling: float = 2.0
    sparse = True

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.oversampling) and self.oversampling >= 1,
            f"oversampling (q̄) must be a finite number of at least 1, got {self.oversampling}.",
        )

    def choose(self, leverage: Tensor, weights: Tensor, mask: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One uniform a distinct point, on the CPU, in order of first pull."""
        p = torch.where(mask, weights * self.oversampling * leverage, -1.0)
        flat = p.reshape(len(generators), -1)
        sizes = mask.reshape(len(generators), -1).sum(dim=-1).tolist()
        uniforms = torch.ones(flat.shape, dtype=torch.float64)
        for row, (size, generator) in enumerate(zip(sizes, generators, strict=True)):
            uniforms[row, :size] = torch.rand(size, generator=generator, dtype=torch.float64)
        chosen = uniforms.to(p.device) < flat
        best = torch.zeros_like(chosen).scatter(-1, flat.argmax(dim=-1, keepdim=True), True)
        chosen = torch.where(chosen.any(dim=-1, keepdim=True), chosen, best)
        return chosen.reshape(mask.shape) & mask
