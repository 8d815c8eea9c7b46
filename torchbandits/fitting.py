"""Kernel hyper-parameters from the rewards: the evidence, climbed from several lengthscales, one batch row at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import gpytorch
import numpy as np
import torch
from botorch.optim.core import scipy_minimize
from torch import Tensor

from torchbandits.embeddings import kernel_diagonal, kernel_row, stack_kernels
from torchbandits.errors import ArgumentError, UnsupportedError, require
from torchbandits.posteriors import GaussianProcess
from torchbandits.posteriors.averages import FEWEST, Averages, pooled_noise
from torchbandits.posteriors.evidence import collapsed_evidence, greedy_dictionary, log_evidence
from torchbandits.types import FitReport, Picks

_CLIMBED = 2  # starts that are climbed, those of the highest evidence
_ROUNDS = 2  # dictionaries of a climb: one of the start's kernel, one of the kernel that it led to
_LEAST_NOISE = 1e-8  # noise variance that the evidence may choose, of the largest k(x, x)
_RISE = 1e-9  # of the evidence, relative, that is rounding
_WORSE = 1e10  # what a step that broke the factorisation costs


def fit_kernel_(
    posterior: GaussianProcess,
    *,
    noise: bool = False,
    noise_share: float = 1.0,
    rows: Tensor | None = None,
    max_exact: int = 800,
    dictionary_size: int = 500,
    restarts: Sequence[float] = (0.1, 0.3, 1.0, 3.0, 10.0),
    max_iterations: int = 50,
) -> FitReport:
    r"""Fit the kernel of a posterior, in place, to what it was told: the highest evidence times the kernel's priors.

    Every parameter of the kernel is fitted that required a gradient when the posterior was made, within its constraint. The
    kernel as it is and its lengthscales times each of `restarts` are compared; from the two best L-BFGS-B climbs. A batch
    row is fitted to its own rewards and gets parameters of its own. Nothing is drawn.

    One wild reward must not spoil the kernel: points whose average lies further outside the middle nine tenths of all
    averages than 1.5 times their span, and than three prior standard deviations, are left out of the fit (and of the fit
    alone); a point's scatter counts up to 36 times the median. A clipped average would still lie far off a smooth function.

    Args:
        posterior: Of any batch shape, without finite features. Where a row is accepted its kernel is replaced by another
            object and its factors are dropped; tables made from it are the caller's to renew.
        noise: Fit the noise variance too, by the scatter of repeated pulls where they have 10 degrees of freedom, otherwise
            with the kernel by the evidence (then rewards observed as sums alone, without squares, count as noiseless).
        noise_share: Noise variance as a part of the posterior's λ; a fit of the noise keeps it.
        rows: `batch_shape` booleans, the rows to fit; all of them by default.
        max_exact: Distinct points up to which the evidence is exact; its collapsed lower bound beyond.
        dictionary_size: Points of that bound, chosen greedily.
        restarts: Factors of all lengthscales; 1 is the kernel as it is.
        max_iterations: Of each climb.

    Returns:
        The report. A row whose evidence did not rise, whose factorisations failed, or which knows fewer than five points,
        keeps its kernel, and is not `accepted`.

    Raises:
        UnsupportedError: For finite features, and for the noise of several batch rows, which share one λ.
        ArgumentError: If the kernel has no parameter to fit, or an option is out of its range.
        NumericalError: If repeated pulls show no noise at all.

    Cost: O(u³) an iteration, O(u m²) beyond `max_exact`, a row.
    """
    shape, own = posterior.batch_shape, posterior.regularization * noise_share
    _check(posterior, noise, noise_share, max_exact, dictionary_size, restarts, max_iterations)
    chosen = torch.ones(shape, dtype=torch.bool) if rows is None else rows.cpu().expand(shape)
    kernels, fits = [], []
    for place in np.ndindex(*shape):
        kernel = kernel_row(posterior.kernel, shape, place)
        averages, left_out = _told(posterior, kernel, place, own)
        fit = _Climb(kernel, posterior.fitted, averages, own, noise)
        if bool(chosen[place]) and len(averages.weights) >= FEWEST:
            fit.run(max_exact, dictionary_size, restarts, max_iterations)
        kernels.append(fit.kernel)
        fits.append((fit.before, fit.after, fit.accepted, fit.iterations, left_out, fit.jitter))
        own = fit.noise_variance
    names = ("before", "after", "accepted", "iterations", "left_out", "jitter")
    device = posterior.pending.device
    columns = {
        name: torch.as_tensor(np.array(column).reshape(shape)).to(device)
        for name, column in zip(names, zip(*fits, strict=True), strict=True)
    }
    if bool(columns["accepted"].any()):
        lam = own / noise_share if noise else posterior.regularization
        posterior.set_kernel_(stack_kernels(kernels, shape) if shape else kernels[0], lam)
    lam = posterior.regularization
    return FitReport(**columns, regularization=lam, noise_variance=noise_share * lam)


class _Climb:
    """The fit of one batch row.

    Args:
        kernel: Of the row, its own copy.
        fitted: Names of the parameters to fit.
        averages: What the row was told, without outliers.
        noise_variance: As it is.
        noise: Whether to fit it.
    """

    def __init__(
        self, kernel: gpytorch.kernels.Kernel, fitted: Sequence[str], averages: Averages, noise_variance: float, noise: bool
    ) -> None:
        self.kernel, self.averages, self.noise_variance = kernel, averages, noise_variance
        self.before = self.after = math.nan
        self.accepted, self.iterations, self.jitter = False, 0, 0.0
        self._log_noise = torch.tensor(math.log(noise_variance), dtype=torch.float64, device=averages.weights.device)
        self._parameters = {name: p for name, p in kernel.named_parameters() if name in fitted}
        self._noise = noise
        self._pooled = pooled_noise(averages) if noise else None
        if noise and self._pooled is None:
            self._parameters["log_noise"] = self._log_noise

    def run(self, max_exact: int, dictionary_size: int, restarts: Sequence[float], max_iterations: int) -> None:
        """Compare the starts, climb from the best, keep the highest."""
        exact = len(self.averages.weights) <= max_exact
        size = None if exact else dictionary_size
        origin = self._values()
        self.before = self._value(self._dictionary(size))
        if self._pooled is not None:
            self._log_noise.fill_(math.log(self._pooled))
        starts = [self._values()]
        for factor in restarts:
            if factor != 1 and self._scale_lengthscales(factor):
                starts.append(self._values())
            self._restore(starts[0])
        worth = [self._value_of(start, size) for start in starts]
        best, top = self.before, origin
        for j in sorted(range(len(starts)), key=lambda j: -worth[j])[:_CLIMBED]:
            if not math.isfinite(worth[j]):
                continue
            self._restore(starts[j])
            for _ in range(1 if exact else _ROUNDS):
                reached = self._climb(self._dictionary(size), max_iterations)
                if reached > best:
                    best, top = reached, self._values()
        self._restore(top)
        for parameter in self._parameters.values():
            parameter.requires_grad_(False)
        self.after = best
        self.accepted = best > self.before + _RISE * (1 + abs(best))
        if not self.accepted:
            self._restore(origin)
        elif self._noise:
            self.noise_variance = math.exp(self._log_noise.item())

    def _dictionary(self, size: int | None) -> Picks | None:
        return None if size is None else greedy_dictionary(self.kernel, self.averages, size)

    def _log_posterior(self, dictionary: Picks | None) -> Tensor:
        """Log evidence plus log priors, as GPyTorch's ExactMarginalLogLikelihood counts them (but not per reward)."""
        noise = self._log_noise.exp()
        if dictionary is None:
            value = log_evidence(self.kernel, self.averages, noise)
        else:
            value, jitter = collapsed_evidence(self.kernel, self.averages, noise, dictionary)
            self.jitter = max(self.jitter, jitter)
        for _, module, prior, closure, _ in self.kernel.named_priors():
            value = value + prior.log_prob(closure(module)).sum()
        return value

    @torch.no_grad()
    def _value(self, dictionary: Picks | None) -> float:
        value = float(self._log_posterior(dictionary))
        return value if math.isfinite(value) else -math.inf

    def _value_of(self, values: dict[str, Tensor], size: int | None) -> float:
        self._restore(values)
        return self._value(self._dictionary(size))

    def _climb(self, dictionary: Picks | None, max_iterations: int) -> float:
        """Ascend from the parameters as they are; leaves the best that were seen, and returns their value."""
        parameters = list(self._parameters.values())
        best: tuple[float, dict[str, Tensor]] = (-math.inf, self._values())
        for parameter in parameters:
            parameter.requires_grad_(True)

        def closure() -> tuple[Tensor, Sequence[Tensor | None]]:
            nonlocal best
            with torch.enable_grad():
                value = self._log_posterior(dictionary)
                slopes: Sequence[Tensor | None] = [None] * len(parameters)
                if bool(torch.isfinite(value)):
                    slopes = torch.autograd.grad(-value, parameters, allow_unused=True)
            if not all(slope is not None and bool(torch.isfinite(slope).all()) for slope in slopes):
                return value.new_tensor(_WORSE), [torch.zeros_like(p) for p in parameters]
            if value.item() > best[0]:
                best = (value.item(), self._values())
            return -value.detach(), slopes

        floor = math.log(_LEAST_NOISE * float(kernel_diagonal(self.kernel, self.averages.points).detach().amax()))
        bounds: dict[str, tuple[float | None, float | None]] = {"log_noise": (min(floor, self._log_noise.item()), None)}
        result = scipy_minimize(closure, self._parameters, bounds=bounds, options={"maxiter": max_iterations})
        self.iterations += result.step
        self._restore(best[1])
        return best[0]

    def _values(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in (self._parameters | {"noise": self._log_noise}).items()}

    @torch.no_grad()
    def _restore(self, values: dict[str, Tensor]) -> None:
        for name, parameter in (self._parameters | {"noise": self._log_noise}).items():
            parameter.copy_(values[name])

    def _scale_lengthscales(self, factor: float) -> bool:
        """Multiply every lengthscale that is fitted; False where there is none, or a constraint forbids it."""
        scaled = False
        for part, raw in _lengthscales(self.kernel):
            if raw in self._parameters:
                value = part.lengthscale.detach() * factor
                if not bool(part.raw_lengthscale_constraint.check(value)):
                    return False
                part.lengthscale = value
                scaled = True
        return scaled


