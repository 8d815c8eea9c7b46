r"""Confidence widths: what multiplies the posterior standard deviation, always.

Each is a frozen, pure function of `Progress`. Formulas that their authors state for √leverage are divided by √λ. Pick
`PracticalBKB` / `PracticalBBKB` to run what the papers' experiments run, `BKB`, `BBKB`, `IGP`, `KernelUCB`, `SketchedOFUL` for
the theorems, `MartingaleMixture` for the tightest that holds for an exact posterior, `FixedDesign` where rewards are
looked at between phases only, `Constant` or `Scaled` to tune.
"""

from torchbandits.widths.base import Constant, Scaled, Width
from torchbandits.widths.budgeted import BBKB, BKB, PracticalBBKB, PracticalBKB
from torchbandits.widths.information import (
    IGP,
    FixedDesign,
    KernelUCB,
    MartingaleMixture,
    SelfNormalized,
    SketchedOFUL,
    matern_regularization,
)
from torchbandits.widths.prior import Srinivas, SrinivasCompact

__all__ = [
    "BBKB",
    "BKB",
    "IGP",
    "Constant",
    "FixedDesign",
    "KernelUCB",
    "MartingaleMixture",
    "PracticalBBKB",
    "PracticalBKB",
    "Scaled",
    "SelfNormalized",
    "SketchedOFUL",
    "Srinivas",
    "SrinivasCompact",
    "Width",
    "matern_regularization",
]
