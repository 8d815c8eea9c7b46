"""The ask-and-tell interface for several outcomes per pull, which share one selection of arms."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchbandits.aims import Certifying, Fidelity, Scalarized, beside
from torchbandits.bandit import Bandit, Maximizer
from torchbandits.calls import one_at_a_time
from torchbandits.checks import (
    as_tensor,
    check_available,
    check_choice,
    check_count,
    check_draws,
    check_flag,
    check_generators,
    check_instance,
    check_limit,
    check_named,
    check_picks,
    check_told,
    check_whole,
    explains_keywords,
    is_finite,
    numbers_of,
)
from torchbandits.constraints import Constraint
from torchbandits.display import Shown, numbers, of_run
from torchbandits.errors import ArgumentError, NonFiniteError, ShapeError, UnsupportedError, require
from torchbandits.explanation import OutcomeExplanation, explain_outcomes
from torchbandits.fronts import Front, ParetoSet, front, pareto_set
from torchbandits.gradients import outside_inference_mode, without_gradients
from torchbandits.journal import Journal
from torchbandits.loop import Advised
from torchbandits.policies import Policy
from torchbandits.policies.joint import Joint, all_outcomes, known_at
from torchbandits.policies.picking import marginals
from torchbandits.policies.state import TableState
from torchbandits.selections import renumbered
from torchbandits.sets import table_of
from torchbandits.sources import ArmSource
from torchbandits.stopping import Decision, Rule, check_rules, decide
from torchbandits.types import ArrayLike, Recommendation, Report, Selection, with_blanks


class OutcomeBandit(Bandit):
    """A bandit whose pulls have several outcomes: all outcomes share the arms, and each has its own posterior.

    All outcomes share the picks, so a selection has the same shape as for `Bandit`. Counts, posteriors and reports have one
    more batch dimension, the last one, for the k outcomes in the order of `outcomes`: `counts` is `... x k x A`,
    `posterior(points).mean` is `... x k x n`, and the entries of a report are `... x k`. If the models have unequal λ, `counts`
    has weights: a pull adds λ_1 / λ_j to the count of outcome j.

    Args:
        policy: A policy of `torchbandits.outcomes`, which names the outcomes.
        arms: As for `Bandit`: `A x d` or `... x A x d`, or a source.
        generator: As for `Bandit`, one per batch row of picks. The generators of the second and further outcomes are seeded
            from it.
        costs: `A` or `... x A`, as for `Bandit`: the cost of a pull, which measures all outcomes; for `per_cost` policies.
        journal: As for `Bandit`.
        known: For a policy with `known` outcomes, their values by name, `A` or `... x A` finite numbers each, copied. Equal
            arms have equal values.

    Raises:
        StateError, DataError: If the journal is in use, belongs to another run, is damaged, or can't be written.
        ShapeError, NonFiniteError, ArmIndexError: For arms that `Bandit` does not accept, or without arms that the policy
            names.
    """

    policy: Joint

    @explains_keywords
    @outside_inference_mode
    def __init__(
        self,
        policy: Joint,
        arms: ArrayLike | ArmSource,
        *,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        costs: ArrayLike | None = None,
        journal: Journal | str | os.PathLike[str] | None = None,
        known: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        check_instance("policy", policy, Joint, "a policy of torchbandits.outcomes, such as outcomes.pareto(models)")
        if costs is not None and (checked := as_tensor("costs", costs)).dim() > 1:
            costs = checked.unsqueeze(-2).expand(*checked.shape[:-1], len(policy.outcomes), checked.shape[-1])
        self._begin(policy, arms, generator, costs, journal, known=_stacked(policy.known, known))

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Names of the outcomes that are told, in the order of the last dimension of rewards."""
        return self.policy.outcomes

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
        """Return the picks to evaluate next, as `Bandit.ask`; `index` and `mask` are `... x q`, without the outcome dimension.

        Args:
            limit: Maximum number of picks, one number or one per batch row of picks.
            more: As for `Bandit.ask`.
            exactly: As for `Bandit.ask`.
            within: As for `Bandit.ask`.
            available: `A` or `... x A` booleans.
            maximizer: Not supported, because several outcomes require a list of arms.

        Raises:
            ArgumentError, UnsupportedError: As for `Bandit.ask`. The bandit is then unchanged.
        """
        loop = self.loop
        require(maximizer is None, "an OutcomeBandit takes a list of arms: leave out maximizer=.", UnsupportedError)
        if limit is not None:
            most = check_limit(limit, self._shape)
            limit = None if most is None else most.unsqueeze(-1).expand(loop.batch_shape)
        if available is not None:
            offered = check_available(available, self._shape, loop.num_arms, loop.device)
            if offered is not None:
                available = offered.expand(*self._shape, -1).unsqueeze(-2).expand(*loop.batch_shape, -1)
        return self._shared(super().ask(limit, more=more, exactly=exactly, within=within, available=available))

    @one_at_a_time
    def plan(self, selection: Selection | ArrayLike) -> Selection:
        """Open picks of one's own choice, as `Bandit.plan`; `index` and `mask` are `... x q`, without the outcome dimension."""
        self.loop.recover_()
        index, mask = check_picks(self._of_now(selection), self._shape, self.loop.total, self.device)
        return self._shared(super().plan(self._spread(index, mask)))

    @one_at_a_time
    def tell(
        self,
        selection: Selection | ArrayLike,
        rewards: ArrayLike | Mapping[str, Any],
        *,
        failures: str = "error",
        noise_var: ArrayLike | Mapping[str, Any] | None = None,
        block: ArrayLike | None = None,
    ) -> Report:
        """Learn the outcomes of picks.

        Args:
            selection: As for `Bandit.tell`, or plain arm indices `... x q`.
            rewards: `... x q x k`, in the order of `outcomes`, NaN where an outcome was not measured; or a dictionary from the
                names of outcomes to `... x q`, without the outcomes that were not measured. Masked places are ignored.
            failures: The treatment of a pick without any measured outcome: `"error"` raises an error, `"forget"` forgets the
                pick.
            noise_var: As for `Bandit.tell`, one number, `... x q x k`, or a dictionary from the name of each outcome to
                `... x q`.
            block: As for `Bandit.tell`, one number or `... x q`. Each outcome has shifts of its own.

        Returns:
            The report, with one row per outcome. The pick is then settled for all outcomes. Tell an outcome that is measured
            later as a further reward of the same arm.

        Raises:
            ShapeError, NonFiniteError, ArgumentError: On bad input, before anything is learned.
        """
        loop = self.loop
        loop.recover_()
        index, mask = check_picks(self._of_now(selection), self._shape, loop.total, loop.device)
        values = rewards_by_outcome("rewards", self.outcomes, rewards, index, mask, failures)
        if noise_var is not None:
            if isinstance(noise_var, Mapping):
                noise_var = self._columns("noise_var", noise_var, index.shape)
            variance = as_tensor("noise_var", noise_var, torch.float64, loop.device)
            fits = variance.dim() == 0 or variance.shape == (*index.shape, len(self.outcomes))
            wanted = (*index.shape, len(self.outcomes))
            require(fits, f"noise_var must be one number, or {wanted}, got {tuple(variance.shape)}.", ShapeError)
            noise_var = variance if variance.dim() == 0 else variance.movedim(-1, -2)
        spread = self._spread(index, mask)
        picks = Selection(self.loop.points(spread), spread, spread >= 0) if isinstance(selection, Selection) else spread
        if block is not None:
            block = self._blocks(block, mask).unsqueeze(-2).expand(spread.shape)
        return super().tell(picks, values, failures="forget", noise_var=noise_var, block=block)

    @one_at_a_time
    def observe(
        self,
        points_or_index: ArrayLike,
        counts: ArrayLike | Mapping[str, Any],
        sums: ArrayLike | Mapping[str, Any],
        squares: ArrayLike | Mapping[str, Any] | None = None,
        *,
        noise_var: ArrayLike | Mapping[str, Any] | None = None,
    ) -> Report:
        """Learn from summed history in which every outcome was measured.

        Args:
            points_or_index: As for `Bandit.observe`, `... x h` or `... x h x d`.
            counts: `... x h`, or `... x h x k` if the outcomes were measured different numbers of times.
            sums: `... x h x k`, in the order of `outcomes`; or a dictionary from the name of each outcome to `... x h`. So are
                `squares`, and counts and noise variances that differ by outcome.
            squares: `... x h x k`.
            noise_var: One number, or `... x h x k`.
        """
        k = len(self.outcomes)
        where = as_tensor("points_or_index", points_or_index)
        dense = where.is_floating_point()
        given = where.shape[:-1] if dense else where.shape
        require(len(given) >= 1, f"expected indices or points of history, got shape {tuple(where.shape)}.", ShapeError)
        tail = where.shape[-1:] if dense else torch.Size()
        shape = (*self._shape, given[-1])
        fits = given in (torch.Size(shape), torch.Size(shape[-1:]))
        require(fits, f"history must be shaped {shape} or {shape[-1:]}, got {tuple(given)}.", ShapeError)
        spread = where.expand(*shape, *tail).unsqueeze(-2 - len(tail)).expand(*self._shape, k, given[-1], *tail)

        def column(name: str, value: Any, alone: bool) -> Tensor:
            if isinstance(value, Mapping):
                values = self._columns(name, value, given)
            else:
                values = as_tensor(name, value, torch.float64, self.device)
            if alone and values.shape == given:
                values = values.unsqueeze(-1).expand(*given, k)
            wanted = (*given, k)
            message = f"{name} must be {wanted}, one column per outcome, got {tuple(values.shape)}."
            require(values.shape == wanted, message, ShapeError)
            return values.expand(*shape, k).movedim(-1, -2)

        n, s = column("counts", counts, True), column("sums", sums, False)
        q = None if squares is None else column("squares", squares, False)
        variance: Any = noise_var
        if variance is not None and not is_finite(variance):
            variance = column("noise_var", variance, True)
        return super().observe(spread, n, s, q, noise_var=variance)

    def _columns(self, name: str, given: Mapping[str, Any], shape: torch.Size) -> Tensor:
        """Numbers by outcome, `shape` each, one column per outcome."""
        check_named(name, given, self.outcomes)
        lacking = [outcome for outcome in self.outcomes if outcome not in given]
        message = (
            f"{name} lacks {', '.join(map(repr, lacking))}, and must have every outcome: tell rewards of some outcomes alone "
            "by the indices of the arms, tell(index, {…})."
        )
        require(not lacking, message)
        columns = [as_tensor(f"{name}[{outcome!r}]", given[outcome], torch.float64, self.device) for outcome in self.outcomes]
        shapes = ", ".join(str(tuple(column.shape)) for column in columns)
        message = f"{name} must have {tuple(shape)} numbers for each outcome, got {shapes}."
        require(all(column.shape == shape for column in columns), message, ShapeError)
        return torch.stack(columns, dim=-1)

    @one_at_a_time
    def forget(self, selection: Selection | ArrayLike) -> None:
        """Withdraw open picks that will not be evaluated; see `Bandit.forget`."""
        self.loop.recover_()
        super().forget(self._spread(*check_picks(self._of_now(selection), self._shape, self.loop.total, self.device)))

    @one_at_a_time
    def set_arms_(
        self,
        arms: ArrayLike | ArmSource,
        *,
        costs: ArrayLike | None = None,
        known: Mapping[str, ArrayLike] | None = None,
    ) -> OutcomeBandit:
        """Replace the arms and keep all observations, as `Bandit.set_arms_`.

        Args:
            arms: As for `Bandit.set_arms_`.
            costs: As for `Bandit.set_arms_`.
            known: Values of the known outcomes at the new arms, as for the constructor.
        """
        self._move(arms, costs, _stacked(self.policy.known, known))
        return self

    # ------------------------------------------------------------------ results

    @without_gradients
    @one_at_a_time
    def best(self, k: int = 1) -> Recommendation:
        """The k recommended arms among the pulled arms, best first.

        `constrained` and `safe` policies recommend the arms with the best posterior means of the objective, among arms whose
        limits hold with probability `certainty` (`safe`: by their confidence bounds, or because the arm is in `start`). If
        there are fewer than k such arms, the others follow in order of that probability.

        Returns:
            `points` `... x k x d`, `index` `... x k`, and `mean` and `variance` `... x k x outcomes`; known outcomes are last,
            and their variance is 0.

        Raises:
            StateError: If no rewards were told.
            UnsupportedError: For several objectives, which have a front instead of a best arm.
        """
        most = check_count(k)
        check_told(self.loop.pulls, self.loop.num_failed)
        self.loop.recover_()
        state = table_of(self.loop, "best()")
        mean, std = (part.double() for part in marginals(state))
        ranked = self._ranked(state)
        if ranked is None:
            raise UnsupportedError(
                "with several objectives no single arm is the best: front() has the arms that no other dominates."
            )
        count = min(most, ranked.shape[-1])
        valid, top = ranked[..., :count] >= 0, ranked[..., :count].clamp_min(0)
        at = top.unsqueeze(-2).expand(*mean.shape[:-1], count)
        shown, fixed = state.in_reward_units(mean.gather(-1, at), std.gather(-1, at).square()), known_at(state, top)
        points, means = self.loop.points(at)[..., 0, :, :], beside(shown.mean, fixed)
        variances = beside(shown.variance, None if fixed is None else torch.zeros_like(fixed))
        return with_blanks(Recommendation(points, top, means.mT, variances.mT, self.policy.all_names), valid, most)

    @one_at_a_time
    def best_arm(self) -> Tensor:
        """The recommended arm, `...`: the index of `best()`, with its errors."""
        return self.best().index.squeeze(-1)

    @without_gradients
    @one_at_a_time
    def should_stop(self, *rules: Rule) -> Decision:
        """Apply stopping rules; see `Bandit.should_stop`. A decision has a row per outcome, and is true if all of them stop.

        The recommended arm, which `SameArm` follows, is that of `best()`. With several objectives, it is the arm of the best
        posterior mean of each outcome.
        """
        checked = check_rules(rules)
        loop = self.loop
        loop.recover_()
        with loop.few_threads():
            ranked = self._ranked(table_of(loop, "should_stop()"))
            if ranked is not None:
                loop = Advised(loop, ranked[..., :1].expand(loop.batch_shape))
            return decide(checked, loop)

    @one_at_a_time
    def front(
        self,
        *,
        minimize: Sequence[str] | None = None,
        pulled: bool = False,
        reference: Mapping[str, float] | None = None,
        draws: int = 1_000,
        seed: int = 0,
    ) -> Front:
        """The Pareto front of the posterior means over all arms, and the probability that each member is Pareto optimal.

        The probability is computed under the model, by joint draws of all outcomes at the members and at the five hundred other
        arms that most likely belong to the front: it is the fraction of draws in which no arm dominates the member.

        Args:
            minimize: Names of the outcomes to minimise; those of the policy by default.
            pulled: Whether only arms that were pulled may be members; they are compared with all arms.
            reference: A value per objective, the reference point of the hypervolume, which is NaN without one.
            draws: Number of draws; the standard error of a probability is at most 1/(2 √draws).
            seed: Seed of the draws.

        Raises:
            ArgumentError: If an argument is not as above.
            StateError: If nothing was measured yet, since all means are then those of the prior.

        Cost: O(A k) per member, O(k r³ + k r² draws) for r members and rivals.
        """
        self.loop.recover_()
        check_flag("pulled", pulled)
        check_draws(draws, seed)
        signs = self._signs(minimize)
        point = None if reference is None else self._of_all("reference", reference, signs)
        check_told(self.pulls, self.loop.num_failed, "there is no front")
        with self.loop.few_threads():
            return front(self.loop, signs, pulled=pulled, reference=point, draws=draws, seed=seed)

    @one_at_a_time
    def leaders(self, count: int, *, draws: int = 64, seed: int = 0) -> Tensor:
        """The arms that the policy ranks highest, best first: candidates for an acquisition function that is slow to evaluate.

        For a policy that draws trade-offs, they are the best arm by its bounds for each of `draws` trade-offs, then the second
        best arm for each, and so on. `botorch.optimize_arms(acquisition, arms[bandit.leaders(1000)])` then evaluates the
        acquisition function at a thousand of millions of arms.

        Args:
            count: Number of arms.
            draws: Number of random trade-offs, where the policy draws them.
            seed: Seed of the trade-offs.

        Returns:
            Indices `... x count`, −1 in places of a batch row that has fewer arms. Exact duplicates count once. Pending picks
            are not conditioned on.

        Raises:
            ArgumentError: If an argument is not as above.

        Cost: O(A k) and a partial sort of the arms per draw.
        """
        check_whole("count", count)
        check_draws(draws, seed)
        self.loop.recover_()
        state = table_of(self.loop, "leaders()")
        with self.loop.few_threads():
            return self.policy.leaders(state, count, draws, seed)

    @one_at_a_time
    def pareto_set(self, epsilon: Mapping[str, float] | None = None, *, minimize: Sequence[str] | None = None) -> ParetoSet:
        """The arms that the bounds certify as Pareto optimal up to ε, the arms that they certify as not needed, and the
        undecided arms.

        Args:
            epsilon: By outcome, the difference that does not matter, reward units; by default that of an `epal` policy.
            minimize: Names of the outcomes to minimise; by default those of the policy.

        Raises:
            ArgumentError: If an argument is not as above.

        Guarantee: as in `ParetoSet`, while the widths of all outcomes are valid. Cost: O(A k) per member of the fronts of the
        lower and of the upper bounds.
        """
        self.loop.recover_()
        aim = self.policy.aim
        message = (
            "pareto_set() is for objectives without limits: use front(), which takes the limits of this policy into account."
        )
        require(not (isinstance(aim, Scalarized) and aim.limits), message, UnsupportedError)
        message = "pareto_set() considers all arms, and under this policy only those of the target fidelity count: use front()."
        require(not isinstance(aim, Fidelity), message, UnsupportedError)
        require(
            epsilon is not None or isinstance(aim, Certifying),
            "pass epsilon=, a number by outcome: only epal policies have one.",
        )
        signs = self._signs(minimize)
        if epsilon is None:
            assert isinstance(aim, Certifying)
            eps = aim.epsilon
        else:
            eps = self._of_all("epsilon", epsilon, signs)
            require(all(value >= 0 for value in eps), f"epsilon must be ≥ 0 for every outcome, got {dict(epsilon)}.")
        with self.loop.few_threads():
            return pareto_set(self.loop, signs, eps)

    @one_at_a_time
    def explain(  # type: ignore[override]
        self, *, names: Sequence[str] | None = None, row: tuple[int, ...] | int = ()
    ) -> OutcomeExplanation:
        """Explain the posteriors' view of the features and the noise, outcome by outcome. `print` shows the result as one line
        of text per outcome, and its method `figure()` plots the features.

        Args:
            names: Names of the features; "feature 0" and so on by default.
            row: Index of the batch row of picks to explain.

        Raises:
            ArgumentError: If an argument is not as above.
            UnsupportedError: For arms that are read piece by piece.
            StateError: If no rewards have been observed.

        Cost: O(A k).
        """
        check_told(self.loop.pulls, self.loop.num_failed)
        self.loop.recover_()
        state = table_of(self.loop, "explain()")
        with self.loop.few_threads():
            found = explain_outcomes(self.policy, state, names, row)
            failed, avoided = self.loop.failed(row)
            return replace(found, failed=failed, avoided=avoided)

    def model(self) -> Any:
        """The posteriors as one BoTorch model, a `ModelList` of a `BanditModel` per told outcome, tabulated on the arms.

        It is an input of BoTorch's acquisition functions for several outcomes, which `botorch.optimize_arms` maximises over the
        arms. The model does not contain pending picks: pass their points as `X_pending`. An outcome with `tb.auto()` as its
        model is in the units of that model, scores that rise with the rewards, and not in those of the rewards, which
        `posterior` has: take reference points, limits and incumbents from the posterior means of the BoTorch model.

        Raises:
            UnsupportedError: For several batch rows of picks, and for arms that are read from a source.
        """
        from torchbandits.botorch.outcomes import models_of_outcomes  # noqa: PLC0415 - BoTorch takes a second to load

        state = table_of(self.loop, "model()")
        return models_of_outcomes(self.policy, state)

    # ------------------------------------------------------------------ internals

    def _shown(self) -> Shown:
        opened = 0 if self.loop.open is None else int(self.loop.open.mask[..., 0, :].sum())
        pulls = ", ".join(f"{name} {numbers(self.pulls[..., j])}" for j, name in enumerate(self.outcomes))
        values = [("policy", repr(self.policy)), ("rewards told", pulls)]
        return of_run("OutcomeBandit", self._shape, self.arms.shape, values, opened, self.journal)

    def _ranked(self, state: TableState) -> Tensor | None:
        """The pulled arms in the order in which they are recommended, `... x A`, −1 in the places after them; None with several
        objectives."""
        mean, std = all_outcomes(state, *(part.double() for part in marginals(state)))
        value = self.policy.aim.recommended(mean, std, self.width, state.table)
        if value is None:
            return None
        pulled = (self.counts > 0).any(dim=-2)
        if (entries := state.rows.offered(None)) is not None:
            pulled = pulled & entries.expand(state.rows.row_of_arm.shape)[..., 0, :]
        order = value.masked_fill(~pulled, -torch.inf).sort(dim=-1, descending=True, stable=True).indices
        return torch.where(pulled.gather(-1, order), order, -1)

    @property
    def _shape(self) -> torch.Size:
        """Batch shape of the picks."""
        return self.loop.batch_shape[:-1]

    def _of_now(self, selection: Any) -> Any:
        arms = self.loop.arms
        shared = arms[..., 0, :, :] if isinstance(arms, Tensor) and arms.dim() > 2 else arms
        return renumbered(selection, shared, self._shape) if self.loop.moved else selection

    def _rows(
        self, policy: Policy, domain: Tensor | ArmSource, generator: Any
    ) -> tuple[Tensor | ArmSource, Sequence[torch.Generator], torch.Size]:
        generators, shape = check_generators(generator, domain, None)
        k = len(policy.outcomes)
        if len(domain.shape) > 2:
            require(isinstance(domain, Tensor), "arms of a source are shared by all batch rows.", UnsupportedError)
            assert isinstance(domain, Tensor)
            domain = domain.unsqueeze(-3).expand(*shape, k, *domain.shape[-2:])
        of_outcomes: list[torch.Generator] = []
        for first in generators:
            seeds = torch.randint(2**62, (k - 1,), generator=first).tolist()
            of_outcomes += [first, *(torch.Generator().manual_seed(seed) for seed in seeds)]
        return domain, of_outcomes, torch.Size([*shape, k])

    @staticmethod
    def _shared(selection: Selection) -> Selection:
        """A selection without the outcome dimension."""
        first = (selection.points[..., 0, :, :], selection.index[..., 0, :], selection.mask[..., 0, :])
        # The open picks of the outcomes differ only if some outcomes forgot picks, which no method of this class does.
        return Selection(*(part.clone() for part in first))

    def _spread(self, index: Tensor, mask: Tensor) -> Tensor:
        """Indices of picks for every outcome, `... x k x q`, −1 where masked."""
        shared = torch.where(mask, index, -1).unsqueeze(-2)
        return shared.expand(*self.loop.batch_shape, index.shape[-1]).contiguous()

    def _of_all(self, what: str, given: Any, signs: Sequence[float]) -> tuple[float, ...]:
        """A finite number for every objective, in the order of the outcomes; 0 for an outcome that only has limits."""
        names = self.policy.all_names
        needed = [name for name, sign in zip(names, signs, strict=True) if sign]
        return numbers_of(what, given, names, needed)

    def _signs(self, minimize: Sequence[str] | None) -> tuple[float, ...]:
        aim = self.policy.wanted
        of_aim = aim.signs if isinstance(aim, Scalarized | Certifying) else None
        if minimize is not None:
            named = isinstance(minimize, Sequence) and not isinstance(minimize, str)
            require(named, "minimize must be a list of names of outcomes.")
            check_named("minimize", minimize, self.policy.all_names)
            signs = tuple(-1.0 if name in minimize else 1.0 for name in self.policy.all_names)
            return signs if of_aim is None else tuple(sign * abs(one) for sign, one in zip(signs, of_aim, strict=True))
        if of_aim is not None:
            return of_aim
        raise ArgumentError("pass minimize=, the names of the outcomes to minimise ([] for none).")


