"""Threads of PyTorch: one in a small step, the caller's number in a large one, and restored afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import gpytorch
import pytest
import torch
from problems import generator, rbf

import torchbandits as tb
from torchbandits.arms import columns, strategies
from torchbandits.packing import Packing
from torchbandits.threads import MANY_NUMBERS, shared, side_by_side, thread_setter, threads

pytestmark = pytest.mark.skipif(thread_setter() is None, reason="this build of PyTorch does not let a thread set its number")


@pytest.fixture(autouse=True)
def three_threads():
    """Use three threads, as on a machine with three cores; the other tests run on one thread."""
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


class Watched(gpytorch.kernels.RBFKernel):
    """A kernel that records the number of threads when it is evaluated, and fails on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.fails = False

    def forward(self, x1, x2, diag=False, **params):
        self.seen.append(torch.get_num_threads())
        if self.fails:
            raise ArithmeticError("on demand")
        return super().forward(x1, x2, diag=diag, **params)

    def __deepcopy__(self, memo):
        return self


def _watched(num_arms: int) -> tuple[tb.Bandit, Watched]:
    kernel = Watched().double()
    arms = torch.rand(num_arms, 1, generator=generator(0), dtype=torch.float64)
    width = tb.widths.Constant(1.0)
    bandit = tb.Bandit(tb.bkb(kernel, noise_std=0.1, width=width), tb.sources.tensor(arms, distinct=True))
    kernel.seen.clear()
    return bandit, kernel


def _step(bandit: tb.Bandit) -> None:
    selection = bandit.ask()
    bandit.tell(selection, selection.points.sum(dim=-1))


def test_a_small_step_takes_one_thread_and_gives_the_others_back():
    bandit, kernel = _watched(100)
    _step(bandit)
    _step(bandit)
    assert kernel.seen
    assert set(kernel.seen) == {1}
    assert torch.get_num_threads() == 3


def test_a_step_over_many_arms_takes_all_threads():
    bandit, kernel = _watched(MANY_NUMBERS)
    _step(bandit)
    _step(bandit)
    assert kernel.seen
    assert set(kernel.seen) == {3}


def test_a_large_sweep_within_a_small_step_takes_all_threads(monkeypatch):
    for module in (columns, strategies):
        monkeypatch.setattr(module, "MANY_PRODUCTS", 1.0)
    seen = []
    products = columns.KernelColumns.products

    def watched(self, *args, **kwargs):
        for part in products(self, *args, **kwargs):
            seen.append(torch.get_num_threads())
            yield part

    monkeypatch.setattr(columns.KernelColumns, "products", watched)
    bandit, kernel = _watched(100)
    _step(bandit)
    assert set(seen) == {3}
    assert set(kernel.seen) == {1}
    assert torch.get_num_threads() == 3


def test_threads_are_given_back_after_an_exception():
    bandit, kernel = _watched(100)
    _step(bandit)
    kernel.fails = True
    with pytest.raises(ArithmeticError):
        bandit.observe(torch.tensor([1, 2]), torch.ones(2), torch.ones(2))
    assert kernel.seen[-1] == 1
    assert torch.get_num_threads() == 3
    with pytest.raises(KeyError), threads(many=False), threads(many=True):
        raise KeyError
    assert torch.get_num_threads() == 3


def test_contexts_nest():
    with threads(many=False):
        assert torch.get_num_threads() == 1
        with threads(many=True):
            assert torch.get_num_threads() == 3
            with threads(many=False):
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


def test_other_threads_keep_theirs():
    found = []

    def note() -> None:
        found.append(torch.get_num_threads())

    with threads(many=False):
        other = threading.Thread(target=note)  # a thread that is started in the meantime
        other.start()
        other.join()
    assert found == [3]


def test_picks_do_not_depend_on_the_number_of_threads():
    picks = []
    for count in (1, 3):
        torch.set_num_threads(count)
        arms = torch.rand(500, 2, generator=generator(0), dtype=torch.float64)
        environment = tb.environments.Table(arms, arms.sin().sum(dim=-1), 0.1)
        history = tb.run(tb.batch_bkb(rbf(), noise_std=0.1, norm_bound=1.0), environment, 60, generator=generator(1))
        picks.append(history.pulls["arm"].tolist())
    assert picks[0] == picks[1]


def test_chunks_side_by_side_come_in_order_each_on_one_thread_and_in_a_buffer_of_its_own():
    buffers: dict[int, list[int]] = {}
    seen = []

    def work(item: int, place: int) -> list[int]:
        seen.append((torch.get_num_threads(), torch.is_grad_enabled()))
        threading.Event().wait(0.001 * (item % 3))
        buffer = buffers.setdefault(place, [0])
        buffer[0] = item
        return buffer

    assert [result[0] for result in side_by_side(work, range(40))] == list(range(40))
    assert set(seen) == {(1, False)}
    assert len(buffers) == 4
    with threads(many=False):
        assert [result[0] for result in side_by_side(work, range(5))] == list(range(5))
    assert list(side_by_side(work, [])) == []


