"""Campaigns that go on with another table: they have learned what one has that begins with it and is told the same results."""

from __future__ import annotations

import io
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from problems import OFF_SCALE
from test_campaign import campaign, frame, measured, policy, yields
from test_campaign_cli import refused, run

import torchbandits as tb
from torchbandits.errors import ArgumentError, DataError, DiagnosticWarning, StateError, UnsupportedError
from torchbandits.journal import Reading

pytestmark = OFF_SCALE
OLD = frame()[:40]
ALL = pd.concat([OLD[1:], frame()[40:].assign(solvent="THF")], ignore_index=True).sample(frac=1, random_state=0)
ALL = ALL.reset_index(drop=True)
"""Rows in another order, without 000 and with a solvent that is new."""


def noisy(ids: list[str], call: int) -> pd.DataFrame:
    """Results of some rows, told with a block and a variance of their own."""
    rows = frame().set_index("id").loc[ids].reset_index()
    values = yields(rows) + 0.1 * np.random.default_rng(call).normal(size=len(rows))
    return rows[["id"]].assign(**{"yield": values, "plate": f"P{call % 2}", "variance": 0.01 + 0.01 * call})


def told_again(c: tb.Campaign, results: pd.DataFrame, **options: Any) -> tb.Campaign:
    for _, rows in results.groupby("call"):
        c.tell(rows, **options)
    return c


