"""The sweep in one Triton kernel: where it is used, and (`-m cuda`, on a card with Triton) that it agrees with other sweeps.

Triton's interpreter runs the same kernel on the CPU: `bash scripts/check_fused.sh`.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from emulated_device import emulated_device
from problems import generator, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits import kernels
from torchbandits.arms import columns, fused
from torchbandits.kernels import Stationary
from torchbandits.posteriors import SweepFactors

ARMS = torch.rand(300, 3, generator=generator(1), dtype=torch.float64)


def course(device: str, rows: int | None = None) -> tuple[list[list[int]], Tensor]:
    """Picks, and leverages at the end, with a budget that keeps no column."""
    policy = tb.batch_bkb(rbf(), noise_std=0.1, memory_budget=1)
    draws = generator(0) if rows is None else [generator(row) for row in range(rows)]
    bandit, picks = tb.Bandit(policy, ARMS.to(device), generator=draws), []
    for _ in range(4):
        selection = bandit.ask(limit=3)
        picks.append(selection.index.tolist())
        bandit.tell(selection, selection.points.sin().sum(dim=-1))
    return picks, bandit.loop.state.arm_leverage().cpu()


@pytest.mark.parametrize(
    ("value", "found", "expected"), [("1", True, True), (None, True, True), ("0", True, False), ("1", False, False)]
)
def test_it_is_on_where_triton_is_installed_unless_it_is_turned_off(value, found, expected, monkeypatch):
    monkeypatch.delenv("TORCHBANDITS_FUSED", raising=False)
    if value is not None:
        monkeypatch.setenv("TORCHBANDITS_FUSED", value)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if found else None)
    assert runpy.run_path(columns.__file__)["FUSED"] is expected


def test_a_kernel_that_triton_cannot_run_is_told_once_and_not_tried_again(monkeypatch):
    tried: list[int] = []

    class Kernel:
        def __getitem__(self, grid):
            tried.append(grid[0])
            raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(fused, "_sweep", Kernel())
    monkeypatch.setattr(fused, "_refused", set())
    m, form = 5, Stationary.of(rbf())
    N, rows = torch.eye(m, dtype=torch.float64), torch.arange(m)
    factors = SweepFactors(rows, rows >= 0, N, N[:, :1], False)
    out = torch.zeros(300, dtype=torch.float64)
    given = (ARMS, ARMS[:m], form, factors, torch.ones(1, dtype=torch.float64).expand(300), out, out.clone().unsqueeze(0))
    with pytest.warns(tb.errors.DiagnosticWarning, match="Failed to find C compiler.*TORCHBANDITS_FUSED=0") as said:
        assert not fused.fused_sweep(*given, by_product=True)
    assert not fused.fused_sweep(*given, by_product=True)
    assert len(said) == 1
    assert tried == [3]

    class Full:
        def __getitem__(self, grid):
            raise torch.OutOfMemoryError

    monkeypatch.setattr(fused, "_sweep", Full())
    assert not fused.fused_sweep(*given, by_product=False)  # blocks are halved instead
    assert len(fused._refused) == 1


def test_a_card_with_little_shared_memory_has_small_blocks(monkeypatch):
    asked = {"cuda:0": 99 << 10, "cuda:1": 227 << 10}
    known = lambda device: SimpleNamespace(shared_memory_per_block_optin=asked[str(device)])  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_properties", known)
    fused._shared.cache_clear()
    assert [fused._shared(torch.device(name)) < fused._SHARED for name in asked] == [True, False]
    fused._shared.cache_clear()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize(
    ("asked", "compiles", "near"), [(False, True, True), (True, True, True), (True, True, False), (True, False, True)]
)
def test_it_is_used_where_columns_are_not_kept_on_a_device_and_elsewhere_the_general_form(
    monkeypatch, asked, compiles, near, rows
):
    calls: list[int] = []

    def stand_in(arms, points, form, factors, prior, leverage, channels, *, by_product) -> bool:
        if not compiles:
            return False
        calls.append(len(arms))
        assert by_product == near
        K = form.between(points, arms)
        leverage.copy_(prior - (factors.N.mT @ K).square().sum(dim=-2))
        channels.copy_(factors.a.mT @ K)
        return True

    module: Any = ModuleType("torchbandits.arms.fused")
    module.fused_sweep = stand_in
    monkeypatch.setitem(sys.modules, "torchbandits.arms.fused", module)
    expected = course("cpu", rows)
    assert not calls
    with emulated_device(), pytest.MonkeyPatch.context() as switch:
        switch.setattr(columns, "FUSED", asked)
        if not near:
            switch.setattr(kernels, "_TRUSTED", dict.fromkeys(kernels._TRUSTED, 1e-9))
        picks, leverage = course("cuda", rows)
        assert bool(calls) == (asked and compiles)
        assert set(calls) <= {300}
        calls.clear()
        kept = tb.Bandit(tb.batch_bkb(rbf(), noise_std=0.1), ARMS.cuda(), generator=generator(0))
        kept.tell(kept.ask(), torch.ones(1, dtype=torch.float64).cuda())
        assert not calls
        # Features first in memory: the kernel reads arm after arm, so that these would be copied at every sweep.
        turned = tb.Bandit(
            tb.batch_bkb(rbf(), noise_std=0.1, memory_budget=1), ARMS.T.contiguous().T.cuda(), generator=generator(0)
        )
        turned.tell(turned.ask(), torch.ones(1, dtype=torch.float64).cuda())
        assert not calls
    assert picks == expected[0]
    torch.testing.assert_close(leverage, expected[1], rtol=1e-8, atol=1e-12)


@pytest.mark.cuda
@pytest.mark.parametrize("place", range(92))
def test_the_kernel_computes_on_a_card_what_dense_products_do(place: int):
    pytest.importorskip("triton", reason="PyTorch brings Triton on Linux with CUDA; here it is not")
    import fused_program  # noqa: PLC0415 - imports Triton

    fused_program.check(*fused_program.CASES[place], device="cuda")


@pytest.mark.cuda
def test_features_far_from_zero_lose_no_accuracy():
    pytest.importorskip("triton", reason="PyTorch brings Triton on Linux with CUDA; here it is not")
    import fused_program  # noqa: PLC0415 - imports Triton

    fused_program.check(*fused_program.FAR, device="cuda", offset=fused_program.OFFSET)


@pytest.mark.cuda
@pytest.mark.parametrize("rows", [None, 3])
def test_a_policy_picks_with_the_kernel_what_it_picks_without(monkeypatch, rows):
    pytest.importorskip("triton", reason="PyTorch brings Triton on Linux with CUDA; here it is not")
    monkeypatch.setattr(columns, "FUSED", False)
    picks, leverage = course("cuda", rows)
    monkeypatch.setattr(columns, "FUSED", True)
    again, there = course("cuda", rows)
    assert again == picks
    torch.testing.assert_close(there, leverage, rtol=1e-8, atol=1e-12)
