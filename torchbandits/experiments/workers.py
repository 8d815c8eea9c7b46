"""The runs of an experiment, in this process or in several at once; each record is written when its run ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from torchbandits.arms import warm_up
from torchbandits.errors import StateError
from torchbandits.experiments.config import ExperimentConfig, load_config
from torchbandits.experiments.jobs import Environments, Run, play
from torchbandits.experiments.records import CONFIG, Record, keep_record


def play_here(
    config: ExperimentConfig, runs: Sequence[Run], environments: Environments, folder: Path, callback: Callable[..., None]
) -> list[Record]:
    """Run a job in this process and keep its records."""
    histories = play(config, runs, environments, callback)
    return [
        keep_record(
            config, folder, run.place, config.seed + run.repetition, history, environments[run.repetition].arms.shape[-2]
        )
        for run, history in zip(runs, histories, strict=True)
    ]


def play_apart(config: ExperimentConfig, jobs: Sequence[Sequence[Run]], folder: Path, workers: int) -> Iterator[list[Run]]:
    """Run jobs in worker processes, which keep the records; yields each job when it has ended.

    A run's picks are those that it makes in one process; its seconds are those of a core that shares memory with the others.

    Raises:
        StateError: If a worker dies, as it does when memory runs out.
    """
    threads = config.threads or max(1, (os.cpu_count() or 1) // workers)
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(workers, len(jobs)), context, _begin, (threads,)) as pool:
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
    """Processes started meanwhile ignore Ctrl-C, which reaches all processes of a terminal: their parent ends them."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may change what a signal does
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def threads_of_torch(count: int | None) -> Iterator[None]:
    """Torch's threads are a setting of the process: it is put back."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.join,), daemon=True).start()
    warm_up()


def _end_with(wait: Callable[[], None]) -> None:
    """A worker outlives no parent, however that ended."""
    wait()
    os._exit(1)


def _play(runs: Sequence[Run], folder: Path) -> None:
    experiment, environments = _experiment(folder)
    play_here(experiment, runs, environments, folder, lambda *_: None)


@cache
def _experiment(folder: Path) -> tuple[ExperimentConfig, Environments]:
    """Read once a process, from the configuration that was written before the first run."""
    experiment = load_config(folder / CONFIG)
    return experiment, Environments(experiment)
