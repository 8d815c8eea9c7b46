"""Rows added to a campaign: results, open rows and the encoding are kept; what does not fit is refused with row and column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from problems import OFF_SCALE
from test_campaign import campaign, frame, measured, policy, yields
from test_campaign_exclude import outcomes, told
from typer.testing import CliRunner

import torchbandits as tb
from torchbandits.cli import app
from torchbandits.errors import ArgumentError, DataError, DiagnosticWarning, StateError, TorchBanditsError, UnsupportedError
from torchbandits.journal import journal
from torchbandits.journal.recorder import Recorder

pytestmark = OFF_SCALE
OLD, NEW = frame()[:40], frame()[40:].reset_index(drop=True)


def begun(path: Path | None = None, table: Any = OLD, **options: Any) -> tb.Campaign:
    c = campaign(table, **{"journal": path} | options)
    if not c.open and c.bandit.pulls == 0:
        c.tell(measured(frame()[3:9]))
        c.ask(2)
    return c


def later(c: tb.Campaign) -> tuple[list[str], list[str]]:
    """The rows that are open, and those of two further plates."""
    opened, found = c.open, []
    for _ in range(2):
        plate = c.ask(5, repeats=False)
        found += plate["id"].tolist()
        c.tell(measured(plate))
    return opened, found


@pytest.mark.sweep(1)
@pytest.mark.parametrize("whole", [False, True])
def test_results_and_open_rows_are_kept_and_the_campaign_resumes(whole: bool, tmp_path: Path):
    """Two extensions, with a new process after each, and the journal repeated with and without its checkpoint."""
    c = begun()
    assert [c.extend(NEW[:8]), c.extend(NEW[8:])] == [8, 12]
    # The encoding is that of the beginning, also for rows that are far from it.
    assert torch.equal(c.bandit.arms[:40], begun().bandit.arms)
    expected = later(c)
    assert set(expected[1]) & set(NEW["id"])
    path = tmp_path / "lab"
    for rows in (NEW[:8], NEW[8:].sample(frac=1, axis=1, random_state=0)):
        c = begun(path)
        c.extend(rows)
        c.close()
        if whole:
            (tmp_path / "lab.checkpoint").unlink()
    c = begun(path)
    assert "60 candidates" in str(c)
    assert c.bandit.loop.num_arms == 60
    assert later(c) == expected
    table = c.best(3)
    truth = yields(frame().set_index("id").loc[table["id"]])
    np.testing.assert_allclose(table["measured"], truth)
    with pytest.raises(StateError, match=r"rows, the campaign 40.*lab.added.parquet"):
        begun(path, frame())


def test_history_conditions_costs_and_identifiers_include_the_new_rows(tmp_path: Path):
    priced = frame().assign(price=np.linspace(1, 3, 60))
    old, new = priced[:40], priced[40:].assign(**{"yield": [1.5, *[np.nan] * 19]})
    options: dict[str, Any] = {"cost": "price", "candidates": "temp < 100", "policy": tb.per_cost(policy())}
    c = begun(tmp_path / "lab", old, **options)
    c.extend(new)
    assert c.bandit.pulls == 7
    assert c.bandit.counts[40] == 1
    torch.testing.assert_close(c.bandit.loop.state.rows.costs, torch.linspace(1, 3, 60, dtype=torch.float64))
    assert (c.ask(10, repeats=False)["temp"][2:] < 100).all()
    c.forget()
    c.close()
    c = begun(tmp_path / "lab", old, **options)
    assert c.bandit.pulls == 7, "history is told once"
    assert c.best(9)["id"].tolist().count("040") == 1
    numbered = campaign(OLD.drop(columns="id"))
    numbered.extend(NEW.drop(columns="id"))
    assert numbered.tell(pd.DataFrame({"row": [60], "yield": [1.0]})).measured == 1
    named = campaign(OLD.set_index("id"))
    named.extend(NEW.set_index("id"))
    assert named.tell(pd.DataFrame({"id": ["059"], "yield": [1.0]})).measured == 1


def test_several_outcomes(tmp_path: Path):
    models = {name: policy() for name in ("yield", "cost")}
    options: dict[str, Any] = {"policy": tb.outcomes.pareto(models)}
    c = tb.OutcomeCampaign(OLD, ["yield", "cost"], tmp_path / "lab", **options)
    c.tell(measured(OLD[:4]).assign(cost=1.0))
    opened = c.ask(2)["id"].tolist()
    c.extend(NEW.assign(cost=[2.0, *[np.nan] * 19]))
    assert c.open == opened
    assert c.bandit.pulls.tolist() == [4, 5]
    c.close()
    c = tb.OutcomeCampaign(OLD, journal=tmp_path / "lab", **options)
    assert c.open == opened
    assert c.bandit.pulls.tolist() == [4, 5]
    assert "60 candidates" in str(c)
    bound = tb.OutcomeCampaign(
        OLD,
        ["yield"],
        at_most={"cost": 2.0},
        policy=tb.outcomes.safe(models, maximize="yield", at_most={"cost": 2.0}, start=[0]),
    )
    with pytest.raises(UnsupportedError, match="bound to the rows it began with: go on with one table of all rows"):
        bound.extend(NEW)


def test_of_equal_rows_the_open_one_stays_open(tmp_path: Path):
    suppliers = pd.concat([frame()[:9].assign(supplier=letter) for letter in "ab"], ignore_index=True)
    suppliers["id"] = suppliers["supplier"] + suppliers["id"]
    c = campaign(suppliers, journal=tmp_path / "lab", columns={"supplier": "ignore"})
    opened = c.ask(3, where="supplier == 'b'")["id"].tolist()
    assert all(name.startswith("b") for name in opened)
    c.extend(suppliers[:9].assign(id=[f"c{i}" for i in range(9)], supplier="c"))
    assert c.open == opened
    c.close()
    c = campaign(suppliers, journal=tmp_path / "lab", columns={"supplier": "ignore"})
    assert c.open == opened


def test_ids_remain_whole_numbers(tmp_path: Path):
    """Also if pandas stores those of the new rows as floats."""
    numbered = frame().assign(id=np.arange(60))
    c = campaign(numbered[:40], journal=tmp_path / "lab")
    c.extend(numbered[40:].assign(id=np.arange(40.0, 60.0)).reset_index(drop=True))
    plate = c.ask(60, repeats=False)
    assert plate["id"].dtype == np.int64
    assert set(range(40, 60)) <= set(plate["id"])
    with pytest.raises(ArgumentError, match="types of the table"):
        c.extend(numbered[40:50].assign(id=1e300 * np.arange(1.0, 11.0)))


def test_types_are_those_of_both_tables(tmp_path: Path):
    whole = OLD.assign(temp=np.arange(40), solvent=OLD["solvent"].astype("category"), number=[1, 2] * 20)
    c = campaign(whole, journal=tmp_path / "lab", columns={"number": "category"})
    c.extend(NEW.assign(number=2, temp=np.arange(20) + 0.5))
    temp = c.columns["temp"]
    torch.testing.assert_close(c.bandit.arms[40:, 0], (torch.arange(20, dtype=torch.float64) + 0.5 - temp.center) / temp.scale)
    assert c.ask(1, where={"id": "059"})["temp"].tolist() == [19.5]
    c.close()
    c = campaign(whole, journal=tmp_path / "lab", columns={"number": "category"})
    assert c.open == ["059"]


def changed(**cells: Any) -> pd.DataFrame:
    return NEW.assign(**{name: [NEW[name][0], value, *NEW[name][2:]] for name, value in cells.items()})


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("table", "said"),
    [
        (changed(solvent="THF"), "row 1, column 'solvent': 'THF' is not one of the categories of the beginning, 'DMF', 'EtOH'"),
        (changed(solvent=None), "row 1, column 'solvent' is empty, and no cell of the column was"),
        (changed(temp=np.nan), "row 1, column 'temp' is empty, and no cell of the column was"),
        (
            changed(id="007"),
            "row 1: '007' is an id of the campaign already, and its 'temp' is .* there, .* here: leave the row out",
        ),
        (changed(id="040"), "ids more than once in column 'id': '040' in row 0 and row 1"),
        (changed(id=None), r"row 1: the id \(column 'id'\) is empty"),
        (NEW.assign(temp="warm"), "column 'temp' holds 'warm' in row 0, which is not a number as in the table: correct it."),
        (NEW.assign(dry="yes"), "column 'dry' holds 'yes' in row 0, which is not true or false as in the table: correct it."),
        (changed(conc=0.0), "column 'conc', which is taken as 'log', has numbers from 0 to"),
        (changed(temp=np.inf), "column 'temp' is infinite in row 1"),
        (changed(temp=1e200), "column 'temp' holds 1e[+]200"),
        (NEW.assign(dry=3), "column 'dry', which is taken as 'boolean', has numbers from 3 to 3"),
        (NEW.drop(columns="temp"), "has no column 'temp', and new rows need those of the candidates"),
        (NEW.assign(colour="red"), "has a column 'colour', which the candidates lack: leave it out"),
        (NEW.assign(**{"yield": "high"}), "column 'yield' holds 'high' in row 0, which is not a number"),
        (NEW.assign(**{"yield": np.inf}), "column 'yield', is infinite in row 0"),
        (NEW[:0], "has no rows"),
        (3, "must be a table"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_lost(table: Any, said: str, tmp_path: Path):
    c = begun(tmp_path / "lab")
    before = (tmp_path / "lab").read_bytes(), c.open, c.bandit.loop.num_arms, sorted(tmp_path.iterdir())
    with pytest.raises(ArgumentError, match=said):
        c.extend(table)
    assert ((tmp_path / "lab").read_bytes(), c.open, c.bandit.loop.num_arms, sorted(tmp_path.iterdir())) == before
    assert c.extend(NEW) == 20


@pytest.mark.parametrize("form", ["pandas", "csv", "parquet"])
def test_rows_that_the_campaign_has_are_not_added_again(form: str, tmp_path: Path):
    """A longer version of the table, in another order, with an empty cell; the results of its rows are told as history."""
    old, every = OLD.assign(note=[None, *"b" * 39]), frame().assign(note=[None, *"b" * 59])
    c = begun(tmp_path / "lab", old, columns={"note": "ignore"})
    opened, pulls = c.open, int(c.bandit.pulls.sum())
    longer: Any = every.sample(frac=1, random_state=0).reset_index(drop=True)
    longer["yield"] = [yields(frame())[int(id)] if id in ("001", "050") else np.nan for id in longer["id"]]
    if form != "pandas":
        path = tmp_path / f"all.{form}"
        (longer.to_csv if form == "csv" else longer.to_parquet)(path, index=False)
        longer = path
    assert [c.extend(longer), c.extend(longer), c.extend(every)] == [20, 0, 0]
    assert c.bandit.loop.num_arms == 60
    assert c.open == opened
    assert int(c.bandit.pulls.sum()) == pulls + 2
    assert sorted(c.best(20)["id"]) == ["001", *[f"{i:03}" for i in range(3, 9)], "050"]
    c.close()
    again = campaign(old, journal=tmp_path / "lab")
    assert (again.open, again.bandit.loop.num_arms) == (opened, 60)
    # The same rows in another order are the same rows.
    assert sorted(again.predict()["id"]) == sorted(every["id"])


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
def test_rows_without_the_column_of_the_ids_say_what_to_rename(kind: str, tmp_path: Path):
    more = tmp_path / f"more.{kind}"
    rows = NEW.rename(columns={"id": "Versuch"})
    (rows.to_csv if kind == "csv" else rows.to_excel)(more, index=False)
    said = (
        r"more\.[a-z]+ has no column 'id', and new rows need those of the candidates\..* Rename the column that holds the ids"
    )
    with pytest.raises(ArgumentError, match=said):
        begun().extend(more)


def test_limits_of_detection_with_decimal_commas_are_added_to_any_table(tmp_path: Path):
    """The file of the new rows has commas, and the candidates have none, or are texts with points."""
    more = tmp_path / "more.csv"
    more.write_text("id;temp;yield\nq1;61;58,25\nq2;62;<10,5\n")
    for results in ([np.nan] * 5, [1.5, 2.5, "<1.25", np.nan, 30.0]):
        c = tb.Campaign(pd.DataFrame({"id": list("abcde"), "temp": range(60, 65), "yield": results}), "yield")
        before = len(c.results())
        c.tell(pd.DataFrame({"id": ["d"], "yield": [4.0]}))
        assert c.extend(more) == 2
        assert c.results()["yield"].tolist()[before:] == [4.0, 58.25, "<10.5"]
        assert c.results()["yield"].tolist()[:before] == [own for own in results if own == own]


def test_another_draw_of_combinations_is_added():
    values = {"temp": range(20, 120), "solvent": ["DMF", "water"], "time": [1, 2, 3]}
    first, second = (tb.combinations(values, count=60, seed=seed) for seed in (0, 1))
    c = tb.Campaign(first, objective="yield")
    assert c.extend(second) == len(set(second["id"]) - set(first["id"])) < 60


def test_a_cost_that_cannot_be_is_named_by_its_line_among_the_new_rows(tmp_path: Path):
    c = begun(table=OLD.assign(price=1.0), cost="price")
    NEW.assign(price=[1, 0, *[1] * 18]).to_csv(tmp_path / "more.csv", index=False)
    with pytest.raises(ArgumentError, match=r"more\.csv, line 3, column 'price': a cost must be a number above 0, got 0"):
        c.extend(tmp_path / "more.csv")


def test_what_the_model_does_not_see_is_said():
    c = campaign(OLD.assign(plate="A", note=[None] * 40))
    with pytest.warns(DiagnosticWarning, match="other cells than 'A' in column 'plate', which is no feature"):
        c.extend(NEW[:9].assign(plate=[*"AAAAAAAAB"], note=None))
    c.extend(NEW[9:].assign(plate="A", note=None))


def test_policies_and_tables_that_keep_to_their_rows_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bound = campaign(policy=tb.bpe(policy().kernel, noise_std=0.1, horizon=50), table=OLD)
    with pytest.raises(UnsupportedError, match=r"this campaign is bound to the rows it began with: go on .* by renew\(\)"):
        bound.extend(NEW)
    assert bound.bandit.loop.num_arms == 40
    monkeypatch.setattr("torchbandits.tabular.encoding.IN_MEMORY", 100)
    large = campaign(OLD, journal=tmp_path / "lab", policy=tb.batch_bkb(policy().kernel, noise_std=0.1))
    with pytest.raises(UnsupportedError, match=r"features in a file .*go on with one table of all rows by renew\(\)"):
        large.extend(NEW)


@pytest.mark.exhaustive
def test_an_interrupted_extension_leaves_the_campaign_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, added = tmp_path / "lab", tmp_path / "lab.added.parquet"
    c = begun(path)
    c.extend(NEW[:5])
    interrupt = lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr("torchbandits.campaigns.candidates.Ids", interrupt)
        with pytest.raises(KeyboardInterrupt):
            c.extend(NEW[5:9])
    assert c.bandit.loop.num_arms == 45
    with monkeypatch.context() as patch:
        patch.setattr(tb.Bandit, "set_arms_", interrupt)
        with pytest.raises(KeyboardInterrupt):
            c.extend(NEW[5:9])
    assert len(pd.read_parquet(added)) == 9
    assert c.bandit.loop.num_arms == 45
    c.close()
    c = begun(path)
    with pytest.raises(ArgumentError, match="not among the candidates: '045'"):
        c.tell(measured(frame()[44:46]))
    c.extend(NEW[7:])
    c.close()
    c = begun(path)
    assert c.tell(measured(frame()[[*[False] * 44, True, False, False, *[True] * 13]])).measured == 14
    c.close()
    pd.read_parquet(added)[:10].to_parquet(added)
    for _ in range(2):
        with pytest.raises(StateError, match=r"lab.added.parquet, with rows that were added .* missing or incomplete: restore"):
            begun(path)
        added.unlink(missing_ok=True)
    added.write_text("nothing")
    with pytest.raises(DataError, match="can't be read as Parquet"):
        begun(path)


@pytest.mark.parametrize("several", [False, True])
def test_past_experiments_that_are_no_candidates(several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The message says how; their results count once, and they are not selected."""
    c = outcomes(OLD) if several else campaign(OLD)
    past = pd.concat([OLD[:2], NEW[:3].assign(id=["old1", "old2", "old3"])], ignore_index=True)
    past["yield"] = yields(past)
    for rows in (past, past[2:]):
        with pytest.raises(ArgumentError, match=r"no candidates are added with all columns by extend\(\), .* exclude\(\)"):
            c.tell(rows[["id", "yield"]])
    assert c.extend(past) == 3
    c.exclude(["old1", "old2", "old3"])
    assert c.results()["id"].tolist() == past["id"].tolist()
    assert not set(c.ask(12)["id"]) & set(past["id"][2:])
    past.to_csv(tmp_path / "past.csv", index=False)
    assert "5 rows had been told before" in str(c.tell(tmp_path / "past.csv"))
    if several:
        return
    monkeypatch.chdir(tmp_path)
    OLD.to_csv("candidates.csv", index=False)
    CliRunner().invoke(app, ["campaign", "new", "candidates.csv", "--objective", "yield"])
    said = CliRunner().invoke(app, ["campaign", "extend", "past.csv"]).stdout
    assert said == "past.csv: 3 rows added, and 5 values told. The campaign has 43 rows now.\n"


