"""The contexts that a contextual bandit keeps, each with its block of the joint arm set."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchbandits.checks import as_tensor, check_whole, own_copy
from torchbandits.errors import NonFiniteError, ShapeError, StateError, require
from torchbandits.shapes import broadcast_shapes
from torchbandits.types import Arms, ArrayLike, PickMask, Picks, Points


class Contexts:
    """The kept contexts, each with its block of the joint arm set. A new context replaces the least recently used ones.

    A joint arm is a pair (context, arm), with the context's features first.

    Args:
        arms: `A x d` or `batch_shape x A x d`.
        known: `C x c` or `batch_shape x C x c`, contexts known at the start, at least one.
        most: Maximum number of kept contexts, at least C. Blocks with pending picks are kept beyond it, until a new context is
            entered after their rewards were told.
        batch_shape: Leading dimensions of the bandit.

    Attributes:
        seen: `batch_shape x C x c`, the kept contexts, one for each block.
        current: `batch_shape`, the block of each row's current context.
        extremes: `batch_shape x 2 x c`, least and largest features of the contexts that count: all but those only looked at.
        moved: Whether the arms were replaced, here or before the contexts were saved.
    """

    def __init__(self, arms: Arms, known: ArrayLike, most: int, batch_shape: torch.Size) -> None:
        known = own_copy(check_contexts(known, arms, batch_shape))
        check_whole("max_contexts", most)
        self.arms, self.most, self._batch_shape = arms, max(most, known.shape[-2]), batch_shape
        self.moved = False
        self.seen = known
        self.current = torch.zeros(batch_shape, dtype=torch.int64, device=arms.device)
        # The time at which each context was last asked for.
        self._asked = list(range(known.shape[-2]))
        self.extremes = _extremes(known)

    @property
    def dim(self) -> int:
        """The number of features of a context."""
        return self.seen.shape[-1]

    def with_arms(self, arms: Arms) -> Contexts:
        """The same contexts with other arms."""
        other = copy.copy(self)
        other.arms, other.moved = arms, True
        return other

    def joint(self) -> Tensor:
        """Joint arms, block after block: `(C A) x (c + d)`, with the batch shape where contexts or arms have one."""
        arms, seen = self.arms, self.seen
        first = seen.reshape(-1, *seen.shape[-2:])[0]
        # If all rows share arms and contexts, one arm set serves all rows.
        if arms.dim() == 2 and bool((seen == first).all()):
            seen = first
        shape = broadcast_shapes(arms.shape[:-2], seen.shape[:-2])
        C, A = seen.shape[-2], arms.shape[-2]
        both = (seen.unsqueeze(-2).expand(*shape, C, A, -1), arms.unsqueeze(-3).expand(*shape, C, A, -1))
        return torch.cat(both, dim=-1).reshape(*shape, C * A, -1)

    def repeated(self, per_arm: Tensor | None) -> Tensor | None:
        """Values per arm, `... x A`, repeated for every block: `... x (C A)`."""
        return None if per_arm is None else per_arm.tile(self.seen.shape[-2])

    def enter_(self, context: Any, busy: Iterable[int], *, releases: bool = True, looks: bool = False) -> bool:
        """Make a context the current one. Returns whether the joint arms have changed.

        Args:
            context: `c` or `batch_shape x c`.
            busy: Blocks that must be kept.
            releases: Whether a new context releases all blocks beyond `most` that need not be kept, and not only one.
            looks: Whether the context is only looked at, and does not count among the extremes.
        """
        given = self.checked(context).unsqueeze(-2)
        if not looks:
            self.extremes = _extremes(torch.cat([self.extremes, given], dim=-2))
        same = (self.seen == given).all(dim=-1)
        changed, clock, C = not bool(same.any(dim=-1).all()), max(self._asked) + 1, self.seen.shape[-2]
        # The blocks of the rows that know this context.
        used = same.byte().argmax(dim=-1)[same.any(dim=-1)].tolist()
        self._asked = list(self._asked)
        idle = sorted(set(range(C)) - set(busy) - set(used), key=lambda block: self._asked[block])
        spare = max(C + 1 - self.most, 0)
        gone = idle[: spare if releases else min(spare, 1)]
        if changed and not gone:
            self.seen = torch.cat([self.seen, given], dim=-2)
            self._asked.append(clock)
        elif changed:
            place = torch.arange(C, device=given.device) == gone[0]
            stay = [block for block in range(C) if block not in gone[1:]]
            self.seen = torch.where(place.unsqueeze(-1), given, self.seen)[..., stay, :]
            self._asked = [self._asked[block] for block in stay]
        # A row may hold the same context in two blocks, if other rows differed between them. Then the first block is used.
        self.current = (self.seen == given).all(dim=-1).byte().argmax(dim=-1)
        for block in set(self.current.reshape(-1).tolist()):
            self._asked[block] = clock
        return changed

    def checked(self, context: Any) -> Tensor:
        """A finite context, `batch_shape x c`, in the arms' dtype and on their device."""
        given = as_tensor("context", context, self.arms.dtype, self.arms.device)
        shapes = {torch.Size([self.dim]), torch.Size([*self._batch_shape, self.dim])}
        if given.shape not in shapes:
            raise ShapeError(f"context must be shaped {' or '.join(str(tuple(s)) for s in shapes)}, got {tuple(given.shape)}.")
        require(bool(torch.isfinite(given).all()), "the context has a NaN or infinite feature.", NonFiniteError)
        return given.expand(*self._batch_shape, self.dim)

    def elsewhere(self, points: Points, context: Any) -> Tensor:
        """Mask of the joint points, `batch_shape x q x (c + d)`, that are at other contexts than this one."""
        own = points[..., : self.dim]
        return (own != self.checked(context).unsqueeze(-2).to(own)).any(dim=-1)

    @property
    def limits(self) -> Tensor:
        """The range of each feature over the contexts that count, `batch_shape x c`."""
        return self.extremes[..., 1, :].double() - self.extremes[..., 0, :].double()

    def asked_as(self, other: Contexts) -> bool:
        """Whether both have the same current blocks and order of use, as after entering the current context again."""

        def ranks(times: list[int]) -> list[int]:
            return [sorted(set(times)).index(time) for time in times]

        return torch.equal(self.current, other.current) and ranks(self._asked) == ranks(other._asked)

    def blocks(self, points: Points) -> Tensor:
        """The block of each joint point, `batch_shape x q` for `batch_shape x q x (c + d)`; −1 if its context is not kept."""
        same = (points[..., : self.dim].unsqueeze(-2) == self.seen.unsqueeze(-3)).all(dim=-1)
        return torch.where(same.any(dim=-1), same.byte().argmax(dim=-1), -1)

    def inward(self, index: Picks, block: Tensor) -> Tensor:
        """Convert arm indices to joint indices; −1 stays −1."""
        return torch.where(index >= 0, index + block * self.arms.shape[-2], -1)

    def outward(self, index: Picks) -> Tensor:
        """Convert joint indices to arm indices; −1 stays −1."""
        return torch.where(index >= 0, index % self.arms.shape[-2], -1)

    def here(self, index: Picks) -> PickMask:
        """Mask of the joint picks that belong to the current context, in whichever of its blocks."""
        block = index.clamp_min(0) // self.arms.shape[-2]
        place = block.unsqueeze(-1).expand(*block.shape, self.dim)
        context = self.seen.gather(-2, self.current[..., None, None].expand(*block.shape[:-1], 1, self.dim))
        return (index >= 0) & (self.seen.gather(-2, place) == context).all(dim=-1)

    def only_here(self, available: Tensor | None) -> Tensor:
        """Mask of the joint arms on offer: the current block, restricted to the `available` arms (`batch_shape x A`)."""
        A, C = self.arms.shape[-2], self.seen.shape[-2]
        own = (torch.arange(C, device=self.arms.device) == self.current.unsqueeze(-1)).unsqueeze(-1)
        offered = own.expand(*own.shape[:-1], A) if available is None else own & available.unsqueeze(-2)
        return offered.flatten(-2)

    def at_current(self, per_arm: Tensor) -> Tensor:
        """Values of the joint arms, `batch_shape x (C A)`, restricted to the current context: `batch_shape x A`."""
        A = self.arms.shape[-2]
        place = self.current.unsqueeze(-1) * A + torch.arange(A, device=per_arm.device)
        return per_arm.expand(*place.shape[:-1], -1).gather(-1, place)

    def state_dict(self) -> dict[str, Any]:
        """The contexts, in the form that `load_` reads."""
        state = {"seen": self.seen, "current": self.current, "asked": list(self._asked), "extremes": self.extremes}
        return state | ({"moved": True} if self.moved else {})

    def load_(self, state: Any) -> None:
        """Restore the contexts from the result of `state_dict`.

        Raises:
            StateError: If `state` is not such a result, or does not fit these contexts or batch rows.
        """
        known = isinstance(state, dict) and {"seen", "current", "asked"} <= state.keys()
        require(known, "the saved contexts lack 'seen', 'current' or 'asked': load what state_dict() returned.", StateError)
        seen, current, asked = state["seen"], state["current"], state["asked"]
        rows, dim, extremes = self._batch_shape, self.dim, state.get("extremes", _extremes(self.seen))
        good = (
            isinstance(seen, Tensor) and seen.is_floating_point() and seen.dim() == len(rows) + 2
            and seen.shape[:-2] == rows and seen.shape[-1] == dim and seen.shape[-2] > 0
            and isinstance(current, Tensor) and current.dtype == torch.int64 and current.shape == rows
            and isinstance(asked, list) and len(asked) == seen.shape[-2] and all(type(time) is int for time in asked)
            and isinstance(extremes, Tensor) and extremes.is_floating_point() and extremes.shape == (*rows, 2, dim)
            and bool(extremes.isfinite().all())
        )  # fmt: skip
        good = good and bool(((current >= 0) & (current < seen.shape[-2])).all()) and bool(seen.isfinite().all())
        message = (
            f"the saved contexts are not {dim} features for batch rows {tuple(rows)}: load them into a bandit like theirs."
        )
        require(good, message, StateError)
        self.seen, self.current = own_copy(seen.to(self.arms)), own_copy(current.to(self.arms.device))
        # A state that was saved before the extremes were counts the contexts that it has kept.
        self.extremes = own_copy(extremes.to(self.arms)) if "extremes" in state else _extremes(self.seen)
        self._asked = list(asked)
        self.moved = self.moved or "moved" in state


def _extremes(contexts: Tensor) -> Tensor:
    """The smallest and the largest value of each feature of contexts, `... x 2 x c` for `... x C x c`."""
    return torch.stack([contexts.amin(dim=-2), contexts.amax(dim=-2)], dim=-2)


def check_contexts(contexts: Any, arms: Arms, batch_shape: torch.Size) -> Tensor:
    """Finite contexts, expanded to `batch_shape x C x c`, in the arms' dtype and on their device."""
    known = as_tensor("contexts", contexts, arms.dtype, arms.device)
    good = known.dim() in (2, len(batch_shape) + 2) and known.shape[:-2] in (torch.Size(), batch_shape) and known.numel() > 0
    if not good:
        shapes = dict.fromkeys(("C x c", " x ".join(str(size) for size in (*batch_shape, "C", "c"))))
        raise ShapeError(f"contexts must be {' or '.join(shapes)}, one row for each of C ≥ 1, got {tuple(known.shape)}.")
    require(bool(torch.isfinite(known).all()), "a context has a NaN or infinite feature.", NonFiniteError)
    return known.expand(*batch_shape, *known.shape[-2:])
