"""Kernels with random effects: every path gives s k(x, y) + τ² where all features are equal, against dense numpy."""

from __future__ import annotations

import contextlib
import copy
import pickle

import gpytorch
import numpy as np
import pytest
import torch
from emulated_device import emulated_device
from problems import generator
from torch import Tensor

import torchbandits as tb
from torchbandits import errors
from torchbandits.arms import ArmRows, ArmTable
from torchbandits.embeddings import Spectrum
from torchbandits.kernels import (
    ScaledArms,
    Stationary,
    StationaryBlocks,
    StationaryColumns,
    evaluate_kernel,
    kernel_among,
    kernel_between,
    kernel_diagonal,
    kernel_matrix,
    kernel_row,
    shaped_like,
    stack_kernels,
)
from torchbandits.posteriors import GaussianProcess, SamplePaths
from torchbandits.random_effects import RandomEffectKernel, smooth_part, with_effect

F64 = torch.float64
SCALES = np.array([0.1, 0.5, 2.0])


def smooth(s: float = 2.0) -> gpytorch.kernels.ScaleKernel:
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5, ard_num_dims=3)).double()
    kernel.outputscale = s
    kernel.base_kernel.lengthscale = torch.as_tensor(SCALES)
    return kernel.requires_grad_(False)


def rough(effect: float = 0.7) -> RandomEffectKernel:
    return with_effect(smooth(), torch.tensor(effect, dtype=F64)).requires_grad_(False)


def points() -> tuple[Tensor, Tensor]:
    """Points, and others of which some are equal to them and some nearly."""
    x = torch.rand(12, 3, generator=generator(0), dtype=F64) + 3
    near = torch.cat([x[:2] + 1e-9, torch.nextafter(x[2:4], torch.tensor(9.0, dtype=F64))])
    return x, torch.cat([torch.rand(5, 3, generator=generator(1), dtype=F64) + 3, x[3:9], near, x[3:4]])


def dense(x: Tensor, y: Tensor, effect: float = 0.7) -> np.ndarray:
    x, y = x.numpy().astype(np.longdouble), y.numpy().astype(np.longdouble)
    r = np.sqrt(5) * np.sqrt((((x[:, None] - y[None]) / SCALES) ** 2).sum(-1))
    return (2 * (1 + r + r**2 / 3) * np.exp(-r) + effect * (x[:, None] == y[None]).all(-1)).astype(np.float64)


def test_every_path_is_that_of_dense_numpy() -> None:
    (x, y), kernel = points(), rough()
    expected = dense(x, y)
    assert (expected > 2.6).sum() == 7, "equal points, and only these"
    form = Stationary.of(kernel)
    assert form is not None
    found = {
        "GPyTorch": kernel(x, y).to_dense(),
        "evaluate": evaluate_kernel(kernel, x, y),
        "matrix": kernel_matrix(kernel, x, y),
        "between": kernel_between(kernel, x, y),
        "form": form.between(x, y),
        "blocks": StationaryBlocks(x, kernel)(y, torch.empty(12, 16, dtype=F64)),
        "columns": StationaryColumns(y, kernel)(x),
    }
    for name, K in found.items():
        np.testing.assert_allclose(K.numpy(), expected, rtol=1e-9, atol=1e-12, err_msg=name)
    own = dense(x, x)
    for K in (kernel(x).to_dense(), kernel_among(kernel, x), evaluate_kernel(kernel, x, x), kernel_matrix(kernel, x, x)):
        np.testing.assert_allclose(K.numpy(), own, rtol=1e-9, atol=1e-12)
    assert (kernel_diagonal(kernel, x) == 2.7).all()
    assert "effect=0.7" in repr(tb.Bandit(tb.gp_ucb(kernel, noise_std=0.1, width=tb.widths.Constant(2.0)), x).policy)


@pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "torch"])
def test_batch_rows_have_effects_of_their_own(monkeypatch: pytest.MonkeyPatch, numpy: bool) -> None:
    monkeypatch.setattr("torchbandits.kernels._by_numpy", lambda values: numpy)
    (x, y), rows = points(), torch.Size([2])
    stacked = stack_kernels([rough(0.7), rough(0.1)], rows)
    expected = np.stack([dense(x, y, 0.7), dense(x, y, 0.1)])
    form = Stationary.of(stacked)
    assert form is not None
    for K in (
        evaluate_kernel(stacked, x, y),
        form.between(x, y),
        StationaryBlocks(x.expand(2, -1, -1), stacked)(y, torch.empty(2, 12, 16, dtype=F64)),
        torch.stack([StationaryColumns(y, stacked, (row,))(x) for row in range(2)]),
    ):
        np.testing.assert_allclose(K.numpy(), expected, rtol=1e-9, atol=1e-12)
    assert [float(kernel_row(stacked, rows, (row,)).effect) for row in range(2)] == [0.7, 0.1]


