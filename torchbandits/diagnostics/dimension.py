"""How many numbers the data are worth to the kernel: too narrow, and every arm is one of its own; too wide, and all are one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.diagnostics import chance
from torchbandits.diagnostics.evidence import (
    averages,
    noise_of,
    paragraph,
    pulled,
    remarks,
    row_leverage,
    row_mean,
    spoken,
    told_state,
    with_posterior,
    worst_row,
)
from torchbandits.diagnostics.left_out import left_out
from torchbandits.embeddings import kernel_diagonal
from torchbandits.errors import issue
from torchbandits.posteriors import GaussianProcess

_NARROW_SHARE, _NARROW_ARMS, _FROM_OTHERS = 0.9, 10, 0.5
_WIDE_SHARE, _WIDE_ARMS = 0.25, 5


@dataclass(frozen=True, eq=False)
class EffectiveDimension:
    r"""d_eff = Σ n_i lev(x_i) beside what it is to be compared with. Everything is `batch_shape`.

    Attributes:
        dimension: d_eff, the number of directions that the rewards have determined. From the policy's own leverages: at most
            u where they are exact, and more where a poor dictionary makes them too large.
        distinct_arms: Distinct points pulled, u.
        dictionary_size: Points in the dictionary; finite features have none, and u stands here.
        pulls: Pulls in the posterior.
        from_others: Median over the points of the share of prior variance that the *other* points explain.
        misfit: Σ (average − mean)² over the variance of each average's noise (under FITC for a sparse posterior).
        misfit_limit: What the misfit exceeds with probability 0.001 at most, if the model is right: it is less than χ²_u.
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
    r"""The effective dimension of the rewards told, and whether kernel and data agree with it.

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
    process, mask, n = state.process, pulled(state), state.statistics.weights
    lam = process.regularization
    leverage = torch.where(mask, row_leverage(state), 0.0)
    dimension, u = (n * leverage).sum(dim=-1), mask.sum(dim=-1).double()
    noise, y = noise_of(bandit, noise_std), averages(state)
    if isinstance(process, GaussianProcess) and process.sparse:
        left = left_out(process, mask, y)
        alone, prior, own, fitted = left.variance / lam, left.prior / lam, left.own, left.fitted
    else:  # exact on what it keeps: without its own pulls an arm has leverage lev/(1 − n lev), at most the prior's
        prior = kernel_diagonal(process.kernel, state.statistics.points) / lam
        alone = torch.minimum(leverage / (1 - n * leverage).clamp_min(1e-300), prior)
        own, fitted = lam / n.clamp_min(1e-300), row_mean(state)
    share = torch.where(mask, 1 - alone / prior.clamp_min(1e-300), torch.nan)
    from_others = share.nanmedian(dim=-1).values
    # λ (λ + N^½ K N^½)⁻¹ shrinks every direction of the noise, so that the misfit is below χ² while λ ≥ noise² or close.
    own = own + max(0.0, noise**2 - lam) / n.clamp_min(1e-300)
    misfit = torch.where(mask, (y - fitted).square() / own, 0.0).sum(dim=-1)
    limit = chance.chi_square(u, chance.FALSE_ALARM)
    record = EffectiveDimension(
        dimension=dimension,
        distinct_arms=u,
        dictionary_size=process.dictionary_size.double(),
        pulls=state.statistics.pulls,
        from_others=from_others,
        misfit=misfit,
        misfit_limit=limit,
        notes=tuple(remarks(state)),
    )
    record = replace(record, warnings=tuple(_verdict(record)))
    issue(record.warnings)
    return record


def _verdict(record: EffectiveDimension) -> list[str]:
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
