"""Kernel blocks by matrix products equal GPyTorch's kernel and dense distances, also for close points and odd length-scales."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from emulated_device import emulated_device

from torchbandits import kernels
from torchbandits.kernels import ScaledArms, Stationary, StationaryBlocks, distances, evaluate_kernel

F64 = torch.float64
PROFILES = {
    "rbf": lambda r: np.exp(-0.5 * r**2),
    "matern-0.5": lambda r: np.exp(-r),
    "matern-1.5": lambda r: (1 + 3**0.5 * r) * np.exp(-(3**0.5) * r),
    "matern-2.5": lambda r: (1 + 5**0.5 * r + 5 * r**2 / 3) * np.exp(-(5**0.5) * r),
}


def make(name: str, lengthscale: torch.Tensor | float, outputscale: torch.Tensor | None = None) -> gpytorch.kernels.Kernel:
    lengthscale = torch.as_tensor(lengthscale, dtype=F64)
    shape = lengthscale.shape[:-2]
    ard = lengthscale.shape[-1] if lengthscale.dim() and lengthscale.shape[-1] > 1 else None
    options = {"ard_num_dims": ard, "batch_shape": shape}
    base = (
        gpytorch.kernels.RBFKernel(**options) if name == "rbf" else gpytorch.kernels.MaternKernel(float(name[7:]), **options)
    ).double()
    base.lengthscale = lengthscale
    if outputscale is None:
        return base.requires_grad_(False)
    scaled = gpytorch.kernels.ScaleKernel(base, batch_shape=shape).double()
    scaled.outputscale = torch.as_tensor(outputscale, dtype=F64)
    return scaled.requires_grad_(False)


def dense(name: str, points: torch.Tensor, arms: torch.Tensor, lengthscale: float) -> np.ndarray:
    """In extended precision, from differences."""
    x, y = (np.asarray(t.numpy(), dtype=np.longdouble) / np.longdouble(lengthscale) for t in (points, arms))
    return PROFILES[name](np.sqrt(((x[:, None] - y[None]) ** 2).sum(-1))).astype(np.float64)


def cloud(seed: int, d: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Points, and arms that include these points and others very close to them."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(40, d, generator=generator, dtype=F64) + 3
    near = points + 1e-7 * torch.randn(40, d, generator=generator, dtype=F64)
    return points, torch.cat([torch.rand(60, d, generator=generator, dtype=F64) + 3, points, near])


@pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "torch"])
@pytest.mark.parametrize("lengthscale", [1e-3, 0.05, 0.4, 3.0, 1e3])
@pytest.mark.parametrize("name", PROFILES)
def test_blocks_equal_dense_distances(monkeypatch: pytest.MonkeyPatch, name: str, lengthscale: float, numpy: bool) -> None:
    """Equal to 4e-13, including near-duplicates; GPyTorch's own error is 1e-10 at the smallest length-scale."""
    monkeypatch.setattr(kernels, "_by_numpy", lambda values: numpy)
    points, arms = cloud(0)
    kernel = make(name, lengthscale)
    assert Stationary.covers(kernel)
    K = StationaryBlocks(points, kernel)(arms, torch.full((40, 140), torch.nan, dtype=F64))
    expected = dense(name, points, arms, lengthscale)
    # Matérn 1/2 has slope 1 at 0, and coordinates around 3 represent a distance only to 1e-15/ℓ.
    atol = 4e-13 + (1e-15 / lengthscale if name == "matern-0.5" else 0)
    np.testing.assert_allclose(K.numpy(), expected, rtol=0, atol=atol)
    plain = evaluate_kernel(kernel, points, arms)
    # GPyTorch loses digits of small distances by cancellation, and half of the digits by the square root in Matérn 1/2.
    away = torch.from_numpy(expected) < (1 - 1e-3 if name == "matern-0.5" else 1 - 1e-6)
    torch.testing.assert_close(K[away], plain[away], rtol=0, atol=5e-8 if lengthscale < 0.01 else 1e-11)


