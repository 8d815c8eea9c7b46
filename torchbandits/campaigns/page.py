"""HTML page of a campaign: the recommended row, progress, what the model knows, best and open rows, decisions on columns."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from torchbandits.experiments.page import STYLE, escape, inline, table
from torchbandits.experiments.printable import literal
from torchbandits.explanation import Explanation
from torchbandits.figures import COLORS, tidy
from torchbandits.files import write_text

MOST_COLUMNS, FEWEST_FEATURES = 14, 4
"""Number of columns above which some of the table of candidates are left out, and the number of those always shown."""
MOST_PREDICTED = 1_000
"""Number of different measured rows above which their predictions are left out, since their cost is cubic in this number."""
ENOUGH = 5
"""Number of different measured rows below which no column is named as important."""


@dataclass(frozen=True)
class Predicted:
    """Each measured row as the model predicts it from the other rows: in the objective's units, one entry per row.

    Attributes:
        measured: Average of the values told.
        low, middle, high: Median prediction, and the ends of its interval of two standard deviations.
        words: Sentences on how the predictions held.
    """

    measured: NDArray[np.float64]
    low: NDArray[np.float64]
    middle: NDArray[np.float64]
    high: NDArray[np.float64]
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class CampaignPage:
    """Content of the page of a campaign.

    Attributes:
        title: Title of the page.
        objective, minimize: The column of the results, and whether it is minimised.
        facts: The line below the title.
        values: All results in the order told, NaN where an evaluation failed.
        best, opened, columns: Tables of best rows, open rows and decisions.
        explained: Beliefs of the model, in sentences.
        relevance: Figure of the relevance of the features; None where the model has no lengthscales.
        predicted: Predictions of the measured rows; None where there are none.
    """

    title: str
    objective: str
    minimize: bool
    facts: str
    values: NDArray[np.float64]
    best: pd.DataFrame
    opened: pd.DataFrame
    columns: pd.DataFrame
    explained: tuple[str, ...] = ()
    relevance: Figure | None = None
    predicted: Predicted | None = None


def write_campaign(page: CampaignPage, path: Path) -> None:
    """Write the page atomically. Raises `DataError` if it cannot be written."""
    write_text(path, html(page))


def html(page: CampaignPage) -> str:
    """The page as HTML."""
    features = set(page.columns["column"])
    opened = shown(page.opened, features) if len(page.opened) else "<p>No row is pending: ask for the next rows.</p>"
    explained = "".join(f"<p>{escape(line)}</p>" for line in page.explained)
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(page.title)}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>',
        f'<h1>{escape(page.title)}</h1><p class="facts">{escape(page.facts)}</p>',
        f'<h2>Recommended row</h2><div class="wide facing">{facing(page.best, features)}</div>{explained}',
        f'<h2>Progress and what was learned</h2><div class="figures">{pictures(page)}</div>{held(page.predicted)}',
        f"<h2>Best rows</h2>{shown(page.best, features)}",
        f"<h2>Pending rows</h2>{opened}",
        f"<h2>How the columns were taken</h2>{shown(page.columns)}",
        "</body></html>\n",
    ]
    return "".join(parts)


def facing(best: pd.DataFrame, features: Collection[str]) -> str:
    """The first row as two columns, names beside values."""
    first = together(best[:1], features)
    lines = [(str(name), cell(first[name].iloc[0])) for name in first.columns]
    return table(("column", "value"), lines)


def pictures(page: CampaignPage) -> str:
    """Figures of progress, predictions and relevant features, as far as they are known."""
    figures = {f"{page.objective} of each evaluation, and the best so far": drawn(page)}
    if page.predicted is not None:
        figures[f"predicted against measured {page.objective}"] = compared(page.predicted, page.objective)
    if page.relevance is not None:
        figures["features that matter"] = page.relevance
    return "".join(f'<img alt="{escape(alt)}" src="{inline(figure)}">' for alt, figure in figures.items())


def held(predicted: Predicted | None) -> str:
    """Accuracy of the predictions so far, in sentences."""
    return "" if predicted is None else "".join(f"<p>{escape(line)}</p>" for line in predicted.words)


def compared(predicted: Predicted, objective: str) -> Figure:
    """Predictions with their intervals against measured averages; a right model has most intervals on the diagonal."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    errors = np.stack([predicted.middle - predicted.low, predicted.high - predicted.middle])
    axes.errorbar(predicted.measured, predicted.middle, yerr=errors, fmt="o", color=COLORS[5], ecolor="0.7", markersize=4)
    ends = np.array([predicted.measured.min(), predicted.measured.max()])
    axes.plot(ends, ends, "--", color=COLORS[0], linewidth=1, label="predicted as measured")
    axes.set_xlabel(f"{literal(objective)}, measured (average)")
    axes.set_ylabel(f"{literal(objective)}, predicted from the other rows")
    axes.legend(loc="best", frameon=False)
    tidy(axes)
    return figure


