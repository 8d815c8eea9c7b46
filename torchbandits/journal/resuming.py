"""Resuming: a new loop loads the last checkpoint of its journal, and every call recorded after it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from torchbandits.checks import (
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
from torchbandits.errors import DataError, TorchBanditsError
from torchbandits.journal.format import held, state_of_text, unpack
from torchbandits.journal.gathered import GatheredCalls
from torchbandits.journal.lines import Mark
from torchbandits.journal.recorder import Recorder
from torchbandits.journal.records import Record
from torchbandits.loop import Loop
from torchbandits.types import PickMask, Picks, Selection

_MANY = 256  # number of records; fewer are repeated one by one, with bitwise equal results
_LAST = 8  # records that are repeated one by one in any case, and compared with the picks that the policy makes now


def resume(
    recorder: Recorder,
    kinds: Mapping[str, Callable[[Record], None]] | None = None,
    restore: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Bring a new loop to the end of its journal: load the last checkpoint, and repeat every call after it.

    Many records are learned together where the policy allows (`Policy.learns_together`): the state is then the same up to
    rounding, which can change a later pick only where two arms tie up to rounding.

    Args:
        recorder: Makes the calls of the loop. Without a journal, or with a new one, there is nothing to repeat.
        kinds: Functions that repeat records of further kinds, or replace those of these kinds.
        restore: Loads a checkpoint that holds more than the state of the loop.

    Raises:
        DataError: If a record cannot be repeated.

    Cost: loading a checkpoint, and the asks and tells after it; without a checkpoint, all asks and tells.
    """
    journal = recorder.journal
    if journal is None or not journal.resumed:
        return
    start, saved = Mark(), journal.saved()
    with journal.repeating():
        if saved is not None:
            start = Mark(*saved["mark"])
            (restore or partial(_restore, recorder))(saved)
            journal.resume_from(start)
        replay = Replay(recorder, kinds or {}, journal.mark().records - start.records)
        try:
            journal.replay(start, replay)
        except CannotTogether:  # Repeated one by one, so that the error names the line.
            journal.replay(start, Replay(recorder, kinds or {}, 0, skipped=replay.done))


def _restore(recorder: Recorder, saved: dict[str, Any]) -> None:
    """Load a checkpoint."""
    if saved["arms"] is not None:
        # Checkpoints of earlier versions have no known outcomes.
        _move(recorder, saved["arms"].to(recorder.loop.device), saved["costs"], saved.get("known"))
    # The header of the journal records the policy of the state.
    _load(recorder, saved["state"])


class CannotTogether(Exception):
    """Some of the gathered calls cannot be repeated."""


