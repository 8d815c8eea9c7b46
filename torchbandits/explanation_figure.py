"""Figure of an explanation: relevance of the features."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from torchbandits.errors import UnsupportedError, require
from torchbandits.explanation import Explanation
from torchbandits.figures import COLORS, tidy

_MOST = 30


def draw(explanation: Explanation) -> Figure:
    """Draw horizontal bars, the largest on top. Raises `UnsupportedError` for a kernel without lengthscales."""
    relevance = explanation.relevance
    require(bool(relevance.isfinite().all()), "the kernel has no lengthscales: there is nothing to draw.", UnsupportedError)
    order = relevance.argsort(descending=True)[:_MOST].tolist()
    figure = Figure(figsize=(6.4, 1.2 + 0.28 * len(order)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.barh([explanation.names[j] for j in order], [100 * float(relevance[j]) for j in order], color=COLORS[5])
    axes.invert_yaxis()
    axes.set_xlabel("how fast the reward changes along the feature (% of all)")
    axes.set_title(f"What matters, after {explanation.pulls:g} rewards", fontsize="medium", loc="left")
    tidy(axes)
    return figure
