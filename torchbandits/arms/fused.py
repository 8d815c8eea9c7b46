"""A sweep in one Triton kernel, which evaluates, multiplies and squares kernel columns without writing them to memory.

Without it, columns that are not kept are written to memory and read again: 33.8 KB per arm with a dictionary of 512 points.
This kernel only reads the arm, and writes its mean and leverage. Each block of columns is evaluated once for each block of rows
of the product, up to m/32 times in total.

Imported only if Triton is installed (PyTorch includes it on Linux with CUDA) and `TORCHBANDITS_FUSED=1` is set. **It has not
run on a GPU yet**: it is tested in Triton's interpreter on the CPU, against dense products (`bash scripts/check_fused.sh`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchbandits.kernels import Stationary
from torchbandits.posteriors import SweepFactors
from torchbandits.types import Arms, Points

try:
    import triton
    import triton.language as tl

    jit = triton.jit
except ImportError:

    def jit(function: Any) -> Any:
        """Return the function unchanged, because no kernel is called without Triton."""
        return function


_ARMS, _POINTS = 64, 32
"""Number of arms per program, and of dictionary points per block."""


@jit
def _columns(  # type: ignore[no-untyped-def]
    arms, points, scale, place, inside, j, outputscale,
    D: tl.constexpr, M: tl.constexpr, ORDER: tl.constexpr, POINTS: tl.constexpr, ARMS: tl.constexpr,
):  # fmt: skip
    """k between a block of points and a block of arms, POINTS x ARMS, from coordinate differences; 0 beyond the last point.
    ORDER is 2ν of a Matérn kernel, or 0 for RBF."""
    row = j + tl.arange(0, POINTS)
    real = row < M
    squared = tl.zeros([POINTS, ARMS], dtype=points.dtype.element_ty)
    for feature in range(D):
        x = tl.load(arms + place * D + feature, mask=inside, other=0.0) * tl.load(scale + feature)
        y = tl.load(points + row * D + feature, mask=real, other=0.0)
        difference = y[:, None] - x[None, :]
        squared += difference * difference
    if ORDER == 0:
        value = tl.exp(-0.5 * squared)
    else:
        r = tl.sqrt(squared)
        value = tl.exp(-r)
        if ORDER == 3:
            value = value * (1.0 + r)
        if ORDER == 5:
            value = value * (1.0 + r + squared / 3.0)
    return tl.where(real[:, None], value * tl.load(outputscale), 0.0)


@jit
def _sweep(  # type: ignore[no-untyped-def]
    arms, points, scale, N, a, prior, step_of_prior, outputscale, leverage, channels, A,
    D: tl.constexpr, M: tl.constexpr, C: tl.constexpr, ORDER: tl.constexpr, LOWER: tl.constexpr, POINTS: tl.constexpr,
    ARMS: tl.constexpr,
):  # fmt: skip
    """leverage = prior − |Nᵀk|² and channels = aᵀk of one block of arms."""
    place = tl.program_id(0).to(tl.int64) * ARMS + tl.arange(0, ARMS)
    inside = place < A
    explained = tl.zeros([ARMS], dtype=points.dtype.element_ty)
    for i in range(0, M, POINTS):
        row = i + tl.arange(0, POINTS)
        product = tl.zeros([POINTS, ARMS], dtype=points.dtype.element_ty)
        # Nᵀ is triangular: blocks of zeros are left out.
        first = 0 if LOWER else i
        last = i + POINTS if LOWER else M
        for j in range(first, last, POINTS):
            K = _columns(arms, points, scale, place, inside, j, outputscale, D, M, ORDER, POINTS, ARMS)
            column = j + tl.arange(0, POINTS)
            real = (row[:, None] < M) & (column[None, :] < M)
            W = tl.load(N + column[None, :] * M + row[:, None], mask=real, other=0.0)
            product += tl.dot(W, K, input_precision="ieee", out_dtype=points.dtype.element_ty)
        explained += tl.sum(product * product, axis=0)
    own = tl.load(prior + place * step_of_prior, mask=inside, other=0.0)
    tl.store(leverage + place, own - explained.to(tl.float64), mask=inside)
    for channel in range(C):
        mean = tl.zeros([ARMS], dtype=points.dtype.element_ty)
        for j in range(0, M, POINTS):
            K = _columns(arms, points, scale, place, inside, j, outputscale, D, M, ORDER, POINTS, ARMS)
            column = j + tl.arange(0, POINTS)
            w = tl.load(a + column * C + channel, mask=column < M, other=0.0)
            mean += tl.sum(w[:, None] * K, axis=0)
        tl.store(channels + channel * A + place, mean.to(tl.float64), mask=inside)


def fused_sweep(
    arms: Arms, points: Points, form: Stationary, factors: SweepFactors, prior: Tensor, leverage: Tensor, channels: Tensor
) -> None:
    """Write the leverage and the channels of every arm.

    Args:
        arms: `A x d`, float64 or float32.
        points: `m x d`, the dictionary in the same units.
        form: The kernel, without batch shape.
        factors: Sweep factors of one batch row; they are used in the arms' dtype.
        prior: `A`, k(x, x) / λ.
        leverage: `A`, overwritten.
        channels: `c x A`, overwritten.

    Cost: O(A m²), in one pass over the arms.
    """
    dtype, (A, d), (m, c) = arms.dtype, arms.shape, factors.a.shape
    scale = form.scale.to(dtype).reshape(-1).expand(d).contiguous()
    one = torch.ones(1, dtype=dtype, device=arms.device)
    outputscale = one if form.outputscale is None else form.outputscale.to(dtype).reshape(1)
    order = 0 if form.nu is None else round(2 * form.nu)
    N, a = (x.to(dtype).contiguous() for x in (factors.N, factors.a))
    own = (points.to(dtype) * scale).contiguous()
    grid = (triton.cdiv(A, _ARMS),)
    _sweep[grid](
        arms.contiguous(), own, scale, N, a, prior, prior.stride(0), outputscale, leverage, channels, A,
        D=d, M=m, C=c, ORDER=order, LOWER=factors.lower, POINTS=_POINTS, ARMS=_ARMS,
    )  # fmt: skip
