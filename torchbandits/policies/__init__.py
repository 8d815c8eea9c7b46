"""Policies: one short file per paper, which lists the paper's ingredients for the common engine (`Composed`)."""

from collections.abc import Callable

from torchbandits.policies.ada_bkb import ada_bkb
from torchbandits.policies.adaptive_ucb import AdaptiveUCB
from torchbandits.policies.auto import auto
from torchbandits.policies.base import Policy, State
from torchbandits.policies.batch_bkb import batch_bkb
from torchbandits.policies.bkb import bkb
from torchbandits.policies.bpe import bpe
from torchbandits.policies.catalogue import CATALOGUE, Entry, markdown_table
from torchbandits.policies.cbrap import cbrap
from torchbandits.policies.composed import Composed
from torchbandits.policies.compressed_gp import compressed_gp
from torchbandits.policies.epsilon_greedy import epsilon_greedy
from torchbandits.policies.gp_bucb import gp_bucb
from torchbandits.policies.gp_ucb import gp_ucb
from torchbandits.policies.igp_ucb import igp_ucb
from torchbandits.policies.irgp_ucb import irgp_ucb
from torchbandits.policies.kriging_believer import kriging_believer
from torchbandits.policies.lb_gp_ucb import lb_gp_ucb
from torchbandits.policies.lin_ucb import lin_ucb
from torchbandits.policies.lse import lse
from torchbandits.policies.lucb import lucb
from torchbandits.policies.mini_gp_ucb import mini_gp_ucb
from torchbandits.policies.per_cost import per_cost
from torchbandits.policies.pi_gp_ucb import pi_gp_ucb
from torchbandits.policies.qpo import qpo
from torchbandits.policies.reds import reds
from torchbandits.policies.regularized_evolution import regularized_evolution
from torchbandits.policies.rff_ucb import rff_ucb
from torchbandits.policies.robust import robust
from torchbandits.policies.soful import soful
from torchbandits.policies.sup_kernel_ucb import sup_kernel_ucb
from torchbandits.policies.thompson_sampling import thompson_sampling
from torchbandits.policies.uniform import uniform

registry: dict[str, Callable[..., Policy]] = {entry.name: entry.factory for entry in CATALOGUE}

__all__ = [
    "CATALOGUE",
    "AdaptiveUCB",
    "Composed",
    "Entry",
    "Policy",
    "State",
    "ada_bkb",
    "auto",
    "batch_bkb",
    "bkb",
    "bpe",
    "cbrap",
    "compressed_gp",
    "epsilon_greedy",
    "gp_bucb",
    "gp_ucb",
    "igp_ucb",
    "irgp_ucb",
    "kriging_believer",
    "lb_gp_ucb",
    "lin_ucb",
    "lse",
    "lucb",
    "markdown_table",
    "mini_gp_ucb",
    "per_cost",
    "pi_gp_ucb",
    "qpo",
    "reds",
    "registry",
    "regularized_evolution",
    "rff_ucb",
    "robust",
    "soful",
    "sup_kernel_ucb",
    "thompson_sampling",
    "uniform",
]
