"""States of policies: one class per family of policies.

`SumsState` sums rewards. A `PosteriorState` also has the mean and the leverage of every arm: from one Gaussian process on
given arms (`TableState`), on the points of a box (`BoxState`) or on some of the arms (`TreeState`), or by one process per cell
(`PartitionedState`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from torchbandits.arms import ArmRows, ArmTable, Box, CellTree, GrowingTable, PosteriorDraws
from torchbandits.arms.rows import Summed
from torchbandits.buffered import Buffered
from torchbandits.errors import StateError, UnsupportedError, require
from torchbandits.gradients import without_gradients
from torchbandits.policies.host_copy import MOST, HostCopy
from torchbandits.policies.scale import ScaleWatch
from torchbandits.posteriors import GaussianProcess, PartitionedProcess, Statistics, aggregate
from torchbandits.transfers import to_device, to_host
from torchbandits.types import Marginals, Progress, Pulls, Recommendation, Selection, with_blanks
from torchbandits.widths import Width

RECENT = 40
"""Number of the latest pulls of a batch row that are kept, in order."""
_NO_POSTERIOR = "this policy keeps no posterior; use gp_ucb, bkb or batch_bkb to have one."
# A number of Python takes three times as long to add.
_ONE, _ZERO = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
SUMS = ("told", "log_det", "batched_log_det", "batched_log_det_3")
"""Names of the sums of a state: the number of pulls told, and three that confidence widths read."""


def _on_device(name: str) -> Any:
    """Property that reads one of the sums on the device of the arms."""

    def read(state: State) -> Tensor:
        return to_device(state.rows.source.device, state.sum_on_host(name))[0]

    return property(read)


class State(Buffered, ABC):
    """Base of all states: the rows of the statistics, the pending picks, and one generator per batch row.

    Args:
        rows: The arms and their rows.
        records: A posterior, or plain statistics for policies without one.
        generators: One CPU generator per batch row; held and advanced.
        box: The box that contains the arms; None if the arms are a given list.

    Buffers: `told` `batch_shape`, the number of pulls told, including pulls that the policy's memory dropped, and the other
    three sums that `progress` reads. These four buffers are always on the host, because every operation on such small tensors
    costs a kernel launch on a device. Read as attributes they are copies on the device of the arms, made without waiting.
    """

    told = _on_device("told")
    log_det = _on_device("log_det")
    batched_log_det = _on_device("batched_log_det")
    batched_log_det_3 = _on_device("batched_log_det_3")
    pending_index: Tensor
    pending_counts: Tensor
    statistics: Statistics
    _grows = ("pending_index", "pending_counts")
    tabulated: ClassVar[bool] = False
    """Whether mean and leverage of every arm are known."""
    unsettled: Selection | None = None
    """Picks that are still pending after the pulls that are being learned, or None. Set only while `Policy.update` runs."""
    directions: Tensor | None = None
    """−1 in batch rows that minimise, which recommend the lowest mean, and 1 in the others; None if every row maximises."""

    def __init__(
        self,
        rows: ArmRows,
        records: GaussianProcess | PartitionedProcess | Statistics,
        generators: Sequence[torch.Generator],
        box: Box | None = None,
    ) -> None:
        super().__init__()
        self._changing: tuple[nn.Module, ...] = ()
        # Whether some first picks may remain to be made; determined again after loading.
        self.opening = True
        self.rows, self.records, self.generators, self.box = rows, records, tuple(generators), box
        statistics = records if isinstance(records, Statistics) else records.statistics
        self._keep(rows=rows, records=records, statistics=statistics)
        device = rows.source.device
        for name in SUMS:
            # `register_buffer` refuses names of properties.
            self._buffers[name] = torch.zeros(rows.batch_shape, dtype=torch.float64)
        self.register_buffer("pending_index", torch.zeros(*rows.batch_shape, 0, dtype=torch.int64, device=device))
        self.register_buffer("pending_counts", torch.zeros(*rows.batch_shape, 0, dtype=torch.float64, device=device))

    def _keep(self, **parts: nn.Module) -> None:
        """Keep further references to registered modules as plain attributes, whose lookup is faster than nn.Module's."""
        self.__dict__.update(parts)

    @property
    def process(self) -> GaussianProcess | PartitionedProcess:
        """The posterior, or the posteriors of the cells. Raises `UnsupportedError` for policies without a posterior."""
        raise UnsupportedError(_NO_POSTERIOR)

    def arm_mean(self) -> Tensor:
        """Posterior mean of every arm, `batch_shape x A`, in the units of the model. Raises as `process` does."""
        raise UnsupportedError(_NO_POSTERIOR)

    def arm_leverage(self) -> Tensor:
        """Posterior variance / λ of every arm, `batch_shape x A`. Raises as `process` does."""
        raise UnsupportedError(_NO_POSTERIOR)

    def continuing_(self, other: State) -> None:
        """Take over the progress of a state of the same posterior on other arms; nothing is pending then."""
        for name in SUMS:
            self._buffers[name] = other._buffers[name]

    def sum_on_host(self, name: str) -> Tensor:
        """One of the sums, `batch_shape`, on the host: `"told"`, `"log_det"`, `"batched_log_det"` or `"batched_log_det_3"`."""
        return cast(Tensor, self._buffers[name])

    def set_sums_(self, **sums: Tensor) -> None:
        """Replace sums, `batch_shape` each, which are copied to the host together."""
        self._buffers.update(zip(sums, to_host(*sums.values()), strict=True))

    def set_pending_(self, index: Tensor, mask: Tensor) -> None:
        """Declare the pending picks, `batch_shape x q`; an empty index clears them."""
        self.pending_index, self.pending_counts = aggregate(self.rows.entry(index), mask)

    @property
    def has_pending(self) -> bool:
        """Whether pending picks are hallucinated, here or in a posterior that other arms had before."""
        return bool(self.pending_index.shape[-1])

    def forget_derived_(self) -> None:
        """Drop the quantities derived from the state, before it changes."""

    def add_told_(self, counts: Tensor) -> None:
        """Count pulls told, `batch_shape x q`."""
        buffers: Any = self._buffers
        buffers["told"] = buffers["told"] + counts.sum(dim=-1).cpu()

    def told_with(self, pulls: Pulls) -> Tensor:
        """Number of pulls told, `batch_shape`, on the host, including `pulls`, which `add_told_` has not counted yet."""
        return self.sum_on_host("told") + (pulls.host or pulls).num_rewards.sum(dim=-1).cpu()

    def in_reward_units(self, mean: Tensor, variance: Tensor) -> Marginals:
        """Mean and variance of arms, `batch_shape x p`, converted from the units of the model to reward units."""
        return Marginals(mean, variance)

    def found_(self, selection: Selection) -> None:
        """Add the points of picks in a box as arms, at the indices of the picks."""
        if self.box is not None:
            self.box.find_(selection.points, selection.index, self.statistics)

    def needed_of(self, index: Tensor) -> tuple[Tensor, ...]:
        """Tensors that will be read when pulls of these arms (`batch_shape x q`, −1 where padded) are learned. They are copied
        to the host together with the rewards, and passed to `foresee_`."""
        return ()

    def foresee_(self, here: Tensor, *beside: Tensor) -> None:
        """Cache the host copies of the tensors that `needed_of` returned."""

    # ------------------------------------------------------------------ the recommendation

    @abstractmethod
    def row_marginals(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the distinct points pulled, `batch_shape x u` each; the variance is NaN without a posterior."""

    @without_gradients
    def best(self, k: int, *, elsewhere: bool = False) -> Recommendation:
        """The k arms with the highest posterior mean (average reward without a posterior) among those pulled.

        Args:
            k: Number of arms.
            elsewhere: Whether pulled points that are none of the arms compete with them. In a box they always do.
        """
        statistics, arms, shape = self.statistics, self.rows.source, self.rows.batch_shape
        nan = torch.full((*shape, k), torch.nan, dtype=torch.float64, device=arms.device)
        if statistics.size == 0:
            empty = torch.full((*shape, k, arms.dim), torch.nan, dtype=arms.dtype, device=arms.device)
            return Recommendation(empty, torch.full(nan.shape, -1, device=arms.device), nan, nan.clone())
        pulled, arm = statistics.pulled, self.rows.arm_of_row
        if self.rows.outside and not (elsewhere or self.rows.growing):
            pulled = pulled & (arm >= 0)
        mean, variance = self.row_marginals()
        k_here = min(k, mean.shape[-1])
        signed = (mean if self.directions is None else self.directions * mean).masked_fill(~pulled, -torch.inf)
        signed = signed.scatter(-1, self.first_of(signed), torch.inf)
        ranked = signed.sort(dim=-1, descending=True, stable=True)
        top = ranked.indices[..., :k_here]
        valid = pulled.gather(-1, top)
        marginals = self.in_reward_units(mean.gather(-1, top), variance.gather(-1, top))
        best = Recommendation(statistics.at(top).to(arms.dtype), arm.gather(-1, top), marginals.mean, marginals.variance)
        return with_blanks(best, valid, k)

    def first_of(self, mean: Tensor) -> Tensor:
        """The place of the point that is recommended, `batch_shape x 1`, given posterior means of the distinct points: larger
        is better, −∞ where they are not recommended (`batch_shape x u`). It is that of the highest mean."""
        return mean.argmax(dim=-1, keepdim=True)

    def best_arm(self) -> Tensor:
        """The arm that `best(1)` recommends, `batch_shape`; −1 before the first pull."""
        return self.best(1).index.squeeze(-1)

    # ------------------------------------------------------------------ snapshots and saved states

    def snapshot(self, *, draws: bool = True) -> Callable[[], None]:
        """Take a snapshot: return a function that restores this state. Nothing is copied, because updates never write in place.

        Args:
            draws: Whether the generators may be advanced before the state is restored.
        """
        if not self._changing:
            # Without the state itself, which would then be kept alive, with all that it holds, until a garbage collection.
            self._changing = tuple(module for module in self.modules() if module._buffers and module is not self)
        buffers = []
        for module in (self, *self._changing):
            buffers.append((module, dict(module._buffers)))
        generators = [g.get_state() for g in self.generators] if draws else []
        parts = self._snapshots()

        def restore() -> None:
            self.forget_derived_()
            for module, own in buffers:
                module._buffers.update(own)
            for generator, state in zip(self.generators, generators, strict=False):
                generator.set_state(state)
            for part in parts:
                part()

        return restore

    def _snapshots(self) -> list[Callable[[], None]]:
        """Functions that restore the parts of the state outside buffers."""
        return []

    def get_extra_state(self) -> dict[str, Any]:
        """Generator states."""
        return {"generators": torch.stack([g.get_state() for g in self.generators])}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `get_extra_state`.

        Raises:
            StateError: If a generator's state is missing or invalid; the generators of this state are then unchanged.
        """
        states = self._checked_generators(state)
        self.forget_derived_()
        self.opening = True
        for generator, value in zip(self.generators, states, strict=True):
            generator.set_state(value)

    def _checked_generators(self, state: Any) -> list[Tensor]:
        """The generator states of a saved state, each validated on a temporary generator."""
        try:
            # Copies, because torch misreads a view with an offset.
            states = [value.cpu().clone() for value in state["generators"]]
            for value in states:
                torch.Generator().set_state(value)
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise StateError(
                f"the saved state holds no generator state that torch can read: {error}. Load a whole copy."
            ) from error
        count = len(self.generators)
        message = f"the saved state has {len(states)} generators, and here are {count}: load it with as many batch rows."
        require(len(states) == count, message, StateError)
        return states

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> State:
        super()._apply(fn, recurse)
        self.set_sums_(**{name: self.sum_on_host(name) for name in SUMS})
        self.forget_derived_()
        return self


class SumsState(State):
    """The state of a policy without a posterior: sums of rewards. It recommends by average reward."""

    def row_marginals(self) -> tuple[Tensor, Tensor]:
        """Average rewards of the distinct points pulled, `batch_shape x u`, and NaN for their variances."""
        mean = self.statistics.sums / self.statistics.weights
        return mean, torch.full_like(mean, torch.nan)


class PosteriorState(State):
    """A state with the mean and the leverage (posterior variance / λ) of every arm."""

    records: GaussianProcess | PartitionedProcess
    tabulated: ClassVar[bool] = True
    pull_weight: Tensor | None = None
    """Weight of a pull in each batch row, where rows differ in their noise; None for 1."""

    @property
    def process(self) -> GaussianProcess | PartitionedProcess:
        """The posterior, or the posteriors of the cells."""
        return self.records

    def set_pending_(self, index: Tensor, mask: Tensor) -> None:
        """Declare the pending picks, `batch_shape x q`, here and to the posterior."""
        super().set_pending_(index, mask)
        weight, counts = self.pull_weight, self.pending_counts
        self.records.set_pending_(self.rows.points(self.pending_index), counts if weight is None else weight * counts)

    @property
    def has_pending(self) -> bool:
        """Whether pending picks are hallucinated, here or in a posterior that other arms had before."""
        return bool(self.pending_index.shape[-1]) or bool(self.records.pending.shape[-1])

    @abstractmethod
    def arm_mean(self) -> Tensor:
        """Posterior mean of every arm, `batch_shape x A`, in the units of the model."""

    @abstractmethod
    def arm_leverage(self) -> Tensor:
        """Leverage of every arm, `batch_shape x A`."""

    def mean_at(self, index: Tensor) -> Tensor:
        """Posterior mean of arms (any number where the index is −1), `batch_shape x p`, in the units of the model."""
        return self.arm_mean().gather(-1, index.clamp_min(0))

    def leverage_at(self, index: Tensor) -> Tensor:
        """Leverage of arms (any number where the index is −1), `batch_shape x p`."""
        return self.arm_leverage().gather(-1, index.clamp_min(0))

    def row_leverage(self) -> Tensor:
        """Leverage of every distinct point given the rewards told, `batch_shape x u`."""
        rows, statistics = self.rows, self.statistics
        arm: Tensor = rows._buffers["arm_of_row"]
        leverage = self.leverage_at(arm)
        # A single batch row has no padding.
        if not rows.outside and arm.dim() == 1:
            return leverage
        mask = statistics.mask
        if rows.outside and bool((outside := (arm < 0) & mask).any()):
            leverage = torch.where(outside, self.process.leverage(statistics.points), leverage)
        return leverage * mask

    def row_leverage_or_any(self) -> Tensor:
        """`row_leverage`, but any number where padded."""
        return self.row_leverage()

    def row_marginals(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the distinct points pulled, `batch_shape x u` each."""
        statistics, arm = self.statistics, self.rows.arm_of_row
        mean, pulled = self.mean_at(arm), statistics.pulled
        if bool(((arm < 0) & pulled).any()):
            mean = torch.where(arm < 0, self.model_mean(statistics.points), mean)
        return mean, self.process.regularization * self.row_leverage()

    def model_mean(self, points: Tensor) -> Tensor:
        """Posterior mean of any points, `batch_shape x n x d` to `batch_shape x n`, in the units of `mean_at`."""
        return self.process(points).mean

    @without_gradients
    def best_arm(self) -> Tensor:
        """The arm that `best(1)` recommends, `batch_shape`; −1 before the first pull."""
        if self.statistics.size == 0 or self.rows.outside:
            return super().best_arm()
        # Points of weight 0 were forgotten.
        arm = self.rows.arm_of_row.masked_fill(self.statistics.weights <= 0, -1)
        mean = self.mean_at(arm)
        mean = (mean if self.directions is None else self.directions * mean).masked_fill(arm < 0, -torch.inf)
        return arm.gather(-1, self.first_of(mean)).squeeze(-1)

    def _snapshots(self) -> list[Callable[[], None]]:
        return [self.records.snapshot()]


class PartitionedState(PosteriorState):
    """The state of a policy with one posterior per cell of the arms."""

    records: PartitionedProcess

    def __init__(self, rows: ArmRows, posterior: PartitionedProcess, generators: Sequence[torch.Generator]) -> None:
        super().__init__(rows, posterior, generators)
        self.forget_derived_()

    def forget_derived_(self) -> None:
        """Drop the widths and bounds that were derived from the state, before it changes."""
        self.known_width: Tensor | None = None
        self.known_upper: Tensor | None = None
        self.known_marginals: tuple[Tensor, Tensor] | None = None

    def arm_mean(self) -> Tensor:
        """Posterior mean of every arm, `batch_shape x A`, reward units."""
        return self.records.arm_mean()

    def arm_leverage(self) -> Tensor:
        """Leverage of every arm, `batch_shape x A`."""
        return self.records.arm_leverage()


@dataclass(slots=True)
class Derived:
    """Quantities derived from a state, which every change of the state drops.

    Attributes:
        width: `batch_shape`, confidence width.
        width_on_host: The same on the host.
        marginals: Mean and standard deviation of every arm, `batch_shape x A` each.
        upper: `batch_shape x A`, upper confidence bounds.
        upper_of: The width of these bounds, the same object.
        highest: `batch_shape`, the largest of these bounds, on the host; None where it is not known.
        best: `1`, the arm of the largest of these bounds; None where it is not known.
    """

    width: Tensor | None = None
    width_on_host: Tensor | None = None
    marginals: tuple[Tensor, Tensor] | None = None
    upper: Tensor | None = None
    upper_of: Tensor | None = None
    highest: Tensor | None = None
    best: Tensor | None = None


class GaussianState(PosteriorState):
    """The state of a policy with one Gaussian process for all arms.

    Args:
        rows: The arms and their rows.
        posterior: Posterior of f.
        generators: One CPU generator per batch row; held and advanced.
        box: The box that the arms are points of; None where arms are given.
        counts_batches: Whether the policy's width reads the batched log-determinants.
    """

    records: GaussianProcess
    posterior: GaussianProcess

    def __init__(
        self,
        rows: ArmRows,
        posterior: GaussianProcess,
        generators: Sequence[torch.Generator],
        box: Box | None = None,
        *,
        counts_batches: bool = True,
    ) -> None:
        super().__init__(rows, posterior, generators, box)
        self._keep(posterior=posterior)
        self.counts_batches = counts_batches
        # Warns if the scale of rewards or arms is far from the scale of the kernel.
        self.scale = ScaleWatch()
        self.derived = Derived()
        # The last `kappa2`, and the same on the host.
        self._known_kappa2: tuple[Tensor, Tensor] | None = None
        # For policies that warn about repeated pulls of an arm: up to 40 of the last arms told in each batch row, in order.
        # Not saved, and replaced as a whole.
        self.recent: tuple[tuple[int, ...], ...] = ((),) * len(self.generators)
        self.repeats_said = False

    @property
    @abstractmethod
    def tabulation(self) -> ArmTable | GrowingTable | Box:
        """The posterior on all arms, on the evaluated arms, or on the points found in a box."""

    @property
    @abstractmethod
    def kappa2(self) -> Tensor:
        """The largest k(x, x), `batch_shape` or a number."""

    def arm_mean(self) -> Tensor:
        """Posterior mean of every arm, `batch_shape x A`, in the units of the model."""
        return self.model_mean(self._arms()).double()

    def arm_leverage(self) -> Tensor:
        """Leverage of every arm, `batch_shape x A`."""
        return self.posterior.leverage(self._arms())

    def _arms(self) -> Tensor:
        return self.rows.source.chunk(slice(0, self.rows.num_arms)).expand(*self.rows.batch_shape, -1, -1)

    def mean_at(self, index: Tensor) -> Tensor:
        """Posterior mean of arms (any number where the index is −1), `batch_shape x p`, in the units of the model."""
        return self.tabulation.mean_at(index)

    def leverage_at(self, index: Tensor) -> Tensor:
        """Leverage of arms (any number where the index is −1), `batch_shape x p`."""
        return self.tabulation.leverage_at(index)

    def pulled_leverage(self, summed: Summed) -> Tensor:
        """Leverage of pulled arms (any number where padded), `batch_shape x p`, on the host."""
        return self.leverage_at(summed.distinct).cpu()

    def row_leverage_on_host(self) -> Tensor:
        """`row_leverage` on the host."""
        return self.row_leverage().cpu()

    def model_mean(self, points: Tensor) -> Tensor:
        """Posterior mean of any points, `batch_shape x n x d` to `batch_shape x n`, in the units of `mean_at`."""
        return self.posterior.marginals(points, None).mean

    def first_of(self, mean: Tensor) -> Tensor:
        """The place of the point that is recommended, by `Units.recommended` where units are learned."""
        units = self.posterior.units
        return super().first_of(mean) if units is None else units.recommended(self.statistics, mean, self.directions)

    def in_reward_units(self, mean: Tensor, variance: Tensor) -> Marginals:
        """Mean and variance of arms, `batch_shape x p`, in reward units."""
        marginals, units = Marginals(mean, variance), self.posterior.units
        return marginals if units is None else units.marginals(marginals)

    def continuing_(self, other: State) -> None:
        """Take over the progress of a state of the same posterior on other arms; nothing is pending then."""
        if isinstance(other, GaussianState):
            self.scale, self.repeats_said = other.scale, other.repeats_said
        super().continuing_(other)

    def forget_derived_(self) -> None:
        """Drop the quantities derived from the state, before it changes."""
        self.__dict__["derived"] = Derived()

    def remember_(self, pulls: Pulls) -> None:
        """Append the arms of a tell to `recent`. Summed history has no order and is excluded."""
        if pulls.index is not None and pulls.mask is not None and not pulls.history:
            entries = self.rows.entry(pulls.index).masked_fill(~pulls.mask, -1).reshape(len(self.recent), -1).tolist()
            arms = zip(self.recent, entries, strict=True)
            self.recent = tuple((*before, *(arm for arm in row if arm >= 0))[-RECENT:] for before, row in arms)

    def _snapshots(self) -> list[Callable[[], None]]:
        return [self.records.snapshot(), partial(setattr, self, "recent", self.recent)]

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the generators. Saved states do not hold the last pulls, which are therefore cleared."""
        super().set_extra_state(state)
        self.recent = ((),) * len(self.generators)

    def add_gains_(self, leverage: Tensor, counts: Tensor) -> None:
        """Add the gains of pulls to the batched log-determinants, given the leverages of the points at the batch start,
        `batch_shape x p`, on the host or on the device."""
        scale = leverage.new_tensor([[1.0], [3.0]])
        gains = (torch.log1p(scale * leverage.unsqueeze(-2)) * counts.unsqueeze(-2)).sum(dim=-1)
        gains, buffers = gains.cpu(), cast(Any, self._buffers)
        buffers["batched_log_det"] = buffers["batched_log_det"] + gains[..., 0]
        buffers["batched_log_det_3"] = buffers["batched_log_det_3"] + gains[..., 1]

    def width_of(self, confidence: Width, told: Tensor | None = None) -> Tensor:
        """A confidence width, `batch_shape`, on the device of the arms; `told` as in `progress`."""
        return to_device(self.rows.source.device, confidence(self.progress(confidence.reads, told)))[0]

    def progress(self, reads: frozenset[str], told: Tensor | None = None) -> Progress:
        """The inputs of a confidence width after `told` pulls (`batch_shape`; by default those of this state). `reads` names
        the costlier entries that the width needs. The result is on the host; if it includes the effective dimension, it is on
        the device, so that nothing waits for the device."""
        buffers: Any = self._buffers
        pulls, log_det = buffers["told"] if told is None else told, buffers["log_det"]
        batched, batched_3 = buffers["batched_log_det"], buffers["batched_log_det_3"]
        rows, sketch, kappa2, known = self.rows, self.posterior.sketch, self.kappa2, self._known_kappa2
        t, pulls, loss = pulls + _ONE, pulls.clamp_min(1), _ZERO if sketch is None else sketch.loss
        if sketch is None and pulls.dim():
            loss = torch.zeros_like(pulls)
        if "effective_dimension" in reads:
            # Padded places have no weight.
            dimension = (self.row_leverage_or_any() * self.statistics.weights).sum(dim=-1)
            if dimension.device.type != "cpu":
                on_host = (t, pulls, log_det, batched, batched_3, *(() if sketch is not None else (loss,)))
                t, pulls, log_det, batched, batched_3, *moved_loss = to_device(dimension.device, *on_host)
                loss = moved_loss[0] if moved_loss else loss
        else:
            dimension = torch.full_like(pulls, torch.nan)
            if known is None or known[0] is not kappa2:
                self._known_kappa2 = known = (kappa2, kappa2.cpu())
            kappa2 = known[1]
        return Progress(
            t=t,
            pulls=pulls,
            num_arms=rows.total,
            dim=rows.source.dim,
            log_det=log_det,
            batched_log_det=batched,
            batched_log_det_3=batched_3,
            effective_dimension=dimension,
            kappa2=kappa2 if kappa2.shape == pulls.shape else kappa2.expand_as(pulls),
            sketch_loss=loss if sketch is None else loss.to(pulls.device),
            points=self.statistics.num_rows.to(pulls.device) if "points" in reads else None,
        )


class TableState(GaussianState):
    """A Gaussian process tabulated on given arms.

    Args:
        table: The posterior on the arms.
        generators: One CPU generator per batch row; held and advanced.
        draws: Draws of the posterior, for a policy that picks by them.
        counts_batches: See `GaussianState`.
    """

    table: ArmTable

    def __init__(
        self,
        table: ArmTable,
        generators: Sequence[torch.Generator],
        *,
        draws: PosteriorDraws | None = None,
        counts_batches: bool = True,
    ) -> None:
        super().__init__(table.rows, table.posterior, generators, counts_batches=counts_batches)
        self.table = table
        self._keep(table=table)
        self._row_leverage: tuple[Tensor, Tensor, Tensor] | None = None
        # Leverages, the arms of the rows, and the leverages of these on the host.
        self._foreseen_rows: tuple[Tensor, Tensor, Tensor] | None = None
        self.draws = draws

    @property
    def tabulation(self) -> ArmTable:
        """The posterior on all arms."""
        return self.table

    @property
    def kappa2(self) -> Tensor:
        """The largest k(x, x) of an arm or a pulled point."""
        return self.table.kappa2

    def arm_mean(self) -> Tensor:
        """Posterior mean of every arm, `batch_shape x A`, in the units of the model."""
        return self.table.mean()

    def arm_leverage(self) -> Tensor:
        """Leverage of every arm, `batch_shape x A`."""
        return self.table.leverage

    def pulled_leverage(self, summed: Summed) -> Tensor:
        """Leverage of pulled arms (any number where padded), `batch_shape x p`, on the host."""
        return self.table.pulled_leverage(summed)

    def needed_of(self, index: Tensor) -> tuple[Tensor, ...]:
        """Leverages and regression outputs of the arms; for a sparse posterior leverages of the rows, too."""
        if self.rows.sharded:
            return ()
        of_table = self.table.needed_of(index)
        return (*of_table, self.row_leverage_or_any()) if self.posterior.sparse else of_table

    def foresee_(self, here: Tensor, *beside: Tensor) -> None:
        """Cache the host copies until the state changes."""
        self.table.foresee_(here, *beside[:2])
        if len(beside) > 2:
            self._foreseen_rows = (self.table.leverage, self.rows.arm_of_row, beside[2])

    def row_leverage_on_host(self) -> Tensor:
        """`row_leverage` on the host, from the copy of `foresee_` if there is one."""
        known = self._foreseen_rows
        if known is None or known[0] is not self.table.leverage or known[1] is not self.rows.arm_of_row:
            return self.row_leverage().cpu()
        # A single batch row has no padding.
        return known[2] if known[2].dim() == 1 else known[2] * self.statistics.mask_on_host

    def row_leverage_or_any(self) -> Tensor:
        """`row_leverage`, but any number where padded; cached for the current leverages and rows, which are replaced when they
        change."""
        buffers, rows = self.table._buffers, self.rows
        leverage, arm, known = buffers["leverage"], rows._buffers["arm_of_row"], self._row_leverage
        if known is None or known[0] is not leverage or known[1] is not arm or rows.outside:
            found = super().row_leverage() if rows.outside or arm.dim() == 1 else self.table.leverage_at(arm)
            self.__dict__["_row_leverage"] = known = (leverage, arm, found)
        return known[2]

    def row_leverage(self) -> Tensor:
        """Leverage of every distinct point given the rewards told, `batch_shape x u`."""
        found = self.row_leverage_or_any()
        return found if self.rows.outside or found.dim() == 1 else found * self.statistics.mask

    def _snapshots(self) -> list[Callable[[], None]]:
        # The snapshots of the base class are written out here, because every call counts in a small step.
        return [self.records.snapshot(), partial(setattr, self, "recent", self.recent), self.table.snapshot()]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TableState:
        super()._apply(fn, recurse)
        if self.draws is not None:
            self.draws.forget()
        return self


def check_no_box(state: object, what: str) -> None:
    """Refuse to compare the arms of a box.

    Raises:
        UnsupportedError: If this is the state of a bandit on a box.
    """
    message = f"{what} compares the arms of a list, and this bandit is on a box (bounds=): give it a list of points instead."
    require(not isinstance(state, BoxState), message, UnsupportedError)


class BoxState(GaussianState):
    """A Gaussian process whose arms are the picked points of a box."""

    box: Box

    def __init__(self, box: Box, generators: Sequence[torch.Generator], *, counts_batches: bool = True) -> None:
        super().__init__(box.rows, box.posterior, generators, box, counts_batches=counts_batches)
        # For a state on a device: its copy on the host, if there is one.
        self.kept_copy: HostCopy | None = None

    @property
    def host_copy(self) -> HostCopy | None:
        """The copy on the host in which searches are made. None for a state on the host, and for a posterior that is large
        enough to be searched on the device."""
        posterior = self.posterior
        m = posterior.statistics.size if posterior.finite is None else posterior.finite.num_features
        if self.pending_index.device.type == "cpu" or m * m * self.rows.batch_shape.numel() > MOST * MOST:
            self.kept_copy = None
        elif self.kept_copy is None or not self.kept_copy.fits:
            self.kept_copy = HostCopy(self)
        return self.kept_copy

    def here(self) -> BoxState:
        """This state, or its copy on the host, to read from."""
        copy = self.host_copy
        return self if copy is None else cast(BoxState, copy.follow())

    def progress(self, reads: frozenset[str], told: Tensor | None = None) -> Progress:
        """See `GaussianState.progress`; computed by the copy on the host if there is one."""
        state = self.here()
        return super().progress(reads, told) if state is self else state.progress(reads, told)

    def found_(self, selection: Selection) -> None:
        """Add the points of picks as arms, at the indices of the picks."""
        copy = self.host_copy
        if copy is None:
            super().found_(selection)
            return
        points, index = to_host(selection.points, selection.index)
        copy.change_(lambda own: own.box.find_(points, index, own.statistics))

    @property
    def tabulation(self) -> Box:
        """The posterior on the points found."""
        return self.box

    @property
    def kappa2(self) -> Tensor:
        """The largest k(x, x) of a point."""
        return self.box.kappa2

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BoxState:
        self.kept_copy = None
        super()._apply(fn, recurse)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.kept_copy = None
        super()._load_from_state_dict(state_dict, prefix, *args)


class TreeState(GaussianState):
    """A Gaussian process evaluated at some of the arms only, the representatives of a tree of cells."""

    tree: CellTree

    def __init__(self, tree: CellTree, generators: Sequence[torch.Generator], *, counts_batches: bool = True) -> None:
        super().__init__(tree.table.rows, tree.table.posterior, generators, counts_batches=counts_batches)
        self.tree = tree

    @property
    def tabulation(self) -> GrowingTable:
        """The posterior on the evaluated arms."""
        return self.tree.table

    @property
    def kappa2(self) -> Tensor:
        """The largest k(x, x)."""
        return self.tree.kappa2

    def _snapshots(self) -> list[Callable[[], None]]:
        return [*super()._snapshots(), self.tree.table.snapshot()]
