"""The contract of the state: resuming, refusing, going back, staying small. On every policy of the registry in each mode."""

from __future__ import annotations

import copy
import io
import random
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from contract import ARMS, NO_POINTS, NO_POSTERIOR, PROBLEM, Case, every_policy, everything, proceed, proceed_rows, rewards_of
from problems import generator
from test_laws import differences, size_of

import torchbandits as tb
from torchbandits import errors

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")

NAN, INF = float("nan"), float("inf")


def generators_of(bandit: tb.Bandit) -> list[list[int]]:
    return [g.get_state().tolist() for g in bandit.generators]


def assert_alike(one: tb.Bandit, other: tb.Bandit, pulls: int = 5) -> None:
    """Both go on with the same picks, and end in the same state."""
    assert proceed(one, pulls) == proceed(other, pulls)
    assert differences(everything(one), everything(other)) == []
    assert generators_of(one) == generators_of(other)


# ------------------------------------------------------------------------- resuming


@pytest.mark.sweep
@every_policy
@pytest.mark.parametrize("opened", [False, True])
def test_a_saved_state_continues_as_the_undisturbed_bandit_does(case: Case, opened: bool):
    """Loaded into a fresh bandit, or with a batch open into one with a past; through a file that holds nothing but tensors."""
    bandit, resumed = case.bandit(pulls=6), case.bandit(pulls=11 if opened else 0, seed=900)
    if opened and case.name not in NO_POINTS:
        for b, shift in ((bandit, 0.0), (resumed, 0.3)):
            b.observe(torch.tensor([[0.1, 0.2], [0.6, 0.4]]).double() + shift, torch.ones(2), torch.tensor([0.2, 0.1]))
    if opened:
        resumed.ask(more=3)
        bandit.ask(limit=2)
        bandit.ask(more=2)
        bandit.tell(bandit.ask()[1:3], rewards_of(bandit.ask()[1:3]))
    file = io.BytesIO()
    torch.save(bandit.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert differences(everything(bandit), everything(resumed)) == []
    assert proceed(bandit, 15) == proceed(resumed, 15)
    assert generators_of(bandit) == generators_of(resumed)
    assert torch.equal(bandit.counts, resumed.counts)
    assert int(bandit.best_arm()) == int(resumed.best_arm())


@every_policy
def test_a_saved_batch_continues_as_the_undisturbed_one_does(case: Case):
    """Rows of different sizes, saved with a batch open."""
    limits = torch.tensor([1, 3])
    bandit, resumed = (
        tb.Bandit(case.policy(), PROBLEM.tensor, generator=[generator(seed), generator(seed + 1)]) for seed in (1, 11)
    )
    proceed_rows(bandit, [PROBLEM] * 2, limits, rounds=5)
    bandit.ask(limit=limits)
    resumed.load_state_dict(bandit.state_dict())
    assert proceed_rows(bandit, [PROBLEM] * 2, limits, rounds=5) == proceed_rows(resumed, [PROBLEM] * 2, limits, rounds=5)
    assert generators_of(bandit) == generators_of(resumed)


@every_policy
def test_deep_copies_and_saved_states_have_a_life_of_their_own(case: Case):
    bandit = case.bandit(pulls=6)
    bandit.ask(more=2)
    saved, twin = bandit.state_dict(), copy.deepcopy(bandit)
    kept = copy.deepcopy(saved)
    ahead = proceed(twin, 15)
    assert differences(kept, everything(bandit)) == []
    assert proceed(bandit, 15) == ahead
    assert generators_of(bandit) == generators_of(twin)
    assert differences(kept, saved) == []


# ------------------------------------------------------------------------- bad input


def wrong_calls(opened: tb.Selection) -> list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]]:
    """Error, call, arguments."""
    q, y = len(opened), torch.zeros(len(opened), dtype=torch.float64)
    ones, three = torch.ones(3, dtype=torch.float64), torch.tensor([1, 2, 3])

    def told(value: float) -> torch.Tensor:
        return y.index_fill(0, torch.tensor([1]), value)

    tells = [
        (errors.ShapeError, (opened, torch.zeros(q + 1))), (errors.ShapeError, (opened, torch.zeros(1, q))),
        (errors.ShapeError, (opened, torch.tensor(0.0))), (errors.ShapeError, (opened, y.to(torch.complex128))),
        (errors.ShapeError, (opened, y.bool())), (errors.NonFiniteError, (opened, told(NAN))),
        (errors.NonFiniteError, (opened, told(INF))), (errors.NonFiniteError, (opened, told(-INF))),
        (errors.ArmIndexError, (torch.tensor([ARMS]), y[:1])), (errors.ArmIndexError, (torch.tensor([-2]), y[:1])),
        (errors.ShapeError, (torch.tensor([0.5]), y[:1])), (errors.ShapeError, (torch.tensor([1, 2]), y[0])),
        (errors.ArgumentError, ("nonsense", y)), (errors.ArgumentError, (None, y)),
    ]  # fmt: skip
    observations = [
        (errors.ArmIndexError, (torch.tensor([1, ARMS, 3]), ones, ones)), (errors.ArmIndexError, (-three, ones, ones)),
        (errors.ShapeError, (three, ones[:2], ones)), (errors.ShapeError, (three, ones, ones[:2])),
        (errors.ArgumentError, (three, 0 * ones, ones)), (errors.ArgumentError, (three, -ones, ones)),
        (errors.NonFiniteError, (three, ones, NAN * ones)), (errors.NonFiniteError, (three, ones, ones, INF * ones)),
        (errors.ShapeError, (torch.zeros(3, 5).double(), ones, ones)),
        (errors.NonFiniteError, (torch.full((3, 2), NAN).double(), ones, ones)),
    ]  # fmt: skip
    asks = [
        (errors.ArgumentError, {"limit": -1}), (errors.ArgumentError, {"limit": 1.5}), (errors.ArgumentError, {"limit": True}),
        (errors.ArgumentError, {"more": 0}), (errors.ArgumentError, {"more": -1}), (errors.ArgumentError, {"more": "two"}),
        (errors.ShapeError, {"more": 1, "limit": torch.tensor([1, 2])}),
        (errors.ShapeError, {"more": 1, "available": torch.ones(ARMS - 1, dtype=torch.bool)}),
        (errors.ShapeError, {"more": 1, "available": torch.ones(ARMS)}),
        (errors.ShapeError, {"more": 1, "available": torch.ones(2, ARMS, dtype=torch.bool)}),
        (errors.ArgumentError, {"more": 1, "available": torch.zeros(ARMS, dtype=torch.bool)}),
    ]  # fmt: skip
    others = [
        (errors.StateError, "forget", (torch.tensor([opened.index.max() + 1 if opened.index.max() < ARMS - 1 else 0] * 9),)),
        (errors.ArmIndexError, "forget", (torch.tensor([ARMS]),)), (errors.ArgumentError, "best", (0,)),
        (errors.ArgumentError, "load_state_dict", ({},)), (errors.ArgumentError, "load_state_dict", (None,)),
    ]  # fmt: skip
    calls = [(error, "tell", a, {}) for error, a in tells] + [(error, "observe", a, {}) for error, a in observations]
    return calls + [(error, "ask", (), options) for error, options in asks] + [(e, call, a, {}) for e, call, a in others]