@pytest.mark.exhaustive
def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torchbandits.campaigns.campaign.auto", policy)
    OLD.to_csv("candidates.csv", index=False)
    NEW.to_csv("more.csv", index=False)

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["campaign", *arguments])

    run("new", "candidates.csv", "--objective", "yield")
    first = run("ask", "-n", "3").stdout
    said = run("extend", "more.csv")
    assert said.stdout == "more.csv: 20 rows added. The campaign has 60 rows now.\n"
    assert run("ask", "-n", "3").stdout == first
    assert "059" in run("ask", "-n", "4", "--where", "id == '059'").stdout
    measured(NEW).to_csv("results.csv", index=False)
    assert "20 measurements" in run("tell", "results.csv").stdout
    assert run("extend", "more.csv").stdout == "more.csv: 0 rows added. The campaign has 60 rows now.\n"
    frame().assign(temp=-1.0).to_csv("other.csv", index=False)
    wrong = run("extend", "other.csv")
    assert wrong.exit_code == 2
    assert "other.csv, line 2: '000' is an id of the campaign already, and its 'temp' is" in wrong.stderr
    changed(id="A", solvent="THF").assign(id=[f"n{i}" for i in range(20)]).to_csv("more.csv", index=False)
    assert "more.csv, line 3, column 'solvent': 'THF' is not one of the categories" in run("extend", "more.csv").stderr
    run("report")
    assert "Search for the largest yield in candidates.csv</h1>" in Path("campaign/report.html").read_text()
    assert "candidates.csv has 40 rows" in run("new", "candidates.csv", "--objective", "yield").stdout
    with pytest.raises(TorchBanditsError, match="not one of the categories"):
        tb.Campaign(Path("campaign/candidates.parquet"), journal="campaign/journal", policy=policy()).extend("more.csv")


