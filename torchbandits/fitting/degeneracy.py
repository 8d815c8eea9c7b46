r"""Degenerate fits: hyper-parameters under which rewards are uninformative about the arms, and weak priors that prevent them.

With few rewards the evidence is often highest at a degenerate kernel: all noise and no signal, a function that is constant
over the data, or one whose values at any two points are independent. Under such a kernel a bandit would pull the same arm
forever, or every arm once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import gpytorch
import torch
from torch import Tensor

from torchbandits.kernels import kernel_diagonal, kernel_matrix
from torchbandits.posteriors.averages import Averages
from torchbandits.types import Points

# Most points from which the mean variogram is estimated, evenly spaced in the order of their first pulls.
_SAMPLE = 500
# Least sum of credibilities: the signal that one noiseless average would carry.
LEAST_CREDIBLE = 1.0
# A lengthscale longer than this many extents of the data describes a constant (or a plane).
_BEYOND = 10.0
# Nearest points whose variogram exceeds this fraction of the prior variance have a negligible correlation.
_ALONE = 0.95
# Prior medians, as fractions of the variance of the averages, and standard deviations of the logarithms.
_SIGNAL, _NOISE = (0.5, 1.0), (0.5, 1.0)
# Mean and standard deviation of log ℓ/(extent √d).
_LENGTHSCALE = (math.sqrt(2.0), math.sqrt(3.0))


def lengthscales(kernel: gpytorch.kernels.Kernel) -> Iterator[tuple[gpytorch.kernels.Kernel, str]]:
    """The parts of the kernel that have a lengthscale, each with the name of its parameter."""
    for name, part in kernel.named_modules():
        if isinstance(part, gpytorch.kernels.Kernel) and part.has_lengthscale:
            yield part, f"{name}.raw_lengthscale".lstrip(".")


def signal_variance(kernel: gpytorch.kernels.Kernel, points: Points) -> Tensor:
    r"""Expected sample variance of f ~ GP(0, k) over the points, reward units squared: the mean of their variogram.

    .. math:: v = \tfrac1{u(u-1)} \sum_{i \ne j} \gamma_{ij}, \qquad
              \gamma_{ij} = \tfrac12 \mathrm{Var}(f_i - f_j) = \tfrac12 (k_{ii} + k_{jj}) - k_{ij}

    A part of the kernel that is constant, or nearly so over the points, contributes nothing. Differentiable in the
    kernel's parameters. Cost: O(u² d) for u of at most 500 points, evenly spaced among all.
    """
    gamma = _variogram(kernel, _sample(points))
    return gamma.sum() / (len(gamma) * (len(gamma) - 1))


@torch.no_grad()
def credibility(kernel: gpytorch.kernels.Kernel, averages: Averages, noise_variance: float) -> float:
    r"""Sum of the credibilities of the averages: the number of noiseless averages that would carry as much signal.

    .. math:: \sum_i \frac{n_i v}{n_i v + \sigma^2}

    with v of `signal_variance`. Source: Bühlmann & Gisler 2005, section 3.2.
    """
    return _credible(averages, signal_variance(kernel, averages.points), noise_variance)


def _credible(averages: Averages, signal: Tensor, noise_variance: float) -> float:
    """`credibility` for a known signal variance."""
    told = averages.weights * signal
    return float((told / (told + noise_variance)).sum())


@torch.no_grad()
def degeneracy(kernel: gpytorch.kernels.Kernel, fitted: Collection[str], averages: Averages, noise_variance: float) -> str:
    r"""The reason, in words, why hyper-parameters are useless for choosing among arms; empty if there is none.

    1. The averages carry less signal than one of them would without noise: their `credibility` is below 1.
    2. Every lengthscale that was fitted is more than ten times the extent of the data in its feature.
    3. Nearest points are hardly correlated (the median correlation is below 0.05): no reward is informative about another arm.

    Args:
        kernel: Kernel of one batch row.
        fitted: Names of the parameters that are fitted. Fixed lengthscales are not examined.
        averages: Average rewards of the row, of at least two points.
        noise_variance: σ², reward units squared.
    """
    points = averages.points
    signal = signal_variance(kernel, points)
    mean = float(signal)
    if not _credible(averages, signal, noise_variance) >= LEAST_CREDIBLE:
        return (
            f"noise alone explains the {len(points)} average rewards (signal variance {mean:.2g} over these points, noise "
            f"variance {noise_variance:.2g})"
        )
    parts = [part for part, name in lengthscales(kernel) if name in fitted]
    if not parts:
        return ""
    scales = [(part.lengthscale / _extents(part, points)).amin() for part in parts]
    if min(map(float, scales)) > _BEYOND:
        return f"every lengthscale is more than {_BEYOND:g} times the extent of the points"
    gamma = _variogram(kernel, _sample(points))
    nearest = (gamma + torch.diag(torch.full_like(gamma.diagonal(), torch.inf))).amin(dim=-1).median()
    if bool(nearest > _ALONE * kernel_diagonal(kernel, points).mean()):
        return "the lengthscales are too short for a reward to be informative about another arm"
    return ""


class WeakPriors:
    """Weakly informative priors, relative to the data, on parameters without a registered prior.

    Signal variance v and noise variance (where the evidence fits it) are log-normal around half the variance V of the
    averages, within a factor of e (one standard deviation). A lengthscale ℓ without a registered prior is log-normal,
    log ℓ/(extent √d) ~ N(√2, 3), like BoTorch's default.

    Args:
        averages: Average rewards of the row, which are not all equal.
        fitted: Names of the parameters that are fitted.

    Source: Hvarfner et al. 2024, eq. 7, for the lengthscales.
    """

    def __init__(self, averages: Averages, fitted: Collection[str]) -> None:
        self.averages, self.fitted = averages, fitted
        self.spread = averages.residuals.var()

    def log_density(self, kernel: gpytorch.kernels.Kernel, noise_variance: Tensor | None) -> Tensor:
        """Log density of the kernel's parameters and, if given, of the noise variance, up to a constant. Differentiable."""
        points = self.averages.points
        value = _log_normal(signal_variance(kernel, points) / self.spread, math.log(_SIGNAL[0]), _SIGNAL[1])
        if noise_variance is not None:
            value = value + _log_normal(noise_variance / self.spread, math.log(_NOISE[0]), _NOISE[1])
        for part, name in lengthscales(kernel):
            if name in self.fitted and next(iter(part.named_priors()), None) is None:
                center, width = _LENGTHSCALE
                extents = _extents(part, points)
                log = (part.lengthscale / (extents * math.sqrt(_num_features(part, points)))).log()
                value = value - (log + (log - center).square() / (2 * width**2)).sum()
        return value


