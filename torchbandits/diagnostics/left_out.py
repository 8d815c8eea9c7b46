"""Every distinct point predicted without its own pulls, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.diagnostics.evidence import factors_of
from torchbandits.posteriors import GaussianProcess, Regression


@dataclass(frozen=True)
class LeftOut:
    r"""Predictions of f at the u distinct points from the averages ȳ of the others, under M = ZᵀZ + R + λN⁻¹.

    R holds the residuals r = k(x,x) − \|z\|²: zero for an exact posterior and for finite features. For a sparse one this is
    FITC, not the DTC of the policy: DTC takes the residuals of other points for information, so that under a small dictionary
    a right kernel would look wrong (measured at q̄ = 1: mean square 2.0 instead of 1).
    With ñ = λ/(r + λ/n), V = Z Ñ Zᵀ + λI and h_i = ñ_i zᵢᵀV⁻¹zᵢ,

    .. math:: \bar y_i - \mu_{-i} = \frac{\bar y_i - \mu_i}{1 - h_i}, \quad
              \sigma_{-i}^2 = r_i + \lambda \frac{z_i^T V^{-1} z_i}{1 - h_i}, \quad
              \mathrm{cov}(i, j) = -\lambda \frac{z_i^T V^{-1} z_j}{(1 - h_i)(1 - h_j)}

    Attributes:
        mean, variance: `batch_shape x u`, of f without the point's own pulls, reward units (squared).
        fitted: `batch_shape x u`, the mean with them.
        own: `batch_shape x u`, r + λ/n, reward units squared.
        prior: `batch_shape x u`, k(x, x).
        directions: `batch_shape x m x u`, whose products are −cov.
    """

    mean: Tensor
    variance: Tensor
    fitted: Tensor
    own: Tensor
    prior: Tensor
    directions: Tensor

    def covariance(self, part: slice) -> Tensor:
        """Covariances of the errors of some points with those of all, `batch_shape x part x u`; the diagonal is not theirs."""
        return -(self.directions[..., part].mT @ self.directions)


def left_out(process: GaussianProcess, mask: Tensor, average: Tensor) -> LeftOut:
    """Predict every point (`batch_shape x u`, those of the mask) from the averages of the others. Cost O(u m² + m³)."""
    statistics, lam = process.statistics, process.regularization
    n, x = torch.where(mask, statistics.weights, 1.0), statistics.points
    with factors_of(process) as fit:
        z, regression = fit.features, fit.regression
        diagonal = fit.embedding.diagonal(x)
        explained = z.square().sum(dim=-2)
        residual = (diagonal - explained).clamp_min(0) if process.sparse else torch.zeros_like(explained)
        weights = n / (1 + n * residual / lam)
        if process.sparse:
            told = torch.where(mask, weights, 0.0)
            regression = Regression(z.mT, told, process.targets_of(told, told * average), lam)
        whitened = regression.precision.whiten(z)
        channels = regression.mean(z)
    leverage = whitened.square().sum(dim=-2)
    # 1 − h cancels for a point that no other tells about: no more than the prior can be unlearned.
    kept = torch.maximum(1 - weights * leverage, lam * leverage / explained.clamp_min(1e-300))
    kept = torch.where(mask, kept, 1.0).clamp(1e-300, 1.0)
    fitted = process.reward_mean(channels)
    return LeftOut(
        mean=average - _residual(process, average, channels, fitted, kept),
        variance=residual + lam * leverage / kept,
        fitted=fitted,
        own=residual + lam / n,
        prior=diagonal,
        directions=lam**0.5 * whitened / kept.unsqueeze(-2),
    )


def _residual(process: GaussianProcess, average: Tensor, channels: Tensor, fitted: Tensor, kept: Tensor) -> Tensor:
    """Average minus the mean without the point, `batch_shape x u`. An estimated prior mean leaves the point out too."""
    if process.prior_mean != "estimate":
        return (average - fitted) / kept
    statistics = process.statistics
    others = statistics.pulls.unsqueeze(-1) - statistics.weights
    mu = (statistics.sums.sum(dim=-1, keepdim=True) - statistics.sums) / others.clamp_min(1e-300)
    mu = torch.where(others > 1e-9 * statistics.weights, mu, 0.0)
    return (average - channels[..., 0, :]) / kept - mu * (1 - channels[..., 1, :]) / kept
