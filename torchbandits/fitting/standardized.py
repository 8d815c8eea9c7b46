r"""Fits without user input: Matérn-5/2 in the units of the data, under priors that suit any number of features, or Tanimoto.

Rewards are replaced by normal scores (`posteriors.Units`), and features are divided by their ranges; fingerprints need no
ranges. The noise variance of the model stays at λ, and the scale of its scores gives each batch row its own noise. From
three repeated pulls on, the deviation of each point from a smooth function is told from noise, as a random effect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import gpytorch
import numpy as np
import torch
from torch import Tensor

from torchbandits.checks import is_finite, positive
from torchbandits.errors import require
from torchbandits.fitting.climb import Climb
from torchbandits.kernels import kernel_row, stack_kernels
from torchbandits.posteriors import GaussianProcess
from torchbandits.posteriors.averages import FEWEST, Averages, pooled_noise
from torchbandits.random_effects import RandomEffectKernel, smooth_part, with_effect
from torchbandits.tanimoto import TanimotoKernel, tanimoto_scale
from torchbandits.types import FitReport

# Averages whose scores, of unit variance, differ by at most this value are equal.
_SAME = 1e-9
# Random effects of less than this share of the variance of the function are none.
_LEAST_EFFECT = 1e-4
# Number of repeated pulls from which noise and random effects are fitted together.
_REPEATS = 3
# Largest number of distinct points in the evidence.
_MOST = 500
# Number of distinct points from which the best start alone is climbed: in one of 226 fits on tables and functions the second
# best one led to an evidence that was higher by more than 0.4, which is 1.3.
_CERTAIN = 128
# Default priors of the noise variance, of kernels with lengthscales and of similarities.
_NOISE, _SIMILARITY_NOISE = (-0.75, 1.5), (-4.0, 1.0)


@dataclass(frozen=True)
class Priors:
    r"""Log-normal priors of hyper-parameters for rewards of unit variance: mean and standard deviation of each logarithm.

    Attributes:
        lengthscale: In ranges of the feature times √d, so that the prior complexity of the model does not grow with the number
            of features.
        signal: Variance of the function f.
        noise: Variance of a reward around f. By default (None) (−0.75, 1.5), whose density is largest at 5 % of the variance of
            the rewards, and at all of it a seventh of that; for fingerprints BoTorch's (−4, 1). That prior's density at a fifth
            of the variance is 0.003 of its largest: it let short lengthscales explain noise, and similarities have none.
        least_noise: Smallest noise variance, so that factorisations succeed for rewards without noise.

    Source: Hvarfner et al. 2024, eq. 7, for lengthscales.
    """

    lengthscale: tuple[float, float] = (math.sqrt(2.0), math.sqrt(3.0))
    signal: tuple[float, float] = (0.0, 1.0)
    noise: tuple[float, float] | None = None
    least_noise: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("lengthscale", "signal", "noise"):
            pair = getattr(self, name)
            if name == "noise" and pair is None:
                continue
            good = isinstance(pair, tuple) and len(pair) == 2 and all(map(is_finite, pair)) and pair[1] > 0
            require(good, f"{name} must be the mean of a logarithm and its deviation > 0, two numbers, got {pair!r}.")
        positive("least_noise", self.least_noise)

    def of_noise(self, kernel: gpytorch.kernels.Kernel) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm of the noise variance under a kernel of these priors."""
        if self.noise is not None:
            return self.noise
        return _NOISE if tanimoto_scale(kernel) is None else _SIMILARITY_NOISE

    def kernel(self, ranges: Tensor) -> gpytorch.kernels.ScaleKernel:
        """A Matérn-5/2 kernel with one lengthscale per feature of these ranges (`d`), float64, at the modes of the priors."""
        return in_ranges(self.unit_kernel(torch.ones_like(ranges, dtype=torch.float64)), ranges)

    def unit_kernel(self, like: Tensor) -> gpytorch.kernels.ScaleKernel:
        """A Matérn-5/2 kernel for d features of range 1 at the modes of the priors, which are registered; `like` is `d`."""
        center, width = self.lengthscale
        own = torch.full_like(like, center + 0.5 * math.log(len(like))).unsqueeze(0)
        prior = gpytorch.priors.LogNormalPrior(own, torch.full_like(own, width))
        base = gpytorch.kernels.MaternKernel(2.5, ard_num_dims=len(like), lengthscale_prior=prior).to(own)
        kernel = gpytorch.kernels.ScaleKernel(base, outputscale_prior=_log_normal(self.signal, own)).to(own)
        base.lengthscale = (own - width**2).exp()
        kernel.outputscale = torch.ones_like(own[0, 0])
        return kernel

    def similarity(self) -> gpytorch.kernels.ScaleKernel:
        """A Tanimoto kernel for fingerprints, float64, at the mode of the prior."""
        return in_ranges(self.unit_similarity(torch.ones(1)), torch.ones(1))

    def unit_similarity(self, like: Tensor) -> gpytorch.kernels.ScaleKernel:
        """A Tanimoto kernel at the mode of the prior, which is registered, on the device of `like`."""
        one = torch.ones((), dtype=torch.float64, device=like.device)
        kernel = gpytorch.kernels.ScaleKernel(TanimotoKernel(), outputscale_prior=_log_normal(self.signal, one)).to(one)
        kernel.outputscale = one
        return kernel


