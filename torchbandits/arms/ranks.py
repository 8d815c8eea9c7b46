"""Arms distributed over the ranks of `torch.distributed`: each rank sweeps its own arms, and all agree on every pick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchbandits.arms.reductions import Reductions
from torchbandits.arms.scanning import Scan, find, scan
from torchbandits.arms.ties import TIE
from torchbandits.errors import NonFiniteError, RankError, ShapeError, require
from torchbandits.sources import ArmSource, InMemory
from torchbandits.sources.base import check_index
from torchbandits.sources.duplicates import codes
from torchbandits.sources.packed import stored
from torchbandits.types import Picks

# Number of arms hashed together.
_STEP = 1 << 16
_FAR = torch.iinfo(torch.int64).max


class Shard(ArmSource):
    """The arms of this rank. The arms of the run are those of all ranks, in order of rank.

    Dictionary, statistics and generators are the same on every rank; means, leverages and kernel columns cover only the arms of
    the rank. Indices count through the arms of all ranks. Every rank must make the same calls in the same order; rewards are
    those of rank 0.

    Args:
        arms: `A_r x d`, or a source of arms. `d`, dtype and kind of device must be the same on all ranks.
        group: A process group; None is the default group. Without `init_process_group` this is the only rank.

    Raises:
        ShapeError: If ranks differ in features or dtype, or if the arms have batch dimensions.
        RankError: If a rank does not respond.
    """

    def __init__(self, arms: Tensor | ArmSource, group: Any = None) -> None:
        known = isinstance(arms, Tensor | ArmSource)
        require(known, f"arms must be a tensor A x d or a source of them, got {type(arms).__name__}.", ShapeError)
        known = group is None or (dist.is_available() and isinstance(group, dist.ProcessGroup))
        require(
            known, f"group must be a torch.distributed process group that this rank is in, or None, got {type(group).__name__}."
        )
        source = InMemory(arms) if isinstance(arms, Tensor) else arms
        good = len(source.shape) == 2 and source.num_arms > 0 and source.dtype in (torch.float32, torch.float64)
        require(
            good, f"arms of a rank must be A x d in float32 or float64, got {tuple(source.shape)} {source.dtype}.", ShapeError
        )
        self.held, self.distinct = source, source.distinct
        alone = not dist.is_available() or not dist.is_initialized()
        rank, size = (0, 1) if alone else (dist.get_rank(group), dist.get_world_size(group))
        everybody = (source.num_arms, source.dim, str(source.dtype), source.distinct)
        kinds = [everybody] if alone else _guarded(lambda: _objects(everybody, size, group))
        alike = len({kind[1:] for kind in kinds}) == 1
        require(alike, f"ranks must agree in features, dtype and distinct=, got {[kind[1:] for kind in kinds]}.", ShapeError)
        counts = [kind[0] for kind in kinds]
        self.across = AcrossRanks(group, rank, size, sum(counts[:rank]), counts[rank], sum(counts), source.device)

    @property
    def shape(self) -> torch.Size:
        """`A_r x d`, the shape of the arms of this rank."""
        return self.held.shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the arms."""
        return self.held.dtype

    @property
    def device(self) -> torch.device:
        """Device on which this rank sweeps."""
        return self.held.device

    def chunk(self, part: slice) -> Tensor:
        """Consecutive arms of this rank, counted from its first arm."""
        return self.held.chunk(part)

    def chunks(self, step: int, start: int = 0, stop: int | None = None) -> Any:
        """Chunks of the arms of this rank, counted from its first arm."""
        return self.held.chunks(step, start, stop)

    def points(self, index: Picks) -> Tensor:
        """Arms by index among those of all ranks, `... x p x d`, sent by the ranks that hold them."""
        check_index(index)
        place = self.across.places(index)
        own = torch.where((place >= 0).unsqueeze(-1), self.held.points(place.clamp_min(0)), 0.0)
        return self.across.sum(own)

    def looked_at(self) -> tuple[Tensor | None, int]:
        """The lowest index of an arm equal to each arm of this rank, `A_r` (None if no two arms of the run are equal), and the
        fingerprint of all arms: the results of `scan` across ranks.

        Raises:
            NonFiniteError: On every rank, if an arm of any rank is not finite.
        """
        found: Scan | None = None
        wrong = ""
        try:
            found = scan(self.held, self.across.offset)
        except NonFiniteError as error:
            wrong = str(error)
        wrong = next((told for told in self.across.objects(wrong) if told), "")
        if found is None or wrong:
            raise NonFiniteError(wrong)
        first = None if self.distinct else self._first_of_all(found.first)
        return first, int(self.across.sum(torch.tensor(found.fingerprint, device=self.device)))

    def _first_of_all(self, first: Tensor | None) -> Tensor | None:
        """The lowest index of an arm equal to each arm of this rank, `A_r`; None if no two arms of the run are equal.

        Args:
            first: The same within the arms of this rank, counted from its first arm; None if they all differ.

        The hashes (8 bytes per arm) of one rank at a time are sent to all; arms with a hash in common are compared in full.
        """
        across = self.across
        hashes = torch.cat([codes(arms) for _, arms in stored(self.held, _STEP)])
        hit = torch.zeros_like(hashes, dtype=torch.bool)
        for rank in range(across.size - 1):
            theirs = across.sent(hashes.unique() if rank == across.rank else None, rank)
            if across.rank > rank:
                hit |= theirs[torch.searchsorted(theirs, hashes).clamp_max(len(theirs) - 1)] == hashes
        mine = hit.nonzero().squeeze(-1)
        gathered = across.objects((mine + across.offset, self.held.points(mine).cpu()))
        lowest = torch.arange(len(hashes), device=hashes.device) if first is None else first.clone()
        lowest += across.offset
        for index, points in gathered:
            if len(index):
                found = find(self.held, points.to(hashes.device))
                found = across.least(torch.where(found >= 0, found + across.offset, _FAR))
                place = across.places(index.to(hashes.device))
                for at, arm in zip(place.tolist(), found.tolist(), strict=True):
                    if at >= 0:
                        lowest = torch.where(lowest == at + across.offset, arm, lowest)
        own_index = torch.arange(len(hashes), device=hashes.device) + across.offset
        return lowest if bool(across.any(lowest != own_index)) else None


