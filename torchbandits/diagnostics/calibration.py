"""Coverage of the posterior's intervals: on held-out pulls, or leaving each arm out in closed form.

`Calibration` is the record of both, with its figure; `left_out` predicts every distinct point without its own pulls.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.checks import as_tensor, check_picks, check_rewards, is_whole, non_negative
from torchbandits.diagnostics import chance
from torchbandits.diagnostics.inputs import (
    averages,
    check_levels,
    factors_of,
    gaussian,
    noise_of,
    oversized,
    paragraph,
    remarks,
    spoken,
    told_state,
    with_posterior,
    worst_row,
)
from torchbandits.errors import ArgumentError, NonFiniteError, ShapeError, UnsupportedError, issue, require
from torchbandits.figures import COLORS, tidy
from torchbandits.posteriors import AtPoints, GaussianProcess, PartitionedProcess, Regression, Units
from torchbandits.types import Marginals

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Nominal levels of the intervals that are judged by default."""
BLUE, ORANGE = COLORS[5], COLORS[4]

_REACH = 5.0  # standardised residuals beyond this are counted at the edge of the figure
_FIX = "fit the kernel's hyper-parameters and the noise to the data"


@torch.no_grad()
def calibration(
    source: Bandit | GaussianProcess | PartitionedProcess,
    index_or_points: Tensor,
    rewards: Tensor,
    *,
    noise_std: float | None = None,
    levels: Sequence[float] = LEVELS,
) -> Calibration:
    r"""Coverage of rewards that the posterior has not seen: held-out pulls, or pulls from elsewhere.

    Args:
        source: A bandit, or a posterior. Pending picks do not count.
        index_or_points: Arms (integers, −1 where masked) `n` or `batch_shape x n`, bandits only; or points
            `n x d` or `batch_shape x n x d`.
        rewards: Shaped like the index; reward units. Single rewards, not averages.
        noise_std: Standard deviation of the noise; by default the policy's, or the fitted one, √λ for a posterior.
        levels: Nominal levels in (0, 1).

    Returns:
        The calibration. The band accounts for the correlation of errors at nearby points, by the covariances of the posterior
        (for pi_gp_ucb, which has none between cells, by the largest covariances that its variances allow, which makes the band
        wide).

    Raises:
        ShapeError, NonFiniteError, ArmIndexError, ArgumentError: On bad input.
        UnsupportedError: For policies without a posterior.

    Warns (`DiagnosticWarning`): If a fraction leaves the band, which has a probability of 0.001 per batch row when the model is
    right. Cost: O(n² m), m dictionary points.
    """
    checked = check_levels(levels)
    if isinstance(source, Bandit):
        state = with_posterior(told_state(source), "calibration")
        process, notes, noise = state.process, remarks(state), noise_of(source, noise_std)
        where = as_tensor("index_or_points", index_or_points)
        if where.is_floating_point():
            x, mask = where, None
        else:
            given = where.expand(*source.batch_shape, -1) if where.dim() == 1 else where
            picks, mask = check_picks(given, source.batch_shape, source.arms.shape[-2], source.device, padded=True)
            x = state.rows.points(picks)
    else:
        if not isinstance(source, GaussianProcess | PartitionedProcess):
            raise ArgumentError(f"source must be a bandit or a posterior, got {type(source).__name__}.")
        process, notes, x, mask = source, [], index_or_points, None
        noise = math.sqrt(process.regularization) if noise_std is None else non_negative("noise_std", noise_std)
    x, y, mask = _checked(process, x, rewards, mask)
    units = process.units if isinstance(process, GaussianProcess) else None
    y = y if units is None else units.to_model(y)
    mean, variance, covariance = _predictions(process, x)
    std = (variance + noise**2).sqrt()
    if covariance is None:
        size = chance.least_effective_size((variance / std.square()).nan_to_num(0.0), mask)
    else:
        size = chance.effective_size(covariance, std, mask)
    wide = oversized(process, noise)
    record = _in_reward_units(judge("held-out rewards", checked, (mean, std, y, mask), size, wide, notes), units)
    issue(record.warnings)
    return record


