"""Running an experiment: jobs, the processes that run them, and their progress.

A job is one policy in one repetition, or many of both as the batch rows of one run. The record of a run is written when the run
ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

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
from torch import Tensor

from torchbandits.arms import warm_up
from torchbandits.checks import as_path, check_flag, is_whole
from torchbandits.display import count
from torchbandits.environments import Environment, Function, Table
from torchbandits.errors import (
    ConfigError,
    DataError,
    DiagnosticWarning,
    EvaluationError,
    NonFiniteError,
    StateError,
    TorchBanditsError,
    require,
)
from torchbandits.experiments.config import (
    ExperimentConfig,
    PolicyConfig,
    build_environment,
    build_policy,
    is_random,
    repetitions_of,
)
from torchbandits.experiments.measures import regret_is_known
from torchbandits.experiments.names import table_digest
from torchbandits.experiments.printable import plain, printable
from torchbandits.experiments.records import CONFIG, RECORDS, Record, check_config, find_record, keep_record, record_folder
from torchbandits.experiments.results import Result, write_results
from torchbandits.files import folder_held, prepare_folder, write_text
from torchbandits.policies.repeats import RECENT
from torchbandits.running import bandit_of, run
from torchbandits.types import Report

HISTORY_SEED_OFFSET = 2_000_000_000
"""Added to the seed of a repetition for the pulls that are observed before it, so that they share no random numbers with it."""
SAY_EVERY = 30.0
"""Seconds between progress lines of a run if the console is not a terminal."""


def run_experiment(
    config: ExperimentConfig,
    output: Path | None = None,
    console: Console | None = None,
    resume: bool = False,
    workers: int = 1,
) -> Result:
    """Run every policy and repetition of an experiment and write its results.

    Errors of the configuration, the data and the folder are found before the first run. The record of a run is written whole
    when the run ends, so an interrupted experiment loses only the runs in progress.

    Args:
        config: The experiment.
        output: Folder of the results, by default the configuration's.
        console: Shows a progress bar if it is a terminal, else a line per run and every half minute; None for silence.
        resume: Keep the records that were made with this configuration; run only what is missing.
        workers: Number of simultaneous processes, each with `cores / workers` threads unless the configuration sets them.

    Raises:
        ConfigError: If a name or an option is unknown or out of its range.
        EvaluationError: If a function of the user's raised an error. The records of the runs that had ended are kept.
        StateError: If a worker process dies, or another process runs an experiment in this folder.
        KeyboardInterrupt: At Ctrl-C, with a message that says what is kept.
        DataError: If data can't be found, or the folder can't be written.
    """
    check_config(config)
    check_console(console)
    check_flag("resume", resume)
    require(is_whole(workers), f"workers must be a whole number of at least 1, got {workers}.", ConfigError)
    folder = config.folder if output is None else as_path("output", output)
    environments = checked_environments(config)
    prepare_folder(folder)
    with folder_held(folder):
        write_text(folder / CONFIG, config.dump())
        warm_up()
        try:
            with threads_of_torch(config.threads):
                records = _records(config, environments, folder, console or Console(quiet=True), resume, workers)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"the records of the runs that had ended are kept in {folder / RECORDS}. To run only those that are missing, "
                "start again with resume=True (torchbandits run: --resume; torchbandits reproduce does so by itself)."
            ) from None
        return write_results(config, records, folder)


def checked_environments(config: ExperimentConfig) -> Environments:
    """The environments of an experiment, after that of the first repetition was made, and each policy was begun on its arms.

    Raises:
        ConfigError: If a name or an option is unknown or out of its range, or does not fit the arms.
        DataError: If data can't be found.
    """
    environments = Environments(config)
    for place, section in enumerate(config.policies):
        policy = build_policy(config, [place], environments[0])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DiagnosticWarning)  # the run issues them
                bandit_of(policy, environments[0])
        except TorchBanditsError as error:
            raise ConfigError(f"policies[{place}] ({section.label}): {error}") from error
    return environments


def check_console(console: object) -> None:
    """Refuse anything but a Rich console or None."""
    good = console is None or isinstance(console, Console)
    require(good, f"console must be a rich.console.Console or None, got {type(console).__name__}.")


# ---------------------------------------------------------------------- jobs


@dataclass(frozen=True)
class Run:
    """One run: the place of its policy in the configuration, and its repetition."""

    place: int
    repetition: int


def jobs(config: ExperimentConfig) -> list[list[Run]]:
    """Runs in the order in which they are made, grouped into the batch rows of one call of `run`."""
    repetitions, places = range(config.repetitions), range(len(config.policies))
    if not config.together:
        return [[Run(place, r)] for r in repetitions for place in places if r < repetitions_of(config, place)]
    groups = groupby(places, key=lambda place: _all_but_lengthscale(config.policies[place]))
    whole = [[Run(place, r) for place in group for r in range(repetitions_of(config, place))] for _, group in groups]
    if config.together is True:
        return whole
    return [part for runs in whole for part in _parts(runs, config.together)]


def _parts(runs: list[Run], size: int) -> Iterator[list[Run]]:
    """Consecutive parts of at most that size."""
    return (runs[start : start + size] for start in range(0, len(runs), size))


def _all_but_lengthscale(policy: PolicyConfig) -> str:
    return policy.model_copy(
        update={"label": "", "kernel": policy.kernel.model_copy(update={"lengthscale": None})}
    ).model_dump_json()


class Environments:
    """The environments of the repetitions, each built once.

    Attributes:
        table: Digest of the file from which they are read, which may be modified later; None if they are not read from a file.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        self._config = config
        self._random = is_random(config)
        self._built: dict[int, Environment] = {}
        self.table = table_digest(config.environment.name)

    def __getitem__(self, repetition: int) -> Environment:
        """The environment of a repetition; the same for all repetitions unless it is random."""
        key = repetition if self._random else 0
        if key not in self._built:
            self._built[key] = build_environment(self._config, key)
        return self._built[key]

    def rows(self, repetitions: Sequence[int]) -> Environment:
        """One environment whose batch rows are those of the repetitions."""
        first = self[repetitions[0]]
        if not self._random:
            return first
        return stack([self[repetition] for repetition in repetitions])


