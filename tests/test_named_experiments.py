"""User-defined experiments: tables, functions and kernels by their names in a configuration."""

from __future__ import annotations

import datetime
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from typer.testing import CliRunner

import torchbandits as tb
from torchbandits import experiments
from torchbandits.cli import app
from torchbandits.environments import Recorded, Table, from_table
from torchbandits.errors import ArgumentError, ConfigError
from torchbandits.experiments import load_records
from torchbandits.experiments.config import (
    ExperimentConfig,
    build_environment,
    build_policy,
    is_dumped,
    load_config,
    parse_config,
)
from torchbandits.experiments.kernels import KERNELS, KernelConfig, build_kernel, merged
from torchbandits.experiments.reproduction import configs_folder
from torchbandits.experiments.runner import stack
from torchbandits.files import folder_held

RUNNER = CliRunner()
POLICIES = [{"name": "uniform"}, {"name": "gp_ucb", "options": {"noise_std": 0.1, "delta": 0.1}}]
X = torch.rand(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def frame() -> pd.DataFrame:
    """Twelve candidates, all measured."""
    return pd.DataFrame(
        {
            "id": [f"c{row}" for row in range(12)],
            "temperature": [20.0 + 5 * row for row in range(12)],
            "solvent": ["DMF", "THF", "DMSO"] * 4,
            "yield": [float((7 * row) % 12) for row in range(12)],
            "second": [float((7 * row) % 12) + 0.5 if row % 2 else None for row in range(12)],
            "price": [1.0 + row for row in range(12)],
        }
    )


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a table and a module in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    frame().to_csv("candidates.csv", index=False)
    frame().to_parquet("candidates.parquet")
    (tmp_path / "my_laboratory.py").write_text(
        "import gpytorch\n"
        "import torch\n"
        "import torchbandits as tb\n"
        "from torchbandits.errors import ArgumentError\n\n\n"
        "def reactor(rows: int = 20, *, generator: torch.Generator) -> tb.environments.Table:\n"
        "    arms = torch.rand(rows, 2, dtype=torch.float64, generator=generator)\n"
        "    return tb.environments.Table(arms, arms.sum(dim=-1), 0.1, name='reactor')\n\n\n"
        "def measured(points: int = 15) -> tb.environments.BlackBox:\n"
        "    arms = torch.linspace(0, 1, points, dtype=torch.float64).unsqueeze(-1)\n"
        "    return tb.environments.BlackBox(lambda point: float(point[0]), arms, noise_std=0.1)\n\n\n"
        "def failing(after: int = 4) -> tb.environments.BlackBox:\n"
        "    arms, calls = torch.linspace(0, 1, 15, dtype=torch.float64).unsqueeze(-1), []\n\n"
        "    def simulate(point: torch.Tensor) -> float:\n"
        "        calls.append(point)\n"
        "        if len(calls) > after:\n"
        "            raise RuntimeError('no licence')\n"
        "        return float(point[0])\n\n"
        "    return tb.environments.BlackBox(simulate, arms, noise_std=0.1)\n\n\n"
        "def streamed(rows: int = 30) -> tb.environments.BlackBox:\n"
        "    axis = torch.linspace(0, 1, rows, dtype=torch.float64)\n"
        "    source = tb.sources.Grid([axis, axis])\n"
        "    return tb.environments.BlackBox(lambda point: float(point.sum()), source, noise_std=0.1)\n\n\n"
        "def my_kernel(length: float = 1.0) -> gpytorch.kernels.Kernel:\n"
        "    if length < 0:\n"
        "        raise ArgumentError('length must be positive')\n"
        "    kernel = gpytorch.kernels.RBFKernel().double()\n"
        "    kernel.lengthscale = length\n"
        "    return kernel + gpytorch.kernels.LinearKernel().double()\n\n\n"
        "def cautious(kernel: gpytorch.kernels.Kernel, noise_std: float = 0.1) -> tb.policies.Policy:\n"
        "    return tb.gp_ucb(kernel, noise_std=noise_std, width=tb.widths.Constant(1.0))\n\n\n"
        "def nothing() -> None:\n"
        "    return None\n"
    )
    (tmp_path / "my_broken_module.py").write_text("import nowhere_to_be_found\n")
    yield tmp_path
    for name in ("my_laboratory", "my_broken_module"):
        sys.modules.pop(name, None)


def values(**changes: Any) -> dict[str, Any]:
    table = {
        "name": "csv:candidates.csv",
        "options": {"objective": "yield", "standardize": True, "columns": {"second": "ignore"}},
    }
    return {"name": "mine", "environment": table, "horizon": 10, "policies": POLICIES, "output": "out"} | changes


def run(folder: Path, *arguments: str, **changes: Any) -> Any:
    (folder / "mine.yaml").write_text(yaml.safe_dump(values(**changes)))
    return RUNNER.invoke(app, ["run", "mine.yaml", *arguments])


# ---------------------------------------------------------------------- tables


def test_a_table_is_an_environment_with_the_features_of_a_campaign(lab: Path):
    found = from_table("candidates.csv", "yield", noise_std=0.2, columns={"second": "ignore"}, cost="price")
    assert isinstance(found, Table)
    assert found.arms.shape == (12, 4)  # a temperature and three solvents; neither id nor cost nor objective
    temperature = torch.tensor(frame()["temperature"].tolist(), dtype=torch.float64)
    expected = (temperature - temperature.mean()) / temperature.std(correction=0)
    torch.testing.assert_close(found.arms[:, 0], expected)
    assert found.means.tolist() == frame()["yield"].tolist()
    assert found.costs is not None
    assert found.costs.tolist() == frame()["price"].tolist()
    assert (found.name, found.noise_std) == ("candidates", 0.2)


def test_a_data_frame_and_a_parquet_file_are_the_same_environment(lab: Path):
    kinds: dict[str, Any] = {"objective": "yield", "columns": {"second": "ignore", "price": "ignore"}}
    one, two, three = (from_table(given, **kinds) for given in ("candidates.csv", "candidates.parquet", frame()))
    assert torch.equal(one.arms, two.arms)
    assert torch.equal(one.arms, three.arms)
    assert torch.equal(one.means, three.means)


def test_a_table_without_ids_and_costs():
    found = from_table({"a": [1.0, 2.0, 4.0], "b": [3.0, 1.0, 2.0]}, "b", dtype=torch.float32)
    assert found.arms.shape == (3, 1)
    assert found.arms.dtype == found.means.dtype == torch.float32
    assert found.costs is None


def test_several_columns_are_repeated_measurements():
    found = from_table(frame(), ["yield", "second"], minimize=True, standardize=True)
    assert isinstance(found, Recorded)
    assert found.counts.tolist() == [1, 2] * 6
    known = torch.tensor([*frame()["yield"], *frame()["second"].dropna()], dtype=torch.float64)
    deviation = known.std(correction=0)
    torch.testing.assert_close(found.means[0], (known.mean() - 0.0) / deviation)
    torch.testing.assert_close(found.means[1], (known.mean() - 7.25) / deviation)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"objective": "yeld"}, "Did you mean 'yield'"),
        ({"objective": "second"}, r"row 0, has no value in column 'second' \(6 such rows\)"),
        ({"objective": "solvent"}, "'DMF' in row 0, which is not a number"),
        ({"objective": []}, "the name of a column"),
        ({"objective": ["yield", "yield"]}, "twice"),
        ({"objective": ["yield", "second"], "noise_std": 0.1}, "carry their own noise"),
        ({"objective": "yield", "cost": "prices"}, "Did you mean 'price'"),
        ({"objective": "yield", "id": "yield"}, "holds the ids"),
        ({"objective": "yield", "columns": {"solvnt": "ignore"}}, "Did you mean 'solvent'"),
        ({"objective": "constant", "standardize": True}, "are equal"),
        ({"objective": "wild"}, "is infinite in row 3"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_table_that_cannot_be_used_is_refused_with_the_remedy(options: dict[str, Any], said: str):
    odd = frame().assign(constant=1.0)
    if options["objective"] == "wild":
        odd["wild"] = [*range(3), float("inf"), *range(8)]
    with pytest.raises(ArgumentError, match=said):
        from_table(odd, **options)


@pytest.mark.exhaustive
def test_an_experiment_on_a_table_runs_and_resumes_until_the_table_changes(lab: Path):
    assert run(lab, "--quiet").exit_code == 0
    _, records = load_records(lab / "out")
    assert len(records) == 2
    assert records[1].history.pulls["reward"].max() == pytest.approx((11 - 5.5) / np.arange(12).std())
    assert "run again" not in run(lab, "--resume").stderr
    frame().assign(temperature=range(12)).to_csv("candidates.csv", index=False)
    again = run(lab, "--resume")
    assert again.exit_code == 0
    assert again.stderr.count("csv:candidates.csv has changed since") == 2


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.exhaustive)])
def test_a_simulation_that_raises_ends_the_run_with_its_own_error_and_line(lab: Path, workers: str):
    result = run(lab, "--workers", workers, environment={"name": "my_laboratory:failing"}, policies=[{"name": "uniform"}])
    line = (lab / "my_laboratory.py").read_text().splitlines().index("            raise RuntimeError('no licence')") + 1
    assert result.exit_code == 2
    said = f"uniform, seed 0: an evaluation failed after 4 pulls: RuntimeError: no licence (my_laboratory.py, line {line})."
    assert said in result.stderr
    assert "--resume" in result.stderr
    assert "error.history" not in result.stderr


