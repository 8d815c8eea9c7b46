"""The posteriors of this package as a BoTorch model."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import gpytorch
import torch
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.models.utils.assorted import fantasize as fantasizing
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.utils.transforms import inv_softplus
from linear_operator import to_linear_operator
from torch import Tensor, nn

from torchbandits.botorch.covariance import LazyCovariance
from torchbandits.botorch.data import (
    Block,
    check_asked,
    check_data,
    check_inputs,
    check_pairs,
    check_points,
    check_tensor,
    check_values,
    draw_dictionary_,
    folded,
    generator_states,
    joined,
    merged,
    twins,
)
from torchbandits.botorch.parts import as_given, check_transform, kernel_of, likelihood_of, makes_several, mean_of
from torchbandits.botorch.scale import advice_on_fit, advice_on_transform, warn_of_scale
from torchbandits.botorch.table import Tabulated
from torchbandits.checks import at_least_one, check_flag, check_whole, explains_keywords, number, own_copy, positive
from torchbandits.embeddings import FiniteEmbedding
from torchbandits.errors import NumericalError, UnsupportedError, issue, require
from torchbandits.fitting import fit_kernel_
from torchbandits.kernels import kernel_diagonal, shaped_like
from torchbandits.policies import AdaptiveUCB, Composed, State
from torchbandits.policies.base import Policy
from torchbandits.policies.composed import noise_share
from torchbandits.policies.phased import Phased
from torchbandits.policies.scale import ScaleWatch
from torchbandits.policies.state import TableState
from torchbandits.posteriors import GaussianProcess
from torchbandits.posteriors.conditional import Conditional
from torchbandits.shapes import broadcast_shapes
from torchbandits.types import Marginals, Progress

_JOINT_POINTS = 256  # points up to which a joint covariance is computed at once, and not lazily
_NOISE_STD = 0.1  # noise where none is given: the start of a fit, in units of the (standardised) outcomes
_LEAST_NOISE = 1e-6  # variance of noise that is said to be none, in units of the outcomes' variance
_APPENDED = 64  # appended columns, or an eighth of the base's, from which on factorising a new base pays off

_REPLACEABLE = ("covar_module", "input_transform", "outcome_transform")  # parts whose parameters do not tell them apart


@dataclass(frozen=True)
class Path:
    """Progress of a run when its bandit handed out a model, `batch_shape` each.

    Attributes:
        told: Pulls told, of which the memory of the policy may have dropped some.
        log_det, batched_log_det, batched_log_det_3: As in `Progress`.
        origin: log det(V/λ) of the model.
    """

    told: Tensor
    log_det: Tensor
    batched_log_det: Tensor
    batched_log_det_3: Tensor
    origin: Tensor

    def to(self, device: torch.device) -> Path:
        """The same on another device."""
        return Path(*(getattr(self, f.name).to(device) for f in fields(self)))


class BanditModel(GPyTorchModel, gpytorch.models.GP, FantasizeMixin):
    r"""A Gaussian process with one outcome, exact or with a dictionary, for BoTorch's optimisers, transforms and acquisition
    functions. Repeated points are folded into counts, a further observation costs O(m²), and no call makes a matrix over all
    its points.

    Everything is computed in float64; results have the wider dtype of model and points. Hyper-parameters stay as given until
    `fit_gpytorch_mll` is called, which fits every kernel parameter that requires a gradient (to keep a known kernel, call
    `kernel.requires_grad_(False)`), and the noise, under BoTorch's prior, where it was not given. Parameters of an input
    transform, such as those of `Warp`, are fitted by `botorch.optim.fit.fit_gpytorch_mll_scipy(mll.train())` only, which takes
    O(n³) an iteration.

    Args:
        train_X: `batch_shape x n x d`.
        train_Y: `batch_shape x n x 1`.
        train_Yvar: Known noise variances, of the same shape.
        kernel: Any GPyTorch kernel, deep-copied; BoTorch's RBF kernel with a dimension-scaled prior by default.
        noise_std: Standard deviation of the noise, in units of the transformed outcomes; by default 0.1 before a fit.
        regularization: λ of the regression; noise_std² by default, which makes it the posterior of a Gaussian process.
        dictionary: `"all"` distinct points (exact); drawn by `"leverage"` scores, or by approximate ones (`"bless"`, for very
            many points); or given points `m x d` (not transformed). It is kept while conditioning, and drawn anew after a
            fit.
        oversampling: q̄ ≥ 1, expected points of a drawn dictionary per effective dimension.
        prior_mean: Prior mean of the transformed outcomes; `"estimate"` for their average.
        generator: CPU generator, or one per batch row, of drawn dictionaries; copied, never advanced. Seed 0 by default.
        input_transform: As for any BoTorch model, and copied: what it learns from the data is in `model.input_transform`.
        outcome_transform: Likewise. By default, as in `SingleTaskGP`, `Standardize`; none where `kernel`,
            `noise_std`, `regularization` or a number as `prior_mean` is given, whose units are those of the outcomes.
        covar_module: BoTorch's name for `kernel`.

    Raises:
        BotorchTensorDimensionError, InputDataError, UnsupportedError: BoTorch's own, for shapes, NaNs and several outcomes.
        ArgumentError: For options out of their range.
        ShapeError: If the kernel is made for other features or batch rows.

    Warns (`DiagnosticWarning`): At the first prediction with eight observations or more, and again after a fit, if outcomes,
        features or noise are on a scale far from that of the kernel and the prior mean; no finding is repeated.

    Cost: O(u³) for u distinct points, O(u m²) with a dictionary, once, when first needed.
    Source: Calandriello et al. 2019, eq. 4–5, for the posterior with a dictionary.
    """

    _num_outputs = 1
    _has_transformed_inputs = False  # `train_inputs` are the user's, always

    @explains_keywords
    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        # No keyword-only arguments, since Ax looks for names among the positional ones.
        kernel: gpytorch.kernels.Kernel | None = None,
        noise_std: float | None = None,
        regularization: float | None = None,
        dictionary: str | Tensor = "all",
        oversampling: float = 2.0,
        prior_mean: float | str = 0.0,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | type | None = DEFAULT,
        covar_module: gpytorch.kernels.Kernel | None = None,
    ) -> None:
        super().__init__()
        # Numbers of a fitted model may be tensors with a gradient.
        noise_std, regularization, prior_mean = (number(value) for value in (noise_std, regularization, prior_mean))
        check_data(train_X, train_Y, train_Yvar, dictionary, prior_mean)
        at_least_one("oversampling (q̄)", oversampling)
        check_transform("input_transform", input_transform, InputTransform)
        self._validate_tensor_args(train_X, train_Y, train_Yvar)
        if outcome_transform is DEFAULT:
            in_units = [x for x in (kernel, covar_module, noise_std, regularization) if x is not None]
            standardized = not in_units and prior_mean in ("estimate", 0.0) and train_Y.shape[-2] > 0
            outcome_transform = Standardize(1, batch_shape=train_Y.shape[:-2]) if standardized else None
        check_transform("outcome_transform", outcome_transform, OutcomeTransform)
        self._dtype = train_X.dtype
        if input_transform is not None:
            self.input_transform = copy.deepcopy(input_transform).to(train_X)
        with torch.no_grad():
            # In training mode, in which transforms learn their bounds.
            x, Yvar = self.transform_inputs(train_X), train_Yvar
            if isinstance(outcome_transform, OutcomeTransform):
                self.outcome_transform = copy.deepcopy(outcome_transform).train()
                _, Yvar = self.outcome_transform(train_Y, train_Yvar, X=x)
                self.outcome_transform.eval()
        self.fits_noise = noise_std is None and Yvar is None
        if noise_std is None:
            noise_std = _NOISE_STD if Yvar is None or not Yvar.numel() else math.sqrt(float(Yvar.double().mean()))
        positive("noise_std", noise_std)
        lam = positive("regularization (λ)", noise_std**2 if regularization is None else regularization)
        self.covar_module = kernel_of(kernel, covar_module, x)
        self.mean_module = mean_of(prior_mean)
        self.likelihood = likelihood_of(noise_std, Yvar, self.fits_noise)
        self._reference, self._share, self._estimates = noise_std**2, lam / noise_std**2, prior_mean == "estimate"
        self._dictionary = own_copy(dictionary) if isinstance(dictionary, Tensor) else dictionary
        self._oversampling, self._generators = oversampling, generator_states(generator)
        self._drawn: Tensor | None = None  # points of the dictionary in use, transformed
        self._learned: list[Tensor] = []  # parameters and buffers of the transforms of the posterior in use
        # Features of a bandit, in a tuple so that they are no submodule, which would be fitted and saved.
        self._finite: tuple[FiniteEmbedding | None] = (None,)
        variance = None if train_Yvar is None else own_copy(train_Yvar.squeeze(-1))
        # Copies, since the caller may write to the tensors later.
        self._blocks: tuple[Block, ...] = (Block(own_copy(train_X), own_copy(train_Y.squeeze(-1)), variance),)
        self._pending: tuple[tuple[Tensor, Tensor, bool], ...] = ()  # points, counts, whether the dictionary is frozen
        self._path: Path | None = None
        self._given: tuple[float, float] | None = None
        self._posterior: Conditional | None = None
        self._table: Tabulated | None = None
        self._arms: Tensor | None = None  # of a bandit with batch rows, which are not tabulated
        # Shared with the models conditioned from this one; None for the model of a bandit, which has made its own checks.
        self.scale_watch: ScaleWatch | None = ScaleWatch()
        self.register_load_state_dict_post_hook(_weighed_anew)
        self.to(train_X.device).eval()

    @classmethod
    def construct_inputs(
        cls, training_data: SupervisedDataset, categorical_features: Sequence[int] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Arguments of the constructor from BoTorch's container of data and further options, as Ax requests them.

        A variance of 0, which in Ax means no noise, becomes the smallest one that BoTorch's models know, 1e-6 of the outcomes'.
        """
        check_inputs(training_data, categorical_features, options.get("kernel"))
        arguments: dict[str, Any] = super().construct_inputs(training_data)
        if (variance := arguments.get("train_Yvar")) is not None:
            spread = arguments["train_Y"].var(dim=-2, keepdim=True, correction=0)
            least = _LEAST_NOISE * torch.where(spread > 0, spread, 1.0)
            arguments["train_Yvar"] = torch.where(variance == 0, least, variance)
        return arguments | options

    # ------------------------------------------------------------------ data and hyper-parameters

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of the posterior."""
        shapes = [block.batch_shape for block in self._blocks] + [X.shape[:-2] for X, *_ in self._pending]
        return broadcast_shapes(self.covar_module.batch_shape, *shapes)

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Every observed point, not transformed, `batch_shape x n x d`."""
        return (joined(self._blocks)[0],)

    @property
    def train_targets(self) -> Tensor:
        """Every outcome, transformed, `batch_shape x n`."""
        return self._observed()[1].to(self._dtype)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise of an observation of weight 1, in units of the transformed outcomes."""
        return math.sqrt(self._noise_variance)

    @property
    def regularization(self) -> float:
        """λ, in units of the transformed outcomes squared."""
        return self._share * self._noise_variance

    @property
    def _noise_variance(self) -> float:
        return self._reference if isinstance(self.likelihood, FixedNoiseGaussianLikelihood) else self.likelihood.noise.item()

    @property
    def prior_mean(self) -> float | str:
        """Prior mean of the transformed outcomes, a number or `"estimate"`."""
        mean = self.mean_module
        require(
            isinstance(mean, gpytorch.means.ConstantMean) and mean.constant.numel() == 1,
            f"the prior mean of a BanditModel is one number, and its mean_module has become a {type(mean).__name__}: give "
            "prior_mean=, or use SingleTaskGP(mean_module=).",
            UnsupportedError,
        )
        return "estimate" if self._estimates else float(mean.constant.detach())

    @property
    def of_run(self) -> bool:
        """Whether the model was made by a bandit, whose progress it continues."""
        return self._path is not None

    @property
    def noise_of_policy(self) -> tuple[float, float] | None:
        """`noise_std` and λ of the policy of the bandit that made the model, which may have fitted others; None for a model of
        data."""
        return self._given

    @property
    def hallucinates(self) -> bool:
        """Whether variances are conditioned on points without rewards."""
        return bool(self._pending)

    @property
    def finite(self) -> FiniteEmbedding | None:
        """Finite features of a bandit in place of the kernel; None for the kernel itself."""
        return self._finite[0]

    @torch.no_grad()
    def progress(self, reads: frozenset[str] = frozenset(), num_arms: int = 1) -> Progress:
        r"""The quantities that a confidence width may depend on, `batch_shape` each.

        A model made from data alone has no run: the sums over its pulls start at log det(V/λ), the batched one with factor 3 at
        three times that, since :math:`\log(1 + 3x) \le 3 \log(1 + x)`. A model made from a bandit continues those of its run.
        Hallucinated points do not count.

        Args:
            reads: Which of the costlier entries are computed; the others are NaN.
            num_arms: A, for widths that depend on the number of arms.

        Cost: O(u m²) for `"effective_dimension"`, that of `process` for `"points"`, else that of the posterior.
        """
        posterior, path = self._conditional(), self._path
        log_det = posterior.log_det.expand(self.batch_shape)
        # The first block of a bandit's model is what the bandit knew: its pulls are counted in `told`.
        since = self._blocks if path is None else self._blocks[1:]
        pulls = torch.zeros_like(log_det) if path is None else path.told.expand_as(log_det)
        for block in since:
            pulls = pulls + (block.Y.shape[-1] if block.weights is None else block.weights.sum(dim=-1))
        gained = log_det if path is None else log_det - path.origin
        before: Any = (0.0, 0.0, 0.0) if path is None else (path.log_det, path.batched_log_det, path.batched_log_det_3)
        dimension = torch.full_like(pulls, torch.nan)
        if "effective_dimension" in reads:
            process = self.process()
            observed = Conditional.of(process) if self._pending else posterior
            statistics = process.statistics
            dimension = (statistics.weights * observed.marginals(statistics.points)[1]).sum(dim=-1) / observed.regularization
        X = self.train_inputs[0] if self.arms is None else self.arms
        X = X if X.shape[-2] else X.new_zeros(*X.shape[:-2], 1, X.shape[-1])  # any point, where nothing was observed
        x, finite = self.transform_inputs(X).double(), posterior.seen.finite
        diagonal = kernel_diagonal(self.covar_module, x) if finite is None else finite.diagonal(x)
        return Progress(
            t=pulls + 1,
            pulls=pulls.clamp_min(1),
            num_arms=num_arms,
            dim=x.shape[-1],
            log_det=before[0] + gained,
            batched_log_det=before[1] + gained,
            batched_log_det_3=before[2] + 3 * gained,
            effective_dimension=dimension,
            kappa2=diagonal.amax(dim=-1).expand(pulls.shape),
            sketch_loss=torch.zeros_like(pulls),
            points=self.process().statistics.num_rows.to(pulls.device) if "points" in reads else None,
        )

    def process(self) -> GaussianProcess:
        """A posterior of this package with the same transformed data, kernel, λ and dictionary, without hallucinated points.

        Cost: O(n (d + log n)), and that of drawing the dictionary, the first time.
        """
        return self._process()

    def _process(self, drawn: bool = True) -> GaussianProcess:
        """`process`, or the same before its dictionary is drawn."""
        X, Y, weights = self._observed()
        shape = broadcast_shapes(self.covar_module.batch_shape, X.shape[:-2])
        sparse = isinstance(self._dictionary, Tensor) or self._dictionary != "all"
        process = GaussianProcess(
            self.covar_module,
            self.regularization,
            dim=X.shape[-1],
            batch_shape=shape,
            sparse=sparse,
            prior_mean=self.prior_mean,
            finite=self._finite[0],
            device=X.device,
        )
        process.statistics = folded(X.expand(*shape, *X.shape[-2:]), Y, weights)
        if sparse and drawn:
            how = self._dictionary if self._drawn is None else self._drawn
            if isinstance(how, Tensor) and self._drawn is None:
                how = self._preprocessed(how.to(X))
            draw_dictionary_(process, how, self._oversampling, twins(self._generators, shape))
        return process

    # ------------------------------------------------------------------ posteriors

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
            output_indices: Ignored, since there is one outcome and BoTorch's lists of models pass their own indices.
            observation_noise: True for the noise of the likelihood (the average one, where each observation has its own), or
                variances `... x q x 1` in the space of the transformed outcomes.
            posterior_transform: Applied last.
            kwargs: None is used.

        Returns:
            A `GPyTorchPosterior` (or what the transforms return for it), mean and variance `... x q x 1`. For many points the
            covariance is evaluated lazily, when more than its diagonal is needed.

        Cost: O(m²) a point, and O(q² m) for a joint covariance.
        """
        check_asked(observation_noise, posterior_transform)
        self.eval()
        X = self._promoted(X)
        self._check_scale()
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
            # Its buffers have the dtype of the model, and lazy products cannot mix dtypes.
            if X.dtype != self._dtype:
                transform = copy.deepcopy(transform).to(X.dtype)
            posterior = transform.untransform_posterior(posterior, X=X)
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def transform_inputs(self, X: Tensor, input_transform: nn.Module | None = None) -> Tensor:
        """Transform points to the space of the kernel. Parameters of a transform have a gradient in training mode only, since
        it would tie every model to the one that it was conditioned from."""
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
        """The prior in training mode, for marginal likelihoods; else the posterior at transformed points."""
        return self.forward(X) if self.training else self._normal(self._promoted(X), None)

    def marginals(self, X: Tensor) -> Marginals:
        """Mean and variance of f at `... x n x d` points (not transformed), `... x n` each, in the space of the transformed
        outcomes. Differentiable. Cost O(m²) a point, or nothing for arms that are tabulated."""
        X = self._promoted(X)
        self._check_scale()
        known = self._looked_up(X)
        if known is None:
            known = self._conditional().marginals(self.transform_inputs(X).double())
        return Marginals(known[0].to(X.dtype), known[1].to(X.dtype))

    def joint(self, X: Tensor, other: Tensor) -> Tensor:
        """Posterior covariance between points (not transformed), `... x n x n'`; differentiable. O((n + n') m² + n n' m)."""
        x, y = (self.transform_inputs(self._promoted(points, name)) for points, name in ((X, "X"), (other, "other")))
        return self._conditional().covariance(x.double(), y.double()).to(x.dtype)

    # ------------------------------------------------------------------ models made from this one

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> BanditModel:
        """A model conditioned on further observations. This one stays as it is; factors are shared, not copied.

        Args:
            X: `b x p x d`, not transformed; dimensions that the model does not have become batch dimensions.
            Y: `... x b x p x 1`, not transformed; may have leading dimensions (of fantasies) that X does not have.
            noise: Variances `b x p x 1` in the space of the transformed outcomes; the model's own by default (the average one,
                where it is known for each observation).
            kwargs: None is used.

        Cost: O(p m²) for repeated points and new ones, and a factorisation whenever m/8 columns have been appended.
        Differentiable in X and Y.
        """
        check_tensor("X", X)
        check_tensor("Y", Y)
        check_values(X=X, Y=Y, noise=noise)
        check_points("X", X, self._blocks[0].X.shape[-1])
        check_pairs(X, Y)
        # Copies through which gradients pass, since the caller may write to the tensors later.
        X = self._promoted(X).clone()
        Y, noise = Y.to(X.dtype).clone(), None if noise is None else noise.to(X.dtype).clone()
        if fantasizing.off():
            self._validate_tensor_args(X=X, Y=Y, Yvar=noise, strict=False)
        known_noise = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        if noise is None and known_noise:
            noise = self._average_noise().to(X).unsqueeze(-1)
        if Y.shape[-1] == 1:
            Y, noise = Y.squeeze(-1), None if noise is None else noise.squeeze(-1)
        if noise is not None:  # each batch row of the model may have its own
            rows, p = self.likelihood.noise.shape[:-1] if known_noise else torch.Size(), X.shape[-2]
            shape = broadcast_shapes(X.shape[:-2], noise.shape[:-1], rows)
            X, noise = X.expand(*shape, *X.shape[-2:]), noise.detach().expand(*shape, p)
            Y = Y.expand(*broadcast_shapes(Y.shape[:-1], shape), p)
        block = Block(X, Y, noise, transformed=True)
        y, weights = self._weighed(block)
        posterior = self._conditional().conditioned(self._preprocessed(X).double(), y, weights)
        new = self._with(posterior, _blocks=(*self._blocks, block.detached()))
        if known_noise and noise is not None:
            with as_given():
                new.likelihood = self.likelihood.get_fantasy_likelihood(noise=noise.double())
        return new

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> BanditModel:
        """`condition_on_observations` under GPyTorch's name, as BoTorch's `ModelListGP` calls it: with outcomes that are
        transformed already.

        Args:
            inputs: `b x p x d`, not transformed.
            targets: `... x b x p`, transformed.
            kwargs: `noise`, variances `... x p` in the space of the transformed outcomes.
        """
        check_tensor("inputs", inputs)
        check_tensor("targets", targets)
        Y = targets.unsqueeze(-1)
        if hasattr(self, "outcome_transform"):
            Y, _ = self.outcome_transform.untransform(Y, X=inputs)
        noise = kwargs.get("noise")
        return self.condition_on_observations(inputs, Y, None if noise is None else noise.unsqueeze(-1))

    def hallucinate(self, X: Tensor, counts: Tensor | None = None, *, frozen_dictionary: bool = False) -> BanditModel:
        """A model with the same mean, and the variance after observations at points `b x p x d` (not transformed), `counts`
        (`b x p`) of each, one by default. Cost as for `condition_on_observations`.

        The Gaussian process is conditioned on them exactly, with a dictionary or without. With `frozen_dictionary` the part of
        the kernel that the dictionary does not explain keeps its variance, as within a batch of BBKB.
        """
        check_flag("frozen_dictionary", frozen_dictionary)
        check_values(X=X, counts=counts)
        X = self._promoted(X).clone()
        counts = torch.ones(X.shape[:-1], dtype=torch.float64, device=X.device) if counts is None else counts.double().clone()
        posterior = self._conditional().hallucinated(self._preprocessed(X).double(), counts, frozen=frozen_dictionary)
        return self._with(posterior, _pending=(*self._pending, (X.detach(), counts, frozen_dictionary)))

    def tabulate_(self, arms: Tensor, memory_budget: int = 2 << 30) -> BanditModel:
        """Tabulate the marginals of these arms, `A x d` (not transformed); returns self.

        Calls with these points, as a whole or as slices of the tensor (also of `arms.unsqueeze(-2)`, as made by
        `optimize_acqf_discrete`), then read the table. Models conditioned from this one update it by the columns that they
        appended, in one pass over memory.

        Args:
            arms: Copied. A tensor that was written to afterwards is not recognised.
            memory_budget: Bytes for kernel columns, with which those models need no sweep.

        Cost: O(A m²) time and O(A m) memory, when first read.
        """
        check_tensor("arms", arms)
        return self._tabulate(own_copy(arms.contiguous()), int(arms.storage_offset()), memory_budget)

    def _tabulate(self, arms: Tensor, offset: int = 0, memory_budget: int = 2 << 30) -> BanditModel:
        """Tabulate arms that are not written to, a copy of a tensor at this offset of its storage."""
        check_whole("memory_budget", memory_budget, 0)
        if arms.dim() != 2 or self.batch_shape:
            raise UnsupportedError(
                f"arms are tabulated as A x d, for a model without batch dimensions; got {tuple(arms.shape)} for a model of "
                f"batch shape {tuple(self.batch_shape)}."
            )
        if makes_several(self.transform_inputs, arms):
            raise UnsupportedError(
                "the input transform makes several points of an arm, which can't be tabulated: use posterior() instead."
            )
        self._table = Tabulated(arms.contiguous(), offset, memory_budget)
        return self

    @property
    def arms(self) -> Tensor | None:
        """The tabulated arms, `A x d`, or those of a bandit with batch rows, `batch_shape x A x d`; None without arms."""
        return self._arms if self._table is None else self._table.arms

    def subset_output(self, idcs: Sequence[Any]) -> BanditModel:
        """A copy of this model for `[0]`, its only outcome."""
        if not isinstance(idcs, Sequence) or list(idcs) not in ([0], [-1]):
            raise UnsupportedError(f"BanditModel has one outcome: idcs must be [0], got {idcs}.")
        return self._with(self._conditional())

    def custom_fit(self, mll: Any, **kwargs: Any) -> Any:
        """Fit the kernel, and the noise where it was not given, by this package's evidence; called by `fit_gpytorch_mll`.

        Every kernel parameter that requires a gradient is fitted, each batch row's on its own; nothing happens where none does.
        The noise that several batch rows share is kept, with a `DiagnosticWarning`.
        Parameters of an input transform stay as they are, with a `DiagnosticWarning` if they require a gradient. Repeated
        observations without any noise keep the noise as it is, with a `DiagnosticWarning`. Cost: `fit_kernel_`.

        Args:
            mll: A marginal likelihood of this model, which is returned in evaluation mode.
            kwargs: Options of other fits; none is used.
        """
        if hasattr(self, "input_transform"):
            learned = [name for name, parameter in self.input_transform.named_parameters() if parameter.requires_grad]
            issue(advice_on_transform(self.input_transform, learned))
        # A fit chooses points of its own, and the dictionary is drawn after it.
        process = self._process(drawn=False)
        if not process.fitted or self.finite is not None:
            return mll.eval()
        noise, share = self.fits_noise and process.batch_shape.numel() == 1, 1 / self._share
        if self.fits_noise and not noise:
            message = (
                f"the batch rows of a BanditModel share one noise, which is not fitted: it stays at {self.noise_std:g} "
                "(standard deviation, transformed outcomes), and lengthscales may become too short to explain more. Make one "
                "model per row, or give noise_std or train_Yvar."
            )
            issue([message])
        try:
            prior = getattr(self.likelihood.noise_covar, "noise_prior", None)
            fit_kernel_(process, noise=noise, noise_share=share, noise_prior=prior, advice=advice_on_fit)
        except NumericalError as error:
            if not noise:
                raise
            message = f"{error} The noise is kept at a standard deviation of {self.noise_std:g}."
            issue([message])
            fit_kernel_(process, noise=False, noise_share=share, advice=advice_on_fit)
        kernel = copy.deepcopy(process.kernel)
        for name, parameter in kernel.named_parameters():
            parameter.requires_grad_(name in process.fitted)
        self.covar_module = kernel
        self._posterior = self._drawn = None  # a dictionary is drawn anew
        self._check_scale_anew()
        if noise:
            with torch.no_grad():
                self.likelihood.noise = torch.tensor(process.regularization * share, dtype=torch.float64)
        return mll.eval()

    # ------------------------------------------------------------------ inside

    def _normal(self, x: Tensor, known: tuple[Tensor, Tensor] | None) -> MultivariateNormal:
        """The posterior at transformed points; `known` is their mean and variance, where tabulated."""
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

    @torch.no_grad()
    def _check_scale(self) -> None:
        """Compare the scales of the data with those of the kernel, at the first prediction after a fit and whenever the number
        of observations has become four times as large."""
        watch, n = self.scale_watch, sum(block.Y.shape[-1] for block in self._blocks)
        if watch is None or n < watch.next_size:
            return
        self._conditional()  # draws the dictionary
        process, (*_, weights) = self.process(), self._observed()
        noise_variance = self._noise_variance
        # A kernel of variance 1 leaves a fit nothing but the noise to explain larger outcomes.
        if self.fits_noise and bool((kernel_diagonal(self.covar_module, process.statistics.points) == 1).all()):
            noise_variance = min(noise_variance, _NOISE_STD**2)
        warn_of_scale(watch, process, noise_variance, weights.mean(dim=-1))
        watch.next_size = max(watch.next_size, 4 * n)

    def _check_scale_anew(self) -> None:
        """Check the scales again with other hyper-parameters, without repeating what was said."""
        self.scale_watch = None if self.scale_watch is None else ScaleWatch(said=self.scale_watch.said)

    def _looked_up(self, X: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean and variance of tabulated arms, shaped like the points; None for other points."""
        table = self._table
        if table is None or self.batch_shape or (rows := table.rows(X)) is None:
            return None
        posterior = self._conditional()
        if table.posterior is not posterior:
            with torch.no_grad():
                self._table = table = table.brought_to(posterior, self.transform_inputs)
        mean, variance = table.marginals()
        return mean[rows].reshape(X.shape[:-1]), variance[rows].reshape(X.shape[:-1])

    def _average_noise(self) -> Tensor:
        """Average noise variance of each batch row, `... x 1`."""
        return self.likelihood.noise.detach().mean(dim=-1, keepdim=True)

    def _promoted(self, X: Tensor, name: str = "X") -> Tensor:
        """Convert points to the wider of their dtype and the model's."""
        check_points(name, X, self._blocks[0].X.shape[-1])
        return X.to(torch.promote_types(X.dtype, self._dtype))

    def _conditional(self) -> Conditional:
        """The posterior with the current hyper-parameters."""
        posterior = self._posterior
        if posterior is not None and not self._is_current(posterior):
            posterior = self._drawn = None
        if posterior is None or posterior.rounded:
            self._check_parameters()
            process = self.process()
            if process.sparse and self._drawn is None:
                self._drawn = _dictionary_of(process)
            posterior = Conditional.of(process)
            for X, counts, frozen in self._pending:
                posterior = posterior.hallucinated(self._preprocessed(X).double(), counts, frozen=frozen)
            self._posterior, self._learned = posterior.checked(), [own_copy(tensor) for tensor in self._of_transforms()]
        return posterior

    def _of_transforms(self) -> list[Tensor]:
        """Parameters and buffers of the transforms."""
        parts = [self._modules[name] for name in ("input_transform", "outcome_transform") if name in self._modules]
        return [tensor for part in parts if part is not None for tensor in (*part.parameters(), *part.buffers())]

    def _check_parameters(self) -> None:
        """Refuse hyper-parameters that are not finite, as after a fit elsewhere that failed."""
        odd = [name for name, parameter in self.named_parameters() if not bool(torch.isfinite(parameter).all())]
        message = f"{', '.join(odd)} of the model is NaN or infinite: load the state of another fit, or make the model again."
        require(not odd, message, NumericalError)

    def _is_current(self, posterior: Conditional) -> bool:
        kernel = posterior.seen.kernel
        pairs = [] if kernel is None else zip(kernel.parameters(), self.covar_module.parameters(), strict=True)
        same = not posterior.unteachable and posterior.regularization == self.regularization
        same = same and posterior.prior_mean == (None if self._estimates else self.prior_mean)
        same = same and all(torch.equal(a, b) for a, b in pairs)
        now, then = self._of_transforms(), self._learned
        return same and len(now) == len(then) and all(torch.equal(a, b) for a, b in zip(now, then, strict=True))

    def _observed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Points, outcomes and weights of all observations, transformed: `batch_shape x n x d`, `batch_shape x n` twice."""
        parts = []
        with torch.no_grad():
            for block in self._blocks:
                x = self._preprocessed(block.X)
                y, weights = self._weighed(block)
                parts.append(Block(x, y, weights=weights))
        X, Y = joined(parts)
        weighted = [part.weights.expand(*Y.shape[:-1], -1) for part in parts if part.weights is not None]
        return X, Y, torch.cat(weighted, dim=-1)

    def _preprocessed(self, X: Tensor) -> Tensor:
        """Transform training points. Some transforms, such as perturbations, apply to test points only."""
        x: Tensor = self.input_transform.preprocess_transform(X) if hasattr(self, "input_transform") else X
        return x if X.requires_grad else x.detach()

    def _weighed(self, block: Block) -> tuple[Tensor, Tensor]:
        """Transformed outcomes of a block and their weights, float64."""
        y, variance = block.Y.unsqueeze(-1), block.variance
        if hasattr(self, "outcome_transform"):
            transformed = variance.unsqueeze(-1) if variance is not None and not block.transformed else None
            y, transformed = self.outcome_transform(y, transformed, X=self._preprocessed(block.X))
            variance = variance if transformed is None else transformed.squeeze(-1)
        weights = torch.ones(block.X.shape[:-1], dtype=torch.float64, device=y.device)
        if variance is not None:
            weights = self._noise_variance / variance.double().expand(weights.shape)
        return y.squeeze(-1).double(), weights if block.weights is None else weights * block.weights

    # ------------------------------------------------------------------ copied, saved, moved

    def __setattr__(self, name: str, value: Any) -> None:
        """As for any module. Another kernel or transform makes another posterior."""
        super().__setattr__(name, value)
        if name in _REPLACEABLE:
            self.__dict__["_posterior"] = self.__dict__["_drawn"] = None

    def _with(self, posterior: Conditional, **changes: Any) -> BanditModel:
        """A model with another posterior, copied hyper-parameters, and shared data and factors."""
        new = self.__class__.__new__(self.__class__)
        new.__dict__ = {**self.__dict__, **changes}
        new.__dict__["_modules"] = {name: copy.deepcopy(module) for name, module in self._modules.items()}
        most = max(_APPENDED, posterior.root.shape[-2] // 8)
        settled = posterior.batch_shape == posterior.root.shape[:-2] and not posterior.coefficients.requires_grad
        new.__dict__["_posterior"] = None if settled and posterior.rank > most else posterior
        new._blocks = merged(new._blocks) if new._posterior is None else new._blocks
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> BanditModel:
        # Shared tensors are never written to.
        new = self._with(self._conditional().detached())
        memo[id(self)] = new
        return new

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_posterior": None, "_table": None, "_arms": self.arms}

    def _apply(self, fn: Any, recurse: bool = True) -> BanditModel:
        # Only the device of `.to()` counts: BoTorch casts models to the dtype of its points, and this one stays float64.
        old = self._blocks[0].X.device
        device = fn(torch.zeros((), dtype=torch.float64, device=old)).device
        nn.Module._apply(self, lambda tensor: tensor.to(device), recurse)
        self._blocks = tuple(block.to(device) for block in self._blocks)
        self._pending = tuple((X.to(device), counts.to(device), frozen) for X, counts, frozen in self._pending)
        if device != old:
            self._posterior = None
            for name in ("_dictionary", "_drawn", "_arms", "_path", "_table"):
                held = getattr(self, name)
                setattr(self, name, held if held is None or isinstance(held, str) else held.to(device))
            # Copies of this model share the features, which must stay on their device.
            self._finite = (copy.deepcopy(self._finite[0]),)
            if self._finite[0] is not None:
                self._finite[0].to(device)
        return self

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Any], strict: bool = True, keep_transforms: bool = True, assign: bool = False
    ) -> Any:
        """Load hyper-parameters and transforms of a model with any number of observations; those of this model are transformed
        anew.

        Args:
            state_dict: State of a `BanditModel` or of a `SingleTaskGP`, with the same kind of kernel and transforms.
            strict: As for any module.
            keep_transforms: Has no effect: data are kept untransformed, so that they always follow the transforms.
            assign: As for any module.
        """
        return nn.Module.load_state_dict(self, state_dict, strict=strict, assign=assign)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # A fit gives each batch row a separate kernel.
        self.covar_module = shaped_like(self.covar_module, state_dict, prefix + "covar_module.")
        self._posterior = self._drawn = None
        self._check_scale_anew()
        raw, bound = (f"{prefix}likelihood.noise_covar.raw_noise{end}" for end in ("", "_constraint.lower_bound"))
        if raw in state_dict and bool((least := state_dict.get(bound, torch.zeros(()))) > 0):
            # BoTorch's models keep the noise itself, above a bound, and GPyTorch's with a bound its softplus above it.
            kept, itself = state_dict[raw].double(), bool((state_dict[raw] >= least).all())
            state_dict[raw] = inv_softplus(kept if itself else torch.nn.functional.softplus(kept) + least)
            state_dict[bound] = torch.zeros_like(least)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def train(self, mode: bool = True) -> BanditModel:
        """Set training mode. Transforms stay in evaluation mode, since they have learned from the first data."""
        super().train(mode)
        for name in self._modules.keys() & {"input_transform", "outcome_transform"}:
            self.get_submodule(name).eval()
        return self

    def _set_transformed_inputs(self) -> None:
        """Do nothing, since observations are kept untransformed."""

    def _revert_to_original_inputs(self) -> None:
        """Do nothing, since observations are kept untransformed."""


def _weighed_anew(model: BanditModel, _: Any) -> None:
    """Let known noise variances follow the outcome transform of a state that was loaded."""
    if isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        model.likelihood.noise_covar.noise = model._reference / model._observed()[2]


def _dictionary_of(process: GaussianProcess) -> Tensor:
    """The points of a dictionary, `batch_shape x m x d`. A padded place repeats the first one of its row."""
    rows, mask = process.dictionary_rows()
    return process.statistics.at(torch.where(mask, rows, rows[..., :1]))


@torch.no_grad()
def model_of_run(policy: Policy, state: State) -> BanditModel:
    """The posterior of a state as a BoTorch model, with the run's progress for path-dependent widths, and its arms.

    Each distinct point is one observation, the average of its rewards weighted by its number of pulls. No tensor that is
    written to is shared. See `Bandit.model`.

    Raises:
        UnsupportedError: For a state without one Gaussian process for all arms.

    Cost: as for a posterior from data, O(u³) for an exact one; a sweep over the arms when they are first scored.
    """
    process = state.process
    if not isinstance(process, GaussianProcess):
        raise UnsupportedError("each cell of pi_gp_ucb has its own posterior: use gp_ucb or batch_bkb to have a BoTorch model.")
    require(
        process.sketch is None,
        "the posterior of soful is a sketch, which is not a Gaussian process: use lin_ucb, whose posterior it approximates.",
        UnsupportedError,
    )
    require(
        not state.rows.streamed,
        "a BoTorch model needs its arms in memory, and the arms of this source are read piece by piece: use "
        "bandit.posterior, which is callable on any points.",
        UnsupportedError,
    )
    engine = policy.engine if isinstance(policy, Phased) else policy
    assert isinstance(engine, Composed | AdaptiveUCB)
    statistics, arms = process.statistics, state.rows.arms
    weights = torch.where(statistics.mask, statistics.weights, 0.0)
    # A padded place repeats the first point of its row, without weight.
    X = torch.where(statistics.mask.unsqueeze(-1), statistics.points, statistics.points[..., :1, :])
    Y = torch.where(weights > 0, statistics.sums / weights.clamp_min(1e-300), 0.0)
    lam = process.regularization
    model = BanditModel(
        X,
        Y.unsqueeze(-1),
        kernel=process.kernel,
        noise_std=math.sqrt(lam * noise_share(engine.noise_std, engine.regularization)),
        regularization=lam,
        prior_mean=process.prior_mean,
    )
    for name, parameter in model.covar_module.named_parameters():
        parameter.requires_grad_(name in process.fitted)
    model._blocks, model.scale_watch = (Block(X, Y, weights=weights),), None
    model._finite = (copy.deepcopy(process.finite),)
    if process.sparse:
        model._dictionary = model._drawn = _dictionary_of(process)
    if isinstance(state, TableState):
        shape = state.rows.batch_shape
        if shape:
            model._arms = arms.expand(*shape, *arms.shape[-2:])
        else:
            model._tabulate(arms)
    origin = model._conditional().log_det.expand(state.log_det.shape)
    model._given = (engine.noise_std, engine.regularization)
    model._path = Path(state.told, state.log_det, state.batched_log_det, state.batched_log_det_3, origin)
    return model