def stack(environments: Sequence[Environment]) -> Table:
    """Draws of one random environment as the batch rows of a table.

    Raises:
        ConfigError: If they differ in more than the values of arms, expected rewards and norm, or a class of the user's draws
            their rewards; the message names the difference.
    """
    own = [type(e).__name__ for e in environments if type(e) not in (Table, Function)]
    kinds = {(e.noise_std, getattr(e, "noise", None)) for e in environments}
    norms = [getattr(e, "norm_bound", None) for e in environments]
    faults = {
        f"{', '.join(dict.fromkeys(own))} may draw rewards in a way of its own": bool(own),
        "their arms are not tensors": not all(isinstance(e.arms, Tensor) for e in environments),
        "they have different numbers of arms or features": len({e.arms.shape for e in environments}) > 1,
        "their arms have costs": any(e.costs is not None for e in environments),
        "their noise differs": len(kinds) > 1,
        "the norm of some is not known": len({norm is None for norm in norms}) > 1,
    }
    why = next((fault for fault, there in faults.items() if there), "")
    name = environments[0].name
    require(not why, f"draws of {name!r} can't be run together, since {why}: leave out together.", ConfigError)
    noise_std, noise = next(iter(kinds))
    return Table(
        torch.stack([e.arms for e in environments if isinstance(e.arms, Tensor)]),
        torch.stack([e.means for e in environments]),
        noise_std,
        name=environments[0].name,
        noise=str(noise),
        norm_bound=None if norms[0] is None else torch.tensor(norms, dtype=torch.float64),
    )


