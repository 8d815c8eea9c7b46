"""HTML page of a campaign of several outcomes: the front, its progress, the rows, and decisions on columns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from torchbandits.campaigns.page import pending_and_columns, shown
from torchbandits.experiments.page import document, escape, image
from torchbandits.experiments.printable import literal
from torchbandits.experiments.trade_offs import MOST_PAIRS, averages_of, beaten_by_none, indicators, trade_offs
from torchbandits.figures import COLORS, tidy
from torchbandits.files import write_text

MOST_FRONT = 50
"""Number of rows of the front that are listed."""


@dataclass(frozen=True)
class OutcomePage:
    """Content of the page of a campaign of several outcomes.

    Attributes:
        title, facts: Title of the page, and the line below it.
        objectives: "maximize" or "minimize" by the name of each objective.
        at_least, at_most: Limits by the name of their outcome.
        outcomes: Names of all outcomes, those that are known for all rows last.
        rows: The row of the table of each result, in the order told.
        values: The results in this order, `n x k`, NaN where not measured.
        front: Table of the front, or of the best rows under limits.
        expected: The expected value and the deviation of each outcome in the rows of this table; a known one has no deviation.
        opened, columns: Tables of open rows and decisions.
        doubt: A warning that is shown above the front.
        explained: What was learned of each outcome, in one sentence or two.
        relevance: Figure of the columns that matter for each outcome, if they are known.
    """

    title: str
    facts: str
    objectives: dict[str, str]
    at_least: dict[str, float]
    at_most: dict[str, float]
    outcomes: tuple[str, ...]
    rows: NDArray[np.int64]
    values: NDArray[np.float64]
    front: pd.DataFrame
    expected: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
    opened: pd.DataFrame
    columns: pd.DataFrame
    doubt: str = ""
    explained: tuple[str, ...] = ()
    relevance: Figure | None = None

    def signed(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The objectives of results, `n x m`, with signs so that larger is better; NaN where a result breaks a limit or was not
        measured."""
        columns = [self.outcomes.index(name) for name in self.objectives]
        sign = np.array([-1.0 if aim == "minimize" else 1.0 for aim in self.objectives.values()])
        kept = np.ones(len(values), bool)
        for limits, direction in ((self.at_least, 1.0), (self.at_most, -1.0)):
            for name, limit in limits.items():
                kept &= direction * values[:, self.outcomes.index(name)] >= direction * limit
        return np.where(kept[:, None], sign * values[:, columns], np.nan)

    def so_far(self) -> NDArray[np.float64]:
        """After each result the averages of its row, `n x k`: outcomes of a row may be measured on different days."""
        found, none = np.full(self.values.shape, np.nan), np.zeros(len(self.outcomes))
        of_row: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        for place, row in enumerate(self.rows.tolist()):
            sums, counts = of_row.setdefault(row, (none.copy(), none.copy()))
            known = ~np.isnan(self.values[place])
            sums[known] += self.values[place][known]
            counts += known
            np.divide(sums, counts, out=found[place], where=counts > 0)
        return found


def write_outcomes(page: OutcomePage, path: Path) -> None:
    """Write the page atomically. Raises `DataError` if it cannot be written."""
    write_text(path, html(page))


def html(page: OutcomePage) -> str:
    """The page as HTML."""
    features = set(page.columns["column"])
    several = len(page.objectives) > 1
    front = shown(page.front[:MOST_FRONT], features)
    if not len(page.front):
        front = "<p>No row keeps the limits with a probability of 95 % yet.</p>"
    elif len(page.front) > MOST_FRONT:
        front += (
            f"<p>The first {MOST_FRONT} of {len(page.front):,} rows: front() has them all (torchbandits campaign front).</p>"
        )
    front = (f"<p>{escape(page.doubt)}</p>" if page.doubt else "") + front
    figures = "".join(image(alt, figure) for alt, figure in pictures(page).items())
    matter = "" if page.relevance is None else image("columns that matter", page.relevance)
    parts = [
        f'<h2>Trade-offs and progress</h2><div class="figures">{figures}</div>',
        f"<h2>{'The front: rows that no other row is expected to beat' if several else 'Best rows'}</h2>{front}",
        f"<h2>What was learned</h2>{''.join(f'<p>{escape(line)}</p>' for line in page.explained)}{matter}",
        pending_and_columns(page.opened, page.columns),
    ]
    return document(page.title, page.facts, parts)


def pictures(page: OutcomePage) -> dict[str, Figure]:
    """The trade-offs between pairs of outcomes, and the progress, by their descriptions."""
    objectives = list(page.objectives)
    limited = [name for name in page.outcomes if name not in objectives]
    pairs = list(combinations(objectives, 2)) or [(name, objectives[0]) for name in limited]
    found = {f"{x} and {y} of each row, and the expected front": traded(page, x, y) for x, y in pairs[:MOST_PAIRS]}
    return found | {"progress with the evaluations": progress(page)}


def traded(page: OutcomePage, x: str, y: str) -> Figure:
    """Two outcomes of each measured row, the measured front, and the expected one."""
    averages = averages_of(page.rows, page.values)
    expected, deviation = (np.column_stack(pair) for pair in zip(page.expected[x], page.expected[y], strict=True))
    limits = [tuple(part[name] for part in (page.at_least, page.at_most) if name in part) for name in (x, y)]
    return trade_offs(
        (x, y),
        averages[:, [page.outcomes.index(x), page.outcomes.index(y)]],
        beaten_by_none(page.signed(averages)),
        small=page.objectives.get(x) == "minimize",
        steps=set(page.objectives) == {x, y},
        expected=expected,
        deviation=deviation,
        limits=(limits[0], limits[1]),
    )


def progress(page: OutcomePage) -> Figure:
    """Hypervolume and R2 of the rows measured so far, for several objectives; for one objective, the best row that kept the
    limits. A row that was measured again counts with its average so far."""
    values = page.so_far()
    signed = page.signed(values)
    if len(page.objectives) > 1:
        return indicators(signed)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    t, good = np.arange(1, len(signed) + 1), ~np.isnan(signed).any(axis=1)
    ((name, aim),) = page.objectives.items()
    column, sign = values[:, page.outcomes.index(name)], -1.0 if aim == "minimize" else 1.0
    axes.plot(t[good], column[good], "o", color=COLORS[2], markersize=4, label="measured, limits kept")
    axes.plot(t[~good], column[~good], "x", color="0.6", markersize=4, label="measured, limits broken or not known")
    axes.step(t, sign * np.fmax.accumulate(signed[:, 0]), where="post", color=COLORS[0], label="best so far")
    axes.set_xlabel("evaluation")
    axes.set_ylabel(literal(name))
    axes.legend(loc="best", frameon=False)
    tidy(axes)
    return figure
