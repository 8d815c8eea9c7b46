"""Runs watched through their journals: page and live view have the numbers of the run, for any journal."""

from __future__ import annotations

import io
import json
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from problems import COMMON, generator, rbf
from rich.console import Console
from typer.testing import CliRunner

import torchbandits as tb
from torchbandits import errors
from torchbandits.cli import app
from torchbandits.experiments.page import page_of_journal
from torchbandits.experiments.watching import frame, line, watch
from torchbandits.journal import Reading

RUNNER = CliRunner()
ARMS = torch.rand(40, 2, dtype=torch.float64, generator=generator(0))
MEANS = torch.sin(5 * ARMS[:, 0])
CONTROL = {chr(code) for code in range(32)} - {"\n"}


def text_of(reading: Reading, row: int = 0, now: float = 0.0, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(frame(reading, row, now))
    return console.file.getvalue()


def facts(text: str) -> dict[str, str]:
    """The lines of the left side of a frame, name to value."""
    lines = [part.split("  ") for part in text.splitlines()]
    return {parts[0]: next((p.strip() for p in parts[1:] if p.strip()), "") for parts in lines if parts[0]}


def same(history: tb.History, read: tb.History) -> None:
    for name in set(history.pulls) - {"cost"}:
        np.testing.assert_array_equal(history.pulls[name], read.pulls[name], name)
    for name in set(history.batches) - {"cost", "seconds"}:
        np.testing.assert_array_equal(history.batches[name], read.batches[name], name)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[tb.History, Path]:
    """A run of two batch rows whose batches differ in size, and its journal."""
    path = tmp_path_factory.mktemp("played") / "run.journal"
    policy = tb.gp_bucb(rbf(), **COMMON, max_batch_size=5)
    environment = tb.environments.Table(ARMS, MEANS, noise_std=0.3, name="hills")
    seeds = [generator(1), generator(2)]
    return tb.run(policy, environment, 30, generator=seeds, journal=tb.Journal(path, durable=False)), path


def test_a_journal_read_back_is_the_history_of_the_run(played: tuple[tb.History, Path]):
    history, path = played
    reading = Reading(path)
    same(history, reading.history)
    assert (reading.environment, reading.rounds, reading.out.tolist()) == ("hills", 30, [0, 0])
    seconds = reading.history.batches["seconds"]
    assert (seconds >= 0).all()
    assert seconds[reading.history.batches["row"] == 0].sum() == pytest.approx(reading.last - reading.began, abs=1e-3)
    assert reading.update() == 0


def test_the_page_and_the_frame_say_what_the_run_said(played: tuple[tb.History, Path]):
    history, path = played
    reading = Reading(path)
    for row in (0, 1):
        summary, page = history.summary(row), page_of_journal(reading)
        assert page.lines[row][:2] == (str(row), "30")
        assert page.lines[row][3:7] == (
            f"{summary['distinct_arms']:.0f}",
            f"{summary['dictionary_size']:.0f}",
            f"{summary['regret']:.3g}",
            f"{summary['simple_regret']:.3g}",
        )
        own = history.row(row)
        rewards, text = own.pulls["reward"], text_of(reading, row, reading.last + 65)
        said = facts(text)
        assert f"row {row} of 2" in text
        assert said["pulls told"] == "30 of 30"
        error = rewards.std(ddof=1) / np.sqrt(30)
        assert said["reward, last 30"] == f"{rewards.mean():.3g} ± {error:.3g}, {rewards.mean():.3g} in all"
        assert said["regret, last 30"].endswith(f"{summary['regret'] / 30:.3g} in all")
        best = f"{own.batches['recommended'][-1]}, regret {summary['simple_regret']:.3g}"
        assert said["recommended arm"] == best
        assert said["distinct arms"] == f"{summary['distinct_arms']:.0f}"
        assert said["last record"] == "0:01:05 ago"
        assert "100%  done" in text
        assert "environment hills" in page.facts
        assert line(reading, row, reading.last).startswith("30 of 30 pulls, reward ")


def written(path: Path, records: list[dict[str, Any]]) -> None:
    """Write a journal with these records."""
    crc, lines = 0, []
    for record in records:
        text = json.dumps(record, separators=(",", ":")).encode()
        crc = zlib.crc32(text, crc)
        lines.append(b"%08x %s\n" % (crc, text))
    path.write_bytes(b"".join(lines))


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text[9:]) for text in path.read_bytes().splitlines()]


