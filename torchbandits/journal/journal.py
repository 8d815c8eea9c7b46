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
from torchbandits.journal.format import (
    GeneratorStates,
    Stamp,
    held,
    pack,
    read_checkpoint,
    stamp,
    unpack,
    write_checkpoint,
)
from torchbandits.journal.lines import HEADER, Lines, Mark, begun_header, now, parsed, read_lines, sync_folder
from torchbandits.sources import ArmSet
from torchbandits.types import Selection

Beside = Callable[[dict[str, Any]], dict[str, Any]]  # from a record to its additional entries
FORMAT = 1
_PATIENCE = 20  # checkpoints take at most a fraction of 1 over this number of the time
_REPEATED = 10.0  # seconds of computing since the last checkpoint after which one is written, whatever the number of records


class Journal:
    """The file in which a `Bandit` records asks and tells with their times, one line of JSON each, and from which it resumes.

    Every ask, tell, observe, forget, fit and change of arms is appended, checked and (by `fsync`) on the disk before its call
    returns; a call whose record cannot be written has no effect. `PATH.checkpoint` holds the state after some line, so that
    resuming repeats only the later lines; without it all lines are repeated, with the same picks. Factors are not part of a
    checkpoint, and neither are the directions of an exact posterior if they take more than 256 MiB. Both are computed anew from
    its sums, so that means and variances may differ by rounding.

    A last line that was being written when the process or the machine died is dropped, with a `JournalWarning`: it has no
    newline and is the beginning of an incomplete record. A complete record that lacks only its newline is kept. Any other
    deviation from the written content is damage, including zeros at the end: a `DataError` names line and byte, and the file is
    left as it is. A checkpoint that is ahead of the journal is damage, too. Reading journal or checkpoint executes none of
    their content.

    If another program deletes, replaces or changes the open file, the next call raises a `DataError` before anything is
    learned. Forked processes hold neither the file nor its lock.

    Args:
        path: The file; created if it does not exist, otherwise the run is resumed. A relative path refers to the working
            directory at this call, also if the working directory changes later.
        every: Number of records after which a checkpoint is written. One is also written once the calls since the last one
            have taken ten seconds. (Both later if checkpoints would take more than a twentieth of the time.)
        durable: Whether to wait for the disk; see `Lines`.

    Raises:
        ArgumentError: If an argument is not as above.

    Cost: some hundred bytes per record, or the size of the arguments of the call (arms on offer, new arms, history).
    """

    def __init__(self, path: str | os.PathLike[str], *, every: int = 1_000, durable: bool = True) -> None:
        check_whole("every", every)
        check_flag("durable", durable)
        self.path, self.every, self.durable = as_path("path", path).absolute(), every, durable
        self.resumed = False  # whether an existing run is resumed
        self.moved = False  # whether the arms differ from those at the start
        self._lines: Lines | None = None
        self._header: dict[str, Any] = {}
        self._replayed: dict[str, Any] | None = None
        self._repeating = False
        self._written, self._began, self._lasted = Mark(), time.monotonic(), 0.0  # of the last checkpoint
        self._spent = 0.0  # seconds that the calls after it took
        self._saved: dict[str, Any] | None = None
        # The checkpoint that this journal wrote or resumed from; any other file at its path is never overwritten.
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
        """Path of the checkpoint."""
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
        """Open the file for a run with this description. If the file exists, the generators are set to the states with which
        its run began.

        Raises:
            StateError: If the file is in use, or belongs to another policy, other arms, costs or batch rows, or another
                `environment`; nothing has changed then.
            DataError: If the file is not a journal, is damaged, has a later format, or cannot be written.
        """
        require(
            self._lines is None,
            f"the journal {self.path} is used by another bandit already: make a Journal for each bandit.",
            StateError,
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
                # The whole file is checked before anything is changed.
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
        """Prepare the file for further records, once the run is known to be possible: write the header of a new file, or cut
        the torn line of an existing one."""
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
            return f"{self.path} ended within its first line, before anything was told: it is begun again."
        if beyond < 0:
            return (
                f"{self.path}, line {end.records}, was complete except for its newline, and is kept. The call that "
                "was writing it never returned."
            )
        return (
            f"{self.path} ended in the middle of line {end.records + 1} (byte {end.length}): the {beyond} bytes "
            "of that line are dropped. The call that was writing them never returned."
        )

    def _new_header(self, described: dict[str, str], generators: Sequence[torch.Generator]) -> dict[str, Any]:
        states = [pack(g.get_state()) for g in generators]
        header = {"kind": "header", "format": FORMAT, "id": secrets.token_hex(8), "torch": torch.__version__}
        return header | {"at": now(), "of": described, "generators": states}

    def _check_unused(self, lines: Lines) -> None:
        with open(self.path, "rb") as file:
            good = begun_header(file.read(2 * len(HEADER))) or not lines.beyond()
        require(good, f"{self.path} exists and is not a journal (line 1, byte 0): choose another path.", DataError)
        require(
            not os.path.lexists(self.checkpoint_path),
            f"the journal {self.path} is missing or empty, and {self.checkpoint_path} holds the state of a run: "
            "restore the journal from a copy, or move the checkpoint away to begin a new run.",
            DataError,
        )

    def _check_header(self, described: dict[str, str], rows: int) -> list[Tensor]:
        """Refuse the header of another run, and return the states with which its generators began."""
        header = self._header
        known = header["kind"] == "header" and isinstance(header.get("of"), dict) and isinstance(header.get("id"), str)
        require(known, f"{self.path} is not a journal: its line 1 (byte 0) is not a header. Choose another path.", DataError)
        form = header.get("format")
        require(
            form == FORMAT, f"{self.path} has format {form!r}, this version reads {FORMAT}: use a later version.", DataError
        )
        if other := difference(header["of"], described):
            raise StateError(
                f"the journal {self.path} belongs to another run: {printable(other)}. Resume with the policy, arms, costs and "
                "environment that it began with (calls of set_arms_ are repeated from the journal), or choose another path."
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
        """The checkpoint of this journal; None if there is none or, with a `JournalWarning` that gives the reason, if it cannot
        be read.

        Raises:
            DataError: If it is ahead of the journal.
        """
        path = self.checkpoint_path
        try:
            found = stamp(path)
            content = read_checkpoint(path)
            if content is None:
                return None
            mark = Mark(*content["mark"])
            require(content["journal"] == self._header["id"], f"{path} belongs to another journal.", DataError)
            longer = mark.length > lines.end.length
            require(longer or self._holds(mark), f"{path} belongs to another continuation of this journal.", DataError)
        except (DataError, KeyError, TypeError) as error:
            self._warn(f"the checkpoint is not used, and the whole journal is repeated instead: {error}")
            return None
        if longer:
            raise DataError(
                f"the journal {self.path} ends after line {lines.end.records} (byte {lines.end.length}), and its "
                f"checkpoint {path} holds the state after line {mark.records} (byte {mark.length}): lines are "
                "missing. Both files were left unchanged. Restore the journal from a copy, or move the checkpoint "
                "away to continue without the missing lines."
            )
        self._stamp = found
        return content

    def saved(self) -> dict[str, Any] | None:
        """The checkpoint with which an existing journal was opened, returned by the first call only; None if no checkpoint
        could be read."""
        saved, self._saved = self._saved, None
        return saved

    def _holds(self, mark: Mark) -> bool:
        """Whether a mark belongs to this file; its checksum then verifies all lines before it."""
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
        """Whether the journal is open and has records, besides the header, that no checkpoint contains."""
        lines = self._lines
        return lines is not None and lines.is_open and lines.end.records > max(1, self._written.records)

    def replay(self, start: Mark, apply: Callable[[dict[str, Any]], None]) -> None:
        """Pass the records after a mark to `apply`, which repeats them.

        Raises:
            DataError: If one of them can't be repeated; the message names its line.
        """
        began = time.monotonic()
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
        self._spent += time.monotonic() - began

    def agreed(self, selection: Selection, points_of: Callable[[Tensor], Tensor]) -> Selection:
        """The picks to open: if a record is being repeated, its picks, even if the policy selects others now.

        Another machine or version may decide a near-tie differently, but the recorded picks were evaluated. A difference is
        reported by a `JournalWarning`.
        """
        if self._replayed is None:
            return selection
        index = held(self._replayed["index"]).to(selection.index.device)
        known = unpack(self._replayed.get("points"))  # of a box
        if torch.equal(index, selection.index) and (known is None or torch.equal(known.to(selection.points), selection.points)):
            return selection
        self._warn(
            f"{self.path}: the policy picks {selection.index.tolist()} here, and the journal has {index.tolist()} (written "
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
            lines.append(record | beside | {"at": now()} | ({} if drawn is None else {_riders_of(record): drawn}))

    @contextmanager
    def beside(self, **entries: Any) -> Iterator[None]:
        """Let the records that are written meanwhile have further entries, which repeating them does not read."""
        before = self._beside
        self._beside = lambda record: entries if before is None else before(record) | entries
        try:
            yield
        finally:
            self._beside = before

    def rewind_(self, mark: Mark) -> None:
        """Remove the records written since a mark, for a call that failed afterwards."""
        if self._repeating:
            return
        self._open().rewind_(mark)
        if self._riders is not None and self._before is not None and self._before[0] == mark:
            # The next record describes the generators again, relative to the record before the mark.
            self._riders.known = self._before[1]

    def ride(self, generators: Sequence[torch.Generator], beside: Beside | None = None) -> None:
        """Keep the states of further generators, such as those of an environment's noise, in the journal: they are set to their
        states at the last record, and each further record holds their new states. `beside` returns additional entries of a
        record, which repeating it does not read."""
        self._riders, self._beside = GeneratorStates(generators), beside
        for record in self.records():
            if (changes := record.get(_riders_of(record))) is not None:
                self._riders.follow(changes)

    def checkpoint(self, content: Callable[[], dict[str, Any]], *, took: float = 0.0, urgent: bool = False) -> None:
        """Write a checkpoint of the result of `content`, if one is due or if it is urgent. A failure is a `JournalWarning`.

        Args:
            content: Returns the state.
            took: Seconds that the last call took.
            urgent: Whether to write one in any case.
        """
        lines = self._open()
        if self._repeating:
            return
        self._spent += took
        began, spared = time.monotonic(), lines.end.records - self._written.records
        due = spared >= self.every or (spared and self._spent >= _REPEATED)
        if not urgent and (not due or began - self._began < _PATIENCE * self._lasted):
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
        self._written, self._began, self._spent = lines.end, time.monotonic(), 0.0
        self._lasted = self._began - began

    def resume_from(self, mark: Mark) -> None:
        """Count records from a loaded checkpoint."""
        self._written = mark

    def _open(self) -> Lines:
        if self._lines is None:
            raise StateError(f"the journal {self.path} is not open: pass it to a Bandit, as journal=.")
        return self._lines

    def _warn(self, message: str) -> None:
        warnings.warn(message, JournalWarning, stacklevel=3)


def _riders_of(record: dict[str, Any]) -> str:
    """The entry of a record with the states of further generators."""
    # A record of several selections names the states of the bandit's own generators "drawn".
    return "riders" if record["kind"] == "fill" else "drawn"


def printable(text: str) -> str:
    """A text from a file, for a message: control characters that a terminal would execute are escaped."""
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
    known: Any = None,
) -> Iterator[None]:
    """A context with the journal, if any, open for a run of this policy on these arms (or this box); an error closes it.

    Args:
        journal: Opened here, or None.
        policy, domain, costs: Those of the run; a resumed run must have the same.
        generators: Set to the states with which the run began, if the journal exists.
        beside: Further entries of the description that must be the same.
        known: Known outcomes of the arms, which must be the same too.
    """
    if journal is None:
        yield
        return
    described = describe_run(policy, domain, costs, known) | {"generators": str(len(generators))} | dict(beside or {})
    journal.begin(described, generators)
    ready = False
    try:
        yield
        journal.start()
        ready = True
    finally:
        if not ready:
            journal.discard()
