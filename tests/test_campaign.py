"""Campaigns: rows asked for and told by id, in the user's units, with a journal, and one-sentence errors."""

from __future__ import annotations

import copy
import datetime as dt
import math
import re
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from problems import OFF_SCALE

import torchbandits as tb
from torchbandits.campaigns import page as campaign_page
from torchbandits.campaigns import results
from torchbandits.campaigns.conditions import on_offer
from torchbandits.campaigns.predicted import verdicts
from torchbandits.diagnostics import leave_one_out
from torchbandits.display import rounded
from torchbandits.errors import ArgumentError, DataError, StateError, TorchBanditsError, UnsupportedError
from torchbandits.extras import Later
from torchbandits.journal import Journal
from torchbandits.posteriors.factors import Factors
from torchbandits.tabular.ids import open_table
from torchbandits.tabular.spreadsheets import read_texts
from torchbandits.tabular.tables import ParquetRows, as_table


def frame(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "id": [f"{i:03d}" for i in range(n)],
            "temp": rng.uniform(20, 120, n),
            "conc": 10 ** rng.uniform(-6, -1, n),
            "solvent": rng.choice(["EtOH", "DMF", "H2O"], n),
            "dry": rng.random(n) < 0.5,
        }
    )


def yields(rows: pd.DataFrame) -> pd.Series:
    return 50 - 0.01 * (rows["temp"] - 70) ** 2 + 3 * np.log10(rows["conc"]) + 5 * (rows["solvent"] == "DMF")


def policy() -> Any:
    """A fast policy that is never fitted."""
    return tb.gp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1, width=tb.widths.Constant(2.0), prior_mean="estimate")


def campaign(table: Any = None, **options: Any) -> tb.Campaign:
    return tb.Campaign(frame() if table is None else table, "yield", **{"policy": policy()} | options)


def measured(plate: pd.DataFrame) -> pd.DataFrame:
    return plate[["id"]].assign(**{"yield": yields(plate)})


# ---------------------------------------------------------------------- asking and telling


@OFF_SCALE
def test_rows_come_back_with_their_ids_and_what_is_expected():
    c = campaign()
    plate = c.ask(8)
    assert list(plate.columns) == ["id", "temp", "conc", "solvent", "dry", "expected", "deviation", "rank"]
    assert plate["rank"].tolist() == list(range(1, 9))
    assert plate["expected"].isna().all()  # no reward is known yet
    own = frame().set_index("id").loc[plate["id"]].reset_index()
    pd.testing.assert_frame_equal(plate[own.columns], own)
    pd.testing.assert_frame_equal(c.ask(8), plate)
    pd.testing.assert_frame_equal(c.ask(5), plate.head(5))
    assert c.ask(10)["id"].tolist()[:8] == plate["id"].tolist()
    told = c.tell(measured(plate))
    assert (told.measured, told.failed, told.unasked) == (8, 0, 0)
    assert c.open == c.ask(2)["id"].tolist()
    best = c.best(3)
    assert best["measured"].max() == pytest.approx(yields(plate).max())
    assert best["times"].tolist() == [1, 1, 1]
    assert best["expected"].is_monotonic_decreasing


@OFF_SCALE
def test_a_history_of_points_that_are_no_rows_is_learned_and_not_shown_as_a_row():
    c = campaign()
    c.tell(measured(c.ask(6)))
    rows = c.best(6)["id"].tolist()
    points = c.bandit.arms[:2] + 0.01
    c.bandit.observe(points, torch.ones(2), torch.full((2,), 900.0), torch.full((2,), 810_000.0))
    assert sorted(c.best(6)["id"]) == sorted(rows)
    assert len(c.best(2)) == 2
    assert str(c.explain()).startswith("Best so far: a point that is none of the rows, with yield expected at ")
    assert "of 6 of 60 rows and 2 other points." in str(c.explain())


def test_a_folder_that_was_moved_needs_the_new_path_of_the_table(tmp_path: Path):
    (tmp_path / "old").mkdir()
    frame().to_csv(tmp_path / "old" / "table.csv", index=False)
    c = campaign(tmp_path / "old" / "table.csv", journal=tmp_path / "old" / "lab")
    ids = c.ask(3)["id"].tolist()
    c.close()
    (tmp_path / "old").rename(tmp_path / "new")
    gone = "old/table.csv, the table that the campaign of .*new/lab.campaign.json began with, is not there: pass its new path, "
    with pytest.raises(DataError, match=gone + "table="):
        tb.Campaign(journal=tmp_path / "new" / "lab", policy=policy())
    c = tb.Campaign(tmp_path / "new" / "table.csv", journal=tmp_path / "new" / "lab", policy=policy())
    assert c.open == ids


def test_a_campaign_says_what_auto_learns_from_failures(tmp_path: Path):
    c = campaign(frame().assign(day=pd.date_range("2026-03-01", periods=60)), policy=tb.auto())
    c.tell(measured(c.ask(6)))
    hot = frame()["id"][frame()["temp"] > 100]
    for name in [*hot[:3], hot.iloc[0]]:
        told = c.tell(pd.DataFrame({"id": [name], "yield": [np.nan]}))
    assert told.notes == (
        f"Failed again, and never measured: {hot.iloc[0]!r}. From now on they are left out while there are others.",
    )
    line = c.explain().failures()
    assert re.fullmatch(r"4 evaluations failed; \d+ rows that the model expects to fail will not be selected for now\.", line)
    page = c.report(tmp_path / "page.html").read_text()
    assert f"<p>{line}</p>" in page
    assert "2026-03-" in page
    assert "00:00:00" not in page, "a date is no time of day"


def test_after_failures_alone_the_error_counts_them():
    c = campaign()
    for times in ("1 evaluation", "2 evaluations"):
        c.tell(c.ask(1)[["id"]].assign(**{"yield": np.nan}))
        for ask in (c.best, c.explain):
            with pytest.raises(StateError, match=f"^{times} failed and none succeeded, so that there is no"):
                ask()


@OFF_SCALE
def test_a_row_that_failed_is_told_alone_and_not_selected_again_without_repeats(tmp_path: Path):
    c = campaign(journal=tmp_path / "lab")
    c.tell(measured(c.ask(6)))
    plate = c.ask(3, repeats=False)
    failed, others = plate.head(1), plate.tail(2)
    with pytest.raises(ArgumentError, match="tell them one by one, or forget"):
        c.tell(others[["id"]].assign(**{"yield": np.nan}))
    told = c.tell(failed[["id"]].assign(**{"yield": np.nan}))
    assert (told.measured, told.failed, told.notes) == (0, 1, ())
    assert c.open == others["id"].tolist()
    c.close()
    c = tb.Campaign(frame(), journal=tmp_path / "lab", policy=policy())
    left = 60 - len(c.best(60)) - 1
    assert failed["id"].item() not in c.ask(left, repeats=False)["id"].tolist()
    with pytest.raises(ArgumentError, match="1 more rows are asked for, and 0 of"):
        c.ask(left + 1, repeats=False)
    c.forget()
    assert failed["id"].item() in c.ask(1, where=f"id == '{failed['id'].item()}'")["id"].tolist()
    told = c.tell(failed[["id"]].assign(**{"yield": np.nan}))
    (note,) = told.notes
    assert note.startswith(f"Failed again, and never measured: '{failed['id'].item()}'. From now on they are left out while ")
    assert "A failure teaches nothing about other rows: leave out those that must fail as well by a condition" in note
    c.tell(failed[["id"]].assign(**{"yield": 50.0}))
    assert c.tell(failed[["id"]].assign(**{"yield": np.nan})).notes == ()


@OFF_SCALE
def test_a_row_that_failed_twice_is_left_out_while_there_are_others(tmp_path: Path):
    copies = frame().head(2).assign(id=["copy0", "copy1"])
    table = pd.concat([frame(), copies], ignore_index=True)
    c = tb.Campaign(table, "yield", policy=policy(), journal=tmp_path / "lab")
    bad, failed = {*frame()["id"].iloc[::3], "copy0"}, Counter[str]()
    for _ in range(40):
        result = measured(c.ask(1))
        if result["id"].item() in bad:
            result["yield"] = np.nan
            failed[result["id"].item().replace("copy0", "000")] += 1  # equal rows count together
        c.tell(result)
    assert max(failed.values()) == 2
    given_up = [row for row, times in failed.items() if times == 2]
    c.close()
    c = tb.Campaign(table, journal=tmp_path / "lab", policy=policy())
    assert {*given_up}.isdisjoint(c.ask(20)["id"])
    c.forget()
    assert c.ask(1, where=f"id == '{given_up[0]}'")["id"].tolist() == given_up[:1]  # there is no other
    c.tell(pd.DataFrame({"id": given_up[:1], "yield": [1e3]}))
    assert c.ask(1)["id"].tolist() == given_up[:1]  # it was measured, and is good


def test_leading_zeros_that_a_spreadsheet_program_dropped_are_named():
    c = campaign()
    plate = measured(c.ask(4))
    with pytest.raises(ArgumentError, match=r"has an id '7', and .* has '007': a spreadsheet program dropped leading zeros"):
        c.tell(pd.DataFrame({"id": [7, 8], "yield": [1.0, 2.0]}))
    with pytest.raises(ArgumentError, match=r"none of the 1 ids of measured \(such as '777'\)"):
        c.tell(pd.DataFrame({"id": [777], "yield": [1.0]}))
    assert c.tell(plate).measured == 4
    refused(lambda: c.tell(pd.DataFrame({"id": [7], "yield": [1.0]})), "Or pandas.read_csv did: tell the path of the file")


def test_ids_with_spaces_are_known_and_other_slips_are_named(tmp_path: Path):
    table = frame(12).assign(id=[f"A{i}" for i in range(12)])
    c = campaign(table)
    assert c.tell(written(tmp_path / "spaces.csv", "id,yield\nA1 ,3\n A2,4\nA3,5\n")).measured == 3
    assert sorted(c.best(3)["id"]) == ["A1", "A2", "A3"]
    words = "'a4' (line 2). Nothing was told. Does 'a4' mean 'A4'? Write the id as the candidates do."
    refused(lambda: c.tell(written(tmp_path / "case.csv", "id,yield\na4,3\nA5,4\n")), words)
    refused(lambda: c.tell(written(tmp_path / "all.csv", "id,yield\na 4,3\n")), "Does 'a 4' mean 'A4'?")
    refused(lambda: c.tell(written(tmp_path / "other.csv", "id,yield\nB4,3\n")), "these are results of another campaign")
    # A spreadsheet program shows the number 7 as 007 where the column has that format.
    shown = campaign(table.assign(id=range(12)))
    refused(lambda: shown.tell(written(tmp_path / "shown.csv", "id,yield\n007,3\n")), "Does '007' mean '7'?")
    # pandas writes whole numbers beside an empty cell so.
    texts = campaign(written(tmp_path / "texts.csv", "id,temp\n1,20\n2,30\n3,40\n"))
    refused(lambda: texts.tell(written(tmp_path / "floats.csv", "id,yield\n1.0,3\n2.0,4\n")), "Does '1.0' mean '1'?")
    both = campaign(table.assign(id=["A1 ", "A1", *table["id"][2:]]))
    both.tell(written(tmp_path / "both.csv", "id,yield\nA1 ,3\nA1,4\n"))
    assert both.best(2).set_index("id")["measured"].to_dict() == {"A1": 4.0, "A1 ": 3.0}


def test_a_decimal_comma_between_commas_is_named(tmp_path: Path):
    path = written(tmp_path / "results.csv", 'id,yield\n003,"3,5"\n')
    refused(lambda: campaign().tell(path), "line 2: '3,5'. Correct it", "Write decimals with a point.")


def test_the_rules_that_need_a_noise_level_say_how_to_give_it():
    c = tb.Campaign(frame(), "yield")
    c.tell(measured(c.ask(6)))
    for rule in (tb.stopping.ProbableRegret(1.0), tb.stopping.ImprovementPerCost(1.0)):
        with pytest.raises(UnsupportedError, match=r"begin a campaign with noise_std= \(--noise-std\)"):
            c.should_stop(tb.stopping.Budget(pulls=100), rule)
    assert not c.should_stop(tb.stopping.Budget(pulls=100))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (frame().set_axis(["id", "temp", "temp", "solvent", "dry"], axis=1), "has more than one column 'temp': rename all but"),
        (frame().assign(large=[10**30 * i for i in range(60)]), "has a whole number of more than 64 bits: make its column"),
    ],
)
def test_columns_that_no_table_can_hold_are_named(table: pd.DataFrame, said: str):
    with pytest.raises(ArgumentError, match=said):
        campaign(table)


def test_bins_of_pandas_are_ordered_texts():
    table = frame(12).assign(bin=pd.cut(np.arange(12.0), 3))
    before = table["bin"].dtype
    c = campaign(table)
    assert (c.columns["bin"].kind, len(c.columns["bin"].categories)) == ("ordered", 3)
    plate = c.ask(2)
    assert set(plate["bin"]) <= set(c.columns["bin"].categories)
    assert c.tell(measured(plate)).measured == 2
    assert table["bin"].dtype == before, "the table of the user is as it was"


def test_a_series_is_no_table():
    c = campaign()
    with pytest.raises(ArgumentError, match=r"measured must be a table of pandas, .* got Series"):
        c.tell(pd.Series({"001": 1.0}, name="yield"))


def test_the_posterior_is_the_bandits_without_what_is_waited_for():
    c = campaign()
    c.tell(measured(c.ask(6)))
    known = c.bandit.posterior(c.bandit.arms)
    plate = c.ask(6)
    rows = [int(text) for text in plate["id"]]
    np.testing.assert_allclose(plate["expected"], known.mean[rows], rtol=1e-9)
    np.testing.assert_allclose(plate["deviation"], known.variance[rows].sqrt(), rtol=1e-6)


def test_minimised_objectives_are_the_negative_of_maximised_ones_and_shown_as_they_are():
    up, down = campaign(), campaign(minimize=True)
    for _ in range(3):
        plate, other = up.ask(4), down.ask(4)
        assert plate["id"].tolist() == other["id"].tolist()
        np.testing.assert_allclose(plate["expected"], -other["expected"])
        up.tell(measured(plate))
        down.tell(measured(plate).assign(**{"yield": -yields(plate)}))
    np.testing.assert_allclose(down.best(2)["measured"], -up.best(2)["measured"])
    assert bool((down.bandit.best(2).mean.diff() <= 0).all())


