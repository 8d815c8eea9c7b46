"""Upper confidence bounds of independent Gaussian processes on a splitting cover. `pi_gp_ucb` returns this policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from torchbandits.arms import TIE, ArmRows, matches
from torchbandits.checks import (
    check_instance,
    check_kernel,
    check_kernel_on,
    check_norm_bound,
    check_regularization,
    check_whole,
    non_negative,
    positive,
)
from torchbandits.errors import NumericalError, ShapeError, UnsupportedError, require
from torchbandits.gradients import without_gradients
from torchbandits.kernels import kernel_diagonal
from torchbandits.policies.base import Policy
from torchbandits.policies.picking import first_picks, on_offer, room_for, with_first
from torchbandits.policies.state import PartitionedState
from torchbandits.posteriors import Domain, PartitionedProcess
from torchbandits.posteriors.cells import ARM, CELL, DEVIATION, MEAN, RUN, Cells
from torchbandits.starts import Start
from torchbandits.streams import copies_of
from torchbandits.types import Arms, Evidence, Pulls, Selection
from torchbandits.widths.base import check_delta, check_rows_of

Corners = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, repr=False)
class PartitionedUCB(Policy[PartitionedState]):
    """A policy that picks one arm per step, by the largest upper bound over cells. Each cell has its own posterior and width.

    Args:
        kernel: Any GPyTorch kernel; its batch shape becomes batch rows.
        nu: Smoothness of the kernel.
        horizon: T, the number of pulls to come.
        noise_std: Sub-Gaussian constant R of the noise, reward units.
        norm_bound: B, bound on the RKHS norm; one number, or one per batch row.
        delta: Failure probability of the bounds.
        box: Lower and upper corner of the box; None for the bounding box of the arms.
        regularization: λ.
        initial: First picks; None for the argmax of the prior.
        memory_budget: Bytes that covariances may take.
    """

    kernel: gpytorch.kernels.Kernel
    nu: float
    horizon: int
    noise_std: float
    norm_bound: float | Tensor
    delta: float
    box: Corners | None
    regularization: float
    initial: Start | None
    memory_budget: int

    def __post_init__(self) -> None:
        check_kernel(self.kernel)
        positive("nu", self.nu)
        check_whole("horizon", self.horizon)
        non_negative("noise_std", self.noise_std)
        check_norm_bound(self.norm_bound)
        check_delta(self.delta)
        check_regularization(self.regularization, default="1")
        check_instance("initial", self.initial, Start | None, "a torchbandits.starts.Start, such as starts.uniform(1), or None")
        # Bytes, at least 1, because every cell needs some.
        check_whole("memory_budget", self.memory_budget)

    # ------------------------------------------------------------------ the contract

    @property
    def most_picks(self) -> int | None:
        """Largest number of picks of one `select`: 1, or None (no limit) with `initial`, whose picks may be one batch."""
        return None if self.initial is not None else 1

    @without_gradients
    def init(self, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size) -> PartitionedState:
        """Make a fresh state; the kernel is deep-copied into its posterior. Cost O(A P) kernel values, where P is the number of
        arms of a cell.

        Raises:
            ShapeError: If the kernel or the bounds are for another number of features or batch rows.
            ArgumentError: If an arm lies outside the bounds, or the cells do not fit the memory budget.
        """
        self._check_dimensions(arms, batch_shape)
        rows = ArmRows(arms, batch_shape)
        corners = self.box
        bounds = None if corners is None else torch.tensor(corners, dtype=torch.float64)
        domain = Domain(self.kernel, arms, rows.first, batch_shape, self.nu, self.horizon, bounds)
        posterior = PartitionedProcess(domain, self.regularization, self.memory_budget)
        return PartitionedState(rows, posterior, generators)

    def opens(self, state: PartitionedState) -> bool:
        """Whether some of the `initial` picks may remain to be made. They end a batch."""
        return self.initial is not None and state.opening

    @without_gradients
    def select(
        self,
        state: PartitionedState,
        *,
        limit: Tensor | None = None,
        available: Tensor | None = None,
        exactly: int | None = None,
    ) -> tuple[Selection, Evidence]:
        """Pick the arm of the largest upper bound. Further picks, and picks while others are pending, use the standard
        deviations given the pending picks, with means and widths frozen. Cost O(A), and O(P²) per further pick."""
        rows = state.rows
        offered = on_offer(rows, available)
        remaining = room_for(state, 1 if exactly is None else exactly, limit)
        twins = copies_of(state.generators) if state.opening else ()
        opened = first_picks(state, self.initial, remaining, offered, twins) if state.opening else None
        if opened is not None:
            remaining = remaining.masked_fill(opened[1], 0)
        index = self._pick(state, remaining.to(state.told.device), None if available is None else offered)
        if opened is not None:
            index = with_first(*opened, index)
        states = tuple(twin.get_state() for twin in twins)
        score, leverage = self._of_arms(state, index)
        return Selection(rows.points(index), index, index >= 0), Evidence(score, leverage, self.width(state), states)

    @without_gradients
    def update(self, state: PartitionedState, pulls: Pulls) -> PartitionedState:
        """Learn the pulls in every cell that holds them, then split the cells that are due.

        Cost: O(P²) per cell that holds a pulled arm, where P is its number of arms, independent of the number of pulls.
        """
        if pulls.points is not None:
            raise UnsupportedError(
                "pi_gp_ucb keeps a posterior on the arms of each cell: observe() history by arm index, not by points."
            )
        assert pulls.index is not None
        assert pulls.mask is not None
        state.forget_derived_()
        process = state.records
        summed = state.rows.summed(pulls)
        state.rows.tell_(process.statistics, summed)
        # A bound of −∞ marks an empty place, so an overflow could not be detected from the bounds.
        require(
            bool(torch.isfinite(process.statistics.sums).all()),
            "the sum of an arm's rewards overflowed; the pulls were not learned. Check the size of the rewards.",
            NumericalError,
        )
        process.condition_(summed.distinct, *summed.there())
        state.set_sums_(log_det=process.cells.log_det().sum(dim=-1).reshape(state.told.shape))
        return state

    def set_arms(self, state: PartitionedState, arms: Arms) -> PartitionedState:
        """Return a state with the same sums on other arms, which must include all pulled arms. The cover is rebuilt and split
        again.

        Raises:
            UnsupportedError: If a pulled arm is missing, because a cell holds only its arms.
        """
        statistics, shape = state.statistics, state.rows.batch_shape
        fresh = self.init(arms, state.generators, shape)
        index = matches(arms.expand(*shape, -1, -1), statistics.points) if statistics.size else state.rows.arm_of_row
        gone = bool(((index < 0) & statistics.mask).any())
        require(
            not gone, "pi_gp_ucb keeps a posterior on the arms of each cell: keep the arms that were pulled.", UnsupportedError
        )
        index = index.masked_fill(~statistics.mask, -1)
        sums = (statistics.weights, statistics.sums, statistics.squares)
        fresh = self.update(fresh, Pulls(*sums, index=index, mask=statistics.mask, history=True)) if statistics.size else fresh
        gained = fresh.sum_on_host("log_det")
        fresh.continuing_(state)
        fresh.set_sums_(log_det=gained)
        return fresh

    @without_gradients
    def width(self, state: PartitionedState) -> Tensor:
        """The width of the cell that holds the largest upper bound, `batch_shape`."""
        if state.known_width is None:
            self._bounds(state)
        assert state.known_width is not None
        return state.known_width

    @without_gradients
    def bounds(self, state: PartitionedState) -> tuple[Tensor, Tensor]:
        """Largest upper and largest lower confidence bound over arms and cells, reward units."""
        _, runs, lower = self._bounds(state)
        return runs.amax(dim=-1).reshape(state.log_det.shape), lower.reshape(state.log_det.shape)

    # ------------------------------------------------------------------ steps of a selection

    def _width(self, state: PartitionedState) -> Tensor:
        """The width B + (R/√λ) √(2(γ_cell + 1 + log(N/δ))) of every cell, `rows x C`, with N = max(Ñ_t, cells made).

        Ñ_t = 4(t+1)^{bd}, where t is the number of pulls told, plus 1.

        Each cell has a share δ/N of the failure probability, so N must be at least the number of cells whose bounds were used.
        Lemma 6 of the paper states this for Ñ_t, but the first grid alone may have more cells than Ñ_1 = 4·2^{bd}.
        The cells made are those of the first grid and all children since. Cells that were split are counted, because their
        bounds were used; cells without arms are not counted, because they bound nothing.
        """
        process, d = state.records, state.rows.arms.shape[-1]
        paper = torch.log(state.told.reshape(-1, 1) + 2).mul_(d * (d + 1) / (d + 2 * self.nu)).add_(math.log(4))
        log_cells = torch.maximum(paper, process.cells.made.double().log().unsqueeze(-1)).sub_(math.log(self.delta))
        root = torch.add(process.cells.log_det(), log_cells, alpha=2).add_(2).sqrt_()
        B = self.norm_bound
        if isinstance(B, Tensor):
            B = B.to(root).expand(state.told.shape).reshape(-1, 1)
        return root.mul_(self.noise_std / math.sqrt(self.regularization)).add_(B)

    def _bounds(self, state: PartitionedState) -> tuple[Tensor, Tensor, Tensor]:
        """The upper bound of every entry of every cell (`rows x E`, −∞ where there is none), the largest one of each run of
        entries, and the largest lower bound (`rows`)."""
        if state.known_upper is None or state.known_marginals is None:
            cells = state.records.cells
            mean, deviation, cell = cells.numbers[MEAN], cells.numbers[DEVIATION], cells.members[CELL]
            width = self._width(state)
            spread = width.gather(1, cell).mul_(deviation)
            upper = mean + spread
            runs = _runs(upper)
            run = runs.argmax(dim=-1, keepdim=True)
            best = upper.view(*runs.shape, RUN).gather(1, run.unsqueeze(-1).expand(-1, -1, RUN)).argmax(dim=-1) + run * RUN
            state.known_width = width.gather(1, cell.gather(1, best)).reshape(state.log_det.shape)
            state.known_upper, state.known_marginals = upper, (runs, -spread.sub_(mean).amin(dim=-1))
        return state.known_upper, *state.known_marginals

    def _pick(self, state: PartitionedState, remaining: Tensor, offered: Tensor | None) -> Tensor:
        """Picks of each row, `batch_shape x most`, −1 where padded."""
        process, shape, left = state.records, state.rows.batch_shape, remaining.reshape(-1)
        most, cells = int(left.max()), process.cells
        if offered is not None:
            offered = offered.expand(*shape, -1).reshape(left.shape[0], -1).gather(1, cells.members[ARM].clamp_min(0))
        if most <= 1 and not state.pending_index.shape[-1]:
            upper, runs, _ = self._bounds(state)
            if offered is not None:
                upper = upper.masked_fill(~offered, -torch.inf)
                runs = _runs(upper)
            return torch.where(left > 0, _best(cells, upper, runs), -1).reshape(*shape, 1)[..., :most]
        width = self._width(state).gather(1, cells.members[CELL])
        picks = torch.full((left.shape[0], most), -1, device=left.device)
        restore = process.snapshot()
        try:
            if most:
                process.condition_(state.pending_index, state.pending_counts)
            for step in range(most):
                upper = torch.addcmul(cells.numbers[MEAN], width, cells.numbers[DEVIATION])
                if offered is not None:
                    upper = upper.masked_fill(~offered, -torch.inf)
                picks[:, step] = torch.where(left > step, _best(cells, upper, _runs(upper)), -1)
                if step + 1 < most:
                    process.condition_(picks[:, step].reshape(*shape, 1), state.told.new_ones(*shape, 1))
        finally:
            restore()
        return picks.reshape(*shape, most)

    def _of_arms(self, state: PartitionedState, index: Tensor) -> tuple[Tensor, Tensor]:
        """The upper bound of arms (`batch_shape x q`) at the batch start, and their leverage in the cell of that bound."""
        cells, upper, q = state.records.cells, self._bounds(state)[0], index.shape[-1]
        arm, H = state.rows.entry(index).reshape(index.shape[:-1].numel(), q).clamp_min(0), cells.places.shape[-1]
        places = cells.places.gather(1, arm.unsqueeze(-1).expand(*arm.shape, H))
        if H > 1:
            each = upper.gather(1, places.clamp_min(0).flatten(1)).view(places.shape)
            places = places.gather(-1, torch.where(places >= 0, each, -torch.inf).argmax(dim=-1, keepdim=True))
        places = places.squeeze(-1)
        leverage = cells.numbers[DEVIATION].gather(1, places).square() / self.regularization
        return upper.gather(1, places).reshape(index.shape), leverage.reshape(index.shape)

    def _check_dimensions(self, arms: Arms, batch_shape: torch.Size) -> None:
        """Raise `ShapeError` if the kernel or the box is for another number of features or batch rows."""
        d = arms.shape[-1]
        if self.box is not None:
            got = len(self.box[0])
            require(got == d, f"bounds must be 2 x {d}, one column per feature of the arms, got 2 x {got}.", ShapeError)
        check_rows_of(self.norm_bound, batch_shape)
        check_kernel_on(arms[..., :1, :], self.kernel, batch_shape, kernel_diagonal)


def _runs(upper: Tensor) -> Tensor:
    """The largest bound of each group of `RUN` consecutive entries, `rows x E / RUN`."""
    return upper.view(upper.shape[0], -1, RUN).amax(dim=-1)


def _best(cells: Cells, upper: Tensor, runs: Tensor) -> Tensor:
    """The lowest arm among those whose bound is within 16 eps of the best, `rows`. Cost O(A / RUN) once `runs` is known."""
    best, last = runs.amax(dim=-1, keepdim=True), torch.iinfo(torch.int64).max
    band = best - TIE * best.abs()
    # Small problems are dominated by the number of operations: compare all entries at once.
    if upper.numel() < RUN * RUN:
        return torch.where(upper >= band, cells.members[ARM], last).amin(dim=-1)
    row, run = (runs >= band).nonzero(as_tuple=True)
    arm = cells.members[ARM].view(*runs.shape, RUN)[row, run]
    lowest = torch.where(upper.view(*runs.shape, RUN)[row, run] >= band[row], arm, last).amin(dim=-1)
    return torch.full_like(best[:, 0], last, dtype=arm.dtype).scatter_reduce(0, row, lowest, "amin")
