"""Workers on one SQLite file that are interrupted or forked, and files that are swapped, foreign or damaged during use."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from contract import PROBLEM, Case
from test_worker import reward, worker

import torchbandits as tb
from torchbandits import errors
from torchbandits.journal import Reading

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")

PACKAGE = str(Path(tb.__file__).parent)
OWN = ("worker.py", "together.py", "shared.py")  # interrupted between any two bytecodes, other files between lines


class Interrupt:
    """Raises `KeyboardInterrupt` at the n-th step of the package within a call, like Ctrl-C at that moment. If a function of a
    worker is named, only its steps are counted."""

    def __init__(self, at: int, only: str = "") -> None:
        self.left, self.fired, self._only = at, False, only

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        own = frame.f_code.co_filename.endswith(OWN)
        if self._only and not (own and frame.f_code.co_name == self._only):
            return None
        frame.f_trace_opcodes = own
        if event == ("opcode" if own else "line"):
            self.left -= 1
            if self.left < 0 and not self.fired:
                self.fired = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace

    def during(self, call: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return call()
        except KeyboardInterrupt:
            return None
        finally:
            sys.settrace(before)


def steps_of(call: Callable[[], Any]) -> int:
    """The number of steps of a call."""
    count = Interrupt(sys.maxsize)
    count.during(call)
    return sys.maxsize - count.left


def agree(one: tb.Worker, other: tb.Worker) -> None:
    """Assert that both agree: pulls, sums and open picks exactly, the posterior up to rounding."""
    (a, b), arms = (one.bandit, other.bandit), PROBLEM.tensor
    assert torch.equal(a.counts, b.counts)
    assert float(a.pulls) == float(b.pulls) == one.told
    assert torch.allclose(a.loop.state.statistics.totals, b.loop.state.statistics.totals, rtol=1e-12, atol=1e-12)
    assert (a.loop.open is None) == (b.loop.open is None)
    assert a.loop.open is None or torch.equal(a.loop.open.index, b.loop.open.index)
    x, y = a.posterior(arms), b.posterior(arms)
    assert torch.allclose(x.mean, y.mean, rtol=1e-9, atol=1e-9)
    assert torch.allclose(x.variance, y.variance, rtol=1e-9, atol=1e-9)
    assert [g.get_state().tolist() for g in a.generators] == [g.get_state().tolist() for g in b.generators]


CALLS: dict[str, Callable[[tb.Worker, list[tb.Lease]], Any]] = {
    "ask": lambda one, _: one.ask(),
    "tell": lambda one, leases: one.tell(leases[0], 0.7),
    "forget": lambda one, leases: one.forget(leases[0]),
    "renew": lambda one, leases: one.renew(leases[0]),
    "bandit": lambda one, _: one.bandit,
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["gp_ucb", "batch_bkb"])  # tells are learned together, and one after the other
@pytest.mark.parametrize("kind", list(CALLS))
def test_an_interrupt_anywhere_neither_loses_a_reward_nor_learns_it_twice(name: str, kind: str, tmp_path: Path):
    case, call = Case(name, ""), CALLS[kind]
    one, other = (worker(tmp_path / "run.db", case, every=7) for _ in range(2))
    leases = [one.ask() for _ in range(5)]

    def news() -> None:  # something to learn at the next call
        other.tell(other.ask(), 0.3)
        other.forget(other.ask())

    news()
    steps, number = steps_of(lambda: call(one, leases)), 0
    for number, at in enumerate(range(list(CALLS).index(kind), steps, max(1, steps // 9))):
        leases[0] = one.ask()
        news()
        interrupt = Interrupt(at)
        interrupt.during(lambda: call(one, leases))
        assert interrupt.fired or number
        agree(one, other)
    lease, told = one.ask(), one.told  # continues as if nothing had happened
    one.tell(lease, reward(lease))
    assert other.told == told + 1
    agree(one, other)
    agree(one, worker(tmp_path / "run.db", case))
    assert number >= 8


def test_an_interrupt_between_any_two_bytecodes_of_learning(tmp_path: Path):
    """Every bytecode of `_catch_up`. An earlier version learned a reward twice if it was interrupted before the reward was
    counted as seen."""
    case, at = Case("gp_ucb", ""), 0
    one, other = (worker(tmp_path / "run.db", case, every=7) for _ in range(2))
    while True:
        lease = other.ask()
        other.tell(lease, reward(lease))
        interrupt = Interrupt(at, only="_catch_up")
        interrupt.during(lambda: one.bandit)
        assert torch.equal(one.bandit.counts, other.bandit.counts)
        if not interrupt.fired:
            break
        at += 1
    assert at > 30
    agree(one, other)


# ------------------------------------------------------------------------- leases, forks


def test_a_lease_of_another_store_is_refused(tmp_path: Path):
    """The number of the lease belongs to a different pick in the other store, at another arm."""
    one, other = worker(tmp_path / "one.db"), worker(tmp_path / "other.db")
    lease, mine = one.ask(), other.ask()
    assert lease.number == mine.number
    for call in (lambda: other.tell(lease, 0.5), lambda: other.forget(lease), lambda: other.renew(lease)):
        with pytest.raises(errors.StateError, match="another store"):
            call()
    assert other.told == 0
    one.tell(lease, 0.5)
    worker(tmp_path / "other.db").tell(mine, 0.5)  # any worker on the store of the lease accepts it


def in_a_fork(work: Callable[[], None]) -> None:
    """Run `work` in a forked process, and fail if it fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forks with running threads, which the child does not use
        child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_worker_opens_a_connection_of_its_own(tmp_path: Path):
    one = worker(tmp_path / "run.db")
    mine, theirs = one.ask(), one.ask()
    mark = one._store._db

    def work() -> None:
        assert one._store._db is None  # the parent's connection is not inherited
        assert one.told == 0
        one.tell(theirs, 0.4)
        lease = one.ask()
        one.tell(lease, 0.1)
        assert float(one.bandit.pulls) == 2

    in_a_fork(work)
    assert one._store._db is not mark
    one.tell(mine, 0.2)
    assert one.told == 3
    agree(one, worker(tmp_path / "run.db"))


