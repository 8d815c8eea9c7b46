"""Rules that end a batch. Each rule is frozen; while a batch grows, a meter records how much of its budget is spent.

Use `FixedSize` for plain loops, `Global` for the cheapest adaptive batches (BBKB), `GlobalThenLocal` for longer batches,
`Product` for GP-BUCB, and `ExactRatio` for the longest batches, at the cost of a full sweep per pick.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchbandits.arms import Lookahead
from torchbandits.checks import at_least_one, check_whole
from torchbandits.errors import UnsupportedError, nearest, require
from torchbandits.ratios import RatioMeter, ratio_meter


class Meter:
    """The meter of additive rules. A pick spends an amount that is known at the batch start, or log(1 + leverage) if `dynamic`.

    Attributes:
        spent: `rows`, sum of the amounts spent so far, on the host.
        budget: `rows`; the pick that exceeds the budget is the last of the batch.
    """

    def __init__(self, lookahead: Lookahead, budget: float, *, dynamic: bool = False) -> None:
        self.dynamic, self.additive = dynamic, True
        self.spent = torch.zeros(lookahead.num_rows, dtype=torch.float64)
        self.budget = torch.full_like(self.spent, budget)

    def gain(self, leverage: Tensor) -> Tensor:
        """Leverage at the batch start, `rows x k`."""
        return leverage

    def broke(self, lookahead: Lookahead, rows: Tensor) -> Tensor:
        """Whether the batch has ended. An additive rule ends it as soon as the budget is exceeded."""
        return rows


@dataclass(frozen=True)
class BatchRule(ABC):
    """A rule that ends a batch. `max_batch_size` and `max_pulls` (of one arm in a batch) are caps that always hold."""

    # By name only, so that the number of `FixedSize(4)` or `Global(3)` is that of the rule.
    max_batch_size: int | None = field(default=None, kw_only=True)
    max_pulls: int | None = field(default=None, kw_only=True)

    @property
    def freezes(self) -> bool:
        """Whether the picks of a batch are pending with the dictionary frozen, so that they do not change the residual."""
        return False

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_pulls"):
            check_whole(name, getattr(self, name), otherwise="for no limit")

    @abstractmethod
    def meter(self, lookahead: Lookahead) -> Meter | RatioMeter:
        """The meter of a growing batch."""

    def exactly(self, count: int) -> BatchRule:
        """The rule for a batch of exactly `count` picks."""
        return FixedSize(size=count, max_pulls=self.max_pulls)

    def check_box(self) -> None:
        """Check that the rule depends only on the leverages of the picks, because nothing else is known in a box.

        Raises:
            UnsupportedError: If it depends on more; the message names the permitted rules.
        """
        if self.budget is None:
            raise UnsupportedError(
                f"{type(self).__name__} takes a maximum over all arms, which a box does not have: use batch_rule='global' or "
                "'product', or pass arms."
            )
        if self.max_pulls is not None:
            raise UnsupportedError(
                "max_pulls counts the picks of one arm, and the next point of a box is as good: leave it out."
            )

    @property
    def budget(self) -> float | None:
        """The budget of the picks of a batch, or None for rules that also depend on other arms."""
        return None

    def spends(self, start: Tensor, now: Tensor) -> Tensor:
        """The amount that a pick spends, from its leverage at the batch start and its leverage with earlier picks pending
        (tensors of the same shape)."""
        return torch.zeros_like(start)


@dataclass(frozen=True)
class FixedSize(BatchRule):
    """Batches of `size` picks; with size 1, one pick at a time."""

    size: int = 1

    def __post_init__(self) -> None:
        check_whole("size or batch_size", self.size)
        BatchRule.__post_init__(self)
        object.__setattr__(self, "max_batch_size", min(self.size, self.max_batch_size or self.size))

    @property
    def budget(self) -> float:
        """Infinite, so that only the number of picks ends a batch."""
        return math.inf

    def meter(self, lookahead: Lookahead) -> Meter:
        """A meter that nothing exceeds."""
        return Meter(lookahead, self.budget)


@dataclass(frozen=True)
class RandomizedBeliever(FixedSize):
    """Batches of `size` picks, each conditioned on rewards of the pending picks drawn from the posterior, including noise.

    Source: Sugiura et al. 2026, the randomised kriging believer.
    """

    def exactly(self, count: int) -> BatchRule:
        """The same rule for `count` picks."""
        return RandomizedBeliever(size=count, max_pulls=self.max_pulls)

    def check_box(self) -> None:
        """Raise an error for a box, where the means of all points would have to change."""
        raise UnsupportedError("drawn rewards move the means of arms, and a box has none: use gp_bucb, or pass arms.")


@dataclass(frozen=True)
class _Threshold(BatchRule):
    ratio_threshold: float = 2.0

    @property
    def freezes(self) -> bool:
        """True, as in the proofs of the papers: the rule ends a batch before the remaining residual could matter."""
        return True

    def __post_init__(self) -> None:
        at_least_one("ratio_threshold (C̃)", self.ratio_threshold)
        BatchRule.__post_init__(self)


@dataclass(frozen=True)
class Global(_Threshold):
    """1 + Σ lev_fb(x_s) ≤ C̃. Source: Calandriello et al. 2020, Lemma 1 (with leverage, as the proofs need)."""

    @property
    def budget(self) -> float:
        """C̃ − 1."""
        return self.ratio_threshold - 1

    def spends(self, start: Tensor, now: Tensor) -> Tensor:
        """The leverage at the batch start."""
        return start

    def meter(self, lookahead: Lookahead) -> Meter:
        """Leverages at the batch start."""
        return Meter(lookahead, self.budget)


@dataclass(frozen=True)
class Repeat(_Threshold):
    """Repeat one arm ⌊(C² − 1)/lev_fb(x)⌋ times, at least once, until its variance has shrunk by C², the `ratio_threshold`.

    Unless a cap ends the repeats early, every chosen arm adds at least log((C² + 1)/2) to log det(V/λ), which bounds the number
    of switches.
    Source: Calandriello et al. 2022, Alg. 1.
    """

    max_batch_size: int | None = field(default=10_000, kw_only=True)

    def __post_init__(self) -> None:
        require(self.max_batch_size is not None, "an arm without variance would be pulled forever: give max_batch_size.")
        _Threshold.__post_init__(self)

    def repeated(self, arm: Tensor, leverage: Tensor, remaining: Tensor) -> Tensor:
        """Repeated picks `batch_shape x q` (−1 where padded) of the arm of each row, `batch_shape x 1`, from the leverages of
        all arms and the maximum number of picks of each row."""
        own = leverage.gather(-1, arm.clamp_min(0)).squeeze(-1)
        times = ((self.ratio_threshold - 1) / own).nan_to_num(0, posinf=2.0**31).floor().clamp_min(1).long()
        times = torch.minimum(times, remaining)
        if self.max_pulls is not None:
            times = times.clamp_max(self.max_pulls)
        place = torch.arange(int(times.max()), device=arm.device)
        return torch.where(place < times.unsqueeze(-1), arm, -1)

    @property
    def budget(self) -> float:
        """Infinite, so that only the number of picks ends a batch."""
        return math.inf

    def meter(self, lookahead: Lookahead) -> Meter:
        """A meter that nothing exceeds, for picks beside other pending picks."""
        return Meter(lookahead, self.budget)


@dataclass(frozen=True)
class Product(_Threshold):
    """Π (1 + lev_{s−1}(x_s)) ≤ C with hallucinated leverages. Source: Desautels et al. 2014, GP-BUCB."""

    @property
    def budget(self) -> float:
        """log C."""
        return math.log(self.ratio_threshold)

    def spends(self, start: Tensor, now: Tensor) -> Tensor:
        """The logarithm of the pick's factor."""
        return torch.log1p(now)

    def meter(self, lookahead: Lookahead) -> Meter:
        """Logarithms of the factors."""
        return Meter(lookahead, self.budget, dynamic=True)


