"""Estimation of kernel, noise and scales from arms and rewards, for runs in which none of them is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import gpytorch
import numpy as np
import torch
from torch import Tensor, nn

from torchbandits.checks import check_flag, check_whole, is_finite
from torchbandits.errors import require
from torchbandits.fitting.blocks import subtract_shifts_
from torchbandits.fitting.standardized import Priors, fit_standardized_
from torchbandits.kernels import kernel_row, stack_kernels
from torchbandits.policies.base import LATER
from torchbandits.policies.learning import draw_sparsely, learn_kernel, learn_sparsely
from torchbandits.policies.state import GaussianState, TableState
from torchbandits.posteriors import Units
from torchbandits.posteriors.averages import FEWEST
from torchbandits.random_effects import RandomEffectKernel
from torchbandits.sources import ArmSet, ArmSource
from torchbandits.sources.duplicates import first_occurrence, matches
from torchbandits.sources.packed import PackedArms
from torchbandits.sources.ranges import limited, or_one, ranges_of, spans_among, spans_with
from torchbandits.tanimoto import tanimoto_scale
from torchbandits.transfers import to_device, to_host
from torchbandits.types import FitReport, Pulls
from torchbandits.widths import Constant, Growing, Width

# Number of distinct pulled arms up to which the posterior is exact, however many arms there are.
_LEAST_EXACT = 16
# Number of pulls after which fits change little and are made less often.
_SETTLED = 256
# One pick in this many is a replicate, by default.
_REPLICATE_EVERY = 8
# Number of repeated pulls that tell the noise, and the number that does if they differ by little: if their variance is at most
# this share of that of the averages.
REPEATS, _FEW_REPEATS, _LITTLE = 10, 3, 0.05
# Width on fingerprints, tuned on properties and libraries that do not appear in the documentation.
_SIMILARITY_WIDTH = 1.0


@dataclass(frozen=True)
class FromData:
    """Estimates scales from the arms, units from the rewards, and kernel and noise from both, and refits as the data grow.

    Args:
        priors: Priors of the hyper-parameters.
        growth: Factor > 1 by which the number of pulls grows between two fits; beyond 256 pulls, the square of this factor. The
            pulls that were asked for count by themselves, too, until they are twice as many as those of a history, which may
            say little of them.
        exact_bytes: Maximum bytes that an exact posterior may store for all arms; beyond it, a dictionary is used.
        own_width: Whether the policy's width is used as it is; by default (None or False) a constant width grows with the
            repeats (`widths.Growing`), and is 1 for fingerprints.
        replicate_every: In batches and while other picks are pending, and for several outcomes always, one pick in this many
            evaluates the recommended arm again until the noise is known; 0 for never, 8 by default (None).
        effects: Whether arms have random effects, which features do not explain and repeated pulls tell from noise (by default,
            None or True). There are none among fingerprints.
        two_values: Whether rewards of two values, such as yes and no, are taken to have the largest noise that they can have,
            because single rewards do not tell it, and are not ranked (by default, None or True).
    """

    priors: Priors = field(default_factory=Priors)
    growth: float = 1.5
    exact_bytes: int = 2 << 30
    own_width: bool | None = None
    replicate_every: int | None = None
    effects: bool | None = field(default=None, metadata=LATER)
    two_values: bool | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        require(isinstance(self.priors, Priors), f"priors must be ingredients.Priors, got {self.priors!r}.")
        require(is_finite(self.growth) and self.growth > 1, f"growth must be finite and > 1, got {self.growth!r}.")
        check_whole("exact_bytes", self.exact_bytes, 0)
        check_whole("replicate_every", self.replicate_every, 0, otherwise="for 8")
        for name in ("own_width", "effects", "two_values"):
            check_flag(name, getattr(self, name), optional=True)

    def prior(self, arms: ArmSet, batch_shape: torch.Size) -> tuple[gpytorch.kernels.Kernel, Units]:
        """The kernel and the units before any data. There is one kernel for all batch rows unless the rows have different arms.
        Packed arms, which are fingerprints, get a Tanimoto kernel."""
        if isinstance(arms, PackedArms):
            ones = torch.ones(arms.dim, dtype=torch.float64, device=arms.device)
            return self.priors.similarity().to(ones), Units(ones.expand(*batch_shape, -1))
        ranges = ranges_of(arms)
        rows = [self.priors.kernel(row) for row in ranges.reshape(-1, ranges.shape[-1])]
        return stack_kernels(rows, ranges.shape[:-1]), Units(ranges.expand(*batch_shape, -1))

    def width(self, state: GaussianState, width: Width) -> Width:
        """The width that is used on the arms of a state, where `width` is the policy's width."""
        if self.own_width:
            return width
        if _is_similarity(state.posterior.kernel):
            return Constant(_SIMILARITY_WIDTH)
        return Growing(width.value) if isinstance(width, Constant) else width

    def replicates(self, state: TableState, remaining: Tensor, offered: Tensor | None = None) -> Tensor | None:
        """How many of the next `remaining` picks evaluate the recommended arm again, `batch_shape` each, on the host; None if
        none does, and if no pulled arm is on offer (`offered`, `batch_shape x A`; None for all arms).

        Without repeated pulls, a model cannot tell noise from a function that varies over short distances, and tends to explain
        one as the other. There are no replicates once repeated pulls tell the noise; none if picks are made one by one and none
        of them is pending, because the policy then returns to arms by itself; and none among fingerprints, whose similarity has
        no lengthscale to fit.
        """
        if not (every := self._replicates_every(state)):
            return None
        made = _made(state)
        due = ((made + remaining) // every - made // every).long()
        due = due.masked_fill(made - state.sum_on_host("told") + remaining <= 1, 0)
        if not bool(due.any()):
            return None
        due = due.masked_fill(self.knows_noise(state), 0)
        if offered is not None and not state.rows.sharded:
            due = due.masked_fill(~to_host((offered & (state.rows.row_of_arm >= 0)).any(dim=-1))[0], 0)
        return due if bool(due.any()) else None

    def replicates_one_by_one(self, state: TableState, count: int) -> Tensor | None:
        """Which of the next `count` picks of several outcomes (the last batch dimension of the state) evaluate a recommended
        arm again, `... x count` booleans on the host; None if none does.

        These are every eighth pick until repeated pulls tell the noise of each outcome, in batches and one by one, because the
        improvement, unlike an upper bound, does not return to arms by itself. There are none among fingerprints.
        """
        if not (every := self._replicates_every(state)):
            return None
        due = (_made(state).amax(dim=-1, keepdim=True).long() + torch.arange(1, count + 1)) % every == 0
        if not bool(due.any()):
            return None
        due = due & ~self.knows_noise(state).all(dim=-1, keepdim=True)
        return due if bool(due.any()) else None

    def _replicates_every(self, state: GaussianState) -> int:
        """The number of picks of which one is a replicate; 0 if none is."""
        every = _REPLICATE_EVERY if self.replicate_every is None else self.replicate_every
        return 0 if _is_similarity(state.posterior.kernel) else every

    def knows_noise(self, state: TableState) -> Tensor:
        """Whether there are enough repeated pulls to estimate the noise from them, `batch_shape` booleans on the host."""
        units = state.posterior.units
        assert units is not None
        repeats, noise_share = to_host(*units.repeats(state.statistics))
        return (repeats >= REPEATS) | ((repeats >= _FEW_REPEATS) & (noise_share <= _LITTLE))

    def follow(self, state: TableState, before: ArmSource, known: int | None = None) -> None:
        """Widen the ranges of features after the arms have changed, for instance by a new context, or a history of points was
        told.

        A feature with a single value so far, such as that of a single context, has a range of 1 by convention. Its lengthscale
        keeps its ratio to the range when the range changes, and so do all lengthscales before the first fit. A later range only
        grows. Kernel and noise are refitted where a feature was constant before, or a range has grown by half. Contexts that
        were only looked at, as by `best`, do not count (`ArmRows.limits`): a mistyped one would set the unit of all others.
        Similarities of fingerprints have no range.

        Args:
            state: State on the new arms; its buffers are replaced.
            before: The old arms.
            known: Number of rows of the statistics before the history; None for all.
        """
        posterior, units, shape = state.posterior, state.posterior.units, state.rows.batch_shape
        assert units is not None
        if _is_similarity(posterior.kernel):
            return
        told = state.statistics.pulled
        earlier = told if known is None else told & (torch.arange(told.shape[-1], device=told.device) < known)
        varied = spans_with(before, state.statistics.points, earlier) > 0
        span, old = spans_with(state.rows.source, state.statistics.points, told), units.features
        ranges = torch.maximum(span, torch.where(varied, old, 0.0))
        if (limits := state.rows.limits) is not None:
            ranges = limited(ranges, limits, state.statistics.points, told)
            c = limits.shape[-1]
            varied[..., :c] = spans_among(state.statistics.points, earlier)[..., :c] > 0
        ranges = or_one(ranges)
        new = (~varied | (self.growth * ranges < old)) & (ranges != old)
        due = (new | (ranges > self.growth * old)).any(dim=-1)
        if not bool((ranges != old).any()):
            return
        units.set_features_(ranges)
        unfit = told.sum(dim=-1, keepdim=True) < FEWEST
        factors = torch.where(new | unfit, ranges / old, 1.0)
        scaled = (factors != 1).any(dim=-1)
        if not bool((due | scaled).any()):
            return
        kernels = []
        for place in np.ndindex(*shape):
            kernels.append(kernel_row(posterior.kernel, shape, place))
            kernels[-1].base_kernel.lengthscale = kernels[-1].base_kernel.lengthscale.detach() * factors[place]
        posterior.set_kernel_(stack_kernels(kernels, shape), posterior.regularization)
        learn_kernel(state, scaled & ~due)
        if bool(due.any()):
            self.refit(state, due)

    def in_dtype_of_arms(self, state: GaussianState, pulls: Pulls) -> Pulls:
        """The pulls with points rounded as the arms are, so that a history in float64 tells of the arms that were made of it in
        float32, and shares their effects."""
        dtype = state.rows.source.dtype
        if pulls.points is None or pulls.points.dtype == dtype:
            return pulls
        return replace(pulls, points=pulls.points.to(dtype))

    def record_forecasts_(self, state: GaussianState, pulls: Pulls) -> None:
        """Compare the first rewards of arms with what the model expects of them, before it learns these rewards.

        Left out are rewards before the first fits, those told with their block, whose shift is not known yet, and those of arms
        that are spread over several machines. Cost: O(q), or O(q u) for points that are no arms.
        """
        units, rows = state.posterior.units, state.rows
        assert units is not None
        known = state.sum_on_host("told") >= FEWEST
        if pulls.block is not None or rows.sharded or not bool(known.any()):
            return
        if pulls.points is not None:
            row, mean = matches(state.statistics.points, pulls.points.double()), state.model_mean(pulls.points)
        else:
            assert pulls.index is not None
            entry = rows.entry(pulls.index)
            row, mean = torch.where(entry >= 0, rows.row_of(entry), 0), state.mean_at(entry)
        fresh = (row < 0) & (pulls.counts > 0) & to_device(row.device, known)[0].unsqueeze(-1)
        units.add_forecasts_(mean, pulls.sums / pulls.counts.clamp_min(1e-300), fresh)

    def in_model_units(self, state: GaussianState, pulls: Pulls) -> Pulls:
        """The pulls with sums in the model's current units, such that the total of each point is its number of pulls times the
        image of its average reward, as after a fit.

        The image of the average is not the average of the images: among the best arms the map is convex, so that sums of the
        images of single rewards would say more of an arm the noisier its rewards are, until the next fit.
        """
        units, statistics = state.posterior.units, state.statistics
        assert units is not None
        if pulls.points is not None:
            row = matches(statistics.points, pulls.points.double())
            # A new point that comes twice is the first place that it has.
            first = first_occurrence(pulls.points)
            place = torch.arange(row.shape[-1], device=row.device).expand(row.shape) if first is None else first
            key = torch.where(row >= 0, row, statistics.size + place)
        else:
            assert pulls.index is not None
            assert pulls.mask is not None
            key = state.rows.entry(pulls.index)
            row = torch.where(pulls.mask, state.rows.row_of(key), -1)
        n, s = _over_groups(key, pulls.counts, pulls.sums)
        slot = row.clamp_min(0)
        if statistics.size:
            told = nn.functional.pad(units.totals, (0, 0, 0, statistics.size - units.totals.shape[-2]))[..., 0]
            totals = (statistics.weights, told, statistics.sums)
            weights, rewards, known = (torch.where(row >= 0, x.gather(-1, slot), 0.0) for x in totals)
        else:
            weights = rewards = known = torch.zeros_like(s)
        total, share = (weights + n).clamp_min(1e-300), pulls.counts / n.clamp_min(1e-300)
        sums = share * (total * units.to_model((rewards + s) / total) - known)
        squares, host = sums.square() / pulls.counts.clamp_min(1e-300), pulls.host
        if host is not None:
            own_sums, own_squares = to_host(sums, squares)
            host = replace(host, sums=own_sums, squares=own_squares)
        return replace(pulls, sums=sums, squares=squares, host=host)

    def make_room(self, state: GaussianState, pulls: Pulls) -> None:
        """Give the posterior a dictionary before pulls that would make it exceed `exact_bytes`, if arms are read piece by
        piece. The limit is then halved, because a sweep needs the memory twice."""
        most = self.exact_bytes // (2 * self._arm_bytes(state))
        if state.rows.streamed and not state.posterior.sparse and state.statistics.size + pulls.counts.shape[-1] > most:
            learn_sparsely(state)

    def learn(self, state: GaussianState, pulls: Pulls, due: Tensor) -> None:
        """Record the rewards of pulls that were learned in model units, and refit the batch rows that are `due`, or that have
        an average far outside the range of the last fit. A posterior that exceeds `exact_bytes` gets a dictionary."""
        units, sums, squares = state.posterior.units, pulls.sums, pulls.squares
        assert units is not None
        known = units.totals.shape[-2]
        if pulls.points is not None:
            own = row = matches(state.statistics.points, pulls.points.double())
        else:
            assert pulls.index is not None
            assert pulls.mask is not None
            arm, _, sums, squares = state.rows.distinct(pulls)
            row = torch.where(arm >= 0, state.rows.row_of(arm), -1)
            own = torch.where(pulls.mask, state.rows.row_of(state.rows.entry(pulls.index)), -1)
        deviations = units.deviations_with(own, pulls.counts, pulls.sums, pulls.squares, state.statistics)
        blocked = pulls.block is not None or units.blocked
        if blocked and not units.blocked:
            counts = torch.where(own >= 0, pulls.counts, 0.0).double()
            units.begin_blocks_(state.statistics.weights.scatter_add(-1, own.clamp_min(0), -counts))
        units.add_(row, sums, squares, state.statistics.size, deviations)
        if pulls.unasked is not None and bool(pulls.unasked.any()):
            units.add_unasked_(_of_rows(pulls.unasked, state.sum_on_host("told")))
        if blocked:
            units.add_to_blocks_(own, pulls)
        # The units of the last fit do not extend to an average so far from all others.
        due = due | units.far_off(state.statistics).cpu()
        # Points of other contexts may have features that all arms share.
        follows = pulls.points is not None and isinstance(state, TableState) and state.rows.limits is not None
        grown = not state.posterior.sparse and state.statistics.size > self.most_exact(state)
        redraws = grown and not follows and bool(due.all())
        if grown:
            learn_sparsely(state, refits=redraws)
        if follows:
            assert isinstance(state, TableState)
            self.follow(state, state.rows.source, known)
        if bool(due.any()):
            self.refit(state, due.to(state.rows.source.device), redraws=redraws)

    def due(self, state: GaussianState, pulls: Pulls) -> Tensor:
        """Batch rows that are due for a fit by their number of pulls once these new pulls are included, `batch_shape` booleans
        on the host."""
        told, new = state.sum_on_host("told"), (pulls.host or pulls).counts.sum(dim=-1).cpu()
        units = state.posterior.units
        assert units is not None
        due = self._fits_by(told + new) > self._fits_by(told)
        if units.unasked.shape[-1]:
            history = units.unasked.squeeze(-1).cpu()
            asked = (told - history).clamp_min(0)
            fresh = new if pulls.unasked is None else (new - _of_rows(pulls.unasked, new)).clamp_min(0)
            more = self._fits_after(history, asked + fresh) > self._fits_after(history, asked)
            due = due | (more & (2 * history >= asked))
        # The shifts of blocks change with every reward.
        return due | (new > 0) if pulls.block is not None or units.blocked else due

    def _fits_by(self, pulls: Tensor) -> Tensor:
        """The number of fits within the given number of pulls: one per pull up to the fifth, then one per growth by the factor
        `growth`, and beyond `_SETTLED` one per growth by its square."""
        grown = (pulls.clamp_min(FEWEST) / FEWEST).log() - 0.5 * (pulls.clamp_min(_SETTLED) / _SETTLED).log()
        return torch.where(pulls < FEWEST, pulls.floor(), FEWEST + (grown / math.log(self.growth)).floor())

    def _fits_after(self, history: Tensor, asked: Tensor) -> Tensor:
        """The number of fits within the given number of pulls that were asked for after a history: from the fifth on, one per
        growth by the factor `growth`, or by its square after a history of more than `_SETTLED` pulls."""
        grown = (asked.clamp_min(FEWEST) / FEWEST).log() / math.log(self.growth)
        return torch.where(history > _SETTLED, 0.5 * grown, grown).floor()

    def refit(self, state: GaussianState, rows: Tensor, *, redraws: bool = False) -> FitReport:
        """Fit units, kernel and noise of the marked batch rows (`batch_shape` booleans); see `fit_standardized_`.

        Args:
            redraws: Whether the dictionary contains all points, and is to be drawn after the fit.
        """
        effects = self.effects is not False and not _is_similarity(state.posterior.kernel)
        if effects and (dtype := state.rows.source.dtype) != torch.float64:
            # In a state of before `in_dtype_of_arms`, points may differ from arms in digits that the arms do not have.
            points = state.statistics.points
            effects = bool((points.to(dtype) == points).all())
        two_values = self.two_values is not False
        assert state.posterior.units is not None
        if state.posterior.units.blocked:
            subtract_shifts_(state.posterior, self.priors, rows)
        report = fit_standardized_(state.posterior, self.priors, rows, effects=effects, two_values=two_values)
        if redraws:
            draw_sparsely(state)
        learn_kernel(state, rows)
        return report

    def most_exact(self, state: GaussianState) -> int:
        """The number of distinct arms up to which the posterior is exact. An exact posterior stores, for each of them, one
        number per arm and batch row."""
        return max(_LEAST_EXACT, self.exact_bytes // self._arm_bytes(state))

    def _arm_bytes(self, state: GaussianState) -> int:
        """Bytes of a tensor with one number per arm and batch row."""
        source, rows = state.rows.source, state.rows.batch_shape.numel()
        return source.dtype.itemsize * source.num_arms * rows


def _is_similarity(kernel: gpytorch.kernels.Kernel) -> bool:
    """Whether a kernel is the similarity of fingerprints. (An earlier version could give it random effects.)"""
    base = kernel.base_kernel if isinstance(kernel, RandomEffectKernel) else kernel
    return tanimoto_scale(base) is not None


def _over_groups(key: Tensor, *values: Tensor) -> Sequence[Tensor]:
    """Sums of values over the places of a batch row with the same key, at each of these places, `batch_shape x q` each:
    on the host, where the order of summation is fixed."""
    if key.shape[-1] == 1:
        return values
    here, *own = to_host(key, *values)
    rows = torch.arange(here.shape[:-1].numel()).reshape(*here.shape[:-1], 1)
    _, group = (here - here.min() + rows * (here.max() - here.min() + 1)).unique(return_inverse=True)
    flat = group.reshape(-1)
    sums = (torch.zeros(len(flat), dtype=x.dtype).scatter_add(0, flat, x.reshape(-1))[group] for x in own)
    return to_device(key.device, *sums)


def _of_rows(numbers: Tensor, like: Tensor) -> Tensor:
    """Numbers of batch rows, `batch_shape`, on the host, in the shape of `like`, which may have the outcomes as well."""
    own = numbers.cpu()
    return own[(..., *[None] * (like.dim() - own.dim()))].expand_as(like)


def _made(state: TableState) -> Tensor:
    """Number of picks that were told or are pending, `batch_shape` on the host."""
    told = state.sum_on_host("told")
    return told + to_host(state.pending_counts.sum(dim=-1))[0] if state.pending_index.shape[-1] else told
