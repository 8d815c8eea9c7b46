"""A whole run of a policy in an environment, written on ask and tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.environments.base import Environment
from torchbandits.errors import require
from torchbandits.history import History
from torchbandits.policies import Policy
from torchbandits.types import Report, Selection


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
    rows = bandit.batch_shape.numel()
    history = History(rows)
    while True:
        began = time.perf_counter()
        left = num_rounds - bandit.pulls.long()
        if not bool((left > 0).any()):
            return history
        selection = bandit.ask(limit=left)
        asked = time.perf_counter() - began
        rewards = environment.sample(selection.index, noise)
        began = time.perf_counter()
        report = bandit.tell(selection, rewards)
        seconds = asked + time.perf_counter() - began
        recommended = bandit.best_arm()
        history.record(
            index=selection.index.reshape(rows, -1),
            rewards=rewards.reshape(rows, -1),
            regret=environment.regret(selection.index).reshape(rows, -1),
            report=report,
            recommended=recommended.reshape(rows),
            simple_regret=environment.regret(recommended.unsqueeze(-1)).reshape(rows),
            seconds=seconds,
        )
        stops = [callback(bandit, selection, rewards, report) for callback in callbacks]
        if any(stops):
            return history
