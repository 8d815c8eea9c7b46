"""A run in progress, shown in the terminal by its journal: a picture that is redrawn, or a line at intervals."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from torchbandits.errors import DataError, require
from torchbandits.experiments.printable import plain
from torchbandits.experiments.records import CONFIG, output_folder
from torchbandits.experiments.rounded import number, spread
from torchbandits.journal import Reading, in_words

BEST = 8
"""Number of best arms shown."""
WINDOW = 100
"""Number of most recent pulls over which rewards and regret are averaged, and of most recent batches that determine the
speed."""
PARTS = 44
SHORTEST, LONGEST = 0.05, 86_400.0  # seconds between two looks
BARS = "▁▂▃▄▅▆▇█"


def watch(path: Path, console: Console, *, every: float | None = None, once: bool = False, row: int = 0) -> None:
    """Show a run until it is over, if its journal says how long it is, or until Ctrl-C.

    Args:
        path: A journal, or the store of workers. It is only read, and its writer is not delayed.
        console: A terminal; any other console gets plain lines.
        every: Seconds between two looks; by default 1 in a terminal, 10 elsewhere.
        once: Show the current picture and return.
        row: Batch row to show.

    Raises:
        ArgumentError: If `every` is less than 0.05 seconds, or more than a day.
        DataError: If the file is missing, not a journal, damaged, or has no such row.

    Cost: a look reads the records written since the last one, and takes O(n log n) in the number n of pulls.
    """
    good = every is None or SHORTEST <= every <= LONGEST
    require(good, f"every must be from {SHORTEST} to {LONGEST:,.0f} seconds, got {every}.")
    message = f"{path} is the folder of an experiment, not a journal: torchbandits report {path} shows the runs that ended."
    require(not (output_folder(path) / CONFIG).is_file(), message, DataError)
    reading = Reading(path)
    if once:
        console.print(frame(reading, row, time.time()))
        return
    with contextlib.suppress(KeyboardInterrupt):
        if not console.is_terminal:
            for _ in looks(reading, row, every or 10.0):
                console.print(plain(line(reading, row, time.time())), soft_wrap=True)
            return
        with Live(frame(reading, row, time.time()), console=console, auto_refresh=False) as live:
            for _ in looks(reading, row, every or 1.0, always=True):
                live.update(frame(reading, row, time.time()), refresh=True)


def looks(reading: Reading, row: int, every: float, always: bool = False) -> Iterator[None]:
    """Yield now, and after each look that found new records (after every look with `always`), until the run is over."""
    came = 1
    while True:
        if came or always:
            yield
        if state_of(reading, row, time.time()).over:
            return
        time.sleep(every)
        came = reading.update()


def line(reading: Reading, row: int, now: float) -> str:
    """The current state of the run in one line."""
    p = checked(reading, row, now)
    parts = [f"{pulls_in_words(p)} pulls", f"reward {spread(p.recent, p.recent_error)}"]
    parts += [f"regret {number(p.recent_regret)} a pull"] if np.isfinite(p.regret) else []
    parts += [f"arm {b.arm}: {spread(b.mean, b.error)}" for b in p.best[:1]]
    parts += [f"dictionary {p.dictionary}"] if p.dictionary >= 0 else []
    parts += [f"{number(p.rate)} pulls/s"] if np.isfinite(p.rate) else []
    parts += ["done"] if p.over else [f"{clock(p.left)} to go"] if np.isfinite(p.left) else []
    return ", ".join(parts)


def frame(reading: Reading, row: int, now: float) -> RenderableType:
    """The current state of the run for a terminal of at least 80 columns."""
    p = checked(reading, row, now)
    rows = reading.history.batch_size
    title = plain(reading.path.name, style="bold")
    title.append(f"  row {row} of {rows}" if rows > 1 else "", style="not bold")
    what = [in_words(reading.about)] if reading.about else ["nothing is written yet"]
    what += [f"environment {reading.environment}"] if reading.environment else []
    # Side by side, or one below the other in a narrow terminal.
    sides = Columns([facts(reading, p, row), best_table(reading, p, row)], padding=(0, 3))
    parts: list[RenderableType] = [title, plain(", ".join(what), style="dim"), Text("")]
    if p.rounds is not None:
        done = ProgressBar(total=p.rounds, completed=min(p.done, p.rounds), width=46)
        bar = Table.grid(padding=(0, 2))
        state = "done" if p.over else f"{clock(p.left)} to go" if np.isfinite(p.left) else "time to go unknown"
        bar.add_row(done, f"{p.done / p.rounds:.0%}", state)
        parts += [bar, Text("")]
    return Group(*parts, sides, *strips(p))


def facts(reading: Reading, p: RunState, row: int) -> RenderableType:
    """Numbers of the run by name, each with its unit."""
    known = {"pulls told": pulls_in_words(p)}
    beside = {"observed": reading.observed[row], "failed": p.failed, "forgotten": reading.forgotten[row]}
    known |= {name: f"{int(count):,}" for name, count in beside.items() if count}
    known["picks out"] = f"{reading.out[row]:,.0f}" if np.isfinite(reading.out[row]) else "–"
    sizes = [int(counts[row]) for counts in reading.asked]
    known["picks an ask"] = " ".join(f"{size:,}" for size in sizes[-7:]) or "–"
    known[f"reward, last {p.window}"] = f"{spread(p.recent, p.recent_error)}, {number(p.mean)} in all"
    if np.isfinite(p.regret):
        known[f"regret, last {p.window}"] = f"{number(p.recent_regret)}, {number(p.regret)} in all"
    regret = f", regret {number(p.simple_regret)}" if np.isfinite(p.simple_regret) else ""
    known["recommended arm"] = f"{p.recommended}{regret}" if p.recommended >= 0 else "–"
    known["distinct arms"] = f"{p.distinct:,}"
    known["dictionary"] = f"{p.dictionary:,} points" if p.dictionary >= 0 else "–"
    known["certificate"] = f"{number(p.certificate)} reward units"
    known["width"] = f"{number(p.width)} σ"
    known["speed of late"] = f"{number(p.rate)} pulls a second"
    known["time passed"] = clock(p.passed)
    known["last record"] = f"{clock(p.silent)} ago"
    grid = Table.grid(padding=(0, 2))
    for name, value in known.items():
        grid.add_row(Text(name, style="dim"), Text(value))
    return grid


def best_table(reading: Reading, p: RunState, row: int) -> RenderableType:
    """The best arms by their mean rewards, with their points if the arms are points of a box."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    points = reading.points if row == 0 else {}
    headers = ["best arm", "pulls", "reward ± s.e."] + (["point"] if points else [])
    for header in headers:
        table.add_column(header, justify="left" if header == "point" else "right", no_wrap=True)
    for b in p.best:
        point = " ".join(f"{x:.3g}" for x in points.get(b.arm, [])[:6])
        table.add_row(*map(Text, [str(b.arm), f"{b.pulls:,}", spread(b.mean, b.error), point][: len(headers)]))
    return table