@OFF_SCALE
def test_a_row_that_takes_most_of_the_evaluations_is_named_once_and_on_the_page(tmp_path: Path):
    c = campaign(journal=tmp_path / "lab")
    few = frame().iloc[:10]
    c.tell(measured(few))
    seven = pd.DataFrame({"id": ["007"] * 21, "yield": 50 + np.arange(21.0)})
    told = [c.tell(table, again=True) for table in (seven, measured(few).iloc[:9], seven.head(1), measured(few).iloc[:1])]
    named = [text for one in told for text in one.notes]
    assert len(named) == 1
    assert named[0].startswith("'007' has taken 23 of the last 40 evaluations: ")
    assert "repeats=False" in named[0]
    c.close()
    again = campaign(journal=tmp_path / "lab")
    page = again.report(tmp_path / "page.html").read_text()
    assert "has taken 24 of the last 40 evaluations" in page, "from the journal"


def test_repeats_count_failures_do_not_and_history_is_welcome():
    c = campaign()
    plate = c.ask(3)
    results = measured(plate)
    results.loc[1, "yield"] = np.nan
    told = c.tell(pd.concat([results, results.head(1)]))
    assert (told.measured, told.failed, told.unasked) == (3, 1, 1)
    assert c.open == []
    assert int(c.bandit.pulls) == 3
    first = c.best(2).set_index("id").loc[plate["id"][0]]
    assert first["times"] == 2
    c.tell({"yield": [1.5], "id": ["059"]})
    assert "059" in c.best(10)["id"].tolist()
    assert str(told).startswith("3 measurements and 1 failed evaluation told. 1 measurement had not been asked for")


def test_a_table_that_is_told_twice_counts_twice_and_says_so():
    """As when a cell of a notebook runs twice. Rows that were selected again are no copies."""
    c = campaign()
    results = measured(c.ask(3))
    again = "3 rows had been told before (same id, same value) and count again. If they are no new measurements, take back"
    assert "told before" not in str(c.tell(results))
    assert again in str(c.tell(results))
    assert int(c.bandit.pulls) == 6
    assert "and count again" not in str(c.tell(results, again=True)) + str(c.tell(results, again=False))
    c.plan(results["id"].tolist()[:2])
    assert "told before" not in str(c.tell(results[:2]))


def test_values_in_the_table_are_history_told_once(tmp_path: Path):
    table = frame()
    table["yield"] = yields(table).where(table.index < 5)
    path = tmp_path / "journal"
    c = campaign(table, journal=path)
    assert int(c.bandit.pulls) == 5
    assert "yield" not in c.ask(1).columns
    c.close()
    table.loc[7, "yield"] = 3.0  # filled in after the campaign began
    again = campaign(table, journal=path)
    assert int(again.bandit.pulls) == 6


@OFF_SCALE
def test_conditions_and_contexts_restrict_what_is_asked():
    c = campaign(candidates="temp < 80 and solvent != 'DMF'")
    plate = c.ask(10)
    assert (plate["temp"] < 80).all()
    assert (plate["solvent"] != "DMF").all()
    c.tell(measured(plate))
    assert set(c.ask(3, where={"solvent": "H2O", "dry": True})["solvent"]) == {"H2O"}
    c.forget()
    assert (c.ask(3, where="dry == True and temp > 30")["dry"]).all()
    c.forget()
    for either in (["H2O", "EtOH"], {"EtOH", "H2O"}, np.array(["H2O", "EtOH"]), pd.Series(["EtOH", "H2O"])):
        assert set(c.ask(6, where={"solvent": either})["solvent"]) == {"H2O", "EtOH"}
        c.forget()
    with pytest.raises(ArgumentError, match=r"where: the list of values of column 'solvent' is empty\."):
        c.ask(1, where={"solvent": []})
    table = frame().assign(allowed=lambda t: t["temp"] > 100)
    assert (campaign(table, candidates="allowed").ask(4)["temp"] > 100).all()
    with pytest.raises(ArgumentError, match=r"have been|can be selected: ask for fewer, or widen"):
        campaign(table, candidates="allowed").ask(60)


def test_rows_with_an_empty_cell_fulfil_no_condition_that_names_it(tmp_path: Path):
    table = {"x": [0.0, 1, 2, None, None, 5], "s": ["DMF", None, "THF", "THF", None, "DMF"], "id": list("ABCDEF")}
    table |= {"dry": [True, False, None, False, True, False], "lot": ["7", "007", "7", "8", "9", None]}
    pa.csv.write_csv(pa.table(table | {"day": [f"2024-01-{10 + i}" for i in range(6)]}), tmp_path / "table.csv")
    given = open_table(tmp_path / "table.csv", None)
    given = as_table("table", given.arrow.set_column(4, "lot", pa.array(table["lot"])))

    def met(condition: Any) -> str:
        return "".join(np.array(table["id"])[on_offer("where", given, condition).numpy()])

    assert met("x != 0 and s != 'DMF'") == "C"
    assert met("not (s == 'DMF')") == met("s not in ['DMF']") == "CD"
    assert met("x < 1 or s == 'THF'") == "AC"  # D has no x
    assert met("not dry") == met("~dry and id != 'A'") == "BDF"
    assert met("day > '2024-01-12'") == "DEF"
    assert met("lot < '8'") == "ABC"
    assert met({"dry": np.bool_(False)}) == met({"dry": False}) == "BDF"
    assert (met({"lot": "007"}), met({"lot": "7"}), met({"lot": 7})) == ("B", "AC", "ABC")
    assert (met({"s": None}), met({"x": None}), met({"dry": None}), met({"lot": None})) == ("BE", "DE", "C", "F")
    assert met({"s": ["THF", None]}) == "BCDE"


def test_dates_are_compared_with_texts():
    days = pd.to_datetime(["2026-02-01", "2026-02-02", None, "2026-02-03"])
    given = as_table("table", pd.DataFrame({"day": days, "at": days.tz_localize("UTC"), "my day": days, "x": [1.0, 2, 3, 4]}))

    def met(condition: Any) -> str:
        return "".join(np.array(list("ABCD"))[on_offer("where", given, condition).numpy()])

    for name in ("day", "`my day`", "at"):
        assert met(f"{name} == '2026-02-02'") == met(f"'2026-02-02' == {name}") == "B"
        assert met(f"{name} != '2026-02-02'") == met(f"not {name} == '2026-02-02'") == "AD"
        assert met(f"{name} in ['2026-02-01', '2026-02-02'] and x > 1") == "B"
        assert met(f"{name} not in ('2026-02-01', '2026-02-02')") == "D"
        assert met(f"'2026-02-01' < {name} != '2026-02-02'") == "D"
        assert met(f"x > 1 & {name} != '2026-02-02' | x == 1") == "AD"
    assert met("day == `my day`") == "ABD"
    assert met("at >= '2026-02-02 00:00Z'") == "BD"
    assert met("at >= '2026-02-02 00:00-01:00'") == "D"
    assert met("day >= '2026-02-02 00:00Z'") == met("day in ['2026-02-02T00:00Z', '2026-02-03']") == "BD"
    for one in ("2026-02-02", pd.Timestamp("2026-02-02"), dt.date(2026, 2, 2), np.datetime64("2026-02-02")):
        assert met({"day": one}) == met({"at": one}) == "B"
    for wrong, said in (
        ({"day": "monday"}, "'monday' is no date, which column 'day' holds"),
        ("day == 3", "write it in quotes"),
    ):
        with pytest.raises(ArgumentError, match=said):
            met(wrong)


@OFF_SCALE
@pytest.mark.parametrize("auto", [False, True])
def test_what_is_expected_of_rows_needs_no_factors_of_the_posterior(auto: bool, monkeypatch: pytest.MonkeyPatch):
    """They took 99 % of the time of an ask beside 1,500 measured rows."""
    c = campaign(**{"policy": tb.auto()} if auto else {})
    for _ in range(2):
        c.tell(measured(c.ask(8)))

    def of(*_: object) -> Factors:
        raise AssertionError("an ask, or best(), computed the factors of the posterior")

    monkeypatch.setattr(Factors, "of", of)
    plate, best = c.ask(8), c.best(3)
    monkeypatch.undo()
    posterior = copy.deepcopy(c.bandit.posterior)
    posterior.set_pending_(c.bandit.arms[:0], torch.zeros(0, dtype=torch.float64))
    for rows in (plate, best):
        known = posterior(c.bandit.arms[[int(text) for text in rows["id"]]])
        np.testing.assert_allclose(rows["expected"], known.mean, rtol=1e-7)
        np.testing.assert_allclose(rows["deviation"], known.variance.sqrt(), rtol=1e-6)


def test_a_minimised_zero_is_expected_without_a_sign():
    c = campaign(minimize=True)
    c.tell({"id": c.ask(4)["id"].tolist(), "yield": [0.0] * 4})
    assert not np.signbit(c.best(2)["expected"]).any()


def test_narrow_numbers_are_compared_as_wide_ones():
    table = pa.table({"a": pa.array([10, 100, 120, None], pa.int8()), "b": pa.array([20, 200, 2, 3], pa.uint8())})
    table = table.append_column("c", pa.array([2**64 - 1, 5, 7, 9], pa.uint64()))
    table = table.append_column("f", pa.array([0.1, 0.2, 0.3, None], pa.float32())).append_column("g", pa.array([0.1, 0, 0, 0]))
    given = as_table("table", table)

    def met(condition: str) -> str:
        return "".join(np.array(list("ABCD"))[on_offer("where", given, condition).numpy()])

    assert met("a * 2 > 150") == "BC"
    assert met("b - 10 > 0") == "AB"
    assert met("a - b > 0") == "C"
    assert met("-b < -50") == met("b ** 2 > 2000") == "B"
    assert met("c == 18446744073709551615") == "A"
    assert met("f in [0.1, 0.3]") == "AC"
    assert met("f not in [0.1]") == "BC"
    assert met("f == g") == met("f <= 0.1") == "A"


def test_conditions_name_columns_with_letters_that_python_rewrites():
    micro, angstrom, greek = "size_\N{MICRO SIGN}m", "\N{ANGSTROM SIGN}", "\N{GREEK SMALL LETTER MU}"
    given = as_table("table", {micro: [1.0, 2, 3], angstrom: [1, 1, 5], greek: [1, 2, 3], "\N{MICRO SIGN}": [3, 2, 1]})
    for condition in (f"{micro} > 1 and {angstrom} < 2", f"`{micro}` > 1 and `{angstrom}` < 2", f"{greek} == 2"):
        assert on_offer("where", given, condition).tolist() == [False, True, False]


def test_numbers_are_not_compared_with_texts(tmp_path: Path):
    table = frame().assign(plate=np.arange(60) % 3, lot=np.array(["07", "7", "x"])[np.arange(60) % 3])
    c = campaign(table.rename(columns={"temp": "the temp"}), journal=tmp_path / "journal", candidates="plate != 1")
    for wrong, said in (
        ("plate != '2'", "column 'plate' holds numbers, and '2' is a text: write it without quotes"),
        ("plate in [1, '2']", "without quotes"),
        ("dry != 'True'", "column 'dry' holds True and False, and 'True' is a text"),
        ("lot != 7", "column 'lot' holds texts, and 7 is none: write it in quotes"),
        ("'the temp' < 50 and dry", "'the temp' is a column, whose name is written without quotes, or in backticks"),
    ):
        refused(lambda wrong=wrong: c.ask(1, where=wrong), said)
    assert set(c.ask(2, where="lot == '07' and `the temp` > -1 and plate <= 1.5")["lot"]) == {"07"}
    c.close()
    refused(lambda: campaign(table, candidates="plate != '1'"), "candidates: column 'plate' holds numbers")
    # One that began before this was refused goes on.
    settings = tmp_path / "journal.campaign.json"
    settings.write_text(settings.read_text().replace("plate != 1", "plate != '1'"))
    again = campaign(table.rename(columns={"temp": "the temp"}), journal=tmp_path / "journal")
    assert len(again.ask(3)) == 3


def test_conditions_as_chemists_write_them():
    days = [f"2026-0{1 + i % 3}-01" for i in range(60)]
    c = campaign(frame().assign(**{"lambda": np.arange(60) % 5, "day": pd.to_datetime(days)}))
    assert set(c.ask(4, where="lambda < 2 and dry == true")["lambda"]) <= {0, 1}
    c.forget()
    assert not c.ask(3, where="dry == false and `lambda` > -1")["dry"].any()
    c.forget()
    for wrong, *said in (
        ("day >= '01.02.2026'", "column 'day' holds dates, and '01.02.2026' may mean two: write it in the form '2026-08-31'"),
        ("day == '1/2/26'", "may mean two"),
        ("dry == 'true'", "column 'dry' holds True and False, and 'true' is a text: write it without quotes (True or False)"),
        ("solvent = 'DMF'", "is neither a column of booleans nor a comparison", "Equality is written ==."),
        ("day >= 2026-08-01", "is neither a column of booleans nor a comparison", "Dates are written in quotes."),
        ("temp < 50,5", "is not a comparison", "Write decimals with a point."),
    ):
        refused(lambda wrong=wrong: c.ask(1, where=wrong), *said)
    refused(lambda: c.ask(1, where={"day": "01.02.2026"}), "may mean two")
    assert len(c.ask(2, where="day >= '2026-02' and day != '2 March 2026'")) == 2


@OFF_SCALE
def test_without_repeats_every_row_is_asked_for_once():
    c = campaign(frame(12))
    seen: list[str] = []
    for _ in range(3):
        plate = c.ask(4, repeats=False)
        c.tell(measured(plate))
        seen += plate["id"].tolist()
    assert sorted(seen) == frame(12)["id"].tolist()
    few = r"n: 1 more rows are asked for, and 0 of the table can be selected: ask for fewer, or leave out repeats=False"
    with pytest.raises(ArgumentError, match=few):
        c.ask(1, repeats=False)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")  # of fits to few values
@pytest.mark.parametrize("options", [{}, {"noise_std": 1.0}], ids=["auto", "known noise"])
def test_rows_that_are_known_are_not_selected_again_while_there_are_others(options: dict[str, Any]):
    def asked(c: tb.Campaign, number: int, **how: Any) -> Counter[str]:
        seen: list[str] = []
        for _ in range(number):
            plate = c.ask(1, **how)
            c.tell(measured(plate))
            seen += plate["id"].tolist()
        return Counter(seen)

    assert max(asked(tb.Campaign(frame(15), "yield", **options), 40, repeats=True).values()) > 6
    c = tb.Campaign(frame(15), "yield", **options)
    assert max(asked(c, 40).values()) == 3
    assert set(asked(c, 10, where="dry").values()) != {1}, "all rows may be selected once there are too few others"
    given = asked(campaign(frame(15)), 40)
    assert given == asked(campaign(frame(15)), 40, repeats=True), "a kernel that is given selects what its rule says"


