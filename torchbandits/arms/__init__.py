"""A posterior tabulated on a finite arm set, and the exact lazy argmax over it. Only this room knows about scale."""

from torchbandits.arms.draws import PosteriorDraws
from torchbandits.arms.duplicates import matches
from torchbandits.arms.leaders import TIE, best_arm
from torchbandits.arms.lookahead import Lookahead
from torchbandits.arms.rows import ArmRows
from torchbandits.arms.sweeping import FullSweep
from torchbandits.arms.table import ArmTable

__all__ = ["TIE", "ArmRows", "ArmTable", "FullSweep", "Lookahead", "PosteriorDraws", "best_arm", "matches"]
