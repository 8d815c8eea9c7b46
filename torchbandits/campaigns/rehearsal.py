"""Rehearsals: campaigns on a table whose results are known, to see what they would have found with how many evaluations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchbandits.campaigns.campaign import Campaign
from torchbandits.campaigns.given import overruled_by
from torchbandits.campaigns.history import history
from torchbandits.campaigns.opening import MEASURED
from torchbandits.checks import as_path, check_flag, check_function, check_text, check_whole, explains_keywords, non_negative
from torchbandits.display import Readable, Shown, count, number
from torchbandits.errors import nearest, require
from torchbandits.extras import Later
from torchbandits.figures import COLORS, tidy
from torchbandits.policies import Policy
from torchbandits.tabular.columns import decide
from torchbandits.tabular.decisions import MOLECULE, SUBSTANCE, Decisions
from torchbandits.tabular.encoding import Encoder
from torchbandits.tabular.ids import Ids, id_column, open_table
from torchbandits.tabular.molecules import canonical
from torchbandits.tabular.tables import InMemory, Table, copied

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from torchbandits import files
else:
    from torchbandits.campaigns.extras import files
    from torchbandits.tabular.extras import pandas as pd

# Share of the rows on offer in a trial. Without noise all campaigns of one table would select the same rows.
_SHARE = 0.8
# Number of random orders of the rows in all trials together, and how many times more random rows than evaluations are compared.
_DRAWS, _TIMES = 400, 32
# Means that differ by less than this share of the values are equal.
_ROUNDING = 1e-12
# Kinds of columns of texts.
_OF_TEXTS = ("category", SUBSTANCE, MOLECULE)
# Largest number of lines when a rehearsal is printed.
_SHOWN = 10

_agg, _figures = Later("matplotlib.backends.backend_agg", "figures"), Later("matplotlib.figure", "figures")


@dataclass(frozen=True, repr=False)
class Rehearsal(Readable):
    """What campaigns found on a table whose results are known, beside random rows. Printed, it is a table with its conclusion.

    Attributes:
        objective: The column of the results, and whether it was minimised.
        minimize: Whether small values are good.
        curves: For each trial and each number of evaluations made: `trial`, `evaluations`, the `id` of the row that the
            campaign recommends, its `value` in the table, and `better`, the share of the rows on offer that are better.
        random: The same of as many random rows, of which the one with the best result is recommended; `trial` is the trial
            whose rows were on offer.
        as_good: Number of random rows that are as good as a campaign, by the mean of the recommended values; None if more than
            were compared would be needed.
        compared: The largest number of random rows that were compared.
    """

    objective: str
    minimize: bool
    curves: pd.DataFrame
    random: pd.DataFrame
    as_good: int | None
    compared: int

    def summary(self) -> pd.DataFrame:
        """For each number of evaluations the mean `value` of the recommended rows, the tenth and ninetieth percentile of these
        values, and the mean share of `better` rows, of campaigns and of random rows (`random value`, …)."""
        parts = {"": self.curves, "random ": self.random}
        found = {}
        for name, frame in parts.items():
            groups = frame.groupby("evaluations")
            found[f"{name}value"] = groups["value"].mean()
            found[f"{name}10 %"] = groups["value"].quantile(0.1)
            found[f"{name}90 %"] = groups["value"].quantile(0.9)
            found[f"{name}better"] = groups["better"].mean()
        return pd.DataFrame(found).reset_index()

    def conclusion(self) -> str:
        """What was found, in two sentences. Campaigns count as better or worse than random rows if the 95 % t-interval of the
        mean difference in a trial does not contain 0; with a single trial they never do."""
        from torchbandits.experiments.measures import mean_interval  # noqa: PLC0415 - slow to load

        last, trials = int(self.curves["evaluations"].max()), int(self.curves["trial"].nunique())
        own, other = (frame[frame["evaluations"] == last] for frame in (self.curves, self.random))
        found = (
            f"After {count(last, 'evaluation')} {_share(own['better'].mean())} of the rows are better than the recommended one "
            f"(random rows: {_share(other['better'].mean())}), which was the best of all in "
            f"{int((own['better'] == 0).sum())} of {count(trials, 'trial')} (random rows: in "
            f"{_share((other['better'] == 0).mean())})."
        )
        if (own["better"] == 0).all() and (other["better"] == 0).all():
            return f"{found} Random rows do as well: make fewer evaluations."
        # One trial alone has no half-width, and shows nothing.
        mean, doubt = mean_interval((own.set_index("trial")["value"] - other.groupby("trial")["value"].mean()).to_numpy())
        if not abs(mean) > doubt + _ROUNDING * own["value"].abs().max():
            return f"{found} Neither is shown to be better: make more trials, or give campaigns more columns or evaluations."
        if (mean > 0) == self.minimize:
            return f"{found} Random rows are better here: the columns do not tell {self.objective!r}."
        as_good = f"more than {self.compared:,}" if self.as_good is None else f"about {self.as_good:,}"
        return f"{found} {as_good.capitalize()} random rows are as good on average."

    def figure(self) -> Figure:
        """The values of the recommended rows against the number of evaluations: means, and the middle 80 %."""
        found, figure = self.summary(), _figures.Figure(figsize=(6.4, 4), layout="constrained")
        _agg.FigureCanvasAgg(figure)
        axes = figure.subplots()
        for name, label, color, style in (("", "campaign", COLORS[5], "-"), ("random ", "random rows", COLORS[4], "--")):
            axes.fill_between(found["evaluations"], found[f"{name}10 %"], found[f"{name}90 %"], color=color, alpha=0.15, lw=0)
            axes.plot(found["evaluations"], found[f"{name}value"], style, color=color, label=label)
        axes.set_xlabel("evaluations")
        axes.set_ylabel(f"{self.objective} of the recommended row".replace("$", r"\$"))
        axes.legend(frameon=False)
        tidy(axes)
        return figure

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Write the figure to a file, such as a PNG or an SVG, and return its path.

        Raises:
            ArgumentError: If the ending of its name is not that of a picture.
            DataError: If it can't be written.
        """
        to = as_path("path", path)
        files.write_atomically(to, partial(self.figure().savefig, format=picture_kind(to), dpi=150))
        return to

    def _shown(self) -> Shown:
        header = ("evaluations", "campaign: value", "rows better", "random rows: value", "rows better")
        found = self.summary()
        places = np.unique(np.linspace(0, len(found) - 1, min(len(found), _SHOWN)).round().astype(int))
        rows = []
        for line in found.iloc[places].to_dict("records"):
            own, other = ((_value(line[f"{name}value"]), _share(line[f"{name}better"])) for name in ("", "random "))
            rows.append((f"{line['evaluations']:,.0f}", *own, *other))
        return Shown(self.conclusion(), header, tuple(rows))


