"""The journal of a bandit: a file with all asks and tells, each durable before it takes effect, and its checkpoints."""

from __future__ import annotations

import os
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbandits.checks import as_path, check_flag, check_whole
from torchbandits.errors import DataError, JournalWarning, StateError, TorchBanditsError, require
from torchbandits.journal.fingerprint import describe_run, difference
from torchbandits.journal.lines import HEADER, Lines, Mark, begun_header, now, parsed, read_lines, sync_folder
from torchbandits.journal.packing import (
    GeneratorStates,
    Stamp,
    held,
    pack,
    read_checkpoint,
    stamp,
    unpack,
    write_checkpoint,
)
from torchbandits.sources import ArmSet
from torchbandits.types import Selection

Beside = Callable[[dict[str, Any]], dict[str, Any]]  # from a record to what else it says
FORMAT = 1
_PATIENCE = 20  # checkpoints take at most one part in so many of the time


class Journal:
    """The file in which a `Bandit` records asks and tells with their times, one line of JSON each, and from which it resumes.

    Every ask, tell, observe, forget, fit and change of arms is appended, checked and (by `fsync`) on the disk before the call
    that makes it returns; what can't be written does not happen. `PATH.checkpoint` holds the state of some line, so that
    resuming repeats only what came after; without it everything is repeated, and the result is the same.

    A last line that was being written when the process or the machine died is dropped, with a `JournalWarning`: it has no
    newline and is the beginning of a record that is not complete. A complete one that lacks only its newline is kept. Anything
    else that is not what was written is damage, zeros at the end included: a `DataError` names line and byte, and the file is
    left as it is. So is a checkpoint that holds more than the journal. Reading either executes nothing of what is in it.

    The file is the one that was opened: where it is deleted, replaced or changed by another program meanwhile, the next call is
    a `DataError` before anything is learned. Processes that are forked from this one hold neither the file nor its lock.

    Args:
        path: The file; created where it does not exist, resumed where it does. A relative path is one of the present folder,
            whatever becomes the present folder later.
        every: Records after which a checkpoint is written (later where it would take more than a twentieth of the time).
        durable: Whether to wait for the disk; see `Lines`.

    Raises:
        ArgumentError: If an argument is not as above.

    Cost: a record is some hundred bytes, or the size of what was handed in (arms on offer, new arms, history).
    """

    def __init__(self, path: str | os.PathLike[str], *, every: int = 1_000, durable: bool = True) -> None:
        check_whole("every", every)
        check_flag("durable", durable)
        self.path, self.every, self.durable = as_path("path", path).absolute(), every, durable
        self.resumed = False  # whether there was something to go on from
        self.moved = False  # whether the arms are others than at the start
        self._lines: Lines | None = None
        self._header: dict[str, Any] = {}
        self._replayed: dict[str, Any] | None = None
        self._repeating = False
        self._written, self._began, self._lasted = Mark(), time.monotonic(), 0.0  # of the last checkpoint
        self._saved: dict[str, Any] | None = None
        # The checkpoint that this journal wrote or resumed from: another file in its place is never overwritten.
        self._stamp: Stamp | None = None
        self._riders: GeneratorStates | None = None
        self._before: tuple[Mark, Any] | None = None
        self._beside: Beside | None = None
        # The description of the environment (`describe_environment`): `run` sets it before the run begins.
        self.environment: dict[str, str] = {}

    # ------------------------------------------------------------------ reading

    def records(self, start: Mark | None = None) -> Iterator[dict[str, Any]]:
        """The records, oldest first: dictionaries with a `kind`, the header left out. Cost: a pass over the file."""
        good = start is None or isinstance(start, Mark)
        require(good, f"start must be what mark() returned, or None, got {type(start).__name__}.")
        return self._records(start or Mark())

    def _records(self, start: Mark) -> Iterator[dict[str, Any]]:
        for before, _, text in read_lines(self.path, start):
            if before.records:
                yield parsed(text, self.path, before)

    @property
    def checkpoint_path(self) -> Path:
        """The path of the checkpoint."""
        return self.path.with_name(f"{self.path.name}.checkpoint")

    def close(self) -> None:
        """Close the file and release its lock; the bandit can't be asked or told any more."""
        if self._lines is not None:
            self._lines.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a bandit has no journal: two would write the same file."""
        return type(None), ()

    # ------------------------------------------------------------------ beginning and resuming

    def begin(self, described: dict[str, str], generators: Sequence[torch.Generator]) -> None:
        """Open the file for a run of what is described. An existing one sets the generators back to where that run began.

        Raises:
            StateError: If it is in use, or of another policy, other arms, costs or batch rows, or of another `environment`;
                nothing has changed then.
            DataError: If it is no journal, damaged, of a later format, or can't be written.
        """
        require(
            self._lines is None, f"the journal {self.path} serves another bandit already: a Journal is for one.", StateError
        )
        self._lines = lines = Lines(self.path, self.durable)
        described, ready = described | self.environment, False
        try:
            first = next(lines.read(), None)
            if first is None:
                self._check_unused(lines)
                self._header = self._new_header(described, generators)
            else:
                self._header = parsed(first[1], self.path, first[0])
                states = self._check_header(described, len(generators))
                # All of the file is checked before anything is done.
                for _ in lines.read():
                    pass
                self._saved = self._check_checkpoint(lines)
                for generator, state in zip(generators, states, strict=True):
                    generator.set_state(state)
                self.resumed = True
            ready = True
        finally:
            if not ready:
                lines.discard()
                self._lines = None

    def discard(self) -> None:
        """Give up a run that could not begin: an empty file is removed, and the journal may serve another bandit."""
        if self._lines is not None:
            self._lines.discard()
            self._lines, self.resumed = None, False

    def start(self) -> None:
        """Make the file ready for further records, once the run has proved possible: the header of a new one, and an existing
        one without the line that was torn."""
        lines = self._open()
        if beyond := lines.beyond():
            self._warn(self._what_was_torn(lines.end, beyond))
            lines.settle()
        if self.resumed:
            return
        lines.append(self._header)
        if self.durable:
            try:
                sync_folder(self.path.parent)
            except OSError as error:
                raise DataError(f"the folder {self.path.parent} can't be synced: {error}.") from error

    def _what_was_torn(self, end: Mark, beyond: int) -> str:
        if not end.records:
            return f"{self.path} ended in its first line, before anything was told: it begins anew."
        if beyond < 0:
            return (
                f"{self.path}, line {end.records}, lacked nothing but its newline: it is kept. The call that was writing it "
                "never returned."
            )
        return (
            f"{self.path} ended in the middle of line {end.records + 1} (byte {end.length}): its {beyond} bytes are dropped. "
            "The call that was writing them never returned."
        )

    def _new_header(self, described: dict[str, str], generators: Sequence[torch.Generator]) -> dict[str, Any]:
        states = [pack(g.get_state()) for g in generators]
        header = {"kind": "header", "format": FORMAT, "id": secrets.token_hex(8), "torch": torch.__version__}
        return header | {"at": now(), "of": described, "generators": states}

    def _check_unused(self, lines: Lines) -> None:
        with open(self.path, "rb") as file:
            good = begun_header(file.read(2 * len(HEADER))) or not lines.beyond()
        require(good, f"{self.path} exists and is no journal, by its line 1 (byte 0): choose another path.", DataError)
        require(
            not os.path.lexists(self.checkpoint_path),
            f"there is no journal {self.path}, or nothing in it, while {self.checkpoint_path} holds the state of a run: "
            "restore the journal from a copy; or move the checkpoint away to begin a new run.",
            DataError,
        )

    def _check_header(self, described: dict[str, str], rows: int) -> list[Tensor]:
        """Refuse a header of another run; the states that its generators began with."""
        header = self._header
        known = header["kind"] == "header" and isinstance(header.get("of"), dict) and isinstance(header.get("id"), str)
        require(known, f"{self.path} is no journal: its line 1 (byte 0) is not a header.", DataError)
        form = header.get("format")
        require(
            form == FORMAT, f"{self.path} has format {form!r}, this version reads {FORMAT}: use a later version.", DataError
        )
        if other := difference(header["of"], described):
            raise StateError(
                f"the journal {self.path} is of another run: {printable(other)}. Resume with the policy, arms, costs and "
                "environment that it began with (set_arms_ is repeated by itself), or choose another path."
            )
        try:
            states = [held(value) for value in header["generators"]]
            require(len(states) == rows, f"{len(states)} states for {rows} generators.", DataError)
            for state in states:
                torch.Generator().set_state(state)
        except (KeyError, TypeError, RuntimeError, DataError) as error:
            raise DataError(f"{self.path}, line 1 (byte 0): its generators can't be set: {error}") from error
        return states

    def _check_checkpoint(self, lines: Lines) -> dict[str, Any] | None:
        """The checkpoint of this journal, if there is one that can be read; else the reason is a `JournalWarning`.

        Raises:
            DataError: If it holds more than the journal.
        """
        path = self.checkpoint_path
        try:
            found = stamp(path)
            content = read_checkpoint(path)
            if content is None:
                return None
            mark = Mark(*content["mark"])
            require(content["journal"] == self._header["id"], f"{path} is of another journal.", DataError)
            longer = mark.length > lines.end.length
            require(longer or self._holds(mark), f"{path} is of another continuation of this journal.", DataError)
        except (DataError, KeyError, TypeError) as error:
            self._warn(f"the checkpoint is left aside, the whole journal is repeated instead: {error}")
            return None
        if longer:
            raise DataError(
                f"the journal {self.path} ends after line {lines.end.records} (byte {lines.end.length}), and its checkpoint "
                f"{path} holds the state after line {mark.records} (byte {mark.length}): lines are missing. Both were left as "
                "they are. Restore the journal from a copy; or, to go on without what only the checkpoint holds, move the "
                "checkpoint away."
            )
        self._stamp = found
        return content

    def saved(self) -> dict[str, Any] | None:
        """The checkpoint that an existing journal was opened with, once; None where there was none that could be read."""
        saved, self._saved = self._saved, None
        return saved

    def _holds(self, mark: Mark) -> bool:
        """Whether a mark is one of this file: then its checksum vouches for all before it."""
        lines, found = self._open(), None
        for before, _ in lines.read():
            found = before if before.length == mark.length else found
        return mark in (found, lines.end)

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """A context in which records are repeated, so that nothing is written."""
        self._repeating = True
        try:
            yield
        finally:
            self._repeating = False

    @property
    def is_repeating(self) -> bool:
        """Whether records are being repeated, so that nothing is written."""
        return self._repeating

    @property
    def behind(self) -> bool:
        """Whether it is open, and there are records that no checkpoint holds, besides the header."""
        lines = self._lines
        return lines is not None and lines.is_open and lines.end.records > max(1, self._written.records)

    def replay(self, start: Mark, apply: Callable[[dict[str, Any]], None]) -> None:
        """Hand the records after a mark to `apply`, which repeats them.

        Raises:
            DataError: If one of them can't be repeated; the message names its line.
        """
        for before, text in self._open().read(start):
            if not before.records:
                continue
            self._replayed = record = parsed(text, self.path, before)
            try:
                apply(record)
            except (TorchBanditsError, KeyError, TypeError, ValueError, AttributeError) as error:
                line = f"{self.path}, line {before.records + 1} (byte {before.length})"
                raise DataError(f"{line}: {record['kind']!r} can't be repeated: {printable(str(error))}") from error
            finally:
                self._replayed = None

    def agreed(self, selection: Selection, points_of: Callable[[Tensor], Tensor]) -> Selection:
        """The picks to open: those of the record that is being repeated, if there is one, whatever is found now.

        Another machine, or another version, may break a near-tie otherwise; what was evaluated counts. That it happened is a
        `JournalWarning`.
        """
        if self._replayed is None:
            return selection
        index = held(self._replayed["index"]).to(selection.index.device)
        known = unpack(self._replayed.get("points"))  # of a box
        if torch.equal(index, selection.index) and (known is None or torch.equal(known.to(selection.points), selection.points)):
            return selection
        self._warn(
            f"{self.path}: the policy picks {selection.index.tolist()} here, where the journal has {index.tolist()} (written "
            f"with torch {printable(str(self._header.get('torch')))}, this is {torch.__version__}): the journal's picks are "
            "kept."
        )
        return Selection(points_of(index) if known is None else known.to(selection.points), index, index >= 0)

    # ------------------------------------------------------------------ writing

    def mark(self) -> Mark:
        """The end of the file."""
        return self._open().end

    def append(self, record: dict[str, Any]) -> None:
        """Write a record, a dictionary with a `kind`, durably; nothing while records are repeated."""
        self.moved |= record["kind"] in ("set_arms", "maximize")
        if not self._repeating:
            lines = self._open()
            beside = {} if self._beside is None else self._beside(record)
            drawn = None
            if self._riders is not None:
                self._before = (lines.end, self._riders.known)
                drawn = self._riders.since()
            lines.append(record | beside | {"at": now()} | ({} if drawn is None else {"drawn": drawn}))

    def rewind_(self, mark: Mark) -> None:
        """Take back what was written since a mark, for a call that failed after all."""
        if self._repeating:
            return
        self._open().rewind_(mark)
        if self._riders is not None and self._before is not None and self._before[0] == mark:
            # What was drawn is told again, from where the record before left off.
            self._riders.known = self._before[1]

    def ride(self, generators: Sequence[torch.Generator], beside: Beside | None = None) -> None:
        """Keep further generators, such as an environment's noise, in the journal: they stand where they stood at its last
        record, and each further record says where they stand. `beside` gives what else a record says, for readers only."""
        self._riders, self._beside = GeneratorStates(generators), beside
        for record in self.records():
            if "drawn" in record:
                self._riders.follow(record["drawn"])

    def checkpoint(self, content: Callable[[], dict[str, Any]], *, urgent: bool = False) -> None:
        """Write a checkpoint of what `content` returns, if it is time to, or urgent. A failure is a `JournalWarning`."""
        lines = self._open()
        if self._repeating:
            return
        began, spared = time.monotonic(), lines.end.records - self._written.records
        if not urgent and (spared < self.every or began - self._began < _PATIENCE * self._lasted):
            return
        try:
            if not self.durable:
                # After a loss of power a checkpoint must not hold more than its journal.
                lines.sync()
            whole = {"journal": self._header["id"], "mark": list(lines.end), **content()}
            self._stamp, aside = write_checkpoint(self.checkpoint_path, whole, self._stamp)
            if aside is not None:
                self._warn(f"{self.checkpoint_path} was not written by this journal: it was moved to {aside}.")
        except OSError as error:
            self._warn(f"{error} The journal itself is whole; resuming repeats more of it.")
        self._written, self._began = lines.end, time.monotonic()
        self._lasted = self._began - began

    def resume_from(self, mark: Mark) -> None:
        """Count records from a checkpoint that was loaded."""
        self._written = mark

    def _open(self) -> Lines:
        if self._lines is None:
            raise StateError(f"the journal {self.path} is not open: hand it to a Bandit, journal=.")
        return self._lines

    def _warn(self, message: str) -> None:
        warnings.warn(message, JournalWarning, stacklevel=3)


def printable(text: str) -> str:
    """A text from a file for a message: what a terminal would obey is escaped."""
    return text if text.isprintable() else repr(text)[1:-1]


def as_journal(journal: Journal | str | os.PathLike[str] | None) -> Journal | None:
    """A journal, from one or its path."""
    return journal if journal is None or isinstance(journal, Journal) else Journal(as_path("journal", journal))


@contextmanager
def begun(
    journal: Journal | None,
    policy: Any,
    domain: ArmSet,
    costs: Any,
    generators: Sequence[torch.Generator],
    beside: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """A context with the journal, if any, open for a run of this policy on these arms (or this box); an error closes it.

    Args:
        journal: Opened here, or None.
        policy, domain, costs: Of the run; when it is resumed they must be the same.
        generators: Set back to where the run began, if there is one.
        beside: Further entries of the description that must be the same.
    """
    if journal is None:
        yield
        return
    described = describe_run(policy, domain, costs) | {"generators": str(len(generators))} | dict(beside or {})
    journal.begin(described, generators)
    ready = False
    try:
        yield
        journal.start()
        ready = True
    finally:
        if not ready:
            journal.discard()
