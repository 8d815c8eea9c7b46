"""The climb of one batch row: starts are compared, the best are climbed, nothing worse and nothing degenerate is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence

import gpytorch
import torch
from torch import Tensor

from torchbandits.fitting.degeneracy import LEAST_CREDIBLE, WeakPriors, credibility, degeneracy, lengthscales
from torchbandits.kernels import kernel_diagonal
from torchbandits.posteriors.averages import Averages, nearest_distance, pooled_noise
from torchbandits.posteriors.evidence import collapsed_evidence, greedy_dictionary, log_evidence
from torchbandits.types import Picks

_CLIMBED = 2  # starts that are climbed, those of the highest evidence
_LEAST_NOISE = 1e-8  # noise variance that the evidence may choose, of the largest k(x, x)
_RISE = 1e-9  # of the evidence, relative, that is rounding
_NOISE, _MISFIT = "noise variance, log", "misfit variance, log"  # names that no parameter of a kernel can have
_WORSE = 1e10  # what a step that broke the factorisation costs


class Climb:
    """The fit of one batch row.

    Args:
        kernel: Of the row, its own copy.
        fitted: Names of the parameters to fit.
        averages: What the row was told, without outliers.
        noise_variance: As it is.
        noise: Whether to fit it.
        misfit: Whether to fit a variance of every point's own; not where the noise itself is fitted by the evidence, from
            which it can't be told without repeated pulls.
        noise_prior: Of the noise variance, where it is fitted by the evidence.
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
        self._pooled = pooled_noise(averages) if noise else None
        if noise and self._pooled is None:
            self._parameters[_NOISE] = self._log_noise
        self._noise_prior = noise_prior if _NOISE in self._parameters else None
        if misfit and _NOISE not in self._parameters:
            self._parameters[_MISFIT] = self._log_misfit

    def run(self, max_exact: int, dictionary_size: int, restarts: Sequence[float], max_iterations: int) -> None:
        """Compare the starts, climb from the best, keep the highest: once more under weak priors where that is degenerate."""
        size = None if len(self.averages.weights) <= max_exact else dictionary_size
        origin = self._values()
        top = self._search(origin, size, restarts, max_iterations)
        self._restore(top)
        self.reason = degeneracy(self.kernel, self._parameters, self.averages, self._noise_now)
        if self.reason:
            self.degenerate, self._weak = True, WeakPriors(self.averages, self._parameters)
            self._restore(origin)
            least = min(LEAST_CREDIBLE, self._credibility)
            top = self._search(origin, size, restarts, max_iterations)
            self._restore(top)
            # Data that speak against any signal overcome weak priors: the kernel before them is then kept.
            self.accepted = self.accepted and self._credibility >= least
            self.after = self.after if self.accepted else self.before
        elif not self.accepted:
            self.reason = "the evidence did not rise"
        if self.accepted and self._noise:
            self.noise_variance = self._noise_now
        elif not self.accepted:
            self._restore(origin)

    @property
    def _noise_now(self) -> float:
        return math.exp(self._log_noise.item()) if self._noise else self.noise_variance

    @property
    def _credibility(self) -> float:
        return credibility(self.kernel, self.averages, self._noise_now)

    def _search(
        self, origin: dict[str, Tensor], size: int | None, restarts: Sequence[float], max_iterations: int
    ) -> dict[str, Tensor]:
        """The best parameters that are found, the origin included; sets `before`, `after`, `accepted` and `misfit`."""
        self._restore(origin)
        starts, own, levels = [], self._dictionary(size), self._misfits()
        self.before = max(self._value_of(origin | {"misfit": level}, own) for level in levels)
        self._restore(origin)
        if self._pooled is not None:
            self._log_noise.fill_(math.log(self._pooled))
        first = self._values()
        for factor in dict.fromkeys((1.0, *restarts)):
            if factor == 1 or self._scale_lengthscales(factor):
                dictionary = self._dictionary(size)
                starts += [(self._values() | {"misfit": level}, dictionary) for level in levels]
            self._restore(first)
        worth = [self._value_of(*start) for start in starts]
        best, top = self.before, origin
        for j in sorted(range(len(starts)), key=lambda j: -worth[j])[:_CLIMBED]:
            if not math.isfinite(worth[j]):
                continue
            self._restore(starts[j][0])
            reached = self._climb(starts[j][1], max_iterations)
            if reached > best:
                best, top = reached, self._values()
        if size is not None:  # once more, with the dictionary of the kernel that was found
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
        """log τ² to start from: next to none, and a quarter of the averages' variance."""
        if _MISFIT not in self._parameters:
            return [self._log_misfit.clone()]
        own = self.averages.residuals.var(correction=0).clamp_min(torch.finfo(torch.float64).tiny)
        return [self._log_noise - math.log(10.0), torch.log(own / 4)]

    def _dictionary(self, size: int | None) -> Picks | None:
        return None if size is None else greedy_dictionary(self.kernel, self.averages, size)

    def _log_posterior(self, dictionary: Picks | None) -> Tensor:
        """Log evidence plus log priors, those of the kernel as GPyTorch's ExactMarginalLogLikelihood counts them."""
        noise, misfit = self._log_noise.exp(), self._log_misfit.exp()
        if dictionary is None:
            value = log_evidence(self.kernel, self.averages, noise, misfit)
        else:
            value, jitter = collapsed_evidence(self.kernel, self.averages, noise, dictionary, misfit)
            self.jitter = max(self.jitter, jitter)
        value = value - 0.5 * torch.log1p(misfit / noise)
        if self._noise_prior is not None:
            value = value + self._noise_prior.log_prob(noise)
        if self._weak is not None:
            free = _NOISE in self._parameters and self._noise_prior is None
            value = value + self._weak.log_density(self.kernel, noise if free else None)
        for _, module, prior, closure, _ in self.kernel.named_priors():
            at = closure(module)
            if not bool(prior.support.check(at).all()):  # a long step may round a positive parameter to 0
                return value.new_tensor(-math.inf)
            value = value + prior.log_prob(at).sum()
        return value

    @torch.no_grad()
    def _value(self, dictionary: Picks | None) -> float:
        value = float(self._log_posterior(dictionary))
        return value if math.isfinite(value) else -math.inf

    def _value_of(self, values: dict[str, Tensor], dictionary: Picks | None) -> float:
        self._restore(values)
        return self._value(dictionary)

    def _climb(self, dictionary: Picks | None, max_iterations: int) -> float:
        """Ascend from the parameters as they are; leaves the best that were seen, and returns their value."""
        from botorch.optim.core import scipy_minimize  # noqa: PLC0415 - BoTorch takes a second to load

        parameters = list(self._parameters.values())
        best: tuple[float, dict[str, Tensor]] = (-math.inf, self._values())
        for parameter in parameters:
            parameter.requires_grad_(True)

        def closure() -> tuple[Tensor, Sequence[Tensor]]:
            nonlocal best
            with torch.enable_grad():
                value = self._log_posterior(dictionary)
                slopes: Sequence[Tensor] = [torch.full_like(p, torch.nan) for p in parameters]
                if bool(torch.isfinite(value)):
                    slopes = torch.autograd.grad(-value, parameters, allow_unused=True, materialize_grads=True)
            if not all(bool(torch.isfinite(slope).all()) for slope in slopes):
                return value.new_tensor(_WORSE), [torch.zeros_like(p) for p in parameters]
            if value.item() > best[0]:
                best = (value.item(), self._values())
            return -value.detach(), slopes

        floor = math.log(_LEAST_NOISE * float(kernel_diagonal(self.kernel, self.averages.points).detach().amax()))
        bounds: dict[str, tuple[float | None, float | None]] = {
            name: (min(floor, value.item()), None) for name, value in ((_NOISE, self._log_noise), (_MISFIT, self._log_misfit))
        } | self._floors()
        result = scipy_minimize(closure, self._parameters, bounds=bounds, options={"maxiter": max_iterations})
        self.iterations += result.step
        self._restore(best[1])
        return best[0]

    def _floors(self) -> dict[str, tuple[float | None, float | None]]:
        """No lengthscale below a quarter of the typical distance to the nearest point: shorter ones can't be told apart."""
        least = nearest_distance(self.averages.points) / 4
        floors: dict[str, tuple[float | None, float | None]] = {}
        for prefix, module in self.kernel.named_modules():
            name = f"{prefix}.raw_lengthscale".lstrip(".")
            if isinstance(module, gpytorch.kernels.Kernel) and module.has_lengthscale and name in self._parameters:
                constraint = module.raw_lengthscale_constraint
                low, high = (float(torch.as_tensor(b).max()) for b in (constraint.lower_bound, constraint.upper_bound))
                raw = constraint.inverse_transform(self._parameters[name].new_tensor(min(max(least, low), high)))
                if math.isfinite(float(raw)):
                    floors[name] = (float(raw), None)
        return floors

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
        """Multiply every lengthscale that is fitted; False where there is none, or a constraint forbids it."""
        scaled = False
        for part, raw in lengthscales(self.kernel):
            if raw in self._parameters:
                value = part.lengthscale.detach() * factor
                if not bool(part.raw_lengthscale_constraint.check(value)):
                    return False
                part.lengthscale = value
                scaled = True
        return scaled
