"""Comparisons of posterior variances: with the number of distinct arms, as the effective dimension of the kernel, and with the
exact posterior.

`effective_dimension` judges the kernel, `dictionary_quality` the dictionary. A leverage is a posterior variance over λ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.checks import check_generator, check_whole
from torchbandits.diagnostics import chance
from torchbandits.diagnostics.calibration import left_out
from torchbandits.diagnostics.inputs import (
    averages,
    gaussian,
    noise_of,
    paragraph,
    remarks,
    row_leverage,
    row_mean,
    spoken,
    told_state,
    with_posterior,
    worst_row,
)
from torchbandits.errors import ArgumentError, issue
from torchbandits.kernels import kernel_diagonal
from torchbandits.posteriors import GaussianProcess

LARGEST = 4096
"""Most distinct points whose exact posterior is computed."""

_WORST = 3.0  # largest ratio of leverages that theorem 1 of BKB allows at ε = ½: α = (1 + ε)/(1 − ε)
_NARROW_SHARE, _NARROW_ARMS, _FROM_OTHERS = 0.9, 10, 0.5
_WIDE_SHARE, _WIDE_ARMS = 0.25, 5


@dataclass(frozen=True, eq=False)
class EffectiveDimension:
    r"""The effective dimension d_eff = Σ n_i lev(x_i), and the numbers for comparison. All are `batch_shape`.

    Attributes:
        dimension: d_eff, the number of directions that the rewards have determined. From the policy's own leverages: at most
            u where they are exact, and more where a poor dictionary makes them too large.
        distinct_arms: Distinct points pulled, u.
        dictionary_size: Points in the dictionary; finite features have none, and u stands here.
        pulls: Pulls in the posterior.
        from_others: Median over the points of the share of prior variance that the *other* points explain.
        misfit: Σ (average − mean)² over the variance of each average's noise (under FITC for a sparse posterior).
        misfit_limit: Bound that the misfit exceeds with probability at most 0.001 if the model is right: it is below χ²_u.
        warnings, notes: In plain words.
    """

    dimension: Tensor
    distinct_arms: Tensor
    dictionary_size: Tensor
    pulls: Tensor
    from_others: Tensor
    misfit: Tensor
    misfit_limit: Tensor
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One paragraph."""
        text = (
            f"Effective dimension {spoken(self.dimension)} of {spoken(self.distinct_arms, '.0f')} distinct arms after "
            f"{spoken(self.pulls, '.0f')} pulls; the dictionary holds {spoken(self.dictionary_size, '.0f')} points. Other arms "
            f"explain {spoken(self.from_others, '.0%')} of an arm's prior variance (median)."
        )
        return paragraph(text, self.warnings, self.notes)