@pytest.mark.exhaustive
def test_noisy_rows_are_selected_again_while_that_teaches():
    c, noise = tb.Campaign(frame(15), "yield"), np.random.default_rng(1)
    every: Counter[str] = Counter()
    for _ in range(60):
        plate = c.ask(1)
        c.tell(plate[["id"]].assign(**{"yield": yields(plate) + 40 * noise.standard_normal(len(plate))}))
        every.update(plate["id"])
    assert max(every.values()) > 6


def test_a_plate_without_repeats_leaves_no_mask_of_all_rows_in_the_journal(tmp_path: Path):
    sizes = {}
    for rows in (200, 20_000):
        table = pd.DataFrame({"id": range(rows), "x": np.linspace(0, 1, rows)})
        c = campaign(table, journal=tmp_path / str(rows))
        before = (tmp_path / str(rows)).stat().st_size
        c.ask(8, repeats=False)
        sizes[rows] = (tmp_path / str(rows)).stat().st_size - before
        c.close()
    assert sizes[20_000] < sizes[200] + 200, "a mask of 20,000 rows takes 2,500 bytes"


def test_equal_rows_share_what_is_known_and_those_on_offer_are_asked():
    table = pd.concat([frame(10), frame(10).assign(id=lambda t: "b" + t["id"])], ignore_index=True)
    table["supplier"] = ["A"] * 10 + ["B"] * 10
    c = campaign(table, candidates="supplier == 'B'", columns={"supplier": "ignore"})
    plate = c.ask(3)
    assert all(text.startswith("b") for text in plate["id"])
    c.tell(measured(plate))
    assert c.open == []
    assert c.best(1)["id"].iloc[0].startswith("b")


def test_what_is_shown_of_equal_rows_can_be_forgotten_and_answered(tmp_path: Path):
    table = pd.DataFrame({"id": list("ABCDEF"), "temp": [1.0, 1.0, 2.0, 3.0, 4.0, 5.0], "ok": [False, True] + [False] * 4})
    c = campaign(table, candidates="ok")
    assert c.ask(1)["id"].tolist() == c.open == ["B"]
    with pytest.raises(ArgumentError, match="ids: C, nobody are not pending: give ids of rows that were asked for or planned"):
        c.forget(["B", "C", "nobody"])
    c.forget(["B"])
    assert c.open == []
    c.ask(1)
    c.forget(["A"])
    assert c.open == []
    # The row was measured again, with the same value by chance.
    file = tmp_path / "results.csv"
    for further in ("C,2.0\n", ""):
        c.ask(1)
        file.write_text(f"id,yield\nB,1.0\n{further}")
        assert (c.tell(file).known, c.open) == (0, [])
    c = campaign(table)
    assert c.ask(1, where="id == 'B'")["id"].tolist() == c.open == ["B"]


def test_costs_are_heeded():
    table = frame().assign(price=lambda t: np.where(t["dry"], 1.0, 1000.0))
    c = campaign(table, cost="price", policy=tb.per_cost(policy()))
    c.tell(measured(table.iloc[:2]))
    assert c.ask(1)["dry"].all()
    with pytest.raises(ArgumentError, match=r"row 0, column 'price': a cost must be a number above 0, got 0"):
        campaign(table.assign(price=0.0), cost="price")
    with pytest.raises(ArgumentError, match=r"column 'price' holds dates: a cost must be a number above 0"):
        campaign(table.assign(price=pd.Timestamp("2026-08-31")), cost="price")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("minimize", [False, True])
def test_a_campaign_goes_on_as_it_was(tmp_path: Path, minimize: bool):
    path = tmp_path / "lab.journal"
    options: dict[str, Any] = {"minimize": minimize, "columns": {"conc": "number"}, "candidates": "temp < 110"}
    c, straight = campaign(journal=path, **options), campaign(**options)
    for _ in range(3):
        plate = c.ask(3)
        assert plate["id"].tolist() == straight.ask(3)["id"].tolist()
        c.tell(measured(plate))
        straight.tell(measured(plate))
        shown = repr(c.columns)
        c.close()
        c = campaign(journal=path)
        assert repr(c.columns) == shown
        assert torch.equal(c.bandit.arms, straight.bandit.arms)
    pd.testing.assert_frame_equal(c.best(4), straight.best(4))


def test_the_default_policy_finds_the_best_row():
    table = frame()
    c = tb.Campaign(table, "yield", columns={"dry": "ignore"})
    for _ in range(4):
        plate = c.ask(5)
        assert len(plate) == 5
        c.tell(measured(plate))
    assert c.best(1)["measured"].iloc[0] >= yields(table).nlargest(3).min()


# ---------------------------------------------------------------------- tables of every kind


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", ["arrow", "csv", "semicolons", "parquet", "feather", "dictionary", "exported", "batches"])
def test_every_kind_of_table_is_the_same_campaign(kind: str, tmp_path: Path):
    table = frame()
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    paths = {name: tmp_path / f"table.{name}" for name in ("csv", "parquet", "feather")}
    table.to_csv(paths["csv"], index=False)
    pq.write_table(arrow, paths["parquet"], row_group_size=17)
    with pa.OSFile(str(paths["feather"]), "wb") as sink, pa.ipc.new_file(sink, arrow.schema) as writer:
        writer.write_table(arrow)
    table.to_csv(tmp_path / "semicolons.csv", index=False, sep=";", decimal=",", encoding="utf-8-sig")

    class Views:  # as Polars and other libraries export texts
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            texts = arrow["solvent"].cast(pa.string()).cast(pa.string_view())
            return arrow.set_column(3, "solvent", texts).__arrow_c_stream__(requested_schema)

    given: dict[str, Any] = {"arrow": arrow, "batches": arrow.to_reader(max_chunksize=13), "dictionary": arrow.to_pydict()}
    given |= {"exported": Views(), "semicolons": tmp_path / "semicolons.csv"}
    c, own = campaign((given | paths)[kind]), campaign(table)
    np.testing.assert_allclose(c.bandit.arms, own.bandit.arms, atol=1e-9)
    plate = c.ask(4)
    assert plate["id"].tolist() == own.ask(4)["id"].tolist()
    c.tell(measured(plate))
    assert c.best(1)["id"].iloc[0] in plate["id"].tolist()


class Exported:
    """A table that has only Arrow's interface, with texts as Polars exports them."""

    def __init__(self, columns: dict[str, Any]) -> None:
        views = pa.string_view()
        parts = {name: pa.array(values) for name, values in columns.items()}
        self._table = pa.table(
            {k: v.cast(pa.string()).cast(views) if pa.types.is_string(v.type) else v for k, v in parts.items()}
        )

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_candidates_and_results_may_be_of_any_library_that_exports_arrow():
    own = frame().rename(columns={"id": "name"})
    c = campaign(Exported(own.to_dict("list")), id="name")
    plate = c.ask(4)
    assert set(plate["name"]) <= set(own["name"])
    told = c.tell(Exported({"name": plate["name"].tolist(), "yield": [1.0, None, 3.0, 2.0]}))
    assert (told.measured, told.failed, told.unasked) == (3, 1, 0)
    assert c.best(1)["name"].iloc[0] == plate["name"][2]
    told = c.tell(pa.RecordBatch.from_pydict({"name": ["000"], "yield": [0.5]}))
    assert told.measured == 1
    refused(lambda: c.tell(Exported({"name": ["nobody"], "yield": [1.0]})), "'nobody'", "results of another campaign")
    refused(lambda: c.tell(object()), "measured must be a table of pandas, Polars or Arrow", "got object")
    refused(lambda: c.tell([{"id": "000", "yield": 1.0}]), "measured must be a table", "got list", "pandas.DataFrame(rows)")
    refused(lambda: c.tell({"id": "000", "yield": 1.0}), "Each column of a dictionary is a list of cells")


def test_ids_may_be_numbers_an_index_or_the_number_of_the_row(tmp_path: Path):
    whole = frame().assign(id=range(100, 160))
    c = campaign(whole)
    c.tell({"id": [100.0, 159.0], "yield": [1.0, 2.0]})  # as a spreadsheet writes numbers
    assert sorted(c.best(2)["id"]) == [100, 159]
    indexed = frame().set_index("id")
    c = campaign(indexed)
    plate = c.ask(2).set_index("id")
    assert c.tell(plate.assign(**{"yield": 1.0})).measured == 2
    bare = frame().drop(columns="id")
    bare.to_csv(tmp_path / "bare.csv", index=False)
    c = campaign(tmp_path / "bare.csv")
    plate = c.ask(2)
    assert (plate["temp"] == bare["temp"].iloc[plate["row"] - 1].to_numpy()).all()
    assert c.tell(plate.assign(**{"yield": 1.0})).measured == 2


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "ids",
    [
        np.arange(1.0, 9.0),
        np.arange(8) + 0.25,
        pd.date_range("2024-01-01", periods=8),
        pd.date_range("2024-01-01", periods=8, freq="h", unit="s", tz="Europe/Berlin"),
        ["NA", "null", "3.0", "4", "5 ", "6", "7", "8"],
    ],
)
def test_ids_of_any_type_come_back(ids: Any, tmp_path: Path):
    own = pd.DataFrame({"id": ids, "temp": np.arange(8.0)})
    c = campaign(own)
    plate = c.ask(8).assign(**{"yield": 1.0})
    assert c.open == c._pool.ids.texts(plate["id"])
    plate.to_csv(tmp_path / "plate.csv", index=False)
    assert c.tell(tmp_path / "plate.csv").measured == 8
    assert c.tell(plate).measured == 8
    assert c.tell(own.assign(**{"yield": 1.0})).measured == 8
    c.ask(2)
    c.forget(c.open)
    assert c.open == []


@pytest.mark.exhaustive
def test_large_features_are_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = campaign().bandit.arms
    monkeypatch.setattr("torchbandits.tabular.encoding.IN_MEMORY", 100)
    monkeypatch.setattr("torchbandits.tabular.tables.BATCH", 7)
    pq.write_table(pa.Table.from_pandas(frame(), preserve_index=False), tmp_path / "table.parquet", row_group_size=11)
    path, opened = tmp_path / "journal", np.lib.format.open_memmap

    def to_read(*args: Any, **options: Any) -> Any:
        """A full disk ends the process that writes through a map."""
        assert options["mode"] == "r"
        return opened(*args, **options)

    monkeypatch.setattr(np.lib.format, "open_memmap", to_read)
    c = campaign(tmp_path / "table.parquet", journal=path, dtype=torch.float32)
    assert isinstance(c.bandit.arms, tb.sources.NpyFile)
    np.testing.assert_allclose(c.bandit.arms.chunk(slice(0, 60)), own, atol=1e-5)
    c.tell(measured(c.ask(5)))
    plate = c.ask(3)
    c.close()
    again = tb.Campaign(None, journal=path, policy=policy())
    pd.testing.assert_frame_equal(again.ask(3), plate)
    assert {p.name for p in tmp_path.iterdir()} >= {"journal", "journal.campaign.json", "journal.features.npy"}


def large(path: Path, rows: int) -> Path:
    """A Parquet file with ids of twelve letters, written in row groups."""
    rng = np.random.default_rng(0)
    columns = {"id": [f"mol-{i:08d}" for i in range(rows)], "temp": rng.uniform(20, 120, rows)}
    columns |= {"solvent": rng.choice(["EtOH", "DMF", "H2O"], rows), "ligand": rng.choice([f"L{i}" for i in range(12)], rows)}
    pq.write_table(pa.table(columns), path, row_group_size=5_000)
    return path


def test_a_parquet_file_may_be_replaced_and_not_written_to_while_a_campaign_is_open(tmp_path: Path):
    """Cells of the new file would be read at the places of the old one."""
    path, other = large(tmp_path / "table.parquet", 50), large(tmp_path / "other.parquet", 60)
    c = campaign(path)
    plate = c.ask(3)
    other.replace(path)
    pd.testing.assert_frame_equal(c.ask(3), plate)
    c = campaign(path)
    path.write_bytes(large(tmp_path / "third.parquet", 70).read_bytes())
    for call in (c.ask, lambda: c.exclude(where="temp < 50")):
        with pytest.raises(DataError, match=r"was written to since it was opened.*open the campaign again"):
            call()


def test_ids_of_rows_are_read_without_the_other_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a table of thousands of columns."""
    c = campaign(large(tmp_path / "table.parquet", 50))
    plate = c.ask(3)
    read: list[Any] = []
    of_group = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda self, g, columns=None: (read.append(columns), of_group(self, g, columns))[1]
    )
    assert c.open == plate["id"].tolist()
    assert read == [["id"]]


def test_damaged_features_are_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.tabular.encoding.IN_MEMORY", 0)
    path = large(tmp_path / "table.parquet", 50)
    campaign(path, journal=tmp_path / "lab").close()
    features = tmp_path / "lab.features.npy"
    features.write_bytes(features.read_bytes()[:200])
    with pytest.raises(DataError, match=r"lab.features.npy is damaged: delete it, and it is made again from .*table.parquet"):
        campaign(path, journal=tmp_path / "lab")
    features.unlink()
    campaign(path, journal=tmp_path / "lab").close()


@pytest.mark.exhaustive
def test_a_large_file_is_read_in_pieces_and_its_ids_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Bounds the memory per further row, beyond PyTorch's numbers; the text of an id alone takes 60 bytes."""
    monkeypatch.setattr("torchbandits.tabular.encoding.IN_MEMORY", 0)
    monkeypatch.setattr("torchbandits.tabular.tables.BATCH", 1 << 12)
    read: list[str] = []
    batches = ParquetRows.batches

    def counted(self: ParquetRows, columns: Any) -> Any:
        read.extend(columns)
        return batches(self, columns)

    def traced(call: Any) -> tuple[Any, np.ndarray]:
        """The result of a call, and the bytes of NumPy, Python and Arrow held after it and at their peak."""
        read.clear()
        tracemalloc.start()
        arrow = pa.total_allocated_bytes()
        try:
            result = call()
            return result, np.array([*tracemalloc.get_traced_memory(), pa.total_allocated_bytes() - arrow])
        finally:
            tracemalloc.stop()

    monkeypatch.setattr(ParquetRows, "batches", counted)
    taken = []
    for rows in (250, 100_000, 200_000):  # the first round also imports packages
        path, given = tmp_path / f"{rows}", large(tmp_path / f"{rows}.parquet", rows)
        c, began = traced(lambda: campaign(given, journal=path))  # noqa: B023
        assert read.count("id") == 1
        plate = c.ask(3)
        c.tell(plate.assign(**{"yield": [1.0, 2.0, 3.0]}))
        c.close()
        c, went_on = traced(lambda: tb.Campaign(None, journal=path, policy=policy()))  # noqa: B023
        assert read == ["id"]
        assert c.best(1)["id"].iloc[0] == plate["id"][2]
        taken.append(np.concatenate([began, went_on]))
    held_new, most_new, arrow_new, held_on, most_on, arrow_on = (taken[2] - taken[1]) / 100_000
    assert max(held_new, held_on, arrow_new, arrow_on) < 4
    assert most_new < 60, "most of it the search for equal rows"
    assert most_on < 160, "most of it the checkpoint, 32 bytes a row, as it is read and loaded"


