"""Other BoTorch models, seen as `PolicyAcquisition` sees a `BanditModel`: marginals, hallucinated points, progress."""

from __future__ import annotations

from typing import Any, final

import torch
from botorch.models.model import Model
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from torchbandits.errors import ArgumentError, UnsupportedError, require
from torchbandits.types import Marginals, Points, Progress

_REFUSALS = (NotImplementedError, AttributeError, RuntimeError, TypeError, ValueError)  # of models that can't be conditioned


@final
class AnyModel:
    """A BoTorch model of one outcome; only what its posterior says is used.

    Args:
        model: Whatever has a `posterior` with mean and variance.
        spread: The model whose variances count, in which points are hallucinated; the model itself by default.

    Raises:
        UnsupportedError: For several outcomes, and for ensembles of models.
    """

    arms = None  # tabulated by a BanditModel alone

    def __init__(self, model: Model, spread: Model | None = None) -> None:
        require(
            model.num_outputs == 1,
            f"a policy has one reward, the model {model.num_outputs} outcomes: pass one of a list's models, or "
            "model.subset_output([0]).",
            UnsupportedError,
        )
        require(
            not getattr(model, "_is_ensemble", False),
            f"{type(model).__name__} is an ensemble, whose confidence bound is none of a Gaussian process: use BanditModel.",
            UnsupportedError,
        )
        # A list of one model is that model.
        members = getattr(model, "models", None)
        self.model: Any = model if members is None else members[0]
        self._spread: Any = self.model if spread is None else spread

    @property
    def batch_shape(self) -> torch.Size:
        """That of the model; none for models that have none to tell."""
        try:
            return torch.Size(self.model.batch_shape)
        except NotImplementedError:
            return torch.Size()

    @property
    def observations(self) -> Tensor | None:
        """Training points as they were given, `batch_shape x n x d`, where the model keeps them."""
        inputs: Any = getattr(self.model, "train_inputs", None)
        if getattr(self.model, "_has_transformed_inputs", False):
            inputs = (self.model._original_train_inputs,)
        return inputs[0] if inputs else None

    def marginals(self, X: Points) -> Marginals:
        """Mean and variance at `batch_shape x n x d` points, `batch_shape x n` each, float64, in the units of the rewards. Each
        point is a t-batch of its own: no covariance between points is computed."""
        batches = X.movedim(-2, 0).unsqueeze(-2)
        posterior = self.model.posterior(batches)
        spread = posterior if self._spread is self.model else self._spread.posterior(batches)
        mean, variance = (
            value[..., 0, 0].expand(batches.shape[:-2]).movedim(0, -1) for value in (posterior.mean, spread.variance)
        )
        return Marginals(mean.double(), variance.double())

    def hallucinate(self, X: Points) -> AnyModel:
        """This model with the variances that it would have after observations at `X`, `batch_shape x p x d` or `p x d`.

        The model is conditioned on its own mean there, with its own noise (the average one, where noise differs by point).

        Raises:
            UnsupportedError: If the model can't be conditioned, saying what to do.
        """
        own = self.observations
        points = X if own is None else X.to(own)
        points = points.expand(*self.batch_shape, *points.shape[-2:])
        try:
            mean = self._spread.posterior(points).mean
            noise = {}
            likelihood = getattr(self._spread, "likelihood", None)
            if isinstance(likelihood, FixedNoiseGaussianLikelihood):
                noise = {"noise": likelihood.noise.mean(dim=-1, keepdim=True).unsqueeze(-1).expand_as(mean)}
            conditioned = self._spread.condition_on_observations(points, mean, **noise)
        except _REFUSALS as error:
            raise UnsupportedError(
                f"{type(self.model).__name__} can't be conditioned on pending points ({str(error)[:100]}): use a "
                "BanditModel or SingleTaskGP, leave X_pending out, or use BoTorch's qUpperConfidenceBound for batches."
            ) from error
        return AnyModel(self.model, conditioned)

    def progress(self, num_arms: int) -> Progress:
        """What a width may depend on: the numbers of observations (where the model keeps them), arms and features. The rest is
        NaN: only a `BanditModel` knows it."""
        unknown = torch.full(self.batch_shape, torch.nan, dtype=torch.float64)
        own = self.observations
        if own is None:  # variational models keep them one level below, transformed
            inner: Any = getattr(getattr(self.model, "model", None), "train_inputs", None)
            own = inner[0] if inner else None
        pulls = unknown if own is None else torch.full_like(unknown, own.shape[-2], device=own.device)
        none = unknown.to(pulls.device)
        return Progress(pulls + 1, pulls, num_arms, 0 if own is None else own.shape[-1], *([none] * 6))


def known_width(width: Tensor, name: str, progress: Progress) -> Tensor:
    """The width, if nothing was missing for it. Raises `ArgumentError` naming what is."""
    if bool(width.isnan().any()):
        missing = (
            "the number of observations, which this model does not keep"
            if bool(progress.pulls.isnan().any())
            else "the information that was gained or the leverages, which only a BanditModel knows"
        )
        raise ArgumentError(
            f"the width {name} depends on {missing}: make a BanditModel of the data, or give the policy "
            "width=widths.Constant(2.0)."
        )
    return width