@torch.no_grad()
def leave_one_out(bandit: Bandit, *, noise_std: float | None = None, levels: Sequence[float] = LEVELS) -> Calibration:
    r"""Coverage of each arm's average reward, predicted without any pull of that arm. No held-out data are needed.

    With M = K + λN⁻¹ and the averages ȳ of the distinct points, in closed form

    .. math:: \bar y_i - \mu_{-i} = \frac{[M^{-1} (\bar y - \mu_0)]_i}{[M^{-1}]_{ii}}, \qquad
              \mathrm{var}(\bar y_i - \mu_{-i}) = 1 / [M^{-1}]_{ii}

    For a sparse posterior M is ZᵀZ + R + λN⁻¹ instead, R the diagonal of the kernel that the dictionary's features z miss
    (FITC; the dictionary stays as it is): kernel and noise are judged as the dictionary sees them, not DTC's own mean. For
    finite features R = 0.

    Args:
        bandit: Must have been told rewards. Pending picks do not count.
        noise_std: Standard deviation of the noise; by default the policy's, or the fitted one. The posterior keeps its own λ.
        levels: Nominal levels in (0, 1).

    Returns:
        The calibration of n = u distinct points, in order of first pull.

    Raises:
        UnsupportedError: For policies without a posterior, and for pi_gp_ucb.

    Warns (`DiagnosticWarning`): As `calibration`. The band ignores that the choice of arms depended on the rewards; in
    simulated runs of GP-UCB this raised no more than one alarm in a thousand. Digits are lost where an arm's own pulls
    outweigh all else: means are accurate to eps · n k/λ of the average. Cost: O(u m² + u² m).
    Source: Rasmussen & Williams 2006, section 5.4.2, for one observation per point.
    """
    checked = check_levels(levels)
    state = told_state(bandit)
    process = gaussian(state, "leave_one_out", "hold pulls out and use calibration()")
    noise, mask, y = noise_of(bandit, noise_std), state.statistics.pulled, averages(state)
    left = left_out(process, mask, y)
    std = (left.variance + noise**2 / torch.where(mask, process.statistics.weights, 1.0)).sqrt()
    notes = remarks(state)
    if process.sparse:
        notes.append("the prior's residual that the dictionary misses counts as noise here (FITC)")
    if process.prior_mean == "estimate":
        notes.append("the prior mean is estimated without the arm too")
    size = chance.effective_size(left.covariance, std, mask)
    wide = oversized(process, noise)
    record = judge("averages of arms left out", checked, (left.mean, std, y, mask), size, wide, notes)
    record = _in_reward_units(record, process.units)
    issue(record.warnings)
    return record


def _in_reward_units(record: Calibration, units: Units | None) -> Calibration:
    """A record of predictions in the units of a model, which intervals, residuals and densities are judged in, with means and
    deviations in reward units."""
    if units is None:
        return record
    predicted = units.marginals(Marginals(record.mean, record.std.square()))
    notes = (*record.notes, "residuals and densities are of the rewards' normal scores, the units of the model")
    return replace(record, mean=predicted.mean, std=predicted.variance.sqrt(), notes=notes)