def test_going_on_repeats_nothing_that_was_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "journal"
    c = campaign(journal=Journal(path, every=1_000))
    for _ in range(3):
        c.tell(measured(c.ask(3)))
    plate = c.ask(2)
    c.close()
    c.close()

    def never(*_: object) -> None:
        raise AssertionError("a record was repeated, or a state was written down")

    with monkeypatch.context() as patched:
        patched.setattr("torchbandits.journal.resuming.repeat", never)
        patched.setattr("torchbandits.journal.records.state_as_text", never)
        again = campaign(journal=path)
        pd.testing.assert_frame_equal(again.ask(2), plate)
    again.tell(measured(plate))
    held = (tmp_path / "journal.checkpoint").read_bytes()
    c.close()  # must not overwrite the state of the object that continued the campaign
    assert (tmp_path / "journal.checkpoint").read_bytes() == held
    again.close()
    assert int(campaign(journal=path).bandit.pulls) == 11


# ---------------------------------------------------------------------- results files


def test_a_file_counts_once_and_may_grow(tmp_path: Path):
    c, path = campaign(journal=tmp_path / "journal"), tmp_path / "results.csv"
    results = measured(c.ask(4))
    results.to_csv(path, index=False)
    assert c.tell(path).measured == 4
    told = c.tell(path)
    assert (told.measured, told.known) == (0, 4)
    more = pd.concat([results, measured(c.ask(3)), results.head(1)])
    more.to_csv(path, index=False)
    c.close()
    c = campaign(journal=tmp_path / "journal")
    told = c.tell(path)
    assert (told.measured, told.known) == (4, 4)  # a value repeated within the file counts as a repeat
    assert "4 rows had been told before" in str(told)
    assert told.notes == ("1 result has the id and the value of another one in the file, and counts as a repeated evaluation.",)
    assert c.tell(path, again=True).notes == ()
    assert int(c.bandit.pulls) == 16
    c.ask(1)
    pd.concat([measured(frame(6).tail(2))] * 2).to_csv(path, index=False)
    told = c.tell(path)
    assert "2 results have the id and the value of another one in the file, and count as repeated evaluations." in str(told)


def test_a_file_of_answers_is_new_even_where_values_repeat(tmp_path: Path):
    c, path = campaign(frame(4)), tmp_path / "results.csv"
    for n in (4, 3):  # more asks than rows: rows are repeated, with the same values
        plate = c.ask(n)
        measured(plate).to_csv(path, index=False)
        told = c.tell(path)
        assert (told.measured, told.notes) == (n, ())


def test_a_plate_in_duplicate_is_new_where_a_row_was_asked_for_again(tmp_path: Path):
    """Its values may be those of before, such as a limit of detection. A file that grows has those of an earlier call."""
    c, path = campaign(), tmp_path / "results.csv"

    def told(ids: list[str], rows: str) -> tuple[int, int, list[str]]:
        c.plan(ids)
        report = c.tell(written(path, "id,yield\n" + rows.replace(" ", "\n")))
        return report.measured, report.known, c.open

    first = "003,80 003,>90 004,70 004,70"
    assert told(["003", "004"], first) == (4, 0, [])
    second = "003,>90 003,>90 005,1 005,2"
    assert told(["003", "005"], second) == (4, 0, [])
    assert "If they are new measurements, tell them with again=True (--again)." in str(c.tell(path))
    assert told(["003", "004"], f"{first} 004,69") == (1, 4, ["003"])
    report = c.tell(written(path, "id,yield\n003,80\n006,7\n006,8\n"))
    assert (report.measured, report.known) == (2, 1)
    assert "If it is a new measurement, tell it alone, without the other rows, with again=True (--again)." in str(report)


def test_cells_of_a_workbook_that_are_no_numbers_are_refused_with_what_to_do(tmp_path: Path):
    path = tmp_path / "results.xlsx"
    for cell, said in (
        ("10,5", "Make texts with decimal commas numbers."),
        (pd.Timestamp(2026, 5, 1), "make dates of numbers such"),
    ):
        pd.DataFrame({"id": ["003", "004"], "yield": pd.Series([cell, 7], dtype=object)}).to_excel(path, index=False)
        with pytest.raises(ArgumentError, match=said) as error:
            campaign().tell(path)
        assert "without units" not in str(error.value)
        assert "with a point" not in str(error.value)


@pytest.mark.parametrize("delimiter", ["\t", ";"])
def test_a_plate_with_commas_is_filled_in_with_points(delimiter: str, tmp_path: Path):
    table = written(tmp_path / "table.csv", "id;temp\na;60,5\nb;61,5\nc;62,5\n".replace(";", delimiter))
    c = tb.Campaign(table, "yield")
    told = c.tell(written(tmp_path / "results.csv", "id;temp;yield\na;60,5;20.25\nb;61,5;7,5\n".replace(";", delimiter)))
    assert str(told).startswith("2 measurements and 0 failed evaluations told.")
    assert c.results()["yield"].tolist() == [20.25, 7.5]


def test_cells_are_read_as_spreadsheets_write_them(tmp_path: Path):
    c, path = campaign(), tmp_path / "results.csv"
    path.write_bytes("\ufeffid;yield;note\r\n000;1,5;ä\r\n001;;\r\n;;\r\n002; 2,25 ;\r\n".encode())
    told = c.tell(path)
    assert (told.measured, told.failed) == (2, 1)
    assert sorted(c.best(2)["measured"]) == [1.5, 2.25]


def test_a_typographic_minus_is_a_minus(tmp_path: Path):
    c = campaign()
    assert c.tell(written(tmp_path / "results.csv", "id,yield\n003,\N{MINUS SIGN}3.5\n004,-4\n")).measured == 2
    assert sorted(c.best(2)["measured"]) == [-4, -3.5]


def written(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_text(text, encoding=encoding, newline="")
    return path


def test_cells_beyond_the_header_shift_nothing(tmp_path: Path):
    c = campaign()
    told = c.tell(written(tmp_path / "commas.csv", "id,yield,minutes\n\n003,5,7,\n004,6,8,\n"))
    assert told.measured == 2
    assert dict(zip(c.best(2)["id"], c.best(2)["measured"], strict=True)) == {"003": 5.0, "004": 6.0}
    more = written(tmp_path / "more.csv", "id,yield\n\n003,5,7\n")
    refused(lambda: c.tell(more), "line 3, has 3 cells, the header 2", error=DataError)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("id\ttemp\tpos\na\t20.5\t1,2-diol\nb\t21.5\t1,2\n", {"temp": [20.5, 21.5], "pos": ["1,2-diol", "1,2"]}),
        ("id;p (bar, abs);T (C, set)\na;1,5;2\nb;1,7;2,9\n", {"p (bar, abs)": [1.5, 1.7], "T (C, set)": [2, 2.9]}),
        ("id;temp, C\n007;1,5\nb;2,5\n", {"id": ["007", "b"], "temp, C": [1.5, 2.5]}),
        ("sep=;\r\nid;temp\r\n007;1,5\r\nb;1e3\r\n", {"id": ["007", "b"], "temp": [1.5, 1000]}),
        ("\n\nid,temp\n007,1\n\nb,2\n", {"id": ["007", "b"], "temp": [1, 2]}),
        ("id,temp\n007,1\nb,2\n,\n , \n,\n".replace(" ", ""), {"id": ["007", "b"], "temp": [1, 2]}),
        ('id,"a; b"\nx,"1;2"\ny,"3\n4"\n', {"id": ["x", "y"], "a; b": ["1;2", "3\n4"]}),
    ],
)
def test_separators_and_decimals_are_those_of_the_cells(text: str, columns: dict[str, list[Any]], tmp_path: Path):
    path = written(tmp_path / "table.csv", text)
    found = open_table(path, None).take(np.arange(2)).to_pydict()
    assert {name: found[name] for name in columns} == columns
    assert open_table(path, None).count == 2
    numbers = {name: cells for name, cells in columns.items() if not isinstance(cells[0], str)}
    read = read_texts(path)
    for name, cells in numbers.items():
        assert [float(text.replace(",", ".")) if read.decimal == "," else float(text) for text in read.frame[name][:2]] == cells


def test_results_that_may_be_thousands_are_refused_where_the_candidates_have_decimal_commas(tmp_path: Path):
    table = frame().assign(temp=frame()["temp"] + 0.5)
    table.to_csv(tmp_path / "commas.csv", sep=";", decimal=",", index=False)
    c, path = campaign(tmp_path / "commas.csv"), tmp_path / "results.csv"
    doubt = "line 3: is '1.000' 1000 or 1,000? The candidates have decimal commas"
    refused(lambda: c.tell(written(path, "id;yield\n000;7\n001;1.000\n")), doubt, error=DataError)
    assert int(c.bandit.pulls) == 0
    refused(lambda: c.tell(written(path, "id\tyield\n000\t7\n001\t1.000\n")), doubt, error=DataError)
    c.tell(written(path, "id;yield\n000;7.25\n001;1.000\n"))
    c.tell(written(path, "id;yield\n002;1,000\n003;2,500\n"))
    c.tell(written(path, "id,yield\n004,1.000\n"))
    (tmp_path / "commas.csv").unlink()
    c.tell(written(path, "id;yield\n005;1000\n"))
    assert c.results()["yield"].tolist() == [7.25, 1, 1, 2.5, 1, 1000]
    table.to_csv(tmp_path / "points.csv", sep=";", index=False)
    assert campaign(tmp_path / "points.csv").tell(written(path, "id;yield\n000;1.000\n")).measured == 1


def test_spreadsheets_that_may_mean_two_things_are_refused_with_the_line(tmp_path: Path):
    path = tmp_path / "table.tsv"
    refused(lambda: campaign(written(path, "id\ttemp\na\t1,234\nb\t987\n")), "'1,234' 1234 or 1.234", error=DataError)
    mixed = "line 3: is '1.234' 1234 or 1,234? Line 2 has the number '40,5'."
    refused(lambda: campaign(written(path, "id;temp\na;40,5\nb;1.234\n")), mixed, error=DataError)
    written(path, "id;pos;temp\na;1,2;20.5\nb;1,3;1.234\n")
    assert open_table(path, None).take(np.arange(2))["temp"].to_pylist() == [20.5, 1.234]
    refused(lambda: campaign(written(path, "temp,dry\n1,\n\n,\n2,x\n")), "line 4: all cells are empty", error=DataError)
    many = "id,temp\n" + "".join(f"r{i},{i}\n" for i in range(10_000))
    for last in ("rz,µ", "µ,1"):
        written(path, many + last + "\n", "latin-1")
        refused(lambda: campaign(path), "line 10002, is not UTF-8", "CSV UTF-8", error=DataError)
    refused(lambda: campaign(written(path, "id,temp\n\na,1\n\nb,2\nc,x\nd,3\n")), "'x' in line 6")


@pytest.mark.parametrize("form", ["utf-16-le", "utf-16-be"])
def test_spreadsheets_in_utf_16_are_those_in_utf_8(tmp_path: Path, form: str):
    """`>` of Windows PowerShell writes them, with a byte order mark. Bytes of their letters may look like ends of lines."""
    table = pd.DataFrame(
        {"id": [f"Ċ{n:02d}" for n in range(30)], "heat": np.arange(30.0), "solvent": ["\u0a0a", 'é\n"x"'] * 15}
    )
    wide, text = tmp_path / "wide.csv", table.to_csv(index=False, lineterminator="\r\n")
    wide.write_bytes(("\ufeff" + text).encode(form))
    c, same = campaign(wide), campaign(written(tmp_path / "table.csv", text))
    plate = c.ask(4)
    pd.testing.assert_frame_equal(plate, same.ask(4))
    wide.write_bytes(("\ufeff" + plate.assign(**{"yield": [1.5, 2.5, 3.5, 4.5]}).to_csv(index=False)).encode(form))
    assert c.tell(wide).measured == 4
    wide.write_bytes(("\ufeff" + text).encode(form)[:-1])
    refused(lambda: campaign(wide), "not UTF-8", error=DataError)


def test_a_text_that_does_not_end_is_named_and_swallows_no_rows(tmp_path: Path):
    rows = [f"{i:03d},{20 + i},{'water' if i % 2 else 'DMF'}\n" for i in range(8)]
    rows[4] = rows[4].replace("DMF", '"DMF')
    path = written(tmp_path / "table.csv", "id,temp,solvent\n" + "".join(rows))
    refused(lambda: campaign(path), 'table.csv, line 6, has a quotation mark (") that is not closed', error=DataError)
    results = written(tmp_path / "results.csv", 'id,yield,note\n003,5,"a\nb"\n004,6,"c\n')
    refused(lambda: campaign().tell(results), "results.csv, line 4, has a quotation mark", error=DataError)
    tube = campaign(written(tmp_path / "tube.csv", 'id,temp,note\n1,20,"a, b"\n2,30,5" tube\n3,40,"a, b"\n4,50,5" tube\n'))
    assert set(tube.ask(4)["note"]) == {"a, b", '5" tube'}
    odd = written(tmp_path / "odd.csv", 'id,temp,note\n1,20,"a, b"\n2,30,5" tube\n3,40,x\n')
    assert len(campaign(odd, columns={"note": "ignore"}).ask(3)) == 3


@pytest.mark.sweep(1)
@pytest.mark.parametrize("header", ["id,temp,solvent,,", "id,temp,solvent"])
def test_empty_cells_beside_the_table_are_left_out(header: str, tmp_path: Path):
    rows = "".join(f"00{i},{i}.5,{'DMF' if i % 2 else 'H2O'},,\n" for i in range(8))
    c = campaign(written(tmp_path / "table.csv", f"{header}\n{rows},,,,\n"))
    assert list(c.ask(8).columns[:4]) == ["id", "temp", "solvent", "expected"]
    assert {d.column: d.kind for d in c.columns} == {"id": "id", "temp": "number", "solvent": "category"}
    assert c.tell(written(tmp_path / "results.csv", "id,yield,\n003,5,\n004,6,\n")).measured == 2
    far = "".join(f"{i},{i % 7},{'x' if i == 19_999 else ''}\n" for i in range(20_000))
    refused(
        lambda: campaign(written(tmp_path / "far.csv", f"id,temp,\n{far}")), "line 1: column 3 has no name", error=DataError
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Plan,,\nid,temp,x\n1,2,3\n2,3,4\n", "line 1: column 2, 3 has no name, and the first line must name all columns: "),
        ("Plan\n\nid,temp,x\n1,2,3\n2,3,4\n", "line 1, names one column, and line 3 has 3 cells: "),
        ("Plan 2026\nid;temp\n1;2,5\n2;3,5\n", "line 1, names one column, and line 2 has 2 cells: "),
    ],
)
def test_titles_above_the_table_are_named(text: str, words: str, tmp_path: Path):
    path = written(tmp_path / "table.csv", text)
    refused(lambda: campaign(path), f"table.csv, {words}delete titles above the table", error=DataError)
    single = written(tmp_path / "single.csv", "temp\n20,5\n30,5\n40,5\n")
    assert campaign(single).columns["temp"].kind == "number"


