"""How many rewards the intervals hold, and how many they should: the record, and what chance would make of it."""

from __future__ import annotations

import importlib
import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchbandits.checks import is_whole
from torchbandits.diagnostics import chance
from torchbandits.diagnostics.evidence import paragraph, spoken, worst_row
from torchbandits.errors import UnsupportedError, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Nominal levels of the intervals that are judged by default."""

_FIX = "fit the kernel's hyper-parameters and the noise to the data"


@dataclass(frozen=True, eq=False)
class Calibration:
    r"""Coverage of the intervals mean ± z √(variance + noise²), and what chance would make of it.

    Attributes:
        judged: What was predicted, in words.
        levels: L nominal levels.
        coverage: `batch_shape x L`, fraction inside.
        lower, upper: `batch_shape x L`: with probability 0.999 all fractions lie between them if the model is right. A
            binomial band of `effective_size` coins.
        effective_size: `batch_shape`, independent rewards whose coverage would vary as much or more.
        count: `batch_shape`, predictions judged.
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
            row: The batch row, one number a batch dimension.

        Raises:
            UnsupportedError: If Matplotlib is not installed.
        """
        shape = self.count.shape
        inside = isinstance(row, tuple) and all(is_whole(i, 0) for i in row)
        inside = inside and len(row) == len(shape) and all(map(operator.lt, row, shape))
        require(inside, f"row must be one of the batch rows {tuple(shape)}, got {row}.")
        try:  # an extra that takes a second to load: not before somebody wants to see
            figures = importlib.import_module("torchbandits.diagnostics.figure")
        except ModuleNotFoundError as error:
            message = f'figures need {error.name}, which is not installed: pip install "torchbandits[experiments]".'
            raise UnsupportedError(message) from error
        drawn: Figure = figures.draw(self, row)
        return drawn


def judge(
    judged: str,
    levels: tuple[float, ...],
    predictions: tuple[Tensor, Tensor, Tensor, Tensor],
    size: Tensor,
    wide_by_choice: bool,
    notes: list[str],
) -> Calibration:
    """The record of predictions (mean, std, reward and mask, `batch_shape x n` each)."""
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
