"""Journals that were damaged, lost, swapped, inherited or interrupted: either a state that was written, or one clear error."""

from __future__ import annotations

import base64
import bisect
import contextlib
import gc
import hashlib
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract import PROBLEM
from problems import COMMON, generator, rbf
from test_watching import written

import torchbandits as tb
from torchbandits import errors
from torchbandits.journal import GeneratorStates, Reading, from_bytes, state_as_text, state_of_text, to_bytes, unpack
from torchbandits.journal.lines import Lines, Mark, read_lines
from torchbandits.testing.play import differences

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")

TESTS = str(Path(__file__).parent)


def opened(path: Path, **options: Any) -> tb.Bandit:
    journal = tb.Journal(path, **{"durable": False} | options)
    return tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor, generator=generator(5), journal=journal)


def step(bandit: tb.Bandit, pulls: int) -> None:
    while (told := int(bandit.pulls)) < pulls:
        selection = bandit.ask()
        bandit.tell(selection, PROBLEM.rewards(told, selection.index))


def told(path: Path) -> list[list[float]]:
    """The rewards of each tell, as a fresh reader finds them."""
    return [record["rewards"] for record in tb.Journal(path).records() if record["kind"] == "tell"]


def counts_of(bandit: tb.Bandit) -> list[float]:
    return bandit.counts.tolist()


@pytest.fixture(scope="module")
def written_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A header and twenty records, with the checkpoint of the first dozen beside it."""
    path = tmp_path_factory.mktemp("journal") / "run.journal"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchbandits.journal.journal._PATIENCE", 0)
        bandit = opened(path, every=12)
        step(bandit, 10)
        bandit.journal.close()
    return path


# ------------------------------------------------------------------------- damage, region by region


class Reopened:
    """Writes bytes to a file and opens it as the journal of the run that they come from."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.whole, self.path = source.read_bytes(), folder / "again.journal"
        self.lines = self.whole.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.records = [json.loads(line[9:]) for line in self.lines]
        self.described = self.records[0]["of"]

    def at(self, byte: int) -> tuple[int, int]:
        """Number and first byte of the line that contains a byte."""
        line = bisect.bisect_right(self.starts, byte) - 1
        return line + 1, self.starts[line]

    def places(self, every: int = 1) -> list[int]:
        """Positions of bytes: every one, or one of every `every`, with all bytes near the ends of lines and some bytes of the
        long states in the header."""
        first = self.whole.index(b'"generators"') + 20
        near = {start + k for start in self.starts for k in range(-4, 12)}
        chosen = [k for k in range(len(self.whole)) if k % every == 0 or k in near]
        return [k for k in chosen if not first < k < self.starts[1] - 20 or k % 50 == 0]

    def begin(self, content: bytes) -> list[dict[str, Any]]:
        """The records of these bytes, opened for writing."""
        self.path.write_bytes(content)
        journal = tb.Journal(self.path, durable=False)
        try:
            journal.begin(self.described, [generator(5)])
            journal.start()
            return list(journal.records())
        finally:
            journal.discard()

    def refused(self, content: bytes, line: int, byte: int, *, read_only: bool = False) -> None:
        """Assert that writers and readers raise an error that names line and byte, and that the file stays unchanged."""
        where = rf"line {line} \(byte {byte}\)"
        if read_only:
            self.path.write_bytes(content)
            with pytest.raises(errors.DataError, match=where):
                list(read_lines(self.path, Mark(), unended=True))
            return
        with pytest.raises(errors.DataError, match=where):
            self.begin(content)
        assert self.path.read_bytes() == content
        with pytest.raises(errors.DataError, match=rf"{where}|not a journal"):
            Reading(self.path)


@pytest.fixture
def again(written_once: Path, tmp_path: Path) -> Reopened:
    return Reopened(written_once, tmp_path)


@pytest.mark.exhaustive
def test_every_byte_that_changes_is_damage_at_its_line(again: Reopened):
    """Changes one bit of each byte, and every bit of each newline, the last one included."""
    whole = again.whole
    for at in again.places():
        for bit in range(8) if whole[at] == 10 else [at % 8]:
            changed = whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :]
            again.refused(changed, *again.at(at), read_only=bool(at % 29) and whole[at] != 10)


