"""Workers on one SQLite file: no pick is lost or told twice, and the picks of a dead worker are assigned again."""

from __future__ import annotations

import gc
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from contract import CASES, PROBLEM, Case
from problems import COMMON, generator, rbf

import torchbandits as tb
from torchbandits import errors
from torchbandits.journal.reading import Reading
from torchbandits.testing.play import differences, everything

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")


def worker(path: Path, case: Case | None = None, **options: Any) -> tb.Worker:
    return tb.Worker((case or Case("gp_ucb", "")).policy(), PROBLEM.tensor, store=path, generator=generator(5), **options)


def reward(lease: tb.Lease) -> float:
    return PROBLEM.reward(lease.number, int(lease.index))


KINDS = [
    "gp_ucb",
    "batch_bkb",
    "ada_bkb",
    "pi_gp_ucb",
    "bpe",
    "thompson_sampling",
    "soful",
    "regularized_evolution",
]  # one of each


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case.name in KINDS else pytest.mark.exhaustive) for case in CASES if not case.mode],
    ids=lambda case: case.name,
)
def test_workers_in_turn_pick_what_one_bandit_would(case: Case, tmp_path: Path):
    """Two workers that ask and tell out of order agree with one bandit that is asked and told in the same order."""
    alone, open_picks, mine = case.bandit(), [], []
    workers = [worker(tmp_path / "run.db", case, every=4) for _ in range(2)]
    for number in range(14):
        lease = workers[number % 2].ask()
        first = alone.loop.open
        expected = alone.ask(more=1).index[-1] if first is not None else alone.ask(more=1).index[0]
        assert int(lease.index) == int(expected), number
        assert torch.equal(lease.points[0], PROBLEM.tensor[lease.index[0]])
        mine.append(lease)
        open_picks.append(lease)
        if number % 3 == 2:  # the last pick first
            for _ in range(2):
                done = open_picks.pop()
                workers[(number + done.number) % 2].tell(done, reward(done))
                alone.tell(done.index, torch.tensor([reward(done)]).double())
        if number == 6:
            failed = open_picks.pop(0)
            workers[1].tell(failed, torch.nan, failures="forget")
            alone.tell(failed.index, torch.tensor([torch.nan]).double(), failures="forget")
    late = worker(tmp_path / "run.db", case)
    for other in (*workers, late):
        assert torch.equal(other.bandit.counts, alone.counts)
        assert differences(other.bandit.state_dict()["open"], alone.state_dict()["open"]) == []
    assert late.told == int(alone.pulls)


def test_a_box_and_draws(tmp_path: Path):
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    policy = tb.gp_bucb(rbf(), **COMMON)
    one, other = (tb.Worker(policy, bounds=box, store=tmp_path / "run.db") for _ in range(2))
    leases = [one.ask(), other.ask(), one.ask()]
    other.forget(leases[1])
    one.tell(leases[2], 0.3)
    leases.append(other.ask())
    other.tell(leases[0], 0.1)
    assert torch.equal(one.bandit.posterior(box).mean, other.bandit.posterior(box).mean)
    assert torch.equal(one.bandit.ask().points, other.bandit.ask().points)
    assert len({tuple(lease.points[0].tolist()) for lease in leases}) >= 3


PAST = (torch.tensor([3, 17, 8]), [2.0, 1.0, 1.0], [0.9, -0.2, 0.4], [0.41, 0.04, 0.16])


@pytest.mark.parametrize("name", ["gp_ucb", "batch_bkb", "thompson_sampling"])
def test_history_is_learned_by_every_worker_once(name: str, tmp_path: Path):
    """Rewards that were told to the bandit of a worker were lost at the next call: nothing else took them."""
    case, path = Case(name, ""), tmp_path / "run.db"
    first, alone = worker(path, case, observed=PAST, every=3), case.bandit()
    alone.observe(*PAST)
    lease, expected = first.ask(), alone.ask(more=1)
    assert int(lease.index) == int(expected.index[-1])
    again, joined = worker(path, case, observed=PAST), worker(path, case)
    for number in range(5):
        joined.tell(lease, reward(lease))
        alone.tell(lease.index, torch.tensor([reward(lease)]).double())
        lease, expected = (again, first)[number % 2].ask(), alone.ask(more=1)
        assert int(lease.index) == int(expected.index[-1])
    late = worker(path, case)
    for one in (first, again, joined, late):
        assert (one.told, int(one.bandit.pulls)) == (5, 9)
    for other in (PAST[:3], (PAST[0], [3.0, 1.0, 1.0], *PAST[2:])):
        with pytest.raises(errors.StateError, match=r"began with another history: leave out observed="):
            worker(path, case, observed=other)
    seen = Reading(path)
    seen.update()
    assert float(seen.observed[0]) == 4


