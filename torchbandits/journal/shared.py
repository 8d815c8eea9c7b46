"""One run in one SQLite file, for several workers: what was picked, who evaluates it until when, and what came out."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from torchbandits.errors import DataError, StateError, require
from torchbandits.journal.checkpoints import from_bytes, to_bytes
from torchbandits.journal.fingerprint import difference
from torchbandits.journal.lines import now

FORMAT = 1
MAGIC = b"SQLite format 3\0"
_EVENTS = (
    "SELECT events.number, kind, pick, events.content, picks.content FROM events JOIN picks ON pick = picks.number "
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


Event = tuple[int, str, int, dict[str, Any], dict[str, Any]]


class Pick(NamedTuple):
    """A pick that a worker holds: its number, what was picked, until when it is held, and how often it was handed out."""

    number: int
    content: dict[str, Any]
    expires: float
    attempts: int


class SharedStore:
    """The file. Every change is one transaction, durable before it returns (`synchronous=FULL`); nobody needs a server.

    SQLite locks by `fcntl`: keep the file on a local disk of one machine, since few network file systems lock reliably.

    Args:
        path: Created where it does not exist.
        patience: Seconds to wait for other workers' transactions.

    Raises:
        DataError: If the file is not one of these, damaged, of a later format, or can't be written.
    """

    def __init__(self, path: str | os.PathLike[str], patience: float = 600.0) -> None:
        self.path = Path(path)
        self._process = os.getpid()
        with self._readable():
            self._db = sqlite3.connect(self.path, timeout=patience, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA synchronous=FULL")
            if not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                self._db.execute("PRAGMA journal_mode=WAL").fetchone()

    def close(self) -> None:
        """Give the file back."""
        self._db.close()

    def __del__(self) -> None:
        """A store that nobody holds any more is closed."""
        if hasattr(self, "_db") and self._process == os.getpid():
            self._db.close()

    def begin(self, described: dict[str, str], generators: list[Any]) -> list[Any]:
        """Register the run, or join it: the states that its generators began with.

        Raises:
            StateError: If the file is of another run.
        """
        with self.transaction():
            if not self._db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'run'").fetchone()[0]:
                some = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                require(not some, f"{self.path} is a database of something else: choose another path.", DataError)
                for statement in _TABLES.split(";\n"):
                    self._db.execute(statement)
                row = (FORMAT, secrets.token_hex(8), json.dumps(described), json.dumps(generators))
                self._db.execute("INSERT INTO run VALUES (?, ?, ?, ?)", row)
                return generators
            form, _, known, began = self._db.execute("SELECT * FROM run").fetchone()
            require(form == FORMAT, f"{self.path} has format {form}, this version reads {FORMAT}.", DataError)
            if other := difference(json.loads(known), described):
                raise StateError(
                    f"{self.path} is of another run: {other}. Join with the policy, arms and costs that it began with."
                )
            return json.loads(began)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is done inside is done whole, with nobody else writing meanwhile."""
        require(
            self._process == os.getpid(),
            f"{self.path} was opened before a fork: each process needs its own Worker.",
            StateError,
        )
        done = False
        with self._readable():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
                done = True
            finally:
                if not done and self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, json.JSONDecodeError) as error:
            raise DataError(f"the store {self.path} can't be used: {error}. Nothing was changed by this call.") from error

    # ------------------------------------------------------------------ picks

    def counts(self) -> dict[str, int]:
        """How many picks are out, told and forgotten."""
        with self._readable():
            found = dict(self._db.execute("SELECT state, count(*) FROM picks GROUP BY state"))
        return {"out": 0, "told": 0, "forgotten": 0} | found

    def hand_out_expired(self, worker: str, lease: float) -> Pick | None:
        """The pick whose lease expired longest ago, to another worker; None where all that is out is held."""
        now = time.time()
        row = self._db.execute(
            "SELECT number, content, attempts FROM picks WHERE state = 'out' AND expires < ? ORDER BY expires LIMIT 1", (now,)
        ).fetchone()
        if row is None:
            return None
        number, content, attempts = row
        self._db.execute(
            "UPDATE picks SET worker = ?, expires = ?, attempts = attempts + 1 WHERE number = ?", (worker, now + lease, number)
        )
        return Pick(number, json.loads(content), now + lease, attempts + 1)

    def add(self, content: dict[str, Any], worker: str, lease: float) -> Pick:
        """A new pick, held by a worker."""
        expires = time.time() + lease
        text = json.dumps(content, allow_nan=False)
        number = self._db.execute(
            "INSERT INTO picks (state, worker, expires, attempts, content) VALUES ('out', ?, ?, 1, ?)", (worker, expires, text)
        ).lastrowid
        assert number is not None
        self.note("ask", number, {})
        return Pick(number, content, expires, 1)

    def settle(self, number: int, state: str, content: dict[str, Any]) -> None:
        """Tell or forget a pick that is out, whoever holds it now.

        Raises:
            StateError: If it was told or forgotten before.
        """
        row = self._db.execute("SELECT state, worker FROM picks WHERE number = ?", (number,)).fetchone()
        require(row is not None, f"pick {number} is not in {self.path}.", StateError)
        require(
            row[0] == "out",
            f"pick {number} was {row[0]} already, by worker {row[1]!r}: a lease that expired was handed out again. Use a "
            "longer lease, or renew() it while the evaluation lasts.",
            StateError,
        )
        self._db.execute("UPDATE picks SET state = ? WHERE number = ?", (state, number))
        self.note({"told": "tell", "forgotten": "forget"}[state], number, content)

    def renew(self, number: int, worker: str, lease: float) -> float:
        """Hold a pick for longer; until when.

        Raises:
            StateError: If the worker does not hold it any more.
        """
        expires = time.time() + lease
        held = self._db.execute(
            "UPDATE picks SET expires = ? WHERE number = ? AND worker = ? AND state = 'out'", (expires, number, worker)
        ).rowcount
        require(held == 1, f"pick {number} is not held by worker {worker!r} any more: its lease expired.", StateError)
        return expires

    # ------------------------------------------------------------------ events and checkpoints

    def note(self, kind: str, pick: int, content: dict[str, Any]) -> None:
        """Append an event, with the time."""
        text = json.dumps(content | {"at": now()}, allow_nan=False)
        self._db.execute("INSERT INTO events (kind, pick, content) VALUES (?, ?, ?)", (kind, pick, text))

    def events(self, after: int) -> list[Event]:
        """Events after a number, oldest first: number, kind, number of the pick, what came of it, what was picked."""
        with self._readable():
            return _parsed(self._db.execute(_EVENTS, (after,)))

    def save(self, event: int, content: dict[str, Any]) -> None:
        """Keep the state after an event, unless a later one is kept."""
        with self.transaction():
            self._db.execute(
                "INSERT INTO checkpoint VALUES (1, ?, ?) ON CONFLICT (one) DO UPDATE SET event = excluded.event, "
                "content = excluded.content WHERE excluded.event > event",
                (event, to_bytes(content)),
            )

    def saved(self) -> tuple[int, dict[str, Any]] | None:
        """The latest state that is kept, and the event it is after.

        Raises:
            DataError: If it can't be read; see `from_bytes`.
        """
        with self._readable():
            row = self._db.execute("SELECT event, content FROM checkpoint").fetchone()
        return None if row is None else (row[0], from_bytes(row[1], f"the checkpoint in {self.path}"))


def read_store(path: Path, after: int) -> tuple[str, dict[str, str], list[Event]]:
    """The id of the run, what it is of, and the events after a number, read beside the workers: nothing is written or held.

    Raises:
        DataError: If the file is not a store, of a later format, or can't be read.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=600.0)) as db:
            db.execute("BEGIN")  # one moment of it
            known = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'run'").fetchone()[0]
            require(bool(known), f"{path} is a database, but no store of workers.", DataError)
            form, name, described = db.execute("SELECT format, id, described FROM run").fetchone()
            require(form == FORMAT, f"{path} has format {form}, this version reads {FORMAT}.", DataError)
            return name, json.loads(described), _parsed(db.execute(_EVENTS, (after,)))
    except (sqlite3.Error, json.JSONDecodeError) as error:
        raise DataError(f"the store {path} can't be read: {error}.") from error


def _parsed(rows: Iterable[tuple[int, str, int, str, str]]) -> list[Event]:
    return [(number, kind, pick, json.loads(content), json.loads(picked)) for number, kind, pick, content, picked in rows]
