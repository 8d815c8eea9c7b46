"""Interface of confidence widths, and elementary widths."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from torchbandits.checks import check_norm_bound, is_finite, non_negative
from torchbandits.errors import ShapeError, require
from torchbandits.shapes import broadcast_shapes
from torchbandits.types import Progress


class Width(ABC):
    """A multiplier of the posterior standard deviation, in reward units per reward unit."""

    _reads: ClassVar[frozenset[str]] = frozenset({"effective_dimension", "batches", "num_arms", "points"})

    @property
    def reads(self) -> frozenset[str]:
        """Names of the optional quantities of `Progress` that the width reads. These quantities are costly or not always known:
        `"effective_dimension"` (NaN unless the width reads it); `"batches"`, the batched log-determinants (not updated unless
        the width reads them); `"num_arms"`, which is undefined for a box and for a model without arms; and `"points"`."""
        return self._reads

    @abstractmethod
    def __call__(self, progress: Progress) -> Tensor:
        """The width of each batch row, shaped like `progress.pulls`."""


def check_delta(delta: float) -> None:
    """Raise an error for a value that is not a failure probability."""
    require(is_finite(delta) and 0 < delta < 1, f"delta is a failure probability in (0, 1), got {delta}.")


def check_rows_of(norm_bound: float | Tensor, batch_shape: torch.Size) -> None:
    """Raise `ShapeError` unless a norm bound is one number, or one per batch row."""
    shape, rows = torch.Size(np.shape(norm_bound)), tuple(batch_shape)
    try:
        good = broadcast_shapes(batch_shape, shape) == batch_shape
    except RuntimeError:
        good = False
    message = f"norm_bound has the shape {tuple(shape)}, and the batch rows have {rows}: give one number, or one per batch row."
    require(good, message, ShapeError)


def check_rows(width: Width, batch_shape: torch.Size) -> None:
    """Raise `ShapeError` unless the norm bounds of a width, and of widths inside it, fit the batch rows."""
    for name, value in vars(width).items():
        inside = [own for own in (value if isinstance(value, tuple) else (value,)) if isinstance(own, Width)]
        for own in inside:
            check_rows(own, batch_shape)
        if name == "norm_bound":
            check_rows_of(value, batch_shape)


@dataclass(frozen=True)
class Constant(Width):
    """The same width at every step."""

    _reads: ClassVar[frozenset[str]] = frozenset()

    value: float

    def __post_init__(self) -> None:
        non_negative("value, the width,", self.value)

    def __call__(self, progress: Progress) -> Tensor:
        """The width `value` at every step."""
        return torch.full_like(progress.pulls, self.value)


@dataclass(frozen=True)
class Growing(Width):
    r"""√(w² + 2 log max(1, r / `after`)), where w is `value` and r the number of repeats per distinct point pulled.

    Under a constant width, one arm may be pulled for ever although another is better, because its rewards teach nothing about
    the others. Here an unpulled arm is looked at once it has been left out for long enough. The growth is that of the upper
    quantile 1 − 1/t of a normal distribution, √(2 log t). A model of another package does not count its distinct points; its
    width is w.

    Source: Kaufmann, Cappé and Garivier 2012 (Bayes-UCB), for the quantile; that repeats are counted is not in the paper.
    """

    _reads: ClassVar[frozenset[str]] = frozenset({"points"})

    value: float
    after: float = 4.0

    def __post_init__(self) -> None:
        non_negative("value, the width,", self.value)
        require(is_finite(self.after) and self.after > 0, f"after must be finite and > 0, got {self.after!r}.")

    def __call__(self, progress: Progress) -> Tensor:
        """The width, which never falls below `value`."""
        pulls = progress.pulls
        repeats = torch.zeros_like(pulls) if progress.points is None else pulls / progress.points.clamp_min(1) - 1
        return (self.value**2 + 2 * (repeats / self.after).clamp_min(1).log()).sqrt()


@dataclass(frozen=True)
class Scaled(Width):
    """`scale` times another width, which is drawn for every ask if that one is."""

    base: Width
    scale: float

    def __post_init__(self) -> None:
        good = isinstance(self.base, Width)
        require(good, f"base must be a torchbandits.widths.Width, such as Constant(2.0), got {type(self.base).__name__}.")
        non_negative("scale", self.scale)

    @property
    def reads(self) -> frozenset[str]:
        """The quantities that the base width reads."""
        return self.base.reads

    def __call__(self, progress: Progress) -> Tensor:
        """The width `scale · base(progress)`."""
        return self.scale * self.base(progress)


@dataclass(frozen=True)
class Frequentist(Width, ABC):
    """Base class of the kernel-bandit widths, with the noise, the norm bound F (one number, or a tensor `batch_shape`), the
    failure probability and λ."""

    noise_std: float
    norm_bound: float | Tensor
    delta: float
    regularization: float

    def __post_init__(self) -> None:
        non_negative("noise_std", self.noise_std)
        check_delta(self.delta)
        check_norm_bound(self.norm_bound)
        good = is_finite(self.regularization) and self.regularization > 0
        require(good, f"regularization (λ, by default noise_std²) must be finite and > 0, got {self.regularization}.")

    def _bound(self, progress: Progress) -> float | Tensor:
        """The norm bound, on the device of the posterior."""
        bound = self.norm_bound
        if type(bound) is float:  # asking for `Real` takes as long as an operation
            return bound
        return float(bound) if isinstance(bound, Real) else torch.as_tensor(bound).to(progress.pulls)

    @property
    def _log_inverse_delta(self) -> float:
        return math.log(1 / self.delta)
