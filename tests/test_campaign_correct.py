"""Corrections of results: a corrected campaign is the one to which the right values were told in the first place."""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from problems import OFF_SCALE
from test_campaign import campaign, frame, measured, yields
from test_campaign_cli import refused, run
from test_outcome_campaign import campaign as outcome_campaign
from test_outcome_campaign import fast, truth  # noqa: F401 - a fixture

import torchbandits as tb
from torchbandits.campaigns.notes import far_off
from torchbandits.campaigns.records import Records
from torchbandits.errors import ArgumentError, DataError, DiagnosticWarning, NumericalError, StateError, UnsupportedError
from torchbandits.journal import Journal

pytestmark = OFF_SCALE
PLATES, WRONG = 4, 900.0


def wrong(plate: pd.DataFrame, place: int = 1, value: float = WRONG) -> pd.DataFrame:
    return measured(plate).assign(**{"yield": measured(plate)["yield"].where(plate.index != place, value)})


def played(c: tb.Campaign, at: int, plates: list[pd.DataFrame] | None = None) -> tuple[str, list[pd.DataFrame]]:
    """Plates of five; the second result of the plate `at` is wrong. Returns its id, and the plates as they were selected, or
    tells these plates with the right values."""
    right, found = plates is not None, plates or []
    for k in range(PLATES):
        plate = found[k] if right else c.ask(5)
        c.tell(measured(plate) if right or k != at else wrong(plate))
        found = found if right else [*found, plate]
    return found[at]["id"][1], found


def same(one: tb.Campaign, other: tb.Campaign) -> None:
    """Both campaigns have learned the same, and recommend the same."""
    known, expected = (c.bandit.posterior(c.bandit.arms) for c in (one, other))
    torch.testing.assert_close(known.mean, expected.mean)
    torch.testing.assert_close(known.variance, expected.variance)
    pd.testing.assert_frame_equal(one.best(3), other.best(3))
    assert one.bandit.pulls.tolist() == other.bandit.pulls.tolist()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("policy", [None, tb.auto()], ids=["given kernel", "auto"])
@pytest.mark.parametrize("at", [0, PLATES - 1])
@pytest.mark.parametrize("right", [41.25, math.nan, None])
def test_a_corrected_campaign_is_one_to_which_the_right_value_was_told(at: int, right: Any, policy: Any, tmp_path: Path):
    options = {} if policy is None else {"policy": policy}
    c = campaign(journal=tmp_path / "lab", **options)
    name, plates = played(c, at)
    c.ask(2)
    opened = c.open
    kept = c.correct(name, right, was=WRONG).kept
    other = campaign(**options)
    for k, plate in enumerate(plates):
        told = measured(plate)
        if k == at:
            told.loc[1, "yield"] = math.nan if right is None else right
            told = told.drop(index=1) if right is None else told
        other.tell(told)
    assert c.open == ([name, *opened] if right is None else opened)
    c.forget()
    same(c, other)
    # The next process resumes it, without a checkpoint and with one.
    for _ in range(2):
        c.close()
        c = campaign(journal=tmp_path / "lab", **options)
        same(c, other)
    # The journal of the wrong value is whole.
    assert WRONG in Records.of(Journal(kept), [""], 1.0).values


def test_files_with_the_wrong_and_with_the_right_value_are_known(tmp_path: Path):
    c = campaign(journal=tmp_path / "lab")
    plate = c.ask(5)
    wrong(plate).to_csv(tmp_path / "wrong.csv", index=False)
    measured(plate).to_csv(tmp_path / "right.csv", index=False)
    c.tell(tmp_path / "wrong.csv")
    name, value = plate["id"][1], float(measured(plate)["yield"][1])
    c.correct(name, 1.0)
    c.correct(name, value)
    for _ in range(2):
        for file in ("wrong.csv", "right.csv"):
            told = c.tell(tmp_path / file)
            assert (told.measured, told.known) == (0, 5), file
        assert c.best(1, where=f"id == '{name}'")["measured"].tolist() == [value]
        c.close()
        c = campaign(journal=tmp_path / "lab")


