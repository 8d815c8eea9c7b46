"""Reading a journal or a store of workers while it is written, without its lock, its policy or its arms."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchbandits.checks import check_regular, is_whole
from torchbandits.errors import DataError, require
from torchbandits.history import History
from torchbandits.journal.format import held
from torchbandits.journal.journal import FORMAT
from torchbandits.journal.lines import Mark, begun_header, parsed, read_lines
from torchbandits.journal.store import MAGIC, read_store
from torchbandits.types import Report

_STEPS = 256  # steps that are recorded at once
_UNKNOWN = {"dictionary_size": -1.0, "unasked": 0.0}  # entries without a report; all other entries are NaN
_FIELDS = tuple(f.name for f in fields(Report))
_HEAD = 1 << 16
_LAST_SECOND = 2.5e11  # in the year 9892


class Reading:
    """A run as recorded in its journal, up to the last call of `update`. A line that is still being written is left for the
    next call.

    Args:
        path: A journal, or the SQLite file of `Worker`s.

    Attributes:
        path: As given.
        history: The told rewards, as `run` records them: a batch is the rewards of one call, `seconds` are wall-clock seconds
            since the tell before (NaN if the version that wrote the journal did not write times), regret is NaN unless `run`
            wrote the journal, and costs are not included. For a store, dictionary sizes are −1, and widths NaN.
        about: The description of the run in the header, see `describe_run`; empty before there is a header.
        environment: Name of the environment, if `run` wrote the journal; else empty.
        rounds: Number of pulls of each row in the whole run, if `run` wrote the journal; else None.
        began, last: Seconds since 1970 of the first and the last record; NaN where unknown.
        asked: Number of picks of each ask, `rows` numbers per ask.
        out: Number of picks that are neither told nor forgotten, `rows`; NaN after a state was loaded.
        forgotten, observed: Number of picks given up, and of pulls of history from elsewhere, `rows`.
        moved: Pulls of each row at the last change of arms, or of the kept contexts, `rows`: an index meant another arm before.
        points: For a box, the point of each arm of the first row.

    Raises:
        DataError: If the file is missing, is not a journal or store, or is damaged.

    Cost: a pass over the file; later calls of `update` read only the new records.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._mark, self._store, self._event = Mark(), "", 0
        self._begin({}, 1)
        self.update()

    def _begin(self, about: dict[str, str], rows: int) -> None:
        self.history, self.about, self.environment = History(rows), about, ""
        self.rounds: int | None = None
        self.began = self.last = self._told_at = float("nan")
        self.asked: list[NDArray[np.int64]] = []
        self.out, self.forgotten, self.observed = np.zeros(rows), np.zeros(rows), np.zeros(rows)
        self.moved = np.zeros(rows, np.int64)
        self.points: dict[int, list[float]] = {}
        self._told = np.zeros(rows, np.int64)
        self._seen: set[int] = set()  # arms told, if no report counts them
        self._steps: list[dict[str, Any]] = []

    # ------------------------------------------------------------------ reading

    def update(self) -> int:
        """Read the new records. If the file was replaced, or a record was removed, the whole file is read again.

        Returns:
            The number of new records.
        """
        kind, before = self._kind(), self._mark
        try:
            if kind == "store":
                return self._take(self._store_records())
            if kind and os.path.getsize(self.path) >= before.length:
                return self._take(self._journal_records())
        except DataError:
            if not before.length:
                raise
        self._mark = Mark()
        self._begin({}, 1)
        return self._take(self._journal_records()) if kind else 0

    def _kind(self) -> str:
        """`journal` or `store`; nothing for a file that is empty, or ends within its header."""
        check_regular(self.path)
        try:
            with open(self.path, "rb") as file:
                start = file.readline(_HEAD)
        except OSError as error:
            raise DataError(f"{self.path} can't be read: {error}.") from error
        if start.startswith(MAGIC):
            return "store"
        message = (
            f"{self.path} is not a journal: give a file that Bandit(journal=), run(journal=) or Worker(store=) has written."
        )
        require(begun_header(start), message, DataError)
        if start.endswith(b"\n") or len(start) == _HEAD:
            return "journal"
        for _ in read_lines(self.path, Mark()):  # Refuses bytes that no interrupted write of a header can leave.
            return "journal"
        return ""

    def _journal_records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for before, after, text in read_lines(self.path, self._mark):
            self._mark = after
            yield f"line {before.records + 1} (byte {before.length})", parsed(text, self.path, before)

    def _store_records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        name, about, events = read_store(self.path, self._event)
        if name != self._store:
            self._store, self._event = name, 0
            yield "the run", {"kind": "header", "format": FORMAT, "of": about, "generators": [None]}
            _, _, events = read_store(self.path, 0)
        for number, kind, _, content, picked in events:
            self._event = number
            yield f"event {number}", picked | content | {"kind": kind}

    def _take(self, records: Iterable[tuple[str, dict[str, Any]]]) -> int:
        count, place = 0, "the beginning"
        try:
            for where, record in records:
                place = f"{where}, {record['kind']!r}"
                self._learn(record)
                count += 1
                if len(self._steps) >= _STEPS:
                    self._flush()
            self._flush()
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, DataError) as error:
            if isinstance(error, DataError) and str(error).startswith(str(self.path)):
                raise
            raise DataError(f"{self.path}, {place}, can't be read: {error!r}.") from error
        return count

    # ------------------------------------------------------------------ records

    def _learn(self, record: dict[str, Any]) -> None:
        kind = record["kind"]
        if kind == "header":
            form = record["format"]
            require(form == FORMAT, f"{self.path} has format {form}, this version reads {FORMAT}.", DataError)
            self._begin({str(name): str(value) for name, value in dict(record["of"]).items()}, len(record["generators"]))
        self.last = _time(record.get("at", self.last))
        self.began = self.last if np.isnan(self.began) else self.began
        if kind in ("ask", "fill"):
            index = self._rows(record["index"])
            self._opened((index >= 0).sum(axis=1))
            if "points" in record:
                of_first = held(record["points"]).reshape(*index.shape, -1)[0]
                self.points |= dict(zip(index[0].tolist(), of_first.tolist(), strict=True))
        elif kind == "maximize":
            self._opened(np.full(len(self.out), len(held(record["points"]))))
        elif kind == "tell":
            self._tell(record, self._rows(record["index"]), self._rows(record["rewards"]))
        elif kind == "forget":
            gone = (self._rows(record["index"]) >= 0).sum(axis=1)
            self.forgotten, self.out = self.forgotten + gone, np.maximum(self.out - gone, 0.0)
        elif kind == "observe":
            self.observed = self.observed + self._rows(record["counts"]).sum(axis=1)
        elif kind == "set_arms" or (kind == "context" and "replaces" in record):
            self.moved = self._told.copy()
        elif kind == "load":
            self.out = np.full(len(self.out), np.nan)
        elif kind == "seeds" and "rounds" in record:
            before = self._rows(record["told"])[:, 0] - self.observed
            rounds = record["rounds"] + int(before.max())
            require(is_whole(rounds), f"{self.path}: a run of {rounds} pulls can't be shown.", DataError)
            self.environment, self.rounds = str(record["environment"]), rounds

    def _opened(self, counts: NDArray[np.int64]) -> None:
        self.asked.append(counts)
        self.out = self.out + counts

    def _tell(self, record: dict[str, Any], index: NDArray[Any], rewards: NDArray[Any]) -> None:
        require(rewards.shape == index.shape, f"{index.shape} picks and {rewards.shape} rewards", DataError)
        require(not np.isinf(rewards).any(), "a reward is infinite", DataError)
        lost = np.isnan(rewards) & (index >= 0)
        kept = (index >= 0) & ~lost
        failed, told = lost.sum(axis=1), kept.sum(axis=1)
        step: dict[str, Any] = {"index": np.where(kept, index, -1), "rewards": rewards, "failed": failed}
        if "report" in record:
            report = record["report"] | {"best": record["best"]}
            step |= {name: self._row(report[name]) for name in (*_FIELDS, "best")}
            counts = [step[name] for name in ("dictionary_size", "distinct_arms", "best")]
            require(bool(np.isfinite(counts).all()), "a count is not a number", DataError)
        else:
            self._seen |= set(index[kept].tolist())
            step |= {name: _UNKNOWN.get(name, np.nan) for name in _FIELDS} | {"distinct_arms": len(self._seen), "best": -1}
        if "regret" in record:
            step |= {"regret": self._rows(record["regret"]), "best_regret": self._row(record["best_regret"])}
            require(step["regret"].shape == index.shape, f"{index.shape} picks and {step['regret'].shape} regrets", DataError)
        passed = self.last - (self.began if np.isnan(self._told_at) else self._told_at)
        step["seconds"] = max(passed, 0.0) if "at" in record else np.nan
        self._told_at = self.last
        self._told = self._told + told
        self.out = np.maximum(self.out + step["unasked"] - told - failed, 0.0)
        self._steps.append(step)

    def _rows(self, value: Any) -> NDArray[Any]:
        """The numbers of a record for each row, `rows x n`."""
        numbers = np.asarray(_plain(value))
        require(numbers.dtype.kind in "biuf", f"numbers of type {numbers.dtype}", DataError)
        return numbers.reshape(len(self.out), -1)

    def _row(self, value: Any) -> NDArray[Any]:
        """A number for each row, `rows`."""
        return self._rows(value).reshape(len(self.out))

    def _flush(self) -> None:
        """Pass the tells since the last call to the history, together, since that is faster."""
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        shape = (len(steps), len(self.out), max(step["index"].shape[1] for step in steps))
        index, rewards, regret = np.full(shape, -1), np.full(shape, np.nan), np.full(shape, np.nan)
        best_regret = np.full(shape[:2], np.nan)
        for k, step in enumerate(steps):
            places = step["index"].shape[1]
            index[k, :, :places], rewards[k, :, :places] = step["index"], step["rewards"]
            if "regret" in step:
                regret[k, :, :places], best_regret[k] = step["regret"], step["best_regret"]
        columns = {name: np.array([step[name] for step in steps]) for name in (*_FIELDS, "best", "failed")}
        stacked = {name: torch.from_numpy(values.reshape(shape[:2])) for name, values in columns.items()}
        self.history.record(
            index=torch.from_numpy(index),
            rewards=torch.from_numpy(rewards),
            regret=torch.from_numpy(regret),
            report=Report(**{name: stacked[name] for name in _FIELDS}),
            recommended=stacked["best"],
            simple_regret=torch.from_numpy(best_regret),
            seconds=[step["seconds"] for step in steps],
            failed=stacked["failed"],
        )


def _time(value: Any) -> float:
    """Seconds since 1970 within the years of a calendar, or NaN if unknown."""
    seconds = float(value)
    if not (np.isnan(seconds) or 0 <= seconds <= _LAST_SECOND):
        raise ValueError(f"{value} is not a time")
    return seconds


def _plain(value: Any) -> Any:
    """Packed numbers: JSON numbers unchanged, bytes as an array."""
    return held(value).numpy() if isinstance(value, dict) else value


def in_words(about: dict[str, str]) -> str:
    """The policy that a header describes: its ingredients and its kernel, by the names of their classes."""
    parts = [about.get(name, "None") for name in ("policy", *(f"policy.{part}" for part in _PARTS))]
    names = [part.rsplit(".", 1)[-1] for part in parts]
    return ", ".join(name for name in names if name not in ("None", "Composed")) or "a policy"


_PARTS = ("score", "memory", "features", "confidence", "batch_rule", "kernel")
