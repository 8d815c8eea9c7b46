"""Results beyond a limit of detection, such as <0.5: they are taken as the limit, and their signs are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from problems import OFF_SCALE
from test_campaign import frame, policy
from test_campaign_cli import RUNNER, refused, run

import torchbandits as tb
from torchbandits.campaigns import outcome_campaign
from torchbandits.cli import app
from torchbandits.errors import ArgumentError, DiagnosticWarning
from torchbandits.journal import Journal

pytestmark = OFF_SCALE

CELLS = ["<0.5", "7.25", ">100", "≥ 100", "", "≤0.5", "< 0.5", "<=0.5", ">=100", "-3e1"]
VALUES = [0.5, 7.25, 100, 100, np.nan, 0.5, 0.5, 0.5, 100, -30]
KEPT = ["<0.5", 7.25, ">100", ">100", None, "<0.5", "<0.5", "<0.5", ">100", -30.0]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a policy that is never fitted."""
    monkeypatch.setattr("torchbandits.campaigns.campaign.auto", policy)
    monkeypatch.setattr(outcome_campaign, "auto", policy)


def campaign(table: Any = None, **options: Any) -> tb.Campaign:
    return tb.Campaign(frame() if table is None else table, "yield", **options)


def told(cells: list[Any], first: int = 0, **others: Any) -> pd.DataFrame:
    """Results of the rows from a number on."""
    return pd.DataFrame({"id": [f"{first + i:03d}" for i in range(len(cells))], "yield": cells, **others})


def kept(c: tb.Campaign) -> list[Any]:
    return [None if pd.isna(cell) else cell for cell in c.results()["yield"]]


def written(path: Path, content: pd.DataFrame) -> Path:
    if path.suffix == ".xlsx":
        # As typed into a spreadsheet, in which numbers are no texts.
        content.map(lambda cell: pd.to_numeric(cell, errors="coerce") if cell == "7.25" else cell).to_excel(path, index=False)
    elif path.suffix == ".parquet":
        content.to_parquet(path)
    else:
        content.to_csv(path, index=False)
    return path


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize("kind", ["table", "results.csv", "results.xlsx", "results.parquet"])
def test_limits_are_taken_as_numbers_and_their_signs_are_kept(tmp_path: Path, kind: str):
    c, results = campaign(), told(CELLS)
    said = str(c.tell(results if kind == "table" else written(tmp_path / kind, results)))
    assert "9 measurements and 1 failed evaluation told." in said
    assert "7 results are limits of detection and are taken as 0.5 and 100." in said
    assert kept(c) == KEPT
    same = campaign()
    same.tell(told(VALUES))
    assert c.bandit.best_arm() == same.bandit.best_arm()
    assert c.ask(4).equals(same.ask(4))
    pd.testing.assert_frame_equal(c.best(9), same.best(9))


def test_numbers_and_texts_may_be_mixed_in_a_table_of_pandas():
    c = campaign()
    said = c.tell(told([7.25, "<0.5", None, 8, "11"]))
    assert "1 result is a limit of detection and is taken as 0.5." in str(said)
    assert kept(c) == [7.25, "<0.5", None, 8.0, 11.0]
    with pytest.raises(ArgumentError, match="a column of mixed types, which must be numbers or texts"):
        c.tell(told([7.25, "eight"], first=8))


@pytest.mark.parametrize("separator", [";", "\t"])
def test_limits_with_decimal_commas(tmp_path: Path, separator: str):
    path, c = tmp_path / "results.csv", campaign()
    path.write_text("id;yield\n001;<0,25\n002;1,5\n003;≥ 2,75\n".replace(";", separator))
    c.tell(path)
    assert kept(c) == ["<0.25", 1.5, ">2.75"]
    # No other number tells the mark.
    path.write_text("id;yield\n004;<0,25\n".replace(";", separator))
    c.tell(path)
    assert kept(c)[3] == "<0.25"


