"""Run an experiment: every policy and repetition, then records, resolved configuration, table and figures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
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
from torchbandits.checks import as_path, check_flag, is_whole
from torchbandits.errors import ConfigError, DataError, require
from torchbandits.experiments.config import ExperimentConfig
from torchbandits.experiments.factories import build_policy
from torchbandits.experiments.headline import headline
from torchbandits.experiments.jobs import Environments, Run, jobs
from torchbandits.experiments.plots import draw_figures
from torchbandits.experiments.printable import plain, printable
from torchbandits.experiments.records import CONFIG, RECORDS, Record, check_config, find_record
from torchbandits.experiments.tables import aggregate, to_markdown
from torchbandits.experiments.workers import play_apart, play_here, threads_of_torch
from torchbandits.files import prepare_folder, write_atomically, write_text
from torchbandits.types import Report

SAY_EVERY = 30.0
"""Seconds between lines about a run, where no terminal shows a bar."""


@dataclass(frozen=True)
class Result:
    """What an experiment left behind: its table, the files written, and its outcome in a sentence where it has a headline."""

    table: pd.DataFrame
    config: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    records: Path
    headline: str | None = None


def run_experiment(
    config: ExperimentConfig,
    output: Path | None = None,
    console: Console | None = None,
    resume: bool = False,
    workers: int = 1,
) -> Result:
    """Run every policy and repetition of an experiment and write its results.

    Everything that can be wrong with the configuration, the data and the folder is found before the first run. The record
    of a run is written whole when it ends, so an interrupted experiment loses the runs under way only.

    Args:
        config: The experiment.
        output: Folder of the results, by default the configuration's.
        console: Shows progress where it is a terminal, and a line per run and every half minute elsewhere; None for silence.
        resume: Keep the records that were made with this configuration; run what is missing.
        workers: Processes that run at once, with `cores / workers` threads each unless the configuration says how many.

    Raises:
        ConfigError: If a name or an option is unknown or out of its range.
        StateError: If a worker process dies.
        KeyboardInterrupt: At Ctrl-C, with a message that says what is kept.
        DataError: If data can't be found, or the folder can't be written.
    """
    check_config(config)
    check_console(console)
    check_flag("resume", resume)
    require(is_whole(workers), f"workers must be a whole number of at least 1, got {workers}.", ConfigError)
    folder = config.folder if output is None else as_path("output", output)
    environments = Environments(config)
    for place in range(len(config.policies)):
        build_policy(config, [place], environments[0])
    prepare_folder(folder)
    write_text(folder / CONFIG, config.dump())
    warm_up()
    try:
        with threads_of_torch(config.threads):
            records = _runs(config, environments, folder, console or Console(quiet=True), resume, workers)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"the records of the runs that had ended are kept in {folder / RECORDS}. To run only those that are missing, start "
            "again with resume=True (torchbandits run: --resume; torchbandits reproduce does so by itself)."
        ) from None
    return write_results(config, records, folder)


def check_console(console: object) -> None:
    """Refuse what is neither a Rich console nor None."""
    good = console is None or isinstance(console, Console)
    require(good, f"console must be a rich.console.Console or None, got {type(console).__name__}.")


def write_results(config: ExperimentConfig, records: list[Record], folder: Path) -> Result:
    """Write the table and the figures of records into a folder."""
    table = aggregate(config, records)
    csv, markdown = folder / "table.csv", folder / "table.md"
    write_atomically(csv, lambda temporary: table.to_csv(temporary, index=False))
    sentence = headline(config, records) if config.headline else None
    write_text(markdown, to_markdown(config, table) + (f"\n{printable(sentence)}\n" if sentence else ""))
    figures = draw_figures(config, records, folder)
    return Result(table, folder / CONFIG, (csv, markdown), tuple(figures), folder / RECORDS, sentence)


def _runs(
    config: ExperimentConfig, environments: Environments, folder: Path, console: Console, resume: bool, workers: int
) -> list[Record]:
    """All records, in the order of the configuration."""
    records: dict[Run, Record] = {}
    todo: list[list[Run]] = []
    with _progress(console) as progress:
        task = progress.add_task("", total=config.repetitions * len(config.policies) * config.horizon)
        for job in jobs(config):
            found = {run: _kept(config, folder, run, progress.console) if resume else None for run in job}
            records |= {run: record for run, record in found.items() if record is not None}
            missing = [run for run in job if run not in records]
            progress.advance(task, (len(job) - len(missing)) * config.horizon)
            todo += [missing] if missing else []
        if workers == 1:
            for runs in todo:
                advance = _Advance(progress, task, config, runs)
                records |= _said(progress.console, runs, play_here(config, runs, environments, folder, advance))
                advance.finish()
        elif todo:
            progress.update(task, description=f"{workers} at once")
            for runs in play_apart(config, todo, folder, workers):
                made = [find_record(config, folder, run.place, config.seed + run.repetition) for run in runs]
                records |= _said(progress.console, runs, made)
                progress.advance(task, len(runs) * config.horizon)
    return [records[run] for run in sorted(records, key=lambda run: (run.repetition, run.place))]


def _said(console: Console, runs: Sequence[Run], made: Sequence[Record | None]) -> dict[Run, Record]:
    """One line about each run that has ended."""
    records = {run: record for run, record in zip(runs, made, strict=True) if record is not None}
    for record in records.values():
        summary = record.history.summary()
        line = f"{record.label}, seed {record.seed}: regret {summary['regret']:.4g}, {summary['seconds']:.2f} s"
        console.print(plain(line))
    return records


def _kept(config: ExperimentConfig, folder: Path, run: Run, console: Console) -> Record | None:
    """The record that an earlier start left, or None; a damaged one is run again, and that is said."""
    try:
        return find_record(config, folder, run.place, config.seed + run.repetition)
    except DataError as error:
        console.print(plain(f"run again: {error}"))
        return None


class _Advance:
    """A callback of `run` that moves the progress bar by the pulls told; where there is none, a line says so now and then."""

    def __init__(self, progress: Progress, task: TaskID, config: ExperimentConfig, runs: Sequence[Run]) -> None:
        self._progress, self._task = progress, task
        self._before, self._total = config.history * len(runs), config.horizon * len(runs)
        self._done, self._said = 0, time.monotonic()
        labels = list(dict.fromkeys(config.policies[run.place].label for run in runs))
        self._label = printable(labels[0]) + (" …" if len(labels) > 1 else "")
        progress.update(task, description=self._label)

    def __call__(self, *arguments: object) -> None:
        report = next(argument for argument in arguments if isinstance(argument, Report))
        pulls = int(report.pulls.sum()) - self._before
        self._progress.advance(self._task, pulls - self._done)
        self._done = pulls
        if self._progress.disable and time.monotonic() - self._said >= SAY_EVERY:
            line = f"{self._label}: {pulls:,} of {self._total:,} pulls"
            self._progress.console.print(plain(line), soft_wrap=True)
            self._said = time.monotonic()

    def finish(self) -> None:
        """Move the bar to the end of the job."""
        self._progress.advance(self._task, self._total - self._done)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal or console.quiet,
    )