def drawn(page: CampaignPage) -> Figure:
    """Figure of all results and the best one so far."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    t = np.arange(1, len(page.values) + 1)
    best = (np.fmin if page.minimize else np.fmax).accumulate(page.values)
    axes.plot(t, page.values, "o", color=COLORS[2], markersize=4, label="measured")
    axes.step(t, best, where="post", color=COLORS[0], label=f"{'least' if page.minimize else 'largest'} so far")
    axes.set_xlabel("evaluation")
    axes.set_ylabel(literal(page.objective))
    axes.legend(loc="best", frameon=False)
    tidy(axes)
    return figure


def shown(frame: pd.DataFrame, features: Collection[str] = ()) -> str:
    """An HTML table. Of a wide one the columns of the table of candidates that don't fit are left out, which is said."""
    frame = together(frame, features)
    inputs = [name for name in frame.columns[1:] if name in features]
    room = max(FEWEST_FEATURES, MOST_COLUMNS - (len(frame.columns) - len(inputs)))
    left_out = inputs[room:]
    frame = frame.drop(columns=left_out)
    said = f"<p>Not shown: {escape(', '.join(left_out))}.</p>" if left_out else ""
    lines = [[cell(value) for value in line] for line in frame.itertuples(index=False)]
    return f'<div class="wide">{table(list(frame.columns), lines)}</div>{said}'


def together(frame: pd.DataFrame, features: Collection[str] = ()) -> pd.DataFrame:
    """Expected values and their deviations in one column: 82.26 ± 0.65, with two digits of the deviation."""
    joined = frame.copy()
    for name in frame.columns:
        other = f"{name.removesuffix('expected')}deviation"
        if name.endswith("expected") and other in frame.columns and not {name, other} & set(features):
            joined[name] = [within(*pair) for pair in zip(frame[name], frame[other], strict=True)]
            joined = joined.drop(columns=other)
    return joined


def within(mean: float, deviation: float) -> str:
    """A number and its deviation as text, rounded to two digits of the deviation; nothing if they are not known."""
    if not (math.isfinite(mean) and math.isfinite(deviation)):
        return ""
    digits = 1 - math.floor(math.log10(deviation)) if deviation > 0 else 99
    if not -6 <= digits <= 6:
        return f"{mean:.6g} ± {deviation:.2g}"
    return " ± ".join(f"{round(value, digits):.{max(0, digits)}f}" for value in (mean, deviation))


def cell(value: object) -> str:
    """A cell as text: numbers with six digits, an empty text for an empty cell."""
    if isinstance(value, (float, np.floating)):
        return "" if np.isnan(value) else f"{value:.6g}"
    return "" if value is None or value is pd.NaT else str(value)


def tells_features(believed: Explanation) -> bool:
    """Whether the model has lengthscales and enough rows were measured to name the relevant columns."""
    return bool(believed.relevance.isfinite().all()) and believed.distinct >= ENOUGH


def hope(believed: Explanation, sign: float) -> str:
    """Whether other rows may be better than the recommended one. `sign` is −1 where the objective is minimised."""
    if not believed.rivals:
        return "By the model no other row can be better than the recommended one."
    rows = "1 other row" if believed.rivals == 1 else f"{believed.rivals:,} other rows"
    reach = f"{sign * believed.upper:.4g}"
    return f"By the model {rows} may still be better than the recommended one; the most hopeful could reach {reach}."


def sentences(believed: Explanation, objective: str) -> tuple[str, ...]:
    """Beliefs of the model about columns and noise, in the user's own units."""
    said = [f"One more measurement of a row would be off by about {believed.noise_std:.2g}, by the model."]
    relevance = believed.relevance
    if tells_features(believed):
        order = relevance.argsort(descending=True).tolist()[:5]
        named = ", ".join(f"{believed.names[j]} ({float(relevance[j]):.0%})" for j in order)
        said.append(f"What changes {objective} fastest is {named}.")
    return tuple(said)
