"""Randomised kriging believer: exact posterior, picks given drawn rewards of those that are pending."""

from __future__ import annotations

import gpytorch

from torchbandits.batching import RandomizedBeliever
from torchbandits.checks import explains_keywords, regularization_of
from torchbandits.policies.composed import Composed
from torchbandits.scores import named_score
from torchbandits.starts import Start
from torchbandits.widths import Srinivas, Width


@explains_keywords
def kriging_believer(
    kernel: gpytorch.kernels.Kernel,
    *,
    noise_std: float = 0.01,
    delta: float = 1e-4,
    batch_size: int = 1,
    acquisition: str = "ucb",
    margin: float | None = None,
    max_pulls: int | None = None,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
    refit_every: int | None = None,
) -> Composed:
    r"""Randomised kriging believer: pending picks are given rewards that are drawn from the posterior.

    .. math:: \tilde y_P \sim N(\mu_t(P), K_t(P, P) + \lambda I), \quad
              x = \arg\max_x u(x \mid \text{data}, \tilde y_P)

    Where hallucination leaves means as they are, these picks see means that move as real rewards would move them, so that
    workers that come free at different times explore different beliefs (`ask(more=1)`).

    Args:
        kernel: Prior covariance of the rewards.
        noise_std: Standard deviation of the noise, reward units.
        delta: Failure probability of the bounds.
        batch_size: Picks of one `ask`, each given drawn rewards of those before it.
        acquisition: `"ucb"`; or `"ei"`, `"pi"`, the improvement over the highest mean given the drawn rewards.
        margin: Level that an improvement must exceed, reward units; 0 for EI and `noise_std` for PI by default.
        max_pulls: Cap on the picks of one arm in a batch.
        width: Multiplies the standard deviation; `Srinivas(delta)` by default.
        regularization: λ, also the variance of the noise of drawn rewards; noise_std² by default.
        prior_mean: A number, or `"estimate"`.
        initial: First picks; the argmax of the prior by default.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, on a GPU half of its free memory.
        refit_every: Fit the kernel whenever the pulls told pass a multiple of this (`Bandit.fit_kernel_`).

    Guarantee: none is claimed here. The authors bound the expected regret for f drawn from the prior; of their paper only the
    abstract was at hand, and details such as their initial phase are not implemented. Drawn rewards are drawn anew for every
    ask. Cost: O(A u) per distinct arm told, O(A m) per pick. Source: Sugiura et al. 2026 (arXiv 2603.01470).
    """
    return Composed(
        kernel,
        noise_std,
        Srinivas(delta) if width is None else width,
        regularization_of(noise_std, regularization),
        score=named_score(acquisition, margin, noise_std),
        batch_rule=RandomizedBeliever(size=batch_size, max_pulls=max_pulls),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
        refit_every=refit_every,
    )
