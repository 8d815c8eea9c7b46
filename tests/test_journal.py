"""Journals: a run cut anywhere resumes unchanged; damaged files are refused, and files in use are not touched."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract import CASES, PROBLEM, Case, every_policy
from problems import BOUNDED, COMMON, generator, rbf

import torchbandits as tb
from torchbandits import errors
from torchbandits.journal import GeneratorStates, describe, from_bytes, pack, to_bytes, unpack
from torchbandits.loop import Loop
from torchbandits.testing.play import differences, everything

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")

STEPS = 6
KINDS = [
    "gp_ucb",
    "batch_bkb",
    "ada_bkb",
    "pi_gp_ucb",
    "bpe",
    "thompson_sampling",
    "soful",
    "regularized_evolution",
]  # one policy of each kind
every_kind = pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case.name in KINDS and not case.mode else pytest.mark.exhaustive) for case in CASES],
    ids=lambda case: f"{case.name} {case.mode}".strip(),
)


@pytest.fixture(autouse=True)
def checkpoints_whatever_they_take(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.journal.journal._PATIENCE", 0)


def step(bandit: tb.Bandit, steps: int) -> list[list[int]]:
    """Ask and tell until `pulls` rewards are told, like a user's script that may be restarted."""
    picks = []
    while int(bandit.pulls) < steps:
        told = int(bandit.pulls)
        selection = bandit.ask(limit=2)
        picks.append([told, *selection.index.tolist()])
        bandit.tell(selection, PROBLEM.rewards(told, selection.index))
    return picks


def journaled(case: Case, path: Path, **options: Any) -> tb.Bandit:
    return tb.Bandit(case.policy(), PROBLEM.tensor, generator=generator(5), journal=tb.Journal(path, durable=False, **options))


def copied(source: Path, folder: Path, length: int | None = None, checkpoint: bytes | None = None) -> Path:
    """A journal as left by a kill: its first bytes, and the checkpoint of that time."""
    folder.mkdir(exist_ok=True)
    path = folder / source.name
    path.write_bytes(source.read_bytes()[:length])
    Path(f"{path}.checkpoint").unlink(missing_ok=True)
    if checkpoint is not None:
        Path(f"{path}.checkpoint").write_bytes(checkpoint)
    return path


def resumed(case: Case, path: Path) -> tb.Bandit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.JournalWarning)
        return journaled(case, path)


# ------------------------------------------------------------------------- going on


