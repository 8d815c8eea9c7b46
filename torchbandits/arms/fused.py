"""A sweep in one Triton kernel, which evaluates, multiplies and squares kernel columns without writing them to memory.

Without it, columns that are not kept are written to memory and read again: 33.8 KB per arm with a dictionary of 512 points.
This kernel only reads the arm, and writes its mean and leverage. Each block of columns is evaluated once for each block of 64
or 128 columns of the factor.

Imported only if Triton is installed (PyTorch includes it on Linux with CUDA). Triton's interpreter runs the kernel on the CPU,
where it is compared with dense products (`bash scripts/check_fused.sh`).
"""

from __future__ import annotations

import math
import subprocess
from contextlib import nullcontext
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
    _FAILURES: tuple[type[Exception], ...] = (triton.errors.TritonError, RuntimeError, OSError, subprocess.SubprocessError)
except ImportError:
    _FAILURES = (RuntimeError, OSError, subprocess.SubprocessError)

    def jit(function: Any) -> Any:
        """Return the function unchanged, because no kernel is called without Triton."""
        return function


_SHAPES = {torch.float64: (128, 16, 128, 8, 2), torch.float32: (64, 32, 128, 4, 1)}
"""Sizes of blocks by dtype (columns of the weights, dictionary points, arms), and numbers of warps and of stages: among the
fastest that were measured on an H200."""
_SMALL, _SHARED = (64, 16, 64, 4, 1), 160 << 10
"""The sizes for float64 on cards with less than this many bytes of shared memory."""
_FEATURES = 16
"""Smallest number of features of a product in Triton; blocks have a power of two of them."""


@jit
def _sweep(  # type: ignore[no-untyped-def]
    arms, points, scale, centre, weights, prior, row_of_prior, step_of_prior, outputscale, leverage, channels, A, M, C,
    D: tl.constexpr, FEATURES: tl.constexpr, BY_PRODUCT: tl.constexpr, ORDER: tl.constexpr, SHAPE: tl.constexpr,
    PRECISION: tl.constexpr, COLUMNS: tl.constexpr, POINTS: tl.constexpr, ARMS: tl.constexpr,
):  # fmt: skip
    """channels = aᵀk and leverage = prior − |Nᵀk|² of one block of arms and one batch row. `weights` are the columns of a and
    N, each contiguous. Batch rows follow each other in all tensors but those of arms and kernel. ORDER is 2ν of a Matérn
    kernel, or 0 for RBF. SHAPE is 1 if N is lower triangular, −1 if it is upper triangular, and 0 if it is full. Squared
    distances are computed BY_PRODUCT or else by differences."""
    dtype = points.dtype.element_ty
    batch_row = tl.program_id(1).to(tl.int64)
    points += batch_row * M * D
    weights += batch_row * (C + M) * M
    prior += batch_row * row_of_prior
    leverage += batch_row * A
    channels += batch_row * C * A
    place = tl.program_id(0).to(tl.int64) * ARMS + tl.arange(0, ARMS)
    inside = place < A
    feature = tl.arange(0, FEATURES)
    of_arm = inside[:, None] & (feature < D)[None, :]
    x = tl.load(arms + place[:, None] * D + feature[None, :], mask=of_arm, other=0.0)
    middle = tl.load(centre + feature, mask=feature < D, other=0.0)
    x = tl.where(of_arm, (x - middle[None, :]) * tl.load(scale + feature, mask=feature < D, other=0.0)[None, :], 0.0)
    norms = tl.sum(x * x, axis=1)
    size = tl.load(outputscale)
    explained = tl.zeros([ARMS], dtype=tl.float64)
    for i in range(0, C + M, COLUMNS):
        column = i + tl.arange(0, COLUMNS)
        product = tl.zeros([ARMS, COLUMNS], dtype=dtype)
        # Blocks of zeros are left out. The first C columns are full.
        first = tl.maximum(i - C, 0) // POINTS * POINTS if SHAPE == 1 else 0
        last = tl.minimum(i + COLUMNS - C, M) if SHAPE == -1 and i >= C else M
        for j in range(first, last, POINTS):
            row = j + tl.arange(0, POINTS)
            of_point = (row < M)[:, None] & (feature < D)[None, :]
            if BY_PRODUCT:
                y = tl.load(points + row[:, None] * D + feature[None, :], mask=of_point, other=0.0)
                squared = norms[:, None] + tl.sum(y * y, axis=1)[None, :]
                squared = tl.maximum(tl.dot(x, tl.trans(-2.0 * y), squared, input_precision=PRECISION, out_dtype=dtype), 0.0)
            else:
                squared = tl.zeros([ARMS, POINTS], dtype=dtype)
                for one in range(D):
                    left = tl.load(arms + place * D + one, mask=inside, other=0.0) - tl.load(centre + one)
                    right = tl.load(points + row * D + one, mask=row < M, other=0.0)
                    difference = (left * tl.load(scale + one))[:, None] - right[None, :]
                    squared += difference * difference
            if ORDER == 0:
                K = tl.exp(-0.5 * squared)
            else:
                r = tl.sqrt(squared)
                K = tl.exp(-r)
                if ORDER == 3:
                    K = K * (1.0 + r)
                if ORDER == 5:
                    K = K * (1.0 + r + squared / 3.0)
            real = (column[:, None] < C + M) & (row[None, :] < M)
            W = tl.load(weights + column[:, None].to(tl.int64) * M + row[None, :], mask=real, other=0.0)
            product = tl.dot(K, tl.trans(W), product, input_precision=PRECISION, out_dtype=dtype)
        product = product * size
        explained += tl.sum(tl.where(column[None, :] >= C, product * product, 0.0), axis=1).to(tl.float64)
        if i < C:
            there = inside[:, None] & (column[None, :] < C)
            tl.store(channels + column[None, :].to(tl.int64) * A + place[:, None], product.to(tl.float64), mask=there)
    own = tl.load(prior + place * step_of_prior, mask=inside, other=0.0)
    tl.store(leverage + place, own - explained, mask=inside)