@every_policy
def test_bad_input_is_an_error_and_costs_nothing(case: Case):
    bandit, twin = case.bandit(pulls=6), case.bandit(pulls=6)
    for b in (bandit, twin):
        b.ask(limit=2)
        b.ask(more=2)
    before = everything(bandit)
    for error, call, arguments, options in wrong_calls(bandit.ask()):
        with pytest.raises(error) as caught:
            getattr(bandit, call)(*arguments, **options)
        assert isinstance(caught.value, errors.TorchBanditsError)
        assert differences(before, everything(bandit)) == [], f"{call}{arguments}{options}"
    assert_alike(bandit, twin)


@every_policy
def test_states_of_other_bandits_are_refused(case: Case):
    bandit, twin = case.bandit(pulls=5), case.bandit(pulls=5)
    other = "gp_ucb" if case.name in NO_POSTERIOR else "uniform"
    smaller = tb.Bandit(case.policy(), PROBLEM.tensor[:20], generator=generator(0))
    for foreign in (Case(other, "").bandit(pulls=3), smaller):
        with pytest.raises(errors.TorchBanditsError):
            bandit.load_state_dict(foreign.state_dict())
        assert differences(everything(twin), everything(bandit)) == []
    assert_alike(bandit, twin)


# ------------------------------------------------------------------------- failures in the middle


