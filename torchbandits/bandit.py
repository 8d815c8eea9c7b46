"""The ask-and-tell interface: argument checks, the loop that selects and learns, and the journal."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from torchbandits.arms import Shard
from torchbandits.calls import one_at_a_time
from torchbandits.checks import (
    as_device,
    check_arms,
    check_available,
    check_block,
    check_box,
    check_count,
    check_draws,
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
    check_squares,
    check_state,
    check_told,
    explains_keywords,
    is_finite,
    own_copy,
    picks_on_host,
    same_device,
)
from torchbandits.constraints import Constraint, check_within
from torchbandits.display import Readable, Shown, numbers, of_run
from torchbandits.errors import ArgumentError, UnsupportedError, require
from torchbandits.explanation import Explanation, explain
from torchbandits.filling import fill_within
from torchbandits.gradients import outside_inference_mode
from torchbandits.journal import Journal, Recorder, as_journal, begun, describe_policy, resume
from torchbandits.loop import Loop
from torchbandits.policies import Policy
from torchbandits.posteriors import GaussianProcess, PartitionedProcess
from torchbandits.selections import duplicate, renumbered, same_picks
from torchbandits.sets import LevelSet, TopK, level_set, top_k
from torchbandits.sources import ArmSource, InMemory
from torchbandits.stopping import Decision, Rule, check_rules, decide
from torchbandits.types import ArrayLike, FitReport, Recommendation, Report, Selection
from torchbandits.widths import Width

if TYPE_CHECKING:
    from torchbandits.botorch.model import BanditModel

Maximizer = Callable[[Callable[[Tensor], Tensor]], Tensor]  # takes a score of points, returns the point that maximises it


class Bandit(Readable):
    """Selects the arms to evaluate next, and learns from their rewards.

    Args:
        policy: The policy that selects arms. It is frozen and can be reused; its kernel is deep-copied.
        arms: Tensor `A x d` or `batch_shape x A x d` of finite values, float64 (accurate) or float32, which is copied; or a
            source of `torchbandits.sources`, which is shared and must not change: `sources.tensor(arms)` avoids the copy.
        bounds: A box `2 x d` or `batch_shape x 2 x d`, lower corner first, in place of arms. Its points become arms when they
            are picked. `ada_bkb` partitions the box; policies with a single Gaussian process maximise their score over it by
            gradient ascent (see `optimize.optimize_continuous`), or one draw of the posterior per pick.
        generator: A CPU `torch.Generator`, or a list with one generator per batch row, none of them twice (the batch shape is
            then the length of the list, broadcast with the batch shapes of the kernel and the arms). The bandit keeps a
            reference, and its draws advance the generator. By default a new generator with seed 0.
        costs: `A` or `batch_shape x A`, the cost of a pull of each arm, > 0, copied; for `per_cost` policies and budgets.
        journal: A path, or a `Journal`. Asks and tells are written to disk before they take effect. If the file exists, its run
            is resumed with its own generators; `generator` is used only for a new run.

    Attributes:
        policy: The policy that was passed in.
        loop: The state and the open picks. Its methods neither check arguments nor write to the journal; for code that builds
            on a bandit.
        recorder: The methods of `loop` with journaling.

    Raises:
        StateError, DataError: If the journal is in use, belongs to another run, is damaged, or can't be written.
        ShapeError: If the arms are empty, of the wrong dtype or shape, or batch shapes do not broadcast.
        NonFiniteError: If an arm has a NaN or an infinite feature.
    """

    @explains_keywords
    @outside_inference_mode
    def __init__(
        self,
        policy: Policy,
        arms: ArrayLike | ArmSource | None = None,
        *,
        bounds: ArrayLike | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        costs: ArrayLike | None = None,
        journal: Journal | str | os.PathLike[str] | None = None,
    ) -> None:
        check_instance("policy", policy, Policy, "a torchbandits policy")
        require(bounds is None or costs is None, "costs are those of arms, and a box has none: pass arms=.", UnsupportedError)
        self._begin(policy, arms, generator, costs, journal, bounds=bounds)

    def _begin(
        self,
        policy: Policy,
        arms: Any,
        generator: torch.Generator | Sequence[torch.Generator] | None,
        costs: Any,
        journal: Journal | str | os.PathLike[str] | None,
        *,
        bounds: Any = None,
        known: Tensor | None = None,
    ) -> None:
        """Begin or resume a run; `known` are the known outcomes of the arms, as for `loop.known_for`."""
        domain, generators, batch_shape = self._rows(policy, _domain(arms, bounds, policy), generator)
        journal, described = as_journal(journal), describe_policy(policy)
        with begun(journal, policy, domain, costs, generators, known=known):
            self.policy = policy
            self.loop = Loop.fresh(policy, domain, generators, batch_shape, costs=costs, known=known, box=bounds is not None)
            self.recorder = Recorder(self.loop, described, journal)
            resume(self.recorder)

    # ------------------------------------------------------------------ ask and tell

    @explains_keywords
    @one_at_a_time
    def ask(
        self,
        limit: ArrayLike | None = None,
        *,
        more: int | None = None,
        exactly: int | None = None,
        within: Constraint | Sequence[Constraint] = (),
        available: ArrayLike | None = None,
        maximizer: Maximizer | None = None,
    ) -> Selection:
        """Return the picks to evaluate next. While picks are open, the same selection is returned again.

        Args:
            limit: Maximum number of picks, one number or one per batch row (`batch_shape`). It applies only to a new batch, and
                the batch rule may end it earlier: `ask(8)` under `auto()` is one pick, and `ask(exactly=8)` is eight.
            more: Number of picks per row by which to extend the open selection, regardless of the batch rule, with all open
                picks as pending. The whole open selection is returned, earlier picks first. As long as first picks (`initial=`)
                remain, only first picks are added, possibly fewer than requested.
            exactly: Number of picks per row of a new batch, in place of the batch rule. If fewer first picks (`initial=`)
                remain, the policy fills the batch with its own picks, with the first picks as pending.
            within: With `exactly` or `more`, constraints of `torchbandits.constraints` on all open picks, including earlier
                ones. Each pick is then selected conditional on all picks before it, with the exact posterior.
            available: `A` or `batch_shape x A` booleans, the arms on offer; by default all arms. Of arms with equal features,
                the pick is the first one on offer that the constraints allow (with `constraints.Total`, the cheapest one).
            maximizer: For infinite sets of arms, a function that takes the policy's score, a differentiable function of points
                `batch_shape x n x d`, and returns the point to pull, `batch_shape x d`. This point becomes an additional arm.

        Returns:
            A copy of the open selection: the picks that were asked for and have been neither told nor forgotten.

        Raises:
            ArgumentError: If a limit is negative, no arm is on offer, or no batch of exactly that many picks was found that
                meets the constraints. The bandit is then unchanged.

        Warns (`DiagnosticWarning`): Once, if `exactly` overrides a batch rule that comes with a guarantee, because such batches
        do not keep it.
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
        if exactly is not None or constraints or maximizer is not None:
            _check_combination(limit, more, exactly, constraints, maximizer)
        if loop.open is not None and more is None:
            return duplicate(loop.open)
        if maximizer is not None:
            message = "a maximizer finds one point, of no known cost: leave out limit=, available= and costs=."
            require(limit is None and available is None and loop.state.rows.costs is None, message, UnsupportedError)
            self._maximize(maximizer, more or 1)
            return duplicate(cast(Selection, loop.open))
        if exactly is not None:
            self.recorder.warn_of_exactly_()
        count = more if exactly is None else exactly
        if constraints:
            self._fill(cast(int, count), constraints, offered)
            return duplicate(cast(Selection, loop.open))
        return self.recorder.ask(most, offered, count, whole=exactly is not None)[1]

    @one_at_a_time
    def plan(self, selection: Selection | ArrayLike) -> Selection:
        """Open picks of one's own choice, in addition to the open ones, such as experiments that were decided elsewhere.

        They are pending picks like those of `ask`: further picks are selected conditional on them, and they are told or
        forgotten in the same way.

        Args:
            selection: Arm indices `batch_shape x q` (−1 for none in a batch row with fewer), or a selection of another bandit
                on these arms.

        Returns:
            A copy of the whole open selection, earlier picks first.

        Raises:
            ShapeError, ArmIndexError: On bad input. The bandit is then unchanged.
            UnsupportedError: In a box; pass the point to `ask` by its maximizer there.

        Guarantee: confidence bounds hold as before; bounds on regret do not count these picks.
        """
        loop = self.loop
        loop.recover_()
        message = "a box has no arms to plan: ask(more=1, maximizer=lambda score: point) opens a pick at a point."
        require(loop.state.box is None, message, UnsupportedError)
        index, mask = self._picks(self._of_now(selection), loop.device)
        require(bool(mask.any()), "selection has no pick: give the indices of the arms that will be evaluated.")
        self.recorder.plan(index, mask)
        return duplicate(cast(Selection, loop.open))

    @one_at_a_time
    def tell(
        self,
        selection: Selection | ArrayLike,
        rewards: ArrayLike,
        *,
        failures: str = "error",
        noise_var: ArrayLike | None = None,
        block: ArrayLike | None = None,
    ) -> Report:
        """Learn the rewards of a batch or a part of it, in any order.

        Args:
            selection: A selection returned by `ask`, or a part of it (`selection[:3]`), or plain arm indices `batch_shape x q`.
                Rewards of picks that were never asked for (such as earlier data) are learned too; `Report.unasked` counts them.
                A selection that is told again counts again, with a warning.
            rewards: `batch_shape x q`, reward units, or booleans, which are 1 and 0; masked entries are ignored.
            failures: How to treat a NaN: `"error"` raises an error, `"forget"` takes it for a failed evaluation and forgets the
                pick. The posterior never learns a NaN. But policies that estimate their kernel (`auto`, and others with
                `refit_every`) learn from failures which arms are likely to fail, and leave these out.
            noise_var: Noise variance of each reward, `batch_shape x q` or one number, reward units squared, for rewards that
                are noisier or more accurate than the policy's `noise_std`, which is the default. A reward with noise variance v
                has weight noise_std² / v in the posterior: with λ = noise_std², the default, this is the posterior of a
                Gaussian process with these noise variances. The noise can't be fitted afterwards. `pulls`
                counts every pull once, whatever its weight; `counts` sums the weights.
            block: Name or whole number of the block in which each reward was measured, `batch_shape x q` or one for all: a
                plate, a day, a machine, a lot of a reagent. The rewards of a block share a shift, which `auto` estimates and
                subtracts: means are then those of an average block. Cost: a fit and a sweep at every tell, and memory of each
                reward.

        Returns:
            The report after the update.

        Raises:
            ShapeError, NonFiniteError, ArmIndexError: On bad input, before anything is learned.
            UnsupportedError: For `noise_var` under a policy that does not weight rewards, and for `block` under a policy other
                than `auto`.
            NumericalError: If the posterior broke down numerically. The state is then as before the call.

        Warns (`DiagnosticWarning`): If picks of a `Selection` are not open, because they were told or forgotten before or never
        asked for. If a warning is an error, nothing is learned. Arm indices never warn: use them for an arm that was evaluated
        again on purpose.
        """
        selected = isinstance(selection, Selection)
        loop = self.loop
        loop.recover_()
        if loop.moved:
            selection = self._of_now(selection)
        opened, device = loop.open, loop.device
        if device.type != "cpu" and isinstance(selection, Selection):
            # The few values that are checked are moved to the host in one transfer.
            needed = () if opened is None else loop.state.needed_of(opened.index)
            boxed = loop.state.box is not None
            selection, rewards, opened, beside = picks_on_host(selection, rewards, opened, device, needed, points=boxed)
            device = torch.device("cpu")
            if opened is not None and beside:
                loop.state.foresee_(opened.index, *beside)
        if opened is not None and same_picks(selection, opened):
            # A selection that ask() returned needs no further checks.
            index, mask, whole = opened.index, opened.mask, True
        else:
            (index, mask), whole = self._picks(selection, device), False
        given = check_rewards(rewards, index, mask, device, failures)
        variance = noise_var
        if variance is not None:
            variance = check_noise_var(variance, index.shape, mask & ~given.isnan(), loop.device)
        forgets = failures == "forget"
        blocks = None if block is None else self._blocks(block, mask)
        return self.recorder.tell(
            index, mask, given, forgets=forgets, whole=whole, selected=selected, noise_var=variance, block=blocks
        )

    def _blocks(self, block: ArrayLike, told: Tensor) -> Tensor:
        """The number of the block of each reward, of which those in places that are not `told` are ignored.

        Raises:
            UnsupportedError: For a policy that does not estimate the shifts of blocks.
        """
        message = (
            "this policy does not estimate what the rewards of a block have in common: leave out block=, use auto, or subtract "
            "the average of a control from the rewards of each block."
        )
        require(self.policy.takes_blocks, message, UnsupportedError)
        return check_block(block, told, self.loop.device)

    @one_at_a_time
    def observe(
        self,
        points_or_index: ArrayLike,
        counts: ArrayLike,
        sums: ArrayLike,
        squares: ArrayLike | None = None,
        *,
        noise_var: ArrayLike | None = None,
    ) -> Report:
        """Learn from earlier observations, summed per point.

        Args:
            points_or_index: Arm indices `batch_shape x h` (integers), or points `batch_shape x h x d` that need not be arms.
            counts: `batch_shape x h`, positive numbers of pulls (or weights).
            sums: `batch_shape x h`, sums of rewards.
            squares: `batch_shape x h`, sums of squared rewards, which are at least sums²/counts, the default.
            noise_var: Noise variance of each of the summed rewards, `batch_shape x h` or one number, as for `tell`.

        Returns:
            The report after the update. Cost: a refit, and a sweep over the arms.
        """
        loop = self.loop
        loop.recover_()
        like = (loop.batch_shape, loop.total, loop.arms.shape[-1], loop.device)
        pulls = check_history(points_or_index, counts, sums, squares, *like)
        check_squares(pulls)
        variance = check_noise_var(noise_var, pulls.counts.shape, pulls.counts > 0, loop.device)
        return self.recorder.observe(pulls, variance)

    @one_at_a_time
    def forget(self, selection: Selection | ArrayLike) -> None:
        """Withdraw open picks that will not be evaluated, and undo their hallucination.

        Raises:
            StateError: If one of the picks is not pending. The bandit is then unchanged.
        """
        self.loop.recover_()
        self.recorder.forget(*self._picks(self._of_now(selection), self.device))

    @one_at_a_time
    def fit_kernel_(self, *, noise: bool = False, **options: Any) -> FitReport:
        """Fit the kernel's hyper-parameters to the observed rewards, separately for each batch row, and update the posterior.

        Every parameter of the policy's kernel that requires a gradient is fitted by maximising the evidence times the priors
        registered with the kernel. Open picks stay open. The policy and the kernel object passed to it are not modified.

        Args:
            noise: Whether to fit the noise variance too (a single batch row only). λ keeps its ratio to the noise variance.
            options: `misfit`, `max_exact`, `dictionary_size`, `restarts`, `max_iterations`, as for `fitting.fit_kernel_`.

        Raises:
            UnsupportedError: For policies without a single posterior over all arms, for finite Fourier features, and for
                `noise=True` with several batch rows; the message names an alternative.
            NumericalError: If the posterior broke down numerically, or the data show no noise. The bandit is then unchanged.

        Guarantee: none, because the theory assumes a known kernel. Cost: O(u³) per iteration, O(u m²) for many points, and a
        sweep over the arms.
        """
        check_fit(noise, options)
        return self.recorder.fit(noise, options)

    @one_at_a_time
    def set_arms_(self, arms: ArrayLike | ArmSource, *, costs: ArrayLike | None = None) -> Bandit:
        """Replace the arms and keep all observations, including those at removed arms. Returns self.

        Arms that were pulled before keep their pulls. `best` no longer recommends removed arms. Open picks must be among the
        new arms, and they stay open. A selection that `ask` returned before may be told or forgotten afterwards, also by a
        bandit that loads the state in another process: its picks are found by their points.

        Args:
            arms: `A' x d` or `batch_shape x A' x d`, copied, or a source, of the same dtype and device.
            costs: Costs of the new arms, as for the constructor.

        Raises:
            ShapeError, NonFiniteError: For arms that this bandit can't take.
            StateError: If picks are open at arms that are removed: tell or forget these picks first.
            UnsupportedError: For a policy whose state is bound to its arms; and, with a journal, for a source, whose arms a
                journal can't store.

        After an error the bandit is unchanged.

        Cost: a sweep over the new arms.  Source: Calandriello et al. 2019, appendix A, for BKB.
        """
        self._move(arms, costs)
        return self

    def _move(self, arms: Any, costs: Any, known: Tensor | None = None) -> None:
        self.loop.recover_()
        checked = _readable(arms, self.policy)
        check_replacement(checked, self.loop.arms, self.batch_shape)
        self.recorder.move(own_copy(checked) if isinstance(checked, Tensor) else checked, costs, known)

    # ------------------------------------------------------------------ results

    @one_at_a_time
    def best_arm(self) -> Tensor:
        """The index of the recommended arm, `batch_shape`, as `best()` returns it. Raises the errors of `best`. Cost: O(u)."""
        check_told(self.loop.pulls, self.loop.num_failed)
        return self.loop.best_arm()

    @one_at_a_time
    def best(self, k: int = 1) -> Recommendation:
        """The k arms with the highest posterior mean among the pulled arms, best first. A batch row with fewer than k pulled
        arms is padded with index −1 and mean NaN. Under `auto` an arm comes first that was measured to be better than the one
        with the highest mean by five standard errors of the noise of repeated pulls.

        Arms that were removed by `set_arms_`, and observed points that are none of the arms, are not recommended, although
        their rewards stay in the posterior. In a box such points are recommended, too, with index −1. `available=` of `ask`
        has no influence.

        Raises:
            StateError: If no batch row has observed a reward yet.

        Cost: O(u).
        """
        k = check_count(k)
        check_told(self.loop.pulls, self.loop.num_failed)
        return self.loop.best(k)

    @one_at_a_time
    def top_k(self, k: int, *, draws: int = 1_000, seed: int = 0) -> TopK:
        """The k arms with the highest posterior mean, each with its probability of being among the k best.

        The probability is computed under the model: it is the fraction of joint posterior draws of f in which the arm is among
        the k best. A draw covers these arms and the thousand others that are most likely to belong to them. Unlike `best`,
        which recommends only pulled arms, this method ranks all arms.

        Args:
            k: Number of arms, smaller than the number of distinct arms.
            draws: Number of draws; the standard error of a probability is at most 1/(2 √draws).
            seed: Seed of the draws.

        Raises:
            UnsupportedError: For a policy without a single Gaussian process over given arms.

        Cost: O(A), O(r³ + r² draws) for r = k + 1,000 arms.
        """
        self.loop.recover_()
        k = check_count(k)
        check_draws(draws, seed)
        with self.loop.few_threads():
            return top_k(self.loop, k, draws, seed)

    @one_at_a_time
    def level_set(self, level: float, *, width: Width | None = None) -> LevelSet:
        """Classify the arms as above or below a level by their confidence bounds, or as undecided.

        If the confidence bounds hold for all arms and steps with probability 1 − δ, the classification is correct with the same
        probability.

        Args:
            level: The level, in reward units.
            width: Confidence width, the multiplier of the standard deviation; by default the policy's width.

        Raises:
            UnsupportedError: For a policy without a single Gaussian process over given arms.

        Cost: O(A).
        """
        self.loop.recover_()
        require(is_finite(level), f"level must be a finite number, got {level!r}.")
        check_instance("width", width, Width | None, "a torchbandits.widths.Width, or None for the policy's own")
        with self.loop.few_threads():
            return level_set(self.loop, float(level), width)

    @one_at_a_time
    def should_stop(self, *rules: Rule) -> Decision:
        """Apply stopping rules. Returns a `Decision`, which is true if one of the rules stops every batch row, with the reasons
        in words.

        Args:
            rules: Rules of `torchbandits.stopping`. They ignore pending picks.

        Raises:
            UnsupportedError: For a rule that does not support this policy; the message names rules that do.
        """
        checked = check_rules(rules)
        self.loop.recover_()
        with self.loop.few_threads():
            return decide(checked, self.loop)

    @property
    @outside_inference_mode
    def posterior(self) -> GaussianProcess | PartitionedProcess:
        """The posterior, callable on any points, `batch_shape x n x d` (a tensor or an array). It returns `Marginals(mean,
        variance)`, tensors in reward units; pending picks reduce variances and leave means unchanged."""
        return self.loop.process

    def _shown(self) -> Shown:
        opened = 0 if self.loop.open is None else int(self.loop.open.mask.sum())
        values = [("policy", repr(self.policy)), ("pulls", numbers(self.pulls))]
        return of_run("Bandit", self.batch_shape, self.arms.shape, values, opened, self.journal)

    @property
    def arms(self) -> Tensor | ArmSource:
        """The arms, `A x d` or `batch_shape x A x d`: the bandit's internal tensor, which must not be modified, or the source
        that the arms are read from."""
        return self.loop.arms

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """The generators passed in, one per batch row, in their current state."""
        return self.loop.state.generators

    @property
    def batch_shape(self) -> torch.Size:
        """The leading dimensions of selections and rewards."""
        return self.loop.batch_shape

    @property
    def journal(self) -> Journal | None:
        """The journal to which asks and tells are written, or None. A copy of a bandit has no journal."""
        return self.recorder.journal

    @property
    def device(self) -> torch.device:
        """The device of the arms and the posterior."""
        return self.loop.device

    @property
    def counts(self) -> Tensor:
        """Number of pulls learned for each arm, `batch_shape x A`. Exact duplicates of an arm share one number."""
        return self.loop.counts

    @property
    def pulls(self) -> Tensor:
        """Total number of pulls told, `batch_shape`."""
        return self.loop.pulls.clone()

    @property
    def dictionary(self) -> Tensor:
        """Indices of the arms in the dictionary S in order of first pull, `batch_shape x m`; −1 for padding and for points that
        are not arms."""
        rows, mask = self.posterior.dictionary_rows()
        arm = self.loop.state.rows.arm_of_row
        return torch.where(mask, arm.gather(-1, rows) if arm.shape[-1] else rows, -1)

    @property
    def width(self) -> Tensor:
        """The confidence width, which multiplies the posterior standard deviation, `batch_shape`."""
        return self.loop.width

    def model(self) -> BanditModel:
        """The posterior as a BoTorch model, with the kernel, λ, dictionary and prior mean of the bandit, tabulated on the arms.

        `PolicyAcquisition(bandit.model(), policy)(arms.unsqueeze(-2))` returns the scores that `ask` ranks, with the current
        value of a path-dependent width. The model does not contain pending picks: pass their points as `X_pending`. It is a
        copy that later tells do not change, with one observation per distinct point: the average of the rewards observed
        there, weighted by the number of pulls. Under `auto` its outcomes are in the units of the model, in which acquisition
        functions rank arms, and not in those of the rewards, which `posterior` has.

        Raises:
            UnsupportedError: For policies without a single Gaussian process: heuristics, `pi_gp_ucb` and `soful`.

        Cost: that of computing a posterior from the data, O(u³) for an exact one; O(A m²) when its arms are first scored.
        """
        from torchbandits.botorch.model import model_of_run  # noqa: PLC0415 - BoTorch takes a second to load

        return model_of_run(self.policy, self.loop.state)

    @one_at_a_time
    def explain(
        self,
        *,
        names: Sequence[str] | None = None,
        row: tuple[int, ...] | int = (),
        available: ArrayLike | None = None,
    ) -> Explanation:
        """Explain the posterior's view of the features, the noise and the best arm. `print` shows the result as five lines of
        text, and its method `figure()` plots the features.

        Args:
            names: Names of the features; "feature 0" and so on by default.
            row: Index of the batch row to explain.
            available: `A` or `batch_shape x A` booleans, the arms that may be pulled: only these count as arms that may be
                better than the best one. All arms by default.

        Raises:
            ArgumentError: If an argument is not as above.
            UnsupportedError: For a policy without a single Gaussian process over given arms.
            StateError: If no rewards have been observed in this batch row.

        Cost: O(A).
        """
        check_told(self.loop.pulls, self.loop.num_failed)
        offered = check_available(available, self.loop.batch_shape, self.loop.num_arms, self.loop.device)
        return explain(self.loop, names, row, offered)

    # ------------------------------------------------------------------ saving and moving

    @one_at_a_time
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly, including the open selection and the generators, with a description of the
        policy. The values are copied tensors, numbers and strings."""
        self.loop.recover_()
        return self.recorder.state_dict()

    @one_at_a_time
    def load_state_dict(self, state_dict: dict[str, Any]) -> Bandit:
        """Resume from a `state_dict` of a bandit with the same policy and arms, on any device. Returns self.

        A fitted kernel is restored with the state, so pass the policy with which the saved bandit was made. After `set_arms_`,
        pass the arms that the saved bandit had last. Costs are not saved: the costs of this bandit are used. Memory budgets may
        differ.

        Raises:
            ArgumentError: If the argument is not the state of a bandit.
            StateError: If the state belongs to another policy or to other hyper-parameters, arms or batch rows. The bandit is
                then unchanged; `observe` can learn the data of such a run.

        Warns:
            JournalWarning: For a state of an earlier version, which does not describe its policy.
        """
        check_state(state_dict, self.loop.state.state_dict())
        self.recorder.check_policy(state_dict)
        self.recorder.load(state_dict)
        return self

    def to(self, device: torch.device | str) -> Bandit:
        """Move the arms and the posterior to a device. Factors stay float64. Returns self.

        Raises:
            UnsupportedError: For arms that are read from a source, whose device is chosen when it is made.
        """
        device = as_device(device)
        require(
            not self.loop.state.rows.streamed or same_device(device, self.device),
            f"arms are swept on {self.device}, where their source puts them: give a source of device={str(device)!r} to a new "
            "Bandit, and load_state_dict() the state of this one.",
            UnsupportedError,
        )
        self.loop.to_(device)
        return self

    # ------------------------------------------------------------------ internals

    def _rows(
        self, policy: Policy, domain: Tensor | ArmSource, generator: Any
    ) -> tuple[Tensor | ArmSource, Sequence[torch.Generator], torch.Size]:
        """The domain, the generators, and the batch shape of the state."""
        message = f"this policy has several outcomes, {', '.join(policy.outcomes)}: make a torchbandits.OutcomeBandit."
        require(not policy.outcomes, message, UnsupportedError)
        return (domain, *check_generators(generator, domain, getattr(policy, "kernel", None)))

    def _maximize(self, maximizer: Maximizer, count: int) -> None:
        """Open picks found by the user's maximizer."""
        message = "a maximizer adds arms, and a source is fixed: pass the arms as a tensor."
        require(not self.loop.state.rows.streamed, message, UnsupportedError)

        def find() -> Tensor:
            arms = self.loop.state.rows.arms
            return check_maximum(maximizer(self.loop.score()), self.batch_shape, arms.shape[-1]).to(arms)

        self.recorder.maximize(find, count)

    def _fill(self, count: int, constraints: tuple[Constraint, ...], offered: Tensor | None) -> None:
        """Open exactly `count` additional picks per row, under constraints on all open picks."""
        message = "constraints are on arms, and a box has none: leave out within=, or pass arms."
        require(self.loop.state.box is None, message, UnsupportedError)
        shape = (*self.batch_shape, self.loop.num_arms)
        free = torch.ones(shape, dtype=torch.bool, device=self.device) if offered is None else offered.expand(shape)
        fill_within(self.recorder, count, constraints, free, self.loop.state.rows.first)

    def _of_now(self, selection: Any) -> Any:
        """A selection with the indices of the present arms, if it was made before `set_arms_`."""
        loop = self.loop
        return renumbered(selection, loop.arms, loop.batch_shape) if loop.moved and not loop.state.rows.sharded else selection

    def _picks(self, selection: Selection | ArrayLike, device: torch.device) -> tuple[Tensor, Tensor]:
        loop = self.loop
        index, mask = check_picks(selection, loop.batch_shape, loop.total, device)
        if loop.state.box is not None and isinstance(selection, Selection):
            check_places(selection, loop.points(selection.index.to(loop.device)).to(device))
        return index, mask


