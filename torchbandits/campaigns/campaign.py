"""A campaign: a table of candidates, the results told so far, and the choice of the next rows to evaluate."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.calls import one_at_a_time
from torchbandits.campaigns import detection, notes
from torchbandits.campaigns.asking import ask_freely, ask_within, check_once, check_open
from torchbandits.campaigns.blocks import BlockLabels, blocked, check_takes_blocks, in_part, together
from torchbandits.campaigns.candidates import (
    BLOCK,
    CALL,
    DEVIATION,
    EXPECTED,
    MEASURED,
    RANK,
    TIMES,
    Candidates,
    errors_of_table,
    few,
)
from torchbandits.campaigns.conditions import labels_of, values_of
from torchbandits.campaigns.corrections import BEYOND, Corrected, Correction, Wanted, check_result
from torchbandits.campaigns.explained import explanation
from torchbandits.campaigns.extension import extension
from torchbandits.campaigns.given import given_settings
from torchbandits.campaigns.history import history_of
from torchbandits.campaigns.known_noise import FIRST, known_noise
from torchbandits.campaigns.notes import Told
from torchbandits.campaigns.offer import Offer, failing, unless_too_few, unseen
from torchbandits.campaigns.opening import begin
from torchbandits.campaigns.paths import CampaignPaths
from torchbandits.campaigns.predicted import predicted
from torchbandits.campaigns.records import Evaluations, Records
from torchbandits.campaigns.renewal import (
    beginning,
    check_rows,
    check_same_outcomes,
    earlier_rows_of,
    moved,
    options_of,
    rows_in,
    rows_of,
    told_in,
)
from torchbandits.campaigns.results import Results, check_known, check_same_rows, decimal_commas, read_results
from torchbandits.campaigns.rows_as_arms import RowsAsArms
from torchbandits.campaigns.settings import Settings
from torchbandits.campaigns.stops import in_rewards, need_noise, of_measurements, of_row
from torchbandits.checks import (
    as_device,
    as_path,
    check_flag,
    check_text,
    check_whole,
    explains_keywords,
    positive,
)
from torchbandits.constraints import Constraint, Distinct, check_within
from torchbandits.display import Readable, Shown, count, pairs
from torchbandits.errors import ArgumentError, StateError, UnsupportedError, issue, require
from torchbandits.explanation import Explanation
from torchbandits.journal import Journal, pack, restore, rewrite
from torchbandits.locks import let_go, remove
from torchbandits.policies import Policy, auto, per_cost
from torchbandits.policies.repeats import most_repeated
from torchbandits.policies.state import GaussianState
from torchbandits.sources import ArmSource, Fingerprints
from torchbandits.stopping import Budget, Decision, Rule, SameArm, check_rules
from torchbandits.tabular.decisions import Decisions
from torchbandits.tabular.encoding import Encoder, costs, encode, encode_in_memory
from torchbandits.tabular.extended import RENEW, joined
from torchbandits.tabular.kept import origin_of
from torchbandits.tabular.molecules import fingerprints, repeated
from torchbandits.tabular.tables import InMemory, Table, as_table

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow import parquet

    from torchbandits import files
    from torchbandits.campaigns import page
else:
    from torchbandits.campaigns.extras import files, page
    from torchbandits.tabular.extras import pandas as pd
    from torchbandits.tabular.extras import parquet

C = TypeVar("C", bound="Campaign")


class Campaign(Readable):
    """Choose the next rows of a table to evaluate, and learn from their results.

    Columns are encoded as features by rules that `columns` shows: numbers as they are or, where they spread over decades and
    are no bulk parts of a mixture, by their logarithm (with zeros, that of 1 + x / u for the smallest positive number u);
    booleans; dates as days; columns with few different texts as categories, one feature per category. Numbers are standardised
    to mean 0 and standard deviation 1. An empty number is replaced by the median, and the column has a further feature "is
    empty"; empty cells of a category form a separate category. A column of SMILES (extra `chem`) of more than 100 and at most
    1,000 different molecules becomes a substance, points whose distances come from the similarity of their Morgan fingerprints,
    and so does one of fewer molecules that `columns` declares. If it is the only feature, or declared as `"molecule"`, its
    fingerprints are compared as a whole. Other text is refused. The decisions are saved beside the journal and hold for the
    whole campaign.

    If the table has the column of the objective, its filled cells are told at the beginning, as history, limits of detection
    included (see `tell`).

    Args:
        table: The candidates, one per row: a table of pandas, Polars or Arrow, or the path of a CSV, Excel, Parquet or
            Arrow file. A Parquet file is read in pieces and never held in memory as a whole; features of more than 256 MiB, or
            of more than 10,000 molecules, are written to `JOURNAL.features.npy`, with `….origin.json` beside it. None for the
            file with which the campaign of the journal began. Rows that were added by `extend` are not part of it: they are
            kept in `JOURNAL.added.parquet`.
        objective: The column of the results. It need not be in `table`; but if a column with empty cells has a similar name,
            `columns` must give the kind of that column.
        journal: A path, or a `Journal`. Every ask and tell is on the disk before it takes effect, and an existing file resumes
            its campaign. `JOURNAL.campaign.json` beside it holds the settings. None to write no files.
        id: The column of the ids; by default the index of a pandas table, else a column called id, else a column `row` of row
            numbers from 1.
        minimize: Whether to minimise the objective. All values shown have the user's units and sign.
        policy: The policy, as for `Bandit`; by default `tb.auto()`, or `tb.per_cost(tb.auto())` where there are costs.
        noise_std: Standard deviation of the noise of a measurement, in units of the objective, where it is known. The default
            policy is then GP-UCB with this noise and a kernel that is fitted repeatedly to the results. It supports results
            with individual noise variances (`tell(noise_var=)`) and more rules of `should_stop`.
        columns: Kinds of columns that replace those chosen by the rules: `"number"`, `"log"` (also with zeros), `"count"` (the
            logarithm of one more), `"boolean"`, `"date"`, `"category"`, `"substance"` (SMILES), `"molecule"` (SMILES; all other
            columns are then ignored), `"ignore"`, or the list of its categories in order, lowest first.
        candidates: The rows on offer: the name of a column of booleans, or a comparison of columns, such as
            `"temp < 80 and solvent != 'DMF'"`. A row with an empty cell in one of these columns does not fulfil it, not even
            beside `or` and `not`. Results of other rows may be told as well. If a resumed campaign is given another condition,
            it holds from then on; an empty text lifts it. `exclude` takes out single rows.
        cost: The column of the cost of an evaluation, > 0. It is no feature, unless `columns` gives its kind, such as `"log"`.
        dtype: Precision of the features: float64 by default, float32 from 10⁶ rows on.
        device: Where the rows are scored, such as `"cuda"`. A resumed campaign may be on another device, where it selects the
            same rows.
        generator: As for `Bandit`.

    Raises:
        ArgumentError: If ids are empty or repeated, or a column cannot be used: names row and column. Nothing is written then.
        DataError: If a file cannot be read or written, or a package of `torchbandits[experiments]` is missing.
        StateError: If the journal belongs to another campaign: other ids, objective or columns.

    Warns (`DiagnosticWarning`): If a new campaign of molecules has the same one in several rows, in whatever spelling.

    Cost: two passes over the table, one if the campaign is resumed; then as `Bandit`.
    """

    @explains_keywords
    def __init__(
        self,
        table: Any = None,
        objective: str | None = None,
        journal: Journal | str | os.PathLike[str] | None = None,
        *,
        id: str | None = None,
        minimize: bool | None = None,
        policy: Policy | None = None,
        noise_std: float | None = None,
        columns: Mapping[str, Any] | None = None,
        candidates: str | None = None,
        cost: str | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
    ) -> None:
        check_text("objective", objective, optional=True)
        check_flag("minimize", minimize, optional=True)
        require(
            policy is None or isinstance(policy, Policy), f"policy must be a torchbandits policy, got {type(policy).__name__}."
        )
        require(
            policy is None or noise_std is None,
            "noise_std is an option of the default policy: give it to the policy that you pass.",
        )
        noise = None if noise_std is None else float(positive("noise_std", noise_std))
        wanted = given_settings({"objective": objective, "minimize": minimize}, id, cost, dtype, noise, columns)
        self._begin(table, wanted, candidates, journal, policy, as_device(device), generator)

    def _begin(
        self,
        table: Any,
        wanted: dict[str, Any],
        candidates: str | None,
        journal: Journal | str | os.PathLike[str] | None,
        policy: Policy | None,
        device: torch.device,
        generator: torch.Generator | None,
    ) -> None:
        """Open the table and the journal, make the bandit, and tell it the history that the table holds."""
        check_text("candidates", candidates, optional=True)
        # A checkpoint at every tell, since most campaigns go on in a new process each time.
        if journal is not None and not isinstance(journal, Journal):
            journal = Journal(as_path("journal", journal), every=1)
        self._journal, self._closed, self._given = journal, False, policy
        self._paths = paths = None if journal is None else CampaignPaths(journal.path)
        begun = begin(table, wanted, candidates, paths)
        self._check_kind(begun.settings)
        self._settings = begun.settings
        self._pool = self._candidates(begun.table)
        self._block_labels = BlockLabels(None if paths is None else paths.blocks)
        # A campaign that began with a condition goes on with it.
        strict = begun.new or begun.changed
        self._offer = Offer(begun.settings.candidates, strict, None if paths is None else paths.excluded)
        if begun.new:
            # A wrong condition is found before anything is written.
            self._offer.begin(begun.table)
        self._bandit = self._open_bandit(policy, device, generator, new=begun.new)
        try:
            if not begun.new:
                self._rejoin()
                self._offer.resume(self._pool.table)
                self._give_up_excluded()
            self._read_records()
            if paths is not None and begun.changed:
                files.write_text(paths.settings, begun.settings.text())
            self._tell_history(self._pool.table, np.arange(self._pool.count))
            found, column = self._bandit.loop.state.rows.source, begun.settings.decisions.molecules
            if begun.new and column is not None and isinstance(found, Fingerprints):
                issue(repeated(self._pool.table, column, found))
        except BaseException:
            if self._journal is not None:
                self._journal.close()
            raise

    def _check_kind(self, settings: Settings) -> None:
        """Refuse to resume a campaign of the other class."""
        message = "this campaign has several outcomes: open it by tb.OutcomeCampaign(journal=...)."
        require(not settings.objectives, message, StateError)

    def _candidates(self, table: Table) -> Candidates:
        return Candidates(table, self._settings.id, self._settings.outcomes)

    def _rejoin(self) -> None:
        """Take the rows that were added before a resumed campaign was closed."""
        if (rows := self._bandit.loop.num_arms) > self._pool.count:
            assert self._paths is not None
            path = self._paths.added
            message = f"{path}, with rows that were added to the campaign, is missing or incomplete: restore it from a copy."
            require(path.exists(), message, StateError)
            kept = joined(self._pool.table, as_table("table", path), self._settings.outcomes)
            require(kept.count >= rows, message, StateError)
            # It has rows in excess if a call of `extend` was interrupted.
            self._pool = self._candidates(kept.first(rows))

    def _give_up_excluded(self) -> None:
        """Give up open rows that are excluded: an earlier process may have ended before it did so."""
        opened = self._arms.open
        self._arms.give_up(opened[np.isin(opened, self._offer.excluded)])

    def _read_records(self) -> None:
        """Read the records of the journal."""
        self._records = Records.of(self._journal, self._settings.names, self._settings.sign)

    @contextmanager
    def _reread_after_errors(self) -> Iterator[None]:
        """Read the records again if results were not told to the end: an interrupt may come after they are in the journal,
        while a checkpoint is written."""
        try:
            yield
        except BaseException:
            if self._journal is not None:
                self._read_records()
            raise

    def _tell_history(self, table: Table, rows: NDArray[np.int64]) -> None:
        """Tell the bandit the results of a table that are not in the records.

        Args:
            rows: The row of the campaign for each row of the table.
        """
        told = history_of(table, self._settings.outcomes, rows)
        new, said = self._informative(told, self._records.new(told))
        some = np.any(new, axis=1)
        if said and not self._records.rows:
            issue(said)
        if some.any():
            counted, ids = told.masked(new), self._pool.ids.of(told.rows)
            issue(notes.changed(self._records, told, new, ids))
            for j, name in enumerate(self._settings.names):
                issue(notes.far_off(self._records.measured(j), counted.values[:, j], ids, name))
            self._learn(counted[some])

    def _default_policy(self, priced: bool) -> Policy:
        """The default policy."""
        noise_std = self._settings.noise_std
        assert not isinstance(noise_std, dict)
        default = auto() if noise_std is None else known_noise(noise_std, self._settings.decisions)
        return per_cost(default) if priced else default

    def _open_bandit(
        self, policy: Policy | None, device: torch.device, generator: torch.Generator | None, *, new: bool
    ) -> Bandit:
        """Make the bandit. The settings of a new campaign and the features are written before its journal, so that a journal
        never lacks them, and removed after an error."""
        settings, cost = self._settings, self._settings.cost
        priced = None if cost is None else costs(self._pool.table, cost).to(device)
        if policy is None:
            policy = self._default_policy(priced is not None)
        try:
            arms = self._encoded(device)
            if new and self._paths is not None:
                files.write_text(self._paths.settings, settings.text())
            with errors_of_table(self._pool, arms, priced, cost, settings.known):
                made = self._new_bandit(policy, arms, generator, priced)
        except BaseException:
            if new and self._paths is not None:
                for path in (self._paths.settings, origin_of(self._paths.features)):
                    path.unlink(missing_ok=True)
                # If they stay, they are computed again, because their origin is gone.
                remove(self._paths.features)
            raise
        if isinstance(state := made.loop.state, GaussianState):
            # The bandit does not warn of repeats, since `tell` names the row's id instead.
            state.repeats_said = True
        return made

    def _encoded(self, device: torch.device) -> Tensor | ArmSource:
        """The features of all rows, in memory or in a file."""
        table, decisions, dtype = self._pool.table, self._settings.decisions, getattr(torch, self._settings.dtype)
        if decisions.molecules is None:
            return encode(table, Encoder(decisions), dtype, self._features_file, device)
        return fingerprints(table, decisions[decisions.molecules], dtype, self._features_file, device)

    def _features_file(self) -> Path:
        """Path of the features: beside the journal, or in a temporary folder that is removed with this object."""
        if self._paths is not None:
            return self._paths.features
        folder = tempfile.mkdtemp(prefix="torchbandits-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder) / "features.npy"

    @property
    def _arms(self) -> RowsAsArms:
        """The rows of the table as arms of the bandit, which is another object after a correction."""
        return RowsAsArms(self._bandit)

    def _new_bandit(
        self, policy: Policy, arms: Tensor | ArmSource, generator: torch.Generator | None, priced: Tensor | None
    ) -> Bandit:
        return Bandit(policy, arms, generator=generator, costs=priced, journal=self._journal)

    def _set_arms(self, arms: Tensor, priced: Tensor | None, pool: Candidates) -> None:
        """Replace the arms of the bandit by those of other candidates."""
        self._bandit.set_arms_(arms, costs=priced)

    # ------------------------------------------------------------------ ask and tell

    @explains_keywords
    @one_at_a_time
    def ask(
        self,
        n: int = 1,
        *,
        more: bool = False,
        where: Any = None,
        repeats: bool | None = None,
        within: Constraint | Sequence[Constraint] = (),
    ) -> pd.DataFrame:
        """Select the next rows to evaluate: first the open rows, which were asked for and neither told nor forgotten, then new
        rows.

        Another call returns the same rows until something is told, unless it asks for `more`. Of rows with equal features, such
        as a compound of several suppliers, the first one in the table that is on offer is selected; with constraints, the first
        one that they allow, and with `constraints.Total` the one of the smallest value.

        Args:
            n: Number of rows, open rows included. Of more than n open rows, the first n are returned.
            more: Whether `n` counts only new rows, which are added to the open ones. All open rows are returned, earlier ones
                first. Each call adds rows.
            where: A further condition on new rows, for example those that can be evaluated at present: a comparison; a
                dictionary of columns to a value or a list of possible values (None for an empty cell), such as the current
                context, `{"machine": "B"}`; or a series with a boolean for each row of the table. Open rows are returned
                whether they fulfil it or not: `ask(1, more=True, where=…)` selects a row for another context.
            repeats: Whether the policy may select a row again, except one that failed twice and was never measured (unless too
                few others are left); if False, only rows that are neither measured nor open, and whose evaluation was not told
                as failed, are selected. By default, without constraints and under a policy whose kernel is estimated, such as
                `auto`, a row is selected again while that teaches something: until it was measured three times, and the
                standard error of its average is at most a fifth of the standard deviation between the rows measured, both in
                units of the model, which under `auto` are those of ranks.
            within: Constraints on the rows returned, open rows included, which name columns of the table:
                `[constraints.Distinct(), constraints.Same("temperature"), constraints.AtMost("supplier", 4),
                constraints.Total("price", 4_000)]`. Empty cells count as equal values.

        Returns:
            Rows of the table with their ids; `expected` and `deviation`, the posterior mean and standard deviation of the
            objective (empty before the first result, and the deviation under `auto` until two results differ); and `rank`, the
            order in which to evaluate them. If a row is listed twice, evaluate it twice.

        Raises:
            ArgumentError: If fewer rows are on offer, or fewer different ones under a policy such as `auto`, which selects no
                row, and none of several with equal features, again before its result was told; if no batch was found that meets
                the constraints, or the open rows break one. Nothing has changed then.
        """
        self._check_not_closed()
        check_whole("n", n)
        check_flag("more", more)
        check_flag("repeats", repeats, optional=True)
        constraints = check_within(within, self._labels)
        every = (*constraints, Distinct()) if repeats is False else constraints
        arms, offer = self._arms, self._on_offer(where)
        opened = len(arms.open)
        n += opened if more else 0
        wanted, failed = n - opened, self._records.failed_rows()
        left = unseen(offer, arms, failed) if repeats is False else offer
        possible, said = self._count_possible(offer, left, where)
        require(wanted <= possible, f"n: {wanted:,} more rows are asked for, and {said}")
        once = self._bandit.policy.pulls_once or any(isinstance(c, Distinct) for c in every)
        closed = arms.open_entries if once else None
        if once and not constraints:
            check_once(arms, self._pool, wanted, left)
        left = unless_too_few(left, failing(arms, failed), wanted, arms, closed)
        if repeats is None and not constraints:
            known = self._bandit.policy.known_arms(self._bandit.loop.state)
            left = unless_too_few(left, None if known is None else known.cpu(), wanted, arms, closed)
        if constraints:
            check_open(arms, self._pool, constraints, n)
        if wanted > 0 and every:
            self._ask_within(wanted, every, left, where)
        elif wanted > 0:
            ask_freely(self._bandit, wanted, left, said)
        return self._plate(arms.open[:n])

    def _count_possible(self, offer: Tensor | None, left: Tensor | None, where: Any) -> tuple[int, str]:
        """The number of rows that can be selected, and a sentence that says so, with the ways to more.

        Args:
            offer: The mask of the rows on offer; None for all.
            left: The mask of those among them that may be selected.
            where: The condition of `ask`.
        """
        offered, possible = (self._pool.count if mask is None else int(mask.sum()) for mask in (offer, left))
        ways = [
            "ask for fewer",
            *["widen the condition"] * (where is not None or self._settings.candidates is not None),
            *["leave out repeats=False (--no-repeats)"] * (possible < offered),
            *["put excluded rows back by include() (torchbandits campaign include)"] * (len(self._offer.excluded) > 0),
        ]
        name, left_out = self._pool.table.name, self._note_on_left_out()
        return possible, f"{possible:,} of {name} can be selected: {', or '.join(ways)}.{left_out}"

    def _on_offer(self, where: Any = None) -> Tensor | None:
        """The mask of the rows that may be selected, under a further condition if one is given, None for all."""
        offer = self._offer.mask
        return offer if where is None else self._pool.fulfil(where) & (True if offer is None else offer)

    def _note_on_left_out(self) -> str:
        """A sentence on the rows that no option of `ask` makes available; empty if there are none."""
        return ""

    def _plate(self, rows: NDArray[np.int64]) -> pd.DataFrame:
        """Open rows as `ask` returns them."""
        plate = self._with_posterior(rows)
        plate[self._pool.own(RANK)] = np.arange(1, len(plate) + 1)
        return plate

    def _ask_within(self, wanted: int, constraints: tuple[Constraint, ...], left: Tensor | None, where: Any) -> None:
        """Ask for further rows of the mask `left` under constraints; `where` is the condition of `ask`, which they fulfil."""
        ask_within(self._bandit, wanted, constraints, left)

    def _labels(self, column: str, numbers: bool = False) -> Tensor:
        """The labels of all rows in a column, or its numbers, for constraints."""
        return self._arms.there((values_of if numbers else labels_of)("within", self._pool.table, column))

    @one_at_a_time
    def plan(self, ids: Collection[Any]) -> pd.DataFrame:
        """Open rows of one's own choice beside the open ones, such as experiments that were decided elsewhere.

        They are open rows like those of `ask`: further rows are selected with them in mind, and their results are told, or they
        are given up by `forget`. Rows that are no `candidates` may be planned too. Another call with the same ids changes
        nothing.

        Args:
            ids: The ids of the rows. A row that is open already is not opened again, unless its id is listed more often: one
                that is listed twice is to be evaluated twice.

        Returns:
            All open rows as `ask` returns them, earlier ones first.

        Raises:
            ArgumentError: If an id is unknown or excluded, or there is none. Nothing has changed then.
        """
        self._check_not_closed()
        texts = self._pool.texts(ids)
        require(bool(texts), "ids is empty: give the ids of the rows that will be evaluated.")
        unique = list(dict.fromkeys(texts))
        place = dict(zip(unique, self._pool.rows(unique).tolist(), strict=True))
        every = np.array(list(place.values()))
        out = every[np.isin(every, self._offer.excluded)]
        many = f"ids: {self._pool.named(out)} {'is' if len(out) == 1 else 'are'} excluded"
        require(not len(out), f"{many}: include() first (torchbandits campaign include).")
        rows = self._arms.beyond_open([place[text] for text in texts])
        if rows:
            self._bandit.plan(self._arms.there(torch.tensor(rows)))
        return self._plate(self._arms.open)

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
            measured: A table, or the path of a CSV, Excel, Parquet or Arrow file, with the columns of the ids and of the
                objective, in any order; further columns are compared with those of the candidates. Several rows with the same
                id are repeated evaluations. An empty objective is a failed evaluation. Several rows that are all empty are
                refused, as a plate that was not filled in. A text such as `"<0.5"`, `"≤0.5"` or `">100"` is a result beyond a
                limit of detection. It is taken as the limit, and left out where no other result is known to be on the other
                side of the limit.
            again: Whether to count rows that were told before with the same id and value. By default they count in a table and
                not in a file, so that a file may be told again, also after rows were added. All rows of a file count if all of
                them are open, unless one earlier call told exactly the same rows.
            noise_var: The column of `measured` with the variance of the noise of each value, in squared units of the objective,
                such as that of the instrument; an empty cell stands for the noise of the policy. See `Bandit.tell` for the
                policies that support it.
            block: The column of `measured` that says in which block each value was measured: the plate, the day, the machine,
                the lot of a reagent. The values of a block may all be shifted by an amount that is not known; it is estimated
                and subtracted, so that predictions are those of an average block. See `Bandit.tell`.

        Returns:
            The numbers of values and failures, which print as a sentence.

        Raises:
            UnsupportedError: For `noise_var` under a policy that does not weight rewards, such as `auto`, and for `block` under
                any other policy than `auto`.
            ArgumentError: If a column is missing, an id unknown, a value no number or limit, or all of several evaluations
                failed: names row and column. Nothing was told then.
        """
        one = noise_var is None or isinstance(noise_var, str)
        require(one, "noise_var must be the name of one column: columns by outcome are for an OutcomeCampaign.")
        return self._tell(measured, again, {self.objective: noise_var} if isinstance(noise_var, str) else {}, block)

    @one_at_a_time
    def _tell(self, measured: Any, again: bool | None, noise_var: Mapping[str, str], block: str | None) -> Told:
        """Learn from results, with the columns of their noise variances by outcome, and that of their blocks."""
        self._check_not_closed()
        check_text("block", block, optional=True)
        check_flag("again", again, optional=True)
        if block is not None:
            check_takes_blocks(self._bandit.policy, block, self._pool.ids.name, self._settings.outcomes)
        usual = self._usual_noise() if noise_var else None
        results, rows, said = self._read(measured, noise_var, block)
        noise = None if usual is None else np.where(np.isnan(results.noise_var), usual, results.noise_var)
        told = Evaluations(rows, results.values, results.signs, noise, results.block)
        new, known, others = self._counting(told, again, file=results.file)
        some, said = np.any(new, axis=1), said + others
        if not some.any():
            return Told(0, 0, known, notes=tuple(said))
        # A single empty row is an evaluation that failed, as among workers that tell one result each.
        require(
            int(some.sum()) == 1 or not told.failed.all(),
            f"no row of {results.name} has a value in column {', '.join(map(repr, self.outcomes))}: nothing was told. Fill in "
            "what was measured; or, if all evaluations failed, tell them one by one, or forget() their ids (torchbandits "
            "campaign forget).",
        )
        # Before the journal has their numbers.
        self._block_labels.keep(results.labels)
        told = told.masked(new)[some]
        unasked = self._count_unasked(told.rows[~told.failed])
        said = detection.taken(told) + said + self._learn_and_compare(told)
        return Told(int((~np.isnan(told.values)).sum()), int(told.failed.sum()), known, unasked, tuple(said))

    def _counting(self, told: Evaluations, again: bool | None, *, file: bool) -> tuple[NDArray[np.bool_], int, list[str]]:
        """Which results count: their mask, `n x k`, the number of evaluations that were told before, and sentences on these
        and on others that may be mistakes.

        Args:
            again: As for `tell`.
            file: Whether the results are those of a file.
        """
        recount = not file if again is None else again
        opened, ids, said = self._arms.awaited(told.rows), self._pool.ids.of(told.rows), []
        if recount and again is None:
            said += notes.repeated(self._records.new(told, opened)[~told.failed])
        new = ~np.isnan(told.values) | told.failed[:, None] if recount else self._records.new(told, opened)
        known = len(new) - int(np.any(new, axis=1).sum())
        new, left_open = self._informative(told, new)
        beyond, replaced = detection.replaced(self._records, told.masked(new), ids)
        said += left_open + replaced
        if not recount:
            said += notes.copied(told, np.any(new, axis=1), opened)
            if told.block is None:
                # The same row in another block, such as a control on each plate, has another value.
                other = new & ~np.isin(told.rows, opened)[:, None] & ~beyond
                said += notes.changed(self._records, told, other, ids)
        return new, known, said

    def _informative(self, told: Evaluations, new: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], list[str]]:
        """The mask of the new results, `n x k`, less those whose limit of detection tells nothing, and sentences on these."""
        settings, counted = self._settings, told.masked(new)
        if not counted.signs.any():
            return new, []
        ids = self._pool.ids.of(told.rows)
        apart, said = detection.left_open(self._records, counted, ids, settings.at_least, settings.at_most)
        return new & ~apart, said

    def _learn_and_compare(self, told: Evaluations) -> list[str]:
        """Learn results, and return sentences on them beside earlier ones."""
        records, lost = self._records, told.failed
        repeated = most_repeated(records.rows)
        earlier = [records.measured(j) for j in range(len(self.outcomes))]
        said = in_part(told.block is not None, blocked(self._bandit)) if any(earlier) and not lost.all() else []
        said += notes.succeeded(records, told.rows[~lost], self._pool)
        self._learn(told)
        for name, before, values in zip(self._settings.names, earlier, told.values.T, strict=True):
            said += notes.far_off(before, values, self._pool.ids.of(told.rows), name)
        learned = self._bandit.loop.learns_failures
        said += notes.failed_again(records, told.rows[lost], self._pool, self._arms, learned=learned)
        if repeated is None and most_repeated(records.rows) is not None:
            said += self._note_on_repetition()
        return said + notes.constant(records, self.outcomes)

    def _usual_noise(self) -> NDArray[np.float64]:
        """Noise variance of a measurement of each outcome, for one whose own variance is not told.

        Raises:
            UnsupportedError: For a policy that does not weight rewards.
        """
        try:
            return np.array([self._bandit.loop.noise_variance()])
        except UnsupportedError as error:
            raise UnsupportedError(
                "noise_var= (--noise-var) needs a campaign that knows the usual noise of a measurement: begin one with "
                f"noise_std= (--noise-std) and tell it the results. With a policy of your own: {error}"
            ) from error

    def _count_unasked(self, rows: NDArray[np.int64]) -> int:
        """Number of results in these rows that had not been asked for."""
        return len(rows) - len(self._arms.awaited(rows))

    def _note_on_repetition(self) -> list[str]:
        """A sentence on the row that takes most of the evaluations."""
        believed = self._explanation_if_any()
        return [] if believed is None else [believed.repetition()]

    def _read(
        self, measured: Any, noise_var: Mapping[str, str], block: str | None
    ) -> tuple[Results, NDArray[np.int64], list[str]]:
        """Results, the row of each, and sentences on cells that contradict the candidates."""
        commas = decimal_commas(self._pool.table)
        results = read_results(measured, self._pool.ids, self._settings.outcomes, noise_var, block, commas=commas)
        found = self._pool.ids.find(results.ids)
        check_known(results, found, self._pool.ids, self._pool.table.name)
        detection.check_consistent(results)
        rows = np.array([found[text] for text in results.ids], np.int64)
        truth = self._pool.table.take(rows).to_pandas()
        return results, rows, check_same_rows(results, truth, self._settings.tolerances)

    def _learn(self, told: Evaluations) -> None:
        """Tell the bandit results, and add them to the records."""
        # A bandit of one outcome has rewards without a dimension of outcomes.
        shape = (len(told.rows), *self._bandit.loop.batch_shape)
        kept = {BEYOND: pack(torch.from_numpy(told.signs.T.astype(np.int64)))} if told.signs.any() else {}
        with self._reread_after_errors(), nullcontext() if self._journal is None else self._journal.beside(**kept):
            self._bandit.tell(
                self._arms.there(torch.from_numpy(told.rows)),
                self._arms.there(torch.from_numpy(self._settings.sign * told.values).reshape(shape)),
                failures="forget",
                noise_var=self._arms.there(None if told.noise_var is None else torch.from_numpy(told.noise_var).reshape(shape)),
                block=self._arms.there(None if told.block is None else torch.from_numpy(told.block)),
            )
            self._records.add(told)

    def correct(self, id: Any, value: float | None, *, was: float | None = None) -> Corrected:
        """Correct a result that was told, as if the right value had been told. What was selected since then stays selected, and
        files with the wrong value or with the right one may be told again.

        Args:
            id: The id of the row.
            value: The right value, a number or a boolean; NaN if the evaluation failed; None to take the result back. If the
                row had been selected and is not excluded, it waits for a result again then.
            was: The wrong value, if the row has several results; NaN for a failed evaluation.

        Returns:
            The result before and after the correction, which print as a sentence, and `kept`, the path of the journal before
            the correction.

        Raises:
            ArgumentError: If there is no such result, or the row has several different ones and `was` is missing.
            UnsupportedError: If the campaign has no journal, or a state was loaded into its bandit after the result was told.
            DataError, NumericalError: If the journal cannot be replaced, or the results not be learned. The campaign is then
                as before.
            StateError: If another process opened the journal meanwhile. The correction then stays, and this object is closed.

        `bandit` is another object afterwards. Cost: that of resuming the campaign without a checkpoint.
        """
        check_result("value", value)
        check_result("was", was)
        return self._correct(id, {0: value}, None if was is None else {0: was})

    @one_at_a_time
    def _correct(self, id: Any, values: Wanted, was: Wanted | None) -> Corrected:
        """Correct values by the place of their outcome, in units of the user."""
        self._check_not_closed()
        (text,) = self._pool.ids.texts([id])
        found = self._pool.ids.find([text])
        if text not in found:
            alike = self._pool.ids.alike(text)
            meant = "" if alike is None else f" Does it mean {alike!r}?"
            raise ArgumentError(f"id: {text!r} is not among the candidates.{meant}")
        if (journal := self._journal) is None:
            raise UnsupportedError(
                "results can be corrected in a campaign with a journal only: begin another campaign (journal=...), and tell it "
                "the right results."
            )
        correction = Correction(found[text], repr(text), values, was, self._settings.outcomes, self._settings.sign)
        lines = list(journal.records())
        correction.edit(lines)  # raises an error before anything is closed
        kept = None
        journal.close()
        try:
            kept = rewrite(journal.path, correction.edit)
            self._reopen()
        except BaseException:
            # After an interrupt, too, the campaign goes on with the journal as it was.
            if kept is not None:
                assert self._journal is not None
                self._journal.close()
                restore(kept, journal.path)
            self._reopen()
            raise
        return Corrected(text, *correction.in_words(lines), kept)

    def _reopen(self) -> None:
        """Learn the journal anew."""
        assert self._journal is not None
        journal, old, rows = self._journal, self._bandit, self._settings.rows
        self._journal = Journal(journal.path, every=journal.every, durable=journal.durable)
        if self._pool.count > rows:
            assert isinstance(self._pool.table, InMemory)
            self._pool = self._candidates(self._pool.table.first(rows))
        self._bandit = self._open_bandit(old.policy, old.device, old.generators[0], new=False)
        self._rejoin()
        self._give_up_excluded()
        self._read_records()

    @one_at_a_time
    def forget(self, ids: Collection[Any] | None = None) -> None:
        """Give up open rows, which were asked for and will not be evaluated: all of them, or those with the given ids. The id
        of a row that is not open itself stands for the open rows with the same features.

        Raises:
            ArgumentError: If an id is not open. Nothing has changed then.
        """
        self._check_not_closed()
        opened = self._arms.open
        if ids is not None:
            wanted = self._pool.texts(ids)
            found = self._pool.ids.find(wanted)
            equal = {text: self._arms.open_as(row) for text, row in found.items()}
            known = {text for text, own in equal.items() if own.any()}
            missing = [text for text in wanted if text not in known]
            are = "is" if len(missing) == 1 else "are"
            advice = "give ids of rows that were asked for or planned, and not told."
            require(not missing, f"ids: {', '.join(missing[:5])} {are} not pending: {advice}")
            opened = opened[np.logical_or.reduce([np.zeros(len(opened), bool), *equal.values()])]
        self._arms.give_up(opened)

    @one_at_a_time
    def exclude(self, ids: Collection[Any] | None = None, *, where: Any = None) -> int:
        """Take rows out of selection until `include` puts them back, such as a compound that is out of stock. They are kept out
        when the campaign is resumed. Open ones among them are given up, as by `forget`. Their results count as before, and
        further ones may be told. A row with the same features may be selected in their place.

        Args:
            ids: The ids of the rows.
            where: A condition on the rows, as for `ask`; with `ids`, on these. Rows that are added later by `extend` are not
                excluded.

        Returns:
            The number of rows that were not excluded before.

        Raises:
            ArgumentError: If an id is unknown, the condition is none or no row fulfils it, or no row would be left to select.
                Nothing has changed then.
            DataError: If the file of the excluded rows (`JOURNAL.excluded.npy`) cannot be written.

        Warns (`DiagnosticWarning`): If rows of an `OutcomeCampaign` keep the known values, such as a price, of an excluded row
        with the same features.
        """
        self._check_not_closed()
        some = ids is not None or where is not None
        require(some, "exclude() needs the ids of the rows, or a condition on them (where=).")
        rows, opened = self._pool.rows(ids, where), self._arms.open
        new = self._offer.exclude(self._pool.table, np.union1d(self._offer.excluded, rows))
        self._arms.give_up(opened[np.isin(opened, rows)])
        issue(self._note_on_lent(rows))
        return new

    def _note_on_lent(self, rows: NDArray[np.int64]) -> list[str]:
        """A sentence if excluded rows lend known values to rows on offer."""
        return []

    @one_at_a_time
    def include(self, ids: Collection[Any] | None = None, *, where: Any = None) -> int:
        """Put rows back that were taken out by `exclude`: all of them, those with the given ids, or those that fulfil a
        condition. Rows that are no `candidates` are not selected all the same.

        Returns:
            The number of rows that were excluded before.

        Raises:
            ArgumentError: If an id is unknown, or the condition is none or no row fulfils it. Nothing has changed then.
            DataError: If the file of the excluded rows cannot be written.
        """
        self._check_not_closed()
        return -self._offer.exclude(self._pool.table, np.setdiff1d(self._offer.excluded, self._pool.rows(ids, where)))

    @one_at_a_time
    def extend(self, table: Any) -> int:
        """Add candidates. Results and open rows are kept, and so is the encoding of the columns.

        Args:
            table: The rows, as for `Campaign`, with the columns of the candidates in any order. Rows that are candidates
                already, with the same id and the same cells, are not added again, so that it may be a longer version of the
                table, or the same rows once more. Values in a column of results are told, as history; such a column may be
                missing.

        Returns:
            The number of rows added.

        Raises:
            ArgumentError: If a row with the id of a candidate has other cells, a cell has no place in the encoding of the
                beginning, such as a category that was not in the table, or a column is missing or unknown: names row and
                column. Nothing has changed then.
            UnsupportedError: If the rows are molecules, their features are in a file, or the policy is bound to the candidates
                with which the campaign began: `renew` begins another campaign with all rows.
            DataError: If a file cannot be read or written.

        Warns (`DiagnosticWarning`): If a column whose cells were all equal, so that it is no feature, has other cells now.

        Cost: that of `Bandit.set_arms_`; the journal then holds the features of all rows.
        """
        self._check_not_closed()
        message = f"rows can't be added to molecules, or to features in a file (more than 256 MiB): {RENEW}."
        require(not self._bandit.loop.state.rows.streamed, message, UnsupportedError)
        new, before = extension(table, self._pool, self._settings), self._pool.count
        if new.whole is not None:
            self._add(new.whole)
        self._tell_history(new.table, new.rows)
        return self._pool.count - before

    def _add(self, whole: InMemory) -> None:
        """Take a table with further rows after those of the campaign."""
        loop, settings = self._bandit.loop, self._settings
        offer, cost = self._offer.among(whole), settings.cost
        priced = None if cost is None else self._arms.there(costs(whole, cost))
        pool = self._candidates(whole)
        only_new = InMemory(whole.arrow.slice(self._pool.count))
        features = encode_in_memory(only_new, Encoder(settings.decisions), getattr(torch, settings.dtype))
        if self._paths is not None:
            added = whole.arrow.slice(settings.rows)
            files.write_atomically(self._paths.added, lambda temporary: parquet.write_table(added, temporary))
        try:
            arms = torch.cat([loop.state.rows.arms, self._arms.there(features)])
            with errors_of_table(pool, arms, priced, cost, settings.known):
                self._set_arms(arms, priced, pool)
        except UnsupportedError as error:
            message = f"the policy of this campaign is bound to the rows it began with: {RENEW}."
            raise UnsupportedError(message) from error
        finally:
            # An interrupt may come after the rows were added, while a checkpoint is written.
            loop.recover_()
            if loop.num_arms == whole.count:
                self._pool, self._offer.mask = pool, offer

    @explains_keywords
    @one_at_a_time
    def renew(
        self: C,
        table: Any,
        journal: str | os.PathLike[str],
        *,
        policy: Policy | None = None,
        columns: Mapping[str, Any] | None = None,
    ) -> C:
        """Begin a campaign that goes on with another table: with new categories, molecules or columns, which `extend` refuses.

        The new campaign has the objective, the condition on its candidates, the costs, the noise, the seed, the precision and
        the declared kinds of columns of this one. How the columns are interpreted is decided anew. All results are taken over
        in the order told, with failures, blocks, noise variances and corrections, and so are open and excluded rows, as far as
        they are in the table. The new campaign has learned what one has that begins with this table and is told these results.
        This campaign is closed, and its journal stays as it is.

        Args:
            table: All rows, old and new ones, as for `Campaign`. Rows of before are recognised by their ids, and those without
                ids by their numbers. Rows without results may be left out. Values in a column of results that were not told yet
                are told, as history, after the results of this campaign.
            journal: The path of the journal of the new campaign.
            policy: Another policy than that with which this campaign was opened, as for `Campaign`.
            columns: Kinds of further columns, or other kinds than before, as for `Campaign`.

        Returns:
            The new campaign.

        Raises:
            ArgumentError: If the table cannot be used, lacks rows with results, or its ids name other rows, or if other
                outcomes would be measured. Nothing has changed then.
            UnsupportedError: If this campaign has no journal, its bandit was told something else than results of its rows, or
                its policy is bound to the rows and `policy` is not given.
            StateError: If there is a campaign at `journal` already.
            DataError: If a file cannot be read or written.

        Warns (`DiagnosticWarning`): If a row with results has other cells now, or open rows are not in the table.

        Cost: that of beginning a campaign, and of resuming it without a checkpoint.
        """
        self._check_not_closed()
        old_journal, old_paths = self._journal, self._paths
        if old_journal is None or old_paths is None:
            raise UnsupportedError(
                "renew() takes results over from a journal, and this campaign has none: begin another campaign with all rows, "
                "and tell() it the results() of this one."
            )
        paths = CampaignPaths(as_path("journal", journal).absolute())
        paths.check_unused()
        if policy is None:
            policy = self._policy_for_others()
        lines = told_in(old_journal.records())

        with beginning(paths) as begun:
            made = self._with_its_settings(table, begun, policy, columns)
            taken = made._take_over(self, lines)
            if old_paths.blocks.exists():
                files.write_atomically(
                    CampaignPaths(begun).blocks, lambda temporary: shutil.copyfile(old_paths.blocks, temporary)
                )
            rewrite(begun, lambda _: taken)
            del made
            let_go()
        self.close()
        return self._with_its_settings(table, paths.journal, policy, columns)

    def _with_its_settings(self: C, table: Any, path: Path, policy: Policy | None, columns: Mapping[str, Any] | None) -> C:
        """Begin or resume a campaign with the settings of this one, at another path."""
        assert self._journal is not None
        journal = Journal(path, every=self._journal.every, durable=self._journal.durable)
        # The seed, and not the state: a campaign that is begun with this table has the same random numbers.
        generator = torch.Generator().manual_seed(self._bandit.generators[0].initial_seed())
        options = options_of(self._settings, columns) | {"device": self._bandit.device, "generator": generator}
        return type(self)(table, journal=journal, policy=policy, **options)

    def _policy_for_others(self) -> Policy | None:
        """The policy for other rows: the one that was given, if any.

        Raises:
            UnsupportedError: If it is bound to its rows.
        """
        if self._given is not None:
            loop = self._bandit.loop
            try:
                self._given.set_arms(loop.state, cast(Tensor, loop.arms))
            except UnsupportedError as error:
                raise UnsupportedError(
                    "the policy of this campaign is bound to the rows it began with: give renew() another one (policy=)."
                ) from error
        return self._given

    def _take_over(self, old: Campaign, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Take rows over from another campaign, and close this one. Returns the records of a journal with these `lines` of the
        other campaign and the open rows."""
        assert self._journal is not None
        try:
            check_same_outcomes(self._settings, old._settings)
            told, opened = rows_of(lines), old._arms.open
            rows = np.unique(np.concatenate([earlier_rows_of(lines), opened, old._offer.excluded]))
            # The last place is that of no row, −1.
            places = np.full(old._pool.count + 1, -1)
            places[rows] = rows_in(self._pool, old._pool, rows)
            lost, needed = told[places[told] < 0], np.union1d(told, opened)
            require(
                not len(lost),
                f"{self._pool.table.name} lacks {count(len(lost), 'row')} with results, {old._pool.named(lost)}: it needs all "
                "rows, old and new ones. Rows that can't be had any more are taken out of selection by exclude() (torchbandits "
                "campaign exclude).",
            )
            needed = needed[places[needed] >= 0]
            if len(needed):
                # Other programs write true and false as 1 and 0.
                compared = {name: own for name, own in old._settings.tolerances.items() if old.columns[name].kind != "boolean"}
                check_rows(self._pool, old._pool, needed, places[needed], compared)
            if len(gone := opened[places[opened] < 0]):
                issue([f"{self._pool.table.name} lacks {old._pool.named(gone)}, pending so far: given up."])
            excluded = places[old._offer.excluded]
            self._offer.exclude(self._pool.table, np.unique(excluded[excluded >= 0]))
            waiting = places[opened]
            if (waiting >= 0).any():
                self._bandit.plan(self._arms.there(torch.from_numpy(waiting[waiting >= 0])))
            # The only rows that were asked for here are those of this `plan`.
            planned = [line for line in self._journal.records() if line["kind"] == "fill"]
            return [*(moved(line, places) for line in lines), *planned]
        finally:
            self._journal.close()

    # ------------------------------------------------------------------ results

    @one_at_a_time
    def should_stop(self, *rules: Rule) -> Decision:
        """Whether to stop: a `Decision`, which is true if one of the rules stops the campaign, with the reason in words.

        Args:
            rules: Rules of `torchbandits.stopping`; their numbers, such as ε or a level, are in units of the objective. Open
                rows do not count, nor do rows that are no candidates as rivals of the recommended one. With `noise_std`, rules
                that read the model do not stop before its first fit, after six measurements.

        Returns:
            The decision; its reason names the recommended row by its id.

        Raises:
            UnsupportedError: For a rule that does not support this policy; the message names rules that do.
        """
        rules, sign = check_rules(rules), self._settings.sign
        signed = in_rewards(rules, sign)
        # The kernel of the default policy is a guess until its first fit, and may be sure of what it does not know.
        unfitted = self._settings.noise_std is not None and int(self._bandit.pulls.sum()) < FIRST
        counting = [rule for rule in signed if isinstance(rule, Budget | SameArm)] or [Budget(pulls=FIRST)]
        try:
            # Rows that are no candidates are no rivals of the best one.
            with self._arms.competing(self._offer.mask):
                decision = self._bandit.should_stop(*(counting if unfitted else signed))
        except UnsupportedError as error:
            state = self._bandit.loop.state
            estimated = isinstance(state, GaussianState) and state.posterior.units is not None
            if not (estimated and need_noise(rules)):
                raise
            raise UnsupportedError(
                "ProbableRegret and ImprovementPerCost (--within, --price) need the noise of a measurement: begin a campaign "
                "with noise_std= (--noise-std) and tell it the results, or stop by SameArm or Budget (--measurements)."
            ) from error
        decision = of_measurements(decision)
        if int(decision.arm) < 0:
            return decision
        row = self._arms.as_told(decision.arm.reshape(1), self._records.measured_rows())
        (name,) = self._pool.ids.of(row)
        return of_row(decision, name, rules, sign)

    @one_at_a_time
    def predict(self, ids: Collection[Any] | None = None, *, where: Any = None) -> pd.DataFrame:
        """What the model expects of rows, measured or not, in the order of their ids or of the table.

        Args:
            ids: The ids of the rows; all rows by default.
            where: A condition on the rows, as for `ask`; with `ids`, on these.

        Returns:
            The columns of `best`.

        Raises:
            ArgumentError: If an id is unknown, or the condition is none or no row fulfils it.
            UnsupportedError: For a policy without a model, such as `uniform`.
            StateError: If nothing was measured yet.

        Cost: that of the posterior of each row.
        """
        self._check_measured("no prediction")
        require(self._arms.has_model, "predict() reads a model, and the policy of this campaign has none.", UnsupportedError)
        return self._with_results(self._pool.rows(ids, where))

    @one_at_a_time
    def best(self, k: int = 5, *, where: Any = None) -> pd.DataFrame:
        """The measured rows with the best posterior means, best first; at most k. As in `Bandit.best`, a row that was measured
        to be clearly better comes first. If noise leaves open which is best, `doubt` says so.

        Args:
            k: Largest number of rows.
            where: A condition on the rows, as for `ask`, such as `"price < 100"`. The table is empty if no measured row fulfils
                it.

        Returns:
            Rows of the table with their ids; `expected` and `deviation`, the posterior mean and standard deviation of the
            objective; `measured`, the average of the values told; and `times`, their number.

        Raises:
            ArgumentError: If no row of the table fulfils the condition, or it is none.
            StateError: If nothing was measured yet.
        """
        check_whole("k", k)
        self._check_measured("no best row")
        told = self._records.measured_rows()
        state, most = self._bandit.loop.state, min(k, len(told))
        # Points that are no rows of the table, such as a history told to `bandit`, are left out.
        every = state.rows.outside or where is not None
        index = self._bandit.best(max(1, state.statistics.size if every else most)).index
        held = None if where is None else self._pool.fulfil(where)
        rows, kept = self._arms.as_told_among(index[index >= 0], told, held)
        return self._with_results(rows[kept][:k])

    def _with_posterior(self, rows: NDArray[np.int64]) -> pd.DataFrame:
        """Rows of the table with their ids first, and the posterior mean and standard deviation of each."""
        taken = self._pool.cells(rows)
        marginals = self._arms.marginals(rows)
        # Adding 0 turns −0 into 0.
        taken[self._pool.own(EXPECTED)] = self._settings.sign * marginals.mean.double().cpu().numpy() + 0.0
        deviation = marginals.variance.double().clamp_min(0).sqrt().cpu()
        taken[self._pool.own(DEVIATION)] = deviation.masked_fill(self._arms.constant, torch.nan).numpy()
        return taken

    def _with_results(self, rows: NDArray[np.int64]) -> pd.DataFrame:
        """Rows as `_with_posterior`, with the average of the values told of each outcome, and the number of evaluations."""
        frame, times = self._with_posterior(rows), np.zeros(len(rows), np.int64)
        for j, name in enumerate(self._settings.names):
            values = self._records.by_row(j)
            results, column = [values.get(row, []) for row in rows.tolist()], f"{name} {MEASURED}" if name else MEASURED
            frame[self._pool.own(column)] = [np.mean(repeats) if repeats else np.nan for repeats in results]
            times = np.maximum(times, [len(repeats) for repeats in results])
        frame[self._pool.own(TIMES)] = times
        return frame

    @one_at_a_time
    def results(self) -> pd.DataFrame:
        """All results told, corrections included, one row per evaluation in the order told.

        Returns:
            Rows of the table with their ids, the number of the call of `tell`, and the columns of the results, empty where an
            evaluation failed or an outcome was not measured; results beyond a limit of detection are texts such as `"<0.5"`
            among the numbers. If some were told with their block, there is a column of its
            labels. `tell` of another campaign reads them, with `block="block"`, or with `block="call"` if no block was told and
            each call told one plate or day. Individual noise variances are not part of it.
        """
        self._check_not_closed()
        frame = self._pool.cells(np.array(self._records.rows, np.int64))
        frame[self._pool.own(CALL)] = self._records.numbers
        if any(number is not None for number in self._records.blocks):
            frame[self._pool.own(BLOCK)] = self._block_labels.of(self._records.blocks)
        for name, own, signs in zip(self.outcomes, self._records.values.T, self._records.signs.T, strict=True):
            frame[name] = detection.with_signs(own, signs)
        return frame

    @one_at_a_time
    def explain(self, *, where: Any = None) -> Explanation:
        """Explain what the model has learned about the columns, the noise and the best row. `print` shows the result as five
        lines of text, and its method `figure()` plots the columns that matter.

        Args:
            where: A condition on the rows, as for `ask`, such as the current context, `{"machine": "B"}`. The best row is then
                that of `best(where=)`, and only rows that fulfil the condition count as rows that may be better. The columns,
                the noise and the numbers of measurements are those of all rows. There is no `doubt` about repeats, and no
                `repeated` row.

        Returns:
            The explanation of `Bandit.explain`, in units of the objective and with its sign. Its features have the names of the
            columns; a column of categories has one feature for each, called `solvent = DMF`. `best.index` is the recommended
            row of the table, from 0. Only rows that are candidates count as rows that may be better. `repeated` takes results
            into account that were told by earlier processes.

        Raises:
            ArgumentError: If no row of the table fulfils the condition, or it is none.
            UnsupportedError: For a policy without a single Gaussian process, such as `uniform`.
            StateError: If nothing was measured yet, or no row that fulfils the condition.

        Cost: O(A), and two fits to the last 500 results.
        """
        found = self._with_records(self._explanation(where))
        return found if where is None else replace(found, limited="")

    def _with_records(self, found: Explanation) -> Explanation:
        """An explanation with what the records tell: results that were told together, and limits of detection."""
        return replace(found, together=together(self._bandit, self._records), limited=" ".join(self._notes_on_limits()))

    def _explanation(self, where: Any = None) -> Explanation:
        """`explain` without a look at what was told together."""
        self._check_measured("nothing to explain")
        return explanation(self._bandit, self._pool, self._offer.mask, self._records, self._settings, where)

    @one_at_a_time
    def doubt(self) -> str:
        """A warning if noise leaves it open which measured row is best, with the number of repeats that helps, and if the
        columns predict so little that random rows may do as well, both for policies with one Gaussian process only; and if
        several rows are only known to be beyond a limit of detection, so that the best of them is not known. Else an empty
        text.

        Raises:
            StateError: If nothing was measured yet.

        Cost: O(A).
        """
        believed = self._explanation_if_any()
        doubts = [] if believed is None else [believed.doubt(), believed.weakness()]
        return " ".join(filter(None, [*doubts, *self._notes_on_limits()]))

    def _notes_on_limits(self) -> list[str]:
        """Sentences on rows of which it is only known that they are beyond a limit of detection."""
        settings, ids_of = self._settings, self._pool.ids.of
        good = {name: sign for name, sign in settings.signs.items() if name in settings.outcomes}
        said = detection.indistinct(self._records, settings.outcomes, good, ids_of)
        return said + detection.overtaken(self._records, settings.outcomes, ids_of)

    def _explanation_if_any(self) -> Explanation | None:
        """The explanation; None for a policy without one model."""
        try:
            return self._explanation()
        except UnsupportedError:
            return None

    @one_at_a_time
    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write an HTML page of the campaign: progress, best rows, open rows, and the decisions on the columns.

        Returns:
            The path of the file.

        Raises:
            StateError: If nothing was measured yet.
            DataError: If the file cannot be written.
        """
        self._check_measured("nothing to show")
        values, limits = self._records.values[:, 0], int((self._records.signs != 0).sum())
        limited = f" ({limits:,} beyond a limit of detection)" if limits else ""
        settings, opened, believed = self._settings, self._arms.open, self._explanation_if_any()
        believed = believed and self._with_records(believed)
        aim = "small" if settings.minimize else "large"
        whole = page.CampaignPage(
            title=f"Search for the {'smallest' if settings.minimize else 'largest'} {settings.objective} in {self._pool.title}",
            objective=settings.objective,
            minimize=settings.minimize,
            facts=f"{self._pool.count:,} candidates, {count(int(np.isfinite(values).sum()), 'measurement')} of "
            f"{settings.objective}{limited}, "
            f"{count(int(np.isnan(values).sum()), 'failed evaluation')}, {count(len(opened), 'pending row')}"
            f"{self._excluded_rows()}; "
            f"{aim} values are better",
            values=values,
            best=self.best(10),
            opened=self._with_posterior(opened),
            columns=self.columns.to_pandas().reset_index(),
            explained=() if believed is None else tuple(filter(None, (*believed.lines()[3:0:-1], believed.failures()))),
            relevance=believed.figure() if believed is not None and believed.tells_features else None,
            predicted=self._predicted(),
        )
        written = as_path("path", path)
        page.write_campaign(whole, written)
        return written

    def _predicted(self) -> page.Predicted | None:
        """Each measured row, predicted from all others; None as long as all measurements are equal."""
        if bool(self._arms.constant.any()):
            return None
        values = self._records.by_row(0)
        measured: dict[int, list[float]] = {}
        for entry, told in zip(self._arms.entries(list(values)).tolist(), values.values(), strict=True):
            measured.setdefault(entry, []).extend(told)
        return predicted(self._bandit, measured, self._settings.sign)

    def _excluded_rows(self) -> str:
        """The number of excluded rows as the end of a list; empty if there are none."""
        return f", {count(len(self._offer.excluded), 'excluded row')}" if len(self._offer.excluded) else ""

    def _check_measured(self, there_is: str) -> None:
        """Refuse a call that needs results as long as there are none."""
        failed = len(self._records.failed_rows())
        are = f"{count(failed, 'evaluation')} failed and none succeeded" if failed else "nothing was measured yet"
        message = f"{are}, so that there is {there_is}: tell() results first (torchbandits campaign tell)."
        require(bool((self._bandit.pulls > 0).any()), message, StateError)

    def _shown(self) -> Shown:
        opened, known = self.open, ", ".join(self._settings.known)
        aims = f"{self.objective} (measured) and {known} (known)" if known else self.objective
        journal = [] if self._journal is None else [("journal", str(self._journal.path))]
        values = [
            ("measured", count(len(self._records.measured_rows()), "row")),
            ("waited for", f"{count(len(opened), 'row')}{': ' if opened else ''}{few(opened)}"),
            *([("excluded", count(len(self._offer.excluded), "row"))] if len(self._offer.excluded) else []),
            *journal,
        ]
        return pairs(f"{type(self).__name__} for {aims}: {count(self._pool.count, 'candidate')}", values)

    @property
    def columns(self) -> Decisions:
        """The decision on each column; printed as a table."""
        return self._settings.decisions

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The columns of the results; a single one, unless this is an `OutcomeCampaign`."""
        return self._settings.outcomes

    @property
    def objective(self) -> str:
        """The column of the results; for several outcomes, all columns, separated by commas."""
        return ", ".join(self._settings.outcomes)

    @property
    def bandit(self) -> Bandit:
        """The bandit of the campaign. Its arms are the rows of the table in their order; its rewards are the values told, with
        the opposite sign where they are minimised."""
        return self._bandit

    @property
    @one_at_a_time
    def open(self) -> list[str]:
        """Ids of the open rows, which were asked for and neither told nor forgotten, in the order of their selection."""
        rows = self._arms.open
        return self._pool.ids.of(rows)

    @property
    @one_at_a_time
    def excluded(self) -> list[str]:
        """Ids of the rows that were taken out by `exclude`, in the order of the table."""
        return self._pool.ids.of(self._offer.excluded)

    @one_at_a_time
    def close(self) -> None:
        """Write a checkpoint and close the journal. This object can't be asked or told afterwards; a new `Campaign` resumes the
        campaign."""
        if self._journal is not None:
            self._bandit.recorder.settle()
            self._journal.close()
            self._closed = True

    def _check_not_closed(self) -> None:
        """Refuse changes after `close`."""
        if self._closed and self._journal is not None:
            table = "" if self._settings.table is not None else "table, "
            raise StateError(
                f"this campaign was closed: open it again, campaign = tb.{type(self).__name__}({table}"
                f"journal={str(self._journal.path)!r}), and repeat the call."
            )
