"""Confidence widths for rewards drawn from the prior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchbandits.checks import positive
from torchbandits.types import Progress
from torchbandits.widths.base import Width, check_delta


@dataclass(frozen=True)
class Srinivas(Width):
    r"""√β_t with β_t = 2 log(A t² π² / (6δ)), for a finite arm set, f drawn from the prior and λ the variance of the noise.

    With another λ, larger or smaller, the posterior is not the distribution of f given the rewards, and there is no theorem for
    arms that are chosen by their rewards.

    Source: Srinivas et al. 2010, Thm 1.
    """

    _reads: ClassVar[frozenset[str]] = frozenset({"num_arms"})

    delta: float

    def __post_init__(self) -> None:
        check_delta(self.delta)

    def __call__(self, progress: Progress) -> Tensor:
        """The width, where t is one more than the number of pulls told."""
        return (2 * torch.log(progress.num_arms * progress.t**2 * (math.pi**2 / (6 * self.delta)))).sqrt()


@dataclass(frozen=True)
class SrinivasCompact(Width):
    r"""√β_t with β_t = 2 log(2π²t²/(3δ)) + 2d log(t² d b r √(log(4da/δ))), for a box of side r.

    f is drawn from the prior, and λ is the variance of the noise, as for `Srinivas`. The derivatives of f have tails
    P(sup|∂f| > L) ≤ a exp(−L²/b²). Source: Srinivas et al. 2010, Thm 2.
    """

    _reads: ClassVar[frozenset[str]] = frozenset()

    delta: float
    a: float = 1.0
    b: float = 1.0
    r: float = 1.0

    def __post_init__(self) -> None:
        check_delta(self.delta)
        for name in ("a", "b", "r"):
            positive(name, getattr(self, name))

    def __call__(self, progress: Progress) -> Tensor:
        """The width, where t is one more than the number of pulls told."""
        d, t2 = progress.dim, progress.t**2
        smooth = d * self.b * self.r * math.sqrt(max(math.log(4 * d * self.a / self.delta), 0.0))
        beta = 2 * torch.log(2 * math.pi**2 * t2 / (3 * self.delta)) + 2 * d * torch.log(t2 * smooth)
        return beta.clamp_min(0).sqrt()