def test_a_fork_within_a_transaction_leaves_the_store_to_the_parent(tmp_path: Path):
    one = worker(tmp_path / "run.db")
    lease = one.ask()

    def refused() -> None:
        for call in (lambda: one.told, lambda: one.tell(lease, 0.1), lambda: one.bandit, one.ask):
            with pytest.raises(errors.StateError, match="forked in the middle of a transaction"):
                call()

    one._store.transaction(lambda: in_a_fork(refused))
    one.tell(lease, 0.3)
    assert worker(tmp_path / "run.db").told == 1


PARENT = """
import os, sys, time, torch
sys.path[:0] = [{tests!r}]
from pathlib import Path
from test_worker import worker
one = worker(Path({path!r}))
one.tell(one.ask(), 0.3)
if os.fork() == 0:
    time.sleep(3600)
    os._exit(0)
one._store.transaction(lambda: (print("in", flush=True), time.sleep(3600)))
"""


@pytest.mark.exhaustive
def test_forks_of_a_killed_process_hold_nothing(tmp_path: Path):
    path = tmp_path / "run.db"
    code = PARENT.format(tests=str(Path(__file__).parent), path=str(path))
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert parent.stdout.readline() == "in\n"
        parent.kill()
        parent.wait()
        one = worker(path)
        one.tell(one.ask(), 0.1)
        assert one.told == 2
        os.killpg(parent.pid, 0)  # the fork is still running
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


# ------------------------------------------------------------------------- files that are swapped or damaged


def swaps(path: Path) -> dict[str, Callable[[], Any]]:
    """Ways in which the file of a worker is removed or replaced."""
    twin = path.with_name("twin.db")
    return {
        "deleted": path.unlink,
        "deleted with all": lambda: [p.unlink() for p in path.parent.glob("run.db*")],
        "moved": lambda: path.rename(path.with_name("elsewhere.db")),
        "replaced": lambda: (shutil.copy(path, twin), os.replace(twin, path)),
        "without its log": path.with_name("run.db-wal").unlink,
    }


