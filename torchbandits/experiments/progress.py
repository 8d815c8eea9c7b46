"""How far a run has come, from what its journal says: rewards of late, speed, time to go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchbandits.experiments.best_arms import BestArm, best_arms
from torchbandits.journal import Reading

BEST = 8
"""Arms that are kept."""
WINDOW = 100
"""Pulls that count as late, for rewards and regret; batches, for speed."""


@dataclass(frozen=True)
class Progress:
    """A batch row of a run as it stands; NaN (−1 for an arm or a count) where something is unknown.

    Attributes:
        pulls, failed: Pulls told, and evaluations that failed.
        rounds: Pulls that the run is to make; None where nobody said.
        best: The arms with the best rewards since the arms last changed, see `best_arms`.
        rewards: Of each pull, reward units.
        sizes: Pulls of each tell.
        window: Pulls that `recent` is of.
        recent, recent_error, mean: Mean of the last rewards with its standard error, and of all, reward units.
        recent_regret, regret: Regret a pull alike, reward units.
        recommended, simple_regret: The recommended arm and its regret, reward units.
        distinct, dictionary: Distinct arms and dictionary points.
        width, certificate: As in `Report`.
        rate: Pulls a second over the last batches, by the clock on the wall.
        passed, silent, left: Seconds since the first record, since the last, and to go at this speed.
    """

    pulls: int
    failed: int
    rounds: int | None
    best: list[BestArm]
    rewards: NDArray[Any]
    sizes: NDArray[Any]
    window: int
    recent: float
    recent_error: float
    mean: float
    recent_regret: float
    regret: float
    recommended: int
    simple_regret: float
    distinct: int
    dictionary: int
    width: float
    certificate: float
    rate: float
    passed: float
    silent: float
    left: float

    @property
    def done(self) -> int:
        """Rounds that are over."""
        return self.pulls + self.failed

    @property
    def over(self) -> bool:
        """Whether all rounds are."""
        return self.rounds is not None and self.done >= self.rounds


def progress_of(reading: Reading, row: int, now: float) -> Progress:
    """How far a row has come.

    Args:
        reading: Of its journal.
        row: Of the batch.
        now: Seconds since 1970.

    Cost: O(n log n) of n pulls.
    """
    pulls, batches = reading.history.pulls, reading.history.batches
    if reading.history.batch_size > 1:
        pulls = {name: values[pulls["row"] == row] for name, values in pulls.items()}
        batches = {name: values[batches["row"] == row] for name, values in batches.items()}
    rewards, regret, now_known = pulls["reward"], pulls["regret"], pulls["t"] > reading.moved[row]
    last, some = rewards[-WINDOW:], len(rewards) > 0
    failed = int(batches["failed"].sum())
    lately = {name: float(batches[name][-WINDOW:].sum()) for name in ("size", "seconds")}
    rate = lately["size"] / lately["seconds"] if some and lately["seconds"] > 0 else np.nan
    to_go = np.nan if reading.rounds is None else max(reading.rounds - len(rewards) - failed, 0)

    def newest(name: str, unknown: float) -> float:
        return float(batches[name][-1]) if len(batches[name]) else unknown

    return Progress(
        pulls=len(rewards),
        failed=failed,
        rounds=reading.rounds,
        best=best_arms(pulls["arm"][now_known], rewards[now_known], BEST),
        rewards=rewards,
        sizes=batches["size"],
        window=len(last),
        recent=float(last.mean()) if some else np.nan,
        recent_error=float(last.std(ddof=1) / np.sqrt(len(last))) if len(last) > 1 else np.nan,
        mean=float(rewards.mean()) if some else np.nan,
        recent_regret=float(regret[-WINDOW:].mean()) if some else np.nan,
        regret=float(regret.mean()) if some else np.nan,
        recommended=int(newest("recommended", -1.0)),
        simple_regret=newest("simple_regret", np.nan),
        distinct=int(newest("distinct_arms", 0.0)),
        dictionary=int(newest("dictionary_size", -1.0)),
        width=newest("width", np.nan),
        certificate=newest("certificate", np.nan),
        rate=rate,
        passed=reading.last - reading.began,
        silent=now - reading.last,
        left=to_go / rate if rate else np.nan,
    )
