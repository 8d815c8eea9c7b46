"""What a policy estimates from arms and rewards, for someone who knows no kernel, no noise and no scale."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import gpytorch
import torch
from torch import Tensor

from torchbandits.arms.duplicates import matches
from torchbandits.checks import check_whole, is_finite
from torchbandits.errors import require
from torchbandits.fitting.standardized import Priors, fit_standardized_
from torchbandits.kernels import stack_kernels
from torchbandits.policies.learning import learn_kernel, learn_sparsely
from torchbandits.policies.state import GaussianState
from torchbandits.posteriors import Units
from torchbandits.posteriors.averages import FEWEST
from torchbandits.sources import ArmSet
from torchbandits.sources.ranges import ranges_of
from torchbandits.types import FitReport, Pulls

_LEAST_EXACT = 16  # distinct arms of which all is kept, however many arms there are


@dataclass(frozen=True)
class FromData:
    """Scales from the arms, units from the rewards, kernel and noise from both, fitted anew as the data grow.

    Args:
        priors: Of the hyper-parameters.
        growth: Factor by which pulls grow between two fits, > 1.
        exact_bytes: Of what an exact posterior keeps of all arms; a dictionary takes its place beyond.
    """

    priors: Priors = field(default_factory=Priors)
    growth: float = 1.5
    exact_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        require(isinstance(self.priors, Priors), f"priors must be ingredients.Priors, got {self.priors!r}.")
        require(is_finite(self.growth) and self.growth > 1, f"growth must be finite and > 1, got {self.growth!r}.")
        check_whole("exact_bytes", self.exact_bytes, 0)

    def kernel(self, arms: ArmSet) -> gpytorch.kernels.Kernel:
        """The kernel before data, of the ranges of the arms: one for all batch rows, unless they have arms of their own."""
        ranges = ranges_of(arms)
        rows = [self.priors.kernel(row) for row in ranges.reshape(-1, ranges.shape[-1])]
        return stack_kernels(rows, ranges.shape[:-1]) if ranges.dim() > 1 else rows[0]

    def units(self, arms: ArmSet, batch_shape: torch.Size) -> Units:
        """Units before data."""
        return Units(ranges_of(arms).expand(*batch_shape, -1))

    def in_model_units(self, state: GaussianState, pulls: Pulls) -> Pulls:
        """The pulls, with what was told of each as the model is to hear it: average rewards by the units of the moment."""
        units, n = state.posterior.units, pulls.counts.clamp_min(1e-300)
        assert units is not None
        z = pulls.counts * units.to_model(pulls.sums / n)
        return replace(pulls, sums=z, squares=z.square() / n)

    def make_room(self, state: GaussianState, pulls: Pulls) -> None:
        """Give a posterior a dictionary before pulls that would make it outgrow `exact_bytes`, where arms are read piece by
        piece. A sweep needs the room twice."""
        most = self.exact_bytes // (2 * self._arm_bytes(state))
        if state.rows.streamed and not state.posterior.sparse and state.statistics.size + pulls.counts.shape[-1] > most:
            learn_sparsely(state)

    def learn(self, state: GaussianState, pulls: Pulls) -> None:
        """After the pulls were learned in model units: keep what was told of them, and fit anew in the batch rows where they
        have grown by so much. A posterior that outgrows `exact_bytes` gets a dictionary."""
        units, sums, squares = state.posterior.units, pulls.sums, pulls.squares
        assert units is not None
        if pulls.points is not None:
            row = matches(state.statistics.points, pulls.points.double())
        else:
            assert pulls.index is not None
            assert pulls.mask is not None
            arm, _, sums, squares = state.rows.distinct(pulls.index, pulls.mask, pulls.counts, sums, squares)
            row = torch.where(arm >= 0, state.rows.row_of(arm), -1)
        units.add_(row, sums, squares, state.statistics.size)
        if not state.posterior.sparse and state.statistics.size > self.most_exact(state):
            learn_sparsely(state)
        due = self._fits_by(state.told + pulls.counts.sum(dim=-1)) > self._fits_by(state.told)
        if bool(due.any()):
            self.refit(state, due)

    def _fits_by(self, pulls: Tensor) -> Tensor:
        """How many fits there are up to so many pulls: one a pull to the fifth, then one each time they have grown enough."""
        grown = (pulls.clamp_min(FEWEST) / FEWEST).log() / math.log(self.growth)
        return torch.where(pulls < FEWEST, pulls.floor(), FEWEST + grown.floor())

    def refit(self, state: GaussianState, rows: Tensor) -> FitReport:
        """Fit units, kernel and noise of the marked batch rows (`batch_shape` booleans); see `fit_standardized_`."""
        report = fit_standardized_(state.posterior, self.priors, rows)
        learn_kernel(state, rows)
        return report

    def most_exact(self, state: GaussianState) -> int:
        """Distinct arms up to which the posterior is exact: of each it keeps a number an arm and batch row."""
        return max(_LEAST_EXACT, self.exact_bytes // self._arm_bytes(state))

    def _arm_bytes(self, state: GaussianState) -> int:
        """Of a number an arm and batch row."""
        source, rows = state.rows.source, state.rows.batch_shape.numel()
        return source.dtype.itemsize * source.num_arms * rows
