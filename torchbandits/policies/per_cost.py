"""A policy whose score is divided by what a pull costs."""

from __future__ import annotations

from dataclasses import replace

from torchbandits.checks import explains_keywords
from torchbandits.errors import UnsupportedError, require
from torchbandits.policies.base import Policy
from torchbandits.policies.composed import Composed
from torchbandits.scores import PerCost


@explains_keywords
def per_cost(policy: Policy, *, exponent: float = 1.0, baseline: float = 0.0) -> Composed:
    r"""The same policy, choosing by score per cost of an arm.

    .. math:: \frac{u(x) - b}{c(x)^{\alpha}} \quad\text{or}\quad \log EI(x) - \alpha \log c(x)

    Args:
        policy: One that scores arms by one Gaussian process: not `pi_gp_ucb`, `ada_bkb`, `bpe`, `sup_kernel_ucb`.
        exponent: α ≥ 0; 1 for gain per cost, 0 for no attention to costs.
        baseline: b, the reward at which a pull is worth nothing, reward units (UCB and draws only). Below it an arm is worth
            less the more it costs.

    The costs are the bandit's (`Bandit(policy, arms, costs=…)`), or the environment's in `run`. Batches, memory and width are
    the policy's. Guarantee: none; per unit of cost the ratio is the right greedy choice where the budget is large.

    Raises:
        UnsupportedError: For a policy that scores nothing.
    """
    require(isinstance(policy, Policy), f"policy must be a torchbandits policy, got {type(policy).__name__}.")
    if not isinstance(policy, Composed):
        raise UnsupportedError(
            f"{type(policy).__name__} has no score to divide by a cost: use gp_ucb, bkb, batch_bkb, compressed_gp, "
            "mini_gp_ucb or thompson_sampling."
        )
    return replace(policy, score=PerCost(policy.score, exponent, baseline))