class Replay:
    """Repeats one record after the other; the asks, tells and forgets of a long journal are gathered and learned together.

    Args:
        recorder: Makes the calls.
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
                self._gathered = _gatherer(self._recorder.loop)
            if self._gathered is not None:
                self._gathered.add(record)
                self._count += 1
                return
        self._learn()
        if kind in self._kinds:
            self._kinds[kind](record)
        elif not (many and kind == "ask" and _opened_again(self._recorder.loop, record)):
            repeat(self._recorder, record)
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


def _gatherer(loop: Loop) -> GatheredCalls | None:
    """An object that gathers calls to learn them together; None if they must be repeated one by one."""
    policy, state = loop.policy, loop.state
    together = policy.learns_together(state) and not policy.draws_on_select(state)
    return GatheredCalls(loop) if together else None


def _opened_again(loop: Loop, record: Record) -> bool:
    """Open the picks of a recorded ask without selecting them again; False if selecting draws random numbers, or finds points
    in a box."""
    if loop.state.box is not None or loop.policy.draws_on_select(loop.state):
        return False
    index, mask = _Recorded(record, loop).picks()
    loop.open_(Selection(loop.points(index), index, mask))
    return True


# ---------------------------------------------------------------------- one record


class _Recorded:
    """A record that is repeated, with its tensors on the device of the loop.

    Args:
        entries: The record.
        loop: The loop.
    """

    def __init__(self, entries: Record, loop: Loop) -> None:
        self.entries, self._loop = entries, loop

    def tensor(self, name: str) -> Tensor:
        """A tensor that the record must have."""
        return held(self.entries[name]).to(self._loop.device)

    def maybe(self, name: str) -> Tensor | None:
        """A tensor that the record may have."""
        value = unpack(self.entries.get(name))
        return None if value is None else value.to(self._loop.device)

    def picks(self) -> tuple[Picks, PickMask]:
        """The arms that the record names, and where they are not masked."""
        loop = self._loop
        return check_picks(self.tensor("index"), loop.batch_shape, loop.total, loop.device, padded=True)


def repeat(recorder: Recorder, record: Record) -> None:
    """Repeat one call.

    Raises:
        DataError: If it is of an unknown kind.
    """
    again = _AGAIN.get(record["kind"])
    if again is None:
        raise DataError(f"unknown kind of record, {record['kind']!r}: it was written by a later version.")
    again(recorder, _Recorded(record, recorder.loop))


def _ask_again(recorder: Recorder, record: _Recorded) -> None:
    try:
        recorder.ask(unpack(record.entries.get("limit")), record.maybe("offered"), record.entries["more"])
    except IndexError as error:  # Found while the picks of the journal are gathered, before any is open.
        raise DataError(f"it picks an arm that does not exist: {error}.") from error


def _tell_again(recorder: Recorder, record: _Recorded) -> None:
    device = recorder.loop.device
    index, mask = record.picks()
    rewards = check_rewards(record.tensor("rewards"), index, mask, device, "forget")
    variance = check_noise_var(record.maybe("noise_var"), index.shape, mask & ~rewards.isnan(), device)
    block = record.maybe("block")
    block = None if block is None else check_block(block, mask, device)
    recorder.tell(index, mask, rewards, forgets=True, noise_var=variance, block=block)


def _fill_again(recorder: Recorder, record: _Recorded) -> None:
    loop = recorder.loop
    points = record.maybe("points")  # points of a box, which may not be arms yet
    index = record.picks()[0] if points is None else record.tensor("index")
    opened = Selection(loop.points(index) if points is None else points, index, index >= 0)
    recorder.change(partial(loop.open_, opened, [held(state) for state in record.entries["drawn"]]))


def _observe_again(recorder: Recorder, record: _Recorded) -> None:
    loop = recorder.loop
    where = record.tensor("index" if "index" in record.entries else "points")
    like = (loop.batch_shape, loop.total, loop.arms.shape[-1], loop.device)
    pulls = check_history(where, record.tensor("counts"), record.tensor("sums"), record.tensor("squares"), *like)
    recorder.observe(pulls, check_noise_var(record.maybe("noise_var"), pulls.counts.shape, pulls.counts > 0, loop.device))


def _forget_again(recorder: Recorder, record: _Recorded) -> None:
    recorder.forget(*record.picks())


def _move_again(recorder: Recorder, record: _Recorded) -> None:
    _move(recorder, record.tensor("arms"), record.maybe("costs"), record.maybe("known"))


def _move(recorder: Recorder, arms: Tensor, costs: Tensor | None, known: Tensor | None) -> None:
    arms = check_arms(arms)
    check_replacement(arms, recorder.loop.arms, recorder.loop.batch_shape)
    recorder.move(arms, costs, known)


def _maximize_again(recorder: Recorder, record: _Recorded) -> None:
    loop, points = recorder.loop, record.tensor("points")
    found, dim = iter(points), loop.arms.shape[-1]
    recorder.maximize(lambda: check_maximum(next(found), loop.batch_shape, dim), len(points))


def _fit_again(recorder: Recorder, record: _Recorded) -> None:
    options = dict(record.entries["options"])
    noise = options.pop("noise")
    check_fit(noise, options)
    recorder.fit(noise, options)


def _draw_seeds_again(recorder: Recorder, _: _Recorded) -> None:
    recorder.draw_seeds()


def _load_again(recorder: Recorder, record: _Recorded) -> None:
    _load(recorder, state_of_text(record.entries["state"]))


def _load(recorder: Recorder, state: dict[str, Any]) -> None:
    check_state(state, recorder.loop.state.state_dict())
    recorder.load(state)


_AGAIN: Mapping[str, Callable[[Recorder, _Recorded], None]] = {
    "ask": _ask_again,
    "tell": _tell_again,
    "fill": _fill_again,
    "observe": _observe_again,
    "forget": _forget_again,
    "set_arms": _move_again,
    "maximize": _maximize_again,
    "fit": _fit_again,
    "seeds": _draw_seeds_again,
    "load": _load_again,
}
