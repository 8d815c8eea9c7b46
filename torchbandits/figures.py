"""Style of all figures: colours, line styles, axes. Matplotlib is not imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which are distinguishable with any colour vision; the line styles help where lines meet and in print.
COLORS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#8C6D1F")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))


def tidy(axes: Axes) -> None:
    """Draw a light grid behind the curves, and no box."""
    axes.grid(visible=True, which="major", color="0.9")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw_front(
    axes: Axes,
    measured: NDArray[np.float64],
    best: NDArray[np.bool_],
    expected: NDArray[np.float64],
    deviation: NDArray[np.float64],
    *,
    small: bool,
    steps: bool,
) -> None:
    """Draw trade-offs between two outcomes.

    Args:
        axes: To draw on; labels are the caller's.
        measured: `n x 2`, what was measured of each point.
        best: `n` booleans, the points that no other one beats.
        expected, deviation: `f x 2`, posterior means of the front and their standard deviations.
        small: Whether less of the first outcome is better.
        steps: Whether to join the best points by steps, which bound what they beat: for two objectives.
    """
    axes.plot(*measured[~best].T, "o", color=COLORS[2], markersize=4, label="measured")
    front = measured[best][np.argsort(measured[best][:, 0], kind="stable")]
    axes.plot(*front.T, "o", color=COLORS[0], markersize=5, label="measured, beaten by none")
    if steps:
        axes.step(*front.T, where="post" if small else "pre", color=COLORS[0], linewidth=1)
    (x, y), (across, up) = expected.T, deviation.T
    axes.errorbar(x, y, up, across, fmt="s", color=COLORS[4], ecolor="0.8", markersize=3, label="expected front")
