"""Batched, masked linear algebra: the one seam between the formulas and LAPACK.

`InverseRoot` is a square root of a pseudo-inverse (Cholesky where it is accurate, eigenvectors where not), `Precision`
the ridge regression matrix V = ZᵀNZ + λI with rank-k updates, `LowRankPrecision` that of a sketch, `append_row` grows a
Cholesky factor by one point.
"""

from torchbandits.linalg.low_rank import LowRankPrecision
from torchbandits.linalg.precision import Precision, shrinkage_root
from torchbandits.linalg.roots import InverseRoot, append_row, cholesky, covariance_root, inverse_root, solve_lower

__all__ = [
    "InverseRoot",
    "LowRankPrecision",
    "Precision",
    "append_row",
    "cholesky",
    "covariance_root",
    "inverse_root",
    "shrinkage_root",
    "solve_lower",
]
