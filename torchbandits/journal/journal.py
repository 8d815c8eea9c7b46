"""The journal of a bandit: what was asked and told, durable before it takes effect, and how to get back to it."""

from __future__ import annotations

import os
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbandits.coercion import as_path, check_flag, check_whole
from torchbandits.errors import DataError, JournalWarning, StateError, TorchBanditsError, require
from torchbandits.journal.checkpoints import read_checkpoint, write_checkpoint
from torchbandits.journal.fingerprint import difference
from torchbandits.journal.lines import Lines, Mark, begun_header, now, parsed, read_lines, sync_folder
from torchbandits.journal.packing import Drawn, held, pack, unpack
from torchbandits.types import Selection

Beside = Callable[[dict[str, Any]], dict[str, Any]]  # from a record to what else it says
FORMAT = 1
_PATIENCE = 20  # checkpoints take at most one part in so many of the time


class Journal:
    """Where a `Bandit` writes what is asked and told, and when, one line of JSON each, and from which it resumes.

    Every ask, tell, observe, forget, fit and change of arms is appended, checked and (by `fsync`) on the disk before the call
    that makes it returns; what can't be written does not happen. `PATH.checkpoint` holds the state of some line, so that
    resuming repeats only what came after; without it everything is repeated, and the result is the same.

    A line that was being written when the process or the machine died is dropped, with a `JournalWarning`; any other damage is
    a `DataError` that names line and byte. Reading a journal or a checkpoint executes nothing of what is in it.

    Args:
        path: The file; created where it does not exist, resumed where it does.
        every: Records after which a checkpoint is written (later where it would take more than a twentieth of the time).
        durable: Whether to wait for the disk; see `Lines`.

    Raises:
        ArgumentError: If an argument is not as above.

    Cost: a record is some hundred bytes, or the size of what was handed in (arms on offer, new arms, history).
    """

    def __init__(self, path: str | os.PathLike[str], *, every: int = 1_000, durable: bool = True) -> None:
        check_whole("every", every)
        check_flag("durable", durable)
        self.path, self.every, self.durable = as_path("path", path), every, durable
        self.resumed = False  # whether there was something to go on from
        self.moved = False  # whether the arms are others than at the start
        self._lines: Lines | None = None
        self._header: dict[str, Any] = {}
        self._replayed: dict[str, Any] | None = None
        self._repeating = False
        self._written, self._began, self._lasted = Mark(), time.monotonic(), 0.0  # of the last checkpoint
        self._riders: Drawn | None = None
        self._beside: Beside | None = None
        self._environment: dict[str, str] = {}

    # ------------------------------------------------------------------ reading

    def records(self, start: Mark | None = None) -> Iterator[dict[str, Any]]:
        """What was written, oldest first: dictionaries with a `kind`, the header left out. Cost: a pass over the file."""
        good = start is None or isinstance(start, Mark)
        require(good, f"start must be what mark() returned, or None, got {type(start).__name__}.")
        return self._records(start or Mark())

    def _records(self, start: Mark) -> Iterator[dict[str, Any]]:
        for before, _, text in read_lines(self.path, start):
            if before.records:
                yield parsed(text, self.path, before)

    @property
    def checkpoint_path(self) -> Path:
        """Where checkpoints go."""
        return self.path.with_name(f"{self.path.name}.checkpoint")

    def close(self) -> None:
        """Give the file and its lock back; the bandit can't be asked or told any more."""
        if self._lines is not None:
            self._lines.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a bandit has no journal: two would write the same file."""
        return type(None), ()

    # ------------------------------------------------------------------ beginning and resuming

    def _answered_by(self, environment: dict[str, str]) -> None:
        """Name the environment (see `describe_environment`) before the run begins: it becomes part of what the run is of."""
        self._environment = environment

    def begin(self, described: dict[str, str], generators: Sequence[torch.Generator]) -> None:
        """Open the file for a run of what is described. An existing one sets the generators back to where that run began.

        Raises:
            StateError: If it is in use, or of another policy, other arms, costs or batch rows, or of another environment than
                `_answered_by` was given; nothing has changed then.
            DataError: If it is no journal, damaged, of a later format, or can't be written.
        """
        require(
            self._lines is None, f"the journal {self.path} serves another bandit already: a Journal is for one.", StateError
        )
        self._lines = lines = Lines(self.path, self.durable)
        described, ready = described | self._environment, False
        try:
            first = next(lines.read(), None)
            if first is None:
                self._check_unused(lines.torn())
                self._header = self._new_header(described, generators)
            else:
                self._check_header(parsed(first[1], self.path, first[0]), described, generators)
                for _ in lines.read():
                    pass  # all of it is checked before anything is done
                self._drop(lines.torn())
                self.resumed = True
            ready = True
        finally:
            if not ready:
                lines.discard()
                self._lines = None

    def discard(self) -> None:
        """Give up on a run that could not begin: an empty file is removed."""
        if self._lines is not None:
            self._lines.discard()

    def start(self) -> None:
        """Write the header of a new journal, once the run it is of has proved possible."""
        lines = self._open()
        lines.rewind_(Mark())
        lines.append(self._header)
        if self.durable:
            sync_folder(self.path.absolute().parent)

    def _new_header(self, described: dict[str, str], generators: Sequence[torch.Generator]) -> dict[str, Any]:
        states = [pack(g.get_state()) for g in generators]
        header = {"kind": "header", "format": FORMAT, "id": secrets.token_hex(8), "torch": torch.__version__}
        return header | {"at": now(), "of": described, "generators": states}

    def _check_unused(self, text: bytes) -> None:
        require(not text or begun_header(text), f"{self.path} exists and is no journal: choose another path.", DataError)
        if text:
            self._warn(f"{self.path} ended in its first line, before anything was told: it begins anew.")
            os.truncate(self.path, 0)

    def _check_header(self, header: dict[str, Any], described: dict[str, str], generators: Sequence[torch.Generator]) -> None:
        known = header["kind"] == "header" and isinstance(header.get("of"), dict) and isinstance(header.get("id"), str)
        require(known, f"{self.path} is no journal: its first line is not a header.", DataError)
        form = header.get("format")
        require(form == FORMAT, f"{self.path} has format {form}, this version reads {FORMAT}: use a later version.", DataError)
        if other := difference(header["of"], described):
            raise StateError(
                f"the journal {self.path} is of another run: {other}. Resume with the policy, arms, costs and "
                "environment that it began with (set_arms_ is repeated by itself), or choose another path."
            )
        states = [held(value) for value in header.get("generators", [])]
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        self._header = header

    def _drop(self, torn: bytes) -> None:
        if torn:
            lines = self._open()
            at, count = lines.end.length, lines.end.records
            self._warn(
                f"{self.path} ended in the middle of line {count + 1} (byte {at}): its {len(torn)} bytes are dropped. The call "
                "that was writing them never returned."
            )
            os.truncate(self.path, at)

    def saved(self) -> dict[str, Any] | None:
        """The checkpoint of this journal, if there is one that can be read; else the reason is a `JournalWarning`."""
        try:
            content = read_checkpoint(self.checkpoint_path)
            if content is None:
                return None
            mark = Mark(*content["mark"])
            own = content["journal"] == self._header["id"] and self._holds(mark)
            require(own, f"{self.checkpoint_path} is of another journal.", DataError)
        except (DataError, KeyError, TypeError) as error:
            self._warn(f"the checkpoint is left aside, the whole journal is repeated instead: {error}")
            return None
        return content

    def _holds(self, mark: Mark) -> bool:
        """Whether a mark is one of this file: then its checksum vouches for all before it."""
        lines, found = self._open(), None
        for before, _ in lines.read():
            found = before if before.length == mark.length else found
        return mark in (found, lines.end)

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Meanwhile nothing is written."""
        self._repeating = True
        try:
            yield
        finally:
            self._repeating = False

    def replay(self, start: Mark, apply: Callable[[dict[str, Any]], None]) -> None:
        """Hand the records after a mark to `apply`, which repeats them.

        Raises:
            DataError: If one of them can't be repeated; says which line.
        """
        for before, text in self._open().read(start):
            if not before.records:
                continue
            self._replayed = record = parsed(text, self.path, before)
            try:
                apply(record)
            except (TorchBanditsError, KeyError, TypeError, ValueError, AttributeError) as error:
                line = f"{self.path}, line {before.records + 1} (byte {before.length})"
                raise DataError(f"{line}: {record['kind']!r} can't be repeated: {error}") from error
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
            f"with torch {self._header.get('torch')}, this is {torch.__version__}): the journal's picks are kept."
        )
        return Selection(points_of(index) if known is None else known.to(selection.points), index, index >= 0)

    # ------------------------------------------------------------------ writing

    def mark(self) -> Mark:
        """Where the file ends now."""
        return self._open().end

    def append(self, record: dict[str, Any]) -> None:
        """Write a record, a dictionary with a `kind`, durably; nothing while records are repeated."""
        self.moved |= record["kind"] in ("set_arms", "maximize")
        if not self._repeating:
            drawn = None if self._riders is None else self._riders.since()
            beside = {} if self._beside is None else self._beside(record)
            self._open().append(record | beside | {"at": now()} | ({} if drawn is None else {"drawn": drawn}))

    def rewind_(self, mark: Mark) -> None:
        """Take back what was written since a mark, for a call that failed after all."""
        if not self._repeating:
            self._open().rewind_(mark)

    def ride(self, generators: Sequence[torch.Generator], beside: Beside | None = None) -> None:
        """Keep further generators, such as an environment's noise, in the journal: they stand where they stood at its last
        record, and each further record says where they stand. `beside` gives what else a record says, for readers only."""
        self._riders, self._beside = Drawn(generators), beside
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
            write_checkpoint(self.checkpoint_path, {"journal": self._header["id"], "mark": list(lines.end), **content()})
        except DataError as error:
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


def as_journal(journal: Journal | str | os.PathLike[str] | None) -> Journal | None:
    """A journal, from one or its path."""
    return journal if journal is None or isinstance(journal, Journal) else Journal(as_path("journal", journal))
