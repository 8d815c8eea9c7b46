r"""Confidence widths: multipliers of the posterior standard deviation.

Each width is a frozen, pure function of `Progress`. Formulas that their authors state for √leverage are divided by √λ. Use
`PracticalBKB` or `PracticalBBKB` for the papers' experiments; `BKB`, `BBKB`, `IGP`, `KernelUCB` or `SketchedOFUL` for the
theorems; `MartingaleMixture` for the tightest width that is valid for an exact posterior; `FixedDesign` if rewards are used
only between phases; and `Constant` or `Scaled` to tune the width.
"""

from torchbandits.widths.base import Constant, Growing, Scaled, Width
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
from torchbandits.widths.randomized import Explored, RandomWidth, ShiftedExponential

__all__ = [
    "BBKB",
    "BKB",
    "IGP",
    "Constant",
    "Explored",
    "FixedDesign",
    "Growing",
    "KernelUCB",
    "MartingaleMixture",
    "PracticalBBKB",
    "PracticalBKB",
    "RandomWidth",
    "Scaled",
    "SelfNormalized",
    "ShiftedExponential",
    "SketchedOFUL",
    "Srinivas",
    "SrinivasCompact",
    "Width",
    "matern_regularization",
]
