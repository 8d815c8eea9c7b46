"""The loop of a run: a policy, its state and the open picks.

The loop neither writes to a journal nor checks arguments, except for costs and known outcomes, which are checked against the
arms of the state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from torchbandits.aims import normal_scores
from torchbandits.arms import ArmRows, matches, stand_ins
from torchbandits.checks import check_costs, check_known
from torchbandits.constraints import counts_of
from torchbandits.errors import NumericalError, StateError, TorchBanditsError, UnsupportedError, require
from torchbandits.failures import Failures
from torchbandits.gradients import without_gradients
from torchbandits.policies import Policy, State
from torchbandits.policies.learning import complete_, saved_briefly
from torchbandits.policies.state import TableState
from torchbandits.posteriors import GaussianProcess, PartitionedProcess
from torchbandits.precision import full_precision
from torchbandits.reporting import certificate, report_of
from torchbandits.selections import answered, carried, duplicate, joined, without
from torchbandits.sources import ArmSource
from torchbandits.threads import MANY_NUMBERS, threads
from torchbandits.types import FitReport, PickMask, Picks, Pulls, Recommendation, Report, Selection

Given = ParamSpec("Given")
Result = TypeVar("Result")


def step(method: Callable[Concatenate[Loop, Given], Result]) -> Callable[Concatenate[Loop, Given], Result]:
    """Decorator that runs a method of a loop with matrix products in full precision, and on one thread unless there are so many
    arms that several threads pay off."""

    @wraps(method)
    def on_few_threads(self: Loop, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            if self.narrow:
                with full_precision(), self.few_threads():
                    return method(self, *args, **kwargs)
            # Skip setting the number of threads if it is already one.
            if not self.large and torch.get_num_threads() == 1:
                return method(self, *args, **kwargs)
            with self.few_threads():
                return method(self, *args, **kwargs)
        except torch.linalg.LinAlgError as error:
            raise NumericalError(
                f"a factorisation failed: {error} Check the size of the rewards and the kernel's hyper-parameters, or use a "
                "larger λ."
            ) from error

    return on_few_threads


class Loop:
    """A policy, its state and the open picks.

    `Bandit`, `Worker`, `ContextualBandit`, `run` and the replay of journals are built on this class. Arguments are not checked:
    callers must do so. Methods that change the loop and may fail half-way must be called within `all_or_nothing`.

    Args:
        policy: The policy that selects and learns.
        state: A state of this policy. The loop owns it from now on, and replaces or changes it.

    Attributes:
        policy: The policy that was passed in.
        state: The learned state.
        open: The picks that were asked for and have been neither told nor forgotten, or None.
        moved: Whether the arms were replaced, here or before the state was saved, so that earlier selections may have other
            indices.
        failures: What failed evaluations taught; None before the first one, and for policies that do not learn from them.
        batch_shape: Leading dimensions.
        device: Device of the arms and the posterior.
        large: Whether several threads pay off for an operation on all arms.
        narrow: Whether the arms are float32.
    """

    def __init__(self, policy: Policy, state: State) -> None:
        self.policy = policy
        self.open: Selection | None = None
        self.moved = False
        self.failures: Failures | None = None
        # Whether the state has the open picks as pending. They are passed to it lazily, before it is next read.
        self._synced = True
        # Undoes a change that an interrupt left incomplete. If it is set, the next change calls it first.
        self._undo: Callable[[], None] | None = None
        self._set_state(state)

    @classmethod
    def fresh(
        cls,
        policy: Policy,
        domain: Tensor | ArmSource,
        generators: Sequence[torch.Generator],
        batch_shape: torch.Size,
        *,
        costs: Any = None,
        known: Any = None,
        box: bool = False,
    ) -> Loop:
        """A loop without observations, on arms or in a box.

        Args:
            policy: The policy that selects and learns.
            domain: Arms that the policy can read, or the corners of a box. They are not copied.
            generators: One per batch row.
            batch_shape: Leading dimensions.
            costs: Costs of the arms, as for `costs_for`.
            known: Known outcomes of the arms, as for `known_for`.
            box: Whether the domain is a box.
        """
        with full_precision():
            state = (policy.init_box if box else policy.init)(cast(Tensor, domain), generators, batch_shape)
        state.rows.costs = costs_for(policy, state.rows, costs)
        _give_known_(policy, state.rows, known)
        return cls(policy, state)

    def _set_state(self, state: State) -> None:
        rows = state.rows
        self.state, self.batch_shape, self.device = state, rows.batch_shape, rows.source.device
        self.large = rows.num_arms * self.batch_shape.numel() >= MANY_NUMBERS
        self.narrow = rows.source.dtype == torch.float32

    def few_threads(self) -> threads:
        """A context manager that uses one thread, or several if the operations on the arms are large enough."""
        return threads(many=self.large)

    # ------------------------------------------------------------------ reading

    @property
    def arms(self) -> Tensor | ArmSource:
        """The arms, `A x d` or `batch_shape x A x d`, or the source that they are read from."""
        rows = self.state.rows
        return rows.source if rows.streamed else rows.arms

    @property
    def num_arms(self) -> int:
        """Number of arms on this rank, A."""
        return self.state.rows.num_arms

    @property
    def total(self) -> int:
        """Number of arms on all ranks. Arm indices are below this number."""
        return self.state.rows.total

    @property
    def pulls(self) -> Tensor:
        """Total number of pulls told, `batch_shape`; not a copy."""
        return self.state.told

    @property
    def counts(self) -> Tensor:
        """Number of pulls learned for each arm, `batch_shape x A`. Exact duplicates of an arm share one number."""
        return self.state.rows.counts(self.state.statistics.weights)

    @property
    def width(self) -> Tensor:
        """The confidence width, which multiplies the posterior standard deviation, `batch_shape`."""
        return self.policy.width(self.state).clone()

    @property
    def process(self) -> GaussianProcess | PartitionedProcess:
        """The posterior, with the open picks as pending."""
        self.sync_()
        return self.state.process

    def noise_variance(self) -> float:
        """Noise variance of a reward of weight 1, reward units squared.

        Raises:
            UnsupportedError: For a policy that does not accept noise variances of single rewards.
        """
        variance = self.policy.noise_variance(self.state)
        if variance is None:
            raise UnsupportedError(
                "this policy takes no noise variance of single rewards: leave out noise_var=, or use gp_ucb, bkb, batch_bkb or "
                "another policy with one Gaussian process, a noise_std and no entropy threshold or sketch."
            )
        return variance

    def points(self, index: Picks) -> Tensor:
        """The arms at `index`, `batch_shape x q x d` (an arbitrary arm where the index is −1)."""
        return self.state.rows.points(index)

    @step
    def best_arm(self) -> Tensor:
        """The recommended arm, `batch_shape`; −1 before the first pull. Cost O(u)."""
        return self.state.best_arm()

    def named(self, arm: Tensor) -> Tensor:
        """The indices of arms, `batch_shape` (−1 for none), that stay the same however the list of arms is made up."""
        return arm

    @step
    def best(self, k: int) -> Recommendation:
        """The k arms with the highest posterior mean among the pulled arms. Cost O(u)."""
        return self.state.best(k)

    # ------------------------------------------------------------------ selecting

    @step
    def select(
        self, limit: Tensor | None = None, available: Tensor | None = None, exactly: int | None = None
    ) -> tuple[Selection, tuple[Tensor, ...]]:
        """Select additional picks, with the open picks as pending. Also returns the generator states after the draws (empty
        without draws).

        The loop is unchanged. The arguments are those of `Policy.select`. A policy returns the first of arms with equal
        features; if that one is not available, it is replaced by one that is.
        """
        # Every call counts in a small step.
        if self.open is not None or self.state.has_pending:
            self._sync()
        given = available
        if self.failures is not None:
            available = self.likely(given, exactly or 1)
        selection, evidence = self.policy.select(self.state, limit=limit, available=available, exactly=exactly)
        if self.failures is not None:
            wanted = exactly or self.policy.full_batch
            if self._ran_out(selection, available, wanted, limit):
                available = self.likely(given, wanted + (0 if self.open is None else len(self.open)))
                selection, evidence = self.policy.select(self.state, limit=limit, available=available, exactly=exactly)
        if available is not None and self.state.rows.first is not None:
            selection = replace(selection, index=self.on_offer(selection.index, available))
        return selection, evidence.generator_states

    def likely(self, available: Tensor | None, count: int = 1) -> Tensor | None:
        """The arms on offer without those that are likely to fail, `batch_shape x A`, but `count` different arms if there are
        as many; None for all arms."""
        if self.failures is None:
            return available
        competing = self.state.rows.competing
        if competing is not None:
            available = competing if available is None else available & competing
        if available is not None:
            available = self._of_pulls(available.expand(*self.batch_shape, -1))
        left = self.failures.left_in(available, count)
        return (left.unsqueeze(-2) if self.policy.outcomes else left).expand(*self.batch_shape, -1)

    def _ran_out(self, selection: Selection, available: Tensor | None, wanted: int, limit: Tensor | None) -> bool:
        """Whether a batch row has fewer picks than wanted, and no further arm among those available that is not open."""
        picked = selection.mask.sum(dim=-1)
        most = torch.full_like(picked, wanted) if limit is None else limit.to(picked).clamp_max(wanted)
        short = picked < most
        if not bool(short.any()):
            return False
        free = self.state.rows.offered(available)
        assert free is not None
        for picks in (selection, self.open):
            if picks is not None:
                entries = self.state.rows.entry(picks.index).masked_fill(~picks.mask, -1)
                free = free & (counts_of(entries, free.shape[-1]) == 0)
        return bool((short & ~free.any(dim=-1)).any())

    def _of_pulls(self, values: Tensor) -> Tensor:
        """Values of picks or arms, `batch_shape x n`, without the dimension of the outcomes, which share the picks."""
        return values[..., 0, :] if self.policy.outcomes else values

    def on_offer(self, index: Picks, available: Tensor, values: Sequence[Tensor] = ()) -> Picks:
        """Picks, each replaced by the one among its exact duplicates that is available, as `stand_ins` chooses it; −1 where
        none is available."""
        first = self.state.rows.first
        if first is None:
            return index
        found = stand_ins(first, available, values).gather(-1, index.clamp_min(0))
        return torch.where((index >= 0) & (found < self.num_arms), found, -1)

    def with_open(self, selection: Selection) -> Selection:
        """A copy of the open picks, of which there must be some, followed by additional picks."""
        assert self.open is not None
        return duplicate(joined(self.open, selection) if bool(selection.mask.any()) else self.open)

    def open_(self, selection: Selection, drawn: Sequence[Tensor] = ()) -> None:
        """Open additional picks, and set the generators to the states after their draws."""
        # Operations that may fail come first. The mask on a device is not read, which would wait for the device: policies
        # return no column there that is masked in every row.
        mask = selection.mask
        opens = mask.shape[-1] > 0 and (self.device.type != "cpu" or bool(mask if mask.numel() == 1 else mask.any()))
        opened = selection if self.open is None else joined(self.open, selection)
        self.state.found_(selection)
        for generator, state in zip(self.state.generators, drawn, strict=False):
            generator.set_state(state)
        if opens:
            self.open, self._synced = opened, False

    def open_point_(self, point: Tensor) -> None:
        """Open a pick of one point per batch row, `batch_shape x 1 x d`. A point that is not yet an arm becomes one."""
        rows, box = self.state.rows, self.state.box
        arms = rows.arms.expand(*point.shape[:-2], -1, -1)
        index, A = matches(arms, point), arms.shape[-2]
        if box is not None:
            index = box.found_(point, self.state.pending_index, self.state.statistics)
        elif bool((index < 0).any()):
            self.move_(torch.cat([arms, point], dim=-2))
            index = torch.where(index < 0, A, index)
        found = Selection(self.points(index), index, index >= 0)
        self.set_open_(found if self.open is None else joined(self.open, found))

    def score(self) -> Callable[[Tensor], Tensor]:
        """The policy's score of points, differentiable, with the open picks as pending."""
        self.sync_()
        return partial(self.policy.scores_at, self.state)

    def set_open_(self, selection: Selection | None) -> None:
        """Replace the open picks."""
        self.open, self._synced = selection, False

    @step
    def settled(self, opened: Selection | None, index: Picks, mask: PickMask) -> tuple[Selection | None, Tensor]:
        """The open selection without these picks (None if nothing is left), and the number of them that were not open. A pick
        settles an open one of the same arm, or else the first open one of an arm with equal features."""
        if opened is not None and self.state.rows.first is not None:
            index = answered(opened, index, mask, self.state.rows.entry)
        return without(opened, index, mask, self.points)

    @step
    def sync_(self) -> None:
        """Condition the posterior's variances on the open picks."""
        self._sync()

    def _sync(self) -> None:
        if self._synced or (self.open is None and not self.state.has_pending):
            return
        if self.open is None:
            none = torch.zeros(*self.batch_shape, 0, dtype=torch.int64, device=self.device)
            self.state.set_pending_(none, none.bool())
        else:
            self.state.set_pending_(self.open.index, self.open.mask)
        self._synced = True

    # ------------------------------------------------------------------ learning

    @without_gradients
    @step
    def learn_(
        self,
        pulls: Pulls,
        remaining: Selection | None,
        unasked: Tensor,
        selected: bool = False,
        evaluated: PickMask | None = None,
    ) -> Report:
        """Update the state with pulls, and set the open picks.

        Args:
            pulls: Pulls at arms or at points.
            remaining: The picks that are open afterwards.
            unasked: `batch_shape`, number of the pulls that were never asked for.
            selected: As for `report_of`.
            evaluated: `batch_shape x q`, the pulls and the evaluations that failed, on the host; None if none may have failed.

        Returns:
            The report after the update.
        """
        on_host = pulls.host or pulls
        if self.failures is not None or evaluated is not None:
            self._learn_failures(on_host, evaluated)
        # A single number takes no operation.
        if bool(on_host.counts if on_host.counts.numel() == 1 else on_host.counts.any()):
            self.state.__dict__["unsettled"] = remaining
            self.state = self.policy.update(self.state, pulls)
            self.state.add_told_(on_host.counts if on_host.numbers is None else on_host.numbers)
        self.open, self._synced = remaining, False
        return report_of(self.policy, self.state, pulls, unasked, selected)

    def failed(self, row: tuple[int, ...] | int) -> tuple[int, int]:
        """For a batch row, the number of evaluations that failed, and the number of arms that are left out therefore."""
        return (0, 0) if self.failures is None else self.failures.counted((row,) if isinstance(row, int) else row)

    @property
    def num_failed(self) -> int:
        """The number of evaluations of all batch rows that failed; 0 for a policy that does not learn from them."""
        return 0 if self.failures is None else self.failures.num_failed

    def _learn_failures(self, pulls: Pulls, evaluated: PickMask | None) -> None:
        """Learn which evaluations succeeded, once one of them has failed."""
        succeeded = (pulls.counts > 0) if pulls.mask is None else pulls.mask
        told = succeeded if evaluated is None else evaluated
        if self.policy.outcomes:
            # An evaluation has failed if no outcome of it was measured.
            succeeded, told = succeeded.any(dim=-2), told.any(dim=-2)
        if self.failures is None:
            if not (self.learns_failures and bool((told & ~succeeded).any())):
                return
            self.failures = self._without_failures()
        if pulls.points is None:
            assert pulls.index is not None
            self.failures.tell_(self._of_pulls(pulls.index), told, succeeded)
        else:
            points = pulls.points[..., 0, :, :] if self.policy.outcomes else pulls.points
            self.failures.observe_(points, succeeded)

    @property
    def learns_failures(self) -> bool:
        """Whether failed evaluations teach the policy which other arms are likely to fail."""
        return self.policy.learns_failures and isinstance(self.state, TableState) and not self.state.rows.sharded

    def _arms_of_pulls(self) -> Tensor | ArmSource:
        """The arms, without the dimension of the outcomes."""
        arms = self.arms
        return arms[..., 0, :, :] if self.policy.outcomes and isinstance(arms, Tensor) and arms.dim() > 2 else arms

    def _fresh_failures(self) -> Failures:
        shape = self.batch_shape[:-1] if self.policy.outcomes else self.batch_shape
        return Failures(self._arms_of_pulls(), shape, self.policy.memory_of_failures, self.state.rows.limits)

    def _without_failures(self) -> Failures:
        """A model of the evaluations so far, which all succeeded."""
        failures, statistics = self._fresh_failures(), self.state.statistics
        points, told = statistics.points, statistics.pulled
        if statistics.size:
            if self.policy.outcomes:
                # The outcome that was measured most often stands for all.
                most = told.sum(dim=-1).argmax(dim=-1, keepdim=True).unsqueeze(-1)
                told = told.gather(-2, most.expand(*most.shape[:-1], told.shape[-1])).squeeze(-2)
                slot = most.unsqueeze(-1).expand(*most.shape[:-1], *points.shape[-2:])
                points = points.gather(-3, slot).squeeze(-3)
            failures.observe_(points, told)
        return failures

    @step
    def refit_(self, noise: bool, options: dict[str, Any]) -> FitReport:
        """Fit the kernel to the observed rewards, and update the state; see `Policy.refit`."""
        report = self.policy.refit(self.state, noise=noise, **options)
        certificate(self.policy, self.state)
        return report

    def move_(self, arms: Tensor | ArmSource, costs: Any = None, known: Any = None) -> None:
        """Replace the arms. All observations and open picks are kept.

        Args:
            arms: New arms, of the same dimension, dtype and device.
            costs: Costs of the new arms, as for `costs_for`.
            known: Known outcomes of the new arms, as for `known_for`.

        Raises:
            StateError: If picks are open at arms that are removed.
            UnsupportedError: For a policy whose state is bound to its arms.
        """
        opened = None if self.open is None else carried(self.open, arms, self.batch_shape)
        state = self.policy.set_arms(self.state, cast(Tensor, arms))
        state.rows.costs = costs_for(self.policy, state.rows, costs)
        _give_known_(self.policy, state.rows, known)
        self._set_state(state)
        if self.failures is not None:
            self.failures = self.failures.moved(self._arms_of_pulls(), state.rows.limits)
        self.set_open_(opened)
        self.moved = True

    def draw_seeds_(self) -> list[int]:
        """A seed per batch row, drawn from its generator."""
        return [int(torch.randint(2**62, (), generator=g)) for g in self.state.generators]

    # ------------------------------------------------------------------ all or nothing

    def all_or_nothing(
        self,
        work: Callable[[], Result],
        *,
        draws: bool = True,
        restore: Callable[[], None] | None = None,
        take_back: Callable[[], None] | None = None,
        undoes: list[Callable[[], None]] | None = None,
    ) -> Result:
        """Call `work` as a transaction: after a failure the loop is as it was before.

        An interrupt (Ctrl-C) may come at any instruction. A single assignment, `self._undo = None`, commits the change. If it
        was not reached, the change is undone here, or by the next call if a second interrupt ended this one. This is a function
        and not a context manager, because an interrupt between the two halves of a context manager would leave it open.

        Args:
            work: Function that changes this loop.
            draws: Whether `work` may advance the generators.
            restore: Function that restores the state, in place of the default snapshot, which does not cover writes in place.
            take_back: Function that is called after the loop was restored, to undo other changes.
            undoes: A list to which the function is added that undoes the change later; see `undo_`.

        Returns:
            The result of `work`.
        """
        if self._undo is not None:
            self._undo()
        state, opened, failures, moved = self.state, self.open, self.failures, self.moved
        back = state.snapshot(draws=draws) if restore is None else restore
        forget = None if failures is None else failures.snapshot()

        def undone() -> None:
            if self.state is not state:
                self._set_state(state)
            self.open, self.moved, self._synced = opened, moved, False
            back()
            self.failures = failures
            if forget is not None:
                forget()
            if take_back is not None:
                take_back()
            self._undo = None

        if undoes is not None:
            undoes.append(undone)
        self._undo = undone
        try:
            with full_precision() if self.narrow else nullcontext():
                result = work()
            self._undo = None
        finally:
            # A nested call may already have undone the change.
            if self._undo is undone:
                undone()
        return result

    def undo_(self, undone: Callable[[], None]) -> None:
        """Undo the last change, by the function in `undoes`. If an interrupt ends this, the next call undoes the rest."""
        self.recover_()
        self._undo = undone
        undone()

    def recover_(self) -> None:
        """Undo a change that an interrupt left half-way. Must be called before the loop is read for the next change."""
        if self._undo is not None:
            self._undo()

    # ------------------------------------------------------------------ saving and moving

    def state_dict(self, *, brief: bool = False) -> dict[str, Any]:
        """The state, including the generators, and the open picks, as copied tensors, numbers and strings.

        Args:
            brief: Whether to leave out the directions of an exact posterior if they take more than 256 MiB. `load_` then
                computes them anew by a sweep, up to rounding.
        """
        # Arms that are not in memory are not read, so that what was learned can be saved after a file has changed or a rank was
        # lost. The open picks are synced once the state is loaded.
        if not self.state.rows.streamed:
            self.sync_()
        with saved_briefly(self.state, brief):
            saved: dict[str, Any] = {"state": self.state.state_dict(), "open": None}
        if self.open is not None:
            saved["open"] = {"index": self.open.index, "mask": self.open.mask}
        if self.failures is not None:
            saved["failures"] = self.failures.state_dict(brief=brief)
        if self.moved:
            saved["moved"] = True
        return copy.deepcopy(saved)

    def load_(self, state_dict: dict[str, Any], do: Callable[..., Any] | None = None) -> None:
        """Load the result of `state_dict` of a loop with the same policy and arms. After an error nothing has changed.

        Args:
            state_dict: The state, on any device, which `check_state` has checked.
            do: Function that makes the change in place of `all_or_nothing`, for example one that also records it.

        Raises:
            StateError: If the state belongs to another kind of policy, kernel or arms.
        """
        before = copy.deepcopy(self.state.state_dict())

        def restore() -> None:
            # PyTorch writes the tensors that fit in place before it raises an error for those that do not.
            self.state.load_state_dict(before)
            complete_(self.state)

        (do or self.all_or_nothing)(partial(self.take_over_, state_dict), restore=restore)

    def take_over_(self, state_dict: dict[str, Any], into: State | None = None) -> None:
        """Load a state, in place or into a fresh state on other arms. Unlike `load_`, this may fail half-way."""
        try:
            self._take_over_(state_dict, into)
        except (RuntimeError, IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, TorchBanditsError):
                raise
            raise StateError(f"the saved state is of another kind of policy, kernel or arms: {error}") from error

    def _take_over_(self, state_dict: dict[str, Any], into: State | None) -> None:
        state = self.state if into is None else into
        state.load_state_dict(copy.deepcopy(state_dict["state"]))
        complete_(state)
        if into is not None:
            self._set_state(into)
        self.failures = None
        if (learned := state_dict.get("failures")) is not None:
            self.failures = self._fresh_failures()
            self.failures.load_(copy.deepcopy(learned))
        self.open = None
        if (opened := state_dict["open"]) is not None:
            index = opened["index"].to(self.device)
            self.open = Selection(state.rows.points(index), index, opened["mask"].to(self.device))
        if state.rows.sharded and isinstance(state, TableState):
            state.table.sweep_()
        self._synced = not state.rows.streamed
        self.moved = self.moved or "moved" in state_dict

    def to_(self, device: torch.device) -> None:
        """Move arms and posterior; factors stay float64."""
        self.state.to(device)
        self._set_state(self.state)
        if self.failures is not None:
            self.failures.to_(device, self._arms_of_pulls())
        if self.open is not None:
            o = self.open
            self.open = Selection(o.points.to(device), o.index.to(device), o.mask.to(device))


