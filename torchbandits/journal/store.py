"""One run in one SQLite file for several workers: picks, their leases, and their rewards."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torchbandits.errors import DataError, StateError, require
from torchbandits.journal.fingerprint import difference
from torchbandits.journal.format import from_bytes, to_bytes
from torchbandits.journal.lines import now

FORMAT = 2  # with history; a file without history has format 1, which earlier versions read
MAGIC = b"SQLite format 3\0"
_EVENTS = (
    "SELECT events.number, kind, pick, events.content, picks.content FROM events LEFT JOIN picks ON pick = picks.number "
    "WHERE events.number > ? ORDER BY events.number"
)
_TABLES = """
CREATE TABLE run (format INTEGER NOT NULL, id TEXT NOT NULL, described TEXT NOT NULL, began TEXT NOT NULL);
CREATE TABLE events (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, pick INTEGER NOT NULL, content TEXT NOT NULL);
CREATE TABLE picks (number INTEGER PRIMARY KEY, state TEXT NOT NULL CHECK (state IN ('out', 'told', 'forgotten')),
    worker TEXT NOT NULL, expires REAL NOT NULL, attempts INTEGER NOT NULL, content TEXT NOT NULL);
CREATE INDEX waiting ON picks (state, expires);
CREATE TABLE checkpoint (one INTEGER PRIMARY KEY CHECK (one = 1), event INTEGER NOT NULL, content BLOB NOT NULL);
"""
# Seconds to wait for other workers' transactions.
_PATIENCE = 600.0


T = TypeVar("T")
_BESIDE = ("-wal", "-shm")
Event = tuple[int, str, int, dict[str, Any], dict[str, Any]]


class Pick(NamedTuple):
    """A pick that a worker holds: its number, the record of the pick, the end of its lease, and the number of times that it was
    handed out."""

    number: int
    content: dict[str, Any]
    expires: float
    attempts: int


class SharedStore:
    """The file of a run. Every change is one transaction, which is durable before its call returns (`synchronous=FULL`); no
    server is needed.

    SQLite locks the file: keep the file on a local disk of one machine, since few network file systems lock reliably.
    The connection is closed before a fork, and parent and child each open a new one when they next need it: SQLite's locks do
    not survive a fork. If another file replaces the one that was first at `path`, every call is refused.

    Args:
        path: Path of the file, which is created if it does not exist. A relative path keeps its meaning when the working
            directory changes.

    Attributes:
        id: Random id of the run, written when the file is made; empty before `begin`.

    Raises:
        DataError: If the file is not a store, is damaged, has a later format, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.id = Path(os.path.abspath(path)), ""
        self._closed, self._left_behind = False, False
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # device and inode
        self._beside: tuple[tuple[int, int] | None, ...] = ()  # those of the files that SQLite keeps beside it
        with self._readable():
            self._connect()
            _OPEN.add(self)

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        self._disconnect()

    def __del__(self) -> None:
        """Close a store that is no longer referenced."""
        if hasattr(self, "_left_behind"):
            self._disconnect()

    def begin(self, described: dict[str, str], generators: list[Any], observed: dict[str, Any] | None = None) -> list[Any]:
        """Register the run, or join it, and return the states with which its generators began.

        Args:
            described: Description of the run.
            generators: States of its generators.
            observed: The history with which it begins, which is the first event; None for no history, or to join a run
                whatever its history is.

        Raises:
            StateError: If the file belongs to another run, or the run began with another history.
        """
        return self.transaction(lambda: self._begin(described, generators, observed))

    def _begin(self, described: dict[str, str], generators: list[Any], observed: dict[str, Any] | None) -> list[Any]:
        if not self._one("SELECT count(*) FROM sqlite_master WHERE name = 'run'")[0]:
            some = self._one("SELECT count(*) FROM sqlite_master")[0]
            require(not some, f"{self.path} is a database of another program: choose another path.", DataError)
            for statement in _TABLES.split(";\n"):
                self._run(statement)
            self.id = secrets.token_hex(8)
            form = 1 if observed is None else FORMAT
            self._run("INSERT INTO run VALUES (?, ?, ?, ?)", (form, self.id, json.dumps(described), json.dumps(generators)))
            if observed is not None:
                self.note("observe", 0, observed)
            return generators
        self.id, known, began = _run_row(self._one("SELECT * FROM run"), self.path)
        if other := difference(known, described):
            raise StateError(
                f"{self.path} belongs to another run: {other}. Join with the policy, arms and costs that it began with."
            )
        if observed is not None:
            self._check_history(observed)
        return began

    def _check_history(self, observed: dict[str, Any]) -> None:
        """Refuse another history than that with which the run began."""
        row = self._one("SELECT content FROM events WHERE kind = 'observe'")
        first = {} if row is None else json.loads(row[0])
        same = {name: value for name, value in first.items() if name != "at"} == observed
        message = (
            f"{self.path} began with {'no history' if row is None else 'another history'}: leave out observed= to join this "
            "run, or begin another store."
        )
        require(same, message, StateError)

    def transaction(self, work: Callable[[], T]) -> T:
        """Call `work` in one transaction, which is committed as a whole or rolled back, and return its result.

        A function instead of a context, because an interrupt between the two halves of a context would leave it open.

        Raises:
            DataError: If the file cannot be written, or was replaced since it was opened. Nothing was changed then.
        """
        with self._lock, self._readable():
            db = self._connected()
            if db.in_transaction:  # a second interrupt during the handling of the first
                db.execute("ROLLBACK")
            try:
                self._run("BEGIN IMMEDIATE")
                result = work()
                self._check_file()
                self._run("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
            self._check_file("The changes of this call may be lost.")
        return result

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, self._readable():
            self._connected()
            yield

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, json.JSONDecodeError) as error:
            full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            remedy = " Free space on the disk, and repeat the call." if full else ""
            raise DataError(
                f"the store {self.path} can't be used: {error}. Nothing was changed by this call.{remedy}"
            ) from error

    # ------------------------------------------------------------------ the connection

    def _connect(self) -> None:
        """Open the file: at the first time it may be a new file, later it must be the same file."""
        # SQLite waits for a short time only, since a wait inside SQLite cannot be interrupted from the keyboard.
        options: dict[str, Any] = {"timeout": 0.05, "isolation_level": None, "check_same_thread": False}
        if self._file is None:
            db = sqlite3.connect(self.path, **options)
        else:
            self._check_file()
            db = sqlite3.connect(f"{self.path.as_uri()}?mode=rw", uri=True, **options)
        try:
            self._run("PRAGMA synchronous=FULL", db=db)
            if not self._run("SELECT count(*) FROM sqlite_master", db=db).fetchone()[0]:
                self._run("PRAGMA journal_mode=WAL", db=db).fetchone()
                self._run("SELECT count(*) FROM sqlite_master", db=db).fetchone()
        except BaseException:
            db.close()
            raise
        self._file = self._file or _identity(str(self.path))
        # SQLite removes the files beside it with the last connection only, and this one is open.
        self._beside = tuple(_identity(f"{self.path}{suffix}") for suffix in _BESIDE)
        self._db = db

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is None:
            return
        if self._left_behind or _identity(str(self.path)) != self._file:
            _never_close(db)
        else:
            db.close()

    def _connected(self) -> sqlite3.Connection:
        """The connection of this process.

        Raises:
            StateError: If the connection was closed, or cannot be used in this process.
            DataError: If the file was deleted or replaced.
        """
        require(not self._closed, f"the store {self.path} was closed: make a new Worker on it to go on.", StateError)
        message = (
            f"this process was forked in the middle of a transaction of the store {self.path}: use the store in the process "
            "that opened it."
        )
        require(not self._left_behind, message, StateError)
        if self._db is None:
            self._connect()
        else:
            self._check_file()
        assert self._db is not None
        return self._db

    def _check_file(self, otherwise: str = "Nothing was changed by this call.") -> None:
        same = _identity(str(self.path)) == self._file
        if same and self._db is not None:
            same = self._beside == tuple(_identity(f"{self.path}{suffix}") for suffix in _BESIDE)
        message = (
            f"the store {self.path}, or a file that SQLite keeps beside it, was deleted, moved or replaced while it was in "
            f"use. {otherwise} Put the files back, or make a new Worker."
        )
        require(same, message, DataError)

    def _run(self, statement: str, values: tuple[Any, ...] = (), *, db: sqlite3.Connection | None = None) -> sqlite3.Cursor:
        """Execute a statement, and wait for other workers' transactions."""
        db = db or self._db
        assert db is not None
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                return db.execute(statement, values)
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() > end:
                    raise
            time.sleep(0.001)

    def _one(self, statement: str) -> Any:
        return self._run(statement).fetchone()

    def before_fork(self) -> None:
        """Close the connection, once no other thread uses it."""
        self._lock.acquire()
        if self._db is not None and not self._db.in_transaction:
            self._disconnect()

    def after_fork(self, *, child: bool) -> None:
        """Let the threads continue. A child must not even close a connection that it inherits in the middle of a
        transaction."""
        if child and self._db is not None:
            self._left_behind = True
            self._disconnect()
        self._lock.release()

    # ------------------------------------------------------------------ picks

    def counts(self) -> dict[str, int]:
        """The numbers of picks that are out, told and forgotten."""
        with self._reading():
            found = dict(self._run("SELECT state, count(*) FROM picks GROUP BY state").fetchall())
        return {"out": 0, "told": 0, "forgotten": 0} | found

    def hand_out_expired(self, worker: str, lease: float) -> Pick | None:
        """Hand out the pick whose lease expired longest ago to another worker; None if all open picks are held."""
        now = time.time()
        row = self._run(
            "SELECT number, content, attempts FROM picks WHERE state = 'out' AND expires < ? ORDER BY expires LIMIT 1", (now,)
        ).fetchone()
        if row is None:
            return None
        number, content, attempts = row
        self._run(
            "UPDATE picks SET worker = ?, expires = ?, attempts = attempts + 1 WHERE number = ?", (worker, now + lease, number)
        )
        return Pick(number, json.loads(content), now + lease, attempts + 1)

    def add(self, content: dict[str, Any], worker: str, lease: float) -> Pick:
        """A new pick, held by a worker."""
        expires = time.time() + lease
        text = json.dumps(content, allow_nan=False)
        number = self._run(
            "INSERT INTO picks (state, worker, expires, attempts, content) VALUES ('out', ?, ?, 1, ?)", (worker, expires, text)
        ).lastrowid
        assert number is not None
        self.note("ask", number, {})
        return Pick(number, content, expires, 1)

    def settle(self, number: int, state: str, content: dict[str, Any]) -> None:
        """Tell or forget a pick that is out, whichever worker holds it now.

        Raises:
            StateError: If it was told or forgotten before.
        """
        row = self._run("SELECT state, attempts FROM picks WHERE number = ?", (number,)).fetchone()
        require(row is not None, f"pick {number} is not in {self.path}.", StateError)
        why = (
            ""
            if row[1] == 1
            else (
                f" It was handed out {row[1]} times, since leases of it expired: use a longer lease, or renew() it while the "
                "evaluation lasts."
            )
        )
        require(row[0] == "out", f"pick {number} was {row[0]} already, and counts only once.{why}", StateError)
        self._run("UPDATE picks SET state = ? WHERE number = ?", (state, number))
        self.note({"told": "tell", "forgotten": "forget"}[state], number, content)

    def renew(self, number: int, worker: str, attempt: int, lease: float) -> float:
        """Extend the lease of a pick, and return its new end.

        Args:
            number: Number of the pick.
            worker: Name of the worker.
            attempt: Number of times that the pick had been handed out when the worker received it, since names need not differ.
            lease: Seconds from now.

        Raises:
            StateError: If the worker does not hold it any more.
        """
        expires = time.time() + lease
        held = self._run(
            "UPDATE picks SET expires = ? WHERE number = ? AND worker = ? AND attempts = ? AND state = 'out'",
            (expires, number, worker, attempt),
        ).rowcount
        message = f"pick {number} is not held by worker {worker!r} any more: its lease expired, or it was told or forgotten."
        require(held == 1, message, StateError)
        return expires

    # ------------------------------------------------------------------ events and checkpoints

    def note(self, kind: str, pick: int, content: dict[str, Any]) -> None:
        """Append an event, with the time."""
        text = json.dumps(content | {"at": now()}, allow_nan=False)
        self._run("INSERT INTO events (kind, pick, content) VALUES (?, ?, ?)", (kind, pick, text))

    def events(self, after: int) -> list[Event]:
        """Events after a number, oldest first: number, kind, number of the pick (0 for history), its result, and the record of
        the pick."""
        with self._reading():
            return _parsed(self._run(_EVENTS, (after,)))

    def save(self, event: int, content: dict[str, Any]) -> None:
        """Save the state after an event, unless a later state is saved."""
        values = (event, to_bytes(content))
        self.transaction(
            lambda: self._run(
                "INSERT INTO checkpoint VALUES (1, ?, ?) ON CONFLICT (one) DO UPDATE SET event = excluded.event, "
                "content = excluded.content WHERE excluded.event > event",
                values,
            )
        )

    def saved_event(self) -> int:
        """The number of the event after which the latest state was saved; 0 if there is no saved state."""
        with self._reading():
            row = self._one("SELECT event FROM checkpoint")
        return 0 if row is None else int(row[0])

    def saved(self) -> tuple[int, dict[str, Any]] | None:
        """The latest saved state, and the number of the event after which it was saved.

        Raises:
            DataError: If it can't be read; see `from_bytes`.
        """
        with self._reading():
            row = self._one("SELECT event, content FROM checkpoint")
        return None if row is None else (row[0], from_bytes(row[1], f"the checkpoint in {self.path}"))


