"""The measurements of a benchmark as a Markdown table, and as one log–log figure per axis."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from scaling.config import AXES, LABELS, BenchmarkConfig
from torchbandits.figures import COLORS, STYLES, tidy

SYMBOLS = {"arms": "arms A", "dictionary": "dictionary points m", "pulls": "pulls t"}
MEASURES = {
    "update": "seconds of a new posterior over all arms",
    "step": "seconds of a pull",
    "memory": "peak memory [MiB]",
}
_GREY = "0.45"


def markdown(config: BenchmarkConfig, table: pd.DataFrame) -> str:
    """One line per point: seconds of a resparsification, as a multiple of its floor, and each method's seconds over ours."""
    others = [m for m in config.methods if m != "torchbandits"]
    clock = f"{config.clock} seconds, {config.threads} thread{'s' if config.threads > 1 else ''}, {config.device}"
    heads = ["A", "m", "t", "update", "× floor", "pull", "picks", "MiB", *(f"{LABELS[m]}: update, pull" for m in others)]
    lines = [f"d = {config.dim}, RBF; {clock}; of other methods the seconds over ours.", ""]
    lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for values, part in table.groupby(list(AXES), sort=True):
        by_method = {line["method"]: line for line in part.to_dict("records")}
        own = by_method.get("torchbandits")
        cells = [f"{value:,}" for value in values]
        if own is None or own["outcome"] != "done":
            cells += [own["outcome"] if own else "–", *["–"] * 4]
        else:
            cells += [
                _short(own["update"]),
                _short(own["floor_ratio"]),
                _short(own["step"]),
                f"{own['picks']:.0f}",
                f"{own['memory'] / 2**20:.0f}",
            ]
        cells += [_beside(by_method[m], own) if m in by_method else "–" for m in others]
        lines.append("| " + " | ".join(cells) + " |")
    rate = table.iloc[-1]
    lines += [
        "",
        f"Rates at m = {rate['dictionary']:,}: {rate['rate_operations'] / 1e9:.1f} billion operations, "
        f"{rate['rate_exponentials'] / 1e6:.0f} million exponentials, {rate['rate_bytes'] / 1e9:.1f} GB a second.",
        "",
    ]
    return "\n".join(lines)


def _beside(line: dict[str, object], own: dict[str, object] | None) -> str:
    if line["outcome"] != "done":
        return str(line["outcome"])
    if own is None or own["outcome"] != "done":
        return f"{_short(line['update'])} s, {_short(line['step'])} s"
    return f"{_short(line['update_ratio'])}, {_short(line['step_ratio'])}"


def _short(value: object) -> str:
    """A number with three digits, without an exponent where that is short."""
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number) or number == 0:
        return "–"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def draw_axis(config: BenchmarkConfig, table: pd.DataFrame, axis: str) -> Figure:
    """Seconds of an update and of a pull, and memory, along one axis, with the other two at their base; the floor in grey."""
    fixed = [other for other in AXES if other != axis]
    base = asdict(config.base)
    part = table[(table[fixed] == [base[other] for other in fixed]).all(axis=1)].sort_values(axis)
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (measure, label) in enumerate(MEASURES.items()):
        _draw_measure(figure.add_subplot(1, 3, place + 1), config, part, axis, measure, label)
    figure.suptitle(", ".join(f"{SYMBOLS[o]} = {base[o]:,}" for o in fixed), fontsize="medium")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize="small", handlelength=3.0)
    return figure


def _draw_measure(axes: Axes, config: BenchmarkConfig, part: pd.DataFrame, axis: str, measure: str, label: str) -> None:
    scale = 2**20 if measure == "memory" else 1.0
    for place, method in enumerate(config.methods):
        own = part[(part["method"] == method) & (part["outcome"] == "done")]
        # Times below the resolution of the clock cannot be drawn on a logarithmic axis, and are left out of the line.
        axes.plot(
            own[axis],
            (own[measure] / scale).where(own[measure] > 0),
            color=COLORS[place],
            linestyle=STYLES[place],
            marker="o",
            ms=4,
            label=LABELS[method],
        )
    if measure == "update":
        own = part[(part["method"] == "torchbandits") & (part["outcome"] == "done")]
        axes.plot(own[axis], own["floor"], color=_GREY, linewidth=3, alpha=0.5, label="floor of a resparsification")
    axes.set_xscale("log")
    # With the small sizes of a rehearsal there may be nothing to draw, and a logarithmic axis raises an error without values.
    drawn = any((np.asarray(line.get_ydata()) > 0).any() for line in axes.get_lines())
    axes.set_yscale("log" if drawn else "linear")
    axes.set_xlabel(SYMBOLS[axis])
    axes.set_ylabel(label)
    tidy(axes)
