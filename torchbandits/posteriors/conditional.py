"""Posterior in terms of kernel columns, which is conditioned on further observations without a copy of its base."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from torchbandits.errors import NumericalError, UnsupportedError, require
from torchbandits.linalg import Precision, cholesky
from torchbandits.posteriors.effects import Effects
from torchbandits.posteriors.exact import with_noise
from torchbandits.posteriors.extension import Extension, rounding
from torchbandits.posteriors.gaussian_process import GaussianProcess
from torchbandits.posteriors.regression import Conditioning
from torchbandits.posteriors.seen import Seen, SeenWithEffects, folded, joined, lower_times, upper_inverse, upper_times
from torchbandits.shapes import broadcast_shapes
from torchbandits.types import PerPoint, Points, Rect

# Rounding errors above this fraction of an observation's standard deviation require recomputing the columns from the data.
_ROUNDING = 0.01
# Number of kernel values in a chunk of points, 2 MB: faster than 2^17 and than 2^19 to 2^21, the latter of which also need
# more memory.
_CHUNK_NUMBERS = 1 << 18


@dataclass(frozen=True)
class Conditional:
    r"""Posterior of a Gaussian process in terms of the kernel columns k_S of m points (or of finite features).

    .. math:: \mu(x) = \mu_0 + a^T k_S(x), \quad \mathrm{cov}(x, x') = k(x, x') - W(x)^T W(x'), \quad W = N^T k_S

    For the exact posterior S is the set of observed points and N = L⁻ᵀ with L Lᵀ = K + λ diag(n)⁻¹. For a dictionary
    N Nᵀ = R(I − λV⁻¹)Rᵀ, and the variance that observations can still reduce is H Hᵀ = λ R V⁻¹ Rᵀ. p further observations with
    covariance C and noise ν append the columns B L_M⁻ᵀ, where L_M L_Mᵀ = C + diag(ν) and B are the weights of their covariance
    in k_S. The base is never copied: all posteriors conditioned from it share it. Immutable.

    Attributes:
        seen: Evaluates kernel columns.
        root: `batch_shape x m x m`, N, upper triangular. It has no columns for finite features, because `seen` then evaluates
            the posterior covariance itself.
        teachable: `batch_shape x m x m`, H; None for the exact posterior.
        coefficients: `batch_shape x m x c`, a for the rewards, and for a constant if the prior mean is estimated.
        prior_mean: μ₀; None if it is estimated.
        totals: `batch_shape x 2`, sum of the weights and of the weighted rewards.
        regularization: λ: an observation of weight n has noise variance λ/n.
        log_det: `batch_shape`, log det(V/λ) of the observations.
        extension: Columns of the observations made since the base was factorised.
        pending: Points hallucinated in addition to the observations, with their weights and whether the dictionary was frozen.
        told: The posterior without pending points; None if there are none.

    Source: Rasmussen & Williams 2006, ch. 2; Calandriello et al. 2019, eq. 4–5.
    """

    seen: Seen
    root: Tensor
    teachable: Tensor | None
    coefficients: Tensor
    prior_mean: float | None
    totals: Tensor
    regularization: float
    log_det: Tensor
    extension: Extension
    pending: tuple[tuple[Points, PerPoint, bool], ...] = ()
    told: Conditional | None = None

    # ------------------------------------------------------------------ from data

    @staticmethod
    @torch.no_grad()
    def of(process: GaussianProcess) -> Conditional:
        """The posterior of a process without a sketch; its kernel is shared. Pending pulls are ignored.

        Cost: O(u³) for an exact posterior, O(u m² + m³) for a dictionary or features.
        """
        lam = process.regularization
        if process.finite is None and not process.sparse:
            return _conditional(process, *_exact(process))
        fit = process.fit()
        precision = fit.regression.precision
        assert isinstance(precision, Precision)
        # The posterior under finite features is a prior with the features Hᵀz(x), so that N needs no columns.
        if process.finite is not None:
            H, a = lam**0.5 * precision.root, fit.regression.coefficients
            return _conditional(process, Seen(None, None, process.finite, H), H[..., :0], H, a, process.log_det)
        rows, mask, N, a, *_ = process.sweep_factors()
        # The QR factorisation of the flipped matrix makes N upper triangular with the same N Nᵀ.
        N = torch.linalg.qr(N.flip(-2).mT, mode="r").R.mT.flip(-2, -1)
        if (effects := process.effects) is not None:
            return _with_effects(process, effects, process.statistics.at(rows), N, a)
        seen = Seen(process.kernel, process.statistics.at(rows))
        H = torch.where(mask.unsqueeze(-1), fit.nystrom.root.lift(precision.root), 0.0)
        return _conditional(process, seen, lam**0.5 * N, lam**0.5 * H, a, process.log_det)

    # ------------------------------------------------------------------ predictions

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions."""
        return broadcast_shapes(self.coefficients.shape[:-2], self.extension.on_base.shape[:-2])

    @property
    def rank(self) -> int:
        """Number of columns appended to the base."""
        return self.extension.on_base.shape[-1]

    @property
    def unteachable(self) -> bool:
        """Whether observations were lost because the dictionary has no points. A dictionary must then be drawn from them."""
        return self.teachable is not None and not self.root.shape[-2] and self.rank > 0

    @property
    def rounded(self) -> bool:
        """Whether rounding has spoilt the appended columns, so that the posterior must be recomputed from the data."""
        return self.extension.residual > _ROUNDING

    def checked(self) -> Conditional:
        """Return self if rounding errors are small; raise `NumericalError` otherwise."""
        message = "rounding errors have spoilt the posterior: use a larger noise_std, or condition on all points at once."
        require(not self.rounded, message, NumericalError)
        return self

    def marginals(self, points: Points) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at `... x n x d` points, `... x n` each, reward units; differentiable. Cost O(n m²) time, and
        O(m) memory per chunk of points if no gradient is required."""
        flat, unfold = folded(points, self.batch_shape)
        size = (self.root.shape[-2] + self.rank) * flat.shape[:-2].numel()
        step = max(128, _CHUNK_NUMBERS // max(1, size))
        means, variances = zip(*(self._marginals(part) for part in flat.split(step, dim=-2)), strict=True)
        return unfold(torch.cat(means, dim=-1), 0), unfold(torch.cat(variances, dim=-1), 0)

    def _marginals(self, points: Points) -> tuple[Tensor, Tensor]:
        base, own = self.columns(points)
        variance = self.seen.diagonal(points, base) - self.whitened(base, own).square().sum(dim=-1)
        return self.reward_mean(self.channels(base, own)), variance.clamp_min(0)

    def joint(self, points: Points) -> tuple[Tensor, Tensor]:
        """Mean `... x n` and covariance `... x n x n` in one pass. Cost O(n m² + n² m)."""
        base, own = self.columns(points)
        W = self.whitened(base, own)
        return self.reward_mean(self.channels(base, own)), self.seen.covariance(points, points, base, base) - W @ W.mT

    def covariance(self, points: Points, other: Points) -> Rect:
        """Posterior covariance, `... x n x n'`, reward units squared; differentiable. Cost O(n n' m + (n + n') m²)."""
        base_x, base_y = self.seen.columns(points), self.seen.columns(other)
        W_x = self.whitened(base_x, self._own(points, base_x))
        W_y = self.whitened(base_y, self._own(other, base_y))
        return self.seen.covariance(points, other, base_x, base_y) - W_x @ W_y.mT

    def columns(self, points: Points) -> tuple[Rect, Rect]:
        """Kernel values with the points of the base, `... x n x m`, and with those of the extension, `... x n x p`."""
        base = self.seen.columns(points)
        return base, self._own(points, base)

    def _own(self, points: Points, base: Rect) -> Rect:
        more = self.extension.points
        return self.seen.at(more).columns(points) if more.shape[-2] else base[..., :0]

    def whitened(self, base: Rect, own: Rect) -> Rect:
        """W(x), `... x n x (m + r)`, from kernel columns."""
        W = upper_times(base, self.root)
        if not self.rank:
            return W
        more = base @ self.extension.on_base
        return joined(W, more + own @ self.extension.on_points if own.shape[-1] else more)

    def channels(self, base: Rect, own: Rect) -> Tensor:
        """The regression's outputs, `... x n x c`, from kernel columns."""
        out = base @ self.coefficients
        return out + own @ self.extension.coefficients if own.shape[-1] else out

    def reward_mean(self, channels: Tensor) -> Tensor:
        """Posterior mean from `... x n x c` channels, `... x n`, reward units."""
        if self.prior_mean is not None:
            return channels.squeeze(-1) + self.prior_mean
        mean = self.totals[..., 1] / self.totals[..., 0].clamp_min(1e-300)
        # With r(x) the regression of the rewards and 1(x) that of a constant, μ(x) = r(x) + μ₀ (1 − 1(x)).
        return channels[..., 0] + mean.unsqueeze(-1) * (1 - channels[..., 1])

    # ------------------------------------------------------------------ conditioning

    def conditioned(self, points: Points, rewards: PerPoint, weights: PerPoint) -> Conditional:
        """The posterior given further observations.

        Args:
            points: `batch x p x d`.
            rewards: `... x batch x p`, reward units; may have leading dimensions that the points do not have.
            weights: `batch x p`, ≥ 0: the noise variance is λ/n, and nothing is learned at weight 0.

        Pending points are hallucinated again after the observations, so that the mean depends on observations only.

        Cost: O(p m² + p² m) per batch row; differentiable in points and rewards. The base is shared, not copied.
        """
        if self.told is not None:
            known = self.told.conditioned(points, rewards, weights)
            for x, n, frozen in self.pending:
                known = known.hallucinated(x, n, frozen=frozen)
            return known
        base, own = self.columns(points)
        new, on_old, log_det = self._appended(points, base, own, weights, frozen=True)
        targets = rewards.unsqueeze(-1)
        if self.prior_mean is None:
            targets = torch.cat([targets, torch.ones_like(targets)], dim=-1)
        else:
            targets = targets - self.prior_mean
        innovation = new.coefficients.mT @ (targets - self.channels(base, own))
        p = self.extension.points.shape[-2]
        before, after = self.extension.coefficients, new.on_points[..., p:, self.rank :] @ innovation
        before = before + on_old @ innovation if p else before.expand(*innovation.shape[:-2], -1, -1)
        totals = torch.stack([weights.sum(dim=-1).expand(rewards.shape[:-1]), (weights * rewards).sum(dim=-1)], dim=-1)
        known = replace(
            self,
            coefficients=self.coefficients + new.on_base[..., self.rank :] @ innovation,
            totals=self.totals + totals,
            log_det=self.log_det + log_det,
            extension=replace(new, coefficients=joined(before, after, dim=-2)),
        )
        return known.checked() if known.coefficients.requires_grad else known

    def hallucinated(self, points: Points, weights: PerPoint, *, frozen: bool = False) -> Conditional:
        """The posterior given pulls of unknown reward, `batch x p x d` and `batch x p`: variances shrink, means stay exactly
        the same, and no information gain is counted. Cost as for `conditioned`.

        Each pull gets its own kernel column, with or without a dictionary, so that pulls which the dictionary does not explain
        also reduce the variance of each other. With `frozen`, pulls act through the features of the dictionary only, as
        observations do.
        """
        mixed = frozen and any(not before for *_, before in self.pending)
        message = "points are pending that the residual is conditioned on: hallucinate those of a frozen dictionary first."
        require(not mixed, message, UnsupportedError)
        base, own = self.columns(points)
        new, _, _ = self._appended(points, base, own, weights, frozen=frozen)
        old = self.extension.coefficients
        still = torch.nn.functional.pad(old, (0, 0, 0, new.points.shape[-2] - old.shape[-2]))
        extension, told = replace(new, coefficients=still), self if self.told is None else self.told
        return replace(self, extension=extension, pending=(*self.pending, (points, weights, frozen)), told=told)

    def _appended(
        self, points: Points, base: Rect, own: Rect, weights: PerPoint, *, frozen: bool
    ) -> tuple[Extension, Rect, Tensor]:
        """The extension with columns for further observations, where `coefficients` holds L_M⁻ᵀ; the weights of the new columns
        in the kernel columns of the earlier extension points; and the increase of log det(V/λ).

        A frozen dictionary and finite features are updated through their features only; otherwise points get their own kernel
        columns.
        """
        W, m, old = self.whitened(base, own), self.root.shape[-1], self.extension
        V = W[..., m:].mT
        if self.teachable is None or not (frozen or self.seen.kernel is None):
            K = self.seen.covariance(points, points, base, base)
            # The residual covariance of the points, and the weights −N W(x) of its columns in k_S.
            C = K - W @ W.mT
            on_base, on_old, more = -lower_times(self.root, W[..., :m].mT), -(old.on_points @ V), points
        else:
            # Only the part of the covariance in the features, F Fᵀ minus what was learned since, is updated.
            F, K = base @ self.teachable, base[..., :0]
            C, on_base = F @ F.mT - V.mT @ V, self.teachable @ F.mT
            on_old, more = old.on_points @ V, points[..., :0, :]
        on_base = on_base - old.on_base @ V if self.rank else on_base
        step = Conditioning.on(C / self.regularization, weights)
        eye = torch.eye(C.shape[-1], dtype=C.dtype, device=C.device).expand_as(C)
        scale = step.root_weights / self.regularization**0.5
        # L_M⁻ᵀ = √(N/λ) L⁻ᵀ, where L is the factor of `step`.
        spread = scale.unsqueeze(-1) * torch.linalg.solve_triangular(step.factor.mT, eye, upper=True)
        on_base, on_old, on_own = on_base @ spread, on_old @ spread, spread if more.shape[-2] else spread[..., :0, :]
        with torch.no_grad():
            again = base @ on_base + own @ on_old + K @ on_own
            residual = rounding(again, C @ spread, C, self.regularization / weights.clamp_min(1e-300))
        left = on_own.new_zeros(*on_own.shape[:-1], self.rank)
        extension = Extension(
            joined(old.points, more, dim=-2),
            joined(old.on_base, on_base),
            joined(joined(old.on_points, on_old), joined(left, on_own), dim=-2),
            spread,
            max(old.residual, residual),
        )
        return extension, on_old, step.log_det

    def detached(self) -> Conditional:
        """The same posterior, detached from the autograd graph."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        own = {name: value.detach() if isinstance(value, Tensor) else value for name, value in own.items()}
        own["extension"] = self.extension.detached()
        own["pending"] = tuple((x.detach(), n, frozen) for x, n, frozen in self.pending)
        own["told"] = None if self.told is None else self.told.detached()
        return Conditional(**own)


def _conditional(
    process: GaussianProcess, seen: Seen, root: Tensor, teachable: Tensor | None, coefficients: Tensor, log_det: Tensor
) -> Conditional:
    statistics, shape = process.statistics, root.shape[:-2]
    prior_mean = None if process.prior_mean == "estimate" else float(process.prior_mean)
    totals = torch.stack([statistics.weights.sum(dim=-1), statistics.sums.sum(dim=-1)], dim=-1)
    nothing = root.new_zeros(*shape, 0, 0)
    extension = Extension(
        root.new_zeros(*shape, 0, statistics.points.shape[-1]),
        root.new_zeros(*shape, root.shape[-2], 0),
        nothing,
        root.new_zeros(*shape, 0, coefficients.shape[-1]),
    )
    return Conditional(seen, root, teachable, coefficients, prior_mean, totals, process.regularization, log_det, extension)


def _with_effects(process: GaussianProcess, effects: Effects, dictionary: Points, N: Tensor, a: Tensor) -> Conditional:
    """The posterior of a dictionary, with its N and a, and random effects. Further observations act as those of an exact
    posterior do."""
    c = a.shape[-1]
    # After the columns of the dictionary come the means that the effects add, with weight 1 in the mean and 0 in the variance.
    root = torch.nn.functional.pad(process.regularization**0.5 * N, (0, c, 0, c))
    own = torch.eye(c, dtype=a.dtype, device=a.device).expand(*a.shape[:-2], c, c)
    seen = SeenWithEffects(process.kernel, dictionary, effects=effects)
    return _conditional(process, seen, root, None, torch.cat([a, own], dim=-2), process.log_det)


def _exact(process: GaussianProcess) -> tuple[Seen, Tensor, None, Tensor, Tensor]:
    """Observed points, N, H, a and log det(V/λ) of the exact posterior."""
    statistics, lam = process.statistics, process.regularization
    n, live = statistics.weights, statistics.weights > 0
    seen = Seen(process.kernel, statistics.points)
    A, noise = with_noise(seen.matrix(), n, lam, 1.0)
    factor, good = cholesky(A)
    require(
        good is None,
        "the kernel matrix plus noise is not positive definite in float64: use a larger noise_std (or train_Yvar), or a "
        "shorter lengthscale.",
        NumericalError,
    )
    targets = torch.where(live.unsqueeze(-1), process.targets() / n.unsqueeze(-1), 0.0)
    N = torch.where(live.unsqueeze(-2), upper_inverse(factor), 0.0)
    log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1) - noise.log().sum(dim=-1)
    return seen, N, None, torch.cholesky_solve(targets, factor), log_det
