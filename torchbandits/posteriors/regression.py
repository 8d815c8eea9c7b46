"""Gaussian linear regression in feature space: V = ZᵀNZ + λI, w = V⁻¹Zᵀs."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.errors import NumericalError, require
from torchbandits.linalg import Graded, LowRankPrecision, Precision, cholesky, matmul_into, solve_lower, uneven
from torchbandits.types import PerPoint, Rect, Square

# Number of columns per row of a factor from which a product with its inverse takes less time than a solve on the host.
_WIDE = 16


@dataclass(frozen=True)
class Conditioning:
    """The effect of p further pulled points on leverages and means, from leverage-scale covariances alone.

    With C the covariance before and N the pulls, M = I + √N C_PP √N = L Lᵀ, and each leverage falls by the squared columns of
    G(x) = L⁻¹√N C_P(x). The same identity holds for hallucinated and observed pulls, a frozen dictionary (C = zᵀV⁻¹z) and the
    exact posterior (C = k̃). Pulls of weight 0 change nothing.

    Attributes:
        factor: `batch_shape x p x p`, L.
        root_weights: `batch_shape x p`, √N.
    """

    factor: Tensor
    root_weights: Tensor

    @staticmethod
    def on(covariance: Square, weights: PerPoint) -> Conditioning:
        """Condition on points with leverage-scale covariance `batch_shape x p x p` and the given pulls. Cost O(p³)."""
        root = weights.clamp_min(0).sqrt()
        if covariance.shape[-1] == 1:
            return Conditioning((1 + root.square().unsqueeze(-1) * covariance.clamp_min(0)).sqrt(), root)
        eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
        factor, good = cholesky(eye + root.unsqueeze(-1) * covariance * root.unsqueeze(-2))
        broken = good is not None and bool((~good & ~factor.isnan().any(dim=-1).any(dim=-1)).any())
        require(
            not broken,
            "the covariance of the new pulls lost positive definiteness: use float64, or a larger regularization.",
            NumericalError,
        )
        return Conditioning(factor, root)

    def directions(self, cross: Rect, out: Tensor | None = None) -> Tensor:
        """G = L⁻¹√N C_P(x), `batch_shape x p x n`, for cross covariances `batch_shape x p x n`, written to `out` if given. Cost
        O(p² n)."""
        if self.factor.shape[-1] == 1:
            return torch.mul(cross, (self.root_weights / self.factor.squeeze(-1)).unsqueeze(-1), out=out)
        if cross.device.type == "cpu" and cross.shape[-1] > _WIDE * cross.shape[-2]:
            factor = solve_lower(self.factor, torch.diag_embed(self.root_weights))
            return factor @ cross if out is None else matmul_into(factor, cross, out)
        found = solve_lower(self.factor, self.root_weights.unsqueeze(-1) * cross)
        return found if out is None else out.copy_(found)

    def innovations(self, sums: Rect, mean: Rect) -> Tensor:
        """L⁻¹(s − n μ_P)/√N, `batch_shape x p x c`; the mean changes by Gᵀ times this."""
        root = self.root_weights.unsqueeze(-1)
        right = torch.where(root > 0, sums / root - root * mean, 0.0)
        return right / self.factor if self.factor.shape[-1] == 1 else solve_lower(self.factor, right)

    @property
    def log_det(self) -> Tensor:
        """log det(I + √N C √N), `batch_shape`: the increase of log det(V/λ) by the pulls."""
        return 2 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)


class Regression:
    """Ridge regression of c targets on features, updated by pulls.

    Args:
        features: `batch_shape x u x m`, z of the distinct points.
        weights: `batch_shape x u`, number of pulls of each point.
        targets: `batch_shape x u x c`, reward sums of each point.
        regularization: λ > 0.
        sketched: Replaces V, and takes no updates.

    Weights that differ by orders of magnitude are regressed in `Graded` coordinates, because light points would be lost in V to
    the rounding errors of heavy ones.

    Cost: O(u m² + m³), or O(u m) if V is sketched.
    """

    def __init__(
        self,
        features: Rect,
        weights: PerPoint,
        targets: Rect,
        regularization: float,
        sketched: LowRankPrecision | None = None,
    ) -> None:
        self.regularization = regularization
        self.graded = Graded.of(features, weights) if sketched is None and uneven(weights) else None
        if self.graded is None:
            self.precision = _ridge(features, weights, regularization) if sketched is None else sketched
            self.moment = features.mT @ targets
            self.coefficients = self.precision.solve(self.moment)
        else:
            eye = torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
            self.precision = Precision(self.graded.gram(weights) + regularization * eye, self.graded.basis)
            self.coefficients = self.solved(features, targets)

    @staticmethod
    def of(precision: Precision, moment: Rect, coefficients: Rect, regularization: float) -> Regression:
        """A regression with known factors: V, Zᵀs `batch_shape x m x c` and w `batch_shape x m x c`."""
        regression = Regression.__new__(Regression)
        regression.regularization, regression.graded, regression.precision = regularization, None, precision
        regression.moment, regression.coefficients = moment, coefficients
        return regression

    def solved(self, features: Rect, targets: Rect) -> Tensor:
        """V⁻¹Zᵀ `targets`, `batch_shape x m x c`, for other targets `batch_shape x u x c` at the points. O((u + m) m c)."""
        if self.graded is None:
            return self.precision.solve(features.mT @ targets)
        return self.graded.basis @ torch.cholesky_solve(self.graded.moment(targets), self._own_precision.current_factor)

    def update_(self, features: Rect, weights: PerPoint, targets: Rect) -> Regression:
        """Add k points (`batch_shape x k x m`) with weights and target sums, unless V is graded. Cost O(k m²)."""
        assert self.graded is None
        self._own_precision.update_(features, weights)
        self.moment = self.moment + features.mT @ targets
        self.coefficients = self.precision.solve(self.moment)
        return self

    def grow_(self) -> Regression:
        """Add a coordinate that no pull has used, unless V is graded. V becomes block diagonal with λ. Cost O(m²)."""
        assert self.graded is None
        precision, m = self._own_precision, self.precision.size
        pad = torch.nn.functional.pad
        for name, corner in (("matrix", self.regularization), ("root", self.regularization**-0.5)):
            grown = pad(getattr(precision, name), (0, 1, 0, 1))
            grown[..., m, m] = corner
            setattr(precision, name, grown)
        precision.drop_factor_()
        precision.log_det = precision.log_det + torch.log(torch.as_tensor(self.regularization, dtype=torch.float64))
        self.moment, self.coefficients = pad(self.moment, (0, 0, 0, 1)), pad(self.coefficients, (0, 0, 0, 1))
        return self

    @property
    def _own_precision(self) -> Precision:
        assert isinstance(self.precision, Precision)
        return self.precision

    def detached(self) -> Regression:
        """A copy that is not affected by later updates of this one. No memory is copied."""
        twin = copy.copy(self)
        twin.precision = copy.copy(self.precision)
        return twin

    def mean(self, features: Rect) -> Tensor:
        """zᵀw, `batch_shape x c x n`, for features `batch_shape x m x n`."""
        return self.coefficients.mT @ features

    def leverage(self, features: Rect) -> Tensor:
        """zᵀV⁻¹z, `batch_shape x n`, without the residual that the features miss."""
        return self.precision.whiten(features).square().sum(dim=-2)


def _ridge(features: Rect, weights: PerPoint, regularization: float) -> Precision:
    """V = ZᵀNZ + λI."""
    scaled = features * weights.clamp_min(0).sqrt().unsqueeze(-1)
    eye = torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
    return Precision(scaled.mT @ scaled + regularization * eye)
