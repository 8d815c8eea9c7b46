"""qPO: exact posterior, the batch with the highest probability of containing the best arm."""

from __future__ import annotations

import gpytorch

from torchbandits.batching import FixedSize
from torchbandits.checks import explains_keywords, regularization_of
from torchbandits.policies.composed import Composed
from torchbandits.scores import MostProbable
from torchbandits.starts import Start
from torchbandits.widths import Constant


@explains_keywords
def qpo(
    kernel: gpytorch.kernels.Kernel,
    *,
    noise_std: float = 0.01,
    batch_size: int = 1,
    draws: int = 2_000,
    leaders: int = 1_000,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int | None = None,
    refit_every: int | None = None,
) -> Composed:
    r"""qPO: the batch of distinct arms with the largest probability of containing the best arm.

    .. math:: \arg\max_{|B| = q} P(x^* \in B) = \text{the } q \text{ arms of the largest } P(x^* = x)

    The probabilities are estimated by joint draws of f at the arms with the highest upper bounds. The policy exploits: it seeks
    the best arm in this batch, regardless of the information that later batches could use.

    Args:
        kernel: Prior covariance of the rewards.
        noise_std: Standard deviation of the noise, reward units.
        batch_size: q, picks of one `ask`.
        draws: Number of joint draws of f. Arms that are the best in none of them follow in order of their upper bounds.
        leaders: Number of arms in a joint draw: those with the largest μ + 3σ.
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default the most probable arms under the prior.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.
        refit_every: Refit the kernel (`Bandit.fit_kernel_`) each time the number of pulls passes a multiple of this number.

    Guarantee: none. Cost: O(A u) per distinct arm told; O(r³ + r² S) per ask, for S draws of r leaders.
    Source: Fromer et al. 2024 (arXiv 2410.06333).
    """
    return Composed(
        kernel,
        noise_std,
        Constant(3.0),
        regularization_of(noise_std, regularization),
        score=MostProbable(draws, leaders),
        batch_rule=FixedSize(size=batch_size),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
        refit_every=refit_every,
    )
