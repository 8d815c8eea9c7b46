"""The records of an experiment on disk: `OUTPUT/records/<policy>/<seed>/{pulls,batches}.parquet`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchbandits.checks import as_path
from torchbandits.errors import DataError, require
from torchbandits.experiments.config import ExperimentConfig, load_config, repetitions_of
from torchbandits.history import History

RECORDS = "records"
CONFIG = "config.yaml"


@dataclass(frozen=True)
class Record:
    """One run: place of its policy in the configuration, label, seed and history."""

    place: int
    label: str
    seed: int
    history: History


def check_config(config: object) -> None:
    """Refuse anything but a configuration."""
    good = isinstance(config, ExperimentConfig)
    require(good, f"config must be an ExperimentConfig, as load_config() returns, got {type(config).__name__}.")


def check_records(records: object) -> None:
    """Refuse anything but a non-empty list of records, and runs without a pull."""
    good = isinstance(records, Sequence) and len(records) > 0 and all(isinstance(record, Record) for record in records)
    require(good, f"records must be a list of Record, as load_records() returns, got {type(records).__name__}.")
    assert isinstance(records, Sequence)
    for record in records:
        message = f"records: the run of {record.label}, seed {record.seed}, has no pull: leave it out."
        require(len(record.history) > 0, message)


def of_place(records: Iterable[Record], place: int) -> list[Record]:
    """The records of the policy at a place of the list of policies."""
    return [record for record in records if record.place == place]


def record_folder(output: Path, slug: str, seed: int) -> Path:
    """Folder of the record of a policy and a seed."""
    return output / RECORDS / slug / str(seed)


def keep_record(
    config: ExperimentConfig, output: Path, place: int, seed: int, history: History, num_arms: int, table: str | None
) -> Record:
    """Write the record of a finished run, whole or not at all. `table` is the digest of the file of the arms that it used."""
    section = config.policies[place]
    history.metadata = {
        "environment": config.environment.name,
        "policy": section.name,
        "label": section.label,
        "seed": seed,
        "horizon": config.horizon,
        "arms": num_arms,
        "fingerprint": config.fingerprint_of(place),
        "table": table,
    }
    history.to_parquet(record_folder(output, section.slug, seed))
    return Record(place, section.label, seed, history)


def find_record(config: ExperimentConfig, output: Path, place: int, seed: int) -> Record | None:
    """The record of a policy and a seed, or None if none was made with them and this configuration.

    Raises:
        DataError: If the record is damaged.
    """
    section = config.policies[place]
    source = record_folder(output, section.slug, seed)
    if not os.path.isdir(source):
        return None
    history = History.from_parquet(source)
    # Earlier versions wrote the hash of all policies, so that another policy in the list made every record a stranger, or the
    # first seed into it.
    known = (config.fingerprint_of(place), config.fingerprint_of(place, seeded=True), config.fingerprint)
    found = history.metadata.get("fingerprint") in known and history.metadata.get("seed") == seed
    return Record(place, section.label, seed, history) if found else None


def ended_records(config: ExperimentConfig, output: Path) -> list[Record]:
    """The records of the runs of a configuration that have ended, in its order.

    Raises:
        DataError: If one is damaged.
    """
    return [
        record
        for place in range(len(config.policies))
        for seed in range(config.seed, config.seed + repetitions_of(config, place))
        if (record := find_record(config, output, place, seed)) is not None
    ]


def output_folder(folder: Path) -> Path:
    """The output folder of an experiment, given that folder or `records` inside it."""
    return folder.parent if folder.name == RECORDS and not os.path.isfile(folder / CONFIG) else folder


def load_records(folder: Path) -> tuple[ExperimentConfig, list[Record]]:
    """Read an experiment's records.

    Args:
        folder: The experiment's output folder, or `records` inside it.

    Returns:
        The resolved configuration, and the records that were made with it, in its order. Missing runs, and those of an
        earlier configuration, are left out.

    Raises:
        DataError: If there is no record of the configuration, or one is damaged.
        ConfigError: If the configuration can't be read.
    """
    output = output_folder(as_path("folder", folder))
    require(os.path.isfile(output / CONFIG), f"{output} is not an experiment's output: it holds no {CONFIG}.", DataError)
    config = load_config(output / CONFIG)
    records = ended_records(config, output)
    require(bool(records), f"{output / RECORDS} holds no record of {output / CONFIG}. Run the experiment.", DataError)
    return config, records
