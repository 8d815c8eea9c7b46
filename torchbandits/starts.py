"""First picks, made before a policy's own rule.

Use `uniform(1)` to start as the papers do, `uniform()` for CUB's 2^d points, `spread(n)` for arms that represent all others,
and `uncertainty(P)` to ensure that every later batch of the global rule has at least P (C̃ − 1) picks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor, nn

from torchbandits.arms import ArmRows, ArmTable, best_arm
from torchbandits.arms.rows import Summed
from torchbandits.checks import check_whole, positive
from torchbandits.errors import ArgumentError, UnsupportedError, require
from torchbandits.kernels import distances
from torchbandits.posteriors import GaussianProcess, Statistics
from torchbandits.sources.ranges import limited, or_one, spans_with
from torchbandits.transfers import to_device, to_host

__all__ = ["Spread", "Start", "Uncertainty", "Uniform", "spread", "uncertainty", "uniform"]

# Maximum number of arms that `Spread` considers.
_SAMPLE = 1024
# Relative difference of distances that counts as rounding.
_TIE = 1e-9
# Bytes for cached columns during uncertainty sampling.
_MEMORY_BUDGET = 2 << 30


@dataclass(frozen=True)
class Opening:
    """The inputs of a start.

    Attributes:
        rows: The arms, and the row of the statistics of each.
        statistics: Sums of the observations.
        kernel: Kernel of the policy.
        regularization: λ of the policy.
        pending: Pending arms (−1 where padded) and their counts, `batch_shape x p`.
        made: `batch_shape`, number of pulls told and pending, on the host.
        remaining: `batch_shape`, maximum number of picks of this call, on the host.
        offered: `batch_shape x A` booleans, or None for all arms.
        generators: One per batch row, to draw from.
        fill: Whether exactly `remaining` picks are required as long as the start is not over.
    """

    rows: ArmRows
    statistics: Statistics
    kernel: gpytorch.kernels.Kernel
    regularization: float
    pending: tuple[Tensor, Tensor]
    made: Tensor
    remaining: Tensor
    offered: Tensor | None
    generators: Sequence[torch.Generator]
    fill: bool = False


class Start(ABC):
    """The first picks of a run."""

    @abstractmethod
    def picks(self, opening: Opening) -> tuple[Tensor, Tensor]:
        """Return the next first picks, `batch_shape x q` (−1 where padded), on the host or on the device of the arms, and a
        `batch_shape` mask of the rows whose start is over, on the host."""

    def points(self, box: Tensor, made: Tensor, remaining: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the next first picks in a box (`batch_shape x 2 x d`), `batch_shape x q x d`, NaN where padded.

        Args:
            box: Corners, lower first.
            made: `batch_shape`, number of pulls told and pending, on the host.
            remaining: `batch_shape`, maximum number of picks of this call, on the host.
            generators: One per batch row, to draw from.

        Raises:
            UnsupportedError: For a start that depends on all arms.
        """
        raise UnsupportedError(
            f"{type(self).__name__} looks at all arms, and a box has none: use starts.uniform(), or pass arms."
        )


