"""Checks that a policy and a model agree before one scores by the other."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import gpytorch
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.models.model import Model
from botorch.models.transforms.outcome import StratifiedStandardize

from torchbandits.batching import RandomizedBeliever
from torchbandits.botorch.any_model import AnyModel
from torchbandits.botorch.model import BanditModel
from torchbandits.botorch.parts import makes_several
from torchbandits.embeddings import Identity
from torchbandits.errors import ArgumentError, UnsupportedError, require
from torchbandits.memory import FrequentDirections
from torchbandits.policies import Composed, Policy
from torchbandits.random_effects import smooth_part
from torchbandits.scores import MostProbable, PerCost, Score, TopBoundary
from torchbandits.upstream import is_affine
from torchbandits.widths.randomized import is_random

_TOLERANCE = 1e-6  # relative, of λ: more than rounding between float32 and float64


def check_model(model: Any) -> None:
    """Raise `ArgumentError` unless `model` is a BoTorch model, and `UnsupportedError` if it has several outcomes."""
    require(
        isinstance(model, Model),
        f"model must be a torchbandits.botorch.BanditModel or another BoTorch model, got {type(model).__name__}.",
    )
    if not isinstance(model, BanditModel):
        AnyModel(model)


def check_policy(policy: Any, model: Any) -> Composed:
    """Return a policy that scores points by the posterior of one Gaussian process and agrees with the model.

    Only the posterior of a model other than a `BanditModel` is used, so that the kernel of the policy does not matter.

    Raises:
        ArgumentError: If `policy` is none, or disagrees with the model on the kernel's form or on λ.
        UnsupportedError: For a policy without scores at points, and for draws and features with another model than a
            `BanditModel`.
    """
    policy = check_scores(policy)
    if not isinstance(model, BanditModel):
        require(
            isinstance(policy.score, Score) and (policy.features is None or isinstance(policy.features, Identity)),
            f"draws of the posterior and finite features need a BanditModel, got {type(model).__name__}: make one of the data, "
            "or use BoTorch's PathwiseThompsonSampling.",
            UnsupportedError,
        )
        return policy
    _check_features(policy, model)
    mine, theirs = kernel_form(policy.kernel), kernel_form(model.covar_module)
    require(
        mine == theirs or policy.from_data is None,
        "auto estimates kernel, noise and scales itself, and this model has its own: use gp_ucb(model.covar_module, "
        "noise_std=model.noise_std, width=widths.Constant(2.0)) here, or ask a Bandit, whose policy auto may be.",
    )
    require(
        mine == theirs,
        f"the policy's kernel is {' of '.join(mine)}, the model's {' of '.join(theirs)}: make the policy with "
        "model.covar_module. (Values of hyper-parameters may differ: the model's, which may be fitted, are used.)",
    )
    _check_noise(policy, model)
    _check_mean(policy, model)
    return policy


def uses_width(policy: Composed) -> bool:
    """Whether the policy's score uses the confidence width: expected and probability of improvement do not."""
    return not (isinstance(policy.score, Score) and policy.score.relative)


def check_scores(policy: Any) -> Composed:
    """Return a policy that scores points by the posterior of one Gaussian process.

    Raises:
        ArgumentError: If `policy` is none.
        UnsupportedError: For a policy without scores at points.
    """
    require(isinstance(policy, Policy), f"policy must be a torchbandits policy, got {type(policy).__name__}.")
    if not isinstance(policy, Composed):
        raise UnsupportedError(
            f"{type(policy).__name__} does not score points by the posterior of one Gaussian process: use gp_ucb, gp_bucb, "
            "bkb, batch_bkb, compressed_gp, mini_gp_ucb or thompson_sampling here, or ask a Bandit."
        )
    require(
        not isinstance(policy.score, TopBoundary | MostProbable)
        and not is_random(policy.confidence)
        and not isinstance(policy.batch_rule, RandomizedBeliever),
        "this policy needs draws, or quantities of all arms together, which a BoTorch model does not have: "
        "use gp_ucb here, or ask a Bandit.",
        UnsupportedError,
    )
    require(
        not isinstance(policy.score, PerCost),
        "a score per cost needs the costs of points, which a BoTorch model does not know: use Bandit(policy, arms, costs=…), "
        "or divide the acquisition values by costs yourself.",
        UnsupportedError,
    )
    return policy


