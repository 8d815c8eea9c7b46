"""One run: a method against a table, with the noise, the regret and the processor time that are recorded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from peer_study.tables import Table


@dataclass(frozen=True)
class Budget:
    """`pulls` evaluations, `batch` at a time.

    Args:
        fewest_candidates: Tables with fewer candidates are left out.
        repeats: Whether the peers may also evaluate a candidate again in a later batch. Otherwise they would run out of good
            candidates if the number of pulls is a large fraction of the table.
    """

    pulls: int
    batch: int
    fewest_candidates: int = 0
    repeats: bool = False


BUDGETS = {
    "plates": Budget(48, 8),
    "small": Budget(110, 1),
    "middle": Budget(300, 10),
    "large": Budget(3000, 50, fewest_candidates=6000, repeats=True),
}


class Method(Protocol):
    """Interface of a method in a run. All indices are rows of the table; all rewards are noisy and to be maximised."""

    def ask(self, count: int) -> np.ndarray:
        """`count` rows to evaluate next."""

    def tell(self, index: np.ndarray, rewards: np.ndarray) -> None:
        """The rewards of the rows asked for."""

    def recommend(self) -> int:
        """The row that the method considers best, by the method's best practice."""


@dataclass(frozen=True)
class Outcome:
    """Regrets (0 at the best candidate, 1 at the average), `seconds` of processor time spent in the method, and the number of
    evaluations, which is that of the budget unless the run was stopped."""

    simple_regret: float
    mean_regret: float
    seconds: float
    evaluations: int


def noise(table: Table, seed: int, pulls: int) -> np.ndarray:
    """Noise of each evaluation in its order: the same for every method on this table with this seed."""
    name = [ord(letter) for letter in table.name]
    return table.noise_std * np.random.default_rng([seed, *name]).standard_normal(pulls)


def play(method: Method, table: Table, budget: Budget, seed: int, started: float = 0.0, limit: float = np.inf) -> Outcome:
    """Run a method until the budget is spent, or until the first batch that ends after the limit of time.

    Args:
        started: Processor seconds of the construction of the method.
        limit: Processor seconds in the method.
    """
    errors, pulled, seconds = noise(table, seed, budget.pulls), np.empty(0, dtype=np.int64), started
    while len(pulled) < budget.pulls:
        wanted = min(budget.batch, budget.pulls - len(pulled))
        began = time.process_time()
        index = np.asarray(method.ask(wanted), dtype=np.int64)
        seconds += time.process_time() - began
        if index.shape != (wanted,):
            raise ValueError(f"The method was asked for {wanted} rows and gave an array of shape {index.shape}.")
        rewards = table.values[index] + errors[len(pulled) : len(pulled) + wanted]
        pulled = np.concatenate([pulled, index])
        began = time.process_time()
        method.tell(index, rewards)
        seconds += time.process_time() - began
        if seconds >= limit:
            break
    began = time.process_time()
    recommended = method.recommend()
    seconds += time.process_time() - began
    regret = table.regret(pulled)
    return Outcome(float(table.regret(np.array([recommended]))[0]), float(regret.mean()), seconds, len(pulled))
