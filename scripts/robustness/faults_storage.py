"""Faults of processes and disks: killed pools and workers, full and failing disks, damaged files, interrupted calls.

`faults.py` runs these together with its own kills and wrong calls, and prints one table.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import gpytorch
import torch

import torchbandits as tb
from torchbandits.errors import DataError, JournalWarning, StateError, TorchBanditsError

ARMS = torch.rand(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
PACKAGE = str(Path(tb.__file__).parent)


def policy(name: str = "gp_ucb") -> Any:
    """Make a policy with a new kernel."""
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 0.3
    return getattr(tb, name)(kernel, noise_std=0.1)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def reward(index: int, number: int) -> float:
    """The reward of a pull, which depends only on the arm and on the number of the pull, so that a repetition is recognised."""
    noise = float(torch.randn((), dtype=torch.float64, generator=seeded(number)))
    return float(torch.sin(5 * ARMS[index, 0]) + torch.cos(3 * ARMS[index, 1])) + 0.1 * noise


def in_a_fork(work: Callable[[], None], *, leader: bool = False) -> int:
    """Run `work` in a child process, optionally as the leader of a process group, and return its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        if leader:
            os.setsid()
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def acknowledged_by(child: int, reader: int, moments: int, rng: random.Random) -> tuple[list[int], bool]:
    """Kill a child after some of its acknowledgements. Returns all acknowledgements, and whether it was still running."""
    with os.fdopen(reader, "rb") as pipe:
        lines = [pipe.readline() for _ in range(moments)]
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        # Processes that outlive the child hold the pipe open.
        os.set_blocking(pipe.fileno(), False)
        rest = pipe.read() or b""
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError("a run failed by itself; its traceback is above")
    return [int(line) for line in b"".join([*lines, rest]).split()], os.WIFSIGNALED(status)


# ------------------------------------------------------------------------- pools of processes


@dataclass
class Pools:
    """Counts of runs with a pool of processes whose main process was killed."""

    kills: int = 0
    reopened: int = 0
    lost: int = 0


def slow_reward(features: torch.Tensor, seed: int) -> float:
    """A slow evaluation in another process."""
    time.sleep(0.02)
    return float(torch.sin(5 * features[0])) + (seed % 1000) * 1e-4


def kill_pools(number: int, folder: Path, rng: random.Random, rounds: int = 60) -> Pools:
    """Kill `run(executor=ProcessPoolExecutor(…), journal=…)` and reopen the journal at once, while its pool is still alive."""
    found = Pools()
    while found.kills < number:
        path = folder / f"pool-{found.kills}.journal"
        reader, writer = os.pipe()

        def work(path: Path = path, reader: int = reader, writer: int = writer) -> None:
            os.close(reader)

            def acknowledge(played: tb.Bandit, *_: Any) -> None:
                os.write(writer, b"%d\n" % int(played.pulls))

            environment = tb.environments.BlackBox(slow_reward, ARMS, noise_std=0.1, seeded=True)
            with ProcessPoolExecutor(2) as pool:
                tb.run(
                    policy(), environment, rounds, generator=seeded(2), journal=path, executor=pool, workers=2,
                    asynchronous=True, callbacks=[acknowledge],
                )  # fmt: skip

        child = in_a_fork(work, leader=True)
        os.close(writer)
        try:
            acknowledged, running = acknowledged_by(child, reader, rng.randrange(1, 12), rng)
            if not running:
                continue
            found.kills += 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", JournalWarning)
                bandit = tb.Bandit(policy(), ARMS, generator=seeded(2), journal=path) if _of_bandit(path) else None
            if bandit is not None:
                found.reopened += 1
                found.lost += max(0, acknowledged[-1] - int(bandit.pulls))
                assert bandit.journal is not None
                bandit.journal.close()
            # The environment belongs to the run: only the same call resumes it.
            else:
                told = sum(len(record["index"]) for record in tb.Journal(path).records() if record["kind"] == "tell")
                found.lost += max(0, acknowledged[-1] - told)
                found.reopened += _goes_on(path)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
    return found


def _of_bandit(path: Path) -> bool:
    """Whether the journal names no environment, so that a plain Bandit may resume it."""
    with open(path, "rb") as file:
        return b"environment" not in file.readline()


