"""A dictionary that is singular in float64, with noise far below the unexplained variance: the mean is correct, or an error is
raised."""

from __future__ import annotations

from functools import partial

import gpytorch
import mpmath
import numpy as np
import pytest
import torch
from problems import OFF_SCALE, generator, rbf
from tolerances import VARIANCE_NEAR_DUPLICATES, Tolerance, assert_close

import torchbandits as tb
from torchbandits.errors import NumericalError

LENGTHSCALE, NEARLY_SINGULAR = 4.0, VARIANCE_NEAR_DUPLICATES[torch.float64].relative


def dense_mean(x: np.ndarray, S: list[int], u: list[int], n: list[float], s: list[float], noise_std: float) -> np.ndarray:
    """Mean of DTC on the dictionary S at every arm, in 200 digits."""
    with mpmath.workdps(200):

        def kernel(a: list[int], b: list[int]) -> mpmath.matrix:
            scale = 2 * mpmath.mpf(LENGTHSCALE) ** 2
            return mpmath.matrix(
                [
                    [mpmath.exp(-sum((mpmath.mpf(p) - q) ** 2 for p, q in zip(x[i], x[j], strict=True)) / scale) for j in b]
                    for i in a
                ]
            )

        K_su = kernel(S, u)
        V = K_su * mpmath.diag([mpmath.mpf(c) for c in n]) * K_su.T + mpmath.mpf(noise_std**2) * kernel(S, S)
        a = mpmath.lu_solve(V, K_su * mpmath.matrix([mpmath.mpf(v) for v in s]))
        return np.array([float(v) for v in kernel(S, list(range(len(x)))).T * a])


@pytest.mark.sweep(1)
@OFF_SCALE
@pytest.mark.parametrize(
    ("seed", "d", "oversampling", "noise_std", "refused"),
    [
        (0, 2, 1e15, 1e-4, False),
        (9, 2, 1e15, 1e-4, False),
        # In a borderline case the rounding of the processor's matrix product decides.
        (14, 1, 2.0, 1e-4, None),
        (10, 2, 2.0, 2e-4, None),
        (9, 2, 2.0, 1e-4, True),
        (8, 2, 2.0, 1e-4, True),
        (12, 2, 2.0, 3e-5, True),
    ],
)
def test_the_mean_is_that_of_200_digits_or_refused(seed, d, oversampling, noise_std, refused):
    """Before the error was raised, these means were wrong by 3e-5 to 9e-5 of the rewards."""
    x = np.random.default_rng(seed).uniform(size=(60, d))
    f, rng = np.sin(3 * x.sum(axis=1)), np.random.default_rng(5)
    policy = tb.batch_bkb(rbf(LENGTHSCALE), noise_std=noise_std, oversampling=oversampling, width=tb.widths.Constant(2.0))
    bandit, index = tb.Bandit(policy, torch.as_tensor(x), generator=generator(0)), rng.integers(0, 40, size=100)
    error = None
    for part in np.split(index, 10):
        before = bandit.counts
        try:
            bandit.tell(torch.as_tensor(part), torch.as_tensor(f[part] + noise_std * rng.normal(size=10)))
        except NumericalError as raised:
            error = raised
            assert torch.equal(bandit.counts, before), "a refused call changes nothing"
            break
    assert refused is None or (error is not None) == refused
    assert error is None or "noise_std" in str(error)
    statistics, u = bandit.loop.state.statistics, bandit.loop.state.rows.arm_of_row.tolist()
    S = [i for i in bandit.dictionary.tolist() if i >= 0]
    mean = dense_mean(x, S, u, statistics.weights.tolist(), statistics.sums.tolist(), noise_std)
    tolerance = Tolerance(0.0, NEARLY_SINGULAR)
    for found in (bandit.posterior(torch.as_tensor(x)).mean, bandit.loop.state.table.mean()):
        assert_close(found, mean, tolerance, what="mean")
    assert_close(bandit.model().marginals(torch.as_tensor(x)).mean, mean, tolerance, what="mean of the model")


@pytest.mark.parametrize("make", [tb.gp_ucb, partial(tb.bkb, oversampling=1e15)], ids=["exact", "dictionary"])
def test_batch_rows_with_singular_kernel_matrices_may_have_different_numbers_of_points(make):
    """For λ = 0.27 the rounding error of (√λ)² is positive. Variances of the rows with fewer points were wrong by a tenth."""
    lam, options = 0.27, {"noise_std": 0.3, "regularization": 0.27, "width": tb.widths.Constant(1.0)}
    arms = torch.as_tensor(np.random.default_rng(0).random((80, 1)))
    numbers, order = [20, 14, 9], [np.random.default_rng(row).permutation(80)[:20] for row in range(3)]
    mask = torch.arange(20) < torch.tensor(numbers).unsqueeze(-1)
    index = torch.where(mask, torch.as_tensor(np.stack(order)), -1)
    rewards = torch.zeros(3, 20, dtype=torch.float64)
    together = tb.Bandit(make(rbf(1.0), **options), arms, generator=[generator(row) for row in range(3)])
    for place in range(20):
        part = slice(place, place + 1)
        if bool(mask[:, part].any()):
            picks = tb.Selection(together.loop.points(index[:, part]), index[:, part], mask[:, part])
            with pytest.warns(tb.errors.DiagnosticWarning):
                together.tell(picks, rewards[:, part])
    together.loop.state.table.sweep_()
    assert together.loop.state.posterior.fit().nystrom.root.fallback.all()
    for row, number in enumerate(numbers):
        alone = tb.Bandit(make(rbf(1.0), **options), arms, generator=generator(row))
        for place in range(number):
            alone.tell(index[row, place : place + 1], rewards[row, :1])
        own, single = (lam * bandit.loop.state.arm_leverage() for bandit in (together, alone))
        torch.testing.assert_close(own[row], single, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e8])
def test_a_row_of_fewer_points_has_its_own_digits_at_every_scale_of_the_rewards(scale: float):
    """Padding is no point, whose variance the pivots of the points would be compared with."""
    kernel = gpytorch.kernels.ScaleKernel(rbf(0.7)).double()
    kernel.outputscale = scale**2
    x = torch.tensor([[0.8], [0.85], [0.1], [1.9], [1.2]], dtype=torch.float64)
    bandit = tb.Bandit(tb.gp_ucb(kernel, noise_std=0.2 * scale), x, generator=[generator(0), generator(1)])
    index, rewards = torch.tensor([[0, 1, 3], [0, 1, -1]]), torch.tensor([[0.6, -1.3, 0.4], [0.6, -1.3, 0.0]]).double()
    bandit.tell(bandit.plan(index), scale * rewards)
    for row, u in ((0, [0, 1, 3]), (1, [0, 1])):
        K = torch.exp(-0.5 * ((x - x.T) / 0.7) ** 2)
        A, told = K[u][:, u] + 0.04 * torch.eye(len(u), dtype=torch.float64), rewards[row][: len(u)]
        expected = K[:, u] @ torch.linalg.solve(A, told)
        variance = 1 - (K[:, u] * torch.linalg.solve(A, K[u]).T).sum(dim=-1)
        found = bandit.posterior(x.expand(2, -1, -1))
        torch.testing.assert_close(found.mean[row] / scale, expected, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(found.variance[row] / scale**2, variance, rtol=1e-7, atol=1e-9)