def test_cut_at_every_byte_it_goes_on_with_the_whole_records(again: Reopened):
    """A record that only lacks its newline is whole; any other incomplete last line is ignored."""
    for length in [*again.places(11)[1:], len(again.whole)]:
        whole = sum(end - 1 <= length for end in again.starts[1:])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = again.begin(again.whole[:length])
        assert found == again.records[1 : max(whole, 1)]
        assert len(caught) == (length not in again.starts), length
        if whole:
            assert again.path.read_bytes() == again.whole[: again.starts[whole]]


@pytest.mark.exhaustive
def test_zeros_are_damage_wherever_they_begin(again: Reopened):
    """Some file systems leave zeros after a loss of power, in place of the data or after them."""
    whole = again.whole
    for start in again.places(3):
        again.refused(whole[:start].ljust(len(whole), b"\0"), *again.at(start), read_only=start % 29 > 0)
    with pytest.raises(errors.DataError, match=rf"line {len(again.lines) + 1} \(byte {len(whole)}\).* filled with zeros"):
        again.begin(whole + bytes(100))
    for start in again.starts[1:-1:5]:
        with pytest.raises(errors.DataError, match=f"from byte {start + 20} on it is filled with zeros"):
            again.begin(whole[: start + 20] + bytes(10))


def test_lines_that_are_doubled_swapped_or_gone_are_damage(again: Reopened):
    lines = again.lines
    for k in range(len(lines)):
        again.refused(b"".join(lines[: k + 1] + lines[k:]), k + 2, again.starts[k + 1])
        if k + 1 < len(lines):
            again.refused(b"".join([*lines[:k], lines[k + 1], lines[k], *lines[k + 2 :]]), k + 1, again.starts[k])
            again.refused(b"".join(lines[:k] + lines[k + 1 :]), k + 1, again.starts[k])


def test_a_bandit_refuses_damage_and_goes_on_from_a_torn_line(again: Reopened, tmp_path: Path):
    """Files that a bandit refuses stay unchanged, and the message names the part to cut."""
    path, whole = tmp_path / "run.journal", again.whole
    path.write_bytes(whole[:-1] + b"J")
    with pytest.raises(errors.DataError, match=rf"line 21 .*truncate -s {again.starts[-2]} ") as caught:
        opened(path)
    assert path.read_bytes() == whole[:-1] + b"J"
    assert f"{len(again.lines[-1])} bytes" in str(caught.value)
    os.truncate(path, again.starts[-2])
    assert int(opened(path).pulls) == 9
    path.write_bytes(whole[:-1])
    with pytest.warns(errors.JournalWarning, match="line 21, was complete except for its newline"):
        assert int(opened(path).pulls) == 10
    assert path.read_bytes() == whole
    path.write_bytes(whole[:-2])
    with pytest.warns(errors.JournalWarning, match="middle of line 21"):
        assert int(opened(path).pulls) == 9
    assert path.read_bytes() == whole[: again.starts[-2]]


def test_generators_that_can_not_be_set_are_named(again: Reopened, tmp_path: Path):
    path = tmp_path / "cut.journal"
    for states in ([[1, 2, 3]], [None], [], "text", None, [again.records[0]["generators"][0]] * 2):
        written(path, [again.records[0] | {"generators": states}, *again.records[1:]])
        with pytest.raises(errors.DataError, match=r"line 1 \(byte 0\)"):
            opened(path)


def test_ragged_rows_are_an_error_of_their_line(again: Reopened, tmp_path: Path):
    path, tell = tmp_path / "ragged.journal", again.records[2]
    report = tell["report"]
    for wrong in (
        {"rewards": [0.1, 0.2]},
        {"rewards": ["a"]},
        {"rewards": [[0.1], [0.2, 0.3]]},
        {"best": [1, 2]},
        {"best": "x"},
        {"best": [[]]},
        {"report": report | {"pulls": ["x"]}},
        {"report": {}},
        {"report": 3},
        {"regret": [0.1, 0.2], "best_regret": 0.1},
    ):
        written(path, [*again.records[:2], tell | wrong])
        with pytest.raises(errors.DataError, match="line 3 "):
            Reading(path)


# ------------------------------------------------------------------------- checkpoints


def beside(source: Path, folder: Path, journal: bytes | None) -> Path:
    """A journal with these bytes, and the checkpoint of the source beside it."""
    path = folder / source.name
    Path(f"{path}.checkpoint").write_bytes(Path(f"{source}.checkpoint").read_bytes())
    if journal is not None:
        path.write_bytes(journal)
    return path


