"""The command line: its output, and one clear line with exit code 2 for every expected error."""

from __future__ import annotations

import inspect
import io
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
import yaml
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

import torchbandits as tb
from torchbandits import experiments
from torchbandits.cli import app
from torchbandits.errors import ArgumentError, ConfigError, DataError, DiagnosticWarning
from torchbandits.experiments.config import build_environment, build_policy, parse_config
from torchbandits.experiments.records import Record, load_records
from torchbandits.experiments.results import DISPENSABLE, HEADERS, Printed, aggregate, printed, to_rich
from torchbandits.experiments.rounded import digits
from torchbandits.experiments.runner import run_experiment
from torchbandits.history import History
from torchbandits.policies import CATALOGUE, Entry, markdown_table

RUNNER = CliRunner()

SMALL = {
    "name": "small",
    "environment": {"name": "rkhs", "options": {"dim": 1, "points_per_dim": 20, "noise_std": 0.5}},
    "kernel": {"name": "matern", "nu": 1.5, "lengthscale": 0.2},
    "horizon": 40,
    "repetitions": 2,
    "seed": 3,
    "policies": [
        {"name": "uniform"},
        {"name": "gp_ucb", "label": "GP-UCB", "options": {"noise_std": 0.5, "delta": 0.1}},
        {"name": "batch_bkb", "label": "BBKB", "options": {"noise_std": 0.5, "norm_bound": "environment", "delta": 0.1}},
    ],
}


def write(folder: Path, **changes: object) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(SMALL | {"output": str(folder / "results")} | changes))
    return path


def refused(*arguments: str) -> str:
    """Run, expect exit code 2, one line and no traceback; return the line."""
    result = RUNNER.invoke(app, list(arguments))
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    lines = [line for line in result.stderr.splitlines() if line]
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_a_warning_is_one_line_without_the_place_in_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warns(*_: object, **__: object) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            for deviation in (0.118, 6e-05):  # warnings of two runs of one figure
                warnings.warn(f"the features differ\n  in scale by {deviation}", DiagnosticWarning, stacklevel=1)
        raise ConfigError("enough")

    monkeypatch.setattr("torchbandits.experiments.runner.run_experiment", warns)
    result = RUNNER.invoke(app, ["run", str(write(tmp_path))])
    assert result.stderr.splitlines() == ["torchbandits: the features differ in scale by 0.118", "torchbandits: enough"]


@pytest.mark.exhaustive
def test_a_run_of_a_fixed_horizon_does_not_warn_of_repeated_pulls(tmp_path: Path) -> None:
    line = {"name": "rkhs", "options": {"dim": 1, "points_per_dim": 20, "noise_std": 0.01}}
    values = SMALL | {"policies": [{"name": "auto"}], "environment": line, "horizon": 110, "repetitions": 1}
    config, said = parse_config(values, "a test"), "of the last 40 pulls"
    environment = build_environment(config, 0)
    with pytest.warns(DiagnosticWarning, match=said):
        tb.run(build_policy(config, [0], environment), environment, num_rounds=110, generator=torch.Generator().manual_seed(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DiagnosticWarning)
        run_experiment(config, tmp_path)


def test_run_writes_records_table_and_figures_and_plot_draws_them_again(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["run", str(write(tmp_path))])
    assert result.exit_code == 0, result.output
    out = tmp_path / "results"
    assert "regret ratio" in result.output
    assert str(out) in result.output.replace("\n", "")
    names = {path.name for path in out.iterdir()}
    assert {"config.yaml", "table.csv", "table.md", "regret_ratio.png", "mean_regret.png", "simple_regret.png"} <= names
    assert {"regret.png", "time.png", "batch_size.png", "dictionary_size.png"} <= names
    table = pd.read_csv(out / "table.csv")
    assert table["policy"].tolist() == ["uniform", "GP-UCB", "BBKB"]
    records = sorted((out / "records").glob("*/*/pulls.parquet"))
    assert len(records) == 6
    assert len(History.from_parquet(records[0].parent).pulls["reward"]) == 40
    assert yaml.safe_load((out / "config.yaml").read_text())["horizon"] == 40
    (out / "time.png").unlink()
    again = RUNNER.invoke(app, ["plot", str(out / "records")])
    assert again.exit_code == 0, again.output
    assert (out / "time.png").stat().st_size > 5_000


def test_figures_are_drawn_into_a_new_folder(tmp_path: Path) -> None:
    """As documented for histories of one's own; the folder had to exist."""
    runs = {name: [tb.run(policy, tb.environments.sin_cos(num_arms=30), 5)] for name, policy in (("uniform", tb.uniform()),)}
    config = experiments.ExperimentConfig(environment="mine", policies=list(runs), horizon=5)
    records = [experiments.Record(0, "uniform", 0, one) for one in runs["uniform"]]
    drawn = experiments.draw_figures(config, records, tmp_path / "new" / "figures")
    assert "regret.png" in {path.name for path in drawn}
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="can't be made"):
        experiments.draw_figures(config, records, tmp_path / "file" / "figures")


