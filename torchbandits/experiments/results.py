"""The results of an experiment, from its records: table, figures, and the outcome in one sentence and one picture.

Figures are drawn without a display and without Matplotlib's global state.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable

from torchbandits.checks import as_path
from torchbandits.display import count
from torchbandits.errors import DataError, nearest, require
from torchbandits.experiments.config import BASELINE, ExperimentConfig
from torchbandits.experiments.measures import (
    Measure,
    Values,
    band,
    baseline_regret,
    known_curves,
    measures,
    regret_is_known,
    regret_ratio,
    simple_regret,
    t_interval,
)
from torchbandits.experiments.printable import literal, markdown_row, plain, printable
from torchbandits.experiments.records import CONFIG, RECORDS, Record, check_config, check_records, of_place
from torchbandits.experiments.rounded import digits
from torchbandits.figures import COLORS, STYLES, tidy
from torchbandits.files import write_atomically, write_text

POINTS = 300  # largest number of points of a curve
SHORT = 1_000
"""Pulls up to which a figure has linear axes."""
MOST_LINES = 5
"""Largest number of labels in a panel."""
ENOUGH_FOR_BAND = 10
"""Number of repetitions from which on an interval is shaded."""
FIGURES = ("regret", "mean_regret", "simple_regret", "seconds", "batch_size", "dictionary_size")
FILENAMES = {"seconds": "time.png"}
HEADERS = (
    "policy",
    "regret ratio",
    "95 % interval",
    "simple regret",
    "batches",
    "distinct arms",
    "dictionary size",
    "seconds",
    "runs",
)
HEADERS_WITHOUT_BASELINE = ("policy", "regret", *HEADERS[2:])
HEADERS_WITHOUT_REGRET = ("policy", "largest reward", *HEADERS[4:])
INTERVAL = HEADERS[2]
DISPENSABLE = ("dictionary size", "distinct arms", "batches")
"""Columns that a narrow terminal does not show, the first one first."""
LABEL_WIDTH = 20
"""Number of characters of a label that are shown in one line if it has so many."""
LEAST_LABEL_WIDTH = 8
"""The same, where there is no room for all other columns."""
COMPARED = ("regret", "simple_regret")
"""Numbers of a run that are compared in pairs."""
COMPARED_WITHOUT_REGRET = ("largest_reward",)
_ENDLESS = Console(width=10_000)
_LEAST_GAP = 0.06  # distance of labels at the ends of curves, as a share of the height


@dataclass(frozen=True)
class Result:
    """Table and files of an experiment, and its outcome in one sentence if it has a headline."""

    table: pd.DataFrame
    config: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    records: Path
    headline: str | None = None


@dataclass(frozen=True)
class Printed:
    """A table as text: its caption, the headers of its columns, and its lines."""

    caption: str
    headers: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def write_results(config: ExperimentConfig, records: list[Record], folder: Path) -> Result:
    """Write the table and the figures of records into a folder."""
    table = aggregate(config, records)
    csv, markdown = folder / "table.csv", folder / "table.md"
    write_atomically(csv, lambda temporary: table.to_csv(temporary, index=False))
    sentence = headline(config, records) if config.headline else None
    text = "\n".join(to_markdown(one) for one in printed(config, table))
    write_text(markdown, text + (f"\n{printable(sentence)}\n" if sentence else ""))
    figures = draw_figures(config, records, folder)
    return Result(table, folder / CONFIG, (csv, markdown), tuple(figures), folder / RECORDS, sentence)


# ---------------------------------------------------------------------- the table


def aggregate(config: ExperimentConfig, records: Sequence[Record], versus: str | None = None) -> pd.DataFrame:
    """One line per policy: means over repetitions, and the 95 % t-interval of the regret ratio, which needs a run of `uniform`
    in the same repetition: those without one do not count for it. Each policy is compared with one of them, in pairs.

    Columns: policy, repetitions, regret_ratio, regret_ratio_low, regret_ratio_high, regret and simple_regret (reward
    units), batches, distinct_arms, dictionary_size, seconds (of the policy, without the environment), regret_low and
    regret_high (the 95 % t-interval of regret). If the environment does not know its optimum, the columns of the regret are
    NaN, and largest_reward (reward units) is added.

    The columns versus (a label), pairs (the repetitions that both policies have), regret_difference, regret_difference_low and
    regret_difference_high, and the same for simple_regret (or for largest_reward alone), hold the mean over the pairs of the
    policy's number less that of `versus`, and its 95 % t-interval: below 0 the policy has less regret. The intervals are of one
    comparison each, not of all at once. They are NaN for a single pair, and all is NaN without any, and for `versus` itself.

    Args:
        config: The experiment.
        records: At least one.
        versus: Label of the policy that the others are compared with; by default the first one other than `uniform`.

    Raises:
        ArgumentError: If no policy with a record has this label.
    """
    check_config(config)
    check_records(records)
    baseline, known = baseline_regret(config, records), regret_is_known(records)
    numbers = [_numbers(records, place) for place in range(len(config.policies))]
    reference = _reference(config, [place for place, mine in enumerate(numbers) if mine], versus)
    lines = []
    for place, policy in enumerate(config.policies):
        mine = of_place(records, place)
        if not mine:
            continue
        ratios = known_curves(np.array([regret_ratio(record, baseline)[-1:] for record in mine])).squeeze(-1)
        line: dict[str, object] = {"policy": policy.label, "repetitions": len(mine)} | _with_interval("regret_ratio", ratios)
        for name in ("regret", "simple_regret", "batches", "distinct_arms", "dictionary_size", "seconds"):
            line[name] = float(np.mean([own[name] for own in numbers[place].values()]))
        line |= _with_interval("regret", np.array([own["regret"] for own in numbers[place].values()]))
        if not known:
            line["largest_reward"] = float(np.mean([own["largest_reward"] for own in numbers[place].values()]))
        theirs = numbers[reference] if place != reference else {}
        pairs = sorted(set(numbers[place]) & set(theirs))
        line |= {"versus": config.policies[reference].label, "pairs": len(pairs)}
        for name in COMPARED if known else COMPARED_WITHOUT_REGRET:
            differences = np.array([numbers[place][seed][name] - theirs[seed][name] for seed in pairs] or [math.nan])
            line |= _with_interval(f"{name}_difference", differences)
        lines.append(line)
    return pd.DataFrame(lines)


def _with_interval(name: str, values: Values) -> dict[str, float]:
    """The mean of a number over repetitions, and the ends of its 95 % t-interval, by their columns."""
    low, mean, high = t_interval(values)
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def _numbers(records: Sequence[Record], place: int) -> dict[int, dict[str, float]]:
    """The numbers of the runs of a policy, by seed."""
    mine = of_place(records, place)
    return {r.seed: r.history.summary() | {"largest_reward": float(r.history.pulls["reward"].max())} for r in mine}


def _reference(config: ExperimentConfig, places: Sequence[int], versus: str | None) -> int:
    """Place of the policy that the others are compared with, one of those with records."""
    if versus is None:
        return next((place for place in places if config.policies[place].name != BASELINE), places[0])
    labels = {config.policies[place].label: place for place in places}
    message = f"versus: no policy with a record is labelled {versus!r}; known: {', '.join(labels)}."
    require(isinstance(versus, str) and versus in labels, f"{message}{nearest(str(versus), labels)}")
    return labels[versus]


def printed(config: ExperimentConfig, table: pd.DataFrame) -> list[Printed]:
    """The table for reading, and, where some policy has two pairs, that of the differences between policies."""
    whole = Printed(caption(config, table), headers_of(table), tuple(map(tuple, cells(table))))
    return [whole, compared(table)] if (table["pairs"] > 1).any() else [whole]


def compared(table: pd.DataFrame) -> Printed:
    """The differences between policies for reading."""
    versus, unknown = table["versus"][0], "largest_reward" in table
    names = COMPARED_WITHOUT_REGRET if unknown else COMPARED
    sign = f"above 0, a larger reward than {versus}" if unknown else f"below 0, less regret than {versus}"
    words = f"difference to {versus} in the same repetition, reward units: {sign}; each interval is of one comparison alone"
    lines = []
    for line in table[table["pairs"] > 0].to_dict("records"):
        shown = [str(line["policy"])]
        for name in (f"{name}_difference" for name in names):
            interval = _interval(line[f"{name}_low"], line[f"{name}_high"], digits)
            shown += [_number(line[name], digits), interval]
        lines.append((*shown, str(line["pairs"])))
    titles = [title for name in names for title in (name.replace("_", " "), INTERVAL)]
    return Printed(words, ("policy", *titles, "pairs"), tuple(lines))


def cells(table: pd.DataFrame) -> list[list[str]]:
    """The table as text, rounded for reading; – where a number is unknown."""
    relative = _has_ratio(table)
    return [
        [
            str(line["policy"]),
            *_success(line, relative),
            *(_number(line[name], "{:.0f}".format) for name in ("batches", "distinct_arms", "dictionary_size")),
            _number(line["seconds"], "{:.2f}".format),
            str(line["repetitions"]),
        ]
        for line in table.to_dict("records")
    ]


def _has_ratio(table: pd.DataFrame) -> bool:
    """Whether the regret of some policy is known as a share of that of uniform picks."""
    return bool(table["regret_ratio"].notna().any())


def _success(line: dict[Any, Any], relative: bool) -> list[str]:
    """Regret, relative to that of uniform picks where these were run, or where it is unknown the largest reward, as text."""
    if "largest_reward" in line:
        return [_number(line["largest_reward"], "{:.4g}".format)]
    name, form = ("regret_ratio", "{:.3f}".format) if relative else ("regret", digits)
    interval = _interval(line[f"{name}_low"], line[f"{name}_high"], form)
    return [_number(line[name], form), interval, _number(line["simple_regret"], "{:.3g}".format)]


def headers_of(table: pd.DataFrame) -> tuple[str, ...]:
    """Column headers of the table for reading."""
    if "largest_reward" in table:
        return HEADERS_WITHOUT_REGRET
    return HEADERS if _has_ratio(table) else HEADERS_WITHOUT_BASELINE


def to_markdown(table: Printed) -> str:
    """A table in Markdown, below its caption."""
    rule = ["---", *["---:"] * (len(table.headers) - 1)]
    return f"{printable(table.caption)}\n\n" + "".join(map(markdown_row, (table.headers, rule, *table.lines)))


def to_rich(table: Printed, width: int) -> RichTable:
    """A table for a terminal of a width. Columns of sizes for which there is no room are left out, and named in the caption."""
    result, left_out = _rich(table), list[str]()
    wide = lambda: Measurement.get(_ENDLESS, _ENDLESS.options, result).minimum > width  # noqa: E731
    for header in DISPENSABLE:
        if header in table.headers and wide():
            left_out.append(header)
            kept = [place for place, one in enumerate(table.headers) if one not in left_out]
            lines = tuple(tuple(line[place] for place in kept) for line in table.lines)
            words = f"{table.caption}. Only in the files: {', '.join(left_out)}"
            result = _rich(Printed(words, tuple(table.headers[place] for place in kept), lines))
    if wide():
        result.columns[0].min_width = LEAST_LABEL_WIDTH
    return result


def _rich(table: Printed) -> RichTable:
    result = RichTable(title=plain(table.caption), box=SIMPLE, padding=(0, 1), collapse_padding=True)
    # A label that is too long is continued in the next line: cut off, two could look the same.
    longest = max((len(printable(line[0])) for line in table.lines), default=0)
    result.add_column(table.headers[0], overflow="fold", min_width=min(longest, LABEL_WIDTH))
    for header in table.headers[1:]:
        result.add_column(header if header == INTERVAL else header.replace(" ", "\n"), justify="right", no_wrap=True)
    for line in table.lines:
        result.add_row(*map(plain, line))
    return result


def caption(config: ExperimentConfig, table: pd.DataFrame) -> str:
    """Horizon, simulated workers, repetitions and seed of an experiment in one line."""
    ratio = "the regret ratio is the regret over that of uniformly random picks in the same repetition; "
    known = f"means; {ratio if _has_ratio(table) else ''}regrets in reward units"
    meaning = "means; the regret is unknown" if "largest_reward" in table else known
    repetitions = "1 repetition" if config.repetitions == 1 else f"{config.repetitions} repetitions"
    workers = f" by {count(config.asynchronous, 'simulated worker')}" if config.asynchronous else ""
    before = f" after {config.history:,} random ones that every policy observes" if config.history else ""
    runs = f"{config.horizon:,} evaluations in a run{workers}{before}"
    return f"{config.name}: {runs}, {repetitions} from seed {config.seed}; {meaning}"


def _number(value: float, form: Callable[[float], str]) -> str:
    return "–" if math.isnan(value) else form(value)


def _interval(low: float, high: float, form: Callable[[float], str]) -> str:
    # Where all repetitions are the same, as the ratio of the baseline to itself, an interval would say nothing.
    same = math.isnan(low) or high - low <= 1e-6 * max(abs(low), abs(high))
    return "–" if same else f"{form(low)} … {form(high)}"


# ---------------------------------------------------------------------- the figures


def draw_figures(config: ExperimentConfig, records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw regret ratio, cumulative, mean and simple regret, time, batch size and dictionary size (model order) against t, one
    PNG each.

    If the configuration asks for a headline, its picture is drawn instead.

    Args:
        config: Source of the order of the policies and of the title.
        records: At least one.
        folder: Made if it does not exist; existing figures are replaced.

    Returns:
        The files written.

    Raises:
        DataError: If the folder can't be made, or a file can't be written.
    """
    check_config(config)
    check_records(records)
    folder = as_path("folder", folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"the folder {folder} can't be made: {error}.") from error
    if config.headline and headline(config, records):
        path = folder / "headline.png"
        write_atomically(path, partial(draw_headline(config, records).savefig, dpi=150))
        return [path]
    baseline = baseline_regret(config, records)
    known, labels = measures(baseline), [policy.label for policy in config.policies]
    paths = []
    drawn = ["regret_ratio", *FIGURES] if baseline else [*FIGURES]
    if not regret_is_known(records):
        drawn = ["best_reward", *(name for name in FIGURES if not name.endswith("regret"))]
    for name in drawn:
        figure = draw_labels(config.name, labels, records, known[name])
        path = folder / FILENAMES.get(name, f"{name}.png")
        write_atomically(path, partial(figure.savefig, dpi=150))
        paths.append(path)
    return paths