def _checked(
    process: GaussianProcess | PartitionedProcess, x: Tensor, rewards: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Points `batch_shape x n x d`, rewards `batch_shape x n` and their mask."""
    d = process.statistics.points.shape[-1]
    x = as_tensor("index_or_points", x)
    good = isinstance(x, Tensor) and x.is_floating_point() and x.dim() >= 2 and x.shape[-1] == d
    if not good:
        raise ShapeError(
            f"index_or_points must be floating point, n x {d} or batch_shape x n x {d}; arms are indices of a bandit."
        )
    require(bool(torch.isfinite(x).all()), "index_or_points have a NaN or infinite feature.", NonFiniteError)
    y = as_tensor("rewards", rewards)
    shape = torch.Size([*process.batch_shape, x.shape[-2]])
    some = x.shape[-2] > 0 and (mask is None or bool(mask.any()))
    require(some, "there are no held-out rewards: give at least one.")
    # One number would be spread over all places.
    alike = y.shape[-1:] == shape[-1:]
    require(alike, f"rewards must be shaped like the index, with {shape[-1]} each, got {tuple(y.shape)}.", ShapeError)
    try:
        x, y = x.expand(*shape, d), y.expand(shape) if y.dim() == 1 else y
    except RuntimeError as error:
        whole = (*process.batch_shape, "n", d)
        raise ShapeError(f"index_or_points must be n x {d} or {whole}, got {tuple(x.shape)}.") from error
    mask = torch.ones(shape, dtype=torch.bool, device=x.device) if mask is None else mask
    y = check_rewards(y, mask, mask, x.device)
    return x.double(), torch.where(mask, y, 0.0), mask


def _predictions(
    process: GaussianProcess | PartitionedProcess, x: Tensor
) -> tuple[Tensor, Tensor, Callable[[slice], Tensor] | None]:
    """Mean, variance of f given the rewards told, and their covariances part by part."""
    lam = process.regularization
    if isinstance(process, PartitionedProcess):
        return process(x).mean, lam * process.leverage(x), None
    with factors_of(process) as fit:
        every = fit.at(x)
        known = process.marginals(x, None)

    def covariance(part: slice) -> Tensor:
        share = None if every.share is None else every.share[..., part]
        some = AtPoints(x[..., part, :], every.whitened[..., part], every.features[..., part], share)
        return lam * fit.covariance(some, every)

    return known.mean, known.variance, covariance


# ---------------------------------------------------------------------- the record


@dataclass(frozen=True, eq=False)
class Calibration:
    r"""Coverage of the intervals mean ± z √(variance + noise²), and its range under a right model.

    Attributes:
        judged: Name of the predicted quantity, in words.
        levels: L nominal levels.
        coverage: `batch_shape x L`, fraction inside.
        lower, upper: `batch_shape x L`. With probability 0.999 all fractions lie between them if the model is right. A
            binomial band of `effective_size` coins.
        effective_size: `batch_shape`, number of independent rewards whose coverage would vary at least as much.
        count: `batch_shape`, number of predictions.
        residuals: `batch_shape x n`, standardised: (reward − mean) / std; NaN where masked.
        mean, std: `batch_shape x n`, of the predictions, reward units; the noise is in `std`.
        mean_square: `batch_shape`, of the standardised residuals; 1 is expected.
        log_density: `batch_shape`, average log predictive density, nats (of the reward unit): larger is better.
        warnings, notes: In plain words.
    """

    judged: str
    levels: tuple[float, ...]
    coverage: Tensor
    lower: Tensor
    upper: Tensor
    effective_size: Tensor
    count: Tensor
    residuals: Tensor
    mean: Tensor
    std: Tensor
    mean_square: Tensor
    log_density: Tensor
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One paragraph."""
        shown = [i for i, p in enumerate(self.levels) if p in (0.5, 0.9, 0.99)] or range(len(self.levels))
        held = ", ".join(
            f"{self.levels[i]:.0%} intervals hold {spoken(self.coverage[..., i], '.0%')} "
            f"(by chance {float(self.lower[..., i].amin()):.0%} … {float(self.upper[..., i].amax()):.0%})"
            for i in shown
        )
        text = (
            f"Of {spoken(self.count, '.0f')} {self.judged}, {held}. Standardised residuals have mean square "
            f"{spoken(self.mean_square)} (1 is expected), log predictive density is {spoken(self.log_density)} nats each."
        )
        return paragraph(text, self.warnings, self.notes)

    def figure(self, row: tuple[int, ...] = ()) -> Figure:
        """Coverage against the nominal level with the band of chance, and the standardised residuals beside it.

        Args:
            row: The batch row, one number per batch dimension.

        Raises:
            UnsupportedError: If Matplotlib is not installed.
        """
        shape = self.count.shape
        inside = isinstance(row, tuple) and all(is_whole(i, 0) for i in row)
        inside = inside and len(row) == len(shape) and all(map(operator.lt, row, shape))
        require(inside, f"row must be one of the batch rows {tuple(shape)}, got {row}.")
        try:
            return draw(self, row)
        except ModuleNotFoundError as error:
            message = f'figures need {error.name}, which is not installed: pip install "torchbandits[experiments]".'
            raise UnsupportedError(message) from error


def judge(
    judged: str,
    levels: tuple[float, ...],
    predictions: tuple[Tensor, Tensor, Tensor, Tensor],
    size: Tensor,
    wide_by_choice: bool,
    notes: list[str],
) -> Calibration:
    """The calibration of predictions (mean, std, reward and mask, `batch_shape x n` each)."""
    mean, std, y, mask = predictions
    std = std.clamp_min(torch.finfo(std.dtype).tiny)
    residuals = torch.where(mask, (y - mean) / std, torch.nan)
    count = mask.sum(dim=-1).double()
    inside = residuals.abs().unsqueeze(-1) <= chance.half_widths(levels).to(std)
    coverage = inside.sum(dim=-2) / count.unsqueeze(-1)
    lower, upper = chance.binomial_band(size, levels, chance.FALSE_ALARM / len(levels))
    squares = residuals.square()
    density = -0.5 * (squares + math.log(2 * math.pi)) - std.log()
    p = torch.tensor(levels, dtype=torch.float64, device=std.device)
    sigmas = (coverage - p) / (p * (1 - p) / size.clamp_min(1).unsqueeze(-1)).sqrt()
    found: list[str] = []
    for narrow in (True, False):
        outside = coverage < lower if narrow else coverage > upper
        if not bool(outside.any()):
            continue
        if not narrow and wide_by_choice:
            notes = [*notes, "intervals are wider than predictions should be, because λ is well above noise_std²"]
            continue
        row, where = worst_row(outside.any(dim=-1), torch.where(outside, sigmas.abs(), -torch.inf).amax(dim=-1))
        at = int(torch.where(outside[row], sigmas[row].abs(), -torch.inf).argmax())
        found.append(where + _verdict(narrow, levels[at], float(coverage[row][at]), float(count[row]), judged))
    return Calibration(
        judged=judged,
        levels=levels,
        coverage=coverage,
        lower=lower,
        upper=upper,
        effective_size=size,
        count=count,
        residuals=residuals,
        mean=torch.where(mask, mean, torch.nan),
        std=torch.where(mask, std, torch.nan),
        mean_square=squares.nansum(dim=-1) / count,
        log_density=torch.where(mask, density, 0.0).sum(dim=-1) / count,
        warnings=tuple(found),
        notes=tuple(notes),
    )


def _verdict(narrow: bool, level: float, coverage: float, count: float, judged: str) -> str:
    told = f"intervals hold {coverage:.0%} of {count:.0f} {judged} where they should hold {level:.0%}, which is not chance: "
    if narrow:
        return (
            f"{told}they are too narrow. The lengthscale is likely too long, or noise_std or the outputscale too small: {_FIX}."
        )
    return f"{told}they are too wide. The lengthscale is likely too short, or noise_std or the outputscale too large: {_FIX}."


# ---------------------------------------------------------------------- its figure


def draw(record: Calibration, row: tuple[int, ...]) -> Figure:
    """Two panels: coverage against the nominal level, and the standardised residuals. No display, no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - of an extra, and slow to load
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9.2, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    draw_coverage(left, record, row)
    draw_residuals(right, record, row)
    (handles, labels), (others, names) = (axes.get_legend_handles_labels() for axes in (left, right))
    # Below the axes, so that it can't cover the data.
    figure.legend([*handles, *others], [*labels, *names], loc="outside lower center", ncols=5, frameon=False, fontsize="small")
    return figure


def draw_coverage(axes: Axes, record: Calibration, row: tuple[int, ...]) -> None:
    """Coverage of the intervals of every level, the band of chance, and the diagonal."""
    z = np.abs(_standardised(record, row))
    lower, upper = (column[row].cpu().numpy() for column in (record.lower, record.upper))
    levels = np.array([0.0, *record.levels, 1.0])
    order = np.argsort(levels)
    low, high = (np.array([0.0, *edge, 1.0])[order] for edge in (lower, upper))
    axes.fill_between(levels[order], low, high, color="0.85", linewidth=0, label="99.9 % band of chance")
    axes.plot([0, 1], [0, 1], color="0.4", linewidth=1.0, linestyle="--", label="as it should be")
    # Also between the given levels: a reward lies inside every interval from the level of its own residual upwards.
    own = np.sort(_level_of(z))
    axes.step([0, *own, 1], [0, *(np.arange(1, len(own) + 1) / len(own)), 1], where="post", color=BLUE, label="coverage")
    axes.plot(record.levels, record.coverage[row].cpu().numpy(), "o", color=BLUE, markersize=3.5, clip_on=False)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.01)
    axes.set_aspect("equal")
    axes.set_xlabel("nominal level of the interval (fraction)")
    axes.set_ylabel("coverage (fraction inside)")
    axes.set_title(f"{int(record.count[row])} {record.judged}", fontsize="medium")
    tidy(axes)


def draw_residuals(axes: Axes, record: Calibration, row: tuple[int, ...]) -> None:
    """Histogram of the standardised residuals under the standard normal density."""
    z = _standardised(record, row)
    edges = np.linspace(-_REACH, _REACH, 2 * int(np.clip(round(len(z) ** 0.5), 5, 20)) + 1)
    weights = np.full(len(z), 1 / (len(z) * (edges[1] - edges[0])))
    axes.hist(z.clip(-_REACH, _REACH), bins=edges.tolist(), weights=weights, color=ORANGE, alpha=0.55, label="residuals")
    grid = np.linspace(-_REACH, _REACH, 201)
    axes.plot(grid, np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi), color="black", linewidth=1.2, label="standard normal")
    beyond = int((np.abs(z) > _REACH).sum())
    axes.set_xlim(-_REACH, _REACH)
    axes.set_xlabel("standardised residual: (reward − mean) / std (no unit)")
    axes.set_ylabel("density")
    if beyond:  # counted in the outermost bars
        ticks = [-_REACH, -2.5, 0.0, 2.5, _REACH]
        axes.set_xticks(ticks, [f"≤ −{_REACH:g}", "−2.5", "0", "2.5", f"≥ {_REACH:g}"])
    far = f", {beyond} beyond ±{_REACH:g}" if beyond else ""
    axes.set_title(f"mean square {float(record.mean_square[row]):.3g} (1 expected){far}", fontsize="medium")
    tidy(axes)


def _standardised(record: Calibration, row: tuple[int, ...]) -> np.ndarray:
    z = record.residuals[row].cpu().numpy()
    return z[~np.isnan(z)]


def _level_of(half_width: np.ndarray) -> np.ndarray:
    """Probability that a standard normal is within ±z."""
    return np.vectorize(math.erf)(half_width / np.sqrt(2))


# ---------------------------------------------------------------------- every point without its own pulls


@dataclass(frozen=True)
class LeftOut:
    r"""Predictions of f at the u distinct points from the averages ȳ of the others, under M = ZᵀZ + R + λN⁻¹.

    R holds the residuals r = k(x,x) − \|z\|²: zero for an exact posterior and for finite features. For a sparse one this is
    FITC, not the DTC of the policy: DTC treats the residuals of other points as information, so that under a small dictionary
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
        directions: `batch_shape x m x u`, with products −cov.
    """

    mean: Tensor
    variance: Tensor
    fitted: Tensor
    own: Tensor
    prior: Tensor
    directions: Tensor

    def covariance(self, part: slice) -> Tensor:
        """Covariances of the errors of some points with those of all points, `batch_shape x part x u`; the diagonal is not
        valid."""
        return -(self.directions[..., part].mT @ self.directions)


def left_out(process: GaussianProcess, mask: Tensor, average: Tensor) -> LeftOut:
    """Predict every point of the mask (`batch_shape x u`) from the averages of the others. Cost O(u m² + m³)."""
    statistics, lam = process.statistics, process.regularization
    n, x = torch.where(mask, statistics.weights, 1.0), statistics.points
    with factors_of(process) as fit:
        z, regression = fit.features, fit.regression
        diagonal = fit.embedding.diagonal(x)
        explained = z.square().sum(dim=-2)
        residual = (diagonal - explained).clamp_min(0) if process.sparse else torch.zeros_like(explained)
        if (effects := process.effects) is not None:
            residual, diagonal = residual + effects.variance.unsqueeze(-1), diagonal + effects.variance.unsqueeze(-1)
        weights = n / (1 + n * residual / lam)
        if process.sparse:
            told = torch.where(mask, weights, 0.0)
            regression = Regression(z.mT, told, process.targets_of(told, told * average), lam)
        whitened = regression.precision.whiten(z)
        channels = regression.mean(z)
    leverage = whitened.square().sum(dim=-2)
    # 1 − h cancels for a point that no other informs: its variance is at most the prior's.
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
    """Average minus the mean without the point, `batch_shape x u`. An estimated prior mean leaves out the point as well."""
    if process.prior_mean != "estimate":
        return (average - fitted) / kept
    statistics = process.statistics
    others = statistics.pulls.unsqueeze(-1) - statistics.weights
    mu = (statistics.sums.sum(dim=-1, keepdim=True) - statistics.sums) / others.clamp_min(1e-300)
    mu = torch.where(others > 1e-9 * statistics.weights, mu, 0.0)
    return (average - channels[..., 0, :]) / kept - mu * (1 - channels[..., 1, :]) / kept
