"""The acquisition function of every policy that scores points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from torchbandits.botorch.agreement import check_model, check_policy, check_transforms, uses_width
from torchbandits.botorch.any_model import AnyModel, known_width
from torchbandits.botorch.data import check_tensor
from torchbandits.botorch.model import BanditModel
from torchbandits.checks import as_tensor, check_flag, check_whole, explains_keywords
from torchbandits.errors import ArgumentError, NonFiniteError, ShapeError, UnsupportedError, require
from torchbandits.policies import Composed, Policy
from torchbandits.posteriors import SamplePaths
from torchbandits.scores import LogPI, PosteriorDraw, Score, scores_of_points
from torchbandits.shapes import broadcast_shapes
from torchbandits.types import Generators, Marginals


class PolicyAcquisition(AcquisitionFunction):
    r"""The score of a policy under a model, to be maximised over one point at a time.

    .. math:: u(x) = \mu(x) + w\,\sigma(x \mid X_{\text{pending}})

    for upper confidence bounds; log EI, log PI or a draw of the posterior for policies that have those. Score and width come
    from the policy, kernel and λ from the model. The width is that of the model's number of observations, and is the same for
    all picks. Points in `X_pending` are hallucinated: they shrink σ as if they had been observed, and leave μ unchanged, as in
    `Bandit.ask(more=)`, so that BoTorch's sequential optimisers build the batches of GP-BUCB, in a box or over a finite set;
    with `frozen_dictionary` those of BBKB.

    For a policy that draws (`thompson_sampling`) an instance is one differentiable sample path. Each `set_X_pending` that
    extends the pending points selects the next path, so that q sequential picks are the maximisers of q paths; going back to
    earlier pending points selects their path again.

    Policy and model must agree on the form of the kernel (classes, smoothness, active features), on a `prior_mean` of the
    policy other than 0, and on λ and `noise_std` (0 agrees with any); where the model fits its noise (`noise_std=None`), on the
    ratio of λ to the noise variance. The model of a bandit also agrees with the λ and `noise_std` that its bandit began with.
    Hyper-parameters of the kernel may differ, since those of the model may be fitted: the model's are used. A `margin` of EI
    and PI is in the units of the outcomes; that of PI is by default the noise, `noise_std`, which a model with `Standardize`
    has in units of the transformed outcomes.

    Another BoTorch model of one outcome can be used where its posterior suffices: for UCB with a width that depends on nothing
    else (`Constant`; `Srinivas` given `num_arms`), and for EI and PI if the model keeps its observations. Kernel, noise and
    transforms are then those of the model, and the policy's are ignored, except that the margin of PI, by default the policy's
    `noise_std`, is in the units of the outcomes. Points in `X_pending` condition such a model on its
    own mean, if it can be conditioned.

    Args:
        model: A `BanditModel`, or another BoTorch model of one outcome, whose rewards are to be maximised.
        policy: A policy made by `gp_ucb`, `igp_ucb`, `gp_bucb`, `bkb`, `batch_bkb`, `compressed_gp`, `mini_gp_ucb`,
            `thompson_sampling` or `lin_ucb`, or one with finite features for the model of its own bandit; not `per_cost`.
        X_pending: `p x d` or `batch_shape x p x d`, the pending points.
        posterior_transform: A `ScalarizedPosteriorTransform` (of one weight); −1 minimises.
        num_arms: A, for widths that count the arms; those of a tabulated model by default. EI and PI need none.
        generator: One CPU `torch.Generator`, or a list of one per batch row of the model, for policies that draw; held, and
            advanced by draws. By default seeded with the number of observations: steps of a loop differ, and are the same when
            run again.
        frozen_dictionary: Whether pending points leave the variance that the model's dictionary does not explain unchanged, as
            within one batch of `batch_bkb` (until `batch_ended`). By default they shrink it too, so that any number of picks
            spreads out.

    Buffers: `width` and `incumbent`, both of the model's batch shape, float64, and NaN where the score does not use them. The
    incumbent of EI and PI is the highest transformed posterior mean over the model's tabulated arms, or else over its
    observations. Both are computed once: make a new acquisition function when the model has changed. A cast to another dtype
    casts neither them nor the model.

    Raises:
        UnsupportedError: BoTorch's and this package's: for policies that score nothing or by costs, and transforms that are not
            affine.
        ArgumentError: If policy and model disagree, or the number of arms is needed and not known.

    Cost: as the model's marginals.  Source: Desautels et al. 2014, Calandriello et al. 2020, for the hallucinated batch.
    """

    model: Model
    width: Tensor
    incumbent: Tensor

    @explains_keywords
    def __init__(
        self,
        model: Model,
        policy: Policy,
        X_pending: Tensor | None = None,
        *,
        posterior_transform: PosteriorTransform | None = None,
        num_arms: int | None = None,
        generator: torch.Generator | Generators | None = None,
        frozen_dictionary: bool = False,
    ) -> None:
        check_flag("frozen_dictionary", frozen_dictionary)
        check_model(model)
        message = f"frozen_dictionary=True is for a BanditModel, and {type(model).__name__} has no dictionary: leave it out."
        require(not frozen_dictionary or isinstance(model, BanditModel), message, UnsupportedError)
        composed = check_policy(policy, model)
        check_transforms(model, posterior_transform)
        super().__init__(model)
        self.policy, self.posterior_transform = composed, posterior_transform
        view = self._view
        with torch.no_grad():
            width = self._width(composed, num_arms)
            self.register_buffer("width", width.expand(view.batch_shape).clone())
            self.register_buffer("incumbent", self._incumbent())
        self._generators = _generators(generator, view) if isinstance(view, BanditModel) else ()
        self._frozen = frozen_dictionary
        self._paths: list[SamplePaths] = []
        # Pending points with the model that hallucinates them. The last entry is current; earlier ones are kept for going back.
        self._stack: list[tuple[Tensor | None, BanditModel | AnyModel]] = [(None, view)]
        self.set_X_pending(X_pending)

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Scores of points, `b x 1 x d` to `b`, float64; differentiable.

        Of a model with a batch shape, `... x batch_shape x 1 x d` to `... x batch_shape`. Cost O(b m (m + d)).
        """
        check_tensor("X", X)
        if self.X_pending is not self._known_pending:  # a wrapper, such as BoTorch's for fixed features, writes the attribute
            self.set_X_pending(self.X_pending)
        view = self._view
        # Tabulated arms are recognised by their values, which a cast would change.
        if isinstance(view, BanditModel) and view.arms is None:
            X = X.double()
        points, back = _rows_first(X.squeeze(-2), view.batch_shape)
        if isinstance(self.policy.score, Score):
            marginals = self._transformed(self._stack[-1][1].marginals(points))
            values = scores_of_points(self.policy.score, points, marginals, self.width, self._level())
        else:
            values = self._draw(points.double())
        return back(values)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Replace the pending points, `p x d` or `batch_shape x p x d`; None for none.

        Points that extend the previous ones cost O(m²) each; going back to earlier ones is free and exact.
        """
        stack = self._stack[:1]
        X_pending = None if X_pending is None else as_tensor("X_pending", X_pending)
        if X_pending is not None and X_pending.shape[-2:].numel():
            view = self._view
            points = X_pending.detach().double()
            points = points if isinstance(view, BanditModel) else cast(AnyModel, view).with_task(points)
            known_points, shape = _observations(view), tuple(points.shape)
            d = shape[-1] if known_points is None else known_points.shape[-1]
            require(len(shape) >= 2 and shape[-1] == d, f"X_pending must be ... x p x {d}, got {shape}.", ShapeError)
            rows = view.batch_shape
            fits = shape[:-2] in (rows, rows[:0]) or math.prod(shape[:-2]) == 1
            require(fits, f"X_pending must be p x {d}, or {tuple(rows)} x p x {d} as the model; got {shape}.", ShapeError)
            require(bool(torch.isfinite(points).all()), "X_pending has a NaN or infinite feature.", NonFiniteError)
            stack = [entry for entry in self._stack if _begins_with(points, entry[0])]
            known, model = stack[-1]
            new = points if known is None else points[..., known.shape[-2] :, :]
            if new.shape[-2]:
                with torch.no_grad():
                    stack.append((points.clone(), self._hallucinated(model, new)))
        super().set_X_pending(X_pending)
        self._stack, self._known_pending = stack, self.X_pending

    @property
    @torch.no_grad()
    def batch_ended(self) -> Tensor:
        """Whether the policy's batch rule ends a batch of the pending points, `batch_shape` booleans. Cost O(p m²).

        A loop that picks until then builds the batch of `Bandit.ask` (of one batch row; for `batch_bkb` that takes
        `frozen_dictionary=True`); `mini_gp_ucb`, which repeats one arm instead, never ends one here.

        Raises:
            UnsupportedError: For rules that look at all arms: local, exact ratio, and at most so many pulls of one arm.
        """
        rule, model = self.policy.batch_rule, self._view
        rule.check_box()
        spent = torch.zeros(model.batch_shape, dtype=torch.float64, device=self.width.device)
        known = self._stack[-1][0]
        if known is None or rule.budget is None:
            return spent > 0
        if math.isfinite(rule.budget):
            if not isinstance(model, BanditModel):
                raise UnsupportedError("this batch rule needs leverages, which only a BanditModel has: make one of the data.")
            now = model
            for x in known.split(1, dim=-2):
                at_start, at_x = (m.marginals(x).variance.squeeze(-1).double() / m.regularization for m in (model, now))
                spent = spent + rule.spends(at_start, at_x)
                now = now.hallucinate(x, frozen_dictionary=self._frozen) if self.lazy else now
        most = rule.max_batch_size
        return (spent > rule.budget) | (most is not None and known.shape[-2] >= most)

    @property
    def lazy(self) -> bool:
        """Whether values only fall as points become pending, so that old values bound new ones: not for posterior draws."""
        return isinstance(self.policy.score, Score)

    # ------------------------------------------------------------------ inside

    @property
    def _view(self) -> BanditModel | AnyModel:
        """The model, or a wrapper with the same interface."""
        return self.model if isinstance(self.model, BanditModel) else AnyModel(self.model)

    def _width(self, policy: Composed, num_arms: int | None) -> Tensor:
        """The policy's width after the model's observations; NaN for a score that does not use it."""
        view, confidence = self._view, policy.confidence
        if not uses_width(policy):
            return self._nothing()
        arms = _number_of_arms(num_arms, view, confidence.reads)
        if isinstance(view, BanditModel):
            return confidence(view.progress(confidence.reads, num_arms=arms))
        progress = cast(AnyModel, view).progress(arms)
        return known_width(confidence(progress), type(confidence).__name__, progress)

    def _nothing(self) -> Tensor:
        """NaN, `batch_shape`, for a quantity that the score does not use."""
        points = _observations(self._view)
        device = None if points is None else points.device
        return torch.full(self._view.batch_shape, torch.nan, dtype=torch.float64, device=device)

    def _hallucinated(self, model: BanditModel | AnyModel, points: Tensor) -> BanditModel | AnyModel:
        """The model with more pending points; draws of the posterior ignore them."""
        if not self.lazy:
            return model
        if isinstance(model, AnyModel):
            return model.hallucinate(points)
        return model.hallucinate(points, frozen_dictionary=self._frozen)

    def _draw(self, points: Tensor) -> Tensor:
        """Values of the sample path of the pending points, `batch_shape x n`; the path is drawn at first use."""
        model = self.model
        assert isinstance(model, BanditModel)
        while len(self._paths) < len(self._stack):
            score = self.policy.score
            assert isinstance(score, PosteriorDraw)
            with torch.no_grad():
                drawn = SamplePaths.draw(
                    model.process(), 1, self._generators, num_features=score.num_features, width=self.width
                )
            self._paths.append(drawn)
        values = self._paths[len(self._stack) - 1](model.transform_inputs(points)).squeeze(-2)
        return self._transformed(Marginals(values, torch.zeros_like(values))).mean

    def _transformed(self, marginals: Marginals) -> Marginals:
        """The marginals in the user's units, and under the posterior transform."""
        mean, variance = marginals.mean, marginals.variance
        outcome, scalarize = getattr(self.model, "outcome_transform", None), self.posterior_transform
        # Marginals of other models come from their posteriors, which are untransformed already.
        if outcome is not None and isinstance(self.model, BanditModel):
            mean, variance = (v.squeeze(-1) for v in outcome.untransform(mean.unsqueeze(-1), variance.unsqueeze(-1)))
        if isinstance(scalarize, ScalarizedPosteriorTransform):
            weights: Any = scalarize.weights
            mean, variance = scalarize.offset + weights.to(mean) * mean, weights.to(mean).square() * variance
        return Marginals(mean, variance)

    def _incumbent(self) -> Tensor:
        """The highest transformed posterior mean over the tabulated arms or the observations, `batch_shape`; NaN for a score
        that does not use it."""
        view = self._view
        shape, points = view.batch_shape, _observations(view)
        if uses_width(self.policy):
            return self._nothing()
        if view.arms is not None:
            points = view.arms
        elif points is None:
            raise ArgumentError(
                f"{type(self.policy.score).__name__} improves on the highest mean of the observations, which "
                f"{type(self.model).__name__} does not keep: use acquisition='ucb', or BoTorch's own "
                "LogExpectedImprovement(model, best_f=...)."
            )
        elif not points.shape[-2]:  # any point, since the prior mean is constant
            points = points.new_zeros(*shape, 1, points.shape[-1])
        mean = self._transformed(view.marginals(points.expand(*shape, *points.shape[-2:]))).mean
        return mean.double().amax(dim=-1)

    def _level(self) -> Tensor:
        """The incumbent. For PI with its default margin, the model's noise, it is raised by what that margin lacks in the units
        of the outcomes; the score itself adds the margin in units of the transformed outcomes."""
        score, outcome = self.policy.score, getattr(self.model, "outcome_transform", None)
        by_default = isinstance(score, LogPI) and score.margin == self.policy.noise_std
        if not by_default or outcome is None or not isinstance(self.model, BanditModel):
            return self.incumbent
        zero = torch.zeros_like(self.incumbent)[..., None, None]
        unit = outcome.untransform(zero, zero + 1)[1].sqrt()[..., 0, 0]
        return self.incumbent + self.policy.noise_std * (unit - 1)

    def _apply(self, fn: Any, recurse: bool = True) -> PolicyAcquisition:
        # BoTorch calls acqf.to(X): a float32 X must not round the factors of the model. Only the device counts.
        device = fn(torch.zeros((), dtype=torch.float64, device=self.width.device)).device
        if device != self.width.device:
            super()._apply(lambda tensor: tensor.to(device), recurse)
            self._stack, self._paths = [(None, self._view)], []
            self.set_X_pending(None if self.X_pending is None else self.X_pending.to(device))
        return self


