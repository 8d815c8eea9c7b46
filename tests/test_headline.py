"""The outcome of an experiment in one sentence and one picture."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from torchbandits.cli import app
from torchbandits.errors import ConfigError
from torchbandits.experiments.config import load_config, parse_config
from torchbandits.experiments.records import load_records
from torchbandits.experiments.reproduction import configs_folder
from torchbandits.experiments.runner import run_experiment

RUNNER = CliRunner()


def quickstart() -> dict:
    """The built-in quickstart experiment, made small."""
    values = yaml.safe_load((configs_folder() / "quickstart.yaml").read_text(encoding="utf-8"))
    values["environment"]["options"]["num_arms"] = 300
    return values | {"horizon": 10, "repetitions": 2}


def test_the_quickstart_ends_in_a_table_one_picture_and_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(quickstart()), encoding="utf-8")
    done = RUNNER.invoke(app, ["run", str(file), "--output", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert "After 10 of 300 evaluations, the candidate that " in said
    assert all(f"{label} " in said for label in ("auto", "BBKB", "random"))
    assert [path.name for path in (tmp_path / "out").glob("*.png")] == ["headline.png"]
    sentence = (tmp_path / "out" / "table.md").read_text(encoding="utf-8").splitlines()[-1]
    assert sentence.startswith("After 10 of 300 evaluations")
    (tmp_path / "out" / "headline.png").unlink()
    assert RUNNER.invoke(app, ["plot", str(tmp_path / "out")]).exit_code == 0
    assert (tmp_path / "out" / "headline.png").stat().st_size > 20_000
    config, records = load_records(tmp_path / "out")
    assert config.headline
    assert {record.history.metadata["arms"] for record in records} == {300}


def test_a_headline_decides_no_number_and_needs_uniform() -> None:
    config = load_config(configs_folder() / "quickstart.yaml")
    assert config.model_copy(update={"headline": False}).fingerprint == config.fingerprint
    values = quickstart()
    values["policies"] = values["policies"][:1]
    with pytest.raises(ConfigError, match="put it among the policies"):
        parse_config(values, "small")


@pytest.mark.exhaustive
def test_where_all_arms_are_the_same_there_is_no_headline(tmp_path: Path) -> None:
    """If all arms are equal, there is no gap between the average and the best arm, and the usual figures are drawn."""
    values = quickstart() | {"horizon": 5, "repetitions": 1, "policies": [{"name": "uniform"}]}
    values["environment"] = {"name": "rkhs", "options": {"dim": 1, "points_per_dim": 1, "noise_std": 0.1}}
    result = run_experiment(parse_config(values, "flat"), tmp_path)
    assert result.headline is None
    assert len(result.figures) == 7
