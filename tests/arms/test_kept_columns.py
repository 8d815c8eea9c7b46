"""Kernel columns kept within a budget: they are read back unchanged after any evictions."""

from __future__ import annotations

import itertools

import pytest
import torch
from problems import BOUNDED, Problem, generator, kernel_pair

import torchbandits as tb
from torchbandits.arms.kept_columns import KeptColumns


@pytest.mark.sweep(6)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_columns_come_back_whatever_was_evicted(batch: tuple[int, ...], seed: int):
    g, A, u, most = generator(seed), 11, 40, 9
    truth = torch.randn(*batch, u, A, generator=g, dtype=torch.float64)
    rows_of = torch.Size(batch).numel()
    kept = KeptColumns(torch.Size(batch), A, torch.float64, torch.device("cpu"), most * rows_of * A * 8)
    assert kept.most == most
    for _ in range(30):
        chosen = [torch.randperm(u, generator=g)[: int(torch.randint(1, most + 1, (), generator=g))] for _ in range(rows_of)]
        padded = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)  # padded with row 0, like dictionaries
        rows = padded.reshape(*batch, -1)[..., : most - 1]
        kept.know([u] * rows_of)
        missing, slots = kept.missing(rows)
        assert bool(((kept.slots(rows) < 0).any(dim=-1) == (missing >= 0).any(dim=-1)).all())
        fresh = truth.gather(-2, missing.clamp_min(0).unsqueeze(-1).expand(*missing.shape, A))
        kept.put(missing, slots, fresh)
        held = kept.slots(rows)
        assert bool((held >= 0).all())
        assert kept.block.shape[-2] <= most
        expected = truth.gather(-2, rows.unsqueeze(-1).expand(*rows.shape, A))
        assert torch.equal(kept.at(held, slice(2, 9)), expected[..., 2:9])
        index = torch.randint(A, (*batch, 5), generator=g)
        assert torch.equal(kept.between(held, index), expected.gather(-1, index.unsqueeze(-2).expand(*rows.shape, 5)))


def test_growing_by_copies_ends_before_two_large_blocks_exist_at_once():
    most, sizes = 900, [0]
    kept = KeptColumns(torch.Size([]), 3, torch.float64, torch.device("cpu"), most * 3 * 8)
    for row in range(most):
        kept.know([row + 1])
        missing, slots = kept.missing(torch.tensor([row]))
        kept.put(missing, slots, torch.full((1, 3), float(row), dtype=torch.float64))
        if kept.block.shape[-2] != sizes[-1]:
            sizes.append(kept.block.shape[-2])
    assert sizes[-1] == most
    assert all(new <= max(1.5 * old, old + 33) for old, new in itertools.pairwise(sizes[:-1])), "at first by a half"
    assert all(old <= most / 2 for old in sizes[:-1]), "a copy and its original never take more than the budget"
    assert torch.equal(kept.at(kept.slots(torch.arange(most)), slice(0, 1))[:, 0], torch.arange(most, dtype=torch.float64))


def test_a_row_that_did_not_exist_is_not_remembered():
    kept = KeptColumns(torch.Size([2]), 4, torch.float64, torch.device("cpu"), 1 << 10)
    rows = torch.zeros(2, 1, dtype=torch.int64)
    kept.know([1, 0])
    missing, slots = kept.missing(rows)
    kept.put(missing, slots, torch.ones(2, 1, 4, dtype=torch.float64))
    assert bool((kept.slots(rows) >= 0).all())
    kept.know([1, 1])
    assert (kept.slots(rows) >= 0).flatten().tolist() == [True, False]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", ["matern32", "rbf"])
def test_a_budget_of_a_few_columns_changes_no_pick(kernel: str):
    """Budgets below the number of columns used, one above the dictionary's size and one below it."""
    problem = Problem(seed=6, a=150)
    picks = []
    for budget in (2 << 30, 18 * 150 * 8, 12 * 150 * 8, 0):
        policy = tb.batch_bkb(kernel_pair(kernel)[0], memory_budget=budget, max_batch_size=3, **BOUNDED)
        bandit, mine = tb.Bandit(policy, problem.tensor, generator=generator(1)), []
        for step in range(40):
            selection = bandit.ask()
            mine += selection.index.tolist()
            bandit.tell(selection, problem.rewards(3 * step, selection.index))
        picks.append(mine)
    assert picks[1] == picks[0]
    assert picks[2] == picks[0]
    assert picks[3] == picks[0]
    assert len(set(picks[0])) > 18
