"""Policies that weight rewards: `robust`, which gives implausible rewards less weight, and `reweighted` for any other rule."""

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
        UnsupportedError: For a policy without a single exact Gaussian process, and for a policy that already has such a rule.
    """
    check_instance("policy", policy, Policy, "a torchbandits policy")
    known = policy.memory if isinstance(policy, Composed) else None
    if isinstance(known, Reweighting):
        raise UnsupportedError(
            f"the policy already weights its rewards, by {known!r}, and two such rules can't be combined: choose robust or one "
            "rule of forgetting, and apply it to the policy itself, as in tb.robust(tb.gp_ucb(…))."
        )
    if not isinstance(known, KeepAll):
        raise UnsupportedError(
            f"the policy is not one exact Gaussian process ({known or type(policy).__name__}): use gp_ucb, igp_ucb, gp_bucb or "
            "thompson_sampling."
        )
    return replace(policy, memory=reweighting)


@explains_keywords
def robust(policy: Policy, *, threshold: float = 3.0) -> Composed:
    r"""Give implausible rewards less weight in a policy.

    A reward y at x within c predictive standard deviations of the posterior mean has the weight 1. One that is further away has
    the weight with which it moves the mean at x exactly as far as a reward at that distance would:

    .. math:: z = \frac{y - \mu_t(x)}{\sqrt{\sigma_t^2(x) + \sigma^2}}, \quad u = \max(1, |z| / c), \quad
              \text{weight} = \frac{1}{u + lev_t(x) (u - 1)}

    At arms that are well known (a leverage near 0) this is Huber's weight, c / |z|. A weight is computed when the reward is
    told and does not change afterwards. If the prior mean is estimated, the rewards of the first tell have weight 1. A single
    outlier moves the mean at its arm by at most c posterior standard deviations if λ ≥ noise_std², as by default; a genuine
    large reward must be repeated a few times before the posterior mean follows it.

    Args:
        policy: gp_ucb, igp_ucb, gp_bucb or thompson_sampling, or another policy with a single exact Gaussian process.
        threshold: c, in predictive standard deviations; smaller is more robust.

    Guarantee: none, even if the policy has one. The noise cannot be fitted (`fit_kernel_(noise=True)`) to weighted rewards.
    Source: Huber 1964 for the limit on the influence of a reward, which is applied once, when the reward is told.

    Raises:
        UnsupportedError: For other policies.
    """
    return reweighted(policy, Huber(threshold))
