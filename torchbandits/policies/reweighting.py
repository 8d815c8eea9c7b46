"""Rules that weight the rewards of an exact posterior by age or by plausibility."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.buffered import Buffered
from torchbandits.checks import check_whole, is_finite
from torchbandits.errors import UnsupportedError, require
from torchbandits.memory import Memory
from torchbandits.policies.learning import learn_kernel, learn_totals
from torchbandits.policies.state import GaussianState, TableState
from torchbandits.types import Pulls


class Reweighting(Memory, ABC):
    """A memory of every distinct point that changes the weights of earlier rewards when new ones are told."""

    def choose(self, leverage: Tensor, weights: Tensor, mask: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Choose all points; draws nothing."""
        return mask

    def begin_(self, state: GaussianState) -> None:
        """Prepare a fresh state. By default does nothing."""
        return

    def carry_(self, state: GaussianState, moved: GaussianState) -> None:
        """Move the data that `begin_` prepared to a state of the same posterior on other arms."""
        return

    @abstractmethod
    def before_(self, state: GaussianState, pulls: Pulls, noise_variance: float) -> Pulls:
        """Change the weights of earlier rewards, and return the pulls to learn.

        Args:
            state: The state, whose buffers are replaced.
            pulls: The new pulls.
            noise_variance: Noise variance of a reward of weight 1, reward units squared.
        """

    def after_(self, state: GaussianState, pulls: Pulls) -> None:
        """Change weights after the pulls were learned. By default does nothing."""
        return


@dataclass(frozen=True)
class Discount(Reweighting):
    """A rule that multiplies the weights of earlier rewards by a factor for each new reward; see `forgetting.discount`."""

    factor: float

    def __post_init__(self) -> None:
        good = is_finite(self.factor) and 0 < self.factor < 1
        require(good, f"factor must be in (0, 1), such as 0.99, got {self.factor!r}.")

    def before_(self, state: GaussianState, pulls: Pulls, noise_variance: float) -> Pulls:
        """Multiply the totals of all points by the factor. Cost: a sweep."""
        told = pulls.num_rewards.sum(dim=-1).to(state.told)
        if state.statistics.size and bool((told > 0).any()):
            state.statistics.retell_(state.statistics.totals * (self.factor**told)[..., None, None], told > 0)
            state.posterior.weighted = True
            learn_totals(state, told > 0)
        return pulls


@dataclass(frozen=True)
class Restart(Reweighting):
    """A rule that forgets all rewards before a tell that would exceed a maximum number of rewards; see `forgetting.restart`."""

    every: int

    def __post_init__(self) -> None:
        check_whole("every", self.every)

    def before_(self, state: GaussianState, pulls: Pulls, noise_variance: float) -> Pulls:
        """Clear the batch rows that would exceed the maximum. Cost: a sweep if there is such a row."""
        told, held = pulls.counts.sum(dim=-1).to(state.told), state.statistics.pulls
        # Weights are rounded: that of a reward with the policy's own noise variance may exceed 1 by a little.
        over = (held > 0) & (told > 0) & (held + told > self.every * (1 + 1e-9))
        if state.statistics.size and bool(over.any()):
            if isinstance(state, TableState):
                state.rows.clear_(state.statistics, over)
            else:
                state.statistics.retell_(torch.zeros_like(state.statistics.totals), over)
            # The rows of the statistics will belong to other arms, so columns cached by row are invalid.
            state.posterior.invalidate_()
            learn_kernel(state, over)
        return pulls


