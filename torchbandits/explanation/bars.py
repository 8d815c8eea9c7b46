"""The figure of an explanation: how much each feature matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchbandits.errors import UnsupportedError, require
from torchbandits.explanation.words import by_name
from torchbandits.figures import COLORS, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DRAWN = 30  # features in a figure


def bars(panels: Mapping[str, tuple[Tensor, str]], names: Sequence[str]) -> Figure:
    """Horizontal bars of relevances beside each other: by the title of a panel the relevances, `d`, and the label of the axis.

    Features are in the order of their largest relevance in any panel; at most thirty.

    Raises:
        UnsupportedError: If Matplotlib is not installed, or all relevances are NaN.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - of an extra, and slow to load
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedError("figures need Matplotlib: pip install 'torchbandits[experiments]'.") from error
    known = {title: (by_name(own, names)[0], along) for title, (own, along) in panels.items() if bool(own.isfinite().all())}
    names = list(dict.fromkeys(names))
    require(bool(known), "the kernel has no lengthscales: there is nothing to draw.", UnsupportedError)
    largest = torch.stack([relevance for relevance, _ in known.values()]).amax(dim=0)
    order = largest.argsort(descending=True)[:_DRAWN].tolist()
    figure = Figure(figsize=(2.4 + 4 * len(known), 1.2 + 0.28 * len(order)), layout="constrained")
    FigureCanvasAgg(figure)
    every = figure.subplots(1, len(known), sharey=True, squeeze=False)[0]
    for axes, (title, (relevance, along)) in zip(every, known.items(), strict=True):
        axes.barh([_literal(names[j]) for j in order], [100 * float(relevance[j]) for j in order], color=COLORS[5])
        axes.set_xlabel(_literal(along))
        axes.set_title(_literal(title), fontsize="medium", loc="left")
        tidy(axes)
    every[0].invert_yaxis()
    return figure


def _literal(text: str) -> str:
    """Text that Matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")
