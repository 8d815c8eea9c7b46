"""Factors of an exact posterior for a sweep over many points, by one Cholesky factorisation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchbandits.posteriors.seen import upper_inverse
from torchbandits.types import PerPoint, Rect, Square


class ExactFactors(NamedTuple):
    r"""The weights of kernel columns in the means and leverages of an exact posterior, see `SweepFactors`.

    .. math:: N N^T = A^{-1} / \lambda, \quad a = A^{-1} \bar y, \quad A = K + \lambda\,\mathrm{diag}(n)^{-1}

    They take a sixth of the time of `Factors`, which also hold features of the points and are updated by pulls. They are more
    accurate, because A has no eigenvalue below λ / max n where K may be singular.

    Attributes:
        N: `batch_shape x u x u`, lower triangular; 0 in rows of points without pulls.
        a: `batch_shape x u x c`; 0 for points without pulls.
        log_det: `batch_shape`, log det(V/λ) = log det A − Σ log(λ/n).
        good: `batch_shape`, where all pivots of A exceed rounding errors of K; None if they do everywhere.
    """

    N: Square
    a: Rect
    log_det: Tensor
    good: Tensor | None

    @staticmethod
    def of(K_uu: Square, weights: PerPoint, targets: Rect, regularization: float) -> ExactFactors:
        """Factorise, given the kernel matrix of the points (any values in places of points without pulls), their weights
        `batch_shape x u`, and regression targets `batch_shape x u x c`. Cost O(u³), with one wait for a device."""
        live, u = weights > 0, weights.shape[-1]
        scale = torch.where(live, K_uu.diagonal(dim1=-2, dim2=-1), 0.0).amax(dim=-1, keepdim=True)
        A, noise = with_noise(K_uu, weights, regularization, scale)
        # The factor of the points in reverse order is upper triangular in their own, and N then lower triangular.
        factor, failed = torch.linalg.cholesky_ex(A.flip(-2, -1))
        pivots = factor.diagonal(dim1=-2, dim2=-1)
        least = max(64, u) * torch.finfo(A.dtype).eps * scale.squeeze(-1)
        # A NaN in the matrix is one of a pivot, and fails the comparison.
        good = (failed == 0) & (pivots.square().amin(dim=-1) > least)
        N = upper_inverse(factor).flip(-2, -1).mul_(regularization**-0.5)
        means = torch.where(live.unsqueeze(-1), targets / weights.unsqueeze(-1), 0.0)
        a = torch.cholesky_solve(means.flip(-2), factor).flip(-2)
        log_det = 2 * pivots.log().sum(dim=-1) - noise.log().sum(dim=-1)
        return ExactFactors(torch.where(live.unsqueeze(-1), N, 0.0), a, log_det, None if bool(good.all()) else good)


def with_noise(K_uu: Square, weights: PerPoint, regularization: float, without: Tensor | float) -> tuple[Square, PerPoint]:
    """A = K + λ diag(n)⁻¹, the covariance of average rewards, and its noise variances λ/n, `batch_shape x u`.

    Points without pulls are independent of all others, and have the variance and noise `without`.
    """
    live = weights > 0
    noise = torch.where(live, regularization / weights, without)
    A = torch.where(live.unsqueeze(-1) & live.unsqueeze(-2), K_uu, 0.0)
    A.diagonal(dim1=-2, dim2=-1).add_(noise)
    return A, noise