def read_store(path: Path, after: int) -> tuple[str, dict[str, str], list[Event]]:
    """The id of the run, its description, and the events after a number, read while workers use the file: nothing is written or
    locked.

    Raises:
        DataError: If the file is not a store, has a later format, or cannot be read.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=600.0)) as db:
            db.execute("BEGIN")  # a consistent snapshot
            known = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'run'").fetchone()[0]
            require(bool(known), f"{path} is a database, but not a store of workers.", DataError)
            name, described, _ = _run_row(db.execute("SELECT * FROM run").fetchone(), path)
            return name, described, _parsed(db.execute(_EVENTS, (after,)))
    except (sqlite3.Error, json.JSONDecodeError) as error:
        raise DataError(f"the store {path} can't be read: {error}.") from error


def _parsed(rows: Iterable[tuple[int, str, int, str, str]]) -> list[Event]:
    return [(number, kind, pick, json.loads(text), json.loads(picked or "{}")) for number, kind, pick, text, picked in rows]


def _run_row(row: tuple[Any, ...] | None, path: Path) -> tuple[str, dict[str, str], list[Any]]:
    """The id of the run, its description, and the states with which its generators began.

    Raises:
        DataError: If the row is missing, differs from the written one, or has a later format.
    """
    torn = f"the store {path} does not identify its run: its table `run` was changed. Restore the file from a copy."
    if row is None or len(row) != 4:
        raise DataError(torn)
    form, name, described, began = row
    require(form in (1, FORMAT), f"{path} has format {form}, this version reads 1 to {FORMAT}.", DataError)
    try:
        known, states = json.loads(described), json.loads(began)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(torn) from error
    require(
        isinstance(name, str) and isinstance(known, dict) and isinstance(states, list) and len(states) == 1, torn, DataError
    )
    return name, known, states


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of a file; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# ---------------------------------------------------------------------- forks

_OPEN: weakref.WeakSet[SharedStore] = weakref.WeakSet()
_FORKING: list[SharedStore] = []


def _never_close(db: sqlite3.Connection) -> None:
    """Keep a connection open until after the end of the process.

    SQLite removes the `-wal` file by its name when the last connection is closed. In a child this would be the file of its
    parent's store, and for a replaced store the file of the new one, with the transactions committed to it.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))


def _before_fork() -> None:
    stores = list(_OPEN)
    for store in stores:
        store.before_fork()
    _FORKING.extend(stores)


def _after_fork(child: bool) -> None:
    while _FORKING:
        _FORKING.pop().after_fork(child=child)


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(
        before=_before_fork, after_in_parent=partial(_after_fork, False), after_in_child=partial(_after_fork, True)
    )
