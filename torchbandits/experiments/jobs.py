"""What is run together: one policy in one repetition, or many of both as the batch rows of one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from torchbandits.environments import Environment, Table
from torchbandits.errors import ConfigError, require
from torchbandits.experiments.config import ExperimentConfig, PolicyConfig
from torchbandits.experiments.factories import build_environment, build_policy, is_random
from torchbandits.history import History
from torchbandits.running import run

HISTORY_SEED_OFFSET = 2_000_000_000
"""Added to the seed of a repetition for the pulls that are observed before it, so that they share no numbers with the run."""


@dataclass(frozen=True)
class Run:
    """A policy by its place in the configuration, and a repetition."""

    place: int
    repetition: int


class Environments:
    """The environments of the repetitions, each built once."""

    def __init__(self, config: ExperimentConfig) -> None:
        self._config = config
        self._random = is_random(config)
        self._built: dict[int, Environment] = {}

    def __getitem__(self, repetition: int) -> Environment:
        """That of a repetition; the same for all where it is not random."""
        key = repetition if self._random else 0
        if key not in self._built:
            self._built[key] = build_environment(self._config, key)
        return self._built[key]

    def rows(self, repetitions: Sequence[int]) -> Environment:
        """That of a repetition for each batch row."""
        first = self[repetitions[0]]
        if not self._random:
            return first
        return stack([self[repetition] for repetition in repetitions])


def stack(environments: Sequence[Environment]) -> Table:
    """Draws of one random environment as the batch rows of a table.

    Raises:
        ConfigError: If they differ in more than arms, expected rewards and norm.
    """
    kinds = {(e.noise_std, getattr(e, "noise", None)) for e in environments}
    norms = [getattr(e, "norm_bound", None) for e in environments]
    (noise_std, noise), alike = next(iter(kinds)), len(kinds) == 1 and all(e.costs is None for e in environments)
    good = alike and noise is not None and len({norm is None for norm in norms}) == 1
    require(good, f"draws of {environments[0].name!r} can't be run together: leave out together.", ConfigError)
    return Table(
        torch.stack([e.arms for e in environments]),
        torch.stack([e.means for e in environments]),
        noise_std,
        name=environments[0].name,
        noise=str(noise),
        norm_bound=None if norms[0] is None else torch.tensor(norms, dtype=torch.float64),
    )


def jobs(config: ExperimentConfig) -> list[list[Run]]:
    """Runs in the order they are made, in groups that are the batch rows of one run."""
    repetitions, places = range(config.repetitions), range(len(config.policies))
    if not config.together:
        return [[Run(place, repetition)] for repetition in repetitions for place in places]
    groups = groupby(places, key=lambda place: _all_but_lengthscale(config.policies[place]))
    return [[Run(place, repetition) for place in group for repetition in repetitions] for _, group in groups]


def play(
    config: ExperimentConfig, runs: Sequence[Run], environments: Environments, callback: Callable[..., None]
) -> list[History]:
    """Run a job; the history of each of its runs, whose seconds are its share."""
    generators = [torch.Generator().manual_seed(config.seed + r.repetition) for r in runs]
    environment = environments.rows([r.repetition for r in runs]) if len(runs) > 1 else environments[runs[0].repetition]
    policy = build_policy(config, [r.place for r in runs], environment)
    history = run(
        policy,
        environment,
        num_rounds=config.horizon,
        generator=generators if len(runs) > 1 else generators[0],
        callbacks=[callback],
        observed=_observed(config, runs, environment) if config.history else None,
        clock=time.perf_counter if config.clock == "wall" else time.process_time,
    )
    return [history.row(row, seconds_share=1 / len(runs)) for row in range(len(runs))]


def _observed(config: ExperimentConfig, runs: Sequence[Run], environment: Environment) -> tuple[Tensor, Tensor, Tensor]:
    """Uniform pulls, the same for all policies of a repetition: indices, ones, rewards."""
    generators = [torch.Generator().manual_seed(config.seed + r.repetition + HISTORY_SEED_OFFSET) for r in runs]
    num_arms = environment.arms.shape[-2]
    index = torch.stack([torch.randint(num_arms, (config.history,), generator=generator) for generator in generators])
    index = index if len(runs) > 1 else index[0]
    rewards = environment.sample(index, generators)
    return index, torch.ones_like(rewards), rewards


def _all_but_lengthscale(policy: PolicyConfig) -> str:
    return policy.model_copy(
        update={"label": "", "kernel": policy.kernel.model_copy(update={"lengthscale": None})}
    ).model_dump_json()
