"""Warnings about rewards or arms whose scale is far from the scale of the kernel, the prior mean or the noise, and about
functions that are no kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from torchbandits.arms import ArmTable
from torchbandits.display import in_row
from torchbandits.errors import issue
from torchbandits.kernels import Stationary, kernel_among, kernel_diagonal, kernel_matrix
from torchbandits.posteriors import GaussianProcess
from torchbandits.transfers import to_device, to_host

# Checks are made at 8, 32, 128, … distinct points, and at the same numbers of tells for runs that stay at a few arms.
_FIRST, _GROWTH = 8, 4
# Smallest number of distinct points for which the spread of their rewards is informative.
_FEW = 3
# Smallest number of pulls for which a dictionary of one point is informative.
_MANY_PULLS = 32
# Number of points at which the kernel is evaluated.
_SAMPLE = 32
# Thresholds on ratios of standard deviations.
_FAR_MEAN, _FAR_SPREAD, _SMALL_SPREAD, _MISFIT = 5.0, 3.0, 30.0, 5.0
# Threshold on the ratio of the rewards' spread to the noise.
_LOUD = 0.25
# Thresholds on ratios of variances.
_ISOLATED, _IDENTICAL, _COLLAPSED = 1e-2, 1e-4, 1e-3
# Largest error of a kernel matrix, as a fraction of its largest entry. GPyTorch's distances between points that nearly coincide
# are off by 1e-8 of the range of the features, which may be 1e5 lengthscales.
_INACCURATE = 1e-3
# Nearest points with a smaller correlation say nothing about each other.
_UNRELATED = 0.05


@dataclass(frozen=True)
class Words:
    """The remedies of an interface, one per kind of finding, and its name for rewards. By default those of a bandit.

    Attributes:
        rewards: What the values are called.
        noise, collapsed: The noise is far larger than the spread of the values, or than the variance of the kernel.
        mean, large, small: The values are far from the prior mean, or their spread is far from that of the kernel; `large` may
            name the variance as `{variance}`.
        wide, narrow: The lengthscale is far too long, or far too short.
        data_alone: Whether the findings are about a model of data, whose lengthscales are compared with the points in place of
            the arms. If the kernel can be fitted, its variance excuses less of the distance of the values from the prior mean.
    """

    rewards: str = "rewards"
    noise: str = (
        "Give the standard deviation of one evaluation repeated at one arm as noise_std, fit it (fit_kernel_(noise=True)), or "
        "use tb.auto()."
    )
    collapsed: str = "Give the standard deviation of one evaluation repeated at one arm as noise_std, or use tb.auto()."
    mean: str = 'give prior_mean="estimate" or a number, standardise the rewards, or use tb.auto().'
    large: str = "wrap the kernel in a ScaleKernel of outputscale {variance}, standardise the rewards, or use tb.auto()."
    small: str = "Wrap the kernel in a ScaleKernel of a smaller outputscale, standardise the rewards, or use tb.auto()."
    wide: str = "Give a shorter one, fit it (fit_kernel_ or refit_every=), scale the features, or use tb.auto()."
    narrow: str = "Standardise the features, give a longer lengthscale, or use tb.auto()."
    data_alone: bool = False


_OF_BANDIT = Words()


@dataclass
class ScaleWatch:
    """Periodic comparison of a run's observations with its prior, with one warning per finding.

    Checks are made when the distinct points, or the tells, pass 8, 32, 128, …; every other call compares two integers.

    Attributes:
        next_size, next_tells: Numbers of distinct points and of tells at which the next check is made.
        tells: Number of tells so far.
        said: Kinds of findings for which a warning was issued.
    """

    next_size: int = _FIRST
    next_tells: int = _FIRST
    tells: int = 0
    said: set[str] = field(default_factory=set)

    def due(self, size: int, first_fit: int | None) -> bool:
        """Count a tell, and return whether a check is due.

        Args:
            size: Number of distinct points told.
            first_fit: Pulls after which the kernel is fitted for the first time; no check is due before.
        """
        self.tells += 1
        return (size >= self.next_size or self.tells >= self.next_tells) and max(size, self.tells) >= (first_fit or 0)

    def look(
        self, posterior: GaussianProcess, table: ArmTable | None, noise_share: float, weight: Tensor | None = None
    ) -> None:
        """Check the scales.

        Args:
            posterior: Posterior of all observations.
            table: The posterior on the arms, or None if there is none, as in a box.
            noise_share: Noise variance of a reward of weight 1, divided by λ.
            weight: Weight of a pull in each row, `batch_shape`; None for 1.

        Warns (`DiagnosticWarning`): Once per kind of finding, with the remedy. Cost of a check: O(A + u + 32² d).
        """
        issue(self.found(posterior, table, noise_share, weight))

    def found(
        self,
        posterior: GaussianProcess,
        table: ArmTable | None,
        noise_share: float,
        weight: Tensor | None = None,
        words: Words = _OF_BANDIT,
    ) -> list[str]:
        """The texts of the findings of a check as in `look`, without those of a kind that was found before."""
        size = posterior.statistics.size
        # The policy's memory has dropped every pull.
        if size == 0:
            return []
        while self.next_size <= size:
            self.next_size *= _GROWTH
        while self.next_tells <= self.tells:
            self.next_tells *= _GROWTH
        # The scales are estimated from the data.
        if posterior.units is not None:
            return []
        one = torch.ones(posterior.batch_shape, dtype=torch.float64) if weight is None else to_host(weight)[0]
        one = one.expand(posterior.batch_shape)
        found = dict(_findings(posterior, table, (noise_share * posterior.regularization / one).sqrt(), one, words))
        new = {kind: text for kind, text in found.items() if kind not in self.said}
        self.said |= set(new)
        return list(new.values())


@dataclass(frozen=True)
class _Arms:
    """Signs of lengthscales that are too long or too short for the arms, `batch_shape` each, on the host.

    Attributes:
        unpulled: Number of arms that were never pulled.
        here, elsewhere: Largest share of the prior variance that a pulled arm, and an arm never pulled, have lost.
        prior, apart: Average prior variance of 32 sampled arms, and half the average prior variance of their differences.
        differ: Whether the features of these arms differ.
    """

    unpulled: Tensor
    here: Tensor
    elsewhere: Tensor
    prior: Tensor
    apart: Tensor
    differ: Tensor


@dataclass(frozen=True)
class _Scales:
    """Scales of rewards, noise and kernel, `batch_shape` each, on the host.

    Attributes:
        pulls, points: Numbers of pulls and of distinct points.
        seen: Number of the sampled points whose rewards count.
        mean, spread: Mean and standard deviation of all rewards; `spread` includes noise and repeats.
        centre: Prior mean.
        noise: Noise standard deviation of a pull.
        observed: Standard deviation of the average rewards of 32 sampled points, without points whose rewards were forgotten.
        shrunk: Noise variance of these averages.
        prior, within: Average prior variance of these points, and average covariance of two of them (0 for finite features).
        flaws: For kernels other than RBF and Matérn, fractions of the largest entry of the kernel matrix of these points and
            sampled arms, `batch_shape x 3`: |k(x, y) − k(y, x)|, the error of k(x, x), and minus the smallest eigenvalue.
        x, sample: The points, `batch_shape x 32 x d` on their device, and their places, `batch_shape x 32`.
        arms: The same of arms; None without a table, on several ranks, and for finite features.
    """

    pulls: Tensor
    points: Tensor
    seen: Tensor
    mean: Tensor
    spread: Tensor
    centre: Tensor
    noise: Tensor
    observed: Tensor
    shrunk: Tensor
    prior: Tensor
    within: Tensor
    flaws: Tensor | None
    x: Tensor
    sample: Tensor
    arms: _Arms | None

    @classmethod
    def of(cls, posterior: GaussianProcess, table: ArmTable | None, noise: Tensor, weight: Tensor) -> _Scales:
        """The scales of a posterior, given the noise standard deviation of a pull and its weight, `batch_shape`."""
        # The device evaluates the kernel once and reduces over the arms; all numbers come to the host together.
        statistics = posterior.statistics
        points = statistics.num_rows
        sample = (torch.arange(_SAMPLE) * points.unsqueeze(-1)) // _SAMPLE
        spaced = torch.arange(_SAMPLE) * (0 if table is None else table.rows.num_arms) // _SAMPLE
        slots, spaced = to_device(statistics.points.device, sample, spaced.expand_as(sample))
        x, known, flaws = statistics.at(slots), [], None
        if posterior.finite is None:
            looked = () if table is None or table.rows.sharded else _looked_at(table, spaced)
            both = torch.cat([x, *(part.double() for part in looked[-1:])], dim=-2)
            totals, K, *known = to_host(statistics.totals, kernel_among(posterior.kernel, both), *looked)
            if not Stationary.covers(posterior.kernel):
                flaws = _flaws_of(K, to_host(kernel_diagonal(posterior.kernel, both))[0].double())
            sampled = K[..., :_SAMPLE, :_SAMPLE]
            prior, within = sampled.diagonal(dim1=-2, dim2=-1).mean(dim=-1), sampled.mean(dim=(-2, -1))
        else:
            totals, prior = to_host(statistics.totals, posterior.finite.diagonal(x).double().mean(dim=-1))
            within = torch.zeros_like(prior)
        arms = None
        if known:
            unpulled, here, elsewhere, at = known
            here, elsewhere = (1 - posterior.regularization * least for least in (here, elsewhere))
            K = K[..., _SAMPLE:, _SAMPLE:]
            own_prior = K.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
            differ = (at.amax(dim=-2) > at.amin(dim=-2)).any(dim=-1)
            arms = _Arms(unpulled, here, elsewhere, own_prior, own_prior - K.mean(dim=(-2, -1)), differ)
        n, sums, squares = totals.unbind(dim=-1)
        centre = posterior.prior_mean_of(totals)
        pulls = n.sum(dim=-1) / weight
        total = weight * pulls.clamp_min(1)
        mean = sums.sum(dim=-1) / total
        spread = (squares.sum(dim=-1) / total - mean.square()).clamp_min(0).sqrt()
        # Weights may be of any size (noise_var=), and 0 where rewards are forgotten.
        n = n.gather(-1, sample)
        held = n > 0
        share = held.double().mean(dim=-1).clamp_min(1 / _SAMPLE)

        def average(values: Tensor) -> Tensor:
            return torch.where(held, values, 0.0).mean(dim=-1) / share

        y = sums.gather(-1, sample) / n
        observed = average((y - average(y).unsqueeze(-1)).square()).sqrt()
        shrunk = noise**2 * average(weight.unsqueeze(-1) / n)
        seen = points.clamp_max(_SAMPLE) * share
        return cls(pulls, points, seen, mean, spread, centre, noise, observed, shrunk, prior, within, flaws, x, sample, arms)

    @cached_property
    def told(self) -> Tensor:
        """Whether there are enough pulls to judge."""
        return self.pulls >= _FIRST

    @cached_property
    def varied(self) -> Tensor:
        """Whether rewards differ by more than rounding."""
        return self.spread > 1e-9 * self.mean.abs()

    @cached_property
    def below(self) -> Tensor:
        """Whether the spread of the rewards is far below the noise."""
        return self.told & self.varied & (self.spread < self.noise * _least_ratio(self.pulls))

    @cached_property
    def whole(self) -> Tensor:
        """Standard deviation that kernel and noise expect of an average reward."""
        return (self.prior + self.shrunk).sqrt()

    @cached_property
    def wild(self) -> Tensor:
        """Whether averages differ by far more than kernel and noise expect."""
        return self.told & (self.seen >= _FEW) & (self.observed > _FAR_SPREAD * self.whole)


def _findings(
    posterior: GaussianProcess, table: ArmTable | None, noise: Tensor, weight: Tensor, words: Words
) -> Iterator[tuple[str, str]]:
    """The kind and the text of each finding, given the noise standard deviation of a pull and its weight, `batch_shape`."""
    scales = _Scales.of(posterior, table, noise, weight)
    yield from _of_noise(scales, words)
    yield from _of_rewards(scales, words, fitted=bool(posterior.fitted))
    if posterior.finite is not None:
        return
    yield from _of_kernel(scales)
    yield from _of_differences(scales, words)
    if words.data_alone:
        yield from _of_points(posterior, scales, words)
    else:
        yield from _of_arms(posterior, scales)


def _of_noise(scales: _Scales, words: Words) -> Iterator[tuple[str, str]]:
    """Findings about the noise, beside the spread of the rewards and the variance of the kernel."""
    noise, prior = scales.noise, scales.prior
    if (row := _first(scales.below)) is not None:
        yield (
            "noise",
            f"{in_row(row)}the noise, standard deviation {_at(noise, row)}, is far larger than the whole spread of the "
            f"{words.rewards}, {_at(scales.spread, row)}: they are taken for noise alone, and a fit of the kernel collapses. "
            f"{words.noise}",
        )
    if (row := _first(scales.told & (prior < _COLLAPSED * noise**2))) is not None:
        yield (
            "noise",
            f"{in_row(row)}the kernel's variance {_at(prior, row)} is less than a thousandth of the noise's, "
            f"{_at(noise.square(), row)}: {words.rewards} are taken for noise alone, as after a fit that has collapsed. "
            f"{words.collapsed}",
        )


def _of_kernel(scales: _Scales) -> Iterator[tuple[str, str]]:
    """A finding about a kernel of the user's own that is none."""
    if scales.flaws is None or (row := _first((scales.flaws > _INACCURATE).any(dim=-1))) is None:
        return
    uneven, other, negative = (float(flaw) for flaw in scales.flaws[row])
    if uneven > _INACCURATE:
        what = f"k(x, y) and k(y, x) differ by up to {uneven:.2g} of the largest value"
    elif other > _INACCURATE:
        what = f"k(x, x) with diag=True differs from that of the matrix by up to {other:.2g} of the largest value"
    else:
        what = f"its matrix has an eigenvalue of −{negative:.2g} times the largest value, and a kernel has none below 0"
    yield (
        "kernel",
        f"{in_row(row)}the kernel is not a covariance: {what}. Means and deviations are wrong: check the kernel's formula.",
    )


