r"""Chance under a right model: bands for coverage, intervals for variances.

Errors of a Gaussian process at nearby points are correlated, so n residuals are worth fewer than n coins. For standard normal
residuals of correlation ρ the indicators of \|z\| ≤ c have correlation Σ ρ^k b_k over even k, with b_k ≥ 0 of sum 1 (their
Hermite expansion): at most ρ², whatever c. So coverage varies at most as that of

.. math:: n_{eff} = n^2 / \sum_{ij} \rho_{ij}^2

coins, which is also what the mean square of the residuals is worth. The band is the binomial one of so many coins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

FALSE_ALARM = 1e-3
"""Probability that a diagnostic warns about a batch row whose model is right."""

_CHUNK = 1 << 22  # most numbers of a part of a covariance matrix


def half_widths(levels: Sequence[float]) -> Tensor:
    """z of each level: a standard normal lies within ±z with that probability, `L`."""
    return torch.special.ndtri((1 + torch.tensor(levels, dtype=torch.float64)) / 2)


def effective_size(covariance: Callable[[slice], Tensor], std: Tensor, mask: Tensor) -> Tensor:
    """n²/Σρ², `batch_shape`.

    Args:
        covariance: Given places, the covariance of their errors with those of all, `batch_shape x part x n`. Its diagonal
            is not read.
        std: `batch_shape x n`, standard deviations of the errors.
        mask: `batch_shape x n`, False for places to leave out.

    Cost: O(n²), in parts that take bounded memory.
    """
    n, count = std.shape[-1], mask.sum(dim=-1).double()
    shared = torch.zeros_like(count)
    step = max(1, _CHUNK // max(1, n * std.shape[:-1].numel()))
    scale = torch.where(mask, 1 / std, 0.0)
    place = torch.arange(n, device=std.device)
    for start in range(0, n, step):
        part = slice(start, start + step)
        correlation = covariance(part) * scale[..., part].unsqueeze(-1) * scale.unsqueeze(-2)
        squared = correlation.square().clamp_max(1.0).masked_fill(place[part].unsqueeze(-1) == place, 0.0)
        shared = shared + squared.sum(dim=(-2, -1))
    return (count.square() / (count + shared)).nan_to_num(0.0)


def least_effective_size(share: Tensor, mask: Tensor) -> Tensor:
    """Lower bound on n²/Σρ² if only variances are known, `batch_shape`: ρ_ij² ≤ s_i s_j for the shares s of the variance that
    errors may have in common (`batch_shape x n`). Cost O(n)."""
    count, s = mask.sum(dim=-1).double(), torch.where(mask, share.clamp(0.0, 1.0), 0.0)
    shared = s.sum(dim=-1).square() - s.square().sum(dim=-1)
    return (count.square() / (count + shared)).nan_to_num(0.0)


def binomial_band(size: Tensor, levels: Sequence[float], alarm: float) -> tuple[Tensor, Tensor]:
    """Bounds of the fraction of heads among `size` coins (`batch_shape`, rounded down, at least 1) of probability `levels`,
    `batch_shape x L` each. The fraction is outside with probability `alarm`, half of it on each side."""
    n, p = np.floor(size.unsqueeze(-1).cpu().numpy()).clip(1), np.asarray(levels)
    lower, upper = (_quantile(n, p, q) / n for q in (alarm / 2, 1 - alarm / 2))
    return torch.as_tensor(lower).to(size), torch.as_tensor(upper).to(size)


def _quantile(n: np.ndarray, p: np.ndarray, q: float) -> np.ndarray:
    """Least k with P(X ≤ k) ≥ q for a binomial X, by bisection of the incomplete beta function."""
    from scipy import special  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to load

    low, high = np.full(np.broadcast_shapes(n.shape, p.shape), -1.0), np.broadcast_to(n, np.broadcast_shapes(n.shape, p.shape))
    while np.any(high - low > 1):
        k = np.floor((low + high) / 2)
        enough = special.betainc(n - k, k + 1, 1 - p) >= q
        low, high = np.where(enough | (high - low <= 1), low, k), np.where(enough & (high - low > 1), k, high)
    return high


def chi_square(degrees: Tensor, above: float) -> Tensor:
    """The value that χ² with the given degrees of freedom exceeds with probability `above`; NaN for no degrees."""
    from scipy import special  # noqa: PLC0415 - slow to load

    degrees_ = degrees.cpu().numpy()
    return torch.as_tensor(np.where(degrees_ > 0, special.chdtri(np.maximum(degrees_, 1e-9), above), np.nan)).to(degrees)
