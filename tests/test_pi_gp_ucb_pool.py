"""The pool of cells under random histories: every number in it equals a dense fit, and every place is used once."""

from __future__ import annotations

import copy
from typing import Any

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from problems import generator

import torchbandits as tb
from torchbandits.posteriors.cells import (
    ARM,
    CELL,
    DEVIATION,
    LIMIT,
    LOG_DET,
    MEAN,
    OFFSET,
    PULLS,
    SIZE,
    START,
    TOTAL,
    WEIGHT,
)


def check_cell(posterior: Any, row: int, cell: int, kernel: oracles.KernelFunction) -> tuple[list[int], range, range]:
    """Check that the numbers of a cell are those of a dense fit; return its arms, entries and block places."""
    pool, lam = posterior.cells, posterior.regularization
    start, size, offset = (int(pool.layout[k, row, cell]) for k in (START, SIZE, OFFSET))
    own, places = slice(start, start + size), range(offset, offset + size**2)
    arm = pool.members[ARM, row, own]
    assert bool((arm >= 0).all())
    assert bool((pool.members[CELL, row, own] == cell).all())
    mean, deviation, n, s = (pool.numbers[k, row, own].numpy() for k in (MEAN, DEVIATION, WEIGHT, TOTAL))
    x = posterior.domain.points(torch.full_like(arm, row), arm).numpy()
    K, u = kernel(x, x), np.nonzero(n > 0)[0]
    fit = oracles.exact_posterior_from_sums(K[np.ix_(u, u)], K[u], np.diag(K), n[u], s[u], lam, K)
    covariance = fit.covariance if u.size else K
    block = pool.blocks[places.start : places.stop].view(size, size).numpy()
    assert np.abs(lam * block - covariance).max() < 1e-8
    assert np.abs(deviation**2 - np.diag(covariance)).max() < 1e-8
    assert np.abs(mean - fit.mean).max() < 1e-7
    pulls, log_det, limit = (float(pool.facts[k, row, cell]) for k in (PULLS, LOG_DET, LIMIT))
    assert abs(log_det - oracles.log_det(K[np.ix_(u, u)], n[u], lam)) < 1e-7
    assert abs(pulls - n.sum()) <= 1e-9 * max(1, n.sum())
    assert not limit < pulls + 1
    return arm.tolist(), range(own.start, own.stop), places


def check_pool(bandit: tb.Bandit, kernel: oracles.KernelFunction) -> None:
    pool, blocks = bandit.posterior.cells, [range(1)]
    for row in range(pool.layout.shape[1]):
        entries, held = [range(1)], {}
        for cell in range(pool.layout.shape[2]):
            if not int(pool.layout[SIZE, row, cell]):
                assert not pool.layout[:, row, cell].any()
                assert not pool.facts[:, row, cell].any()
                continue
            arms, own, places = check_cell(bandit.posterior, row, cell, kernel)
            entries.append(own)
            blocks.append(places)
            for arm, entry in zip(arms, own, strict=True):
                held.setdefault(arm, []).append(entry)
        in_use = [e for own in entries for e in own]
        assert len(in_use) == len(set(in_use))
        assert max(in_use) < int(pool.used[0, row])
        dead = torch.ones(pool.members.shape[-1], dtype=torch.bool)
        dead[[e for own in entries[1:] for e in own]] = False
        assert bool((pool.members[ARM, row, dead] == -1).all())
        assert bool((pool.numbers[MEAN, row, dead] == -torch.inf).all())
        assert not pool.numbers[1:, row, dead].any()
        for arm in range(pool.places.shape[1]):
            assert sorted(e for e in pool.places[row, arm].tolist() if e >= 0) == sorted(held.get(arm, []))
    in_use = [e for own in blocks for e in own]
    assert len(in_use) == len(set(in_use))
    assert max(in_use) < int(pool.filled)
    assert float(pool.blocks[0]) == 0


def random_bandit(rng: np.random.Generator) -> tuple[Any, int, tuple[int, ...], oracles.KernelFunction]:
    """A function that makes bandits, their number of arms and batch shape, and the kernel."""
    d, nu, horizon = int(rng.integers(1, 5)), float(rng.choice([0.5, 1.5, 2.5])), int(rng.choice([1, 2, 10, 40, 100]))
    a, rows, lam = int(rng.integers(1, 40)), int(rng.integers(1, 4)), float(rng.choice([1.0, 0.1, 0.01]))
    arms, kind = rng.uniform(size=(a, d)), rng.integers(3)
    if kind:  # on edges
        arms = np.round(8 * arms) / 8 if kind == 1 else np.round(6 * arms) / 6 * rng.uniform(0.1, 50) - 10 * rng.normal()
    lengthscale = 0.3 * max(float(np.ptp(arms, axis=0).max()), 1e-3)
    points = torch.tensor(arms)
    if rows > 1 and rng.uniform() < 0.5:
        points = torch.stack([points[torch.tensor(rng.permutation(a))] for _ in range(rows)])
    kernel = gpytorch.kernels.MaternKernel(nu).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    policy = tb.pi_gp_ucb(kernel, nu=nu, horizon=horizon, noise_std=0.3, delta=0.1, regularization=lam)

    def make() -> tb.Bandit:
        return tb.Bandit(policy, points, generator=[generator(r) for r in range(rows)] if rows > 1 else generator(0))

    return make, a, (rows,) if rows > 1 else (), oracles.matern(nu, lengthscale)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(16))
def test_every_number_of_the_pool_is_that_of_a_dense_fit(seed):
    rng = np.random.default_rng(seed)
    make, a, shape, kernel = random_bandit(rng)
    bandit = make()
    for _ in range(20):
        act = rng.integers(6)
        if act <= 2:
            selection = bandit.ask()
            bandit.tell(selection, torch.tensor(rng.normal(size=selection.index.shape)))
        elif act <= 4:
            index = torch.tensor(rng.integers(a, size=(*shape, int(rng.integers(2, 8)))))
            n = torch.tensor(rng.uniform(0.5, 10 ** rng.uniform(0, 3), size=index.shape))
            bandit.observe(index, n, n * torch.tensor(rng.normal(size=index.shape)))
            before = copy.deepcopy(bandit.state_dict()["state"])
            bandit.ask(more=3)  # hallucinated, then a failure after splits, then forgotten: none leaves a trace
            index[..., 1] = index[..., 0]
            with pytest.raises(tb.errors.NumericalError):
                bandit.observe(index, 300 * torch.ones_like(n), torch.full_like(n, 1.7e308))
            bandit.forget(bandit.ask())
            after = bandit.state_dict()["state"]
            kept = [k for k, v in before.items() if isinstance(v, torch.Tensor) and "pending" not in k]
            assert all(torch.equal(before[k], after[k]) for k in kept)
        else:
            bandit = make().load_state_dict(bandit.state_dict())
    check_pool(bandit, kernel)
