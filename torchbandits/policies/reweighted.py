"""Policies of an exact Gaussian process that weight rewards by age or by plausibility before they are learned."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from torchbandits.checks import check_instance, check_whole, is_finite
from torchbandits.errors import UnsupportedError, require
from torchbandits.gradients import without_gradients
from torchbandits.memory import KeepAll
from torchbandits.policies.base import Policy
from torchbandits.policies.composed import Composed
from torchbandits.policies.learning import learn_kernel, learn_totals
from torchbandits.policies.state import BoxState, TableState
from torchbandits.sources import ArmSet
from torchbandits.types import Generators, Pulls


@dataclass(frozen=True)
class Reweighted(Composed):
    """A policy that changes the weights of rewards when others are told."""

    def __post_init__(self) -> None:
        super().__post_init__()
        exact = isinstance(self.memory, KeepAll) and self.from_data is None
        require(
            exact,
            "rewards are reweighted in an exact posterior with a kernel that was given: use gp_ucb, igp_ucb, gp_bucb or "
            "thompson_sampling, and neither auto nor a dictionary.",
            UnsupportedError,
        )

    def learns_together(self, state: TableState | BoxState) -> bool:
        """False: the weights depend on the order of tells."""
        return False


P = TypeVar("P", bound=Reweighted)


def reweighted(policy: Any, kind: type[P], **own: Any) -> P:
    """The policy as one of this kind.

    Raises:
        UnsupportedError: For a policy without one exact Gaussian process.
    """
    check_instance("policy", policy, Policy, "a torchbandits policy")
    if not isinstance(policy, Composed) or isinstance(policy, Reweighted):
        raise UnsupportedError(
            f"{type(policy).__name__} is not one exact Gaussian process with weights of its own: use gp_ucb, igp_ucb, gp_bucb "
            "or thompson_sampling."
        )
    return kind(**{f.name: getattr(policy, f.name) for f in fields(Composed)}, **own)


@dataclass(frozen=True)
class Forgetting(Reweighted):
    """A policy that forgets earlier rewards before it learns new ones."""

    @without_gradients
    def update(self, state: TableState | BoxState, pulls: Pulls) -> TableState | BoxState:
        """Forget, then learn the pulls. Cost: a sweep, besides that of learning."""
        told = pulls.num_rewards.sum(dim=-1)
        if state.statistics.size and bool((told > 0).any()):
            self.forget_(state, told)
        return super().update(state, pulls)

    @abstractmethod
    def forget_(self, state: TableState | BoxState, told: Tensor) -> None:
        """Forget rewards of a state, before `told` (`batch_shape`) further ones are learned."""


@dataclass(frozen=True)
class Discounted(Forgetting):
    """The weights of earlier rewards are multiplied by a factor for every further reward; see `forgetting.discount`."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        good = is_finite(self.factor) and 0 < self.factor < 1
        require(good, f"factor must be in (0, 1), such as 0.99, got {self.factor!r}.")

    def forget_(self, state: TableState | BoxState, told: Tensor) -> None:
        """Multiply the totals of all points."""
        left = self.factor ** told.double()
        state.statistics.retell_(state.statistics.totals * left[..., None, None], told > 0)
        state.posterior.weighted = True
        learn_totals(state, told > 0)


@dataclass(frozen=True)
class Restarted(Forgetting):
    """All rewards are forgotten after a number of them; see `forgetting.restart`."""

    every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("every", self.every)

    def forget_(self, state: TableState | BoxState, told: Tensor) -> None:
        """Clear the batch rows that would hold more than the number."""
        held = state.statistics.pulls
        over = (held > 0) & (told > 0) & (held + told > self.every)
        if bool(over.any()):
            if isinstance(state, TableState):
                state.rows.clear_(state.statistics, over)
            else:
                state.statistics.retell_(torch.zeros_like(state.statistics.totals), over)
            # Rows of the statistics are given to other arms, so that columns kept by row are void.
            state.posterior.invalidate_()
            learn_kernel(state, over)


