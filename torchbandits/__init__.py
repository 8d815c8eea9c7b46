"""Gaussian-process bandits and Bayesian optimisation over very large candidate sets.

Choose a policy (`gp_ucb` while arms pulled are few, `batch_bkb` for long runs and batches, `thompson_sampling` for workers that
come free at different times; `torchbandits policies` lists all), hand it to `Bandit` with your arms, and `ask` and `tell`; or
`run` it in one of the `environments`.
"""

from torchbandits import environments, errors, starts, widths
from torchbandits.bandit import Bandit
from torchbandits.history import History
from torchbandits.policies import (
    ada_bkb,
    batch_bkb,
    bkb,
    compressed_gp,
    epsilon_greedy,
    gp_bucb,
    gp_ucb,
    igp_ucb,
    pi_gp_ucb,
    regularized_evolution,
    rff_ucb,
    thompson_sampling,
    uniform,
)
from torchbandits.running import run
from torchbandits.types import Evidence, Marginals, Progress, Recommendation, Report, Selection

__version__ = "0.1.0"

__all__ = [
    "Bandit",
    "Evidence",
    "History",
    "Marginals",
    "Progress",
    "Recommendation",
    "Report",
    "Selection",
    "__version__",
    "ada_bkb",
    "batch_bkb",
    "bkb",
    "compressed_gp",
    "environments",
    "epsilon_greedy",
    "errors",
    "gp_bucb",
    "gp_ucb",
    "igp_ucb",
    "pi_gp_ucb",
    "regularized_evolution",
    "rff_ucb",
    "run",
    "starts",
    "thompson_sampling",
    "uniform",
    "widths",
]
