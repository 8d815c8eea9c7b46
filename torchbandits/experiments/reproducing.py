"""Reproducing a figure or a table of a paper: run what is missing, then compare its summary with the paper.

The comparison is a figure in the paper's layout, the published numbers beside ours, and the verdict on each claim.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from rich.console import Console

from torchbandits.checks import as_path, check_flag, check_whole
from torchbandits.display import listed
from torchbandits.errors import DataError, require
from torchbandits.experiments.config import ExperimentConfig, repetitions_of
from torchbandits.experiments.judging import (
    COLUMNS,
    UNKNOWN,
    Numbers,
    Summary,
    Verdict,
    numbers_of,
    numbers_of_study,
    read_summary,
    summarise,
    value,
    verdicts,
    write_summary,
)
from torchbandits.experiments.measures import measures
from torchbandits.experiments.printable import literal, markdown_row
from torchbandits.experiments.records import Record, ended_records, of_place
from torchbandits.experiments.reproduction import PanelConfig, ReproductionConfig
from torchbandits.experiments.results import ENOUGH_FOR_BAND, MOST_LINES, draw_band
from torchbandits.experiments.rounded import digits
from torchbandits.experiments.runner import check_console, checked_environments, run_experiment
from torchbandits.experiments.starvation import study
from torchbandits.figures import tidy
from torchbandits.files import prepare_folder, write_atomically, write_text

RESULTS = Path("results") / "figures"
SUMMARY, FIGURE, PAGE = "summary.parquet", "figure.png", "README.md"
PANEL = (3.2, 2.7)  # inches
STUDIED = 5.0  # range in which a study's posteriors are shown, in prior standard deviations
TRUTH, EVALUATIONS = "f", "evaluations"
"""Labels of a study that are drawn as a dashed line and as points."""


@dataclass(frozen=True)
class Reproduced:
    """Summary and files of a reproduction."""

    summary: Summary
    folder: Path
    files: tuple[Path, ...]


def form_name(name: str, quick: bool) -> str:
    """Name of a reproduction's folder: its own name, with a suffix for the reduced form."""
    return f"{name}-quick" if quick else name


def reproduce(
    reproduction: ReproductionConfig,
    *,
    quick: bool = False,
    output: Path | None = None,
    console: Console | None = None,
    again: bool = False,
    workers: int = 1,
    ended: bool = False,
) -> Reproduced:
    """Run a reproduction, or the missing runs of an interrupted one, and write its summary, numbers and figure.

    Except for the seconds, the numbers are those of an uninterrupted run. Records are kept in the folder of each experiment.
    Errors of any experiment are found before the first run.

    Args:
        reproduction: The figure or table to run.
        quick: Run the reduced form.
        output: Folder of the results, by default `results/figures/NAME` or `NAME-quick`.
        console: As for `run_experiment`.
        again: Run everything again, existing records included.
        workers: As for `run_experiment`.
        ended: Run nothing, and write the summary of the runs that have ended, which lists the missing runs.

    Raises:
        ConfigError: If a name or an option is unknown or out of its range, or there is no reduced form.
        DataError: If data can't be found, the folder can't be written, or `ended` is given and no run has ended.
    """
    known = isinstance(reproduction, ReproductionConfig)
    kind = type(reproduction).__name__
    require(known, f"reproduction must be a ReproductionConfig, as find_reproduction() returns, got {kind}.")
    check_flag("quick", quick)
    check_flag("again", again)
    check_flag("ended", ended)
    check_console(console)
    check_whole("workers", workers)
    folder = RESULTS / form_name(reproduction.name, quick) if output is None else as_path("output", output)
    configs = {name: c.quickened() if quick else c for name, c in reproduction.experiments.items()}
    for config in configs.values() if not ended else ():
        checked_environments(config)
    prepare_folder(folder)
    clock, numbers, missing = _Clock(folder, again), Numbers(), dict[str, str]()
    if reproduction.study is not None:
        chosen = reproduction.study
        table, values = study(chosen, chosen.quick_repetitions if quick else chosen.repetitions)
        table, numbers = table[list(COLUMNS)], numbers_of_study(reproduction, values)
    else:
        parts = []
        for name, config in configs.items():
            place = folder / name
            if not ended:
                run_experiment(config, place, console, resume=not again, workers=workers)
            records = ended_records(config, place)
            missing[name] = _missing(config, records)
            if not records:
                continue
            parts.append(summarise(reproduction, name, config, records))
            numbers |= numbers_of(reproduction, name, config, records)
            clock.note()
        require(bool(parts), f"{folder} holds no run that has ended.", DataError)
        table = pd.concat(parts, ignore_index=True)
    runs = {name: words + missing[name] for name, words in _runs(configs).items()}
    facts = {"quick": quick, "runs": runs, "numbers": numbers} | clock.times() | _machine(workers)
    summary = Summary(table, facts)
    write_summary(summary, folder / SUMMARY)
    return write_report(reproduction, folder)


