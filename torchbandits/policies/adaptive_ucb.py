"""Upper confidence bounds on a tree of cells that splits where the bounds are loose. `ada_bkb` returns this policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from torchbandits.arms import ArmDivision, ArmRows, BoxDivision, CellTree, FullSweep, GrowingTable, matches
from torchbandits.arms.cells import Division, padded_indices
from torchbandits.checks import (
    check_instance,
    check_kernel_on,
    check_memory_budget,
    check_model,
    check_norm_bound,
    check_whole,
    is_whole,
    non_negative,
)
from torchbandits.embeddings import Spectrum
from torchbandits.errors import UnsupportedError, require
from torchbandits.gradients import without_gradients
from torchbandits.kernels import kernel_diagonal
from torchbandits.memory import Memory
from torchbandits.policies.base import Policy
from torchbandits.policies.learning import learn
from torchbandits.policies.picking import on_offer, room_for
from torchbandits.policies.state import TreeState
from torchbandits.posteriors import GaussianProcess, aggregate
from torchbandits.types import Arms, Evidence, Pulls, Selection
from torchbandits.widths import Width
from torchbandits.widths.base import check_rows, check_rows_of
from torchbandits.widths.randomized import is_random


@dataclass(frozen=True, repr=False)
class AdaptiveUCB(Policy[TreeState]):
    """A policy on a tree of cells with one representative per cell, which splits the best leaf until it is worth an evaluation.

    Args:
        kernel: Any GPyTorch kernel on a finite arm set, RBF or Matérn on a box; its batch shape becomes batch rows.
        noise_std: Sub-Gaussian constant of the noise, reward units.
        confidence: Multiplier of the posterior standard deviation.
        regularization: λ, reward units squared.
        memory: Rule by which the dictionary is sampled.
        norm_bound: F, bound on the RKHS norm; one number, or one per batch row.
        num_children: N, the odd number of children into which a cell is split.
        horizon: T, the number of pulls to come, which sets the depth of the tree; None for no limit.
        prior_mean: Mean of the rewards before data: a number, or `"estimate"` for the average of the rewards told so far.
        memory_budget: Bytes that cached kernel columns may take.
    """

    kernel: gpytorch.kernels.Kernel
    noise_std: float
    confidence: Width
    regularization: float
    memory: Memory
    norm_bound: float | Tensor
    num_children: int
    horizon: int | None
    prior_mean: float | str
    memory_budget: int

    def __post_init__(self) -> None:
        N = self.num_children
        check_model(self.kernel, self.regularization, self.prior_mean)
        wanted = "a torchbandits.widths.Width, such as widths.Constant(2.0)"
        check_instance("width (confidence of Composed)", self.confidence, Width, wanted)
        message = "cells are split by bounds of one width, and random widths are drawn for every ask: pass another width=."
        require(not is_random(self.confidence), message, UnsupportedError)
        non_negative("noise_std", self.noise_std)
        check_norm_bound(self.norm_bound)
        good = is_whole(N, 3) and N % 2 == 1
        require(good, f"num_children must be an odd whole number ≥ 3, got {N!r}: the middle child keeps the representative.")
        check_whole("horizon", self.horizon, otherwise="for no limit of the depth")
        check_memory_budget(self.memory_budget)

    # ------------------------------------------------------------------ the contract

    @property
    def most_picks(self) -> int:
        """The maximum number of picks of one `select`: 1."""
        return 1

    @without_gradients
    def init(self, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size) -> TreeState:
        """Make a fresh state; the kernel is deep-copied into its posterior. Cost O(A (d + log A))."""
        diagonal = self._prior_diagonal(arms, batch_shape)
        rows, posterior = ArmRows(arms, batch_shape), self._posterior(arms, batch_shape)
        return self._fresh(rows, posterior, ArmDivision(rows, posterior.kernel), diagonal.amax(dim=-1), generators)

    @without_gradients
    def init_box(self, box: Tensor, generators: Sequence[torch.Generator], batch_shape: torch.Size) -> TreeState:
        """Make a fresh state on a box; its only arm is the centre of the box.

        Raises:
            UnsupportedError: If the kernel is not known to decrease in every |coordinate difference|.
            ArgumentError: If there is no horizon, without which the depth of the tree is unbounded.
        """
        if Spectrum.of(self.kernel) is None:
            raise UnsupportedError(
                f"on a box the variation in a cell is known for RBF and Matérn kernels on all features (scaled or not), not "
                f"for {type(self.kernel).__name__}: pass arms instead, such as points of torch.quasirandom.SobolEngine."
            )
        require(self.horizon is not None, "on a box, ada_bkb needs horizon=, the number of pulls to come: it bounds the depth.")
        centre = box.mean(dim=-2, keepdim=True)
        diagonal = self._prior_diagonal(centre, batch_shape)
        rows = ArmRows(centre.expand(*batch_shape, -1, -1).clone(), batch_shape, growing=True)
        posterior = self._posterior(centre, batch_shape)
        return self._fresh(rows, posterior, BoxDivision(box, rows, posterior.kernel), diagonal.amax(dim=-1), generators)

    @without_gradients
    def select(
        self, state: TreeState, *, limit: Tensor | None = None, available: Tensor | None = None, exactly: int | None = None
    ) -> tuple[Selection, Evidence]:
        """Pick the representative of the best leaf on offer. In a row where no leaf's representative is on offer, pick the arm
        on offer with the largest upper bound. Further picks, and picks while others are pending, use the standard deviations
        given the pending picks, on the same tree.

        Cost: O(L), or O(L m) per further pick; O(A m²) where no leaf's representative is on offer.
        """
        rows, tree = state.rows, state.tree
        offered, remaining = on_offer(rows, available), room_for(state, 1 if exactly is None else exactly, limit)
        width, values = self.width(state), tree.index(self._upper(state))
        leaf_arm = tree.arm
        lacking = torch.zeros(rows.batch_shape, dtype=torch.bool, device=leaf_arm.device)
        if offered is not None:
            offered = offered.expand(*rows.batch_shape, -1)
            open_ = (leaf_arm >= 0) & offered.gather(-1, leaf_arm.clamp_min(0))
            values, lacking = values.masked_fill(~open_, -torch.inf), ~open_.any(dim=-1)
        if int(remaining.max()) <= 1 and not state.pending_index.shape[-1] and not bool(lacking.any()):
            leaf = tree.best_leaf(values, width)
            live = (remaining > 0).unsqueeze(-1).to(leaf.device)
            index = torch.where(live, leaf_arm.gather(-1, leaf), -1)[..., : int(remaining.max())]
            score, leverage = values.gather(-1, leaf)[..., : index.shape[-1]], tree.table.leverage_at(index)
        else:
            index, score, leverage = self._pick_several(state, remaining, offered, lacking)
        return Selection(rows.points(index), index, index >= 0), Evidence(score, leverage, width)

    @without_gradients
    def update(self, state: TreeState, pulls: Pulls) -> TreeState:
        """Learn as BKB does, then split the best leaf while it is due. Cost O(L m² + u m²), and O(m²) per split."""
        tree = state.tree
        if pulls.index is not None and pulls.mask is not None:
            tree.table.look_at_(aggregate(state.rows.entry(pulls.index), pulls.mask)[0])
        # Points of history may coincide with arms.
        elif pulls.points is not None:
            found = matches(state.rows.arms.expand(*pulls.points.shape[:-2], -1, -1), pulls.points)
            tree.table.look_at_(aggregate(found, found >= 0)[0])
        state.forget_derived_()
        learn(state, pulls, self.memory, None)
        # `state.told` does not include these pulls until the update is over, but the width of the next pick depends on them.
        state.derived.width = state.width_of(self.confidence, state.told_with(pulls))
        tree.refine_(state.derived.width)
        return state

    @without_gradients
    def width(self, state: TreeState) -> Tensor:
        """The confidence width for the next pick, `batch_shape`."""
        if state.derived.width is None:
            state.derived.width = state.width_of(self.confidence)
        return state.derived.width

    @without_gradients
    def bounds(self, state: TreeState) -> tuple[Tensor, Tensor]:
        """The largest index of a leaf, which is above f everywhere while the width is valid, and the largest lower bound over
        the evaluated arms, reward units."""
        tree, upper = state.tree, self._upper(state)
        lower = torch.sub(2 * tree.table.mean(), upper).masked_fill(tree.table.arm < 0, -torch.inf)
        return tree.index(upper).amax(dim=-1), lower.amax(dim=-1)

    # ------------------------------------------------------------------ steps of a selection

    def _fresh(
        self,
        rows: ArmRows,
        posterior: GaussianProcess,
        division: Division,
        kappa2: Tensor,
        generators: Sequence[torch.Generator],
    ) -> TreeState:
        table = GrowingTable(rows, posterior, self.memory_budget)
        bound = torch.as_tensor(self.norm_bound, dtype=torch.float64)
        depth = self._max_depth(rows.arms.shape[-1])
        tree = CellTree(table, division, bound, kappa2, self.num_children, depth)
        state = TreeState(tree, generators, counts_batches="batches" in self.confidence.reads)
        tree.refine_(self.width(state))
        return state

    def _max_depth(self, dim: int) -> int | None:
        """The maximal depth ⌈d log T / (2α log N)⌉, at which the variation of f in a cell is about 1/√T of its variation in the
        box."""
        if self.horizon is None:
            return None
        spectrum = Spectrum.of(self.kernel)
        # α is the Hölder exponent of the kernel distance: min(ν, 1) for Matérn kernels, 1 for smooth ones.
        alpha = 1.0 if spectrum is None or spectrum.nu is None else min(spectrum.nu, 1.0)
        return math.ceil(dim * math.log(self.horizon) / (2 * alpha * math.log(self.num_children)))

    def _posterior(self, points: Tensor, batch_shape: torch.Size) -> GaussianProcess:
        return GaussianProcess(
            self.kernel,
            self.regularization,
            dim=points.shape[-1],
            batch_shape=batch_shape,
            sparse=True,
            prior_mean=self.prior_mean,
            device=points.device,
        )

    def _prior_diagonal(self, points: Tensor, batch_shape: torch.Size) -> Tensor:
        """k(x, x) of the points. Raises an error for a kernel with another number of features or batch rows."""
        check_rows_of(self.norm_bound, batch_shape)
        check_rows(self.confidence, batch_shape)
        return check_kernel_on(points.double(), self.kernel, batch_shape, kernel_diagonal)

    def _upper(self, state: TreeState) -> Tensor:
        """The upper confidence bound of every evaluated arm, `batch_shape x R`, reward units."""
        if state.derived.upper is None:
            state.derived.upper = state.tree.upper_bound(self.width(state))
        return state.derived.upper

    def _pick_several(
        self, state: TreeState, remaining: Tensor, offered: Tensor | None, lacking: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Select several picks per row. Returns the picks, `batch_shape x most` (−1 where padded), and their scores and
        leverages at the batch start.

        Args:
            remaining: `batch_shape`, picks to make, on the host.
            offered: `batch_shape x A`, arms on offer, or None for all arms.
            lacking: `batch_shape`, rows in which no leaf's representative is on offer, so that all arms on offer are evaluated.
        """
        tree, width = state.tree, self.width(state)
        table = tree.table.twin()
        pending = table.look_at_(state.pending_index)
        if offered is not None and bool(lacking.any()):
            table.look_at_(padded_indices(offered & lacking.unsqueeze(-1)))
        arm = table.arm
        closed = arm < 0 if offered is None else (arm < 0) | ~offered.gather(-1, arm.clamp_min(0))
        mean, leaf = table.mean(), torch.where(tree.arm >= 0, tree.place, arm.shape[-1])

        def score(leverage: Tensor) -> Tensor:
            std = (self.regularization * leverage).sqrt()
            upper = torch.addcmul(mean, std, width.unsqueeze(-1))
            values = torch.full((*mean.shape[:-1], mean.shape[-1] + 1), -torch.inf, dtype=upper.dtype, device=upper.device)
            values = values.scatter(-1, leaf, tree.index(upper))[..., :-1]
            values = torch.where(lacking.unsqueeze(-1), upper, values).masked_fill(closed, -torch.inf)
            return torch.where(tree.leaders(values, width), values.amax(dim=-1, keepdim=True), values)

        start = score(table.leverage)
        picks = FullSweep(table, None, (pending, state.pending_counts)).pick(score, remaining)
        slot = picks.clamp_min(0)
        index = torch.where(picks >= 0, arm.gather(-1, slot), -1)
        return index, start.gather(-1, slot), table.leverage.gather(-1, slot)
