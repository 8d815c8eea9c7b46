"""Kernel columns of pulled arms: computed once, kept while they fit a memory budget, recomputed in chunks beyond it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchbandits.arms.rows import ArmRows
from torchbandits.embeddings import StationaryBlocks, StationaryColumns, evaluate_kernel, kernel_diagonal
from torchbandits.linalg import LEAF, staircase_product
from torchbandits.posteriors import GaussianProcess
from torchbandits.types import Picks, Points

_LEFT_OUT = 32  # so many rows of zero weights cost less than the copy of a selection
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

        The chunks of columns stay in cache. Zero weights for the rows left out save the copy of a selection where those are
        few. Where only the first `dense` rows of the weights are full and the others upper triangular, the zeros are left
        out.

        Yields:
            Which arms, and their products, which the next chunk overwrites.
        """
        statistics, m = self._posterior.statistics, rows.shape[-1]
        size, batch = statistics.size, rows.shape[:-1]
        spread = self.complete and size - m <= _LEFT_OUT
        starts = None if dense is None or m <= LEAF or rows.dim() > 2 else list(range(m))
        if spread:
            weights = weights.new_zeros(*weights.shape[:-1], size).scatter_add(
                -1, rows.unsqueeze(-2).expand_as(weights), weights
            )
            starts = None if starts is None else rows.reshape(-1, m).amin(dim=0).tolist()
        A, step = self._rows.num_arms, max(256, _CHUNK_BYTES // (8 * max(1, m) * max(1, batch.numel())))
        blocks = None if self.complete else self._blocks(rows, min(step, A))
        products = weights.new_empty(*weights.shape[:-1], min(step, A))
        for start in range(0, A, step):
            part = slice(start, min(start + step, A))
            if blocks is not None:
                K_mc = blocks(part)
            elif spread:
                assert self._block is not None
                K_mc = self._block[..., :size, part]
            else:
                K_mc = self.at(rows, part)
            out = products[..., : K_mc.shape[-1]]
            if starts is not None and dense is not None:
                staircase_product(weights, K_mc, out, dense, starts)
            else:
                torch.matmul(weights, K_mc, out=out)
            yield part, out

    def _blocks(self, rows: Tensor, most: int) -> Callable[[slice], Tensor]:
        """Columns of rows (`batch_shape x m`) at at most so many arms, evaluated anew."""
        points, arms, kernel = self._posterior.statistics.points, self._rows.arms, self._kernel()
        points = points.gather(-2, rows.unsqueeze(-1).expand(*rows.shape, points.shape[-1])).to(arms.dtype)
        if not StationaryBlocks.supports(kernel):
            return lambda part: evaluate_kernel(kernel, points, arms[..., part, :])
        blocks, out = StationaryBlocks(points, kernel), arms.new_empty(*rows.shape, most)
        return lambda part: blocks(chunk := arms[..., part, :], out[..., : chunk.shape[-2]])
