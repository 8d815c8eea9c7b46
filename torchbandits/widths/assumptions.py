"""Check that a posterior has the λ and the noise of a width's theorem."""

from __future__ import annotations

import math

from torchbandits.errors import UnsupportedError
from torchbandits.widths.base import Width
from torchbandits.widths.budgeted import BBKB
from torchbandits.widths.prior import Srinivas, SrinivasCompact
from torchbandits.widths.randomized import ShiftedExponential


def check_assumptions(width: Width, noise_std: float, lam: float) -> None:
    """Check that λ and the noise are those of the width's theorem.

    Raises:
        UnsupportedError: If they are not; the message names both.
    """
    kind, almost = type(width).__name__, 1 - 1e-9
    own, stated = getattr(width, "regularization", None), getattr(width, "noise_std", None)
    if own is not None and not math.isclose(own, lam, rel_tol=1e-9):
        raise UnsupportedError(
            f"the width {kind} has λ = {own:g}, and the posterior has {lam:g}: give both the same regularization."
        )
    if stated is not None and stated < almost * noise_std:
        raise UnsupportedError(
            f"the width {kind} has noise_std = {stated:g}, and the policy has {noise_std:g}: give both the same noise_std."
        )
    if isinstance(width, BBKB) and lam < 1:
        raise UnsupportedError(
            f"the theorem of {kind} assumes λ ≥ 1, and here it is {lam:g}: give the policy regularization=1."
        )
    # The proof needs that f is distributed as the posterior says, given the rewards by which the arms were chosen. A smaller λ
    # makes the deviations too small. Under a larger one they bound the errors of arms that were chosen beforehand, but arms
    # chosen by their rewards can push the mean, which is then not the conditional mean, out of the bounds.
    bayesian = isinstance(width, Srinivas | SrinivasCompact | ShiftedExponential)
    if bayesian and not math.isclose(lam, noise_std**2, rel_tol=1e-9):
        raise UnsupportedError(
            f"the theorem of {kind} assumes that λ is the variance of the noise, noise_std² = {noise_std**2:g}, and here it is "
            f"{lam:g}: leave out the policy's regularization=, or give it a width of any λ, such as "
            "torchbandits.widths.SelfNormalized."
        )
