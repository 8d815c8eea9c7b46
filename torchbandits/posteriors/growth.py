"""Growth of the dictionary of a sparse posterior by the points just told, without a new factorisation."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchbandits.embeddings import Nystrom
from torchbandits.linalg import InverseRoot, Precision, cholesky, solve_lower, uneven
from torchbandits.posteriors.factors import Factors
from torchbandits.posteriors.regression import Conditioning, Regression
from torchbandits.posteriors.statistics import Statistics
from torchbandits.types import PerPoint, PickMask, Picks, Rect, Square


class Growth(NamedTuple):
    r"""Factors after pulls whose new points have joined the dictionary, and the change of the leverage of any point.

    With S the old dictionary and L Lᵀ its kernel matrix, q new points add q features,

    .. math:: z_q(x) = C^{-1}\big(k_q(x) - B^T z_S(x)\big), \quad B = L^{-1} K_{Sq}, \quad C C^T = K_{qq} - B^T B,

    and V is bordered by their second moments b = Z_S N Z_qᵀ and D = Z_q N Z_qᵀ + λI over the earlier pulls. With
    E Eᵀ = D − bᵀV⁻¹b, a leverage changes by

    .. math:: -|z_q(x)|^2/\lambda + \big|E^{-1}\big(z_q(x) - b^T V^{-1} z_S(x)\big)\big|^2,

    and then falls by the squared directions of the pulls, see `Conditioning`.

    Attributes:
        factors: The new factors.
        known: Number of old points.
        joined: `q`, rows of the points that joined the dictionary, the same in all batch rows.
        lost: `batch_shape x m x r`, weights of the dictionary's kernel columns: the squared products with the columns of a
            point are subtracted from its leverage.
        gained: `batch_shape x m x q`, weights whose squared products are added.
        coefficients: `batch_shape x m x c`, weights of the columns in the mean.
        in_features: `lost` and `gained` as weights of the features instead of the columns.
    """

    factors: Factors
    known: int
    joined: Picks
    lost: Rect
    gained: Rect
    coefficients: Rect
    in_features: tuple[Rect, Rect]

    @staticmethod
    def of(fit: Factors, told: Statistics, targets: Rect, before: PerPoint, rows: Picks, K_qu: Rect) -> Growth | None:
        """Add pulls to factors on the host. Cost O(p m (m + u)) per batch row.

        Args:
            fit: Factors before the pulls.
            told: Statistics after the pulls. The last q points are new in every batch row, and none is padding.
            targets: `batch_shape x u x c`, regression targets of all points.
            before: `batch_shape x (u - q)`, weights of the old points before the pulls.
            rows: `batch_shape x p`, the pulled rows, which include all new ones; -1 where padded.
            K_qu: `batch_shape x q x u`, kernel values between the new points and all points.

        Returns:
            The growth. A new point of a single batch row that the dictionary represents up to rounding does not join it. None
            if the factors must be computed anew, because weights are uneven or the kernel matrix is singular.
        """
        graded = fit.regression.graded is not None or uneven(told.weights)
        if graded or fit.nystrom.root.pseudo is not None or not isinstance(fit.regression.precision, Precision):
            return None
        bordered = _Bordered.of(fit, told, before, K_qu) if K_qu.shape[-2] else _Bordered.by_none(fit, fit.features)
        if bordered is None:
            return None
        Z, V, own, pulled = bordered.features, bordered.precision, bordered.own, rows.clamp_min(0)
        added = told.weights - pad(before, (0, told.size - before.shape[-1]))
        added = torch.where(rows >= 0, added.gather(-1, pulled), 0.0)
        Z_p = Z.gather(-1, pulled.unsqueeze(-2).expand(*Z.shape[:-1], -1))
        solved = V.solve(Z_p)
        lost = Conditioning.on(Z_p.mT @ solved, added).directions(solved.mT).mT
        V.update_(Z_p.mT, added)
        moment, lam = Z @ targets, fit.regression.regularization
        w, q = V.solve(moment), own.shape[-1]
        if q:
            prior = torch.eye(q, dtype=Z.dtype).mul_(lam**-0.5).expand(*Z.shape[:-2], q, q)
            lost = torch.cat([pad(prior, (0, 0, Z.shape[-2] - q, 0)), lost], dim=-1)
        weights = bordered.embedding.root.lift(torch.cat([lost, own, w], dim=-1))
        weights_lost, weights_gained, coefficients = weights.split([lost.shape[-1], q, w.shape[-1]], dim=-1)
        factors = replace(
            fit,
            rows=bordered.rows,
            mask=bordered.mask,
            embedding=bordered.embedding,
            features=Z,
            regression=Regression.of(V, moment, w, lam),
            explained=None,
        )
        return Growth(factors, before.shape[-1], bordered.joined, weights_lost, weights_gained, coefficients, (lost, own))

    @property
    def change(self) -> PerPoint:
        """Change of the leverages of the old points, `batch_shape x (u - q)`. Cost O(u m r)."""
        Z = self.factors.features[..., : self.known]
        lost, gained = ((weights.mT @ Z).square().sum(dim=-2) for weights in self.in_features)
        return gained - lost


class _Bordered(NamedTuple):
    """Factors over the earlier pulls, with the features of the points that join the dictionary.

    Attributes:
        rows, mask: `batch_shape x m`, those of the dictionary, with the points that joined it last.
        joined: `q`, rows of the latter.
        embedding: Features of this dictionary.
        features: `batch_shape x m x u`, those of all points.
        precision: V over the earlier pulls; may be updated.
        own: `batch_shape x m x q`, columns of the root of V⁻¹ that the new features add.
    """

    rows: Picks
    mask: PickMask
    joined: Picks
    embedding: Nystrom
    features: Rect
    precision: Precision
    own: Rect

    @staticmethod
    def by_none(fit: Factors, features: Rect) -> _Bordered:
        """The same dictionary."""
        precision, root, none = fit.regression.detached().precision, fit.nystrom.root.factor, torch.empty(0, dtype=torch.int64)
        assert isinstance(precision, Precision)
        # In the layout of a dictionary that grows, on which the last bits of products depend.
        precision.root, features = precision.root.contiguous(), features.contiguous()
        embedding = _grown(fit.nystrom, fit.nystrom.dictionary[..., :0, :], root.contiguous())
        return _Bordered(fit.rows, fit.mask, none, embedding, features, precision, features[..., :0])

    @staticmethod
    def of(fit: Factors, told: Statistics, before: PerPoint, K_qu: Rect) -> _Bordered | None:
        """The dictionary with new points; arguments and None as for `Growth.of`."""
        precision, root, lam = fit.regression.precision, fit.nystrom.root, fit.regression.regularization
        assert isinstance(precision, Precision)
        known, u, (m, q), shape = before.shape[-1], told.size, (fit.rows.shape[-1], K_qu.shape[-2]), fit.rows.shape[:-1]
        K_qm = K_qu.gather(-1, fit.rows.unsqueeze(-2).expand(*shape, q, m))
        B = solve_lower(root.factor, torch.where(fit.mask.unsqueeze(-2), K_qm, 0.0).mT)
        Z_S, residual = torch.cat([fit.features, B], dim=-1), K_qu[..., known:] - B.mT @ B
        least = (64 * torch.finfo(B.dtype).eps * K_qu[..., known:].diagonal(dim1=-2, dim2=-1)).clamp_min(fit.nystrom.floor)
        joins = torch.arange(q) if shape else _independent(residual, least)
        if not len(joins):
            return _Bordered.by_none(fit, Z_S)
        B, K_qu, residual = B[..., joins], K_qu[..., joins, :], residual[..., joins, :][..., joins]
        C, broken = cholesky(residual)
        if broken is not None or bool((C.diagonal(dim1=-2, dim2=-1).square() <= least[..., joins]).any()):
            return None
        q, new, eye = len(joins), joins + known, torch.eye(len(joins), dtype=C.dtype)
        # Points of the old dictionary have no part in the new features, and those of the new points are known exactly.
        slot = torch.where(fit.mask, fit.rows, u)
        inside = torch.zeros(*shape, u + 1, dtype=torch.bool).scatter_(-1, slot, True)[..., :u]
        Z_q = torch.where(inside.unsqueeze(-2), 0.0, solve_lower(C, K_qu - B.mT @ Z_S))
        Z_q[..., new] = C.mT
        weighted = Z_q[..., :known] * before.unsqueeze(-2)
        b, D = fit.features @ weighted.mT, Z_q[..., :known] @ weighted.mT + lam * eye
        solved = precision.solve(b)
        E, broken = cholesky(D - b.mT @ solved)
        if broken is not None:
            return None
        corner = solve_lower(E, eye.expand_as(E)).mT
        own = torch.cat([-solved @ corner, corner], dim=-2)
        V = torch.cat([torch.cat([precision.matrix, b], dim=-1), torch.cat([b.mT, D], dim=-1)], dim=-2)
        J = torch.cat([pad(precision.root, (0, 0, 0, q)), own], dim=-1)
        bordered = Precision.of(V, V, J, precision.log_det + 2 * E.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1))
        bordered.drop_factor_()
        factor = torch.cat([pad(root.factor, (0, q)), torch.cat([B.mT, C], dim=-1)], dim=-2)
        embedding = _grown(fit.nystrom, told.points[..., new, :], factor)
        rows = torch.cat([fit.rows, new.expand(*shape, q)], dim=-1)
        mask = torch.cat([fit.mask, torch.ones(*shape, q, dtype=torch.bool)], dim=-1)
        return _Bordered(rows, mask, new, embedding, torch.cat([Z_S, Z_q], dim=-2), bordered, own)


def _independent(residual: Square, least: PerPoint) -> Picks:
    """The points, in order, of which the points before them leave more than the least residual variance."""
    kept = []
    for place in range(len(residual)):
        if bool(residual[place, place] > least[place]):
            kept.append(place)
            column = residual[:, place]
            residual = residual - torch.outer(column, column) / column[place]
    return torch.tensor(kept, dtype=torch.int64)


def _grown(nystrom: Nystrom, points: Tensor, factor: Square) -> Nystrom:
    """The embedding of a dictionary with further points, whose kernel matrix has the given Cholesky factor."""
    assert nystrom.mask is not None
    dictionary = torch.cat([nystrom.dictionary, points], dim=-2)
    mask = torch.cat([nystrom.mask, torch.ones(points.shape[:-1], dtype=torch.bool)], dim=-1)
    return Nystrom.of(nystrom.kernel, dictionary, mask, nystrom.floor, InverseRoot(factor, None, nystrom.root.fallback))