@dataclass(frozen=True)
class Uniform(Start):
    """`size` arms drawn uniformly, with replacement; by default 2^d arms (at most A)."""

    size: int | None = None

    def __post_init__(self) -> None:
        check_whole("size", self.size, otherwise="for 2^d picks")

    def picks(self, opening: Opening) -> tuple[Tensor, Tensor]:
        """Draw uniformly from the arms on offer."""
        A = opening.rows.num_arms
        size = min(A, 2 ** min(opening.rows.source.dim, 40)) if self.size is None else self.size
        left = (size - opening.made).clamp_min(0).long()
        wanted = torch.where(left > 0, opening.remaining, 0) if opening.fill else left
        missing = torch.minimum(wanted, opening.remaining).reshape(-1).tolist()
        return _drawn(opening, missing).reshape(*left.shape, -1), left == 0

    def points(self, box: Tensor, made: Tensor, remaining: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draw uniformly from the box. Raises `ArgumentError` if no size is given and 2^d is more than 1,024."""
        d = box.shape[-1]
        message = f"2^{d} first picks are too many for a box of {d} features: pass initial=starts.uniform(size)."
        require(self.size is not None or d <= 10, message)
        missing = torch.minimum(((2**d if self.size is None else self.size) - made).clamp_min(0).long(), remaining)
        return draw_points(box, missing.reshape(-1).tolist(), generators)


@dataclass(frozen=True)
class Spread(Start):
    """`size` arms that represent all others, chosen greedily to minimise the mean distance of the arms to their nearest pick.

    Distances are Euclidean, with each feature in units of its range over the arms (without the outer 1 % at either end). More
    than 1,024 arms are represented by a uniform sample of 1,024, redrawn for every ask. Told and pending arms count as picked.
    Cost O(d) per pair of arms of the sample.
    Source: Kaufman and Rousseeuw 1990, the first phase of PAM.
    """

    size: int

    def __post_init__(self) -> None:
        check_whole("size", self.size)

    def picks(self, opening: Opening) -> tuple[Tensor, Tensor]:
        """Pick arms one after the other, each with the greatest reduction; picks beyond the sample are drawn uniformly."""
        rows, shape = opening.rows, opening.made.shape
        left = (min(rows.num_arms, self.size) - opening.made).clamp_min(0).long()
        wanted = torch.minimum(torch.where(left > 0, opening.remaining, 0) if opening.fill else left, opening.remaining)
        count, over = wanted.reshape(-1).tolist(), left == 0
        if not any(count):
            return torch.full((*shape, 0), -1), over
        sample = self._sample(opening, count)
        asked = opening.pending[0]
        made = torch.cat([opening.statistics.points, rows.points(asked).double()], dim=-2)
        known = torch.cat([opening.statistics.pulled, asked >= 0], dim=-1)
        ranges = or_one(limited(spans_with(rows.source, made, known), rows.limits, made, known)).unsqueeze(-2)
        points, made = rows.points(sample).double() / ranges, made / ranges
        sizes = (sample >= 0).sum(dim=-1).reshape(-1).tolist()
        more = [c if c > n else 0 for c, n in zip(count, sizes, strict=True)]
        index = _drawn(opening, more).to(asked.device)
        index = nn.functional.pad(index, (0, max(count) - index.shape[-1]), value=-1)
        flat = (x.reshape(len(count), *x.shape[len(shape) :]) for x in (sample, points, made, known))
        for row, (arm, x, given, mask) in enumerate(zip(*flat, strict=True)):
            if n := min(sizes[row], count[row]):
                index[row, :n] = arm[_medoids(x[: sizes[row]], given[mask], n)]
        return index.reshape(*shape, -1), over

    def _sample(self, opening: Opening, count: Sequence[int]) -> Tensor:
        """The arms on offer, or a sample of more than 1,024, in ascending order, `batch_shape x n`; −1 at the end where padded,
        and in rows without a pick."""
        A, shape, device = opening.rows.num_arms, opening.made.shape, opening.pending[0].device
        few: list[Tensor | None] = [None] * len(count)
        if opening.offered is not None:
            arms = [row.nonzero().squeeze(-1) for row in opening.offered.expand(*shape, A).reshape(-1, A)]
            few = [own if len(own) <= _SAMPLE else None for own in arms]
        elif A <= _SAMPLE:
            return torch.arange(A, device=device).expand(*shape, A)
        drawn = _drawn(opening, [_SAMPLE if n and own is None else 0 for n, own in zip(count, few, strict=True)])
        drawn = drawn.sort(dim=-1).values.to(device)
        parts = [some if own is None else own[: A if n else 0] for n, own, some in zip(count, few, drawn, strict=True)]
        return nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=-1).reshape(*shape, -1)


def _drawn(opening: Opening, count: Sequence[int]) -> Tensor:
    """Draw arms on offer uniformly with replacement, `rows x max(count)`, −1 where padded."""
    A, shape = opening.rows.num_arms, opening.made.shape
    offered = None if opening.offered is None else opening.offered.expand(*shape, A).reshape(-1, A)
    return draw_uniform(A, count, opening.generators, offered)


def _medoids(points: Tensor, given: Tensor, count: int) -> Tensor:
    """Choose `count` of the points (`n x d`) greedily so that, with the given points (`g x d`), the mean distance is
    smallest."""
    nearest = distances(points, given).amin(dim=-1) if len(given) else torch.full_like(points[:, 0], torch.inf)
    each, chosen = distances(points, points), []
    taken = torch.zeros_like(nearest, dtype=torch.bool)
    for _ in range(count):
        total = torch.minimum(each, nearest).sum(dim=-1).masked_fill(taken, torch.inf)
        # Among totals that are equal up to rounding, the lowest index wins.
        best = (total <= total.amin() * (1 + _TIE)).nonzero()[0, 0]
        nearest, taken[best] = torch.minimum(nearest, each[best]), True
        chosen.append(best)
    return torch.stack(chosen)


@dataclass(frozen=True)
class Uncertainty(Start):
    """The arm of the largest leverage, repeatedly, until no leverage exceeds 1/`min_batch_size`.

    These picks do not depend on rewards, so they are one batch. They use the exact posterior, whatever the memory of the
    policy. Afterwards every batch of the global rule has at least P (C̃ − 1) picks on an exact posterior. With a Nyström
    posterior it has at least P (C̃ − 1)/3 picks with probability 1 − δ under the theory's oversampling; at q̄ = 2 there is no
    guarantee.
    Source: Calandriello et al. 2020, Alg. 3.
    """

    min_batch_size: float
    max_pulls: int = 10_000

    def __post_init__(self) -> None:
        positive("min_batch_size (P)", self.min_batch_size)
        check_whole("max_pulls", self.max_pulls)

    def picks(self, opening: Opening) -> tuple[Tensor, Tensor]:
        """Return all remaining picks at once. Cost O(A u) per pick.

        Raises:
            ArgumentError: If `max_pulls` pulls in total are not enough. It is raised before any pick is asked for, and the
                message names the P that they reach.
        """
        table = _exact_table(opening)
        arms, (made,) = [], to_device(table.leverage.device, opening.made)
        # The margin absorbs rounding: an arm with leverage exactly 1/P needs no further pull.
        level = 1 / self.min_batch_size * (1 + 1e-9)
        while True:
            leverage = table.leverage if opening.offered is None else table.leverage.masked_fill(~opening.offered, 0.0)
            live = leverage.amax(dim=-1) > level
            if not bool(live.any()):
                break
            if bool((live & (made >= self.max_pulls)).any()):
                reached = _rounded_down(1 / float(leverage.amax(dim=-1)[live].max()))
                raise ArgumentError(
                    f"min_batch_size={self.min_batch_size:g} takes more than max_pulls={self.max_pulls} first pulls; "
                    f"with them, min_batch_size={reached:.3g} is reached: ask for that, or allow more."
                )
            arm = torch.where(live, best_arm(leverage), -1).unsqueeze(-1)
            arms.append(arm)
            made = made + live
            _pull_(table, arm, live.double().unsqueeze(-1))
        over = torch.full(opening.made.shape, not arms)
        if not arms:
            return opening.pending[0][..., :0], over
        index = torch.cat(arms, dim=-1)
        within = torch.arange(index.shape[-1]) < opening.remaining.unsqueeze(-1)
        index = torch.where(within.to(index.device), index, -1)
        return index[..., : int(opening.remaining.max())], ~(index >= 0).any(dim=-1).cpu() & (opening.remaining > 0)


def uniform(size: int | None = None) -> Uniform:
    """`size` arms drawn uniformly, with replacement; by default 2^d arms (at most A)."""
    return Uniform(size)


def spread(size: int) -> Spread:
    """`size` arms that represent all others; see `Spread`."""
    return Spread(size)


def uncertainty(min_batch_size: float, *, max_pulls: int = 10_000) -> Uncertainty:
    """Uncertainty sampling until every later batch of the global rule has `min_batch_size` (C̃ − 1) picks; see `Uncertainty`.

    Args:
        min_batch_size: P; the start ends when all leverages are at most 1/P.
        max_pulls: Maximum total number of pulls. A P that needs more raises an error before any arm is asked for.
    """
    return Uncertainty(min_batch_size, max_pulls)


def _exact_table(opening: Opening) -> ArmTable:
    """The table of the exact posterior after the told and pending pulls, with rewards of 0."""
    arms, statistics, shape = opening.rows.source, opening.statistics, opening.made.shape
    rows = ArmRows(arms, shape)
    posterior = GaussianProcess(opening.kernel, opening.regularization, dim=arms.dim, batch_shape=shape, device=arms.device)
    table = ArmTable(rows, posterior, _MEMORY_BUDGET)
    if statistics.size:
        nothing = torch.zeros_like(statistics.weights)
        posterior.add_(posterior.append_(statistics.points, statistics.mask), statistics.weights, nothing, nothing)
        rows.row_of_arm, rows.arm_of_row = opening.rows.row_of_arm, opening.rows.arm_of_row
        table.sweep_()
        posterior.invalidate_()
    index, counts = opening.pending
    for place in range(index.shape[-1]):
        part = slice(place, place + 1)
        _pull_(table, index[..., part], torch.where(index[..., part] >= 0, counts[..., part], 0.0))
    return table


def _rounded_down(value: float) -> float:
    """Round down to three significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.floor(value / unit) * unit


def _pull_(table: ArmTable, arm: Tensor, counts: Tensor) -> None:
    """Add pulls of one arm per batch row with a reward of 0."""
    posterior, nothing = table.posterior, torch.zeros_like(counts)
    slot = arm.clamp_min(0)
    cross = table.cross(slot)
    table.rows.tell_(posterior, Summed.of(arm.device, *to_host(arm, counts, nothing, nothing)))
    table.update_(slot, counts, posterior.targets_of(counts, nothing), cross)
    if table.needs_sweep():
        table.sweep_()
        posterior.invalidate_()


def draw_points(box: Tensor, count: Sequence[int], generators: Sequence[torch.Generator]) -> Tensor:
    """Uniform draws from a box (`batch_shape x 2 x d`), `batch_shape x max(count) x d`, NaN where padded; row r uses
    `generators[r]` only."""
    d = box.shape[-1]
    unit = torch.full((len(count), max(count, default=0), d), torch.nan, dtype=torch.float64)
    for row, (n, generator) in enumerate(zip(count, generators, strict=True)):
        unit[row, :n] = torch.rand(n, d, generator=generator, dtype=torch.float64)
    return torch.lerp(box[..., :1, :], box[..., 1:, :], unit.reshape(*box.shape[:-2], -1, d).to(box))


def draw_uniform(num_arms: int, count: Sequence[int], generators: Sequence[torch.Generator], offered: Tensor | None) -> Tensor:
    """Uniform draws with replacement, `rows x max(count)`, −1 where padded; row r uses `generators[r]` only."""
    index = torch.full((len(count), max(count, default=0)), -1)
    for row, (n, generator) in enumerate(zip(count, generators, strict=True)):
        if offered is None or not offered.numel():
            index[row, :n] = torch.randint(num_arms, (n,), generator=generator)
        elif n:
            arms = offered[row].nonzero().squeeze(-1).cpu()
            if arms.numel():
                index[row, :n] = arms[torch.randint(arms.numel(), (n,), generator=generator)]
    return index
