"""The one engine: a policy that is nothing but its choice of ingredients."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import gpytorch
import torch
from torch import Tensor

from torchbandits.arms import ArmRows, ArmTable, Lookahead, best_arm
from torchbandits.batching import BatchRule, FixedSize
from torchbandits.embeddings import kernel_diagonal
from torchbandits.errors import ArgumentError, NonFiniteError, ShapeError, UnsupportedError, require
from torchbandits.memory import KeepAll, Memory
from torchbandits.policies.base import Policy, State
from torchbandits.posteriors import GaussianProcess
from torchbandits.scores import UCB, Score
from torchbandits.starts import Start
from torchbandits.types import Arms, Evidence, Progress, Pulls, Selection
from torchbandits.widths import Width


@dataclass(frozen=True)
class Composed(Policy):
    """Embedding and memory, score, width and batch rule, run by one engine.

    Args:
        kernel: Any GPyTorch kernel; its batch shape becomes batch rows.
        noise_std: Sub-Gaussian constant of the noise, reward units.
        confidence: Multiplier of the posterior standard deviation.
        regularization: λ, reward units squared.
        memory: What the posterior keeps: everything (exact), or a sampled dictionary (Nyström).
        score: What an arm is worth.
        batch_rule: When a batch ends.
        prior_mean: Mean of the rewards before data: a number, or `"estimate"` for the average told so far.
        initial: First picks; None for the argmax of the prior.
        memory_budget: Bytes that cached kernel columns may take.
    """

    kernel: gpytorch.kernels.Kernel
    noise_std: float
    confidence: Width
    regularization: float
    memory: Memory = field(default_factory=KeepAll)
    score: Score = field(default_factory=UCB)
    batch_rule: BatchRule = field(default_factory=FixedSize)
    prior_mean: float | str = 0.0
    initial: Start | None = None
    memory_budget: int = 2 << 30

    def __post_init__(self) -> None:
        kernel = self.kernel
        require(
            isinstance(kernel, gpytorch.kernels.Kernel),
            f"kernel must be a gpytorch.kernels.Kernel, got {type(kernel).__name__}.",
        )
        require(
            isinstance(self.confidence, Width),
            f"width must be a torchbandits.widths.Width, such as widths.Constant(2.0), got {type(self.confidence).__name__}.",
        )
        require(
            math.isfinite(self.noise_std) and self.noise_std >= 0,
            f"noise_std must be a finite number ≥ 0, got {self.noise_std}.",
        )
        require(
            math.isfinite(self.regularization) and self.regularization > 0,
            f"regularization (λ, by default noise_std²) must be finite and > 0, got {self.regularization}.",
        )
        numeric = isinstance(self.prior_mean, (int, float)) and math.isfinite(self.prior_mean)
        require(
            numeric or self.prior_mean == "estimate",
            f"prior_mean must be a finite number or 'estimate', got {self.prior_mean!r}.",
        )

    # ------------------------------------------------------------------ the contract

    @torch.no_grad()
    def init(self, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size) -> State:
        """A fresh state; the kernel is deep-copied into its posterior. Cost O(A (d + log A))."""
        try:
            torch.broadcast_shapes(batch_shape, self.kernel.batch_shape)
        except RuntimeError as error:
            raise ShapeError(
                f"the kernel's batch shape {tuple(self.kernel.batch_shape)} does not broadcast with the batch shape "
                f"{tuple(batch_shape)} of the arms and generators."
            ) from error
        self._check_dimensions(arms)
        posterior = GaussianProcess(
            self.kernel,
            self.regularization,
            dim=arms.shape[-1],
            batch_shape=batch_shape,
            sparse=self.memory.sparse,
            prior_mean=self.prior_mean,
            device=arms.device,
        )
        rows = ArmRows(arms, batch_shape)
        return State(rows, posterior, ArmTable(rows, posterior, self.memory_budget), generators)

    @torch.no_grad()
    def select(
        self, state: State, *, limit: Tensor | None = None, available: Tensor | None = None, exactly: int | None = None
    ) -> tuple[Selection, Evidence]:
        """Picks by score, batch by the rule, first picks by `initial`. Cost O(A) a round and O(1) a further pick."""
        assert state.table is not None
        rows, batch_shape = state.rows, state.rows.batch_shape
        offered = rows.offered(available)
        if offered is not None and not bool(offered.any(dim=-1).all()):
            raise ArgumentError("no arm is on offer in at least one batch row: `available` must have a True in each.")
        width = self.width(state)
        rule: BatchRule = self.batch_rule if exactly is None else FixedSize(size=exactly, max_pulls=self.batch_rule.max_pulls)
        remaining = self._room(state, rule, limit)
        starting, states = self._start(state, remaining, offered)
        if starting is not None:
            remaining = torch.where((starting >= 0).any(dim=-1), 0, remaining)
        mean, std = self._marginals(state)
        if bool((remaining > 0).any()):
            index = self._pick(state, mean, std, width, offered, rule, remaining)
            if starting is not None:
                index = torch.where((starting >= 0).any(dim=-1, keepdim=True), _widen(starting, index), _widen(index, starting))
        else:
            index = starting if starting is not None else mean.new_empty(*batch_shape, 0, dtype=torch.int64)
        slot = index.clamp_min(0)
        leverage = state.table.leverage.gather(-1, slot)
        score = self.score(mean.gather(-1, slot), std.gather(-1, slot), width)
        return Selection(rows.points(index), index, index >= 0), Evidence(score, leverage, width, states)

    @torch.no_grad()
    def update(self, state: State, pulls: Pulls) -> State:
        """Add the pulls, choose the dictionary anew, bring means and leverages up to date.

        Cost: O(A u) a distinct arm for an exact posterior; one m x m x A product for a sparse one.
        """
        table, posterior = state.table, state.posterior
        assert table is not None
        before = table.leverage
        state.forget_derived_()
        if pulls.points is not None:
            return self._observe_outside(state, pulls)
        assert pulls.index is not None
        assert pulls.mask is not None
        known = state.row_leverage() if self.memory.sparse and bool((state.rows.arm_of_row < 0).any()) else None
        if self.memory.sparse:
            posterior.invalidate_()  # the dictionary is about to change: no use updating the old factors
        distinct, counts, sums = state.rows.tell_(posterior, pulls.index, pulls.mask, pulls.counts, pulls.sums, pulls.squares)
        leverage = before.gather(-1, distinct.clamp_min(0))
        self._accumulate(state, leverage, counts)
        if self.memory.sparse:
            state.log_det = state.log_det + torch.log1p(counts * leverage).sum(dim=-1)
            self._resparsify(state, before, known)
            table.sweep_()
        else:
            gained = table.update_(distinct, counts, posterior.targets_of(counts, sums))
            state.log_det = state.log_det + gained
            if table.needs_sweep():
                table.sweep_()
                state.log_det = posterior.log_det
        return state

    @torch.no_grad()
    def width(self, state: State) -> Tensor:
        """The confidence width for the next pick, `batch_shape`."""
        if state.known_width is None:
            state.known_width = self.confidence(self.progress(state))
        return state.known_width

    @torch.no_grad()
    def bounds(self, state: State) -> tuple[Tensor, Tensor]:
        """Largest upper and largest lower confidence bound over the arms, reward units."""
        assert state.table is not None
        mean, std = self._marginals(state)
        spread = self.width(state).unsqueeze(-1) * std
        return (mean + spread).amax(dim=-1), (mean - spread).amax(dim=-1)

    def progress(self, state: State) -> Progress:
        """What widths may depend on."""
        assert state.table is not None
        pulls = state.statistics.pulls
        return Progress(
            t=pulls + 1,
            pulls=pulls.clamp_min(1),
            num_arms=state.rows.num_arms,
            dim=state.rows.arms.shape[-1],
            log_det=state.log_det,
            batched_log_det=state.batched_log_det,
            batched_log_det_3=state.batched_log_det_3,
            effective_dimension=(state.row_leverage() * state.statistics.weights).sum(dim=-1),
            kappa2=state.table.prior_diagonal.amax(dim=-1).expand_as(pulls),
        )

    # ------------------------------------------------------------------ its steps

    def _check_dimensions(self, arms: Arms) -> None:
        """One kernel value, so that a kernel for other features is refused at once."""
        point = arms[..., :1, :]
        try:
            value = kernel_diagonal(copy.deepcopy(self.kernel).to(arms), point)
        except (RuntimeError, IndexError) as error:
            expected = getattr(self.kernel, "ard_num_dims", None)
            raise ShapeError(
                f"the kernel ({type(self.kernel).__name__}, made for {expected or 'another number of'} features) can't be "
                f"evaluated on arms with {arms.shape[-1]} features: {error}"
            ) from error
        require(
            bool(torch.isfinite(value).all()),
            "the kernel is NaN or infinite on the arms: check its hyper-parameters.",
            NonFiniteError,
        )

    def _room(self, state: State, rule: BatchRule, limit: Tensor | None) -> Tensor:
        """Most picks of each row, `batch_shape`."""
        most = torch.iinfo(torch.int32).max if rule.max_batch_size is None else rule.max_batch_size
        room = torch.full(state.rows.batch_shape, most, device=state.log_det.device)
        if limit is not None:
            room = torch.minimum(room, limit.to(room))
        return room

    def _marginals(self, state: State) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every arm, `batch_shape x A`, reward units."""
        assert state.table is not None
        if state.known_marginals is None:
            state.known_marginals = state.table.mean(), (self.regularization * state.table.leverage).sqrt_()
        return state.known_marginals

    def _start(self, state: State, remaining: Tensor, offered: Tensor | None) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Picks of `initial` for rows that have not made them all, drawn from copies of the generators."""
        if self.initial is None:
            return None, ()
        made = state.statistics.pulls + state.pending_counts.sum(dim=-1)
        missing = torch.minimum((self.initial.size - made).clamp_min(0).long(), remaining).reshape(-1)
        if not bool((missing > 0).any()):
            return None, ()
        copies = [torch.Generator() for _ in state.generators]
        for twin, generator in zip(copies, state.generators, strict=True):
            twin.set_state(generator.get_state())
        A = state.rows.num_arms
        flat = torch.empty(0) if offered is None else offered.expand(*state.rows.batch_shape, A).reshape(-1, A)
        index = self.initial.draw(A, missing.tolist(), copies, flat).to(remaining.device)
        return index.reshape(*state.rows.batch_shape, -1), tuple(c.get_state() for c in copies)

    def _pick(
        self, state: State, mean: Tensor, std: Tensor, width: Tensor, offered: Tensor | None, rule: BatchRule, remaining: Tensor
    ) -> Tensor:
        assert state.table is not None
        if rule.max_batch_size == 1 and not state.pending_index.shape[-1]:
            score = self.score(mean, std, width)
            if offered is not None:
                score = score.masked_fill(~offered, -torch.inf)
            return torch.where(remaining > 0, best_arm(score), -1).unsqueeze(-1)
        require(isinstance(self.score, UCB), "batches are built for the UCB score only.", UnsupportedError)
        pending = (state.pending_index, state.pending_counts)
        lookahead = Lookahead(state.table, mean, width, offered, pending, rule.max_pulls)
        return lookahead.pick(rule.meter(lookahead), remaining)

    def _accumulate(self, state: State, leverage: Tensor, counts: Tensor) -> None:
        state.batched_log_det = state.batched_log_det + (counts * torch.log1p(leverage)).sum(dim=-1)
        state.batched_log_det_3 = state.batched_log_det_3 + (counts * torch.log1p(3 * leverage)).sum(dim=-1)

    def _resparsify(self, state: State, before: Tensor, known: Tensor | None) -> None:
        """Draw the dictionary with the leverages before the pulls; `known` are those of rows that are not arms."""
        statistics, arm = state.statistics, state.rows.arm_of_row
        leverage = before.gather(-1, arm.clamp_min(0))
        if known is not None:
            known = torch.nn.functional.pad(known, (0, arm.shape[-1] - known.shape[-1]))
            leverage = torch.where(arm < 0, known, leverage)
        chosen = self.memory.choose(leverage, statistics.weights, statistics.mask, state.generators)
        state.posterior.set_dictionary_(chosen)

    def _observe_outside(self, state: State, pulls: Pulls) -> State:
        """History at points that need not be arms: everything is refitted."""
        table, posterior = state.table, state.posterior
        assert table is not None
        assert pulls.points is not None
        before, leverage = table.leverage, posterior.leverage(pulls.points)
        rows = posterior.statistics.num_rows.unsqueeze(-1) + torch.arange(leverage.shape[-1], device=leverage.device)
        known = torch.nn.functional.pad(state.row_leverage(), (0, leverage.shape[-1])).scatter(-1, rows, leverage)
        state.rows.tell_outside_(posterior, pulls.points, pulls.counts, pulls.sums, pulls.squares)
        self._accumulate(state, leverage, pulls.counts)
        if self.memory.sparse:
            state.log_det = state.log_det + torch.log1p(pulls.counts * leverage).sum(dim=-1)
            self._resparsify(state, before, known)
        table.sweep_()
        if not self.memory.sparse:
            state.log_det = posterior.log_det
        return state


def _widen(index: Tensor, other: Tensor) -> Tensor:
    """Pad the picks with −1 to the longer of two."""
    return torch.nn.functional.pad(index, (0, max(0, other.shape[-1] - index.shape[-1])), value=-1)
