"""Other BoTorch models with the interface of `BanditModel` that `PolicyAcquisition` uses."""

from __future__ import annotations

from typing import Any, final

import torch
from botorch.models.model import Model
from botorch.models.multitask import MultiTaskGP
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from torchbandits.errors import ArgumentError, UnsupportedError, require
from torchbandits.types import Marginals, Points, Progress
from torchbandits.upstream import predicted_task

# Errors of models that cannot be conditioned.
_REFUSALS = (NotImplementedError, AttributeError, RuntimeError, TypeError, ValueError)


def batch_shape_of(model: Any) -> torch.Size:
    """Batch shape of a BoTorch model; empty for models that do not define one: lists of different models, functions without."""
    try:
        return torch.Size(model.batch_shape or ())
    except NotImplementedError:
        return torch.Size()


@final
class AnyModel:
    """A BoTorch model of one outcome, of which only the posterior is used.

    Args:
        model: Any model whose `posterior` has a mean and a variance.
        spread: The model for variances, in which points are hallucinated; the same model by default.

    Raises:
        UnsupportedError: For several outcomes, and for ensembles of models.
    """

    arms = None  # only a BanditModel tabulates arms

    def __init__(self, model: Model, spread: Model | None = None) -> None:
        require(
            model.num_outputs == 1,
            f"a policy has one reward, and the model has {model.num_outputs} outcomes: pass one model of the list, or "
            "model.subset_output([0]).",
            UnsupportedError,
        )
        require(
            not getattr(model, "_is_ensemble", False),
            f"{type(model).__name__} is an ensemble, which has no confidence bound of a Gaussian process: use BanditModel.",
            UnsupportedError,
        )
        # A list of one model is that model.
        members = getattr(model, "models", None)
        self.model: Any = model if members is None else members[0]
        self._spread: Any = self.model if spread is None else spread

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the model; empty for models that do not define one."""
        return batch_shape_of(self.model)

    @property
    def observations(self) -> Tensor | None:
        """Training points as given, `batch_shape x n x d`; None if the model does not keep them.

        Those of a `MultiTaskGP` are the points of the task that it predicts, with their task; where there are none, those of
        the other tasks, as points of this one.
        """
        inputs: Any = getattr(self.model, "train_inputs", None)
        if getattr(self.model, "_has_transformed_inputs", False):
            inputs = (self.model._original_train_inputs,)
        points: Tensor | None = inputs[0] if inputs else None
        if points is None or not isinstance(self.model, MultiTaskGP):
            return points
        column, task = predicted_task(self.model)
        of_task = points[points[:, column] == task]
        return of_task if len(of_task) else self.with_task(torch.cat([points[:, :column], points[:, column + 1 :]], dim=-1))

    def with_task(self, X: Tensor) -> Tensor:
        """Points of a `MultiTaskGP` with the task that it predicts, where they are given without one, as its posterior takes
        them; points of other models as they are."""
        model = self.model
        if not isinstance(model, MultiTaskGP) or X.shape[-1] != model.num_non_task_features:
            return X
        column, task = predicted_task(model)
        return torch.cat([X[..., :column], X.new_full((*X.shape[:-1], 1), task), X[..., column:]], dim=-1)

    def marginals(self, X: Points) -> Marginals:
        """Mean and variance at `batch_shape x n x d` points, `batch_shape x n` each, float64, in the units of the rewards. Each
        point is a separate t-batch: no covariance between points is computed."""
        batches = X.movedim(-2, 0).unsqueeze(-2)
        posterior = self.model.posterior(batches)
        spread = posterior if self._spread is self.model else self._spread.posterior(batches)
        mean, variance = (
            value[..., 0, 0].expand(batches.shape[:-2]).movedim(0, -1) for value in (posterior.mean, spread.variance)
        )
        return Marginals(mean.double(), variance.double())

    def hallucinate(self, X: Points) -> AnyModel:
        """This model with the variances after observations at `X`, `batch_shape x p x d` or `p x d`.

        The model is conditioned on its own mean there, with its own noise (the average one, where noise differs by point).

        Raises:
            UnsupportedError: If the model cannot be conditioned; says what to do.
        """
        observed = self.observations
        points = X if observed is None else X.to(observed)
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
        """The quantities that a width may depend on: the numbers of observations (if the model keeps them), arms and features.
        All others are NaN, since they need a `BanditModel`."""
        unknown = torch.full(self.batch_shape, torch.nan, dtype=torch.float64)
        own = self.observations
        # Variational models keep transformed inputs one level below.
        if own is None:
            inner: Any = getattr(getattr(self.model, "model", None), "train_inputs", None)
            own = inner[0] if inner else None
        pulls = unknown if own is None else torch.full_like(unknown, own.shape[-2], device=own.device)
        none = unknown.to(pulls.device)
        return Progress(pulls + 1, pulls, num_arms, 0 if own is None else own.shape[-1], *([none] * 6))


def known_width(width: Tensor, name: str, progress: Progress) -> Tensor:
    """Return the width, or raise `ArgumentError` that names the missing quantities where it is NaN."""
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
