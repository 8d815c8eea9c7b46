"""Aims for several outcomes: functions from the posteriors of all outcomes on the arms to one score per arm.

`Constrained` maximises one outcome under limits on others, `Scalarized` draws trade-offs between objectives, `Certifying`
(ε-PAL) decides which arms are Pareto optimal, `Safe` never leaves the arms that are known to be safe, and `Fidelity` evaluates
arms by cheap approximations.
"""

from torchbandits.aims.base import Aim, Limit, Outlook, log_probability
from torchbandits.aims.certifying import Certifying, classified
from torchbandits.aims.constrained import Constrained
from torchbandits.aims.dominance import growing_hypervolume, growing_r2, hypervolume, non_dominated
from torchbandits.aims.fidelity import Fidelity
from torchbandits.aims.known import beside, normal_scores
from torchbandits.aims.safe import Safe
from torchbandits.aims.scalarized import Scalarized

__all__ = [
    "Aim",
    "Certifying",
    "Constrained",
    "Fidelity",
    "Limit",
    "Outlook",
    "Safe",
    "Scalarized",
    "beside",
    "classified",
    "growing_hypervolume",
    "growing_r2",
    "hypervolume",
    "log_probability",
    "non_dominated",
    "normal_scores",
]