def _rows_first(X: Tensor, batch_shape: torch.Size) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Points `... x d` as `batch_shape x n x d`, and the way back for values `batch_shape x n`.

    The last t-batch dimensions are those of the model, as everywhere in BoTorch; all others become n.
    """
    k, d = len(batch_shape), X.shape[-1]
    whole = broadcast_shapes(X.shape[:-1], batch_shape)
    leading = whole[: len(whole) - k]
    points = X.expand(*whole, d).reshape(leading.numel(), *batch_shape, d).movedim(0, -2)
    return points, lambda values: values.movedim(-1, 0).reshape(whole)


def _begins_with(points: Tensor, known: Tensor | None) -> bool:
    """Whether the first points are the known pending ones."""
    return known is None or torch.equal(points[..., : known.shape[-2], :], known)


def _observations(model: BanditModel | AnyModel) -> Tensor | None:
    """Observed points; None for a model that does not keep them."""
    if isinstance(model, AnyModel):
        return cast(AnyModel, model).observations
    points: Any = model.train_inputs[0]
    assert isinstance(points, Tensor)
    return points


def _number_of_arms(num_arms: int | None, model: BanditModel | AnyModel, reads: frozenset[str]) -> int:
    """Number of arms, given or tabulated; 1 if unknown and not needed."""
    if num_arms is not None:
        check_whole("num_arms", num_arms)
        return num_arms
    if model.arms is not None:
        return model.arms.shape[-2]
    if "num_arms" in reads:
        raise ArgumentError(
            "the policy's width counts the arms, and the model does not know them: pass num_arms=, tabulate the model on them, "
            "or give the policy another width, such as widths.Constant(2.0)."
        )
    return 1


def _generators(generator: torch.Generator | Generators | None, model: BanditModel) -> Generators:
    """One generator per batch row of the model; by default row r's is seeded with the number of observations plus r."""
    rows = model.batch_shape.numel()
    if generator is None:
        seed = model.train_targets.shape[-1] * rows
        return tuple(torch.Generator().manual_seed(seed + row) for row in range(rows))
    given = (generator,) if isinstance(generator, torch.Generator) else generator
    good = isinstance(given, Sequence) and len(given) == rows and all(isinstance(g, torch.Generator) for g in given)
    require(good, f"generator must be one generator per batch row, {rows} in all, got {generator!r:.60}.")
    return given