class RecentRewards(Buffered):
    """The last rewards of each batch row.

    Buffers, which are replaced and never written in place: `row` `batch_shape x w`, rows of the statistics, −1 where padded;
    `totals` `batch_shape x w x 3`, the weight, the reward times the weight, and the squared reward times the weight.
    """

    row: Tensor
    totals: Tensor
    _grows = ("row", "totals")

    def __init__(self, batch_shape: torch.Size, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("row", torch.zeros(*batch_shape, 0, dtype=torch.int64, device=device))
        self.register_buffer("totals", torch.zeros(*batch_shape, 0, 3, dtype=torch.float64, device=device))

    def add_(self, row: Tensor, totals: Tensor, most: int) -> Tensor:
        """Append rewards, `batch_shape x q` (−1 for none) and `batch_shape x q x 3`; keep the last `most` of each batch row,
        and return whether it lost any, `batch_shape`."""
        row, totals = torch.cat([self.row, row], dim=-1), torch.cat([self.totals, totals], dim=-2)
        lost = (row >= 0).sum(dim=-1) > most
        # The stable sort moves padding to the front and keeps the order of the rewards.
        order = (row >= 0).byte().argsort(dim=-1, stable=True)[..., -most:]
        self.row = row.gather(-1, order)
        self.totals = totals.gather(-2, order.unsqueeze(-1).expand(*order.shape, 3))
        return lost

    def summed(self, size: int) -> Tensor:
        """Totals of `size` rows of the statistics, `batch_shape x size x 3`."""
        zeros = self.totals.new_zeros(*self.row.shape[:-1], size, 3)
        slot = self.row.clamp_min(0).unsqueeze(-1).expand(self.totals.shape)
        return zeros.scatter_add(-2, slot, self.totals.masked_fill((self.row < 0).unsqueeze(-1), 0.0))


@dataclass(frozen=True)
class Window(Reweighting):
    """A rule that keeps only the last rewards; see `forgetting.window`."""

    pulls: int

    def __post_init__(self) -> None:
        check_whole("pulls", self.pulls)

    def begin_(self, state: GaussianState) -> None:
        """Prepare an empty window. Raises `UnsupportedError` for a box."""
        require(
            isinstance(state, TableState), "a window is kept of arms: pass arms, or take forgetting.discount.", UnsupportedError
        )
        state.window = RecentRewards(state.told.shape, state.told.device)

    def carry_(self, state: GaussianState, moved: GaussianState) -> None:
        """Move the window to the other state."""
        moved.window = state.window

    def before_(self, state: GaussianState, pulls: Pulls, noise_variance: float) -> Pulls:
        """Raise an error for summed history, which has no order."""
        message = "a window counts rewards one by one: tell() them in their order, in place of observe()."
        require(pulls.index is not None and not pulls.history, message, UnsupportedError)
        return pulls

    def after_(self, state: GaussianState, pulls: Pulls) -> None:
        """Add the rewards to the window, and forget the rewards that leave it. Cost: a sweep, once the window is full."""
        window = state.window
        assert isinstance(window, RecentRewards)
        assert pulls.index is not None
        assert pulls.mask is not None
        index, mask = pulls.index.to(window.row), pulls.mask.to(window.row.device)
        row = torch.where(mask, state.rows.row_of(state.rows.entry(index)), -1)
        totals = torch.stack([pulls.counts, pulls.sums, pulls.squares], dim=-1).to(window.totals)
        lost = window.add_(row, totals, self.pulls)
        if bool(lost.any()):
            state.statistics.retell_(window.summed(state.statistics.size), lost)
            learn_totals(state, lost)


@dataclass(frozen=True)
class Huber(Reweighting):
    """A rule that gives implausible rewards a smaller weight when they are told; see `robust`."""

    threshold: float = 3.0

    def __post_init__(self) -> None:
        good = is_finite(self.threshold) and self.threshold > 0
        require(good, f"threshold must be finite and > 0, in standard deviations, got {self.threshold!r}.")

    def before_(self, state: GaussianState, pulls: Pulls, noise_variance: float) -> Pulls:
        """Return the pulls with weights under which no mean moves further than a plausible reward would move it. Summed history
        keeps its weights."""
        if pulls.history or pulls.index is None:
            return pulls
        index, counts = state.rows.entry(pulls.index.to(state.told.device)), pulls.counts.to(state.told)
        leverage = state.leverage_at(index).double()
        variance = state.posterior.regularization * leverage + noise_variance / counts.clamp_min(1e-300)
        average = pulls.sums.to(state.told) / counts.clamp_min(1e-300)
        away = (average - state.mean_at(index).double()).abs() / variance.sqrt()
        # A reward of weight w moves the mean by n w lev/(1 + n w lev) of its distance. This w makes that as much as a reward
        # of weight 1 would move it from the distance of the threshold.
        excess = (away / self.threshold).clamp_min(1.0)
        weight = 1 / (excess + counts * leverage * (excess - 1))
        if state.posterior.prior_mean == "estimate":
            # Before the first reward there is no estimated prior mean to compare rewards with.
            weight = torch.where(state.statistics.weights.sum(dim=-1, keepdim=True) > 0, weight, 1.0)
        weight = torch.where(counts > 0, weight, 0.0).to(pulls.counts)
        sums = (weight * pulls.counts, weight * pulls.sums, weight * pulls.squares)
        return Pulls(*sums, index=pulls.index, mask=pulls.mask, numbers=pulls.num_rewards)