@pytest.mark.parametrize(
    ("cell", "hint"),
    [
        ("<", "Write a result beyond a limit of detection as <0.5 or >100."),
        ("<-", "Write a result beyond a limit"),
        ("<0.5 mg", "Write numbers without units, percent signs and separators of thousands. Write a result beyond a limit"),
        ("<0.5%", "Write numbers without units"),
        ("<0,5", "Write decimals with a point. Write a result beyond a limit"),
        ("<>0.5", "Write a result beyond a limit"),
        ("><0.5", "Write a result beyond a limit"),
        ("=<0.5", "leave the cell empty where the evaluation failed. Nothing was told."),
        ("<1e400", "Write a result beyond a limit"),
        ("<nan", "Write a result beyond a limit"),
        ("<LOD", "Write a result beyond a limit"),
        ("<yes", "Write a result beyond a limit"),
        ("0.5<", "Write numbers without units"),
    ],
)
def test_odd_limits_are_named_with_how_to_write_them(cell: str, hint: str):
    c = campaign()
    with pytest.raises(ArgumentError) as caught:
        c.tell(told(["2.5", cell]))
    assert f"row 1: {cell!r}" in str(caught.value)
    assert hint in str(caught.value)
    assert not len(c.results())


@pytest.mark.parametrize("cells", [("<0.5", ">100"), (">0.5", "<0.5"), (">3", ">100", "<50"), ("<9", "<50", "5", ">20")])
def test_limits_of_a_row_that_contradict_each_other_are_refused(cells: tuple[str, ...]):
    c = campaign()
    results = pd.DataFrame({"id": ["001", *["000"] * len(cells)], "yield": ["7", *cells]})
    named = r"measured: '000' is .\d.* \(row \d\) and .\d.* \(row \d\), which cannot both be. Correct one of them."
    with pytest.raises(ArgumentError, match=named):
        c.tell(results)
    assert not len(c.results())


def test_limits_between_which_there_is_a_value_do_not_contradict_each_other():
    c = campaign()
    c.tell(pd.DataFrame({"id": ["000", "000", "001", "001"], "yield": [">3", "<60", "5", "2"]}))
    assert kept(c) == [">3", 5.0, 2.0]
    c.tell(told(["<4", ">4"]))
    assert kept(c)[3:] == ["<4", ">4"]


def test_words_are_no_limits():
    c = campaign()
    with pytest.raises(ArgumentError, match="row 1: '<no'"):
        c.tell(told(["yes", "<no"]))


def test_a_variance_is_no_limit():
    c = campaign(policy=None, noise_std=0.5)
    with pytest.raises(
        ArgumentError, match=r"column 'var', contains a value that is not a finite number in row 0: '<0\.1'"
    ) as caught:
        c.tell(told(["2.5", "3"], var=["<0.1", "0.2"]), noise_var="var")
    assert "limit of detection" not in str(caught.value)


# ---------------------------------------------------------------------- history, files and journals


@pytest.mark.parametrize("kind", ["table", "candidates.csv", "candidates.xlsx", "candidates.parquet"])
def test_history_may_have_limits(tmp_path: Path, kind: str):
    table = frame().assign(**{"yield": ["<0.5", "7.25", ">100", *[None] * 57]})
    table = table if kind == "table" else written(tmp_path / kind, table)
    c = campaign(table, journal=tmp_path / "journal")
    assert kept(c) == ["<0.5", 7.25, ">100"]
    assert c.bandit.pulls == 3
    c.close()
    again = campaign(table, journal=tmp_path / "journal")
    assert kept(again) == ["<0.5", 7.25, ">100"]
    assert again.bandit.pulls == 3


def test_an_odd_cell_of_the_history_is_named(tmp_path: Path):
    table = frame().assign(**{"yield": ["<0.5", "7.25", "n.d.", *[None] * 57]})
    with pytest.raises(
        ArgumentError, match=r"column 'yield', contains a value .* in line 4: 'n\.d\.'\. Correct it, or leave the cell"
    ):
        campaign(written(tmp_path / "candidates.csv", table))


def test_history_with_decimal_commas(tmp_path: Path):
    path = tmp_path / "candidates.csv"
    frame().assign(**{"yield": ["<0,5", "7,25", *[""] * 58]}).to_csv(path, index=False, sep=";", decimal=",")
    assert kept(campaign(path)) == ["<0.5", 7.25]


def test_a_resumed_campaign_keeps_the_signs_and_a_file_is_told_once(tmp_path: Path):
    path = written(tmp_path / "results.csv", told(CELLS))
    c = campaign(journal=tmp_path / "journal")
    c.tell(path)
    picks = c.ask(3)
    c.close()
    for checkpoint in (True, False):
        if not checkpoint:
            Journal(tmp_path / "journal").checkpoint_path.unlink()
        c = campaign(journal=tmp_path / "journal")
        assert kept(c) == KEPT
        assert c.ask(3).equals(picks)
        said = str(c.tell(path))
        assert "0 measurements and 0 failed evaluations told. 10 rows had been told before" in said
        assert "limit" not in said
        c.close()


