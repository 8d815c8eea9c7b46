"""The state that a run of a policy carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchbandits.arms import ArmRows, ArmTable, Box, CellTree, GrowingTable, PosteriorDraws
from torchbandits.errors import StateError, UnsupportedError, require
from torchbandits.policies.scale import ScaleWatch
from torchbandits.posteriors import GaussianProcess, PartitionedProcess, Statistics, aggregate
from torchbandits.types import Marginals, Progress, Pulls, Recommendation

RECENT = 40
"""Pulls of a batch row that are remembered in their order."""
_PROGRESS = ("told", "log_det", "batched_log_det", "batched_log_det_3")


class State(nn.Module):
    """What a run has learned: the rows of the statistics, the posterior and its table where the policy keeps them, the
    picks that are pending, and one generator a batch row.

    Args:
        rows: The arms and their rows.
        records: A posterior, or plain statistics for policies without one.
        table: The posterior on the arms, or None.
        generators: One CPU generator a batch row; held and advanced.

    Buffer: `told` `batch_shape`, pulls told, those included that the policy's memory dropped.

    A policy that works in phases gives it an `inner` state, saved and restored with it: what some of the pulls alone taught.
    """

    told: Tensor
    log_det: Tensor
    batched_log_det: Tensor
    batched_log_det_3: Tensor
    pending_index: Tensor
    pending_counts: Tensor

    def __init__(
        self,
        rows: ArmRows,
        records: GaussianProcess | PartitionedProcess | Statistics,
        table: ArmTable | None,
        generators: Sequence[torch.Generator],
    ) -> None:
        super().__init__()
        # Of this state, and dropped by whatever changes it: the width, and mean, deviation and upper bound of every arm.
        self.known_width: Tensor | None = None
        self.known_marginals: tuple[Tensor, Tensor] | None = None
        self.known_upper: Tensor | None = None
        self._changing: tuple[nn.Module, ...] = ()
        self.opening = True  # whether first picks may be left: a fact that is found again after loading
        self.draws: PosteriorDraws | None = None
        self.inner: State | None = None
        self.tree: CellTree | None = None  # of policies that look at some of the arms only
        self.box: Box | None = None  # where the arms are points of a box, found one by one
        self.counts_batches = True  # whether somebody reads the batched log-determinants
        self.scale = ScaleWatch()  # warns of rewards and arms on a scale far from the kernel's
        # Arms of the last tells, at least the last 40 pulls of each batch row if there were so many; not saved.
        self.recent: tuple[Tensor, ...] = ()
        self.repeats_said = False  # whether a warning named an arm that takes most of them
        self.rows, self.records, self.table, self.generators = rows, records, table, tuple(generators)
        device = rows.source.device
        for name in _PROGRESS:
            self.register_buffer(name, torch.zeros(rows.batch_shape, dtype=torch.float64, device=device))
        self.register_buffer("pending_index", torch.zeros(*rows.batch_shape, 0, dtype=torch.int64, device=device))
        self.register_buffer("pending_counts", torch.zeros(*rows.batch_shape, 0, dtype=torch.float64, device=device))

    @property
    def statistics(self) -> Statistics:
        """Distinct points, weights and sums."""
        records = self.records
        return records if isinstance(records, Statistics) else records.statistics

    @property
    def process(self) -> GaussianProcess | PartitionedProcess:
        """The posterior, one or one a cell. Raises `UnsupportedError` for policies that keep none."""
        records = self.records
        if isinstance(records, Statistics):
            raise UnsupportedError("this policy keeps no posterior; use gp_ucb, bkb or batch_bkb to have one.")
        return records

    @property
    def posterior(self) -> GaussianProcess:
        """The posterior of a policy that keeps one for all arms."""
        process = self.process
        assert isinstance(process, GaussianProcess)
        return process

    def continuing_(self, other: State) -> State:
        """Take over the progress of a state of the same posterior on other arms; nothing is pending then."""
        for name in _PROGRESS:
            self._buffers[name] = getattr(other, name)
        self.scale, self.repeats_said = other.scale, other.repeats_said
        return self

    def set_pending_(self, index: Tensor, mask: Tensor) -> State:
        """Declare the picks that are out and not told, `batch_shape x q`; an empty one clears them."""
        self.pending_index, self.pending_counts = aggregate(self.rows.entry(index), mask)
        if not isinstance(self.records, Statistics):
            self.records.set_pending_(self.rows.points(self.pending_index), self.pending_counts)
        return self

    @property
    def has_pending(self) -> bool:
        """Whether picks that are out are hallucinated, here or in a posterior that other arms had before."""
        own = bool(self.pending_index.shape[-1])
        return own or (not isinstance(self.records, Statistics) and bool(self.records.pending.shape[-1]))

    def twins(self) -> tuple[torch.Generator, ...]:
        """Copies of the generators, for draws that must change nothing."""
        copies = tuple(torch.Generator() for _ in self.generators)
        for twin, generator in zip(copies, self.generators, strict=True):
            twin.set_state(generator.get_state())
        return copies

    def forget_derived_(self) -> None:
        """Drop what was derived from the state, before it changes."""
        self.known_width = self.known_marginals = self.known_upper = None
        if self.inner is not None:
            self.inner.forget_derived_()

    @property
    def tabulated(self) -> bool:
        """Whether mean and leverage of every arm are known: not for policies without a posterior."""
        return not isinstance(self.records, Statistics)

    def arm_mean(self) -> Tensor:
        """Posterior mean of every arm, `batch_shape x A`, reward units."""
        if isinstance(self.records, PartitionedProcess):
            return self.records.arm_mean()
        return self._model_mean(self._arms()).double() if self.table is None else self.table.mean()

    def arm_leverage(self) -> Tensor:
        """Posterior variance / λ of every arm, `batch_shape x A`."""
        if isinstance(self.records, PartitionedProcess):
            return self.records.arm_leverage()
        return self.posterior.leverage(self._arms()) if self.table is None else self.table.leverage

    def _arms(self) -> Tensor:
        return self.rows.source.chunk(slice(0, self.rows.num_arms)).expand(*self.rows.batch_shape, -1, -1)

    @property
    def tabulation(self) -> ArmTable | GrowingTable | Box:
        """The posterior on all arms, on those that were looked at, or on the points found in a box."""
        if self.box is not None:
            return self.box
        table = self.table if self.tree is None else self.tree.table
        assert table is not None
        return table

    def mean_at(self, index: Tensor) -> Tensor:
        """Posterior mean of arms (any number where the index is −1), `batch_shape x p`, reward units."""
        if isinstance(self.records, PartitionedProcess):
            return self.records.arm_mean().gather(-1, index.clamp_min(0))
        return self.tabulation.mean_at(index)

    def leverage_at(self, index: Tensor) -> Tensor:
        """Posterior variance / λ of arms (any number where the index is −1), `batch_shape x p`."""
        if isinstance(self.records, PartitionedProcess):
            return self.records.arm_leverage().gather(-1, index.clamp_min(0))
        return self.tabulation.leverage_at(index)

    def remember_(self, pulls: Pulls) -> None:
        """Keep the arms of a tell as the most recent ones; history that comes summed has no order and is left out."""
        if pulls.index is not None and pulls.mask is not None and not pulls.history:
            arms = torch.where(pulls.mask, self.rows.entry(pulls.index), -1)
            self.recent = (*self.recent, arms)[-RECENT:]

    def add_told_(self, counts: Tensor) -> None:
        """Count pulls told, `batch_shape x q`."""
        self._buffers["told"] = self.told + counts.sum(dim=-1)  # attributes of modules are slow to set

    def add_gains_(self, leverage: Tensor, counts: Tensor) -> None:
        """Add to the batched log-determinants the pulls of points of known leverage at the batch start, `batch_shape x p`."""
        if not self.counts_batches:
            return
        scale = leverage.new_tensor([[1.0], [3.0]])
        gains = (torch.log1p(scale * leverage.unsqueeze(-2)) * counts.unsqueeze(-2)).sum(dim=-1)
        self._buffers["batched_log_det"] = self.batched_log_det + gains[..., 0]
        self._buffers["batched_log_det_3"] = self.batched_log_det_3 + gains[..., 1]

    def progress(self, reads: frozenset[str], told: Tensor | None = None) -> Progress:
        """What a width that reads these of the costlier entries may depend on, after so many pulls (`batch_shape`)."""
        pulls = self.told if told is None else told
        dimension = torch.full_like(pulls, torch.nan)
        if "effective_dimension" in reads:
            dimension = (self.row_leverage() * self.statistics.weights).sum(dim=-1)
        whole, rows, sketch = self.tabulation if self.tree is None else self.tree, self.rows, self.posterior.sketch
        assert not isinstance(whole, GrowingTable)
        return Progress(
            t=pulls + 1,
            pulls=pulls.clamp_min(1),
            num_arms=rows.total,
            dim=rows.source.dim,
            log_det=self.log_det,
            batched_log_det=self.batched_log_det,
            batched_log_det_3=self.batched_log_det_3,
            effective_dimension=dimension,
            kappa2=whole.kappa2.expand_as(pulls),
            sketch_loss=torch.zeros_like(pulls) if sketch is None else sketch.loss,
        )

    def row_leverage(self) -> Tensor:
        """Leverage of every distinct point given the rewards told, `batch_shape x u`."""
        rows, statistics = self.rows, self.statistics
        arm, mask = rows.arm_of_row, statistics.mask
        leverage = self.leverage_at(arm)
        if rows.outside and bool((outside := (arm < 0) & mask).any()):
            leverage = torch.where(outside, self.process.leverage(statistics.points), leverage)
        return torch.where(mask, leverage, 0.0)

    def in_reward_units(self, mean: Tensor, variance: Tensor) -> Marginals:
        """Mean and variance of arms, `batch_shape x p`, as they are said to people: the model may have units of its own."""
        units = self.records.units if isinstance(self.records, GaussianProcess) else None
        marginals = Marginals(mean, variance)
        return marginals if units is None else units.marginals(marginals)

    def _model_mean(self, points: Tensor) -> Tensor:
        """Posterior mean of any points, `batch_shape x n x d` to `batch_shape x n`, in the units of `mean_at`."""
        process = self.process
        return (process.marginals(points, None) if isinstance(process, GaussianProcess) else process(points)).mean

    @torch.no_grad()
    def best(self, k: int) -> Recommendation:
        """The k arms with the highest posterior mean (average reward without a posterior) among those pulled."""
        statistics, arms, shape = self.statistics, self.rows.source, self.rows.batch_shape
        nan = torch.full((*shape, k), torch.nan, dtype=torch.float64, device=arms.device)
        if statistics.size == 0:
            empty = torch.full((*shape, k, arms.dim), torch.nan, dtype=arms.dtype, device=arms.device)
            return Recommendation(empty, torch.full(nan.shape, -1, device=arms.device), nan, nan.clone())
        pulled = statistics.mask & (statistics.weights > 0)
        arm = self.rows.arm_of_row
        if self.tabulated:
            mean = self.mean_at(arm)
            if bool(((arm < 0) & pulled).any()):
                mean = torch.where(arm < 0, self._model_mean(statistics.points), mean)
            variance = self.process.regularization * self.row_leverage()
        else:
            mean = statistics.sums / statistics.weights
            variance = torch.full_like(mean, torch.nan)
        k_here = min(k, mean.shape[-1])
        ranked = mean.masked_fill(~pulled, -torch.inf).sort(dim=-1, descending=True, stable=True)
        top = ranked.indices[..., :k_here]
        valid = pulled.gather(-1, top)
        told = self.in_reward_units(mean.gather(-1, top), variance.gather(-1, top))
        pad = (0, k - k_here)
        grow = torch.nn.functional.pad
        points = statistics.points.gather(-2, top.unsqueeze(-1).expand(*top.shape, statistics.points.shape[-1]))
        return Recommendation(
            grow(torch.where(valid.unsqueeze(-1), points, torch.nan), (0, 0, *pad), value=torch.nan).to(arms.dtype),
            grow(torch.where(valid, arm.gather(-1, top), -1), pad, value=-1),
            grow(torch.where(valid, told.mean, torch.nan), pad, value=torch.nan),
            grow(torch.where(valid, told.variance, torch.nan), pad, value=torch.nan),
        )

    @torch.no_grad()
    def best_arm(self) -> Tensor:
        """The arm that `best(1)` recommends, `batch_shape`; −1 before the first pull."""
        arm, statistics = self.rows.arm_of_row, self.statistics
        if statistics.size == 0 or not self.tabulated or self.rows.outside:
            return self.best(1).index.squeeze(-1)
        mean = self.mean_at(arm).masked_fill(arm < 0, -torch.inf)
        return arm.gather(-1, mean.argmax(dim=-1, keepdim=True)).squeeze(-1)

    # ------------------------------------------------------------------ going back, and being saved

    def snapshot(self, *, draws: bool = True) -> Callable[[], None]:
        """A way back: calling it restores this state. Nothing is copied, because updates never write in place.

        Args:
            draws: Whether the generators may be advanced meanwhile.
        """
        if not self._changing:
            self._changing = tuple(module for module in self.modules() if module._buffers)
        buffers = [(module, dict(module._buffers)) for module in self._changing]
        generators = [g.get_state() for g in self.generators] if draws else []
        posterior = None if isinstance(self.records, Statistics) else self.records.snapshot()
        kept = self.table if self.tree is None else self.tree.table
        table = None if kept is None else kept.snapshot()
        inner = self.inner.snapshot(draws=False) if self.inner is not None else None
        recent = self.recent

        def restore() -> None:
            self.forget_derived_()
            self.recent = recent
            for module, own in buffers:
                module._buffers.update(own)
            for generator, state in zip(self.generators, generators, strict=False):
                generator.set_state(state)
            if posterior is not None:
                posterior()
            if table is not None:
                table()
            if inner is not None:
                inner()

        return restore

    def get_extra_state(self) -> dict[str, Any]:
        """Generator states."""
        return {"generators": torch.stack([g.get_state() for g in self.generators])}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_extra_state` returned.

        Raises:
            StateError: If it does not hold the state of each generator; those of this state are as they were then.
        """
        states = self._checked_generators(state)
        self.forget_derived_()
        self.opening, self.recent = True, ()
        for generator, value in zip(self.generators, states, strict=True):
            generator.set_state(value)

    def _checked_generators(self, state: Any) -> list[Tensor]:
        """The generator states of a saved state, each tried on a generator that is thrown away."""
        try:
            # Copies, because torch reads a view with an offset as garbage.
            states = [value.cpu().clone() for value in state["generators"]]
            for value in states:
                torch.Generator().set_state(value)
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise StateError(
                f"the saved state holds no generator state that torch can read: {error}. Load a whole copy."
            ) from error
        here = len(self.generators)
        message = f"the saved state has {len(states)} generators, and here are {here}: load it with as many batch rows."
        require(len(states) == here, message, StateError)
        return states

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> State:
        super()._apply(fn, recurse)
        self.forget_derived_()
        if self.draws is not None:
            self.draws.forget()
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("pending_index", "pending_counts"):
            if prefix + name in state_dict:  # their size follows the open batch
                setattr(self, name, state_dict[prefix + name].to(self.log_det.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
