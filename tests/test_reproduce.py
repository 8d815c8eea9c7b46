"""Reproductions: resumed with the same numbers after an interruption, batch rows equal to single runs, and correct verdicts."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from results_page import TEXTS, Entry, collect, draw_figures, page, read_entries, reproductions_of, write_pages
from typer.testing import CliRunner

from torchbandits.cli import app
from torchbandits.errors import ConfigError, DataError, StateError
from torchbandits.experiments.config import parse_config
from torchbandits.experiments.judging import (
    COLUMNS,
    Summary,
    Verdict,
    number_name,
    numbers_of,
    read_summary,
    verdicts,
    write_summary,
)
from torchbandits.experiments.measures import (
    baseline_regret,
    best_regret,
    makespan,
    measures,
    regret_share,
    step_regret,
    step_seconds,
    training_hours,
)
from torchbandits.experiments.records import Record, load_records
from torchbandits.experiments.reproducing import draw_reproduction, published_table, reproduce, section
from torchbandits.experiments.reproduction import (
    CoveredConfig,
    ReproductionConfig,
    catalogue,
    find_reproduction,
    load_reproduction,
)
from torchbandits.experiments.results import aggregate, draw_labels
from torchbandits.experiments.runner import Environments, jobs, run_experiment, stack
from torchbandits.history import History
from torchbandits.types import Report

EXPERIMENT = {
    "environment": {"name": "rkhs", "options": {"dim": 1, "points_per_dim": 20, "noise_std": 0.5}},
    "kernel": {"name": "matern", "nu": 1.5, "lengthscale": 0.2},
    "horizon": 30,
    "repetitions": 3,
    "seed": 3,
    "quick": {"horizon": 12, "repetitions": 2},
    "policies": [
        {"name": "uniform"},
        {"name": "igp_ucb", "label": "IGP, σ = 0.2", "options": {"noise_std": 0.5, "norm_bound": "environment"}},
        {
            "name": "igp_ucb",
            "label": "IGP, σ = 0.4",
            "kernel": {"lengthscale": 0.4},
            "options": {"noise_std": 0.5, "norm_bound": "environment"},
        },
        {
            "name": "batch_bkb",
            "label": "BBKB",
            "options": {"noise_std": 0.5, "norm_bound": "environment", "delta": "1/horizon"},
        },
        {"name": "thompson_sampling", "label": "TS", "options": {"noise_std": 0.5, "batch_size": 4, "width": {"scaled": 0.1}}},
    ],
}
FIGURE = {
    "title": "A small figure",
    "source": "Nobody",
    "experiments": {"small": EXPERIMENT},
    "panels": [
        [{"experiment": "small", "measure": "regret_ratio"}, {"experiment": "small", "measure": "batch_size"}],
        [{"experiment": "small", "measure": "seconds", "policies": ["BBKB"]}],
    ],
    "published": [
        {
            "what": "ratio",
            "experiment": "small",
            "policy": "BBKB",
            "measure": "regret_ratio",
            "at": 12,
            "value": 0.5,
            "why": "x",
        },
        {
            "what": "late",
            "experiment": "small",
            "policy": "BBKB",
            "measure": "regret_ratio",
            "at": 30,
            "value": 0.5,
            "why": "y",
        },
    ],
    "claims": [
        {"says": "BBKB wins", "experiment": "small", "policy": "BBKB", "measure": "regret_ratio", "below": ["uniform"]},
    ],
}


def figure_file(folder: Path, **changes: object) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(FIGURE | changes, allow_unicode=True), encoding="utf-8")
    return path


def picks(folder: Path) -> dict[tuple[int, int], tuple[list[int], list[float]]]:
    """Arms and rewards by place and seed."""
    _, records = load_records(folder)
    pulls = {(r.place, r.seed): r.history.pulls for r in records}
    return {key: (columns["arm"].tolist(), columns["reward"].tolist()) for key, columns in pulls.items()}


def alive(folder: Path) -> list[int]:
    """Processes with the mark of the killed reproduction."""
    found = []
    for status in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"KILLED_IN={folder}".encode() in status.read_bytes():
                found.append(int(status.parent.name))
    return found


def numbers(summary: Summary) -> pd.DataFrame:
    """The numbers of a summary without the seconds."""
    table = summary.table[summary.table["measure"] != "seconds"]
    return table.reset_index(drop=True)


@pytest.mark.exhaustive
def test_rows_of_one_run_pick_what_singles_pick(tmp_path: Path) -> None:
    singles = parse_config(EXPERIMENT, "test")
    together = parse_config(EXPERIMENT | {"together": True}, "test")
    assert [len(job) for job in jobs(singles)] == [1] * 15
    assert [len(job) for job in jobs(together)] == [3, 6, 3, 3]  # the two length-scales are rows of one run
    run_experiment(singles, tmp_path / "singles")
    began = time.perf_counter()
    run_experiment(together, tmp_path / "together")
    elapsed = time.perf_counter() - began
    assert picks(tmp_path / "together") == picks(tmp_path / "singles")
    seconds = [record.history.summary()["seconds"] for record in load_records(tmp_path / "together")[1]]
    assert all(0 < value < elapsed for value in seconds)


@pytest.mark.exhaustive
def test_processes_pick_what_one_process_picks(tmp_path: Path) -> None:
    singles = parse_config(EXPERIMENT, "test")
    run_experiment(singles, tmp_path / "singles")
    run_experiment(singles, tmp_path / "apart", workers=2)
    assert picks(tmp_path / "apart") == picks(tmp_path / "singles")


@pytest.mark.exhaustive
def test_a_worker_that_dies_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr("concurrent.futures.Future.result", dies)
    with pytest.raises(StateError, match="fewer --workers"):
        run_experiment(parse_config(EXPERIMENT | {"policies": EXPERIMENT["policies"][:1]}, "test"), tmp_path, workers=2)


@pytest.mark.exhaustive
def test_history_is_the_same_for_all_policies_and_not_in_the_records(tmp_path: Path) -> None:
    changes = {"history": 25, "policies": EXPERIMENT["policies"][:4]}
    run_experiment(parse_config(EXPERIMENT | changes, "test"), tmp_path / "a")
    run_experiment(parse_config(EXPERIMENT | changes | {"together": True}, "test"), tmp_path / "b")
    assert picks(tmp_path / "a") == picks(tmp_path / "b")
    records = load_records(tmp_path / "a")[1]
    assert {len(record.history) for record in records} == {30}
    learned = [r.history.batches["distinct_arms"][0] for r in records if r.label.startswith("IGP")]
    assert min(learned) > 5  # 25 uniform pulls of 20 arms were observed


@pytest.mark.exhaustive
def test_a_record_that_is_missing_or_damaged_is_run_again_and_the_others_are_kept(tmp_path: Path) -> None:
    config = parse_config(EXPERIMENT, "test")
    run_experiment(config, tmp_path)
    before = picks(tmp_path)
    records = sorted((tmp_path / "records").glob("*/*"))
    (records[0] / "batches.parquet").unlink()
    (records[1] / "pulls.parquet").write_bytes(b"half")
    for path in records[2].iterdir():
        path.unlink()
    kept = records[4] / "pulls.parquet"
    stamp = kept.stat().st_mtime_ns
    run_experiment(config, tmp_path, resume=True)
    assert picks(tmp_path) == before
    assert kept.stat().st_mtime_ns == stamp
    run_experiment(parse_config(EXPERIMENT | {"seed": 4}, "test"), tmp_path, resume=True)
    assert (kept.stat().st_mtime_ns == stamp) == ("4" in kept.parts)  # seed 4 is in both
    run_experiment(parse_config(EXPERIMENT | {"horizon": 1 + EXPERIMENT["horizon"]}, "test"), tmp_path, resume=True)
    assert kept.stat().st_mtime_ns != stamp  # another configuration: run anew


def test_errors_of_all_experiments_are_found_before_the_first_run(tmp_path: Path) -> None:
    wrong = EXPERIMENT | {"kernel": {"name": "PolynomialKernel", "options": {"power": "a"}}}
    path = figure_file(tmp_path, experiments={"small": EXPERIMENT, "wrong": wrong})
    with pytest.raises(ConfigError, match="can't be evaluated with these options"):
        reproduce(load_reproduction(path), quick=True, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("end", "workers"), [(signal.SIGTERM, 1), (signal.SIGKILL, 1), (signal.SIGKILL, 2)])
def test_a_reproduction_that_is_killed_is_finished_with_the_same_numbers(
    tmp_path: Path, end: signal.Signals, workers: int
) -> None:
    for horizon in (60 * workers**2 * 4**attempt for attempt in range(5)):  # until it was killed in the middle
        folder = tmp_path / f"{horizon}"
        folder.mkdir()
        if killed_and_finished(folder, horizon, end, workers):
            return
    pytest.fail("it always ended before it could be killed")


def killed_and_finished(tmp_path: Path, horizon: int, end: signal.Signals, workers: int) -> bool:
    """Kill a reproduction and finish it. Returns False if it ended before it could be killed."""
    slow = EXPERIMENT | {"horizon": horizon, "policies": [EXPERIMENT["policies"][i] for i in (0, 1, 3)]}
    path = figure_file(tmp_path, experiments={"small": slow})
    command = [sys.executable, "-m", "torchbandits", "reproduce", str(path), "--output", str(tmp_path / "killed"), "--quiet"]
    command += ["--workers", str(workers)] if workers > 1 else []
    environment = os.environ | {"OMP_NUM_THREADS": "1", "KILLED_IN": str(tmp_path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    records = tmp_path / "killed" / "small" / "records"
    while len(list(records.glob("*/*/batches.parquet"))) < 2 and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(end)
    status = process.wait()
    patience = time.monotonic() + 600
    while workers > 1 and alive(tmp_path) and time.monotonic() < patience:
        time.sleep(0.01)
    assert workers == 1 or not alive(tmp_path)  # no worker outlives its parent
    done = {p: p.stat().st_mtime_ns for p in records.glob("*/*/batches.parquet")}
    if status == 0 or len(done) == 9:
        return False
    assert status == -end
    assert len(done) >= 2
    whole = reproduce(load_reproduction(path), output=tmp_path / "whole")
    resumed = reproduce(load_reproduction(path), output=tmp_path / "killed", workers=workers)
    pd.testing.assert_frame_equal(numbers(resumed.summary), numbers(whole.summary))
    assert picks(tmp_path / "killed" / "small") == picks(tmp_path / "whole" / "small")
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in done.items())
    return True


@pytest.mark.exhaustive
def test_the_command_lists_runs_and_explains(tmp_path: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["reproduce", "--list"])
    assert listed.exit_code == 0, listed.output
    assert all(name in listed.output for name in catalogue())
    out = tmp_path / "out"
    done = runner.invoke(app, ["reproduce", str(figure_file(tmp_path)), "--quick", "--output", str(out)])
    assert done.exit_code == 0, done.output
    assert "not reached" in done.output
    assert {"summary.parquet", "figure.png", "README.md"} <= {p.name for p in out.iterdir()}
    summary = read_summary(out / "summary.parquet")
    assert summary.facts["quick"] is True
    assert set(summary.table["repetitions"]) == {2}
    assert summary.table["x"].max() == 12
    assert (out / "summary.parquet").stat().st_size < 60_000
    with contextlib.chdir(tmp_path):  # two at once, each into its own folder; the first was made before
        (tmp_path / "other.yaml").write_text((tmp_path / "small.yaml").read_text(), encoding="utf-8")
        several = runner.invoke(app, ["reproduce", "small.yaml", "other.yaml", "--quick", "--quiet"])
    assert several.exit_code == 0, several.output
    assert {p.name for p in (tmp_path / "results" / "figures").iterdir()} == {"small-quick", "other-quick"}
    for wrong in (["bkb-fig1", "--all"], ["bkb-fig1", "pi-fig2", "--output", str(out)]):
        refused = runner.invoke(app, ["reproduce", *wrong])
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    unknown = runner.invoke(app, ["reproduce", "bkb-fig1", "bbkb-fig"])
    assert unknown.exit_code == 2
    assert "Did you mean 'bbkb-fig" in unknown.stderr


@pytest.mark.sweep(7)
@pytest.mark.parametrize("name", catalogue())
def test_every_figure_has_a_reduced_form_and_says_where_it_is_from(name: str) -> None:
    reproduction = find_reproduction(name)
    assert reproduction.title
    assert reproduction.source
    assert reproduction.differs
    for config in reproduction.experiments.values():
        quick = config.quickened()
        assert quick.horizon < config.horizon
        assert quick.repetitions < config.repetitions
    times = [(part.experiment, part.at) for part in reproduction.published if part.at]
    assert all(at <= reproduction.experiments[experiment].horizon for experiment, at in times)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"panels": [[{"experiment": "smal", "measure": "regret"}]]}, ["unknown experiment 'smal'", "small"]),
        ({"panels": [[{"experiment": "small", "measure": "regrets"}]]}, ["unknown measure 'regrets'", "regret_ratio"]),
        ({"panels": [[{"experiment": "small", "measure": "regret", "policies": ["BBK"]}]]}, ["'BBK'", "Did you mean 'BBKB'"]),
        ({"panel": []}, ["panel: unknown key", "panels"]),
        ({"experiments": {"small": EXPERIMENT | {"quick": {"horizn": 2}}}}, ["horizn", "horizon"]),
        ({"experiments": {"small": EXPERIMENT | {"quick": {"policies": ["BBK"]}}}}, ["quick.policies", "BBKB"]),
        ({"claims": [FIGURE["claims"][0] | {"levels": 1.2}]}, ["one of below", "levels"]),
        ({"claims": [FIGURE["claims"][0] | {"than": "large"}]}, ["unknown experiment 'large'"]),
        ({"experiments": {}}, ["experiments, or a study"]),
        ({"experiments": {"small": "nowhere.yaml"}}, ["nowhere.yaml", "can't be read"]),
    ],
)
def test_bad_figures_name_what_came(tmp_path: Path, changes: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_reproduction(figure_file(tmp_path, **changes))
    for word in words:
        assert word in str(caught.value)


def test_a_width_that_cannot_be_scaled_is_refused(tmp_path: Path) -> None:
    bad = {"name": "thompson_sampling", "options": {"width": {"scale": 0.1}}}
    with pytest.raises(ConfigError, match="scaled: a number > 0"):
        run_experiment(parse_config(EXPERIMENT | {"policies": [bad]}, "test"), tmp_path)
    with pytest.raises(ConfigError, match="no reduced form"):
        parse_config({k: v for k, v in EXPERIMENT.items() if k != "quick"}, "test").quickened()


def test_draws_with_other_noise_can_not_be_rows_of_one_run() -> None:
    config = parse_config(EXPERIMENT, "test")
    environments = Environments(config)
    rows = environments.rows([0, 2])
    assert rows.means[1].equal(environments[2].means)
    assert rows.norm_bound.tolist() == [environments[0].norm_bound, environments[2].norm_bound]
    other = Environments(parse_config(EXPERIMENT | {"environment": {"name": "rkhs", "options": {"dim": 1}}}, "test"))
    with pytest.raises(ConfigError, match="leave out together"):
        stack([environments[0], other[0]])


def summary_of(quick: bool = False, **curves: list[tuple[float, float, float]]) -> Summary:
    """Curves `policy: [(x, mean, half)]` of the measure `batch_size`."""
    lines = [
        ("small", policy, "batch_size", float(x), mean, mean - half, mean + half, 3)
        for policy, points in curves.items()
        for x, mean, half in points
    ]
    names = ["experiment", "policy", "measure", "x", "mean", "low", "high", "repetitions"]
    facts = {
        "quick": quick,
        "seconds": 60.0,
        "cpu_seconds": 30.0,
        "runs": {"small": "T = 100"},
        "machine": "a machine",
        "load": 1.0,
    }
    return Summary(pd.DataFrame(lines, columns=names), facts)


def claim(**test: object) -> ReproductionConfig:
    stated = {"says": "so", "experiment": "small", "policy": "BBKB", "measure": "batch_size"} | test
    return ReproductionConfig.model_validate(FIGURE | {"claims": [stated], "published": []})


def with_numbers(summary: Summary, reproduction: ReproductionConfig, **numbers: list[float]) -> Summary:
    """The summary with numbers of single repetitions, which the claim compares."""
    (tested,) = reproduction.claims
    names = {number_name(tested, "small", label): dict(enumerate(map(float, values))) for label, values in numbers.items()}
    kept = {name: {str(seed): value for seed, value in values.items()} for name, values in names.items()}
    return Summary(summary.table, summary.facts | {"numbers": kept})


@pytest.mark.parametrize(
    ("test", "numbers", "verdict", "words"),
    [
        ({"below": ["TS"]}, {"BBKB": [9, 10, 11], "TS": [19, 20, 21]}, "held", "difference -10.0"),
        (
            {"below": ["TS", "uniform"], "factor": 0.4},
            {"BBKB": [9, 10, 11], "TS": [19, 20, 21]},
            "not held",
            "BBKB 10.0; differences (from 0.4 times theirs): TS 20.0, difference 2.00 (0.510 … 3.49)",
        ),
        ({"below": ["TS"], "factor": 0.4}, {"BBKB": [9, 10, 11], "TS": [19, 20, 21]}, "not held", "0.4 times theirs"),
        ({"below": ["TS"], "factor": 0.4, "margin": 5.0}, {"BBKB": [9, 10, 11], "TS": [19, 20, 21]}, "held", "margin of 5"),
        # Means in the claimed order prove nothing while the interval of the differences contains 0.
        ({"below": ["TS"]}, {"BBKB": [9, 10, 11], "TS": [8, 13, 10]}, "undecided", "TS 20"),
        # Pairs that differ in the same direction decide, though the values themselves overlap widely.
        ({"below": ["TS"]}, {"BBKB": [1, 10, 100], "TS": [2, 11, 101.1]}, "held", "difference -1.03"),
        ({"below": ["TS"]}, {"BBKB": [10], "TS": [20]}, "undecided", "TS 20"),
        ({"below": ["TS"]}, {"BBKB": [0, 0, 0], "TS": [0, 0, 0]}, "undecided", "difference 0"),
        ({"below": ["TS"]}, {}, "held", "without pairs of seeds"),
        ({"below": ["TS"], "at": 10}, {}, "undecided", "without pairs of seeds"),
        ({"below": ["IGP, σ = 0.2"]}, {"BBKB": [9, 10, 11]}, "not run", "none of"),
        ({"below": ["TS", "uniform"]}, {"BBKB": [9, 10, 11], "TS": [19, 20, 21]}, "undecided", "not run: uniform"),
        ({"below": ["TS", "uniform"]}, {"BBKB": [29, 30, 31], "TS": [19, 20, 21]}, "not held", "not run: uniform"),
        ({"grows": (0.9, 1.1)}, {"BBKB": [0.99, 1.0, 1.01]}, "held", "exponent of t 1.00"),
        ({"grows": (0.1, 0.9)}, {"BBKB": [0.99, 1.0, 1.01]}, "not held", "exponent of t 1.00"),
        ({"grows": (0.9, 1.1)}, {"BBKB": [0.5, 1.0, 1.5]}, "undecided", "exponent of t 1.00"),
        ({"grows": (0.9, 1.1)}, {}, "undecided", "not kept one by one"),
        ({"levels": 2.5}, {"BBKB": [2.0, 2.1, 1.9]}, "held", "2.00 (1.75 … 2.25) times"),
        ({"levels": 1.2}, {"BBKB": [2.0, 2.1, 1.9]}, "not held", "2.00 (1.75 … 2.25) times"),
        ({"at_least": 9.0}, {"BBKB": [9.8, 10.0, 10.2]}, "held", "at least"),
        ({"at_most": 9.0}, {"BBKB": [9.8, 10.0, 10.2]}, "not held", "at most"),
        ({"at_least": 10.0}, {"BBKB": [9.8, 10.0, 10.2]}, "undecided", "at least"),
        ({"at_least": 9.0}, {}, "held", "at least"),
        ({"at_most": 9.0, "at": 77}, {}, "not run", "not run up to this t"),
    ],
)
def test_verdicts_are_what_the_numbers_say(test: dict, numbers: dict, verdict: str, words: str) -> None:
    grown = [(x, x / 10, 0.05 * x if x == 10 else 0.1) for x in (1, 5, 10, 20, 25, 50, 100)]
    summary, reproduction = summary_of(BBKB=grown, TS=[(10.0, 1.2, 0.5), (100.0, 20.0, 1.0)]), claim(**test)
    (found,) = verdicts(reproduction, with_numbers(summary, reproduction, **numbers))
    assert found.verdict == verdict, found
    assert words in found.evidence, found
    # A reduced form gives no verdict, whatever its numbers say.
    reduced = Summary(summary.table, summary.facts | {"quick": True})
    (found,) = verdicts(reproduction, with_numbers(reduced, reproduction, **numbers))
    assert found.verdict == ("not run" if verdict == "not run" else "not judged")


def judged_spread(numbers: dict[str, list[float]], **test: object) -> Verdict:
    """The verdict on a claim about three series at two bandwidths."""
    policies = [{"name": "uniform"}] + [
        {"name": "bkb", "label": f"{series}, σ = {scale}", "kernel": {"lengthscale": scale}}
        for series in ("BKB", "TS", "IGP")
        for scale in (1.0, 2.0)
    ]
    tested = {"says": "so", "experiment": "small", "policy": "BKB", "measure": "regret"} | test
    changes = {"experiments": {"small": EXPERIMENT | {"policies": policies}}, "claims": [tested], "published": [], "panels": [
        [{"experiment": "small", "measure": "regret"}]
    ]}  # fmt: skip
    reproduction = ReproductionConfig.model_validate(FIGURE | changes)
    (found,) = verdicts(reproduction, with_numbers(summary_of(BBKB=[(10.0, 1.0, 0.5)]), reproduction, **numbers))
    return found


@pytest.mark.parametrize(
    ("own", "others", "test", "verdict", "words"),
    [
        ([2.0, 2.1, 1.9], [5.0, 5.2, 4.8], {"spread": ["TS"]}, "held", "TS 5.00"),
        ([9.0, 9.1, 8.9], [5.0, 5.2, 4.8], {"spread": ["TS"]}, "not held", "TS 5.00"),
        ([2.0], [5.0], {"spread": ["TS"]}, "undecided", "TS 5.00"),
        # A series without one of the bandwidths is not compared, and the claim is then not confirmed.
        ([2.0, 2.1, 1.9], [5.0, 5.2, 4.8], {"spread": ["TS", "IGP"]}, "undecided", "not run at every bandwidth: IGP"),
        ([9.0, 9.1, 8.9], [5.0, 5.2, 4.8], {"spread": ["TS", "IGP"]}, "not held", "not run at every bandwidth: IGP"),
        ([1.5, 1.6, 1.7], [], {"spread": ["TS"]}, "undecided", "no repetition has all bandwidths"),
        # Two bandwidths of ours and one of theirs have at most twice the smallest regret.
        ([1.5, 1.6, 1.7], [5.0, 5.2, 4.8], {"spread": ["TS"], "within": 2.0}, "held", "BKB 2.00; TS 1.00"),
        ([5.0, 5.2, 4.8], [1.5, 1.6, 1.7], {"spread": ["TS"], "within": 2.0}, "not held", "BKB 1.00; TS 2.00"),
        # The same number is not a wider range.
        ([1.5, 1.6, 1.7], [1.5, 1.6, 1.7], {"spread": ["TS"], "within": 2.0}, "undecided", "BKB 2.00; TS 2.00"),
    ],
)
def test_a_series_that_depends_less_on_the_bandwidth(
    own: list[float], others: list[float], test: dict, verdict: str, words: str
) -> None:
    ones = [1.0] * len(own)
    numbers = {"BKB, σ = 1.0": ones, "BKB, σ = 2.0": own, "TS, σ = 1.0": ones, "TS, σ = 2.0": others, "IGP, σ = 1.0": ones}
    found = judged_spread(numbers, **test)
    assert found.verdict == verdict, found
    assert words in found.evidence, found


def test_a_claim_about_bandwidths_names_known_series() -> None:
    with pytest.raises(ValueError, match="no policies are labelled 'BKBB, …'"):
        judged_spread({}, spread=["TS"], policy="BKBB")
    with pytest.raises(ValueError, match="within belongs to spread"):
        judged_spread({}, at_most=1.0, policy="BKB, σ = 1.0", within=2.0)


def test_published_numbers_stand_beside_ours_with_the_ratio() -> None:
    known = {"experiment": "small", "policy": "BBKB", "measure": "batch_size", "why": "because"}
    numbers = [
        known | {"what": "a", "at": 10, "value": 4.0},
        known | {"what": "b", "at": 11, "value": 4.0},
        known | {"what": "c", "value": 0.0},
    ]
    reproduction = ReproductionConfig.model_validate(FIGURE | {"published": numbers, "claims": []})
    lines = published_table(reproduction, summary_of(BBKB=[(10.0, 2.0, 0.25), (20.0, 1234567.0, math.nan)]))
    assert lines[0] == ["a", "4.00", "2.00 (1.75 … 2.25)", "0.500", "because"]
    assert lines[1][2:4] == ["not reached; 1.23e+06 at 20", "–"]
    assert lines[2][1:4] == ["0", "1.23e+06", "–"]


def test_a_summary_survives_its_file_and_other_files_are_refused(tmp_path: Path) -> None:
    summary = summary_of(BBKB=[(1.0, 0.5, math.nan), (2.0, 0.25, 0.125)])
    write_summary(summary, tmp_path / "s.parquet")
    again = read_summary(tmp_path / "s.parquet")
    pd.testing.assert_frame_equal(again.table, summary.table)
    assert again.facts == summary.facts
    (tmp_path / "other.parquet").write_bytes(b"other")
    with pytest.raises(DataError, match="does not hold a summary"):
        read_summary(tmp_path / "other.parquet")


def test_a_page_shows_its_reproductions_and_says_what_was_not_run() -> None:
    reproduction = claim(below=["TS"]).model_copy(update={"name": "one"})
    summary = summary_of(BBKB=[(1.0, 1.0, 0.1)], TS=[(1.0, 2.0, 0.1)])
    other = ReproductionConfig.model_validate(FIGURE | {"name": "other"})
    entries = [Entry(reproduction, summary, "results/a.png"), Entry(other, None, "")]
    parts = ("# So?", "<!-- figures: other -->", "<!-- sections: one other -->", "<!-- not run -->\n- Something.")
    text = page("a", {"a": "\n\n".join(parts)}, entries)
    for words in ("![A small figure](../results/a.png)", "**held**", "`other`", "- Something.", "full form", "BBKB wins"):
        assert words in text
    assert "- Not run at all: `other`.\n- Something." in text
    assert len(draw_reproduction(reproduction, summary).axes) == 3


def test_a_page_counts_claims_and_links_to_sections_of_all_pages() -> None:
    covers = (CoveredConfig(figure="TS (Nobody 2020), figure 1", why="because"),)
    reproduction = claim(below=["TS"]).model_copy(update={"name": "small", "covers": covers})
    entries = [Entry(reproduction, summary_of(BBKB=[(1.0, 3.0, 0.1)], TS=[(1.0, 2.0, 0.1)]), "results/a.png")]
    texts = {
        "index": "| TS | <!-- counts: small --> |\n\n<!-- not held -->\n",
        "ts": "[Here][small]\n\n<!-- sections: small -->\n",
    }
    assert page("index", texts, entries) == (
        "| TS | 1 not held |\n\n- [`small`][small]: so.\n\n[small]: ts.md#small-a-small-figure\n"
    )
    assert page("ts", texts, entries).endswith("\n\n[small]: #small-a-small-figure\n")
    with pytest.raises(ValueError, match="asks for <!-- sction: small -->"):
        page("ts", {"ts": "<!-- sction: small -->"}, entries)


def test_differences_that_sections_share_stand_above_them_once() -> None:
    both = [claim(below=["TS"]).model_copy(update={"name": name, "differs": ("Shared.", f"Of {name}.")}) for name in "ab"]
    entries = [Entry(one, summary_of(BBKB=[(1.0, 3.0, 0.1)], TS=[(1.0, 2.0, 0.1)]), "") for one in both]
    text = page("p", {"p": "<!-- sections: a b -->"}, entries)
    assert text.count("Shared.") == 1
    assert text.index("- Shared.") < text.index("## a") < text.index("- Of a.") < text.index("- Of b.")


def test_a_section_says_once_what_its_runs_and_its_numbers_share() -> None:
    number = {"experiment": "small", "policy": "BBKB", "measure": "batch_size", "value": 4.0}
    whys = {"a": "Here.", "b": "Here.", "c": "There.", "d": "Here."}
    numbers = [number | {"what": what, "why": why} for what, why in whys.items()]
    reproduction = ReproductionConfig.model_validate(FIGURE | {"published": numbers, "claims": []})
    summary = summary_of(BBKB=[(10.0, 2.0, 0.25)])
    runs = {"runs": {"one": "T = 10", "two": "T = 20", "three": "T = 10"}}
    text = section(reproduction, Summary(summary.table, summary.facts | runs), "a.png")
    assert "- one, three: T = 10.\n- two: T = 20.\n" in text
    reasons = [line.split(" | ")[-1] for line in text.splitlines() if line[:4] in ("| a ", "| b ", "| c ", "| d ")]
    assert reasons == ["Here. |", "as above |", "There. |", "Here. |"]


def test_a_table_of_claims_says_their_common_words_once() -> None:
    tested = {"experiment": "small", "policy": "BBKB", "measure": "batch_size"}
    bounds = {"Small (BBKB, a)": 2.5, "Small (TS, a)": 2.5, "Small (BBKB, b)": 1.5, "Large": 2.5, "Small (TS, b)": 2.5}
    claims = [tested | {"says": says, "at_most": bound} for says, bound in bounds.items()]
    reproduction = ReproductionConfig.model_validate(FIGURE | {"claims": claims, "published": []})
    rows = [
        line.split(" | ")[:2] for line in section(reproduction, summary_of(BBKB=[(10.0, 2.0, 0.25)]), "").splitlines()
        if "**" in line
    ]  # fmt: skip
    assert rows == [
        ["| Small (BBKB, a; TS, a)", "**held**"],
        ["| as above (BBKB, b)", "**not held**"],
        ["| Large", "**held**"],
        ["| Small (TS, b)", "**held**"],
    ]


def test_a_table_of_figures_names_their_paper_once_and_leaves_out_columns_that_say_the_same_everywhere() -> None:
    covers = (CoveredConfig(figure="TS (Nobody 2020), figure 1", why="because"),)
    whole = claim(below=["TS"]).model_copy(update={"name": "whole", "covers": covers})
    lines = {"BBKB": [(1.0, 1.0, 0.1)], "TS": [(1.0, 2.0, 0.1)]}
    text = page("a", {"a": "<!-- figures: whole -->\n<!-- sections: whole -->"}, [Entry(whole, summary_of(**lines), "")])
    assert text.startswith("| figure or table of TS (Nobody 2020) | reproduction | claims of the paper | why they differ |\n")
    assert "| figure 1 | " in text
    text = page("a", {"a": "<!-- figures: whole -->\n<!-- sections: whole -->"}, [Entry(whole, summary_of(True, **lines), "")])
    assert text.startswith(
        "| figure or table of TS (Nobody 2020) | reproduction | run | claims of the paper | why they differ |\n"
    )


def test_every_reproduction_has_its_section_on_one_page() -> None:
    placed = [name for path in TEXTS.glob("*.md") for name in reproductions_of(path.read_text(encoding="utf-8"))]
    assert sorted(placed) == sorted(catalogue())


@pytest.mark.exhaustive
def test_the_pages_are_what_their_summaries_give(tmp_path: Path) -> None:
    committed = Path(__file__).parents[1] / "docs"
    shutil.copytree(committed / "results", tmp_path / "results")
    written = write_pages(tmp_path, read_entries(tmp_path))
    assert sorted(path.name for path in written) == sorted(path.name for path in (committed / "papers").glob("*.md"))
    for path in written:
        assert path.read_text(encoding="utf-8") == (committed / "papers" / path.name).read_text(encoding="utf-8")


def test_summaries_are_collected_and_drawn(tmp_path: Path) -> None:
    reproduction = find_reproduction("bkb-fig1")
    small = reproduction.study.model_copy(update={"quick_repetitions": 1, "evaluations": (6,)})
    panels = reproduction.panels[:1]
    chosen = reproduction.model_copy(update={"study": small, "panels": panels})
    reproduce(chosen, quick=True, output=tmp_path / "figures" / "bkb-fig1-quick")
    collected = collect(tmp_path / "figures", tmp_path / "docs")
    assert [path.name for path in collected] == ["bkb-fig1-quick.parquet"]
    entries = read_entries(tmp_path / "docs")
    draw_figures(tmp_path / "docs", entries)
    assert (tmp_path / "docs" / "results" / "bkb-fig1.png").stat().st_size > 10_000
    texts = {path.name: path.read_text(encoding="utf-8") for path in write_pages(tmp_path / "docs", entries)}
    assert "Variance starvation" in texts["bkb.md"]


def test_a_policy_may_have_fewer_repetitions_and_runs_fewer_rows() -> None:
    policies = [EXPERIMENT["policies"][0], EXPERIMENT["policies"][3] | {"repetitions": 2}]
    config = parse_config(EXPERIMENT | {"policies": policies}, "test")
    assert [(run.place, run.repetition) for (run,) in jobs(config)] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    in_twos = parse_config(EXPERIMENT | {"policies": policies, "together": 2}, "test")
    assert [[(run.place, run.repetition) for run in job] for job in jobs(in_twos)] == [
        [(0, 0), (0, 1)], [(0, 2)], [(1, 0), (1, 1)],
    ]  # fmt: skip
    unlimited = parse_config(EXPERIMENT | {"policies": [EXPERIMENT["policies"][0], EXPERIMENT["policies"][3]]}, "test")
    assert config.fingerprint == unlimited.fingerprint


def history_of(regrets: list[list[float]], seconds: list[float]) -> History:
    """A history of batches of pulls of the given regrets."""
    history = History()
    for part, spent in zip(regrets, seconds, strict=True):
        report, index = Report(*[torch.ones(1)] * len(Report.__dataclass_fields__)), torch.arange(len(part))[None]
        history.record(
            index=index, rewards=index.double(), regret=torch.tensor([part]), report=report,
            recommended=torch.zeros(1, dtype=torch.int64), simple_regret=torch.zeros(1), seconds=spent,
        )  # fmt: skip
    return history


def test_regrets_of_a_step_of_the_best_arm_and_of_a_share() -> None:
    record = Record(0, "x", 0, history_of([[4.0, 2.0], [3.0], [1.0, 5.0, 1.5]], [2.0, 3.0, 6.0]))
    t = np.array([1, 2, 4, 6])
    assert best_regret(record, t).tolist() == [4.0, 2.0, 1.0, 1.0]
    assert step_regret(record, t).tolist() == pytest.approx([4.0, 2.0, (3.0 + 1.0) / 2, (1.0 + 5.0 + 1.5) / 3])
    assert step_seconds(record, t).tolist() == pytest.approx([1.0, 1.0, (3.0 + 2.0) / 2, 2.0])
    baseline = {0: np.full(6, 10.0), 1: np.full(6, 30.0)}
    assert regret_share(record, baseline).tolist() == pytest.approx((np.cumsum([4.0, 2.0, 3.0, 1.0, 5.0, 1.5]) / 20).tolist())
    assert np.isnan(regret_share(record, {})).all()


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_makespan_is_that_of_a_simulation(workers: int) -> None:
    seconds = np.random.default_rng(workers).random(40).tolist()
    free = [0.0] * workers
    for job in seconds:
        first = min(range(workers), key=lambda worker: free[worker])
        free[first] += job
    assert makespan(seconds, workers) == pytest.approx(max(free))
    assert makespan([], workers) == 0


def test_training_hours_wait_for_the_last_of_each_batch() -> None:
    history = History()
    for index, cost, seconds in (([0, 1, 2], [3600.0, 7200.0, 1800.0], 36.0), ([3], [3600.0], 0.0)):
        one = torch.zeros(1)
        report = Report(*[one] * len(Report.__dataclass_fields__))
        picked = torch.tensor([index])
        history.record(
            index=picked, rewards=picked.double(), regret=picked.double(), report=report,
            recommended=torch.zeros(1, dtype=torch.int64), simple_regret=one, seconds=seconds, costs=torch.tensor([cost]),
        )  # fmt: skip
    record = Record(0, "x", 0, history)
    two = training_hours(2, record, np.arange(1, 5))
    assert two.tolist() == pytest.approx([2.01, 2.01, 2.01, 3.01])
    assert training_hours(1, record, np.array([4])).tolist() == pytest.approx([4.51])
    without_costs = Record(0, "x", 0, history_of([[1.0] * 2], [36.0]))
    assert training_hours(1, without_costs, np.array([2])).tolist() == pytest.approx([0.01])


def test_rows_of_one_run_share_its_seconds_and_count_once() -> None:
    tested = [FIGURE["claims"][0] | {"measure": measure} for measure in ("seconds", "regret")]
    for together, kept in ((False, 4), (True, 1), (2, 2), (3, 2)):
        config = parse_config(EXPERIMENT | {"together": together, "repetitions": 4}, "test")
        reproduction = ReproductionConfig.model_validate(FIGURE | {"claims": tested})
        records = [Record(3, "BBKB", config.seed + r, history_of([[1.0] * 30], [1.0])) for r in range(4)]
        numbers = numbers_of(reproduction, "small", config, records)
        seconds, regret = (numbers[number_name(claim, "small", "BBKB")] for claim in reproduction.claims)
        assert (len(seconds), len(regret)) == (kept, 4)
        assert set(regret.values()) == {30.0}


@pytest.mark.exhaustive
def test_the_summary_of_what_has_ended_says_what_is_missing(tmp_path: Path) -> None:
    policies = [EXPERIMENT["policies"][0], EXPERIMENT["policies"][3] | {"repetitions": 1}, EXPERIMENT["policies"][4]]
    experiments = {"small": EXPERIMENT | {"policies": policies}, "other": EXPERIMENT | {"policies": policies[:1]}}
    reproduction = load_reproduction(figure_file(tmp_path, experiments=experiments, published=[]))
    with pytest.raises(DataError, match="no run that has ended"):
        reproduce(reproduction, output=tmp_path / "out", ended=True)
    config = parse_config(experiments["small"] | {"repetitions": 2, "policies": policies[:2]}, "test")
    whole = reproduction.experiments["small"]
    run_experiment(whole.model_copy(update={"repetitions": 2}), tmp_path / "out" / "small")
    shutil.rmtree(tmp_path / "out" / "small" / "records" / "ts" / str(config.seed))
    done = reproduce(reproduction, output=tmp_path / "out", ended=True)
    said = done.summary.facts["runs"]
    assert said["small"].endswith(
        "not run: uniform (1 of 3 repetitions), BBKB (more than 1 repetitions), TS (2 of 3 repetitions)"
    )
    assert said["other"].endswith("not run: uniform (3 of 3 repetitions)")
    table = done.summary.table
    assert table.groupby("policy")["repetitions"].max().to_dict() == {"uniform": 2, "BBKB": 1, "TS": 1}
    assert set(table["experiment"]) == {"small"}


@pytest.mark.exhaustive
def test_a_repetition_without_a_run_of_uniform_does_not_count_for_the_ratio(tmp_path: Path) -> None:
    policies = [EXPERIMENT["policies"][0], EXPERIMENT["policies"][3]]
    reproduction = load_reproduction(figure_file(tmp_path, experiments={"small": EXPERIMENT | {"policies": policies}}))
    config, folder = reproduction.experiments["small"], tmp_path / "out" / "small"
    run_experiment(config, folder)
    records = load_records(folder)[1]
    regret = {(r.label, r.seed): r.history.cumulative_regret()[-1] for r in records}
    ratios = [regret["BBKB", seed] / regret["uniform", seed] for seed in (3, 4)]
    shutil.rmtree(folder / "records" / "uniform" / "5")
    records = load_records(folder)[1]
    line = aggregate(config, records).set_index("policy").loc["BBKB"]
    assert line["repetitions"] == 3
    assert line["regret_ratio"] == pytest.approx(np.mean(ratios))
    half = 12.7062 * np.std(ratios, ddof=1) / math.sqrt(2)  # of Student's t with one degree of freedom
    assert line["regret_ratio_high"] - line["regret_ratio"] == pytest.approx(half, rel=1e-5)
    summary = reproduce(reproduction, output=tmp_path / "out", ended=True).summary
    last = summary.at("small", "BBKB", "regret_ratio", None)
    assert last is not None
    assert last["mean"] == pytest.approx(np.mean(ratios), rel=1e-6)
    assert last["repetitions"] == 2
    drawn = draw_labels("x", ["uniform", "BBKB"], records, measures(baseline_regret(config, records))["regret_ratio"])
    assert np.isfinite([line.get_ydata()[-1] for line in drawn.axes[0].lines]).all()


def test_seconds_that_cannot_be_read_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    reproduction = load_reproduction(figure_file(tmp_path))
    for damaged in ("{", "[1]", '{"seconds": "x"}', '{"seconds": null}'):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "seconds.json").write_text(damaged)
        with pytest.raises(DataError, match=r"seconds\.json does not hold seconds: .*Remove it"):
            reproduce(reproduction, output=tmp_path / "out", ended=True)


def test_a_panel_has_at_most_five_lines_and_bands_from_ten_repetitions_on():
    def drawn(labels: list[str], repetitions: int) -> Any:
        reproduction = ReproductionConfig.model_validate(
            {
                "title": "many",
                "source": "a test",
                "experiments": {
                    "one": {
                        "environment": {"name": "sin_cos", "options": {"num_arms": 20}},
                        "policies": [{"name": "uniform", "label": label} for label in labels],
                        "horizon": 4,
                        "repetitions": repetitions,
                    }
                },
                "panels": [[{"experiment": "one", "measure": "simple_regret"}]],
            }
        )
        rows = [
            {"experiment": "one", "policy": label, "measure": "simple_regret", "x": float(t), "mean": place + 1.0, "low": 0.5}
            | {"high": place + 2.0, "repetitions": repetitions}
            for place, label in enumerate(labels)
            for t in (1, 4)
        ]
        return draw_reproduction(reproduction, Summary(pd.DataFrame(rows)[list(COLUMNS)], {"quick": False}))

    seven = drawn([f"p{i}" for i in range(7)], 10)
    assert [len(axes.lines) for axes in seven.axes] == [4, 3]
    assert [len(axes.collections) for axes in seven.axes] == [4, 3]
    assert seven.axes[0].get_ylim() == seven.axes[1].get_ylim()
    assert [axes.get_title() for axes in seven.axes] == ["one (1 of 2)", "one (2 of 2)"]
    five = drawn([f"p{i}" for i in range(5)], 9)
    assert [len(axes.lines) for axes in five.axes] == [5]
    assert [len(axes.collections) for axes in five.axes] == [0]
    assert "shaded" not in five.get_suptitle()


def test_a_logarithmic_panel_of_a_measure_that_is_unknown_is_empty(tmp_path: Path) -> None:
    reproduction = claim(below=["TS"])
    figure = draw_reproduction(reproduction, summary_of(BBKB=[(1.0, math.nan, math.nan)]))
    figure.savefig(tmp_path / "figure.png")
    assert figure.axes[1].get_yscale() == "linear"