def test_a_cell_too_many_among_the_candidates_is_named_with_what_to_do(tmp_path: Path):
    path = written(tmp_path / "table.csv", "id,temp,solvent\n1,20,DMF\n2,2,5,DMF\n3,30,H2O\n")
    words = "table.csv, line 3, has 4 cells, the header 3: put texts with ',' in quotes, and write decimals with a point."
    refused(lambda: campaign(path), words, error=DataError)


def test_a_plate_of_a_spreadsheet_with_decimal_commas_is_that_of_the_candidates(tmp_path: Path):
    c = campaign(frame().assign(zero=np.where(np.arange(60) % 2, 1e-17, 2.0)), columns={"zero": "number"})
    plate = c.ask(6)
    plate["yield"] = yields(plate)
    plate.round({"temp": 1, "zero": 2}).to_csv(tmp_path / "plate.csv", sep=";", decimal=",", index=False)
    told = c.tell(tmp_path / "plate.csv")
    assert (told.measured, told.notes) == (6, ())
    plate.assign(temp=plate["temp"] + 10).to_csv(tmp_path / "plate.csv", sep=";", decimal=",", index=False)
    refused(lambda: c.tell(tmp_path / "plate.csv"), "line 2 has 'temp'")


def test_a_single_row_that_was_changed_is_said(tmp_path: Path):
    c = campaign()
    plate = c.ask(4)
    changed = plate.assign(**{"yield": 1.0, "temp": plate["temp"].mask(plate.index == 2, 500.0)})
    (note,) = [text for text in c.tell(changed).notes if "candidate's value" in text]
    assert f"row 2 has 'temp' 500.0, '{plate['id'][2]}' has" in note


# ---------------------------------------------------------------------- bad input


def refused(call: Any, *words: str, error: type[TorchBanditsError] = ArgumentError) -> None:
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("told", [None, "filled"])
def test_an_objective_that_looks_like_a_slip_is_refused_until_the_other_column_is_explained(told: str | None, tmp_path: Path):
    table = frame().assign(Yield=np.nan if told is None else yields(frame()).where(frame().index < 30))
    for objective in ("yeild", "yield "):
        wrong = ["has no column " + repr(objective), "its column 'Yield' has empty cells", "columns={'Yield': 'ignore'}"]
        refused(lambda: tb.Campaign(table, objective, tmp_path / "journal", policy=policy()), *wrong)  # noqa: B023
        assert list(tmp_path.iterdir()) == []
    c = campaign(table, columns={"Yield": "ignore"}, journal=tmp_path / "journal")
    assert c.objective == "yield"
    c.close()
    assert campaign(table, journal=tmp_path / "journal").objective == "yield"
    assert tb.Campaign(table.fillna({"Yield": 1.0}), "yield", policy=policy()).columns["Yield"].kind in ("number", "ignore")
    assert campaign(frame().assign(mass=np.nan)).objective == "yield"


@pytest.mark.usefixtures("annotations_not_enforced")
def test_bad_tables_are_refused_in_a_sentence(tmp_path: Path):
    refused(lambda: campaign(frame().set_index(["id", "temp"])), "several levels: reset_index()")
    refused(lambda: campaign(pd.concat({"a": frame()}, axis=1)), "several levels")
    refused(lambda: campaign(columns={"dry": None}), "columns: 'dry' must be a kind", "got None")
    table = frame()
    path = tmp_path / "candidates.csv"
    table.assign(id=table["id"].mask(table.index == 3)).to_csv(path, index=False)
    empty = (
        "candidates.csv, line 5: the id (column 'id') is empty. Every candidate needs a unique id. NA, N/A, n/a and the like"
    )
    refused(lambda: campaign(path), empty)
    table.assign(id=table["id"].mask(table.index == 3, "001")).to_csv(path, index=False)
    refused(lambda: campaign(path), "'001' in line 3 and line 5")
    refused(lambda: campaign(table.assign(id=7)), "'7' in row 0 and row 1")
    refused(lambda: campaign(table[:0]), "has no rows")
    refused(lambda: campaign(table, id="name"), "no column 'name'")
    refused(lambda: campaign(table.rename(columns={"id": "row"})), "no column of ids", "id='row'")
    refused(lambda: campaign(table, cost="prize"), "cost: the table has no column 'prize'")
    refused(lambda: campaign(table, cost="id"), "cost: column 'id' is the id already")
    refused(lambda: campaign(table[["id"]]), "no column that tells its rows apart")
    refused(lambda: campaign(table.assign(**{"yield": 1.0})), "every row", "nothing left to find out")
    of_results = "not a number: correct it, or leave the cell empty where nothing was measured."
    refused(lambda: campaign(table.assign(**{"yield": "n.d."})), "'yield'", "'n.d.' in row 0", of_results)
    of_cost = "holds '3 EUR' in row 0, which is not a number: every row needs a cost, so correct it."
    refused(lambda: campaign(table.assign(price="3 EUR"), cost="price"), of_cost)
    refused(lambda: campaign(tmp_path / "none.csv"), "none.csv can't be read", error=DataError)
    (tmp_path / "sheet.xlsx").write_bytes(b"PK")
    refused(lambda: campaign(tmp_path / "sheet.xlsx"), "save the sheet as 'CSV UTF-8'", error=DataError)
    path.write_bytes("id,näme\n1,2\n".encode("latin-1"))
    refused(lambda: campaign(path), "not UTF-8", error=DataError)
    path.write_text("id,a,a\n1,2,3\n")
    refused(lambda: campaign(path), "more than one column 'a'", error=DataError)
    path.write_text("id,a\n1,2\n2\n")
    refused(lambda: campaign(path), "line 3", error=DataError)


@pytest.mark.parametrize(
    "condition",
    ["temp <", "size > 3", "temp + 1", "temp.max() > 3", "@frame", "__import__('os')", "temp > 1e9", {}, {"size": 3}, 3],
)
@pytest.mark.usefixtures("annotations_not_enforced")
def test_bad_conditions_are_refused(condition: Any):
    c = campaign()
    refused(lambda: c.ask(1, where=condition), "where")
    assert c.open == []


def test_bad_results_are_refused_and_nothing_is_lost(tmp_path: Path):
    c, path = campaign(), tmp_path / "results.csv"
    plate = c.ask(4)
    results = measured(plate)

    def said(changed: pd.DataFrame, *words: str) -> None:
        changed.to_csv(path, index=False)
        refused(lambda: c.tell(path), *words)
        refused(lambda: c.tell(changed.reset_index(drop=True)), words[0])
        assert c.open == plate["id"].tolist()
        assert int(c.bandit.pulls) == 0

    said(results.rename(columns={"yield": "Yeild"}), "has no column 'yield'", "rename 'Yeild' to 'yield'. Nothing was told.")
    said(results.rename(columns={"id": "name"}), "has no column 'id'")
    said(results[:0], "has no rows")
    said(results.assign(**{"yield": np.nan}), "has a value in column 'yield': nothing was told")
    said(results.astype({"yield": str}).replace({"yield": {str(results["yield"][2]): "a lot"}}), "'a lot'", "line 4: 'a lot'")
    said(results.assign(**{"yield": np.inf}), "not a finite number")
    said(results.assign(id=results["id"].mask(results.index == 1)), "the id (column 'id') is empty", "line 3")
    said(results.assign(id=results["id"].mask(results.index == 1, "x9")), "not among the candidates: 'x9'", "'x9' (line 3)")
    said(results.assign(id="z" + results["id"]), "results of another campaign")
    said(plate.assign(**{"yield": 1.0, "temp": 3.0}), "columns of the candidates", "line 2 has 'temp' 3")
    path.write_text(f"id,yield\n{plate['id'][0]},31,5\n")
    refused(lambda: c.tell(path), "line 2, has 3 cells, the header 2", "and write decimals with a point.", error=DataError)
    refused(lambda: c.ask(1000), "996 more rows are asked for", "60 of the table")
    refused(lambda: c.forget(["059x"]), "059x")
    told = c.tell(results.assign(**{"yield": 4.0}))
    assert "All 4 values of 'yield' so far are 4: nothing can be learned" in str(told)


def test_a_value_after_a_failure_may_mean_that_nothing_had_failed(tmp_path: Path):
    c = campaign(journal=tmp_path / "journal")
    plate = c.ask(3)
    ids = plate["id"].tolist()
    assert "before" not in str(c.tell(plate.assign(**{"yield": [1.0, np.nan, np.nan]})))
    said = str(c.tell(plate.assign(**{"yield": [1.5, 2.0, 3.0]})))
    assert f"Told as failed before, with a value now: {ids[1]!r}, {ids[2]!r}. Both count." in said
    assert "Told as failed" not in str(c.tell({"id": ids, "yield": [1.2, 2.2, 3.2]}))
    assert len(c._records.failed_rows()) == 2
    for name in ids[1:]:
        c.correct(name, None, was=math.nan)
    assert c._records.failed_rows() == []
    assert c.best(3)["measured"].tolist() == pytest.approx([3.1, 2.1, 3.7 / 3])


def test_few_equal_values_are_not_taken_for_a_wrong_column():
    c = campaign()
    plate = c.ask(4).assign(**{"yield": 0.0})
    assert "constant" not in str(c.tell(plate[:3]))
    assert "All 4 values of 'yield' so far are 0: nothing can be learned" in str(c.tell(plate[3:]))


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_equal_results_have_no_deviation_and_a_page_without_one(tmp_path: Path, value: float):
    c = tb.Campaign(frame(), "yield")
    c.tell(c.ask(6).assign(**{"yield": value}))
    for rows in (c.best(6), c.predict(), c.ask(3)):
        assert rows["expected"].to_numpy() == pytest.approx(value)
        assert rows["deviation"].isna().all()
    assert c.doubt() == ""
    assert f"with yield expected at {value:g}, after 6 measurements" in str(c.explain())
    written = c.report(tmp_path / "page.html").read_text()
    assert f"<td>{value:g}</td>" in written
    assert "±" not in written
    c.tell(c.ask(1).assign(**{"yield": value - 1}))
    assert (c.best(7)["deviation"] > 0.01).all()


def test_nothing_can_be_shown_before_something_was_measured(tmp_path: Path):
    c = campaign()
    refused(lambda: c.best(), "nothing was measured yet, so that there is no best row", error=StateError)
    refused(lambda: c.report(tmp_path / "page.html"), "nothing was measured yet", error=StateError)


def test_another_campaign_is_not_gone_on_with(tmp_path: Path):
    path = tmp_path / "journal"
    campaign(journal=path, columns={"dry": "ignore"}).close()
    goes = {"journal": path}
    refused(lambda: campaign(frame().assign(temp="hot"), **goes), "has changed since", error=StateError)
    refused(lambda: campaign(frame().assign(id=lambda t: "x" + t["id"]), **goes), "its ids", error=StateError)
    refused(lambda: campaign(frame(50), **goes), "it has 50 rows, the campaign 60", error=StateError)
    refused(lambda: campaign(frame(61), **goes), "it has 61 rows", "New rows are added by extend()", error=StateError)
    refused(lambda: campaign(frame().drop(columns="temp"), **goes), "it lacks column 'temp'", error=StateError)
    refused(lambda: campaign(frame().assign(temp=1.0), **goes), "has changed since", error=StateError)
    refused(lambda: campaign(frame().assign(solvent="oil"), **goes), "has changed since", error=StateError)
    refused(lambda: campaign(minimize=True, **goes), "whether it is minimised was False, is True", error=StateError)
    refused(lambda: campaign(columns={"dry": "boolean"}, **goes), "columns was", error=StateError)
    refused(lambda: tb.Campaign(None, journal=path), "in no file: pass it again", error=StateError)
    (tmp_path / "journal.campaign.json").rename(tmp_path / "kept")
    refused(lambda: campaign(**goes), "restore that file from a copy", error=StateError)
    (tmp_path / "journal.campaign.json").write_text("{}")
    refused(lambda: campaign(**goes), "does not hold the settings", error=DataError)
    (tmp_path / "kept").rename(tmp_path / "journal.campaign.json")
    assert campaign(**goes).ask(1).shape == (1, 8)


def test_features_of_another_campaign_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.tabular.encoding.IN_MEMORY", 0)
    path = tmp_path / "journal"
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=99).double()
    refused(lambda: campaign(journal=path, policy=tb.gp_ucb(kernel, noise_std=0.1)), "99", error=TorchBanditsError)
    assert list(tmp_path.iterdir()) == []
    campaign(journal=path).close()
    for name in ("journal", "journal.campaign.json"):
        (tmp_path / name).unlink()
    (tmp_path / "journal.checkpoint").unlink(missing_ok=True)
    turned = frame()[::-1].reset_index(drop=True)
    c, own = campaign(turned, journal=path), campaign(turned)
    np.testing.assert_array_equal(*(one.bandit.arms.points(torch.arange(60)) for one in (c, own)))
    c.close()
    refused(lambda: campaign(turned.replace({"solvent": {"DMF": "H2O"}}), journal=path), "has changed", error=StateError)
    campaign(turned, journal=path)


def test_values_that_overflow_are_refused_before_anything_is_written(tmp_path: Path):
    huge = frame().assign(**{"yield": [1e200, *[None] * 59]})
    refused(lambda: campaign(huge, journal=tmp_path / "journal"), "column 'yield' holds 1e+200")
    assert list(tmp_path.iterdir()) == []


def test_rows_that_are_one_candidate_to_the_model_need_one_cost(tmp_path: Path):
    table = frame().assign(supplier="A", price=8.0)
    table.loc[7, ["temp", "conc", "solvent", "dry"]] = table.loc[3, ["temp", "conc", "solvent", "dry"]]
    table.loc[7, ["supplier", "price"]] = ["B", 5.0]
    options = {"cost": "price", "policy": tb.per_cost(policy()), "journal": tmp_path / "lab"}
    one, other = table["id"][[3, 7]]
    with pytest.raises(ArgumentError, match=rf"rows '{one}' and '{other}' of the table .* cost 8 and 5 in column 'price'"):
        campaign(table, columns={"supplier": "ignore"}, **options)
    assert not list(tmp_path.iterdir())
    c = campaign(table.drop(index=3), columns={"supplier": "ignore"}, **options)
    with pytest.raises(ArgumentError, match=rf"rows '{other}' and '{one}' .* cost 5 and 8"):
        c.extend(table.loc[[3]])
    assert len(c.ask(3)) == 3