def _check_features(policy: Composed, model: BanditModel) -> None:
    """Refuse finite features outside of the model of the bandit that drew them, and sketches."""
    require(
        not isinstance(policy.memory, FrequentDirections),
        "the sketch of soful is not a Gaussian process: use lin_ucb, whose posterior it approximates, or gp_ucb.",
        UnsupportedError,
    )
    known = policy.features is None or isinstance(policy.features, Identity) or model.finite is not None
    require(
        known,
        f"{type(policy.features).__name__} features belong to the Bandit that drew them: use its model(), or gp_ucb with the "
        "same kernel.",
        UnsupportedError,
    )


def kernel_form(kernel: gpytorch.kernels.Kernel) -> tuple[str, ...]:
    """The parts of a kernel that fitting does not change: classes, smoothness and active features.

    A fit may give the kernel random effects, or take them."""
    form = []
    for part in smooth_part(kernel).modules():
        if isinstance(part, gpytorch.kernels.Kernel):
            nu, active = getattr(part, "nu", None), part.active_dims
            details = [] if nu is None else [f"nu={nu}"]
            details += [] if active is None else [f"active_dims={active.tolist()}"]
            form.append(f"{type(part).__name__}({', '.join(details)})")
    return tuple(form)


def _check_noise(policy: Composed, model: BanditModel) -> None:
    """Refuse a model with another λ or noise. The noise of a model that fits it is its own, with the policy's ratio of λ to its
    variance; that of a bandit's model may be the bandit's, fitted or not, or that of the bandit's policy."""
    mine, how = (policy.noise_std, policy.regularization), "make it with model.noise_std and model.regularization"
    theirs = (model.noise_std, float(model.regularization))
    if model.fits_noise and policy.noise_std > 0:
        share, own = (lam / std**2 for std, lam in (mine, theirs))
        message = f"the policy's λ / noise_std² is {share:.6g}, the model's {own:.6g}: {how}."
        require(math.isclose(share, own, rel_tol=_TOLERANCE), message)
        return
    given = model.noise_of_policy
    if _agree(mine, theirs) or (given is not None and _agree(mine, given)):
        return
    raise ArgumentError(
        f"the policy's λ is {mine[1]:.6g} and its noise_std {mine[0]:.6g}, the model's {theirs[1]:.6g} and {theirs[0]:.6g}: "
        f"{how}."
    )


def _check_mean(policy: Composed, model: BanditModel) -> None:
    """Refuse another prior mean than the model's. 0 is the default of policies, and means that of the model."""
    mine = policy.prior_mean
    require(
        mine == 0.0 or policy.from_data is not None or mine == model.prior_mean,
        f"the policy's prior_mean is {mine!r}, and means are those of the model, which has another one: give it to the model "
        "(or to the policy of its bandit), and leave it out of this policy.",
    )


def _agree(mine: tuple[float, float], theirs: tuple[float, float]) -> bool:
    """Whether two pairs of noise_std and λ are equal up to rounding. A noise_std of 0 is that of a policy without one."""
    near = partial(math.isclose, rel_tol=_TOLERANCE)
    return near(mine[1], theirs[1]) and (0.0 in (mine[0], theirs[0]) or near(mine[0], theirs[0]))


def check_transforms(model: Model, posterior_transform: Any) -> None:
    """Refuse transforms that are not affine, since they do not map confidence bounds to confidence bounds, and those that make
    several points of one."""
    several = isinstance(model, BanditModel) and makes_several(model.transform_inputs, model.train_inputs[0])
    message = (
        "the input transform makes several points of one, and a policy scores single points: leave it out, or use BoTorch's "
        "own acquisition functions, such as qUpperConfidenceBound with a risk measure as objective."
    )
    require(not several, message, UnsupportedError)
    outcome = getattr(model, "outcome_transform", None)
    require(
        outcome is None or is_affine(outcome),
        f"{type(outcome).__name__} is not affine, so that a confidence bound of transformed rewards is not "
        "one of the rewards. Use Standardize, or transform the rewards before you give them to the model.",
        UnsupportedError,
    )
    stratified = outcome is not None and any(isinstance(part, StratifiedStandardize) for part in outcome.modules())
    message = (
        "StratifiedStandardize has a scale for each stratum, which a policy's score does not know: use Standardize, or "
        "BoTorch's own acquisition functions."
    )
    require(not stratified, message, UnsupportedError)
    require(
        posterior_transform is None or isinstance(posterior_transform, PosteriorTransform),
        f"posterior_transform must be a BoTorch PosteriorTransform, got {type(posterior_transform).__name__}.",
    )
    require(
        posterior_transform is None or isinstance(posterior_transform, ScalarizedPosteriorTransform),
        f"{type(posterior_transform).__name__} is not affine in one outcome: use ScalarizedPosteriorTransform.",
        UnsupportedError,
    )
