"""What is no longer used is freed at once: a bandit without references leaves nothing to the garbage collector, since its
tensors, which may take most of the memory, are not what the collector counts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from contract import FEW, MARKED, Case, identify, proceed
from problems import BOUNDED, COMMON, OFF_SCALE, Problem, generator, rbf

import torchbandits as tb
from torchbandits import outcomes
from torchbandits.arms import ArmTable
from torchbandits.policies.state import State

pytestmark = [OFF_SCALE, FEW]

PROBLEM = Problem(seed=3, a=40)


@pytest.fixture(autouse=True, scope="module")
def older_objects() -> None:
    """Collections before each test look only at objects of these tests, and not at a million older ones."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def without_collections() -> Iterator[None]:
    """No garbage is collected within a test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def parts_of(bandit: Any) -> list[weakref.ref[Any]]:
    """Weak references to the modules of a bandit's state."""
    return [weakref.ref(module) for module in bandit.loop.state.modules()]


def alive(parts: list[weakref.ref[Any]]) -> set[str]:
    """Names of the classes of which an object is left. Kernels and policies belong to the caller."""
    return {
        type(part()).__name__ for part in parts if part() is not None and type(part()).__module__.startswith("torchbandits")
    }


@pytest.mark.sweep(4)
@pytest.mark.parametrize("case", MARKED, ids=identify)
def test_a_bandit_without_references_is_freed(case: Case):
    def left() -> set[str]:
        bandit = tb.Bandit(case.policy(), PROBLEM.tensor, generator=generator(1))
        proceed(bandit, 12)
        bandit.ask()
        whole, parts = weakref.ref(bandit), parts_of(bandit)
        assert alive(parts)
        del bandit
        return alive(parts) | ({"Bandit"} if whole() is not None else set())

    # Numba keeps the callers of a function that it has just compiled until the next collection. The second run compiles none.
    assert not (left() and left())


def bandit_with_a_journal(folder: Path) -> tb.Bandit:
    return tb.Bandit(tb.batch_bkb(rbf(), **BOUNDED), PROBLEM.tensor, journal=folder / "run.journal")


def bandit_of_outcomes(folder: Path) -> tb.OutcomeBandit:
    models = {name: tb.gp_ucb(rbf(), **COMMON) for name in ("yield", "cost")}
    return tb.OutcomeBandit(outcomes.pareto(models, minimize=["cost"]), PROBLEM.tensor)


def bandit_in_a_box(folder: Path) -> tb.Bandit:
    return tb.Bandit(
        tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON),
        bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64),
    )


@pytest.mark.parametrize("make", [bandit_with_a_journal, bandit_of_outcomes, bandit_in_a_box])
def test_other_bandits_are_freed(make: Callable[[Path], Any], tmp_path: Path):
    bandit = make(tmp_path)
    for _ in range(3):
        selection = bandit.ask()
        rewards = torch.rand(len(selection.points), dtype=torch.float64)
        bandit.tell(selection, torch.stack([rewards, -rewards], dim=-1) if isinstance(bandit, tb.OutcomeBandit) else rewards)
    whole, parts = weakref.ref(bandit), parts_of(bandit)
    del bandit, selection
    assert whole() is None
    assert not alive(parts)


def test_a_run_leaves_its_history_alone():
    environment = tb.environments.Table(PROBLEM.tensor, torch.as_tensor(PROBLEM.f), noise_std=0.1)
    history = tb.run(tb.gp_ucb(rbf(), **COMMON), environment, 20, generator=generator(0))
    assert history.num_pulls == 20
    left = {type(kept).__name__ for kept in gc.get_objects() if issubclass(type(kept), (State, ArmTable))}
    assert not left
