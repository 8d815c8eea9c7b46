"""Policies for rewards that drift: windows, discounts and restarts around any policy of one exact Gaussian process.

    policy = tb.forgetting.discount(tb.gp_ucb(kernel, noise_std=0.1), factor=0.98)

What is forgotten changes the posterior; pulls are counted as before, so that widths which grow with the number of pulls do.
"""

from __future__ import annotations

from torchbandits.policies import Composed, Policy
from torchbandits.policies.reweighting import Discount, Restart, Window
from torchbandits.policies.robust import reweighted

__all__ = ["discount", "restart", "window"]


def discount(policy: Policy, *, factor: float) -> Composed:
    r"""Make the same policy weight a reward by :math:`\gamma^{s}` once later calls told s further ones to its batch row.

    The posterior is that of a dense Gaussian process in which the noise variance of a reward grows as γ^(−s).

    Args:
        policy: gp_ucb, igp_ucb, gp_bucb or thompson_sampling, or another policy of one exact Gaussian process.
        factor: γ in (0, 1). About 1/(1 − γ) rewards count.

    Guarantee: none here; Deng et al. 2022 bound the regret of weighted GP-UCB, with a width of its own, for a bounded variation
    of f. Cost: a sweep for each tell, O(A u²). Points that were pulled once are kept. Source: Deng et al. 2022 (WGP-UCB).
    """
    return reweighted(policy, Discount(factor))


def window(policy: Policy, *, pulls: int) -> Composed:
    """Make the same policy learn from the last rewards only.

    Args:
        policy: gp_ucb, igp_ucb, gp_bucb or thompson_sampling, or another policy of one exact Gaussian process.
        pulls: Rewards of a batch row that count. They are kept one by one, and saved with the state; `observe` is refused.

    Guarantee: none here; Zhou & Shroff 2021 bound the regret of SW-GP-UCB, with a width of its own, for a bounded variation of
    f. Cost: a sweep for each tell once the window is full, O(A u²). Source: Zhou & Shroff 2021 (SW-GP-UCB).
    """
    return reweighted(policy, Window(pulls))


def restart(policy: Policy, *, every: int) -> Composed:
    """Make the same policy forget all rewards before a tell with which it would hold more than so many.

    A batch is never learned in part. Rewards with a noise variance of their own count with their weights.

    Args:
        policy: gp_ucb, igp_ucb, gp_bucb or thompson_sampling, or another policy of one exact Gaussian process.
        every: Most rewards of a batch row between two restarts, unless one tell has more.

    Guarantee: none here; Zhou & Shroff 2021 bound the regret of R-GP-UCB for a bounded variation of f. Cost: as the policy, and
    less. Source: Zhou & Shroff 2021 (R-GP-UCB).
    """
    return reweighted(policy, Restart(every))
