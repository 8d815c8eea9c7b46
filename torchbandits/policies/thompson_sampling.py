"""Thompson sampling with one posterior draw per pick: GP-TS, asynchronous TS, TS-QFF and RFF-TS."""

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
    memory_budget: int | None = None,
) -> Composed:
    r"""Thompson sampling: pull the best arm of a posterior draw, with one draw per pick.

    .. math:: x_{t+1} = \arg\max_x \mu_t(x) + w_t (\tilde f(x) - \mu_t(x)), \quad \tilde f \sim GP(\mu_t, k_t)

    With `batch_size` P it is asynchronous TS: one draw for each of P workers, which ignores pending picks. Call `ask(more=1)`
    when a worker becomes free.

    Args:
        kernel: Prior covariance of the rewards.
        embedding: `"exact"`; `"nystrom"` (dictionary by leverage sampling, any kernel); `"qff"` (TS-QFF: quadrature Fourier
            features, RBF kernels in few dimensions); `"rff"` (RFF-TS: random Fourier features of RBF and Matérn kernels, random
            signs of `TanimotoKernel`).
        noise_std: Sub-Gaussian constant R of the noise, reward units.
        norm_bound: B, bound on the RKHS norm; one number, or one per batch row, for the default width.
        delta: Failure probability of the bounds.
        batch_size: Number of picks per `ask`.
        num_features: For `"rff"`, the number of features (1,024 by default); for `"qff"`, the maximum number of features (4,096
            by default); otherwise, with more than 2,000 arms, the number of random features of the prior part of a draw (512 by
            default). `arms.PosteriorDraws` says which part of a draw is exact.
        oversampling: q̄ of the leverage sampling of `"nystrom"`.
        width: w, scales the draw's deviation from the mean; `IGP` with δ/2 by default, as the theorem asks. Constant(1) draws
            from the posterior itself, as is common in practice.
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks (`torchbandits.starts`); by default draws of the prior.
        memory_budget: Bytes for features and cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.

    Raises:
        UnsupportedError: If the embedding does not support the kernel.
        ArgumentError: When the bandit is made, if there are too many features or they exceed the memory budget. The message
            names a number that works.

    Guarantee: regret γ_T √(dT) up to logarithms with probability 1 − δ for `"exact"` (Chowdhury & Gopalan 2017, Thm 4, with
    λ = 1 + 2/T), √T up to logarithms for `"qff"` with a number of nodes that grows with T (Mutný & Krause 2018, Thm 4), hence
    none at a fixed `num_features`. None for this implementation of `"nystrom"`, `"rff"` and batches: the proofs for sparse
    posteriors (Vakili et al. 2021) and for batches (Kandasamy et al. 2018) require other dictionaries, other widths or a prior
    over f.
    Cost: O(A m) per draw, m features or dictionary points. Source: Kandasamy et al. 2018 for asynchronous TS.
    """
    check_choice("embedding", embedding, EMBEDDINGS)
    lam = regularization_of(noise_std, regularization)
    check_delta(delta)
    finite: dict[str, FeatureMap] = {}
    if embedding == "rff":
        finite["rff"] = RandomFourier(1024 if num_features is None else num_features)
    elif embedding == "qff":
        finite["qff"] = QuadratureFourier(4096 if num_features is None else num_features)
    # Constructed for every embedding, so that `oversampling` is always checked.
    sampled = LeverageSampling(oversampling)
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