def write_report(reproduction: ReproductionConfig, folder: Path) -> Reproduced:
    """Draw the figure and write the numbers from the summary in a folder."""
    summary = read_summary(folder / SUMMARY)
    figure = draw_reproduction(reproduction, summary)
    write_atomically(folder / FIGURE, partial(figure.savefig, dpi=110, pil_kwargs={"optimize": True}))
    write_text(folder / PAGE, section(reproduction, summary, FIGURE))
    return Reproduced(summary, folder, tuple(folder / name for name in (SUMMARY, FIGURE, PAGE)))


class _Clock:
    """Wall-clock and processor seconds, including those that earlier, interrupted starts have noted."""

    def __init__(self, folder: Path, again: bool) -> None:
        self._path = folder / "seconds.json"
        self._began, self._cpu_began = time.perf_counter(), _cpu_seconds()
        try:
            known = json.loads(self._path.read_text(encoding="utf-8")) if self._path.is_file() and not again else {}
            self._before = {name: float(known.get(name, 0.0)) for name in ("seconds", "cpu_seconds")}
        except (OSError, AttributeError, TypeError, ValueError) as error:
            raise DataError(f"{self._path} does not hold seconds: {error}. Remove it, to count them from now on.") from error

    def times(self) -> dict[str, float]:
        """Both, up to now."""
        now = {"seconds": time.perf_counter() - self._began, "cpu_seconds": _cpu_seconds() - self._cpu_began}
        return {name: round(self._before[name] + value, 1) for name, value in now.items()}

    def note(self) -> None:
        """Write them down for a later start."""
        write_text(self._path, json.dumps(self.times()))


def _cpu_seconds() -> float:
    """Processor seconds of this process and of its finished workers."""
    return sum(os.times()[:4])


def _runs(configs: dict[str, ExperimentConfig]) -> dict[str, str]:
    """Settings of each experiment in words."""
    return {
        name: f"T = {config.horizon:,}, {config.repetitions} repetitions"
        + (f", after {config.history:,} uniform pulls that every policy observes" if config.history else "")
        + (f", as batch rows of {_runs_of(config)}" if config.together else "")
        + (f", processor seconds ({_threads(config.threads)})" if config.clock == "processor" else "")
        for name, config in configs.items()
    }


def _missing(config: ExperimentConfig, records: list[Record]) -> str:
    """The policies that lack repetitions, in words."""
    listed = []
    for place, policy in enumerate(config.policies):
        found, wanted = len(of_place(records, place)), repetitions_of(config, place)
        if found < wanted:
            listed.append(f"{policy.label} ({wanted - found} of {wanted} repetitions)")
        elif wanted < config.repetitions:
            listed.append(f"{policy.label} (more than {wanted} repetitions)")
    return f"; not run: {', '.join(listed)}" if listed else ""


def _runs_of(config: ExperimentConfig) -> str:
    return "one run" if config.together is True else f"runs of at most {config.together}"


def _threads(number: int | None) -> str:
    return "all threads" if not number else f"{number} thread{'s' * (number != 1)}"


def _machine(workers: int) -> dict[str, object]:
    load = os.getloadavg()[1] if hasattr(os, "getloadavg") else float("nan")
    cores, threads = f"{os.cpu_count()} CPU cores ({platform.machine()})", torch.get_num_threads()
    at_once = _threads(threads) if workers == 1 else f"{workers} runs at once"
    return {"machine": f"{cores}, {at_once}, torch {torch.__version__}", "load": round(load, 1)}


# ---------------------------------------------------------------------- the figure