def _of_rewards(scales: _Scales, words: Words, *, fitted: bool) -> Iterator[tuple[str, str]]:
    """Findings about the mean and the spread of the rewards, beside those of kernel and noise."""
    mean, spread, whole, observed = scales.mean, scales.spread, scales.whole, scales.observed
    distance = (mean - scales.centre).abs()
    far = (distance > _FAR_MEAN * whole) & (distance > 2 * spread)
    if words.data_alone and fitted:
        far = far | (scales.varied & (distance > _FAR_MEAN * spread) & (distance > 2 * whole))
    if (row := _first(scales.told & far)) is not None:
        yield (
            "mean",
            f"{in_row(row)}the {words.rewards} have mean {_at(mean, row)} and standard deviation {_at(spread, row)}, far from "
            f"the prior mean {_at(scales.centre, row)} for a kernel of standard deviation {_at(scales.prior.sqrt(), row)}: "
            f"{words.mean}",
        )
    # The remedy of a model's mean is that of its spread.
    if (row := _first(scales.wild & ~far if words.data_alone else scales.wild)) is not None:
        yield (
            "large",
            f"{in_row(row)}the {words.rewards} differ by a standard deviation of {_at(observed, row)}, while kernel and noise "
            f"expect {_at(whole, row)} at most: {words.large.format(variance=_at(observed.square(), row))}",
        )


