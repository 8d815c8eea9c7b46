"""The pool of the best arms in which a batch searches for its next pick: the same picks as without a pool."""

from __future__ import annotations

from typing import Any

import gpytorch
import pytest
import torch
from problems import generator
from torch import Tensor

import torchbandits as tb
from torchbandits.arms import lookahead


def kernel(lengthscale: float) -> gpytorch.kernels.Kernel:
    own = gpytorch.kernels.MaternKernel(2.5).double()
    own.lengthscale = lengthscale
    return own


def picks(policy: tb.Policy, arms: Tensor, rows: int, **ask: Any) -> list[Tensor]:
    """Picks of four batches, with one arm that is not on offer."""
    bandit = tb.Bandit(policy, arms, generator=[generator(i) for i in range(rows)] if rows else generator(0))
    found = []
    available = torch.ones(len(arms), dtype=torch.bool)
    available[7] = False
    for _ in range(4):
        selection = bandit.ask(available=available, **ask)
        found.append(selection.index)
        bandit.tell(selection, torch.where(selection.mask, torch.sin(5 * selection.points).sum(dim=-1), 0.0))
    return found


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("share", [400, 20, 3])
@pytest.mark.parametrize("lengthscale", [0.02, 0.3])
def test_a_pool_changes_no_pick(rows: int, share: int, lengthscale: float, monkeypatch: pytest.MonkeyPatch):
    """The pool has 5, 100 or 666 of 2,000 arms, so that it contains the best arm always, sometimes or hardly ever."""
    arms = torch.rand(2000, 2, generator=generator(3), dtype=torch.float64)
    arms[100:110] = arms[:10]
    width = tb.widths.Constant(2.0)
    policies = (
        (tb.gp_bucb(kernel(lengthscale), noise_std=0.1, norm_bound=1.0), {"more": 12}),
        (tb.batch_bkb(kernel(lengthscale), noise_std=0.1, norm_bound=1.0, width=width), {"limit": 40}),
        (tb.gp_ucb(kernel(lengthscale), noise_std=0.1, width=width), {"more": 12}),
    )
    monkeypatch.setattr(lookahead, "_LEADERS", 4)
    plain = [picks(policy, arms, rows, **ask) for policy, ask in policies]
    used = []
    inside = lookahead.Lookahead._current_in_pool

    def counted(self: lookahead.Lookahead, *arguments: Any) -> Any:
        found = inside(self, *arguments)
        used.append(found[0] is not None)
        return found

    monkeypatch.setattr(lookahead, "_MANY", 1000)
    monkeypatch.setattr(lookahead, "_POOLED", share)
    monkeypatch.setattr(lookahead.Lookahead, "_current_in_pool", counted)
    for (policy, ask), before in zip(policies, plain, strict=True):
        for one, other in zip(picks(policy, arms, rows, **ask), before, strict=True):
            assert torch.equal(one, other)
    assert any(used) or share > 3
    assert not all(used) or share < 400
