"""Is the approximate posterior as sure as the exact one? Leverages of a dictionary against those of all points."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.checks import check_generator, check_whole
from torchbandits.diagnostics.evidence import gaussian, paragraph, pulled, remarks, spoken, told_state, worst_row
from torchbandits.errors import ArgumentError, issue
from torchbandits.posteriors import GaussianProcess

LARGEST = 4096
"""Most distinct points whose exact posterior is computed."""

_WORST = 3.0  # what theorem 1 of BKB allows at ε = ½: α = (1 + ε)/(1 − ε)


@dataclass(frozen=True, eq=False)
class DictionaryQuality:
    """Approximate over exact leverage on some arms: 1 where the dictionary loses nothing, above 1 where it is less sure.

    Attributes:
        lowest, median, highest: `batch_shape`.
        arms: `s`, the arms compared; none for an exact posterior, whose ratio is 1 by definition.
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
            text = "The posterior is exact on what it keeps: the ratio of its leverages to the exact ones is 1 by definition."
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
        size: Most arms that are compared; all of them if there are no more.
        generator: Draws the arms, the same for all batch rows; a fresh one with seed 0 by default.

    Raises:
        ArgumentError: If there are more than 4,096 distinct points.
        UnsupportedError: For policies without a posterior, and for pi_gp_ucb.

    Warns (`DiagnosticWarning`): If a ratio lies outside [1/3, 3]. Cost: O(u³ + s u²), u distinct points: on request only.
    Source: Calandriello et al. 2019, Thm 1 (α = 3 at ε = ½).
    """
    check_whole("size", size)
    if generator is not None:
        check_generator("generator", generator)
    state = told_state(bandit)
    process = gaussian(
        state, "dictionary_quality", "its cells are exact on their own pulls: see their numbers in the posterior"
    )
    u = pulled(state).sum(dim=-1).double()
    points = process.dictionary_size.double()
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
    floor = torch.finfo(torch.float64).eps * right.amax(dim=-1, keepdim=True)  # below it both are rounding
    ratios = state.arm_leverage()[..., chosen].clamp_min(floor) / right.clamp_min(floor)
    low, high = ratios.amin(dim=-1), ratios.amax(dim=-1)
    record = DictionaryQuality(low, ratios.median(dim=-1).values, high, chosen, ratios, points, u, (), tuple(remarks(state)))
    record = replace(record, warnings=tuple(_verdict(record, process.finite is not None)))
    issue(record.warnings)
    return record


def _verdict(record: DictionaryQuality, features: bool) -> list[str]:
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