@pytest.mark.parametrize("how", ["deleted", "deleted with all", "moved", "replaced", "without its log"])
def test_a_store_that_is_swapped_is_noticed_before_anything_counts_as_told(how: str, tmp_path: Path):
    path = tmp_path / "run.db"
    one = worker(path)
    one.tell(one.ask(), 0.3)
    lease = one.ask()
    swaps(path)[how]()
    content = path.read_bytes() if path.exists() else None
    calls = [lambda: one.tell(lease, 0.5), lambda: one.forget(lease), lambda: one.renew(lease), one.ask, lambda: one.told,
             lambda: one.bandit]  # fmt: skip
    for call in calls:
        with pytest.raises(errors.DataError, match="deleted, moved or replaced"):
            call()
    assert (path.read_bytes() if path.exists() else None) == content
    if how == "moved":
        path.with_name("elsewhere.db").rename(path)
        one.tell(lease, 0.5)
        assert worker(path).told == 2


def test_a_swap_within_a_call_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "run.db"
    one = worker(path)
    lease, settle = one.ask(), one._store.settle
    monkeypatch.setattr(one._store, "settle", lambda *args: (settle(*args), path.unlink()))
    with pytest.raises(errors.DataError, match="replaced"):
        one.tell(lease, 0.5)


def test_a_worker_that_lost_its_store_leaves_the_next_one_alone(tmp_path: Path):
    """When the last connection is closed, SQLite deletes the log beside the file by its name, including committed data."""
    path = tmp_path / "run.db"
    lost = worker(path)
    lost.tell(lost.ask(), 0.3)
    for file in tmp_path.iterdir():
        file.unlink()
    one = worker(path)
    one.tell(one.ask(), 0.5)
    lost.close()
    del lost
    one.tell(one.ask(), 0.7)
    assert worker(path).told == one.told == 2


def test_a_relative_path_keeps_its_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    one = worker(Path("run.db"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    lease = one.ask()
    in_a_fork(lambda: one.tell(lease, 0.3))
    assert one.told == 1
    assert not list((tmp_path / "elsewhere").iterdir())


def change(path: Path, statement: str, *values: Any) -> None:
    db = sqlite3.connect(path)
    db.execute(statement, values)
    db.commit()
    db.close()


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DELETE FROM run", "does not identify its run"),
        ("UPDATE run SET began = '[]'", "does not identify its run"),
        ("UPDATE run SET began = '[[1, 2, 3]]'", "generator"),
        ("UPDATE run SET described = '3'", "does not identify its run"),
        ('UPDATE picks SET content = \'{"index": [999], "drawn": []}\'', "event 1: .*arm index 999"),
        ('UPDATE picks SET content = \'{"index": [-5], "drawn": []}\'', "event 1: .*arm index -5"),
        ('UPDATE picks SET content = \'{"index": [[1, 2]], "drawn": []}\'', "event 1: "),
        ("UPDATE picks SET content = '{\"index\": [1]}'", "event 1: "),
        ("UPDATE picks SET content = '[]'", "event 1: "),
        ("UPDATE events SET content = '{\"rewards\": [1.0, 2.0]}' WHERE kind = 'tell'", "event 2: "),
        ("UPDATE events SET content = '{}' WHERE kind = 'tell'", "event 2: "),
    ],
)
def test_a_damaged_store_is_one_clear_error(tmp_path: Path, statement: str, words: str):
    path = tmp_path / "run.db"
    one = worker(path)
    one.tell(one.ask(), 0.3)
    one.close()
    change(path, statement)
    with pytest.raises(errors.DataError, match=words):
        worker(path)


def test_reading_a_store_without_its_run_is_one_clear_error(tmp_path: Path):
    path = tmp_path / "run.db"
    worker(path).close()
    change(path, "DELETE FROM run")
    with pytest.raises(errors.DataError, match="does not identify its run"):
        Reading(path).update()
