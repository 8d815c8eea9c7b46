"""A box on an emulated device: the search is made on the host, in few launches, and finds the same points."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulated_device import Asked, emulated_device
from problems import generator, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits.errors import NumericalError
from torchbandits.policies import host_copy, state

BOX = torch.tensor([[-0.5, 0.2], [1.0, 1.2]], dtype=torch.float64)
OWN = {"noise_std": 0.1, "width": tb.widths.Constant(2.0)}
POLICIES: dict[str, Callable[[], tb.policies.Policy]] = {
    "gp_ucb": lambda: tb.gp_ucb(rbf(), **OWN),
    "first picks": lambda: tb.gp_ucb(rbf(), initial=tb.starts.uniform(3), **OWN),
    "refitted": lambda: tb.gp_ucb(rbf(), refit_every=4, **OWN),
    "estimated mean": lambda: tb.gp_ucb(rbf(), prior_mean="estimate", **OWN),
    "gp_bucb": lambda: tb.gp_bucb(rbf(), ratio_threshold=1e3, max_batch_size=3, noise_std=0.1),
    "bkb": lambda: tb.bkb(rbf(), **OWN),
    "ts": lambda: tb.thompson_sampling(rbf(), num_features=32, **OWN),
    "rff_ucb": lambda: tb.rff_ucb(rbf(), num_features=16, **OWN),
    "soful": lambda: tb.soful(sketch_size=1, noise_std=0.1, norm_bound=1.0),
    "compressed_gp": lambda: tb.compressed_gp(rbf(), **OWN),
    "uniform": lambda: tb.uniform(batch_size=2),
}


def value(x: Tensor) -> Tensor:
    return (3 * x).sin().sum(dim=-1)


def course(bandit: tb.Bandit, steps: int = 3) -> list[Tensor]:
    """Points and widths of some steps, with parts told, extended and forgotten, and history observed."""
    found: list[Tensor] = []
    for step in range(steps):
        selection = bandit.ask(limit=2)
        if step == 1:
            selection = bandit.ask(more=1)
            bandit.forget(selection[-1:])
            selection = bandit.ask()
        if step == 2:
            points = torch.tensor([[0.3, 0.4], [0.0, 1.0]], dtype=torch.float64).expand(*bandit.batch_shape, 2, 2)
            ones = torch.ones(*bandit.batch_shape, 2, dtype=torch.float64)
            bandit.observe(*(x.to(bandit.device) for x in (points, ones, value(points))))
        found.append(selection.points.cpu())
        if selection.index.shape[-1] > 1:
            bandit.tell(selection[:1], value(selection[:1].points))
            selection = selection[1:]
        report = bandit.tell(selection, value(selection.points))
        found += [report.width.cpu(), report.distinct_arms.cpu(), report.dictionary_size.cpu(), bandit.counts.cpu()]
    return [*found, bandit.best(2).points.cpu()]


# The default tests run some policies, and one of them with batch rows.
USUAL = [("gp_ucb", None), ("refitted", None), ("bkb", 2), ("uniform", None)]
CASES = [
    pytest.param(name, rows, marks=[] if (name, rows) in USUAL else pytest.mark.exhaustive)
    for name in POLICIES
    for rows in (None, 2)
]


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("name", "rows"), CASES)
def test_a_box_on_a_device_is_searched_as_one_on_the_host(name: str, rows: int | None):
    def run(device: str) -> list[Tensor]:
        generators = generator(1) if rows is None else [generator(row) for row in range(rows)]
        return course(tb.Bandit(POLICIES[name](), bounds=BOX.to(device), generator=generators))

    with emulated_device():
        there = run("cuda")
    # Without a refit, which takes place on the device, the same processor performs the same operations.
    close = {"rtol": 1e-6, "atol": 1e-6} if name == "refitted" else {"rtol": 0.0, "atol": 0.0}
    torch.testing.assert_close(there, run("cpu"), equal_nan=True, **close)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["gp_ucb", "bkb", "ts"])
def test_a_step_in_a_box_asks_little_of_a_device(name: str):
    with emulated_device() as asked:
        bandit = tb.Bandit(POLICIES[name](), bounds=BOX.cuda(), generator=generator(0))
        for step in range(4):
            before = Asked(asked.launches, asked.waits)
            selection = bandit.ask(limit=1)
            bandit.tell(selection, torch.sin(torch.tensor([step], dtype=torch.float64)).cuda())
        # One of the waits is for the copy of the reward, which the test makes.
        assert asked.launches - before.launches <= 8
        assert asked.waits - before.waits <= 4


@pytest.mark.exhaustive
def test_a_large_posterior_is_searched_on_the_device(monkeypatch: pytest.MonkeyPatch):
    def run(device: str) -> list[Tensor]:
        return course(tb.Bandit(POLICIES["gp_ucb"](), bounds=BOX.to(device), generator=generator(0)))

    expected = run("cpu")
    monkeypatch.setattr(state, "MOST", 3)  # so that the state moves from the host to the device during the run
    with emulated_device() as asked:
        got = run("cuda")
        assert asked.launches > 500
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.exhaustive
def test_a_failed_update_leaves_a_box_as_it_was(monkeypatch: pytest.MonkeyPatch):
    with emulated_device():
        bandit = tb.Bandit(POLICIES["bkb"](), bounds=BOX.cuda(), generator=generator(0))
        course(bandit, 2)
        twin = copy.deepcopy(bandit)
        selection = bandit.ask(limit=1)

        def broken(*_: Any) -> None:
            raise NumericalError("no")

        with monkeypatch.context() as patch:
            patch.setattr(type(bandit.loop.state.box), "check_finite", broken)
            with pytest.raises(NumericalError):
                bandit.tell(selection, value(selection.points))
        assert torch.equal(twin.ask(limit=1).points.cpu(), selection.points.cpu())
        for one in (bandit, twin):
            one.tell(selection, value(selection.points))
        torch.testing.assert_close(course(bandit, 1), course(twin, 1), rtol=0, atol=0)


@pytest.mark.exhaustive
def test_a_state_of_a_box_is_loaded_and_moved_with_its_copy():
    with emulated_device():
        bandit = tb.Bandit(POLICIES["bkb"](), bounds=BOX.cuda(), generator=generator(0))
        course(bandit, 2)
        saved = bandit.state_dict()
        expected = course(copy.deepcopy(bandit), 1)
        course(bandit, 1)
        for device in ("cpu", "cuda"):
            bandit.load_state_dict(saved).to(device)
            torch.testing.assert_close(course(bandit, 1), expected, rtol=0, atol=0)


def test_the_limit_of_what_is_searched_on_the_host_is_a_number_of_coordinates():
    assert 100 < host_copy.MOST < 5_000
