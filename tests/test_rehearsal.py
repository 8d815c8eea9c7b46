"""Rehearsals: campaigns on tables whose results are known, beside random rows."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import torchbandits as tb
from torchbandits.campaigns import rehearsal
from torchbandits.cli import app
from torchbandits.errors import ArgumentError


def table(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """Rows whose yield follows the temperature, and a column that tells nothing."""
    rng = np.random.default_rng(seed)
    found = pd.DataFrame({"id": [f"r{row}" for row in range(rows)], "temperature": rng.uniform(20, 100, rows)})
    return found.assign(other=rng.random(rows), **{"yield": 90 - (found["temperature"] - 70) ** 2 / 30})


def expected_best(values: np.ndarray, count: int) -> float:
    """Mean of the largest of `count` values drawn without replacement."""
    values, kept = np.sort(values), 1.0
    total = 0.0
    # The largest of all is drawn with probability count / A, and else the largest of the others is looked at.
    for left in range(len(values), count - 1, -1):
        total += kept * count / left * values[left - 1]
        kept *= 1 - count / left
    return total


@pytest.fixture(scope="module")
def found() -> tb.Rehearsal:
    return tb.rehearse(table(), "yield", n=4, evaluations=10, trials=3)


def test_curves_hold_the_values_of_the_table_and_the_share_of_better_rows(found: tb.Rehearsal) -> None:
    values = table().set_index("id")["yield"]
    assert found.curves["evaluations"].tolist() == [4, 8, 10] * 3
    assert found.curves["trial"].tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert found.curves["value"].to_numpy() == pytest.approx(values[found.curves["id"]].to_numpy())
    for trial, own in found.curves.groupby("trial"):
        rng = np.random.default_rng([0, trial])
        offered = values.to_numpy()[np.sort(rng.choice(60, 48, replace=False))]
        assert own["better"].to_numpy() == pytest.approx([(offered > value).mean() for value in own["value"]])


def test_random_rows_are_the_best_of_random_rows(found: tb.Rehearsal) -> None:
    values = table()["yield"].to_numpy()
    for (trial, made), own in found.random.groupby(["trial", "evaluations"]):
        offered = values[np.sort(np.random.default_rng([0, trial]).choice(60, 48, replace=False))]
        error = own["value"].std() / len(own) ** 0.5
        assert abs(own["value"].mean() - expected_best(offered, made)) < 4 * error
        assert len(own) == 134


def test_the_number_of_random_rows_that_are_as_good(found: tb.Rehearsal) -> None:
    values, level = table()["yield"].to_numpy(), found.curves.query("evaluations == 10")["value"].mean()
    offered = [values[np.sort(np.random.default_rng([0, trial]).choice(60, 48, replace=False))] for trial in range(3)]
    means = [np.mean([expected_best(own, made) for own in offered]) for made in range(1, 49)]
    exact = int(np.argmax(np.array(means) >= level - 1e-9)) + 1
    assert found.as_good is not None
    assert abs(found.as_good - exact) <= max(4, 0.25 * exact)
    assert found.compared == 48


def test_campaigns_find_what_the_columns_tell() -> None:
    features = np.random.default_rng(1).random((150, 3))
    known = pd.DataFrame(features, columns=list("abc")).assign(goal=np.exp(-4 * ((features - 0.8) ** 2).sum(axis=1)))
    found = tb.rehearse(known, "goal", n=4, evaluations=24, trials=6)
    last = found.summary().iloc[-1]
    assert last["better"] < 0.01 < 0.02 < last["random better"]
    assert found.as_good is not None
    assert found.as_good > 48
    assert f"About {found.as_good:,} random rows are as good" in found.conclusion()


def test_small_values_may_be_good() -> None:
    large = tb.rehearse(table(), "yield", n=4, evaluations=8, trials=2)
    small = tb.rehearse(table().assign(**{"yield": -table()["yield"]}), "yield", n=4, evaluations=8, trials=2, minimize=True)
    assert small.curves["id"].tolist() == large.curves["id"].tolist()
    assert small.curves["better"].tolist() == large.curves["better"].tolist()
    assert (small.summary()["value"] == -large.summary()["value"]).all()
    assert small.as_good == large.as_good


def test_a_seed_gives_the_same_trials_and_more_trials_begin_with_them(found: tb.Rehearsal) -> None:
    again, one = (tb.rehearse(table(), "yield", n=4, evaluations=10, trials=trials) for trials in (3, 1))
    pd.testing.assert_frame_equal(again.curves, found.curves)
    pd.testing.assert_frame_equal(again.random, found.random)
    pd.testing.assert_frame_equal(one.curves, found.curves[:3])
    other = tb.rehearse(table(), "yield", n=4, evaluations=10, trials=1, seed=1)
    assert other.curves["id"].tolist() != one.curves["id"].tolist()


@pytest.mark.parametrize("noise_std", [0.0, 5.0])
def test_rows_are_repeated_only_with_noise(noise_std: float, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    tell = tb.Campaign.tell

    def recorded(self: tb.Campaign, measured: pd.DataFrame) -> object:
        told.extend(measured["id"])
        true = table().set_index("id")["yield"][measured["id"]].to_numpy()
        apart = np.abs(measured["yield"].to_numpy() - true)
        assert (apart.max() > 0.5) if noise_std else (apart.max() == 0)
        return tell(self, measured)

    monkeypatch.setattr(tb.Campaign, "tell", recorded)
    tb.rehearse(table(), "yield", n=4, evaluations=24, trials=1, noise_std=noise_std)
    assert len(told) == 24
    assert (len(set(told)) == 24) == (noise_std == 0)


def test_rows_without_a_value_are_left_out_and_rows_keep_their_numbers() -> None:
    whole = table().drop(columns="id")
    whole.loc[whole.index % 3 == 0, "yield"] = np.nan
    found = tb.rehearse(whole.reset_index(drop=True), "yield", n=4, evaluations=8, trials=2)
    rows = found.curves["id"].astype(int).to_numpy() - 1
    assert found.curves["value"].to_numpy() == pytest.approx(whole["yield"].to_numpy()[rows])
    assert found.compared == 32


def test_the_index_of_a_table_is_its_id_and_a_policy_may_be_given() -> None:
    found = tb.rehearse(table().set_index("id"), "yield", n=5, evaluations=10, trials=1, policy=tb.uniform(batch_size=5))
    assert set(found.curves["id"]) <= set(table()["id"])
    rounded = tb.rehearse(table(), "yield", columns={"other": "ignore"}, n=4, evaluations=8, trials=1)
    assert len(rounded.curves) == 2


def test_replicates_are_one_row_with_random_results(monkeypatch: pytest.MonkeyPatch) -> None:
    once = table(40)
    apart = np.random.default_rng(3).normal(size=40)
    high, low = (
        once.assign(id=once["id"] + name, **{"yield": once["yield"] + shift}) for name, shift in (("h", apart), ("l", -apart))
    )
    told: list[float] = []
    tell = tb.Campaign.tell

    def recorded(self: tb.Campaign, measured: pd.DataFrame) -> object:
        assert measured["id"].str.endswith("h").all()
        true = once.set_index("id")["yield"][measured["id"].str[:-1]].to_numpy()
        own = apart[measured["id"].str[1:-1].astype(int)]
        sides = (measured["yield"].to_numpy() - true) / own
        assert np.abs(sides) == pytest.approx(1.0)
        told.extend(sides.round().tolist())
        return tell(self, measured)

    monkeypatch.setattr(tb.Campaign, "tell", recorded)
    found = tb.rehearse(pd.concat([high, low]), "yield", n=4, evaluations=24, trials=2)
    assert 0.2 < np.mean(np.array(told) > 0) < 0.8
    assert found.compared == 32
    true = once.set_index("id")["yield"][found.curves["id"].str[:-1]].to_numpy()
    assert found.curves["value"].to_numpy() == pytest.approx(true)
    with pytest.raises(ArgumentError, match="32 rows of the table would be on offer"):
        tb.rehearse(pd.concat([high, low]), "yield", evaluations=33)


def test_replicates_may_have_the_same_id() -> None:
    once = table(40)
    twice = pd.concat([once, once.assign(**{"yield": once["yield"] + 1.0})])
    found = tb.rehearse(twice, "yield", n=4, evaluations=8, trials=1)
    true = once.set_index("id")["yield"][found.curves["id"]].to_numpy() + 0.5
    assert found.curves["value"].to_numpy() == pytest.approx(true)
    assert found.compared == 32


def test_replicates_of_equal_results_have_this_average() -> None:
    # The average of seven numbers 0.7 is 0.7000000000000001.
    seven = pd.concat([table(20).assign(**{"yield": 0.7})] * 7)
    with pytest.raises(ArgumentError, match="all values of 'yield' are equal"):
        tb.rehearse(seven, "yield", evaluations=4)


def test_equal_molecules_are_one_row() -> None:
    pytest.importorskip("rdkit")
    smiles = ["C" * length + end for length in range(1, 9) for end in ("O", "N", "F", "Cl", "Br")]
    once = pd.DataFrame({"smiles": smiles, "yield": np.arange(40.0)})
    again = once.assign(smiles=[text.replace("CO", "C(O)") for text in smiles], **{"yield": once["yield"] + 2.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tb.rehearse(pd.concat([once, again], ignore_index=True), "yield", n=4, evaluations=8, trials=2)
    assert found.compared == 32
    assert found.curves["value"].to_numpy() == pytest.approx(found.curves["id"].astype(int).to_numpy())


def test_trials_interpret_columns_as_the_whole_table_does() -> None:
    # 31 texts are categories among 64 rows, but not among 51.
    whole = table(64).assign(ligand=[f"ligand {row % 31}" for row in range(64)])
    assert len(tb.rehearse(whole, "yield", n=4, evaluations=8, trials=2).curves) == 4


def test_a_measured_objective_may_be_declared() -> None:
    assert len(tb.rehearse(table(), "yield", columns={"yield": "measured"}, n=4, evaluations=8, trials=1).curves) == 2


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("temperature", "inf", "'temperature' is infinite in line 12"),
        ("temperature", "warm", "holds 'warm' in line 12"),
        ("id", "r9", "'r9' in line 11 and line 12"),
        ("id", "", "line 12: the id"),
        ("smiles", "not", "'not' in line 12 is not a valid SMILES"),
    ],
)
def test_messages_name_lines_of_the_file(tmp_path: Path, column: str, cell: str, message: str) -> None:
    whole = table().assign(smiles=[f"C{'C' * row}O" for row in range(60)]).astype(object)
    whole.loc[:2, "yield"] = ""
    whole.loc[10, column] = cell
    whole.to_csv(tmp_path / "known.csv", index=False)
    columns = {} if column != "smiles" else {"smiles": "molecule"}
    if columns:
        pytest.importorskip("rdkit")
    with pytest.raises(ArgumentError, match=message):
        tb.rehearse(tmp_path / "known.csv", "yield", columns={"smiles": "ignore"} | columns, evaluations=8)


def test_progress_is_told() -> None:
    made: list[int] = []
    tb.rehearse(table(), "yield", n=4, evaluations=10, trials=2, progress=made.append)
    assert made == [4, 4, 2, 4, 4, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "yeild"}, "no column 'yeild', and a rehearsal needs results. Did you mean 'yield'?"),
        ({"objective": "yield", "evaluations": 49}, "48 rows of the table would be on offer"),
        ({"objective": "flat", "evaluations": 8}, "all values of 'flat' are equal"),
        ({"objective": "yield", "id": "yield"}, "column 'yield' is the id already"),
        (
            {"objective": "yield", "columns": dict.fromkeys(["temperature", "other", "flat", "none"], "ignore")},
            "no column that tells",
        ),
        ({"objective": "none", "evaluations": 8}, "the table has no values of 'none', and a rehearsal needs results"),
    ],
)
def test_what_cannot_be_rehearsed(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message.replace("?", r"\?")):
        tb.rehearse(table().assign(flat=1.0, none=np.nan), **options)  # type: ignore[arg-type]


def made(values: list[float], others: list[float], *, minimize: bool = False) -> tb.Rehearsal:
    """A rehearsal of one plate of 8 by its final values."""
    frames = [
        pd.DataFrame({"trial": range(len(own)), "evaluations": 8, "id": "a", "value": own, "better": 0.25})
        for own in (values, others)
    ]
    return tb.Rehearsal("yield", minimize, *frames, None, 256)


@pytest.mark.parametrize(
    ("rehearsal", "words"),
    [
        (made([5.0, 5.1, 5.2], [1.0, 1.1, 1.3]), "More than 256 random rows are as good"),
        (made([5.0, 5.1, 5.2], [1.0, 1.1, 1.3], minimize=True), "Random rows are better here"),
        (made([5.0, 1.0, 5.2], [4.0, 4.1, 1.3]), "Neither is shown to be better"),
        # Two standard errors of the mean would be less than the difference.
        (made([5.0, 3.0], [1.0, 1.0]), "Neither is shown to be better"),
        (made([5.0], [1.0]), "Neither is shown to be better"),
        (made([0.1, 0.2, 0.3], [0.1, 0.2, 0.1 + 0.2]), "Neither is shown to be better"),
        (made([0.3, 0.3, 0.3], [0.1 + 0.2] * 3), "Neither is shown to be better"),
    ],
)
def test_conclusions(rehearsal: tb.Rehearsal, words: str) -> None:
    assert words in rehearsal.conclusion()
    assert rehearsal.conclusion().startswith("After 8 evaluations 25 % of the rows are better")
    assert words in repr(rehearsal)
    assert words in rehearsal._repr_html_()


def test_all_rows_are_as_good_as_the_best() -> None:
    # The mean of 402 numbers differs from that of three by rounding.
    whole = table().assign(**{"yield": np.where(table()["temperature"] > 95, 0.11, table()["temperature"] / 1e3)})
    found = tb.rehearse(whole, "yield", n=12, evaluations=48, trials=3)
    assert found.as_good is not None
    assert found.as_good <= 48
    assert "(random rows: in 100 %). Random rows do as well: make fewer evaluations." in found.conclusion()


def test_large_values_are_printed_in_full() -> None:
    assert " 401,123 " in repr(made([401_123.4], [1.5]))


def test_long_rehearsals_are_printed_in_ten_lines() -> None:
    found = tb.rehearse(table(), "yield", n=1, evaluations=13, trials=1)
    lines = repr(found).splitlines()
    assert len(lines) == 2 + rehearsal._SHOWN
    assert lines[-1].split()[0] == "13"
    assert len(found.summary()) == 13


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_the_picture(found: tb.Rehearsal, tmp_path: Path, name: str, begins: bytes) -> None:
    assert found.plot(tmp_path / name).read_bytes().startswith(begins)
    axes = found.figure().axes[0]
    campaign, others = axes.lines
    assert campaign.get_ydata() == pytest.approx(found.summary()["value"].to_numpy())
    assert others.get_ydata() == pytest.approx(found.summary()["random value"].to_numpy())
    assert axes.get_ylabel() == "yield of the recommended row"


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table().to_csv("known.csv", index=False)
    options = ["-n", "4", "--evaluations", "10", "--trials", "3"]
    written = ["--figure", "r.png", "--output", "rows.csv"]
    result = CliRunner().invoke(app, ["campaign", "rehearse", "known.csv", "--objective", "yield", *options, *written])
    assert result.exit_code == 0, result.output
    said = result.stdout
    found = tb.rehearse("known.csv", "yield", n=4, evaluations=10, trials=3)
    assert [line.rstrip() for line in said.splitlines()[: len(repr(found).splitlines())]] == repr(found).splitlines()
    assert (tmp_path / "r.png").exists()
    assert pd.read_csv("rows.csv")["id"].tolist() == found.curves["id"].tolist()
    assert {path.name for path in tmp_path.iterdir()} == {"known.csv", "r.png", "rows.csv"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--figure", "r.foo"], "r.foo: pictures are written as .png, .svg or .pdf"),
        (["--figure", "none/r.png"], "none/r.png can't be written: there is no folder none."),
        (["--output", "none/r.csv"], "none/r.csv can't be written: there is no folder none."),
        (["--output", "r.parquet"], "rows are written as CSV"),
        (["--output", "./known.csv"], "known.csv is the table of the results"),
        (["--seed", str(2**62 + 1)], "Invalid value for '--seed'"),
    ],
)
def test_files_are_checked_before_campaigns_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    table().to_csv("known.csv", index=False)
    before = Path("known.csv").read_bytes()
    result = CliRunner().invoke(
        app, ["campaign", "rehearse", "known.csv", "--objective", "yield", *options, "--evaluations", "8", "--trials", "1"]
    )
    assert result.exit_code != 0
    assert "evaluations" not in result.stdout
    assert message in " ".join(result.output.split())
    assert Path("known.csv").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["known.csv"]


def test_a_picture_has_a_known_ending(found: tb.Rehearsal, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"r\.foo: pictures are written as"):
        found.plot(tmp_path / "r.foo")


def test_rows_are_written_as_the_table_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table().to_csv("known.csv", index=False, sep=";", decimal=",")
    options = ["-n", "4", "--evaluations", "8", "--trials", "1", "--output", "rows.csv"]
    result = CliRunner().invoke(app, ["campaign", "rehearse", "known.csv", "--objective", "yield", *options])
    assert result.exit_code == 0, result.output
    assert "2 rows: rows.csv" in result.stdout
    written = pd.read_csv("rows.csv", sep=";", decimal=",")
    assert written["value"].to_numpy() == pytest.approx(table().set_index("id")["yield"][written["id"]].to_numpy())