@pytest.mark.parametrize("name", PROFILES)
def test_batches_scales_and_relevance(name: str) -> None:
    """Batch rows have separate points, arms, length-scales and scales; the output block may be part of a larger tensor."""
    generator = torch.Generator().manual_seed(1)
    points, arms = (torch.rand(3, n, 4, generator=generator, dtype=F64) for n in (9, 33))
    lengthscale = 0.2 + torch.rand(3, 1, 4, generator=generator, dtype=F64)
    kernel = make(name, lengthscale, 0.5 + torch.rand(3, generator=generator, dtype=F64))
    whole = torch.empty(3, 9, 50, dtype=F64)
    K = StationaryBlocks(points, kernel)(arms, whole[..., :33])
    torch.testing.assert_close(K, evaluate_kernel(kernel, points, arms), rtol=1e-9, atol=1e-11)
    shared = StationaryBlocks(points, kernel)(arms[0], torch.empty(3, 9, 33, dtype=F64))
    torch.testing.assert_close(shared, evaluate_kernel(kernel, points, arms[0].expand(3, -1, -1)), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("lengthscale", [0.05, 0.4, 3.0])
def test_single_precision(name: str, lengthscale: float) -> None:
    points, arms = (t.float() for t in cloud(2))
    K = StationaryBlocks(points, make(name, lengthscale).float())(arms, torch.empty(40, 140))
    assert K.dtype == torch.float32
    expected = dense(name, points, arms, lengthscale)
    np.testing.assert_allclose(K.numpy(), expected, rtol=0, atol=2e-5 if name == "matern-0.5" else 4e-6)


def test_other_kernels_are_left_to_gpytorch() -> None:
    for kernel in (
        gpytorch.kernels.LinearKernel(),
        gpytorch.kernels.RBFKernel(active_dims=(0, 1)),
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.PeriodicKernel()),
        gpytorch.kernels.RBFKernel() + gpytorch.kernels.MaternKernel(1.5),
    ):
        assert not Stationary.covers(kernel)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(1 << 28, id="one piece"),
        pytest.param(4_000, id="pieces of arms"),
        pytest.param(100, id="pieces of both", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("shape", [(), (3,)], ids=["one", "rows"])
@pytest.mark.parametrize("name", PROFILES)
def test_a_device_sums_differences_in_bounded_pieces(
    monkeypatch: pytest.MonkeyPatch, name: str, shape: tuple[int, ...], pieces: int
) -> None:
    monkeypatch.setattr(kernels, "_DIFFERENCES", pieces)
    points, arms = cloud(3)
    form = Stationary.of(make(name, 0.4, 2.0))
    assert form is not None
    expected = form.between(points, arms)
    with emulated_device() as asked:
        there = Stationary.of(make(name, 0.4, 2.0).cuda())
        left, right, out = points.expand(*shape, 40, 5).cuda(), arms.cuda(), torch.empty(*shape, 40, 140, dtype=F64).cuda()
        K = there.between(left, right).cpu()
        before, pieces_of_one = asked.launches, 40 * 140 * 5 * 8 * (3 if shape else 1) <= pieces
        distances(left, right)
        assert (asked.launches - before == 2) == pieces_of_one
        r = distances(left, right, out).cpu()
    torch.testing.assert_close(K, expected.expand(*shape, 40, 140), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(r, distances(points, arms).expand(*shape, 40, 140), rtol=1e-14, atol=0)


@pytest.mark.sweep(10)
@pytest.mark.parametrize("lengthscale", [1e-3, 0.05, 0.4, 3.0, 1e3])
@pytest.mark.parametrize("name", PROFILES)
def test_blocks_of_arms_on_a_device_equal_dense_distances(name: str, lengthscale: float) -> None:
    points, arms = cloud(0)
    arms = torch.cat([arms, torch.full((1, 5), 1e4, dtype=F64), arms + 2.0, arms[:30]])
    with emulated_device() as asked:
        kernel, there = make(name, lengthscale).cuda(), arms.cuda()
        form = Stationary.of(kernel)
        assert form is not None
        scaled = ScaledArms.of(there, form)
        blocks, out = StationaryBlocks(points.cuda(), kernel, scaled), torch.full((40, len(arms)), torch.nan, dtype=F64).cuda()
        blocks.at(slice(0, 100), out[:, :100])
        before = asked.waits
        for start in range(100, len(arms), 100):
            blocks.at(slice(start, min(start + 100, len(arms))), out[:, start : start + 100])
        assert asked.waits == before
        own = scaled.scaled(there[:30])
        assert torch.equal(own.cpu(), scaled.points[:30].cpu())
        K = out.cpu()
    atol = 4e-13 + (1e-15 / lengthscale if name == "matern-0.5" else 0)
    np.testing.assert_allclose(K.numpy(), dense(name, points, arms, lengthscale), rtol=0, atol=atol)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("own_arms", [False, True])
@pytest.mark.parametrize("name", PROFILES)
def test_batch_rows_of_arms_on_a_device(name: str, own_arms: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    points, arms = torch.rand(3, 9, 4, generator=generator, dtype=F64), torch.rand(3, 600, 4, generator=generator, dtype=F64)
    arms = arms if own_arms else arms[0]
    lengthscale = 0.2 + torch.rand(3, 1, 4, generator=generator, dtype=F64)
    kernel = make(name, lengthscale, 0.5 + torch.rand(3, generator=generator, dtype=F64))
    expected = evaluate_kernel(kernel, points, arms.expand(3, -1, -1))
    with emulated_device():
        kernel = kernel.cuda()
        form = Stationary.of(kernel)
        assert form is not None
        blocks = StationaryBlocks(points.cuda(), kernel, ScaledArms.of(arms.cuda(), form))
        K = blocks.at(slice(200, 550), torch.empty(3, 9, 400, dtype=F64).cuda()[..., :350]).cpu()
        one = make(name, 0.5).cuda()
        form = Stationary.of(one)
        assert form is not None
        blocks, whole = (
            StationaryBlocks(points.cuda(), one, ScaledArms.of(arms.cuda(), form)),
            torch.empty(3, 9, 400, dtype=F64).cuda(),
        )
        blocks.at(slice(200, 550), whole[..., :350])
        shared = whole[..., :350].cpu()
    torch.testing.assert_close(K, expected[..., 200:550], rtol=1e-9, atol=1e-11)
    expected = evaluate_kernel(make(name, 0.5), points, arms.expand(3, -1, -1))
    torch.testing.assert_close(shared, expected[..., 200:550], rtol=1e-9, atol=1e-11)
