"""The outcome of an experiment in one sentence and one picture, for readers who know nothing of regret."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from torchbandits.experiments.config import ExperimentConfig
from torchbandits.experiments.curves import simple_regret
from torchbandits.experiments.printable import literal, printable
from torchbandits.experiments.records import Record
from torchbandits.experiments.tables import baseline_regret
from torchbandits.figures import COLORS, tidy

_LEAST_GAP = 0.06  # between labels at the ends of curves, of the height


def headline(config: ExperimentConfig, records: Sequence[Record]) -> str | None:
    """What each policy has found, from the average candidate (0 %) to the best one (100 %); None where that is unknown.

    The average candidate's regret is the mean regret of `uniform`, which must be among the policies.
    """
    if (gap := _gap(config, records)) is None:
        return None
    t = np.array([min(len(record.history) for record in records)])
    found = {}
    for place, policy in enumerate(config.policies):
        mine = [record for record in records if record.place == place]
        if mine:
            found[policy.label] = float(np.mean([share(record, t, gap)[0] for record in mine]))
    best, *others = sorted(found, key=lambda label: -found[label])
    among = f" of {arms:,}" if (arms := records[0].history.metadata.get("arms")) else ""
    rest = "".join(f", {label} {_percent(found[label])}" for label in others)
    return (
        f"After {int(t[0]):,}{among} evaluations, the candidate that {best} recommends is {_percent(found[best])} of the way "
        f"from the average candidate to the best one{rest}."
    )


def draw_headline(config: ExperimentConfig, records: Sequence[Record]) -> Figure:
    """The recommended candidate against the evaluations: the mean over repetitions, and each repetition as a thin line."""
    gap, title = _gap(config, records), headline(config, records)
    assert gap is not None
    assert title is not None
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    t = np.arange(1, min(len(record.history) for record in records) + 1)
    ends: list[tuple[float, str, str]] = []
    for place, policy in enumerate(config.policies):
        curves = [100 * share(record, t, gap) for record in records if record.place == place]
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


def share(record: Record, t: NDArray[np.int64], gap: float) -> NDArray[np.float64]:
    """How far the arm recommended after pull t lies from the average arm (0) to the best one (1)."""
    return 1 - simple_regret(record, t) / gap


def _gap(config: ExperimentConfig, records: Sequence[Record]) -> float | None:
    """Regret of the average arm, reward units, as uniform pulls estimate it."""
    baseline = baseline_regret(config, records)
    if not baseline:
        return None
    gap = float(np.mean([regret[-1] / len(regret) for regret in baseline.values()]))
    ends = [float(simple_regret(record, np.array([len(record.history)]))[0]) for record in records]
    return gap if gap > 0 and np.isfinite([gap, *ends]).all() else None


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"
