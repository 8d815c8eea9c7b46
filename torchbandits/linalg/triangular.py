"""An upper triangular matrix times many columns: nearly half of the multiplications of the full product are not made."""

from __future__ import annotations

import torch
from torch import Tensor

LEAF = 32  # a square of zeros and numbers of this size is multiplied whole: smaller products run below the machine's rate


def staircase_product(weights: Tensor, columns: Tensor, out: Tensor, dense: int, starts: list[int]) -> Tensor:
    r"""`weights @ columns`, where row i of the weights, after the first `dense` rows, has zeros before place `starts[i]`.

    The rows are halved again and again: the block on the right of each upper half is a plain product, of squares as large
    as can be, which runs at the rate of the full product where stripes do not.

    .. math:: \begin{pmatrix} W_{11} & W_{12} \\ 0 & W_{22} \end{pmatrix} \begin{pmatrix} K_1 \\ K_2 \end{pmatrix}
              = \begin{pmatrix} W_{11} K_1 + W_{12} K_2 \\ W_{22} K_2 \end{pmatrix}

    Args:
        weights: `batch_shape x (dense + m) x s`.
        columns: `batch_shape x s x n`, of the same batch shape (one dimension at most).
        out: `batch_shape x (dense + m) x n`, written to.
        dense: Rows at the top that are full.
        starts: m places that do not decrease.

    Returns:
        `out`.

    Cost: m² n (1 + 64/m) + 2 dense m n operations for m = s, against 2 (dense + m) m n of the full product.
    """
    _product(weights, columns, out, dense, starts, (0, len(starts)), (0, columns.shape[-2]), True)
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
    """The product of rows (of the triangle; with the dense ones above where `top`) and columns at places, written to out."""
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
