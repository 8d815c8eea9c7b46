"""Posterior covariance between arms of an exact posterior, k̃ = k/λ − Σ wwᵀ. Its memory traffic dominates an exact step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchbandits.arms.columns import KernelColumns
from torchbandits.arms.reserve import LONGEST, SPARE, Reserve
from torchbandits.arms.rows import ArmRows
from torchbandits.buffered import Buffered
from torchbandits.kernels import ScaledArms, Stationary, kernel_matrix
from torchbandits.posteriors import GaussianProcess
from torchbandits.types import Picks

# Returns the arms that are most likely to be pulled next, `batch_shape x k`.
Leaders = Callable[[int], Tensor]

# The kernel values of a sweep take as long as products with this many directions.
_KERNEL = 64
# Up to this number of arms the whole A x A covariance is kept, and directions are subtracted from it in blocks.
_DENSE_ARMS = 1024
# Size limit of the dense covariances of all batch rows together.
_DENSE_BYTES = 512 << 20
# Directions per block, so that the downdate is one matrix product instead of 64 passes over memory.
_BLOCK = 64
# A dense covariance is recomputed after this many times A pulls, so that rounding errors cannot accumulate.
_ANCHOR = 16
# Smallest and largest number of columns evaluated ahead of need.
_FEWEST, _MOST = 8, 64
# Largest size of columns whose memory is used again, because new memory takes longer than their copy.
_OLD_BYTES = 64 << 20
# Products are made with multiples of this many columns of a batch.
_COLUMNS = 4
# On a device, and for batch rows on a CPU, columns are evaluated ahead from these sizes of T on. Below them a pass over it
# takes less time than looking for columns.
_AHEAD_BYTES, _AHEAD_BYTES_ON_CPU = 1 << 30, 1 << 23


class Directions(Buffered):
    r"""k̃(x, x') = k(x, x')/λ − T(x)ᵀT(x') between arms, where every pull appends a row to T.

    Computing the column of a pulled arm takes one pass over T, and is limited by memory bandwidth. Three exact methods reduce
    the traffic. With few arms, k̃ itself is kept, and rows of T are subtracted from it 64 at a time. With many arms, the columns
    of the most likely next arms are evaluated together in one pass. The columns of a batch are kept, because many of its arms
    are pulled again in the next batch. When an arm whose column is known is pulled, the column is corrected by the rows of T
    that were appended in the meantime.

    On the host a large T exists once: a sweep overwrites its rows. A snapshot from before such a sweep has to recompute them.

    Args:
        rows: The arms.
        posterior: The posterior; its `batch_shape` is that of the directions.
        columns: Evaluates kernel columns.
        memory_budget: Bytes; the dense covariance is kept only if it is smaller, and rows of repeated pulls that exceed it are
            recomputed sooner.

    Buffers: `block` `batch_shape x capacity x A`, whose first `used` rows are T; `covariance` `batch_shape x A x A`, k̃ before
    those rows (empty if it is not kept, or not computed yet).
    """

    block: Tensor
    covariance: Tensor

    def __init__(self, rows: ArmRows, posterior: GaussianProcess, columns: KernelColumns, memory_budget: int) -> None:
        super().__init__()
        # In a tuple nn.Module does not see them; the policy's state registers them.
        self._owners = (rows, posterior)
        self._columns = columns
        shape, A, source = posterior.batch_shape, rows.num_arms, rows.source
        size = 8 * shape.numel() * A * A
        self.dense = A <= _DENSE_ARMS and size <= min(_DENSE_BYTES, memory_budget)
        self.used = 0
        # Pulls since the last sweep if the covariance is kept, and otherwise products with rows of repeated pulls; columns that
        # were evaluated for the next rows.
        self._work, self._fresh = 0, 0
        dtype = torch.float64 if self.dense else source.dtype
        empty = torch.zeros(*shape, 0, A, dtype=dtype, device=source.device)
        # Streamed arms do not fit into memory, so T must stay below the budget.
        host, row_bytes = source.device.type == "cpu" and not self.dense, shape.numel() * A * dtype.itemsize
        self._reserve = Reserve.of(row_bytes, memory_budget, limited=rows.streamed, host=host)
        # The storage of T that was made here, which nothing else reads, and how often a sweep has overwritten it.
        self._made: Tensor | None = None
        self._overwritten = 0
        # Whether saved states leave out a large T, and whether T must be computed before it is read.
        self.brief = self.incomplete = False
        self.register_buffer("block", empty, persistent=False)
        self.register_buffer("covariance", empty, persistent=False)
        self._forget_ahead()

    def _forget_ahead(self) -> None:
        # Arms evaluated ahead or pulled in the last batch, their columns, and the number of rows of T already subtracted from
        # these.
        self._ahead: tuple[Tensor, Tensor, int] | None = None
        # The columns of an earlier batch, whose memory the next batch takes.
        self._old: Tensor | None = None
        # The leaders at the time when a column was last evaluated.
        self._named: Tensor | None = None
        self._hits, self._misses, self._size = 0, 0, _FEWEST

    @property
    def rows_used(self) -> Tensor:
        """T, `batch_shape x r x A`."""
        return self.block[..., : self.used, :]

    # ------------------------------------------------------------------ reading

    def cross(self, slot: Picks, leaders: Leaders | None = None) -> Tensor:
        """k̃(x_p, ·) of arms (`batch_shape x p`), `batch_shape x p x A`.

        Args:
            slot: ≥ 0.
            leaders: Arms worth evaluating ahead.

        Cost: O(A r p), or O(64 A p) if the arms were evaluated ahead or in the last batch, or the covariance is kept.
        """
        if self.dense:
            if self.used >= _BLOCK:
                self._flush()
            C = self.covariance if self.covariance.shape[-2] else self._dense()
            start = C.gather(-2, slot.unsqueeze(-1).expand(*slot.shape, C.shape[-1]))
            return self._without(start, slot, 0)
        here = self.block.device.type == "cpu"
        if leaders is not None and here and slot.shape[-1] > 1:
            return self._of_batch(slot)
        least = 0 if here and slot.dim() == 1 else _AHEAD_BYTES_ON_CPU if here else _AHEAD_BYTES
        if leaders is None or slot.shape[-1] > 1 or self.used * self._reserve.row_bytes < least:
            return self._evaluated(slot)
        return self._looked_ahead(slot, leaders)

    def _evaluated(self, slot: Tensor) -> Tensor:
        """`cross` of arms of which nothing is known."""
        self.__dict__["_fresh"] = slot.shape[-1]
        return self._without(self._prior(slot), slot, 0)

    def _prior(self, slot: Tensor) -> Tensor:
        rows, posterior = self._owners
        if (known := self._columns.scaled()) is None:
            K = self._columns.evaluate(rows.at(slot))
        else:
            K = known.form.between_scaled(_at(known.points, slot), known.points)
        return (K / posterior.regularization).expand(*slot.shape, K.shape[-1])

    def _without(self, start: Tensor, slot: Tensor, first: int) -> Tensor:
        """`start`, which may be overwritten, minus the contribution of the rows of T from `first` on."""
        T = self.block[..., first : self.used, :]
        if not T.shape[-2]:
            return start
        t = T.gather(-1, slot.unsqueeze(-2).expand(*T.shape[:-1], slot.shape[-1])).mT
        if T.dim() == 2:
            return start.addmm_(t, T, alpha=-1)
        flat = T.shape[:-2].numel()
        out = torch.baddbmm(*(x.reshape(flat, *x.shape[-2:]) for x in (start, t, T)), alpha=-1)
        return out.reshape(start.shape)

    def _looked_ahead(self, slot: Tensor, leaders: Leaders) -> Tensor:
        """The column of one arm of each batch row, from those that were evaluated ahead where it is among them. Rows that miss
        it have a pass over their own T. Once as many have missed theirs as there are rows, columns of the current leaders are
        evaluated for all rows, in one pass over all of T; but where fewer were found than missed, the pulls were not
        predictable, and only their own columns are evaluated until half of the rows pull one of their last leaders.

        One wait for a device: which rows missed.
        """
        expected = False
        if self._ahead is not None:
            arms, columns, first = self._ahead
            same = arms == slot
            known = same.any(dim=-1)
            missed = [row for row, found in enumerate(known.reshape(-1).tolist()) if not found]
            self._hits, self._misses = self._hits + known.numel() - len(missed), self._misses + len(missed)
            if self._misses < known.numel():
                place = same.byte().argmax(dim=-1, keepdim=True)
                start = columns.gather(-2, place.unsqueeze(-1).expand(*place.shape, columns.shape[-1]))
                if missed:
                    start = torch.where(known[..., None, None], start, self._prior(slot))
                    T, own, at = (x.reshape(-1, *x.shape[-2:]) for x in (self.block, start, slot.unsqueeze(-2)))
                    for row in missed:
                        before = T[row, :first]
                        own[row].addmm_(before[:, at[row, 0]].mT, before, alpha=-1)
                return self._without(start, slot, first)
            expected = self._hits >= known.numel()
            self._adapt(self._hits // known.numel())
        elif self._named is not None:
            among = (self._named == slot).any(dim=-1)
            expected = 2 * int(among.sum()) >= among.numel()
        self._ahead, self._hits, self._misses = None, 0, 0
        # Beside T they take little memory. With the pulled arm itself: it may be pulled again, and stands for padding.
        size = min(self._size, max(_FEWEST, self.used // 8))
        self._named = arms = torch.cat([slot, leaders(size - 1)], dim=-1)
        if expected:
            try:
                columns = self._evaluated(arms)
            except torch.OutOfMemoryError:
                self._size = max(1, self._size // 2)
            else:
                self._ahead = (arms, columns, self.used)
                return columns[..., :1, :].clone()
        return self._evaluated(slot)

    def _adapt(self, hits: int) -> None:
        """Adapt the number of columns to how many of them were used: double it for half of them, halve it for fewer than an
        eighth."""
        self._size = min(_MOST, 2 * self._size) if 2 * hits >= self._size else self._size
        self._size = max(_FEWEST, self._size // 2) if 8 * hits < self._size else self._size

    def _of_batch(self, slot: Tensor) -> Tensor:
        """The columns of the arms of a batch. They are kept for the next batch if they take at most half of the memory of T,
        except for batch rows and streamed arms."""
        if slot.dim() > 1 or self._reserve.limited:
            return self._evaluated(slot)
        if self._ahead is None:
            found = self._evaluated(slot)
        else:
            arms, columns, first = self._ahead
            same = slot.unsqueeze(-1) == arms
            known = same.any(dim=-1)
            (new,), (again,) = (~known).nonzero(as_tuple=True), known.nonzero(as_tuple=True)
            # On some processors a product with one more column, up to the next multiple, takes less time.
            new = torch.cat([new, again[: -len(new) % _COLUMNS]])
            # The columns of new arms are those of any arm until they are replaced.
            found = self._old if self._old is not None and len(self._old) == len(slot) else columns.new_empty(0)
            torch.index_select(columns, 0, same.byte().argmax(dim=-1), out=found)
            found = self._without(found, slot, first)
            found.index_copy_(0, new, self._evaluated(slot[new]))
            self._old = columns if columns.numel() * columns.element_size() <= _OLD_BYTES else None
        self._ahead = (slot, found, self.used) if 2 * len(slot) <= self.used else None
        return found

    def features(self, index: Picks) -> tuple[Tensor, Tensor]:
        """Inputs of `between` for each arm: its points (on a device in units of the lengthscale, if possible; its index if the
        covariance is kept), and its rows of T."""
        slot, T = index.clamp_min(0), self.rows_used
        t = T.new_empty(*T.shape[:-1], index.shape[-1])
        if T.shape[-2]:
            t = T.gather(-1, slot.unsqueeze(-2).expand(t.shape)).double()
        if self.dense:
            return slot, t
        known = self._scaled()
        return (self._owners[0].points(index).double() if known is None else _at(known.points, slot)), t

    def _scaled(self) -> ScaledArms | None:
        """`KernelColumns.scaled` of float64 arms: covariances of arms are computed in float64."""
        return self._columns.scaled() if self.block.dtype == torch.float64 else None

    def in_parts(self) -> tuple[Stationary, Tensor, Tensor] | None:
        """On a device: an RBF or Matérn kernel, the arms in units of its lengthscale, and T; None elsewhere."""
        known = None if self.dense else self._scaled()
        return None if known is None else (known.form, known.points, self.rows_used)

    def between(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
        """k̃ between arms given by their `features`, `batch_shape x n x n'`."""
        (x, t), (y, s), posterior = left, right, self._owners[1]
        if self.dense:
            C = self._dense()
            lines = C.gather(-2, x.unsqueeze(-1).expand(*x.shape, C.shape[-1]))
            return lines.gather(-1, y.unsqueeze(-2).expand(*x.shape, y.shape[-1])) - t.mT @ s
        known = self._scaled()
        K = kernel_matrix(posterior.kernel, x, y) if known is None else known.form.between_scaled(x, y)
        K = K / posterior.regularization
        return K - t.mT @ s if t.shape[-2] else K

    # ------------------------------------------------------------------ writing

    def append(self, G: Tensor) -> None:
        """Add rows to T, `batch_shape x p x A`. Rows that were written to `room` are not copied."""
        used, fresh = self.used + G.shape[-2], self._fresh
        if used > self.block.shape[-2]:
            self._grow(used)
        rows = self.block[..., self.used : used, :]
        if rows.data_ptr() != G.data_ptr():
            rows.copy_(G)
        work = G.shape[-2] if self.dense else fresh * max(0, self.used - self._owners[1].statistics.size)
        self.__dict__.update(used=used, _work=self._work + work, _fresh=0)

    def room(self, p: int) -> Tensor:
        """Memory for p further rows of T, to be written and then passed to `append`."""
        if self.used + p > self.block.shape[-2]:
            self._grow(self.used + p)
        return self.block[..., self.used : self.used + p, :]

    def _grow(self, rows: int) -> None:
        self._reserve.check(rows)
        r, size = self.used, self._reserve.grown(rows, self.block.shape[-2])
        grown = self._rows(size)
        grown[..., :r, :] = self.block[..., :r, :]
        self.block, self._made = grown, None if self.dense else grown

    def sweep_storage(self, size: int) -> Tensor:
        """Storage for a sweep that rewrites all `size` rows, `batch_shape x size x A`. Pass it to `swept` when filled. A large
        T on the host is overwritten, so that there is no second one: until `swept`, the table is `incomplete`."""
        reserve = self._reserve
        reserve.check(size)
        if self.dense:
            return self._rows(size)
        if self._made is self.block and reserve.overwritten(self.used):
            least = size if reserve.large(self.used) else size + reserve.spare(size) // 2
            self._overwritten, self.incomplete, self.used = self._overwritten + 1, True, 0
            if self.block.shape[-2] >= least:
                return self.block
            # A snapshot may hold the tensor, but not its memory.
            self.block.untyped_storage().resize_(0)
        return self._rows(reserve.swept(size))

    def _rows(self, size: int) -> Tensor:
        """New rows, `batch_shape x size x A`."""
        return self.block.new_empty(*self.block.shape[:-2], size, self.block.shape[-1])

    def carried(self) -> Callable[[], None]:
        """Function that gives the columns that are known back after a sweep that leaves the posterior as it is."""
        if self._ahead is None:
            return lambda: None
        arms, columns, first = self._ahead
        columns = self._without(columns, arms, first)
        self._ahead = arms, columns, self.used
        known = self._named, self._hits, self._misses, self._size

        def give_back() -> None:
            self._ahead = arms, columns, self.used
            self._named, self._hits, self._misses, self._size = known

        return give_back

    def swept(self, block: Tensor, size: int) -> None:
        """Replace T by the rows of a sweep."""
        self._work, self.incomplete = 0, False
        self._forget_ahead()
        if self.dense:
            self._keep(self._prior_covariance() - block.mT @ block)
        else:
            self.block, self.used, self._made = block, size, block

    def forget_all(self) -> None:
        """Return to the prior."""
        self.used, self._work, self.incomplete = 0, 0, False
        self.block, self.covariance = (t[..., :0, :].clone() for t in (self.block, self.covariance))
        self._made = None
        self._forget_ahead()

    def needs_sweep(self, rows: int = 0) -> bool:
        """Whether the rows of repeated pulls have taken as much time as a sweep, or made T too long or exceed a budget that
        holds a row for each arm pulled, T leaves no room for `rows` further rows, or rounding errors may have accumulated in a
        kept covariance."""
        reserve = self._reserve
        if self.used + rows > reserve.most and self.used > self._owners[1].statistics.size:
            return True
        if self.dense:
            return self._work > _ANCHOR * max(self.block.shape[-1], SPARE)
        size = self._owners[1].statistics.size
        # For pulls one by one, the products take as long as a sweep when the rows have doubled, plus `_KERNEL`.
        long = 2 * self._work > (size + _KERNEL) ** 2 or self.used > LONGEST * size + SPARE
        return long or (self.used > reserve.over and size <= reserve.holds)

    def _dense(self) -> Tensor:
        if not self.covariance.shape[-2]:
            self.covariance = self._prior_covariance()
        return self.covariance

    def _prior_covariance(self) -> Tensor:
        rows, posterior = self._owners
        arms = rows.source.chunk(slice(0, rows.num_arms)).double()
        K = kernel_matrix(posterior.kernel, arms, arms) / posterior.regularization
        return K.expand(*self.block.shape[:-2], *K.shape[-2:]).clone()

    def _flush(self) -> None:
        """Subtract the rows of T from the kept covariance, which leaves the posterior unchanged."""
        C, T = (x.reshape(-1, *x.shape[-2:]) for x in (self._dense(), self.rows_used))
        self._keep(torch.baddbmm(C, T.mT, T, alpha=-1).reshape(self.covariance.shape))

    def _keep(self, covariance: Tensor) -> None:
        """Set the kept covariance k̃ = C − TᵀT, and T empty. Both are new tensors, set in one assignment, so that after an
        interrupt or a rollback no subtracted row is still in T, and the rows of a snapshot are not written to."""
        buffers = {**self._buffers, "covariance": covariance, "block": torch.empty_like(self.block)}
        self.__dict__.update(used=0, _buffers=buffers)

    # ------------------------------------------------------------------ snapshots, saved states and devices

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Directions:
        super()._apply(fn, recurse)
        self._made = None
        if self.block.device.type != "cpu":
            self._reserve = self._reserve.on_device()
        self._forget_ahead()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: without spare rows, and with a copy of T, because tensors that are sent to another process
        share their memory with it."""
        return {**self.__dict__, "_made": None, "_old": None, "_buffers": {**self._buffers, "block": self.rows_used.clone()}}

    def snapshot(self) -> Callable[[], None]:
        """Function that restores the current rows. The buffers must be restored by the caller. Rows that a sweep has
        overwritten are gone: the table is then `incomplete`."""
        used, work, incomplete = self.used, self._work, self.incomplete
        made, overwritten = self._made, self._overwritten

        def restore() -> None:
            self.used = used
            self._work = work
            self.incomplete = incomplete
            self._made = made
            self._forget_ahead()
            if self._overwritten != overwritten:
                self.incomplete, self._made, self.used = True, None, 0
                self.block = self.block[..., :0, :].clone()

        return restore

    def get_extra_state(self) -> dict[str, Any]:
        """The used rows without spare capacity, the kept covariance, and what has happened since the last sweep. For streamed
        arms T is left out (None), because it may fill the memory, and is recomputed by a sweep. So is a large T of a `brief`
        state."""
        large = self._reserve.limited or (self.brief and self._reserve.large(self.used))
        rows = None if self.incomplete or (large and self.used and not self.dense) else self.rows_used.clone()
        return {"rows": rows, "covariance": self.covariance, "pulls": self._work}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `get_extra_state`. A state without T is `incomplete` until the next sweep."""
        self.incomplete = state["rows"] is None
        self.block = self.block[..., :0, :].clone() if self.incomplete else state["rows"].to(self.block)
        self.covariance = state["covariance"].to(self.block)
        self.used, self._work, self._made = self.block.shape[-2], state["pulls"], None
        self._forget_ahead()


def _at(arms: Tensor, slot: Picks) -> Tensor:
    """The arms (`A x d` or `batch_shape x A x d`) at `slot`, `batch_shape x p x d`."""
    if arms.dim() == 2:
        return arms[slot]
    return arms.expand(*slot.shape[:-1], *arms.shape[-2:]).gather(-2, slot.unsqueeze(-1).expand(*slot.shape, arms.shape[-1]))
