"""Ask and tell."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from torchbandits.arms import ArmRows, Shard, matches
from torchbandits.checks import (
    check_arms,
    check_available,
    check_box,
    check_costs,
    check_fit,
    check_generators,
    check_history,
    check_limit,
    check_maximum,
    check_more,
    check_picks,
    check_places,
    check_replacement,
    check_rewards,
    explains_keywords,
    own_copy,
)
from torchbandits.errors import StateError, UnsupportedError, require
from torchbandits.journal import (
    Journal,
    as_journal,
    asked,
    begun,
    describe_policy,
    moved_to,
    observed,
    pack,
    reported,
    resume,
    told,
)
from torchbandits.learned import Learned, Note, step
from torchbandits.policies import Composed, Policy
from torchbandits.reporting import certificate, report_of
from torchbandits.scores import PerCost
from torchbandits.selections import carried, duplicate, joined, same_picks, without
from torchbandits.sources import ArmSource, InMemory
from torchbandits.together import Together
from torchbandits.types import FitReport, Pulls, Report, Selection

Maximizer = Callable[[Callable[[Tensor], Tensor]], Tensor]  # from a score of points to the point of the highest


class Bandit(Learned):
    """Chooses which arms to evaluate next, and learns from the rewards.

    Args:
        policy: What chooses; frozen and reusable. Its kernel is deep-copied.
        arms: `A x d` or `batch_shape x A x d`, finite, float64 (accurate) or float32; copied. Or one of
            `torchbandits.sources`, which is shared and must not change: `sources.tensor(arms)` saves the copy.
        bounds: Instead of arms a box `2 x d` or `batch_shape x 2 x d`, lower corner first, whose points become arms as they are
            picked: for `ada_bkb`, which splits it, and for every policy of one Gaussian process, which then climbs its score
            (see `optimize.optimize_continuous`), or one draw of the posterior a pick.
        generator: One CPU `torch.Generator`, or a list of one a batch row (`batch_shape` is then its length, broadcast with the
            kernel's and the arms'). Held, and advanced by draws. A fresh one with seed 0 by default.
        costs: `A` or `batch_shape x A`, what a pull of each arm costs, > 0, copied; for `per_cost` policies and budgets.
        journal: A path, or a `Journal`: all that is asked and told is on the disk before it takes effect, and where there is
            such a file the run that it is of goes on, generators included (as given they count only for a new one).

    Raises:
        StateError, DataError: If the journal is in use, of another run, damaged, or can't be written.
        ShapeError: If the arms are empty, of the wrong dtype or shape, or batch shapes do not broadcast.
        NonFiniteError: If an arm has a NaN or an infinite feature.
    """

    @explains_keywords
    def __init__(
        self,
        policy: Policy,
        arms: Tensor | ArmSource | None = None,
        *,
        bounds: Tensor | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        costs: Tensor | None = None,
        journal: Journal | str | os.PathLike[str] | None = None,
    ) -> None:
        require(isinstance(policy, Policy), f"policy must be a torchbandits policy, got {type(policy).__name__}.")
        domain = _domain(arms, bounds, policy)
        require(bounds is None or costs is None, "costs are those of arms, and a box has none: pass arms=.", UnsupportedError)
        generators, batch_shape = check_generators(generator, domain, getattr(policy, "kernel", None))
        self.policy, self._described = policy, describe_policy(policy)
        self._open: Selection | None = None
        self._synced = True  # whether the state knows what is open
        self._journal, self._besides = as_journal(journal), {}
        with begun(self._journal, policy, domain, costs, generators):
            self._state = (policy.init if bounds is None else policy.init_box)(cast(Tensor, domain), generators, batch_shape)
            self._state.rows.costs = _costs(costs, policy, self._state.rows)
            resume(self, self._journal)

    # ------------------------------------------------------------------ ask and tell

    @explains_keywords
    def ask(
        self,
        limit: int | Tensor | None = None,
        *,
        more: int | None = None,
        available: Tensor | None = None,
        maximizer: Maximizer | None = None,
    ) -> Selection:
        """The picks to evaluate next: the open selection, as long as there is one.

        Args:
            limit: Most picks, one number or one a batch row (`batch_shape`). Only a new batch heeds it.
            more: Extend the open selection by this many picks a row, whatever the batch rule says, treating all that is
                untold as pending. The whole open selection is returned, earlier picks first.
            available: `A` or `batch_shape x A` booleans, arms on offer; all of them by default.
            maximizer: For infinite sets: is given the policy's score, a differentiable function of points
                `batch_shape x n x d`, and returns the point to pull, `batch_shape x d`, which becomes a further arm.

        Returns:
            The open selection: picks asked for and neither told nor forgotten. It is a copy.

        Raises:
            ArgumentError: If a limit is negative, or no arm is on offer; nothing has changed then.
        """
        most, more = check_limit(limit, self.batch_shape, self.device), check_more(more)
        offered = check_available(available, self.batch_shape, self.arms.shape[-2], self.device)
        require(maximizer is None or callable(maximizer), f"maximizer must be a function, got {type(maximizer).__name__}.")
        if self._open is not None and more is None:
            return duplicate(self._open)
        if maximizer is not None:
            message = "a maximizer finds one point, of no known cost: leave out limit=, available= and costs=."
            require(limit is None and available is None and self._state.rows.costs is None, message, UnsupportedError)
            return duplicate(self._maximize(maximizer, more or 1))
        return self._extend(most, offered, more)[1]

    def tell(self, selection: Selection | Tensor, rewards: Tensor, *, failures: str = "error") -> Report:
        """Learn the rewards of picks, in any order, of a whole batch or a part of it.

        Args:
            selection: What `ask` returned, or a part of it (`selection[:3]`), or plain arm indices `batch_shape x q`.
                Picks that were never asked for are welcome (history from elsewhere): `Report.unasked` counts them.
            rewards: `batch_shape x q`, reward units; masked places are ignored.
            failures: What a NaN means: an `"error"`, or an evaluation that failed, to `"forget"`. It is never data.

        Returns:
            The report after the update.

        Raises:
            ShapeError, NonFiniteError, ArmIndexError: On bad input, before anything is learned.
            NumericalError: If the posterior broke down; the state is as before the call.
        """
        opened = self._open
        whole = same_picks(selection, opened)  # what ask() returned needs no second look
        index, mask = (opened.index, opened.mask) if whole and opened is not None else self._picks(selection)
        given = check_rewards(rewards, index, mask, self.device, failures)
        given = self._state.rows.across.agreed(torch.where(mask, given, 0.0))
        kept = mask if failures == "error" else mask & ~given.isnan()
        ones, y = kept.to(torch.float64), torch.where(kept, given, 0.0)
        pulls = Pulls(counts=ones, sums=y, squares=y * y, index=index, mask=kept)
        remaining, unasked = (None, ones.sum(dim=-1).zero_()) if whole else self._settled(self._open, index, kept)
        if kept is not mask:
            remaining, _ = self._settled(remaining, index, mask & ~kept)
        return self._learn(pulls, remaining, unasked, lambda: told(index, mask, given))

    def observe(self, points_or_index: Tensor, counts: Tensor, sums: Tensor, squares: Tensor | None = None) -> Report:
        """Learn from history that is already summed.

        Args:
            points_or_index: Arm indices `batch_shape x h` (integers), or points `batch_shape x h x d` that need not be arms.
            counts: `batch_shape x h`, positive numbers of pulls (or weights).
            sums: `batch_shape x h`, sums of rewards.
            squares: `batch_shape x h`, sums of squared rewards; sums²/counts where not given.

        Returns:
            The report after the update. Cost: a refit, and a sweep over the arms.
        """
        pulls = check_history(
            points_or_index,
            counts,
            sums,
            squares,
            batch_shape=self.batch_shape,
            num_arms=self._state.rows.total,
            dim=self.arms.shape[-1],
            device=self.device,
        )
        return self._learn(pulls, self._open, pulls.counts.sum(dim=-1), lambda: observed(pulls))

    def forget(self, selection: Selection | Tensor) -> None:
        """Give up on picks that were asked for and will never be told; their hallucination is undone.

        Raises:
            StateError: If one of them is not pending; nothing has changed then.
        """
        index, mask = self._picks(selection)
        remaining, unasked = self._settled(self._open, index, mask)
        message = "some of these picks are not pending: forget what ask() returned and neither tell nor forget has settled."
        require(not bool((unasked > 0).any()), message, StateError)
        with self._whole_or_not(draws=False, note=lambda: {"kind": "forget", "index": pack(torch.where(mask, index, -1))}):
            self._set_open(remaining)

    @step
    def fit_kernel_(self, *, noise: bool = False, **options: Any) -> FitReport:
        """Fit the kernel's hyper-parameters to the rewards told, each batch row on its own, and relearn everything with it.

        Every parameter of the policy's kernel that requires a gradient is fitted, by the evidence and the priors registered
        with the kernel. What is open stays open; the policy and the kernel that it was given stay as they are.

        Args:
            noise: Fit the noise too (of a single batch row); λ keeps its ratio to the noise variance.
            options: `misfit`, `max_exact`, `dictionary_size`, `restarts`, `max_iterations`, as for `fitting.fit_kernel_`.

        Raises:
            UnsupportedError: For policies without one posterior for all arms, for finite Fourier features, and for the noise
                of several batch rows; the message names what to do.
            NumericalError: If the posterior broke down, or no noise shows; nothing has changed then.

        Guarantee: none, theory assumes a known kernel. Cost: O(u³) an iteration, O(u m²) for many points, and a sweep.
        """
        check_fit(noise, options)
        with self._whole_or_not(note=lambda: {"kind": "fit", "options": {"noise": noise, **options}}):
            report = self.policy.refit(self._state, noise=noise, **options)
            certificate(self.policy, self._state)
        return report

    def set_arms_(self, arms: Tensor | ArmSource, *, costs: Tensor | None = None) -> Bandit:
        """Go on with other arms; all that was learned stays, at arms that are gone too. Returns self.

        Arms that were pulled before keep their pulls; what is open must be among the new arms, and keeps waiting.

        Args:
            arms: `A' x d` or `batch_shape x A' x d`, copied, or a source, of the same dtype and device.
            costs: Of the new arms, as at the start.

        Raises:
            ShapeError, NonFiniteError: For arms that this bandit can't take.
            StateError: If picks are open at arms that are gone: tell or forget them first.
            UnsupportedError: For a policy that is bound to its arms. Nothing has changed then.

        Cost: a sweep over the new arms.  Source: Calandriello et al. 2019, appendix A, for BKB.
        """
        checked = _readable(arms, self.policy)
        check_replacement(checked, self.arms, self.batch_shape)
        checked = own_copy(checked) if isinstance(checked, Tensor) else checked
        with self._whole_or_not(draws=False, note=lambda: moved_to(checked, costs)):
            self._move(checked, costs)
        return self

    # ------------------------------------------------------------------ inside

    def _move(self, arms: Tensor | ArmSource, costs: Tensor | None = None) -> None:
        opened = None if self._open is None else carried(self._open, arms, self.batch_shape)
        state = self.policy.set_arms(self._state, cast(Tensor, arms))
        state.rows.costs = _costs(costs, self.policy, state.rows)
        self._state = state
        self._set_open(opened)

    @step
    def _extend(self, limit: Tensor | None, offered: Tensor | None, exactly: int | None) -> tuple[Selection, Selection]:
        """Open further picks, with all that is open as pending; they alone, and a copy of all that is open then."""
        self._sync_pending()
        selection, evidence = self.policy.select(self._state, limit=limit, available=offered, exactly=exactly)
        selection = selection if self._journal is None else self._journal.agreed(selection, self._state.rows.points)
        some = bool(selection.mask.any())
        # Copied before anything changes: a copy that fails must leave no pick open that nobody was told of.
        handed = duplicate(selection if self._open is None else joined(self._open, selection) if some else self._open)
        draws, box = bool(evidence.generator_states), self._state.box is not None
        note = partial(asked, limit, offered, exactly, selection, box)
        with nullcontext() if self._journal is None else self._whole_or_not(draws=draws, note=note):
            self._admit(selection, evidence.generator_states)
        return selection, handed

    def _restore(self, saved: dict[str, Any]) -> None:
        """Take over a checkpoint."""
        if saved["arms"] is not None:
            self.set_arms_(saved["arms"].to(self.device), costs=saved["costs"])
        self._load_state(saved["state"])  # the header of the journal says whose it is

    def _gather(self) -> Together | None:
        """What learns many calls of a journal together; None where they must be repeated one by one."""
        policy, state = self.policy, self._state
        return Together(self) if policy.learns_together(state) and not policy.draws_on_select(state) else None

    def _take(self, index: Tensor) -> bool:
        """Open picks of a journal without choosing them again; False where choosing them draws, or names points."""
        if self._state.box is not None or self.policy.draws_on_select(self._state):
            return False
        index, mask = check_picks(index, self.batch_shape, self._state.rows.total, self.device)
        self._admit(Selection(self._state.rows.points(index), index, mask), ())
        return True

    def _admit(self, selection: Selection, drawn: Sequence[Tensor]) -> None:
        """Open picks, after draws that left the generators in these states."""
        opened = joined(self._open, selection) if bool(selection.mask.any()) else None  # may fail: first
        if self._state.box is not None:
            self._state.box.find_(selection.points, selection.index, self._state.statistics)
        for generator, state in zip(self._state.generators, drawn, strict=False):
            generator.set_state(state)
        if opened is not None:
            self._set_open(opened)

    def _maximize(self, maximizer: Maximizer, count: int) -> Selection:
        """Open picks that a user's maximiser finds, each a further arm unless it is one already."""
        points: list[Tensor] = []
        with self._whole_or_not(draws=False, note=lambda: {"kind": "maximize", "points": pack(torch.stack(points))}):
            for _ in range(count):
                self._sync_pending()
                rows = self._state.rows
                message = "a maximizer makes further arms, and a source holds those it has: pass the arms as a tensor."
                require(not rows.streamed, message, UnsupportedError)
                best = maximizer(partial(self.policy.scores_at, self._state))
                point = check_maximum(best, rows.batch_shape, rows.arms.shape[-1]).to(rows.arms)
                points.append(point)
                arms, box = self._state.rows.arms.expand(*point.shape[:-2], -1, -1), self._state.box
                index, A = matches(arms, point), arms.shape[-2]
                if box is not None:
                    index = box.found_(point, self._state.pending_index, self._state.statistics)
                elif bool((index < 0).any()):
                    self._move(torch.cat([arms, point], dim=-2))
                    index = torch.where(index < 0, A, index)
                found = Selection(self._state.rows.points(index), index, index >= 0)
                self._set_open(found if self._open is None else joined(self._open, found))
        assert self._open is not None
        return self._open

    @step
    def _learn(self, pulls: Pulls, remaining: Selection | None, unasked: Tensor, note: Note) -> Report:
        """Update the state, or leave it as it was."""
        with self._whole_or_not(
            draws=self.policy.draws_on_update, note=lambda: note() | reported(report, self._state.best_arm())
        ):
            if bool((pulls.counts > 0).any()):
                self._state = self.policy.update(self._state, pulls)
                self._state.add_told_(pulls.counts)
            self._set_open(remaining)
            report = report_of(self.policy, self._state, pulls, unasked)
        return report

    def _set_open(self, selection: Selection | None) -> None:
        self._open, self._synced = selection, False

    @step
    def _settled(self, opened: Selection | None, index: Tensor, mask: Tensor) -> tuple[Selection | None, Tensor]:
        """An open selection less these picks, and how many of them were not open."""
        return without(opened, self._state.rows.entry(index), mask, self._state.rows.points)

    def _picks(self, selection: Selection | Tensor) -> tuple[Tensor, Tensor]:
        index, mask = check_picks(selection, self.batch_shape, self._state.rows.total, self.device)
        if self._state.box is not None and isinstance(selection, Selection):
            check_places(selection, self._state.rows.points(selection.index))
        return index, mask