def play(
    config: ExperimentConfig, runs: Sequence[Run], environments: Environments, folder: Path, callback: Callable[..., None]
) -> list[Record]:
    """Run a job in this process and write its records; each run is charged an equal share of the job's seconds."""
    generators = [torch.Generator().manual_seed(config.seed + r.repetition) for r in runs]
    environment = environments.rows([r.repetition for r in runs]) if len(runs) > 1 else environments[runs[0].repetition]
    observed = _observed(config, runs, environment, folder) if config.history else None
    with warnings.catch_warnings():
        # A run of a fixed horizon has no better use for its pulls once the best arm is known.
        warnings.filterwarnings("ignore", rf".* of the last {RECENT} pulls", DiagnosticWarning)
        try:
            history = run(
                build_policy(config, [r.place for r in runs], environment),
                environment,
                num_rounds=config.horizon,
                generator=generators if len(runs) > 1 else generators[0],
                callbacks=[callback],
                observed=observed,
                clock=time.perf_counter if config.clock == "wall" else time.process_time,
                workers=config.asynchronous,
                asynchronous=config.asynchronous is not None,
            )
        except EvaluationError as error:
            when = f"after {count(int(error.bandit.pulls.sum()), 'pull')}"
            said = _failed(config, runs, error.__cause__, when, folder)
            raise EvaluationError(said, error.history, error.bandit) from error.__cause__
    records = []
    for row, r in enumerate(runs):
        own, num_arms = history.row(row, seconds_share=1 / len(runs)), environments[r.repetition].arms.shape[-2]
        records.append(keep_record(config, folder, r.place, config.seed + r.repetition, own, num_arms, environments.table))
    return records


def _failed(config: ExperimentConfig, runs: Sequence[Run], cause: BaseException | None, when: str, folder: Path) -> str:
    """The error message of a run whose environment raised, with the line of the user's code that did."""
    frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    labels = ", ".join(dict.fromkeys(config.policies[run.place].label for run in runs))
    seeds = ", ".join(str(seed) for seed in sorted({config.seed + run.repetition for run in runs}))
    return (
        f"{labels}, seed {seeds}: an evaluation failed {when}: "
        f"{type(cause).__name__}: {cause}{where}. A run that did not end leaves no record. Those of the runs that had ended "
        f"are in {folder / RECORDS}; with --resume (resume=True) only the missing ones are run. To keep the rewards of costly "
        "evaluations, run the policy with a journal (torchbandits.run) or as a campaign."
    )


def _observed(
    config: ExperimentConfig, runs: Sequence[Run], environment: Environment, folder: Path
) -> tuple[Tensor, Tensor, Tensor]:
    """Uniform pulls, the same for all policies of a repetition: indices, ones, rewards."""
    generators = [torch.Generator().manual_seed(config.seed + r.repetition + HISTORY_SEED_OFFSET) for r in runs]
    num_arms = environment.arms.shape[-2]
    index = torch.stack([torch.randint(num_arms, (config.history,), generator=generator) for generator in generators])
    index = index if len(runs) > 1 else index[0]
    when = "in the pulls that are observed first (history)"
    try:
        rewards = environment.sample(index, generators)
    except Exception as error:
        raise EvaluationError(_failed(config, runs, error, when, folder)) from error
    if not bool(rewards.isfinite().all()):
        fault = NonFiniteError("a reward is not a finite number")
        raise EvaluationError(_failed(config, runs, fault, when, folder)) from fault
    return index, torch.ones_like(rewards), rewards


# ---------------------------------------------------------------------- all jobs, with their progress


def _records(
    config: ExperimentConfig, environments: Environments, folder: Path, console: Console, resume: bool, workers: int
) -> list[Record]:
    """All records, in the order of the configuration."""
    records: dict[Run, Record] = {}
    todo: list[list[Run]] = []
    replaced, named = 0, set[Run]()
    with _progress(console) as progress:
        total = sum(repetitions_of(config, place) for place in range(len(config.policies))) * config.horizon
        task = progress.add_task("", total=total)
        for job in jobs(config):
            found = {run: _earlier(config, folder, run, progress.console, named) if resume else None for run in job}
            records |= {run: record for run, record in found.items() if record is not None}
            missing = [run for run in job if run not in records]
            progress.advance(task, (len(job) - len(missing)) * config.horizon)
            todo += [missing] if missing else []
            replaced += sum(_is_kept(config, folder, run) and run not in named for run in missing)
        if replaced:
            why = ", because settings have changed" if resume else "; --resume keeps those of the same settings"
            what = f"{count(replaced, 'earlier run')} in {folder / RECORDS} will be replaced{why}."
            progress.console.print(plain(what), soft_wrap=True)
        if workers == 1:
            for runs in todo:
                advance = _Advance(progress, task, config, runs)
                records |= _announced(progress.console, runs, play(config, runs, environments, folder, advance))
                advance.finish()
        elif todo:
            progress.update(task, description=f"{workers} at once")
            for runs in play_apart(config, todo, folder, workers):
                made = [find_record(config, folder, run.place, config.seed + run.repetition) for run in runs]
                records |= _announced(progress.console, runs, made)
                progress.advance(task, len(runs) * config.horizon)
    return [records[run] for run in sorted(records, key=lambda run: (run.repetition, run.place))]