def test_a_batch_row_of_equal_points_is_not_compared_pair_by_pair() -> None:
    """A row without points has zeros in all of its places."""
    (x, _), rows = points(), torch.Size([2])
    x = torch.stack([x, torch.zeros_like(x)])
    form = Stationary.of(stack_kernels([rough(0.7), rough(0.1)], rows))
    assert form is not None
    same = form.coincident(torch.stack([torch.eye(12), torch.ones(12, 12)]).bool(), x, x)
    assert isinstance(same, Tensor), "the indices of these pairs and their features would take d times the memory"
    expected = np.stack([dense(x[0], x[0], 0.7), dense(x[1], x[1], 0.1)])
    np.testing.assert_allclose(form.between(x, x).numpy(), expected, rtol=1e-9, atol=1e-12)


def test_single_precision_and_a_device() -> None:
    x, y = points()
    x, y = x.float(), y.float()
    equal = torch.as_tensor((x[:, None] == y[None]).all(-1))
    expected = dense(x.double(), y.double())
    kernel = copy.deepcopy(rough()).float()
    K = StationaryBlocks(x, kernel)(y, torch.empty(12, 16))
    np.testing.assert_allclose(K.numpy(), expected, rtol=2e-5, atol=2e-5)
    assert int(equal.sum()) >= 7
    with emulated_device():
        there, form = copy.deepcopy(rough()).cuda(), Stationary.of(copy.deepcopy(rough()).cuda())
        assert form is not None
        left, right = points()[0].cuda(), points()[1].cuda()
        arms = ScaledArms.of(right, form)
        blocks = StationaryBlocks(left, there, arms)
        found = [
            form.between(left, right),
            form.between_scaled(arms.scaled(left), arms.points),
            blocks.at(slice(0, 16), torch.empty(12, 16, dtype=F64, device="cuda")),
        ]
        found = [K.cpu() for K in found]
    for K in found:
        np.testing.assert_allclose(K.numpy(), dense(*points()), rtol=1e-9, atol=1e-12)


def test_states_are_loaded_with_effects_and_without() -> None:
    for one, other in ((smooth(), rough()), (rough(), smooth()), (rough(0.1), rough())):
        saved = {f"kernel.{name}": value for name, value in other.state_dict().items()}
        shaped = shaped_like(one, saved, "kernel.")
        shaped.load_state_dict(other.state_dict())
        assert type(shaped) is type(other)
        assert torch.equal(shaped(points()[0]).to_dense(), other(points()[0]).to_dense())
    again = pickle.loads(pickle.dumps(rough()))
    assert torch.equal(again.effect, rough().effect)
    assert type(smooth_part(rough())) is gpytorch.kernels.ScaleKernel
    assert torch.equal(smooth_part(rough())(points()[0]).to_dense(), smooth()(points()[0]).to_dense())
    assert smooth_part(gpytorch.kernels.RBFKernel()).has_lengthscale