def in_ranges(unit: gpytorch.kernels.ScaleKernel, ranges: Tensor) -> gpytorch.kernels.ScaleKernel:
    """Convert a kernel on features of range 1 into a kernel on features of these ranges, without priors. A Tanimoto kernel
    ignores the ranges."""
    similarity = tanimoto_scale(unit) is not None
    base = TanimotoKernel() if similarity else gpytorch.kernels.MaternKernel(2.5, ard_num_dims=len(ranges)).to(ranges.double())
    kernel = gpytorch.kernels.ScaleKernel(base).to(ranges.double())
    if not similarity:
        base.lengthscale = unit.base_kernel.lengthscale.detach() * ranges.double()
    kernel.outputscale = unit.outputscale.detach()
    return kernel


@torch.no_grad()
def fit_standardized_(
    posterior: GaussianProcess,
    priors: Priors,
    rows: Tensor,
    *,
    effects: bool = False,
    two_values: bool = False,
) -> FitReport:
    """Fit units, kernel and noise of a posterior, in place, to the average rewards by maximising evidence times priors.

    Args:
        posterior: Posterior with `units` and a kernel of `Priors`. The caller must rebuild tables computed from it.
        priors: Priors of the hyper-parameters.
        rows: `batch_shape` booleans, the rows to fit.
        effects: Whether the kernel gets random effects (`RandomEffectKernel`) where three repeated pulls tell them from noise.
        two_values: Whether rewards of two values, such as yes and no, have the largest noise that they can have, which is their
            variance. Single rewards do not tell their noise, and those of a good arm differ less than others.

    Returns:
        The report. A row with fewer than five points, or with equal rewards only, keeps its kernel and gets new units. A row
        whose averages tell no kernel keeps it too, but takes the noise of its repeated pulls, where there are enough of them.
        A row with `two_values` has their noise in any case. The evidence is that of up to 500 distinct points, evenly spaced
        in the order of their average rewards.

    Cost: O(min(u, 500)³) per iteration and batch row.
    """
    units, statistics, shape = posterior.units, posterior.statistics, posterior.batch_shape
    assert units is not None
    lam = posterior.regularization
    known = units.refit_(statistics, rows, two_values=two_values)
    scale, fits, kernels, told = units.scale.clone(), [], [], units.told(statistics)
    variances = torch.zeros(shape, dtype=torch.float64)
    for place in np.ndindex(*shape):
        some, ranges, unit = statistics.pulled[place], units.features[place], float(scale[place])
        averages = _averages(statistics.points[place][some] / ranges, told[place][some], unit, priors.least_noise)
        reason = _too_little(averages) if bool(rows[place]) else "its fit was not requested"
        whole, noise_known = kernel_row(posterior.kernel, shape, place), bool(known[place])
        fit = _fit_row(whole, ranges, unit, lam, averages, priors, reason, noise_known, effects=effects)
        climb, kernel, scale[place], variances[place] = fit
        kernels.append(kernel)
        fits.append(climb)
    units.rescale_(scale)
    statistics.retell_(units.told(statistics), rows)
    kernel = stack_kernels(kernels, shape)
    posterior.set_kernel_(with_effect(kernel, variances) if bool(variances.any()) else kernel, lam)
    return _report(fits, rows, lam)


