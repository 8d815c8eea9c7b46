"""The contract of a policy, and the state that a run of one carries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchbandits.arms import ArmRows, ArmTable
from torchbandits.errors import UnsupportedError, require
from torchbandits.posteriors import GaussianProcess, Statistics, aggregate
from torchbandits.types import Arms, Evidence, Pulls, Recommendation, Selection

_PROGRESS = ("log_det", "batched_log_det", "batched_log_det_3")


class State(nn.Module):
    """What a run has learned: the rows of the statistics, the posterior and its table where the policy keeps them, the
    picks that are pending, and one generator a batch row.

    Args:
        rows: The arms and their rows.
        records: A posterior, or plain statistics for policies without one.
        table: The posterior on the arms, or None.
        generators: One CPU generator a batch row; held and advanced.
    """

    log_det: Tensor
    batched_log_det: Tensor
    batched_log_det_3: Tensor
    pending_index: Tensor
    pending_counts: Tensor

    def __init__(
        self,
        rows: ArmRows,
        records: GaussianProcess | Statistics,
        table: ArmTable | None,
        generators: Sequence[torch.Generator],
    ) -> None:
        super().__init__()
        # Of this state, and dropped by whatever changes it: the width, and mean and deviation of every arm.
        self.known_width: Tensor | None = None
        self.known_marginals: tuple[Tensor, Tensor] | None = None
        self.rows, self.records, self.table, self.generators = rows, records, table, tuple(generators)
        device = rows.arms.device
        for name in _PROGRESS:
            self.register_buffer(name, torch.zeros(rows.batch_shape, dtype=torch.float64, device=device))
        self.register_buffer("pending_index", torch.zeros(*rows.batch_shape, 0, dtype=torch.int64, device=device))
        self.register_buffer("pending_counts", torch.zeros(*rows.batch_shape, 0, dtype=torch.float64, device=device))

    @property
    def statistics(self) -> Statistics:
        """Distinct points, weights and sums."""
        return self.records.statistics if isinstance(self.records, GaussianProcess) else self.records

    @property
    def posterior(self) -> GaussianProcess:
        """The posterior. Raises `UnsupportedError` for policies that keep none."""
        require(
            isinstance(self.records, GaussianProcess),
            "this policy keeps no posterior; use gp_ucb, bkb or batch_bkb to have one.",
            UnsupportedError,
        )
        assert isinstance(self.records, GaussianProcess)
        return self.records

    def set_pending_(self, index: Tensor, mask: Tensor) -> State:
        """Declare the picks that are out and not told, `batch_shape x q`; an empty one clears them."""
        self.pending_index, self.pending_counts = aggregate(self.rows.entry(index), mask)
        if isinstance(self.records, GaussianProcess):
            self.records.set_pending_(self.rows.points(self.pending_index), self.pending_counts)
        return self

    def forget_derived_(self) -> None:
        """Drop what was derived from the state, before it changes."""
        self.known_width = self.known_marginals = None

    def row_leverage(self) -> Tensor:
        """Leverage of every distinct point given the rewards told, `batch_shape x u`."""
        assert self.table is not None
        arm = self.rows.arm_of_row
        leverage = self.table.leverage.gather(-1, arm.clamp_min(0))
        outside = (arm < 0) & self.statistics.mask
        if bool(outside.any()):
            leverage = torch.where(outside, self.posterior.leverage(self.statistics.points), leverage)
        return torch.where(self.statistics.mask, leverage, 0.0)

    @torch.no_grad()
    def best(self, k: int) -> Recommendation:
        """The k arms with the highest posterior mean (average reward without a posterior) among those pulled."""
        statistics, arms, shape = self.statistics, self.rows.arms, self.rows.batch_shape
        nan = torch.full((*shape, k), torch.nan, dtype=torch.float64, device=arms.device)
        if statistics.size == 0:
            empty = arms.new_full((*shape, k, arms.shape[-1]), torch.nan)
            return Recommendation(empty, torch.full(nan.shape, -1, device=arms.device), nan, nan.clone())
        pulled = statistics.mask & (statistics.weights > 0)
        arm = self.rows.arm_of_row
        if self.table is not None:
            mean = self.table.mean().gather(-1, arm.clamp_min(0))
            if bool(((arm < 0) & pulled).any()):
                mean = torch.where(arm < 0, self.posterior(statistics.points).mean, mean)
            variance = self.posterior.regularization * self.row_leverage()
        else:
            mean = statistics.sums / statistics.weights
            variance = torch.full_like(mean, torch.nan)
        k_here = min(k, mean.shape[-1])
        top = mean.masked_fill(~pulled, -torch.inf).topk(k_here, dim=-1).indices
        valid = pulled.gather(-1, top)
        pad = (0, k - k_here)
        grow = torch.nn.functional.pad
        points = statistics.points.gather(-2, top.unsqueeze(-1).expand(*top.shape, statistics.points.shape[-1]))
        return Recommendation(
            grow(torch.where(valid.unsqueeze(-1), points, torch.nan), (0, 0, *pad), value=torch.nan).to(arms.dtype),
            grow(torch.where(valid, arm.gather(-1, top), -1), pad, value=-1),
            grow(torch.where(valid, mean.gather(-1, top), torch.nan), pad, value=torch.nan),
            grow(torch.where(valid, variance.gather(-1, top), torch.nan), pad, value=torch.nan),
        )

    # ------------------------------------------------------------------ going back, and being saved

    def snapshot(self) -> Callable[[], None]:
        """A way back: calling it restores this state. Nothing is copied, because updates never write in place."""
        changing = (self, self.rows, self.records, self.statistics, self.table)
        buffers = [(module, dict(module._buffers)) for module in changing if module is not None]
        generators = [g.get_state() for g in self.generators]
        posterior = self.records.snapshot() if isinstance(self.records, GaussianProcess) else None
        table = self.table.snapshot() if self.table is not None else None

        def restore() -> None:
            self.forget_derived_()
            for module, kept in buffers:
                module._buffers.update(kept)
            for generator, state in zip(self.generators, generators, strict=True):
                generator.set_state(state)
            if posterior is not None:
                posterior()
            if table is not None:
                table()

        return restore

    def get_extra_state(self) -> dict[str, Any]:
        """Generator states."""
        return {"generators": torch.stack([g.get_state() for g in self.generators])}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_extra_state` returned."""
        self.forget_derived_()
        for generator, value in zip(self.generators, state["generators"], strict=True):
            generator.set_state(value.cpu())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("pending_index", "pending_counts"):
            if prefix + name in state_dict:  # their size follows the open batch
                setattr(self, name, state_dict[prefix + name].to(self.log_det.device))
        super()._load_from_state_dict(state_dict, prefix, *args)


