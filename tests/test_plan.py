"""Picks of the user's own choice: pending for what is asked for next, told or forgotten like picks of the policy."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from contract import PROBLEM, Case, every_policy, proceed, rewards_of
from problems import COMMON, OFF_SCALE, generator, rbf
from test_campaign import campaign, frame, measured, yields
from test_campaign_cli import RUNNER, refused, run
from test_campaign_exclude import outcomes, told

import torchbandits as tb
from torchbandits.cli import app
from torchbandits.errors import ArgumentError, ArmIndexError, ShapeError, StateError, UnsupportedError
from torchbandits.testing.play import differences, everything

pytestmark = OFF_SCALE


@every_policy
def test_planned_picks_are_pending_and_resume(case: Case, tmp_path: Path):
    """Every policy goes on beside planned picks, and its journal repeats them, with or without a checkpoint."""
    path = tmp_path / "run"
    bandit = tb.Bandit(case.policy(), PROBLEM.tensor, generator=generator(5), journal=path)
    proceed(bandit, 6)
    before = [] if bandit.loop.open is None else bandit.ask().index.tolist()
    opened = bandit.plan(torch.tensor([17, 3, 17]))
    assert opened.index.tolist() == [*before, 17, 3, 17]
    assert bandit.ask().index.tolist() == opened.index.tolist()
    bandit.forget(torch.tensor([17]))
    bandit.journal.close()
    for checkpoint in (True, False):
        if not checkpoint:
            (tmp_path / "run.checkpoint").unlink(missing_ok=True)
        again = tb.Bandit(case.policy(), PROBLEM.tensor, generator=generator(5), journal=path)
        assert again.ask().index.tolist() == [*before, 3, 17]
        assert not differences(everything(bandit), everything(again))
        again.journal.close()
    again = tb.Bandit(case.policy(), PROBLEM.tensor, generator=generator(5), journal=path)
    selection = again.ask()
    report = again.tell(selection, rewards_of(selection))
    assert float(report.unasked) == 0
    proceed(again, 4)
    assert int(again.pulls) >= int(bandit.pulls) + len(before) + 2


def test_picks_of_the_policy_are_conditional_on_planned_ones():
    policy = tb.gp_bucb(rbf(), width=tb.widths.Constant(2.0), norm_bound=1.0, noise_std=0.1)
    own = tb.Bandit(policy, PROBLEM.tensor)
    other = tb.Bandit(policy, PROBLEM.tensor)
    first = own.ask(more=3).index
    other.plan(first)
    assert other.ask(more=4).index.tolist() == own.ask(more=4).index.tolist()


def test_auto_adds_no_pick_where_all_arms_are_planned():
    bandit = tb.Bandit(tb.auto(), PROBLEM.tensor)
    bandit.plan(torch.arange(40))
    assert bandit.ask(more=2).index.tolist() == list(range(40))
    small = campaign(frame(6), policy=tb.auto())
    small.plan(frame(6)["id"])
    with pytest.raises(ArgumentError, match=r"1 more row is asked for, and 0 of the table can be selected beside the 6"):
        small.ask(1, more=True)


def test_planned_picks_of_batch_rows_are_padded():
    policy = tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON)
    bandit = tb.Bandit(policy, PROBLEM.tensor, generator=[generator(0), generator(1)])
    opened = bandit.plan(torch.tensor([[3, 4], [5, -1]]))
    assert opened.index.tolist() == [[3, 4], [5, -1]]
    assert opened.mask.tolist() == [[True, True], [True, False]]
    bandit.tell(opened, torch.zeros(2, 2, dtype=torch.float64))
    assert bandit.pulls.tolist() == [2, 1]
    assert bandit.loop.open is None
    # Places of none may come first, and open picks never do.
    opened = bandit.plan(torch.tensor([[-1, 6, -1], [-1, -1, 8]]))
    assert (opened.index.tolist(), opened.mask.tolist()) == ([[6], [8]], [[True], [True]])
    with pytest.raises(ShapeError):
        bandit.plan(torch.tensor([3]))


def test_wrong_plans_change_nothing():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor)
    for wrong in (40, -1):
        with pytest.raises(ArmIndexError, match=f"arm index {wrong} is outside"):
            bandit.plan(torch.tensor([3, wrong]))
    with pytest.raises(ShapeError, match="must be integers"):
        bandit.plan(torch.tensor([1.0]))
    with pytest.raises(ArgumentError, match="selection has no pick"):
        bandit.plan(torch.zeros(0, dtype=torch.int64))
    assert bandit.loop.open is None
    wide = tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON)
    box = tb.Bandit(wide, bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64))
    with pytest.raises(UnsupportedError, match="a box has no arms to plan"):
        box.plan(torch.tensor([0]))


def test_a_selection_of_other_arms_is_found_by_its_points():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor)
    chosen = bandit.ask(more=2)
    bandit.forget(chosen)
    bandit.set_arms_(PROBLEM.tensor.flip(0))
    assert bandit.plan(chosen).index.tolist() == [39 - arm for arm in chosen.index.tolist()]


def test_outcomes_share_planned_picks(tmp_path: Path):
    def made() -> tb.OutcomeBandit:
        models = {name: tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON) for name in ("a", "b")}
        return tb.OutcomeBandit(tb.outcomes.pareto(models), PROBLEM.tensor, journal=tmp_path / "run")

    bandit = made()
    opened = bandit.plan(torch.tensor([4, 9]))
    assert opened.index.tolist() == [4, 9]
    bandit.journal.close()
    again = made()
    assert again.ask().index.tolist() == [4, 9]
    report = again.tell(again.ask(), torch.rand(2, 2, dtype=torch.float64))
    assert report.unasked.tolist() == [0, 0]


def test_plans_are_at_a_context(tmp_path: Path):
    arms, contexts = PROBLEM.tensor[:20, :1], torch.tensor([[0.0], [1.0]], dtype=torch.float64)

    def made() -> tb.ContextualBandit:
        policy = tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON)
        return tb.ContextualBandit(policy, arms, contexts, journal=tmp_path / "run")

    bandit = made()
    bandit.ask(context=contexts[0])
    opened = bandit.plan(torch.tensor([4, 9]), context=contexts[1])
    assert opened.index.tolist() == [4, 9]
    assert bool((opened.points[:, 0] == 1).all())
    assert bandit.ask(context=contexts[1]).index.tolist() == [4, 9]
    new = torch.tensor([0.5], dtype=torch.float64)
    assert bandit.plan(torch.tensor([2]), context=new).index.tolist() == [2]
    with pytest.raises(ArgumentError, match="asked for at another context"):
        bandit.plan(opened, context=new)
    with pytest.raises(ArgumentError, match="selection has no pick"):
        bandit.plan(opened[:0], context=new)
    bandit.journal.close()
    again = made()
    assert again.ask(context=new).index.tolist() == [2]
    assert again.ask(context=contexts[1]).index.tolist() == [4, 9]
    assert float(again.tell(opened, torch.zeros(2, dtype=torch.float64)).unasked) == 0


def test_a_run_resumes_with_picks_that_a_callback_opened(tmp_path: Path):
    """The journal keeps the noise of the environment beside the random numbers that the picks drew."""

    def played(name: str, fails_at: int) -> tb.History:
        def opens(bandit: tb.Bandit, *_: object) -> None:
            if int(bandit.pulls) == 2:
                bandit.plan(torch.tensor([5]))
                bandit.ask(more=2, within=[tb.constraints.Distinct()])
            if int(bandit.pulls) >= fails_at:
                raise KeyError("stopped")

        environment = tb.environments.Table(PROBLEM.tensor, torch.as_tensor(PROBLEM.f), noise_std=0.1)
        policy = tb.thompson_sampling(rbf(), **COMMON)
        return tb.run(policy, environment, 9, journal=tmp_path / name, callbacks=[opens], generator=generator(3))

    for fails_at in (2, 5):
        with pytest.raises(KeyError, match="stopped"):
            played(f"cut{fails_at}", fails_at)
        resumed, whole = played(f"cut{fails_at}", 99), played(f"whole{fails_at}", 99)
        for name in ("arm", "reward"):
            assert resumed.pulls[name].tolist() == whole.pulls[name].tolist()


# ---------------------------------------------------------------------- campaigns


@pytest.mark.parametrize("several", [False, True])
def test_rows_of_a_plan_are_open(several: bool, tmp_path: Path):
    begin, path = outcomes if several else campaign, tmp_path / "lab"
    c = told(begin(journal=path))
    (first,) = c.ask(1, repeats=False)["id"]
    others = [text for text in ("040", "041", "042") if text != first][:2]
    plate = c.plan([*others, others[0]])
    assert plate["id"].tolist() == [first, *others, others[0]]
    assert plate["rank"].tolist() == [1, 2, 3, 4]
    # Another call with the same ids changes nothing.
    assert c.plan([*others, others[0]])["id"].tolist() == plate["id"].tolist()
    assert c.ask(4)["id"].tolist() == plate["id"].tolist()
    c.close()
    c = begin(journal=path)
    assert c.open == [first, *others, others[0]]
    rows = frame().set_index("id").loc[[others[0], others[0]]].reset_index().assign(cost=1.0)
    results = rows[["id"]].assign(**{name: yields(rows) for name in c.outcomes})
    assert c.tell(results).unasked == 0
    assert c.open == [first, others[1]]
    c.forget()
    assert c.open == []
    c.close()


def test_rows_that_are_no_candidates_may_be_planned_and_excluded_ones_not(tmp_path: Path):
    c = told(campaign(candidates="temp < 110"))
    hot = frame()["id"][frame()["temp"] >= 110].iloc[0]
    assert c.plan([hot])["id"].tolist() == [hot]
    c.exclude(["040", "041"])
    with pytest.raises(ArgumentError, match=r"ids: '040', '041' are excluded: include\(\) first \(torchbandits campaign incl"):
        c.plan(["050", "040", "041"])
    with pytest.raises(ArgumentError, match="ids: 'x' is not in the table"):
        c.plan(["050", "x"])
    with pytest.raises(ArgumentError, match="ids is empty"):
        c.plan([])
    with pytest.raises(ArgumentError, match="ids must be a list of ids"):
        c.plan("050")
    assert c.open == [hot]
    kept = told(campaign(journal=tmp_path / "lab"))
    kept.close()
    with pytest.raises(StateError, match="was closed"):
        kept.plan(["050"])


@pytest.mark.parametrize("several", [False, True])
def test_a_planned_row_that_is_no_candidate_stays_itself_beside_an_equal_candidate(several: bool, tmp_path: Path):
    begin, table = outcomes if several else campaign, frame(10)
    table = pd.concat([table.assign(stock=False), table.assign(id="b" + table["id"], stock=True)], ignore_index=True)
    options = {"candidates": "stock", "journal": tmp_path / "lab"}
    c = begin(table, **options)
    for _ in range(2):
        assert c.plan(["003"])["id"].tolist() == ["003"]
    assert c.plan(["003", "b003"])["id"].tolist() == ["003", "b003"]
    c.exclude(["b003"])
    c.close()
    for checkpoint in (True, False):
        if not checkpoint:
            (tmp_path / "lab.checkpoint").unlink()
        c = begin(table, **options)
        assert c.open == ["003"] == c.plan(["003"])["id"].tolist()
        c.close()


def test_a_result_of_an_excluded_row_that_is_taken_back_opens_it_no_more(tmp_path: Path):
    c = told(campaign(journal=tmp_path / "lab"))
    c.plan(["040", "041"])
    c.tell(measured(frame().iloc[[40]]))
    c.exclude(["040"])
    c.correct("040", None)
    assert (c.open, c.excluded) == (["041"], ["040"])
    c.close()
    c = campaign(journal=tmp_path / "lab")
    assert c.open == ["041"]
    c.close()


def test_rows_are_planned_by_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    frame().to_csv("candidates.csv", index=False)
    run("new", "candidates.csv", "--objective", "yield")
    for _ in range(2):
        lines = run("plan", "007", "030", "007").splitlines()
        assert lines[0].endswith(",yield")
        assert [line.split(",")[0] for line in lines[1:]] == ["007", "030", "007"]
    assert [line.split(",")[0] for line in run("ask", "-n", "4").splitlines()[1:4]] == ["007", "030", "007"]
    few, every = (RUNNER.invoke(app, ["campaign", "ask", "-n", number]).stderr for number in ("2", "4"))
    assert few == "4 rows are pending, and the first 2 were written: -n 4 writes all.\n", "planned rows may be among the others"
    assert every == ""
    assert "4 rows: plate.csv" in run("plan", "030", "--output", "plate.csv")
    text = (tmp_path / "plate.csv").read_text().splitlines()
    (tmp_path / "plate.csv").write_text("\n".join([text[0], *(line + "1.5" for line in text[1:])]))
    assert "has values of 'yield'" in refused("plan", "031", "--output", "plate.csv")
    assert "'x' is not in" in refused("plan", "x")
