"""What a posterior keeps: every distinct point, only informative pulls, or a dictionary sampled by ridge leverage scores.

Pick `KeepAll` for the exact posterior, `EntropyThreshold` (CUB) to bound it by what a pull tells, `LeverageSampling` (BKB,
BBKB) for long runs, `FrequentDirections` (SOFUL) for linear rewards of many features.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchbandits.checks import at_least, is_finite, is_whole
from torchbandits.embeddings import FiniteEmbedding
from torchbandits.errors import UnsupportedError, require
from torchbandits.posteriors import Sketch


class Memory(ABC):
    """How the dictionary is chosen among the distinct points pulled."""

    sparse: ClassVar[bool] = False  # whether the posterior has a dictionary of its own
    selective: ClassVar[bool] = False  # whether some pulls are dropped for good

    def admitted(self, leverage: Tensor, counts: Tensor, regularization: float) -> Tensor:
        """How many of `counts` pulls of points of that leverage (alike) are learned, one after the other: all of them."""
        return counts

    def sketch(self, embedding: FiniteEmbedding | None, batch_shape: torch.Size, device: torch.device) -> Sketch | None:
        """What stands for the second moments of finite features; None where they are kept in full."""
        return None

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

    def choose(self, leverage: Tensor, weights: Tensor, mask: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """All of them; draws nothing."""
        return mask


@dataclass(frozen=True)
class EntropyThreshold(Memory):
    r"""Learn a pull only if its reward still has entropy ½ log(2πe(λ + σ²(x))) above `threshold` (nats); drop it otherwise.

    That is where the leverage exceeds exp(2 threshold)/(2πeλ) − 1, so the number of pulls learned is bounded for ever.
    Source: Bedi et al. 2020, Alg. 1.
    """

    threshold: float
    selective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(is_finite(self.threshold), f"threshold must be a finite number of nats, got {self.threshold!r}.")

    def least_leverage(self, regularization: float) -> float:
        """The leverage at which a pull is dropped."""
        return math.exp(2 * self.threshold) / (2 * math.pi * math.e * regularization) - 1

    def admitted(self, leverage: Tensor, counts: Tensor, regularization: float) -> Tensor:
        """The j-th further pull of a point meets the leverage lev/(1 + j lev): the first ⌈1/least − 1/lev⌉ are learned."""
        least = self.least_leverage(regularization)
        first = torch.ceil(1 / least - 1 / leverage.clamp_min(torch.finfo(leverage.dtype).tiny))
        learned = torch.where(leverage > least, first.clamp_min(1), 0.0)
        return torch.minimum(counts, learned)

    def choose(self, leverage: Tensor, weights: Tensor, mask: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """All that was learned; draws nothing."""
        return mask


@dataclass(frozen=True)
class LeverageSampling(Memory):
    r"""Point i enters with probability min(1, n_i q̄ lev_i), redrawn from scratch; never empty.

    The expected size is at most q̄ times the effective dimension. Source: Calandriello et al. 2019, Alg. 1, with one draw
    a distinct point as in the authors' code.
    """

    oversampling: float = 2.0
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least("oversampling (q̄)", self.oversampling)

    def choose(self, leverage: Tensor, weights: Tensor, mask: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One uniform a distinct point, on the CPU, in order of first pull."""
        p = (weights * self.oversampling * leverage).masked_fill_(~mask, -1.0)
        flat = p.reshape(len(generators), -1)
        if len(generators) == 1:  # one batch row has no padding
            uniforms = torch.rand(flat.shape, generator=generators[0], dtype=torch.float64)
        else:
            sizes = mask.reshape(len(generators), -1).sum(dim=-1).tolist()
            uniforms = torch.ones(flat.shape, dtype=torch.float64)
            for row, (size, generator) in enumerate(zip(sizes, generators, strict=True)):
                uniforms[row, :size] = torch.rand(size, generator=generator, dtype=torch.float64)
        chosen = uniforms.to(p.device) < flat
        some = chosen.any(dim=-1, keepdim=True)
        if not bool(some.all()):
            best = torch.zeros_like(chosen).scatter(-1, flat.argmax(dim=-1, keepdim=True), True)
            chosen = torch.where(some, chosen, best)
        return chosen.reshape(mask.shape) & mask


@dataclass(frozen=True)
class FrequentDirections(Memory):
    """Every distinct point, but of V = ZᵀNZ + λI only a sketch of `size` to 2 `size` rows; see `posteriors.Sketch`.

    Each tell enters it as one row a distinct arm, in order of first pull.
    """

    size: int

    def __post_init__(self) -> None:
        require(is_whole(self.size), f"size or sketch_size must be a whole number of at least 1, got {self.size!r}.")

    def sketch(self, embedding: FiniteEmbedding | None, batch_shape: torch.Size, device: torch.device) -> Sketch:
        """An empty one for the features; `UnsupportedError` where there are none."""
        if embedding is None:
            raise UnsupportedError("frequent directions sketch finite features: pass features=, such as embeddings.Identity().")
        return Sketch(self.size, embedding.num_features, batch_shape, device)

    def choose(self, leverage: Tensor, weights: Tensor, mask: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """All of them; draws nothing."""
        return mask
