"""The posteriors of this package as a BoTorch model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.utils.assorted import fantasize as fantasizing
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.datasets import SupervisedDataset
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from linear_operator import to_linear_operator
from torch import Tensor, nn

from torchbandits.botorch.covariance import LazyCovariance
from torchbandits.botorch.data import Block, check_asked, check_inputs, check_pairs, check_points, check_tensor, check_values
from torchbandits.botorch.fit import fit_
from torchbandits.botorch.observed import Observed
from torchbandits.botorch.parts import check_transform
from torchbandits.botorch.table import Tabulated
from torchbandits.checks import check_flag, check_whole, own_copy
from torchbandits.errors import UnsupportedError
from torchbandits.types import Marginals

_JOINT_POINTS = 256  # up to so many points a joint covariance is computed at once, beyond when somebody looks at it


class BanditModel(Observed):
    r"""A Gaussian process with one outcome, exact or with a dictionary, that BoTorch's optimisers, transforms and acquisition
    functions take like any `SingleTaskGP`: repeated points are folded into counts, a further observation costs O(m²), and no
    call makes a matrix of all the points it is asked about.

    Everything is computed in float64; what is returned has the wider dtype of model and points. Hyper-parameters stay as they
    are given until `fit_gpytorch_mll` is called, which fits every kernel parameter that requires a gradient (freeze those of a
    kernel that is known: `kernel.requires_grad_(False)`), and the noise, under BoTorch's prior, where it was not given.

    Args:
        train_X: `batch_shape x n x d`.
        train_Y: `batch_shape x n x 1`.
        train_Yvar: Known noise variances, alike.
        kernel: Any GPyTorch kernel, deep-copied; BoTorch's RBF kernel with a dimension-scaled prior by default.
        noise_std: Standard deviation of the noise, in units of the transformed outcomes; by default 0.1 before a fit.
        regularization: λ of the regression; noise_std² by default, which makes it the posterior of a Gaussian process.
        dictionary: `"all"` distinct points (exact); drawn by `"leverage"` scores, or by approximate ones (`"bless"`, for very
            many points); or points `m x d` of your own (not transformed). It is kept while conditioning, and drawn anew after
            a fit.
        oversampling: q̄ ≥ 1, expected points of a drawn dictionary per effective dimension.
        prior_mean: Of the transformed outcomes; `"estimate"` for their average.
        generator: CPU generator, or one a batch row, of drawn dictionaries; copied, never advanced. Seed 0 by default.
        input_transform: As for any BoTorch model.
        outcome_transform: Alike; none by default.
        covar_module: BoTorch's name for `kernel`.

    Raises:
        BotorchTensorDimensionError, InputDataError, UnsupportedError: BoTorch's own, for shapes, NaNs and several outcomes.
        ArgumentError: For options out of their range.

    Cost: O(u³) for u distinct points, O(u m²) with a dictionary, once, when first needed.
    Source: Calandriello et al. 2019, eq. 4–5, for the posterior with a dictionary.
    """

    @classmethod
    def construct_inputs(
        cls, training_data: SupervisedDataset, categorical_features: Sequence[int] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Arguments of the constructor from BoTorch's container of data, and options of one's own, as Ax asks for them."""
        check_inputs(training_data, categorical_features, options.get("kernel"))
        return super().construct_inputs(training_data) | options

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: Sequence[Any] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
        **kwargs: Any,
    ) -> Any:
        """The posterior of f, or of an observation, jointly over q points.

        Args:
            X: `... x q x d`, not transformed; its dimensions broadcast with `batch_shape`.
            output_indices: Not looked at: there is one outcome, and BoTorch's lists of models pass indices of their own.
            observation_noise: True for the noise of the likelihood (the average one, where each observation has its own), or
                variances `... x q x 1` in the space of the transformed outcomes.
            posterior_transform: Applied last.
            kwargs: None is used.

        Returns:
            A `GPyTorchPosterior` (or what the transforms make of it), mean and variance `... x q x 1`. For many points the
            covariance is evaluated when something beside its diagonal is asked for.

        Cost: O(m²) a point, and O(q² m) for a joint covariance.
        """
        check_asked(observation_noise, posterior_transform)
        self.eval()
        X = self._promoted(X)
        known = self._looked_up(X)
        x = self.transform_inputs(X)
        mvn = self._normal(x, known)
        if observation_noise is not False:
            if isinstance(observation_noise, Tensor):
                self._validate_tensor_args(X=x, Y=observation_noise.to(x.dtype), strict=False)
                variance = observation_noise.to(mvn.mean).squeeze(-1)
            else:
                variance = self._average_noise().to(mvn.mean)
            noisy = mvn.lazy_covariance_matrix.add_diagonal(variance.expand(mvn.mean.shape))
            mvn = MultivariateNormal(mvn.mean, noisy)
        posterior: Any = GPyTorchPosterior(mvn)
        if hasattr(self, "outcome_transform"):
            transform = self.outcome_transform
            if X.dtype != self._dtype:  # its buffers are the model's, and lazy products take no two dtypes
                transform = copy.deepcopy(transform).to(X.dtype)
            posterior = transform.untransform_posterior(posterior, X=X)
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def transform_inputs(self, X: Tensor, input_transform: nn.Module | None = None) -> Tensor:
        """Points in the space of the kernel. Parameters of a transform, which are not fitted, have a gradient in training mode
        alone: it would tie every model to the one that it was conditioned from."""
        check_tensor("X", X)
        check_transform("input_transform", input_transform, InputTransform)
        x = super().transform_inputs(X, input_transform)
        return x if X.requires_grad or self.training else x.detach()

    def forward(self, X: Tensor) -> MultivariateNormal:
        """The prior at `... x n x d` points (transformed ones, but in training mode), with the outcomes transformed.

        Raises:
            UnsupportedError: In evaluation mode, where this prior at `train_inputs` does not make the posterior: BoTorch's
                leave-one-out formula (`efficient_loo_cv`) would be wrong. Ax then leaves out one fold after the other.
        """
        exact = not isinstance(self._dictionary, Tensor) and self._dictionary == "all" and self._share == 1
        if not self.training and (not exact or self._estimates or hasattr(self, "input_transform")):
            raise UnsupportedError("only the exact posterior without an input transform is that of this prior at train_inputs.")
        check_tensor("X", X)
        x = (self.transform_inputs(X) if self.training else X).double()
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def __call__(self, X: Tensor, *args: Any, **kwargs: Any) -> MultivariateNormal:
        """In training mode the prior, for marginal likelihoods; else the posterior at points that are transformed already."""
        return self.forward(X) if self.training else self._normal(self._promoted(X), None)

    def marginals(self, X: Tensor) -> Marginals:
        """Mean and variance of f at `... x n x d` points (not transformed), `... x n` each, in the space of the transformed
        outcomes. Differentiable. Cost O(m²) a point, or nothing for arms that are tabulated."""
        X = self._promoted(X)
        known = self._looked_up(X)
        if known is None:
            known = self._conditional().marginals(self.transform_inputs(X).double())
        return Marginals(known[0].to(X.dtype), known[1].to(X.dtype))

    def joint(self, X: Tensor, other: Tensor) -> Tensor:
        """Posterior covariance between points (not transformed), `... x n x n'`, alike. Cost O((n + n') m² + n n' m)."""
        x, y = (self.transform_inputs(self._promoted(points, name)) for points, name in ((X, "X"), (other, "other")))
        return self._conditional().covariance(x.double(), y.double()).to(x.dtype)

    # ------------------------------------------------------------------ models made from this one

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> BanditModel:
        """A model that has seen more; this one stays as it is, and its factors are shared, not copied.

        Args:
            X: `b x p x d`, not transformed; dimensions that the model does not have become batch dimensions.
            Y: `... x b x p x 1`, not transformed; may have leading dimensions (of fantasies) that X does not have.
            noise: Variances `b x p x 1` in the space of the transformed outcomes; the model's own by default (the average one,
                where it is known for each observation).
            kwargs: None is used.

        Cost: O(p m²), cold or warm, repeated points or new ones; now and then, when an eighth of m columns have been appended,
        a factorisation. Differentiable in X and Y.
        """
        check_tensor("X", X)
        check_tensor("Y", Y)
        check_values(X=X, Y=Y, noise=noise)
        check_pairs(X, Y)
        # Copies, through which gradients pass: who gave the data may write to them later.
        X = self._promoted(X).clone()
        Y, noise = Y.to(X.dtype).clone(), None if noise is None else noise.to(X.dtype).clone()
        if fantasizing.off():
            self._validate_tensor_args(X=X, Y=Y, Yvar=noise, strict=False)
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        if noise is None and known:
            noise = self._average_noise().to(X).unsqueeze(-1)
        if Y.shape[-1] == 1:
            Y, noise = Y.squeeze(-1), None if noise is None else noise.squeeze(-1)
        if noise is not None:  # each batch row of the model may have its own
            rows, p = self.likelihood.noise.shape[:-1] if known else torch.Size(), X.shape[-2]
            shape = torch.broadcast_shapes(X.shape[:-2], noise.shape[:-1], rows)
            X, noise = X.expand(*shape, *X.shape[-2:]), noise.detach().expand(*shape, p)
            Y = Y.expand(*torch.broadcast_shapes(Y.shape[:-1], shape), p)
        block = Block(X, Y, noise, transformed=True)
        y, weights = self._weighed(block)
        posterior = self._conditional().conditioned(self.transform_inputs(X).double(), y, weights)
        new = self._with(posterior, _blocks=(*self._blocks, block.detached()))
        if known and noise is not None:
            new.likelihood = self.likelihood.get_fantasy_likelihood(noise=noise.double())
        return new

    def hallucinate(self, X: Tensor, counts: Tensor | None = None, *, frozen_dictionary: bool = False) -> BanditModel:
        """A model with the same mean everywhere, and the variance as if points `b x p x d` (not transformed) had been observed
        `b x p` times, once by default. Cost as for `condition_on_observations`.

        The process that the model is gets conditioned on them exactly, dictionary or not. With `frozen_dictionary` the part of
        the kernel that the dictionary does not explain keeps its variance, as within a batch of BBKB.
        """
        check_flag("frozen_dictionary", frozen_dictionary)
        check_values(X=X, counts=counts)
        X = self._promoted(X).clone()
        counts = torch.ones(X.shape[:-1], dtype=torch.float64, device=X.device) if counts is None else counts.double().clone()
        posterior = self._conditional().hallucinated(self.transform_inputs(X).double(), counts, frozen=frozen_dictionary)
        return self._with(posterior, _pending=(*self._pending, (X.detach(), counts, frozen_dictionary)))

    def tabulate_(self, arms: Tensor, memory_budget: int = 2 << 30) -> BanditModel:
        """Keep the marginals of these arms, `A x d` (not transformed); returns self.

        Calls with these points, whole or as slices of the tensor (of `arms.unsqueeze(-2)`, as `optimize_acqf_discrete` makes
        them), are then read off; models conditioned from this one update them by the columns they appended, in one pass over
        memory.

        Args:
            arms: Copied. A tensor that was written to since is no longer taken for them.
            memory_budget: Bytes for kernel columns, which spare those models a sweep.

        Cost: O(A m²) time and O(A m) memory, when first read.
        """
        check_tensor("arms", arms)
        return self._tabulate(own_copy(arms.contiguous()), int(arms.storage_offset()), memory_budget)

    def _tabulate(self, arms: Tensor, offset: int = 0, memory_budget: int = 2 << 30) -> BanditModel:
        """Keep the marginals of arms that nobody writes to, a copy of a tensor at this offset of its storage."""
        check_whole("memory_budget", memory_budget, 0)
        if arms.dim() != 2 or self.batch_shape:
            raise UnsupportedError(
                f"arms are tabulated as A x d, for a model without batch dimensions; got {tuple(arms.shape)} for a model of "
                f"batch shape {tuple(self.batch_shape)}."
            )
        if self.transform_inputs(arms[:1]).shape[:-1] != arms[:1].shape[:-1]:
            raise UnsupportedError("the input transform makes several points of an arm: ask for posteriors without tabulating.")
        self._table = Tabulated(arms.contiguous(), offset, memory_budget)
        return self

    @property
    def arms(self) -> Tensor | None:
        """The arms that are tabulated, `A x d`, or that its bandit had, `batch_shape x A x d`; None where there are none."""
        return self._arms if self._table is None else self._table.arms

    def subset_output(self, idcs: Sequence[Any]) -> BanditModel:
        """This model for `[0]`: it has one outcome."""
        if not isinstance(idcs, Sequence) or list(idcs) not in ([0], [-1]):
            raise UnsupportedError(f"BanditModel has one outcome: idcs must be [0], got {idcs}.")
        return self._with(self._conditional())

    def custom_fit(self, mll: Any, **kwargs: Any) -> Any:
        """What `fit_gpytorch_mll` calls: this package's evidence is climbed, by `fit_`; returns `mll` in evaluation mode.

        Args:
            mll: Of this model; only handed back.
            kwargs: Options of other fits; none is used.
        """
        fit_(self)
        return mll.eval()

    # ------------------------------------------------------------------ inside

    def _normal(self, x: Tensor, known: tuple[Tensor, Tensor] | None) -> MultivariateNormal:
        """The posterior at transformed points, of which mean and variance may be known."""
        posterior, dtype = self._conditional(), x.dtype
        points = x.double()
        q = x.shape[-2]
        if known is None and 1 < q <= _JOINT_POINTS:
            mean, covariance = (t.to(dtype) for t in posterior.joint(points))
            return MultivariateNormal(mean, to_linear_operator(covariance.expand(*mean.shape, q)))
        mean, variance = (t.to(dtype) for t in (posterior.marginals(points) if known is None else known))
        variance = variance.expand(mean.shape)  # fantasies of the same points have one variance
        if q == 1:
            return MultivariateNormal(mean, to_linear_operator(variance.unsqueeze(-1)))

        def evaluate() -> Tensor:
            return posterior.joint(points)[1].to(dtype).expand(*mean.shape, q)

        return MultivariateNormal(mean, LazyCovariance(variance, evaluate=evaluate))

    def _looked_up(self, X: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean and variance of arms that are tabulated, shaped like the points."""
        rows = None if self._table is None or self.batch_shape else self._table.rows(X)
        if self._table is None or rows is None:
            return None
        posterior = self._conditional()
        if self._table.posterior is not posterior:
            with torch.no_grad():
                self._table = self._table.brought_to(posterior, self.transform_inputs)
        mean, variance = self._table.marginals()
        return mean[rows].reshape(X.shape[:-1]), variance[rows].reshape(X.shape[:-1])

    def _average_noise(self) -> Tensor:
        """Of each batch row, `... x 1`."""
        return self.likelihood.noise.detach().mean(dim=-1, keepdim=True)

    def _promoted(self, X: Tensor, name: str = "X") -> Tensor:
        """Points in the wider dtype of theirs and the model's."""
        check_points(name, X, self._blocks[0].X.shape[-1])
        return X.to(torch.promote_types(X.dtype, self._dtype))
