"""Selection by the common engine: first picks, the best arm by score, batches by a rule, draws of the posterior."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchbandits.arms import ArmRows, ArmTable, FullSweep, Lookahead, PosteriorDraws, best_arm
from torchbandits.arms.joint import JointDraws
from torchbandits.batching import BatchRule, RandomizedBeliever, Repeat
from torchbandits.errors import ArgumentError, NumericalError, ShapeError
from torchbandits.gradients import without_gradients
from torchbandits.policies.state import BoxState, PosteriorState, State, TableState
from torchbandits.posteriors import Pending
from torchbandits.scores import UCB, MostProbable, PerCost, PosteriorDraw, Score, scores_of_points
from torchbandits.starts import Opening, Start
from torchbandits.transfers import to_device
from torchbandits.types import Generators


def on_offer(rows: ArmRows, available: Tensor | None) -> Tensor | None:
    """The arms that may be picked, None for all of them. Raises `ArgumentError` if a batch row has none."""
    if available is None and rows.first is None:
        return None
    offered = rows.offered(available)
    if offered is not None and not bool(rows.across.any(offered).all()):
        raise ArgumentError("available must have at least one True in each batch row.")
    return offered


def room_for(state: State, most: Tensor | int | None, limit: Tensor | None) -> Tensor:
    """Largest number of picks of each row, `batch_shape` integers on the host: the smaller of `most` and `limit`."""
    if isinstance(most, Tensor):
        left = most.long().cpu().expand(state.rows.batch_shape)
        return left if limit is None else torch.minimum(left, limit)
    if limit is not None:
        return limit.long() if most is None else limit.long().clamp_max(most)
    return torch.full(state.rows.row_of_arm.shape[:-1], torch.iinfo(torch.int32).max if most is None else most)


def frozen_batch(state: State, rule: BatchRule) -> bool | Tensor:
    """Whether the dictionary is frozen while the next picks are pending, in all rows or `batch_shape`. It is frozen under a
    batch rule whose paper specifies it, if nothing else is pending. Without a rule that ends the batch, an arm that a frozen
    dictionary does not explain would be picked again and again."""
    freezes = rule.freezes
    if not freezes or not state.pending_index.shape[-1]:
        return freezes
    return (state.pending_index < 0).all(dim=-1)


def first_picks(
    state: PosteriorState,
    initial: Start | None,
    remaining: Tensor,
    offered: Tensor | None,
    twins: Generators,
    fill: bool = False,
) -> tuple[Tensor, Tensor] | None:
    """The picks of `initial` in batch rows that have not made all of them (`fill`: for all remaining picks), and a mask of
    these rows, `batch_shape`, on the host; None if no row has any left."""
    if initial is None:
        state.opening = False
        return None
    process, pending = state.process, (state.pending_index, state.pending_counts)
    made = state.sum_on_host("told")
    if pending[0].shape[-1]:
        made = made + pending[1].sum(dim=-1).cpu()
    opening = Opening(
        rows=state.rows,
        statistics=state.statistics,
        kernel=process.kernel,
        regularization=process.regularization,
        pending=pending,
        made=made,
        remaining=remaining,
        offered=offered,
        generators=twins,
        fill=fill,
    )
    index, over = initial.picks(opening)
    # Pending picks may still be forgotten, and unavailable arms may become available again: the start may then continue.
    state.opening = not bool(over.all()) or bool(pending[0].shape[-1]) or offered is not None
    begun = (index >= 0).any(dim=-1).cpu()
    return (to_device(pending[0].device, index)[0], begun) if bool(begun.any()) else None


def with_first(starting: Tensor, begun: Tensor, index: Tensor) -> Tensor:
    """The first picks (`starting`) in batch rows that have any (`begun`), and `index` in the other rows; −1 where padded."""
    if bool(begun.all()):
        return starting
    wide = max(starting.shape[-1], index.shape[-1])
    starting, index = (torch.nn.functional.pad(x, (0, wide - x.shape[-1]), value=-1) for x in (starting, index))
    return torch.where(to_device(index.device, begun.unsqueeze(-1))[0], starting, index)


def marginals(state: TableState) -> tuple[Tensor, Tensor]:
    """The mean and standard deviation of every arm, `batch_shape x A`, reward units, computed once per state."""
    if state.derived.marginals is None:
        lam = state.posterior.regularization
        state.derived.marginals = state.table.mean(), (lam * state.table.leverage).sqrt_()
    return state.derived.marginals


def upper_bounds(state: TableState, width: Tensor) -> Tensor:
    """The upper confidence bound of every arm, `batch_shape x A`, reward units, computed once per state."""
    derived = state.derived
    if derived.upper is None or derived.upper_of is not width:
        mean, std = marginals(state)
        derived.upper, derived.upper_of = torch.addcmul(mean, std, width.unsqueeze(-1)), width
        derived.highest = derived.best = None
    return derived.upper


def only_entries(rows: ArmRows, values: Tensor) -> Tensor:
    """Values of arms, `batch_shape x A`; −∞ at arms that duplicate an earlier arm, and at arms of other contexts."""
    if rows.competing is not None:
        values = values.masked_fill(~rows.competing, -torch.inf)
    if rows.first is None:
        return values
    entries = rows.first == torch.arange(rows.num_arms, device=values.device) + rows.across.offset
    return values.masked_fill(~entries, -torch.inf)


def incumbent(state: TableState | BoxState) -> Tensor:
    """The highest posterior mean over the arms of the current context, `batch_shape`, reward units. In a box it is taken over
    the pulled points, and is the prior mean before the first pull."""
    if isinstance(state, TableState):
        return only_entries(state.rows, marginals(state)[0]).amax(dim=-1)
    prior = state.posterior.estimated_prior_mean
    if not state.statistics.size:
        return prior
    best = state.box.row_mean().amax(dim=-1)
    return torch.where(best > -torch.inf, best, prior)


def no_incumbent(score: Score, width: Tensor) -> Tensor:
    """The incumbent that a score is given if it is not relative, `batch_shape`: NaN for a class of the user, so that it
    is noticed if it reads the incumbent all the same. The package's own classes do not read it, and save an operation."""
    return torch.full_like(width, torch.nan) if is_users_own(score) else width


