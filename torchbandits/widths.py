r"""Confidence widths: what multiplies the posterior standard deviation, always.

Each is a frozen, pure function of `Progress`. Formulas that their authors state for √leverage are divided by √λ. Pick
`PracticalBKB` / `PracticalBBKB` to run what the papers' experiments run, `BKB`, `BBKB`, `IGP`, `KernelUCB` for the
theorems (`FixedDesign` for those that look at rewards only between phases), `Constant` or `Scaled` to tune.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchbandits.errors import require
from torchbandits.types import Progress


class Width(ABC):
    """A multiplier of the posterior standard deviation, in reward units per reward unit."""

    _reads: ClassVar[frozenset[str]] = frozenset({"effective_dimension", "batches"})

    @property
    def reads(self) -> frozenset[str]:
        """What it needs of the costlier entries of `Progress`: `"effective_dimension"` (NaN where no width reads it) and
        `"batches"`, the batched log-determinants (not kept up where no width reads them)."""
        return self._reads

    @abstractmethod
    def __call__(self, progress: Progress) -> Tensor:
        """The width of each batch row, shaped like `progress.pulls`."""


def _check_delta(delta: float) -> None:
    require(0 < delta < 1, f"delta is a failure probability in (0, 1), got {delta}.")


@dataclass(frozen=True)
class Constant(Width):
    """The same width at every step."""

    _reads: ClassVar[frozenset[str]] = frozenset()

    value: float

    def __post_init__(self) -> None:
        require(math.isfinite(self.value) and self.value >= 0, f"a width must be finite and ≥ 0, got {self.value}.")

    def __call__(self, progress: Progress) -> Tensor:
        """`value`."""
        return torch.full_like(progress.pulls, self.value)


@dataclass(frozen=True)
class Scaled(Width):
    """`scale` times another width."""

    base: Width
    scale: float

    def __post_init__(self) -> None:
        require(math.isfinite(self.scale) and self.scale >= 0, f"scale must be finite and ≥ 0, got {self.scale}.")

    @property
    def reads(self) -> frozenset[str]:
        """What the base reads."""
        return self.base.reads

    def __call__(self, progress: Progress) -> Tensor:
        """`scale · base(progress)`."""
        return self.scale * self.base(progress)


@dataclass(frozen=True)
class Srinivas(Width):
    r"""√β_t with β_t = 2 log(A t² π² / (6δ)), for a finite arm set. Source: Srinivas et al. 2010, Thm 1."""

    _reads: ClassVar[frozenset[str]] = frozenset()

    delta: float

    def __post_init__(self) -> None:
        _check_delta(self.delta)

    def __call__(self, progress: Progress) -> Tensor:
        """t is the number of the pick being chosen, from 1."""
        return (2 * torch.log(progress.num_arms * progress.t**2 * (math.pi**2 / (6 * self.delta)))).sqrt()


@dataclass(frozen=True)
class SrinivasCompact(Width):
    r"""√β_t with β_t = 2 log(2π²t²/(3δ)) + 2d log(t² d b r √(log(4da/δ))), for a box of side r.

    The derivatives of f have tails P(sup|∂f| > L) ≤ a exp(−L²/b²). Source: Srinivas et al. 2010, Thm 2.
    """

    _reads: ClassVar[frozenset[str]] = frozenset()

    delta: float
    a: float = 1.0
    b: float = 1.0
    r: float = 1.0

    def __post_init__(self) -> None:
        _check_delta(self.delta)
        require(min(self.a, self.b, self.r) > 0, f"a, b and r must be positive, got {self.a}, {self.b}, {self.r}.")

    def __call__(self, progress: Progress) -> Tensor:
        """t is the number of the pick being chosen, from 1."""
        d, t2 = progress.dim, progress.t**2
        smooth = d * self.b * self.r * math.sqrt(max(math.log(4 * d * self.a / self.delta), 0.0))
        beta = 2 * torch.log(2 * math.pi**2 * t2 / (3 * self.delta)) + 2 * d * torch.log(t2 * smooth)
        return beta.clamp_min(0).sqrt()


@dataclass(frozen=True)
class _Frequentist(Width, ABC):
    """What the kernel-bandit widths share: noise, norm bound F (one number, or `batch_shape` of them), failure probability
    and λ."""

    noise_std: float
    norm_bound: float | Tensor
    delta: float
    regularization: float

    def __post_init__(self) -> None:
        _check_delta(self.delta)
        bound = torch.as_tensor(self.norm_bound, dtype=torch.float64)
        good = bool((torch.isfinite(bound) & (bound >= 0)).all())
        require(good, f"norm_bound must be finite and ≥ 0, got {self.norm_bound}.")

    def _bound(self, progress: Progress) -> float | Tensor:
        """The norm bound, where the posterior lives."""
        return self.norm_bound.to(progress.pulls) if isinstance(self.norm_bound, Tensor) else self.norm_bound

    @property
    def _log_inverse_delta(self) -> float:
        return math.log(1 / self.delta)


@dataclass(frozen=True)
class IGP(_Frequentist):
    r"""B + (R/√λ) √(2(γ_t + 1 + log(1/δ))), γ_t = ½ log det(I + K_t/λ).

    Source: Chowdhury & Gopalan 2017, Thm 2 (who print R, the same at their λ ≈ 1); Janz et al. 2020, eq. 2.
    """

    _reads: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, progress: Progress) -> Tensor:
        """Grows with the information gained."""
        gain = 0.5 * progress.log_det + 1 + self._log_inverse_delta
        return self._bound(progress) + self.noise_std / math.sqrt(self.regularization) * (2 * gain).sqrt()


@dataclass(frozen=True)
class KernelUCB(_Frequentist):
    r"""F + (ξ/√λ) √(2(log det(K_t/λ + I) + log(1/δ))). Source: Calandriello et al. 2019, eq. 7."""

    _reads: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, progress: Progress) -> Tensor:
        """Grows with the information gained."""
        gain = progress.log_det + self._log_inverse_delta
        return self._bound(progress) + self.noise_std / math.sqrt(self.regularization) * (2 * gain).sqrt()


@dataclass(frozen=True)
class BKB(_Frequentist):
    r"""BKB's theorem: (ξ √(2α(1 + log(1 + κ²t/λ)) Σ_s lev_t(x_s) + 2 log(1/δ)) + (1 + 1/√(1−ε)) √λ F)/√λ.

    α = (1+ε)/(1−ε). The paper prints a log that can be negative; this is what its proof gives.
    Source: Calandriello et al. 2019, Thm 2 and the proof of Lemma D.1.
    """

    _reads: ClassVar[frozenset[str]] = frozenset({"effective_dimension"})

    epsilon: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.epsilon < 1, f"epsilon must lie in (0, 1), got {self.epsilon}.")

    def __call__(self, progress: Progress) -> Tensor:
        """Grows with the effective dimension."""
        lam, eps = self.regularization, self.epsilon
        alpha = (1 + eps) / (1 - eps)
        log = 1 + torch.log1p(progress.kappa2 * progress.pulls / lam)
        inside = 2 * alpha * log * progress.effective_dimension + 2 * self._log_inverse_delta
        bias = (1 + 1 / math.sqrt(1 - eps)) * self._bound(progress)
        return self.noise_std / math.sqrt(lam) * inside.sqrt() + bias


@dataclass(frozen=True)
class PracticalBKB(_Frequentist):
    r"""F + (ξ/√λ) √(log t · Σ_s lev_t(x_s) + log(1/δ)): what the BKB authors' experiments run."""

    _reads: ClassVar[frozenset[str]] = frozenset({"effective_dimension"})

    def __call__(self, progress: Progress) -> Tensor:
        """Grows with the effective dimension."""
        inside = torch.log(progress.pulls) * progress.effective_dimension + self._log_inverse_delta
        return self._bound(progress) + self.noise_std / math.sqrt(self.regularization) * inside.sqrt()