def test_a_corrected_value_of_the_history_is_not_told_again(tmp_path: Path):
    table = frame()
    table["yield"] = yields(table).where(table.index < 9)
    table.loc[4, "yield"] = 800.0
    with pytest.warns(DiagnosticWarning, match="'004' is 800, and all others are between"):
        c = campaign(table, journal=tmp_path / "lab")
    c.correct("004", 44.0)
    c.close()
    c = campaign(table, journal=tmp_path / "lab")
    assert c.bandit.pulls == 9
    assert c.best(9).set_index("id")["measured"]["004"] == 44.0


@pytest.mark.sweep(1)
@pytest.mark.parametrize("policy", [None, tb.auto()], ids=["given kernel", "auto"])
def test_results_that_were_all_taken_back_are_not_told_again(policy: Any, tmp_path: Path):
    """Neither those of the table, when the campaign is resumed, nor those of a file."""
    options = {} if policy is None else {"policy": policy}
    table = frame()
    table["yield"] = yields(table).where(table.index < 2)
    table.loc[[2]].assign(**{"yield": WRONG}).to_csv(tmp_path / "one.csv", index=False)
    c = campaign(table, journal=tmp_path / "lab", **options)
    c.tell(tmp_path / "one.csv")
    for name in ("000", "001", "002"):
        c.correct(name, None)
    for _ in range(2):
        assert c.bandit.pulls == 0
        assert c.tell(tmp_path / "one.csv").known == 1
        c.close()
        (tmp_path / "lab.checkpoint").unlink(missing_ok=True)
        c = campaign(table, journal=tmp_path / "lab", **options)
    c.tell(measured(c.ask(3)))
    assert c.bandit.pulls == 3


def test_the_new_journal_has_the_permissions_of_the_earlier_one(tmp_path: Path):
    c = campaign(journal=tmp_path / "lab")
    name, _ = played(c, 0)
    (tmp_path / "lab").chmod(0o664)
    c.correct(name, 41.0, was=WRONG)
    assert (tmp_path / "lab").stat().st_mode & 0o777 == 0o664


