"""The measured rows of a campaign, each predicted from all others, as its report shows them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from torchbandits.bandit import Bandit
from torchbandits.diagnostics import Calibration, leave_one_out
from torchbandits.errors import DiagnosticWarning, UnsupportedError

if TYPE_CHECKING:
    from torchbandits.campaigns import page
else:
    from torchbandits.campaigns.extras import page


def predicted(bandit: Bandit, values: Mapping[int, Sequence[float]], sign: float) -> page.Predicted | None:
    """Each measured row, predicted from all others; None for very few or very many rows, or without one model.

    Args:
        bandit: The bandit of the campaign.
        values: The measurements of each arm, by the first of equal rows.
        sign: −1 if rewards are measurements with the opposite sign, else 1.
    """
    if not page.ENOUGH <= len(values) <= page.MOST_PREDICTED:
        return None
    try:
        with warnings.catch_warnings():
            # Its warnings are on the page.
            warnings.simplefilter("ignore", DiagnosticWarning)
            left = leave_one_out(bandit)
    except UnsupportedError:
        return None
    arms = bandit.loop.state.rows.arm_of_row.tolist()
    ends = sign * torch.stack([left.mean + deviations * left.std for deviations in (-2, 0, 2)])
    known = [place for place, arm in enumerate(arms) if arm in values]
    low, middle, high = ends.sort(dim=0).values[:, known].cpu().numpy()
    averages = np.array([np.mean(values[arms[place]]) for place in known])
    # Residuals are of the model's units, in which deviations are those of a normal distribution.
    inside = int((left.residuals[known].abs() <= 2).sum())
    words = (
        f"Of {len(known):,} rows, each predicted from all others, {inside:,} lie within two standard deviations of the "
        "prediction; about 19 of 20 should."
    )
    return page.Predicted(averages, low, middle, high, (words, *verdicts(bandit, left)))


def verdicts(bandit: Bandit, left: Calibration) -> tuple[str, ...]:
    """Sentences on predictions that hold less or more often than chance explains. The advice of the diagnostics, to fit the
    kernel, is for policies that do not fit it themselves."""
    policy, posterior = bandit.policy, getattr(bandit.loop.state, "posterior", None)
    fits = getattr(posterior, "units", None) is not None or getattr(policy, "refit_every", None) is not None
    if not fits or not left.warnings:
        return left.warnings
    found, far = "More rows than chance explains lie", bool((left.coverage < left.lower).any())
    small = f"{found} far from the predictions: the deviations on this page are too small. Repeat the best rows."
    large = f"{found} close to the predictions: the deviations on this page are larger than they need to be."
    return (*([small] if far else []), *([large] if bool((left.coverage > left.upper).any()) else []))