def test_an_error_in_one_of_the_chunks_is_raised_and_ends_the_others():
    begun = []

    def work(item: int, place: int) -> int:
        begun.append(item)
        if item == 5:
            raise ArithmeticError("on demand")
        return item

    found: list[int] = []
    with pytest.raises(ArithmeticError, match="on demand"):
        found.extend(side_by_side(work, range(1000)))
    assert found == [0, 1, 2, 3, 4]
    assert max(begun) <= 9
    for result in side_by_side(work, range(1000)):
        if result == 2:
            break
    assert torch.get_num_threads() == 3


def test_points_that_cannot_be_packed_are_evaluated_by_gpytorch_in_one_thread(monkeypatch):
    """GPyTorch changes settings of the process while it evaluates a kernel."""
    for module in (columns, strategies):
        monkeypatch.setattr(module, "MANY_PRODUCTS", 1.0)
    monkeypatch.setattr(columns, "_CHUNK_BYTES", 1)
    seen, forward = set(), tb.TanimotoKernel.forward

    def watched(self, *args, **kwargs):
        seen.add(threading.get_ident())
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(tb.TanimotoKernel, "forward", watched)
    packing = Packing(100)
    x = (torch.rand(2000, 100, generator=generator(0)) < 0.1).double()
    arms = tb.sources.Fingerprints(packing.pack(x).view(torch.uint8)[:, : packing.num_bytes].contiguous(), 100, distinct=True)
    policy = tb.batch_bkb(tb.TanimotoKernel(), noise_std=0.1, width=tb.widths.Constant(1.0), memory_budget=0)
    bandit = tb.Bandit(policy, arms, generator=generator(1))
    outside = 0.5 * x[:5]
    bandit.observe(outside, torch.ones(5), torch.arange(5.0))
    assert seen == {threading.get_ident()}
    table = bandit.loop.state.table
    torch.testing.assert_close(table.mean(), bandit.posterior(x).mean, rtol=1e-8, atol=1e-10)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("counts", [False, True], ids=["bits", "counts"])
def test_sweeps_of_packed_arms_do_not_depend_on_the_number_of_threads(counts, monkeypatch):
    """Results are bit-identical, because each chunk is computed by a single thread."""
    for module in (columns, strategies):
        monkeypatch.setattr(module, "MANY_PRODUCTS", 1.0)
    monkeypatch.setattr(columns, "_CHUNK_BYTES", 1)
    packing = Packing(100, counts)
    x = (torch.rand(3000, 100, generator=generator(0)) < 0.1).double() * (3 if counts else 1)
    packed = packing.pack(x).view(torch.uint8)[:, : packing.num_bytes].contiguous()
    values = (x.sum(dim=-1) - x.sum(dim=-1).mean()) / x.sum(dim=-1).std()
    tables = []
    for count in (1, 3):
        torch.set_num_threads(count)
        arms = tb.sources.Fingerprints(packed, 100, counts=counts, dtype=torch.float32, distinct=True)
        policy = tb.batch_bkb(tb.TanimotoKernel(), noise_std=0.1, width=tb.widths.Constant(1.0), memory_budget=0)
        bandit = tb.Bandit(policy, arms, generator=generator(1))
        bandit.tell(torch.arange(200), values[:200])
        selection = bandit.ask(limit=20)
        bandit.tell(selection, values[selection.index])
        table = bandit.loop.state.table
        tables.append((bandit.counts, table.mean(), table.leverage))
    for one, three in zip(*tables, strict=True):
        assert torch.equal(one, three)


@pytest.mark.parametrize("wrong", [0, 10, 20])
def test_an_error_in_a_part_is_raised_when_no_part_runs_any_more(wrong: int):
    """Parts write into tensors of the caller."""
    running = set[int]()

    def work(part: slice) -> None:
        running.add(part.start)
        time.sleep(0.02 if part.start == wrong else 0.2)
        running.remove(part.start)
        if part.start == wrong:
            raise ArithmeticError("on demand")

    with pytest.raises(ArithmeticError, match="on demand"):
        shared(work, 30, 10)
    assert not running


def test_threads_are_shared_by_several_callers_and_inside_a_part():
    def counted(count: int) -> int:
        found: list[int] = []
        shared(lambda part: found.extend(range(part.start, part.stop)), count, 4)
        assert sorted(found) == list(range(count))
        return len(found)

    def within(part: slice) -> None:
        assert all(counted(count) == count for count in range(40))

    callers = [threading.Thread(target=shared, args=(within, 12, 4), daemon=True) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not any(caller.is_alive() for caller in callers)


@pytest.mark.exhaustive
def test_a_thread_that_outlives_the_main_thread_does_all_parts_itself():
    """Python starts no further threads then: there would be an error."""
    program = (
        "import threading, torch\n"
        "from torchbandits.threads import shared, side_by_side\n"
        "torch.set_num_threads(4)\n"
        "def late():\n"
        "    threading.main_thread().join()\n"
        "    done = []\n"
        "    shared(done.append, 40, 4)\n"
        "    print(sorted(part.start for part in done), list(side_by_side(lambda item, place: item, range(3))))\n"
        "shared(lambda part: None, 40, 4)\n"
        "threading.Thread(target=late).start()\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, env=environment, check=False
    )
    assert (done.stdout, done.stderr) == ("[0, 10, 20, 30] [0, 1, 2]\n", "")
