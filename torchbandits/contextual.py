"""Ask and tell at a context: one posterior over (context, arm), the argmax over arms at the context that is asked for."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.checks import (
    as_tensor,
    check_arms,
    check_available,
    check_count,
    check_generators,
    check_history,
    check_limit,
    check_more,
    check_picks,
    check_rewards,
    check_told,
    explains_keywords,
    own_copy,
)
from torchbandits.contexts import Contexts
from torchbandits.errors import ArgumentError, require
from torchbandits.journal import Journal, as_journal, begun, pack, resume, state_as_text
from torchbandits.policies import Policy
from torchbandits.posteriors import GaussianProcess, PartitionedProcess
from torchbandits.selections import duplicate, joined, within
from torchbandits.types import FitReport, Picks, Recommendation, Report, Selection


class ContextualBandit:
    """Chooses arms at contexts. The kernel is over (context, arm), the context's features first.

    The arms are tabulated at every context kept, up to `max_contexts`: a context seen before costs nothing to come back to, a
    new one a sweep, and the one not asked for longest makes room (where contexts never repeat, `max_contexts=1` is fastest).
    What was learned at contexts that are gone stays. New contexts need a policy whose arms may change (`Bandit.set_arms_`):
    not `ada_bkb`, `bpe`, `sup_kernel_ucb`; `pi_gp_ucb` only while none with pulls makes room.

    Args:
        policy: What chooses, with a kernel on the features of a context and an arm together.
        arms: `A x d` or `batch_shape x A x d`, copied.
        contexts: `C x c` or `batch_shape x C x c`, contexts known at the start, at least one; copied.
        max_contexts: Contexts kept, at least C. A tell updates them all.
        generator: As for `Bandit`.
        costs: `A` or `batch_shape x A`, as for `Bandit`, the same at every context.
        journal: A path, or a `Journal`, as for `Bandit`: contexts that are entered, asks and tells are on the disk before they
            take effect, and a run that was ended goes on exactly.

    Raises:
        StateError, DataError: If the journal is in use, of another run, damaged, or can't be written.
        ShapeError, NonFiniteError: If arms or contexts are not as above.
    """

    @explains_keywords
    def __init__(
        self,
        policy: Policy,
        arms: Tensor,
        contexts: Tensor,
        *,
        max_contexts: int = 8,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        costs: Tensor | None = None,
        journal: Journal | str | os.PathLike[str] | None = None,
    ) -> None:
        arms = check_arms(arms)
        generators, batch_shape = check_generators(generator, arms, getattr(policy, "kernel", None))
        self._contexts = Contexts(own_copy(arms), contexts, max_contexts, batch_shape)
        self._costs = None if costs is None else own_copy(as_tensor("costs", costs))
        joint, repeated, journal = self._contexts.joint(), self._contexts.repeated(self._costs), as_journal(journal)
        kept = {"contexts": f"{self._contexts.seen.shape[-2]} at the start, {self._contexts.most} kept"}
        with begun(journal, policy, joint, repeated, generators, kept):
            one_or_all = list(generators) if batch_shape else generators[0]
            self._bandit = Bandit(policy, joint, generator=one_or_all, costs=repeated)
            self._bandit._journal = journal
            self._keep(self._contexts)
            resume(self, journal)

    # ------------------------------------------------------------------ ask and tell

    @explains_keywords
    def ask(
        self,
        limit: int | Tensor | None = None,
        *,
        context: Tensor,
        more: int | None = None,
        available: Tensor | None = None,
    ) -> Selection:
        """The picks to evaluate next at a context: what is open there, as long as there is something.

        Args:
            limit: Most picks, as for `Bandit.ask`.
            context: `c` or `batch_shape x c`.
            more: Further picks beside those that are open at this context.
            available: `A` or `batch_shape x A` booleans, arms on offer.

        Returns:
            Points `batch_shape x q x (c + d)`, and `index` into the arms. Picks that are open at any context count as pending.

        Raises:
            ShapeError, NonFiniteError, ArgumentError: On bad input; nothing has changed then.
        """
        bandit = self._bandit
        limit, more = check_limit(limit, self.batch_shape, self.device), check_more(more)
        offered = check_available(available, self.batch_shape, self.arms.shape[-2], self.device)
        some = offered is None or bool(offered.any(dim=-1).all())
        require(some, "no arm is on offer in at least one batch row: `available` must have a True in each.")
        self._enter(context)
        mine = self._open_here()
        if mine is None or more is not None:
            added, _ = bandit._extend(limit, self._contexts.only_here(offered), more)
            mine = added if mine is None else joined(mine, added)
        return duplicate(Selection(mine.points, self._contexts.outward(mine.index), mine.mask))

    def tell(
        self, selection: Selection | Tensor, rewards: Tensor, *, context: Tensor | None = None, failures: str = "error"
    ) -> Report:
        """Learn the rewards of picks, in any order and of any contexts.

        Args:
            selection: What `ask` returned, or a part of it; or arm indices `batch_shape x q` at `context`.
            rewards: `batch_shape x q`, reward units.
            context: `c` or `batch_shape x c`, of plain indices.
            failures: What a NaN means, as for `Bandit.tell`.
        """
        index, mask = check_picks(selection, self.batch_shape, self.arms.shape[-2], self.device)
        check_rewards(rewards, index, mask, self.device, failures)  # before a context is entered for their sake
        return self._bandit.tell(self._inward(selection, context), rewards, failures=failures)

    def observe(
        self,
        points_or_index: Tensor,
        counts: Tensor,
        sums: Tensor,
        squares: Tensor | None = None,
        *,
        context: Tensor | None = None,
    ) -> Report:
        """Learn from summed history, arm indices at `context` or points (context, arm); see `Bandit.observe`."""
        joint = as_tensor("points_or_index", points_or_index).is_floating_point()
        like = self._bandit.arms if joint else self.arms
        pulls = check_history(
            points_or_index,
            counts,
            sums,
            squares,
            batch_shape=self.batch_shape,
            num_arms=like.shape[-2],
            dim=like.shape[-1],
            device=self.device,
        )
        where = pulls.points if pulls.index is None else self._inward(pulls.index, context).index
        assert where is not None
        return self._bandit.observe(where, pulls.counts, pulls.sums, pulls.squares)

    def forget(self, selection: Selection) -> None:
        """Give up on picks that were asked for and will never be told; see `Bandit.forget`."""
        require(isinstance(selection, Selection), "selection must be one that ask() returned, which knows its context.")
        self._bandit.forget(self._inward(selection, None))

    def fit_kernel_(self, **options: Any) -> FitReport:
        """Fit the kernel over (context, arm) to the rewards told; see `Bandit.fit_kernel_`."""
        return self._bandit.fit_kernel_(**options)

    # ------------------------------------------------------------------ what was learned

    def best(self, k: int = 1, *, context: Tensor) -> Recommendation:
        """The k arms with the highest posterior mean at a context, best first, pulled there or not; without a posterior, those
        pulled there with the highest average. The context is kept tabulated from then on, as by `ask`."""
        k = check_count(k)
        self._enter(context)
        check_told(self.pulls)
        state, own = self._bandit._state, self._contexts.own
        if state.tabulated:
            lam = state.process.regularization
            told = state.in_reward_units(own(state.arm_mean()), lam * own(state.arm_leverage()))
            mean, variance = told.mean, told.variance
        else:
            counts, sums = self.counts, own(state.rows.counts(state.statistics.sums))
            mean = torch.where(counts > 0, sums / counts, -torch.inf)
            variance = torch.full_like(mean, torch.nan)
        if (first := state.rows.first) is not None:  # a copy of an arm is not a further one
            copies = first != torch.arange(first.shape[-1], device=first.device)
            mean = mean.masked_fill(own(copies.expand(state.rows.row_of_arm.shape)), -torch.inf)
        top = mean.topk(min(k, mean.shape[-1]), dim=-1)
        known = top.values > -torch.inf
        index = torch.where(known, top.indices, -1)
        points = state.rows.points(self._contexts.inward(index, self._contexts.current.unsqueeze(-1)))
        pad, grow = (0, k - index.shape[-1]), torch.nn.functional.pad
        return Recommendation(
            grow(torch.where(known.unsqueeze(-1), points, torch.nan), (0, 0, *pad), value=torch.nan),
            grow(index, pad, value=-1),
            grow(torch.where(known, top.values, torch.nan), pad, value=torch.nan),
            grow(torch.where(known, variance.gather(-1, top.indices), torch.nan), pad, value=torch.nan),
        )

    @property
    def posterior(self) -> GaussianProcess | PartitionedProcess:
        """Callable on any points (context, arm): `Marginals(mean, variance)` in reward units."""
        return self._bandit.posterior

    @property
    def arms(self) -> Tensor:
        """The arms, `A x d` or `batch_shape x A x d`: the bandit's own, not to be written to."""
        return self._contexts.arms

    @property
    def contexts(self) -> Tensor:
        """The contexts kept, `batch_shape x C x c`."""
        return self._contexts.seen.clone()

    @property
    def counts(self) -> Tensor:
        """Pulls learned of each arm at the context named last, `batch_shape x A`."""
        return self._contexts.own(self._bandit.counts)

    @property
    def pulls(self) -> Tensor:
        """Pulls told in all, `batch_shape`."""
        return self._bandit.pulls

    @property
    def width(self) -> Tensor:
        """What multiplies the posterior standard deviation now, `batch_shape`."""
        return self._bandit.width

    @property
    def journal(self) -> Journal | None:
        """Where contexts, asks and tells are written, if anywhere. A copy of a bandit has none."""
        return self._bandit.journal

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of everything that is asked and told."""
        return self._bandit.batch_shape

    @property
    def device(self) -> torch.device:
        """Where arms and posterior live."""
        return self._bandit.device

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly: the bandit's state and the contexts kept."""
        return {"bandit": self._bandit.state_dict(), "contexts": copy.deepcopy(self._contexts.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> ContextualBandit:
        """Resume from a `state_dict` of a bandit with the same policy and arms, see `Bandit.load_state_dict`; another one is
        refused, and changes nothing. Returns self."""
        require(
            isinstance(state_dict, dict) and {"bandit", "contexts"} <= state_dict.keys(),
            "expected what ContextualBandit.state_dict() returned, a dictionary with 'bandit' and 'contexts'.",
        )
        fresh = copy.copy(self._contexts)
        fresh.load_(state_dict["contexts"])
        generators = self._bandit.generators
        drawn, loaded = [g.get_state() for g in generators], False
        try:
            one_or_all = list(generators) if self.batch_shape else generators[0]
            bandit = Bandit(self._bandit.policy, fresh.joint(), generator=one_or_all, costs=fresh.repeated(self._costs))
            bandit.load_state_dict(state_dict["bandit"])
            if self.journal is not None:
                self.journal.append({"kind": "load", "state": state_as_text(state_dict)})
            loaded = True
        finally:
            if not loaded:  # a new bandit may have drawn its features
                for generator, state in zip(generators, drawn, strict=True):
                    generator.set_state(state)
        bandit._journal, self._bandit = self.journal, bandit
        self._keep(fresh)
        return self

    # ------------------------------------------------------------------ inside

    def _enter(self, context: Any, busy: Sequence[int] = ()) -> None:
        """Make a context the current one; the joint arms follow. Blocks that are `busy`, or hold what is open, stay."""
        ahead, opened = copy.copy(self._contexts), self._bandit._open
        if opened is not None:
            busy = [*busy, *(opened.index[opened.mask] // self.arms.shape[-2]).unique().tolist()]
        changed, before = ahead.enter_(context, busy), self._contexts
        if not changed and ahead.asked_as(before):
            return
        entered, done = {"kind": "context", "context": pack(as_tensor("context", context)), "busy": list(busy)}, False
        try:
            with self._bandit._whole_or_not(draws=False, note=lambda: entered):
                if changed:
                    self._bandit._move(ahead.joint(), ahead.repeated(self._costs))
                self._keep(ahead)
            done = True
        finally:
            if not done:
                self._keep(before)

    def _keep(self, contexts: Contexts) -> None:
        """Go on with these contexts, which the next checkpoint holds."""
        self._contexts, self._bandit._besides = contexts, {"contexts": contexts}

    def _restore(self, saved: dict[str, Any]) -> None:
        self.load_state_dict({"bandit": saved["state"], "contexts": saved["contexts"]})

    def _open_here(self) -> Selection | None:
        opened = self._bandit._open
        return None if opened is None else within(opened, self._contexts.here(opened.index), self._bandit._state.rows.points)

    def _inward(self, selection: Any, context: Any) -> Selection:
        """Picks by joint index; contexts that are not kept are entered."""
        index, mask = check_picks(selection, self.batch_shape, self.arms.shape[-2], self.device)
        if not isinstance(selection, Selection):
            if context is None:
                raise ArgumentError("plain arm indices need to know where they were pulled: pass context=.")
            self._enter(context)
            return self._joint(self._contexts.inward(index.masked_fill(~mask, -1), self._contexts.current.unsqueeze(-1)), mask)
        blocks = self._contexts.blocks(selection.points)
        while bool((gone := mask & (blocks < 0)).any()):
            place = int(gone.reshape(-1, gone.shape[-1]).any(dim=0).byte().argmax())
            self._enter(selection.points[..., place, : self._contexts.dim], blocks[mask].unique().tolist())
            blocks = self._contexts.blocks(selection.points)
        return self._joint(self._contexts.inward(index.masked_fill(~mask, -1), blocks), mask)

    def _joint(self, index: Picks, mask: Tensor) -> Selection:
        return Selection(self._bandit._state.rows.points(index), index, mask)