def test_a_journal_that_grows_is_read_as_far_as_it_is_whole(played: tuple[tb.History, Path], tmp_path: Path):
    """Reading pieces of any length, including torn lines, gives the same result in the end, and nothing is read twice."""
    history, source = played
    whole, path, rng = source.read_bytes(), tmp_path / "run.journal", np.random.default_rng(0)
    cuts = [0, 5, 40, *sorted(rng.integers(41, len(whole), 25).tolist()), len(whole)]
    path.write_bytes(b"")
    reading, came = Reading(path), 0
    assert "nothing is written yet" in text_of(reading)
    for start, end in pairwise(cuts):
        with open(path, "ab") as file:
            file.write(whole[start:end])
        came += reading.update()
        assert came == whole[:end].count(b"\n")
        text_of(reading)
        line(reading, 0, reading.last)
    same(history, reading.history)
    before = whole[: whole.rindex(b"\n", 0, -1) + 1]
    path.write_bytes(before)  # the last record was removed, and replaced by another
    assert reading.update() == before.count(b"\n")
    with open(path, "ab") as file:
        file.write(whole[len(before) :])
    reading.update()
    same(history, reading.history)
    path.write_bytes(whole[:-9] + b"x" + whole[-8:])
    with pytest.raises(errors.DataError, match="line"):
        Reading(path)


def test_what_is_out_is_known_whatever_is_called(tmp_path: Path):
    """Open picks equal the bandit's after partial tells in any order, unasked pulls, failures, forgets, history, new arms, a
    fit."""
    path = tmp_path / "run.journal"
    bandit = tb.Bandit(tb.gp_bucb(rbf(), **COMMON, max_batch_size=6), ARMS, journal=tb.Journal(path, durable=False))
    reading, told, nan = Reading(path), [], torch.nan

    def tell(selection: Any, rewards: list[float]) -> None:
        bandit.tell(selection, torch.tensor(rewards, dtype=torch.float64), failures="forget")
        index = selection if isinstance(selection, torch.Tensor) else selection.index
        told.extend((arm, y) for arm, y in zip(index.tolist(), rewards, strict=True) if y == y)

    def agree() -> None:
        assert reading.update() > 0
        assert reading.out.tolist() == [0 if bandit.loop.open is None else len(bandit.ask())]
        pulls = reading.history.pulls
        assert list(zip(pulls["arm"].tolist(), pulls["reward"].tolist(), strict=True)) == told
        assert int(bandit.pulls) == len(told) + int(reading.observed[0])
        text_of(reading, now=reading.last)

    bandit.ask(limit=1)
    tell(bandit.ask(), [0.5])
    agree()
    bandit.ask(more=6)
    agree()
    tell(bandit.ask()[3:5], [0.1, 0.2])  # a part, from the middle
    agree()
    tell(torch.tensor([7, 8]), [0.3, 0.4])  # picks that were never asked for
    agree()
    tell(bandit.ask()[:2], [nan, 0.6])
    agree()
    bandit.forget(bandit.ask()[:1])
    agree()
    bandit.observe(torch.tensor([1, 2]), torch.tensor([3.0, 4.0]), torch.tensor([0.1, 0.2]))
    agree()
    moved = len(told)
    bandit.set_arms_(torch.cat([bandit.ask().points, ARMS + 0.01]))
    agree()
    bandit.fit_kernel_(max_iterations=2)
    agree()
    tell(bandit.ask(), [0.9] * len(bandit.ask()))
    bandit.ask(maximizer=lambda score: torch.tensor([0.3, 0.6]).double())
    agree()
    said = facts(text_of(reading, now=reading.last))
    assert (said["observed"], said["failed"], said["forgotten"]) == ("7", "1", "1")
    assert reading.moved.tolist() == [moved]
    arms = {arm for arm, _ in told[moved:]}
    assert {int(row[0]) for row in best_rows(reading)} <= arms  # the previous arms have other indices now
    page = page_of_journal(reading)
    assert page.moved == moved
    assert "1 picks forgotten, 7 pulls of earlier data" in page.facts
    bandit.load_state_dict(bandit.state_dict())
    reading.update()
    assert np.isnan(reading.out).all()
    assert facts(text_of(reading))["picks out"] == "–"