def _domain(arms: Any, bounds: Any, policy: Policy) -> Tensor | ArmSource:
    """Either arms or a box, as a copy that the caller does not hold; sources are shared."""
    require((arms is None) != (bounds is None), "give either arms (A x d) or bounds (2 x d), and not both.")
    found = check_box(bounds) if arms is None else _readable(arms, policy)
    return own_copy(found) if isinstance(found, Tensor) else found


def _readable(arms: Any, policy: Policy) -> Tensor | ArmSource:
    """Arms as the policy reads them: a tensor, unless it reads the source piece by piece."""
    if not isinstance(arms, ArmSource):
        return check_arms(arms)
    if isinstance(arms, InMemory) and not (arms.distinct and policy.streams):
        return check_arms(arms.arms)
    require(
        policy.streams,
        f"this policy looks at all arms as one tensor, and got {arms!r}: use batch_bkb, bkb or gp_ucb, or pass a tensor, such "
        "as torch.from_numpy(numpy.load(path)).",
        UnsupportedError,
    )
    require(
        not isinstance(arms, Shard) or policy.shards,
        "this policy does not share its arms out among ranks: use batch_bkb (batch_rule='global' or 'product') or bkb with the "
        "UCB score, without initial= and refit_every=.",
        UnsupportedError,
    )
    return arms


def _costs(costs: Any, policy: Policy, rows: ArmRows) -> Tensor | None:
    """Costs per arm, or None where there are none and the policy needs none."""
    needed = isinstance(policy, Composed) and isinstance(policy.score, PerCost)
    require(costs is not None or not needed, "a score per cost needs the costs of the arms: pass costs=, one number an arm.")
    return None if costs is None else check_costs(costs, rows.batch_shape, rows.num_arms, rows.source.device, rows.first)
