"""A model of where evaluations succeed, learned from those that failed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchbandits.fitting.standardized import Priors
from torchbandits.gradients import without_gradients
from torchbandits.policies.auto import auto
from torchbandits.policies.learning import complete_, saved_briefly
from torchbandits.policies.state import TableState
from torchbandits.sources import ArmSet, ArmSource
from torchbandits.types import PickMask, Picks, Pulls

# Predicted success below which an arm is left out, unless fewer evaluations have succeeded so far.
_EVEN = 0.5
# Whether an evaluation fails is less predictable than a reward: the median of the noise is a seventh of the variance. It is
# fitted, because regions in which all evaluations fail are common.
_PRIORS = Priors(noise=(-2.0, 1.5))
# Number of evaluations of an arm after which it is left out if all of them failed.
_TWICE = 2


class Failures:
    """The success of evaluations, 1 or 0, as the reward of a Gaussian process on all arms with an estimated kernel (`auto`).

    Arms that are likely to fail are left out while there are others. The model of the reward cannot do that: it learns nothing
    from a failure, so that where all evaluations fail its upper bounds stay as high as they were.

    Args:
        arms: The arms of the loop.
        batch_shape: Leading dimensions, without that of several outcomes.
        memory_budget: As for `auto`; None for its default.
        limits: `ArmRows.limits` of the loop.

    Cost: that of `auto` for each evaluation, and one comparison per arm and ask.
    """

    def __init__(
        self, arms: ArmSet, batch_shape: torch.Size, memory_budget: int | None = None, limits: Tensor | None = None
    ) -> None:
        default = auto(replicate_every=0)
        policy = default if memory_budget is None else auto(replicate_every=0, memory_budget=memory_budget)
        assert policy.from_data is not None
        self._policy = replace(policy, from_data=replace(policy.from_data, priors=_PRIORS, effects=False, two_values=False))
        generators = [torch.Generator().manual_seed(0) for _ in range(batch_shape.numel())]
        self._set_state(self._policy.init(arms, generators, batch_shape))
        if limits is not None:
            self._state.rows.limits = limits
            self._set_state(self._policy.set_arms(self._state, arms))

    def _set_state(self, state: TableState) -> None:
        self._state = state
        # The warnings would be about the success, not about the rewards.
        state.repeats_said = True

    @without_gradients
    def learn_(self, pulls: Pulls) -> None:
        """Learn evaluations: their number in `pulls.counts`, and the number of successes among them in `pulls.sums`."""
        if not bool(pulls.counts.any()):
            return
        state = self._policy.update(self._state, pulls)
        assert isinstance(state, TableState)
        state.add_told_(pulls.counts)
        self._state = state

    def observe_(self, points: Tensor, succeeded: PickMask) -> None:
        """Learn that one evaluation at each point, `batch_shape x p x d`, succeeded where marked, `batch_shape x p`."""
        # Places that are padded get no weight, and a point that is there already.
        points, ones = torch.where(succeeded.unsqueeze(-1), points, points[..., :1, :]), succeeded.double()
        self.learn_(Pulls(ones, ones, ones, points=points, history=True))

    def tell_(self, index: Picks, told: PickMask, succeeded: PickMask) -> None:
        """Learn which evaluations succeeded, of those that were `told`: `batch_shape x q` each."""
        ones, sums = told.double(), (told & succeeded).double()
        self.learn_(Pulls(ones, sums, sums, index=index, mask=told).to(self._state.rows.source.device))

    @without_gradients
    def left_in(self, available: Tensor | None, count: int) -> Tensor:
        """The arms that are not likely to fail, `batch_shape x A` booleans.

        These are the arms whose predicted success is at least one half, or (s + 1)/(n + 2) after s successes in n evaluations
        if that is less, but for arms that failed twice and never succeeded. Before the first success they are the half of the
        arms about which the failures tell least. If fewer than `count` of them are different, the next ones are left in too.
        Batch rows without failures keep all arms.

        Args:
            available: `batch_shape x A`, the arms on offer, the only ones considered; None for all.
            count: Number of different arms that a batch may need.
        """
        state, units = self._state, self._state.posterior.units
        assert units is not None
        evaluated, succeeded = state.statistics.weights, units.totals[..., 0].round()
        lost = state.rows.counts(((evaluated >= _TWICE) & (succeeded <= 0)).double()) > 0
        total, good = (number.sum(dim=-1, keepdim=True) for number in (evaluated, succeeded))
        none = good == 0
        success = torch.where(none, state.arm_leverage(), state.arm_mean()).masked_fill(lost, -torch.inf)
        # Arms with equal features count once, and have equal success.
        offered = state.rows.offered(available)
        ranked = success if offered is None else success.masked_fill(~offered, -torch.inf)
        bar = units.to_model(((good + 1) / (total + 2)).clamp_max(_EVEN))
        if bool(none.any()):
            middle = ranked.masked_fill(ranked == -torch.inf, torch.nan).nanmedian(dim=-1, keepdim=True).values
            bar = torch.where(none, middle, bar)
        last = ranked.topk(min(count, ranked.shape[-1]), dim=-1).values[..., -1:]
        # NaN where nothing is left.
        likely = (success >= torch.minimum(bar.nan_to_num(-torch.inf), last)) | (good == total)
        return likely if available is None else likely & available

    def counted(self, place: tuple[int, ...]) -> tuple[int, int]:
        """For a batch row, the number of evaluations that failed, and the number of arms that are left out."""
        statistics, units = self._state.statistics, self._state.posterior.units
        assert units is not None
        failed = statistics.weights[place].sum() - units.totals[place][:, 0].sum()
        return round(float(failed)), int((~self.left_in(None, 1)[place]).sum())

    @property
    def num_failed(self) -> int:
        """The number of evaluations of all batch rows that failed."""
        units = self._state.posterior.units
        assert units is not None
        return round(float(self._state.statistics.weights.sum() - units.totals[..., 0].sum()))

    # ------------------------------------------------------------------ saving and moving

    def snapshot(self) -> Callable[[], None]:
        """Take a snapshot: return a function that restores this model."""
        state, back = self._state, self._state.snapshot()

        def restore() -> None:
            self._state = state
            back()

        return restore

    def state_dict(self, *, brief: bool) -> dict[str, Any]:
        """The state, which `load_` of a new model restores; for `brief`, see `saved_briefly`."""
        with saved_briefly(self._state, brief):
            return self._state.state_dict()

    def load_(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        self._state.load_state_dict(state_dict)
        complete_(self._state)

    def moved(self, arms: ArmSet, limits: Tensor | None = None) -> Failures:
        """The same model on other arms, with these `ArmRows.limits`. What this one predicts is unchanged."""
        other = copy.copy(self)
        self._state.rows.limits = limits
        other._set_state(self._policy.set_arms(self._state, arms))
        return other

    def to_(self, device: torch.device, arms: Tensor | ArmSource) -> None:
        """Move the model to a device, where these are its arms, which are not copied again."""
        self._state.to(device)
        if isinstance(arms, Tensor):
            self._state.rows.arms = arms
