"""Batched, masked linear algebra on top of LAPACK.

`InverseRoot` is a square root of a pseudo-inverse (Cholesky where it is accurate, eigenvectors where it is not). `Precision` is
the ridge regression matrix V = ZᵀNZ + λI with rank-k updates, `Graded` holds its coordinates where weights differ by orders of
magnitude, and `LowRankPrecision` is its counterpart for a sketch. `append_row` extends a Cholesky factor by one point,
`triangular_product` skips the zeros of a triangular factor, and `sobol_points` are scrambled Sobol points of the unit cube.
"""

from torchbandits.linalg.graded import MOST_UNEVEN, Graded, uneven
from torchbandits.linalg.low_rank import LowRankPrecision
from torchbandits.linalg.precision import Precision, shrinkage_root
from torchbandits.linalg.roots import InverseRoot, append_row, cholesky, covariance_root, inverse_root, solve_lower
from torchbandits.linalg.sobol import sobol_points
from torchbandits.linalg.triangular import LEAF, STRIPE, matmul_into, triangular_product

__all__ = [
    "LEAF",
    "MOST_UNEVEN",
    "STRIPE",
    "Graded",
    "InverseRoot",
    "LowRankPrecision",
    "Precision",
    "append_row",
    "cholesky",
    "covariance_root",
    "inverse_root",
    "matmul_into",
    "shrinkage_root",
    "sobol_points",
    "solve_lower",
    "triangular_product",
    "uneven",
]
