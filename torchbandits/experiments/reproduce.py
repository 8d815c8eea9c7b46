"""Reproduce a figure or a table of a paper: run what is missing, then its summary, its numbers and its figure."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console

from torchbandits.experiments.config import ExperimentConfig
from torchbandits.experiments.files import prepare_folder, write_atomically, write_text
from torchbandits.experiments.panels import draw_reproduction
from torchbandits.experiments.records import load_records
from torchbandits.experiments.reproduction import ReproductionConfig
from torchbandits.experiments.results_page import section
from torchbandits.experiments.runner import run_experiment
from torchbandits.experiments.starvation import study
from torchbandits.experiments.summaries import Summary, read_summary, summarise, write_summary

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
) -> Reproduced:
    """Run a reproduction, or what an interrupted one left to do, and write its summary, numbers and figure.

    The numbers are those of an uninterrupted run but for the seconds. Records are kept in the folder of each experiment.

    Args:
        reproduction: What to run.
        quick: Run the reduced form.
        output: Folder of the results, by default `results/figures/NAME` or `NAME-quick`.
        console: As for `run_experiment`.
        again: Run everything, also what is there.

    Raises:
        ConfigError: If a name or an option is unknown or out of its range, or there is no reduced form.
        DataError: If data can't be found, or the folder can't be written.
    """
    folder = output if output is not None else RESULTS / form_name(reproduction.name, quick)
    configs = {name: c.quickened() if quick else c for name, c in reproduction.experiments.items()}
    prepare_folder(folder)
    before, began = _seconds_before(folder, again), time.perf_counter()
    if reproduction.study is not None:
        chosen = reproduction.study
        table = study(chosen, chosen.quick_repetitions if quick else chosen.repetitions)
    else:
        parts = []
        for name, config in configs.items():
            place = folder / name
            run_experiment(config, place, console, resume=not again)
            parts.append(summarise(reproduction, name, config, load_records(place)[1]))
            _note_seconds(folder, before + time.perf_counter() - began)
        table = pd.concat(parts, ignore_index=True)
    seconds = before + time.perf_counter() - began
    summary = Summary(table, {"quick": quick, "seconds": round(seconds, 1), "runs": _runs(configs)} | _machine())
    write_summary(summary, folder / SUMMARY)
    return write_report(reproduction, folder)


def write_report(reproduction: ReproductionConfig, folder: Path) -> Reproduced:
    """Draw the figure and write the numbers again from the summary in a folder."""
    summary = read_summary(folder / SUMMARY)
    figure = draw_reproduction(reproduction, summary)
    write_atomically(folder / FIGURE, partial(figure.savefig, dpi=110, pil_kwargs={"optimize": True}))
    write_text(folder / PAGE, section(reproduction, summary, FIGURE))
    return Reproduced(summary, folder, tuple(folder / name for name in (SUMMARY, FIGURE, PAGE)))


def _seconds_before(folder: Path, again: bool) -> float:
    """What earlier starts of an interrupted reproduction took, as far as they noted it."""
    path = folder / "seconds.txt"
    return 0.0 if again or not path.is_file() else float(path.read_text(encoding="utf-8"))


def _note_seconds(folder: Path, seconds: float) -> None:
    write_text(folder / "seconds.txt", f"{seconds:.1f}\n")


def _runs(configs: dict[str, ExperimentConfig]) -> dict[str, str]:
    """What was run, in words, by experiment."""
    return {
        name: f"T = {config.horizon:,}, {config.repetitions} repetitions"
        + (f", {config.history:,} uniform pulls observed before" if config.history else "")
        + (", repetitions as batch rows of one run (each one's seconds are its share)" if config.together else "")
        for name, config in configs.items()
    }


def _machine() -> dict[str, object]:
    load = os.getloadavg()[1] if hasattr(os, "getloadavg") else float("nan")
    cores, threads = f"{os.cpu_count()} CPU cores ({platform.machine()})", torch.get_num_threads()
    return {"machine": f"{cores}, {threads} threads, torch {torch.__version__}", "load": round(load, 1)}