@dataclass(frozen=True)
class Local(_Threshold):
    """max_x 1 + max(Σ c², Σ k̃²)/lev_fb(x) ≤ C̃. Source: Calandriello et al. 2020, Lemma 3, corrected."""

    def meter(self, lookahead: Lookahead) -> RatioMeter:
        """Squared covariances with the picks."""
        return ratio_meter(lookahead, self.ratio_threshold, exact=False)


@dataclass(frozen=True)
class GlobalThenLocal(_Threshold):
    """`Global` until it is exceeded, then `Local` from that pick on: the batches of `Local`, whose measure never exceeds that
    of `Global`."""

    def meter(self, lookahead: Lookahead) -> RatioMeter:
        """Leverages first, then squared covariances."""
        return ratio_meter(lookahead, self.ratio_threshold, exact=False)


@dataclass(frozen=True)
class ExactRatio(_Threshold):
    """max_x lev_fb(x)/lev_t(x) ≤ C̃. The largest batches, with a full sweep per pick once the bound of `Local` is exceeded.

    With a sampled dictionary lev_t is the smaller of two leverages: that of the frozen dictionary, whose residual no pick
    reduces, and that of the process conditioned on the picks. By the former alone, picks outside the span of the dictionary
    would never end a batch.
    """

    def meter(self, lookahead: Lookahead) -> RatioMeter:
        """Squared covariances as a bound, then the ratio itself."""
        return ratio_meter(lookahead, self.ratio_threshold, exact=True)


RULES: dict[str, type[_Threshold]] = {
    "global": Global,
    "local": Local,
    "global_then_local": GlobalThenLocal,
    "product": Product,
    "exact_ratio": ExactRatio,
}


def named_rule(name: str, ratio_threshold: float, max_batch_size: int | None = None, max_pulls: int | None = None) -> BatchRule:
    """The adaptive rule with the given name. Raises `ArgumentError` for an unknown name, and suggests the nearest name."""
    require(name in RULES, f"unknown batch_rule {name!r}; known: {', '.join(RULES)}.{nearest(name, RULES)}")
    return RULES[name](max_batch_size=max_batch_size, max_pulls=max_pulls, ratio_threshold=ratio_threshold)