def test_pairs_whose_context_is_replaced(tmp_path: Path) -> None:
    path, contexts = tmp_path / "run.journal", torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS[:, :1], contexts[:1], max_contexts=2, journal=path)
    bandit.tell(torch.tensor([3]), [1.0], context=contexts[0])
    bandit.tell(torch.tensor([3]), [5.0], context=contexts[1])  # beside the first context
    assert Reading(path).moved.tolist() == [0]
    bandit.tell(torch.tensor([3, 4]), [9.0, 2.0], context=contexts[2])  # in place of the first context
    reading = Reading(path)
    assert reading.moved.tolist() == [2]
    assert {int(row[0]): float(row[2]) for row in best_rows(reading)} == {3: 9.0, 4: 2.0}
    assert page_of_journal(reading).moved == 2


def best_rows(reading: Reading) -> list[list[str]]:
    """The lines of the table of best arms, on the right side of a frame."""
    lines = text_of(reading, now=reading.last).splitlines()
    top = next(k for k, text in enumerate(lines) if "best arm" in text)
    column = lines[top].index("best arm")
    cells = [text[column:].split() for text in lines[top + 2 :]]
    return cells[: next((k for k, cell in enumerate(cells) if not cell), len(cells))]


def test_boxes_show_points(tmp_path: Path):
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    bandit = tb.Bandit(tb.uniform(), bounds=box, journal=tb.Journal(tmp_path / "run.journal", durable=False))
    told = set()
    for _ in range(3):
        selection = bandit.ask(limit=2)
        told |= set(selection.index.tolist())
        bandit.tell(selection, selection.points[:, 0])
    shown = {int(cells[0]): cells[-2:] for cells in best_rows(Reading(tmp_path / "run.journal"))}
    assert shown.keys() == told
    for arm, point in shown.items():
        assert point == [f"{x:.3g}" for x in bandit.arms[arm].tolist()]


def test_journals_without_times_and_regret_are_read_and_resumed(played: tuple[tb.History, Path], tmp_path: Path):
    """Journals of the previous version, and of runs with unknown regret."""
    history, source = played
    path, new = tmp_path / "old.journal", ("at", "rounds", "environment", "regret", "best_regret")
    written(path, [{k: v for k, v in record.items() if k not in new} for record in records_of(source)])
    reading = Reading(path)
    np.testing.assert_array_equal(reading.history.pulls["reward"], history.pulls["reward"])
    assert np.isnan(reading.history.pulls["regret"]).all()
    assert np.isnan(reading.history.batches["seconds"]).all()
    assert reading.rounds is None
    said = facts(text_of(reading))
    assert said["pulls told"] == "30"
    assert "regret, last 30" not in said
    assert len(page_of_journal(reading).lines) == 2
    environment = tb.environments.Table(ARMS, MEANS, noise_std=0.3, name="hills")
    policy = tb.gp_bucb(rbf(), **COMMON, max_batch_size=5)
    same(history, tb.run(policy, environment, 30, generator=[generator(3), generator(4)], journal=path))


def test_a_black_box_leaves_no_regret_in_its_journal(tmp_path: Path):
    path, box = tmp_path / "run.journal", tb.environments.BlackBox(lambda point: float(point.sum()), ARMS)
    history = tb.run(tb.uniform(), box, 5, journal=path)
    same(history, Reading(path).history)
    assert not any("regret" in record for record in records_of(path))


def test_evaluations_that_failed_are_counted_as_the_run_counts_them(tmp_path: Path):
    def sometimes(point: torch.Tensor) -> float:
        return float(point.sum()) if point[0] < 0.6 else float("nan")

    path, box = tmp_path / "run.journal", tb.environments.BlackBox(sometimes, ARMS)
    policy = tb.gp_bucb(rbf(), **COMMON, max_batch_size=4)
    history = tb.run(policy, box, 25, journal=path, failures="exclude")
    reading = Reading(path)
    same(history, reading.history)
    failed = int(history.batches["failed"].sum())
    assert failed > 0
    assert facts(text_of(reading, now=reading.last))["failed"] == str(failed)
    assert reading.out.tolist() == [0]
    assert "done" in line(reading, 0, reading.last)


def test_a_store_of_workers_is_read_beside_them(tmp_path: Path):
    path = tmp_path / "run.db"
    worker = tb.Worker(tb.gp_ucb(rbf(), **COMMON), ARMS, store=path)
    leases, reading = [worker.ask() for _ in range(4)], Reading(path)
    assert reading.out.tolist() == [4]
    worker.tell(leases[2], 0.5)
    worker.tell(leases[0], -0.25)
    worker.forget(leases[1])
    assert reading.update() == 3
    told = reading.history.pulls
    assert told["arm"].tolist() == [int(leases[2].index), int(leases[0].index)]
    assert told["reward"].tolist() == [0.5, -0.25]
    assert (reading.out.tolist(), reading.forgotten.tolist()) == ([1], [1])
    said = facts(text_of(reading, now=reading.last))
    assert (said["dictionary"], said["distinct arms"]) == ("–", str(len(set(told["arm"].tolist()))))
    assert (reading.history.batches["seconds"] >= 0).all()
    result = RUNNER.invoke(app, ["report", str(path)])
    assert result.exit_code == 0, result.output
    assert "dictionary after" not in (tmp_path / "run.db.html").read_text(encoding="utf-8")