def _precision(arms: Arms) -> str:
    """The precision of Triton's products: float32 numbers as three products of TF32 numbers, which has the accuracy of
    float32, on cards with tensor cores for them."""
    split = arms.dtype == torch.float32 and torch.version.cuda is not None and arms.is_cuda
    return "tf32x3" if split and torch.cuda.get_device_capability(arms.device) >= (8, 0) else "ieee"


_refused: set[tuple[object, ...]] = set()
"""Kernels that could not be compiled or started."""


def fused_sweep(
    arms: Arms,
    points: Points,
    form: Stationary,
    factors: SweepFactors,
    prior: Tensor,
    leverage: Tensor,
    channels: Tensor,
    *,
    by_product: bool,
) -> bool:
    """Write the leverage and the channels of every arm. Return False where Triton cannot compile the kernel, for which it needs
    a C compiler on this machine, or where the card has too little memory; a warning says so once.

    Args:
        arms: `A x d`, float64 or float32, contiguous, the same for all batch rows.
        points: `batch_shape x m x d`, the dictionary in the same units.
        form: The kernel, without batch shape.
        factors: Sweep factors; they are used in the arms' dtype.
        prior: `batch_shape x A`, k(x, x) / λ.
        leverage: `batch_shape x A`, contiguous, overwritten.
        channels: `batch_shape x c x A`, contiguous, overwritten.
        by_product: Whether squared distances may come from a matrix product, as in `StationaryBlocks`.

    Cost: O(A m²) for each batch row, in one pass over the arms.
    """
    dtype, (A, d), (*batch_shape, m, c) = arms.dtype, arms.shape, factors.a.shape
    rows, prior = math.prod(batch_shape), prior.reshape(-1, A)
    scale = form.scale.to(dtype).reshape(-1).expand(d).contiguous()
    one = torch.ones(1, dtype=dtype, device=arms.device)
    outputscale = one if form.outputscale is None else form.outputscale.to(dtype).reshape(1)
    # Arms and points are shifted by the same number: its rounding would be a distance between an arm and itself.
    centre = points.reshape(-1, d).mean(dim=0).to(dtype)
    own = ((points - centre.to(points.dtype)).to(dtype) * scale).contiguous()
    small = dtype == torch.float64 and _shared(arms.device) < _SHARED
    columns, block, wide, warps, stages = _SMALL if small else _SHAPES[dtype]
    which = {
        "D": d,
        "FEATURES": max(_FEATURES, 1 << (d - 1).bit_length()),
        "BY_PRODUCT": by_product,
        "ORDER": 0 if form.nu is None else round(2 * form.nu),
        "SHAPE": 0 if factors.lower is None else -1 if factors.lower else 1,
    }
    key = (arms.device, dtype, *which.values())
    if key in _refused:
        return False
    try:
        with torch.cuda.device(arms.device) if arms.is_cuda else nullcontext():
            _sweep[-(-A // wide), rows](
                arms, own, scale, centre, factors.weights.to(dtype).contiguous(), prior, prior.stride(0), prior.stride(1),
                outputscale, leverage, channels, A, m, c, **which, PRECISION=_precision(arms), COLUMNS=columns, POINTS=block,
                ARMS=wide, num_warps=warps, num_stages=stages,
            )  # fmt: skip
    except torch.OutOfMemoryError:
        return False
    except _FAILURES as error:
        _refused.add(key)
        issue(
            [
                f"Triton cannot run the kernel of a sweep ({error}); PyTorch's own operations are used, which take longer. "
                "Triton needs a C compiler and Python's headers; TORCHBANDITS_FUSED=0 in the environment turns the kernel off."
            ]
        )
        return False
    return True


@cache
def _shared(device: torch.device) -> int:
    """Bytes of shared memory that a block may have; those of the smallest cards where PyTorch does not know."""
    if device.type != "cuda":
        return _SHARED
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 << 10))