def test_a_simulation_that_raises_in_the_history_ends_the_run_in_a_line(lab: Path):
    result = run(lab, environment={"name": "my_laboratory:failing"}, policies=[{"name": "uniform"}], history=5)
    assert result.exit_code == 2
    said = "uniform, seed 0: an evaluation failed in the pulls that are observed first (history): RuntimeError: no licence ("
    assert said in result.stderr


def test_a_run_without_a_pull_is_refused_by_its_label(tmp_path: Path):
    table = Table(X, X.sum(dim=-1), 0.1, costs=torch.full((6,), 2.0))
    history = tb.run(tb.uniform(), table, 5, budget=1.0)
    config = ExperimentConfig(environment="mine", policies=["uniform"], horizon=5)
    records = [experiments.Record(0, "uniform", 7, history)]
    for call in (lambda: experiments.aggregate(config, records), lambda: experiments.draw_figures(config, records, tmp_path)):
        with pytest.raises(ArgumentError, match="the run of uniform, seed 7, has no pull: leave it out"):
            call()


@pytest.mark.exhaustive
def test_worker_processes_read_the_table_and_import_the_function(lab: Path):
    """The console script starts with a different sys.path than pytest; its workers find the modules of the parent."""
    result = run(lab, "--workers", "2", "--quiet", environment={"name": "my_laboratory:reactor"})
    assert result.exit_code == 0, result.output
    assert len(load_records(lab / "out")[1]) == 2


@pytest.mark.sweep(5)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("csv:nowhere.csv", "there is no file 'nowhere.csv'. Relative paths begin at the working directory"),
        ("csv:candidates.parquet", "Write parquet:candidates.parquet"),
        ("parquet:candidates.xlsx", "is for files that end in .parquet, .pq"),
        ("candidates.csv", "csv:FILE, parquet:FILE"),
        ("my_laboratory:reacter", "has no function 'reacter'. Did you mean 'reactor'"),
        ("my_laboratry:reactor", "there is no module 'my_laboratry'. Install it, or start in the folder that holds it"),
        ("my_laboratory:nothing", "must return an Environment of torchbandits, got NoneType"),
        ("my_laboratory:torch", "is not a function, but module"),
        ("xls:candidates.xls", "A file is written csv: or parquet: or arrow:"),
    ],
)
def test_a_name_of_no_environment_says_what_to_write(lab: Path, name: str, said: str):
    options = {"objective": "yield"} if name.startswith(("csv", "parquet")) else {}
    result = run(lab, environment={"name": name, "options": options})
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr
    assert not (lab / "out").exists()


