"""Run an experiment: every policy and repetition, then records, resolved configuration, table and figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from torchbandits.arms import warm_up
from torchbandits.environments import Environment
from torchbandits.experiments.config import ExperimentConfig
from torchbandits.experiments.factories import build_environment, build_policy, is_random
from torchbandits.experiments.files import prepare_folder, write_atomically, write_text
from torchbandits.experiments.plots import draw_figures
from torchbandits.experiments.records import CONFIG, Record, record_folder
from torchbandits.experiments.tables import aggregate, to_markdown
from torchbandits.running import run
from torchbandits.types import Report


@dataclass(frozen=True)
class Result:
    """What an experiment left behind: its table and the files written."""

    table: pd.DataFrame
    config: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    records: Path


def run_experiment(config: ExperimentConfig, output: Path | None = None, console: Console | None = None) -> Result:
    """Run every policy and repetition of an experiment and write its results.

    Everything that can be wrong with the configuration, the data and the folder is found before the first run.

    Args:
        config: The experiment.
        output: Folder of the results, by default the configuration's.
        console: Shows progress where it is a terminal, and one line per run where it is not; None for silence.

    Raises:
        ConfigError: If a name or an option is unknown or out of its range.
        DataError: If data can't be found, or the folder can't be written.
    """
    folder = output if output is not None else config.folder
    first = build_environment(config, 0)
    for place in range(len(config.policies)):
        build_policy(config, place, first)
    prepare_folder(folder)
    write_text(folder / CONFIG, config.dump())
    warm_up()
    with _threads(config.threads):
        records = list(_runs(config, first, folder, console or Console(quiet=True)))
    return write_results(config, records, folder)


def write_results(config: ExperimentConfig, records: list[Record], folder: Path) -> Result:
    """Write the table and the figures of records into a folder."""
    table = aggregate(config, records)
    csv, markdown = folder / "table.csv", folder / "table.md"
    write_atomically(csv, lambda temporary: table.to_csv(temporary, index=False))
    write_text(markdown, to_markdown(config, table))
    figures = draw_figures(config, records, folder)
    return Result(table, folder / CONFIG, (csv, markdown), tuple(figures), folder / "records")


def _runs(config: ExperimentConfig, first: Environment, folder: Path, console: Console) -> Iterator[Record]:
    jobs = config.repetitions * len(config.policies)
    with _progress(console) as progress:
        task = progress.add_task("", total=jobs * config.horizon)
        for repetition in range(config.repetitions):
            environment = build_environment(config, repetition) if repetition and is_random(config) else first
            for place in range(len(config.policies)):
                yield _run_one(config, place, repetition, environment, folder, _Advance(progress, task, config, place))


def _run_one(
    config: ExperimentConfig, place: int, repetition: int, environment: Environment, folder: Path, advance: _Advance
) -> Record:
    section, seed = config.policies[place], config.seed + repetition
    policy = build_policy(config, place, environment)
    generator = torch.Generator().manual_seed(seed)
    history = run(policy, environment, num_rounds=config.horizon, generator=generator, callbacks=[advance])
    history.metadata.update(
        {
            "environment": config.environment.name,
            "policy": section.name,
            "label": section.label,
            "seed": seed,
            "horizon": config.horizon,
            "fingerprint": config.fingerprint,
        }
    )
    history.to_parquet(record_folder(folder, section.slug, seed))
    summary = history.summary()
    advance.finish(f"{section.label}, seed {seed}: regret {summary['regret']:.4g}, {summary['seconds']:.2f} s")
    return Record(place, section.label, seed, history)


class _Advance:
    """A callback of `run` that moves the progress bar by the pulls told."""

    def __init__(self, progress: Progress, task: TaskID, config: ExperimentConfig, place: int) -> None:
        self._progress = progress
        self._task = task
        self._horizon = config.horizon
        self._done = 0
        progress.update(task, description=config.policies[place].label)

    def __call__(self, *arguments: object) -> None:
        report = next(argument for argument in arguments if isinstance(argument, Report))
        pulls = int(report.pulls.max())
        self._progress.advance(self._task, pulls - self._done)
        self._done = pulls

    def finish(self, line: str) -> None:
        self._progress.advance(self._task, self._horizon - self._done)
        self._progress.console.print(line, markup=False, highlight=False)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal or console.quiet,
    )


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Torch's threads are a setting of the process: it is put back."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
