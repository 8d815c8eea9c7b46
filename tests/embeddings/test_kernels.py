"""The fast columns equal GPyTorch's; near-coincident points are compared by differences; appending equals building."""

from __future__ import annotations

from typing import Any

import gpytorch
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchbandits import kernels as kernel_module
from torchbandits.arms import ArmRows, ArmTable, columns
from torchbandits.embeddings import Nystrom
from torchbandits.kernels import StationaryColumns, evaluate_kernel, kernel_matrix
from torchbandits.posteriors import GaussianProcess

F64 = torch.float64


def kernels() -> list[gpytorch.kernels.Kernel]:
    ard = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=3)
    ard.lengthscale = torch.tensor([0.3, 1.0, 2.0])
    scaled = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    scaled.outputscale = 2.5
    return [gpytorch.kernels.RBFKernel(), *(gpytorch.kernels.MaternKernel(nu=n) for n in (0.5, 1.5, 2.5)), ard, scaled]


@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: f"{type(k).__name__}-{getattr(k, 'nu', '')}")
def test_stationary_columns_equal_gpytorch(kernel: gpytorch.kernels.Kernel) -> None:
    kernel = kernel.double()
    arms = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    assert StationaryColumns.supports(arms, kernel)
    columns = StationaryColumns(arms, kernel)
    for j in (0, 7, 199):
        expected = kernel_matrix(kernel, arms[j : j + 1], arms).detach()
        torch.testing.assert_close(columns(arms[j : j + 1]), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: f"{type(k).__name__}-{getattr(k, 'nu', '')}")
def test_a_column_does_not_depend_on_those_evaluated_with_it(kernel, dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise picks would depend on the order of results, and on what was evaluated before a state was saved."""
    monkeypatch.setattr(kernel_module, "_PIECE", 1 << 12)
    arms = torch.randn(1500, 3, generator=torch.Generator().manual_seed(0), dtype=F64).to(dtype)
    columns = StationaryColumns(arms, kernel.double())
    together = columns(arms[:21])
    assert together.dtype == dtype
    for j in (0, 7, 20):
        assert torch.equal(columns(arms[j : j + 1]).squeeze(0), together[j])


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("base", [False, True], ids=["rows in the scale", "rows in both"])
@pytest.mark.parametrize("nu", [None, 0.5, 2.5])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_columns_of_a_kernel_with_batch_rows(lead, nu, base, dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of long lists of arms one row after the other, of others all rows by GPyTorch."""
    rows = torch.Size([3])
    own = {"ard_num_dims": 2, "batch_shape": rows if base else torch.Size([])}
    part = gpytorch.kernels.RBFKernel(**own) if nu is None else gpytorch.kernels.MaternKernel(nu=nu, **own)
    kernel = gpytorch.kernels.ScaleKernel(part, batch_shape=rows).double()
    generator = torch.Generator().manual_seed(0)
    kernel.base_kernel.lengthscale = 0.3 + torch.rand(*own["batch_shape"], 1, 2, generator=generator, dtype=F64)
    kernel.outputscale = 0.5 + torch.rand(3, generator=generator, dtype=F64)
    kernel.requires_grad_(False)
    arms = torch.rand(90, 2, generator=generator, dtype=F64).to(dtype)
    shape = torch.Size([*lead, 3])
    process = GaussianProcess(kernel, 0.1, dim=2, batch_shape=shape, sparse=False)
    table = ArmTable(ArmRows(arms, shape), process, None)
    points = torch.rand(*shape, 4, 2, generator=generator, dtype=F64).to(dtype)
    expected = table.columns.evaluate(points)
    assert expected.shape == (*shape, 4, 90)
    calls = []
    monkeypatch.setattr(columns, "_LONG", 90)
    monkeypatch.setattr(columns.KernelColumns, "_lines", noted(columns.KernelColumns._lines, calls))
    found = table.columns.evaluate(points)
    assert len(calls) == 3
    tolerance = {"rtol": 1e-9, "atol": 1e-12} if dtype == F64 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found, expected, **tolerance)


def noted(method: Any, calls: list[Any]) -> Any:
    def called(*given: Any) -> Any:
        calls.append(given)
        return method(*given)

    return called


@pytest.mark.parametrize(
    "kernel",
    [
        gpytorch.kernels.LinearKernel(),
        gpytorch.kernels.RBFKernel(active_dims=[0, 1]),
        gpytorch.kernels.RBFKernel(batch_shape=torch.Size([2])),
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.PeriodicKernel()),
    ],
    ids=["linear", "active dims", "batch", "periodic"],
)
def test_other_kernels_take_the_general_path(kernel: gpytorch.kernels.Kernel) -> None:
    assert not StationaryColumns.supports(torch.zeros(4, 3, dtype=F64), kernel)


@pytest.mark.parametrize("distance", [0.0, 1e-9, 1e-7])
def test_near_coincident_points_keep_their_digits(distance: float) -> None:
    kernel = gpytorch.kernels.MaternKernel(nu=0.5).double()
    kernel.lengthscale = 0.5
    x = torch.rand(40, 3, generator=torch.Generator().manual_seed(1), dtype=F64)
    y = x.clone()
    y[:, 0] += distance
    K = kernel_matrix(kernel, x, y).detach()
    exact = torch.exp(-(x - y).norm(dim=-1) / 0.5)
    torch.testing.assert_close(K.diagonal(), exact, rtol=0, atol=1e-13)
    others = ~torch.eye(40, dtype=torch.bool)
    torch.testing.assert_close(K[others], evaluate_kernel(kernel, x, y).detach()[others])


