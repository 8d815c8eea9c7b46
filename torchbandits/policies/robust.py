"""A policy that gives implausible rewards less weight; and any other reweighting of a policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchbandits.checks import check_instance, explains_keywords
from torchbandits.errors import UnsupportedError
from torchbandits.memory import KeepAll
from torchbandits.policies.base import Policy
from torchbandits.policies.composed import Composed
from torchbandits.policies.reweighting import Huber, Reweighting


def reweighted(policy: Any, reweighting: Reweighting) -> Composed:
    """The policy with a rule that weights rewards.

    Raises:
        UnsupportedError: For a policy without one exact Gaussian process, and for one with such a rule.
    """
    check_instance("policy", policy, Policy, "a torchbandits policy")
    if not isinstance(policy, Composed) or not isinstance(policy.memory, KeepAll):
        raise UnsupportedError(
            f"{type(policy).__name__} is not one exact Gaussian process without weights of its own: use gp_ucb, igp_ucb, "
            "gp_bucb or thompson_sampling."
        )
    return replace(policy, memory=reweighting)


@explains_keywords
def robust(policy: Policy, *, threshold: float = 3.0) -> Composed:
    r"""Make the same policy give implausible rewards less weight, as Huber's loss does.

    A reward y at x has the weight min(1, c / |z|) of a pull, with z its distance from the posterior mean before it is told, in
    predictive standard deviations:

    .. math:: z = \frac{y - \mu_t(x)}{\sqrt{\sigma_t^2(x) + \sigma^2}}

    Weights stay as they were when the reward was told; those of the first tell are 1 where the prior mean is estimated. A
    single wild reward thus moves the mean by about c standard deviations at most; a large reward that is true takes a few
    repetitions to be believed.

    Args:
        policy: gp_ucb, igp_ucb, gp_bucb or thompson_sampling, or another policy of one exact Gaussian process.
        threshold: c, in predictive standard deviations; smaller is more robust.

    Guarantee: none, whatever that of the policy. The noise is not fitted (`fit_kernel_(noise=True)`) to such rewards.
    Source: Huber 1964, one step of iterated reweighting for each reward.

    Raises:
        UnsupportedError: For other policies.
    """
    return reweighted(policy, Huber(threshold))
