"""The factors of a posterior, derived from its statistics. They are dropped when the statistics change, and never saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gpytorch
import torch
from torch import Tensor, nn

from torchbandits.embeddings import FiniteEmbedding, Nystrom
from torchbandits.errors import NumericalError, require
from torchbandits.kernels import kernel_matrix
from torchbandits.linalg import MOST_UNEVEN, InverseRoot, Precision, shrinkage_root, solve_lower, uneven
from torchbandits.posteriors.effects import Effects
from torchbandits.posteriors.regression import Regression
from torchbandits.posteriors.sketch import Sketch
from torchbandits.posteriors.statistics import Statistics
from torchbandits.transfers import to_device, to_host
from torchbandits.types import PickMask, Points, Rect

# In a sparse posterior, a dictionary point whose residual k(x,x) − |z|² is below this fraction of λ is left out: the features
# of points outside the dictionary, divided by smaller pivots, would be noise. An exact posterior has no points outside.
_RESIDUAL_TOLERANCE = 1e-10

# If the kernel matrix of the dictionary is singular in float64, eigenvalues up to _CUT rounding errors are left out. Where this
# may change the mean by more than _SHOWS, all eigenvalues above _FINEST_CUT rounding errors are kept instead, unless rounding
# errors of the kernel would then change the mean by more than _STEADY.
_CUT, _FINEST_CUT, _SHOWS, _STEADY = 64.0, 0.5, 1e-8, 2e-6
# Largest first-order effect of the kernel's rounding errors on the mean that is accepted in this case, relative to the rewards.
# Compared with arithmetic of 200 digits, the error of the mean was up to 35 times this estimate, and nearly singular problems
# are promised an error of at most 1e-5.
_RESOLVED = 3e-7
_TOO_SINGULAR = (
    "the kernel matrix of the dictionary is singular in float64, and at this noise the kernel leaves so much of the rewards "
    "unexplained that the error of the mean may be 1e-5: use a larger noise_std (or regularization), a shorter lengthscale, "
    "or an exact policy."
)


# Up to this number of products the factors are computed by compiled loops on the host: they take a third of the time of LAPACK
# at half of this number, which the overhead of its calls explains, and five sixths at four times this number. For arms on a
# device, the alternative costs a hundred launches and a dozen waits.
_SMALL = 4_000_000
# Variance of a dictionary point that is padding, where factors of several batch rows are computed without masks. Its root
# divides what the kernel says of it, so that its effects are below 1e-100 of all others.
_NO_POINT = 1e300


class AtPoints(NamedTuple):
    """Points with their features, as `Factors.covariance` takes them.

    Attributes:
        points: `batch_shape x n x d`, float64, or what else the kernel of a table reads of them.
        whitened: `batch_shape x m x n`, with zᵀV⁻¹z' = whitenedᵀ whitened'.
        features: `batch_shape x m x n`, z.
        share: `batch_shape x n`, s of points whose deviation from a smooth function is told by their own rewards, with which z
            is multiplied; see `Effects`. None without random effects.
    """

    points: Tensor
    whitened: Rect
    features: Rect
    share: Tensor | None = None


class SweepFactors(NamedTuple):
    r"""Weights of kernel columns in the means and leverages of many points.

    .. math:: \mathrm{leverage}(x) = k(x,x)/\lambda - |N^T k_S(x)|^2, \quad \mathrm{mean}(x) = a^T k_S(x)

    with N Nᵀ = R(I/λ − V⁻¹)Rᵀ and a = R w.

    Attributes:
        rows: `batch_shape x m`, the dictionary's rows of the statistics.
        mask: `batch_shape x m`, False where padded.
        N: `batch_shape x m x m`, triangular.
        a: `batch_shape x m x c`.
        lower: Whether Nᵀ is lower triangular; otherwise it is upper triangular. None if it is full.
        joined: a and N in one matrix, `batch_shape x m x (c + m)`, if they were computed together.
    """

    rows: Tensor
    mask: Tensor
    N: Tensor
    a: Tensor
    lower: bool | None
    joined: Tensor | None = None

    @property
    def weights(self) -> Tensor:
        """a and N in one matrix, `batch_shape x (c + m) x m`."""
        return (torch.cat([self.a, self.N], dim=-1) if self.joined is None else self.joined).mT


@dataclass(frozen=True)
class Factors:
    """An embedding on the dictionary and the regression on the distinct points.

    Attributes:
        rows: `batch_shape x m`, the dictionary's rows of the statistics, 0 where padded; empty for finite features.
        mask: `batch_shape x m`, False where padded.
        embedding: Features of the dictionary, or finite features.
        features: `batch_shape x m x u`, z of the distinct points.
        regression: V and w.
        explained: N and a of a sweep if they were computed with the other factors, with N upper triangular; see `sweep`.
        whole: Whether it is known that no place is padded, so that no masking is needed.
        effects: Random effects of the points. Embedding, features and regression are those of the smooth part.
    """

    rows: Tensor
    mask: Tensor
    embedding: Nystrom | FiniteEmbedding
    features: Tensor
    regression: Regression
    explained: tuple[Tensor, Tensor] | None = None
    whole: bool = False
    effects: Effects | None = None

    @staticmethod
    def of(
        kernel: gpytorch.kernels.Kernel,
        regularization: float,
        statistics: Statistics,
        targets: Rect,
        dictionary: tuple[Tensor, Tensor],
        gram: Callable[[Tensor], Tensor] | None,
        sparse: bool,
        padding: Tensor | None = None,
    ) -> Factors | SmallFactors | FactorsInOne:
        """Factorise. `dictionary` is rows and mask, and `padding` the opposite of the mask, if it is known; `gram` maps rows to
        their kernel values with all rows. O(u m² + m³)."""
        rows, mask = dictionary
        K_mu = None if gram is None else gram(rows)
        if sparse and K_mu is not None:
            sampled = Dictionary(kernel, regularization, statistics.points, rows, mask)
            small = SmallFactors.of(sampled, statistics.weights, targets, K_mu)
            if small is not None:
                return small if K_mu.device.type == "cpu" else small.factors()
            if K_mu.device.type != "cpu" and K_mu.dim() > 2 and rows.shape[-1] and not uneven(statistics.weights_on_host):
                in_one = FactorsInOne.of(sampled, statistics, targets, K_mu, padding)
                if in_one is not None:
                    return in_one
        points = statistics.at(rows)
        if K_mu is None:
            K_mu = kernel_matrix(kernel, points, statistics.points)
        K_mu = torch.where(mask.unsqueeze(-1) & statistics.mask.unsqueeze(-2), K_mu.double(), 0.0)
        K_mm = K_mu.gather(-1, rows.unsqueeze(-2).expand(*K_mu.shape[:-1], rows.shape[-1]))
        n = statistics.weights

        def with_cut(cut: Tensor | None) -> Factors:
            floor = sparse * _RESIDUAL_TOLERANCE * regularization
            embedding = Nystrom(kernel, points, mask, floor=floor, gram=K_mm, cut=cut)
            Z_mu = _features(embedding, K_mu, mask, statistics.mask)
            return Factors(rows, mask, embedding, Z_mu, Regression(Z_mu.mT, n, targets, regularization))

        found = with_cut(None)
        fallback = found.nystrom.root.fallback
        if not sparse or found.nystrom.root.pseudo is None:
            return found
        # The effect of one rounding error of the kernel values, relative to the largest average reward.
        size = torch.where((n > 0).unsqueeze(-1), targets / n.unsqueeze(-1), 0.0).abs().amax(dim=-2)
        scale = K_mm.diagonal(dim1=-2, dim2=-1).amax(dim=-1, keepdim=True)
        unit = torch.finfo(n.dtype).eps * scale / size.clamp_min(torch.finfo(n.dtype).tiny)
        usual, dual = max(_CUT, mask.shape[-1]), found._dual(n, targets)
        lost = fallback & ((usual * unit * dual.norm(dim=-2)).amax(dim=-1) > _SHOWS)
        if not bool(lost.any()):
            return found
        finer = with_cut(torch.where(lost, _FINEST_CUT, usual))
        a = finer.nystrom.root.lift(finer.regression.coefficients)
        steady = lost & ((unit * a.abs().sum(dim=-2)).amax(dim=-1) <= _STEADY)
        found = finer if bool((steady == lost).all()) else with_cut(torch.where(steady, _FINEST_CUT, usual))
        rounding = found._rounding(n, targets, statistics.mask, torch.where(lost & ~steady, usual, 1.0))
        require(not bool((lost & ((unit * rounding).amax(dim=-1) > _RESOLVED)).any()), _TOO_SINGULAR, NumericalError)
        return found

    def _dual(self, weights: Tensor, targets: Rect) -> Tensor:
        """α = N(ȳ − μ)/λ, `batch_shape x u x c`: to first order, an error E of the kernel matrix changes the mean by Eα."""
        n = weights.clamp_min(0).unsqueeze(-1)
        return (targets - n * (self.features.mT @ self.regression.coefficients)) / self.regression.regularization

    def _rounding(self, weights: Tensor, targets: Rect, told: Tensor, cut: Tensor) -> Tensor:
        r"""Effect on the mean of independent errors of size 1 in every kernel value, `batch_shape x c`.

        With B = R Zᵀ, the kernel is k̂(x, x') = k_S(x)ᵀ β(x'), so that errors in k_S and K_S add up to

        .. math:: |a| (1 + \max |\beta|) + \max |\beta| \, \big|(\alpha_u |\beta_u|)_{u \notin S}\big|,
                  \quad a = \sum_u \alpha_u \beta_u

        If eigenvalues up to `cut` rounding errors (`batch_shape`) are left out, α outside S is multiplied by `cut`. Cost
        O(u m²).
        """
        root = self.nystrom.root
        a, length = root.lift(self.regression.coefficients).norm(dim=-2), root.lift(self.features).norm(dim=-2)
        length = torch.where(told, length, 0.0)
        largest, size = length.amax(dim=-1, keepdim=True), told.shape[-1]
        # Padding is written to a spare column that is removed at the end.
        slot = torch.where(self.mask, self.rows, size)
        inside = nn.functional.pad(torch.zeros_like(told), (0, 1)).scatter(-1, slot, True)[..., :-1]
        outside = self._dual(weights, targets) * length.masked_fill(inside, 0.0).unsqueeze(-1)
        return a * (1 + largest) + cut.unsqueeze(-1) * largest * outside.norm(dim=-2)

    def at(self, points: Tensor, features: Rect | None = None, rows: Tensor | None = None) -> AtPoints:
        """Points with their features, as `covariance` takes them. Their features, and for random effects their rows
        (`batch_shape x n`, −1 without pulls), may be known. Cost O(n m²), and O(n m d) for the features."""
        z = self.embedding(points) if features is None else features
        unscaled = AtPoints(points, self.regression.precision.whiten(z), z)
        if self.effects is None:
            return unscaled
        share = self.effects.share_at(self.effects.rows_of(points) if rows is None else rows)
        return AtPoints(points, share.unsqueeze(-2) * unscaled.whitened, share.unsqueeze(-2) * z, share)

    def covariance(
        self,
        left: AtPoints,
        right: AtPoints,
        *,
        frozen: bool | Tensor = False,
        prior: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """The part of the leverage-scale covariance that a pull changes, `batch_shape x n x n'`: zᵀV⁻¹z' where the dictionary
        is frozen (all batch rows, or `batch_shape`), and k̃ = zᵀV⁻¹z' + (k − zᵀz')/λ elsewhere. Cost O(n n' (m + d)).

        Args:
            prior: Evaluates k between the points of both sides, if they are in a form that the embedding's kernel cannot read.
        """
        C = left.whitened.mT @ right.whitened
        if frozen is True:
            return C
        if prior is None and self.effects is None:
            residual = self.embedding.residual_covariance(left.points, right.points, left.features, right.features)
        else:
            K = self.nystrom.prior(left.points, right.points) if prior is None else prior(left.points, right.points)
            if self.effects is not None:
                assert left.share is not None
                assert right.share is not None
                K = self.effects.prior(K, left.points, right.points, left.share, right.share)
            residual = K - left.features.mT @ right.features
        return where_frozen(frozen, C, C + residual / self.regression.regularization)

    def column_weights(self, features: Rect, solved: Rect | None = None) -> Tensor:
        """Weights of the dictionary's kernel columns whose products are zᵀV⁻¹z(·) and zᵀz(·), `batch_shape x 2p x m`, for
        features `batch_shape x m x p`; `solved` is V⁻¹z where it is known."""
        root = self.nystrom.root
        if solved is None:
            both = torch.cat([root.lift(self.regression.precision.solve(features)), root.lift(features)], dim=-1)
        else:
            both = root.lift(torch.cat([solved, features], dim=-1))
        return self.unpadded(both).mT

    def unpadded(self, lines: Rect) -> Tensor:
        """`lines`, `batch_shape x m x n`, with 0 where the dictionary is padded."""
        return lines if self.whole else torch.where(self.mask.unsqueeze(-1), lines, 0.0)

    @property
    def nystrom(self) -> Nystrom:
        """The embedding of a posterior that has a dictionary."""
        assert isinstance(self.embedding, Nystrom)
        return self.embedding

    @staticmethod
    def of_features(
        embedding: FiniteEmbedding, regularization: float, statistics: Statistics, targets: Rect, sketch: Sketch | None
    ) -> Factors:
        """Factorise under finite features. O(u m² + m³), or O(u m + s² m) if V is a sketch of s rows."""
        Z_mu = torch.where(statistics.mask.unsqueeze(-2), embedding(statistics.points), 0.0)
        nothing = torch.zeros_like(statistics.mask[..., :0], dtype=torch.int64)
        sketched = None if sketch is None else sketch.precision(regularization)
        regression = Regression(Z_mu.mT, statistics.weights, targets, regularization, sketched)
        return Factors(nothing, nothing.bool(), embedding, Z_mu, regression)

    def sweep(self, weights: Tensor) -> SweepFactors:
        """Factors of a sweep over many points, for `batch_shape x u` weights."""
        if self.explained is not None:
            return SweepFactors(self.rows, self.mask, *self.explained, lower=True)
        pulled = (self.features * weights.clamp_min(0).sqrt().unsqueeze(-2)).mT
        padding = None if bool(self.mask.all()) else ~self.mask
        precision, lam = self.regression.precision, self.regression.regularization
        assert isinstance(precision, Precision)
        if padding is not None and self.nystrom.root.pseudo is not None:
            # Coordinates of eigenvectors are in the order of the eigenvalues, so that none of them belongs to a padded place.
            padding = padding & ~self.nystrom.root.fallback.unsqueeze(-1)
        if precision.basis is None:
            Q = shrinkage_root(precision.current_factor, pulled, lam, padding)
        else:
            pulled = pulled @ precision.basis
            Q = precision.basis @ shrinkage_root(precision.current_factor, pulled, lam, graded=True)
        # Any N with this N Nᵀ is valid. A triangular one saves nearly half of the products of the sweep.
        root, inside = self.nystrom.root, self.mask.unsqueeze(-1)
        N = torch.linalg.qr(root.lift(Q).mT, mode="r").R.mT
        a = root.lift(self.regression.coefficients)
        return SweepFactors(self.rows, self.mask, torch.where(inside, N, 0.0), torch.where(inside, a, 0.0), lower=False)

    def grown(self, points: Points, new: PickMask, rows: Tensor, sparse: bool) -> Factors | None:
        """The factors after new points were added, in O(m²) each. None if the factors must be recomputed, for instance because
        a dictionary grows by several points, or not in every batch row."""
        # The dictionary stays the same; only the features of the new points are added.
        if sparse or isinstance(self.embedding, FiniteEmbedding):
            z = self.embedding(points.double()).detach()
            return Factors(self.rows, self.mask, self.embedding, _placed(self.features, z, rows), self.regression)
        if self.nystrom.root.pseudo is not None or self.regression.graded is not None:
            return None
        if new.shape[-1] != 1 or not bool(new.all()):
            return None
        placed = rows
        if rows.device != self.rows.device:
            rows = to_device(self.rows.device, rows)[0]
        x = points[..., :1, :].double()
        z = self.embedding(x).detach()
        embedding, kept = self.nystrom.append(x.squeeze(-2))
        if embedding.mask is None:
            return None
        last = torch.where(kept[..., None, None], embedding.root.factor[..., -1:, -1:], 0.0)
        column = torch.cat([z, last], dim=-2)
        features = _placed(nn.functional.pad(self.features, (0, 0, 0, 1)), column, placed)
        grown_rows, mask = torch.cat([self.rows, rows], dim=-1), torch.cat([self.mask, kept.unsqueeze(-1)], dim=-1)
        return Factors(grown_rows, mask, embedding, features, self.regression.detached().grow_())


class Behind(NamedTuple):
    """Factors of finite features on a device, and the pulls that are not yet added to them. Adding a pull takes forty device
    operations, which are unnecessary as long as the arms are updated by the same pulls (see `FromFeatures`).

    Attributes:
        fit: The factors.
        points: Number of distinct points, in every batch row, whose features the factors hold.
        pulls: Rows (−1 where padded), counts and sums of rewards, `batch_shape x p` each, on the host.
    """

    fit: Factors
    points: int
    pulls: tuple[tuple[Tensor, Tensor, Tensor], ...]

    def with_pulls(self, rows: Tensor, counts: Tensor, sums: Tensor) -> Behind:
        """The same factors with further pulls waiting."""
        return Behind(self.fit, self.points, (*self.pulls, (rows, counts, sums)))

    def caught_up(self, statistics: Statistics, targets_of: Callable[[Tensor, Tensor], Tensor]) -> Factors:
        """Factors of all pulls. O(k m²) for k pulls, or O(k m² + m³)."""
        fit, first = self.fit, self.points
        fresh = fit.embedding(statistics.points[..., first:, :]).detach()
        fresh = torch.where(statistics.mask[..., first:].unsqueeze(-2), fresh, 0.0)
        Z_mu = torch.cat([fit.features[..., :first], fresh], dim=-1)
        if not self.pulls:
            return replace(fit, features=Z_mu)
        rows, counts, sums = (torch.cat(parts, dim=-1) for parts in zip(*self.pulls, strict=True))
        kept = rows >= 0
        slot, counts, sums = to_device(
            Z_mu.device, rows.clamp_min(0), torch.where(kept, counts, 0.0), torch.where(kept, sums, 0.0)
        )
        Z_mp = Z_mu.gather(-1, slot.unsqueeze(-2).expand(*Z_mu.shape[:-1], -1))
        # A copy, because a snapshot may hold these factors.
        regression = fit.regression.detached().update_(Z_mp.mT, counts, targets_of(counts, sums))
        return replace(fit, features=Z_mu, regression=regression)


class Dictionary(NamedTuple):
    """The dictionary of a sparse posterior whose factors are not needed as tensors yet.

    Attributes:
        kernel: Kernel of the posterior, stored by reference.
        regularization: λ.
        points: `batch_shape x u x d`, the distinct points.
        rows, mask: `batch_shape x m`, as in `Factors`.
    """

    kernel: gpytorch.kernels.Kernel
    regularization: float
    points: Tensor
    rows: Tensor
    mask: Tensor

    def embedding(self, factor: Tensor) -> Nystrom:
        """The embedding, given the Cholesky factor of the kernel matrix."""
        rows, mask = self.rows, self.mask
        points = self.points.gather(-2, rows.unsqueeze(-1).expand(*rows.shape, self.points.shape[-1]))
        root = InverseRoot(factor, None, mask.new_zeros(mask.shape[:-1]))
        return Nystrom.of(self.kernel, points, mask, _RESIDUAL_TOLERANCE * self.regularization, root)


class SmallFactors(NamedTuple):
    """Factors of one batch row with a small dictionary, computed by one compiled call on the host. They are converted to
    tensors only when they are read for something other than a sweep: BKB redraws its dictionary at every pull, and needs the
    sweep alone.

    Attributes:
        dictionary: Of one batch row.
        arrays: Results of `linalg.compiled.factorise` from U on.
        log_det: log det V.
    """

    dictionary: Dictionary
    arrays: list[Any]
    log_det: float

    @staticmethod
    def of(dictionary: Dictionary, weights: Tensor, targets: Rect, K_mu: Tensor) -> SmallFactors | None:
        """Factorise on the host, wherever the arms are. None unless the problem is small, all pivots exceed rounding errors and
        the weights are even."""
        from torchbandits.linalg.compiled import COMPILED, factorise  # noqa: PLC0415 - numba takes half a second to load

        m, u = K_mu.shape[-2:]
        small = K_mu.dim() == 2 and m > 0 and m * m * (u + m) <= _SMALL
        if not COMPILED or not small or K_mu.dtype != torch.float64:
            return None
        arrays = [x.numpy() for x in to_host(K_mu, dictionary.rows, weights.contiguous(), targets)]
        lam = dictionary.regularization
        floor = _RESIDUAL_TOLERANCE * lam
        good, log_det, *found = factorise(arrays[0], arrays[1], arrays[2], arrays[3], lam, floor, MOST_UNEVEN)
        return SmallFactors(dictionary, found, log_det) if good else None

    def factors(self) -> Factors:
        """The factors as tensors on the device of the points."""
        dictionary, rows = self.dictionary, self.dictionary.rows
        tensors = [*map(torch.from_numpy, self.arrays), torch.tensor(self.log_det, dtype=torch.float64)]
        U, Z, V, W, J, moment, w, N, a, volume = tensors if rows.device.type == "cpu" else to_device(rows.device, *tensors)
        regression = Regression.of(Precision.of(V, W.mT, J, volume), moment, w, dictionary.regularization)
        return Factors(rows, dictionary.mask, dictionary.embedding(U.mT), Z, regression, (N, a), whole=True)

    def sweep(self) -> SweepFactors:
        """N and a of a sweep, on the host."""
        N, a = map(torch.from_numpy, self.arrays[-2:])
        return SweepFactors(self.dictionary.rows, self.dictionary.mask, N, a, lower=True)


def where_frozen(frozen: bool | Tensor, c: Tensor, exact: Tensor) -> Tensor:
    """Covariances `batch_shape x n x n'`: `c` in batch rows whose dictionary is frozen (all, or `batch_shape`), else
    `exact`."""
    if isinstance(frozen, Tensor):
        return torch.where(frozen[..., None, None], c, exact)
    return c if frozen else exact


class FactorsInOne(NamedTuple):
    """Factors of several batch rows on a device, in few operations, after which the host waits once. As with `SmallFactors` a
    sweep needs only some of them.

    Attributes:
        dictionary: Of all batch rows.
        told: `batch_shape x u`, True in places that hold a distinct point.
        root: `batch_shape x m x m`, Cholesky factor of the kernel matrix.
        features: `batch_shape x m x u`.
        V, factor: `batch_shape x m x m`, V and its Cholesky factor.
        moment, coefficients: `batch_shape x m x c`.
        explained: `batch_shape x m x (c + m)`, a and N of a sweep.

    Where the dictionary is padded, all but `explained` are not masked, and roots are huge; see `factors`.
    """

    dictionary: Dictionary
    told: Tensor
    root: Tensor
    features: Tensor
    V: Tensor
    factor: Tensor
    moment: Tensor
    coefficients: Tensor
    explained: Tensor

    @staticmethod
    def of(
        dictionary: Dictionary, statistics: Statistics, targets: Rect, K_mu: Tensor, padding: Tensor | None = None
    ) -> FactorsInOne | None:
        """Factorise where all pivots exceed rounding and the weights are even; None otherwise. `padding` is the opposite of the
        dictionary's mask, if it is known. O(u m² + m³)."""
        regularization, rows, mask, m = dictionary.regularization, dictionary.rows, dictionary.mask, K_mu.shape[-2]
        K_mu = K_mu.double()
        K_mm = K_mu.gather(-1, rows.unsqueeze(-2).expand(*K_mu.shape[:-1], m))
        # Padding, which comes last, is a point of nearly infinite variance: its weights are 0 to rounding, and nothing else has
        # to be masked. Points that are padding have no weight.
        diagonal = K_mm.diagonal(dim1=-2, dim2=-1).masked_fill_(~mask if padding is None else padding, _NO_POINT)
        root, bad = torch.linalg.cholesky_ex(K_mm)
        Z = solve_lower(root, K_mu)
        # Z N Zᵀ and the moments are one product.
        V, moment = (Z @ torch.cat([(Z * statistics.weights.unsqueeze(-2)).mT, targets], dim=-1)).split(
            [m, targets.shape[-1]], dim=-1
        )
        V.diagonal(dim1=-2, dim2=-1).add_(regularization)
        factor, worse = torch.linalg.cholesky_ex(V)
        w = torch.cholesky_solve(moment, factor)
        # I/λ − V⁻¹ = Q Qᵀ, see `shrinkage_root`; padded coordinates, where it is 0, have any Q. With β = 0 nothing is added.
        L = factor.reshape(-1, m, m)
        inner = torch.baddbmm(L, L.mT, L, beta=0, alpha=1 / regularization).reshape(factor.shape)
        inner.diagonal(dim1=-2, dim2=-1).add_(mask, alpha=-1)
        inner, worst = torch.linalg.cholesky_ex(inner)
        Q = torch.linalg.solve_triangular(factor.mT, inner, upper=True)
        explained = torch.linalg.solve_triangular(root.mT, torch.cat([w, Q], dim=-1), upper=True)
        pivots = torch.cat([diagonal, root.diagonal(dim1=-2, dim2=-1), inner.diagonal(dim1=-2, dim2=-1)], dim=-1)
        pivots, *failed = to_host(pivots, bad, worse, worst)
        diagonal, first, last = pivots.split(m, dim=-1)
        diagonal = diagonal.masked_fill(diagonal == _NO_POINT, 0.0)
        rounding = diagonal.amax(dim=-1) * max(64, m) * torch.finfo(torch.float64).eps
        least = rounding.clamp_min(_RESIDUAL_TOLERANCE * regularization)
        # A NaN anywhere is one of a pivot of the last factor, or of the kernel matrix, and fails the comparison.
        apart = torch.minimum(first.square().amin(dim=-1) - least, last.amin(dim=-1)) > 0
        if not bool(apart.all()) or any(bool(one.any()) for one in failed):
            return None
        return FactorsInOne(dictionary, statistics.mask, root, Z, V, factor, moment, w, explained)

    def factors(self) -> Factors:
        """All factors, with the identity (times λ in V) where padded."""
        dictionary, mask = self.dictionary, self.dictionary.mask
        eye = torch.eye(mask.shape[-1], dtype=torch.float64, device=mask.device)
        line, whole, lam = mask.unsqueeze(-1), mask.unsqueeze(-1) & mask.unsqueeze(-2), dictionary.regularization
        root, V, factor = (
            torch.where(whole, x, eye * one) for x, one in ((self.root, 1.0), (self.V, lam), (self.factor, lam**0.5))
        )
        Z = torch.where(line & self.told.unsqueeze(-2), self.features, 0.0)
        moment, w = torch.where(line, self.moment, 0.0), torch.where(line, self.coefficients, 0.0)
        log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        precision = Precision.of(V, factor, solve_lower(factor, eye).mT, log_det)
        return Factors(dictionary.rows, mask, dictionary.embedding(root), Z, Regression.of(precision, moment, w, lam))

    def sweep(self) -> SweepFactors:
        """a and N of a sweep."""
        c = self.moment.shape[-1]
        dictionary, N, a = self.dictionary, self.explained[..., c:], self.explained[..., :c]
        return SweepFactors(dictionary.rows, dictionary.mask, N, a, lower=None, joined=self.explained)


def _features(embedding: Nystrom, K_mu: Rect, mask: Tensor, told: Tensor) -> Tensor:
    """z of the distinct points, `batch_shape x m x u`, given the masks of the dictionary (`batch_shape x m`) and of the
    points."""
    whole = (mask == told).all(dim=-1) if mask.shape == told.shape else told.new_zeros(told.shape[:-1])
    if not bool(whole.any()):
        return embedding.root.embed(K_mu)
    # The dictionary consists of all points in order, whose own features are exact.
    exact = torch.where(told.unsqueeze(-2), embedding.root.own(), 0.0)
    return exact if bool(whole.all()) else torch.where(whole[..., None, None], exact, embedding.root.embed(K_mu))


def _placed(features: Rect, columns: Rect, rows: Tensor) -> Tensor:
    """Features (`batch_shape x m x u`) with the columns of new points at their rows (`batch_shape x p`, −1 for none), which may
    be on the host. Batch rows may append at different places."""
    spare = max(int(rows.max()) + 1, features.shape[-1])
    grown = nn.functional.pad(features, (0, spare + 1 - features.shape[-1]))
    slot = torch.where(rows >= 0, rows, spare)
    if slot.device != columns.device:
        slot = to_device(columns.device, slot)[0]
    return grown.scatter(-1, slot.unsqueeze(-2).expand(*columns.shape[:-1], -1), columns)[..., :-1]
