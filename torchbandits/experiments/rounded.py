"""Numbers as text, rounded for reading."""

from __future__ import annotations

import math

import numpy as np


def digits(value: float) -> str:
    """A number with three digits, without an exponent from 0.0001 to a million."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        places = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
        return f"{value:,.{places}f}"
    return f"{value:.2e}"


def number(value: float) -> str:
    """A number with three digits, or – if it is unknown."""
    return "–" if np.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def spread(mean: float, error: float) -> str:
    """A mean, with its standard error if that is known."""
    return number(mean) if np.isnan(error) else f"{number(mean)} ± {number(error)}"