class Advised(Loop):
    """A loop as stopping rules see it with a recommended arm of one's own. It shares the state and the open picks of another
    loop.

    Args:
        loop: The other loop.
        arm: The arm that is recommended, `batch_shape`.
        num_named: Number of arms at a context, where the arms of the loop are pairs of a context and an arm; None elsewhere.
    """

    def __init__(self, loop: Loop, arm: Tensor, num_named: int | None = None) -> None:
        super().__init__(loop.policy, loop.state)
        self.set_open_(loop.open)
        self.moved, self.failures, self._arm, self._num_named = loop.moved, loop.failures, arm, num_named

    def best_arm(self) -> Tensor:
        """The arm that is recommended, `batch_shape`."""
        return self._arm

    def named(self, arm: Tensor) -> Tensor:
        """The arms of pairs, `batch_shape`. A context that was released and comes back may have another block of pairs."""
        return arm if self._num_named is None else torch.where(arm >= 0, arm % self._num_named, -1)


def costs_for(policy: Policy, rows: ArmRows, costs: Any) -> Tensor | None:
    """Check the costs of the arms: one number per arm, or None if no costs were given and the policy needs none."""
    require(
        costs is not None or not policy.needs_costs,
        "a score per cost needs the costs of the arms: pass costs=, one number per arm.",
    )
    return None if costs is None else check_costs(costs, rows.batch_shape, rows.num_arms, rows.source.device, rows.first)


def _give_known_(policy: Policy, rows: ArmRows, known: Any) -> None:
    """Set the known outcomes of new arms."""
    rows.known = values = known_for(policy, rows, known)
    rows.known_scores = None if values is None or not policy.ranks_known else normal_scores(values)
    rows.levels = {}


def known_for(policy: Policy, rows: ArmRows, known: Any) -> Tensor | None:
    """Check the known outcomes of the arms: `... x j x A` for the j known outcomes of the policy; None if it has none."""
    if not (names := policy.known):
        return None
    each = ", ".join(f"{name!r}: …" for name in names)
    message = f"the policy needs values that are known for all arms: give them, known={{{each}}}."
    require(known is not None, message)
    first = rows.first
    if first is not None and first.dim() > 1:
        first = first[..., 0, :]
    return check_known(names, known, rows.batch_shape[:-1], rows.num_arms, rows.source.device, first)
