"""What a state has learned of one batch row, as explanations read it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torchbandits.checks import is_whole
from torchbandits.errors import require
from torchbandits.fitting.degeneracy import signal_variance
from torchbandits.kernels import kernel_diagonal, kernel_row
from torchbandits.policies.from_data import FromData
from torchbandits.policies.repeats import share_of_noise
from torchbandits.policies.state import TableState
from torchbandits.posteriors import GaussianProcess
from torchbandits.random_effects import RandomEffectKernel, smooth_part


class Row:
    """A batch row of a state.

    Args:
        state: The state.
        place: The index of the row.
        noise_variance: Noise variance of a reward of weight 1, in the units of the model.
        recipe: What the policy estimates from data; None if nothing.

    Attributes:
        state, place, noise_variance, recipe: As given.
        points: The points pulled, arms or not, `u x d`; without those whose rewards were forgotten.
        mean, variance: Posterior mean and variance of these points, `u` each, in the units of the model.
    """

    def __init__(self, state: TableState, place: tuple[int, ...], noise_variance: float, recipe: FromData | None) -> None:
        self.state, self.place, self.noise_variance, self.recipe = state, place, noise_variance, recipe
        told = state.statistics.pulled[place]
        self.points = state.statistics.pulled_of(place)
        mean, variance = state.row_marginals()
        self.mean, self.variance = mean[place][told], variance[place][told].clamp_min(0)

    @property
    def posterior(self) -> GaussianProcess:
        """The posterior of all batch rows."""
        return self.state.posterior

    @property
    def pulls(self) -> float:
        """Pulls told."""
        return float(self.state.told[self.place])

    @property
    def distinct(self) -> int:
        """Number of distinct points pulled."""
        return len(self.points)

    @property
    def elsewhere(self) -> int:
        """Number of distinct points pulled that are none of the arms."""
        told = self.state.statistics.pulled[self.place]
        return int((self.state.rows.arm_of_row[self.place][told] < 0).sum())

    @property
    def shifts(self) -> tuple[float, ...]:
        """See `Explanation.shifts`."""
        units = self.posterior.units
        return () if units is None else tuple(units.shifts(self.place).tolist())

    @property
    def overruled(self) -> bool:
        """See `Explanation.overruled`."""
        mean, state = self.state.row_marginals()[0], self.state
        signed = (mean if state.directions is None else state.directions * mean).masked_fill(
            ~state.statistics.pulled, -torch.inf
        )
        return bool((state.first_of(signed) != signed.argmax(dim=-1, keepdim=True))[self.place])

    @property
    def constant(self) -> bool:
        """See `Explanation.constant`."""
        units = self.posterior.units
        return units is not None and bool(units.constant(self.state.statistics)[self.place])

    @property
    def noise_share(self) -> float:
        """Fraction of the variance over the points pulled that is noise, under the model; NaN for a single point."""
        return share_of_noise(self.posterior, self.noise_variance, self.place)

    @property
    def unexplained(self) -> float:
        """See `Explanation.unexplained`: τ²/(τ² + v) for the expected variance v of the smooth part over the points pulled."""
        posterior = self.posterior
        kernel = kernel_row(posterior.kernel, posterior.batch_shape, self.place)
        if not isinstance(kernel, RandomEffectKernel):
            return 0.0
        smooth = float(signal_variance(smooth_part(kernel), self.points)) if self.distinct > 1 else 0.0
        effect = float(kernel.effect)
        return effect / (effect + smooth) if effect > 0 else 0.0

    @property
    def predictive_r2(self) -> float:
        r"""See `Explanation.predictive_r2`. Cost: O(u), from

        .. math:: \bar y_i - \mu_{-i} = (\bar y_i - \mu_i) / (1 - n_i v_i / \lambda)

        with the posterior variances v. Source: Rasmussen & Williams 2006, section 5.4.2, for averages of n rewards.
        """
        posterior, place, statistics = self.posterior, self.place, self.posterior.statistics
        if posterior.sparse or self.distinct < 2:
            return math.nan
        told = statistics.pulled[place]
        n, average = statistics.weights[place][told], (statistics.sums / statistics.weights)[place][told]
        prior = kernel_diagonal(kernel_row(posterior.kernel, posterior.batch_shape, place), self.points)
        # 1 − nv/λ cancels for a point that no other informs: without it, its variance is at most the prior's.
        kept = torch.maximum(1 - n * self.variance / posterior.regularization, self.variance / prior.clamp_min(1e-300))
        wrong = ((average - self.mean) / kept.clamp_min(1e-300)).square().sum()
        spread = (average - average.mean()).square().sum()
        return float(1 - wrong / spread) if float(spread) > 0 else math.nan

    @property
    def forecasts(self) -> int:
        """See `Explanation.forecasts`."""
        units = self.posterior.units
        return 0 if units is None else int(units.forecasts[self.place][0])

    @property
    def forecast_r2(self) -> float:
        """See `Explanation.forecast_r2`."""
        units = self.posterior.units
        if units is None:
            return math.nan
        _, wrong, spread = units.forecasts[self.place].tolist()
        return 1 - wrong / spread if spread > 0 else math.nan


def checked_names(names: Sequence[str] | None, num_features: int) -> tuple[str, ...]:
    """The names of the features; "feature 0" and so on by default."""
    if names is None:
        return tuple(f"feature {j}" for j in range(num_features))
    texts = isinstance(names, Sequence) and len(names) == num_features and all(isinstance(name, str) for name in names)
    require(texts, f"names must be texts, one for each of the {num_features} features, got {names!r}.")
    return tuple(names)


def check_row(place: Any, batch_shape: torch.Size) -> None:
    """Raise `ArgumentError` unless `place` is the index of a batch row."""
    inside = isinstance(place, tuple) and len(place) == len(batch_shape) and all(is_whole(i, 0) for i in place)
    inside = inside and all(i < size for i, size in zip(place, batch_shape, strict=True))
    require(inside, f"row must be one of the batch rows {tuple(batch_shape)}, got {place!r}.")
