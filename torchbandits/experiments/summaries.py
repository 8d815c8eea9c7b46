"""The summary of a reproduction: means and intervals over the repetitions at selected pulls, in one file.

Figures, published numbers and verdicts are made from it alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet

from torchbandits.checks import check_regular
from torchbandits.errors import DataError, require
from torchbandits.experiments.config import ExperimentConfig
from torchbandits.experiments.measures import band, baseline_regret, measures
from torchbandits.experiments.records import Record
from torchbandits.experiments.reproduction import ReproductionConfig
from torchbandits.files import write_atomically

COLUMNS = ("experiment", "policy", "measure", "x", "mean", "low", "high", "repetitions")
"""Columns of the table of a summary."""
POINTS = 40  # number of points of a curve, on a logarithmic and on a linear grid each
_METADATA_KEY = b"torchbandits"


@dataclass(frozen=True)
class Summary:
    """Curves of a reproduction, and the settings it was run with.

    Attributes:
        table: One line per experiment, policy, measure and x (pulls t, a length-scale or a place): mean, ends of the 95 %
            t-interval (NaN for one repetition) and the number of repetitions.
        facts: Quick form or not, horizons, machine, seconds; JSON values.
    """

    table: pd.DataFrame
    facts: dict[str, Any]

    def curve(self, experiment: str, policy: str, measure: str) -> pd.DataFrame:
        """The lines of one curve in order of x; empty if it was not run."""
        table = self.table
        mine = (table["experiment"] == experiment) & (table["policy"] == policy) & (table["measure"] == measure)
        return table[mine].sort_values("x")

    def at(self, experiment: str, policy: str, measure: str, x: int | float | None) -> pd.Series | None:
        """The line at x, or at the end for None; None if the run did not reach x or holds no such value."""
        curve = self.curve(experiment, policy, measure)
        curve = curve if x is None else curve[curve["x"] == x]
        return None if curve.empty or bool(np.isnan(curve["mean"].iloc[-1])) else curve.iloc[-1]


def summarise(
    reproduction: ReproductionConfig, experiment: str, config: ExperimentConfig, records: Sequence[Record]
) -> pd.DataFrame:
    """The curves of one experiment in the format of `Summary.table`."""
    baseline = baseline_regret(config, records)
    # Dense enough on both a logarithmic and a linear axis.
    spaced = (np.geomspace(1, config.horizon, POINTS), np.linspace(1, config.horizon, POINTS))
    t = np.concatenate(spaced).round().astype(np.int64)
    looked_at = [time for time in (*reproduction.times_of(experiment), config.horizon // 2) if 1 <= time <= config.horizon]
    t = np.unique(np.append(t, looked_at)).astype(np.int64)
    parts = []
    for place, policy in enumerate(config.policies):
        mine = [record for record in records if record.place == place]
        # A policy of fewer repetitions is compared with the same ones of the baseline.
        seeds = {record.seed for record in mine}
        known = measures({seed: regret for seed, regret in baseline.items() if seed in seeds}, reproduction.trainers)
        for name in reproduction.measures_of(experiment) if mine else []:
            low, mean, high = band(np.stack([known[name].curve(record, t) for record in mine]))
            values = {"x": t.astype(np.float64), "mean": mean, "low": low, "high": high}
            fixed = {"experiment": experiment, "policy": policy.label, "measure": name, "repetitions": len(mine)}
            parts.append(pd.DataFrame(values | fixed))
    return pd.concat(parts, ignore_index=True)[list(COLUMNS)]


def write_summary(summary: Summary, path: Path) -> None:
    """Write a summary, whole or not at all."""
    header = {_METADATA_KEY: json.dumps(summary.facts)}
    table = pyarrow.Table.from_pandas(summary.table, preserve_index=False)
    # Curves need no more digits than float32 holds, and the file is half as large.
    for place, name in enumerate(table.schema.names):
        if name in ("mean", "low", "high"):
            table = table.set_column(place, name, table.column(name).cast(pyarrow.float32()))
    table = table.replace_schema_metadata(header)
    write_atomically(path, lambda temporary: pyarrow.parquet.write_table(table, temporary, compression="zstd"))


def read_summary(path: Path) -> Summary:
    """Read a file that `write_summary` wrote.

    Raises:
        DataError: If the file is missing or is not a summary.
    """
    check_regular(path)
    try:
        table = pyarrow.parquet.read_table(path)
        facts = json.loads(table.schema.metadata[_METADATA_KEY])
    except (OSError, KeyError, TypeError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} does not hold a summary: {error}.") from error
    require(set(COLUMNS) <= set(table.column_names), f"{path} does not hold a summary.", DataError)
    return Summary(table.to_pandas().astype(dict.fromkeys(("mean", "low", "high"), np.float64)), facts)
