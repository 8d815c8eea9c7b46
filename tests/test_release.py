"""Consistency of the metadata of a release. `scripts/check_wheel.sh` builds and tests the wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import torchbandits as tb
from torchbandits import experiments
from torchbandits.experiments.reproduction import configs_folder, find_config

ROOT = Path(__file__).parents[1]


def test_one_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert newest is not None
    assert citation["version"] == newest[1] == tb.__version__
    assert "version" in project["dynamic"]  # read from the package, and not repeated
    assert citation["license"] == project["license"]


def test_every_requirement_has_a_lower_bound_that_the_pinned_version_meets():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned.items()}
    assert all(line.startswith("torchbandits[") or "==" in line for line in extras.pop("peers"))  # those of the records
    for bound in [*project["dependencies"], *(line for extra in extras.values() for line in extra)]:
        if bound.startswith("torchbandits["):
            continue
        found = re.fullmatch(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)(?:,<\d+)?", bound)
        assert found is not None, f"{bound} states no lower bound"
        version = pinned.get(re.sub(r"[-_.]+", "-", found[1]).lower())
        if version is not None:
            assert numbers(version) >= numbers(found[2]), bound


def test_the_oldest_versions_are_the_lower_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    not_used = ("dev", "peers")  # development tools, and packages for comparisons
    extras = [lines for name, lines in project["optional-dependencies"].items() if name not in not_used]
    bounds = [line for lines in (project["dependencies"], *extras) for line in lines if not line.startswith("torchbandits[")]
    pins = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    for bound in bounds:
        name, _, version = re.sub(r"\[\w+\]|,.*", "", bound).partition(">=")
        assert f"{name}=={version}" in pins


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


def test_the_configurations_that_come_along_are_found_by_name():
    assert find_config("theory") == configs_folder() / "theory.yaml"
    assert find_config("quickstart") == configs_folder() / "quickstart.yaml"
    assert find_config("mine.yaml") == Path("mine.yaml")


def test_the_plain_library_needs_no_extra():
    """Importing the package imports no package of the extras (the command line names the missing package)."""
    extras = ("matplotlib", "pandas", "pydantic", "typer", "numba", "ax", "mkdocs")
    block = f"import sys\nfor name in {extras}:\n    sys.modules[name] = None\nimport torchbandits\n"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", block], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def loaded_by(*modules: str) -> set[str]:
    """Packages that a fresh process loads for modules, besides those of PyTorch and GPyTorch."""
    lines = ("import sys, torch, gpytorch", "before = set(sys.modules)", *(f"import {module}" for module in modules))
    block = "\n".join([*lines, "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"])
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", block], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_nothing_slow_is_loaded_before_it_is_needed():
    heavy = {"botorch", "matplotlib", "numba", "pandas", "pyarrow", "pydantic", "scipy", "sklearn"}
    plain = loaded_by("torchbandits")
    assert "torchbandits" in plain
    assert not plain & {*heavy, "rich", "typer", "yaml"}
    command_line = loaded_by("torchbandits.__main__", "torchbandits.experiments")
    assert "typer" in command_line
    assert not command_line & heavy
    assert {"botorch", "matplotlib", "pandas"} <= loaded_by("torchbandits.botorch", "torchbandits.experiments.runner")


def test_names_of_experiments_are_found_when_they_are_read():
    assert all(callable(getattr(experiments, name)) for name in experiments.__all__)
    assert set(experiments.__all__) <= set(dir(experiments))
    with pytest.raises(AttributeError, match="has no attribute 'run_experiments'"):
        experiments.run_experiments  # noqa: B018


CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
"""Names of packages that conda-forge gives other names."""


def conda(bounds: list[str]) -> list[str]:
    """Requirements of pyproject.toml as conda writes them."""
    parts = [bound.partition(">=") for bound in bounds]
    return [f"{CONDA.get(name, name)} >={version}" for name, _, version in parts]


def test_the_conda_recipe_states_what_pyproject_states():
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, python = whole["project"], conda([f"python{whole['project']['requires-python']}"])
    extras = project["optional-dependencies"]
    needs = recipe["requirements"]
    assert recipe["context"]["version"] == tb.__version__
    assert needs["run"] == [*python, *conda(project["dependencies"])]
    assert needs["host"] == [*python, "pip", *conda(whole["build-system"]["requires"])]
    assert needs["run_constraints"] == conda([*extras["experiments"], *extras["fast"]])
    scripts = [f"{name} = {target}" for name, target in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    about = recipe["about"]
    assert (about["summary"], about["license"]) == (project["description"], project["license"])
    assert (ROOT / about["license_file"]).is_file()
