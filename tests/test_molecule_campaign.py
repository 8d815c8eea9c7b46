"""Campaigns over a column of SMILES: recognised or declared, refused if a cell is not SMILES, and continued from a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rdkit import Chem
from rdkit.Chem import rdFingerprintGenerator
from typer.testing import CliRunner

import torchbandits as tb
from torchbandits.cli import app
from torchbandits.errors import ArgumentError, DiagnosticWarning, StateError, UnsupportedError
from torchbandits.extras import Later
from torchbandits.tabular import molecules

SMILES = [f"{'C' * i}{end}" for i in range(1, 9) for end in ("O", "N", "Cl", "c1ccccc1", "C(=O)O", "OC")]


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"id": [f"M{i:02}" for i in range(len(SMILES))], "smiles": SMILES} | columns)


def value(smiles: str) -> float:
    return -abs(len(smiles) - 8.0) + smiles.count("O")


@pytest.mark.exhaustive
def test_a_column_of_smiles_is_found_and_its_fingerprints_are_the_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also if the fingerprints are kept in a file, from which the campaign continues."""
    monkeypatch.setattr(molecules, "KEPT", 10)
    frame().to_csv(tmp_path / "molecules.csv", index=False)
    c = tb.Campaign(tmp_path / "molecules.csv", objective="value", journal=tmp_path / "journal")
    assert {d.column: d.kind for d in c.columns} == {"id": "id", "smiles": "molecule"}
    assert (tmp_path / "journal.features.npy").exists()
    maker = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    bits = np.stack([maker.GetFingerprintAsNumPy(Chem.MolFromSmiles(text)) for text in SMILES])
    arms = c.bandit.loop.state.rows.source
    assert isinstance(arms, tb.sources.Fingerprints)
    np.testing.assert_array_equal(arms.chunk(slice(0, len(SMILES))).numpy(), bits)
    for _ in range(3):
        plate = c.ask(4, repeats=False)
        assert plate["smiles"].tolist() == [SMILES[int(name[1:])] for name in plate["id"]]
        c.tell(plate[["id"]].assign(value=[value(text) for text in plate["smiles"]]))
    assert isinstance(c.bandit.posterior.kernel.base_kernel, tb.TanimotoKernel)
    best, following = c.best(3), c.ask(3)
    c.report(tmp_path / "report.html")
    c.close()
    monkeypatch.setattr(molecules, "from_smiles", None)
    again = tb.Campaign(None, journal=tmp_path / "journal")
    pd.testing.assert_frame_equal(again.best(3), best)
    pd.testing.assert_frame_equal(again.ask(3), following)
    with pytest.raises(StateError, match=r"columns was \{\}"):
        tb.Campaign(None, journal=tmp_path / "journal", columns={"smiles": "molecule"})


def test_fingerprints_of_another_campaign_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(molecules, "KEPT", 10)
    options = {"objective": "value", "columns": {"smiles": "molecule"}}
    tb.Campaign(frame(), **options, journal=tmp_path / "journal").close()
    for name in ("journal", "journal.campaign.json", "journal.checkpoint"):
        (tmp_path / name).unlink(missing_ok=True)
    turned = frame()[::-1].reset_index(drop=True)
    c, own = (tb.Campaign(turned, **options, **place) for place in ({"journal": tmp_path / "journal"}, {}))
    np.testing.assert_array_equal(*(one.bandit.arms.points(torch.arange(len(turned))) for one in (c, own)))
    with pytest.raises(UnsupportedError):
        tb.Campaign(frame(), **options, journal=tmp_path / "failed", policy=tb.lin_ucb(noise_std=0.1))
    assert not list(tmp_path.glob("failed*"))


def test_rows_of_one_molecule_are_named_when_a_campaign_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = frame()
    rows.loc[5, "smiles"], rows.loc[9, "smiles"] = "OCC", SMILES[3]
    words = (
        r"column 'smiles': row 5 \('OCC'\) and row 6 \('CCO'\) hold the same molecule \(2 such pairs\); each is a "
        r"candidate"
    )
    for kept in (molecules.KEPT, 10):
        monkeypatch.setattr(molecules, "KEPT", kept)
        with pytest.warns(DiagnosticWarning, match=words):
            c = tb.Campaign(rows, objective="value", journal=tmp_path / f"lab{kept}")
        assert c.bandit.loop.num_arms == len(rows)
        c.close()
        # It is said once, and a row with equal fingerprints may be another molecule.
        tb.Campaign(rows, journal=tmp_path / f"lab{kept}").close()
    rows.loc[[5, 9], "smiles"] = ["C" * 30, "C" * 31]
    tb.Campaign(rows, objective="value")


def test_molecules_stand_alone():
    weights = np.arange(len(SMILES))
    names = [f"name {i}" for i in range(len(SMILES))]
    table = frame(weight=weights, name=names, cost=1.0)
    c = tb.Campaign(table, objective="value", columns={"smiles": "molecule"}, noise_std=0.1, cost="cost")
    assert c.columns.to_pandas()["taken as"].tolist() == ["id", "molecule", "ignore", "ignore", "cost"]
    assert isinstance(c.bandit.posterior.kernel.base_kernel, tb.TanimotoKernel)
    assert list(c.ask(2).columns[:3]) == ["id", "smiles", "weight"]
    with pytest.raises(ArgumentError, match="no room for other features, such as 'weight'"):
        tb.Campaign(table, objective="value", columns={"smiles": "molecule", "weight": "number"})
    few = frame(solvent=["CCO", "CO"] * 24)  # a column of few different texts is categorical, even if they are SMILES
    assert tb.Campaign(few[["id", "solvent"]], objective="value").columns["solvent"].kind == "category"