def test_options_of_a_table_are_checked_before_a_run(lab: Path):
    table = {"name": "csv:candidates.csv"}
    assert "needs the option 'objective'" in run(lab, environment=table).stderr
    odd = run(lab, environment=table | {"options": {"objectiv": "yield", "objective": "yield"}}).stderr
    assert "Did you mean 'objective'" in odd


# ---------------------------------------------------------------------- functions


def test_a_function_with_a_generator_is_drawn_anew_in_each_repetition(lab: Path):
    config = parse_config(
        values(environment={"name": "my_laboratory:reactor", "options": {"rows": 9}}, repetitions=2), "a test"
    )
    one, two = build_environment(config, 0), build_environment(config, 1)
    assert one.arms.shape == (9, 2)
    assert not torch.equal(one.arms, two.arms)
    assert torch.equal(one.arms, build_environment(config, 0).arms)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["measured", "streamed"])
def test_an_environment_without_a_known_optimum_runs(lab: Path, name: str):
    result = run(lab, environment={"name": f"my_laboratory:{name}"})
    assert result.exit_code == 0, result.output
    assert "largest reward" in result.output
    assert "nan" not in result.output
    assert (lab / "out" / "best_reward.png").stat().st_size > 5_000
    assert not any((lab / "out" / f"{kind}_regret.png").exists() for kind in ("mean", "simple"))
    _, records = load_records(lab / "out")
    largest = [float(record.history.pulls["reward"].max()) for record in records]
    assert pd.read_csv(lab / "out" / "table.csv")["largest_reward"].tolist() == pytest.approx(largest)
    assert all(np.isfinite(record.history.pulls["reward"]).all() for record in records)


@pytest.mark.parametrize("changes", [{}, {"together": True, "repetitions": 2}, {"history": 3}])
def test_arms_with_batch_rows_are_refused(lab: Path, changes: dict[str, Any]):
    code = "\n\ndef rows():\n    return tb.environments.Table(torch.rand(2, 6, 1), torch.rand(2, 6), 0.1)\n"
    (lab / "my_laboratory.py").write_text((lab / "my_laboratory.py").read_text() + code)
    refused = run(lab, environment={"name": "my_laboratory:rows"}, **changes)
    assert refused.exit_code == 2
    assert "the arms of my_laboratory:rows must be A x d, got (2, 6, 1)" in refused.stderr


def test_draws_that_make_rewards_of_their_own_are_not_rows_of_a_table(lab: Path):
    class Doubled(Table):
        def sample(self, index: torch.Tensor, generators: Sequence[torch.Generator]) -> torch.Tensor:
            return 2 * super().sample(index, generators)

    draws = [kind(X, X.sum(dim=-1), 0.1) for kind in (Table, Doubled)]
    assert stack(draws[:1] * 2).arms.shape == (2, *X.shape)
    reasons = {
        "Doubled may draw rewards in a way of its own": draws[1],
        "different numbers of arms": Table(X[:4], X[:4].sum(dim=-1), 0.1),
        "costs": Table(X, X.sum(dim=-1), 0.1, costs=torch.ones(6, dtype=torch.float64)),
        "noise differs": Table(X, X.sum(dim=-1), 0.2),
        "norm of some": Table(X, X.sum(dim=-1), 0.1, norm_bound=2.0),
    }
    for reason, other in reasons.items():
        with pytest.raises(ConfigError, match=f"can't be run together, since .*{reason}.*: leave out together"):
            stack([draws[0], other])


@pytest.mark.exhaustive
def test_a_record_names_the_table_that_was_read_and_not_a_later_one(lab: Path):
    code = (
        "\n\ndef editing(kernel):\n"
        "    from pathlib import Path\n"
        "    table = Path('candidates.csv')\n"
        "    table.write_text(table.read_text().replace('20.0', '25.0'))\n"
        "    return cautious(kernel)\n"
    )
    (lab / "my_laboratory.py").write_text((lab / "my_laboratory.py").read_text() + code)
    policies = [POLICIES[0], {"name": "my_laboratory:editing"}]
    assert run(lab, "--quiet", policies=policies).exit_code == 0
    again = run(lab, "--resume", policies=policies)
    assert again.exit_code == 0, again.output
    assert again.stderr.count("candidates.csv has changed since") == 2


def test_an_error_inside_a_module_is_not_taken_for_a_missing_module(lab: Path):
    config = parse_config(values(environment={"name": "my_broken_module:anything"}), "a test")
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        build_environment(config, 0)


# ---------------------------------------------------------------------- kernels


def periodic() -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.PeriodicKernel().double()
    kernel.lengthscale, kernel.period_length = torch.tensor(0.7, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    return kernel


def polynomial() -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.PolynomialKernel(power=2).double()
    kernel.offset = torch.tensor(0.5, dtype=torch.float64)
    return kernel


def rbf(lengthscale: float | list[float] = 1.0, **options: Any) -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.RBFKernel(**options).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


def rq() -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.RQKernel(ard_num_dims=3).double()
    kernel.lengthscale, kernel.alpha = (
        torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64),
        torch.tensor(1.5, dtype=torch.float64),
    )
    return kernel


