"""What a BoTorch model of this package holds: hyper-parameters, observations as they came, and the posterior they make."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import gpytorch
import torch
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor, nn

from torchbandits.botorch.data import Block, check_data, draw_dictionary_, folded, generator_states, joined, merged, twins
from torchbandits.botorch.fit import weighed_anew
from torchbandits.botorch.parts import check_transform, kernel_of, likelihood_of, mean_of
from torchbandits.botorch.progress import Path, progress_of
from torchbandits.botorch.table import Tabulated
from torchbandits.checks import at_least, own_copy, positive
from torchbandits.embeddings import FiniteEmbedding
from torchbandits.kernels import shaped_like
from torchbandits.posteriors import GaussianProcess
from torchbandits.posteriors.conditional import Conditional
from torchbandits.types import Progress

Own = TypeVar("Own", bound="Observed")

_NOISE_STD = 0.1  # where none is given: the start of a fit, in units of the (standardised) outcomes
_APPENDED = 64  # columns, or an eighth of the base's, that are appended before a base of its own is worth a factorisation


class Observed(GPyTorchModel, gpytorch.models.GP, FantasizeMixin, ABC):  # type: ignore[misc]
    """Data and hyper-parameters of a model, saved, moved and copied; see `BanditModel` for the arguments.

    Hyper-parameters are modules and are saved; data are not, as BoTorch has it. The posterior is made of both when it is asked
    for, and again when a hyper-parameter has changed.
    """

    _num_outputs = 1
    _has_transformed_inputs = False  # `train_inputs` are the user's, always

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        kernel: gpytorch.kernels.Kernel | None = None,  # no keyword-only ones: Ax looks for names among the positional
        noise_std: float | None = None,
        regularization: float | None = None,
        dictionary: str | Tensor = "all",
        oversampling: float = 2.0,
        prior_mean: float | str = 0.0,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
        covar_module: gpytorch.kernels.Kernel | None = None,
    ) -> None:
        super().__init__()
        check_data(train_X, train_Y, train_Yvar, dictionary, prior_mean)
        at_least("oversampling (q̄)", oversampling)
        check_transform("input_transform", input_transform, InputTransform)
        check_transform("outcome_transform", outcome_transform, OutcomeTransform)
        self._validate_tensor_args(train_X, train_Y, train_Yvar)
        self._dtype = train_X.dtype
        if input_transform is not None:
            self.input_transform = input_transform.to(train_X)
        with torch.no_grad():
            x, Yvar = self.transform_inputs(train_X), train_Yvar  # in training mode: transforms learn their bounds
            if outcome_transform is not None:
                outcome_transform.train()
                _, Yvar = outcome_transform(train_Y, train_Yvar, X=x)
                self.outcome_transform = outcome_transform.eval()
        self.fits_noise = noise_std is None and Yvar is None
        if noise_std is None:
            noise_std = _NOISE_STD if Yvar is None or not Yvar.numel() else math.sqrt(float(Yvar.double().mean()))
        positive("noise_std", noise_std)
        lam = positive("regularization (λ)", noise_std**2 if regularization is None else regularization)
        self.covar_module = kernel_of(kernel, covar_module, train_X)
        self.mean_module = mean_of(prior_mean)
        self.likelihood = likelihood_of(noise_std, Yvar, self.fits_noise)
        self._reference, self._share, self._estimates = noise_std**2, lam / noise_std**2, prior_mean == "estimate"
        self._dictionary = own_copy(dictionary) if isinstance(dictionary, Tensor) else dictionary
        self._oversampling, self._generators = oversampling, generator_states(generator)
        self._drawn: Tensor | None = None  # points of the dictionary in use, transformed
        self._finite: tuple[FiniteEmbedding | None] = (None,)  # in a tuple: of a bandit, and no part of what is fitted or saved
        variance = None if train_Yvar is None else own_copy(train_Yvar.squeeze(-1))
        # Copies: who gave the data may write to them later.
        self._blocks: tuple[Block, ...] = (Block(own_copy(train_X), own_copy(train_Y.squeeze(-1)), variance),)
        self._pending: tuple[tuple[Tensor, Tensor, bool], ...] = ()  # points, counts, whether the dictionary is frozen
        self._path: Path | None = None
        self._posterior: Conditional | None = None
        self._table: Tabulated | None = None
        self._arms: Tensor | None = None  # of a bandit with batch rows, which are not tabulated
        self.register_load_state_dict_post_hook(weighed_anew)
        self.to(train_X.device).eval()

    @abstractmethod
    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> Any:
        """A model that has seen more."""

    # ------------------------------------------------------------------ what it holds

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of the posterior."""
        shapes = [block.batch_shape for block in self._blocks] + [X.shape[:-2] for X, *_ in self._pending]
        return torch.broadcast_shapes(self.covar_module.batch_shape, *shapes)

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
        """λ, in those units squared."""
        return self._share * self._noise_variance

    @property
    def _noise_variance(self) -> float:
        return self._reference if isinstance(self.likelihood, FixedNoiseGaussianLikelihood) else self.likelihood.noise.item()

    @property
    def prior_mean(self) -> float | str:
        """Of the transformed outcomes, a number or `"estimate"`."""
        return "estimate" if self._estimates else float(self.mean_module.constant.detach())

    @property
    def of_run(self) -> bool:
        """Whether a bandit handed it out, whose progress it carries on."""
        return self._path is not None

    @property
    def hallucinates(self) -> bool:
        """Whether variances are those of points whose rewards are not known."""
        return bool(self._pending)

    @property
    def finite(self) -> FiniteEmbedding | None:
        """Features that stand for the kernel, lent by a bandit; None for the kernel itself."""
        return self._finite[0]

    def progress(self, reads: frozenset[str] = frozenset(), num_arms: int = 1) -> Progress:
        """What a confidence width may depend on, `batch_shape` each; see `progress_of`."""
        return progress_of(self, reads, num_arms)

    def process(self) -> GaussianProcess:
        """The same data, kernel, λ and dictionary as a posterior of this package, transformed; without what is hallucinated.

        Cost: O(n (d + log n)), and that of drawing the dictionary, the first time.
        """
        X, Y, weights = self._observed()
        shape = torch.broadcast_shapes(self.covar_module.batch_shape, X.shape[:-2])
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
        if sparse:
            how = self._dictionary if self._drawn is None else self._drawn
            if isinstance(how, Tensor) and self._drawn is None:
                how = self._preprocessed(how.to(X))
            draw_dictionary_(process, how, self._oversampling, twins(self._generators, shape))
        return process

    def _conditional(self) -> Conditional:
        """The posterior of the hyper-parameters of this moment."""
        known = self._posterior
        if known is not None and not self._is_current(known):
            known = self._drawn = None
        if known is None or known.rounded:
            process = self.process()
            if process.sparse and self._drawn is None:
                rows, mask = process.dictionary_rows()
                self._drawn = process.statistics.at(torch.where(mask, rows, rows[..., :1]))
            known = Conditional.of(process)
            for X, counts, frozen in self._pending:
                known = known.hallucinated(self.transform_inputs(X).double(), counts, frozen=frozen)
            self._posterior = known.checked()
        return known

    def _is_current(self, posterior: Conditional) -> bool:
        kernel = posterior.seen.kernel
        own = [] if kernel is None else zip(kernel.parameters(), self.covar_module.parameters(), strict=True)
        same = not posterior.unteachable and posterior.regularization == self.regularization
        same = same and posterior.prior_mean == (None if self._estimates else self.prior_mean)
        return same and all(torch.equal(a, b) for a, b in own)

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
        """Points that a model is made of, transformed: perturbations, for one, are of points that it is asked about."""
        return self.input_transform.preprocess_transform(X) if hasattr(self, "input_transform") else X

    def _weighed(self, block: Block) -> tuple[Tensor, Tensor]:
        """Transformed outcomes of a block and their weights, float64."""
        y, variance = block.Y.unsqueeze(-1), block.variance
        if hasattr(self, "outcome_transform"):
            own = variance.unsqueeze(-1) if variance is not None and not block.transformed else None
            y, own = self.outcome_transform(y, own, X=self.transform_inputs(block.X))
            variance = variance if own is None else own.squeeze(-1)
        weights = torch.ones(block.X.shape[:-1], dtype=torch.float64, device=y.device)
        if variance is not None:
            weights = self._noise_variance / variance.double().expand(weights.shape)
        return y.squeeze(-1).double(), weights if block.weights is None else weights * block.weights

    # ------------------------------------------------------------------ copied, saved, moved

    def _with(self: Own, posterior: Conditional, **changes: Any) -> Own:
        """A twin with another posterior: hyper-parameters copied, data and factors shared."""
        new = self.__class__.__new__(self.__class__)
        new.__dict__ = {**self.__dict__, **changes}
        new.__dict__["_modules"] = {name: copy.deepcopy(module) for name, module in self._modules.items()}
        most = max(_APPENDED, posterior.root.shape[-2] // 8)
        settled = posterior.batch_shape == posterior.root.shape[:-2] and not posterior.coefficients.requires_grad
        new.__dict__["_posterior"] = None if settled and posterior.rank > most else posterior
        new._blocks = merged(new._blocks) if new._posterior is None else new._blocks
        return new

    def __deepcopy__(self: Own, memo: dict[int, Any]) -> Own:
        # Nothing that is shared is ever written to.
        new = self._with(self._conditional().detached())
        memo[id(self)] = new
        return new

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_posterior": None, "_table": None, "_arms": self.arms}

    def _apply(self: Own, fn: Any, recurse: bool = True) -> Own:
        # float64 whatever dtype is asked for: only the device of `.to()` counts. BoTorch casts models to its points' dtype.
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
            # Copies of this model share the features, and stay where they are.
            self._finite = (copy.deepcopy(self._finite[0]),)
            if self._finite[0] is not None:
                self._finite[0].to(device)
        return self

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Any], strict: bool = True, keep_transforms: bool = True, assign: bool = False
    ) -> Any:
        """Load hyper-parameters and transforms, of a model of any number of observations; those here are transformed anew.

        Args:
            state_dict: Of a `BanditModel` with the same kind of kernel and transforms.
            strict: As for any module.
            keep_transforms: True: data are held as they came, so that they always follow the transforms.
            assign: As for any module.
        """
        return nn.Module.load_state_dict(self, state_dict, strict=strict, assign=assign)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # A fit gives each batch row a kernel of its own.
        self.covar_module = shaped_like(self.covar_module, state_dict, prefix + "covar_module.")
        self._posterior = self._drawn = None
        super()._load_from_state_dict(state_dict, prefix, *args)

    def train(self: Own, mode: bool = True) -> Own:
        """Training mode, of everything but the transforms: they have learned from the data that the model was made of."""
        super().train(mode)
        for name in self._modules.keys() & {"input_transform", "outcome_transform"}:
            self.get_submodule(name).eval()
        return self

    def _set_transformed_inputs(self) -> None:
        """Nothing: what was observed is kept as it came."""

    def _revert_to_original_inputs(self) -> None:
        """Nothing: what was observed is kept as it came."""
