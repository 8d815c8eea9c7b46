"""The arm table: mean and leverage of every arm, kept up to date with the posterior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchbandits.arms.columns import KernelColumns
from torchbandits.arms.rows import ArmRows
from torchbandits.embeddings import kernel_matrix
from torchbandits.posteriors import Conditioning, GaussianProcess
from torchbandits.types import Picks

_SPARE_DIRECTIONS = 64  # an exact table is swept anew when repeated pulls have doubled its directions, plus this many


class ArmTable(nn.Module):
    r"""A Gaussian-process posterior tabulated on a finite arm set.

    For every arm the table holds the mean and the leverage (posterior variance / λ), and

    - for a sparse posterior, the kernel column of each pulled arm while they fit the memory budget: a new dictionary is
      one m x m x A product, `leverage = k(x,x)/λ − |Nᵀk_S(x)|²`;
    - for an exact posterior, the directions T with `leverage = k(x,x)/λ − |T(x)|²`: a pull appends one,
      `w = (k(·,x_j)/λ − Tᵀt_j) / √(1 + lev_j)`, in O(A u). When repeated pulls have doubled their number the table is
      swept anew, so that neither memory nor time grows with the number of pulls.

    Args:
        rows: The arms, and which row of the posterior's statistics each one is.
        posterior: Its `batch_shape` is the table's.
        memory_budget: Bytes that kernel columns may take; beyond it they are recomputed chunk by chunk.

    Buffers: `leverage` `batch_shape x A`, `channels` `batch_shape x c x A` (regression outputs), both float64.
    """

    leverage: Tensor
    channels: Tensor
    directions: Tensor
    prior_diagonal: Tensor

    def __init__(self, rows: ArmRows, posterior: GaussianProcess, memory_budget: int) -> None:
        super().__init__()
        batch_shape, A, arms = posterior.batch_shape, rows.num_arms, rows.arms
        self._owners = (rows, posterior)  # a tuple hides them from nn.Module: the state registers them
        self.num_directions = 0
        self.columns = KernelColumns(rows, posterior, memory_budget)
        self.register_buffer("prior_diagonal", self.columns.diagonal, persistent=False)
        lam = posterior.regularization
        self.register_buffer("leverage", (self.prior_diagonal / lam).expand(*batch_shape, A).clone())
        self.register_buffer("channels", self.leverage.new_zeros(*batch_shape, posterior.num_channels, A))
        self.register_buffer("directions", arms.new_zeros(*batch_shape, 0, A), persistent=False)

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
        """Posterior mean of every arm, `batch_shape x A`, reward units."""
        return self.posterior.reward_mean(self.channels)

    # ------------------------------------------------------------------ writing

    def sweep_(self) -> ArmTable:
        """Recompute the mean and leverage of every arm from the posterior's dictionary. Cost O(A m (m + d)) or, with
        the kernel columns at hand, one m x m x A product."""
        if self.posterior.statistics.size == 0:
            lam = self.posterior.regularization
            self.leverage = (self.prior_diagonal / lam).expand_as(self.leverage).clone()
            self.channels = torch.zeros_like(self.channels)
            self.num_directions = 0
            return self
        if self.posterior.sparse:
            self.columns.fill()
        rows, _, N, a = self.posterior.sweep_factors(self.columns.gram())
        c, r = a.shape[-1], N.shape[-1]
        weights = torch.cat([a, N], dim=-1).mT.to(self.rows.arms.dtype)
        if not self.posterior.sparse:  # new storage, so that the old table survives a failure
            self.directions = self.directions.new_empty(*self.directions.shape[:-2], r + _SPARE_DIRECTIONS, self.rows.num_arms)
        leverage, channels = torch.empty_like(self.leverage), torch.empty_like(self.channels)
        for part, out in self.columns.products(weights, rows, dense=c):
            T = out[..., c:, :]
            if not self.posterior.sparse:
                self.directions[..., :r, part] = T
            channels[..., part] = out[..., :c, :]
            explained = T.square_().sum(dim=-2)
            leverage[..., part] = self.prior_diagonal[..., part] / self.posterior.regularization - explained
        self.num_directions = r if not self.posterior.sparse else 0
        self.leverage, self.channels = leverage.clamp_min_(0), channels
        return self

    def update_(self, index: Picks, counts: Tensor, targets: Tensor) -> Tensor:
        """Exact posterior: append the directions of p distinct arms with the given pulls (already in the statistics).

        Args:
            index: `batch_shape x p`, −1 where padded.
            counts: `batch_shape x p`.
            targets: `batch_shape x p x c`, regression targets summed over the pulls.

        Returns:
            What the pulls add to log det(V/λ), `batch_shape`.

        Cost: O(A u p), the memory traffic of one pass over the directions.
        """
        lam, r, p = self.posterior.regularization, self.num_directions, index.shape[-1]
        slot = index.clamp_min(0)
        K_pa = self.columns.evaluate(self.rows.points(index))
        T = self.directions[..., :r, :]
        t_p = T.gather(-1, slot.unsqueeze(-2).expand(*T.shape[:-1], p))
        if K_pa.dim() == 2:
            C_pa = torch.addmm(K_pa, t_p.mT, T, beta=1 / lam, alpha=-1)
        else:
            flat = K_pa.shape[:-2].numel()
            C_pa = torch.baddbmm(
                K_pa.reshape(flat, *K_pa.shape[-2:]),
                t_p.mT.reshape(flat, p, r),
                T.reshape(flat, r, self.rows.num_arms),
                beta=1 / lam,
                alpha=-1,
            ).reshape(K_pa.shape)
        own = self.leverage.gather(-1, slot)
        C_pa.scatter_(-1, slot.unsqueeze(-1), own.to(C_pa.dtype).unsqueeze(-1))
        C_pp = C_pa.gather(-1, slot.unsqueeze(-2).expand(*C_pa.shape[:-1], p)).double()
        conditioning = Conditioning.on(C_pp, counts)
        mean_p = self.channels.gather(-1, slot.unsqueeze(-2).expand(*self.channels.shape[:-1], p)).mT
        innovations = conditioning.innovations(targets, mean_p)
        self._reserve(r + p, keep=r)
        self.num_directions = r + p
        G = conditioning.directions(C_pa if p == 1 else C_pa.double())
        self.directions[..., r : r + p, :] = G
        if p == 1:  # the hot path: one pass over the arms a line
            self.leverage = torch.addcmul(self.leverage, G.squeeze(-2), G.squeeze(-2), value=-1).clamp_min_(0)
            self.channels = torch.addcmul(self.channels, innovations.mT, G)
        else:
            self.leverage = (self.leverage - G.square().sum(dim=-2)).clamp_min_(0)
            self.channels = self.channels + innovations.mT @ G
        return conditioning.log_det

    def needs_sweep(self) -> bool:
        """Whether repeated pulls have doubled the directions of an exact table."""
        return self.num_directions > 2 * self.posterior.statistics.size + _SPARE_DIRECTIONS

    # ------------------------------------------------------------------ covariances between arms

    def features(self, index: Picks) -> tuple[Tensor, Tensor]:
        """What `covariance` needs of each indexed arm: its points and directions (exact) or whitened features (sparse)."""
        if not self.posterior.sparse:
            r = self.num_directions
            T = self.directions[..., :r, :]
            t = T.gather(-1, index.clamp_min(0).unsqueeze(-2).expand(*T.shape[:-1], index.shape[-1]))
            return self.rows.points(index).double(), t.double()
        fit = self.posterior.fit()
        points = self.rows.points(index)
        if self.columns.complete and self.rows.arms.dtype == torch.float64:
            K_mk = self.columns.between(fit.rows, index)
            z = fit.embedding.root.embed(torch.where(fit.mask.unsqueeze(-1), K_mk, 0.0))
        else:
            z = fit.embedding(points.double())
        return points.double(), fit.regression.precision.whiten(z)

    def covariance(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
        """Leverage-scale covariance that a pull moves, `batch_shape x n x n'`: zᵀV⁻¹z' with a frozen dictionary, k̃ with
        the exact embedding. Cost O(n n' m)."""
        product = left[1].mT @ right[1]
        if self.posterior.sparse:
            return product
        return kernel_matrix(self.posterior.kernel, left[0], right[0]) / self.posterior.regularization - product

    def columns_between(self, index: Picks) -> tuple[Tensor, Tensor]:
        """Covariances of p arms with every arm, `batch_shape x p x A` each: c (what a pull moves with the dictionary
        frozen) and k̃ (the exact one); the same tensor twice for an exact posterior. Cost O(A m p)."""
        lam = self.posterior.regularization
        K_pa = self.columns.of_arms(index).double()
        if not self.posterior.sparse:
            r, p = self.num_directions, index.shape[-1]
            T = self.directions[..., :r, :]
            t_p = T.gather(-1, index.clamp_min(0).unsqueeze(-2).expand(*T.shape[:-1], p))
            k = K_pa / lam - (t_p.mT @ T).double()
            return k, k
        fit, p = self.posterior.fit(), index.shape[-1]
        z_p = fit.embedding(self.rows.points(index).double())
        R = fit.embedding.root
        both = torch.cat([R.lift(fit.regression.precision.solve(z_p)), R.lift(z_p)], dim=-1)
        both = torch.where(fit.mask.unsqueeze(-1), both, 0.0).mT.to(self.rows.arms.dtype)
        out = K_pa.new_empty(*both.shape[:-1], self.rows.num_arms)
        for part, product in self.columns.products(both, fit.rows):
            out[..., part] = product
        c = out[..., :p, :]
        return c, (K_pa - out[..., p:, :]).div_(lam).add_(c)

    def _reserve(self, size: int, keep: int) -> None:
        """Room for `size` directions, the first `keep` of them kept."""
        capacity = self.directions.shape[-2]
        if size > capacity:
            grown = self.directions.new_empty(*self.directions.shape[:-2], max(size, 2 * capacity, 64), self.rows.num_arms)
            grown[..., :keep, :] = self.directions[..., :keep, :]
            self.directions = grown

    def snapshot(self) -> Callable[[], None]:
        """A way back to the directions of this moment (the buffers are the caller's)."""
        used = self.num_directions

        def restore() -> None:
            self.num_directions = used
            self.columns.forget()

        return restore

    def get_extra_state(self) -> dict[str, Tensor]:
        """The directions in use, without the spare room."""
        return {"directions": self.directions[..., : self.num_directions, :].clone()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `get_extra_state` returned."""
        self.directions = state["directions"].to(self.directions)
        self.num_directions = self.directions.shape[-2]
        self.columns.forget()

    def _apply(self, fn: Any, recurse: bool = True) -> ArmTable:
        super()._apply(fn, recurse)
        self.columns.forget()
        self.columns.diagonal = self.prior_diagonal
        return self
