"""Kernel columns of the dictionary's arms: computed once and kept within a memory budget, recomputed in chunks beyond it."""

from __future__ import annotations

import copy
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbandits.arms.kept_columns import KeptColumns
from torchbandits.arms.ranks import Shard
from torchbandits.arms.rows import ArmRows
from torchbandits.budget import halved
from torchbandits.kernels import ScaledArms, Stationary, StationaryBlocks, StationaryColumns, evaluate_kernel, kernel_diagonal
from torchbandits.linalg import LEAF, STRIPE, matmul_into, triangular_product
from torchbandits.posteriors import GaussianProcess, SweepFactors
from torchbandits.shapes import broadcast_shapes
from torchbandits.sources import InMemory
from torchbandits.sources.base import parts
from torchbandits.sources.packed import PackedArms
from torchbandits.tanimoto import TanimotoBlocks, tanimoto_scale
from torchbandits.threads import MANY_PRODUCTS, side_by_side
from torchbandits.transfers import to_device
from torchbandits.types import Picks, Points

# Whether sweeps on a device use one fused kernel where possible.
FUSED = os.environ.get("TORCHBANDITS_FUSED") != "0" and importlib.util.find_spec("triton") is not None
# Largest number of features for which it is used: it evaluates each kernel column several times.
FUSED_FEATURES = 64
# Size of a block of columns that stays in cache while it is multiplied and squared.
_CHUNK_BYTES = 8 << 20
# The same on a GPU, whose operations on a block should take longer than the host takes to send them.
_DEVICE_BYTES = 64 << 20
# Size of the columns that a GPU evaluates together, or reads where they are kept: there launches should be few and large.
_DEVICE_COLUMNS = 256 << 20
# Largest number of arms per chunk when a column is evaluated.
_READ = 1 << 16
# Number of arms from which the rows of a kernel are evaluated one after the other.
_LONG = 1 << 12
# Size of the features of such a chunk.
_READ_BYTES = 2 << 20
# Smallest number of arms in a chunk.
LEAST_ARMS = 256
# Size of the columns evaluated together.
_GROUP_BYTES = 64 << 20