@pytest.mark.parametrize("journal", [None, b"", b"0f00", "header begun", "header", "shorter", "torn before"])
def test_a_checkpoint_of_more_than_the_journal_is_kept(again: Reopened, written_once: Path, tmp_path: Path, journal: Any):
    """With the journal missing, empty or cut, the checkpoint is refused with both files named, and both stay unchanged."""
    content = {
        "header begun": again.lines[0][:40],
        "header": again.lines[0],
        "shorter": again.whole[: again.starts[8]],
        "torn before": again.whole[: again.starts[12] - 3],
    }.get(journal, journal)
    path = beside(written_once, tmp_path, content)
    checkpoint = Path(f"{path}.checkpoint")
    before = checkpoint.read_bytes()
    with pytest.raises(errors.DataError, match="move the checkpoint away") as caught:
        opened(path, every=1)
    assert str(path) in str(caught.value).replace(str(checkpoint), "")
    assert str(checkpoint) in str(caught.value)
    assert checkpoint.read_bytes() == before
    assert (path.read_bytes() if path.exists() else None) == content
    checkpoint.rename(tmp_path / "aside")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.JournalWarning)
        assert int(opened(path).pulls) == {"shorter": 3, "torn before": 5}.get(journal, 0)


def test_a_checkpoint_of_another_run_is_moved_aside(written_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file in the checkpoint's place that is not of this journal is never overwritten."""
    monkeypatch.setattr("torchbandits.journal.journal._PATIENCE", 0)
    path = tmp_path / "run.journal"
    bandit = opened(path, every=2)
    checkpoint, foreign = bandit.journal.checkpoint_path, Path(f"{written_once}.checkpoint").read_bytes()
    step(bandit, 2)
    checkpoint.unlink()
    checkpoint.write_bytes(foreign)
    with pytest.warns(errors.JournalWarning, match="not written by this journal"):
        step(bandit, 4)
    step(bandit, 6)
    bandit.journal.close()
    checkpoint.write_bytes(foreign)
    with pytest.warns(errors.JournalWarning, match="is not used"):
        bandit = opened(path, every=2)
    with pytest.warns(errors.JournalWarning, match="was moved to"):
        step(bandit, 8)
    assert [p.read_bytes() == foreign for p in tmp_path.glob("*.aside")] == [True, True]
    bandit.journal.close()
    assert int(opened(path).pulls) == 8


def test_a_checkpoint_holds_no_more_than_what_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The journal is synced before its checkpoint, because the other order may lose lines that the checkpoint has."""
    monkeypatch.setattr("torchbandits.journal.journal._PATIENCE", 0)
    bandit, synced, sync = opened(tmp_path / "run.journal", every=2), [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd))[1])
    step(bandit, 1)
    assert [Path(name).name for name in synced[:2]] == ["run.journal", "run.journal.checkpoint.tmp"]


def test_a_link_in_the_place_of_a_checkpoint_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.journal.journal._PATIENCE", 0)
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    bandit = opened(tmp_path / "run.journal", every=2)
    Path(f"{bandit.journal.checkpoint_path}.tmp").symlink_to(precious)
    step(bandit, 3)
    assert precious.read_text() == "as it was"
    assert bandit.journal.checkpoint_path.exists()
    assert not bandit.journal.checkpoint_path.is_symlink()


# ------------------------------------------------------------------------- small files that hold much


def bomb(size: int) -> bytes:
    """A checkpoint whose declared size is correct."""
    return to_bytes({"state": torch.zeros(size // 8, dtype=torch.float64), "open": None})


def test_no_more_is_inflated_than_is_said_to_be_there(monkeypatch: pytest.MonkeyPatch):
    """States, tensors and generators are inflated only to their declared size, which is bounded itself."""
    text = state_as_text({"state": torch.ones(3), "open": None})
    assert torch.equal(state_of_text(text)["state"], torch.ones(3))
    head, _, data = zlib.decompress(base64.b64decode(text)).partition(b"\n")
    more = zlib.compress(head + b"\n" + data + bytes(64 << 20), 9)
    shape = {"dtype": "float64", "shape": [3], "bytes": base64.b64encode(zlib.compress(bytes(64 << 20), 9)).decode()}
    one = GeneratorStates([generator(1)])
    tracemalloc.start()
    for read in (
        lambda: state_of_text(base64.b64encode(more).decode()),
        lambda: unpack(shape),
        lambda: one.follow([shape["bytes"]]),
    ):
        with pytest.raises(errors.DataError, match="more bytes instead of"):
            read()
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()
    monkeypatch.setattr("torchbandits.journal.format._ALWAYS", 1 << 20)
    with pytest.raises(errors.DataError, match="at most"):
        state_of_text(base64.b64encode(zlib.compress(bomb(8 << 20), 9)).decode())
    with pytest.raises(errors.DataError, match="at most"):
        unpack(shape | {"shape": [64 << 17]})


def test_a_checkpoint_with_compressed_entries_is_refused():
    """PyTorch would inflate such entries to any size; the files that it writes store entries uncompressed."""
    with zipfile.ZipFile(io.BytesIO(bomb(1 << 20).partition(b"\n")[2])) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in held.items():
            archive.writestr(name, content)
    data = buffer.getvalue()
    good = to_bytes({})
    head = json.loads(good.partition(b"\n")[0])
    head |= {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    with pytest.raises(errors.DataError, match="larger than the file"):
        from_bytes(json.dumps(head).encode() + b"\n" + data, "it")


# ------------------------------------------------------------------------- files that are swapped


@pytest.mark.parametrize("what", ["deleted", "replaced", "moved", "grown", "cut"])
def test_a_file_that_is_swapped_is_noticed_before_anything_is_learned(tmp_path: Path, what: str):
    path, elsewhere = tmp_path / "run.journal", tmp_path / "elsewhere"
    bandit = opened(path)
    step(bandit, 3)
    selection, before, content = bandit.ask(), bandit.state_dict(), path.read_bytes()
    if what == "deleted":
        path.unlink()
    elif what == "replaced":
        elsewhere.write_bytes(content)
        elsewhere.rename(path)
    elif what == "moved":
        path.rename(elsewhere)
    else:
        path.write_bytes(content + b"more" if what == "grown" else content[:-5])
    words = {"grown": "4 bytes longer", "cut": "5 bytes shorter"}.get(what, "deleted, moved or replaced")
    there = path.read_bytes() if path.exists() else None
    for call in (lambda: bandit.tell(selection, torch.ones(1)), lambda: bandit.ask(more=1), lambda: bandit.forget(selection)):
        with pytest.raises(errors.DataError, match=words):
            call()
    assert (path.read_bytes() if path.exists() else None) == there
    assert torch.equal(bandit.ask().index, selection.index)
    assert differences(before, bandit.state_dict()) == []
    if what == "moved":
        elsewhere.rename(path)
        bandit.tell(selection, torch.ones(1))
        assert told(path)[-1] == [1.0]


def test_a_relative_path_keeps_its_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.journal.journal._PATIENCE", 0)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    bandit = opened(Path("run.journal"), every=3)
    monkeypatch.chdir(tmp_path / "other")
    step(bandit, 5)
    assert not list((tmp_path / "other").iterdir())
    assert len(told(tmp_path / "run.journal")) == 5 == len([r for r in bandit.journal.records() if r["kind"] == "tell"])
    assert (tmp_path / "run.journal.checkpoint").exists()


def test_a_file_that_is_discarded_is_removed_while_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process that opened the file meanwhile does not continue with the unlinked file."""
    path = tmp_path / "run.journal"
    first = Lines(path, durable=False)
    close, taken, its = os.close, [], first._fd

    def closing(fd: int) -> None:
        close(fd)
        if fd == its and not taken:
            taken.append(Lines(path, durable=False))
            taken[0].append({"kind": "header"})

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", closing)
        first.discard()
    assert path.read_bytes() == b'%08x {"kind":"header"}\n' % zlib.crc32(b'{"kind":"header"}')
    taken[0].close()
    path.unlink()
    real, opens = os.open, []

    def opening(name: Any, *flags: int) -> int:
        fd = real(name, *flags)
        if not opens:
            path.unlink()  # the process that created the file discards it before the lock is taken
        opens.append(fd)
        return fd

    monkeypatch.setattr(os, "open", opening)
    lines = Lines(path, durable=False)
    lines.append({"kind": "header"})
    assert len(opens) == 2
    assert path.stat().st_size == lines.end.length


def test_what_is_no_regular_file_is_no_journal(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/full"), Path("/dev/zero"), tmp_path / "pipe"):
        for read in (opened, Reading):
            with pytest.raises(errors.DataError, match="regular file"):
                read(path)
    (tmp_path / "run.journal.checkpoint").symlink_to("/dev/zero")
    with pytest.raises(errors.DataError, match="move the checkpoint away"):
        opened(tmp_path / "run.journal")
    for name in ("x" * 5_000, "nul\0"):
        with pytest.raises(errors.DataError, match="opened"):
            opened(tmp_path / name)


# ------------------------------------------------------------------------- disks


def test_what_could_not_be_taken_back_is_not_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """If both sync and truncation fail, the record may be there. The error says so, and reopening the file settles it."""
    path = tmp_path / "run.journal"
    bandit = opened(path, durable=True)
    step(bandit, 3)
    selection, before = bandit.ask(), counts_of(bandit)
    with monkeypatch.context() as patch:
        for name in ("fsync", "ftruncate"):
            patch.setattr(os, name, lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(errors.DataError, match="may be on the disk") as caught:
            bandit.tell(selection, torch.tensor([0.5]))
        assert "Nothing was learned" not in str(caught.value)
    assert counts_of(bandit) == before
    for call in (lambda: bandit.tell(selection, torch.tensor([0.5])), lambda: bandit.ask(more=1)):
        with pytest.raises(errors.StateError, match=r"did not confirm.*Make a new Bandit"):
            call()
    bandit.journal.close()
    assert int(opened(path).pulls) == len(told(path)) in (3, 4)


def test_a_cut_that_fails_after_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, write = tmp_path / "run.journal", os.write
    bandit = opened(path)
    step(bandit, 3)
    selection = bandit.ask()

    def full(fd: int, data: Any) -> int:
        if len(data) > 20:
            return write(fd, data[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        patch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(errors.DataError, match="could not be removed"):
            bandit.tell(selection, torch.tensor([0.5]))
    with pytest.raises(errors.StateError, match="could not be removed"):
        bandit.tell(selection, torch.tensor([0.5]))
    bandit.journal.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.JournalWarning)
        assert int(opened(path).pulls) == 3


def test_generators_stay_in_step_with_records_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Noise that was drawn before a record that could not be written is accounted for by the next record."""
    path, noise = tmp_path / "run.journal", generator(1)
    bandit = opened(path)
    bandit.journal.ride([noise])
    for number in range(4):
        selection = bandit.ask()
        torch.randn(3, generator=noise)
        if number == 2:
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
                with pytest.raises(errors.DataError):
                    bandit.tell(selection, torch.ones(1))
            torch.randn(700, generator=noise)
        bandit.tell(selection, torch.ones(1))
    bandit.journal.close()
    again, other = opened(path), generator(1)
    again.journal.ride([other])
    assert torch.equal(other.get_state(), noise.get_state())


# ------------------------------------------------------------------------- forks


def in_a_fork(work: Callable[[], None]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def test_a_fork_holds_no_lock_and_writes_nothing(tmp_path: Path):
    path = tmp_path / "run.journal"
    bandit = opened(path)
    step(bandit, 3)
    selection, content = bandit.ask(), path.read_bytes()

    def work() -> None:
        assert not any(os.path.realpath(f"/proc/self/fd/{fd}") == str(path) for fd in os.listdir("/proc/self/fd"))
        for call in (lambda: bandit.tell(selection, torch.ones(1)), lambda: bandit.ask(more=1)):
            with pytest.raises(errors.StateError, match=f"process {os.getppid()}, and this process is a fork of it"):
                call()
        with pytest.raises(errors.StateError, match="in use"):
            opened(path)
        bandit.journal.close()

    assert in_a_fork(work) == 0
    size = path.stat().st_size
    assert path.read_bytes() == content
    with pytest.raises(errors.StateError, match="in use"):
        opened(path)
    bandit.tell(selection, torch.ones(1))
    assert path.stat().st_size > size
    assert not any(os.get_inheritable(int(fd)) for fd in os.listdir("/proc/self/fd") if leads_to(fd, path))


def leads_to(fd: str, path: Path) -> bool:
    return os.path.realpath(f"/proc/self/fd/{fd}") == str(path)


def test_a_fork_that_outlives_its_parent_holds_nothing(tmp_path: Path):
    """With multiprocessing, the parent's lock is released when the parent closes, while the child lives."""
    path = tmp_path / "run.journal"
    bandit = opened(path)
    step(bandit, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
    try:
        bandit.journal.close()
        assert int(opened(path).pulls) == 3
    finally:
        child.kill()
        child.join()


def test_closing_releases_the_lock_before_a_fork_has_closed_its_file(tmp_path: Path):
    path = tmp_path / "run.journal"
    bandit = opened(path)
    step(bandit, 3)
    shared = os.dup(bandit.journal._lines._fd)  # what a fork has until its hook runs
    try:
        bandit.journal.close()
        assert int(opened(path).pulls) == 3
    finally:
        os.close(shared)


POOL = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
import torch, torchbandits as tb
sys.path[:0] = [{tests!r}]
from contract import PROBLEM
from problems import COMMON, generator, rbf

def slow(point):
    with open({pids!r}, "a") as file:
        file.write(str(os.getpid()) + "\\n")
    time.sleep(0.05)
    return float(point.sum())

if __name__ == "__main__":
    environment = tb.environments.BlackBox(slow, PROBLEM.tensor, noise_std=0.1)
    said = lambda bandit, *_: print(int(bandit.pulls), flush=True)
    pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork"))
    options = dict(executor=pool, workers=2, asynchronous=True, journal={path!r}, callbacks=[said])
    tb.run(tb.gp_ucb(rbf(), **COMMON), environment, 10_000, **options)
"""


def ended(process: subprocess.Popen[str], pids: Path) -> None:
    """End a process, and the workers that wrote their process ids."""
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
    for pid in {int(line) for line in pids.read_text().split()} if pids.exists() else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.exhaustive
def test_a_run_whose_workers_outlive_it_can_be_resumed_at_once(tmp_path: Path):
    """After kill -9 of run(executor=ProcessPoolExecutor, journal=) its workers wait for work forever, without the lock."""
    path, pids = tmp_path / "run.journal", tmp_path / "pids"
    code = POOL.format(tests=TESTS, path=str(path), pids=str(pids))
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        last = [int(process.stdout.readline()) for _ in range(4)][-1]
        process.send_signal(signal.SIGKILL)
        process.wait()
        workers = {int(line) for line in pids.read_text().split()}
        assert all(os.path.exists(f"/proc/{pid}") for pid in workers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.JournalWarning)
            assert int(opened(path).pulls) >= last
    finally:
        ended(process, pids)


# ------------------------------------------------------------------------- interrupts


def test_ctrl_c_ends_a_run_that_the_same_call_resumes(tmp_path: Path):
    """Although a notebook keeps the traceback, the lock is released, and no other exception is chained."""
    environment = tb.environments.Table(PROBLEM.tensor, torch.as_tensor(PROBLEM.f), noise_std=0.1)
    path, interrupts = tmp_path / "run.journal", [2, 5, 9]
    sample = type(environment).sample

    class Interrupted(type(environment)):
        def sample(self, *arguments: Any) -> torch.Tensor:
            if interrupts and len(told(path)) == interrupts[0]:
                interrupts.pop(0)
                raise KeyboardInterrupt
            return sample(self, *arguments)

    environment.__class__ = Interrupted

    def play(journal: Path | None) -> tb.History:
        return tb.run(tb.gp_ucb(rbf(), **COMMON), environment, 12, generator=generator(3), journal=journal)

    kept = []
    while interrupts:
        with pytest.raises(KeyboardInterrupt) as caught:
            play(path)
        kept.append(caught.value)
    found = play(path)
    assert len(kept) == 3
    assert all(error.__cause__ is None and (error.__context__ is None or error.__suppress_context__) for error in kept)
    assert all("the same call resumes from there" in str(error) for error in kept)
    environment.__class__ = Interrupted.__mro__[1]
    expected = play(None)
    for name in expected.pulls:
        np.testing.assert_array_equal(found.pulls[name], expected.pulls[name])
    assert len(told(path)) == 12


def test_an_error_of_an_evaluation_leaves_the_journal_to_its_bandit(tmp_path: Path):
    def fail(point: torch.Tensor) -> float:
        raise ValueError("no such thing")

    environment = tb.environments.BlackBox(fail, PROBLEM.tensor, noise_std=0.1)
    with pytest.raises(errors.EvaluationError) as caught:
        tb.run(tb.gp_ucb(rbf(), **COMMON), environment, 12, journal=tmp_path / "run.journal")
    bandit = caught.value.bandit
    bandit.tell(bandit.ask(), torch.tensor([0.5]))
    assert told(tmp_path / "run.journal")[-1] == [0.5]


TRACED = ("torchbandits/loop.py", *(f"journal/{name}.py" for name in ("recorder", "records", "lines", "format", "journal")))


def interrupted(call: Callable[[], Any], at: int) -> int | None:
    """Make a call with a KeyboardInterrupt at instruction `at` of the code that keeps bandit and journal together.

    Returns the number of such instructions of a call that was not interrupted, and otherwise None.
    """
    passed = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal passed
        if not frame.f_code.co_filename.endswith(TRACED):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            passed += 1
            if passed == at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    gc.disable()  # finalisers would add instructions that do not belong to this call
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(before)
        gc.enable()
    return passed


def agree_after(path: Path, at: int, name: str) -> int | None:
    """Interrupt a call, make another one, and compare the bandit with its journal."""
    bandit = opened(path)
    step(bandit, 2)
    selection, foreign = bandit.ask(), bandit.state_dict()
    calls = {
        "tell": lambda: bandit.tell(selection, torch.tensor([0.5])),
        "load": lambda: bandit.load_state_dict(foreign),
        "ask": lambda: bandit.ask(more=2),
    }
    passed = interrupted(calls[name], at)
    refusal = ""
    try:
        bandit.observe(torch.tensor([7]), torch.ones(1), torch.ones(1))
    except errors.StateError as error:
        refusal = str(error)
    assert not refusal or "interrupted while it was written" in refusal
    counts, opened_then = counts_of(bandit), bandit.loop.open
    bandit.journal.close()
    again = opened(path)
    if not refusal:
        assert counts_of(again) == counts, at
        assert (opened_then is None) == (again.loop.open is None), at
        assert opened_then is None or torch.equal(opened_then.index, again.loop.open.index), at
    else:
        assert sum(counts_of(again)) - sum(counts) in (0, 1), at
    again.journal.close()
    return passed


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["tell", "ask", "load"])
def test_an_interrupt_at_any_instruction_leaves_bandit_and_journal_agreed(tmp_path: Path, name: str):
    """A call is both done and written, or neither, also if the rollback itself is interrupted."""
    agree_after(tmp_path / "cold", 0, name)  # fills caches, which takes further instructions
    total = agree_after(tmp_path / "warm", 0, name)
    assert total > 300
    points = int(os.environ.get("TORCHBANDITS_INTERRUPTS", "25"))
    places = range(1, total, max(1, total // points))
    reached = sum(agree_after(tmp_path / f"{at}", at, name) is None for at in places)
    assert reached >= 0.9 * len(places)


SIGNALS = """
import random, signal, sys, time, torch, torchbandits as tb
sys.path[:0] = [{tests!r}]
from pathlib import Path
from test_journal_damage import counts_of, opened, step, told
from torchbandits import errors

# What torch imports when it is first used is not to be interrupted.
warm = opened(Path({path!r} + ".warm"))
step(warm, 5)
began = time.perf_counter()
step(warm, 8)
patience = time.perf_counter() - began
path, rng, bandit, ends = Path({path!r}), random.Random(3), None, 0
signal.signal(signal.SIGALRM, signal.default_int_handler)
while ends < 30 or len(told(path)) <= 30:  # a busy machine tells little in so short a time
    if rng.random() < 0.7:
        bandit = bandit or opened(path)
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, patience))
        bandit = bandit or opened(path)
        while True:
            bandit.tell(bandit.ask(), torch.tensor([0.1 * ends]))
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        ends += 1
    if bandit is None:
        continue
    refused = False
    try:
        bandit.tell(torch.tensor([7]), torch.ones(1))
    except errors.StateError as error:
        if "interrupted" not in str(error):
            raise
        refused = True
    assert refused or int(bandit.pulls) == len(told(path)), (int(bandit.pulls), len(told(path)))
    if refused or rng.random() < 0.2:
        bandit.journal.close()
        counts, bandit = counts_of(bandit), opened(path)
        assert counts_of(bandit) == counts or (refused and sum(counts_of(bandit)) == sum(counts) + 1)
print("agreed", len(told(path)))
"""


@pytest.mark.exhaustive
def test_signals_at_random_moments(tmp_path: Path):
    """After thirty interrupts at random moments, the bandit's state is that of its journal."""
    code = SIGNALS.format(tests=TESTS, path=str(tmp_path / "run.journal"))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("agreed"), done.stderr[-3000:]
    assert int(done.stdout.split()[1]) > 30
