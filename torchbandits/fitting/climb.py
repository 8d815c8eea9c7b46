"""Fit of one batch row: compare starts, ascend from the best, and refuse worse or degenerate hyper-parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import gpytorch
import numpy as np
import torch
from torch import Tensor

from torchbandits.fitting.degeneracy import LEAST_CREDIBLE, WeakPriors, credibility, degeneracy, lengthscales
from torchbandits.kernels import Stationary, kernel_diagonal
from torchbandits.posteriors.averages import Averages, nearest_distance, pooled_noise
from torchbandits.posteriors.evidence import (
    StationaryEvidence,
    Workspace,
    collapsed_evidence,
    greedy_dictionary,
    log_evidence,
)
from torchbandits.types import Picks

# Least noise variance of a fit, as a fraction of the largest k(x, x).
_LEAST_NOISE = 1e-8
# A relative rise of the evidence up to this value counts as rounding error.
_RISE = 1e-9
# Names that no parameter of a kernel can have.
_NOISE, _MISFIT = "noise variance, log", "misfit variance, log"
# A variance of rewards or a spread of a feature above this value is a unit of the ascent.
_LARGE = 10.0
# Objective value of a step whose factorisation failed.
_WORSE = 1e10


class Climb:
    """The fit of one batch row.

    Args:
        kernel: Kernel of the row, its own copy.
        fitted: Names of the parameters to fit.
        averages: Average rewards of the row, without outliers.
        noise_variance: Current noise variance, reward units squared.
        noise: Whether to fit the noise variance.
        misfit: Whether to fit the variance of a deviation of each point that the kernel does not model. Without repeated pulls
            only priors distinguish it from a noise variance that the evidence fits.
        noise_prior: Prior of the noise variance, if the evidence fits it.
    """

    def __init__(
        self,
        kernel: gpytorch.kernels.Kernel,
        fitted: Sequence[str],
        averages: Averages,
        noise_variance: float,
        noise: bool,
        misfit: bool,
        noise_prior: gpytorch.priors.Prior | None = None,
    ) -> None:
        self.kernel, self.averages, self.noise_variance = kernel, averages, noise_variance
        self.before = self.after = math.nan
        self.accepted, self.iterations, self.jitter, self.misfit = False, 0, 0.0, 0.0
        self.reason, self.degenerate = "", False
        self._weak: WeakPriors | None = None
        self._log_noise = torch.tensor(math.log(noise_variance), dtype=torch.float64, device=averages.weights.device)
        self._log_misfit = torch.full_like(self._log_noise, -torch.inf)
        self._parameters = {name: p for name, p in kernel.named_parameters() if name in fitted}
        self._noise = noise
        self.pooled = pooled_noise(averages) if noise else None
        if noise and self.pooled is None:
            self._parameters[_NOISE] = self._log_noise
        self._noise_prior = noise_prior if _NOISE in self._parameters else None
        if misfit:
            self._parameters[_MISFIT] = self._log_misfit
        self._priors = priors_of(kernel)
        # For one evaluation of the exact evidence after the other.
        self._memory: Workspace | None = None

    def run(
        self, max_exact: int, dictionary_size: int, restarts: Sequence[float], max_iterations: int, climbed: int = 2
    ) -> None:
        """Compare the starts, ascend from the `climbed` best ones and keep the highest; repeat under weak priors if it is
        degenerate."""
        size = None if len(self.averages.weights) <= max_exact else dictionary_size
        self._memory = Workspace.like(self.averages.residuals) if size is None else None
        origin = self._values()
        top = self._search(origin, size, restarts, max_iterations, climbed)
        self._restore(top)
        self.reason = degeneracy(self.kernel, self._parameters, self.averages, self._noise_now)
        if self.reason:
            self.degenerate, self._weak = True, WeakPriors(self.averages, self._parameters)
            self._restore(origin)
            least = min(LEAST_CREDIBLE, self._credibility)
            top = self._search(origin, size, restarts, max_iterations, climbed)
            self._restore(top)
            # Data without any signal overcome the weak priors. The original kernel is then kept.
            self.accepted = self.accepted and self._credibility >= least
            self.after = self.after if self.accepted else self.before
        elif not self.accepted:
            self.reason = "the evidence did not rise"
        if self.accepted and self._noise:
            self.noise_variance = self._noise_now
        elif not self.accepted:
            self._restore(origin)
        self._memory = None

    @property
    def _noise_now(self) -> float:
        return math.exp(self._log_noise.item()) if self._noise else self.noise_variance

    @property
    def _credibility(self) -> float:
        return credibility(self.kernel, self.averages, self._noise_now)

    def _search(
        self, origin: dict[str, Tensor], size: int | None, restarts: Sequence[float], max_iterations: int, climbed: int
    ) -> dict[str, Tensor]:
        """Return the best parameters found, or the origin if none is better; set `before`, `after`, `accepted`, `misfit`."""
        self._restore(origin)
        starts, own, levels = [], self._dictionary(size), self._misfits()
        self.before = max(self._value_of(origin | {"misfit": level}, own) for level in levels)
        self._restore(origin)
        if self.pooled is not None:
            self._log_noise.fill_(math.log(self.pooled))
        first = self._values()
        for factor in dict.fromkeys((1.0, *restarts)):
            if factor == 1 or self._scale_lengthscales(factor):
                # That of the current kernel does not depend on the noise.
                dictionary = own if factor == 1 else self._dictionary(size)
                starts += [(self._values() | {"misfit": level}, dictionary) for level in levels]
            self._restore(first)
        worth = [self._value_of(*start) for start in starts]
        best, top = self.before, origin
        for j in sorted(range(len(starts)), key=lambda j: -worth[j])[:climbed]:
            if not math.isfinite(worth[j]):
                continue
            self._restore(starts[j][0])
            reached = self._climb(starts[j][1], max_iterations)
            if reached > best:
                best, top = reached, self._values()
        # Repeat the ascent with a dictionary that suits the kernel just found.
        if size is not None:
            self._restore(top)
            reached = self._climb(self._dictionary(size), max_iterations)
            if reached > best:
                best, top = reached, self._values()
        self.before = max(self.before, self._value_of(origin | {"misfit": top["misfit"]}, own))
        for parameter in self._parameters.values():
            parameter.requires_grad_(False)
        self.after = max(best, self.before)
        self.accepted = best > self.before + _RISE * (1 + abs(best))
        self.misfit = math.exp(top["misfit"].item())
        return top if self.accepted else origin

    def _misfits(self) -> list[Tensor]:
        """Starting values of log τ²: a tenth of the noise variance, and a quarter of the variance of the averages."""
        if _MISFIT not in self._parameters:
            return [self._log_misfit.clone()]
        own = self.averages.residuals.var(correction=0).clamp_min(torch.finfo(torch.float64).tiny)
        return [self._log_noise - math.log(10.0), torch.log(own / 4)]

    def _dictionary(self, size: int | None) -> Picks | None:
        return None if size is None else greedy_dictionary(self.kernel, self.averages, size)

    def _log_posterior(self, dictionary: Picks | None) -> Tensor:
        """Log evidence plus log priors. The kernel's priors are added as in GPyTorch's ExactMarginalLogLikelihood."""
        noise, misfit = self._log_noise.exp(), self._log_misfit.exp()
        if dictionary is None:
            value = log_evidence(self.kernel, self.averages, noise, misfit, memory=self._memory)
        else:
            value, jitter = collapsed_evidence(self.kernel, self.averages, noise, dictionary, misfit)
            self.jitter = max(self.jitter, jitter)
        value = value - 0.5 * torch.log1p(misfit / noise)
        if self._noise_prior is not None:
            value = value + self._noise_prior.log_prob(noise)
        if self._weak is not None:
            free = _NOISE in self._parameters and self._noise_prior is None
            value = value + self._weak.log_density(self.kernel, noise if free else None)
        return under_priors(value, self._priors)

    def _in_closed_form(self, dictionary: Picks | None) -> bool:
        """Whether `_closed` applies: the exact evidence of a smooth RBF or Matérn kernel, under log-normal priors alone."""
        priors = [prior for prior, _, _ in self._priors] + ([] if self._noise_prior is None else [self._noise_prior])
        form = Stationary.of(self.kernel)
        plain = all(type(prior) is gpytorch.priors.LogNormalPrior for prior in priors)
        return plain and form is not None and form.smooth and dictionary is None and self._weak is None

    def _closed(self) -> tuple[Tensor, list[Tensor], list[Tensor]] | None:
        """`_log_posterior` in closed form, without the cost of an autograd graph of the evidence.

        Returns its value, the quantities that it is computed from, which are differentiable functions of the parameters, and
        its derivatives with respect to these quantities; None if the value is −∞.
        """
        with torch.enable_grad():
            form, noise, misfit = Stationary.of(self.kernel, detached=False), self._log_noise.exp(), self._log_misfit.exp()
            assert form is not None
            made = [form.lengthscale, noise, misfit] + ([] if form.outputscale is None else [form.outputscale])
            positive = [closure(part) for _, part, closure in self._priors]
        lengthscale, variance, own, *scales = (at.detach() for at in made)
        n, y, x = self.averages.weights, self.averages.residuals, self.averages.points
        scale = scales[0] if scales else torch.ones_like(variance)
        spread = variance / n + own if form.effect is None else variance / n + own + form.effect
        evidence = StationaryEvidence.of(Stationary(form.nu, lengthscale, None), scale, spread, x, y, memory=self._memory)
        if evidence is None:
            return None
        in_lengthscale, in_scale, in_spread, _ = evidence.slopes()
        in_noise = (in_spread / n).sum() + self.averages.slope_within(variance)
        value, slopes = self.averages.within(variance) + evidence.value, [in_lengthscale, in_noise, in_spread.sum()]
        slopes += [in_scale] * len(scales)
        # The prior of τ², (1 + τ²/σ²)^(−1/2).
        value = value - 0.5 * torch.log1p(own / variance)
        slopes[1], slopes[2] = slopes[1] + 0.5 * own / (variance * (variance + own)), slopes[2] - 0.5 / (variance + own)
        if self._noise_prior is not None:
            density, slope = _log_normal(self._noise_prior, variance)
            value, slopes[1] = value + density, slopes[1] + slope
        for (prior, _, _), at in zip(self._priors, positive, strict=True):
            density, slope = _log_normal(prior, at.detach())
            value, slopes = value + density.sum(), [*slopes, slope]
        return value, [*made, *positive], slopes

    @torch.no_grad()
    def _value(self, dictionary: Picks | None) -> float:
        value = float(self._log_posterior(dictionary))
        return value if math.isfinite(value) else -math.inf

    def _value_of(self, values: dict[str, Tensor], dictionary: Picks | None) -> float:
        self._restore(values)
        return self._value(dictionary)

    def _climb(self, dictionary: Picks | None, max_iterations: int) -> float:
        """Ascend from the current parameters by L-BFGS-B, leave the best parameters visited, and return their value."""
        parameters = list(self._parameters.values())
        best: tuple[float, dict[str, Tensor]] = (-math.inf, self._values())
        for parameter in parameters:
            parameter.requires_grad_(True)

        closed = self._in_closed_form(dictionary)

        def closure() -> tuple[Tensor, Sequence[Tensor]]:
            nonlocal best
            value, slopes = self._slopes(parameters, dictionary, closed)
            if not all(bool(torch.isfinite(slope).all()) for slope in slopes):
                return value.new_tensor(_WORSE), [torch.zeros_like(p) for p in parameters]
            if value.item() > best[0]:
                best = (value.item(), self._values())
            return -value, slopes

        floor = math.log(_LEAST_NOISE * float(kernel_diagonal(self.kernel, self.averages.points).detach().amax()))
        variances = ((_NOISE, self._log_noise), (_MISFIT, self._log_misfit))
        lowest = {name: min(floor, value.item()) for name, value in variances} | self._floors()
        self.iterations += minimize(closure, self._parameters, lowest, self._units(), max_iterations)
        self._restore(best[1])
        return best[0]

    def _slopes(self, parameters: list[Tensor], dictionary: Picks | None, closed: bool) -> tuple[Tensor, Sequence[Tensor]]:
        """`_log_posterior`, and the derivatives of its negative with respect to the parameters, NaN if it is not finite."""
        found = self._closed() if closed else None
        if found is not None and bool(torch.isfinite(found[0])):
            value, made, slopes = found
            free = [(at, -slope) for at, slope in zip(made, slopes, strict=True) if at.requires_grad]
            inner, outer = zip(*free, strict=True)
            return value, torch.autograd.grad(inner, parameters, outer, allow_unused=True, materialize_grads=True)
        nothing = [torch.full_like(p, torch.nan) for p in parameters]
        if closed:
            return nothing[0].new_tensor(-torch.inf), nothing
        with torch.enable_grad():
            value = self._log_posterior(dictionary)
            if not bool(torch.isfinite(value)):
                return value.detach(), nothing
            return value.detach(), torch.autograd.grad(-value, parameters, allow_unused=True, materialize_grads=True)

    def _floors(self) -> dict[str, float]:
        """Lower bounds of the lengthscales: a quarter of the median distance to the nearest point. Shorter lengthscales give
        the same fit."""
        least = nearest_distance(self.averages.points) / 4
        floors: dict[str, float] = {}
        for prefix, module in self.kernel.named_modules():
            name = f"{prefix}.raw_lengthscale".lstrip(".")
            if isinstance(module, gpytorch.kernels.Kernel) and module.has_lengthscale and name in self._parameters:
                constraint = module.raw_lengthscale_constraint
                low, high = (float(torch.as_tensor(b).max()) for b in (constraint.lower_bound, constraint.upper_bound))
                raw = constraint.inverse_transform(self._parameters[name].new_tensor(min(max(least, low), high)))
                if math.isfinite(float(raw)):
                    floors[name] = float(raw)
        return floors

    def _units(self) -> dict[str, Tensor]:
        """Units of output scales and lengthscales, where the variance of the rewards or the spread of a feature is large.

        GPyTorch's own parameters of large values are proportional to them, so that an ascent in these would hardly move. Other
        constraints, such as intervals, make parameters of another size, which need no units.
        """
        x, y = self.averages.points, self.averages.residuals
        spread, variance = x.std(dim=-2, correction=0), y.square().mean()
        units: dict[str, Tensor] = {}
        for prefix, module in self.kernel.named_modules():
            for own in ("raw_outputscale", "raw_lengthscale"):
                name = f"{prefix}.{own}".lstrip(".")
                if name not in self._parameters or not isinstance(module, gpytorch.kernels.Kernel):
                    continue
                unit = variance
                if own == "raw_lengthscale":
                    unit = spread if module.active_dims is None else spread[module.active_dims]
                    unit = unit if unit.shape[-1:] == module.raw_lengthscale.shape[-1:] else unit.mean()
                elif bool(variance > _LARGE):
                    unit = variance / self._growth(module)
                large = (unit > _LARGE) & _proportional(module.constraint_for_parameter_name(own), unit)
                units[name] = torch.where(large, unit, 1.0).expand(self._parameters[name].shape)
        return units

    def _growth(self, module: gpytorch.kernels.Kernel) -> Tensor:
        """The derivative of the average k(x, x) with respect to an output scale: that of a product has the other factors."""
        with torch.enable_grad():
            whole, own = kernel_diagonal(self.kernel, self.averages.points).mean(), module.outputscale.sum()
            slopes = [torch.autograd.grad(value, module.raw_outputscale)[0].sum() for value in (whole, own)]
        return slopes[0] / slopes[1]

    def _values(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self._all().items()}

    @torch.no_grad()
    def _restore(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self._all().items():
            parameter.copy_(values[name])

    def _all(self) -> dict[str, Tensor]:
        return {
            **{name: p for name, p in self._parameters.items() if name not in (_NOISE, _MISFIT)},
            "noise": self._log_noise,
            "misfit": self._log_misfit,
        }

    def _scale_lengthscales(self, factor: float) -> bool:
        """Multiply every fitted lengthscale; return False if there is none, or if a constraint forbids the product."""
        scaled = False
        for part, raw in lengthscales(self.kernel):
            if raw in self._parameters:
                value = part.lengthscale.detach() * factor
                if not bool(part.raw_lengthscale_constraint.check(value)):
                    return False
                part.lengthscale = value
                scaled = True
        return scaled


_Priors = list[tuple[gpytorch.priors.Prior, gpytorch.Module, Callable[[gpytorch.Module], Tensor]]]


def priors_of(kernel: gpytorch.kernels.Kernel) -> _Priors:
    """The registered priors of a kernel, each with its module and the function from it to the parameter."""
    return [(prior, part, closure) for _, part, prior, closure, _ in kernel.named_priors()]


def under_priors(value: Tensor, priors: _Priors) -> Tensor:
    """A log density plus that of the parameters under their priors; −∞ outside their support."""
    for prior, part, closure in priors:
        at = closure(part)
        # A long step may round a positive parameter to 0.
        if not bool(prior.support.check(at).all()):
            return torch.full_like(value, -math.inf)
        value = value + prior.log_prob(at).sum()
    return value


def _proportional(constraint: gpytorch.constraints.Interval | None, value: Tensor) -> Tensor:
    """Whether GPyTorch's own parameter of a value grows as the value does, as under its default constraint."""
    if constraint is None:
        return torch.ones_like(value, dtype=torch.bool)
    growth = (constraint.inverse_transform(1.5 * value) - constraint.inverse_transform(value)) / (0.5 * value)
    return (growth - 1).abs() < 0.5


