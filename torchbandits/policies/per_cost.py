"""A policy whose score is divided by the cost of a pull."""

from __future__ import annotations

from dataclasses import replace
from typing import overload

from torchbandits.aims import Certifying, Constrained, Scalarized
from torchbandits.checks import explains_keywords, non_negative
from torchbandits.errors import UnsupportedError, require
from torchbandits.policies.base import Policy
from torchbandits.policies.composed import Composed
from torchbandits.policies.joint import Joint
from torchbandits.scores import PerCost


@overload
def per_cost(policy: Joint, *, exponent: float = 0.5, baseline: None = None) -> Joint: ...
@overload
def per_cost(policy: Policy, *, exponent: float = 0.5, baseline: float | None = None) -> Composed: ...
@explains_keywords
def per_cost(policy: Policy, *, exponent: float = 0.5, baseline: float | None = None) -> Policy:
    r"""Divide what a policy expects to gain from an arm by the cost of the arm, or by a power of it.

    .. math:: \frac{u(x) - b}{c(x)^{\alpha}} \text{ where } u(x) \ge b, \quad (u(x) - b)\, c(x)^{\alpha} \text{ below},
              \quad\text{or}\quad \log EI(x) - \alpha \log c(x)

    u is the upper bound of the policy, or its draw of the posterior, and b by default the highest posterior mean. In policies
    of several outcomes (`outcomes.constrained`, `outcomes.pareto`, `outcomes.epal`), b is the best value according to the
    posterior means, under the same weights and limits; for `epal`, the uncertainty is divided by the cost.

    Args:
        policy: A policy that scores arms by one Gaussian process: not `pi_gp_ucb`, `ada_bkb`, `bpe`, `reds`, `sup_kernel_ucb`,
            `lb_gp_ucb`, `lucb` or `qpo`; or one of several outcomes, not `safe` or `fidelity`.
        exponent: α ≥ 0; 1 for gain per cost, 0 to ignore costs. With 1, arms that cost much are seldom tried, and found late if
            they are the good ones; on real tables 0.5 finds better arms for the same money.
        baseline: b, the reward at which a pull has no value, reward units (only for UCB and draws of a single outcome). By
            default the highest posterior mean of the arms that are on offer or were pulled: to find the best arm. For much
            reward per unit of cost, where every pull earns its reward, pass 0 (or what a pull must earn), and `exponent=1`.
            For rewards below b, the score of an arm decreases with its cost. For UCB, u(x) at the start of a batch decides
            which of the two formulas an arm has in the whole batch, with c(x) in units of √(smallest · largest cost), so that
            the unit of the costs changes no pick; for `kriging_believer`, whose drawn rewards move u(x) and b, each pick
            decides anew.

    The costs are those given to the bandit (`Bandit(policy, arms, costs=…)`), or those of the environment in `run`. Batches,
    memory and width are those of the policy. Guarantee: none.

    Raises:
        UnsupportedError: For a policy without scores.
        ArgumentError: For `lucb` and `qpo`, whose scores are not gains.
    """
    require(isinstance(policy, Policy), f"policy must be a torchbandits policy, got {type(policy).__name__}.")
    if isinstance(policy, Joint):
        known = isinstance(policy.aim, Constrained | Scalarized | Certifying)
        message = "costs enter the scores of constrained, pareto and epal: fidelity() has separate costs, and safe() none."
        require(known, message, UnsupportedError)
        require(baseline is None, "baseline is for one outcome: for several it is the best value by the posterior means.")
        power = non_negative("exponent", exponent)
        assert isinstance(policy.aim, Constrained | Scalarized | Certifying)
        return replace(policy, aim=replace(policy.aim, exponent=float(power)))
    if not isinstance(policy, Composed):
        raise UnsupportedError(
            f"{type(policy).__name__} has no score to divide by a cost: use gp_ucb, bkb, batch_bkb, compressed_gp, "
            "mini_gp_ucb or thompson_sampling."
        )
    return replace(policy, score=PerCost(policy.score, exponent, baseline))