def _goes_on(path: Path) -> bool:
    """Whether the same call of `run` resumes from the journal."""

    def work() -> None:
        warnings.simplefilter("ignore", JournalWarning)
        environment = tb.environments.BlackBox(slow_reward, ARMS, noise_std=0.1, seeded=True)
        with ProcessPoolExecutor(2) as pool:
            told = sum(len(record["index"]) for record in tb.Journal(path).records() if record["kind"] == "tell")
            tb.run(
                policy(), environment, told + 2, generator=seeded(2), journal=path, executor=pool, workers=2, asynchronous=True
            )

    child = in_a_fork(work)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ------------------------------------------------------------------------- workers


@dataclass
class Fleets:
    """Counts of killed workers that shared a store."""

    kills: int = 0
    lost: int = 0
    twice: int = 0
    told: int = 0
    disagreements: int = 0


def kill_workers(number: int, folder: Path, rng: random.Random, fleet: int = 3) -> Fleets:
    """Kill workers of one store at random moments, start others, and compare the store with the acknowledgements."""
    found, path = Fleets(), folder / "fleet.store"
    reader, writer = os.pipe()

    def work() -> None:
        os.close(reader)
        warnings.simplefilter("ignore", JournalWarning)
        worker = tb.Worker(policy(), ARMS, store=path, lease=0.5, generator=seeded(3), every=7)
        while True:
            lease = worker.ask()
            assert lease is not None
            index = int(lease.index)
            # Another worker has told a pick whose lease had expired.
            with contextlib.suppress(StateError):
                worker.tell(lease, reward(index, lease.number))
                os.write(writer, b"%d\n" % lease.number)

    children = [in_a_fork(work) for _ in range(fleet)]
    try:
        while found.kills < number:
            time.sleep(rng.uniform(0.05, 0.6))
            place = rng.randrange(fleet)
            os.kill(children[place], signal.SIGKILL)
            if not os.WIFSIGNALED(os.waitpid(children[place], 0)[1]):
                raise RuntimeError("a worker failed by itself; its traceback is above")
            found.kills += 1
            children[place] = in_a_fork(work)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        acknowledged = Counter(int(line) for line in pipe.read().split())
    told = Counter(record["pick"] for record in _events(path) if record["kind"] == "tell")
    found.told = sum(told.values())
    found.lost = len(set(acknowledged) - set(told))
    found.twice = sum(count - 1 for count in (told + Counter()).values()) + sum(count - 1 for count in acknowledged.values())
    worker = tb.Worker(policy(), ARMS, store=path, generator=seeded(3))
    counts, sums = torch.zeros(len(ARMS), dtype=torch.float64), torch.zeros(len(ARMS), dtype=torch.float64)
    for record in _events(path):
        if record["kind"] == "tell":
            counts[record["index"]] += 1
            sums[record["index"]] += record["reward"]
    model = tb.Bandit(policy(), ARMS)
    some = counts > 0
    model.observe(some.nonzero().squeeze(-1), counts[some], sums[some])
    found.disagreements += not torch.equal(worker.bandit.counts, counts)
    difference = (worker.bandit.posterior(ARMS).mean - model.posterior(ARMS).mean).abs().max()
    found.disagreements += bool(difference > 1e-9)
    worker.close()
    return found


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """The contents of the store, read by SQL alone: number of the pick, kind, arm and reward."""
    query = "SELECT kind, pick, events.content, picks.content FROM events JOIN picks ON pick = picks.number"
    query += " ORDER BY events.number"
    reader = "import json, sqlite3, sys; print(json.dumps(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchall()))"
    # Read in a separate process, which shares none of the library's connections.
    rows = json.loads(subprocess.run([sys.executable, "-c", reader, str(path), query], check=True, capture_output=True).stdout)
    for kind, pick, content, picked in rows:
        index = json.loads(picked)["index"]
        value = json.loads(content).get("rewards")
        yield {"kind": kind, "pick": pick, "index": index[0], "reward": None if value is None else value[0]}


# ------------------------------------------------------------------------- full and failing disks


@dataclass
class Disks:
    """Counts of calls on a disk that is full or reports errors."""

    faults: int = 0
    refused: int = 0
    lost: int = 0
    identical: int = 0
    runs: int = 0
    full: int = 0


def play(bandit: tb.Bandit, steps: int, tolerate: bool = False) -> int:
    """Ask and tell until a number of pulls is told. Returns the number of refused calls."""
    refused = 0
    while (told := int(bandit.pulls)) < steps:
        try:
            selection = bandit.ask()
            bandit.tell(selection, torch.tensor([reward(int(selection.index[0]), told)], dtype=torch.float64))
        except (DataError, StateError):
            if not tolerate:
                raise
            refused += 1
            if refused > 50:
                raise
            if int(bandit.pulls) != told:
                raise RuntimeError("a refused call changed what the bandit knows") from None
            if bandit.journal is None or not _usable(bandit):
                break
    return refused


