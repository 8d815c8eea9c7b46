"""The factors of a posterior, derived from its statistics: dropped when those change, never saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from torchbandits.embeddings import FiniteEmbedding, Nystrom, kernel_matrix
from torchbandits.linalg import Precision, shrinkage_root
from torchbandits.posteriors.regression import Regression
from torchbandits.posteriors.sketch import Sketch
from torchbandits.posteriors.statistics import Statistics
from torchbandits.types import PickMask, Points, Rect

# Under a sparse posterior, a dictionary point whose residual k(x,x) − |z|² is below this part of λ is left out: the features of
# points outside the dictionary, through smaller pivots, would be noise. An exact posterior has no points outside.
_RESIDUAL_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Factors:
    """An embedding on the dictionary and the regression on the distinct points.

    Attributes:
        rows: `batch_shape x m`, the dictionary's rows of the statistics, 0 where padded; empty for finite features.
        mask: `batch_shape x m`, False where padded.
        embedding: Features of the dictionary, or finite ones.
        features: `batch_shape x m x u`, z of the distinct points.
        regression: V and w.
    """

    rows: Tensor
    mask: Tensor
    embedding: Nystrom | FiniteEmbedding
    features: Tensor
    regression: Regression

    @staticmethod
    def of(
        kernel: gpytorch.kernels.Kernel,
        regularization: float,
        statistics: Statistics,
        targets: Rect,
        dictionary: tuple[Tensor, Tensor],
        gram: Callable[[Tensor], Tensor] | None,
        sparse: bool,
    ) -> Factors:
        """Factorise. `dictionary` is rows and mask; `gram` returns kernel values between rows and all rows. O(u m² + m³)."""
        rows, mask = dictionary
        points = statistics.at(rows)
        K_mu = kernel_matrix(kernel, points, statistics.points) if gram is None else gram(rows)
        K_mu = torch.where(mask.unsqueeze(-1) & statistics.mask.unsqueeze(-2), K_mu.double(), 0.0)
        K_mm = K_mu.gather(-1, rows.unsqueeze(-2).expand(*K_mu.shape[:-1], rows.shape[-1]))
        embedding = Nystrom(kernel, points, mask, floor=sparse * _RESIDUAL_TOLERANCE * regularization, gram=K_mm)
        Z_mu = _features(embedding, K_mu, mask, statistics.mask)
        return Factors(rows, mask, embedding, Z_mu, Regression(Z_mu.mT, statistics.weights, targets, regularization))

    @property
    def nystrom(self) -> Nystrom:
        """The embedding, of a posterior that has a dictionary."""
        assert isinstance(self.embedding, Nystrom)
        return self.embedding

    @staticmethod
    def of_features(
        embedding: FiniteEmbedding, regularization: float, statistics: Statistics, targets: Rect, sketch: Sketch | None
    ) -> Factors:
        """Factorise under finite features. O(u m² + m³), or O(u m + s² m) with s rows of a sketch for V."""
        Z_mu = torch.where(statistics.mask.unsqueeze(-2), embedding(statistics.points), 0.0)
        nothing = torch.zeros_like(statistics.mask[..., :0], dtype=torch.int64)
        sketched = None if sketch is None else sketch.precision(regularization)
        regression = Regression(Z_mu.mT, statistics.weights, targets, regularization, sketched)
        return Factors(nothing, nothing.bool(), embedding, Z_mu, regression)

    def sweep(self, weights: Tensor, regularization: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Dictionary rows, their mask, N and a, as `GaussianProcess.sweep_factors` says, for `batch_shape x u` weights."""
        pulled = (self.features * weights.clamp_min(0).sqrt().unsqueeze(-2)).mT
        padding, precision = None if bool(self.mask.all()) else ~self.mask, self.regression.precision
        assert isinstance(precision, Precision)
        if precision.basis is None:
            Q = shrinkage_root(precision.current_factor, pulled, regularization, padding)
        else:
            pulled = pulled @ precision.basis
            Q = precision.basis @ shrinkage_root(precision.current_factor, pulled, regularization, graded=True)
        # Any N with this N Nᵀ will do: the triangular one saves nearly half of the sweep's products.
        root, inside = self.nystrom.root, self.mask.unsqueeze(-1)
        N = torch.linalg.qr(root.lift(Q).mT, mode="r").R.mT
        a = root.lift(self.regression.coefficients)
        return self.rows, self.mask, torch.where(inside, N, 0.0), torch.where(inside, a, 0.0)

    def grown(self, points: Points, new: PickMask, rows: Tensor, sparse: bool) -> Factors | None:
        """The factors after new points, in O(m²) each; None where a refit is due (a dictionary that grows by several points, or
        not in every row)."""
        if sparse or isinstance(self.embedding, FiniteEmbedding):  # the dictionary stays
            z = self.embedding(points.double()).detach()
            return Factors(self.rows, self.mask, self.embedding, _placed(self.features, z, rows), self.regression)
        if self.nystrom.root.pseudo is not None or self.regression.graded is not None:
            return None
        if new.shape[-1] != 1 or not bool(new.all()):
            return None
        x = points[..., :1, :].double()
        z = self.embedding(x).detach()
        embedding, kept = self.nystrom.append(x.squeeze(-2))
        if embedding.mask is None:
            return None
        own = torch.where(kept[..., None, None], embedding.root.factor[..., -1:, -1:], 0.0)
        column = torch.cat([z, own], dim=-2)
        features = _placed(torch.nn.functional.pad(self.features, (0, 0, 0, 1)), column, rows)
        grown_rows, mask = torch.cat([self.rows, rows], dim=-1), torch.cat([self.mask, kept.unsqueeze(-1)], dim=-1)
        return Factors(grown_rows, mask, embedding, features, self.regression.detached().grow_())


def _features(embedding: Nystrom, K_mu: Rect, mask: Tensor, told: Tensor) -> Tensor:
    """z of the distinct points, `batch_shape x m x u`, given which places hold one, `batch_shape x m` and `batch_shape x u`."""
    whole = (mask == told).all(dim=-1) if mask.shape == told.shape else told.new_zeros(told.shape[:-1])
    if not bool(whole.any()):
        return embedding.root.embed(K_mu)
    own = torch.where(told.unsqueeze(-2), embedding.root.own(), 0.0)  # the dictionary is all of them, in order
    return own if bool(whole.all()) else torch.where(whole[..., None, None], own, embedding.root.embed(K_mu))


def _placed(features: Rect, columns: Rect, rows: Tensor) -> Tensor:
    """Features (`batch_shape x m x u`) with the columns of new points at their rows (`batch_shape x p`, −1 for none): the rows
    of a batch may append at different places."""
    spare = max(int(rows.max()) + 1, features.shape[-1])
    grown = torch.nn.functional.pad(features, (0, spare + 1 - features.shape[-1]))
    slot = torch.where(rows >= 0, rows, spare).unsqueeze(-2).expand(*columns.shape[:-1], -1)
    return grown.scatter(-1, slot, columns)[..., :-1]
