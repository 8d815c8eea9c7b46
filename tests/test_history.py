"""The record of a run against plain Python lists."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch

import torchbandits as tb
from torchbandits import history as history_module
from torchbandits.errors import ArgumentError, DataError, ShapeError
from torchbandits.history import History
from torchbandits.types import Report


def make_report(rows, value=1.0):
    number = torch.full((rows,), value, dtype=torch.float64)
    count = torch.full((rows,), int(value))
    return Report(count, count, count, count + 1, number, number / 2, number / 4, 0 * count)


def record(history, index, seed=0, seconds=0.5, value=1.0):
    index = torch.tensor(index)
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.rand(index.shape, generator=generator, dtype=torch.float64).masked_fill(index < 0, torch.nan)
    rows = index.shape[0]
    history.record(
        index=index,
        rewards=rewards,
        regret=1 - rewards,
        report=make_report(rows, value),
        recommended=torch.arange(rows),
        simple_regret=torch.full((rows,), 0.25),
        seconds=seconds,
    )
    return rewards


def test_pulls_and_batches_count_within_their_row():
    history = History(2)
    first = record(history, [[3, 1, -1], [2, -1, 2]], seed=1)
    second = record(history, [[-1, -1], [-1, 7]], seed=2)
    pulls, batches = history.pulls, history.batches
    assert pulls["row"].tolist() == [0, 0, 1, 1, 1]
    assert pulls["t"].tolist() == [1, 2, 1, 2, 3]
    assert pulls["batch"].tolist() == [1, 1, 1, 1, 2]
    assert pulls["arm"].tolist() == [3, 1, 2, 2, 7]
    expected = [first[0, 0], first[0, 1], first[1, 0], first[1, 2], second[1, 1]]
    np.testing.assert_array_equal(pulls["reward"], torch.stack(expected).numpy())
    np.testing.assert_array_equal(pulls["regret"], 1 - pulls["reward"])
    assert batches["row"].tolist() == [0, 1, 1], "a row without a pick adds no batch"
    assert batches["batch"].tolist() == [1, 1, 2]
    assert batches["t"].tolist() == [2, 2, 3]
    assert batches["size"].tolist() == [2, 2, 1]
    assert batches["dictionary_size"].tolist() == [2, 2, 2]
    assert batches["recommended"].tolist() == [0, 1, 1]
    assert len(history) == 5
    assert history.num_pulls.tolist() == [2, 3]
    np.testing.assert_allclose(history.cumulative_regret(1), np.cumsum(pulls["regret"][2:]))


def test_columns_grow_past_their_first_buffer_and_keep_everything():
    history = History()
    arms = list(range(1000))
    for arm in arms:
        record(history, [[arm]], seed=arm)
    record(history, [list(range(5000))])
    assert history.pulls["arm"].tolist() == arms + list(range(5000))
    assert history.pulls["t"].tolist() == list(range(1, 6001))
    assert history.batches["size"].tolist() == [1] * 1000 + [5000]


def test_columns_are_read_only_and_older_views_do_not_change():
    history = History()
    record(history, [[4]])
    before = history.pulls
    with pytest.raises(ValueError, match="read-only"):
        before["arm"][0] = 9
    record(history, [[5]])
    assert before["arm"].tolist() == [4]


def test_summary_and_row():
    history = History(2, {"policy": "a"})
    record(history, [[3, 1], [2, -1]], seconds=0.5)
    record(history, [[-1], [8]], seconds=0.25)
    summary = history.summary(1)
    assert summary["pulls"] == 2
    assert summary["batches"] == 2
    assert summary["seconds"] == 0.75
    assert summary["simple_regret"] == 0.25
    assert summary["regret"] == history.cumulative_regret(1)[-1]
    single = history.row(1)
    assert single.summary() == summary
    assert single.metadata == {"policy": "a"}
    assert single.pulls["row"].tolist() == [0, 0]
    record(single, [[5]])
    assert single.pulls["t"].tolist() == [1, 2, 3]
    assert len(history) == 4


@pytest.mark.parametrize("index", [torch.tensor([[1.5]]), torch.zeros(0, 1, 1, dtype=torch.int64)])
def test_an_index_of_fractions_and_one_of_no_steps_are_refused(index):
    history, none = History(), torch.zeros(len(index), 1)
    with pytest.raises(ShapeError, match="index must be"):
        history.record(
            index=index,
            rewards=torch.zeros(index.shape),
            regret=torch.zeros(index.shape),
            report=make_report(len(index)),
            recommended=none.long(),
            simple_regret=none,
            seconds=0.5,
        )
    assert len(history) == 0


def test_an_empty_history_has_a_summary():
    summary = History().summary()
    assert summary["pulls"] == summary["batches"] == summary["regret"] == summary["seconds"] == 0
    assert math.isnan(summary["simple_regret"])
    assert History().cumulative_regret().tolist() == []


def test_unknown_regret_stays_unknown():
    history = History()
    index = torch.tensor([[0, 1]])
    nan = torch.full((1, 2), torch.nan)
    history.record(
        index=index,
        rewards=torch.zeros(1, 2),
        regret=nan,
        report=make_report(1),
        recommended=torch.tensor([0]),
        simple_regret=nan[:, 0],
        seconds=0.0,
    )
    assert np.isnan(history.cumulative_regret()).all()


def test_parquet_round_trip_is_equal_and_recording_goes_on(tmp_path):
    history = History(2, {"policy": "batch_bkb", "options": {"delta": 1e-4}})
    record(history, [[3, 1, -1], [2, -1, 2]])
    record(history, [[-1, -1], [-1, 7]])
    history.to_parquet(tmp_path / "deep" / "folder")
    again = History.from_parquet(tmp_path / "deep" / "folder")
    assert again == history
    for name, values in history.pulls.items():
        assert again.pulls[name].dtype == values.dtype
    record(history, [[1], [2]])
    assert again != history
    record(again, [[1], [2]])
    assert again == history
    assert again != "history"
    assert sorted(p.name for p in (tmp_path / "deep" / "folder").iterdir()) == ["batches.parquet", "pulls.parquet"]


def test_writing_again_replaces_and_failing_keeps_what_was_there(tmp_path, monkeypatch):
    history = History()
    record(history, [[3]])
    history.to_parquet(tmp_path)
    longer = History()
    record(longer, [[3]])
    record(longer, [[4]])

    def fail(source, target):
        raise PermissionError(13, "no", str(target))

    with monkeypatch.context() as patch:
        patch.setattr(history_module.os, "replace", fail)
        with pytest.raises(DataError, match="can't be written"):
            longer.to_parquet(tmp_path)
    assert History.from_parquet(tmp_path) == history
    assert len(list(tmp_path.iterdir())) == 2, "no temporary file is left"
    longer.to_parquet(tmp_path)
    assert History.from_parquet(tmp_path) == longer


def test_two_files_of_different_runs_are_refused(tmp_path):
    for name, arms in (("a", [[1]]), ("b", [[1, 2]])):
        history = History()
        record(history, arms)
        history.to_parquet(tmp_path / name)
    (tmp_path / "a" / "pulls.parquet").replace(tmp_path / "b" / "pulls.parquet")
    with pytest.raises(DataError, match="not of the same run"):
        History.from_parquet(tmp_path / "b")


def test_folders_without_a_history_are_refused(tmp_path):
    with pytest.raises(DataError, match="does not hold a history"):
        History.from_parquet(tmp_path)
    for name in ("pulls.parquet", "batches.parquet"):
        (tmp_path / name).write_text("not parquet")
    with pytest.raises(DataError, match="does not hold a history"):
        History.from_parquet(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="can't be written"):
        History().to_parquet(tmp_path / "file")


def test_without_pyarrow_the_message_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"torchbandits\[experiments\]"):
        History().to_parquet(tmp_path)
    with pytest.raises(DataError, match=r"torchbandits\[experiments\]"):
        History.from_parquet(tmp_path)


def test_metadata_that_is_not_json_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="JSON"):
        History(metadata={"kernel": object()}).to_parquet(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("index", torch.zeros(3, 2, dtype=torch.int64), "rows x q with 2 rows"),
        ("index", torch.zeros(2, dtype=torch.int64), "rows x q with 2 rows"),
        ("rewards", torch.zeros(2, 3), "shaped like index"),
        ("regret", torch.zeros(2), "shaped like index"),
        ("recommended", torch.zeros(3, dtype=torch.int64), "one number per row"),
        ("simple_regret", torch.zeros(1), "one number per row"),
    ],
)
def test_wrong_shapes_are_refused_and_nothing_is_recorded(field, value, message):
    history = History(2)
    good = {
        "index": torch.zeros(2, 2, dtype=torch.int64),
        "rewards": torch.zeros(2, 2),
        "regret": torch.zeros(2, 2),
        "report": make_report(2),
        "recommended": torch.zeros(2, dtype=torch.int64),
        "simple_regret": torch.zeros(2),
        "seconds": 0.0,
    }
    with pytest.raises(ShapeError, match=message):
        history.record(**good | {field: value})
    assert len(history) == 0
    assert history.num_pulls.tolist() == [0, 0]
    assert repr(history) == "History(rows=2, pulls=0, batches=0)"


@pytest.mark.parametrize("call", ["summary", "cumulative_regret", "best"])
def test_a_history_of_several_rows_is_told_which(call):
    history = History(2)
    record(history, [[0, 1], [2, 3]])
    with pytest.raises(ArgumentError, match=r"the history has 2 rows, each a run of its own: pass row=, from 0 to 1\."):
        getattr(history, call)()
    single = history.row(1)
    np.testing.assert_equal(getattr(single, call)(), getattr(history, call)(1))
    history.metadata["outcomes"] = ["yield", "cost"]  # two rows of one run
    np.testing.assert_equal(getattr(history, call)(), getattr(history, call)(0))


def test_rows_outside_are_refused():
    with pytest.raises(ArgumentError, match="whole number"):
        History(0)
    with pytest.raises(ArgumentError, match="from 0 to 1"):
        History(2).summary(2)


def test_the_clock_of_a_run_is_the_one_given():
    ticks = itertools.count(step=2.0)
    environment = tb.environments.rkhs(dim=1, points_per_dim=10, generator=torch.Generator().manual_seed(0))
    history = tb.run(tb.uniform(), environment, 5, clock=lambda: next(ticks))
    assert history.batches["seconds"].tolist() == [4.0] * 5  # two for the ask, two for the tell
