"""Policies for rewards that drift: windows, discounts and restarts around any policy of one exact Gaussian process.

    policy = tb.forgetting.discount(tb.gp_ucb(kernel, noise_std=0.1), factor=0.98)

Only the posterior forgets. All pulls are still counted, so widths that depend on the number of pulls keep growing.
"""

from __future__ import annotations

from torchbandits.checks import explains_keywords
from torchbandits.policies import Composed, Policy
from torchbandits.policies.reweighting import Discount, Restart, Window
from torchbandits.policies.robust import reweighted

__all__ = ["discount", "restart", "window"]


@explains_keywords
def discount(policy: Policy, *, factor: float) -> Composed:
    r"""The same policy with each reward weighted by :math:`\gamma^{s}`, where s rewards were told to its batch row by later
    calls.

    The posterior is that of a dense Gaussian process in which the noise variance of a reward grows as γ^(−s).

    Args:
        policy: gp_ucb, igp_ucb, gp_bucb or thompson_sampling, or another policy of one exact Gaussian process.
        factor: γ in (0, 1). About 1/(1 − γ) rewards count.

    Guarantee: none here; Deng et al. 2022 bound the regret of weighted GP-UCB with another width, for a bounded variation of f.
    Cost: a sweep for each tell, O(A u²). Pulled points are never dropped. Source: Deng et al. 2022 (WGP-UCB).
    """
    return reweighted(policy, Discount(factor))


@explains_keywords
def window(policy: Policy, *, pulls: int) -> Composed:
    """The same policy, which learns only from the last `pulls` rewards.

    Args:
        policy: gp_ucb, igp_ucb, gp_bucb or thompson_sampling, or another policy of one exact Gaussian process.
        pulls: Number of rewards in the window of a batch row. They are kept one by one and saved with the state; `observe`
            raises an error.

    Guarantee: none here; Zhou & Shroff 2021 bound the regret of SW-GP-UCB with another width, for a bounded variation of f.
    Cost: a sweep for each tell once the window is full, O(A u²). Source: Zhou & Shroff 2021 (SW-GP-UCB).
    """
    return reweighted(policy, Window(pulls))


@explains_keywords
def restart(policy: Policy, *, every: int) -> Composed:
    """The same policy, which forgets all rewards before a tell that would increase their number above `every`.

    A batch is always learned as a whole. Rewards with individual noise variances count with their weights.

    Args:
        policy: gp_ucb, igp_ucb, gp_bucb or thompson_sampling, or another policy of one exact Gaussian process.
        every: Largest number of rewards of a batch row between two restarts, unless a single tell has more.

    Guarantee: none here; Zhou & Shroff 2021 bound the regret of R-GP-UCB for a bounded variation of f. Cost: at most that of
    the policy. Source: Zhou & Shroff 2021 (R-GP-UCB).
    """
    return reweighted(policy, Restart(every))