def test_a_journal_that_is_a_symbolic_link_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "lab").symlink_to(tmp_path / "disk" / "file")
    c = campaign(journal=tmp_path / "lab")
    name, _ = played(c, 0)
    made, calls = tb.Campaign._open_bandit, []

    def fails_once(self: tb.Campaign, *args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise NumericalError("broken")
        return made(self, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(tb.Campaign, "_open_bandit", fails_once)
        with pytest.raises(NumericalError):
            c.correct(name, 41.0, was=WRONG)
    assert (tmp_path / "lab").is_symlink()
    kept = c.correct(name, 41.0, was=WRONG).kept
    assert (tmp_path / "lab").is_symlink()
    assert kept == tmp_path / "disk" / "file.before-1"
    assert not kept.is_symlink()
    c.close()
    values = campaign(journal=tmp_path / "lab")._records.values
    assert (41.0 in values, WRONG in values) == (True, False)
    assert WRONG in Records.of(Journal(kept), [""], 1.0).values


def test_a_result_before_a_loaded_state_cannot_be_corrected(tmp_path: Path):
    """The state holds what was learned from the wrong result."""
    c = campaign(journal=tmp_path / "lab")
    name, _ = played(c, 0)
    c.bandit.load_state_dict(c.bandit.state_dict())
    before = (tmp_path / "lab").read_bytes()
    with pytest.raises(UnsupportedError, match=f"'{name}' was told before a state was loaded .* begin another campaign"):
        c.correct(name, 41.0, was=WRONG)
    assert (tmp_path / "lab").read_bytes() == before
    c.tell(pd.DataFrame({"id": ["059"], "yield": [WRONG + 1]}))
    c.correct("059", 12.5, was=WRONG + 1)
    assert 12.5 in c._records.values


def test_a_correction_prints_both_results(tmp_path: Path):
    c = campaign(journal=tmp_path / "lab", minimize=True)
    c.tell(pd.DataFrame({"id": ["007", "008"], "yield": [30.25, 0.0]}))
    kept = f"The journal as it was is kept in {tmp_path / 'lab.before-'}"
    assert str(c.correct("007", math.nan)) == f"007 is corrected: 30.25 before, failed now. {kept}1."
    assert str(c.correct("008", None)) == f"008 is corrected: 0 before, none now. {kept}2."
    assert str(c.correct("007", -1.5)) == f"007 is corrected: failed before, -1.5 now. {kept}3."


@pytest.mark.usefixtures("annotations_not_enforced")
def test_results_of_yes_and_no_are_corrected_by_booleans(tmp_path: Path):
    c = campaign(journal=tmp_path / "lab")
    c.tell(frame()[:4][["id"]].assign(**{"yield": ["yes", "no", "yes", "no"]}))
    assert str(c.correct("000", False, was=True)).startswith("000 is corrected: 1 before, 0 now. ")
    assert str(c.correct("001", np.bool_(True))).startswith("001 is corrected: 0 before, 1 now. ")
    assert c._records.by_row(0) == {0: [0.0], 1: [1.0], 2: [1.0], 3: [0.0]}


@pytest.mark.exhaustive
def test_added_rows_and_failures_are_kept(tmp_path: Path):
    c = campaign(frame()[:40], journal=tmp_path / "lab", policy=tb.auto())
    c.tell(measured(c.ask(6)))
    c.extend(frame()[40:].reset_index(drop=True))
    c.tell(pd.DataFrame({"id": ["041", "042"], "yield": [np.nan, 700.0]}))
    c.correct("042", math.nan)
    assert c.bandit.loop.num_arms == 60
    assert c.bandit.loop.failed(()) == (2, c.bandit.loop.failed(())[1])
    c.correct("041", 30.0)
    assert c.bandit.loop.failed(())[0] == 1
    c.close()
    assert campaign(frame()[:40], journal=tmp_path / "lab", policy=tb.auto()).bandit.loop.num_arms == 60


def test_one_of_several_results_is_named(tmp_path: Path):
    c = campaign(journal=tmp_path / "lab", minimize=True)
    c.tell(pd.DataFrame({"id": ["007", "007", "008"], "yield": [30.0, 500.0, 12.0]}))
    with pytest.raises(ArgumentError, match=r"'007' has several results, 30, 500: say by was= \(--was\) which one is wrong"):
        c.correct("007", 31.0)
    with pytest.raises(ArgumentError, match="was: '007' has no such result, but 30, 500"):
        c.correct("007", 31.0, was=31.0)
    c.correct("007", 31.0, was=500.0)
    assert c.best(1, where="id == '007'")["measured"].tolist() == [30.5]
    # A value may be given as the message shows it.
    c.tell(pd.DataFrame({"id": ["009", "009"], "yield": [100 / 3, 5.0]}))
    with pytest.raises(ArgumentError, match=r"'009' has several results, 33\.33333333, 5: say"):
        c.correct("009", 34.0)
    c.correct("009", 34.0, was=33.33333333)
    assert c.best(1, where="id == '009'")["measured"].tolist() == [19.5]
    # Of equal results one is corrected.
    c.tell(pd.DataFrame({"id": ["008"], "yield": [12.0]}))
    c.correct("008", 14.0)
    assert c.best(1, where="id == '008'")["measured"].tolist() == [13.0]


@pytest.mark.usefixtures("annotations_not_enforced")
def test_what_cannot_be_corrected_leaves_the_campaign_as_it_was(tmp_path: Path):
    c = campaign(journal=tmp_path / "lab")
    name, _ = played(c, 0)
    before, bandit, told = (tmp_path / "lab").read_bytes(), c.bandit, c.bandit.pulls.clone()
    unmeasured = next(i for i in frame()["id"] if int(i) not in c._records.by_row(0))
    for wrong_call, message in (
        (lambda: c.correct("999", 1.0), "id: '999' is not among the candidates.$"),
        (lambda: c.correct("8", 1.0), "id: '8' is not among the candidates. Does it mean '008'"),
        (lambda: c.correct(unmeasured, 1.0), "has no result that could be corrected: tell it"),
        (lambda: c.correct(name, 41.0), "has several results, 900, .*: say by was="),
        (lambda: c.correct(name, math.inf), "value must be a number"),
        (lambda: c.correct(name, "41"), "value must be a number"),
    ):
        with pytest.raises(ArgumentError, match=message):
            wrong_call()
    with pytest.raises(UnsupportedError, match="with a journal only"):
        campaign().correct(name, 1.0)
    assert (tmp_path / "lab").read_bytes() == before
    assert c.bandit is bandit
    assert c.bandit.pulls == told
    c.close()
    with pytest.raises(StateError, match="was closed"):
        c.correct(name, 1.0)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("error", [NumericalError("broken"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_correction_that_fails_half_way_is_undone(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    c = campaign(journal=tmp_path / "lab")
    name, _ = played(c, 0)
    before, expected = (tmp_path / "lab").read_bytes(), c.best(3)
    made, calls = tb.Campaign._open_bandit, []

    def fails_once(self: tb.Campaign, *args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return made(self, *args, **options)

    monkeypatch.setattr(tb.Campaign, "_open_bandit", fails_once)
    with pytest.raises(type(error)):
        c.correct(name, 41.0, was=WRONG)
    assert (tmp_path / "lab").read_bytes() == before
    pd.testing.assert_frame_equal(c.best(3), expected)
    c.tell(measured(c.ask(2)))
    c.correct(name, 41.0, was=WRONG)
    assert WRONG not in c._records.values
    assert 41.0 in c._records.values


def test_a_folder_that_cannot_be_synced_keeps_the_earlier_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    c = campaign(journal=tmp_path / "lab")
    name, _ = played(c, 0)
    before = (tmp_path / "lab").read_bytes()

    def fails(folder: Path) -> None:
        raise OSError("no sync")

    with monkeypatch.context() as patched:
        patched.setattr("torchbandits.journal.rewriting.sync_folder", fails)
        with pytest.raises(DataError, match="can't be replaced: no sync"):
            c.correct(name, 41.0, was=WRONG)
    assert (tmp_path / "lab").read_bytes() == before
    assert WRONG in c._records.values
    assert not (tmp_path / "lab.before-1").exists()
    assert c.correct(name, 41.0, was=WRONG).kept.name == "lab.before-1"


def test_a_journal_that_another_process_opened_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    c = campaign(journal=tmp_path / "lab")
    name, _ = played(c, 0)
    made, others = tb.Campaign._open_bandit, []

    def opened_before(self: tb.Campaign, *args: Any, **options: Any) -> Any:
        if self is c and not others:
            others.append(campaign(journal=tmp_path / "lab"))
        return made(self, *args, **options)

    monkeypatch.setattr(tb.Campaign, "_open_bandit", opened_before)
    with pytest.raises(StateError, match="is in use by another process"):
        c.correct(name, 41.0, was=WRONG)
    (other,) = others
    assert 41.0 in other._records.values
    other.tell(pd.DataFrame({"id": ["059"], "yield": [12.5]}))
    with pytest.raises(StateError, match="closed"):
        c.tell(pd.DataFrame({"id": ["058"], "yield": [12.5]}))
    other.close()
    values = campaign(journal=tmp_path / "lab")._records.values
    assert (41.0 in values, WRONG in values, values[-1]) == (True, False, 12.5)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("step", ["link", "unlink", "replace"])
def test_a_kill_leaves_the_journal_before_or_after_the_correction(step: str, tmp_path: Path):
    """A child process is killed before each step that touches the files."""
    c = campaign(journal=tmp_path / "lab")
    name, _ = played(c, 0)
    c.close()
    if (child := os.fork()) == 0:

        def killed(*args: Any, **options: Any) -> None:
            os._exit(3)

        opened = campaign(journal=tmp_path / "lab")
        if step == "unlink":
            Path.unlink = killed  # type: ignore[method-assign]
        else:
            setattr(os, step, killed)
        opened.correct(name, 41.0, was=WRONG)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    c = campaign(journal=tmp_path / "lab")
    assert WRONG in c._records.values
    c.correct(name, 41.0, was=WRONG)
    assert WRONG not in c._records.values
    assert 41.0 in c._records.values


# ---------------------------------------------------------------------- several outcomes


@pytest.mark.usefixtures("annotations_not_enforced")
def test_outcomes_are_corrected_one_by_one(tmp_path: Path):
    c, other = outcome_campaign(journal=tmp_path / "lab"), outcome_campaign()
    for k in range(3):
        plate = c.ask(5)
        told = truth(plate)
        other.tell(told)
        if k == 1:
            name, cost = told["id"][2], float(told["cost"][2])
            told.loc[2, "cost"] = 5_000.0
        c.tell(told)
    c.correct(name, {"cost": cost})
    known, expected = (own.bandit.posterior(own.bandit.arms) for own in (c, other))
    torch.testing.assert_close(known.mean, expected.mean)
    c.correct(name, {"cost": None})
    assert c.bandit.pulls.tolist() == [15, 14, 15]
    assert name not in c.open
    c.correct(name, dict.fromkeys(c.outcomes))
    assert c.bandit.pulls.tolist() == [14, 14, 14]
    assert c.open == [name]
    c.close()
    c = outcome_campaign(journal=tmp_path / "lab")
    assert c.open == [name]
    with pytest.raises(ArgumentError, match="values names 'price', which is not one of the outcomes, yield, cost, toxicity"):
        c.correct("001", {"price": 1.0})
    with pytest.raises(ArgumentError, match=r"values gives a value by outcome, such as \{'yield': 1.5\} \(yield=1.5\)"):
        c.correct("001", 3.0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="was names cost, and values does not"):
        c.correct("001", {"yield": 1.0}, was={"cost": 1.0})


def test_a_failed_evaluation_of_outcomes_that_is_taken_back_is_named(tmp_path: Path):
    c = tb.OutcomeCampaign(frame(), ["yield"], journal=tmp_path / "lab.journal", minimize=[], at_most={"cost": 9.0})
    c.tell(pd.DataFrame({"id": ["003"], "yield": [math.nan], "cost": [math.nan]}))
    both = {"yield": math.nan, "cost": math.nan}
    assert str(c.correct("003", dict.fromkeys(both), was=both)).startswith(
        "003 is corrected: failed before, yield=none cost=none now. "
    )
    c.tell(pd.DataFrame({"id": ["004"], "yield": [3.0], "cost": [math.nan]}))
    assert str(c.correct("004", {"yield": math.nan})).startswith("004 is corrected: yield=3 before, yield=none now. ")
    assert str(c.correct("004", {"yield": 2.0, "cost": 1.0})).startswith(
        "004 is corrected: failed before, yield=2 cost=1 now. "
    )


def test_one_of_several_results_of_outcomes_is_named(tmp_path: Path):
    c = outcome_campaign(journal=tmp_path / "lab")
    c.tell({"id": ["003", "003", "004"], "yield": [30.0, 31.0, 7.0], "cost": [9.0, 90.0, 9.0]})
    c.tell({"id": ["003"], "toxicity": [50.0]})
    with pytest.raises(ArgumentError, match="'003' has several results, cost=9, cost=90"):
        c.correct("003", {"cost": 9.5})
    c.correct("003", {"cost": 9.5}, was={"cost": 90.0})
    with pytest.raises(ArgumentError, match=r"cost=9 toxicity=none, cost=9\.5 toxicity=none, cost=none tox"):
        c.correct("003", {"cost": 8.0, "toxicity": 51.0})
    c.correct("003", {"toxicity": 51.0})
    values = c._records.values
    np.testing.assert_array_equal(values[:, 1], [9.0, 9.5, 9.0, np.nan])
    np.testing.assert_array_equal(values[:, 2], [np.nan, np.nan, np.nan, 51.0])


# ---------------------------------------------------------------------- values that are far off


def test_a_value_far_from_all_others_is_named(tmp_path: Path):
    c = campaign(journal=tmp_path / "lab")
    rows = frame()["id"][:12]
    told = c.tell(pd.DataFrame({"id": rows, "yield": [*np.linspace(50, 80, 11), 790.0]}))
    assert told.notes == (
        "'011' is 790, and all others are between 50 and 80: if this is an error, correct it (Campaign.correct, torchbandits "
        "campaign correct).",
    )
    assert c.tell({"id": ["020", "021"], "yield": [0.0, 95.0]}).notes == ()
    c.correct("011", 79.0)
    (note,) = c.tell({"id": ["022", "023", "024"], "yield": [-900.0, 5_000.0, np.nan]}).notes
    assert note.startswith("'022' is -900, and all others are between 0 and 95 (and 1 more value): if this")


def test_a_value_that_was_corrected_in_the_file_is_said_to_count_beside_the_wrong_one(tmp_path: Path):
    table = frame().assign(**{"yield": np.nan})
    table.loc[50, "yield"] = 7.0
    table.to_csv(tmp_path / "table.csv", index=False)
    c = campaign(tmp_path / "table.csv", journal=tmp_path / "lab", id="id")
    plate = c.ask(3)[["id"]]
    plate.assign(**{"yield": [1.5, WRONG, 2.5]}).to_csv(tmp_path / "plate.csv", index=False)
    assert c.tell(tmp_path / "plate.csv").notes == ()
    plate.assign(**{"yield": [1.5, 9.5, 2.5]}).to_csv(tmp_path / "plate.csv", index=False)
    (note,) = c.tell(tmp_path / "plate.csv").notes
    name = plate["id"][1]
    assert note == (
        f"{name!r} was told as 900 before, and is 9.5 now: both count. If the earlier value is wrong, take it back: "
        f"correct({name!r}, None, was=900), torchbandits campaign correct {name} none --was 900."
    )
    c.correct(name, None, was=900.0)
    assert c.tell(tmp_path / "plate.csv").notes == ()
    plate.assign(**{"yield": [1.5, WRONG, 2.5]}).to_csv(tmp_path / "plate.csv", index=False)
    assert c.tell(tmp_path / "plate.csv").notes == (), "it does not count again"
    assert c._records.by_row(0)[int(name)] == [9.5]
    c.close()
    # The same of a value of the table, where a campaign goes on.
    table.assign(**{"yield": table["yield"].replace(7.0, 8.5)}).to_csv(tmp_path / "table.csv", index=False)
    with pytest.warns(DiagnosticWarning, match="'050' was told as 7 before, and is 8.5 now: both count"):
        c = campaign(tmp_path / "table.csv", journal=tmp_path / "lab")
    assert c._records.by_row(0)[50] == [7.0, 8.5]


def test_an_outcome_that_was_corrected_in_the_file_is_said_to_count_beside_the_wrong_one(tmp_path: Path):
    c = outcome_campaign(journal=tmp_path / "lab")
    plate = truth(frame()[:3])
    plate.assign(cost=[1.0, 2.0, 900.0]).to_csv(tmp_path / "plate.csv", index=False)
    assert c.tell(tmp_path / "plate.csv").notes == ()
    plate.assign(cost=[1.0, 2.0, 3.0]).to_csv(tmp_path / "plate.csv", index=False)
    (note,) = c.tell(tmp_path / "plate.csv").notes
    assert note.endswith(
        "correct('002', {'cost': None}, was={'cost': 900}), torchbandits campaign correct 002 cost=none --was cost=900."
    )
    c.correct("002", {"cost": None}, was={"cost": 900.0})
    assert c.tell(tmp_path / "plate.csv").notes == ()


@pytest.mark.parametrize("values", [10.0 ** np.arange(-6, 4), [0.0] * 9 + [1.0], [5.0, 900.0]])
def test_decades_constants_and_few_values_are_not_far_off(values: Any):
    c = campaign()
    told = c.tell(pd.DataFrame({"id": frame()["id"][: len(values)], "yield": values}))
    assert not any("if this is an error" in note for note in told.notes)


@pytest.mark.parametrize("told", [0, 50_000])
def test_many_values_are_compared_in_one_pass(told: int):
    values = np.linspace(1.0, 2.0, 50_000)
    values[7] = 90.0
    began = time.monotonic()
    (note,) = far_off(np.linspace(1.0, 2.0, told).tolist(), values, [str(place) for place in range(len(values))])
    assert note.startswith("'7' is 90, and all others are between 1 and 2: if this")
    assert time.monotonic() - began < 5, "a pass over all values for each of them took half a minute"


# ---------------------------------------------------------------------- the command


@pytest.mark.exhaustive
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    frame().to_csv("candidates.csv", index=False)
    run("new", "candidates.csv", "--objective", "yield")
    measured(frame()[:10]).assign(**{"yield": np.arange(10.0)}).to_csv("results.csv", index=False)
    run("tell", "results.csv")
    assert "no result that could be corrected" in refused("correct", "030", "4")
    assert "a result takes a number, such as 83.4, `failed` or `none`, got 'four'" in refused("correct", "003", "four")
    assert "got '66,2'. Write decimals with a point." in refused("correct", "003", "66,2")
    assert "give one value" in refused("correct", "003", "4", "5")
    assert "give a value, got 'yield=4'" in refused("correct", "003", "yield=4")
    for text in ("nan", "inf"):
        assert f"a result takes a number, such as 83.4, `failed` or `none`, got '{text}'" in refused("correct", "003", text)
    said = run("correct", "003", "-40.5")
    kept = f"The journal as it was is kept in {tmp_path}/campaign/journal.before-1.\n"
    assert said == f"003 is corrected: 3 before, -40.5 now. {kept}"
    assert run("correct", "006", "Yes").startswith("006 is corrected: 6 before, 1 now. The")
    assert run("correct", "006", "6").startswith("006 is corrected: 1 before, 6 now. The")
    assert run("correct", "004", "none").startswith("004 is corrected: 4 before, none now. The")
    assert run("correct", "005", "failed", "--was", "5").startswith("005 is corrected: 5 before, failed now. The")
    c = tb.Campaign(journal="campaign/journal")
    assert c._records.by_row(0) == {
        0: [0.0],
        1: [1.0],
        2: [2.0],
        3: [-40.5],
        6: [6.0],
        7: [7.0],
        8: [8.0],
        9: [9.0],
    }
    assert c._records.failed_rows() == [5]
    assert "10 rows had been told before" in run("tell", "results.csv") if c.close() is None else ""


def test_the_command_for_outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    frame().to_csv("candidates.csv", index=False)
    run("new", "candidates.csv", "--objective", "yield", "--objective", "cost:min")
    truth(frame()[:8])[["id", "yield", "cost"]].to_csv("results.csv", index=False)
    run("tell", "results.csv")
    assert "give NAME=VALUE for an outcome (or NAME=failed, NAME=none), got '4'" in refused("correct", "003", "4")
    said = run("correct", "003", "cost=4", "yield=none")
    assert re.match(r"003 is corrected: yield=[\d.]+ cost=[\d.]+ before, yield=none cost=4 now\. The", said)
    c = tb.OutcomeCampaign(journal="campaign/journal")
    np.testing.assert_array_equal(c._records.values[3], [np.nan, 4.0])