@pytest.mark.sweep(2)
@every_kind
def test_cut_anywhere_a_run_goes_on_as_if_undisturbed(case: Case, tmp_path: Path):
    """After cuts at random bytes, with checkpoints or without, every told reward is kept, and every later pick is the same."""
    plain = tb.Bandit(case.policy(), PROBLEM.tensor, generator=generator(5))
    expected = step(plain, 2 * STEPS)
    path = tmp_path / "run.journal"
    bandit = journaled(case, path, every=3)
    lengths, checkpoints = [], []
    while int(bandit.pulls) < STEPS:
        selection = bandit.ask(limit=2)
        bandit.tell(selection, PROBLEM.rewards(int(bandit.pulls), selection.index))
        lengths.append((os.path.getsize(path), int(bandit.pulls)))
        saved = bandit.journal.checkpoint_path
        checkpoints.append(saved.read_bytes() if saved.exists() else None)
    bandit.ask(limit=2)
    bandit.journal.close()
    size, rng = os.path.getsize(path), np.random.default_rng(0)
    for number, cut in enumerate([int(rng.integers(size // 2, size)), size]):
        done = [k for k, (length, _) in enumerate(lengths) if length <= cut]
        checkpoint = checkpoints[done[-1]] if done and number == 1 else None
        other = resumed(case, copied(path, tmp_path / str(number), cut, checkpoint))
        assert int(other.pulls) == (lengths[done[-1]][1] if done else 0)
        assert (
            step(other, 2 * STEPS)
            == expected[-len(expected) :][len([p for p in expected if p[0] < lengths[done[-1]][1]]) if done else 0 :]
        )
        found = differences(everything(plain), everything(other))
        # Only rounding errors, which arise because checkpoints omit factors.
        assert all(checkpoint and float(line.rsplit("by ")[-1]) < 1e-11 for line in found), found


def all_calls(bandit: tb.Bandit, steps: int) -> None:
    """Write every kind of record, one per step, chosen by the number of pulls, so that the script can be restarted anywhere."""
    far = torch.cat([PROBLEM.tensor, PROBLEM.tensor[:5] + 0.01])
    while (told := int(bandit.pulls)) < steps:
        if told == 4 and len(bandit.arms) == len(PROBLEM.tensor):
            bandit.set_arms_(far)
        if told == 6:
            bandit.observe(torch.tensor([[0.2, 0.3], [0.7, 0.1]]).double(), torch.tensor([2.0, 1.0]), torch.tensor([0.3, 0.1]))
            continue
        if told == 10 and abs(float(bandit.posterior.kernel.lengthscale) - 0.4) < 1e-9:
            bandit.fit_kernel_(max_iterations=3)
        options = {}
        if told == 11:
            options = {"maximizer": lambda score: torch.tensor([0.31, 0.77]).double()}
        if told == 12:
            options = {"available": torch.arange(len(bandit.arms)) % 2 == 0}
        if told == 9 and bandit.loop.open is None:
            options = {"more": 3}
        selection = bandit.ask(**options)
        rewards = PROBLEM.rewards(told, selection.index.clamp_max(39))
        if told == 9:
            if len(selection) == 3:
                bandit.forget(selection[2:])
            rewards[1] = torch.nan
            bandit.tell(selection[:2], rewards[:2], failures="forget")
        else:
            bandit.tell(selection, rewards)


@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")  # warnings of a fit to few rewards
@pytest.mark.sweep(1)
@pytest.mark.parametrize("every", [1, 4, 1000])
def test_every_kind_of_call_is_repeated(tmp_path: Path, every: int):
    case, path = Case("gp_ucb", ""), tmp_path / "run.journal"
    plain = tb.Bandit(case.policy(), PROBLEM.tensor, generator=generator(5))
    all_calls(plain, 16)
    bandit = journaled(case, path, every=every)
    all_calls(bandit, 16)
    assert {r["kind"] for r in bandit.journal.records()} == {"ask", "tell", "observe", "forget", "fit", "maximize", "set_arms"}
    bandit.journal.close()
    whole = path.read_bytes()
    ends = [k + 1 for k, byte in enumerate(whole) if byte == 10]
    checkpoint = bandit.journal.checkpoint_path.read_bytes() if every < 1000 else None
    for cut in [*ends[1::3], ends[-1]]:
        other = resumed(case, copied(path, tmp_path / str(cut), cut, checkpoint if cut == ends[-1] else None))
        all_calls(other, 16)
        found = differences(everything(plain), everything(other))
        assert found == [], (cut, found[:3])


def test_a_box_goes_on(tmp_path: Path):
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    for name, policy in {"gp_bucb": tb.gp_bucb(rbf(), **COMMON), "ada_bkb": tb.ada_bkb(rbf(), horizon=20, **BOUNDED)}.items():
        picks = []
        for restarts in (False, True):
            bandit = tb.Bandit(policy, bounds=box, journal=tmp_path / f"{name}{restarts}")
            for number in range(5):
                selection = bandit.ask(limit=2)
                if restarts:
                    bandit.journal.close()
                    bandit = tb.Bandit(policy, bounds=box, journal=tmp_path / f"{name}{restarts}")
                    assert torch.equal(bandit.ask().points, selection.points)
                picks.append(selection.points)
                bandit.tell(bandit.ask(), torch.sin(5 * selection.points[:, 0]))
                if number == 2:
                    bandit.forget(bandit.ask(more=1))
        assert torch.equal(torch.cat(picks[:5]), torch.cat(picks[5:]))


def test_batch_rows_and_states_from_elsewhere(tmp_path: Path):
    path, policy = tmp_path / "run.journal", tb.bkb(rbf(), **BOUNDED)

    def rows(seed: int, journal: Path | None = None) -> tb.Bandit:
        return tb.Bandit(policy, PROBLEM.tensor, generator=[generator(seed), generator(seed + 1)], journal=journal)

    def tell(bandit: tb.Bandit, times: int) -> None:
        for _ in range(times):
            selection = bandit.ask(limit=torch.tensor([1, 0]) if int(bandit.pulls[0]) % 2 else 2)
            bandit.tell(selection, torch.sin(selection.points[..., 0]))

    plain, bandit, foreign = rows(1), rows(1, path), rows(9)
    tell(foreign, 3)
    for b in (plain, bandit):
        tell(b, 3)
        b.load_state_dict(foreign.state_dict())
        tell(b, 2)
    bandit.journal.close()
    for checkpoint in (True, False):
        if not checkpoint:
            bandit.journal.checkpoint_path.unlink()
        other = rows(50, path)
        assert differences(everything(plain), everything(other)) == []
        other.journal.close()


def test_run_goes_on_with_its_noise_its_budget_and_its_history(tmp_path: Path):
    costs = 1 + torch.rand(40, dtype=torch.float64, generator=generator(2))
    environment = tb.environments.Table(PROBLEM.tensor, torch.as_tensor(PROBLEM.f), noise_std=0.1, costs=costs)
    history = (torch.tensor([3, 5]), torch.ones(2, dtype=torch.float64), torch.tensor([0.1, 0.2]).double())

    class Killed(Exception):
        pass

    def kill(bandit: tb.Bandit, *_: Any) -> None:
        if kills and int(bandit.pulls[0]) >= kills[0]:
            kills.pop(0)
            raise Killed

    for policy, budget in ((tb.batch_bkb(rbf(), **BOUNDED), None), (tb.per_cost(tb.gp_ucb(rbf(), **COMMON)), 50.0)):

        def play(path: Path | None, callbacks: tuple = (), policy=policy, budget=budget) -> tb.History:
            seeds = [generator(1), generator(2)]
            journal = None if path is None else tb.Journal(path, every=6, durable=False)
            return tb.run(
                policy, environment, 25, generator=seeds, budget=budget, observed=history, journal=journal, callbacks=callbacks
            )

        kills: list[int] = []
        expected, path, died = play(None), tmp_path / f"{budget}.journal", 0
        kills += [6, 13, 18]
        while True:
            try:
                found = play(path, (kill,))
                break
            except Killed:
                died += 1
        assert died == 3
        for name in expected.pulls:
            np.testing.assert_array_equal(expected.pulls[name], found.pulls[name])
        for name in set(expected.batches) - {"seconds"}:
            np.testing.assert_allclose(expected.batches[name], found.batches[name], rtol=1e-12, atol=1e-12)
        assert play(path) == play(path)  # resuming a finished run changes nothing


# ------------------------------------------------------------------------- what is refused, what is dropped


def made(path: Path, pulls: int = 6) -> None:
    bandit = journaled(Case("gp_ucb", ""), path)
    step(bandit, pulls)
    bandit.journal.close()


def test_a_torn_last_line_is_reported_and_dropped(tmp_path: Path):
    path = tmp_path / "run.journal"
    made(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    with pytest.warns(errors.JournalWarning, match="line 13"):
        bandit = journaled(Case("gp_ucb", ""), path)
    assert int(bandit.pulls) == 5
    assert path.read_bytes() == whole[: whole.rindex(b"\n", 0, -1) + 1]


def test_a_header_that_was_never_finished_begins_anew(tmp_path: Path):
    path = tmp_path / "run.journal"
    made(path)
    header = path.read_bytes().split(b"\n")[0]
    for length in (1, 8, 12, 40, len(header)):
        path.write_bytes(header[:length])
        with pytest.warns(
            errors.JournalWarning, match="begun again" if length < len(header) else "complete except for its newline"
        ):
            bandit = journaled(Case("gp_ucb", ""), path)
        assert int(bandit.pulls) == 0
        bandit.journal.close()


def test_any_byte_that_changed_is_noticed(tmp_path: Path):
    """An error that names the line, for any change of one byte; `test_journal_damage` changes every one."""
    path = tmp_path / "run.journal"
    made(path)
    whole, rng = path.read_bytes(), np.random.default_rng(1)
    for at in [0, 8, *rng.integers(0, len(whole) - 1, 40).tolist()]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(errors.DataError, match=rf"line {whole[:at].count(10) + 1} |no journal"):
            journaled(Case("gp_ucb", ""), path)
        assert path.read_bytes() == bytes(damaged)
    lines = whole.splitlines(keepends=True)
    for wrong in (lines[:3] + lines[4:], [*lines[:3], lines[4], lines[3], *lines[5:]], [*lines[:4], *lines[3:]]):
        path.write_bytes(b"".join(wrong))
        with pytest.raises(errors.DataError, match="line"):
            journaled(Case("gp_ucb", ""), path)


@pytest.mark.parametrize("content", [b"hello", b"hello\n", b"\x00" * 50, b'{"kind":"header"}\n', b"00000000 {}\n", b"0"])
def test_other_files_are_not_touched(tmp_path: Path, content: bytes):
    path = tmp_path / "precious"
    path.write_bytes(content)
    if content == b"0":  # the first byte of a checksum
        with pytest.warns(errors.JournalWarning):
            journaled(Case("gp_ucb", ""), path)
        return
    with pytest.raises(errors.DataError):
        journaled(Case("gp_ucb", ""), path)
    assert path.read_bytes() == content


def test_another_run_is_refused_and_says_what_differs(tmp_path: Path):
    path = tmp_path / "run.journal"
    made(path)
    whole, arms = path.read_bytes(), PROBLEM.tensor
    for words, policy, others in (
        ("noise_std was 0.1, is 0.2", tb.gp_ucb(rbf(), **COMMON | {"noise_std": 0.2}), arms),
        ("kernel.raw_lengthscale", tb.gp_ucb(rbf(0.3), **COMMON), arms),
        ("policy", tb.bkb(rbf(), **BOUNDED), arms),
        ("arms was", tb.gp_ucb(rbf(), **COMMON), arms + 1e-9),
    ):
        with pytest.raises(errors.StateError, match=words):
            tb.Bandit(policy, others, journal=path)
    with pytest.raises(errors.StateError, match="generators"):
        tb.Bandit(tb.gp_ucb(rbf(), **COMMON), arms, generator=[generator(0), generator(1)], journal=path)
    assert path.read_bytes() == whole
    assert int(tb.Bandit(tb.gp_ucb(rbf(), **COMMON), arms, journal=path).pulls) == 6


def test_a_run_that_can_not_begin_leaves_no_file(tmp_path: Path):
    with pytest.raises(errors.ShapeError):
        tb.Bandit(tb.rff_ucb(rbf(), **BOUNDED), PROBLEM.tensor, costs=torch.ones(3), journal=tmp_path / "run.journal")
    assert not list(tmp_path.iterdir())


def test_two_at_once_are_refused(tmp_path: Path):
    path = tmp_path / "run.journal"
    bandit = journaled(Case("gp_ucb", ""), path)
    step(bandit, 3)
    with pytest.raises(errors.StateError, match="in use"):
        journaled(Case("gp_ucb", ""), path)
    step(bandit, 5)
    twin = copy.deepcopy(bandit)
    assert twin.journal is None
    step(twin, 7)
    del bandit  # releases the lock
    assert int(journaled(Case("gp_ucb", ""), path).pulls) == 5


def test_what_was_closed_can_not_be_told(tmp_path: Path):
    bandit = journaled(Case("gp_ucb", ""), tmp_path / "run.journal")
    step(bandit, 3)
    bandit.journal.close()
    before = everything(bandit)
    with pytest.raises(errors.StateError, match="closed"):
        bandit.tell(torch.tensor([3]), torch.tensor([0.1]))
    assert differences(before, everything(bandit)) == []


def test_a_fork_can_not_write(tmp_path: Path):
    bandit = journaled(Case("gp_ucb", ""), tmp_path / "run.journal")
    step(bandit, 3)
    bandit.journal._lines._process += 1  # as after a fork
    with pytest.raises(errors.StateError, match="fork"):
        bandit.tell(torch.tensor([3]), torch.tensor([0.1]))


# ------------------------------------------------------------------------- disks and checkpoints


def test_a_full_disk_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes that fail half-way, and a disk that does not confirm: nothing is learned, and the file stays unchanged."""
    path = tmp_path / "run.journal"
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor, generator=generator(5), journal=path)
    step(bandit, 4)
    bandit.ask()
    before, size, write = everything(bandit), path.stat().st_size, os.write

    def full(fd: int, data: Any) -> int:
        if len(data) > 20:
            return write(fd, data[:20])
        raise OSError(28, "No space left on device")

    calls = {
        "tell": lambda: bandit.tell(bandit.ask(), torch.tensor([0.3])),
        "ask": lambda: bandit.ask(more=2),
        "forget": lambda: bandit.forget(bandit.ask()),
        "observe": lambda: bandit.observe(torch.tensor([3]), torch.ones(1), torch.ones(1)),
    }
    for name, call in calls.items():
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(errors.DataError, match="No space left"):
                call()
        assert differences(before, everything(bandit)) == [], name
        assert path.stat().st_size == size
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(errors.DataError, match="Input/output"):
            calls["tell"]()
    assert differences(before, everything(bandit)) == []
    with pytest.raises(errors.StateError, match="did not confirm"):
        calls["tell"]()
    bandit.journal.close()
    again = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor, journal=path)
    assert int(again.pulls) == 4


def test_a_failed_call_leaves_no_record(tmp_path: Path):
    path = tmp_path / "run.journal"
    bandit = journaled(Case("gp_ucb", ""), path)
    step(bandit, 4)
    before = path.read_bytes()
    with pytest.raises(errors.NumericalError):
        bandit.tell(torch.tensor([3, 3]), torch.tensor([1.7e308, 1.7e308], dtype=torch.float64))
    with pytest.raises(errors.ArmIndexError):
        bandit.tell(torch.tensor([300]), torch.tensor([1.0]))
    assert path.read_bytes() == before


@pytest.mark.sweep(3)
@pytest.mark.parametrize("damage", ["cut", "changed", "foreign", "pickle", "directory"])
def test_a_checkpoint_that_can_not_be_read_is_left_aside(tmp_path: Path, damage: str):
    path, case = tmp_path / "run.journal", Case("bkb", "")
    bandit = journaled(case, path, every=3)
    step(bandit, 7)
    bandit.journal.close()
    checkpoint = bandit.journal.checkpoint_path
    content = checkpoint.read_bytes()
    if damage == "cut":
        checkpoint.write_bytes(content[:-10])
    elif damage == "changed":
        checkpoint.write_bytes(content[:400] + bytes([content[400] ^ 1]) + content[401:])
    elif damage == "foreign":
        other = tmp_path / "other.journal"
        twin = journaled(case, other, every=3)
        step(twin, 7)
        checkpoint.write_bytes(twin.journal.checkpoint_path.read_bytes())
    elif damage == "pickle":
        checkpoint.write_bytes(hostile(tmp_path))
    else:
        checkpoint.unlink()
        checkpoint.mkdir()
    with pytest.warns(errors.JournalWarning, match="is not used"):
        other = journaled(case, path)
    assert differences(everything(bandit), everything(other)) == []
    assert not (tmp_path / "executed").exists()


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def hostile(folder: Path) -> bytes:
    return to_bytes({"journal": "x", "mark": [0, 0, 0], "state": Hostile(folder / "executed"), "arms": None})


def test_loading_executes_nothing(tmp_path: Path):
    with pytest.raises(errors.DataError, match="tensors and plain values only"):
        from_bytes(hostile(tmp_path), "it")
    assert not (tmp_path / "executed").exists()
    rng = np.random.default_rng(0)
    good = to_bytes({"a": torch.ones(3)})
    for _ in range(50):
        cut = bytearray(good)
        cut[int(rng.integers(len(cut)))] ^= int(rng.integers(1, 256))
        try:
            from_bytes(bytes(cut[: int(rng.integers(1, len(cut) + 1))]), "it")
        except errors.DataError:
            continue
        pytest.fail("a damaged checkpoint was loaded")


def test_a_checkpoint_that_can_not_be_written_is_a_warning(tmp_path: Path):
    path = tmp_path / "run.journal"
    bandit = journaled(Case("gp_ucb", ""), path, every=2)
    (tmp_path / "run.journal.checkpoint.tmp").mkdir()
    with pytest.warns(errors.JournalWarning, match="can't be written"):
        step(bandit, 2)
    assert int(bandit.pulls) == 2


def test_places_that_can_not_be_written(tmp_path: Path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "none" / "run.journal", tmp_path / "file" / "run.journal", tmp_path):
        with pytest.raises(errors.DataError, match="opened"):
            journaled(Case("gp_ucb", ""), path)


def test_resuming_repeats_only_what_came_after_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, case = tmp_path / "run.journal", Case("gp_ucb", "")
    bandit = journaled(case, path, every=10)
    step(bandit, 33)
    bandit.journal.close()
    told = []
    learn = Loop.learn_
    monkeypatch.setattr(Loop, "learn_", lambda self, *args: (told.append(1), learn(self, *args))[1])
    assert int(journaled(case, path).pulls) == 33
    assert len(told) <= 5


def test_slow_calls_are_in_a_checkpoint_however_few_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def begun() -> tb.Bandit:
        return tb.Bandit(CASES[0].policy(), PROBLEM.tensor, generator=generator(5), journal=tmp_path / "run")

    checkpoint = tmp_path / "run.checkpoint"
    bandit = begun()
    step(bandit, 2)
    bandit.journal.close()
    assert not checkpoint.exists()
    monkeypatch.setattr("torchbandits.journal.journal._REPEATED", 0.0)  # any call is slow now
    bandit = begun()
    bandit.ask()
    assert checkpoint.exists()
    bandit.journal.close()
    monkeypatch.setattr(Loop, "learn_", None)  # repeating a tell would fail
    assert int(begun().pulls) == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", [lambda: tb.gp_ucb(rbf(0.3), noise_std=0.1), tb.auto], ids=["gp_ucb", "auto"])
def test_a_checkpoint_leaves_out_large_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any):
    arms = torch.rand(3_000, 2, generator=generator(0), dtype=torch.float64)

    def begun(name: str) -> tb.Bandit:
        return tb.Bandit(policy(), arms, generator=generator(5), journal=tb.Journal(tmp_path / name, every=1))

    def told(bandit: tb.Bandit) -> None:
        for number in range(12):
            selection = bandit.ask()
            reward = torch.full((1,), torch.nan) if number in (8, 9) else selection.points.sum(dim=-1)
            bandit.tell(selection, reward, failures="forget")

    whole, brief = begun("whole"), begun("brief")
    told(whole)
    monkeypatch.setattr("torchbandits.arms.reserve._LARGE_BYTES", 0)
    told(brief)
    size = (tmp_path / "brief.checkpoint").stat().st_size
    assert size < (tmp_path / "whole.checkpoint").stat().st_size - 8 * 8 * len(arms)
    brief.journal.close()
    resumed = begun("brief")
    mine, other = resumed.loop.state.table, whole.loop.state.table
    torch.testing.assert_close(mine.leverage, other.leverage, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(mine.channels, other.channels, rtol=1e-9, atol=1e-9)
    assert torch.equal(resumed.ask().index, whole.ask().index)
    # What a user saves is whole.
    saved = resumed.state_dict()["state"]["table.directions._extra_state"]
    assert saved["rows"].shape == (resumed.loop.state.table.directions.used, len(arms))


def test_picks_that_come_out_otherwise_are_kept_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Recorded picks stay open if a replay picks other arms, as on a machine that breaks a tie differently."""
    path, case = tmp_path / "run.journal", Case("gp_ucb", "")
    bandit = journaled(case, path)
    step(bandit, 5)
    asked = bandit.ask(more=2)
    bandit.journal.close()
    select = type(bandit.policy).select

    def otherwise(self: Any, *args: Any, **options: Any) -> Any:
        found, evidence = select(self, *args, **options)
        index = (found.index + 1) % 40
        return tb.Selection(PROBLEM.tensor[index], index, found.mask), evidence

    with monkeypatch.context() as patch:
        patch.setattr(type(bandit.policy), "select", otherwise)
        with pytest.warns(errors.JournalWarning, match="journal's picks are kept"):
            other = journaled(case, path)
    assert torch.equal(other.ask().index, asked.index)
    assert torch.equal(other.ask().points, asked.points)
    assert torch.equal(other.counts, bandit.counts)


# ------------------------------------------------------------------------- parts


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (3,), (2, 5), (1, 300)])
def test_packing_is_exact(dtype: torch.dtype, shape: tuple[int, ...]):
    tensor = (10 * torch.randn(shape, generator=generator(0), dtype=torch.float64)).to(dtype)
    back = unpack(json.loads(json.dumps(pack(tensor), allow_nan=False)))
    assert back.shape == tensor.shape
    assert torch.equal(back.to(dtype), tensor)
    if dtype == torch.float64 and tensor.numel():
        odd = tensor.clone().index_fill_(-1, torch.tensor([0]), torch.nan) if shape else tensor
        assert torch.equal(unpack(json.loads(json.dumps(pack(odd)))), odd) or odd.isnan().any()


@pytest.mark.parametrize("value", [
    {}, {"dtype": "float64"}, {"dtype": "object", "shape": [1], "bytes": ""},
    {"dtype": "float64", "shape": [2], "bytes": "AAAA"}, {"dtype": "float64", "shape": [-1], "bytes": "eJwDAAAAAAE="},
    {"dtype": "float64", "shape": [10**12], "bytes": "eJwDAAAAAAE="}, {"dtype": "float64", "shape": "x", "bytes": 3},
    "text", [[1, 2], [3]],
])  # fmt: skip
def test_what_was_not_packed_is_refused(value: Any):
    with pytest.raises(errors.DataError):
        unpack(value)


def test_generators_are_followed():
    mine, theirs = [generator(1), generator(2)], [generator(1), generator(2)]
    writer, reader = GeneratorStates(mine), GeneratorStates(theirs)
    assert writer.since() is None
    for number in range(30):
        torch.rand(number * 40, generator=mine[0])
        torch.randn(3, generator=mine[number % 2])
        changes = writer.since()
        assert sum(map(len, changes)) < 20_000
        reader.follow(changes)
        assert [g.get_state().tolist() for g in mine] == [g.get_state().tolist() for g in theirs]
    for wrong in (None, [], ["AAAA", "AAAA"], 3):
        with pytest.raises(errors.DataError):
            reader.follow(wrong)


@every_policy
def test_what_a_policy_is_described_by_is_stable(case: Case):
    """Equal policies have the same description, before and after a run, and it contains no memory address."""
    one, other = case.policy(), case.policy()
    assert describe(one) == describe(other)
    assert describe(one) == describe(tb.Bandit(one, PROBLEM.tensor).policy)
    assert not any("0x" in value for value in describe(one).values())


KILLED = """
import os, sys, torch, torchbandits as tb
sys.path[:0] = [{tests!r}]
from problems import COMMON, Problem, generator, rbf
problem = Problem(seed=3, a=40)
bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), problem.tensor, generator=generator(5), journal=tb.Journal({path!r}, every=5))
while True:
    selection = bandit.ask()
    bandit.tell(selection, problem.rewards(int(bandit.pulls), selection.index))
    print(int(bandit.pulls), flush=True)
"""


@pytest.mark.exhaustive
def test_killed_for_real(tmp_path: Path):
    """SIGKILL while it runs: every reward whose tell returned is in the journal, and the later picks are those of an
    undisturbed run."""
    path = tmp_path / "run.journal"
    code = KILLED.format(tests=str(Path(__file__).parent), path=str(path))
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True)
    last = 0
    for line in process.stdout:
        last = int(line)
        if last == 40:
            process.send_signal(signal.SIGKILL)
    process.stdout.close()
    process.wait()
    case = Case("gp_ucb", "")
    plain = tb.Bandit(case.policy(), PROBLEM.tensor, generator=generator(5))
    bandit = resumed(case, path)
    assert 40 <= last <= int(bandit.pulls)
    further = int(bandit.pulls) + 50
    for b in (plain, bandit):
        for told in range(int(b.pulls), further):
            selection = b.ask()
            b.tell(selection, PROBLEM.rewards(told, selection.index))
    assert torch.equal(plain.counts, bandit.counts)


def test_costs_of_new_arms_may_be_a_list(tmp_path: Path):
    path, arms = tmp_path / "run.journal", PROBLEM.tensor[:3]
    bandit = journaled(Case("gp_ucb", ""), path).set_arms_(arms, costs=[1.0, 2.0, 3.0])
    bandit.journal.close()
    Path(f"{path}.checkpoint").unlink()
    again = journaled(Case("gp_ucb", ""), path)
    assert torch.equal(again.arms, arms)
    assert again.loop.state.rows.costs.tolist() == [1.0, 2.0, 3.0]