def _log_normal(prior: gpytorch.priors.LogNormalPrior, at: Tensor) -> tuple[Tensor, Tensor]:
    """The log density of a log-normal prior and its derivative; the prior's own method takes ten times as long."""
    log, scale = at.log(), prior.scale
    z = (log - prior.loc) / scale
    return -0.5 * z.square() - log - scale.log() - 0.5 * math.log(2 * math.pi), -(1 + z / scale) / at


def minimize(
    closure: Callable[[], tuple[Tensor, Sequence[Tensor]]],
    parameters: dict[str, Tensor],
    lowest: dict[str, float],
    units: dict[str, Tensor],
    max_iterations: int,
) -> int:
    """Minimise a function of the parameters, given with its derivatives, by L-BFGS-B, above lower bounds and in units (1 by
    default); return the number of iterations.

    BoTorch's function for that takes a second to load.
    """
    from scipy.optimize import minimize  # type: ignore[import-untyped] # noqa: PLC0415 - slow to load

    sizes = [p.numel() for p in parameters.values()]
    unit = _flat(units.get(name, torch.ones_like(p)) for name, p in parameters.items())

    def at(x: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.no_grad():
            for p, part in zip(parameters.values(), torch.as_tensor(x * unit).split(sizes), strict=True):
                p.copy_(part.reshape(p.shape))
        value, slopes = closure()
        return value.item(), _flat(slopes) * unit

    low = np.repeat([lowest.get(name, -np.inf) for name in parameters], sizes)
    limits = np.stack([low / unit, np.full_like(low, np.inf)], axis=-1)
    options = {"maxiter": max_iterations}
    result = minimize(at, _flat(parameters.values()) / unit, jac=True, method="L-BFGS-B", bounds=limits, options=options)
    return int(result.nit)


def _flat(tensors: Iterable[Tensor]) -> np.ndarray:
    return torch.cat([t.detach().reshape(-1) for t in tensors]).cpu().double().numpy()
