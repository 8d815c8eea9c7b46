"""Random effects of the points of a sparse posterior, whose dictionary represents the smooth part of the function alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import gpytorch
import torch
from torch import Tensor, nn

from torchbandits.posteriors.statistics import Statistics
from torchbandits.random_effects import RandomEffectKernel, coincident, smooth_part
from torchbandits.sources.duplicates import matches
from torchbandits.transfers import to_host
from torchbandits.types import PerPoint, Picks, Points, Rect


@dataclass(frozen=True)
class Effects:
    r"""The posterior of f = g + e from that of g, where e(x) ~ N(0, τ²) is independent at each point.

    A dictionary cannot represent e, which a point shares with itself alone; but given g, the rewards of a point tell its e in
    closed form. With ρ = τ²/λ, the average of n rewards has variance λ/n + τ² around g, that of n/(1 + nρ) pulls of g. Given g
    from these, with mean m, leverage l and covariance c on the scale of leverages, and s = 1/(1 + nρ),

    .. math:: \mu = s\,m + (1 - s)\,\bar y, \quad \mathrm{lev} = s^2\,l + \rho\,s, \quad
              \tilde k_{ij} = s_i s_j c_{ij} + \rho\,s_i\,[x_i = x_j]

    and log det(V/λ) is that of g plus Σ log(1 + nρ). Points without pulls have s = 1.

    Attributes:
        whole: Kernel of f, stored by reference.
        parts: Parameters and parts of that kernel, which may be replaced, and the version of τ², which may be overwritten.
        kernel: Kernel of g, which shares its parameters.
        regularization: λ.
        ratio: ρ, `batch_shape` or a number.
        ratio_on_host: The same on the host.
        totals: Totals of the rewards told.
        statistics: What g is regressed on: the distinct points, and these totals times s.
        share: `batch_shape x u`, s of the distinct points.
        offset: `batch_shape x c x u`, (1 − s) times the averages of the regression targets.

    Source: Henderson 1975, for random effects beside the other terms of a model.
    """

    whole: RandomEffectKernel
    parts: tuple[Tensor, int, Tensor, nn.Module]
    kernel: gpytorch.kernels.Kernel
    regularization: float
    ratio: Tensor
    ratio_on_host: Tensor
    totals: Tensor
    statistics: Statistics
    share: PerPoint
    offset: Rect

    @staticmethod
    def of(kernel: RandomEffectKernel, regularization: float, told: Statistics, targets: Rect) -> Effects:
        """The effects under a kernel, given statistics of rewards and their regression targets, `batch_shape x u x c`."""
        ratio = kernel.effect.detach() / regularization
        untold = Effects(
            whole=kernel,
            parts=(kernel.effect, kernel.effect._version, kernel.raw_outputscale, kernel.base_kernel),
            kernel=smooth_part(kernel).requires_grad_(False),
            regularization=regularization,
            ratio=ratio,
            ratio_on_host=to_host(ratio)[0],
            totals=told.totals,
            statistics=told,
            share=told.weights,
            offset=targets.mT,
        )
        return untold.retold(told, targets)

    def is_of(self, kernel: RandomEffectKernel) -> bool:
        """Whether these are the effects under a kernel with its present parameters."""
        (effect, version, scale, base), own = self.parts, kernel.effect
        same = self.whole is kernel and own is effect and own._version == version
        return same and kernel.raw_outputscale is scale and kernel.base_kernel is base

    def is_given(self, told: Statistics) -> bool:
        """Whether these are the effects given statistics. Points may be appended without pulls."""
        return self.totals is told.totals and self.statistics.points is told.points

    def retold(self, told: Statistics, targets: Rect) -> Effects:
        """The effects under the same kernel, given other statistics. Cost O(u)."""
        share = self.share_of(told.weights)
        return replace(
            self,
            totals=told.totals,
            statistics=told.shrunk(share, self.share_on_host(told.weights_on_host)),
            share=share,
            offset=(self.ratio.unsqueeze(-1) * share).unsqueeze(-2) * targets.mT,
        )

    def share_of(self, weights: PerPoint) -> Tensor:
        """s of points with these numbers of pulls."""
        return 1 / (1 + weights * self.ratio.unsqueeze(-1))

    def share_on_host(self, weights: PerPoint) -> Tensor:
        """`share_of` for weights on the host."""
        return 1 / (1 + weights * self.ratio_on_host.unsqueeze(-1))

    def rows_of(self, points: Points) -> Tensor:
        """Rows of points in the statistics, `batch_shape x n` for `batch_shape x n x d`; −1 for other points. Cost
        O((u + n) (d + log(u + n)))."""
        told = self.statistics
        row = matches(told.points, points.detach().expand(*told.num_rows.shape, *points.shape[-2:]))
        return torch.where(row < told.ends, row, -1)

    def share_at(self, rows: Picks) -> Tensor:
        """s at rows, `batch_shape x n`; 1 where −1."""
        if not self.share.shape[-1]:
            return torch.ones_like(rows, dtype=self.share.dtype)
        return torch.where(rows >= 0, self.share.gather(-1, rows.clamp_min(0)), 1.0)

    def added(self, leverage: PerPoint, channels: Rect, rows: Picks) -> tuple[Tensor, Tensor]:
        """Leverages and regression outputs of f from those of g at points of these rows."""
        share = self.share_at(rows)
        return self.leverage(leverage, share), self.channels(channels, rows, share)

    def channels(self, smooth: Rect, rows: Picks, share: PerPoint | None = None) -> Tensor:
        """Regression outputs of f, `batch_shape x c x n`, from those of g at points of these rows, whose s may be known."""
        if not self.share.shape[-1]:
            return smooth
        at = rows.clamp_min(0).unsqueeze(-2).expand(*smooth.shape[:-1], -1)
        offset = torch.where((rows >= 0).unsqueeze(-2), self.offset.gather(-1, at), 0.0)
        share = self.share_at(rows) if share is None else share
        return share.unsqueeze(-2) * smooth + offset

    def leverage(self, smooth: Tensor, share: Tensor) -> Tensor:
        """Leverage of f from that of g, `batch_shape x n` each, at points with these s."""
        return share * (share * smooth + self.ratio.unsqueeze(-1))

    def smooth_leverage(self, leverage: Tensor, share: Tensor) -> Tensor:
        """Leverage of g from that of f, the inverse of `leverage`, on the host."""
        return ((leverage / share - self.ratio_on_host.unsqueeze(-1)) / share).clamp_min(0)

    def prior(self, smooth: Tensor, left: Points, right: Points, left_share: Tensor, right_share: Tensor) -> Tensor:
        """k(x, x') of f beside what g tells: `smooth`, `batch_shape x n x n'`, is that of g."""
        scaled = left_share.unsqueeze(-1) * right_share.unsqueeze(-2) * smooth
        variance = self.variance.unsqueeze(-1) * left_share
        return scaled + torch.where(coincident(left, right), variance.unsqueeze(-1), 0.0)

    @property
    def variance(self) -> Tensor:
        """τ², `batch_shape` or a number."""
        return self.regularization * self.ratio

    @property
    def log_det(self) -> Tensor:
        """Σ log(1 + nρ), `batch_shape`."""
        return -self.share.log().sum(dim=-1)
