"""The noise of the rewards: that of two values, else that of repeated pulls where there are enough, else that of the model."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from torchbandits.explanation.explanation import FEW
from torchbandits.explanation.row import Row
from torchbandits.types import Marginals, Recommendation

_REPEATS = 10  # number of repeated pulls from which their scatter is the noise


class Noise(NamedTuple):
    """The noise of the rewards.

    Attributes:
        std: Standard deviation of a reward, reward units.
        repeated: Whether it is that of repeated pulls.
        two_values: The lower and the higher value of rewards that have two, whose noise is taken to be the largest possible.
    """

    std: float
    repeated: bool = False
    two_values: tuple[float, float] | None = None


def noise_of(row: Row, best: Recommendation | None = None) -> Noise:
    """The noise of the rewards of the best point, or by default of an average point pulled; NaN before the first pull."""
    values = _two_values(row)
    if values is not None:
        mean, variance = (_average(row), 0.0) if best is None else (float(best.mean[0]), float(best.variance[0]))
        return Noise(_of_two(values, mean, variance), two_values=values)
    std = _of_repeats(row, -1 if best is None else int(best.index[0]))
    if std is not None:
        return Noise(std, repeated=True)
    if not len(row.mean):
        return Noise(math.nan)
    return Noise(_of_model(row, float(row.mean.mean() if best is None else row.mean.max())))


def _two_values(row: Row) -> tuple[float, float] | None:
    """The lower and the higher value of the rewards, if they have two and their noise is taken to be the largest possible."""
    units = row.posterior.units
    if units is None or row.recipe is None or row.recipe.two_values is False:
        return None
    return units.two_values(row.posterior.statistics, row.place)


def _of_two(values: tuple[float, float], mean: float, variance: float) -> float:
    """Standard deviation of rewards of two values around a mean that is known up to this variance, which is never larger than
    theirs."""
    low, high = values
    return math.sqrt(max(variance, (mean - low) * (high - mean)))


def _average(row: Row) -> float:
    """The average reward, where the model has units of its own."""
    units = row.posterior.units
    assert units is not None
    return float(units.totals[row.place][:, 0].sum() / row.posterior.statistics.weights[row.place].sum())


def _of_repeats(row: Row, arm: int) -> float | None:
    """Standard deviation of repeated pulls around their averages, reward units: of the pulls of `arm` if at least ten are
    repeats, or else of those of all points. None if there are fewer, or the units are those of the model."""
    units, place = row.posterior.units, row.place
    if units is None:
        return None
    degrees, scatter = (t[place] for t in units.scatter(row.posterior.statistics))
    own = (row.state.rows.arm_of_row[place][: len(degrees)] == arm).to(degrees.device)
    own = own if arm >= 0 and float(degrees[own].sum()) >= _REPEATS else torch.ones_like(own)
    more = float(degrees[own].sum())
    return (float(scatter[own].sum()) / more) ** 0.5 if more >= _REPEATS else None


def _of_model(row: Row, mean: float) -> float:
    """Standard deviation, in reward units, of rewards around a mean in model units, under the model."""
    posterior, variance = row.posterior, row.noise_variance
    if posterior.units is None:
        return variance**0.5
    at, own = (posterior.units.scale.new_tensor([x]).expand(*posterior.batch_shape, 1) for x in (mean, variance))
    return float(posterior.units.marginals(Marginals(at, own)).variance[row.place]) ** 0.5


def share_of_repeats(row: Row) -> float | None:
    """Fraction of the rewards' variance over the distinct points that is noise, by repeated pulls, in reward units: that of the
    pulls around their averages, beside what these vary by more than their noise. None unless the policy estimates the noise
    from repeats, and has enough of them."""
    state, place, units, recipe = row.state, row.place, row.posterior.units, row.recipe
    statistics = state.statistics
    told = statistics.pulled[place]
    if units is None or recipe is None or int(told.sum()) < FEW or not bool(recipe.knows_noise(state)[place]):
        return None
    # In units of the variance of the averages, which has a share of the noise as well.
    noise = float(units.repeats(statistics)[1][place])
    apart = 1 - noise * float((1 / statistics.weights[place][told]).mean())
    return noise / (noise + max(0.0, apart))
