"""Rewards by the block in which they were measured, such as a plate or a day, and their totals without the blocks' shifts."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.types import Picks

COLUMNS = ("row", "block", "count", "sum", "deviations", "shift")
"""Columns of the cells: the row of the statistics (−1 where padded), the block (−1 for none), the number of rewards, their sum
and their squared deviations from their average, as measured, and the shift that is subtracted from each of them."""


def cells_of(rows: Picks, block: Tensor, counts: Tensor, sums: Tensor, deviations: Tensor) -> Tensor:
    """Cells without shifts, `batch_shape x c x 6`, float64; rows −1 and cells without rewards are padding."""
    row = rows.masked_fill(counts <= 0, -1)
    columns = (row, block, counts, sums, deviations, torch.zeros_like(counts))
    return torch.stack([column.double().expand(rows.shape) for column in columns], dim=-1)


def unshifted(cells: Tensor, size: int) -> Tensor:
    """Totals of `size` rows, `batch_shape x size x 3` (sum, sum of squares, squared deviations), of the rewards in `cells` less
    their shifts. Cost O(size + c)."""
    row, _, n, s, deviations, shift = cells.unbind(dim=-1)
    there, slot = row >= 0, row.clamp_min(0).long()
    n, deviations = torch.where(there, n, 0.0), torch.where(there, deviations, 0.0)
    average = torch.where(there, s / n.clamp_min(1e-300) - shift, 0.0)
    none = n.new_zeros(*row.shape[:-1], size)
    count, sums = none.scatter_add(-1, slot, n), none.scatter_add(-1, slot, n * average)
    apart = average - (sums / count.clamp_min(1e-300)).gather(-1, slot)
    squares = none.scatter_add(-1, slot, deviations + n * average.square())
    return torch.stack([sums, squares, none.scatter_add(-1, slot, deviations + n * apart.square())], dim=-1)


def shifts_by_block(cells: Tensor) -> Tensor:
    """The shift of each block of one batch row (`c x 6`), `B`, in the order of their numbers."""
    told = cells[(cells[:, 0] >= 0) & (cells[:, 1] >= 0)]
    blocks, group = told[:, 1].unique(return_inverse=True)
    # All cells of a block have the same shift.
    return torch.zeros_like(blocks).scatter(0, group, told[:, 5])