@pytest.mark.parametrize(
    ("cell", "told", "words"),
    [
        ("C1", None, "'C1' in row 3 is not a valid SMILES (1 of its 48 different texts)"),
        ("C1", None, "make the column a 'category' (--column smiles=category)"),
        ("C1", "molecule", "column 'smiles': 'C1' in row 3 is not a valid SMILES. Correct it, or leave these rows out."),
        (None, None, "lacks the SMILES in row 3 (1 such row)"),
        (7.0, "molecule", "holds double and can't be 'molecule': SMILES are texts"),
    ],
)
def test_what_is_no_molecule_is_refused(cell: Any, told: str | None, words: str):
    table = frame()
    if isinstance(cell, float):
        table["smiles"] = np.arange(len(SMILES)) + cell
    else:
        table.loc[3, "smiles"] = cell
    kinds = {} if told is None else {"smiles": told}
    for cost in (None, "cost"):
        with pytest.raises(ArgumentError) as error:
            tb.Campaign(table.assign(cost=1.0), objective="value", columns={"cost": "ignore"} | kinds, cost=cost)
        assert words in str(error.value)


@pytest.mark.parametrize("told", [None, "substance", "molecule"])
def test_texts_among_many_smiles_are_named_with_their_rows_and_the_campaign_can_begin_without_them(told: str | None):
    smiles = [f"{'C' * i}{end}" for i in range(1, 14) for end in ("O", "N", "Cl", "C(=O)O", "OC")]
    table = pd.DataFrame({"id": range(len(smiles)), "heat": np.arange(len(smiles)) % 7, "reaction ligand": smiles})
    table.loc[[60, 7, 30], "reaction ligand"] = ["SPhos", "XPhos G3", "no ligand"]
    kinds = None if told is None else {"reaction ligand": told}
    with pytest.raises(ArgumentError) as error:
        tb.Campaign(table, objective="value", columns=kinds)
    said = str(error.value)
    assert all(words in said for words in ("'SPhos' in row 60", "'XPhos G3' in row 7", "'no ligand' in row 30"))
    if told != "molecule":
        assert "(3 of its 65 different texts). Correct them, leave these rows out, or make the column a 'category'" in said
        assert '--column "reaction ligand=category"' in said
    for kind in ("category", "ignore"):
        tb.Campaign(table, objective="value", columns={"reaction ligand": kind}).ask(2)
    tb.Campaign(table.drop(index=[60, 7, 30]), objective="value", columns=kinds).ask(2)


def test_without_rdkit_smiles_are_texts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.sources.smiles.chem", Later("no_such_package", "fingerprints of SMILES", "chem"))
    with pytest.raises(ArgumentError, match=r"holds text .* or declare it as SMILES of molecules \('substance', 'molecule'\)"):
        tb.Campaign(frame(), objective="value")


def test_the_command_line_takes_molecules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    frame(weight=np.arange(len(SMILES))).to_csv("molecules.csv", index=False)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["campaign", *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    run("new", "molecules.csv", "--objective", "value", "--column", "smiles=molecule")
    plate = pd.read_csv(io.StringIO(run("ask", "-n", "3")))
    assert plate["smiles"].isin(SMILES).all()


@pytest.mark.exhaustive
def test_a_campaign_goes_on_with_more_molecules_by_the_command_that_the_message_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    frame()[:40].to_csv("few.csv", index=False)
    frame()[40:].to_csv("more.csv", index=False)
    frame().to_csv("all.csv", index=False)

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["campaign", *arguments])
        assert result.exit_code == code, result.output
        return result.output

    run("new", "few.csv", "--objective", "value")
    run("ask", "-n", "3", "--output", "plate.csv")
    plate = pd.read_csv("plate.csv")
    plate.assign(value=plate["smiles"].map(value)).to_csv("plate.csv", index=False)
    run("tell", "plate.csv")
    said = run("extend", "more.csv", code=2)
    assert "…" not in said
    assert "torchbandits campaign renew all.csv --to campaign2" in said
    run("ask", "-n", "2")
    monkeypatch.setattr(molecules, "KEPT", 10)
    assert "with 3 results and 2 pending rows" in run("renew", "all.csv", "--to", "campaign2")
    assert Path("campaign2/journal.features.npy").exists()
    assert len(pd.read_csv(io.StringIO(run("best", "--folder", "campaign2")))) == 3
    fresh = tb.Campaign(frame(), objective="value")
    fresh.tell(plate[["id"]].assign(value=plate["smiles"].map(value)))
    for k in range(2):
        renewed = tb.Campaign("campaign2/candidates.parquet", journal="campaign2/journal")
        pd.testing.assert_frame_equal(renewed.predict(), fresh.predict(), check_exact=True)
        assert len(renewed.open) == 2
        renewed.close()
        if not k:
            Path("campaign2/journal.checkpoint").unlink()