@torch.no_grad()
def effective_dimension(bandit: Bandit, *, noise_std: float | None = None) -> EffectiveDimension:
    r"""Effective dimension of the data under the kernel, and whether kernel and data agree with it.

    Close to the number of distinct arms, the length-scale is too short to generalise; far below it, while the posterior mean
    misses the averages, the length-scale is too long.

    .. math:: d_{eff} = \sum_i n_i\,\mathrm{lev}(x_i) = \mathrm{tr}\, K (K + \lambda N^{-1})^{-1}

    Args:
        bandit: Must have been told rewards. For pi_gp_ucb each arm counts in its cell of the smallest variance.
        noise_std: Standard deviation of the noise; by default the policy's, or the fitted one.

    Raises:
        UnsupportedError: For policies without a posterior.

    Warns (`DiagnosticWarning`): If at least 10 arms are nearly one dimension each (d_eff ≥ 0.9 u) and the others explain less
    than half of an arm's variance: a fact of kernel and arms, without chance. If at least 5 arms are far fewer dimensions
    (d_eff < u/4) and their averages miss the mean by more than noise: one chance in a thousand a batch row when the model is
    right. Cost: O(u); O(u m²) for a sparse posterior, or where points from outside the arms were told.
    """
    state = with_posterior(told_state(bandit), "effective_dimension")
    process, mask, n = state.process, state.statistics.pulled, state.statistics.weights
    lam = process.regularization
    leverage = torch.where(mask, row_leverage(state), 0.0)
    dimension, u = (n * leverage).sum(dim=-1), mask.sum(dim=-1).double()
    noise, y = noise_of(bandit, noise_std), averages(state)
    if isinstance(process, GaussianProcess):
        left = left_out(process, mask, y)
        alone, prior, own, fitted = left.variance / lam, left.prior / lam, left.own, left.fitted
    else:
        # Exact on the points it keeps: without its own pulls an arm has leverage lev/(1 − n lev), at most the prior's.
        prior = kernel_diagonal(process.kernel, state.statistics.points) / lam
        alone = torch.minimum(leverage / (1 - n * leverage).clamp_min(1e-300), prior)
        own, fitted = lam / n.clamp_min(1e-300), row_mean(state)
    share = torch.where(mask, 1 - alone / prior.clamp_min(1e-300), torch.nan)
    from_others = share.nanmedian(dim=-1).values
    # λ (λ + N^½ K N^½)⁻¹ shrinks every direction of the noise, so the misfit is below χ² as long as λ ≥ noise², or nearly so.
    own = own + max(0.0, noise**2 - lam) / n.clamp_min(1e-300)
    misfit = torch.where(mask, (y - fitted).square() / own, 0.0).sum(dim=-1)
    limit = chance.chi_square(u, chance.FALSE_ALARM)
    record = EffectiveDimension(
        dimension=dimension,
        distinct_arms=u,
        dictionary_size=process.dictionary_size.to(u),
        pulls=state.statistics.pulls,
        from_others=from_others,
        misfit=misfit,
        misfit_limit=limit,
        notes=tuple(remarks(state)),
    )
    record = replace(record, warnings=tuple(_kernel_verdict(record)))
    issue(record.warnings)
    return record


def _kernel_verdict(record: EffectiveDimension) -> list[str]:
    dimension, u, from_others = record.dimension, record.distinct_arms, record.from_others
    misfit, limit = record.misfit, record.misfit_limit
    found: list[str] = []
    narrow = (u >= _NARROW_ARMS) & (dimension >= _NARROW_SHARE * u) & (from_others < _FROM_OTHERS)
    if bool(narrow.any()):
        row, where = worst_row(narrow, dimension / u)
        found.append(
            f"{where}the effective dimension {float(dimension[row]):.3g} nears the {int(u[row])} distinct arms, and other arms "
            f"explain only {float(from_others[row]):.0%} of an arm's variance: every arm is its own dimension, so each must be "
            "pulled to be known. The kernel is too narrow for these arms: use a longer lengthscale, or fit it."
        )
    wide = (u >= _WIDE_ARMS) & (dimension < _WIDE_SHARE * u) & (misfit > limit)
    if bool(wide.any()):
        row, where = worst_row(wide, misfit / limit)
        found.append(
            f"{where}the effective dimension is {float(dimension[row]):.3g}, so that {int(u[row])} distinct arms look "
            f"much the same, yet their averages miss the posterior mean by {float(misfit[row]):.3g} noise variances in all, "
            f"where chance gives at most {float(limit[row]):.3g}. The kernel is too wide, or noise_std too small: use a "
            "shorter lengthscale or a larger outputscale, or fit them."
        )
    return found


# ---------------------------------------------------------------------- the dictionary


@dataclass(frozen=True, eq=False)
class DictionaryQuality:
    """Approximate over exact leverage on some arms: 1 if the dictionary loses nothing, above 1 if the variance is too large.

    Attributes:
        lowest, median, highest: `batch_shape`.
        arms: `s`, the compared arms; empty for an exact posterior, whose ratio is 1 by definition.
        ratios: `batch_shape x s`.
        dictionary_size, distinct_arms: `batch_shape`.
        warnings, notes: In plain words.
    """

    lowest: Tensor
    median: Tensor
    highest: Tensor
    arms: Tensor
    ratios: Tensor
    dictionary_size: Tensor
    distinct_arms: Tensor
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> Tensor:
        """The ratio farthest from 1, by factors, `batch_shape`."""
        return torch.where(self.highest * self.lowest >= 1, self.highest, self.lowest)

    def __str__(self) -> str:
        """One paragraph."""
        if not self.arms.numel():
            text = "The posterior is exact on the data it keeps: its leverages are the exact leverages by definition."
        else:
            text = (
                f"Approximate over exact leverage on {self.arms.numel()} arms: median {spoken(self.median)}, lowest "
                f"{spoken(self.lowest)}, highest {spoken(self.highest)}, with {spoken(self.dictionary_size, '.0f')} dictionary "
                f"points for {spoken(self.distinct_arms, '.0f')} distinct arms."
            )
        return paragraph(text, self.warnings, self.notes)