@pytest.mark.sweep(2)
@pytest.mark.parametrize("later", ["pandas", "csv", "parquet", "numbers"])
@pytest.mark.parametrize("first", ["pandas", "csv", "parquet", "numbers"])
def test_dates_and_booleans_may_come_from_another_kind_of_file(first: str, later: str, tmp_path: Path):
    """pandas has dates with a time of midnight, and text files without one; other programs write true and false as 1 and 0."""
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 90, 40), unit="D")
    table = pd.DataFrame({"id": [f"a{i}" for i in range(40)], "made": days, "dry": rng.random(40) < 0.5, "x": rng.random(40)})
    new = table.head(6).assign(id=[f"b{i}" for i in range(6)])

    def given(rows: pd.DataFrame, form: str, name: str) -> Any:
        path = tmp_path / f"{name}.{'parquet' if form == 'parquet' else 'csv'}"
        if form == "parquet":
            rows.to_parquet(path, index=False)
        elif form != "pandas":
            (rows.assign(dry=rows["dry"].astype(int)) if form == "numbers" else rows).to_csv(path, index=False)
        return rows if form == "pandas" else path

    c = tb.Campaign(given(table, first, "table"), objective="yield")
    c.extend(given(new, later, "new"))
    assert torch.equal(c.bandit.arms[40:], c.bandit.arms[:6])


