"""Confidence widths that are redrawn for every ask."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchbandits.checks import check_choice, check_instance
from torchbandits.errors import UnsupportedError, require
from torchbandits.types import Progress
from torchbandits.widths.base import Scaled, Width


class RandomWidth(Width):
    """A width that is drawn for every ask, from the generator of each batch row. Calling it returns the root mean square of the
    draws, which `Bandit.width`, the certificate and level sets use. These are therefore indications and not valid bounds."""

    @abstractmethod
    def draw(self, progress: Progress, generators: Sequence[torch.Generator]) -> Tensor:
        """One width per batch row, shaped like `progress.pulls`.

        Args:
            progress: As for other widths.
            generators: One CPU generator per batch row, which the draw advances.
        """


def is_random(width: Width) -> bool:
    """Whether a width is drawn for every ask: a `RandomWidth`, or a multiple of one."""
    while isinstance(width, Scaled):
        width = width.base
    return isinstance(width, RandomWidth)


def draw_width(width: Width, progress: Progress, generators: Sequence[torch.Generator]) -> Tensor:
    """Draw a width that `is_random`; the arguments are those of `RandomWidth.draw`."""
    if isinstance(width, Scaled):
        return width.scale * draw_width(width.base, progress, generators)
    assert isinstance(width, RandomWidth)
    return width.draw(progress, generators)


@dataclass(frozen=True)
class ShiftedExponential(RandomWidth):
    r"""√ζ with ζ = 2 log(A/2) + E, E exponential with mean 2, for a finite arm set: the width does not grow with t.

    If f is drawn from the prior, E[max_x f(x) | data] ≤ E[max_x μ_t(x) + √ζ σ_t(x)], which replaces the union bound over all
    steps: ζ is the quantile 2 log(A/(2U)) of the union bound at a uniform failure probability U. Source: Takeno et al. 2023
    (arXiv 2302.01511), IRGP-UCB; 2024 (arXiv 2409.00979).
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


@dataclass(frozen=True)
class Explored(RandomWidth):
    r"""Another width times W, where W is drawn for every ask from an exploration distribution.

    | shape | W | root mean square | P(W ≥ 1) |
    | --- | --- | --- | --- |
    | `"half-normal"` | :math:`|N(0, 1)|` | 1 | 0.32 |
    | `"exponential"` | exponential with mean 1 | √2 | 0.37 |
    | `"uniform"` | uniform on [0, 2] | √(4/3) | 0.5 |

    W = 1 gives the upper confidence bound itself. If W ≥ 1 has a probability bounded away from 0, the paper's class of policies
    keeps the order of the regret bound, and a theory width explores less on average. Only the paper's abstract and summaries
    were available. Neither its constants nor whether these shapes fulfil its conditions were checked, so no guarantee is
    claimed.

    Args:
        base: A width, such as `IGP`.
        shape: Name of the distribution, as in the table.

    Source: Hu, He & Sutherland 2025 (arXiv 2506.10091), GP-Generic, by its abstract.
    """

    base: Width
    shape: str = "half-normal"

    def __post_init__(self) -> None:
        wanted = "a torchbandits.widths.Width that is not drawn, such as IGP(…)"
        check_instance("base", self.base, Width, wanted)
        require(not is_random(self.base), f"base must be {wanted}, got {type(self.base).__name__}.")
        check_choice("shape", self.shape, tuple(_SHAPES))

    @property
    def reads(self) -> frozenset[str]:
        """The quantities that the base width reads."""
        return self.base.reads

    def __call__(self, progress: Progress) -> Tensor:
        """The root mean square of the draws."""
        return _SHAPES[self.shape][0] * self.base(progress)

    def draw(self, progress: Progress, generators: Sequence[torch.Generator]) -> Tensor:
        """The base width times one draw per batch row."""
        uniforms = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])
        drawn = _SHAPES[self.shape][1](uniforms)
        return drawn.reshape(progress.pulls.shape).to(progress.pulls) * self.base(progress)


_SHAPES: dict[str, tuple[float, Callable[[Tensor], Tensor]]] = {
    "half-normal": (1.0, lambda u: torch.special.ndtri(0.5 + u / 2)),
    "exponential": (math.sqrt(2), lambda u: -torch.log1p(-u)),
    "uniform": (math.sqrt(4 / 3), lambda u: 2 * u),
}
"""Root mean square of W, and W as a function of a number that is uniform on [0, 1)."""
