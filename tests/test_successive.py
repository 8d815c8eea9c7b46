"""Picks for several outcomes with few arms brought up to date are those with all scores computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpytorch
import pytest
import torch
from emulated_device import emulated_device
from problems import OFF_SCALE, generator

import torchbandits as tb
from torchbandits import outcomes
from torchbandits.policies import successive

pytestmark = OFF_SCALE

A = 400


def models(*, ei: bool = False, given: bool = True) -> dict[str, Any]:
    """A model for each outcome; noises differ, so that pulls have different weights."""
    made: dict[str, Any] = {}
    for name, lengthscale, noise in (("yield", 0.4, 0.1), ("cost", 0.7, 0.4), ("tox", 0.5, 0.05)):
        kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5)).double()
        kernel.base_kernel.lengthscale, kernel.outputscale = lengthscale, 2.0
        own = {"acquisition": "ei"} if ei else {"width": tb.widths.Constant(1.5)}
        made[name] = tb.gp_ucb(kernel, noise_std=noise, prior_mean="estimate", **own) if given else tb.auto()
    return made


LIMIT = {"tox": 0.4}
POLICIES: dict[str, Callable[[], Any]] = {
    "growth of two": lambda: outcomes.pareto({k: m for k, m in models().items() if k != "tox"}, minimize=["cost"]),
    "growth of three": lambda: outcomes.pareto(models(), minimize=["cost"]),
    "growth above a point": lambda: outcomes.pareto(models(), reference={"yield": -1.0, "cost": -2.0, "tox": -1.0}),
    "growth under a limit": lambda: outcomes.pareto(models(), objectives=["yield", "cost"], minimize=["cost"], at_most=LIMIT),
    "growth under a limit that none keeps": lambda: outcomes.pareto(
        models(), objectives=["yield", "cost"], minimize=["cost"], at_most={"tox": -9.0}
    ),
    "growth per cost": lambda: tb.per_cost(outcomes.pareto(models(), objectives=["yield", "cost"], at_most=LIMIT)),
    "growth, auto": lambda: outcomes.pareto(models(given=False), objectives=["yield", "cost"], at_most=LIMIT),
    "bounds under a limit": lambda: outcomes.constrained(models(), maximize="yield", at_most=LIMIT),
    "bounds under a limit that none keeps": lambda: outcomes.constrained(models(), minimize="yield", at_most={"tox": -9.0}),
    "bounds per cost": lambda: tb.per_cost(outcomes.constrained(models(), maximize="yield", at_most=LIMIT)),
    "bounds, auto": lambda: outcomes.constrained(models(given=False), maximize="yield", at_most=LIMIT),
    "improvement under limits": lambda: outcomes.constrained(
        models(ei=True), maximize="yield", at_most=LIMIT, at_least={"cost": 0.1}
    ),
    "weights": lambda: outcomes.pareto(models(), scalarization="chebyshev"),
}


def problem(seed: int = 0, *, alike: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(A, 2, generator=generator(seed), dtype=torch.float64)
    x[-40:] = x[:40] + (1e-9 if alike else 0.0)  # copies, or arms that are nearly equal
    values = [torch.sin(5 * x[:, 0]) + x[:, 1], x[:, 0] * x[:, 1], 0.8 * x[:, 0] + 0.3 * torch.cos(3 * x[:, 1])]
    return x, torch.stack(values, dim=-1)


def costs() -> torch.Tensor:
    price = 1 + 3 * torch.rand(A, generator=generator(9), dtype=torch.float64)
    price[-40:] = price[:40]
    return price


def course(name: str, *, alike: bool = False, device: str = "cpu") -> list[list[int]]:
    """Picks of several selections: the first ones, some beside pending picks, of arms on offer, and with repeats."""
    x, values = problem(alike=alike)
    policy = POLICIES[name]()
    bandit = tb.OutcomeBandit(policy, x.to(device), generator=generator(1), costs=costs() if policy.needs_costs else None)
    places = [("yield", "cost", "tox").index(name) for name in bandit.outcomes]
    noise, found = generator(2), []

    def tell(selection: Any) -> None:
        own = selection.index[selection.mask].cpu()
        found.append(own.tolist())
        rewards = values[own][:, places] + 0.1 * torch.randn(len(own), len(places), generator=noise, dtype=torch.float64)
        bandit.tell(selection, rewards.to(device))

    tell(bandit.ask(exactly=12))
    tell(bandit.ask(exactly=10))
    bandit.ask(exactly=3)
    tell(bandit.ask(more=6))
    offer = torch.arange(A, device=device) % 3 > 0
    tell(bandit.ask(exactly=8, available=offer))
    few = torch.zeros(A, dtype=torch.bool, device=device)
    few[found[0][:3]] = True
    tell(bandit.ask(exactly=3, available=few))  # all of them were told, so that they are picked again
    return found


@pytest.mark.sweep(2)
@pytest.mark.parametrize("alike", [False, True], ids=["copies", "nearly equal arms"])
@pytest.mark.parametrize("name", POLICIES)
def test_picks_are_those_of_all_scores(name: str, alike: bool, monkeypatch: pytest.MonkeyPatch):
    expected = course(name, alike=alike)
    asked = counted(monkeypatch)
    monkeypatch.setattr(successive, "_MANY", 1)
    monkeypatch.setattr(successive, "_LEADERS", 4)
    monkeypatch.setattr(successive, "_SHARE", 0.5)
    assert course(name, alike=alike) == expected
    if "none keeps" not in name and "weights" not in name:
        assert asked["leaders"] >= 10  # otherwise the test would show little


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["growth under a limit", "improvement under limits", "bounds per cost"])
def test_picks_on_a_device(name: str, monkeypatch: pytest.MonkeyPatch):
    expected = course(name)
    monkeypatch.setattr(successive, "_MANY", 1)
    monkeypatch.setattr(successive, "_LEADERS", 16)
    with emulated_device():
        assert course(name, device="cuda") == expected


def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Numbers of picks among few leaders and among all arms from now on."""
    asked, few, every = {"leaders": 0, "all": 0}, successive.Successive._among_leaders, successive.Successive._among_all

    def among_leaders(self: Any, *given: Any) -> Any:
        found = few(self, *given)
        asked["leaders"] += found is not None
        return found

    def among_all(self: Any, *given: Any) -> Any:
        asked["all"] += 1
        return every(self, *given)

    monkeypatch.setattr(successive.Successive, "_among_leaders", among_leaders)
    monkeypatch.setattr(successive.Successive, "_among_all", among_all)
    return asked


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", [name for name in POLICIES if name not in ("weights", "bounds under a limit that none keeps")])
def test_later_scores_are_below_the_bounds(name: str, monkeypatch: pytest.MonkeyPatch):
    """All scores of all picks, of which the bounds at each pick are to hold for the later ones."""
    monkeypatch.setattr(successive, "_MANY", 1)
    monkeypatch.setattr(successive.Successive, "_among_leaders", lambda *_: None)
    monkeypatch.setattr(successive, "_TRIED", 10**9)
    kind = type(POLICIES[name]().aim)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    bounds = kind.bounds

    def noted(self: Any, outlook: Any, score: Any, value: torch.Tensor) -> torch.Tensor:
        found = bounds(self, outlook, score, value)
        seen.append((value.clone(), found.clone()))
        return found

    monkeypatch.setattr(kind, "bounds", noted)
    x, values = problem()
    policy = POLICIES[name]()
    bandit = tb.OutcomeBandit(policy, x, generator=generator(1), costs=costs() if policy.needs_costs else None)
    told = torch.randint(A, (15,), generator=generator(4))
    bandit.tell(told, values[told][:, : len(bandit.outcomes)])
    bandit.ask(exactly=13)
    assert len(seen) == 12  # none after the last pick
    for place, (value, bound) in enumerate(seen):
        assert bool((value <= bound + 1e-9).all())
        for later, _ in seen[place:]:
            finite = later > -torch.inf
            assert bool((later[finite] <= bound[finite] + 1e-7).all())


def test_where_arms_are_all_alike_leaders_are_not_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(successive, "_MANY", 1)
    monkeypatch.setattr(successive, "_LEADERS", 4)
    asked = counted(monkeypatch)
    bandit = tb.OutcomeBandit(POLICIES["growth of three"](), problem()[0], generator=generator(1))
    bandit.ask(exactly=30)
    tried = asked["all"] + asked["leaders"]
    assert tried == 30
    assert asked["all"] > 20
