"""HTML page of a campaign: the recommended row, progress, what the model knows, best and open rows, decisions on columns."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from torchbandits.display import within
from torchbandits.experiments.page import document, escape, image, table
from torchbandits.experiments.printable import literal
from torchbandits.figures import COLORS, tidy
from torchbandits.files import write_text

MOST_COLUMNS, FEWEST_FEATURES = 14, 4
"""Number of columns above which some of the table of candidates are left out, and the number of those always shown."""
MOST_PREDICTED = 1_000
"""Number of different measured rows above which their predictions are left out, since their cost is cubic in this number."""
ENOUGH = 5
"""Number of different measured rows below which their predictions are left out."""


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
    explained = "".join(f"<p>{escape(line)}</p>" for line in page.explained)
    parts = [
        f'<h2>Recommended row</h2><div class="wide facing">{facing(page.best, features)}</div>{explained}',
        f'<h2>Progress and what was learned</h2><div class="figures">{pictures(page)}</div>{held(page.predicted)}',
        f"<h2>Best rows</h2>{shown(page.best, features)}",
        pending_and_columns(page.opened, page.columns),
    ]
    return document(page.title, page.facts, parts)


def pending_and_columns(opened: pd.DataFrame, columns: pd.DataFrame) -> str:
    """The last parts of the page of a campaign: tables of the pending rows, and of the decisions on columns."""
    none = "<p>No row is pending: ask for the next rows.</p>"
    rows = shown(opened, set(columns["column"])) if len(opened) else none
    return f"<h2>Pending rows</h2>{rows}<h2>How the columns were taken</h2>{shown(columns)}"


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
    return "".join(image(alt, figure) for alt, figure in figures.items())


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
            # An expected value stands alone while nothing is known of its deviation.
            joined[name] = [within(*pair) or cell(pair[0]) for pair in zip(frame[name], frame[other], strict=True)]
            joined = joined.drop(columns=other)
    return joined


def cell(value: object) -> str:
    """A cell as text: numbers with six digits, dates without a time of midnight, an empty text for an empty cell."""
    if isinstance(value, (float, np.floating)):
        return "" if np.isnan(value) else f"{value:.6g}"
    if isinstance(value, pd.Timestamp) and value == value.normalize():
        return str(value.date())
    return "" if value is None or value is pd.NaT else str(value)
