"""Sample paths of a `BanditModel` for BoTorch's `draw_matheron_paths`, and with it `PathwiseThompsonSampling`.

BoTorch draws from torch's global generator (`torch.manual_seed`), and so do these; `PolicyAcquisition` takes a generator.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from botorch.sampling.pathwise import GeneralizedLinearPath, KernelEvaluationMap, MatheronPath
from botorch.sampling.pathwise.features.generators import GenKernelFeatures
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import DrawKernelFeaturePaths, TPathwisePriorSampler
from botorch.sampling.pathwise.update_strategies import GaussianUpdate, TPathwiseUpdate
from botorch.sampling.pathwise.utils import GetTrainInputs, get_input_transform, get_output_transform
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean
from gpytorch.models import ExactGP
from torch import Tensor

from torchbandits.botorch.model import BanditModel
from torchbandits.errors import UnsupportedError, require
from torchbandits.kernels import expand_kernel
from torchbandits.posteriors.paths import explained_weights
from torchbandits.random_effects import RandomEffectKernel


@GetTrainInputs.register(BanditModel)
def _train_inputs(model: BanditModel, transformed: bool = False) -> tuple[Tensor]:
    """The observed points, which a `BanditModel` keeps as given."""
    (X,) = model.train_inputs
    return (model.transform_inputs(X) if transformed else X,)


@DrawKernelFeaturePaths.register(BanditModel)
def _prior_paths(model: BanditModel, **options: Any) -> GeneralizedLinearPath:
    """Prior paths as for BoTorch's own models, whose kernels have the batch shape of their data."""
    if model.covar_module.batch_shape != model.batch_shape:
        model = copy.deepcopy(model)
        model.covar_module = expand_kernel(model.covar_module, model.batch_shape)
    # The sampler of ExactGP reads kernel, mean and transforms only.
    return DrawKernelFeaturePaths.dispatch(ExactGP)(model, **options)


@GenKernelFeatures.register(RandomEffectKernel)
def _no_features(kernel: RandomEffectKernel, **options: Any) -> Any:
    """Refuse what would be the features of the kernel without random effects, of which this kernel is a subclass."""
    raise UnsupportedError(
        "a deviation of each point is no function of finitely many features, so that this kernel has no sample paths: draw "
        "from the joint posterior of given points, model.posterior(X).rsample(), or use BoTorch's MaxPosteriorSampling."
    )


@DrawMatheronPaths.register(BanditModel)
def _matheron_paths(
    model: BanditModel, *, sample_shape: torch.Size, prior_sampler: TPathwisePriorSampler, update_strategy: TPathwiseUpdate
) -> MatheronPath:
    """Posterior paths: prior paths with their updates. Cost O(u (F + m) + m²) per path for F features."""
    transformed = copy.deepcopy(model)
    if hasattr(transformed, "outcome_transform"):
        del transformed.outcome_transform  # the sum of both paths is untransformed
    with torch.no_grad():
        prior = prior_sampler(transformed, sample_shape)
        values = prior.forward(model.process().statistics.points)
        update = update_strategy(model, values)
    return MatheronPath(prior_paths=prior, update_paths=update, output_transform=get_output_transform(model))


@GaussianUpdate.register(BanditModel, Likelihood)
@torch.no_grad()
def _update_paths(
    model: BanditModel, _: Likelihood, *, sample_values: Tensor, target_values: Tensor | None = None
) -> GeneralizedLinearPath:
    r"""Weights of kernel columns, :math:`w - V^{-1}Z^T s` for noisy rewards s of the prior path (with a dictionary, of the part
    that it explains): mean and covariance of the paths are those of the posterior.

    Args:
        sample_values: `sample_shape x batch_shape x u`, a prior path at the distinct points, in the order of
            `model.process().statistics`.
        target_values: None: the rewards are the model's.
    """
    process = model.process()
    require(
        model.finite is None and not model.hallucinates and target_values is None,
        "BoTorch's sample paths need a model with a kernel, observed rewards and no hallucinated points: use "
        "PolicyAcquisition with thompson_sampling for finite features.",
        UnsupportedError,
    )
    shape = process.batch_shape
    sample_shape = sample_values.shape[: sample_values.dim() - len(shape) - 1]
    fit, mean = process.fit(), process.estimated_prior_mean
    bias = ConstantMean(batch_shape=shape).double().initialize(constant=mean)
    deviations = (sample_values - model.mean_module(process.statistics.points)).reshape(-1, *shape, process.statistics.size)
    sizes, generators = [len(deviations)] * shape.numel(), [torch.default_generator] * shape.numel()
    explained = explained_weights(process, deviations.movedim(0, -1), sizes, generators)
    channels = fit.nystrom.root.lift(fit.regression.coefficients)
    if process.prior_mean == "estimate":
        channels = channels[..., :1] - mean[..., None, None] * channels[..., 1:]
    weights = fit.unpadded(channels) - explained
    points = process.statistics.at(fit.rows)
    features = KernelEvaluationMap(kernel=model.covar_module, points=points, input_transform=get_input_transform(model))
    path: Any = GeneralizedLinearPath(
        feature_map=features,
        weight=weights.movedim(-1, 0).reshape(*sample_shape, *shape, -1),
        bias_module=bias if process.prior_mean == "estimate" else None,
    )
    return path
