"""Ask and tell: the checks of every call, the loop that picks and learns, and the journal."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from torchbandits.arms import Shard
from torchbandits.checks import (
    as_device,
    check_arms,
    check_available,
    check_box,
    check_count,
    check_fit,
    check_generators,
    check_history,
    check_instance,
    check_limit,
    check_maximum,
    check_more,
    check_noise_var,
    check_picks,
    check_places,
    check_replacement,
    check_rewards,
    check_state,
    check_told,
    check_whole,
    explains_keywords,
    is_finite,
    is_whole,
    own_copy,
    picks_on_host,
    same_device,
)
from torchbandits.constraints import Constraint, Distinct, check_within
from torchbandits.display import Shown, count, numbers, pairs
from torchbandits.errors import ArgumentError, UnsupportedError, issue, require
from torchbandits.explanation import Explanation, explain
from torchbandits.journal import Journal, NoArmLeft, Recorder, as_journal, begun, describe_policy
from torchbandits.loop import Loop
from torchbandits.policies import Composed, Policy
from torchbandits.posteriors import GaussianProcess, PartitionedProcess
from torchbandits.selections import duplicate, same_picks
from torchbandits.sets import LevelSet, TopK, level_set, top_k
from torchbandits.sources import ArmSource, InMemory
from torchbandits.stopping import Decision, Rule, check_rules, decide
from torchbandits.types import FitReport, Recommendation, Report, Selection
from torchbandits.widths import Width

if TYPE_CHECKING:
    from torchbandits.botorch.model import BanditModel

Maximizer = Callable[[Callable[[Tensor], Tensor]], Tensor]  # from a score of points to the point of the highest


class Bandit:
    """Selects the arms to evaluate next, and learns from their rewards.

    Args:
        policy: Selects arms; frozen and reusable. Its kernel is deep-copied.
        arms: `A x d` or `batch_shape x A x d`, finite, float64 (accurate) or float32; copied. Or one of
            `torchbandits.sources`, which is shared and must not change: `sources.tensor(arms)` saves the copy.
        bounds: Instead of arms a box `2 x d` or `batch_shape x 2 x d`, lower corner first, whose points become arms as they are
            picked: for `ada_bkb`, which splits it, and for every policy of one Gaussian process, which then climbs its score
            (see `optimize.optimize_continuous`), or one draw of the posterior per pick.
        generator: One CPU `torch.Generator`, or a list of one per batch row (`batch_shape` is then its length, broadcast with
            the kernel's and the arms'). Held, and advanced by draws. A fresh one with seed 0 by default.
        costs: `A` or `batch_shape x A`, the cost of a pull of each arm, > 0, copied; for `per_cost` policies and budgets.
        journal: A path, or a `Journal`: asks and tells are on the disk before they take effect, and an existing file resumes
            its run, generators included (those given count only for a new run).

    Attributes:
        policy: As given.
        loop: State and open picks, without checks and without the journal; for code that builds on a bandit.
        recorder: The same calls on record.

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
        check_instance("policy", policy, Policy, "a torchbandits policy")
        domain = _domain(arms, bounds, policy)
        require(bounds is None or costs is None, "costs are those of arms, and a box has none: pass arms=.", UnsupportedError)
        domain, generators, batch_shape = self._rows(policy, domain, generator)
        journal, described = as_journal(journal), describe_policy(policy)
        with begun(journal, policy, domain, costs, generators):
            self.policy = policy
            self.loop = Loop.fresh(policy, domain, generators, batch_shape, costs=costs, box=bounds is not None)
            self.recorder = Recorder(self.loop, described, journal)
            self.recorder.resume()
        self._set_aside = False  # whether a batch rule was, and the user was told

    # ------------------------------------------------------------------ ask and tell

    @explains_keywords
    def ask(
        self,
        limit: int | Tensor | None = None,
        *,
        more: int | None = None,
        exactly: int | None = None,
        within: Constraint | Sequence[Constraint] = (),
        available: Tensor | None = None,
        maximizer: Maximizer | None = None,
    ) -> Selection:
        """The picks to evaluate next: the open selection, as long as there is one.

        Args:
            limit: Most picks, one number or one per batch row (`batch_shape`). It applies to a new batch only.
            more: Extend the open selection by this many picks per row, whatever the batch rule says, with all open picks as
                pending. The whole open selection is returned, earlier picks first. While first picks (`initial=`) last, these
                alone are added, which may be fewer.
            exactly: Picks of each row of a new batch, in place of the batch rule's number. Where first picks (`initial=`) are
                fewer, the policy's own follow with these as pending.
            within: With `exactly` or `more`, constraints of `torchbandits.constraints` on the open picks, earlier ones
                included. Each pick is then made given all those before it, by the exact posterior.
            available: `A` or `batch_shape x A` booleans, arms on offer; all of them by default.
            maximizer: For infinite sets: a function that is called with the policy's score, a differentiable function of
                points `batch_shape x n x d`, and returns the point to pull, `batch_shape x d`, which becomes an additional
                arm.

        Returns:
            The open selection: picks asked for and neither told nor forgotten. It is a copy.

        Raises:
            ArgumentError: If a limit is negative, no arm is on offer, or a batch of exactly so many picks can't be made;
                nothing has changed then.

        Warns (`DiagnosticWarning`): Once, if `exactly` sets aside a batch rule with a promise, which such batches do not keep.
        """
        loop = self.loop
        loop.recover_()
        most, offered = None, None
        if limit is not None:
            most = check_limit(limit, loop.batch_shape)
        if more is not None:
            more = check_more(more)
        if available is not None:
            offered = check_available(available, loop.batch_shape, loop.num_arms, loop.device)
        constraints = () if isinstance(within, tuple) and not within else check_within(within)
        if exactly is not None:
            exactly = check_more(exactly, "exactly")
            alone = limit is None and more is None and maximizer is None
            require(alone, "exactly= stands alone: leave out limit=, more= and maximizer=.")
        elif constraints:
            require(more is not None, "within= constrains a batch of exactly so many picks: pass exactly=, or more=.")
            alone = limit is None and maximizer is None
            require(alone, "within= goes with exactly= or more= alone: leave out limit= and maximizer=.")
        if maximizer is not None and not callable(maximizer):
            raise ArgumentError(f"maximizer must be a function, got {type(maximizer).__name__}.")
        if loop.open is not None and more is None:
            return duplicate(loop.open)
        if maximizer is not None:
            message = "a maximizer finds one point, of no known cost: leave out limit=, available= and costs=."
            require(limit is None and available is None and loop.state.rows.costs is None, message, UnsupportedError)
            self._maximize(maximizer, more or 1)
            return duplicate(cast(Selection, loop.open))
        if exactly is not None:
            return self._exactly(exactly, constraints, offered)
        if constraints:
            self._filled(cast(int, more), constraints, offered)
            return duplicate(cast(Selection, loop.open))
        return self.recorder.ask(most, offered, more)[1]

    def tell(
        self,
        selection: Selection | Tensor,
        rewards: Tensor,
        *,
        failures: str = "error",
        noise_var: Tensor | float | None = None,
    ) -> Report:
        """Learn the rewards of picks, in any order, of a whole batch or a part of it.

        Args:
            selection: A selection returned by `ask`, or a part of it (`selection[:3]`), or plain arm indices `batch_shape x q`.
                Picks that were never asked for are learned, too (history from elsewhere): `Report.unasked` counts them.
            rewards: `batch_shape x q`, reward units; masked places are ignored.
            failures: The meaning of a NaN: an `"error"`, or a failed evaluation that is to be forgotten, `"forget"`. A NaN
                is never data.
            noise_var: Variance of the noise of each reward, `batch_shape x q` or one number, reward units squared, for rewards
                that are noisier or more accurate than the policy's `noise_std`, the default. A reward of variance v has the
                weight noise_std² / v in the posterior: with λ = noise_std², the default, the posterior is that of a Gaussian
                process with these variances. A later fit of the noise scales them all. Pulls are counted whatever their weight;
                `counts` sums weights.

        Returns:
            The report after the update.

        Raises:
            ShapeError, NonFiniteError, ArmIndexError: On bad input, before anything is learned.
            UnsupportedError: For `noise_var` under a policy that does not weight rewards.
            NumericalError: If the posterior broke down; the state is as before the call.
        """
        loop = self.loop
        loop.recover_()
        opened, device = loop.open, loop.device
        if device.type != "cpu" and isinstance(selection, Selection):
            # Small numbers are looked at on the host, where they arrive in one piece.
            needed = () if opened is None else loop.state.needed_of(opened.index)
            boxed = loop.state.box is not None
            selection, rewards, opened, beside = picks_on_host(selection, rewards, opened, device, needed, points=boxed)
            device = torch.device("cpu")
            if opened is not None and beside:
                loop.state.foresee_(opened.index, *beside)
        if opened is not None and same_picks(selection, opened):
            # What ask() returned needs no second look.
            index, mask, whole = opened.index, opened.mask, True
        else:
            (index, mask), whole = self._picks(selection, device), False
        given = check_rewards(rewards, index, mask, device, failures)
        own = noise_var
        if own is not None:
            own = check_noise_var(own, index.shape, mask & ~given.isnan(), loop.device)
        return self.recorder.tell(index, mask, given, forgets=failures == "forget", whole=whole, noise_var=own)

    def observe(
        self,
        points_or_index: Tensor,
        counts: Tensor,
        sums: Tensor,
        squares: Tensor | None = None,
        *,
        noise_var: Tensor | float | None = None,
    ) -> Report:
        """Learn from history that is already summed.

        Args:
            points_or_index: Arm indices `batch_shape x h` (integers), or points `batch_shape x h x d` that need not be arms.
            counts: `batch_shape x h`, positive numbers of pulls (or weights).
            sums: `batch_shape x h`, sums of rewards.
            squares: `batch_shape x h`, sums of squared rewards; sums²/counts where not given.
            noise_var: Variance of the noise of each of the summed rewards, `batch_shape x h` or one number, as for `tell`.

        Returns:
            The report after the update. Cost: a refit, and a sweep over the arms.
        """
        loop = self.loop
        loop.recover_()
        like = (loop.batch_shape, loop.total, loop.arms.shape[-1], loop.device)
        pulls = check_history(points_or_index, counts, sums, squares, *like)
        own = check_noise_var(noise_var, pulls.counts.shape, pulls.counts > 0, loop.device)
        return self.recorder.observe(pulls, own)

    def forget(self, selection: Selection | Tensor) -> None:
        """Give up on picks that were asked for and will never be told; their hallucination is undone.

        Raises:
            StateError: If one of them is not pending; nothing has changed then.
        """
        self.loop.recover_()
        self.recorder.forget(*self._picks(selection, self.device))

    def fit_kernel_(self, *, noise: bool = False, **options: Any) -> FitReport:
        """Fit the kernel's hyper-parameters to the rewards told, each batch row on its own, and recompute the posterior.

        Every parameter of the policy's kernel that requires a gradient is fitted, by the evidence and the priors registered
        with the kernel. Open picks stay open; the policy and the kernel that it was given stay as they are.

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
        return self.recorder.fit(noise, options)

    def set_arms_(self, arms: Tensor | ArmSource, *, costs: Tensor | None = None) -> Bandit:
        """Replace the arms; all observations are kept, those of removed arms included. Returns self.

        Arms that were pulled before keep their pulls. Open picks must be among the new arms, and stay open.

        Args:
            arms: `A' x d` or `batch_shape x A' x d`, copied, or a source, of the same dtype and device.
            costs: Of the new arms, as at the start.

        Raises:
            ShapeError, NonFiniteError: For arms that this bandit can't take.
            StateError: If picks are open at arms that are gone: tell or forget them first.
            UnsupportedError: For a policy that is bound to its arms. Nothing has changed then.

        Cost: a sweep over the new arms.  Source: Calandriello et al. 2019, appendix A, for BKB.
        """
        self.loop.recover_()
        checked = _readable(arms, self.policy)
        check_replacement(checked, self.loop.arms, self.batch_shape)
        self.recorder.move(own_copy(checked) if isinstance(checked, Tensor) else checked, costs)
        return self

    # ------------------------------------------------------------------ what was learned

    def best_arm(self) -> Tensor:
        """The recommended arm, `batch_shape`: the index of `best()`, with its errors. Cost O(u)."""
        check_told(self.loop.pulls)
        return self.loop.best_arm()

    def best(self, k: int = 1) -> Recommendation:
        """The k arms with the highest posterior mean among those pulled, best first; index −1 and mean NaN in places of a batch
        row that has pulled fewer.

        Raises:
            StateError: If no batch row was told anything yet.

        Cost: O(u).
        """
        k = check_count(k)
        check_told(self.loop.pulls)
        return self.loop.best(k)

    def top_k(self, k: int, *, draws: int = 1_000, seed: int = 0) -> TopK:
        """The k arms with the highest posterior mean, and the probability of each to be among the k best.

        The probability is that of the model: the part of joint draws of f, at these arms and at the thousand others that most
        likely belong, in which the arm is among the k best. Unlike `best`, which recommends an arm that was pulled, it ranks
        all arms.

        Args:
            k: Number of arms, less than those there are; exact duplicates count as one.
            draws: Number of draws; the standard error of a probability is at most 1/(2 √draws).
            seed: Of the draws.

        Raises:
            UnsupportedError: For a policy without one Gaussian process over given arms.

        Cost: O(A), O(r³ + r² draws) for r = k + 1,000 arms.
        """
        self.loop.recover_()
        require(is_whole(seed, 0), f"seed must be a whole number ≥ 0, got {seed!r}.")
        check_whole("draws", draws)
        with self.loop.few_threads():
            return top_k(self.loop, check_count(k), draws, seed)

    def level_set(self, level: float, *, width: Width | None = None) -> LevelSet:
        """The arms above and below a level by the confidence bounds, and those that the bounds leave undecided.

        If the width holds for all arms and steps with probability 1 − δ, so does the classification.

        Args:
            level: Reward units.
            width: Multiplies the standard deviation; the policy's own by default.

        Raises:
            UnsupportedError: For a policy without one Gaussian process over given arms.

        Cost: O(A).
        """
        self.loop.recover_()
        require(is_finite(level), f"level must be a finite number, got {level!r}.")
        check_instance("width", width, Width | None, "a torchbandits.widths.Width, or None for the policy's own")
        with self.loop.few_threads():
            return level_set(self.loop, float(level), width)

    def should_stop(self, *rules: Rule) -> Decision:
        """Whether to stop: a `Decision`, true where one of the rules stops every batch row, with the reasons in words.

        Args:
            rules: Of `torchbandits.stopping`. Picks that are pending do not count.

        Raises:
            UnsupportedError: For a rule that does not read this policy; the message names others.
        """
        checked = check_rules(rules)
        self.loop.recover_()
        with self.loop.few_threads():
            return decide(checked, self.loop)

    @property
    def posterior(self) -> GaussianProcess | PartitionedProcess:
        """Callable on any points: `Marginals(mean, variance)` in reward units; pending picks shrink variances, not means."""
        return self.loop.process

    def _shown(self) -> Shown:
        *_, num_arms, dim = self.arms.shape
        rows = f"{self.batch_shape.numel():,} rows on " if self.batch_shape else ""
        journal = [] if self.journal is None else [("journal", str(self.journal.path))]
        opened = 0 if self.loop.open is None else int(self.loop.open.mask.sum())
        values = [("policy", repr(self.policy)), ("pulls", numbers(self.pulls)), ("open picks", f"{opened:,}"), *journal]
        return pairs(f"Bandit: {rows}{count(num_arms, 'arm')} of {count(dim, 'feature')}", values)

    def __repr__(self) -> str:
        """Arms, policy, pulls and open picks."""
        return self._shown().text()

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        return self._shown().html()

    @property
    def arms(self) -> Tensor | ArmSource:
        """The arms, `A x d` or `batch_shape x A x d`: a tensor, which is the bandit's own and must not be written to, or the
        source that they are read from."""
        return self.loop.arms

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """One generator per batch row, as given and advanced since."""
        return self.loop.state.generators

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of everything that is asked and told."""
        return self.loop.batch_shape

    @property
    def journal(self) -> Journal | None:
        """The journal that asks and tells are written to, if any. A copy of a bandit has none."""
        return self.recorder.journal

    @property
    def device(self) -> torch.device:
        """The device of the arms and the posterior."""
        return self.loop.device

    @property
    def counts(self) -> Tensor:
        """Pulls learned of each arm, `batch_shape x A`; exact duplicates share those of their entry."""
        return self.loop.counts

    @property
    def pulls(self) -> Tensor:
        """Pulls told in all, `batch_shape`."""
        return self.loop.pulls.clone()

    @property
    def dictionary(self) -> Tensor:
        """Arms in the dictionary S in order of first pull, `batch_shape x m`, −1 where padded or from outside the arms."""
        rows, mask = self.posterior.dictionary_rows()
        arm = self.loop.state.rows.arm_of_row
        return torch.where(mask, arm.gather(-1, rows) if arm.shape[-1] else rows, -1)

    @property
    def width(self) -> Tensor:
        """The confidence width, which multiplies the posterior standard deviation, `batch_shape`."""
        return self.loop.width

    def model(self) -> BanditModel:
        """The posterior as a BoTorch model: with its kernel, λ, dictionary and prior mean, tabulated on the arms.

        `PolicyAcquisition(bandit.model(), policy)(arms.unsqueeze(-2))` are the scores that `ask` ranks: path-dependent widths
        are the run's own. Picks that are pending are not in it: pass their points as `X_pending`. It is a copy, which later
        tells do not change, with one observation a distinct point: the average of its rewards, weighted by its pulls.

        Raises:
            UnsupportedError: For policies without one Gaussian process: heuristics, `pi_gp_ucb` and `soful`.

        Cost: as for a posterior from data, O(u³) for an exact one; O(A m²) when its arms are first scored.
        """
        from torchbandits.botorch.model import model_of_run  # noqa: PLC0415 - BoTorch takes a second to load

        return model_of_run(self.policy, self.loop.state)

    def explain(self, *, names: Sequence[str] | None = None, row: tuple[int, ...] | int = ()) -> Explanation:
        """The beliefs about features, noise and the best arm: `print` shows five plain lines, `figure()` draws the features.

        Args:
            names: Of the features; "feature 0" and so on by default.
            row: The batch row.

        Raises:
            UnsupportedError: For a policy without one Gaussian process over given arms.
            StateError: If nothing was told.

        Cost: O(A).
        """
        check_told(self.loop.pulls)
        with self.loop.few_threads():
            return explain(self.policy, self.loop.state, names, row)

    # ------------------------------------------------------------------ saving and moving

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly, the open selection and the generators included, and a description of the policy:
        copies of tensors, numbers and texts."""
        self.loop.recover_()
        return self.recorder.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> Bandit:
        """Resume from a `state_dict` of a bandit with the same policy and arms, on any device. Returns self.

        A fitted kernel comes with the state; the policy is the one that the fitted bandit was made with. After `set_arms_` the
        arms are those of the bandit that was saved. Costs are not saved: those of this bandit count. Budgets of memory may
        differ.

        Raises:
            ArgumentError: If it is no state of a bandit.
            StateError: If it is of another policy, other hyper-parameters, arms or batch rows; `observe` takes what was learned
                there. Nothing has changed then.

        Warns:
            JournalWarning: For a state of an earlier version, which does not say what it is of.
        """
        check_state(state_dict, self.loop.state.state_dict())
        self.recorder.check_policy(state_dict)
        self.recorder.load(state_dict)
        return self

    def to(self, device: torch.device | str) -> Bandit:
        """Move arms and posterior; factors stay float64. Returns self.

        Raises:
            UnsupportedError: For arms that are read from a source, which names the device at its start.
        """
        device = as_device("device", device)
        require(
            not self.loop.state.rows.streamed or same_device(device, self.device),
            f"arms are swept on {self.device}, where their source puts them: give a source of device={str(device)!r} to a new "
            "Bandit, and load_state_dict() what was learned.",
            UnsupportedError,
        )
        self.loop.to_(device)
        return self

    # ------------------------------------------------------------------ inside

    def _rows(
        self, policy: Policy, domain: Tensor | ArmSource, generator: Any
    ) -> tuple[Tensor | ArmSource, Sequence[torch.Generator], torch.Size]:
        """The domain, the generators and the batch shape of everything that is learned."""
        message = f"this policy has several outcomes, {', '.join(policy.outcomes)}: make a torchbandits.OutcomeBandit."
        require(not policy.outcomes, message, UnsupportedError)
        return (domain, *check_generators(generator, domain, getattr(policy, "kernel", None)))

    def _maximize(self, maximizer: Maximizer, count: int) -> None:
        """Open picks that a user's maximizer finds."""
        message = "a maximizer makes further arms, and a source holds those it has: pass the arms as a tensor."
        require(not self.loop.state.rows.streamed, message, UnsupportedError)

        def find() -> Tensor:
            arms = self.loop.state.rows.arms
            return check_maximum(maximizer(self.loop.score()), self.batch_shape, arms.shape[-1]).to(arms)

        self.recorder.maximize(find, count)

    def _exactly(self, count: int, constraints: tuple[Constraint, ...], offered: Tensor | None) -> Selection:
        """A new batch of exactly so many picks of each row."""
        policy = self.policy
        if isinstance(policy, Composed) and policy.batch_rule.freezes and not self._set_aside:
            self._set_aside = True
            name = type(policy.batch_rule).__name__
            text = (
                f"exactly= sets aside the batch rule {name}: its bound on how far variances shrink within a batch, and "
                "guarantees that follow from it, do not hold for such batches. Ask with limit= to keep it."
            )
            issue([text])
        return (
            self._filled(count, constraints, offered) if constraints else self.recorder.ask(None, offered, count, whole=True)[1]
        )

    def _filled(self, count: int, constraints: tuple[Constraint, ...], offered: Tensor | None) -> Selection:
        """Exactly so many further picks of each row, under constraints on all open ones."""
        message = "constraints are on arms, and a box has none: leave out within=, or pass arms."
        require(self.loop.state.box is None, message, UnsupportedError)
        shape = (*self.batch_shape, self.loop.num_arms)
        own = self.loop.state.rows.offered(offered)
        free = torch.ones(shape, dtype=torch.bool, device=self.device) if own is None else own.expand(shape)
        once = any(isinstance(constraint, Distinct) for constraint in constraints)
        whole = count + (0 if self.loop.open is None else self.loop.open.index.shape[-1])

        left_out = torch.zeros_like(free)

        def allowed(picks: Tensor) -> Tensor:
            left, room = free & ~left_out, whole - picks.shape[-1] if once else 1
            for constraint in constraints:
                left = left & constraint.allowed(picks, free, room)
            return left

        dead_end: NoArmLeft | None = None
        while True:
            try:
                return self.recorder.fill(count, allowed)
            except NoArmLeft as error:
                dead_end = dead_end or error
                further = torch.zeros_like(free)
                for constraint in constraints:
                    further |= constraint.instead(error.picks, free) & error.stuck.unsqueeze(-1)
                # Each attempt leaves out more arms in every row that is stuck, so that they end.
                if not bool((further & ~left_out).any(dim=-1)[error.stuck].all()):
                    raise dead_end from None
                left_out |= further

    def _picks(self, selection: Selection | Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        loop = self.loop
        index, mask = check_picks(selection, loop.batch_shape, loop.total, device)
        if loop.state.box is not None and isinstance(selection, Selection):
            check_places(selection, loop.points(selection.index.to(loop.device)).to(device))
        return index, mask


def _domain(arms: Any, bounds: Any, policy: Policy) -> Tensor | ArmSource:
    """Either arms or a box, as a copy that the caller does not hold; sources are shared."""
    require((arms is None) != (bounds is None), "give either arms (A x d) or bounds (2 x d), and not both.")
    if isinstance(arms, ArmSource):
        return _readable(arms, policy)
    return own_copy(check_box(bounds) if arms is None else check_arms(arms))


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
