"""Rows taken out of a campaign and put back, and what is expected of any row."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from problems import OFF_SCALE
from test_campaign import campaign, frame, measured, yields
from test_campaign_cli import refused, run

import torchbandits as tb
from torchbandits.errors import ArgumentError, DataError, StateError, UnsupportedError

pytestmark = OFF_SCALE


def outcomes(table: Any = None, **options: Any) -> tb.OutcomeCampaign:
    return tb.OutcomeCampaign(frame() if table is None else table, ["yield", "cost"], **options)


def told(c: tb.Campaign) -> tb.Campaign:
    rows = frame()[3:9].assign(cost=1.0)
    c.tell(rows[["id"]].assign(**{name: yields(rows) + place for place, name in enumerate(c.outcomes)}))
    return c


@pytest.mark.parametrize("several", [False, True])
def test_excluded_rows_stay_out_until_they_are_put_back(several: bool, tmp_path: Path):
    begin, path = outcomes if several else campaign, tmp_path / "lab"
    c = told(begin(journal=path))
    first = c.ask(4, repeats=False)["id"].tolist()
    # One of them is open, one was measured, and one is neither.
    other = next(text for text in frame()["id"] if text not in (*first, *frame()["id"][3:9]))
    assert c.exclude([first[1], "004", other, other]) == 3
    assert c.exclude([first[1]]) == 0
    assert c.excluded == sorted([first[1], "004", other])
    assert c.open == [first[0], *first[2:]]
    assert "excluded    3 rows" in str(c)
    assert "004" in c.predict(["004"])["id"].tolist()
    c.close()
    (tmp_path / "lab.checkpoint").unlink()
    c = begin(journal=path)
    assert c.excluded == sorted([first[1], "004", other])
    assert c.open == [first[0], *first[2:]]
    assert not {first[1], "004", other} & set(c.ask(40)["id"])
    c.forget()
    assert c.include([other, first[0]]) == 1
    assert c.excluded == sorted([first[1], "004"])
    assert c.include() == 2
    assert c.excluded == []
    assert {first[1], other} <= set(c.ask(54, repeats=False)["id"])


def test_a_condition_excludes_the_rows_of_now_and_not_those_of_later(tmp_path: Path):
    path = tmp_path / "lab"
    c = told(campaign(frame()[:40], journal=path, candidates="temp < 110"))
    dmf = (frame()["solvent"] == "DMF").to_numpy()
    assert c.exclude(where={"solvent": "DMF"}) == dmf[:40].sum()
    c.extend(frame()[40:].reset_index(drop=True))
    c.close()
    c = campaign(frame()[:40], journal=path)
    hot = (frame()["temp"] >= 110).to_numpy()
    out = hot | (dmf & (np.arange(60) < 40))
    found = c.ask(int((~out).sum()) - len({3, 4, 5, 6, 7, 8} - set(np.flatnonzero(out))), repeats=False)
    assert not set(found["id"].astype(int)) & set(np.flatnonzero(out))
    assert set(np.flatnonzero(dmf & ~hot & (np.arange(60) >= 40))) <= set(found["id"].astype(int))
    # On rows with these ids, which are hot and were never on offer.
    assert c.include(frame()["id"][:20].tolist(), where="solvent == 'DMF'") == dmf[:20].sum()


def test_a_row_with_the_same_features_takes_the_place_of_an_excluded_one():
    twice = pd.concat([frame()[:20], frame()[:20].assign(id=[f"copy{i}" for i in range(20)])], ignore_index=True)
    c = told(campaign(twice))
    (first,) = c.ask(1, repeats=False)["id"]
    c.exclude([first])
    assert c.open == []
    assert c.ask(1, repeats=False)["id"].tolist() == [f"copy{int(first)}"]


def test_excluded_rows_are_no_rivals_of_the_best_one():
    c = told(campaign(policy=None))
    assert c.explain().rivals > 0
    row = int(c.explain().best.index[0])
    c.exclude(where=frame()["id"] != f"{row:03d}")
    assert c.explain().rivals == 0
    assert c.best(1)["id"].tolist() == [f"{row:03d}"]


def test_what_can_not_be_excluded_changes_nothing(tmp_path: Path):
    c = told(campaign(journal=tmp_path / "lab", candidates="temp < 110"))
    opened = c.ask(3, repeats=False)["id"].tolist()
    with pytest.raises(ArgumentError, match=r"ids: '3' is not in the table\. Does '3' mean '003'\?"):
        c.exclude(["3"])
    with pytest.raises(ArgumentError, match="ids: 'x', '061' are not in the table"):
        c.exclude([opened[0], "x", "061"])
    with pytest.raises(ArgumentError, match="allows are excluded then, and no row is left to select"):
        c.exclude(where="temp < 110")
    with pytest.raises(ArgumentError, match="needs the ids of the rows, or a condition"):
        c.exclude()
    with pytest.raises(ArgumentError, match="ids must be a list of ids, got str"):
        c.exclude("003")
    for wrong in ({"003": 1}, frame(), np.array("003")):
        with pytest.raises(ArgumentError, match="ids must be a list of ids, got"):
            c.exclude(wrong)
    with pytest.raises(ArgumentError, match="where: no row of the table fulfils"):
        c.exclude(where="temp > 1000")
    with pytest.raises(ArgumentError, match="ids: 'x' is not in the table"):
        c.include(["x"])
    assert (c.open, c.excluded) == (opened, [])
    assert not (tmp_path / "lab.excluded.npy").exists()
    c.close()
    with pytest.raises(StateError, match="was closed"):
        c.exclude(["003"])


def test_a_file_of_excluded_rows_is_whole_and_of_this_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, kept = tmp_path / "lab", tmp_path / "lab.excluded.npy"
    c = told(campaign(journal=path))
    opened = c.ask(2, repeats=False)["id"].tolist()

    def full(*_: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr("torchbandits.campaigns.offer.np.save", full)
        with pytest.raises(DataError, match="disk full"):
            c.exclude([opened[0]])
    assert (c.open, c.excluded) == (opened, [])
    c.exclude(["010"])
    c.close()
    whole = kept.read_bytes()
    for bad in (b"", whole[:-3], b"something else"):
        kept.write_bytes(bad)
        with pytest.raises(DataError, match="does not hold the excluded rows of a campaign: restore it from a copy"):
            campaign(journal=path)
    for array in (np.array([3, 1]), np.array([-1]), np.array([1.0]), np.array([[1]]), np.array([3, 60])):
        np.save(kept, array)
        with pytest.raises(DataError, match="does not hold the excluded rows"):
            campaign(journal=path)
    kept.write_bytes(whole)
    assert campaign(journal=path).excluded == ["010"]
    # Another campaign with a journal of the same name has all its rows.
    for file in tmp_path.glob("lab*"):
        if file != kept:
            file.unlink()
    c = campaign(journal=path)
    assert c.excluded == []
    assert not kept.exists()
    c.close()


def test_ids_may_be_an_array_a_column_or_a_set():
    c = told(campaign())
    assert c.exclude(frame()["id"][20:23]) == 3
    assert c.exclude(frame()["id"][22:25].to_numpy()) == 2
    assert c.exclude({"030", "031"}) == 2
    assert c.excluded == ["020", "021", "022", "023", "024", "030", "031"]
    assert c.predict(frame()["id"][3:5])["id"].tolist() == ["003", "004"]
    c.forget(c.ask(2, repeats=False)["id"])
    assert c.open == []
    numbered = campaign(frame().drop(columns="id"))
    assert numbered.plan(torch.tensor([7, 9]))["row"].tolist() == [7, 9]


def test_rows_added_later_are_left_where_all_others_are_excluded(tmp_path: Path):
    path = tmp_path / "lab"
    c = told(campaign(frame()[:40], journal=path))
    c.extend(frame()[40:].reset_index(drop=True))
    assert c.exclude(where=np.arange(60) < 40) == 40
    assert c.exclude(["041"]) == 1
    c.close()
    c = campaign(frame()[:40], journal=path)
    assert len(c.excluded) == 41
    assert {int(text) for text in c.ask(19, repeats=False)["id"]} == {40, *range(42, 60)}
    c.close()


def test_a_row_is_given_up_that_was_excluded_before_a_kill(tmp_path: Path):
    path = tmp_path / "lab"
    c = told(campaign(journal=path))
    opened = c.ask(2, repeats=False)["id"].tolist()
    c.close()
    # Killed between the two writes: the row is in the file, and its pick in the journal.
    np.save(tmp_path / "lab.excluded.npy", np.array([int(opened[0])]))
    c = campaign(journal=path)
    assert (c.excluded, c.open) == ([opened[0]], [opened[1]])
    c.close()
    c = campaign(journal=path)
    assert c.open == [opened[1]]
    c.close()


def test_a_campaign_that_can_not_resume_leaves_its_journal_free(tmp_path: Path):
    path = tmp_path / "lab"
    told(campaign(journal=path)).close()
    (tmp_path / "lab.excluded.npy").write_bytes(b"x")
    with pytest.raises(DataError, match="restore it from a copy"):
        campaign(journal=path)
    (tmp_path / "lab.excluded.npy").unlink()
    campaign(journal=path).close()


def test_too_many_rows_are_refused_with_what_would_help():
    c = told(campaign())
    with pytest.raises(ArgumentError, match=r"60 of the table can be selected: ask for fewer\."):
        c.ask(61)
    c.exclude(["020"])
    with pytest.raises(ArgumentError, match=r"59 .* can be selected: ask for fewer, or put excluded rows back by include\(\)"):
        c.ask(60)
    with pytest.raises(ArgumentError, match=r"or widen the condition, or put excluded rows back by include\(\)"):
        c.ask(60, where="temp < 110")


def test_a_file_beside_the_journal_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    c = told(campaign(journal=tmp_path / "lab"))
    calls: list[str] = []

    def noted(name: str, own: Any, *given: Any) -> Any:
        calls.append(name)
        return own(*given)

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, partial(noted, name, getattr(os, name)))
    c.exclude(["010"])
    assert calls == ["fsync", "replace"]


def test_a_condition_given_to_a_resumed_campaign_holds_from_then_on(tmp_path: Path):
    path = tmp_path / "lab"
    told(campaign(journal=path, candidates="temp < 110")).close()
    campaign(journal=path, candidates="temp < 60").close()
    c = campaign(journal=path)
    assert c.ask(5)["temp"].max() < 60
    c.close()
    with pytest.raises(ArgumentError, match="holds numbers, and 'hot' is a text"):
        campaign(journal=path, candidates="temp != 'hot'")
    assert campaign(journal=path).ask(5)["temp"].max() < 60
    campaign(journal=path, candidates="").close()
    c = campaign(journal=path)
    c.forget()
    assert len(c.ask(40, repeats=False)) == 40
    c.close()


@pytest.mark.parametrize("several", [False, True])
def test_the_page_counts_excluded_rows(several: bool, tmp_path: Path):
    c = told((outcomes if several else campaign)())
    assert "excluded" not in c.report(tmp_path / "page.html").read_text()
    c.exclude(["020", "021"])
    assert "0 pending rows, 2 excluded rows" in c.report(tmp_path / "page.html").read_text()


def test_what_is_expected_of_any_row():
    c = told(campaign())
    plate = c.ask(3, repeats=False)
    found = c.predict(["050", plate["id"][1], "004", "050"])
    assert found["id"].tolist() == ["050", plate["id"][1], "004"]
    assert list(found.columns) == [*c.best().columns]
    assert found["expected"][1] == pytest.approx(plate["expected"][1], abs=1e-12)
    assert found["times"].tolist() == [0, 0, 1]
    assert found["measured"][2] == pytest.approx(yields(frame())[4])
    assert found["measured"].isna().tolist() == [True, True, False]
    every = c.predict()
    assert every["id"].tolist() == frame()["id"].tolist()
    c.forget()
    marginals = c.bandit.posterior(c.bandit.arms)
    np.testing.assert_allclose(every["expected"], marginals.mean, rtol=1e-9)
    np.testing.assert_allclose(every["deviation"], marginals.variance.sqrt(), rtol=1e-9)
    assert c.predict(where="solvent == 'DMF'")["solvent"].unique().tolist() == ["DMF"]
    assert c.predict(["030", "004"], where="temp > 1 and id == '004'")["id"].tolist() == ["004"]


def test_blocks_of_rows_are_predicted_as_one(monkeypatch: pytest.MonkeyPatch):
    c = told(campaign(minimize=True))
    whole = c.predict()
    monkeypatch.setattr("torchbandits.campaigns.rows_as_arms._BLOCK", 7)
    pd.testing.assert_frame_equal(c.predict(), whole)


def test_a_prediction_needs_a_result_and_a_model():
    with pytest.raises(StateError, match="nothing was measured yet, so that there is no prediction"):
        campaign().predict(["004"])
    with pytest.raises(UnsupportedError, match="the policy of this campaign has none"):
        told(campaign(policy=tb.uniform())).predict(["004"])
    with pytest.raises(ArgumentError, match="ids: 'x' is not in the table"):
        told(campaign()).predict(["x"])


def test_outcomes_of_any_row_are_expected():
    c = told(outcomes())
    found = c.predict(["030", "004"])
    assert found["id"].tolist() == ["030", "004"]
    assert found["times"].tolist() == [0, 1]
    assert np.isfinite(found[["yield expected", "cost deviation"]].to_numpy()).all()


def test_rows_are_excluded_by_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    frame().to_csv("candidates.csv", index=False)
    run("new", "candidates.csv", "--objective", "yield")
    measured(frame()[:6]).to_csv("results.csv", index=False)
    run("tell", "results.csv")
    first = run("ask", "-n", "3").splitlines()[1].split(",")[0]
    assert "2 rows excluded, 2 in all. 2 pending." in run("exclude", first, "007" if first != "007" else "008")
    dmf = int((frame()["solvent"] == "DMF").sum())
    assert "in all" in run("exclude", "--where", "solvent == 'DMF'")
    assert first not in [line.split(",")[0] for line in run("ask", "-n", "20").splitlines()[1:]]
    assert f"{dmf} rows put back" in run("include", "--where", "solvent == 'DMF'")
    run("include", "--all")
    begin = ("new", "candidates.csv", "--objective", "yield")
    assert "only the condition of --candidates has changed" in run(*begin, "--candidates", "solvent == 'DMF'")
    assert "nothing has changed" in run(*begin, "--candidates", "solvent == 'DMF'")
    assert "nothing has changed" in run(*begin)
    run("forget", "--all")
    assert {line.split(",")[3] for line in run("ask", "-n", "10", "--no-repeats").splitlines()[1:]} == {"DMF"}
    run("forget", "--all")
    assert "only the condition" in run(*begin, "--candidates", "")
    assert len(run("ask", "-n", "40", "--no-repeats").splitlines()) == 41
    run("forget", "--all")
    assert "0 rows put back, 0 excluded." in run("include", first)
    assert "give the ids of the rows, or --where" in refused("exclude")
    assert "give the ids of the rows, --where, or --all" in refused("include")
    assert "give the ids of the rows, --where, or --all" in refused("include", first, "--all")
    lines = run("predict", "003", first).splitlines()
    assert [line.split(",")[0] for line in lines] == ["id", "003", first]
    assert len(run("predict").splitlines()) == 61
    assert torch.get_default_dtype() == torch.float32
