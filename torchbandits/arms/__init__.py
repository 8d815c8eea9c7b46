"""A posterior tabulated on a finite arm set, and the exact lazy argmax over it. Only the costs of this package grow with A.

`GrowingTable` and `CellTree` evaluate only as many arms as a tree of cells needs. In a `Box` the arms are the points that were
picked."""

from torchbandits.arms.box import Box
from torchbandits.arms.cells import ArmDivision, BoxDivision
from torchbandits.arms.draws import PosteriorDraws
from torchbandits.arms.growing import GrowingTable
from torchbandits.arms.leaders import warm_up
from torchbandits.arms.lookahead import Lookahead
from torchbandits.arms.ranks import Shard
from torchbandits.arms.rows import ArmRows
from torchbandits.arms.scanning import find
from torchbandits.arms.sweeping import FullSweep
from torchbandits.arms.table import ArmTable
from torchbandits.arms.ties import TIE, best_arm
from torchbandits.arms.tree import CellTree
from torchbandits.sources.duplicates import matches, stand_ins

__all__ = [
    "TIE",
    "ArmDivision",
    "ArmRows",
    "ArmTable",
    "Box",
    "BoxDivision",
    "CellTree",
    "FullSweep",
    "GrowingTable",
    "Lookahead",
    "PosteriorDraws",
    "Shard",
    "best_arm",
    "find",
    "matches",
    "stand_ins",
    "warm_up",
]
