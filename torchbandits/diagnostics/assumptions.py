"""What a policy assumes, compared with what is known: the noise with repeated pulls, and the width with those of theorems."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.checks import check_norm_bound, non_negative
from torchbandits.diagnostics import chance
from torchbandits.diagnostics.inputs import (
    averages,
    believed_noise,
    composed,
    gaussian,
    noise_of,
    paragraph,
    remarks,
    row_leverage,
    row_mean,
    spoken,
    told_state,
    worst_row,
)
from torchbandits.errors import issue
from torchbandits.policies.state import BoxState, GaussianState, TableState
from torchbandits.widths import BBKB, BKB, IGP, KernelUCB, PracticalBBKB, PracticalBKB, Scaled, Srinivas, Width
from torchbandits.widths.base import check_delta

# ------------------------------------------------------------------ the noise

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
        s, q, _ = units.totals.unbind(dim=-1)
    # A noise that was estimated in units of the model is not in units of the rewards.
    known = noise_std is not None or (units is None and believed_noise(bandit) is not None)
    believed = noise_of(bandit, noise_std) if known else None
    # Weighted rewards have no number of pulls, and therefore no degrees of freedom.
    counted = not getattr(state.records, "weighted", False) and not getattr(bandit.policy, "reweighting", None)
    repeated = (n > 1) & counted
    within = torch.where(repeated, q - s.square() / n.clamp_min(1), 0.0)
    if units is not None:
        within = torch.where(repeated, units.scatter(state.statistics)[1], 0.0)
    flat = repeated & (within <= (_ROUNDING * q if units is None else 0.0))
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
    notes = [*remarks(state), *_note_on_noise(record, with_flat, counted)]
    record = replace(record, warnings=tuple(_verdict_on_noise(record, with_flat)), notes=tuple(notes))
    issue(record.warnings)
    return record


def _note_on_noise(record: Noise, degrees: Tensor, counted: bool) -> list[str]:
    """What the repeated pulls leave open.

    Args:
        record: The estimate.
        degrees: Degrees of freedom with those of arms without any spread, `batch_shape`.
        counted: Whether the number of pulls of each arm is known.
    """
    none = record.degrees == 0
    if not counted:
        return ["rewards count with weights (noise_var=, forgetting or robust), so that nothing is said of noise_std"]
    if bool((none & (degrees > 0)).any()):
        return [
            "arms pulled more than once show no spread at all: rewards are without noise, or came through observe() without "
            "squares, which leaves none; nothing is said of noise_std"
        ]
    if bool((record.without_spread > 0).any()):
        return ["some arms pulled more than once show no spread (observed without squares?): only the lower end counts them"]
    return ["no arm was pulled twice"] if bool(none.any()) else []


def _verdict_on_noise(record: Noise, degrees: Tensor) -> list[str]:
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


# ------------------------------------------------------------------ the widths

IN_USE = "in use"
_FREQUENTIST = (IGP, KernelUCB, BKB, PracticalBKB, BBKB, PracticalBBKB)


@dataclass(frozen=True, eq=False)
class Widths:
    """Widths by name, each `batch_shape`.

    Attributes:
        multipliers: Multipliers of the posterior standard deviation.
        std: `batch_shape`, posterior standard deviation at the recommended arm, reward units.
        excess: `batch_shape`, largest distance of an arm's average from mean ± width · σ, in standard deviations of its noise;
            negative if all averages lie inside.
        excess_limit: `batch_shape`, bound on the excess that chance allows.
        warnings, notes: In plain words.
    """

    multipliers: dict[str, Tensor]
    std: Tensor
    excess: Tensor
    excess_limit: Tensor
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def reward_units(self) -> dict[str, Tensor]:
        """Half of the confidence interval of the recommended arm's expected reward, by width, reward units."""
        return {name: width * self.std for name, width in self.multipliers.items()}

    def table(self) -> str:
        """One line per width: its name, the multiplier, and reward units at the recommended arm."""
        units, size = self.reward_units, max(map(len, self.multipliers))
        lines = [(name, spoken(width), spoken(units[name])) for name, width in self.multipliers.items()]
        columns = [("width", "times σ", "reward units at the recommended arm"), *lines]
        middle = max(len(line[1]) for line in columns)
        return "\n".join(f"{name:<{size}}  {times:>{middle}}  {unit}" for name, times, unit in columns)

    def __str__(self) -> str:
        """One paragraph."""
        units = self.reward_units
        others = ", ".join(f"{name} {spoken(width)}" for name, width in self.multipliers.items() if name != IN_USE)
        text = (
            f"The width in use is {spoken(self.multipliers[IN_USE])} standard deviations, ± {spoken(units[IN_USE])} reward "
            f"units at the recommended arm{f'; others: {others}' if others else ''}."
        )
        return paragraph(text, self.warnings, self.notes)