def picture_kind(path: Path) -> str:
    """The format of a picture by the ending of its name, PNG where there is none.

    Raises:
        ArgumentError: If it is not that of a picture.
        DataError: If Matplotlib is missing.
    """
    kind = path.suffix.lower().removeprefix(".") or "png"
    require(kind in _agg.FigureCanvasAgg.filetypes, f"{path}: pictures are written as .png, .svg or .pdf, for example.")
    return kind


@explains_keywords
def rehearse(
    table: Any,
    objective: str,
    *,
    n: int = 8,
    evaluations: int = 48,
    trials: int = 10,
    minimize: bool = False,
    noise_std: float = 0.0,
    id: str | None = None,
    columns: Mapping[str, Any] | None = None,
    policy: Policy | None = None,
    seed: int = 0,
    progress: Callable[[int], Any] | None = None,
) -> Rehearsal:
    """Play campaigns on a table whose results are known, such as that of an earlier project, beside random rows: would they
    have found good rows, with how many evaluations, in plates of which size?

    In each trial four fifths of the rows, drawn at random, are on offer. A campaign that knows none of their results selects
    rows, and is told the values in the table. They are taken for the truth: where they are noisy, the best of them are partly
    luck, which neither campaigns nor random rows can find again. Of rows that differ in no feature, such as replicates, only
    the first is on offer: whenever it is evaluated, one of their values is drawn at random, and their average is the truth.
    They may have the same id.

    Args:
        table: The rows, as for `Campaign`. Rows without a value are left out; limits of detection count as their number.
        objective: The column of the results.
        n: Number of rows of a plate.
        evaluations: Number of evaluations of a campaign.
        trials: Number of trials.
        minimize: Whether small values are good.
        noise_std: Standard deviation of noise that is added to each value told, in units of the objective. By default there is
            none, and no row is evaluated twice; with noise, campaigns repeat rows as they would in the laboratory.
        id: As for `Campaign`.
        columns: As for `Campaign`.
        policy: The policy of the campaigns; `tb.auto()` by default.
        seed: Seed of all random numbers.
        progress: Called after each plate with its number of rows.

    Returns:
        The rows that were recommended, beside those of random rows.

    Raises:
        ArgumentError: As for `Campaign`; if fewer rows than evaluations are on offer, or all values are equal.

    Cost: that of the campaigns; about a second per trial of 48 evaluations of a thousand rows.
    """
    check_text("objective", objective)
    for name, value in (("n", n), ("evaluations", evaluations), ("trials", trials)):
        check_whole(name, value)
    check_whole("seed", seed, 0)
    check_flag("minimize", minimize)
    if progress is not None:
        check_function("progress", progress)
    noise_std, sign = float(non_negative("noise_std", noise_std)), -1.0 if minimize else 1.0
    known, ids, kinds = _read(table, objective, id, columns)
    options = {"minimize": minimize, "id": ids.column, "columns": kinds, "policy": policy}
    offered = int(_SHARE * len(known.rows))
    require(
        evaluations <= offered,
        f"evaluations: {count(offered, 'row')} of {known.table.name} would be on offer in a trial, four fifths of the "
        f"different ones with a value of {objective!r}, and {evaluations:,} are to be evaluated: choose fewer.",
    )
    most, draws = min(offered, _TIMES * evaluations), -(-_DRAWS // trials)
    curves, random, total = [], [], np.zeros(most)
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial])
        game = _Game(known.some(np.sort(rng.choice(len(known.rows), offered, replace=False))), sign, noise_std, rng)
        played: list[tuple[int, int]] = []
        for made, place in game.played(n, evaluations, options):
            if progress is not None:
                progress(made - (played[-1][0] if played else 0))
            played.append((made, place))
        marks, found = np.array(played).T
        curves.append(game.curve(trial, marks, found).assign(id=ids.of(game.known.rows[found])))
        for _ in range(draws):
            best = game.at_random(most)
            random.append(game.curve(trial, marks, best[marks - 1]))
            total += sign * game.known.truth[best]
    last = np.array([sign * frame["value"].iloc[-1] for frame in curves])
    reached = total / (draws * trials) >= last.mean() - _ROUNDING * np.abs(last).max()
    return Rehearsal(
        objective,
        minimize,
        pd.concat(curves, ignore_index=True)[["trial", "evaluations", "id", "value", "better"]],
        pd.concat(random, ignore_index=True),
        int(reached.argmax()) + 1 if reached.any() else None,
        most,
    )


