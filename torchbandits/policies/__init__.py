"""Policies: one short file a paper, each naming its ingredients for the one engine (`Composed`)."""

from collections.abc import Callable

from torchbandits.policies.base import Policy, State
from torchbandits.policies.batch_bkb import batch_bkb
from torchbandits.policies.bkb import bkb
from torchbandits.policies.composed import Composed
from torchbandits.policies.gp_bucb import gp_bucb
from torchbandits.policies.gp_ucb import gp_ucb
from torchbandits.policies.igp_ucb import igp_ucb
from torchbandits.policies.uniform import uniform

registry: dict[str, Callable[..., Policy]] = {
    "batch_bkb": batch_bkb,
    "bkb": bkb,
    "gp_bucb": gp_bucb,
    "gp_ucb": gp_ucb,
    "igp_ucb": igp_ucb,
    "uniform": uniform,
}

__all__ = [
    "Composed",
    "Policy",
    "State",
    "batch_bkb",
    "bkb",
    "gp_bucb",
    "gp_ucb",
    "igp_ucb",
    "registry",
    "uniform",
]
