"""Which scores count as equal, and why the loop over the leaders of a batch comes back."""

from __future__ import annotations

import numpy as np
from torch import Tensor

# Scores closer than this to the best (relative) are equal, and the lowest index wins.
TIE = 16 * np.finfo(np.float64).eps

# Why the loop came back.
REFRESH, FULL, BROKEN, EXHAUSTED = 0, 1, 2, 3  # another arm may be better; no picks left; rule; nothing to learn


def best_arm(score: Tensor) -> Tensor:
    """Lowest index among the scores within 16 eps of the best, `batch_shape x A` to `batch_shape`. Cost O(A)."""
    best = score.amax(dim=-1, keepdim=True)
    return (score >= best - TIE * best.abs()).byte().argmax(dim=-1)
