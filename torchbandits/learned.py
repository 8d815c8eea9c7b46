"""What a bandit has learned: read, saved, moved."""

from __future__ import annotations

import copy
import warnings
from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from torchbandits.coercion import as_device, same_device
from torchbandits.errors import JournalWarning, StateError, TorchBanditsError, UnsupportedError, require
from torchbandits.explanation import Explanation, explain
from torchbandits.journal import Journal, difference, pack, state_as_text
from torchbandits.policies import Policy, State
from torchbandits.policies.learning import complete_
from torchbandits.policies.state import TableState
from torchbandits.posteriors import GaussianProcess, PartitionedProcess
from torchbandits.sources import ArmSource
from torchbandits.threads import MANY_NUMBERS, threads
from torchbandits.types import Recommendation, Selection
from torchbandits.validation import check_count, check_state, check_told

if TYPE_CHECKING:
    from torchbandits.botorch.model import BanditModel

Own = TypeVar("Own", bound="Learned")
Given = ParamSpec("Given")
Result = TypeVar("Result")
Note = Callable[[], dict[str, Any]]
_COSTLY = ("fit", "load", "set_arms")  # better kept than repeated


def step(method: Callable[Concatenate[Any, Given], Result]) -> Callable[Concatenate[Any, Given], Result]:
    """A method of a bandit on one thread, unless its arms are so many that each operation is worth several."""

    @wraps(method)
    def on_few_threads(self: Learned, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        rows = self._state.rows
        with threads(many=rows.num_arms * rows.batch_shape.numel() >= MANY_NUMBERS):
            return method(self, *args, **kwargs)

    return on_few_threads


class Learned(ABC):
    """Recommendations, posterior, counts: everything that can be read off a run without changing it; and saving it."""

    policy: Policy
    _state: State
    _open: Selection | None
    _synced: bool
    _journal: Journal | None
    # Undoes a call that an interrupt ended between its block and its record; the next call begins with it.
    _undo: Callable[[], None] | None = None
    _described: dict[str, str]  # the policy, as it was when the bandit was made
    _besides: dict[str, Any]  # what has a state that a checkpoint holds besides, by name

    @step
    def _sync_pending(self) -> None:
        """Hallucinate what is open in the state, when someone looks at it."""
        if not self._synced and (self._open is not None or self._state.has_pending):
            none = torch.zeros(*self.batch_shape, 0, dtype=torch.int64, device=self.device)
            index, mask = (none, none.bool()) if self._open is None else (self._open.index, self._open.mask)
            self._state.set_pending_(index, mask)
            self._synced = True

    @step
    def best_arm(self) -> Tensor:
        """The recommended arm, `batch_shape`: the index of `best()`, with its errors. Cost O(u)."""
        check_told(1, self.pulls)
        return self._state.best_arm()

    @step
    def best(self, k: int = 1) -> Recommendation:
        """The k arms with the highest posterior mean among those pulled, best first; index −1 and mean NaN in places of a batch
        row that has pulled fewer.

        Raises:
            StateError: If no batch row was told anything yet.

        Cost: O(u).
        """
        return self._state.best(check_told(check_count(k), self.pulls))

    @property
    def posterior(self) -> GaussianProcess | PartitionedProcess:
        """Callable on any points: `Marginals(mean, variance)` in reward units; picks pending now shrink variances only."""
        self._sync_pending()
        return self._state.process

    @property
    def arms(self) -> Tensor | ArmSource:
        """The arms, `A x d` or `batch_shape x A x d`: a tensor, which is the bandit's own and must not be written to, or the
        source that they are read from."""
        rows = self._state.rows
        return rows.source if rows.streamed else rows.arms

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """One generator a batch row, as given and advanced since."""
        return self._state.generators

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of everything that is asked and told."""
        return self._state.rows.batch_shape

    @property
    def journal(self) -> Journal | None:
        """Where asks and tells are written, if anywhere. A copy of a bandit has none."""
        return self._journal

    @property
    def device(self) -> torch.device:
        """Where arms and posterior live."""
        return self.arms.device

    @property
    def counts(self) -> Tensor:
        """Pulls learned of each arm, `batch_shape x A`; exact duplicates share those of their entry."""
        return self._state.rows.counts(self._state.statistics.weights)

    @property
    def pulls(self) -> Tensor:
        """Pulls told in all, `batch_shape`."""
        return self._state.told.clone()

    @property
    def dictionary(self) -> Tensor:
        """Arms in the dictionary S in order of first pull, `batch_shape x m`, −1 where padded or from outside the arms."""
        rows, mask = self.posterior.dictionary_rows()
        arm = self._state.rows.arm_of_row
        return torch.where(mask, arm.gather(-1, rows) if arm.shape[-1] else rows, -1)

    @property
    def width(self) -> Tensor:
        """What multiplies the posterior standard deviation now, `batch_shape`."""
        return self.policy.width(self._state).clone()

    def model(self) -> BanditModel:
        """What has been learned as a BoTorch model: posterior, kernel, λ, dictionary and prior mean, tabulated on the arms.

        `PolicyAcquisition(bandit.model(), policy)(arms.unsqueeze(-2))` are the scores that `ask` ranks: path-dependent widths
        are the run's own. Picks that are pending are not in it: pass their points as `X_pending`. It is a copy, which later
        tells do not change, with one observation a distinct point: the average of its rewards, weighted by its pulls.

        Raises:
            UnsupportedError: For policies without one Gaussian process: heuristics, `pi_gp_ucb` and `soful`.

        Cost: as for a posterior from data, O(u³) for an exact one; O(A m²) when its arms are first scored.
        """
        from torchbandits.botorch.of_run import model_of_run  # noqa: PLC0415 - BoTorch takes a second to load

        return model_of_run(self.policy, self._state)

    @step
    def explain(self, *, names: Sequence[str] | None = None, row: tuple[int, ...] | int = ()) -> Explanation:
        """What is believed of features, noise and the best arm: `print` it for five plain lines, `figure()` draws the features.

        Args:
            names: Of the features; "feature 0" and so on by default.
            row: The batch row.

        Raises:
            UnsupportedError: For a policy without one Gaussian process over given arms.
            StateError: If nothing was told.

        Cost: O(A).
        """
        check_told(1, self.pulls)
        return explain(self.policy, self._state, names, row)

    # ------------------------------------------------------------------ saving and moving

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly, the open selection and the generators included, and a description of the policy:
        copies of tensors, numbers and texts."""
        if not self._state.rows.sharded:  # what is open is saved: nothing is asked of ranks that may be lost
            self._sync_pending()
        saved: dict[str, Any] = {"state": self._state.state_dict(), "open": None, "policy": self._described}
        if self._open is not None:
            saved["open"] = {"index": self._open.index, "mask": self._open.mask}
        return copy.deepcopy(saved)

    def load_state_dict(self: Own, state_dict: dict[str, Any]) -> Own:
        """Resume from a `state_dict` of a bandit with the same policy and arms, on any device. Returns self.

        A fitted kernel comes with the state; the policy is the one that the fitted bandit was made with. After `set_arms_` the
        arms are those of the bandit that was saved. Costs are not saved: those of this bandit count. Budgets of memory may
        differ.

        Raises:
            ArgumentError: If it is no state of a bandit.
            StateError: If it is of another policy, other hyper-parameters, arms or batch rows; `observe` takes what was learned
                there. Nothing has changed then.

        Warns:
            JournalWarning: For a state of an earlier version, which does not say what it is of.
        """
        check_state(state_dict, self._state.state_dict())
        if (described := state_dict.get("policy")) is None:
            message = (
                "the saved state is of an earlier version and does not say of which policy and arms it is: it is taken to be "
                "of these. Save it anew."
            )
            warnings.warn(message, JournalWarning, stacklevel=2)
        elif other := difference(described, self._described):
            raise StateError(
                f"the saved state is of another policy: {other}. Make the Bandit with the policy that the saved one was made "
                "with, or observe() what was learned."
            )
        self._load_state(state_dict)
        return self

    def _load_state(self, state_dict: dict[str, Any]) -> None:
        """Take over a state of this policy, or change nothing."""
        before = copy.deepcopy(self._state.state_dict())
        check_state(state_dict, before)  # again: the checkpoint of a journal comes straight here

        def undo() -> None:
            # torch writes in place to what fits, before it says what does not.
            self._state.load_state_dict(before)
            complete_(self._state)

        def note() -> dict[str, Any]:
            return {"kind": "load", "state": state_as_text(state_dict)}

        # While a journal is repeated nothing is written, and a large state takes long to become a text.
        written = self._journal is not None and not self._journal.is_repeating
        try:
            with self._whole_or_not(note=note if written else None, undo=undo):
                self._state.load_state_dict(copy.deepcopy(state_dict["state"]))
                complete_(self._state)
                self._open = None
                if (opened := state_dict["open"]) is not None:
                    index = opened["index"].to(self.device)
                    self._open = Selection(self._state.rows.points(index), index, opened["mask"].to(self.device))
                if self._state.rows.sharded and isinstance(self._state, TableState):
                    self._state.table.sweep_()
                self._synced = not self._state.rows.sharded
        except (RuntimeError, IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, TorchBanditsError):
                raise
            raise StateError(f"the saved state is of another kind of policy, kernel or arms: {error}") from error

    def to(self: Own, device: torch.device | str) -> Own:
        """Move arms and posterior; factors stay float64. Returns self.

        Raises:
            UnsupportedError: For arms that are read from a source, which names the device at its start.
        """
        device = as_device("device", device)
        require(
            not self._state.rows.streamed or same_device(device, self.device),
            f"arms are swept on {self.device}, where their source puts them: give a source of device={str(device)!r} to a new "
            "Bandit, and load_state_dict() what was learned.",
            UnsupportedError,
        )
        self._state.to(device)
        if self._open is not None:
            o = self._open
            self._open = Selection(o.points.to(device), o.index.to(device), o.mask.to(device))
        return self

    def _draw_seeds(self, **beside: Any) -> list[int]:
        """A seed a batch row, drawn from its generator; `beside` is what else the record of it says."""
        with self._whole_or_not(note=lambda: {"kind": "seeds", "seeds": seeds, "told": pack(self.pulls), **beside}):
            seeds = [int(torch.randint(2**62, (), generator=g)) for g in self.generators]
        return seeds

    @contextmanager
    def _whole_or_not(
        self, *, draws: bool = True, note: Note | None = None, undo: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """What is done inside is done whole, and is in the journal: a failure leaves bandit and journal as they were.

        An interrupt (Ctrl-C) may come at any instruction, those of `with` itself included: what says that the call is done is
        one assignment, `self._undo = None`, and what finds another value there undoes the call.

        Args:
            draws: Whether it may draw.
            note: Gives its record, once it is done.
            undo: Undoes what is done to the state, in place of its snapshot, which knows nothing of writes in place.
        """
        if self._undo is not None:
            self._undo()
        state, opened = self._state, self._open
        journal = None if note is None else self._journal
        mark = None if journal is None else journal.mark()
        restore = state.snapshot(draws=draws)

        def undone() -> None:
            self._state, self._open, self._synced = state, opened, False
            (restore if undo is None else undo)()
            if journal is not None and mark is not None:
                journal.rewind_(mark)
            self._undo = None

        self._undo = undone
        try:
            yield
            if journal is not None and note is not None:
                record = note()
                journal.append(record)
            self._undo = None
        finally:
            # Where the block was left behind by an interrupt, a later call may have undone it already.
            if self._undo is undone:
                undone()
        if journal is not None:
            journal.checkpoint(self._checkpointed, urgent=record["kind"] in _COSTLY)

    def _settle(self) -> None:
        """Write a checkpoint if the journal holds more than the last one, so that resuming repeats nothing."""
        if self._undo is not None:
            self._undo()
        if self._journal is not None and self._journal.behind:
            self._journal.checkpoint(self._checkpointed, urgent=True)

    def _checkpointed(self) -> dict[str, Any]:
        """What a checkpoint holds: the state, and the arms where they are not those of the start."""
        moved = self._journal is not None and self._journal.moved and self._state.box is None
        rows = self._state.rows
        own = {"state": self.state_dict(), "arms": rows.arms if moved else None, "costs": rows.costs if moved else None}
        return own | {name: copy.deepcopy(part.state_dict()) for name, part in self._besides.items()}