def scaled(kernel: gpytorch.kernels.Kernel, by: float) -> gpytorch.kernels.Kernel:
    whole = gpytorch.kernels.ScaleKernel(kernel).double()
    whole.outputscale = torch.tensor(by, dtype=torch.float64)
    return whole


def linear() -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.LinearKernel().double()
    kernel.variance = torch.tensor(0.2, dtype=torch.float64)
    return kernel


BY_HAND: list[tuple[dict[str, Any], gpytorch.kernels.Kernel]] = [
    ({"name": "rbf", "lengthscale": 0.5}, rbf(0.5)),
    ({"name": "RBFKernel"}, rbf()),
    ({"name": "PeriodicKernel", "lengthscale": 0.7, "options": {"period_length": 0.3}}, periodic()),
    ({"name": "PolynomialKernel", "options": {"power": 2, "offset": 0.5}}, polynomial()),
    ({"name": "RQKernel", "lengthscale": [1.0, 2.0, 3.0], "options": {"alpha": 1.5}}, rq()),
    ({"name": "LinearKernel", "outputscale": 3.0, "options": {"variance": 0.2}}, scaled(linear(), 3.0)),
    (
        {"name": "rbf", "lengthscale": [0.5, 2.0], "options": {"active_dims": [0, 2]}},
        rbf([[0.5, 2.0]], ard_num_dims=2, active_dims=(0, 2)),
    ),
    (
        {
            "name": "AdditiveKernel",
            "options": {
                "kernels": [{"name": "rbf", "outputscale": 2.0}, {"name": "LinearKernel", "options": {"variance": 0.2}}]
            },
        },
        scaled(rbf(), 2.0) + linear(),
    ),
    ({"name": "ScaleKernel", "options": {"outputscale": 2.0, "base_kernel": {"name": "rbf"}}}, scaled(rbf(), 2.0)),
    ({"name": "my_laboratory:my_kernel", "options": {"length": 0.4}}, rbf(0.4) + gpytorch.kernels.LinearKernel().double()),
]


@pytest.mark.parametrize(("given", "expected"), BY_HAND, ids=lambda value: value["name"] if isinstance(value, dict) else "")
def test_a_kernel_of_a_file_is_the_one_made_by_hand(lab: Path, given: dict[str, Any], expected: gpytorch.kernels.Kernel):
    made = build_kernel([KernelConfig(**given)], X)
    torch.testing.assert_close(made(X).to_dense(), expected(X).to_dense())
    assert not any(parameter.requires_grad for parameter in made.parameters())
    text = parse_config(values(kernel=given), "a test").dump()
    again = parse_config(yaml.safe_load(text), "again")
    assert again.dump() == text
    torch.testing.assert_close(build_kernel([again.kernel], X)(X).to_dense(), expected(X).to_dense())


def test_most_kernels_of_gpytorch_are_made_by_their_name_alone():
    """The other kernels need arguments, or are for gradients and several tasks."""
    made = []
    for name in KERNELS:
        try:
            build_kernel([KernelConfig(name=name, nu=1.5 if name == "MaternKernel" else None)], X)(X).to_dense()
            made.append(name)
        except (ConfigError, RuntimeError, NotImplementedError, IndexError):
            continue
    least = {"ConstantKernel", "CosineKernel", "LinearKernel", "MaternKernel", "PeriodicKernel", "PiecewisePolynomialKernel"}
    assert least | {"RBFKernel", "RQKernel"} <= set(made)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ({"name": "periodic"}, "Did you mean 'PeriodicKernel'"),
        ({"name": "LinearKernel", "lengthscale": 2.0}, "has no lengthscale parameter"),
        ({"name": "PeriodicKernel", "options": {"period": 2.0}}, "Did you mean 'period_length'"),
        ({"name": "PeriodicKernel", "options": {"period_length": -1.0}}, "GPyTorch's constraint is Positive"),
        ({"name": "PeriodicKernel", "options": {"period_length": [1.0, 2.0]}}, "expected one number or 1"),
        ({"name": "PolynomialKernel"}, "can't be created with these options"),
        ({"name": "PolynomialKernel", "options": {"power": "a"}}, "can't be evaluated with these options"),
        ({"name": "rbf", "nu": 1.5}, "nu is for matern"),
        ({"name": "matern"}, "needs nu"),
        (
            {"name": "ScaleKernel", "options": {"base_kernel": {"name": "rbv"}}},
            "options.base_kernel: name: unknown kernel 'rbv'",
        ),
        ({"name": "ScaleKernel", "options": {"base_kernel": "rbf"}}, "ScaleKernel can't be created with these options"),
        ({"name": "rbf", "lengthscale": [1.0, 2.0]}, "one per feature, got 2"),
        ({"name": "my_laboratory:kernel"}, "Did you mean 'my_kernel'"),
        ({"name": "my_laboratory:my_kernel", "options": {"length": -1.0}}, "length must be positive"),
        ({"name": "my_laboratory:my_kernel", "options": {"width": 1.0}}, "unexpected keyword argument 'width'"),
        ({"name": "my_laboratory:nothing"}, "must return a gpytorch.kernels.Kernel"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_kernel_that_cannot_be_made_says_why_in_a_line(lab: Path, kernel: dict[str, Any], said: str):
    result = run(lab, kernel=kernel)
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr, result.stderr
    assert not (lab / "out").exists()


def test_a_policy_may_have_another_kernel(lab: Path):
    base = {"name": "PeriodicKernel", "lengthscale": 0.7, "options": {"period_length": 0.3}}
    own: list[dict[str, Any]] = [
        {},
        {"lengthscale": 2.0},
        {"name": "LinearKernel", "options": {"variance": 0.2}},
        {"name": "rbf"},
    ]
    policies = [{**POLICIES[1], "label": str(place), "kernel": kernel} for place, kernel in enumerate(own)]
    config = parse_config(values(kernel=base, policies=policies), "a test")
    environment = build_environment(config, 0)
    same, longer, other, short = (build_policy(config, [place], environment).kernel for place in range(4))
    assert [float(kernel.lengthscale) for kernel in (same, longer, short)] == [0.7, 2.0, 0.7]
    assert float(longer.period_length) == pytest.approx(0.3)
    assert isinstance(other, gpytorch.kernels.LinearKernel)
    assert float(other.variance) == pytest.approx(0.2)


def test_an_empty_length_scale_is_that_of_the_experiment():
    base = KernelConfig(name="matern", nu=1.5, lengthscale=0.3)
    empty = parse_config(values(policies=[{"name": "uniform", "kernel": {"lengthscale": None, "nu": None}}]), "a test")
    for config in (empty, parse_config(yaml.safe_load(empty.dump()), "a test")):
        assert merged(base, config.policies[0].kernel, "here") == base


@pytest.mark.exhaustive
def test_one_length_scale_and_one_per_feature_are_rows_of_one_run(lab: Path):
    kinds = {"apart": 0.4, "each": [0.4, 0.2], "one": 0.2}
    policies = [POLICIES[1] | {"label": label, "kernel": {"lengthscale": given}} for label, given in kinds.items()]
    found = []
    for together in (False, True):
        environment = {"name": "my_laboratory:reactor"}
        assert run(lab, "--quiet", environment=environment, policies=policies, together=together).exit_code == 0
        found.append({r.label: r.history.pulls["arm"].tolist() for r in load_records(lab / "out")[1]})
    assert found[0] == found[1]
    assert len(set(map(tuple, found[0].values()))) == 3
    policies[2]["kernel"] = {"lengthscale": [0.4, 0.2, 0.1]}
    refused = run(lab, environment={"name": "my_laboratory:reactor"}, policies=policies, together=True)
    assert "expected one number or 2, one per feature, got 3" in refused.stderr


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ([POLICIES[0], POLICIES[0]], "two policies are labelled 'uniform'"),
        ([POLICIES[0] | {"label": "BKB"}, POLICIES[0] | {"label": "BKB*"}], "the records of 'BKB' and 'BKB*' would have"),
        ([POLICIES[0] | {"label": "λ"}, POLICIES[0] | {"label": "σ"}], "the records of 'λ' and 'σ' would have the same folder"),
        (
            [POLICIES[1] | {"options": {"noise_std": 0.1, "width": {"scaled": True}}}],
            "a number > 0}, got {'scaled': True}",
        ),
    ],
)
def test_a_policy_that_is_refused_in_a_line(lab: Path, policies: list[dict[str, Any]], said: str):
    refused = run(lab, policies=policies)
    assert refused.exit_code == 2
    assert said in refused.stderr


