"""The figure of a calibration, drawn without a display and without Matplotlib's global state."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from torchbandits.diagnostics.coverage import Calibration

BLUE, ORANGE = "#0072B2", "#D55E00"  # Okabe and Ito's
_REACH = 5.0  # standardised residuals beyond this are counted at the edge


def draw(record: Calibration, row: tuple[int, ...]) -> Figure:
    """Two panels: coverage against the nominal level, and the standardised residuals."""
    figure = Figure(figsize=(9.2, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    draw_coverage(left, record, row)
    draw_residuals(right, record, row)
    (handles, labels), (others, names) = (axes.get_legend_handles_labels() for axes in (left, right))
    # Below the axes: it can't cover the data there.
    figure.legend([*handles, *others], [*labels, *names], loc="outside lower center", ncols=5, frameon=False, fontsize="small")
    return figure


def draw_coverage(axes: Axes, record: Calibration, row: tuple[int, ...]) -> None:
    """Coverage of the intervals of every level, the band of chance, and the diagonal."""
    z = np.abs(_residuals(record, row))
    lower, upper = (column[row].cpu().numpy() for column in (record.lower, record.upper))
    levels = np.array([0.0, *record.levels, 1.0])
    order = np.argsort(levels)
    low, high = (np.array([0.0, *edge, 1.0])[order] for edge in (lower, upper))
    axes.fill_between(levels[order], low, high, color="0.85", linewidth=0, label="99.9 % band of chance")
    axes.plot([0, 1], [0, 1], color="0.4", linewidth=1.0, linestyle="--", label="as it should be")
    # Every interval between the levels too: a reward lies inside from the level of its own residual on.
    own = np.sort(_level_of(z))
    axes.step([0, *own, 1], [0, *(np.arange(1, len(own) + 1) / len(own)), 1], where="post", color=BLUE, label="coverage")
    axes.plot(record.levels, record.coverage[row].cpu().numpy(), "o", color=BLUE, markersize=3.5, clip_on=False)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.01)
    axes.set_aspect("equal")
    axes.set_xlabel("nominal level of the interval (fraction)")
    axes.set_ylabel("coverage (fraction inside)")
    axes.set_title(f"{int(record.count[row])} {record.judged}", fontsize="medium")
    _finish(axes)


def draw_residuals(axes: Axes, record: Calibration, row: tuple[int, ...]) -> None:
    """Histogram of the standardised residuals under the standard normal density."""
    z = _residuals(record, row)
    edges = np.linspace(-_REACH, _REACH, 2 * int(np.clip(round(len(z) ** 0.5), 5, 20)) + 1)
    weights = np.full(len(z), 1 / (len(z) * (edges[1] - edges[0])))
    axes.hist(z.clip(-_REACH, _REACH), bins=edges.tolist(), weights=weights, color=ORANGE, alpha=0.55, label="residuals")
    grid = np.linspace(-_REACH, _REACH, 201)
    axes.plot(grid, np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi), color="black", linewidth=1.2, label="standard normal")
    beyond = int((np.abs(z) > _REACH).sum())
    axes.set_xlim(-_REACH, _REACH)
    axes.set_xlabel("standardised residual: (reward − mean) / std (no unit)")
    axes.set_ylabel("density")
    if beyond:  # they stand in the outermost bars
        ticks = [-_REACH, -2.5, 0.0, 2.5, _REACH]
        axes.set_xticks(ticks, [f"≤ −{_REACH:g}", "−2.5", "0", "2.5", f"≥ {_REACH:g}"])
    far = f", {beyond} beyond ±{_REACH:g}" if beyond else ""
    axes.set_title(f"mean square {float(record.mean_square[row]):.3g} (1 expected){far}", fontsize="medium")
    _finish(axes)


def _residuals(record: Calibration, row: tuple[int, ...]) -> np.ndarray:
    z = record.residuals[row].cpu().numpy()
    return z[~np.isnan(z)]


def _level_of(half_width: np.ndarray) -> np.ndarray:
    """Probability that a standard normal is within ±z."""
    return np.vectorize(math.erf)(half_width / np.sqrt(2))


def _finish(axes: Axes) -> None:
    axes.grid(visible=True, color="0.92")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
