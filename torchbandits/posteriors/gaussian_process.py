"""The Gaussian-process posterior: an embedding with a regression, callable on any points."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gpytorch
import torch
from torch import Tensor, nn

from torchbandits.buffered import Buffered
from torchbandits.embeddings import FiniteEmbedding
from torchbandits.kernels import kernel_matrix, shaped_like
from torchbandits.linalg import uneven
from torchbandits.posteriors.effects import Effects
from torchbandits.posteriors.exact import ExactFactors
from torchbandits.posteriors.factors import Behind, Factors, FactorsInOne, SmallFactors, SweepFactors
from torchbandits.posteriors.growth import Growth
from torchbandits.posteriors.pending import Pending
from torchbandits.posteriors.sketch import Sketch
from torchbandits.posteriors.statistics import Statistics
from torchbandits.posteriors.units import Units
from torchbandits.random_effects import RandomEffectKernel
from torchbandits.threads import MANY_PRODUCTS, threads
from torchbandits.transfers import to_device
from torchbandits.types import ArrayLike, Marginals, PerPoint, PickMask, Picks, Points, Rect


class GaussianProcess(Buffered):
    r"""Posterior of f ~ GP(μ₀, k) given weighted sums of rewards with noise variance λ, in reward units.

    .. math:: \mu(x) = \mu_0 + z(x)^T w, \quad
              \sigma^2(x) = k(x,x) - |z(x)|^2 + \lambda z(x)^T V^{-1} z(x), \quad V = Z^T N Z + \lambda I

    With every distinct point in the dictionary this is the exact posterior; with some of them, the deterministic
    training conditional (DTC) of BKB and BBKB. Everything is computed in float64 and returned in the points' dtype. Where the
    kernel has random effects, a dictionary represents the part without them; see `Effects`.

    Args:
        kernel: Any GPyTorch kernel; deep-copied. The copy follows `.to()`, is part of the saved state, and its parameters that
            require a gradient are fitted.
        regularization: λ > 0, squared reward units.
        dim: Number of features of a point.
        batch_shape: Leading dimensions; broadcast with the kernel's.
        sparse: Whether to keep a dictionary of some of the points (`set_dictionary_`) instead of all.
        prior_mean: μ₀, or `"estimate"` for the average of all observed rewards.
        finite: Features that replace the kernel, instead of a dictionary.
        sketch: Replaces the second moments of those features in V; stored by reference. The mean uses the full moment Zᵀs.
        units: Units of the rewards if they differ from those of the statistics. Predictions at points are in these units.
        device: Device of the buffers.

    Source: Rasmussen & Williams 2006, ch. 2; Calandriello et al. 2019, eq. 4–5.
    """

    dictionary: Tensor
    pending_points: Tensor
    pending: Tensor
    _grows = ("dictionary", "pending_points", "pending")

    def __init__(
        self,
        kernel: gpytorch.kernels.Kernel,
        regularization: float,
        *,
        dim: int,
        batch_shape: torch.Size | tuple[int, ...] = (),
        sparse: bool = False,
        prior_mean: float | str = 0.0,
        finite: FiniteEmbedding | None = None,
        sketch: Sketch | None = None,
        units: Units | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.finite, self.sketch, self.units = finite, sketch, units
        batch_shape = torch.Size(batch_shape)
        self.kernel = copy.deepcopy(kernel).to(dtype=torch.float64, device=device)
        self.fitted = tuple(name for name, p in self.kernel.named_parameters() if p.requires_grad)
        self.kernel.requires_grad_(False)
        self.regularization, self.sparse, self.prior_mean = float(regularization), sparse, prior_mean
        self.statistics = Statistics(dim, batch_shape, device)
        # As a plain attribute it is found without a search through the submodules.
        self.__dict__["statistics"] = self.statistics
        self.register_buffer("dictionary", torch.zeros(*batch_shape, 0, dtype=torch.bool, device=device))
        self.register_buffer("pending_points", self.statistics.points)
        self.register_buffer("pending", self.statistics.weights)
        # Number of distinct points when the dictionary was last drawn, on the host. Those told since then may have joined it.
        self.drawn = torch.zeros(batch_shape, dtype=torch.int64)
        # Whether rewards were told with their own noise variances, which are relative to the noise of the policy.
        self.weighted = False
        self._fit: Factors | SmallFactors | FactorsInOne | Behind | ExactFactors | None = None
        self._known_rows: tuple[Tensor, Tensor, Tensor] | None = None
        # The rows that `dictionary_rows` returned last, and their copy on the host.
        self._host_rows: tuple[Tensor, Tensor] | None = None
        # The mask of the dictionary on a device, and its opposite.
        self._padding: tuple[Tensor, Tensor] | None = None
        # A dictionary on a device, and its sizes on the host.
        self._known_sizes: tuple[Tensor, Tensor] | None = None
        # The random effects given the present statistics.
        self._known_effects: Effects | None = None

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of the posterior."""
        return self.statistics.num_rows.shape

    # ------------------------------------------------------------------ observations

    def append_(self, points: Points, new: PickMask) -> Tensor:
        """Add distinct points without pulls, `batch_shape x p x d`; return their rows (−1 where `new` is False)."""
        if self.finite is not None:
            self._fall_behind(new.device)
        rows = self.statistics.append_(points, new)
        if self.sparse:
            self.dictionary = nn.functional.pad(self.dictionary, (0, self.statistics.size - self.dictionary.shape[-1]))
        if isinstance(self._fit, ExactFactors) or (self.sparse and self.effects is not None):
            self._fit = None
        elif self._fit is not None and not isinstance(self._fit, Behind):
            self._fit = self.fit().grown(points, new, rows, self.sparse)
        return rows

    def add_(self, rows: Tensor, counts: Tensor, sums: Tensor, squares: Tensor, *, whole: bool = False) -> GaussianProcess:
        """Add pulls of existing rows (`batch_shape x p` each; row −1 is ignored, and there is none if `whole`), all on the host
        or on the device. O(u), or O(p m²) if factorised."""
        if self.finite is not None:
            self._fall_behind(rows.device)
        self.statistics.add_(rows, counts, sums, squares, whole=whole)
        if isinstance(self._fit, Behind):
            behind = self._fit.with_pulls(rows, counts, sums)
            self.__dict__["_fit"] = None if uneven(self.statistics.weights_on_host) else behind
            return self
        if isinstance(self._fit, ExactFactors) or (self.sparse and self.effects is not None):
            # These take no updates; and with effects a further pull changes the weight of those before it.
            self._fit = None
        fit = None if self._fit is None else self.fit()
        if self.sketch is not None and self.finite is not None:
            rows, counts = to_device(self.pending.device, rows, counts)
            self.sketch.add_(self.finite(self.statistics.at(rows)), torch.where(rows >= 0, counts, 0.0))
            self._fit = None
        elif fit is not None and (fit.regression.graded is not None or uneven(self.statistics.weights_on_host)):
            # An update would add heavy pulls in coordinates that are not graded for them.
            self._fit = None
        elif fit is not None:
            features, kept, slot = fit.features, rows >= 0, rows.clamp_min(0)
            counts, sums = torch.where(kept, counts, 0.0), torch.where(kept, sums, 0.0)
            if slot.device != features.device:
                slot, counts, sums = to_device(features.device, slot, counts, sums)
            Z_mp = features.gather(-1, slot.unsqueeze(-2).expand(*features.shape[:-1], -1))
            # A copy, because a snapshot may hold these factors.
            regression = fit.regression.detached().update_(Z_mp.mT, counts, self.targets_of(counts, sums))
            self._fit = replace(fit, regression=regression, explained=None)
        return self

    def _fall_behind(self, told: torch.device) -> None:
        """Defer the update of the factors of finite features on a device by pulls that are told on the host (device `told`):
        they are stored until the factors are read, because the arms have their own update."""
        fit = self._fit
        if fit is None or self.sketch is not None or self.pending.device.type == "cpu":
            return
        if isinstance(fit, Behind) and told.type != "cpu":
            self.fit()
        elif isinstance(fit, Factors) and told.type == "cpu" and fit.regression.graded is None:
            self.__dict__["_fit"] = Behind(fit, int(self.statistics.num_rows.min()), ())

    def set_dictionary_(self, dictionary: Tensor) -> GaussianProcess:
        """Choose the dictionary among the distinct points, `batch_shape x u` booleans (sparse posteriors only)."""
        device = self._buffers["dictionary"].device
        if dictionary.device == device:
            # A single batch row has no padding.
            inside = dictionary if dictionary.dim() == 1 else dictionary & self.statistics.mask
            # Of a dictionary that is drawn again, rows, kept columns and kernel values are known.
            if not torch.equal(inside, self._buffers["dictionary"]):
                self._buffers["dictionary"] = inside
            self.__dict__["_fit"] = None
            return self
        # Rows and sizes are computed on the host, so that nothing waits for the device. One batch row has no padding.
        dictionary = dictionary & self.statistics.mask_on_host
        rows, mask = _marked_rows(dictionary)
        (self.dictionary, there, inside, outside), self._fit = to_device(device, dictionary, rows, mask, ~mask), None
        self._known_rows, self._known_sizes = (self.dictionary, there, inside), (self.dictionary, dictionary.sum(dim=-1))
        self._host_rows, self._padding = (there, rows), (inside, outside)
        return self

    def grow_dictionary_(self, fit: Factors, before: PerPoint, rows: Picks, K_qu: Rect) -> Growth | None:
        """Let the points whose first pulls were just told join the dictionary, on the host.

        Args:
            fit: Factors before these pulls.
            before, rows, K_qu: As for `Growth.of`.

        Returns:
            The change of leverages and means, or None if nothing was changed because factors must be computed anew.
        """
        told = self.embedded_statistics
        growth = Growth.of(fit, told, self.targets_of(told.weights, told.sums), before, rows, K_qu)
        if growth is not None:
            if len(growth.joined):
                self.set_dictionary_(self.dictionary.index_fill(-1, growth.joined, True))
            self._fit = replace(growth.factors, effects=self.effects)
        return growth

    def keep_dictionary_(self) -> GaussianProcess:
        """Keep a dictionary from now on, as a sparse posterior does. It holds all distinct points until another is set."""
        self.sparse, self.dictionary, self._fit = True, self.statistics.mask, None
        return self

    def set_kernel_(self, kernel: gpytorch.kernels.Kernel, regularization: float) -> GaussianProcess:
        """Set another kernel and λ for the same statistics and dictionary. The kernel is stored by reference, and not
        changed."""
        self.kernel, self.regularization, self._fit = kernel.requires_grad_(False), float(regularization), None
        return self

    def set_pending_(self, points: Points, counts: PerPoint) -> GaussianProcess:
        """Hallucinate pulls whose rewards are unknown: variances shrink, means stay. Zero counts undo it exactly.

        The posterior is conditioned on them exactly, with or without a dictionary: a pending pull also shrinks the variance of
        neighbours that the dictionary does not explain.

        Args:
            points: `batch_shape x p x d`.
            counts: `batch_shape x p`.
        """
        self.pending_points, self.pending = points.double(), counts.double()
        return self

    # ------------------------------------------------------------------ random effects

    @property
    def effects(self) -> Effects | None:
        """Random effects beside a dictionary, given the present statistics; None without them, and for an exact posterior,
        whose kernel represents them."""
        if not self.sparse or not isinstance(kernel := self.kernel, RandomEffectKernel):
            return None
        known, told, lam = self._known_effects, self.statistics, self.regularization
        if known is None or known.regularization != lam or not known.is_of(kernel):
            known = Effects.of(kernel, lam, told, self.targets())
        elif not known.is_given(told):
            known = known.retold(told, self.targets())
        self.__dict__["_known_effects"] = known
        return known

    @property
    def embedded_kernel(self) -> gpytorch.kernels.Kernel:
        """The kernel that the features represent: without random effects where there is a dictionary."""
        effects = self.effects
        return self.kernel if effects is None else effects.kernel

    @property
    def embedded_statistics(self) -> Statistics:
        """The statistics that the features are regressed on."""
        effects = self.effects
        return self.statistics if effects is None else effects.statistics

    # ------------------------------------------------------------------ predictions

    def forward(self, points: ArrayLike) -> Marginals:
        """Posterior mean and variance of f at any points.

        Args:
            points: `batch_shape x n x d`, in the units of the kernel's lengthscale.

        Returns:
            `Marginals`, `batch_shape x n`. Differentiable in `points`. Pending pulls shrink the variance only.

        Cost: O(n m (m + d)) time, O(n m) memory per batch row.
        """
        marginals = self.marginals(self.statistics.given(points), self.hallucinated(self.pending_points, self.pending))
        return marginals if self.units is None else self.units.marginals(marginals)

    def hallucinated(self, points: Points, counts: PerPoint, *, frozen: bool | Tensor = False) -> Pending | None:
        """The factors conditioned on pending pulls of p points, `batch_shape x p x d` and `batch_shape x p`; None if p is 0.

        The posterior is conditioned on them exactly. Where the dictionary is `frozen` (a boolean, or `batch_shape`), the
        variance that the dictionary of a sparse posterior misses is not changed, as in the batches of BBKB.
        """
        if not counts.shape[-1]:
            return None
        # Finite features leave no residual.
        frozen = self.finite is not None or (self.sparse and frozen)
        return Pending.on(self.fit(), points, counts, frozen)

    def marginals(self, points: Points, pending: Pending | None) -> Marginals:
        """`forward` with the given pending pulls instead of those of `set_pending_`, in the units of the model."""
        x, fit = self.statistics.checked(points), self.fit()
        z = fit.embedding(x)
        leverage = self.leverage_of(x, z)
        if pending is not None:
            leverage = leverage - pending.directions(fit.at(x, z)).square().sum(dim=-2)
        channels = fit.regression.mean(z)
        if (effects := fit.effects) is not None:
            channels = effects.channels(channels, effects.rows_of(x))
        mean, variance = self.reward_mean(channels), self.regularization * leverage.clamp_min(0)
        return Marginals(mean.to(points.dtype), variance.to(points.dtype))

    def covariance(self, points: Points, other: Points | None = None) -> Tensor:
        """Joint posterior covariance, `batch_shape x n x n'`, reward units squared. Differentiable. Cost O(n n' m)."""
        fit = self.fit()
        x = fit.at(self.statistics.checked(points))
        y = x if other is None else fit.at(self.statistics.checked(other))
        C = fit.covariance(x, y)
        if (pending := self.hallucinated(self.pending_points, self.pending)) is not None:
            C = C - pending.directions(x).mT @ pending.directions(y)
        return (self.regularization * C).to(points.dtype)

    def reward_mean(self, channels: Tensor) -> Tensor:
        """Posterior mean from the regression's outputs, `batch_shape x c x n` to `batch_shape x n`."""
        if self.prior_mean != "estimate":
            return channels.squeeze(-2) + float(self.prior_mean) if self.prior_mean else channels.squeeze(-2)
        return channels[..., 0, :] + self.estimated_prior_mean.unsqueeze(-1) * (1 - channels[..., 1, :])

    @property
    def estimated_prior_mean(self) -> Tensor:
        """μ₀ of each batch row, reward units: the given number, or the average of the observed rewards (0 without any)."""
        return self.prior_mean_of(self.statistics.totals)

    def prior_mean_of(self, totals: Tensor) -> Tensor:
        """`estimated_prior_mean` from the totals of the statistics, or from a copy of them, on its device."""
        pulls = totals[..., 0].sum(dim=-1)
        if self.prior_mean != "estimate":
            return torch.full_like(pulls, float(self.prior_mean))
        return totals[..., 1].sum(dim=-1) / pulls.clamp_min(1e-300)

    @property
    def num_channels(self) -> int:
        """Number of regression targets: the rewards, and a constant if the prior mean is estimated."""
        return 2 if self.prior_mean == "estimate" else 1

    def targets(self) -> Tensor:
        """Regression targets of the distinct points, `batch_shape x u x c`."""
        return self.targets_of(self.statistics.weights, self.statistics.sums)

    def targets_of(self, weights: Tensor, sums: Tensor) -> Tensor:
        """Regression targets of pulls with these weights and reward sums, `batch_shape x p` to `batch_shape x p x c`."""
        if self.prior_mean == "estimate":
            return torch.stack([sums, weights], dim=-1)
        return (sums - weights * float(self.prior_mean) if self.prior_mean else sums).unsqueeze(-1)

    # ------------------------------------------------------------------ factors

    @property
    def dictionary_size(self) -> Tensor:
        """Number of points in the dictionary of each batch row, `batch_shape`, on the host."""
        if not self.sparse:
            return self.statistics.num_rows
        dictionary, known = self._buffers["dictionary"], self._known_sizes
        if known is None or known[0] is not dictionary:
            self.__dict__["_known_sizes"] = known = (dictionary, dictionary.sum(dim=-1).cpu())
        return known[1]

    def dictionary_rows(self) -> tuple[Tensor, Tensor]:
        """Rows in the dictionary, in order, `batch_shape x m` (0 where padded), and their mask, False where padded. Computed
        once per dictionary."""
        if not self.sparse:
            mask = self.statistics.mask
            return torch.arange(mask.shape[-1], device=mask.device).expand_as(mask) * mask, mask
        dictionary, known = self._buffers["dictionary"], self._known_rows
        if known is None or known[0] is not dictionary:
            self.__dict__["_known_rows"] = known = (dictionary, *_marked_rows(dictionary))
        return known[1], known[2]

    def rows_on_host(self, rows: Tensor) -> Tensor:
        """Rows that `dictionary_rows` returned, on the host. They are copied from the device once."""
        if rows.device.type == "cpu":
            return rows
        if self._host_rows is not None and self._host_rows[0] is rows:
            return self._host_rows[1]
        here = rows.cpu()
        if self._known_rows is not None and self._known_rows[1] is rows:
            self._host_rows = (rows, here)
        return here

    def fit(self, gram: Callable[[Tensor], Tensor] | None = None) -> Factors:
        """The factors of the current statistics, computed once.

        Args:
            gram: Function from rows (`batch_shape x m`) to their kernel values with all rows, `batch_shape x m x u`, if these
                are already known; otherwise the kernel is evaluated.

        Cost: O(m u d + u m² + m³) the first time.
        """
        fit = self._fit
        if isinstance(fit, Factors):
            return fit
        if torch.is_inference_mode_enabled():
            # The factors are kept, and are used outside of this mode, too.
            with torch.inference_mode(False):
                return self.fit(gram)
        fit = self._factorised(gram)
        if not isinstance(fit, Factors):
            fit = fit.factors()
            # Most posteriors have no effects, and every call counts in a small step.
            if isinstance(self.kernel, RandomEffectKernel):
                fit = replace(fit, effects=self.effects)
        self.__dict__["_fit"] = fit
        return fit

    @property
    def known_factors(self) -> Factors | SmallFactors | FactorsInOne | Behind | ExactFactors | None:
        """The factors in their present form, `Behind` while pulls are not yet added to them; None if they are not computed."""
        return self._fit

    def _factorised(self, gram: Callable[[Tensor], Tensor] | None) -> Factors | SmallFactors | FactorsInOne:
        """`fit`, in the form in which it was computed."""
        if isinstance(self._fit, Behind):
            self._fit = self._fit.caught_up(self.statistics, self.targets_of)
        if self._fit is None or isinstance(self._fit, ExactFactors):
            told = self.embedded_statistics
            problem = (self.regularization, told, self.targets_of(told.weights, told.sums))
            rows = self.dictionary_rows()
            m = rows[0].shape[-1] if self.finite is None else self.finite.num_features
            with threads(many=self.statistics.weights.numel() * m * m >= MANY_PRODUCTS):
                if self.finite is None:
                    known = self._padding
                    padding = None if known is None or known[0] is not rows[1] else known[1]
                    self._fit = Factors.of(self.embedded_kernel, *problem, rows, gram, self.sparse, padding)
                else:
                    self._fit = Factors.of_features(self.finite, *problem, self.sketch)
            if isinstance(self._fit, Factors) and isinstance(self.kernel, RandomEffectKernel):
                self._fit = replace(self._fit, effects=self.effects)
        return self._fit

    def sweep_factors(self, gram: Callable[[Tensor], Tensor] | None = None) -> SweepFactors:
        """Factors of a sweep over many points; `gram` as for `fit`. Cost O(u m² + m³), and O(u³) for an exact posterior, whose
        factors for other purposes are not computed."""
        exact = self._exact_factors(gram) if self.finite is None and not self.sparse else None
        if exact is not None and exact.good is None:
            return SweepFactors(*self.dictionary_rows(), exact.N, exact.a, lower=False)
        fit = self._factorised(gram)
        found = fit.sweep(self.embedded_statistics.weights) if isinstance(fit, Factors) else fit.sweep()
        if exact is None or exact.good is None:
            return found
        # The factorisation of one batch row does not depend on whether that of another failed.
        good = exact.good[..., None, None]
        return found._replace(N=torch.where(good, exact.N, found.N), a=torch.where(good, exact.a, found.a), joined=None)

    def _exact_factors(self, gram: Callable[[Tensor], Tensor] | None) -> ExactFactors:
        """The factors of an exact posterior, which are kept if they are `good` and no others are."""
        if isinstance(self._fit, ExactFactors):
            return self._fit
        told, n = self.statistics, self.statistics.weights
        K_uu = kernel_matrix(self.kernel, told.points, told.points) if gram is None else gram(self.dictionary_rows()[0])
        with threads(many=n.numel() * n.shape[-1] ** 2 >= MANY_PRODUCTS):
            exact = ExactFactors.of(K_uu.double(), n, self.targets(), self.regularization)
        if exact.good is None and self._fit is None:
            self.__dict__["_fit"] = exact
        return exact

    def leverage(self, points: Points) -> Tensor:
        """Variance / λ at any points given the observed rewards, `batch_shape x n`; pending pulls are ignored."""
        return self.leverage_of(x := self.statistics.checked(points), self.fit().embedding(x))

    def leverage_of(self, x: Points, z: Rect) -> Tensor:
        """`leverage` at points whose features are already computed."""
        fit = self.fit()
        residual = (fit.embedding.diagonal(x) - z.square().sum(dim=-2)).clamp_min(0)
        leverage = residual / self.regularization + fit.regression.leverage(z)
        if (effects := fit.effects) is None:
            return leverage
        return effects.leverage(leverage, effects.share_at(effects.rows_of(x)))

    @property
    def log_det(self) -> Tensor:
        """log det(V/λ), `batch_shape`: twice the information gained by the observed rewards."""
        if isinstance(self._fit, ExactFactors):
            return self._fit.log_det
        fit = self.fit()
        precision = fit.regression.precision
        log_det = precision.log_det - precision.size * math.log(self.regularization)
        return log_det if fit.effects is None else log_det + fit.effects.log_det

    @property
    def factorised(self) -> bool:
        """Whether the factors of the current statistics are computed."""
        return self._fit is not None

    def snapshot(self) -> Callable[[], None]:
        """Function that restores the current kernel, λ, sparsity and factors. The buffers must be restored by the caller."""
        return partial(self._restore, self.kernel, self.regularization, (self.sparse, self.weighted, self.drawn), self._fit)

    def _restore(
        self,
        kernel: gpytorch.kernels.Kernel,
        regularization: float,
        flags: tuple[bool, bool, Tensor],
        fit: Factors | SmallFactors | FactorsInOne | Behind | ExactFactors | None,
    ) -> None:
        self.kernel, self.regularization, self._fit = kernel, regularization, fit
        self.sparse, self.weighted, self.drawn = flags

    def invalidate_(self) -> None:
        """Drop the factors, to be recomputed when needed."""
        self.__dict__["_fit"] = None

    def _apply(self, fn: Any, recurse: bool = True) -> GaussianProcess:
        # Factors stay float64 whatever dtype is requested; only the device of `.to()` is used.
        device = fn(torch.zeros((), dtype=torch.float64, device=self.pending.device)).device
        super()._apply(lambda tensor: tensor.to(device), recurse)
        self._fit = self._known_effects = None
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> GaussianProcess:
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        new.__dict__ = copy.deepcopy({k: v for k, v in self.__dict__.items() if k not in ("_fit", "_known_effects")}, memo)
        new._fit = new._known_effects = None
        return new

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self._fit = self._known_effects = None
        # A fit gives each batch row its own kernel. New parameters are created, so that snapshots are not overwritten.
        self.kernel = shaped_like(self.kernel, state_dict, prefix + "kernel.")
        super()._load_from_state_dict(state_dict, prefix, *args)
        # Loading overwrites the dictionary in place, so cached rows are invalid.
        self._known_rows = self._known_sizes = None

    def get_extra_state(self) -> dict[str, Any]:
        """λ, which a fit of the noise changes, whether a dictionary is kept and when it was drawn, and whether rewards were
        weighted."""
        saved: dict[str, Any] = {"regularization": self.regularization, "sparse": self.sparse}
        saved |= {"drawn": self.drawn.tolist()} if bool(self.drawn.any()) else {}
        return saved | ({"weighted": True} if self.weighted else {})

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `get_extra_state`."""
        self.regularization, self.sparse = state["regularization"], state.get("sparse", self.sparse)
        self.weighted = state.get("weighted", False)
        none = torch.zeros(self.batch_shape, dtype=torch.int64)
        self.drawn = torch.tensor(state["drawn"]) if "drawn" in state else none


def _marked_rows(dictionary: Tensor) -> tuple[Tensor, Tensor]:
    """The marked rows in order, `batch_shape x m` (0 where padded), and their mask, from `batch_shape x u` booleans."""
    if dictionary.dim() == 1:
        rows = dictionary.nonzero().squeeze(-1)
        return rows, torch.ones_like(rows, dtype=torch.bool)
    m = int(dictionary.sum(dim=-1).max()) if dictionary.numel() else 0
    order = torch.argsort((~dictionary).byte(), dim=-1, stable=True)[..., :m]
    mask = dictionary.gather(-1, order)
    return order * mask, mask
