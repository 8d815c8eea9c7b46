"""Calls within `torch.inference_mode`, as in a service, beside calls outside of it: the same picks and states."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from contract import PROBLEM, Case
from problems import COMMON, generator, rbf

import torchbandits as tb

MODES = {"always": lambda _: True, "every other call": lambda step: step % 2 == 0}
NAMES = ["auto", "gp_ucb", "batch_bkb", "ada_bkb", "lb_gp_ucb", "pi_gp_ucb", "thompson_sampling", "lin_ucb"]
every_mode = pytest.mark.parametrize("mode", MODES)


def within(mode: str, step: int) -> Any:
    return torch.inference_mode() if MODES[mode](step) else nullcontext()


@every_mode
@pytest.mark.parametrize(
    "name", ["auto", "gp_ucb", "batch_bkb", "ada_bkb", "lb_gp_ucb", "pi_gp_ucb", "thompson_sampling", "lin_ucb"]
)
def test_a_bandit(name: str, mode: str):
    case = Case(name, "")
    plain, picks = case.bandit(), []
    with within(mode, 0):
        bandit = tb.Bandit(case.policy(), PROBLEM.tensor.clone(), generator=generator(5))
    for step in range(10):
        selection = plain.ask(limit=2)
        plain.tell(selection, PROBLEM.rewards(2 * step, selection.index))
        with within(mode, step):
            found = bandit.ask(limit=2)
            bandit.tell(found, PROBLEM.rewards(2 * step, found.index))
            bandit.posterior(PROBLEM.tensor[:3])
            bandit.load_state_dict(bandit.state_dict())
        picks.append((found.index.tolist(), selection.index.tolist()))
    assert [pick for pick, _ in picks] == [pick for _, pick in picks]


def test_a_posterior_that_was_read_within_has_gradients_outside():
    bandit = Case("gp_ucb", "").bandit(5)
    with torch.inference_mode():
        bandit.posterior(PROBLEM.tensor[:3])
    points = PROBLEM.tensor[:3].clone().requires_grad_()
    mean = bandit.posterior(points).mean
    assert bool((torch.autograd.grad(mean.sum(), points)[0] != 0).any())
    bandit.fit_kernel_()


def test_contexts_outcomes_and_workers(tmp_path: Path):
    with torch.inference_mode():
        arms, contexts = torch.rand(20, 2, dtype=torch.float64, generator=generator(0)), torch.linspace(0, 1, 3).double()
        contextual = tb.ContextualBandit(tb.auto(), arms, contexts[:1].unsqueeze(0), max_contexts=2)
        model = tb.gp_ucb(rbf(), **COMMON)
        outcomes = tb.OutcomeBandit(tb.outcomes.pareto({"a": model, "b": model}, known=["c"]), arms, known={"c": arms[:, 0]})
        worker = tb.Worker(tb.auto(), arms, store=tmp_path / "store")
    for step in range(8):
        with within("every other call", step):
            selection = contextual.ask(context=contexts[step % 3 : step % 3 + 1])
            contextual.tell(selection, selection.points.sum(dim=-1))
            selection = outcomes.ask(exactly=2)
            outcomes.tell(selection, selection.points)
            lease = worker.ask()
            assert lease is not None
            worker.tell(lease, float(lease.points.sum()))
    assert int(contextual.pulls) == worker.told == 8
    assert outcomes.pulls.tolist() == [16, 16]
