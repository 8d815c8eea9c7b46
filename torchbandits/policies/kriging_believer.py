"""Randomised kriging believer: exact posterior, with rewards of the pending picks drawn from it."""

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
    r"""Randomised kriging believer: condition on pending picks with rewards drawn from the posterior.

    .. math:: \tilde y_P \sim N(\mu_t(P), K_t(P, P) + \lambda I), \quad
              x = \arg\max_x u(x \mid \text{data}, \tilde y_P)

    Hallucination leaves posterior means unchanged; drawn rewards change them as real rewards would. Workers that become free at
    different times (`ask(more=1)`) therefore explore under different plausible outcomes of the pending evaluations.

    Args:
        kernel: Prior covariance of the rewards.
        noise_std: Standard deviation of the noise, reward units.
        delta: Failure probability of the bounds.
        batch_size: Number of picks per `ask`, each conditioned on drawn rewards of the picks before it.
        acquisition: `"ucb"`; or `"ei"`, `"pi"`, the improvement over the highest mean given the drawn rewards.
        margin: Level that an improvement must exceed, reward units; 0 for EI and `noise_std` for PI by default.
        max_pulls: Cap on the picks of one arm in a batch.
        width: Multiplier of the posterior standard deviation; `Srinivas(delta)` by default.
        regularization: λ, which is also the noise variance of the drawn rewards; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the argmax of the prior.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.
        refit_every: Refit the kernel (`Bandit.fit_kernel_`) each time the number of pulls passes a multiple of this number.

    Guarantee: none is claimed here. The authors bound the expected regret for f drawn from the prior, but only the abstract of
    their paper was available, and details such as their initial phase are not implemented. The rewards of pending picks are
    redrawn in every `ask`. Cost: O(A u) per distinct arm told, O(A m) per pick. Source: Sugiura et al. 2026 (arXiv 2603.01470).
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