class AcrossRanks(Reductions):
    """Reductions by collectives, with the same result on every rank.

    Args:
        group: The process group.
        rank: Rank of this process.
        size: Number of ranks; nothing is sent if it is 1.
        offset: Index of the first arm of this rank.
        held: Number of arms of this rank.
        count: Number of arms of all ranks.
        device: Device of the messages.
    """

    def __init__(self, group: Any, rank: int, size: int, offset: int, held: int, count: int, device: torch.device) -> None:
        self._group, self.rank, self.size = group, rank, size
        self._offset, self._held, self._count, self._device = offset, held, count, device

    def __deepcopy__(self, memo: dict[int, Any]) -> AcrossRanks:
        """Return self, because a process group cannot be copied."""
        return self

    @property
    def offset(self) -> int:
        """Index of the first arm of this rank."""
        return self._offset

    def total(self, held: int) -> int:
        """Number of arms of all ranks."""
        return self._count

    def amax(self, values: Tensor) -> Tensor:
        """One all-reduce of one number per row. NaN, which backends may drop, becomes ∞."""
        return self._reduce(values.amax(dim=-1).nan_to_num(torch.inf, torch.inf, -torch.inf), "MAX")

    def amin(self, values: Tensor) -> Tensor:
        """One all-reduce of one number per row. NaN, which backends may drop, becomes −∞."""
        return self._reduce(values.amin(dim=-1).nan_to_num(-torch.inf, torch.inf, -torch.inf), "MIN")

    def least(self, values: Tensor) -> Tensor:
        """Elementwise minimum over the ranks."""
        return self._reduce(values.clone(), "MIN")

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise sum over the ranks."""
        return self._reduce(values.clone(), "SUM")

    def any(self, marked: Tensor) -> Tensor:
        """One all-reduce of one number per row."""
        return self._reduce(marked.any(dim=-1).to(torch.int64), "MAX") > 0

    def best(self, score: Tensor, highest: Tensor | None = None) -> Tensor:
        """Two all-reduces of one number per row: the best score, then the lowest index within the tolerance of ties."""
        best = self.amax(score).unsqueeze(-1)
        near = score >= best - TIE * best.abs()
        first = torch.where(near.any(dim=-1), near.byte().argmax(dim=-1) + self._offset, _FAR)
        return self._reduce(first, "MIN")

    def top(self, score: Tensor, k: int) -> Tensor:
        """One all-gather of k scores and indices per row and rank."""
        count = min(k, score.shape[-1])
        values, index = score.topk(count, dim=-1)
        index = index + self._offset
        if self.size == 1:
            return index
        pad = (0, k - count)
        values, index = torch.nn.functional.pad(values, pad, value=-torch.inf), torch.nn.functional.pad(index, pad, value=-1)
        # Integers below 2⁵³ are exact in float64.
        message = torch.stack([values, index.to(values.dtype)])
        gathered = [torch.empty_like(message) for _ in range(self.size)]
        _guarded(lambda: dist.all_gather(gathered, message, group=self._group))
        scores, found = torch.cat(gathered, dim=-1)
        # Padding (−∞) must rank below arms that are not offered, so their score is raised to the smallest finite number.
        scores = torch.where(found < 0, -torch.inf, scores.clamp_min(torch.finfo(scores.dtype).min))
        chosen = scores.topk(min(k, self._count), dim=-1).indices
        return found.gather(-1, chosen).long()

    def at(self, index: Tensor, *vectors: Tensor) -> list[Tensor]:
        """One all-reduce: the rank that holds an arm sends its entries, all others send 0."""
        place = self.places(index)
        slot, here = place.clamp_min(0), place >= 0
        own = [torch.where(here, vector.expand(*index.shape[:-1], -1).gather(-1, slot), 0) for vector in vectors]
        return list(self._reduce(torch.stack(own), "SUM").unbind(0))

    def put_(self, vector: Tensor, index: Tensor, values: Tensor | float | bool) -> Tensor:
        """Each rank writes its own arms; nothing is sent."""
        place = self.places(index)
        where = (place >= 0).nonzero(as_tuple=True)
        vector[(*where[:-1], place[where])] = values[where] if isinstance(values, Tensor) else values
        return vector

    def places(self, index: Tensor) -> Tensor:
        """Positions of arms within this rank; −1 for arms of other ranks."""
        place = index - self._offset
        return torch.where((place >= 0) & (place < self._held), place, -1)

    def agreed(self, values: Tensor) -> Tensor:
        """The values of rank 0."""
        if self.size == 1:
            return values
        shared = values.clone(memory_format=torch.contiguous_format)
        source = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        _guarded(lambda: dist.broadcast(shared, source, group=self._group))
        return shared

    def sent(self, values: Tensor | None, rank: int) -> Tensor:
        """Integers of one rank, `n`, sent to all; the other ranks pass None."""
        size = torch.tensor([0 if values is None else len(values)], device=self._device)
        source = rank if self._group is None else dist.get_global_rank(self._group, rank)
        _guarded(lambda: dist.broadcast(size, source, group=self._group))
        message = torch.empty(int(size), dtype=torch.int64, device=self._device) if values is None else values.contiguous()
        _guarded(lambda: dist.broadcast(message, source, group=self._group))
        return message

    def objects(self, own: Any) -> list[Any]:
        """The objects of all ranks, in order of rank."""
        return [own] if self.size == 1 else _guarded(lambda: _objects(own, self.size, self._group))

    def check_same(self, what: str, own: Any) -> None:
        """Raise an error if ranks differ.

        Raises:
            RankError: On all ranks.
        """
        differ = [rank for rank, other in enumerate(self.objects(own)) if other != own]
        require(
            not differ, f"{what} must be the same on all ranks: on ranks {differ} they are not as on {self.rank}.", RankError
        )

    def _reduce(self, values: Tensor, how: str) -> Tensor:
        if self.size > 1:
            _guarded(lambda: dist.all_reduce(values, getattr(dist.ReduceOp, how), group=self._group))
        return values


def _objects(own: Any, size: int, group: Any) -> list[Any]:
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, own, group=group)
    return gathered


def _guarded(collective: Callable[[], Any]) -> Any:
    """Run a collective, and raise `RankError` if it fails, because a rank was lost."""
    try:
        return collective()
    except RuntimeError as error:
        raise RankError(
            f"a rank was lost, or did not answer in time: {error}. Nothing was learned by this call, and every rank holds "
            "what was learned before: save bandit.state_dict(), and load it into a Bandit on the arms of any number of ranks."
        ) from error
