"""Figures of several outcomes: the measured pairs of two outcomes with their fronts, and indicators over time."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from torchbandits.aims import growing_hypervolume, growing_r2, non_dominated
from torchbandits.experiments.printable import literal
from torchbandits.figures import COLORS, tidy
from torchbandits.history import History, of_every_outcome

MOST_PAIRS = 3
"""Number of pairs of outcomes that are drawn."""


def beaten_by_none(signed: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mask of the points `n x m`, larger being better, that no other point dominates, `n`; False for points with NaN."""
    best, good = np.zeros(len(signed), bool), ~np.isnan(signed).any(axis=1)
    if good.any():
        best[good] = non_dominated(torch.from_numpy(signed[good])).numpy()
    return best


def trade_offs(
    names: tuple[str, str],
    measured: NDArray[np.float64],
    best: NDArray[np.bool_],
    *,
    small: bool,
    steps: bool,
    expected: NDArray[np.float64] | None = None,
    deviation: NDArray[np.float64] | None = None,
    limits: tuple[tuple[float, ...], tuple[float, ...]] = ((), ()),
) -> Figure:
    """Draw two outcomes of each point that was measured, and the front that is expected.

    Args:
        names: Names of the outcomes.
        measured: `n x 2`, average measurements of each point.
        best: `n` booleans, the points that no other point dominates.
        small: Whether the first outcome is minimised.
        steps: Whether to join the best points by steps, the boundary of the dominated region; for two objectives.
        expected, deviation: `f x 2`, posterior means of the front and their standard deviations; None for no front.
        limits: Limits of each outcome, drawn as lines.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*measured[~best].T, "o", color=COLORS[2], markersize=4, label="measured")
    front = measured[best][np.argsort(measured[best][:, 0], kind="stable")]
    axes.plot(*front.T, "o", color=COLORS[0], markersize=5, label="measured, beaten by none")
    if steps:
        axes.step(*front.T, where="post" if small else "pre", color=COLORS[0], linewidth=1)
    if expected is not None and deviation is not None:
        (x, y), (across, up) = expected.T, deviation.T
        axes.errorbar(x, y, up, across, fmt="s", color=COLORS[4], ecolor="0.8", markersize=3, label="expected front")
    for values, line in zip(limits, (axes.axvline, axes.axhline), strict=True):
        for value in values:
            line(value, color=COLORS[4], linestyle="--", linewidth=1)
    axes.set_xlabel(literal(names[0]))
    axes.set_ylabel(literal(names[1]))
    axes.legend(loc="best", frameon=False)
    tidy(axes)
    return figure


def indicators(signed: NDArray[np.float64]) -> Figure:
    """Draw hypervolume and R2 of the first t evaluations `n x m`, larger being better; evaluations with NaN add nothing. The
    worst value of each objective is 0 and the best is 1."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    good = ~np.isnan(signed).any(axis=1)
    low, high = (signed[good].min(axis=0), signed[good].max(axis=0)) if good.any() else (0.0, 1.0)
    scaled = torch.from_numpy((signed - low) / np.where(np.subtract(high, low) > 0, np.subtract(high, low), 1.0))
    t = np.arange(1, len(signed) + 1)
    panels = figure.subplots(1, 2)
    panels[0].step(t, growing_hypervolume(scaled).numpy(), where="post", color=COLORS[0])
    panels[0].set_ylabel("hypervolume (1: the best of each at once)")
    panels[1].step(t, growing_r2(1 - scaled).numpy(), where="post", color=COLORS[5])
    panels[1].set_ylabel("R2, distance from the best of each")
    for axes in panels:
        axes.set_xlabel("evaluation")
        tidy(axes)
    return figure


def averages_of(arms: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The average of each of k outcomes for each distinct arm, in increasing order, `r x k`; NaN where it was never measured.

    Args:
        arms: `n`, the arm of each evaluation.
        values: `n x k`, NaN where not measured.
    """
    distinct, place = np.unique(arms, return_inverse=True)
    known = ~np.isnan(values)
    sums, counts = np.zeros((len(distinct), values.shape[1])), np.zeros((len(distinct), values.shape[1]))
    np.add.at(sums, place, np.where(known, values, 0.0))
    np.add.at(counts, place, known)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def figures_of_run(history: History) -> tuple[tuple[str, Figure], ...]:
    """The figures of a run of several objectives, of its first batch row of picks, with their descriptions; none for other
    runs, and where an outcome was not measured of some pick."""
    objectives: dict[str, str] = history.metadata.get("objectives", {})
    names: list[str] = history.metadata.get("outcomes", [])
    if len(objectives) < 2 or not set(objectives) <= set(names):
        return ()
    whole = of_every_outcome(history.pulls, range(len(names)))
    if whole is None or not len(whole[0]):
        return ()
    values = whole[1]
    averages = averages_of(whole[0], values)
    own = [names.index(name) for name in objectives]
    sign = np.array([-1.0 if aim == "minimize" else 1.0 for aim in objectives.values()])
    best, found = beaten_by_none(sign * averages[:, own]), []
    for x, y in list(combinations(objectives, 2))[:MOST_PAIRS]:
        pair = averages[:, [names.index(x), names.index(y)]]
        drawn = trade_offs((x, y), pair, best, small=objectives[x] == "minimize", steps=len(objectives) == 2)
        found.append((f"{x} and {y} of each arm, on average", drawn))
    return (*found, ("hypervolume and R2 of the evaluations so far", indicators(sign * values[:, own])))
