"""The sweep in one Triton kernel: where it is used, and (`-m cuda`, on a card with Triton) that it agrees with other sweeps.

Triton's interpreter runs the same kernel on the CPU: `bash scripts/check_fused.sh`.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from emulated_device import emulated_device
from problems import generator, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits import kernels
from torchbandits.arms import columns, fused

ARMS = torch.rand(300, 3, generator=generator(1), dtype=torch.float64)


def course(device: str, **options: Any) -> tuple[list[list[int]], Tensor]:
    """Picks, and leverages at the end, with a budget that keeps no column."""
    policy = tb.batch_bkb(rbf(), noise_std=0.1, memory_budget=1, **options)
    bandit, picks = tb.Bandit(policy, ARMS.to(device), generator=generator(0)), []
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


def test_a_machine_on_which_triton_cannot_compile_is_told_once(monkeypatch):
    class Kernel:
        def __getitem__(self, grid):
            raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(fused, "_nothing", Kernel())
    fused.compiles.cache_clear()
    with pytest.warns(tb.errors.DiagnosticWarning, match="Failed to find C compiler.*TORCHBANDITS_FUSED=0") as said:
        assert not fused.compiles(torch.device("cpu"))
    assert not fused.compiles(torch.device("cpu"))
    assert len(said) == 1
    fused.compiles.cache_clear()


@pytest.mark.parametrize(
    ("asked", "compiles", "near"), [(False, True, True), (True, True, True), (True, True, False), (True, False, True)]
)
def test_it_is_used_where_columns_are_not_kept_on_a_device_and_elsewhere_the_general_form(monkeypatch, asked, compiles, near):
    calls: list[int] = []

    def stand_in(arms, points, form, factors, prior, leverage, channels, *, by_product) -> None:
        calls.append(len(arms))
        assert by_product == near
        K = form.between(points, arms)
        leverage.copy_(prior - (factors.N.mT @ K).square().sum(dim=-2))
        channels.copy_(factors.a.mT @ K)

    module: Any = ModuleType("torchbandits.arms.fused")
    module.fused_sweep, module.compiles = stand_in, lambda device: compiles
    monkeypatch.setitem(sys.modules, "torchbandits.arms.fused", module)
    expected = course("cpu")
    assert not calls
    with emulated_device(), pytest.MonkeyPatch.context() as switch:
        switch.setattr(columns, "FUSED", asked)
        if not near:
            switch.setattr(kernels, "_TRUSTED", dict.fromkeys(kernels._TRUSTED, 1e-9))
        picks, leverage = course("cuda")
        assert bool(calls) == (asked and compiles)
        assert set(calls) <= {300}
        calls.clear()
        kept = tb.Bandit(tb.batch_bkb(rbf(), noise_std=0.1), ARMS.cuda(), generator=generator(0))
        kept.tell(kept.ask(), torch.ones(1, dtype=torch.float64).cuda())
        assert not calls
    assert picks == expected[0]
    torch.testing.assert_close(leverage, expected[1], rtol=1e-8, atol=1e-12)


@pytest.mark.cuda
@pytest.mark.parametrize("place", range(80))
def test_the_kernel_computes_on_a_card_what_dense_products_do(place: int):
    pytest.importorskip("triton", reason="PyTorch brings Triton on Linux with CUDA; here it is not")
    import fused_program  # noqa: PLC0415 - imports Triton

    fused_program.check(*fused_program.CASES[place], device="cuda")


@pytest.mark.cuda
def test_a_policy_picks_with_the_kernel_what_it_picks_without(monkeypatch):
    pytest.importorskip("triton", reason="PyTorch brings Triton on Linux with CUDA; here it is not")
    monkeypatch.setattr(columns, "FUSED", False)
    picks, leverage = course("cuda")
    monkeypatch.setattr(columns, "FUSED", True)
    again, there = course("cuda")
    assert again == picks
    torch.testing.assert_close(there, leverage, rtol=1e-8, atol=1e-12)