class KernelColumns:
    """k(x_j, ·) at every arm, for distinct points x_j of a posterior; k without random effects for a sparse posterior.

    Columns are evaluated one point at a time. Their values then do not depend on the other points of a call, and GPyTorch,
    which centres inputs on the first argument, suffers no cancellation near the point.

    Args:
        rows: The arms.
        posterior: Owner of the points and the kernel.
        memory_budget: Bytes that kept columns may take.
    """

    def __init__(self, rows: ArmRows, posterior: GaussianProcess, memory_budget: int) -> None:
        self._rows, self._posterior, self._memory_budget = rows, posterior, memory_budget
        self._kept: KeptColumns | None = None
        self._stationary: StationaryColumns | None = None
        # On a device: the arms of this process in units of the lengthscale of an RBF or Matérn kernel.
        self._scaled: ScaledArms | None = None
        # The kernel in the arms' dtype, if that is not float64.
        self._narrow: Any = None
        # The smallest and the largest value of each feature, 2 x d.
        self._box: Tensor | None = None
        # The last rows of a dictionary, the arms of all rows, and the kernel between them, read off kept columns.
        self._read: tuple[Tensor, Tensor, Tensor] | None = None
        self.diagonal = self._diagonal()

    def _diagonal(self) -> Tensor:
        """k(x, x) of every arm, `A` or `batch_shape x A`, float64. For a stationary kernel one number is expanded."""
        source, kernel = self._rows.source, self._kernel()
        if Stationary.covers(kernel) or tanimoto_scale(kernel) is not None:
            one = kernel_diagonal(kernel, source.chunk(slice(0, 1))).double()
            return one.expand(*one.shape[:-1], source.num_arms)
        if isinstance(source, InMemory):
            return kernel_diagonal(kernel, source.arms).double().clone()
        return torch.cat([kernel_diagonal(kernel, arms).double() for _, arms in source.chunks(_READ)], dim=-1)

    def _kernel(self) -> Any:
        dtype = self._rows.source.dtype
        if dtype == torch.float64:
            return self._posterior.embedded_kernel
        if self._narrow is None:
            self._narrow = copy.deepcopy(self._posterior.embedded_kernel).to(dtype)
        return self._narrow

    def packed(self) -> PackedArms | None:
        """Arms whose packed words the kernel reads."""
        source = self._rows.source
        held = source.held if isinstance(source, Shard) else source
        return held if isinstance(held, PackedArms) and tanimoto_scale(self._kernel()) is not None else None

    def evaluate(self, points: Points) -> Tensor:
        """k(points, arms), `batch_shape x p x A`, in the arms' dtype, one point at a time. Cost O(A d p)."""
        source, kernel, points = self._rows.source, self._kernel(), points.to(self._rows.source.dtype)
        if (packed := self.packed()) is not None:
            shape = broadcast_shapes(points.shape[:-2], kernel.batch_shape)
            blocks = TanimotoBlocks(points, kernel, packed.packing)
            out = points.new_empty(*shape, points.shape[-2], packed.num_arms)
            for part, words in packed.packed(_READ):
                blocks(words, out[..., part])
            return out
        if source.device.type != "cpu":
            if (known := self.scaled()) is not None:
                return known.form.between_scaled(known.scaled(points), known.points)
            step = max(256, _DEVICE_COLUMNS // (source.dtype.itemsize * max(source.dim, points.shape[:-1].numel())))
            parts = [self._of(points, arms) for _, arms in source.chunks(step)]
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        # The chunk size keeps the distances and kernel values of a chunk in cache.
        if not isinstance(source, InMemory) or source.num_arms > _READ:
            step = min(_READ, max(256, _READ_BYTES // (source.dim * source.dtype.itemsize)))
            return torch.cat([self._of(points, arms) for _, arms in source.chunks(step)], dim=-1)
        if points.numel() and StationaryColumns.supports(source.arms, kernel):
            if self._stationary is None:
                self._stationary = StationaryColumns(source.arms, kernel)
            return self._lines(self._stationary, points)
        return self._of(points, source.arms)

    def scaled(self) -> ScaledArms | None:
        """Arms in memory on a device, in units of the lengthscale of an RBF or Matérn kernel; None elsewhere, and where other
        processes have arms."""
        return None if self._rows.sharded else self._own_scaled()

    def _own_scaled(self) -> ScaledArms | None:
        source = self._rows.source
        held = source.held if isinstance(source, Shard) else source
        if self._scaled is None and held.device.type != "cpu" and isinstance(held, InMemory):
            form = Stationary.of(self._kernel())
            # With random effects, arms that round to the same place must be told apart.
            self._scaled = None if form is None or form.effect is not None else ScaledArms.of(held.arms, form)
        return self._scaled

    def _of(self, points: Points, arms: Points) -> Tensor:
        """k(points, arms), `batch_shape x p x n`, one point at a time."""
        kernel = self._kernel()
        if arms.device.type != "cpu" and Stationary.covers(kernel):
            return evaluate_kernel(kernel, points, arms)
        if points.numel() and StationaryColumns.supports(arms, kernel):
            return self._lines(StationaryColumns(arms, kernel), points)
        rows = kernel.batch_shape
        if rows and arms.dim() == 2 and arms.shape[0] >= _LONG and arms.device.type == "cpu" and points.numel():
            shape = broadcast_shapes(points.shape[:-2], rows)
            if shape[-len(rows) :] == rows and Stationary.covers(kernel):
                return self._by_kernel(points.expand(*shape, *points.shape[-2:]), arms)
        columns = [evaluate_kernel(kernel, x, arms) for x in points.split(1, dim=-2)]
        if not columns:
            return evaluate_kernel(kernel, points, arms)
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-2)

    def _by_kernel(self, points: Points, arms: Points) -> Tensor:
        """`_of` for a stationary kernel with batch rows and points `... x kernel_rows x p x d`: one row of the kernel at a
        time, which for long columns is several times faster than GPyTorch's evaluation of all rows together."""
        kernel, out = self._kernel(), points.new_empty(*points.shape[:-1], arms.shape[0])
        for place in np.ndindex(*kernel.batch_shape):
            at = (..., *place, slice(None), slice(None))
            out[at] = self._lines(StationaryColumns(arms, kernel, place), points[at])
        return out

    def _lines(self, stationary: StationaryColumns, points: Points) -> Tensor:
        columns = stationary(points.reshape(-1, points.shape[-1]))
        return columns.reshape(*points.shape[:-1], columns.shape[-1])

    def holds(self, rows: Tensor) -> bool:
        """Whether the columns of rows (`batch_shape x m`) are kept."""
        return self._kept is not None and self._kept.found(rows, self._posterior.rows_on_host) is not None

    def fill(self, rows: Tensor, *, partly: bool = False) -> bool:
        """Evaluate and keep the columns of rows (`batch_shape x m`) that are missing. Return False if they do not all fit the
        budget, which is halved where the device runs out of memory. None are then added; with `partly`, as many as fit if they
        are at least half of them. Cost O(A d) per new column."""
        try:
            return self._fill(rows, partly)
        except torch.OutOfMemoryError as error:
            self.forget()
            self._memory_budget = halved(self._memory_budget, 0, error)
            return False

    def _fill(self, rows: Tensor, partly: bool) -> bool:
        statistics, source = self._posterior.statistics, self._rows.source
        if self._kept is None:
            shape = statistics.num_rows.shape
            self._kept = KeptColumns(shape, source.num_arms, source.dtype, source.device, self._memory_budget)
        kept = self._kept
        whole = rows.shape[-1] <= kept.most
        if not whole:
            if 2 * kept.most < rows.shape[-1]:
                self._kept = self._read = None
            if self._kept is None or not partly:
                return False
            rows = rows[..., : kept.most]
        # A single batch row has no padding.
        kept.know(statistics.num_rows.reshape(-1).tolist() if statistics.num_rows.dim() else [statistics.size])
        if not rows.shape[-1] or self.holds(rows):
            return whole
        missing, slots = kept.missing(self._posterior.rows_on_host(rows))
        step = max(1, _GROUP_BYTES // kept.bytes_a_slot)
        for some, theirs in zip(missing.split(step, dim=-1), slots.split(step, dim=-1), strict=True):
            if some.dim() > 1 and self._alike():
                # Only the columns that are missing, of all batch rows together.
                row, there = some.reshape(-1, some.shape[-1]), (points := statistics.points).flatten(0, -3)
                line, place = (row >= 0).nonzero(as_tuple=True)
                line, row = to_device(points.device, line, row[line, place])
                points, arm = there[line, row], self._rows.arm_of_row.flatten(0, -2)[line, row]
            else:
                row = to_device(rows.device, some.clamp_min(0))[0]
                arm = self._rows.arm_of_row.gather(-1, row)
                points = statistics.at(row)
            # Only batch rows are padded, with places that may hold no arm.
            kept.put(some, theirs, self._with_own(self.evaluate(points), arm, whole=arm.dim() == 1))
        return whole

    def _alike(self) -> bool:
        """Whether columns of all batch rows are those of one kernel on the same arms, evaluated at once on a device."""
        return self.scaled() is not None and self.diagonal.dim() == 1 and not self._posterior.kernel.batch_shape

    def _with_own(self, block: Tensor, arm: Tensor, *, whole: bool = False) -> Tensor:
        """The columns with the exact k(x_j, x_j) at arm x_j, where rounding would leave a difference. `whole` says that no arm
        is −1 for padding."""
        here = self._rows.across.places(arm)
        within = not self._rows.outside and not self._rows.sharded
        slot = here if within and whole else here.clamp_min(0)
        diagonal = self.diagonal.expand(*arm.shape[:-1], -1).gather(-1, slot).to(block.dtype)
        place = slot.unsqueeze(-1)
        if within:
            # Padded places, too, are written to an arm.
            return block.scatter(-1, place, diagonal.unsqueeze(-1))
        return block.scatter(-1, place, torch.where(here.unsqueeze(-1) >= 0, diagonal.unsqueeze(-1), block.gather(-1, place)))

    def renew(self) -> None:
        """Drop everything that was computed with an earlier kernel. Cost O(A d)."""
        self.forget()
        self.diagonal = self._diagonal()

    def forget(self) -> None:
        """Drop the columns, which are recomputed when needed."""
        self._kept = self._narrow = self._stationary = self._scaled = self._box = self._read = None

    def read(self, rows: Tensor, index: Picks) -> Tensor | None:
        """k between rows (`batch_shape x m`) and arms (`batch_shape x p`), `batch_shape x m x p`, from kept columns in float64;
        None where they are not kept, or not of every arm."""
        kept = self._kept
        if kept is None or self._rows.sharded or kept.block.dtype != torch.float64:
            return None
        slots = kept.found(rows, self._posterior.rows_on_host)
        if slots is None:
            return None
        if self._posterior.sparse and slots.dim() == index.dim() == 1 and slots.device.type == "cpu":
            from torchbandits.linalg.compiled import COMPILED, read_kept  # noqa: PLC0415 - numba takes half a second to load

            if COMPILED:
                return torch.from_numpy(read_kept(kept.block.numpy(), slots.numpy(), index.numpy()))
        return kept.between(slots, index)

    def gram(self) -> Any:
        """Function that returns kernel values between the given rows and all rows, read from the kept columns. None unless all
        columns of the dictionary are kept in float64 and every point is an arm."""
        arm: Tensor = self._rows._buffers["arm_of_row"]
        if self._rows.outside and not bool(((arm >= 0) == self._posterior.statistics.mask).all()):
            return None
        rows, known = self._posterior.dictionary_rows()[0], self._read
        if known is None or known[0] is not rows or known[1] is not arm:
            K = self.read(rows, arm)
            if K is None:
                return None
            self._read = known = (rows, arm, K)
        K = known[2]
        return lambda asked: K if asked is rows else self.read(asked, arm)

    def of_arms(self, index: Picks) -> Tensor:
        """k(x_j, ·) of arms (`batch_shape x p`) at every arm, `batch_shape x p x A`, read from kept columns if all are kept."""
        row, points = self._rows.row_of(index), self._rows.points(index)
        if self._kept is not None and bool((row >= 0).all()) and self.holds(row):
            return self._kept.at(self._kept.slots(row), slice(None))
        return self.of_points(index, points)

    def of_points(self, index: Picks, points: Points) -> Tensor:
        """`of_arms` whose points are known, evaluated."""
        return self._with_own(self.evaluate(points), index)

    def step(self, rows: Tensor) -> int:
        """Number of arms of a chunk of `products`."""
        if rows.device.type == "cpu":
            return max(LEAST_ARMS, _CHUNK_BYTES // (8 * max(1, rows.numel())))
        wanted = _DEVICE_BYTES if self._kept is None else _DEVICE_COLUMNS
        return max(LEAST_ARMS, wanted // (self._rows.source.dtype.itemsize * max(1, rows.numel())))

    def products(
        self, weights: Tensor, rows: Tensor, dense: int | None = None, step: int | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """`weights` (`batch_shape x r x m`) times the columns of rows (`batch_shape x m`), in chunks of arms.

        The chunks of columns stay in cache. If only the first `dense` rows of the weights are full and the others form an upper
        triangle, products with zeros are skipped. A chunk has `step` arms, by default the result of the method `step`.

        Yields:
            The slice of arms of a chunk, and its products in a buffer that the next chunk overwrites.
        """
        m, kept = rows.shape[-1], self._kept
        slots = None if kept is None else kept.found(rows, self._posterior.rows_on_host)
        least = LEAF if rows.device.type == "cpu" else STRIPE
        A, step = self._rows.num_arms, step or self.step(rows)

        def multiplied(K_mc: Tensor, out: Tensor) -> Tensor:
            if dense is not None and m > least and rows.dim() <= 2:
                return triangular_product(weights, K_mc, out, dense)
            return matmul_into(weights, K_mc, out)

        if (kept is None or slots is None) and (packed := self.packed()) is not None and rows.device.type == "cpu":
            yield from self._packed_products(packed, weights, rows, step, multiplied)
            return
        products = weights.new_empty(*weights.shape[:-1], min(step, A))
        columns = self._blocks(rows, step) if kept is None or slots is None else _kept_blocks(kept, slots, step)
        for part, K_mc in columns:
            # Float64 weights of float32 columns are multiplied in float64.
            yield part, multiplied(K_mc.to(weights.dtype), products[..., : K_mc.shape[-1]])

    def products_in_any_order(self, weights: Tensor, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """`products` in float64 on the host. For a single batch row they are summed in the order in which columns are kept, and
        after them those that are not kept: nothing is copied, but the last bits depend on earlier dictionaries."""
        kept, step = self._kept, self.step(rows)
        slots = torch.full_like(rows, -1) if kept is None or rows.dim() > 1 else kept.slots(rows)
        here, used = slots >= 0, int(slots.max()) + 1
        found = int(here.sum())
        # Columns that are kept but not asked for have weight 0.
        if kept is None or 2 * found <= used:
            yield from self.products(weights, rows, step=step)
            return
        others, evaluated = weights[:, :0], None
        if found < len(rows):
            others, evaluated = weights[:, ~here].contiguous(), self._blocks(rows[~here], step)
            slots, weights = slots[here], weights[:, here]
        spread = weights.new_zeros(len(weights), used).index_copy_(-1, slots, weights)
        for part in parts(0, self._rows.num_arms, step):
            out = spread @ kept.block[:used, part].double()
            yield part, out if evaluated is None else out.addmm_(others, next(evaluated)[1].double())

    def _packed_products(
        self, packed: PackedArms, weights: Tensor, rows: Tensor, step: int, multiplied: Callable[[Tensor, Tensor], Tensor]
    ) -> Iterator[tuple[slice, Tensor]]:
        """`products` of packed arms. Chunks are computed in parallel, unless there are points that cannot be packed: their
        columns are evaluated by GPyTorch, which changes settings of the process while it runs."""
        similarities, n = self._similarities(rows, packed), min(step, self._rows.num_arms)
        buffers: dict[int, tuple[Tensor, Tensor]] = {}

        def work(chunk: tuple[slice, Tensor], place: int) -> tuple[slice, Tensor]:
            part, words = chunk
            if place not in buffers:
                buffers[place] = weights.new_empty(*rows.shape, n), weights.new_empty(*weights.shape[:-1], n)
            K_mc, out = (buffer[..., : len(words)] for buffer in buffers[place])
            return part, multiplied(similarities(words, K_mc), out)

        chunks = packed.packed(step)
        yield from side_by_side(work, chunks) if similarities.packs else (work(chunk, 0) for chunk in chunks)

    def _similarities(self, rows: Tensor, packed: PackedArms) -> TanimotoBlocks:
        return TanimotoBlocks(self._points(rows), self._kernel(), packed.packing)

    def _points(self, rows: Tensor) -> Tensor:
        """The points of rows (`batch_shape x m`) in the dtype of the arms."""
        return self._posterior.statistics.at(rows).to(self._rows.source.dtype)

    def sweep(self, factors: SweepFactors, prior: Tensor, leverage: Tensor, channels: Tensor) -> bool:
        """Write leverages and channels of every arm by one compiled pass over kept columns, or on a device by one kernel.
        Return False where neither is possible: columns that are not kept, float32 arms, enough work for several threads, or
        numba not installed.

        Args:
            factors: Sweep factors of the posterior.
            prior: `A` or `batch_shape x A`, k(x, x) / λ.
            leverage: `batch_shape x A`, overwritten.
            channels: `batch_shape x c x A`, overwritten.
        """
        kept, N, a = self._kept, factors.N, factors.a
        size = (N.numel() + a.numel()) * self._rows.num_arms
        if kept is None or N.device.type != "cpu" or self._rows.source.dtype != torch.float64 or size >= MANY_PRODUCTS:
            return FUSED and self._fused(factors, prior, leverage, channels)
        from torchbandits.linalg.compiled import COMPILED, sweep_kept  # noqa: PLC0415 - numba takes half a second to load

        slots = kept.found(factors.rows, self._posterior.rows_on_host) if COMPILED else None
        if slots is None:
            return False
        prior = prior.expand(leverage.shape)
        arrays = (N.contiguous(), a.contiguous(), kept.block, slots, prior.contiguous(), leverage, channels)
        batch = leverage.dim() - 1
        singles = zip(*(x.reshape(-1, *x.shape[batch:]) for x in arrays), strict=True) if batch else (arrays,)
        for N, a, block, own, start, out, means in singles:
            sweep_kept(
                N.numpy(), a.numpy(), bool(factors.lower), block.numpy(), own.numpy(), start.numpy(), out.numpy(), means.numpy()
            )
        return True

    def _fused(self, factors: SweepFactors, prior: Tensor, leverage: Tensor, channels: Tensor) -> bool:
        """`sweep` by one Triton kernel, for an RBF or Matérn kernel whose columns are not kept, on a device. Return False in
        all other cases."""
        source, kernel = self._rows.source, self._posterior.embedded_kernel
        if (
            factors.rows.device.type != "cuda"
            or not isinstance(source, InMemory)
            or source.arms.dim() > 2
            or not source.arms.is_contiguous()
            or kernel.batch_shape
            or self.holds(factors.rows)
        ):
            return False
        form = Stationary.of(kernel)
        if form is None or form.effect is not None or not factors.rows.shape[-1] or source.dim > FUSED_FEATURES:
            return False
        from torchbandits.arms.fused import fused_sweep  # noqa: PLC0415 - Triton, which takes a second to load

        dictionary, arms = self._posterior.statistics.at(factors.rows), source.arms
        near = form.trusts(self._reach(form, dictionary).to(arms.dtype))
        return fused_sweep(arms, dictionary, form, factors, prior.expand(leverage.shape), leverage, channels, by_product=near)

    def _reach(self, form: Stationary, points: Points) -> Tensor:
        """A bound of the squared distances of arms in memory and of points (`batch_shape x m x d`) from the mean of these, in
        lengthscales."""
        if self._box is None:
            source = self._rows.source
            assert isinstance(source, InMemory)
            self._box = torch.stack(source.arms.aminmax(dim=-2)).double()
        points = points.reshape(-1, points.shape[-1])
        corners = torch.cat([self._box, points]) - points.mean(dim=0)
        return (corners.abs().amax(dim=0) * form.scale).square().sum()

    def _blocks(self, rows: Tensor, step: int) -> Iterator[tuple[slice, Tensor]]:
        """Columns of rows (`batch_shape x m`), evaluated in chunks of arms. Each chunk overwrites the previous one."""
        points, kernel, source = self._points(rows), self._kernel(), self._rows.source
        if (packed := self.packed()) is not None:
            similarities, out = self._similarities(rows, packed), points.new_empty(*rows.shape, min(step, source.num_arms))
            for part, words in packed.packed(step):
                yield part, similarities(words, out[..., : len(words)])
            return
        if not Stationary.covers(kernel):
            for part, arms in source.chunks(step):
                yield part, evaluate_kernel(kernel, points, arms)
            return
        try:
            known = self._own_scaled()
        except torch.OutOfMemoryError:
            known = None
        blocks, out = StationaryBlocks(points, kernel, known), points.new_empty(*rows.shape, min(step, source.num_arms))
        if known is not None:
            for part in parts(0, source.num_arms, step):
                yield part, blocks.at(part, out[..., : part.stop - part.start])
            return
        for part, arms in source.chunks(step):
            yield part, blocks(arms, out[..., : arms.shape[-2]])


def _kept_blocks(kept: KeptColumns, slots: Tensor, step: int) -> Iterator[tuple[slice, Tensor]]:
    """Columns in slots, in chunks of arms. On the host, consecutive slots in order are sliced without a copy. Zero weights for
    slots in between would save a copy, too, but the last bits would then depend on earlier columns, and would differ after a
    state is loaded."""
    m, first = slots.shape[-1], int(slots.min()) if slots.device.type == "cpu" else -1
    consecutive = first >= 0 and bool((slots - first == torch.arange(m)).all())
    for part in parts(0, kept.num_arms, step):
        yield part, kept.block[..., first : first + m, part] if consecutive else kept.at(slots, part)