def _usable(bandit: tb.Bandit) -> bool:
    """Whether the next call may succeed. A journal whose end is unknown must be opened again."""
    try:
        bandit.forget(torch.zeros(0, dtype=torch.int64))
    except (DataError, StateError):
        return False
    return True


def sequence(path: Path) -> list[tuple[int, float]]:
    """The arms and rewards told, in order."""
    told = [record for record in tb.Journal(path).records() if record["kind"] == "tell"]
    return [pair for record in told for pair in zip(record["index"], record["rewards"], strict=True)]


def open_journal(path: Path, every: int = 5, durable: bool = True) -> tb.Bandit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JournalWarning)
        return tb.Bandit(policy(), ARMS, generator=seeded(4), journal=tb.Journal(path, every=every, durable=durable))


class FailingCalls:
    """`os` with one function that fails once, at a given call, as on a disk with a bad sector or without space."""

    def __init__(self, name: str, at: int, code: int) -> None:
        self.name, self.left, self.code, self.failed = name, at, code, False

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._failing(real) if name == self.name else real

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                self.failed = True
                if self.name == "write" and len(arguments[1]) > 1:
                    # A part of the data reaches the disk.
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise OSError(self.code, os.strerror(self.code))
            return real(*arguments, **options)

        return call


def fail_disks(number: int, folder: Path, rng: random.Random, steps: int = 25) -> Disks:
    """Make write, fsync and ftruncate fail at random calls (EIO, ENOSPC), continue, and compare with an undisturbed run."""
    found = Disks()
    plain = open_journal(folder / "plain.journal")
    play(plain, steps)
    assert plain.journal is not None
    plain.journal.close()
    expected = sequence(folder / "plain.journal")
    while found.faults < number:
        path = folder / f"disk-{found.runs}.journal"
        found.runs += 1
        failing = FailingCalls(
            rng.choice(["write", "fsync", "ftruncate"]), rng.randrange(1, 3 * steps), rng.choice([errno.EIO, errno.ENOSPC])
        )
        bandit = open_journal(path)
        with (
            mock.patch("torchbandits.journal.lines.os", failing),
            mock.patch("torchbandits.journal.format.os", failing),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", JournalWarning)
            found.refused += play(bandit, steps, tolerate=True)
        found.faults += failing.failed
        told = int(bandit.pulls)
        assert bandit.journal is not None
        bandit.journal.close()
        again = open_journal(path)
        found.lost += max(0, told - int(again.pulls))
        play(again, steps)
        assert again.journal is not None
        again.journal.close()
        # A record that was written although the disk reported an error may be told twice, which makes the run longer.
        found.identical += sequence(path) == expected
    return found


def fill_tmpfs(found: Disks, folder: Path, steps: int = 400) -> bool:
    """Fill a small tmpfs by a run, free space and continue. Returns False if this machine does not allow the mount."""
    mounted = folder / "tmpfs"
    mounted.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mounted)], capture_output=True, text=True)
    if done.returncode:
        print(f"no tmpfs was filled, mount refused it: {done.stderr.strip()}", file=sys.stderr)
        return False
    try:
        ballast = mounted / "ballast"
        ballast.write_bytes(bytes(40 << 10))
        path = mounted / "full.journal"
        bandit, told = open_journal(path, every=1000), 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JournalWarning)
            try:
                play(bandit, steps)
            except DataError:
                found.full += 1
            told = int(bandit.pulls)
            ballast.unlink()
            play(bandit, told + 5)
        assert bandit.journal is not None
        bandit.journal.close()
        found.lost += max(0, told + 5 - int(open_journal(path, every=1000).pulls))
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)
    return True


# ------------------------------------------------------------------------- damage


