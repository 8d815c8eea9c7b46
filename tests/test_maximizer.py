"""Infinite sets: a user's maximiser of the score finds the next point, which becomes a further arm."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from problems import BOUNDED, COMMON, generator, rbf

import torchbandits as tb
from torchbandits import errors
from torchbandits.testing.play import differences

START = torch.rand(30, 2, generator=generator(0), dtype=torch.float64)


def ascend(score: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Gradient ascent in the unit square from the best of several points."""
    values = score(START.expand(*score(START).shape[:-1], -1, -1) if score(START).dim() > 1 else START)
    x = START[values.argmax(dim=-1)].clone()
    for _ in range(40):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(score(x.unsqueeze(-2)).sum(), x)
        x = (x + 0.01 * slope / slope.norm(dim=-1, keepdim=True).clamp_min(1e-9)).clamp(0, 1)
    return x


def f(points: torch.Tensor) -> torch.Tensor:
    return -((points - torch.tensor([0.3137, 0.7281], dtype=torch.float64)) ** 2).sum(dim=-1)


MAKERS = {
    "gp_ucb": lambda: tb.gp_ucb(rbf(), **COMMON),
    "ei": lambda: tb.gp_ucb(rbf(), acquisition="ei", **COMMON),
    "batch_bkb": lambda: tb.batch_bkb(rbf(), **BOUNDED),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MAKERS)
def test_the_optimum_between_arms_is_found(name: str):
    bandit = tb.Bandit(MAKERS[name](), START, generator=generator(1))
    for t in range(25):
        selection = bandit.ask(maximizer=ascend)
        assert int(selection.index) == (0 if t == 0 else len(bandit.arms) - 1), "a flat prior: the first start"
        assert torch.equal(bandit.ask().points, selection.points)
        assert torch.equal(bandit.arms[selection.index], selection.points)
        bandit.tell(selection, f(selection.points))
    assert float(f(bandit.best().points)) > float(f(START).max())
    assert len(bandit.arms) == len(START) + 24


def test_the_score_is_that_of_the_arms_and_differentiable():
    for maker in MAKERS.values():
        bandit = tb.Bandit(maker(), START, generator=generator(1))
        bandit.tell(torch.arange(9), f(START[:9]))
        points = START.clone().requires_grad_()
        score = bandit.policy.scores_at(bandit.loop.state, points)
        assert int(score.argmax()) == int(bandit.ask().index[0])
        assert bool(torch.autograd.grad(score.sum(), points)[0].isfinite().all())


@pytest.mark.exhaustive
def test_further_points_are_pending_for_each_other():
    bandit = tb.Bandit(tb.gp_ucb(rbf(0.2), noise_std=0.01, width=tb.widths.Constant(2.0)), START)
    selection = bandit.ask(more=4, maximizer=ascend)
    assert len(selection) == 4
    distance = torch.cdist(selection.points, selection.points) + 9 * torch.eye(4)
    assert float(distance.min()) > 0.1
    bandit.tell(selection, f(selection.points))
    assert bandit.pulls == 4
    assert bandit.counts.sum() == 4


def test_a_point_that_is_an_arm_stays_that_arm():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), START)
    selection = bandit.ask(maximizer=lambda score: START[3])
    assert selection.index.tolist() == [3]
    assert len(bandit.arms) == len(START)
    bandit.forget(selection)
    selection = bandit.ask(maximizer=lambda score: START[3])
    assert float(bandit.tell(selection.index, torch.zeros(1, dtype=torch.float64)).unasked) == 0


def test_a_maximizer_that_fails_at_the_second_point_leaves_no_first():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), START)
    bandit.tell(torch.arange(4), f(START[:4]))
    before, calls = bandit.state_dict(), []

    def once(score: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        calls.append(score(START))
        if len(calls) > 1:
            raise RuntimeError("on purpose")
        return torch.full((2,), 0.123, dtype=torch.float64)

    with pytest.raises(RuntimeError, match="purpose"):
        bandit.ask(maximizer=once, more=3)
    assert len(bandit.arms) == len(START)
    assert differences(before, bandit.state_dict()) == []
    variance = bandit.posterior(torch.full((1, 2), 0.123, dtype=torch.float64)).variance
    assert float(variance) > 0.02, "nothing is pending"


def test_limits_masks_and_costs_are_not_for_maximizers():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), START)
    for options in ({"limit": 0}, {"available": torch.ones(30, dtype=torch.bool)}):
        with pytest.raises(errors.UnsupportedError, match="maximizer"):
            bandit.ask(maximizer=ascend, **options)
    with pytest.raises(errors.ArgumentError, match="limit"):
        bandit.ask(maximizer=ascend, limit=-3)
    for policy in (tb.gp_ucb(rbf(), **COMMON), tb.per_cost(tb.gp_ucb(rbf(), **COMMON))):
        with pytest.raises(errors.UnsupportedError, match="costs"):
            tb.Bandit(policy, START, costs=torch.ones(30)).ask(maximizer=ascend)


def test_rows_have_points_of_their_own():
    bandit = tb.Bandit(tb.igp_ucb(rbf(), **BOUNDED), START, generator=[generator(0), generator(1)])
    bandit.tell(torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0.1, 0.9], [0.4, -0.3]], dtype=torch.float64))
    selection = bandit.ask(maximizer=ascend)
    assert selection.points.shape == (2, 1, 2)
    assert not torch.equal(selection.points[0], selection.points[1])
    bandit.tell(selection, f(selection.points))
    assert bandit.counts.shape == (2, 31)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (errors.ShapeError, torch.zeros(3)), (errors.ShapeError, torch.zeros(2, 2)), (errors.ShapeError, [0.1, 0.2]),
        (errors.NonFiniteError, torch.full((2,), math.nan)),
    ],
)  # fmt: skip
def test_a_bad_answer_changes_nothing(error: type[Exception], answer: object):
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), START)
    before = bandit.state_dict()
    with pytest.raises(error):
        bandit.ask(maximizer=lambda score: answer)
    assert differences(before, bandit.state_dict()) == []
    assert len(bandit.arms) == len(START)
    for scoreless in (tb.uniform(), tb.thompson_sampling(rbf(), **BOUNDED)):
        with pytest.raises(errors.UnsupportedError, match="bkb"):
            tb.Bandit(scoreless, START).ask(maximizer=ascend)
