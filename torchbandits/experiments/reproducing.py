"""Reproduce a figure or a table of a paper: run what is missing, then its summary, its numbers and its figure."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console

from torchbandits.checks import as_path, check_flag, check_whole
from torchbandits.errors import require
from torchbandits.experiments.config import ExperimentConfig
from torchbandits.experiments.panels import draw_reproduction
from torchbandits.experiments.records import load_records
from torchbandits.experiments.reproduction import ReproductionConfig
from torchbandits.experiments.results_page import section
from torchbandits.experiments.runner import check_console, run_experiment
from torchbandits.experiments.starvation import study
from torchbandits.experiments.summaries import Summary, read_summary, summarise, write_summary
from torchbandits.files import prepare_folder, write_atomically, write_text

RESULTS = Path("results") / "figures"
SUMMARY, FIGURE, PAGE = "summary.parquet", "figure.png", "README.md"
STUDY = "study"


@dataclass(frozen=True)
class Reproduced:
    """What a reproduction left behind."""

    summary: Summary
    folder: Path
    files: tuple[Path, ...]


def form_name(name: str, quick: bool) -> str:
    """The name of a reproduction's folder: its own, marked where the form is reduced."""
    return f"{name}-quick" if quick else name


def reproduce(
    reproduction: ReproductionConfig,
    *,
    quick: bool = False,
    output: Path | None = None,
    console: Console | None = None,
    again: bool = False,
    workers: int = 1,
) -> Reproduced:
    """Run a reproduction, or what an interrupted one left to do, and write its summary, numbers and figure.

    The numbers are those of an uninterrupted run but for the seconds. Records are kept in the folder of each experiment.

    Args:
        reproduction: What to run.
        quick: Run the reduced form.
        output: Folder of the results, by default `results/figures/NAME` or `NAME-quick`.
        console: As for `run_experiment`.
        again: Run everything, also what is there.
        workers: As for `run_experiment`.

    Raises:
        ConfigError: If a name or an option is unknown or out of its range, or there is no reduced form.
        DataError: If data can't be found, or the folder can't be written.
    """
    known = isinstance(reproduction, ReproductionConfig)
    kind = type(reproduction).__name__
    require(known, f"reproduction must be a ReproductionConfig, as find_reproduction() returns, got {kind}.")
    check_flag("quick", quick)
    check_flag("again", again)
    check_console(console)
    check_whole("workers", workers)
    folder = RESULTS / form_name(reproduction.name, quick) if output is None else as_path("output", output)
    configs = {name: c.quickened() if quick else c for name, c in reproduction.experiments.items()}
    prepare_folder(folder)
    clock = _Clock(folder, again)
    if reproduction.study is not None:
        chosen = reproduction.study
        table = study(chosen, chosen.quick_repetitions if quick else chosen.repetitions)
    else:
        parts = []
        for name, config in configs.items():
            place = folder / name
            run_experiment(config, place, console, resume=not again, workers=workers)
            parts.append(summarise(reproduction, name, config, load_records(place)[1]))
            clock.note()
        table = pd.concat(parts, ignore_index=True)
    summary = Summary(table, {"quick": quick, "runs": _runs(configs)} | clock.times() | _machine(workers))
    write_summary(summary, folder / SUMMARY)
    return write_report(reproduction, folder)


def write_report(reproduction: ReproductionConfig, folder: Path) -> Reproduced:
    """Draw the figure and write the numbers again from the summary in a folder."""
    summary = read_summary(folder / SUMMARY)
    figure = draw_reproduction(reproduction, summary)
    write_atomically(folder / FIGURE, partial(figure.savefig, dpi=110, pil_kwargs={"optimize": True}))
    write_text(folder / PAGE, section(reproduction, summary, FIGURE))
    return Reproduced(summary, folder, tuple(folder / name for name in (SUMMARY, FIGURE, PAGE)))


class _Clock:
    """Seconds and processor seconds, with those of earlier starts of an interrupted reproduction as far as they noted them."""

    def __init__(self, folder: Path, again: bool) -> None:
        self._path = folder / "seconds.json"
        self._began, self._cpu_began = time.perf_counter(), _cpu_seconds()
        known = json.loads(self._path.read_text(encoding="utf-8")) if self._path.is_file() and not again else {}
        self._before = {name: float(known.get(name, 0.0)) for name in ("seconds", "cpu_seconds")}

    def times(self) -> dict[str, float]:
        """Both, until now."""
        now = {"seconds": time.perf_counter() - self._began, "cpu_seconds": _cpu_seconds() - self._cpu_began}
        return {name: round(self._before[name] + value, 1) for name, value in now.items()}

    def note(self) -> None:
        """Keep them for a later start."""
        write_text(self._path, json.dumps(self.times()))


def _cpu_seconds() -> float:
    """Processor seconds of this process and of its workers that have ended."""
    return sum(os.times()[:4])


def _runs(configs: dict[str, ExperimentConfig]) -> dict[str, str]:
    """What was run, in words, by experiment."""
    return {
        name: f"T = {config.horizon:,}, {config.repetitions} repetitions"
        + (f", {config.history:,} uniform pulls observed before" if config.history else "")
        + (", repetitions as batch rows of one run (each one's seconds are its share)" if config.together else "")
        + (f", seconds of the processor ({config.threads or 'all'} threads)" if config.clock == "processor" else "")
        for name, config in configs.items()
    }


def _machine(workers: int) -> dict[str, object]:
    load = os.getloadavg()[1] if hasattr(os, "getloadavg") else float("nan")
    cores, threads = f"{os.cpu_count()} CPU cores ({platform.machine()})", torch.get_num_threads()
    at_once = f"{threads} threads" if workers == 1 else f"{workers} runs at once"
    return {"machine": f"{cores}, {at_once}, torch {torch.__version__}", "load": round(load, 1)}