@dataclass
class Damage:
    """Counts of files that were changed outside the library."""

    files: int = 0
    refused: int = 0
    torn: int = 0
    unseen: int = 0
    tracebacks: int = 0
    overwritten: int = 0


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """Return the file's contents with one piece of damage."""
    at = rng.randrange(len(whole))
    lines = whole.splitlines(keepends=True)
    line = rng.randrange(len(lines))
    kind = rng.randrange(7)
    if kind == 0:
        return whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :]
    if kind == 1:
        return whole[:at] + bytes(len(whole) - at)
    if kind == 2:
        return whole[:at]
    if kind == 3:
        return b"".join([*lines[:line], *lines[line : line + 1] * 2, *lines[line + 1 :]])
    if kind == 4:
        return b"".join([*lines[:line], *lines[line + 1 :]])
    if kind == 5:
        end = min(len(whole), at + rng.randrange(1, 64))
        return whole[:at] + rng.randbytes(end - at) + whole[end:]
    return whole + rng.choice([bytes(30), b"\n", b"00000000 {}\n", rng.randbytes(20)])


def damage_files(number: int, folder: Path, rng: random.Random, pulls: int = 12) -> Damage:
    """Damage journals at random places and open them. A journal that opens must contain everything that was written; a journal
    that does not open must stay unchanged."""
    found, source = Damage(), folder / "source.journal"
    bandit = open_journal(source, every=10_000)
    play(bandit, pulls)
    assert bandit.journal is not None
    bandit.journal.close()
    Path(f"{source}.checkpoint").unlink(missing_ok=True)
    whole, expected = source.read_bytes(), sequence(source)
    path = folder / "damaged.journal"
    while found.files < number:
        content = damaged(whole, rng)
        if content == whole:
            continue
        found.files += 1
        path.write_bytes(content)
        try:
            again = open_journal(path, every=10_000)
        except TorchBanditsError:
            found.refused += 1
            found.overwritten += path.read_bytes() != content
            continue
        except Exception:
            traceback.print_exc()
            found.tracebacks += 1
            continue
        assert again.journal is not None
        again.journal.close()
        kept = sequence(path)
        # Only the end of the last line, for which no call had returned, may be missing.
        torn = whole.startswith(content) and kept == expected[: len(kept)] and content.count(b"\n") <= _records(path)
        found.torn += torn
        found.unseen += not torn and kept != expected
        Path(f"{path}.checkpoint").unlink(missing_ok=True)
    return found


def _records(path: Path) -> int:
    return path.read_bytes().count(b"\n")


# ------------------------------------------------------------------------- interrupts


@dataclass
class Interrupts:
    """Counts of calls that Ctrl-C interrupted at a random bytecode."""

    calls: int = 0
    interrupted: int = 0
    twice_or_lost: int = 0
    disagreements: int = 0


@contextlib.contextmanager
def interrupted_after(opcodes: int) -> Iterator[Callable[[], bool]]:
    """Raise KeyboardInterrupt after a number of bytecodes of this package; yields a function that returns whether it was
    raised."""
    left = opcodes

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield lambda: left <= 0
    finally:
        sys.settrace(None)


def interrupt_bandits(number: int, folder: Path, rng: random.Random) -> Interrupts:
    """Interrupt ask and tell of a bandit with a journal. It must then agree with a bandit resumed from the journal."""
    found, path = Interrupts(), folder / "interrupted.journal"
    bandit = open_journal(path, durable=False)
    while found.interrupted < number:
        found.calls += 1
        before = int(bandit.pulls)
        hit = _interrupted(partial(_one_step, bandit), rng.randrange(1, 4000))
        if not hit:
            continue
        found.interrupted += 1
        assert bandit.journal is not None
        pulls, counts = int(bandit.pulls), bandit.counts.clone()
        usable = _usable(bandit)
        bandit.journal.close()
        again = open_journal(path, durable=False)
        found.twice_or_lost += int(again.pulls) not in (before, before + 1)
        found.disagreements += usable and (int(again.pulls) != pulls or not torch.equal(again.counts, counts))
        bandit = again
    assert bandit.journal is not None
    bandit.journal.close()
    return found


def _one_step(bandit: tb.Bandit) -> None:
    selection = bandit.ask()
    bandit.tell(selection, torch.tensor([reward(int(selection.index[0]), int(bandit.pulls))], dtype=torch.float64))