def test_a_narrow_terminal_shows_numbers_and_labels_whole() -> None:
    sizes = ("24", "18", "19")
    numbers = ("1.000", "–", "0.0301", *sizes, "0.12", "3")
    others = ("0.135", "0.006 … 0.263", "0.000762", *sizes, "13.29", "3")
    table = Printed("mine: 50 evaluations", HEADERS, (("uniform", *numbers), ("BBKB, a tenth of the width", *others)))
    for width, left_out in {120: 0, 80: 2, 70: 3}.items():
        console = Console(width=width, file=io.StringIO())
        console.print(to_rich(table, width))
        text = console.file.getvalue()
        assert max(map(len, text.splitlines())) <= width
        assert "BBKB, a tenth of " in text
        assert "…" not in text.replace(" … ", "")
        assert left_out == 0 or f"Only in the files: {', '.join(DISPENSABLE[:left_out])}" in " ".join(text.split())
        assert all(number in text for number in {*numbers, *others} - set(sizes))
        assert sum(size in text for size in sizes) == 3 - left_out


def test_policies_are_compared_in_pairs(tmp_path: Path) -> None:
    values = {"output": str(tmp_path / "out"), "repetitions": 4, "horizon": 12}
    policies = [*SMALL["policies"][:2], {"name": "epsilon_greedy", "label": "greedy", "repetitions": 3}]
    result = RUNNER.invoke(app, ["run", str(write(tmp_path, policies=policies, **values))])
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "difference to GP-UCB in the same repetition, reward units: below 0, less regret than GP-UCB" in said
    config, records = load_records(tmp_path / "out")
    ends = {(r.label, r.seed): r.history.summary() for r in records}
    for versus in (None, "greedy"):
        table = aggregate(config, records, versus=versus)
        other = versus or "GP-UCB"  # the first policy other than uniform
        assert set(table["versus"]) == {other}
        line = table.set_index("policy").loc["uniform"]
        seeds = (3, 4, 5) if versus else (3, 4, 5, 6)
        assert line["pairs"] == len(seeds)
        for name in ("regret", "simple_regret"):
            pairs = [[ends[label, seed][name] for seed in seeds] for label in ("uniform", other)]
            expected = scipy.stats.ttest_rel(*pairs).confidence_interval(0.95)
            found = [line[f"{name}_difference{end}"] for end in ("_low", "", "_high")]
            assert found == pytest.approx([expected.low, np.mean(pairs[0]) - np.mean(pairs[1]), expected.high])
            interval = f"{digits(found[0])} … {digits(found[2])}"
            assert versus or interval in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
        assert table.set_index("policy").loc[other, "pairs"] == 0
        assert np.isnan(table.set_index("policy").loc[other, "regret_difference"])
    with pytest.raises(ArgumentError, match=r"versus: no policy .* is labelled 'greedi'; .* Did you mean 'greedy'"):
        aggregate(config, records, versus="greedi")
    assert RUNNER.invoke(app, ["report", str(tmp_path / "out")]).exit_code == 0
    assert "difference to GP-UCB" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_without_uniform_the_table_has_the_regret_itself(tmp_path: Path) -> None:
    label = "a_label_of_one_word_" * 4
    policies = [{"name": "epsilon_greedy"}, {"name": "epsilon_greedy", "label": label, "options": {"epsilon": 0.5}}]
    result = RUNNER.invoke(app, ["run", str(write(tmp_path, policies=policies))])
    assert result.exit_code == 0, result.output
    ends = [record.history.summary()["regret"] for record in load_records(tmp_path / "results")[1] if record.place == 0]
    interval = scipy.stats.ttest_1samp(ends, 0).confidence_interval(0.95)
    text = (tmp_path / "results" / "table.md").read_text(encoding="utf-8")
    said = f"| epsilon_greedy | {digits(np.mean(ends))} | {digits(interval.low)} … {digits(interval.high)} | "
    assert "| policy | regret | 95 % interval | simple regret |" in text
    assert "means; regrets in reward units" in text
    assert said in text
    assert label in re.sub(r"\s.*\n\s*", "", result.stdout)  # in several lines, and not cut off


