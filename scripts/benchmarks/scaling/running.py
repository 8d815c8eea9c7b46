"""Run a benchmark, each point in a fresh process with limits of time and memory, and write numbers and figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from scaling.config import AXES, BenchmarkConfig, Point
from scaling.machine import Rates, sweep_floor
from scaling.report import draw_axis, markdown
from torchbandits.errors import DataError, require
from torchbandits.files import prepare_folder, write_atomically, write_text

WORKER = [sys.executable, "-m", "scaling.worker"]
# The worker finds this folder, which is not part of an installed package, through PYTHONPATH.
_PATH = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
DONE, OVER_TIME, OUT_OF_MEMORY = "done", "over the time limit", "out of memory"
_MEMORY_STATUS = 3  # exit status of a worker whose memory ran out
_TIMERS = (-signal.SIGPROF, -signal.SIGALRM)
_STALLED = 3600.0  # wall-clock seconds after which a process is killed if its timer has not ended it


@dataclass(frozen=True)
class Benchmarked:
    """The measurements, one line per method and point, and the files written."""

    table: pd.DataFrame
    files: list[Path]


def run_benchmark(config: BenchmarkConfig, *, console: Console | None = None) -> Benchmarked:
    """Measure, and write `results.parquet`, `table.md` and one figure per axis.

    Numbers and table are written after each line, so an interrupted run keeps its measurements. A method that reached a limit
    is not run at larger points, which are listed with the same outcome.

    Raises:
        DataError: If a file can't be written, or a process fails for another reason than a limit.
    """
    prepare_folder(config.folder)
    console = Console(quiet=True) if console is None else console
    points = dict.fromkeys(point for axis in AXES for point in config.along(axis))
    rates: dict[int, Rates] = {}
    answer_of: Callable[[BenchmarkConfig, str, Point], tuple[str, dict[str, Any]]] = OneProcess() if config.together else ask
    lines: list[dict[str, Any]] = []
    ascending = sorted(points, key=lambda p: (p.arms * p.dictionary, p.pulls))
    # One method after the other, so that a run that is ended has all points of the first ones.
    for method in config.methods:
        for place, point in enumerate(ascending):
            m = point.dictionary
            if m not in rates:
                outcome, answer = answer_of(config, "rates", point)
                message = f"The rates of the machine could not be measured: {outcome}. Raise time_limit or memory_limit."
                require(outcome == DONE, message, DataError)
                rates[m] = Rates(**answer)
            console.print(f"{place + 1} / {len(points)}: A = {point.arms:,}, m = {m:,}, t = {point.pulls:,}: {method}")
            known = _known_outcome(lines, method, point)
            outcome, answer = (known, {}) if known is not None else answer_of(config, method, point)
            line = {"method": method, **asdict(point), "outcome": outcome, "tried": known is None, **answer}
            if outcome == DONE:
                line["floor"] = sweep_floor(point, config.dim, answer["kept"] or method != "torchbandits", rates[m])
            lines.append(line | {f"rate_{name}": value for name, value in vars(rates[m]).items()})
            table = with_ratios(pd.DataFrame(lines))
            write_table(config, table)
    return Benchmarked(table, write_benchmark(config, table))


def ask(config: BenchmarkConfig, method: str, point: Point) -> tuple[str, dict[str, Any]]:
    """Outcome and measurements of one process.

    Raises:
        DataError: If the process failed for another reason than a limit.
    """
    try:
        done = subprocess.run(
            WORKER,
            input=_task(config, method, point),
            capture_output=True,
            text=True,
            timeout=_STALLED + 10 * config.time_limit,
            check=False,
            env=os.environ | {"PYTHONPATH": _PATH},
        )
    except subprocess.TimeoutExpired:
        return OVER_TIME, {}
    if done.returncode != 0:
        return _outcome(done.returncode, done.stderr, f"{method} at {point}"), {}
    return DONE, json.loads(done.stdout)


def _task(config: BenchmarkConfig, method: str, point: Point) -> str:
    return json.dumps({"method": method, "point": asdict(point), "config": asdict(config)}) + "\n"


def _outcome(status: int, errors: str, what: str) -> str:
    """The limit at which a process ended. Raises `DataError` if it ended for another reason."""
    if status in _TIMERS:
        return OVER_TIME
    if status in (_MEMORY_STATUS, -signal.SIGKILL):  # the kernel kills processes when memory runs out
        return OUT_OF_MEMORY
    last = (errors.strip().splitlines() or ["no message"])[-1]
    raise DataError(f"{what} failed with exit status {status}: {last}")


class OneProcess:
    """`ask` with a process that answers several tasks, and is replaced by a new one when it ends at a limit."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, config: BenchmarkConfig, method: str, point: Point) -> tuple[str, dict[str, Any]]:
        """Outcome and measurements of one task; see `ask`."""
        process = self._process
        if process is None or process.poll() is not None:
            pipe, environment = subprocess.PIPE, os.environ | {"PYTHONPATH": _PATH}
            process = subprocess.Popen(WORKER, text=True, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
            self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(_task(config, method, point))
        process.stdin.flush()
        # The worker's timer ends the worker at the limit; `readline` then returns an empty line.
        if answer := process.stdout.readline():
            return DONE, json.loads(answer)
        return _outcome(process.wait(), process.stderr.read(), f"{method} at {point}"), {}


def _known_outcome(lines: Sequence[dict[str, Any]], method: str, point: Point) -> str | None:
    """The limit that the method reached at a point that is no larger in any axis, or None."""
    for line in lines:
        if line["method"] == method and line["outcome"] != DONE and all(getattr(point, axis) >= line[axis] for axis in AXES):
            return str(line["outcome"])
    return None


def with_ratios(table: pd.DataFrame) -> pd.DataFrame:
    """Add `update_ratio` and `step_ratio`, the seconds of each method divided by ours at the same point, and `floor_ratio`, the
    seconds of an update divided by the floor."""
    for column in ("update", "step", "floor", "memory"):
        if column not in table:
            table[column] = float("nan")
    own = table[table["method"] == "torchbandits"].set_index(list(AXES))
    keys = pd.MultiIndex.from_frame(table[list(AXES)])
    for column in ("update", "step"):
        base = own[column].reindex(keys).to_numpy()
        table[f"{column}_ratio"] = table[column].to_numpy() / base
    table["floor_ratio"] = table["update"] / table["floor"]
    return table


def write_table(config: BenchmarkConfig, table: pd.DataFrame) -> list[Path]:
    """Write the numbers and the Markdown table."""
    results, text = config.folder / "results.parquet", config.folder / "table.md"
    write_atomically(results, lambda path: table.to_parquet(path, index=False))
    write_text(text, markdown(config, table))
    return [results, text]


def write_benchmark(config: BenchmarkConfig, table: pd.DataFrame) -> list[Path]:
    """Write the numbers, the Markdown table and one log–log figure for each axis with several points."""
    files = write_table(config, table)
    for axis in AXES:
        if len(set(getattr(config, axis))) > 1:
            path = config.folder / f"{axis}.png"
            figure = draw_axis(config, table, axis)
            write_atomically(path, lambda temporary, figure=figure: figure.savefig(temporary, dpi=150))  # type: ignore[misc]
            files.append(path)
    return files