def _read(table: Any, objective: str, id: str | None, columns: Mapping[str, Any] | None) -> tuple[_Known, Ids, dict[str, Any]]:
    """The rows of a table that have a result, the ids of all rows, and the kinds of columns."""
    held = open_table(table, id)
    names = held.schema.names
    message = f"{held.name} has no column {objective!r}, and a rehearsal needs results.{nearest(objective, names)}"
    require(objective in names, message)
    ids = Ids(held, id_column(names, id, held.index))
    require(ids.column != objective, f"objective: column {objective!r} is the id already.")
    known, kinds = _Known.of(held, objective, ids, dict(overruled_by(columns) or {}))
    return known, ids, kinds


@dataclass(frozen=True)
class _Known:
    """Rows that differ in their features, and their results.

    Attributes:
        table, objective: The table, and the column of the results.
        rows: The first row of each group of rows with equal features, `A`.
        results: The results of all groups, one group after another and sorted.
        starts, sizes: The place of the first of them, and their number, of each group, `A` each.
        truth: Their average, `A`.
    """

    table: Table
    objective: str
    rows: NDArray[np.int64]
    results: NDArray[np.float64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    truth: NDArray[np.float64]

    @staticmethod
    def of(table: Table, objective: str, ids: Ids, kinds: dict[str, Any]) -> tuple[_Known, dict[str, Any]]:
        """All rows of a table that have a result, and the given kinds of columns with those that hold in each trial."""
        if kinds.get(objective) == MEASURED:
            del kinds[objective]
        rows, values, _ = history(table, objective)
        require(len(rows) > 0, f"{table.name} has no values of {objective!r}, and a rehearsal needs results.")
        roles = {objective: "objective"} | ({} if ids.column is None else {ids.column: "id"})
        decisions = decide(table, roles, kinds, molecules=True)
        # Texts that repeat often enough in the table may not do so among the rows of a trial.
        kinds |= {one.column: one.kind for one in decisions if one.kind in _OF_TEXTS and one.column not in kinds}
        group = _alike(copied(table, rows, table.schema.names), decisions)
        order, (_, first) = np.lexsort((values, group)), np.unique(group, return_index=True)
        results, sizes = values[order], np.bincount(group)
        starts = np.cumsum(sizes) - sizes
        # The average of equal numbers may differ from them by rounding.
        truth = np.clip(np.add.reduceat(results, starts) / sizes, results[starts], results[starts + sizes - 1])
        require(bool(truth.min() < truth.max()), f"all values of {objective!r} are equal: there is nothing to find.")
        if ids.column is not None:
            Ids(copied(table, rows[first], [ids.column]), ids.column).check()
        return _Known(table, objective, rows[first], results, starts, sizes, truth), kinds

    def some(self, places: NDArray[np.int64]) -> _Known:
        """Some of the rows."""
        parts = {name: getattr(self, name)[places] for name in ("rows", "starts", "sizes", "truth")}
        return replace(self, **parts)

    @cached_property
    def candidates(self) -> InMemory:
        """The rows without their results."""
        return copied(self.table, self.rows, [name for name in self.table.schema.names if name != self.objective])


def _alike(table: Table, decisions: Decisions) -> NDArray[np.int64]:
    """The number of the group of equal features that each row belongs to, in the order in which the groups appear."""
    if decisions.molecules is not None:
        keys: Iterable[Any] = canonical(table, decisions.molecules)
    else:
        encoder = Encoder(decisions)
        # Adding 0 turns −0 into 0.
        keys = (hash(row.tobytes()) for batch in table.batches(encoder.columns) for row in encoder(batch) + 0.0)
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


@dataclass(frozen=True)
class _Game:
    """Rows whose results are told when they are evaluated.

    Attributes:
        known: The rows on offer.
        sign: A value times this sign is good if it is large.
        noise_std: As for `rehearse`.
        rng: Random numbers.
    """

    known: _Known
    sign: float
    noise_std: float
    rng: np.random.Generator

    def played(self, n: int, evaluations: int, options: dict[str, Any]) -> Iterator[tuple[int, int]]:
        """Play a campaign, and yield after each plate the number of evaluations made and the place of the recommended row."""
        generator = torch.Generator().manual_seed(int(self.rng.integers(2**62)))
        campaign = Campaign(self.known.candidates, self.known.objective, generator=generator, **options)
        ids, made = Ids(self.known.candidates, options["id"]), 0

        def places(rows: pd.DataFrame) -> list[int]:
            texts = ids.texts(rows.iloc[:, 0])
            found = ids.find(texts)
            return [found[text] for text in texts]

        while made < evaluations:
            plate = campaign.ask(min(n, evaluations - made), repeats=None if self.noise_std else False)
            results = self._measured(np.array(places(plate)))
            campaign.tell(pd.DataFrame({plate.columns[0]: plate.iloc[:, 0], self.known.objective: results}))
            made += len(plate)
            yield made, places(campaign.best(1))[0]

    def at_random(self, most: int) -> NDArray[np.int64]:
        """The place of the best result of the first 1, 2, …, `most` of the rows in random order."""
        order = self.rng.choice(len(self.known.rows), most, replace=False)
        results = self.sign * self._measured(order)
        best = np.maximum.accumulate(results)
        return order[np.maximum.accumulate(np.where(results == best, np.arange(most), 0))]

    def curve(self, trial: int, marks: NDArray[np.int64], found: NDArray[np.int64]) -> pd.DataFrame:
        """One trial of `Rehearsal.curves` without the ids, given the places of the recommended rows."""
        better = self._better[found]
        return pd.DataFrame({"trial": trial, "evaluations": marks, "value": self.known.truth[found], "better": better})

    @cached_property
    def _better(self) -> NDArray[np.float64]:
        """The share of the rows on offer that are better than each of them, `A`."""
        rewards = self.sign * self.known.truth
        return (len(rewards) - np.searchsorted(np.sort(rewards), rewards, side="right")) / len(rewards)

    def _measured(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """One result of each row, drawn at random, with noise."""
        which = (self.rng.random(len(places)) * self.known.sizes[places]).astype(int)
        results = self.known.results[self.known.starts[places] + which]
        return results + self.noise_std * self.rng.standard_normal(len(places))


def _value(value: float) -> str:
    """A value of the objective: at least four digits, and whole thousands in full."""
    return f"{value:,.0f}" if abs(value) >= 1000 else number(value)


def _share(part: float) -> str:
    return f"{100 * part:.3g} %"
