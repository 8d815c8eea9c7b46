"""Several outcomes of the same arms: one posterior per outcome, as batch rows of the common engine, and one pick for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchbandits.aims import Aim, Certifying, Constrained, Fidelity, Outlook, Safe, Scalarized, beside
from torchbandits.arms import Shard, best_arm
from torchbandits.batching import FixedSize
from torchbandits.checks import check_instance, check_text
from torchbandits.display import naming
from torchbandits.errors import ArgumentError, UnsupportedError, require
from torchbandits.gradients import without_gradients
from torchbandits.kernels import stack_kernels
from torchbandits.memory import KeepAll, LeverageSampling
from torchbandits.policies.base import Policy
from torchbandits.policies.composed import Composed, noise_share
from torchbandits.policies.picking import first_picks, marginals, on_offer, room_for, with_first
from torchbandits.policies.reweighting import Reweighting
from torchbandits.policies.state import TableState
from torchbandits.policies.successive import Successive
from torchbandits.scores import UCB, LogEI, PosteriorDraw, Score
from torchbandits.sources import ArmSet
from torchbandits.streams import copies_of
from torchbandits.transfers import to_device
from torchbandits.types import Evidence, FitReport, Generators, Progress, Pulls, Selection
from torchbandits.widths import Width
from torchbandits.widths.randomized import is_random

_MODELS = "gp_ucb, igp_ucb, bkb, thompson_sampling"


@dataclass(frozen=True)
class PerOutcome(Width):
    """A separate width for each outcome, which is the last batch dimension."""

    widths: tuple[Width, ...]

    @property
    def reads(self) -> frozenset[str]:
        """The quantities that any of the widths reads."""
        return frozenset().union(*(width.reads for width in self.widths))

    def __call__(self, progress: Progress) -> Tensor:
        """The width of every outcome, `batch_shape x k`."""
        return torch.stack([width(progress)[..., j] for j, width in enumerate(self.widths)], dim=-1)


@dataclass(frozen=True, repr=False)
class Joint(Policy[TableState]):
    """A policy of several outcomes: one common engine whose last batch dimension is the outcome, and an aim that selects arms.

    Picks are shared: a selection is the same for all outcomes. A reward that is masked in the row of an outcome was not
    measured.

    Args:
        engine: The engine of the posteriors; its kernel has the batch shape `k`.
        aim: The aim, which scores arms from the posteriors of all outcomes.
        names: Names of the outcomes, in the order of the batch rows.
        regularizations: λ of each outcome; the engine's λ is that of the first outcome.
        noise_stds: Standard deviation of the noise of each outcome; the engine's is that of the first outcome.
        known_names: Names of further outcomes that the aim reads, whose values are known for all arms; None for none.
    """

    engine: Composed
    aim: Aim
    names: tuple[str, ...]
    regularizations: tuple[float, ...]
    noise_stds: tuple[float, ...]
    known_names: tuple[str, ...] | None = None

    # ------------------------------------------------------------------ methods of the engine

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Names of the outcomes."""
        return self.names

    @property
    def known(self) -> tuple[str, ...]:
        """Names of outcomes whose values are known for all arms, and given to the bandit."""
        return self.known_names or ()

    @property
    def ranks_known(self) -> bool:
        """Whether known outcomes enter by their ranks: for models that rank rewards, as `auto` does."""
        return self.engine.from_data is not None

    @property
    def all_names(self) -> tuple[str, ...]:
        """Names of the outcomes that are told, and of those that are known after them."""
        return self.names + self.known

    @property
    def wanted(self) -> Aim:
        """The aim; if arms are evaluated at several fidelities, the aim at the target fidelity."""
        return self.aim.aim if isinstance(self.aim, Fidelity) else self.aim

    @property
    def objectives(self) -> dict[str, str]:
        """Whether to `"maximize"` or to `"minimize"`, by the name of each outcome that is an objective."""
        aim = self.wanted
        if isinstance(aim, Scalarized | Certifying):
            signs = aim.signs
        elif isinstance(aim, Constrained | Safe):
            signs = tuple(aim.objective.sign if j == aim.objective.outcome else 0.0 for j in range(len(self.all_names)))
        else:
            signs = (0.0,) * len(self.all_names)
        return {name: "minimize" if sign < 0 else "maximize" for name, sign in zip(self.all_names, signs, strict=True) if sign}

    @property
    def directions(self) -> tuple[float, ...]:
        """For each outcome 1.0 if larger values are better and −1.0 if smaller values are, by its objective or else by its
        limits; 0.0 for an outcome without an objective that has limits on both sides."""
        aim = self.wanted
        limits = aim.limits if isinstance(aim, Constrained | Scalarized | Safe) else ()
        found = []
        for j, name in enumerate(self.names):
            signs = {limit.sign for limit in limits if limit.outcome == j}
            own = self.objectives.get(name)
            by_limits = signs.pop() if len(signs) == 1 else 0.0
            found.append(by_limits if own is None else -1.0 if own == "minimize" else 1.0)
        return tuple(found)

    @property
    def draws_on_update(self) -> bool:
        """Whether `update` may advance the generators."""
        return self.engine.draws_on_update

    @property
    def most_picks(self) -> int | None:
        """The maximum number of picks that the batch rule allows."""
        return self.engine.most_picks

    @property
    def full_batch(self) -> int:
        """The maximum number of picks that the batch rule allows; 1 if it sets none."""
        return self.engine.full_batch

    @property
    def needs_costs(self) -> bool:
        """Whether the aim depends on costs."""
        return self.wanted.exponent is not None

    @property
    def learns_failures(self) -> bool:
        """Whether arms that are likely to fail are left out; not by aims that pick only some of the arms."""
        return self.engine.learns_failures and not isinstance(self.aim, Certifying | Safe)

    @property
    def memory_of_failures(self) -> int | None:
        """Bytes that the model of failures may take."""
        return self.engine.memory_of_failures

    @property
    def streams(self) -> bool:
        """Whether arms may be read piece by piece."""
        return self.engine.streams

    def init(self, arms: ArmSet, generators: Generators, batch_shape: torch.Size) -> TableState:
        """Make a fresh state, `batch_shape` ending with the k outcomes."""
        require(not isinstance(arms, Shard), "several outcomes are of arms of one process: pass a tensor.", UnsupportedError)
        self.aim.check(arms.shape[-2])
        return self._with_weights(self.engine.init(arms, generators, batch_shape))

    def set_arms(self, state: TableState, arms: ArmSet) -> TableState:
        """Return a state with the same posteriors on other arms."""
        named = "start= names arms of the beginning" if isinstance(self.aim, Safe) else "the policy names arms of the beginning"
        message = f"{named}: make a new OutcomeBandit on the new arms, and observe() the data."
        require(not isinstance(self.aim, Safe | Fidelity), message, UnsupportedError)
        return self._with_weights(self.engine.set_arms(state, arms))

    def update(self, state: TableState, pulls: Pulls) -> TableState:
        """Learn the rewards, each weighted by the noise of its outcome; see `Composed.update`."""
        with naming(self.names):
            updated = self.engine.update(state, self._weighted(pulls))
        assert isinstance(updated, TableState)
        return updated

    def learns_together(self, state: TableState) -> bool:
        """Whether several tells may be learned at once: True if the engine allows it and all outcomes have the same noise and
        λ."""
        return self._alike and self.engine.learns_together(state)

    def update_together(self, state: TableState, pulls: Pulls, sizes: Sequence[int]) -> TableState:
        """Learn several tells by one update."""
        if not self.learns_together(state):
            return super().update_together(state, pulls, sizes)
        with naming(self.names):
            updated = self.engine.update_together(state, pulls, sizes)
        assert isinstance(updated, TableState)
        return updated

    def noise_variance(self, state: TableState) -> float | None:
        """The noise variance of the first outcome; `update` accounts for the other outcomes."""
        return self.engine.noise_variance(state)

    @property
    def pulls_once(self) -> bool:
        """Whether the batch rule allows one pull of an arm at a time."""
        return self.engine.pulls_once

    @property
    def takes_blocks(self) -> bool:
        """Whether the shifts of blocks can be estimated for each outcome."""
        return self.engine.takes_blocks

    def refit(self, state: TableState, *, noise: bool = False, rows: Tensor | None = None, **options: Any) -> FitReport:
        """Fit the kernel of each outcome."""
        with naming(self.names):
            return self.engine.refit(state, noise=noise, rows=rows, **options)

    def width(self, state: TableState) -> Tensor:
        """The confidence width of each outcome, `batch_shape x k`."""
        return self.engine.width(state)

    def bounds(self, state: TableState) -> tuple[Tensor, Tensor] | None:
        """The largest upper and lower bound of each outcome."""
        return self.engine.bounds(state)

    @cached_property
    def _alike(self) -> bool:
        return len(set(self.regularizations)) == 1 and len(set(self.noise_stds)) == 1

    def _weights(self, like: Tensor) -> Tensor:
        """λ₀ / λ_j, the weight of a pull in the row of each outcome, `k x 1`."""
        return like.new_tensor([self.regularizations[0] / lam for lam in self.regularizations]).unsqueeze(-1)

    def _with_weights(self, state: TableState) -> TableState:
        if not self._alike:
            state.pull_weight = self._weights(state.log_det)
        if min(self.directions) < 0:
            state.directions = state.log_det.new_tensor([-1.0 if sign < 0 else 1.0 for sign in self.directions]).unsqueeze(-1)
        return state

    def _weighted(self, pulls: Pulls) -> Pulls:
        """Pulls weighted so that each outcome is learned with its own λ: a reward of outcome j has weight λ₀/λ_j."""
        if self._alike:
            return pulls
        factor = self._weights(pulls.counts)
        if pulls.numbers is not None:
            # The given weights are relative to the noise of the first outcome.
            shares = [noise_share(std, lam) for std, lam in zip(self.noise_stds, self.regularizations, strict=True)]
            scaled = [share * lam for share, lam in zip(shares, self.regularizations, strict=True)]
            factor = factor * pulls.counts.new_tensor([variance / scaled[0] for variance in scaled]).unsqueeze(-1)
        sums = (factor * pulls.counts, factor * pulls.sums, factor * pulls.squares)
        return Pulls(*sums, pulls.index, pulls.mask, pulls.points, pulls.history, pulls.num_rewards, pulls.block)

    # ------------------------------------------------------------------ one pick for all outcomes

    @property
    def draws(self) -> bool:
        """Whether every pick is random."""
        return self.aim.draws or isinstance(self.engine.score, PosteriorDraw)

    def draws_on_select(self, state: TableState) -> bool:
        """Whether `select` may advance the generators: for draws, and until the first picks are over."""
        return self.draws or (self.engine.initial is not None and state.opening)

    def opens(self, state: TableState) -> bool:
        """Whether there may be further first picks, which end a batch."""
        return self.engine.initial is not None and state.opening

    @without_gradients
    def select(
        self, state: TableState, *, limit: Tensor | None = None, available: Tensor | None = None, exactly: int | None = None
    ) -> tuple[Selection, Evidence]:
        """Select arms by the aim, the same for all outcomes. Cost O(A m k) for the first pick, plus the cost of the aim; a
        further pick mostly costs O(A), and the aim of a thousand arms (see `Successive`)."""
        rows, engine = state.rows, self.engine
        width = self.width(state)
        rule = engine.batch_rule if exactly is None else engine.batch_rule.exactly(exactly)
        offered = self._offered(state, available)
        remaining = room_for(state, rule.max_batch_size, limit)
        twins = copies_of(state.generators) if self.draws_on_select(state) else ()
        opened = first_picks(state, engine.initial, remaining, offered, twins) if state.opening else None
        if opened is not None:
            opened = _shared(state, *opened)
            remaining = remaining.masked_fill(opened[1], 0)
        index, values = self._picked(state, width, offered, remaining, twins, rule.max_pulls)
        if opened is not None:
            index = with_first(*opened, index)
            values = torch.nn.functional.pad(values, (0, index.shape[-1] - values.shape[-1]), value=torch.nan)
        states = tuple(twin.get_state() for twin in twins)
        evidence = Evidence(values, state.table.leverage_at(index), width, states)
        return Selection(rows.points(index), index, index >= 0), evidence

    def _offered(self, state: TableState, available: Tensor | None) -> Tensor | None:
        """The arms that may be picked, `batch_shape x k x A` booleans, None for all: those that keep the limits on known
        outcomes, if any on offer does."""
        offered, known, aim = on_offer(state.rows, available), state.rows.known, self.wanted
        k = len(self.names)
        limits = aim.limits if known is not None and isinstance(aim, Constrained | Scalarized) else ()
        kept = [
            limit.sign * known[..., limit.outcome - k, :] >= limit.sign * limit.value
            for limit in limits
            if known is not None and limit.outcome >= k
        ]
        if not kept:
            return offered
        allowed = torch.stack(kept).all(dim=0).unsqueeze(-2).expand(state.rows.row_of_arm.shape)
        allowed = allowed if offered is None else allowed & offered
        return torch.where(allowed.any(dim=-1, keepdim=True), allowed, True if offered is None else offered)

    def _picked(
        self,
        state: TableState,
        width: Tensor,
        offered: Tensor | None,
        remaining: Tensor,
        twins: Generators,
        max_pulls: int | None,
    ) -> tuple[Tensor, Tensor]:
        """Picks `batch_shape x k x q` (−1 where padded), the same for all outcomes, and their scores at the time of the
        pick."""
        most, device = int(remaining.max()), width.device
        if not most:
            empty = torch.full((*width.shape, 0), -1, device=device)
            return empty, empty.double()
        outlook = self._outlook(state, width)
        mean, weight, known = outlook.mean, outlook.weight, _known(state)
        room = remaining[..., 0]
        per_row = twins[:: width.shape[-1]]
        drawn = self._drawn(state, width, remaining, twins)
        pending = (state.pending_index, weight * state.pending_counts)
        successive = None if drawn is not None else Successive(self.aim, self._score, state.table, pending)
        closed = None if offered is None else ~offered.expand(*width.shape, -1)[..., 0, :]
        counts = torch.zeros_like(mean[..., 0, :])
        again = self._replicates(state, outlook, most)
        picks, scores = [], []
        for place in range(most):
            live = place < room
            allowed = torch.ones_like(counts, dtype=torch.bool) if closed is None else ~closed
            if max_pulls is not None:
                allowed = allowed & (counts < max_pulls)
            now = replace(
                outlook,
                only_best=True,
                pending=outlook.pending | (counts > 0),
                settled=outlook.settled | (counts > 0),
                drawn=None if drawn is None else beside(drawn[..., place, :], known),
                offered=None if closed is None and max_pulls is None else allowed,
                told=outlook.told + place,
                generators=[g if on else None for g, on in zip(per_row, live.reshape(-1).tolist(), strict=False)],
            )
            if successive is None:
                value = self.aim.scores(now, self._score)
                arm, best = best_arm(value), value.amax(dim=-1)
            else:
                arm, best = successive.best(now)
            if not place and bool((live.to(device) & (best == -torch.inf)).any()):
                raise ArgumentError(
                    "none of the available arms is known to be safe, so that none may be picked: make more arms available, or, "
                    "under constraints, ask for fewer."
                )
            arm = torch.where(live.to(device) & (best > -torch.inf), arm, -1)
            if again is not None and bool(again[1][..., place].any()):
                left = now.open(again[0].masked_fill(now.pending, -torch.inf))
                due = again[1][..., place].to(device) & (left > -torch.inf).any(dim=-1) & (arm >= 0)
                arm, best = torch.where(due, best_arm(left), arm), best.masked_fill(due, torch.nan)
            counts = counts.scatter_add(-1, arm.clamp_min(0).unsqueeze(-1), (arm >= 0).double().unsqueeze(-1))
            shared = arm[..., None, None].expand(*width.shape, 1)
            picks.append(shared)
            scores.append(best[..., None, None].expand(*width.shape, 1))
            if successive is not None:
                successive.hallucinate(shared, weight.expand(shared.shape))
        index, values = torch.cat(picks, dim=-1), torch.cat(scores, dim=-1)
        return index, torch.where(index >= 0, values, torch.nan)

    def _replicates(self, state: TableState, outlook: Outlook, count: int) -> tuple[Tensor, Tensor] | None:
        """The order in which arms are pulled again to estimate the noise, `... x A`: contenders by their number of pulls,
        negative, and −∞ for other arms; and which of the next `count` picks are such replicates, `... x count` booleans on the
        host. None if no pick is."""
        due = None if self.engine.from_data is None else self.engine.from_data.replicates_one_by_one(state, count)
        if due is None:
            return None
        # The means of equal arms may differ by rounding, so that only the first of them is a contender.
        seen = outlook.seen if outlook.entries is None else outlook.seen & outlook.entries
        arms = self.aim.contenders(replace(outlook, seen=seen))
        if arms is None:
            return None
        pulls = state.rows.counts(state.statistics.weights).expand(state.rows.row_of_arm.shape).amax(dim=-2)
        return (-pulls).masked_fill(~arms, -torch.inf), due

    @without_gradients
    def permitted(self, state: TableState) -> Tensor | None:
        """The arms that may be picked by the rewards told, `batch_shape x A` booleans, the same for all outcomes; None for
        all."""
        if not isinstance(self.aim, Safe):
            return None
        return self.aim.safe(self._outlook(state, self.width(state))).unsqueeze(-2).expand(state.rows.row_of_arm.shape)

    def _outlook(self, state: TableState, width: Tensor) -> Outlook:
        """The inputs of the aim that follow from the observed rewards, without pending picks, draws and generators."""
        mean, std = (part.double() for part in marginals(state))
        entries, costs, known = state.rows.offered(None), state.rows.costs, _known(state)
        told = (state.rows.counts(state.statistics.weights) > 0).expand(mean.shape)
        pending = _marked(state.pending_index, state.pending_counts, mean).any(dim=-2)
        reach, bounds = state.kappa2.double().sqrt().expand_as(width), width
        if known is not None:
            apart = known.amax(dim=-1, keepdim=True) - known.amin(dim=-1, keepdim=True)
            reach = beside(reach.unsqueeze(-1), apart.clamp_min(torch.finfo(known.dtype).tiny)).squeeze(-1)
            bounds = beside(width.unsqueeze(-1), torch.zeros_like(apart)).squeeze(-1)
            mean, std = all_outcomes(state, mean, std)
        return Outlook(
            mean=mean,
            std=std,
            known=std,
            width=bounds,
            reach=reach,
            drawn=None,
            entries=None if entries is None else entries.expand(*width.shape, -1)[..., 0, :],
            offered=None,
            told=state.told.amax(dim=-1),
            table=state.table,
            weight=self._weights(mean),
            costs=None if costs is None else costs.expand(*width.shape, -1)[..., 0, :],
            num_known=0 if known is None else known.shape[-2],
            generators=[None] * width[..., 0].numel(),
            seen=told.any(dim=-2),
            pending=pending,
            settled=told.any(dim=-2) | pending,
        )

    @property
    def _score(self) -> Score | None:
        """The score that the models use for one outcome; None for draws."""
        return self.engine.score if isinstance(self.engine.score, Score) else None

    @without_gradients
    def leaders(self, state: TableState, count: int, draws: int, seed: int) -> Tensor:
        """The arms that the aim ranks highest, `... x count`, −1 where padded. If the aim draws trade-offs, first the best arm
        of each of the `draws`, then the second best of each, and so on. See `OutcomeBandit.leaders`."""
        outlook = self._outlook(state, self.width(state))
        offered = self._offered(state, None)
        open_ = None if offered is None else offered.expand(*outlook.width.shape, -1)[..., 0, :]
        generators = [torch.Generator().manual_seed(seed) for _ in outlook.generators]
        # An acquisition function may also consider arms that were already told.
        outlook = replace(outlook, generators=generators, offered=open_, settled=torch.zeros_like(outlook.settled))
        most, ranked = min(count, outlook.mean.shape[-1]), []
        for _ in range(draws if self.aim.draws else 1):
            top = self.aim.scores(outlook, self._score).topk(most, dim=-1)
            ranked.append(torch.where(top.values > -torch.inf, top.indices, -1).reshape(-1, most))
        # The best arms of all draws, in the order of the draws, come before the second best.
        rows = []
        for own in torch.stack(ranked, dim=-1).flatten(start_dim=1):
            known = list(dict.fromkeys(arm for arm in own.tolist() if arm >= 0))[:count]
            rows.append(torch.tensor(known + [-1] * (count - len(known)), device=own.device))
        return torch.stack(rows).reshape(*outlook.told.shape, count)

    def _drawn(self, state: TableState, width: Tensor, remaining: Tensor, twins: Generators) -> Tensor | None:
        """One draw of every outcome's posterior per pick, `batch_shape x k x q x A`; None if nothing is drawn."""
        if state.draws is None:
            return None
        sizes = remaining.expand(width.shape).reshape(-1).tolist()
        return torch.cat(list(state.draws.draw(sizes, width, twins)), dim=-2).double()


