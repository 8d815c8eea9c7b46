"""scripts/benchmarks/bench.py: from a configuration to numbers, table and figures, where exceeded limits are results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import calls
import pandas as pd
import pytest
import torch
import yaml
from emulated_device import emulated_device
from scaling import running
from scaling.config import Point, load_benchmark
from scaling.machine import Rates, sweep_floor
from scaling.methods import CONTENDERS, Problem
from scaling.report import draw_axis, markdown
from typer.testing import CliRunner

from torchbandits import cli
from torchbandits.errors import ConfigError, DataError

SCRIPT = Path(__file__).parents[1] / "scripts" / "benchmarks" / "bench.py"
SMALL = {
    "dim": 2,
    "base": {"arms": 300, "dictionary": 16, "pulls": 40},
    "arms": [300],
    "dictionary": [16],
    "pulls": [40],
    "methods": ["torchbandits"],
    "repetitions": 1,
}


def write(folder: Path, **changes: object) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL | {"output": str(folder / "results")} | changes))
    return path


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["gp_ucb", "batch_bkb"])
def test_a_step_makes_no_more_calls_than_its_target(name: str) -> None:
    measured = calls.measure(name, steps=6)
    for of in ("ask", "tell"):
        assert 5 < measured.calls(of) <= calls.GIVEN[name, of][1], of


@pytest.mark.parametrize("method", ["torchbandits", "botorch", "sgpr"])
def test_every_method_of_the_configuration_for_a_gpu_runs_on_a_device(method: str) -> None:
    config, point = load_benchmark(SCRIPT.parents[2] / "configs" / "bench" / "gpu.yaml"), Point(300, 16, 40)
    assert method in config.methods
    with emulated_device():
        contender = CONTENDERS[method](Problem.draw(config, point), point, config)
        contender.update()
        assert contender.pick() >= 1


@pytest.mark.exhaustive
def test_the_script_measures_in_fresh_processes_and_writes_everything(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, write(tmp_path), "--quiet"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("Numbers, table, figures: ")
    table = pd.read_parquet(tmp_path / "results" / "results.parquet")
    line = table.iloc[0]
    assert (line["outcome"], line["method"], line["update_ratio"]) == ("done", "torchbandits", 1.0)
    assert line["update"] > line["floor"] > 0
    assert line["picks"] >= 1
    assert line["step"] > 0
    assert "× floor" in (tmp_path / "results" / "table.md").read_text()


@pytest.mark.exhaustive
def test_the_script_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, tmp_path / "none.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"bench\.py: .*none\.yaml can't be read: .*\n", done.stderr)


def test_the_deprecated_command_runs_the_script_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    monkeypatch.setattr("bench.measure", lambda config, quiet: measured.append((config.folder, quiet)))
    result = CliRunner().invoke(cli.app, ["bench", str(write(tmp_path)), "--output", str(tmp_path / "there"), "--quiet"])
    assert result.exit_code == 0, result.output
    assert measured == [(tmp_path / "there", True)]
    assert "run python scripts/benchmarks/bench.py instead" in result.stderr


def test_the_deprecated_command_elsewhere_names_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "site-packages" / "torchbandits" / "cli.py"))
    result = CliRunner().invoke(cli.app, ["bench", str(write(tmp_path))])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "in a checkout of the repository, run python scripts/benchmarks/bench.py" in result.stderr


@pytest.mark.exhaustive
def test_limits_are_results_and_points_that_ask_for_more_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_benchmark(write(tmp_path, arms=[300, 2000], pulls=[40, 80], methods=["torchbandits", "botorch", "sgpr"]))
    asked = []

    def answer(config: object, method: str, point: Point) -> tuple[str, dict[str, object]]:
        asked.append((method, point.arms, point.pulls))
        if method == "rates":
            return "done", {"operations": 1e10, "exponentials": 1e9, "bytes": 1e10}
        if method == "botorch" and point.pulls == 40:
            return "over the time limit", {}
        slower = 3 if method == "sgpr" else 1
        seconds = {"update": slower * point.arms * 1e-4, "step": slower * point.arms * 1e-5}
        return "done", seconds | {"picks": 10, "kept": True, "memory": 1 << 20}

    monkeypatch.setattr(running, "ask", answer)
    done = running.run_benchmark(config)
    assert [a for a in asked if a[0] == "botorch"] == [("botorch", 300, 40)]
    table = done.table
    assert set(table[table["method"] == "botorch"]["outcome"]) == {"over the time limit"}
    assert table[table["method"] == "sgpr"]["update_ratio"].tolist() == pytest.approx([3.0] * 3)
    assert {path.name for path in done.files} == {"results.parquet", "table.md", "arms.png", "pulls.png"}
    assert all(path.stat().st_size > 100 for path in done.files)
    text = markdown(config, table)
    assert "over the time limit" in text
    assert "3, 3" in text
    figure = draw_axis(config, table, "arms")
    assert [axes.get_xscale() for axes in figure.axes] == ["log"] * 3


@pytest.mark.slow  # starts one process per case, which imports every package
@pytest.mark.parametrize(
    ("changes", "outcome"),
    [({"time_limit": 0.05, "clock": "processor"}, "over the time limit"), ({"memory_limit": 0.2}, "out of memory")],
)
def test_a_process_over_a_limit_ends_alone(tmp_path: Path, changes: dict[str, object], outcome: str) -> None:
    """An exact posterior of 20,000 pulls takes 3.2 GB, and more than a second."""
    config = load_benchmark(write(tmp_path, **changes))
    point = Point(arms=2000, dictionary=10, pulls=20_000)
    assert running.ask(config, "sklearn", point)[0] == outcome


@pytest.mark.exhaustive
def test_other_failures_are_errors(tmp_path: Path) -> None:
    config = load_benchmark(write(tmp_path))
    with pytest.raises(DataError, match=r"nonsense.*KeyError"):
        running.ask(config, "nonsense", config.base)


def test_every_method_says_the_same(tmp_path: Path) -> None:
    """The best bounds of all methods agree, since each has the exact posterior with every pulled arm in the dictionary."""
    config = load_benchmark(write(tmp_path))
    point = Point(arms=300, dictionary=30, pulls=30)
    problem = Problem.draw(config, point)
    assert problem.pulled.unique().numel() == 30
    contenders = {name: make(problem, point, config) for name, make in CONTENDERS.items()}
    for contender in contenders.values():
        contender.update()
        assert contender.pick() >= 1
    table = contenders["torchbandits"]._table
    K = torch.exp(-0.5 * torch.cdist(problem.arms, problem.arms[problem.pulled]) ** 2)
    own = K[problem.pulled] + 0.01 * torch.eye(30, dtype=torch.float64)
    torch.testing.assert_close(table.mean(), K @ torch.linalg.solve(own, problem.rewards), rtol=1e-6, atol=1e-7)


def test_the_floor() -> None:
    """The floor is operations divided by their rate, or bytes divided by theirs, whichever is larger."""
    point = Point(arms=1000, dictionary=100, pulls=100)
    slow, fast = Rates(1e6, 1e12, 1e12), Rates(1e15, 1e15, 1e6)
    assert sweep_floor(point, 8, True, slow) == pytest.approx(1000 * 100 * 100 / 1e6)
    assert sweep_floor(point, 8, False, slow) == pytest.approx(1000 * (100 * 100 + 2 * 100 * 10) / 1e6, rel=1e-3)
    assert sweep_floor(point, 8, True, fast) == pytest.approx(1000 * (800 + 16) / 1e6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dictionary": [41]}, "dictionary of 41 needs as many"),
        ({"clock": "processor", "threads": 2}, "clock: wall"),
        ({"armz": [1]}, "unknown key"),
    ],
)
def test_bad_configurations_are_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_benchmark(write(tmp_path, **changes))


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_shipped_configurations_are_read(name: str) -> None:
    config = load_benchmark(Path(__file__).parents[1] / "configs" / "bench" / f"{name}.yaml")
    assert config.threads >= 1


@pytest.mark.exhaustive
def test_what_was_measured_is_written_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_benchmark(write(tmp_path, arms=[300, 2000], methods=["torchbandits", "sgpr"]))
    rates = {"operations": 1e10, "exponentials": 1e9, "bytes": 1e10}
    measured = {"update": 1.0, "step": 1.0, "picks": 10, "kept": True, "memory": 1 << 20}
    answers = [rates, measured, measured, measured]

    def answer(*_: object) -> tuple[str, dict[str, object]]:
        if not answers:
            raise KeyboardInterrupt
        return "done", answers.pop(0)

    monkeypatch.setattr(running, "ask", answer)
    with pytest.raises(KeyboardInterrupt):
        running.run_benchmark(config)
    table = pd.read_parquet(config.folder / "results.parquet")
    assert table[["method", "arms"]].to_numpy().tolist() == [["torchbandits", 300], ["torchbandits", 2000], ["sgpr", 300]]
    assert "2,000" in (config.folder / "table.md").read_text()
    assert config.folder / "arms.png" in running.write_benchmark(config, table)  # figures are drawn of the results at hand
