"""Memories of a posterior: every distinct point, only informative pulls, or a dictionary sampled by ridge leverage scores.

Use `KeepAll` for the exact posterior, `EntropyThreshold` (CUB) to keep only informative pulls, `LeverageSampling` (BKB, BBKB)
for long runs, and `FrequentDirections` (SOFUL) for linear rewards with many features.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchbandits.checks import at_least_one, is_finite, is_whole
from torchbandits.embeddings import FiniteEmbedding
from torchbandits.errors import UnsupportedError, require
from torchbandits.posteriors import Sketch
from torchbandits.transfers import to_host

# The first of seeds that are unlikely to be those of features or rewards, on which the draws must not depend.
_SEQUENCES = 7_046_029_254_386_353_087


class Memory(ABC):
    """A rule that chooses the dictionary among the distinct points pulled."""

    # Whether the dictionary is a subset of the distinct points (a sparse posterior).
    sparse: ClassVar[bool] = False
    # Whether some pulls are discarded permanently.
    selective: ClassVar[bool] = False

    def admitted(self, leverage: Tensor, counts: Tensor, regularization: float) -> Tensor:
        """The number of successive pulls that are learned, out of `counts` pulls of points with the given leverages (tensors of
        the same shape). By default all of them."""
        return counts

    def sketch(self, embedding: FiniteEmbedding | None, batch_shape: torch.Size, device: torch.device) -> Sketch | None:
        """The sketch of the second moments of finite features, or None if these are kept in full."""
        return None

    @abstractmethod
    def choose(self, leverage: Tensor, weights: Tensor, mask: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Choose the new dictionary, `batch_shape x u` booleans, on the host or on the device of the leverages.

        Args:
            leverage: `batch_shape x u`, leverage of the distinct points before the latest pulls.
            weights: `batch_shape x u`, number of pulls of each point, including the latest pulls.
            mask: `batch_shape x u`, False where padded.
            generators: One CPU generator per batch row.
        """


