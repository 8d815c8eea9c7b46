"""Columns of campaigns: types by rule or by option, empty cells and refusals; features are those of plain formulas."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn import preprocessing

import torchbandits as tb
from torchbandits.campaigns.settings import Settings, read_settings
from torchbandits.errors import ArgumentError, StateError
from torchbandits.tabular import survey as surveys
from torchbandits.tabular.columns import decide
from torchbandits.tabular.decisions import Decisions
from torchbandits.tabular.encoding import Encoder, encode, feature_names
from torchbandits.tabular.tables import as_table

N = 40


def table() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "number": rng.normal(50, 10, N),
            "spread": 10 ** rng.uniform(-6, 0, N),
            "count": (10 ** rng.uniform(0, 4, N)).astype(int) * (np.arange(N) > 3),
            "few": rng.integers(0, 5, N),
            "text": rng.choice(["x", "y", "z"], N),
            "yes": np.arange(N) % 2 == 0,
            "day": pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(N), "D"),
            "size": pd.Categorical(rng.choice(["S", "M", "L"], N), categories=["S", "M", "L"], ordered=True),
            "same": 7,
            "none": np.full(N, np.nan),
        }
    )


def decided(frame: Any, **overruled: Any) -> Decisions:
    return decide(as_table("table", frame), {}, overruled)


def features(frame: Any, decisions: Decisions) -> dict[str, np.ndarray]:
    arms = encode(as_table("table", frame), Encoder(decisions), torch.float64, lambda: Path("unused"), torch.device("cpu"))
    assert isinstance(arms, torch.Tensor)
    return dict(zip(feature_names(list(decisions)), arms.numpy().T, strict=True))


def standard(values: Any) -> np.ndarray:
    values = np.asarray(values, float)
    return (values - values.mean()) / values.std()


def test_each_kind_is_found_and_encoded():
    frame = table()
    decisions = decided(frame)
    kinds = {d.column: d.kind for d in decisions}
    assert kinds == {
        "number": "number", "spread": "log", "count": "count", "few": "number", "text": "category", "yes": "boolean",
        "day": "date", "size": "ordered", "same": "ignore", "none": "ignore",
    }  # fmt: skip
    found = features(frame, decisions)
    assert len(found) == decisions.features == 10
    places = frame["size"].cat.codes.to_numpy(float)
    expected = {
        "number": standard(frame["number"]),
        "spread": standard(np.log10(frame["spread"])),
        "count": standard(np.log1p(frame["count"])),
        "few": standard(frame["few"]),
        "yes": frame["yes"].to_numpy(float),
        "day": standard(np.arange(N)),
        "size": places - 1,  # the positions of three categories have mean 1
    }
    for name, values in expected.items():
        scale = found["size"].std() / values.std() if name == "size" else 1.0
        np.testing.assert_allclose(found[name], values * scale, atol=1e-9, err_msg=name)
    for text in "xyz":
        np.testing.assert_array_equal(found[f"text = {text}"], frame["text"] == text)


@pytest.mark.parametrize("empty", [False, True])
def test_categories_are_encoded_as_by_scikit_learn(empty: bool):
    rng = np.random.default_rng(2)
    texts = pd.Series(rng.choice(["b", "a", "äther", "10", "9"], 60), dtype=object)
    sizes = pd.Categorical(rng.choice(["S", "M", "L"], 60), categories=["S", "M", "L"], ordered=True)
    frame = pd.DataFrame({"text": texts, "size": sizes})
    if empty:
        frame.loc[[0, 7], "text"] = None
        frame.loc[[3], "size"] = None
    decisions = decided(frame)
    own = np.column_stack(list(features(frame, decisions).values()))
    text, size = decisions["text"], decisions["size"]
    named = frame.astype(object).where(frame.notna(), "(empty)").to_numpy(object)
    hot = preprocessing.OneHotEncoder(categories=[[*text.categories, *["(empty)"] * empty]], sparse_output=False)
    places = preprocessing.OrdinalEncoder(categories=[[*size.categories, "(empty)"]]).fit_transform(named[:, 1:])
    missing = places == 3
    expected = [hot.fit_transform(named[:, :1]), (np.where(missing, size.fill, places) - size.center) / size.scale]
    np.testing.assert_array_equal(own, np.column_stack([*expected, missing] if empty else expected))


def test_a_category_that_was_not_there_is_named():
    frame = table()[["number", "text"]]
    decisions = decided(frame)
    few = Decisions(tuple(replace(d, categories=("x", "y")) if d.column == "text" else d for d in decisions))
    with pytest.raises(StateError, match=r"has changed .*: column 'text' has unknown categories \['z'\]\."):
        features(frame, few)


def test_a_first_plate_does_not_load_scikit_learn():
    code = (
        "import sys, pandas as pd, torchbandits as tb; "
        "rows = pd.DataFrame({'id': range(40), 'a': [i / 7 for i in range(40)], 'b': ['x', 'y'] * 20}); "
        "plate = tb.Campaign(rows.astype({'id': str}), objective='yield').ask(8); "
        "sys.exit(len(plate) != 8 or 'sklearn' in sys.modules or 'scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_doses_with_a_control_are_taken_by_their_logarithm(tmp_path: Path):
    doses = np.tile([0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1e-16, 50.0], N // 8)
    frame = table()[["number"]].assign(dose=doses)
    decision = decided(frame)["dose"]
    assert (decision.kind, decision.unit) == ("log", 0.01), "1e-16 is a zero with a rounding error"
    assert decision.why == "from 0 to 100: the logarithm of 1 + x / 0.01"
    np.testing.assert_allclose(features(frame, decided(frame))["dose"], standard(np.log1p(doses / 0.01)), atol=1e-9)
    # Numbers within two decades, and many equal ones, stay numbers.
    for other in (np.tile([0.0, 0.5, 1.0, 20.0], N // 4), np.array([0.0] * (N - 1) + [3.0])):
        assert decided(frame.assign(dose=other))["dose"].kind == "number"
        told = decided(frame.assign(dose=other), dose="log")["dose"]
        assert (told.kind, told.unit) == ("log", other[other > 0].min())
    # The unit is saved, and holds for rows that are added.
    rows = frame.assign(id=[f"{i:02}" for i in range(N)])
    c = tb.Campaign(rows, objective="yield", journal=tmp_path / "lab")
    arms = c.bandit.arms.clone()
    c.close()
    again = tb.Campaign(rows, journal=tmp_path / "lab")
    assert torch.equal(again.bandit.arms, arms)
    assert again.extend(rows[:1].assign(id="new", dose=0.001)) == 1
    expected = (np.log1p(0.1) - again.columns["dose"].center) / again.columns["dose"].scale
    assert float(again.bandit.arms[-1, 1]) == pytest.approx(expected)
    with pytest.raises(ArgumentError, match="'dose', which is taken as 'log', has numbers from -1 to -1"):
        again.extend(rows[:1].assign(id="newer", dose=-1.0))


def test_a_campaign_that_began_earlier_keeps_its_doses_as_numbers(tmp_path: Path):
    rows = table()[["number"]].assign(id=[f"{i:02}" for i in range(N)], dose=np.tile([0.0, 0.01, 1.0, 100.0], N // 4))
    c = tb.Campaign(rows, objective="yield", journal=tmp_path / "lab", columns={"dose": "number"})
    arms = c.bandit.arms.clone()
    c.close()
    path = tmp_path / "lab.campaign.json"
    settings = json.loads(path.read_text()) | {"overruled": {}}
    for column in settings["columns"]:
        del column["unit"]
    path.write_text(json.dumps(settings))
    again = tb.Campaign(rows, journal=tmp_path / "lab")
    assert again.columns["dose"].kind == "number"
    assert torch.equal(again.bandit.arms, arms)


def test_empty_cells_count_as_the_median_and_are_marked():
    frame = table()[["number", "text", "size", "yes"]].astype({"yes": "boolean"})
    frame.loc[[2, 5], "number"] = np.nan
    frame.loc[[3], "text"] = None
    frame.loc[[4], "size"] = None
    frame.loc[[6], "yes"] = pd.NA
    decisions = decided(frame)
    assert {d.column: d.missing for d in decisions} == {"number": 2, "text": 1, "size": 1, "yes": 1}
    found = features(frame, decisions)
    assert found["number"][2] == pytest.approx(
        (frame["number"].median() - frame["number"].mean()) / frame["number"].std(ddof=0)
    )
    for name, rows in {"number": [2, 5], "size": [4], "yes": [6]}.items():
        np.testing.assert_array_equal(np.flatnonzero(found[f"{name} is empty"]), rows)
    np.testing.assert_array_equal(np.flatnonzero(found["text = (empty)"]), [3])
    assert found["yes"][6] == 0.5
    assert all(np.isfinite(values).all() for values in found.values())


def test_columns_that_begin_with_empty_cells_keep_their_features(monkeypatch: pytest.MonkeyPatch):
    """The encoder learns the types of the cells from the first row."""
    monkeypatch.setattr("torchbandits.tabular.tables.BATCH", 10)
    frame = table()[["number", "text", "size", "yes", "day"]].astype({"yes": "boolean"})
    frame.loc[:9] = None
    decisions = decided(frame)
    found = features(frame, decisions)
    assert len(found) == decisions.features
    for name, values in features(frame[::-1], decisions).items():
        np.testing.assert_array_equal(values[::-1], found[name])


def test_a_column_with_few_cells_is_described_by_all_of_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(surveys, "SAMPLE", 10)
    frame = table()[["number"]].assign(few=np.nan)
    frame.loc[[1, 2, 6], "few"] = [1.0, 2.0, 6.0]
    decision = decided(frame)["few"]
    assert (decision.fill, decision.center, decision.missing) == (2.0, 3.0, N - 3)
    told = decided(frame.assign(few=np.nan), few="number")["few"]
    assert (told.kind, told.why) == ("ignore", "all cells are empty")


def test_orders_may_be_of_numbers_and_booleans():
    frame = table()[["yes", "few"]]
    sizes = [np.int64(3), 0, 1.0, 4, 2]
    decisions = decided(frame, yes=[False, True], few=sizes)
    assert decisions["yes"].categories == ("false", "true")
    assert decisions["few"].categories == ("3", "0", "1", "4", "2")
    settings = Settings(None, 4, "digest", "yield", False, None, None, "float64", {"few": sizes}, None, decisions.columns)
    assert '"overruled": {' in settings.text()


def test_categories_of_whole_numbers_are_categories():
    frame = table()[["number"]].assign(batch=pd.Categorical(np.arange(N) % 3 + 1))
    found = features(frame, decided(frame))
    np.testing.assert_array_equal(found["batch = 2"], frame["batch"] == 2)


def test_what_was_decided_can_be_overruled():
    frame = table().drop(columns=["same", "none"])
    told = {
        "number": "log",
        "spread": "number",
        "few": "category",
        "text": ["z", "x", "y"],
        "yes": "ignore",
        "count": "ordered",
    }
    decisions = decided(frame, **told)
    assert {d.column: d.kind for d in decisions if d.column in told} == {**told, "text": "ordered"}
    assert all(decisions[name].why == "as told" for name in told)
    found = features(frame, decisions)
    np.testing.assert_allclose(found["number"], standard(np.log10(frame["number"])), atol=1e-9)
    order = frame["text"].map({"z": 0.0, "x": 1.0, "y": 2.0})
    np.testing.assert_allclose(np.diff(np.unique(found["text"])), np.diff(np.unique(order)) / np.std([0, 1, 2]))
    assert [name for name in found if name.startswith("few")] == [f"few = {i}" for i in range(5)]


def test_decisions_survive_being_saved(tmp_path: Path):
    decisions = decided(table())
    settings = Settings(None, 4, "digest", "yield", False, None, None, "float64", {}, None, decisions.columns)
    (tmp_path / "settings").write_text(settings.text())
    assert read_settings(tmp_path / "settings") == settings
    again = read_settings(tmp_path / "settings").decisions
    assert again == decisions
    assert repr(again) == repr(decisions)
    for name, values in features(table()[::-1], again).items():
        np.testing.assert_array_equal(values[::-1], features(table(), decisions)[name])


def test_batches_make_no_difference(monkeypatch: pytest.MonkeyPatch):
    frame = table()
    whole = decided(frame)
    monkeypatch.setattr("torchbandits.tabular.tables.BATCH", 7)
    assert decided(frame) == whole
    monkeypatch.setattr(surveys, "SAMPLE", 10)  # mean and deviation come from every fourth row
    sampled = decided(frame)["number"]
    assert sampled.center == pytest.approx(frame["number"][::4].mean())


def test_a_survey_of_many_columns_is_no_more_than_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Different numbers are written as texts only until there are too many for categories, and the schema is made once."""
    pd.DataFrame({"number": np.linspace(0, 1, 5_000)}).to_parquet(tmp_path / "table.parquet")
    opened = as_table("table", tmp_path / "table.parquet")
    assert opened.schema is opened.schema
    written: list[int] = []
    as_texts = surveys.as_texts
    monkeypatch.setattr(surveys, "as_texts", lambda cells: (written.append(len(cells)), as_texts(cells))[1])
    assert surveys.survey(opened, ["number"])["number"].too_many
    assert max(written) <= surveys.MOST_CATEGORIES + 3