def test_history_belongs_to_the_beginning_of_a_store(tmp_path: Path):
    worker(tmp_path / "run.db")
    with pytest.raises(errors.StateError, match="began with no history"):
        worker(tmp_path / "run.db", observed=PAST)
    for wrong, error in (((PAST[0], [1.0]), errors.ArgumentError), ((PAST[0], [1.0], [1.0]), errors.ShapeError)):
        with pytest.raises(error, match=r"observed|counts"):
            worker(tmp_path / "other.db", observed=wrong)
    assert not (tmp_path / "other.db").exists()


def test_history_of_several_outcomes_and_of_other_points(tmp_path: Path):
    models = {"speed": tb.gp_ucb(rbf(), **COMMON), "life": tb.gp_ucb(rbf(), **COMMON)}
    policy, points = tb.outcomes.pareto(models), torch.rand(3, 2, dtype=torch.float64)
    past = (points, torch.ones(3), torch.rand(3, 2, dtype=torch.float64))
    one = tb.Worker(policy, PROBLEM.tensor, store=tmp_path / "run.db", observed=past)
    one.tell(one.ask(), {"speed": 0.3, "life": 0.2})
    alone = tb.OutcomeBandit(policy, PROBLEM.tensor)
    alone.observe(*past)
    alone.tell(one.bandit.counts[0].argmax().reshape(1), {"speed": [0.3], "life": [0.2]})
    other = tb.Worker(policy, PROBLEM.tensor, store=tmp_path / "run.db")
    assert torch.allclose(other.bandit.posterior(points).mean, alone.posterior(points).mean)


def test_leases_expire_and_the_first_reward_counts(tmp_path: Path):
    slow, fast = worker(tmp_path / "run.db", lease=0.05), worker(tmp_path / "run.db", lease=36_000.0)
    mine = slow.ask()
    time.sleep(0.06)
    again = fast.ask()
    assert (again.number, again.attempts, int(again.index)) == (mine.number, 2, int(mine.index))
    with pytest.raises(errors.StateError, match="not held"):
        slow.renew(mine)
    assert fast.renew(again).expires > again.expires
    slow.tell(mine, 0.5)  # late, but first
    before = everything(fast.bandit)
    for call in (lambda: fast.tell(again, 0.4), lambda: fast.forget(again)):
        with pytest.raises(errors.StateError, match="told already"):
            call()
    assert differences(before, everything(fast.bandit)) == []
    assert fast.told == 1
    assert float(fast.bandit.counts.sum()) == 1


