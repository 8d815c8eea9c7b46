"""Threads of PyTorch: one in a small step, the caller's in a large one, and afterwards what they were."""

from __future__ import annotations

import threading

import gpytorch
import pytest
import torch
from problems import generator, rbf

import torchbandits as tb
from torchbandits.arms import columns, strategies
from torchbandits.threads import MANY_NUMBERS, thread_setter, threads

pytestmark = pytest.mark.skipif(thread_setter() is None, reason="this build of PyTorch does not let a thread set its number")


@pytest.fixture(autouse=True)
def three_threads():
    """As on a machine of three cores; the other tests run on one."""
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


class Watched(gpytorch.kernels.RBFKernel):
    """A kernel that notes the number of threads when it is evaluated, and fails on demand."""

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
        other = threading.Thread(target=note)  # one that is born meanwhile
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
