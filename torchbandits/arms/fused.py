"""A sweep in one Triton kernel, which evaluates, multiplies and squares kernel columns without writing them to memory.

Without it, columns that are not kept are written to memory and read again: 33.8 KB per arm with a dictionary of 512 points.
This kernel only reads the arm, and writes its mean and leverage. Each block of columns is evaluated once for each block of 128
columns of the factor.

Imported only if Triton is installed (PyTorch includes it on Linux with CUDA). Triton's interpreter runs the kernel on the CPU,
where it is compared with dense products (`bash scripts/check_fused.sh`).
"""

from __future__ import annotations

import subprocess
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchbandits.errors import issue
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


_ARMS, _POINTS = 128, 32
"""Number of arms per program, and of dictionary points per block."""
_COLUMNS = 128
"""Largest number of columns of N per block. A block of kernel columns is evaluated once for each of these."""
_CHANNELS = 16
"""Number of channels per block, at least that of the smallest product of Triton."""


@jit
def _columns(  # type: ignore[no-untyped-def]
    arms, points, scale, place, inside, j, M, outputscale,
    D: tl.constexpr, ORDER: tl.constexpr, POINTS: tl.constexpr, ARMS: tl.constexpr,
):  # fmt: skip
    """k between a block of arms and a block of points, ARMS x POINTS, from coordinate differences; 0 beyond the last point.
    ORDER is 2ν of a Matérn kernel, or 0 for RBF."""
    row = j + tl.arange(0, POINTS)
    real = row < M
    squared = tl.zeros([ARMS, POINTS], dtype=points.dtype.element_ty)
    for feature in range(D):
        x = tl.load(arms + place * D + feature, mask=inside, other=0.0) * tl.load(scale + feature)
        y = tl.load(points + row * D + feature, mask=real, other=0.0)
        difference = x[:, None] - y[None, :]
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
    return tl.where(real[None, :], value * tl.load(outputscale), 0.0)


@jit
def _sweep(  # type: ignore[no-untyped-def]
    arms, points, scale, N, a, prior, step_of_prior, outputscale, leverage, channels, A, M, C,
    D: tl.constexpr, ORDER: tl.constexpr, SHAPE: tl.constexpr, PRECISION: tl.constexpr, CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr, POINTS: tl.constexpr, ARMS: tl.constexpr,
):  # fmt: skip
    """leverage = prior − |Nᵀk|² and channels = aᵀk of one block of arms. N is stored transposed, column after column. SHAPE is
    1 if N is lower triangular, −1 if it is upper triangular, and 0 if it is full."""
    place = tl.program_id(0).to(tl.int64) * ARMS + tl.arange(0, ARMS)
    inside = place < A
    explained = tl.zeros([ARMS], dtype=tl.float64)
    for i in range(0, M, COLUMNS):
        column = i + tl.arange(0, COLUMNS)
        product = tl.zeros([ARMS, COLUMNS], dtype=points.dtype.element_ty)
        # Blocks of zeros are left out.
        first = i if SHAPE == 1 else 0
        last = i + COLUMNS if SHAPE == -1 else M
        for j in range(first, tl.minimum(last, M), POINTS):
            K = _columns(arms, points, scale, place, inside, j, M, outputscale, D, ORDER, POINTS, ARMS)
            row = j + tl.arange(0, POINTS)
            real = (column[:, None] < M) & (row[None, :] < M)
            W = tl.load(N + column[:, None] * M + row[None, :], mask=real, other=0.0)
            product = tl.dot(K, tl.trans(W), product, input_precision=PRECISION, out_dtype=points.dtype.element_ty)
        explained += tl.sum(product * product, axis=1).to(tl.float64)
    own = tl.load(prior + place * step_of_prior, mask=inside, other=0.0)
    tl.store(leverage + place, own - explained, mask=inside)
    for c in range(0, C, CHANNELS):
        channel = c + tl.arange(0, CHANNELS)
        mean = tl.zeros([ARMS, CHANNELS], dtype=points.dtype.element_ty)
        for j in range(0, M, POINTS):
            K = _columns(arms, points, scale, place, inside, j, M, outputscale, D, ORDER, POINTS, ARMS)
            row = j + tl.arange(0, POINTS)
            real = (row[:, None] < M) & (channel[None, :] < C)
            w = tl.load(a + row[:, None] * C + channel[None, :], mask=real, other=0.0)
            mean = tl.dot(K, w, mean, input_precision=PRECISION, out_dtype=points.dtype.element_ty)
        there = inside[:, None] & (channel[None, :] < C)
        tl.store(channels + channel[None, :].to(tl.int64) * A + place[:, None], mean.to(tl.float64), mask=there)


def _precision(arms: Arms) -> str:
    """How Triton multiplies: float32 numbers as three products of TF32 numbers, which has the accuracy of float32, on cards
    with tensor cores for them."""
    split = arms.dtype == torch.float32 and torch.version.cuda is not None and arms.is_cuda
    return "tf32x3" if split and torch.cuda.get_device_capability(arms.device) >= (8, 0) else "ieee"


@jit
def _nothing(out) -> None:  # type: ignore[no-untyped-def]
    tl.store(out, 0.0)


@cache
def compiles(device: torch.device) -> bool:
    """Whether Triton can compile for a device, for which it needs a C compiler on this machine; if not, a warning says why."""
    try:
        _nothing[1,](torch.empty(1, device=device))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        issue(
            [
                f"Triton cannot compile the kernel of a sweep ({error}); PyTorch's own operations are used, which take longer. "
                "Triton needs a C compiler and Python's headers; TORCHBANDITS_FUSED=0 in the environment turns it off."
            ]
        )
        return False
    return True


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
    N, a = factors.N.mT.to(dtype).contiguous(), factors.a.to(dtype).contiguous()
    own = (points.to(dtype) * scale).contiguous()
    shape = 0 if factors.lower is None else -1 if factors.lower else 1
    _sweep[triton.cdiv(A, _ARMS),](
        arms.contiguous(), own, scale, N, a, prior, prior.stride(0), outputscale, leverage, channels, A, m, c,
        D=d, ORDER=0 if form.nu is None else round(2 * form.nu), SHAPE=shape, PRECISION=_precision(arms),
        CHANNELS=_CHANNELS, COLUMNS=_COLUMNS, POINTS=_POINTS, ARMS=_ARMS, num_warps=8,
    )  # fmt: skip
