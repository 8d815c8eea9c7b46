"""Columns of a few different SMILES beside other features: points whose distances come from the similarity of fingerprints."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from problems import OFF_SCALE
from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator

import torchbandits as tb
from torchbandits.errors import ArgumentError
from torchbandits.explanation.words import Words, by_name, fastest, unsettled
from torchbandits.extras import Later
from torchbandits.tabular import columns, survey
from torchbandits.tabular.substances import MOST_COORDINATES, coordinates_of

pytestmark = OFF_SCALE
DECLARED = {"ligand": "substance", "solvent": "substance"}
LIGANDS = ("CC(C)P(C(C)C)C(C)C", "CCP(CC)CC", "P(c1ccccc1)(c1ccccc1)c1ccccc1", "CN(C)c1ccccc1", "C1CCNCC1")
SOLVENTS = ("C1CCOC1", "CC#N", "CCO")


def frame(**more: Any) -> pd.DataFrame:
    rows = list(product(LIGANDS, SOLVENTS, (60, 80, 100)))
    own = pd.DataFrame(rows, columns=["ligand", "solvent", "temperature"])
    return own.assign(id=[f"R{i:02}" for i in range(len(own))], **more)[["id", *own.columns, *more]]


def value(rows: pd.DataFrame) -> Any:
    return rows["ligand"].map({text: float(text.count("P")) + len(text) / 50 for text in LIGANDS}) + rows["temperature"] / 100


def similarity(one: str, other: str) -> float:
    maker = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    return DataStructs.TanimotoSimilarity(*(maker.GetCountFingerprint(Chem.MolFromSmiles(text)) for text in (one, other)))


def test_distances_come_from_similarities():
    found = coordinates_of(LIGANDS)
    assert found.shape[0] == len(LIGANDS) > found.shape[1]
    np.testing.assert_allclose(found.mean(axis=0), 0.0, atol=1e-12)
    squared = ((found[:, None] - found) ** 2).sum(axis=-1)
    expected = [[2 * (1 - similarity(one, other)) for other in LIGANDS] for one in LIGANDS]
    np.testing.assert_allclose(squared, expected, atol=1e-9)
    assert (np.diff((found**2).sum(axis=0)) <= 1e-12).all()


def test_many_molecules_have_the_coordinates_of_the_largest_spread():
    many = [f"{'C' * i}{end}" for i in range(1, 15) for end in ("O", "N", "C(=O)O", "C#N")]
    found = coordinates_of(many)
    assert found.shape == (len(many), MOST_COORDINATES)
    squared = ((found[:, None] - found) ** 2).sum(axis=-1)
    expected = np.array([[2 * (1 - similarity(one, other)) for other in many] for one in many])
    assert (squared <= expected + 1e-9).all()
    with pytest.raises(ArgumentError, match=r"'C1' is not a valid SMILES \(1 such texts\)"):
        coordinates_of(["CO", "C1"])


@pytest.mark.parametrize(
    "pair", [("C[C@H](N)C(=O)O", "C[C@@H](N)C(=O)O"), ("F/C=C/C#N", "F/C=C\\C#N")], ids=["R and S", "E and Z"]
)
def test_stereoisomers_are_different_points(pair: tuple[str, str]):
    for others in ((), SOLVENTS):
        found = coordinates_of([*pair, *others])
        assert np.linalg.norm(found[0] - found[1]) > 0.3
    table = frame().assign(ligand=[*pair, LIGANDS[0]] * 15)
    assert tb.Campaign(table, objective="yield", columns={"ligand": "substance"}).columns["ligand"].features == 2


def test_spellings_of_one_molecule_are_one_point_and_named():
    spelled = ["OCC", "CCO", "C(O)C", *LIGANDS]
    found = coordinates_of(spelled)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[2:], coordinates_of(spelled[2:]), "and change no other point")
    rows = frame()
    for row, text in ((0, "CCO"), (len(rows) - 1, "OCC")):
        rows.loc[row, ["ligand", "solvent", "temperature"]] = [LIGANDS[0], text, 60]
    c = tb.Campaign(rows, objective="yield", columns={"solvent": "substance"})
    assert c.columns["solvent"].why == "as told; 'CCO' and 'OCC' are one molecule"
    assert "molecule" not in c.columns["ligand"].why
    assert int(c._arms.entries([len(rows) - 1])) == 0, "rows that differ in the spelling alone are one arm"


def test_substances_are_features_beside_others_and_the_campaign_resumes(tmp_path: Path):
    c = tb.Campaign(frame(), objective="yield", journal=tmp_path / "lab", columns=DECLARED)
    assert {d.column: d.kind for d in c.columns} == {
        "id": "id",
        "ligand": "substance",
        "solvent": "substance",
        "temperature": "number",
    }
    ligands, solvents = coordinates_of(sorted(LIGANDS)), coordinates_of(sorted(SOLVENTS))
    row = frame().index[frame()["ligand"] == LIGANDS[3]][0]
    own = c.bandit.arms[row].numpy()
    np.testing.assert_allclose(own[: ligands.shape[1]], ligands[sorted(LIGANDS).index(LIGANDS[3])], atol=1e-9)
    assert c.bandit.arms.shape[-1] == ligands.shape[1] + solvents.shape[1] + 1
    for _ in range(3):
        plate = c.ask(4)
        c.tell(plate[["id"]].assign(**{"yield": value(plate)}))
    assert "Columns: yield changes fastest with " in str(c.explain())
    assert str(c.explain()).count("ligand (") == 1, "the shares of its coordinates are added up"
    best, following, arms = c.best(3), c.ask(4), c.bandit.arms.clone()
    c.close()
    again = tb.Campaign(frame(), journal=tmp_path / "lab")
    assert torch.equal(again.bandit.arms, arms), "the coordinates are those that were saved"
    pd.testing.assert_frame_equal(again.best(3), best)
    pd.testing.assert_frame_equal(again.ask(4), following)
    with pytest.raises(ArgumentError, match="'CCCO' is not one of the categories of the beginning"):
        again.extend(frame()[:1].assign(id="new", solvent="CCCO"))
    assert again.extend(frame()[:1].assign(id="new", temperature=70)) == 1


def test_settings_of_earlier_versions_have_no_coordinates(tmp_path: Path):
    c = tb.Campaign(frame(), objective="yield", journal=tmp_path / "lab", columns={"ligand": "category", "solvent": "ignore"})
    c.tell(frame()[:4][["id"]].assign(**{"yield": [1.0, 2.0, 4.0, 3.0]}))
    best = c.best(2)
    c.close()
    path = tmp_path / "lab.campaign.json"
    settings = json.loads(path.read_text())
    for column in settings["columns"]:
        del column["coordinates"]
    path.write_text(json.dumps(settings))
    pd.testing.assert_frame_equal(tb.Campaign(frame(), journal=tmp_path / "lab").best(2), best)


def test_an_empty_cell_is_in_the_middle_and_marked():
    table = frame()
    table.loc[[0, 7], "solvent"] = None
    c = tb.Campaign(table, objective="yield", columns=DECLARED)
    decision = c.columns["solvent"]
    assert (decision.kind, decision.missing, decision.features) == ("substance", 2, len(decision.coordinates[0]) + 1)
    own = c.bandit.arms[:, c.columns["ligand"].features :][:, : decision.features]
    np.testing.assert_array_equal(own[[0, 7]], [[0.0] * (decision.features - 1) + [1.0]] * 2)
    assert (own[1:7, -1] == 0).all()


def test_a_library_may_have_other_features_beside_its_molecules(monkeypatch: pytest.MonkeyPatch):
    """If there are too many different ones, the fingerprints stand alone."""
    smiles = [f"{'C' * i}{end}" for i in range(1, 9) for end in ("O", "N", "Cl", "c1ccccc1", "C(=O)O", "OC")]
    library = pd.DataFrame({"id": range(len(smiles)), "smiles": smiles, "weight": np.arange(len(smiles))})
    assert tb.Campaign(library, objective="y").columns["smiles"].kind == "substance"
    assert tb.Campaign(library.drop(columns="weight"), objective="y").columns["smiles"].kind == "molecule"
    for module in (columns, survey):
        monkeypatch.setattr(module, "MOST_CATEGORIES", 40)
    with pytest.raises(
        ArgumentError,
        match=r"'smiles' holds more than 40 different molecules.*\(here 'weight'\).*columns={'smiles': 'molecule'}",
    ):
        tb.Campaign(library, objective="y")


@pytest.mark.parametrize(("levels", "kind"), [(3, "category"), (60, "category"), (101, "substance")])
def test_few_smiles_beside_other_features_are_categories(levels: int, kind: str):
    smiles = ["C" * i + "O" for i in range(1, levels + 1)]
    table = pd.DataFrame({"reagent": smiles * 2, "temperature": range(2 * levels)})
    assert tb.Campaign(table, objective="yield").columns["reagent"].kind == kind
    once = table[: levels + 1].assign(id=range(levels + 1))
    assert tb.Campaign(once, objective="yield").columns["reagent"].kind == "substance", "most are in a single row"


def test_what_is_declared_counts():
    kinds = tb.Campaign(frame(), objective="yield", columns={"ligand": "substance"}).columns
    assert (kinds["ligand"].kind, kinds["solvent"].kind) == ("substance", "category")
    codes = frame(code=["C", "N", "O"] * 15)
    assert tb.Campaign(codes, objective="yield", columns={"code": "substance"}).columns["code"].kind == "substance"
    typed = frame().assign(ligand=frame()["ligand"].astype("category"))
    assert tb.Campaign(typed, objective="yield", columns={"ligand": "substance"}).columns["ligand"].kind == "substance"
    for column, told, words in (
        ("temperature", frame(), "holds int64 and can't be 'substance': SMILES are texts"),
        (
            "ligand",
            frame().replace(LIGANDS[0], "tBuXPhos"),
            "'tBuXPhos' in row 0 is not a valid SMILES .* make the column a 'category'",
        ),
        ("ligand", frame().replace(list(LIGANDS), ["CO", "CO", "OC", "OC", "OC"]), "have the same fingerprint"),
    ):
        with pytest.raises(ArgumentError, match=words):
            tb.Campaign(told, objective="yield", columns={column: "substance"})


def test_without_rdkit_smiles_are_categories(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.sources.smiles.chem", Later("no_such_package", "fingerprints of SMILES", "chem"))
    assert tb.Campaign(frame(), objective="yield").columns["ligand"].kind == "category"


def test_shares_of_one_name_are_added_up():
    relevance, names = by_name(torch.tensor([0.2, 0.5, 0.3]), ["a", "b", "a"])
    assert (relevance.tolist(), names) == ([0.5, 0.5], ["a", "b"])
    assert fastest(torch.tensor([0.3, 0.2, 0.5]), ["a", "b", "a"]) == "a (80%), b (20%)"
    assert "this order often changes" in unsettled(10, ["a", "b", "a"], Words())
    assert unsettled(10, ["a", "a"], Words()) == "", "a single column has no order"
    # Twenty coordinates of one substance are one feature.
    assert "fewer than 24 distinct" in unsettled(23, ["a"] * 20 + ["b"], Words())
    assert unsettled(24, ["a"] * 20 + ["b"], Words()) == ""
