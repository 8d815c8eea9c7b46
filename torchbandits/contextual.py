"""Ask and tell at a context: one posterior over (context, arm), the argmax over arms at the context that is asked for.

The arm set is held once for each context kept, side by side, so that one posterior and one table serve them all.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchbandits.checks import (
    as_tensor,
    check_arms,
    check_available,
    check_count,
    check_fit,
    check_generators,
    check_history,
    check_instance,
    check_limit,
    check_more,
    check_noise_var,
    check_picks,
    check_rewards,
    check_state,
    check_told,
    check_whole,
    explains_keywords,
    own_copy,
)
from torchbandits.errors import ArgumentError, NonFiniteError, ShapeError, StateError, UnsupportedError, require
from torchbandits.journal import Journal, Recorder, as_journal, begun, describe_policy, held, pack, state_as_text, state_of_text
from torchbandits.loop import Loop
from torchbandits.policies import Policy
from torchbandits.posteriors import GaussianProcess, PartitionedProcess
from torchbandits.selections import duplicate, joined, within
from torchbandits.types import Arms, FitReport, PickMask, Picks, Points, Recommendation, Report, Selection


class Contexts:
    """The contexts kept, each with its block of a joint arm set; the one not asked for longest makes room for a new one.

    A joint arm is (context, arm), the context's features first.

    Args:
        arms: `A x d` or `batch_shape x A x d`.
        known: `C x c` or `batch_shape x C x c`, contexts known at the start, at least one.
        most: The number of contexts kept, at least C; blocks with pending picks are kept beyond it.
        batch_shape: Leading dimensions of the bandit.
    """

    def __init__(self, arms: Arms, known: Tensor, most: int, batch_shape: torch.Size) -> None:
        known = own_copy(check_contexts(known, arms, batch_shape))
        check_whole("max_contexts", most)
        self.arms, self.most, self._batch_shape = arms, max(most, known.shape[-2]), batch_shape
        self.seen = known  # batch_shape x C x c
        self.current = torch.zeros(batch_shape, dtype=torch.int64, device=arms.device)  # the block of each row
        self._asked = list(range(known.shape[-2]))  # when each was asked for

    @property
    def dim(self) -> int:
        """The number of features of a context."""
        return self.seen.shape[-1]

    def joint(self) -> Tensor:
        """Joint arms, block after block: `(C A) x (c + d)`, with the batch shape where contexts or arms have one."""
        arms, seen = self.arms, self.seen
        if arms.dim() == 2 and bool((seen == seen.reshape(-1, *seen.shape[-2:])[0]).all()):
            seen = seen.reshape(-1, *seen.shape[-2:])[0]  # the rows share them: one set of arms for all
        shape = torch.broadcast_shapes(arms.shape[:-2], seen.shape[:-2])
        C, A = seen.shape[-2], arms.shape[-2]
        both = (seen.unsqueeze(-2).expand(*shape, C, A, -1), arms.unsqueeze(-3).expand(*shape, C, A, -1))
        return torch.cat(both, dim=-1).reshape(*shape, C * A, -1)

    def repeated(self, per_arm: Tensor | None) -> Tensor | None:
        """Values per arm, `... x A`, repeated for every block: `... x (C A)`."""
        return None if per_arm is None else per_arm.tile(self.seen.shape[-2])

    def enter_(self, context: Any, busy: Iterable[int]) -> bool:
        """Make a context (`c` or `batch_shape x c`) the current one; True where the joint arms have changed for it.

        Args:
            context: As above.
            busy: Blocks that must be kept.
        """
        given = as_tensor("context", context, self.arms.dtype, self.arms.device)
        shapes = {torch.Size([self.dim]), torch.Size([*self._batch_shape, self.dim])}
        if given.shape not in shapes:
            raise ShapeError(f"context must be shaped {' or '.join(str(tuple(s)) for s in shapes)}, got {tuple(given.shape)}.")
        require(bool(torch.isfinite(given).all()), "the context has a NaN or infinite feature.", NonFiniteError)
        given = given.expand(*self._batch_shape, self.dim).unsqueeze(-2)
        same = (self.seen == given).all(dim=-1)
        changed, clock, C = not bool(same.any(dim=-1).all()), max(self._asked) + 1, self.seen.shape[-2]
        used = same.byte().argmax(dim=-1)[same.any(dim=-1)].tolist()  # of rows that know this context
        self._asked = list(self._asked)
        if changed and (self.most > C or not (idle := set(range(C)) - set(busy) - set(used))):
            self.seen = torch.cat([self.seen, given], dim=-2)
            self._asked.append(clock)
        elif changed:
            place = torch.arange(C, device=given.device) == min(idle, key=lambda block: self._asked[block])
            self.seen = torch.where(place.unsqueeze(-1), given, self.seen)
        # A row may know a context twice, if others were paired with it differently: its first block is the one that counts.
        self.current = (self.seen == given).all(dim=-1).byte().argmax(dim=-1)
        for block in set(self.current.reshape(-1).tolist()):
            self._asked[block] = clock
        return changed

    def asked_as(self, other: Contexts) -> bool:
        """Whether the same blocks are current and were asked for in the same order, as after entering the current one again."""

        def ranks(times: list[int]) -> list[int]:
            return [sorted(set(times)).index(time) for time in times]

        return torch.equal(self.current, other.current) and ranks(self._asked) == ranks(other._asked)

    def blocks(self, points: Points) -> Tensor:
        """The block of each joint point, `batch_shape x q` for `batch_shape x q x (c + d)`; −1 where it is not kept."""
        same = (points[..., : self.dim].unsqueeze(-2) == self.seen.unsqueeze(-3)).all(dim=-1)
        return torch.where(same.any(dim=-1), same.byte().argmax(dim=-1), -1)

    def inward(self, index: Picks, block: Tensor) -> Tensor:
        """Arm indices to joint ones; −1 stays."""
        return torch.where(index >= 0, index + block * self.arms.shape[-2], -1)

    def outward(self, index: Picks) -> Tensor:
        """Joint indices to those of arms; −1 stays."""
        return torch.where(index >= 0, index % self.arms.shape[-2], -1)

    def here(self, index: Picks) -> PickMask:
        """Mask of the joint picks that belong to the current context."""
        return (index >= 0) & (index // self.arms.shape[-2] == self.current.unsqueeze(-1))

    def only_here(self, available: Tensor | None) -> Tensor:
        """Mask of the joint arms on offer: the current block, or the arms of it that are `available` (`batch_shape x A`)."""
        A, C = self.arms.shape[-2], self.seen.shape[-2]
        own = (torch.arange(C, device=self.arms.device) == self.current.unsqueeze(-1)).unsqueeze(-1)
        offered = own.expand(*own.shape[:-1], A) if available is None else own & available.unsqueeze(-2)
        return offered.flatten(-2)

    def own(self, per_arm: Tensor) -> Tensor:
        """Values of the joint arms, `batch_shape x (C A)`, restricted to the current context: `batch_shape x A`."""
        A = self.arms.shape[-2]
        place = self.current.unsqueeze(-1) * A + torch.arange(A, device=per_arm.device)
        return per_arm.expand(*place.shape[:-1], -1).gather(-1, place)

    def state_dict(self) -> dict[str, Any]:
        """The contexts, as `load_` takes them."""
        return {"seen": self.seen, "current": self.current, "asked": list(self._asked)}

    def load_(self, state: Any) -> None:
        """Restore contexts from what `state_dict` returned.

        Raises:
            StateError: If it is anything else, or of other contexts or batch rows.
        """
        known = isinstance(state, dict) and {"seen", "current", "asked"} <= state.keys()
        require(known, "the saved contexts lack 'seen', 'current' or 'asked': load what state_dict() returned.", StateError)
        seen, current, asked = state["seen"], state["current"], state["asked"]
        rows, dim = self._batch_shape, self.dim
        good = (
            isinstance(seen, Tensor) and seen.is_floating_point() and seen.dim() == len(rows) + 2
            and seen.shape[:-2] == rows and seen.shape[-1] == dim and seen.shape[-2] > 0
            and isinstance(current, Tensor) and current.dtype == torch.int64 and current.shape == rows
            and isinstance(asked, list) and len(asked) == seen.shape[-2] and all(type(time) is int for time in asked)
        )  # fmt: skip
        good = good and bool(((current >= 0) & (current < seen.shape[-2])).all()) and bool(seen.isfinite().all())
        message = (
            f"the saved contexts are not {dim} features for batch rows {tuple(rows)}: load them into a bandit like theirs."
        )
        require(good, message, StateError)
        self.seen, self.current = own_copy(seen.to(self.arms)), own_copy(current.to(self.arms.device))
        self._asked = list(asked)


def check_contexts(contexts: Any, arms: Arms, batch_shape: torch.Size) -> Tensor:
    """Finite contexts, expanded to `batch_shape x C x c`, in the arms' dtype and on their device."""
    known = as_tensor("contexts", contexts, arms.dtype, arms.device)
    good = known.dim() in (2, len(batch_shape) + 2) and known.shape[:-2] in (torch.Size(), batch_shape) and known.numel() > 0
    if not good:
        raise ShapeError(f"contexts must be C x c or {(*batch_shape, 'C', 'c')}, at least one, got {tuple(known.shape)}.")
    require(bool(torch.isfinite(known).all()), "a context has a NaN or infinite feature.", NonFiniteError)
    return known.expand(*batch_shape, *known.shape[-2:])