def test_a_policy_that_does_not_fit_the_arms_is_refused_by_its_label_before_the_first_run(lab: Path):
    table = {"name": "csv:candidates.csv", "options": {"objective": "yield", "columns": {"second": "ignore"}}}
    evolution = {"name": "regularized_evolution", "label": "evolution"}
    refused = run(lab, environment=table, policies=[{"name": "uniform"}, evolution])
    assert refused.exit_code == 2
    assert "policies[1] (evolution): population=100 is larger than the set of 12 arms" in refused.stderr
    assert not (lab / "out").exists()


@pytest.mark.exhaustive
def test_a_policy_may_be_made_by_a_function(lab: Path):
    mine = {"name": "my_laboratory:cautious", "options": {"noise_std": "environment"}}
    theirs = {"name": "gp_ucb", "options": {"noise_std": "environment", "width": 1.0}}
    kernel = {"name": "matern", "nu": 1.5}
    environment = {"name": "my_laboratory:reactor"}
    for together in (False, True):
        made = run(
            lab, "--quiet", environment=environment, kernel=kernel, together=together, repetitions=2, policies=[mine, theirs]
        )
        assert made.exit_code == 0, made.output
        _, records = load_records(lab / "out")
        assert {record.label for record in records} == {"my_laboratory:cautious", "gp_ucb"}
        arms = [record.history.pulls["arm"].tolist() for record in records]
        assert arms[:2] == arms[2:]


def test_a_function_is_given_the_number_that_it_declares(lab: Path):
    code = (
        "\n\ndef bold(kernel: gpytorch.kernels.Kernel, width: float, initial: int | None = None) -> tb.policies.Policy:\n"
        "    return tb.gp_ucb(kernel, width=tb.widths.Constant(2 * width), initial=tb.starts.uniform(2 * initial))\n"
    )
    (lab / "my_laboratory.py").write_text((lab / "my_laboratory.py").read_text() + code)
    config = parse_config(values(policies=[{"name": "my_laboratory:bold", "options": {"width": 1, "initial": 3}}]), "a test")
    policy = build_policy(config, [0], build_environment(config, 0))
    assert (policy.confidence, policy.initial) == (tb.widths.Constant(2.0), tb.starts.uniform(6))