def _check_combination(
    limit: Any, more: int | None, exactly: int | None, constraints: tuple[Constraint, ...], maximizer: Any
) -> None:
    """Refuse options of `ask` that exclude each other."""
    if exactly is not None:
        alone = limit is None and more is None and maximizer is None
        require(alone, "exactly= excludes limit=, more= and maximizer=: leave them out.")
    elif constraints:
        require(more is not None, "within= requires a given number of picks: pass exactly=, or more=.")
        alone = limit is None and maximizer is None
        require(alone, "within= excludes limit= and maximizer=: leave them out.")
    if maximizer is not None and not callable(maximizer):
        raise ArgumentError(f"maximizer must be a function, got {type(maximizer).__name__}.")


def _domain(arms: Any, bounds: Any, policy: Policy) -> Tensor | ArmSource:
    """The arms or the box, as a copy that the caller has no reference to; sources are shared."""
    require((arms is None) != (bounds is None), "give either arms (A x d) or bounds (2 x d), and not both.")
    if isinstance(arms, ArmSource):
        return _readable(arms, policy)
    return own_copy(check_box(bounds) if arms is None else check_arms(arms))


def _readable(arms: Any, policy: Policy) -> Tensor | ArmSource:
    """The arms in the form that the policy reads: a tensor, or the source itself if the policy reads it piece by piece."""
    if not isinstance(arms, ArmSource):
        return check_arms(arms)
    if isinstance(arms, InMemory):
        held = check_arms(arms.arms)
        return arms if arms.distinct and policy.streams else held
    require(
        policy.streams,
        f"this policy reads all arms as one tensor, and got {arms!r}: use batch_bkb, bkb or gp_ucb, or pass a tensor, such "
        "as torch.from_numpy(numpy.load(path)).",
        UnsupportedError,
    )
    require(
        not isinstance(arms, Shard) or policy.shards,
        "this policy does not support arms on several ranks: use batch_bkb (batch_rule='global' or 'product') or bkb with the "
        "UCB score, without initial= and refit_every=.",
        UnsupportedError,
    )
    return arms
