"""Scrambled Sobol points that do not depend on the default dtype of torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine


def sobol_points(size: int, dim: int, seed: int) -> Tensor:
    """The first scrambled Sobol points of the unit cube, `size x dim`, float64."""
    points: Tensor = SobolEngine(dim, scramble=True, seed=seed).draw(size, dtype=torch.float64)
    # torch rounds the first point, and only that one, to its default dtype, which is usually float32.
    points[:1] = points[:1].float()
    return points