def strips(p: RunState) -> list[RenderableType]:
    """Mean rewards and mean batch sizes over the run as rows of bars, earliest on the left."""
    lines = []
    for name, values in (("mean reward", p.rewards), ("told at once", p.sizes)):
        if len(values) >= 2:
            means = np.array([part.mean() for part in np.array_split(values, min(PARTS, len(values)))])
            low, high = means.min(), means.max()
            steps = ((means - low) / (high - low or 1.0) * (len(BARS) - 1)).round().astype(int)
            lines.append((name, "".join(BARS[step] for step in steps), f"{number(low)} to {number(high)}"))
    if not lines:
        return []
    grid = Table.grid(padding=(0, 2))
    for name, bars, scale in lines:
        grid.add_row(Text(name, style="dim"), Text(bars, style="cyan"), Text(scale))
    return [Text(""), grid]


def checked(reading: Reading, row: int, now: float) -> RunState:
    """The state of a row. Raises `DataError` if there is no such row."""
    rows = reading.history.batch_size
    require(
        row < rows,
        f"{reading.path} has {rows} batch row{'s' * (rows > 1)}, counted from 0: there is no --row {row}.",
        DataError,
    )
    return state_of(reading, row, now)


def pulls_in_words(p: RunState) -> str:
    """Number of pulls told, and of all pulls if that is known."""
    return f"{p.pulls:,}" if p.rounds is None else f"{p.pulls:,} of {p.rounds:,}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, or – if unknown."""
    return "–" if np.isnan(seconds) else str(timedelta(seconds=max(round(seconds), 0)))