class Policy(ABC):
    """Chooses arms. Frozen: all that learns is in the `State`."""

    @abstractmethod
    def init(self, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size) -> State:
        """A fresh state on `A x d` or `batch_shape x A x d` arms, with one generator a batch row."""

    @abstractmethod
    def select(
        self, state: State, *, limit: Tensor | None = None, available: Tensor | None = None, exactly: int | None = None
    ) -> tuple[Selection, Evidence]:
        """The next batch, and the evidence for it. Changes nothing.

        Args:
            state: Its pending picks count as hallucinated.
            limit: `batch_shape`, most picks of each row.
            available: `batch_shape x A` booleans, arms on offer; None for all.
            exactly: Pick this many whatever the batch rule says (rows with fewer arms on offer pick fewer).
        """

    @abstractmethod
    def update(self, state: State, pulls: Pulls) -> State:
        """Learn from pulls; returns the state, whose buffers were replaced."""

    @abstractmethod
    def width(self, state: State) -> Tensor:
        """What multiplies the standard deviation now, `batch_shape`; NaN for policies that use none."""

    @abstractmethod
    def bounds(self, state: State) -> tuple[Tensor, Tensor] | None:
        """Largest upper and largest lower confidence bound over the arms, `batch_shape` each; None without a posterior."""