def _stacked(names: tuple[str, ...], known: Any) -> Tensor | None:
    """Values of known outcomes by name as one tensor, `... x j x A`."""
    if known is None:
        return None
    require(isinstance(known, Mapping), f"known must be numbers by outcome, one per arm, got {type(known).__name__}.")
    message = "known= has values of outcomes that the policy does not name: outcomes.pareto(models, known=[…])."
    require(bool(names), message)
    check_named("known", known, names, "known outcomes of the policy")
    lacking = [name for name in names if name not in known]
    require(not lacking, f"known lacks the values of {', '.join(map(repr, lacking))}.")
    each = [as_tensor(f"known[{name!r}]", known[name], torch.float64) for name in names]
    shape = max((values.shape for values in each), key=len)
    shapes = ", ".join(str(tuple(values.shape)) for values in each)
    message = f"known must have one number per arm for each outcome, got {shapes}."
    require(len(shape) > 0 and all(values.shape in (shape, shape[-1:]) for values in each), message, ShapeError)
    return torch.stack([values.expand(shape) for values in each], dim=-2)


def rewards_by_outcome(what: str, names: tuple[str, ...], rewards: Any, index: Tensor, mask: Tensor, failures: str) -> Tensor:
    """Rewards of picks `... x q`, given as `... x q x k` or by name, as `... x k x q`, NaN where not measured.

    Raises:
        ShapeError, ArgumentError: For other shapes and names.
        NonFiniteError: If an unmasked pick has no measured outcome, unless it is to be forgotten.
    """
    check_choice("failures", failures, ("error", "forget"))
    wanted = (*index.shape, len(names))
    if isinstance(rewards, Mapping):
        check_named(what, rewards, names)
        values = torch.full(wanted, torch.nan, dtype=torch.float64, device=index.device)
        for place, name in enumerate(names):
            if name in rewards:
                column = as_tensor(f"{what}[{name!r}]", rewards[name], torch.float64, index.device)
                message = f"{what}[{name!r}] must be {tuple(index.shape)}, one per pick, got {tuple(column.shape)}."
                require(column.shape == index.shape, message, ShapeError)
                values[..., place] = column
    else:
        values = as_tensor(what, rewards, torch.float64, index.device)
        message = f"{what} must be {wanted}, the last dimension being {', '.join(names)}, got {tuple(values.shape)}."
        require(values.shape == wanted, message, ShapeError)
    empty = values.isnan().all(dim=-1) & mask.to(values.device)
    if failures == "error" and bool(empty.any()):
        raise NonFiniteError(
            f"{what}: at least one pick has no measured outcome: give one for each pick, or pass "
            "failures='forget' to give up such picks."
        )
    return values.movedim(-1, -2).contiguous()
