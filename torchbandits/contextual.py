"""The ask-and-tell interface with contexts: one posterior over (context, arm) pairs, maximised over arms at a given context.

The joint arm set contains one copy of the arms per kept context, so that one posterior and one table serve all contexts.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from torchbandits.calls import one_at_a_time
from torchbandits.checks import (
    as_tensor,
    check_arms,
    check_available,
    check_costs,
    check_count,
    check_draws,
    check_fit,
    check_generators,
    check_history,
    check_instance,
    check_limit,
    check_more,
    check_noise_var,
    check_picks,
    check_replacement,
    check_rewards,
    check_squares,
    check_state,
    check_told,
    explains_keywords,
    is_finite,
    own_copy,
)
from torchbandits.constraints import Constraint, check_within
from torchbandits.contexts import Contexts
from torchbandits.display import Readable, Shown, count, numbers, of_run
from torchbandits.errors import ArgumentError, StateError, UnsupportedError, require
from torchbandits.explanation import Explanation, Words, explain
from torchbandits.filling import fill_within
from torchbandits.gradients import outside_inference_mode
from torchbandits.journal import (
    NOT_PENDING,
    Journal,
    Recorder,
    as_journal,
    begun,
    describe_policy,
    held,
    load_record,
    move_record,
    pack,
    resume,
    state_of_text,
    unpack,
)
from torchbandits.journal.lines import Mark
from torchbandits.loop import Advised, Loop
from torchbandits.policies import Policy
from torchbandits.posteriors import GaussianProcess, PartitionedProcess
from torchbandits.selections import duplicate, joined, renumbered
from torchbandits.selections import within as picks_within
from torchbandits.sets import LevelSet, TopK, level_set, top_k
from torchbandits.sources import ArmSource
from torchbandits.stopping import Decision, Rule, check_rules, decide
from torchbandits.types import (
    Arms,
    ArrayLike,
    FitReport,
    PickMask,
    Picks,
    Recommendation,
    Report,
    Selection,
    with_blanks,
)
from torchbandits.widths import Width

if TYPE_CHECKING:
    from torchbandits.botorch.model import BanditModel


def _in_memory(arms: Any) -> Arms:
    """Arms that were handed in, as a tensor. Raises `UnsupportedError` for a source."""
    message = (
        "contexts are combined with arms in memory, not with a source: pass arms.chunk(slice(0, arms.num_arms)), a tensor."
    )
    require(not isinstance(arms, ArmSource), message, UnsupportedError)
    return check_arms(arms)


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _enters(method: Callable[Concatenate[ContextualBandit, _P], _R]) -> Callable[Concatenate[ContextualBandit, _P], _R]:
    """Decorate a method that enters contexts: if it raises an error, the contexts are as they were before."""

    @functools.wraps(method)
    def called(self: ContextualBandit, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        self.loop.recover_()
        self._entries = []
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            # Where an interrupt came after a further record, of what the method has done, a checkpoint may hold it already.
            if self._entries and self._mark() == self._entered:
                while self._entries:
                    self.loop.undo_(self._entries.pop())
            raise
        finally:
            self._entries = []

    return called


class ContextualBandit(Readable):
    """Selects arms at given contexts. The kernel is defined on (context, arm) pairs, with the context's features first.

    The arms are tabulated at up to `max_contexts` contexts. Returning to a kept context costs nothing, and a new context costs
    a sweep over the arms and replaces the least recently used one (if contexts never repeat, `max_contexts=1` is fastest).
    Contexts with open picks are kept beyond this number, until a new context is asked for after their rewards were told.
    Observations at contexts that are no longer kept stay in the posterior. New contexts require a policy whose arms may change
    (`Bandit.set_arms_`): `ada_bkb`, `bpe`, `reds`, `sup_kernel_ucb` and `lb_gp_ucb` need every context at the start, and so
    does `pi_gp_ucb` if a context with pulls would have to be replaced. `bpe` and `reds` eliminate arms over all contexts
    together, so that a context with low rewards may lose all of its arms.

    Args:
        policy: The policy that selects arms, with a kernel on the joint features of a context and an arm.
        arms: `A x d` or `batch_shape x A x d`, copied.
        contexts: `C x c` or `batch_shape x C x c`, contexts known at the start, at least one; copied.
        max_contexts: Maximum number of kept contexts, at least C. A tell updates all kept contexts.
        generator: As for `Bandit`.
        costs: `A` or `batch_shape x A`, as for `Bandit`, the same at every context.
        journal: A path, or a `Journal`, as for `Bandit`: entered contexts, asks and tells are written to disk before they take
            effect, and an interrupted run resumes exactly.

    Attributes:
        loop: The state and the open picks over (context, arm) pairs. Its methods neither check arguments nor write to the
            journal.
        recorder: The methods of `loop` with journaling.

    Raises:
        StateError, DataError: If the journal is in use, belongs to another run, is damaged, or can't be written.
        ShapeError, NonFiniteError: If arms or contexts are not as described.
        UnsupportedError: For arms that are a source.
    """

    @explains_keywords
    @outside_inference_mode
    def __init__(
        self,
        policy: Policy,
        arms: ArrayLike,
        contexts: ArrayLike,
        *,
        max_contexts: int = 8,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        costs: ArrayLike | None = None,
        journal: Journal | str | os.PathLike[str] | None = None,
    ) -> None:
        check_instance("policy", policy, Policy, "a torchbandits policy")
        message = "policy has several outcomes, and contexts are for one: make a torchbandits.OutcomeBandit on given arms."
        require(not policy.outcomes, message, UnsupportedError)
        arms = _in_memory(arms)
        generators, batch_shape = check_generators(generator, arms, getattr(policy, "kernel", None))
        self._contexts = Contexts(own_copy(arms), contexts, max_contexts, batch_shape)
        self._costs = self._checked_costs(costs, arms, batch_shape)
        # Functions that undo the contexts that the present call has entered, after which the journal had this end.
        self._entries: list[Callable[[], None]] = []
        self._entered: Mark | None = None
        joint, repeated, journal = self._contexts.joint(), self._contexts.repeated(self._costs), as_journal(journal)
        kept = {"contexts": f"{self._contexts.seen.shape[-2]} at the start, {self._contexts.most} kept"}
        with begun(journal, policy, joint, repeated, generators, kept):
            self.loop = Loop.fresh(policy, joint, generators, batch_shape, costs=repeated)
            self.recorder = Recorder(self.loop, describe_policy(policy), journal)
            self._keep(self._contexts)
            again = {"context": self._enter_again, "load": self._load_again, "set_arms": self._replace_again}
            resume(self.recorder, again, restore=self._restore)
        self._entries = []

    # ------------------------------------------------------------------ ask and tell

    @explains_keywords
    @one_at_a_time
    @_enters
    def ask(
        self,
        limit: ArrayLike | None = None,
        *,
        context: ArrayLike,
        more: int | None = None,
        exactly: int | None = None,
        within: Constraint | Sequence[Constraint] = (),
        available: ArrayLike | None = None,
    ) -> Selection:
        """Return the picks to evaluate next at a context. While picks are open at this context, they are returned again.

        Args:
            limit: Maximum number of picks, as for `Bandit.ask`.
            context: `c` or `batch_shape x c`.
            more: Number of additional picks beside the picks that are open at this context.
            exactly: Number of picks per row of a new batch, in place of the batch rule, as for `Bandit.ask`.
            within: With `exactly` or `more`, constraints of `torchbandits.constraints` on all picks that are open at this
                context, as for `Bandit.ask`. Labels and values are those of the `A` arms.
            available: `A` or `batch_shape x A` booleans, the arms on offer; by default all arms.

        Returns:
            A selection with points `batch_shape x q x (c + d)` and with indices into the arms. New picks are selected with the
            open picks of all contexts as pending.

        Raises:
            ShapeError, NonFiniteError, ArgumentError: On bad input, or if not so many picks could be made that meet the
                constraints. No pick is then opened.

        Warns (`DiagnosticWarning`): As `Bandit.ask` for `exactly`.
        """
        limit, more, exactly = check_limit(limit, self.batch_shape), check_more(more), check_more(exactly, "exactly")
        alone = exactly is None or (limit is None and more is None)
        require(alone, "exactly= excludes limit= and more=: leave them out.")
        constraints = () if isinstance(within, tuple) and not within else check_within(within)
        if constraints:
            require((exactly or more) is not None, "within= requires a given number of picks: pass exactly=, or more=.")
            require(limit is None, "within= excludes limit=: leave it out.")
        offered = check_available(available, self.batch_shape, self.arms.shape[-2], self.device)
        some = offered is None or bool(offered.any(dim=-1).all())
        require(some, "available must have at least one True in each batch row.")
        self._enter(context)
        mine = self._open_here()
        if mine is None or more is not None:
            if exactly is not None:
                self.recorder.warn_of_exactly_()
            many = more if exactly is None else exactly
            if constraints:
                assert many is not None
                added = self._filled(many, constraints, offered)
            else:
                added, _ = self.recorder.ask(limit, self._contexts.only_here(offered), many, whole=exactly is not None)
            mine = added if mine is None else joined(mine, added)
        return self._outward(mine)

    @one_at_a_time
    @_enters
    def plan(self, selection: Selection | ArrayLike, *, context: ArrayLike) -> Selection:
        """Open picks of one's own choice at a context, in addition to the open ones; see `Bandit.plan`.

        Args:
            selection: Arm indices `batch_shape x q`, or a selection of another bandit on these arms, at this context.
            context: `c` or `batch_shape x c`.

        Returns:
            All picks that are open at this context, as `ask` returns them.
        """
        self.loop.recover_()
        index, mask = self._picks(selection)
        require(bool(mask.any()), "selection has no pick: give the indices of the arms that will be evaluated.")
        joint = self._inward(selection, index, mask, context)
        self._enter(context)
        self.recorder.plan(joint, mask)
        return self._outward(cast(Selection, self._open_here()))

    @one_at_a_time
    @_enters
    def tell(
        self,
        selection: Selection | ArrayLike,
        rewards: ArrayLike,
        *,
        context: ArrayLike | None = None,
        failures: str = "error",
        noise_var: ArrayLike | None = None,
    ) -> Report:
        """Learn the rewards of picks, in any order and at any contexts.

        Args:
            selection: A selection returned by `ask`, or a part of it; or arm indices `batch_shape x q` at `context`.
            rewards: `batch_shape x q`, reward units.
            context: `c` or `batch_shape x c`, the context of plain arm indices; not needed for selections, which know theirs.
            failures: How to treat a NaN, as for `Bandit.tell`.
            noise_var: Noise variance of each reward, as for `Bandit.tell`.

        Returns:
            The report after the update. Its certificate compares the pairs of all kept contexts, and not the arms at one.
        """
        self.loop.recover_()
        index, mask = self._picks(selection)
        # Rewards are checked before a context is entered, so that bad rewards change nothing.
        given = check_rewards(rewards, index, mask, self.device, failures)
        variance = check_noise_var(noise_var, index.shape, mask & ~given.isnan(), self.device)
        if variance is not None:
            self.loop.noise_variance()
        joint = self._inward(selection, index, mask, context)
        forgets, selected = failures == "forget", isinstance(selection, Selection)
        return self.recorder.tell(joint, mask, given, forgets=forgets, selected=selected, noise_var=variance)

    @one_at_a_time
    @_enters
    def observe(
        self,
        points_or_index: ArrayLike,
        counts: ArrayLike,
        sums: ArrayLike,
        squares: ArrayLike | None = None,
        *,
        context: ArrayLike | None = None,
        noise_var: ArrayLike | None = None,
    ) -> Report:
        """Learn from summed observations, at arm indices with a `context` or at points (context, arm); see `Bandit.observe`."""
        joint = as_tensor("points_or_index", points_or_index).is_floating_point()
        like = self.loop.arms if joint else self.arms
        shape = (like.shape[-2], like.shape[-1], self.device)
        pulls = check_history(points_or_index, counts, sums, squares, self.batch_shape, *shape)
        check_squares(pulls)
        variance = check_noise_var(noise_var, pulls.counts.shape, pulls.counts > 0, self.device)
        if variance is not None:
            # Raises for policies that do not weight rewards, before a context is entered.
            self.loop.noise_variance()
        if pulls.index is not None and pulls.mask is not None:
            pulls = replace(pulls, index=self._inward(pulls.index, pulls.index, pulls.mask, context))
        elif context is not None and pulls.points is not None:
            same = not bool(((pulls.counts > 0) & self._contexts.elsewhere(pulls.points, context)).any())
            require(same, "some points are at another context, which their first features are: leave out context=.")
        return self.recorder.observe(pulls, variance)

    @one_at_a_time
    def forget(self, selection: Selection) -> None:
        """Withdraw open picks that will not be evaluated; see `Bandit.forget`."""
        require(isinstance(selection, Selection), "selection must be one that ask() returned, which knows its context.")
        self.loop.recover_()
        index, mask = self._picks(selection)
        # A context that is not kept has no open picks.
        kept = self._contexts.blocks(selection.points) >= 0
        require(bool((kept | ~mask).all()), NOT_PENDING, StateError)
        self.recorder.forget(self._inward(selection, index, mask, None), mask)

    @one_at_a_time
    def fit_kernel_(self, **options: Any) -> FitReport:
        """Fit the kernel over (context, arm) to the observed rewards; see `Bandit.fit_kernel_`."""
        noise = options.pop("noise", False)
        check_fit(noise, options)
        return self.recorder.fit(noise, options)

    @one_at_a_time
    def set_arms_(self, arms: ArrayLike, *, costs: ArrayLike | None = None) -> ContextualBandit:
        """Replace the arms at every context, and keep all observations, including those at removed arms. Returns self.

        Open picks must be among the new arms, and they stay open; the contexts stay as they are. A selection that `ask`
        returned before may be told or forgotten afterwards: its picks are found by their points.

        Args:
            arms: `A' x d` or `batch_shape x A' x d`, copied, of the same dtype and device.
            costs: Costs of the new arms, as for the constructor.

        Raises:
            ShapeError, NonFiniteError: For arms that this bandit can't take.
            StateError: If picks are open at arms that are removed: tell or forget these picks first.
            UnsupportedError: For a policy whose state is bound to its arms.

        After an error the bandit is unchanged.

        Cost: a sweep over the new arms at every kept context.
        """
        self.loop.recover_()
        checked = _in_memory(arms)
        check_replacement(checked, self.arms, self.batch_shape)
        self._replace(own_copy(checked), self._checked_costs(costs, checked, self.batch_shape))
        return self

    # ------------------------------------------------------------------ results

    @one_at_a_time
    @_enters
    def best(self, k: int = 1, *, context: ArrayLike) -> Recommendation:
        """The k arms with the highest posterior mean at a context, best first, whether they were pulled there or not. For a
        policy without a posterior, the k arms pulled there with the highest average reward. The context is then kept, as after
        `ask`."""
        return self._best_at(check_count(k), context)

    @one_at_a_time
    @_enters
    def top_k(self, k: int, *, context: ArrayLike, draws: int = 1_000, seed: int = 0) -> TopK:
        """The k arms with the highest posterior mean at a context, each with its probability of being among the k best there;
        see `Bandit.top_k`. The context is then kept, as after `ask`."""
        k = check_count(k)
        check_draws(draws, seed)
        self._enter(context, looks=True)
        with self.loop.few_threads():
            found = top_k(self.loop, k, draws, seed)
        return replace(found, index=self._contexts.outward(found.index))

    @one_at_a_time
    @_enters
    def level_set(self, level: float, *, context: ArrayLike, width: Width | None = None) -> LevelSet:
        """Classify the arms at a context as above or below a level, or as undecided; see `Bandit.level_set`. The context is
        then kept, as after `ask`. If the confidence bounds hold for all pairs and steps, the classification is correct at all
        contexts together."""
        require(is_finite(level), f"level must be a finite number, got {level!r}.")
        check_instance("width", width, Width | None, "a torchbandits.widths.Width, or None for the policy's own")
        self._enter(context, looks=True)
        at_current = self._contexts.at_current
        with self.loop.few_threads():
            found = level_set(self.loop, float(level), width)
        return LevelSet(
            at_current(found.above), at_current(found.below), at_current(found.undecided), at_current(found.probability)
        )

    @one_at_a_time
    @_enters
    def should_stop(self, *rules: Rule, context: ArrayLike) -> Decision:
        """Apply stopping rules to the arms at a context; see `Bandit.should_stop`. The context is then kept, as after `ask`.

        Args:
            rules: Rules of `torchbandits.stopping`. Bounds, levels and improvements are those of the arms at the context, pulls
                and costs those of all contexts (without the costs of pulls at contexts that are not kept). `SameArm` needs an
                object per context.
            context: `c` or `batch_shape x c`. To stop at several contexts, apply the rules at each.

        Returns:
            The decision on the arm with the highest posterior mean at the context, whether it was pulled there or not.

        Raises:
            UnsupportedError: For a rule that does not support this policy; the message names rules that do.

        Guarantee: at each context that of the rule. With the bounds of `EpsilonOptimal`, `TopKKnown` and `LevelSetKnown` it
        holds at all contexts together, since a width that is valid is so for all pairs.
        """
        checked = check_rules(rules)
        self._enter(context, looks=True)
        loop, contexts = self.loop, self._contexts
        with loop.few_threads():
            arm = torch.full(self.batch_shape, -1, device=self.device)
            if bool((told := self.pulls > 0).any()):
                arm = torch.where(told, self._best_here(1).index.squeeze(-1), arm)
            pair_of_best = contexts.inward(arm.unsqueeze(-1), contexts.current.unsqueeze(-1)).squeeze(-1)
            found = decide(checked, Advised(loop, pair_of_best, self.arms.shape[-2]))
        pairs = zip(found.reasons, pair_of_best.reshape(-1).tolist(), arm.reshape(-1).tolist(), strict=True)
        reasons = tuple(reason.replace(f"arm {pair} ", f"arm {own} ") for reason, pair, own in pairs)
        return replace(found, arm=arm, reasons=reasons)

    @one_at_a_time
    @_enters
    def explain(
        self,
        *,
        context: ArrayLike,
        names: Sequence[str] | None = None,
        row: tuple[int, ...] | int = (),
        available: ArrayLike | None = None,
    ) -> Explanation:
        """Explain the posterior's view of the features, the noise and the best arm at a context, as `Bandit.explain`.

        Args:
            context: `c` or `batch_shape x c`; it is then kept, as after `ask`.
            names: Names of the features of a pair, those of the context first; "feature 0" and so on by default.
            row: Index of the batch row to explain.
            available: `A` or `batch_shape x A` booleans, the arms that may be better than the best one. All arms by default.

        Returns:
            The explanation. `best`, `upper` and `rivals` are of arms at the context; features, noise and pulls are of all
            contexts, and so is `failed`, while `avoided` is of arms at the context. `elsewhere` counts the distinct pairs
            pulled at other contexts. There is no `doubt` about repeats, and no `repeated` arm.

        Raises:
            ArgumentError: If an argument is not as above.
            UnsupportedError: For a policy without a single Gaussian process over given arms.
            StateError: If no rewards have been observed in this batch row.

        Cost: O(A C), and that of a new context.
        """
        offered = check_available(available, self.batch_shape, self.arms.shape[-2], self.device)
        best = self._best_at(1, context)
        contexts, loop = self._contexts, self.loop
        inside = replace(best, index=contexts.inward(best.index, contexts.current.unsqueeze(-1)))
        found, every = explain(loop, names, row, contexts.only_here(offered), inside), contexts.only_here(None)
        left_in = loop.likely(every)
        assert left_in is not None
        place = (row,) if isinstance(row, int) else row
        contexts_of_pulls = loop.state.statistics.pulled_of(place)[:, : contexts.dim]
        current = contexts.seen[place][contexts.current[place]].to(contexts_of_pulls)
        return replace(
            found,
            best=replace(found.best, index=best.index[place]),
            num_arms=self.arms.shape[-2],
            elsewhere=int((contexts_of_pulls != current).any(dim=-1).sum()),
            avoided=int((every & ~left_in)[place].sum()),
            repeated=None,
            uncertainty=float("nan"),
            repeats=0,
            words=Words(other="other pair"),
        )

    @property
    @outside_inference_mode
    def posterior(self) -> GaussianProcess | PartitionedProcess:
        """The posterior, callable on any points (context, arm). It returns `Marginals(mean, variance)` in reward units."""
        return self.loop.process

    def model(self) -> BanditModel:
        """The posterior over (context, arm) as a BoTorch model, tabulated at the kept contexts; see `Bandit.model`.

        It takes points `... x (c + d)`, the context's features first. The candidates at a context are its pairs with the arms,
        `torch.cat([context.expand(A, c), arms], dim=-1)`, for instance in `botorch.optimize_arms`.

        Raises:
            UnsupportedError: As `Bandit.model`.
        """
        from torchbandits.botorch.model import model_of_run  # noqa: PLC0415 - BoTorch takes a second to load

        return model_of_run(self.loop.policy, self.loop.state)

    def _shown(self) -> Shown:
        seen = self._contexts.seen
        opened = 0 if self.loop.open is None else int(self.loop.open.mask.sum())
        values = [
            ("policy", repr(self.loop.policy)),
            ("contexts kept", f"{seen.shape[-2]:,} of {count(seen.shape[-1], 'feature')}"),
            ("pulls", numbers(self.pulls)),
        ]
        return of_run("ContextualBandit", self.batch_shape, self.arms.shape, values, opened, self.journal)

    @property
    def arms(self) -> Tensor:
        """The arms, `A x d` or `batch_shape x A x d`: the bandit's internal tensor, which must not be modified."""
        return self._contexts.arms

    @property
    def contexts(self) -> Tensor:
        """The kept contexts, `batch_shape x C x c`."""
        return self._contexts.seen.clone()

    @property
    def counts(self) -> Tensor:
        """Number of pulls learned for each arm at the current context, `batch_shape x A`."""
        return self._contexts.at_current(self.loop.counts)

    @property
    def pulls(self) -> Tensor:
        """Total number of pulls told, `batch_shape`."""
        return self.loop.pulls.clone()

    @property
    def width(self) -> Tensor:
        """The confidence width, which multiplies the posterior standard deviation, `batch_shape`."""
        return self.loop.width

    @property
    def journal(self) -> Journal | None:
        """The journal to which contexts, asks and tells are written, or None. A copy of a bandit has no journal."""
        return self.recorder.journal

    @property
    def batch_shape(self) -> torch.Size:
        """The leading dimensions of selections and rewards."""
        return self.loop.batch_shape

    @property
    def device(self) -> torch.device:
        """The device of the arms and the posterior."""
        return self.loop.device

    # ------------------------------------------------------------------ saving

    @one_at_a_time
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly: the bandit's state and the kept contexts."""
        self.loop.recover_()
        return {"bandit": self.recorder.state_dict(), "contexts": copy.deepcopy(self._contexts.state_dict())}

    @one_at_a_time
    def load_state_dict(self, state_dict: dict[str, Any]) -> ContextualBandit:
        """Resume from a `state_dict` of a bandit with the same policy and arms (after `set_arms_`, those that it had last); see
        `Bandit.load_state_dict`. Any other state raises an error and leaves the bandit unchanged. Returns self."""
        require(
            isinstance(state_dict, dict) and {"bandit", "contexts"} <= state_dict.keys(),
            "expected what ContextualBandit.state_dict() returned, a dictionary with 'bandit' and 'contexts'.",
        )
        fresh = copy.copy(self._contexts)
        fresh.load_(state_dict["contexts"])
        saved, before, loop = state_dict["bandit"], self._contexts, self.loop
        joint = check_arms(fresh.joint())

        def load() -> None:
            costs = fresh.repeated(self._costs)
            state = Loop.fresh(loop.policy, joint, loop.state.generators, loop.batch_shape, costs=costs).state
            check_state(saved, state.state_dict())
            self.recorder.check_policy(saved)
            loop.take_over_(saved, into=state)
            self._keep(fresh)

        written = self.journal is not None and not self.journal.is_repeating
        note = (lambda _: load_record(state_dict)) if written else None
        self.recorder.change(load, note, take_back=lambda: self._keep(before))
        return self

    # ------------------------------------------------------------------ internals

    @staticmethod
    def _checked_costs(costs: ArrayLike | None, arms: Arms, batch_shape: torch.Size) -> Tensor | None:
        return None if costs is None else check_costs(costs, batch_shape, arms.shape[-2], arms.device)

    def _enter(self, context: Any, busy: Sequence[int] = (), *, releases: bool = True, looks: bool = False) -> None:
        """Make a context the current one, and update the joint arms. Blocks that are `busy` or have open picks are kept.

        A context that is only looked at (`looks`) does not widen the ranges of features that `auto` measures.
        """
        self.loop.recover_()
        ahead, opened = copy.copy(self._contexts), self.loop.open
        if opened is not None:
            busy = [*busy, *(opened.index[opened.mask] // self.arms.shape[-2]).unique().tolist()]
        changed, before = ahead.enter_(context, busy, releases=releases, looks=looks), self._contexts
        wider = not torch.equal(ahead.extremes, before.extremes)
        if not changed and not wider and ahead.asked_as(before):
            return
        # A context that was looked at, and is kept, counts from now on.
        changed = changed or (wider and getattr(self.loop.policy, "from_data", None) is not None)
        given = pack(as_tensor("context", context, self.arms.dtype))
        entered = {"kind": "context", "context": given, "busy": list(busy), "releases": True, "looks": looks}
        if not torch.equal(ahead.seen[..., : before.seen.shape[-2], :], before.seen):
            entered["replaces"] = True  # the index of a pair means another one from here on, which readers have to know

        def enter() -> None:
            if changed:
                try:
                    self.loop.state.rows.limits = ahead.limits
                    self.loop.move_(ahead.joint(), ahead.repeated(self._costs))
                except UnsupportedError as error:
                    raise UnsupportedError(
                        "this context is not kept, and a new one changes the arms, which this policy can't: make the "
                        "ContextualBandit with every context as contexts=, and max_contexts= their number or more."
                    ) from error
            self._keep(ahead)

        self.recorder.change(enter, lambda _: entered, draws=False, take_back=lambda: self._keep(before), undoes=self._entries)
        self._entered = self._mark()

    def _mark(self) -> Mark | None:
        """The end of the journal; None without one."""
        return None if self.journal is None else self.journal.mark()

    def _enter_again(self, record: dict[str, Any]) -> None:
        """Replay the journal record of an entered context. Those of earlier versions never released more than one."""
        releases, looks = record.get("releases", False), record.get("looks", False)
        self._enter(held(record["context"]).to(self.device), record["busy"], releases=releases, looks=looks)

    def _replace(self, arms: Arms, costs: Tensor | None) -> None:
        """Replace the arms, which have been checked, and their costs."""
        ahead, before = self._contexts.with_arms(arms), (self._contexts, self._costs)

        def change(contexts: Contexts, own: Tensor | None) -> None:
            self._costs = own
            self._keep(contexts)

        def replace_() -> None:
            self.loop.move_(ahead.joint(), ahead.repeated(costs))
            change(ahead, costs)

        self.recorder.change(replace_, lambda _: move_record(arms, costs), draws=False, take_back=lambda: change(*before))

    def _replace_again(self, record: dict[str, Any]) -> None:
        """Replay the journal record of a change of arms."""
        arms, costs = check_arms(held(record["arms"]).to(self.device)), unpack(record["costs"])
        check_replacement(arms, self.arms, self.batch_shape)
        self._replace(arms, self._checked_costs(costs, arms, self.batch_shape))

    def _load_again(self, record: dict[str, Any]) -> None:
        """Replay the journal record of a loaded state."""
        self.load_state_dict(state_of_text(record["state"]))

    def _keep(self, contexts: Contexts) -> None:
        """Replace the contexts; the next checkpoint contains the new ones."""
        self._contexts, self.recorder.besides = contexts, {"contexts": contexts}
        # Improvements and probabilities of being the best refer to the arms at the current context.
        self.loop.state.rows.competing = contexts.only_here(None)
        self.loop.state.rows.limits = contexts.limits

    def _restore(self, saved: dict[str, Any]) -> None:
        """Load a checkpoint. One that was written after a change of arms holds them at every context."""
        if saved["arms"] is not None:
            joint, costs = saved["arms"].to(self.device), saved["costs"]
            A = joint.shape[-2] // saved["contexts"]["seen"].shape[-2]
            arms = joint[..., :A, self._contexts.dim :]
            rows = arms.reshape(-1, *arms.shape[-2:])
            arms = own_copy(rows[0] if bool((rows == rows[0]).all()) else arms)
            self._replace(arms, None if costs is None else own_copy(costs[..., :A]))
        self.load_state_dict({"bandit": saved["state"], "contexts": saved["contexts"]})

    def _filled(self, count: int, constraints: tuple[Constraint, ...], offered: Tensor | None) -> Selection:
        """Exactly `count` additional picks per row at the current context, under constraints on all open picks there."""
        contexts, A = self._contexts, self.arms.shape[-2]
        free = torch.ones(*self.batch_shape, A, dtype=torch.bool, device=self.device) if offered is None else offered
        first = self.loop.state.rows.first
        if first is not None:
            # Equal pairs at this context are in the same block, of which these are the places.
            first = contexts.outward(contexts.at_current(first))
        return fill_within(
            self.recorder,
            count,
            constraints,
            free,
            first,
            outward=lambda picks: torch.where(contexts.here(picks), contexts.outward(picks), -1),
            inward=contexts.only_here,
            repeated=lambda values: values.tile(contexts.seen.shape[-2]),
        )

    def _outward(self, mine: Selection) -> Selection:
        """Open picks at the current context as a selection of its own, with indices into the arms."""
        return duplicate(Selection(mine.points, self._contexts.outward(mine.index), mine.mask))

    def _open_here(self) -> Selection | None:
        loop = self.loop
        return None if loop.open is None else picks_within(loop.open, self._contexts.here(loop.open.index), loop.points)

    def _best_at(self, k: int, context: ArrayLike) -> Recommendation:
        """The k arms with the highest posterior mean at a context, which is entered."""
        check_told(self.pulls, self.loop.num_failed)
        self._enter(context, looks=True)
        return self._best_here(k)

    def _best_here(self, k: int) -> Recommendation:
        """The k best arms at the current context, see `best`."""
        state, at_current = self.loop.state, self._contexts.at_current
        if state.tabulated:
            lam = state.process.regularization
            marginals = state.in_reward_units(at_current(state.arm_mean()), lam * at_current(state.arm_leverage()))
            mean, variance = marginals.mean, marginals.variance
        else:
            counts, sums = self.counts, at_current(state.rows.counts(state.statistics.sums))
            mean = torch.where(counts > 0, sums / counts, -torch.inf)
            variance = torch.full_like(mean, torch.nan)
        if (first := state.rows.first) is not None:  # exact duplicates count as one arm
            copies = first != torch.arange(first.shape[-1], device=first.device)
            mean = mean.masked_fill(at_current(copies.expand(state.rows.row_of_arm.shape)), -torch.inf)
        top = mean.topk(min(k, mean.shape[-1]), dim=-1)
        valid = top.values > -torch.inf
        index = torch.where(valid, top.indices, -1)
        points = state.rows.points(self._contexts.inward(index, self._contexts.current.unsqueeze(-1)))
        return with_blanks(Recommendation(points, index, top.values, variance.gather(-1, top.indices)), valid, k)

    def _picks(self, selection: Selection | ArrayLike) -> tuple[Tensor, Tensor]:
        contexts = self._contexts
        if contexts.moved and isinstance(selection, Selection):
            # It may have been made with other arms.
            without_context = Selection(selection.points[..., contexts.dim :], selection.index, selection.mask)
            selection = renumbered(without_context, contexts.arms, self.batch_shape)
        return check_picks(selection, self.batch_shape, self.arms.shape[-2], self.device)

    def _inward(self, selection: Any, index: Picks, mask: PickMask, context: Any) -> Picks:
        """Joint indices of picks, −1 where masked. Contexts that are not kept are entered.

        Args:
            selection: The argument of the caller. The points of a selection contain its contexts.
            index: Arm indices of the picks, `batch_shape x q`.
            mask: `batch_shape x q`.
            context: The context of plain indices. That of a selection must be the same.
        """
        index = index.masked_fill(~mask, -1)
        if not isinstance(selection, Selection):
            if context is None:
                raise ArgumentError("plain arm indices need to know where they were pulled: pass context=.")
            self._enter(context)
            return self._contexts.inward(index, self._contexts.current.unsqueeze(-1))
        if context is not None:
            message = (
                "the selection was asked for at another context, at which its rewards would be learned: leave out context=. If "
                "it was evaluated at this context instead, tell its arms there, selection.index, and forget(selection)."
            )
            require(not bool((mask & self._contexts.elsewhere(selection.points, context)).any()), message)
        blocks = self._contexts.blocks(selection.points)
        while bool((gone := mask & (blocks < 0)).any()):
            place = int(gone.reshape(-1, gone.shape[-1]).any(dim=0).byte().argmax())
            self._enter(selection.points[..., place, : self._contexts.dim], blocks[mask].unique().tolist())
            blocks = self._contexts.blocks(selection.points)
        return self._contexts.inward(index, blocks)