# ---------------------------------------------------------------------- the state of a run


@dataclass(frozen=True)
class RunState:
    """The current state of one batch row of a run. Unknown values are NaN (−1 for an arm or a count).

    Attributes:
        pulls, failed: Pulls told, and evaluations that failed.
        rounds: Number of pulls of the whole run; None if unknown.
        best: The arms with the best rewards since the arms last changed, see `best_arms`.
        rewards: Reward of each pull, reward units.
        sizes: Number of pulls of each tell.
        window: Number of pulls that `recent` averages.
        recent, recent_error, mean: Mean of the most recent rewards, its standard error, and the mean of all, reward units.
        recent_regret, regret: Mean regret of the most recent pulls and of all, reward units.
        recommended, simple_regret: The recommended arm and its regret, reward units.
        distinct, dictionary: Distinct arms and dictionary points.
        width, certificate: As in `Report`.
        rate: Pulls per second of wall-clock time over the most recent batches.
        passed, silent, left: Seconds from the first record to the last, since the last record, and to the end at this rate.
    """

    pulls: int
    failed: int
    rounds: int | None
    best: list[BestArm]
    rewards: NDArray[Any]
    sizes: NDArray[Any]
    window: int
    recent: float
    recent_error: float
    mean: float
    recent_regret: float
    regret: float
    recommended: int
    simple_regret: float
    distinct: int
    dictionary: int
    width: float
    certificate: float
    rate: float
    passed: float
    silent: float
    left: float

    @property
    def done(self) -> int:
        """Number of finished rounds."""
        return self.pulls + self.failed

    @property
    def over(self) -> bool:
        """Whether all rounds are finished."""
        return self.rounds is not None and self.done >= self.rounds


def state_of(reading: Reading, row: int, now: float) -> RunState:
    """The current state of a batch row.

    Args:
        reading: Its journal.
        row: Batch row.
        now: Seconds since 1970.

    Cost: O(n log n) in the number n of pulls.
    """
    pulls, batches = reading.history.pulls, reading.history.batches
    if reading.history.batch_size > 1:
        pulls = {name: values[pulls["row"] == row] for name, values in pulls.items()}
        batches = {name: values[batches["row"] == row] for name, values in batches.items()}
    rewards, regret, now_known = pulls["reward"], pulls["regret"], pulls["t"] > reading.moved[row]
    last, some = rewards[-WINDOW:], len(rewards) > 0
    outcomes = outcomes_of(reading.about)
    names, least = outcomes.get("outcomes", []), outcomes.get("less_is_better", [])
    small = bool(names) and names[row % len(names)] in least
    failed = int(batches["failed"].sum())
    lately = {name: float(batches[name][-WINDOW:].sum()) for name in ("size", "seconds")}
    rate = lately["size"] / lately["seconds"] if some and lately["seconds"] > 0 else np.nan
    to_go = np.nan if reading.rounds is None else max(reading.rounds - len(rewards) - failed, 0)

    def newest(name: str, unknown: float) -> float:
        return float(batches[name][-1]) if len(batches[name]) else unknown

    return RunState(
        pulls=len(rewards),
        failed=failed,
        rounds=reading.rounds,
        best=best_arms(pulls["arm"][now_known], rewards[now_known], BEST, small=small),
        rewards=rewards,
        sizes=batches["size"],
        window=len(last),
        recent=float(last.mean()) if some else np.nan,
        recent_error=float(last.std(ddof=1) / np.sqrt(len(last))) if len(last) > 1 else np.nan,
        mean=float(rewards.mean()) if some else np.nan,
        recent_regret=float(regret[-WINDOW:].mean()) if some else np.nan,
        regret=float(regret.mean()) if some else np.nan,
        recommended=int(newest("recommended", -1.0)),
        simple_regret=newest("simple_regret", np.nan),
        distinct=int(newest("distinct_arms", 0.0)),
        dictionary=int(newest("dictionary_size", -1.0)),
        width=newest("width", np.nan),
        certificate=newest("certificate", np.nan),
        rate=rate,
        passed=reading.last - reading.began,
        silent=now - reading.last,
        left=to_go / rate if rate else np.nan,
    )


