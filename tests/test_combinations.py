"""Tables of candidates from the values of each parameter."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from test_campaign_cli import refused, run

import torchbandits as tb
from torchbandits.campaigns.combining import parameter
from torchbandits.errors import ArgumentError, ConfigError

PARAMETERS: dict[str, Any] = {"solvent": ["water", "DMF"], "temperature": range(20, 60, 10), "dry": [True, False]}


def every(parameters: dict[str, Any]) -> pd.DataFrame:
    found = pd.DataFrame(itertools.product(*parameters.values()), columns=list(parameters))
    found.insert(0, "id", np.arange(1, len(found) + 1))
    return found


def test_all_combinations_in_order():
    pd.testing.assert_frame_equal(tb.combinations(PARAMETERS), every(PARAMETERS), check_dtype=False)


def test_values_may_be_arrays_series_and_tensors():
    given = {"a": np.array([0.5, 1.0]), "b": torch.arange(3), "c": pd.Series(["x", "y"]), "d": {1, 2}}
    plain = {"a": [0.5, 1.0], "b": [0, 1, 2], "c": ["x", "y"], "d": [1, 2]}
    pd.testing.assert_frame_equal(tb.combinations(given), every(plain), check_dtype=False)


def test_a_condition_keeps_the_ids(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.campaigns.combining._BLOCK", 3)
    whole = every(PARAMETERS)
    for where, kept in (
        ("temperature < 40 or solvent != 'water'", (whole["temperature"] < 40) | (whole["solvent"] != "water")),
        ("dry", whole["dry"]),
        ({"solvent": "DMF", "temperature": [20, 50]}, (whole["solvent"] == "DMF") & whole["temperature"].isin([20, 50])),
    ):
        found = tb.combinations(PARAMETERS, where=where)
        pd.testing.assert_frame_equal(found, whole[kept].reset_index(drop=True), check_dtype=False)


def test_parts_add_up():
    parts = tb.combinations({name: range(0, 101, 20) for name in "abc"}, where="a + b + c == 100")
    assert len(parts) == 21
    assert (parts[["a", "b", "c"]].sum(axis=1) == 100).all()


@pytest.mark.parametrize("parts", [10, 20, 40])
def test_fractions_add_up_to_one_as_percentages_do_to_a_hundred(parts: int):
    """In binary fractions 0.1 + 0.2 + 0.7 is not 1: rows were left out."""
    whole = tb.combinations({name: range(parts + 1) for name in "abc"}, where=f"a + b + c == {parts}")
    fractions = {name: [i / parts for i in range(parts + 1)] for name in "abc"}
    assert tb.combinations(fractions, where="a + b + c == 1")["id"].tolist() == whole["id"].tolist()
    assert tb.combinations(fractions, where="1 - a - b - c == 0")["id"].tolist() == whole["id"].tolist()
    assert tb.combinations(fractions, where="a >= 0 and 1 <= a + b + c <= 1")["id"].tolist() == whole["id"].tolist()
    for op, other in (("<=", ">"), (">=", "<"), ("!=", "==")):
        mine = tb.combinations(fractions, where=f"a + b {op} 2 * c")["id"].tolist()
        assert mine == tb.combinations(dict.fromkeys("abc", range(parts + 1)), where=f"a + b {op} 2 * c")["id"].tolist()
        assert len(mine) + len(tb.combinations(fractions, where=f"a + b {other} 2 * c")) == (parts + 1) ** 3


def test_only_computed_fractions_are_compared_up_to_rounding():
    large = {"a": [10**15, 10**15 + 1], "b": [0, 1]}
    assert tb.combinations(large, where="a + b == 1000000000000001")["id"].tolist() == [2, 3]
    assert tb.combinations({"a": [0.3, 0.1 + 0.2]}, where="a == 0.3")["id"].tolist() == [1]
    assert tb.combinations({"a": [1.0, -1.0], "b": [0.0, 2.0]}, where="a / b <= 5")["id"].tolist() == [2, 3, 4]
    assert tb.combinations({"a": [1.0, 2.0], "b": ["x", "y"]}, where="a * 2 > 2 and b == 'x'")["id"].tolist() == [3]


@pytest.mark.parametrize("where", [None, "temperature > 20"])
def test_drawn_rows_are_rows_of_the_whole(where: str | None):
    whole = tb.combinations(PARAMETERS, where=where)
    found = tb.combinations(PARAMETERS, where=where, count=5, seed=1)
    assert len(found) == 5
    assert found["id"].is_monotonic_increasing
    pd.testing.assert_frame_equal(found, whole[whole["id"].isin(found["id"])].reset_index(drop=True))
    assert found["id"].tolist() == tb.combinations(PARAMETERS, where=where, count=5, seed=1)["id"].tolist()
    assert any(found["id"].tolist() != tb.combinations(PARAMETERS, where=where, count=5, seed=s)["id"].tolist() for s in (2, 3))
    assert len(tb.combinations(PARAMETERS, where=where, count=100)) == len(whole)


def test_few_of_very_many_combinations(monkeypatch: pytest.MonkeyPatch):
    many = {f"p{j}": range(1000) for j in range(6)}
    found = tb.combinations(many, count=1000)
    assert len(found) == found["id"].nunique() == 1000
    columns = found.drop(columns="id").to_numpy()
    assert ((columns * 1000 ** np.arange(5, -1, -1)).sum(axis=1) == found["id"] - 1).all()
    assert 450 < columns.mean() < 550
    half = tb.combinations(many, where="p0 + p1 < 1000", count=1000)
    assert len(half) == half["id"].nunique() == 1000
    assert (half["p0"] + half["p1"] < 1000).all()
    # All of them are equally probable, not those of small numbers.
    assert 300 < half["p0"].mean() < 370
    monkeypatch.setattr("torchbandits.campaigns.combining._COMPARED", 1 << 17)
    with pytest.raises(
        ArgumentError, match=r"where: of 131,072 combinations drawn at random \d+ fulfil the condition, and 100 "
    ):
        tb.combinations(many, where="p0 == 0 and p1 < 5", count=100)
    with pytest.raises(ArgumentError, match="too many to compare all with where=: give a count"):
        tb.combinations(many, where="p0 == 0")
    with pytest.raises(ArgumentError, match=r"1,000,000,000,000,000,000 combinations are too many for a table"):
        tb.combinations(many)
    with pytest.raises(ArgumentError, match="more combinations than 64 bits can number"):
        tb.combinations(many | {"p6": range(1000), **{f"q{j}": range(1000) for j in range(200)}}, count=3)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_wrong_parameters_are_named():
    for wrong, message in (
        ({}, "must be a dictionary of names"),
        ({"": [1]}, "must be a dictionary of names"),
        ({"id": [1, 2]}, "'id' is the name of the column of ids"),
        ({"a": "water"}, "'a' must have a list of values, got 'water'"),
        ({"a": 3}, "'a' must have a list of values, got 3"),
        ({"a": []}, "'a' has no value"),
        ({"a": [1, 2, 1]}, "'a' has the value 1 more than once"),
        ({"a": [1, "x"]}, "the values of 'a' must be all numbers, or all texts"),
    ):
        with pytest.raises(ArgumentError, match=message):
            tb.combinations(wrong)
    with pytest.raises(ArgumentError, match="where: no combination fulfils 'temperature > 100'"):
        tb.combinations(PARAMETERS, where="temperature > 100")
    with pytest.raises(ArgumentError, match=r"where: .* has no column 'temp'"):
        tb.combinations(PARAMETERS, where="temp > 100")


def test_texts_of_parameters():
    for text, name, values in (
        ("solvent=water, DMF,H2O", "solvent", ["water", "DMF", "H2O"]),
        ("t=20..40:5", "t", [20, 25, 30, 35, 40]),
        ("t = 20..40:7", "t", [20, 27, 34]),
        ("x=0..0.3:0.1", "x", [0.0, 0.1, 0.2, 0.3]),
        ("x=-1..1:.5", "x", [-1.0, -0.5, 0.0, 0.5, 1.0]),
        ("conc=1e-3..1:x10", "conc", [0.001, 0.01, 0.1, 1.0]),
        ("size=1..100:x10", "size", [1, 10, 100]),
        ("n=1,2,8", "n", [1, 2, 8]),
        ("n=1,2.5", "n", [1.0, 2.5]),
        ("dry=true,False", "dry", [True, False]),
        ("code=007,A1", "code", ["007", "A1"]),
    ):
        found = parameter(text)
        assert found == (name, values)
        assert [type(value) for value in found[1]] == [type(value) for value in values]
    for text, message in (
        ("water,DMF", "a parameter is NAME=VALUES"),
        ("solvent=", "a parameter is NAME=VALUES"),
        ("=1,2", "a parameter is NAME=VALUES"),
        ("t=20..120", "a range is LOW..HIGH:STEP, such as t=20..120:10"),
        ("t=120..20:10", "needs LOW ≤ HIGH and a STEP above 0"),
        ("t=20..120:0", "needs LOW ≤ HIGH and a STEP above 0"),
        ("t=0..1:x10", "needs LOW ≤ HIGH and LOW above 0 and a factor above 1"),
        ("t=0..1:1e-9", "the range has 1,000,000,001 values"),
        ("t=1,,2", "a value is empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            parameter(text)


def test_a_campaign_from_ranges_without_a_spreadsheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    given = ("solvent=water,DMF", "temperature=20..50:10", "dry=true,false")
    assert run("combinations", *given).splitlines()[0] == "id,solvent,temperature,dry"
    for name in ("candidates.csv", "candidates.parquet", "candidates.xlsx"):
        assert f"12 rows: {name}" in run("combinations", *given, "--where", "temperature > 20", "--output", name)
    frame = pd.read_parquet("candidates.parquet")
    pd.testing.assert_frame_equal(frame, pd.read_csv("candidates.csv"), check_dtype=False)
    assert len(run("combinations", *given, "-n", "5").splitlines()) == 6
    run("new", "candidates.csv", "--objective", "yield")
    assert len(run("ask", "-n", "4").splitlines()) == 5
    assert "'dry' is given twice" in refused("combinations", *given, "dry=true")
    assert "a range is LOW..HIGH:STEP" in refused("combinations", "t=1..2")
    # Combinations drawn with another seed have ids of their own.
    later = run("combinations", *given, "--where", "temperature == 20")
    Path("later.csv").write_text(later)
    assert "4 rows added" in run("extend", "later.csv")
