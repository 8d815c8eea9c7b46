"""The record of a run: one line per pull, one line per batch, in flat columns that grow by doubling.

The history is not needed to continue a run. The history and the journal are the only records that grow with the number of
pulls, and no Python object is created per pull.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits.aims import growing_hypervolume, growing_r2, non_dominated
from torchbandits.checks import as_path, as_tensor, check_regular, check_whole, is_finite, is_whole, non_negative
from torchbandits.errors import ArgumentError, DataError, ShapeError, StateError, require
from torchbandits.extras import Later
from torchbandits.types import Report

pyarrow, parquet = Later("pyarrow", "Parquet files"), Later("pyarrow.parquet", "Parquet files")

PULL_COLUMNS: dict[str, type] = {
    "row": np.int64,
    "t": np.int64,
    "batch": np.int64,
    "arm": np.int64,
    "reward": np.float64,
    "regret": np.float64,
    "cost": np.float64,
}
BATCH_COLUMNS: dict[str, type] = {
    "row": np.int64,
    "batch": np.int64,
    "t": np.int64,
    "size": np.int64,
    "dictionary_size": np.int64,
    "distinct_arms": np.int64,
    "width": np.float64,
    "information_gain": np.float64,
    "certificate": np.float64,
    "recommended": np.int64,
    "simple_regret": np.float64,
    "seconds": np.float64,
    "cost": np.float64,
    "failed": np.int64,
}
_REPORTED = ("dictionary_size", "distinct_arms", "width", "information_gain", "certificate")
_METADATA_KEY = b"torchbandits"
_FILES = ("pulls.parquet", "batches.parquet")
_MOST_ROWS = 1 << 20


class Columns:
    """Named columns of equal length in buffers that grow by doubling, so the cost of an append is proportional to its size."""

    def __init__(self, dtypes: dict[str, type], capacity: int = 64) -> None:
        self.length = 0
        self._buffers: dict[str, NDArray[Any]] = {name: np.empty(capacity, dtype) for name, dtype in dtypes.items()}

    def append(self, count: int, values: dict[str, Any]) -> None:
        """Append `count` lines; every value is a scalar or an array of that length."""
        end = self.length + count
        capacity = len(next(iter(self._buffers.values())))
        if end > capacity:
            room = max(end, 2 * capacity) - capacity
            for name, buffer in self._buffers.items():
                self._buffers[name] = np.concatenate([buffer, np.empty(room, buffer.dtype)])
        for name, buffer in self._buffers.items():
            buffer[self.length : end] = values[name]
        self.length = end

    def views(self) -> dict[str, NDArray[Any]]:
        """The filled part of every column, read-only and without a copy."""
        views = {name: buffer[: self.length] for name, buffer in self._buffers.items()}
        for view in views.values():
            view.flags.writeable = False
        return views


class History:
    """Record of a run: its pulls, and the state after each batch.

    Args:
        batch_size: Number of batch rows (replicates, seeds), `rows` in the shapes below.
        metadata: Any JSON value; it is saved in the Parquet files.

    `t` and `batch` count from 1 within a row. They count the recorded pulls and batches, without observed history.
    """

    def __init__(self, batch_size: int = 1, metadata: dict[str, Any] | None = None) -> None:
        check_whole("batch_size", batch_size)
        require(metadata is None or isinstance(metadata, Mapping), f"metadata must be a dictionary, got {metadata!r}.")
        self.batch_size = batch_size
        self.metadata: dict[str, Any] = dict(metadata or {})
        self._pulls = Columns(PULL_COLUMNS)
        self._batches = Columns(BATCH_COLUMNS)
        self._t = np.zeros(batch_size, np.int64)
        self._batch = np.zeros(batch_size, np.int64)

    def record(
        self,
        *,
        index: Tensor,
        rewards: Tensor,
        regret: Tensor,
        report: Report,
        recommended: Tensor,
        simple_regret: Tensor,
        seconds: float | Sequence[float],
        costs: Tensor | None = None,
        failed: Tensor | None = None,
    ) -> None:
        """Append one ask and tell, or several in a row. A row whose `index` is −1 adds nothing, unless it failed.

        Args:
            index: `rows x q` or `steps x rows x q`, arms pulled; −1 where masked.
            rewards: Of the same shape, reward units; ignored where masked.
            regret: Of the same shape, reward units, NaN where unknown; ignored where masked.
            report: The state after the tell, one number per row (and step).
            recommended: `rows` or `steps x rows`, the arm that would be recommended then; −1 for none.
            simple_regret: Of the same shape, regret of that arm, reward units; NaN where unknown.
            seconds: Seconds of each ask and tell by the run's clock, without the time of the environment, the same for all
                batch rows.
            costs: Cost of each pull, of the shape of `index`; recorded as NaN if not given.
            failed: `rows` or `steps x rows`, numbers of evaluations that failed and were given up; 0 if not given.

        Raises:
            ShapeError: If a shape is not as above; nothing is recorded then.
        """
        given = _array("index", index, np.int64)
        require(isinstance(report, Report), f"report must be a Report, as tell() returns, got {type(report).__name__}.")
        arms = given if given.ndim == 3 else given[None]
        require(not as_tensor("index", index).is_floating_point(), "index must be integers: arms, or −1.", ShapeError)
        if arms.ndim != 3 or arms.shape[1] != self.batch_size or not len(arms):
            raise ShapeError(f"index must be rows x q with {self.batch_size} rows, got {tuple(given.shape)}.")
        values = {"reward": _array("rewards", rewards, np.float64), "regret": _array("regret", regret, np.float64)}
        values["cost"] = np.full(given.shape, np.nan) if costs is None else _array("costs", costs, np.float64)
        for name, array in zip(("rewards", "regret", "costs"), values.values(), strict=True):
            require(
                array.shape == given.shape, f"{name} must be shaped like index, {given.shape}, got {array.shape}.", ShapeError
            )
        per_row = {name: getattr(report, name) for name in _REPORTED}
        per_row |= {"recommended": recommended, "simple_regret": simple_regret}
        columns = {name: self._per_row(name, value, arms.shape[0]) for name, value in per_row.items()}
        lasted = _array("seconds", seconds, np.float64)
        require(lasted.shape in ((), (1,), arms.shape[:1]), f"seconds must be one number, or {len(arms)}.", ShapeError)
        mask = arms >= 0
        sizes = mask.sum(axis=2)
        lost = np.zeros(sizes.shape, np.int64) if failed is None else self._per_row("failed", failed, arms.shape[0])
        active = (sizes > 0) | (lost > 0)
        told, batch = self._t + sizes.cumsum(axis=0), self._batch + active.cumsum(axis=0)
        steps, rows, places = np.nonzero(mask)
        before = (told - sizes)[steps, rows]
        number = before + mask.cumsum(axis=2)[steps, rows, places]
        pulls = {"row": rows, "t": number, "batch": batch[steps, rows], "arm": arms[mask]}
        self._pulls.append(len(rows), pulls | {name: array.reshape(arms.shape)[mask] for name, array in values.items()})
        steps, rows = np.nonzero(active)
        batches = {name: array[active] for name, array in columns.items()}
        batches |= {"row": rows, "batch": batch[active], "t": told[active], "size": sizes[active]}
        spent = np.where(mask, values["cost"].reshape(arms.shape), 0.0).sum(axis=2)
        batches |= {"cost": spent[active], "failed": lost[active]}
        self._batches.append(len(rows), batches | {"seconds": np.broadcast_to(lasted, arms.shape[:1])[steps]})
        self._t, self._batch = told[-1].copy(), batch[-1].copy()

    def _per_row(self, name: str, values: Tensor, steps: int) -> NDArray[Any]:
        array = _array(name, values, BATCH_COLUMNS[name])
        if array.size != steps * self.batch_size or (steps > 1 and array.shape[0] != steps):
            raise ShapeError(f"{name} must hold one number per row, {self.batch_size}, got {array.shape}.")
        return array.reshape(steps, self.batch_size)

    @property
    def pulls(self) -> dict[str, NDArray[Any]]:
        """One line per pull: row, t, batch, arm, reward, regret (reward units), cost (NaN unless known). Read-only views."""
        return self._pulls.views()

    @property
    def batches(self) -> dict[str, NDArray[Any]]:
        """One line per batch of a row: row, batch, t (pulls told after it), size, dictionary_size, distinct_arms,
        width, information_gain (nats), certificate, recommended, simple_regret (reward units), seconds, cost and failed."""
        return self._batches.views()

    def row(self, row: int = 0, *, seconds_share: float = 1.0) -> History:
        """The history of one row, as row 0 of a new `History` that shares no data with this one.

        Args:
            row: Batch row.
            seconds_share: Factor of the seconds, which are the same for all rows: 1 over the number of rows divides them
                equally.
        """
        self._check_row(row)
        seconds_share = float(non_negative("seconds_share", seconds_share))
        single = History(1, self.metadata)
        for name in ("_pulls", "_batches"):
            views = getattr(self, name).views()
            chosen = views["row"] == row
            columns = {key: values[chosen] for key, values in views.items()} | {"row": 0}
            if "seconds" in columns:
                columns["seconds"] = columns["seconds"] * seconds_share
            getattr(single, name).append(int(chosen.sum()), columns)
        single._t[0], single._batch[0] = self._t[row], self._batch[row]
        return single

    @property
    def num_pulls(self) -> NDArray[np.int64]:
        """Number of pulls recorded in each row, `rows`."""
        return self._t.copy()

    def cumulative_regret(self, row: int | None = None) -> NDArray[np.float64]:
        """Sum of the regret of the first t pulls of a row for t = 1, 2, …, reward units; NaN from the first unknown regret
        on. A history of several rows must be told which."""
        row = self._row(row)
        pulls = self.pulls
        return np.cumsum(pulls["regret"][pulls["row"] == row])

    def best(self, row: int | None = None) -> dict[str, int | float]:
        """The arm that the policy recommends at the end of a row, its pulls, the mean of their rewards, and its regret.

        Args:
            row: Batch row, which a history of several rows must be told.

        Returns:
            `arm` and `pulls` as integers; `mean` and `simple_regret` in reward units, the latter NaN where unknown. An arm
            that was observed before the run, and never pulled in it, has 0 pulls and mean NaN.

        Raises:
            StateError: If the row recommends no arm yet.
        """
        row = self._row(row)
        mine = np.flatnonzero(self.batches["row"] == row)
        arm = int(self.batches["recommended"][mine[-1]]) if len(mine) else -1
        require(arm >= 0, "the history recommends no arm yet: no batch was recorded, or the policy keeps no means.", StateError)
        pulls = self.pulls
        rewards = pulls["reward"][(pulls["row"] == row) & (pulls["arm"] == arm)]
        mean = float(rewards.mean()) if len(rewards) else float("nan")
        regret = float(self.batches["simple_regret"][mine[-1]])
        return {"arm": arm, "pulls": len(rewards), "mean": mean, "simple_regret": regret}

    def front(self, *, minimize: Sequence[str] | None = None, row: int = 0) -> dict[str, NDArray[Any]]:
        """The Pareto front of the arms pulled, by their average rewards, for a run of several outcomes. Limits are ignored.

        Args:
            minimize: Names of the outcomes to minimise; all outcomes are then objectives. By default the objectives of the run.
            row: Batch row of picks.

        Returns:
            `"arm"` and `"pulls"`, integers, and the average reward of each outcome by its name, one entry per member of the
            front, those with the best first objective first.

        Raises:
            StateError: If the run had one outcome, or an outcome of some pick was not measured.
            ArgumentError: For a name that is not an outcome.
        """
        names = [str(name) for name in self.metadata.get("outcomes", [])]
        aims = self.metadata.get("objectives") or dict.fromkeys(names, "maximize")
        small = [name for name, aim in aims.items() if aim == "minimize"] if minimize is None else minimize
        _, signed = self._outcomes("front()", {}, small, row)
        sign = np.array([-1.0 if name in small else 1.0 for name in names])
        arms = self.pulls["arm"][self.pulls["row"] == row * len(names)]
        known, place, pulls = np.unique(arms, return_inverse=True, return_counts=True)
        sums = np.zeros((len(known), len(names)))
        np.add.at(sums, place, signed)
        means = sums / pulls[:, None]
        own = [names.index(name) for name in (aims if minimize is None else names)]
        best = non_dominated(torch.from_numpy(means[:, own])).numpy().nonzero()[0] if len(known) else np.zeros(0, np.int64)
        best = best[np.argsort(-means[best, own[0]], kind="stable")]
        values = {name: sign[j] * means[best, j] for j, name in enumerate(names)}
        return {"arm": known[best], "pulls": pulls[best], **values}

    def hypervolume(self, reference: Mapping[str, float], *, minimize: Sequence[str] = (), row: int = 0) -> NDArray[np.float64]:
        """The hypervolume that the rewards of the first t pulls dominate, for t = 1, 2, …, of a run of several outcomes.

        Args:
            reference: By outcome, the value from which the volume is measured, reward units.
            minimize: Names of the outcomes to minimise.
            row: Batch row of picks, each of which has a row of this history per outcome.

        Raises:
            StateError: If the run had one outcome.
            ArgumentError: For a name that is not an outcome, and for an outcome without a reference.
        """
        (low,), rewards = self._outcomes("hypervolume()", {"reference": reference}, minimize, row)
        return growing_hypervolume(torch.from_numpy(rewards - low)).numpy()

    def r2(
        self, ideal: Mapping[str, float], reference: Mapping[str, float], *, minimize: Sequence[str] = (), row: int = 0
    ) -> NDArray[np.float64]:
        """The R2 indicator of the rewards of the first t pulls, for t = 1, 2, …: the average over evenly spaced weights of the
        smallest weighted Chebyshev distance from an ideal point, 0 to 1 for rewards between the two points. Less is better.

        Args:
            ideal: By outcome, a value that no reward exceeds, reward units.
            reference: By outcome, a value that every good reward should beat; distances are in units of ideal − reference.
            minimize: Names of the outcomes to minimise.
            row: Batch row of picks, each of which has a row of this history per outcome.

        Raises:
            StateError: If the run had one outcome.
            ArgumentError: As for `hypervolume`, and where the ideal point is not better than the reference in every outcome.

        Source: Brockhoff et al. 2012.
        """
        (high, low), rewards = self._outcomes("r2()", {"ideal": ideal, "reference": reference}, minimize, row)
        require(bool((high > low).all()), "ideal must be better than reference in every outcome; check minimize=, too.")
        return growing_r2(torch.from_numpy((high - rewards) / (high - low))).numpy()

    def _outcomes(
        self, call: str, points: dict[str, Mapping[str, float]], minimize: Sequence[str], row: int
    ) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
        """Points `k` and the rewards of one batch row of picks, `t x k`, with signs such that larger values are better."""
        names = self.metadata.get("outcomes", [])
        require(len(names) > 0, f"{call} needs the history of several outcomes, and this one has one reward.", StateError)
        for what, point in points.items():
            good = isinstance(point, Mapping) and all(is_finite(value) for value in point.values())
            require(good, f"{what} must be finite numbers by outcome, got {point!r:.60}.")
        good = isinstance(minimize, Sequence) and not isinstance(minimize, str)
        require(good, f"minimize must be a list of names of outcomes, got {minimize!r:.60}.")
        for what, given in (*points.items(), ("minimize", minimize)):
            unknown = [name for name in given if name not in names]
            require(not unknown, f"{what} names {unknown[:1]}, which is not one of the outcomes, {', '.join(names)}.")
        for what, point in points.items():
            lacking = [name for name in names if name not in point]
            require(not lacking, f"{what} has no number for {', '.join(lacking)}.")
        k = len(names)
        require(
            is_whole(row, 0) and row < self.batch_size // k, f"row must be from 0 to {self.batch_size // k - 1}, got {row}."
        )
        sign = np.array([-1.0 if name in minimize else 1.0 for name in names])
        found = of_every_outcome(self.pulls, range(row * k, (row + 1) * k))
        if found is None:
            raise StateError(f"{call} needs every outcome of every pick, and some were not measured.")
        return [sign * np.array([point[name] for name in names]) for point in points.values()], sign * found[1]

    def summary(self, row: int | None = None) -> dict[str, float]:
        """Pulls, batches, distinct arms, dictionary size, regret, simple regret and seconds of a row; failures and cost if
        there are any. The cost is that of the rewards; failed evaluations count against the budget of a run, and not here. A
        history of several rows must be told which."""
        row = self._row(row)
        batches = self.batches
        mine = np.flatnonzero(batches["row"] == row)
        regret = self.cumulative_regret(row)
        last = ("distinct_arms", "dictionary_size", "simple_regret")
        summary = {"pulls": float(self._t[row]), "batches": float(len(mine))}
        summary |= {name: float(batches[name][mine[-1]]) if len(mine) else float("nan") for name in last}
        summary["regret"] = float(regret[-1]) if len(regret) else 0.0
        summary["seconds"] = float(batches["seconds"][mine].sum())
        cost = float(batches["cost"][mine].sum())
        failed = float(batches["failed"][mine].sum())
        summary |= {"failed": failed} if failed else {}
        return summary if np.isnan(cost) or not len(mine) else summary | {"cost": cost}

    def _row(self, row: int | None) -> int:
        """The row, which may be left out if there is one only (of several outcomes, the first)."""
        if row is None:
            rows = max(1, self.batch_size // max(1, len(self.metadata.get("outcomes", []))))
            require(rows == 1, f"the history has {rows} rows, each a run of its own: pass row=, from 0 to {rows - 1}.")
            return 0
        self._check_row(row)
        return row

    def _check_row(self, row: int) -> None:
        require(is_whole(row, 0) and row < self.batch_size, f"row must be from 0 to {self.batch_size - 1}, got {row}.")

    def __len__(self) -> int:
        """Total number of pulls recorded in all rows."""
        return self._pulls.length

    def __repr__(self) -> str:
        """Rows, pulls and batches."""
        return f"History(rows={self.batch_size}, pulls={self._pulls.length}, batches={self._batches.length})"

    def __eq__(self, other: object) -> bool:
        """Whether rows, metadata and numbers are equal; NaN equals NaN."""
        if not isinstance(other, History):
            return NotImplemented
        if (self.batch_size, self.metadata) != (other.batch_size, other.metadata):
            return False
        pairs = ((self.pulls, other.pulls), (self.batches, other.batches))
        return all(np.array_equal(a[k], b[k], equal_nan=True) for a, b in pairs for k in a)

    def to_parquet(self, folder: str | os.PathLike[str]) -> None:
        """Write `pulls.parquet` and `batches.parquet` into `folder`, each atomically.

        Both are written to temporary files before either is moved to its place. Metadata is kept as JSON in both schemas.

        Raises:
            DataError: If pyarrow is missing or the folder can't be written.
            ArgumentError: If the metadata is not JSON.
        """
        target = as_path("folder", folder)
        parquet.need()
        try:
            header = json.dumps({"batch_size": self.batch_size, "metadata": self.metadata})
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"History metadata must be JSON to be written, but {error}.") from error
        temporary: list[Path] = []
        try:
            target.mkdir(parents=True, exist_ok=True)
            for name, columns in zip(_FILES, (self.pulls, self.batches), strict=True):
                temporary.append(target / f".{name}.{os.getpid()}.tmp")
                table = pyarrow.table(dict(columns)).replace_schema_metadata({_METADATA_KEY: header})
                parquet.write_table(table, temporary[-1], compression="zstd")
            for path, name in zip(temporary, _FILES, strict=True):
                os.replace(path, target / name)
        except OSError as error:
            raise DataError(f"The history can't be written to {target}: {error}.") from error
        finally:
            for leftover in temporary:
                leftover.unlink(missing_ok=True)

    @classmethod
    def from_parquet(cls, folder: str | os.PathLike[str]) -> History:
        """Read a history that `to_parquet` wrote; recording may continue.

        Raises:
            DataError: If pyarrow is missing, or the two files are missing, unreadable or not of one run.
        """
        source = as_path("folder", folder)
        parquet.need()
        try:
            for name in _FILES:
                check_regular(source / name)
            tables = [parquet.read_table(source / name) for name in _FILES]
            headers = [json.loads(table.schema.metadata[_METADATA_KEY]) for table in tables]
            pulls, batches = [
                {name: _column(table, name, dtype) for name, dtype in columns.items()}
                for table, columns in zip(tables, (PULL_COLUMNS, BATCH_COLUMNS), strict=True)
            ]
            rows, metadata = headers[0]["batch_size"], headers[0]["metadata"]
        except (OSError, KeyError, TypeError, ValueError, RecursionError, pyarrow.ArrowException) as error:
            said = str(error).rstrip(".")
            raise DataError(f"{source} does not hold a history ({' and '.join(_FILES)}): {said}.") from error
        whole = headers[0] == headers[1] and len(pulls["row"]) == int(batches["size"].sum())
        require(whole, f"{source}: {_FILES[0]} and {_FILES[1]} are not of the same run. Write them again.", DataError)
        # The number of rows determines the allocated memory, and a page shows every row.
        good = is_whole(rows) and rows <= _MOST_ROWS and isinstance(metadata, dict)
        good = good and all(((part["row"] >= 0) & (part["row"] < rows)).all() for part in (pulls, batches))
        require(good, f"{source} does not hold a history: its rows are not numbered from 0 to {rows} - 1.", DataError)
        history = cls(rows, metadata)
        history._pulls.append(len(pulls["row"]), pulls)
        history._batches.append(len(batches["row"]), batches)
        history._t += np.bincount(pulls["row"], minlength=rows)
        history._batch += np.bincount(batches["row"], minlength=rows)
        return history


def of_every_outcome(
    pulls: Mapping[str, NDArray[Any]], rows: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """The arms of the picks of a batch row, `t`, in the order of the first outcome, and their rewards by outcome, `t x k`; None
    if some outcome of some pick was not measured.

    Args:
        pulls: The pulls of a history.
        rows: The rows of the history that hold the k outcomes of these picks.

    An outcome may have been told later than the others: the n-th reward of an arm belongs to the n-th reward of this arm in the
    other outcomes.
    """
    own = [pulls["row"] == row for row in rows]
    arms = [pulls["arm"][mine] for mine in own]
    orders = [np.argsort(each, kind="stable") for each in arms]
    if not all(np.array_equal(each[order], arms[0][orders[0]]) for each, order in zip(arms, orders, strict=True)):
        return None
    rewards = np.empty((len(arms[0]), len(arms)))
    for j, (mine, order) in enumerate(zip(own, orders, strict=True)):
        rewards[orders[0], j] = pulls["reward"][mine][order]
    return arms[0], rewards


def _array(name: str, values: Any, dtype: type) -> NDArray[Any]:
    exact = torch.float64 if dtype is np.float64 else None  # lists of numbers would be rounded
    return as_tensor(name, values, exact).detach().cpu().numpy().astype(dtype, copy=False)


def _column(table: Any, name: str, dtype: type) -> NDArray[Any]:
    """A column as numbers. If older records lack the column, costs are NaN and failures are 0."""
    older = {"cost": np.nan, "failed": 0}
    missing = name in older and name not in table.column_names
    values = np.full(table.num_rows, older[name]) if missing else table.column(name).to_numpy()
    return values.astype(dtype, casting="same_kind", copy=False)