def draw_reproduction(reproduction: ReproductionConfig, summary: Summary) -> Figure:
    """Panels in rows; a policy has the same colour and line style in all of them, and the legend is below.

    A panel of more than five lines is drawn as several below each other, on the same axes.
    """
    curves = [[_curves(panel, reproduction, summary) for panel in row] for row in reproduction.panels]
    heights = [max(len(_shares(lines)) for lines in row) for row in curves]
    rows, columns = sum(heights), max(len(row) for row in reproduction.panels)
    figure = Figure(figsize=(max(5.5, PANEL[0] * columns), PANEL[1] * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    places = _places(reproduction, summary)
    for row, panels in enumerate(reproduction.panels):
        for column, (panel, lines) in enumerate(zip(panels, curves[row], strict=True)):
            below = (sum(heights[:row]) + place for place in range(len(_shares(lines))))
            group: list[Axes] = []
            for line in below:
                share = {"sharex": group[0], "sharey": group[0]} if group else {}
                group.append(figure.add_subplot(rows, columns, line * columns + column + 1, **share))
            _draw_panel(group, panel, lines, reproduction, summary, places)
    handles = {label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.suptitle(heading(reproduction, summary), fontsize="medium")
    columns = min(4, max(1, round(figure.get_figwidth() / 2.6)))
    labels = sorted(handles, key=lambda label: places.get(label, len(places)))
    figure.legend(
        [handles[label] for label in labels], labels, loc="outside lower center", ncols=columns, frameon=False,
        fontsize="small", handlelength=3.0,
    )  # fmt: skip
    return figure


def heading(reproduction: ReproductionConfig, summary: Summary) -> str:
    """Title, form and number of repetitions."""
    form, title = "reduced form, " if summary.facts["quick"] else "", literal(reproduction.title, 120)
    if reproduction.study is not None:
        return f"{title}\n{form}mean and three standard deviations of one repetition"
    counts = sorted(set(summary.table["repetitions"]))
    if counts == [1]:
        return f"{title}\n{form}one repetition"
    shaded = ", 95 % interval shaded" if counts[-1] >= ENOUGH_FOR_BAND else ""
    shaded += f" from {ENOUGH_FOR_BAND} on" if shaded and counts[0] < ENOUGH_FOR_BAND else ""
    return f"{title}\n{form}mean of {listed(list(map(str, counts)))} repetitions{shaded}"


def _places(reproduction: ReproductionConfig, summary: Summary) -> dict[str, int]:
    """Index of the colour and line style of each label, in the order of the configuration."""
    panels = [panel for row in reproduction.panels for panel in row]
    labels = [
        _shown(panel, label)
        for label in dict.fromkeys(summary.table["policy"])
        for panel in panels
        if panel.policies is None or label in panel.policies
    ]
    known = [label for label in dict.fromkeys(labels) if label not in (TRUTH, EVALUATIONS)]
    return {label: place for place, label in enumerate(known)}


def _shown(panel: PanelConfig, label: str) -> str:
    """A label as shown in the legend: without its suffix, and for a length-scale sweep only the part before the comma."""
    return literal(label.partition(",")[0] if panel.over == "lengthscale" else label.removesuffix(panel.suffix))


def _rows_of(panel: PanelConfig, summary: Summary) -> tuple[pd.DataFrame, list[str]]:
    """The lines of the summary that a panel shows, and their policies."""
    table = summary.table
    mine = table[(table["experiment"] == panel.experiment) & (table["measure"] == panel.measure)]
    labels = [label for label in dict.fromkeys(mine["policy"]) if panel.policies is None or label in panel.policies]
    return mine[mine["policy"].isin(labels)], labels


def _shares(labels: Iterable[str]) -> list[list[str]]:
    """Labels in groups of at most five, of nearly equal size."""
    every = list(labels)
    groups = max(1, -(-len(every) // MOST_LINES))
    return [part.tolist() for part in np.array_split(np.array(every, dtype=object), groups)]


def _draw_panel(
    group: list[Axes],
    panel: PanelConfig,
    curves: dict[str, pd.DataFrame],
    reproduction: ReproductionConfig,
    summary: Summary,
    places: dict[str, int],
) -> None:
    """Draw a panel on axes that share their limits, at most five lines on each. Ten repetitions or more have a band."""
    for axes, labels in zip(group, _shares(curves), strict=True):
        for label in labels:
            curve = curves[label]
            if label == EVALUATIONS:
                axes.plot(curve["x"], curve["mean"], ".", color="0.35", markersize=2.5, label=label)
            elif label == TRUTH:
                axes.plot(curve["x"], curve["mean"], color="black", linestyle="--", linewidth=0.9, label=label)
            else:
                low, mean, high = (curve[name].to_numpy() for name in ("low", "mean", "high"))
                # A study's band is the posterior of its only repetition, not an interval over repetitions.
                if panel.over != "x" and curve["repetitions"].min() < ENOUGH_FOR_BAND:
                    low = high = np.full_like(mean, np.nan)
                draw_band(axes, curve["x"].to_numpy(), (low, mean, high), places[label], label)
    for place, axes in enumerate(group):
        more = f" ({place + 1} of {len(group)})" if len(group) > 1 else ""
        axes.set_title(literal(panel.title or panel.experiment) + more, fontsize="medium")
        _finish_panel(axes, [line for one in group for line in one.lines], panel, reproduction, summary)


def _finish_panel(
    axes: Axes, lines: list[Line2D], panel: PanelConfig, reproduction: ReproductionConfig, summary: Summary
) -> None:
    """Scales, limits and labels, which fit all lines of the panel."""
    if panel.over == "x":
        axes.set_xlabel("x")
        axes.set_ylabel("reward (prior std = 1)")
        axes.set_ylim(-STUDIED, STUDIED)
    else:
        known = measures({}, reproduction.trainers)[panel.measure]
        # Matplotlib draws no logarithmic axis without a positive number, and a measure may be unknown throughout.
        yscale = panel.yscale or known.yscale if _positive(lines) else "linear"
        axes.set_xscale(panel.xscale)
        axes.set_yscale(yscale)
        if yscale == "linear":
            axes.set_ylim(bottom=0, top=_top(panel, known.top, _rows_of(panel, summary)[0]))
        axes.set_xlabel("t (pulls)" if panel.over == "t" else "bandwidth σ\n(units of the scaled features)")
        axes.set_ylabel(known.label.replace(" (", "\n("), fontsize="small")
        if yscale == "log":
            _limit_to_means(axes, lines)
            _label_decades(axes)
    tidy(axes)


def _limit_to_means(axes: Axes, lines: list[Line2D]) -> None:
    """End a logarithmic axis just below the smallest positive mean, because an interval may reach below 0."""
    means = _positive(lines)
    axes.set_ylim(min(means) / 1.5, max(max(means) * 1.5, axes.get_ylim()[1]))


def _positive(lines: list[Line2D]) -> list[float]:
    """The positive means of all lines."""
    return [value for line in lines for value in np.asarray(line.get_ydata(), np.float64).tolist() if value > 0]


def _label_decades(axes: Axes) -> None:
    """Label decades with plain numbers, and also 2 and 5 if there are few decades."""
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _curves(panel: PanelConfig, reproduction: ReproductionConfig, summary: Summary) -> dict[str, pd.DataFrame]:
    """The curves of a panel by their labels in the legend: one per policy; over the length-scale, one per series, made of the
    last values of its policies."""
    table, labels = _rows_of(panel, summary)
    if panel.over != "lengthscale":
        return {_shown(panel, label): table[table["policy"] == label].sort_values("x") for label in labels}
    config = reproduction.experiments[panel.experiment]
    scales = {policy.label: policy.kernel.lengthscale for policy in config.policies}
    ends = {label: table[table["policy"] == label].sort_values("x").iloc[-1] for label in labels if scales[label]}
    series: dict[str, list[pd.Series]] = {}
    for label, end in ends.items():
        line = end.copy()
        line["x"] = scales[label]
        series.setdefault(_shown(panel, label), []).append(line)
    return {name: pd.DataFrame(lines).sort_values("x") for name, lines in series.items()}


def _top(panel: PanelConfig, usual: float | None, table: pd.DataFrame) -> float | None:
    """The panel's own limit; else the measure's if a curve exceeds it; else None, for Matplotlib's choice."""
    if panel.top is not None or usual is None:
        return panel.top
    highest = np.nanmax(table["high"].fillna(table["mean"]).to_numpy(), initial=0.0)
    return usual if highest > usual else None


# ---------------------------------------------------------------------- the published numbers


def published_table(reproduction: ReproductionConfig, summary: Summary) -> list[list[str]]:
    """One row per published number: name, published value, our value with its 95 % interval, ratio of ours to the published
    one, and the reason for which they may differ."""
    lines = []
    for number in reproduction.published:
        ours = summary.at(number.experiment, number.policy, number.measure, number.at)
        ratio = "–" if ours is None or number.value == 0 else digits(ours["mean"] / number.value)
        if ours is None and (end := summary.at(number.experiment, number.policy, number.measure, None)) is not None:
            cell = f"not reached; {value(end)} at {end['x']:,.0f}"
        else:
            cell = UNKNOWN if ours is None else value(ours)
        lines.append([number.what, digits(number.value), cell, ratio, number.why])
    return lines


# ---------------------------------------------------------------------- the page


def section(reproduction: ReproductionConfig, summary: Summary, figure: str, level: int = 1) -> str:
    """One reproduction in Markdown: settings, figure, numbers, claims and differences."""
    facts = summary.facts
    form = "reduced form" if facts["quick"] else "full form"
    command = f"torchbandits reproduce {reproduction.name}{' --quick' if facts['quick'] else ''}"
    machine = f"{_reworded(facts['machine'])}, load average {facts['load']}"
    minutes = f"{facts['seconds'] / 60:.1f} minutes ({facts['cpu_seconds'] / 60:.1f} of processor time)"
    alike: dict[str, list[str]] = {}
    for name, run in facts["runs"].items():
        alike.setdefault(_reworded(run), []).append(name)
    lines = [
        f"{'#' * level} {reproduction.name}: {reproduction.title}\n",
        f"{reproduction.source}. `{command}`: {form}, {minutes} on {machine}.\n",
        *(f"- {', '.join(names)}: {run}." for run, names in alike.items()),
        f"\n![{reproduction.title}]({figure})\n",
    ]
    if reproduction.published:
        headers = ["number", "published", "ours (95 % interval)", "ours / published", "why they differ"]
        lines.append(table(headers, unrepeated(published_table(reproduction, summary))))
    elif not reproduction.extra:
        lines.append("The paper prints no numbers for this figure.\n")
    found = verdicts(reproduction, summary)
    for heading, own in (("claim of the paper", False), ("claim of our own", True)):
        rows = _claim_rows([verdict for verdict in found if verdict.own == own])
        if rows:
            lines.append(table([heading, "verdict", "evidence"], rows))
    lines += [f"- {difference}" for difference in reproduction.differs]
    return "\n".join(lines) + "\n"


def _claim_rows(found: list[Verdict]) -> list[list[str]]:
    """Rows of the table of claims. Claims that differ only in what they say in brackets at their end have their common words
    once, and share a row if their evidence is the same."""
    rows: list[list[str]] = []
    before = None
    for verdict in found:
        stem, _, case = verdict.claim.removesuffix(")").partition(" (")
        result = [f"**{verdict.verdict}**", verdict.evidence]
        same = bool(case) and stem == before
        if same and rows[-1][1:] == result:
            rows[-1][0] = f"{rows[-1][0].removesuffix(')')}; {case})"
        else:
            rows.append([f"as above ({case})" if same else verdict.claim, *result])
        before = stem if case else None
    return unrepeated(rows)


# Summaries hold the words of the version that wrote them: these are replaced by the present ones.
_WORDS = {
    r"seconds of the processor \((\w+) threads\)": r"processor seconds (\1 threads)",
    r"repetitions (as batch rows of .*?) \((?:each one's seconds are its share|its seconds are divided among them)\)": r"\1",
    r"uniform pulls observed before": "uniform pulls that every policy observes",
    r", (?=[\d,]+ uniform pulls)": ", after ",
    r"\b1 threads": "1 thread",
}


def _reworded(text: str) -> str:
    for old, new in _WORDS.items():
        text = re.sub(old, new, text)
    return text


def unrepeated(lines: list[list[str]]) -> list[list[str]]:
    """Rows of a table, with "as above" for a last cell that repeats that of the row above."""
    before = [None, *(line[-1] for line in lines)]
    return [[*line[:-1], "as above" if line[-1] == last else line[-1]] for line, last in zip(lines, before, strict=False)]


def table(headers: list[str], lines: list[list[str]]) -> str:
    """A table in Markdown."""
    return "".join(map(markdown_row, (headers, ["---"] * len(headers), *lines)))