def test_a_time_of_day_is_not_dropped(tmp_path: Path):
    table = pd.DataFrame({"id": ["a", "b", "c"], "made": ["2024-01-01", "2024-01-05", "2024-02-01"], "x": [0.1, 0.4, 0.2]})
    table.to_csv(tmp_path / "table.csv", index=False)
    c = tb.Campaign(tmp_path / "table.csv", objective="yield")
    with pytest.raises(
        ArgumentError, match=r"does not have the types of .* incompatible types.* Write its cells as they are there"
    ):
        c.extend(pd.DataFrame({"id": ["d"], "made": [pd.Timestamp("2024-01-03 15:00")], "x": [0.3]}))


@pytest.mark.parametrize("several", [False, True])
def test_an_interrupt_while_a_checkpoint_is_written_loses_nothing_and_counts_nothing_twice(
    several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    begin = outcomes if several else campaign
    c = told(begin(OLD, journal=tmp_path / "lab"))
    pulls, file = c.bandit.pulls, tmp_path / "results.csv"
    pd.DataFrame({"id": ["030"], **{name: [3.0] for name in c.outcomes}}).to_csv(file, index=False)

    def interrupted(change: Callable[[], object]) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Recorder, "_checkpointed", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                change()

    c.bandit.recorder.settle()
    monkeypatch.setattr(journal, "_PATIENCE", 0)
    interrupted(lambda: c.tell(file))
    assert c.tell(file).known == 1
    assert torch.equal(c.bandit.pulls, pulls + 1)
    interrupted(lambda: c.extend(NEW))
    assert c.extend(NEW) == 0
    plate = c.ask(3, repeats=False)["id"].tolist()
    c.close()
    c = begin(OLD, journal=tmp_path / "lab")
    assert (c.open, len(c.predict())) == (plate, 60)
    c.close()


def test_all_results_are_told_to_another_campaign_which_has_a_new_category(tmp_path: Path):
    c = begun(tmp_path / "lab")
    first = c.open[0]
    c.tell(pd.DataFrame({"id": [first, first], "yield": [1.25, 1.75]}))  # repeated
    c.tell(pd.DataFrame({"id": c.ask(1)["id"], "yield": [np.nan]}))  # failed
    c.correct(first, 2.5, was=1.25)
    results = c.results()
    assert results["id"].tolist()[-3:] == [first, first, results["id"].iloc[-1]]
    assert results["yield"].tolist()[-3:-1] == [2.5, 1.75]
    assert np.isnan(results["yield"].iloc[-1])
    assert list(results.columns) == [*OLD.columns.drop("yield", errors="ignore"), "call", "yield"]
    # The two results of one file have the same call, and a correction is none.
    assert results["call"].diff().tolist()[-2:] == [0, 1]
    more = NEW.assign(solvent="ethanol")
    with pytest.raises(ArgumentError, match=r"or, to add a category, go on with one table of all rows by renew\(\)"):
        c.extend(more)
    other = campaign(pd.concat([OLD, more], ignore_index=True), journal=tmp_path / "second")
    assert str(other.tell(results)).startswith(f"{len(results) - 1} measurements and 1 failed evaluation told")
    pd.testing.assert_frame_equal(other.results(), results.assign(call=1))
    assert other.bandit.pulls == c.bandit.pulls
    assert "ethanol" in other.columns["solvent"].categories
    other.close()
    with pytest.raises(TorchBanditsError, match="closed"):
        other.results()


def test_results_of_several_outcomes_and_of_none():
    c = outcomes()
    assert len(c.results()) == 0
    assert list(c.results().columns[-2:]) == list(c.outcomes)
    plate = c.ask(3)
    values = pd.DataFrame({"id": plate["id"], c.outcomes[0]: [1.0, 2.0, np.nan], c.outcomes[1]: [3.0, np.nan, np.nan]})
    c.tell(values)
    found = c.results()
    pd.testing.assert_frame_equal(found[["id", *c.outcomes]], values)
    other = outcomes()
    other.tell(found)
    pd.testing.assert_frame_equal(other.results(), found)


def test_the_command_writes_results_that_another_campaign_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    OLD.drop(columns="yield", errors="ignore").to_csv("a.csv", index=False)
    assert run(app, ["campaign", "new", "a.csv", "--objective", "yield"]).exit_code == 0
    assert run(app, ["campaign", "ask", "-n", "4", "--output", "plate.csv"]).exit_code == 0
    plate = pd.read_csv("plate.csv", dtype=str).assign(**{"yield": [0.1, 1 / 3, 7.0, np.nan]})
    plate.to_csv("plate.csv", index=False)
    told = run(app, ["campaign", "tell", "plate.csv"])
    assert told.exit_code == 0, told.output
    done = run(app, ["campaign", "results", "--output", "results.csv"])
    assert "4 rows" in done.output
    assert run(app, ["campaign", "new", "a.csv", "--objective", "yield", "--folder", "second"]).exit_code == 0
    assert "3 measurements and 1 failed" in run(app, ["campaign", "tell", "results.csv", "--folder", "second"]).output
    again = run(app, ["campaign", "results", "--folder", "second"])
    assert again.output == Path("results.csv").read_text()