class RecentRewards(nn.Module):
    """The last rewards of each batch row.

    Buffers: `row` `batch_shape x w`, rows of the statistics, −1 where there are fewer; `totals` `batch_shape x w x 3`, weight,
    reward times weight and its square times weight. Replaced, and never written in place.
    """

    row: Tensor
    totals: Tensor

    def __init__(self, batch_shape: torch.Size, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("row", torch.zeros(*batch_shape, 0, dtype=torch.int64, device=device))
        self.register_buffer("totals", torch.zeros(*batch_shape, 0, 3, dtype=torch.float64, device=device))

    def add_(self, row: Tensor, totals: Tensor, most: int) -> Tensor:
        """Append rewards, `batch_shape x q` (−1 for none) and `batch_shape x q x 3`; keep the last `most` of each batch row,
        and return whether it lost any, `batch_shape`."""
        row, totals = torch.cat([self.row, row], dim=-1), torch.cat([self.totals, totals], dim=-2)
        lost = (row >= 0).sum(dim=-1) > most
        # Stable: places without a reward first, then the rewards in order.
        order = (row >= 0).byte().argsort(dim=-1, stable=True)[..., -most:]
        self.row = row.gather(-1, order)
        self.totals = totals.gather(-2, order.unsqueeze(-1).expand(*order.shape, 3))
        return lost

    def summed(self, size: int) -> Tensor:
        """Totals of `size` rows of the statistics, `batch_shape x size x 3`."""
        zeros = self.totals.new_zeros(*self.row.shape[:-1], size, 3)
        slot = self.row.clamp_min(0).unsqueeze(-1).expand(self.totals.shape)
        return zeros.scatter_add(-2, slot, self.totals.masked_fill((self.row < 0).unsqueeze(-1), 0.0))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("row", "totals"):
            # Buffers grow with the data, so take over the sizes of the state.
            if prefix + name in state_dict:
                setattr(self, name, state_dict[prefix + name].to(self.row.device))
        super()._load_from_state_dict(state_dict, prefix, *args)


@dataclass(frozen=True)
class Windowed(Reweighted):
    """Only the last rewards count; see `forgetting.window`."""

    pulls: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("pulls", self.pulls)

    @without_gradients
    def init(self, arms: ArmSet, generators: Generators, batch_shape: torch.Size) -> TableState:
        """Make a fresh state with an empty window."""
        state = super().init(arms, generators, batch_shape)
        state.window = RecentRewards(batch_shape, state.log_det.device)
        return state

    def init_box(self, box: Tensor, generators: Generators, batch_shape: torch.Size) -> BoxState:
        """Refuse a box."""
        raise UnsupportedError("a window is kept of arms: pass arms, or use forgetting.discount in a box.")

    @without_gradients
    def set_arms(self, state: TableState | BoxState, arms: ArmSet) -> TableState:
        """Return a state of the same window on other arms."""
        moved = super().set_arms(state, arms)
        moved.window = state.window
        return moved

    @without_gradients
    def update(self, state: TableState | BoxState, pulls: Pulls) -> TableState | BoxState:
        """Learn the pulls, then forget those that have left the window. Cost: a sweep, besides that of learning."""
        message = "a window counts rewards one by one: tell() them in their order, in place of observe()."
        require(pulls.index is not None and not pulls.history, message, UnsupportedError)
        assert pulls.index is not None
        assert pulls.mask is not None
        state = super().update(state, pulls)
        window = state.window
        assert isinstance(window, RecentRewards)
        row = torch.where(pulls.mask, state.rows.row_of(state.rows.entry(pulls.index)), -1)
        totals = torch.stack([pulls.counts, pulls.sums, pulls.squares], dim=-1).to(window.totals)
        lost = window.add_(row.to(window.row), totals, self.pulls)
        if bool(lost.any()):
            state.statistics.retell_(window.summed(state.statistics.size), lost)
            learn_totals(state, lost)
        return state


@dataclass(frozen=True)
class Robust(Reweighted):
    """Implausible rewards weigh less; see `robust`."""

    threshold: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        good = is_finite(self.threshold) and self.threshold > 0
        require(good, f"threshold must be finite and > 0, in standard deviations, got {self.threshold!r}.")

    @without_gradients
    def update(self, state: TableState | BoxState, pulls: Pulls) -> TableState | BoxState:
        """Learn the pulls at Huber's weights. History is learned as it is."""
        if pulls.history or pulls.index is None:
            return super().update(state, pulls)
        index, counts = state.rows.entry(pulls.index), pulls.counts.clamp_min(1e-300)
        noise = self.noise_variance(state)
        assert noise is not None
        mean, leverage = state.mean_at(index), state.leverage_at(index)
        std = (state.posterior.regularization * leverage.double() + noise / counts).sqrt()
        away = ((pulls.sums / counts).to(std) - mean.double()).abs() / std
        weight = torch.where(pulls.counts.to(std) > 0, (self.threshold / away.clamp_min(1e-300)).clamp_max(1.0), 0.0)
        weight = weight.to(pulls.counts)
        sums = (weight * pulls.counts, weight * pulls.sums, weight * pulls.squares)
        return super().update(state, Pulls(*sums, index=pulls.index, mask=pulls.mask, numbers=pulls.num_rewards))


def robust(policy: Policy, *, threshold: float = 3.0) -> Robust:
    r"""Make the same policy give implausible rewards less weight, as Huber's loss does.

    A reward y at x has the weight min(1, c / |z|) of a pull, with z its distance from the posterior mean before it is told, in
    predictive standard deviations:

    .. math:: z = \frac{y - \mu_t(x)}{\sqrt{\sigma_t^2(x) + \sigma^2}}

    Weights stay as they were when the reward was told. A single wild reward thus moves the mean by about c standard deviations
    at most; a large reward that is true takes a few repetitions to be believed.

    Args:
        policy: gp_ucb, igp_ucb, gp_bucb or thompson_sampling, or another policy of one exact Gaussian process.
        threshold: c, in predictive standard deviations; smaller is more robust.

    Guarantee: none, whatever that of the policy. The noise is not fitted (`fit_kernel_(noise=True)`) to such rewards.
    Source: Huber 1964, one step of iterated reweighting for each reward.

    Raises:
        UnsupportedError: For other policies.
    """
    return reweighted(policy, Robust, threshold=threshold)
