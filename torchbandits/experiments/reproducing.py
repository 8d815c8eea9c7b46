"""Reproducing a figure or a table of a paper: run what is missing, then compare its summary with the paper.

A summary holds means and intervals over the repetitions at selected pulls. The comparison is a figure in the paper's layout,
the published numbers beside ours, and each published claim: held or not held.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from rich.console import Console

from torchbandits.checks import as_path, check_flag, check_regular, check_whole
from torchbandits.errors import DataError, require
from torchbandits.experiments.config import ExperimentConfig
from torchbandits.experiments.measures import band, baseline_regret, measures
from torchbandits.experiments.printable import literal, printable
from torchbandits.experiments.records import Record, load_records
from torchbandits.experiments.reproduction import ClaimConfig, PanelConfig, ReproductionConfig
from torchbandits.experiments.results import draw_band
from torchbandits.experiments.runner import check_console, run_experiment
from torchbandits.experiments.starvation import study
from torchbandits.figures import tidy
from torchbandits.files import prepare_folder, write_atomically, write_text

RESULTS = Path("results") / "figures"
SUMMARY, FIGURE, PAGE = "summary.parquet", "figure.png", "README.md"
COLUMNS = ("experiment", "policy", "measure", "x", "mean", "low", "high", "repetitions")
"""Columns of the table of a summary."""
POINTS = 40  # of a curve, on a logarithmic and on a linear grid each
_METADATA_KEY = b"torchbandits"
PANEL = (3.7, 2.9)  # inches
STUDIED = 5.0  # prior standard deviations shown of a study's posteriors
TRUTH, EVALUATIONS = "f", "evaluations"
"""Labels of a study that are drawn as a dashed line and as points."""
HELD, NOT_HELD, UNKNOWN = "held", "not held", "not run"


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
) -> Reproduced:
    """Run a reproduction, or the missing runs of an interrupted one, and write its summary, numbers and figure.

    Except for the seconds, the numbers are those of an uninterrupted run. Records are kept in the folder of each experiment.

    Args:
        reproduction: The figure or table to run.
        quick: Run the reduced form.
        output: Folder of the results, by default `results/figures/NAME` or `NAME-quick`.
        console: As for `run_experiment`.
        again: Run everything again, existing records included.
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
        table = study(chosen, chosen.quick_repetitions if quick else chosen.repetitions)[list(COLUMNS)]
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
        known = json.loads(self._path.read_text(encoding="utf-8")) if self._path.is_file() and not again else {}
        self._before = {name: float(known.get(name, 0.0)) for name in ("seconds", "cpu_seconds")}

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


# ---------------------------------------------------------------------- the summary


@dataclass(frozen=True)
class Summary:
    """Curves of a reproduction, and the settings it was run with.

    Attributes:
        table: One line per experiment, policy, measure and x (pulls t, a length-scale or a place): mean, ends of the 95 %
            t-interval (NaN for one repetition) and the number of repetitions.
        facts: Quick form or not, horizons, machine, seconds; JSON values.
    """

    table: pd.DataFrame
    facts: dict[str, Any]

    def curve(self, experiment: str, policy: str, measure: str) -> pd.DataFrame:
        """The lines of one curve in order of x; empty if it was not run."""
        table = self.table
        mine = (table["experiment"] == experiment) & (table["policy"] == policy) & (table["measure"] == measure)
        return table[mine].sort_values("x")

    def at(self, experiment: str, policy: str, measure: str, x: int | float | None) -> pd.Series | None:
        """The line at x, or at the end for None; None if the run did not reach x or holds no such value."""
        curve = self.curve(experiment, policy, measure)
        curve = curve if x is None else curve[curve["x"] == x]
        return None if curve.empty or bool(np.isnan(curve["mean"].iloc[-1])) else curve.iloc[-1]


