"""The records: a CSV file with one line per run, to which new runs are appended. Recorded runs are not repeated."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pandas as pd

from peer_study.game import Outcome

KEY = ["method", "table", "budget", "seed"]


@dataclass(frozen=True)
class Record:
    """One run. `versions` are `package==version`, joined by spaces."""

    method: str
    table: str
    budget: str
    seed: int
    simple_regret: float
    mean_regret: float
    seconds: float
    evaluations: int
    versions: str
    date: str
    cpu: str


def read(path: Path) -> pd.DataFrame:
    """The records of a file; empty if it does not exist. If a run was recorded twice, the last record is used."""
    if not path.exists():
        return pd.DataFrame(columns=[field.name for field in fields(Record)])
    return pd.read_csv(path).drop_duplicates(KEY, keep="last").reset_index(drop=True)


def done(path: Path) -> set[tuple[str, str, str, int]]:
    """The runs that are in a file."""
    return {(r.method, r.table, r.budget, int(r.seed)) for r in read(path).itertuples()}


def append(path: Path, record: Record) -> None:
    """Append one line, after a header if the file is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([asdict(record)]).to_csv(path, mode="a", header=not path.exists(), index=False, float_format="%.6g")


def record_of(key: tuple[str, str, str, int], outcome: Outcome, packages: tuple[str, ...]) -> Record:
    """A record of an outcome, with today's date, the processor and the versions of the packages used."""
    versions = " ".join(f"{package}=={metadata.version(package)}" for package in packages)
    return Record(*key, **asdict(outcome), versions=versions, date=f"{datetime.now(UTC):%Y-%m-%d}", cpu=processor())


def processor() -> str:
    """The model name of the processor, as reported by Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