@pytest.mark.sweep(5)
@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"name": "my_laboratory:cautios"}, "has no function 'cautios'. Did you mean 'cautious'"),
        ({"name": "my_laboratory:nothing"}, "must return a policy of torchbandits, got NoneType"),
        (
            {"name": "my_laboratory:cautious", "options": {"noise": 1.0}},
            "cautious has no such option. Did you mean 'noise_std'",
        ),
        ({"name": "gp_ucbb"}, "module:function for a policy of your own. Did you mean 'gp_ucb'"),
        ({"name": "gp_ucb", "options": {"width": True}}, "policies[0].options.width: expected a number or {scaled: a number"),
        ({"name": "gp_ucb", "options": {"width": "2"}}, "policies[0].options.width: expected a number or {scaled: a number"),
        ({"name": "gp_ucb", "options": {"initial": True}}, "policies[0].options.initial: expected a number of uniform first"),
        ({"name": "gp_ucb", "options": {"noise_std": 0.1, "initial": 0}}, "policies[0].options.initial: size must be"),
        ({"name": "gp_ucb", "options": {"noise_std": 0.1, "width": -1}}, "policies[0].options.width: value, the width, must"),
        ({"name": "gp_ucb", "options": {"noise_std": 0.1, "refit_every": 5}}, "leave refit_every out, or use auto, which"),
        (
            {"name": "auto", "kernel": {"name": "rbf"}},
            "policies[0].kernel: auto takes no kernel and fits its own: leave it out",
        ),
        ({"name": "uniform", "kernel": {"lengthscale": 2}}, "policies[0].kernel: uniform takes no kernel: leave it out"),
    ],
)
def test_a_function_that_makes_no_policy_is_refused(lab: Path, policy: dict[str, Any], said: str):
    result = run(lab, policies=[policy])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr


@pytest.mark.exhaustive
def test_resuming_makes_again_only_the_runs_whose_settings_changed(lab: Path):
    assert "earlier runs" not in run(lab).stderr
    before = {record.label: record.history for record in load_records(lab / "out")[1]}
    changed = {"name": "gp_ucb", "options": {"noise_std": 0.2, "delta": 0.1}}
    again = run(lab, "--resume", policies=[{"name": "epsilon_greedy"}, changed, *POLICIES[:1]])
    assert "1 earlier run in out/records will be replaced, because settings have changed." in again.stderr
    assert "uniform, seed 0" not in again.stderr
    after = {record.label: record.history for record in load_records(lab / "out")[1]}
    assert list(after) == ["epsilon_greedy", "gp_ucb", "uniform"]
    assert after["uniform"] == before["uniform"]
    assert "2 earlier runs" in run(lab, "--resume", horizon=11).stderr
    assert "2 earlier runs in out/records will be replaced; --resume keeps those" in run(lab, horizon=11).stderr


def test_resuming_with_another_first_seed_keeps_the_runs_of_seeds_that_both_have(lab: Path):
    settings = {"policies": ["uniform"], "repetitions": 2, "environment": "my_laboratory:reactor"}
    first = run(lab, seed=3, **settings)
    assert "uniform, seed 4" in first.stderr
    again = run(lab, "--resume", seed=4, **settings)
    assert "uniform, seed 5" in again.stderr
    assert "uniform, seed 4" not in again.stderr
    assert "replaced" not in again.stderr
    kept = {record.seed: record.history for record in load_records(lab / "out")[1]}
    assert list(kept) == [4, 5]
    run(lab, seed=4, **settings)
    for record in load_records(lab / "out")[1]:
        assert record.history.pulls["reward"].tolist() == kept[record.seed].pulls["reward"].tolist()


@pytest.mark.exhaustive
@pytest.mark.parametrize("seeded", [False, True])
def test_records_with_the_hash_of_all_policies_or_of_the_first_seed_are_still_found(lab: Path, seeded: bool):
    assert run(lab, "--quiet").exit_code == 0
    config, records = load_records(lab / "out")
    for record in records:
        earlier = config.fingerprint_of(record.place, seeded=True) if seeded else config.fingerprint
        record.history.metadata |= {"fingerprint": earlier}
        record.history.to_parquet(lab / "out" / "records" / config.policies[record.place].slug / str(record.seed))
    assert len(load_records(lab / "out")[1]) == len(records)


@pytest.mark.exhaustive
def test_a_copied_record_of_another_seed_is_made_again(lab: Path):
    assert run(lab, "--quiet").exit_code == 0
    folder = lab / "out" / "records" / "uniform"
    first = load_records(lab / "out")[1][0].seed
    shutil.copytree(folder / str(first), folder / str(first + 1), dirs_exist_ok=True)
    again = run(lab, "--resume", repetitions=2)
    assert again.exit_code == 0, again.output
    records = [record for record in load_records(lab / "out")[1] if record.label == "uniform"]
    assert [record.history.metadata["seed"] for record in records] == [first, first + 1]
    assert records[0].history != records[1].history