def same(c: tb.Campaign, other: tb.Campaign) -> None:
    """The same results, the same posterior and the same next rows, to the last bit."""
    results = c.results()
    pd.testing.assert_frame_equal(results.drop(columns="call"), other.results().drop(columns="call"))
    assert (results["call"].diff() != 0).tolist() == (other.results()["call"].diff() != 0).tolist()
    pd.testing.assert_frame_equal(c.predict(), other.predict(), check_exact=True)
    assert c.ask(6)["id"].tolist() == other.ask(6)["id"].tolist()


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "auto in blocks": ({"policy": None, "candidates": "temp < 110"}, {"block": "plate"}),
    "smallest per cost": ({"minimize": True, "cost": "price", "policy": tb.per_cost(policy())}, {}),
    "known noise": ({"policy": None, "noise_std": 0.1, "columns": {"dry": "ignore"}}, {"noise_var": "variance"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_renewed_campaign_is_one_that_was_told_the_same_results(case: str, tmp_path: Path):
    options, how = CASES[case]
    old, every = (table.assign(price=table["temp"] / 50) for table in (OLD, ALL))
    seed = lambda: torch.Generator().manual_seed(7)  # noqa: E731
    c = campaign(old[:35], journal=tmp_path / "lab", generator=seed(), **options)
    c.extend(old[35:])
    for call in range(4):
        ids = c.ask(4)["id"].tolist()
        c.tell(noisy([id for id in ids if id != "000"] + ["036"], call), **how)
        c.forget()
    failed = c.ask(2)["id"].tolist()
    c.forget()
    c.tell(pd.DataFrame({"id": failed[:1], "yield": [math.nan], "plate": "P0", "variance": 0.01}), **how)
    first = c.results()["id"][0]
    c.correct(first, 41.5, was=float(c.results()["yield"][0]))
    c.exclude(["000", "007", "008"])
    c.plan(["011", "011", "012"])
    before, opened = (tmp_path / "lab").read_bytes(), c.open
    results = c.results().assign(variance=lambda t: 0.01 + 0.01 * (t["call"] - 1))

    renewed = c.renew(every, tmp_path / "second")
    assert renewed.open == opened == ["011", "011", "012"]
    assert renewed.excluded == [id for id in every["id"] if id in ("007", "008")]
    assert "THF" in renewed.columns["solvent"].categories
    fresh = campaign(every, generator=seed(), **options)
    how = how | ({"block": "block"} if "block" in how else {})
    # A failed evaluation has no variance.
    told_again(fresh, results, **how)
    fresh.exclude(["007", "008"])
    fresh.plan(opened)
    renewed_results = renewed.results()
    for _ in range(2):
        same(renewed, fresh)
        renewed.close()
        renewed = campaign(every, journal=tmp_path / "second", **options)
    (tmp_path / "second.checkpoint").unlink()
    renewed.close()
    renewed = campaign(every, journal=tmp_path / "second", **options)
    pd.testing.assert_frame_equal(renewed.results(), renewed_results)
    assert renewed.open[:3] == opened
    assert Reading(tmp_path / "second").out == len(renewed.open)
    # The campaign so far is as it was, and can go on.
    assert (tmp_path / "lab").read_bytes() == before
    with pytest.raises(StateError, match="closed"):
        c.ask(1)
    again = campaign(old[:35], journal=tmp_path / "lab", **options)
    assert (again.open, again.excluded) == (opened, ["000", "007", "008"])
    pd.testing.assert_frame_equal(again.results(), results.drop(columns="variance"))


def begun(path: Path, table: pd.DataFrame = OLD, **options: Any) -> tb.Campaign:
    c = campaign(table, journal=path, **options)
    c.tell(measured(frame()[3:9]))
    c.ask(2, repeats=False)
    return c


def test_corrected_results_are_known_in_the_new_campaign_too(tmp_path: Path):
    """Wrong values of the table and of files, of which one was taken back, and fits of the kernel."""
    old, every = (table.assign(**{"yield": yields(table).where(table["id"] < "005")}) for table in (OLD, ALL))
    old.loc[4, "yield"] = every.loc[every["id"] == "004", "yield"] = 800.0
    every.loc[every["id"] == "059", "yield"] = 3.0
    c = campaign(old, journal=tmp_path / "lab")
    wrong = measured(OLD[20:24]).assign(**{"yield": [900.0, *yields(OLD[21:24])]})
    wrong.to_csv(tmp_path / "wrong.csv", index=False)
    c.tell(tmp_path / "wrong.csv")
    c.correct("004", 44.0)
    c.correct("020", None)
    c.bandit.fit_kernel_()
    c.tell(measured(OLD[10:13]))
    with pytest.raises(ArgumentError, match="lacks 1 row with results, '000': it needs all rows, old and new ones"):
        c.renew(every, tmp_path / "second")
    c.correct("000", None)
    expected = c.results()
    for k in range(2):
        c = campaign(every, journal=tmp_path / "second") if k else c.renew(every, tmp_path / "second")
        results = c.results()
        assert results["id"].tolist() == [*expected["id"], "059"], "history that is new comes last"
        np.testing.assert_array_equal(results["yield"], [*expected["yield"], 3.0])
        assert c.tell(tmp_path / "wrong.csv").known == 4
        assert c.bandit.posterior.kernel.lengthscale != policy().kernel.lengthscale
        c.close()


def test_limits_of_detection_keep_their_signs(tmp_path: Path):
    """Also where another result was one and has been corrected."""
    c = campaign(OLD, policy=None, journal=tmp_path / "lab")
    c.tell(pd.DataFrame({"id": ["001", "002", "003", "004"], "yield": ["<20", "35.5", ">90", "61"]}))
    c.correct("002", 36.0)
    c.correct("003", 120.0)
    results = c.results()
    assert results["yield"].tolist() == ["<20", 36.0, 120.0, 61.0]
    renewed = c.renew(ALL, tmp_path / "second")
    pd.testing.assert_frame_equal(renewed.results(), results)


def test_several_outcomes_and_a_known_one(tmp_path: Path):
    options: dict[str, Any] = {"minimize": ["price"], "at_most": {"cost": 60.0}}
    old, every = (table.assign(price=table["temp"]) for table in (OLD, ALL))
    c = tb.OutcomeCampaign(old, ["yield", "price"], tmp_path / "lab", **options)
    for call in range(3):
        rows = noisy([f"{7 * call + i:03d}" for i in range(1, 6)], call).assign(cost=[50.0, 55, math.nan, 70, 40])
        c.tell(rows.assign(**{"yield": [math.nan, *rows["yield"][1:]]}))
    c.tell(pd.DataFrame({"id": ["030"], "yield": [math.nan], "cost": [math.nan]}))
    c.correct("002", {"cost": 51.0})
    opened, results = c.ask(3)["id"].tolist(), c.results()
    opened = [id for id in opened if id != "000"]
    with pytest.raises(
        ArgumentError, match=r"'price' have no value in some rows now, and the results so far are those of other"
    ):
        c.renew(every.assign(price=every["price"].where(every["id"] < "040")), tmp_path / "second")
    with pytest.raises(ArgumentError, match=r"'cost' are known now, since every row has a value"):
        c.renew(every.assign(cost=1.0), tmp_path / "second")
    renewed, fresh = c.renew(every, tmp_path / "second"), tb.OutcomeCampaign(every, ["yield", "price"], **options)
    assert renewed.open == opened
    assert (renewed.objectives, renewed.columns["price"].kind) == ({"yield": "maximize", "price": "minimize"}, "known")
    told_again(fresh, results).plan(opened)
    same(renewed, fresh)
    renewed.close()
    same(tb.OutcomeCampaign(every, journal=tmp_path / "second"), fresh)


def test_rows_are_recognised_by_their_ids_or_numbers(tmp_path: Path):
    c = begun(tmp_path / "index", OLD.set_index("id"))
    opened = c.open
    assert c.renew(ALL.set_index("id"), tmp_path / "index2").open == opened
    # Numbers of rows, which become ids of a column.
    table = frame().drop(columns="id")
    c = campaign(table[:40], journal=tmp_path / "numbers")
    c.tell(pd.DataFrame({"row": [4, 5], "yield": [1.0, 2.0]}))
    for wrong in (table[::-1], pd.concat([table[:4], table[50:], table[4:40]])):
        with pytest.raises(ArgumentError, match=r"other cells beside . of the 2 ids .* New rows come after the rows so far"):
            c.renew(wrong.reset_index(drop=True), tmp_path / "numbers2")
    c = c.renew(table, tmp_path / "numbers2")
    assert c.results()["row"].tolist() == [4, 5]
    c = c.renew(frame(), tmp_path / "numbers3")
    assert c.results()["id"].tolist() == ["003", "004"]
    # A whole number may be read as a text, and as another one.
    numbered = frame().assign(id=np.arange(60))
    c = begun(tmp_path / "whole", numbered[:40].assign(id=frame()[:40]["id"]))
    with pytest.raises(ArgumentError, match="lacks 6 rows with results, '003', '004'"):
        c.renew(numbered, tmp_path / "whole2")


def test_a_row_with_other_cells_is_named(tmp_path: Path):
    c = begun(tmp_path / "lab")
    shuffled = ALL.assign(id=np.roll(ALL["id"], 1))
    with pytest.raises(ArgumentError, match=r"of the 8 ids with results or pending: so far '003' has .* rename the column"):
        c.renew(shuffled, tmp_path / "second")
    warmer = ALL.assign(temp=ALL["temp"].where(ALL["id"] != "003", 300.0), dry=ALL["dry"].astype(int))
    with pytest.warns(
        DiagnosticWarning, match=r"so far '003' has 'temp' 21\.\d+, '003' has 300.0 in the table: the results count"
    ):
        c = c.renew(warmer, tmp_path / "second")
    assert c.bandit.pulls == 6


def test_what_was_asked_for_and_is_gone_is_given_up(tmp_path: Path):
    c = begun(tmp_path / "lab")
    first, second = c.open
    with pytest.warns(DiagnosticWarning, match=f"the table lacks '{first}', pending so far: given up"):
        c = c.renew(ALL[ALL["id"] != first], tmp_path / "second")
    assert c.open == [second]


def test_another_kind_of_a_column_and_another_policy(tmp_path: Path):
    sizes = np.array(["S", "M", "L"])
    old = OLD.assign(size=sizes[np.arange(40) % 3])
    every = ALL.assign(size=[*sizes[np.arange(39) % 3], *["XL"] * 20])
    every["size"] = every["id"].map(dict(zip(old["id"], old["size"], strict=True))).fillna("XL")
    c = begun(tmp_path / "lab", old, columns={"size": ["S", "M", "L"], "dry": "ignore"})
    with pytest.raises(ArgumentError, match="'XL'"):
        c.renew(every, tmp_path / "second")
    c = c.renew(every, tmp_path / "second", columns={"size": ["S", "M", "L", "XL"]}, policy=tb.auto())
    assert (c.columns["size"].kind, c.columns["dry"].kind) == ("ordered", "ignore")
    assert type(c.bandit.policy.from_data) is tb.ingredients.FromData
    assert c.bandit.pulls == 6
    c.close()
    with pytest.raises(StateError, match="was closed"):
        c.renew(every, tmp_path / "third")


@pytest.mark.usefixtures("annotations_not_enforced")
def test_what_cannot_be_taken_over_is_refused_and_nothing_is_left(tmp_path: Path):
    with pytest.raises(UnsupportedError, match=r"this campaign has none: begin another campaign with all rows, and tell"):
        campaign(OLD).renew(ALL, tmp_path / "second")
    bound = begun(tmp_path / "bound", policy=tb.bpe(policy().kernel, noise_std=0.1, horizon=50))
    with pytest.raises(UnsupportedError, match=r"bound to the rows it began with: give renew\(\) another one \(policy=\)"):
        bound.renew(ALL, tmp_path / "second")
    assert bound.renew(ALL, tmp_path / "rebound", policy=policy()).bandit.pulls == 6
    observed = begun(tmp_path / "observed")
    observed.bandit.observe(torch.tensor([3]), torch.ones(1), torch.ones(1), torch.ones(1))
    with pytest.raises(UnsupportedError, match=r"something else than results of its rows \('observe'\)"):
        observed.renew(ALL, tmp_path / "second")
    c = begun(tmp_path / "lab")
    files = sorted(tmp_path.iterdir())
    for wrong, options, said in (
        (ALL.drop(columns="id"), {}, "has no column 'id'"),
        (ALL.assign(temp=["warm", *ALL["temp"][1:].astype(str)]), {}, "column 'temp' holds 'warm'"),
        (ALL, {"columns": {"tmp": "log"}}, "tmp"),
        (ALL, {"columns": "log"}, "columns must be a dictionary"),
        (ALL, {"policy": "auto"}, "policy must be a torchbandits policy"),
        (None, {}, "a table of candidates is needed"),
        (3, {}, "must be a table"),
    ):
        with pytest.raises(ArgumentError, match=said):
            c.renew(wrong, tmp_path / "second", **options)
    with pytest.raises(DataError, match="can't be begun"):
        c.renew(ALL, tmp_path / "nowhere" / "second")
    with pytest.raises(StateError, match=r"lab belongs to a campaign: go on with that one, or choose another journal"):
        c.renew(ALL, tmp_path / "lab")
    campaign(journal=tmp_path / "other").close()
    (tmp_path / "other").unlink()
    for _ in range(2):
        with pytest.raises(StateError, match=r"other\.[a-z.]+ belongs to a campaign"):
            c.renew(ALL, tmp_path / "other")
        (tmp_path / "other.checkpoint").unlink(missing_ok=True)
    (tmp_path / "other.campaign.json").unlink()
    assert sorted(tmp_path.iterdir()) == files
    assert c.renew(ALL, tmp_path / "second").bandit.pulls == 6


def kill_after(steps: int) -> None:
    """End this process at the next step after so many that move, remove or make a file."""
    left = [steps]

    def killed(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if not left[0]:
                os._exit(3)
            left[0] -= 1
            return real(*args, **options)

        return call

    for name in ("replace", "mkdir", "rmdir", "unlink"):
        setattr(os, name, killed(getattr(os, name)))


@pytest.mark.exhaustive
def test_a_kill_leaves_the_old_campaign_alone_or_both(tmp_path: Path):
    """A child process is killed before each step that moves, removes or makes a file."""
    c = begun(tmp_path / "lab")
    c.exclude(["020"])
    c.tell(measured(OLD[30:32]).assign(plate="A")[["id", "yield"]])
    opened, results = c.open, c.results()
    c.close()
    for step in range(100):
        if (child := os.fork()) == 0:
            again = campaign(OLD, journal=tmp_path / "lab")
            kill_after(step)
            again.renew(ALL, tmp_path / "second")
            os._exit(0)
        done = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        if (tmp_path / "second").exists():
            with pytest.raises(StateError, match="belongs to a campaign"):
                campaign(OLD, journal=tmp_path / "lab").renew(ALL, tmp_path / "second")
        else:
            assert not done
            if (tmp_path / "second.renewal").exists():
                with pytest.raises(StateError, match="second was being begun by renew"):
                    campaign(ALL, journal=tmp_path / "second")
            c = campaign(OLD, journal=tmp_path / "lab")
            assert (c.open, c.excluded) == (opened, ["020"])
            c.renew(ALL, tmp_path / "second").close()
        c = campaign(ALL, journal=tmp_path / "second")
        assert (c.open, c.excluded) == (opened, ["020"])
        pd.testing.assert_frame_equal(c.results()[["id", "call", "yield"]], results[["id", "call", "yield"]])
        c.close()
        for path in tmp_path.glob("second*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if done:
            break
    assert done
    assert step > 8


# ---------------------------------------------------------------------- on the command line


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`extend` names it, it names the lines of the file, and the new folder is a campaign like any other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torchbandits.campaigns.campaign.auto", policy)
    OLD.to_csv("candidates.csv", index=False)
    ALL.to_csv("all.csv", index=False)
    run("new", "candidates.csv", "--objective", "yield", "--seed", "3", "--column", "dry=ignore")
    measured(OLD[1:8]).assign(plate="A").to_csv("results.csv", index=False)
    run("tell", "results.csv", "--block", "plate") if policy().takes_blocks else run("tell", "results.csv")
    opened = pd.read_csv(io.StringIO(run("ask", "-n", "3", "--where", "id != '000'")), dtype={"id": str})["id"].tolist()
    message = refused("extend", "all.csv")
    assert "'THF' is not one of the categories" in message
    assert "torchbandits campaign renew all.csv --to campaign2" in message
    assert "journal belongs to a campaign" in refused("renew", "all.csv", "--to", "campaign")
    ALL.assign(temp=ALL["temp"].astype(str).where(ALL["id"] != "050", "x")).to_csv("wrong.csv", index=False)
    line = 2 + int(np.flatnonzero(ALL["id"] == "050")[0])
    assert f"column 'temp' holds 'x' in line {line}" in refused("renew", "wrong.csv", "--to", "campaign2")
    assert "no campaign in nowhere" in refused("renew", "candidates.csv", "--to", "campaign2", "--folder", "nowhere")
    assert not Path("campaign2").exists()
    said = run("renew", "all.csv", "--to", "campaign2", "--column", "conc=number")
    assert "The campaign in campaign2 goes on with the 59 rows of all.csv, and with 7 results and 3 pending rows." in said
    assert "Next: torchbandits campaign ask --folder campaign2" in said
    assert [line.split()[1] for line in said.splitlines() if line.split()[:1] in (["conc"], ["dry"])] == ["number", "ignore"]
    plate = pd.read_csv(io.StringIO(run("ask", "-n", "3", "--folder", "campaign2")), dtype={"id": str})
    assert plate["id"].tolist() == opened
    assert "7 rows had been told before" in run("tell", "results.csv", "--folder", "campaign2")
    c = tb.Campaign(None, journal="campaign2/journal", policy=policy())
    assert c.bandit.generators[0].initial_seed() == 3
    c.close()
    assert "campaign2/journal belongs to a campaign: go on with that one" in refused("renew", "all.csv", "--to", "campaign2")
    run("ask", "-n", "5")
