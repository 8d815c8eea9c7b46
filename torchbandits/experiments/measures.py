"""Measures of records: curves over time, and intervals over repetitions.

A curve takes a record and pulls t = 1, 2, … and returns a value for each t: regret, time, sizes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # type: ignore[import-untyped]

from torchbandits.experiments.config import BASELINE, ExperimentConfig
from torchbandits.experiments.records import Record, of_place

Values = NDArray[np.float64]
Times = NDArray[np.int64]
Curve = Callable[[Record, Times], Values]

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Measure:
    """A curve, its axis label with units, and its scale."""

    label: str
    curve: Curve
    yscale: str = "linear"
    top: float | None = None
    bottom: float | None = 0.0  # of a linear axis; None where values may be negative


def measures(baseline: dict[int, Values], trainers: int = 1) -> dict[str, Measure]:
    """All measures by the names that configurations of figures use.

    Args:
        baseline: Cumulative regret of the uniform policy by seed, reward units.
        trainers: Number of simultaneous evaluations, for `training_hours`.
    """

    def ratio(record: Record, t: Times) -> Values:
        return regret_ratio(record, baseline)[t - 1]

    def share(record: Record, t: Times) -> Values:
        return regret_share(record, baseline)[t - 1]

    hours = f"policy and training time until t\nwith {trainers} trainers (hours)"
    return {
        # The ratio of the very first pulls is noise: without a limit it would flatten the rest of the curve.
        "regret_ratio": Measure("regret until t / regret of uniform (no unit)", ratio, top=1.5),
        "regret_share": Measure("regret until t / mean regret of uniform (no unit)", share, top=1.5),
        "regret": Measure("regret until t (reward units)", regret),
        "mean_regret": Measure("mean regret of the first t pulls (reward units)", mean_regret),
        "step_regret": Measure("regret per pull, t/2 to t (reward units)", step_regret),
        "simple_regret": Measure("regret of the recommended arm (reward units)", simple_regret),
        "best_regret": Measure("regret of the best arm pulled (reward units)", best_regret),
        "best_reward": Measure("largest reward of the first t pulls (reward units)", best_reward, bottom=None),
        "seconds": Measure("policy time until t (seconds)", elapsed, "log"),
        "step_seconds": Measure("policy time per pull, t/2 to t (seconds)", step_seconds, "log"),
        "batch_size": Measure("size of the batch holding t (pulls)", partial(_per_batch, "size"), "log"),
        "batches": Measure("batches until t", batches),
        "dictionary_size": Measure("dictionary after the batch holding t (points)", dictionary_size),
        "distinct_arms": Measure("distinct arms after the batch holding t", partial(_per_batch, "distinct_arms")),
        "training_hours": Measure(hours, partial(training_hours, trainers), "log"),
    }


def regret(record: Record, t: Times) -> Values:
    """Cumulative regret of the first t pulls, reward units."""
    return record.history.cumulative_regret()[t - 1]


def mean_regret(record: Record, t: Times) -> Values:
    """Cumulative regret of the first t pulls over t, reward units."""
    return regret(record, t) / t


def step_regret(record: Record, t: Times) -> Values:
    """Mean regret of the pulls after ⌊t/2⌋ until t, reward units."""
    return _late_mean(record.history.cumulative_regret(), t)


def step_seconds(record: Record, t: Times) -> Values:
    """Mean seconds spent in the policy for the pulls after ⌊t/2⌋ until t; a batch's seconds are shared by its pulls."""
    batches = record.history.batches
    return _late_mean(np.cumsum(np.repeat(batches["seconds"] / batches["size"], batches["size"])), t)