def test_changed_costs_are_named(tmp_path: Path):
    path, table = tmp_path / "journal", frame().assign(price=1.0)
    options = {"journal": path, "cost": "price", "policy": tb.per_cost(policy())}
    campaign(table, **options).close()
    refused(lambda: campaign(table.assign(price=2.0), **options), "has changed", "column 'price'", error=StateError)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["expected", "rank", "measured", "times"])
def test_an_objective_may_have_the_name_of_an_added_column(name: str):
    c = tb.Campaign(frame(), name, policy=policy())
    plate = c.ask(2)
    assert name not in plate
    refused(lambda: c.tell(plate), f"has no column {name!r}")
    c.tell(plate.assign(**{name: [1.0, 2.0]}))
    assert name not in c.ask(3)
    assert len(c.best(2)) == 2


def test_results_may_be_true_or_false(tmp_path: Path):
    c = campaign(columns={"dry": "ignore"})
    told = c.tell(pd.DataFrame({"id": ["000", "001", "002"], "yield": [True, False, None]}))
    assert (told.measured, told.failed) == (2, 1)
    assert c.tell(written(tmp_path / "told.csv", "id,yield\n003,True\n004,FALSE\n")).measured == 2
    assert c.best(4)["measured"].tolist() == [1, 1, 0, 0]
    assert c.tell(written(tmp_path / "words.csv", "id,yield\n005,yes\n006,No\n007,\n")).failed == 1
    assert c.best(6)["measured"].tolist() == [1, 1, 1, 0, 0, 0]
    refused(lambda: c.tell(pd.DataFrame({"id": ["008", "009"], "yield": ["yes", "3"]})), "not a finite number", "'yes'")


def test_results_of_the_table_may_be_yes_or_no(tmp_path: Path):
    table = frame().assign(**{"yield": [["Yes", "no", None][i % 3] for i in range(60)]})
    table.to_csv(tmp_path / "candidates.csv", index=False)
    for given in (table, table.astype({"yield": "category"}), tmp_path / "candidates.csv"):
        c = campaign(given, columns={"dry": "ignore"})
        assert c.best(40)["measured"].tolist() == [1] * 20 + [0] * 20
    refused(lambda: campaign(table.assign(**{"yield": ["yes", "maybe"] * 30})), "is not a number")


def test_a_campaign_that_can_not_begin_leaves_nothing(tmp_path: Path):
    path = tmp_path / "journal"
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=99).double()
    refused(lambda: campaign(journal=path, policy=tb.gp_ucb(kernel, noise_std=0.1)), "99", error=TorchBanditsError)
    refused(lambda: campaign(frame().assign(id=1), journal=path), "more than once")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- the page, and the extra


def test_the_page_shows_ids_values_and_columns(tmp_path: Path):
    c = campaign(minimize=True)
    plate = c.ask(6)
    results = measured(plate)
    results.loc[2, "yield"] = np.nan
    c.tell(results)
    c.ask(2)
    page = c.report(tmp_path / "page.html").read_text()
    assert "60 candidates, 5 measurements of yield, 1 failed evaluation, 2 pending rows; small values are better" in page
    assert all(f"<td>{text}</td>" in page for text in [*c.best(3)["id"], *c.open, "3 different texts"])
    assert f"{results['yield'].min():.6g}" in page
    assert "one more measurement of the best row would be off by about" in page
    said = c.explain()
    assert all(f"<p>{line}</p>" in page for line in said.lines()[1:4])
    for away, only_if in ((-1.0, ""), (1.0, ", if the best one is worse than expected")):
        upper = float(said.best.mean[0]) + away
        assert replace(said, rivals=1234, upper=upper).lines()[3] == (
            f"How sure: 1,234 of the other rows may still be better{only_if}; the most promising could reach "
            f"{rounded(upper, float(said.best.variance[0]) ** 0.5)}."
        )
    assert "Search for the smallest yield in " in page
    recommended = page.partition("<h2>Recommended row</h2>")[2].partition("<h2>")[0]
    assert f"<td>id</td><td>{c.best(1)['id'].iloc[0]}</td>" in recommended
    assert page.count("<img") == 3  # progress, predicted against measured, columns that matter
    assert "Of 5 rows, each predicted from all others" in page


@pytest.mark.parametrize(
    ("mean", "deviation", "text"),
    [
        (82.2593, 0.650672, "82.26 ± 0.65"),
        (-5.0, 1.27, "-5.0 ± 1.3"),
        (123456.0, 3412.0, "123500 ± 3400"),
        (2.5e-9, 1.3e-10, "2.5e-09 ± 1.3e-10"),
        (3.052274e-6, 7.805e-8, "3.052e-06 ± 7.8e-08"),
        (-4.91317e9, 2.86e8, "-4.91e+09 ± 2.9e+08"),
        (83.12345678, 1e-9, "83.1235 ± 1e-09"),
        (0.0, 1e-9, "0 ± 1e-09"),
        (1.5, 0.0, "1.5 ± 0"),
        (np.nan, np.nan, ""),
        (1.0, np.inf, ""),
    ],
)
def test_expected_values_have_two_digits_of_their_deviation(mean: float, deviation: float, text: str):
    assert campaign_page.within(mean, deviation) == text


def test_wide_tables_on_the_page_keep_the_results_and_name_the_columns_left_out():
    features = [f"x{j}" for j in range(20)]
    columns = ["id", *features, "expected", "deviation", "measured", "times"]
    rows = pd.DataFrame([["a", *range(20), 1.0, 0.5, 2.0, 3]], columns=columns)
    text = campaign_page.shown(rows, features)
    assert [f"x{j}" for j in range(20) if f">x{j}<" in text] == features[:10]
    assert "Not shown: x10, x11," in text
    assert all(f">{name}</th>" in text for name in ("id", "expected", "measured", "times"))
    assert ">1.00 ± 0.50<" in text
    own = campaign_page.shown(rows, [*features, "deviation"])  # a column of the table that happens to have this name
    assert ">expected</th>" in own
    assert "±" not in own
    assert campaign_page.shown(rows[["id", "x1", "times"]], features).count("<p>") == 0


@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")
def test_predictions_on_the_page_are_those_without_the_row_itself():
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    kernel.outputscale = 100.0
    c = campaign(minimize=True, policy=tb.gp_ucb(kernel, noise_std=0.5, prior_mean="estimate"))
    c.tell(measured(c.ask(12)))
    predicted = c._predicted()
    left = leave_one_out(c.bandit)
    np.testing.assert_allclose(predicted.middle, -left.mean)
    np.testing.assert_allclose(predicted.high - predicted.low, 4 * left.std)
    average = c.best(12).set_index("id")["measured"]
    np.testing.assert_allclose(np.sort(predicted.measured), np.sort(average))


@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")
def test_predictions_of_auto_on_the_page_are_in_the_units_of_the_objective():
    """The model of `auto` learns normal scores; its predictions were once treated as scores a second time."""
    c = campaign(minimize=True, policy=tb.auto())
    for _ in range(3):
        plate = c.ask(10)
        plate["yield"] = np.exp(plate["temp"] / 20)
        c.tell(plate)
    predicted, left = c._predicted(), leave_one_out(c.bandit)
    np.testing.assert_allclose(predicted.middle, -left.mean)
    assert np.corrcoef(np.log(predicted.middle), np.log(predicted.measured))[0, 1] > 0.9
    inside = int((left.residuals.abs() <= 2).sum())
    assert inside >= 0.8 * len(left.mean)
    assert f"Of {len(left.mean)} rows, each predicted from all others, {inside} lie" in predicted.words[0]


@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")
def test_the_page_advises_no_fit_where_the_kernel_is_fitted():
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    own = campaign(policy=tb.gp_ucb(kernel, noise_std=0.5, prior_mean="estimate"))
    auto = campaign(policy=tb.auto())
    for c in (own, auto):
        c.tell(measured(c.ask(12)))
    left = leave_one_out(auto.bandit)
    wide = replace(left, coverage=left.upper + 0.1, warnings=("they are too wide: fit the kernel",))
    narrow = replace(left, coverage=left.lower - 0.1, warnings=("they are too narrow: fit the kernel",))
    assert verdicts(own.bandit, wide) == wide.warnings
    assert verdicts(auto.bandit, replace(left, warnings=())) == ()
    (said,) = verdicts(auto.bandit, wide)
    assert said.endswith("close to the predictions: the deviations on this page are larger than they need to be.")
    (said,) = verdicts(auto.bandit, narrow)
    assert said.endswith("far from the predictions: the deviations on this page are too small. Repeat the best rows.")


def test_a_page_in_a_folder_that_does_not_exist_is_refused_in_a_sentence(tmp_path: Path):
    c = campaign()
    c.tell(measured(frame().head(3)))
    path = tmp_path / "none" / "page.html"
    refused(lambda: c.report(path), f"{path} can't be written: there is no folder {path.parent}.", error=DataError)


def test_very_few_rows_are_not_predicted():
    c = campaign()
    c.tell(measured(c.ask(3)))
    assert c._predicted() is None


def test_without_the_extra_the_message_says_how_to_get_it():
    with pytest.raises(DataError, match=r'campaigns need nowhere: pip install "torchbandits\[experiments\]"'):
        Later("nowhere.at_all", "campaigns").DataFrame  # noqa: B018


def test_a_policy_that_repeats_nothing_in_a_batch_says_so():
    batch = tb.batch_bkb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1, max_pulls=1)
    c = campaign(frame(8), policy=batch)
    plate = c.ask(3)
    refused(
        lambda: c.ask(11), "n: 8 more rows are asked for, and 5 of the table can be selected beside the 3 pending rows: none"
    )
    assert c.open == plate["id"].tolist()


@pytest.mark.parametrize(
    ("cell", "hint"),
    [
        ("12.5 %", "Write numbers without units, percent signs and separators of thousands."),
        ("5 mg", "Write numbers without units"),
        ("1,012.5", "Write numbers without units"),
        ("€ 5", "Write numbers without units"),
        ("5,5", "Write decimals with a point. Nothing"),
        ("n.d.", "leave the cell empty where the evaluation failed. Nothing"),
        ("1e400", "leave the cell empty where the evaluation failed. Nothing"),
    ],
)
def test_cells_that_are_no_numbers_are_named_with_how_to_write_them(cell: str, hint: str):
    c = campaign()
    refused(lambda: c.tell(pd.DataFrame({"id": ["003", "004"], "yield": ["2.5", cell]})), f"row 1: {cell!r}", hint)


def test_a_column_of_the_candidates_is_not_taken_for_a_misspelled_one():
    table = frame().rename(columns={"solvent": "day"})
    c = tb.Campaign(table, "y", policy=policy())
    refused(
        lambda: c.tell(table), "no column 'y' for what was measured", "dry: the column must be called 'y'. Nothing was told."
    )
    refused(lambda: c.tell(table.assign(Yy=1.0)), "rename 'Yy' to 'y'")


def test_totals_and_lost_zeros_are_named_with_what_to_do(tmp_path: Path):
    c, path = campaign(), tmp_path / "results.csv"
    path.write_text("id,yield\n003,2.5\n004,3.5\n,6\n")
    refused(
        lambda: c.tell(path), "line 4: the id (column 'id') is empty: fill it in, or delete a line that is no result, such as"
    )
    path.write_text("id,yield\n003,2.5\n004,3.5\nSum,6\n")
    refused(lambda: c.tell(path), "'Sum' (line 4). Nothing was told. Delete lines that are no results, such as a total.")
    path.write_text("id,yield\n3,2.5\n4,3.5\n")
    refused(lambda: c.tell(path), "Put the zeros back: in Excel, give the column of the ids the number format 000, and save")


@pytest.mark.parametrize("several", [False, True])
def test_a_plate_has_as_many_rows_as_the_model_tells_apart(several: bool):
    table = pd.DataFrame({"id": [f"R{i}" for i in range(24)], "well": range(24), "solvent": [*"ABCD"] * 6})
    columns = {"well": "ignore"}
    models = {name: tb.auto() for name in ("yield", "cost")}
    c = tb.Campaign(table, "yield", columns=columns)
    if several:
        c = tb.OutcomeCampaign(table, list(models), columns=columns, policy=tb.outcomes.pareto(models))
    alike = (
        "to the model the 24 rows are 4 different ones, and none is selected again before its result was told. Ask for fewer"
    )
    refused(lambda: c.ask(8), f"n: 8 more rows are asked for, and 4 of the table can be selected: {alike}")
    assert c.open == []
    plate = c.ask(4)
    assert sorted(plate["solvent"]) == [*"ABCD"]
    beside = "1 more row is asked for, and 0 of the table can be selected beside the 4 pending rows"
    refused(lambda: c.ask(1, more=True), f"{beside}: {alike}")
    assert c.plan(["R4", "R8"])["solvent"].tolist()[4:] == ["A", "A"]
    for _ in range(3):
        rows = c.ask(len(c.open))
        c.tell(rows[["id"]].assign(**{name: np.arange(float(len(rows))) for name in c.outcomes}))
        # Rows that are known are left out only while there are enough different ones.
        assert sorted(c.ask(4)["solvent"]) == [*"ABCD"]


# ---------------------------------------------------------------------- plates, instruments, and when to stop


def heated(n: int = 60) -> pd.DataFrame:
    """A table with columns that the policy does not see."""
    rng = np.random.default_rng(1)
    return frame(n).assign(plate=rng.choice([20.0, 40.0, np.nan], n), supplier=rng.choice(["a", "b", "c"], n))


HIDDEN = {"plate": "ignore", "supplier": "ignore"}


@OFF_SCALE
def test_constraints_name_columns_of_the_table_and_are_those_of_the_bandit():
    table, within = heated(), [tb.constraints.Distinct(), tb.constraints.Same("plate"), tb.constraints.AtMost("supplier", 4)]
    c, other = campaign(table, columns=HIDDEN), campaign(table, columns=HIDDEN)
    c.tell(measured(table.head(6)))
    other.tell(measured(table.head(6)))
    plate = c.ask(6, within=within)
    labels = [torch.from_numpy(pd.factorize(table[name], use_na_sentinel=False)[0]) for name in ("plate", "supplier")]
    same = [tb.constraints.Distinct(), tb.constraints.Same(labels[0]), tb.constraints.AtMost(labels[1], 4)]
    assert [int(text) for text in plate["id"]] == other.bandit.ask(exactly=6, within=same).index.tolist()
    assert plate["plate"].nunique(dropna=False) == 1
    assert plate["supplier"].value_counts().max() <= 4
    assert plate["id"].is_unique
    pd.testing.assert_frame_equal(c.ask(6, within=within), plate)
    more = c.ask(8, within=within)
    assert more["id"].tolist()[:6] == plate["id"].tolist()
    assert more["plate"].nunique(dropna=False) == 1
    assert more["supplier"].value_counts().max() <= 4
    fresh = campaign(table, columns=HIDDEN)
    fresh.tell(measured(table.head(40)))
    new = fresh.ask(5, within=tb.constraints.Same("plate"), repeats=False)
    assert not set(new["id"]) & set(table.head(40)["id"])
    assert new["id"].is_unique