@pytest.mark.exhaustive
def test_watch_once_and_report_from_the_command_line(played: tuple[tb.History, Path], tmp_path: Path):
    _, source = played
    path = tmp_path / "run.journal"
    path.write_bytes(source.read_bytes())
    result = RUNNER.invoke(app, ["watch", "--once", str(path)])
    assert result.exit_code == 0, result.output
    assert facts(result.stdout)["pulls told"] == "30 of 30"
    assert not CONTROL & set(result.stdout)
    result = RUNNER.invoke(app, ["report", str(path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "run.journal.html").read_text(encoding="utf-8").count("<img") == 6


def test_what_is_no_journal_is_one_clear_line(played: tuple[tb.History, Path], tmp_path: Path):
    _, source = played
    records = records_of(source)
    wrong = {"text": b"hello\n", "empty": b"", "database": None, "later": None, "odd": None}
    for name, content in wrong.items():
        (tmp_path / name).write_bytes(content or b"")
    written(tmp_path / "later", [records[0] | {"format": 99}])
    written(tmp_path / "odd", [*records[:3], {"kind": "tell", "index": [1]}])
    (tmp_path / "database").write_bytes(b"SQLite format 3\0" + bytes(100))
    for name in ("nowhere", ".", *wrong):
        for command in (["report"], ["watch", "--once"]):
            result = RUNNER.invoke(app, [*command, str(tmp_path / name)])
            if (name, len(command)) == ("empty", 2):  # a run that has just started
                assert "nothing is written yet" in result.stdout
                continue
            assert result.exit_code == 2, (name, result.output)
            assert len(result.stderr.strip().splitlines()) == 1
    result = RUNNER.invoke(app, ["watch", "--once", "--row", "2", str(source)])
    assert "2 batch rows, counted from 0: there is no --row 2" in result.stderr


def grow(monkeypatch: pytest.MonkeyPatch, path: Path, whole: bytes, pieces: int) -> None:
    """At each sleep of the watcher, append a piece to the journal; after the last piece, raise Ctrl-C."""
    ends = iter([len(whole) * k // pieces for k in range(1, pieces + 1)])

    def sleep(seconds: float) -> None:
        end = next(ends, None)
        if end is None:
            raise KeyboardInterrupt
        path.write_bytes(whole[:end])

    monkeypatch.setattr("torchbandits.experiments.watching.time.sleep", sleep)


def test_without_a_terminal_there_are_plain_lines(
    played: tuple[tb.History, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A line is printed whenever something has changed, until the run is over; an unchanged state prints nothing."""
    path, whole = tmp_path / "run.journal", played[1].read_bytes()
    path.write_bytes(b"")
    grow(monkeypatch, path, whole, 6)
    console = Console(file=io.StringIO(), width=120)
    watch(path, console)
    lines = console.file.getvalue().splitlines()
    assert 5 <= len(lines) <= 7
    assert lines[-1].startswith("30 of 30 pulls, reward ")
    assert lines[-1].endswith("done")
    assert " to go" in lines[-2]
    assert not CONTROL & set(console.file.getvalue())


def test_in_a_terminal_ctrl_c_leaves_the_last_picture(
    played: tuple[tb.History, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, whole = tmp_path / "run.journal", played[1].read_bytes()
    whole = whole[: len(whole) // 2]
    path.write_bytes(whole[:9000])
    grow(monkeypatch, path, whole, 3)
    console = Console(file=io.StringIO(), width=100, height=40, force_terminal=True)
    watch(path, console)
    assert "of 30" in console.file.getvalue()
    assert console.file.getvalue().endswith("\x1b[?25h")  # the cursor is visible again


def test_the_folder_of_an_experiment_is_no_journal(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("name: mine\n")
    for path in (tmp_path, tmp_path / "records"):
        result = RUNNER.invoke(app, ["watch", str(path)])
        assert result.exit_code == 2
        assert f"is the folder of an experiment, not a journal: torchbandits report {path} shows" in result.stderr
