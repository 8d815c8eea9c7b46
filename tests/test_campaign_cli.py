"""`torchbandits campaign` with a spreadsheet, including repeated commands and user mistakes."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest
import torch
from problems import OFF_SCALE
from test_campaign import frame, policy, yields
from typer.testing import CliRunner

import torchbandits as tb
from torchbandits.cli import app
from torchbandits.errors import DiagnosticWarning

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table, in which commands run, and a fast policy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torchbandits.campaigns.campaign.auto", policy)
    frame().to_csv("candidates.csv", index=False)
    return tmp_path


def run(*arguments: str) -> str:
    """Run a command that must succeed, and return its standard output."""
    result = RUNNER.invoke(app, ["campaign", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> str:
    """Run a command that must fail, and return its one line."""
    result = RUNNER.invoke(app, ["campaign", *arguments])
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if line]
    return line


def plate(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text), dtype={"id": str})


def test_results_with_limits_are_the_only_decimals_of_a_table_with_commas(folder: Path):
    """The copy in the folder has no other column that shows its decimal mark."""
    Path("old.csv").write_text("id;temp;yield\na;60;58,9\nb;70;<10,5\nc;80;\n")
    run("new", "old.csv", "--objective", "yield")
    assert run("results").split() == ["id;temp;call;yield", "a;60;1;58,9", "b;70;1;<10,5"]


def test_one_value_is_known(folder: Path):
    new = ("new", "candidates.csv", "--objective", "yield", "--column", "dry=ignore")
    run(*new)
    rows = plate(run("ask", "-n", "1"))
    rows.assign(**{"yield": 1.0}).to_csv("results.csv", index=False)
    run("tell", "results.csv")
    assert "1 value of yield is known." in run(*new)


@pytest.mark.usefixtures("folder")
def test_a_beginning_says_how_many_rows_its_condition_leaves():
    few = int((frame()["temp"] < 26).sum())
    assert 1 < few < 8
    said = run("new", "candidates.csv", "--objective", "yield", "--candidates", "temp < 26")
    assert f"{few} rows of them may be selected, under the condition of --candidates." in said
    assert f"campaign ask -n {few} --output plate.csv" in said


def test_a_campaign_from_the_table_to_the_report(folder: Path):
    said = run("new", "candidates.csv", "--objective", "yield", "--column", "dry=ignore", "--candidates", "temp < 110")
    assert "The campaign is in campaign." in said
    assert f"candidates.csv has {len(pd.read_csv('candidates.csv'))} rows, one per candidate." in said
    assert all(
        word in said for word in ("log", "3 different texts", "as told", "torchbandits campaign ask -n 8 --output plate.csv")
    )
    first = run("ask", "-n", "4")
    assert run("ask", "-n", "4") == first  # repeating the command changes nothing
    assert len(plate(run("ask", "-n", "2", "--more"))) == 6
    run("forget", *plate(run("ask", "-n", "6"))["id"].tolist()[4:])
    rows = plate(first)
    assert list(rows.columns)[-4:] == ["expected", "deviation", "rank", "yield"]
    assert rows["yield"].isna().all()
    rows["yield"] = yields(rows)
    rows.to_csv("results.csv", index=False)
    assert "results.csv: 4 measurements and 0 failed evaluations told." in run("tell", "results.csv")
    told = run("tell", "results.csv")
    assert "0 measurements and 0 failed evaluations told. 4 rows had been told before" in told
    best = rows.loc[rows["yield"].idxmax()]
    assert f"Best so far: {best['id']}, yield {best['yield']:.6g} measured." in told
    assert "4 measurements" in run("tell", "results.csv", "--again")
    assert plate(run("best", "-n", "2"))["id"].iloc[0] == best["id"]
    assert best["id"] not in plate(run("best", "--where", f"id != '{best['id']}'"))["id"].tolist()
    again = run("new", "candidates.csv", "--objective", "yield", "--column", "dry=ignore", "--candidates", "temp < 110")
    assert "campaign holds this campaign already: nothing has changed." in again
    assert "8 values of yield are known" in again
    assert "2 rows: next.csv" in run("ask", "-n", "2", "--no-repeats", "--where", "solvent == 'DMF'", "--output", "next.csv")
    assert set(pd.read_csv("next.csv")["solvent"]) == {"DMF"}
    ids = pd.read_csv("next.csv", dtype=str)["id"].tolist()
    assert "1 row given up, 1 pending." in run("forget", ids[0])
    assert "1 row given up, 0 pending." in run("forget", "--all")
    assert "as told" in run("columns")
    assert "Report:" in run("report")
    page = (folder / "campaign" / "report.html").read_text()
    assert "<h2>Best rows</h2>" in page
    assert "<h1>Search for the largest yield in candidates.csv</h1>" in page


def test_a_table_of_any_types_is_the_same_when_it_is_begun_again(folder: Path):
    text = "id,x,when,at,z\n" + "".join(f"00{i},{i}.5,2024-01-0{i} 10:00:00,10:0{i}:00,\n" for i in range(1, 9))
    (folder / "times.csv").write_text(text)
    own = pd.read_csv("times.csv", dtype={"id": str}).assign(
        x=lambda t: t["x"].where(t["x"] > 2), at=pd.Categorical([1, 2] * 4)
    )
    table = pa.Table.from_pandas(own.drop(columns="when"), preserve_index=False)
    nan = pa.array(own["x"].to_numpy(), from_pandas=False)
    pa.feather.write_feather(table.set_column(1, "x", nan), "times.feather", compression="uncompressed")
    for name in ("times.csv", "times.feather"):
        made = ["new", name, "--objective", "y", "--folder", name.replace(".", "-"), "--column", "at=ignore"]
        run(*made)
        assert "holds this campaign already" in run(*made)
    (folder / "times.csv").write_text(text.replace("1.5", "1.6"))
    assert "another table" in refused("new", "times.csv", "--objective", "y", "--folder", "times-csv")


def test_a_filled_in_plate_is_not_overwritten(folder: Path):
    run("new", "candidates.csv", "--objective", "yield")
    for _ in range(2):
        run("ask", "-n", "2", "--output", "plate.csv")
    rows = pd.read_csv("plate.csv", dtype={"id": str})
    rows.assign(**{"yield": [1.5, None]}).to_csv("plate.csv", sep=";", decimal=",", index=False)
    assert "plate.csv has values of 'yield'" in refused("ask", "-n", "3", "--output", "plate.csv")
    (folder / "plate.csv").write_bytes(b"\xff\xfe")
    assert "is not a file of selected rows" in refused("ask", "-n", "3", "--output", "plate.csv")
    assert len(plate(run("ask", "-n", "3"))) == 3  # no row was asked for in vain


@pytest.mark.exhaustive
def test_a_seed_reproduces_and_varies_the_rows_of_a_campaign(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.campaigns.campaign.auto", tb.auto)
    numbers = np.random.default_rng(0).uniform(size=(1_100, 2))
    pd.DataFrame(numbers, columns=["x", "y"]).to_csv("large.csv", index=False)

    def rows(name: str, *options: str) -> list[int]:
        run("new", "large.csv", "--objective", "yield", "--folder", name, *options)
        return plate(run("ask", "-n", "4", "--folder", name))["row"].tolist()

    assert rows("seven", "--seed", "7") == rows("again", "--seed", "7") != rows("own", "--seed", "0")
    assert rows("own") == rows("default")  # 0
    generator = torch.Generator().manual_seed(7)
    own = tb.Campaign(folder / "large.csv", "yield", generator=generator)
    assert own.ask(4)["row"].tolist() == rows("seven")
    assert "holds a campaign with --seed 7: leave the option out" in refused(
        "new", "large.csv", "--objective", "yield", "--folder", "seven", "--seed", "8"
    )


def test_a_plate_that_was_not_filled_in_is_refused_also_beside_a_failure_that_was_told(folder: Path):
    run("new", "candidates.csv", "--objective", "yield")
    (folder / "results.csv").write_text("id,yield\n001,5\n002,4\n000,\n")
    assert "2 measurements and 1 failed evaluation told." in run("tell", "results.csv")
    (folder / "plate.csv").write_text("id,yield\n001,\n002,\n000,\n")
    assert "no row of plate.csv has a value in column 'yield': nothing was told" in refused("tell", "plate.csv")


def test_another_condition_replaces_that_of_the_campaign():
    begin = ("new", "candidates.csv", "--objective", "yield")
    run(*begin, "--candidates", "temp < 110")
    said = refused(*begin, "--candidates", "temp < -30")
    assert "no row of" in said
    assert "nothing has changed" in run(*begin, "--candidates", "temp < 110")
    assert "holds a campaign with --seed 0" in refused(*begin, "--candidates", "temp < 60", "--seed", "5")
    assert "nothing has changed" in run(*begin, "--candidates", "temp < 110")
    assert "only the condition of --candidates has changed" in run(*begin, "--candidates", "temp < 60")
    assert "nothing has changed" in run(*begin)
    assert plate(run("ask", "-n", "5"))["temp"].max() < 60


def test_a_best_row_whose_objective_was_not_measured_is_said_to_be(folder: Path):
    run("new", "candidates.csv", "--objective", "yield", "--limit", "dirt <= 0.2")
    (folder / "results.csv").write_text("id,yield,dirt\n001,5,0.9\n002,4,0.8\n000,,0.1\n")
    assert "Best so far: 000, yield not measured yet." in run("tell", "results.csv")


def test_a_best_row_in_doubt_is_said_to_be_so_beside_the_table(folder: Path, monkeypatch: pytest.MonkeyPatch):
    run("new", "candidates.csv", "--objective", "yield")
    (folder / "results.csv").write_text("id,yield\n001,5\n002,4\n")
    monkeypatch.setattr("torchbandits.campaigns.campaign.Campaign.doubt", lambda _: "Do not rely on it.")
    assert "Best so far: 001, yield 5 measured. Do not rely on it.\n" in run("tell", "results.csv")
    result = RUNNER.invoke(app, ["campaign", "best"])
    assert result.stderr == "Do not rely on it.\n"
    assert plate(result.stdout)["id"].tolist() == ["001", "002"]


@pytest.mark.exhaustive
def test_a_table_without_rows_says_why_it_has_none(folder: Path):
    limits = ("--objective", "yield", "--objective", "cost:min", "--limit", "dirt <= 0.2")
    run("new", "candidates.csv", *limits)
    (folder / "results.csv").write_text("id,yield,cost,dirt\n001,5,1,0.9\n002,4,1,0.8\n003,4,2,0.7\n")
    run("tell", "results.csv")
    run("new", "candidates.csv", "--objective", "yield", "--folder", "one")
    run("tell", "results.csv", "--folder", "one")
    for command, said in (
        (("best",), "No measured row keeps the limits with a probability of 95 %.\n"),
        (
            ("best", "--where", "dry"),
            "No measured row keeps the limits with a probability of 95 % and fulfils the condition.\n",
        ),
        (("front", "--measured"), "No measured row keeps the limits with a probability of 95 %.\n"),
        (("best", "--where", "id == '009'", "--folder", "one"), "No measured row fulfils the condition.\n"),
    ):
        result = RUNNER.invoke(app, ["campaign", *command])
        assert result.exit_code == 0, result.output
        assert len(plate(result.stdout)) == 0
        assert result.stderr.startswith(said)


@pytest.mark.usefixtures("folder")
def test_a_last_row_of_sums_is_named_and_a_value_far_from_the_others():
    """Such a row would be the best one."""
    whole = frame()[["id", "temp", "conc"]].assign(**{"yield": yields(frame()).round(2).where(frame().index < 12)})

    def said(last: dict[str, Any]) -> str:
        pd.concat([whole, pd.DataFrame([{"id": "Total"} | last])]).to_csv("totals.csv", index=False)
        with warnings.catch_warnings():
            warnings.simplefilter("default", DiagnosticWarning)
            return RUNNER.invoke(
                app, ["campaign", "new", "totals.csv", "--objective", "yield", "--folder", f"c{len(last)}"]
            ).stderr

    sums = {name: float(whole[name].sum().round(4)) for name in ("temp", "conc", "yield")}
    words = " ".join(said(sums).split())
    assert (
        words.count("totals.csv: 'Total', the last row, has the sums of the rows above in temp, conc and yield. If it is") == 1
    )
    assert f"'Total' is {sums['yield']:.6g}, and all others are between" in words
    # Another number than the sum, as of an ordinary row.
    assert "Total" not in said(sums | {"temp": 50.0, "yield": 1.0, "note": 1})


def test_a_last_row_of_totals_is_named_once(folder: Path):
    totals = {"id": "Total", "conc": frame()["conc"].sum()}
    pd.concat([frame(), pd.DataFrame([totals])]).to_csv("totals.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("default", DiagnosticWarning)
        said = RUNNER.invoke(app, ["campaign", "new", "totals.csv", "--objective", "yield"]).stderr
    assert said.count("totals.csv: 'Total', the last row, is the only one without temp, solvent and dry. If it is no") == 1
    # A single empty cell, or none, is nothing unusual.
    frame().assign(temp=lambda t: t["temp"].where(t["id"] != "059")).to_csv("usual.csv", index=False)
    for name in ("usual.csv", "candidates.csv"):
        assert not RUNNER.invoke(app, ["campaign", "new", name, "--objective", "yield", "--folder", f"of {name}"]).stderr


@pytest.mark.parametrize(
    ("cell", "hint"), [("2\u00a0378", "separators of thousands"), ("\u2212{}", "A minus sign is written as a hyphen")]
)
def test_texts_that_look_like_numbers_are_refused_with_how_to_write_them(folder: Path, cell: str, hint: str):
    frame().assign(price=[cell.format(i) + f"{i}" for i in range(60)]).to_csv("odd.csv", index=False)
    assert hint in refused("new", "odd.csv", "--objective", "yield", "--folder", "odd")


def test_a_campaign_that_is_open_elsewhere_is_refused_in_words_of_the_commands(folder: Path):
    new = ("new", "candidates.csv", "--objective", "yield")
    run(*new)
    other = tb.Campaign(journal=folder / "campaign" / "journal", policy=policy())
    said = "another command, or a Python session, has the campaign in campaign open. Repeat the command when that one has ended"
    assert said in refused("ask")
    assert said in refused(*new)
    other.close()
    assert len(plate(run("ask", "-n", "2"))) == 2


@pytest.mark.sweep(1)
@pytest.mark.parametrize("outcomes", [("--objective", "yield"), ("--objective", "yield", "--objective", "cost:min")])
def test_computed_columns_have_six_digits_and_the_users_own_are_left_alone(folder: Path, outcomes: tuple[str, ...]):
    own = frame().assign(id=lambda t: 1_234_567_890_123 + t.index, deviance=lambda t: t["temp"] / 7)
    own.to_csv("candidates.csv", index=False)
    run("new", "candidates.csv", *outcomes)
    names = [name.removesuffix(":min") for name in outcomes[1::2]]
    value = 31.123456789012
    told = own.head(5).assign(**{"yield": yields(own.head(5)), "cost": value + np.arange(5) / 7})[["id", *names]]
    told.loc[0, "yield"] = value
    pd.concat([told, told.tail(1).assign(**{"yield": 2.0})]).to_csv("results.csv", index=False)
    run("tell", "results.csv")
    (folder / "plate.csv").write_text(run("ask", "-n", "4"))
    written = run("best", "-k", "5"), (folder / "plate.csv").read_text(), *([run("front")] if len(names) > 1 else [])
    for text in written:
        lines = pd.read_csv(io.StringIO(text), dtype=str)
        exact = own.astype(str).set_index("id").loc[lines["id"], ["temp", "conc", "deviance"]]
        np.testing.assert_allclose(
            lines[["temp", "conc", "deviance"]].astype(float), exact.astype(float), rtol=1e-15, err_msg="the user's columns"
        )
        computed = [name for name in lines.columns if name.split()[-1] in ("expected", "deviation", "front")]
        assert len(computed) >= 2 * len(names)
        for name in computed:
            assert lines[name].notna().all(), name
            assert all(float(cell) == float(f"{float(cell):.6g}") for cell in lines[name]), name
    if len(names) == 1:
        best = pd.read_csv(io.StringIO(written[0]), dtype=str).set_index("id")["measured"]
        assert float(best["1234567890123"]) == value, "measured once"
        average = (yields(own).iloc[4] + 2) / 2
        assert float(best["1234567890127"]) == float(f"{average:.6g}"), "an average"
    rows = pd.read_csv("plate.csv", dtype={"id": str})
    rows.assign(**dict.fromkeys(names, 4.5)).to_csv("plate.csv", index=False)
    assert f"{4 * len(names)} measurements and 0 failed evaluations told." in run("tell", "plate.csv")


@pytest.mark.exhaustive
@OFF_SCALE
def test_the_command_explains_in_the_same_lines(folder: Path):
    run("new", "candidates.csv", "--objective", "yield", "--minimize")
    assert "nothing was measured yet" in refused("explain")
    rows = plate(run("ask", "-n", "6"))
    rows.assign(**{"yield": yields(rows)}).to_csv("results.csv", index=False)
    run("tell", "results.csv")
    said = run("explain")
    campaign = tb.Campaign(None, journal=folder / "campaign" / "journal", policy=policy())
    assert said.splitlines() == list(campaign.explain().lines())
    campaign.close()
    assert "solvent = DMF" in said
    assert f"Best so far: {plate(run('best', '-k', '1'))['id'].iloc[0]!r}, with yield expected at" in said
    dry = plate(run("best", "-k", "1", "--where", "dry"))["id"]
    assert f"Best so far: {dry.iloc[0]!r}, with yield" in run("explain", "--where", "dry") if len(dry) else True
    run("new", "candidates.csv", "--objective", "yield", "--objective", "cost:min", "--folder", "two")
    run("tell", "results.csv", "--folder", "two")
    said = run("explain", "--folder", "two").splitlines()
    assert [line.partition(":")[0] for line in said] == ["yield", "cost"]
    assert "after 6 measurements of 6 of" in said[0]
    assert said[1] == "cost: no measurement was told yet."
    assert "--where is for one objective" in refused("explain", "--folder", "two", "--where", "dry")


def test_names_that_the_terminal_lacks_are_written_all_the_same(folder: Path):
    table = frame().rename(columns={"temp": "Δ"}).assign(id=lambda t: "Δ" + t["id"])
    table.to_csv("candidates.csv", index=False)
    narrow = CliRunner(charset="cp1252")
    for command in (["new", "candidates.csv", "--objective", "yield"], ["ask", "-n", "2"], ["columns"]):
        result = narrow.invoke(app, ["campaign", *command])
        assert result.exit_code == 0, result.output
        if command[0] == "ask":
            rows = pd.read_csv(io.BytesIO(result.stdout_bytes))
            assert rows["id"].str.startswith("Δ").all()
            rows.assign(**{"yield": [1.0, 2.0]}).to_csv("results.csv", index=False)
    result = narrow.invoke(app, ["campaign", "tell", "results.csv"])
    assert "Best so far: \\u0394" in result.stdout


def test_the_folder_may_move_and_the_table_may_change(folder: Path):
    run("new", "candidates.csv", "--objective", "yield", "--folder", "lab/one")
    first = run("ask", "-n", "3", "--folder", "lab/one")
    (folder / "candidates.csv").unlink()
    (folder / "lab" / "one").rename(folder / "two")
    assert run("ask", "-n", "3", "-f", "two") == first


def test_a_parquet_file_is_read_where_it_is(folder: Path):
    frame().to_parquet("candidates.parquet", index=False)
    run("new", "candidates.parquet", "--objective", "yield", "--minimize")
    assert not (folder / "campaign" / "candidates.parquet").exists()
    first = run("ask", "-n", "3")
    assert len(plate(first)) == 3
    (folder / "candidates.parquet").rename(folder / "moved.parquet")
    own = folder / "campaign" / "candidates.parquet"
    gone = f"{folder}/candidates.parquet, the table of this campaign, is not there: put it back, or copy it to {own}."
    assert gone in refused("ask", "-n", "3")
    (folder / "moved.parquet").rename(own)
    assert run("ask", "-n", "3") == first


def test_a_killed_beginning_is_begun_again(folder: Path):
    run("new", "candidates.csv", "--objective", "yield")
    (folder / "campaign" / "journal").unlink()  # as if the process had been killed before it created the journal
    (folder / "campaign" / "journal.checkpoint").unlink(missing_ok=True)
    run("new", "candidates.csv", "--objective", "yield")
    assert len(plate(run("ask", "-n", "3"))) == 3


def test_what_to_do_with_several_columns_is_said_to_the_end(folder: Path):
    names = ["Lot of the first supplier", "Day", "Remark of the operator"]
    table = frame().assign(**{name: [f"{number:02}.11.2026 {name}" for number in range(len(frame()))] for name in names})
    table.to_csv("remarks.csv", index=False)
    said = refused("new", "remarks.csv", "--objective", "yield")
    assert "…" not in said
    options = [part for part in shlex.split(re.sub("[',)]", "", said)) if part.endswith("=ignore")]
    assert options == [f"{name}=ignore" for name in names]
    assert "Dates are written like 2026-08-31" in said
    run("new", "remarks.csv", "--objective", "yield", *(part for option in options for part in ("--column", option)))


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("fractions", "decimal"), [(True, ","), (False, ","), (True, ".")])
def test_plates_open_in_the_program_that_wrote_the_table(fractions: bool, decimal: str, folder: Path):
    numbers = np.arange(30) / (4 if fractions else 1)
    table = pd.DataFrame({"id": [f"{i:03}" for i in range(30)], "Länge [µm]": numbers, "yield": [1] + 29 * [None]})
    table.to_csv("german.csv", sep=";", decimal=decimal, index=False, encoding="utf-8-sig")
    run("new", "german.csv", "--objective", "yield")
    run("ask", "-n", "3", "--output", "plate.csv")
    said = (folder / "plate.csv").read_bytes()
    assert said.startswith(b"\xef\xbb\xbfid;")
    assert RUNNER.invoke(app, ["campaign", "ask", "-n", "3"]).stdout_bytes == said
    rows = pd.read_csv("plate.csv", sep=";", decimal=decimal, dtype={"id": str}, encoding="utf-8-sig")
    assert rows["Länge [µm]"].tolist() == [numbers[int(name)] for name in rows["id"]]
    assert rows["expected"].dtype == float
    rows["yield"] = [1.5, 2.5, 4.25]
    rows.to_csv("plate.csv", sep=";", decimal=decimal, index=False, encoding="utf-8-sig")
    assert "3 measurements" in run("tell", "plate.csv")
    assert RUNNER.invoke(app, ["campaign", "best"]).stdout_bytes.startswith(b"\xef\xbb\xbfid;")
    assert "4.25 measured" in run("tell", "plate.csv")
    Path("few.csv").write_text("id;yield\n029;1.000\n")
    if decimal == ",":
        assert "few.csv, line 2: is '1.000' 1000 or 1,000? The candidates have decimal commas." in refused("tell", "few.csv")
    else:
        run("tell", "few.csv")


def test_candidates_without_decimals_leave_those_of_results_as_they_are(folder: Path):
    Path("whole.csv").write_text("id;temp;yield\na;1;\nb;2;\nc;3;\n")
    Path("few.csv").write_text("id;yield\na;1.000\n")
    run("new", "whole.csv", "--objective", "yield")
    assert "1 measurement" in run("tell", "few.csv")


@pytest.mark.exhaustive
def test_tabs_with_decimal_commas_are_answered_with_semicolons(folder: Path):
    frame().to_csv("tabs.txt", sep="\t", decimal=",", index=False)
    run("new", "tabs.txt", "--objective", "yield")
    assert run("ask", "-n", "3").startswith("id;")
    run("new", "candidates.csv", "--objective", "yield", "--folder", "plain")
    assert run("ask", "-n", "3", "--folder", "plain").startswith("id,")


@pytest.mark.exhaustive
def test_a_campaign_of_workbooks(folder: Path):
    table = frame().assign(id=[f"{i:03}" for i in range(len(frame()))], made=pd.Timestamp("2026-01-05"), note="=1+1")
    table["made"] += pd.to_timedelta(np.arange(len(table)), unit="D")
    with pd.ExcelWriter("table.xlsx") as writer:
        table.to_excel(writer, index=False)
        for cell in writer.sheets["Sheet1"]["A"]:
            cell.data_type = "s"
    assert "ask -n 8 --output plate.xlsx" in run("new", "table.xlsx", "--objective", "yield", "--column", "note=ignore")
    run("ask", "-n", "3", "--output", "plate.xlsx")
    plate = pd.read_excel("plate.xlsx", dtype={"id": str})
    own = table.set_index("id").loc[plate["id"]]
    assert plate["made"].tolist() == own["made"].tolist()
    assert np.allclose(plate["temp"], own["temp"])
    run("ask", "-n", "4", "--output", "plate.xlsx")  # nothing is filled in
    plate = pd.read_excel("plate.xlsx", dtype={"id": str})
    plate["yield"] = [1.0, 2.0, None, 3.5]
    plate.to_excel("plate.xlsx", index=False)
    assert "plate.xlsx has values of 'yield'" in refused("ask", "--output", "plate.xlsx")
    assert "3 measurements and 1 failed evaluation told" in run("tell", "plate.xlsx")
    run("best", "--output", "best.xlsx")
    assert pd.read_excel("best.xlsx", dtype={"id": str})["id"].iloc[0] == plate["id"].iloc[3]
    for name in ("plate.parquet", "plate.xls", "plate.ods"):
        assert "as CSV (.csv), or as an Excel workbook (.xlsx)" in refused("ask", "--output", name)
        assert not (folder / name).exists()


def test_long_ids_keep_their_digits_in_workbooks(folder: Path):
    frame().assign(id=10**17 + np.arange(len(frame()))).to_parquet("long.parquet")
    run("new", "long.parquet", "--objective", "yield")
    run("ask", "-n", "3", "--output", "plate.xlsx")
    plate = pd.read_excel("plate.xlsx", dtype={"id": str})[["id"]].assign(**{"yield": [1.0, 2.0, 3.0]})
    plate.astype({"id": np.int64}).to_excel("rounded.xlsx", index=False)  # 16 digits of them
    plate.assign(id="1,00000E+17").to_csv("rounded.csv", sep=";", decimal=",", index=False)
    for name in ("rounded.xlsx", "rounded.csv"):
        assert "a spreadsheet program rounded the id, a number of many digits, to '1" in refused("tell", name)
    plate.to_excel("plate.xlsx", index=False)
    assert "3 measurements and 0 failed evaluations told.\n" in run("tell", "plate.xlsx")


def test_a_table_without_a_column_called_id_says_how_its_rows_are_named(folder: Path):
    table = frame().rename(columns={"id": "Sample ID"}).assign(**{"Sample ID": range(len(frame()))})
    table.to_csv("samples.csv", index=False)
    said = run("new", "samples.csv", "--objective", "yield")
    assert "There is no column called id: rows are named by their numbers, from 1. If 'Sample ID' names them" in said
    said = run("new", "samples.csv", "--objective", "yield", "--id", "Sample ID", "--folder", "named")
    assert "no column called id" not in said
    assert "no column called id" not in run("new", "candidates.csv", "--objective", "yield", "--folder", "own")


def test_leading_zeros_of_other_columns_are_said_to_be_lost(folder: Path):
    frame(12).rename(columns={"id": "Probe-Nr"}).to_csv("numbers.csv", sep=";", decimal=",", index=False)
    said = run("new", "numbers.csv", "--objective", "yield")
    assert "If 'Probe-Nr' names them, begin anew, with --id 'Probe-Nr' and another --folder." in said
    assert "Column 'Probe-Nr' was read as numbers: plates show '000' without its leading zeros." in said
    named = run("new", "numbers.csv", "--objective", "yield", "--id", "Probe-Nr", "--folder", "named")
    assert "leading zeros" not in named
    assert "leading zeros" not in run("new", "candidates.csv", "--objective", "yield", "--folder", "plain")


def test_the_column_of_the_costs_is_a_feature_only_if_it_is_said(folder: Path):
    frame().assign(price=np.arange(60) + 1.0).to_csv("priced.csv", index=False)
    said = run("new", "priced.csv", "--objective", "yield", "--cost", "price", "--column", "price=ignore")
    assert re.search(r"price +cost +0", said)
    new = "new", "priced.csv", "--objective", "yield", "--cost", "price"
    assert re.search(r"price +cost +0", run(*new, "--folder", "plain"))
    assert re.search(r"price +log +1 +0 +as told, beside the cost", run(*new, "--column", "price=log", "--folder", "other"))
    plate = pd.read_csv(io.StringIO(run("ask", "-n", "2", "--folder", "other")), dtype={"id": str})
    plate.assign(**{"yield": [1.0, 2.0]}).to_csv("results.csv", index=False)
    run("tell", "results.csv", "--folder", "other")
    assert len(pd.read_csv(io.StringIO(run("ask", "-n", "2", "--folder", "other")))) == 2
    id_too = "new", "priced.csv", "--objective", "yield", "--column", "id=category", "--folder", "none"
    assert "'id' is the id and can't be a feature as well" in refused(*id_too)


def test_messages_name_the_users_file_and_what_to_write(folder: Path):
    run("new", "candidates.csv", "--objective", "yield")
    said = refused("ask", "--where", "solvent == DMF")
    assert "where: candidates.csv has no column 'DMF'. A text is written in quotes: 'DMF'." in said
    pd.DataFrame({"id": ["none"], "yield": [1.0]}).to_csv("other.csv", index=False)
    assert "is an id of candidates.csv" in refused("tell", "other.csv")
    said = refused("new", "candidates.csv", "--objective", "yield", "--objective", "pH:target=7", "--folder", "target")
    assert 'For a target give limits, such as --limit "pH <= 7.2"' in said


def test_mistakes_are_one_line(folder: Path):
    assert "there is no campaign in campaign: begin one with torchbandits campaign new" in refused("ask")
    assert "none.csv can't be read" in refused("new", "none.csv", "--objective", "yield")
    wrong = refused("new", "candidates.csv", "--objective", "yield", "--column", "solvnt=log")
    assert "candidates.csv has no column 'solvnt'. Did you mean 'solvent'?" in wrong
    assert not (folder / "campaign").exists()
    assert "--column takes NAME=KIND" in refused("new", "candidates.csv", "--objective", "yield", "--column", "conc")
    assert "can't be 'log'" not in run("new", "candidates.csv", "--objective", "yield")
    assert "the objective was 'yield', is 'purity'" in refused("new", "candidates.csv", "--objective", "purity")
    frame(20).to_csv("others.csv", index=False)
    assert "holds a campaign of another table" in refused("new", "others.csv", "--objective", "yield")
    rows = plate(run("ask", "-n", "2"))
    rows.assign(**{"yield": ["3", "x"]}).to_csv("results.csv", index=False)
    assert refused("tell", "results.csv").startswith(
        "torchbandits: results.csv, column 'yield', contains a value that is not a finite number"
    )
    rows.to_csv("results.csv", index=False)
    assert "nothing was told" in refused("tell", "results.csv")
    assert "60 of" in refused("ask", "-n", "100")
    assert "so that there is no best row: tell() results first (torchbandits campaign tell)" in refused("best")
    assert "give the ids of the rows, or --all" in refused("forget")
    assert len(plate(run("ask", "-n", "2"))) == 2


def session(text: str) -> list[str]:
    """Run the commands of a text of the documentation, and return the output of each, or the plate that it writes."""
    found = []
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            said = run(*shlex.split(line)[2:])
            found.append(Path("plate.csv").read_text() if line.endswith("--output plate.csv") else said)
    return found


def test_the_tutorial_is_a_session_that_works(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.campaigns.campaign.auto", tb.auto)  # the page shows which rows a reader is given
    names = ("table", "index", "running", "results", "outcomes")
    pages = {name: (Path(__file__).parents[1] / "docs" / "campaign" / f"{name}.md").read_text() for name in names}
    # The section on plates is a separate session, since all of its results have a plate.
    running, plates = pages["running"].split("## Results of different plates or days\n")
    text = pages["table"] + pages["index"] + running + pages["results"]
    table, first, results, more, limits = re.findall(r"^```csv\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (folder / "candidates.csv").write_text(table)
    (folder / "more.csv").write_text(more)
    (folder / "all.csv").write_text(table + more.partition("\n")[2] + "D1,80,0.001,THF,true\n")
    (folder / "results.csv").write_text(results)
    made, new, plate_csv, tell, best, explained, report, corrected, planned, *excluded, extended, renewed, following = session(
        text
    )
    for line in re.search(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[1].splitlines():
        assert any(line.split() == shown.split() for shown in new.splitlines()), line
    assert "92 rows: made.csv" in made
    assert plate_csv == first, "the page shows the plate that a reader gets"
    assert "3 measurements and 1 failed evaluation told." in tell
    assert "had not been asked for" not in tell
    assert re.match(r"B2 is corrected: [\d.]+ before, 62\.4 now\. The journal as it was is kept in ", corrected)
    assert plate(best)["id"].iloc[0] == "B2"
    shown = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[1]
    titles = [line.partition(":")[0] for line in shown.splitlines()]
    assert [line.partition(":")[0] for line in explained.splitlines()] == titles
    assert "Report: campaign/report.html" in report
    assert {"A6", "B3"} <= set(plate(planned)["id"])
    assert ["2 rows excluded, 2 in all." in excluded[0], "3 rows excluded, 5 in all." in excluded[1]] == [True, True]
    assert "2 rows added. The campaign has 14 rows now." in extended
    assert "The campaign in campaign2 goes on with the 15 rows of all.csv, and with 4 results and 2 pending rows." in renewed
    assert "4 different texts" in renewed
    assert len(plate(following)) == 4
    (folder / "limits.csv").write_text(limits)
    assert "2 results are limits of detection and are taken as 0.5 and 100." in run("tell", "limits.csv")
    assert run("results").splitlines()[-1].endswith(",>100")
    shutil.rmtree("campaign")
    (told,) = re.findall(r"^```csv\n(.*?)^```", plates, re.DOTALL | re.MULTILINE)
    (folder / "results.csv").write_text(told)
    run("new", "candidates.csv", "--objective", "yield")
    told, _, _, again = session(plates)
    assert "3 measurements and 0 failed evaluations told." in told
    assert "3 measurements and 0 failed evaluations told." in again
    # The page on several outcomes is a separate session.
    shutil.rmtree("campaign")
    (results,) = re.findall(r"^```csv\n(.*?)^```", pages["outcomes"], re.DOTALL | re.MULTILINE)
    (folder / "results.csv").write_text(results)
    new, asked, tell, front, report = session(pages["outcomes"])
    assert "No value of yield, cost, toxicity is known yet." in new
    assert list(plate(asked)["id"]) == [line.partition(",")[0] for line in results.splitlines()[1:]]
    assert "8 measurements and 1 failed evaluation told." in tell
    assert {"id", "keeps limits", "on the front"} <= set(plate(front).columns)
    assert "Report: campaign/report.html" in report


@pytest.mark.sweep(1)
@pytest.mark.parametrize("text", ["size=S<M<L", "size= S < M < L ", "a=b=category"])
def test_kinds_of_columns_are_read(text: str):
    table = frame().rename(columns={"temp": "a=b"}).assign(size=["S", "M", "L"] * 20)
    table["a=b"] = table["a=b"].round(-1)
    table.to_csv("candidates.csv", index=False)
    said: Any = run("new", "candidates.csv", "--objective", "yield", "--column", text)
    line = next(line for line in said.splitlines() if line.strip().startswith(text.rpartition("=")[0]))
    assert ("ordered" if "<" in text else "category") in line


def test_a_campaign_stops_when_its_budget_is_spent(folder: Path):
    frame().assign(price=2.5).to_csv("candidates.csv", index=False)
    run("new", "candidates.csv", "--objective", "yield", "--cost", "price", "--column", "price=ignore")
    rows = plate(run("ask", "-n", "4"))
    rows["yield"] = yields(rows)
    rows.loc[0, "yield"] = np.nan
    rows.to_csv("results.csv", index=False)
    run("tell", "results.csv")
    goes_on = RUNNER.invoke(app, ["campaign", "stop", "--budget", "10"])
    assert (goes_on.exit_code, goes_on.stdout) == (1, "Go on.\n")
    assert run("stop", "--budget", "7.5", "--measurements", "9").startswith("Stop: 7.5 was spent, of a budget of 7.5")
    assert "cost must be finite and > 0" in refused("stop", "--budget", "0")


@pytest.mark.exhaustive
def test_plates_noise_and_when_to_stop(folder: Path, monkeypatch: pytest.MonkeyPatch):
    run("new", "candidates.csv", "--objective", "yield", "--noise-std", "0.5")
    rows = plate(run("ask", "-n", "6", "--distinct", "--same", "solvent", "--at-most", "dry=4"))
    assert rows["solvent"].nunique() == 1
    assert rows["dry"].value_counts().max() <= 4
    assert rows["id"].is_unique
    rows.assign(**{"yield": yields(rows), "v": 0.04}).to_csv("results.csv", index=False)
    with warnings.catch_warnings():
        # Six results may be too few to fit a kernel to, which depends on the rows that were drawn.
        warnings.filterwarnings("ignore", "the fit is degenerate", DiagnosticWarning)
        assert "6 measurements" in run("tell", "results.csv", "--noise-var", "v")
    goes_on = RUNNER.invoke(app, ["campaign", "stop", "--measurements", "7", "--within", "1e-6"])
    assert (goes_on.exit_code, goes_on.stdout) == (1, "Go on.\n")
    assert run("stop", "--measurements", "6").startswith("Stop: 6 measurements were told")
    assert "give at least one of --within, --price, --measurements and --budget" in refused("stop")
    assert "--at-most takes NAME=COUNT" in refused("ask", "--at-most", "dry")
    assert "no column 'wet'" in refused("ask", "--same", "wet", "-n", "9")
    assert "--total takes NAME=NUMBER" in refused("ask", "--total", "temp")
    assert "--total takes a number" in refused("ask", "--total", "temp=much")
    assert "column 'solvent'" in refused("ask", "--total", "solvent=9", "-n", "9")
    assert "Total allows a sum of at most 1" in refused("ask", "--total", "temp=1", "-n", "9")
    least = pd.read_csv("candidates.csv")["temp"].nsmallest(9).sum()
    rows = plate(run("ask", "-n", "9", "--distinct", "--total", f"temp={1.2 * least}"))
    assert len(rows) == 9
    assert rows["temp"].sum() <= 1.2 * least


@pytest.mark.exhaustive
def test_a_plate_has_the_cheapest_of_equal_rows(folder: Path):
    table = frame().head(10)
    parts = [table.assign(id=lambda t, name=name: name + t["id"], supplier=name, price=p) for name, p in (("a", 9), ("b", 5))]
    pd.concat(parts).to_csv("candidates.csv", index=False)
    run("new", "candidates.csv", "--objective", "yield", "--column", "supplier=ignore", "--column", "price=ignore")
    first = run("ask", "-n", "8", "--distinct", "--total", "price=40")
    assert plate(first)["price"].tolist() == [5] * 8
    assert run("ask", "-n", "8", "--distinct", "--total", "price=40") == first
    assert run("ask", "-n", "8") == first
    assert "Total allows a sum of at most 40" in refused("ask", "-n", "9", "--distinct", "--total", "price=40")
    run("forget", "--all")
    mixed = plate(run("ask", "-n", "10", "--distinct", "--at-most", "supplier=5"))
    assert mixed["supplier"].value_counts().tolist() == [5, 5]
    assert mixed["id"].str[1:].is_unique


def test_ids_may_begin_with_a_dash(folder: Path):
    frame().assign(id=[f"-{row}" for row in range(60)]).to_csv("candidates.csv", index=False)
    run("new", "candidates.csv", "--objective", "yield")
    assert {"-3", "-4"} == set(plate(run("plan", "-3", "-4"))["id"])
    assert "1 row given up, 1 pending." in run("forget", "-3")
    assert "2 rows excluded" in run("exclude", "-5", "-6")
    assert "1 row put back" in run("include", "-5")
