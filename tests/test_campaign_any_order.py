"""Campaigns on odd tables under calls in any order, against naive bookkeeping: results are kept, and picks are those allowed.

Three campaigns get the same calls. The second writes a journal, from which it is resumed at random, also one that was torn or
lost its checkpoint; the third minimises what the first maximises, in another unit.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import torchbandits as tb
from torchbandits import constraints
from torchbandits.errors import ArgumentError, JournalWarning
from torchbandits.stopping import Budget

UNIT = -8.0
"""A value of the third campaign is one of the first times this number, which rounds nothing."""
COLUMNS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "numbers": lambda g, n: g.uniform(size=n),
    "whole": lambda g, n: g.integers(0, 5, n),
    "yes or no": lambda g, n: g.random(n) < 0.5,
    "dates": lambda g, n: pd.Timestamp("2026-01-01") + pd.to_timedelta(g.integers(0, 300, n), unit="D"),
    "categories": lambda g, n: g.choice(["a", "b", "c d", 'é"x'], n),
    "constant": lambda g, n: np.full(n, 3.0),
    "gaps": lambda g, n: np.where(g.random(n) < 0.3, np.nan, g.normal(size=n)),
    "huge": lambda g, n: 1e12 * g.normal(size=n),
    "tiny": lambda g, n: 1e-12 * g.uniform(size=n),
    "decades": lambda g, n: np.where(g.random(n) < 0.2, 0, 10 ** g.uniform(-6, 3, n)),
    "close": lambda g, n: 1 + 1e-9 * g.integers(0, 50, n),
    "far": lambda g, n: 1e6 + g.uniform(size=n),
}
VALUES: dict[str, Callable[[float], float]] = {
    "plain": lambda y: y,
    "constant": lambda y: 3.5,
    "tied": round,
    "tiny": lambda y: 1e-12 * y,
    "huge": lambda y: 1e12 * y,
    "far": lambda y: 1e6 + y,
    "one long tail": lambda y: math.exp(6 * y),
    "yes or no": lambda y: float(y > 0),
}


class AnyOrder:
    """Three campaigns and what must be true of them."""

    def __init__(self, seed: int, folder: Path) -> None:
        g = self.g = np.random.default_rng(seed)
        n, names = int(g.choice([20, 30, 60])), g.choice(list(COLUMNS), int(g.integers(2, 6)), replace=False)
        table = pd.DataFrame({"id": [f"c{i}" for i in range(n)]} | {name: COLUMNS[name](g, n) for name in names})
        table["x"] = g.uniform(size=n).round(1)
        if g.random() < 0.4:
            # Rows with the features of others.
            table.loc[n - 4 :, table.columns[1:]] = table.loc[:3, table.columns[1:]].to_numpy()
            table = table.astype({name: kind for name, kind in table.infer_objects().dtypes.items() if name != "id"})
        table["group"] = g.choice(["A", "B"], n)
        self.table, self.later = table.iloc[: n - 3].reset_index(drop=True), table.iloc[n - 3 :].reset_index(drop=True)
        self.begun, self.path = self.table, folder / "journal"
        self.options: dict[str, Any] = {"columns": {"group": "ignore"}}
        if g.random() < 0.3:
            self.options["candidates"] = "group == 'A'"
        if g.random() < 0.2:
            self.options["dtype"] = torch.float32
        self.shape, self.truth = VALUES[str(g.choice(list(VALUES)))], np.sin(4 * table["x"]) + 0.3 * g.normal(size=n)
        self.told: list[tuple[int, float]] = []
        self.open: list[int] = []
        self.excluded: set[int] = set()
        self.journal = tb.Journal(self.path, every=int(g.integers(1, 4)))
        self.campaigns = [self.made(), self.made(self.journal), self.made(minimize=True)]

    @property
    def n(self) -> int:
        return len(self.table)

    @property
    def offered(self) -> np.ndarray:
        """The rows that fulfil the condition of the campaigns."""
        return (self.table["group"] == "A").to_numpy() | ("candidates" not in self.options)

    def made(self, journal: Any = None, **options: Any) -> tb.Campaign:
        return tb.Campaign(self.begun, "y", journal, **self.options, **options)

    def value(self, row: int) -> float:
        return self.shape(float(self.truth[row] + 0.1 * self.g.normal()))

    def ids(self, rows: Any) -> list[str]:
        return [f"c{row}" for row in rows]

    def rows(self, ids: Any) -> list[int]:
        return [int(text[1:]) for text in ids]

    def each(self, call: Callable[[tb.Campaign, float], Any]) -> list[Any] | None:
        """What a call returns of each campaign; None if all refuse it."""
        found: list[Any] = []
        for campaign, unit in zip(self.campaigns, (1.0, 1.0, UNIT), strict=True):
            try:
                found.append(call(campaign, unit))
            except ArgumentError as error:
                found.append(error)
        refused = {isinstance(one, ArgumentError) for one in found}
        assert len(refused) == 1, found
        return None if True in refused else found

    # ------------------------------------------------------------------ calls

    def ask(self) -> None:
        g, count, options = self.g, int(self.g.integers(1, 7)), {}
        where = str(g.choice(["A", "B"])) if g.random() < 0.2 else None
        options |= {"where": {"group": where}} if where else {}
        options |= {"repeats": bool(g.random() < 0.5)} if g.random() < 0.3 else {}
        options |= {"more": True} if g.random() < 0.3 else {}
        options |= {"within": [constraints.Distinct(), constraints.AtMost("group", 4)]} if g.random() < 0.2 else {}
        found = self.each(lambda campaign, unit: campaign.ask(count, **options))
        if found is None:
            return
        picks = [self.rows(plate["id"]) for plate in found]
        assert picks[0] == picks[1] == picks[2]
        assert len(picks[0]) == count + len(self.open) * ("more" in options)
        kept = min(len(self.open), len(picks[0]))
        new = picks[0][kept:]
        assert picks[0][:kept] == self.open[:kept]
        on_offer = self.offered & (where is None or (self.table["group"] == where).to_numpy())
        assert on_offer[new].all()
        assert not self.excluded.intersection(new)
        if options.get("repeats") is False:
            assert not set(new) & {*self.open, *(row for row, _ in self.told)}
        if "within" in options:
            assert len(set(picks[0])) == len(picks[0])
            assert max(Counter(self.table["group"][picks[0]]).values()) <= 4
        self.open += new

    def tell(self) -> None:
        g = self.g
        rows = [int(row) for row in g.permutation(self.open)[: int(g.integers(1, 6))]]
        rows += [int(g.integers(self.n))] if not rows or g.random() < 0.2 else []
        values = [math.nan if place and g.random() < 0.1 else self.value(row) for place, row in enumerate(rows)]
        results = pd.DataFrame({"id": self.ids(rows), "y": values, "plate": g.choice(["one", "two"], len(rows))})
        block = "plate" if g.random() < 0.4 else None
        found = self.each(lambda c, unit: c.tell(results.assign(y=unit * results["y"]), block=block))
        assert found is not None
        failed = sum(map(math.isnan, values))
        assert all((told.measured, told.failed, told.known) == (len(rows) - failed, failed, 0) for told in found)
        self.told += zip(rows, values, strict=True)
        entry = self.campaigns[0].bandit.loop.state.rows.first
        first = list(range(self.n)) if entry is None else entry.tolist()
        before = Counter(first[row] for row in self.open)
        self.open = self.rows(self.campaigns[0].open)
        # A result settles an open row of the same features.
        assert Counter(first[row] for row in self.open) == before - Counter(first[row] for row in rows)

    def plan(self) -> None:
        rows = [int(row) for row in self.g.integers(self.n, size=2)]
        planned = self.each(lambda campaign, unit: campaign.plan(self.ids(rows)))
        assert (planned is None) == bool(self.excluded.intersection(rows))
        for row in [] if planned is None else rows:
            self.open += [row] * (self.open.count(row) < rows.count(row))

    def forget(self) -> None:
        gone = {*self.open[: int(self.g.integers(1, 4))]}
        self.each(lambda campaign, unit: campaign.forget(self.ids(gone)))
        self.open = [row for row in self.open if row not in gone]

    def exclude(self) -> None:
        gone = {int(row) for row in self.g.integers(self.n, size=2)}
        found = self.each(lambda campaign, unit: campaign.exclude(self.ids(gone)))
        assert found is None or found == [len(gone - self.excluded)] * 3
        if found is not None:
            self.excluded |= gone
            self.open = [row for row in self.open if row not in gone]

    def include(self) -> None:
        assert self.each(lambda campaign, unit: campaign.include()) == [len(self.excluded)] * 3
        self.excluded.clear()

    def extend(self) -> None:
        more = len(self.later) if self.n == len(self.begun) else 0
        found = self.each(lambda campaign, unit: campaign.extend(self.later))
        # A cell may have no place in the encoding, such as a category that was not in the table.
        if found is not None:
            assert found == [more] * 3
            self.table = pd.concat([self.begun, self.later], ignore_index=True)

    def resume(self) -> None:
        """Go on from the journal, after `close` or as after a kill."""
        end = self.g.choice(["closed", "killed", "torn", "without its checkpoint"])
        if end == "closed":
            self.campaigns[1].close()
        self.journal.close()
        if end == "without its checkpoint":
            self.journal.checkpoint_path.unlink(missing_ok=True)
        if end == "torn":
            line = self.path.read_bytes().splitlines()[-1]
            with open(self.path, "ab") as file:
                file.write(line[: int(self.g.integers(1, len(line)))])
        self.journal = tb.Journal(self.path, every=self.journal.every)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JournalWarning)
            self.campaigns[1] = self.made(self.journal)

    # ------------------------------------------------------------------ what must be true

    def check(self) -> None:
        for campaign, unit in zip(self.campaigns, (1.0, 1.0, UNIT), strict=True):
            assert campaign.open == self.ids(self.open)
            assert campaign.excluded == self.ids(sorted(self.excluded))
            results = campaign.results()
            assert results["id"].tolist() == self.ids(row for row, _ in self.told)
            np.testing.assert_array_equal(results["y"], [unit * value for _, value in self.told])

    def check_model(self) -> None:
        values: dict[int, list[float]] = {}
        for row, value in self.told:
            if not math.isnan(value):
                values.setdefault(row, []).append(value)
        if not values:
            return
        count, found = sum(map(len, values.values())), []
        for campaign, unit in zip(self.campaigns, (1.0, 1.0, UNIT), strict=True):
            best, every = campaign.best(4), campaign.predict()
            own = np.concatenate([best[["expected", "deviation"]], every[["expected", "deviation"]]])
            # Deviations are not known as long as all results are equal.
            differ = len({value for told in values.values() for value in told}) > 1
            assert np.isfinite(own[:, 0]).all()
            assert (own[:, 1] >= 0).all() if differ else np.isnan(own[:, 1]).all()
            rows = self.rows(best["id"])
            assert best["times"].tolist() == [len(values[row]) for row in rows]
            np.testing.assert_allclose(best["measured"], [unit * np.mean(values[row]) for row in rows])
            assert (np.diff(np.sign(unit) * best["expected"]) <= 1e-6 * np.abs(best["expected"]).max()).all()
            lines = campaign.explain().lines()
            assert not any("nan" in line for line in lines)
            assert bool(campaign.should_stop(Budget(count)))
            assert not campaign.should_stop(Budget(count + 1))
            found.append((rows, own * [1 / unit, 1 / abs(unit)], lines))
        assert found[0][2] == found[1][2]
        scale = np.ptp(found[0][1][:, 0]) + np.nanmax(found[0][1][:, 1], initial=0)
        for rows, own, _ in found[1:]:
            assert rows == found[0][0]
            np.testing.assert_allclose(own, found[0][1], rtol=1e-6, atol=1e-5 * scale)

    def check_renewed(self) -> None:
        """A campaign that goes on with the rows in another order is one that began with them and was told the same results."""
        campaign, table = self.campaigns[1], self.table.sample(frac=1, random_state=0).reset_index(drop=True)
        results, opened, excluded = campaign.results(), campaign.open, campaign.excluded
        renewed = campaign.renew(table, self.path.with_name("renewed"))
        self.begun = table
        fresh = self.made()
        for _, told in results.groupby("call"):
            blocks = "block" in told and bool(told["block"].notna().all())
            fresh.tell(told, block="block" if blocks else None)
        if excluded:
            fresh.exclude(excluded)
        if opened:
            fresh.plan(opened)
        assert (renewed.open, sorted(renewed.excluded)) == (opened, sorted(excluded))
        pd.testing.assert_frame_equal(renewed.results(), fresh.results())
        assert (renewed.results()["id"].tolist(), renewed.results()["call"].tolist()) == (
            results["id"].tolist(),
            results["call"].tolist(),
        )
        if bool((fresh.bandit.pulls > 0).any()):
            pd.testing.assert_frame_equal(renewed.predict(), fresh.predict(), check_exact=True)
        plates = []
        for one in (renewed, fresh):
            try:
                plates.append(one.ask(3, more=True)["id"].tolist())
            except ArgumentError as error:
                plates.append([str(error)])
        assert plates[0] == plates[1]


CALLS = ["ask"] * 6 + ["tell"] * 6 + ["forget", "plan", "exclude", "include", "extend", "resume", "resume", "check_model"]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 12))])
@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")
def test_calls_in_any_order(seed: int, tmp_path: Path):
    campaigns = AnyOrder(seed, tmp_path)
    for call in campaigns.g.choice(CALLS, 25):
        getattr(campaigns, call)()
        campaigns.check()
    campaigns.check_model()
    campaigns.check_renewed()