def interrupt_workers(number: int, folder: Path, rng: random.Random) -> Interrupts:
    """Interrupt two workers of one store in turns. Afterwards both must agree with the store, with each reward learned once."""
    found, path = Interrupts(), folder / "interrupted.store"
    workers = [tb.Worker(policy(), ARMS, store=path, lease=0.0 + 1e-3, generator=seeded(5), every=5) for _ in range(2)]
    while found.interrupted < number:
        found.calls += 1
        worker = rng.choice(workers)

        def step(worker: tb.Worker = worker) -> None:
            lease = worker.ask()
            if lease is not None:
                with contextlib.suppress(StateError):
                    worker.tell(lease, reward(int(lease.index), lease.number))

        if not _interrupted(step, rng.randrange(1, 8000)):
            continue
        found.interrupted += 1
        told = [record for record in _events(path) if record["kind"] == "tell"] if found.interrupted % 10 == 0 else None
        if told is not None:
            counts = torch.zeros(len(ARMS), dtype=torch.float64)
            for record in told:
                counts[record["index"]] += 1
            found.twice_or_lost += max(Counter(record["pick"] for record in told).values(), default=0) > 1
            found.disagreements += sum(not torch.equal(each.bandit.counts, counts) for each in workers)
    for worker in workers:
        worker.close()
    return found


def _interrupted(call: Callable[[], None], opcodes: int) -> bool:
    """Make a call and return whether it was interrupted. Other errors propagate."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with interrupted_after(opcodes) as hit:
                call()
        except KeyboardInterrupt:
            return True
        # The interrupt may have been swallowed by a finaliser, which is harmless.
        return hit()


# ------------------------------------------------------------------------- all faults


@dataclass
class Storage:
    """All counts of this file."""

    pools: Pools
    fleets: Fleets
    disks: Disks
    damage: Damage
    bandits: Interrupts
    workers: Interrupts

    @property
    def good(self) -> bool:
        """Whether nothing was lost, learned twice, overwritten or hidden."""
        bad = [
            self.pools.kills - self.pools.reopened, self.pools.lost, self.fleets.lost, self.fleets.twice,
            self.fleets.disagreements, self.disks.lost, self.disks.runs - self.disks.identical, self.damage.unseen,
            self.damage.tracebacks, self.damage.overwritten, self.bandits.twice_or_lost, self.bandits.disagreements,
            self.workers.twice_or_lost, self.workers.disagreements,
        ]  # fmt: skip
        return not any(bad)

    def rows(self) -> list[tuple[str, int]]:
        """The rows of the table."""
        return [
            ("kills of `run` with a pool of processes", self.pools.kills),
            ("journals reopened at once, beside the pool that lives on", self.pools.reopened),
            ("rewards told in these, lost", self.pools.lost),
            ("kills of workers that share a store", self.fleets.kills),
            ("rewards in that store", self.fleets.told),
            ("rewards of these lost, learned twice, or learned otherwise by a new worker",
             self.fleets.lost + self.fleets.twice + self.fleets.disagreements),
            ("failed writes, syncs and truncations (EIO, ENOSPC)", self.disks.faults),
            ("runs in which one was planted (some ended before it), with the picks and rewards of an undisturbed one",
             self.disks.identical),
            ("runs on a tmpfs that was full, and went on once there was room", self.disks.full),
            ("rewards lost on failing and full disks", self.disks.lost),
            ("damaged journals (flipped bits, zeros, cuts, doubled, missing and garbled lines)", self.damage.files),
            ("refused by an error that names the place, and left as they were", self.damage.refused),
            ("opened, without the end of a line that no call had returned for", self.damage.torn),
            ("opened with anything else missing or changed", self.damage.unseen),
            ("calls interrupted at a random bytecode (Bandit with a journal)", self.bandits.interrupted),
            ("calls interrupted at a random bytecode (Worker)", self.workers.interrupted),
            ("rewards lost, learned twice, or in memory and not on the disk after an interrupt",
             self.bandits.twice_or_lost + self.bandits.disagreements + self.workers.twice_or_lost + self.workers.disagreements),
        ]  # fmt: skip


def all_faults(scale: float, folder: Path, rng: random.Random) -> Storage:
    """Run every fault of this file, `scale` times the usual number of each."""

    def count(usual: int) -> int:
        return max(1, round(scale * usual))

    folders = {name: folder / name for name in ("pools", "fleets", "disks", "damage", "bandits", "workers")}
    for each in folders.values():
        each.mkdir()
    disks = fail_disks(count(60), folders["disks"], rng)
    fill_tmpfs(disks, folders["disks"])
    return Storage(
        pools=kill_pools(count(20), folders["pools"], rng),
        fleets=kill_workers(count(60), folders["fleets"], rng),
        disks=disks,
        damage=damage_files(count(400), folders["damage"], rng),
        bandits=interrupt_bandits(count(300), folders["bandits"], rng),
        workers=interrupt_workers(count(300), folders["workers"], rng),
    )
