"""Product of an upper triangular matrix with many columns, at nearly half the multiplications of the full product."""

from __future__ import annotations

import torch
from torch import Tensor

# Diagonal blocks of this size are multiplied in full, zeros included, because smaller products run below the rate of the
# machine.
LEAF = 32
# On a device the rows are multiplied in at most four stripes, of at least about this many rows: only large products run at
# the rate of the machine, and every product is a launch.
STRIPE, _STRIPES = 128, 4
# Stripes begin at multiples of this, the size of the tiles in which a device multiplies.
_TILE = 64


def matmul_into(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """`left @ right`, written to `out`. For one dimension of batch rows, `matmul` would copy its result."""
    return (torch.bmm if left.dim() == right.dim() == 3 else torch.matmul)(left, right, out=out)


def triangular_product(weights: Tensor, columns: Tensor, out: Tensor, dense: int) -> Tensor:
    r"""`weights @ columns`, where the weights after the first `dense` rows are an upper triangle.

    The rows are halved recursively: the block to the right of each upper half is a plain product of matrices that are as square
    as possible, which runs at the rate of the full product. Products of narrow stripes would not.

    .. math:: \begin{pmatrix} W_{11} & W_{12} \\ 0 & W_{22} \end{pmatrix} \begin{pmatrix} K_1 \\ K_2 \end{pmatrix}
              = \begin{pmatrix} W_{11} K_1 + W_{12} K_2 \\ W_{22} K_2 \end{pmatrix}

    Args:
        weights: `batch_shape x (dense + m) x m`.
        columns: `batch_shape x m x n`, of the same batch shape (at most one dimension).
        out: `batch_shape x (dense + m) x n`, overwritten.
        dense: Number of full rows at the top.

    Returns:
        `out`.

    Cost: m² n (1 + 64/m) + 2 dense m n operations, against 2 (dense + m) m n of the full product. On a device the
    rows are cut into stripes, with m² n (1 + 1/4) operations for four of them.
    """
    if out.device.type != "cpu":
        return _in_stripes(weights, columns, out, dense)
    _product(weights, columns, out, dense, 0, columns.shape[-2], top=True)
    return out


def _in_stripes(weights: Tensor, columns: Tensor, out: Tensor, dense: int) -> Tensor:
    """`triangular_product` by one product for every stripe of rows, with the columns that its first row needs."""
    m = columns.shape[-2]
    total, number = dense + m, max(1, min(_STRIPES, -(-m // STRIPE)))
    height = max(1, total // number // _TILE) * _TILE
    begins = [0, *(place * height for place in range(1, number))]
    for begin, end in zip(begins, [*begins[1:], total], strict=True):
        left = max(0, begin - dense)
        matmul_into(weights[..., begin:end, left:], columns[..., left:, :], out[..., begin:end, :])
    return out


def _product(weights: Tensor, columns: Tensor, out: Tensor, dense: int, first: int, last: int, *, top: bool) -> None:
    """Write the product of some rows of the triangle (and of the dense rows above it if `top`) with the columns of the same
    numbers to `out`."""
    begin = 0 if top else dense + first
    if last - first <= LEAF:
        own, used = slice(begin, dense + last), slice(first, last)
        torch.matmul(weights[..., own, used], columns[..., used, :], out=out[..., own, :])
        return
    half = (first + last) // 2
    _product(weights, columns, out, dense, first, half, top=top)
    _product(weights, columns, out, dense, half, last, top=False)
    own, used = slice(begin, dense + half), slice(half, last)
    target, factors = out[..., own, :], (weights[..., own, used], columns[..., used, :])
    target.addmm_(*factors) if out.dim() == 2 else target.baddbmm_(*factors)
