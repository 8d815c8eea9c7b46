"""The best arm up to a tolerance within which scores are tied, and the reasons why the loop over the leaders returns."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchbandits.transfers import to_device

# Scores within this relative distance of the best are tied, and the lowest index wins.
TIE = 16 * np.finfo(np.float64).eps

# Reasons for the loop to return: an arm outside the leaders may be better; all picks are made; the batch rule is broken; the
# last pick had no variance left.
REFRESH, FULL, BROKEN, EXHAUSTED = 0, 1, 2, 3


def best_arm(score: Tensor, best: Tensor | None = None) -> Tensor:
    """Lowest index among the scores within 16 eps of the best, `batch_shape x A` to `batch_shape`. `best` is the best score,
    `batch_shape`, on the host, if it is already known there. Cost O(A)."""
    if best is not None:
        least = torch.sub(best, best.abs(), alpha=TIE)
        # A device reads a single number with the operation.
        if least.dim():
            (least,) = to_device(score.device, least.unsqueeze(-1))
        return (score >= least).view(torch.uint8).argmax(dim=-1)
    best = score.amax(dim=-1, keepdim=True)
    # TIE is a power of two, so the product is exact. `argmax` is not defined for booleans, hence the view as bytes.
    return (score >= torch.sub(best, best.abs(), alpha=TIE)).view(torch.uint8).argmax(dim=-1)