def test_what_can_not_be_compared_has_no_interval(tmp_path: Path) -> None:
    """Equal runs, a single repetition, and an environment whose optimum is unknown."""
    config = parse_config(SMALL | {"horizon": 3, "repetitions": 3, "policies": SMALL["policies"][:2]}, "a test")

    def run_of(place: int, seed: int, reward: float, regret: float) -> Record:
        bandit, history = tb.Bandit(tb.uniform(), torch.zeros(1, 1, dtype=torch.float64)), History()
        rewards, lost = (torch.tensor([number], dtype=torch.float64) for number in (reward, regret))
        report = bandit.tell(bandit.ask(), rewards)
        pulled = {"index": torch.tensor([[0]]), "rewards": rewards[None], "regret": lost[None], "report": report}
        history.record(**pulled, recommended=torch.tensor([0]), simple_regret=lost, seconds=0.1)
        return Record(place, config.policies[place].label, seed, history)

    same = [run_of(place, seed, 1.0, 2.0) for place in (0, 1) for seed in (3, 4, 5)]
    _, compared = printed(config, aggregate(config, same))
    assert compared.lines == (("uniform", "0", "–", "0", "–", "3"),)
    assert len(printed(config, aggregate(config, [same[0], same[3]]))) == 1
    unknown = [run_of(place, seed, 2.0 * seed if place == 0 else seed, math.nan) for place in (0, 1) for seed in (3, 4, 5)]
    _, compared = printed(config, aggregate(config, unknown))
    assert compared.headers == ("policy", "largest reward", "95 % interval", "pairs")
    assert compared.lines == (("uniform", "4.00", "1.52 … 6.48", "3"),)  # 4 ± 4.303 / √3
    assert "above 0, a larger reward than GP-UCB" in compared.caption


