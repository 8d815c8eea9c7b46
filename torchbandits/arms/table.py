"""The arm table: mean and leverage of every arm, kept up to date with the posterior."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchbandits.arms.columns import KernelColumns
from torchbandits.arms.directions import Directions, Leaders
from torchbandits.arms.features import ArmFeatures
from torchbandits.arms.rows import ArmRows
from torchbandits.arms.strategies import FromColumns, FromDirections, FromFeatures, TableStrategy
from torchbandits.kernels import kernel_diagonal
from torchbandits.posteriors import Conditioning, GaussianProcess
from torchbandits.types import Picks


class ArmTable(nn.Module):
    r"""A Gaussian-process posterior tabulated on a finite arm set.

    For every arm the table holds the mean and the leverage (posterior variance / λ). How they are kept up to date is the
    matter of a strategy: `FromColumns` for a sparse posterior, `FromDirections` for an exact one, `FromFeatures` for finite
    features.

    Args:
        rows: The arms, and which row of the posterior's statistics each one is.
        posterior: Its `batch_shape` is the table's.
        memory_budget: Bytes that kernel columns or features may take; columns are recomputed chunk by chunk beyond it.

    Buffers: `leverage` `batch_shape x A`, `channels` `batch_shape x c x A` (regression outputs), both float64.
    """

    rows: ArmRows
    posterior: GaussianProcess
    leverage: Tensor
    channels: Tensor
    prior_diagonal: Tensor
    kappa2: Tensor

    def __init__(self, rows: ArmRows, posterior: GaussianProcess, memory_budget: int) -> None:
        super().__init__()
        batch_shape, A, saved = posterior.batch_shape, rows.num_arms, not rows.sharded  # those of a rank are swept again
        self.__dict__.update(rows=rows, posterior=posterior)  # hidden from nn.Module: the state registers them
        self.features_of_arms = ArmFeatures(rows, posterior, memory_budget) if posterior.finite is not None else None
        self.columns = KernelColumns(rows, posterior, memory_budget)
        exact = not posterior.sparse and posterior.finite is None
        self.directions = Directions(rows, posterior, self.columns, memory_budget) if exact else None
        self._sparse = FromColumns(rows, posterior, self.columns)
        self._other: TableStrategy = self._sparse
        if self.features_of_arms is not None:
            self._other = FromFeatures(rows, posterior, self.features_of_arms)
        elif self.directions is not None:
            self._other = FromDirections(rows, posterior, self.columns, self.directions)
        self._choose_strategy()
        self._updates = 0
        diagonal = self.columns.diagonal if self.features_of_arms is None else self.features_of_arms.diagonal
        self.register_buffer("prior_diagonal", diagonal, persistent=False)
        self.register_buffer("kappa2", self._largest(), persistent=False)
        leverage = (diagonal / posterior.regularization).expand(*batch_shape, A)
        self.register_buffer("leverage", leverage.clone(), persistent=saved)
        self.register_buffer("channels", self.leverage.new_zeros(*batch_shape, posterior.num_channels, A), persistent=saved)

    def _choose_strategy(self) -> None:
        """An exact posterior that is given a dictionary is tabulated as a sparse one from then on."""
        self.strategy = self._sparse if self.posterior.sparse else self._other

    def _largest(self) -> Tensor:
        """The largest k(x, x) of an arm, or of a point that was pulled though it is no arm (any more)."""
        largest, posterior, x = self.rows.across.amax(self.prior_diagonal), self.posterior, self.posterior.statistics.points
        if not x.shape[-2]:
            return largest
        own = kernel_diagonal(posterior.kernel, x) if (z := posterior.finite) is None else z.diagonal(x)
        return torch.maximum(largest, torch.where(posterior.statistics.mask, own.double(), 0.0).amax(dim=-1))

    # ------------------------------------------------------------------ reading

    def mean(self) -> Tensor:
        """Posterior mean of every arm, `batch_shape x A`, reward units."""
        return self.posterior.reward_mean(self.channels)

    def mean_at(self, index: Picks) -> Tensor:
        """Posterior mean of arms, `batch_shape x p`, reward units; of arm 0 where the index is −1."""
        return self.rows.across.at(index, self.mean())[0]

    def leverage_at(self, index: Picks) -> Tensor:
        """Leverage of arms, `batch_shape x p`; of arm 0 where the index is −1."""
        if self.rows.sharded:
            return self.rows.across.at(index, self.leverage)[0]
        return self.leverage.gather(-1, index.clamp_min(0))

    # ------------------------------------------------------------------ writing

    def sweep_(self) -> ArmTable:
        """Recompute the mean and leverage of every arm from the posterior's factors. Cost O(A m (m + d)) or, with the
        kernel columns or features at hand, one m x m x A product."""
        prior, strategy = self.prior_diagonal / self.posterior.regularization, self.strategy
        self._updates = 0
        if self.posterior.statistics.size == 0:
            self.leverage, self.channels = prior.expand_as(self.leverage).clone(), torch.zeros_like(self.channels)
            strategy.forget()
            return self
        leverage, channels = torch.empty_like(self.leverage), torch.empty_like(self.channels)
        strategy.sweep(prior, leverage, channels)
        self._buffers["leverage"], self._buffers["channels"] = leverage.clamp_min_(0), channels
        return self

    def keep_dictionary_(self) -> ArmTable:
        """Give an exact posterior a dictionary, of all its points until another is chosen; `sweep_` is due then."""
        self.posterior.keep_dictionary_()
        if self.directions is not None:
            self.directions.forget_all()
        self._choose_strategy()
        return self

    def sweep_rows_(self, rows: Tensor) -> ArmTable:
        """`sweep_` for the marked batch rows (`batch_shape`) of a table of finite features; the others stay as they are."""
        leverage, channels, updates = self.leverage, self.channels, self._updates
        self.sweep_()
        self.leverage = torch.where(rows.unsqueeze(-1), self.leverage, leverage)
        self.channels = torch.where(rows[..., None, None], self.channels, channels)
        self._updates = updates
        return self

    def renew_(self) -> ArmTable:
        """Take over a kernel or λ that the posterior was given meanwhile: what was computed with the one before is dropped.
        `sweep_` then brings means and leverages up to date. Cost O(A d)."""
        self.columns.renew()
        if self.features_of_arms is None:
            self.prior_diagonal = self.columns.diagonal
            self.kappa2 = self._largest()
        return self

    def cross(self, index: Picks, leaders: Leaders | None = None) -> Tensor:
        """k̃(x_p, ·) of arms (`batch_shape x p`) under the posterior of this moment, `batch_shape x p x A`: what `update_`
        needs, to be read before the pulls are added to the statistics. Not for sparse posteriors.

        Args:
            index: −1 where padded.
            leaders: Arms that are likely to be pulled next, worth evaluating ahead.

        Cost: O(A u p), or O(A p) where the arms were evaluated ahead; O(A m p) for finite features.
        """
        return self.strategy.cross(index, leaders)

    def update_(self, index: Picks, counts: Tensor, targets: Tensor, cross: Tensor) -> Tensor:
        """Bring means and leverages up to date with pulls of p distinct arms (already in the statistics).

        Args:
            index: `batch_shape x p`, −1 where padded.
            counts: `batch_shape x p`.
            targets: `batch_shape x p x c`, regression targets summed over the pulls.
            cross: What `cross(index)` returned before the pulls.

        Returns:
            What the pulls add to log det(V/λ), `batch_shape`.

        Cost: O(A p²).
        """
        if index.shape[-1] == 1:
            return self._update_one(index.clamp_min(0), counts, targets, cross)
        p, slot = index.shape[-1], index.clamp_min(0)
        own = self.leverage.gather(-1, slot)
        C_pa = cross.scatter(-1, slot.unsqueeze(-1), own.to(cross.dtype).unsqueeze(-1))
        C_pp = C_pa.gather(-1, slot.unsqueeze(-2).expand(*C_pa.shape[:-1], p)).double()
        conditioning = Conditioning.on(C_pp, counts)
        mean_p = self.channels.gather(-1, slot.unsqueeze(-2).expand(*self.channels.shape[:-1], p)).mT
        innovations = conditioning.innovations(targets, mean_p)
        G = conditioning.directions(C_pa.double())
        self._updates += G.shape[-2]
        self.strategy.append(G)
        self.leverage = (self.leverage - G.square().sum(dim=-2)).clamp_min_(0)
        self.channels = self.channels + innovations.mT @ G
        return conditioning.log_det

    def _update_one(self, slot: Tensor, counts: Tensor, targets: Tensor, cross: Tensor) -> Tensor:
        """`update_` with one arm a row, the hot path: its scalars written out, one pass over the arms a line."""
        own = self.leverage.gather(-1, slot)
        mean = self.channels.gather(-1, slot.unsqueeze(-2).expand(*self.channels.shape[:-1], 1)).squeeze(-1)
        gain = own * counts
        shrink = 1 / (1 + gain)
        c = cross.squeeze(-2).scatter(-1, slot, own.to(cross.dtype))
        g = c * (counts * shrink).sqrt()
        self._updates += 1
        self.strategy.append(g.unsqueeze(-2))
        moved = ((targets.squeeze(-2) - counts * mean) * shrink).unsqueeze(-1)
        self._buffers["leverage"] = torch.addcmul(self.leverage, g, g, value=-1).clamp_min_(0)
        self._buffers["channels"] = torch.addcmul(self.channels, moved, c.unsqueeze(-2))
        return gain.log1p_().squeeze(-1)

    def needs_sweep(self, rows: int = 0) -> bool:
        """Whether updates have made the table long or imprecise, or leave no room for pulls of so many distinct arms."""
        return self.strategy.needs_sweep(self._updates, rows)

    @property
    def incomplete(self) -> bool:
        """Whether a state was loaded that leaves out what a sweep computes anew."""
        return not self.posterior.sparse and self.directions is not None and self.directions.incomplete

    # ------------------------------------------------------------------ covariances between arms

    def features(self, index: Picks) -> tuple[Tensor, ...]:
        """What `covariance` needs of each indexed arm, in the terms of the strategy."""
        return self.strategy.features(index)

    def covariance(self, left: tuple[Tensor, ...], right: tuple[Tensor, ...], *, frozen: bool | Tensor) -> Tensor:
        """Leverage-scale covariance that a pull moves, `batch_shape x n x n'`: k̃, or zᵀV⁻¹z' of a sparse posterior in rows
        whose dictionary is frozen. Cost O(n n' (m + d))."""
        return self.strategy.covariance(left, right, frozen)

    def columns_between(self, index: Picks) -> tuple[Tensor, Tensor]:
        """Covariances of p arms with every arm, `batch_shape x p x A` each: c (what a pull moves with the dictionary
        frozen) and k̃ (the exact one); the same tensor twice for a posterior that is not sparse. Cost O(A m p)."""
        return self.strategy.columns_between(index)

    # ------------------------------------------------------------------ going back, and moving

    def snapshot(self) -> Callable[[], None]:
        """A way back to the derived numbers of this moment (the buffers are the caller's)."""
        updates, directions = self._updates, None if self.directions is None else self.directions.snapshot()
        diagonal = self.columns.diagonal

        def restore() -> None:
            self._updates = updates
            self._choose_strategy()  # the posterior, which is restored first, may have had a dictionary meanwhile
            self.columns.forget()
            self.columns.diagonal = diagonal
            if directions is not None:
                directions()

        return restore

    def get_extra_state(self) -> dict[str, int]:
        """Updates since the last sweep."""
        return {"updates": self._updates}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Restore what `get_extra_state` returned."""
        self._updates = state["updates"]
        self._choose_strategy()
        self.renew_()  # the posterior was loaded before, with the kernel it was fitted to
        if self.features_of_arms is not None:  # features that were drawn are those of the state loaded
            self.features_of_arms.forget()
            self.prior_diagonal = self.features_of_arms.diagonal
            self.kappa2 = self._largest()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ArmTable:
        super()._apply(fn, recurse)
        self.columns.forget()
        self.columns.diagonal = self.prior_diagonal
        if self.features_of_arms is not None:
            self.features_of_arms.forget()
        return self