@pytest.mark.parametrize("part", ["settle", "add"])
def test_a_transaction_that_fails_leaves_nothing_behind(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The disk fails after a reward was written, or after a pick was made: neither is in the file or in the worker."""
    one = worker(tmp_path / "run.db")
    one.tell(one.ask(), 0.3)
    lease, before = one.ask(), everything(one.bandit)
    written, broken = getattr(one._store, part), sqlite3.OperationalError("disk I/O error")

    def failing(*args: Any) -> None:
        written(*args)
        raise broken

    with monkeypatch.context() as patch:
        patch.setattr(one._store, part, failing)
        with pytest.raises(errors.DataError, match="disk I/O error"):
            one.tell(lease, 0.9) if part == "settle" else one.ask()
    assert differences(before, everything(one.bandit)) == []
    assert one.told == 1
    one.tell(lease, 0.2)
    assert one.told == 2


def test_a_limit_counts_what_is_out(tmp_path: Path):
    one = worker(tmp_path / "run.db")
    leases = [one.ask(limit=3) for _ in range(4)]
    assert leases[3] is None
    one.forget(leases[0])
    last = one.ask(limit=3)
    assert last is not None
    for lease in (*leases[1:3], last):
        one.tell(lease, reward(lease))
    assert one.ask(limit=3) is None
    assert one.told == 3


def test_a_worker_without_a_further_pick_says_what_to_do(tmp_path: Path):
    arms = torch.eye(2, dtype=torch.float64)
    several = tb.Worker(tb.auto(), arms, store=tmp_path / "held.db")
    leases = [several.ask() for _ in range(2)]
    said = (
        "the policy makes no pick beside the 2 picks that workers hold, as one that pulls each of the 2 arms once at a time: "
    )
    with pytest.raises(errors.StateError, match=said + r"tell\(\) their rewards or forget\(\) some, and ask again"):
        several.ask()
    several.tell(leases[0], 1.0)
    assert several.ask() is not None


def test_bad_calls_cost_nothing(tmp_path: Path):
    one, twin = worker(tmp_path / "run.db"), worker(tmp_path / "run.db")
    one.tell(one.ask(), 0.3)
    lease = one.ask()
    before = everything(one.bandit)
    calls = [
        (errors.NonFiniteError, lambda: one.tell(lease, torch.nan)),
        (errors.NonFiniteError, lambda: one.tell(lease, torch.inf)),
        (errors.ShapeError, lambda: one.tell(lease, torch.zeros(2))), (errors.NumericalError, lambda: one.tell(lease, 1.7e308)),
        (errors.ArgumentError, lambda: one.tell(lease, 0.1, failures="ignore")),
        (errors.ArgumentError, lambda: one.ask(limit=-1)),
        (errors.StateError, lambda: one.tell(tb.Lease(99, lease.points, lease.index, 0.0, 1), 0.1)),
        (errors.StateError, lambda: worker(tmp_path / "run.db", Case("igp_ucb", ""))),
        (errors.UnsupportedError, lambda: tb.Worker(Case("gp_ucb", "").policy(), PROBLEM.tensor[None].expand(2, -1, -1).clone(),
                                                    store=tmp_path / "two.db", generator=[generator(0)] * 2)),
        (errors.ArgumentError, lambda: worker(tmp_path / "other.db", lease=0.0)),
    ]  # fmt: skip
    for error, call in calls:
        with pytest.raises(error):
            call()
        assert differences(before, everything(one.bandit)) == []
        assert twin.told == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".db") == ["run.db"]
    one.tell(lease, 0.2)
    assert torch.equal(one.bandit.counts, twin.bandit.counts)


@pytest.mark.parametrize("content", [b"hello, this is no database, but a text of some length\n" * 30, b"\x00" * 4096, "other"])
def test_other_files_are_refused(tmp_path: Path, content: bytes | str, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "precious"
    if isinstance(content, str):
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE mine (x)")
        db.commit()
        db.close()
    else:
        path.write_bytes(content)
    before, opened, connect = path.read_bytes(), [], sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: opened.append(connect(*args, **options)) or opened[-1])
    with pytest.raises(errors.DataError):
        worker(path)
    gc.collect()
    assert path.read_bytes() == before
    assert opened
    for db in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            db.execute("SELECT 1")
    with pytest.raises(errors.DataError):
        worker(tmp_path / "none" / "run.db")


def test_a_saved_state_that_can_not_be_read_is_left_aside(tmp_path: Path):
    one = worker(tmp_path / "run.db", every=2)
    for _ in range(4):
        lease = one.ask()
        one.tell(lease, reward(lease))
    db = sqlite3.connect(tmp_path / "run.db")
    assert db.execute("SELECT event FROM checkpoint").fetchone()[0] >= 2
    db.execute("UPDATE checkpoint SET content = ?", (b"garbage",))
    db.commit()
    db.close()
    with pytest.warns(errors.JournalWarning, match="is not used"):
        twin = worker(tmp_path / "run.db")
    found = differences(everything(one.bandit), everything(twin.bandit))  # `twin` learned them by one update
    assert all(float(line.rsplit("by ")[-1]) < 1e-12 for line in found), found


WORK = """
import sys, time, torch, torchbandits as tb
sys.path[:0] = [{tests!r}]
from problems import COMMON, Problem, generator, rbf
problem = Problem(seed=3, a=40)
policy, options = tb.gp_ucb(rbf(), **COMMON), dict(generator=generator(5), lease={lease}, name={name!r})
worker = tb.Worker(policy, problem.tensor, store={path!r}, **options)
while worker.told < {total}:
    lease = worker.ask(limit={total})
    if lease is None:
        time.sleep(0.02)
        continue
    print("asked", lease.number, lease.attempts, flush=True)
    if {stuck} and lease.number > 5:
        time.sleep(1000)
    try:
        worker.tell(lease, problem.reward(lease.number, int(lease.index)))
    except tb.errors.StateError:  # handed out again, and told by another
        print("late", lease.number, flush=True)
        continue
    print("told", lease.number, flush=True)
"""


def evaluate_together(folder: Path, total: int, lease: float) -> tuple[list[str], list[str], int]:
    """Run two workers and a third that is killed while it evaluates. Returns the output of each and the third's open picks."""

    def start(name: str, stuck: bool) -> subprocess.Popen[str]:
        values = {"tests": str(Path(__file__).parent), "path": str(folder / "run.db"), "lease": lease, "total": total}
        code = WORK.format(name=name, stuck=stuck, **values)
        return subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True)

    third = start("third", True)
    held = 0
    for line in third.stdout:  # alone at first, so that it certainly holds a pick when it is killed
        word, number, *_ = line.split()
        if word == "asked" and int(number) > 5:
            held = int(number)
            third.send_signal(signal.SIGKILL)
    third.stdout.close()
    third.wait()
    both = [start(name, False) for name in ("one", "two")]
    printed = [process.communicate()[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    return printed[0], printed[1], held


def check_together(folder: Path, total: int, printed: tuple[list[str], list[str], int]) -> None:
    one, two, held = printed
    db = sqlite3.connect(folder / "run.db")
    told = [row[0] for row in db.execute("SELECT pick FROM events WHERE kind = 'tell'")]
    attempts = dict(db.execute("SELECT number, attempts FROM picks"))
    db.close()
    assert sorted(told) == list(range(1, total + 1))  # none lost, none told twice
    claims = [int(line.split()[1]) for line in one + two if line.startswith("told")]
    assert sorted([*claims, 1, 2, 3, 4, 5]) == sorted(told)  # the third told five before it died
    assert attempts[held] >= 2
    assert float(worker(folder / "run.db").bandit.counts.sum()) == total


@pytest.mark.slow
def test_two_workers_and_a_killed_third_finish_500(tmp_path: Path):
    check_together(tmp_path, 500, evaluate_together(tmp_path, 500, 3.0))


@pytest.mark.exhaustive
def test_two_workers_and_a_killed_third(tmp_path: Path):
    check_together(tmp_path, 30, evaluate_together(tmp_path, 30, 2.0))


def test_what_is_told_to_the_bandit_of_a_worker_is_left_behind(tmp_path: Path) -> None:
    own = worker(tmp_path / "run.db", every=1)
    for _ in range(2):
        own.tell(own.ask(), 0.5)
    own.bandit.tell(torch.tensor([3]), torch.tensor([50.0], dtype=torch.float64))
    own.tell(own.ask(), 0.5)
    assert int(own.bandit.pulls) == own.told == 3
    assert int(worker(tmp_path / "run.db").bandit.pulls) == 3


def test_a_lease_is_not_renewed_by_another_worker_of_the_same_name(tmp_path: Path) -> None:
    first = worker(tmp_path / "run.db", name="gpu", lease=0.05)
    lost = first.ask()
    time.sleep(0.1)
    held = worker(tmp_path / "run.db", name="gpu", lease=100.0).ask()
    assert held.number == lost.number
    with pytest.raises(errors.StateError, match="not held"):
        first.renew(lost)
    first.tell(held, 1.0)
    with pytest.raises(errors.StateError, match="handed out 2 times"):
        first.tell(lost, 1.0)


def test_a_checkpoint_that_can_not_be_written_costs_no_pick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = worker(tmp_path / "run.db", every=1)
    own.tell(own.ask(), 0.5)

    def fail(*_: object) -> None:
        raise errors.DataError("no space left on the device")

    monkeypatch.setattr("torchbandits.journal.SharedStore.save", fail)
    with pytest.warns(errors.JournalWarning, match="no space left"):
        assert own.ask() is not None


def test_a_saved_state_leaves_out_large_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # SQLite takes no value of more than 10⁹ bytes, so that the state of many arms could not be saved at all.
    monkeypatch.setattr("torchbandits.arms.reserve._LARGE_BYTES", 0)
    arms = torch.rand(3_000, 2, generator=generator(0), dtype=torch.float64)

    def begun() -> tb.Worker:
        policy = tb.gp_ucb(rbf(0.3), noise_std=0.1)
        return tb.Worker(policy, arms, store=tmp_path / "run.db", generator=generator(5), every=1)

    own = begun()
    for _ in range(12):
        lease = own.ask()
        own.tell(lease, float(lease.points.sum()))
    own.ask()
    connection = sqlite3.connect(tmp_path / "run.db")
    (size,) = connection.execute("SELECT length(content) FROM checkpoint").fetchone()
    connection.close()
    assert size < 7 * 8 * len(arms)
    other = begun()
    assert other.told == 12
    torch.testing.assert_close(other.bandit.posterior(arms).mean, own.bandit.posterior(arms).mean, rtol=1e-9, atol=1e-9)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    own = worker(tmp_path / "run.db")
    connection = own._store._connected()
    connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")

    def go_on() -> None:
        for _ in range(200):
            own.tell(own.ask(), 0.5)

    with pytest.raises(errors.DataError, match=r"is full\. Nothing was changed by this call\. Free space on the disk"):
        go_on()
