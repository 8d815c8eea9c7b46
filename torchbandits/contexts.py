"""Contexts: the arm set once for each context kept, side by side, so that one posterior and one table serve them all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchbandits.checks import as_tensor, check_whole, own_copy
from torchbandits.errors import NonFiniteError, ShapeError, require
from torchbandits.types import Arms, PickMask, Picks, Points


class Contexts:
    """Which block of a joint arm set belongs to which context; the one not asked for longest makes room for a new one.

    A joint arm is (context, arm), the context's features first.

    Args:
        arms: `A x d` or `batch_shape x A x d`.
        known: `C x c` or `batch_shape x C x c`, contexts known at the start, at least one.
        most: How many are kept, at least C; blocks with picks that are out are kept beyond.
        batch_shape: Leading dimensions of the bandit.
    """

    def __init__(self, arms: Arms, known: Tensor, most: int, batch_shape: torch.Size) -> None:
        known = own_copy(check_contexts(known, arms, batch_shape))
        check_whole("max_contexts", most)
        self.arms, self.most, self._batch_shape = arms, max(most, known.shape[-2]), batch_shape
        self.seen = known  # batch_shape x C x c
        self.current = torch.zeros(batch_shape, dtype=torch.int64, device=arms.device)  # the block of each row
        self._asked = list(range(known.shape[-2]))  # when each was asked for

    @property
    def dim(self) -> int:
        """Features of a context."""
        return self.seen.shape[-1]

    def joint(self) -> Tensor:
        """Joint arms, block after block: `(C A) x (c + d)`, with the batch shape where contexts or arms have one."""
        arms, seen = self.arms, self.seen
        if arms.dim() == 2 and bool((seen == seen.reshape(-1, *seen.shape[-2:])[0]).all()):
            seen = seen.reshape(-1, *seen.shape[-2:])[0]  # the rows share them: one set of arms for all
        shape = torch.broadcast_shapes(arms.shape[:-2], seen.shape[:-2])
        C, A = seen.shape[-2], arms.shape[-2]
        both = (seen.unsqueeze(-2).expand(*shape, C, A, -1), arms.unsqueeze(-3).expand(*shape, C, A, -1))
        return torch.cat(both, dim=-1).reshape(*shape, C * A, -1)

    def repeated(self, per_arm: Tensor | None) -> Tensor | None:
        """Numbers of arms, `... x A`, for every block: `... x (C A)`."""
        return None if per_arm is None else per_arm.tile(self.seen.shape[-2])

    def enter_(self, context: Any, busy: Iterable[int]) -> bool:
        """Make a context (`c` or `batch_shape x c`) the current one; True where the joint arms have changed for it.

        Args:
            context: As above.
            busy: Blocks that must stay.
        """
        given = as_tensor("context", context, self.arms.dtype, self.arms.device)
        shapes = {torch.Size([self.dim]), torch.Size([*self._batch_shape, self.dim])}
        if given.shape not in shapes:
            raise ShapeError(f"context must be shaped {' or '.join(str(tuple(s)) for s in shapes)}, got {tuple(given.shape)}.")
        require(bool(torch.isfinite(given).all()), "the context has a NaN or infinite feature.", NonFiniteError)
        given = given.expand(*self._batch_shape, self.dim).unsqueeze(-2)
        same = (self.seen == given).all(dim=-1)
        changed, clock, C = not bool(same.any(dim=-1).all()), max(self._asked) + 1, self.seen.shape[-2]
        used = same.byte().argmax(dim=-1)[same.any(dim=-1)].tolist()  # of rows that know this context
        self._asked = list(self._asked)
        if changed and (self.most > C or not (idle := set(range(C)) - set(busy) - set(used))):
            self.seen = torch.cat([self.seen, given], dim=-2)
            self._asked.append(clock)
        elif changed:
            place = torch.arange(C, device=given.device) == min(idle, key=lambda block: self._asked[block])
            self.seen = torch.where(place.unsqueeze(-1), given, self.seen)
        # A row may know a context twice, if others were paired with it differently: its first block is the one that counts.
        self.current = (self.seen == given).all(dim=-1).byte().argmax(dim=-1)
        for block in set(self.current.reshape(-1).tolist()):
            self._asked[block] = clock
        return changed

    def asked_as(self, other: Contexts) -> bool:
        """Whether the same blocks are current and were asked for in the same order: so after entering the current one again."""

        def ranks(times: list[int]) -> list[int]:
            return [sorted(set(times)).index(time) for time in times]

        return torch.equal(self.current, other.current) and ranks(self._asked) == ranks(other._asked)

    def blocks(self, points: Points) -> Tensor:
        """The block of each joint point, `batch_shape x q` for `batch_shape x q x (c + d)`; −1 where it is not kept."""
        same = (points[..., : self.dim].unsqueeze(-2) == self.seen.unsqueeze(-3)).all(dim=-1)
        return torch.where(same.any(dim=-1), same.byte().argmax(dim=-1), -1)

    def inward(self, index: Picks, block: Tensor) -> Tensor:
        """Arm indices to joint ones; −1 stays."""
        return torch.where(index >= 0, index + block * self.arms.shape[-2], -1)

    def outward(self, index: Picks) -> Tensor:
        """Joint indices to those of arms; −1 stays."""
        return torch.where(index >= 0, index % self.arms.shape[-2], -1)

    def here(self, index: Picks) -> PickMask:
        """Which joint picks belong to the current context."""
        return (index >= 0) & (index // self.arms.shape[-2] == self.current.unsqueeze(-1))

    def only_here(self, available: Tensor | None) -> Tensor:
        """Joint arms on offer: the current block, or what is on offer of it (`batch_shape x A`)."""
        A, C = self.arms.shape[-2], self.seen.shape[-2]
        own = (torch.arange(C, device=self.arms.device) == self.current.unsqueeze(-1)).unsqueeze(-1)
        offered = own.expand(*own.shape[:-1], A) if available is None else own & available.unsqueeze(-2)
        return offered.flatten(-2)

    def own(self, per_arm: Tensor) -> Tensor:
        """Numbers of the joint arms, `batch_shape x (C A)`, at the current context, `batch_shape x A`."""
        A = self.arms.shape[-2]
        place = self.current.unsqueeze(-1) * A + torch.arange(A, device=per_arm.device)
        return per_arm.expand(*place.shape[:-1], -1).gather(-1, place)

    def state_dict(self) -> dict[str, Any]:
        """What `load_` needs."""
        return {"seen": self.seen, "current": self.current, "asked": list(self._asked)}

    def load_(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.seen, self.current = own_copy(state["seen"].to(self.arms)), own_copy(state["current"].to(self.arms.device))
        self._asked = list(state["asked"])


def check_contexts(contexts: Any, arms: Arms, batch_shape: torch.Size) -> Tensor:
    """Finite contexts, expanded to `batch_shape x C x c`, in the arms' dtype and on their device."""
    known = as_tensor("contexts", contexts, arms.dtype, arms.device)
    good = known.dim() in (2, len(batch_shape) + 2) and known.shape[:-2] in (torch.Size(), batch_shape) and known.numel() > 0
    if not good:
        raise ShapeError(f"contexts must be C x c or {(*batch_shape, 'C', 'c')}, at least one, got {tuple(known.shape)}.")
    require(bool(torch.isfinite(known).all()), "a context has a NaN or infinite feature.", NonFiniteError)
    return known.expand(*batch_shape, *known.shape[-2:])
