"""Gaussian-process bandits and Bayesian optimisation over very large candidate sets.

Choose a policy (`gp_ucb` while few arms are pulled, `batch_bkb` for long runs and batches, `thompson_sampling` for workers that
become free at different times; `torchbandits policies` lists all of them). Pass it to `Bandit` with your arms, and call `ask`
and `tell`; or `run` it in one of the `environments`.
"""

# isort: off
from torchbandits import upstream as _upstream  # noqa: F401 - imports GPyTorch first

# isort: on
from torchbandits import (
    callbacks,
    constraints,
    diagnostics,
    environments,
    errors,
    forgetting,
    ingredients,
    outcomes,
    sources,
    starts,
    stopping,
    widths,
)
from torchbandits.arms import Shard
from torchbandits.bandit import Bandit
from torchbandits.campaigns import Campaign, OutcomeCampaign, Rehearsal, combinations, rehearse
from torchbandits.contextual import ContextualBandit
from torchbandits.explanation import Explanation, OutcomeExplanation
from torchbandits.fitting import GroupNoise
from torchbandits.fronts import Front, ParetoSet
from torchbandits.history import History
from torchbandits.journal import Journal
from torchbandits.outcome_bandit import OutcomeBandit
from torchbandits.policies import (
    ada_bkb,
    auto,
    batch_bkb,
    bkb,
    bpe,
    cbrap,
    compressed_gp,
    epsilon_greedy,
    gp_bucb,
    gp_ucb,
    igp_ucb,
    irgp_ucb,
    kriging_believer,
    lb_gp_ucb,
    lin_ucb,
    lse,
    lucb,
    mini_gp_ucb,
    per_cost,
    pi_gp_ucb,
    qpo,
    reds,
    regularized_evolution,
    rff_ucb,
    robust,
    soful,
    sup_kernel_ucb,
    thompson_sampling,
    uniform,
)
from torchbandits.running import run
from torchbandits.sets import LevelSet, TopK
from torchbandits.spherical import SphericalLinearKernel
from torchbandits.tanimoto import TanimotoKernel
from torchbandits.tasks import TaskKernel
from torchbandits.types import Evidence, FitReport, Marginals, Progress, Recommendation, Report, Selection
from torchbandits.version import __version__
from torchbandits.worker import Lease, Worker


def __dir__() -> list[str]:
    """Return only the public names, so that `tb.` completes to documented names."""
    return [*__all__]


__all__ = [
    "Bandit",
    "Campaign",
    "ContextualBandit",
    "Evidence",
    "Explanation",
    "FitReport",
    "Front",
    "GroupNoise",
    "History",
    "Journal",
    "Lease",
    "LevelSet",
    "Marginals",
    "OutcomeBandit",
    "OutcomeCampaign",
    "OutcomeExplanation",
    "ParetoSet",
    "Progress",
    "Recommendation",
    "Rehearsal",
    "Report",
    "Selection",
    "Shard",
    "SphericalLinearKernel",
    "TanimotoKernel",
    "TaskKernel",
    "TopK",
    "Worker",
    "__version__",
    "ada_bkb",
    "auto",
    "batch_bkb",
    "bkb",
    "bpe",
    "callbacks",
    "cbrap",
    "combinations",
    "compressed_gp",
    "constraints",
    "diagnostics",
    "environments",
    "epsilon_greedy",
    "errors",
    "forgetting",
    "gp_bucb",
    "gp_ucb",
    "igp_ucb",
    "ingredients",
    "irgp_ucb",
    "kriging_believer",
    "lb_gp_ucb",
    "lin_ucb",
    "lse",
    "lucb",
    "mini_gp_ucb",
    "outcomes",
    "per_cost",
    "pi_gp_ucb",
    "qpo",
    "reds",
    "regularized_evolution",
    "rehearse",
    "rff_ucb",
    "robust",
    "run",
    "soful",
    "sources",
    "starts",
    "stopping",
    "sup_kernel_ucb",
    "thompson_sampling",
    "uniform",
    "widths",
]
