"""What a benchmark measures: points along three axes, methods, and the limits of each process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from torchbandits.experiments.config import Count, FolderName, Repetitions, Section, Seed, Threads, parse_section, read_yaml

AXES = ("arms", "dictionary", "pulls")
Method = Literal["torchbandits", "botorch", "sgpr", "sklearn"]
LABELS = {
    "torchbandits": "torchbandits BBKB",
    "botorch": "BoTorch SingleTaskGP",
    "sgpr": "GPyTorch SGPR",
    "sklearn": "scikit-learn GP",
}
Axis = Annotated[list[Count], Field(min_length=1, max_length=100)]
Limit = Annotated[float, Field(gt=0, le=10**6)]
"""Seconds or GiB: the system takes no larger limits."""


class Point(Section):
    """Numbers of arms A, dictionary points m and pulls t; a dictionary is made of arms that were pulled, so m ≤ t, m ≤ A."""

    arms: Count
    dictionary: Count
    pulls: Count

    @model_validator(mode="after")
    def _check_dictionary(self) -> Point:
        if self.dictionary > min(self.pulls, self.arms):
            raise ValueError(
                f"a dictionary of {self.dictionary} needs as many pulls and arms, got {self.pulls} and {self.arms}"
            )
        return self

    @property
    def distinct(self) -> int:
        """Arms that were pulled: twice the dictionary where there are as many."""
        return min(2 * self.dictionary, self.pulls, self.arms)


class BenchmarkConfig(Section):
    """A benchmark: every method at `base` with one of its numbers replaced by each of `arms`, `dictionary`, `pulls`.

    `time_limit` seconds and `memory_limit` GiB hold for each process, which measures one method at one point;
    `memory_budget` GiB is what kept kernel columns may take. `clock` says whose seconds are compared: the processor's, which
    a shared machine leaves alone and which count every thread, or those on the wall.
    """

    name: FolderName = "bench"
    base: Point
    arms: Axis
    dictionary: Axis
    pulls: Axis
    dim: Repetitions = 8
    lengthscale: Limit = 1.0
    noise_std: Limit = 0.1
    methods: Annotated[tuple[Method, ...], Field(min_length=1)] = ("torchbandits", "botorch", "sgpr", "sklearn")
    device: Literal["cpu", "cuda"] = "cpu"
    threads: Threads = 1
    clock: Literal["processor", "wall"] = "wall"
    repetitions: Repetitions = 3
    time_limit: Limit = 60.0
    memory_limit: Limit = 4.0
    memory_budget: Limit = 1.0
    seed: Seed = 0
    output: str = ""

    @model_validator(mode="after")
    def _check_points(self) -> BenchmarkConfig:
        if self.clock == "processor" and (self.threads > 1 or self.device != "cpu"):
            raise ValueError("the processor's clock compares work of one thread on the CPU: use clock: wall")
        for axis in AXES:
            list(self.along(axis))
        return self

    def along(self, axis: str) -> Iterator[Point]:
        """The points of an axis, ascending."""
        for value in sorted(set(getattr(self, axis))):
            yield Point.model_validate(self.base.model_dump() | {axis: value})

    @property
    def folder(self) -> Path:
        """Where the results go: `output`, else `results/<name>`."""
        return Path(self.output) if self.output else Path("results") / self.name


def load_benchmark(path: str | os.PathLike[str]) -> BenchmarkConfig:
    """Read a configuration file.

    Raises:
        ConfigError: If it can't be read, is not YAML, or does not say what it must; the first faults are named.
    """
    source = Path(path)
    return parse_section(BenchmarkConfig, {"name": source.stem, **read_yaml(source)}, str(source))
