"""The arm table: mean and leverage of every arm, kept up to date with the posterior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchbandits.arms.columns import KernelColumns
from torchbandits.arms.directions import Directions, Leaders
from torchbandits.arms.features import ArmFeatures
from torchbandits.arms.rows import ArmRows, Summed
from torchbandits.arms.strategies import FromColumns, FromDirections, FromFeatures, TableStrategy, column_squares
from torchbandits.arms.ties import TIE
from torchbandits.budget import budget_on
from torchbandits.buffered import Buffered
from torchbandits.errors import NumericalError, require, rounding_remedy
from torchbandits.kernels import kernel_diagonal, kernel_matrix
from torchbandits.posteriors import Conditioning, GaussianProcess
from torchbandits.posteriors.effects import Effects
from torchbandits.posteriors.growth import Growth
from torchbandits.sources.base import parts
from torchbandits.threads import MANY_NUMBERS
from torchbandits.transfers import to_device, to_host
from torchbandits.types import Picks

# A leverage of so many rounding errors says nothing, and a mean may be moved by this part of a prior deviation; see
# `ArmTable._check_resolved`. The check is left out where rounding errors are smaller than the last number.
_LOST, _MOVED, _SMALL = 64, 1e-3, 1e-6
# Number of arms of which temporary numbers are held at once.
_PIECE = 1 << 24


class ArmTable(Buffered):
    r"""A Gaussian-process posterior tabulated on a finite arm set.

    For every arm the table holds the mean and the leverage (posterior variance / λ). A strategy keeps them up to date:
    `FromColumns` for a sparse posterior, `FromDirections` for an exact one, `FromFeatures` for finite features.

    Args:
        rows: The arms, and the row of the posterior's statistics of each.
        posterior: The posterior; its `batch_shape` is that of the table.
        memory_budget: Bytes that kernel columns or features may occupy, by default as in `budget_on`; beyond it, columns are
            recomputed in chunks.

    Buffers: `leverage` `batch_shape x A`, `channels` `batch_shape x c x A` (regression outputs), both float64.
    """

    rows: ArmRows
    posterior: GaussianProcess
    leverage: Tensor
    channels: Tensor
    prior_diagonal: Tensor
    kappa2: Tensor

    def __init__(self, rows: ArmRows, posterior: GaussianProcess, memory_budget: int | None) -> None:
        super().__init__()
        # Buffers of a sharded table are not saved, since a loaded state may have other ranks; they are swept again.
        batch_shape, A, saved = posterior.batch_shape, rows.num_arms, not rows.sharded
        memory_budget = budget_on(rows.source.device, memory_budget)
        # In `__dict__` they are not registered by nn.Module; the policy's state registers them.
        self.__dict__.update(rows=rows, posterior=posterior)
        self.features_of_arms = ArmFeatures(rows, posterior, memory_budget) if posterior.finite is not None else None
        self.columns = KernelColumns(rows, posterior, memory_budget)
        # A posterior in units of its own is exact at first, and its saved states have the same parts with a dictionary.
        exact = posterior.finite is None and (not posterior.sparse or posterior.units is not None)
        self.directions = Directions(rows, posterior, self.columns, memory_budget) if exact else None
        self._sparse = FromColumns(rows, posterior, self.columns)
        self._other: TableStrategy = self._sparse
        if self.features_of_arms is not None:
            self._other = FromFeatures(rows, posterior, self.features_of_arms)
        elif self.directions is not None:
            self._other = FromDirections(rows, posterior, self.columns, self.directions)
        self._choose_strategy()
        self._updates = 0
        # The prior variances of the arms, λ, and their ratio.
        self._prior: tuple[Tensor, float, Tensor] | None = None
        # The largest prior variance, λ, and the rounding error of a leverage if that can matter, otherwise None.
        self._resolution: tuple[Tensor, float, Tensor | None] | None = None
        # Leverages and regression outputs: on the host, of arms that are about to be told; on the device, of the last picks.
        self._foreseen: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        self._seen: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        diagonal = self._diagonal()
        self.register_buffer("prior_diagonal", diagonal, persistent=False)
        self.register_buffer("kappa2", self._largest(), persistent=False)
        leverage = (diagonal / posterior.regularization).expand(*batch_shape, A)
        self.register_buffer("leverage", leverage.clone(), persistent=saved)
        self.register_buffer("channels", self.leverage.new_zeros(*batch_shape, posterior.num_channels, A), persistent=saved)

    def _choose_strategy(self) -> None:
        """Choose the strategy of the posterior. An exact posterior that is given a dictionary becomes a sparse one."""
        self.strategy = self._sparse if self.posterior.sparse else self._other

    def _diagonal(self) -> Tensor:
        """k(x, x) of every arm, `A` or `batch_shape x A`."""
        if self.features_of_arms is not None:
            return self.features_of_arms.diagonal
        diagonal, effects = self.columns.diagonal, self.posterior.effects
        return diagonal if effects is None else diagonal + effects.variance.unsqueeze(-1)

    def _largest(self) -> Tensor:
        """The largest k(x, x) over the arms and over pulled points that are not, or no longer, arms."""
        largest, posterior, x = self.rows.across.amax(self.prior_diagonal), self.posterior, self.posterior.statistics.points
        if not x.shape[-2]:
            return largest
        diagonal = kernel_diagonal(posterior.kernel, x) if (z := posterior.finite) is None else z.diagonal(x)
        return torch.maximum(largest, torch.where(posterior.statistics.mask, diagonal.double(), 0.0).amax(dim=-1))

    # ------------------------------------------------------------------ reading

    def mean(self) -> Tensor:
        """Posterior mean of every arm, `batch_shape x A`, reward units."""
        return self.posterior.reward_mean(self._buffers["channels"])

    def bounds(self, width: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Confidence bounds by one compiled pass over the arms, for a sparse posterior, which has loaded numba already.

        None where there is no such pass: on devices, for several batch rows, for so many arms that several threads are faster,
        and if a bound is not finite.

        Args:
            width: `batch_shape`, confidence width.

        Returns:
            The upper bound of every arm, `A`; the largest upper and the largest lower bound; the first of the best arms, `1`.
        """
        leverage = self._buffers["leverage"]
        if leverage.dim() > 1 or leverage.device.type != "cpu" or leverage.numel() >= MANY_NUMBERS:
            return None
        from torchbandits.linalg.compiled import COMPILED, upper_bounds  # noqa: PLC0415 - numba takes half a second to load

        if not COMPILED or self.rows.sharded:
            return None
        mean, upper, largest = self.mean().contiguous(), torch.empty_like(leverage), leverage.new_empty(2)
        arrays = mean.numpy(), leverage.numpy()
        arm = upper_bounds(*arrays, self.posterior.regularization, width.item(), TIE, upper.numpy(), largest.numpy())
        if arm < 0:
            return None
        highest, lower = largest.unbind()
        return upper, highest, lower, torch.tensor([arm])

    def mean_at(self, index: Picks) -> Tensor:
        """Posterior mean of arms, `batch_shape x p`, reward units; of arm 0 where the index is −1."""
        return self.rows.across.at(index, self.mean())[0]

    def leverage_at(self, index: Picks) -> Tensor:
        """Leverage of arms, `batch_shape x p`; of arm 0 where the index is −1."""
        if self.rows.sharded:
            return self.rows.across.at(index, self.leverage)[0]
        leverage: Tensor = self._buffers["leverage"].gather(-1, index.clamp_min(0))
        return leverage

    def marginals_at(self, slot: Picks) -> tuple[Tensor, Tensor]:
        """Leverage, `batch_shape x p`, and channels, `batch_shape x c x p`, of arms at `slot` ≥ 0."""
        channels = self.channels
        at = slot.unsqueeze(-2).expand(*channels.shape[:-1], slot.shape[-1])
        return self.leverage.gather(-1, slot), channels.gather(-1, at)

    def leverage_of_picks(self, index: Picks, slot: Picks) -> Tensor:
        """`leverage_at` of picks, cached for `needed_of`; `slot` is `index`, 0 where padded."""
        leverage = self.leverage
        if self.rows.sharded:
            return self.leverage_at(index)
        of_picks = leverage.gather(-1, slot)
        self.__dict__["_seen"] = (leverage, index, slot, of_picks)
        return of_picks

    def needed_of(self, index: Picks) -> tuple[Tensor, Tensor]:
        """`marginals_at` of arms that are about to be told (−1 where padded), for `foresee_`."""
        channels, known = self.channels, self._seen
        if known is None or known[0] is not self.leverage or known[1] is not index:
            return self.marginals_at(index.clamp_min(0))
        return known[3], channels.gather(-1, known[2].unsqueeze(-2).expand(*channels.shape[:-1], index.shape[-1]))

    def foresee_(self, here: Picks, leverage: Tensor, channels: Tensor) -> None:
        """Cache `marginals_at` of arms that are about to be told, on the host, until the leverages change."""
        self._foreseen = (self.leverage, here, leverage, channels)

    def pulled(self, summed: Summed, leaders: Leaders | None = None) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Inputs of `update_` that are read before the pulls are added to the statistics: `marginals_at` of the arms, on the
        host, and `cross`."""
        cross = self.strategy.cross(summed.slot, leaders)
        return (self.marginals_at(summed.slot) if summed.distinct is summed.here else self._on_host(summed)), cross

    def pulled_leverage(self, summed: Summed) -> Tensor:
        """Leverage of pulled arms, `batch_shape x p`, on the host."""
        if summed.distinct is summed.here or self.rows.sharded:
            return self.leverage_at(summed.slot).cpu()
        return self._on_host(summed)[0]

    def _on_host(self, summed: Summed) -> tuple[Tensor, Tensor]:
        """`marginals_at` of arms, taken from the cache of `foresee_` if it has them, otherwise read in one transfer."""
        here = summed.here
        if (known := self._foreseen) is not None and known[0] is self.leverage:
            if torch.equal(here, known[1]):
                return known[2], known[3]
            same = here.unsqueeze(-1) == known[1].unsqueeze(-2)
            if bool((same.any(dim=-1) | (here < 0)).all()):
                place = same.byte().argmax(dim=-1)
                at = place.unsqueeze(-2).expand(*known[3].shape[:-1], place.shape[-1])
                return known[2].gather(-1, place), known[3].gather(-1, at)
        leverage, channels = to_host(*self.marginals_at(summed.slot))
        return leverage, channels

    # ------------------------------------------------------------------ writing

    def sweep_(self) -> ArmTable:
        """Recompute the mean and leverage of every arm from the posterior's factors. Cost O(A m (m + d)), or one m x m x A
        product if kernel columns or features are kept."""
        prior, strategy = self._prior_leverage(), self.strategy
        self.__dict__["_updates"] = 0
        if self.posterior.statistics.size == 0:
            self.leverage, self.channels = prior.expand_as(self.leverage).clone(), torch.zeros_like(self.channels)
            strategy.forget()
            return self
        buffers = self._buffers
        leverage, channels = torch.empty_like(buffers["leverage"]), torch.empty_like(buffers["channels"])
        effects = self.posterior.effects
        strategy.sweep(prior if effects is None else self.columns.diagonal / self.posterior.regularization, leverage, channels)
        leverage.clamp_min_(0)
        if self.posterior.sparse and self.rows.source.dtype != torch.float64:
            self._write_pulled_(leverage, channels, *self._told_in_double())
        if effects is not None:
            row = self.rows.row_of_each()
            leverage, channels = effects.added(leverage, channels, row)
        buffers["leverage"], buffers["channels"] = leverage, channels
        return self

    @property
    def follows_growth(self) -> bool:
        """Whether `follow_` can be called: on the host, where a sweep takes more time than many operations on small matrices,
        if all batch rows have the same number of points, before the pulls and after them, and these are arms if the arms are
        in float32."""
        rows, told = self.rows, self.posterior.statistics
        known = rows.source.dtype == torch.float64 or not rows.outside
        return known and rows.source.device.type == "cpu" and not rows.sharded and bool((told.num_rows == told.size).all())

    def columns_of_new(self, dictionary: Tensor, known: int) -> Tensor:
        """k between the points beyond the first `known`, which may join the dictionary (`batch_shape x m` rows), and all
        points, `batch_shape x q x u`."""
        posterior, rows = self.posterior, self.rows
        u, points = posterior.statistics.size, posterior.statistics.points
        if known == u:
            return points.new_empty(*rows.batch_shape, 0, u)
        new = torch.arange(known, u).expand(*rows.batch_shape, -1)
        if self.columns.fill(torch.cat([dictionary, new], dim=-1), partly=True) and not rows.outside:
            K_qu = self.columns.read(new, rows.arm_of_row)
            if K_qu is not None:
                return K_qu
        return kernel_matrix(posterior.embedded_kernel, points[..., known:, :], points).double()

    def follow_(self, growth: Growth, before: Effects | None) -> ArmTable:
        """Bring means and leverages up to date with the growth of the dictionary by pulls, where `follows_growth`. Cost
        O(A m p).

        Args:
            growth: The growth of the posterior.
            before: The random effects before the pulls.
        """
        assert self.strategy is self._sparse
        buffers, effects = self._buffers, self.posterior.effects
        leverage, channels, row = buffers["leverage"].clone(), torch.empty_like(buffers["channels"]), self.rows.row_of_each()
        if before is not None:
            known = row if growth.known == self.posterior.statistics.size else torch.where(row < growth.known, row, -1)
            leverage = before.smooth_leverage(leverage, before.share_at(known))
        in_double = None if self.rows.source.dtype == torch.float64 else self._told_after(growth, leverage)
        self._sparse.follow(growth, leverage, channels)
        leverage.clamp_min_(0)
        if in_double is not None:
            self._write_pulled_(leverage, channels, *in_double)
        if effects is not None:
            leverage, channels = effects.added(leverage, channels, row)
        buffers["leverage"], buffers["channels"] = leverage, channels
        return self

    def _told_in_double(self) -> tuple[Tensor, Tensor]:
        """Leverages, `batch_shape x u`, and channels, `batch_shape x c x u`, of the distinct points, in float64 and without
        random effects. Cost O(u m²)."""
        posterior = self.posterior
        fit, points = posterior.fit(), posterior.statistics.points
        residual = (fit.embedding.diagonal(points) - fit.features.square().sum(dim=-2)).clamp_min(0)
        leverage = residual / posterior.regularization + fit.regression.leverage(fit.features)
        return leverage, fit.regression.mean(fit.features)

    def _told_after(self, growth: Growth, leverage: Tensor) -> tuple[Tensor, Tensor]:
        """`_told_in_double` after the growth of the dictionary, given the leverages before it, `batch_shape x A`, which are
        accurate at the old points. Cost O(q m² + u)."""
        fit, known = growth.factors, growth.known
        old = leverage.gather(-1, self.rows.arm_of_row[..., :known]) + growth.change
        # The dictionary represents the new points up to rounding.
        new = fit.regression.leverage(fit.features[..., known:])
        return torch.cat([old.clamp_min(0), new], dim=-1), fit.regression.mean(fit.features)

    def _write_pulled_(self, leverage: Tensor, channels: Tensor, own: Tensor, mean: Tensor) -> None:
        """Write the values of pulled arms, in float64, over those of float32 arms. Cost O(A).

        Dictionaries are drawn by the leverages of pulled arms, which are small differences of numbers of the size of k(x, x)/λ:
        a point whose leverage rounds to 0 would leave the dictionary, however much its rewards tell.
        """
        row = self.rows.row_of_each()
        for part in parts(0, row.shape[-1], _PIECE):
            some = row[..., part]
            slot, known = some.clamp_min(0), some >= 0
            leverage[..., part] = torch.where(known, own.gather(-1, slot), leverage[..., part])
            known, at = known.unsqueeze(-2), slot.unsqueeze(-2).expand(*channels.shape[:-1], -1)
            channels[..., part] = torch.where(known, mean.gather(-1, at), channels[..., part])

    def _prior_leverage(self) -> Tensor:
        """k(x, x) / λ of every arm, `A` or `batch_shape x A`, kept between the sweeps of not too many arms."""
        diagonal, lam, known = self._buffers["prior_diagonal"], self.posterior.regularization, self._prior
        if known is None or known[0] is not diagonal or known[1] != lam:
            known = (diagonal, lam, diagonal / lam)
            if diagonal.numel() < MANY_NUMBERS:
                self.__dict__["_prior"] = known
        return known[2]

    def keep_dictionary_(self) -> ArmTable:
        """Give an exact posterior a dictionary of all its points, which is replaced later. `sweep_` must be called next."""
        self.posterior.keep_dictionary_()
        if self.directions is not None:
            self.directions.forget_all()
        self._choose_strategy()
        if self.posterior.effects is not None:
            # Columns and their diagonal no longer include the effects.
            self.renew_()
        return self

    def sweep_rows_(self, rows: Tensor) -> ArmTable:
        """`sweep_` for the marked batch rows (`batch_shape`) of a table of finite features; other rows are not changed."""
        leverage, channels, updates = self.leverage, self.channels, self._updates
        self.sweep_()
        self.leverage = torch.where(rows.unsqueeze(-1), self.leverage, leverage)
        self.channels = torch.where(rows[..., None, None], self.channels, channels)
        self._updates = updates
        return self

    def renew_(self) -> ArmTable:
        """Take over a new kernel or λ of the posterior, and drop everything computed with the old one. `sweep_` must be called
        next, to bring means and leverages up to date. Cost O(A d)."""
        self.columns.renew()
        if self.features_of_arms is None:
            self.prior_diagonal = self._diagonal()
            self.kappa2 = self._largest()
        return self

    def cross(self, slot: Picks) -> Tensor:
        """k̃(x_p, ·) of arms (`batch_shape x p`, ≥ 0, any arm where padded) under the current posterior, `batch_shape x p x A`:
        the input of `update_`, to be computed before the pulls are added to the statistics. Not for sparse posteriors. Cost
        O(A u p), or O(A m p) for finite features."""
        return self.strategy.cross(slot, None)

    def update_(
        self, slot: Picks, counts: Tensor, targets: Tensor, cross: Tensor, own: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Bring means and leverages up to date with pulls of p distinct arms (already in the statistics).

        Args:
            slot: `batch_shape x p`, any arm where padded.
            counts: `batch_shape x p`, 0 where padded.
            targets: `batch_shape x p x c`, regression targets summed over the pulls.
            cross: The result of `cross(slot)` before the pulls; variances of the arms in it are overwritten.
            own: `marginals_at(slot)`; on the host where counts and targets are there.

        Returns:
            Increase of log det(V/λ) by the pulls, `batch_shape`, on the host or on the device.

        Raises:
            NumericalError: If float64 can't resolve the pulls beside the prior variance.

        Cost: O(A p²).
        """
        leverage_p, channels_p = own or self.marginals_at(slot)
        # Written out, because every call counts in a small step.
        largest, lam, known = self._buffers["kappa2"], self.posterior.regularization, self._resolution
        if known is None or known[0] is not largest or known[1] != lam:
            self._resolution = known = (largest, lam, _rounding(largest, lam))
        if known[2] is not None and self.directions is not None:
            self._check_resolved(known[2], leverage_p, channels_p, counts, targets)
        p = slot.shape[-1]
        if p == 1:
            return self._update_one(slot, leverage_p, channels_p, counts, targets, cross)
        leverage_p, channels_p, counts, targets = to_device(slot.device, leverage_p, channels_p, counts, targets)
        # Take the variances of the pulled arms from the leverages, so that both agree.
        C_pa = cross.contiguous().scatter_(-1, slot.unsqueeze(-1), leverage_p.to(cross.dtype).unsqueeze(-1))
        C_pp = C_pa.gather(-1, slot.unsqueeze(-2).expand(*C_pa.shape[:-1], p)).double()
        conditioning = Conditioning.on(C_pp, counts)
        innovations = conditioning.innovations(targets, channels_p.mT)
        # With G = L⁻¹√N C_P, leverages fall by the squares of G and means move by Gᵀ times the innovations (see
        # `Conditioning`).
        G = self.strategy.conditioned(conditioning, C_pa)
        self._updates += G.shape[-2]
        self.leverage = (self.leverage - column_squares(G)).clamp_min_(0)
        self.channels = self.channels + innovations.mT @ G
        return conditioning.log_det

    def _check_resolved(self, rounding: Tensor, leverage: Tensor, channels: Tensor, counts: Tensor, targets: Tensor) -> None:
        """Refuse pulls whose rewards are so far from the mean of an arm that was pulled before that rounding errors of its
        covariances with other arms, times this distance, would move their means by a thousandth of a prior deviation.

        Without it the outcome depends on the sign of rounding errors, which depends on the processor.
        """
        # Each batch row has its own scale: outcomes may be a purity and a number of cells.
        rounding, largest = (part.to(leverage.device).unsqueeze(-1) for part in (rounding, self._buffers["kappa2"]))
        lost = (leverage <= _LOST * rounding) & (counts > 0)
        apart = (targets - counts.unsqueeze(-1) * channels.mT).abs().amax(dim=-1)
        wrong = lost & (rounding * apart > _MOVED * largest.sqrt())
        require(
            not bool(wrong.any()),
            f"regularization (λ, by default noise_std²) is {self.posterior.regularization:.1e}: beside k(x, x) = "
            f"{float((largest * wrong).max()):.1e} float64 can't resolve how far the rewards of an arm that was pulled before "
            "are from its mean. Give the "
            f"noise_std of the rewards.{rounding_remedy(str(self.rows.source.dtype))}",
            NumericalError,
        )

    def _update_one(
        self, slot: Picks, leverage_j: Tensor, channels_j: Tensor, counts: Tensor, targets: Tensor, cross: Tensor
    ) -> Tensor:
        """`update_` with one arm j per row, the hot path: one pass over the arms per line.

        leverage ← leverage − n k̃²/(1 + n k̃_j), mean ← mean + k̃ (s − n μ_j)/(1 + n k̃_j), log det ← log det + log(1 + n k̃_j),
        where k̃ is the covariance with arm j and k̃_j its leverage.
        """
        gain = leverage_j * counts
        shrink = 1 / (1 + gain)
        moved = ((targets.squeeze(-2) - counts * channels_j.squeeze(-1)) * shrink).unsqueeze(-1)
        scale = (counts * shrink).sqrt()
        single = gain.device != slot.device and gain.numel() == moved.numel() == 1
        if single:
            # A device reads single numbers with its operations.
            by, step = scale.item(), moved.item()
            c = cross.squeeze(-2).scatter(-1, slot, leverage_j.item())
            g = c.double() * by
        else:
            if gain.device != slot.device:
                leverage_j, scale, moved = to_device(slot.device, leverage_j, scale, moved)
            c = cross.squeeze(-2).scatter(-1, slot, leverage_j.to(cross.dtype))
            g = c * scale
        self.__dict__["_updates"] += 1
        self.strategy.append(g.unsqueeze(-2), lambda columns: columns * (by if single else scale.unsqueeze(-1)))
        self._buffers["leverage"] = torch.addcmul(self.leverage, g, g, value=-1).clamp_min_(0)
        c = c.unsqueeze(-2)
        channels = torch.add(self.channels, c, alpha=step) if single else torch.addcmul(self.channels, moved, c)
        self._buffers["channels"] = channels
        return gain.log1p_().squeeze(-1)

    def needs_sweep(self, rows: int = 0) -> bool:
        """Whether updates have made the table long or imprecise, or leave no room for pulls of `rows` further distinct arms."""
        return self.strategy.needs_sweep(self._updates, rows)

    @property
    def incomplete(self) -> bool:
        """Whether the loaded state leaves out values that a sweep must recompute."""
        return not self.posterior.sparse and self.directions is not None and self.directions.incomplete

    def _sweep_directions(self) -> None:
        """Recompute the directions alone, which a sweep has overwritten before it was undone."""
        warm = self.posterior.factorised
        self.strategy.sweep(self._prior_leverage(), torch.empty_like(self.leverage), torch.empty_like(self.channels))
        if not warm:
            self.posterior.invalidate_()

    # ------------------------------------------------------------------ covariances between arms

    def features(self, index: Picks) -> tuple[Any, ...]:
        """Inputs of `covariance` for each indexed arm, in the form of the strategy."""
        return self.strategy.features(index)

    def covariance(self, left: tuple[Any, ...], right: tuple[Any, ...], *, frozen: bool | Tensor) -> Tensor:
        """The part of the leverage-scale covariance that a pull changes, `batch_shape x n x n'`: k̃, or zᵀV⁻¹z' of a sparse
        posterior in batch rows whose dictionary is frozen. Cost O(n n' (m + d))."""
        return self.strategy.covariance(left, right, frozen)

    def columns_between(self, index: Picks, features: tuple[Any, ...] | None = None) -> tuple[Tensor, Tensor]:
        """Covariances of p arms with every arm, `batch_shape x p x A` each: c (the part that a pull changes while the
        dictionary is frozen) and k̃ (the exact covariance). Both are the same tensor if the posterior is not sparse. `features`
        are those of the arms, where they are known. Cost O(A m p)."""
        return self.strategy.columns_between(index, features)

    # ------------------------------------------------------------------ snapshots, saved states and devices

    def snapshot(self) -> Callable[[], None]:
        """Function that restores the current derived values. The buffers must be restored by the caller."""
        updates, own = self._updates, self.directions
        directions = None if own is None else own.snapshot()
        # The property costs a call, and every call counts in a small step.
        diagonal, incomplete = self.columns.diagonal, own is not None and own.incomplete

        def restore() -> None:
            self._updates = updates
            # The posterior is restored first, and may have been given a dictionary since the snapshot.
            self._choose_strategy()
            self.columns.forget()
            self.columns.diagonal = diagonal
            if directions is not None:
                directions()
            if self.incomplete and not incomplete:
                self._sweep_directions()

        return restore

    def get_extra_state(self) -> dict[str, int]:
        """Number of updates since the last sweep."""
        return {"updates": self._updates}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Restore the result of `get_extra_state`."""
        self._updates = state["updates"]
        self._choose_strategy()
        # The posterior was loaded before the table, with the kernel it was fitted to.
        self.renew_()
        # Random features are those of the loaded state, so earlier products with them are void.
        if self.features_of_arms is not None:
            self.features_of_arms.forget()
            self.prior_diagonal = self.features_of_arms.diagonal
            self.kappa2 = self._largest()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ArmTable:
        super()._apply(fn, recurse)
        self.columns.forget()
        self.columns.diagonal = self.columns.diagonal.to(self.prior_diagonal.device)
        if self.features_of_arms is not None:
            self.features_of_arms.forget()
        return self


def _rounding(largest: Tensor, regularization: float) -> Tensor | None:
    """The rounding error of a leverage beside the largest prior variance of its batch row, `batch_shape`, or None if it is
    small in all rows."""
    error = torch.finfo(torch.float64).eps * largest / regularization
    return error if float(error.max()) > _SMALL else None
