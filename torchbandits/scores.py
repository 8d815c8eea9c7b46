"""Scores of arms (acquisition values): functions of the posterior marginals, or a draw of the posterior.

Every score increases with the standard deviation. Use `UCB` for the guarantees, `LogEI` and `LogPI` for the policies that CUB
is compared with, and `PosteriorDraw` for Thompson sampling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchbandits.checks import check_even, is_finite, is_whole
from torchbandits.errors import nearest, require
from torchbandits.types import Marginals, PerPoint, Points
from torchbandits.upstream import log_improvement


class Score(ABC):
    """An acquisition value, computed from the posterior marginals, which the policy maximises.

    A score of your own is a subclass with `__call__(mean, std, width, incumbent)`. It returns scores shaped like `mean` and
    `std`, `batch_shape x n` for n arms, reward units; `width` and `incumbent` have one number per batch row, `batch_shape`.

    Attributes:
        relative: Whether the score reads the incumbent, the `reference` of the posterior means of all arms, by default the
            highest of them. False by default: the incumbent is then NaN.
    """

    relative: ClassVar[bool] = False

    def reference(self, means: Tensor) -> Tensor:
        """The level that a relative score refers to, `batch_shape`, from the posterior means of all arms, `batch_shape x A`;
        −∞ for arms that are copies of others."""
        return means.amax(dim=-1)

    @abstractmethod
    def __call__(self, mean: Tensor, std: Tensor, width: Tensor, incumbent: Tensor) -> Tensor:
        """Scores of arms, shaped like `mean` (`batch_shape x n`).

        Args:
            mean: Posterior mean, reward units.
            std: Posterior standard deviation, reward units, of the same shape.
            width: `batch_shape`, multiplies the standard deviation.
            incumbent: `batch_shape`, the `reference` of the means of all arms if the score is `relative`; it has no meaning for
                other scores of the package, and is NaN for yours.
        """


def scores_of_points(score: Score, points: Points, posterior: Marginals, width: Tensor, incumbent: Tensor) -> PerPoint:
    """Scores `batch_shape x n` of points `batch_shape x n x d` from their posterior. The gradient with respect to the points is
    finite even where the variance is 0, and it exists (as 0) even if the score does not depend on the points."""
    # The clamp keeps the gradient of the square root finite at a variance of 0.
    tiny = torch.finfo(posterior.variance.dtype).tiny
    value = score(posterior.mean, posterior.variance.clamp_min(tiny).sqrt(), width, incumbent)
    # The zero term connects constant scores to the points, so that their gradient is 0 instead of missing.
    return value + 0 * points.sum(dim=-1)


@dataclass(frozen=True)
class UCB(Score):
    r"""Upper confidence bound u(x) = μ(x) + w σ(x), reward units."""

    def __call__(self, mean: Tensor, std: Tensor, width: Tensor, incumbent: Tensor) -> Tensor:
        """Mean plus width times standard deviation."""
        return mean + width.unsqueeze(-1) * std


@dataclass(frozen=True)
class _Improvement(Score, ABC):
    """Base of the improvement scores, with the level to exceed, max_x μ(x) + margin."""

    margin: float = 0.0
    relative: ClassVar[bool] = True

    def _standardized(self, mean: Tensor, std: Tensor, incumbent: Tensor) -> tuple[Tensor, Tensor]:
        """z = (μ − ξ)/σ and σ, where a σ of 0 is replaced by the smallest positive number."""
        sigma = std.clamp_min(torch.finfo(std.dtype).tiny)
        return ((mean - incumbent.unsqueeze(-1) - self.margin) / sigma).clamp_min(-1e100), sigma


@dataclass(frozen=True)
class LogEI(_Improvement):
    r"""Logarithm of the expected improvement σ (φ(z) + z Φ(z)), z = (μ − ξ)/σ, ξ = max_x μ(x) + margin.

    Source: Močkus 1975; the logarithm, which is accurate where the improvement itself underflows, Ament et al. 2023.
    """

    def __post_init__(self) -> None:
        ok = is_finite(self.margin) and self.margin >= 0
        require(ok, f"the margin of expected improvement must be finite and ≥ 0, got {self.margin}.")

    def __call__(self, mean: Tensor, std: Tensor, width: Tensor, incumbent: Tensor) -> Tensor:
        """The logarithm of EI; the width is ignored."""
        z, sigma = self._standardized(mean, std, incumbent)
        return log_improvement(z) + sigma.log()


@dataclass(frozen=True)
class LogPI(_Improvement):
    r"""Logarithm of the probability of improvement Φ(z), z = (μ − ξ)/σ, ξ = max_x μ(x) + margin, margin > 0.

    With a margin of 0 the arm of the highest mean always wins. Source: Kushner 1964.
    """

    margin: float = 1e-2

    def __post_init__(self) -> None:
        require(
            is_finite(self.margin) and self.margin > 0,
            f"the margin of the probability of improvement must be > 0 (it is greedy at 0; try noise_std), got {self.margin}.",
        )

    def __call__(self, mean: Tensor, std: Tensor, width: Tensor, incumbent: Tensor) -> Tensor:
        """log Φ(z); the width is ignored."""
        from botorch.utils.probability.utils import log_ndtr  # noqa: PLC0415 - BoTorch takes a second to load

        value: Tensor = log_ndtr(self._standardized(mean, std, incumbent)[0])
        return value


@dataclass(frozen=True)
class Straddle(Score):
    r"""Ambiguity with respect to a level h, w σ(x) − |μ(x) − h|, reward units: the depth of h inside the confidence interval.

    Source: Bryan et al. 2005; Gotovos et al. 2013, with the intervals of the current step only.

    Attributes:
        level: h, reward units.
    """

    level: float

    def __post_init__(self) -> None:
        require(is_finite(self.level), f"level must be finite, got {self.level}.")

    def __call__(self, mean: Tensor, std: Tensor, width: Tensor, incumbent: Tensor) -> Tensor:
        """Width times standard deviation, minus the distance of the mean from the level."""
        return width.unsqueeze(-1) * std - (mean - self.level).abs()


@dataclass(frozen=True)
class TopBoundary(Score):
    r"""Ambiguity at the boundary of the k best arms, w σ(x) − |μ(x) − c|, c the midpoint of the k-th and (k+1)-th highest mean.

    The argmax is one of the two critical arms of LUCB: the arm with the lowest lower bound among the k arms with the highest
    means, or the arm with the highest upper bound among the others. Exact duplicates count as one arm.

    Attributes:
        k: Number of arms to separate from the others.
    """

    k: int = 1
    relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(is_whole(self.k), f"k must be a whole number of at least 1, got {self.k!r}.")

    def reference(self, means: Tensor) -> Tensor:
        """The midpoint c of the k-th and the (k+1)-th highest mean."""
        ranked = means.topk(min(self.k + 1, means.shape[-1]), dim=-1).values
        some = ranked.shape[-1] > self.k and bool((ranked[..., -1] > -torch.inf).all())
        require(some, f"the {self.k} best arms are all arms, so there is no boundary: choose a smaller k.")
        return ranked[..., self.k - 1 :].mean(dim=-1)

    def __call__(self, mean: Tensor, std: Tensor, width: Tensor, incumbent: Tensor) -> Tensor:
        """Width times standard deviation, minus the distance of the mean from the boundary."""
        return width.unsqueeze(-1) * std - (mean - incumbent.unsqueeze(-1)).abs()


@dataclass(frozen=True)
class MostProbable(Score):
    r"""Probability that an arm is the best, P(x* = x), by joint draws of f at the arms with the highest upper bounds μ + w σ.

    The q picks of a batch are the q arms with the largest probabilities. Arms that are the best in no draw follow in order of
    their upper bounds. Called on single arms, this score returns their upper bounds. Source: Fromer et al. 2024, qPO.

    Attributes:
        draws: Number of joint draws.
        leaders: Number of arms that are drawn jointly.
    """

    draws: int = 2_000
    leaders: int = 1_000

    def __post_init__(self) -> None:
        for name in ("draws", "leaders"):
            require(is_whole(getattr(self, name)), f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}.")

    def __call__(self, mean: Tensor, std: Tensor, width: Tensor, incumbent: Tensor) -> Tensor:
        """The upper bounds, which determine the leaders."""
        return mean + width.unsqueeze(-1) * std


@dataclass(frozen=True)
class PosteriorDraw:
    r"""A draw μ + w (f̃ − μ) of the posterior, f̃ ~ GP(μ, k_t), one for each pick.

    Attributes:
        num_features: Number of random Fourier features of the prior part of a draw, if it uses them (see
            `arms.PosteriorDraws`).
    """

    num_features: int = 512

    def __post_init__(self) -> None:
        check_even("num_features", self.num_features)


@dataclass(frozen=True)
class PerCost(Score):
    r"""Another score per cost: (u(x) − baseline) / c(x)^exponent, or log EI(x) − exponent · log c(x).

    Below the baseline the gain is negative and is multiplied by cost^exponent, so that the score decreases with the cost.
    Logarithmic scores (EI, PI) have no baseline. The costs are those of the arms (`Bandit(..., costs=)`).

    Attributes:
        base: The score, or a draw of the posterior.
        exponent: 1 for gain per cost, 0 to ignore costs.
        baseline: Reward at which a pull has no value, reward units; None for the highest posterior mean.
    """

    base: Score | PosteriorDraw
    exponent: float = 0.5
    baseline: float | None = None

    def __post_init__(self) -> None:
        known = isinstance(self.base, Score | PosteriorDraw)
        require(known, f"base must be a score or a draw of the posterior, such as UCB(), got {self.base!r}.")
        require(not isinstance(self.base, PerCost), "the score is per cost already.")
        whole = isinstance(self.base, MostProbable | TopBoundary)
        require(
            not whole,
            "the probability to be the best, and the boundary of the top k, are not gains, and can't be divided by costs.",
        )
        require(is_finite(self.exponent) and self.exponent >= 0, f"exponent must be finite and ≥ 0, got {self.exponent}.")
        if self.baseline is not None:
            require(is_finite(self.baseline), f"baseline must be finite, got {self.baseline}.")
            require(not isinstance(self.base, _Improvement), "EI and PI are improvements already: they take no baseline.")

    @property
    def relative(self) -> bool:  # type: ignore[override]
        """Whether the base score is relative to the highest posterior mean."""
        return isinstance(self.base, Score) and self.base.relative

    def __call__(self, mean: Tensor, std: Tensor, width: Tensor, incumbent: Tensor) -> Tensor:
        """The base scores, before division by costs (`priced`); for a draw, the upper bounds."""
        base = self.base if isinstance(self.base, Score) else UCB()
        return base(mean, std, width, incumbent)

    @property
    def over_best(self) -> bool:
        """Whether the baseline is the highest posterior mean."""
        return self.baseline is None and not isinstance(self.base, _Improvement)

    def priced(self, scores: Tensor, costs: Tensor, baseline: Tensor | float) -> Tensor:
        """The base scores per cost, of the same shape.

        Args:
            scores: `... x n`.
            costs: The positive costs of the same arms.
            baseline: The highest posterior mean, `... x 1`, if the score is `over_best`, and its own baseline otherwise;
                logarithmic scores do not read it.
        """
        if isinstance(self.base, _Improvement):
            return scores - self.exponent * costs.log()
        gain = scores - baseline
        return gain * self.price(gain, costs)

    def price(self, gain: Tensor, costs: Tensor) -> Tensor:
        """The positive factor of the gain over the baseline: cost^(−exponent), or cost^exponent below the baseline."""
        power = costs**self.exponent
        return torch.where(gain >= 0, 1 / power, power)


def base_of(score: Score | PosteriorDraw) -> Score | PosteriorDraw:
    """What a score per cost divides by the costs; any other score itself."""
    return score.base if isinstance(score, PerCost) else score


ACQUISITIONS = ("ucb", "ei", "pi")


def named_score(name: str, margin: float | None, noise_std: float) -> Score:
    """The score with the given name; `margin` is by default 0 for EI and `noise_std` for PI. Raises `ArgumentError` for an
    unknown name."""
    known = ", ".join(ACQUISITIONS)
    require(name in ACQUISITIONS, f"unknown acquisition {name!r}; known: {known}.{nearest(name, ACQUISITIONS)}")
    require(name != "ucb" or margin is None, "a margin belongs to acquisition 'ei' or 'pi', not to 'ucb'.")
    if name == "ucb":
        return UCB()
    return LogEI(margin or 0.0) if name == "ei" else LogPI(noise_std if margin is None else margin)
