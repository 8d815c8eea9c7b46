"""Memory for tables of arms: the default budget, and the behaviour on a device that is out of memory."""

from __future__ import annotations

import pytest
import torch
from emulated_device import emulated_device
from problems import generator, rbf

import torchbandits as tb
from torchbandits.arms import columns
from torchbandits.arms.kept_columns import KeptColumns
from torchbandits.budget import budget_on, halved
from torchbandits.kernels import ScaledArms, StationaryBlocks

ARMS = torch.rand(2_000, 3, generator=generator(0), dtype=torch.float64)


def test_a_budget_is_two_gigabytes_or_half_of_what_a_gpu_has_free(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30 << 30, 80 << 30))
    assert budget_on(torch.device("cpu"), None) == 2 << 30
    assert budget_on(torch.device("cuda", 0), None) == 15 << 30
    assert budget_on(torch.device("cuda", 0), 7) == 7


def test_what_is_halved_ends_at_the_least():
    error = torch.OutOfMemoryError("none left")
    assert halved(1_000, 256, error) == 500
    assert halved(300, 256, error) == 256
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        halved(256, 256, error)


def played(**options: int) -> tuple[list[int], torch.Tensor]:
    bandit = tb.Bandit(tb.bkb(rbf(), noise_std=0.1, **options), ARMS, generator=generator(1))
    picks = []
    for _ in range(12):
        selection = bandit.ask()
        bandit.tell(selection, selection.points.sin().sum(dim=-1))
        picks += selection.index.tolist()
    return picks, bandit.posterior(ARMS[:50]).variance


def test_columns_that_no_longer_fit_are_recomputed(monkeypatch: pytest.MonkeyPatch):
    expected, grow, failures = played(), KeptColumns._grow_, []

    def short(self: KeptColumns, size: int) -> None:
        if size > 4 and self.most > 4:
            failures.append(size)
            raise torch.OutOfMemoryError("none left")
        grow(self, size)

    monkeypatch.setattr(KeptColumns, "_grow_", short)
    found = played()
    assert failures
    assert found[0] == expected[0]
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-12)


def test_a_sweep_goes_on_with_fewer_arms_at_once(monkeypatch: pytest.MonkeyPatch):
    expected, call, sizes = played(memory_budget=0), StationaryBlocks.__call__, []

    def short(self: StationaryBlocks, arms: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        sizes.append(arms.shape[-2])
        if arms.shape[-2] > most:
            raise torch.OutOfMemoryError("none left")
        return call(self, arms, out)

    most = 500
    monkeypatch.setattr(StationaryBlocks, "__call__", short)
    found = played(memory_budget=0)
    assert max(sizes) == 2_000
    assert found[0] == expected[0]
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-12)
    most = 100
    bandit = tb.Bandit(tb.bkb(rbf(), noise_std=0.1, memory_budget=0), ARMS, generator=generator(1))
    with pytest.raises(torch.OutOfMemoryError):
        bandit.tell(bandit.ask(), torch.ones(1, dtype=torch.float64))
    assert int(bandit.pulls) == 0, "nothing is learned by a tell that fails"


def test_a_sweep_on_a_device_goes_on_without_a_copy_of_the_arms(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(columns, "FUSED", False)
    monkeypatch.setattr(columns, "_DEVICE_BYTES", 1 << 13)

    def short(*_: object) -> ScaledArms:
        failures.append(1)
        raise torch.OutOfMemoryError("none left")

    def swept() -> torch.Tensor:
        with emulated_device():
            bandit = tb.Bandit(tb.bkb(rbf(1.0), noise_std=0.1, memory_budget=1), ARMS.cuda(), generator=generator(1))
            told = torch.arange(30)
            bandit.observe(told.cuda(), torch.ones(30).double().cuda(), ARMS[:30].sum(dim=-1).cuda())
            return bandit.loop.state.table.sweep_().leverage.cpu()

    expected, failures = swept(), []
    monkeypatch.setattr(ScaledArms, "of", short)
    torch.testing.assert_close(swept(), expected, rtol=1e-9, atol=1e-12)
    assert failures