def _fit_row(
    whole: gpytorch.kernels.Kernel,
    ranges: Tensor,
    scale: float,
    lam: float,
    averages: Averages,
    priors: Priors,
    reason: str,
    noise_known: bool,
    *,
    effects: bool,
) -> tuple[Climb, gpytorch.kernels.ScaleKernel, float, float]:
    """Fit one batch row.

    Args:
        whole: Its kernel, with random effects or without.
        ranges: Ranges of its features, `d`.
        scale: Its unit of rewards: a reward of variance 1 has this standard deviation in units of the model.
        lam: λ.
        averages: Its average rewards, for features of range 1 and rewards of variance 1.
        priors: Priors of the hyper-parameters.
        reason: Why nothing is fitted; an empty text to fit.
        noise_known: Whether the noise is that of rewards of two values.
        effects: As for `fit_standardized_`.

    Returns:
        The fit, the kernel without random effects and the scale after it, and the variance of the random effects.
    """
    kernel, held = smooth_part(whole), _effect(whole) if effects else 0.0
    standard, effect = _standard(kernel, priors, ranges, scale), held / scale**2
    climb = Climb(
        standard,
        [name for name, parameter in standard.named_parameters() if parameter.requires_grad],
        averages.thinned(_MOST),
        # The variance of rewards of two values is 1 in these units.
        1.0 if noise_known else lam / scale**2,
        noise=not noise_known,
        misfit=effects and _tell_effects(averages, noise_known),
        noise_prior=_log_normal(priors.of_noise(standard), averages.points),
    )
    climb.reason = reason
    if not reason:
        climb.run(_MOST, _MOST, (0.3, 1.0, 3.0), 30, 1 if len(averages.weights) >= _CERTAIN else 2)
        # Where the averages tell no kernel, repeated pulls still tell the noise.
        if climb.degenerate and not climb.accepted and climb.pooled is not None:
            climb.noise_variance = climb.pooled
        effect = climb.misfit if climb.accepted else effect
        climb.noise_variance = max(climb.noise_variance, priors.least_noise)
    if not reason or noise_known:
        scale = math.sqrt(lam / climb.noise_variance)
        kernel = in_ranges(standard, ranges)
        kernel.outputscale = kernel.outputscale.detach() * scale**2
        held = effect * scale**2 if effect > _LEAST_EFFECT * float(standard.outputscale) else 0.0
    return climb, kernel, scale, held


def _tell_effects(averages: Averages, noise_known: bool) -> bool:
    """Whether repeated pulls tell random effects from noise: three do under the prior of the noise. A noise that is only an
    upper limit takes as many as tell the noise without a prior."""
    if noise_known:
        return pooled_noise(averages) is not None
    return float((averages.weights - 1).clamp_min(0).sum()) >= _REPEATS


def _too_little(averages: Averages) -> str:
    """The reason why averages can tell no kernel; an empty text if they may tell one."""
    if len(averages.weights) < FEWEST:
        return f"{len(averages.weights)} distinct points are too few, a fit takes {FEWEST}"
    if float(averages.residuals.max() - averages.residuals.min()) <= _SAME:
        return "the average rewards are all equal, and say nothing of a kernel"
    return ""


def _averages(points: Tensor, told: Tensor, scale: float, least_noise: float) -> Averages:
    """Averages in units of rewards of variance 1, from points with features of range 1 and their totals in model units."""
    n, s, q = told.unbind(dim=-1)
    averages = Averages.of(points, n, s / scale, q / scale**2, 0.0)
    # Exactly equal repeats, such as those of a simulation, count as repeats with the least noise.
    least = least_noise * (averages.weights - 1).clamp_min(0)
    return replace(averages, scatter=torch.maximum(averages.scatter, least))


def _standard(kernel: gpytorch.kernels.Kernel, priors: Priors, ranges: Tensor, scale: float) -> gpytorch.kernels.ScaleKernel:
    """The kernel in units of rewards of variance 1 and features of range 1, with priors."""
    assert isinstance(kernel, gpytorch.kernels.ScaleKernel)
    fresh = priors.unit_kernel(ranges) if tanimoto_scale(kernel) is None else priors.unit_similarity(ranges)
    if fresh.base_kernel.has_lengthscale:
        fresh.base_kernel.lengthscale = kernel.base_kernel.lengthscale / ranges
    fresh.outputscale = kernel.outputscale / scale**2
    return fresh


def _effect(kernel: gpytorch.kernels.Kernel) -> float:
    return float(kernel.effect) if isinstance(kernel, RandomEffectKernel) else 0.0


def _log_normal(parameters: tuple[float, float], like: Tensor) -> gpytorch.priors.LogNormalPrior:
    # A prior of numbers would keep torch's default dtype.
    center, width = (torch.tensor(number, dtype=like.dtype, device=like.device) for number in parameters)
    return gpytorch.priors.LogNormalPrior(center, width)


def _report(fits: list[Climb], rows: Tensor, lam: float) -> FitReport:
    def column(name: str) -> Tensor:
        return torch.as_tensor(np.array([getattr(fit, name) for fit in fits]).reshape(rows.shape), device=rows.device)

    names = ("before", "after", "accepted", "iterations", "jitter", "misfit")
    return FitReport(
        **{name: column(name) for name in names},
        left_out=torch.zeros_like(rows, dtype=torch.int64),
        regularized=column("degenerate") & column("accepted"),
        reasons=tuple(fit.reason for fit in fits),
        regularization=lam,
        noise_variance=lam,
    )
