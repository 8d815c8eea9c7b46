"""The figure of a reproduction, in the paper's layout and one style, drawn from its summary."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from torchbandits.experiments.curves import measures
from torchbandits.experiments.plots import draw_band
from torchbandits.experiments.printable import literal
from torchbandits.experiments.reproduction import PanelConfig, ReproductionConfig
from torchbandits.experiments.summaries import Summary
from torchbandits.figures import tidy

PANEL = (3.7, 2.9)  # inches
STUDIED = 5.0  # prior standard deviations shown of a study's posteriors
TRUTH, EVALUATIONS = "f", "evaluations"
"""Labels of a study that are drawn as a dashed line and as points."""


def draw_reproduction(reproduction: ReproductionConfig, summary: Summary) -> Figure:
    """Panels in rows; a policy has one colour and line style throughout, and the legend is below."""
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
    """The title, the form and the repetitions."""
    form, title = "reduced form, " if summary.facts["quick"] else "", literal(reproduction.title, 120)
    if reproduction.study is not None:
        return f"{title}\n{form}mean and three standard deviations of one repetition"
    counts = sorted(set(summary.table["repetitions"]))
    if counts == [1]:
        return f"{title}\n{form}one repetition"
    counted = " and ".join(map(str, counts))
    return f"{title}\n{form}mean of {counted} repetitions, 95 % interval shaded"


def _places(reproduction: ReproductionConfig, summary: Summary) -> dict[str, int]:
    """A colour for each label, in the order of the configuration."""
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
    """A label as the legend has it: less its suffix, and of a swept policy what comes before the length-scale."""
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
    """An interval may reach below 0: the axis ends below the smallest positive mean, and the interval with it."""
    means = [value for line in axes.lines for value in np.asarray(line.get_ydata(), np.float64).tolist() if value > 0]
    if means:
        axes.set_ylim(min(means) / 1.5, max(max(means) * 1.5, axes.get_ylim()[1]))


def _label_decades(axes: Axes) -> None:
    """Plain numbers; also at 2 and 5 where there are few decades."""
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _curves(
    panel: PanelConfig, reproduction: ReproductionConfig, table: pd.DataFrame, labels: list[str]
) -> dict[str, pd.DataFrame]:
    """One line a label; or, over the length-scale, one a series, from the ends of its policies."""
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
    """The panel's own limit; else the usual one where curves would pass it, else Matplotlib's choice."""
    if panel.top is not None or usual is None:
        return panel.top
    highest = np.nanmax(table["high"].fillna(table["mean"]).to_numpy(), initial=0.0)
    return usual if highest > usual else None
