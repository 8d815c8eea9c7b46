"""Run an experiment: every policy and repetition, then records, resolved configuration, table and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from torchbandits.errors import DataError
from torchbandits.experiments.config import ExperimentConfig
from torchbandits.experiments.factories import build_policy
from torchbandits.experiments.files import prepare_folder, write_atomically, write_text
from torchbandits.experiments.jobs import Environments, Run, jobs, play
from torchbandits.experiments.plots import draw_figures
from torchbandits.experiments.records import CONFIG, Record, find_record, record_folder
from torchbandits.experiments.tables import aggregate, to_markdown
from torchbandits.history import History
from torchbandits.types import Report


@dataclass(frozen=True)
class Result:
    """What an experiment left behind: its table and the files written."""

    table: pd.DataFrame
    config: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    records: Path


def run_experiment(
    config: ExperimentConfig, output: Path | None = None, console: Console | None = None, resume: bool = False
) -> Result:
    """Run every policy and repetition of an experiment and write its results.

    Everything that can be wrong with the configuration, the data and the folder is found before the first run. The record
    of a run is written whole when it ends, so an interrupted experiment loses the runs under way only.

    Args:
        config: The experiment.
        output: Folder of the results, by default the configuration's.
        console: Shows progress where it is a terminal, and one line per run where it is not; None for silence.
        resume: Keep the records that were made with this configuration; run what is missing.

    Raises:
        ConfigError: If a name or an option is unknown or out of its range.
        DataError: If data can't be found, or the folder can't be written.
    """
    folder = output if output is not None else config.folder
    environments = Environments(config)
    for place in range(len(config.policies)):
        build_policy(config, [place], environments[0])
    prepare_folder(folder)
    write_text(folder / CONFIG, config.dump())
    warm_up()
    with _threads(config.threads):
        records = _runs(config, environments, folder, console or Console(quiet=True), resume)
    return write_results(config, records, folder)


def write_results(config: ExperimentConfig, records: list[Record], folder: Path) -> Result:
    """Write the table and the figures of records into a folder."""
    table = aggregate(config, records)
    csv, markdown = folder / "table.csv", folder / "table.md"
    write_atomically(csv, lambda temporary: table.to_csv(temporary, index=False))
    write_text(markdown, to_markdown(config, table))
    figures = draw_figures(config, records, folder)
    return Result(table, folder / CONFIG, (csv, markdown), tuple(figures), folder / "records")


def _runs(config: ExperimentConfig, environments: Environments, folder: Path, console: Console, resume: bool) -> list[Record]:
    """All records, in the order of the configuration."""
    records: dict[Run, Record] = {}
    with _progress(console) as progress:
        task = progress.add_task("", total=config.repetitions * len(config.policies) * config.horizon)
        for job in jobs(config):
            if resume:
                found = {run: _kept(config, folder, run, progress.console) for run in job}
                records |= {run: record for run, record in found.items() if record is not None}
            missing = [run for run in job if run not in records]
            progress.advance(task, (len(job) - len(missing)) * config.horizon)
            if missing:
                advance = _Advance(progress, task, config, missing)
                histories = play(config, missing, environments, advance)
                for run, history in zip(missing, histories, strict=True):
                    records[run] = _keep(config, run, history, folder)
                    advance.say(records[run])
                advance.finish()
    return [records[run] for run in sorted(records, key=lambda run: (run.repetition, run.place))]


def _kept(config: ExperimentConfig, folder: Path, run: Run, console: Console) -> Record | None:
    """The record that an earlier start left, or None; a damaged one is run again, and that is said."""
    try:
        return find_record(config, folder, run.place, config.seed + run.repetition)
    except DataError as error:
        console.print(f"run again: {error}", markup=False, highlight=False)
        return None


def _keep(config: ExperimentConfig, run: Run, history: History, folder: Path) -> Record:
    section, seed = config.policies[run.place], config.seed + run.repetition
    history.metadata = {
        "environment": config.environment.name,
        "policy": section.name,
        "label": section.label,
        "seed": seed,
        "horizon": config.horizon,
        "fingerprint": config.fingerprint,
    }
    history.to_parquet(record_folder(folder, section.slug, seed))
    return Record(run.place, section.label, seed, history)


class _Advance:
    """A callback of `run` that moves the progress bar by the pulls told."""

    def __init__(self, progress: Progress, task: TaskID, config: ExperimentConfig, runs: Sequence[Run]) -> None:
        self._progress, self._task = progress, task
        self._before, self._total = config.history * len(runs), config.horizon * len(runs)
        self._done = 0
        labels = list(dict.fromkeys(config.policies[run.place].label for run in runs))
        progress.update(task, description=labels[0] + (" …" if len(labels) > 1 else ""))

    def __call__(self, *arguments: object) -> None:
        report = next(argument for argument in arguments if isinstance(argument, Report))
        pulls = int(report.pulls.sum()) - self._before
        self._progress.advance(self._task, pulls - self._done)
        self._done = pulls

    def say(self, record: Record) -> None:
        """One line about a run that has ended."""
        summary = record.history.summary()
        line = f"{record.label}, seed {record.seed}: regret {summary['regret']:.4g}, {summary['seconds']:.2f} s"
        self._progress.console.print(line, markup=False, highlight=False)

    def finish(self) -> None:
        """Move the bar to the end of the job."""
        self._progress.advance(self._task, self._total - self._done)


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
