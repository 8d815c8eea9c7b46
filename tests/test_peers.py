"""The bookkeeping of scripts/benchmarks/peers.py: scale of the regret, noise, resuming, ranks, intervals, the page."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from peer_study.box import Box
from peer_study.game import Budget, Outcome, noise, play
from peer_study.history import History
from peer_study.methods import METHODS
from peer_study.methods.random_search import Random
from peer_study.records import Record, append, done, read, record_of
from peer_study.report import write_page
from peer_study.statistics import differences, interval, paired, ranks, summary
from peer_study.tables import Table, encode, suzuki, welded_beam
from peers import app
from typer.testing import CliRunner

LINE = Table("line", np.arange(5.0)[:, None], np.array([0.0, 1.0, 2.0, 3.0, 9.0]))


class Fixed:
    """Picks the rows in order, and recommends the last row."""

    def __init__(self) -> None:
        self.rewards: list[float] = []

    def ask(self, count: int) -> np.ndarray:
        return np.arange(len(self.rewards), len(self.rewards) + count) % 5

    def tell(self, index: np.ndarray, rewards: np.ndarray) -> None:
        self.rewards += rewards.tolist()

    def recommend(self) -> int:
        return 4


def test_regret_is_zero_at_the_best_arm_and_one_on_average() -> None:
    assert LINE.regret(np.array([4]))[0] == 0
    assert LINE.regret(np.arange(5)).mean() == pytest.approx(1)
    outcome = play(Fixed(), LINE, Budget(5, 2), seed=0)
    assert (outcome.simple_regret, outcome.mean_regret) == (0, pytest.approx(1))


def test_all_methods_are_told_the_same_noise_in_the_order_of_evaluation() -> None:
    one, batches = Fixed(), Fixed()
    play(one, LINE, Budget(10, 1), seed=3)
    play(batches, LINE, Budget(10, 4), seed=3)
    assert one.rewards == batches.rewards
    errors = np.array(one.rewards) - LINE.values[np.arange(10) % 5]
    np.testing.assert_allclose(errors, noise(LINE, 3, 10))
    assert not np.allclose(errors, noise(LINE, 4, 10))
    assert noise(LINE, 0, 10_000).std() == pytest.approx(0.1 * LINE.values.std(), rel=0.05)


def test_a_method_that_gives_too_few_rows_is_refused() -> None:
    class Short(Fixed):
        def ask(self, count: int) -> np.ndarray:
            return super().ask(count - 1)

    with pytest.raises(ValueError, match=r"asked for 2 rows and gave an array of shape \(1,\)"):
        play(Short(), LINE, Budget(4, 2), seed=0)


def test_the_noiseless_random_search_does_not_repeat_itself() -> None:
    method = Random(LINE, Budget(5, 1), 0)
    for _ in range(5):
        row = method.ask(1)
        method.tell(row, LINE.values[row])
    assert sorted(method.history.index) == [0, 1, 2, 3, 4]
    assert method.recommend() == 4
    again = Random(LINE, Budget(10, 5, repeats=True), 0)
    for _ in range(2):
        rows = again.ask(5)
        assert len(set(rows)) == 5
        again.tell(rows, LINE.values[rows])


def test_equal_rows_are_one_candidate_and_categories_are_blocks() -> None:
    frame = pd.DataFrame({"kind": ["a", "b", "b", "a"], "x": [0.0, 1.0, 1.0, 2.0], "y": [1.0, 2.0, 4.0, 5.0]})
    table = encode("frame", frame, "y")
    assert sorted(table.values) == [1, 3, 5]
    assert table.blocks == ((0, 1),)
    np.testing.assert_allclose(table.points.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(table.points.std(axis=0), 1)


@pytest.mark.parametrize(("load", "shape"), [(suzuki, (13_824, 11)), (welded_beam, (20_000, 4))])
def test_tables_have_the_size_that_is_written(load: object, shape: tuple[int, int]) -> None:
    table = load()
    assert table.points.shape == shape
    assert np.isfinite(table.values).all()


def test_a_box_finds_the_nearest_free_candidate_and_its_parameters() -> None:
    table = suzuki()
    box, history = Box(table), History(len(table.values), repeats=False)
    row = 4321
    assert box.nearest(box.parameters(row), history, []) == row
    history.add(np.array([row]), np.array([0.0]))
    other = box.nearest(box.parameters(row), history, [])
    assert other != row
    assert box.nearest(box.parameters(row), history, [other]) not in (row, other)


def test_runs_are_recorded_once_and_taken_up_where_they_ended(tmp_path: Path) -> None:
    records = tmp_path / "records.csv"
    arguments = ["run", "--methods", "random", "--tables", "suzuki", "--records", str(records)]
    for seeds, lines in (("1", 1), ("3", 3), ("3", 3)):
        result = CliRunner().invoke(app, [*arguments, "--seeds", seeds])
        assert result.exit_code == 0, result.output
        assert len(pd.read_csv(records)) == lines
    assert done(records) == {("random", "suzuki", "small", seed) for seed in range(3)}
    again = CliRunner().invoke(app, [*arguments, "--seeds", "1", "--again"])
    assert again.exit_code == 0
    table = read(records)
    assert len(table) == 3
    assert table["versions"].str.contains(f"numpy=={np.__version__}").all()
    wrong = CliRunner().invoke(app, ["run", "--methods", "none"])
    assert wrong.exit_code == 2


def test_a_run_made_twice_counts_as_last_made(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    for regret in (0.5, 0.25):
        append(path, record_of(("auto", "line", "small", 0), Outcome(regret, 1.0, 2.0, 110), ("numpy",)))
    assert read(path)["simple_regret"].tolist() == [0.25]


def invented(methods: dict[str, float], tables: int = 4, seeds: int = 3) -> pd.DataFrame:
    """Records in which each method has a fixed regret, plus a contribution of table and seed that is the same for all
    methods."""
    generator = np.random.default_rng(0)
    rows = []
    for table in range(tables):
        for seed in range(seeds):
            shared = generator.uniform()
            for method, regret in methods.items():
                own = regret + shared
                rows.append(
                    (method, f"table{table}", "small", seed, own, own + 1, 3.0, 110, "numpy==1", "2026-01-01", "a processor")
                )
    return pd.DataFrame(rows, columns=[field.name for field in fields(Record)])


def test_ranks_share_ties_and_intervals_hold_the_mean() -> None:
    frame = paired(invented({"a": 0.0, "b": 0.5, "c": 0.5}), "small", "simple_regret")
    assert summary(ranks(frame))["mean"].to_dict() == {"a": 1.0, "b": 2.5, "c": 2.5}
    low, high = interval(frame)
    assert ((low < frame.mean()) & (frame.mean() < high)).all()


def test_paired_differences_leave_out_what_table_and_seed_add() -> None:
    frame = paired(invented({"auto": 0.1, "other": 0.4}), "small", "simple_regret")
    row = differences(frame, "auto").loc["other"]
    np.testing.assert_allclose([row["mean"], row["low"], row["high"]], -0.3)


def test_only_runs_that_all_methods_have_are_compared() -> None:
    records = invented({"a": 0.0, "b": 0.5, "c": 1.0})
    records = records[~((records["method"] == "b") & (records["seed"] == 2))]
    records = records[~((records["method"] == "c") & (records["table"] == "table0"))]
    frame = paired(records, "small", "mean_regret")
    assert list(frame.columns) == ["a", "b"]
    assert set(frame.index.get_level_values("seed")) == {0, 1}
    few = pd.concat([invented({"a": 0.0}, seeds=10), invented({"b": 0.5}, seeds=5), invented({"c": 1.0}, seeds=4)])
    assert list(paired(few, "small", "mean_regret").columns) == ["a", "b"], "c has less than half of the seeds"
    apart = records[(records["method"] == "a") == (records["seed"] == 0)]
    with pytest.raises(ValueError, match="share no table and seed"):
        paired(apart[apart["method"] != "c"], "small", "mean_regret")


def test_the_page_shows_ranks_losses_and_what_is_missing(tmp_path: Path) -> None:
    records = invented({"auto": 0.1, "random": 0.4, "smac": 0.0, "baybe": 0.2})
    records = records[~((records["method"] == "baybe") & (records["table"] == "table0"))]
    words = write_page(records, tmp_path / "peers.md").read_text()
    assert (tmp_path / "results" / "peers" / "ranks.png").stat().st_size > 10_000
    assert "lowest mean rank in 0 of the 2 rows; another method is shown to be\nbetter in 2 of them." in words
    apart = (tmp_path / "peers" / "tables.md").read_text()
    assert "| table0 |" in apart
    assert "| welded_beam | 20,000 | 4 |" in apart
    assert "4 tables, 3 seeds each" in words
    assert "`baybe` (9 runs, 3 s each)" in words
    assert "| mean regret | 2.00 | `smac`, 1.00 | `smac` | none |" in words.partition("\n## ")[2].partition("\n## ")[0]
    assert "| `smac` | 1.00 (1.00 to 1.00)" in words
    assert "| `smac` | 0.100 (0.100 to 0.100) | 12 | 4 of 4 |" in words
    assert "| `random` | -0.300 (-0.300 to -0.300) | 12 | 0 of 4 | none |" in words
    assert "| `baybe` | -0.100 (-0.100 to -0.100) | 9 | 0 of 3 | none |" in words, "against it, all runs that both have"


@pytest.mark.exhaustive
def test_a_run_is_stopped_after_its_limit_and_shown_apart(tmp_path: Path) -> None:
    outcome = play(Fixed(), LINE, Budget(8, 2), seed=0, started=5.0, limit=5.0)
    assert outcome.evaluations == 2, "the limit is compared after each batch"
    assert play(Fixed(), LINE, Budget(8, 2), seed=0, limit=1e9).evaluations == 8
    records = invented({"auto": 0.1, "random": 0.4, "smac": 0.0})
    slow = (records["method"] == "smac") & (records["seed"] == 1) & (records["table"] == "table2")
    records = records[(records["method"] != "smac") | slow].copy()
    records.loc[records["method"] == "smac", ["evaluations", "seconds"]] = [40, 700.0]
    words = write_page(records, tmp_path / "peers.md").read_text()
    whole = words.split("### Stopped")[0]
    assert "`smac`" not in whole, "a run that was stopped is not compared"
    own = records[(records["table"] == "table2") & (records["seed"] == 1)].set_index("method")
    cells = [f"{own.loc[m, c]:.3f}" for m in ("smac", "auto") for c in ("simple_regret", "mean_regret")]
    expected = f"| `smac` | table2 | 1 | 40 | 700.0 | {cells[0]} | {cells[1]} | 3.0 | {cells[2]} | {cells[3]} |"
    assert expected in words


def test_every_method_names_the_packages_of_its_records() -> None:
    assert all("numpy" in method.packages for method in METHODS.values())
    assert {"random", "forest_ucb", "forest_ei", "optuna_tpe", "optuna_gp", "botorch", "baybe", "smac", "auto"} <= set(METHODS)