def _late_mean(cumulative: Values, t: Times) -> Values:
    whole = np.concatenate([[0.0], cumulative])
    return np.asarray((whole[t] - whole[t // 2]) / (t - t // 2))


def simple_regret(record: Record, t: Times) -> Values:
    """Regret of the arm recommended after the batch that holds pull t, reward units."""
    return _per_batch("simple_regret", record, t)


def best_regret(record: Record, t: Times) -> Values:
    """Regret of the best arm among the first t pulls, f* − max f(x_s), reward units: the simple regret of the BBKB paper."""
    return np.asarray(np.minimum.accumulate(record.history.pulls["regret"])[t - 1])


def best_reward(record: Record, t: Times) -> Values:
    """Largest reward among the first t pulls, with its noise, reward units."""
    return np.asarray(np.maximum.accumulate(record.history.pulls["reward"])[t - 1], np.float64)


def regret_is_known(records: Iterable[Record]) -> bool:
    """Whether the environment knew its optimum, so that some record has a regret."""
    return any(not bool(np.isnan(record.history.pulls["regret"]).all()) for record in records)


def elapsed(record: Record, t: Times) -> Values:
    """Seconds spent in the policy until the end of the batch that holds pull t."""
    return np.cumsum(record.history.batches["seconds"])[_batch_of(record, t)]


def batches(record: Record, t: Times) -> Values:
    """Number of batches until pull t, its own included."""
    return _batch_of(record, t).astype(np.float64) + 1


def dictionary_size(record: Record, t: Times) -> Values:
    """Dictionary points after the batch that holds pull t; NaN where the record holds no size (−1)."""
    sizes = _per_batch("dictionary_size", record, t)
    return np.where(sizes < 0, np.nan, sizes)


def training_hours(trainers: int, record: Record, t: Times) -> Values:
    """Hours until the batch that holds pull t is evaluated.

    The sum of the policy's own time and, where pulls have costs in seconds, the time until the last network of each batch is
    trained. A network goes to the trainer that is free first; the next batch starts when all of a batch are trained.
    """
    batches, cost = record.history.batches, np.nan_to_num(record.history.pulls["cost"])
    ends = np.cumsum(batches["size"])
    spans = [makespan(part, trainers) for part in np.split(cost, ends[:-1])]
    return np.cumsum(batches["seconds"] + np.array(spans))[_batch_of(record, t)] / SECONDS_PER_HOUR


def makespan(seconds: Iterable[float], workers: int) -> float:
    """End of the last job if each job goes, in order, to the worker that is free first."""
    free = [0.0] * workers
    for job in seconds:
        heapq.heapreplace(free, free[0] + float(job))
    return max(free)


def _per_batch(name: str, record: Record, t: Times) -> Values:
    return record.history.batches[name][_batch_of(record, t)].astype(np.float64)


def _batch_of(record: Record, t: Times) -> NDArray[np.int64]:
    return np.searchsorted(record.history.batches["t"], t, side="left")


MEASURES = tuple(measures({}))
"""Names of the measures."""
TIMES = ("seconds", "step_seconds", "training_hours")
"""Those that batch rows of one run share."""


# ---------------------------------------------------------------------- regret over that of the uniform policy


def baseline_regret(config: ExperimentConfig, records: Iterable[Record]) -> dict[int, Values]:
    """Cumulative regret of the uniform policy by seed, reward units; empty if the experiment has no such policy."""
    places = [place for place, policy in enumerate(config.policies) if policy.name == BASELINE]
    if not places:
        return {}
    return {record.seed: record.history.cumulative_regret() for record in of_place(records, places[0])}


def regret_ratio(record: Record, baseline: dict[int, Values]) -> Values:
    """Cumulative regret over that of the uniform policy in the same repetition, for t = 1, 2, …; NaN without one."""
    regret = record.history.cumulative_regret()
    if record.seed not in baseline:
        return np.full_like(regret, np.nan)
    length = min(len(regret), len(baseline[record.seed]))
    below = baseline[record.seed][:length]
    return np.divide(regret[:length], below, out=np.full(length, np.nan), where=below > 0)


def regret_share(record: Record, baseline: dict[int, Values]) -> Values:
    """Cumulative regret over the mean of that of the uniform policy, for t = 1, 2, …; NaN without one.

    Its mean over the repetitions is a ratio of means, in which draws of much regret weigh more; that of `regret_ratio` is a
    mean of ratios.
    """
    regret = record.history.cumulative_regret()
    if not baseline:
        return np.full_like(regret, np.nan)
    length = min(len(regret), *(len(below) for below in baseline.values()))
    mean = np.mean([below[:length] for below in baseline.values()], axis=0)
    return np.divide(regret[:length], mean, out=np.full(length, np.nan), where=mean > 0)


# ---------------------------------------------------------------------- over repetitions


def mean_interval(values: Values) -> tuple[Values, Values]:
    """Mean over the first axis, `n x ...` with one line per repetition, and the half-width of its 95 % t-interval; NaN
    half-width for a single repetition."""
    n = len(values)
    # An array also where a single number is left.
    mean = np.asarray(values.mean(axis=0))
    if n < 2:
        return mean, np.full_like(mean, np.nan)
    standard_error = values.std(axis=0, ddof=1) / math.sqrt(n)
    return mean, np.asarray(stdtrit(n - 1, 0.975) * standard_error)


def t_interval(values: Values) -> tuple[float, float, float]:
    """Lower end of the 95 % t-interval of a number over repetitions, its mean, and upper end; the ends of a single value are
    NaN."""
    mean, half = mean_interval(values)
    return float(mean - half), float(mean), float(mean + half)


def known_curves(curves: Values) -> Values:
    """The curves without those that are NaN throughout, unless all are: `n x ...`, one line per repetition.

    A ratio is NaN where the uniform policy has not run the repetition, for example before an experiment has ended.
    """
    known = ~np.isnan(curves).all(axis=tuple(range(1, curves.ndim)))
    return curves[known] if known.any() else curves


def band(curves: Values) -> tuple[Values, Values, Values]:
    """Lower end of the 95 % t-interval, mean, and upper end, over the first axis; the ends of a single curve are NaN."""
    mean, half = mean_interval(curves)
    return mean - half, mean, mean + half