def _lengthscales(kernel: gpytorch.kernels.Kernel) -> Iterator[tuple[gpytorch.kernels.Kernel, str]]:
    """Parts of the kernel with a lengthscale, and the names of its parameter."""
    for name, part in kernel.named_modules():
        if isinstance(part, gpytorch.kernels.Kernel) and part.has_lengthscale:
            yield part, f"{name}.raw_lengthscale".lstrip(".")


def _told(
    posterior: GaussianProcess, kernel: gpytorch.kernels.Kernel, place: tuple[int, ...], noise_variance: float
) -> tuple[Averages, int]:
    """What a batch row was told, without outliers, and how many points those are."""
    points = posterior.statistics.points[place]
    variance = float(kernel_diagonal(kernel, points).amax()) if len(points) else 0.0
    return Averages.told(posterior.statistics, place, posterior.prior_mean, math.sqrt(variance + noise_variance))


def _check(
    posterior: GaussianProcess,
    noise: bool,
    noise_share: float,
    max_exact: int,
    dictionary_size: int,
    restarts: Sequence[float],
    max_iterations: int,
) -> None:
    require(
        posterior.finite is None,
        "the kernel of finite Fourier features can't be fitted, they would all change: use embedding='nystrom' or 'exact'.",
        UnsupportedError,
    )
    require(
        not noise or posterior.batch_shape.numel() == 1,
        f"the {posterior.batch_shape.numel()} batch rows share one λ, so that no noise can be fitted: run one bandit a row, or "
        "pass noise=False and the noise_std that you know.",
        UnsupportedError,
    )
    if not posterior.fitted:
        raise ArgumentError(
            f"the kernel ({type(posterior.kernel).__name__}) has no parameter that requires a gradient: nothing to fit."
        )
    require(math.isfinite(noise_share) and noise_share > 0, f"noise_share must be finite and > 0, got {noise_share}.")
    for name, value in (("max_exact", max_exact), ("max_iterations", max_iterations), ("dictionary_size", dictionary_size)):
        require(isinstance(value, int) and value >= 1, f"{name} must be a whole number ≥ 1, got {value}.")
    require(all(math.isfinite(f) and f > 0 for f in restarts), f"restarts must be factors > 0, got {tuple(restarts)}.")