@pytest.mark.parametrize("changes", [{"horizon": True}, {"repetitions": True}, {"seed": False}, {"threads": True}])
def test_a_switch_is_no_number(lab: Path, changes: dict[str, Any]):
    result = run(lab, **changes)
    assert result.exit_code == 2, result.output
    assert f"{next(iter(changes))}: expected a whole number, got {str(next(iter(changes.values()))).lower()}" in result.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"policies": []}, "policies: expected at least one entry, got []: give one."),
        ({"policies": {"name": "auto"}}, "policies: expected a list, got {'name': 'auto'}: begin each entry with -."),
        ({"policies": None}, "policies: expected a list, got no value."),
        (
            {"policies": [{"name": "auto", "options": []}]},
            "policies[0].options: expected keys and values, got []: write options: {option: value}, or leave options out.",
        ),
        ({"kernel": {"lengthscale": []}}, "kernel.lengthscale: expected at least one entry, got []: give one, or leave "),
        ({"kernel": {"lengthscale": "wide"}}, "kernel.lengthscale: expected a number or a list, got 'wide'."),
        ({"kernel": {"lengthscale": -1}}, "kernel.lengthscale: expected a number > 0, got -1."),
        ({"kernel": {"lengthscale": [1, "b"]}}, "kernel.lengthscale[1]: expected a number, got 'b'."),
        ({"horizon": "ten"}, "horizon: expected a whole number, got 'ten'."),
        ({"horizon": 10**12}, "horizon: expected a number ≤ 1,000,000,000, got 1000000000000."),
        ({"together": []}, "together: expected true or false or a whole number, got []."),
        ({"clock": "cpu"}, "clock: expected 'wall' or 'processor', got 'cpu'."),
        ({"quick": {"policies": []}}, "quick.policies: expected at least one entry, got []: give one, or leave policies out."),
    ],
)
def test_values_of_the_wrong_kind_are_answered_with_the_key_and_what_to_write(given: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as caught:
        parse_config(values(**given), "a test")
    assert str(caught.value).startswith(f"a test: {said}")


def test_an_option_of_the_wrong_kind_is_answered_with_the_kinds_that_a_file_may_hold():
    policies = [{"name": "gp_bucb", "options": {"norm_bound": "q"}}]
    config = parse_config(values(environment="sin_cos", policies=policies), "a test")
    with pytest.raises(ConfigError, match=r"^policies\[0\]\.options\.norm_bound: expected a number, got 'q'\.$"):
        build_policy(config, [0], build_environment(config, 0))


def test_a_name_alone_is_a_section_without_options(lab: Path):
    short = {"environment": "sin_cos", "kernel": "matern", "policies": ["uniform", "gp_ucb"]}
    long = {
        "environment": {"name": "sin_cos"},
        "kernel": {"name": "matern"},
        "policies": [{"name": "uniform"}, {"name": "gp_ucb"}],
    }
    kernel = {"name": "rbf", "lengthscale": 1.0}
    assert parse_config(values(**short | {"kernel": "rbf"}), "a test") == parse_config(
        values(**long | {"kernel": kernel}), "a test"
    )
    own = {"kernel": {"name": "matern", "nu": 2.5}}
    assert parse_config(values(policies=[{"name": "gp_ucb", "kernel": "rbf"}], **own), "a test") == parse_config(
        values(policies=[{"name": "gp_ucb", "kernel": {"name": "rbf"}}], **own), "a test"
    )
    for given in (short, long):
        with pytest.raises(ConfigError, match="kernel: a matern kernel needs nu"):
            parse_config(values(**given), "a test")
    with pytest.raises(ConfigError, match=r"policies\[0\]: expected a name, or keys and values, got 3"):
        parse_config(values(policies=[3]), "a test")
    for alone in ("uniform", "[uniform]"):
        said = rf"policies: expected a list, got '{re.escape(alone)}': write policies: \[uniform\]\."
        with pytest.raises(ConfigError, match=said):
            parse_config(values(policies=alone), "a test")
    with pytest.raises(ConfigError, match=r"a test: policies: expected a list, got 3\."):
        parse_config(values(policies=3), "a test")


def test_simulated_workers_wait_for_one_another(lab: Path):
    hashes = [parse_config(values(asynchronous=workers), "a test").fingerprint for workers in (None, 1, 3)]
    assert hashes[0] == parse_config(values(), "a test").fingerprint
    assert len(set(hashes)) == 3
    assert run(lab, "--quiet", asynchronous=3, repetitions=2).exit_code == 0
    assert "10 evaluations in a run by 3 simulated workers, 2 repetitions" in (lab / "out" / "table.md").read_text()
    config, records = load_records(lab / "out")
    environment = build_environment(config, 0)
    for record in records:
        assert record.history.batches["size"].tolist() == [1] * 10, "one by one, uniform picks too"
        policy, generator = build_policy(config, [record.place], environment), torch.Generator().manual_seed(record.seed)
        alone = tb.run(policy, environment, 10, generator=generator, workers=3, asynchronous=True)
        assert alone.pulls["arm"].tolist() == record.history.pulls["arm"].tolist()
    refused = run(lab, asynchronous=3, repetitions=2, together=True)
    assert "asynchronous workers are simulated for one run at a time: leave out together" in refused.stderr


@pytest.mark.exhaustive
def test_repetitions_run_together_with_a_named_kernel(lab: Path):
    kernel = {"name": "PeriodicKernel", "options": {"period_length": 3.0}}
    gp = POLICIES[1]
    policies = [gp | {"label": "short", "kernel": {"lengthscale": 0.5}}, gp | {"label": "long", "kernel": {"lengthscale": 2.0}}]
    assert run(lab, "--quiet", kernel=kernel, policies=policies, repetitions=2).exit_code == 0
    apart = {(r.label, r.seed): r.history.pulls["arm"].tolist() for r in load_records(lab / "out")[1]}
    assert run(lab, "--quiet", kernel=kernel, policies=policies, repetitions=2, together=True).exit_code == 0
    assert {(r.label, r.seed): r.history.pulls["arm"].tolist() for r in load_records(lab / "out")[1]} == apart


def test_the_working_directory_is_the_last_place_to_look_for_modules(lab: Path):
    config = parse_config(values(environment={"name": "my_laboratory:reactor"}), "a test")
    build_environment(config, 0)
    assert sys.path[-1] == os.getcwd()
    assert tb.environments.registry.keys().isdisjoint({"my_laboratory:reactor"})


# ---------------------------------------------------------------------- the page about them

PAGE = Path(__file__).parents[1] / "docs" / "experiments.md"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_files_of_the_page_run(lab: Path, block: str):
    frame().rename(columns={"price": "operator"}).drop(columns="second").to_csv("screen.csv", index=False)
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (lab / "my_laboratory.py").write_text("\n".join(code))
    config = parse_config({"name": "page", **yaml.safe_load(block)}, "the page")
    environment = build_environment(config, 0)
    for place in range(len(config.policies)):
        policy = build_policy(config, [place], environment)
        history = tb.run(policy, environment, num_rounds=4, generator=torch.Generator().manual_seed(0))
        assert len(history) >= 4


def test_histories_of_own_calls_are_compared_as_the_page_says():
    table, runs = Table(X, X.sum(dim=-1), 0.1), {}
    for name, policy in {"uniform": tb.uniform(), "mine": tb.epsilon_greedy()}.items():
        runs[name] = [tb.run(policy, table, 9, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    lines = [line.strip() for line in PAGE.read_text().splitlines() if line.startswith(("    config = exp", "    records = ["))]
    made: dict[str, Any] = {"runs": runs, "experiments": experiments}
    exec("\n".join(lines), made)
    found = experiments.aggregate(made["config"], made["records"]).set_index("policy")
    mine, theirs = (np.array([one.summary()["regret"] for one in runs[name]]) for name in ("mine", "uniform"))
    assert found.loc["mine", "regret_ratio"] == pytest.approx((mine / theirs).mean())
    assert found.loc["uniform", "regret_difference"] == pytest.approx((theirs - mine).mean())


@pytest.mark.exhaustive
def test_a_damaged_record_is_made_again_for_the_reason_that_is_said(lab: Path):
    run(lab)
    (lab / "out" / "records" / "uniform" / "0" / "batches.parquet").unlink()
    again = run(lab, "--resume")
    assert again.stderr.count("run again") == 1
    assert "settings have changed" not in again.stderr
    assert len(load_records(lab / "out")[1]) == 2


# ---------------------------------------------------------------------- worker processes, and others that use the folder


@pytest.mark.exhaustive
def test_worker_processes_get_the_settings_that_yaml_cannot_hold(lab: Path):
    code = (
        "\n\ndef dated(kernel, largest: float, since: datetime.date, per: dict[int, float]) -> tb.policies.Policy:\n"
        "    assert largest == float('inf') and isinstance(since, datetime.date) and per == {1: 0.5}, (largest, since, per)\n"
        "    return cautious(kernel)\n"
    )
    module = lab / "my_laboratory.py"
    module.write_text(f"import datetime\n{module.read_text()}{code}")
    options = {"largest": float("inf"), "since": datetime.date(2026, 1, 2), "per": {1: 0.5}}
    policies = [POLICIES[0], {"name": "my_laboratory:dated", "options": options}]
    done = run(lab, "--quiet", "--workers", "2", policies=policies)
    assert done.exit_code == 0, done.output
    assert len(load_records(lab / "out")[1]) == 2


def test_an_infinite_option_survives_the_file_and_has_a_hash_of_its_own():
    def config(largest: float | None) -> ExperimentConfig:
        return parse_config(values(policies=[{"name": "uniform", "options": {"largest": largest}}]), "a test")

    infinite = config(math.inf)
    assert parse_config(yaml.safe_load(infinite.dump()), "a test").policies == infinite.policies
    assert infinite.fingerprint_of(0) != config(None).fingerprint_of(0)


@pytest.mark.exhaustive
def test_what_is_said_of_a_run_is_one_line_in_a_file(lab: Path):
    label = "a label of many words " * 6 + "that is longer than a line of a terminal"
    policies = [POLICIES[0] | {"label": label}]
    said = run(lab, policies=policies).stderr.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"{label}, seed 0: regret ")
    frame().iloc[::-1].to_csv("candidates.csv", index=False)
    again = run(lab, "--resume", policies=policies).stderr.splitlines()
    assert again[0] == f"run again: {label}, seed 0: csv:candidates.csv has changed since"
    [record] = (lab / "out" / "records").glob("*/0")
    (record / "pulls.parquet").write_bytes(b"half")
    again = run(lab, "--resume", policies=policies).stderr.splitlines()
    assert len(again) == 2
    assert again[0].startswith("run again: ")


@pytest.mark.exhaustive
def test_a_configuration_of_your_own_is_not_overwritten_by_the_resolved_one(lab: Path):
    (lab / "out").mkdir()
    written = lab / "out" / "config.yaml"
    written.write_text(f"# why these settings\n{yaml.safe_dump(values())}")
    refused = RUNNER.invoke(app, ["run", "out/config.yaml"])
    assert refused.exit_code == 2
    assert "out/config.yaml would be overwritten by the resolved configuration: rename it" in refused.stderr
    assert written.read_text().startswith("# why")
    assert RUNNER.invoke(app, ["run", "out/config.yaml", "--output", "other", "--quiet"]).exit_code == 0
    again = RUNNER.invoke(app, ["run", "other/config.yaml", "--resume", "--repetitions", "2"])
    assert "uniform, seed 0" not in again.stderr
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize("path", [*configs_folder().glob("*.yaml")], ids=lambda path: path.stem)
def test_a_resolved_file_is_told_from_one_written_by_hand(path: Path, tmp_path: Path):
    resolved = tmp_path / "config.yaml"
    resolved.write_text(load_config(path).dump(), encoding="utf-8")
    assert is_dumped(resolved)
    assert not is_dumped(path)


@pytest.mark.exhaustive
def test_pulls_that_were_observed_before_are_counted_in_words(lab: Path):
    done = run(lab, headline=True, history=3)
    said = " ".join(done.stdout.split())
    assert "10 evaluations in a run after 3 random ones that every policy observes, 1 repetition" in said
    assert "After 13 evaluations, the candidate" in said  # of 12 arms
    assert "After 11 of 12 evaluations" in " ".join(run(lab, headline=True, history=3, horizon=8).stdout.split())


@pytest.mark.exhaustive
@pytest.mark.skipif(os.name == "nt", reason="Windows has no locks for folders")
def test_a_folder_in_which_another_process_runs_an_experiment_is_refused(lab: Path):
    assert run(lab, "--quiet").exit_code == 0
    before = {path: path.read_bytes() for path in (lab / "out").rglob("*") if path.is_file()}
    with folder_held(lab / "out"):
        refused = run(lab, horizon=11)
    assert refused.exit_code == 2
    assert "another process runs an experiment in out" in refused.stderr
    assert {path: path.read_bytes() for path in (lab / "out").rglob("*") if path.is_file()} == before
    assert run(lab, "--quiet", horizon=11).exit_code == 0
