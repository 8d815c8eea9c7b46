"""Rewards that take two values, such as yes or no, recognised from the number, average and scatter of those of each point."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

# Each value comes at least so often: a single hit among zeros may be any number.
_FEWEST = 2
# Largest deviation from a whole number of higher values, and from their scatter, as a share of the number of rewards.
_TOLERANCE = 1e-6
# Largest deviation from a whole number in any case: a number is near a whole one by chance if its tolerance is not small.
_WHOLE = 1e-3


def two_values(weights: Tensor, averages: Tensor, scatter: Tensor) -> tuple[float, float] | None:
    """The lower and the higher value, if all rewards have one of two values, each at least twice, or else None.

    The sum of squared deviations of n rewards around their average ȳ is then n(ȳ − low)(high − ȳ), which two points with
    different averages solve for both values, and n(ȳ − low)/(high − low) is a whole number at each point.

    Args:
        weights: `u`, number of rewards of each point, > 0.
        averages: `u`, their average.
        scatter: `u`, sum of their squared deviations from it.
    """
    n, y, s = (t.detach().double().cpu().numpy() for t in (weights, averages, scatter))
    if not len(n):
        return None
    lowest, highest = int(y.argmin()), int(y.argmax())
    y, base = y - y[lowest], float(y[lowest])
    if y[highest] <= 64 * np.finfo(y.dtype).eps * abs(base):
        return None
    product = s[lowest] / n[lowest]
    middle = (s[highest] / n[highest] + y[highest] ** 2 - product) / y[highest] / 2
    half = math.sqrt(middle**2 + product)
    low, high = middle - half, middle + half
    part = (y - low) / (high - low)
    often = min((n * part).sum(), (n * (1 - part)).sum()) >= _FEWEST - _WHOLE
    whole = np.abs(n * part - np.round(n * part)) <= np.minimum(_TOLERANCE * n, _WHOLE)
    scattered = np.abs(s / (high - low) ** 2 - n * part * (1 - part)) <= _TOLERANCE * n
    return (base + low, base + high) if often and bool((whole & scattered).all()) else None
