"""Base of the policies that work in phases: the posterior of all pulls, and inner posteriors of some of them."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import gpytorch
import torch
from torch import Tensor

from torchbandits.arms import ArmRows, FullSweep
from torchbandits.checks import check_whole
from torchbandits.errors import NumericalError, UnsupportedError, require
from torchbandits.gradients import without_gradients
from torchbandits.policies.base import Policy
from torchbandits.policies.composed import Composed
from torchbandits.policies.picking import on_offer
from torchbandits.policies.state import SUMS, TableState
from torchbandits.types import Arms, Generators, Picks, Pulls
from torchbandits.widths.randomized import is_random

# Total slope of `preference`, relative to the largest prior standard deviation: above rounding errors, and otherwise
# negligible.
_SLOPE = 1e-9


class PhasedState(TableState):
    """The state of a policy that works in phases.

    Args:
        outer: State of all pulls, with the exact posterior, whose table and generators are used.
        inner: State of the pulls that count towards the phases.
    """

    def __init__(self, outer: TableState, inner: TableState) -> None:
        super().__init__(outer.table, outer.generators, counts_batches=outer.counts_batches)
        self.inner = inner

    def forget_derived_(self) -> None:
        """Drop the quantities derived from the state and the inner one, before they change."""
        super().forget_derived_()
        self.inner.forget_derived_()

    def _snapshots(self) -> list[Callable[[], None]]:
        return [*super()._snapshots(), self.inner.snapshot(draws=False)]


P = TypeVar("P", bound=PhasedState)


@dataclass(frozen=True, repr=False)
class Phased(Policy[P], ABC):
    """A policy that chooses by inner posteriors, each conditioned on pulls whose choice did not depend on their rewards.

    `PhasedState.inner` holds these posteriors, as a state of the same engine: one posterior per batch row, or one per level
    (the first dimension) and batch row. The posterior and table of the outer state are the exact posterior of all pulls, as for
    `gp_ucb`. The bandit reports and recommends from this outer posterior.

    Args:
        engine: Kernel, λ and width of all these posteriors.
        horizon: T, the number of pulls to come.
    """

    engine: Composed
    horizon: int

    def __post_init__(self) -> None:
        check_whole("horizon", self.horizon)
        message = "this policy compares bounds of one width, and random widths are drawn for every ask: pass another width=."
        require(not is_random(self.engine.confidence), message, UnsupportedError)

    @property
    def kernel(self) -> gpytorch.kernels.Kernel:
        """The kernel of all posteriors."""
        return self.engine.kernel

    @property
    def noise_std(self) -> float:
        """Sub-Gaussian constant of the noise, reward units."""
        return self.engine.noise_std

    @property
    def one_function(self) -> bool:
        """Whether the posterior of all pulls is that of one function under the kernel, so that stopping rules may read it."""
        return True

    @property
    def draws_on_update(self) -> bool:
        """Whether `update` may advance the generators: False, because nothing is drawn."""
        return False

    def begin(self, arms: Arms, generators: Generators, batch_shape: torch.Size, levels: tuple[int, ...] = ()) -> PhasedState:
        """Make a fresh state, with an inner state of batch shape `(*levels, *batch_shape)`."""
        outer = self.engine.init(arms, generators, batch_shape)
        inner = self.engine.init(arms, generators, torch.Size((*levels, *batch_shape)))
        return PhasedState(outer, inner)

    @without_gradients
    def width(self, state: P) -> Tensor:
        """The multiplier of the standard deviation in each phase, `batch_shape`."""
        return self.current_width(state)

    def current_width(self, state: P) -> Tensor:
        """The multiplier of the standard deviation in the current phase, `batch_shape`: the width of the engine. Policies may
        override it."""
        return self.engine.width(state)

    def marginals(self, state: TableState) -> tuple[Tensor, Tensor]:
        """The mean of every arm, and width times its standard deviation, in reward units, for an outer or an inner state."""
        std = (self.engine.regularization * state.arm_leverage()).sqrt()
        return state.arm_mean(), self.engine.width(state).unsqueeze(-1) * std

    def learn(self, state: P, pulls: Pulls) -> None:
        """Add pulls to the posterior of all pulls.

        Raises:
            NumericalError: If a mean is no longer finite.
        """
        self.engine.update(state, pulls)
        require(
            bool(torch.isfinite(state.arm_mean()).all()),
            "the posterior mean is not finite; the pulls were not learned. Check the size of the rewards and the kernel's "
            "hyper-parameters, or use a larger λ.",
            NumericalError,
        )

    def learn_inner(self, state: P, pulls: Pulls, index: Picks, counted: Tensor) -> None:
        """Add the marked pulls (`... x q` booleans, of entries `... x q`) to the inner posteriors."""
        inner = state.inner
        counts, sums, squares = (torch.where(counted, x, 0.0) for x in (pulls.counts, pulls.sums, pulls.squares))
        self.engine.update(inner, Pulls(counts, sums, squares, index=torch.where(counted, index, -1), mask=counted))
        inner.add_told_(counts)


def preference(state: TableState) -> Tensor:
    """A slowly falling function of the index, `batch_shape x A`, reward units. It is added to standard deviations, so that of
    arms that are equal up to rounding the lowest index wins. The last two survivors, for instance, are equal after every second
    pull."""
    A, shape = state.rows.num_arms, state.told.shape
    place = torch.arange(A, dtype=torch.float64, device=state.told.device) / A
    return (-_SLOPE * state.table.kappa2.sqrt().unsqueeze(-1) * place).expand(*shape, A)


def restart_(state: TableState, over: Tensor, *, told: bool = True) -> None:
    """Reset the marked batch rows (`batch_shape` booleans) to the prior, and their sums to 0, except without `told` the number
    of pulls told. Cost: a sweep over the arms."""
    state.forget_derived_()
    state.rows.clear_(state.statistics, over)
    state.posterior.invalidate_()
    state.table.sweep_()
    # Kept factors would have to be updated by every later pull.
    state.posterior.invalidate_()
    here, names = over.cpu(), SUMS if told else SUMS[1:]
    state.set_sums_(**{name: state.sum_on_host(name).masked_fill(here, 0.0) for name in names})


def beside_rows(values: Tensor, batch_shape: torch.Size) -> Tensor:
    """Values of the levels, `levels`, in the shape `levels x 1 x … x 1`, which broadcasts with `levels x batch_shape`."""
    return values.reshape(-1, *(1 for _ in batch_shape))


def at_one_level(level: Tensor, levels: int) -> Tensor:
    """`levels x batch_shape` booleans, true at the level of each row (`batch_shape`)."""
    return beside_rows(torch.arange(levels, device=level.device), level.shape) == level


def sweep_of(inner: TableState) -> FullSweep:
    """A sweep over the arms of an inner state, on which nothing is pending yet."""
    none = inner.told.new_zeros(*inner.told.shape, 0)
    return FullSweep(inner.table, None, (none.long(), none))


def offers(rows: ArmRows, available: Tensor | None) -> Tensor:
    """The arms that may be picked, `batch_shape x A`; of exact duplicates only the first. Raises as `on_offer` does."""
    offered = on_offer(rows, available)
    return torch.ones_like(rows.row_of_arm, dtype=torch.bool) if offered is None else offered.expand_as(rows.row_of_arm)


def one_by_one(index: Picks, counts: Tensor) -> Iterator[Tensor]:
    """Expand pulls of arms (`batch_shape x p`, with their counts) into single pulls, `batch_shape` at a time (−1 for none)."""
    for place in range(index.shape[-1]):
        for number in range(int(counts[..., place].max())):
            yield torch.where(counts[..., place] > number, index[..., place], -1)