def _of_differences(scales: _Scales, words: Words) -> Iterator[tuple[str, str]]:
    """Findings about the differences between average rewards, beside those that the kernel expects at their points."""
    observed, seen = scales.observed, scales.seen
    expected = (scales.prior - scales.within + scales.shrunk).clamp_min(0).sqrt()
    some = scales.told & (seen >= _FEW)
    if (row := _first((seen >= _FIRST) & scales.varied & ~scales.below & (observed * _SMALL_SPREAD < expected))) is not None:
        yield (
            "small",
            f"{in_row(row)}the {words.rewards} differ by a standard deviation of {_at(observed, row)}, while the kernel "
            f"expects {_at(expected, row)}: exploration will last far longer than needed. {words.small}",
        )
    if (row := _first(some & ~scales.wild & (observed > _MISFIT * expected))) is not None:
        yield (
            "wide",
            f"{in_row(row)}the {words.rewards} differ by a standard deviation of {_at(observed, row)}, while the kernel and "
            f"the noise allow {_at(expected, row)} at these points: the lengthscale is far too long for the features. "
            f"{words.wide}",
        )


def _of_points(posterior: GaussianProcess, scales: _Scales, words: Words) -> Iterator[tuple[str, str]]:
    """Findings about the lengthscales from the points, where there are no arms."""
    related = _nearest_correlation(posterior, scales.x, scales.sample)
    if (row := _first((scales.points >= _FIRST) & (related < _UNRELATED))) is not None:
        yield (
            "narrow",
            f"{in_row(row)}few of the {int(scales.points[row])} distinct points are informative about another: the lengthscale "
            f"is far shorter than the distance between neighbouring points. {words.narrow}",
        )