def _log_normal(value: Tensor, center: float, width: float) -> Tensor:
    """Log density of log(value) under N(center, width²), up to a constant."""
    return -(value.log() - center).square() / (2 * width**2)


def _sample(points: Points) -> Points:
    step = -(-len(points) // _SAMPLE)
    return points[::step]


def _variogram(kernel: gpytorch.kernels.Kernel, points: Points) -> Tensor:
    """The variogram γ, `u x u`, clamped at 0 against rounding."""
    diagonal = kernel_diagonal(kernel, points)
    gamma = 0.5 * (diagonal.unsqueeze(-1) + diagonal) - kernel_matrix(kernel, points, points)
    return gamma.clamp_min(0) * (1 - torch.eye(len(points), dtype=points.dtype, device=points.device))


def _extents(part: gpytorch.kernels.Kernel, points: Points) -> Tensor:
    """The range of the points in each feature if the part has one lengthscale per feature, otherwise the root mean square of
    the ranges. A range of 0 counts as 1, because the data then leave the lengthscale undetermined."""
    own = points if part.active_dims is None else points[:, part.active_dims]
    extents = own.amax(dim=0) - own.amin(dim=0)
    if not part.ard_num_dims or part.ard_num_dims == 1:
        extents = extents.square().mean().sqrt()
    return torch.where(extents > 0, extents, 1.0)


def _num_features(part: gpytorch.kernels.Kernel, points: Points) -> int:
    return points.shape[-1] if part.active_dims is None else len(part.active_dims)
