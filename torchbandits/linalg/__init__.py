"""Batched, masked linear algebra: the one seam between the formulas and LAPACK.

`InverseRoot` is a square root of a pseudo-inverse (Cholesky where it is accurate, eigenvectors where not), `Precision`
the ridge regression matrix V = ZᵀNZ + λI with rank-k updates, `Graded` its coordinates where weights differ by orders of
magnitude, `LowRankPrecision` that of a sketch, `append_row` grows a Cholesky factor by one point, `staircase_product`
leaves out the zeros of a triangular factor. `sobol_points` are scrambled Sobol points of the unit cube.
"""

from torchbandits.linalg.graded import MOST_UNEVEN, Graded, uneven
from torchbandits.linalg.low_rank import LowRankPrecision
from torchbandits.linalg.precision import Precision, shrinkage_root
from torchbandits.linalg.roots import InverseRoot, append_row, cholesky, covariance_root, inverse_root, solve_lower
from torchbandits.linalg.sobol import sobol_points
from torchbandits.linalg.triangular import LEAF, staircase_product

__all__ = [
    "LEAF",
    "MOST_UNEVEN",
    "Graded",
    "InverseRoot",
    "LowRankPrecision",
    "Precision",
    "append_row",
    "cholesky",
    "covariance_root",
    "inverse_root",
    "shrinkage_root",
    "sobol_points",
    "solve_lower",
    "staircase_product",
    "uneven",
]