@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: f"{type(k).__name__}-{getattr(k, 'nu', '')}")
@torch.no_grad()
def test_matrices_of_few_features_are_evaluated_by_differences(kernel: gpytorch.kernels.Kernel, monkeypatch) -> None:
    kernel = kernel.double()
    x, y = torch.randn(2, 12, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    expected = evaluate_kernel(kernel, x, y), evaluate_kernel(kernel, x, x)
    with monkeypatch.context() as patch:
        patch.setattr("torchbandits.kernels.evaluate_kernel", None)
        found = kernel_matrix(kernel, x, y), kernel_matrix(kernel, x, x)
    for own, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-9, atol=1e-7)
    assert bool((found[1] == found[1].mT).all())


def test_near_coincident_points_with_batches() -> None:
    kernel = gpytorch.kernels.MaternKernel(nu=0.5, batch_shape=torch.Size([2])).double()
    kernel.lengthscale = torch.tensor([0.3, 0.9]).reshape(2, 1, 1)
    x = torch.rand(5, 3, generator=torch.Generator().manual_seed(1), dtype=F64)
    torch.testing.assert_close(kernel_matrix(kernel, x, x).diagonal(dim1=-2, dim2=-1).detach(), torch.ones(2, 5, dtype=F64))


class Passes(TorchDispatchMode):
    """Counts the comparisons of all pairs of points."""

    def __init__(self, pairs: int) -> None:
        super().__init__()
        self.pairs, self.count = pairs, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.count += func.name().startswith("aten::le") and found.numel() >= self.pairs
        return found


@pytest.mark.parametrize("batch", [(), (2,)])
@torch.no_grad()
def test_pairs_that_are_near_in_the_first_features_are_looked_up(batch: tuple[int, ...]) -> None:
    kernel = gpytorch.kernels.MaternKernel(nu=0.5).double()
    kernel.lengthscale = 2.0
    arms = torch.rand(*batch, 300, 60, generator=torch.Generator().manual_seed(1), dtype=F64)
    arms[..., 1] = (arms[..., 1] > 0.5).double()
    x = arms[..., :8, :].clone()
    x[..., 0, 59] += 1e-9
    x[..., 1, 59] += 1e-3
    x[..., 2, 5] += 1e-9
    with Passes(8 * 300) as passes:
        K = kernel_matrix(kernel, x, arms)
    assert passes.count <= 2, "in all other features, only pairs that are still near are compared"
    exact = torch.exp(-(x.unsqueeze(-2) - arms.unsqueeze(-3)).norm(dim=-1) / 2)
    torch.testing.assert_close(K, exact, rtol=0, atol=1e-11)
    near = [0, 2, 3, 4, 5, 6, 7]
    torch.testing.assert_close(K[..., near, near], exact[..., near, near], rtol=0, atol=1e-13)
    # No pair of the far points is near.
    far = arms[..., :8, :] + 1.0
    torch.testing.assert_close(kernel_matrix(kernel, far, arms), evaluate_kernel(kernel, far, arms), rtol=0, atol=0)
    far[..., 0] -= 1.0
    torch.testing.assert_close(kernel_matrix(kernel, far, arms), evaluate_kernel(kernel, far, arms), rtol=0, atol=0)


@torch.no_grad()
def test_many_pairs_of_equal_points_are_not_evaluated_pair_by_pair(monkeypatch) -> None:
    """A batch row without points has zeros in all of its places."""
    kernel = gpytorch.kernels.MaternKernel(nu=0.5).double()
    kernel.lengthscale = 2.0
    x = torch.rand(2, 60, 40, generator=torch.Generator().manual_seed(1), dtype=F64)
    x[1] = 0.0
    x[0, 1] = x[0, 0]
    x[0, 1, 0] += 1e-9
    sizes, forward = [], gpytorch.kernels.MaternKernel.forward
    monkeypatch.setattr(
        gpytorch.kernels.MaternKernel, "forward", lambda self, a, b, **k: sizes.append(a.shape[-2]) or forward(self, a, b, **k)
    )
    K = kernel_matrix(kernel, x, x)
    assert max(sizes) <= 60
    exact = torch.exp(-(x.unsqueeze(-2) - x.unsqueeze(-3)).norm(dim=-1) / 2)
    torch.testing.assert_close(K, exact, rtol=0, atol=1e-13)


def test_appending_points_equals_building_the_embedding() -> None:
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 0.7
    x = torch.rand(6, 2, generator=torch.Generator().manual_seed(2), dtype=F64)
    grown = Nystrom(kernel, x[:4])
    for j in (4, 5):
        grown, kept = grown.append(x[j])
        assert bool(kept)
    grown, kept = grown.append(x[2])  # a copy of a point adds no direction
    assert not bool(kept)
    probe = torch.rand(9, 2, generator=torch.Generator().manual_seed(3), dtype=F64)
    z, expected = grown(probe), Nystrom(kernel, x)(probe)
    torch.testing.assert_close(z[:6], expected.detach(), rtol=1e-9, atol=1e-9)
    assert not z[6].any()