def _of_arms(posterior: GaussianProcess, scales: _Scales) -> Iterator[tuple[str, str]]:
    """Findings about the lengthscales, from the arms, their leverages and the size of the dictionary."""
    noise, pulls, points, arms = scales.noise, scales.pulls, scales.points, scales.arms
    many = points >= _FIRST
    if posterior.sparse:
        alone = many & (pulls >= _MANY_PULLS) & (posterior.dictionary_size.cpu() <= 1)
        if (row := _first(alone)) is not None:
            yield (
                "dictionary",
                f"{in_row(row)}the dictionary holds one point after {int(pulls[row])} pulls of {int(points[row])} distinct "
                "arms, so that all arms look the same: the lengthscale is far too long for the features, or the outputscale "
                "far too small. Give others, fit them (fit_kernel_), or use tb.auto().",
            )
    if arms is None:
        return
    others = arms.unpulled >= points
    if (row := _first(many & others & (arms.here > 1e-6) & (arms.elsewhere < _ISOLATED * arms.here))) is not None:
        yield (
            "narrow",
            f"{in_row(row)}no arm has learned anything from the {int(points[row])} distinct arms that were "
            "pulled: the lengthscale is far shorter than the distance between neighbouring arms, so that each must be "
            "pulled to be known. Standardise the features, give a longer lengthscale, or use tb.auto().",
        )
    apart = arms.apart
    if (row := _first(scales.told & arms.differ & (apart < _IDENTICAL * arms.prior) & (apart < noise**2))) is not None:
        yield (
            "wide",
            f"{in_row(row)}to the kernel all arms are nearly the same: it expects them to differ by a standard deviation of "
            f"{_at(apart.clamp_min(0).sqrt(), row)}, less than the noise of {_at(noise, row)}. The lengthscale is far too long "
            "for the features: standardise the features, give a shorter one, fit it (fit_kernel_), or use tb.auto().",
        )