def summarise(
    reproduction: ReproductionConfig, experiment: str, config: ExperimentConfig, records: Sequence[Record]
) -> pd.DataFrame:
    """The curves of one experiment in the format of `Summary.table`."""
    known = measures(baseline_regret(config, records), reproduction.trainers)
    # Dense enough on both a logarithmic and a linear axis.
    spaced = (np.geomspace(1, config.horizon, POINTS), np.linspace(1, config.horizon, POINTS))
    t = np.concatenate(spaced).round().astype(np.int64)
    looked_at = [time for time in (*reproduction.times_of(experiment), config.horizon // 2) if 1 <= time <= config.horizon]
    t = np.unique(np.append(t, looked_at)).astype(np.int64)
    parts = []
    for place, policy in enumerate(config.policies):
        mine = [record for record in records if record.place == place]
        for name in reproduction.measures_of(experiment) if mine else []:
            low, mean, high = band(np.stack([known[name].curve(record, t) for record in mine]))
            values = {"x": t.astype(np.float64), "mean": mean, "low": low, "high": high}
            fixed = {"experiment": experiment, "policy": policy.label, "measure": name, "repetitions": len(mine)}
            parts.append(pd.DataFrame(values | fixed))
    return pd.concat(parts, ignore_index=True)[list(COLUMNS)]


def write_summary(summary: Summary, path: Path) -> None:
    """Write a summary, whole or not at all."""
    header = {_METADATA_KEY: json.dumps(summary.facts)}
    table = pyarrow.Table.from_pandas(summary.table, preserve_index=False)
    # Curves need no more digits than float32 holds, and the file is half as large.
    for place, name in enumerate(table.schema.names):
        if name in ("mean", "low", "high"):
            table = table.set_column(place, name, table.column(name).cast(pyarrow.float32()))
    table = table.replace_schema_metadata(header)
    write_atomically(path, lambda temporary: pyarrow.parquet.write_table(table, temporary, compression="zstd"))


def read_summary(path: Path) -> Summary:
    """Read a file that `write_summary` wrote.

    Raises:
        DataError: If the file is missing or is not a summary.
    """
    check_regular(path)
    try:
        table = pyarrow.parquet.read_table(path)
        facts = json.loads(table.schema.metadata[_METADATA_KEY])
    except (OSError, KeyError, TypeError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} does not hold a summary: {error}.") from error
    require(set(COLUMNS) <= set(table.column_names), f"{path} does not hold a summary.", DataError)
    return Summary(table.to_pandas().astype(dict.fromkeys(("mean", "low", "high"), np.float64)), facts)


# ---------------------------------------------------------------------- the figure


def draw_reproduction(reproduction: ReproductionConfig, summary: Summary) -> Figure:
    """Panels in rows; a policy has the same colour and line style in all of them, and the legend is below."""
    rows, columns = len(reproduction.panels), max(len(row) for row in reproduction.panels)
    figure = Figure(figsize=(max(5.5, PANEL[0] * columns), PANEL[1] * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    places = _places(reproduction, summary)
    for row, panels in enumerate(reproduction.panels):
        for column, panel in enumerate(panels):
            axes = figure.add_subplot(rows, columns, row * columns + column + 1)
            _draw_panel(axes, panel, reproduction, summary, places)
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
    counted = " and ".join(map(str, counts))
    return f"{title}\n{form}mean of {counted} repetitions, 95 % interval shaded"


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


def _draw_panel(
    axes: Axes, panel: PanelConfig, reproduction: ReproductionConfig, summary: Summary, places: dict[str, int]
) -> None:
    table = summary.table
    mine = table[(table["experiment"] == panel.experiment) & (table["measure"] == panel.measure)]
    labels = [label for label in dict.fromkeys(mine["policy"]) if panel.policies is None or label in panel.policies]
    for label, curve in _curves(panel, reproduction, mine, labels).items():
        if label == EVALUATIONS:
            axes.plot(curve["x"], curve["mean"], ".", color="0.35", markersize=2.5, label=label)
        elif label == TRUTH:
            axes.plot(curve["x"], curve["mean"], color="black", linestyle="--", linewidth=0.9, label=label)
        else:
            low, mean, high = (curve[name].to_numpy() for name in ("low", "mean", "high"))
            draw_band(axes, curve["x"].to_numpy(), (low, mean, high), places[label], label)
    axes.set_title(literal(panel.title or panel.experiment), fontsize="medium")
    if panel.over == "x":
        axes.set_xlabel("x")
        axes.set_ylabel("reward (prior std = 1)")
        axes.set_ylim(-STUDIED, STUDIED)
    else:
        known = measures({}, reproduction.trainers)[panel.measure]
        yscale = panel.yscale or known.yscale
        axes.set_xscale(panel.xscale)
        axes.set_yscale(yscale)
        if yscale == "linear":
            axes.set_ylim(bottom=0, top=_top(panel, known.top, mine[mine["policy"].isin(labels)]))
        axes.set_xlabel("t (pulls)" if panel.over == "t" else "bandwidth σ (units of the scaled features)")
        axes.set_ylabel(known.label.replace(" (", "\n("), fontsize="small")
        if yscale == "log":
            _limit_to_means(axes)
            _label_decades(axes)
    tidy(axes)


def _limit_to_means(axes: Axes) -> None:
    """End a logarithmic axis just below the smallest positive mean, because an interval may reach below 0."""
    means = [value for line in axes.lines for value in np.asarray(line.get_ydata(), np.float64).tolist() if value > 0]
    if means:
        axes.set_ylim(min(means) / 1.5, max(max(means) * 1.5, axes.get_ylim()[1]))


def _label_decades(axes: Axes) -> None:
    """Label decades with plain numbers, and also 2 and 5 if there are few decades."""
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _curves(
    panel: PanelConfig, reproduction: ReproductionConfig, table: pd.DataFrame, labels: list[str]
) -> dict[str, pd.DataFrame]:
    """One curve per label; over the length-scale, one per series, made of the last values of its policies."""
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


# ---------------------------------------------------------------------- the published numbers and claims


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it held on the means, and the numbers behind the verdict."""

    claim: str
    verdict: str
    evidence: str


def published_table(reproduction: ReproductionConfig, summary: Summary) -> list[list[str]]:
    """One row per published number: name, published, ours with its 95 % interval, ours over published, why they may differ."""
    lines = []
    for number in reproduction.published:
        ours = summary.at(number.experiment, number.policy, number.measure, number.at)
        ratio = "–" if ours is None or number.value == 0 else _digits(ours["mean"] / number.value)
        if ours is None and (end := summary.at(number.experiment, number.policy, number.measure, None)) is not None:
            cell = f"not reached; {_value(end)} at {end['x']:,.0f}"
        else:
            cell = UNKNOWN if ours is None else _value(ours)
        lines.append([number.what, _digits(number.value), cell, ratio, number.why])
    return lines


def verdicts(reproduction: ReproductionConfig, summary: Summary) -> list[Verdict]:
    """The verdict on each claim."""
    return [_judge(claim, summary) for claim in reproduction.claims]


def _judge(claim: ClaimConfig, summary: Summary) -> Verdict:
    own = summary.at(claim.experiment, claim.policy, claim.measure, claim.at)
    if own is None:
        return Verdict(claim.says, UNKNOWN, f"{claim.policy} was not run that far")
    if claim.below is not None:
        return _below(claim, own, summary)
    if claim.grows is not None:
        return _growth(claim, summary.curve(claim.experiment, claim.policy, claim.measure))
    if claim.levels is not None:
        curve = summary.curve(claim.experiment, claim.policy, claim.measure)
        before = curve[curve["x"] <= own["x"] / 2]
        if before.empty:
            return Verdict(claim.says, UNKNOWN, "there is no half of the first pull")
        half = before.iloc[-1]
        ratio = float(own["mean"] / half["mean"])
        evidence = f"{_digits(half['mean'])} at t = {half['x']:,.0f}, {_digits(own['mean'])} at {own['x']:,.0f}"
        return Verdict(claim.says, _held(ratio <= claim.levels), f"{evidence}: {_digits(ratio)} times")
    bound, word = (claim.at_least, "at least") if claim.at_least is not None else (claim.at_most, "at most")
    assert bound is not None
    good = own["mean"] >= bound if claim.at_least is not None else own["mean"] <= bound
    return Verdict(claim.says, _held(bool(good)), f"{_value(own)}, {word} {_digits(bound)} is claimed")


def _below(claim: ClaimConfig, own: pd.Series, summary: Summary) -> Verdict:
    assert claim.below is not None
    other = claim.than or claim.experiment
    found = {label: summary.at(other, label, claim.measure, claim.at) for label in claim.below}
    others = {label: value for label, value in found.items() if value is not None}
    if not others:
        return Verdict(claim.says, UNKNOWN, f"none of {', '.join(claim.below)} was run")
    where = f" ({claim.than})" if claim.than else ""
    good = all(own["mean"] <= claim.factor * value["mean"] for value in others.values())
    apart = all(own["high"] < claim.factor * value["low"] for value in others.values())
    listed = "; ".join(f"{label}{where} {_value(value)}" for label, value in others.items())
    evidence = f"{claim.policy} {_value(own)}; {listed}"
    if good and not apart:
        evidence += "; on the means: the intervals overlap, or there is one repetition"
    missing = [label for label, value in found.items() if value is None]
    return Verdict(claim.says, _held(good), evidence + (f"; not run: {', '.join(missing)}" if missing else ""))


def _growth(claim: ClaimConfig, curve: pd.DataFrame) -> Verdict:
    assert claim.grows is not None
    end = curve["x"].iloc[-1]
    late = curve[(curve["x"] >= math.sqrt(end)) & (curve["x"] <= end / 2) & (curve["mean"] > 0)]
    power = float(np.polyfit(np.log(late["x"]), np.log(late["mean"]), 1)[0]) if len(late) > 2 else math.nan
    low, high = claim.grows
    span = f"from t = {late['x'].min():,.0f} to {late['x'].max():,.0f}"
    evidence = f"{claim.policy}: {span} like t to the {power:.2f}, {low:g} to {high:g} is claimed"
    return Verdict(claim.says, _held(low <= power <= high), evidence)


def _held(good: bool) -> str:
    return HELD if good else NOT_HELD


def _value(line: pd.Series) -> str:
    if math.isnan(line["low"]) or line["low"] == line["high"]:
        return _digits(line["mean"])
    return f"{_digits(line['mean'])} ({_digits(line['low'])} … {_digits(line['high'])})"


def _digits(value: float) -> str:
    """A number with three digits, without an exponent from 0.0001 to a million."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        places = 0 if abs(value) >= 100 else 2 - math.floor(math.log10(abs(value))) if value else 0
        return f"{value:,.{places}f}"
    return f"{value:.2e}"


# ---------------------------------------------------------------------- the page


def section(reproduction: ReproductionConfig, summary: Summary, figure: str, level: int = 1) -> str:
    """One reproduction in Markdown: settings, figure, numbers, claims and differences."""
    facts = summary.facts
    form = "reduced form" if facts["quick"] else "full form"
    command = f"torchbandits reproduce {reproduction.name}{' --quick' if facts['quick'] else ''}"
    machine = f"{facts['machine']}, load average {facts['load']}"
    minutes = f"{facts['seconds'] / 60:.1f} minutes ({facts['cpu_seconds'] / 60:.1f} of processor time)"
    lines = [
        f"{'#' * level} {reproduction.name}: {reproduction.title}\n",
        f"{reproduction.source}. `{command}`: {form}, {minutes} on {machine}.\n",
        *(f"- {name}: {run}." for name, run in facts["runs"].items()),
        f"\n![{reproduction.title}]({figure})\n",
    ]
    if reproduction.published:
        headers = ["", "published", "ours (95 % interval)", "ours / published", "why they differ"]
        lines.append(table(headers, published_table(reproduction, summary)))
    elif not reproduction.extra:
        lines.append("No number of this figure is published in the text.\n")
    found = verdicts(reproduction, summary)
    if found:
        lines.append(table(["claim", "", "evidence"], [[v.claim, f"**{v.verdict}**", v.evidence] for v in found]))
    lines += [f"- {difference}" for difference in reproduction.differs]
    return "\n".join(lines) + "\n"


def table(headers: list[str], lines: list[list[str]]) -> str:
    """A table in Markdown."""
    rows = [headers, ["---"] * len(headers), *([printable(cell).replace("|", "\\|") for cell in line] for line in lines)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
