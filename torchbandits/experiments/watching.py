"""A run in the terminal while it goes on, from its journal: a picture that is drawn again, or a line now and then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from torchbandits.errors import DataError, require
from torchbandits.experiments.printable import plain
from torchbandits.experiments.progress import Progress, progress_of
from torchbandits.journal import Reading, in_words

PARTS = 44
SHORTEST, LONGEST = 0.05, 86_400.0  # seconds between two looks
BARS = "▁▂▃▄▅▆▇█"


def watch(path: Path, console: Console, *, every: float | None = None, once: bool = False, row: int = 0) -> None:
    """Show a run until it is over, where its journal says how long it is, or Ctrl-C.

    Args:
        path: A journal, or the store of workers; it is only read, and who writes it is not held up.
        console: A terminal, or anything else, which gets plain lines.
        every: Seconds from one look to the next; 1 in a terminal, 10 elsewhere by default.
        once: Show it as it stands, whole, and end.
        row: Batch row to show.

    Raises:
        ArgumentError: If `every` is less than 0.05 seconds, or more than a day.
        DataError: If the file is missing, no journal, damaged, or has no such row.

    Cost: a look reads what came since the last one, and takes O(n log n) of the n pulls.
    """
    good = every is None or SHORTEST <= every <= LONGEST
    require(good, f"every must be from {SHORTEST} to {LONGEST:,.0f} seconds, got {every}.")
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
    """Now, and after each look that found something (or any look), until the run is over."""
    came = 1
    while True:
        if came or always:
            yield
        if progress_of(reading, row, time.time()).over:
            return
        time.sleep(every)
        came = reading.update()


def line(reading: Reading, row: int, now: float) -> str:
    """The run as it stands, in one line."""
    p = checked(reading, row, now)
    parts = [f"{pulls_in_words(p)} pulls", f"reward {spread(p.recent, p.recent_error)}"]
    parts += [f"regret {number(p.recent_regret)} a pull"] if np.isfinite(p.regret) else []
    parts += [f"arm {b.arm}: {spread(b.mean, b.error)}" for b in p.best[:1]]
    parts += [f"dictionary {p.dictionary}"] if p.dictionary >= 0 else []
    parts += [f"{number(p.rate)} pulls/s"] if np.isfinite(p.rate) else []
    parts += ["done"] if p.over else [f"{clock(p.left)} to go"] if np.isfinite(p.left) else []
    return ", ".join(parts)


def frame(reading: Reading, row: int, now: float) -> RenderableType:
    """The run as it stands, for a terminal of 80 columns or more."""
    p = checked(reading, row, now)
    rows = reading.history.batch_size
    title = plain(reading.path.name, style="bold")
    title.append(f"  row {row} of {rows}" if rows > 1 else "", style="not bold")
    what = [in_words(reading.about)] if reading.about else ["nothing is written yet"]
    what += [f"environment {reading.environment}"] if reading.environment else []
    sides = Columns([facts(reading, p, row), best_table(reading, p, row)], padding=(0, 3))  # below each other if need be
    parts: list[RenderableType] = [title, plain(", ".join(what), style="dim"), Text("")]
    if p.rounds is not None:
        done = ProgressBar(total=p.rounds, completed=min(p.done, p.rounds), width=46)
        bar = Table.grid(padding=(0, 2))
        state = "done" if p.over else f"{clock(p.left)} to go" if np.isfinite(p.left) else "time to go unknown"
        bar.add_row(done, f"{p.done / p.rounds:.0%}", state)
        parts += [bar, Text("")]
    return Group(*parts, sides, *strips(p))


def facts(reading: Reading, p: Progress, row: int) -> RenderableType:
    """What there is to know, each with its unit."""
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


def best_table(reading: Reading, p: Progress, row: int) -> RenderableType:
    """The best arms by the means of their rewards; with their points in a box."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    points = reading.points if row == 0 else {}
    headers = ["best arm", "pulls", "reward ± s.e."] + (["point"] if points else [])
    for header in headers:
        table.add_column(header, justify="left" if header == "point" else "right", no_wrap=True)
    for b in p.best:
        point = " ".join(f"{x:.3g}" for x in points.get(b.arm, [])[:6])
        table.add_row(*map(Text, [str(b.arm), f"{b.pulls:,}", spread(b.mean, b.error), point][: len(headers)]))
    return table


def strips(p: Progress) -> list[RenderableType]:
    """Mean rewards and mean batch sizes over the run as rows of bars, the first pull at the left."""
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


def checked(reading: Reading, row: int, now: float) -> Progress:
    """The progress of a row that there is."""
    rows = reading.history.batch_size
    require(
        row < rows, f"{reading.path} has {rows} batch row{'s' * (rows > 1)}, counted from 0: --row {row} is none.", DataError
    )
    return progress_of(reading, row, now)


def pulls_in_words(p: Progress) -> str:
    """Pulls told, and of how many where that is known."""
    return f"{p.pulls:,}" if p.rounds is None else f"{p.pulls:,} of {p.rounds:,}"


def number(value: float) -> str:
    """Three digits; – where it is unknown."""
    return "–" if np.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def spread(mean: float, error: float) -> str:
    """A mean with its standard error, where that is known."""
    return number(mean) if np.isnan(error) else f"{number(mean)} ± {number(error)}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds; – where unknown."""
    return "–" if np.isnan(seconds) else str(timedelta(seconds=max(round(seconds), 0)))