@OFF_SCALE
def test_more_rows_extend_the_open_ones_under_the_same_constraints():
    within = [tb.constraints.Distinct(), tb.constraints.Same("solvent")]
    c, other = campaign(), campaign()
    for one in (c, other):
        one.tell(measured(frame().iloc[:3]))
    first = c.ask(4, within=within)
    plate = c.ask(3, more=True, within=within)
    assert plate["id"].tolist()[:4] == first["id"].tolist() == other.ask(4, within=within)["id"].tolist()
    assert plate["rank"].tolist() == list(range(1, 8))
    assert plate["solvent"].nunique() == 1
    assert plate["id"].is_unique
    pd.testing.assert_frame_equal(other.ask(7, within=within), plate)
    pd.testing.assert_frame_equal(c.ask(7), plate)
    assert len(c.ask(2, more=True, repeats=False)) == 9, "a further call adds further rows"
    with pytest.raises(ArgumentError, match=r"52 more rows are asked for, and 50 of"):
        c.ask(52, more=True, repeats=False)
    assert len(c.open) == 9


@OFF_SCALE
def test_the_best_rows_may_have_to_fulfil_a_condition():
    c, table = campaign(), frame()
    c.tell(measured(table[:40]))
    every = c.best(40)
    for condition in (
        "temp < 60 and solvent != 'H2O'",
        table.eval("temp < 60 and solvent != 'H2O'"),
        {"solvent": "DMF"},
        "dry",
    ):
        held = on_offer("where", c._pool.table, condition).numpy()
        fulfilled = every[every["id"].isin(table["id"][held])].reset_index(drop=True)
        assert len(fulfilled) > 2
        pd.testing.assert_frame_equal(c.best(3, where=condition), fulfilled[:3])
        assert c.best(99, where=condition)["id"].tolist() == fulfilled["id"].tolist()
    assert len(c.best(3, where=table.index >= 40)) == 0, "none of these was measured"
    assert c.best(3, where=table.index >= 40).columns.tolist() == every.columns.tolist()
    assert c.ask(1, where=table["id"] == "051")["id"].tolist() == ["051"]
    wrong = [
        ("price < 3", "no column 'price'"),
        ("temp > 1000", "no row of the table fulfils 'temp > 1000'"),
        (3, "must be a column"),
    ]
    wrong += [(table["dry"][:5], r"one boolean per row of the table \(60\), got bool of \(5,\)")]
    wrong += [(table["dry"].sample(frac=1, random_state=0), r"rows in another order than the table: pass its sort_index\(\)")]
    wrong += [
        (table["temp"], "one boolean per row of the table .* got float64"),
        (table["dry"] & False, "no row of the table fulfils"),
    ]
    for condition, said in wrong:
        with pytest.raises(ArgumentError, match=said):
            c.best(where=condition)


@OFF_SCALE
def test_of_equal_rows_the_best_one_is_the_told_one_that_fulfils_the_condition():
    c = campaign(supplied(), columns=SUPPLY)
    c.tell(measured(supplied()[lambda t: t["supplier"] != "c"]))
    assert set(c.best(9)["supplier"]) == {"a"}
    cheap = c.best(9, where="price < 20")
    assert set(cheap["supplier"]) == {"b"}
    assert cheap["times"].tolist() == [1] * 9
    assert len(c.best(9, where="supplier == 'c'")) == 0, "its rows were not told"


@OFF_SCALE
@pytest.mark.parametrize("of_file", [False, True])
def test_a_closed_campaign_says_how_to_open_it_again(of_file: bool, tmp_path: Path):
    frame().to_csv(tmp_path / "table.csv", index=False)
    path = tmp_path / "lab"
    c = campaign(tmp_path / "table.csv" if of_file else frame(), journal=path)
    plate = measured(c.ask(2))
    c.close()
    table = "" if of_file else "table, "
    said = re.escape(f"this campaign was closed: open it again, campaign = tb.Campaign({table}journal={str(path)!r})")
    calls = [lambda: c.ask(2), lambda: c.tell(plate), lambda: c.forget(), lambda: c.extend(frame())]
    for call in calls:
        with pytest.raises(StateError, match=said):
            call()
    tb.Campaign(None if of_file else frame(), journal=path, policy=policy()).tell(plate)
    several = tb.OutcomeCampaign(frame(), ["yield", "cost"], journal=tmp_path / "two")
    several.close()
    with pytest.raises(StateError, match=r"open it again, campaign = tb.OutcomeCampaign\(table, journal="):
        several.tell(plate)
    alone = campaign()
    alone.close()
    assert len(alone.ask(2)) == 2, "without a journal nothing is closed"


def test_a_plate_has_a_limit_on_its_sum():
    table = heated().assign(price=[float(10 + 90 * (row % 5 > 2)) for row in range(len(heated()))])
    c = campaign(table, columns=HIDDEN | {"price": "ignore"})
    within = [tb.constraints.Distinct(), tb.constraints.Total("price", 500.0)]
    plate = c.ask(10, within=within)
    assert plate["price"].sum() <= 500
    longer = c.ask(12, within=within)
    assert longer["price"].sum() <= 500
    with pytest.raises(ArgumentError, match="open already and break Total"):
        c.ask(13, within=tb.constraints.Total("price", 100.0))
    with pytest.raises(ArgumentError, match="Total allows a sum of at most 500"):
        c.ask(60, within=within)
    gap = table.assign(price=table["price"].where(table["id"] != table["id"][3]))
    with pytest.raises(ArgumentError, match="column 'price': a number is missing"):
        campaign(gap, columns=HIDDEN | {"price": "ignore"}).ask(2, within=within)
    with pytest.raises(ArgumentError, match=r"within: .*'supplier'"):
        c.ask(14, within=tb.constraints.Total("supplier", 100.0))


def test_constraints_that_cannot_be_kept_are_refused_and_nothing_is_asked_for():
    table = heated()
    c = campaign(table, columns=HIDDEN)
    with pytest.raises(ArgumentError, match="no column 'plat'"):
        c.ask(4, within=tb.constraints.Same("plat"))
    with pytest.raises(
        ArgumentError, match=r"no batch was found that meets the constraints: no further row fits after \d+ of 12"
    ):
        c.ask(12, within=tb.constraints.AtMost("supplier", 3))
    assert c.open == []
    c.ask(8)
    assert c.bandit.loop.open is not None
    kinds = table.set_index("id").loc[c.open, "supplier"]
    assert kinds.value_counts().max() > 1
    with pytest.raises(ArgumentError, match="open already and break AtMost"):
        c.ask(9, within=tb.constraints.AtMost("supplier", 1))
    with pytest.raises(ArgumentError, match="names the column"):
        c.bandit.ask(more=1, within=tb.constraints.Same("supplier"))


def supplied(n: int = 12) -> pd.DataFrame:
    """Each compound thrice: at 30 from supplier a, at 10 from b, and at 20 from c; rows of a come first."""
    sold = {"a": 30.0, "b": 10.0, "c": 20.0}
    parts = [frame(n).assign(id=lambda t, name=name: name + t["id"], supplier=name, price=p) for name, p in sold.items()]
    return pd.concat(parts, ignore_index=True)


SUPPLY = {"supplier": "ignore", "price": "ignore"}
Within = list[tb.constraints.Constraint]
PLATES: dict[str, tuple[Within, Any]] = {
    # The six cheapest rows of different compounds cost 60.
    "sum": ([tb.constraints.Total("price", 60.0)], lambda plate: (plate["price"] == 10).all()),
    "same": ([tb.constraints.Same("supplier")], lambda plate: (plate["supplier"] == "a").all()),
    "at most": (
        [tb.constraints.AtMost("supplier", 3)],
        lambda plate: sorted(plate["supplier"]) == list("aaabbb"),
    ),
    "both": (
        [tb.constraints.AtMost("supplier", 3), tb.constraints.Total("price", 90.0)],
        lambda plate: plate["price"].sum() == 90 and sorted(plate["supplier"]) == list("bbbccc"),
    ),
    "same and sum": (
        [tb.constraints.Same("supplier"), tb.constraints.Total("price", 130.0)],
        lambda plate: plate["price"].sum() <= 130 and plate["supplier"].nunique() == 1,
    ),
}


@pytest.mark.sweep(1)
@OFF_SCALE
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", PLATES)
def test_of_equal_rows_the_one_that_is_returned_keeps_the_constraint(tmp_path: Path, name: str, several: bool):
    within, kept = PLATES[name]
    within, path = [tb.constraints.Distinct(), *within], tmp_path / "lab"

    def begun(table: Any = None) -> tb.Campaign:
        if several:
            return tb.OutcomeCampaign(table, ["yield", "cost"], path, columns=SUPPLY if table is not None else None)
        return tb.Campaign(table, "yield", path, columns=SUPPLY if table is not None else None)

    def results(plate: pd.DataFrame) -> pd.DataFrame:
        told = measured(plate)
        return told.assign(cost=told["yield"] ** 2) if several else told

    c = begun(supplied())
    c.tell(results(supplied().iloc[[0, 13, 26]]))
    for _ in range(2):
        plate = c.ask(6, within=within)
        assert kept(plate)
        # Names of compounds follow the letter of the supplier.
        assert plate["id"].str[1:].is_unique
        assert c.open == plate["id"].tolist()
        pd.testing.assert_frame_equal(c.ask(6, within=within), plate)
        pd.testing.assert_frame_equal(c.ask(6), plate)
        c.close()
        c = begun(supplied())
        assert c.open == plate["id"].tolist()
        pd.testing.assert_frame_equal(c.ask(6, within=within), plate)
        # Without the checkpoint the journal itself gives the same rows.
        c.close()
        (tmp_path / "lab.checkpoint").unlink()
        c = begun(supplied())
        assert c.open == plate["id"].tolist()
        # A result answers its own row, and the id of an equal row the open one.
        other = plate["id"].iloc[1].replace(plate["id"].iloc[1][0], "a" if plate["id"].iloc[1][0] != "a" else "b", 1)
        c.tell(results(plate.iloc[[2]]))
        assert c.open == [one for one in plate["id"] if one != plate["id"].iloc[2]]
        c.forget([other])
        c.tell(results(plate.drop(index=[1, 2])))
        assert c.open == []
    c.close()


@OFF_SCALE
def test_the_open_one_of_equal_rows_counts_and_what_cannot_be_kept_is_refused():
    c = campaign(supplied(), columns=SUPPLY)
    distinct, most = tb.constraints.Distinct(), tb.constraints.AtMost("supplier", 4)
    assert len(c.ask(12, within=[distinct, most])) == 12
    with pytest.raises(ArgumentError, match="no batch was found that meets the constraints"):
        c.ask(13, within=[distinct, tb.constraints.AtMost("supplier", 5)])
    assert len(c.open) == 12
    c.forget()
    # One compound has one supplier, whose rows the others must not use up.
    some = supplied(2).query("id not in ['b001', 'c001', 'c000']")
    both = campaign(some, columns=SUPPLY | {"solvent": "ignore"}).ask(
        2, within=[distinct, tb.constraints.AtMost("supplier", 1)]
    )
    assert sorted(both["id"]) == ["a001", "b000"]
    with pytest.raises(ArgumentError, match="at most 5 can be had"):
        c.ask(6, within=[distinct, tb.constraints.Total("price", 59.0)])
    # Rows that are not on offer do not count.
    with pytest.raises(ArgumentError, match="at most 2 can be had"):
        c.ask(6, where="supplier != 'b'", within=[distinct, tb.constraints.Total("price", 59.0)])
    plate = c.ask(2, where="supplier != 'b'", within=[distinct, tb.constraints.Total("price", 59.0)])
    assert plate["price"].tolist() == [20.0, 20.0]
    # Open rows keep their prices, although a cheaper row with the same features exists.
    with pytest.raises(ArgumentError, match="open already and break Total"):
        c.ask(3, within=[distinct, tb.constraints.Total("price", 39.0)])
    more = c.ask(4, within=[distinct, tb.constraints.Total("price", 60.0)])
    assert more["price"].tolist() == [20.0, 20.0, 10.0, 10.0]
    c.forget()
    c.ask(1, where="id == 'a000'")
    assert c.ask(2, where="id == 'b000'")["id"].tolist() == ["a000", "b000"]
    with pytest.raises(ArgumentError, match="open already and break Distinct"):
        c.ask(2, within=distinct)
    c.forget(["b000"])
    assert c.open == ["a000"]


def test_a_column_of_noise_variances_is_the_bandits(tmp_path: Path):
    c, other = campaign(journal=tmp_path / "lab"), campaign()
    rows = measured(frame().head(12)).assign(v=[0.04, np.nan, 1.0] * 4)
    told = c.tell(rows, noise_var="v")
    assert told.measured == 12
    variances = torch.tensor([0.04, 0.01, 1.0] * 4, dtype=torch.float64)
    other.bandit.tell(torch.arange(12), torch.tensor(rows["yield"].to_numpy()), noise_var=variances)
    found, expected = c.bandit.posterior(c.bandit.arms), other.bandit.posterior(other.bandit.arms)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)
    c.close()
    again = campaign(journal=tmp_path / "lab")
    torch.testing.assert_close(again.bandit.posterior(again.bandit.arms).mean, expected.mean)
    with pytest.raises(ArgumentError, match="variance must be above 0"):
        again.tell(rows.assign(v=-1.0), noise_var="v")
    with pytest.raises(ArgumentError, match="no column 'w'"):
        again.tell(rows, noise_var="w")
    with pytest.raises(TorchBanditsError, match=r"begin one with noise_std= \(--noise-std\).* takes no noise variance"):
        campaign(policy=None).tell(rows, noise_var="v")


