"""Confidence widths for functions of bounded RKHS norm that grow with the information gain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchbandits.checks import check_whole, non_negative, positive
from torchbandits.types import Progress
from torchbandits.widths.base import Frequentist


@dataclass(frozen=True)
class IGP(Frequentist):
    r"""B + (R/√λ) √(2(γ_t + 1 + log(1/δ))), γ_t = ½ log det(I + K_t/λ).

    Source: Chowdhury & Gopalan 2017, Thm 2 (with R in place of R/√λ, the same at their λ ≈ 1); Janz et al. 2020, eq. 2.
    """

    _reads: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, progress: Progress) -> Tensor:
        """The width, which grows with the information gain."""
        gain = 0.5 * progress.log_det + 1 + self._log_inverse_delta
        return self._bound(progress) + self.noise_std / math.sqrt(self.regularization) * (2 * gain).sqrt()


@dataclass(frozen=True)
class KernelUCB(Frequentist):
    r"""F + (ξ/√λ) √(2(log det(K_t/λ + I) + log(1/δ))). Source: Calandriello et al. 2019, eq. 7."""

    _reads: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, progress: Progress) -> Tensor:
        """The width, which grows with the information gain."""
        gain = progress.log_det + self._log_inverse_delta
        return self._bound(progress) + self.noise_std / math.sqrt(self.regularization) * (2 * gain).sqrt()


@dataclass(frozen=True)
class SelfNormalized(Frequentist):
    r"""F + (ξ/√λ) √(log det(V/λ) + 2 log(1/δ)), valid at all steps at once for any λ > 0.

    Tighter than `IGP` and `KernelUCB`. Source: Abbasi-Yadkori et al. 2011, Thm 2 (linear, OFUL); for kernels Whitehouse et al.
    2023, who prove that GP-UCB with λ = `matern_regularization` has regret Õ(T^((ν+2d)/(2ν+2d))) for Matérn kernels (Thm 2).
    """

    _reads: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, progress: Progress) -> Tensor:
        """The width, which grows with the information gain."""
        gain = progress.log_det + 2 * self._log_inverse_delta
        return self._bound(progress) + self.noise_std / math.sqrt(self.regularization) * gain.sqrt()


@dataclass(frozen=True)
class MartingaleMixture(Frequentist):
    r"""√(F² + (ξ²/λ)(log det(V/λ) + 2 log(1/δ))), valid at all steps at once for any λ > 0, exact posterior, prior mean 0.

    This is the root of a sum, whereas `SelfNormalized` is a sum of roots. A mixture of the likelihoods of GP(0, (ξ²/λ) k)
    bounds Σ (y − f)² for the true f (Ville's inequality). Together with |f| ≤ F this defines an ellipsoid, in whose radius the
    terms that depend on the rewards cancel.
    Source: Flynn & Reeb 2024, the analytic bound with α = λ and covariance scale c = ξ²/λ.
    """

    _reads: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, progress: Progress) -> Tensor:
        """The width, which grows with the information gain."""
        gain = progress.log_det + 2 * self._log_inverse_delta
        bound = self._bound(progress)
        return (bound * bound + self.noise_std**2 / self.regularization * gain).sqrt()


def matern_regularization(nu: float, dim: int, horizon: int, noise_std: float = 1.0) -> float:
    """λ = ξ² T^(d/(2ν+2d)), the regularization tied to the horizon under which GP-UCB with `SelfNormalized` is sublinear.

    This λ is far larger than ξ²; the smaller value explores less in practice. Source: Whitehouse et al. 2023, Thm 2, with the
    eigenvalue decay β = (2ν+d)/d of a Matérn kernel on d features.
    """
    positive("nu", nu)
    check_whole("dim", dim)
    check_whole("horizon", horizon)
    return non_negative("noise_std", noise_std) ** 2 * float(horizon) ** (dim / (2 * nu + 2 * dim))


@dataclass(frozen=True)
class SketchedOFUL(Frequentist):
    r"""F max(1, ε − 1) + (ξ/√λ) √(1 + ε) √(log det(V̂/λ) + d log(1 + ε) + 2 log(1/δ)), ε = ρ/λ.

    For V̂ = SᵀS + λI with V̂ ⪯ V ⪯ V̂ + ρI and the mean zᵀV̂⁻¹Zᵀs, so V ⪯ (1 + ε)V̂: the noise term is that of
    `SelfNormalized` times √(1 + ε), with det V ≤ (1 + ε)^d det V̂, and the bias is at most |V − V̂ − λI| F/√λ with
    −λI ⪯ V − V̂ − λI ⪯ (ρ − λ)I. The width is never larger than that of the paper, which bounds log det(V̂/λ) by
    m log(1 + tL²/(mλ)) and the bias by F(1 + ε). For ε = 0 it is `SelfNormalized`. Source: Kuzborskij et al. 2019, the
    sketched ellipsoid.
    """

    _reads: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, progress: Progress) -> Tensor:
        """The width, which grows with the information gain and with the error of the sketch."""
        epsilon = progress.sketch_loss / self.regularization
        inside = progress.log_det + progress.dim * epsilon.log1p() + 2 * self._log_inverse_delta
        noise = self.noise_std / math.sqrt(self.regularization) * ((1 + epsilon) * inside).sqrt()
        return self._bound(progress) * (epsilon - 1).clamp_min(1) + noise


@dataclass(frozen=True)
class FixedDesign(Frequentist):
    r"""F + (ξ/√λ) √(2 log(nA/δ)), for posteriors of pulls that were chosen independently of their rewards.

    Each one-sided bound then fails with probability at most δ/(nA). For each of the A arms, n such bounds (`statements`) are
    used.
    Source: Vakili et al. 2021, Thm 1, with a union bound over a finite set.
    """

    _reads: ClassVar[frozenset[str]] = frozenset({"num_arms"})

    statements: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("statements", self.statements)

    def __call__(self, progress: Progress) -> Tensor:
        """The width, which is constant over the steps: without adaptivity, it does not depend on the information gain."""
        spread = math.sqrt(2 * (math.log(self.statements * progress.num_arms) + self._log_inverse_delta))
        return torch.full_like(progress.pulls, self.noise_std / math.sqrt(self.regularization) * spread) + self._bound(progress)