@pytest.mark.parametrize(
    ("column", "values", "told", "words"),
    [
        ("smiles", [f"C{i}" for i in range(N)], None, "holds text (40 different ones, such as 'C0')"),
        ("conc", ["n.d." if i == 3 else str(i) for i in range(N)], None, "holds 'n.d.' in row 3, which is not a number"),
        ("conc", [str(i) for i in range(N)], None, "holds its numbers as texts, such as '0' in row 0: convert them, as by"),
        ("x", [np.inf if i == 2 else i for i in range(N)], None, "is infinite in row 2"),
        ("x", [[1.0, 2.0]] * N, None, "holds list<"),
        ("x", range(-1, N - 1), "log", "can't be 'log', since its least value is -1: use 'number'"),
        ("x", range(N), "log", "its least value is 0: use 'count'"),
        ("x", [1e200 * (i == 3) for i in range(N)], None, "column 'x' holds 1e+200"),
        ("x", range(N), "boolean", "can't be boolean, since its values go from 0 to 39"),
        ("x", range(N), "date", "holds no dates, but int64"),
        (
            "day",
            [f"{i % 30 + 1:02}.{i % 12 + 1:02}.2026" for i in range(N)],
            None,
            "Dates are written like 2026-08-31 in a file",
        ),
        ("x", range(N), "numbr", "Did you mean 'number'?"),
        ("x", range(N), 3, "must be one of number"),
        ("x", list("ab") * (N // 2), "number", "holds 'a' in row 0"),
        ("x", list("ab") * (N // 2), "ordered", "give the order of the texts of 'x'"),
        ("x", list("ab") * (N // 2), ["a", "c"], "the order of 'x' lacks 'b'"),
        ("x", list("ab") * (N // 2), ["a", "b", "a"], "names a category twice"),
        ("x", ["a", "(empty)", None, "a"] * (N // 4), None, "has a category '(empty)', which is the name for empty cells"),
        ("x", ["a", "(empty)"] * (N // 2), ["(empty)", "a"], "leave these cells empty, or write another text"),
        ("y", range(N), "ignore", "has no column 'z'"),
    ],
)
def test_what_can_not_be_taken_is_refused_with_what_to_do(column: str, values: Any, told: Any, words: str):
    frame = table()[["number"]].assign(**{column: pd.Series(list(values))})
    with pytest.raises(ArgumentError) as error:
        decided(frame, **({} if told is None else {"z" if column == "y" else column: told}))
    assert words in str(error.value)
    assert column in str(error.value) or column == "y"


def test_all_that_is_wrong_is_said_at_once():
    frame = table()[["number"]].assign(a=[f"a{i}" for i in range(N)], b=[f"b{i}" for i in range(N)])
    with pytest.raises(ArgumentError, match=r"column 'a' holds text.*column 'b' holds text") as error:
        decided(frame)
    assert "(columns={'a': 'ignore', 'b': 'ignore'}, --column a=ignore --column b=ignore)" in str(error.value)
    assert len(str(error.value)) < 450, "what to do is said once, and the line on the terminal holds it"


def test_too_many_categories_are_refused_with_what_to_do():
    many = pd.DataFrame({"number": range(1_100), "tail": [f"N{i}" for i in range(1_100)]})
    with pytest.raises(
        ArgumentError, match=r"too many for categories\. Leave it out \(columns={'tail': 'ignore'}, --column tail="
    ):
        decided(many, tail="category")


def test_numbers_that_are_texts_are_said_to_be():
    for cells in ([f"{i}%" for i in range(N)], [f"1,{100 + i}.5" for i in range(N)], [f"{i} °C" for i in range(N)]):
        with pytest.raises(ArgumentError, match="Numbers are written without units and separators of thousands"):
            decided(table()[["number"]].assign(a=cells))
    with pytest.raises(
        ArgumentError, match=r"Decimal commas are read where semicolons or tabs separate the cells\. In a workbook"
    ):
        decided(table()[["number"]].assign(a=[f"{i},5" for i in range(N)]))
    found = decided(table()[["number"]].assign(a=["5 %", "10 %"] * (N // 2), code=["1A", "2B"] * (N // 2)))
    assert (found["a"].kind, found["a"].why) == (
        "category",
        "2 different texts: write '10 %' without the unit to use their order",
    )
    assert found["code"].why == "2 different texts"


def test_a_row_of_units_is_named_once():
    def cells(unit: str) -> list[str]:
        return [unit, *(str(i) for i in range(1, N))]

    with pytest.raises(ArgumentError) as error:
        decided(table()[["number"]].assign(a=cells("mg"), b=cells("°C"), c=[f"c{i}" for i in range(N)]))
    said = str(error.value)
    assert said.startswith("row 0 holds texts above numbers, 'mg' in column 'a', '°C' in column 'b': if they are units, or")
    assert "column 'c' holds text" in said
    assert said.count("delete the row") == 1
    with pytest.raises(ArgumentError, match="which is not a number: if it is a unit, delete its row; otherwise correct it"):
        decided(table()[["number"]].assign(a=cells("mg")))


@pytest.mark.parametrize("slip", ["#DIV/0!", "4O", "20 °C"])
def test_a_slip_among_few_different_numbers_makes_no_categories_of_them(slip: str):
    cells = [slip if i == 7 else str(20 + 10 * (i % 4)) for i in range(N)]
    with pytest.raises(ArgumentError, match=f"column 'temp' holds '{slip}' in row 7, which is not a number: correct it"):
        decided(table()[["number"]].assign(temp=cells))
    assert decided(table()[["number"]].assign(temp=cells), temp="category")["temp"].kind == "category"
    few = decided(table()[["number"]].assign(temp=["none", "none", "5"] * (N // 3) + ["10"] * (N % 3)))["temp"]
    assert few.kind == "category", "mostly texts"
    third = decided(table()[["number"]].assign(lot=["07", "7", "x", "8"] * (N // 4)))["lot"]
    assert third.kind == "category", "too many for slips"


@pytest.mark.parametrize("different", [4, 28])
def test_a_slip_among_dates_is_named(different: int):
    cells = ["3.8.2026" if i == 7 else f"2026-08-{1 + i % different:02}" for i in range(N)]
    with pytest.raises(ArgumentError, match=r"column 'day' holds '3.8.2026' in row 7, which is not a date in the form"):
        decided(table()[["number"]].assign(day=cells))
    assert decided(table()[["number"]].assign(day=cells), day="category")["day"].kind == "category"


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["01.08.2026", "2.8.2026"], ": write '01.08.2026' in the form 2026-08-31 to use their order"),
        (["8/1/2026", "8/2/2026"], ": write '8/1/2026' in the form 2026-08-31 to use their order"),
        (["20,5", "30"], ": write '20,5' with a decimal point to use their order"),
        (["20", "30"], ": write '20' as a number, not as a text, to use their order"),
        (["water", "water "], "; 'water' and 'water ' are two: write them alike if they are the same"),
        (
            ["Ethyl acetate", "ethyl acetate"],
            "; 'Ethyl acetate' and 'ethyl acetate' are two: write them alike if they are the same",
        ),
        (["Co", "CO"], ""),
        (["1A", "2B"], ""),
    ],
)
def test_why_categories_may_not_be_what_was_meant(cells: list[str], words: str):
    found = decided(table()[["number"]].assign(a=cells * (N // 2)))["a"]
    assert (found.kind, found.why) == ("category", f"2 different texts{words}")


def test_texts_that_may_name_the_rows_are_offered_as_ids():
    names = [f"F{i:02}" for i in range(N)]
    frame = table()[["number"]].assign(
        name=names, other=[f"{name}b" for name in names], twice=[f"T{max(1, i)}" for i in range(N)]
    )
    with pytest.raises(ArgumentError, match=r"they are the ids: id='name' \(--id name\)\.$"):
        decided(frame)
    for columns in (["number", "twice"], ["number", "name"]):
        roles = {"name": "id"} if "name" in columns else {}
        told = frame[columns].assign(twice=frame["twice"])
        with pytest.raises(ArgumentError, match="column 'twice' holds text") as error:
            decide(as_table("table", told), roles, {})
        assert "they are the ids" not in str(error.value)


def test_a_category_that_was_not_there_is_refused():
    decisions = decided(table())
    for changed in ({"text": "w"}, {"number": "w"}):
        with pytest.raises(StateError, match="has changed since the types of its columns were chosen"):
            features(table().assign(**changed), decisions)


@pytest.mark.parametrize("size", [1e-100, 1e-200, 1e-310])
def test_numbers_whose_squares_underflow_are_features_like_others(size: float):
    x = np.random.default_rng(0).uniform(size=30)
    found = [features(frame, decided(frame))["u"] for frame in (pd.DataFrame({"u": u * x}) for u in (1.0, size))]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9)


def test_large_numbers_that_floats_do_not_tell_apart_are_said():
    frame = table()[["number"]].assign(stamp=np.arange(N) % 2 + 2**60)
    assert decided(frame)["stamp"].why == "all cells are equal in double precision: subtract a constant from them"


def test_rounding_errors_are_no_feature():
    rng = np.random.default_rng(0)
    parts = rng.dirichlet(np.ones(5), N)
    total = parts.sum(axis=1)
    assert 1 < len(set(total)) < 10
    frame = table()[["number"]].assign(total=total, far=1e6 + 1e-6 * rng.normal(size=N), stamp=np.arange(N) + 2**52)
    found = decided(frame)
    assert (found["total"].kind, found["total"].why) == ("ignore", "all cells are equal up to rounding errors")
    assert [found[name].kind for name in ("far", "stamp")] == ["number", "number"]
    assert decided(frame, total="number")["total"].kind == "number"
    assert decided(frame.assign(total=np.where(np.arange(N) == 3, np.nan, total)))["total"].kind == "number"


def test_types_that_other_libraries_use():
    frame = table()[["number", "text"]]
    arrow = pa.table(
        {
            "number": pa.array(frame["number"].astype("float32")),
            "text": pa.array(frame["text"], pa.large_string()),
            "dict": pa.array(frame["text"]).dictionary_encode(),
            "date": pa.array([18_000 + i for i in range(N)], pa.int32()).cast(pa.date32()),
            "decimal": pa.array([i / 4 for i in range(N)]).cast(pa.decimal128(8, 3)),
            "wait": pa.array(range(N), pa.duration("s")),
        }
    )
    assert [d.kind for d in decided(arrow)] == ["number", "category", "category", "date", "number", "number"]
    found = features(arrow, decided(arrow))
    np.testing.assert_allclose(found["decimal"], standard(range(N)))
    np.testing.assert_array_equal(found["dict = x"], found["text = x"])
    views = arrow.set_column(1, "text", arrow["text"].cast(pa.string()).cast(pa.string_view()))  # as Polars exports texts
    np.testing.assert_array_equal(features(views, decided(views))["text = x"], found["text = x"])
    # Polars exports its Categorical and its Enum as dictionaries of views, the latter in an order.
    coded = arrow["text"].cast(pa.string()).combine_chunks().dictionary_encode()
    for ordered, kind in ((False, "category"), (True, "ordered")):
        parts = pa.DictionaryArray.from_arrays(coded.indices, coded.dictionary.cast(pa.string_view()), ordered=ordered)
        own = arrow.set_column(1, "text", pa.chunked_array([parts.slice(0, 7), parts.slice(7)]))
        assert decided(own)["text"].kind == kind
        place = coded.indices.to_numpy()
        expected = standard(range(place.max() + 1))[place] if ordered else found["text = x"]
        np.testing.assert_allclose(features(own, decided(own))["text" if ordered else "text = x"], expected)


def test_times_of_day_are_refused_in_words():
    clock = pa.array((np.arange(N) * 60).tolist(), pa.time32("s"))
    with pytest.raises(
        ArgumentError, match=r"column 'start' holds times of day: write hours as numbers, such as 10\.5 for 10:30"
    ):
        decided(pa.table({"x": np.arange(N), "start": clock}))


def mixture(total: float = 1.0, seed: int = 0) -> pd.DataFrame:
    """Three parts, two additives that spread over decades, and a temperature and a pressure."""
    rng = np.random.default_rng(seed)
    additives = 10 ** rng.uniform(-4, -1.5, (300, 2))
    parts = rng.dirichlet([0.3] * 3, 300) * (1 - additives.sum(axis=1, keepdims=True))
    frame = pd.DataFrame(np.hstack([parts, additives]) * total, columns=["a", "b", "c", "salt", "dye"])
    return frame.assign(temperature=rng.uniform(20, 90, 300), pressure=10 ** rng.uniform(0, 5, 300))


@pytest.mark.parametrize("total", [1.0, 100.0, 250.0])
def test_parts_of_a_mixture_stay_numbers_and_additives_do_not(total: float):
    found = decided(mixture(total))
    assert [d.kind for d in found] == ["number"] * 3 + ["log"] * 2 + ["number", "log"]
    assert found["a"].why == f"a part of {total:g}, to which 5 columns add up"
    values = features(mixture(total), found)
    np.testing.assert_allclose(values["a"], standard(mixture(total)["a"]), atol=1e-12)
    # Without one of its parts it is no whole.
    assert [d.kind for d in decided(mixture(total).drop(columns="b"))][:2] == ["log"] * 2
    assert decided(mixture(total), a="log")["a"].kind == "log"


def test_rounded_parts_add_up_too():
    rng = np.random.default_rng(0)
    percent = pd.DataFrame(rng.dirichlet([0.3] * 4, 300) * 1000, columns=list("abcd")).round().astype(int)
    assert {d.kind for d in decided(percent)} == {"number"}
    assert {d.kind for d in decided(percent.drop(columns="d"))} == {"count"}


def test_positive_columns_are_no_parts_by_chance():
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(10 ** rng.uniform(-4, 0, (300, 5)), columns=list("abcde"))
    assert {d.kind for d in decided(wide)} == {"log"}
    # As many columns as rows add up to anything.
    square = pd.DataFrame(10 ** rng.uniform(-4, 0, (30, 20)), columns=[f"x{j}" for j in range(20)])
    assert {d.kind for d in decided(square)} == {"log"}
    # A mixture with an empty cell is not seen through, and decided as before.
    holes = mixture()
    holes.loc[3, "a"] = np.nan
    assert [d.kind for d in decided(holes)][:2] == ["log"] * 2
