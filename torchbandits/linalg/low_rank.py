"""V̂ = SᵀS + λI where S has few rows: computed by products with S only, never as an m x m matrix."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchbandits.errors import NumericalError, require
from torchbandits.types import Rect


class LowRankPrecision:
    r"""The ridge matrix of a sketch, from the eigenvectors of its small Gram matrix, S Sᵀ = Q diag(σ²) Qᵀ.

    With P = QᵀS, and without division by a singular value that may be 0,

    .. math:: V^{-1} = \tfrac1\lambda I - P^T D P = J J^T, \quad D = \mathrm{diag}\frac{1}{\lambda(\lambda + \sigma^2)}, \quad
              J = \tfrac{1}{\sqrt\lambda} (I - P^T H P), \quad
              H = \mathrm{diag}\frac{1}{\sqrt{\lambda + \sigma^2}(\sqrt{\lambda + \sigma^2} + \sqrt\lambda)}

    Args:
        rows: `batch_shape x r x m`, S; rows of zeros change nothing.
        regularization: λ > 0.

    Cost: O(r² m + r³).
    """

    def __init__(self, rows: Rect, regularization: float) -> None:
        gram = rows @ rows.mT
        require(
            bool(torch.isfinite(gram).all()), "the sketch of V is not finite: use features of a smaller range.", NumericalError
        )
        squares, Q = torch.linalg.eigh(gram)
        # Rounding may make a zero eigenvalue negative.
        squares = squares.clamp_min(0)
        self._rows, self._lam = Q.mT @ rows, regularization
        ridge, root = regularization + squares, (regularization + squares).sqrt()
        self._removed = 1 / (regularization * ridge).unsqueeze(-1)
        self._shrunk = 1 / (root * (root + math.sqrt(regularization))).unsqueeze(-1)
        self.size = rows.shape[-1]
        self.log_det = (squares / regularization).log1p().sum(dim=-1) + self.size * math.log(regularization)

    @property
    def explained(self) -> Tensor:
        """B with V⁻¹ = I/λ − BᵀB, `batch_shape x r x m`."""
        return self._removed.sqrt() * self._rows

    def whiten(self, features: Rect) -> Tensor:
        """Jᵀ z for features `batch_shape x m x n`; its squared column norms are zᵀV⁻¹z. Cost O(r m n)."""
        return (features - self._rows.mT @ (self._shrunk * (self._rows @ features))) / math.sqrt(self._lam)

    def solve(self, right: Rect) -> Tensor:
        """V⁻¹ `right`, `batch_shape x m x c`. Cost O(r m c)."""
        return right / self._lam - self._rows.mT @ (self._removed * (self._rows @ right))