@torch.no_grad()
def widths(
    bandit: Bandit,
    *,
    norm_bound: float | Tensor | None = None,
    delta: float | None = None,
    noise_std: float | None = None,
) -> Widths:
    r"""The width in use compared with the practical and the theorems' widths for the same constants, and with the data.

    Args:
        bandit: Must have been told rewards.
        norm_bound: Bound on the RKHS norm; by default that of the policy's width. Without either, only `Srinivas` is shown.
        delta: Failure probability; likewise.
        noise_std: Sub-Gaussian constant; by default the policy's, or the fitted one. λ is the posterior's.

    Returns:
        The known widths. Those of BBKB need log-determinants that only policies with such a width maintain.

    Raises:
        UnsupportedError: For policies without a posterior, and for pi_gp_ucb, which has one width per cell.

    Warns (`DiagnosticWarning`): If an arm's average lies outside mean ± width · σ by more than its noise explains, Bonferroni
    over the arms: probability 0.001 per batch row while the bounds hold. Cost: O(u), O(u m²) where points from outside the
    arms were told.
    """
    state = told_state(bandit)
    check_norm_bound(norm_bound, optional=True)
    if delta is not None:
        check_delta(delta)
    process = gaussian(state, "widths", "read bandit.width, the width of the cell of the largest bound")
    policy, noise, lam = composed(bandit.policy, "widths"), noise_of(bandit, noise_std), process.regularization
    assert isinstance(state, TableState | BoxState)
    leverage, mask, n = row_leverage(state), state.statistics.pulled, state.statistics.weights
    reads = policy.confidence.reads - {"effective_dimension"}
    progress = replace(state.progress(reads), effective_dimension=(n * leverage).sum(dim=-1).cpu())
    base, in_use = _innermost(policy.confidence), policy.width(state)
    known_delta = getattr(base, "delta", None) if delta is None else delta
    known_bound = (base.norm_bound if isinstance(base, _FREQUENTIST) else None) if norm_bound is None else norm_bound
    theory: dict[str, Width] = {}
    practical: dict[str, Width] = {}
    # The points of a box that were visited are not its arms, of which there is no number.
    if known_delta is not None and not process.sparse and isinstance(state, TableState):
        theory["Srinivas"] = Srinivas(known_delta)
    if known_delta is not None and known_bound is not None:
        own, ratio = (noise, known_bound, known_delta, lam), getattr(base, "ratio_threshold", 2.0)
        if process.sparse:
            theory["BKB"], practical["PracticalBKB"] = BKB(*own), PracticalBKB(*own)
            if state.counts_batches:
                theory["BBKB"] = BBKB(*own, ratio_threshold=ratio)
                practical["PracticalBBKB"] = PracticalBBKB(*own, ratio_threshold=ratio)
        else:
            theory["IGP"], theory["KernelUCB"] = IGP(*own), KernelUCB(*own)
    multipliers = {IN_USE: in_use} | {name: width(progress).to(in_use.device) for name, width in (practical | theory).items()}
    notes = _notes(multipliers, list(theory), known_delta is None or known_bound is None)
    std, mean = (lam * leverage).sqrt(), row_mean(state)
    best = mean.masked_fill(~mask, -torch.inf).argmax(dim=-1, keepdim=True)
    excess, arm, limit = _violations(state, in_use, std, noise)
    told = state.in_reward_units(mean.gather(-1, best), std.gather(-1, best).square())
    record = Widths(
        multipliers=multipliers,
        std=told.variance.sqrt().squeeze(-1),
        excess=excess,
        excess_limit=limit,
        warnings=tuple(_verdict_on_bounds(excess, limit, arm, in_use)),
        notes=(*notes, *remarks(state)),
    )
    issue(record.warnings)
    return record


def _innermost(width: Width) -> Width:
    while isinstance(width, Scaled):
        width = width.base
    return width


def _violations(state: TableState | BoxState, width: Tensor, std: Tensor, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """Largest excess of an average over its bounds, in standard deviations of its noise; its arm (−1 for a point that is not an
    arm); and the bound that chance allows. `batch_shape` each."""
    mask, n = state.statistics.pulled, state.statistics.weights
    beyond = (averages(state) - row_mean(state)).abs() - width.unsqueeze(-1) * std
    own = max(noise, torch.finfo(torch.float64).tiny) / n.clamp_min(1e-300).sqrt()
    # An average can be off by rounding alone where the noise is none.
    beyond = beyond - 1e-9 * averages(state).abs().amax(dim=-1, keepdim=True)
    excess, row = torch.where(mask, beyond / own, -torch.inf).max(dim=-1)
    arm = state.rows.arm_of_row.gather(-1, row.unsqueeze(-1)).squeeze(-1)
    tail = chance.FALSE_ALARM / (2 * mask.sum(dim=-1).double())
    return excess, arm, -torch.special.ndtri(tail)


def _verdict_on_bounds(excess: Tensor, limit: Tensor, arm: Tensor, width: Tensor) -> list[str]:
    bad = excess > limit
    if not bool(bad.any()):
        return []
    row, where = worst_row(bad, excess - limit)
    place = f"arm {int(arm[row])}" if int(arm[row]) >= 0 else "a point from outside the arms"
    return [
        f"{where}the bounds do not hold: the average reward of {place} lies outside mean ± {float(width[row]):.3g} σ by "
        f"{float(excess[row]):.3g} standard deviations of its noise, where chance allows {float(limit[row]):.3g}. The "
        "lengthscale is likely too long, or noise_std, the outputscale or norm_bound too small: fit the kernel, or use a "
        "larger width."
    ]


def _notes(multipliers: dict[str, Tensor], theory: list[str], missing: bool) -> list[str]:
    notes = []
    if missing:
        notes.append("the policy's width has no norm_bound or delta: give them to see the widths of more theorems")
    least = [name for name in theory if bool((multipliers[IN_USE] < (1 - 1e-9) * multipliers[name]).all())]
    if theory and len(least) == len(theory):
        notes.append("the width in use is below every theorem's, so that no guarantee holds at it: normal in practice")
    return notes