def is_users_own(ingredient: object) -> bool:
    """Whether a score, width or other ingredient is of a class that is not the package's."""
    return not type(ingredient).__module__.startswith("torchbandits.")


@without_gradients
def scorer(state: TableState | BoxState, score: Score, width: Tensor, pending: Pending | None) -> Callable[[Tensor], Tensor]:
    """Differentiable score of arbitrary points, `batch_shape x n x d` to `batch_shape x n`, given the pending pulls."""
    posterior, best = state.posterior, no_incumbent(score, width)
    if score.relative and isinstance(state, TableState):
        best = score.reference(only_entries(state.rows, marginals(state)[0]))
    elif score.relative:
        best = incumbent(state)

    def at(points: Tensor) -> Tensor:
        return scores_of_points(score, points, posterior.marginals(points, pending), width, best)

    return at


class Picker:
    """The selection of one batch on given arms.

    Args:
        state: State to read; only cached quantities are added to it.
        score: Acquisition value of an arm.
        rule: Rule that ends a batch.
        width: `batch_shape`, frozen.
    """

    def __init__(self, state: TableState, score: Score | PosteriorDraw, rule: BatchRule, width: Tensor) -> None:
        self._state, self._score, self._rule, self._width = state, score, rule, width
        self._table: ArmTable = state.table
        self._base = score.base if isinstance(score, PerCost) else score
        self._pending = (state.pending_index, state.pending_counts)
        self._offered: Tensor | None = None

    def pick(self, offered: Tensor | None, remaining: Tensor, twins: Generators) -> tuple[Tensor, Tensor | None]:
        """Select picks, `batch_shape x q` (−1 where padded). Also returns their scores if these are not functions of the
        marginals."""
        self._offered = offered
        if not bool(remaining.any() if remaining.dim() else remaining):
            return torch.full((*remaining.shape, 0), -1, device=self._pending[0].device), None
        if self._state.draws is not None:
            return self._draw(self._state.draws, offered, remaining, twins)
        if isinstance(self._base, MostProbable):
            return self._most_probable(self._base, offered, remaining, twins)
        if isinstance(self._rule, RandomizedBeliever):
            return self._believe(offered, remaining, twins), None
        one_arm = isinstance(self._rule, Repeat) or self._rule.max_batch_size == 1
        if one_arm and not self._pending[0].shape[-1]:
            return self._best(offered, remaining), None
        if isinstance(self._base, UCB):
            return self._look_ahead(offered, remaining), None
        return self._swept(offered, remaining), None

    def recommended(self, offered: Tensor | None, counts: Tensor) -> Tensor:
        """The arms with the highest posterior means that are on offer and not pending, `batch_shape x q` (−1 where padded).
        `pick` then treats them as pending. Cost: O(A) each.

        Args:
            offered: `batch_shape x A` booleans, or None for all arms.
            counts: `batch_shape`, number of arms of each batch row, on the host.
        """
        across, chosen = self._table.rows.across, []
        mean = only_entries(self._table.rows, marginals(self._state)[0])
        if offered is not None:
            mean = mean.masked_fill(~offered, -torch.inf)
        mean = across.without(mean, self._pending[0])
        (counts,) = to_device(mean.device, counts)
        for number in range(int(counts.max())):
            none = (number >= counts) | (across.amax(mean) == -torch.inf)
            chosen.append(across.best(mean).masked_fill(none, -1).unsqueeze(-1))
            mean = across.without(mean, chosen[-1])
        index = torch.cat(chosen, dim=-1)
        once = (index >= 0).to(self._pending[1])
        self._pending = torch.cat([self._pending[0], index], dim=-1), torch.cat([self._pending[1], once], dim=-1)
        return index

    def evidence(self, index: Tensor, slot: Tensor, values: Tensor | None) -> tuple[Tensor, Tensor]:
        """The leverage at the batch start and the score of picks, `batch_shape x q` each; `slot` is `index`, 0 where padded,
        and `values` are the scores if they are known."""
        table, derived, bounds = self._table, self._state.derived, values is None and isinstance(self._score, UCB)
        if bounds and table.rows.sharded:
            leverage, upper = table.rows.across.at(index, table.leverage, upper_bounds(self._state, self._width))
            return leverage, upper
        leverage = table.leverage_of_picks(index, slot)
        if values is not None:
            return leverage, values
        if bounds and derived.upper is not None and derived.upper_of is self._width:
            return leverage, derived.upper.gather(-1, slot)
        mean, std = marginals(self._state)
        return leverage, self._scores(mean.gather(-1, slot), std.gather(-1, slot), mean, slot)

    def _of_all(self) -> Tensor:
        """The scores of all arms, `batch_shape x A`."""
        if isinstance(self._base, UCB):
            return self._priced(upper_bounds(self._state, self._width), None, None)
        mean, std = marginals(self._state)
        return self._scores(mean, std, mean, None)

    def _scores(self, mean: Tensor, std: Tensor, means: Tensor, slot: Tensor | None) -> Tensor:
        """The scores of the arms `slot` (all if None); `means` are those of all arms. For a draw, the upper bounds."""
        score = UCB() if isinstance(self._base, PosteriorDraw) else self._base
        relative = score.relative
        level = score.reference(only_entries(self._table.rows, means)) if relative else no_incumbent(score, self._width)
        values = score(mean, std, self._width, level)
        # Those of the package are finite, and to look at them would wait for a device.
        if is_users_own(score):
            values = self._checked(score, values, mean, slot)
        return self._priced(values, slot, means)

    def _checked(self, score: Score, values: Any, mean: Tensor, slot: Tensor | None) -> Tensor:
        """The scores of a user's class; an error where no arm would be the best."""
        name = type(score).__name__
        if not isinstance(values, Tensor) or values.shape != mean.shape or not values.is_floating_point():
            got = f"{tuple(values.shape)} of {values.dtype}" if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(f"the score {name} must give floating-point numbers of the shape {tuple(mean.shape)}, got {got}.")
        # −∞ stands for arms that are not on offer. Half of the least number leaves room for the tolerance of ties.
        values = values.clamp_min(torch.finfo(values.dtype).min / 2)
        if slot is None and not bool(torch.isfinite(self._table.rows.across.amax(values)).all()):
            hint = "" if score.relative else " If it reads the incumbent, its class must say relative = True."
            raise NumericalError(f"the score {name} is NaN or ∞ at some arms.{hint}")
        return values

    def _priced(self, scores: Tensor, slot: Tensor | None, means: Tensor | None) -> Tensor:
        """The scores of the arms `slot`, per cost if the policy's are; `means` as for `_baseline`."""
        if not isinstance(self._score, PerCost):
            return scores
        return self._score.priced(scores, self._costs(slot), self._baseline(self._score, means))

    def _baseline(self, score: PerCost, means: Tensor | None = None) -> Tensor | float:
        """The reward at which a pull has no value: that of the score, or else the highest posterior mean of the arms that are
        on offer or were pulled, `batch_shape x 1`. `means` are those of all arms, by default the present ones."""
        if not score.over_best:
            return score.baseline or 0.0
        rows = self._table.rows
        means = only_entries(rows, marginals(self._state)[0] if means is None else means)
        if self._offered is not None:
            means = means.masked_fill(~self._offered & (rows.row_of_arm < 0), -torch.inf)
        return rows.across.amax(means).unsqueeze(-1)

    def _costs(self, slot: Tensor | None) -> Tensor:
        costs = self._state.rows.costs
        if costs is None:
            raise ArgumentError("a score per cost needs the costs of the arms: Bandit(policy, arms, costs=…).")
        costs = costs.expand(*self._state.rows.batch_shape, -1)
        return costs if slot is None else costs.gather(-1, slot)

    def _best(self, offered: Tensor | None, remaining: Tensor) -> Tensor:
        """The arm with the best score, once or as often as the rule repeats it."""
        score, derived = self._of_all(), self._state.derived
        if offered is not None:
            score = score.masked_fill(~offered, -torch.inf)
        known = score is derived.upper
        if known and derived.best is not None:
            arm = derived.best
        else:
            arm = self._table.rows.across.best(score, derived.highest if known else None).unsqueeze(-1)
        if remaining.dim() and not bool(remaining.all()):
            arm = arm.masked_fill((remaining == 0).unsqueeze(-1).to(arm.device), -1)
        return self._rule.repeated(arm, self._table.leverage, remaining) if isinstance(self._rule, Repeat) else arm

    def _swept(self, offered: Tensor | None, remaining: Tensor) -> Tensor:
        """Pick by any score, which is evaluated on all arms after each pick."""
        frozen = frozen_batch(self._state, self._rule)
        sweep = FullSweep(self._table, offered, self._pending, self._rule.max_pulls, frozen=frozen)
        mean, lam = marginals(self._state)[0], self._state.posterior.regularization

        def values(leverage: Tensor) -> Tensor:
            return self._scores(mean, (lam * leverage).sqrt(), mean, None)

        # The policy rejects rules without a budget.
        budget = math.inf if self._rule.budget is None else self._rule.budget
        return sweep.pick(values, remaining, self._rule.spends if budget < math.inf else None, budget)

    def _look_ahead(self, offered: Tensor | None, remaining: Tensor) -> Tensor:
        """Pick by the upper bound, by a lazy argmax."""
        mean, price = marginals(self._state)[0], None
        if isinstance(self._score, PerCost):
            baseline, costs, across = self._baseline(self._score), self._costs(None), self._table.rows.across
            # Whether an arm is above or below the baseline is decided at the batch start, although its bound may fall below
            # later. Then its gain is compared with those of arms that were below, and the unit of the costs must not matter.
            costs = costs / (across.amin(costs) * across.amax(costs)).sqrt().unsqueeze(-1)
            price = self._score.price(upper_bounds(self._state, self._width) - baseline, costs)
            mean = (mean - baseline) * price
        lookahead = Lookahead(
            self._table,
            mean,
            self._width,
            offered,
            self._pending,
            self._rule.max_pulls,
            price,
            frozen=frozen_batch(self._state, self._rule),
        )
        return lookahead.pick(self._rule.meter(lookahead), remaining)

    def _most_probable(
        self, score: MostProbable, offered: Tensor | None, remaining: Tensor, twins: Generators
    ) -> tuple[Tensor, Tensor]:
        """Pick the arms that are the best in most joint draws, `batch_shape x q`, and return their fractions of the draws.
        Pending arms, and arms that are not offered, compete but are not picked."""
        mean, std = marginals(self._state)
        upper = only_entries(self._table.rows, score(mean, std, self._width, self._width))
        # Arms that are not leaders come after them, in order of their upper bounds.
        order = upper.sort(dim=-1, descending=True, stable=True).indices
        joint = JointDraws(self._table, order[..., : min(score.leaders, order.shape[-1])])
        leaders, flat = joint.index.reshape(len(twins), -1), order.reshape(len(twins), -1)
        # Leaders that duplicate an arm, or belong to other contexts, are drawn but do not compete.
        apart = None
        if self._table.rows.competing is not None or self._table.rows.first is not None:
            apart = (upper == -torch.inf).reshape(len(twins), -1).gather(-1, leaders).unsqueeze(-2)
        free = torch.ones_like(upper, dtype=torch.bool) if offered is None else offered.expand_as(upper)
        free = (free & (upper > -torch.inf)).reshape(len(twins), -1)
        sizes, pending = remaining.reshape(-1).tolist(), self._pending[0].reshape(len(twins), -1)
        wide = max(sizes)
        index = torch.full((len(twins), wide), -1, device=upper.device)
        values = torch.full((len(twins), wide), torch.nan, dtype=torch.float64, device=upper.device)
        for row, (size, generator) in enumerate(zip(sizes, twins, strict=True)):
            if not size:
                continue
            left = free[row].clone()
            left[pending[row][pending[row] >= 0]] = False
            drawn = joint.draw(row, score.draws, generator)
            if apart is not None:
                drawn = drawn.masked_fill(apart[row], -torch.inf)
            best = best_arm(drawn)
            share = torch.bincount(best, minlength=leaders.shape[-1]).double() / score.draws
            probability = torch.zeros(upper.shape[-1], dtype=torch.float64, device=upper.device)
            probability[leaders[row]] = share
            # Stable: arms of equal probability stay in the order of their upper bounds.
            ranked = flat[row][probability[flat[row]].sort(descending=True, stable=True).indices]
            picks = ranked[left[ranked]][:size]
            index[row, : len(picks)], values[row, : len(picks)] = picks, probability[picks]
        # If few arms are offered, some places stay empty in every row.
        wide = int((index >= 0).sum(dim=-1).max())
        shape = (*self._state.rows.batch_shape, wide)
        return index[:, :wide].reshape(shape), values[:, :wide].reshape(shape)

    def _believe(self, offered: Tensor | None, remaining: Tensor, twins: Generators) -> Tensor:
        """Pick by the score, with rewards of pending picks drawn from the posterior."""
        mean, lam = marginals(self._state)[0], self._state.posterior.regularization

        def normals(drawn: Tensor) -> Tensor:
            flat = torch.zeros(len(twins), drawn.shape[-1], dtype=torch.float64)
            for row, (own, generator) in enumerate(zip(drawn.reshape(len(twins), -1).cpu(), twins, strict=True)):
                flat[row, own] = torch.randn(int(own.sum()), generator=generator, dtype=torch.float64)
            return flat.reshape(drawn.shape).to(drawn.device)

        sweep = FullSweep(self._table, offered, self._pending, self._rule.max_pulls, normals=normals)

        def score(leverage: Tensor) -> Tensor:
            moved = mean + math.sqrt(lam) * sweep.shift
            return self._scores(moved, (lam * leverage).sqrt(), moved, None)

        return sweep.pick(score, remaining)

    def _draw(
        self, draws: PosteriorDraws, offered: Tensor | None, remaining: Tensor, twins: Generators
    ) -> tuple[Tensor, Tensor]:
        """Pick the best arm of one draw of the posterior per pick; pending picks are ignored."""
        sizes = remaining.reshape(-1).tolist()
        picks, scores = [], []
        for values in draws.draw(sizes, self._width, twins):
            if isinstance(self._score, PerCost):
                baseline = self._baseline(self._score)
                baseline = baseline.unsqueeze(-2) if isinstance(baseline, Tensor) else baseline
                values = self._score.priced(values, self._costs(None).unsqueeze(-2), baseline)
            if offered is not None:
                values = values.masked_fill(~offered.unsqueeze(-2), -torch.inf)
            picks.append(best_arm(values))
            scores.append(values.gather(-1, picks[-1].unsqueeze(-1)).squeeze(-1))
        index, best = (part[0] if len(part) == 1 else torch.cat(part, dim=-1) for part in (picks, scores))
        drawn = torch.arange(index.shape[-1]) < remaining.unsqueeze(-1)
        if bool(drawn.all()):
            return index, best
        drawn = to_device(index.device, drawn)[0]
        return torch.where(drawn, index, -1), torch.where(drawn, best, torch.nan)