def test_a_killed_tell_leaves_no_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    c = campaign(journal=tmp_path / "journal")
    c.tell(told(["1", "2"]))
    monkeypatch.setattr(c.bandit, "tell", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        c.tell(told(["<0.5"], first=2))
    monkeypatch.undo()
    monkeypatch.setattr("torchbandits.campaigns.campaign.auto", policy)
    c.tell(told(["0.5"], first=2))
    c.close()
    assert kept(campaign(journal=tmp_path / "journal")) == [1.0, 2.0, 0.5]


def test_a_journal_without_limits_has_no_further_entry_and_one_of_before_is_read(tmp_path: Path):
    c = campaign(journal=tmp_path / "journal")
    c.tell(told(["1", "2", "<0.5"]))
    c.tell(told(["3", "4"], first=4))
    c.close()
    records = list(Journal(tmp_path / "journal").records())
    signs = [record.get("beyond") for record in records if record["kind"] == "tell"]
    assert signs == [[[0, 0, -1]], None]
    lines = (tmp_path / "journal").read_text().splitlines()
    assert sum('"beyond"' in line for line in lines) == 1
    # As earlier versions wrote it.
    plain = campaign(journal=tmp_path / "plain")
    plain.tell(told([1.0, 2.0, 0.5]))
    plain.close()
    assert '"beyond"' not in (tmp_path / "plain").read_text()
    assert kept(campaign(journal=tmp_path / "plain")) == [1.0, 2.0, 0.5]


def test_results_may_be_told_to_another_campaign(tmp_path: Path):
    c = campaign()
    c.tell(told(CELLS))
    c.tell(told(["<0.1", 0.1 + 0.2], first=20))
    other, third = campaign(), campaign()
    other.tell(c.results())
    assert kept(other) == kept(c)
    third.tell(written(tmp_path / "results.parquet", c.results().astype({"yield": str}).replace({"yield": {"nan": None}})))
    assert kept(third) == kept(c)


def test_commands_write_limits_that_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    frame().to_csv("candidates.csv", index=False, sep=";", decimal=",")
    run("new", "candidates.csv", "--objective", "yield")
    Path("results.csv").write_text("id;yield\n001;<0,5\n002;7,25\n003;>100\n004;\n")
    assert "2 results are limits of detection and are taken as 0.5 and 100." in run("tell", "results.csv")
    for name in ("all.csv", "all.xlsx"):
        run("results", "--output", name)
        other = ("--folder", name.replace(".", "-"))
        run("new", "candidates.csv", "--objective", "yield", *other)
        run("tell", name, *other)
        assert run("results", *other) == run("results")
    cells = [line.split(";") for line in run("results").splitlines()]
    assert [line[-1] for line in cells] == ["yield", "<0,5", "7,25", ">100", ""]


def test_only_limits_are_written_with_decimal_commas_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    frame().to_csv("candidates.csv", index=False, sep=";", decimal=",")
    run("new", "candidates.csv", "--objective", "yield")
    Path("results.csv").write_text("id;yield\n001;<0,5\n002;<0,5\n")
    run("tell", "results.csv")
    run("results", "--output", "all.csv")
    run("new", "candidates.csv", "--objective", "yield", "--folder", "other")
    assert "the candidate's value counts" not in run("tell", "all.csv", "--folder", "other")


def test_limits_may_be_added_with_new_candidates(tmp_path: Path):
    table = frame(40).assign(**{"yield": [2.5, 3.0, *[np.nan] * 38]})
    more = frame(60)[40:].assign(**{"yield": ["<0.5", "4.5", *[None] * 18]})
    c = campaign(table, journal=tmp_path / "journal")
    assert c.extend(more) == 20
    c.close()
    c = campaign(table, journal=tmp_path / "journal")
    assert kept(c) == [2.5, 3.0, "<0.5", 4.5]
    rows = frame(62)[60:].assign(**{"id": ["X1", "X2"], "yield": [5.5, np.nan]})
    assert c.extend(rows) == 2
    assert kept(c) == [2.5, 3.0, "<0.5", 4.5, 5.5]


# ---------------------------------------------------------------------- corrections and repeats


def test_a_limit_is_corrected_by_a_number(tmp_path: Path):
    c = campaign(journal=tmp_path / "journal")
    c.tell(told([">100", "7", "<0.5"]))
    assert str(c.correct("000", 180.0)).startswith("000 is corrected: >100 before, 180 now.")
    assert kept(c) == [180.0, 7.0, "<0.5"]
    assert c.best(1)["measured"].iloc[0] == 180
    c.correct("002", None)
    assert kept(c) == [180.0, 7.0]
    c.close()
    assert kept(campaign(journal=tmp_path / "journal")) == [180.0, 7.0]


def test_a_limit_is_no_correction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    frame().to_csv("candidates.csv", index=False)
    run("new", "candidates.csv", "--objective", "yield")
    written(Path("results.csv"), told(["1", "2"]))
    run("tell", "results.csv")
    said = refused("correct", "001", "<0.5")
    assert "a limit of detection is no correction: take the result back (none), and tell it as <0.5 in a file." in said
    run("correct", "001", "none")
    written(Path("results.csv"), told(["<0.5"], first=1))
    run("tell", "results.csv")
    assert run("results").splitlines()[2].endswith(",<0.5")


def test_a_row_may_have_limits_and_numbers(tmp_path: Path):
    c = campaign(journal=tmp_path / "journal")
    c.tell(told(["<0.5", "3"]))
    c.tell(
        told(
            [
                "0.7",
            ]
        )
    )
    c.tell(
        told(
            [
                "<0.5",
            ]
        )
    )
    c.tell(
        told(
            [
                "0.5",
            ]
        )
    )
    assert kept(c) == ["<0.5", 3.0, 0.7, "<0.5", 0.5]
    best = c.best(2).set_index("id")
    assert best.loc["000", "times"] == 4
    assert best.loc["000", "measured"] == pytest.approx(0.55)
    with pytest.raises(ArgumentError, match=r"several results, <0\.5, 0\.7, 0\.5: say by was="):
        c.correct("000", 0.6)


def test_a_number_in_place_of_an_equal_limit_in_a_file_is_not_new(tmp_path: Path):
    """Where limits were typed as numbers before they were told as limits, or the other way round."""
    c = campaign()
    c.tell(told(["<0.5", "3", "0.5"]))
    said = str(c.tell(written(tmp_path / "results.csv", told(["0.5", "3", "<0.5"]))))
    assert "0 measurements and 0 failed evaluations told. 3 rows had been told before" in said
    assert kept(c) == ["<0.5", 3.0, 0.5]


def test_limits_may_be_told_with_their_block():
    c = campaign(policy=tb.auto())
    c.tell(told([3, "<0.5", 4, 5, "<0.5", 6], plate=["a", "a", "a", "b", "b", "b"]), block="plate")
    assert kept(c) == [3.0, "<0.5", 4.0, 5.0, "<0.5", 6.0]
    assert c.results()["block"].tolist() == ["a"] * 3 + ["b"] * 3


@pytest.mark.parametrize("kind", ["table", "results.csv"])
def test_a_value_beyond_a_limit_that_was_told_is_named(tmp_path: Path, kind: str):
    c = campaign()
    c.tell(told([">100", "7", "<0.5"]))
    results = told(["180", "8", "0.9"])
    said = str(c.tell(results if kind == "table" else written(tmp_path / kind, results)))
    mend = "correct('000', None, was=100), torchbandits campaign correct 000 none --was 100."
    assert (
        "'000' was told as >100 before, and is 180 now: both count. If the new value replaces the limit, take the limit back: "
        f"{mend}" in said
    )
    assert said.count("'000' was told") == 1
    # This one agrees with the limit as far as noise goes.
    assert "<0.5" not in said


# ---------------------------------------------------------------------- limits that tell nothing


def test_a_limit_above_all_other_results_is_left_out(tmp_path: Path):
    path = written(tmp_path / "results.csv", told(["<20", "7", "<0.5", "<30"]))
    c = campaign(journal=tmp_path / "journal")
    c.plan(["000"])
    said = str(c.tell(path))
    assert "2 measurements and 0 failed evaluations told." in said
    assert (
        "2 results left out: '000' is <20 (and 1 more row), which tells nothing, since no other result is known to be above "
        "20. Measure it with a lower limit or give it up (forget, torchbandits campaign forget)."
    ) in said
    assert "1 result is a limit of detection and is taken as 0.5." in said
    assert kept(c) == [7.0, "<0.5"]
    assert c.open == ["000"]
    # Once another result is above the limit, it tells something.
    c.tell(told(["25"], first=8))
    said = str(c.tell(path))
    assert "1 measurement and 0 failed evaluations told." in said
    assert "1 result is a limit of detection and is taken as 20." in said
    assert "1 result left out: '003' is <30, which" in said
    assert kept(c) == [7.0, "<0.5", 25.0, "<20"]


def test_a_limit_below_all_other_results_is_left_out():
    c = campaign(minimize=True)
    said = str(c.tell(told([">2", "7", "8"])))
    assert (
        "'000' is >2, which tells nothing, since no other result is known to be below 2. Measure it with a higher limit" in said
    )
    assert kept(c) == [7.0, 8.0]
    only = campaign()
    assert "0 measurements and 0 failed evaluations told." in str(c.tell(told([">3"])))
    only.tell(told(["<0.5", "<0.5", ">3"]))
    assert kept(only) == ["<0.5", "<0.5", ">3"]


def test_a_limit_of_the_history_that_tells_nothing_is_left_out(tmp_path: Path):
    table = frame().assign(**{"yield": ["<20", "7.25", "3", *[None] * 57]})
    with pytest.warns(DiagnosticWarning, match="1 result left out: '000' is <20, which tells nothing"):
        c = campaign(table, journal=tmp_path / "journal")
    assert kept(c) == [7.25, 3.0]
    c.tell(told([30.0], first=9))
    c.close()
    c = campaign(table, journal=tmp_path / "journal")
    assert kept(c) == [7.25, 3.0, 30.0, "<20"]


# ---------------------------------------------------------------------- what is said


@pytest.mark.parametrize(("cell", "sign", "minimize"), [(">100", "above 100", False), ("<0.5", "below 0.5", True)])
def test_rows_at_the_good_limit_are_told_apart_by_nothing(tmp_path: Path, cell: str, sign: str, minimize: bool):
    c = tb.Campaign(frame(), "yield", minimize=minimize, policy=tb.auto(), journal=tmp_path / "journal")
    c.tell(told(["1", cell, "3", cell, "5", "7", cell]))
    rows = "('001', '003', '006')"
    said = f"Of 3 rows it is only known that 'yield' is {sign} {rows}, and the model cannot tell which of them is best:"
    assert said in c.doubt()
    assert said in str(c.explain())
    assert said not in str(c.explain(where="temp > 0"))
    page = c.report(tmp_path / "page.html").read_text()
    assert "7 measurements of yield (3 beyond a limit of detection)" in page
    assert "and the model cannot tell which of them is best" in page
    c.correct("001", 200.0 if not minimize else 0.1)
    c.correct("003", 150.0 if not minimize else 0.2)
    assert "it is only known" not in c.doubt()
    other = tb.Campaign(frame(), "yield", minimize=not minimize)
    other.tell(told(["1", cell, "3", cell, "5"]))
    assert "it is only known" not in other.doubt()


def test_a_policy_without_a_model_says_so_too():
    c = campaign(policy=tb.uniform())
    c.tell(told(["1", ">100", ">200"]))
    assert c.doubt().startswith("Of 2 rows it is only known that 'yield' is above 100 and 200 ('001', '002')")


def test_results_that_are_all_at_a_limit_teach_nothing():
    c = tb.Campaign(frame(), "yield", policy=tb.auto())
    said = str(c.tell(told(["<0.5"] * 4)))
    assert (
        "All 4 values of 'yield' so far are 0.5, a limit of detection: nothing can be learned until a value is within the range"
        in said
    )
    assert "right column" not in said
    assert "any other row may be better" in str(c.explain())
    assert len(c.ask(3)) == 3


def test_best_so_far_is_followed_by_what_limits_leave_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    frame().to_csv("candidates.csv", index=False)
    run("new", "candidates.csv", "--objective", "yield")
    written(Path("results.csv"), told(["1", ">100", ">100", "2"]))
    assert "Of 2 rows it is only known that 'yield' is above 100" in run("tell", "results.csv")
    assert "Of 2 rows it is only known" in RUNNER.invoke(app, ["campaign", "best"]).stderr


def test_limits_that_all_later_results_share_are_named():
    """As after a change to a more sensitive method."""
    c = campaign()
    c.tell(told(["<5", "<5", "<5"]))
    assert "every other result" not in c.doubt()
    c.tell(told(["3", "2", "<0.5", "4"], first=2))
    said = (
        "Of 2 rows it is only known that 'yield' is below 5 ('000', '001'), and so is every other result: taken as the limit, "
        "they count as the largest of all. Measure with a lower limit and correct the results, or take them back"
    )
    assert said in c.doubt()
    assert said in str(c.explain())
    c.tell(told([7], first=10))
    assert "every other result" not in c.doubt()
    diluted = campaign()
    diluted.tell(told([">100", ">100"]))
    diluted.tell(told(["180", "150"], first=2))
    assert "every other result: taken as the limit, they count as the least of all." in diluted.doubt()
    assert "which of them is best" not in diluted.doubt()
    one = campaign(minimize=True)
    one.tell(told([">5"]))
    one.tell(told(["7", "8"], first=2))
    assert "Of 1 row it is only known that 'yield' is above 5 ('000'), and so is every other result: taken" in one.doubt()
    assert "it counts as the least of all. Measure with a higher limit (of a diluted sample, for example)" in one.doubt()


# ---------------------------------------------------------------------- several outcomes


def several(**options: Any) -> tb.OutcomeCampaign:
    return tb.OutcomeCampaign(frame(), ["yield", "cost"], minimize=["cost"], **options)


def test_outcomes_have_limits_of_their_own(tmp_path: Path):
    c = several(journal=tmp_path / "journal")
    results = told(["<0.5", "7", ">100", None], cost=["3", "<2", "5", "<2"])
    assert "4 results are limits of detection and are taken as 0.5, 2 and 100." in str(c.tell(results))
    c.close()
    c = several(journal=tmp_path / "journal")
    found = c.results()
    assert found["yield"].tolist()[:3] == ["<0.5", 7.0, ">100"]
    assert found["cost"].tolist() == [3.0, "<2", 5.0, "<2"]
    assert "Of 2 rows it is only known that 'cost' is below 2 ('001', '003')" in c.doubt()
    assert "0 measurements" in str(c.tell(written(tmp_path / "results.csv", results)))
    assert "<2" in str(c.correct("001", {"cost": 1.5}))
    assert c.results()["cost"].tolist() == [3.0, 1.5, 5.0, "<2"]
    assert c.results()["yield"].tolist()[:3] == ["<0.5", 7.0, ">100"]


def test_a_limit_that_leaves_open_whether_another_one_is_kept_is_left_out():
    c = several(at_least={"yield": 80.0}, at_most={"cost": 4.0})
    said = str(c.tell(told(["<90", "85", "<70", "95"], cost=["3", ">3", ">9", "2"])))
    assert "1 result left out: 'yield' of '000' is <90, which tells nothing, since it may keep the limit of 80 or not." in said
    assert "1 result left out: 'cost' of '001' is >3, which tells nothing, since it may keep the limit of 4 or not." in said
    found = c.results().replace({np.nan: None})
    assert found["yield"].tolist() == [None, 85.0, "<70", 95.0]
    assert found["cost"].tolist() == [3.0, None, ">9", 2.0]


def test_known_outcomes_have_no_limits(tmp_path: Path):
    table = frame().assign(price=["<5", *["7"] * 59])
    with pytest.raises(
        ArgumentError, match="column 'price', is a limit of detection: a column with a value in every row is known"
    ):
        tb.OutcomeCampaign(table, ["yield", "price"], minimize=["price"])
    c = tb.OutcomeCampaign(table, ["yield", "price"], minimize=["price"], columns={"price": "measured"})
    assert c.results()["price"].tolist()[:2] == ["<5", 7.0]


def test_signs_are_plain_numbers_in_the_journal(tmp_path: Path):
    c = several(journal=tmp_path / "journal")
    c.tell(told(["<0.5", "7"], cost=["3", "<2"]))
    c.close()
    assert json.dumps([[-1, 0], [0, -1]]).replace(" ", "") in (tmp_path / "journal").read_text().replace(" ", "")