@dataclass(frozen=True)
class BBKB(_Frequentist):
    r"""C̃ (2ξ √(Σ_s log(1 + 3 lev_fb(x_s)) + log(1/δ)) + (1+√2) √λ F)/√λ. Source: Calandriello et al. 2020, Thm 2."""

    _reads: ClassVar[frozenset[str]] = frozenset({"batches"})

    ratio_threshold: float = 2.0

    def __call__(self, progress: Progress) -> Tensor:
        """Grows with the batched information gain."""
        inside = progress.batched_log_det_3 + self._log_inverse_delta
        bound = 2 * self.noise_std / math.sqrt(self.regularization) * inside.sqrt() + (1 + math.sqrt(2)) * self._bound(progress)
        return self.ratio_threshold * bound


@dataclass(frozen=True)
class PracticalBBKB(_Frequentist):
    r"""F + (ξ/√λ) √(C̃ Σ_s log(1 + lev_fb(x_s)) + log(1/δ)): what the BBKB authors' experiments run."""

    _reads: ClassVar[frozenset[str]] = frozenset({"batches"})

    ratio_threshold: float = 2.0

    def __call__(self, progress: Progress) -> Tensor:
        """Grows with the batched information gain."""
        inside = self.ratio_threshold * progress.batched_log_det + self._log_inverse_delta
        return self._bound(progress) + self.noise_std / math.sqrt(self.regularization) * inside.sqrt()


@dataclass(frozen=True)
class FixedDesign(_Frequentist):
    r"""F + (ξ/√λ) √(2 log(nA/δ)): for posteriors of pulls that were chosen without a look at their rewards.

    A bound from one side then fails with probability at most δ/(nA); n (`statements`) are made of each of the A arms.
    Source: Vakili et al. 2021, Thm 1, with a union bound over a finite set.
    """

    _reads: ClassVar[frozenset[str]] = frozenset()

    statements: int = 1

    def __call__(self, progress: Progress) -> Tensor:
        """The same at every step: nothing was adapted, so no information gain comes in."""
        spread = math.sqrt(2 * (math.log(self.statements * progress.num_arms) + self._log_inverse_delta))
        return torch.full_like(progress.pulls, self.noise_std / math.sqrt(self.regularization) * spread) + self._bound(progress)
