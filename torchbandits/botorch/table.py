"""Marginals of a posterior on a fixed list of arms, updated from model to model by the appended columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchbandits.posteriors.conditional import Conditional

_CHUNK_NUMBERS = 1 << 20


@dataclass(frozen=True)
class Tabulated:
    """Mean and variance of each arm under a posterior without batch dimensions. Immutable.

    Attributes:
        arms: `A x d`, contiguous; never written to. They are recognised by their values.
        offset: Offset of the user's tensor in its storage, which tells the arms that a slice of it may hold.
        memory_budget: Bytes that the kernel columns may take.
        posterior: The posterior that is tabulated; None before the first use.
        points: `A x d`, transformed, float64.
        columns: `A x m` kernel columns of the base; None where they do not fit the budget.
        channels: `A x c`, the regression's outputs.
        variance: `A`.
    """

    arms: Tensor
    offset: int
    memory_budget: int
    posterior: Conditional | None = None
    points: Tensor | None = None
    columns: Tensor | None = None
    channels: Tensor | None = None
    variance: Tensor | None = None

    def to(self, device: torch.device) -> Tabulated:
        """The same arms on another device, not tabulated yet."""
        return Tabulated(self.arms.to(device), self.offset, self.memory_budget)

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of each arm, `A`, reward units."""
        assert self.posterior is not None
        assert self.channels is not None
        assert self.variance is not None
        return self.posterior.reward_mean(self.channels), self.variance

    def brought_to(self, posterior: Conditional, transform: Callable[[Tensor], Tensor]) -> Tabulated:
        """The table of another posterior. Cost: O(A m), one pass over the columns, if it was conditioned from this table's;
        else a sweep, O(A m²)."""
        old = self.posterior
        if old is None or self.columns is None or posterior.root is not old.root or not _continues(old, posterior):
            return self._swept(posterior, transform(self.arms).double())
        assert self.points is not None
        assert self.channels is not None
        assert self.variance is not None
        new, r, pad = posterior.extension, old.rank, torch.nn.functional.pad
        change = self.columns @ torch.cat([new.on_base[:, r:], posterior.coefficients - old.coefficients], dim=-1)
        p = new.points.shape[-2]
        if p:
            before = pad(old.extension.coefficients, (0, 0, 0, p - old.extension.points.shape[-2]))
            columns = posterior.seen.at(new.points).columns(self.points)
            change = change + columns @ torch.cat([new.on_points[:, r:], new.coefficients - before], dim=-1)
        appended = posterior.rank - r
        variance = (self.variance - change[:, :appended].square().sum(dim=-1)).clamp_min(0)
        return replace(self, posterior=posterior, channels=self.channels + change[:, appended:], variance=variance)

    def _swept(self, posterior: Conditional, points: Tensor) -> Tabulated:
        A, m = len(points), posterior.root.shape[-2]
        kept = points.new_empty(A, m) if 8 * A * m <= self.memory_budget else None
        step = max(128, _CHUNK_NUMBERS // max(1, m + posterior.rank))
        channels, variances = [], []
        for start in range(0, A, step):
            x = points[start : start + step]
            base, own = posterior.columns(x)
            if kept is not None:
                kept[start : start + step] = base
            channels.append(posterior.channels(base, own))
            variances.append(posterior.seen.diagonal(x, base) - posterior.whitened(base, own).square().sum(dim=-1))
        variance = torch.cat(variances).clamp_min(0)
        return replace(self, posterior=posterior, points=points, columns=kept, channels=torch.cat(channels), variance=variance)

    def rows(self, X: Tensor) -> slice | None:
        """The consecutive arms that `X` (`A' x d` or `A' x 1 x d`) holds; None if it holds other points.

        The offset of X in its storage tells which slice of the arms it would be, and its values whether it is one, so that a
        tensor that was written to, by torch or through shared memory, is not mistaken. Cost: a pass over X.
        """
        arms = self.arms
        if X.requires_grad or X.dtype != arms.dtype or X.shape[-1] != arms.shape[-1]:
            return None
        if not X.numel() or X.dim() not in (2, 3) or (X.dim() == 3 and X.shape[1] != 1):
            return None
        if not X.is_contiguous() or X.device != arms.device:
            return None
        # X may be a slice of the user's tensor, or of the copy, whose offset is 0.
        for before in dict.fromkeys([self.offset, 0]):
            start, rest = divmod(int(X.storage_offset()) - before, arms.shape[-1])
            inside = rest == 0 and start >= 0 and start + len(X) <= len(arms)
            if inside and torch.equal(X.reshape(len(X), -1), arms[start : start + len(X)]):
                return slice(start, start + len(X))
        return None


def _continues(old: Conditional, new: Conditional) -> bool:
    """Whether `new`, on the same base, was conditioned from `old`, once or several times."""
    r, p = old.rank, old.extension.points.shape[-2]
    if new.rank < r or new.extension.points.shape[-2] < p or new.batch_shape:
        return False
    # Columns of points far from the base, or of a base without points, differ on the points alone.
    same = torch.equal(new.extension.on_base[:, :r], old.extension.on_base)
    same = same and torch.equal(new.extension.on_points[:p, :r], old.extension.on_points)
    return same and torch.equal(new.extension.points[:p], old.extension.points)
