"""Thompson sampling: GP-TS, asynchronous TS, TS-QFF and RFF-TS, one draw of the posterior a pick."""

from __future__ import annotations

import gpytorch
from torch import Tensor

from torchbandits.batching import FixedSize
from torchbandits.checks import check_choice, explains_keywords, regularization_of
from torchbandits.embeddings import FeatureMap, QuadratureFourier, RandomFourier
from torchbandits.memory import KeepAll, LeverageSampling
from torchbandits.policies.composed import Composed
from torchbandits.scores import PosteriorDraw
from torchbandits.starts import Start
from torchbandits.widths import IGP, Width
from torchbandits.widths.base import check_delta

EMBEDDINGS = ("exact", "nystrom", "qff", "rff")


@explains_keywords
def thompson_sampling(
    kernel: gpytorch.kernels.Kernel,
    *,
    embedding: str = "exact",
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    batch_size: int = 1,
    num_features: int | None = None,
    oversampling: float = 2.0,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    initial: Start | None = None,
    memory_budget: int = 2 << 30,
) -> Composed:
    r"""Thompson sampling: the best arm of a draw of the posterior, a draw for each pick.

    .. math:: x_{t+1} = \arg\max_x \mu_t(x) + w_t (\tilde f(x) - \mu_t(x)), \quad \tilde f \sim GP(\mu_t, k_t)

    With `batch_size` P it is asynchronous TS: P workers, a draw for each, picks that are pending have no say
    (`ask(more=1)` for a worker that comes free).

    Args:
        kernel: Prior covariance of the rewards.
        embedding: `"exact"`; `"nystrom"` (dictionary by leverage sampling, any kernel); `"qff"` (TS-QFF: quadrature Fourier
            features, RBF kernels in few dimensions); `"rff"` (RFF-TS: random Fourier features, RBF and Matérn kernels).
        noise_std: Sub-Gaussian constant R of the noise, reward units.
        norm_bound: B, bound on the RKHS norm; one number, or one a batch row, for the default width.
        delta: Failure probability of the bounds.
        batch_size: Picks of one `ask`.
        num_features: For `"rff"` their number (1,024 by default), for `"qff"` the most allowed (4,096), else those of the
            random part of a draw beyond 2,000 arms (512). See `arms.PosteriorDraws` for what is exact in a draw.
        oversampling: q̄ of `"nystrom"`.
        width: w, scales the draw's deviation from the mean; `IGP` with δ/2 by default, as the theorem asks. Constant(1) draws
            from the posterior itself, and is what most people run.
        regularization: λ; noise_std² by default.
        prior_mean: A number, or `"estimate"`.
        initial: First picks; draws of the prior by default.
        memory_budget: Bytes for features and cached kernel columns.

    Raises:
        UnsupportedError: If the embedding does not take the kernel.
        ArgumentError: If features are too many or do not fit (when the bandit is made), naming the number that would work.

    Guarantee: regret O(γ_T √(dT)) with probability 1 − δ for `"exact"` (Chowdhury & Gopalan 2017, Thm 4, with λ = 1 + 2/T),
    O(√T) up to logarithms for `"qff"` (Mutný & Krause 2018, Thm 4); none is known for `"rff"` and batches of fixed size.
    Cost: O(A m) a draw, m features or dictionary points. Source: Kandasamy et al. 2018 for asynchronous TS.
    """
    check_choice("embedding", embedding, EMBEDDINGS)
    lam = regularization_of(noise_std, regularization)
    check_delta(delta)
    finite: dict[str, FeatureMap] = {}
    if embedding == "rff":
        finite["rff"] = RandomFourier(1024 if num_features is None else num_features)
    elif embedding == "qff":
        finite["qff"] = QuadratureFourier(4096 if num_features is None else num_features)
    sampled = LeverageSampling(oversampling)  # checked whatever the embedding
    return Composed(
        kernel,
        noise_std,
        IGP(noise_std, norm_bound, delta / 2, lam) if width is None else width,
        lam,
        memory=sampled if embedding == "nystrom" else KeepAll(),
        features=finite.get(embedding),
        score=PosteriorDraw() if finite or num_features is None else PosteriorDraw(num_features),
        batch_rule=FixedSize(size=batch_size),
        prior_mean=prior_mean,
        initial=initial,
        memory_budget=memory_budget,
    )