@pytest.mark.exhaustive
def test_without_a_terminal_progress_is_a_line_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal there is one line for a long run (here at once), one per finished run, and no control characters."""
    monkeypatch.setattr("torchbandits.experiments.runner.SAY_EVERY", 0.0)
    said = RUNNER.invoke(app, ["run", str(write(tmp_path, policies=SMALL["policies"][:1], repetitions=1))]).stderr
    assert said.splitlines()[:40] == [f"uniform: {t} of 40 pulls" for t in range(1, 41)]
    assert said.splitlines()[40].startswith("uniform, seed 3: regret ")
    assert all(char.isprintable() or char == "\n" for char in said)


@pytest.mark.exhaustive
def test_the_same_seed_gives_the_same_records(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        assert RUNNER.invoke(app, ["run", str(write(tmp_path / name)), "--quiet"]).exit_code == 0
        runs.append(History.from_parquet(tmp_path / name / "results" / "records" / "bbkb" / "3").pulls)
    assert runs[0]["arm"].tolist() == runs[1]["arm"].tolist()
    assert runs[0]["reward"].tolist() == runs[1]["reward"].tolist()


def test_a_config_that_is_not_there(tmp_path: Path) -> None:
    assert "nowhere.yaml" in refused("run", str(tmp_path / "nowhere.yaml"))
    path = str(write(tmp_path))
    assert f"Did you mean '{path}'?" in refused("run", path.removesuffix(".yaml"))


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"horizn": 10}, ["horizn", "horizon"]),
        ({"horizon": 0}, ["horizon"]),
        ({"horizon": "many"}, ["horizon"]),
        ({"policies": []}, ["policies"]),
        ({"policies": [{"name": "bbkb"}]}, ["bbkb", "bkb"]),
        ({"policies": [{"name": "bkb", "options": {"oversamplin": 2}}]}, ["oversamplin", "oversampling"]),
        ({"policies": [{"name": "bkb", "options": {"oversampling": 0.5}}]}, ["oversampling", "0.5"]),
        ({"policies": [{"name": "batch_bkb", "options": {"ratio_threshold": 0.9}}]}, ["ratio_threshold", "0.9"]),
        ({"policies": [{"name": "gp_ucb", "options": {"noise_std": -1}}]}, ["noise_std", "-1"]),
        ({"environment": {"name": "abalon"}}, ["abalon", "abalone"]),
        ({"kernel": {"name": "rbv", "lengthscale": 1}}, ["rbv", "rbf"]),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_bad_configs_name_what_came_and_the_nearest(tmp_path: Path, changes: dict, words: list[str]) -> None:
    message = refused("run", str(write(tmp_path, **changes)))
    for word in words:
        assert word in message, message
    assert not (tmp_path / "results").exists(), "something was written"


def test_a_config_that_is_not_yaml(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("policies: [unclosed")
    assert "broken.yaml" in refused("run", str(path))


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    assert "taken" in refused("run", str(write(tmp_path)), "--output", str(tmp_path / "taken"))


def test_records_that_are_not_there(tmp_path: Path) -> None:
    assert str(tmp_path) in refused("plot", str(tmp_path))


def test_data_sets_are_listed_and_described() -> None:
    listed = RUNNER.invoke(app, ["data", "list"])
    assert listed.exit_code == 0
    assert "abalone" in listed.output
    for name, said in (("cadata", "20640"), ("mnist", "logistic_regression"), ("nas_bench_101", "12416")):
        assert name in listed.output
        described = RUNNER.invoke(app, ["data", "describe", name])
        assert said in described.output
    assert "abalone" in refused("data", "describe", "abalon")


def test_data_that_cannot_be_had_names_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHBANDITS_DATA", str(tmp_path))
    monkeypatch.setenv("TORCHBANDITS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    message = refused("data", "fetch", "abalone")
    assert "TORCHBANDITS_DATA" in message
    assert "scikit-learn" in message or "OpenML" in message


def test_the_policies_are_listed() -> None:
    listed = RUNNER.invoke(app, ["policies"])
    assert listed.exit_code == 0, listed.output
    lines = listed.output.splitlines()
    assert max(map(cell_len, lines)) <= 120
    words = " ".join(listed.output.split())
    for entry in CATALOGUE:
        row = next(line for line in lines if line.split()[:1] == [entry.name])
        assert entry.paper.split()[0] in row
        assert entry.cost.split()[0] in row
    for header in ("policy", "paper", "guarantee", "cost of a step", "batch", "kernels", "choose it when"):
        assert header in words


@pytest.mark.sweep(4)
@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_a_policy_shows_its_options(entry: Entry) -> None:
    """Every option is shown with its default and its documentation."""
    shown = RUNNER.invoke(app, ["policies", entry.name])
    assert shown.exit_code == 0, shown.output
    words = " ".join(shown.output.split())
    assert entry.summary in words
    assert entry.guarantee.split()[0] in words
    assert max(map(cell_len, shown.output.splitlines())) <= 120
    parameters = inspect.signature(entry.factory).parameters
    assert [option.name for option in entry.options] == list(parameters)
    for option in entry.options:
        row = next(line for line in shown.output.splitlines() if line.split()[:1] == [option.name])
        default = parameters[option.name].default
        named = "required" if default is inspect.Parameter.empty else getattr(default, "__name__", repr(default))
        assert option.default == named
        assert option.default in row
        assert option.meaning, f"{entry.name} does not document {option.name}"
        assert option.meaning.split()[0] in row


def test_a_policy_that_is_not_there_is_a_guess_away() -> None:
    message = refused("policies", "batch_bbkb")
    assert "batch_bbkb" in message
    assert "Did you mean 'batch_bkb'" in message


def rows_under(page: str, heading: str) -> list[str]:
    """Lines of the table under a heading of a page."""
    text = (Path(__file__).parents[1] / page).read_text()
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines(keepends=True) if line.startswith("|")]


def test_the_page_of_all_policies_shows_the_catalogue() -> None:
    """To update the page, paste the output of `torchbandits policies --markdown`."""
    table = rows_under("docs/choosing/policies.md", "The catalogue")
    assert "".join(table) == markdown_table() == RUNNER.invoke(app, ["policies", "--markdown"]).output
    assert {line.count("|") for line in table} == {8}, "a bar within a cell"
    for entry in CATALOGUE:
        assert all(getattr(entry, fact) for fact in ("paper", "guarantee", "cost", "batch", "kernels", "memory", "choose"))


def test_the_readme_shows_seven_rows_of_the_catalogue() -> None:
    known = {entry.name: f"| `{entry.name}` | {entry.choose} | {entry.batch} | {entry.cost} |\n" for entry in CATALOGUE}
    header, _, *rows = rows_under("README.md", "Which policy")
    assert header == "| policy | choose it when | batch | cost of a step |\n"
    assert len(rows) == 7
    assert set(rows) <= set(known.values())