@torch.no_grad()
def dictionary_quality(bandit: Bandit, *, size: int = 256, generator: torch.Generator | None = None) -> DictionaryQuality:
    """Approximate leverage (variance / λ) over the exact one on a sample of arms.

    Args:
        bandit: Must have been told rewards.
        size: Largest number of arms to compare; all of them if there are no more.
        generator: Draws the arms, the same for all batch rows; a fresh one with seed 0 by default.

    Raises:
        ArgumentError: If there are more than 4,096 distinct points.
        UnsupportedError: For policies without a posterior, and for pi_gp_ucb.

    Warns (`DiagnosticWarning`): If a ratio lies outside [1/3, 3]. Cost: O(u³ + s u²), u distinct points: on request only.
    Source: Calandriello et al. 2019, Thm 1 (α = 3 at ε = ½).
    """
    check_whole("size", size)
    if generator is not None:
        check_generator(generator)
    state = told_state(bandit)
    process = gaussian(
        state, "dictionary_quality", "its cells are exact on their own pulls: see their numbers in the posterior"
    )
    u = state.statistics.pulled.sum(dim=-1).double()
    points = process.dictionary_size.to(u)
    if not process.sparse and process.finite is None:
        one, none = torch.ones_like(u), torch.zeros(0, dtype=torch.int64, device=u.device)
        return DictionaryQuality(one, one, one, none, u.new_zeros(*u.shape, 0), points, u, (), tuple(remarks(state)))
    most = int(u.max())
    if most > LARGEST:
        raise ArgumentError(
            f"the exact posterior of {most} distinct points takes O(u³); dictionary_quality stops at {LARGEST}. Judge a "
            "shorter run of the same policy, or compare with a larger oversampling."
        )
    A = bandit.arms.shape[-2]
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    chosen = torch.randperm(A, generator=generator)[:size].sort().values.to(bandit.device)
    exact = GaussianProcess(
        process.kernel,
        process.regularization,
        dim=bandit.arms.shape[-1],
        batch_shape=process.batch_shape,
        device=bandit.device,
    )
    exact.statistics = process.statistics
    x = state.rows.points(chosen.expand(*process.batch_shape, -1)).double()
    right = exact.leverage(x.expand(*process.batch_shape, *x.shape[-2:]))
    # Below this floor both are rounding errors.
    floor = torch.finfo(torch.float64).eps * right.amax(dim=-1, keepdim=True)
    ratios = state.arm_leverage()[..., chosen].clamp_min(floor) / right.clamp_min(floor)
    low, high = ratios.amin(dim=-1), ratios.amax(dim=-1)
    record = DictionaryQuality(low, ratios.median(dim=-1).values, high, chosen, ratios, points, u, (), tuple(remarks(state)))
    record = replace(record, warnings=tuple(_dictionary_verdict(record, process.finite is not None)))
    issue(record.warnings)
    return record


def _dictionary_verdict(record: DictionaryQuality, features: bool) -> list[str]:
    low, high = record.lowest, record.highest
    bad = (low < 1 / _WORST) | (high > _WORST)
    if not bool(bad.any()):
        return []
    row, where = worst_row(bad, torch.maximum(high, 1 / low))
    cure = "raise num_features" if features else "raise oversampling (q̄)"
    lacking = "features are too few" if features else f"{int(record.dictionary_size[row])} dictionary points are too few"
    return [
        f"{where}approximate leverages are {float(low[row]):.3g} to {float(high[row]):.3g} times the exact ones, outside "
        f"[1/3, 3]: the {lacking} for {int(record.distinct_arms[row])} distinct arms: {cure}."
    ]
