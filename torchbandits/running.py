"""A whole run of a policy in an environment, written on ask and tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchbandits.bandit import Bandit
from torchbandits.environments.base import Environment
from torchbandits.errors import require
from torchbandits.history import History
from torchbandits.policies import Policy
from torchbandits.types import Report, Selection

_STEPS = 64  # recorded at once


def run(
    policy: Policy,
    environment: Environment,
    num_rounds: int,
    *,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    callbacks: Iterable[Callable[[Bandit, Selection, Tensor, Report], bool | None]] = (),
) -> History:
    """Play a policy in an environment for a number of pulls, on ask and tell.

    Args:
        policy: What chooses.
        environment: What answers; its arms are the bandit's.
        num_rounds: Pulls of each batch row; it caps the last batch.
        generator: As for `Bandit`. The noise of each row is drawn from a generator seeded by that row's.
        callbacks: Called after each tell with the bandit, the selection, the rewards and the report; a True ends the run.

    Returns:
        The history. `history.batches["seconds"]` is the time of ask and tell, without the environment's.
    """
    require(isinstance(num_rounds, int) and num_rounds >= 1, f"num_rounds must be an integer ≥ 1, got {num_rounds}.")
    callbacks = tuple(callbacks)
    bandit = Bandit(policy, environment.arms, generator=generator)
    seeds = [int(torch.randint(2**62, (), generator=g)) for g in bandit.generators]
    noise = [torch.Generator().manual_seed(seed) for seed in seeds]
    recorder = _Recorder(environment, bandit.batch_shape)
    least = num_rounds  # pulls that every row has left, at least
    while True:
        began = time.perf_counter()
        limit = None
        if policy.most_picks is None or policy.most_picks > least:
            limit = num_rounds - bandit.pulls.long()
            least = int(limit.min())
            if not bool((limit > 0).any()):
                return recorder.history()
        selection = bandit.ask(limit=limit)
        asked = time.perf_counter() - began
        rewards = environment.sample(selection.index, noise)
        began = time.perf_counter()
        report = bandit.tell(selection, rewards)
        seconds = asked + time.perf_counter() - began
        least -= len(selection)
        recorder.add(selection.index, rewards, bandit.best_arm(), report, seconds)
        stops = [callback(bandit, selection, rewards, report) for callback in callbacks]
        if any(stops):
            return recorder.history()


class _Recorder:
    """Keeps steps as they are and hands many at once to the history: a step then costs next to nothing."""

    def __init__(self, environment: Environment, batch_shape: torch.Size) -> None:
        self._environment, self._rows = environment, batch_shape.numel()
        self._history = History(self._rows)
        self._steps: list[tuple[Tensor, Tensor, Tensor, Report, float]] = []

    def add(self, index: Tensor, rewards: Tensor, recommended: Tensor, report: Report, seconds: float) -> None:
        """Keep one ask and tell."""
        self._steps.append((index, rewards, recommended, report, seconds))
        if len(self._steps) >= _STEPS:
            self._flush()

    def history(self) -> History:
        """The history of all that was added."""
        self._flush()
        return self._history

    def _flush(self) -> None:
        if not self._steps:
            return
        index, rewards, recommended, reports, seconds = zip(*self._steps, strict=True)
        self._steps, k, rows = [], len(index), self._rows
        most = max(i.shape[-1] for i in index)
        arms = torch.cat([pad(i, (0, most - i.shape[-1]), value=-1) for i in index], dim=-1)
        values = torch.cat([pad(y, (0, most - y.shape[-1])) for y in rewards], dim=-1)
        best = torch.stack(recommended, dim=-1)
        per_step = (rows, k, most)
        self._history.record(
            index=arms.reshape(per_step).transpose(0, 1),
            rewards=values.reshape(per_step).transpose(0, 1),
            regret=self._environment.regret(arms).reshape(per_step).transpose(0, 1),
            report=Report(**{f.name: torch.stack([getattr(r, f.name).reshape(rows) for r in reports]) for f in fields(Report)}),
            recommended=best.reshape(rows, k).T,
            simple_regret=self._environment.regret(best).reshape(rows, k).T,
            seconds=seconds,
        )
