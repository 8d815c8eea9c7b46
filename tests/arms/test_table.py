"""The table equals the posterior with every strategy of its sweeps."""

from __future__ import annotations

import gpytorch
import pytest
import torch

import torchbandits as tb
from torchbandits.arms import columns
from torchbandits.linalg import triangular as zeros


@pytest.mark.sweep(3)
@pytest.mark.parametrize("triangular", [2, 10_000], ids=["blocks", "whole"])
@pytest.mark.parametrize("memory_budget", [0, 1 << 30], ids=["recomputed", "kept"])
@pytest.mark.parametrize("oversampling", [1.0, 20.0], ids=["few", "most"])
@pytest.mark.parametrize("name", ["bkb", "batch_bkb", "gp_ucb"])
def test_sweeps_equal_the_posterior(
    monkeypatch: pytest.MonkeyPatch, name: str, oversampling: float, memory_budget: int, triangular: int
) -> None:
    monkeypatch.setattr(columns, "LEAF", triangular)
    monkeypatch.setattr(zeros, "LEAF", triangular)
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 0.4
    generator = torch.Generator().manual_seed(0)
    arms = torch.rand(300, 2, generator=generator, dtype=torch.float64)
    options = {"noise_std": 0.1, "memory_budget": memory_budget}
    if name != "gp_ucb":
        options["oversampling"] = oversampling
    bandit = tb.Bandit(getattr(tb, name)(kernel, **options), arms, generator=generator)
    index = torch.randperm(300, generator=generator)[:80]
    counts = torch.randint(1, 6, (80,), generator=generator).double()
    for part in (slice(0, 40), slice(40, 80)):
        bandit.observe(index[part], counts[part], counts[part] * torch.sin(7 * arms[index[part], 0]))
    table, marginals = bandit.loop.state.table, bandit.posterior(arms)
    assert int(bandit.posterior.dictionary_size) >= 8
    torch.testing.assert_close(0.01 * table.leverage, marginals.variance, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(table.mean(), marginals.mean, rtol=1e-8, atol=1e-9)
