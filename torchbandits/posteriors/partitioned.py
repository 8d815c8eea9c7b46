"""Independent Gaussian processes on the cells of a cover that splits where the data are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from torch import Tensor

from torchbandits.buffered import Buffered
from torchbandits.kernels import kernel_matrix
from torchbandits.posteriors.around import first_true, marginals_around
from torchbandits.posteriors.cells import (
    ARM,
    CELL,
    COORDS,
    DEVIATION,
    LEVEL,
    LIMIT,
    LOG_DET,
    MEAN,
    PULLS,
    SIZE,
    WEIGHT,
    Cells,
    Taken,
)
from torchbandits.posteriors.cover import Cover
from torchbandits.posteriors.domain import Domain
from torchbandits.posteriors.grouping import chunks, lines_of, sum_by
from torchbandits.posteriors.regression import Conditioning
from torchbandits.posteriors.statistics import Statistics
from torchbandits.types import ArrayLike, Marginals, PerPoint, Picks, Points


class PartitionedProcess(Buffered):
    r"""One exact Gaussian process per cell, on the pulls in that cell alone, tabulated on a finite arm set.

    A pull of arm j updates the cells that contain it, in O(P²) for a cell of P arms, whatever the number of pulls:

    .. math:: \tilde k = C_{\cdot j}, \quad C \leftarrow C - \frac{\tilde k \tilde k^T}{1 + \tilde k_j}, \quad
              \mu \leftarrow \mu + \frac{\tilde k (y - \mu_j)}{1 + \tilde k_j}, \quad
              \log\det \leftarrow \log\det + \log(1 + \tilde k_j)

    with C the leverage-scale joint posterior covariance of the cell's arms. A cell that is due splits, and its children are
    fitted to their own part of the data.

    Args:
        domain: Arms, cover and kernel.
        regularization: λ > 0, reward units squared.
        memory_budget: Bytes that the covariances may occupy.

    Raises:
        ArgumentError: If an arm lies outside the bounds, or the first cells do not fit the memory budget.

    Source: Janz, Burt & González 2020, section 4.
    """

    pending_points: Tensor
    pending: Tensor
    _grows = ("pending_points", "pending")

    def __init__(self, domain: Domain, regularization: float, memory_budget: int) -> None:
        super().__init__()
        self.domain, self.regularization = domain, float(regularization)
        device = domain.arms.device
        self.statistics = Statistics(domain.dim, domain.batch_shape, device)
        self.register_buffer("pending_points", self.statistics.points)
        self.register_buffer("pending", self.statistics.weights)
        rows = 1 if domain.shared else domain.rows
        self.cells = Cells(rows, domain.arms.shape[-2], domain.dim, memory_budget, device)
        with torch.no_grad():
            self._first_cells(rows)
            self.cells.repeat_(domain.rows // rows)

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of the posterior."""
        return self.domain.batch_shape

    @property
    def kernel(self) -> gpytorch.kernels.Kernel:
        """The kernel of all batch rows."""
        return self.domain.kernel

    @property
    def cover(self) -> Cover:
        """The cover of the box: the map to the unit cube, and the splitting rule of the cells."""
        return self.domain.cover

    # ------------------------------------------------------------------ observations

    @torch.no_grad()
    def condition_(self, index: Picks, counts: PerPoint, sums: PerPoint | None = None) -> PartitionedProcess:
        """Update every cell that contains one of the pulled arms. Without sums, only the standard deviations shrink.

        Args:
            index: `batch_shape x p`, distinct, −1 where padded; exact duplicates by their lowest index.
            counts: `batch_shape x p`.
            sums: `batch_shape x p`, sums of rewards. With sums, cells that are due split.

        Cost: O(P²) per cell that contains one of the arms, P the number of its arms.
        """
        cells, q, C = self.cells, index.shape[-1], self.cells.layout.shape[-1]
        row, pull, entry = cells.holding(index.reshape(self.domain.rows, q))
        if not row.numel():
            return self
        cell, weight = row * C + cells.members[CELL, row, entry], counts.reshape(self.domain.rows, q)[row, pull]
        total = None if sums is None else sums.reshape(self.domain.rows, q)[row, pull]
        single = q == 1 or row.shape[0] == 1
        touched, group = (cell, None) if single else torch.unique(cell, return_inverse=True)
        lines = None if group is None else lines_of(group, touched.shape[0])
        due = []
        for part in chunks(cells.flat("layout")[SIZE, touched]):
            taken = cells.take(touched[part])
            if lines is None:
                self._pull(taken, entry[part] - taken.start, weight[part], None if total is None else total[part])
            else:
                line = lines[part]
                at = torch.where(line >= 0, entry[line] - taken.start.unsqueeze(-1), 0)
                w = torch.where(line >= 0, weight[line], 0.0)
                self._pulls(taken, at, w, None if total is None else torch.where(line >= 0, total[line], 0.0))
            torch.mul(taken.block.diagonal(dim1=-2, dim2=-1), self.regularization, out=taken.numbers[DEVIATION])
            taken.numbers[DEVIATION].clamp_min_(0).sqrt_()
            cells.put_(taken)
            due.append(taken.cells[taken.facts[PULLS] + 1 > taken.facts[LIMIT]])
        if total is not None and any(d.numel() for d in due):
            self._split(torch.cat(due).sort().values)
        return self

    def _pull(self, taken: Taken, at: Tensor, weight: Tensor, total: Tensor | None) -> None:
        """Rank-one update for one arm in each of `k` cells. `at`: `k`, its position; `weight`, `total`: `k`."""
        place = at.unsqueeze(-1)
        column = taken.block.gather(1, place.unsqueeze(-1).expand(-1, -1, taken.block.shape[-1]))
        s = weight * column[:, 0].gather(1, place).squeeze(-1).clamp_min_(0)
        gain = column / (1 + s)[:, None, None]
        if total is not None:
            numbers, facts = taken.numbers, taken.facts
            innovation = total.unsqueeze(-1) - weight.unsqueeze(-1) * numbers[MEAN].gather(1, place)
            numbers[MEAN].addcmul_(gain[:, 0], innovation)
            numbers[WEIGHT:].scatter_add_(2, place.expand(2, -1, -1), torch.stack([weight, total]).unsqueeze(-1))
            facts[PULLS] += weight
            facts[LOG_DET] += torch.log1p(s)
        taken.block.baddbmm_(column.mT, gain * weight[:, None, None], alpha=-1)

    def _pulls(self, taken: Taken, at: Tensor, weight: Tensor, total: Tensor | None) -> None:
        """Update for several arms in each of `k` cells, `k x p` each; positions of weight 0 change nothing."""
        cross = taken.block.gather(1, at.unsqueeze(-1).expand(*at.shape, taken.block.shape[-1]))
        between_pulled = cross.gather(2, at.unsqueeze(-2).expand(*at.shape, at.shape[-1]))
        conditioning = Conditioning.on(between_pulled, weight)
        G = conditioning.directions(cross)
        if total is not None:
            numbers, facts = taken.numbers, taken.facts
            step = conditioning.innovations(total.unsqueeze(-1), numbers[MEAN].gather(1, at).unsqueeze(-1))
            numbers[MEAN] += (G.mT @ step).squeeze(-1)
            numbers[WEIGHT:].scatter_add_(2, at.expand(2, *at.shape), torch.stack([weight, total]))
            facts[PULLS] += weight.sum(dim=-1)
            facts[LOG_DET] += conditioning.log_det
        taken.block.baddbmm_(G.mT, G, alpha=-1)

    def _split(self, due: Tensor) -> None:
        """Split cells (`k`, in order) and their children until none is due, and fit the new cells."""
        cells = self.cells
        entries, inside = cells.flat_entries(due)
        owner, entry = inside.nonzero(as_tuple=True)[0], entries[inside]
        layout, row = cells.flat("layout")[:, due], due // cells.layout.shape[-1]
        arm, numbers = cells.flat("members")[ARM, entry], cells.flat("numbers")[:, entry]
        scaled = self.cover.scaled(self.domain.points(row[owner], arm), row[owner])
        coords = layout[COORDS:, owner].T
        source, group, found = self.cover.refine(owner, layout[LEVEL, owner], coords, scaled, numbers[WEIGHT])
        cells.drop_(due)
        room = torch.cat([(due % cells.layout.shape[-1]).unsqueeze(0), layout[:LEVEL]])
        self._add(row[found[:, 0]], room, group, found, arm[source], numbers[:, source])

    def _first_cells(self, rows: int) -> None:
        """Make the first grid on the arms of each batch row, without data."""
        row, arm = self.domain.distinct().expand(rows, -1).nonzero(as_tuple=True)
        scaled = self.cover.scaled(self.domain.points(row, arm), row)
        point, coords = self.cover.first(scaled)
        none = self.pending.new_zeros(point.shape[0])
        source, group, found = self.cover.refine(row[point], torch.zeros_like(point), coords, scaled[point], none)
        arm = arm[point[source]]
        self._add(found[:, 0], row.new_zeros(4, rows), group, found, arm, none.new_zeros(4, arm.shape[0]))

    def _add(self, row: Tensor, room: Tensor, group: Tensor, found: Tensor, arm: Tensor, numbers: Tensor) -> None:
        pulls = sum_by(numbers[WEIGHT], group, found.shape[0])
        facts = torch.stack([pulls, torch.zeros_like(pulls), self.cover.limit(found[:, 1])])
        self._fit(self.cells.add_(row, found[:, 0], room, facts, found[:, 1:].T, group, arm, numbers))

    def _fit(self, new: Tensor) -> None:
        """Fit cells (`k`) to the counts and sums of their entries. Cost O(P² (u + d)) per cell with u pulled arms."""
        cells, lam = self.cells, self.regularization
        for part in chunks(cells.flat("layout")[SIZE, new]):
            entries, inside = cells.flat_entries(new[part])
            row = new[part] // cells.layout.shape[-1]
            x = self.domain.points(row.unsqueeze(-1), cells.flat("members")[ARM, entries].clamp_min(0))
            both = inside.unsqueeze(-1) & inside.unsqueeze(-2)
            C = torch.where(both, kernel_matrix(self.domain.kernel_of(row), x, x) / lam, 0.0)
            _, _, weight, total = cells.flat("numbers")[:, entries]
            pulled = first_true(weight > 0)
            weight, sums = weight.gather(1, pulled), total.gather(1, pulled).unsqueeze(-1)
            cross = C.gather(1, pulled.unsqueeze(-1).expand(*pulled.shape, C.shape[-1]))
            between_pulled = cross.gather(2, pulled.unsqueeze(-2).expand(*pulled.shape, pulled.shape[-1]))
            conditioning = Conditioning.on(between_pulled, weight)
            G = conditioning.directions(cross)
            # Starting from the prior, all pulls are one conditioning: C ← C − GᵀG, with mean 0 before.
            mean = (G.mT @ conditioning.innovations(sums, torch.zeros_like(sums))).squeeze(-1)
            C = C.baddbmm_(G.mT, G, alpha=-1)
            deviation = (lam * C.diagonal(dim1=-2, dim2=-1)).clamp_min_(0).sqrt_()
            cells.write_fit_(new[part], torch.stack([mean, deviation]), conditioning.log_det, C)

    # ------------------------------------------------------------------ predictions

    def arm_mean(self) -> Tensor:
        """Posterior mean of every arm in its cell of smallest variance, `batch_shape x A`, reward units. Cost O(A)."""
        return self.cells.numbers[MEAN].gather(1, self._smallest()).reshape(*self.batch_shape, -1)

    def arm_leverage(self) -> Tensor:
        """Posterior variance / λ of every arm in its cell of smallest variance, `batch_shape x A`. Cost O(A)."""
        deviation = self.cells.numbers[DEVIATION].gather(1, self._smallest())
        return (deviation.square() / self.regularization).reshape(*self.batch_shape, -1)

    def _smallest(self) -> Tensor:
        """The entry of smallest deviation of every arm, `rows x A`."""
        places, deviation = self.cells.places, self.cells.numbers[DEVIATION]
        if (first := self.domain.first) is not None:
            places = places.gather(1, first.expand(places.shape[:2]).unsqueeze(-1).expand(places.shape))
        if places.shape[-1] > 1:
            each = deviation.gather(1, places.clamp_min(0).flatten(1)).view(places.shape)
            places = places.gather(-1, torch.where(places >= 0, each, torch.inf).argmin(dim=-1, keepdim=True))
        return places.squeeze(-1)

    def forward(self, points: ArrayLike) -> Marginals:
        """Posterior mean and variance of f at points of the box, each in the containing cell of smallest variance.

        Args:
            points: `batch_shape x n x d`, in the units of the arms; they need not be arms.

        Returns:
            `Marginals`, `batch_shape x n`. Differentiable in `points`. Pending pulls shrink the variance only. If no cell with
            arms contains a point, the prior is returned.

        Raises:
            ArgumentError: If a point lies outside the box.

        Cost: O(n P (P + d)), P the largest number of pulled arms in a cell.
        """
        x = self.statistics.given(points)
        mean, leverage = marginals_around(
            self.domain, self.cells, self.regularization, self._checked(x), self.pending_points, self.pending
        )
        return Marginals(mean.to(x.dtype), (self.regularization * leverage).to(x.dtype))

    def leverage(self, points: Points) -> Tensor:
        """Variance / λ at points of the box given the observed rewards, `batch_shape x n`; pending pulls are ignored."""
        x, lam, none = self._checked(points), self.regularization, self.pending[..., :0]
        return marginals_around(self.domain, self.cells, lam, x, self.pending_points[..., :0, :], none)[1]

    def _checked(self, points: Any) -> Tensor:
        x = self.statistics.checked(points)
        return x.expand(*self.batch_shape, *x.shape[-2:])

    # ------------------------------------------------------------------ dictionary, pending pulls and saved states

    @property
    def dictionary_size(self) -> Tensor:
        """Number of distinct pulled points of each batch row, `batch_shape`; all of them are kept."""
        return self.statistics.num_rows

    def dictionary_rows(self) -> tuple[Tensor, Tensor]:
        """Rows of the statistics that are kept, `batch_shape x u` (0 where padded), and their mask, False where padded."""
        mask = self.statistics.mask
        return torch.arange(mask.shape[-1], device=mask.device).expand_as(mask) * mask, mask

    def set_pending_(self, points: Points, counts: PerPoint) -> PartitionedProcess:
        """Hallucinate pulls (`batch_shape x p x d` and `batch_shape x p`) whose rewards are unknown, in `forward` only."""
        self.pending_points, self.pending = points.double(), counts.double()
        return self

    def snapshot(self) -> Callable[[], None]:
        """Function that restores the current cells, valid while it is the latest snapshot. The caller must restore the other
        buffers."""
        return self.cells.snapshot()

    def _apply(self, fn: Any, recurse: bool = True) -> PartitionedProcess:
        # Numbers stay float64 whatever dtype is requested; only the device of `.to()` is used.
        device = fn(torch.zeros((), dtype=torch.float64, device=self.pending.device)).device
        super()._apply(lambda tensor: tensor.to(device), recurse)
        return self