@pytest.mark.sweep(2)
@pytest.mark.parametrize("budget", [1 << 30, 0], ids=["kept columns", "no column kept"])
@pytest.mark.parametrize("dim", [3, 40], ids=["few features", "many features"])
def test_an_exact_posterior_is_that_of_dense_numpy(dim: int, budget: int) -> None:
    """Before and after pulls that are new or repeated, also at arms with equal features, and with pending pulls."""
    x = torch.rand(60, dim, generator=generator(2), dtype=F64)
    x[7] = x[11]
    base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5)).double()
    base.base_kernel.lengthscale = 0.5 * dim**0.5
    kernel = with_effect(base, torch.tensor(0.5, dtype=F64)).requires_grad_(False)
    bandit = tb.Bandit(
        tb.gp_ucb(kernel, noise_std=0.3, width=tb.widths.Constant(2.0), memory_budget=budget), x, generator=generator(3)
    )
    draw, pulls, told = np.random.default_rng(0), [11, 3, 5, 3, 20, 3], []
    for start in range(0, 6, 2):
        index = torch.tensor(pulls[start : start + 2])
        rewards = torch.as_tensor(draw.normal(size=2))
        bandit.tell(index, rewards)
        told += rewards.tolist()
        lam, done = bandit.loop.state.posterior.regularization, pulls[: start + 2]
        K = kernel(x).to_dense().numpy()
        np.testing.assert_allclose(K, K.T)
        assert K[7, 11] == K[7, 7]
        A = K[np.ix_(done, done)] + lam * np.eye(len(done))
        solved = np.linalg.solve(A, K[done])
        mean, variance = solved.T @ np.array(told), np.diag(K) - (K[done] * solved).sum(0)
        np.testing.assert_allclose(bandit.posterior(x).mean, mean, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(bandit.posterior(x).variance, variance, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(bandit.loop.state.arm_mean(), mean, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(lam * bandit.loop.state.arm_leverage(), variance, rtol=1e-8, atol=1e-9)
    picks = bandit.ask(more=3).index.tolist()
    both = [*pulls, *picks]
    solved = np.linalg.solve(K[np.ix_(both, both)] + lam * np.eye(len(both)), K[both])
    np.testing.assert_allclose(bandit.posterior(x).variance, np.diag(K) - (K[both] * solved).sum(0), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("rows", [torch.Size([]), torch.Size([2])], ids=["one kernel", "batch rows"])
@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("nu", [2.5, None], ids=["Matern", "RBF"])
def test_many_features_are_evaluated_by_a_matrix_product(nu: float | None, dtype: torch.dtype, rows: torch.Size) -> None:
    """Equal points are then looked up among those that are near."""
    x = torch.rand(12, 40, generator=generator(0), dtype=F64).to(dtype)
    y = torch.cat([x[3:9], torch.nextafter(x[:6], torch.tensor(2.0, dtype=dtype)), torch.rand(5, 40).to(dtype)])
    base = gpytorch.kernels.RBFKernel() if nu is None else gpytorch.kernels.MaternKernel(nu)
    scaled = gpytorch.kernels.ScaleKernel(base).double()
    base.lengthscale, scaled.outputscale = 4.0, 2.0
    kernel = with_effect(scaled, torch.tensor(0.7, dtype=F64)).requires_grad_(False).to(dtype)
    kernel = stack_kernels([kernel, kernel], rows) if rows else kernel
    blocks = StationaryBlocks(x, kernel)
    assert blocks._trusted
    K = blocks(y, torch.empty(*rows, 12, 17, dtype=dtype))
    r = torch.cdist(x.double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist").numpy() / 4
    a = 5**0.5 * r
    expected = 2 * (np.exp(-(r**2) / 2) if nu is None else (1 + a + a**2 / 3) * np.exp(-a))
    expected += 0.7 * (x[:, None] == y).all(dim=-1).numpy()
    assert (expected > 2.6).sum() == 6
    close = 1e-9 if dtype == F64 else 2e-5
    np.testing.assert_allclose(K.numpy(), np.broadcast_to(expected, K.shape), rtol=close, atol=close)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("cuda", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("budget", [1 << 30, 0], ids=["kept columns", "no column kept"])
def test_arms_that_differ_in_their_last_digit_have_effects_of_their_own(budget: int, dtype: torch.dtype, cuda: bool) -> None:
    """Centring and scaling round such arms to one place, on some paths and not on others."""
    x = torch.rand(40, 3, generator=generator(2), dtype=F64).to(dtype)
    twin = x[:20].clone()
    twin[:, 0] = torch.nextafter(twin[:, 0], torch.tensor(2.0, dtype=dtype))
    x = torch.cat([x, twin])
    kernel, draw = rough(), np.random.default_rng(0)
    pulls = torch.cat([torch.arange(20), torch.arange(40, 60)])
    with emulated_device() if cuda else contextlib.nullcontext():
        here = x.cuda() if cuda else x
        own = copy.deepcopy(kernel).cuda() if cuda else kernel
        policy = tb.gp_ucb(own, noise_std=0.3, width=tb.widths.Constant(2.0), memory_budget=budget)
        bandit, told = tb.Bandit(policy, here, generator=generator(3)), []
        for part in pulls.split(20):
            rewards = torch.as_tensor(draw.normal(size=20)).to(dtype)
            bandit.tell(part.to(here.device), rewards.to(here.device))
            told += rewards.tolist()
        state, lam = bandit.loop.state, bandit.loop.state.posterior.regularization
        found = state.arm_mean().cpu(), lam * state.arm_leverage().cpu()
    K = dense(x.double(), x.double())
    solved = np.linalg.solve(K[np.ix_(pulls, pulls)] + lam * np.eye(40), K[pulls])
    close = {"rtol": 1e-9, "atol": 1e-9} if dtype == F64 else {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose(found[0], solved.T @ np.array(told), **close)
    np.testing.assert_allclose(found[1], np.diag(K) - (K[pulls] * solved).sum(0), **close)


def test_there_are_no_paths_and_a_table_draws_arms_independently() -> None:
    assert Spectrum.of(smooth()) is not None
    assert Spectrum.of(rough()) is None
    posterior = GaussianProcess(rough(), 0.01, dim=3)
    with pytest.raises(errors.UnsupportedError, match="RandomEffectKernel"):
        SamplePaths.draw(posterior, 1, [generator(0)], num_features=8)
    table = ArmTable(ArmRows(points()[0], torch.Size([])), posterior, None)
    assert (table.prior_diagonal == 2.7).all()