def _announced(console: Console, runs: Sequence[Run], made: Sequence[Record | None]) -> dict[Run, Record]:
    """The records of runs that have ended, after one line has been printed about each."""
    records = {run: record for run, record in zip(runs, made, strict=True) if record is not None}
    for record in records.values():
        summary = record.history.summary()
        regret = f"regret {summary['regret']:.4g}"
        found = regret if regret_is_known([record]) else f"largest reward {record.history.pulls['reward'].max():.4g}"
        line = f"{record.label}, seed {record.seed}: {found}, {summary['seconds']:.2f} s"
        console.print(plain(line), soft_wrap=True)
    return records


def _earlier(config: ExperimentConfig, folder: Path, run: Run, console: Console, named: set[Run]) -> Record | None:
    """The record that an earlier start has left, or None. A damaged record, or one of a table that has changed, is reported and
    made again; its run is added to `named`."""
    try:
        found = find_record(config, folder, run.place, config.seed + run.repetition)
    except DataError as error:
        console.print(plain(f"run again: {error}"), soft_wrap=True)
        named.add(run)
        return None
    if found is not None and found.history.metadata.get("table") != table_digest(config.environment.name):
        line = f"run again: {found.label}, seed {found.seed}: {config.environment.name} has changed since"
        console.print(plain(line), soft_wrap=True)
        named.add(run)
        return None
    return found


def _is_kept(config: ExperimentConfig, folder: Path, run: Run) -> bool:
    """Whether there is a record of the policy's label and the seed, of whatever settings."""
    return os.path.isdir(record_folder(folder, config.policies[run.place].slug, config.seed + run.repetition))


class _Advance:
    """Callback of `run` that advances the progress bar by the pulls told or, without a bar, prints a line at intervals."""

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


# ---------------------------------------------------------------------- worker processes


def play_apart(config: ExperimentConfig, jobs: Sequence[Sequence[Run]], folder: Path, workers: int) -> Iterator[list[Run]]:
    """Run jobs in worker processes, which write the records; yields each job when it has ended.

    A run makes the same picks as in a single process; its seconds are those of a core that shares memory bandwidth.

    Raises:
        StateError: If a worker dies, for example because memory runs out.
    """
    threads = config.threads or max(1, (os.cpu_count() or 1) // workers)
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(workers, len(jobs)), context, _begin, (threads, config)) as pool:
        with _interrupts_ignored():
            waiting = {pool.submit(_play, runs, folder): list(runs) for runs in jobs}
        try:
            for done in as_completed(waiting):
                done.result()
                yield waiting[done]
        except BrokenProcessPool as error:
            raise StateError(
                "a worker process has died, perhaps for lack of memory: use fewer --workers. The runs that had ended are kept: "
                "with resume=True (torchbandits run: --resume) only those that are missing are run."
            ) from error
        except KeyboardInterrupt:
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Context in which started processes ignore Ctrl-C, which reaches all processes of a terminal; their parent ends them."""
    # Only the main thread may change the handler of a signal.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def threads_of_torch(count: int | None) -> Iterator[None]:
    """Set the number of PyTorch's threads, a setting of the process, and restore it afterwards."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _begin(threads: int, config: ExperimentConfig) -> None:
    torch.set_num_threads(threads)
    # Not read from the folder: YAML has no word for some values, and the file may be another one by now.
    _GIVEN.append(config)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.join,), daemon=True).start()
    warm_up()


def _end_with(wait: Callable[[], None]) -> None:
    """End this worker when its parent has ended, in whatever way."""
    wait()
    os._exit(1)


def _play(runs: Sequence[Run], folder: Path) -> None:
    play(_GIVEN[0], runs, _environments(), folder, lambda *_: None)


_GIVEN: list[ExperimentConfig] = []
"""The experiment of a worker process."""


@cache
def _environments() -> Environments:
    """The environments of a worker process, made when its first job begins."""
    return Environments(_GIVEN[0])
