"""A sparse posterior tabulated on a growing list of evaluated arms instead of the whole arm set."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchbandits.arms.place_columns import FEW, PlaceColumns, between, lines_at
from torchbandits.arms.rows import ArmRows
from torchbandits.buffered import Buffered
from torchbandits.embeddings import Spectrum
from torchbandits.kernels import StationaryColumns, kernel_diagonal, kernel_matrix
from torchbandits.posteriors import GaussianProcess
from torchbandits.types import Picks

# Size of a block of columns that stays in cache while it is multiplied and squared.
_CHUNK_BYTES = 8 << 20


class GrowingTable(Buffered):
    r"""Mean and leverage (posterior variance / λ) of the arms evaluated so far, for a posterior with a dictionary.

    Each arm has a fixed place in the list. A new arm costs O(m²), and a new dictionary costs one m x m x R product over the R
    places. Nothing is computed for other arms.

    Args:
        rows: The arms, and the row of the posterior's statistics of each.
        posterior: A sparse posterior; its `batch_shape` is that of the table.
        memory_budget: Bytes that kernel columns of pulled points may occupy; beyond it they are recomputed in chunks.

    Buffers: `arm` `batch_shape x R` (−1 where padded), `leverage` and `prior_diagonal` of the same shape, `channels`
    `batch_shape x c x R` (regression outputs).
    """

    arm: Tensor
    prior_diagonal: Tensor
    leverage: Tensor
    channels: Tensor
    place_of_arm: Tensor
    _grows = ("arm", "prior_diagonal", "leverage", "channels")

    def __init__(self, rows: ArmRows, posterior: GaussianProcess, memory_budget: int) -> None:
        super().__init__()
        # In a tuple nn.Module does not see them; the policy's state registers them.
        self._owners = (rows, posterior)
        self._columns = PlaceColumns(memory_budget)
        # Dictionary rows, (a, N)ᵀ of the posterior's sweep factors, and the dictionary's columns if they have a closed formula.
        self._weights: tuple[Tensor, Tensor, StationaryColumns | None] | None = None
        shape, device = posterior.batch_shape, rows.arms.device
        none = torch.zeros(*shape, 0, dtype=torch.float64, device=device)
        self.register_buffer("arm", none.long())
        self.register_buffer("prior_diagonal", none)
        self.register_buffer("leverage", none)
        self.register_buffer("channels", none.unsqueeze(-2).expand(*shape, posterior.num_channels, 0))
        nowhere = torch.full((*shape, rows.num_arms), -1, device=device)
        self.register_buffer("place_of_arm", nowhere, persistent=False)

    # ------------------------------------------------------------------ reading

    @property
    def rows(self) -> ArmRows:
        """The arms and their rows."""
        return self._owners[0]

    @property
    def posterior(self) -> GaussianProcess:
        """The posterior that is tabulated."""
        return self._owners[1]

    def mean(self) -> Tensor:
        """Posterior mean at every place, `batch_shape x R`, reward units."""
        return self.posterior.reward_mean(self.channels)

    def mean_at(self, index: Picks) -> Tensor:
        """Posterior mean of arms in the list, `batch_shape x p`."""
        return self.mean().gather(-1, self.places(index).clamp_min(0))

    def leverage_at(self, index: Picks) -> Tensor:
        """Leverage of arms in the list, `batch_shape x p`."""
        return self.leverage.gather(-1, self.places(index).clamp_min(0))

    def places(self, index: Picks) -> Tensor:
        """Places of arms, `batch_shape x p`; −1 for arms that are not in the list."""
        return torch.where(index >= 0, self.place_of_arm.gather(-1, index.clamp_min(0)), -1)

    def columns_between(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Covariances of places (`batch_shape x p`) with every place, `batch_shape x p x R` each: zᵀV⁻¹z' (the part that a pull
        changes while the dictionary is frozen) and k̃ (the exact covariance). Cost O(R (m + d) p)."""
        fit, posterior = self.posterior.fit(), self.posterior
        points, p = self.rows.points(self.arm.gather(-1, index)).double(), index.shape[-1]
        products = self._products(fit.column_weights(fit.embedding(points)), fit.rows, None)
        c, explained = products[..., :p, :], products[..., p:, :]
        others = self.rows.points(self.arm).double()
        K = kernel_matrix(posterior.embedded_kernel, points, others)
        if (effects := fit.effects) is not None:
            share, every = (effects.share_at(self._rows_of(arm)) for arm in (self.arm.gather(-1, index), self.arm))
            K, scale = effects.prior(K, points, others, share, every), share.unsqueeze(-1) * every.unsqueeze(-2)
            c, explained = scale * c, scale * explained
        return c, c + (K - explained) / posterior.regularization

    # ------------------------------------------------------------------ writing

    @torch.no_grad()
    def look_at_(self, index: Picks) -> Tensor:
        """Find the places of distinct arms (`batch_shape x p`, −1 where padded), adding new arms. Cost O(m²) per new arm.

        Returns:
            The places, `batch_shape x p`, −1 where padded.
        """
        spare = self.rows.num_arms - self.place_of_arm.shape[-1]
        if spare:
            self.place_of_arm = nn.functional.pad(self.place_of_arm, (0, spare), value=-1)
        known = self.places(index)
        new = (index >= 0) & (known < 0)
        if not bool(new.any()):
            return known
        slot = (self.arm >= 0).sum(dim=-1, keepdim=True) + new.long().cumsum(dim=-1) - 1
        places = torch.where(new, slot, known)
        size = max(int(places.max()) + 1, self.arm.shape[-1])
        slot = torch.where(new, slot, size)
        # For a stationary kernel k(x, x) is the same everywhere.
        if self.arm.shape[-1] and Spectrum.of(self.posterior.kernel) is not None:
            diagonal = self.prior_diagonal[..., :1].expand(index.shape)
        else:
            diagonal = kernel_diagonal(self.posterior.kernel, self.rows.points(index).double()).double()
        self.arm = _placed(self.arm, slot, index, size, -1)
        self.prior_diagonal = _placed(self.prior_diagonal, slot, diagonal, size)
        far = torch.where(new, index, self.rows.num_arms)
        self.place_of_arm = _placed(self.place_of_arm, far, places, self.rows.num_arms)
        leverage, channels = self._evaluated(torch.where(new, places, 0))
        self.leverage = _placed(self.leverage, slot, leverage, size)
        at = slot.unsqueeze(-2).expand(channels.shape)
        self.channels = _placed(self.channels, at, channels, size)
        return places

    @torch.no_grad()
    def sweep_(self) -> GrowingTable:
        """Recompute every place from the posterior's factors. Cost one m x m x R product."""
        self._weights = None
        leverage, channels = self._evaluated(None)
        real = self.arm >= 0
        self.leverage = torch.where(real, leverage, 0.0)
        self.channels = torch.where(real.unsqueeze(-2), channels, 0.0)
        return self

    def twin(self) -> GrowingTable:
        """A table that shares the memory of this one. Later writes to one do not affect the other."""
        twin = copy.copy(self)
        twin._buffers, twin._columns = dict(self._buffers), PlaceColumns(0)
        return twin

    def _evaluated(self, places: Tensor | None) -> tuple[Tensor, Tensor]:
        """Leverage and regression outputs at places (`batch_shape x p`), or at all places if None."""
        posterior, c = self.posterior, self.channels.shape[-2]
        diagonal = self.prior_diagonal if places is None else self.prior_diagonal.gather(-1, places)
        prior = diagonal / posterior.regularization
        if posterior.statistics.size == 0:
            return prior, prior.new_zeros(*prior.shape[:-1], c, prior.shape[-1])
        if (effects := posterior.effects) is not None:
            prior = prior - effects.ratio.unsqueeze(-1)
        if self._weights is None:
            factors = posterior.sweep_factors(self._gram())
            rows = factors.rows
            points, known = posterior.statistics.points, None
            if StationaryColumns.supports(points, posterior.embedded_kernel):
                known = StationaryColumns(points[rows], posterior.embedded_kernel)
            self._weights = rows, factors.weights, known
        rows, weights, known = self._weights
        if places is not None and known is not None and places.numel() <= FEW:
            points = self.rows.points(self.arm.gather(-1, places)).double()
            out = weights @ known(points).mT
        else:
            out = self._products(weights, rows, places)
        leverage, channels = (prior - out[..., c:, :].square().sum(dim=-2)).clamp_min_(0), out[..., :c, :]
        if effects is None:
            return leverage, channels
        row = self._rows_of(self.arm if places is None else self.arm.gather(-1, places))
        return effects.added(leverage, channels, row)

    def _rows_of(self, arm: Picks) -> Tensor:
        """Rows of arms in the statistics, `batch_shape x p`, −1 without pulls (any row where padded)."""
        return self.rows.row_of(self.rows.entry(arm))

    def _products(self, weights: Tensor, rows: Tensor, places: Tensor | None) -> Tensor:
        """`weights` (`batch_shape x r x m`) times the kernel columns of rows (`batch_shape x m`) at places, or at all
        places."""
        block = self._columns.fill(self.posterior, self.rows, self.arm) if places is None else None
        index = self.arm if places is None else self.arm.gather(-1, places)
        points = self.posterior.statistics.at(rows)
        parts, step = [], max(256, _CHUNK_BYTES // (8 * max(1, rows.numel())))
        for start in range(0, index.shape[-1], step):
            part = slice(start, min(start + step, index.shape[-1]))
            if block is not None:
                K = lines_at(block, rows, part).reshape(*rows.shape, -1)
            else:
                K = kernel_matrix(self.posterior.embedded_kernel, points, self.rows.points(index[..., part]).double())
            parts.append(weights @ K)
        if not parts:
            return weights.new_zeros(*weights.shape[:-1], 0)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _gram(self) -> Callable[[Tensor], Tensor] | None:
        """Function that returns kernel values between the given rows and all rows, read from the kept columns. None unless
        every pulled point is an arm."""
        block = self._columns.fill(self.posterior, self.rows, self.arm)
        arm, mask = self.rows.arm_of_row, self.posterior.statistics.mask
        if block is None or not bool(((arm >= 0) == mask).all()):
            return None
        places = self.places(arm).clamp_min(0)
        return lambda rows: between(block, rows, places).reshape(*rows.shape, -1)

    # ------------------------------------------------------------------ snapshots, saved states and devices

    def forget(self) -> None:
        """Drop all derived values, which are recomputed when needed."""
        self._weights = None
        self._columns.forget()

    def snapshot(self) -> Callable[[], None]:
        """Function that restores the current derived values. The buffers must be restored by the caller."""
        weights, columns = self._weights, self._columns.snapshot()

        def restore() -> None:
            self._weights = weights
            columns()

        return restore

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.forget()
        super()._load_from_state_dict(state_dict, prefix, *args)
        A = self.rows.num_arms
        place = torch.arange(self.arm.shape[-1], device=self.arm.device).expand_as(self.arm)
        nowhere = torch.full((*self.arm.shape[:-1], A), -1, device=self.arm.device)
        self.place_of_arm = _placed(nowhere, torch.where(self.arm >= 0, self.arm, A), place, A)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GrowingTable:
        super()._apply(fn, recurse)
        self.forget()
        return self


def _placed(buffer: Tensor, slot: Tensor, value: Tensor, size: int, fill: int = 0) -> Tensor:
    """A copy of the buffer with `size` places and values written at slots of its last dimension. Values at slot `size` are
    discarded."""
    grown = nn.functional.pad(buffer, (0, size + 1 - buffer.shape[-1]), value=fill)
    return grown.scatter_(-1, slot, value.to(grown.dtype).expand(slot.shape))[..., :-1]
