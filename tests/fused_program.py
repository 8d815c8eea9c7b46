"""The fused sweep compared with a dense one, case by case: on the CPU in Triton's interpreter, or on a GPU.

TRITON_INTERPRET=1 python tests/fused_program.py     # run by scripts/check_fused.sh
"""

from __future__ import annotations

from itertools import product

import gpytorch
import torch
from tolerances import VARIANCE, assert_close
from torch import Tensor

from torchbandits.arms.fused import fused_sweep
from torchbandits.kernels import Stationary
from torchbandits.posteriors import SweepFactors

KERNELS = {
    "rbf": lambda: gpytorch.kernels.RBFKernel(ard_num_dims=3),
    "scaled rbf": lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()),
    "matern 1/2": lambda: gpytorch.kernels.MaternKernel(nu=0.5),
    "matern 3/2": lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=3)),
    "matern 5/2": lambda: gpytorch.kernels.MaternKernel(nu=2.5),
}
Case = tuple[str, int, int, bool | None, torch.dtype, bool, tuple[int, ...]]
CASES: list[Case] = [
    (name, m, c, lower, dtype, False, ())
    for name, (m, c), lower, dtype in product(
        KERNELS, ((5, 1), (32, 2), (77, 1)), (True, False), (torch.float64, torch.float32)
    )
]
# Several blocks of columns and of channels, and a full matrix.
CASES += [
    ("matern 5/2", m, c, lower, dtype, True, ())
    for (m, c), lower, dtype in product(((150, 1), (260, 20)), (True, False, None), (torch.float64, torch.float32))
]
CASES += [
    (name, 40, 1, False, dtype, True, ())
    for name, dtype in product(KERNELS, (torch.float64, torch.float32))
    if "1/2" not in name
]
# Several batch rows, with the same prior variances and with others.
CASES += [
    ("scaled rbf", 21, 2, lower, dtype, True, shape)
    for lower, dtype, shape in product((True, False, None), (torch.float64, torch.float32), ((3,), (2, 2)))
]
FAR: Case = ("matern 1/2", 40, 1, False, torch.float32, False, ())
OFFSET = 1e5 + 0.3


def dense(kernel: gpytorch.kernels.Kernel, x: Tensor, y: Tensor) -> Tensor:
    """k(x, y) by differences, because GPyTorch's Matérn 1/2 loses half of the digits near a point."""
    base = kernel.base_kernel if isinstance(kernel, gpytorch.kernels.ScaleKernel) else kernel
    squared = ((x.unsqueeze(-2) - y) / base.lengthscale).square().sum(dim=-1)
    if isinstance(base, gpytorch.kernels.RBFKernel):
        value = (-squared / 2).exp()
    else:
        r = (2 * base.nu * squared).sqrt()
        value = {0.5: 1 + 0 * r, 1.5: 1 + r, 2.5: 1 + r + r * r / 3}[base.nu] * (-r).exp()
    return value * kernel.outputscale if base is not kernel else value


def check(
    name: str,
    m: int,
    c: int,
    lower: bool | None,
    dtype: torch.dtype,
    by_product: bool,
    batch_shape: tuple[int, ...],
    device: str,
    A: int = 300,
    offset: float = 0.0,
) -> None:
    """Raise AssertionError if the kernel and dense columns with dense products differ by more than the table says."""
    g = torch.Generator().manual_seed(m)
    kernel = KERNELS[name]().double().requires_grad_(False)
    # With an offset: features of which the mean is rounded in float32, such as years.
    arms = (offset + torch.rand(A, 3, generator=g, dtype=torch.float64)).to(dtype)
    points = arms[torch.rand(*batch_shape, A, generator=g).argsort(dim=-1)[..., :m]].double()
    triangle = 0.1 * torch.randn(*batch_shape, m, m, generator=g, dtype=torch.float64)
    N = triangle if lower is None else triangle.triu() if lower else triangle.tril()
    a = torch.randn(*batch_shape, m, c, generator=g, dtype=torch.float64)
    K = dense(kernel, points, arms.double())
    explained, means = (N.mT @ K).square().sum(dim=-2), a.mT @ K
    # The same for all arms; for two dimensions of batch rows another one for each row.
    prior = explained.amax(dim=-1, keepdim=True) if len(batch_shape) == 2 else explained.amax()
    leverage, channels = torch.full_like(explained, torch.nan), torch.full_like(means, torch.nan)
    moved: list[Tensor] = [x.to(device) for x in (arms, points, N, a, prior, leverage, channels)]
    own = moved[4].expand_as(explained)
    rows = torch.arange(m, device=device).expand(*batch_shape, m)
    factors = SweepFactors(rows, rows >= 0, moved[2], moved[3], lower)
    form = Stationary.of(kernel.to(device))
    assert form is not None
    fused_sweep(moved[0], moved[1], form, factors, own, moved[5], moved[6], by_product=by_product)
    scale = float(prior.max())
    assert_close(moved[5], prior - explained, VARIANCE[dtype], scale, f"leverages, {name}, m = {m}")
    size = float((a.abs().mT @ K).amax())
    assert_close(moved[6], means, VARIANCE[dtype], size, f"means, {name}, m = {m}")


if __name__ == "__main__":
    for case in CASES:
        check(*case, device="cpu")
    check(*FAR, device="cpu", offset=OFFSET)
    print(f"{len(CASES) + 1} cases of the fused sweep are equal to the dense ones, in Triton's interpreter on the CPU.")
