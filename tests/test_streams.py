"""Normal numbers drawn on the device (`TORCHBANDITS_PHILOX=1`), emulated or real (`-m cuda`): runs are repeated and resumed."""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from emulated_device import emulated_device
from problems import generator, rbf

import torchbandits as tb
from torchbandits import streams
from torchbandits.errors import ArgumentError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
POLICIES = {
    "joint": lambda: tb.thompson_sampling(rbf(0.7), noise_std=0.1),
    "nystrom": lambda: tb.thompson_sampling(rbf(0.7), embedding="nystrom", noise_std=0.1),
    "features": lambda: tb.thompson_sampling(rbf(0.7), embedding="rff", num_features=32, noise_std=0.1),
}


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.cuda)])
def philox(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CUDA device that draws."""
    monkeypatch.setattr(streams, "PHILOX", True)
    with emulated_device() if request.param == "emulated" else nullcontext():
        yield


def test_numbers_come_from_the_generator_of_the_cpu_unless_asked_for():
    assert os.environ.get("TORCHBANDITS_PHILOX") != "1"
    assert not streams.PHILOX
    expected = torch.randn(3, 5, generator=generator(1), dtype=torch.float64)
    assert torch.equal(streams.normals(3, 5, generator(1), CPU), expected)
    with emulated_device():
        assert torch.equal(streams.normals(3, 5, generator(1), CUDA).cpu(), expected)


@pytest.mark.parametrize(("value", "expected"), [("1", "True"), ("0", "False"), ("", "False")])
def test_the_switch_is_read_from_the_environment(value: str, expected: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHBANDITS_PHILOX", value)
    again = runpy.run_path(streams.__file__)  # a second copy of the module, imported anew
    assert str(again["PHILOX"]) == expected


def test_the_generator_gives_a_seed_for_each_call_and_the_device_the_numbers(philox: None):
    source, other = generator(1), generator(1)
    first, second = (streams.normals(300, 200, source, CUDA) for _ in range(2))
    for _ in range(2):
        torch.randint(2**62, (), generator=other)
    assert torch.equal(source.get_state(), other.get_state())
    assert first.device.type == "cuda"
    assert not torch.equal(first.cpu(), second.cpu())
    assert torch.equal(streams.normals(300, 200, generator(1), CUDA).cpu(), first.cpu())
    both = torch.stack([first, second]).cpu()
    assert abs(float(both.mean())) < 5 / both.numel() ** 0.5
    assert abs(float(both.var()) - 1) < 10 / both.numel() ** 0.5
    on_cpu = torch.randn(3, 5, generator=generator(1), dtype=torch.float64)
    assert torch.equal(streams.normals(3, 5, generator(1), CPU), on_cpu)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("name", POLICIES)
def test_a_run_is_repeated_and_resumed_on_the_device(philox: None, name: str, rows: int | None):
    arms = torch.rand(80, 2, generator=generator(0), dtype=torch.float64)

    def fresh(seed: int) -> tb.Bandit:
        generators = generator(seed) if rows is None else [generator(seed + row) for row in range(rows)]
        return tb.Bandit(POLICIES[name](), arms.cuda(), generator=generators)

    def played(bandit: tb.Bandit, steps: int) -> list[list[int]]:
        picks = []
        for _ in range(steps):
            selection = bandit.ask()
            picks.append(selection.index.tolist())
            bandit.tell(selection, selection.points.sum(dim=-1))
        return picks

    whole = played(fresh(1), 8)
    half = fresh(1)
    first = played(half, 4)
    resumed = fresh(3)
    resumed.load_state_dict(half.state_dict())
    assert first + played(resumed, 4) == whole
    assert played(fresh(2), 8) != whole


def test_draws_of_the_device_have_the_moments_of_the_posterior(philox: None):
    arms = torch.rand(30, 2, generator=generator(0), dtype=torch.float64)
    bandit = tb.Bandit(POLICIES["joint"](), arms.cuda(), generator=generator(1))
    for _ in range(3):
        selection = bandit.ask()
        bandit.tell(selection, selection.points.sum(dim=-1))
    state = bandit.loop.state
    found = state.posterior(arms.cuda())
    mean, variance = found.mean.cpu(), found.variance.cpu()
    width = torch.ones((), dtype=torch.float64, device="cuda")
    draws = torch.cat([part.cpu() for part in state.draws.draw([4_000], width, [generator(7)])], dim=-2)
    assert bool(((draws.mean(dim=-2) - mean).abs() < 5 * (variance / 4_000).sqrt() + 1e-3).all())
    torch.testing.assert_close(draws.var(dim=-2), variance, rtol=0.2, atol=1e-4)


def test_a_generator_on_the_device_is_refused_and_the_switch_is_named(philox: None):
    arms = torch.rand(30, 2, dtype=torch.float64)
    with pytest.raises(ArgumentError, match="TORCHBANDITS_PHILOX=1"):
        tb.Bandit(POLICIES["joint"](), arms.cuda(), generator=torch.Generator(CUDA))
