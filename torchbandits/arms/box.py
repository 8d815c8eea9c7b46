"""A box as a domain: its arms are the points that were picked so far, and nothing is tabulated."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.arms.directions import Leaders
from torchbandits.arms.rows import ArmRows, Summed
from torchbandits.buffered import Buffered
from torchbandits.embeddings import Spectrum
from torchbandits.errors import ArgumentError, not_finite
from torchbandits.kernels import kernel_diagonal
from torchbandits.linalg import sobol_points
from torchbandits.posteriors import Conditioning, GaussianProcess, Statistics
from torchbandits.sources.duplicates import first_occurrence
from torchbandits.types import PickMask, Picks, Points

# Number of Sobol points over which the largest k(x, x) is searched.
_LOOKED_AT = 1024
# Largest number of features for which the corners of the box are searched too.
_CORNERS = 10


class Box(Buffered):
    r"""A box with the interface of an arm table: means and leverages of the points found so far are computed on request.

    Arm 0 is the centre, whether it was pulled or not. All other arms are points that were picked. The slot of an arm that was
    never pulled is reused for a later one.

    Args:
        rows: Growing arms, and the row of the statistics of each.
        posterior: The posterior, or None for policies without one.
        corners: `2 x d` or `batch_shape x 2 x d`, lower corner first, float64.

    Buffers: `corners` `batch_shape x 2 x d`; `kappa2` `batch_shape`, the largest k(x, x) in the box under the current kernel.
    """

    corners: Tensor
    kappa2: Tensor

    def __init__(self, rows: ArmRows, posterior: GaussianProcess | None, corners: Tensor) -> None:
        super().__init__()
        # In a tuple nn.Module does not see them; the policy's state registers them.
        self._owners = (rows, posterior)
        self.register_buffer("corners", corners.expand(*rows.batch_shape, -1, -1).clone())
        self.register_buffer("kappa2", torch.ones(rows.batch_shape, dtype=torch.float64))
        if posterior is not None:
            self.renew_()

    @staticmethod
    def centre(corners: Tensor, batch_shape: torch.Size) -> ArmRows:
        """Growing arms whose first arm is the centre."""
        centre = torch.lerp(corners[..., :1, :], corners[..., 1:, :], 0.5)
        return ArmRows(centre.expand(*batch_shape, -1, -1).clone(), batch_shape, growing=True)

    @property
    def rows(self) -> ArmRows:
        """The arms found so far, and their rows."""
        return self._owners[0]

    @property
    def posterior(self) -> GaussianProcess:
        """The posterior, for a policy that has one."""
        assert self._owners[1] is not None
        return self._owners[1]

    def places(self, points: Points, kept: PickMask, waiting: Picks) -> Picks:
        """Arm indices of points (`batch_shape x p x d`), existing or to be assigned by `find_`; −1 where not kept.

        New points reuse the slots of arms that were never pulled and are not pending, except the slot of the centre. Abandoned
        picks therefore do not accumulate.

        Args:
            points: In the box.
            kept: `batch_shape x p`.
            waiting: `batch_shape x w`, pending arms, −1 where padded.

        Cost O((A + p) (d + log(A + p))).
        """
        rows, A, p = self.rows, self.rows.num_arms, points.shape[-2]
        arms = torch.cat([rows.arms, torch.where(kept.unsqueeze(-1), points.to(rows.arms), rows.arms[..., :1, :])], dim=-2)
        first = first_occurrence(arms)
        appended = torch.arange(A, A + p, device=points.device).expand(kept.shape)
        first = appended if first is None else first[..., A:]
        new = kept & (first == appended)
        spare = self._spare(torch.cat([waiting, torch.where(kept & (first < A), first, -1)], dim=-1))
        free, place = spare.sum(dim=-1, keepdim=True), new.long().cumsum(dim=-1) - 1
        # A stable sort puts the spare slots first.
        order = (~spare).byte().argsort(dim=-1, stable=True)
        further = self._found(rows).unsqueeze(-1) + place - free
        number = torch.where(place < free, order.gather(-1, place.clamp(0, A - 1)), further)
        index = torch.where(first < A, first, number.gather(-1, (first - A).clamp_min(0)))
        return torch.where(kept, index, -1)

    def find_(self, points: Points, index: Picks, statistics: Statistics) -> None:
        """Add points that are not arms yet at the given `places`. Points in the statistics already keep their pulls.

        Cost O((A + u) (d + log u)), including a copy of the buffers.
        """
        rows = self.rows
        held = rows.points(index.clamp_max(rows.num_arms - 1)) == points.to(rows.arms)
        new = (index >= self._found(rows).unsqueeze(-1)) | ((index >= 0) & ~held.all(dim=-1))
        if bool(new.any()):
            index = torch.where(new, index, -1)
            rows.put_(points, index)
            rows.adopt_(index, statistics)

    def found_(self, points: Points, waiting: Picks, statistics: Statistics) -> Picks:
        """Arm indices of points given by the user, `batch_shape x p`. Points that are not arms yet are added by `find_`.

        Raises:
            ArgumentError: If a point is not in the box.
        """
        inside = ((points >= self.corners[..., :1, :]) & (points <= self.corners[..., 1:, :])).all(dim=-1)
        if not bool(inside.all()):
            raise ArgumentError(f"the point {points[~inside][0].tolist()} is outside the box {self.corners.tolist()}.")
        index = self.places(points, torch.ones_like(points[..., 0], dtype=torch.bool), waiting)
        self.find_(points, index, statistics)
        return index

    @staticmethod
    def _found(rows: ArmRows) -> Tensor:
        """Number of arms of each batch row, `batch_shape`; later entries are padding, copies of arm 0."""
        assert rows.first is not None
        return (rows.first == torch.arange(rows.num_arms, device=rows.first.device)).sum(dim=-1)

    def _spare(self, used: Picks) -> Tensor:
        """Arms whose slot may be reused, `batch_shape x A`: not the centre, not pulled, not in `used` (−1 where padded)."""
        rows, A = self.rows, self.rows.num_arms
        assert rows.first is not None
        every_place = torch.arange(A, device=used.device)
        taken = torch.zeros(*rows.batch_shape, A + 1, dtype=torch.bool, device=used.device)
        taken = taken.scatter(-1, torch.where(used >= 0, used, A), True)[..., :-1]
        return (rows.first == every_place) & (every_place > 0) & (rows.row_of_arm < 0) & ~taken

    # ------------------------------------------------------------------ the interface of a table

    def mean_at(self, index: Picks) -> Tensor:
        """Posterior mean of arms, `batch_shape x p`, reward units; arbitrary where the index is −1. Cost O(p m), or
        O(p m (m + d)) if an arm was never pulled."""
        features = self._features(index)
        return self.posterior.reward_mean(self.posterior.fit().regression.mean(features))

    def row_mean(self) -> Tensor:
        """Posterior mean of the distinct pulled points, `batch_shape x u`, −∞ where padded. Cost O(u m)."""
        fit, statistics = self.posterior.fit(), self.posterior.statistics
        mean = self.posterior.reward_mean(fit.regression.mean(fit.features))
        return mean.masked_fill(~statistics.pulled, -torch.inf)

    def leverage_at(self, index: Picks) -> Tensor:
        """Leverage of arms given the observed rewards, `batch_shape x p`; arbitrary where the index is −1. Cost O(p m²)."""
        return self.posterior.leverage_of(self.rows.points(index).double(), self._features(index))

    def _features(self, index: Picks) -> Tensor:
        """Features z of arms, `batch_shape x m x p`; those of the statistics' rows are reused if all arms were pulled."""
        row = self.rows.row_of_arm.gather(-1, index.clamp_min(0))
        fit = self.posterior.fit()
        if not index.shape[-1] or bool(((row < 0) & (index >= 0)).any()):
            return fit.embedding(self.rows.points(index).double())
        slot = row.clamp_min(0).unsqueeze(-2).expand(*fit.features.shape[:-1], -1)
        return fit.features.gather(-1, slot)

    def pulled(self, summed: Summed, leaders: Leaders | None = None) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Leverages of pulled arms on the host (with no regression outputs), and their covariance on the scale of leverages
        before their rewards are learned, `batch_shape x p x p`."""
        leverage, points = self.leverage_at(summed.distinct).cpu(), self.rows.at(summed.slot).double()
        fit = self.posterior.fit()
        at_points = fit.at(points, self._features(summed.distinct))
        return (leverage, leverage[..., None, :0]), fit.covariance(at_points, at_points)

    def update_(
        self, slot: Picks, counts: Tensor, targets: Tensor, cross: Tensor, own: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Increase of log det(V/λ) by pulls of arms, `batch_shape`. The factors are dropped and recomputed from the sums, so
        that they do not depend on whether a run was saved and loaded."""
        self.posterior.invalidate_()
        return Conditioning.on(cross, counts.to(cross.device)).log_det

    def needs_sweep(self, rows: int = 0) -> bool:
        """Return False, because nothing is tabulated."""
        return False

    def sweep_(self) -> Box:
        """Do nothing, because nothing is tabulated."""
        return self

    def sweep_rows_(self, rows: Tensor) -> Box:
        """Do nothing, because nothing is tabulated."""
        return self

    @torch.no_grad()
    def renew_(self) -> Box:
        """Recompute the largest k(x, x) under the current kernel: for a stationary kernel its constant value, otherwise the
        maximum over Sobol points of the box and, for up to 10 features, its corners."""
        posterior, corners = self.posterior, self.corners
        d, shape = corners.shape[-1], self.rows.batch_shape
        points = corners[..., :1, :]
        if posterior.finite is not None or Spectrum.of(posterior.kernel) is None:
            unit = sobol_points(_LOOKED_AT, d, seed=0)
            if d <= _CORNERS:
                ends = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * d).reshape(-1, d)
                unit = torch.cat([ends, unit])
            points = torch.lerp(corners[..., :1, :], corners[..., 1:, :], unit.to(corners))
        finite = posterior.finite
        diagonal = kernel_diagonal(posterior.kernel, points) if finite is None else finite.diagonal(points)
        self.kappa2 = diagonal.double().amax(dim=-1).expand(shape).clone()
        return self

    def check_finite(self) -> None:
        """Raise `NumericalError` if the posterior is not finite."""
        regression = self.posterior.fit().regression
        good = torch.isfinite(regression.coefficients).all(dim=-1).all(dim=-1) & torch.isfinite(regression.precision.log_det)
        if not bool(good.all()):
            raise not_finite((~good).reshape(-1).nonzero().reshape(-1).tolist(), str(self.rows.source.dtype))
