"""The figures of an experiment, drawn without a display and without Matplotlib's global state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from torchbandits.checks import as_path
from torchbandits.experiments.config import ExperimentConfig
from torchbandits.experiments.curves import Measure, Values, measures
from torchbandits.experiments.headline import draw_headline, headline
from torchbandits.experiments.printable import literal
from torchbandits.experiments.records import Record, check_config, check_records
from torchbandits.experiments.tables import baseline_regret, mean_interval
from torchbandits.figures import COLORS, STYLES, tidy
from torchbandits.files import write_atomically

POINTS = 300


FIGURES = ("mean_regret", "seconds", "batch_size", "dictionary_size")
FILENAMES = {"seconds": "time.png"}


def draw_figures(config: ExperimentConfig, records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw regret ratio, mean regret, time, batch size and dictionary size (model order) against t, one PNG each; or, where the
    configuration asks for a headline, one picture of what was found.

    Args:
        config: Gives the order of the policies and the title.
        records: At least one.
        folder: Exists; figures that are there are replaced.

    Returns:
        The files written.

    Raises:
        DataError: If a file can't be written.
    """
    check_config(config)
    check_records(records)
    folder = as_path("folder", folder)
    if config.headline and headline(config, records):
        path = folder / "headline.png"
        write_atomically(path, partial(draw_headline(config, records).savefig, dpi=150))
        return [path]
    baseline = baseline_regret(config, records)

    known = measures(baseline)
    paths = []
    for name in ["regret_ratio", *FIGURES] if baseline else FIGURES:
        figure = draw(config, records, known[name])
        path = folder / FILENAMES.get(name, f"{name}.png")
        write_atomically(path, partial(figure.savefig, dpi=150))
        paths.append(path)
    return paths


def draw(config: ExperimentConfig, records: Sequence[Record], measure: Measure) -> Figure:
    """One figure: the mean over repetitions of every policy, its 95 % t-interval shaded."""
    return draw_labels(config.name, [policy.label for policy in config.policies], records, measure)


def draw_labels(name: str, labels: Sequence[str], records: Sequence[Record], measure: Measure) -> Figure:
    """One figure of records whose `place` counts the labels, which need no configuration."""
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    horizon = min(len(record.history) for record in records)
    t = np.unique(np.geomspace(1, max(horizon, 1), POINTS).round().astype(np.int64))
    for place, label in enumerate(labels):
        mine = [measure.curve(record, t) for record in records if record.place == place]
        if mine:
            curves = np.stack(mine)
            low, mean, high = band(curves)
            # A t-interval of positive numbers may reach below 0; a logarithmic axis ends at the smallest observation.
            low = np.maximum(low, curves.min(axis=0)) if measure.yscale == "log" else low
            draw_band(axes, t, (low, mean, high), place, literal(label))
    axes.set_xscale("log")
    axes.set_yscale(measure.yscale)
    axes.set_xlim(1, max(horizon, 2))
    if measure.yscale == "linear":
        axes.set_ylim(bottom=measure.bottom, top=measure.top)
    axes.set_xlabel("t (pulls)")
    axes.set_ylabel(measure.label)
    repetitions = len({record.seed for record in records})
    spread = "one repetition" if repetitions == 1 else f"mean of {repetitions} repetitions, 95 % interval shaded"
    axes.set_title(f"{literal(name)}: {spread}", fontsize="medium")
    tidy(axes)
    # Below the axes: it can't cover a curve there.
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small", handlelength=3.0)
    return figure


def band(curves: Values) -> tuple[Values, Values, Values]:
    """Low end of the 95 % t-interval, mean and high end over the first axis; NaN ends of a single curve."""
    mean, half = mean_interval(curves)
    return mean - half, mean, mean + half


def draw_band(axes: Axes, x: NDArray[np.generic], values: tuple[Values, Values, Values], place: int, label: str) -> None:
    """A mean with its interval shaded, in the colour and line style of its place."""
    low, mean, high = values
    color, style = COLORS[place % len(COLORS)], STYLES[(place + place // len(COLORS)) % len(STYLES)]
    axes.plot(x, mean, color=color, linestyle=style, linewidth=1.6, label=label)
    if np.isfinite(low).any():
        axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
