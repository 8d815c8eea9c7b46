"""Faults: calls in any order against a naive model, kills, wrong calls, full and read-only disks, senseless configurations."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import resource
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from problems import BOUNDED, COMMON, generator, rbf

import torchbandits as tb
from torchbandits import errors
from torchbandits.experiments.config import load_config

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")

SCRIPT = Path(__file__).parents[1] / "scripts" / "robustness" / "faults.py"


@pytest.fixture(scope="module")
def faults() -> Any:
    spec = importlib.util.spec_from_file_location("faults", SCRIPT)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------- any order of calls

POLICIES: dict[str, Callable[[], Any]] = {
    "gp_ucb": lambda: tb.gp_ucb(rbf(), **COMMON),
    "batch_bkb": lambda: tb.batch_bkb(rbf(), **BOUNDED),
    "thompson_sampling": lambda: tb.thompson_sampling(rbf(), **BOUNDED),
    "epsilon_greedy": lambda: tb.epsilon_greedy(),
}
SETS = [
    torch.rand(a, 2, dtype=torch.float64, generator=generator(9))[start:] for a, start in ((9, 0), (12, 0), (12, 3), (10, 0))
]


class AgainstANaiveModel(RuleBasedStateMachine):
    """A naive model of a bandit: counts and sums by point, and the open picks as a multiset."""

    @initialize(name=st.sampled_from(list(POLICIES)))
    def start(self, name: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path, self.policy = Path(self.folder.name) / "run.journal", POLICIES[name]()
        self.first = self.arms = SETS[0]
        self.bandit = self.opened()
        self.counts: Counter[tuple[float, ...]] = Counter()
        self.sums: Counter[tuple[float, ...]] = Counter()
        self.open: Counter[tuple[float, ...]] = Counter()
        self.saved: Any = None

    def opened(self) -> tb.Bandit:
        return tb.Bandit(self.policy, self.first, generator=generator(3), journal=tb.Journal(self.path, every=4, durable=False))

    def key(self, index: int) -> tuple[float, ...]:
        return tuple(self.arms[index].tolist())

    def keys(self, index: torch.Tensor) -> list[tuple[float, ...]]:
        return [self.key(i) for i in index.tolist() if i >= 0]

    @rule(more=st.integers(1, 3))
    def ask(self, more: int) -> None:
        before = self.bandit.loop.open
        selection = self.bandit.ask(more=more)
        assert len(selection) == sum(self.open.values()) + more
        assert before is None or torch.equal(selection.index[: len(before)], before.index)
        self.open = Counter(self.keys(selection.index))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def tell_some(self, data: st.DataObject) -> None:
        """Tell any part of the open picks, in any order, with failures among them."""
        selection = self.bandit.ask()
        places = data.draw(st.lists(st.integers(0, len(selection) - 1), min_size=1, unique=True))
        values = data.draw(st.lists(st.floats(-3, 3) | st.just(float("nan")), min_size=len(places), max_size=len(places)))
        part = selection[torch.tensor(places)]
        self.bandit.tell(part, torch.tensor(values, dtype=torch.float64), failures="forget")
        for key, value in zip(self.keys(part.index), values, strict=True):
            self.open[key] -= 1
            if value == value:
                self.counts[key] += 1
                self.sums[key] += value
        self.open = +self.open

    @rule(index=st.integers(0, 8), value=st.floats(-3, 3))
    def tell_unasked(self, index: int, value: float) -> None:
        self.bandit.tell(torch.tensor([index]), torch.tensor([value], dtype=torch.float64))
        self.counts[self.key(index)] += 1
        self.sums[self.key(index)] += value
        self.open = +(self.open - Counter([self.key(index)]))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        selection = self.bandit.ask()
        place = data.draw(st.integers(0, len(selection) - 1))
        self.open -= Counter(self.keys(selection[place : place + 1].index))
        self.bandit.forget(selection[place : place + 1])

    @rule(index=st.integers(0, 8), count=st.integers(1, 5), total=st.floats(-5, 5))
    def observe(self, index: int, count: int, total: float) -> None:
        self.bandit.observe(torch.tensor([index]), torch.tensor([float(count)]), torch.tensor([total], dtype=torch.float64))
        self.counts[self.key(index)] += count
        self.sums[self.key(index)] += total

    @rule(number=st.integers(0, len(SETS) - 1))
    def set_arms(self, number: int) -> None:
        held = {tuple(point) for point in SETS[number].tolist()}
        if set(self.open) - held:
            with pytest.raises(errors.StateError):
                self.bandit.set_arms_(SETS[number])
            return
        self.bandit.set_arms_(SETS[number])
        self.arms = SETS[number]

    @rule()
    def save(self) -> None:
        self.saved = (self.bandit.state_dict(), self.arms, *(counter.copy() for counter in (self.counts, self.sums, self.open)))

    @precondition(lambda self: self.saved is not None and len(self.saved[1]) == len(self.arms))
    @rule()
    def load(self) -> None:
        if not torch.equal(self.saved[1], self.arms):
            return  # a state of as many other arms, which the caller has to know
        self.bandit.load_state_dict(self.saved[0])
        self.counts, self.sums, self.open = (counter.copy() for counter in self.saved[2:])

    @rule()
    def end_and_resume(self) -> None:
        picks = self.bandit.loop.open
        self.bandit.journal.close()
        self.bandit = self.opened()
        again = self.bandit.loop.open
        assert (picks is None) == (again is None)
        assert picks is None or torch.equal(picks.index, again.index)

    @rule(wrong=st.sampled_from(["tell", "forget", "observe", "ask", "set_arms", "load"]))
    def wrong(self, wrong: str) -> None:
        calls = {
            "tell": lambda: self.bandit.tell(torch.tensor([0]), torch.tensor([torch.nan])),
            "forget": lambda: self.bandit.forget(torch.tensor([0] * 40)),
            "observe": lambda: self.bandit.observe(torch.tensor([0]), torch.tensor([-1.0]), torch.tensor([0.0])),
            "ask": lambda: self.bandit.ask(more=0),
            "set_arms": lambda: self.bandit.set_arms_(self.arms[:, :1]),
            "load": lambda: self.bandit.load_state_dict({"state": {}, "open": None}),
        }
        with pytest.raises(errors.TorchBanditsError):
            calls[wrong]()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "bandit"):
            return
        counts = torch.tensor([float(self.counts[self.key(i)]) for i in range(len(self.arms))], dtype=torch.float64)
        assert torch.equal(self.bandit.counts, counts)
        statistics = self.bandit.loop.state.statistics
        sums = {
            tuple(p): s
            for p, s, n in zip(statistics.points.tolist(), statistics.sums.tolist(), statistics.weights, strict=True)
            if n
        }
        assert {k for k, n in self.counts.items() if n} == set(sums)
        assert all(abs(sums[k] - self.sums[k]) < 1e-9 for k in sums)
        opened = self.bandit.loop.open
        assert Counter([] if opened is None else self.keys(opened.index)) == self.open
        assert float(self.bandit.pulls) == sum(self.counts.values())

    def teardown(self) -> None:
        if hasattr(self, "bandit"):
            self.bandit.journal.close()
            self.folder.cleanup()


TestAnyOrderOfCalls = AgainstANaiveModel.TestCase
TestAnyOrderOfCalls.settings = settings(max_examples=8, stateful_step_count=12, deadline=None, derandomize=True)


# ------------------------------------------------------------------------- kills, wrong calls


def test_some_kills_and_some_wrong_calls(faults: Any, tmp_path: Path):
    kills = faults.kill_often(3, tmp_path, random.Random(5), steps=60, policies=["batch_bkb"])
    assert (kills.kills, kills.lost, kills.identical) == (3, 0, 3)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    found = faults.fuzz(250, random.Random(1))
    assert resource.getrlimit(resource.RLIMIT_AS) == limits  # restored, because other tests start programs that map more memory
    assert found.wrong == []
    assert found.changed == 0
    assert found.accepted >= 10
    assert "fuzzed calls | 250" in faults.table(kills, found)


def test_some_damage_some_interrupts_and_some_failing_writes(faults: Any, tmp_path: Path):
    storage = sys.modules["faults_storage"]
    folders = [tmp_path / name for name in ("damage", "bandits", "workers", "disks")]
    for folder in folders:
        folder.mkdir()
    damage = storage.damage_files(40, folders[0], random.Random(2))
    assert (damage.unseen, damage.tracebacks, damage.overwritten) == (0, 0, 0)
    assert damage.refused >= 20
    for interrupt, folder in ((storage.interrupt_bandits, folders[1]), (storage.interrupt_workers, folders[2])):
        found = interrupt(10, folder, random.Random(3))
        assert (found.interrupted, found.twice_or_lost, found.disagreements) == (10, 0, 0)
    disks = storage.fail_disks(2, folders[3], random.Random(4), steps=10)
    assert (disks.lost, disks.identical) == (0, disks.runs)


@pytest.mark.slow
def test_all_kills_and_all_wrong_calls(faults: Any):
    assert faults.main([]) == 0


# ------------------------------------------------------------------------- disks


def in_a_fork(faults: Any, work: Callable[[], None]) -> None:
    """Run work in a child process with its own limits or rights."""
    with warnings.catch_warnings():
        # Python warns of forks beside threads. The child runs only this work.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = faults.in_a_fork(work)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def bandit_on(path: Path) -> tb.Bandit:
    return tb.Bandit(POLICIES["gp_ucb"](), SETS[0], generator=generator(3), journal=tb.Journal(path, every=3))


def test_a_disk_that_fills_up(faults: Any, tmp_path: Path):
    """A limit on the size of files, as a quota or a full disk would be: calls raise errors, nothing is lost, and freed space is
    used again."""
    path = tmp_path / "run.journal"

    def work() -> None:
        warnings.simplefilter("ignore", errors.JournalWarning)  # checkpoints do not fit on the disk either
        bandit = bandit_on(path)
        limit = path.stat().st_size + 3_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        told = refused = 0
        while refused < 3:
            try:
                bandit.tell(bandit.ask(), torch.tensor([0.1 * told]))
                told += 1
            except errors.DataError:
                refused += 1
                assert int(bandit.pulls) == told
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        bandit.tell(bandit.ask(), torch.tensor([0.1 * told]))
        (tmp_path / "told").write_text(str(told + 1))

    in_a_fork(faults, work)
    assert int(bandit_on(path).pulls) == int((tmp_path / "told").read_text()) >= 3


@pytest.fixture
def visible() -> Iterator[Path]:
    """A folder that all users can read; the parents of tmp_path belong to root where root runs the tests."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_folder_that_is_read_only(faults: Any, visible: Path):
    folder = visible / "sealed"
    folder.mkdir()
    held = folder / "held.journal"
    bandit_on(held).journal.close()
    held.chmod(0o444)
    folder.chmod(0o555)

    def work() -> None:
        if os.getuid() == 0:
            os.setuid(65534)  # for root, nothing is read-only
        for path in (folder / "new.journal", held):
            with pytest.raises(errors.DataError, match="opened"):
                bandit_on(path)
        with pytest.raises(errors.DataError):
            tb.Worker(POLICIES["gp_ucb"](), SETS[0], store=folder / "new.db")

    in_a_fork(faults, work)
    assert [path.name for path in folder.iterdir()] == ["held.journal"]
    folder.chmod(0o755)


# ------------------------------------------------------------------------- configurations

NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
QUICKSTART = yaml.safe_load((Path(__file__).parents[1] / "configs" / "quickstart.yaml").read_text())


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a nested configuration."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


@pytest.mark.exhaustive
@settings(max_examples=40, derandomize=True, deadline=None)
@given(place=st.sampled_from(places(QUICKSTART)), value=NONSENSE, raw=st.none() | st.binary(max_size=40))
def test_a_configuration_of_nonsense(place: tuple[Any, ...], value: Any, raw: bytes | None):
    def put(tree: Any, path: tuple[Any, ...]) -> Any:
        if not path:
            return value
        copy = dict(tree) if isinstance(tree, dict) else list(tree)
        copy[path[0]] = put(tree[path[0]], path[1:])
        return copy

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_bytes(yaml.safe_dump(put(QUICKSTART, place), allow_unicode=True).encode() if raw is None else raw)
        with contextlib.suppress(errors.ConfigError):  # anything else is a failure
            load_config(file)