class ContextualBandit:
    """Chooses arms at contexts. The kernel is over (context, arm), the context's features first.

    The arms are tabulated at every context kept, up to `max_contexts`: a context seen before costs nothing to come back to, a
    new one a sweep, and the one not asked for longest makes room (where contexts never repeat, `max_contexts=1` is fastest).
    What was learned at contexts that are gone stays. New contexts need a policy whose arms may change (`Bandit.set_arms_`):
    not `ada_bkb`, `sup_kernel_ucb`; `pi_gp_ucb` only while none with pulls makes room. `bpe` and `reds` eliminate over all
    contexts together: one where rewards are low may lose all its arms.

    Args:
        policy: Selects arms, with a kernel on the features of a context and an arm together.
        arms: `A x d` or `batch_shape x A x d`, copied.
        contexts: `C x c` or `batch_shape x C x c`, contexts known at the start, at least one; copied.
        max_contexts: Contexts kept, at least C. A tell updates them all.
        generator: As for `Bandit`.
        costs: `A` or `batch_shape x A`, as for `Bandit`, the same at every context.
        journal: A path, or a `Journal`, as for `Bandit`: contexts that are entered, asks and tells are on the disk before they
            take effect, and a run that was ended goes on exactly.

    Attributes:
        loop: State and open picks over (context, arm), without checks and without the journal.
        recorder: The same calls on record.

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
        check_instance("policy", policy, Policy, "a torchbandits policy")
        message = "policy has several outcomes, and contexts are for one: make a torchbandits.OutcomeBandit on given arms."
        require(not policy.outcomes, message, UnsupportedError)
        arms = check_arms(arms)
        generators, batch_shape = check_generators(generator, arms, getattr(policy, "kernel", None))
        self._contexts = Contexts(own_copy(arms), contexts, max_contexts, batch_shape)
        self._costs = None if costs is None else own_copy(as_tensor("costs", costs))
        joint, repeated, journal = self._contexts.joint(), self._contexts.repeated(self._costs), as_journal(journal)
        kept = {"contexts": f"{self._contexts.seen.shape[-2]} at the start, {self._contexts.most} kept"}
        with begun(journal, policy, joint, repeated, generators, kept):
            self.loop = Loop.fresh(policy, joint, generators, batch_shape, costs=repeated)
            self.recorder = Recorder(self.loop, describe_policy(policy), journal)
            self._keep(self._contexts)
            again = {"context": self._enter_again, "load": self._load_again}
            self.recorder.resume(again, restore=self._restore)

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
        """The picks to evaluate next at a context: the open ones, as long as there are any at this context.

        Args:
            limit: Most picks, as for `Bandit.ask`.
            context: `c` or `batch_shape x c`.
            more: Additional picks beside those that are open at this context.
            available: `A` or `batch_shape x A` booleans, arms on offer.

        Returns:
            Points `batch_shape x q x (c + d)`, and `index` into the arms. Picks that are open at any context count as pending.

        Raises:
            ShapeError, NonFiniteError, ArgumentError: On bad input; nothing has changed then.
        """
        limit, more = check_limit(limit, self.batch_shape), check_more(more)
        offered = check_available(available, self.batch_shape, self.arms.shape[-2], self.device)
        some = offered is None or bool(offered.any(dim=-1).all())
        require(some, "no arm is on offer in at least one batch row: `available` must have a True in each.")
        self._enter(context)
        mine = self._open_here()
        if mine is None or more is not None:
            added, _ = self.recorder.ask(limit, self._contexts.only_here(offered), more)
            mine = added if mine is None else joined(mine, added)
        return duplicate(Selection(mine.points, self._contexts.outward(mine.index), mine.mask))

    def tell(
        self,
        selection: Selection | Tensor,
        rewards: Tensor,
        *,
        context: Tensor | None = None,
        failures: str = "error",
        noise_var: Tensor | float | None = None,
    ) -> Report:
        """Learn the rewards of picks, in any order and of any contexts.

        Args:
            selection: What `ask` returned, or a part of it; or arm indices `batch_shape x q` at `context`.
            rewards: `batch_shape x q`, reward units.
            context: `c` or `batch_shape x c`, of plain indices.
            failures: The meaning of a NaN, as for `Bandit.tell`.
            noise_var: Variance of the noise of each reward, as for `Bandit.tell`.
        """
        self.loop.recover_()
        index, mask = self._picks(selection)
        # Checked before a context is entered for their sake.
        given = check_rewards(rewards, index, mask, self.device, failures)
        own = check_noise_var(noise_var, index.shape, mask & ~given.isnan(), self.device)
        if own is not None:
            self.loop.noise_variance()
        joint = self._inward(selection, index, mask, context)
        return self.recorder.tell(joint, mask, given, forgets=failures == "forget", noise_var=own)

    def observe(
        self,
        points_or_index: Tensor,
        counts: Tensor,
        sums: Tensor,
        squares: Tensor | None = None,
        *,
        context: Tensor | None = None,
        noise_var: Tensor | float | None = None,
    ) -> Report:
        """Learn from summed history, arm indices at `context` or points (context, arm); see `Bandit.observe`."""
        joint = as_tensor("points_or_index", points_or_index).is_floating_point()
        like = self.loop.arms if joint else self.arms
        shape = (like.shape[-2], like.shape[-1], self.device)
        pulls = check_history(points_or_index, counts, sums, squares, self.batch_shape, *shape)
        own = check_noise_var(noise_var, pulls.counts.shape, pulls.counts > 0, self.device)
        if own is not None:
            # Refused, where the policy weights no rewards, before a context is entered.
            self.loop.noise_variance()
        if pulls.index is not None and pulls.mask is not None:
            pulls = replace(pulls, index=self._inward(pulls.index, pulls.index, pulls.mask, context))
        return self.recorder.observe(pulls, own)

    def forget(self, selection: Selection) -> None:
        """Give up on picks that were asked for and will never be told; see `Bandit.forget`."""
        require(isinstance(selection, Selection), "selection must be one that ask() returned, which knows its context.")
        index, mask = self._picks(selection)
        self.recorder.forget(self._inward(selection, index, mask, None), mask)

    def fit_kernel_(self, **options: Any) -> FitReport:
        """Fit the kernel over (context, arm) to the rewards told; see `Bandit.fit_kernel_`."""
        noise = options.pop("noise", False)
        check_fit(noise, options)
        return self.recorder.fit(noise, options)

    # ------------------------------------------------------------------ what was learned

    def best(self, k: int = 1, *, context: Tensor) -> Recommendation:
        """The k arms with the highest posterior mean at a context, best first, pulled there or not; without a posterior, those
        pulled there with the highest average. The context is kept tabulated from then on, as by `ask`."""
        k = check_count(k)
        check_told(self.pulls)
        self._enter(context)
        state, own = self.loop.state, self._contexts.own
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
        return self.loop.process

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
        """Pulls learned of each arm at the current context, `batch_shape x A`."""
        return self._contexts.own(self.loop.counts)

    @property
    def pulls(self) -> Tensor:
        """Pulls told in all, `batch_shape`."""
        return self.loop.pulls.clone()

    @property
    def width(self) -> Tensor:
        """The confidence width, which multiplies the posterior standard deviation, `batch_shape`."""
        return self.loop.width

    @property
    def journal(self) -> Journal | None:
        """The journal that contexts, asks and tells are written to, if any. A copy of a bandit has none."""
        return self.recorder.journal

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of everything that is asked and told."""
        return self.loop.batch_shape

    @property
    def device(self) -> torch.device:
        """The device of the arms and the posterior."""
        return self.loop.device

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly: the bandit's state and the contexts kept."""
        self.loop.recover_()
        return {"bandit": self.recorder.state_dict(), "contexts": copy.deepcopy(self._contexts.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> ContextualBandit:
        """Resume from a `state_dict` of a bandit with the same policy and arms, see `Bandit.load_state_dict`; another one is
        refused, and changes nothing. Returns self."""
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

        def note(_: None) -> dict[str, Any]:
            return {"kind": "load", "state": state_as_text(state_dict)}

        written = self.journal is not None and not self.journal.is_repeating
        self.recorder.change(load, note if written else None, take_back=lambda: self._keep(before))
        return self

    # ------------------------------------------------------------------ inside

    def _enter(self, context: Any, busy: Sequence[int] = ()) -> None:
        """Make a context the current one; the joint arms follow. Blocks that are `busy`, or hold what is open, stay."""
        self.loop.recover_()
        ahead, opened = copy.copy(self._contexts), self.loop.open
        if opened is not None:
            busy = [*busy, *(opened.index[opened.mask] // self.arms.shape[-2]).unique().tolist()]
        changed, before = ahead.enter_(context, busy), self._contexts
        if not changed and ahead.asked_as(before):
            return
        entered = {"kind": "context", "context": pack(as_tensor("context", context, self.arms.dtype)), "busy": list(busy)}

        def enter() -> None:
            if changed:
                self.loop.move_(ahead.joint(), ahead.repeated(self._costs))
            self._keep(ahead)

        self.recorder.change(enter, lambda _: entered, draws=False, take_back=lambda: self._keep(before))

    def _enter_again(self, record: dict[str, Any]) -> None:
        """Repeat the record of a context that was entered."""
        self._enter(held(record["context"]).to(self.device), record["busy"])

    def _load_again(self, record: dict[str, Any]) -> None:
        """Repeat the record of a state that was loaded."""
        self.load_state_dict(state_of_text(record["state"]))

    def _keep(self, contexts: Contexts) -> None:
        """Go on with these contexts, which the next checkpoint holds."""
        self._contexts, self.recorder.besides = contexts, {"contexts": contexts}
        # Improvements and probabilities of being the best are over the arms at the current context.
        self.loop.state.rows.competing = contexts.only_here(None)

    def _restore(self, saved: dict[str, Any]) -> None:
        self.load_state_dict({"bandit": saved["state"], "contexts": saved["contexts"]})

    def _open_here(self) -> Selection | None:
        loop = self.loop
        return None if loop.open is None else within(loop.open, self._contexts.here(loop.open.index), loop.points)

    def _picks(self, selection: Selection | Tensor) -> tuple[Tensor, Tensor]:
        return check_picks(selection, self.batch_shape, self.arms.shape[-2], self.device)

    def _inward(self, selection: Any, index: Picks, mask: PickMask, context: Any) -> Picks:
        """Joint indices of picks, −1 where masked; contexts that are not kept are entered.

        Args:
            selection: What was passed in: a selection's points tell its contexts.
            index: Its arms, with their mask.
            mask: `batch_shape x q`.
            context: That of plain indices.
        """
        index = index.masked_fill(~mask, -1)
        if not isinstance(selection, Selection):
            if context is None:
                raise ArgumentError("plain arm indices need to know where they were pulled: pass context=.")
            self._enter(context)
            return self._contexts.inward(index, self._contexts.current.unsqueeze(-1))
        blocks = self._contexts.blocks(selection.points)
        while bool((gone := mask & (blocks < 0)).any()):
            place = int(gone.reshape(-1, gone.shape[-1]).any(dim=0).byte().argmax())
            self._enter(selection.points[..., place, : self._contexts.dim], blocks[mask].unique().tolist())
            blocks = self._contexts.blocks(selection.points)
        return self._contexts.inward(index, blocks)
