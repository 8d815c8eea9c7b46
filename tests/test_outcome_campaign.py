"""Campaigns of several outcomes: tables with empty cells, limits, fronts with ids, journals and commands."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from problems import OFF_SCALE
from scipy import stats
from test_campaign import frame, yields
from test_campaign_cli import RUNNER, plate, refused, run

import torchbandits as tb
from torchbandits import outcomes
from torchbandits.campaigns import outcome_campaign, outcome_page
from torchbandits.cli import app
from torchbandits.errors import ArgumentError, DiagnosticWarning, StateError, TorchBanditsError, UnsupportedError

NAMES = ("yield", "cost", "toxicity")
LIMIT = 55.0
RBF = gpytorch.kernels.RBFKernel().double()


def model() -> Any:
    """A fast model that is never fitted."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    kernel.outputscale = 400.0
    return tb.gp_ucb(kernel, noise_std=1.0, width=tb.widths.Constant(2.0), prior_mean="estimate")


def truth(rows: pd.DataFrame) -> pd.DataFrame:
    """The measured values of rows, with their ids."""
    values = {"yield": yields(rows), "cost": 10 + rows["temp"] / 10, "toxicity": rows["temp"] - 20 * rows["dry"]}
    return rows[["id"]].assign(**values)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use models that are never fitted, unless a test passes other models."""
    monkeypatch.setattr(outcome_campaign, "auto", model)


def campaign(table: Any = None, objectives: Any = ("yield", "cost"), **options: Any) -> tb.OutcomeCampaign:
    own: dict[str, Any] = {"minimize": ["cost"], "at_most": {"toxicity": LIMIT}} | options
    return tb.OutcomeCampaign(frame() if table is None else table, objectives, **own)


def played(c: tb.OutcomeCampaign, batches: int = 4) -> tb.OutcomeCampaign:
    for _ in range(batches):
        rows = c.ask(5)
        c.tell(truth(rows)[["id", *c.outcomes]])
    return c


# ---------------------------------------------------------------------- outcomes that are known


def priced(n: int = 30) -> pd.DataFrame:
    table = frame(n)
    return table.assign(cost=truth(table)["cost"] + np.arange(n) % 7)


def measured(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[["id"]].assign(**{"yield": yields(rows)})


def test_an_outcome_that_is_the_same_again_counts_beside_another_that_is_not(tmp_path: Path):
    """A second measurement of a row, whose yes or no is the same as before; and the same file told again for open rows."""
    table, file = pd.DataFrame({"id": list("ABCD"), "x": [1.0, 2.0, 3.0, 4.0]}), tmp_path / "results.csv"
    c = tb.OutcomeCampaign(table, ["u", "passed"], tmp_path / "j")
    for u, new in ((5.0, 2), (5.2, 2), (5.0, 0)):
        c.plan(["C"])
        pd.DataFrame({"id": ["C"], "u": [u], "passed": [1]}).to_csv(file, index=False)
        assert c.tell(file).measured == new
        c.close()
        c = tb.OutcomeCampaign(table, journal=tmp_path / "j")
    for without in ("u", "passed"):  # a column is left out of a file that was told
        pd.read_csv(file).drop(columns=without).to_csv(file, index=False)
        assert c.tell(file).measured == 0
        pd.DataFrame({"id": ["C"], "u": [5.0], "passed": [1]}).to_csv(file, index=False)
    assert c.results()[["u", "passed"]].to_numpy().tolist() == [[5.0, 1.0], [5.2, 1.0]]


def test_a_file_that_grows_adds_its_new_rows_though_all_of_them_are_open(tmp_path: Path):
    c = campaign(priced(), at_most=None)
    first, other = c.plan(frame()["id"][:1])["id"].tolist()[0], frame()["id"].tolist()[1]
    file = tmp_path / "results.csv"
    for names, new in (([first], 1), ([first, other], 1)):
        c.plan(names)
        pd.DataFrame({"id": names, "yield": [50.0, 60.0][: len(names)]}).to_csv(file, index=False)
        assert c.tell(file).measured == new
    assert c.results()["id"].tolist() == [first, other]
    assert c.open == [first]


def test_an_objective_with_a_value_in_every_row_is_known_and_not_measured(tmp_path: Path):
    table, limits = priced(), {"at_most": None}
    c = campaign(table, journal=tmp_path / "lab.journal", **limits)
    assert c.outcomes == ("yield",)
    assert c.objectives == {"yield": "maximize", "cost": "minimize"}
    assert str(c).startswith("OutcomeCampaign for yield (measured) and cost (known): 30 candidates")
    (kind,) = [decision for decision in c.columns if decision.column == "cost"]
    assert (kind.kind, kind.features, kind.why) == ("known", 0, "a value in every row: not measured")
    for _ in range(3):
        rows = c.ask(4)
        assert "cost expected" not in rows
        assert rows["cost"].tolist() == table.set_index("id").loc[rows["id"], "cost"].tolist()
        assert str(c.tell(measured(rows))) == "4 measurements and 0 failed evaluations told."
    front = c.front()
    assert front["yield expected"].is_monotonic_decreasing
    assert front["cost"].is_monotonic_decreasing, "a cheaper row is expected to have less yield"
    assert set(c.front(measured=True)["id"]) == set(c.best(30)["id"])
    page = c.report(tmp_path / "page.html").read_text()
    assert "trade-offs between yield and cost" in page
    assert "measurements: 12 of yield; 0 failed evaluations; 0 pending rows; known for all rows: cost" in page
    assert "yield and cost of each row" in page
    expected = c.ask(3)
    c.close()
    again = tb.OutcomeCampaign(table, journal=tmp_path / "lab.journal")
    pd.testing.assert_frame_equal(again.ask(3), expected)
    pd.testing.assert_frame_equal(again.front(), front)
    again.close()
    with pytest.raises(StateError, match="has changed since the campaign began \\(column 'cost'\\)"):
        tb.OutcomeCampaign(table.assign(cost=table["cost"] + 1), journal=tmp_path / "lab.journal")
    with pytest.raises(StateError, match="lacks column 'cost'"):
        tb.OutcomeCampaign(table.drop(columns="cost"), journal=tmp_path / "lab.journal")
    assert json.loads((tmp_path / "lab.journal.campaign.json").read_text())["format"] == 3


def test_a_column_with_a_few_empty_cells_is_spoken_of():
    table = priced()
    table["cost"] = table["cost"].where(table.index != 7)
    with pytest.warns(
        DiagnosticWarning, match=r"'cost' has a value in 29 of the 30 rows, .* fill in .* \(--column cost=measured\)"
    ):
        c = campaign(table, at_most=None)
    assert len(c.results()) == 29
    campaign(table, at_most=None, columns={"cost": "measured"})
    table["yield"] = yields(table).where(table.index > 7)
    campaign(table, at_most=None)


def test_the_first_objective_may_be_known_and_sorts_the_front():
    c = campaign(priced(), ["cost", "yield"], at_most=None)
    for _ in range(2):
        c.tell(measured(c.ask(4)))
    assert c.front()["cost"].is_monotonic_increasing


def test_known_limits_are_kept_by_every_row_that_is_asked_for(tmp_path: Path):
    table = priced()
    limit = float(table["cost"].median())
    c = campaign(table, ["yield"], minimize=[], at_most={"cost": limit})
    for _ in range(3):
        rows = c.ask(4)
        assert (rows["cost"] <= limit).all()
        assert (rows["keeps limits"] == 1).all()
        c.tell(measured(rows))
    best = c.best(3)
    assert (best["cost"] <= limit).all()
    few = campaign(table, ["yield"], minimize=[], at_most={"cost": float(np.sort(table["cost"])[4])})
    assert len(few.ask(5)) == 5
    said = rf"5 of the table can be selected: ask for fewer\. {len(table) - 5} rows of it break a limit on 'cost', whose values"
    with pytest.raises(ArgumentError, match=f"6 more rows are asked for, and {said}"):
        few.ask(6, more=True)
    with pytest.raises(ArgumentError, match="no row of the table keeps the limits on column 'cost': widen them"):
        campaign(table, ["yield"], minimize=[], at_most={"cost": -1.0})
    least = float(yields(table).median())
    cheapest = campaign(table, ["cost"], minimize=["cost"], at_most=None, at_least={"yield": least})
    for _ in range(5):
        cheapest.tell(measured(cheapest.ask(2)))
    found = cheapest.best(1)
    assert float(found["keeps limits"].iloc[0]) > 0.95
    assert "Best rows" in cheapest.report(tmp_path / "page.html").read_text()


def test_a_full_column_that_is_measured_again_is_told_as_history():
    table = priced(12)
    c = campaign(table, at_most=None, columns={"cost": "measured"})
    assert c.outcomes == ("yield", "cost")
    assert c.bandit.counts.sum(dim=-1).tolist() == [0, 12]
    with pytest.raises(ArgumentError, match="'cost' is the known and can't be a feature"):
        campaign(table, at_most=None, columns={"cost": "number"})
    for wrong in ({"temp": "measured"}, {"dry": "measured"}):
        with pytest.raises(ArgumentError, match="must be one of number"):
            campaign(table, at_most=None, columns=wrong)
    with pytest.raises(ArgumentError, match="there is nothing left to find out"):
        campaign(table, ["cost"], at_most={"cost": 20.0}, columns={"cost": "measured"})


def test_results_with_other_known_values_are_named():
    c = campaign(priced(), at_most=None)
    rows = c.ask(3)
    told = measured(rows).assign(cost=rows["cost"])
    assert c.tell(told[:1]).notes == ()
    other = told[1:].assign(cost=told["cost"] + 5)
    (note,) = c.tell(other).notes
    assert note.startswith("'cost' has a value in every row of the candidates, so that it is not learned")
    assert "2 results differ: " in note
    assert "(--column cost=measured)" in note


def test_rows_are_added_with_their_known_values(tmp_path: Path):
    table = priced()
    c = campaign(table[:25], at_most=None, journal=tmp_path / "lab.journal")
    c.tell(measured(c.ask(4)))
    with pytest.raises(ArgumentError, match="column 'cost', is empty: every row needs a value"):
        c.extend(table.assign(cost=table["cost"].where(table.index != 27)))
    with pytest.raises(ArgumentError, match="'cost', is infinite in row 27: correct it, since every row needs a value"):
        c.extend(table.assign(cost=table["cost"].where(table.index != 27, np.inf)))
    with pytest.raises(ArgumentError, match="no column 'cost'"):
        c.extend(table[25:].drop(columns="cost"))
    assert c.extend(table) == 5
    c.tell(measured(c.ask(4)))
    rows = c.ask(22, repeats=False)
    front = c.front()
    c.close()
    again = tb.OutcomeCampaign(table[:25], journal=tmp_path / "lab.journal")
    pd.testing.assert_frame_equal(again.front(), front)
    pd.testing.assert_frame_equal(again.ask(22, repeats=False), rows)
    assert {"025", "026", "027", "028", "029"} <= {*rows["id"], *again.results()["id"]}


def test_of_equal_rows_the_best_by_what_is_known_is_selected(tmp_path: Path):
    """As of one compound of several suppliers."""
    table = priced(12)
    dear, cheap = (
        table.assign(id=[f"{name}{i}" for i in range(12)], cost=table["cost"] + by) for name, by in (("d", 3), ("c", -3))
    )
    whole = pd.concat([table, dear, cheap], ignore_index=True)
    c = campaign(whole, at_most=None, journal=tmp_path / "lab.journal")
    rows = c.ask(6)
    assert rows["id"].str.startswith("c").all()
    c.tell(measured(rows))
    assert c.front()["id"].str.startswith("c").all()
    with pytest.raises(ArgumentError, match="13 more rows are asked for, and 12"):
        c.ask(13)
    left = [f"c{i}" for i in range(12) if f"c{i}" not in {*rows["id"]}]
    with pytest.warns(DiagnosticWarning, match="still counts with the cost of 'c"):
        c.exclude(left[:1])
    rows = c.ask(6, repeats=False)
    place = int(left[0][1:])
    assert {*rows["id"]} == {f"{place:03d}", *left[1:]}, "out of stock, so that the second cheapest is selected"
    c.forget()
    # A supplier that is cheaper still.
    c.extend(table.assign(id=[f"e{i}" for i in range(12)], cost=table["cost"] - 5))
    assert c.ask(5, repeats=False)["id"].str.startswith("e").all()
    expected = c.front()
    assert {text[0] for text in expected["id"]} <= {"c", "e"}
    c.close()
    again = tb.OutcomeCampaign(whole, journal=tmp_path / "lab.journal")
    pd.testing.assert_frame_equal(again.front(), expected)
    again.close()
    with pytest.raises(ArgumentError, match=r"objectives and limits: rows 'd0' and '000' .*neither row is the better one"):
        campaign(whole, ["yield"], minimize=[], at_least={"cost": 5.0}, at_most={"cost": 500.0})
    # Cheap but heavy, or light but dear.
    heavy = whole.assign(weight=np.where(whole["id"].str.startswith("c"), 9.0, 1.0))
    with pytest.raises(
        ArgumentError, match=r"rows '000' and 'c0' .* in column 'weight'|rows 'c0' and '000' .* in column 'weight'"
    ):
        campaign(heavy, ["yield", "cost", "weight"], minimize=["cost", "weight"], at_most=None)


def test_a_row_that_breaks_a_limit_does_not_stand_for_its_equals():
    """A cheap compound that is not pure enough gave its price to the pure one, or was said to be neither better nor worse."""
    table = priced(12)
    cheap = table.assign(id=[f"c{i}" for i in range(12)], cost=table["cost"] - 3, purity=90.0)
    pure = table.assign(id=[f"p{i}" for i in range(12)], cost=table["cost"] + 5, purity=99.0)
    dear = table.assign(id=[f"d{i}" for i in range(12)], cost=table["cost"] + 9, purity=99.5)
    c = campaign(pd.concat([cheap, pure], ignore_index=True), at_most=None, at_least={"purity": 95.0})
    rows = c.ask(4)
    assert rows["id"].str.startswith("p").all()
    c.tell(measured(rows))
    assert c.front()["id"].str.startswith("p").all()
    prices = c.bandit.loop.state.rows.known[..., 0, :].flatten()
    np.testing.assert_array_equal(prices, np.tile(pure["cost"], 2), err_msg="what the pure one costs")
    with pytest.raises(ArgumentError, match=r"rows 'p0' and 'd0' .*neither row is the better one"):
        campaign(pd.concat([cheap, pure, dear], ignore_index=True), at_most=None, at_least={"purity": 95.0})
    # A limit against the objective: the cheapest row is below it.
    both = pd.concat([cheap.assign(cost=1.0), pure.assign(cost=12.0)], ignore_index=True).drop(columns="purity")
    c = campaign(both, at_most=None, at_least={"cost": 10.0})
    assert c.ask(6)["id"].str.startswith("p").all()
    assert bool((c.bandit.loop.state.rows.known[..., 0, :] == 12.0).all())


def test_of_equal_rows_the_best_of_those_on_offer_is_selected():
    """The order of the table does not count, and a condition on the supplier may leave the dear ones only."""
    table = priced(12)
    suppliers = (("dear", 3.0), ("cheap", -3.0), ("usual", 0.0))
    each = [table.assign(id=[f"{s}{i}" for i in range(12)], cost=table["cost"] + by, supplier=s) for s, by in suppliers]
    whole, ignored = pd.concat(each, ignore_index=True), {"supplier": "ignore"}
    some = campaign(whole, at_most=None, columns=ignored, candidates="supplier != 'cheap'")
    rows = some.ask(4)
    assert set(rows["supplier"]) == {"usual"}
    some.tell(measured(rows))
    assert set(some.front()["supplier"]) == {"usual"}
    some.exclude(where="supplier == 'usual'")
    assert set(some.ask(4, repeats=False)["supplier"]) == {"dear"}
    every = campaign(whole, at_most=None, columns=ignored)
    assert set(every.ask(2)["supplier"]) == {"cheap"}
    assert set(every.ask(12, more=True, where="supplier != 'cheap'")["supplier"][2:]) == {"usual"}
    assert set(every.ask(1, more=True, where={"supplier": ["dear"]})["supplier"][14:]) == {"dear"}
    # Constraints that the cheapest rows alone do not meet take the next best ones, and no more of them than need be.
    limited = campaign(whole, at_most=None, columns=ignored, candidates="id != 'usual0'")
    limited.exclude(["usual1"])
    rows = limited.ask(7, within=[tb.constraints.AtMost("supplier", 3), tb.constraints.Distinct()], where="id != 'usual2'")
    assert rows["supplier"].value_counts().to_dict() == {"cheap": 3, "usual": 3, "dear": 1}
    assert not {"usual0", "usual1", "usual2"} & {*rows["id"]}
    with pytest.raises(ArgumentError, match="no batch was found that meets the constraints: no further row fits after 2 of 3"):
        limited.ask(10, within=tb.constraints.AtMost("supplier", 3))


def test_exclude_says_which_price_still_counts():
    table = priced(12)
    both = pd.concat([table.assign(id=[f"dear{i}" for i in range(12)], cost=table["cost"] + 5), table], ignore_index=True)
    c = campaign(both, at_most=None)
    assert c.exclude(["dear3"]) == 1
    said = (
        f"'dear4' (and 1 more row) still counts with the cost of '004', {both['cost'][16]:g} in place of {both['cost'][4]:g}: "
    )
    with pytest.warns(DiagnosticWarning, match=re.escape(said)) as found:
        c.exclude(["003", "004", "005"])
    assert len(found) == 1, "'dear3' is excluded, too"


def test_a_row_that_breaks_a_known_limit_does_not_keep_it_by_an_equal_row():
    table = priced(12)
    whole = pd.concat([table.assign(id=[f"dear{i}" for i in range(12)], cost=table["cost"] + 500), table], ignore_index=True)
    for objectives in (["yield"], ["yield", "cost"]):
        c = campaign(whole, objectives, minimize=objectives[1:], at_most={"cost": 500.0})
        c.tell(measured(whole.iloc[:6]))
        assert (c.predict(["dear0", "dear7"])["keeps limits"] == 0).all()
        assert (c.predict(["000", "007"])["keeps limits"] == 1).all()
        c.tell(measured(whole.iloc[18:20]))
        first = c.best(2)["id"]
        assert not first.str.startswith("dear").any()
        if len(objectives) > 1:
            c.exclude([f"{i:03d}" for i in range(8, 12)])
            for front in (c.front(), c.front(measured=True)):
                assert not front["id"].str.startswith("dear").any()
                assert not {*front["id"]} & {f"{i:03d}" for i in range(8, 12)}


@pytest.mark.parametrize("kind", ["date", "text"])
def test_known_dates_and_texts_are_sorted_and_drawn_as_numbers(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    days = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(12) % 5, unit="D")
    cost = days if kind == "date" else np.where(np.arange(12) % 3 == 0, "no", "Yes")
    c, drawn = campaign(priced(12).assign(cost=cost), ["cost", "yield"], minimize=["cost"], at_most=None), []
    rows = c.ask(6)
    c.tell(rows.assign(**{"yield": np.arange(6.0)}))
    front = c.front()["cost"].tolist()
    assert front == sorted(front, key=str.casefold if kind == "text" else None)

    draw = outcome_page.trade_offs

    def record(*args: Any, **options: Any) -> Any:
        drawn.append((options["expected"][:, 0], options["deviation"][:, 0]))
        return draw(*args, **options)

    monkeypatch.setattr(outcome_page, "trade_offs", record)
    c.report(tmp_path / "page.html")
    first = (pd.Timestamp("2026-01-01") - pd.Timestamp(0)).days if kind == "date" else 0
    ((expected, deviation),) = drawn
    assert expected[0] == first
    assert set(expected - first) <= {*range(5)}
    assert (deviation == 0).all()


def test_a_policy_of_ones_own_names_what_is_known():
    own = outcomes.pareto({"yield": model()}, known=["cost"], minimize=["cost"])
    assert campaign(priced(), at_most=None, policy=own).ask(2).shape[0] == 2
    with pytest.raises(ArgumentError, match=r"its outcomes are yield, cost, and those of the campaign are yield"):
        campaign(priced(), at_most=None, policy=outcomes.pareto({"yield": model(), "cost": model()}))
    with pytest.raises(ArgumentError, match=r"its known outcomes \(known=\) are none, and those of the campaign are cost"):
        campaign(priced(), at_most=None, policy=outcomes.pareto({"yield": model()}))
    with pytest.raises(ArgumentError, match="noise_std has no number for yield"):
        campaign(priced(), at_most=None, noise_std={"cost": 1.0})
    assert campaign(priced(), at_most=None, noise_std={"yield": 1.0}).ask(2).shape[0] == 2


def test_known_objectives_by_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    priced().to_csv("candidates.csv", index=False)
    said = run("new", "candidates.csv", "--objective", "yield", "--objective", "cost:min")
    assert "known" in said
    assert "No value of yield is known yet." in said
    for _ in range(2):
        rows = plate(run("ask", "-n", "4"))
        measured(rows).to_csv("results.csv", index=False)
        run("tell", "results.csv")
    assert "cost" in plate(run("front")).columns
    assert len(plate(run("best", "-k", "2"))) == 2
    rows = plate(run("results"))
    assert rows["cost"].notna().all()
    Path("again").mkdir()
    run(
        "new",
        "candidates.csv",
        "--objective",
        "yield",
        "--objective",
        "cost:min",
        "--folder",
        "again/lab",
        "--column",
        "cost=measured",
    )


# ---------------------------------------------------------------------- asking and telling


@OFF_SCALE
def test_rows_are_chosen_for_all_outcomes_and_empty_cells_were_not_measured():
    c = campaign()
    assert c.outcomes == NAMES
    rows = c.ask(4)
    assert list(rows.columns[-8:]) == [
        *(f"{name} {what}" for name in NAMES for what in ("expected", "deviation")),
        "keeps limits",
        "rank",
    ]
    assert rows["yield expected"].isna().all()
    pd.testing.assert_frame_equal(c.ask(4), rows)
    results = truth(rows)
    results.loc[0, "cost"] = np.nan
    results.loc[1, list(NAMES)] = np.nan
    told = c.tell(results)
    assert (told.measured, told.failed, told.unasked) == (8, 1, 0)
    assert c.open == []
    assert c.bandit.pulls.tolist() == [3, 2, 3]
    late = c.tell({"id": [rows["id"][0]], "cost": [11.5]})
    assert (late.measured, late.unasked) == (1, 0), "what is measured later was asked for"
    assert c.tell({"id": ["059"], "toxicity": [60.0]}).unasked == 1
    # The campaign equals a bandit that is told the same rewards.
    own = tb.OutcomeBandit(c.bandit.policy, c.bandit.arms)
    places = [int(text) for text in rows["id"]]
    values = torch.tensor(results[list(NAMES)].to_numpy())
    own.tell(torch.tensor([places[0], places[2], places[3]]), values[[0, 2, 3]])
    own.tell(torch.tensor([places[0]]), {"cost": [11.5]})
    own.tell(torch.tensor([59]), {"toxicity": [60.0]})
    known = own.posterior(own.arms)
    plate_now = c.ask(6)
    index = [int(text) for text in plate_now["id"]]
    for j, name in enumerate(NAMES):
        np.testing.assert_allclose(plate_now[f"{name} expected"], known.mean[j, index], rtol=1e-8)
        np.testing.assert_allclose(plate_now[f"{name} deviation"], known.variance[j, index].sqrt(), rtol=1e-6)
    chance = stats.norm.cdf((LIMIT - known.mean[2, index]) / known.variance[2, index].sqrt())
    np.testing.assert_allclose(plate_now["keeps limits"], chance, rtol=1e-6, atol=1e-9)


def test_a_file_that_grew_counts_its_new_cells_alone(tmp_path: Path):
    c, path = campaign(journal=tmp_path / "lab"), tmp_path / "results.csv"
    results = truth(c.ask(3))
    results.assign(toxicity=np.nan).to_csv(path, index=False)
    assert (c.tell(path).measured, c.bandit.pulls.tolist()) == (6, [3, 3, 0])
    assert "3 rows had been told before" in str(c.tell(path))
    results.to_csv(path, index=False)
    told = c.tell(path)
    assert (told.measured, told.known, c.bandit.pulls.tolist()) == (3, 0, [3, 3, 3])
    assert c.tell(path, again=True).measured == 9
    c.close()
    again = campaign(journal=tmp_path / "lab")
    assert again.tell(path).measured == 0
    assert again.bandit.pulls.tolist() == [6, 6, 6]


def test_values_in_the_table_are_history_of_each_outcome():
    table = frame()
    full = truth(table)
    table["yield"] = full["yield"].where(table.index < 5)
    table["toxicity"] = full["toxicity"].where((table.index > 2) & (table.index < 9))
    c = campaign(table)
    assert c.bandit.pulls.tolist() == [5, 0, 6]
    assert [c.columns[name].kind for name in ("yield", "toxicity")] == ["objective", "limit"]
    assert "cost" not in c.ask(2).columns
    whole = table.assign(**{name: full[name] for name in NAMES})
    with pytest.raises(ArgumentError, match="every row of the table has a value in column 'yield', 'cost', 'toxicity'"):
        campaign(whole)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("closed", [True, False])
def test_a_campaign_goes_on_where_it_was(tmp_path: Path, closed: bool):
    c = played(campaign(journal=tmp_path / "lab"))
    rows, front = c.ask(3), c.front()
    values = c._records.values
    if closed:
        c.close()
    else:
        c._journal.close()  # like a killed process, which writes nothing more
    again = tb.OutcomeCampaign(frame(), journal=tmp_path / "lab")
    pd.testing.assert_frame_equal(again.ask(3), rows)
    pd.testing.assert_frame_equal(again.front(), front)
    np.testing.assert_array_equal(again._records.values, values)
    again.close()
    with pytest.raises(StateError, match=r"the objectives was .* is"):
        campaign(journal=tmp_path / "lab", minimize=[])
    with pytest.raises(StateError, match=r"open it by tb\.OutcomeCampaign"):
        tb.Campaign(frame(), journal=tmp_path / "lab")
    tb.Campaign(frame(), "yield", tmp_path / "one", policy=model()).close()
    with pytest.raises(StateError, match=r"open it by tb\.Campaign"):
        tb.OutcomeCampaign(frame(), journal=tmp_path / "one")
    saved = json.loads((tmp_path / "one.campaign.json").read_text())
    assert saved["format"] == 1
    assert not {"objectives", "at_least", "at_most"} & saved.keys(), "earlier versions go on with it"


def test_failed_rows_conditions_and_constraints():
    c = campaign()
    rows = c.ask(6, where="temp < 90", within=[tb.constraints.Distinct(), tb.constraints.AtMost("solvent", 3)])
    assert rows["temp"].max() < 90
    assert rows["solvent"].value_counts().max() <= 3
    assert rows["id"].is_unique
    c.forget(rows["id"][:2].tolist())
    assert c.open == rows["id"][2:].tolist()
    c.tell(truth(rows[2:]))
    fresh = c.ask(8, repeats=False)
    assert not set(fresh["id"]) & set(rows["id"][2:])
    with pytest.raises(ArgumentError, match="no row of measured has a value in column 'yield', 'cost', 'toxicity'"):
        c.tell(truth(fresh).assign(**dict.fromkeys(NAMES, np.nan)))
    assert len(c.open) == 8
    one = truth(fresh.head(1)).assign(**dict.fromkeys(NAMES, np.nan))
    assert (c.tell(one).failed, len(c.open)) == (1, 7)
    assert one["id"].item() not in c.ask(40, repeats=False)["id"].tolist()
    assert "Failed again, and never measured" in str(c.tell(one))
    assert c.explain().words.attempt == "evaluation"


@pytest.mark.exhaustive
def test_failures_are_evaluations_and_rules_count_measurements(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outcome_campaign, "auto", tb.auto)
    c = played(campaign(), 1)
    c.tell(truth(c.ask(1)).assign(**dict.fromkeys(NAMES, np.nan)))
    assert c.explain().lines()[-1].startswith("1 evaluation failed")
    late = truth(c.ask(2, repeats=False)).assign(toxicity=np.nan)
    c.tell(late)
    assert c.should_stop(tb.stopping.Budget(pulls=5)).reason == "7 measurements were told, of a budget of 5"
    assert c.should_stop(tb.stopping.Budget(pulls=7)), "a row counts once, although its toxicity was not measured"
    assert not c.should_stop(tb.stopping.Budget(pulls=8))
    with pytest.raises(UnsupportedError, match=r"\(--within, --price\) are for campaigns of one objective without limits"):
        c.should_stop(tb.stopping.ProbableRegret(1.0))


@pytest.mark.exhaustive
def test_costs_are_heeded_and_held(tmp_path: Path):
    table = frame()
    price = np.where(np.arange(len(table)) % 2, 1.0, 50.0)
    priced, bare = table.assign(price=price), campaign(table)
    c = campaign(priced, cost="price", journal=tmp_path / "lab")
    assert c.columns["price"].kind == "cost"
    for one in (played(c), played(bare)):
        rows = [int(row) for row in one._records.rows]
        cheap = np.mean([row % 2 for row in rows[10:]])
        assert (cheap > 0.9) == (one is c)
    own = tb.OutcomeBandit(c.bandit.policy, c.bandit.arms, costs=torch.tensor(price))
    values = torch.tensor(c._records.values)
    rows = torch.tensor(c._records.rows)
    for start in range(0, len(rows), 5):
        own.tell(rows[start : start + 5], values[start : start + 5])
    own.generators[0].set_state(c.bandit.generators[0].get_state())
    assert c.ask(3)["id"].tolist() == [f"{int(arm):03d}" for arm in own.ask(exactly=3).index]
    opened = c.ask(3)
    c.close()
    again = tb.OutcomeCampaign(priced, journal=tmp_path / "lab")
    pd.testing.assert_frame_equal(again.ask(3), opened)
    again.close()
    with pytest.raises(StateError, match="the column of the costs was 'price', is 'temp'"):
        campaign(priced, cost="temp", journal=tmp_path / "lab")


def test_columns_of_noise_variances_are_the_bandits(tmp_path: Path):
    noise = {"yield": 1.0, "cost": 0.1, "toxicity": 2.0}
    models = {name: tb.gp_ucb(model().kernel, noise_std=noise[name], width=tb.widths.Constant(2.0)) for name in NAMES}
    policy = outcomes.pareto(models, objectives=["yield", "cost"], minimize=["cost"], at_most={"toxicity": LIMIT})
    c = campaign(journal=tmp_path / "lab", policy=policy)
    rows = truth(frame().head(6)).assign(v=[0.25, np.nan, 9.0] * 2, w=[1.0, 0.04, np.nan] * 2)
    assert c.tell(rows, noise_var={"yield": "v", "toxicity": "w"}).measured == 18
    variances = torch.tensor([[0.25, 0.01, 1.0], [1.0, 0.01, 0.04], [9.0, 0.01, 4.0]] * 2, dtype=torch.float64)
    values = torch.tensor(rows[list(NAMES)].to_numpy())
    # The reference is a dense Gaussian process of each outcome.
    arms = c.bandit.arms
    K = policy.engine.kernel(arms).to_dense().detach()
    found = c.bandit.posterior(arms)
    for j in range(3):
        gain = torch.linalg.solve(K[j, :6, :6] + torch.diag(variances[:, j]), K[j, :6]).T
        torch.testing.assert_close(found.mean[j], gain @ values[:, j], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.variance[j], (K[j] - gain @ K[j, :6]).diagonal(), rtol=1e-5, atol=1e-6)
    c.close()
    again = campaign(journal=tmp_path / "lab", policy=policy)
    torch.testing.assert_close(again.bandit.posterior(arms).mean, found.mean)
    again.close()


def test_models_from_data_take_no_noise_of_single_results(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outcome_campaign, "auto", tb.auto)
    c = campaign()
    with pytest.raises(UnsupportedError, match=r"begin one with noise_std= \(--noise-std\).* takes no noise variance"):
        c.tell(truth(frame().head(3)).assign(v=1.0), noise_var={"yield": "v"})
    assert c.bandit.pulls.tolist() == [0, 0, 0]


# ---------------------------------------------------------------------- fronts


def test_the_front_has_the_ids_of_what_no_row_beats_within_the_limits():
    c = played(campaign())
    known = c.bandit.posterior(c.bandit.arms)
    mean, std = known.mean.numpy(), known.variance.sqrt().numpy()
    # A probability of 95 % is 1.645 deviations.
    kept = mean[2] + 1.6448536 * std[2] <= LIMIT
    own = np.stack([mean[0], -mean[1]], axis=-1)

    def beaten(i: int, among: np.ndarray) -> bool:
        return any((own[j] >= own[i]).all() and (own[j] > own[i]).any() for j in np.flatnonzero(among))

    expected = {f"{i:03d}" for i in np.flatnonzero(kept) if not beaten(i, kept)}
    front = c.front()
    assert set(front["id"]) == expected
    assert front["yield expected"].is_monotonic_decreasing
    assert front["on the front"].between(0, 1).all()
    pulled = (c.bandit.counts > 0).any(dim=0).numpy()
    seen = c.front(measured=True)
    assert set(seen["id"]) == {f"{i:03d}" for i in np.flatnonzero(kept & pulled) if not beaten(i, kept & pulled)}
    row = seen.iloc[0]
    assert row["yield measured"] == pytest.approx(truth(frame()).set_index("id").loc[row["id"], "yield"])
    assert row["times"] >= 1
    best = c.best(3)
    assert set(best["id"]) <= set(seen["id"])
    assert best["on the front"].tolist() == sorted(seen["on the front"], reverse=True)[:3]


@OFF_SCALE
def test_rows_that_are_neither_candidates_nor_measured_are_on_no_front():
    c = campaign(candidates="temp < 60", at_most={"toxicity": 500.0})
    c.tell(truth(frame()[frame()["temp"] < 60][:6]))
    front = c.front()
    assert (front["temp"] < 60).all()
    assert (front["times"] == 0).any()
    hot = frame().nlargest(1, "temp")
    c.tell(truth(hot).assign(**{"yield": 500.0}))
    front = c.front()
    assert front["id"][front["temp"] >= 60].tolist() == hot["id"].tolist(), "its result is known"


@OFF_SCALE
@pytest.mark.parametrize("objectives", [("yield", "cost"), ("yield",)])
def test_the_best_rows_may_have_to_fulfil_a_condition(objectives: tuple[str, ...]):
    c = campaign(objectives=objectives, minimize=["cost"][: len(objectives) - 1])
    c.tell(truth(frame()[:40]))
    every = c.best(40)
    for condition in ("temp < 50", frame()["temp"] < 50):
        fulfilled = every[every["temp"] < 50].reset_index(drop=True)
        assert 1 < len(fulfilled) < len(every)
        pd.testing.assert_frame_equal(c.best(2, where=condition), fulfilled[:2])
    assert len(c.best(2, where="id == '055'")) == 0
    with pytest.raises(ArgumentError, match="no column 'price'"):
        c.best(where="price < 3")


def test_one_objective_under_limits_has_a_best_row():
    c = played(campaign(objectives=["yield"], minimize=None, at_least={"yield": 10.0}))
    assert c.outcomes == ("yield", "toxicity")
    best = c.best(60)
    assert len(best) == (c.bandit.counts > 0).any(dim=0).sum()
    kept = best["keeps limits"] >= 0.95
    assert kept.any()
    assert kept[: kept.sum()].all(), "rows that keep the limits come first"
    assert best["yield expected"][: kept.sum()].is_monotonic_decreasing
    assert best["keeps limits"][kept.sum() :].is_monotonic_decreasing
    with pytest.raises(UnsupportedError, match="one objective has no front: best"):
        c.front()


@pytest.mark.parametrize("excludes", [False, True])
def test_a_row_on_offer_is_on_the_front_in_place_of_an_equal_one_that_is_not(excludes: bool):
    table = pd.DataFrame({"id": [f"c{i}" for i in range(24)], "x": np.repeat(np.linspace(0, 1, 12), 2)})
    table["supplier"] = ["out", "in"] * 12
    options = {} if excludes else {"candidates": "supplier == 'in'"}
    c = campaign(table, ["a", "b"], minimize=["b"], at_most=None, columns={"supplier": "ignore"}, **options)
    if excludes:
        c.exclude(where="supplier == 'out'")
    rows = c.ask(3)
    c.tell(rows[["id"]].assign(a=rows["x"], b=rows["x"] ** 2))
    front = c.front()
    assert len(front) > 3
    assert front["supplier"].eq("in").all()


KNOWN = {"noise_std": {"yield": 0.5, "cost": 0.1, "toxicity": 1.0}}


def in_units(scale: float, names: list[str]) -> tuple[list[list[str]], np.ndarray]:
    """The rows of four plates of a campaign of known noise that measures one of its outcomes in a unit of 1/scale, and its
    predictions in the other unit."""
    unit, g, rows = {"purity": 1.0, "cells": scale}, np.random.default_rng(0), []
    table = pd.DataFrame({"id": [f"c{i}" for i in range(24)], "x": g.uniform(size=24), "z": g.uniform(size=24)})
    c = tb.OutcomeCampaign(table, names, noise_std={"purity": 0.01, "cells": 0.1 * scale})
    for _ in range(4):
        rows.append(c.ask(4)[["id", "x", "z"]])
        cells = np.cos(3 * rows[-1]["z"]) + 0.1 * g.normal(size=4)
        c.tell(rows[-1][["id"]].assign(purity=np.sin(rows[-1]["x"]), cells=scale * cells))
    found = c.predict()
    told = [found[f"{name} {what}"].to_numpy() / unit[name] for name in names for what in ("expected", "deviation")]
    return [plate["id"].tolist() for plate in rows], np.column_stack(told)


@pytest.mark.parametrize("names", [["purity", "cells"], ["cells", "purity"]], ids=["purity first", "cells first"])
def test_known_noise_of_each_outcome_is_in_its_own_unit(names: list[str]):
    """Cells by the billion beside a purity between 0 and 1: float64 can tell both. The fit of each kernel reads the noise of
    its own outcome, whichever comes first."""
    rows, predicted = in_units(1.0, names)
    others, same = in_units(2.0**30, names)
    assert others == rows
    np.testing.assert_allclose(same, predicted, rtol=1e-4, atol=1e-5)


# There is no noise, so that replicates are of no use; with them, three of 30 evaluations repeat a row.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("options", "every", "batches"), [({}, 0, 5), ({}, 8, 6), pytest.param(KNOWN, 8, 5, marks=pytest.mark.exhaustive)]
)
def test_fitted_models_find_the_trade_offs(options: dict[str, Any], every: int, batches: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outcome_campaign, "auto", lambda: tb.auto(replicate_every=every))
    c = played(campaign(**options), batches)
    full, front = truth(frame()), c.front()
    good = full[full["toxicity"] <= LIMIT]
    chosen = full.set_index("id").loc[front["id"]]
    assert chosen["yield"].max() >= good["yield"].quantile(0.95)
    assert chosen["cost"].min() <= good["cost"].quantile(0.05)
    assert (chosen["toxicity"] <= LIMIT + 5).all()
    assert (c.bandit.policy.engine.from_data is None) == bool(options)


@pytest.mark.exhaustive
def test_the_page_shows_trade_offs_and_progress(tmp_path: Path):
    c = played(campaign())
    page = c.report(tmp_path / "page.html").read_text()
    assert page.count("<img") == 3
    assert "limits: toxicity ≤ 55" in page
    assert "20 of yield, 20 of cost, 20 of toxicity" in page
    for text in c.front()["id"]:
        assert f"<td>{text}</td>" in page
    with pytest.raises(StateError, match="nothing was measured yet"):
        campaign().report(tmp_path / "empty.html")


def test_columns_that_are_named_like_those_of_the_front_are_left_in_peace(tmp_path: Path):
    named = frame().assign(**{"yield expected": "text", "cost deviation": "text"})
    c = played(campaign(named, columns={"yield expected": "ignore", "cost deviation": "ignore"}), 1)
    assert {"campaign yield expected", "campaign cost deviation"} <= set(c.front().columns)
    assert c.report(tmp_path / "page.html").read_text().count("<img") == 3


def test_a_file_with_further_cells_counts_these_only_though_its_rows_are_open_anew(tmp_path: Path):
    table = pd.DataFrame({"id": list("ABCD"), "x": [1.0, 2.0, 3.0, 4.0]})
    file, journal = tmp_path / "results.csv", tmp_path / "j"
    c = tb.OutcomeCampaign(table, ["u", "v"], journal)
    results = pd.DataFrame({"id": list("ABCD"), "u": [1.0, 2.0, 3.0, 4.0], "v": [5.0, 6.0, np.nan, 8.0]})
    for filled, new in (({}, 7), ({"v": [5.0, 6.0, 7.0, 8.0]}, 1)):
        results.assign(**filled).to_csv(file, index=False)
        c.ask(4, within=tb.constraints.Distinct())
        assert c.tell(file).measured == new
        c.close()
        c = tb.OutcomeCampaign(table, journal=journal)
    c.ask(4, within=tb.constraints.Distinct())
    assert c.tell(file).measured == 0
    assert c.bandit.counts.tolist() == [[1, 1, 1, 1]] * 2
    # Another measurement of the same rows, some of which happen to have the same value as before.
    results.assign(u=[1.0, 2.0, 3.5, 4.5], v=[5.0, 6.5, 7.5, 8.0]).to_csv(file, index=False)
    assert c.tell(file).measured == 8


def test_progress_counts_outcomes_that_were_measured_on_different_days(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    written: list[outcome_page.OutcomePage] = []
    monkeypatch.setattr(outcome_page, "write_outcomes", lambda page, path: written.append(page))
    c = tb.OutcomeCampaign(pd.DataFrame({"id": list("ABCDEF"), "x": np.arange(6.0)}), ["u", "v"])
    c.tell(pd.DataFrame({"id": list("ABCA"), "u": [1.0, 2.0, 3.0, 2.0]}))
    c.tell(pd.DataFrame({"id": list("AB"), "v": [3.0, 2.0]}))
    c.report(tmp_path / "page.html")
    nan = np.nan
    expected = [[1.0, nan], [2.0, nan], [3.0, nan], [1.5, nan], [1.5, 3.0], [2.0, 2.0]]
    np.testing.assert_array_equal(written[0].so_far(), expected)
    distance = np.asarray(outcome_page.progress(written[0]).axes[1].lines[0].get_ydata())
    assert distance[3] == np.inf
    assert distance[3] > distance[4] > distance[5]


@pytest.mark.exhaustive
def test_pages_of_one_objective_of_three_and_of_an_empty_front(tmp_path: Path):
    one = played(campaign(objectives=["yield"], minimize=[]), 2)
    assert "Best rows" in one.report(tmp_path / "one.html").read_text()
    strict = played(campaign(at_most={"toxicity": -100.0}), 2)
    assert len(strict.front()) == 0
    assert "No row keeps the limits" in strict.report(tmp_path / "none.html").read_text()
    three = played(campaign(objectives=list(NAMES), at_most=None), 2)
    assert three.report(tmp_path / "three.html").read_text().count("<img") == 5


# ---------------------------------------------------------------------- mistakes


@pytest.mark.usefixtures("annotations_not_enforced")
def test_mistakes_are_named_and_nothing_is_learned(tmp_path: Path):
    c = campaign()
    other = outcomes.pareto({"cost": model(), "yield": model()})
    for wrong, message in (
        (lambda: tb.OutcomeCampaign(frame()), "objectives: name the columns"),
        (lambda: tb.OutcomeCampaign(frame(), "yield"), "objectives must be a list of columns"),
        (lambda: tb.OutcomeCampaign(frame(), []), "name at least one column"),
        (lambda: tb.OutcomeCampaign(frame(), ["yield"]), "'yield' alone, without limits, is the objective of a tb.Campaign"),
        (lambda: tb.OutcomeCampaign(frame(), ["yield", "yield"]), r"names \['yield'\] twice"),
        (
            lambda: campaign(minimize=["costs"]),
            "minimize names 'costs', which is not one of the objectives, yield, cost. .*cost",
        ),
        (lambda: campaign(at_most={"toxicity": float("inf")}), "must be a finite number"),
        (lambda: campaign(at_most=0.2), "at_most must be numbers by column"),
        (lambda: campaign(at_least={"toxicity": 60.0}), "at_least and at_most leave nothing of 'toxicity'"),
        (lambda: campaign(noise_std={"yield": 1.0}), "noise_std has no number for cost, toxicity"),
        (lambda: campaign(noise_std=0.5), "noise_std must be numbers by outcome"),
        (lambda: campaign(noise_std=dict.fromkeys((*NAMES, "temp"), 1.0)), "which is not one of the outcomes"),
        (lambda: campaign(policy=tb.uniform()), "policy must be one of torchbandits.outcomes"),
        (lambda: campaign(policy=other), "its outcomes are cost, yield, and those of the campaign are yield, cost, toxicity"),
        (lambda: campaign(at_most={"id": 1.0}), "limit: column 'id' is the id already"),
        (lambda: campaign(at_most={"temp": 90.0}, cost="temp"), r"is the limit already. A limit on it is .* candidates="),
        (lambda: campaign(frame().assign(Toxicty=np.nan)), "is it that one"),
        (lambda: c.tell({"id": ["000"], "yeld": [1.0]}), "has no column 'yield' for what was measured"),
        (lambda: c.tell({"id": ["000"], "cost": ["a"]}), "column 'cost', contains a value that is not a finite number"),
        (lambda: c.tell(truth(frame()[:2]), noise_var="v"), "noise_var names a column for each outcome, such as .'yield'"),
        (
            lambda: c.tell(truth(frame()[:2]), noise_var={"yeld": "v"}),
            "noise_var names 'yeld', which is not one of the outcomes, .*yield",
        ),
        (lambda: c.tell(truth(frame()[:2]), noise_var={"yield": 3}), "must be a text, got int"),
        (lambda: c.tell(truth(frame()[:2]), noise_var={"yield": "v"}), "no column 'v' for the variance of the noise"),
        (lambda: c.tell(truth(frame()[:2]).assign(v=0.0), noise_var={"yield": "v"}), "variance must be above 0"),
        (lambda: c.tell(truth(frame()[:2]).assign(v="a"), noise_var={"yield": "v"}), "value that is not a finite number"),
        (lambda: campaign(columns={"temp": None}), "columns: 'temp' must be a kind or the list of its categories in order"),
        (lambda: campaign(columns=["temp"]), "columns must be a dictionary, got list"),
        (lambda: campaign(cost="price"), "cost: the table has no column 'price'"),
        (lambda: campaign(frame().assign(price=0.0), cost="price"), "a cost must be a number above 0"),
        (lambda: campaign(frame(), cost="cost"), "cost: the table has no column 'cost'"),
        (lambda: c.front(), "nothing was measured yet"),
    ):
        with pytest.raises(TorchBanditsError, match=message):
            wrong()
    assert c.bandit.pulls.tolist() == [0, 0, 0]
    assert c.tell(truth(frame()[:3]).assign(cost=1.0)).notes == ()
    told = c.tell(truth(frame()[3:4]).assign(cost=1.0))
    assert "All 4 values of 'cost' so far are 1: nothing can be learned from a constant. Is it the right column?" in str(told)


def test_an_outcome_whose_results_are_equal_has_no_deviation():
    models = {"yield": tb.auto(), "cost": tb.auto()}
    policy = tb.outcomes.pareto(models, minimize=["cost"])
    c = tb.OutcomeCampaign(frame(), ["yield", "cost"], minimize=["cost"], policy=policy)
    c.tell(truth(c.ask(6)).assign(cost=0.0))
    best = c.front(measured=True)
    assert best["cost deviation"].isna().all()
    assert (best["yield deviation"] > 0).all()
    assert "cost: after 6 measurements of 6 of 60 rows, nothing is known until two measurements differ." in c.explain().lines()


def test_a_limit_on_nearly_the_name_of_known_values_is_a_warning():
    table = frame().rename(columns={"temp": "price"})
    with pytest.warns(DiagnosticWarning, match=r"no column 'Prise', so that it is to be measured. Did you mean 'price'"):
        tb.OutcomeCampaign(table, ["yield"], at_most={"Prise": 50.0})
    # These are no slips, or have no values to be known.
    for other in ("price_per_g", "cost", "max_prices"):
        tb.OutcomeCampaign(table, ["yield"], at_most={other: 50.0})
    tb.OutcomeCampaign(table.assign(yielt=1.0), ["yield"], at_most={"price": 50.0})


def test_a_missing_outcome_is_looked_for_under_a_similar_name():
    c = campaign(frame().assign(toxicitx=1.0))
    told = truth(frame()[:3])
    for slip in ("Toxicity", "toxcity", " toxicity"):
        with pytest.raises(
            ArgumentError, match=rf"has no column 'toxicity', and a column '{slip}': rename it, or leave it out"
        ):
            c.tell(told.rename(columns={"toxicity": slip}))
    assert c.bandit.pulls.tolist() == [0, 0, 0]
    # Those of the candidates, of the plate and of variances are no outcomes.
    plate = c.ask(3)
    said = c.tell(plate.assign(**{"yield": [3.0, 2, 1], "cost": [1.0, 2, 3]}))
    assert str(said) == "6 measurements and 0 failed evaluations told."
    said = c.tell(truth(frame()[:3]).rename(columns={"toxicity": "Toxicity (mg)"}))
    assert "measured has no column 'toxicity', so that it counts as not measured: if 'Toxicity (mg)' holds it, tell" in str(
        said
    )
    assert c.bandit.pulls.tolist() == [6, 6, 0]
    c.tell(truth(frame()[:3])[["id", "toxicity"]])
    assert c.bandit.pulls.tolist() == [6, 6, 3]


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")
def test_deviations_are_not_to_be_relied_on_before_measurements_were_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outcome_campaign, "auto", lambda: tb.auto(replicate_every=0))
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"id": range(400), **{f"x{j}": rng.uniform(size=400) for j in range(3)}})
    true = {}
    for name, center in (("yield", 0.35), ("cost", 0.65)):
        distance = ((x[["x0", "x1", "x2"]] - center) ** 2).sum(axis=1)
        true[name] = (1 if name == "cost" else -1) * distance / distance.std()
    columns = {f"x{j}": "number" for j in range(3)}
    c = tb.OutcomeCampaign(x, ["yield", "cost"], minimize=["cost"], columns=columns)

    def noisy(rows: pd.DataFrame, *names: str) -> pd.DataFrame:
        return rows[["id"]].assign(**{name: true[name][rows["id"]].to_numpy() + rng.normal(size=len(rows)) for name in names})

    def off() -> float:
        """Error of the expected values of the front, in posterior deviations: the root of the mean square."""
        best = c.front(measured=True)
        errors = [(best[f"{n} expected"] - true[n][best["id"]].to_numpy()) / best[f"{n} deviation"] for n in true]
        return float(np.sqrt(np.square(np.concatenate(errors)).mean()))

    with pytest.raises(StateError, match="nothing was measured yet"):
        c.doubt()
    c.tell(noisy(c.ask(4), "yield", "cost"))
    assert c.doubt() == "", "too few rows"
    for _ in range(6):
        c.tell(noisy(c.ask(8), "yield", "cost"))
    assert c.doubt().startswith("Do not rely on the deviations of yield and cost yet if measurements are noisy")
    assert c.doubt() in c.report(tmp_path / "page.html").read_text()
    before = off()
    again = pd.concat([c.best(8)] * 10)[:16]
    c.tell(noisy(again, "yield"))
    assert "deviations of cost yet" in c.doubt()
    c.tell(noisy(again, "cost"))
    assert c.doubt() == ""
    assert "Do not rely" not in c.report(tmp_path / "page.html").read_text()
    for _ in range(3):
        c.tell(noisy(c.ask(8), "yield", "cost"))
    assert before > 4 > off()
    known = tb.OutcomeCampaign(x, ["yield", "cost"], columns=columns, noise_std={"yield": 1.0, "cost": 1.0})
    known.tell(noisy(known.ask(8), "yield", "cost"))
    assert known.doubt() == ""


@OFF_SCALE
def test_a_value_after_a_failure_may_mean_that_nothing_had_failed(tmp_path: Path):
    c = campaign(objectives=["yield", "total cost"], minimize=[], at_most={}, journal=tmp_path / "journal")
    told = pd.DataFrame({"id": ["000", "001"], "yield": [1.0, np.nan], "total cost": [np.nan, np.nan]})
    path = tmp_path / "results.csv"
    told.to_csv(path, index=False)
    assert c.tell(path).failed == 1
    told.assign(**{"total cost": [2.0, 3.0]}).to_csv(path, index=False)
    said = str(c.tell(path))
    assert "Told as failed before, with a value now: '001'. Both count." in said
    assert "torchbandits campaign correct ID yield=none 'total cost=none' --was yield=none --was 'total cost=none'." in said
    # What the sentence says of Python is as good as what it says of the command.
    exec(re.search(r"correct\(id, .*?\}\)", said)[0], {"correct": c.correct, "id": "001", "math": math})
    assert c._records.failed_rows() == []
    assert c._records.measured_rows() == [0, 1]
    assert "Told as failed" not in str(c.tell({"id": ["001"], "yield": [1.2]}))


def test_a_row_that_fails_again_beside_new_values_answers_the_ask(tmp_path: Path):
    c, path = campaign(), tmp_path / "results.csv"
    for value in (1.0, 2.0):
        plate = c.plan(["000", "001"])
        plate[["id"]].assign(**{name: [value, np.nan] for name in NAMES}).to_csv(path, index=False)
        told = c.tell(path)
        assert (told.measured, told.failed, told.known, c.open) == (3, 1, 0, [])
    told = c.tell(path)
    assert (told.measured, told.failed, told.known) == (0, 0, 2)


def test_copied_rows_of_a_file_count_and_are_named(tmp_path: Path):
    c, path = campaign(), tmp_path / "results.csv"
    rows = truth(frame().head(3)).assign(toxicity=np.nan)
    pd.concat([rows, rows.head(1)]).to_csv(path, index=False)
    assert "1 result has the id and the values of another one in the file, and counts as a repeated evaluation." in str(
        c.tell(path)
    )
    assert "of another one" not in str(c.tell(path))


def test_a_small_share_of_the_noise_is_not_called_none():
    c = campaign(policy=tb.outcomes.pareto({name: tb.gp_ucb(RBF, noise_std=1e-3) for name in ("yield", "cost")}), at_most={})
    c.tell(truth(frame().head(6))[["id", "yield", "cost"]])
    assert str(c.explain()).count("noise is less than 1% of the variance") == 2


def test_explain_says_of_each_outcome_which_columns_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outcome_campaign, "auto", tb.auto)
    g = np.random.default_rng(0)
    table = pd.DataFrame({"id": np.arange(150), "temp": g.uniform(20, 90, 150), "conc": g.uniform(0, 1, 150)})
    c = campaign(table.assign(solvent=g.choice(["A$", "B"], 150)))
    with pytest.raises(StateError, match="nothing to explain"):
        c.explain()
    for batch in range(4):
        rows = c.ask(6)
        told = rows[["id"]].assign(**{"yield": 1e3 * np.sin(rows["temp"] / 20), "cost": 1e-3 * np.exp(2 * rows["conc"])})
        c.tell(told if batch else told.drop(columns="cost"))
    found = c.explain()
    names = ["temp", "conc", "solvent = A$", "solvent = B"]
    assert found.names == tuple(names)
    assert found.outcomes == c.outcomes == ("yield", "cost", "toxicity")
    assert found.relevance[:2].argmax(dim=-1).tolist() == [0, 1]
    assert bool((found.relevance[:2].amax(dim=-1) > 0.6).all())
    assert found.relevance[:2].sum(dim=-1).tolist() == pytest.approx([1, 1])
    assert found.pulls == (24, 18, 0)
    assert 0 < float(found.noise_std[0]) < 500
    assert 0 < float(found.noise_std[1]) < 5e-3
    assert bool(found.noise_std[2:].isnan().all())
    first, second, third = found.lines()
    assert re.match(r"yield: after 24 measurements of \d+ of 150 rows, it changes fastest with temp \(\d+%\), ", first)
    assert "cost: after 18 measurements of" in second
    assert "it changes fastest with conc (" in second
    assert third == "toxicity: no measurement was told yet."
    panels = found.figure().axes
    assert [axes.get_title(loc="left") for axes in panels] == ["yield", "cost"]
    assert [label.get_text().replace("\\", "") for label in panels[0].get_yticklabels()][:2] == ["temp", "conc"]
    page = c.report(tmp_path / "page.html").read_text()
    assert all(line in page for line in found.lines())
    assert "columns that matter" in page


def test_explain_of_known_models_and_few_results():
    scales = {"yield": ((0.5, 2.0), 9.0), "cost": ((4.0, 1.0), 1.0)}

    def gp(name: str) -> Any:
        lengths, variance = scales[name]
        kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2)).double()
        kernel.base_kernel.lengthscale, kernel.outputscale = torch.tensor([lengths], dtype=torch.float64), variance
        return tb.gp_ucb(kernel, noise_std=NOISE[name], width=tb.widths.Constant(2.0))

    NOISE = {"yield": 0.3, "cost": 0.05}  # which give the pulls of the outcomes different weights
    x = torch.rand(2, 60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    policy = outcomes.pareto({name: gp(name) for name in NOISE})
    bandit = tb.OutcomeBandit(policy, x, generator=[torch.Generator().manual_seed(s) for s in range(2)])
    with pytest.raises(StateError, match="no reward was told yet"):
        bandit.explain(row=0)
    bandit.tell(torch.arange(4).expand(2, 4), torch.ones(2, 4, 2))
    assert "yield: after 4 rewards of 4 of 60 arms; 5 must be pulled before it shows" in str(bandit.explain(row=0))
    with pytest.raises(UnsupportedError, match="nothing to draw"):
        bandit.explain(row=0).figure()
    bandit.tell(torch.arange(8).expand(2, 8), torch.ones(2, 8, 2))
    found = bandit.explain(names=["a", "b"], row=1)
    assert found.noise_std.tolist() == pytest.approx(list(NOISE.values()))
    for place, name in enumerate(NOISE):
        lengths, variance = scales[name]
        speed = ((x[1].amax(dim=0) - x[1].amin(dim=0)) / torch.tensor(lengths)).square()
        assert found.relevance[place].tolist() == pytest.approx((speed / speed.sum()).tolist(), rel=1e-6)
        d = (x[1, :8, None] - x[1, None, :8]) / torch.tensor(lengths)
        K = variance * torch.exp(-d.square().sum(dim=-1) / 2)
        signal = float(K.diagonal().mean() - K.mean())  # of a function around its average over the points
        assert float(found.noise_share[place]) == pytest.approx(NOISE[name] ** 2 / (NOISE[name] ** 2 + signal), rel=0.2)
    bandit.observe(torch.full((2, 1, 2), 7.0), torch.ones(2, 1), torch.ones(2, 1, 2))
    assert "8 of 60 arms and 1 other point" in str(bandit.explain(row=1))
    assert not found.noise_estimated
    assert "twice yet" not in str(found)
    for wrong in (2, -1, (0, 1), ()):
        with pytest.raises(ArgumentError, match="row must be one of the batch rows"):
            bandit.explain(row=wrong)
    with pytest.raises(ArgumentError, match="names must be texts, one for each of the 2 features"):
        bandit.explain(names=["a"], row=0)


def test_explain_without_lengthscales():
    x = torch.rand(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    linear = {name: tb.gp_ucb(gpytorch.kernels.LinearKernel().double(), noise_std=0.1) for name in ("one", "two")}
    bandit = tb.OutcomeBandit(outcomes.pareto(linear), x)
    bandit.tell(torch.arange(6), torch.ones(6, 2))
    found = bandit.explain()
    assert not found.tells_features
    assert "the model does not tell which features matter" in found.lines()[1]


# ---------------------------------------------------------------------- commands


@pytest.mark.exhaustive
def test_commands_from_the_table_to_the_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    frame().to_csv("candidates.csv", index=False)
    new = ["new", "candidates.csv", "--objective", "yield", "--objective", "cost:min", "--limit", "toxicity <= 55"]
    assert "No value of yield, cost, toxicity is known yet." in run(*new)
    first = run("ask", "-n", "5")
    assert run("ask", "-n", "5") == first
    rows = plate(first)
    assert list(rows.columns)[-3:] == list(NAMES)
    truth(rows).to_csv("results.csv", index=False)
    said = run("tell", "results.csv")
    assert "15 measurements and 0 failed evaluations told." in said
    assert "torchbandits campaign front" in said
    assert "5 rows had been told before" in run("tell", "results.csv")
    monkeypatch.setattr(tb.OutcomeCampaign, "doubt", lambda _: "Do not rely on them.")
    assert "report. Do not rely on them.\n" in run("tell", "results.csv")
    for command in ("front", "best"):
        assert RUNNER.invoke(app, ["campaign", command]).stderr == "Do not rely on them.\n"
    plain = tb.OutcomeCampaign.front
    unsure = {"on the front": 0.014}
    monkeypatch.setattr(tb.OutcomeCampaign, "front", lambda self, measured: plain(self, measured=measured).assign(**unsure))
    assert "with a probability above 1.4%: too little was measured" in RUNNER.invoke(app, ["campaign", "front"]).stderr
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(outcome_campaign, "auto", model)
    front = plate(run("front", "--measured"))
    assert {"id", "yield measured", "keeps limits", "on the front"} <= set(front.columns)
    assert set(front["id"]) <= set(rows["id"])
    assert "holds this campaign already" in run(*new)
    assert plate(run("best", "-k", "1"))["on the front"].iloc[0] == front["on the front"].max()
    assert "<h2>Trade-offs and progress</h2>" in Path(run("report").split()[-1]).read_text()
    result = refused("new", "candidates.csv", "--objective", "yield", "--objective", "cost")
    assert "the objectives was" in result
    for options, message in (
        (["--objective", "yield", "--objective", "cost", "--minimize"], "write --objective cost:min"),
        (["--objective", "yield", "--limit", "toxicity < 3"], "--limit takes a column and a number"),
        (["--objective", "yield", "--limit", "toxicity <= few"], "--limit takes a number"),
        (["--objective", "yield", "--limit", "a<=1", "--limit", "a<=2"], "names 'a' twice"),
        (["--objective", "yield", "--objective", "cost", "--cost", "price"], "no column 'price'"),
        (["--objective", "yield", "--objective", "cost", "--noise-std", "0.1"], "NAME=NUMBER"),
        (["--objective", "yield", "--noise-std", "small"], "--noise-std takes a number"),
    ):
        assert message in refused("new", "candidates.csv", *options, "--folder", "other")
    assert not Path("other").exists()
    run("new", "candidates.csv", "--objective", "cost:min", "--folder", "single", "--noise-std", "0.5")
    assert "one objective has no front" in refused("front", "--folder", "single")
    noisy = ["--noise-std", "yield=1", "--noise-std", "toxicity=2", "--folder", "noisy"]
    run("new", "candidates.csv", "--objective", "yield", "--limit", "toxicity >= 30", *noisy)
    rows = plate(run("ask", "-n", "2", "--folder", "noisy"))
    truth(rows)[["id", "yield", "toxicity"]].to_csv("noisy.csv", index=False)
    best = rows.loc[yields(rows).idxmax()]
    variances = ["--noise-var", "yield=v", "--noise-var", "toxicity=v"]
    assert "takes OUTCOME=COLUMN" in refused("tell", "noisy.csv", "--folder", "noisy", "--noise-var", "v")
    assert "no column 'v'" in refused("tell", "noisy.csv", "--folder", "noisy", *variances)
    truth(rows)[["id", "yield", "toxicity"]].assign(v=4.0).to_csv("measured.csv", index=False)
    assert "4 measurements" in run("tell", "measured.csv", "--folder", "noisy", *variances)
    assert f"Best so far: {best['id']}, yield {yields(rows).max():.6g} measured." in run(
        "tell", "noisy.csv", "--folder", "noisy"
    )
    priced = ["--objective", "yield", "--objective", "cost:min", "--cost", "price", "--folder", "priced"]
    frame().assign(price=np.where(np.arange(60) % 2, 1.0, 50.0)).to_csv("priced.csv", index=False)
    run("new", "priced.csv", *priced)
    rows = plate(run("ask", "-n", "3", "--folder", "priced"))
    truth(rows)[["id", "yield", "cost"]].to_csv("paid.csv", index=False)
    assert "6 measurements" in run("tell", "paid.csv", "--folder", "priced")
    assert (plate(run("ask", "-n", "4", "--folder", "priced"))["price"] == 1.0).all()


def test_a_direction_that_is_misspelt_is_no_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("id,x\nA,1\nB,2\n")
    said = refused("new", "t.csv", "--objective", "yield", "--objective", "cost:mn")
    assert "NAME:min or NAME:max, got 'cost:mn'" in said
