"""Kernel columns of pulled points at the places of a growing list. Every kernel value is evaluated only once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchbandits.arms.rows import ArmRows
from torchbandits.kernels import StationaryColumns, kernel_matrix
from torchbandits.posteriors import GaussianProcess

# Up to this number of points, columns from coordinate differences are faster than the overhead of GPyTorch.
FEW = 16


class PlaceColumns:
    """k(x_j, ·) at every place for each distinct point x_j of a posterior. Every kernel value is evaluated only once.

    Lines and columns of the block that are not valid hold arbitrary values. Valid entries are never overwritten.
    """

    def __init__(self, memory_budget: int) -> None:
        self._memory_budget = memory_budget
        self.forget()

    def forget(self) -> None:
        """Drop all values."""
        # Of shape B x (capacity + 1) x (capacity + 1); the last line and column are spare.
        self._block: Tensor | None = None
        # Numbers of valid lines and columns of each batch row.
        self._have: tuple[Tensor, Tensor] | None = None

    def snapshot(self) -> Callable[[], None]:
        """Function that restores the current range of valid entries."""
        block, have = self._block, self._have

        def restore() -> None:
            self._block, self._have = block, have

        return restore

    def fill(self, posterior: GaussianProcess, rows: ArmRows, arm: Tensor) -> Tensor | None:
        """Evaluate the missing values and return the block, or None if it does not fit the budget. Cost O(d) per new value."""
        statistics, kernel, B = posterior.statistics, posterior.embedded_kernel, arm.shape[:-1].numel()
        u, R = statistics.size, arm.shape[-1]
        if 8 * B * u * R > self._memory_budget or not u or not R:
            self.forget()
            return None
        lines, columns = statistics.num_rows.reshape(-1).to(arm.device), (arm >= 0).sum(dim=-1).reshape(-1)
        had_lines, had_columns = self._have or (torch.zeros_like(lines), torch.zeros_like(columns))
        if bool((had_lines == lines).all() & (had_columns == columns).all()) and self._block is not None:
            return self._block
        block = self._reserved(B, u, R, lines.device)
        points, known = statistics.points, int(had_lines.max())
        new, slot = _fresh(had_columns, columns, block.shape[-1] - 1)
        if known and new.shape[-1]:
            index = arm.gather(-1, new.reshape(*arm.shape[:-1], -1).clamp_max(R - 1))
            K = kernel_matrix(kernel, points[..., :known, :], rows.points(index).double())
            block[:, :known].scatter_(2, slot.unsqueeze(1).expand(-1, known, -1), K.reshape(B, known, -1))
        new, slot = _fresh(had_lines, lines, block.shape[-2] - 1)
        if new.shape[-1]:
            at = new.clamp_max(u - 1).reshape(*arm.shape[:-1], -1, 1)
            x = points.gather(-2, at.expand(*at.shape[:-1], points.shape[-1]))
            everywhere = rows.points(arm).double()
            if new.shape[-1] <= FEW and StationaryColumns.supports(everywhere, kernel):
                K = StationaryColumns(everywhere, kernel)(x)
            else:
                K = kernel_matrix(kernel, x, everywhere)
            block[..., :R].scatter_(1, slot.unsqueeze(-1).expand(-1, -1, R), K.reshape(B, -1, R))
        self._have = lines, columns
        return block

    def _reserved(self, batch: int, lines: int, columns: int, device: torch.device) -> Tensor:
        """The block with capacity for this many lines and columns, and one spare line and column."""
        old = self._block
        if old is None or old.shape[-2] <= lines or old.shape[-1] <= columns:
            had = (0, 0) if old is None else (old.shape[-2] - 1, old.shape[-1] - 1)
            size = [h if h >= n else max(n + 32, 2 * h) for h, n in zip(had, (lines, columns), strict=True)]
            self._block = torch.zeros(batch, size[0] + 1, size[1] + 1, dtype=torch.float64, device=device)
            if old is not None:
                self._block[:, : had[0], : had[1]] = old[:, :-1, :-1]
        assert self._block is not None
        return self._block


def _fresh(have: Tensor, need: Tensor, spare: int) -> tuple[Tensor, Tensor]:
    """Integers from `have` to `need` (both `B`), padded, and the same with `spare` where padded, `B x p`."""
    new = have.unsqueeze(-1) + torch.arange(int((need - have).max()), device=have.device)
    return new, torch.where(new < need.unsqueeze(-1), new, spare)


def lines_at(block: Tensor, rows: Tensor, part: slice) -> Tensor:
    """Lines of a block (`B x n x n'`) by rows (`batch_shape x m`), at a slice of the columns, `B m x chunk`."""
    batch = torch.arange(block.shape[0], device=rows.device).unsqueeze(-1) * block.shape[-2]
    flat = (rows.reshape(block.shape[0], -1) + batch).reshape(-1)
    return block.reshape(-1, block.shape[-1])[:, part].index_select(0, flat)


def between(block: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    """Entries of a block by rows (`batch_shape x m`) and places (`batch_shape x p`), `B x m x p`."""
    B = block.shape[0]
    batch = torch.arange(B, device=rows.device).unsqueeze(-1) * block.shape[-2]
    start = (rows.reshape(B, -1) + batch) * block.shape[-1]
    return block.reshape(-1)[start.unsqueeze(-1) + places.reshape(B, 1, -1)]