class Interrupted(Exception):
    """What `Interruption` raises."""


class Interruption(torch.overrides.TorchFunctionMode):
    """Counts calls of torch, and fails the first from that number on, unless it is part of the way back."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at, self.calls = at, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        if self.calls >= self.at and not any(frame.name == "restore" for frame in traceback.extract_stack(limit=12)):
            self.at = torch.inf
            raise Interrupted
        return func(*args, **(kwargs or {}))


CALLS: dict[str, Callable[[tb.Bandit], Any]] = {
    "ask more": lambda b: b.ask(more=3),
    "tell a part": lambda b: b.tell(b.ask()[1:2], rewards_of(b.ask()[1:2])),
    "observe": lambda b: b.observe(torch.tensor([3, 35]), torch.tensor([1.0, 2.0]), torch.tensor([0.1, 0.2])),
}


@pytest.mark.sweep
@every_policy
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_in_the_middle_leaves_no_trace(case: Case, call: str):
    """Whatever torch call fails: the state is as before, generators and what was derived included."""
    bandit, twin = case.bandit(pulls=6), case.bandit(pulls=6)
    for b in (bandit, twin):
        b.ask(limit=2)
        b.ask(more=2)
    before = everything(bandit)
    with Interruption(torch.inf) as counting:
        CALLS[call](copy.deepcopy(twin))
    for at in np.linspace(1, counting.calls, 8).astype(int):
        try:
            with Interruption(at):
                CALLS[call](bandit)
        except Interrupted:
            left = differences(before, everything(bandit))
            assert left == [], f"call {at} of {counting.calls}: {left[:3]}"
        else:
            break  # fewer calls were needed than by the copy, which had to compute its factors again
    else:
        CALLS[call](bandit)
    CALLS[call](twin)
    assert_alike(bandit, twin)


@every_policy
def test_rewards_too_large_to_add_are_an_error_and_undone(case: Case):
    bandit, twin = case.bandit(pulls=6), case.bandit(pulls=6)
    before = everything(bandit)
    for huge in (1.7e308, -1.7e308):
        with pytest.raises(errors.NumericalError):
            bandit.tell(torch.tensor([33, 33]), torch.tensor([huge, huge], dtype=torch.float64))
        assert differences(before, everything(bandit)) == []
    assert_alike(bandit, twin)


# ------------------------------------------------------------------------- staying small, and repeating itself


@every_policy
def test_nothing_grows_with_pulls(case: Case):
    """The same three arms: a table may hold some updates before it is swept anew, a bounded number."""
    bandit, available = case.bandit(), torch.zeros(ARMS, dtype=torch.bool)
    few = torch.tensor([3, 17, 35])
    available[few] = True
    sizes, rounds = [], 200 if case.name == "auto" else 50  # its fits, rarer and rarer, sweep the table too
    for _ in range(rounds):
        picks = torch.cat([bandit.ask(limit=2, available=available).index, few, few, few])
        bandit.tell(picks, PROBLEM.rewards(int(bandit.pulls), picks))
        sizes.append(size_of(bandit.state_dict()))
    assert int(bandit.pulls) >= 500
    half = rounds // 2
    assert max(sizes[half:]) <= max(sizes[:half]), sizes


@every_policy
def test_only_the_given_generator_is_drawn_from(case: Case):
    runs = []
    for seed in (1, 2):
        bandit, picks = case.bandit(), []
        for number in range(6):
            torch.manual_seed(seed + 10 * number)
            random.seed(seed + number)
            states = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
            picks += proceed(bandit, 2)
            assert torch.equal(states[0], torch.random.get_rng_state())
            assert states[1] == np.random.get_state()[1].tolist()  # noqa: NPY002
            assert states[2] == random.getstate()
        runs.append(picks)
    assert runs[0] == runs[1]
