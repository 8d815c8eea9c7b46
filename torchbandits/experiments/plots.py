"""The figures of an experiment, drawn without a display and without Matplotlib's global state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from torchbandits.experiments.config import ExperimentConfig
from torchbandits.experiments.files import write_atomically
from torchbandits.experiments.records import Record
from torchbandits.experiments.tables import baseline_regret, mean_interval, regret_ratio

Values = NDArray[np.float64]
Curve = Callable[[Record, NDArray[np.int64]], Values]

# Okabe and Ito's colours, told apart with any colour vision; the line styles help where lines meet and in print.
COLORS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#8C6D1F")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
POINTS = 300


@dataclass(frozen=True)
class FigureSpec:
    """One figure: its file, its vertical axis with units, and the curve of a record over t."""

    filename: str
    ylabel: str
    curve: Curve
    yscale: str = "linear"
    top: float | None = None


def draw_figures(config: ExperimentConfig, records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw regret ratio, mean regret, time, batch size and dictionary size (model order) against t, one PNG each.

    Args:
        config: Gives the order of the policies and the title.
        records: At least one.
        folder: Exists; figures that are there are replaced.

    Returns:
        The files written.

    Raises:
        DataError: If a file can't be written.
    """
    baseline = baseline_regret(config, records)

    def ratio(record: Record, t: NDArray[np.int64]) -> Values:
        return regret_ratio(record, baseline)[t - 1]

    specs = [
        FigureSpec("mean_regret.png", "mean regret of the first t pulls (reward units)", mean_regret),
        FigureSpec("time.png", "policy time until t (seconds)", elapsed, "log"),
        FigureSpec("batch_size.png", "size of the batch holding t (pulls)", batch_size, "log"),
        FigureSpec("dictionary_size.png", "dictionary after the batch holding t (points)", dictionary_size),
    ]
    if baseline:
        specs.insert(0, FigureSpec("regret_ratio.png", "regret until t / regret of uniform (no unit)", ratio, top=1.5))
    paths = []
    for spec in specs:
        figure = draw(config, records, spec)
        path = folder / spec.filename
        write_atomically(path, partial(figure.savefig, dpi=150))
        paths.append(path)
    return paths


def draw(config: ExperimentConfig, records: Sequence[Record], spec: FigureSpec) -> Figure:
    """One figure: the mean over repetitions of every policy, its 95 % t-interval shaded."""
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    horizon = min(len(record.history) for record in records)
    t = np.unique(np.geomspace(1, max(horizon, 1), POINTS).round().astype(np.int64))
    for place, policy in enumerate(config.policies):
        mine = [spec.curve(record, t) for record in records if record.place == place]
        if mine:
            _draw_band(axes, t, np.stack(mine), place, policy.label, spec.yscale)
    axes.set_xscale("log")
    axes.set_yscale(spec.yscale)
    axes.set_xlim(1, max(horizon, 2))
    if spec.yscale == "linear":
        axes.set_ylim(bottom=0, top=spec.top)  # the ratio of the very first pulls is noise, and would flatten the rest
    axes.set_xlabel("t (pulls)")
    axes.set_ylabel(spec.ylabel)
    repetitions = len({record.seed for record in records})
    axes.set_title(f"{config.name}: mean of {repetitions} repetitions, 95 % interval shaded", fontsize="medium")
    axes.grid(visible=True, which="major", color="0.9")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    # Below the axes: it can't cover a curve there.
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small", handlelength=3.0)
    return figure


def _draw_band(axes: Axes, t: NDArray[np.int64], curves: Values, place: int, label: str, yscale: str) -> None:
    mean, half = mean_interval(curves)
    color, style = COLORS[place % len(COLORS)], STYLES[(place + place // len(COLORS)) % len(STYLES)]
    axes.plot(t, mean, color=color, linestyle=style, linewidth=1.6, label=label)
    if np.isfinite(half).any():
        # A t-interval of positive numbers may reach below 0; a logarithmic axis ends at the smallest observation.
        low = np.maximum(mean - half, curves.min(axis=0)) if yscale == "log" else mean - half
        axes.fill_between(t, low, mean + half, color=color, alpha=0.2, linewidth=0)


def mean_regret(record: Record, t: NDArray[np.int64]) -> Values:
    """Cumulative regret of the first t pulls over t, reward units."""
    return record.history.cumulative_regret()[t - 1] / t


def elapsed(record: Record, t: NDArray[np.int64]) -> Values:
    """Seconds the policy spent until the end of the batch that holds pull t."""
    batches = record.history.batches
    return np.cumsum(batches["seconds"])[_batch_of(record, t)]


def batch_size(record: Record, t: NDArray[np.int64]) -> Values:
    """Size of the batch that holds pull t."""
    return record.history.batches["size"][_batch_of(record, t)].astype(np.float64)


def dictionary_size(record: Record, t: NDArray[np.int64]) -> Values:
    """Dictionary points after the batch that holds pull t."""
    return record.history.batches["dictionary_size"][_batch_of(record, t)].astype(np.float64)


def _batch_of(record: Record, t: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(record.history.batches["t"], t, side="left")