class BestArm(NamedTuple):
    """An arm, its number of pulls, its mean reward and the standard error of that mean (NaN if unknown), reward units."""

    arm: int
    pulls: int
    mean: float
    error: float


def outcomes_of(about: dict[str, str]) -> dict[str, Any]:
    """Names of the outcomes of a run by the header of its journal, whether each objective is to be maximised or minimised, and
    the outcomes to be minimised, also those with upper limits only; nothing for a run of one outcome."""
    names = [about[key].strip("'\"") for key in about if re.fullmatch(r"policy\.names\.\d+", key)]
    if not names:
        return {}
    # If arms are evaluated at several fidelities, the aim at the target.
    aim = "policy.aim.aim." if "policy.aim.aim" in about else "policy.aim."
    signs = [float(about.get(f"{aim}signs.{j}", "0")) for j in range(len(names))]
    if f"{aim}objective.outcome" in about:
        signs[int(about[f"{aim}objective.outcome"])] = float(about[f"{aim}objective.sign"])
    aims = {name: "minimize" if sign < 0 else "maximize" for name, sign in zip(names, signs, strict=True) if sign}
    limits: dict[str, set[float]] = {}
    for key, value in about.items():
        if found := re.fullmatch(rf"({re.escape(aim)}limits\.\d+\.)outcome", key):
            limits.setdefault(names[int(value)], set()).add(float(about[f"{found[1]}sign"]))
    small = [name for name in names if aims.get(name) == "minimize" or (name not in aims and limits.get(name) == {-1.0})]
    return {"outcomes": names, "objectives": aims, "less_is_better": small}


def best_arms(arms: NDArray[Any], rewards: NDArray[Any], count: int, *, small: bool = False) -> list[BestArm]:
    """The arms with the highest mean reward minus its standard error σ/√n, best first. No posterior is needed.

    σ is the standard deviation of all rewards about the means of their arms. Until an arm has been pulled twice σ is unknown,
    and arms are ranked by their means alone.

    Args:
        arms: Arm of each pull, integers.
        rewards: Reward of each pull, reward units.
        count: Maximum number of arms to return.
        small: Whether rewards are minimised: the lowest means plus their standard errors come first.

    Cost: O(n log n).
    """
    index, where, pulls = np.unique(arms, return_inverse=True, return_counts=True)
    mean = np.bincount(where, rewards) / pulls
    degrees = len(rewards) - len(index)
    std = float(np.sqrt(np.square(rewards - mean[where]).sum() / degrees)) if degrees else float("nan")
    error = std / np.sqrt(pulls)
    worth = mean if small else -mean
    order = np.argsort(worth + error if degrees else worth, kind="stable")[:count]
    return [BestArm(int(index[i]), int(pulls[i]), float(mean[i]), float(error[i])) for i in order]
