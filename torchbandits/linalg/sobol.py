"""Scrambled Sobol points, the same whatever torch's default dtype is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine


def sobol_points(size: int, dim: int, seed: int) -> Tensor:
    """The first scrambled Sobol points of the unit cube, `size x dim`, float64."""
    points: Tensor = SobolEngine(dim, scramble=True, seed=seed).draw(size, dtype=torch.float64)
    points[:1] = points[:1].float()  # torch rounds the first point, and no other, to its default dtype, mostly float32
    return points