def _shared(state: TableState, starting: Tensor, begun: Tensor) -> tuple[Tensor, Tensor]:
    """First picks and the rows that make them, as `first_picks` returns them, with those of the outcome that has the most pulls
    for all outcomes."""
    most = state.sum_on_host("told").argmax(dim=-1, keepdim=True)
    slot = to_device(starting.device, most)[0].unsqueeze(-1).expand(*most.shape, starting.shape[-1])
    shared = starting.gather(-2, slot).expand_as(starting)
    # Another outcome, with fewer pulls, may have more first picks left.
    wide = int((shared >= 0).sum(dim=-1).max())
    return shared[..., :wide], begun.gather(-1, most).expand_as(begun)


def all_outcomes(state: TableState, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of the outcomes on all arms, `... x k x A`, model units, with those of known outcomes after
    them."""
    known = _known(state)
    return beside(mean, known), beside(std, None if known is None else torch.zeros_like(known))


def _known(state: TableState) -> Tensor | None:
    """The known outcomes of all arms, `... x j x A`, model units; None if there are none."""
    rows = state.rows
    return rows.known if rows.known_scores is None else rows.known_scores


def known_at(state: TableState, index: Tensor) -> Tensor | None:
    """The values of the known outcomes at arms `... x n`, `... x j x n`, reward units; None if there are none."""
    known = state.rows.known
    if known is None:
        return None
    shape = (*index.shape[:-1], known.shape[-2])
    return known.expand(*shape, known.shape[-1]).gather(-1, index.unsqueeze(-2).expand(*shape, index.shape[-1]))


def _marked(index: Tensor, counts: Tensor, like: Tensor) -> Tensor:
    """Mask of the arms with a positive count among picks `... x p`, as booleans shaped like `... x A` values."""
    found = torch.zeros_like(like).scatter_add(-1, index.clamp_min(0).expand(*like.shape[:-1], -1), counts.to(like))
    return found > 0


def joint(models: Any, aim_of: Any, *, estimated: bool = True, known: Any = ()) -> Joint:
    """Combine one policy per outcome into a policy of several outcomes, which uses all their ingredients except the scores.

    Args:
        models: Policies with a single Gaussian process, by the name of their outcome.
        aim_of: Function from the names of the outcomes to the aim.
        estimated: Whether models may estimate units, kernel and noise from the data, as `auto` does.
        known: Names of outcomes that are known for all arms; the aim's names are those of the models, and then these.

    Raises:
        ArgumentError: If a name is not a string, or a model is not a policy.
        UnsupportedError: For models that can't be rows of one engine; the message names the difference.
    """
    require(
        isinstance(models, Mapping) and len(models) > 0,
        'models must be policies by the name of their outcome, such as {"yield": gp_ucb(kernel, noise_std=0.1)}.',
    )
    names, parts = tuple(models), tuple(models.values())
    for name, part in models.items():
        check_text("the name of an outcome", name)
        check_instance(f"models[{name!r}]", part, Policy, f"a torchbandits policy: {_MODELS} or auto")
        _check_model(name, part, estimated)
    listed = isinstance(known, Sequence) and not isinstance(known, str) and all(isinstance(name, str) for name in known)
    require(listed, f"known must be a list of names of outcomes, got {known!r:.60}. Their values are given to the bandit.")
    given = tuple(known)
    twice = [name for place, name in enumerate(given) if name in names or name in given[:place]]
    require(not twice, f"known names {twice[:1]}, which is an outcome already.")
    parts = tuple(_with_own_width(part) for part in parts)
    first = parts[0]
    for name, part in zip(names, parts, strict=True):
        for option in ("memory", "score", "batch_rule", "prior_mean", "initial", "refit_every", "from_data"):
            same = getattr(part, option) == getattr(first, option)
            message = (
                f"outcomes are rows of one engine, so that {option} must be that of {names[0]!r}, "
                f"{getattr(first, option)!r}, for {name!r} too, got {getattr(part, option)!r}."
            )
            require(same, message, UnsupportedError)
        _check_kernels(names[0], first.kernel, name, part.kernel)
    budgets = [part.memory_budget for part in parts if part.memory_budget is not None]
    engine = replace(
        first,
        kernel=stack_kernels([part.kernel for part in parts], torch.Size([len(parts)])),
        confidence=PerOutcome(tuple(part.confidence for part in parts)),
        memory_budget=min(budgets, default=None),
    )
    lams, stds = tuple(p.regularization for p in parts), tuple(p.noise_std for p in parts)
    return Joint(engine, aim_of(names + given), names, lams, stds, given or None)


def _with_own_width(part: Any) -> Any:
    """The model, with its own width for fingerprints too. The smaller width that `auto` uses there for one outcome would pull
    the same few arms repeatedly if limits or trade-offs narrow the choice."""
    if part.from_data is None:
        return part
    return replace(part, from_data=replace(part.from_data, own_width=True))


def _check_model(name: str, part: Any, estimated: bool) -> None:
    """Raise an error for a policy that can't be the model of an outcome."""
    plain = (
        isinstance(part, Composed)
        and isinstance(part.memory, KeepAll | LeverageSampling)
        and not isinstance(part.memory, Reweighting)
        and part.features is None
        and type(part.batch_rule) is FixedSize
        and isinstance(part.score, UCB | LogEI | PosteriorDraw)
        and not is_random(part.confidence)
    )
    require(
        plain,
        f"the model of {name!r} must be one Gaussian process with its own width, scored by UCB, EI or draws: use {_MODELS} or "
        "auto.",
        UnsupportedError,
    )
    require(
        estimated or part.from_data is None,
        f"the model of {name!r} estimates its units and kernel from the rewards, and what this policy promises is of a kernel "
        f"that you know: use {_MODELS}.",
        UnsupportedError,
    )
    require(not part.kernel.batch_shape, f"the kernel of {name!r} has batch rows: pass one without.", UnsupportedError)


def _check_kernels(first: str, one: Any, name: str, other: Any) -> None:
    """Raise an error for kernels of different forms, because the batch rows of a kernel can differ only in its parameters."""
    forms = []
    for kernel in (one, other):
        restricted = [part for part in kernel.modules() if hasattr(part, "active_dims")]
        parts = [(type(part), getattr(part, "nu", None), str(part.active_dims)) for part in restricted]
        forms.append((parts, [(key, value.shape) for key, value in kernel.named_parameters()]))
    require(
        forms[0] == forms[1],
        f"the kernels of {first!r} and {name!r} must be of one form (the same classes, orders and features), and may differ in "
        "their parameters.",
        UnsupportedError,
    )
