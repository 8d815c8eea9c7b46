"""Picks of `bpe` as a CUDA graph, emulated or real (`-m cuda`): they are those of the CPU, and the
host launches one operation for each, or for eight. And the emulation of graphs: what would fail on a card fails there."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from emulated_device import Asked, DeviceError, emulated_device
from problems import generator, kernel_pair, rbf

import torchbandits as tb
from torchbandits.arms import graphs

CUDA = torch.device("cuda")


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.cuda)])
def recorded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked | None]:
    """A CUDA device whose repeated steps are recorded; what was asked of it if it is emulated."""
    monkeypatch.setattr(graphs, "GRAPHS", True)
    with emulated_device() if request.param == "emulated" else nullcontext() as asked:
        yield asked


@pytest.mark.parametrize(("value", "expected"), [("1", "True"), ("0", "False"), ("", "True")])
def test_the_switch_is_read_from_the_environment(value: str, expected: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHBANDITS_GRAPHS", value)
    again = runpy.run_path(graphs.__file__)  # a second copy of the module, imported anew
    assert str(again["GRAPHS"]) == expected


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("kernel", ["rbf", "matern32", "linear"])
@pytest.mark.parametrize("ties", [True, False])
def test_picks_are_those_of_the_cpu(recorded: Asked | None, kernel: str, rows: int | None, ties: bool):
    line = torch.linspace(-1, 1, 36, dtype=torch.float64)
    arms = torch.cartesian_prod(line, line) if ties else torch.rand(1_300, 2, generator=generator(3), dtype=torch.float64)

    def picked(device: str) -> list[list[int]]:
        g = generator(2)
        generators = generator(3) if rows is None else [generator(row) for row in range(rows)]
        policy = tb.bpe(kernel_pair(kernel)[0], horizon=900, noise_std=0.1)
        bandit, found = tb.Bandit(policy, arms.to(device), generator=generators), []
        for limit in (4, 1, 7):
            selection = bandit.ask(limit=limit if rows is None else torch.tensor([limit, 3]))
            beside = bandit.ask(more=3)  # given the picks that are pending
            for one in (selection, beside):
                found.append(one.index.tolist())
                rewards = torch.randn(one.index.shape, generator=g, dtype=torch.float64).to(device)
                # The second selection contains the first one, which counts again.
                bandit.tell(one.index, torch.where(one.mask, rewards, torch.nan))
        return found

    assert picked("cuda") == picked("cpu")


@pytest.mark.exhaustive
def test_the_launches_of_a_batch_are_within_the_target(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graphs, "GRAPHS", True)
    arms, spent = torch.rand(20_000, 4, generator=generator(0), dtype=torch.float64), []
    for horizon in (1_000, 30_000):
        with emulated_device() as asked:
            bandit = tb.Bandit(tb.bpe(rbf(0.3), horizon=horizon, noise_std=0.1), arms.cuda(), generator=generator(1))
            before = Asked(asked.launches, asked.waits)
            picks = bandit.ask().index.shape[-1]
            spent.append((picks, asked.launches - before.launches, asked.waits - before.waits))
    (few, launches, waits), (many, more, more_waits) = spent
    assert (few, many) == (32, 174)
    assert max(launches, more) <= 110  # eight picks are one launch in a long batch
    assert max(waits, more_waits) <= 6


# ---------------------------------------------------------------------- graphs themselves


def test_a_step_is_called_as_often_as_asked(recorded: Asked | None):
    for times in (1, 2, 9, 63, 64, 65, 72, 80):
        sums, place = torch.zeros(3, device=CUDA), torch.zeros(1, dtype=torch.int64, device=CUDA)
        number = torch.tensor(2.0)

        def step() -> None:
            sums.index_add_(0, place % 3, (place + 1) * number)  # noqa: B023
            place.add_(1)  # noqa: B023

        graphs.repeat(step, times, CUDA)
        number.fill_(100.0)  # read when the graph was recorded
        expected = [2.0 * sum(i + 1 for i in range(times) if i % 3 == j) for j in range(3)]
        assert sums.tolist() == expected
        assert int(place) == times


WRONG: dict[str, Callable[[torch.Tensor], object]] = {
    "read a number": lambda x: float(x.sum()),
    "choose by a number": lambda x: x.add_(1) if x.sum() > 0 else x,
    "a size that depends on numbers": lambda x: x.nonzero(),
    "copy to the host": lambda x: x.cpu(),
    "copy from the host": lambda x: x.add_(torch.ones(3).to("cuda")),
    "index by a mask": lambda x: x[x > 0],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_step_that_waits_is_refused(name: str):
    with emulated_device():
        x = torch.ones(3, device=CUDA)
        with pytest.raises(DeviceError, match="capturing"):
            graphs.repeat(lambda: WRONG[name](x), 3, CUDA)
        assert float(x.sum()) >= 3  # the device is usable afterwards


def test_nothing_runs_while_a_graph_is_recorded():
    with emulated_device():
        x, graph = torch.zeros(2, device=CUDA), torch.cuda.CUDAGraph()
        with pytest.raises(DeviceError, match="non-default stream"):
            graph.capture_begin()
        with pytest.raises(DeviceError, match="without a preceding"):
            graph.replay()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            x.add_(1)
            y = x * 3
            graph.capture_end()
        assert x.tolist() == [0.0, 0.0]
        assert bool(y.isnan().all())
        graph.replay()
        graph.replay()
        assert x.tolist() == [2.0, 2.0]
        assert y.tolist() == [6.0, 6.0]