@dataclass(frozen=True)
class KeepAll(Memory):
    """A memory of every distinct point, for the exact posterior."""

    def choose(self, leverage: Tensor, weights: Tensor, mask: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Choose all points; draws nothing."""
        return mask


@dataclass(frozen=True)
class EntropyThreshold(Memory):
    r"""A memory that learns a pull only if the entropy ½ log(2πe(λ + σ²(x))) of its reward exceeds `threshold` (nats).

    Equivalently, the leverage exceeds exp(2 threshold)/(2πeλ) − 1, so the number of learned pulls is bounded.
    Source: Bedi et al. 2020, Alg. 1.
    """

    threshold: float
    selective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(is_finite(self.threshold), f"threshold must be a finite number of nats, got {self.threshold!r}.")

    def least_leverage(self, regularization: float) -> float:
        """The leverage at or below which a pull is dropped."""
        return math.exp(2 * self.threshold) / (2 * math.pi * math.e * regularization) - 1

    def admitted(self, leverage: Tensor, counts: Tensor, regularization: float) -> Tensor:
        """The number of successive pulls that are learned. After j pulls the leverage is lev/(1 + j lev), so the first
        ⌈1/least − 1/lev⌉ pulls are learned."""
        least = self.least_leverage(regularization)
        first = torch.ceil(1 / least - 1 / leverage.clamp_min(torch.finfo(leverage.dtype).tiny))
        learned = torch.where(leverage > least, first.clamp_min(1), 0.0)
        return torch.minimum(counts, learned)

    def choose(self, leverage: Tensor, weights: Tensor, mask: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Choose all learned points; draws nothing."""
        return mask


@dataclass(frozen=True)
class LeverageSampling(Memory):
    r"""A dictionary that point i enters with probability min(1, n_i q̄ lev_i), redrawn from scratch; it is never empty.

    The expected size is at most q̄ Σ_i n_i lev_i, with the leverages before the latest rewards. The sum with the leverages
    after them is the effective dimension d_eff. The former leverages exceed the latter by a factor of at most 1 + κ²/λ after
    one pull (BKB), and C̃ + κ²/λ after a batch of the global rule (BBKB), with κ² the largest prior variance. The size can
    therefore exceed q̄ d_eff.
    Source: Calandriello et al. 2019, Alg. 1, with one draw per distinct point as in the authors' code.
    """

    oversampling: float = 2.0
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least_one("oversampling (q̄)", self.oversampling)

    def choose(self, leverage: Tensor, weights: Tensor, mask: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draw one uniform number per distinct point, on the CPU, in order of first pull."""
        p = weights * self.oversampling * leverage
        # A single batch row has no padding.
        single = len(generators) == 1
        p, mask = to_host(p if single else p.masked_fill_(~mask, -1.0), mask)
        if single:
            chosen = self._uniforms(p.shape[-1], generators[0]).reshape(p.shape) < p
            if bool(chosen.any()):
                return chosen
        flat = p.reshape(len(generators), -1)
        if single:
            return (
                torch.zeros_like(chosen)
                .reshape(flat.shape)
                .scatter(-1, flat.argmax(dim=-1, keepdim=True), True)
                .reshape(p.shape)
            )
        sizes = mask.reshape(len(generators), -1).sum(dim=-1).tolist()
        uniforms = torch.ones(flat.shape, dtype=torch.float64)
        for row, (size, generator) in enumerate(zip(sizes, generators, strict=True)):
            uniforms[row, :size] = self._uniforms(size, generator)
        chosen = uniforms < flat
        some = chosen.any(dim=-1, keepdim=True)
        if not bool(some.all()):
            best = torch.zeros_like(chosen).scatter(-1, flat.argmax(dim=-1, keepdim=True), True)
            chosen = torch.where(some, chosen, best)
        return chosen.reshape(mask.shape) & mask

    def _uniforms(self, size: int, generator: torch.Generator) -> Tensor:
        """A uniform number for each distinct point, in order of first pull."""
        return torch.rand(size, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class SteadySampling(LeverageSampling):
    """`LeverageSampling` that draws less often, and with the same uniform numbers until the points have grown by 5 %.

    Few kernel columns are then new from one dictionary to the next. With the same numbers for ever, a point that matters may be
    left out for ever. Between two draws new points join the dictionary, which then explains more than one that is drawn: until
    the points have grown by 5 % or a fifth of the dictionary has joined it, unless so many points are told at once that a sweep
    of a new dictionary costs no more, or the dictionary lacks a point just pulled that a draw would certainly include. The
    theorems of BKB and BBKB are about independent draws at every tell.
    """

    def grows(self, drawn: Tensor, points: Tensor, members: Tensor, told: Tensor) -> Tensor:
        """Whether the points just told join the dictionary, which is otherwise kept, `batch_shape` booleans on the host.

        Args:
            drawn: Number of distinct points when the dictionary was last drawn.
            points: The same now.
            members: Size of the dictionary.
            told: Number of distinct points just told. All are `batch_shape`, on the host.
        """
        joined = points - drawn
        return (20 * joined <= drawn) & (5 * joined <= members) & (12 * told <= members)

    def certain(self, leverage: Tensor, weights: Tensor) -> Tensor:
        """Whether each point enters a dictionary with probability 1, `batch_shape x u` booleans."""
        return weights * self.oversampling * leverage >= 1

    def _uniforms(self, size: int, generator: torch.Generator) -> Tensor:
        """The first numbers of a sequence that depends on the size alone; draws nothing."""
        growth = int(math.log(max(size, 1)) / math.log(1.05))
        return torch.rand(size, generator=torch.Generator().manual_seed(_SEQUENCES + growth), dtype=torch.float64)


@dataclass(frozen=True)
class FrequentDirections(Memory):
    """A memory of every distinct point, with a sketch of `size` to 2 `size` rows for V = ZᵀNZ + λI; see `posteriors.Sketch`.

    Each tell enters the sketch as one row per distinct arm, in order of first pull.
    """

    size: int

    def __post_init__(self) -> None:
        require(is_whole(self.size), f"size or sketch_size must be a whole number of at least 1, got {self.size!r}.")

    def sketch(self, embedding: FiniteEmbedding | None, batch_shape: torch.Size, device: torch.device) -> Sketch:
        """An empty sketch of the features. Raises `UnsupportedError` if there are no finite features."""
        if embedding is None:
            raise UnsupportedError("frequent directions sketch finite features: pass features=, such as embeddings.Identity().")
        return Sketch(self.size, embedding.num_features, batch_shape, device)

    def choose(self, leverage: Tensor, weights: Tensor, mask: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Choose all points; draws nothing."""
        return mask
