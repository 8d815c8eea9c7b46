"""Kernel columns of pulled arms: computed once, kept while they fit a memory budget, recomputed in chunks beyond it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchbandits.arms.rows import ArmRows
from torchbandits.embeddings import Spectrum, StationaryBlocks, StationaryColumns, evaluate_kernel, kernel_diagonal
from torchbandits.linalg import LEAF, staircase_product
from torchbandits.posteriors import GaussianProcess
from torchbandits.sources import InMemory
from torchbandits.sources.base import parts
from torchbandits.types import Picks, Points

_LEFT_OUT = 32  # so many rows of zero weights cost less than the copy of a selection
_CHUNK_BYTES = 8 << 20  # a block of columns that stays in cache while it is multiplied and squared
_DEVICE_BYTES = 256 << 20  # the same on a GPU, whose launches want work
_READ = 1 << 16  # arms read together for one column
_LARGE_BYTES = 64 << 20  # kept columns beyond this get all of their budget at once: growing would hold them twice


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
        self.diagonal = self._diagonal()

    def _diagonal(self) -> Tensor:
        """k(x, x) of every arm, `A` or `batch_shape x A`, float64: one number, expanded, for a stationary kernel."""
        source, kernel = self._rows.source, self._kernel()
        if Spectrum.of(kernel) is not None:
            one = kernel_diagonal(kernel, source.chunk(slice(0, 1))).double()
            return one.expand(*one.shape[:-1], source.num_arms)
        if isinstance(source, InMemory):
            return kernel_diagonal(kernel, source.arms).double().clone()
        return torch.cat([kernel_diagonal(kernel, arms).double() for _, arms in source.chunks(_READ)], dim=-1)

    def _kernel(self) -> Any:
        dtype = self._rows.source.dtype
        if dtype == torch.float64:
            return self._posterior.kernel
        if self._narrow is None:
            self._narrow = copy.deepcopy(self._posterior.kernel).to(dtype)
        return self._narrow

    @property
    def complete(self) -> bool:
        """Whether the column of every distinct point is at hand."""
        return self._filled is not None and bool((self._filled == self._posterior.statistics.num_rows).all())

    @property
    def readable(self) -> bool:
        """Whether the column of every distinct point is at hand, at every arm."""
        return self.complete and not self._rows.sharded

    def evaluate(self, points: Points) -> Tensor:
        """k(points, arms), `batch_shape x p x A`, in the arms' dtype, one point at a time. Cost O(A d p)."""
        source, kernel, points = self._rows.source, self._kernel(), points.to(self._rows.source.dtype)
        if not isinstance(source, InMemory) or source.num_arms > _READ:  # what a chunk needs stays in cache
            return torch.cat([self._of(points, arms) for _, arms in source.chunks(_READ)], dim=-1)
        if points.numel() and StationaryColumns.supports(source.arms, kernel):
            if self._stationary is None:
                self._stationary = StationaryColumns(source.arms, kernel)
            return self._lines(self._stationary, points)
        return self._of(points, source.arms)

    def _of(self, points: Points, arms: Points) -> Tensor:
        """k(points, arms), `batch_shape x p x n`, one point at a time."""
        kernel = self._kernel()
        if points.numel() and StationaryColumns.supports(arms, kernel):
            return self._lines(StationaryColumns(arms, kernel), points)
        columns = [evaluate_kernel(kernel, x, arms) for x in points.split(1, dim=-2)]
        if not columns:
            return evaluate_kernel(kernel, points, arms)
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-2)

    def _lines(self, stationary: StationaryColumns, points: Points) -> Tensor:
        lines = [stationary(x) for x in points.reshape(-1, points.shape[-1])]
        return torch.stack(lines).reshape(*points.shape[:-1], -1)

    def fill(self) -> bool:
        """Extend the columns to every distinct point; False where they do not fit the budget."""
        statistics, source = self._posterior.statistics, self._rows.source
        size, batch = statistics.size, statistics.num_rows.shape
        one = batch.numel() * source.num_arms * source.dtype.itemsize
        if size * one > self._memory_budget:
            self.forget()
            return False
        if self.complete:
            return True
        # Rows of a batch append at different places: fill from the first place that any of them lacks.
        start = 0
        if self._filled is not None:
            start = int(torch.where(self._filled < statistics.num_rows, self._filled, size).min())
        if self._block is None or self._block.shape[-2] < size:
            capacity = max(size + 32, min(2 * start, size + 256))
            if capacity * one > _LARGE_BYTES:
                capacity = max(size, self._memory_budget // one)
            grown = torch.empty(*batch, capacity, source.num_arms, dtype=source.dtype, device=source.device)
            if self._block is not None:
                grown[..., :start, :] = self._block[..., :start, :]
            self._block = grown
        step = max(1, _LARGE_BYTES // one)
        for first in range(start, size, step):
            new = slice(first, min(first + step, size))
            fresh = self.evaluate(statistics.points[..., new, :])
            self._block[..., new, :] = self._with_own(fresh, self._rows.arm_of_row[..., new])
        self._filled = statistics.num_rows
        return True

    def _with_own(self, block: Tensor, arm: Tensor) -> Tensor:
        """The columns with k(x_j, x_j) itself at the arm's own place."""
        here = self._rows.across.places(arm)
        slot = here.clamp_min(0)
        own = self.diagonal.expand(*arm.shape[:-1], -1).gather(-1, slot).to(block.dtype)
        place = slot.unsqueeze(-1)
        return block.scatter(-1, place, torch.where(here.unsqueeze(-1) >= 0, own.unsqueeze(-1), block.gather(-1, place)))

    def renew(self) -> None:
        """Drop what was computed with an earlier kernel. Cost O(A d)."""
        self.forget()
        self.diagonal = self._diagonal()

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
        exact = self.readable and self._rows.source.dtype == torch.float64 and bool(((arm >= 0) == mask).all())
        return (lambda rows: self.between(rows, arm)) if exact else None

    def of_arms(self, index: Picks) -> Tensor:
        """k(x_j, ·) of arms (`batch_shape x p`) at every arm, `batch_shape x p x A`: read where all were pulled before."""
        row, points = self._rows.row_of(index), self._rows.points(index)
        if self.complete and bool((row >= 0).all()):
            return self.at(row, slice(None))
        return self._with_own(self.evaluate(points), index)

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
        wanted = _CHUNK_BYTES if weights.device.type == "cpu" else _DEVICE_BYTES
        A, step = self._rows.num_arms, max(256, wanted // (8 * max(1, m) * max(1, batch.numel())))
        blocks = None if self.complete else self._blocks(rows, min(step, A))
        products = weights.new_empty(*weights.shape[:-1], min(step, A))
        for part, arms in self._pieces(step):
            if blocks is not None:
                assert arms is not None
                K_mc = blocks(arms)
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

    def _blocks(self, rows: Tensor, most: int) -> Callable[[Tensor], Tensor]:
        """Columns of rows (`batch_shape x m`) as a function of at most so many arms, `batch_shape x m x n`, evaluated anew."""
        points, kernel = self._posterior.statistics.points, self._kernel()
        points = points.gather(-2, rows.unsqueeze(-1).expand(*rows.shape, points.shape[-1])).to(self._rows.source.dtype)
        if not StationaryBlocks.supports(kernel):
            return lambda arms: evaluate_kernel(kernel, points, arms)
        blocks, out = StationaryBlocks(points, kernel), points.new_empty(*rows.shape, most)
        return lambda arms: blocks(arms, out[..., : arms.shape[-2]])

    def _pieces(self, step: int) -> Iterator[tuple[slice, Tensor | None]]:
        """Which arms, and the arms themselves where columns are evaluated from them: they are not read otherwise."""
        if not self.complete:
            return self._rows.source.chunks(step)
        return ((part, None) for part in parts(0, self._rows.num_arms, step))
