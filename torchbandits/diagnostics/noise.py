"""Noise estimated from repeated pulls, compared with the noise that the policy assumes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.checks import non_negative
from torchbandits.diagnostics import chance
from torchbandits.diagnostics.inputs import believed_noise, noise_of, paragraph, remarks, spoken, told_state, worst_row
from torchbandits.errors import issue
from torchbandits.policies.state import GaussianState

_ROUNDING = 64 * torch.finfo(torch.float64).eps  # part of the sum of squares that its difference to sum²/n can't resolve


@dataclass(frozen=True, eq=False)
class Noise:
    r"""Pooled variance within arms, with the interval of its χ² distribution. All but `believed` are `batch_shape`.

    Attributes:
        estimate: Standard deviation, reward units; NaN if no arm was pulled twice with any spread.
        lower, upper: It lies between them with probability 0.999, for Gaussian noise.
        degrees: Degrees of freedom, Σ (n_i − 1) over the arms with some spread.
        without_spread: Number of pulls of repeated arms whose rewards show no spread at all.
        believed: `noise_std` as given or fitted, reward units; None if the policy has none and none was given.
        warnings, notes: In plain words.
    """

    estimate: Tensor
    lower: Tensor
    upper: Tensor
    degrees: Tensor
    without_spread: Tensor
    believed: float | None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One paragraph."""
        believed = "" if self.believed is None else f", against noise_std = {self.believed:.4g}"
        if bool(self.degrees.amax() > 0):
            text = (
                f"Noise of standard deviation {spoken(self.estimate.nan_to_num(0.0), '.4g')} within arms (99.9 % interval "
                f"{spoken(self.lower.nan_to_num(0.0), '.4g')} to {spoken(self.upper.nan_to_num(0.0), '.4g')}, "
                f"{spoken(self.degrees, '.0f')} degrees of freedom){believed}."
            )
        else:
            text = f"Repeated pulls say nothing of the noise{believed}."
        return paragraph(text, self.warnings, self.notes)


@torch.no_grad()
def noise(bandit: Bandit, *, noise_std: float | None = None) -> Noise:
    r"""Noise estimated from repeated pulls of the same arm. No model is needed, only the sums of squares.

    .. math:: \hat\sigma^2 = \frac{\sum_i (q_i - s_i^2/n_i)}{\sum_i (n_i - 1)}

    Args:
        bandit: Must have been told rewards; any policy.
        noise_std: Value to compare with; by default the policy's, or the one that `fit_kernel_(noise=True)` has fitted since.

    History observed without `squares` carries no information on its spread. Arms without any spread are therefore left out of
    the estimate and of the upper end of the interval, and kept in the lower end: rewards that repeat by nature (0 and 1, say)
    look the same.

    Warns (`DiagnosticWarning`): If the interval excludes `noise_std`: probability 0.001 per batch row for Gaussian noise of
    that standard deviation. Cost: O(u).
    """
    state = told_state(bandit)
    if noise_std is not None:
        non_negative("noise_std", noise_std)
    n, s, q = state.statistics.weights, state.statistics.sums, state.statistics.squares
    units = state.posterior.units if isinstance(state, GaussianState) else None
    if units is not None:
        s, q = units.totals.unbind(dim=-1)
    # A noise that was estimated in units of the model is not in units of the rewards.
    known = noise_std is not None or (units is None and believed_noise(bandit) is not None)
    believed = noise_of(bandit, noise_std) if known else None
    # Weighted rewards have no number of pulls, and therefore no degrees of freedom.
    counted = not getattr(state.records, "weighted", False) and not getattr(bandit.policy, "reweighting", None)
    repeated = (n > 1) & counted
    within = torch.where(repeated, q - s.square() / n.clamp_min(1), 0.0)
    flat = repeated & (within <= _ROUNDING * q)
    spread = repeated & ~flat
    total = torch.where(spread, within, 0.0).sum(dim=-1)
    degrees = torch.where(spread, n - 1, 0.0).sum(dim=-1)
    with_flat = torch.where(repeated, n - 1, 0.0).sum(dim=-1)
    none, tail = degrees == 0, chance.FALSE_ALARM / 2
    upper = (total / chance.chi_square(degrees, 1 - tail)).sqrt()
    lower = (total / chance.chi_square(with_flat, tail)).sqrt().masked_fill(none, torch.nan)
    record = Noise(
        estimate=(total / degrees).sqrt(),
        lower=lower,
        upper=upper,
        degrees=degrees,
        without_spread=torch.where(flat, n, 0.0).sum(dim=-1),
        believed=believed,
    )
    found, notes = _verdict(record, with_flat), remarks(state)
    if not counted:
        notes.append("rewards count with weights (noise_var=, forgetting or robust), so that nothing is said of noise_std")
    elif bool((none & (with_flat > 0)).any()):
        notes.append(
            "arms pulled more than once show no spread at all: rewards are without noise, or came through observe() without "
            "squares, which leaves none; nothing is said of noise_std"
        )
    elif bool((record.without_spread > 0).any()):
        notes.append(
            "some arms pulled more than once show no spread (observed without squares?): only the lower end counts them"
        )
    elif bool(none.any()):
        notes.append("no arm was pulled twice")
    record = replace(record, warnings=tuple(found), notes=tuple(notes))
    issue(record.warnings)
    return record


def _verdict(record: Noise, degrees: Tensor) -> list[str]:
    if record.believed is None:
        return []
    found = []
    for too_small in (True, False):
        bad = record.lower > record.believed if too_small else record.upper < record.believed
        if bool(bad.any()):
            size = record.estimate / record.believed if too_small else record.believed / record.estimate
            row, where = worst_row(bad, size)
            harm = (
                "bounds and intervals are too narrow and good arms may be given up: raise noise_std"
                if too_small
                else "bounds are valid but wide, so that exploring costs more than it need: lower noise_std"
            )
            found.append(
                f"{where}repeated pulls show noise of standard deviation {float(record.estimate[row]):.3g} (99.9 % interval "
                f"{float(record.lower[row]):.3g} to {float(record.upper[row]):.3g}, {float(degrees[row]):.0f} degrees of "
                f"freedom), noise_std is {record.believed:.3g}: too {'small' if too_small else 'large'}. With it {harm} "
                f"(and λ, which follows it by default)."
            )
    return found
