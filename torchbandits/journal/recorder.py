"""The calls of a loop and their records: each call is in the journal before it takes effect, and is repeated from the
journal."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchbandits.checks import (
    as_tensor,
    check_arms,
    check_block,
    check_fit,
    check_history,
    check_maximum,
    check_noise_var,
    check_picks,
    check_replacement,
    check_rewards,
    check_state,
)
from torchbandits.errors import (
    ArgumentError,
    DataError,
    JournalWarning,
    StateError,
    TorchBanditsError,
    UnsupportedError,
    issue,
    require,
)
from torchbandits.journal.fingerprint import difference
from torchbandits.journal.format import held, pack, state_as_text, state_of_text, unpack
from torchbandits.journal.journal import Journal
from torchbandits.journal.lines import Mark
from torchbandits.loop import Loop
from torchbandits.policies import Composed
from torchbandits.reporting import certificate
from torchbandits.selections import answer, duplicate, joined, within
from torchbandits.sources import ArmSource
from torchbandits.types import FitReport, PickMask, Picks, Pulls, Report, Selection

_MANY = 256  # number of records; fewer are repeated one by one, with bitwise equal results
_LAST = 8  # records that are repeated one by one in any case, and compared with the picks that the policy makes now
_COSTLY = ("fit", "load", "set_arms")  # a checkpoint is written after each, because repeating them is slow

NOT_PENDING = "some of these picks are not pending: pass picks that ask() returned and that were neither told nor forgotten."

Record = dict[str, Any]
Result = TypeVar("Result")


class NoArmLeft(ArgumentError):
    """The constraints on a batch leave no arm.

    Args:
        picks: `batch_shape x j`, the picks of the batch so far.
        stuck: `batch_shape` booleans, rows without an arm.
        count: Number of picks that were requested.
        smallest: Whether no batch was found that the arms of the smallest values complete, either.
    """

    def __init__(self, picks: Picks, stuck: Tensor, count: int, smallest: bool = False) -> None:
        too = " Batches of the arms of the smallest values were tried, too." if smallest else ""
        super().__init__(
            f"no batch was found that meets the constraints: after {picks.shape[-1]} of exactly {count} picks no arm is left "
            f"in at least one batch row.{too} Ask for fewer, or loosen them."
        )
        self.picks, self.stuck, self.count, self.smallest = picks, stuck, count, smallest

    def __reduce__(self) -> tuple[type[NoArmLeft], tuple[Picks, Tensor, int, bool]]:
        # By default an exception is pickled with its message as the only argument.
        return type(self), (self.picks, self.stuck, self.count, self.smallest)


class Recorder:
    """Makes the calls of a loop: each takes effect completely and is in the journal, or has no effect.

    The caller has checked the arguments. Without a journal nothing is recorded, and the calls are the same.

    Args:
        loop: The loop that asks and learns.
        described: The description of the policy, which saved states contain.
        journal: The journal, open for this run, or None.

    Attributes:
        loop, journal: As given.
        besides: Further objects whose state a checkpoint contains, by name.
    """

    def __init__(self, loop: Loop, described: Mapping[str, str], journal: Journal | None = None) -> None:
        self.loop, self.journal, self.described = loop, journal, dict(described)
        self.besides: dict[str, Any] = {}
        self._set_aside = False  # whether the user was warned that `exactly` overrides a batch rule

    # ------------------------------------------------------------------ calls

    def ask(
        self, limit: Tensor | None, offered: Tensor | None, exactly: int | None, *, whole: bool = False
    ) -> tuple[Selection, Selection]:
        """Open additional picks, with the open ones as pending.

        Args:
            limit: `batch_shape`, largest number of picks.
            offered: `batch_shape x A`, arms on offer.
            exactly: Number of picks per row, independent of the batch rule.
            whole: Whether to refuse to make fewer picks, and to continue after first picks, which end a batch.

        Returns:
            The additional picks, and a copy of all open picks, these included.

        Raises:
            ArgumentError: If a row has no arm left before it has all its picks, and `whole`; nothing has changed then.
        """
        loop, journal = self.loop, self.journal
        selection, drawn = loop.select(limit, offered, exactly)
        if whole:
            assert exactly is not None
            wanted = torch.full(loop.batch_shape, exactly)
            if loop.policy.opens(loop.state) and _cut(selection, wanted):
                return self._beyond_first(wanted, offered)
            _check_whole(selection, exactly)
        if journal is not None:
            selection = journal.agreed(selection, loop.points)
        # Copied before anything changes: if the copy fails, no pick may be open that the caller does not know.
        handed = duplicate(selection) if loop.open is None else loop.with_open(selection)
        if journal is None:
            loop.open_(selection, drawn)
        else:
            self.change(
                partial(loop.open_, selection, drawn),
                lambda _: ask_record(limit, offered, exactly, selection, loop.state.box is not None),
                draws=bool(drawn),
            )
        return selection, handed

    def warn_of_exactly_(self) -> None:
        """Warn, once, that batches of a given size override a batch rule that comes with a guarantee."""
        policy = self.loop.policy
        if isinstance(policy, Composed) and policy.batch_rule.freezes and not self._set_aside:
            self._set_aside = True
            name = type(policy.batch_rule).__name__
            text = (
                f"exactly= sets aside the batch rule {name}: its bound on how far variances shrink within a batch, and "
                "guarantees that follow from it, do not hold for such batches. Ask with limit= to keep it."
            )
            issue([text])

    def _beyond_first(self, wanted: Tensor, offered: Tensor | None) -> tuple[Selection, Selection]:
        """Open the first picks, which end a batch, and then further picks with these as pending: `wanted` picks of each row in
        total, with the values and errors of `ask`."""
        loop = self.loop
        states: list[Sequence[Tensor]] = []

        def work() -> Selection:
            left, found = wanted, None
            while bool((left > 0).any()):
                selection, drawn = loop.select(left, offered, int(left.max()))
                if not bool(selection.mask.any()):
                    break
                loop.open_(selection, drawn)
                states.append(drawn)
                left = left - selection.mask.sum(dim=-1).to(left)
                found = selection if found is None else joined(found, selection)
            assert found is not None
            _check_whole(found, int(wanted.max()))
            return found

        selection = self.change(work, lambda made: fill_record(made, states, loop.state.box is not None))
        assert loop.open is not None
        return selection, duplicate(loop.open)

    def fill(self, count: int, allowed: Callable[[Tensor], Tensor], values: Sequence[Tensor] = ()) -> Selection:
        """Open exactly `count` further picks per row, each with all picks before it as pending.

        A policy without draws selects several at a time, of which those before the first one that is not allowed are kept: they
        are what it would have selected one by one, because a pick that is on offer remains the best where others are not.

        Of arms with equal features, the pick is the first one that is allowed.

        Args:
            count: Number of picks of each row, in addition to the open ones.
            allowed: A function from the open picks so far, `batch_shape x j`, to the arms that may be picked next,
                `batch_shape x A` booleans.
            values: Tensors of `A` numbers; of arms with equal features, those of the smallest value come first.

        Returns:
            A copy of the new picks.

        Raises:
            NoArmLeft: If a row has no arm left before it has all its picks; nothing has changed then.
        """
        loop = self.loop
        states: list[Sequence[Tensor]] = []

        def work() -> Selection:
            none = torch.zeros(*loop.batch_shape, 0, dtype=torch.int64, device=loop.device)
            picks = none if loop.open is None else loop.open.index.masked_fill(~loop.open.mask, -1)
            before, most = picks.shape[-1], count
            while (missing := count - (picks.shape[-1] - before)) > 0:
                left = allowed(picks)
                stuck = ~left.any(dim=-1)
                if not bool(stuck.any()):
                    first = loop.policy.opens(loop.state)
                    selection, drawn = loop.select(None, left, min(missing, most))
                    if drawn and most > 1 and not first:
                        # To draw until the constraints agree would favour the arms that they allow.
                        most = 1
                        selection, drawn = loop.select(None, left, 1)
                    stuck = ~selection.mask.any(dim=-1)
                if bool(stuck.any()):
                    raise NoArmLeft(picks[..., before:], stuck, count)
                index = self._allowed(selection.index, picks, left, allowed, values)
                kept = index.shape[-1]
                loop.open_(Selection(selection.points[..., :kept, :], index, selection.mask[..., :kept]), drawn)
                states.append(drawn)
                picks = torch.cat([picks, index], dim=-1)
            picks = picks[..., before:]
            return Selection(loop.points(picks), picks, picks >= 0)

        return duplicate(self.change(work, lambda made: fill_record(made, states, box=False)))

    def _allowed(
        self, index: Picks, before: Picks, left: Tensor, allowed: Callable[[Tensor], Tensor], values: Sequence[Tensor]
    ) -> Picks:
        """Those of these picks, `batch_shape x q`, that come before the first one that is not allowed after those before it; at
        least the first one. `left` are the arms that are allowed at first. The other arguments are those of `fill`."""
        kept = [self.loop.on_offer(index[..., :1], left, values)]
        while len(kept) < index.shape[-1]:
            left = allowed(torch.cat([before, *kept], dim=-1))
            following = self.loop.on_offer(index[..., len(kept) : len(kept) + 1], left, values)
            if not bool(((following >= 0) & left.gather(-1, following.clamp_min(0))).all()):
                break
            kept.append(following)
        return torch.cat(kept, dim=-1)

    def tell(
        self,
        index: Picks,
        mask: PickMask,
        rewards: Tensor,
        *,
        forgets: bool,
        whole: bool = False,
        selected: bool = False,
        noise_var: Tensor | None = None,
        block: Tensor | None = None,
    ) -> Report:
        """Learn rewards, all on the device of the arms or all on the host.

        Args:
            index: `batch_shape x q`.
            mask: `batch_shape x q`.
            rewards: `batch_shape x q`, float64; NaN where an evaluation failed.
            forgets: Whether rewards may be NaN.
            whole: Whether these are all open picks, in their places.
            selected: Whether the user told a `Selection`, so that picks that are not open are worth a warning.
            noise_var: `batch_shape x q`, noise variance of each reward; None for the noise variance of the policy.
            block: `batch_shape x q`, the number of the block of each reward; None for no blocks.
        """
        loop, device = self.loop, self.loop.device
        # All open picks of a single batch row: nothing is padded.
        given = rewards if whole and not loop.batch_shape and loop.device.type == "cpu" else rewards.masked_fill(~mask, 0.0)
        if loop.state.rows.sharded:
            given = loop.state.rows.across.agreed(given.to(device)).to(rewards.device)
        kept, y = mask, given
        if forgets:
            kept = mask & ~given.isnan()
            y = torch.where(kept, given, 0.0)
        ones = kept.to(torch.float64)
        pulls = Pulls(counts=ones, sums=y, squares=y * y, index=index, mask=kept)
        if noise_var is not None:
            pulls = pulls.weighted(loop.noise_variance(), noise_var)
        if block is not None:
            pulls = replace(pulls, block=block.to(rewards.device))
        remaining, unasked = None, torch.zeros(loop.batch_shape, dtype=torch.float64)
        if not whole:
            remaining, unasked = loop.settled(loop.open, index.to(device), kept.to(device))
        if forgets:
            remaining, _ = loop.settled(remaining, index.to(device), (mask & ~kept).to(device))
        pulls = pulls if rewards.device == device else pulls.to(device)
        return self.change(
            partial(loop.learn_, pulls, remaining, unasked, selected and not whole, mask if forgets else None),
            lambda report: tell_record(index, mask, given, noise_var, block) | self._reported(report),
            draws=loop.policy.draws_on_update,
        )

    def observe(self, pulls: Pulls, noise_var: Tensor | None = None) -> Report:
        """Learn history that is already summed, with the noise variance of each entry's rewards (`batch_shape x h`; None for
        the noise variance of the policy)."""
        loop = self.loop
        heard = pulls if noise_var is None else pulls.weighted(loop.noise_variance(), noise_var)
        return self.change(
            partial(loop.learn_, heard, loop.open, pulls.counts.sum(dim=-1)),
            lambda report: observe_record(pulls, noise_var) | self._reported(report),
            draws=loop.policy.draws_on_update,
        )

    def _reported(self, report: Report) -> Record:
        return report_record(report, self.loop.best_arm())

    def forget(self, index: Picks, mask: PickMask) -> None:
        """Give up picks. Raises `StateError` if one of them is not pending."""
        loop = self.loop
        remaining, unasked = loop.settled(loop.open, index, mask)
        require(not bool((unasked > 0).any()), NOT_PENDING, StateError)
        record = {"kind": "forget", "index": pack(torch.where(mask, index, -1))}
        self.change(partial(loop.set_open_, remaining), lambda _: record, draws=False)

    def plan(self, index: Picks, mask: PickMask) -> Selection:
        """Open picks `batch_shape x q`, of which there must be some, that the policy did not select. Returns a copy of them."""
        points = self.loop.points
        selection = within(Selection(points(index), index, mask), mask, points)
        assert selection is not None
        self.change(partial(self.loop.open_, selection), lambda _: fill_record(selection, (), box=False), draws=False)
        return duplicate(selection)

    def maximize(self, find: Callable[[], Tensor], count: int) -> None:
        """Open picks at the points that `find` returns, `batch_shape x 1 x d`; a point that is not an arm yet becomes one."""
        points: list[Tensor] = []

        def work() -> None:
            for _ in range(count):
                self.loop.sync_()
                points.append(find())
                self.loop.open_point_(points[-1])

        self.change(work, lambda _: {"kind": "maximize", "points": pack(torch.stack(points))}, draws=False)

    def fit(self, noise: bool, options: dict[str, Any]) -> FitReport:
        """Fit the kernel, and learn all rewards again with it."""
        record = {"kind": "fit", "options": {"noise": noise, **options}}
        return self.change(partial(self.loop.refit_, noise, options), lambda _: record)

    def move(self, arms: Tensor | ArmSource, costs: Any = None, known: Any = None) -> None:
        """Replace the arms, their costs and known outcomes."""
        self.change(partial(self.loop.move_, arms, costs, known), lambda _: move_record(arms, costs, known), draws=False)

    def draw_seeds(self, **beside: Any) -> list[int]:
        """A seed per batch row, drawn from the row's generator; `beside` holds additional entries of its record."""
        told = self.loop.pulls
        return self.change(self.loop.draw_seeds_, lambda seeds: {"kind": "seeds", "seeds": seeds, "told": pack(told), **beside})

    def check_policy(self, state_dict: dict[str, Any]) -> None:
        """Refuse a saved state of another policy; one of an earlier version, which does not name its policy, is a warning."""
        if (saved := state_dict.get("policy")) is None:
            message = (
                "the saved state is of an earlier version and does not name its policy and arms: it is assumed to belong to "
                "this policy and these arms. Save it again."
            )
            warnings.warn(message, JournalWarning, stacklevel=3)
        elif other := difference(saved, self.described):
            raise StateError(
                f"the saved state is of another policy: {other}. Make the Bandit with the policy of the saved state, or "
                "observe() its data."
            )

    def load(self, state_dict: dict[str, Any]) -> None:
        """Load a state that `check_state` has checked, or change nothing."""
        # Encoding a large state as text takes long, and nothing is written while records are repeated.
        written = self.journal is not None and not self.journal.is_repeating
        note = (lambda _: {"kind": "load", "state": state_as_text(state_dict)}) if written else None
        self.loop.load_(state_dict, do=partial(self.change, note=note))

    # ------------------------------------------------------------------ complete and recorded

    def change(
        self,
        work: Callable[[], Result],
        note: Callable[[Result], Record] | None = None,
        *,
        draws: bool = True,
        restore: Callable[[], None] | None = None,
        take_back: Callable[[], None] | None = None,
        undoes: list[Callable[[], None]] | None = None,
    ) -> Result:
        """Call `work` and record it: both happen, or neither.

        Args:
            work: Changes the loop.
            note: Returns the record, given the result of `work`; None for no record.
            draws, restore, take_back, undoes: As for `Loop.all_or_nothing`. No checkpoint follows a change that may be undone
                later.

        Returns:
            The result of `work`.
        """
        loop, journal = self.loop, self.journal
        if journal is None or note is None:
            return loop.all_or_nothing(work, draws=draws, restore=restore, take_back=take_back, undoes=undoes)
        loop.recover_()
        mark, urgent, began = journal.mark(), False, time.monotonic()

        def recorded() -> Result:
            nonlocal urgent
            result = work()
            record = note(result)
            journal.append(record)
            urgent = record["kind"] in _COSTLY
            return result

        def rewound() -> None:
            if take_back is not None:
                take_back()
            journal.rewind_(mark)

        result = loop.all_or_nothing(recorded, draws=draws, restore=restore, take_back=rewound, undoes=undoes)
        if undoes is None:
            journal.checkpoint(self._checkpointed, took=time.monotonic() - began, urgent=urgent)
        return result

    def settle(self) -> None:
        """Write a checkpoint if the journal has records after the last one, so that resuming repeats nothing."""
        self.loop.recover_()
        if self.journal is not None and self.journal.behind:
            self.journal.checkpoint(self._checkpointed, urgent=True)

    def state_dict(self, *, brief: bool = False) -> dict[str, Any]:
        """Everything needed to resume exactly: state, open picks and generators, and the description of the policy. `brief` is
        that of `Loop.state_dict`."""
        return self.loop.state_dict(brief=brief) | {"policy": dict(self.described)}

    def _checkpointed(self) -> dict[str, Any]:
        """The content of a checkpoint: the state, and the arms if they differ from those at the start."""
        rows = self.loop.state.rows
        moved = self.journal is not None and self.journal.moved and self.loop.state.box is None
        own: dict[str, Any] = {"state": self.state_dict(brief=True), "arms": None, "costs": None, "known": None}
        if moved:
            own |= {"arms": rows.arms, "costs": rows.costs, "known": rows.known}
        return own | {name: copy.deepcopy(part.state_dict()) for name, part in self.besides.items()}

    # ------------------------------------------------------------------ resuming

    def resume(
        self,
        kinds: Mapping[str, Callable[[Record], None]] | None = None,
        restore: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Bring a new loop to the end of its journal: load the last checkpoint, and repeat every call after it.

        Many records are learned together where the policy allows (`Policy.learns_together`): the state is then the same up to
        rounding, which can change a later pick only where two arms tie up to rounding.

        Args:
            kinds: Functions that repeat records of further kinds, or replace those of these kinds.
            restore: Loads a checkpoint, in place of `Recorder.restore`.

        Raises:
            DataError: If a record cannot be repeated.

        Cost: loading a checkpoint, and the asks and tells after it; without a checkpoint, all asks and tells.
        """
        journal = self.journal
        if journal is None or not journal.resumed:
            return
        start, saved = Mark(), journal.saved()
        with journal.repeating():
            if saved is not None:
                start = Mark(*saved["mark"])
                (restore or self.restore)(saved)
                journal.resume_from(start)
            replay = Replay(self, kinds or {}, journal.mark().records - start.records)
            try:
                journal.replay(start, replay)
            except CannotTogether:  # Repeated one by one, so that the error names the line.
                journal.replay(start, Replay(self, kinds or {}, 0, skipped=replay.done))

    def restore(self, saved: dict[str, Any]) -> None:
        """Load a checkpoint."""
        if saved["arms"] is not None:
            # Checkpoints of earlier versions have no known outcomes.
            self._move_again(saved["arms"].to(self.loop.device), saved["costs"], saved.get("known"))
        # The header of the journal records the policy of the state.
        check_state(saved["state"], self.loop.state.state_dict())
        self.load(saved["state"])

    def gather(self) -> GatheredCalls | None:
        """An object that gathers calls to learn them together; None if they must be repeated one by one."""
        policy, state = self.loop.policy, self.loop.state
        together = policy.learns_together(state) and not policy.draws_on_select(state)
        return GatheredCalls(self.loop) if together else None

    def take(self, record: Record) -> bool:
        """Open the picks of a recorded ask without selecting them again; False if selecting draws random numbers, or finds
        points in a box."""
        loop = self.loop
        if loop.state.box is not None or loop.policy.draws_on_select(loop.state):
            return False
        index, mask = check_picks(held(record["index"]).to(loop.device), loop.batch_shape, loop.total, loop.device, padded=True)
        loop.open_(Selection(loop.points(index), index, mask))
        return True

    def repeat(self, record: Record) -> None:
        """Repeat one call.

        Raises:
            DataError: If it is of an unknown kind.
        """
        loop = self.loop

        def get(name: str) -> Tensor:
            return held(record[name]).to(loop.device)

        def maybe(name: str) -> Tensor | None:
            value = unpack(record.get(name))
            return None if value is None else value.to(loop.device)

        def picks() -> tuple[Tensor, Tensor]:
            return check_picks(get("index"), loop.batch_shape, loop.total, loop.device, padded=True)

        kind = record["kind"]
        if kind == "ask":
            try:
                limit = unpack(record.get("limit"))
                self.ask(limit, maybe("offered"), record["more"])
            except IndexError as error:  # Found while the picks of the journal are gathered, before any is open.
                raise DataError(f"it picks an arm that does not exist: {error}.") from error
        elif kind == "tell":
            index, mask = picks()
            rewards = check_rewards(get("rewards"), index, mask, loop.device, "forget")
            own = check_noise_var(maybe("noise_var"), index.shape, mask & ~rewards.isnan(), loop.device)
            block = maybe("block")
            block = None if block is None else check_block(block, mask, loop.device)
            self.tell(index, mask, rewards, forgets=True, noise_var=own, block=block)
        elif kind == "fill":
            points = maybe("points")  # points of a box, which may not be arms yet
            index = picks()[0] if points is None else get("index")
            opened = Selection(loop.points(index) if points is None else points, index, index >= 0)
            self.change(partial(loop.open_, opened, [held(state) for state in record["drawn"]]))
        elif kind == "observe":
            where = get("index" if "index" in record else "points")
            like = (loop.batch_shape, loop.total, loop.arms.shape[-1], loop.device)
            pulls = check_history(where, get("counts"), get("sums"), get("squares"), *like)
            self.observe(pulls, check_noise_var(maybe("noise_var"), pulls.counts.shape, pulls.counts > 0, loop.device))
        elif kind == "forget":
            self.forget(*picks())
        elif kind == "set_arms":
            self._move_again(get("arms"), maybe("costs"), maybe("known"))
        elif kind == "maximize":
            found = iter(get("points"))
            dim = loop.arms.shape[-1]
            self.maximize(lambda: check_maximum(next(found), loop.batch_shape, dim), len(get("points")))
        elif kind == "fit":
            options = dict(record["options"])
            noise = options.pop("noise")
            check_fit(noise, options)
            self.fit(noise, options)
        elif kind == "seeds":
            self.draw_seeds()
        elif kind == "load":
            state = state_of_text(record["state"])
            check_state(state, loop.state.state_dict())
            self.load(state)
        else:
            raise DataError(f"unknown kind of record, {kind!r}: it was written by a later version.")

    def _move_again(self, arms: Tensor, costs: Tensor | None, known: Tensor | None) -> None:
        arms = check_arms(arms)
        check_replacement(arms, self.loop.arms, self.loop.batch_shape)
        self.move(arms, costs, known)


class GatheredCalls:
    """Recorded asks, tells and forgets, for a policy that learns several tells together (`Policy.learns_together`).

    Nothing is checked, and nothing has changed, before `learn`.

    Args:
        loop: The loop for which they are repeated.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        opened, self._rows = loop.open, loop.batch_shape.numel()
        # Open arms of each batch row, oldest first: lists, since there are few, and they change at every call.
        self._open: list[list[int]] = [[] for _ in range(self._rows)]
        self._told: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._drawn: Sequence[Tensor] = ()
        if opened is not None:
            self._add_open(torch.where(opened.mask, opened.index, -1))

    def add(self, record: Record, drawn: Sequence[Tensor] = ()) -> None:
        """Add the record of an ask, a tell or a forget. `drawn` are the states of the generators after an ask that drew."""
        device = self._loop.device
        index = held(record["index"]).to(device)
        if record["kind"] == "ask":
            self._add_open(index)
            self._drawn = drawn or self._drawn
            return
        self._remove_open(index)
        if record["kind"] == "tell":
            noise_var = unpack(record.get("noise_var"))
            own = None if noise_var is None else noise_var.to(device)
            self._told.append((index, held(record["rewards"]).to(device), own))

    def _add_open(self, index: Picks) -> None:
        """Add picks `batch_shape x q`, −1 where masked."""
        for opened, arms in zip(self._open, index.reshape(self._rows, -1).tolist(), strict=True):
            opened += [arm for arm in arms if arm >= 0]

    def _remove_open(self, index: Picks) -> None:
        """Remove picks `batch_shape x q`; among picks of the same arm the oldest is removed first."""
        first = self._loop.state.rows.first
        own = None if first is None else first.expand(*self._loop.batch_shape, -1).reshape(self._rows, -1)
        for row, arms in enumerate(index.reshape(self._rows, -1).tolist()):
            for arm in arms:
                entry = (lambda one: one) if own is None else partial(_entry, own[row])
                if (found := answer(self._open[row], arm, entry)) is not None:
                    self._open[row].remove(found)

    def learn(self) -> None:
        """Learn all gathered calls, or leave the loop as it was.

        Raises:
            ArmIndexError, ShapeError, NonFiniteError: For a call that the loop refuses.
            NumericalError: If the posterior broke down.
        """
        self._loop.all_or_nothing(self._learn)

    def _learn(self) -> None:
        loop = self._loop
        state, policy = loop.state, loop.policy
        if self._told:
            index = torch.cat([i for i, _, _ in self._told], dim=-1)
            index, mask = check_picks(index, loop.batch_shape, loop.total, loop.device, padded=True)
            given = torch.cat([y for _, y, _ in self._told], dim=-1)
            given = check_rewards(given, index, mask, loop.device, "forget")
            kept = mask & ~given.isnan()
            y = torch.where(kept, given, 0.0)
            pulls = Pulls(kept.to(torch.float64), y, y * y, index=index, mask=kept)
            if any(own is not None for _, _, own in self._told):
                noise = loop.noise_variance()
                parts = [torch.full_like(y, noise) if own is None else own.expand(y.shape) for _, y, own in self._told]
                own = check_noise_var(torch.cat(parts, dim=-1), index.shape, kept, loop.device)
                pulls = pulls.weighted(noise, own)
            loop.state = policy.update_together(state, pulls, [i.shape[-1] for i, _, _ in self._told])
            certificate(policy, loop.state)
        for generator, drawn in zip(state.generators, self._drawn, strict=False):
            generator.set_state(drawn)
        loop.set_open_(self._opened())

    def _opened(self) -> Selection | None:
        loop, wide = self._loop, max(map(len, self._open))
        if not wide:
            return None
        padded = [arms + [-1] * (wide - len(arms)) for arms in self._open]
        index = torch.tensor(padded, device=loop.device).reshape(*loop.batch_shape, wide)
        index, mask = check_picks(index, loop.batch_shape, loop.total, loop.device, padded=True)
        return Selection(loop.points(index), index, mask)


def _entry(first: Tensor, arm: int) -> int:
    return int(first[arm])


class CannotTogether(Exception):
    """Some of the gathered calls cannot be repeated."""


class Replay:
    """Repeats one record after the other; the asks, tells and forgets of a long journal are gathered and learned together.

    Args:
        recorder: Repeats the records.
        kinds: Functions that repeat records of further kinds.
        left: Number of records to repeat.
        skipped: Number of first records that were repeated before.

    Attributes:
        done: Number of records that were repeated, skipped ones included.
    """

    def __init__(self, recorder: Recorder, kinds: Mapping[str, Callable[[Record], None]], left: int, skipped: int = 0) -> None:
        self._recorder, self._kinds = recorder, kinds
        self._left, self._skipped, self.done = left, skipped, skipped
        self._gathered: GatheredCalls | None = None
        self._count = 0  # of what is gathered

    def __call__(self, record: Record) -> None:
        """Repeat a record, at once or later together with others."""
        if self._skipped:
            self._skipped -= 1
            return
        early, kind = self._left > _LAST, record["kind"]
        many = self._left > _MANY
        self._left -= 1
        if early and kind in ("ask", "tell", "forget"):
            if self._gathered is None and many:
                self._gathered = self._recorder.gather()
            if self._gathered is not None:
                self._gathered.add(record)
                self._count += 1
                return
        self._learn()
        if kind in self._kinds:
            self._kinds[kind](record)
        elif not (many and kind == "ask" and self._recorder.take(record)):
            self._recorder.repeat(record)
        self.done += 1

    def _learn(self) -> None:
        gathered, self._gathered = self._gathered, None
        if gathered is None:
            return
        try:
            gathered.learn()
        except (TorchBanditsError, TypeError, ValueError, RuntimeError) as error:
            raise CannotTogether from error
        self.done += self._count
        self._count = 0


# ---------------------------------------------------------------------- records


def ask_record(limit: Tensor | None, offered: Tensor | None, exactly: int | None, selection: Selection, box: bool) -> Record:
    """The record of an ask: its arguments and the picks, with their points in a box."""
    where = {"points": pack(selection.points)} if box else {}
    return {
        "kind": "ask",
        "limit": pack(limit),
        "more": exactly,
        "offered": pack(offered),
        "index": pack(selection.index),
    } | where


def fill_record(selection: Selection, drawn: Sequence[Sequence[Tensor]], box: bool) -> Record:
    """The record of several selections as one: the picks, and the generator states after the last selection that drew random
    numbers."""
    last = next((states for states in reversed(drawn) if states), ())
    where = {"points": pack(selection.points)} if box else {}
    return {"kind": "fill", "index": pack(selection.index), "drawn": [pack(state) for state in last]} | where


def _cut(selection: Selection, wanted: Tensor) -> bool:
    """Whether there are picks, and a row has fewer than requested, `batch_shape` on the host."""
    made = selection.mask.sum(dim=-1).cpu()
    return bool(made.any()) and bool((made < wanted).any())


def _check_whole(selection: Selection, exactly: int) -> None:
    """Refuse a batch in which a row has fewer picks."""
    made = int(selection.mask.sum(dim=-1).min())
    message = f"no arm is left after {made} of {exactly} picks: ask for fewer, offer more arms, or raise max_pulls=."
    require(made == exactly, message)


def tell_record(
    index: Tensor, mask: Tensor, rewards: Tensor, noise_var: Tensor | None = None, block: Tensor | None = None
) -> Record:
    """The record of a tell: arms and rewards; −1 where masked, NaN where the evaluation failed. Noise variances are recorded if
    they were told, and so are blocks."""
    beside = {"noise_var": noise_var, "block": block}
    own = {name: pack(value) for name, value in beside.items() if value is not None}
    return {"kind": "tell", "index": pack(torch.where(mask, index, -1)), "rewards": pack(rewards)} | own


def observe_record(pulls: Pulls, noise_var: Tensor | None = None) -> Record:
    """The record of summed history, as it was given."""
    where = {"index": pack(pulls.index)} if pulls.points is None else {"points": pack(pulls.points)}
    own = {} if noise_var is None else {"noise_var": pack(noise_var)}
    sums = {"counts": pack(pulls.counts), "sums": pack(pulls.sums), "squares": pack(pulls.squares)}
    return {"kind": "observe", **where, **sums, **own}


def move_record(arms: Any, costs: Any, known: Any = None) -> Record:
    """The record of a change of arms, which contains all arms.

    Raises:
        UnsupportedError: For arms that are read from a source.
    """
    require(
        isinstance(arms, Tensor),
        "a journal stores the new arms of a run, but cannot store those of a source: pass a tensor, or begin a new journal "
        "with the source and observe() the data.",
        UnsupportedError,
    )
    given = {"costs": costs} | ({} if known is None else {"known": known})
    own = {name: None if x is None else pack(as_tensor(name, x, torch.float64)) for name, x in given.items()}
    return {"kind": "set_arms", "arms": pack(arms), **own}


def report_record(report: Report, best: Tensor) -> Record:
    """The result of a tell: its report, and the arm that is recommended afterwards."""
    return {"report": {f.name: pack(getattr(report, f.name)) for f in fields(report)}, "best": pack(best)}


def report_in(record: Record, device: torch.device) -> tuple[Report, Tensor]:
    """The report and the recommended arm in the record of a tell, on the device of the run."""
    values = record["report"]
    return Report(**{f.name: held(values[f.name]).to(device) for f in fields(Report)}), held(record["best"]).to(device)
