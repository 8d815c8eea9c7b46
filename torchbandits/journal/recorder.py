"""The calls of a loop: each takes effect completely and is in the journal, or has no effect."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchbandits.errors import ArgumentError, JournalWarning, StateError, issue, require
from torchbandits.journal.fingerprint import difference
from torchbandits.journal.journal import Journal
from torchbandits.journal.records import (
    Record,
    ask_record,
    fill_record,
    fit_record,
    forget_record,
    load_record,
    maximize_record,
    move_record,
    observe_record,
    report_record,
    seeds_record,
    tell_record,
)
from torchbandits.loop import Loop
from torchbandits.policies import Composed
from torchbandits.selections import duplicate, joined, within
from torchbandits.sources import ArmSource
from torchbandits.types import FitReport, PickMask, Picks, Pulls, Report, Selection

_COSTLY = ("fit", "load", "set_arms")  # a checkpoint is written after each, because repeating them is slow

NOT_PENDING = "some of these picks are not pending: pass picks that ask() returned and that were neither told nor forgotten."

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
            pulls = replace(pulls, unasked=unasked)
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
        weighted = pulls if noise_var is None else pulls.weighted(loop.noise_variance(), noise_var)
        unasked = pulls.counts.sum(dim=-1)
        return self.change(
            partial(loop.learn_, replace(weighted, unasked=unasked), loop.open, unasked),
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
        self.change(partial(loop.set_open_, remaining), lambda _: forget_record(index, mask), draws=False)

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

        self.change(work, lambda _: maximize_record(points), draws=False)

    def fit(self, noise: bool, options: dict[str, Any]) -> FitReport:
        """Fit the kernel, and learn all rewards again with it."""
        return self.change(partial(self.loop.refit_, noise, options), lambda _: fit_record(noise, options))

    def move(self, arms: Tensor | ArmSource, costs: Any = None, known: Any = None) -> None:
        """Replace the arms, their costs and known outcomes."""
        self.change(partial(self.loop.move_, arms, costs, known), lambda _: move_record(arms, costs, known), draws=False)

    def draw_seeds(self, **beside: Any) -> list[int]:
        """A seed per batch row, drawn from the row's generator; `beside` holds additional entries of its record."""
        told = self.loop.pulls
        return self.change(self.loop.draw_seeds_, lambda seeds: seeds_record(seeds, told) | beside)

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
        note = (lambda _: load_record(state_dict)) if written else None
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
        saved: dict[str, Any] = {"state": self.state_dict(brief=True), "arms": None, "costs": None, "known": None}
        if moved:
            saved |= {"arms": rows.arms, "costs": rows.costs, "known": rows.known}
        return saved | {name: copy.deepcopy(part.state_dict()) for name, part in self.besides.items()}


def _cut(selection: Selection, wanted: Tensor) -> bool:
    """Whether there are picks, and a row has fewer than requested, `batch_shape` on the host."""
    made = selection.mask.sum(dim=-1).cpu()
    return bool(made.any()) and bool((made < wanted).any())


def _check_whole(selection: Selection, exactly: int) -> None:
    """Refuse a batch in which a row has fewer picks."""
    made = int(selection.mask.sum(dim=-1).min())
    message = f"no arm is left after {made} of {exactly} picks: ask for fewer, offer more arms, or raise max_pulls=."
    require(made == exactly, message)
