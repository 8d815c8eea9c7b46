"""Tests that need a GPU (`-m cuda`): ranks by NCCL, and memory that runs out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from problems import generator, rbf
from torch import Tensor

import torchbandits as tb


def picks(arms: Tensor | tb.sources.ArmSource, device: str, **options: int) -> list[list[int]]:
    """The picks of some batches, whose rewards are a function of their points."""
    bandit = tb.Bandit(tb.batch_bkb(rbf(), noise_std=0.1, **options), arms, generator=generator(0))
    found = []
    for _ in range(4):
        selection = bandit.ask(limit=4)
        found.append(selection.index.tolist())
        bandit.tell(selection, selection.points.double().sin().sum(dim=-1).to(device))
    return found


@pytest.mark.parametrize(("backend", "device"), [("gloo", "cpu"), pytest.param("nccl", "cuda", marks=pytest.mark.cuda)])
def test_one_rank_picks_what_a_bandit_without_ranks_picks(backend: str, device: str, tmp_path: Path):
    arms = torch.rand(500, 2, generator=generator(1), dtype=torch.float64).to(device)
    expected = picks(arms, device)
    dist.init_process_group(backend, init_method=f"file://{tmp_path / 'ranks'}", rank=0, world_size=1)
    try:
        assert picks(tb.Shard(arms), device) == expected
    finally:
        dist.destroy_process_group()


@pytest.mark.cuda
def test_picks_are_the_same_where_the_memory_of_the_card_runs_out():
    arms = torch.rand(200_000, 4, generator=generator(1), dtype=torch.float64)
    expected = picks(arms, "cpu")
    there = arms.cuda()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    # Less memory than one block of a sweep needs.
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (192 << 20)) / total)
    try:
        assert picks(there, "cuda", memory_budget=1 << 40) == expected
        assert picks(there, "cuda", memory_budget=1) == expected
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