def test_a_known_noise_makes_another_default_policy_and_holds_for_the_campaign(tmp_path: Path):
    c = campaign(policy=None, noise_std=0.5, journal=tmp_path / "lab")
    assert c.bandit.policy.noise_std == 0.5
    for _ in range(3):
        c.tell(measured(c.ask(6)))
    assert float(c.bandit.posterior.kernel.outputscale) != pytest.approx(25.0), "the kernel is fitted"
    best = float(c.best(1)["measured"].iloc[0])
    assert best > float(yields(frame()).quantile(0.9))
    c.close()
    again = campaign(policy=None, journal=tmp_path / "lab")
    assert again.bandit.policy.noise_std == 0.5
    again.close()
    with pytest.raises(StateError, match=r"the noise of a measurement was 0\.5, is 0\.1"):
        campaign(policy=None, noise_std=0.1, journal=tmp_path / "lab")
    with pytest.raises(ArgumentError, match="noise_std is an option of the default policy"):
        campaign(noise_std=0.1)


@pytest.mark.parametrize("minimize", [False, True])
def test_a_campaign_says_when_to_stop_in_its_own_words(minimize: bool):
    sign = -1 if minimize else 1
    c = campaign(minimize=minimize, policy=tb.gp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1, delta=0.1))
    rules = [tb.stopping.ProbableRegret(2.0, 0.1), tb.stopping.Budget(pulls=300)]
    assert not c.should_stop(*rules)
    scaled = lambda rows: rows[["id"]].assign(**{"yield": sign * yields(rows) / 10})  # noqa: E731
    for _ in range(12):
        c.tell(scaled(frame()))
    decision = c.should_stop(*rules)
    best = str(c.best(1)["id"].iloc[0])
    assert decision
    assert f"row {best!r} is within 2 of the best row" in decision.reason
    level = sign * float((yields(frame()) / 10).median())
    known = c.should_stop(tb.stopping.LevelSetKnown(level, 1.0))
    assert f"every row is known to be above or below {level:g}" in known.reason


def test_a_budget_of_costs_counts_measurements_and_needs_the_column_of_the_costs():
    budget = tb.stopping.Budget(cost=9.0)
    c = campaign(frame().assign(price=2.0), cost="price")
    results = measured(c.ask(4))
    results.loc[1, "yield"] = np.nan
    c.tell(results)
    assert not c.should_stop(budget), "three measurements have cost 6, and a failure counts nothing"
    c.tell(measured(c.ask(2)))
    assert c.should_stop(budget)
    with pytest.raises(ArgumentError, match=r"of a campaign the column of the costs, with which it begins \(cost=, --cost\)"):
        campaign().should_stop(budget)


@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")
def test_a_guessed_kernel_does_not_stop_a_campaign():
    c = campaign(policy=None, noise_std=0.01)
    rules = [tb.stopping.ProbableRegret(1.0), tb.stopping.ImprovementPerCost(1.0)]
    c.tell(measured(frame().head(5)))
    assert all(c.bandit.should_stop(rule) for rule in rules), "the guess is sure, although results differ by tens"
    assert not c.should_stop(*rules)
    assert c.should_stop(*rules, tb.stopping.Budget(pulls=5)).reason == "5 measurements were told, of a budget of 5"
    c.tell(measured(frame().tail(1)))
    assert bool(c.should_stop(*rules)) == bool(c.bandit.should_stop(*rules))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")
def test_a_best_row_that_noise_leaves_in_doubt_is_not_to_be_relied_on(tmp_path: Path):
    rng = np.random.default_rng(3)
    x = pd.DataFrame({"id": range(400), **{f"x{j}": rng.uniform(size=400) for j in range(3)}})
    truth = -((x[["x0", "x1", "x2"]] - 0.35) ** 2).sum(axis=1)
    x["noisy"] = truth / truth.std() + 1.5 * rng.standard_normal(400)
    x["clear"] = truth / truth.std()
    x.loc[48:, ["noisy", "clear"]] = np.nan
    columns = {f"x{j}": "number" for j in range(3)}
    noisy = tb.Campaign(x.drop(columns="clear"), "noisy", tmp_path / "journal", columns=columns)
    assert noisy.doubt().startswith("Do not rely on the best row yet: noise leaves its mean uncertain by")
    assert "more measurements of each of the 5 best rows" in noisy.doubt()
    page = noisy.report(tmp_path / "page.html").read_text()
    assert noisy.doubt() in page
    assert "No row was measured twice yet, so that the noise may be larger than that" in page
    noisy.tell(noisy.best(1).assign(noisy=0.0))
    assert "measured twice" not in noisy.report(tmp_path / "page.html").read_text()
    clear = tb.Campaign(x.drop(columns="noisy"), "clear", columns=columns)
    assert clear.doubt() == ""
    assert "rely" not in clear.report(tmp_path / "clear.html").read_text()
    assert tb.Campaign(x.drop(columns="clear"), "noisy", columns=columns, policy=tb.uniform()).doubt() == ""


# ---------------------------------------------------------------------- what the model knows


@OFF_SCALE
def test_an_explanation_has_the_names_of_the_columns_and_the_sign_of_the_objective(tmp_path: Path):
    table = frame().rename(columns={"temp": "temperature ($)"})
    up, down = (campaign(table, minimize=m, policy=tb.auto(), journal=tmp_path / str(m)) for m in (False, True))
    for c in (up, down):
        with pytest.raises(StateError, match=r"nothing was measured yet.*tell\(\)"):
            c.explain()
    for _ in range(2):
        plate = up.ask(8)
        results = plate[["id"]].assign(**{"yield": yields(plate.rename(columns={"temperature ($)": "temp"}))})
        up.tell(results)
        down.tell(results.assign(**{"yield": -results["yield"]}))
    large, small, raw = up.explain(), down.explain(), down.bandit.explain()
    names = ("temperature ($)", "conc", "solvent = DMF", "solvent = EtOH", "solvent = H2O", "dry")
    assert large.names == small.names == names
    torch.testing.assert_close(small.relevance, raw.relevance)
    row = down.best(1).iloc[0]
    assert float(small.best.mean[0]) == pytest.approx(row["expected"]) == pytest.approx(-float(raw.best.mean[0]))
    assert frame()["id"][int(small.best.index[0])] == row["id"]
    assert float(large.best.mean[0]) == pytest.approx(-float(small.best.mean[0]))
    assert small.upper == pytest.approx(-raw.upper) == pytest.approx(-large.upper)
    assert small.upper < row["expected"] < 0
    assert (small.rivals, small.noise_std) == (raw.rivals, raw.noise_std)
    first, columns, noise, sure, guarantee = str(small).splitlines()
    assert first.startswith(f"Best so far: {row['id']!r}, with yield expected at -")
    assert first.endswith(f" after 16 measurements of {int((down.bandit.counts > 0).sum())} of 60 rows.")
    assert columns.startswith("Columns: yield changes fastest with temperature ($) (")
    assert "one more measurement of the best row would be off by about" in noise
    assert sure.startswith(f"How sure: {small.rivals} of the other rows may still be better; the most promising could reach -")
    assert guarantee.startswith("Guarantee: none, because")
    small.figure().savefig(tmp_path / "columns.png")
    # A resumed campaign says the same.
    down.close()
    again = campaign(table, minimize=True, policy=tb.auto(), journal=tmp_path / "True")
    assert str(again.explain()) == str(small)


@OFF_SCALE
def test_what_an_explanation_is_without_lengthscales_few_results_and_a_model():
    c = campaign()
    c.tell(measured(c.ask(2)))
    said = c.explain()
    assert said.lines()[1] == "Columns: 5 distinct rows must be measured before it shows which columns matter."
    assert said.guarantee == "Guarantee: none, since nothing is proved for the width Constant of the policy."
    proved = campaign(policy=tb.igp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1, norm_bound=1.0))
    proved.tell(measured(frame().head(8)))
    assert proved.explain().guarantee.startswith("Guarantee: that of the policy"), (
        "its kernel is given, its width has a theorem"
    )
    for void, said_of_it in (
        (tb.igp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1, prior_mean="estimate"), "none, since the prior mean"),
        (
            tb.irgp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1, regularization=1.0),
            "none, since the theorem of Shifted",
        ),
    ):
        unproved = campaign(policy=void)
        unproved.tell(measured(frame().head(8)))
        assert unproved.explain().guarantee.startswith(f"Guarantee: {said_of_it}")
    assert "2 measurements of 2 of 60 rows" in said.lines()[0]
    flat = campaign(policy=tb.gp_ucb(gpytorch.kernels.LinearKernel().double(), noise_std=0.1))
    flat.tell(measured(frame().head(8)))
    assert "the model does not tell which columns matter" in flat.explain().lines()[1]
    known = campaign(policy=None, noise_std=0.5)
    known.tell(measured(known.ask(8)))
    assert known.explain().guarantee.startswith("Guarantee: none"), "its kernel is fitted"
    assert "twice" not in str(known.explain()), "the noise is known"
    priced = campaign(frame().assign(price=np.arange(1.0, 61.0)), policy=None, cost="price")
    priced.tell(measured(priced.ask(8)))
    assert "solvent = DMF" in priced.explain().names
    other = campaign(policy=tb.uniform())
    other.tell(measured(other.ask(2)))
    with pytest.raises(UnsupportedError, match="begin another campaign with the default policy"):
        other.explain()


@OFF_SCALE
@pytest.mark.parametrize("minimize", [False, True])
def test_an_explanation_of_rows_that_fulfil_a_condition(minimize: bool):
    """As at a context: the best of these rows, and the number of the others that may be better."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    kernel.outputscale = 100.0
    own = tb.gp_ucb(kernel, noise_std=0.5, width=tb.widths.Constant(2.0), prior_mean="estimate")
    c = campaign(policy=own, minimize=minimize)
    c.tell(measured(frame().head(20)))
    known = c.bandit.posterior(c.bandit.arms)
    low, high = (known.mean + sign * 2 * known.variance.sqrt() for sign in (-1, 1))
    for where, held in (({"solvent": "DMF"}, frame()["solvent"] == "DMF"), ("temp < 60", frame()["temp"] < 60)):
        said, best = c.explain(where=where), c.best(1, where=where)
        row = int(said.best.index[0])
        assert said.words.names[row] == best["id"][0]
        assert float(said.best.mean[0]) == pytest.approx(best["expected"][0])
        hopeful = torch.tensor(held.to_numpy()) & (high > low[row])
        assert said.rivals == int(hopeful.sum()) - 1
        assert (1 - 2 * minimize) * said.upper == pytest.approx(float(high[torch.tensor(held.to_numpy())].max()))
        assert (said.distinct, said.repeated, said.doubt()) == (20, None, "")
        torch.testing.assert_close(said.relevance, c.explain().relevance)
    with pytest.raises(StateError, match="no row that fulfils the condition was measured"):
        c.explain(where="id == '050'")
    with pytest.raises(ArgumentError, match="where"):
        c.explain(where="temp < -900")


@OFF_SCALE
def test_rows_that_are_no_candidates_are_not_hopeful():
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    kernel.outputscale = 100.0
    own = tb.gp_ucb(kernel, noise_std=0.5, width=tb.widths.Constant(2.0), prior_mean="estimate")
    every, some = campaign(policy=own), campaign(policy=own, candidates="temp < 60")
    for c in (every, some):
        c.tell(measured(frame().head(10)))
    said = some.explain()
    assert 0 < said.rivals < every.explain().rivals
    known = some.bandit.posterior(some.bandit.arms)
    reach = 2 * known.variance.sqrt()
    best = int(said.best.index[0])
    cold = torch.tensor((frame()["temp"] < 60).to_numpy())
    hopeful = cold & (known.mean + reach > known.mean[best] - reach[best])
    hopeful[best] = False
    assert said.rivals == int(hopeful.sum())
    cold[best] = True
    assert said.upper == pytest.approx(float((known.mean + reach)[cold].max()))


@OFF_SCALE
@pytest.mark.parametrize("copies", [False, True])
def test_rows_that_are_no_candidates_do_not_keep_a_campaign_from_stopping(copies: bool):
    # Of two rows with equal features the second one may be the only candidate.
    table = pd.concat([frame().assign(fit=False)] * copies + [frame().assign(fit=True)])
    table = table.assign(id=[f"r{i}" for i in range(len(table))])
    own: dict[str, Any] = {"policy": policy(), "columns": {"fit": "ignore"}}
    every, some = campaign(table, **own), campaign(table, candidates="temp < 60 and fit == True", **own)
    can = table[(table["temp"] < 60) & table["fit"]]
    rule = tb.stopping.ProbableRegret(1.0)
    results = can[["id"]].assign(**{"yield": yields(can) / 10})
    some.tell(results.head(3))
    assert not some.should_stop(rule)
    some.tell(results.iloc[3:])
    every.tell(results)
    assert some.should_stop(rule)
    assert not every.should_stop(rule)
    assert some.bandit.loop.state.rows.competing is None, "asking is as before"


def test_past_results_without_ids_are_refused_with_the_way_to_get_them():
    candidates = pd.DataFrame({"heat": np.arange(30.0), "time": np.arange(30.0) ** 2})
    past = candidates.sample(12, random_state=0).assign(gain=lambda table: 2 * table["heat"])
    campaign = tb.Campaign(candidates, objective="gain")
    # The index of the candidates counts from 0, and the numbers of the rows from 1: neither is taken for the other.
    for measured in (past, past[["gain"]], past.reset_index(drop=True)):
        with pytest.raises(
            ArgumentError, match=r"has no column 'row' for the ids.*from 1 .an index of pandas is not.*by a merge"
        ):
            campaign.tell(measured)
    campaign.tell(past.merge(candidates.assign(row=range(1, 31))))
    best = campaign.best(12)
    assert (best["measured"] == 2 * best["heat"]).all()
    named = past[["gain"]].set_index(pd.Index(past.index + 1, name="row"))
    assert campaign.tell(named + 1).measured == 12
    best = campaign.best(12)
    assert (best["measured"] == 2 * best["heat"] + 0.5).all()


@OFF_SCALE
@pytest.mark.parametrize("form", ["frame", "csv"])
def test_a_wide_plate_is_compared_at_once_and_names_the_cell_that_differs(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Texts column by column took three seconds for eight rows of a thousand columns."""
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.normal(size=(20, 300)), columns=[f"x{i}" for i in range(300)])
    wide.insert(0, "id", [f"a{i}" for i in range(20)])
    read: list[int] = []
    texts = results._texts
    monkeypatch.setattr(results, "_texts", lambda cells: (read.append(cells.size), texts(cells))[1])
    c = campaign(wide)
    plate = wide[:8].assign(**{"yield": 1.0 + np.arange(8)})
    plate.loc[3, "x7"] += 9
    given: Any = plate
    if form == "csv":
        given = tmp_path / "plate.csv"
        plate.to_csv(given, index=False)
    told = c.tell(given)
    assert told.measured == 8
    assert any("has 'x7'" in note and "'a3'" in note for note in told.notes)
    assert not any("'x8'" in note for note in told.notes)
    assert len(read) < 10
