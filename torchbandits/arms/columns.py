"""Kernel columns of pulled arms: computed once, kept while they fit a memory budget, recomputed in chunks beyond it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchbandits.arms.rows import ArmRows
from torchbandits.embeddings import StationaryColumns, evaluate_kernel, kernel_diagonal
from torchbandits.posteriors import GaussianProcess
from torchbandits.types import Picks, Points

_TRIANGULAR = 48  # from this dictionary size on, leaving out zeros is worth four products instead of one
_CHUNK_BYTES = 8 << 20  # a block of columns that stays in cache while it is multiplied and squared


class KernelColumns:
    """k(x_j, ·) at every arm, for each distinct point x_j of a posterior.

    Columns are evaluated one point at a time: their values then do not depend on which points came together, and GPyTorch,
    which centres on the first argument, loses nothing to cancellation near the point.

    Args:
        rows: The arms.
        posterior: Owner of the points and the kernel.
        memory_budget: Bytes that kept columns may take.
    """

    def __init__(self, rows: ArmRows, posterior: GaussianProcess, memory_budget: int) -> None:
        self._rows, self._posterior, self._memory_budget = rows, posterior, memory_budget
        self._block: Tensor | None = None  # batch_shape x capacity x A
        self._filled: Tensor | None = None  # batch_shape, rows whose columns are at hand
        self._stationary: StationaryColumns | None = None
        self._narrow: Any = None  # the kernel in the arms' dtype, where that is not float64
        self.diagonal = kernel_diagonal(self._kernel(), rows.arms).double().clone()

    def _kernel(self) -> Any:
        dtype = self._rows.arms.dtype
        if dtype == torch.float64:
            return self._posterior.kernel
        if self._narrow is None:
            self._narrow = copy.deepcopy(self._posterior.kernel).to(dtype)
        return self._narrow

    @property
    def complete(self) -> bool:
        """Whether the column of every distinct point is at hand."""
        return self._filled is not None and bool((self._filled == self._posterior.statistics.num_rows).all())

    def evaluate(self, points: Points) -> Tensor:
        """k(points, arms), `batch_shape x p x A`, in the arms' dtype, one point at a time. Cost O(A d p)."""
        arms, kernel = self._rows.arms, self._kernel()
        if points.numel() and StationaryColumns.supports(arms, kernel):
            if self._stationary is None:
                self._stationary = StationaryColumns(arms, kernel)
            lines = [self._stationary(x) for x in points.to(arms.dtype).reshape(-1, points.shape[-1])]
            return torch.stack(lines).reshape(*points.shape[:-1], len(arms))
        columns = [evaluate_kernel(kernel, x, arms) for x in points.to(arms.dtype).split(1, dim=-2)]
        if not columns:
            return evaluate_kernel(kernel, points.to(arms.dtype), arms)
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-2)

    def fill(self) -> bool:
        """Extend the columns to every distinct point; False where they do not fit the budget."""
        statistics, arms = self._posterior.statistics, self._rows.arms
        size, batch = statistics.size, statistics.num_rows.shape
        if size * batch.numel() * self._rows.num_arms * arms.element_size() > self._memory_budget:
            self.forget()
            return False
        if self.complete:
            return True
        # Rows of a batch append at different places: fill from the first place that any of them lacks.
        start = 0
        if self._filled is not None:
            start = int(torch.where(self._filled < statistics.num_rows, self._filled, size).min())
        if self._block is None or self._block.shape[-2] < size:
            grown = arms.new_empty(*batch, max(size + 32, min(2 * start, size + 256)), self._rows.num_arms)
            if self._block is not None:
                grown[..., :start, :] = self._block[..., :start, :]
            self._block = grown
        fresh = self.evaluate(statistics.points[..., start:size, :])
        self._block[..., start:size, :] = self._with_own(fresh, self._rows.arm_of_row[..., start:size])
        self._filled = statistics.num_rows
        return True

    def _with_own(self, block: Tensor, arm: Tensor) -> Tensor:
        """The columns with k(x_j, x_j) itself at the arm's own place."""
        slot = arm.clamp_min(0)
        own = self.diagonal.expand(*arm.shape[:-1], -1).gather(-1, slot).to(block.dtype)
        place = slot.unsqueeze(-1)
        return block.scatter(-1, place, torch.where(arm.unsqueeze(-1) >= 0, own.unsqueeze(-1), block.gather(-1, place)))

    def renew(self) -> None:
        """Drop what was computed with an earlier kernel. Cost O(A d)."""
        self.forget()
        self.diagonal = kernel_diagonal(self._kernel(), self._rows.arms).double().clone()

    def forget(self) -> None:
        """Drop the columns; they are computed again when needed."""
        self._block = self._filled = self._narrow = self._stationary = None

    def at(self, rows: Tensor, part: slice) -> Tensor:
        """Columns of rows (`batch_shape x m`) at some arms, `batch_shape x m x chunk`."""
        assert self._block is not None
        batch = torch.arange(rows.shape[:-1].numel(), device=rows.device) * self._block.shape[-2]
        flat = (rows.reshape(-1, rows.shape[-1]) + batch.unsqueeze(-1)).reshape(-1)
        block = self._block.reshape(-1, self._rows.num_arms)[:, part].index_select(0, flat)
        return block.reshape(*rows.shape, block.shape[-1])

    def between(self, rows: Tensor, index: Picks) -> Tensor:
        """k between rows (`batch_shape x m`) and arms (`batch_shape x p`), `batch_shape x m x p`, read off the columns."""
        assert self._block is not None
        batch = torch.arange(rows.shape[:-1].numel(), device=rows.device).reshape(*rows.shape[:-1], 1)
        start = (rows + batch * self._block.shape[-2]) * self._rows.num_arms
        return self._block.reshape(-1)[start.unsqueeze(-1) + index.clamp_min(0).unsqueeze(-2)]

    def gram(self) -> Any:
        """`between` the given rows and all rows, where every point is an arm and float64; None where it is not."""
        arm, mask = self._rows.arm_of_row, self._posterior.statistics.mask
        exact = self.complete and self._rows.arms.dtype == torch.float64 and bool(((arm >= 0) == mask).all())
        return (lambda rows: self.between(rows, arm)) if exact else None

    def of_arms(self, index: Picks) -> Tensor:
        """k(x_j, ·) of arms (`batch_shape x p`) at every arm, `batch_shape x p x A`: read where all were pulled before."""
        row = self._rows.row_of_arm.gather(-1, index.clamp_min(0))
        if self.complete and bool((row >= 0).all()):
            return self.at(row, slice(None))
        return self._with_own(self.evaluate(self._rows.points(index)), index)

    def products(self, weights: Tensor, rows: Tensor, dense: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """`weights` (`batch_shape x r x m`) times the columns of rows (`batch_shape x m`), chunk by chunk of the arms.

        The chunks of columns stay in cache. Zero weights for the rows left out save the copy of a selection where it
        holds most of the rows. Where only the first `dense` rows of the weights are full and the others upper triangular,
        the zeros are left out, a few blocks of rows at a time.
        """
        statistics, arms, m = self._posterior.statistics, self._rows.arms, rows.shape[-1]
        size, complete = statistics.size, self.complete
        most = complete and 2 * m >= size
        if most:
            spread = weights.new_zeros(*weights.shape[:-1], size)
            weights = spread.scatter_add(-1, rows.unsqueeze(-2).expand_as(weights), weights)
        blocks = [(slice(None), slice(None))]
        if dense is not None and weights.dim() == 2 and m >= _TRIANGULAR:
            ends = [0, *(dense + (m * i) // 4 for i in (1, 2, 3)), dense + m]
            firsts = [0, *(end - dense for end in ends[1:4])]
            firsts = [int(rows[f]) if most else f for f in firsts[1:]]
            blocks = [(slice(a, b), slice(f, None)) for a, b, f in zip(ends[:4], ends[1:], [0, *firsts], strict=True)]
        slot = rows.unsqueeze(-1).expand(*rows.shape, arms.shape[-1])
        points = None if complete else statistics.points.gather(-2, slot).to(arms.dtype)
        step = max(256, _CHUNK_BYTES // (8 * max(1, m) * max(1, rows.shape[:-1].numel())))
        for start in range(0, self._rows.num_arms, step):
            part = slice(start, min(start + step, self._rows.num_arms))
            if points is not None:
                K_mc = evaluate_kernel(self._kernel(), points, arms[..., part, :])
            elif most:
                assert self._block is not None
                K_mc = self._block[..., :size, part]
            else:
                K_mc = self.at(rows, part)
            products = [weights[..., own, used] @ K_mc[..., used, :] for own, used in blocks]
            yield part, products[0] if len(products) == 1 else torch.cat(products, dim=-2)
