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


def staircase_product(weights: Tensor, columns: Tensor, out: Tensor, dense: int, starts: list[int]) -> Tensor:
    r"""`weights @ columns`, where row i of the weights, after the first `dense` rows, is zero before column `starts[i]`.

    The rows are halved recursively: the block to the right of each upper half is a plain product of matrices that are as square
    as possible, which runs at the rate of the full product. Products of narrow stripes would not.

    .. math:: \begin{pmatrix} W_{11} & W_{12} \\ 0 & W_{22} \end{pmatrix} \begin{pmatrix} K_1 \\ K_2 \end{pmatrix}
              = \begin{pmatrix} W_{11} K_1 + W_{12} K_2 \\ W_{22} K_2 \end{pmatrix}

    Args:
        weights: `batch_shape x (dense + m) x s`.
        columns: `batch_shape x s x n`, of the same batch shape (at most one dimension).
        out: `batch_shape x (dense + m) x n`, overwritten.
        dense: Number of full rows at the top.
        starts: m column indices in non-decreasing order.

    Returns:
        `out`.

    Cost: m² n (1 + 64/m) + 2 dense m n operations for m = s, against 2 (dense + m) m n of the full product. On a device the
    rows are cut into stripes, with m² n (1 + 1/4) operations for four of them.
    """
    if out.device.type != "cpu":
        return _in_stripes(weights, columns, out, dense, starts)
    _product(weights, columns, out, dense, starts, (0, len(starts)), (0, columns.shape[-2]), True)
    return out


def _in_stripes(weights: Tensor, columns: Tensor, out: Tensor, dense: int, starts: list[int]) -> Tensor:
    """`staircase_product` by one product for every stripe of rows, with the columns that its first row needs."""
    total, number = dense + len(starts), max(1, min(_STRIPES, -(-len(starts) // STRIPE)))
    height = max(1, total // number // _TILE) * _TILE
    begins = [0, *(place * height for place in range(1, number))]
    for begin, end in zip(begins, [*begins[1:], total], strict=True):
        left = 0 if begin <= dense else starts[begin - dense]
        factors = weights[..., begin:end, left:], columns[..., left:, :]
        # For one dimension of batch rows, `matmul` would copy its result.
        (torch.bmm if out.dim() == 3 else torch.matmul)(*factors, out=out[..., begin:end, :])
    return out


def _product(
    weights: Tensor,
    columns: Tensor,
    out: Tensor,
    dense: int,
    starts: list[int],
    rows: tuple[int, int],
    places: tuple[int, int],
    top: bool,
) -> None:
    """Write the product of some rows of the triangle (and of the dense rows above it if `top`) with some columns to `out`."""
    (first, last), (left, right) = rows, places
    begin = 0 if top else dense + first
    if last - first <= LEAF:
        own, used = slice(begin, dense + last), slice(left, right)
        torch.matmul(weights[..., own, used], columns[..., used, :], out=out[..., own, :])
        return
    half = (first + last) // 2
    middle = starts[half]
    _product(weights, columns, out, dense, starts, (first, half), (left, middle), top)
    _product(weights, columns, out, dense, starts, (half, last), (middle, right), False)
    own, used = slice(begin, dense + half), slice(middle, right)
    target, factors = out[..., own, :], (weights[..., own, used], columns[..., used, :])
    target.addmm_(*factors) if out.dim() == 2 else target.baddbmm_(*factors)
