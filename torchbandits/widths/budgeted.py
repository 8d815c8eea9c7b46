"""Confidence widths of BKB and BBKB, in theory and in practice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchbandits.checks import at_least_one, is_finite
from torchbandits.errors import require
from torchbandits.types import Progress
from torchbandits.widths.base import Frequentist


@dataclass(frozen=True)
class BKB(Frequentist):
    r"""The width of BKB's theorem: (ξ √(2α(1 + log(1 + κ²t/λ)) Σ_s lev_t(x_s) + 2 log(1/δ)) + (1 + 1/√(1−ε)) √λ F)/√λ.

    α = (1+ε)/(1−ε). The logarithm printed in the paper can be negative; this is the logarithm that its proof gives.
    Source: Calandriello et al. 2019, Thm 2 and the proof of its Thm 9.
    """

    _reads: ClassVar[frozenset[str]] = frozenset({"effective_dimension"})

    epsilon: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_finite(self.epsilon) and 0 < self.epsilon < 1, f"epsilon must lie in (0, 1), got {self.epsilon}.")

    def __call__(self, progress: Progress) -> Tensor:
        """The width, which grows with the effective dimension."""
        lam, eps = self.regularization, self.epsilon
        alpha = (1 + eps) / (1 - eps)
        log = 1 + torch.log1p(progress.kappa2 * progress.pulls / lam)
        inside = 2 * alpha * log * progress.effective_dimension + 2 * self._log_inverse_delta
        bias = (1 + 1 / math.sqrt(1 - eps)) * self._bound(progress)
        return self.noise_std / math.sqrt(lam) * inside.sqrt() + bias


@dataclass(frozen=True)
class PracticalBKB(Frequentist):
    r"""F + (ξ/√λ) √(log t · Σ_s lev_t(x_s) + log(1/δ)). No theorem covers this width.

    Source: the authors' code (luigicarratino/batch-bkb, commit 3c23928); the paper has the theorem's width only.
    """

    _reads: ClassVar[frozenset[str]] = frozenset({"effective_dimension"})

    def __call__(self, progress: Progress) -> Tensor:
        """The width, which grows with the effective dimension."""
        inside = torch.log(progress.pulls) * progress.effective_dimension + self._log_inverse_delta
        return self._bound(progress) + self.noise_std / math.sqrt(self.regularization) * inside.sqrt()


@dataclass(frozen=True)
class BBKB(Frequentist):
    r"""C̃ (2ξ √(Σ_s log(1 + 3 lev_fb(x_s)) + log(1/δ)) + (1+√2) √λ F)/√λ. Source: Calandriello et al. 2020, Thm 2."""

    _reads: ClassVar[frozenset[str]] = frozenset({"batches"})

    ratio_threshold: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("ratio_threshold (C̃)", self.ratio_threshold)

    def __call__(self, progress: Progress) -> Tensor:
        """The width, which grows with the batched information gain."""
        inside = progress.batched_log_det_3 + self._log_inverse_delta
        bound = 2 * self.noise_std / math.sqrt(self.regularization) * inside.sqrt() + (1 + math.sqrt(2)) * self._bound(progress)
        return self.ratio_threshold * bound


@dataclass(frozen=True)
class PracticalBBKB(Frequentist):
    r"""F + (ξ/√λ) √(C̃ Σ_s log(1 + lev_fb(x_s)) + log(1/δ)). No theorem covers this width.

    Source: the authors' code (luigicarratino/batch-bkb, commit 3c23928); the paper says that its experiments use the values
    "suggested by theory".
    """

    _reads: ClassVar[frozenset[str]] = frozenset({"batches"})

    ratio_threshold: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("ratio_threshold (C̃)", self.ratio_threshold)

    def __call__(self, progress: Progress) -> Tensor:
        """The width, which grows with the batched information gain."""
        inside = self.ratio_threshold * progress.batched_log_det + self._log_inverse_delta
        return self._bound(progress) + self.noise_std / math.sqrt(self.regularization) * inside.sqrt()
