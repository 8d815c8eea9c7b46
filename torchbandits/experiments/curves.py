"""What a record says over time: regret, time, sizes. Each curve takes a record and the pulls t = 1, 2, … to tell of."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from torchbandits.experiments.records import Record
from torchbandits.experiments.tables import regret_ratio

Values = NDArray[np.float64]
Times = NDArray[np.int64]
Curve = Callable[[Record, Times], Values]

SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True)
class Measure:
    """A curve, its axis with units, and its scale."""

    label: str
    curve: Curve
    yscale: str = "linear"
    top: float | None = None
    bottom: float | None = 0.0  # of a linear axis; None for what may be negative


def measures(baseline: dict[int, Values], trainers: int = 1) -> dict[str, Measure]:
    """Every measure by the name that a figure gives it.

    Args:
        baseline: Cumulative regret of uniform by seed, reward units.
        trainers: How many evaluations run at once, for `training_hours`.
    """

    def ratio(record: Record, t: Times) -> Values:
        return regret_ratio(record, baseline)[t - 1]

    hours = f"policy and training time until t\nwith {trainers} trainers (hours)"
    return {
        # the ratio of the very first pulls is noise, and would flatten the rest
        "regret_ratio": Measure("regret until t / regret of uniform (no unit)", ratio, top=1.5),
        "regret": Measure("regret until t (reward units)", regret),
        "mean_regret": Measure("mean regret of the first t pulls (reward units)", mean_regret),
        "simple_regret": Measure("regret of the recommended arm (reward units)", simple_regret),
        "seconds": Measure("policy time until t (seconds)", elapsed, "log"),
        "batch_size": Measure("size of the batch holding t (pulls)", batch_size, "log"),
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


def simple_regret(record: Record, t: Times) -> Values:
    """Regret of the arm recommended after the batch that holds pull t, reward units."""
    return _per_batch("simple_regret", record, t)


def elapsed(record: Record, t: Times) -> Values:
    """Seconds the policy spent until the end of the batch that holds pull t."""
    return np.cumsum(record.history.batches["seconds"])[_batch_of(record, t)]


def batch_size(record: Record, t: Times) -> Values:
    """Size of the batch that holds pull t."""
    return _per_batch("size", record, t)


def batches(record: Record, t: Times) -> Values:
    """Number of batches until pull t, its own included."""
    return _batch_of(record, t).astype(np.float64) + 1


def dictionary_size(record: Record, t: Times) -> Values:
    """Dictionary points after the batch that holds pull t; NaN where the record does not know (−1)."""
    sizes = _per_batch("dictionary_size", record, t)
    return np.where(sizes < 0, np.nan, sizes)


def training_hours(trainers: int, record: Record, t: Times) -> Values:
    """Hours until the batch that holds pull t is evaluated: the policy's own time and, where pulls have costs in seconds, the
    time until the last of a batch is trained, each going to the trainer that is free first. The next batch starts then."""
    batches, cost = record.history.batches, record.history.pulls["cost"]
    ends = np.cumsum(batches["size"])
    spans = [makespan(part, trainers) for part in np.split(cost, ends[:-1])]
    return np.cumsum(batches["seconds"] + np.array(spans))[_batch_of(record, t)] / SECONDS_AN_HOUR


def makespan(seconds: Iterable[float], workers: int) -> float:
    """When the last job ends, if each goes in its turn to the worker that is free first."""
    free = [0.0] * workers
    for job in seconds:
        heapq.heapreplace(free, free[0] + float(job))
    return max(free)


def _per_batch(name: str, record: Record, t: Times) -> Values:
    return record.history.batches[name][_batch_of(record, t)].astype(np.float64)


def _batch_of(record: Record, t: Times) -> NDArray[np.int64]:
    return np.searchsorted(record.history.batches["t"], t, side="left")


MEASURES = tuple(measures({}))
"""The names of the measures."""
