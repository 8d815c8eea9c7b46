"""Noise variances of named groups, such as instruments, by maximum evidence."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor

from torchbandits.checks import as_features, as_tensor, check_instance, check_whole, is_finite
from torchbandits.checks.models import check_kernel
from torchbandits.errors import ArgumentError, NonFiniteError, NumericalError, ShapeError, issue, nearest, require
from torchbandits.gradients import without_gradients
from torchbandits.kernels import kernel_diagonal, kernel_matrix, kernel_row
from torchbandits.linalg import cholesky, solve_lower
from torchbandits.types import Points

# Starting values of the variances, and the ends of their range, as fractions of the largest k(x, x).
_STARTS = (1e-3, 1e-2, 1e-1, 1.0)
_LEAST, _MOST = 1e-8, 1e4
_FEWEST = 2
# Texts of the values that stand for a missing name: None, NaN, pandas' NaT and NA.
_MISSING = ("None", "nan", "NaT", "<NA>")


@dataclass(frozen=True)
class GroupNoise:
    """Noise variances of named groups of rewards, such as the instruments that measured them.

        noise = tb.GroupNoise({"A": 0.01, "B": 0.25})
        bandit.tell(selection, rewards, noise_var=noise(["A", "B", "A"]))

    Args:
        variances: The variance of each group by its name, > 0, reward units squared: a number, or a tensor `batch_shape`.
            Names are converted to texts.
    """

    variances: Mapping[Any, float | Tensor]

    def __post_init__(self) -> None:
        good = isinstance(self.variances, Mapping) and len(self.variances) > 0
        require(good, 'variances must be a dictionary of groups, such as {"A": 0.01, "B": 0.25}.')
        values = list(zip(_names("variances", list(self.variances)), self.variances.values(), strict=True))
        found = {name: as_tensor(f"variances[{name!r}]", value, torch.float64) for name, value in values}
        require(
            len(found) == len(values), f"variances: two groups have the same name as texts, of {list(self.variances)!r:.60}."
        )
        for name, value in found.items():
            message = f"variances must be finite and > 0, reward units squared, and that of {name!r} is {value.tolist()}."
            require(bool((value.isfinite() & (value > 0)).all()), message, NonFiniteError)
        object.__setattr__(self, "variances", found)

    def __call__(self, groups: Collection[Any]) -> Tensor:
        """The variance of each reward, `batch_shape x q`, for `noise_var=`, on the device of the variances.

        Args:
            groups: The name of the group of each reward, q of them.
        """
        names = [self._known(name) for name in _names("groups", groups)]
        variances = {name: torch.as_tensor(value) for name, value in self.variances.items()}
        if not names:
            some = next(iter(variances.values()))
            return some.new_zeros(*some.shape, 0)
        return torch.stack([variances[name] for name in names], dim=-1)

    def _known(self, name: str) -> str:
        names = list(self.variances)
        require(name in names, f"groups: there is no group {name!r}, only {', '.join(map(repr, names))}.{nearest(name, names)}")
        return name

    @classmethod
    def fit(
        cls,
        kernel: gpytorch.kernels.Kernel,
        points: Tensor,
        rewards: Tensor,
        groups: Collection[Any],
        *,
        prior_mean: float = 0.0,
        prior: gpytorch.priors.Prior | None = None,
        max_points: int = 2_000,
        max_iterations: int = 100,
    ) -> GroupNoise:
        r"""Fit one noise variance per group by maximising the evidence of all rewards under a fixed kernel.

        .. math:: \log N\big(y;\, \mu_0,\, K + \mathrm{diag}(\sigma^2_{g_1}, …, \sigma^2_{g_n})\big)

        Repeats of a group at a point are summed first, which does not change the evidence. L-BFGS-B ascends from the scatter of
        the repeats, and from four values that all groups share. Each batch row is fitted to its own rewards.

        Args:
            kernel: Prior covariance of the expected reward, such as `bandit.posterior.kernel`.
            points: `n x d` or `batch_shape x n x d`; the fit takes place on their device.
            rewards: `batch_shape x n`, finite.
            groups: The name of the group of each of the n rewards, at least two of each group.
            prior_mean: μ₀.
            prior: Prior of each variance, reward units squared; none by default.
            max_points: Largest number of distinct pairs of a point and a group.
            max_iterations: Largest number of iterations of each ascent.

        Returns:
            The variances. Rewards that were told earlier with other variances must be told again to a new bandit, in one call
            of `tell`.

        Raises:
            ArgumentError: If a group has fewer than two rewards, or there are more points than `max_points`.
            NumericalError: If no start can be factorised.

        Warns (`DiagnosticWarning`): If a variance is at an end of the range that is searched.

        Guarantee: none, because the model is estimated; the evidence is that of a dense heteroscedastic Gaussian process.
        Cost: O(u³) per iteration for u distinct pairs. Source: Rasmussen & Williams 2006, eq. 2.30 and 5.8.
        """
        check_kernel(kernel)
        x, y = as_features("points", points).double(), as_tensor("rewards", rewards).double()
        labels, shape = _names("groups", groups), y.shape[:-1]
        sized = x.dim() >= 2 and y.dim() >= 1 and x.shape[-2] == y.shape[-1] == len(labels)
        sized = sized and x.shape[:-2] in (shape, ())
        told = f"points must be n x d, rewards n and groups n names, got {tuple(x.shape)}, {tuple(y.shape)} and {len(labels)}."
        require(sized, told, ShapeError)
        require(len(labels) > 0, "rewards: there are none to fit to, and a variance takes two.")
        require(bool(x.isfinite().all() and y.isfinite().all()), "points and rewards must be finite.", NonFiniteError)
        require(is_finite(prior_mean), f"prior_mean must be a number, got {prior_mean!r}.")
        check_instance("prior", prior, gpytorch.priors.Prior | None, "a GPyTorch prior, or None")
        check_whole("max_points", max_points)
        check_whole("max_iterations", max_iterations)
        y = y.to(x.device)
        prior = None if prior is None else copy.deepcopy(prior).to(x.device)
        names = sorted(set(labels))
        few = [name for name in names if labels.count(name) < _FEWEST]
        require(not few, f"groups: {', '.join(map(repr, few))} has a single reward, and a variance takes two: leave it out.")
        group = torch.tensor([names.index(name) for name in labels], device=y.device)
        x = x.expand(*shape, *x.shape[-2:])
        found = torch.zeros(*shape, len(names), dtype=torch.float64, device=y.device)
        at_end = torch.zeros(len(names), dtype=torch.bool, device=y.device)
        for place in np.ndindex(*shape):
            own = kernel_row(kernel, shape, place) if kernel.batch_shape else copy.deepcopy(kernel)
            data = GroupAverages.of(x[place], y[place] - float(prior_mean), group, len(names))
            if len(data.averages) > max_points:
                raise ArgumentError(
                    f"points: {len(data.averages):,} distinct pairs of a point and a group are more than max_points "
                    f"({max_points:,}): fit to a part of them, or raise it."
                )
            found[place], ends = _fitted(own.to(y.device), data, prior, max_iterations)
            at_end |= ends
        if bool(at_end.any()):
            named = ", ".join(repr(name) for name, end in zip(names, at_end.tolist(), strict=True) if end)
            issue(
                [
                    f"GroupNoise.fit: the variance of {named} is the smallest or the largest that is tried ({_LEAST:g} and "
                    f"{_MOST:g} times the largest k(x, x)): the rewards do not determine it, or the kernel's outputscale is "
                    "not that of the rewards. Give it yourself, or a prior=."
                ]
            )
        return cls({name: found[..., place].clone() for place, name in enumerate(names)})


@dataclass(frozen=True)
class GroupAverages:
    """Rewards of one batch row, summed over the repeats of each pair of a point and a group.

    Attributes:
        points: `u x d`.
        group: `u`, number of the group of each pair.
        counts, averages: `u`, number of rewards and their average.
        repeats, scatter: `G`, the number of rewards of each group beyond the first of each pair, and the sum of the squared
            deviations of the group's rewards from the averages.
    """

    points: Points
    group: Tensor
    counts: Tensor
    averages: Tensor
    repeats: Tensor
    scatter: Tensor

    @staticmethod
    def of(points: Points, rewards: Tensor, group: Tensor, groups: int) -> GroupAverages:
        """Summarise rewards `n` at `n x d` points by pairs of a point and a group."""
        place = points.unique(dim=0, return_inverse=True)[1]
        pairs, own = (place * groups + group).unique(return_inverse=True)
        zeros = rewards.new_zeros(len(pairs))
        counts = zeros.index_add(0, own, torch.ones_like(rewards))
        averages = zeros.index_add(0, own, rewards) / counts
        first = torch.full_like(pairs, len(rewards)).scatter_reduce(0, own, torch.arange(len(own), device=own.device), "amin")
        of_group = rewards.new_zeros(groups)
        scatter = of_group.index_add(0, group, (rewards - averages[own]).square())
        repeats = of_group.index_add(0, pairs % groups, counts - 1)
        return GroupAverages(points[first], pairs % groups, counts, averages, repeats, scatter)

    def log_evidence(self, K: Tensor, variances: Tensor) -> Tensor:
        """Log density of all rewards, differentiable in the variances (`G`); −∞ if the factorisation fails.

        Args:
            K: `u x u`, covariance of f at the points.
            variances: `G`, > 0.
        """
        factor, good = cholesky(K + torch.diag(variances[self.group] / self.counts))
        if good is not None and not bool(good):
            return variances.new_tensor(-torch.inf)
        white = solve_lower(factor, self.averages.unsqueeze(-1)).square().sum()
        log_det = 2 * factor.diagonal().log().sum()
        # The density of the averages, times that of the repeats given their averages.
        repeats = self.repeats * (2 * math.pi * variances).log() + self.scatter / variances
        between = white + log_det + len(self.averages) * math.log(2 * math.pi)
        return -0.5 * (between + repeats.sum() + self.counts.log().sum())


@without_gradients
def _fitted(
    kernel: gpytorch.kernels.Kernel, data: GroupAverages, prior: gpytorch.priors.Prior | None, max_iterations: int
) -> tuple[Tensor, Tensor]:
    """The variances of highest evidence, `G`, and whether each is at an end of the range."""
    from botorch.optim.core import scipy_minimize  # noqa: PLC0415 - BoTorch takes a second to load

    K = kernel_matrix(kernel, data.points, data.points).double()
    scale = float(kernel_diagonal(kernel, data.points).amax())
    log_variances = torch.zeros_like(data.scatter)
    best: tuple[float, Tensor] = (-math.inf, log_variances)

    def closure() -> tuple[Tensor, Sequence[Tensor]]:
        nonlocal best
        with torch.enable_grad():
            variances = log_variances.exp()
            value = data.log_evidence(K, variances)
            value = value if prior is None else value + prior.log_prob(variances).sum()
            if not bool(value.isfinite()):
                return value.new_tensor(1e10), [torch.zeros_like(log_variances)]
            slope = torch.autograd.grad(-value, log_variances)
        if value.item() > best[0]:
            best = (value.item(), log_variances.detach().clone())
        return -value.detach(), slope

    scatter = (data.scatter / data.repeats.clamp_min(1)).clamp(_LEAST * scale, _MOST * scale)
    common = [torch.full_like(scatter, part * scale) for part in _STARTS]
    for start in [torch.where(data.repeats > 0, scatter, 0.1 * scale), *common]:
        log_variances.requires_grad_(False).copy_(start.log())
        log_variances.requires_grad_(True)
        bounds: dict[str, tuple[float | None, float | None]] = {"log": (math.log(_LEAST * scale), math.log(_MOST * scale))}
        scipy_minimize(closure, {"log": log_variances}, bounds=bounds, options={"maxiter": max_iterations})
    if not math.isfinite(best[0]):
        raise NumericalError("no variance gives a covariance that can be factorised: check the kernel and its outputscale.")
    part = (best[1] - math.log(scale)).exp()
    return best[1].exp(), (part < _LEAST * 1.01) | (part > _MOST / 1.01)


def _names(name: str, groups: Any) -> list[str]:
    """Names of groups, as texts; the names in a tensor or an array are its values."""
    groups = groups.tolist() if isinstance(groups, Tensor | np.ndarray) else groups
    plain = not isinstance(groups, str | bytes | Mapping) and hasattr(groups, "__len__") and hasattr(groups, "__iter__")
    require(plain, f"{name} must be a list with the name of each reward's group, got {type(groups).__name__}.")
    found = list(groups)
    missing = [place for place, one in enumerate(found) if not isinstance(one, str) and str(one) in _MISSING]
    require(not missing, f"{name}: the name at place {(missing or [0])[0]} is missing, {len(missing)} of {len(found)} are.")
    return [str(one) for one in found]
