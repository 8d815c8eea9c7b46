"""The loop under a bandit: every change is made completely or not at all."""

from __future__ import annotations

import pytest
import torch
from contract import every_policy
from problems import COMMON, Problem, generator, rbf

import torchbandits as tb
from torchbandits.journal.gathered import GatheredCalls
from torchbandits.loop import Loop

PROBLEM = Problem(seed=1, a=20)


def loop_of() -> Loop:
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor, generator=generator(0))
    bandit.tell(torch.tensor([3, 4]), torch.tensor([0.5, 0.2]))
    bandit.ask()
    return bandit.loop


def known_of(loop: Loop) -> tuple:
    opened = None if loop.open is None else loop.open.index.tolist()
    states = [g.get_state().tolist() for g in loop.state.generators]
    return float(loop.pulls), opened, states, loop.state.arm_mean().tolist()


def spoil(loop: Loop) -> None:
    selection, drawn = loop.select(exactly=2)
    loop.open_(selection, drawn)
    ones = torch.ones(1, dtype=torch.float64)
    pulls = tb.types.Pulls(ones, ones, ones, index=torch.tensor([7]), mask=torch.tensor([True]))
    loop.learn_(pulls, None, torch.zeros((), dtype=torch.float64))
    torch.rand(1, generator=loop.state.generators[0])


def test_a_change_that_fails_leaves_the_loop_as_it_was():
    loop, calls = loop_of(), []
    before = known_of(loop)

    def work() -> None:
        spoil(loop)
        raise ValueError("the end")

    with pytest.raises(ValueError, match="the end"):
        loop.all_or_nothing(work, take_back=lambda: calls.append(known_of(loop)))
    assert known_of(loop) == before
    assert calls == [before], "whatever else has changed is taken back last, and once"


def test_a_change_that_was_left_half_way_is_undone_by_the_next():
    """A second interrupt can end the rollback after the first one."""
    loop = loop_of()
    before, attempts = known_of(loop), []

    def take_back() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise KeyboardInterrupt

    def work() -> None:
        spoil(loop)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.all_or_nothing(work, take_back=take_back)
    assert loop.all_or_nothing(lambda: known_of(loop)) == before
    assert len(attempts) == 2
    loop.recover_()
    assert len(attempts) == 2


@pytest.mark.parametrize("journal", [True, False])
def test_the_next_call_begins_with_what_was_left_half_way(tmp_path, journal: bool):
    """The next call reads the loop only after the rollback."""
    path = tmp_path / "journal" if journal else None
    made = [tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor, generator=generator(0), journal=p) for p in (path, None)]
    bandit, other = made
    for one in made:
        one.tell(one.ask(more=2), torch.tensor([0.5, 0.2]))
    selection = bandit.ask(more=3)
    other.ask(more=3)
    attempts = []

    def work() -> None:
        spoil(bandit.loop)
        raise KeyboardInterrupt

    def take_back() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise KeyboardInterrupt

    restore = bandit.loop.state.snapshot()

    def fails_once() -> None:
        take_back()
        restore()

    with pytest.raises(KeyboardInterrupt):
        bandit.loop.all_or_nothing(work, restore=fails_once)
    assert float(bandit.loop.pulls) == 3, "nothing is undone yet"
    for one in made:
        one.tell(selection[:2], torch.tensor([0.1, 0.3]))
    assert known_of(bandit.loop) == known_of(other.loop)


def test_a_change_returns_what_its_work_returned_and_stays():
    loop = loop_of()
    assert loop.all_or_nothing(lambda: spoil(loop) or 5) == 5
    assert float(loop.pulls) == 3
    assert loop.open is None


def test_selecting_changes_nothing():
    loop = loop_of()
    before = known_of(loop)
    first, _ = loop.select(exactly=3)
    again, _ = loop.select(exactly=3)
    assert torch.equal(first.index, again.index)
    assert known_of(loop) == before


@every_policy
def test_gathered_calls_are_those_made_one_by_one(case):
    """The open picks after them are in the same order."""
    one, other = case.bandit(3).loop, case.bandit(3)
    if not one.policy.learns_together(one.state):
        return
    gathered = GatheredCalls(one)
    gathered.add({"kind": "ask", "index": [1, 2, 2]})
    gathered.add({"kind": "tell", "index": [2], "rewards": [0.5]})
    gathered.add({"kind": "forget", "index": [1]})
    assert one.open is None, "nothing has changed before they are learned"
    gathered.learn()
    other.tell(torch.tensor([2]), torch.tensor([0.5]))
    assert one.open.index.tolist() == [2]
    assert torch.equal(one.pulls, other.pulls)


def test_a_factorisation_that_fails_is_a_numerical_error_and_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor, generator=generator(0))
    selection = bandit.ask()

    def fails(*_: object, **__: object) -> None:
        torch.linalg.eigh(torch.full((3, 3), torch.nan, dtype=torch.float64))

    monkeypatch.setattr("torchbandits.policies.composed.learn", fails)
    with pytest.raises(tb.errors.NumericalError, match="a factorisation failed"):
        bandit.tell(selection, torch.tensor([0.5]))
    assert int(bandit.pulls) == 0
    assert torch.equal(bandit.ask().index, selection.index)