def _flaws_of(K: Tensor, diagonal: Tensor) -> Tensor:
    """The flaws of a kernel matrix, as in `_Scales`. Cost O(n³)."""
    largest = K.abs().amax(dim=(-2, -1)).clamp_min(1e-300)
    uneven = (K - K.mT).abs().amax(dim=(-2, -1))
    other = (K.diagonal(dim1=-2, dim2=-1) - diagonal).abs().amax(dim=-1)
    least = torch.linalg.eigvalsh(K).amin(dim=-1)
    return torch.stack([uneven, other, -least], dim=-1) / largest.unsqueeze(-1)


def _looked_at(table: ArmTable, sample: Tensor) -> tuple[Tensor, ...]:
    """Number of arms never pulled, and the smallest leverage per prior variance of the pulled arms and of those, `batch_shape`
    each, and sampled arms, `batch_shape x 32 x d`."""
    pulled = table.rows.row_of_arm >= 0
    ratio = table.leverage / table.prior_diagonal.clamp_min(1e-300)
    others = ~pulled
    least = (ratio.masked_fill(hidden, torch.inf).amin(dim=-1) for hidden in (others, pulled))
    return others.sum(dim=-1), *least, table.rows.points(sample)


def _nearest_correlation(posterior: GaussianProcess, x: Tensor, sample: Tensor) -> Tensor:
    """The median over sampled points of the largest prior correlation with another point, `batch_shape`, on the host."""
    statistics = posterior.statistics
    X = torch.where(statistics.mask.unsqueeze(-1), statistics.points, statistics.points[..., :1, :])
    K, there, here = to_host(
        kernel_matrix(posterior.kernel, x, X), kernel_diagonal(posterior.kernel, X), kernel_diagonal(posterior.kernel, x)
    )
    correlation = K.abs() / (here.unsqueeze(-1) * there.unsqueeze(-2)).clamp_min(1e-300).sqrt()
    index = torch.arange(X.shape[-2])
    itself = (index == sample.unsqueeze(-1)) | ~statistics.mask_on_host.unsqueeze(-2)
    return correlation.masked_fill(itself, 0.0).amax(dim=-1).median(dim=-1).values


def _least_ratio(pulls: Tensor) -> Tensor:
    """The ratio spread / noise that rewards of pure noise exceed in 99.9% of runs (Wilson & Hilferty 1931), at most a quarter.
    The limit exists because the sub-Gaussian constant of bounded rewards may exceed their spread at the arms of a late run."""
    share = 2 / (9 * (pulls - 1).clamp_min(1))
    return (1 - share - 3.1 * share.sqrt()).clamp_min(0).pow(1.5).clamp_max(_LOUD)


def _first(found: Tensor) -> tuple[int, ...] | None:
    """The first batch row where `found` (`batch_shape`) holds."""
    rows = found.nonzero()
    return tuple(rows[0].tolist()) if len(rows) else None


def _at(values: Tensor, row: tuple[int, ...]) -> str:
    return f"{float(values[row]):.3g}"
