"""A campaign of several outcomes: the measurements of a row have several columns, and rows are chosen by all of them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits import outcomes
from torchbandits.aims import Constrained, Limit, Scalarized, log_probability
from torchbandits.bandit import Bandit
from torchbandits.calls import one_at_a_time
from torchbandits.campaigns.campaign import Campaign
from torchbandits.campaigns.candidates import DEVIATION, EXPECTED, KEEPS, MEASURED, OPTIMAL, RANK, TIMES, Candidates
from torchbandits.campaigns.copies import Known, equals, first_equal
from torchbandits.campaigns.corrections import Corrected, Wanted, check_result
from torchbandits.campaigns.given import aims_of, by_outcome, given_settings
from torchbandits.campaigns.history import known_values
from torchbandits.campaigns.known_noise import known_noise
from torchbandits.campaigns.notes import Told
from torchbandits.campaigns.opening import keeping
from torchbandits.campaigns.results import Results, differing_known, misnamed
from torchbandits.campaigns.settings import Settings, told_columns
from torchbandits.campaigns.stops import need_noise, of_measurements
from torchbandits.checks import (
    as_device,
    as_path,
    check_flag,
    check_named,
    check_text,
    check_whole,
    explains_keywords,
)
from torchbandits.constraints import Constraint, Total
from torchbandits.display import and_more, count, listed
from torchbandits.errors import ArgumentError, StateError, UnsupportedError, require
from torchbandits.explanation import OutcomeExplanation, Words
from torchbandits.journal import Journal
from torchbandits.outcome_bandit import OutcomeBandit
from torchbandits.policies import Policy, auto, per_cost
from torchbandits.policies.from_data import REPEATS
from torchbandits.policies.joint import Joint, all_outcomes
from torchbandits.policies.picking import marginals
from torchbandits.sets import table_of
from torchbandits.sources import ArmSource
from torchbandits.stopping import Decision, Rule
from torchbandits.tabular.encoding import feature_names

if TYPE_CHECKING:
    import pandas as pd

    from torchbandits.campaigns import outcome_page
else:
    from torchbandits.campaigns.extras import outcome_page

_UNLIMITED = 1e15
"""A sum of places among equal rows that no batch reaches."""
_FEW = 5
"""Number of measured rows of an outcome below which nothing is said about its noise."""


class OutcomeCampaign(Campaign):
    """A `Campaign` with several outcomes per row: objectives, between which it finds trade-offs, and outcomes with limits.

    With one objective it finds the best row that keeps the limits; with several objectives, the rows that no other row beats in
    all objectives. Results are tables with a column per outcome. An empty cell is an outcome that was not measured, which may
    be told later; a row whose cells are all empty is a failed evaluation. Everything else is as for `Campaign`: ids, columns,
    the journal, history in the table, and `ask`.

    Args:
        table: As for `Campaign`.
        objectives: The columns that should be large, or small (`minimize`). A column that has a value in every row of the table
            is known: it is neither measured nor learned, whether it is an objective or has a limit.
        journal: As for `Campaign`.
        minimize: The objectives to minimise.
        at_least: Lower limits by column, in units of the column; for objectives or for other columns.
        at_most: Upper limits.
        id: As for `Campaign`.
        policy: A policy of `tb.outcomes`, whose outcomes are `outcomes` in their order; by default `constrained` (one
            objective) or `pareto` (several) with the model `tb.auto()` for each outcome, which is estimated from its results.
        noise_std: Standard deviation of the noise of a measurement by outcome, in its units, where it is known. The models are
            then GP-UCB with this noise and kernels that are fitted repeatedly to the results.
        columns: As for `Campaign`; `"measured"` for an objective or a column with a limit that has a value in every row, if
            these values are measurements.
        candidates: As for `Campaign`.
        cost: The column of the cost of an evaluation, > 0, for any number of measured outcomes: rows are chosen by their
            expected gain, divided by the root of the cost. A given `policy` takes costs into account if it is `tb.per_cost(…)`.
        dtype: As for `Campaign`.
        device: As for `Campaign`.
        generator: As for `Bandit`.

    Raises:
        ArgumentError, DataError, StateError: As for `Campaign`.
    """

    _known: Known | None = None

    @explains_keywords
    def __init__(
        self,
        table: Any = None,
        objectives: Sequence[str] | None = None,
        journal: Journal | str | os.PathLike[str] | None = None,
        *,
        minimize: Sequence[str] | None = None,
        at_least: Mapping[str, float] | None = None,
        at_most: Mapping[str, float] | None = None,
        id: str | None = None,
        policy: Joint | None = None,
        noise_std: Mapping[str, float] | None = None,
        columns: Mapping[str, Any] | None = None,
        candidates: str | None = None,
        cost: str | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
    ) -> None:
        good = policy is None or isinstance(policy, Joint)
        require(good, f"policy must be one of torchbandits.outcomes, got {type(policy).__name__}.")
        require(
            policy is None or noise_std is None,
            "noise_std is an option of the default policy: give it to the models that you pass.",
        )
        aims = aims_of(objectives, minimize, at_least, at_most)
        noise = None if noise_std is None else by_outcome("noise_std", noise_std, told_columns(aims))
        wanted = given_settings(aims, id, cost, dtype, noise, columns)
        self._begin(table, wanted, candidates, journal, policy, as_device(device), generator)

    def _check_kind(self, settings: Settings) -> None:
        message = "this campaign has one objective and no limits: open it by tb.Campaign(journal=...)."
        require(bool(settings.objectives), message, StateError)

    def _default_policy(self, priced: bool) -> Policy:
        """Trade-offs between several objectives, or the best of one under limits, each with models as in `Campaign`."""
        settings, noise = self._settings, self._settings.noise_std
        models: dict[str, Policy] = {name: auto() for name in settings.outcomes}
        if isinstance(noise, dict):
            lacking = [name for name in settings.outcomes if name not in noise]
            require(not lacking, f"noise_std has no number for {', '.join(lacking)}.")
            models = {name: known_noise(noise[name], settings.decisions) for name in settings.outcomes}
        limits: dict[str, Any] = {"at_least": settings.at_least or None, "at_most": settings.at_most or None}
        limits["known"] = settings.known
        if len(settings.objectives) > 1:
            default = outcomes.pareto(models, objectives=list(settings.objectives), minimize=settings.small, **limits)
        else:
            ((name, aim),) = settings.objectives.items()
            default = outcomes.constrained(models, **limits | {aim: name})
        return per_cost(default) if priced else default

    def _new_bandit(
        self, policy: Policy, arms: Tensor | ArmSource, generator: torch.Generator | None, priced: Tensor | None
    ) -> Bandit:
        assert isinstance(policy, Joint)
        settings = self._settings
        for what, its, own in (
            ("outcomes", policy.outcomes, settings.outcomes),
            ("known outcomes (known=)", policy.known, settings.known),
        ):
            given, wanted = (", ".join(names) or "none" for names in (its, own))
            message = f"policy: its {what} are {given}, and those of the campaign are {wanted}: make it for these."
            require(its == own, message)
        known = self._known_values(self._pool, arms)
        return OutcomeBandit(policy, arms, generator=generator, costs=priced, journal=self._journal, known=known)

    def _set_arms(self, arms: Tensor, priced: Tensor | None, pool: Candidates) -> None:
        assert isinstance(self._bandit, OutcomeBandit)
        self._bandit.set_arms_(arms, costs=priced, known=self._known_values(pool, arms))

    def _known_values(self, pool: Candidates, arms: Tensor | ArmSource) -> dict[str, NDArray[np.float64]] | None:
        """The known values of rows, for equal rows those of the best of them; None if no outcome is known."""
        if not self._settings.known:
            return None
        known = known_values(pool.table, self._settings.known)
        found = equals(first_equal(arms), known, self._settings.directions, pool, keeping(self._settings, pool.table))
        return known if found is None else {name: own[found.best()] for name, own in known.items()}

    def _on_offer(self, where: Any = None) -> Tensor | None:
        offer, known = super()._on_offer(where), self._by_known()
        return offer if known is None else known.offered(offer)

    def _by_known(self) -> Known | None:
        """What known outcomes say of the rows, computed anew where rows were added; None if no outcome is known."""
        settings, pool = self._settings, self._pool
        if settings.known and (self._known is None or len(self._known.kept) != pool.count):
            first = self._bandit.loop.state.rows.first
            known, kept = known_values(pool.table, settings.known), keeping(settings, pool.table)
            same = equals(None if first is None else first.cpu().numpy(), known, settings.directions, pool, kept)
            self._known = Known(kept, same)
        return self._known

    def _broken(self) -> NDArray[np.bool_]:
        """Whether each row breaks a limit on a known outcome."""
        known = self._by_known()
        return np.zeros(self._pool.count, bool) if known is None else ~known.kept

    def _ask_within(self, wanted: int, constraints: tuple[Constraint, ...], left: Tensor | None, where: Any) -> None:
        try:
            super()._ask_within(wanted, constraints, left, where)
            return
        except ArgumentError:
            known = self._by_known()
            if left is None or known is None or known.same is None:
                raise
        # A constraint on a column in which equal rows differ, such as the supplier, may allow others than the best of them.
        every = super()._on_offer(where)
        same = known.same
        wider = torch.from_numpy(known.kept & np.isin(same.first, same.first[left.numpy()]))
        # The sum is not limited in fact: of equal rows that the constraints allow, the one of the smallest value is selected.
        best_first = Total(torch.from_numpy(same.places()), at_most=_UNLIMITED)
        super()._ask_within(wanted, (*constraints, best_first), wider if every is None else wider & every, where)

    def _note_on_lent(self, rows: NDArray[np.int64]) -> list[str]:
        known, on_offer = self._by_known(), self._on_offer()
        if known is None or known.same is None or on_offer is None:
            return []
        best, offered = known.same.best(), np.flatnonzero(on_offer.numpy())
        values = known_values(self._pool.table, self._settings.known)
        apart = np.any([numbers[offered] != numbers[best[offered]] for numbers in values.values()], axis=0)
        found = offered[apart & np.isin(best[offered], rows)]
        if not len(found):
            return []
        at, name = found[0], next(name for name, numbers in values.items() if numbers[found[0]] != numbers[best[found[0]]])
        row, lender = self._pool.ids.of(np.array([at, best[at]]))
        return [
            f"{row!r}{and_more(len(found), 'row')} still counts with the {name} of {lender!r}, {values[name][best[at]]:g} "
            f"in place of {values[name][at]:g}: to the model they are one candidate. If {lender!r} is not to be had any more, "
            "begin another campaign without it, and tell it the results so far."
        ]

    def _note_on_left_out(self) -> str:
        broken = int(self._broken().sum())
        if not broken:
            return ""
        named = ", ".join(repr(name) for name in self._settings.known if name in self._settings.limited)
        verb = "breaks" if broken == 1 else "break"
        return f" {count(broken, 'row')} of it {verb} a limit on {named}, whose values are known."

    def _fulfilling(self, rows: Tensor, told: list[int], where: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Rows, each replaced by the equal one that stands for it: one that was told, or else the best one on offer, of equally
        good ones the first; and the mask of rows for which one fulfils a condition."""
        held = None if where is None else self._pool.fulfil(where)
        found, kept = self._arms.as_told_among(rows, told, held)
        known, offer = self._by_known(), self._offer.mask
        if where is not None:
            return found, kept
        if known is not None and known.same is not None:
            best = known.same.best(known.offered(offer).numpy())[found]
        elif offer is not None:
            best = self._arms.first_offered(found, offer)
        else:
            return found, kept
        return np.where(np.isin(found, told) | (best < 0), found, best), kept

    # ------------------------------------------------------------------ tell

    def tell(
        self,
        measured: Any,
        *,
        again: bool | None = None,
        noise_var: str | Mapping[str, str] | None = None,
        block: str | None = None,
    ) -> Told:
        """Learn from results.

        Args:
            measured: As for `Campaign.tell`, with a column per outcome. An outcome that was not measured is an empty cell or a
                missing column. A row without any measured outcome is a failed evaluation. A limit of detection that leaves open
                whether a row keeps a limit (`at_least`, `at_most`) is left out.
            again: As for `Campaign.tell`, but for each cell, so that a file in which further cells were filled may be told
                again. A file that holds all values of an earlier call counts as the extended file of that call, even if its
                rows are open.
            noise_var: By outcome, the column of `measured` with the variance of the noise of each of its values, as for
                `Campaign.tell`; outcomes without such a column, and empty cells, have the noise of the policy.
            block: As for `Campaign.tell`; each outcome has shifts of its own.

        Returns:
            The numbers of values and of failed evaluations, which print as a sentence.

        Raises:
            UnsupportedError: For `noise_var` under models that do not weight rewards, such as `auto`.
            ArgumentError: As for `Campaign.tell`, or if the column of an outcome is missing and one that the candidates do not
                have has almost its name. Nothing was told then.
        """
        if noise_var is None:
            return self._tell(measured, again, {}, block)
        names = self._settings.outcomes
        example = f"{{{names[0]!r}: '{names[0]}_var'}} (--noise-var {names[0]}={names[0]}_var)"
        require(isinstance(noise_var, Mapping), f"noise_var names a column for each outcome, such as {example}.")
        assert not isinstance(noise_var, str)
        check_named("noise_var", noise_var, names)
        for name, column in noise_var.items():
            check_text(f"noise_var[{name!r}]", column)
        return self._tell(measured, again, noise_var, block)

    def _read(
        self, measured: Any, noise_var: Mapping[str, str], block: str | None
    ) -> tuple[Results, NDArray[np.int64], list[str]]:
        results, rows, said = super()._read(measured, noise_var, block)
        pool, outcomes, known = self._pool, self._settings.outcomes, self._settings.known
        if known:
            said += differing_known(results, pool.table.take(rows).to_pandas(), known)
        computed = [f"{name} {what}" for name in outcomes for what in (EXPECTED, DEVIATION, MEASURED)]
        expected = {pool.own(name) for name in (*computed, KEEPS, OPTIMAL, RANK, TIMES)}
        expected |= {pool.ids.name, *pool.table.schema.names, *noise_var.values(), *(() if block is None else (block,))}
        return results, rows, said + misnamed(results, outcomes, expected)

    def _usual_noise(self) -> NDArray[np.float64]:
        policy = self._bandit.policy
        assert isinstance(policy, Joint)
        # Refuses policies that do not weight rewards.
        super()._usual_noise()
        return np.square(policy.noise_stds)

    def _count_unasked(self, rows: NDArray[np.int64]) -> int:
        # What is measured later of a row that was asked for is not unasked.
        entries = self._arms.entries(rows.tolist())
        return int((~torch.isin(entries, self._arms.open_entries) & (self._arms.counts[entries] == 0)).sum())

    def _note_on_repetition(self) -> list[str]:
        # The explanation of several outcomes names no row.
        return []

    def correct(  # type: ignore[override]
        self, id: Any, values: Mapping[str, float | None], *, was: Mapping[str, float] | None = None
    ) -> Corrected:
        """Correct a result that was told, as if the right values had been told.

        Args:
            id: The id of the row.
            values: The right value by outcome; NaN for an outcome that was not measured, or None. Outcomes that are not named
                keep their values. If no value is left, the evaluation has failed (NaN), or the result is taken back (None).
            was: The wrong value of each of these outcomes, if the row has several results; NaN where it was not measured.

        Returns, Raises, Cost: As `Campaign.correct`.
        """
        return self._correct(id, self._by_place("values", values), None if was is None else self._by_place("was", was, values))

    def _by_place(self, argument: str, values: Any, named: Any = None) -> Wanted:
        """Values by the place of their outcome, NaN for other outcomes that are named."""
        names = self._settings.outcomes
        example = f"{{{names[0]!r}: 1.5}} ({names[0]}=1.5)"
        require(isinstance(values, Mapping) and bool(values), f"{argument} gives a value by outcome, such as {example}.")
        check_named(argument, values, names)
        for name, value in values.items():
            check_result(f"{argument}[{name!r}]", value)
        unnamed = [name for name in values if named is not None and name not in named]
        require(not unnamed, f"was names {', '.join(unnamed)}, and values does not.")
        return {names.index(name): values.get(name, math.nan) for name in named or values}

    # ------------------------------------------------------------------ results

    @one_at_a_time
    def best(self, k: int = 5, *, where: Any = None) -> pd.DataFrame:
        """The best measured rows, best first; at most k.

        For one objective these are the rows with the best posterior means that keep the limits; rows that keep them with a
        probability below 95 % follow, the most probable first. For several objectives they are the measured rows of the
        `front`, in decreasing order of the probability to belong to it. `doubt` says where their deviations may be too small.

        Args:
            k: Largest number of rows.
            where: A condition on the rows, as for `Campaign.best`.

        Returns:
            Rows of the table with their ids and, by outcome, `… expected` and `… deviation`, the posterior mean and standard
            deviation; `keeps limits`, the probability that all limits hold; `… measured`, the average of the values told; and
            `times`, the evaluations.

        Raises:
            ArgumentError: If no row of the table fulfils the condition, or it is none.
            StateError: If nothing was measured yet.
        """
        check_whole("k", k)
        self._check_measured("no best row")
        if len(self.objectives) > 1:
            front = self._front(measured=True, where=where)
            return front.sort_values(self._pool.own(OPTIMAL), ascending=False, kind="stable", ignore_index=True).head(k)
        told, broken = self._records.measured_rows(), self._broken()
        every = where is not None or bool(broken[told].any())
        index = self._bandit.best(max(1, len(told) if every else min(k, len(told)))).index.reshape(-1)
        rows, kept = self._fulfilling(index[index >= 0], told, where)
        rows = rows[kept]
        return self._with_results(rows[np.argsort(broken[rows], kind="stable")][:k])

    @one_at_a_time
    def front(self, *, measured: bool = False) -> pd.DataFrame:
        """The rows that no other row beats in all objectives by their posterior means, among those that keep the limits with a
        probability of at least 95 %. Rows that are neither candidates nor measured do not count. Rows are sorted by the
        posterior mean of the first objective, the best first.

        Args:
            measured: Whether to list only rows that were measured, and not those that are only expected to be as good.

        Returns:
            The columns of `best`, and `on the front`, the probability that no other row beats the row in all objectives. The
            table is empty if no row keeps the limits with a probability of at least 95 %.

        Raises:
            UnsupportedError: For one objective, which has a `best` row.
            StateError: If nothing was measured yet.
        """
        check_flag("measured", measured)
        return self._front(measured=measured, where=None)

    def _front(self, *, measured: bool, where: Any) -> pd.DataFrame:
        message = (
            "a campaign with one objective has no front: best() has the best rows that keep the limits "
            "(torchbandits campaign best)."
        )
        require(len(self.objectives) > 1, message, UnsupportedError)
        self._check_measured("no front")
        bandit = self._bandit
        assert isinstance(bandit, OutcomeBandit)
        first, small = next(iter(self.objectives)), self._settings.small
        told, left = self._records.measured_rows(), self._on_offer()
        if left is not None:
            left = left.clone()
            left[told] = True
        with self._arms.competing(left):
            found = bandit.front(minimize=small, pulled=measured)
        index = found.index[found.index >= 0]
        rows, kept = self._fulfilling(index, told, where)
        kept &= ~self._broken()[rows]
        frame = self._with_results(rows[kept])
        frame[self._pool.own(OPTIMAL)] = found.probability[found.index >= 0].cpu().numpy()[kept]
        if first in self._settings.known:
            order = known_values(self._pool.table, [first])[first][rows[kept]]
        else:
            order = frame[self._pool.own(f"{first} {EXPECTED}")].to_numpy(float)
        order = order if first in small else -order
        return frame.iloc[np.argsort(order, kind="stable")].reset_index(drop=True)

    @one_at_a_time
    def doubt(self) -> str:
        """A warning if the noise of an outcome has to be estimated, and too few measurements were repeated for that, and one if
        several rows are only known to be beyond a limit of detection; else an empty text.

        Without repeats a model takes noise for differences between rows, and the posterior deviations may be far too small. One
        selected row in eight is one of the best rows again for that reason. There is no warning for known noise (`noise_std`),
        for molecules, and for outcomes measured in fewer than five rows.

        Raises:
            StateError: If nothing was measured yet.
        """
        self._check_measured("nothing to doubt")
        limited = self._notes_on_limits()
        policy, state = self._bandit.policy, table_of(self._bandit.loop, "doubt()")
        rule = policy.engine.from_data if isinstance(policy, Joint) else None
        if rule is None or self.columns.molecules is not None:
            return " ".join(limited)
        known = rule.knows_noise(state).tolist()
        unsure = [name for j, name in enumerate(self.outcomes) if not known[j] and len(self._records.by_row(j)) >= _FEW]
        if not unsure:
            return " ".join(limited)
        said = (
            f"Do not rely on the deviations of {listed(unsure)} yet if measurements are noisy: until about {REPEATS} of them "
            "repeat an earlier one, noise is taken for differences between rows. Measure some of the best rows again."
        )
        return " ".join([said, *limited])

    @one_at_a_time
    def explain(self) -> OutcomeExplanation:  # type: ignore[override]
        """Explain what the models have learned about the columns and the noise, outcome by outcome. `print` shows the result as
        one line of text per outcome, and its method `figure()` plots the columns that matter.

        Returns:
            The explanation of `OutcomeBandit.explain`, in units of the outcomes. Its features have the names of the columns; a
            column of categories has one feature for each, called `solvent = DMF`.

        Raises:
            StateError: If nothing was measured yet.

        Cost: O(A k).
        """
        self._check_measured("nothing to explain")
        bandit = self._bandit
        assert isinstance(bandit, OutcomeBandit)
        words = Words("row", "column", "measurement", "measured", "measurement", "evaluation")
        return replace(bandit.explain(names=feature_names(list(self.columns))), words=words)

    @one_at_a_time
    def should_stop(self, *rules: Rule) -> Decision:
        """Whether to stop: a `Decision`, which is true if one of the rules stops the campaign; see
        `OutcomeBandit.should_stop`. A rule that counts measurements stops it once there are as many of each outcome."""
        try:
            return of_measurements(self._bandit.should_stop(*rules))
        except UnsupportedError as error:
            if not need_noise(rules):
                raise
            raise UnsupportedError(
                "ProbableRegret and ImprovementPerCost (--within, --price) are for campaigns of one objective without limits: "
                "stop by Budget (--measurements)."
            ) from error

    @one_at_a_time
    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write an HTML page of the campaign: the front, progress, open rows, and the decisions on the columns.

        Returns:
            The path of the file.

        Raises:
            StateError: If nothing was measured yet.
            DataError: If the file cannot be written.
        """
        self._check_measured("nothing to show")
        values, settings = self._records.values, self._settings
        one, names = len(settings.objectives) == 1, listed(list(settings.objectives))
        limits = [f"{name} ≥ {value:g}" for name, value in settings.at_least.items()]
        limits += [f"{name} ≤ {value:g}" for name, value in settings.at_most.items()]
        explained, own, rows = self.explain(), self._pool.own, np.array(self._records.rows, np.int64)
        front = self.best(10) if one else self.front()
        at, known = self._pool.rows(front[self._pool.ids.name]), known_values(self._pool.table, settings.known)
        expected = {
            name: (front[own(f"{name} {EXPECTED}")].to_numpy(float), front[own(f"{name} {DEVIATION}")].to_numpy(float))
            for name in settings.outcomes
        }
        failed, counts = int(np.isnan(values).all(axis=1).sum()), (~np.isnan(values)).sum(axis=0)
        measured = ", ".join(f"{number:,} of {name}" for number, name in zip(counts.tolist(), settings.outcomes, strict=True))
        whole = outcome_page.OutcomePage(
            title=f"Search for {'the best' if one else 'trade-offs between'} {names} in {self._pool.title}",
            facts=f"{self._pool.count:,} candidates; measurements: {measured}; {count(failed, 'failed evaluation')}; "
            f"{count(len(self._arms.open), 'pending row')}{self._excluded_rows()}"
            + (f"; limits: {', '.join(limits)}" if limits else "")
            + (f"; known for all rows: {', '.join(settings.known)}" if settings.known else ""),
            objectives=dict(settings.objectives),
            at_least=dict(settings.at_least),
            at_most=dict(settings.at_most),
            outcomes=settings.outcomes + settings.known,
            rows=rows,
            values=np.column_stack([values, *(given[rows] for given in known.values())]),
            front=front,
            expected=expected | {name: (given[at], np.zeros(len(at))) for name, given in known.items()},
            opened=self._with_posterior(self._arms.open),
            columns=self.columns.to_pandas().reset_index(),
            doubt=self.doubt(),
            explained=explained.lines(),
            relevance=explained.figure() if explained.tells_features else None,
        )
        written = as_path("path", path)
        outcome_page.write_outcomes(whole, written)
        return written

    @property
    def objectives(self) -> dict[str, str]:
        """Whether to `"maximize"` or to `"minimize"`, by the name of each objective."""
        return dict(self._settings.objectives)

    # ------------------------------------------------------------------ inside

    def _with_posterior(self, rows: NDArray[np.int64]) -> pd.DataFrame:
        """Rows of the table with their ids first, the posterior mean and deviation of each outcome, and the probability that
        all limits hold. Empty before the first result of an outcome."""
        frame, state = self._pool.cells(rows), table_of(self._bandit.loop, "a campaign")
        mean, std = (part.double() for part in marginals(state))
        k = mean.shape[-2]
        at = torch.from_numpy(rows).to(mean.device).expand(len(mean), -1)
        shown = state.in_reward_units(mean.gather(-1, at), std.gather(-1, at).square())
        known = (self._bandit.pulls > 0).unsqueeze(-1)
        means = torch.where(known, shown.mean, torch.nan).cpu().numpy()
        told = torch.where(known, shown.variance.clamp_min(0).sqrt(), torch.nan).cpu()
        deviations = told.masked_fill(self._arms.constant.unsqueeze(-1), torch.nan).numpy()
        for name, expected, deviation in zip(self._settings.outcomes, means, deviations, strict=True):
            frame[self._pool.own(f"{name} {EXPECTED}")] = expected
            frame[self._pool.own(f"{name} {DEVIATION}")] = deviation
        if limits := self._limits():
            chance = log_probability(*all_outcomes(state, mean, std), limits, state.table).exp().gather(-1, at[0])
            sure = bool(known[[limit.outcome for limit in limits if limit.outcome < k]].all())
            # An equal row with better known values may keep a limit that this row breaks.
            own = np.where(self._broken()[rows], 0.0, chance.cpu().numpy())
            frame[self._pool.own(KEEPS)] = own if sure else np.full(len(rows), np.nan)
        return frame

    def _limits(self) -> tuple[Limit, ...]:
        aim = self._bandit.policy.aim if isinstance(self._bandit, OutcomeBandit) else None
        return aim.limits if isinstance(aim, Constrained | Scalarized) else ()