def draw_labels(name: str, labels: Sequence[str], records: Sequence[Record], measure: Measure) -> Figure:
    """One figure: the mean over repetitions for each label. `Record.place` counts the labels.

    Ten repetitions or more have their 95 % t-interval shaded, fewer are drawn as thin lines. A panel has at most five labels;
    panels share their axes. Axes are linear for runs of up to 1,000 pulls.
    """
    told = [place for place in range(len(labels)) if of_place(records, place)]
    panels = [told[start : start + MOST_LINES] for start in range(0, len(told), MOST_LINES)]
    figure = Figure(figsize=(6.4 * len(panels), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    horizon = min(len(record.history) for record in records)
    short = horizon <= SHORT
    yscale = "linear" if short else measure.yscale
    spaced = np.linspace if short else np.geomspace
    t = np.unique(spaced(1, max(horizon, 1), POINTS).round().astype(np.int64))
    for axes, places in zip(np.atleast_1d(figure.subplots(1, len(panels), sharey=True)), panels, strict=True):
        for place in places:
            curves = known_curves(np.stack([measure.curve(record, t) for record in of_place(records, place)]))
            low, mean, high = band(curves)
            # A t-interval of positive numbers may reach below 0; a logarithmic axis ends at the smallest observation.
            low = np.maximum(low, curves.min(axis=0)) if yscale == "log" else low
            if len(curves) < ENOUGH_FOR_BAND:
                draw_repetitions(axes, t, curves, place)
                low = high = np.full_like(mean, np.nan)
            draw_band(axes, t, (low, mean, high), place, literal(labels[place]))
        axes.set_xscale("linear" if short else "log")
        axes.set_yscale(yscale)
        axes.set_xlim(1, max(horizon, 2))
        axes.set_xlabel("evaluations t")
        tidy(axes)
        # Below the axes, so that it can't cover a curve.
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False, fontsize="small", handlelength=3.0)
    # After the last panel: a limit that is set ends the scaling of the shared axis, which would cut off later panels.
    if yscale == "linear":
        figure.axes[0].set_ylim(bottom=measure.bottom, top=measure.top)
    figure.axes[0].set_ylabel(measure.label)
    figure.suptitle(f"{literal(name)}: {spread_in_words(records)}", fontsize="medium")
    return figure


def spread_in_words(records: Sequence[Record]) -> str:
    """Description of the lines of a figure, by the number of repetitions."""
    repetitions = len({record.seed for record in records})
    if repetitions == 1:
        return "one repetition"
    shown = "95 % interval shaded" if repetitions >= ENOUGH_FOR_BAND else "each a thin line"
    return f"mean of {repetitions} repetitions, {shown}"


def draw_repetitions(axes: Axes, x: NDArray[np.generic], curves: Values, place: int) -> None:
    """Each repetition as a thin line; nothing for a single one, which its mean shows."""
    for curve in curves if len(curves) > 1 else ():
        axes.plot(x, curve, color=COLORS[place % len(COLORS)], linewidth=0.6, alpha=0.35)


def draw_band(axes: Axes, x: NDArray[np.generic], values: tuple[Values, Values, Values], place: int, label: str) -> None:
    """A mean with its interval shaded, in the colour and line style of its place."""
    low, mean, high = values
    color, style = COLORS[place % len(COLORS)], STYLES[(place + place // len(COLORS)) % len(STYLES)]
    axes.plot(x, mean, color=color, linestyle=style, linewidth=1.6, label=label)
    if np.isfinite(low).any():
        axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)


# ---------------------------------------------------------------------- the headline, for readers who do not know regret


def headline(config: ExperimentConfig, records: Sequence[Record]) -> str | None:
    """The quality of each policy's recommendation, from the average candidate (0 %) to the best one (100 %).

    The regret of the average candidate is the mean regret of `uniform`, which must be among the policies. None if it is
    unknown.
    """
    if (gap := _gap(config, records)) is None:
        return None
    t = np.array([min(len(record.history) for record in records)])
    found = {}
    for place, policy in enumerate(config.policies):
        mine = of_place(records, place)
        if mine:
            found[policy.label] = float(np.mean([share(record, t, gap)[0] for record in mine]))
    best, *others = sorted(found, key=lambda label: -found[label])
    pulls = config.history + int(t[0])
    among = f" of {arms:,}" if (arms := records[0].history.metadata.get("arms")) and pulls < arms else ""
    rest = "".join(f", {label} {100 * found[label]:.0f} %" for label in others)
    return (
        f"After {pulls:,}{among} evaluations, the candidate that {best} recommends is {100 * found[best]:.0f} % of the way "
        f"from the average candidate to the best one{rest}."
    )


def draw_headline(config: ExperimentConfig, records: Sequence[Record]) -> Figure:
    """Quality of the recommended candidate against evaluations: mean over repetitions, and each repetition as a thin line."""
    gap, title = _gap(config, records), headline(config, records)
    assert gap is not None
    assert title is not None
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    t = np.arange(1, min(len(record.history) for record in records) + 1)
    ends: list[tuple[float, str, str]] = []
    for place, policy in enumerate(config.policies):
        curves = [100 * share(record, t, gap) for record in of_place(records, place)]
        if curves:
            color, mean = COLORS[place % len(COLORS)], np.mean(curves, axis=0)
            for curve in curves:
                axes.plot(t, curve, color=color, linewidth=0.7, alpha=0.35)
            axes.plot(t, mean, color=color, linewidth=2.2)
            ends.append((float(mean[-1]), literal(policy.label), color))
    axes.set_xlim(1, max(int(t[-1]), 2))
    axes.set_ylim(0, 103)
    height = -np.inf
    for value, label, color in sorted(ends):
        height = max(value, height + 100 * _LEAST_GAP)
        axes.text(1.01, height / 103, label, color=color, transform=axes.transAxes, va="center", weight="bold")
    axes.set_xlabel("evaluations")
    axes.set_ylabel("recommended candidate\n(0 % the average one, 100 % the best of all)")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    axes.set_title(textwrap.fill(printable(title), 78), fontsize="medium", loc="left", pad=18, parse_math=False)
    tidy(axes)
    return figure


def share(record: Record, t: NDArray[np.int64], gap: float) -> Values:
    """Quality of the arm recommended after pull t, from the average arm (0) to the best one (1)."""
    return 1 - simple_regret(record, t) / gap


def _gap(config: ExperimentConfig, records: Sequence[Record]) -> float | None:
    """Regret of the average arm, reward units, as estimated from uniform pulls."""
    baseline = baseline_regret(config, records)
    if not baseline:
        return None
    gap = float(np.mean([regret[-1] / len(regret) for regret in baseline.values()]))
    ends = [float(simple_regret(record, np.array([len(record.history)]))[0]) for record in records]
    return gap if gap > 0 and np.isfinite([gap, *ends]).all() else None
